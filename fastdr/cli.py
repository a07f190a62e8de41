"""The command ``fastdr``: fit, plan, transform, reconstruct, info, plot, search and demo."""

from __future__ import annotations

import math
import signal
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np

from fastdr import __version__
from fastdr.certificate import power_text
from fastdr.checkpoints import CheckpointedSource, origin_of
from fastdr.cli_demo import demo
from fastdr.cli_plot import check_columns, faults_at_rows, plot
from fastdr.cli_rows import FORMATS, ROWS, WAIT, opened, refuse_given, rows_at, scores_of
from fastdr.cli_text import Weighting, fit_text, one_line, print_certificate, print_json, search
from fastdr.dimension import RULES
from fastdr.inputs import as_bytes
from fastdr.models import LinearModel, times_power
from fastdr.outputs import check_output
from fastdr.persistence import load_axes, load_values
from fastdr.progress import with_progress
from fastdr.sinks import open_sink
from fastdr.sparse import SparseSource
from fastdr.summaries import (
    TABLE_ROWS,
    facts_of,
    singular_facts,
    singular_table,
    variance_table,
)
from fastdr.threads import set_num_threads

try:
    import typer

    from fastdr.cli_rows import Columns, Header, Member
except ModuleNotFoundError:  # main() says how to install it
    typer = None  # type: ignore[assignment]

SQUARES = ("total_variance", "left_out", "noise_variance")  # in squared units of the rows
RATED_BYTES = 1 << 20  # of rows from which a rate says something
OPTIONS = {"n_components=": "--components ", "svd_solver=": "--solver "}  # and Python's names


class Whiten(StrEnum):
    """Kinds of whitening."""

    pca = "pca"
    zca = "zca"


class Solver(StrEnum):
    """How the components are computed."""

    auto = "auto"
    lapack = "lapack"
    svd = "svd"
    lanczos = "lanczos"
    power = "power"
    randomized = "randomized"


def _check_memory(text: str | None) -> str | None:
    """Refuse what is no number of bytes as a fault of usage."""
    try:
        as_bytes(1 if text is None else text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number of bytes, or one with KB, MB, GB, TB, "
                                 "KiB, MiB, GiB or TiB.") from None
    return text


def _check_seconds(seconds: float) -> float:
    if math.isnan(seconds):
        raise typer.BadParameter("nan is not a number of seconds.")
    return seconds


if typer is not None:
    Rows = Annotated[Path, typer.Argument(metavar="INPUT", help=ROWS)]
    Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `fit` wrote.")]
    Output = Annotated[Path, typer.Option("--output", "-o", help=f"File to write: {FORMATS}.")]
    Memory = Annotated[str | None, typer.Option(
        metavar="SIZE", callback=_check_memory,
        help="Memory to use at most, like 500MB, beside the program itself.")]
    Components = Annotated[str | None, typer.Option(
        "--components", "-k", metavar="N|SHARE|RULE", help="How many to keep: a number, a "
        "share of the variance like 0.95, or mle, gavish-donoho or parallel. Default: all.")]
    SolverName = Annotated[Solver, typer.Option(
        metavar="NAME", help=f"How to compute: {', '.join(Solver)}.")]
    Threads = Annotated[int | None, typer.Option(min=1, help="Threads; default: all CPUs.")]
    AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
    Missing = Annotated[bool, typer.Option(
        "--missing", help="INPUT has cells that are missing: blank, null or NaN.")]
    Dask = Annotated[str | None, typer.Option(
        metavar="ADDRESS", help="Let the workers of the Dask scheduler there read INPUT and "
        "compute, like tcp://host:8786; each needs fastdr, and INPUT under the same path.")]
    DaskTimeout = Annotated[float, typer.Option(
        metavar="SECONDS", min=0.1, help="How long to wait for the scheduler and a worker.")]
    Progress = Annotated[bool | None, typer.Option(
        "--progress/--no-progress", help="Progress bar on stderr; default: on a terminal.")]


def fit(source: Rows,
        output: Annotated[Path, typer.Option("--output", "-o", help="Model to write (.fdr).")],
        components: Components = None,
        whiten: Annotated[Whiten | None, typer.Option(help="Scores of unit variance.")] = None,
        standardize: Annotated[bool, typer.Option(
            "--standardize", help="Divide each column by its standard deviation.")] = False,
        solver: SolverName = Solver.auto,
        text: Annotated[bool, typer.Option(
            "--text", help="INPUT has texts: a line each (.txt), or JSON with \"text\" and perhaps "
            "\"title\" (.jsonl). Makes an index for `search`.")] = False,
        weighting: Annotated[Weighting, typer.Option(
            metavar="NAME", help=f"Of words, with --text: {', '.join(Weighting)}.")]
        = Weighting.tfidf,
        missing: Missing = False,
        member: Member = None, columns: Columns = None, header: Header = None,
        memory: Memory = None,
        checkpoint: Annotated[float, typer.Option(
            metavar="SECONDS", callback=_check_seconds, help="Save the state of a long fit beside "
            "OUTPUT so often; the same command goes on from there if it was stopped. Negative: "
            "never.")] = 30.0,
        threads: Threads = None, progress: Progress = None, as_json: AsJson = False,
        dask: Dask = None, dask_timeout: DaskTimeout = WAIT) -> None:
    """Fit a principal component analysis to the rows of INPUT."""
    # takes scikit-learn along, which the other commands do not need
    from fastdr.pca import PCA

    set_num_threads(threads)
    kept = _parse_components(components)
    check_output(output, source)
    checkpoint = checkpoint if dask is None else -1.0  # workers that die are replaced
    if text:
        refuse_given("cannot be given with --text", {
            "--whiten": whiten, "--standardize": standardize, "--solver": solver != Solver.auto,
            "--missing": missing, "--member": member, "--columns": columns,
            "--header": header is not None, "--memory": memory, "--dask": dask})
        fit_text(source, output, kept, weighting, as_json)
        return
    refuse_given("needs --text", {"--weighting": weighting != Weighting.tfidf})
    with rows_at(source, member, columns, memory, header, dask, dask_timeout, missing) as rows:
        start = time.perf_counter()
        estimator = PCA(kept, whiten=whiten.value if whiten else False, standardize=standardize,
                        svd_solver=solver.value, progress=_show(progress), max_memory=memory,
                        missing="em" if missing else None)
        tall = rows.shape[0] is None or rows.shape[0] >= rows.shape[1]
        summed = (tall and checkpoint >= 0 and not missing and not isinstance(rows, SparseSource)
                  and estimator._way(rows).on == "covariance")
        saved = CheckpointedSource(
            rows, output.with_name(f"{output.name}.checkpoint"),
            origin_of(source, output, member=member, columns=columns, memory=memory, header=header),
            checkpoint, _show(progress))
        with faults_at_rows(source, rows, missing), _resumable(saved) if summed else nullcontext():
            model = estimator.fit(saved if summed else rows).model_
    seconds = time.perf_counter() - start
    model.save(output)
    if summed:
        saved.remove()
    size = model.count * len(model.mean) * rows.dtype.itemsize
    rates = size >= RATED_BYTES  # of less, starting takes the time
    facts = {"model": str(output), "seconds": round(seconds, 3),
             "rows_per_second": round(model.count / seconds) if rates else None,
             "megabytes_per_second": round(size / seconds / 1e6, 3) if rates else None}
    facts |= facts_of(model)
    if as_json:
        print_json(facts)
        return
    typer.echo(f"{_count(model.count, 'row')} x {_count(len(model.mean), 'feature')}, "
               f"{_count(len(model.variances), 'component')} in {seconds:.2f} s "
               f"({model.report.get('method', solver.value)})")
    if rates:
        typer.echo(f"{facts['rows_per_second']:.3g} rows/s, "
                   f"{facts['megabytes_per_second']:.3g} MB/s")
    typer.echo()
    typer.echo(variance_table(model, TABLE_ROWS))
    print_certificate(model)
    typer.echo(f"\nmodel written to {output}")


def plan(source: Rows, components: Components = None,
         solver: SolverName = Solver.auto,
         missing: Missing = False,
         member: Member = None, columns: Columns = None, header: Header = None,
         memory: Memory = None, threads: Threads = None, as_json: AsJson = False) -> None:
    """Tell how `fit` would go about INPUT, and what it would cost; nothing is computed."""
    from fastdr.pca import PCA

    set_num_threads(threads)
    rows = opened(source, member, columns, None, header, missing)
    way = PCA(_parse_components(components), svd_solver=solver.value, max_memory=memory,
              missing="em" if missing else None).plan(rows)
    if as_json:
        print_json(asdict(way))
        return
    size, features = rows.shape
    typer.echo(f"{'an unknown number of' if size is None else size} rows x "
               f"{_count(features, 'feature')}\n")
    for line in str(way).splitlines():
        typer.echo(textwrap.fill(line, 80, subsequent_indent=" " * 10))


def transform(model: Model, source: Rows, output: Output, missing: Missing = False,
              member: Member = None, columns: Columns = None, header: Header = None,
              memory: Memory = None, threads: Threads = None, progress: Progress = None,
              as_json: AsJson = False, dask: Dask = None, dask_timeout: DaskTimeout = WAIT) -> None:
    """Write the scores of the rows of INPUT: their coordinates on the components."""
    set_num_threads(threads)
    check_output(output, model, source)
    fitted, done = load_axes(model), 0
    with rows_at(source, member, columns, memory, header, dask, dask_timeout, missing) as rows:
        check_columns(fitted, rows, source)
        names: Sequence[str] | None = [f"pc{index + 1}" for index in range(fitted.n_outputs)]
        if fitted.whiten == "zca":
            names = fitted.feature_names or rows.columns
        with faults_at_rows(source, rows, missing), open_sink(output, names) as sink:
            for scores in scores_of(rows, fitted, _show(progress), missing):
                sink.write(scores)
                done += len(scores)
    _print_outcome({"output": str(output), "rows": done, "columns": fitted.n_outputs}, as_json)


def reconstruct(model: Model, source: Rows, output: Output,
                scores: Annotated[bool, typer.Option(
                    "--scores", help="INPUT has scores that `transform` wrote.")] = False,
                member: Member = None, columns: Columns = None, header: Header = None,
                memory: Memory = None, threads: Threads = None, progress: Progress = None,
                as_json: AsJson = False) -> None:
    """Write the rows of INPUT as the model sees them, and how much of them was lost."""
    set_num_threads(threads)
    check_output(output, model, source)
    fitted, rows = load_axes(model), opened(source, member, columns, memory, header)
    if not scores:
        check_columns(fitted, rows, source)
    done, loss = 0, 0.0
    scaled, power = _at_unit_scale(fitted)
    names = fitted.feature_names or (None if scores else rows.columns)
    watched = with_progress(rows, "rows", leave=True) if _show(progress) else rows
    with faults_at_rows(source, rows), open_sink(output, names) as sink:
        for block in watched.blocks():
            if not scores:
                errors = scaled.reconstruction_error(times_power(block, power), per_row=True)
                loss += float(np.sum(errors))
                block = fitted.transform(block)
            sink.write(fitted.inverse_transform(block))
            done += len(block)
    outcome: dict[str, Any] = {"output": str(output), "rows": done, "columns": len(fitted.mean)}
    if not scores:
        outcome["mean_squared_distance"] = float(times_power(loss / done, -2 * power))
    _print_outcome(outcome, as_json)
    if not (scores or as_json):
        typer.echo("mean squared distance to the original rows: "
                   f"{power_text(loss / done, -2 * power, '.6g')}")


def _at_unit_scale(model: LinearModel) -> tuple[LinearModel, int]:
    """Return a model of the rows times 2**power, whose squared distances float64 holds."""
    scale = model.scale
    if scale is None:
        power = model.exponent
    else:
        power = -math.frexp(float(scale.max()))[1]
        scale = times_power(scale, power)
    return replace(model, mean=times_power(model.mean, power), scale=scale, exponent=0), power


def info(model: Model,
         everything: Annotated[bool, typer.Option("--all", help="Every component.")] = False,
         as_json: AsJson = False) -> None:
    """Describe a model file: principal axes, singular values or an index of texts."""
    fitted = load_values(model)
    known = facts_of(fitted) if isinstance(fitted, LinearModel) else singular_facts(fitted)
    if as_json:
        print_json({"model": str(model)} | known)
        return
    for name in ("kind", "rows", "features", "components", "rank", "whiten", "standardized",
                 "weighting", "dtype", "total_variance", "left_out", "noise_variance",
                 "frobenius_norm", "bound", "solver", "method", "reason"):
        if known.get(name) is not None:
            value = known[name]
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            if isinstance(fitted, LinearModel) and name in SQUARES:
                text = power_text(getattr(fitted, name), -2 * fitted.exponent, ".6g")
            typer.echo(textwrap.fill(f"{name.replace('_', ' '):16}{text}", 80,
                                     subsequent_indent=" " * 16))
    typer.echo()
    limit = len(fitted.components) if everything else TABLE_ROWS
    typer.echo(variance_table(fitted, limit) if isinstance(fitted, LinearModel)
               else singular_table(fitted, limit))
    print_certificate(fitted)


def _parse_components(text: str | None) -> int | float | str | None:
    if text is None or text in RULES:
        return text
    with suppress(ValueError):
        if (count := int(text)) >= 0:
            return count
    with suppress(ValueError):
        if 0 < (share := float(text)) < 1:
            return share
    raise typer.BadParameter(f"{text!r} is not a whole number of at least 0, a share between 0 and "
                             f"1, or {', '.join(RULES)}.", param_hint="--components")


def _show(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


@contextmanager
def _resumable(saved: CheckpointedSource) -> Iterator[None]:
    """Say that a fit goes on from a checkpoint, and that it may when it is interrupted."""
    done = max(saved.resumed(None)[0], saved.resumed("double")[0])
    if done:
        typer.echo(f"fastdr: going on from row {done}, see {saved.path}", err=True)
    try:
        yield
    except KeyboardInterrupt:
        if not saved.path.exists():
            raise
        typer.echo(f"fastdr: interrupted; the same command goes on from {saved.path}", err=True)
        raise typer.Exit(130) from None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_outcome(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(outcome)
        return
    typer.echo(f"{_count(outcome['rows'], 'row')} x {_count(outcome['columns'], 'column')} written "
               f"to {outcome['output']}")


def _reported(command: Callable[..., None]) -> Callable[..., None]:
    """Turn faults of data and files into one line on stderr and exit code 1, Ctrl-C into 130.

    Warnings are a line on stderr each.
    """
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning
                command(*args, **kwargs)
        except BrokenPipeError:  # as of `| head`: typer ends without a word
            raise
        except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError) as error:
            typer.echo(f"fastdr: error: {_one_line(error)}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("fastdr: interrupted; nothing was written", err=True)
            raise typer.Exit(130) from None
    return run


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"fastdr: warning: {_one_line(message)}", err=True)


def _one_line(message: object) -> str:
    """Return a message for the shell: on one line, with the names that options have there."""
    text = one_line(message) or type(message).__name__
    for name, option in OPTIONS.items():
        text = text.replace(name, option)
    return text


def application() -> typer.Typer:
    """Return the command with its subcommands."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                      context_settings={"help_option_names": ["-h", "--help"]})

    @app.callback()
    def about(version: Annotated[bool, typer.Option(
            "--version", is_eager=True, callback=_print_version,
            help="Print the version and exit.")] = False) -> None:
        """Principal components of files of any size."""

    for command in (fit, plan, transform, reconstruct, info, plot, search, demo):
        app.command()(_reported(command))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastdr {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    if typer is None:
        sys.stderr.write('fastdr: the command line needs typer; run: pip install "fastdr[cli]"\n')
        sys.exit(2)
    for name in ("SIGTERM", "SIGHUP"):  # a terminal that is closed; there is none on Windows
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _terminate)
    application()(prog_name="fastdr")


def _terminate(number: int, _: object) -> NoReturn:
    """End through the exception handlers, which remove half-written files."""
    sys.exit(128 + number)
