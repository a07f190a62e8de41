"""Truncated singular value decomposition of dense or sparse rows, a drop-in for scikit-learn's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.linalg import qr, svd
from numpy.random import Generator, RandomState
from sklearn.exceptions import ConvergenceWarning

from fastdr.centring import centred_rows, level
from fastdr.certificate import Certificate
from fastdr.estimator import LinearEstimator, Report, warn_unproved
from fastdr.models import fix_signs
from fastdr.operators import project
from fastdr.plan import CERTIFICATES, Plan, Task
from fastdr.seeds import SEEDS, as_generator, is_seed
from fastdr.singular_model import SingularModel
from fastdr.solvers import RTOL, Spectrum, lapack, qr_svd
from fastdr.sources import ArraySource, Source, block_rows
from fastdr.sparse import SparseSource, sparse_moments, sparse_product
from fastdr.sparse_axes import SparseRows, likely_error, sparse_axes
from fastdr.sparse_plan import plan_of
from fastdr.statistics import Moments
from fastdr.threads import blas_limit
from fastdr.topk import Iteration, iterative
from fastdr.validation import (
    AnyArray,
    FloatArray,
    check_values,
    whole,
    working_dtype,
)

ALGORITHMS = ("auto", "lanczos", "lapack", "arpack", "randomized")
DENSE = 1 << 21  # entries up to which sparse rows are factored where their Gram matrix rounds


class TruncatedSVD(LinearEstimator):
    """The `n_components` largest singular values and right singular vectors of rows, not centred.

    For sparse matrices of any size, of which only products are taken, and for dense rows.

    Parameters
    ----------
    n_components : int, default 2
        1 to min(n, d).
    algorithm : str, default "auto"
        "lanczos": thick-restart block Lanczos on products with the rows; "lapack": all of the
        smaller Gram matrix, for dense rows; "auto" the faster of them. scikit-learn's "arpack"
        and "randomized" are answered as "auto", to the tolerance.
    n_iter, n_oversamples, power_iteration_normalizer
        Of scikit-learn's randomized algorithm; no answer here depends on them.
    random_state : int, Generator, RandomState or None, default None
        Of the vectors that the iteration begins with; None means 0.
    tol : float, default 0
        Largest residual of a squared singular value, relative to the largest; 0 means 1e-10,
        1e-5 for float32 rows, and less where the smallest wanted value needs it.
    certificate : {"auto", "proof", "residual", True, False}, default "auto"
        "proof" (or True) proves by a Cholesky factorisation that no larger singular value was
        missed, and bounds each; the smaller Gram matrix is formed for it if need be, up to order
        8000; beyond that a warning says so. "residual" only measures; "auto" proves where that
        takes little of the time.

    Attributes
    ----------
    components_ : (k, d) orthonormal rows, in the working dtype of the data (float32 or float64).
        The entry of largest magnitude of each is positive.
    singular_values_ : (k,) float64, descending.
    explained_variance_, explained_variance_ratio_ : (k,) float64, variances of the scores
        (divisor n) and their shares of that of all columns. As in scikit-learn they need not
        descend: the first axis is near the mean of the rows, along which they vary little.
    squared_ratio_ : (k,) float64, squares of the singular values as shares of the sum of squares
        of all entries; these descend.
    n_features_in_ : int
    feature_names_in_ : (d,) array of str, for frames only.
    certificate_ : Certificate or None, bounds on the singular values.
    report_ : dict that prints as a table: what the fit did, and its residual.
    model_ : SingularModel, the frozen fitted state.

    Notes
    -----
    O(stored k) a pass over sparse rows, one pass for 8 vectors (16 in float32), about 3 k vectors
    in all; memory of 3 to 4 k vectors of d. A last pass takes the QR factorisation of the scores,
    so that singular values are accurate to rounding of the largest, and not of its square, as long
    as they are more than 1e-7 of it; smaller ones too, but in sparse rows of more than 2 million
    entries, zeros counted, where they are known to 1e-8 of the largest. Wu & Simon (2000).

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> X = csr_array([[3.0, 0, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]])
    >>> svd = TruncatedSVD(2).fit(X)
    >>> svd.singular_values_
    array([3., 2.])
    >>> svd.transform(X[:1])
    array([[3., 0.]])
    """

    model_: SingularModel
    _takes_sparse = True

    def __init__(self, n_components: int = 2, *, algorithm: str = "auto", n_iter: int = 5,
                 n_oversamples: int = 10, power_iteration_normalizer: str = "auto",
                 random_state: int | Generator | RandomState | None = None, tol: float = 0.0,
                 certificate: bool | str = "auto") -> None:
        self.n_components = n_components
        self.algorithm = algorithm
        self.n_iter = n_iter
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.tol = tol
        self.certificate = certificate

    def fit(self, X: Any, y: Any = None) -> Self:  # type: ignore[override]
        """Fit to rows (n, d): dense, sparse of any format, a Dask collection or a `Source`.

        Parameters
        ----------
        X : (n, d) finite real rows; never modified.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            If the rows or parameters cannot be used; the fitted state is unchanged.

        Warns
        -----
        ConvergenceWarning
            If the tolerance was not reached; ``report_`` has what was.
        """
        self._fit_rows(X, None)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> AnyArray:  # type: ignore[override]
        """Fit to `X` and return its scores, bit for bit those of ``fit(X).transform(X)``."""
        return super().fit_transform(X)

    def reconstruction_error(self, X: Any, per_row: bool = False) -> Any:
        """Return the squared distance of rows to their reconstruction, mean or `per_row` (n,)."""
        with self._rows(X) as rows:
            return self.model_.reconstruction_error(rows, per_row)

    def _fitted(self, source: Source, weights: FloatArray | None) -> SingularModel:
        self._check_parameters()
        rows, features = source.shape
        if rows is not None:
            self._check_number(rows, features)
        rng = as_generator(self.random_state)
        method = "auto" if self.algorithm in ("arpack", "randomized") else self.algorithm
        task = Task(rows, features, source.dtype, self.n_components, solver=method,
                    certificate=self.certificate, tol=float(self.tol),
                    stored=isinstance(source, ArraySource), rereadable=source.rereadable,
                    elsewhere=getattr(source, "most", 0))
        found = (_of_sparse(source, task, rng) if isinstance(source, SparseSource)
                 else _of_dense(source, task, rng))
        self._check_number(found.count, features)
        axes = found.spectrum
        if not axes.converged:
            warnings.warn(f"the iteration stopped after {axes.columns} columns with a relative "
                          f"residual of {axes.residual:.1e}; raise tol.", ConvergenceWarning,
                          stacklevel=4)
        warn_unproved(self.certificate, found.way)
        return self._model(source, found)

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        check_values(vars(self), {
            "n_components": (whole(self.n_components, 1), "an integer of at least 1"),
            "algorithm": (self.algorithm in ALGORITHMS, f"one of {', '.join(ALGORITHMS)}"),
            "n_iter": (whole(self.n_iter, 0), "an integer of at least 0"),
            "n_oversamples": (whole(self.n_oversamples, 1), "an integer of at least 1"),
            "power_iteration_normalizer": (
                self.power_iteration_normalizer in ("auto", "QR", "LU", "none"),
                "'auto', 'QR', 'LU' or 'none'"),
            "tol": (isinstance(self.tol, Real) and 0 <= float(self.tol) < 1,
                    "a number of at least 0 and below 1"),
            "random_state": (is_seed(self.random_state), SEEDS),
            "certificate": (self.certificate in CERTIFICATES,
                            "'auto', 'proof', 'residual', True or False"),
        })

    def _check_number(self, rows: int, features: int) -> None:
        strict = self.algorithm == "arpack"
        if self.n_components > min(rows, features) - strict:
            raise ValueError(f"n_components={self.n_components} must be "
                             f"{'less than' if strict else 'at most'} min(n_samples={rows}, "
                             f"n_features={features}) with algorithm={self.algorithm!r}.")

    def _model(self, source: Source, found: _Found) -> SingularModel:
        """Rotate the axes to what the QR factorisation of their scores says, and sum up."""
        vectors, exponent = found.spectrum.vectors, found.exponent
        with blas_limit(1):  # small products; so results do not depend on the number of threads
            scores = _scores_of(source, vectors, exponent)
            moments, turn = scores.moments, svd(scores.factor)
            vectors = turn.Vh @ vectors
            variances = np.einsum("ij,jk,ik->i", turn.Vh, moments.scatter, turn.Vh) / moments.count
        values = np.ldexp(turn.S, -exponent)
        deviations = np.ldexp(np.sqrt(np.maximum(variances, 0.0)), -exponent)
        components = fix_signs(vectors).astype(working_dtype(source.dtype))
        report, told = self._report(source, found), found.spectrum.certificate
        if told is not None:
            told = told.roots(turn.S).times(1.0, -exponent).stored(components)
            report["certificate"] = told.as_dict()
        return SingularModel(
            components=components,
            singular_values=values, deviations=deviations,
            total_deviation=float(np.ldexp(np.sqrt(found.variance), -exponent)),
            count=moments.count, report=report, feature_names=self._feature_labels)

    def _report(self, source: Source, found: _Found) -> dict[str, Any]:
        axes, reason = found.spectrum, found.way.reason
        if axes.reason:
            reason = f"{axes.solver} took over from {found.way.solver}: {axes.reason}; {reason}"
        told: dict[str, Any] = {
            "solver": axes.solver, "asked_for": self.algorithm, "reason": reason,
            "method": axes.method, "rows": found.count, "features": source.shape[1],
            "components": self.n_components, "dtype": str(source.dtype),
            "passes": 2 + axes.passes, "columns": axes.columns,
            "residual": axes.residual or 0.0, "converged": axes.converged,
            "frobenius_norm": float(np.ldexp(np.sqrt(axes.total), -found.exponent)),
        }
        if isinstance(source, SparseSource):
            told["stored"] = source.stored
        return told

    @property
    def components_(self) -> AnyArray:
        """Right singular vectors, (k, d) orthonormal rows."""
        return self.model_.components

    @property
    def singular_values_(self) -> FloatArray:
        """Singular values, (k,), descending."""
        return self.model_.singular_values

    @property
    def explained_variance_(self) -> FloatArray:
        """Variances of the scores, (k,)."""
        return self.model_.explained_variance

    @property
    def explained_variance_ratio_(self) -> FloatArray:
        """Shares of the variance of all columns, (k,)."""
        return self.model_.explained_variance_ratio

    @property
    def squared_ratio_(self) -> FloatArray:
        """Squared singular values as shares of the sum of squares of all entries, (k,)."""
        shares: FloatArray = (self.singular_values_ / (self.report_["frobenius_norm"] or 1.0))**2
        return shares

    @property
    def report_(self) -> Report:
        """How the fit went; prints as a table."""
        return Report.of(self.model_.report, self.certificate_)

    @property
    def certificate_(self) -> Certificate | None:
        """Bounds on the singular values; None if the fit made none."""
        return self.model_.certificate


@dataclass(frozen=True)
class _Found:
    """Axes of rows times 2**exponent, the plan, rows, and the sum of the columns' variances."""

    spectrum: Spectrum
    way: Plan
    count: int
    variance: float
    exponent: int


def _of_sparse(source: SparseSource, task: Task, rng: Generator) -> _Found:
    told, way = sparse_moments(source), plan_of(source, task)
    told = told.scaled(level(told.uncentred.squares))
    found = sparse_axes(SparseRows(source, told.uncentred), task.axes, way,
                        certify=task.certificate is not False, rng=rng, tol=task.tol)
    rows, features = source.shape
    if found.values[-1] <= likely_error(found) / RTOL and rows * features <= DENSE:
        about_zero = centred_rows(source, mean=np.zeros(features), scatter=False)
        about_zero = about_zero.scaled(told.exponent - about_zero.exponent)
        found = qr_svd(about_zero, task.axes, prove=task.proving(way))
    return _Found(found, way, told.count, float(told.squares.sum()) / told.count, told.exponent)


def _of_dense(source: Source, task: Task, rng: Generator) -> _Found:
    if not source.rereadable:
        raise ValueError("TruncatedSVD reads the rows twice, but this source can be read once "
                         "only.")
    way = plan_of(source, task)
    centred = centred_rows(source, scatter=False)
    about_zero = centred_rows(source, mean=np.zeros(task.features), scatter=way.on == "covariance")
    prove, read = task.proving(way), way.on == "rows"
    if way.solver == "lapack":
        found = lapack(about_zero, task.axes, prove=prove)
    else:
        how = Iteration(rng, way.solver, task.tol, way.budget, prove=prove, form=read and way.proof)
        found = iterative(about_zero, task.axes, how, read=read)
    variance = float(centred.squares.sum()) / centred.count
    if centred.exponent != about_zero.exponent:
        variance = math.ldexp(variance, 2 * (about_zero.exponent - centred.exponent))
    return _Found(found, way, about_zero.count, variance, about_zero.exponent)


@dataclass(frozen=True)
class _Scores:
    """R of the QR factorisation of scores of rows, and their moments; they add up."""

    factor: FloatArray
    moments: Moments

    @classmethod
    def of(cls, vectors: FloatArray, exponent: int, rows: Source | AnyArray,
           _: FloatArray | None = None) -> _Scores:
        """Return those of rows times 2**exponent, read a block at a time."""
        source = ArraySource(rows) if isinstance(rows, np.ndarray) else rows
        factor, told = np.zeros((0, len(vectors))), None
        for scores in _scores_in_blocks(source, vectors):
            scores = np.ldexp(scores, exponent)
            factor = np.asarray(qr(np.concatenate([factor, scores]), mode="r"))
            part = Moments.of(scores)
            told = part if told is None else told.merge(part)
        assert told is not None
        return cls(factor, told)

    def __add__(self, other: _Scores) -> _Scores:
        both = np.concatenate([self.factor, other.factor])
        return _Scores(np.asarray(qr(both, mode="r")), self.moments + other.moments)


def _scores_of(source: Any, vectors: FloatArray, exponent: int) -> _Scores:
    """Return what there is to know of the scores of all rows, found where the rows are."""
    if hasattr(source, "summed"):
        found: _Scores = source.summed(partial(_Scores.of, vectors, exponent))
        return found
    return _Scores.of(vectors, exponent, source)


def _scores_in_blocks(source: Source, vectors: FloatArray) -> Iterator[FloatArray]:
    """Yield the scores of consecutive rows in float64."""
    if not isinstance(source, SparseSource):
        for block in source.blocks():
            yield project(block.astype(np.float64), vectors)
        return
    step = block_rows(len(vectors))
    for first in range(0, len(source), step):
        rows = source.part(first, min(first + step, len(source)))
        yield sparse_product(rows, vectors.T)
