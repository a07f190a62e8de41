"""Fitted linear models as frozen values: project, reconstruct, whiten, likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import ArrayLike

from fastdr.certificate import Certificate, told_by
from fastdr.embedding import LinearMap
from fastdr.operators import centred_product, project, reconstruct, reconstruction_error
from fastdr.partial_rows import PartlyObserved
from fastdr.sources import block_rows
from fastdr.sparse import SparseSource, as_rows
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    check_square,
    output,
    raise_not_finite,
    read_only,
    whole,
    working_dtype,
)

Whitening = Literal[False, "pca", "zca"]
EPS = float(np.finfo(np.float64).eps)
KEPT_BYTES = 1 << 22  # of components that are kept in two layouts
MOST_EXPONENT = 4096  # numbers of float64 are from 2**-1074 to 2**1024
TIE = 1e-6  # entries this close to the largest one count as equally large


def fix_signs(components: AnyArray) -> AnyArray:
    """Turn rows so that the entry of largest magnitude is positive, in place; return them.

    Of entries equally large to a relative 1e-6 the first decides, so that rounding, dtype,
    solver and thread count do not.

    Examples
    --------
    >>> fix_signs(np.array([[0.6, -0.8], [0.0, 1.0]]))
    array([[-0.6,  0.8],
           [ 0. ,  1. ]])
    """
    step = max(1, block_rows(components.shape[1]) // 8)
    for start in range(0, len(components), step):
        part = components[start:start + step]
        above, below = part.max(axis=1), -part.min(axis=1)
        signs = np.where(above < below, -1, 1)
        tied = np.minimum(above, below) >= (1 - TIE) * np.maximum(above, below)
        for row in np.flatnonzero(tied):
            size = np.abs(part[row])
            first = np.argmax(size >= (1 - TIE) * size.max())
            signs[row] = -1 if part[row, first] < 0 else 1
        part *= signs[:, None]
    return components


def times_power(values: Any, exponent: int) -> Any:
    """Return `values` times 2**exponent; 0 or infinity where float64 ends."""
    if not exponent:
        return values
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent)


@dataclass(frozen=True, eq=False)
class LinearModel(PartlyObserved):
    """Rows described by a mean and `k` orthonormal axes, and by what varies along them.

    Attributes
    ----------
    mean : (d,) float64, units of the input.
    components : (k, d) orthonormal rows, float64 or float32.
    variances : (k,) float64, variance along each axis in squared units of the scaled input,
        descending.
    total_variance : float, sum of all variances, kept or not.
    noise_variance : float, mean of the variances left out (probabilistic PCA).
    rank : int, axes whose deviation exceeds max(n, d) eps times the largest.
    count : int, rows fitted.
    left_out : float, sum of the variances left out: the mean squared reconstruction loss.
    scale : (d,) float64 or None, what columns are divided by after centring.
    whiten : False, "pca" (unit variance along each axis) or "zca" (the same, turned back).
    exponent : int, 0 unless the data lie near the ends of the float64 range: variances are
        stored times 4**exponent.
    feature_names : tuple of str, or None.
    report : dict of plain values: how the fit went.

    Examples
    --------
    >>> model = LinearModel(mean=[1.0, 2.0], components=[[0.6, 0.8]], variances=[4.0])
    >>> Z = model.transform([[1.6, 2.8]])
    >>> float(Z.round(12)[0, 0])
    1.0
    >>> model.inverse_transform(Z).round(12)
    array([[1.6, 2.8]])
    """

    mean: FloatArray
    components: AnyArray
    variances: FloatArray
    total_variance: float = math.nan
    noise_variance: float = 0.0
    rank: int = -1
    count: int = 0
    left_out: float = 0.0
    scale: FloatArray | None = None
    whiten: Whitening = False
    exponent: int = 0
    feature_names: tuple[str, ...] | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts agree; make them arrays, read-only."""
        components = read_only(as_numbers(self.components, "components"))
        mean = read_only(as_numbers(self.mean, "mean"), np.float64)
        variances = read_only(as_numbers(self.variances, "variances"), np.float64)
        scale = (None if self.scale is None
                 else read_only(as_numbers(self.scale, "scale"), np.float64))
        if components.ndim != 2 or components.dtype not in (np.float64, np.float32):
            raise ValueError(f"components has shape {components.shape} and dtype "
                             f"{components.dtype}; expected (k, d), float64 or float32.")
        axes, features = components.shape
        for name, vector, size in (("mean", mean, features), ("variances", variances, axes),
                                   ("scale", scale, features)):
            if vector is not None and vector.shape != (size,):
                raise ValueError(f"{name} has shape {vector.shape}; expected ({size},) beside "
                                 f"components of shape {components.shape}.")
        for name, values in (("components", components), ("mean", mean), ("scale", scale),
                             ("variances", variances)):
            if values is not None and not np.isfinite(values).all():
                raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
        if (variances < 0).any() or (scale is not None and (scale <= 0).any()):
            raise ValueError("variances must not be negative, scale must be positive.")
        if self.whiten not in (False, "pca", "zca"):
            raise ValueError(f"whiten={self.whiten!r} is not False, 'pca' or 'zca'.")
        parts: dict[str, Any] = {"components": components, "mean": mean,
                                 "variances": variances, "scale": scale}
        if self.rank < 0:
            parts["rank"] = int(np.count_nonzero(variances > 0))
        if math.isnan(self.total_variance):
            parts["total_variance"] = float(variances.sum()) + self.left_out
        for name, value in parts.items():
            object.__setattr__(self, name, value)
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Refuse numbers that no fit gives, and whitening that would divide by 0."""
        axes = len(self.components)
        if self.rank > axes or not whole(self.exponent, -MOST_EXPONENT) or (
                self.exponent > MOST_EXPONENT):
            raise ValueError(f"rank={self.rank} or exponent={self.exponent} is impossible: at most "
                             f"{axes}, and from -{MOST_EXPONENT} to {MOST_EXPONENT} are allowed.")
        if self.whiten:
            spread = self.deviations[:self.rank]
            if not ((spread > 0) & np.isfinite(spread)).all():
                raise ValueError(
                    f"whiten={self.whiten!r} divides by the deviations along the first {self.rank} "
                    "axes, the rank, and one of them is 0 or infinite.")
        numbers = self.total_variance, self.noise_variance, self.left_out
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError(f"total_variance, noise_variance and left_out are {numbers}; expected "
                             "finite numbers that are not negative.")

    @property
    def n_outputs(self) -> int:
        """Columns of `transform`: k, or d after "zca" whitening."""
        return int(self.components.shape[1 if self.whiten == "zca" else 0])

    @property
    def certificate(self) -> Certificate | None:
        """Bounds on `variances`, in their units; None if the fit made none."""
        return told_by(self.report)

    @cached_property
    def deviations(self) -> FloatArray:
        """(k,) standard deviation along each axis, units of the scaled input."""
        return read_only(times_power(np.sqrt(self.variances), -self.exponent))

    @cached_property
    def _axes(self) -> AnyArray:
        """Components laid out as the product takes them, so that small batches do not wait."""
        small = self.components.nbytes <= KEPT_BYTES
        return np.asfortranarray(self.components) if small else self.components

    @cached_property
    def divisors(self) -> FloatArray:
        """(k,) what whitening divides scores by: deviations, infinite beyond the rank."""
        within = np.arange(len(self.variances)) < self.rank
        return read_only(np.where(within, self.deviations, np.inf))

    def transform(self, X: Any, out: AnyArray | None = None) -> AnyArray:
        """Return the scores of rows, (n, k), or (n, d) after "zca" whitening.

        Parameters
        ----------
        X : (n, d) rows of any real dtype, dense or sparse.
        out : array for the result, or None; it shares no memory with `X` or the model.

        Returns
        -------
        ndarray
            In the working dtype of `X`. Whitened scores of axes beyond the rank are 0.

        Raises
        ------
        ValueError, TypeError
            If `X` has the wrong number of columns, NaN or infinity, or no real dtype; if `out`
            is unusable.

        Notes
        -----
        One read of `X`, O(d k) a row.
        """
        X = self._rows(X)
        out = output(out, (len(X), self.n_outputs), working_dtype(X.dtype), X, self)
        zca = self.whiten == "zca"
        Z = np.empty((len(X), len(self.components)), out.dtype) if zca else out
        centred_product(X, self._axes, self.mean, self.scale, Z)
        if self.whiten:
            np.divide(Z, self.divisors, out=Z, casting="same_kind")
        return reconstruct(Z, self.components, out=out) if zca else Z

    def inverse_transform(self, Z: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the rows (n, d) that scores `Z` stand for; the inverse of `transform`.

        Whitened axes beyond the rank return to the mean. ``inverse_transform(transform(X))`` is
        the orthogonal projection of the rows. Raises ValueError if `Z` has the wrong width.
        """
        if self.n_outputs == 0 and np.ndim(Z) == 2 and np.shape(Z)[1] == 0:
            return reconstruct(Z, self.components, self.mean, self.scale, out)
        Z = as_matrix(Z, "Z")
        if Z.shape[1] != self.n_outputs:
            raise ValueError(f"Z has {Z.shape[1]} columns, but this model has {self.n_outputs}; "
                             "pass scores as transform returns them.")
        out = output(out, (len(Z), self.mean.size), working_dtype(Z.dtype), Z, self)
        components = self.components
        if self.whiten == "zca":
            Z = project(Z, components)
        if self.whiten:
            spread = np.where(np.isfinite(self.divisors), self.divisors, 0.0)
            components = (components * spread[:, None]).astype(components.dtype)
        return reconstruct(Z, components, self.mean, self.scale, out)

    def reconstruction_error(self, X: Any, per_row: bool = False) -> Any:
        """Return the squared distance of rows to their reconstruction, mean or `per_row` (n,).

        In squared units of the input; the reconstruction is never built. One read, O(d k) a row.

        Examples
        --------
        >>> model = LinearModel(mean=[1.0, 2.0], components=[[0.6, 0.8]], variances=[4.0])
        >>> model.reconstruction_error([[1.8, 1.4], [1.6, 2.8]], per_row=True).round(12)
        array([1., 0.])
        """
        errors = reconstruction_error(self._rows(X), self.components, self.mean, self.scale)
        return errors if per_row else float(errors.mean())

    def log_likelihood(self, X: Any) -> FloatArray:
        """Return the log density of each row, (n,), under probabilistic PCA.

        The covariance is V diag(variances) V^T plus the noise variance in all other directions
        (Tipping & Bishop 1999); no d x d matrix is made, O(d k) a row. If it is singular every
        density is 0 or infinite: all -inf, with a RuntimeWarning that names the rank.

        Examples
        --------
        >>> model = LinearModel([0.0, 0.0], [[1.0, 0.0]], [1.0], noise_variance=1.0)
        >>> model.log_likelihood([[0.0, 0.0]]).round(6)  # -ln 2 pi
        array([-1.837877])
        """
        X = self._rows(X)
        axes, features = self.components.shape
        if self._singular:
            return self._no_density(len(X))
        kept = np.maximum(self.variances, self.noise_variance)
        log_volume = float(np.log(kept).sum()) - 2 * features * self.exponent * math.log(2)
        if axes < features:
            log_volume += (features - axes) * math.log(self.noise_variance)
        if self.scale is not None:
            log_volume += 2 * float(np.log(self.scale).sum())
        distances = np.empty(len(X))
        step = max(1, block_rows(features) // 4)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(X), step):
                block = (X.dense(start, min(start + step, len(X))) if isinstance(X, SparseSource)
                         else X[start:start + step])
                distances[start:start + step] = self._distances(block, kept)
        if isinstance(X, np.ndarray) and not np.isfinite(distances).all():
            raise_not_finite(X)
        distances[np.isnan(distances)] = np.inf  # of rows so far away that sums overflow
        density: FloatArray = -0.5 * (features * math.log(2 * math.pi) + log_volume + distances)
        return density

    def _no_density(self, rows: int) -> FloatArray:
        features = self.components.shape[1]
        warnings.warn(f"The model is singular: rank {self.rank} of {features} features and no "
                      "noise, so no density exists and -inf is returned. Keep fewer than "
                      f"{max(self.rank, 1)} components.", RuntimeWarning, stacklevel=3)
        return np.full(rows, -math.inf)

    def _distances(self, X: AnyArray, kept: FloatArray) -> FloatArray:
        """Squared Mahalanobis distances of rows to the mean."""
        rows = self.centred(X)
        components = self.components.astype(np.float64, copy=False)
        scores = rows @ components.T
        distances = (scores**2) @ (1 / kept)
        if len(components) < components.shape[1]:
            rows -= scores @ components
            distances += np.einsum("ij,ij->i", rows, rows) / self.noise_variance
        return distances

    def centred(self, X: AnyArray) -> FloatArray:
        """Return a block of rows in the units of `variances`: about the mean, scaled, float64."""
        down = min(self.exponent, 0) if self.scale is None else -1
        rows = X.astype(np.float64, order="C")  # sums of other layouts round otherwise
        rows = times_power(rows, down)  # first, for a difference may overflow
        rows -= times_power(self.mean, down)
        if self.scale is not None:
            rows /= times_power(self.scale, down)
            down = 0
        centred: FloatArray = times_power(rows, self.exponent - down)
        return centred

    def _rows(self, X: Any) -> AnyArray | SparseSource:
        rows = as_rows(X)
        if rows.shape[1] != self.mean.size:
            raise ValueError(f"X has {rows.shape[1]} features, but this model takes rows of "
                             f"{self.mean.size}.")
        return rows

    @property
    def _singular(self) -> bool:
        features = self.components.shape[1]
        rows = self.report.get("rows_read", self.count)  # that round, whatever they stand for
        cut = (max(rows, features) * EPS) ** 2 * float(self.variances.max(initial=0.0))
        return bool(self.rank < features and self.noise_variance <= cut)

    @property
    def linear_map(self) -> LinearMap:
        """The map from rows to scores and back."""
        return LinearMap(self.mean, self.components, self.components, self.scale,
                         self.divisors if self.whiten else None, self.whiten == "zca")

    def covariance(self) -> FloatArray:
        """Return the model's covariance (d, d), units of the input; whitening has no part in it.

        Raises ValueError beyond 32768 features, where it takes more than 8 GB.

        Examples
        --------
        >>> LinearModel([0.0, 0.0], [[0.6, 0.8]], [4.0], noise_variance=1.0).covariance().round(12)
        array([[2.08, 1.44],
               [1.44, 2.92]])
        """
        kept = np.maximum(self.variances - self.noise_variance, 0.0)
        matrix = self._outer(kept, self.noise_variance)
        if self.scale is not None:
            matrix *= self.scale
            matrix *= self.scale[:, None]
        result: FloatArray = times_power(matrix, -2 * self.exponent)
        return result

    def precision(self) -> FloatArray:
        """Return the inverse of `covariance` (d, d), by the inversion lemma.

        Raises ValueError beyond 32768 features and LinAlgError if the model is singular.

        Examples
        --------
        >>> LinearModel([0.0, 0.0], [[0.6, 0.8]], [4.0], noise_variance=1.0).precision().round(12)
        array([[ 0.73, -0.36],
               [-0.36,  0.52]])
        """
        axes, features = self.components.shape
        if self._singular:
            raise LinAlgError(f"The covariance is singular: rank {self.rank} of {features} "
                              f"features; keep fewer than {max(self.rank, 1)} components.")
        noise = 1 / self.noise_variance if axes < features else 0.0
        matrix = self._outer(1 / np.maximum(self.variances, self.noise_variance) - noise, noise)
        if self.scale is not None:
            matrix /= self.scale
            matrix /= self.scale[:, None]
        result: FloatArray = times_power(matrix, 2 * self.exponent)
        return result

    def _outer(self, weights: FloatArray, diagonal: float) -> FloatArray:
        """Return V^T diag(weights) V + diagonal I."""
        features = self.components.shape[1]
        check_square(features, "Use components, variances and noise_variance, which hold the same "
                               "in k x d numbers.")
        components = self.components.astype(np.float64, copy=False)
        matrix = (components.T * weights) @ components
        matrix[np.diag_indices(features)] += diagonal
        return matrix

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file; `fastdr.load` reads it back."""
        # persistence knows the models, not the reverse
        import_module("fastdr.persistence").save(self, path)
