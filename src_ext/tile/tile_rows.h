/* Typed part 5: products with a narrow matrix, one pass over the rows. */

/* Rows of a block, and columns of x multiplied at a time: a block stays in L2, a panel of the
   narrow matrix (FD_DEPTH by FD_STRIPS vectors) in L1. */
#define FD_DEPTH 256
#define FD_TALL ((ptrdiff_t)64)
#define FD_LDA (FD_DEPTH + (ptrdiff_t)(64 / sizeof(T)))

/* Rows [first, last) of x in memory, if they lie in one piece: to be called ahead of their turn. */
FD_INLINE fd_ahead FD_T(rows_ahead)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                                    ptrdiff_t steps)
{
    const int solid = x->row_step == x->cols * x->col_step && x->row_step > 0 && last > first;
    return fd_spread(x->data + first * x->row_step, solid * (last - first) * x->row_step, steps);
}

/* Copy a block of x minus its shift; `to` has rows of `ld` elements. */
static void FD_T(centre)(const fd_matrix *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t col,
                         ptrdiff_t cols, const double *shift, T *restrict to, ptrdiff_t ld)
{
    const int in_place = FD_T(in_place)(x);
    if (!in_place || !shift)
        FD_T(fetch)(x, row, rows, col, cols, to, ld);
    if (!shift)
        return;
    const T *from = in_place ? (const T *)(x->data + row * x->row_step) + col : to;
    const ptrdiff_t step = in_place ? x->row_step / (ptrdiff_t)sizeof(T) : ld;
    for (ptrdiff_t start = 0; start < cols; start += FD_DEPTH) {
        const ptrdiff_t stop = FD_MIN(start + FD_DEPTH, cols);
        T high[FD_DEPTH], low[FD_DEPTH];
        for (ptrdiff_t j = start; j < stop; j++)
            FD_T(split)(shift[col + j], high + j - start, low + j - start);
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t j = start; j < stop; j++) {
                T value = from[i * step + j] - high[j - start];
                to[i * ld + j] = FD_NATIVE == FD_F4 ? value - low[j - start] : value;
            }
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
        vec left = FD_T(splat)(a[r * lda]);
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = FD_T(fma)(left, right[s], acc[r][s]);
    }
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
    for (; k + FD_CALLED <= depth; k += FD_CALLED) {
        fd_call(ahead, k);
        FD_UNROLL
        for (int u = 0; u < FD_CALLED; u++)
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
FD_INLINE void FD_T(group_product)(ptrdiff_t strips, const T *a, ptrdiff_t lda, ptrdiff_t rows,
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
        FD_T(group_product)(strips, a, lda, rows, depth, b, first, to + c, ld, ahead);
    }
}

/* Rows of a block whose results, q wide, stay in cache. */
FD_INLINE ptrdiff_t FD_T(product_rows)(ptrdiff_t q)
{
    ptrdiff_t rows = (ptrdiff_t)(1 << 17) / (ptrdiff_t)sizeof(T) / FD_UP(q, FD_W);
    return FD_MIN(FD_TALL, FD_MAX(FD_ROWS, rows / FD_ROWS * FD_ROWS));
}

static ptrdiff_t FD_T(rows_work)(ptrdiff_t depth, ptrdiff_t q)
{
    return 64 + sizeof(T) * (FD_T(packed_b)(depth, q) + FD_TALL * FD_LDA +
                             FD_T(product_rows)(q) * FD_UP(q, FD_W));
}

/* Put a row of results into place; add zero times each to `check`. */
FD_INLINE vec FD_T(deliver)(const T *from, ptrdiff_t q, const double *offset, T *restrict to,
                            vec check)
{
    if (offset)
        for (ptrdiff_t j = 0; j < q; j++)
            to[j] = (T)(from[j] + offset[j]);
    else
        memcpy(to, from, q * sizeof(T));
    for (ptrdiff_t j = 0; j < q; j += FD_W)
        check = FD_T(fma)(FD_T(load)(from + j), FD_T(splat)(0), check);
    return check;
}

static int FD_T(rows_product)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                              const double *shift, const void *b, ptrdiff_t q,
                              const double *offset, void *out_, void *work)
{
    const ptrdiff_t depth = x->cols, ldz = FD_UP(q, FD_W), tall = FD_T(product_rows)(q);
    T *out = out_, *packed = (T *)FD_UP((uintptr_t)work, 64);
    T *a = packed + FD_T(packed_b)(depth, q), *z = a + FD_TALL * FD_LDA;
    vec check = FD_T(splat)(0);

    FD_T(pack_b)(b, depth, q, packed);
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
                FD_T(centre)(x, row, rows, k, deep, shift, a, FD_LDA);
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

/* Rows of an error block: the whole centred rows stay in L2. */
FD_INLINE ptrdiff_t FD_T(error_rows)(ptrdiff_t cols)
{
    ptrdiff_t rows = (ptrdiff_t)(1 << 18) / (ptrdiff_t)sizeof(T) / FD_MAX(cols, 1);
    return FD_MIN(FD_TALL, FD_MAX(FD_ROWS, rows / FD_ROWS * FD_ROWS));
}

#define FD_ERROR_LD(cols) (FD_UP(cols, FD_W) + (ptrdiff_t)(64 / sizeof(T)))
#define FD_FIT_LD (FD_STRIPS * FD_W)

static ptrdiff_t FD_T(errors_work)(ptrdiff_t cols, ptrdiff_t k)
{
    const ptrdiff_t rows = FD_T(error_rows)(cols);
    return 64 + sizeof(T) * (FD_T(packed_b)(cols, k) + FD_T(packed_b)(k, cols) +
                             rows * (FD_ERROR_LD(cols) + FD_UP(k, FD_W) + FD_FIT_LD));
}

/* Σ (a - b)² over `strips` vectors, whose lanes are summed in float64. */
FD_INLINE double FD_T(gap)(ptrdiff_t strips, const T *a, const T *b)
{
    _Alignas(64) T lanes[FD_BYTES / sizeof(T)];
    vec sum = FD_T(splat)(0);
    for (ptrdiff_t s = 0; s < strips; s++) {
        vec gap = FD_T(sub)(FD_T(load_loose)(a + s * FD_W), FD_T(load)(b + s * FD_W));
        sum = FD_T(fma)(gap, gap, sum);
    }
    FD_T(store)(lanes, sum);
    double total = 0;
    FD_UNROLL
    for (int j = 0; j < (int)FD_W; j++)
        total += lanes[j];
    return total;
}

static void FD_T(row_errors)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                             const double *shift, const void *p, const void *r_, ptrdiff_t k,
                             double *out, void *work)
{
    const ptrdiff_t cols = x->cols, tall = FD_T(error_rows)(cols), lda = FD_ERROR_LD(cols);
    const ptrdiff_t ldz = FD_UP(k, FD_W);
    T *packed_p = (T *)FD_UP((uintptr_t)work, 64), *packed_r = packed_p + FD_T(packed_b)(cols, k);
    T *a = packed_r + FD_T(packed_b)(k, cols), *z = a + tall * lda, *fit = z + tall * ldz;

    FD_T(pack_b)(p, cols, k, packed_p);
    FD_T(pack_b)(r_, k, cols, packed_r);
    memset(a, 0, tall * lda * sizeof(T)); /* the padding columns stay zero */
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row);
        const ptrdiff_t groups = (ldz / FD_W + FD_STRIPS - 1) / FD_STRIPS;
        fd_ahead ahead = FD_T(rows_ahead)(x, row + rows, FD_MIN(row + rows + tall, last),
                                          (rows + FD_ROWS - 1) / FD_ROWS * groups * cols);
        fd_ahead none = {NULL, 0, 0};
        FD_T(centre)(x, row, rows, 0, cols, shift, a, lda);
        for (ptrdiff_t d = 0; d < cols; d += FD_DEPTH) {
            const ptrdiff_t deep = FD_MIN(FD_DEPTH, cols - d);
            FD_T(block_product)(a + d, lda, rows, deep, packed_p + d * ldz, k, d == 0, z, ldz,
                                &ahead);
        }
        for (ptrdiff_t i = 0; i < rows; i++)
            out[row - first + i] = 0;
        ptrdiff_t strips;
        for (ptrdiff_t c = 0; c < cols; c += strips * FD_W) {
            strips = FD_TAKE((cols - c + FD_W - 1) / FD_W);
            for (ptrdiff_t d = 0; d < k; d += FD_DEPTH) {
                const ptrdiff_t deep = FD_MIN(FD_DEPTH, k - d);
                const T *b = packed_r + d * FD_UP(cols, FD_W) + c * deep;
                FD_T(group_product)(strips, z + d, ldz, rows, deep, b, d == 0, fit, FD_FIT_LD,
                                    &none);
            }
            for (ptrdiff_t i = 0; i < rows; i++)
                out[row - first + i] += FD_T(gap)(strips, a + i * lda + c, fit + i * FD_FIT_LD);
        }
    }
}

#define FD_VECS (64 / FD_BYTES)
#define FD_GW ((ptrdiff_t)(64 / sizeof(T)))
#define FD_GRAM_LD(cols) (FD_UP(cols, FD_GW) + FD_GW)

/* Rows of a gram block: they stay in L2, with the next ones that are called, between two passes, in
   which pieces of V and Y go through L1 once for all of them. */
FD_INLINE ptrdiff_t FD_T(gram_rows)(ptrdiff_t cols)
{
    ptrdiff_t rows = (ptrdiff_t)(1 << 18) / (ptrdiff_t)sizeof(T) / FD_MAX(cols, 1);
    return FD_MIN(8 * FD_GROUP, FD_MAX(FD_GROUP, rows / FD_GROUP * FD_GROUP));
}

static ptrdiff_t FD_T(gram_work)(ptrdiff_t cols)
{
    return 64 + sizeof(T) * FD_T(gram_rows)(cols) * (FD_GRAM_LD(cols) + FD_GW);
}

/* The rows of a group, three from one pointer: once or twice `step` bytes away the load itself
   adds, so that twelve rows need no more registers than there are. */
#define FD_REACH 3
typedef struct {
    const char *at[(FD_GROUP + FD_REACH - 1) / FD_REACH];
    ptrdiff_t step;
} FD_T(fd_group);

FD_INLINE FD_T(fd_group) FD_T(group)(const T *a, ptrdiff_t lda)
{
    FD_T(fd_group) rows = {.step = lda * (ptrdiff_t)sizeof(T)};
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r += FD_REACH)
        rows.at[r / FD_REACH] = (const char *)(a + r * lda);
    return rows;
}

FD_INLINE vec FD_T(reach)(const FD_T(fd_group) *rows, int r, int j)
{
    return FD_T(splat)(((const T *)(rows->at[r / FD_REACH] + r % FD_REACH * rows->step))[j]);
}

FD_INLINE void FD_T(go_on)(FD_T(fd_group) *rows, int cols)
{
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r += FD_REACH) {
        rows->at[r / FD_REACH] += cols * sizeof(T);
        FD_OPAQUE(rows->at[r / FD_REACH]);
    }
}

FD_INLINE void FD_T(load_group)(const T *from, vec t[FD_GROUP][FD_VECS])
{
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r++)
        FD_UNROLL
        for (int s = 0; s < FD_VECS; s++)
            t[r][s] = FD_T(load)(from + r * FD_GW + s * FD_W);
}

/* t += a v for `count` columns. */
FD_INLINE void FD_T(forward_columns)(const int count, FD_T(fd_group) *rows, const T *restrict v,
                                     vec t[FD_GROUP][FD_VECS])
{
    FD_UNROLL
    for (int j = 0; j < count; j++) {
        vec vj[FD_VECS];
        FD_UNROLL
        for (int s = 0; s < FD_VECS; s++)
            vj[s] = FD_T(load_loose)(v + j * FD_GW + s * FD_W);
        FD_UNROLL
        for (int r = 0; r < FD_GROUP; r++) {
            vec left = FD_T(reach)(rows, r, j);
            FD_UNROLL
            for (int s = 0; s < FD_VECS; s++)
                t[r][s] = FD_T(fma)(left, vj[s], t[r][s]);
        }
    }
    FD_T(go_on)(rows, count);
}

/* y += a' t for `count` columns. */
FD_INLINE void FD_T(backward_columns)(const int count, FD_T(fd_group) *rows,
                                      vec t[FD_GROUP][FD_VECS], T *restrict y)
{
    FD_UNROLL
    for (int j = 0; j < count; j++) {
        vec yj[FD_VECS];
        FD_UNROLL
        for (int s = 0; s < FD_VECS; s++)
            yj[s] = FD_T(load_loose)(y + j * FD_GW + s * FD_W);
        FD_UNROLL
        for (int r = 0; r < FD_GROUP; r++) {
            vec left = FD_T(reach)(rows, r, j);
            FD_UNROLL
            for (int s = 0; s < FD_VECS; s++)
                yj[s] = FD_T(fma)(left, t[r][s], yj[s]);
        }
        FD_UNROLL
        for (int s = 0; s < FD_VECS; s++)
            FD_T(store_loose)(y + j * FD_GW + s * FD_W, yj[s]);
    }
    FD_T(go_on)(rows, count);
}

/* t (FD_GROUP, 64 bytes) += a (FD_GROUP, cols) v (cols, 64 bytes) */
FD_INLINE void FD_T(gram_forward)(const T *restrict a, ptrdiff_t lda, ptrdiff_t cols,
                                  const T *restrict v, T *restrict t_,
                                  const fd_ahead *ahead)
{
    FD_T(fd_group) rows = FD_T(group)(a, lda);
    vec t[FD_GROUP][FD_VECS];
    ptrdiff_t j = 0;
    FD_T(load_group)(t_, t);
    for (; j + FD_CALLED <= cols; j += FD_CALLED, v += FD_CALLED * FD_GW) {
        fd_call(ahead, j);
        FD_T(forward_columns)(FD_CALLED, &rows, v, t);
    }
    for (; j < cols; j++, v += FD_GW)
        FD_T(forward_columns)(1, &rows, v, t);
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r++)
        FD_UNROLL
        for (int s = 0; s < FD_VECS; s++)
            FD_T(store)(t_ + r * FD_GW + s * FD_W, t[r][s]);
}

/* y (cols, 64 bytes) += a' t */
FD_INLINE void FD_T(gram_backward)(const T *restrict a, ptrdiff_t lda, ptrdiff_t cols,
                                   const T *restrict t_, T *restrict y,
                                   const fd_ahead *ahead)
{
    FD_T(fd_group) rows = FD_T(group)(a, lda);
    vec t[FD_GROUP][FD_VECS];
    ptrdiff_t j = 0;
    FD_T(load_group)(t_, t);
    for (; j + FD_CALLED <= cols; j += FD_CALLED, y += FD_CALLED * FD_GW) {
        fd_call(ahead, j);
        FD_T(backward_columns)(FD_CALLED, &rows, t, y);
    }
    for (; j < cols; j++, y += FD_GW)
        FD_T(backward_columns)(1, &rows, t, y);
}

/* y += A'(A v) for a block of `rows` rows in memory, padded to whole groups, and one strip. What the
   shift makes of v, `offset`, comes off the products, whose sums are added to `sums`, unless NULL. */
static void FD_T(gram_block)(const T *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t cols,
                             const T *v, T *y, T *t, const double *offset, double *sums,
                             fd_ahead *ahead)
{
    const ptrdiff_t padded = FD_UP(rows, FD_GROUP);
    memset(t, 0, padded * FD_GW * sizeof(T));
    for (int back = 0; back < 2; back++) {
        for (ptrdiff_t j = 0; j < cols; j += FD_DEPTH)
            for (ptrdiff_t r = 0; r < padded; r += FD_GROUP) {
                const ptrdiff_t here = FD_MIN(FD_DEPTH, cols - j);
                const T *from = a + r * lda + j;
                if (back)
                    FD_T(gram_backward)(from, lda, here, t + r * FD_GW, y + j * FD_GW, ahead);
                else
                    FD_T(gram_forward)(from, lda, here, v + j * FD_GW, t + r * FD_GW, ahead);
                fd_advance(ahead, here);
            }
        for (ptrdiff_t i = 0; offset && !back && i < rows * FD_GW; i += FD_GW)
            for (ptrdiff_t c = 0; c < FD_GW; c++) {
                t[i + c] -= (T)offset[c];
                sums[c] += t[i + c];
            }
    }
}

static void FD_T(gram_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                             const double *shift, const double *offset, const void *v_, void *y_,
                             ptrdiff_t strips, double *sums, void *work)
{
    const ptrdiff_t cols = x->cols, ld = FD_GRAM_LD(cols), tall = FD_T(gram_rows)(cols);
    const T *v = v_;
    T *y = y_, *copy = (T *)FD_UP((uintptr_t)work, 64), *t = copy + tall * ld;
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row), padded = FD_UP(rows, FD_GROUP);
        fd_ahead ahead = FD_T(rows_ahead)(x, row + rows, FD_MIN(row + rows + tall, last),
                                          2 * strips * padded / FD_GROUP * cols);
        const T *a = (const T *)(x->data + row * x->row_step);
        ptrdiff_t lda = x->row_step / (ptrdiff_t)sizeof(T);
        if ((shift && !offset) || rows < padded || !FD_T(in_place)(x)) {
            FD_T(centre)(x, row, rows, 0, cols, offset ? NULL : shift, copy, ld);
            memset(copy + rows * ld, 0, (padded - rows) * ld * sizeof(T));
            a = copy;
            lda = ld;
        }
        for (ptrdiff_t s = 0; s < strips; s++)
            FD_T(gram_block)(a, lda, rows, cols, v + s * cols * FD_GW, y + s * cols * FD_GW, t,
                             offset ? offset + s * FD_GW : NULL, sums + s * FD_GW, &ahead);
    }
}

static void FD_T(gram_offset)(const double *shift, ptrdiff_t cols, const void *v_,
                              ptrdiff_t strips, double *offset)
{
    const T *v = v_;
    for (ptrdiff_t s = 0; s < strips; s++, offset += FD_GW)
        for (ptrdiff_t j = 0; j < cols; j++, v += FD_GW)
            for (ptrdiff_t c = 0; c < FD_GW; c++)
                offset[c] += shift[j] * v[c];
}

/* Row by row, since y has strips below each other where `out` has them side by side. */
static void FD_T(gram_add)(const void *y_, ptrdiff_t cols, ptrdiff_t q, const double *shift,
                           const double *sums, int first, char *out, ptrdiff_t row_step)
{
    const T *y = y_;
    for (ptrdiff_t left = 0; left < q; left += FD_GW)
        for (ptrdiff_t j = 0; j < cols; j++, y += FD_GW) {
            const ptrdiff_t here = FD_MIN(FD_GW, q - left);
            T *to = (T *)(out + j * row_step) + left, sum[64 / sizeof(T)];
            for (ptrdiff_t c = 0; c < FD_GW; c++)
                sum[c] = shift ? y[c] - (T)(shift[j] * sums[left + c]) : y[c];
            for (ptrdiff_t c = 0; c < here; c++)
                to[c] = first ? sum[c] : to[c] + sum[c];
        }
}

/* Rows of a block of a symmetric matrix: FD_DEPTH columns of them stay in L2. */
#define FD_BAND ((ptrdiff_t)(8 * FD_GROUP))

static ptrdiff_t FD_T(symmetric_work)(void)
{
    return 64 + sizeof(T) * FD_BAND * (FD_LDA + 2 * FD_GW);
}

/* Each block right of the diagonal serves twice: its rows for theirs, and transposed. */
static void FD_T(symmetric_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                                  const void *v_, void *y_, void *work)
{
    const T *v = v_;
    T *y = y_, *copy = (T *)FD_UP((uintptr_t)work, 64), *t = copy + FD_BAND * FD_LDA;
    T *mine = t + FD_BAND * FD_GW;
    const fd_ahead none = {NULL, 0, 0};
    for (ptrdiff_t row = first; row < last; row += FD_BAND) {
        const ptrdiff_t rows = FD_MIN(FD_BAND, last - row), padded = FD_UP(rows, FD_GROUP);
        const int direct = rows == padded && FD_T(in_place)(x);
        memset(t, 0, 2 * FD_BAND * FD_GW * sizeof(T));
        memcpy(mine, v + row * FD_GW, rows * FD_GW * sizeof(T));
        for (ptrdiff_t j = row; j < x->cols; j += FD_DEPTH) {
            const ptrdiff_t here = FD_MIN(FD_DEPTH, x->cols - j), skip = j == row ? rows : 0;
            const T *a = (const T *)(x->data + row * x->row_step) + j;
            ptrdiff_t lda = x->row_step / (ptrdiff_t)sizeof(T);
            if (!direct) {
                FD_T(fetch)(x, row, rows, j, here, copy, FD_LDA);
                memset(copy + rows * FD_LDA, 0, (padded - rows) * FD_LDA * sizeof(T));
                a = copy;
                lda = FD_LDA;
            }
            for (ptrdiff_t r = 0; r < padded; r += FD_GROUP) {
                FD_T(gram_forward)(a + r * lda, lda, here, v + j * FD_GW, t + r * FD_GW, &none);
                FD_T(gram_backward)(a + r * lda + skip, lda, here - skip, mine + r * FD_GW,
                                    y + (j + skip) * FD_GW, &none);
            }
        }
        for (ptrdiff_t i = 0; i < rows * FD_GW; i++)
            y[row * FD_GW + i] += t[i];
    }
}

#undef FD_BAND
#undef FD_DEPTH
#undef FD_TALL
#undef FD_FIT_LD
#undef FD_LDA
#undef FD_ERROR_LD
#undef FD_REACH
#undef FD_VECS
#undef FD_GW
#undef FD_GRAM_LD
