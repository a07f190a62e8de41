"""Exact counts of floating-point operations: textbook routines that count what they do.

Each elementary step (a scalar, an axpy, a product) is done by NumPy and entered in a `Ledger` with
the number of operations that its operands' shapes make: nothing is taken from a formula for the
whole. The routines return real decompositions, so that a test can hold them against LAPACK's.
They are the classical ones: Householder reductions (Golub & Kahan 1965, Martin, Reinsch &
Wilkinson 1968), QL iteration with vectors (Bowdler, Martin, Reinsch & Wilkinson 1968), implicitly
shifted QR for the bidiagonal (Golub & Reinsch 1970), QR first for long matrices (Chan 1982).
Additions, multiplications, divisions and square roots count one each; comparisons, copies, swaps
and changes of sign count nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

EPS = float(np.finfo(np.float64).eps)
LONG = 11 / 6  # rows over columns from which QR comes first, as in LAPACK's dgesdd
SWEEPS = 60  # iterations allowed for each value
ROTATION = 6  # operations for a pair of numbers that a rotation mixes: 4 products, 2 sums


class Ledger:
    """Vector steps that count themselves in ``flops``."""

    def __init__(self) -> None:
        self.flops = 0

    def dot(self, x: Any, y: Any) -> Any:
        """Return x · y of vectors or matrices, a multiplication and an addition a pair."""
        result = x @ y
        self.flops += 2 * x.shape[-1] * np.size(result)
        return result

    def add(self, target: Any, factor: float, x: Any) -> None:
        """Do target += factor x, in place."""
        target += factor * x
        self.flops += 2 * x.size

    def add_outer(self, target: Any, x: Any, y: Any) -> None:
        """Do target += x yᵀ, in place."""
        target += np.outer(x, y)
        self.flops += 2 * target.size

    def scale(self, factor: float, x: Any) -> Any:
        """Return factor x."""
        self.flops += x.size
        return factor * x

    def scalars(self, count: int) -> None:
        """Enter `count` operations on single numbers."""
        self.flops += count

    def rotate(self, x: Any, y: Any, c: float, s: float) -> None:
        """Turn the vectors x, y into c x + s y and c y - s x, in place."""
        self.flops += ROTATION * x.size
        old = x.copy()
        x *= c
        x += s * y
        y *= c
        y -= s * old

    def givens(self, x: float, y: float) -> tuple[float, float, float]:
        """Return c, s, r with c x + s y = r and c y - s x = 0."""
        self.flops += 6
        r = math.hypot(x, y)
        return (1.0, 0.0, 0.0) if r == 0.0 else (x / r, y / r, r)

    def householder(self, x: Any) -> tuple[Any, float, float]:
        """Return v, tau, alpha such that (1 - tau v vᵀ) x = alpha e₁, and v₁ = 1."""
        norm = math.sqrt(self.dot(x, x))
        self.flops += 5  # the root, and the four below
        if norm == 0.0:
            return np.eye(1, len(x))[0], 0.0, 0.0
        alpha = -math.copysign(norm, x[0])
        v = self.scale(1 / (x[0] - alpha), x)
        v[0] = 1.0
        return v, (alpha - x[0]) / alpha, alpha

    def reflect(self, v: Any, tau: float, A: Any) -> None:
        """Apply 1 - tau v vᵀ to the columns of A, in place."""
        if A.size:
            self.add_outer(A, self.scale(-tau, v), self.dot(v, A))


def gram(X: Any, ledger: Ledger) -> Any:
    """Return XᵀX: one triangle of it is computed, the other one is copied."""
    size = X.shape[1]
    result = np.empty((size, size))
    for row in range(size):
        result[row, row:] = result[row:, row] = ledger.dot(X[:, row], X[:, row:])
    return result


def eigh(C: Any, ledger: Ledger) -> tuple[Any, Any]:
    """Return the eigenvalues, ascending, and eigenvectors (columns) of a symmetric matrix."""
    diagonal, beside, rows = tridiagonal(C, ledger)
    ql(diagonal, beside, rows, ledger)
    order = np.argsort(diagonal)
    return diagonal[order], rows[order].T


def tridiagonal(C: Any, ledger: Ledger) -> tuple[Any, Any, Any]:
    """Reduce C to T = Q C Qᵀ: its diagonal, the one beside it, and Q.

    Only the lower triangle is read and updated.
    """
    A, size = np.tril(C), len(C)
    beside, reflectors = np.zeros(max(size - 1, 0)), []
    for step in range(size - 1):
        v, tau, beside[step] = ledger.householder(A[step + 1 :, step])
        reflectors.append((v, tau))
        part = A[step + 1 :, step + 1 :]
        p = ledger.scale(tau, _triangle_times(part, v, ledger))
        ledger.add(p, -tau * ledger.dot(p, v) / 2, v)
        ledger.scalars(2)
        for column in range(len(v)):
            ledger.add(part[column:, column], -p[column], v[column:])
            ledger.add(part[column:, column], -v[column], p[column:])
    Q = np.eye(size)
    for step, (v, tau) in reversed(list(enumerate(reflectors))):
        ledger.reflect(v, tau, Q[step + 1 :, step + 1 :])
    return np.diagonal(A).copy(), beside, np.ascontiguousarray(Q.T)


def _triangle_times(A: Any, x: Any, ledger: Ledger) -> Any:
    """Return the product of the symmetric matrix with the lower triangle A, and x."""
    result = np.zeros(len(x))
    for column in range(len(x)):
        ledger.add(result[column:], x[column], A[column:, column])
        result[column] += ledger.dot(A[column + 1 :, column], x[column + 1 :])
        ledger.scalars(1)
    return result


def ql(diagonal: Any, beside: Any, rows: Any, ledger: Ledger) -> None:
    """Diagonalise a tridiagonal matrix in place by implicit QL; its rotations turn `rows`."""
    size = len(diagonal)
    e = np.append(beside, 0.0)
    tiny = _negligible(diagonal, beside, ledger)
    for first in range(size):
        for _ in range(SWEEPS):
            last = first
            while last < size - 1 and abs(e[last]) > tiny:
                last += 1
            if last == first:
                break
            _ql_step(diagonal, e, rows, first, last, ledger)
        else:
            raise ArithmeticError(f"no eigenvalue after {SWEEPS} QL steps")


def _negligible(diagonal: Any, beside: Any, ledger: Ledger) -> float:
    """Return what an entry beside the diagonal may be without changing the matrix noticeably."""
    ledger.scalars(1)
    return EPS * float(max(abs(diagonal).max(), abs(beside).max(initial=0.0)))


def _ql_step(d: Any, e: Any, rows: Any, first: int, last: int, ledger: Ledger) -> None:
    """One QL step with Wilkinson's shift on the block from `first` to `last`."""
    g = (d[first + 1] - d[first]) / (2 * e[first])
    r = math.hypot(g, 1.0)
    g = d[last] - d[first] + e[first] / (g + math.copysign(r, g))
    ledger.scalars(11)
    s, c, p = 1.0, 1.0, 0.0
    for i in range(last - 1, first - 1, -1):
        f, b = s * e[i], c * e[i]
        c, s, e[i + 1] = ledger.givens(g, f)
        g = d[i + 1] - p
        r = (d[i] - g) * s + 2 * c * b
        p = s * r
        d[i + 1] = g + p
        g = c * r - b
        ledger.scalars(12)
        ledger.rotate(rows[i + 1], rows[i], c, s)
    d[first] -= p
    e[first], e[last] = g, 0.0
    ledger.scalars(1)


def svd(X: Any, ledger: Ledger) -> tuple[Any, Any, Any]:
    """Return the economy SVD U, s, Vᵀ of any matrix, singular values descending."""
    rows, columns = X.shape
    if rows < columns:
        U, s, Vt = svd(X.T, ledger)
        return Vt.T, s, U.T
    if rows > LONG * columns:
        Q, R = qr(X, ledger)
        U, s, Vt = _golub_reinsch(R, ledger)
        return ledger.dot(Q, U), s, Vt
    return _golub_reinsch(X, ledger)


def qr(X: Any, ledger: Ledger) -> tuple[Any, Any]:
    """Return Q with orthonormal columns and R, by Householder reflections."""
    A, columns, reflectors = X.copy(), X.shape[1], []
    for step in range(columns):
        v, tau, alpha = ledger.householder(A[step:, step])
        reflectors.append((v, tau))
        A[step, step], A[step + 1 :, step] = alpha, 0.0
        ledger.reflect(v, tau, A[step:, step + 1 :])
    return _columns(reflectors, X.shape, 0, ledger), A[:columns]


def _columns(reflectors: list[tuple[Any, float]], shape: tuple[int, int], shift: int,
             ledger: Ledger) -> Any:
    """Return the first columns of the product of reflectors; number j begins at j + shift."""
    Q = np.eye(*shape)
    for step, (v, tau) in reversed(list(enumerate(reflectors))):
        ledger.reflect(v, tau, Q[step + shift :, step + shift :])
    return Q


def _golub_reinsch(X: Any, ledger: Ledger) -> tuple[Any, Any, Any]:
    A, (rows, columns) = X.copy(), X.shape
    d, e, left, right = np.zeros(columns), np.zeros(columns), [], []
    for step in range(columns):
        v, tau, d[step] = ledger.householder(A[step:, step])
        left.append((v, tau))
        ledger.reflect(v, tau, A[step:, step + 1 :])
        if step < columns - 1:
            v, tau, e[step] = ledger.householder(A[step, step + 1 :])
            right.append((v, tau))
            ledger.reflect(v, tau, A[step + 1 :, step + 1 :].T)
    U = np.ascontiguousarray(_columns(left, (rows, columns), 0, ledger).T)
    V = np.ascontiguousarray(_columns(right, (columns, columns), 1, ledger).T)
    _bidiagonal(d, e, U, V, ledger)
    V[d < 0] *= -1
    order = np.argsort(-abs(d))
    return U[order].T, abs(d)[order], V[order]


def _bidiagonal(d: Any, e: Any, U: Any, V: Any, ledger: Ledger) -> None:
    """Diagonalise a bidiagonal matrix in place; left rotations turn rows of U, right ones V."""
    tiny = _negligible(d, e, ledger)
    last, steps = len(d) - 1, 0
    while last > 0:
        first = last
        while first > 0 and abs(e[first - 1]) > tiny:
            first -= 1
        if first == last:
            last -= 1
            continue
        steps += 1
        if steps > SWEEPS * len(d) or not d[first:last].all():
            raise ArithmeticError("no singular value found: the matrix has not full rank")
        _golub_kahan_step(d, e, U, V, first, last, ledger)


def _golub_kahan_step(d: Any, e: Any, U: Any, V: Any, first: int, last: int,
                      ledger: Ledger) -> None:
    before = e[last - 2] if last - 1 > first else 0.0
    a, b = d[last - 1] ** 2 + before**2, d[last - 1] * e[last - 1]
    c2 = d[last] ** 2 + e[last - 1] ** 2
    half = (a - c2) / 2
    shift = c2 - (b * b / (half + math.copysign(math.hypot(half, b), half)) if b else 0.0)
    y, z = d[first] ** 2 - shift, d[first] * e[first]
    ledger.scalars(20)
    for k in range(first, last):
        c, s, r = ledger.givens(y, z)
        if k > first:
            e[k - 1] = r
        y, e[k] = c * d[k] + s * e[k], c * e[k] - s * d[k]
        z, d[k + 1] = s * d[k + 1], c * d[k + 1]
        ledger.rotate(V[k], V[k + 1], c, s)
        c, s, d[k] = ledger.givens(y, z)
        y, d[k + 1] = c * e[k] + s * d[k + 1], c * d[k + 1] - s * e[k]
        e[k], z = y, 0.0
        ledger.scalars(14)
        if k < last - 1:
            z, e[k + 1] = s * e[k + 1], c * e[k + 1]
            ledger.scalars(2)
        ledger.rotate(U[k], U[k + 1], c, s)
    e[last - 1] = y


def count(operation: str, rows: int, columns: int) -> int:
    """Return the operations of "form", "eig" or "svd" for a seeded (rows, columns) matrix.

    "eig" decomposes a matrix XᵀX of that many columns, which is formed without counting.
    """
    X = np.random.default_rng([rows, columns]).standard_normal((rows, columns))
    ledger = Ledger()
    if operation == "form":
        gram(X, ledger)
    elif operation == "eig":
        eigh(X.T @ X, ledger)
    else:
        svd(X, ledger)
    return ledger.flops
