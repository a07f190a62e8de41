"""Pictures of the results of `bench.claims`: points, fitted lines, crossings; pyplot never."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import fits, verdicts
from bench.laws import Law
from bench.verdicts import Document, Exponent

BLUE, ORANGE, GREY, GREEN, PURPLE = "#2a6f97", "#c8553d", "#6b7280", "#588157", "#7b5ea7"
STYLES = {("form", "LAPACK"): (BLUE, "s", "XᵀX, BLAS"),
          ("form", "fastdr"): (BLUE, "o", "covariance, fastdr"),
          ("eig", "LAPACK"): (GREEN, "s", "eig, LAPACK"),
          ("svd", "LAPACK"): (ORANGE, "s", "SVD, LAPACK"),
          ("svd", "fastdr"): (ORANGE, "o", "PCA svd, fastdr"),
          ("pca", "fastdr"): (PURPLE, "o", "PCA lapack, fastdr")}
PANELS = (("N", "tall"), ("d", "tall"), ("d", ""), ("N", "wide"), ("d", "wide"))
TITLES = {("N", "tall"): "rows, N ≥ d", ("d", "tall"): "columns, N ≥ d",
          ("d", ""): "eig of a d × d matrix",
          ("N", "wide"): "rows, N < d", ("d", "wide"): "columns, N < d"}


def save(document: Document, folder: Path) -> None:
    """Draw all pictures into a folder."""
    for name, title in verdicts.pictures(document).items():
        figure = _drawing(name)(document, name)
        figure.suptitle(title, fontsize=12)
        figure.savefig(folder / f"claims-{name}.png", dpi=110, metadata={"Software": None})


def _drawing(name: str) -> Callable[[Document, str], Any]:
    return {"operations": laws, "crossover": crossover, "accuracy": accuracy}.get(name, laws)


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def log_axes(axes: Any, label: str, cost: str) -> None:
    """Make both axes logarithmic, with plain numbers at powers of two, and a faint grid."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=label, ylabel=cost)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def laws(document: Document, name: str) -> Any:
    """Draw every law: one panel for each size that varies; the line is drawn where it was fitted.

    The exponent stands beside each name.
    """
    threads = None if name == "operations" else int(name.split("-")[1])
    figure = new_figure(11.5, 7.2)
    panels = dict(zip(PANELS, figure.subplots(2, 3).flat, strict=False))
    found = [each for each in verdicts.exponents(document)
             if (each.kind == "operations" if threads is None
                 else each.kind == "seconds" and each.threads == threads)]
    for each in found:
        axes = panels[each.law.axis, each.law.side]
        _law(axes, each, *series(document, each))
    for panel, axes in panels.items():
        first = next(each.law for each in found if (each.law.axis, each.law.side) == panel)
        log_axes(axes, _label(first), "operations" if threads is None else "seconds")
        axes.set_title(TITLES[panel], fontsize=10)
        _legend(axes)
    figure.axes[-1].set_axis_off()
    figure.axes[-1].text(
        0.05, 0.9, "Lines: power laws, drawn over the\nsizes that they were fitted to.",
        va="top", fontsize=9, color=GREY, transform=figure.axes[-1].transAxes)
    return figure


def _legend(axes: Any) -> None:
    """Put the legend below the points: costs rise, and the axis is lengthened for it."""
    lines = len(axes.get_legend_handles_labels()[1])
    low, high = axes.get_ylim()
    axes.set_ylim(low / (high / low) ** (0.1 * lines), high)
    axes.legend(fontsize=7.5, frameon=False, loc="lower right")


def _label(law: Law) -> str:
    return "rows N" if law.axis == "N" else "columns d"


def series(document: Document, each: Exponent) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the shapes and costs that an exponent was fitted to, below its range too."""
    quick = document["quick"]
    if each.kind != "seconds":
        return each.law.counted(quick), list(map(float, document["counts"][each.law.key]))
    samples = next(s["seconds"] for s in document["times"]
                   if (s["law"], s["operation"], s["who"], s["threads"])
                   == (each.law.key, each.operation, each.who, each.threads))
    return each.law.shapes(quick), [fits.best(each) for each in samples]


def _law(axes: Any, each: Exponent, shapes: list[tuple[int, int]], costs: list[float]) -> None:
    colour, marker, label = STYLES[each.operation, each.who or "LAPACK"]
    if each.kind == "operations":
        label = {"form": "XᵀX", "eig": "eig", "svd": "SVD"}[each.operation]
    ours, law = each.who == "fastdr", each.law
    if law.side:
        rows, columns = shapes[0]
        label += f", d = {columns}" if law.axis == "N" else f", N = {rows}"
    axes.plot(law.along(shapes), costs, marker, color=colour, markersize=4.5,
              markerfacecolor=colour if ours else "white",
              label=f"{label}: ${law.axis}^{{{each.fit}}}$")
    ends = [each.fit.first, each.fit.last]
    axes.plot(ends, list(map(each.fit.at, ends)), "-" if ours else "--", color=colour,
              linewidth=1.1)


def crossover(document: Document, _name: str) -> Any:
    """Draw the ratio of both ways by N/d, and fastdr's time; a dot marks where it passes 1."""
    figure = new_figure(10.5, 4.6)
    both = figure.subplots(1, 2)
    colours = {"operations": GREY, "1 thread": BLUE}
    for race in verdicts.races(document):
        axes = both[int(race.ours)]
        colour = colours.get(race.label.split(", ")[-1], ORANGE)
        axes.plot(race.parts, race.ratio, marker="o", markersize=4, color=colour, linewidth=1.3,
                  label=race.label)
        if race.crossing:
            axes.plot(race.crossing.at, 1, "o", color=colour, markersize=9, alpha=0.4)
    for axes, title in zip(both, ("SVD over XᵀX and eig", "LAPACK's faster way over fastdr's PCA"),
                           strict=True):
        axes.axhline(1, color="black", linewidth=0.8)
        log_axes(axes, "rows over columns, N/d", "cost over cost")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[-1] in "25"
                                       else "")
        axes.tick_params(which="both", labelsize=8)
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    return figure


def accuracy(document: Document, _name: str) -> Any:
    """Draw the error of every singular value against σ₁/σᵢ, with the two laws."""
    figure = new_figure(7.6, 4.8)
    axes = figure.subplots()
    ratio = np.asarray(document["accuracy"]["ratio"])
    looks = {"LAPACK eig(XᵀX)": (ORANGE, "s", 4), "LAPACK SVD": (GREY, "s", 7),
             "fastdr lapack": (BLUE, "o", 5), "fastdr svd": (PURPLE, "x", 3)}
    for route, errors in document["accuracy"]["error"].items():
        colour, marker, size = looks[route]
        axes.plot(ratio, np.maximum(errors, 1e-17), marker, color=colour, markersize=size,
                  markerfacecolor="none", alpha=0.8, linestyle="", label=route)
    for power, last, text in ((1, ratio.max(), "eps σ₁/σᵢ"),
                              (2, verdicts.EPS**-0.5, "eps (σ₁/σᵢ)²")):
        axes.plot([1.0, last], verdicts.EPS * np.array([1.0, last]) ** power, ":", color="black",
                  linewidth=1)
        middle = last**0.6
        axes.annotate(text, (middle, verdicts.EPS * middle**power), (-8, 6), fontsize=8,
                      textcoords="offset points", ha="right")
    log_axes(axes, "σ₁/σᵢ", "relative error of σᵢ")
    axes.set_xscale("log")
    axes.set_ylim(1e-17, 1e5)
    axes.axhline(1, color="black", linewidth=0.6)
    axes.text(1.2, 1.4, "no digit left", fontsize=8, va="bottom")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
