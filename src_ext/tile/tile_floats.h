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

/* FD_LANES vectors of sums in float64, those of what lies in the same column together. */
FD_INLINE void FD_T(widen)(const vec sums[FD_LANES], fd_wide wide[FD_LANES])
{
#if FD_LANES == 1
    _Alignas(64) T values[FD_BYTES / sizeof(T)];
    FD_T(store)(values, sums[0]);
    wide[0] = fd_load_wide(values);
#elif defined(__AVX512F__) && FD_BYTES == 64
    const __m512 one = (__m512)sums[0], other = (__m512)sums[1];
    const __m512 both = _mm512_add_ps(_mm512_shuffle_ps(one, other, 0x88),
                                      _mm512_shuffle_ps(one, other, 0xdd));
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512 sorted = (__m512)_mm512_permutexvar_pd(order, (__m512d)both);
    wide[0] = (fd_wide)_mm512_cvtps_pd(_mm512_castps512_ps256(sorted));
    wide[1] = (fd_wide)_mm512_cvtps_pd(_mm512_extractf32x8_ps(sorted, 1));
#elif defined(__AVX2__) && FD_BYTES == 32
    const __m256 one = (__m256)sums[0], other = (__m256)sums[1];
    const __m256 both = _mm256_add_ps(_mm256_shuffle_ps(one, other, 0x88),
                                      _mm256_shuffle_ps(one, other, 0xdd));
    const __m256 sorted = (__m256)_mm256_permute4x64_pd((__m256d)both, 0xd8);
    wide[0] = (fd_wide)_mm256_cvtps_pd(_mm256_castps256_ps128(sorted));
    wide[1] = (fd_wide)_mm256_cvtps_pd(_mm256_extractf128_ps(sorted, 1));
#else
    for (int h = 0; h < FD_LANES; h++) {
        _Alignas(64) T values[FD_BYTES / sizeof(T)];
        _Alignas(64) double both[FD_BYTES / sizeof(double)];
        FD_T(store)(values, sums[h]);
        for (ptrdiff_t j = 0; j < FD_D; j++)
            both[j] = values[2 * j] + values[2 * j + 1];
        wide[h] = fd_load_wide(both);
    }
#endif
}

#if FD_LANES == 2
/* Two rows element by element next to each other: a vector for each strip. */
FD_INLINE void FD_T(interleave)(vec even, vec odd, vec strip[2])
{
#if defined(__AVX512F__) && FD_BYTES == 64
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i next = _mm512_add_epi32(order, _mm512_set1_epi32(8));
    strip[0] = (vec)_mm512_permutex2var_ps((__m512)even, order, (__m512)odd);
    strip[1] = (vec)_mm512_permutex2var_ps((__m512)even, next, (__m512)odd);
#elif defined(__AVX__) && FD_BYTES == 32
    const __m256 low = _mm256_unpacklo_ps((__m256)even, (__m256)odd);
    const __m256 high = _mm256_unpackhi_ps((__m256)even, (__m256)odd);
    strip[0] = (vec)_mm256_permute2f128_ps(low, high, 0x20);
    strip[1] = (vec)_mm256_permute2f128_ps(low, high, 0x31);
#else
    _Alignas(64) T rows[2][FD_BYTES / sizeof(T)], both[2 * FD_BYTES / sizeof(T)];
    FD_T(store)(rows[0], even);
    FD_T(store)(rows[1], odd);
    for (ptrdiff_t j = 0; j < 2 * FD_W; j++)
        both[j] = rows[j % 2][j / 2];
    strip[0] = FD_T(load)(both);
    strip[1] = FD_T(load)(both + FD_W);
#endif
}

/* The same of two rows in memory, put into two packed strips. */
FD_INLINE void FD_T(pair_rows)(const T *even, const T *odd, T *to)
{
    vec strip[2];
    FD_T(interleave)(FD_T(load)(even), FD_T(load)(odd), strip);
    FD_T(store)(to, strip[0]);
    FD_T(store)(to + FD_STEP, strip[1]);
}
#endif

/* Sums of a vector of columns, in float64 whatever T is: Σ f²(x - shift) and Σ f²(x - shift)².
   Of float32 whose shift is by column only and exact, the shift comes off the sum of all rows,
   which loses nothing, and the squares, which only tell where a panel belongs, are in float32. */
typedef struct {
    fd_wide sum[sizeof(double) / sizeof(T)], square[sizeof(double) / sizeof(T)];
    vec flat, seen; /* squares in float32, and the bits of what is squared */
} FD_T(fd_sums);

/* Put a vector of a row, of which `count` columns exist, in `to` and add it to the sums; plain =
   shift by column only. */
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
#if FD_LANES == 2
    if (plain) {
        sums->flat = FD_T(fma)(z, z, sums->flat);
        sums->seen = FD_T(either)(z, sums->seen);
        FD_UNROLL
        for (int v = 0; v < 2; v++)
            sums->sum[v] = fd_add_wide(sums->sum[v], FD_T(fd_widen)(from + v * FD_D));
        return;
    }
#endif
    FD_UNROLL
    for (int v = 0; v < (int)(sizeof(double) / sizeof(T)); v++) {
        if (v * FD_D >= count)
            break;
        fd_wide value = plain ? FD_T(fd_widen)(to + v * FD_D) /* float64: nothing was rounded */
                              : fd_sub_wide(FD_T(fd_widen)(from + v * FD_D), shift[v]);
        fd_wide weighted = value;
        if (factor)
            weighted = fd_mul_wide(value, fd_splat_wide(*factor * *factor));
        sums->sum[v] = fd_add_wide(sums->sum[v], weighted);
        sums->square[v] = fd_fma_wide(weighted, value, sums->square[v]);
    }
}

/* Pack `rows` rows of a vector of columns, summed in FD_CHAINS parts to keep the adders busy, and
   call into L1 what lies `ahead` elements further: its turn comes when other columns had theirs. */
FD_INLINE void FD_T(pack_strip)(int plain, ptrdiff_t count, const T *from, ptrdiff_t ld,
                                ptrdiff_t ahead, ptrdiff_t rows, const T *high, const T *low,
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
    for (int c = 0; c < FD_CHAINS; c++)
        chain[c].flat = chain[c].seen = FD_T(splat)(0);
    FD_UNROLL
    for (int v = 0; v < PARTS; v++) {
        shift[v] = fd_add_wide(FD_T(fd_widen)(high + v * FD_D), FD_T(fd_widen)(low + v * FD_D));
        FD_UNROLL
        for (int c = 0; c < FD_CHAINS; c++)
            chain[c].sum[v] = chain[c].square[v] = fd_splat_wide(0);
    }
    ptrdiff_t i = 0;
#define FD_PACK_ROW(i, to, sums)                                                                   \
    FD_PREFETCH_NEAR(from + (i) * ld + ahead);                                                     \
    FD_T(pack_row)(plain, count, from + (i) * ld, h, l, shift,                                     \
                   row_shift ? row_shift + (i) : NULL, factor ? factor + (i) : NULL, to, sums)
#if FD_LANES == 1
    for (; i + FD_CHAINS <= rows; i += FD_CHAINS)
        FD_UNROLL
        for (int c = 0; c < FD_CHAINS; c++) {
            FD_PACK_ROW(i + c, to + (i + c) * FD_W, chain + c);
        }
    for (; i < rows; i++) {
        FD_PACK_ROW(i, to + i * FD_W, chain);
    }
#else
    _Alignas(64) T pair[2][FD_BYTES / sizeof(T)];
    for (; i + FD_CHAINS <= rows; i += FD_CHAINS)
        FD_UNROLL
        for (int c = 0; c < FD_CHAINS; c += 2, to += FD_W) {
            FD_PACK_ROW(i + c, pair[0], chain + c);
            FD_PACK_ROW(i + c + 1, pair[1], chain + c + 1);
            FD_T(pair_rows)(pair[0], pair[1], to);
        }
    for (; i < rows; i += 2, to += FD_W) { /* a last row without a partner is paired with zeros */
        FD_PACK_ROW(i, pair[0], chain);
        if (i + 1 < rows) {
            FD_PACK_ROW(i + 1, pair[1], chain + 1);
        } else
            FD_T(store)(pair[1], FD_T(splat)(0));
        FD_T(pair_rows)(pair[0], pair[1], to);
    }
#endif
#undef FD_PACK_ROW
#if FD_LANES == 2
    if (plain) {
        FD_UNROLL
        for (int c = 1; c < FD_CHAINS; c++) {
            chain[0].flat = FD_T(add)(chain[0].flat, chain[c].flat);
            chain[0].seen = FD_T(either)(chain[0].seen, chain[c].seen);
        }
        _Alignas(64) T square[FD_BYTES / sizeof(T)];
        FD_T(store)(square, FD_T(bounded)(chain[0].flat, chain[0].seen));
        FD_UNROLL
        for (int v = 0; v < PARTS; v++) {
            chain[0].square[v] = FD_T(fd_widen)(square + v * FD_D);
            chain[0].sum[v] = fd_fma_wide(shift[v], fd_splat_wide(-(double)rows), chain[0].sum[v]);
        }
    }
#endif
    FD_UNROLL
    for (int v = 0; v < PARTS; v++) {
        if (v * FD_D >= count)
            break;
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
FD_INLINE void FD_T(pack_strips)(int plain, const T *from, ptrdiff_t ld, ptrdiff_t ahead,
                                 ptrdiff_t rows, ptrdiff_t col, ptrdiff_t cols, const T *high,
                                 const T *low, const fd_affine *affine, ptrdiff_t row,
                                 ptrdiff_t first, T *packed, double *sums, double *squares)
{
    for (ptrdiff_t c = col; c < col + cols; c += FD_W, from += FD_W) {
        const ptrdiff_t count = col + cols - c;
        T *to = packed + c / FD_C * FD_STEP + (row - first) / FD_DEEP * FD_W;
#define FD_PACK(plain, count)                                                                      \
    FD_T(pack_strip)(plain, count, from, ld, ahead, rows, high + c, low + c, affine, row, to,      \
                     sums + c, squares + c)
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
    for (ptrdiff_t col = 0; col < cols; col += FD_C) {
        _Alignas(64) T mean[FD_BYTES / sizeof(T)];
        for (ptrdiff_t j = 0; j < FD_W; j++)
            mean[j] = (T)means[col + j / FD_LANES];
        vec m = FD_T(load)(mean), zero = FD_T(splat)(0);
        T *z = packed + col / FD_C * FD_STEP;
        for (ptrdiff_t i = 0; i < rows; i += FD_DEEP, z += FD_W) {
            T factor[FD_LANES];
            for (int l = 0; l < FD_LANES; l++)
                factor[l] = i + l >= rows ? 0 : row_factor ? (T)row_factor[i + l] : 1;
            vec step = FD_T(fma)(m, FD_T(repeat)(factor, FD_LANES), zero);
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
