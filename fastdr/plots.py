"""Pictures of fitted models and of rows; matplotlib is imported when one is drawn, pyplot never.

Each function takes an estimator or its model, draws on ``ax`` or a figure of its own, and returns
the Axes (`reconstructions` the Figure): ``scree(pca).figure.savefig("scree.png")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fastdr.canvas import (
    BLUE,
    GREY,
    ORANGE,
    axes_on,
    draw_arrows,
    draw_points,
    feature_names,
    fitted_part,
    new_figure,
    of_rows,
    pair,
    plain,
    score_name,
    shortened,
    with_axes,
)
from fastdr.models import LinearModel, times_power
from fastdr.network_model import NetworkModel
from fastdr.operators import project, reconstruct
from fastdr.row_plots import discriminants, errors, scores, sources
from fastdr.validation import AnyArray, FloatArray, as_matrix, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["biplot", "discriminants", "errors", "loadings", "losses", "new_figure",
           "reconstructions", "scores", "scree", "sources"]


def scree(model: Any, *, chosen: int | float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the variances in descending order and the share of the total they add up to.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted.
    chosen : int, or float between 0 and 1, optional
        A number of components to mark with the share of the variance it keeps; or a share, for
        the fewest components that keep more.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure, ``scree(model).figure``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the variances; the cumulative share has its own axis on the right. Error bars
        are the intervals of ``certificate_``, in which the variances are proved to lie; where it
        proves nothing they are its residuals, and without one what rounding may have done. The
        legend tells which, and how wide they are.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If `chosen` is not between 1 and the number of components, or a share they do not reach; or
        if there are no components.

    Examples
    --------
    >>> import fastdr
    >>> from fastdr.plots import scree
    >>> X = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    >>> scree(fastdr.PCA().fit(X), chosen=1).figure.savefig("scree.png")  # doctest: +SKIP
    """
    fitted = with_axes(model)
    count = len(fitted.variances)
    variances = times_power(fitted.variances, -2 * fitted.exponent)
    if not np.isfinite(variances).all():
        raise ValueError("the variances are beyond the largest float64, 1.8e308; divide the rows "
                         "by a power of ten and fit them again.")
    share = np.cumsum(fitted.variances) / (fitted.total_variance or 1.0)
    marked = None if chosen is None else _chosen(chosen, share)
    ax = axes_on(ax)
    position = np.arange(1, count + 1)
    ax.plot(position, variances, color=BLUE, linewidth=1.5, markersize=4,
            marker="o" if count <= 100 else "")
    _draw_intervals(ax, fitted, variances)
    ax.update_datalim([(1, 0)])  # the margin above is a part of all the height
    ax.set(xlabel="component", ylim=(0, None), xlim=(0.5, count + 0.5))
    ax.set_ylabel("variance", color=BLUE)
    ax.locator_params(axis="x", integer=True)
    right = ax.twinx()
    right.plot(position, 100 * share, color=ORANGE, linewidth=1.5)
    right.set(ylim=(0, 103))
    right.set_ylabel("cumulative share of the total (%)", color=ORANGE)
    if marked is not None:
        _mark(right, marked, 100 * share[marked - 1], count)
    right.spines["top"].set_visible(False)
    return ax


def _draw_intervals(ax: Axes, fitted: LinearModel, variances: FloatArray) -> None:
    """Draw how sure each variance is, and say above the axes what says so."""
    told, error = fitted.certificate, fitted.report.get("variance_error")
    if told is not None:
        told = told.times(1.0, -2 * fitted.exponent)
        lower, upper = told.lower, told.upper
        name = f"certified intervals, at most {float((upper - lower).max(initial=0)):.1e} wide"
        if not told.proved:
            lower, upper = variances - told.residuals, variances + told.residuals
            name = f"residuals, at most {float(told.residuals.max(initial=0)):.1e}; not proved"
    elif error is not None:
        lower, upper = variances - error, variances + error
        name = f"rounding, at most {error:.1e}; not proved"
    else:
        return
    away = np.maximum([np.minimum(variances - lower, variances), upper - variances], 0)
    ax.errorbar(np.arange(1, len(variances) + 1), variances, away, fmt="none", ecolor=BLUE,
                elinewidth=1, capsize=min(4, 120 / len(variances)), label=name)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False, fontsize=8,
              labelcolor=BLUE)


def _chosen(chosen: int | float, share: FloatArray) -> int:
    """Return the number of components that `chosen` means."""
    if isinstance(chosen, float) and 0 < chosen < 1:
        if share[-1] <= chosen:
            raise ValueError(f"chosen={chosen}: the {len(share)} components fitted explain only "
                             f"{share[-1]:.3g} of the variance.")
        return int(np.argmax(share > chosen)) + 1
    if not (whole(chosen, 1) and chosen <= len(share)):
        raise ValueError(f"chosen={chosen} is not between 1 and the {len(share)} components "
                         "fitted, nor a share between 0 and 1.")
    return int(chosen)


def _mark(right: Axes, chosen: int, percent: float, count: int) -> None:
    """Mark `chosen` components on the cumulative curve and say what they keep."""
    right.axvline(chosen, color=GREY, linewidth=1, linestyle="--")
    right.plot([chosen], [percent], marker="o", color=ORANGE)
    left = chosen > 0.7 * count
    right.annotate(f"k = {chosen} keeps {percent:.1f} %", (chosen, percent),
                   (-10 if left else 10, -22), textcoords="offset points",
                   ha="right" if left else "left", color=GREY)


def biplot(model: Any, X: Any, labels: ArrayLike | None = None, *,
           axes: Sequence[int] = (1, 2), features: int = 8,
           names: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Draw rows and features together: scores of unit variance, loadings as arrows.

    A row lies far along an arrow where its value of that feature is far above the mean. Arrows
    share one scale, which has no other meaning; their ratios are those of the loadings.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted; standardized, or features of large scale take all the room.
    X : (n, d) rows or Source
    labels, axes, ax
        As for `scores`.
    features : int, default 8
        How many arrows, longest first.
    names : sequence of str, optional
        Of the features; by default those fitted, or x0, x1, ...

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError, TypeError
        If an argument does not fit the model, or an axis has no variance.

    References
    ----------
    Gabriel, Biometrika 58 (1971).

    Examples
    --------
    >>> import fastdr
    >>> from fastdr.plots import biplot
    >>> X = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    >>> ax = biplot(fastdr.PCA().fit(X), X, names=["width", "height"])
    >>> [text.get_text() for text in ax.texts]
    ['width', 'height']
    """
    fitted = with_axes(model)
    columns = list(pair(axes, len(fitted.components)))
    if not whole(features, 1):
        raise ValueError(f"features={features!r} is not a whole number of at least 1.")
    if max(columns) >= fitted.rank:
        raise ValueError(f"axes={tuple(axes)}: the model has rank {fitted.rank}, so a score of the "
                         "other axes is 0 for every row.")
    named = feature_names(fitted, names, fitted.mean.size)
    directions, deviations = fitted.components[columns], fitted.deviations[columns]
    points = of_rows(fitted, X, lambda block: project(
        block, directions, fitted.mean, fitted.scale) / deviations)
    ax = axes_on(ax, 6.4, 5.2)
    draw_points(ax, points, labels)
    arrows = (directions * deviations[:, None]).T
    length = np.hypot(*arrows.T)
    longest = np.argsort(-length, kind="stable")[:features]
    arrows *= 0.85 * np.abs(points).max() / length[longest[0]]
    draw_arrows(ax, arrows[longest], [named[index] for index in longest])
    ax.set(xlabel=score_name(fitted, columns[0]), ylabel=score_name(fitted, columns[1]))
    return ax


def loadings(model: Any, *, components: int = 10, names: Sequence[str] | None = None,
             ax: Axes | None = None) -> Axes:
    """Draw how features and components go together: a heat map of the loadings.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted. A loading is an entry of a component times the deviation along it; with
        ``standardize=True`` it is the correlation of feature and score.
    components : int, default 10
        How many, from the first; all if there are fewer.
    names : sequence of str, optional
        Of the features; by default those fitted, or x0, x1, ...
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Blue is negative, red positive. Up to 40 features are named, up to 15 of them with figures.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If `components` or the number of `names` is wrong, or the model has no components.

    Examples
    --------
    >>> import fastdr
    >>> from fastdr.plots import loadings
    >>> X = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    >>> ax = loadings(fastdr.PCA(standardize=True).fit(X), names=["width", "height"])
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['width', 'height']
    """
    fitted = with_axes(model)
    if not whole(components, 1):
        raise ValueError(f"components={components!r} is not a whole number of at least 1.")
    shown = (fitted.components[:components] * fitted.deviations[:components, None]).T
    features, axes = shown.shape
    named = feature_names(fitted, names, features)
    ax = axes_on(ax, 2.2 + 0.55 * axes, 1.2 + 0.27 * (features if features <= 40 else 16))
    largest = float(np.abs(shown).max(initial=0)) or 1.0
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto",
                      interpolation="nearest")
    ax.set_xticks(range(axes), [str(index + 1) for index in range(axes)])
    if features <= 40:
        ax.set_yticks(range(features), [plain(shortened(name)) for name in named])
    ax.tick_params(length=0)
    ax.set(xlabel="component", ylabel="" if features <= 40 else "feature")
    quantity, style = ("loading", ".2g") if fitted.scale is None else ("correlation", ".2f")
    if features <= 15:
        for (row, column), value in np.ndenumerate(shown):
            ax.text(column, row, f"{value:{style}}", ha="center", va="center", fontsize=7,
                    color="white" if abs(value) > 0.6 * largest else "black")
    ax.figure.colorbar(image, ax=ax, label=quantity)
    return ax


def losses(model: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the loss of an auto-encoder in each epoch, beside that of as many principal components.

    Parameters
    ----------
    model : AutoEncoder or NetworkModel
        Trained.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Mean squared error of an entry in scaled units, on a logarithmic axis.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If the model has no epochs on record.

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> from fastdr.plots import losses
    >>> X = np.random.default_rng(0).standard_normal((100, 4))
    >>> ae = fastdr.AutoEncoder((8, 2), max_epochs=3, random_state=0).fit(X)
    >>> [line.get_label() for line in losses(ae).lines]
    ['rows in training', 'rows held out', 'PCA of as many scores']
    """
    fitted = fitted_part(model, NetworkModel, "AutoEncoder or a NetworkModel")
    if not fitted.losses.size:
        raise ValueError("this model has no epochs on record; train it, or load one that was.")
    ax = axes_on(ax)
    for curve, colour, name in ((fitted.losses, BLUE, "rows in training"),
                                (fitted.held_out_losses, ORANGE, "rows held out")):
        if curve.size:
            ax.plot(np.arange(1, len(curve) + 1), curve, color=colour, label=name, linewidth=1.5)
    if fitted.pca_loss > 0:  # NaN if it was not computed
        ax.axhline(fitted.pca_loss, color=GREY, linestyle="--", linewidth=1,
                   label="PCA of as many scores")
    lost = max(curve.max(initial=0.0) for curve in (fitted.losses, fitted.held_out_losses)) > 0
    ax.set(xlabel="epoch", ylabel="mean squared error (scaled)", yscale="log" if lost else "linear")
    ax.locator_params(axis="x", integer=True)
    ax.legend(frameon=False, fontsize=9)
    return ax


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
    fitted = with_axes(model)
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
