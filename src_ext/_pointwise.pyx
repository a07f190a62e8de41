"""Contrast functions of independent component analysis, over panels of whitened rows.

A panel is a (k, PANEL) matrix whose columns are rows of the data, padded with zero columns.
Python hands over arrays it has checked; nothing here checks again. Every function releases the
GIL and runs on the calling thread.
"""

from cython cimport floating
from libc.stddef cimport ptrdiff_t

from fastdr._dense import isa

cdef extern from "contrast.h" nogil:
    Py_ssize_t FC_PANEL

    ctypedef struct fc_kernels:
        void unmix(const void *, ptrdiff_t, const void *, ptrdiff_t, void *) noexcept nogil
        void add_products(const void *, ptrdiff_t, const void *, ptrdiff_t,
                          double *) noexcept nogil
        void (*score[3])(void *, ptrdiff_t, double, const void *, double *) noexcept nogil
        void (*loss[3])(const void *, ptrdiff_t, double, const void *, double *) noexcept nogil

    ctypedef struct fc_family:
        fc_kernels f8, f4

    const fc_family *fc_find(const char *name)


PANEL = FC_PANEL
cdef const fc_family *family = fc_find(isa().encode())


cdef inline const fc_kernels *kernels(const floating *unused) noexcept nogil:
    if floating is float:
        return &family.f4
    else:
        return &family.f8


cdef inline const floating *weights_of(const floating[:, ::1] weight,
                                       Py_ssize_t panel) noexcept nogil:
    return NULL if weight.shape[0] == 0 else &weight[panel, 0]


def pack(const floating[:, ::1] rows, floating[:, :, ::1] out):
    """Put rows (n, k) into panels (ceil(n / PANEL), k, PANEL), zeros behind the last."""
    cdef Py_ssize_t n = rows.shape[0], k = rows.shape[1], panel, first, count, i, j
    with nogil:
        for panel in range(out.shape[0]):
            first = panel * FC_PANEL
            count = min(FC_PANEL, n - first)
            for j in range(k):
                for i in range(count):
                    out[panel, j, i] = rows[first + i, j]
                for i in range(count, FC_PANEL):
                    out[panel, j, i] = 0


def unmix(const floating[:, :, ::1] panels, const floating[:, ::1] unmixing,
          floating[:, :, ::1] out):
    """Put unmixing (p, k) times each of the panels (m, k, PANEL) into out (m, p, PANEL)."""
    cdef Py_ssize_t panel
    cdef const fc_kernels *use = kernels(&unmixing[0, 0])
    with nogil:
        for panel in range(panels.shape[0]):
            use.unmix(&unmixing[0, 0], unmixing.shape[0], &panels[panel, 0, 0], panels.shape[1],
                      &out[panel, 0, 0])


def add_products(const floating[:, :, ::1] scores, const floating[:, :, ::1] panels,
                 double[:, ::1] out):
    """Add the sum of scores (m, p, PANEL) times panels (m, k, PANEL), transposed, to out (p, k)."""
    cdef Py_ssize_t panel
    cdef const fc_kernels *use = kernels(&scores[0, 0, 0])
    with nogil:
        for panel in range(panels.shape[0]):
            use.add_products(&scores[panel, 0, 0], scores.shape[1], &panels[panel, 0, 0],
                             panels.shape[1], &out[0, 0])


def score(floating[:, ::1] rows, int contrast, double a, const floating[:, ::1] weight,
          double[::1] slopes):
    """Replace rows (p, PANEL) by w g(rows), add the sums of w g'(rows) to slopes (p,).

    contrast 0: log cosh(a y) / a, 1: 1 - exp(-y^2 / 2), 2: y^4 / 4; weight (1, PANEL) or (0, 0).
    """
    with nogil:
        kernels(&rows[0, 0]).score[contrast](&rows[0, 0], rows.shape[0], a,
                                             weights_of(weight, 0), &slopes[0])


def add_scores(const floating[:, :, ::1] panels, const floating[:, ::1] unmixing, int contrast,
               double a, const floating[:, ::1] weight, floating[:, ::1] work,
               double[:, ::1] products, double[::1] slopes):
    """Add the sums of w g(y) x' to products (p, k) and of w g'(y) to slopes (p,), y = unmixing x.

    x are the columns of panels (m, k, PANEL); weight (m, PANEL) or (0, 0); work (p, PANEL).
    """
    cdef Py_ssize_t p = unmixing.shape[0], k = panels.shape[1], panel
    cdef const fc_kernels *use = kernels(&unmixing[0, 0])
    cdef floating *y = &work[0, 0]
    with nogil:
        for panel in range(panels.shape[0]):
            use.unmix(&unmixing[0, 0], p, &panels[panel, 0, 0], k, y)
            use.score[contrast](y, p, a, weights_of(weight, panel), &slopes[0])
            use.add_products(y, p, &panels[panel, 0, 0], k, &products[0, 0])


def add_losses(const floating[:, :, ::1] panels, const floating[:, ::1] unmixing, int contrast,
               double a, const floating[:, ::1] weight, floating[:, ::1] work,
               double[::1] losses):
    """Add the sums of the contrast w G(y) to losses (p,); arguments as for `add_scores`."""
    cdef Py_ssize_t p = unmixing.shape[0], panel
    cdef const fc_kernels *use = kernels(&unmixing[0, 0])
    cdef floating *y = &work[0, 0]
    with nogil:
        for panel in range(panels.shape[0]):
            use.unmix(&unmixing[0, 0], p, &panels[panel, 0, 0], panels.shape[1], y)
            use.loss[contrast](y, p, a, weights_of(weight, panel), &losses[0])
