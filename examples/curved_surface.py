"""A curved surface in three dimensions: what two axes lose of it, and what two scores do.

Rows lie near a sheet that is rolled into a half pipe and waved along it. PCA's best plane cuts
through it; an auto-encoder with as many scores follows it. Run it as
``python examples/curved_surface.py [FOLDER]``: it prints what it claims and saves
curved_surface.png in FOLDER.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fastdr

ROWS = 3000  # and as many new ones to judge by
NOISE = 0.02


def made(rng):
    """Return rows (ROWS, 3) near the sheet, and where they lie on it (ROWS, 2)."""
    place = rng.uniform(-1, 1, (ROWS, 2))
    along, across = place.T
    angle = 1.3 * across
    X = np.column_stack([2 * along, np.sin(angle), np.cos(angle) + 0.4 * np.sin(3 * along)])
    return X + NOISE * rng.standard_normal(X.shape), place


def picture(X, place, models, path):
    """Save the rows, coloured by their place across, and what each model makes of them."""
    figure = plt.figure(figsize=(12, 4), layout="constrained")
    shown = {"rows": X} | {name: model.inverse_transform(model.transform(X))
                           for name, model in models.items()}
    for number, (name, rows) in enumerate(shown.items(), start=1):
        panel = figure.add_subplot(1, 3, number, projection="3d")
        panel.scatter(*rows.T, c=place[:, 1], s=3, cmap="viridis")
        lost = "" if name == "rows" else f": loses {models[name].reconstruction_error(X):.4f}"
        panel.set(title=name + lost, xlim=(-2, 2), ylim=(-1.2, 1.2), zlim=(-0.4, 1.6),
                  xticks=(-2, 0, 2), yticks=(-1, 0, 1), zticks=(0, 1))
        panel.view_init(elev=18, azim=-60)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(folder):
    """Print the claims and save the picture."""
    rng = np.random.default_rng(0)
    X, _ = made(rng)
    new, place = made(rng)
    pca = fastdr.PCA(2).fit(X)
    ae = fastdr.AutoEncoder(hidden=(32, 32, 2), activation="tanh", standardize=False,
                            learning_rate=0.01, batch_size=64, patience=25,
                            random_state=0).fit(X)
    models = {"PCA": pca, "auto-encoder": ae}
    lost = {name: model.reconstruction_error(new) for name, model in models.items()}
    print("mean squared distance of new rows to what two numbers make of them:")
    print(f"  PCA          {lost['PCA']:.5f}")
    print(f"  auto-encoder {lost['auto-encoder']:.5f}, {lost['PCA'] / lost['auto-encoder']:.0f} "
          "times less")
    print(f"  the noise off the sheet alone would leave {NOISE**2:.5f}")
    print(f"epochs: {ae.n_epochs_}, weights of epoch {ae.best_epoch_}")
    print(f"loss of PCA that training began near: {ae.pca_loss_:.5f}; reached: {ae.loss_:.5f}")
    path = Path(folder) / "curved_surface.png"
    picture(new, place, models, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
