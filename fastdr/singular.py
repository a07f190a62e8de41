"""The largest singular values of a matrix or operator, and their vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, svd

from fastdr.actions import OperatorAction
from fastdr.centring import CentredRows, centred_rows, read_again
from fastdr.certificate import Certificate, certificate, doubt_of
from fastdr.eigen import SolverInfo
from fastdr.lanczos import Callback
from fastdr.models import fix_signs, times_power
from fastdr.plan import ITERATIVE, PROOF, Task, plan
from fastdr.solvers import Spectrum, lapack
from fastdr.sources import ArraySource
from fastdr.topk import TOL, Iteration, iterative, sharp
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    check_values,
    finite,
    whole,
    working_dtype,
)

METHODS = ("auto", "lapack", *ITERATIVE)
ADJOINT = {8: 1e-8, 4: 1e-3}  # relative difference of <A x, y> and <x, A' y>


class SVDResult(NamedTuple):
    """Left vectors (n, k), singular values (k,) descending, right vectors (k, d), and how.

    ``info.residuals`` are the norms of A' u - s v, ``info.certificate`` bounds the values.

    Examples
    --------
    >>> import fastdr
    >>> fastdr.svds(np.diag([3.0, 2.0, 1.0]), k=1).s.round(12)
    array([3.])
    """

    U: AnyArray
    s: FloatArray
    Vt: AnyArray
    info: SolverInfo


def svds(X: Any, k: int = 6, *, method: str = "auto", center: bool = False, scale: bool = False,
         tol: float = 0.0, start: ArrayLike | None = None,
         random_state: int | np.random.Generator | None = 0,
         callback: Callback | None = None) -> SVDResult:
    """Return the `k` largest singular values of a matrix and their vectors.

    Parameters
    ----------
    X : (n, d) array, memory-mapped array, sparse matrix or scipy.sparse.linalg.LinearOperator
        Real and finite. An operator needs its adjoint.
    k : int, default 6
        1 to min(n, d).
    method : {"auto", "lapack", "lanczos", "power", "randomized"}, default "auto"
        As ``svd_solver`` of `PCA`; "lapack" needs an array.
    center, scale : bool, default False
        Subtract the column means; divide columns by their root mean square about the centre
        (divisor n - 1 if centred), constant ones by 1. Arrays only; never by a copy.
    tol : float, default 0
        Largest residual of an eigenvector of X'X relative to its largest eigenvalue; 0 means
        1e-10, 1e-5 for float32, and less where small values are wanted; 1e-4 for "randomized".
    start : (d, j) array, optional
        Right vectors to begin with, such as those of an earlier answer, transposed.
    random_state : int or Generator, default 0
    callback : function(columns, values, residuals), optional
        Told of squared singular values now and then, up to a power of 2; an exception from it
        ends the iteration.

    Returns
    -------
    SVDResult
        ``U, s, Vt, info``; the entry of largest magnitude of each right vector is positive.
        Values are accurate to rounding relative to the largest: they are those of a triangle R,
        A V = Q R, not roots of eigenvalues.

    Raises
    ------
    ValueError
        `X` not finite; `k` or another argument out of range; an operator without adjoint, or
        with one that is not its adjoint.
    TypeError
        Complex `X`, or an object that is neither array nor operator.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached; ``info`` has what was.

    Notes
    -----
    4 n d operations a column in one read for 8 of them (16 in float32), or 2 min(n, d)² once
    X'X is formed, whichever `plan` finds cheaper. Memory of the vectors, a basis of about 3 k of
    them and perhaps the smaller Gram matrix. Golub & Kahan (1965) on X'X; see `eigsh`.

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> U, s, Vt, info = fastdr.svds(np.array([[3.0, 0], [0, 2], [0, 0]]), k=2)
    >>> s.round(12)
    array([3., 2.])
    >>> bool(np.allclose((U * s) @ Vt, [[3, 0], [0, 2], [0, 0]]))
    True
    """
    _check(method, tol)
    rng = np.random.default_rng(random_state)
    sparse = hasattr(X, "tocsr")
    if sparse or (not isinstance(X, np.ndarray) and hasattr(X, "rmatmat")):
        if center or scale:
            raise ValueError("center and scale need an array: an operator or a sparse matrix is "
                             "taken as it is.")
        return _of_operator(_operator(X), k, method, tol, start, rng, callback)
    X = as_matrix(X)
    _check_count(k, X.shape)
    rows = centred_rows(ArraySource(X), mean=None if center else np.zeros(X.shape[1]),
                        standardize=scale, scatter=False)
    how = Iteration(rng, tol=tol, start=_rows_of(start, X.shape[1]), callback=callback,
                    prove=min(X.shape) <= PROOF)
    found = _axes(rows, k, method, how)
    images = _images(rows, found.vectors)
    U, s, Vt = _triplets(images, found.vectors)
    apart = _adjoint_images(rows, U) - s[:, None] * Vt
    told = found.certificate
    if told is None:
        told = certificate(s**2, np.zeros(k), 0.0, doubt_of(k, float(s[0]) ** 2), None, "none")
    return _result(found, U, s, Vt, apart, told, working_dtype(X.dtype), rows.unit,
                   how.tol or TOL[8])


def _check(method: str, tol: float) -> None:
    check_values({"method": method, "tol": tol}, {
        "method": (method in METHODS, f"one of {', '.join(METHODS)}"),
        "tol": (finite(tol) and 0 <= tol < 1, "a number of at least 0 and below 1")})


def _check_count(k: int, shape: tuple[int, ...]) -> None:
    check_values({"k": k}, {"k": (whole(k, 1) and k <= min(shape),
                                  f"an integer from 1 to min(n, d), {min(shape)}")})


def _rows_of(start: ArrayLike | None, size: int) -> FloatArray | None:
    """Return the columns to begin with as rows."""
    if start is None:
        return None
    given = as_numbers(start, "start").astype(np.float64, copy=False)
    if given.ndim != 2 or given.shape[0] != size or not np.isfinite(given).all():
        raise ValueError(f"start has shape {given.shape}; expected ({size}, j), finite.")
    return np.ascontiguousarray(given.T)


def _axes(rows: CentredRows, k: int, method: str, how: Iteration) -> Spectrum:
    """Return right vectors by the way that is planned."""
    shape = rows.source.shape
    way = plan(Task(shape[0], shape[1], rows.source.dtype, k, solver=method, tol=how.tol))
    exact = way.solver == "power"  # which takes no value below 0, such as float32 sums may have
    if way.on == "covariance":
        rows = read_again(rows, double=exact)
    elif exact and way.on != "rows":
        rows = replace(rows, single=False)
    if way.solver == "lapack":
        return lapack(rows, k, prove=how.prove)
    return iterative(rows, k, replace(how, method=way.solver, budget=way.budget),
                     read=way.on == "rows")


def _images(rows: CentredRows, vectors: FloatArray) -> FloatArray:
    """Return A V', (n, k), in float64."""
    varying = rows.squares > 0
    return np.concatenate([block @ vectors[:, varying].T for block in rows.blocks()])


def _adjoint_images(rows: CentredRows, left: FloatArray) -> FloatArray:
    """Return U' A, (k, d)."""
    varying, start = rows.squares > 0, 0
    total = np.zeros((left.shape[1], rows.mean.size))
    part = np.zeros((left.shape[1], int(np.count_nonzero(varying))))
    for block in rows.blocks():
        part += left[start:start + len(block)].T @ block
        start += len(block)
    total[:, varying] = part
    return total


def _triplets(images: FloatArray, vectors: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return U, s and V' of A given A V and orthonormal rows V: a last Rayleigh-Ritz step."""
    left, factor = qr(images, mode="economic", check_finite=False)
    turn, values, back = svd(factor, check_finite=False, lapack_driver="gesvd")
    right = back @ vectors
    turned = fix_signs(right.copy())
    return (left @ turn) * np.where((turned == right).all(axis=1), 1.0, -1.0), abs(values), turned


def _result(found: Spectrum, U: FloatArray, s: FloatArray, Vt: FloatArray, apart: FloatArray,
            told: Certificate, dtype: np.dtype[Any], exponent: int, tol: float) -> SVDResult:
    """Put the answer together, in the units of the user."""
    if not found.converged:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(f"{found.solver} stopped after {found.columns} columns with a residual of "
                      f"{found.residual:.1e} relative to the largest squared value, above its "
                      "tolerance. The values are lower bounds.", ConvergenceWarning, stacklevel=3)
    residuals = np.linalg.norm(apart, axis=1)
    told = replace(told, lower=np.sqrt(np.maximum(told.lower, 0.0)), upper=np.sqrt(told.upper),
                   residuals=residuals)
    scaled = [times_power(values, -exponent) for values in
              (s, residuals, told.lower, told.upper, told.residuals)]
    Vt = np.ascontiguousarray(Vt, dtype)
    told = replace(told, lower=scaled[2], upper=scaled[3], residuals=scaled[4]).stored(Vt)
    info = SolverInfo(found.solver, found.converged, scaled[1], found.columns, 0, tol, told)
    return SVDResult(U.astype(dtype), scaled[0], Vt, info)


@dataclass(frozen=True)
class _Operator:
    """Products with a real A times 2**-exponent, near 1, and with its adjoint."""

    given: Any
    dtype: np.dtype[Any]
    exponent: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.given.shape  # type: ignore[no-any-return]

    def matmat(self, columns: AnyArray) -> AnyArray:
        """Return A times `columns`."""
        return self._scaled(self.given.matmat, columns)

    def rmatmat(self, columns: AnyArray) -> AnyArray:
        """Return A' times `columns`."""
        return self._scaled(self.given.rmatmat, columns)

    def _scaled(self, product: Callable[[AnyArray], Any], columns: AnyArray) -> AnyArray:
        half = self.exponent // 2  # before and behind, so that neither overflows nor vanishes
        images = np.asarray(product(times_power(columns, -half)))
        return np.asarray(times_power(images, half - self.exponent))


def _operator(X: Any) -> _Operator:
    """Return a sparse matrix or an operator as an operator whose adjoint is one."""
    from scipy.sparse.linalg import aslinearoperator

    given = aslinearoperator(X)
    dtype = np.dtype(given.dtype or np.float64)
    if dtype.kind not in "fiub":
        raise TypeError(f"X has dtype {dtype}; expected real numbers.")
    if hasattr(X, "data") and hasattr(X, "tocsr") and not np.isfinite(X.tocsr().data).all():
        raise ValueError("X contains NaN or infinity among its stored entries.")
    rng = np.random.default_rng(0)
    n, d = given.shape
    left, right = rng.standard_normal((n, 1)), rng.standard_normal((d, 1))
    peak = float(np.abs(np.asarray(given.matmat(right))).max(initial=0.0))
    operator = _Operator(given, np.dtype(working_dtype(dtype)), math.frexp(peak)[1])
    image = operator.matmat(right)
    try:
        back = operator.rmatmat(left)
    except (NotImplementedError, TypeError, AttributeError):
        raise ValueError("the operator has no adjoint: define rmatvec or rmatmat, which svds "
                         "needs as much as matvec.") from None
    sizes = float(np.linalg.norm(image) * np.linalg.norm(left))
    apart = abs(float(left[:, 0] @ image[:, 0]) - float(back[:, 0] @ right[:, 0]))
    if not apart <= ADJOINT[4 if dtype.itemsize == 4 else 8] * sizes:
        apart = float(times_power(apart, operator.exponent))
        raise ValueError(f"rmatmat is not the adjoint of matmat, or their values are not finite: "
                         f"<A x, y> and <x, A' y> differ by {apart:g}.")
    return operator


def _of_operator(operator: _Operator, k: int, method: str, tol: float, start: ArrayLike | None,
                 rng: np.random.Generator, callback: Callback | None) -> SVDResult:
    """Iterate on the smaller of A'A and AA'."""
    n, d = operator.shape
    _check_count(k, (n, d))
    if method == "lapack":
        raise ValueError("method='lapack' needs an array; use 'lanczos' for an operator.")
    first, second = operator.matmat, operator.rmatmat
    given = _rows_of(start, d)
    if n < d:
        first, second = second, first
        given = None if given is None else np.ascontiguousarray(operator.matmat(given.T).T)
    action = OperatorAction(lambda columns: second(first(columns)), min(n, d), operator.dtype)
    how = Iteration(rng, "lanczos" if method == "auto" else method, tol, callback=callback)
    ritz = sharp(action, k, how, given)
    images = np.asarray(first(ritz.vectors.T), np.float64)
    U, s, Vt = _triplets(images, ritz.vectors)
    if n < d:  # the vectors found are left ones, so the right ones take a step of their own
        U, s, Vt = _triplets(np.asarray(operator.matmat(U), np.float64), U.T)
    apart = np.asarray(operator.rmatmat(U), np.float64).T - s[:, None] * Vt
    found = Spectrum(ritz.values, ritz.vectors, 0.0, 0.0, 0.0, k, how.method, 0, how.method, "",
                     action.columns, float(ritz.residuals.max()) / (ritz.scale or 1.0),
                     ritz.converged)
    told = certificate(s**2, np.zeros(k), 0.0, doubt_of(k, float(s[0]) ** 2), None, "none")
    return _result(found, U, s, Vt, apart, told, operator.dtype, -operator.exponent,
                   tol or TOL[operator.dtype.itemsize])
