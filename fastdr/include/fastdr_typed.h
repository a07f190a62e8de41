/* The typed part of fastdr.h, included for each pair of FASTDR_X (type of rows) and FASTDR_C (of
   components); FASTDR_A is the type in which they are multiplied. */

#define FASTDR_LANES ((ptrdiff_t)(64 / sizeof(FASTDR_A)))

/* Σ a[i] c[i], in as many running sums as a cache line has numbers. */
static inline FASTDR_A FASTDR_T(fastdr_dot)(const FASTDR_A *a, const FASTDR_C *c, ptrdiff_t n)
{
    FASTDR_A sums[64 / sizeof(FASTDR_A)] = {0};
    ptrdiff_t i = 0;
    for (; i + FASTDR_LANES <= n; i += FASTDR_LANES)
        for (ptrdiff_t lane = 0; lane < FASTDR_LANES; lane++)
            sums[lane] += a[i + lane] * (FASTDR_A)c[i + lane];
    for (ptrdiff_t lane = 0; i < n; i++, lane++)
        sums[lane] += a[i] * (FASTDR_A)c[i];
    for (ptrdiff_t half = FASTDR_LANES / 2; half > 0; half /= 2)
        for (ptrdiff_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

/* fit[i] = Σ_j weights[j] back[j, from + i] */
static inline void FASTDR_T(fastdr_combine)(const fastdr_model *m, const double *weights,
                                            ptrdiff_t from, ptrdiff_t n, FASTDR_A *fit)
{
    const FASTDR_C *axis = (const FASTDR_C *)m->back + from;
    for (ptrdiff_t i = 0; i < n; i++)
        fit[i] = 0;
    ptrdiff_t j = 0;
    for (; j + 4 <= m->axes; j += 4, axis += 4 * m->features) {
        const FASTDR_A w0 = (FASTDR_A)weights[j], w1 = (FASTDR_A)weights[j + 1];
        const FASTDR_A w2 = (FASTDR_A)weights[j + 2], w3 = (FASTDR_A)weights[j + 3];
        const FASTDR_C *c1 = axis + m->features, *c2 = c1 + m->features, *c3 = c2 + m->features;
        for (ptrdiff_t i = 0; i < n; i++)
            fit[i] += w0 * (FASTDR_A)axis[i] + w1 * (FASTDR_A)c1[i] + w2 * (FASTDR_A)c2[i] +
                      w3 * (FASTDR_A)c3[i];
    }
    for (; j < m->axes; j++, axis += m->features)
        for (ptrdiff_t i = 0; i < n; i++)
            fit[i] += (FASTDR_A)weights[j] * (FASTDR_A)axis[i];
}

/* a[i] = (x[from + i] - mean) / scale */
static inline void FASTDR_T(fastdr_centre)(const fastdr_model *m, const FASTDR_X *x, ptrdiff_t step,
                                           ptrdiff_t from, ptrdiff_t n, FASTDR_A *a)
{
    const double *mean = m->mean + from;
    if (m->scale)
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = (FASTDR_A)(((double)x[(from + i) * step] - mean[i]) / m->scale[from + i]);
    else if (step == 1)
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = (FASTDR_A)((double)x[from + i] - mean[i]);
    else
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = (FASTDR_A)((double)x[(from + i) * step] - mean[i]);
}

/* t = (x - mean) / scale components', or x components' as it stands if `plain` */
static inline void FASTDR_T(fastdr_scores)(const fastdr_model *m, int plain, const FASTDR_X *x,
                                           ptrdiff_t step, double *t)
{
    FASTDR_A a[FASTDR_PIECE];
    for (ptrdiff_t j = 0; j < m->axes; j++)
        t[j] = 0;
    for (ptrdiff_t from = 0; from < m->features; from += FASTDR_PIECE) {
        const ptrdiff_t left = m->features - from, n = left < FASTDR_PIECE ? left : FASTDR_PIECE;
        const FASTDR_C *axis = (const FASTDR_C *)m->components + from;
        if (plain)
            for (ptrdiff_t i = 0; i < n; i++)
                a[i] = (FASTDR_A)x[(from + i) * step];
        else
            FASTDR_T(fastdr_centre)(m, x, step, from, n, a);
        for (ptrdiff_t j = 0; j < m->axes; j++, axis += m->features)
            t[j] += (double)FASTDR_T(fastdr_dot)(a, axis, n);
    }
}

static inline void FASTDR_T(fastdr_project)(const fastdr_model *m, const FASTDR_X *x,
                                            ptrdiff_t step, FASTDR_X *z, double *t)
{
    FASTDR_T(fastdr_scores)(m, 0, x, step, t);
    if (m->divisors)
        for (ptrdiff_t j = 0; j < m->axes; j++)
            t[j] /= m->divisors[j];
    if (!m->turned)
        for (ptrdiff_t j = 0; j < m->axes; j++)
            z[j] = (FASTDR_X)t[j];
    else
        for (ptrdiff_t from = 0; from < m->features; from += FASTDR_PIECE) {
            FASTDR_A fit[FASTDR_PIECE];
            const ptrdiff_t left = m->features - from;
            const ptrdiff_t n = left < FASTDR_PIECE ? left : FASTDR_PIECE;
            FASTDR_T(fastdr_combine)(m, t, from, n, fit);
            for (ptrdiff_t i = 0; i < n; i++)
                z[from + i] = (FASTDR_X)fit[i];
        }
}

static inline void FASTDR_T(fastdr_inverse)(const fastdr_model *m, const FASTDR_X *z,
                                            ptrdiff_t step, FASTDR_X *x, double *t)
{
    if (m->turned)
        FASTDR_T(fastdr_scores)(m, 1, z, step, t);
    else
        for (ptrdiff_t j = 0; j < m->axes; j++)
            t[j] = (double)z[j * step];
    if (m->divisors)
        for (ptrdiff_t j = 0; j < m->axes; j++)
            t[j] *= m->divisors[j] < HUGE_VAL ? m->divisors[j] : 0;
    for (ptrdiff_t from = 0; from < m->features; from += FASTDR_PIECE) {
        FASTDR_A fit[FASTDR_PIECE];
        const ptrdiff_t left = m->features - from, n = left < FASTDR_PIECE ? left : FASTDR_PIECE;
        FASTDR_T(fastdr_combine)(m, t, from, n, fit);
        for (ptrdiff_t i = 0; i < n; i++) {
            const double scaled = m->scale ? (double)fit[i] * m->scale[from + i] : (double)fit[i];
            x[from + i] = (FASTDR_X)(scaled + m->mean[from + i]);
        }
    }
}

static inline double FASTDR_T(fastdr_error)(const fastdr_model *m, const FASTDR_X *x,
                                            ptrdiff_t step, double *t)
{
    double total = 0;
    FASTDR_T(fastdr_scores)(m, 0, x, step, t);
    for (ptrdiff_t from = 0; from < m->features; from += FASTDR_PIECE) {
        FASTDR_A a[FASTDR_PIECE], fit[FASTDR_PIECE];
        const ptrdiff_t left = m->features - from, n = left < FASTDR_PIECE ? left : FASTDR_PIECE;
        FASTDR_T(fastdr_centre)(m, x, step, from, n, a);
        FASTDR_T(fastdr_combine)(m, t, from, n, fit);
        for (ptrdiff_t i = 0; i < n; i++) {
            const double gap = (double)(a[i] - fit[i]);
            const double scaled = m->scale ? gap * m->scale[from + i] : gap;
            total += scaled * scaled;
        }
    }
    return total;
}

#undef FASTDR_LANES
#undef FASTDR_X
#undef FASTDR_ROWS
#undef FASTDR_C
#undef FASTDR_COMPONENTS
#undef FASTDR_A
