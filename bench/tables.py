"""Markdown from the measured rows; nothing is measured here."""

from __future__ import annotations

import re
from typing import Any

from bench.contestants import OURS

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
LIMIT_NAMES = {"fma": "FMA", "read": "read"}
COMMAND = "python -m bench.report --json bench/results.json --markdown bench/results.md --readme"

Document = dict[str, Any]
Row = dict[str, Any]


def duration(seconds: float) -> str:
    size, unit = next((pair for pair in ((1.0, "s"), (1e-3, "ms")) if seconds >= pair[0]),
                      (1e-6, "µs"))
    value = seconds / size
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def shape(row: Row) -> str:
    rows, columns = (f"{size:,}".replace(",", " ") for size in row["shape"])
    return f"{rows} × {columns}{row['detail']} {row['dtype']}"


def table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reached(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def cell(entry: dict[str, Any]) -> str:
    """Time, half the interquartile range, and the error reached in brackets."""
    if entry["state"] != "measured":
        return entry["state"]
    samples, sign = len(entry["seconds"]), "≈ " * bool(entry.get("approximate"))
    spread = f"±{100 * entry['spread']:.0f} %" if samples > 1 else "once"
    return f"{sign}{duration(entry['median'])} {spread} ({reached(entry['error'])})"


def brief(entry: dict[str, Any]) -> str:
    """Time and error alone."""
    if entry["state"] != "measured":
        return entry["state"]
    return f"{duration(entry['median'])} ({reached(entry['error'])})"


def mark(value: float | None, floor: float | None, binding: bool) -> str:
    """Say whether a value reaches its floor; nothing if there is none or it does not bind."""
    if value is None or floor is None or not binding:
        return ""
    return " ✓" if value >= floor else " **✗ missed**"


def ratio(row: Row, quick: bool) -> str:
    if row["right"] is False:
        return "**wrong**"
    if row["ratio"] is None:
        return "—"
    return f"{row['ratio']:.2f}×{mark(row['ratio'], row['target'], not quick)}"


def share(row: Row, quick: bool) -> str:
    if row["share"] is None:
        return "—"
    floor = f", floor {100 * row['share_target']:.0f} %" if row["share_target"] else ""
    return (f"{100 * row['share']:.0f} % {LIMIT_NAMES[row['limit']]}{floor}"
            f"{mark(row['share'], row['share_target'], not quick)}")


def peak(row: Row, measured: dict[str, Row]) -> str:
    """Return fastdr's peak memory above its data in MB, and the least of the rivals'."""
    peaks = {entry["name"]: entry["peak"] / 1e6
             for entry in measured.get(row["name"], {"contestants": []})["contestants"]
             if entry["state"] == "measured"}
    mine = peaks.pop(OURS, None)
    if mine is None:
        return "—"
    return f"{mine:.1f}" + (f" (rivals {min(peaks.values()):.1f})" if peaks else "")


def ours(row: Row) -> dict[str, Any]:
    return next(entry for entry in row["contestants"] if entry["name"] == OURS)


def missed(document: Document) -> list[Row]:
    """Rows below a floor or wrong; a quick run has no floors."""
    return [row for row in document["rows"]
            if "missed" in ratio(row, document["quick"]) + share(row, document["quick"])
            or row["right"] is not True]


def loud(document: Document) -> list[str]:
    """Return a warning if other programs were at work."""
    load = (document["load"] or [0.0])[0]
    return ([f"**Not a quiet machine**: load {load:.1f} when the run began; do not quote figures"]
            if load > 0.5 else [])


def versions(machine: Document) -> str:
    """Return the line of a head that names Python, fastdr and every rival."""
    return f"- Python {machine['python']}, " + ", ".join(
        f"{name} {number or 'absent'}" for name, number in machine["versions"].items())


def short_head(machine: Document) -> str:
    """Return the machine and the versions, for figures that no limit is beside."""
    return "\n".join([
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['system']}; "
        f"fastdr kernels: {machine['isa']}",
        versions(machine)])


def page(title: str, command: str, *parts: str) -> str:
    """Return a whole file: what it is, the command that writes it, and its parts."""
    return "\n\n".join([f"# {title}", f"Written by `{command}`.", *parts]) + "\n"


def head(document: Document) -> str:
    machine, limits = document["machine"], document["limits"]
    blas = "; ".join(f"{each['library']} {each['version']}, kernel {each['kernel']}, "
                     f"threads {each['threads']}" for each in machine["blas"]) or "unknown"
    measured = "not measured" if limits is None else (
        f"{limits['f8'] / 1e9:.0f} GF/s f8 and {limits['f4'] / 1e9:.0f} GF/s f4 from registers, "
        f"{limits['read'] / 1e9:.1f} GB/s read")
    return "\n".join([
        f"- Machine: {machine['cpu']}, {machine['cores']} cores ({machine['usable']} usable), "
        f"{machine['system']}; **threads for everybody: {machine['threads']}**",
        f"- Limits measured in the same run: {measured}",
        f"- fastdr kernels: {machine['isa']}; BLAS: {blas}",
        *(f"- {line}" for line in loud(document)),
        versions(machine),
    ])


def _grouped(rows: list[Row]) -> dict[tuple[str, tuple[str, ...]], list[Row]]:
    groups: dict[tuple[str, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        names = tuple(entry["name"] for entry in row["contestants"])
        groups.setdefault((row["group"], names), []).append(row)
    return groups


def speed(document: Document) -> str:
    """One table for each group of cases with the same contestants."""
    quick, parts = document["quick"], []
    memories = {row["name"]: row for row in document["memory"]}
    groups = _grouped(document["rows"])
    titles = [group for group, _ in groups]
    for (group, names), rows in groups.items():
        dtypes = ", ".join(dict.fromkeys(row["dtype"] for row in rows))
        title = group if titles.count(group) == 1 else f"{group} ({dtypes})"
        body = [[shape(row), *map(cell, row["contestants"]), ratio(row, quick),
                 f"{row['target']:g}×", share(row, quick), peak(row, memories)] for row in rows]
        parts.append(f"### {title}\n\n"
                     + table(["data", *names, "ratio", "floor", "share of limit", "peak MB"], body))
        parts += [f"{shape(row)}, {entry['name']}: {entry['message']}" for row in rows
                  for entry in row["contestants"] if entry["state"] == "failed"]
    return "\n\n".join(parts)


def memory(rows: list[Row]) -> str:
    """Peak memory above the data, and how much of it is the result."""
    body = []
    for row in rows:
        for entry in row["contestants"]:
            figures = ([f"{entry[key] / 1e6:.1f}" for key in ("peak", "result")]
                       if entry["state"] == "measured" else [entry["state"]] * 2)
            body.append([f"{row['group']} {shape(row)}", f"{row['data'] / 1e6:.0f}",
                         entry["name"], *figures])
    return table(["case", "data, MB", "who", "peak above the data, MB", "of it the result, MB"],
                 body)


def markdown(document: Document) -> str:
    """Return the whole report."""
    quick = document["quick"]
    note = ("A quick run: reduced sizes and few samples, so floors are not judged."
            if quick else "Floors hold for two threads. Rows below a floor are marked ✗ missed.")
    parts = [
        "# Benchmarks", f"Written by `{COMMAND}`; see [README.md](README.md) for the method.",
        head(document), note,
        "A cell is the median time ± half the interquartile range, and in brackets the relative "
        "error reached. The ratio is the fastest rival's time over fastdr's; the share is the "
        "time that the binding machine limit (FMA from registers, or reading) allows over "
        "fastdr's. Rivals marked ≈ are approximate and compared with only where their error is "
        "allowed. The last column is fastdr's peak memory above its data, and the least rival's.",
        "## Speed", speed(document)]
    if document["memory"]:
        parts += ["## Memory", memory(document["memory"])]
    return "\n\n".join(parts) + "\n"


def summary(document: Document) -> str:
    """Return the short table for the project's README."""
    quick, body = document["quick"], []
    for row in document["rows"]:
        best = next((e for e in row["contestants"] if e["name"] == row["best_rival"]), None)
        rival = f"{best['name']}: {brief(best)}" if best else "—"
        limit = share(row, quick)
        body.append([f"{row['group']} {shape(row)}", brief(ours(row)), rival, ratio(row, quick),
                     f"{row['target']:g}×", limit if "missed" in limit else limit.split(",")[0]])
    machine = document["machine"]
    return "\n\n".join([
        f"{machine['cpu']}, {machine['threads']} threads for everybody; medians, in brackets the "
        "relative error reached. Rivals run at their best, and count where they are as accurate as "
        "the row asks.", *loud(document),
        table(["work", "fastdr", "fastest rival", "ratio", "floor", "share of limit"], body),
        "All rivals, versions, noise, memory and the method: [bench/](bench/README.md)."])


def replace_block(text: str, block: str) -> str:
    """Put `block` between the two marks in `text`; ValueError unless both are there once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"need the marks {BEGIN} and {END} once each, in this order")
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{block}\n{END}", text, flags=re.DOTALL)
