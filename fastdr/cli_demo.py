"""The command ``fastdr demo``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdr.cli_plot import write_picture
from fastdr.cli_text import print_certificate
from fastdr.models import LinearModel
from fastdr.sinks import open_sink
from fastdr.summaries import TABLE_ROWS, loss_table, variance_table

try:
    import typer
except ModuleNotFoundError:  # cli.main() says how to install it
    typer = None  # type: ignore[assignment]


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
    typer.echo(variance_table(model, TABLE_ROWS))
    print_certificate(model)
    typer.echo(f"\nThe loss of keeping k components, measured on the images, equals the sum of\n"
               f"the variances left out (total {model.total_variance:.6g}):\n")
    ks = [1, 2, 4, 8, 16, 32, model.rank]
    typer.echo(loss_table(model, X, ks))
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
        write_picture(figure, output / "scree.png")
        figure = reconstructions(model, images.data[:10], shape=(8, 8), ks=[chosen, 16, 8, 4, 2, 1])
        write_picture(figure, output / "digits.png")
        written |= {"scree.png": "variances and what they add up to",
                    "digits.png": "originals beside their reconstructions"}
    except ModuleNotFoundError as error:
        typer.echo(f"No pictures: {error}.\n", err=True)
    typer.echo("Written:")
    for name, content in written.items():
        typer.echo(f"  {output / name!s:36}  {content}")
    typer.echo()
