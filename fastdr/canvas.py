"""What pictures share: figures without pyplot, colours for labels, names for axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fastdr.diagnostics import as_linear
from fastdr.discriminant_model import DiscriminantModel
from fastdr.models import LinearModel
from fastdr.network_model import NetworkModel
from fastdr.sources import ArraySource, Source, as_source
from fastdr.unmixing_model import UnmixingModel
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_labels,
    check_features,
    raise_not_finite,
    whole,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2a6f97", "#c8553d", "#6b7280"
MOST_CLASSES = 20  # that colours tell apart
LETTER = 0.017  # width of a letter of a name, of the axes
FITTED = (LinearModel, DiscriminantModel, UnmixingModel, NetworkModel)
FEW_ROWS, MANY_ROWS = 300, 20_000  # from which on points are drawn small, or not all of them


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """Return a figure, in inches, that pyplot does not know about: nothing has to be closed.

    Raises ModuleNotFoundError if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError('pictures need matplotlib; run: pip install "fastdr[plot]"'
                                  ) from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def axes_on(ax: Axes | None, width: float = 7.0, height: float = 4.2) -> Axes:
    """Return `ax`, or axes on a new figure, without the upper and right border."""
    made: Axes = new_figure(width, height).subplots() if ax is None else ax
    for side in ("top", "right"):
        made.spines[side].set_visible(False)
    return made


def fitted_part(model: Any, kind: type | tuple[type, ...], names: str) -> Any:
    """Return the model of a fitted estimator, or `model` itself, if it is of a `kind`.

    Raises TypeError that says which `names` were expected.
    """
    fitted = getattr(model, "model_", model)
    if not isinstance(fitted, kind):
        unfitted = hasattr(model, "fit") and fitted is model
        raise TypeError(f"expected a fitted {names}, got {type(model).__name__}"
                        f"{' that is not fitted' if unfitted else ''}.")
    return fitted


def with_axes(model: Any) -> LinearModel:
    """Return the LinearModel of a fitted estimator or model; ValueError if it has no components."""
    fitted = as_linear(model)
    if not len(fitted.components):
        raise ValueError("the model has no components to draw; fit it with at least one.")
    return fitted


def feature_names(model: Any, names: Sequence[str] | None, count: int) -> list[str]:
    """Return a name for each of `count` features: those given, fitted or numbered."""
    found = getattr(model, "feature_names", None) if names is None else names
    if found is None:
        return [f"x{index}" for index in range(count)]
    if len(found) != count:
        raise ValueError(f"names has {len(found)} entries for {count} features.")
    return [str(name) for name in found]


def shortened(name: str) -> str:
    """Return a name that leaves room for the picture."""
    return name if len(name) <= 22 else f"{name[:20]}…"


def plain(text: object) -> str:
    """Return text for a picture as it stands: matplotlib takes what is between two $ for TeX."""
    return str(text).replace("$", r"\$")


def class_name(label: object) -> str:
    """Return what a class is called in a legend, which leaves out names that begin with _."""
    name = plain(label)
    return name if name and not name.startswith("_") else f" {name}"


def pair(axes: Sequence[int], count: int) -> tuple[int, int]:
    """Return the two columns that `axes`, counted from 1, stand for."""
    if count < 2:
        raise ValueError(f"this picture needs two scores, but the model has {count}; fit it with "
                         "more.")
    if len(axes) != 2 or not all(whole(axis, 1) and axis <= count for axis in axes):
        raise ValueError(f"axes={tuple(axes)} must be two whole numbers from 1 to the {count} "
                         "scores of this model.")
    return axes[0] - 1, axes[1] - 1


def draw_points(ax: Axes, points: AnyArray, labels: ArrayLike | None, name: str = "labels") -> None:
    """Draw points (n, 2) coloured by class, with a legend, or by number, with a colour bar.

    Numbers that are not whole, or of more than 20 values, are no classes; NaN is grey. A `name` of
    the labels themselves, as pandas gives it, is preferred. Of more than 20 000 points evenly
    spaced ones are drawn, and the title says so.
    """
    if labels is None:
        values = None
    else:
        values, name = np.asarray(labels), str(getattr(labels, "name", None) or name)
        if values.shape != (len(points),):
            raise ValueError(f"{name} has shape {values.shape}; expected ({len(points)},), one "
                             "for each row.")
        if values.dtype == object:
            as_labels(values, len(points))  # refuses what cannot be put in order
    step = -(-len(points) // MANY_ROWS)
    shown, values = points[::step], None if values is None else values[::step]
    if step > 1:
        ax.set_title(f"{len(shown):,} of {len(points):,} rows".replace(",", " "), fontsize=9)
    size = max(3.0, 16 * min(1.0, math.sqrt(FEW_ROWS / len(shown))))
    style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.8}
    if values is None:
        ax.scatter(shown[:, 0], shown[:, 1], color=BLUE, **style)
        return
    classes = np.unique(values)
    many = len(classes) > MOST_CLASSES
    if many and values.dtype.kind not in "iuf":
        raise ValueError(f"{name} has {len(classes)} different values; colours tell at most "
                         f"{MOST_CLASSES} classes apart.")
    if many or (values.dtype.kind == "f" and (classes % 1).any()):
        import matplotlib

        colours = matplotlib.colormaps["viridis"].with_extremes(bad=GREY)
        drawn = ax.scatter(shown[:, 0], shown[:, 1], c=values.astype(np.float64), cmap=colours,
                           plotnonfinite=True, **style)
        ax.figure.colorbar(drawn, ax=ax, label=plain(name))
        return
    for label, colour in zip(classes, class_colours(len(classes)), strict=True):
        ax.scatter(*shown[values == label].T, color=colour, label=class_name(label), **style)
    legend(ax)


def draw_arrows(ax: Axes, arrows: AnyArray, names: Sequence[str]) -> None:
    """Draw arrows from the origin, each with its name beyond the tip, inside the picture."""
    ax.axhline(0, color=GREY, linewidth=0.5, zorder=0)
    ax.axvline(0, color=GREY, linewidth=0.5, zorder=0)
    start = np.zeros(len(arrows))
    ax.quiver(start, start, arrows[:, 0], arrows[:, 1], angles="xy", scale_units="xy", scale=1,
              width=0.004, zorder=3)
    names = [shortened(name) for name in names]
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    low, high = min(low, 1.1 * arrows[:, 1].min()), max(high, 1.1 * arrows[:, 1].max())
    for (x, _), name in zip(arrows, names, strict=True):
        part = 0.02 + len(name) * LETTER  # of the width, for the name
        if x >= 0:
            right = max(right, (x - part * left) / (1 - part))
        else:
            left = min(left, (x - part * right) / (1 - part))
    ax.set(xlim=(left, right), ylim=(low, high))
    for side in (arrows[:, 0] >= 0, arrows[:, 0] < 0):
        places = spread_out(arrows[side, 1], 0.045 * (high - low))
        for index, place in zip(np.flatnonzero(side), places, strict=True):
            x = arrows[index, 0]
            ax.annotate(plain(names[index]), (x, place), (4 if x >= 0 else -4, 0), va="center",
                        textcoords="offset points", ha="left" if x >= 0 else "right", fontsize=9,
                        bbox={"boxstyle": "round,pad=0.1", "color": "white", "alpha": 0.6})


def class_colours(count: int) -> list[Any]:
    """Return a colour for each class."""
    import matplotlib

    colours = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return [colours(index) for index in range(count)]


def legend(ax: Axes) -> None:
    """Name the classes beside the picture, where they hide nothing."""
    made = ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9,
                     handletextpad=0.3)
    for handle in made.legend_handles:
        if handle is not None and hasattr(handle, "set_sizes"):
            handle.set_sizes([24.0])


def spread_out(places: ArrayLike, gap: float) -> FloatArray:
    """Return the places moved apart until neighbours differ by at least `gap`, in their order."""
    given = np.asarray(places, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    steps = gap * np.arange(len(given))
    moved = np.empty_like(given)  # two passes: as far up as needed, as far down, their middle
    up = np.maximum.accumulate(given[order] - steps) + steps
    down = np.minimum.accumulate((given[order] - steps)[::-1])[::-1] + steps
    moved[order] = (up + down) / 2
    return moved


def rows_for(model: Any, X: Any) -> Source:
    """Return rows as a source; raise ValueError unless they have the features of the model."""
    source = as_source(X)
    check_features(X, source.shape[1], model.mean.size, model.feature_names)
    return source


def of_rows(model: Any, X: Any, compute: Callable[[AnyArray], AnyArray]) -> AnyArray:
    """Return what `compute` makes of the rows, a block at a time: few numbers of each row."""
    source = rows_for(model, X)
    try:
        return np.concatenate([compute(block) for block in source.blocks()])
    except ValueError:
        if isinstance(source, ArraySource):
            raise_not_finite(source.array)  # with its row in X, not in the block
        raise


def score_name(model: Any, index: int) -> str:
    """Return what a score is, and its share of the whole if it has one."""
    number = index + 1
    if isinstance(model, LinearModel):
        share = model.variances[index] / (model.total_variance or 1.0)
        return f"component {number} ({100 * share:.3g} % of the variance)"
    if isinstance(model, DiscriminantModel):
        return f"discriminant {number} ({100 * model.ratios[index]:.3g} % of the separation)"
    return f"{'source' if isinstance(model, UnmixingModel) else 'score'} {number}"
