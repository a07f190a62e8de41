/* Typed part 1: vectors, fetching any dtype, packing a panel into strips. */

#define FD_W ((ptrdiff_t)(FD_BYTES / sizeof(T)))
#define FD_STEP (FD_PANEL * FD_W + (ptrdiff_t)(64 / sizeof(T)))

#define vec FD_T(fd_vec)
#define vec_loose FD_T(fd_vec_loose)

#ifdef FD_VECTORS
typedef T vec __attribute__((vector_size(FD_BYTES), may_alias));
typedef T vec_loose __attribute__((vector_size(FD_BYTES), aligned(sizeof(T)), may_alias));
FD_INLINE vec FD_T(load)(const T *p) { return *(const vec *)p; }
FD_INLINE vec FD_T(load_loose)(const T *p) { return *(const vec_loose *)p; }
FD_INLINE void FD_T(store)(T *p, vec v) { *(vec *)p = v; }
FD_INLINE void FD_T(store_loose)(T *p, vec v) { *(vec_loose *)p = v; }
FD_INLINE vec FD_T(splat)(T x) { return x - (vec){0}; }
FD_INLINE vec FD_T(fma)(vec a, vec b, vec c) { return a * b + c; }
FD_INLINE vec FD_T(sub)(vec a, vec b) { return a - b; }
#else /* plain C: the compiler may vectorise the loops */
typedef struct { T v[FD_BYTES / sizeof(T)]; } vec;
#define FD_EACH for (int i_ = 0; i_ < (int)FD_W; i_++)
FD_INLINE vec FD_T(load)(const T *p) { vec r; FD_EACH r.v[i_] = p[i_]; return r; }
FD_INLINE vec FD_T(load_loose)(const T *p) { return FD_T(load)(p); }
FD_INLINE void FD_T(store)(T *p, vec v) { FD_EACH p[i_] = v.v[i_]; }
FD_INLINE void FD_T(store_loose)(T *p, vec v) { FD_T(store)(p, v); }
FD_INLINE vec FD_T(splat)(T x) { vec r; FD_EACH r.v[i_] = x; return r; }
FD_INLINE vec FD_T(fma)(vec a, vec b, vec c) { FD_EACH c.v[i_] += a.v[i_] * b.v[i_]; return c; }
FD_INLINE vec FD_T(sub)(vec a, vec b) { FD_EACH a.v[i_] -= b.v[i_]; return a; }
#undef FD_EACH
#endif

/* A shift as the working type sees it: value plus rest. */
FD_INLINE void FD_T(split)(double shift, T *high, T *low)
{
    *high = (T)shift;
    *low = (T)(shift - (double)*high);
}

#define FD_FETCH(S, VALUE)                                                                         \
    {                                                                                              \
        typedef S FD_LOOSE stored;                                                                 \
        for (ptrdiff_t i = 0; i < rows; i++, from += x->row_step, to += ld) {                      \
            if (x->col_step == (ptrdiff_t)sizeof(S))                                               \
                for (ptrdiff_t j = 0; j < cols; j++)                                               \
                    to[j] = (T)VALUE(((const stored *)from)[j]);                                   \
            else                                                                                   \
                for (ptrdiff_t j = 0; j < cols; j++)                                               \
                    to[j] = (T)VALUE(*(const stored *)(from + j * x->col_step));                   \
        }                                                                                          \
        break;                                                                                     \
    }

/* Copy and convert a block of x; `to` has rows of `ld` elements. */
static void FD_T(fetch)(const fd_matrix *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t col,
                        ptrdiff_t cols, T *restrict to, ptrdiff_t ld)
{
    const char *from = x->data + row * x->row_step + col * x->col_step;
    switch (x->dtype) {
    case FD_F8: FD_FETCH(double, )
    case FD_F4: FD_FETCH(float, )
    case FD_F2: FD_FETCH(uint16_t, fd_half)
    case FD_I1: FD_FETCH(int8_t, )
    case FD_U1: FD_FETCH(uint8_t, )
    case FD_I2: FD_FETCH(int16_t, )
    case FD_U2: FD_FETCH(uint16_t, )
    case FD_I4: FD_FETCH(int32_t, )
    case FD_U4: FD_FETCH(uint32_t, )
    case FD_I8: FD_FETCH(int64_t, )
    case FD_U8: FD_FETCH(uint64_t, )
    }
}
#undef FD_FETCH

/* Rows of x can be read in place: the working type, contiguous and aligned. */
FD_INLINE int FD_T(in_place)(const fd_matrix *x)
{
    return x->dtype == (FD_IS_F4 ? FD_F4 : FD_F8) && x->col_step == (ptrdiff_t)sizeof(T) &&
           x->row_step % (ptrdiff_t)sizeof(T) == 0 && (uintptr_t)x->data % sizeof(T) == 0;
}

/* Sums of one strip, in float64 whatever T is: Σ f²(x - shift) and Σ f²(x - shift)². */
typedef struct {
    fd_wide sum[sizeof(double) / sizeof(T)], square[sizeof(double) / sizeof(T)];
} FD_T(fd_sums);

/* Pack one row of a strip and add it to the sums; plain = shift by column only. */
FD_INLINE void FD_T(pack_row)(int plain, const T *from, vec high, vec low, const fd_wide *shift,
                              const double *row_shift, const double *factor, T *to,
                              FD_T(fd_sums) *sums)
{
    vec z = FD_T(sub)(FD_T(load_loose)(from), high);
    if (!plain) {
        z = FD_T(sub)(z, low);
        if (row_shift) {
            T row_high, row_low;
            FD_T(split)(*row_shift, &row_high, &row_low);
            z = FD_T(sub)(FD_T(sub)(z, FD_T(splat)(row_high)), FD_T(splat)(row_low));
        }
        if (factor)
            z = FD_T(fma)(z, FD_T(splat)((T)*factor), FD_T(splat)(0));
    }
    FD_T(store)(to, z);
    FD_UNROLL
    for (int v = 0; v < (int)(sizeof(double) / sizeof(T)); v++) {
        fd_wide value = fd_sub_wide(FD_T(fd_widen)(from + v * FD_D), shift[v]), weighted = value;
        if (factor)
            weighted = fd_mul_wide(value, fd_splat_wide(*factor * *factor));
        sums->sum[v] = fd_add_wide(sums->sum[v], weighted);
        sums->square[v] = fd_fma_wide(weighted, value, sums->square[v]);
    }
}

/* Pack `rows` rows of one strip; even and odd rows are summed apart to keep the adders busy. */
FD_INLINE void FD_T(pack_strip)(int plain, const T *from, ptrdiff_t ld, ptrdiff_t rows,
                                const T *high, const T *low, const fd_affine *affine,
                                ptrdiff_t first, T *to, double *sums, double *squares)
{
    enum { PARTS = sizeof(double) / sizeof(T) };
    const double *factor = plain || !affine->row_factor ? NULL : affine->row_factor + first;
    const double *row_shift = plain || !affine->row_shift ? NULL : affine->row_shift + first;
    vec h = FD_T(load)(high), l = FD_T(load)(low);
    fd_wide shift[PARTS];
    FD_T(fd_sums) even, odd;
    FD_UNROLL
    for (int v = 0; v < PARTS; v++) {
        even.sum[v] = fd_load_wide(sums + v * FD_D);
        even.square[v] = fd_load_wide(squares + v * FD_D);
        odd.sum[v] = odd.square[v] = fd_splat_wide(0);
        shift[v] = fd_add_wide(FD_T(fd_widen)(high + v * FD_D), FD_T(fd_widen)(low + v * FD_D));
    }
    ptrdiff_t i = 0;
#define FD_PACK_ROW(i, sums)                                                                       \
    FD_T(pack_row)(plain, from + (i) * ld, h, l, shift, row_shift ? row_shift + (i) : NULL,         \
                   factor ? factor + (i) : NULL, to + (i) * FD_W, sums)
    for (; i + 1 < rows; i += 2) {
        FD_PACK_ROW(i, &even);
        FD_PACK_ROW(i + 1, &odd);
    }
    if (i < rows)
        FD_PACK_ROW(i, &even);
#undef FD_PACK_ROW
    FD_UNROLL
    for (int v = 0; v < PARTS; v++) {
        fd_store_wide(sums + v * FD_D, fd_add_wide(even.sum[v], odd.sum[v]));
        fd_store_wide(squares + v * FD_D, fd_add_wide(even.square[v], odd.square[v]));
    }
}

/* Pack `cols` columns (whole strips) from column `col` on of rows [row, row + rows). */
FD_INLINE void FD_T(pack_strips)(int plain, const T *from, ptrdiff_t ld, ptrdiff_t rows,
                                 ptrdiff_t col, ptrdiff_t cols, const T *high, const T *low,
                                 const fd_affine *affine, ptrdiff_t row, ptrdiff_t first,
                                 T *packed, double *sums, double *squares)
{
    for (ptrdiff_t c = col; c < col + cols; c += FD_W, from += FD_W) {
        T *to = packed + c / FD_W * FD_STEP + (row - first) * FD_W;
        if (plain)
            FD_T(pack_strip)(1, from, ld, rows, high + c, low + c, affine, row, to, sums + c,
                             squares + c);
        else
            FD_T(pack_strip)(0, from, ld, rows, high + c, low + c, affine, row, to, sums + c,
                             squares + c);
    }
}

static void FD_T(pack)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                       const fd_affine *affine, void *packed_, double *sums, double *squares)
{
    const ptrdiff_t cols = x->cols, padded = FD_UP(cols, FD_W);
    T *packed = packed_, *high = packed + padded / FD_W * FD_STEP, *low = high + padded;
    const int in_place = FD_T(in_place)(x);
    int plain = !affine->row_shift && !affine->row_factor;
    /* Read along the storage: all columns of 8 rows, or all rows of 64 columns. */
    const int by_rows = llabs((long long)x->col_step) <= llabs((long long)x->row_step);
    const ptrdiff_t width = by_rows ? padded : FD_STAGE;
    /* Rows summed together: the same for every layout, so that layouts agree to the last bit. */
    const ptrdiff_t tall = cols > FD_STAGE ? FD_BLOCK : FD_BLOCK_NARROW;
    const ptrdiff_t block = by_rows ? tall : FD_PANEL;
    _Alignas(64) T stage[FD_BLOCK_NARROW * FD_STAGE];

    memset(sums, 0, padded * sizeof(double));
    memset(squares, 0, padded * sizeof(double));
    for (ptrdiff_t j = 0; j < padded; j++) {
        FD_T(split)(j < cols && affine->col_shift ? affine->col_shift[j] : 0, high + j, low + j);
        plain &= low[j] == 0;
    }
    for (ptrdiff_t outer = 0; outer < padded; outer += width)
    for (ptrdiff_t row0 = first; row0 < last; row0 += block)
    for (ptrdiff_t col = outer; col < FD_MIN(outer + width, padded); col += FD_STAGE)
    for (ptrdiff_t row = row0; row < FD_MIN(row0 + block, last); row += tall) {
        const ptrdiff_t here = FD_MIN(FD_STAGE, cols - col), rows = FD_MIN(tall, last - row);
        /* Whole strips in place if possible; the rest goes through the stage. */
        const ptrdiff_t direct = in_place ? here / FD_W * FD_W : 0;
        const char *from = x->data + row * x->row_step + col * x->col_step;
        FD_T(pack_strips)(plain, (const T *)from, x->row_step / (ptrdiff_t)sizeof(T), rows, col,
                          direct, high, low, affine, row, first, packed, sums, squares);
        if (direct < here) {
            const ptrdiff_t ld = FD_UP(here - direct, FD_W);
            FD_T(fetch)(x, row, rows, col + direct, here - direct, stage, ld);
            for (ptrdiff_t i = 0; i < rows; i++)
                for (ptrdiff_t j = here - direct; j < ld; j++)
                    stage[i * ld + j] = 0;
            FD_T(pack_strips)(plain, stage, ld, rows, col + direct, ld, high, low, affine, row,
                              first, packed, sums, squares);
        }
    }
}

static void FD_T(recentre)(void *packed_, ptrdiff_t rows, ptrdiff_t cols, const double *means,
                           const double *row_factor)
{
    T *packed = packed_;
    for (ptrdiff_t col = 0; col < cols; col += FD_W) {
        _Alignas(64) T mean[FD_BYTES / sizeof(T)];
        for (ptrdiff_t j = 0; j < FD_W; j++)
            mean[j] = (T)means[col + j];
        vec m = FD_T(load)(mean), zero = FD_T(splat)(0);
        T *z = packed + col / FD_W * FD_STEP;
        for (ptrdiff_t i = 0; i < rows; i++, z += FD_W) {
            vec step = row_factor ? FD_T(fma)(m, FD_T(splat)((T)row_factor[i]), zero) : m;
            FD_T(store)(z, FD_T(sub)(FD_T(load)(z), step));
        }
    }
}
