"""Handwritten digits told apart from a fourth of the numbers, in a scikit-learn pipeline.

PCA is fitted to training images only; test images are moved by the same mean and turned to the
same axes before the classifier sees them, which is what a pipeline does. How many axes to keep is
chosen by cross-validation inside the training images. Run it as
``python examples/digits_pipeline.py [FOLDER]``: it prints what it claims and saves
digits_pipeline.png in FOLDER.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import fastdr

KS = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64]
ENOUGH = 0.005  # of the best accuracy that fewer axes may lose


def fewest(results):
    """Return the index of the least k whose mean accuracy is within ENOUGH of the best."""
    accuracy = results["mean_test_score"]
    return int(np.argmax(accuracy >= accuracy.max() - ENOUGH))


def picture(search, plain, X, y, path):
    """Save accuracy against the number of axes, and the first two scores of each image."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    accuracy = 100 * search.cv_results_["mean_test_score"]
    spread = 100 * search.cv_results_["std_test_score"]
    chosen = search.best_params_["pca__n_components"]
    panels[0].errorbar(KS, accuracy, spread, marker="o", markersize=4, capsize=3,
                       label="cross-validated, ± one deviation of five folds")
    panels[0].axhline(100 * plain, color="black", linestyle="--", linewidth=1,
                      label="all 64 pixels, test images")
    panels[0].axvline(chosen, color="0.6", linewidth=1, label=f"chosen: k = {chosen}")
    panels[0].set(title="nearest neighbours of k scores", xscale="log", xlabel="axes kept, k",
                  ylabel="images told right (%)", xticks=KS, ylim=(0, 103))
    panels[0].set_xticks(KS, list(map(str, KS)))
    panels[0].minorticks_off()
    panels[0].legend(loc="lower right", fontsize="small")
    Z = search.best_estimator_.named_steps["pca"].transform(X)
    shown = panels[1].scatter(Z[:, 0], Z[:, 1], c=y, s=6, cmap="tab10", vmin=-0.5, vmax=9.5)
    panels[1].set(title="all images on the first two axes", xlabel="score 1", ylabel="score 2")
    figure.colorbar(shown, ax=panels[1], ticks=range(10), label="digit")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(folder):
    """Print the claims and save the picture."""
    X, y = load_digits(return_X_y=True)
    train, test, known, asked = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    print(f"{len(train)} images to train, {len(test)} to test, {X.shape[1]} pixels each")
    classifier = KNeighborsClassifier(3)
    plain = classifier.fit(train, known).score(test, asked)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    search = GridSearchCV(make_pipeline(fastdr.PCA(), classifier), {"pca__n_components": KS},
                          cv=folds, refit=fewest).fit(train, known)
    for k, accuracy in zip(KS, search.cv_results_["mean_test_score"], strict=True):
        print(f"k = {k:2}: {accuracy:.3f} cross-validated")
    pca = search.best_estimator_.named_steps["pca"]
    print(f"chosen: {pca.n_components_} axes, which keep "
          f"{pca.explained_variance_ratio_.sum():.1%} of the variance")
    print(f"test images told right: {search.score(test, asked):.4f} from "
          f"{pca.n_components_} scores, {plain:.4f} from {X.shape[1]} pixels")
    by_hand = (test - train.mean(axis=0)) @ pca.components_.T
    print("test images use the mean and axes of the training images, to "
          f"{np.abs(pca.transform(test) - by_hand).max():.0e}")
    path = Path(folder) / "digits_pipeline.png"
    picture(search, plain, X, y, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
