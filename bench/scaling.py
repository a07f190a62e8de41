"""How the time of PCA.fit grows with rows, columns, components and threads.

``python -m bench.scaling [--quick] [--from JSON] [--out DIR]`` writes scaling.json and scaling.png.
Contestants and data are those of the row "PCA.fit 1000000x128→10 f8" of the table, and the same
rounds in turn; each panel varies one size. An answer that is wrong is drawn as a cross.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from bench import claims_plots, data, machine, measure
from bench.cases import Case, select
from bench.contestants import OURS

NAME = "PCA.fit 1000000x128→10 f8"
HERE = Path(__file__).resolve().parent
SLOW = ("scikit-learn full", "dask-ml full")  # ten times slower and more
# Rows, columns, components; all but the one that varies.
BASE, QUICK_BASE = (200_000, 128, 10), (20_000, 64, 10)
SIZES = {"N": (12_500, 25_000, 50_000, 100_000, 200_000, 400_000, 800_000),
         "d": (16, 32, 64, 128, 256, 512), "k": (1, 2, 5, 10, 20, 50, 100)}
QUICK_SIZES = {"N": (5_000, 20_000), "d": (16, 64), "k": (2, 10)}
LABELS = {"N": "rows N", "d": "columns d", "k": "components k", "threads": "threads"}
EFFORT = dataclasses.replace(measure.FULL, least=4, most=8, budget=4.0)


def case_of(rows: int, columns: int, k: int) -> Case:
    """Return the row of the table at another size, without contestants that are always slow."""
    row = next(case for case in select(None) if case.name == NAME)
    kept = tuple(each for each in row.contestants if each.name not in SLOW)
    return dataclasses.replace(row, full=(rows, columns), make=data.with_components(k),
                               detail=f"→{k}", contestants=kept)


def measured(quick: bool) -> dict[str, Any]:
    """Measure all four panels; the document holds plain values only."""
    most, _limit = machine.set_threads(None)
    document: dict[str, Any] = {"machine": machine.describe(most), "quick": quick, "panels": {}}
    base, effort = (QUICK_BASE, measure.QUICK) if quick else (BASE, EFFORT)
    for place, (axis, sizes) in enumerate((QUICK_SIZES if quick else SIZES).items()):
        shapes = [(*base[:place], size, *base[place + 1 :]) for size in sizes]
        document["panels"][axis] = [_row(size, shape, effort)
                                    for size, shape in zip(sizes, shapes, strict=True)]
    document["panels"]["threads"] = []
    for threads in range(1, most + 1):
        _, _limit = machine.set_threads(threads)
        document["panels"]["threads"].append(_row(threads, base, effort))
    return document


def _row(size: int, shape: tuple[int, ...], effort: measure.Effort) -> dict[str, Any]:
    row = measure.run(case_of(*shape), effort=effort)
    print(f"{row['name']}: {size}", file=sys.stderr, flush=True)
    return {"size": size, "shape": list(shape), "allowed": row["allowed"],
            "contestants": row["contestants"]}


def draw(document: dict[str, Any]) -> Any:
    """Return the figure: a panel for each size, a line for each contestant that is present."""
    figure = claims_plots.new_figure(11.0, 7.6)
    panels = dict(zip(document["panels"], figure.subplots(2, 2).flat, strict=True))
    names = dict.fromkeys(entry["name"] for rows in document["panels"].values() for row in rows
                          for entry in row["contestants"] if entry["state"] == "measured")
    colours = dict(zip(names, ["black", "#2a6f97", "#588157", "#7b5ea7", "#c8553d", "#e0a030",
                               "#6b7280", "#8d5524"], strict=False))
    for axis, axes in panels.items():
        for name in names:
            _line(axes, document["panels"][axis], name, colours.get(name, "#999999"))
        claims_plots.log_axes(axes, LABELS[axis], "seconds")
        first = document["panels"][axis][0]["shape"]
        fixed = [f"{each} = {size}" for each, size in zip(SIZES, first, strict=True)
                 if each != axis]
        axes.set_title(", ".join(fixed), fontsize=10)
        sizes = [row["size"] for row in document["panels"][axis]]
        axes.set_xticks(sizes, [f"{size:,}".replace(",", " ") for size in sizes])
    figure.legend(*panels["N"].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize=8, frameon=False)
    threads = document["machine"]["threads"]
    figure.suptitle(f"PCA.fit, float64, threads: {threads} (≈ approximate; × error above "
                    f"{document['panels']['N'][0]['allowed']:.0e})", fontsize=11)
    return figure


def _line(axes: Any, rows: list[dict[str, Any]], name: str, colour: str) -> None:
    points = [(row["size"], entry["median"], entry["error"] <= row["allowed"])
              for row in rows for entry in row["contestants"]
              if entry["name"] == name and entry["state"] == "measured"]
    approximate = any(entry.get("approximate") for row in rows for entry in row["contestants"]
                      if entry["name"] == name)
    for right, marker in ((True, "o"), (False, "x")):
        chosen = [point for point in points if point[2] is right]
        axes.plot([size for size, *_ in chosen], [cost for _, cost, _ in chosen], marker,
                  color=colour, markersize=4.5, zorder=3 if name == OURS else 2)
    axes.plot([size for size, *_ in points], [cost for _, cost, _ in points], color=colour,
              linewidth=2.0 if name == OURS else 1.0, linestyle="--" if approximate else "-",
              label="≈ " * approximate + name)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small sizes for each panel")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON",
                        help="measure nothing, draw this file")
    parser.add_argument("--out", type=Path, metavar="DIR", default=HERE,
                        help="where to write; default: bench/")
    given = parser.parse_args(arguments)
    if given.source:
        document = json.loads(given.source.read_text("utf-8"))
    else:
        machine.restart_unpinned("bench.scaling", arguments)
        document = measured(given.quick)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "scaling.json").write_text(
            json.dumps(document, ensure_ascii=False) + "\n", "utf-8")
    draw(document).savefig(given.out / "scaling.png", dpi=110, metadata={"Software": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
