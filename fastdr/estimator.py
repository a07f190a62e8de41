"""What the estimators share: scikit-learn's contract around a fitted model."""

from __future__ import annotations

import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted, validate_data

from fastdr._serve import Projector
from fastdr.certificate import Certificate
from fastdr.dask_source import computed
from fastdr.embedding import LinearlyMapped
from fastdr.inputs import is_opened, open_rows
from fastdr.plan import Plan
from fastdr.sources import ArraySource, Source
from fastdr.sparse import SparseSource
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_weights,
    is_sparse,
    raise_not_finite,
    rows_named,
    working_dtype,
)

PICKLE_FORMAT = 1
WIDTH = 80


class Report(dict[str, Any]):
    """How a fit went: a dictionary of plain values that prints as a table.

    Examples
    --------
    >>> print(Report(solver="lapack", rows=150))
    solver  lapack
    rows    150
    """

    @classmethod
    def of(cls, report: Mapping[str, Any], told: Certificate | None) -> Self:
        """Return what a model reports, its certificate in one line."""
        proof = {} if told is None else {"certificate": str(told)}
        return cls({**report, **proof})

    def __str__(self) -> str:
        """Return one entry a line, at most 80 columns wide."""
        margin = max(map(len, self), default=0) + 2
        lines = []
        for name, value in self.items():
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            first, *rest = textwrap.wrap(text, WIDTH - margin) or [""]
            lines.append(name.replace("_", " ").ljust(margin) + first)
            lines += [" " * margin + line for line in rest]
        return "\n".join(lines)


class Model(Protocol):
    """What an estimator asks of its fitted state."""

    @property
    def n_outputs(self) -> int: ...  # noqa: D102

    def transform(self, X: Any) -> AnyArray: ...  # noqa: D102

    def inverse_transform(self, Z: ArrayLike) -> AnyArray: ...  # noqa: D102


class ModelEstimator(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator  # type: ignore[misc]
):
    """An estimator whose fitted state is one frozen value, ``model_``.

    A subclass has its parameters and ``_fitted(source, weights)``, which returns the model and
    changes nothing. A failed ``fit`` leaves the estimator as it was.
    """

    model_: Model

    @property
    def _takes_sparse(self) -> bool:
        """Whether `_fitted` and the model do."""
        return False

    @property
    def _takes_missing(self) -> bool:
        """Whether cells of rows to fit and to transform may be NaN."""
        return False

    @property
    def _map(self) -> Callable[[Any], AnyArray]:
        """What turns rows into scores."""
        return self.model_.transform

    def _fitted(self, source: Source, weights: FloatArray | None) -> Model:
        raise NotImplementedError

    def fit(self, X: ArrayLike | Source, y: Any = None,
            sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model to rows.

        Parameters
        ----------
        X : (n, d) array, frame, or what `fastdr.open_rows` returns or takes, but for paths
            Finite real rows of any layout and dtype; never modified, never copied as a whole.
        y : ignored
        sample_weight : (n,) array, optional
            Frequencies, not reliabilities: how many rows each row stands for. 2 is the same as
            having it twice, 0 as not having it; variances have divisor sum w - 1.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            If the rows, weights or parameters cannot be used; the fitted state is unchanged.
        """
        self._fit_rows(X, sample_weight)
        return self

    def fit_transform(self, X: ArrayLike, y: Any = None,
                      sample_weight: ArrayLike | None = None) -> AnyArray:
        """Fit to `X` and return its scores, bit for bit those of ``fit(X).transform(X)``."""
        given = self._opened(X) if is_opened(X) else X
        if not getattr(given, "rereadable", True):
            raise TypeError("fit_transform reads the rows twice, but these can be read once only.")
        source = self._fit_rows(given, sample_weight)
        if isinstance(source, SparseSource):
            return self._map(source)
        if isinstance(source, ArraySource):
            return self._map(source.array)
        scores: AnyArray = self._scores(source)
        return scores

    def transform(self, X: Any) -> AnyArray:
        """Return the scores of rows (n, d) as (n, n_components), in the working dtype of `X`.

        Rows may come from wherever ``fit`` takes them; Dask collections give Dask collections,
        not yet computed unless ``set_output`` asks for frames. Raises NotFittedError before
        ``fit``, ValueError for a wrong number of features or NaN.
        """
        if is_opened(X):
            scores: AnyArray = self._scores(self._opened(X))
            return scores
        with self._rows(X) as rows:
            return self._map(rows)

    def _scores(self, source: Any) -> Any:
        """Return the scores of all blocks of a source after checking its features."""
        check_is_fitted(self)
        self._check_features(source)
        if hasattr(source, "mapped"):
            lazy = source.mapped(self._map, list(self.get_feature_names_out()),
                                 working_dtype(source.dtype))
            framed = _get_output_config("transform", self)["dense"] != "default"
            return computed(lazy) if framed else lazy  # frames of set_output are in memory
        scores, row = [], 0
        for block in source.blocks():
            if len(block):
                with rows_named(block, source.columns, row, self._takes_missing):
                    scores.append(self._map(block))
            row += len(block)
        if not scores:
            raise ValueError("Found no rows: the source is empty.")
        return np.concatenate(scores)

    def inverse_transform(self, X: ArrayLike) -> AnyArray:
        """Return the rows (n, d) that scores `X` stand for; the inverse of ``transform``.

        Scores of a Dask collection give a Dask collection. Raises NotFittedError before ``fit``,
        ValueError for a wrong number of columns or NaN.
        """
        check_is_fitted(self)
        if is_opened(X):
            source: Any = open_rows(X)
            if hasattr(source, "mapped"):
                names = self._names() or [f"x{i}" for i in range(self.n_features_in_)]
                lazy: AnyArray = source.mapped(self.model_.inverse_transform, names,
                                               working_dtype(source.dtype))
                return lazy
            return np.concatenate(list(map(self.model_.inverse_transform, source.blocks())))
        return self.model_.inverse_transform(X)

    def _fit_rows(self, X: ArrayLike | Source, sample_weight: ArrayLike | None,
                  fitted: Callable[[Source, FloatArray | None], Model] | None = None, *,
                  further: bool = False) -> Source:
        """Set the model to what `fitted` makes of rows, `further` ones of the same features or not.

        After an error all is as before. Return the rows as a source.
        """
        before = dict(self.__dict__)
        try:
            source = self._further_source(X) if further else self._source(X)
            rows = source.shape[0]
            if sample_weight is not None and rows is None:
                raise ValueError("sample_weight needs a source that knows its number of rows; a "
                                 "Dask array does after X.compute_chunk_sizes().")
            weights = (None if sample_weight is None
                       else as_weights(sample_weight, rows or 0))
            with self._named(source):
                model = (fitted or self._fitted)(source, weights)
            self.model_ = model if source.rereadable else _read_once(model)
        except BaseException:
            self.__dict__ = before
            raise
        return source

    def _opened(self, X: Any) -> Source:
        """Open rows of any origin; cells may be missing where the estimator takes that."""
        return open_rows(X, missing=self._takes_missing)

    def _source(self, X: Any) -> Source:
        """Return the rows to fit as a source; remember the number and names of features."""
        if is_opened(X):
            source = self._opened(X)
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = source.shape[1]
            if source.columns is not None:
                self.feature_names_in_ = np.array(source.columns, dtype=object)
            return source
        if self._takes_sparse and is_sparse(X):
            validate_data(self, X, skip_check_array=True)
            return SparseSource.of(X, owner=type(self).__name__)
        array = self._array(X)
        if type(X) is np.ndarray:  # what validate_data does for it, without 0.1 ms of detection
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = array.shape[1]
        else:
            validate_data(self, _labelled(X, array), skip_check_array=True)
        return ArraySource(array, self._names())

    def _further_source(self, X: Any) -> Source:
        """As `_source`, for rows that join those of earlier calls and must agree with them."""
        if is_opened(X):
            source = self._opened(X)
            self._check_features(source)
            return source
        if self._takes_sparse and is_sparse(X):
            validate_data(self, X, skip_check_array=True, reset=False)
            return SparseSource.of(X, owner=type(self).__name__)
        return ArraySource(self._further_array(X), self._names())

    def _check_features(self, source: Source) -> None:
        """Refuse another number of features, or other names."""
        features, names = source.shape[1], self._names()
        if features != self.n_features_in_:
            raise ValueError(f"X has {features} features, but {type(self).__name__} is expecting "
                             f"{self.n_features_in_} features as input.")
        if names is not None and source.columns is not None and source.columns != names:
            raise ValueError("The feature names should match those that were passed during fit: "
                             f"{names}.")

    def _further_array(self, X: Any) -> AnyArray:
        """Return `X` as an array whose features are those of the fit, as scikit-learn judges."""
        array = self._array(X)
        same = array.shape[1] == getattr(self, "n_features_in_", None)
        if type(X) is not np.ndarray or not same or self._names() is not None:
            validate_data(self, _labelled(X, array), skip_check_array=True, reset=False)
        return array

    def _array(self, X: Any) -> AnyArray:
        """Return `X` as an array; numbers in an array of objects are welcome, as everywhere."""
        if is_opened(X):
            raise TypeError(f"this method takes an array, not a {type(X).__name__}; pass the rows "
                            "themselves, such as X.compute() of a Dask collection.")
        if isinstance(X, np.ndarray) and X.dtype == object:
            X = X.astype(np.float64)
        return as_matrix(X, owner=type(self).__name__)

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    @property
    def _feature_labels(self) -> tuple[str, ...] | None:
        """Names of the features as a model keeps them."""
        names = self._names()
        return None if names is None else tuple(map(str, names))

    @contextmanager
    def _rows(self, X: Any, missing: bool = False) -> Iterator[AnyArray]:
        """Provide new rows as an array or SparseSource, after checking that they fit the model.

        An error about NaN or infinity names the column; NaN is none if `missing`.
        """
        if "model_" not in self.__dict__:
            check_is_fitted(self)
        if self._takes_sparse and is_sparse(X):
            validate_data(self, X, skip_check_array=True, reset=False)
            yield SparseSource.of(X, owner=type(self).__name__)  # type: ignore[misc]
            return
        array = self._further_array(X)
        try:
            yield array
        except ValueError:
            self._name_column(ArraySource(array, self._names()), missing)
            raise

    @contextmanager
    def _named(self, source: Source) -> Iterator[None]:
        """Let an error about NaN or infinity name the column."""
        try:
            yield
        except ValueError:
            self._name_column(source)
            raise

    def _name_column(self, source: Source, missing: bool = False) -> None:
        if source.columns is not None and isinstance(source, ArraySource):
            raise_not_finite(source.array, columns=source.columns,
                             allow_nan=missing or self._takes_missing)

    @property
    def _n_features_out(self) -> int:
        return self.model_.n_outputs

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn which dtypes pass through unchanged."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = self._takes_sparse
        tags.input_tags.allow_nan = self._takes_missing
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a model; rows of one class, for one, may have come before it."""
        return "model_" in vars(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with the number of its format."""
        return {**super().__getstate__(), "_pickle_format": PICKLE_FORMAT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle of this or an earlier version; parameters it lacks get defaults."""
        state = dict(state)
        written = state.pop("_pickle_format", 0)
        if written > PICKLE_FORMAT:
            raise ValueError(f"this {type(self).__name__} was pickled in format {written}; this "
                             f"version of fastdr reads up to {PICKLE_FORMAT}. Upgrade fastdr, or "
                             "exchange models with model_.save and fastdr.load.")
        parameters = inspect.signature(type(self).__init__).parameters.values()
        defaults = {parameter.name: parameter.default for parameter in parameters
                    if parameter.default is not parameter.empty}
        super().__setstate__({**defaults, **state})


class LinearEstimator(ModelEstimator):
    """An estimator whose model is one linear map."""

    model_: LinearlyMapped

    def projector(self) -> Projector:
        """Return the fitted model made ready for one row at a time: see `Projector`.

        Raises NotFittedError before ``fit``.

        Examples
        --------
        >>> import numpy as np
        >>> from fastdr import PCA
        >>> X = np.array([[3.0, 0], [-3, 0], [0, 1], [0, -1]])
        >>> project = PCA(1).fit(X).projector()
        >>> project(np.array([2.0, 7.0]))
        array([2.])
        """
        check_is_fitted(self)
        return self.model_.projector()


def warn_unproved(certificate: bool | str, way: Plan) -> None:
    """Warn the caller of ``fit`` if a proof that was asked for is not made."""
    if certificate in (True, "proof") and not way.proof:
        warnings.warn(f"certificate={certificate!r} asks for a proof, but there is none: "
                      f"{way.reason}. The certificate has residuals only.", UserWarning, 5)


def _read_once(model: Any) -> Any:
    """Return the model with a word on its source in the report."""
    if not hasattr(model, "report"):
        return model
    return replace(model, report={**model.report, "source": "read once, cannot be read again"})


def _labelled(X: Any, array: AnyArray) -> Any:
    """Return `X`, or its values if names are given twice and so name nothing."""
    names = [name for name in getattr(X, "columns", ()) if isinstance(name, str)]
    return X if len(set(names)) == len(names) else array
