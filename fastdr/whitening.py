"""Rows turned to their principal axes and scaled to unit variance, as far as their rank goes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from fastdr.centring import CentredRows
from fastdr.models import fix_signs, times_power
from fastdr.solvers import lapack, qr_svd
from fastdr.validation import FloatArray

LEAST_DEVIATION = 1e-10  # of an axis, relative to the largest: below, it is taken for rounding


@dataclass(frozen=True)
class Whitening:
    """White rows are ``axes @ (x - mean) / deviations[:, None]``, of variance one (divisor n).

    ``axes`` (k, d) orthonormal rows, ``deviations`` (k,), ``mean`` (d,); ``variance_share`` of
    these axes in the total; ``method`` of the decomposition and ``passes`` it took.
    """

    mean: FloatArray
    axes: FloatArray
    deviations: FloatArray
    variance_share: float
    method: str
    passes: int

    @property
    def factor(self) -> FloatArray:
        """(k, d), from centred rows to white ones."""
        return self.axes / self.deviations[:, None]

    @property
    def inverse(self) -> FloatArray:
        """(d, k), from white rows to centred ones."""
        return self.axes.T * self.deviations


def whiten(rows: CentredRows, components: int, solver: str) -> Whitening:
    """Whiten along the first `components` principal axes, or fewer if the rank is less.

    `solver` "svd" factors the rows, any other name takes the eigen-decomposition of the scatter
    with its test of accuracy. An axis counts if its deviation exceeds 1e-10 of the largest and
    what rounding of the rows themselves leaves in it, which is that of the columns it is made
    of; UserWarning if others were asked for. Raises ValueError if none is left, or if scales
    leave the float64 range.
    """
    found = (qr_svd if solver == "svd" else lapack)(rows, components)
    found = found.first(min(components, found.rank))
    deviations = np.sqrt(found.values / rows.weight)
    dtype = rows.source.dtype
    eps = float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)
    sizes = np.hypot(rows.mean, np.sqrt(rows.squares / rows.weight))
    noise = 4 * eps * np.sqrt(found.vectors**2 @ sizes**2)
    kept = deviations > np.maximum(LEAST_DEVIATION * deviations.max(initial=0.0), noise)
    rank = int(np.count_nonzero(kept))
    if rank == 0:
        raise ValueError("all rows are equal to rounding: there is nothing to unmix.")
    if rank < components:
        warnings.warn(
            f"There are some small singular values: the rows have rank {rank} in their first "
            f"{components} axes, so {rank} components are found. Duplicated or averaged channels "
            "are the usual reason; n_components sets the number without this warning.",
            UserWarning, stacklevel=6)
    whitening = Whitening(
        mean=times_power(rows.mean, -rows.exponent),
        axes=fix_signs(found.vectors[kept]),
        deviations=times_power(deviations[kept], -rows.exponent),
        variance_share=float(found.values[kept].sum() / found.total),
        method=found.method, passes=1 + found.passes)
    with np.errstate(over="ignore"):
        if not (np.isfinite(whitening.factor).all() and np.isfinite(whitening.inverse).all()):
            raise ValueError("deviations of the rows leave the float64 range; scale them first.")
    return whitening
