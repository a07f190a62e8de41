"""Fitted linear discriminants as frozen values: scores, decisions, probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, solve_triangular
from scipy.special import expit

from fastdr.embedding import LinearlyMapped, LinearMap
from fastdr.operators import project, reconstruct
from fastdr.sources import block_rows
from fastdr.sparse import SparseSource, as_rows
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    output,
    read_only,
    working_dtype,
)


@dataclass(frozen=True, eq=False)
class DiscriminantModel(LinearlyMapped):
    """Classes of equal within-class covariance, told apart along `r` directions.

    Attributes
    ----------
    classes : (C,) labels in ascending order.
    priors : (C,) float64, probabilities of the classes, of sum 1.
    mean : (d,) float64, mean of the class means weighted by `priors`; scores are 0 there.
    means : (C, d) float64, class means, units of the input.
    directions : (r, d) float64 or float32, r at most min(C - 1, d)
        Rows w with wᵀ S w = 1 for the within-class covariance S, most separating first.
    separations : (r,) float64, variance between classes over variance within, descending.
    n_components : int, columns of `transform`, at most r.
    centres : (C, r) float64, scores of the class means.
    count : int, rows fitted.
    covariance : (d, d) float64, the within-class covariance S, or None if it was not kept.
    feature_names : tuple of str, or None.
    report : dict of plain values: how the fit went.

    Examples
    --------
    >>> model = DiscriminantModel(["a", "b"], [0.5, 0.5], [0.0], [[-1.0], [1.0]], [[2.0]], [4.0])
    >>> model.predict([[-3.0], [0.1]])
    array(['a', 'b'], dtype='<U1')
    >>> model.probabilities([[0.0]])
    array([[0.5, 0.5]])
    """

    classes: AnyArray
    priors: FloatArray
    mean: FloatArray
    means: FloatArray
    directions: AnyArray
    separations: FloatArray
    n_components: int = -1
    centres: FloatArray | None = None
    count: int = 0
    covariance: FloatArray | None = None
    feature_names: tuple[str, ...] | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts agree; make them arrays, read-only."""
        classes = read_only(np.array(self.classes))
        found: dict[str, Any] = {"classes": classes}
        size, features = len(classes), np.size(self.mean)
        kept = len(np.asarray(self.directions))
        shapes = {"priors": (size,), "mean": (features,), "means": (size, features),
                  "directions": (kept, features), "separations": (kept,),
                  "centres": (size, kept), "covariance": (features, features)}
        for name, shape in shapes.items():
            given = getattr(self, name)
            if given is None:
                continue
            given = as_numbers(given, name)
            single = name == "directions" and given.dtype == np.float32
            array = read_only(given, np.float32 if single else np.float64)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}; expected {shape} for {size} "
                                 f"classes, {features} features and {kept} directions.")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
            found[name] = array
        if classes.ndim != 1 or size < 2:
            raise ValueError(f"classes has shape {classes.shape}; expected at least two labels.")
        if not (found["priors"] >= 0).all() or not abs(found["priors"].sum() - 1) < 1e-5:
            raise ValueError(f"priors are {found['priors']}; expected probabilities of sum 1.")
        if self.centres is None:
            found["centres"] = (found["means"] - found["mean"]) @ found["directions"].T
        found["n_components"] = kept if self.n_components < 0 else min(self.n_components, kept)
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def n_outputs(self) -> int:
        """Columns of `transform`."""
        return self.n_components

    def transform(self, X: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the scores of rows along the first directions, (n, n_components).

        Variance 1 within classes; centred at `mean` before the product, so an offset costs no
        digits. In the working dtype of `X`; one read, O(d n_components) a row.

        Raises ValueError or TypeError for unusable rows.
        """
        return project(X, self.directions[:self.n_components], self.mean, out=out)

    def inverse_transform(self, Z: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the rows nearest to `mean` that have the scores `Z`, (n, d).

        ``transform(inverse_transform(Z))`` is `Z`. Raises ValueError for a wrong width.
        """
        if np.ndim(Z) == 2 and np.shape(Z)[1] == 0 == self.n_components:
            return reconstruct(Z, self._back, self.mean, out=out)
        Z = as_matrix(Z, "Z")
        if Z.shape[1] != self.n_components:
            raise ValueError(f"Z has {Z.shape[1]} columns, but this model has "
                             f"{self.n_components}; pass scores as transform returns them.")
        out = output(out, (len(Z), self.mean.size), working_dtype(Z.dtype), Z, self)
        return reconstruct(Z, self._back, self.mean, out=out)

    @cached_property
    def _back(self) -> FloatArray:
        """(n_components, d) rows b of least length with w b = 1 for their direction w, else 0."""
        directions = self.directions[:self.n_components].astype(np.float64)
        basis, upper = qr(directions.T, mode="economic")
        back: FloatArray = solve_triangular(upper, basis.T)
        return back

    @property
    def linear_map(self) -> LinearMap:
        """The map from rows to scores and back."""
        return LinearMap(self.mean, self.directions[:self.n_components],
                         self._back.astype(self.directions.dtype))

    @property
    def ratios(self) -> FloatArray:
        """(r,) share of each direction in the sum of `separations`."""
        ratios: FloatArray = self.separations / (self.separations.sum() or 1.0)
        return ratios

    @cached_property
    def coefficients(self) -> FloatArray:
        """(C, d): gradient of each class's log density, S⁻¹(m_c - mean) in the directions."""
        return read_only(self._centres @ self.directions)

    @cached_property
    def intercepts(self) -> FloatArray:
        """(C,): decisions of `coefficients` at the origin of the features."""
        return read_only(self._biases - self.coefficients @ self.mean)

    @property
    def _centres(self) -> FloatArray:
        assert self.centres is not None
        return self.centres

    @cached_property
    def _biases(self) -> FloatArray:
        """Decisions at `mean`: log prior less half the squared distance of the class."""
        with np.errstate(divide="ignore"):
            logs: FloatArray = np.log(self.priors)
        logs -= 0.5 * np.einsum("ij,ij->i", self._centres, self._centres)
        return logs

    def decisions(self, X: Any) -> AnyArray:
        """Return the linear discriminant of each class, (n, C); of two classes the log odds, (n,).

        With more classes they are log posteriors up to a number for each row.
        """
        X = as_rows(X)
        if len(self.classes) == 2:
            return self._log_odds(X)
        scores = project(X, self.coefficients, self.mean)
        scores += self._biases.astype(scores.dtype)
        return scores

    def _log_odds(self, X: AnyArray | SparseSource) -> AnyArray:
        """Log odds of the second class, about the middle between both, where it cancels least."""
        with np.errstate(divide="ignore"):
            prior = np.log(self.priors[1]) - np.log(self.priors[0])
        middle, step = self._centres.mean(axis=0), self._centres[1] - self._centres[0]
        odds = project(X, (step @ self.directions)[None], self.mean)[:, 0]
        odds += odds.dtype.type(prior - middle @ step)
        return odds

    def log_probabilities(self, X: Any) -> FloatArray:
        """Return log posterior probabilities of the classes, (n, C) float64."""
        X = as_rows(X)
        if len(self.classes) == 2:
            odds = self._log_odds(X).astype(np.float64)
            return -np.logaddexp(0.0, np.stack([odds, -odds], axis=1))
        scores = self._log_densities(X).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return scores

    def probabilities(self, X: Any) -> FloatArray:
        """Return posterior probabilities of the classes, (n, C) float64, of sum 1."""
        X = as_rows(X)
        if len(self.classes) == 2:
            odds = self._log_odds(X).astype(np.float64)
            pair: FloatArray = expit(np.stack([-odds, odds], axis=1))
            return pair
        return np.exp(self.log_probabilities(X))

    def predict(self, X: Any) -> AnyArray:
        """Return the most probable class of each row, (n,); of equals the first."""
        X = as_rows(X)
        if len(self.classes) == 2:
            codes = (self._log_odds(X) > 0).astype(np.intp)
        else:
            codes = self._log_densities(X).argmax(axis=1)
        labels: AnyArray = self.classes[codes]
        return labels

    def _log_densities(self, X: AnyArray | SparseSource) -> AnyArray:
        """Log posteriors up to a number for each row, safe for classes of any distance.

        The linear form is a difference of numbers as large as the squared distance of the
        classes from their mean; where that costs digits, it is taken about the nearest class.
        """
        size = float(np.einsum("ij,ij->i", self._centres, self._centres).max(initial=0.0))
        if size < float(np.finfo(working_dtype(X.dtype)).eps) ** -0.5:
            return self.decisions(X)
        scores = np.empty((len(X), len(self.classes)))
        step = max(1, block_rows(self._centres.size))
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            rows = (X.part(start, min(start + step, len(X))) if isinstance(X, SparseSource)
                    else X[part].astype(np.float64))
            scores[part] = self._about_nearest(project(rows, self.directions, self.mean))
        return scores

    def _about_nearest(self, Z: AnyArray) -> FloatArray:
        """Log posteriors of rows with the scores `Z`, less those without priors of the nearest."""
        with np.errstate(divide="ignore", over="ignore"):
            apart = Z[:, None] - self._centres
            nearest = np.einsum("ijk,ijk->ij", apart, apart).argmin(axis=1)
            found = np.tile(np.log(self.priors), (len(Z), 1))
        for code in np.unique(nearest):
            chosen, away = nearest == code, self._centres - self._centres[code]
            with np.errstate(over="ignore", invalid="ignore"):
                linear = (Z[chosen] - self._centres[code]) @ away.T
            if not np.isfinite(linear).all():
                raise ValueError("X has rows so far from the classes that their products leave "
                                 "the range of float64. Scale the rows.")
            found[chosen] += linear - 0.5 * np.einsum("ij,ij->i", away, away)
        return found

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file; `fastdr.load` reads it back."""
        # persistence knows the models, not the reverse
        import_module("fastdr.persistence").save(self, path)
