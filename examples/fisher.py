"""Two classes that their means do not tell apart, and Fisher's direction that does.

Within each class the two features vary together and widely, across the line between the class
means. Projected on that line the classes overlap; on w = S_W⁻¹ (m₁ - m₀) they hardly do. Run it as
``python examples/fisher.py [FOLDER]``: it prints what it claims and saves fisher.png in FOLDER.
"""

import sys
from math import erf, sqrt
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fastdr

ROWS = 400  # of each class
MEANS = np.array([[0.0, 0.0], [3.0, 0.2]])
COVARIANCE = np.array([[4.0, 3.2], [3.2, 3.0]])


def made():
    """Return rows (2 ROWS, 2) and their classes, 0 and 1."""
    rng = np.random.default_rng(4)
    y = np.repeat([0, 1], ROWS)
    return rng.standard_normal((2 * ROWS, 2)) @ np.linalg.cholesky(COVARIANCE).T + MEANS[y], y


def told(direction, X, y):
    """Return the separation of the classes along a direction, and the share of rows told apart.

    Separation is the squared distance of the projected means over the variance within classes;
    rows are told apart by the middle between the means.
    """
    first, second = (X[y == label] @ direction for label in (0, 1))
    variance = (first.var() + second.var()) / 2
    middle = (first.mean() + second.mean()) / 2
    right = np.mean((X @ direction > middle) == (y == 1))
    return (second.mean() - first.mean()) ** 2 / variance, right


def picture(X, y, directions, path):
    """Save the rows, both directions, and histograms of the rows projected on them."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    colours = ("tab:blue", "tab:orange")
    for label, colour in enumerate(colours):
        panels[0].scatter(*X[y == label].T, s=6, alpha=0.5, color=colour, label=f"class {label}")
    middle = X.mean(axis=0)
    for (name, direction), style in zip(directions.items(), ("-", "--"), strict=True):
        ends = middle + np.outer([-4, 4], direction)
        panels[0].plot(*ends.T, style, color="black", label=name)
    panels[0].set(aspect="equal", title="rows of two classes", xlabel="feature 0",
                  ylabel="feature 1", xlim=(-8, 11), ylim=(-8, 7))
    panels[0].legend(loc="lower right", fontsize="small")
    for panel, (name, direction) in zip(panels[1:], directions.items(), strict=True):
        separation, right = told(direction, X, y)
        scores = (X - middle) @ direction
        bins = np.linspace(scores.min(), scores.max(), 40)
        for label, colour in enumerate(colours):
            panel.hist(scores[y == label], bins, alpha=0.6, color=colour)
        panel.set(title=f"{name}:\n{right:.0%} told apart, separation {separation:.1f}",
                  xlabel="projected rows", ylabel="rows")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(folder):
    """Print the claims and save the picture."""
    X, y = made()
    lda = fastdr.LinearDiscriminantAnalysis().fit(X, y)
    first, second = lda.means_
    within = sum(np.cov(X[y == label], rowvar=False, ddof=0) for label in (0, 1)) / 2
    formula = np.linalg.solve(within, second - first)
    fisher = lda.coef_[0] / np.linalg.norm(lda.coef_)
    means = (second - first) / np.linalg.norm(second - first)
    print(f"Fisher's direction by fit:     {fisher.round(6)}")
    print(f"S_W⁻¹ (m₁ - m₀), of length 1:  {(formula / np.linalg.norm(formula)).round(6)}")
    print(f"difference of the means:       {means.round(6)}")
    directions = {"Fisher's direction": fisher, "means only": means}
    for name, direction in directions.items():
        separation, right = told(direction, X, y)
        print(f"{name + ':':20} separation {separation:6.3f}, told apart {right:.3f}")
    step = MEANS[1] - MEANS[0]
    best = step @ np.linalg.solve(COVARIANCE, step)
    print(f"best possible:       separation {best:6.3f}, told apart "
          f"{(1 + erf(sqrt(best / 8))) / 2:.3f} (of the true covariance)")
    path = Path(folder) / "fisher.png"
    picture(X, y, directions, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
