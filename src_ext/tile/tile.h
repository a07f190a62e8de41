/* What a build of the tile family provides: one table of functions per instruction set.

   Every build computes the same things with vectors of another width; `_dense.pyx` picks one
   table at import. The code stands once, in tile_impl.h. No function checks its arguments. */
#ifndef FASTDR_TILE_H
#define FASTDR_TILE_H

#include <stddef.h>
#include <stdint.h>

enum { FD_F8, FD_F4, FD_F2, FD_I1, FD_U1, FD_I2, FD_U2, FD_I4, FD_U4, FD_I8, FD_U8 };

/* Call a cache line before its turn: into L2, or into L1 too. */
#ifdef __GNUC__
#define FD_PREFETCH(address) __builtin_prefetch((address), 0, 2)
#define FD_PREFETCH_NEAR(address) __builtin_prefetch((address), 0, 3)
#else
#define FD_PREFETCH(address) ((void)0)
#define FD_PREFETCH_NEAR(address) ((void)0)
#endif

/* Whether what comes is called into L1 while panels are multiplied, since this processor drops
   most calls into L2 only: AMD's Zen 4 does. Set by fd_tiles. */
extern int fd_drops_far_calls;

/* Vectors of a strip in one panel: with 192 four strips fill the 48 KB of L1. */
#define FD_PANEL 192

/* The same of many columns, whose next strip and sums want room there too. */
#define FD_WIDE_PANEL 168
#define FD_WIDE_COLS 512 /* whose triangle is all that L2 holds */

/* Panels that are multiplied together at most: three or four gain nothing, by measurement. */
#define FD_TOGETHER 2

/* Products of up to eight columns, and of up to sixteen, with each other: those of eight have each
   pair once or, four apart, twice. */
#define FD_TURNED_FEW 40
#define FD_TURNED 144

/* A strided matrix of any supported dtype; steps in bytes, possibly zero or negative. */
typedef struct {
    const char *data;
    ptrdiff_t rows, cols, row_step, col_step;
    int dtype;
} fd_matrix;

/* z[i,j] = (x[i,j] - col_shift[j] - row_shift[i]) * row_factor[i]; NULL leaves a part out.
   A shift is used in two parts, its value rounded to the working type and the rest, so that
   float32 data far from zero lose nothing. */
typedef struct {
    const double *col_shift, *row_shift, *row_factor;
} fd_affine;

/* The upper triangle of a symmetric matrix, cut into strips of `width` rows: strip s holds its
   rows from column s*width on, padded to whole strips. Offsets are in float64 elements. */
static inline ptrdiff_t fd_triangle_offset(ptrdiff_t strip, ptrdiff_t strips, ptrdiff_t width)
{
    return width * width * (strip * strips - strip * (strip - 1) / 2);
}

/* Packed panels that lie `apart` bytes from one another, of `each` rows but for the last. */
typedef struct {
    const void *packed;
    ptrdiff_t rows, each, apart;
} fd_panels;

typedef struct {
    ptrdiff_t width;      /* columns of a strip */
    ptrdiff_t panel_rows; /* rows of a panel at most: even */
    ptrdiff_t wide_rows;  /* the same of more than FD_WIDE_COLS columns */
    ptrdiff_t gram_width; /* columns of V in one strip of gram_apply: 64 bytes */

    /* Bytes of scratch for a packed panel of so many columns. */
    ptrdiff_t (*panel_bytes)(ptrdiff_t cols);

    /* Pack rows [first, last) into strips; sums[j] = sum_i f² (x[i,j] - shift) and
       squares[j] = sum_i f² (x[i,j] - shift)², with f = row_factor and the column's shift,
       float64, padded with zeros to whole strips. Squares, which tell where a panel belongs, may
       be as exact as the working type only, but are neither 0 nor infinite where they left its
       range. Integers have only col_shift, which is integral and lies among them, and no
       squares. */
    void (*pack)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const fd_affine *affine,
                 void *packed, double *sums, double *squares);

    /* Subtract row_factor[i] * means[j] from the packed rows; NULL for integers, whose products
       are exact about any shift. */
    void (*recentre)(void *packed, ptrdiff_t rows, ptrdiff_t cols, const double *means,
                     const double *row_factor);

    /* The sums and squares of pack and the products of multiply at once, for at most two strips
       without factors and shifts of rows. `products` have an order of their own, in which
       `unfold` adds them to a triangle. Returns 0, having done nothing, if a shift is not exact in
       the working type. stage: panel_bytes. NULL where there are no such kernels. */
    int (*square)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                  void *stage, double *sums, double *squares, double products[FD_TURNED]);
    void (*unfold)(const double products[FD_TURNED], ptrdiff_t cols, double *triangle);

    /* Add Z'Z of packed rows to a triangle: row strips [j0, j1), column strips [i0, i1). Sums of
       at most FD_TOGETHER panels are added in the working type before. */
    void (*multiply)(const fd_panels *panels, ptrdiff_t cols, ptrdiff_t j0, ptrdiff_t j1,
                     ptrdiff_t i0, ptrdiff_t i1, double *triangle, const char *next,
                     ptrdiff_t next_bytes);

    /* out[i] = (x[i] - shift) B + offset for rows [first, last), B (x.cols, q) row-major;
       returns 0 if every result is finite. work: rows_work(x.cols, q) bytes. */
    int (*rows_product)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                        const void *b, ptrdiff_t q, const double *offset, void *out, void *work);

    /* out[i] = |a - (a P) R|^2 with a = x[i] - shift, P (x.cols, k), R (k, x.cols) row-major; NaN
       where squares of a small row may have vanished in float32. */
    void (*row_errors)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                       const void *p, const void *r, ptrdiff_t k, double *out, void *work);
    ptrdiff_t (*rows_work)(ptrdiff_t depth, ptrdiff_t q);
    ptrdiff_t (*errors_work)(ptrdiff_t cols, ptrdiff_t k);

    /* Put V (rows, q), whose columns lie together, into strips of gram_width columns one after the
       other, each of an even number of rows of 64 bytes: the form in which all that follow take v
       and y; only they know the order in a strip. */
    void (*gram_stack)(const fd_matrix *v, void *to);

    /* y += A'(A v) with A = rows [first, last) of x - shift; v and y of x.cols rows.
       Rows are read, and copied if they must be, once for all strips. With the `offset` of
       gram_offset the shift comes off the products A v instead of the rows, their column sums are
       added to `sums` (strips, gram_width), and gram_add does the rest: faster, and as many digits
       are lost as the shift is larger than the rows about it. work: gram_work bytes. */
    void (*gram_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                       const double *offset, const void *v, void *y, ptrdiff_t strips,
                       double *sums, void *work);
    ptrdiff_t (*gram_work)(ptrdiff_t cols);

    /* offset += shift' v by column */
    void (*gram_offset)(const double *shift, ptrdiff_t cols, const void *v, ptrdiff_t strips,
                        double *offset);
    /* Add y - shift sums, or y if shift is NULL, by row and column to out (cols, q), whose rows are
       `row_step` bytes apart; the first time put it there. */
    void (*gram_add)(const void *y, ptrdiff_t cols, ptrdiff_t q, const double *shift,
                     const double *sums, int first, char *out, ptrdiff_t row_step);

    /* y += U v + (U - D)' v with U the rows [first, last) of the upper triangle of a symmetric x,
       from its diagonal D on; one strip each. `first` is even, and `last` unless it is the end. */
    void (*symmetric_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const void *v,
                            void *y, void *work);
    ptrdiff_t (*symmetric_work)(void);

    /* Fused multiply-adds in registers: returns the floating-point operations done. */
    double (*peak)(ptrdiff_t iterations);
} fd_kernels;

typedef struct {
    const char *name;
    fd_kernels f8, f4;
    fd_kernels i2; /* 8-bit integers in pairs of int16: the scatter only */

    /* sums += Σ root² (x - shift), squares += Σ root² (x - shift)² by column of rows [first, last);
       root by row, or NULL. */
    void (*column_sums)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                        const double *root, double *sums, double *squares);
    /* triangle += factor v v' */
    void (*add_rank_one)(double *triangle, ptrdiff_t cols, ptrdiff_t width, const double *v,
                         double factor);
    /* Sum of the bytes of a buffer as 64-bit words: the read bandwidth of this machine. */
    double (*read_words)(const uint64_t *words, ptrdiff_t count);
} fd_tile;

/* Tables this machine can run, worst first; returns how many. */
int fd_tiles(const fd_tile *found[3]);

extern const fd_tile fd_tile_base;
#ifdef FASTDR_X86
extern const fd_tile fd_tile_avx2, fd_tile_avx512;
#endif

#endif
