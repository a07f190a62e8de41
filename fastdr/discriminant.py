"""Fisher's linear discriminant analysis, a drop-in for scikit-learn's."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from fastdr.class_statistics import ClassMoments, class_sizes, encoded
from fastdr.discriminant_estimator import DiscriminantEstimator
from fastdr.discriminant_model import DiscriminantModel
from fastdr.fisher import directions
from fastdr.models import fix_signs
from fastdr.sources import ArraySource, Source, gathered
from fastdr.sparse import SparseSource
from fastdr.sparse_within import of_sparse, sparse_ledoit_wolf
from fastdr.validation import (
    MOST_WEIGHT,
    AccuracyWarning,
    AnyArray,
    FloatArray,
    as_labels,
    as_numbers,
    check_masks,
    check_values,
    finite,
    frozen,
    is_sparse,
    narrowed,
    whole,
    working_dtype,
)
from fastdr.within import (
    ClassSample,
    Within,
    check_variances,
    covariance_of,
    ledoit_wolf,
    of_estimator,
    of_tall,
    of_wide,
    without_noise,
)

SOLVERS = ("auto", "svd", "lsqr", "eigen")
LEAST_WEIGHT = 1 / MOST_WEIGHT


class LinearDiscriminantAnalysis(DiscriminantEstimator):
    """Linear discriminant analysis: the directions that tell classes apart, and a classifier.

    Finds w that maximise wᵀ S_B w / wᵀ S_W w for the covariances between and within classes. With
    two classes w is proportional to S_W⁻¹ (m₁ - m₀).

    Parameters
    ----------
    solver : {"auto", "svd", "lsqr", "eigen"}, default "auto"
        All names find the same directions by the same computation. As in scikit-learn, "svd"
        takes neither shrinkage nor an estimator, "lsqr" only classifies, and "lsqr" and "eigen"
        weight the covariances of the classes by `priors`; "auto" and "svd" by their rows.
    shrinkage : None, "auto" or float in [0, 1]
        Replace S_W by (1 - s) S_W + s (trace / d) I. "auto" shrinks the covariance of each class
        by the lemma of Ledoit and Wolf (2004) in columns of unit deviation, as scikit-learn
        does; it reads the rows of an array or sparse matrix a class at a time.
    priors : (C,) array, optional
        Probabilities of the classes; by default their share of the rows.
    n_components : int, optional
        Columns of ``transform``, at most min(C - 1, d); all if None.
    store_covariance : bool, default False
        Keep the (d, d) within-class covariance. "lsqr" and "eigen" keep it anyway, unless rows
        are fewer than features, where it is not needed.
    tol : float, default 1e-4
        Axes within classes whose deviation is at most `tol`, in columns of unit deviation, are
        left out, for they may stand for dependent columns.
    covariance_estimator : object with ``fit`` and ``covariance_``, optional
        Estimates the covariance of each class instead, for "auto", "lsqr" and "eigen".

    Attributes
    ----------
    classes_ : (C,) labels in ascending order.
    priors_ : (C,) probabilities of the classes.
    means_ : (C, d) means of the classes.
    xbar_ : (d,) overall mean, weighted by `priors_`.
    scalings_ : (d, r) directions w as columns, most separating first, wᵀ S_W w = 1; the entry of
        largest magnitude of each is positive.
    explained_variance_ratio_ : (k,) shares of the variance between classes.
    separations_ : (r,) variance between classes over variance within, along each direction.
    coef_, intercept_ : (C, d) and (C,), or (1, d) and (1,) for two classes.
    covariance_ : (d, d) within-class covariance (divisor n), if it was kept.
    n_components_, n_features_in_ : int
    feature_names_in_ : (d,) array of str, for frames only.
    report_ : dict that prints as a table: what the fit did.
    model_ : DiscriminantModel, the frozen fitted state.
    moments_ : ClassMoments, after ``partial_fit`` only.

    Notes
    -----
    One pass, O(n d²), in one d x d matrix for any number of classes; with fewer rows than
    features O(n² d) and no d x d matrix at all. Statistics are gathered about the mean of each
    class, so neither offsets nor the distance between classes cost digits. Sparse rows are never
    made dense as a whole: beyond 8000 features and rows, equations are solved by products with the
    rows, which asks for ``shrinkage`` where S_W is badly conditioned (Cai, He & Han 2008).

    References
    ----------
    Fisher, Annals of Eugenics 7 (1936); Ledoit & Wolf, J. Multivariate Anal. 88 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[-1, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> lda = LinearDiscriminantAnalysis().fit(X, ["a", "a", "a", "b", "b", "b"])
    >>> lda.predict([[-0.8, -1]])
    array(['a'], dtype='<U1')
    """

    def __init__(self, solver: str = "auto", shrinkage: float | str | None = None,
                 priors: ArrayLike | None = None, n_components: int | None = None,
                 store_covariance: bool = False, tol: float = 1e-4,
                 covariance_estimator: Any = None) -> None:
        self.solver = solver
        self.shrinkage = shrinkage
        self.priors = priors
        self.n_components = n_components
        self.store_covariance = store_covariance
        self.tol = tol
        self.covariance_estimator = covariance_estimator

    @property
    def _takes_sparse(self) -> bool:
        return self.covariance_estimator is None

    def fit(self, X: ArrayLike | Source, y: ArrayLike | None = None,
            sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows with class labels.

        Parameters
        ----------
        X : (n, d) array, frame, sparse matrix or `Source`
            Finite real rows of any layout and dtype; never modified, never copied as a whole.
        y : (n,) labels: numbers, bool or strings.
        sample_weight : (n,) array, optional
            Frequencies: how many rows each row stands for; 0 is none, and a class without weight is
            left out. Their sum may be from 1e-150 to 1e150.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            If rows, labels, weights or parameters cannot be used; also if no feature varies
            within a class, so that there is nothing to measure distances by, or one varies by
            less than 1e-145 or more than 1e154, so that float64 does not hold the squares. The
            fitted state is unchanged then.
        """
        self._fit_rows(X, sample_weight,
                       lambda source, weights: self._discriminant(source, weights, y))
        self.__dict__.pop("moments_", None)
        return self

    def fit_transform(self, X: ArrayLike, y: ArrayLike | None = None,
                      sample_weight: ArrayLike | None = None) -> AnyArray:
        """Fit to `X` and return its scores, bit for bit those of ``fit(X, y).transform(X)``."""
        return self.fit(X, y, sample_weight).transform(X)

    @available_if(lambda self: self.shrinkage != "auto" and self.covariance_estimator is None)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: ArrayLike | Source, y: ArrayLike,
                    classes: ArrayLike | None = None,
                    sample_weight: ArrayLike | None = None) -> Self:
        """Add rows to those of earlier calls; new classes may come at any time.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`
        classes : (C,) labels or another iterable of them, optional
            All labels that may come; others are refused then.

        Returns
        -------
        self
            Fitted as soon as the rows have two classes (or as many as `priors` and
            `n_components` ask for) and vary within one of them. Statistics are merged exactly
            (``moments_``, a d x d matrix); covariances are weighted by rows.

        Raises
        ------
        ValueError, TypeError
            As `fit`.

        Notes
        -----
        Not there with shrinkage="auto" or a covariance_estimator: these need all rows of a class
        at once.
        """
        before = dict(self.__dict__)
        try:
            self._merge(X, y, classes, sample_weight)
        except BaseException:
            self.__dict__ = before
            raise
        return self

    def _merge(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> None:
        self._check_parameters()
        known: ClassMoments | None = vars(self).get("moments_")
        if known is None:
            self.__dict__.pop("model_", None)
        source = self._source(X) if known is None else self._further_source(X)
        labels = self._labels(y, source.shape[0])
        if classes is not None:
            if not np.iterable(classes):
                raise TypeError(f"classes={classes!r} is not allowed; it must be labels.")
            unknown = ~np.isin(labels, np.ravel(list(classes)))
            if unknown.any():
                raise ValueError(f"y has label {labels[unknown][0]!r}, which is not in classes.")
        with self._named(source):
            moments = ClassMoments.of_source(source, labels, sample_weight, precision="double")
        total = self.moments_ = frozen(moments if known is None else known + moments)
        if len(total.classes) < self._least_classes() or not np.diagonal(total.within).any():
            return
        sample = ClassSample(total.classes, total.counts, total.weights, total.means, total.rests)
        priors = self._priors(sample)
        weight = float(total.weights.sum())
        check_variances(np.diagonal(total.within))
        matrix = total.within / weight
        self.model_ = self._model(sample, priors, Within.of_matrix(
            matrix, int(total.counts.sum())), source.dtype)

    def _discriminant(self, source: Source, weights: FloatArray | None, y: Any
                      ) -> DiscriminantModel:
        self._check_parameters()
        labels = self._labels(y, source.shape[0])
        classes, codes = encoded(labels, weights)
        counts, sizes = class_sizes(codes, weights, len(classes))
        _check_sizes(counts)
        features = source.shape[1]
        self._number(len(classes), features)
        sample = ClassSample(classes, counts, sizes)
        priors = self._priors(sample)
        total = sizes.sum()
        by_prior = self.priors is not None and self.solver in ("lsqr", "eigen")
        factors = priors / sizes if by_prior else np.full(len(classes), 1 / total)
        if self.covariance_estimator is not None:
            if weights is not None or not isinstance(source, ArraySource):
                raise ValueError("covariance_estimator needs an array and takes no "
                                 "sample_weight.")
            sample, within = of_estimator(self.covariance_estimator, source.array, codes, priors,
                                          sample)
            return self._model(sample, priors, within, source.dtype)
        wide = int(counts.sum()) < features and not isinstance(source, SparseSource)
        if wide:
            source = gathered(source)
        ridge = None
        if self.shrinkage == "auto":
            if isinstance(source, SparseSource):
                shares, ridge = sparse_ledoit_wolf(source, codes, weights, priors)
            elif isinstance(source, ArraySource):
                shares, ridge = ledoit_wolf(source.array, codes, weights, priors)
            else:
                raise ValueError("shrinkage='auto' reads the rows a class at a time and needs an "
                                 "array or a sparse matrix; give a number instead.")
            factors = shares / sizes
        factors = np.maximum(factors, 1e-100 / sizes)  # a class of no effect still has a mean
        row_weights = factors[codes] if weights is None else factors[codes] * weights
        sparse = isinstance(source, SparseSource)
        gather: Any = of_sparse if sparse else of_wide if wide else of_tall
        sample, within = gather(source, codes, row_weights, sample)
        return self._model(sample, priors, within, source.dtype, ridge)

    def _model(self, sample: ClassSample, priors: FloatArray, within: Within, dtype: Any,
               ridge: FloatArray | None = None) -> DiscriminantModel:
        """Shrink, solve for the directions and put the model together."""
        if ridge is not None:
            within = within.with_ridge(ridge)
        elif isinstance(self.shrinkage, Real):
            within = within.shrunk(float(self.shrinkage))
        check_variances(within.squares)
        within = without_noise(within, sample, dtype)
        features, classes = within.squares.size, len(sample.classes)
        number = self._number(classes, features)
        apart = (sample.means - sample.means[0]) + (sample.rests - sample.rests[0])
        middle = priors @ apart
        apart -= middle
        found = directions(within, np.sqrt(priors)[:, None] * apart,
                           0.0 if within.ridge is not None else float(self.tol))
        vectors = narrowed(fix_signs(found.vectors), working_dtype(dtype), "directions")
        mean = sample.means[0] + middle
        apart += (sample.means[0] - mean) + middle + sample.rests[0]  # of the mean as it is kept
        if not found.rank:
            raise ValueError(f"No direction varies within classes by more than tol={self.tol:g} "
                             "deviations; give a smaller tol.")
        if "uncertain" in found.method:
            warnings.warn("Columns nearly depend on each other within classes, and the rows "
                          "cannot be read again: some directions may be uncertain.",
                          AccuracyWarning, 6)
        if len(found.values) < number and self.n_components is not None:
            warnings.warn(f"Only {len(found.values)} direction(s) separate the class means, so "
                          f"transform returns as many columns, not n_components={number}.",
                          UserWarning, 6)
        kept = self.store_covariance or self.solver in ("lsqr", "eigen")
        return DiscriminantModel(
            sample.classes, priors, mean, sample.means, vectors, found.values, number,
            apart @ vectors.T.astype(np.float64), int(sample.counts.sum()),
            covariance_of(within, self.store_covariance) if kept else None,
            self._feature_labels,
            {"solver": self.solver, "method": found.method, "passes": 1 + found.passes,
             "rows": int(sample.counts.sum()), "weight": float(sample.weights.sum()),
             "features": features, "classes": classes, "directions": len(found.values),
             "rank": found.rank, "shrinkage": self.shrinkage, "dtype": str(dtype),
             "relative_error": found.error})

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        shrinkage, tol = self.shrinkage, self.tol
        allowed = {
            "solver": (self.solver in SOLVERS, f"one of {', '.join(SOLVERS)}"),
            "shrinkage": (shrinkage is None or shrinkage == "auto" or (
                _real(shrinkage) and 0 <= float(shrinkage) <= 1),
                "None, 'auto' or a number from 0 to 1"),
            "tol": (finite(tol) and tol >= 0, "a finite number of at least 0"),
            "store_covariance": (isinstance(self.store_covariance, bool | np.bool_),
                                 "True or False"),
            "n_components": (self.n_components is None or whole(self.n_components, 1),
                             "None or an integer of at least 1"),
            "covariance_estimator": (self.covariance_estimator is None or hasattr(
                self.covariance_estimator, "fit"), "None or an object with a fit method"),
        }
        check_values(vars(self), allowed)
        if self.solver == "svd" and shrinkage is not None:
            raise NotImplementedError("shrinkage not supported with 'svd' solver; use 'auto'.")
        if self.solver == "svd" and self.covariance_estimator is not None:
            raise ValueError("covariance estimator is not supported with svd solver. Try another "
                             "solver.")
        if self.covariance_estimator is not None and shrinkage not in (None, 0):
            raise ValueError("covariance_estimator and shrinkage parameters are not None. Only "
                             "one of the two can be set.")

    def _number(self, classes: int, features: int) -> int:
        """Return how many columns ``transform`` is to have."""
        most = min(classes - 1, features)
        if self.n_components is None:
            return most
        if self.n_components > most:
            raise ValueError(
                "n_components cannot be larger than min(n_features, n_classes - 1). Got "
                f"n_components={self.n_components}, {features} features and {classes} classes: "
                f"pass at most {most}.")
        return int(self.n_components)

    def _least_classes(self) -> int:
        """Return how many classes there must be before the parameters can be met."""
        components = 1 if self.n_components is None else int(self.n_components)
        priors = 0 if self.priors is None else np.size(np.asarray(self.priors))
        return max(components + 1, priors)

    def _labels(self, y: Any, rows: int | None) -> AnyArray:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y "
                             "is None.")
        check_masks(y, "y")
        # scikit-learn would make float64 of the integers of a nullable column
        labels = column_or_1d(y if is_sparse(y) else np.asarray(y), warn=True)
        if rows is not None and len(labels) != rows:
            check_consistent_length(np.empty((rows, 0)), labels)
        labels = as_labels(labels, rows)
        if labels.dtype.kind not in "biuU":  # which are classes without a look
            check_classification_targets(labels)
        return labels

    def _priors(self, sample: ClassSample) -> FloatArray:
        classes, total = len(sample.classes), float(sample.weights.sum())
        if total < LEAST_WEIGHT:
            raise ValueError(f"sample_weight has sum {total:g}; at least {LEAST_WEIGHT:g} is "
                             "needed. Multiply the weights by a power of ten.")
        if self.priors is None:
            share: FloatArray = sample.weights / total
            return share
        priors: FloatArray = as_numbers(self.priors, "priors").astype(np.float64)
        if priors.shape != (classes,):
            raise ValueError(f"priors has shape {priors.shape}; expected ({classes},), one for "
                             "each class.")
        if (priors < 0).any():
            raise ValueError(f"priors must be non-negative; got {priors.min():g}.")
        with np.errstate(over="ignore"):
            total = float(priors.sum())
        if not 0 < total < np.inf:
            raise ValueError(f"priors must have a positive sum, and a finite one; it is {total:g}.")
        if abs(total - 1) > 1e-5:
            warnings.warn("The priors do not sum to 1. Renormalizing", UserWarning, 6)
        priors /= total
        return priors

    def transform(self, X: ArrayLike) -> AnyArray:
        """Return the scores of rows (n, d) along the directions, (n, k).

        Centred at ``xbar_`` whatever the solver; variance 1 within classes. Raises
        NotFittedError before ``fit``, NotImplementedError for solver="lsqr", ValueError for a
        wrong number of features or NaN.
        """
        if self.solver == "lsqr":
            raise NotImplementedError("transform not implemented for 'lsqr' solver (use 'auto', "
                                      "'svd' or 'eigen').")
        return super().transform(X)


def _real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_sizes(counts: NDArray[np.int64]) -> None:
    if len(counts) < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {len(counts)} "
                         "class.")
    if counts.sum() == len(counts):
        raise ValueError("The number of samples must be more than the number of classes: every "
                         "class has one sample, so nothing varies within classes.")
