/* Typed part: activations and their slopes, losses, updates, rows in and out. */

FN_INLINE I FN_T(bits)(T value)
{
    I bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FN_INLINE T FN_T(real)(I bits)
{
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* e^x - 1 and e^x for x <= 0, not below e^FN_LOWEST: 2^k e^r with k log 2 + r = x. */
FN_INLINE T FN_T(power)(T x, T *less_one)
{
    /* Adding 1.5 2^mantissa leaves k in the lowest bits. */
    const T shift = (T)((I)3 << (FN_MANTISSA - 1));
    x = x < FN_LOWEST ? FN_LOWEST : x;
    T shifted = x * (T)1.4426950408889634 + shift, k = shifted - shift;
    T r = x - k * FN_LN2_HIGH - k * FN_LN2_LOW, value = FN_T(exp)[FN_EXP_DEGREE];
    FN_UNROLL
    for (int i = FN_EXP_DEGREE - 1; i >= 0; i--)
        value = value * r + FN_T(exp)[i];
    value *= r;
    T scale = FN_T(real)((I)((uint64_t)FN_T(bits)(shifted) << FN_MANTISSA) + FN_T(bits)(1));
    *less_one = scale * value + (scale - 1);
    return scale * value + scale;
}

FN_INLINE T FN_T(identity_of)(T x, T *slope)
{
    *slope = 1;
    return x;
}

/* Written so that NaN stays NaN. */
FN_INLINE T FN_T(relu_of)(T x, T *slope)
{
    *slope = x > 0 ? (T)1 : (T)0;
    return x < 0 ? (T)0 : x;
}

/* From e^(-2|x|) - 1, so that small values keep their digits and large ones do not overflow. */
FN_INLINE T FN_T(tanh_of)(T x, T *slope)
{
    T less_one, e = FN_T(power)(-2 * FN_ABS(x), &less_one), inverse = 1 / (1 + e);
    *slope = 4 * e * inverse * inverse;
    return FN_COPYSIGN(-less_one * inverse, x);
}

FN_INLINE T FN_T(sigmoid_of)(T x, T *slope)
{
    T less_one, e = FN_T(power)(-FN_ABS(x), &less_one), inverse = 1 / (1 + e);
    *slope = e * inverse * inverse;
    return (x < 0 ? e : (T)1) * inverse;
}

/* x Φ(x), its slope Φ(x) + x φ(x); Φ(-|x|) keeps its digits far into the tail. */
FN_INLINE T FN_T(gelu_of)(T x, T *slope)
{
    T a = FN_ABS(x), less_one, e = FN_T(power)(a * a * (T)-0.5, &less_one);
    T inverse = 1 / (a + FN_TAIL_CENTRE), t = (a - FN_TAIL_CENTRE) * inverse;
    T tail = FN_T(tail)[FN_TAIL_DEGREE];
    FN_UNROLL
    for (int i = FN_TAIL_DEGREE - 1; i >= 0; i--)
        tail = tail * t + FN_T(tail)[i];
    tail *= e * inverse;
    T below = x < 0 ? tail : 1 - tail;
    *slope = below + x * e * (T)0.3989422804014327;
    return x * below;
}

#define FN_ACTIVATE(name)                                                                          \
    static void FN_T(name)(void *z_, const void *bias_, void *slope_, ptrdiff_t rows,              \
                           ptrdiff_t cols)                                                         \
    {                                                                                              \
        T *restrict z = z_, *restrict slope = slope_;                                              \
        const T *restrict bias = bias_;                                                            \
        for (ptrdiff_t i = 0; i < rows; i++, z += cols)                                            \
            if (slope) {                                                                           \
                for (ptrdiff_t j = 0; j < cols; j++)                                               \
                    z[j] = FN_T(FN_PASTE(name, of))(z[j] + bias[j], slope + j);                    \
                slope += cols;                                                                     \
            } else                                                                                 \
                for (ptrdiff_t j = 0; j < cols; j++) {                                             \
                    T unused;                                                                      \
                    z[j] = FN_T(FN_PASTE(name, of))(z[j] + bias[j], &unused);                      \
                }                                                                                  \
    }

FN_ACTIVATE(identity)
FN_ACTIVATE(relu)
FN_ACTIVATE(tanh)
FN_ACTIVATE(sigmoid)
FN_ACTIVATE(gelu)
#undef FN_ACTIVATE

static void FN_T(multiply)(void *delta_, const void *slope_, ptrdiff_t count)
{
    T *restrict delta = delta_;
    const T *restrict slope = slope_;
    for (ptrdiff_t i = 0; i < count; i++)
        delta[i] *= slope[i];
}

static double FN_T(residual)(void *y_, const void *x_, double factor, ptrdiff_t count)
{
    T *restrict y = y_, sums[FN_LANES] = {0};
    const T *restrict x = x_, by = (T)factor;
    double total = 0;
    ptrdiff_t i = 0;
    for (; i + FN_LANES <= count; i += FN_LANES)
        for (int lane = 0; lane < FN_LANES; lane++) {
            T step = y[i + lane] - x[i + lane];
            y[i + lane] = step * by;
            sums[lane] += step * step;
        }
    for (; i < count; i++) {
        T step = y[i] - x[i];
        y[i] = step * by;
        total += step * step;
    }
    for (int lane = 0; lane < FN_LANES; lane++)
        total += sums[lane];
    return total;
}

static double FN_T(squares)(const void *y_, const void *x_, const double *restrict scale,
                            ptrdiff_t count)
{
    const T *restrict y = y_, *restrict x = x_;
    double sums[FN_LANES] = {0}, total = 0;
    ptrdiff_t i = 0;
    for (; i + FN_LANES <= count; i += FN_LANES)
        for (int lane = 0; lane < FN_LANES; lane++) {
            double step = ((double)y[i + lane] - (double)x[i + lane]) * scale[i + lane];
            sums[lane] += step * step;
        }
    for (; i < count; i++) {
        double step = ((double)y[i] - (double)x[i]) * scale[i];
        total += step * step;
    }
    for (int lane = 0; lane < FN_LANES; lane++)
        total += sums[lane];
    return total;
}

static void FN_T(column_sums)(const void *delta_, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t step,
                              void *sums_)
{
    const T *restrict delta = delta_;
    T *restrict sums = sums_;
    memset(sums, 0, (size_t)cols * sizeof(T));
    for (ptrdiff_t i = 0; i < rows; i++, delta += step)
        for (ptrdiff_t j = 0; j < cols; j++)
            sums[j] += delta[j];
}

#define FN_UPDATE(name, ...)                                                                       \
    static void FN_T(name)(void *w_, const void *g_, void *m_, void *v_, ptrdiff_t rows,           \
                           ptrdiff_t cols, ptrdiff_t step, const fn_step *how)                     \
    {                                                                                              \
        T *restrict w = w_, *restrict m = m_, *restrict v = v_;                                    \
        const T *restrict g = g_;                                                                  \
        const T decay = (T)how->decay;                                                             \
        __VA_ARGS__                                                                                \
    }
#define FN_EACH(...)                                                                               \
    for (ptrdiff_t i = 0; i < rows; i++, w += step, m += step, v += step, g += cols)               \
        for (ptrdiff_t j = 0; j < cols; j++) {                                                     \
            T slope = g[j] + decay * w[j];                                                         \
            __VA_ARGS__                                                                            \
        }

FN_UPDATE(keep, FN_EACH(m[j] = slope;))

FN_UPDATE(sgd, const T rate = (T)how->rate, momentum = (T)how->momentum;
          FN_EACH(T speed = momentum * m[j] + slope;
                  m[j] = speed;
                  w[j] -= rate * speed;))

/* Kingma and Ba (2015), algorithm 1 */
FN_UPDATE(adam, const T new1 = (T)(1 - how->beta1), new2 = (T)(1 - how->beta2);
          const T rate = (T)(how->rate / how->unbias1), epsilon = (T)how->epsilon;
          const T unbias2 = (T)(1 / sqrt(how->unbias2));
          FN_EACH(T mean = m[j] + new1 * (slope - m[j]);
                  T square = v[j] + new2 * (slope * slope - v[j]);
                  m[j] = mean;
                  v[j] = square;
                  w[j] -= rate * mean / (FN_SQRT(square) * unbias2 + epsilon);))
#undef FN_EACH
#undef FN_UPDATE

#define FN_STANDARDISE(name, S)                                                                    \
    static int FN_T(name)(const char *x_, ptrdiff_t col_step, const double *restrict mean,         \
                          const double *restrict inverse, ptrdiff_t cols, void *out_)              \
    {                                                                                              \
        T *restrict out = out_;                                                                    \
        I bad = 0;                                                                                 \
        if (col_step == (ptrdiff_t)sizeof(S)) {                                                    \
            const S *restrict x = (const S *)x_;                                                   \
            for (ptrdiff_t j = 0; j < cols; j++)                                                   \
                out[j] = (T)((x[j] - mean[j]) * inverse[j]);                                       \
        } else                                                                                     \
            for (ptrdiff_t j = 0; j < cols; j++)                                                   \
                out[j] = (T)((*(const S *)(x_ + j * col_step) - mean[j]) * inverse[j]);            \
        for (ptrdiff_t j = 0; j < cols; j++)                                                       \
            bad |= !(FN_ABS(out[j]) < (T)INFINITY);                                                \
        return !bad;                                                                               \
    }

FN_STANDARDISE(standardise_f8, double)
FN_STANDARDISE(standardise_f4, float)
#undef FN_STANDARDISE

#define FN_RESTORE(name, S)                                                                        \
    static void FN_T(name)(const void *y_, const double *restrict mean,                            \
                           const double *restrict scale, ptrdiff_t cols, S *restrict out)          \
    {                                                                                              \
        const T *restrict y = y_;                                                                  \
        for (ptrdiff_t j = 0; j < cols; j++)                                                       \
            out[j] = (S)((double)y[j] * scale[j] + mean[j]);                                       \
    }

FN_RESTORE(restore_f8, double)
FN_RESTORE(restore_f4, float)
#undef FN_RESTORE
