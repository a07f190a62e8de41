/* Typed part 6: A'(A V) and C V for narrow V and symmetric C, in registers on both sides. */

/* V and Y lie in strips of 64 bytes a row. FD_ABREAST columns of A are taken at a time, so that
   each load from A serves two vectors: as many rows of a strip lie element by element next to each
   other, the last ones with zeros. */
#define FD_ABREAST (FD_BYTES / 32)
#define FD_GW ((ptrdiff_t)(64 / sizeof(T)))
#define FD_TW (2 * FD_W) /* of a row of T = A V: FD_ABREAST sums of each element */
#define FD_STRIP(cols) (FD_UP(cols, 2) * FD_GW)
#define FD_GRAM_LD(cols) (FD_UP(cols, FD_GW) + FD_GW)

/* Where element (j, c) of a strip lies. */
FD_INLINE ptrdiff_t FD_T(place)(ptrdiff_t j, ptrdiff_t c)
{
    return (j - j % FD_ABREAST) * FD_GW + c * FD_ABREAST + j % FD_ABREAST;
}

static void FD_T(gram_stack)(const fd_matrix *v, void *to_)
{
    T *to = to_;
    for (ptrdiff_t left = 0; left < v->cols; left += FD_GW, to += FD_STRIP(v->rows)) {
        const ptrdiff_t here = FD_MIN(FD_GW, v->cols - left);
        memset(to, 0, FD_STRIP(v->rows) * sizeof(T));
        for (ptrdiff_t j = 0; j < v->rows; j++)
            for (ptrdiff_t c = 0; c < here; c++)
                to[FD_T(place)(j, c)] = ((const T *)(v->data + j * v->row_step))[left + c];
    }
}

static void FD_T(gram_offset)(const double *shift, ptrdiff_t cols, const void *v_,
                              ptrdiff_t strips, double *offset)
{
    const T *v = v_;
    for (ptrdiff_t s = 0; s < strips; s++, offset += FD_GW, v += FD_STRIP(cols))
        for (ptrdiff_t j = 0; j < cols; j++)
            for (ptrdiff_t c = 0; c < FD_GW; c++)
                offset[c] += shift[j] * v[FD_T(place)(j, c)];
}

/* Add `count` elements less shift sums to a row of out; the first time put them there. */
FD_INLINE void FD_T(add_row)(ptrdiff_t count, const T *restrict from, double shift,
                             const double *restrict sums, int first, T *restrict to)
{
    for (ptrdiff_t c = 0; c < count; c++)
        to[c] = (first ? 0 : to[c]) + (from[c] - (T)(shift * sums[c]));
}

/* Row by row, since y has strips below each other where `out` has them side by side. */
static void FD_T(gram_add)(const void *y_, ptrdiff_t cols, ptrdiff_t q, const double *shift,
                           const double *sums, int first, char *out, ptrdiff_t row_step)
{
    static const double none[64 / sizeof(T)];
    const T *y = y_;
    for (ptrdiff_t left = 0; left < q; left += FD_GW, y += FD_STRIP(cols))
        for (ptrdiff_t j = 0; j < cols; j++) {
            const ptrdiff_t here = FD_MIN(FD_GW, q - left);
            const double *taken = shift ? sums + left : none;
            T row[64 / sizeof(T)], *to = (T *)(out + j * row_step) + left;
            for (ptrdiff_t c = 0; c < FD_GW; c++)
                row[c] = y[FD_T(place)(j, c)];
            if (here == FD_GW)
                FD_T(add_row)(FD_GW, row, shift ? shift[j] : 0, taken, first, to);
            else
                FD_T(add_row)(here, row, shift ? shift[j] : 0, taken, first, to);
        }
}

/* Put the sum of what lies abreast for row i of T, less what the shift makes of v, in its place. */
FD_INLINE void FD_T(fold)(T *row, const double *offset, double *sums)
{
    for (ptrdiff_t c = 0; c < FD_GW; c++) {
        T *at = row + c * FD_ABREAST, sum = at[0];
        for (int q = 1; q < FD_ABREAST; q++)
            sum += at[q];
        if (offset) {
            sum -= (T)offset[c];
            sums[c] += sum;
        }
        for (int q = 0; q < FD_ABREAST; q++)
            at[q] = sum;
    }
}

/* Rows of a gram block: they stay in L2, with the next ones that are called, between two passes, in
   which pieces of V and Y go through L1 once for all of them. */
FD_INLINE ptrdiff_t FD_T(gram_rows)(ptrdiff_t cols)
{
    ptrdiff_t rows = (ptrdiff_t)(1 << 18) / (ptrdiff_t)sizeof(T) / FD_MAX(cols, 1);
    return FD_MIN(8 * FD_GROUP, FD_MAX(FD_GROUP, rows / FD_GROUP * FD_GROUP));
}

static ptrdiff_t FD_T(gram_work)(ptrdiff_t cols)
{
    return 64 + sizeof(T) * (FD_T(gram_rows)(cols) * (FD_GRAM_LD(cols) + FD_TW) + 2 * cols);
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

/* Columns j to j + FD_ABREAST of a row; the first alone if there is no other: it meets the zeros
   of v, and what it adds to y is not read. */
FD_INLINE vec FD_T(reach)(const FD_T(fd_group) *rows, int r, int j, int lone)
{
    const char *at = rows->at[r / FD_REACH] + r % FD_REACH * rows->step;
    return FD_T(repeat)((const T *)at + j, lone ? 1 : FD_ABREAST);
}

FD_INLINE void FD_T(go_on)(FD_T(fd_group) *rows, int cols)
{
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r += FD_REACH) {
        rows->at[r / FD_REACH] += cols * sizeof(T);
        FD_OPAQUE(rows->at[r / FD_REACH]);
    }
}

FD_INLINE void FD_T(load_group)(const T *from, vec t[FD_GROUP][2])
{
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r++)
        FD_UNROLL
        for (int s = 0; s < 2; s++)
            t[r][s] = FD_T(load)(from + r * FD_TW + s * FD_W);
}

/* t += a v for `count` columns or, back, y += a' t; `side` is v or y. */
FD_INLINE void FD_T(gram_columns)(const int back, const int count, FD_T(fd_group) *rows,
                                  vec t[FD_GROUP][2], T *restrict side)
{
    FD_UNROLL
    for (int j = 0; j < count; j += FD_ABREAST) {
        vec row[2];
        FD_UNROLL
        for (int s = 0; s < 2; s++)
            row[s] = FD_T(load_loose)(side + j * FD_GW + s * FD_W);
        FD_UNROLL
        for (int r = 0; r < FD_GROUP; r++) {
            vec left = FD_T(reach)(rows, r, j, count < FD_ABREAST);
            FD_UNROLL
            for (int s = 0; s < 2; s++)
                if (back)
                    row[s] = FD_T(fma)(left, t[r][s], row[s]);
                else
                    t[r][s] = FD_T(fma)(left, row[s], t[r][s]);
        }
        FD_UNROLL
        for (int s = 0; back && s < 2; s++)
            FD_T(store_loose)(side + j * FD_GW + s * FD_W, row[s]);
    }
    FD_T(go_on)(rows, count);
}

/* t (FD_GROUP, FD_TW) += a (FD_GROUP, cols) v (cols, 64 bytes) or, back, with t folded,
   y (cols, 64 bytes) += a' t; `side` is v, which is only read, or y. */
FD_INLINE void FD_T(gram_pass)(const int back, const T *restrict a, ptrdiff_t lda, ptrdiff_t cols,
                               T *restrict t_, T *restrict side, const fd_ahead *ahead)
{
    FD_T(fd_group) rows = FD_T(group)(a, lda);
    vec t[FD_GROUP][2];
    ptrdiff_t j = 0;
    FD_T(load_group)(t_, t);
    for (; j + FD_UNROLLED <= cols; j += FD_UNROLLED, side += FD_UNROLLED * FD_GW) {
        fd_call(ahead, j, FD_UNROLLED);
        FD_T(gram_columns)(back, FD_UNROLLED, &rows, t, side);
    }
    for (; j + FD_ABREAST <= cols; j += FD_ABREAST, side += FD_ABREAST * FD_GW)
        FD_T(gram_columns)(back, FD_ABREAST, &rows, t, side);
    if (j < cols)
        FD_T(gram_columns)(back, 1, &rows, t, side);
    FD_UNROLL
    for (int r = 0; r < FD_GROUP; r++)
        FD_UNROLL
        for (int s = 0; !back && s < 2; s++)
            FD_T(store)(t_ + r * FD_TW + s * FD_W, t[r][s]);
}

FD_INLINE void FD_T(gram_forward)(const T *a, ptrdiff_t lda, ptrdiff_t cols, const T *v, T *t,
                                  const fd_ahead *ahead)
{
    FD_T(gram_pass)(0, a, lda, cols, t, (T *)v, ahead);
}

FD_INLINE void FD_T(gram_backward)(const T *a, ptrdiff_t lda, ptrdiff_t cols, T *t, T *y,
                                   const fd_ahead *ahead)
{
    FD_T(gram_pass)(1, a, lda, cols, t, y, ahead);
}

/* y += A'(A v) for a block of `rows` rows in memory, padded to whole groups, and one strip. What
   the shift makes of v, `offset`, comes off the products, whose sums are added to `sums`, unless
   NULL. */
static void FD_T(gram_block)(const T *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t cols,
                             const T *v, T *y, T *t, const double *offset, double *sums,
                             fd_ahead *ahead)
{
    const ptrdiff_t padded = FD_UP(rows, FD_GROUP);
    memset(t, 0, padded * FD_TW * sizeof(T));
    for (int back = 0; back < 2; back++) {
        for (ptrdiff_t j = 0; j < cols; j += FD_DEPTH)
            for (ptrdiff_t r = 0; r < padded; r += FD_GROUP) {
                const ptrdiff_t here = FD_MIN(FD_DEPTH, cols - j);
                const T *from = a + r * lda + j;
                if (back)
                    FD_T(gram_backward)(from, lda, here, t + r * FD_TW, y + j * FD_GW, ahead);
                else
                    FD_T(gram_forward)(from, lda, here, v + j * FD_GW, t + r * FD_TW, ahead);
                fd_advance(ahead, here);
            }
        for (ptrdiff_t i = 0; !back && i < rows; i++)
            FD_T(fold)(t + i * FD_TW, offset, sums);
    }
}

static void FD_T(gram_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                             const double *shift, const double *offset, const void *v_, void *y_,
                             ptrdiff_t strips, double *sums, void *work)
{
    const ptrdiff_t cols = x->cols, ld = FD_GRAM_LD(cols), tall = FD_T(gram_rows)(cols);
    const T *v = v_;
    T *y = y_, *copy = (T *)FD_UP((uintptr_t)work, 64), *t = copy + tall * ld;
    T *split = shift && !offset ? t + tall * FD_TW : NULL;
    if (split)
        FD_T(split_all)(shift, cols, split);
    for (ptrdiff_t row = first; row < last; row += tall) {
        const ptrdiff_t rows = FD_MIN(tall, last - row), padded = FD_UP(rows, FD_GROUP);
        fd_ahead ahead = FD_T(rows_ahead)(x, row + rows, FD_MIN(row + rows + tall, last),
                                          2 * strips * padded / FD_GROUP * cols);
        const T *a = (const T *)(x->data + row * x->row_step);
        ptrdiff_t lda = x->row_step / (ptrdiff_t)sizeof(T);
        if (split || rows < padded || !FD_T(in_place)(x)) {
            FD_T(centre)(x, row, rows, 0, cols, split, copy, ld);
            memset(copy + rows * ld, 0, (padded - rows) * ld * sizeof(T));
            a = copy;
            lda = ld;
        }
        for (ptrdiff_t s = 0; s < strips; s++)
            FD_T(gram_block)(a, lda, rows, cols, v + s * FD_STRIP(cols),
                             y + s * FD_STRIP(cols), t, offset ? offset + s * FD_GW : NULL,
                             sums + s * FD_GW, &ahead);
    }
}

/* Rows of a block of a symmetric matrix: FD_DEPTH columns of them stay in L2. */
#define FD_BAND ((ptrdiff_t)(8 * FD_GROUP))

static ptrdiff_t FD_T(symmetric_work)(void)
{
    return 64 + sizeof(T) * FD_BAND * (FD_LDA + 2 * FD_TW);
}

/* Each block right of the diagonal serves twice: its rows for theirs, and transposed. */
static void FD_T(symmetric_apply)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                                  const void *v_, void *y_, void *work)
{
    const T *v = v_;
    T *y = y_, *copy = (T *)FD_UP((uintptr_t)work, 64), *t = copy + FD_BAND * FD_LDA;
    T *mine = t + FD_BAND * FD_TW;
    const fd_ahead none = {NULL, 0};
    for (ptrdiff_t row = first; row < last; row += FD_BAND) {
        const ptrdiff_t rows = FD_MIN(FD_BAND, last - row), padded = FD_UP(rows, FD_GROUP);
        const int direct = rows == padded && FD_T(in_place)(x);
        memset(t, 0, 2 * FD_BAND * FD_TW * sizeof(T));
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t c = 0; c < FD_TW; c++)
                mine[i * FD_TW + c] = v[FD_T(place)(row + i, c / FD_ABREAST)];
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
                FD_T(gram_forward)(a + r * lda, lda, here, v + j * FD_GW, t + r * FD_TW, &none);
                FD_T(gram_backward)(a + r * lda + skip, lda, here - skip, mine + r * FD_TW,
                                    y + (j + skip) * FD_GW, &none);
            }
        }
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t c = 0; c < FD_TW; c++)
                y[FD_T(place)(row + i, c / FD_ABREAST)] += t[i * FD_TW + c];
    }
}

#undef FD_BAND
#undef FD_REACH
#undef FD_GW
#undef FD_GRAM_LD
#undef FD_ABREAST
#undef FD_TW
#undef FD_STRIP
#undef FD_DEPTH
#undef FD_NEAR
#undef FD_PASSING
#undef FD_TALL
#undef FD_FIT_LD
#undef FD_LDA
#undef FD_ERROR_LD
