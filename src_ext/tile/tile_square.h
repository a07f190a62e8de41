/* Typed part: products of the eight columns of one strip, each once.

   In a square of columns by columns most products stand twice. Turned around its end by 0 … 4
   columns, a row meets each of its elements once: five multiply-adds instead of eight. That needs
   shuffles of whole vectors and eight columns in each, so it is there for AVX-512 only. */

/* Columns i, i + 1, …, i + 4 of eight in place of column i. */
FD_INLINE void FD_T(turn)(vec z, vec turned[FD_TURNS])
{
    const __m512d none = (__m512d)z;
    const __m512d two = _mm512_shuffle_f64x2(none, none, 0x39);
    const __m512d four = _mm512_shuffle_f64x2(none, none, 0x4e);
    turned[0] = z;
    turned[1] = (vec)_mm512_shuffle_pd(none, two, 0x55);
    turned[2] = (vec)two;
    turned[3] = (vec)_mm512_shuffle_pd(two, four, 0x55);
    turned[4] = (vec)four;
}

FD_INLINE void FD_T(add_turned)(vec z, vec acc[FD_TURNS])
{
    vec turned[FD_TURNS];
    FD_T(turn)(z, turned);
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        acc[k] = FD_T(fma)(z, turned[k], acc[k]);
}

/* A packed strip; even and odd steps apart, so that enough sums are under way. */
FD_ALONE void FD_T(square_tile)(const T *restrict a, ptrdiff_t rows, double *to, ptrdiff_t ld,
                                 const fd_ahead *ahead)
{
    vec even[FD_TURNS], odd[FD_TURNS];
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        even[k] = odd[k] = FD_T(splat)(0);
    for (ptrdiff_t k = 0; k + 1 < rows; k += 2) {
        if (k % FD_CALLED == 0)
            fd_call(ahead, k, FD_CALLED);
        FD_T(add_turned)(FD_T(load)(a + k * FD_W), even);
        FD_T(add_turned)(FD_T(load)(a + (k + 1) * FD_W), odd);
    }
    if (rows % 2)
        FD_T(add_turned)(FD_T(load)(a + (rows - 1) * FD_W), even);
    _Alignas(64) double sums[FD_TURNED];
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        fd_store_wide(sums + 8 * k, FD_T(widened)(FD_T(add)(even[k], odd[k]), 0));
    fd_unfold(sums, to, ld);
}

/* Rows that fit a strip are multiplied as they are read, not packed first. A vector holds one row
   of float64 or, one behind the other, two of float32. */
#define FD_FAR 8192 /* bytes that rows are called ahead */

typedef struct {
    vec shift, acc[FD_TURNS];
    fd_wide wide, sum[FD_LANES], square[FD_LANES]; /* in float64: nothing is rounded to T */
} FD_T(fd_gathered);

/* Begin; returns 0 if a shift is not exact in T. */
FD_INLINE int FD_T(begin)(const double *shift, ptrdiff_t cols, FD_T(fd_gathered) *all)
{
    _Alignas(64) T high[FD_W] = {0};
    _Alignas(64) double wide[FD_D] = {0};
    for (ptrdiff_t j = 0; shift && j < cols; j++) {
        T low;
        FD_T(split)(shift[j], high + j, &low);
        if (low != 0)
            return 0;
        wide[j] = shift[j];
        high[FD_W - FD_C + j] = high[j];
    }
    all->shift = FD_T(load)(high);
    all->wide = fd_load_wide(wide);
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        all->acc[k] = FD_T(splat)(0);
    FD_UNROLL
    for (int l = 0; l < FD_LANES; l++)
        all->sum[l] = all->square[l] = fd_splat_wide(0);
    return 1;
}

#if FD_LANES == 1
FD_INLINE void FD_T(gather)(ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                            FD_T(fd_gathered) *all)
{
    (void)ld, (void)rows;
    const vec row = count == FD_C ? FD_T(load_loose)(from) : FD_T(load_part)(from, count);
    const vec z = FD_T(sub)(row, all->shift);
    FD_T(add_turned)(z, all->acc);
    all->sum[0] = fd_add_wide(all->sum[0], z);
    all->square[0] = all->acc[0];
}
#else
FD_INLINE __m256 FD_T(one_row)(ptrdiff_t count, const T *from)
{
    if (count == FD_C)
        return _mm256_loadu_ps(from);
    return _mm256_maskz_loadu_ps((__mmask8)((1u << count) - 1), from);
}

/* One row or two, `ld` apart. */
FD_INLINE void FD_T(gather)(ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                            FD_T(fd_gathered) *all)
{
    __m512 pair = (__m512)all->shift; /* what is not there leaves zero */
    if (rows == 2 && count == FD_C && ld == FD_C)
        pair = _mm512_loadu_ps(from);
    else {
        pair = _mm512_insertf32x8(pair, FD_T(one_row)(count, from), 0);
        if (rows == 2)
            pair = _mm512_insertf32x8(pair, FD_T(one_row)(count, from + ld), 1);
    }
    const vec z = FD_T(sub)((vec)pair, all->shift);
    const __m512i none = (__m512i)z, four = _mm512_shuffle_i32x4(none, none, 0xb1);
    all->acc[0] = FD_T(fma)(z, z, all->acc[0]);
    all->acc[1] = FD_T(fma)(z, (vec)_mm512_alignr_epi8(four, none, 4), all->acc[1]);
    all->acc[2] = FD_T(fma)(z, (vec)_mm512_alignr_epi8(four, none, 8), all->acc[2]);
    all->acc[3] = FD_T(fma)(z, (vec)_mm512_alignr_epi8(four, none, 12), all->acc[3]);
    all->acc[4] = FD_T(fma)(z, (vec)four, all->acc[4]);
    FD_UNROLL
    for (int l = 0; l < rows; l++) {
        fd_wide value = (fd_wide)_mm512_cvtps_pd(FD_T(one_row)(count, from + l * ld));
        value = fd_sub_wide(value, all->wide);
        all->sum[l] = fd_add_wide(all->sum[l], value);
        all->square[l] = fd_fma_wide(value, value, all->square[l]);
    }
}
#endif

/* All rows but an odd one; returns where that lies. */
FD_INLINE const T *FD_T(gather_all)(ptrdiff_t count, const T *from, ptrdiff_t ld, ptrdiff_t rows,
                                    FD_T(fd_gathered) *all)
{
    for (; rows >= FD_LANES; rows -= FD_LANES, from += FD_LANES * ld) {
        FD_PREFETCH((const char *)from + FD_FAR);
        FD_T(gather)(count, from, ld, FD_LANES, all);
    }
    return from;
}

static int FD_T(square)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last, const double *shift,
                        void *stage, double *sums, double *squares, double *products)
{
    const T *from = (const T *)(x->data + first * x->row_step);
    const ptrdiff_t rows = last - first, count = x->cols;
    ptrdiff_t ld = x->row_step / (ptrdiff_t)sizeof(T);
    FD_T(fd_gathered) all;
    if (!FD_T(begin)(shift, count, &all))
        return 0;
    if (!FD_T(in_place)(x)) {
        FD_T(fetch)(x, first, rows, 0, count, stage, FD_C);
        from = stage;
        ld = FD_C;
    }
    if (count == FD_C && ld == FD_C) /* constants, for the loop's sake */
        from = FD_T(gather_all)(FD_C, from, FD_C, rows, &all);
    else
        from = FD_T(gather_all)(count, from, ld, rows, &all);
    if (rows % FD_LANES)
        FD_T(gather)(count, from, ld, 1, &all);
#if FD_LANES == 2
    all.sum[0] = fd_add_wide(all.sum[0], all.sum[1]);
    all.square[0] = fd_add_wide(all.square[0], all.square[1]);
#endif
    fd_store_wide(sums, all.sum[0]);
    fd_store_wide(squares, all.square[0]);
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++) {
        _Alignas(64) T values[FD_W];
        FD_T(store)(values, all.acc[k]);
        fd_wide total = FD_T(fd_widen)(values);
#if FD_LANES == 2
        total = fd_add_wide(total, FD_T(fd_widen)(values + FD_C));
#endif
        fd_store_wide(products + 8 * k, total);
    }
    return 1;
}

#undef FD_FAR
