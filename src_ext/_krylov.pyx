"""Compiled steps of the iterative eigensolvers: on a basis kept as rows, and on their matrix.

A basis (m, d) holds orthonormal rows in its first `known` ones; a block is the next few rows.
"""

from libc.math cimport fabs
from libc.string cimport memcpy

from precision cimport divide, floating, gemm, potrf

cdef extern from "tile.h" nogil:
    void FD_PREFETCH(const void *address)


def expand(floating[:, ::1] basis, Py_ssize_t known, Py_ssize_t size, floating[:, ::1] overlap,
           floating[:, ::1] factor):
    """One turn of Gram-Schmidt and Cholesky QR on block W = basis[known:known + size].

    overlap = W K', W -= overlap K with K = basis[:known]; then W = factor Q, factor lower
    triangular, and Q replaces W. Returns the condition of factor as smallest over largest
    diagonal entry; 0 if W is singular to rounding: then W is left orthogonal to K only.
    overlap (size, known), factor (size, size).
    """
    cdef Py_ssize_t d = basis.shape[1], i, j
    cdef floating *k = &basis[0, 0]
    cdef floating *w = k + known * d
    cdef floating *r = &factor[0, 0]
    cdef double least = 0, most = 0
    with nogil:
        if known:
            gemm(b"T", b"N", <int>known, <int>size, <int>d, <floating>1, k, <int>d, w, <int>d,
                 <floating>0, &overlap[0, 0], <int>known)
            gemm(b"N", b"N", <int>d, <int>size, <int>known, <floating>-1, k, <int>d,
                 &overlap[0, 0], <int>known, <floating>1, w, <int>d)
        gemm(b"T", b"N", <int>size, <int>size, <int>d, <floating>1, w, <int>d, w, <int>d,
             <floating>0, r, <int>size)
        if potrf(<int>size, r, <int>size) == 0:
            least = most = r[0]
            for i in range(size):
                least = min(least, r[i * size + i])
                most = max(most, r[i * size + i])
                for j in range(i + 1, size):
                    r[i * size + j] = 0
            divide(<int>d, <int>size, r, <int>size, w, <int>d)
    return least / most if most > 0 else 0.0


def rotate(floating[:, ::1] basis, const floating[:, ::1] turn, floating[:, ::1] work):
    """basis[:q] = turn basis[:j] with turn (q, j), in place, as many columns at a time as work has.

    work (j, any) scratch.
    """
    cdef Py_ssize_t q = turn.shape[0], j = turn.shape[1], d = basis.shape[1], i, n
    cdef Py_ssize_t first = 0, step = work.shape[1]
    cdef floating *z = <floating *>&turn[0, 0]
    cdef floating *scratch = &work[0, 0]
    cdef floating *k = &basis[0, 0]
    with nogil:
        while first < d:
            n = min(step, d - first)
            for i in range(j):
                memcpy(scratch + i * n, k + i * d + first, n * sizeof(floating))
            gemm(b"N", b"N", <int>n, <int>q, <int>j, <floating>1, scratch, <int>n, z, <int>j,
                 <floating>0, k + first, <int>d)
            first += step


def symmetry(const floating[:, :] matrix, Py_ssize_t first, Py_ssize_t last):
    """Return the largest |c_ij| and |c_ij - c_ji| for i in [first, last) and j >= i.

    The second is NaN if an entry, or a difference, is not finite. Squares of 8 entries, a cache
    line, are compared with their mirror images, 64 columns before the next rows.
    """
    cdef Py_ssize_t order = matrix.shape[0], far, i, j, r, c, rows, columns
    cdef double most[8]
    cdef double apart[8]
    cdef double doubt[8]
    cdef double here[8][8]
    cdef double there[8][8]
    cdef double gap
    with nogil:
        for c in range(8):
            most[c] = apart[c] = doubt[c] = 0
            for r in range(8):
                here[r][c] = there[r][c] = 0
        for far in range(first, order, 64):
            for j in range(far, min(far + 64, order), 8):
                columns = min(<Py_ssize_t>8, order - j)
                for i in range(first, min(last, j + columns), 8):
                    rows = min(<Py_ssize_t>8, last - i)
                    if j + 64 + columns <= order:  # the same lines of the next square to come
                        for r in range(rows):
                            FD_PREFETCH(&matrix[i + r, j + 64])
                        for c in range(columns):
                            FD_PREFETCH(&matrix[j + 64 + c, i])
                    for c in range(columns):
                        for r in range(rows):
                            there[r][c] = matrix[j + c, i + r]
                    for r in range(rows):
                        for c in range(columns):
                            here[r][c] = matrix[i + r, j + c]
                    for r in range(rows):
                        for c in range(8):
                            gap = here[r][c] - there[r][c]
                            doubt[c] += gap * 0
                            gap = fabs(gap)
                            apart[c] = gap if gap > apart[c] else apart[c]
                            gap = fabs(here[r][c])
                            most[c] = gap if gap > most[c] else most[c]
        for c in range(1, 8):
            most[0] = max(most[0], most[c])
            apart[0] = max(apart[0], apart[c])
            doubt[0] += doubt[c]
    return most[0], apart[0] + doubt[0]
