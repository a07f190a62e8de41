"""The benchmark report: ``python -m bench.report [--quick] [--only WORDS] …``.

Prints Markdown; exit code 1 if a contestant raised or fastdr's answer was wrong, never for speed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import limits, machine, measure, memory, tables
from bench.cases import Case, select

README = Path(__file__).resolve().parent.parent / "README.md"
FORMAT = 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    made.add_argument("--quick", action="store_true", help="reduced sizes, few samples")
    made.add_argument("--threads", type=int, metavar="N",
                      help="threads for everybody; default: all usable CPUs")
    made.add_argument("--only", metavar="WORDS", help="cases whose name holds all these words; "
                      "in an existing --json file only their rows are replaced")
    made.add_argument("--json", type=Path, metavar="PATH", help="write the measurements")
    made.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables")
    made.add_argument("--readme", action="store_true", help="replace the table in README.md")
    made.add_argument("--from", dest="source", type=Path, metavar="PATH",
                      help="measure nothing, render this JSON file")
    made.add_argument("--no-limits", action="store_true", help="do not measure machine limits")
    made.add_argument("--no-memory", action="store_true", help="do not measure memory")
    return made


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measured(cases: list[Case], given: argparse.Namespace) -> dict[str, Any]:
    """Measure limits, speed and memory; the document holds plain values only."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None  # before our own
    threads, _limit = machine.set_threads(given.threads)
    found = None if given.no_limits else limits.measure(threads, quick=given.quick)
    document = {"format": FORMAT, "quick": given.quick, "machine": machine.describe(threads),
                "load": load,
                "limits": found and found.as_dict(), "rows": [], "memory": []}
    for case in cases:
        start = perf_counter()
        row = measure.run(case, quick=given.quick, limits=found)
        document["rows"].append(row)
        say(f"{case.name}: {tables.ratio(row, given.quick)}, {tables.share(row, given.quick)} "
            f"[{perf_counter() - start:.1f} s]")
    if not given.no_memory:
        for case in memory.chosen(given.only, given.quick):
            start = perf_counter()
            document["memory"].append(memory.run(case, quick=given.quick, threads=threads))
            say(f"memory of {case.name} [{perf_counter() - start:.1f} s]")
    return document


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return `old` with the rows that `new` measured again; ValueError unless runs compare."""
    for part in ("format", "quick", "machine"):
        if old[part] != new[part]:
            raise ValueError(f"the existing file differs in {part!r} from this run: "
                             "measure all cases again, or write to another file")
    result = dict(old, limits=new["limits"] or old["limits"],
                  load=max(old["load"] or [0.0], new["load"] or [0.0]))
    for part in ("rows", "memory"):
        again = {row["name"]: row for row in new[part]}
        result[part] = [again.pop(row["name"], row) for row in old[part]] + list(again.values())
    return result


def write(document: dict[str, Any], given: argparse.Namespace) -> None:
    """Write what was asked for; otherwise print the tables."""
    if given.json:
        given.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if given.markdown:
        given.markdown.write_text(tables.markdown(document), "utf-8")
    if given.readme:
        text = tables.replace_block(README.read_text("utf-8"), tables.summary(document))
        README.write_text(text, "utf-8")
    if not given.markdown:
        print(tables.markdown(document))


def problems(document: dict[str, Any]) -> list[str]:
    return ([text for row in document["rows"] for text in measure.problems(row)]
            + [text for row in document["memory"] for text in memory.problems(row)])


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    made = parser()
    given = made.parse_args(arguments)
    try:
        cases = select(given.only)
        if given.source:
            document = json.loads(given.source.read_text("utf-8"))
        else:
            machine.restart_unpinned("bench.report", arguments)
            document = measured(cases, given)
            if given.only and given.json and given.json.exists():
                document = merged(json.loads(given.json.read_text("utf-8")), document)
        write(document, given)
    except (ImportError, OSError, ValueError) as error:
        made.exit(2, f"{made.prog}: {error}\n")
    found = problems(document)
    for text in found:
        say(text)
    below = len(tables.missed(document))
    say(f"{len(document['rows'])} cases, {below} marked, {len(found)} failures")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
