"""Fitted truncated singular value decompositions as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np

from fastdr.certificate import Certificate, told_by
from fastdr.embedding import LinearlyMapped, LinearMap
from fastdr.operators import centred_product, reconstruct, reconstruction_error
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
class SingularModel(LinearlyMapped):
    """Rows X = U diag(singular_values) components, to `k` terms; nothing is centred.

    Attributes
    ----------
    components : (k, d) orthonormal rows, float64 or float32: the right singular vectors.
    singular_values : (k,) float64, descending, units of the input.
    deviations : (k,) float64, standard deviation of the scores along each axis (divisor n). They
        need not descend: the first axis is near the mean of the rows, along which they vary little.
    total_deviation : float, root of the sum of the variances of all columns.
    count : int, rows fitted.
    feature_names : tuple of str, or None.
    report : dict of plain values: how the fit went.

    Examples
    --------
    >>> model = SingularModel([[0.6, 0.8]], [5.0], [1.0])
    >>> model.transform([[3.0, 4.0]])
    array([[5.]])
    >>> model.inverse_transform([[5.0]])
    array([[3., 4.]])
    """

    components: AnyArray
    singular_values: FloatArray
    deviations: FloatArray
    total_deviation: float = 0.0
    count: int = 0
    feature_names: tuple[str, ...] | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts agree; make them arrays, read-only."""
        components = read_only(as_numbers(self.components, "components"))
        if components.ndim != 2 or components.dtype not in (np.float64, np.float32):
            raise ValueError(f"components has shape {components.shape} and dtype "
                             f"{components.dtype}; expected (k, d), float64 or float32.")
        parts = {"components": components}
        for name in ("singular_values", "deviations"):
            given = as_numbers(getattr(self, name), name)
            vector = parts[name] = read_only(given, np.float64)
            if vector.shape != (len(components),) or not (vector >= 0).all():
                raise ValueError(f"{name} has shape {vector.shape}; expected "
                                 f"({len(components)},), none of them negative.")
        if not all(np.isfinite(part).all() for part in parts.values()):
            raise ValueError("a part contains NaN or infinity; all entries must be finite.")
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @property
    def certificate(self) -> Certificate | None:
        """Bounds on `singular_values`; None if the fit made none."""
        return told_by(self.report)

    @property
    def linear_map(self) -> LinearMap:
        """The map from rows to scores and back."""
        return LinearMap(np.zeros(self.components.shape[1]), self.components, self.components)

    @property
    def explained_variance(self) -> FloatArray:
        """(k,) variance of the scores along each axis (divisor n), squared input units.

        0 or infinity where float64 ends.
        """
        with np.errstate(over="ignore", under="ignore"):
            return self.deviations**2

    @property
    def explained_variance_ratio(self) -> FloatArray:
        """(k,) shares of the variance of all columns; 0 if they do not vary."""
        return (self.deviations / (self.total_deviation or 1.0))**2

    def transform(self, X: Any, out: AnyArray | None = None) -> AnyArray:
        """Return scores X componentsᵀ, (n, k), of dense or sparse rows (n, d).

        Raises ValueError or TypeError if `X` has the wrong number of columns, NaN or infinity.
        """
        X = self._rows(X)
        out = output(out, (len(X), len(self.components)), working_dtype(X.dtype), X, self)
        return centred_product(X, self.components, None, None, out)

    def inverse_transform(self, Z: Any, out: AnyArray | None = None) -> AnyArray:
        """Return the rows (n, d) that scores `Z` (n, k) stand for."""
        Z = as_matrix(Z, "Z")
        if Z.shape[1] != len(self.components):
            raise ValueError(f"Z has {Z.shape[1]} columns, but this model has "
                             f"{len(self.components)}; pass scores as transform returns them.")
        return reconstruct(Z, self.components, out=out)

    def reconstruction_error(self, X: Any, per_row: bool = False) -> Any:
        """Return the squared distance of rows to their reconstruction, mean or `per_row` (n,)."""
        errors = reconstruction_error(self._rows(X), self.components)
        return errors if per_row else float(errors.mean())

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file; `fastdr.load` reads it back."""
        import_module("fastdr.persistence").save(self, path)  # it knows the models

    def _rows(self, X: Any) -> AnyArray | SparseSource:
        rows = as_rows(X)
        if rows.shape[1] != self.components.shape[1]:
            raise ValueError(f"X has {rows.shape[1]} features, but this model takes rows of "
                             f"{self.components.shape[1]}.")
        return rows
