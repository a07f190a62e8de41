"""Compiled steps of the iterative eigensolvers on a basis kept as rows.

A basis (m, d) holds orthonormal rows in its first `known` ones; a block is the next few rows.
"""

from libc.string cimport memcpy

from precision cimport divide, floating, gemm, potrf


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
