/* Typed part 3: packing a panel into strips. */

/* Bytes of a packed panel and of what packing it needs. */
static ptrdiff_t FD_T(panel_bytes)(ptrdiff_t cols)
{
    const ptrdiff_t padded = FD_UP(cols, FD_W); /* whole vectors of every row */
    return (padded / FD_C * FD_STEP + 2 * padded) * (ptrdiff_t)sizeof(T);
}

static void FD_T(pack)(const fd_matrix *x, ptrdiff_t first, ptrdiff_t last,
                       const fd_affine *affine, void *packed_, double *sums, double *squares)
{
    const ptrdiff_t cols = x->cols, padded = FD_UP(cols, FD_W);
    T *packed = packed_, *high = packed + padded / FD_C * FD_STEP, *low = high + padded;
    /* Rows whole pages apart fall upon the same few lines of L1: they are gathered first. */
    const int in_place = FD_T(in_place)(x) && x->row_step % 4096;
    int plain = !affine->row_shift && !affine->row_factor;
    /* Read along the storage: all columns of FD_BLOCK rows, or all rows of FD_STAGE columns. */
    const int by_rows = llabs((long long)x->col_step) <= llabs((long long)x->row_step);
    const ptrdiff_t width = by_rows ? padded : FD_STAGE;
    const ptrdiff_t block = by_rows ? FD_BLOCK : FD_PANEL * FD_DEEP;
    _Alignas(64) T stage[FD_BLOCK * FD_STAGE];

    memset(sums, 0, FD_UP(cols, FD_C) * sizeof(double));
    memset(squares, 0, FD_UP(cols, FD_C) * sizeof(double));
    for (ptrdiff_t j = 0; j < padded; j++) {
        FD_T(split)(j < cols && affine->col_shift ? affine->col_shift[j] : 0, high + j, low + j);
        plain &= low[j] == 0;
    }
    for (ptrdiff_t outer = 0; outer < padded; outer += width)
    for (ptrdiff_t row0 = first; row0 < last; row0 += block)
    for (ptrdiff_t col = outer; col < FD_MIN(outer + width, padded); col += FD_STAGE)
    for (ptrdiff_t row = row0; row < FD_MIN(row0 + block, last); row += FD_BLOCK) {
        const ptrdiff_t here = FD_MIN(FD_STAGE, cols - col), rows = FD_MIN(FD_BLOCK, last - row);
        const T *from = (const T *)(x->data + row * x->row_step + col * x->col_step);
        ptrdiff_t ld = x->row_step / (ptrdiff_t)sizeof(T), wide = here;
        if (!in_place) { /* through the stage, in whole strips */
            ld = FD_UP(here, FD_W);
            wide = FD_UP(here, FD_C);
            FD_T(fetch)(x, row, rows, col, here, stage, ld);
            for (ptrdiff_t i = 0; i < rows; i++)
                for (ptrdiff_t j = here; j < ld; j++)
                    stage[i * ld + j] = 0;
            from = stage;
        }
        /* What comes next: columns or, behind the last ones, rows. Of float64 those would have to
           leave L1 again, so it is a strip of the same row, which L2 has. */
        const ptrdiff_t rest = col + FD_STAGE < cols ? FD_STAGE : FD_BLOCK * ld - col;
        const ptrdiff_t next = FD_LANES == 1 ? 3 * FD_W : rest;
        FD_T(pack_strips)(plain, from, ld, in_place ? next : 0, rows, col, wide, high, low, affine,
                          row, first, packed, sums, squares);
    }
}
