"""Rows turned to their principal axes and scaled to unit variance, as far as their rank goes."""

from __future__ import annotations

import math
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
    what rounding of the rows themselves leaves in it; UserWarning if others were asked for.
    Raises ValueError if none is left, or if scales leave the float64 range.
    """
    found = (qr_svd if solver == "svd" else lapack)(rows, components)
    deviations = np.sqrt(found.values / rows.weight)
    largest = float(deviations.max(initial=0.0))
    dtype = rows.source.dtype
    eps = np.finfo(dtype if dtype.kind == "f" else np.float64).eps
    rounding = 4 * float(eps) * math.sqrt(rows.mean @ rows.mean + rows.total / rows.weight)
    rank = int(np.count_nonzero(deviations > max(LEAST_DEVIATION * largest, rounding)))
    rank = min(rank, found.rank)
    if rank == 0:
        raise ValueError("all rows are equal to rounding: there is nothing to unmix.")
    if rank < components:
        warnings.warn(
            f"There are some small singular values: the rows have rank {rank} at most, so "
            f"{rank} components are found, not {components}. Duplicated or averaged channels "
            "are the usual reason; n_components sets the number without this warning.",
            UserWarning, stacklevel=6)
    kept = found.first(rank)
    whitening = Whitening(
        mean=times_power(rows.mean, -rows.exponent),
        axes=fix_signs(kept.vectors.copy()),
        deviations=times_power(deviations[:rank], -rows.exponent),
        variance_share=float(kept.values.sum() / found.total),
        method=found.method, passes=1 + found.passes)
    with np.errstate(over="ignore"):
        if not (np.isfinite(whitening.factor).all() and np.isfinite(whitening.inverse).all()):
            raise ValueError("deviations of the rows leave the float64 range; scale them first.")
    return whitening
