"""The command ``fastdr plot``, and what it shares with the others about the rows of a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.lib import format as npy

from fastdr.cli_rows import ROWS, opened, refuse_given
from fastdr.models import LinearModel
from fastdr.outputs import check_output, replacing
from fastdr.persistence import load
from fastdr.sources import Source
from fastdr.validation import MAY_BE_MISSING, AnyArray

try:
    import typer

    from fastdr.cli_rows import Columns, Header, Member
except ModuleNotFoundError:  # cli.main() says how to install it
    typer = None  # type: ignore[assignment]


class Kind(StrEnum):
    """Kinds of pictures."""

    scree = "scree"
    loadings = "loadings"
    losses = "losses"
    scores = "scores"
    biplot = "biplot"
    errors = "errors"
    discriminants = "discriminants"
    sources = "sources"
    reconstructions = "reconstructions"


OF_MODELS = (Kind.scree, Kind.loadings, Kind.losses)  # the other kinds need DATA
OF_PAIRS = (Kind.scores, Kind.biplot, Kind.discriminants)  # of scores, perhaps with labels
PICTURES = (".png", ".pdf", ".svg")
PYTHON_ONLY = (", or pass mean=", ", or give them a sample_weight of 0")  # advice in errors

if typer is not None:
    Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `fit` or "
                                           "model.save wrote.")]
    Data = Annotated[Path | None, typer.Argument(metavar="DATA", help=ROWS)]
    Out = Annotated[Path, typer.Option("--out", "-o", help="Picture to write: .png, .pdf or .svg.")]
    KindOf = Annotated[Kind, typer.Option(
        "--kind", metavar="NAME", help=f"{', '.join(OF_MODELS)}, which need no DATA, or "
        f"{', '.join(kind for kind in Kind if kind not in OF_MODELS)}.")]
    Count = Annotated[int | None, typer.Option(
        "-k", min=1, help="Components to mark (scree) or reconstruct from (errors, "
        "reconstructions).")]
    Labels = Annotated[Path | None, typer.Option(
        help="A label for each row: .npy, or text with one label a line.")]
    AxesPair = Annotated[str, typer.Option(help="Two scores, counted from 1.")]
    Shape = Annotated[str | None, typer.Option(
        metavar="HEIGHTxWIDTH", help="Of an image (reconstructions).")]
    Images = Annotated[int, typer.Option(min=1, help="Rows to draw (reconstructions).")]


def plot(model: Model, data: Data = None, *, out: Out, kind: KindOf = Kind.scree, k: Count = None,
         labels: Labels = None, axes: AxesPair = "1,2", shape: Shape = None, images: Images = 10,
         member: Member = None, columns: Columns = None, header: Header = None) -> None:
    """Draw a fitted model, or rows as it sees them."""
    check_output(out, model, data, labels)
    if out.suffix.lower() not in PICTURES:
        raise ValueError(f"{out}: unknown kind of picture; use {', '.join(PICTURES)}.")
    why = f"does nothing in a picture of kind {kind}"
    if kind in OF_MODELS:
        refuse_given(why, {"DATA": data, "--member": member, "--columns": columns,
                           "--header": header is not None})
    if kind not in OF_PAIRS:
        refuse_given(why, {"--labels": labels, "--axes": axes != "1,2"})
    if kind != Kind.reconstructions:
        refuse_given(why, {"--shape": shape, "--images": images != 10})
    if kind not in (Kind.scree, Kind.errors, Kind.reconstructions):
        refuse_given(why, {"-k": k})
    fitted = load(model)
    if kind in OF_MODELS:
        figure = _of_model(fitted, kind, k)
    elif data is None:
        raise ValueError(f"a picture of kind {kind} needs rows; give DATA after MODEL.")
    else:
        rows = opened(data, member, columns, None, header)
        check_columns(fitted, rows, data)
        named = None if labels is None else _read_labels(labels)
        with faults_at_rows(data, rows):
            if kind == Kind.reconstructions:
                figure = _images(fitted, rows, _sizes(shape), images, k)
            else:
                figure = _of_rows(fitted, rows, kind, named, _pair(axes), k)
    write_picture(figure, out)
    typer.echo(f"picture written to {out}")


def _of_model(fitted: Any, kind: Kind, k: int | None) -> Any:
    from fastdr import plots  # the other commands need no pictures

    if kind == Kind.scree:
        return plots.scree(fitted, chosen=k).figure
    return (plots.loadings if kind == Kind.loadings else plots.losses)(fitted).figure


def _of_rows(fitted: Any, rows: Source, kind: Kind, labels: AnyArray | None,
             axes: tuple[int, int], k: int | None) -> Any:
    from fastdr import plots

    if kind == Kind.errors:
        return plots.errors(fitted, rows, k=k).figure
    if kind == Kind.sources:
        return plots.sources(fitted, rows).figure
    if kind == Kind.discriminants:
        if labels is None:
            raise ValueError("a picture of kind discriminants needs --labels.")
        return plots.discriminants(fitted, rows, labels, axes=axes).figure
    draw = plots.biplot if kind == Kind.biplot else plots.scores
    return draw(fitted, rows, labels, axes=axes).figure


def _images(fitted: Any, rows: Source, shape: tuple[int, int], count: int, k: int | None) -> Any:
    from fastdr import plots

    first = np.concatenate([*_first(rows, count)])
    most = len(fitted.components) if isinstance(fitted, LinearModel) else 1
    ks = [k] if k else [size for size in (64, 32, 16, 8, 4, 2, 1) if size <= most]
    return plots.reconstructions(fitted, first, shape=shape, ks=ks)


def _first(rows: Source, count: int) -> Iterator[AnyArray]:
    """Yield blocks with the first `count` rows."""
    for block in rows.blocks():
        yield block[:count]
        count -= len(block)
        if count <= 0:
            return


def _pair(text: str) -> tuple[int, int]:
    try:
        first, second = map(int, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not two whole numbers like 1,2.",
                                 param_hint="--axes") from None
    return first, second


def _sizes(text: str | None) -> tuple[int, int]:
    if text is None:
        raise ValueError("a picture of kind reconstructions needs --shape, like 8x8.")
    try:
        height, width = map(int, text.lower().split("x"))
    except ValueError:
        height = width = 0
    if height < 1 or width < 1:
        raise typer.BadParameter(f"{text!r} is not a height and a width like 8x8.",
                                 param_hint="--shape")
    return height, width


def _read_labels(path: Path) -> AnyArray:
    """Return labels: an .npy vector, or one a line, as numbers if all are."""
    try:
        if path.suffix.lower() == ".npy":
            with open(path, "rb") as file:
                stored: AnyArray = npy.read_array(file, allow_pickle=False)
            return stored
        text = path.read_text(encoding="utf-8-sig")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: holds no labels: neither a NumPy array nor a text in UTF-8 "
                         f"({error}).") from None
    lines = [line.strip() for line in text.splitlines()]
    for number in (int, float):
        try:
            return np.array([number(line) for line in lines])
        except ValueError:
            continue
    return np.array(lines)


def write_picture(figure: Any, path: Path) -> None:
    """Write a picture beside `path` and rename it: an error leaves the old file as it was."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower())
    with replacing(path) as part:
        part.write_bytes(drawn.getvalue())


def check_columns(model: Any, source: Source, path: Path) -> None:
    """Raise ValueError unless the columns are those that the model was fitted to."""
    features = source.shape[1]
    if features != len(model.mean):
        raise ValueError(f"{path}: has {features} columns, but the model was fitted to "
                         f"{len(model.mean)} features.")
    if model.feature_names is None or source.columns is None:
        return
    pairs = zip(source.columns, model.feature_names, strict=True)
    for position, (given, fitted) in enumerate(pairs):
        if given != fitted:
            raise ValueError(f"{path}: column {position + 1} is {given!r}, but the model was "
                             f"fitted to {fitted!r} there.")


@contextmanager
def faults_at_rows(path: Path, source: Source, missing: bool | None = None) -> Iterator[None]:
    """Name a NaN or infinity by its row in the file; advise only what the command can do.

    `missing` is what --missing says, None for a command that has no such option.
    """
    try:
        yield
    except ValueError as error:
        if "contains NaN" in str(error) or "contains infinity" in str(error):
            _raise_first_fault(path, source, missing)
        if "n_samples=1, " in str(error):
            raise ValueError(f"{path}: has 1 row; at least two are needed.") from None
        text = str(error)
        for advice in PYTHON_ONLY if missing is not None else (*PYTHON_ONLY, MAY_BE_MISSING):
            text = text.replace(advice, "")
        raise ValueError(text) from None


def _raise_first_fault(path: Path, source: Source, missing: bool | None) -> None:
    first = 0
    for block in source.blocks():
        bad = np.isinf(block) if missing else ~np.isfinite(block)
        if bad.any():
            row, column = (int(index) for index in np.argwhere(bad)[0])
            name = f" ({source.columns[column]!r})" if source.columns else ""
            value = block[row, column]
            advice = MAY_BE_MISSING if missing is False and np.isnan(value) else ""
            raise ValueError(f"{path}: row {first + row}, column {column}{name} is {value}; remove "
                             f"or impute such values first{advice}.")
        first += len(block)
