/* fastdr models from C and C++: project, reconstruct, and the squared distance between the two.

   Header only, no allocation, no library to link but the C library. A model is a plain struct of
   pointers that the caller owns; fastdr_file.h fills one from a saved file, and the Projector of
   fastdr._serve holds one. Functions only read it, so threads may share it. Nothing here checks
   its arguments.

       scores     t = ((x - mean) / scale) components'        centred before the product
       project    z = t; whitened t / divisors; turned (t / divisors) components
       inverse    x = (t back) * scale + mean, t from z the other way round
       error      |x - inverse(t)|^2, formed entry by entry

   For rows of double and of float there are

       void fastdr_project_f8(model, x, rows, z, work)      x (rows, features), z (rows, outputs)
       void fastdr_inverse_f8(model, z, rows, x, work)
       void fastdr_error_f8(model, x, rows, errors, work)   errors (rows), double
       void fastdr_project_f4(...) and so on

   with rows one after the other in memory; z may not overlap x. `work` is scratch of `axes`
   doubles, one for each thread. float rows on float components are multiplied in float, everything
   else in double; the sums over pieces of a row are double. */
#ifndef FASTDR_H
#define FASTDR_H

#include <math.h>
#include <stddef.h>

typedef struct {
    ptrdiff_t features, axes, outputs; /* outputs = axes, or features if turned */
    const double *mean;                /* (features) */
    const void *components;            /* (axes, features), row by row */
    const void *back;                  /* likewise; = components where they are orthonormal */
    const double *scale;               /* (features), positive; NULL: all 1 */
    const double *divisors;            /* (axes), infinite beyond the rank; NULL: not whitened */
    int single;                        /* components are float, not double */
    int turned;                        /* scores are turned back to the features ("zca") */
} fastdr_model;

/* Entries of a row handled at a time: they stay in L1 beside the components' piece. */
#define FASTDR_PIECE 256

#define FASTDR_JOIN_(name, rows, components) name##_##rows##components
#define FASTDR_JOIN(name, rows, components) FASTDR_JOIN_(name, rows, components)
#define FASTDR_T(name) FASTDR_JOIN(name, FASTDR_ROWS, FASTDR_COMPONENTS)

#define FASTDR_X double
#define FASTDR_ROWS f8
#define FASTDR_C double
#define FASTDR_COMPONENTS f8
#define FASTDR_A double
#include "fastdr_typed.h"
#define FASTDR_X double
#define FASTDR_ROWS f8
#define FASTDR_C float
#define FASTDR_COMPONENTS f4
#define FASTDR_A double
#include "fastdr_typed.h"
#define FASTDR_X float
#define FASTDR_ROWS f4
#define FASTDR_C double
#define FASTDR_COMPONENTS f8
#define FASTDR_A double
#include "fastdr_typed.h"
#define FASTDR_X float
#define FASTDR_ROWS f4
#define FASTDR_C float
#define FASTDR_COMPONENTS f4
#define FASTDR_A float
#include "fastdr_typed.h"

/* One row whose entries lie `step` apart, and blocks of rows. */
#define FASTDR_FUNCTIONS(X, f)                                                                     \
    static inline void fastdr_project_row_##f(const fastdr_model *m, const X *x, ptrdiff_t step,   \
                                              X *z, double *work)                                  \
    {                                                                                              \
        if (m->single)                                                                             \
            fastdr_project_##f##f4(m, x, step, z, work);                                           \
        else                                                                                       \
            fastdr_project_##f##f8(m, x, step, z, work);                                           \
    }                                                                                              \
    static inline void fastdr_inverse_row_##f(const fastdr_model *m, const X *z, ptrdiff_t step,   \
                                              X *x, double *work)                                  \
    {                                                                                              \
        if (m->single)                                                                             \
            fastdr_inverse_##f##f4(m, z, step, x, work);                                           \
        else                                                                                       \
            fastdr_inverse_##f##f8(m, z, step, x, work);                                           \
    }                                                                                              \
    static inline double fastdr_error_row_##f(const fastdr_model *m, const X *x, ptrdiff_t step,   \
                                              double *work)                                        \
    {                                                                                              \
        return m->single ? fastdr_error_##f##f4(m, x, step, work)                                  \
                         : fastdr_error_##f##f8(m, x, step, work);                                 \
    }                                                                                              \
    static inline void fastdr_project_##f(const fastdr_model *m, const X *x, ptrdiff_t rows, X *z, \
                                          double *work)                                            \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < rows; i++)                                                       \
            fastdr_project_row_##f(m, x + i * m->features, 1, z + i * m->outputs, work);           \
    }                                                                                              \
    static inline void fastdr_inverse_##f(const fastdr_model *m, const X *z, ptrdiff_t rows, X *x, \
                                          double *work)                                            \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < rows; i++)                                                       \
            fastdr_inverse_row_##f(m, z + i * m->outputs, 1, x + i * m->features, work);           \
    }                                                                                              \
    static inline void fastdr_error_##f(const fastdr_model *m, const X *x, ptrdiff_t rows,         \
                                        double *errors, double *work)                              \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < rows; i++)                                                       \
            errors[i] = fastdr_error_row_##f(m, x + i * m->features, 1, work);                     \
    }

FASTDR_FUNCTIONS(double, f8)
FASTDR_FUNCTIONS(float, f4)

#undef FASTDR_FUNCTIONS
#undef FASTDR_T
#undef FASTDR_JOIN
#undef FASTDR_JOIN_
#undef FASTDR_PIECE
#endif
