"""Pictures of fitted models; matplotlib is imported when one is drawn, pyplot never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdr.models import LinearModel
from fastdr.operators import project, reconstruct
from fastdr.validation import AnyArray, as_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREY = "#2a6f97", "#c8553d", "#6b7280"


def scree(model: Any, *, chosen: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw the variances in descending order and the share of the total they add up to.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted.
    chosen : int, optional
        A number of components to mark with the share of the variance it keeps.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure, ``scree(model).figure``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the variances; the cumulative share has its own axis on the right.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If `chosen` is not between 1 and the number of components.

    Examples
    --------
    >>> import fastdr
    >>> from fastdr.plots import scree
    >>> X = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    >>> scree(fastdr.PCA().fit(X), chosen=1).figure.savefig("scree.png")  # doctest: +SKIP
    """
    fitted = _as_model(model)
    count = len(fitted.variances)
    if chosen is not None and not 1 <= chosen <= count:
        raise ValueError(f"chosen={chosen} is not between 1 and the {count} components fitted.")
    ax = new_figure().subplots() if ax is None else ax
    share = np.cumsum(fitted.variances) / (fitted.total_variance or 1.0)
    position = np.arange(1, count + 1)
    ax.plot(position, fitted.variances, color=_BLUE, linewidth=1.5, markersize=4,
            marker="o" if count <= 100 else "")
    ax.set(xlabel="component", ylim=(0, None), xlim=(0.5, count + 0.5))
    ax.set_ylabel("variance", color=_BLUE)
    ax.locator_params(axis="x", integer=True)
    right = ax.twinx()
    right.plot(position, 100 * share, color=_ORANGE, linewidth=1.5)
    right.set(ylim=(0, 103))
    right.set_ylabel("cumulative share of the total (%)", color=_ORANGE)
    if chosen is not None:
        _mark(right, chosen, 100 * share[chosen - 1], count)
    for axes in (ax, right):
        axes.spines["top"].set_visible(False)
    return ax


def _mark(right: Axes, chosen: int, percent: float, count: int) -> None:
    """Mark `chosen` components on the cumulative curve and say what they keep."""
    right.axvline(chosen, color=_GREY, linewidth=1, linestyle="--")
    right.plot([chosen], [percent], marker="o", color=_ORANGE)
    left = chosen > 0.7 * count
    right.annotate(f"k = {chosen} keeps {percent:.1f} %", (chosen, percent),
                   (-10 if left else 10, -22), textcoords="offset points",
                   ha="right" if left else "left", color=_GREY)


def reconstructions(model: Any, X: Any, *, shape: tuple[int, int], ks: Sequence[int],
                    labels: Sequence[str] | None = None, figure: Figure | None = None) -> Figure:
    """Draw rows of `X` as images above what is left of them in fewer and fewer components.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted.
    X : array-like, (images, features)
        The rows to draw, one column of pictures each.
    shape : tuple of int
        Height and width of an image; their product is the number of features.
    ks : sequence of int
        Numbers of components, one row of pictures each.
    labels : sequence of str, optional
        Text above each column.
    figure : matplotlib Figure, optional
        Where to draw; by default a new one.

    Returns
    -------
    matplotlib.figure.Figure
        All images share one scale of grey, that of the originals.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If `shape` does not fit the features, or a k is not between 1 and the components fitted.

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> from fastdr.plots import reconstructions
    >>> X = np.arange(24.0).reshape(4, 6) % 7
    >>> figure = reconstructions(fastdr.PCA().fit(X), X, shape=(2, 3), ks=[2, 1])
    >>> len(figure.axes)
    12
    """
    fitted = _as_model(model)
    originals = as_matrix(X)
    count = len(fitted.components)
    if shape[0] * shape[1] != originals.shape[1]:
        raise ValueError(f"shape={tuple(shape)} has {shape[0] * shape[1]} pixels but X has "
                         f"{originals.shape[1]} features.")
    wrong = [k for k in ks if not 1 <= k <= count]
    if wrong:
        raise ValueError(f"ks has {wrong[0]}; allowed are 1 to the {count} components fitted.")
    images = [originals, *(_through(fitted, originals, k) for k in ks)]
    titles = ["original", *(f"k = {k}" for k in ks)]
    height, width = len(images), len(originals)
    if figure is None:
        figure = new_figure(0.9 + 0.85 * width, 0.2 + 0.95 * height * shape[0] / shape[1])
    grid = figure.subplots(height, width, squeeze=False)
    for axes, rows, title in zip(grid, images, titles, strict=True):
        _draw_images(axes, rows, title, shape, (originals.min(), originals.max()))
    for ax, label in zip(grid[0], labels or [], strict=False):
        ax.set_title(label, fontsize=10)
    return figure


def _through(model: LinearModel, X: AnyArray, k: int) -> AnyArray:
    """Return the rows of `X` reconstructed from `k` components."""
    components = model.components[:k]
    scores = project(X, components, model.mean, model.scale)
    return reconstruct(scores, components, model.mean, model.scale)


def _draw_images(axes: Sequence[Axes], rows: AnyArray, title: str, shape: tuple[int, int],
                 limits: tuple[float, float]) -> None:
    for ax, row in zip(axes, rows, strict=True):
        ax.imshow(np.reshape(row, shape), cmap="gray_r", vmin=limits[0], vmax=limits[1])
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set_color("#d1d5db")
    axes[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=10)


def _as_model(model: Any) -> LinearModel:
    fitted = getattr(model, "model_", model)
    if not isinstance(fitted, LinearModel):
        raise TypeError(f"expected a fitted PCA or a LinearModel, got {type(model).__name__}"
                        f"{' that is not fitted' if hasattr(model, 'fit') else ''}.")
    return fitted


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
