/* Typed part 3: products with a narrow matrix, one pass over the rows. */

/* Rows of a block, and columns of x multiplied at a time: a block stays in L2, a panel of the
   narrow matrix (FD_DEPTH by FD_STRIPS vectors) in L1. */
#define FD_DEPTH ((ptrdiff_t)256)
#define FD_TALL ((ptrdiff_t)64)
#define FD_GROUP_W (FD_STRIPS * FD_W)

/* Copy a block of x minus its shift; `to` has rows of `ld` elements. */
static void FD_T(centre)(const fd_matrix *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t col,
                         ptrdiff_t cols, const double *shift, T *restrict to, ptrdiff_t ld)
{
    FD_T(fetch)(x, row, rows, col, cols, to, ld);
    if (shift)
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t j = 0; j < cols; j++)
                to[i * ld + j] = (T)((double)to[i * ld + j] - shift[col + j]);
}

/* Repack B (depth, q) into panels of FD_GROUP_W columns, cut at every FD_DEPTH rows. */
static void FD_T(pack_b)(const T *b, ptrdiff_t depth, ptrdiff_t q, T *to)
{
    for (ptrdiff_t k0 = 0; k0 < depth; k0 += FD_DEPTH)
        for (ptrdiff_t c = 0; c < q; c += FD_GROUP_W)
            for (ptrdiff_t k = k0; k < FD_MIN(k0 + FD_DEPTH, depth); k++)
                for (ptrdiff_t j = 0; j < FD_GROUP_W; j++)
                    *to++ = c + j < q ? b[k * q + c + j] : 0;
}

/* acc[r][s] += Σ_k a[r][k] b[k][s] for FD_ROWS rows and `strips` vectors of columns. */
FD_INLINE void FD_T(product)(const int strips, const T *restrict a, ptrdiff_t lda,
                             const T *restrict b, ptrdiff_t depth, vec acc[FD_ROWS][FD_STRIPS])
{
    for (ptrdiff_t k = 0; k < depth; k++) {
        vec right[FD_STRIPS];
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            right[s] = FD_T(load)(b + k * FD_GROUP_W + s * FD_W);
        FD_UNROLL
        for (int r = 0; r < FD_ROWS; r++) {
            vec left = FD_T(splat)(a[r * lda + k]);
            FD_UNROLL
            for (int s = 0; s < strips; s++)
                acc[r][s] = FD_T(fma)(left, right[s], acc[r][s]);
        }
    }
}

/* Product of FD_ROWS rows, added to (or, first, put into) `to`. */
FD_INLINE void FD_T(rows_tile)(const int strips, const T *a, ptrdiff_t lda, const T *b,
                               ptrdiff_t depth, int first, T *to, ptrdiff_t ld)
{
    vec acc[FD_ROWS][FD_STRIPS];
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = first ? FD_T(splat)(0) : FD_T(load)(to + r * ld + s * FD_W);
    FD_T(product)(strips, a, lda, b, depth, acc);
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            FD_T(store)(to + r * ld + s * FD_W, acc[r][s]);
}

/* to (rows padded to FD_ROWS, q padded to whole groups) = [to +] a (rows, depth) B, with B
   packed from depth k0 on. */
FD_INLINE void FD_T(block_product)(const T *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t depth,
                                   const T *b, ptrdiff_t q, int first, T *to, ptrdiff_t ld)
{
    for (ptrdiff_t c = 0; c < q; c += FD_GROUP_W, b += depth * FD_GROUP_W)
        for (ptrdiff_t r = 0; r < rows; r += FD_ROWS) {
            const ptrdiff_t strips = FD_MIN(FD_STRIPS, (q - c + FD_W - 1) / FD_W);
            const T *from = a + r * lda;
            T *cell = to + r * ld + c;
            if (strips == FD_STRIPS)
                FD_T(rows_tile)(FD_STRIPS, from, lda, b, depth, first, cell, ld);
#if FD_STRIPS > 1
            else if (strips == 2)
                FD_T(rows_tile)(2, from, lda, b, depth, first, cell, ld);
            else
                FD_T(rows_tile)(1, from, lda, b, depth, first, cell, ld);
#endif
        }
}

static ptrdiff_t FD_T(packed_b)(ptrdiff_t depth, ptrdiff_t q)
{
    return FD_UP(depth * FD_UP(q, FD_GROUP_W), 16);
}

#define FD_LDA (FD_DEPTH + (ptrdiff_t)(64 / sizeof(T)))

static ptrdiff_t FD_T(rows_work)(ptrdiff_t depth, ptrdiff_t q)
{
    return 64 + sizeof(T) * (FD_T(packed_b)(depth, q) + FD_TALL * FD_LDA +
                             FD_TALL * FD_UP(q, FD_GROUP_W));
}

static int FD_T(rows_product)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                              const double *shift, const void *b, ptrdiff_t q,
                              const double *offset, void *out_, void *work)
{
    const ptrdiff_t depth = x->cols, ldz = FD_UP(q, FD_GROUP_W);
    T *out = out_, *packed = (T *)FD_UP((uintptr_t)work, 64);
    T *a = packed + FD_T(packed_b)(depth, q), *z = a + FD_TALL * FD_LDA;
    T check = 0;

    FD_T(pack_b)(b, depth, q, packed);
    for (ptrdiff_t row = first; row < last; row += FD_TALL) {
        const ptrdiff_t rows = FD_MIN(FD_TALL, last - row);
        for (ptrdiff_t k = 0; k < depth; k += FD_DEPTH) {
            const ptrdiff_t deep = FD_MIN(FD_DEPTH, depth - k);
            FD_T(centre)(x, row, rows, k, deep, shift, a, FD_LDA);
            for (ptrdiff_t r = rows; r < FD_UP(rows, FD_ROWS); r++)
                memset(a + r * FD_LDA, 0, deep * sizeof(T));
            FD_T(block_product)(a, FD_LDA, rows, deep, packed + k * ldz, q, k == 0, z, ldz);
        }
        for (ptrdiff_t r = 0; r < rows; r++) {
            T *to = out + (row + r) * q;
            const T *from = z + r * ldz;
            if (offset)
                for (ptrdiff_t j = 0; j < q; j++)
                    to[j] = (T)(from[j] + offset[j]);
            else
                memcpy(to, from, q * sizeof(T));
            T bad = 0;
            for (ptrdiff_t j = 0; j < q; j++)
                bad += from[j] * 0;
            check += bad;
        }
    }
    return check == 0;
}

/* Rows of an error block: the whole centred rows stay in L2. */
FD_INLINE ptrdiff_t FD_T(error_rows)(ptrdiff_t cols)
{
    ptrdiff_t rows = (ptrdiff_t)(1 << 18) / (ptrdiff_t)sizeof(T) / FD_MAX(cols, 1);
    return FD_MIN(FD_TALL, FD_MAX(FD_ROWS, rows / FD_ROWS * FD_ROWS));
}

#define FD_ERROR_LD(cols) FD_UP(FD_UP(cols, FD_GROUP_W), 16)

static ptrdiff_t FD_T(errors_work)(ptrdiff_t cols, ptrdiff_t k)
{
    const ptrdiff_t rows = FD_T(error_rows)(cols);
    return 64 + sizeof(T) * (FD_T(packed_b)(cols, k) + FD_T(packed_b)(k, cols) +
                             rows * (FD_ERROR_LD(cols) + FD_UP(k, FD_GROUP_W) + FD_GROUP_W));
}

/* Σ (a - b)² over one group of columns. */
FD_INLINE double FD_T(gap)(const T *a, const T *b)
{
    _Alignas(64) T lanes[FD_BYTES / sizeof(T)];
    vec sum = FD_T(splat)(0);
    FD_UNROLL
    for (int s = 0; s < FD_STRIPS; s++) {
        vec gap = FD_T(sub)(FD_T(load_loose)(a + s * FD_W), FD_T(load)(b + s * FD_W));
        sum = FD_T(fma)(gap, gap, sum);
    }
    FD_T(store)(lanes, sum);
    double total = 0;
    for (int j = 0; j < (int)FD_W; j++)
        total += lanes[j];
    return total;
}

static void FD_T(row_errors)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                             const double *shift, const void *p, const void *r_, ptrdiff_t k,
                             double *out, void *work)
{
    const ptrdiff_t cols = x->cols, tall = FD_T(error_rows)(cols), lda = FD_ERROR_LD(cols);
    const ptrdiff_t ldz = FD_UP(k, FD_GROUP_W);
    T *packed_p = (T *)FD_UP((uintptr_t)work, 64), *packed_r = packed_p + FD_T(packed_b)(cols, k);
    T *a = packed_r + FD_T(packed_b)(k, cols), *z = a + tall * lda, *fit = z + tall * ldz;

    FD_T(pack_b)(p, cols, k, packed_p);
    FD_T(pack_b)(r_, k, cols, packed_r);
    memset(a, 0, tall * lda * sizeof(T)); /* the padding columns stay zero */
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row);
        FD_T(centre)(x, row, rows, 0, cols, shift, a, lda);
        for (ptrdiff_t d = 0; d < cols; d += FD_DEPTH)
            FD_T(block_product)(a + d, lda, rows, FD_MIN(FD_DEPTH, cols - d), packed_p + d * ldz,
                                k, d == 0, z, ldz);
        for (ptrdiff_t i = 0; i < rows; i++)
            out[row - first + i] = 0;
        for (ptrdiff_t c = 0; c < cols; c += FD_GROUP_W) {
            for (ptrdiff_t d = 0; d < k; d += FD_DEPTH) {
                const ptrdiff_t deep = FD_MIN(FD_DEPTH, k - d);
                const T *b = packed_r + d * FD_UP(cols, FD_GROUP_W) + c * deep;
                FD_T(block_product)(z + d, ldz, rows, deep, b, FD_GROUP_W, d == 0, fit,
                                    FD_GROUP_W);
            }
            for (ptrdiff_t i = 0; i < rows; i++)
                out[row - first + i] += FD_T(gap)(a + i * lda + c, fit + i * FD_GROUP_W);
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
#undef FD_GROUP_W
#undef FD_LDA
#undef FD_ERROR_LD
#undef FD_VECS
#undef FD_GW
#undef FD_KEEP
#undef FD_STEP
#undef vec
#undef vec_loose
