/* Typed part: products of the columns of one strip or two with each other, each once.

   In a square of columns by columns most products stand twice. Turned around its end by up to half
   its columns, a strip meets each of its elements once: of eight columns five multiply-adds instead
   of eight, of sixteen 18 instead of 32, for two strips meet by the turns that each needs. By none
   and by four, together, it is turned where each half is in place of both, which loads can do: ports
   that multiply also shuffle. All this takes eight columns in a strip: AVX-512. */

/* A strip as those meet it that are multiplied: turned[k] has columns i + k, around the end, in
   place of column i, but [0] and [4] have the first and the last four twice. */
FD_INLINE void FD_T(halves)(const T *strip, vec turned[FD_TURNS])
{
    turned[0] = (vec)_mm512_broadcast_f64x4(_mm256_loadu_pd((const double *)strip));
    turned[4] = (vec)_mm512_broadcast_f64x4(_mm256_loadu_pd((const double *)(strip + FD_W / 2)));
}

FD_INLINE void FD_T(add_turned)(const T *strip, vec acc[FD_TURNS])
{
    const vec z = FD_T(load)(strip);
    vec turned[FD_TURNS];
    FD_T(halves)(strip, turned);
    turned[1] = (vec)_mm512_alignr_epi64((__m512i)z, (__m512i)z, 1);
    turned[2] = (vec)_mm512_alignr_epi64((__m512i)z, (__m512i)z, 2);
    turned[3] = (vec)_mm512_alignr_epi64((__m512i)z, (__m512i)z, 3);
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        acc[k] = FD_T(fma)(z, turned[k], acc[k]);
}

/* Put sums in T, a vector of eight columns each, into float64. */
FD_INLINE void FD_T(spill)(int vectors, const vec *acc, double *sums)
{
    FD_UNROLL
    for (int k = 0; k < vectors; k += FD_LANES) {
        vec some[FD_LANES];
        fd_wide wide[FD_LANES];
        FD_UNROLL
        for (int h = 0; h < FD_LANES; h++)
            some[h] = acc[FD_MIN(k + h, vectors - 1)];
        FD_T(widen)(some, wide);
        FD_UNROLL
        for (int h = 0; h < FD_LANES; h++)
            if (k + h < vectors)
                fd_store_wide(sums + 8 * (k + h), wide[h]);
    }
}

/* A packed strip; even and odd steps apart, so that enough sums are under way. */
FD_ALONE void FD_T(square_tile)(const T *restrict a, ptrdiff_t rows, double *to, ptrdiff_t ld,
                                 const fd_ahead *ahead)
{
    vec even[FD_TURNS], odd[FD_TURNS];
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        even[k] = odd[k] = FD_T(splat)(0);
    for (ptrdiff_t k = 0; k + 1 < rows;) {
        const ptrdiff_t stop = FD_MIN(k + FD_CALLED, rows / 2 * 2);
        fd_call(ahead, k, FD_CALLED);
        for (; k < stop; k += 2) {
            FD_T(add_turned)(a + k * FD_W, even);
            FD_T(add_turned)(a + (k + 1) * FD_W, odd);
        }
    }
    if (rows % 2)
        FD_T(add_turned)(a + (rows - 1) * FD_W, even);
    _Alignas(64) double sums[8 * FD_TURNS];
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        even[k] = FD_T(add)(even[k], odd[k]);
    FD_T(spill)(FD_TURNS, even, sums);
    fd_unfold(sums, to, ld);
}

/* Rows that fit a strip or two are multiplied as they are read, not packed first: one step, which
   is a row of float64 or two of float32 as packing puts them, is centred and stored, and another
   one from FD_LAG steps before, which is in L1 by now, is loaded and multiplied. Each strip lies
   there twice, so that a load from between is the strip turned. */
#define FD_FAR 8192 /* bytes that rows are called ahead */
#define FD_LAG 8

/* Vectors of products of so many strips. */
#define FD_PRODUCTS(strips) ((strips) == 1 ? FD_TURNS : FD_TURNED / 8)

/* Products in T; sums, in float64, of float64 less its shift and of float32 as it is. */
typedef struct {
    vec shift[2], acc[FD_TURNED / 8];
    fd_wide sum[2];
    vec seen[2]; /* bits of float32 less its shift: products of tiny values vanish */
} FD_T(fd_gathered);

/* Begin; returns 0 if a shift is not exact in T. */
FD_INLINE int FD_T(begin)(int strips, const double *shift, ptrdiff_t cols, FD_T(fd_gathered) *all)
{
    _Alignas(64) T high[2 * FD_W] = {0}, low[2 * FD_W] = {0};
    T lost = 0;
    for (ptrdiff_t j = 0; shift && j < cols; j++) {
        FD_T(split)(shift[j], high + j, low + j);
        lost += low[j] != 0;
        if (FD_LANES == 2 && strips == 1) /* of the row behind */
            high[8 + j] = high[j];
    }
    FD_UNROLL
    for (int s = 0; s < 2; s++) {
        all->shift[s] = FD_T(load)(high + s * FD_W);
        all->sum[s] = fd_splat_wide(0);
        all->seen[s] = FD_T(splat)(0);
    }
    for (int k = 0; k < FD_PRODUCTS(strips); k++)
        all->acc[k] = FD_T(splat)(0);
    return lost == 0;
}

/* A step: one row of `count` columns, of float32 two if they are there; whole = they fill their
   strips and lie one after the other. */
#if FD_LANES == 1
FD_INLINE void FD_T(step)(int strips, int whole, ptrdiff_t count, const T *from, ptrdiff_t ld,
                          int rows, FD_T(fd_gathered) *all, vec z[2])
{
    (void)ld, (void)rows;
    FD_UNROLL
    for (int s = 0; s < strips; s++, from += 8) {
        vec row = whole || s < strips - 1 ? FD_T(load_loose)(from)
                                          : FD_T(load_part)(from, count - 8 * s);
        z[s] = FD_T(sub)(row, all->shift[s]);
        all->sum[s] = fd_add_wide(all->sum[s], z[s]);
    }
}
#else
FD_INLINE void FD_T(step)(int strips, int whole, ptrdiff_t count, const T *from, ptrdiff_t ld,
                          int rows, FD_T(fd_gathered) *all, vec z[2])
{
    const __mmask8 last = (__mmask8)((1u << (whole ? 8 : count - 8 * (strips - 1))) - 1);
    vec row[2] = {all->shift[0], all->shift[0]}; /* what is not there leaves zero */
    FD_UNROLL
    for (int r = 0; r < rows; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++) {
            const T *at = from + r * ld + 8 * s;
            const __m256 half = whole || s < strips - 1 ? _mm256_loadu_ps(at)
                                                        : _mm256_maskz_loadu_ps(last, at);
            const int line = strips == 2 ? r : 0, lane = strips == 2 ? s : r;
            const __m512 so_far = (__m512)row[line];
            row[line] = (vec)(lane ? _mm512_insertf32x8(so_far, half, 1)
                                   : _mm512_insertf32x8(so_far, half, 0));
            all->sum[lane] = fd_add_wide(all->sum[lane], (fd_wide)_mm512_cvtps_pd(half));
        }
    if (whole && rows == 2)
        FD_UNROLL
        for (int r = 0; r < strips; r++)
            row[r] = FD_T(load_loose)(from + r * ld);
    FD_UNROLL
    for (int r = 0; r < strips; r++)
        row[r] = FD_T(sub)(row[r], all->shift[0]);
    if (strips == 2)
        FD_T(interleave)(row[0], row[1], z);
    else
        z[0] = (vec)_mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13,
                                                            6, 14, 7, 15), (__m512)row[0]);
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        all->seen[s] = FD_T(either)(all->seen[s], z[s]);
}
#endif

/* Products of strips that lie twice each: of the first with itself, with the second, and of that
   with itself. Columns i of the first and i + k of the second meet with the second turned by k, or
   the first by 8 - k. */
FD_INLINE void FD_T(add_products)(int strips, const T *twice, vec *acc)
{
    vec z[2], turned[2][FD_TURNS];
    FD_UNROLL
    for (int s = 0; s < strips; s++, twice += 2 * FD_W) {
        z[s] = FD_T(load)(twice);
        FD_T(halves)(twice, turned[s]);
        turned[s][1] = FD_T(load_loose)(twice + FD_LANES);
        turned[s][3] = FD_T(load_loose)(twice + 3 * FD_LANES);
        /* A shuffle: loads that cross a line of the cache take two turns of their ports. */
        turned[s][2] = (vec)_mm512_alignr_epi64((__m512i)z[s], (__m512i)z[s], 2);
    }
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        FD_UNROLL
        for (int k = 0; k < FD_TURNS; k++) {
            vec *sum = acc + FD_SECOND * s + k;
            *sum = FD_T(fma)(z[s], turned[s][k], *sum);
        }
    if (strips == 2)
        FD_UNROLL
        for (int k = 0; k < 8; k++) {
            vec *sum = acc + FD_TURNS + k;
            *sum = k < FD_TURNS ? FD_T(fma)(z[0], turned[1][k], *sum)
                                : FD_T(fma)(z[1], turned[0][8 - k], *sum);
        }
}

/* A panel's rows of `count` columns, `ld` apart. */
FD_INLINE void FD_T(gather)(int strips, int whole, ptrdiff_t count, const T *from, ptrdiff_t ld,
                            ptrdiff_t rows, FD_T(fd_gathered) *to)
{
    _Alignas(64) T ring[2 * FD_LAG][4 * FD_W];
    const ptrdiff_t steps = (rows + FD_DEEP - 1) / FD_DEEP;
    FD_T(fd_gathered) all = *to; /* in registers */
    for (ptrdiff_t i = 0; i < steps + FD_LAG; i++) {
        if (i < steps) {
            vec z[2];
            FD_UNROLL
            for (int line = 0; line < strips; line++)
                FD_PREFETCH((const char *)from + FD_FAR + 64 * line);
            if ((i + 1) * FD_DEEP <= rows)
                FD_T(step)(strips, whole, count, from, ld, FD_DEEP, &all, z);
            else
                FD_T(step)(strips, whole, count, from, ld, 1, &all, z);
            from += FD_DEEP * ld;
            T *twice = ring[i % (2 * FD_LAG)];
            FD_UNROLL
            for (int s = 0; s < 2 * strips; s++)
                FD_T(store)(twice + s * FD_W, z[s / 2]);
        }
        if (i >= FD_LAG)
            FD_T(add_products)(strips, ring[(i - FD_LAG) % (2 * FD_LAG)], all.acc);
    }
    *to = all;
}

/* Sums of all columns less their shift. */
FD_INLINE void FD_T(add_up)(int strips, ptrdiff_t rows, const FD_T(fd_gathered) *all, double *sums)
{
    fd_wide sum[2] = {all->sum[0], all->sum[1]};
#if FD_LANES == 2
    _Alignas(64) T shift[FD_W];
    FD_T(store)(shift, all->shift[0]);
    if (strips == 1)
        sum[0] = fd_add_wide(sum[0], sum[1]);
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        sum[s] = fd_fma_wide(FD_T(fd_widen)(shift + 8 * s), fd_splat_wide(-(double)rows), sum[s]);
#endif
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        fd_store_wide(sums + 8 * s, sum[s]);
}

FD_INLINE int FD_T(square_strips)(int strips, const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                                  const double *shift, void *stage, double *sums,
                                  double *squares, double *products)
{
    const T *from = (const T *)(x->data + first * x->row_step);
    ptrdiff_t ld = x->row_step / (ptrdiff_t)sizeof(T);
    FD_T(fd_gathered) all;
    if (!FD_T(begin)(strips, shift, x->cols, &all))
        return 0;
    if (!FD_T(in_place)(x)) {
        ld = strips * 8;
        FD_T(fetch)(x, first, last - first, 0, x->cols, stage, ld);
        from = stage;
    }
    if (x->cols == strips * 8 && ld == strips * 8) /* constants, for the loop's sake */
        FD_T(gather)(strips, 1, strips * 8, from, strips * 8, last - first, &all);
    else
        FD_T(gather)(strips, 0, x->cols, from, ld, last - first, &all);
    FD_T(add_up)(strips, last - first, &all, sums);
    FD_T(spill)(FD_PRODUCTS(strips), all.acc, products);
    FD_UNROLL
    for (int s = 0; s < strips; s++) {
        const vec *sum = all.acc + FD_SECOND * s;
        vec square = (vec)_mm512_mask_blend_pd(0xf0, (__m512d)sum[0], (__m512d)sum[4]);
#if FD_LANES == 2
        square = FD_T(bounded)(square, all.seen[s]);
#endif
        FD_T(spill)(1, &square, squares + 8 * s);
    }
    return 1;
}

static int FD_T(square)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                        void *stage, double *sums, double *squares, double *products)
{
    if (x->cols <= 8)
        return FD_T(square_strips)(1, x, first, last, shift, stage, sums, squares, products);
    return FD_T(square_strips)(2, x, first, last, shift, stage, sums, squares, products);
}

#undef FD_FAR
#undef FD_LAG
#undef FD_PRODUCTS
