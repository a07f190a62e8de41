/* Typed part: products of the columns of one strip or two with each other, each once.

   In a square of columns by columns most products stand twice. Turned around its end by 0 up to
   half its columns, a strip meets each of its elements once: of eight columns five multiply-adds
   instead of eight, of sixteen 18 instead of 32, for two strips meet by the turns that each needs.
   That takes shuffles of whole vectors and eight columns in a strip: AVX-512. */

/* Columns i + k, around the end, in place of column i of strip z; but 0 and 4 have its first and
   its last four columns twice, which loads can do: ports that multiply also shuffle. Together they
   meet as the strip and the one turned by four would: see `exchange`. `two` is z turned by two. */
FD_INLINE vec FD_T(turn)(const T *strip, vec z, vec two, int k)
{
    switch (k) {
    case 1: /* within lanes, which is faster where it is not the same */
        return (vec)_mm512_shuffle_pd((__m512d)z, (__m512d)two, 0x55);
    case 2:
        return two;
    case 3:
        return (vec)_mm512_alignr_epi64((__m512i)z, (__m512i)z, 3);
    default:
        return (vec)_mm512_broadcast_f64x4(_mm256_loadu_pd((const double *)(strip + k * FD_LANES)));
    }
}

FD_INLINE vec FD_T(by_two)(vec z)
{
    return (vec)_mm512_alignr_epi64((__m512i)z, (__m512i)z, 2);
}

FD_INLINE void FD_T(add_turned)(vec z, const vec turned[FD_TURNS], vec acc[FD_TURNS])
{
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        acc[k] = FD_T(fma)(z, turned[k], acc[k]);
}

FD_INLINE void FD_T(add_strip)(const T *strip, vec acc[FD_TURNS])
{
    const vec z = FD_T(load)(strip), two = FD_T(by_two)(z);
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        acc[k] = FD_T(fma)(z, FD_T(turn)(strip, z, two, k), acc[k]);
}

/* Products with the halves that `turn` has twice, where those with turns by 0 and 4 belong. */
FD_INLINE void FD_T(exchange)(vec acc[FD_TURNS])
{
    const __m512d first = (__m512d)acc[0], last = (__m512d)acc[4];
    acc[0] = (vec)_mm512_mask_blend_pd(0xf0, first, last);
    acc[4] = (vec)_mm512_mask_blend_pd(0xf0, last, first);
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
            FD_T(add_strip)(a + k * FD_W, even);
            FD_T(add_strip)(a + (k + 1) * FD_W, odd);
        }
    }
    if (rows % 2)
        FD_T(add_strip)(a + (rows - 1) * FD_W, even);
    _Alignas(64) double sums[8 * FD_TURNS];
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        even[k] = FD_T(add)(even[k], odd[k]);
    FD_T(exchange)(even);
    FD_T(spill)(FD_TURNS, even, sums);
    fd_unfold(sums, to, ld);
}

/* Rows that fit a strip or two are multiplied as they are read, not packed first. */
#define FD_FAR 8192 /* bytes that rows are called ahead */

/* Vectors of products of so many strips: those of the first with itself, of both, of the second. */
#define FD_PRODUCTS(strips) ((strips) == 1 ? FD_TURNS : FD_SECOND + FD_TURNS)

/* Products in T; sums, in float64, of float64 less its shift and of float32 as it is. */
typedef struct {
    vec shift[2 / FD_LANES], acc[FD_PRODUCTS(2)];
    fd_wide sum[2];
    vec seen[2]; /* bits of float32 less its shift: products of tiny values vanish */
} FD_T(fd_gathered);

/* Begin; returns 0 if a shift is not exact in T. In vectors, as all that is done once a panel. */
FD_INLINE int FD_T(begin)(int strips, const double *shift, ptrdiff_t cols, FD_T(fd_gathered) *all)
{
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
    for (int k = 0; k < FD_PRODUCTS(strips); k++)
        all->acc[k] = FD_T(splat)(0);
    all->sum[0] = all->sum[1] = fd_splat_wide(0);
    all->seen[0] = all->seen[1] = FD_T(splat)(0);
    return 1;
}

/* Below, rows have `count` columns; whole = these fill their strips, and the rows lie one after
   the other. */
#if FD_LANES == 1
/* A vector of a row, of strip `s` of `strips`, less its shift. */
FD_INLINE vec FD_T(take)(int strips, int whole, ptrdiff_t count, const T *from, int s,
                         FD_T(fd_gathered) *all)
{
    from += 8 * s;
    const vec row = whole || s < strips - 1 ? FD_T(load_loose)(from)
                                            : FD_T(load_part)(from, count - 8 * s);
    const vec z = FD_T(sub)(row, all->shift[s]);
    all->sum[s] = fd_add_wide(all->sum[s], z);
    return z;
}

/* A row of one strip, turned where it is: memory has more to do here than the ports. */
FD_INLINE void FD_T(add_rows)(int whole, ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                              FD_T(fd_gathered) *all)
{
    (void)ld, (void)rows;
    const vec z = FD_T(take)(1, whole, count, from, 0, all);
    const __m512d none = (__m512d)z, two = _mm512_shuffle_f64x2(none, none, 0x39);
    const __m512d four = _mm512_shuffle_f64x2(none, none, 0x4e);
    const vec turned[FD_TURNS] = {z, (vec)_mm512_shuffle_pd(none, two, 0x55), (vec)two,
                                  (vec)_mm512_shuffle_pd(two, four, 0x55), (vec)four};
    FD_T(add_turned)(z, turned, all->acc);
}

/* A row as a step of two packed strips. */
FD_INLINE void FD_T(lay)(int whole, ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                         FD_T(fd_gathered) *all, T *to)
{
    (void)ld, (void)rows;
    FD_UNROLL
    for (int s = 0; s < 2; s++)
        FD_T(store)(to + s * FD_W, FD_T(take)(2, whole, count, from, s, all));
}
#else
/* Eight columns of a row, those that are there. */
FD_INLINE __m256 FD_T(half)(int whole, ptrdiff_t count, const T *from)
{
    if (whole)
        return _mm256_loadu_ps(from);
    return _mm256_maskz_loadu_ps((__mmask8)((1u << count) - 1), from);
}

FD_INLINE void FD_T(sum_up)(fd_wide *sum, __m256 half)
{
    *sum = fd_add_wide(*sum, (fd_wide)_mm512_cvtps_pd(half));
}

/* One row or two of one strip, the second behind the first. */
FD_INLINE void FD_T(add_rows)(int whole, ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                              FD_T(fd_gathered) *all)
{
    const __m256 row = FD_T(half)(whole, count, from);
    __m512 both = _mm512_insertf32x8((__m512)all->shift[0], row, 0); /* what lacks leaves zero */
    FD_T(sum_up)(all->sum, row);
    if (rows == 2) {
        const __m256 next = FD_T(half)(whole, count, from + ld);
        both = whole ? _mm512_loadu_ps(from) : _mm512_insertf32x8(both, next, 1);
        FD_T(sum_up)(all->sum + 1, next);
    }
    const vec z = FD_T(sub)((vec)both, all->shift[0]);
    const __m512 none = (__m512)z, four = _mm512_shuffle_f32x4(none, none, 0xb1);
    const __m512 two = _mm512_shuffle_ps(none, four, 0x4e);
    const vec turned[FD_TURNS] = {z, (vec)_mm512_shuffle_ps(none, two, 0x99), (vec)two,
                                  (vec)_mm512_shuffle_ps(two, four, 0x99), (vec)four};
    FD_T(add_turned)(z, turned, all->acc);
    all->seen[0] = FD_T(either)(all->seen[0], z);
}

/* One row or two as a step of two packed strips. */
FD_INLINE void FD_T(lay)(int whole, ptrdiff_t count, const T *from, ptrdiff_t ld, int rows,
                         FD_T(fd_gathered) *all, T *to)
{
    vec row[2] = {FD_T(splat)(0), FD_T(splat)(0)}, z[2];
    FD_UNROLL
    for (int r = 0; r < rows; r++, from += ld) {
        row[r] = whole ? FD_T(load_loose)(from) : FD_T(load_part)(from, count);
        row[r] = FD_T(sub)(row[r], all->shift[0]);
        FD_T(sum_up)(all->sum, FD_T(half)(1, 8, from));
        FD_T(sum_up)(all->sum + 1, FD_T(half)(whole, count - 8, from + 8));
    }
    FD_T(interleave)(row[0], row[1], z);
    FD_UNROLL
    for (int s = 0; s < 2; s++) {
        all->seen[s] = FD_T(either)(all->seen[s], z[s]);
        FD_T(store)(to + s * FD_W, z[s]);
    }
}

/* Values of a row and of the one behind it, column by column next to each other. */
FD_INLINE vec FD_T(pair_up)(vec rows)
{
    return (vec)_mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), (__m512)rows);
}
#endif

/* A panel's rows of one strip, `ld` apart. */
FD_INLINE void FD_T(gather_one)(int whole, ptrdiff_t count, const T *from, ptrdiff_t ld,
                                ptrdiff_t rows, FD_T(fd_gathered) *to)
{
    FD_T(fd_gathered) all = *to; /* in registers */
    for (; rows >= FD_DEEP; rows -= FD_DEEP, from += FD_DEEP * ld) {
        FD_PREFETCH((const char *)from + FD_FAR);
        FD_T(add_rows)(whole, count, from, ld, FD_DEEP, &all);
    }
    if (rows)
        FD_T(add_rows)(whole, count, from, ld, 1, &all);
#if FD_LANES == 2
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++)
        all.acc[k] = FD_T(pair_up)(all.acc[k]);
    all.seen[0] = FD_T(pair_up)(all.seen[0]);
#endif
    *to = all;
}

/* Products of two packed strips. Columns i of the first and i + k of the second meet with the
   second turned by k, or with the first by 8 - k. A turn is used up before the next one is made:
   18 sums leave few registers. */
FD_INLINE void FD_T(add_pair)(const T *strips, vec *acc)
{
    const vec a = FD_T(load)(strips), a_two = FD_T(by_two)(a);
    const vec b = FD_T(load)(strips + FD_W), b_two = FD_T(by_two)(b);
    vec *both = acc + FD_TURNS, *second = acc + FD_SECOND;
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++) {
        const vec turned = FD_T(turn)(strips, a, a_two, k);
        acc[k] = FD_T(fma)(a, turned, acc[k]);
        if (k % 4)
            both[8 - k] = FD_T(fma)(b, turned, both[8 - k]);
    }
    FD_UNROLL
    for (int k = 0; k < FD_TURNS; k++) {
        const vec turned = FD_T(turn)(strips + FD_W, b, b_two, k);
        both[k] = FD_T(fma)(a, turned, both[k]);
        second[k] = FD_T(fma)(b, turned, second[k]);
    }
}

/* The same of two strips: a step is stored, and the one FD_LAG before it, which is there by now, is
   multiplied, so that no multiply-add waits in the queue for its factors. */
#define FD_LAG 3
#define FD_SLOT(step) ring[(step) % (FD_LAG + 1)]
FD_INLINE void FD_T(gather_two)(int whole, ptrdiff_t count, const T *from, ptrdiff_t ld,
                                ptrdiff_t rows, FD_T(fd_gathered) *to)
{
    _Alignas(64) T ring[FD_LAG + 1][2 * FD_W];
    FD_T(fd_gathered) all = *to; /* in registers */
    ptrdiff_t laid = 0, done = 0;
    for (; rows >= FD_DEEP; rows -= FD_DEEP, from += FD_DEEP * ld) {
        FD_PREFETCH((const char *)from + FD_FAR);
        FD_PREFETCH((const char *)from + FD_FAR + 64);
        FD_T(lay)(whole, count, from, ld, FD_DEEP, &all, FD_SLOT(laid++));
        if (laid > FD_LAG)
            FD_T(add_pair)(FD_SLOT(done++), all.acc);
    }
    if (rows)
        FD_T(lay)(whole, count, from, ld, 1, &all, FD_SLOT(laid++));
    while (done < laid)
        FD_T(add_pair)(FD_SLOT(done++), all.acc);
    FD_T(exchange)(all.acc);
    FD_T(exchange)(all.acc + FD_TURNS);
    FD_T(exchange)(all.acc + FD_SECOND);
    *to = all;
}
#undef FD_SLOT
#undef FD_LAG

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
    const ptrdiff_t rows = last - first, wide = 8 * strips;
    FD_T(fd_gathered) all;
    if (!FD_T(begin)(strips, shift, x->cols, &all))
        return 0;
    if (!FD_T(in_place)(x)) {
        ld = wide;
        FD_T(fetch)(x, first, rows, 0, x->cols, stage, ld);
        from = stage;
    }
    const int whole = x->cols == wide && ld == wide; /* with constants, for the loop's sake */
    if (strips == 1 && whole)
        FD_T(gather_one)(1, wide, from, wide, rows, &all);
    else if (strips == 1)
        FD_T(gather_one)(0, x->cols, from, ld, rows, &all);
    else if (whole)
        FD_T(gather_two)(1, wide, from, wide, rows, &all);
    else
        FD_T(gather_two)(0, x->cols, from, ld, rows, &all);
    FD_T(add_up)(strips, rows, &all, sums);
    FD_T(spill)(FD_PRODUCTS(strips), all.acc, products);
    FD_UNROLL
    for (int s = 0; s < strips; s++) {
        vec square = all.acc[FD_SECOND * s];
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
#undef FD_PRODUCTS
