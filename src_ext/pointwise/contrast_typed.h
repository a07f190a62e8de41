/* Typed part: vectors, e^x and log(1 + x), products, scores and losses. */

#define vec FC_T(fc_vec)
#define bits FC_T(fc_bits)

#ifdef FC_VECTORS
typedef T vec __attribute__((vector_size(FC_BYTES), aligned(sizeof(T)), may_alias));
typedef I bits __attribute__((vector_size(FC_BYTES), aligned(sizeof(T)), may_alias));
#define FC_W ((ptrdiff_t)(FC_BYTES / sizeof(T)))
FC_INLINE vec FC_T(splat)(T x) { return x - (vec){0}; }
FC_INLINE bits FC_T(as_bits)(vec v) { return (bits)v; }
FC_INLINE vec FC_T(as_real)(bits v) { return (vec)v; }
FC_INLINE vec FC_T(at_least)(vec v, vec least)
{
    bits below = v < least;
    return (vec)(((bits)least & below) | ((bits)v & ~below));
}
FC_INLINE vec FC_T(zero_below)(vec v, vec x, vec least) { return (vec)((bits)v & ~(x < least)); }
#else
typedef T vec;
typedef I bits;
#define FC_W ((ptrdiff_t)1)
FC_INLINE vec FC_T(splat)(T x) { return x; }
FC_INLINE bits FC_T(as_bits)(vec v) { bits b; memcpy(&b, &v, sizeof b); return b; }
FC_INLINE vec FC_T(as_real)(bits b) { vec v; memcpy(&v, &b, sizeof v); return v; }
FC_INLINE vec FC_T(at_least)(vec v, vec least) { return v < least ? least : v; }
FC_INLINE vec FC_T(zero_below)(vec v, vec x, vec least) { return x < least ? 0 : v; }
#endif

FC_INLINE vec FC_T(load)(const T *p) { return *(const vec *)p; }
FC_INLINE void FC_T(store)(T *p, vec v) { *(vec *)p = v; }
FC_INLINE vec FC_T(magnitude)(vec v) { return FC_T(as_real)(FC_T(as_bits)(v) & ~FC_SIGN); }

FC_INLINE double FC_T(lanes)(vec v)
{
    T lane[sizeof(vec) / sizeof(T)];
    double total = 0;
    memcpy(lane, &v, sizeof v);
    FC_UNROLL
    for (int i = 0; i < (int)FC_W; i++)
        total += lane[i];
    return total;
}

/* e^x for x <= 0, or zero below FC_LOWEST: 2^k e^r with k log 2 + r = x. */
FC_INLINE vec FC_T(power)(vec x_)
{
    /* Adding 1.5 2^mantissa leaves k in the lowest bits. */
    const vec shift = FC_T(splat)((T)((I)3 << (FC_MANTISSA - 1)));
    const vec least = FC_T(splat)(FC_LOWEST), x = FC_T(at_least)(x_, least);
    vec shifted = x * (T)1.4426950408889634 + shift, k = shifted - shift;
    vec r = x - k * FC_LN2_HIGH - k * FC_LN2_LOW, value = FC_T(splat)(FC_T(fc_exp)[FC_DEGREE]);
    FC_UNROLL
    for (int i = FC_DEGREE - 1; i >= 0; i--)
        value = value * r + FC_T(fc_exp)[i];
    value = FC_T(as_real)(FC_T(as_bits)(value) + (FC_T(as_bits)(shifted) << FC_MANTISSA));
    return FC_T(zero_below)(value, x_, least);
}

/* log(1 + x) for 0 <= x <= 1, as 2 artanh(x / (2 + x)). */
FC_INLINE vec FC_T(log_above_one)(vec x)
{
    vec z = x / (x + 2), square = z * z, value = FC_T(splat)(1 / (T)(2 * FC_LOG_TERMS + 1));
    FC_UNROLL
    for (int i = FC_LOG_TERMS - 1; i >= 0; i--)
        value = value * square + 1 / (T)(2 * i + 1);
    return 2 * z * value;
}

/* y[r][s] = Σ_j w[r][j] x[j][s] for a tile of `rows` rows and FC_STRIPS vectors. */
FC_INLINE void FC_T(unmix_tile)(const int rows, const T *restrict w, const T *restrict x,
                                ptrdiff_t k, T *restrict y)
{
    vec sum[FC_ROWS][FC_STRIPS];
    FC_UNROLL
    for (int r = 0; r < rows; r++)
        FC_UNROLL
        for (int s = 0; s < FC_STRIPS; s++)
            sum[r][s] = FC_T(splat)(0);
    for (ptrdiff_t j = 0; j < k; j++) {
        vec right[FC_STRIPS];
        FC_UNROLL
        for (int s = 0; s < FC_STRIPS; s++)
            right[s] = FC_T(load)(x + j * FC_PANEL + s * FC_W);
        FC_UNROLL
        for (int r = 0; r < rows; r++) {
            vec left = FC_T(splat)(w[r * k + j]);
            FC_UNROLL
            for (int s = 0; s < FC_STRIPS; s++)
                sum[r][s] = left * right[s] + sum[r][s];
        }
    }
    FC_UNROLL
    for (int r = 0; r < rows; r++)
        FC_UNROLL
        for (int s = 0; s < FC_STRIPS; s++)
            FC_T(store)(y + r * FC_PANEL + s * FC_W, sum[r][s]);
}

/* Call `tile` for FC_ROWS rows at a time and for halves of that at the end. */
#define FC_BY_ROWS(p, i, tile)                                                                     \
    for (; i + FC_ROWS <= p; i += FC_ROWS)                                                         \
        tile(FC_ROWS);                                                                             \
    for (; FC_ROWS > 4 && i + 4 <= p; i += 4)                                                      \
        tile(4);                                                                                   \
    for (; i + 2 <= p; i += 2)                                                                     \
        tile(2);                                                                                   \
    for (; i < p; i++)                                                                             \
        tile(1);

static void FC_T(unmix)(const void *w_, ptrdiff_t p, const void *x_, ptrdiff_t k, void *y_)
{
    const T *w = w_, *x = x_;
    T *y = y_;
    /* A strip of x stays in L1 while all rows of w pass. */
    for (ptrdiff_t c = 0; c < FC_PANEL; c += FC_STRIPS * FC_W) {
        ptrdiff_t i = 0;
#define FC_TILE(rows) FC_T(unmix_tile)(rows, w + i * k, x + c, k, y + i * FC_PANEL + c)
        FC_BY_ROWS(p, i, FC_TILE)
#undef FC_TILE
    }
}

/* m[r][c] += Σ g[r] x[c] over a panel, for `rows` rows of g and `columns` of x. */
FC_INLINE void FC_T(products_tile)(const int rows, const int columns, const T *restrict g,
                                   const T *restrict x, ptrdiff_t k, double *restrict m)
{
    vec sum[FC_ROWS][3];
    FC_UNROLL
    for (int r = 0; r < rows; r++)
        FC_UNROLL
        for (int c = 0; c < columns; c++)
            sum[r][c] = FC_T(splat)(0);
    for (ptrdiff_t t = 0; t < FC_PANEL; t += FC_W) {
        vec right[3];
        FC_UNROLL
        for (int c = 0; c < columns; c++)
            right[c] = FC_T(load)(x + c * FC_PANEL + t);
        FC_UNROLL
        for (int r = 0; r < rows; r++) {
            vec left = FC_T(load)(g + r * FC_PANEL + t);
            FC_UNROLL
            for (int c = 0; c < columns; c++)
                sum[r][c] = left * right[c] + sum[r][c];
        }
    }
    FC_UNROLL
    for (int r = 0; r < rows; r++)
        FC_UNROLL
        for (int c = 0; c < columns; c++)
            m[r * k + c] += FC_T(lanes)(sum[r][c]);
}

static void FC_T(add_products)(const void *g_, ptrdiff_t p, const void *x_, ptrdiff_t k, double *m)
{
    const T *g = g_, *x = x_;
    ptrdiff_t i = 0;
#define FC_TILE(rows)                                                                              \
    {                                                                                              \
        ptrdiff_t j = 0;                                                                           \
        for (; j + 3 <= k; j += 3)                                                                 \
            FC_T(products_tile)(rows, 3, g + i * FC_PANEL, x + j * FC_PANEL, k, m + i * k + j);     \
        for (; j < k; j++)                                                                         \
            FC_T(products_tile)(rows, 1, g + i * FC_PANEL, x + j * FC_PANEL, k, m + i * k + j);     \
    }
    FC_BY_ROWS(p, i, FC_TILE)
#undef FC_TILE
}

/* One row of a panel by `function`, which returns what `totals` collects and may change y. */
#define FC_POINTWISE(name, function, Y)                                                            \
    static void FC_T(name)(Y void *y_, ptrdiff_t p, double a, const void *weight, double *totals)        \
    {                                                                                              \
        Y T *y = y_;                                                                                 \
        const T *w = weight;                                                                       \
        for (ptrdiff_t i = 0; i < p; i++, y += FC_PANEL) {                                         \
            vec total = FC_T(splat)(0);                                                            \
            if (w)                                                                                 \
                for (ptrdiff_t t = 0; t < FC_PANEL; t += FC_W)                                     \
                    total += function(y + t, (T)a, FC_T(load)(w + t));                             \
            else                                                                                   \
                for (ptrdiff_t t = 0; t < FC_PANEL; t += FC_W)                                     \
                    total += function(y + t, (T)a, FC_T(splat)(1));                                \
            totals[i] += FC_T(lanes)(total);                                                       \
        }                                                                                          \
    }

/* tanh(a y) and a (1 - tanh²), from e^(-2 a |y|) <= 1, which cannot overflow. */
FC_INLINE vec FC_T(step_logcosh)(T *at, T a, vec weight)
{
    vec y = FC_T(load)(at), e = FC_T(power)(FC_T(magnitude)(y) * (-2 * a));
    vec size = (1 - e) / (1 + e);
    bits sign = FC_T(as_bits)(y) & FC_SIGN;
    FC_T(store)(at, weight * FC_T(as_real)(FC_T(as_bits)(size) | sign));
    return weight * a * (1 - size * size);
}

FC_INLINE vec FC_T(step_exp)(T *at, T a, vec weight)
{
    vec y = FC_T(load)(at), square = y * y, e = weight * FC_T(power)(square * (T)-0.5);
    (void)a;
    FC_T(store)(at, y * e);
    return e - square * e;
}

FC_INLINE vec FC_T(step_cube)(T *at, T a, vec weight)
{
    vec y = FC_T(load)(at), square = y * y;
    (void)a;
    FC_T(store)(at, weight * square * y);
    return weight * 3 * square;
}

FC_INLINE vec FC_T(value_logcosh)(const T *at, T a, vec weight)
{
    vec size = FC_T(magnitude)(FC_T(load)(at)) * a, e = FC_T(power)(size * -2);
    return weight * (size + FC_T(log_above_one)(e) - (T)0.6931471805599453) / a;
}

FC_INLINE vec FC_T(value_exp)(const T *at, T a, vec weight)
{
    vec y = FC_T(load)(at);
    (void)a;
    return weight * (1 - FC_T(power)(y * y * (T)-0.5));
}

FC_INLINE vec FC_T(value_cube)(const T *at, T a, vec weight)
{
    vec y = FC_T(load)(at), square = y * y;
    (void)a;
    return weight * square * square * (T)0.25;
}

FC_POINTWISE(score_logcosh, FC_T(step_logcosh), )
FC_POINTWISE(score_exp, FC_T(step_exp), )
FC_POINTWISE(score_cube, FC_T(step_cube), )
FC_POINTWISE(loss_logcosh, FC_T(value_logcosh), const)
FC_POINTWISE(loss_exp, FC_T(value_exp), const)
FC_POINTWISE(loss_cube, FC_T(value_cube), const)

#undef FC_POINTWISE
#undef FC_BY_ROWS
#undef FC_W
#undef vec
#undef bits
