"""The largest eigenpairs of a symmetric matrix or operator, and what is proved of them."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fastdr._krylov import symmetry
from fastdr.actions import Action, MatrixAction, OperatorAction
from fastdr.certificate import Certificate, certificate, doubt_of, proved
from fastdr.lanczos import Callback, Ritz, lanczos, polished, rounding
from fastdr.models import fix_signs, times_power
from fastdr.plan import PROOF, race
from fastdr.power import power
from fastdr.solvers import eigh_of
from fastdr.subspace import unit_rows
from fastdr.threads import blas_limit, ordered_map
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    check_values,
    finite,
    raise_not_finite,
    whole,
)

METHODS = ("auto", "lanczos", "power", "lapack")
TOL = {8: 1e-10, 4: 1e-5}  # residual relative to the largest value
SYMMETRY = {8: 1e-10, 4: 1e-4}  # largest |C - C'| relative to the largest entry
STRIP = 64  # rows that are compared with columns at a time
MAX_COLUMNS = {"lanczos": 300, "power": 3000}  # that a pair may cost


@dataclass(frozen=True)
class SolverInfo:
    """How an eigenproblem was solved.

    Attributes
    ----------
    method : str, "lanczos", "power" or "lapack"
    converged : bool, whether every residual is at most tol times the largest magnitude.
    residuals : (k,) norms of C v - value v, computed from the answer.
    columns : int, vectors multiplied by C.
    restarts : int
    tol : float, that held: the one asked for or the least that rounding allows.
    certificate : Certificate

    Examples
    --------
    >>> import fastdr
    >>> info = fastdr.eigsh(np.diag([3.0, 2.0, 1.0]), k=1).info
    >>> info.method, info.converged
    ('lapack', True)
    """

    method: str
    converged: bool
    residuals: FloatArray
    columns: int
    restarts: int
    tol: float
    certificate: Certificate


class EigenResult(NamedTuple):
    """Eigenvalues (k,) descending, eigenvectors (d, k) as columns, and how they were found.

    Examples
    --------
    >>> import fastdr
    >>> fastdr.eigsh(np.diag([3.0, 2.0, 1.0]), k=1).values.round(12)
    array([3.])
    """

    values: FloatArray
    vectors: AnyArray
    info: SolverInfo


def eigsh(C: Any, k: int = 6, *, method: str = "auto", tol: float = 0.0,
          start: ArrayLike | None = None, ncv: int | None = None, maxiter: int | None = None,
          random_state: int | np.random.Generator | None = 0,
          certificate: bool | str = True, callback: Callback | None = None) -> EigenResult:
    """Return the `k` largest eigenvalues of a symmetric matrix and their eigenvectors.

    Parameters
    ----------
    C : (d, d) array or scipy.sparse.linalg.LinearOperator
        Symmetric, finite; it need not be positive semi-definite except for "power".
    k : int, default 6
        1 to d.
    method : {"auto", "lanczos", "power", "lapack"}, default "auto"
        "lanczos": thick-restart block Lanczos with full reorthogonalisation; "power": subspace
        iteration with a shift; "lapack": all of the matrix at once; "auto": LAPACK for d up to
        400 or more than about d / 40 pairs, else Lanczos, and LAPACK if 0.6 of its time does
        not do.
    tol : float, default 0
        Largest residual relative to the largest magnitude of an eigenvalue; 0 means 1e-10, 1e-5
        for float32. What is below the reach of rounding is replaced by that, with a warning.
    start : (d, j) array, optional
        Columns to begin with, such as the vectors of an earlier answer.
    ncv : int, optional
        Longest Lanczos basis, at least max(3 k, k + 10 blocks), the default.
    maxiter : int, optional
        Most columns to multiply, default 300 (k + 8), ten times that for "power", about 0.2 d
        for "auto".
    random_state : int or Generator, default 0
        Of the random vectors that the basis begins with.
    certificate : {True, False, "residual", "proof"}, default True
        "proof" factors a shifted copy of C (d³/3 operations) to prove that nothing was missed;
        True does so for d up to 3000; the others only give residuals.
    callback : function(columns, values, residuals), optional
        Called now and then; an exception from it ends the iteration.

    Returns
    -------
    EigenResult
        ``values, vectors, info``; the entry of largest magnitude of each vector is positive.

    Raises
    ------
    ValueError
        `C` not square, not symmetric, not finite; `k` or another argument out of range.
    TypeError
        Sparse or complex `C`, or an object that is neither array nor operator.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached; ``info`` has what was.

    Notes
    -----
    2 d² operations a column and one read of C for 8 of them (16 in float32); memory of the
    basis. Nothing depends on the number of threads. float32 matrices are multiplied in float32
    and the last Rayleigh-Ritz step is done in float64. Wu & Simon (2000), Stewart (2001).

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> values, vectors, info = fastdr.eigsh(np.diag([5.0, 1.0, 3.0, 2.0]), k=2)
    >>> values.round(12)
    array([5., 3.])
    >>> info.certificate.method
    'cholesky'
    """
    matrix, action, asymmetry = _given(C)
    size, item = action.size, action.dtype.itemsize
    _check(size, k, method, tol, certificate, ncv, maxiter)
    tol = _reachable(tol or TOL[item], size, action.dtype)
    first = None if start is None else _unit_rows(start, size, "start")
    rng = np.random.default_rng(random_state)
    raced = method == "auto" and matrix is not None
    budget = race(size, k, action.dtype, tol) if raced else 0.0
    if raced and not budget:
        method, raced = "lapack", False
    with np.errstate(under="ignore"):
        if method == "lapack":
            found = _dense(matrix, action, k, tol)
        else:
            method = "lanczos" if method == "auto" else method
            most = maxiter or budget or MAX_COLUMNS[method] * (k + 8)
            solve = power if method == "power" else partial(lanczos, length=ncv, race=raced)
            found = solve(action, k, tol=tol, rng=rng, start=first, budget=most,
                          callback=_scaled(callback, action.exponent))
            if raced and not found.converged:
                method, found = "lapack", _dense(matrix, action, k, tol)
        told = _certified(matrix, action, found, certificate, asymmetry)
    if not found.converged:
        _warn(found, tol, method)
    vectors = fix_signs(found.vectors).astype(action.dtype)
    return EigenResult(times_power(found.values, action.exponent), np.ascontiguousarray(vectors.T),
                       SolverInfo(method, found.converged,
                                  times_power(found.residuals, action.exponent),
                                  found.columns, found.restarts, tol, told.stored(vectors)))


def certify(C: ArrayLike, vectors: ArrayLike) -> Certificate:
    """Return what can be proved of anybody's eigenvectors of a symmetric matrix.

    Parameters
    ----------
    C : (d, d) array
        Symmetric and finite.
    vectors : (d, k) array
        Columns that are said to span the eigenspace of the `k` largest eigenvalues; they need
        not be orthonormal.

    Returns
    -------
    Certificate
        Of the Ritz values of their span, which are the best that it holds. If a larger
        eigenvalue was missed nothing is proved: ``method`` is "none" and ``upper`` infinite.

    Raises
    ------
    ValueError
        `C` not square, symmetric or finite; dependent `vectors`, or of another shape.

    Notes
    -----
    O(d² k) and a few Lanczos steps for the next eigenvalue, then one to four Cholesky
    factorisations, d³/3 each; Rump (2006).

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> C = np.diag([4.0, 3.0, 1.0])
    >>> fastdr.certify(C, np.eye(3)[:, :2]).proved
    True
    >>> fastdr.certify(C, np.eye(3)[:, 1:]).proved   # without the largest
    False
    """
    matrix, action, asymmetry = _given(as_matrix(C, "C"))
    assert matrix is not None
    matrix = matrix.astype(np.float64, copy=False)
    action = MatrixAction(matrix, matrix.dtype, action.exponent)
    rows = _unit_rows(vectors, action.size, "vectors")
    if not 1 <= len(rows) <= action.size or np.linalg.matrix_rank(rows) < len(rows):
        raise ValueError(f"vectors has {len(rows)} columns that are dependent; give at most "
                         f"{action.size} independent ones.")
    with blas_limit(1):
        found = polished(action, rows, -math.inf, 0.0, 0.0, 0, 0)
        if len(rows) < action.size:
            others = lanczos(_outside(action, found.vectors), 1, tol=1e-3,
                             rng=np.random.default_rng(0), budget=1000)
            least, last = float(others.values[0]), float(found.values[-1])
            found = replace(found, next=max(least, min(least + float(others.residuals[0]), last)))
    return _certified(matrix, action, found, "proof", asymmetry)


def _outside(action: Action, vectors: FloatArray) -> OperatorAction:
    """Return the action on what is orthogonal to `vectors`; they become eigenvectors of -1."""

    def function(columns: FloatArray) -> FloatArray:
        along = vectors @ columns
        moved = action((columns - vectors.T @ along).T).T
        moved -= vectors.T @ (vectors @ moved + along)
        return moved

    return OperatorAction(function, action.size, action.dtype)


def _given(C: Any) -> tuple[AnyArray | None, Action, float]:
    """Return the matrix or None, its action, and a bound on how unsymmetric it is, scaled."""
    if not isinstance(C, np.ndarray) and hasattr(C, "matmat") and hasattr(C, "shape"):
        if len(C.shape) != 2 or C.shape[0] != C.shape[1]:
            raise ValueError(f"C has shape {C.shape}; expected a square operator.")
        single = np.dtype(getattr(C, "dtype", None) or np.float64) == np.float32
        probe = np.asarray(C.matmat(np.random.default_rng(0).standard_normal((C.shape[0], 1))))
        exponent = _exponent(float(np.abs(probe).max(initial=0.0)))
        kind = np.dtype(np.float32 if single else np.float64)
        return None, OperatorAction(C.matmat, C.shape[0], kind, exponent), 0.0
    matrix = as_matrix(C, "C")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"C has shape {matrix.shape}; expected a square matrix.")
    native = matrix.dtype.isnative and matrix.flags.aligned
    if matrix.dtype.kind != "f" or matrix.dtype.itemsize < 4 or not native:
        matrix = matrix.astype(np.float64)
    largest, apart = _extent(matrix)
    if not apart <= SYMMETRY[matrix.dtype.itemsize] * largest:
        raise ValueError(f"C is not symmetric: entries differ from those of its transpose by up "
                         f"to {apart:g}. Pass (C + C.T) / 2 if that is what you mean.")
    exponent = _exponent(largest)
    return matrix, MatrixAction(matrix, matrix.dtype, exponent), (
        math.ldexp(apart * len(matrix), -exponent))


def _extent(matrix: AnyArray) -> tuple[float, float]:
    """Return the largest magnitudes in C and in C - C'; refuse what is not finite."""
    parts = ordered_map(lambda index: symmetry(matrix, index * STRIP, min(
        (index + 1) * STRIP, len(matrix))), math.ceil(len(matrix) / STRIP))
    largest, apart = np.max(parts, axis=0)
    if not np.isfinite(apart):
        raise_not_finite(matrix, "C")
    return float(largest), float(apart)


def _exponent(largest: float) -> int:
    """Return e such that numbers up to `largest` times 2**-e have squares inside float32."""
    exponent = math.frexp(largest)[1] if largest else 0
    return exponent if abs(exponent) > 20 else 0


def _check(size: int, k: int, method: str, tol: float, certificate: bool | str,
           ncv: int | None, maxiter: int | None) -> None:
    """Refuse arguments outside their range, by name."""
    values = {"k": k, "method": method, "tol": tol, "certificate": certificate, "ncv": ncv,
              "maxiter": maxiter}
    check_values(values, {
        "k": (whole(k, 1) and k <= size, f"an integer from 1 to the order of C, {size}"),
        "method": (method in METHODS, f"one of {', '.join(METHODS)}"),
        "tol": (finite(tol) and 0 <= tol < 1, "a number of at least 0 and below 1"),
        "certificate": (certificate in (True, False, "residual", "proof"),
                        "True, False, 'residual' or 'proof'"),
        "ncv": (ncv is None or whole(ncv, 1), "None or an integer of at least 1"),
        "maxiter": (maxiter is None or whole(maxiter, 1), "None or an integer of at least 1"),
    })


def _reachable(tol: float, size: int, dtype: np.dtype[Any]) -> float:
    """Return `tol`, or the least residual that rounding allows, with a warning."""
    floor = rounding(size)
    if tol >= floor or dtype.itemsize < 8:
        return tol
    warnings.warn(f"tol={tol:.1e} is below what {dtype} can reach for order {size}; the limit "
                  f"accuracy {floor:.1e} is used.", UserWarning, stacklevel=3)
    return floor


def _unit_rows(columns: ArrayLike, size: int, name: str) -> FloatArray:
    """Return given columns as rows of length 1; the argument's `name` is for errors."""
    given = as_numbers(columns, name).astype(np.float64, copy=False)
    if given.ndim == 1:
        given = given[:, None]
    if given.ndim != 2 or given.shape[0] != size or not np.isfinite(given).all():
        raise ValueError(f"{name} has shape {given.shape}; expected ({size}, j), finite.")
    return unit_rows(given.T)[0]


def _dense(matrix: AnyArray | None, action: Action, k: int, tol: float) -> Ritz:
    """Solve by LAPACK, and measure the answer as that of any other method."""
    if matrix is None:
        raise ValueError("method='lapack' needs a matrix; use method='lanczos' for an operator.")
    scaled = np.ldexp(matrix.astype(np.float64, copy=False), -action.exponent)
    values, vectors = eigh_of(scaled, k)
    following = float(values[k]) if k < len(values) else -math.inf
    scale = float(np.abs(values).max())
    return polished(action, vectors[:k], following, scale, tol, action.columns, 0)


def _scaled(callback: Callback | None, exponent: int) -> Callback | None:
    """Return a callback in the units of the user."""
    if callback is None or exponent == 0:
        return callback
    return lambda columns, values, residuals: callback(
        columns, times_power(values, exponent), times_power(residuals, exponent))


def _certified(matrix: AnyArray | None, action: Action, found: Ritz, wanted: bool | str,
               asymmetry: float) -> Certificate:
    """Prove what is asked for; the bounds are in the units of the matrix."""
    if wanted == "proof" and matrix is None:
        raise ValueError("certificate='proof' needs a matrix, not an operator; use 'residual'.")
    if matrix is not None and (wanted == "proof" or (wanted is True and action.size <= PROOF)):
        scaled = times_power(matrix.astype(np.float64, copy=False), -action.exponent)
        told = proved(scaled, found.values, found.vectors, found.residuals, found.spread,
                      found.next, asymmetry)
    else:
        doubt = doubt_of(action.size, found.scale) + asymmetry
        told = certificate(found.values, found.residuals, found.spread, doubt, None, "none")
    lower, upper, residuals = (times_power(bound, action.exponent)
                               for bound in (told.lower, told.upper, told.residuals))
    return replace(told, lower=lower, upper=upper, residuals=residuals)


def _warn(found: Ritz, tol: float, method: str) -> None:
    from sklearn.exceptions import ConvergenceWarning

    worst = float(found.residuals.max()) / found.scale if found.scale else 0.0
    warnings.warn(f"{method} stopped after {found.columns} columns with a relative residual of "
                  f"{worst:.1e}, above tol={tol:.1e}; raise maxiter or tol. The bounds in "
                  "info.certificate hold for what was reached.", ConvergenceWarning, stacklevel=3)
