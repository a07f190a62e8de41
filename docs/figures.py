"""Everything the pages show that a program makes: pictures, and tables of bench/results.json.

``python docs/figures.py FOLDER`` makes them without Sphinx.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import curved_surface  # noqa: E402
import digits_pipeline  # noqa: E402
import fisher  # noqa: E402
import latent_semantics  # noqa: E402
import rulers  # noqa: E402
import unmixing  # noqa: E402
from sklearn.datasets import load_digits, load_wine  # noqa: E402

import fastdr  # noqa: E402
from bench import tables  # noqa: E402
from fastdr import plots  # noqa: E402


def make(folder):
    """Make every figure and table in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        for example in (rulers, digits_pipeline, fisher, unmixing, curved_surface,
                        latent_semantics):
            example.main(folder)
    for name, figure in pictures().items():
        figure.savefig(folder / f"{name}.png")
    measured = json.loads((ROOT / "bench" / "results.json").read_text("utf-8"))
    (folder / "speed.md").write_text("\n\n".join([
        tables.head(measured), "## Speed", tables.speed(measured), "## Memory",
        tables.memory(measured["memory"])]) + "\n", encoding="utf-8")


def pictures():
    """Return the pictures of `fastdr.plots` by name."""
    digits, wine = load_digits(), load_wine()
    pca, scaled = fastdr.PCA().fit(digits.data), fastdr.PCA(standardize=True).fit(wine.data)
    classes = wine.target_names[wine.target]
    lda = fastdr.LinearDiscriminantAnalysis(shrinkage=0.01).fit(digits.data, digits.target)
    mixed, *_ = unmixing.made()
    surface, _ = curved_surface.made(np.random.default_rng(0))
    ae = fastdr.AutoEncoder((32, 2), activation="tanh", max_epochs=60, random_state=0).fit(surface)
    return {
        "scree": plots.scree(pca, chosen=0.9).figure,
        "scores": plots.scores(pca, digits.data, digits.target).figure,
        "biplot": plots.biplot(scaled, wine.data, classes, names=wine.feature_names).figure,
        "loadings": plots.loadings(scaled, names=wine.feature_names).figure,
        "errors": plots.errors(pca, digits.data, k=20).figure,
        "images": plots.reconstructions(pca, digits.data[:10], shape=(8, 8), ks=[32, 16, 8, 4]),
        "discriminants": plots.discriminants(lda, digits.data, digits.target).figure,
        "sources": plots.sources(fastdr.FastICA(4).fit(mixed), mixed, rows=2000).figure,
        "losses": plots.losses(ae).figure,
    }


if __name__ == "__main__":
    make(Path(sys.argv[1]))
