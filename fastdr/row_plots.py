"""Pictures of rows as a model sees them; their names are also in `fastdr.plots`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fastdr.canvas import (
    BLUE,
    FITTED,
    GREY,
    ORANGE,
    axes_on,
    class_colours,
    class_name,
    draw_points,
    fitted_part,
    legend,
    of_rows,
    pair,
    rows_for,
    score_name,
    spread_out,
    with_axes,
)
from fastdr.diagnostics import is_complete, spe
from fastdr.discriminant_model import DiscriminantModel
from fastdr.limits import spe_limit, spe_limit_of
from fastdr.models import LinearModel
from fastdr.unmixing_model import UnmixingModel
from fastdr.validation import AnyArray, FloatArray, as_labels, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 5  # outliers whose row numbers are shown


def scores(model: Any, X: Any, labels: ArrayLike | None = None, *,
           axes: Sequence[int] = (1, 2), ax: Axes | None = None) -> Axes:
    """Draw two scores of each row, coloured by labels.

    Parameters
    ----------
    model : fitted estimator or model of any kind
    X : (n, d) rows or Source
        Read in blocks. Of more than 20 000 rows evenly spaced ones are drawn.
    labels : (n,) optional
        Up to 20 classes get a colour each and a legend; other numbers a colour bar.
    axes : pair of int, default (1, 2)
        Which scores, counted from 1.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError, TypeError
        If rows, labels or axes do not fit the model.

    Examples
    --------
    >>> import fastdr
    >>> from fastdr.plots import scores
    >>> X = [[0.0, 1.0], [1.0, 3.0], [2.0, 2.0]]
    >>> scores(fastdr.PCA().fit(X), X, ["a", "b", "a"]).get_xlabel()
    'component 1 (75 % of the variance)'
    """
    fitted = fitted_part(model, FITTED, "estimator or model of fastdr")
    columns = pair(axes, fitted.n_outputs)
    points = of_rows(fitted, X, lambda block: fitted.transform(block)[:, columns])
    ax = axes_on(ax, 6.4, 4.8)
    draw_points(ax, points, labels)
    ax.set(xlabel=score_name(fitted, columns[0]), ylabel=score_name(fitted, columns[1]))
    return ax


def errors(model: Any, X: Any, *, k: int | None = None, limit: float | None = None,
           confidence: float = 0.99, ax: Axes | None = None) -> Axes:
    """Draw how the reconstruction errors of rows are spread, with outliers marked.

    Parameters
    ----------
    model : PCA, AutoEncoder, another fitted estimator with an inverse, or its model
    X : (n, d) rows or Source
        Read in blocks.
    k : int, optional
        Of a PCA: reconstruct from the first `k` components.
    limit : float, optional
        Errors beyond are outliers. By default that of ``limits.spe_limit`` if the model has every
        variance left out, else that of ``limits.spe_limit_of`` the errors drawn.
    confidence : float from 0.5, below 1
        Of the default limit.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        The largest outliers bear the numbers of their rows.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError, TypeError
        If an argument does not fit the model, or nothing is left out of the reconstruction.

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> from fastdr.plots import errors
    >>> X = np.random.default_rng(0).standard_normal((500, 6))
    >>> X[123] += 4
    >>> [text.get_text() for text in errors(fastdr.PCA().fit(X), X, k=2).texts][:1]
    ['123']
    """
    fitted = fitted_part(model, FITTED, "estimator or model of fastdr")
    if isinstance(fitted, LinearModel):
        with_axes(fitted)
        values = of_rows(fitted, X, lambda block: spe(fitted, block, k))
        if is_complete(fitted):
            implied = spe_limit(fitted, k, confidence)
            if implied == 0:
                raise ValueError("the model has every component, so nothing is left out of the "
                                 "reconstruction; pass k.")
            limit = implied if limit is None else limit
    else:
        values = of_rows(fitted, X, lambda block: fitted.reconstruction_error(block, True))
    limit = spe_limit_of(values, confidence) if limit is None else float(limit)
    ax = axes_on(ax)
    _draw_histogram(ax, values, limit)
    return ax


def _draw_histogram(ax: Axes, values: FloatArray, limit: float) -> None:
    """Draw a histogram in two colours, a line at the limit, a tick for each value beyond it."""
    beyond = np.flatnonzero(values > limit)
    top = max(float(values.max()), limit)
    low, high = np.percentile(values, [25, 75])
    width = 2 * (high - low) / np.cbrt(len(values))  # of Freedman and Diaconis
    bins = math.ceil(min(100, max(20, float(np.ptp(values)) / width))) if width else 20
    edges = np.linspace(0, top or 1.0, bins + 1)
    for part, colour in ((values[values <= limit], BLUE), (values[beyond], ORANGE)):
        ax.hist(part, edges.tolist(), color=colour)
    ax.axvline(limit, color=GREY, linewidth=1, linestyle="--")
    height = ax.get_ylim()[1]
    ax.plot(values[beyond], np.full(len(beyond), -0.02 * height), "|", color=ORANGE, clip_on=False)
    largest = beyond[np.argsort(-values[beyond], kind="stable")[:NAMED]]
    for row, place in zip(largest, spread_out(values[largest], 0.025 * edges[-1]), strict=True):
        ax.annotate(str(row), (values[row], 0), (place, 0.14), textcoords=ax.get_xaxis_transform(),
                    rotation=90, ha="center", va="bottom", fontsize=8, color=ORANGE,
                    arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": ORANGE})
    ax.text(limit, 0.98, f" limit {limit:.3g}\n {len(beyond)} of {len(values)} rows beyond",
            transform=ax.get_xaxis_transform(), va="top", color=GREY, fontsize=9)
    ax.set(xlabel="squared error of the reconstruction", ylabel="rows", ylim=(-0.04 * height, None),
           xlim=(0, None))


def discriminants(model: Any, X: Any, y: ArrayLike, *, axes: Sequence[int] = (1, 2),
                  ax: Axes | None = None) -> Axes:
    """Draw rows where a linear discriminant analysis sees them: classes apart, means marked.

    Two scores as points; the only score of two classes as a histogram of each.

    Parameters
    ----------
    model : LinearDiscriminantAnalysis or DiscriminantModel
        Fitted.
    X : (n, d) rows or Source
        Read in blocks.
    y : (n,) class labels
    axes, ax
        As for `scores`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError, TypeError
        If an argument does not fit the model.

    Examples
    --------
    >>> import fastdr
    >>> from fastdr.plots import discriminants
    >>> X, y = [[0.0, 1.0], [1.0, 3.0], [5.0, 2.0], [6.0, 2.5]], ["a", "a", "b", "b"]
    >>> discriminants(fastdr.LinearDiscriminantAnalysis().fit(X, y), X, y).get_ylabel()
    'rows'
    """
    fitted = fitted_part(model, DiscriminantModel, "LinearDiscriminantAnalysis or a "
                         "DiscriminantModel")
    if fitted.n_outputs == 0:
        raise ValueError("the model has no direction that tells classes apart.")
    single = fitted.n_outputs == 1
    columns = [0] if single else list(pair(axes, fitted.n_outputs))
    points = of_rows(fitted, X, lambda block: fitted.transform(block)[:, columns])
    labels, means = as_labels(y, len(points)), fitted.centres[:, columns]
    ax = axes_on(ax, 6.4, 4.8)
    if single:
        _draw_classes(ax, points[:, 0], labels, means[:, 0], fitted.classes)
        ax.set(xlabel=score_name(fitted, 0), ylabel="rows")
        return ax
    draw_points(ax, points, labels, "y")
    ax.scatter(means[:, 0], means[:, 1], marker="X", s=60, color="black", edgecolors="white",
               linewidths=0.8, zorder=3)
    ax.set(xlabel=score_name(fitted, columns[0]), ylabel=score_name(fitted, columns[1]))
    return ax


def _draw_classes(ax: Axes, values: AnyArray, labels: AnyArray, means: FloatArray,
                  classes: AnyArray) -> None:
    """Draw a histogram of each class over one score, and a line at its mean."""
    edges = np.linspace(values.min(), values.max(), 41)
    for label, mean, colour in zip(classes, means, class_colours(len(classes)), strict=True):
        ax.hist(values[labels == label], edges.tolist(), alpha=0.6, color=colour,
                label=class_name(label))
        ax.axvline(mean, color=colour, linewidth=1.5)
    legend(ax)


def sources(model: Any, X: Any, *, rows: int = 1000, ax: Axes | None = None) -> Axes:
    """Draw the sources of the first rows, one above the other, each in its own deviations.

    Parameters
    ----------
    model : FastICA or UnmixingModel
        Fitted.
    X : (n, d) rows or Source
        In order, as of time.
    rows : int, default 1000
        How many, from the first.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError, TypeError
        If an argument does not fit the model.

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> from fastdr.plots import sources
    >>> X = np.random.default_rng(0).uniform(size=(2000, 2)) @ [[1.0, 2.0], [2.0, 1.0]]
    >>> [text.get_text() for text in sources(fastdr.FastICA().fit(X), X).get_yticklabels()]
    ['source 1', 'source 2']
    """
    fitted = fitted_part(model, UnmixingModel, "FastICA or an UnmixingModel")
    if not whole(rows, 2):
        raise ValueError(f"rows={rows!r} is not a whole number of at least 2.")
    signals: AnyArray = np.empty((0, fitted.n_outputs))
    for block in rows_for(fitted, X).blocks():
        signals = np.concatenate([signals, fitted.transform(block[:rows - len(signals)])])
        if len(signals) >= rows:
            break
    count = signals.shape[1]
    spread = signals.std(axis=0)
    shown = (signals - signals.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    step = float(np.ptp(shown, axis=0).max()) * 1.05 or 1.0
    ax = axes_on(ax, 7.0, 0.8 + 0.9 * count)
    places = -step * np.arange(count)
    ax.plot(shown + places, color=BLUE, linewidth=0.7)
    ax.set_yticks(places, [score_name(fitted, index) for index in range(count)])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set(xlabel="row", xlim=(0, len(shown) - 1))
    return ax
