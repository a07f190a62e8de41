"""Models as text: tables at most 80 columns wide, and plain facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdr.certificate import Certificate, power_text
from fastdr.lsi_model import LSIModel
from fastdr.models import LinearModel, times_power
from fastdr.operators import reconstruction_error
from fastdr.singular_model import SingularModel
from fastdr.validation import AnyArray

TABLE_ROWS = 10  # of a table that is not asked for whole


def loss_table(model: LinearModel, X: AnyArray, ks: Sequence[int]) -> str:
    """Return the loss measured on rows beside the variance left out, for numbers of axes."""
    rows = []
    for k in ks:
        measured = reconstruction_error(X, model.components[:k], model.mean, model.scale)
        loss = float(measured.sum()) / (len(X) - 1)
        left_out = float(model.variances[k:].sum())
        rows.append([str(k), f"{loss:.10f}", f"{left_out:.10f}",
                     f"{abs(loss - left_out) / model.total_variance:.1e}"])
    return text_table(["k", "measured loss", "variance left out", "difference / total"], rows)


def variance_table(model: LinearModel, limit: int) -> str:
    """Return the first variances, how far each may be off, and their shares; what is proved."""
    told, error = model.certificate, model.report.get("variance_error")
    shares = ratios(model)
    kept = np.cumsum(shares)
    certain = told is not None and told.proved
    rows = [[str(index + 1), power_text(variance, -2 * model.exponent, ".8g"),
             _half_width(told, model, index) if told is not None and certain
             else "" if error is None else f"{error:.1e}",
             f"{100 * shares[index]:.2f} %", f"{100 * kept[index]:.2f} %"]
            for index, variance in enumerate(model.variances[:limit])]
    head = "certified +/-" if certain else "+/- at most"
    text = text_table(["component", "variance", head, "ratio", "cumulative"], rows)
    more = len(model.variances) - limit
    return text if more <= 0 else f"{text}\n{'...':>9}  ({more} more)"


def _half_width(told: Certificate, model: LinearModel, index: int) -> str:
    """Return the distance of the farther bound from a variance, rounded up."""
    value = model.variances[index]
    away = max(told.upper[index] - value, value - told.lower[index])
    return power_text(1.05 * away, -2 * model.exponent, ".1e")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns two spaces apart, a rule below the head."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
                     for line in lines)


def ratios(model: LinearModel) -> AnyArray:
    """Return the shares of the total variance, (k,)."""
    return model.variances / (model.total_variance or 1.0)


def facts_of(model: LinearModel) -> dict[str, Any]:
    """Return what is known of a model as plain values."""
    total, left_out, noise, *variances = times_power(np.array(
        [model.total_variance, model.left_out, model.noise_variance, *model.variances]),
        -2 * model.exponent).tolist()
    known = {name: model.report.get(name) for name in ("solver", "method", "reason",
                                                       "variance_error")}
    if model.certificate is not None:
        known["certificate"] = model.certificate.times(1.0, -2 * model.exponent).as_dict()
    return {
        "rows": model.count, "features": len(model.mean), "components": len(model.components),
        "rank": model.rank, "whiten": model.whiten, "standardized": model.scale is not None,
        "dtype": str(model.dtype), "total_variance": total,
        "left_out": left_out, "noise_variance": noise,
        "variances": variances, "ratios": ratios(model).tolist(),
    } | {name: value for name, value in known.items() if value is not None}


def singular_table(model: SingularModel | LSIModel, limit: int) -> str:
    """Return the first singular values, how far each may be off, their shares of the squares."""
    told, values = model.certificate, model.singular_values
    shares = (values / (model.report.get("frobenius_norm") or 1.0))**2
    kept = np.cumsum(shares)
    known = told is not None
    bounds = [""] * len(values)
    if told is not None and told.proved:
        away = np.maximum(told.upper - values, values - told.lower)
        bounds = [f"{1.05 * bound:.1e}" for bound in away]
    elif told is not None:
        bounds = [f"{bound:.1e}" for bound in told.residuals]
    rows = [[str(index + 1), f"{values[index]:.8g}", bounds[index],
             f"{100 * shares[index]:.2f} %", f"{100 * kept[index]:.2f} %"]
            for index in range(min(limit, len(values)))]
    head = "certified +/-" if told is not None and told.proved else "residual" if known else ""
    text = text_table(["component", "singular value", head, "of squares", "cumulative"], rows)
    more = len(values) - limit
    return text if more <= 0 else f"{text}\n{'...':>9}  ({more} more)"


def singular_facts(model: SingularModel | LSIModel) -> dict[str, Any]:
    """Return what is known of a decomposition that is not centred as plain values."""
    told, report = model.certificate, model.report
    rows = len(model.documents) if isinstance(model, LSIModel) else model.count
    known: dict[str, Any] = {
        "kind": type(model).__name__, "rows": rows, "features": model.components.shape[1],
        "components": len(model.components), "dtype": str(model.components.dtype),
        "singular_values": model.singular_values.tolist()}
    if isinstance(model, LSIModel):
        known |= {"weighting": str(model.weighting), "bound": model.bound}
    known |= {name: report[name] for name in ("frobenius_norm", "solver", "method", "reason")
              if name in report}
    return known if told is None else known | {"certificate": told.as_dict()}
