"""From what was found of rows to the model of PCA: variances, shares and the report."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fastdr.centring import CentredRows
from fastdr.likelihood import Maximum
from fastdr.missing import ObservedRows
from fastdr.models import LinearModel, Whitening, fix_signs, times_power
from fastdr.plan import Plan
from fastdr.scatter import divisor_error
from fastdr.solvers import Spectrum
from fastdr.validation import AnyArray, working_dtype

EPS = float(np.finfo(np.float64).eps)
_spelt = cache(str)  # a dtype, for which NumPy takes as long as for a product of vectors


class Wanted(NamedTuple):
    """What the user asked for: the solver, how scores are scaled; and the names of features."""

    solver: str
    whiten: Whitening
    names: tuple[str, ...] | None


def _taken_over(rows: CentredRows | ObservedRows, count: int, wanted: Wanted) -> dict[str, Any]:
    """Return what a model has from the rows and the wish: scale and units, names, whitening."""
    return {
        "count": count, "whiten": wanted.whiten, "feature_names": wanted.names,
        "scale": None if rows.scale is None else np.ldexp(rows.scale, -rows.exponent),
        "exponent": 0 if rows.scale is not None else rows.exponent,
    }


def axes_model(rows: CentredRows, found: Spectrum, way: Plan, count: int, wanted: Wanted
               ) -> LinearModel:
    """Turn eigenvalues of the scatter of rows that stand for `count` rows into a model."""
    features, axes = rows.mean.size, len(found.values)
    left_out = found.left_out / rows.divisor
    others = min(count, features) - axes
    components = fix_signs(found.vectors).astype(working_dtype(rows.source.dtype))
    return LinearModel(
        mean=np.ldexp(rows.mean, -rows.exponent),
        components=components,
        variances=found.values / rows.divisor,
        total_variance=found.total / rows.divisor,
        noise_variance=left_out / others if others else 0.0,
        rank=found.rank,
        left_out=left_out,
        report=_report(rows, found, components, way, count, wanted.solver),
        **_taken_over(rows, count, wanted))


def _report(rows: CentredRows, found: Spectrum, components: AnyArray, way: Plan, count: int,
            asked: str) -> dict[str, Any]:
    reason, values = way.reason, found.values / rows.divisor
    share = divisor_error(rows.count, rows.weight, rows.divisor)
    error = found.error / rows.divisor + share * float(values.max(initial=0.0))
    if found.reason:
        reason = f"{found.solver} took over from {way.solver}: {found.reason}; {reason}"
    report = {
        "solver": found.solver, "asked_for": asked, "reason": reason,
        "method": found.method, "passes": 1 + found.passes, "rows": count,
        "features": rows.mean.size, "components": len(found.values), "rank": found.rank,
        "weight": rows.weight, "divisor": rows.divisor, "dtype": _spelt(rows.source.dtype),
        "variance_error": float(times_power(error, -2 * rows.unit)),
    }
    if rows.count != count:
        report["rows_read"] = rows.count
    if found.residual is not None:
        report |= {"columns": found.columns, "residual": found.residual,
                   "converged": found.converged}
    if found.certificate is not None:
        told = found.certificate.stored(components).times(1 / rows.divisor)
        report["certificate"] = told.loosened(share, values).as_dict()
    return report


def likely_model(rows: ObservedRows, found: Maximum, count: int, wanted: Wanted) -> LinearModel:
    """Turn parameters of probabilistic PCA into a model; variances as unbiased as `PCA`'s are.

    For complete rows those are the parameters times weight / divisor (Tipping & Bishop 1999).
    """
    latent, features = found.step.latent, len(rows.mean)
    axes, sizes, _ = np.linalg.svd(latent.loadings, full_matrices=False)
    unbiased = rows.weight / rows.divisor
    noise = latent.noise * unbiased
    variances = sizes**2 * unbiased + noise
    left_out = noise * (features - latent.axes)
    scale = 1.0 if rows.scale is None else rows.scale
    return LinearModel(
        mean=np.ldexp(rows.mean + latent.offset * scale, -rows.exponent),
        components=fix_signs(axes.T.copy()).astype(working_dtype(rows.array.dtype)),
        variances=variances,
        total_variance=float(variances.sum()) + left_out,
        noise_variance=noise,
        rank=int(np.count_nonzero(sizes > max(rows.array.shape) * EPS * sizes[0])),
        left_out=left_out,
        report=_told(rows, found, count, wanted.solver),
        **_taken_over(rows, count, wanted))


def _told(rows: ObservedRows, found: Maximum, count: int, asked: str) -> dict[str, Any]:
    step, cells = found.step, rows.cells + rows.missing
    used = len(rows.array) if rows.weights is None else int(np.count_nonzero(rows.weights))
    return {
        "solver": "em", "asked_for": asked,
        "reason": f"{rows.missing} of {cells} cells are missing ({rows.missing / cells:.3g}); "
                  "a stationary point of their likelihood, which may have others",
        "method": "em(probabilistic PCA)", "passes": found.steps, "rows": count,
        "features": len(rows.mean), "components": step.latent.axes, "weight": rows.weight,
        "divisor": rows.divisor, "dtype": str(rows.array.dtype), "missing_cells": rows.missing,
        "iterations": found.steps, "change": found.change, "converged": found.converged,
        "log_likelihood": step.likelihood, "log_likelihood_growth": found.growth,
        "gradient": step.gradient,
    } | ({} if used == count else {"rows_read": used})
