"""Exact principal component analysis of rows in batches, a drop-in for scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, Self

from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fastdr.axes_estimator import is_whitening
from fastdr.centring import rows_meant
from fastdr.drift import Drift, Energy, drift_between, first_drift
from fastdr.models import LinearModel
from fastdr.pca import PCA
from fastdr.sources import Source
from fastdr.streams import Stream, grown
from fastdr.validation import FloatArray, check_square, check_values, is_flag, whole
from fastdr.windows import Window

LEAST_FORGETTING = 1e-4  # the divisor, about twice that, is a difference of numbers near 1


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
        Accepted for compatibility, and kept as ``batch_size_``, 5 d by default.
    standardize : bool, default False
        Divide columns by their standard deviation, that of all rows so far.
    forgetting : float in [0.0001, 1], default 1
        What a row counts beside the row after it: 0.99 remembers about 100 rows. Variances are
        unbiased (divisor sum w - sum w² / sum w).
    window : int, optional
        Let only the last `window` rows count; a row of any positive weight takes one place. Old
        rows are not taken off the sums, which would cancel digits, but left out of new ones.
    n_oversamples : int, optional
        Axes to keep beyond `n_components` of more than 32768 features, by default as many again,
        and at least 20. More of them make the bound on what is lost smaller; nothing is lost of
        rows of no higher rank.
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
    moments_ : Moments, of all rows that count; LowRankMoments of more than 32768 features.
    drift_ : Drift, of the newest batch, if `drift` is set.

    Notes
    -----
    O(n d²) in all, a d x d matrix and at most max(256, d) rows of memory; with a window also its
    rows, and 1 / max(256, d) of a d x d matrix for each. As long as there are fewer rows than
    features they are kept as they are and no d x d matrix is formed.

    Beyond 32768 features a number of components is needed, and an incremental SVD with updates of
    the mean stands for the d x d matrix: O(n d k), a few times k rows of memory.
    ``certificate_`` says how much larger a variance may be for all that was ever left out, summed
    up, and ``report_`` has that sum as "left by truncation".

    A small variance that the moments do not hold to 6 digits is said in ``report_``: where `PCA`
    and ``fit`` read the rows again, ``partial_fit`` cannot.

    References
    ----------
    Chan, Golub & LeVeque, Amer. Statist. 37 (1983); Ross, Lim, Lin & Yang, IJCV 77 (2008).

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
                 n_oversamples: int | None = None,
                 drift: bool | Callable[[Drift], Any] = False) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.copy = copy
        self.batch_size = batch_size
        self.standardize = standardize
        self.forgetting = forgetting
        self.window = window
        self.n_oversamples = n_oversamples  # type: ignore[assignment]
        self.drift = drift

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

    def _fitted(self, source: Source, weights: FloatArray | None) -> LinearModel:
        self._check_parameters()
        size, features = source.shape
        plain = self.forgetting == 1 and self.window is None
        self.__dict__.pop("drift_", None)
        self._begin(features)
        if size is not None and plain:
            self._solver()._number(rows_meant(size, weights, False), features)
        self._state = grown(self._state, source, weights)
        return self._solved(source if plain and source.rereadable else None, weights)

    def _begin(self, features: int) -> None:
        super()._begin(features)
        self.batch_size_ = int(self.batch_size or 5 * features)

    def _watcher(self) -> Energy | None:
        try:
            return Energy(self.model_) if self.drift else None
        except NotFittedError:
            return None

    def _added(self, watcher: Energy | None, rows: int) -> None:
        if not self.drift:
            return
        try:
            self.drift_ = (first_drift(rows) if watcher is None else
                           drift_between(watcher.model, self.model_, watcher, rows))
        except NotFittedError:
            self.drift_ = first_drift(rows)
        if callable(self.drift):
            self.drift(self.drift_)

    _takes_sparse = True

    def _solver(self, kind: str = "lapack") -> PCA:
        return PCA(self.n_components, whiten=self.whiten, standardize=self.standardize,
                   svd_solver=kind)

    def _empty(self, features: int) -> Stream | Window:
        if self.window is None:
            return Stream(features, float(self.forgetting), rank=self._rank(features))
        if self.window >= features:
            check_square(features, f"A window of {self.window} rows needs one; make it smaller "
                                   "than the number of features.")
        return Window(features, int(self.window))

    def _rank(self, features: int) -> int | None:
        """Return how many axes to keep, if features are too many for a square matrix."""
        kept = super()._rank(features)
        if kept is None or self.n_oversamples is None:
            return kept
        return int(self.n_components) + int(self.n_oversamples)

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        allowed = {
            "whiten": (is_whitening(self.whiten), "False, True, 'pca' or 'zca'"),
            "standardize": (is_flag(self.standardize), "True or False"),
            "batch_size": (self.batch_size is None or whole(self.batch_size, 1),
                           "None or an integer of at least 1"),
            "forgetting": (isinstance(self.forgetting, Real)
                           and LEAST_FORGETTING <= float(self.forgetting) <= 1,
                           f"a number from {LEAST_FORGETTING} to 1; less leaves the newest row "
                           "alone, which has no variance"),
            "window": (self.window is None or whole(self.window, 2),
                       "None or an integer of at least 2"),
            "n_oversamples": (self.n_oversamples is None or whole(self.n_oversamples, 0),
                              "None or an integer of at least 0"),
            "drift": (self.drift in (False, True) or callable(self.drift),
                      "True, False or a function of a Drift"),
        }
        check_values(vars(self), allowed)
        if self.window is not None and self.forgetting != 1:
            raise ValueError(f"window={self.window} and forgetting={self.forgetting} are two ways "
                             "to let old rows go; give one of them.")
