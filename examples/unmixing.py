"""Four signals, mixed by six microphones that stand far from zero, and unmixed again.

A sine, a square wave, a saw-tooth and bursts are added up in six proportions, with offsets and a
little noise. Principal axes stay mixtures of them; independent component analysis finds each, up
to order, sign and scale. Run it as ``python examples/unmixing.py [FOLDER]``: it prints what it
claims and saves unmixing.png in FOLDER.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fastdr

ROWS = 100_000
NAMES = ["sine", "square", "saw-tooth", "bursts"]
NOISE = 0.01


def made():
    """Return recordings (ROWS, 6), the mixing matrix (6, 4) and the signals (ROWS, 4)."""
    rng = np.random.default_rng(1)
    t = np.linspace(0, ROWS / 200, ROWS)
    signals = np.column_stack([np.sin(2 * t), np.sign(np.sin(3.1 * t)), 2 * (0.37 * t % 1) - 1,
                               rng.laplace(size=ROWS) * (np.sin(0.9 * t) > 0)])
    signals = (signals - signals.mean(axis=0)) / signals.std(axis=0)
    mixing = rng.uniform(-1, 1, (6, 4))
    recordings = signals @ mixing.T + NOISE * rng.standard_normal((ROWS, 6))
    return recordings + 1000 * rng.uniform(1, 2, 6), mixing, signals


def amari(product):
    """Return how far a square matrix is from a scaled permutation: 0 for one, 1 at most."""
    size = np.abs(product)
    rows = (size.sum(axis=1) / size.max(axis=1) - 1).sum()
    columns = (size.sum(axis=0) / size.max(axis=0) - 1).sum()
    return (rows + columns) / (2 * len(size) * (len(size) - 1))


def matched(found, signals):
    """Return for each signal its index in `found` and the correlation with it."""
    size = np.corrcoef(found, signals, rowvar=False)[:found.shape[1], found.shape[1]:]
    best = np.abs(size).argmax(axis=0)
    return best, size[best, np.arange(signals.shape[1])]


def picture(columns, path):
    """Save the first rows of each set of signals, one column of panels for each."""
    figure, panels = plt.subplots(4, len(columns), figsize=(12, 6), sharex=True,
                                  layout="constrained")
    for panel_column, (title, values) in zip(panels.T, columns.items(), strict=True):
        panel_column[0].set_title(title)
        for index, panel in enumerate(panel_column):
            panel.plot(values[:2000, index], linewidth=0.8)
            panel.set(yticks=[])
        panel_column[-1].set_xlabel("row")
    for panel, name in zip(panels[:, 0], NAMES, strict=True):
        panel.set_ylabel(name)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(folder):
    """Print the claims and save the picture."""
    X, mixing, signals = made()
    ica = fastdr.FastICA(4).fit(X)
    pca = fastdr.PCA(4, whiten=True).fit(X)
    found, axes = ica.transform(X), pca.transform(X)
    order, correlation = matched(found, signals)
    for name, r in zip(NAMES, correlation, strict=True):
        print(f"{name + ':':10} correlation with its source {abs(r):.5f}")
    print(f"worst principal axis: correlation {np.abs(matched(axes, signals)[1]).min():.3f}")
    whitening = pca.components_ / np.sqrt(pca.explained_variance_)[:, None]
    print(f"Amari distance: {amari(ica.components_ @ mixing):.5f} (ICA), "
          f"{amari(whitening @ mixing):.3f} (PCA)")
    back = ica.inverse_transform(found)
    print(f"recordings from the sources: error {np.sqrt(np.mean((back - X) ** 2)):.4f}, "
          f"of which the noise added {NOISE}")
    print(f"gradient at the answer: {ica.certificate_['gradient']:.1e} after {ica.n_iter_} steps")
    path = Path(folder) / "unmixing.png"
    picture({"signals": signals, "four of six recordings": X, "principal axes": axes,
             "unmixed": found[:, order] * np.sign(correlation)}, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
