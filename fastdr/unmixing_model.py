"""Fitted unmixing models as frozen values: rows to independent sources and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastdr.embedding import LinearlyMapped, LinearMap
from fastdr.operators import project, reconstruct
from fastdr.validation import AnyArray, FloatArray, as_matrix, as_numbers, read_only


@dataclass(frozen=True, eq=False)
class UnmixingModel(LinearlyMapped):
    """Rows x = mean + mixing s of independent sources s = components (x - mean).

    Attributes
    ----------
    mean : (d,) float64, units of the input.
    components : (k, d) the unmixing matrix, float64 or float32.
    mixing : (d, k) its pseudo-inverse, in the same dtype: a column is how one source reaches the
        features.
    whitening : (k, d) from centred rows to uncorrelated ones, or None if the rows were white.
    count : int, rows fitted.
    steps : int, steps of the iteration.
    feature_names : tuple of str, or None.
    certificate : dict of plain values: what was reached at the answer.
    report : dict of plain values: how the fit went.

    Examples
    --------
    >>> model = UnmixingModel([1.0, 2.0], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]])
    >>> S = model.transform([[3.0, 3.0]])
    >>> S
    array([[1., 2.]])
    >>> model.inverse_transform(S)
    array([[3., 3.]])
    """

    mean: FloatArray
    components: AnyArray
    mixing: AnyArray
    whitening: AnyArray | None = None
    count: int = 0
    steps: int = 0
    feature_names: tuple[str, ...] | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts agree; make them arrays, read-only."""
        components = as_numbers(self.components, "components")
        if components.ndim != 2 or components.dtype not in (np.float64, np.float32):
            raise ValueError(f"components has shape {components.shape} and dtype "
                             f"{components.dtype}; expected (k, d), float64 or float32.")
        sources, features = components.shape
        shapes = {"mean": (features,), "components": components.shape,
                  "mixing": (features, sources), "whitening": components.shape}
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is None and name == "whitening":
                continue
            dtype = np.float64 if name == "mean" else components.dtype
            array = read_only(as_numbers(value, name), dtype)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}; expected {shape} beside "
                                 f"components of shape {components.shape}.")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
            object.__setattr__(self, name, array)

    @property
    def linear_map(self) -> LinearMap:
        """The map from rows to sources and back."""
        return LinearMap(self.mean, self.components, np.ascontiguousarray(self.mixing.T))

    def transform(self, X: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the sources of rows (n, d) as (n, k), in the working dtype of `X`.

        Raises ValueError or TypeError if `X` has the wrong width, NaN, infinity or no real
        dtype. One read of `X`, O(d k) a row.
        """
        return project(X, self.components, self.mean, out=out)

    def inverse_transform(self, Z: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the rows (n, d) that sources `Z` (n, k) mix to; the inverse of `transform`.

        Raises ValueError if `Z` has the wrong width.
        """
        Z = as_matrix(Z, "Z")
        if Z.shape[1] != self.n_outputs:
            raise ValueError(f"Z has {Z.shape[1]} columns, but this model has {self.n_outputs} "
                             "sources; pass sources as transform returns them.")
        return reconstruct(Z, self.mixing.T, self.mean, out=out)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file; `fastdr.load` reads it back."""
        # persistence knows the models, not the reverse
        import_module("fastdr.persistence").save(self, path)
