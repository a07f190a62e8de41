/* The network family, written once in plain C without branches, so that the compiler vectorises it.

   A network_*.c file sets FN_ISA, the setup gives the flags of that instruction set. The typed
   part is included once for each working type. */
#include <math.h>
#include <string.h>

#include "network.h"

#if defined(__GNUC__)
#define FN_INLINE static inline __attribute__((always_inline))
#define FN_UNROLL _Pragma("GCC unroll 32")
#else
#define FN_INLINE static inline
#define FN_UNROLL
#endif
#ifdef _MSC_VER
#define restrict __restrict
#endif

#define FN_PASTE(a, b) a##_##b
#define FN_JOIN(a, b) FN_PASTE(a, b)

/* Sums in flight, which the compiler keeps in vectors. */
#define FN_LANES 16

/* (e^r - 1) / r = Σ c r^i for |r| <= log(2) / 2, interpolated at Chebyshev points: relative error
   2e-17 (degree 10) and 3e-10 (degree 6).
   (a + c) e^(a²/2) Φ(-a) = Σ c t^i with t = (a - c) / (a + c) for a >= 0, Φ the normal
   distribution function, interpolated likewise (the variable is that of Shepherd and Laframboise,
   1981): relative error 2e-17 (degree 23, c = 5) and 4e-9 (degree 11, c = 4). */
#define T double
#define I int64_t
#define FN_T(name) FN_PASTE(name, f8)
#define FN_MANTISSA 52
#define FN_LOWEST -708.0
#define FN_LN2_HIGH 0x1.62e42fefa0000p-1
#define FN_LN2_LOW 0x1.cf79abc9e3b3ap-40
#define FN_EXP_DEGREE 10
#define FN_TAIL_DEGREE 23
#define FN_TAIL_CENTRE 5
#define FN_ABS fabs
#define FN_COPYSIGN copysign
#define FN_SQRT sqrt
static const double exp_f8[] = {
    1.0, 0.5000000000000006, 0.1666666666666667, 0.041666666666573066, 0.008333333333326136,
    0.001388888893251478, 0.00019841269874820627, 2.480150431378554e-05, 2.7557255400206422e-06,
    2.7626371065696354e-07, 2.5105217004720745e-08
};
static const double tail_f8[] = {
    0.769193049750063, -0.6653825028900568, 0.49530561596998063, -0.31353315667128584,
    0.16502036617018967, -0.06911863870695671, 0.02079506680331947, -0.002993376760347635,
    -0.0007978694284287862, 0.0005448989774454366, -5.9375585163440916e-05,
    -4.976236467507681e-05, 1.6680843519640492e-05, 3.979457180792049e-06, -2.768861633372941e-06,
    -3.337060350835977e-07, 4.334561019475754e-07, 3.87533092243584e-08, -6.740161179772032e-08,
    -7.068045653980906e-09, 9.268659037027118e-09, 1.322102962781694e-09, -7.842796363635921e-10,
    -1.4191921893580604e-10
};
#include "network_typed.h"
#undef T
#undef I
#undef FN_T
#undef FN_MANTISSA
#undef FN_LOWEST
#undef FN_LN2_HIGH
#undef FN_LN2_LOW
#undef FN_EXP_DEGREE
#undef FN_TAIL_DEGREE
#undef FN_TAIL_CENTRE
#undef FN_ABS
#undef FN_COPYSIGN
#undef FN_SQRT

#define T float
#define I int32_t
#define FN_T(name) FN_PASTE(name, f4)
#define FN_MANTISSA 23
#define FN_LOWEST -87.0f
#define FN_LN2_HIGH 0x1.62e400p-1f
#define FN_LN2_LOW 0x1.7f7d1cp-20f
#define FN_EXP_DEGREE 6
#define FN_TAIL_DEGREE 11
#define FN_TAIL_CENTRE 4
#define FN_ABS fabsf
#define FN_COPYSIGN copysignf
#define FN_SQRT sqrtf
static const float exp_f4[] = {
    1.0f, 0.5f, 0.16666667f, 0.041666351f, 0.0083332983f, 0.0013941119f, 0.00019899286f
};
static const float tail_f4[] = {
    0.75528514f, -0.60789663f, 0.38713738f, -0.18652199f, 0.060396645f, -0.0075386887f,
    -0.0034799429f, 0.0016242476f, 0.00013364042f, -0.00021777107f, -1.7259923e-06f,
    2.1979044e-05f
};
#include "network_typed.h"

#define FN_KERNELS(t)                                                                              \
    {.activate = {identity_##t, relu_##t, tanh_##t, sigmoid_##t, gelu_##t},                        \
     .multiply = multiply_##t, .residual = residual_##t, .squares = squares_##t,                   \
     .column_sums = column_sums_##t, .update = {keep_##t, sgd_##t, adam_##t},                      \
     .standardise_f8 = standardise_f8_##t, .standardise_f4 = standardise_f4_##t,                   \
     .restore_f8 = restore_f8_##t, .restore_f4 = restore_f4_##t}
#define FN_STRING_(x) #x
#define FN_STRING(x) FN_STRING_(x)

const fn_family FN_JOIN(fn, FN_ISA) = {
    .name = FN_STRING(FN_ISA), .f8 = FN_KERNELS(f8), .f4 = FN_KERNELS(f4)};
