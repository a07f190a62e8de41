/* The tile family, written once in vector extensions.

   A tile_*.c file sets FD_ISA, FD_BYTES (of a vector), FD_ROWS (columns on the broadcast side of
   a register tile), FD_STRIPS (vectors on the other side; FD_PAIR_STRIPS for pairs of int16),
   FD_GROUP (rows of a gram_apply group), FD_CHAINS (sums of a column under way in packing) and
   includes this file. The typed parts are included once for each working type. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef FASTDR_X86
#include <immintrin.h>
#endif

#include "tile.h"

#if defined(__GNUC__) && !defined(FASTDR_PLAIN)
#define FD_VECTORS
#endif
#if defined(__GNUC__)
#define FD_INLINE static inline __attribute__((always_inline))
#define FD_ALONE static __attribute__((noinline))
#define FD_UNROLL _Pragma("GCC unroll 16")
#define FD_LOOSE __attribute__((aligned(1), may_alias))
#define FD_PREFETCH_WRITE(address) __builtin_prefetch((address), 1, 3)
#define FD_OPAQUE(pointer) __asm__("" : "+r"(pointer)) /* stays in a register of its own */
#else
#define FD_INLINE static inline
#define FD_ALONE static
#define FD_UNROLL
#define FD_LOOSE
#define FD_PREFETCH_WRITE(address) ((void)0)
#define FD_OPAQUE(pointer) ((void)0)
#endif
#ifdef _MSC_VER
#define restrict __restrict
#endif

#define FD_PASTE(a, b) a##_##b
#define FD_JOIN(a, b) FD_PASTE(a, b)
#define FD_MIN(a, b) ((a) < (b) ? (a) : (b))
#define FD_MAX(a, b) ((a) > (b) ? (a) : (b))
#define FD_UP(n, multiple) (((n) + (multiple) - 1) / (multiple) * (multiple))

/* Rows handled together while packing, whose column sums stay in registers, the same for every
   layout so that layouts agree to the last bit; with the columns of a stage they stay in L1. */
#define FD_BLOCK 32
/* Columns staged together when the source needs conversion. */
#define FD_STAGE 64

/* Sums of squares that stand for what leaves the range of float32. */
#define FD_HUGE 1e37f
#define FD_TINY 1e-37f

/* Vectors of the next tile when `left` remain: never one alone after a full one, which would leave
   the multipliers waiting. */
#define FD_TAKE(left) ((left) == FD_STRIPS + 1 ? (FD_STRIPS + 1) / 2 : FD_MIN(FD_STRIPS, left))

/* Steps of a multiplying loop that stand one after the other; and steps of a scatter between two
   calls, which cost it its pace where a shared core has few instructions a cycle left. Loops that
   memory binds call at all FD_UNROLLED steps. */
#define FD_UNROLLED 4
#define FD_CALLED 24

/* Where a multiply-add can be named, with the register of its sum: compilers put sums into those
   of factors that are used up and move them back at the end of a step, an instruction each. */
#if defined(FD_VECTORS) && defined(__AVX512F__) && FD_BYTES == 64
#define FD_FUSED
#define FD_HOLD(vector) __asm__("" : : "v"(vector)) /* its register is taken until here */
/* Elements of a step that are spread by the multiply-adds themselves. Each spares an instruction
   and costs two loads: with four of eight, 19 loads stand beside 24 multiply-adds. */
#define FD_EMBEDDED 4
#else
#if defined(FD_VECTORS) && defined(__FMA__) && FD_BYTES == 32
#define FD_FUSED
#endif
#define FD_HOLD(vector) ((void)0) /* there are too few registers */
#define FD_EMBEDDED 0
#endif

/* Memory to come, called a little at a time while the multipliers work. */
typedef struct {
    const char *next;
    ptrdiff_t pace; /* in 1/256 bytes for a vector of a step */
} fd_ahead;

FD_INLINE void fd_call_line(const char *at)
{
    if (fd_drops_far_calls)
        FD_PREFETCH_NEAR(at);
    else
        FD_PREFETCH(at);
}

/* Spread `bytes` from `next` on over `work` vectors. */
FD_INLINE fd_ahead fd_spread(const char *next, ptrdiff_t bytes, ptrdiff_t work)
{
    fd_ahead ahead = {next, bytes * 256 / (work + 1)};
    return ahead;
}

/* Call what `work` vectors from vector `from` on pass: as many lines each time, for branches
   that cannot be foretold cost more than a line called twice. */
FD_INLINE void fd_call(const fd_ahead *ahead, ptrdiff_t from, ptrdiff_t work)
{
    const char *at = ahead->next + (from * ahead->pace >> 8);
    for (const char *end = at + (work * ahead->pace >> 8); at < end; at += 64)
        fd_call_line(at);
}

FD_INLINE void fd_advance(fd_ahead *ahead, ptrdiff_t work)
{
    ahead->next += work * ahead->pace >> 8;
}

/* Half precision to float, exact for every value including subnormals and infinities. */
FD_INLINE float fd_half(uint16_t bits)
{
    union { uint32_t u; float f; } magic = {.u = 0x77800000u}, value; /* 2^112 */
    value.u = (uint32_t)(bits & 0x7fffu) << 13;
    value.f *= magic.f;
    value.u |= (uint32_t)(bits & 0x8000u) << 16;
    if ((bits & 0x7c00u) == 0x7c00u)
        value.u |= 0x7f800000u;
    return value.f;
}

/* Float64 vectors, for sums that stay in float64 whatever the working type. */
#define FD_D ((ptrdiff_t)(FD_BYTES / sizeof(double)))
#ifdef FD_VECTORS
typedef double fd_wide __attribute__((vector_size(FD_BYTES), aligned(8), may_alias));
typedef int64_t fd_word FD_LOOSE;
typedef int64_t fd_words __attribute__((vector_size(FD_BYTES), may_alias));
typedef float fd_narrow __attribute__((vector_size(FD_BYTES / 2), aligned(4), may_alias));
typedef int32_t fd_whole __attribute__((vector_size(FD_BYTES / 2), aligned(4), may_alias));
FD_INLINE fd_wide fd_load_wide(const double *p) { return *(const fd_wide *)p; }
FD_INLINE void fd_store_wide(double *p, fd_wide v) { *(fd_wide *)p = v; }
FD_INLINE fd_wide fd_splat_wide(double x) { return x - (fd_wide){0}; }
FD_INLINE fd_wide fd_widen_f8(const double *p) { return *(const fd_wide *)p; }
/* GCC 12 converts vectors in halves, so the instructions are named where there are any. */
#if defined(__AVX512F__) && FD_BYTES == 64
FD_INLINE fd_wide fd_widen_f4(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
FD_INLINE fd_wide fd_widen_i2(const int32_t *p)
{
    return _mm512_cvtepi32_pd(_mm256_loadu_si256((const __m256i_u *)p));
}
#elif defined(__AVX__) && FD_BYTES == 32
FD_INLINE fd_wide fd_widen_f4(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
FD_INLINE fd_wide fd_widen_i2(const int32_t *p)
{
    return _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i_u *)p));
}
#else
FD_INLINE fd_wide fd_widen_f4(const float *p)
{
    return __builtin_convertvector(*(const fd_narrow *)p, fd_wide);
}
FD_INLINE fd_wide fd_widen_i2(const int32_t *p)
{
    return __builtin_convertvector(*(const fd_whole *)p, fd_wide);
}
#endif
FD_INLINE fd_wide fd_add_wide(fd_wide a, fd_wide b) { return a + b; }
FD_INLINE fd_wide fd_sub_wide(fd_wide a, fd_wide b) { return a - b; }
FD_INLINE fd_wide fd_mul_wide(fd_wide a, fd_wide b) { return a * b; }
FD_INLINE fd_wide fd_fma_wide(fd_wide a, fd_wide b, fd_wide c) { return a * b + c; }
#else /* plain C: the compiler may vectorise the loops */
typedef struct { double v[FD_BYTES / sizeof(double)]; } fd_wide;
#define FD_EACH for (int i_ = 0; i_ < (int)FD_D; i_++)
FD_INLINE fd_wide fd_load_wide(const double *p) { fd_wide r; FD_EACH r.v[i_] = p[i_]; return r; }
FD_INLINE void fd_store_wide(double *p, fd_wide v) { FD_EACH p[i_] = v.v[i_]; }
FD_INLINE fd_wide fd_splat_wide(double x) { fd_wide r; FD_EACH r.v[i_] = x; return r; }
FD_INLINE fd_wide fd_widen_f8(const double *p) { return fd_load_wide(p); }
FD_INLINE fd_wide fd_widen_f4(const float *p) { fd_wide r; FD_EACH r.v[i_] = p[i_]; return r; }
FD_INLINE fd_wide fd_widen_i2(const int32_t *p) { fd_wide r; FD_EACH r.v[i_] = p[i_]; return r; }
FD_INLINE fd_wide fd_add_wide(fd_wide a, fd_wide b) { FD_EACH a.v[i_] += b.v[i_]; return a; }
FD_INLINE fd_wide fd_sub_wide(fd_wide a, fd_wide b) { FD_EACH a.v[i_] -= b.v[i_]; return a; }
FD_INLINE fd_wide fd_mul_wide(fd_wide a, fd_wide b) { FD_EACH a.v[i_] *= b.v[i_]; return a; }
FD_INLINE fd_wide fd_fma_wide(fd_wide a, fd_wide b, fd_wide c)
{
    FD_EACH c.v[i_] += a.v[i_] * b.v[i_];
    return c;
}
#undef FD_EACH
#endif

/* Products of int16, added in pairs: the widest instruction there is. */
#ifdef FASTDR_X86
#if defined(__AVX512BW__) && FD_BYTES == 64
typedef __m512i fd_part;
#define FD_MADD _mm512_madd_epi16
#elif defined(__AVX2__)
typedef __m256i fd_part;
#define FD_MADD _mm256_madd_epi16
#else
typedef __m128i fd_part;
#define FD_MADD _mm_madd_epi16
#endif
/* Compilers regroup integer sums until registers run out: this sum is to stand as it is. */
#define FD_SETTLE(part) __asm__("" : "+v"(part))
#endif

/* Strips by themselves take shuffles of whole vectors: tile_square.h. */
#if defined(__AVX512F__) && FD_BYTES == 64
#define FD_TURNS 5 /* of eight columns */
#define FD_SQUARE(t) .square = square_##t, .unfold = unfold

#define FD_SECOND (FD_TURNS + 8) /* the turns of a second strip, behind those of both */

/* Add products of 8 columns with each other, by turns that lie one after the other, to the upper
   half of a square; where column i + k was turned to column i, i tells them. */
FD_INLINE void fd_unfold(const double *sums, double *to, ptrdiff_t ld)
{
    FD_UNROLL
    for (int i = 0; i < 8; i++, to += ld)
        FD_UNROLL
        for (int j = i; j < 8; j++)
            to[j] += j - i < FD_TURNS ? sums[8 * (j - i) + i] : sums[8 * (8 + i - j) + j];
}

/* The same of 8 columns with 8 others: these are turned by up to 4, and by more the first ones. */
FD_INLINE void fd_unfold_pair(const double *sums, double *to, ptrdiff_t ld)
{
    FD_UNROLL
    for (int i = 0; i < 8; i++, to += ld)
        FD_UNROLL
        for (int j = 0; j < 8; j++) {
            const int turn = (8 + j - i) % 8;
            to[j] += sums[8 * turn + (turn < FD_TURNS ? i : j)];
        }
}

static void unfold(const double *products, ptrdiff_t cols, double *triangle)
{
    if (cols <= 8) {
        fd_unfold(products, triangle, 8);
        return;
    }
    fd_unfold(products, triangle, 16);
    fd_unfold_pair(products + 8 * FD_TURNS, triangle + 8, 16);
    fd_unfold(products + 8 * FD_SECOND, triangle + fd_triangle_offset(1, 2, 8), 8);
}
#else
#define FD_SQUARE(t) .square = NULL, .unfold = NULL
#endif

#define T double
#define FD_SUFFIX "pd"
#define FD_DEEP 1
#define FD_LANES 1
#define FD_NATIVE FD_F8
#define FD_T(name) FD_PASTE(name, f8)
#include "tile_vec.h"
#include "tile_floats.h"
#include "tile_pack.h"
#ifdef FD_TURNS
#include "tile_square.h"
#endif
#include "tile_scatter.h"
#include "tile_rows.h"
#include "tile_gram.h"
#include "tile_columns.h"
#include "tile_end.h"

#define T float
#define FD_SUFFIX "ps"
#define FD_DEEP 2
#define FD_LANES 2
#define FD_NATIVE FD_F4
#define FD_T(name) FD_PASTE(name, f4)
#include "tile_vec.h"
#include "tile_floats.h"
#include "tile_pack.h"
#ifdef FD_TURNS
#include "tile_square.h"
#endif
#include "tile_scatter.h"
#include "tile_rows.h"
#include "tile_gram.h"
#include "tile_end.h"

#undef FD_STRIPS
#define FD_STRIPS FD_PAIR_STRIPS
#define T int32_t
#define FD_DEEP 2
#define FD_LANES 1
#define FD_NATIVE FD_I4
#define FD_T(name) FD_PASTE(name, i2)
#include "tile_vec.h"
#include "tile_pairs.h"
#include "tile_pack.h"
#include "tile_scatter.h"
#include "tile_end.h"

static void add_rank_one(double *triangle, ptrdiff_t cols, ptrdiff_t width, const double *v,
                         double factor)
{
    ptrdiff_t strips = (cols + width - 1) / width;
    for (ptrdiff_t s = 0; s < strips; s++) {
        ptrdiff_t length = (strips - s) * width;
        double *row = triangle + fd_triangle_offset(s, strips, width);
        const double *right = v + s * width;
        for (ptrdiff_t r = 0; r < width; r++, row += length) {
            double left = factor * right[r];
            if (left != 0)
                for (ptrdiff_t j = 0; j < length; j++)
                    row[j] += left * right[j];
        }
    }
}

static double read_words(const uint64_t *words, ptrdiff_t count)
{
    uint64_t total[16] = {0};
    for (ptrdiff_t i = 0; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; j++)
            total[j] += words[i + j];
    for (int j = 1; j < 16; j++)
        total[0] += total[j];
    return (double)total[0];
}

#define FD_KERNELS(t, size)                                                                       \
    {.width = FD_BYTES / 8, .gram_width = 64 / (size), .panel_rows = FD_PANEL * 8 / (size),       \
     .wide_rows = FD_WIDE_PANEL * 8 / (size), .panel_bytes = panel_bytes_##t,                     \
     .pack = pack_##t, .recentre = recentre_##t, FD_SQUARE(t),                                    \
     .multiply = multiply_##t, .rows_product = rows_product_##t, .row_errors = row_errors_##t,    \
     .rows_work = rows_work_##t, .errors_work = errors_work_##t,                                  \
     .gram_stack = gram_stack_##t, .gram_apply = gram_apply_##t, .gram_work = gram_work_##t,      \
     .gram_offset = gram_offset_##t, .gram_add = gram_add_##t,                                    \
     .symmetric_apply = symmetric_apply_##t, .symmetric_work = symmetric_work_##t,                \
     .peak = peak_##t}

#define FD_STRING_(x) #x
#define FD_STRING(x) FD_STRING_(x)

const fd_tile FD_JOIN(fd_tile, FD_ISA) = {
    .name = FD_STRING(FD_ISA),
    .f8 = FD_KERNELS(f8, 8),
    .f4 = FD_KERNELS(f4, 4),
    .i2 = {.width = FD_BYTES / 4, .panel_rows = 2 * FD_PANEL, .wide_rows = 2 * FD_WIDE_PANEL,
           .panel_bytes = panel_bytes_i2, .pack = pack_i2, .multiply = multiply_i2},
    .column_sums = column_sums_f8,
    .add_rank_one = add_rank_one,
    .read_words = read_words,
};
