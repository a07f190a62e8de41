"""Projector: a linear model applied to one row at a time, with next to no overhead.

The arithmetic is that of include/fastdr.h, which C and Cython code can use without this module.
"""

cimport numpy as np
from libc.math cimport isfinite
from libc.stdlib cimport free, malloc
from numpy cimport (
    NPY_DOUBLE, NPY_FLOAT, PyArray_CheckExact, PyArray_DATA, PyArray_DIM, PyArray_EMPTY,
    PyArray_IS_C_CONTIGUOUS, PyArray_ISBEHAVED, PyArray_ISBEHAVED_RO, PyArray_NDIM, PyArray_STRIDE,
    PyArray_TYPE, ndarray, npy_intp,
)

import numpy

from fastdr.validation import as_row, output, raise_not_finite

np.import_array()

# Axes whose scratch lies on the stack, and multiplications worth giving up the GIL for.
cdef enum:
    SMALL = 256
    LONG = 1 << 16


cdef inline bint is_row(object x, Py_ssize_t size) noexcept:
    """Whether `x` can be read as it is: a native, aligned (size,) array, f8 or f4."""
    return (PyArray_CheckExact(x) and PyArray_NDIM(<ndarray>x) == 1
            and PyArray_DIM(<ndarray>x, 0) == size and PyArray_ISBEHAVED_RO(<ndarray>x)
            and (PyArray_TYPE(<ndarray>x) == NPY_DOUBLE and PyArray_STRIDE(<ndarray>x, 0) % 8 == 0
                 or PyArray_TYPE(<ndarray>x) == NPY_FLOAT
                 and PyArray_STRIDE(<ndarray>x, 0) % 4 == 0))


cdef inline bint is_target(object out, Py_ssize_t size, int kind) noexcept:
    return (PyArray_CheckExact(out) and PyArray_NDIM(<ndarray>out) == 1
            and PyArray_DIM(<ndarray>out, 0) == size and PyArray_TYPE(<ndarray>out) == kind
            and PyArray_IS_C_CONTIGUOUS(<ndarray>out) and PyArray_ISBEHAVED(<ndarray>out))


cdef ndarray new_row(Py_ssize_t size, int kind):
    cdef npy_intp length = size
    return PyArray_EMPTY(1, &length, kind, 0)


cdef enum Task:
    PROJECT
    INVERSE
    ERROR


cdef void run_f8(const fastdr_model *m, Task task, const double *x, Py_ssize_t step, double *out,
                 double *work) noexcept nogil:
    if task == PROJECT:
        fastdr_project_row_f8(m, x, step, out, work)
    elif task == INVERSE:
        fastdr_inverse_row_f8(m, x, step, out, work)
    else:
        out[0] = fastdr_error_row_f8(m, x, step, work)


cdef void run_f4(const fastdr_model *m, Task task, const float *x, Py_ssize_t step, void *out,
                 double *work) noexcept nogil:
    if task == PROJECT:
        fastdr_project_row_f4(m, x, step, <float *>out, work)
    elif task == INVERSE:
        fastdr_inverse_row_f4(m, x, step, <float *>out, work)
    else:
        (<double *>out)[0] = fastdr_error_row_f4(m, x, step, work)


cdef bint run(const fastdr_model *m, Task task, ndarray x, void *out) except -1:
    """Do `task` for one row; return whether all its scores are finite."""
    cdef double small[SMALL]
    cdef double *work = &small[0] if m.axes <= SMALL else <double *>malloc(m.axes * sizeof(double))
    cdef const void *row = PyArray_DATA(x)
    cdef bint single = PyArray_TYPE(x) == NPY_FLOAT
    cdef Py_ssize_t step = PyArray_STRIDE(x, 0) // (4 if single else 8), j
    cdef double check = 0
    if work == NULL:
        raise MemoryError(f"cannot allocate scratch for {m.axes} axes")
    if m.axes * m.features > LONG:
        with nogil:
            if single:
                run_f4(m, task, <const float *>row, step, out, work)
            else:
                run_f8(m, task, <const double *>row, step, <double *>out, work)
    elif single:
        run_f4(m, task, <const float *>row, step, out, work)
    else:
        run_f8(m, task, <const double *>row, step, <double *>out, work)
    for j in range(m.axes):
        check += work[j] * 0
    if work != &small[0]:
        free(work)
    return check == 0


cdef class Projector:
    """A linear model, frozen and ready to be applied to one row after the other.

    ``p(x)`` is the model's transform for one row (d,) or a batch (n, d). Safe to share between
    threads; can be pickled. From Cython and C see ``_serve.pxd`` and ``fastdr.h``.

    Parameters
    ----------
    model : LinearModel
        Usually through ``model.projector()`` or ``PCA(...).fit(X).projector()``.

    Attributes
    ----------
    model : LinearModel
    n_features, n_outputs : int, the lengths of a row and of its scores.

    Raises
    ------
    ValueError
        From every method: wrong length, NaN or infinity, unusable `out`.
    TypeError
        From every method: sparse, complex or non-numeric input.

    Notes
    -----
    Results have the input's working dtype, as everywhere: float32 for float32 and float16, else
    float64. float64 rows on a float32 model are multiplied in float64. One row costs O(d k) and
    a fraction of a microsecond; it agrees with a batch to rounding. A batch goes through
    ``model.transform``, by blocks on all threads without the GIL; so does, without threads, a row
    of more than 65536 multiplications.

    Examples
    --------
    >>> import numpy as np
    >>> from fastdr import LinearModel
    >>> p = LinearModel([1.0, 2.0], [[0.6, 0.8]], [4.0]).projector()
    >>> z = p(np.array([1.6, 2.8]))
    >>> z.round(12)
    array([1.])
    >>> p.inverse(z).round(12)
    array([1.6, 2.8])
    >>> round(p.error(np.array([1.8, 1.4])), 12)
    1.0
    """

    def __cinit__(self, model):
        cdef ndarray mean = numpy.ascontiguousarray(model.mean, numpy.float64)
        cdef ndarray components = numpy.ascontiguousarray(model.components)
        cdef object scale = model.scale, divisors = model.divisors if model.whiten else None
        self.model = model
        self.arrays = (mean, components, scale, divisors)
        self.linear.features = PyArray_DIM(components, 1)
        self.linear.axes = PyArray_DIM(components, 0)
        self.linear.outputs = model.n_outputs
        self.linear.mean = <const double *>PyArray_DATA(mean)
        self.linear.components = PyArray_DATA(components)
        self.linear.single = PyArray_TYPE(components) == NPY_FLOAT
        self.linear.turned = model.whiten == "zca"
        if scale is not None:
            self.linear.scale = <const double *>PyArray_DATA(<ndarray?>scale)
        if divisors is not None:
            self.linear.divisors = <const double *>PyArray_DATA(<ndarray?>divisors)

    def __reduce__(self):
        return Projector, (self.model,)

    def __repr__(self):
        return f"Projector({self.linear.features} -> {self.linear.outputs}, {self.model.dtype})"

    @property
    def n_features(self):
        """Entries of a row."""
        return self.linear.features

    @property
    def n_outputs(self):
        """Entries of a row of scores."""
        return self.linear.outputs

    def __call__(self, x):
        """Return the scores of one row, (n_outputs,), or of a batch, (n, n_outputs)."""
        cdef ndarray z
        if not is_row(x, self.linear.features):
            if numpy.ndim(x) != 1:
                return self.model.transform(x)
            x = as_row(x, self.linear.features, "x")
        z = new_row(self.linear.outputs, PyArray_TYPE(<ndarray>x))
        if not run(&self.linear, PROJECT, x, PyArray_DATA(z)):
            raise_not_finite(x[None], "x")
        return z

    def into(self, x, out):
        """Put the scores of a row or batch into `out` and return it.

        `out` is contiguous, of the result's shape and dtype. Nothing is allocated for a row of a
        model with up to 256 axes.
        """
        if not is_row(x, self.linear.features):
            if numpy.ndim(x) != 1:
                return self.model.transform(x, out)
            x = as_row(x, self.linear.features, "x")
        if not is_target(out, self.linear.outputs, PyArray_TYPE(<ndarray>x)):
            out = output(out, (self.linear.outputs,), x.dtype)
        if not run(&self.linear, PROJECT, x, PyArray_DATA(<ndarray>out)):
            raise_not_finite(x[None], "x")
        return out

    def inverse(self, z):
        """Return the row (n_features,) or rows that scores stand for; `inverse_transform`."""
        cdef ndarray x
        if not is_row(z, self.linear.outputs):
            if numpy.ndim(z) != 1:
                return self.model.inverse_transform(z)
            z = as_row(z, self.linear.outputs, "z")
        x = new_row(self.linear.features, PyArray_TYPE(<ndarray>z))
        if not run(&self.linear, INVERSE, z, PyArray_DATA(x)):
            raise_not_finite(z[None], "z")
        return x

    def error(self, x):
        """Return the squared distance of a row to its reconstruction, or of each row, (n,)."""
        cdef double error
        if not is_row(x, self.linear.features):
            if numpy.ndim(x) != 1:
                return self.model.reconstruction_error(x, per_row=True)
            x = as_row(x, self.linear.features, "x")
        run(&self.linear, ERROR, x, &error)
        if not isfinite(error):
            raise_not_finite(x[None], "x")
        return error
