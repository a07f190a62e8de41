/* What a build of the contrast family provides: the passes of independent component analysis.

   Rows stand in panels: a panel is a (k, FC_PANEL) matrix whose columns are rows of the data,
   padded with zero columns. Every build computes the same things with vectors of another width.
   No function checks its arguments. */
#ifndef FASTDR_CONTRAST_H
#define FASTDR_CONTRAST_H

#include <stddef.h>
#include <stdint.h>

/* Whole strips of every build; an odd number of cache lines in float32 and twice one in float64,
   so that the components of a panel do not fall on the same lines of a cache. */
#define FC_PANEL 240

/* The contrasts: log cosh(a y) / a, 1 - exp(-y² / 2), y⁴ / 4. */
enum { FC_LOGCOSH, FC_EXP, FC_CUBE, FC_CONTRASTS };

typedef struct {
    /* y (p, FC_PANEL) = w (p, k) x (k, FC_PANEL) */
    void (*unmix)(const void *w, ptrdiff_t p, const void *x, ptrdiff_t k, void *y);

    /* m (p, k) += g (p, FC_PANEL) x' (FC_PANEL, k) */
    void (*add_products)(const void *g, ptrdiff_t p, const void *x, ptrdiff_t k, double *m);

    /* y = weight g(y); slopes[i] += Σ weight g'(y[i]); weight (FC_PANEL) or NULL for ones. */
    void (*score[FC_CONTRASTS])(void *y, ptrdiff_t p, double a, const void *weight,
                                double *slopes);

    /* losses[i] += Σ weight G(y[i]), G the contrast and g its derivative. */
    void (*loss[FC_CONTRASTS])(const void *y, ptrdiff_t p, double a, const void *weight,
                               double *losses);
} fc_kernels;

typedef struct {
    const char *name;
    fc_kernels f8, f4;
} fc_family;

extern const fc_family fc_base;
#ifdef FASTDR_X86
extern const fc_family fc_avx2, fc_avx512;
#endif

/* The family of an instruction set that tile.h found this machine to have, by its name. */
const fc_family *fc_find(const char *name);

#endif
