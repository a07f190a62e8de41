/* Typed part 5: products with a narrow matrix, one pass over the rows. */

/* Columns of x multiplied at a time: a panel of the narrow matrix (FD_DEPTH by FD_STRIPS vectors)
   stays in L1. */
#define FD_DEPTH 256
/* Rows of a block are centred, multiplied and delivered before the next ones: as many as FD_NEAR
   bytes hold, for they stay in L1, but FD_TALL if narrow matrices of more than FD_PASSING bytes
   pass by each block, which L2 does not hold. */
#define FD_NEAR 8192
#define FD_PASSING (1 << 20)
#define FD_TALL ((ptrdiff_t)64)
#define FD_LDA (FD_DEPTH + (ptrdiff_t)(64 / sizeof(T)))

/* Rows [first, last) of x in memory, if they lie in one piece: to be called ahead of their turn. */
FD_INLINE fd_ahead FD_T(rows_ahead)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                                    ptrdiff_t steps)
{
    const int solid = x->row_step == x->cols * x->col_step && x->row_step > 0 && last > first;
    return fd_spread(x->data + first * x->row_step, solid * (last - first) * x->row_step, steps);
}

/* The shift of all columns as the working type sees it: values, and behind them what these lack. */
static void FD_T(split_all)(const double *shift, ptrdiff_t cols, T *to)
{
    for (ptrdiff_t j = 0; j < cols; j++)
        FD_T(split)(shift[j], to + j, to + cols + j);
}

/* Copy a block of x minus its shift, if there is one; `to` has rows of `ld` elements. */
static void FD_T(centre)(const fd_matrix *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t col,
                         ptrdiff_t cols, const T *shift, T *restrict to, ptrdiff_t ld)
{
    const int in_place = FD_T(in_place)(x);
    if (!in_place || !shift)
        FD_T(fetch)(x, row, rows, col, cols, to, ld);
    if (!shift)
        return;
    const T *from = in_place ? (const T *)(x->data + row * x->row_step) + col : to;
    const T *high = shift + col, *low = high + x->cols;
    const ptrdiff_t step = in_place ? x->row_step / (ptrdiff_t)sizeof(T) : ld;
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t j = 0; j < cols; j++) {
            T value = from[i * step + j] - high[j];
            to[i * ld + j] = FD_NATIVE == FD_F4 ? value - low[j] : value;
        }
}

/* Repack B (depth, q) into panels of FD_TAKE vectors, cut at every FD_DEPTH rows. */
static void FD_T(pack_b)(const T *b, ptrdiff_t depth, ptrdiff_t q, T *to)
{
    for (ptrdiff_t k0 = 0; k0 < depth; k0 += FD_DEPTH) {
        ptrdiff_t width;
        for (ptrdiff_t c = 0; c < q; c += width) {
            width = FD_TAKE((q - c + FD_W - 1) / FD_W) * FD_W;
            for (ptrdiff_t k = k0; k < FD_MIN(k0 + FD_DEPTH, depth); k++)
                for (ptrdiff_t j = 0; j < width; j++)
                    *to++ = c + j < q ? b[k * q + c + j] : 0;
        }
    }
}

static ptrdiff_t FD_T(packed_b)(ptrdiff_t depth, ptrdiff_t q)
{
    return FD_UP(depth * FD_UP(q, FD_W), 16);
}

/* acc[r][s] += a[r] b[s] for one column of the rows. */
FD_INLINE void FD_T(rows_step)(const int strips, const T *restrict a, ptrdiff_t lda,
                               const T *restrict b, vec acc[FD_ROWS][FD_STRIPS])
{
    vec right[FD_STRIPS];
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        right[s] = FD_T(load)(b + s * FD_W);
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++) {
        if (strips == 1 || r < FD_EMBEDDED) {
            FD_UNROLL
            for (int s = 0; s < strips; s++)
                acc[r][s] = FD_T(accumulate_spread)(right[s], a + r * lda, acc[r][s]);
            continue;
        }
        vec left = FD_T(splat)(a[r * lda]);
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = FD_T(accumulate)(left, right[s], acc[r][s]);
    }
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        FD_HOLD(right[s]);
}

/* to[r][s] = [to[r][s] +] Σ_k a[r][k] b[k][s] for FD_ROWS rows and `strips` vectors. */
FD_INLINE void FD_T(rows_tile)(const int strips, const T *restrict a, ptrdiff_t lda,
                               const T *restrict b, ptrdiff_t depth, int first, T *to,
                               ptrdiff_t ld, const fd_ahead *ahead)
{
    vec acc[FD_ROWS][FD_STRIPS];
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = first ? FD_T(splat)(0) : FD_T(load)(to + r * ld + s * FD_W);
    ptrdiff_t k = 0;
    for (; k + FD_UNROLLED <= depth; k += FD_UNROLLED) {
        fd_call(ahead, k, FD_UNROLLED);
        FD_UNROLL
        for (int u = 0; u < FD_UNROLLED; u++)
            FD_T(rows_step)(strips, a + k + u, lda, b + (k + u) * strips * FD_W, acc);
    }
    for (; k < depth; k++)
        FD_T(rows_step)(strips, a + k, lda, b + k * strips * FD_W, acc);
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            FD_T(store)(to + r * ld + s * FD_W, acc[r][s]);
}

/* One group: to (rows, strips vectors) = [to +] a (rows, depth) b; rows padded to FD_ROWS. */
FD_INLINE void FD_T(group_tiles)(ptrdiff_t strips, const T *a, ptrdiff_t lda, ptrdiff_t rows,
                                 ptrdiff_t depth, const T *b, int first, T *to, ptrdiff_t ld,
                                 fd_ahead *ahead)
{
    for (ptrdiff_t r = 0; r < rows; r += FD_ROWS, a += FD_ROWS * lda, to += FD_ROWS * ld) {
        if (strips == FD_STRIPS)
            FD_T(rows_tile)(FD_STRIPS, a, lda, b, depth, first, to, ld, ahead);
#if FD_STRIPS > 1
        else if (strips == 2)
            FD_T(rows_tile)(2, a, lda, b, depth, first, to, ld, ahead);
        else
            FD_T(rows_tile)(1, a, lda, b, depth, first, to, ld, ahead);
#endif
        fd_advance(ahead, depth);
    }
}

/* to (rows, q padded to whole vectors) = [to +] a (rows, depth) B, B packed by `pack_b`. */
static void FD_T(block_product)(const T *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t depth,
                                const T *b, ptrdiff_t q, int first, T *to, ptrdiff_t ld,
                                fd_ahead *ahead)
{
    ptrdiff_t strips;
    for (ptrdiff_t c = 0; c < q; c += strips * FD_W, b += depth * strips * FD_W) {
        strips = FD_TAKE((q - c + FD_W - 1) / FD_W);
        if (lda == FD_LDA) /* a constant, for the loop's sake: one pointer instead of eight */
            FD_T(group_tiles)(strips, a, FD_LDA, rows, depth, b, first, to + c, ld, ahead);
        else
            FD_T(group_tiles)(strips, a, lda, rows, depth, b, first, to + c, ld, ahead);
    }
}

/* Rows of a block, of `most` that L2 holds, of which `length` elements are multiplied at a time
   by `narrow` in all. */
FD_INLINE ptrdiff_t FD_T(block_rows)(ptrdiff_t most, ptrdiff_t length, ptrdiff_t narrow)
{
    if (narrow * (ptrdiff_t)sizeof(T) <= FD_PASSING)
        most = FD_MIN(most, FD_NEAR / (ptrdiff_t)sizeof(T) / FD_MAX(length, 1));
    return FD_MIN(FD_TALL, FD_MAX(8, most / FD_ROWS * FD_ROWS));
}

FD_INLINE ptrdiff_t FD_T(product_rows)(ptrdiff_t depth, ptrdiff_t q)
{
    const ptrdiff_t most = (ptrdiff_t)(1 << 17) / (ptrdiff_t)sizeof(T) / FD_UP(q, FD_W);
    return FD_T(block_rows)(most, FD_MIN(depth, FD_DEPTH), FD_T(packed_b)(depth, q));
}

static ptrdiff_t FD_T(rows_work)(ptrdiff_t depth, ptrdiff_t q)
{
    return 64 + sizeof(T) * (FD_T(packed_b)(depth, q) + 2 * depth +
                             FD_T(product_rows)(depth, q) * (FD_LDA + FD_UP(q, FD_W)));
}

/* Put a row of results, plus an offset, into place; add zero times each to `check`. */
FD_INLINE vec FD_T(deliver)(T *restrict from, ptrdiff_t q, const double *offset, T *restrict to,
                            vec check)
{
    if (offset)
        for (ptrdiff_t j = 0; j < q; j++)
            from[j] = (T)(from[j] + offset[j]);
    memcpy(to, from, q * sizeof(T));
    for (ptrdiff_t j = 0; j < q; j += FD_W)
        check = FD_T(fma)(FD_T(load)(from + j), FD_T(splat)(0), check);
    return check;
}

static int FD_T(rows_product)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                              const double *shift, const void *b, ptrdiff_t q,
                              const double *offset, void *out_, void *work)
{
    const ptrdiff_t depth = x->cols, ldz = FD_UP(q, FD_W), tall = FD_T(product_rows)(depth, q);
    T *out = out_, *packed = (T *)FD_UP((uintptr_t)work, 64);
    T *a = packed + FD_T(packed_b)(depth, q), *z = a + tall * FD_LDA;
    T *split = shift ? z + tall * ldz : NULL;
    vec check = FD_T(splat)(0);

    FD_T(pack_b)(b, depth, q, packed);
    if (shift)
        FD_T(split_all)(shift, depth, split);
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row), padded = FD_UP(rows, FD_ROWS);
        const ptrdiff_t groups = (ldz / FD_W + FD_STRIPS - 1) / FD_STRIPS;
        /* Rows that need no change are multiplied where they lie. */
        const int direct = !shift && rows == padded && FD_T(in_place)(x);
        fd_ahead ahead = FD_T(rows_ahead)(x, row + rows, FD_MIN(row + rows + tall, last),
                                          padded / FD_ROWS * groups * depth);
        for (ptrdiff_t k = 0; k < depth; k += FD_DEPTH) {
            const ptrdiff_t deep = FD_MIN(FD_DEPTH, depth - k);
            const T *from = (const T *)(x->data + row * x->row_step) + k;
            ptrdiff_t lda = x->row_step / (ptrdiff_t)sizeof(T);
            if (!direct) {
                FD_T(centre)(x, row, rows, k, deep, split, a, FD_LDA);
                for (ptrdiff_t r = rows; r < padded; r++)
                    memset(a + r * FD_LDA, 0, deep * sizeof(T));
                from = a;
                lda = FD_LDA;
            }
            FD_T(block_product)(from, lda, rows, deep, packed + k * ldz, q, k == 0, z, ldz,
                                &ahead);
        }
        for (ptrdiff_t r = 0; r < rows; r++)
            check = FD_T(deliver)(z + r * ldz, q, offset, out + (row + r) * q, check);
    }
    _Alignas(64) T lanes[FD_BYTES / sizeof(T)];
    T bad = 0;
    FD_T(store)(lanes, check);
    for (int j = 0; j < (int)FD_W; j++)
        bad += lanes[j];
    return bad == 0;
}

FD_INLINE ptrdiff_t FD_T(error_rows)(ptrdiff_t cols, ptrdiff_t k)
{
    const ptrdiff_t most = (ptrdiff_t)(1 << 18) / (ptrdiff_t)sizeof(T) / FD_MAX(cols, 1);
    return FD_T(block_rows)(most, cols, FD_T(packed_b)(cols, k) + FD_T(packed_b)(k, cols));
}

#define FD_ERROR_LD(cols) (FD_UP(cols, FD_W) + (ptrdiff_t)(64 / sizeof(T)))
#define FD_FIT_LD (FD_STRIPS * FD_W)

static ptrdiff_t FD_T(errors_work)(ptrdiff_t cols, ptrdiff_t k)
{
    const ptrdiff_t rows = FD_T(error_rows)(cols, k);
    return 64 + sizeof(T) * (FD_T(packed_b)(cols, k) + FD_T(packed_b)(k, cols) + 2 * cols +
                             rows * (FD_ERROR_LD(cols) + FD_UP(k, FD_W) + FD_FIT_LD));
}

/* total + Σ (a - b)² over `strips` vectors. */
FD_INLINE fd_wide FD_T(add_gap)(ptrdiff_t strips, const T *a, const T *b, fd_wide total)
{
    _Alignas(64) T lanes[FD_BYTES / sizeof(T)];
    vec sum = FD_T(splat)(0);
    for (ptrdiff_t s = 0; s < strips; s++) {
        vec gap = FD_T(sub)(FD_T(load_loose)(a + s * FD_W), FD_T(load)(b + s * FD_W));
        sum = FD_T(fma)(gap, gap, sum);
    }
    FD_T(store)(lanes, sum);
    FD_UNROLL
    for (int v = 0; v < (int)(FD_W / FD_D); v++)
        total = fd_add_wide(total, FD_T(fd_widen)(lanes + v * FD_D));
    return total;
}

/* Whether squares of gaps may have vanished in float32: their sum is next to nothing, and the row
   so small, but not zero, that this is not for its being met to rounding. */
static int FD_T(vanished)(double total, const T *row, ptrdiff_t cols)
{
    if (FD_NATIVE != FD_F4 || !(total < cols * 0x1p-126))
        return 0;
    uint32_t largest = 0, word; /* magnitudes are ordered as the words that hold them */
    for (ptrdiff_t j = 0; j < cols; j++) {
        memcpy(&word, row + j, sizeof word);
        word &= 0x7fffffff;
        largest = FD_MAX(largest, word);
    }
    return largest > 0 && largest < 0x30800000; /* 2^-30 */
}

static void FD_T(row_errors)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                             const double *shift, const void *p, const void *r_, ptrdiff_t k,
                             double *out, void *work)
{
    const ptrdiff_t cols = x->cols, tall = FD_T(error_rows)(cols, k), lda = FD_ERROR_LD(cols);
    const ptrdiff_t ldz = FD_UP(k, FD_W);
    T *packed_p = (T *)FD_UP((uintptr_t)work, 64), *packed_r = packed_p + FD_T(packed_b)(cols, k);
    T *a = packed_r + FD_T(packed_b)(k, cols), *z = a + tall * lda, *fit = z + tall * ldz;
    T *split = shift ? fit + tall * FD_FIT_LD : NULL;

    FD_T(pack_b)(p, cols, k, packed_p);
    FD_T(pack_b)(r_, k, cols, packed_r);
    if (shift)
        FD_T(split_all)(shift, cols, split);
    memset(a, 0, tall * lda * sizeof(T)); /* the padding columns stay zero */
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row);
        const ptrdiff_t groups = (ldz / FD_W + FD_STRIPS - 1) / FD_STRIPS;
        fd_ahead ahead = FD_T(rows_ahead)(x, row + rows, FD_MIN(row + rows + tall, last),
                                          (rows + FD_ROWS - 1) / FD_ROWS * groups * cols);
        fd_ahead none = {NULL, 0};
        FD_T(centre)(x, row, rows, 0, cols, split, a, lda);
        for (ptrdiff_t d = 0; d < cols; d += FD_DEPTH) {
            const ptrdiff_t deep = FD_MIN(FD_DEPTH, cols - d);
            FD_T(block_product)(a + d, lda, rows, deep, packed_p + d * ldz, k, d == 0, z, ldz,
                                &ahead);
        }
        _Alignas(64) double sums[FD_TALL * FD_D];
        ptrdiff_t strips;
        memset(sums, 0, rows * FD_D * sizeof(double));
        for (ptrdiff_t c = 0; c < cols; c += strips * FD_W) {
            strips = FD_TAKE((cols - c + FD_W - 1) / FD_W);
            for (ptrdiff_t d = 0; d < k; d += FD_DEPTH) {
                const ptrdiff_t deep = FD_MIN(FD_DEPTH, k - d);
                const T *b = packed_r + d * FD_UP(cols, FD_W) + c * deep;
                FD_T(group_tiles)(strips, z + d, ldz, rows, deep, b, d == 0, fit, FD_FIT_LD,
                                  &none);
            }
            for (ptrdiff_t i = 0; i < rows; i++) {
                double *sum = sums + i * FD_D;
                fd_store_wide(sum, FD_T(add_gap)(strips, a + i * lda + c, fit + i * FD_FIT_LD,
                                                 fd_load_wide(sum)));
            }
        }
        for (ptrdiff_t i = 0; i < rows; i++) {
            double total = 0;
            FD_UNROLL
            for (int j = 0; j < (int)FD_D; j++)
                total += sums[i * FD_D + j];
            out[row - first + i] = FD_T(vanished)(total, a + i * lda, cols) ? NAN : total;
        }
    }
}
