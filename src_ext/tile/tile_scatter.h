/* Typed part 4: Z'Z of a packed panel, one register tile at a time. */

/* c + a b in the register of c. */
FD_INLINE vec FD_T(accumulate)(vec a, vec b, vec c)
{
#if defined(FD_FUSED) && FD_DEEP == FD_LANES /* floats */
    __asm__("vfmadd231" FD_SUFFIX " %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
#else
    return FD_T(fma)(a, b, c);
#endif
}

/* c + a *b, which no instruction of its own spreads if FD_EMBEDDED is not 0. */
FD_INLINE vec FD_T(accumulate_spread)(vec a, const T *b, vec c)
{
#if FD_EMBEDDED && FD_DEEP == FD_LANES
    if (sizeof(T) == 8)
        __asm__("vfmadd231pd %2%{1to8%}, %1, %0" : "+v"(c) : "v"(a), "m"(*b));
    else
        __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(a), "m"(*b));
    return c;
#else
    return FD_T(accumulate)(a, FD_T(splat)(*b), c);
#endif
}

/* Add a tile to the triangle: rows of the broadcast strip, columns of `strips` vectors. */
FD_INLINE void FD_T(add_tile)(const int strips, vec acc[FD_ROWS][FD_STRIPS], double *to,
                              ptrdiff_t ld)
{
    enum { PARTS = FD_C / FD_D };
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r += FD_LANES)
        FD_UNROLL
        for (int s = 0; s < strips; s++) {
            vec sums[FD_LANES];
            fd_wide wide[FD_LANES * PARTS];
            FD_UNROLL
            for (int h = 0; h < FD_LANES; h++)
                sums[h] = acc[r + h][s];
            FD_T(widen)(sums, wide);
            FD_UNROLL
            for (int w = 0; w < FD_LANES * PARTS; w++) {
                double *cell = to + (r + w / PARTS) * ld + s * FD_C + w % PARTS * FD_D;
                fd_store_wide(cell, fd_add_wide(fd_load_wide(cell), wide[w]));
            }
        }
}

/* acc[r][s] += from[r strips + s], and the other way. */
FD_INLINE void FD_T(add_vectors)(const int strips, vec acc[FD_ROWS][FD_STRIPS], const vec *from)
{
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = FD_T(add)(acc[r][s], from[r * strips + s]);
}

FD_INLINE void FD_T(put_vectors)(const int strips, vec acc[FD_ROWS][FD_STRIPS], vec *to)
{
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            to[r * strips + s] = acc[r][s];
}

/* Column r of the broadcast side, for FD_DEEP rows of the panel. */
FD_INLINE vec FD_T(column)(const T *b, int r)
{
    return FD_T(repeat)(b + r * FD_LANES, FD_LANES);
}

/* acc[r][s] += b[r] a[s] for FD_DEEP rows of the panel. */
FD_INLINE void FD_T(tile_row)(const int strips, const T *restrict a, const T *restrict b,
                              vec acc[FD_ROWS][FD_STRIPS])
{
    vec left[FD_STRIPS];
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        left[s] = FD_T(load)(a + s * FD_STEP);
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++) {
        if (FD_DEEP == 1 && r < FD_EMBEDDED) {
            FD_UNROLL
            for (int s = 0; s < strips; s++)
                acc[r][s] = FD_T(accumulate_spread)(left[s], b + r, acc[r][s]);
            continue;
        }
        vec right = FD_T(column)(b, r);
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = FD_T(accumulate)(left[s], right, acc[r][s]);
    }
    FD_UNROLL
    for (int s = 0; s < strips; s++)
        FD_HOLD(left[s]);
}

/* Steps that the broadcast strip is called before, where more than it is waited for. */
#define FD_SOON 16

/* acc[r][s] = Σ_k b[k][r] a[s][k]: `strips` strips from `a`, FD_ROWS columns from `b`; `far` where
   the triangle lies beyond L2. `before` is added and the sum put into `after`, and not yet into the
   triangle, where they are given. */
FD_INLINE void FD_T(tile)(const int strips, const int far, const T *restrict a,
                          const T *restrict b, ptrdiff_t rows, double *to, ptrdiff_t ld,
                          const fd_ahead ahead[2], const vec *before, vec *after)
{
    const int apiece = far ? 2 : 1; /* rows of the triangle that are called together */
    vec acc[FD_ROWS][FD_STRIPS];
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++) {
        FD_UNROLL
        for (int s = 0; s < strips; s++)
            acc[r][s] = FD_T(splat)(0);
    }
    const double *cells = to;
    /* Of the rows that come one line a loop, evenly: the processor fetches lines between. */
    const char *coming = ahead->next;
    const ptrdiff_t apace = FD_UNROLLED * strips * ahead->pace >> 8;
    const ptrdiff_t whole = rows - rows % FD_UNROLLED;
    for (ptrdiff_t k = 0; k < whole;) {
        const ptrdiff_t stop = FD_MIN(k + FD_CALLED, whole);
        if (!after && k < FD_ROWS / apiece * FD_CALLED)
            FD_UNROLL
            for (int r = 0; r < apiece; r++, cells += ld)
                FD_UNROLL
                for (int line = 0; line <= strips * FD_C / 8; line++)
                    FD_PREFETCH_WRITE(cells + 8 * line);
        fd_call(ahead + 1, k * strips, FD_CALLED * strips);
        for (; k < stop; k += FD_UNROLLED) {
            fd_call_line(coming);
            coming += apace;
            FD_UNROLL
            for (int u = 0; u < FD_UNROLLED; u++) {
                if (far && FD_BYTES == 64)
                    FD_PREFETCH_NEAR(b + (k + u + FD_SOON) * FD_W);
                FD_T(tile_row)(strips, a + (k + u) * FD_W, b + (k + u) * FD_W, acc);
            }
        }
    }
    for (ptrdiff_t k = whole; k < rows; k++)
        FD_T(tile_row)(strips, a + k * FD_W, b + k * FD_W, acc);
    if (before)
        FD_T(add_vectors)(strips, acc, before);
    if (after)
        FD_T(put_vectors)(strips, acc, after);
    else
        FD_T(add_tile)(strips, acc, to, ld);
}

#if FD_STRIPS > 1
/* One strip only: even and odd steps apart, so that enough sums are under way. */
FD_ALONE void FD_T(thin_tile)(const T *restrict a, const T *restrict b, ptrdiff_t rows,
                              double *to, ptrdiff_t ld, const fd_ahead *ahead)
{
    vec acc[FD_ROWS][FD_STRIPS];
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++)
        acc[r][0] = acc[r][1] = FD_T(splat)(0);
    for (ptrdiff_t k = 0; k + 1 < rows;) {
        const ptrdiff_t stop = FD_MIN(k + FD_CALLED, rows / 2 * 2);
        fd_call(ahead, k, FD_CALLED);
        for (; k < stop; k += 2) {
            vec even = FD_T(load)(a + k * FD_W), odd = FD_T(load)(a + (k + 1) * FD_W);
            FD_UNROLL
            for (int r = 0; r < FD_ROWS; r++) {
                acc[r][0] = FD_T(fma)(even, FD_T(column)(b + k * FD_W, r), acc[r][0]);
                acc[r][1] = FD_T(fma)(odd, FD_T(column)(b + (k + 1) * FD_W, r), acc[r][1]);
            }
        }
    }
    vec last = FD_T(load)(a + (rows - 1) * FD_W);
    FD_UNROLL
    for (int r = 0; r < FD_ROWS; r++) {
        acc[r][0] = FD_T(add)(acc[r][0], acc[r][1]);
        if (rows % 2)
            acc[r][0] = FD_T(fma)(last, FD_T(column)(b + (rows - 1) * FD_W, r), acc[r][0]);
    }
    FD_T(add_tile)(1, acc, to, ld);
}
#endif

/* Functions of their own: in one, the registers of the largest tile go over. */
FD_ALONE void FD_T(full_tile)(const T *restrict a, const T *restrict b, ptrdiff_t rows, double *to,
                              ptrdiff_t ld, const fd_ahead ahead[2])
{
    FD_T(tile)(FD_STRIPS, 0, a, b, rows, to, ld, ahead, NULL, NULL);
}

FD_ALONE void FD_T(far_tile)(const T *restrict a, const T *restrict b, ptrdiff_t rows, double *to,
                             ptrdiff_t ld, const fd_ahead ahead[2], const vec *before, vec *after)
{
    FD_T(tile)(FD_STRIPS, 1, a, b, rows, to, ld, ahead, before, after);
}

#if FD_STRIPS > 2
FD_ALONE void FD_T(double_tile)(const T *restrict a, const T *restrict b, ptrdiff_t rows,
                                double *to, ptrdiff_t ld, const fd_ahead ahead[2])
{
    FD_T(tile)(2, 0, a, b, rows, to, ld, ahead, NULL, NULL);
}
#endif

/* Strips of the broadcast side kept in L2, of all panels together, while strips of the vector side
   pass by; and their sums where those of panels are added before they become float64. */
#define FD_KEEP (3 * (1 << 17) / (FD_PANEL * FD_BYTES))
typedef vec FD_T(kept)[FD_C / FD_ROWS][FD_ROWS * FD_STRIPS];

/* Vectors of the next tile when so many strips are left, the full ones last, since more strips of
   the broadcast side meet those. One alone would leave the multipliers waiting, but in the
   triangle's corner it meets only itself. */
FD_INLINE ptrdiff_t FD_T(abreast)(ptrdiff_t left, int corner)
{
    const ptrdiff_t rest = left % FD_STRIPS;
    if (rest == 1 && left > 1 && !corner)
        return (FD_STRIPS + 1) / 2;
    return rest ? rest : FD_MIN(FD_STRIPS, left);
}

/* Add the products of row strips [j0, j1) with column strips [i, stop), at most FD_STRIPS, of one
   panel of `steps` vectors; whole tiles by way of `kept`, unless it is NULL: put there by the
   `first` panel and into the triangle by the `last`. */
static void FD_T(multiply_strips)(const T *packed, ptrdiff_t steps, ptrdiff_t cols, ptrdiff_t j0,
                                  ptrdiff_t j1, ptrdiff_t i, ptrdiff_t stop, double *triangle,
                                  fd_ahead ahead[2], FD_T(kept) *kept, int first, int last)
{
    const ptrdiff_t all = (cols + FD_C - 1) / FD_C;
    for (ptrdiff_t j = j0; j < j1; j++) {
        const ptrdiff_t ld = (all - j) * FD_C;
        const T *b = packed + j * FD_STEP;
        double *to = triangle + fd_triangle_offset(j, all, FD_C);
        ptrdiff_t left = FD_MAX(i, j);
#if defined(FD_TURNS) && FD_DEEP == FD_LANES /* floats */
        if (left == j) {
            FD_T(square_tile)(b, steps, to, ld, ahead);
            fd_advance(ahead, steps);
            left++;
        }
#endif
        const T *a = packed + left * FD_STEP;
        const ptrdiff_t strips = stop - left;
        to += (left - j) * FD_C;
        const ptrdiff_t broadcast = FD_MIN(FD_C, cols - j * FD_C);
        for (ptrdiff_t r = 0; r < broadcast; r += FD_ROWS) {
            vec *own = kept ? kept[j - j0][r / FD_ROWS] : NULL;
            if (strips == FD_STRIPS && cols > FD_WIDE_COLS)
                FD_T(far_tile)(a, b, steps, to, ld, ahead, first ? NULL : own, last ? NULL : own);
            else if (strips == FD_STRIPS)
                FD_T(full_tile)(a, b, steps, to, ld, ahead);
#if FD_STRIPS > 2
            else if (strips == 2)
                FD_T(double_tile)(a, b, steps, to, ld, ahead);
#endif
#if FD_STRIPS > 1
            else if (strips == 1)
                FD_T(thin_tile)(a, b, steps, to, ld, ahead);
#endif
            b += FD_ROWS * FD_LANES;
            to += FD_ROWS * ld;
            fd_advance(ahead, strips * steps);
            fd_advance(ahead + 1, strips * steps);
        }
    }
}

static void FD_T(multiply)(const fd_panels *panels, ptrdiff_t cols, ptrdiff_t j0, ptrdiff_t j1,
                           ptrdiff_t i0, ptrdiff_t i1, double *triangle, const char *next,
                           ptrdiff_t next_bytes)
{
    const ptrdiff_t count = (panels->rows + panels->each - 1) / panels->each;
    const ptrdiff_t keep = FD_KEEP / FD_MAX(count, 1), strip = FD_STEP * (ptrdiff_t)sizeof(T);
    const ptrdiff_t tiles = FD_UP(FD_MIN(cols, FD_C), FD_ROWS) / FD_ROWS; /* of a pair of strips */
    FD_T(kept) kept[FD_KEEP / FD_TOGETHER];
    ptrdiff_t pairs = 0;
    for (ptrdiff_t j = j0; j < j1; j++)
        pairs += i1 - FD_MIN(FD_MAX(i0, j), i1);
    fd_ahead ahead[2] = {
        fd_spread(next, next_bytes, pairs * tiles * ((panels->rows + FD_DEEP - 1) / FD_DEEP))};
    for (ptrdiff_t jb = j0; jb < j1; jb += keep)
    for (ptrdiff_t i = i0, stop; i < i1; i = stop) {
        stop = i + FD_T(abreast)(i1 - i, i == j0);
        if (stop <= jb) /* below the diagonal */
            continue;
        const ptrdiff_t end = FD_MIN(FD_MIN(jb + keep, j1), stop);
        for (ptrdiff_t p = 0; p < count; p++) {
            const char *packed = (const char *)panels->packed + p * panels->apart;
            const ptrdiff_t rows = FD_MIN(panels->each, panels->rows - p * panels->each);
            const ptrdiff_t steps = (rows + FD_DEEP - 1) / FD_DEEP;
            const int last = p + 1 == count;
            const char *coming = last ? (const char *)panels->packed + stop * strip
                                      : packed + panels->apart + i * strip;
            ahead[1] = fd_spread(coming,
                                 (last ? FD_T(abreast)(i1 - stop, 0) : stop - i) * strip,
                                 (end - jb) * (stop - i) * tiles * steps);
            FD_T(multiply_strips)((const T *)packed, steps, cols, jb, end, i, stop, triangle,
                                  ahead, count > 1 && sizeof(T) < sizeof(double) ? kept : NULL,
                                  !p, last);
        }
    }
}
