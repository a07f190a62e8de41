"""The command ``fastdr``: fit, transform, reconstruct, info, search and demo."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np

from fastdr import __version__
from fastdr.files import open_source
from fastdr.models import LinearModel
from fastdr.operators import reconstruction_error
from fastdr.persistence import load_axes
from fastdr.sinks import open_sink
from fastdr.sources import Source
from fastdr.threads import set_num_threads
from fastdr.validation import AnyArray

try:
    import typer
except ModuleNotFoundError:  # main() says how to install it
    typer = None  # type: ignore[assignment]

TABLE_ROWS = 10


class Whiten(StrEnum):
    """Kinds of whitening."""

    pca = "pca"
    zca = "zca"


class Solver(StrEnum):
    """How the components are computed."""

    auto = "auto"
    lapack = "lapack"
    svd = "svd"


class Weighting(StrEnum):
    """How counts of words are weighted."""

    tfidf = "tfidf"
    log_entropy = "log-entropy"
    none = "none"


if typer is not None:
    _FORMATS = ".npy, .npz, .csv, .csv.gz or .parquet"
    Rows = Annotated[Path, typer.Argument(metavar="INPUT", help=f"Rows: {_FORMATS}.")]
    Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `fit` wrote.")]
    Output = Annotated[Path, typer.Option("--output", "-o", help=f"File to write: {_FORMATS}.")]
    Member = Annotated[str | None, typer.Option(help="Array to read from an .npz INPUT.")]
    Threads = Annotated[int | None, typer.Option(min=1, help="Threads; default: all CPUs.")]
    AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
    Progress = Annotated[bool | None, typer.Option(
        "--progress/--no-progress", help="Progress bar on stderr; default: on a terminal.")]


def fit(source: Rows,
        output: Annotated[Path, typer.Option("--output", "-o", help="Model to write (.fdr).")],
        components: Annotated[str | None, typer.Option(
            "--components", "-k", metavar="INTEGER|FRACTION|mle", help="How many to keep: a "
            "number, a share of the variance like 0.95, or mle. Default: all.")] = None,
        whiten: Annotated[Whiten | None, typer.Option(help="Scores of unit variance.")] = None,
        standardize: Annotated[bool, typer.Option(
            "--standardize", help="Divide each column by its standard deviation.")] = False,
        solver: Annotated[Solver, typer.Option(help="How to compute.")] = Solver.auto,
        text: Annotated[bool, typer.Option(
            "--text", help="INPUT has texts: a line each (.txt), or JSON with \"text\" and perhaps "
            "\"title\" (.jsonl). Makes an index for `search`.")] = False,
        weighting: Annotated[Weighting, typer.Option(help="Of words, with --text.")]
        = Weighting.tfidf,
        member: Member = None, threads: Threads = None, progress: Progress = None,
        as_json: AsJson = False) -> None:
    """Fit a principal component analysis to the rows of INPUT."""
    from fastdr.pca import PCA  # takes scikit-learn along, which the other commands do not need

    set_num_threads(threads)
    kept = _parse_components(components)
    if not output.resolve().parent.is_dir():
        raise FileNotFoundError(f"{output}: no such directory: {output.resolve().parent}.")
    if text:
        _fit_text(source, output, kept, weighting, as_json)
        return
    rows = open_source(source, member=member)
    start = time.perf_counter()
    estimator = PCA(kept, whiten=whiten.value if whiten else False, standardize=standardize,
                    svd_solver=solver.value, progress=_show(progress))
    with _faults_at_rows(source, rows):
        model = estimator.fit(rows).model_
    seconds = time.perf_counter() - start
    model.save(output)
    facts = {"model": str(output), "seconds": round(seconds, 3)} | _facts(model)
    if as_json:
        _print_json(facts)
        return
    typer.echo(f"{_count(model.count, 'row')} x {_count(len(model.mean), 'feature')}, "
               f"{_count(len(model.variances), 'component')} in {seconds:.2f} s "
               f"({model.report.get('method', solver.value)})\n")
    typer.echo(_variance_table(model, TABLE_ROWS))
    typer.echo(f"\nmodel written to {output}")


def _fit_text(source: Path, output: Path, components: Any, weighting: Weighting, as_json: bool
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
    if as_json:
        _print_json({"model": str(output), "seconds": round(seconds, 3), "documents": documents,
                     "terms": len(model.term_weights), "components": axes,
                     "singular_values": model.singular_values.tolist()})
        return
    typer.echo(f"{_count(documents, 'document')}, {_count(len(model.term_weights), 'term')}, "
               f"{_count(axes, 'component')} in {seconds:.2f} s\n\nindex written to {output}")


def search(model: Annotated[Path, typer.Argument(metavar="INDEX",
                                                 help="Index that `fit --text` wrote.")],
           text: Annotated[str, typer.Argument(metavar="QUERY", help="Words to look for.")],
           top: Annotated[int, typer.Option("--top", "-n", min=1, help="How many to show.")] = 10,
           threads: Threads = None, as_json: AsJson = False) -> None:
    """Find the documents of an index that are nearest to QUERY by meaning."""
    from fastdr.documents import search as find

    set_num_threads(threads)
    hits = find(model, text, top)
    if as_json:
        _print_json({"query": text, "hits": hits})
        return
    if not hits:
        typer.echo("no word of the query is in the index")
    for hit in hits:
        typer.echo(f"{hit['cosine']:6.3f}  {hit['document'] + 1:>7}  {hit.get('title', '')}")


def transform(model: Model, source: Rows, output: Output, member: Member = None,
              threads: Threads = None, progress: Progress = None,
              as_json: AsJson = False) -> None:
    """Write the scores of the rows of INPUT: their coordinates on the components."""
    set_num_threads(threads)
    fitted, rows = load_axes(model), open_source(source, member=member)
    _check_columns(fitted, rows, source)
    names: Sequence[str] | None = [f"pc{index + 1}" for index in range(fitted.n_outputs)]
    if fitted.whiten == "zca":
        names = fitted.feature_names or rows.columns
    done = 0
    with _faults_at_rows(source, rows), open_sink(output, names) as sink:
        for block in _bar(rows, _show(progress)):
            sink.write(fitted.transform(block))
            done += len(block)
    _print_outcome({"output": str(output), "rows": done, "columns": fitted.n_outputs}, as_json)


def reconstruct(model: Model, source: Rows, output: Output,
                scores: Annotated[bool, typer.Option(
                    "--scores", help="INPUT has scores that `transform` wrote.")] = False,
                member: Member = None, threads: Threads = None, progress: Progress = None,
                as_json: AsJson = False) -> None:
    """Write the rows of INPUT as the model sees them, and how much of them was lost."""
    set_num_threads(threads)
    fitted, rows = load_axes(model), open_source(source, member=member)
    if not scores:
        _check_columns(fitted, rows, source)
    done, loss = 0, 0.0
    names = fitted.feature_names or (None if scores else rows.columns)
    with _faults_at_rows(source, rows), open_sink(output, names) as sink:
        for block in _bar(rows, _show(progress)):
            if not scores:
                loss += float(np.sum(fitted.reconstruction_error(block, per_row=True)))
                block = fitted.transform(block)
            sink.write(fitted.inverse_transform(block))
            done += len(block)
    facts: dict[str, Any] = {"output": str(output), "rows": done, "columns": len(fitted.mean)}
    if not scores:
        facts["mean_squared_distance"] = loss / done
    _print_outcome(facts, as_json)


def info(model: Model,
         everything: Annotated[bool, typer.Option("--all", help="Every component.")] = False,
         as_json: AsJson = False) -> None:
    """Describe a model file."""
    fitted = load_axes(model)
    facts = _facts(fitted)
    if as_json:
        _print_json({"model": str(model)} | facts)
        return
    for name in ("rows", "features", "components", "rank", "whiten", "standardized", "dtype",
                 "total_variance", "left_out", "noise_variance", "solver", "method", "reason"):
        if facts.get(name) is not None:
            value = facts[name]
            typer.echo(f"{name.replace('_', ' '):16}"
                       f"{f'{value:.6g}' if isinstance(value, float) else value}")
    typer.echo()
    typer.echo(_variance_table(fitted, len(fitted.variances) if everything else TABLE_ROWS))


def demo(output: Annotated[Path, typer.Option(
        help="Directory to write to; made if missing.")] = Path("fastdr-demo")) -> None:
    """Show the main job on scikit-learn's handwritten digits."""
    from sklearn.datasets import load_digits

    from fastdr.pca import PCA

    images = load_digits()
    X = images.data
    output.mkdir(parents=True, exist_ok=True)
    typer.echo(f"Handwritten digits (bundled with scikit-learn): {len(X)} images of 8 x 8 pixels,\n"
               f"so {len(X)} rows x {X.shape[1]} features.\n")
    start = time.perf_counter()
    estimator = PCA().fit(X)
    model = estimator.model_
    typer.echo(f"PCA of all of them in {1000 * (time.perf_counter() - start):.1f} ms "
               f"({model.report['method']}). The variances, how far each may\n"
               f"be off by rounding, and the share of the total that they explain:\n")
    typer.echo(_variance_table(model, TABLE_ROWS))
    typer.echo(f"\nThe loss of keeping k components, measured on the images, equals the sum of\n"
               f"the variances left out (total {model.total_variance:.6g}):\n")
    ks = [1, 2, 4, 8, 16, 32, model.rank]
    typer.echo(_loss_table(model, X, ks))
    enough = int(np.argmax(np.cumsum(model.variances) >= 0.95 * model.total_variance)) + 1
    typer.echo(f"\n{enough} of {X.shape[1]} components keep 95 % of the variance.\n")
    _write_demo(output, model, images, enough)
    typer.echo(f"Next:\n  fastdr info {output}/digits.fdr\n"
               f"  fastdr fit {output}/digits.npy -k 0.95 -o {output}/small.fdr\n"
               f"  fastdr transform {output}/small.fdr {output}/digits.npy -o {output}/scores.csv")


def _write_demo(output: Path, model: LinearModel, images: Any, chosen: int) -> None:
    """Write the pictures, the model and its data; say which file is what."""
    written = {"digits.fdr": "the model", "digits.npy": "the data"}
    model.save(output / "digits.fdr")
    with open_sink(output / "digits.npy") as sink:
        sink.write(images.data)
    try:
        from fastdr.plots import new_figure, reconstructions, scree

        figure = new_figure()
        scree(model, chosen=chosen, ax=figure.subplots())
        figure.savefig(output / "scree.png")
        figure = reconstructions(model, images.data[:10], shape=(8, 8), ks=[chosen, 16, 8, 4, 2, 1])
        figure.savefig(output / "digits.png")
        written |= {"scree.png": "variances and what they add up to",
                    "digits.png": "originals beside their reconstructions"}
    except ModuleNotFoundError as error:
        typer.echo(f"No pictures: {error}.\n", err=True)
    typer.echo("Written:")
    for name, content in written.items():
        typer.echo(f"  {output / name!s:36}  {content}")
    typer.echo()


def _loss_table(model: LinearModel, X: AnyArray, ks: Sequence[int]) -> str:
    rows = []
    for k in ks:
        measured = reconstruction_error(X, model.components[:k], model.mean, model.scale)
        loss = float(measured.sum()) / (len(X) - 1)
        left_out = float(model.variances[k:].sum())
        rows.append([str(k), f"{loss:.10f}", f"{left_out:.10f}",
                     f"{abs(loss - left_out) / model.total_variance:.1e}"])
    return _table(["k", "measured loss", "variance left out", "difference / total"], rows)


def _variance_table(model: LinearModel, limit: int) -> str:
    bound = model.report.get("variance_error")
    ratios = _ratios(model)
    kept = np.cumsum(ratios)
    rows = [[str(index + 1), f"{np.ldexp(variance, -2 * model.exponent):.8g}",
             "" if bound is None else f"{bound:.1e}",
             f"{100 * ratios[index]:.2f} %", f"{100 * kept[index]:.2f} %"]
            for index, variance in enumerate(model.variances[:limit])]
    text = _table(["component", "variance", "+/- at most", "ratio", "cumulative"], rows)
    more = len(model.variances) - limit
    return text if more <= 0 else f"{text}\n{'...':>9}  ({more} more)"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns two spaces apart, a rule below the head."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
                     for line in lines)


def _ratios(model: LinearModel) -> AnyArray:
    return model.variances / (model.total_variance or 1.0)


def _facts(model: LinearModel) -> dict[str, Any]:
    """Return what is known of a model as plain values."""
    total, left_out, noise, *variances = np.ldexp(
        [model.total_variance, model.left_out, model.noise_variance, *model.variances],
        -2 * model.exponent).tolist()
    known = {name: model.report.get(name) for name in ("solver", "method", "reason",
                                                       "variance_error")}
    return {
        "rows": model.count, "features": len(model.mean), "components": len(model.components),
        "rank": model.rank, "whiten": model.whiten, "standardized": model.scale is not None,
        "dtype": str(model.dtype), "total_variance": total,
        "left_out": left_out, "noise_variance": noise,
        "variances": variances, "ratios": _ratios(model).tolist(),
    } | {name: value for name, value in known.items() if value is not None}


def _parse_components(text: str | None) -> int | float | str | None:
    if text is None or text == "mle":
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise typer.BadParameter(f"{text!r} is not a whole number, a share between 0 and 1, or "
                                 f"mle.", param_hint="--components")
    return share


def _check_columns(model: LinearModel, source: Source, path: Path) -> None:
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


def _show(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _bar(source: Source, show: bool) -> Iterator[AnyArray]:
    """Yield the blocks of `source` with a bar on stderr."""
    from tqdm import tqdm

    with tqdm(total=source.shape[0], unit="row", unit_scale=True, disable=not show,
              file=sys.stderr) as bar:
        for block in source.blocks():
            yield block
            bar.update(len(block))


@contextmanager
def _faults_at_rows(path: Path, source: Source) -> Iterator[None]:
    """Name a NaN or infinity by its row in the file, not in the block where it was met."""
    try:
        yield
    except ValueError as error:
        if "contains NaN" in str(error) or "contains infinity" in str(error):
            _raise_first_fault(path, source)
        raise


def _raise_first_fault(path: Path, source: Source) -> None:
    first = 0
    for block in source.blocks():
        bad = ~np.isfinite(block)
        if bad.any():
            row, column = (int(index) for index in np.argwhere(bad)[0])
            name = f" ({source.columns[column]!r})" if source.columns else ""
            raise ValueError(f"{path}: row {first + row}, column {column}{name} is "
                             f"{block[row, column]}; remove or impute such values first.")
        first += len(block)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_json(facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts, allow_nan=False))


def _print_outcome(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(facts)
        return
    typer.echo(f"{_count(facts['rows'], 'row')} x {_count(facts['columns'], 'column')} written "
               f"to {facts['output']}")
    if "mean_squared_distance" in facts:
        typer.echo(f"mean squared distance to the original rows: "
                   f"{facts['mean_squared_distance']:.6g}")


def _reported(command: Callable[..., None]) -> Callable[..., None]:
    """Turn faults of data and files into one line on stderr and exit code 1, Ctrl-C into 130."""
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            typer.echo(f"fastdr: error: {text}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("fastdr: interrupted; nothing was written", err=True)
            raise typer.Exit(130) from None
    return run


def application() -> typer.Typer:
    """Return the command with its subcommands."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                      context_settings={"help_option_names": ["-h", "--help"]})

    @app.callback()
    def about(version: Annotated[bool, typer.Option(
            "--version", is_eager=True, callback=_print_version,
            help="Print the version and exit.")] = False) -> None:
        """Principal components of files of any size."""

    for command in (fit, transform, reconstruct, info, search, demo):
        app.command()(_reported(command))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastdr {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; the entry point of the script ``fastdr``."""
    if typer is None:
        sys.stderr.write('fastdr: the command line needs typer; run: pip install "fastdr[cli]"\n')
        sys.exit(2)
    signal.signal(signal.SIGTERM, _terminate)
    application()(prog_name="fastdr")


def _terminate(*_: object) -> NoReturn:
    """End through the exception handlers, which remove half-written files."""
    sys.exit(128 + signal.SIGTERM)
