/* The contrast family, written once in vector extensions.

   A contrast_*.c file sets FC_ISA, FC_BYTES (of a vector), FC_ROWS and FC_STRIPS (rows and
   vectors of a register tile) and includes this file. A compiler without vector extensions gets
   vectors of one number. The typed part is included once for each working type. */
#include <string.h>

#include "contrast.h"

#if defined(__GNUC__) && !defined(FASTDR_PLAIN)
#define FC_VECTORS
#endif
#if defined(__GNUC__)
#define FC_INLINE static inline __attribute__((always_inline))
#define FC_UNROLL _Pragma("GCC unroll 16")
#else
#define FC_INLINE static inline
#define FC_UNROLL
#endif
#ifdef _MSC_VER
#define restrict __restrict
#endif

#define FC_PASTE(a, b) a##_##b
#define FC_JOIN(a, b) FC_PASTE(a, b)

/* e^r = Σ c r^i for |r| <= log(2) / 2, interpolated at Chebyshev points: relative error 4e-18
   (degree 11) and 2e-9 (degree 6). */
#define T double
#define I int64_t
#define FC_T(name) FC_PASTE(name, f8)
#define FC_MANTISSA 52
#define FC_LOWEST -708.0
#define FC_SIGN INT64_MIN
#define FC_LN2_HIGH 0x1.62e42fefa0000p-1
#define FC_LN2_LOW 0x1.cf79abc9e3b3ap-40
#define FC_DEGREE 11
#define FC_LOG_TERMS 17
static const double fc_exp_f8[] = {
    1.0, 1.0, 0.50000000000000189, 0.1666666666666668, 0.041666666666488099,
    0.0083333333333196011, 0.0013888888952314775, 0.00019841269890047113,
    2.4801485482328494e-05, 2.755724091857897e-06, 2.7632639639041029e-07,
    2.5110037605963777e-08
};
#include "contrast_typed.h"
#undef T
#undef I
#undef FC_T
#undef FC_MANTISSA
#undef FC_LOWEST
#undef FC_SIGN
#undef FC_LN2_HIGH
#undef FC_LN2_LOW
#undef FC_DEGREE
#undef FC_LOG_TERMS

#define T float
#define I int32_t
#define FC_T(name) FC_PASTE(name, f4)
#define FC_MANTISSA 23
#define FC_LOWEST -87.0f
#define FC_SIGN INT32_MIN
#define FC_LN2_HIGH 0x1.62e400p-1f
#define FC_LN2_LOW 0x1.7f7d1cp-20f
#define FC_DEGREE 6
#define FC_LOG_TERMS 8
static const float fc_exp_f4[] = {
    1.0f, 1.00000004f, 0.500000005f, 0.166664155f, 0.0416663529f, 0.0083751264f,
    0.00139411084f
};
#include "contrast_typed.h"

#define FC_KERNELS(t)                                                                              \
    {.unmix = unmix_##t, .add_products = add_products_##t,                                         \
     .score = {score_logcosh_##t, score_exp_##t, score_cube_##t},                                  \
     .loss = {loss_logcosh_##t, loss_exp_##t, loss_cube_##t}}
#define FC_STRING_(x) #x
#define FC_STRING(x) FC_STRING_(x)

const fc_family FC_JOIN(fc, FC_ISA) = {
    .name = FC_STRING(FC_ISA), .f8 = FC_KERNELS(f8), .f4 = FC_KERNELS(f4)};
