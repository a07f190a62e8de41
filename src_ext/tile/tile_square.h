/* Typed part: products of the columns of one strip or two with each other, each once.

   In a square of columns by columns most products stand twice. Turned around its end by 0 up to
   half its columns, a row meets each of its elements once: of eight columns five multiply-adds
   instead of eight, of sixteen 17 vectors of products instead of 32. That needs shuffles of whole
   vectors and eight columns in a strip, so it is there for AVX-512 only. */

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
    for (ptrdiff_t k = 0; k + 1 < rows;) {
        const ptrdiff_t stop = FD_MIN(k + FD_CALLED, rows / 2 * 2);
        fd_call(ahead, k, FD_CALLED);
        for (; k < stop; k += 2) {
            FD_T(add_turned)(FD_T(load)(a + k * FD_W), even);
            FD_T(add_turned)(FD_T(load)(a + (k + 1) * FD_W), odd);
        }
    }
    if (rows % 2)
        FD_T(add_turned)(FD_T(load)(a + (rows - 1) * FD_W), even);
    _Alignas(64) double sums[8 * (FD_TURNS + 1)];
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k += FD_LANES) {
        vec both[FD_LANES];
        fd_wide wide[FD_LANES];
        FD_UNROLL
        for (int h = 0; h < FD_LANES; h++) {
            const int turn = FD_MIN(k + h, FD_TURNS - 1);
            both[h] = FD_T(add)(even[turn], odd[turn]);
        }
        FD_T(widen)(both, wide);
        FD_UNROLL
        for (int h = 0; h < FD_LANES; h++)
            fd_store_wide(sums + 8 * (k + h), wide[h]);
    }
    fd_unfold(sums, 8, 0, to, ld);
}

/* Rows that fit a strip or two are multiplied as they are read, not packed first. */
#define FD_FAR 8192 /* bytes that rows are called ahead */

/* Vectors of products of so many strips. */
#define FD_PRODUCTS(strips) ((strips) == 1 ? FD_TURNS : FD_TURNED / (int)FD_W)

/* Products in T; sums, in float64, of float64 less its shift and of float32 as it is. */
typedef struct {
    vec shift[2 / FD_LANES], acc[FD_TURNED / FD_W];
    fd_wide sum[2];
    vec seen; /* bits of float32 less its shift: products of tiny values vanish */
} FD_T(fd_gathered);

/* Begin; returns 0 if a shift is not exact in T. */
FD_INLINE int FD_T(begin)(int strips, const double *shift, ptrdiff_t cols, FD_T(fd_gathered) *all)
{
    const int vectors = FD_PRODUCTS(strips);
    __m512d half[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    if (shift) {
        half[0] = _mm512_maskz_loadu_pd((__mmask8)((1u << FD_MIN(cols, 8)) - 1), shift);
        if (strips == 2)
            half[1] = _mm512_maskz_loadu_pd((__mmask8)((1u << (cols - 8)) - 1), shift + 8);
    }
#if FD_LANES == 1
    all->shift[0] = (vec)half[0];
    all->shift[1] = (vec)half[1];
#else
    const __m256 low = _mm512_cvtpd_ps(half[0]);
    const __m256 high = strips == 2 ? _mm512_cvtpd_ps(half[1]) : low; /* of the row behind */
    if (_mm512_cmp_pd_mask(_mm512_cvtps_pd(low), half[0], _CMP_NEQ_UQ) ||
        (strips == 2 && _mm512_cmp_pd_mask(_mm512_cvtps_pd(high), half[1], _CMP_NEQ_UQ)))
        return 0;
    all->shift[0] = (vec)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#endif
    FD_UNROLL
    for (int k = 0; k < vectors; k++)
        all->acc[k] = FD_T(splat)(0);
    all->sum[0] = all->sum[1] = fd_splat_wide(0);
    all->seen = FD_T(splat)(0);
    return 1;
}

#if FD_LANES == 1
/* acc[2k] += a times column i + k of sixteen in place of column i, acc[2k + 1] likewise for b. */
FD_INLINE void FD_T(add_both)(vec a, vec b, vec *acc)
{
    const __m512i low = (__m512i)a, high = (__m512i)b;
    vec left[9] = {a}, right[9] = {b};
    left[2] = (vec)_mm512_alignr_epi64(high, low, 2);
    right[2] = (vec)_mm512_alignr_epi64(low, high, 2);
    left[4] = (vec)_mm512_alignr_epi64(high, low, 4);
    right[4] = (vec)_mm512_alignr_epi64(low, high, 4);
    left[6] = (vec)_mm512_alignr_epi64(high, low, 6);
    right[6] = (vec)_mm512_alignr_epi64(low, high, 6);
    left[8] = b, right[8] = a;
    FD_UNROLL
    for (int k = 0; k < 8; k++) {
        if (k % 2) {
            left[k] = (vec)_mm512_shuffle_pd((__m512d)left[k - 1], (__m512d)left[k + 1], 0x55);
            right[k] = (vec)_mm512_shuffle_pd((__m512d)right[k - 1], (__m512d)right[k + 1], 0x55);
        }
        acc[2 * k] = FD_T(fma)(a, left[k], acc[2 * k]);
        acc[2 * k + 1] = FD_T(fma)(b, right[k], acc[2 * k + 1]);
    }
    acc[16] = FD_T(fma)(a, b, acc[16]);
}

/* A row. */
FD_INLINE void FD_T(gather)(int strips, ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                            FD_T(fd_gathered) *all)
{
    (void)ld, (void)rows;
    vec z[2];
    FD_UNROLL
    for (int s = 0; s < strips; s++) {
        const ptrdiff_t here = FD_MIN(FD_C, count - s * FD_C);
        vec row = here == FD_C ? FD_T(load_loose)(from + s * FD_C)
                               : FD_T(load_part)(from + s * FD_C, here);
        z[s] = FD_T(sub)(row, all->shift[s]);
        all->sum[s] = fd_add_wide(all->sum[s], z[s]);
    }
    if (strips == 2)
        FD_T(add_both)(z[0], z[1], all->acc);
    else
        FD_T(add_turned)(z[0], all->acc);
}
#else
FD_INLINE __m256 FD_T(half)(ptrdiff_t count, const T *from)
{
    if (count >= 8)
        return _mm256_loadu_ps(from);
    return _mm256_maskz_loadu_ps((__mmask8)((1u << count) - 1), from);
}

/* A row of two strips; or one row or two, `ld` apart, of one. */
FD_INLINE void FD_T(gather)(int strips, ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                            FD_T(fd_gathered) *all)
{
    const ptrdiff_t apart = strips == 2 ? 8 : ld, second = strips == 2 ? count - 8 : count;
    const int halves = strips == 2 ? 2 : rows;
    __m512 both = (__m512)all->shift[0]; /* what is not there leaves zero */
    if (halves == 2 && second == 8 && apart == 8)
        both = _mm512_loadu_ps(from);
    else {
        both = _mm512_insertf32x8(both, FD_T(half)(count, from), 0);
        if (halves == 2)
            both = _mm512_insertf32x8(both, FD_T(half)(second, from + apart), 1);
    }
    const vec z = FD_T(sub)((vec)both, all->shift[0]);
    const __m512i none = (__m512i)z, eight = _mm512_shuffle_i32x4(none, none, 0x4e);
    const __m512i four = _mm512_shuffle_i32x4(none, none, strips == 2 ? 0x39 : 0xb1);
#define FD_ADD(k, turned) all->acc[k] = FD_T(fma)(z, (vec)(turned), all->acc[k])
    FD_ADD(0, none);
    FD_ADD(1, _mm512_alignr_epi8(four, none, 4));
    FD_ADD(2, _mm512_alignr_epi8(four, none, 8));
    FD_ADD(3, _mm512_alignr_epi8(four, none, 12));
    FD_ADD(4, four);
    if (strips == 2) {
        FD_ADD(5, _mm512_alignr_epi8(eight, four, 4));
        FD_ADD(6, _mm512_alignr_epi8(eight, four, 8));
        FD_ADD(7, _mm512_alignr_epi8(eight, four, 12));
        FD_ADD(8, eight);
    }
#undef FD_ADD
    all->seen = FD_T(either)(all->seen, z);
    FD_UNROLL
    for (int h = 0; h < halves; h++) {
        const __m256 half = FD_T(half)(h ? second : count, from + h * apart);
        all->sum[h] = fd_add_wide(all->sum[h], (fd_wide)_mm512_cvtps_pd(half));
    }
}
#endif

/* All rows, as many at a time as a vector holds. */
FD_INLINE void FD_T(gather_all)(int strips, ptrdiff_t count, const T *from, ptrdiff_t ld,
                                ptrdiff_t rows, FD_T(fd_gathered) *all)
{
    const int each = strips == 1 ? FD_LANES : 1;
    for (; rows >= each; rows -= each, from += each * ld) {
        FD_UNROLL
        for (int line = 0; line < strips * each / FD_LANES; line++)
            FD_PREFETCH((const char *)from + FD_FAR + 64 * line);
        FD_T(gather)(strips, count, from, ld, each, all);
    }
    if (rows)
        FD_T(gather)(strips, count, from, ld, 1, all);
}

/* Add sums of one or two strips to those in float64, or put them there at first. */
FD_INLINE void FD_T(pour)(int strips, int first, vec sums, double *to)
{
    _Alignas(64) T values[FD_W];
    FD_T(store)(values, sums);
    FD_UNROLL
    for (int h = 0; h < FD_LANES; h++, to += strips == 1 ? 0 : 8) {
        const int fresh = first && (strips == 2 || h == 0); /* else halves belong together */
        const fd_wide more = FD_T(fd_widen)(values + 8 * h);
        fd_store_wide(to, fresh ? more : fd_add_wide(fd_load_wide(to), more));
    }
}

/* Add squares and products to those in float64, and begin them again. */
FD_INLINE void FD_T(empty)(int strips, int first, FD_T(fd_gathered) *all, double *squares,
                           double *products)
{
    const int vectors = FD_PRODUCTS(strips), each = strips == 1 ? 8 : (int)FD_W;
#if FD_LANES == 2
    FD_T(pour)(strips, first, FD_T(bounded)(all->acc[0], all->seen), squares);
#else
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        FD_T(pour)(strips, first, all->acc[s], squares + 8 * s);
#endif
    FD_UNROLL
    for (int k = 0; k < vectors; k++) {
        FD_T(pour)(strips, first, all->acc[k], products + each * k);
        all->acc[k] = FD_T(splat)(0);
    }
}

/* Rows of `count` columns, `ld` apart. */
FD_INLINE void FD_T(square_rows)(int strips, const T *from, ptrdiff_t ld, ptrdiff_t rows,
                                 ptrdiff_t count, FD_T(fd_gathered) *all, double *squares,
                                 double *products)
{
    const ptrdiff_t most = FD_PANEL * (strips == 1 ? FD_LANES : 1); /* rows of a sum in T */
    for (ptrdiff_t row = 0; row < rows; row += most, from += most * ld) {
        const ptrdiff_t here = FD_MIN(most, rows - row);
        if (count == strips * 8 && ld == strips * 8) /* constants, for the loop's sake */
            FD_T(gather_all)(strips, strips * 8, from, strips * 8, here, all);
        else
            FD_T(gather_all)(strips, count, from, ld, here, all);
        FD_T(empty)(strips, row == 0, all, squares, products);
    }
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
    FD_T(square_rows)(strips, from, ld, last - first, x->cols, &all, squares, products);
    FD_T(add_up)(strips, last - first, &all, sums);
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
#undef FD_PRODUCTS
