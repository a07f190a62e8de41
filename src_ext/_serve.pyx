"""Projector: a linear model applied to one row at a time, with next to no overhead.

The arithmetic is that of include/fastdr.h, which C and Cython code can use without this module.
"""

cimport numpy as np
from libc.stdlib cimport free, malloc
from numpy cimport (
    NPY_DOUBLE, NPY_FLOAT, PyArray_CheckExact, PyArray_DATA, PyArray_DIM, PyArray_EMPTY,
    PyArray_IS_C_CONTIGUOUS, PyArray_ISBEHAVED, PyArray_ISBEHAVED_RO, PyArray_NBYTES, PyArray_NDIM,
    PyArray_STRIDE, PyArray_TYPE, ndarray, npy_intp,
)

import numpy

from fastdr.validation import as_row, output, raise_not_finite

np.import_array()

# Axes whose scratch lies on the stack; multiplications that are done here, row by row and with the
# GIL, although the blocked kernels behind `model.transform` would take fewer cycles for each.
cdef enum:
    SMALL = 256
    SHORT = 1 << 16

cdef enum Task:
    PROJECT
    INVERSE
    ERROR


cdef inline Py_ssize_t rows_at_hand(object x, Py_ssize_t size, Py_ssize_t axes) noexcept:
    """Rows of `x` if it can be read as it is, else 0.

    That is a native, aligned (size,) array of any stride, f8 or f4, or a small contiguous block.
    """
    cdef Py_ssize_t rows, item
    if not PyArray_CheckExact(x) or not PyArray_ISBEHAVED_RO(<ndarray>x):
        return 0
    item = (8 if PyArray_TYPE(<ndarray>x) == NPY_DOUBLE else
            4 if PyArray_TYPE(<ndarray>x) == NPY_FLOAT else 0)
    if item == 0:
        return 0
    if PyArray_NDIM(<ndarray>x) == 1:
        return (PyArray_DIM(<ndarray>x, 0) == size
                and PyArray_STRIDE(<ndarray>x, 0) % item == 0)
    if (PyArray_NDIM(<ndarray>x) != 2 or PyArray_DIM(<ndarray>x, 1) != size
            or not PyArray_IS_C_CONTIGUOUS(<ndarray>x)):
        return 0
    rows = PyArray_DIM(<ndarray>x, 0)
    return rows if rows <= SHORT and rows * size * axes <= SHORT else 0


cdef inline bint is_target(object out, ndarray x, Py_ssize_t size) noexcept:
    """Whether `out` can take a result of `size` entries for each row of `x`."""
    cdef int last = PyArray_NDIM(x) - 1
    return (PyArray_CheckExact(out) and PyArray_NDIM(<ndarray>out) == last + 1
            and PyArray_DIM(<ndarray>out, last) == size
            and (last == 0 or PyArray_DIM(<ndarray>out, 0) == PyArray_DIM(x, 0))
            and PyArray_TYPE(<ndarray>out) == PyArray_TYPE(x)
            and PyArray_IS_C_CONTIGUOUS(<ndarray>out) and PyArray_ISBEHAVED(<ndarray>out))


cdef inline bint meets(ndarray out, const void *other, Py_ssize_t size) noexcept:
    """Whether contiguous `out` shares memory with `size` bytes elsewhere, if there are any."""
    cdef const char *begin = <const char *>PyArray_DATA(out)
    return (other != NULL and begin < <const char *>other + size
            and <const char *>other < begin + PyArray_NBYTES(out))


cdef inline bint is_read(const fastdr_model *m, ndarray x, ndarray out) noexcept:
    """Whether filling `out` would change what is still to be read: a row is read before."""
    cdef Py_ssize_t matrix = m.axes * m.features * (4 if m.single else 8)
    return ((PyArray_NDIM(x) == 2 and meets(out, PyArray_DATA(x), PyArray_NBYTES(x)))
            or meets(out, m.mean, m.features * 8) or meets(out, m.scale, m.features * 8)
            or meets(out, m.components, matrix) or meets(out, m.back, matrix)
            or meets(out, m.divisors, m.axes * 8))


cdef ndarray results(ndarray x, Py_ssize_t size):
    """An array for `size` entries for each row of `x`."""
    cdef npy_intp shape[2]
    cdef int last = PyArray_NDIM(x) - 1
    shape[0] = PyArray_DIM(x, 0)
    shape[last] = size
    return PyArray_EMPTY(last + 1, shape, PyArray_TYPE(x), 0)


cdef void run_row(const fastdr_model *m, Task task, bint single, const void *x, Py_ssize_t step,
                  void *out, double *work) noexcept nogil:
    if task == ERROR:
        (<double *>out)[0] = (fastdr_error_row_f4(m, <const float *>x, step, work) if single else
                              fastdr_error_row_f8(m, <const double *>x, step, work))
    elif single and task == PROJECT:
        fastdr_project_row_f4(m, <const float *>x, step, <float *>out, work)
    elif single:
        fastdr_inverse_row_f4(m, <const float *>x, step, <float *>out, work)
    elif task == PROJECT:
        fastdr_project_row_f8(m, <const double *>x, step, <double *>out, work)
    else:
        fastdr_inverse_row_f8(m, <const double *>x, step, <double *>out, work)


cdef bint all_finite(const char *values, Py_ssize_t count, bint single) noexcept nogil:
    """Whether no entry is NaN or infinite; without a branch, so that vectors are compared."""
    cdef bint fine = True
    cdef Py_ssize_t i
    if single:
        for i in range(count):
            fine &= (<const float *>values)[i] * 0 == 0
    else:
        for i in range(count):
            fine &= (<const double *>values)[i] * 0 == 0
    return fine


cdef bint run_rows(const fastdr_model *m, Task task, bint single, const char *x, Py_ssize_t rows,
                   Py_ssize_t step, char *out, double *work) noexcept nogil:
    """Do `task` for rows one after the other; tell whether their dtype holds the results."""
    cdef Py_ssize_t item = 4 if single else 8, i
    cdef Py_ssize_t size = (m.outputs if task == INVERSE else m.features) * item
    cdef Py_ssize_t count = 1 if task == ERROR else m.features if task == INVERSE else m.outputs
    cdef bint narrow = single and task != ERROR
    for i in range(rows):
        run_row(m, task, single, x + i * size, step, out + i * count * (4 if narrow else 8), work)
    return all_finite(out, rows * count, narrow)


cdef bint run(const fastdr_model *m, Task task, ndarray x, Py_ssize_t rows, void *out) except -1:
    """Do `task` for a row or a small block, without the GIL if it takes long.

    False if the results are not finite, or there are no axes for NaN in a row to show in.
    """
    cdef double small[SMALL]
    cdef double *work = &small[0] if m.axes <= SMALL else <double *>malloc(m.axes * sizeof(double))
    cdef const char *data = <const char *>PyArray_DATA(x)
    cdef bint single = PyArray_TYPE(x) == NPY_FLOAT, finite
    cdef Py_ssize_t step = 1
    if work == NULL:
        raise MemoryError(f"cannot allocate scratch for {m.axes} axes")
    if PyArray_NDIM(x) == 1:
        step = PyArray_STRIDE(x, 0) // (4 if single else 8)
    if m.axes * m.features > SHORT:
        with nogil:
            finite = run_rows(m, task, single, data, rows, step, <char *>out, work)
    else:
        finite = run_rows(m, task, single, data, rows, step, <char *>out, work)
    if work != &small[0]:
        free(work)
    return finite and m.axes > 0


def _again(method, x, name):
    """Return what a model's method makes of finite rows whose results left their range here."""
    rows = numpy.atleast_2d(x)
    raise_not_finite(rows, name)
    return method(rows)


cdef class Projector:
    """A linear model, frozen and ready to be applied to one row after the other.

    ``p(x)`` is the model's transform for one row (d,) or a batch (n, d). Safe to share between
    threads; can be pickled. From Cython and C see ``_serve.pxd`` and ``fastdr.h``.

    Parameters
    ----------
    model : LinearModel, DiscriminantModel or UnmixingModel
        Usually through ``model.projector()`` or ``PCA(...).fit(X).projector()``.

    Attributes
    ----------
    model : what it was made of
    n_features, n_outputs : int, the lengths of a row and of its scores.

    Raises
    ------
    ValueError
        From every method: wrong length, NaN or infinity, results out of range, unusable `out`.
    TypeError
        From every method: sparse, complex or non-numeric input.

    Notes
    -----
    Results have the input's working dtype, as everywhere: float32 for float32 and float16, else
    float64. float64 rows on a float32 model are multiplied in float64. One row costs O(d k) and
    a fraction of a microsecond. Batches of up to 65536 multiplications (128 rows for 64 -> 8) are
    such rows one after the other; larger ones go through ``model.transform``, by blocks on all
    threads, and agree with it to the bit and with single rows to rounding. The GIL is released
    for whatever takes more than 65536 multiplications.

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
        cdef object found = model.linear_map
        cdef ndarray components = numpy.ascontiguousarray(found.components)
        cdef ndarray back = (components if found.back is found.components else
                             numpy.ascontiguousarray(found.back, components.dtype))
        self.model = model
        self.arrays = (found, components, back)
        self.linear.features = PyArray_DIM(components, 1)
        self.linear.axes = PyArray_DIM(components, 0)
        self.linear.outputs = model.n_outputs
        self.linear.mean = <const double *>PyArray_DATA(<ndarray?>found.mean)
        self.linear.components = PyArray_DATA(components)
        self.linear.back = PyArray_DATA(back)
        self.linear.single = PyArray_TYPE(components) == NPY_FLOAT
        self.linear.turned = found.turned
        if found.scale is not None:
            self.linear.scale = <const double *>PyArray_DATA(<ndarray?>found.scale)
        if found.divisors is not None:
            self.linear.divisors = <const double *>PyArray_DATA(<ndarray?>found.divisors)

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
        cdef Py_ssize_t rows = rows_at_hand(x, self.linear.features, self.linear.axes)
        cdef ndarray z
        if rows == 0:
            if numpy.ndim(x) != 1:
                return self.model.transform(x)
            x, rows = as_row(x, self.linear.features, "x"), 1
        z = results(x, self.linear.outputs)
        if not run(&self.linear, PROJECT, x, rows, PyArray_DATA(z)):
            z[...] = _again(self.model.transform, x, "x")
        return z

    def into(self, x, out):
        """Put the scores of a row or batch into `out` and return it.

        `out` is contiguous, of the result's shape and dtype, and shares no memory with the model
        or a batch; it may with a row. Nothing is allocated for a row or a small batch and a model
        of up to 256 axes.
        """
        cdef Py_ssize_t rows = rows_at_hand(x, self.linear.features, self.linear.axes)
        if rows == 0:
            if numpy.ndim(x) != 1:
                return self.model.transform(x, out)
            x, rows = as_row(x, self.linear.features, "x"), 1
        if not is_target(out, x, self.linear.outputs) or is_read(&self.linear, x, out):
            shape = (self.linear.outputs,) if x.ndim == 1 else (x.shape[0], self.linear.outputs)
            out = output(out, shape, x.dtype, None if x.ndim == 1 else x, self.model)
        if not run(&self.linear, PROJECT, x, rows, PyArray_DATA(<ndarray>out)):
            out[...] = _again(self.model.transform, x, "x")
        return out

    def inverse(self, z):
        """Return the row (n_features,) or rows that scores stand for; `inverse_transform`."""
        cdef Py_ssize_t rows = rows_at_hand(z, self.linear.outputs, self.linear.features)
        cdef ndarray x
        if rows == 0:
            if numpy.ndim(z) != 1:
                return self.model.inverse_transform(z)
            z, rows = as_row(z, self.linear.outputs, "z"), 1
        x = results(z, self.linear.features)
        if not run(&self.linear, INVERSE, z, rows, PyArray_DATA(x)):
            x[...] = _again(self.model.inverse_transform, z, "z")
        return x

    def error(self, x):
        """Return the squared distance of a row to its reconstruction, or of each row, (n,)."""
        cdef Py_ssize_t rows = rows_at_hand(x, self.linear.features, self.linear.axes)
        cdef double error = 0
        cdef npy_intp count = rows
        if rows == 0:
            if numpy.ndim(x) != 1:
                return self.model.reconstruction_error(x, per_row=True)
            x, rows = as_row(x, self.linear.features, "x"), 1
        if PyArray_NDIM(<ndarray>x) == 1:
            if not run(&self.linear, ERROR, x, rows, &error):
                return _again(self.model.reconstruction_error, x, "x")
            return error
        errors = PyArray_EMPTY(1, &count, NPY_DOUBLE, 0)
        if not run(&self.linear, ERROR, x, rows, PyArray_DATA(<ndarray>errors)):
            raise_not_finite(x, "x")
            return self.model.reconstruction_error(x, per_row=True)
        return errors
