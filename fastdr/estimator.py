"""What the estimators share: scikit-learn's contract around a fitted model."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm.auto import tqdm

from fastdr._serve import Projector
from fastdr.embedding import LinearlyMapped
from fastdr.sources import ArraySource, BlockSource, Source
from fastdr.sparse import SparseSource
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_weights,
    is_sparse,
    raise_not_finite,
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
    _takes_sparse = False  # whether `_fitted` and the model do

    def _fitted(self, source: Source, weights: FloatArray | None) -> Model:
        raise NotImplementedError

    def fit(self, X: ArrayLike | Source, y: Any = None,
            sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model to rows.

        Parameters
        ----------
        X : (n, d) array, frame or `Source`
            Finite real rows of any layout and dtype; never modified, never copied as a whole.
        y : ignored
        sample_weight : (n,) array, optional
            How many rows each row stands for: 2 is the same as having it twice, 0 as not
            having it.

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
        return self._scores(self._fit_rows(X, sample_weight))

    def _scores(self, source: Source) -> AnyArray:
        if isinstance(source, SparseSource):
            return self.model_.transform(source)
        if not isinstance(source, ArraySource):
            raise TypeError("fit_transform needs an array; fit the source, then transform its "
                            "blocks.")
        return self.model_.transform(source.array)

    def transform(self, X: Any) -> AnyArray:
        """Return the scores of rows (n, d) as (n, n_components), in the working dtype of `X`.

        Raises NotFittedError before ``fit``, ValueError for a wrong number of features or NaN.
        """
        with self._rows(X) as rows:
            return self.model_.transform(rows)

    def inverse_transform(self, X: ArrayLike) -> AnyArray:
        """Return the rows (n, d) that scores `X` stand for; the inverse of ``transform``.

        Raises NotFittedError before ``fit``, ValueError for a wrong number of columns or NaN.
        """
        check_is_fitted(self)
        return self.model_.inverse_transform(X)

    def _fit_rows(self, X: ArrayLike | Source, sample_weight: ArrayLike | None,
                  fitted: Callable[[Source, FloatArray | None], Model] | None = None) -> Source:
        before = dict(self.__dict__)
        try:
            source = self._source(X)
            rows = source.shape[0]
            if sample_weight is not None and rows is None:
                raise ValueError("sample_weight needs a source that knows its number of rows.")
            weights = (None if sample_weight is None
                       else as_weights(np.asarray(sample_weight), rows or 0))
            with self._named(source):
                model = (fitted or self._fitted)(source, weights)
            self.model_ = model
        except BaseException:
            self.__dict__ = before
            raise
        return source

    def _source(self, X: Any) -> Source:
        """Return the rows to fit as a source; remember the number and names of features."""
        if _is_source(X):
            self.__dict__.pop("feature_names_in_", None)
            self.n_features_in_ = X.shape[1]
            if X.columns is not None:
                self.feature_names_in_ = np.array(X.columns, dtype=object)
            return X
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

    def _array(self, X: Any) -> AnyArray:
        """Return `X` as an array; numbers in an array of objects are welcome, as everywhere."""
        if isinstance(X, np.ndarray) and X.dtype == object:
            X = X.astype(np.float64)
        return as_matrix(X, owner=type(self).__name__)

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    @contextmanager
    def _rows(self, X: Any) -> Iterator[AnyArray]:
        """Provide new rows as an array or SparseSource, after checking that they fit the model."""
        if "model_" not in self.__dict__:
            check_is_fitted(self)
        if self._takes_sparse and is_sparse(X):
            validate_data(self, X, skip_check_array=True, reset=False)
            yield SparseSource.of(X, owner=type(self).__name__)  # type: ignore[misc]
            return
        array = self._array(X)
        same = array.shape[1] == getattr(self, "n_features_in_", None)
        if type(X) is not np.ndarray or not same or self._names() is not None:
            validate_data(self, _labelled(X, array), skip_check_array=True, reset=False)
        try:
            yield array
        except ValueError:
            self._name_column(ArraySource(array, self._names()))
            raise

    @contextmanager
    def _named(self, source: Source) -> Iterator[None]:
        """Let an error about NaN or infinity name the column."""
        try:
            yield
        except ValueError:
            self._name_column(source)
            raise

    def _name_column(self, source: Source) -> None:
        if source.columns is not None and isinstance(source, ArraySource):
            raise_not_finite(source.array, columns=source.columns)

    @property
    def _n_features_out(self) -> int:
        return self.model_.n_outputs

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn which dtypes pass through unchanged."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = self._takes_sparse
        return tags

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
        """
        check_is_fitted(self)
        return self.model_.projector()


def _labelled(X: Any, array: AnyArray) -> Any:
    """Return `X`, or its values if names are given twice and so name nothing."""
    names = [name for name in getattr(X, "columns", ()) if isinstance(name, str)]
    return X if len(set(names)) == len(names) else array


def _is_source(X: Any) -> TypeGuard[Source]:
    return hasattr(X, "blocks") and hasattr(X, "rereadable")


def with_progress(source: Source, description: str) -> Source:
    """Return `source` with a bar on stderr for every pass over its blocks."""
    rows, features = source.shape

    def blocks() -> Iterator[AnyArray]:
        with tqdm(total=rows, desc=description, unit="row", unit_scale=True,
                  leave=False) as bar:
            for block in source.blocks():
                yield block
                bar.update(len(block))

    return BlockSource(blocks, features, rows, source.dtype, source.columns, source.rereadable)
