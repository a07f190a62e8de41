"""BLAS and LAPACK for float and double under one name: the precision is chosen here alone.

Matrices are column-major, as BLAS has them; a row-major (m, n) array is a column-major (n, m) one.
"""

from scipy.linalg.cython_blas cimport dgemm, dtrsm, sgemm, strsm
from scipy.linalg.cython_lapack cimport dpotrf, spotrf

ctypedef fused floating:
    float
    double


cdef inline void gemm(char *left, char *right, int m, int n, int k, floating alpha, floating *a,
                      int lda, floating *b, int ldb, floating beta, floating *c,
                      int ldc) noexcept nogil:
    """c = alpha op(a) op(b) + beta c"""
    if floating is double:
        dgemm(left, right, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc)
    else:
        sgemm(left, right, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc)


cdef inline int potrf(int n, floating *a, int lda) noexcept nogil:
    """a = U'U, upper triangle; returns 0 if a is positive definite."""
    cdef int info
    if floating is double:
        dpotrf(b"U", &n, a, &lda, &info)
    else:
        spotrf(b"U", &n, a, &lda, &info)
    return info


cdef inline void divide(int m, int n, floating *u, int ldu, floating *x, int ldx) noexcept nogil:
    """x = x inverse(u), u upper triangular of order n"""
    cdef floating one = 1
    if floating is double:
        dtrsm(b"R", b"U", b"N", b"N", &m, &n, &one, u, &ldu, x, &ldx)
    else:
        strsm(b"R", b"U", b"N", b"N", &m, &n, &one, u, &ldu, x, &ldx)
