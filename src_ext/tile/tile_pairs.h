/* Typed part 2 for pairs of int16: packing one strip.

   A byte less a shift that lies among the bytes is at most 255 in size, so the products of a
   panel sum to at most 2 FD_PANEL * 255² < 2^25: int32 would hold those of 33 025 rows exactly. */

/* A vector of sums in float64. */
FD_INLINE void FD_T(widen)(const vec sums[1], fd_wide wide[2])
{
    _Alignas(64) T values[FD_BYTES / sizeof(T)];
    FD_T(store)(values, sums[0]);
    wide[0] = fd_widen_i2(values);
    wide[1] = fd_widen_i2(values + FD_D);
}

/* c + Σ a b over the two int16 of each lane: the sum of two rows at once. */
FD_INLINE vec FD_T(fma)(vec a, vec b, vec c)
{
#if defined(FD_VECTORS) && defined(FD_MADD)
    union { vec whole; fd_part part[FD_BYTES / sizeof(fd_part)]; } left = {a}, right = {b}, sum;
    FD_UNROLL
    for (int i = 0; i < (int)(FD_BYTES / sizeof(fd_part)); i++)
        left.part[i] = FD_MADD(left.part[i], right.part[i]);
    sum.whole = c + left.whole;
    FD_UNROLL
    for (int i = 0; i < (int)(FD_BYTES / sizeof(fd_part)); i++)
        FD_SETTLE(sum.part[i]);
    return sum.whole;
#elif defined(FD_VECTORS)
    return c + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#else
    for (int i = 0; i < (int)FD_W; i++)
        c.v[i] += (int16_t)a.v[i] * (int16_t)b.v[i] + (a.v[i] >> 16) * (b.v[i] >> 16);
    return c;
#endif
}

/* Two rows as pairs: the first in the low half of each lane, the second in the high one. */
FD_INLINE vec FD_T(join)(vec low, vec high)
{
#ifdef FD_VECTORS
    return (low & 0xffff) | high << 16;
#else
    for (int i = 0; i < (int)FD_W; i++)
        low.v[i] = (int32_t)((uint16_t)low.v[i] | (uint32_t)high.v[i] << 16);
    return low;
#endif
}

/* Pack `cols` columns (whole strips) from column `col` on of rows [row, row + rows); a last row
   without a partner is paired with zeros. Squares are not needed: nothing is rounded here. */
FD_INLINE void FD_T(pack_strips)(int plain, const T *from, ptrdiff_t ld, ptrdiff_t ahead,
                                 ptrdiff_t rows, ptrdiff_t col, ptrdiff_t cols, const T *high,
                                 const T *low, const fd_affine *affine, ptrdiff_t row,
                                 ptrdiff_t first, T *packed, double *sums, double *squares)
{
    (void)plain, (void)ahead, (void)low, (void)affine, (void)squares;
    for (ptrdiff_t c = col; c < col + cols; c += FD_W, from += FD_W) {
        T *to = packed + c / FD_W * FD_STEP + (row - first) / FD_DEEP * FD_W;
        vec shift = FD_T(load)(high + c), ones = FD_T(splat)(0x10001), total = FD_T(splat)(0);
        for (ptrdiff_t i = 0; i < rows; i += 2, to += FD_W) {
            vec even = FD_T(sub)(FD_T(load)(from + i * ld), shift), odd = FD_T(splat)(0);
            if (i + 1 < rows)
                odd = FD_T(sub)(FD_T(load)(from + (i + 1) * ld), shift);
            vec pair = FD_T(join)(even, odd);
            FD_T(store)(to, pair);
            total = FD_T(fma)(pair, ones, total);
        }
        fd_wide wide[2];
        FD_T(widen)(&total, wide);
        FD_UNROLL
        for (int v = 0; v < 2; v++) {
            double *sum = sums + c + v * FD_D;
            fd_store_wide(sum, fd_add_wide(fd_load_wide(sum), wide[v]));
        }
    }
}
