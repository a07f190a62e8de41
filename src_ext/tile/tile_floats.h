/* Typed part 2 for floats: multiply-add and its peak, packing one strip with sums in float64. */

#ifdef FD_VECTORS
FD_INLINE vec FD_T(fma)(vec a, vec b, vec c) { return a * b + c; }
#else
FD_INLINE vec FD_T(fma)(vec a, vec b, vec c)
{
    for (int i = 0; i < (int)FD_W; i++)
        c.v[i] += a.v[i] * b.v[i];
    return c;
}
#endif

/* Sums of one strip, in float64 whatever T is: Σ f²(x - shift) and Σ f²(x - shift)². */
typedef struct {
    fd_wide sum[sizeof(double) / sizeof(T)], square[sizeof(double) / sizeof(T)];
} FD_T(fd_sums);

/* Pack one row of a strip, of which `count` columns exist, and add it to the sums; plain = shift by
   column only. */
FD_INLINE void FD_T(pack_row)(int plain, ptrdiff_t count, const T *from, vec high, vec low,
                              const fd_wide *shift, const double *row_shift,
                              const double *factor, T *to, FD_T(fd_sums) *sums)
{
    _Alignas(64) T part[FD_BYTES / sizeof(T)];
    if (count < FD_W) {
        FD_T(store)(part, FD_T(load_part)(from, count));
        from = part;
    }
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
        if (v * FD_D >= count)
            break;
        fd_wide value = plain && sizeof(T) == sizeof(double)
                            ? FD_T(fd_widen)(to + v * FD_D) /* nothing was rounded to T */
                            : fd_sub_wide(FD_T(fd_widen)(from + v * FD_D), shift[v]);
        fd_wide weighted = value;
        if (factor)
            weighted = fd_mul_wide(value, fd_splat_wide(*factor * *factor));
        sums->sum[v] = fd_add_wide(sums->sum[v], weighted);
        sums->square[v] = fd_fma_wide(weighted, value, sums->square[v]);
    }
}

/* Pack `rows` rows of one strip, summed in FD_CHAINS parts to keep the adders busy. */
FD_INLINE void FD_T(pack_strip)(int plain, ptrdiff_t count, const T *from, ptrdiff_t ld,
                                ptrdiff_t rows, const T *high, const T *low,
                                const fd_affine *affine, ptrdiff_t first, T *to, double *sums,
                                double *squares)
{
    enum { PARTS = sizeof(double) / sizeof(T) };
    const double *factor = plain || !affine->row_factor ? NULL : affine->row_factor + first;
    const double *row_shift = plain || !affine->row_shift ? NULL : affine->row_shift + first;
    vec h = FD_T(load)(high), l = FD_T(load)(low);
    fd_wide shift[PARTS];
    FD_T(fd_sums) chain[FD_CHAINS];
    FD_UNROLL
    for (int v = 0; v < PARTS; v++) {
        shift[v] = fd_add_wide(FD_T(fd_widen)(high + v * FD_D), FD_T(fd_widen)(low + v * FD_D));
        FD_UNROLL
        for (int c = 0; c < FD_CHAINS; c++)
            chain[c].sum[v] = chain[c].square[v] = fd_splat_wide(0);
    }
    ptrdiff_t i = 0;
#define FD_PACK_ROW(i, sums)                                                                       \
    FD_T(pack_row)(plain, count, from + (i) * ld, h, l, shift,                                     \
                   row_shift ? row_shift + (i) : NULL, factor ? factor + (i) : NULL,               \
                   to + (i) * FD_W, sums)
    for (; i + FD_CHAINS <= rows; i += FD_CHAINS)
        FD_UNROLL
        for (int c = 0; c < FD_CHAINS; c++)
            FD_PACK_ROW(i + c, chain + c);
    for (; i < rows; i++)
        FD_PACK_ROW(i, chain);
#undef FD_PACK_ROW
    FD_UNROLL
    for (int v = 0; v < PARTS; v++) {
        fd_wide sum = fd_load_wide(sums + v * FD_D), square = fd_load_wide(squares + v * FD_D);
        FD_UNROLL
        for (int c = 0; c < FD_CHAINS; c++) {
            sum = fd_add_wide(sum, chain[c].sum[v]);
            square = fd_add_wide(square, chain[c].square[v]);
        }
        fd_store_wide(sums + v * FD_D, sum);
        fd_store_wide(squares + v * FD_D, square);
    }
}

/* Pack `cols` columns from column `col` on of rows [row, row + rows), zeros behind the last. */
FD_INLINE void FD_T(pack_strips)(int plain, const T *from, ptrdiff_t ld, ptrdiff_t rows,
                                 ptrdiff_t col, ptrdiff_t cols, const T *high, const T *low,
                                 const fd_affine *affine, ptrdiff_t row, ptrdiff_t first,
                                 T *packed, double *sums, double *squares)
{
    for (ptrdiff_t c = col; c < col + cols; c += FD_W, from += FD_W) {
        const ptrdiff_t count = col + cols - c;
        T *to = packed + c / FD_W * FD_STEP + (row - first) * FD_W;
#define FD_PACK(plain, count)                                                                      \
    FD_T(pack_strip)(plain, count, from, ld, rows, high + c, low + c, affine, row, to, sums + c,    \
                     squares + c)
        if (plain && count >= FD_W)
            FD_PACK(1, FD_W);
        else if (plain)
            FD_PACK(1, count);
        else
            FD_PACK(0, count);
#undef FD_PACK
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

static double FD_T(peak)(ptrdiff_t iterations)
{
    vec acc[FD_ROWS][FD_STRIPS], a = FD_T(splat)((T)0.999), b = FD_T(splat)((T)1e-3);
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < FD_STRIPS; s++)
            acc[r][s] = FD_T(splat)((T)(r * FD_STRIPS + s)); /* all different: none is shared */
    for (ptrdiff_t k = 0; k < iterations; k++)
        FD_UNROLL
        for (int r = 0; r < FD_ROWS; r++)
            FD_UNROLL
            for (int s = 0; s < FD_STRIPS; s++)
                acc[r][s] = FD_T(fma)(acc[r][s], a, b);
    _Alignas(64) T values[FD_BYTES / sizeof(T)];
    double sum = 0;
    for (int r = 0; r < FD_ROWS; r++)
        for (int s = 0; s < FD_STRIPS; s++) {
            FD_T(store)(values, acc[r][s]);
            sum += values[0];
        }
    double work = 2.0 * FD_W * FD_ROWS * FD_STRIPS * (double)iterations;
    return sum > 1e300 ? 0 : work; /* the sum keeps the loop alive */
}
