/* Typed part: sums and sums of squares of columns, float64 only. */

/* Columns of a piece, whose sums stay in L1, and rows that are converted at a time. */
#define FD_PIECE 512
#define FD_SUMMED 256 /* rows whose sums meet before they join the others */
#define FD_FEW ((ptrdiff_t)16)

/* sums += f² (a - shift), squares += f² (a - shift)² for four rows a of a piece. */
FD_INLINE void FD_T(sum_rows)(const T *restrict a, ptrdiff_t lda, ptrdiff_t cols, const T *shift,
                              const double *factor, T *restrict sums, T *restrict squares)
{
    const T *restrict b = a + lda, *restrict c = b + lda, *restrict d = c + lda;
    const T f0 = factor[0], f1 = factor[1], f2 = factor[2], f3 = factor[3];
    for (ptrdiff_t j = 0; j < cols; j++) {
        const T z0 = a[j] - shift[j], z1 = b[j] - shift[j];
        const T z2 = c[j] - shift[j], z3 = d[j] - shift[j];
        const T w0 = f0 * z0, w1 = f1 * z1, w2 = f2 * z2, w3 = f3 * z3;
        sums[j] += (w0 + w1) + (w2 + w3);
        squares[j] += (w0 * z0 + w1 * z1) + (w2 * z2 + w3 * z3);
    }
}

/* The same for up to FD_SUMMED rows of x, four at a time, zeros of no weight behind them. */
static void FD_T(sum_piece)(const fd_matrix *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t col,
                            ptrdiff_t cols, const double *shift, const double *root, T *sums,
                            T *squares)
{
    _Alignas(64) T copy[FD_FEW * FD_PIECE];
    const int direct = FD_T(in_place)(x);
    for (ptrdiff_t r = 0; r < rows; r += FD_FEW) {
        const ptrdiff_t here = FD_MIN(FD_FEW, rows - r), padded = FD_UP(here, 4);
        const T *from = (const T *)(x->data + (row + r) * x->row_step) + col;
        ptrdiff_t ld = x->row_step / (ptrdiff_t)sizeof(T);
        if (!direct || here < padded) {
            FD_T(fetch)(x, row + r, here, col, cols, copy, FD_PIECE);
            memset(copy + here * FD_PIECE, 0, (padded - here) * FD_PIECE * sizeof(T));
            from = copy;
            ld = FD_PIECE;
        }
        for (ptrdiff_t i = 0; i < here; i += 4) {
            double factor[4] = {0};
            for (ptrdiff_t k = 0; k < FD_MIN(4, here - i); k++)
                factor[k] = root ? root[row + r + i + k] * root[row + r + i + k] : 1;
            FD_T(sum_rows)(from + i * ld, ld, cols, shift, factor, sums, squares);
        }
    }
}

static void FD_T(column_sums)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                              const double *shift, const double *root, double *sums,
                              double *squares)
{
    for (ptrdiff_t start = first; start < last; start += FD_SUMMED)
        for (ptrdiff_t j = 0; j < x->cols; j += FD_PIECE) {
            const ptrdiff_t cols = FD_MIN(FD_PIECE, x->cols - j);
            T panel[2][FD_PIECE] = {{0}};
            FD_T(sum_piece)(x, start, FD_MIN(FD_SUMMED, last - start), j, cols, shift + j, root,
                            panel[0], panel[1]);
            for (ptrdiff_t i = 0; i < cols; i++) {
                sums[j + i] += panel[0][i];
                squares[j + i] += panel[1][i];
            }
        }
}

#undef FD_SUMMED
#undef FD_PIECE
#undef FD_FEW
