/* Typed part 3: products with a narrow matrix, one pass over the rows. */

/* Rows of a block, and columns of x multiplied at a time: a block stays in L2, a panel of the
   narrow matrix (FD_DEPTH by FD_STRIPS vectors) in L1. */
#define FD_DEPTH ((ptrdiff_t)256)
#define FD_TALL ((ptrdiff_t)64)
#define FD_LDA (FD_DEPTH + (ptrdiff_t)(64 / sizeof(T)))

/* Vectors of the next group when `left` remain: never one alone after a full group, which would
   leave the multipliers waiting. */
#define FD_TAKE(left) ((left) == FD_STRIPS + 1 ? (FD_STRIPS + 1) / 2 : FD_MIN(FD_STRIPS, left))

/* Where rows to come lie in memory: they are called while the multipliers work. */
typedef struct {
    const char *row;
    ptrdiff_t rows, step, bytes;
} FD_T(fd_ahead);

FD_INLINE void FD_T(call)(FD_T(fd_ahead) *ahead, ptrdiff_t rows)
{
    for (; rows > 0 && ahead->rows > 0; rows--, ahead->rows--, ahead->row += ahead->step)
        for (ptrdiff_t byte = 0; byte < ahead->bytes; byte += 64)
            FD_PREFETCH(ahead->row + byte);
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
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t j = 0; j < cols; j++)
            to[i * ld + j] = (T)((double)from[i * step + j] - shift[col + j]);
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

/* to[r][s] = [to[r][s] +] Σ_k a[r][k] b[k][s] for FD_ROWS rows and `strips` vectors. */
FD_INLINE void FD_T(rows_tile)(const int strips, const T *restrict a, ptrdiff_t lda,
                               const T *restrict b, ptrdiff_t depth, int first, T *to,
                               ptrdiff_t ld)
{
    vec acc[FD_ROWS][FD_STRIPS];
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = first ? FD_T(splat)(0) : FD_T(load)(to + r * ld + s * FD_W);
    for (ptrdiff_t k = 0; k < depth; k++) {
        vec right[FD_STRIPS];
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            right[s] = FD_T(load)(b + (k * strips + s) * FD_W);
        FD_UNROLL
        for (int r = 0; r < FD_ROWS; r++) {
            vec left = FD_T(splat)(a[r * lda + k]);
            FD_UNROLL
            for (int s = 0; s < strips; s++)
                acc[r][s] = FD_T(fma)(left, right[s], acc[r][s]);
        }
    }
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            FD_T(store)(to + r * ld + s * FD_W, acc[r][s]);
}

/* One group: to (rows, strips vectors) = [to +] a (rows, depth) b; rows padded to FD_ROWS. */
FD_INLINE void FD_T(group_product)(ptrdiff_t strips, const T *a, ptrdiff_t lda, ptrdiff_t rows,
                                   ptrdiff_t depth, const T *b, int first, T *to, ptrdiff_t ld,
                                   FD_T(fd_ahead) *ahead, ptrdiff_t called)
{
    for (ptrdiff_t r = 0; r < rows; r += FD_ROWS, a += FD_ROWS * lda, to += FD_ROWS * ld) {
        if (strips == FD_STRIPS)
            FD_T(rows_tile)(FD_STRIPS, a, lda, b, depth, first, to, ld);
#if FD_STRIPS > 1
        else if (strips == 2)
            FD_T(rows_tile)(2, a, lda, b, depth, first, to, ld);
        else
            FD_T(rows_tile)(1, a, lda, b, depth, first, to, ld);
#endif
        FD_T(call)(ahead, called);
    }
}

/* to (rows, q padded to whole vectors) = [to +] a (rows, depth) B, B packed by `pack_b`. */
static void FD_T(block_product)(const T *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t depth,
                                const T *b, ptrdiff_t q, int first, T *to, ptrdiff_t ld,
                                FD_T(fd_ahead) ahead)
{
    const ptrdiff_t groups = (q + FD_STRIPS * FD_W - 1) / (FD_STRIPS * FD_W);
    const ptrdiff_t called = (ahead.rows * FD_ROWS + rows * groups - 1) / (rows * groups);
    ptrdiff_t strips;
    for (ptrdiff_t c = 0; c < q; c += strips * FD_W, b += depth * strips * FD_W) {
        strips = FD_TAKE((q - c + FD_W - 1) / FD_W);
        FD_T(group_product)(strips, a, lda, rows, depth, b, first, to + c, ld, &ahead, called);
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
    const ptrdiff_t item = x->col_step > 0 && x->col_step <= 8 ? x->col_step : 0;
    T *out = out_, *packed = (T *)FD_UP((uintptr_t)work, 64);
    T *a = packed + FD_T(packed_b)(depth, q), *z = a + FD_TALL * FD_LDA;
    vec check = FD_T(splat)(0);

    FD_T(pack_b)(b, depth, q, packed);
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row), padded = FD_UP(rows, FD_ROWS);
        /* Rows that need no change are multiplied where they lie. */
        const int direct = !shift && rows == padded && FD_T(in_place)(x);
        for (ptrdiff_t k = 0; k < depth; k += FD_DEPTH) {
            const ptrdiff_t deep = FD_MIN(FD_DEPTH, depth - k);
            const int wrap = k + deep == depth;
            const ptrdiff_t next_row = wrap ? row + rows : row, next_col = wrap ? 0 : k + deep;
            FD_T(fd_ahead) ahead = {
                x->data + next_row * x->row_step + next_col * item,
                item ? FD_MIN(tall, last - next_row) : 0, x->row_step,
                FD_MIN(FD_DEPTH, depth - next_col) * item};
            const T *from = (const T *)(x->data + row * x->row_step) + k;
            ptrdiff_t lda = x->row_step / (ptrdiff_t)sizeof(T);
            if (!direct) {
                FD_T(centre)(x, row, rows, k, deep, shift, a, FD_LDA);
                for (ptrdiff_t r = rows; r < padded; r++)
                    memset(a + r * FD_LDA, 0, deep * sizeof(T));
                from = a;
                lda = FD_LDA;
            }
            FD_T(block_product)(from, lda, rows, deep, packed + k * ldz, q, k == 0, z, ldz, ahead);
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
    FD_T(fd_ahead) none = {NULL, 0, 0, 0};

    FD_T(pack_b)(p, cols, k, packed_p);
    FD_T(pack_b)(r_, k, cols, packed_r);
    memset(a, 0, tall * lda * sizeof(T)); /* the padding columns stay zero */
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row);
        FD_T(centre)(x, row, rows, 0, cols, shift, a, lda);
        for (ptrdiff_t d = 0; d < cols; d += FD_DEPTH) {
            const ptrdiff_t deep = FD_MIN(FD_DEPTH, cols - d);
            FD_T(block_product)(a + d, lda, rows, deep, packed_p + d * ldz, k, d == 0, z, ldz,
                                none);
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
                                    &none, 0);
            }
            for (ptrdiff_t i = 0; i < rows; i++)
                out[row - first + i] += FD_T(gap)(strips, a + i * lda + c, fit + i * FD_FIT_LD);
        }
    }
}

#define FD_VECS (64 / FD_BYTES)
#define FD_GW ((ptrdiff_t)(64 / sizeof(T)))

static ptrdiff_t FD_T(gram_work)(ptrdiff_t cols)
{
    return 64 + sizeof(T) * FD_GROUP * FD_UP(cols + 8, 16);
}

static void FD_T(gram_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                             const double *shift, const void *v_, void *y_, void *work)
{
    const T *v = v_;
    T *y = y_, *a = (T *)FD_UP((uintptr_t)work, 64);
    const ptrdiff_t cols = x->cols, lda = FD_UP(cols + 8, 16);
    for (ptrdiff_t row = first; row < last; row += FD_GROUP) {
        const ptrdiff_t rows = FD_MIN(FD_GROUP, last - row);
        vec t[FD_GROUP][FD_VECS];
        if (rows < FD_GROUP)
            memset(a, 0, FD_GROUP * lda * sizeof(T));
        FD_T(centre)(x, row, rows, 0, cols, shift, a, lda);
        FD_UNROLL
        for (int r = 0; r < FD_GROUP; r++)
            FD_UNROLL
            for (int s = 0; s < FD_VECS; s++)
                t[r][s] = FD_T(splat)(0);
        for (ptrdiff_t j = 0; j < cols; j++) {
            vec vj[FD_VECS];
            FD_UNROLL
            for (int s = 0; s < FD_VECS; s++)
                vj[s] = FD_T(load_loose)(v + j * FD_GW + s * FD_W);
            FD_UNROLL
            for (int r = 0; r < FD_GROUP; r++) {
                vec left = FD_T(splat)(a[r * lda + j]);
                FD_UNROLL
                for (int s = 0; s < FD_VECS; s++)
                    t[r][s] = FD_T(fma)(left, vj[s], t[r][s]);
            }
        }
        for (ptrdiff_t j = 0; j < cols; j++) {
            vec yj[FD_VECS];
            FD_UNROLL
            for (int s = 0; s < FD_VECS; s++)
                yj[s] = FD_T(load_loose)(y + j * FD_GW + s * FD_W);
            FD_UNROLL
            for (int r = 0; r < FD_GROUP; r++) {
                vec left = FD_T(splat)(a[r * lda + j]);
                FD_UNROLL
                for (int s = 0; s < FD_VECS; s++)
                    yj[s] = FD_T(fma)(left, t[r][s], yj[s]);
            }
            FD_UNROLL
            for (int s = 0; s < FD_VECS; s++)
                FD_T(store_loose)(y + j * FD_GW + s * FD_W, yj[s]);
        }
    }
}

#undef FD_DEPTH
#undef FD_TALL
#undef FD_TAKE
#undef FD_FIT_LD
#undef FD_LDA
#undef FD_ERROR_LD
#undef FD_VECS
#undef FD_GW
#undef FD_KEEP
#undef FD_STEP
#undef vec
#undef vec_loose
