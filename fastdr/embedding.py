"""What fitted models share: frozen pickles, and for linear ones their map in other programs."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fastdr._serve import Projector
from fastdr.mapped import read
from fastdr.sources import block_rows
from fastdr.validation import AnyArray, FloatArray, as_matrix

if TYPE_CHECKING:
    from fastdr._jit import LinearArrays


class LinearMap(NamedTuple):
    """Scores z = ((x - mean) / scale) componentsᵀ / divisors, and rows x that scores stand for.

    Attributes
    ----------
    mean : (d,) float64.
    components : (k, d) float64 or float32, C-contiguous.
    back : (k, d) of the same dtype: x = (z divisors) back scale + mean. Orthonormal components
        are their own.
    scale : (d,) float64, positive, or None.
    divisors : (k,) float64, infinite beyond the rank, or None.
    turned : bool, whether scores are turned back to the features.
    """

    mean: FloatArray
    components: AnyArray
    back: AnyArray
    scale: FloatArray | None = None
    divisors: FloatArray | None = None
    turned: bool = False


class Frozen:
    """A model whose pickles and copies are as frozen as it is, and no larger after use.

    It is a dataclass that makes its arrays read-only when it is made.
    """

    def __getstate__(self) -> dict[str, Any]:
        """Return what to pickle: the fields, not what was computed from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; the arrays become read-only again."""
        self.__dict__.update(state)
        self.__post_init__()  # type: ignore[attr-defined]


class LinearlyMapped(Frozen):
    """A model that is one `LinearMap`: what makes it ready for other programs."""

    @property
    def linear_map(self) -> LinearMap:
        """The map that the model is."""
        raise NotImplementedError

    @property
    def n_outputs(self) -> int:
        """Entries of a row of scores."""
        return len(self.linear_map.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the components: that of the fitted rows, float64 or float32."""
        return self.linear_map.components.dtype

    def transform(self, X: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return scores of rows."""
        raise NotImplementedError

    def inverse_transform(self, Z: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return rows of scores."""
        raise NotImplementedError

    def reconstruction_error(self, X: ArrayLike, per_row: bool = False) -> Any:
        """Return the squared distance of rows to ``inverse_transform(transform(X))``.

        Parameters
        ----------
        X : (n, d) rows.
        per_row : bool, default False
            Return one value a row, (n,), instead of the mean.
        """
        rows = as_matrix(X)
        errors, step = np.empty(len(rows)), block_rows(rows.shape[1])
        for start in range(0, len(rows), step):
            part = read(rows[start:start + step])
            gaps = part.astype(np.float64, order="C") - self.inverse_transform(self.transform(part))
            np.einsum("ij,ij->i", gaps, gaps, out=errors[start:start + step])
        return errors if per_row else float(errors.mean())

    def projector(self) -> Projector:
        """Return this model made ready for one row at a time: see `Projector`.

        Examples
        --------
        >>> from fastdr import LinearModel
        >>> p = LinearModel(mean=[1.0, 2.0], components=[[0.0, 1.0]], variances=[4.0]).projector()
        >>> p(np.array([5.0, 5.0]))
        array([3.])
        """
        return Projector(self)

    def jit(self) -> LinearArrays:
        """Return this model as a tuple of arrays for functions compiled by Numba: see `fastdr.jit`.

        Examples
        --------
        >>> from fastdr import LinearModel, jit
        >>> m = LinearModel(mean=[1.0, 2.0], components=[[0.0, 1.0]], variances=[4.0]).jit()
        >>> float(jit.error(m, np.array([5.0, 5.0])))
        16.0
        """
        from fastdr._jit import LinearArrays  # not before it is asked for: importing Numba is slow

        found = self.linear_map
        axes, features = found.components.shape
        return LinearArrays(
            mean=found.mean, axes=np.ascontiguousarray(found.components.T),
            back=np.ascontiguousarray(found.back.T),
            scale=np.ones(features) if found.scale is None else found.scale,
            divisors=np.ones(axes) if found.divisors is None else found.divisors,
            turned=found.turned)
