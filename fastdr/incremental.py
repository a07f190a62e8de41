"""Exact principal component analysis of rows in batches, a drop-in for scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fastdr.centring import CentredRows, centred_rows, rows_meant, standardized
from fastdr.drift import Drift, Energy, drift_between, first_drift
from fastdr.models import LinearModel
from fastdr.pca import PCA
from fastdr.sources import ArraySource, BlockSource, Source
from fastdr.statistics import Kind, Moments, column_moments
from fastdr.streams import Stream, gone, grown, weights_of
from fastdr.validation import (
    AnyArray,
    FloatArray,
    check_values,
    whole,
    working_dtype,
)
from fastdr.windows import Window


class IncrementalPCA(PCA):
    """Principal component analysis of rows that come in batches of any size, in any order.

    It keeps the moments of all rows, not an approximation of rank k, so the axes are those of a
    `PCA` of all rows at once, to rounding. They are found when they are first asked for.

    Parameters
    ----------
    n_components : int, float, "mle" or None, default None
        As in `PCA`; None keeps min(rows so far, features).
    whiten : bool, "pca" or "zca", default False
    copy : bool, default True
        Accepted for compatibility: the input is never modified.
    batch_size : int, optional
        Rows of a sparse matrix that are made dense at a time, 5 d by default. Nothing else
        depends on it.
    standardize : bool, default False
        Divide columns by their standard deviation, that of all rows so far.
    forgetting : float in (0, 1], default 1
        What a row counts beside the row after it: 0.99 remembers about 100 rows. Variances are
        unbiased (divisor sum w - sum w² / sum w).
    window : int, optional
        Let only the last `window` rows count. Old rows are not taken off the sums, which would
        cancel digits, but left out of new ones.
    drift : bool or callable, default False
        Keep in ``drift_`` what the newest batch changed, or call this with it, after each
        ``partial_fit``. It takes a solution for each batch.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, scale_, \
    n_components_, n_samples_, n_features_in_, feature_names_in_, noise_variance_, \
    total_variance_, rank_, report_, model_
        As in `PCA`.
    var_ : (d,) float64, variances of the features (divisor: sum of weights).
    n_samples_seen_ : int, rows of positive weight since ``fit`` or the first ``partial_fit``.
    batch_size_ : int
    moments_ : Moments, of all rows that count.
    drift_ : Drift, of the newest batch, if `drift` is set.

    Notes
    -----
    O(n d²) in all, a d x d matrix and at most max(256, d) rows of memory; with a window also its
    rows, and 1 / max(256, d) of a d x d matrix for each. As long as there are fewer rows than
    features they are kept as they are and no d x d matrix is formed. At most 32768 features
    otherwise.

    A small variance that the moments do not hold to 6 digits is said in ``report_``: where `PCA`
    and ``fit`` read the rows again, ``partial_fit`` cannot.

    References
    ----------
    Chan, Golub & LeVeque, Amer. Statist. 37 (1983).

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> X = np.random.default_rng(0).standard_normal((500, 4)) * [9, 5, 2, 1] + 1e6
    >>> stream = fastdr.IncrementalPCA(2)
    >>> for batch in np.array_split(X, 70):
    ...     stream = stream.partial_fit(batch)
    >>> whole = fastdr.PCA(2).fit(X)
    >>> np.allclose(stream.explained_variance_, whole.explained_variance_, rtol=1e-12)
    True
    """

    def __init__(self, n_components: Any = None, *, whiten: bool | str = False,
                 copy: bool = True, batch_size: int | None = None, standardize: bool = False,
                 forgetting: float = 1.0, window: int | None = None,
                 drift: bool | Callable[[Drift], Any] = False) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.copy = copy
        self.batch_size = batch_size
        self.standardize = standardize
        self.forgetting = forgetting
        self.window = window
        self.drift = drift

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None, *,
                    check_input: bool = True) -> Self:
        """Add rows to those of ``fit`` and earlier calls.

        Parameters
        ----------
        X : (n, d) array, frame, `Source` or Moments
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
        """
        before = dict(self.__dict__)
        try:
            self._check_parameters()
            self._add(X, sample_weight)
        except BaseException:
            self.__dict__ = before
            raise
        return self

    def __add__(self, other: IncrementalPCA) -> Self:
        """Return an estimator with these parameters, fitted to the rows of both.

        Raises ValueError if their features differ, or if either forgets or has a window.
        """
        if not isinstance(other, IncrementalPCA):
            return NotImplemented
        here, there = vars(self).get("_state"), vars(other).get("_state")
        if not isinstance(here, Stream) or not isinstance(there, Stream):
            raise ValueError("only estimators that have seen rows, without a window, can be added.")
        if self.n_features_in_ != other.n_features_in_ or self._names() != other._names():
            raise ValueError(f"the features differ, so the rows do not belong together: "
                             f"{self._names() or self.n_features_in_} and "
                             f"{other._names() or other.n_features_in_}.")
        both: Self = clone(self)
        for name in ("n_features_in_", "feature_names_in_", "batch_size_"):
            if name in vars(self):
                setattr(both, name, getattr(self, name))
        both._state = here.merge(there)
        return both

    def transform(self, X: ArrayLike) -> AnyArray:
        """Return the scores of rows (n, d) as (n, n_components); sparse rows in batches."""
        if not hasattr(X, "tocsr"):
            return super().transform(X)
        return np.concatenate([super(IncrementalPCA, self).transform(block)
                               for block in self._dense(X).blocks()])

    def fit_transform(self, X: ArrayLike, y: Any = None,
                      sample_weight: ArrayLike | None = None) -> AnyArray:
        """Fit to `X` and return its scores, bit for bit those of ``fit(X).transform(X)``."""
        if not hasattr(X, "tocsr"):
            return super().fit_transform(X, y, sample_weight)
        return self.fit(X, y, sample_weight).transform(X)

    def _fitted(self, source: Source, weights: FloatArray | None) -> LinearModel:
        self._check_parameters()
        size, features = source.shape
        self._check_number(features)
        if size is not None and self.forgetting == 1 and self.window is None:
            self._solver()._number(rows_meant(size, weights, False), features)
        self.batch_size_ = int(self.batch_size or 5 * features)
        self.__dict__.pop("drift_", None)
        self._state = grown(self._empty(features), source, weights)
        plain = self.forgetting == 1 and self.window is None
        return self._solved(source if plain and source.rereadable else None, weights)

    def _add(self, X: Any, sample_weight: Any) -> None:
        first = "_state" not in vars(self)
        if isinstance(X, Moments):
            if sample_weight is not None:
                raise ValueError("Moments have their weights; sample_weight cannot be given.")
            if first:
                self.n_features_in_ = len(X.mean)
        else:
            source = self._source(X) if first else self._further_source(X)
        if first:
            self._check_number(self.n_features_in_)
            self.batch_size_ = int(self.batch_size or 5 * self.n_features_in_)
            self._state = self._empty(self.n_features_in_)
        before = self._state
        self._check_unchanged(before)
        energy = self._energy() if self.drift else None
        if not isinstance(X, Moments):
            weights = weights_of(source, sample_weight)
            with self._named(source):
                self._state = grown(before, source, weights, energy)
        elif isinstance(before, Window):
            raise ValueError("Moments cannot be added to a window: their rows could not leave it.")
        else:
            self._state = before.add_moments(X)
            if energy is not None:
                energy.add_moments(X)
        self.__dict__.pop("model_", None)
        if self.drift:
            self._report_drift(energy, self._state.seen - before.seen)

    def _check_unchanged(self, state: Stream | Window) -> None:
        now = self._empty(state.features)
        if type(now) is not type(state) or any(
                getattr(now, name, None) != getattr(state, name, None)
                for name in ("forgetting", "length")):
            raise ValueError("forgetting and window cannot change between calls of partial_fit; "
                             "fit anew.")

    def _energy(self) -> Energy | None:
        try:
            return Energy(self.model_)
        except NotFittedError:
            return None

    def _report_drift(self, energy: Energy | None, rows: int) -> None:
        try:
            self.drift_ = (first_drift(rows) if energy is None else
                           drift_between(energy.model, self.model_, energy, rows))
        except NotFittedError:
            self.drift_ = first_drift(rows)
        if callable(self.drift):
            self.drift(self.drift_)

    _state: Stream | Window
    _takes_sparse = False  # it makes them dense itself

    @cached_property
    def model_(self) -> LinearModel:  # type: ignore[override]
        """Fitted state, found when it is first asked for after new rows."""
        return self._solved()

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether rows have come."""
        return "model_" in vars(self) or "_state" in vars(self)

    def _solved(self, source: Source | None = None, weights: FloatArray | None = None
                ) -> LinearModel:
        """Find the axes; `source` has all rows if they can be read again."""
        solver, rows = self._solver(), self._centred(source, weights)
        weight = self._state.weight if isinstance(self._state, Stream) else rows.weight
        count = max(rows.count, rows_meant(rows.count, np.array([weight]), False))
        self._check_seen(count)
        components, share = solver._number(count, rows.mean.size)
        solver._warn_constant(rows.squares)
        way = solver._way(rows.source)
        found = solver._chosen(rows, solver._spectrum(rows, way, components, share), count)
        model = solver._model(rows, found, way, count)
        names = self._names()
        return replace(model, feature_names=None if names is None else tuple(map(str, names)),
                       report={**model.report, "rows_seen": self._state.seen})

    def _centred(self, source: Source | None, weights: FloatArray | None) -> CentredRows:
        """Return what is known of the rows, as a first pass over them would."""
        state = self._seen_rows()
        few = state.few()
        if few is not None:
            self._check_weight(len(few.rows) if few.weights is None else few.weights.sum())
            same = working_dtype(few.rows.dtype) == state.dtype
            rows = source or ArraySource(few.rows if same else few.rows.astype(state.dtype))
            return centred_rows(rows, few.weights if source is None else weights,
                                standardize=self.standardize)
        total = state.total()
        self._check_weight(state.weight if isinstance(state, Stream) else total.weight)
        squares = np.diagonal(total.scatter).copy()
        kind: Kind = "frequency" if self.forgetting == 1 else "reliability"
        rows = source or gone(state.features, state.dtype)
        centred = CentredRows(rows, weights, total.mean, squares, total.scatter.copy(), None,
                              total.count, total.weight, total.divisor(kind=kind), wide=False,
                              single=False)
        return standardized(centred) if self.standardize else centred

    def _check_weight(self, weight: float) -> None:
        if not weight > 1:
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

    def _check_number(self, features: int) -> None:
        """Refuse what no number of rows could satisfy."""
        if whole(self.n_components, features + 1):
            raise ValueError(f"n_components={self.n_components} invalid for n_features={features}; "
                             "pass at most as many as there are features.")
        self._solver()._number(max(features, 2), features)

    def _solver(self) -> PCA:
        return PCA(self.n_components, whiten=self.whiten, standardize=self.standardize,
                   svd_solver="lapack")

    def _empty(self, features: int) -> Stream | Window:
        if self.window is not None:
            return Window(features, int(self.window))
        return Stream(features, float(self.forgetting))

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        allowed = {
            "whiten": (self.whiten in (False, True, "pca", "zca"), "False, True, 'pca' or 'zca'"),
            "batch_size": (self.batch_size is None or whole(self.batch_size, 1),
                           "None or an integer of at least 1"),
            "forgetting": (isinstance(self.forgetting, Real) and 0 < float(self.forgetting) <= 1,
                           "a number above 0 and at most 1"),
            "window": (self.window is None or whole(self.window, 2),
                       "None or an integer of at least 2"),
            "drift": (self.drift in (False, True) or callable(self.drift),
                      "True, False or a function of a Drift"),
        }
        check_values(vars(self), allowed)
        if self.window is not None and self.forgetting != 1:
            raise ValueError(f"window={self.window} and forgetting={self.forgetting} are two ways "
                             "to let old rows go; give one of them.")

    def _source(self, X: Any) -> Source:
        if not hasattr(X, "tocsr"):
            return super()._source(X)
        self.__dict__.pop("feature_names_in_", None)
        self.n_features_in_ = X.shape[1]
        return self._dense(X)

    def _dense(self, X: Any) -> Source:
        """Return the rows of a sparse matrix, made dense some at a time."""
        rows = X.tocsr()
        size, features = rows.shape
        step = int(self.batch_size or 5 * features)
        return BlockSource(lambda: (rows[start:start + step].toarray()
                                    for start in range(0, size, step)),
                           features, size, rows.dtype)

    @property
    def moments_(self) -> Moments:
        """Moments of all rows that count."""
        return self._seen_rows().total()

    @property
    def var_(self) -> FloatArray:
        """Variances of the features, (d,), divisor: sum of weights."""
        few = self._seen_rows().few()
        if few is None:
            return self.moments_.variances(ddof=0)
        total = len(few.rows) if few.weights is None else few.weights.sum()
        variances: FloatArray = column_moments(*few)[1] / total
        return variances

    @property
    def n_samples_seen_(self) -> int:
        """Rows of positive weight that came, whether they still count or not."""
        return self._seen_rows().seen

    def _seen_rows(self) -> Stream | Window:
        state: Stream | Window | None = vars(self).get("_state")
        if state is None or not state.seen:
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit or "
                                 "partial_fit with rows first.")
        return state

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that sparse rows are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
