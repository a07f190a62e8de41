/* What a build of the network family provides: the pointwise work around the matrix products.

   Matrices are row-major and contiguous unless a step is named. Every build computes the same
   things with vectors of another width. No function checks its arguments. */
#ifndef FASTDR_NETWORK_H
#define FASTDR_NETWORK_H

#include <stddef.h>
#include <stdint.h>

enum { FN_IDENTITY, FN_RELU, FN_TANH, FN_SIGMOID, FN_GELU, FN_ACTIVATIONS };
enum { FN_KEEP, FN_SGD, FN_ADAM, FN_UPDATES };

/* One step of an update: decay is the factor of the weights that joins their gradient. */
typedef struct {
    double rate, momentum, decay;
    double beta1, beta2, epsilon;
    double unbias1, unbias2; /* 1 - beta^t */
} fn_step;

typedef struct {
    /* z = f(z + bias) and, unless slope is NULL, slope = f'(z + bias); z and slope (rows, cols) */
    void (*activate[FN_ACTIVATIONS])(void *z, const void *bias, void *slope, ptrdiff_t rows,
                                     ptrdiff_t cols);
    /* delta *= slope */
    void (*multiply)(void *delta, const void *slope, ptrdiff_t count);
    /* y = factor (y - x); returns the sum of (y - x)² */
    double (*residual)(void *y, const void *x, double factor, ptrdiff_t count);
    /* The sum of (scale (y - x))² */
    double (*squares)(const void *y, const void *x, const double *scale, ptrdiff_t count);
    /* sums[j] = sum of delta[i, j]; `step` numbers from row to row */
    void (*column_sums)(const void *delta, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t step,
                        void *sums);
    /* Weights w, first and second moments m and v (rows, cols) with `step` numbers from row to
       row, gradient g contiguous. KEEP: m = g. */
    void (*update[FN_UPDATES])(void *w, const void *g, void *m, void *v, ptrdiff_t rows,
                               ptrdiff_t cols, ptrdiff_t step, const fn_step *how);
    /* out = (x - mean) inverse for one row of float64 or float32 with col_step bytes from column
       to column; returns 0 if a result is not finite. */
    int (*standardise_f8)(const char *x, ptrdiff_t col_step, const double *mean,
                          const double *inverse, ptrdiff_t cols, void *out);
    int (*standardise_f4)(const char *x, ptrdiff_t col_step, const double *mean,
                          const double *inverse, ptrdiff_t cols, void *out);
    /* out = y scale + mean, in float64 or float32 */
    void (*restore_f8)(const void *y, const double *mean, const double *scale, ptrdiff_t cols,
                       double *out);
    void (*restore_f4)(const void *y, const double *mean, const double *scale, ptrdiff_t cols,
                       float *out);
} fn_kernels;

typedef struct {
    const char *name;
    fn_kernels f8, f4;
} fn_family;

extern const fn_family fn_base;
#ifdef FASTDR_X86
extern const fn_family fn_avx2, fn_avx512;
#endif

/* The family of an instruction set that tile.h found this machine to have, by its name. */
const fn_family *fn_find(const char *name);

#endif
