"""Two rulers, one length: the axis that two readings share, and what the other axis holds.

Sticks are measured twice, by a ruler in shaku and by one in metres (a shaku is 10/33 m), and both
err a little. Centred readings lie along one axis, which principal component analysis finds: the
length that both rulers mean. Run it as ``python examples/rulers.py [FOLDER]``: it prints what it
claims and saves rulers.png in FOLDER.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fastdr

STICKS = 200
SHAKU = 10 / 33  # m
NOISE = 0.04  # of each ruler, in its own unit
ROUNDED = np.array([[0.96, 0.29], [0.29, -0.96]])  # the axes to two decimals
POINT = np.array([[-0.50, -0.09]])
RED, BLUE, GREY = "tab:red", "tab:blue", "0.6"


def made():
    """Return readings (STICKS, 2) in shaku and in metres, and the lengths in shaku."""
    rng = np.random.default_rng(3)
    lengths = rng.uniform(1, 4, STICKS)
    exact = np.column_stack([lengths, SHAKU * lengths])
    return exact + NOISE * rng.standard_normal(exact.shape), lengths


def error(estimate, lengths):
    """Return the root mean square of estimated lengths, both about their means."""
    return (estimate - estimate.mean() - lengths + lengths.mean()).std()


def variances(X, angles):
    """Return the variance of rows along unit vectors at `angles` to the first feature."""
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    return fastdr.project(X, directions).var(axis=0, ddof=1)


def picture(X, pca, path):
    """Save the readings, the same about their mean with both axes, and the variance around."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    panels[0].scatter(*X.T, s=8, color=GREY)
    panels[0].plot(*pca.mean_, "k+", markersize=12)
    panels[0].set(title="two readings of each stick", xlabel="shaku", ylabel="metres",
                  xlim=(0, 5), ylim=(0, 5), aspect="equal")
    centred = X - pca.mean_
    panels[1].scatter(*centred.T, s=8, color=GREY)
    for axis, colour, name in zip(pca.components_, (RED, BLUE), ("first", "second"), strict=True):
        panels[1].plot(*np.outer([-1.6, 1.6], axis).T, color=colour, linewidth=1.2,
                       label=f"{name} axis ({axis[0]:.2f}, {axis[1]:.2f})")
    foot = pca.components_[0] * (POINT[0] @ pca.components_[0])
    panels[1].plot(*np.array([POINT[0], foot]).T, color="black", linewidth=1)
    panels[1].plot(*POINT[0], "ko", markersize=5)
    panels[1].annotate("(-0.50, -0.09)", POINT[0], (-72, 26), textcoords="offset points",
                       arrowprops={"arrowstyle": "-", "linewidth": 0.6})
    panels[1].set(title="about their mean, with the axes", xlabel="shaku", ylabel="metres",
                  xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), aspect="equal")
    panels[1].legend(loc="lower left", fontsize="small")
    angles = np.linspace(-np.pi / 2, np.pi / 2, 361)
    panels[2].plot(np.degrees(angles), variances(centred, angles), color="black")
    for axis, value, colour in zip(pca.components_, pca.explained_variance_, (RED, BLUE),
                                   strict=True):
        angle = np.degrees(np.arctan(axis[1] / axis[0]))
        panels[2].plot([angle], [value], "o", color=colour, label=f"{angle:.1f}°: {value:.4f}")
    panels[2].set(title="variance along each direction", xlabel="angle to the first reading (°)",
                  ylabel="variance", xticks=range(-90, 91, 45), ylim=(0, None))
    panels[2].legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(folder):
    """Print the claims and save the picture."""
    X, lengths = made()
    pca = fastdr.PCA().fit(X)
    true = np.array([1, SHAKU]) / np.hypot(1, SHAKU)
    print(f"first axis by fit: {pca.components_[0].round(4)}, of exact rulers: {true.round(4)}")
    print(f"share of the variance along it: {pca.explained_variance_ratio_[0]:.4f}")
    most = variances(X, np.linspace(-np.pi / 2, np.pi / 2, 100_001)).max()
    print(f"variance along it: {pca.explained_variance_[0]:.6f}, "
          f"greatest of 100 001 directions: {most:.6f}")
    both = pca.transform(X)[:, 0] / np.hypot(1, SHAKU)
    print(f"error of the length: {error(X[:, 0], lengths):.4f} shaku by the first ruler, "
          f"{error(X[:, 1] / SHAKU, lengths):.4f} by the second, "
          f"{error(both, lengths):.4f} by both")
    found = fastdr.project(POINT, ROUNDED)
    print(f"(-0.50, -0.09) on axes (0.96, 0.29), (0.29, -0.96): {found[0].round(4)}")
    back = pca.inverse_transform(pca.transform(X))
    print(f"both coordinates give the readings back to {np.abs(back - X).max():.0e}, the first "
          f"alone to {np.sqrt(fastdr.PCA(1).fit(X).reconstruction_error(X)):.4f}")
    path = Path(folder) / "rulers.png"
    picture(X, pca, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
