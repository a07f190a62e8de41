"""What Cython code can cimport: a Projector, and the functions of fastdr.h on its `linear`.

Compile with ``fastdr.get_include()`` among the include directories. The functions need no GIL,
check nothing and are safe to call from any number of threads; fastdr.h says what they compute.
"""

cdef extern from "fastdr.h" nogil:
    ctypedef struct fastdr_model:
        Py_ssize_t features, axes, outputs
        const double *mean
        const void *components
        const void *back
        const double *scale
        const double *divisors
        bint single
        bint turned

    # Blocks of contiguous rows; work is scratch of `axes` doubles.
    void fastdr_project_f8(const fastdr_model *model, const double *x, Py_ssize_t rows, double *z,
                           double *work)
    void fastdr_inverse_f8(const fastdr_model *model, const double *z, Py_ssize_t rows, double *x,
                           double *work)
    void fastdr_error_f8(const fastdr_model *model, const double *x, Py_ssize_t rows,
                         double *errors, double *work)
    void fastdr_project_f4(const fastdr_model *model, const float *x, Py_ssize_t rows, float *z,
                           double *work)
    void fastdr_inverse_f4(const fastdr_model *model, const float *z, Py_ssize_t rows, float *x,
                           double *work)
    void fastdr_error_f4(const fastdr_model *model, const float *x, Py_ssize_t rows,
                         double *errors, double *work)

    # One row whose entries lie `step` apart.
    void fastdr_project_row_f8(const fastdr_model *model, const double *x, Py_ssize_t step,
                               double *z, double *work)
    void fastdr_inverse_row_f8(const fastdr_model *model, const double *z, Py_ssize_t step,
                               double *x, double *work)
    double fastdr_error_row_f8(const fastdr_model *model, const double *x, Py_ssize_t step,
                               double *work)
    void fastdr_project_row_f4(const fastdr_model *model, const float *x, Py_ssize_t step,
                               float *z, double *work)
    void fastdr_inverse_row_f4(const fastdr_model *model, const float *z, Py_ssize_t step,
                               float *x, double *work)
    double fastdr_error_row_f4(const fastdr_model *model, const float *x, Py_ssize_t step,
                               double *work)


cdef class Projector:
    cdef fastdr_model linear      # its pointers live as long as the Projector
    cdef readonly object model    # the LinearModel it was made from
    cdef tuple arrays
