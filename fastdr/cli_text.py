"""The commands for texts: what ``fastdr fit --text`` does, and ``fastdr search``."""

from __future__ import annotations

import json
import math
import textwrap
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from fastdr.lsi_model import LSIModel
from fastdr.models import LinearModel
from fastdr.singular_model import SingularModel
from fastdr.threads import set_num_threads

try:
    import typer
except ModuleNotFoundError:  # cli.main() says how to install it
    typer = None  # type: ignore[assignment]


class Weighting(StrEnum):
    """How counts of words are weighted."""

    tfidf = "tfidf"
    log_entropy = "log-entropy"
    none = "none"


def fit_text(source: Path, output: Path, components: Any, weighting: Weighting, as_json: bool
             ) -> None:
    """Index the texts of a file."""
    from fastdr.documents import index_documents

    if components is not None and not isinstance(components, int):
        raise typer.BadParameter("with --text it is a whole number.", param_hint="--components")
    start = time.perf_counter()
    model = index_documents(source, components,
                            None if weighting == Weighting.none else weighting.value).model_
    seconds = time.perf_counter() - start
    model.save(output)
    documents, axes = model.documents.shape
    terms = len(model.term_weights)
    told = model.report.get("certificate", {})
    if as_json:
        print_json({
            "model": str(output), "seconds": round(seconds, 3), "documents": documents,
            "terms": terms, "components": axes,
            "singular_values": model.singular_values.tolist()} | (told and {"certificate": told}))
        return
    counts = ", ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in (
        (documents, "document"), (terms, "term"), (axes, "component")))
    typer.echo(f"{counts} in {seconds:.2f} s")
    print_certificate(model)
    typer.echo(f"\nindex written to {output}")


def print_certificate(model: LinearModel | SingularModel | LSIModel) -> None:
    """Print what is proved of a model, if anything is known."""
    told = model.certificate
    if told is not None:
        text = (told.times(1.0).text(-2 * model.exponent) if isinstance(model, LinearModel)
                else str(told))
        typer.echo("\n" + textwrap.fill(f"certificate: {text}", 80))


def one_line(text: object) -> str:
    """Return text of others for the shell: on one line, with nothing that moves its cursor."""
    shown = "".join(char if char.isprintable() or char.isspace() else " " for char in str(text))
    return " ".join(shown.split())


def print_json(values: dict[str, Any]) -> None:
    """Print one JSON object, with null for numbers that are not finite."""
    typer.echo(json.dumps(_finite(values), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def search(index: Annotated[Path, typer.Argument(
               metavar="INDEX", help="Index that `fit --text` wrote.")],
           query: Annotated[str, typer.Argument(metavar="QUERY", help="Words to look for.")],
           top: Annotated[int, typer.Option(
               "--top", "-n", min=1, help="How many to show.")] = 10,
           threads: Annotated[int | None, typer.Option(
               min=1, help="Threads; default: all CPUs.")] = None,
           as_json: Annotated[bool, typer.Option(
               "--json", help="Print one JSON object instead.")] = False) -> None:
    """Find the documents of an index that are nearest to QUERY by meaning."""
    from fastdr.documents import search as find

    set_num_threads(threads)
    hits = find(index, query, top)
    if as_json:
        print_json({"query": query, "hits": hits})
        return
    if not hits:
        typer.echo("no word of the query is in the index")
    for hit in hits:
        typer.echo(f"{hit['cosine']:6.3f}  {hit['document'] + 1:>7}  "
                   f"{one_line(hit.get('title', ''))}".rstrip())
