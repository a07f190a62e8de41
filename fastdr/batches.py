"""What estimators of axes do with rows in batches: they keep moments, and solve when asked."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if

from fastdr.axes_estimator import AxesEstimator
from fastdr.centring import centred_moments, centred_rows, rows_meant
from fastdr.column_statistics import column_moments
from fastdr.low_rank import LowRankMoments
from fastdr.low_rank_axes import low_rank_spectrum
from fastdr.models import LinearModel
from fastdr.plan import Plan
from fastdr.solvers import Spectrum
from fastdr.sources import ArraySource, Source
from fastdr.sparse import SparseSource, sparse_moments
from fastdr.statistics import Moments, vanished
from fastdr.streams import Batch, Stream, gone, grown, weights_of
from fastdr.validation import LARGEST_SQUARE, FloatArray, as_vector, frozen, whole, working_dtype
from fastdr.windows import Window

SPARE = 20  # axes kept beyond those asked for, at least, where a scatter is truncated


def _takes_batches(estimator: BatchedAxes) -> bool:
    """Refuse what needs the rows a second time, by saying that there is no such method."""
    solver = estimator._solver()
    if solver.svd_solver in ("svd", "full"):
        raise AttributeError(f"svd_solver={solver.svd_solver!r} reads the rows twice, and rows in "
                             "batches are gone; use 'auto', 'lapack' or an iteration.")
    if estimator.n_components == "parallel":
        raise AttributeError("n_components='parallel' reads the rows again, and rows in batches "
                             "are gone; use 'gavish-donoho', 'mle', a share or a number.")
    if getattr(solver, "missing", None) is not None:
        raise AttributeError(f"missing={solver.missing!r} reads the rows many times, and rows in "
                             "batches are gone; fit all rows at once.")
    return True


class BatchedAxes(AxesEstimator):
    """An estimator of axes that also takes rows in batches, with nothing lost but to rounding.

    A subclass is `PCA`, or has one that solves (`_solver`).
    """

    n_components: Any
    standardize: bool
    _state: Stream | Window
    _model_before: LinearModel | None = None

    @available_if(_takes_batches)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None, *,
                    check_input: bool = True) -> Self:
        """Add rows to those of earlier calls; the axes are those of all of them at once.

        Moments are kept, not an approximation of rank k, so neither the sizes of the batches nor
        their order matter beyond rounding. Axes are found when they are first asked for.

        Parameters
        ----------
        X : (n, d) array, frame, sparse matrix, `Source`, Moments or LowRankMoments
            One row is enough. Moments stand for the rows they are of.
        y : ignored
        sample_weight : (n,) array, optional
            Frequencies: how many rows each row stands for, as in ``fit``.
        check_input : ignored, for compatibility

        Returns
        -------
        self
            Fitted as soon as there are as many rows as `n_components`, and two.

        Raises
        ------
        ValueError, TypeError
            If rows, weights or parameters cannot be used, or the rows do not have the features of
            those before; what was fitted is unchanged then.
        AttributeError
            If a parameter needs the rows a second time; the method is not there then.

        Notes
        -----
        O(n d²) in all, a d x d matrix and at most max(256, d) rows of memory; sparse rows are kept
        as they are, and the squares of their entries summed. As long as there are fewer rows than
        features they are kept and no d x d matrix is formed.

        Beyond 32768 features, k or more further axes are kept instead (20 at least), of an
        incremental SVD with updates of the mean (Ross et al., IJCV 77 (2008)): O(n d k). All
        that truncation left out is added up, and ``certificate_`` states it: no variance is
        smaller than the one found, nor larger by more than that.
        """
        before = dict(self.__dict__)
        try:
            self._check_parameters()
            self._add(X, sample_weight)
        except BaseException:
            self.__dict__ = before
            raise
        return self

    @cached_property
    def model_(self) -> LinearModel:  # type: ignore[override]
        """Fitted state, found when it is first asked for after new rows."""
        return self._solved()

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether rows have come."""
        return "model_" in vars(self) or "_state" in vars(self)

    def _check_parameters(self) -> None:
        raise NotImplementedError

    def _solver(self, kind: str = "lapack") -> Any:
        """Return the `PCA` that solves: itself, or one of the `kind` of solver."""
        return self

    def _add(self, X: Any, sample_weight: Any) -> None:
        first = "_state" not in vars(self)
        known = isinstance(X, Moments | LowRankMoments)
        if known and sample_weight is not None:
            raise ValueError("Moments have their weights; sample_weight cannot be given.")
        if known:
            self.n_features_in_ = len(X.mean) if first else self.n_features_in_
        else:
            source = self._source(X) if first else self._further_source(X)
        if first:
            self._begin(self.n_features_in_)
        before = self._state
        self._check_unchanged(before)
        watcher = self._watcher()
        if not known:
            weights = weights_of(source, sample_weight, some=not before.seen)
            with self._named(source):
                after = grown(before, source, weights, watcher)
            if weights is not None and not weights.any():  # as if there were no rows
                return
            self._state = after
        elif isinstance(before, Window):
            raise ValueError("Moments cannot be added to a window: their rows could not leave it.")
        else:
            self._state = before.add_moments(deepcopy(X))  # the caller's may change
            if watcher is not None:
                watcher.add_moments(X)
        self._model_before = self.__dict__.pop("model_", self._model_before)
        self._added(watcher, self._state.seen - before.seen)

    def _begin(self, features: int) -> None:
        """Refuse what no rows could satisfy, and have none yet."""
        self.__dict__.pop("model_", None)
        if whole(self.n_components, features + 1):
            raise ValueError(f"n_components={self.n_components} invalid for n_features={features}; "
                             "pass at most as many as there are features.")
        self._solver()._number(max(features, 2), features)
        self._known_mean(features)
        self._state = self._empty(features)

    def _check_unchanged(self, state: Stream | Window) -> None:
        now = self._empty(state.features)
        if type(now) is not type(state) or any(
                getattr(now, name, None) != getattr(state, name, None)
                for name in ("forgetting", "length", "rank")):
            raise ValueError("forgetting and window, and n_components of more than "
                             f"{LARGEST_SQUARE} features, cannot change between calls of "
                             "partial_fit; fit anew.")

    def _empty(self, features: int) -> Stream | Window:
        return Stream(features, rank=self._rank(features))

    def _rank(self, features: int) -> int | None:
        """Return how many axes to keep if there can be no square matrix; None if there can."""
        if features <= LARGEST_SQUARE or not whole(self.n_components, 1):
            return None
        asked = int(self.n_components)
        return asked + max(asked, SPARE)

    def _watcher(self) -> Any:
        """Return what sees new rows beside the state, or None."""
        return None

    def _added(self, watcher: Any, rows: int) -> None:
        """Tell of new rows."""

    def _known_mean(self, features: int) -> FloatArray | None:
        mean = self._solver().mean
        return None if mean is None else as_vector(mean, features, "mean")

    def _solved(self, source: Source | None = None, weights: FloatArray | None = None
                ) -> LinearModel:
        """Find the axes; `source` has all rows if they can be read again."""
        state = self._seen_rows()
        few, mean = state.few(), self._known_mean(state.features)
        total = None if few is not None else state.total()
        weight, rows = _weighed(few, total)
        if isinstance(state, Stream):
            weight = state.weight
        self._check_weight(weight, mean is not None)
        count = max(rows, rows_meant(rows, np.array([weight]), mean is not None))
        self._check_seen(count)
        if few is not None and isinstance(few.rows, SparseSource):
            model = self._solver("auto")._fitted_sparse(*few, mean)
        elif isinstance(total, LowRankMoments):
            model = self._truncated(total, mean, count)
        else:
            model = self._exact(few, total, source, weights, mean, count)
        self._model_before = None
        told: LinearModel = replace(model, feature_names=self._feature_labels,
                                    report={**model.report, "rows_seen": state.seen})
        return told

    def _exact(self, few: Batch | None, total: Moments | None, source: Source | None,
               weights: FloatArray | None, mean: FloatArray | None, count: int) -> LinearModel:
        """Solve as a fit of all rows does after its first pass."""
        state, solver = self._state, self._solver()
        if few is not None:
            same = working_dtype(few.rows.dtype) == state.dtype
            given = source or ArraySource(few.rows if same else few.rows.astype(state.dtype))
            own = few.weights if source is None else weights
            way = solver._way(given, own)
            rows = centred_rows(given, own, mean=mean, standardize=self.standardize,
                                double=solver._doubly(way, given))
        else:
            assert total is not None
            if self.standardize:
                _check_scales(total)
            given = source or gone(state.features, state.dtype)
            way = solver._way(given, weights)
            rows = centred_moments(given, weights, total, mean=mean, kind=self._kind,
                                   standardize=self.standardize)
        components, share = solver._number(count, state.features)
        solver._warn_constant(rows.squares)
        found: Spectrum = solver._chosen(
            rows, solver._spectrum(rows, way, components, share), count)
        solver._warn_unconverged(found)
        model: LinearModel = solver._model(rows, found, way, count)
        return model

    def _truncated(self, total: LowRankMoments, mean: FloatArray | None, count: int
                   ) -> LinearModel:
        """Solve from a factor of the scatter."""
        state, solver = self._state, self._solver()
        if self.standardize:
            _check_scales(total)
        rows = centred_moments(gone(state.features, state.dtype), None, total, mean=mean,
                               kind=self._kind, standardize=self.standardize)
        solver._warn_constant(rows.squares)
        found = low_rank_spectrum(total, rows, int(self.n_components))
        kept = len(total.factor)
        way = Plan("svd", "rows", f"{state.features} features: {kept} axes stand for their scatter",
                   1, 0, 0.0, 0, 0.0, False)
        model: LinearModel = solver._model(rows, found, way, count)
        return replace(model, report={**model.report, "left_by_truncation":
                                      total.bound / rows.divisor})

    @property
    def _kind(self) -> Any:
        """Kind of the weights: rows that fade are trusted less, not counted less often."""
        return "frequency" if getattr(self._state, "forgetting", 1.0) == 1 else "reliability"

    def _check_weight(self, weight: float, known_mean: bool) -> None:
        if not weight > (0 if known_mean else 1):
            raise NotFittedError(f"{type(self).__name__} has {self._state.seen} sample(s) of total "
                                 f"weight {weight:g}; more than 1 is needed. Call partial_fit "
                                 "again.")

    def _check_seen(self, count: int) -> None:
        """Refuse to be fitted by fewer rows than axes; more may come."""
        least = (self.n_components if whole(self.n_components, 1)
                 else self.n_features_in_ if self.n_components == "mle" else 0)
        if count < least:
            raise NotFittedError(f"{type(self).__name__} has {count} rows, fewer than "
                                 f"n_components={self.n_components!r} needs ({least}). Call "
                                 "partial_fit again.")

    @property
    def moments_(self) -> Moments | LowRankMoments:
        """Moments of all rows in batches that count; truncated ones beyond 32768 features."""
        return frozen(self._seen_rows().total())

    @property
    def var_(self) -> FloatArray:
        """Variances of the features of rows in batches, (d,), divisor: sum of weights."""
        few = self._seen_rows().few()
        if few is None:
            return self.moments_.variances(ddof=0)
        if isinstance(few.rows, SparseSource):
            told = sparse_moments(*few)
            squares = np.ldexp(told.squares, -2 * told.exponent)
        else:
            squares = column_moments(*few)[1]
        return np.asarray(squares / _weighed(few, None)[0])

    @property
    def n_samples_seen_(self) -> int:
        """Rows of positive weight that came in batches, whether they still count or not."""
        return self._seen_rows().seen

    def _seen_rows(self) -> Stream | Window:
        state: Stream | Window | None = vars(self).get("_state")
        if state is None or not state.seen:
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit or "
                                 "partial_fit with rows first.")
        return state


def _check_scales(total: Moments | LowRankMoments) -> None:
    """Refuse columns so small that they may vary though float64 does not hold their squares."""
    lost = (total.mean != 0) & vanished(total.squares, np.abs(total.mean))
    if lost.any():
        shown = ", ".join(map(str, np.flatnonzero(lost)[:5]))
        raise ValueError(f"the squares of column(s) {shown} leave the range of float64, so their "
                         "deviations are not known; multiply these columns by a power of ten.")


def _weighed(few: Batch | None, total: Moments | LowRankMoments | None) -> tuple[float, int]:
    """Return the sum of the weights, and the number of rows."""
    if few is None:
        assert total is not None
        return total.weight, total.count
    rows = len(few.rows)
    return float(rows if few.weights is None else few.weights.sum()), rows
