"""Pictures: what they show, and that pyplot is left alone."""

import io
import subprocess
import sys

import numpy as np
import pytest

import fastdr

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure  # noqa: E402

from fastdr.plots import loadings, losses, reconstructions, scree  # noqa: E402


@pytest.fixture(scope="module")
def fitted(digits):
    return fastdr.PCA().fit(digits)


def test_scree_shows_the_variances_and_what_they_add_up_to(fitted):
    """Seed S17: sorted eigenvalues, cumulative share, choice of k."""
    for given in (fitted, fitted.model_):
        ax = scree(given, chosen=21)
        line = ax.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 65))
        np.testing.assert_allclose(line.get_ydata(), fitted.explained_variance_)
        (right,) = [axes for axes in ax.figure.axes if axes is not ax]
        share = 100 * np.cumsum(fitted.explained_variance_ratio_)
        np.testing.assert_allclose(right.lines[0].get_ydata(), share)
        assert right.texts[0].get_text() == f"k = 21 keeps {share[20]:.1f} %"


def test_scree_of_few_components_counts_the_total(digits):
    ax = scree(fastdr.PCA(3).fit(digits))
    right = ax.figure.axes[1]
    assert right.lines[0].get_ydata()[-1] < 50
    assert not right.texts


def test_scree_draws_where_it_is_told(fitted):
    figure = Figure()
    axes = figure.subplots(1, 2)
    assert scree(fitted, ax=axes[1]) is axes[1]
    assert not axes[0].lines
    figure.savefig(io.BytesIO())


def test_reconstructions_show_the_rows_in_k_components(fitted, digits):
    """Seed S18: images beside what is left of them."""
    figure = reconstructions(fitted, digits[:5], shape=(8, 8), ks=[64, 4], labels="abcde")
    images = [ax.images[0].get_array() for ax in figure.axes]
    assert len(images) == 15
    np.testing.assert_allclose(images[0], digits[0].reshape(8, 8))
    np.testing.assert_allclose(images[5], images[0], atol=1e-10)
    four = fastdr.PCA(4).fit(digits)
    back = four.inverse_transform(four.transform(digits[4:5]))
    np.testing.assert_allclose(images[14], back.reshape(8, 8), atol=1e-8)
    assert [ax.get_title() for ax in figure.axes[:5]] == list("abcde")
    assert [ax.get_ylabel() for ax in figure.axes[::5]] == ["original", "k = 64", "k = 4"]
    figure.savefig(io.BytesIO())


def test_reconstructions_undo_whitening_and_scaling(wine):
    plain = fastdr.PCA(standardize=True).fit(wine)
    white = fastdr.PCA(standardize=True, whiten=True).fit(wine)
    for given in (plain, white):
        figure = reconstructions(given, wine[:1], shape=(1, 13), ks=[13])
        np.testing.assert_allclose(figure.axes[1].images[0].get_array()[0], wine[0], rtol=1e-9)


def test_bad_requests(fitted, digits):
    with pytest.raises(ValueError, match="chosen=65 is not between 1 and the 64 components"):
        scree(fitted, chosen=65)
    with pytest.raises(ValueError, match="ks has 0; allowed are 1 to the 64 components fitted"):
        reconstructions(fitted, digits[:2], shape=(8, 8), ks=[3, 0])
    with pytest.raises(ValueError, match=r"shape=\(8, 7\) has 56 pixels but X has 64 features"):
        reconstructions(fitted, digits[:2], shape=(8, 7), ks=[3])
    with pytest.raises(TypeError, match="expected a fitted PCA .*, got PCA that is not fitted"):
        scree(fastdr.PCA())
    with pytest.raises(TypeError, match="got list"):
        scree([1.0])


def test_without_matplotlib(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r'run: pip install "fastdr\[plot\]"'):
        scree(fitted)


CODE = """
import io, sys
import fastdr, numpy
from fastdr.plots import scree
assert "matplotlib" not in sys.modules
scree(fastdr.PCA().fit(numpy.eye(4))).figure.savefig(io.BytesIO())
assert "matplotlib.pyplot" not in sys.modules
"""


def test_pyplot_is_never_imported():
    subprocess.run([sys.executable, "-P", "-c", CODE], check=True)


def test_scree_marks_a_share(fitted, digits):
    right = scree(fitted, chosen=0.9).figure.axes[1]
    k = int(np.argmax(np.cumsum(fitted.explained_variance_ratio_) > 0.9)) + 1
    assert right.texts[0].get_text().startswith(f"k = {k} keeps 90.")
    with pytest.raises(ValueError, match=r"chosen=0\.9: the 2 components .* only 0\.285"):
        scree(fastdr.PCA(2).fit(digits), chosen=0.9)


def intervals(ax):
    """Return the lower and upper ends of the error bars, and what the legend calls them."""
    (bars,) = ax.collections
    (name,) = ax.get_legend().get_texts()
    return np.array(bars.get_segments())[:, :, 1].T, name.get_text()


def test_scree_draws_certified_intervals(rng):
    rows = rng.standard_normal((400, 60)) * np.linspace(3, 1, 60)
    loose = fastdr.PCA(3, svd_solver="lanczos", tol=0.02, certificate="proof").fit(rows)
    for pca in (loose, fastdr.PCA().fit(rows), fastdr.PCA().fit(np.ldexp(rows, -440))):
        told, variances = pca.certificate_, pca.explained_variance_
        assert told.proved
        (lower, upper), name = intervals(scree(pca))
        eps = np.finfo(float).eps  # bars are drawn as distances from the variance
        np.testing.assert_allclose(lower, np.minimum(told.lower, variances), rtol=2 * eps)
        np.testing.assert_allclose(upper, np.maximum(told.upper, variances), rtol=2 * eps)
        width = (told.upper - told.lower).max()
        assert name == f"certified intervals, at most {width:.1e} wide"
    loose_width = np.diff(intervals(scree(loose))[0], axis=0).max()
    assert loose_width > 1e-6 * loose.explained_variance_[0]  # wider than any rounding


def test_scree_says_what_is_not_proved(rng):
    rows = rng.standard_normal((400, 60)) * np.linspace(3, 1, 60)
    pca = fastdr.PCA(3, svd_solver="lanczos", certificate="residual").fit(rows)
    residuals, variances = pca.certificate_.residuals, pca.explained_variance_
    (lower, upper), name = intervals(scree(pca))
    np.testing.assert_array_equal(lower, variances - residuals)
    np.testing.assert_array_equal(upper, variances + residuals)
    assert name == f"residuals, at most {residuals.max():.1e}; not proved"
    pca = fastdr.PCA(certificate=False).fit(rows)
    error, variances = pca.report_["variance_error"], pca.explained_variance_
    (lower, upper), name = intervals(scree(pca))
    np.testing.assert_array_equal(upper, variances + error)
    assert name == f"rounding, at most {error:.1e}; not proved"
    hand_made = fastdr.LinearModel(np.zeros(2), np.eye(2), [2.0, 1.0])
    assert not scree(hand_made).collections
    assert scree(hand_made).get_legend() is None


def test_scree_refuses_variances_beyond_floats(rng):
    pca = fastdr.PCA().fit(rng.standard_normal((50, 4)) * 1e200)
    with pytest.raises(ValueError, match="beyond the largest float64, .* divide the rows"):
        scree(pca)


def test_scree_of_tiny_data_has_their_units():
    X = np.ldexp(np.random.default_rng(0).standard_normal((50, 3)), -440)
    pca = fastdr.PCA().fit(X)
    assert pca.model_.exponent
    np.testing.assert_allclose(scree(pca).lines[0].get_ydata(), pca.explained_variance_)


def test_loadings_are_those_of_the_estimator(wine):
    pca = fastdr.PCA(standardize=True).fit(wine)
    ax = loadings(pca, components=4)
    np.testing.assert_array_equal(ax.images[0].get_array(), pca.loadings()[:, :4])
    assert len(ax.texts) == 13 * 4
    assert ax.texts[0].get_text() == f"{pca.loadings()[0, 0]:.2f}"
    assert ax.figure.axes[1].get_ylabel() == "correlation"
    wide = loadings(fastdr.PCA().fit(np.random.default_rng(0).standard_normal((30, 50))))
    assert not wide.texts
    assert wide.get_ylabel() == "feature"
    wide.figure.savefig(io.BytesIO())


def test_losses_of_an_auto_encoder_beside_pcas(wine):
    ae = fastdr.AutoEncoder((8, 2), max_epochs=4, random_state=0).fit(wine)
    for given in (ae, ae.model_):
        curves = {line.get_label(): np.asarray(line.get_ydata()) for line in losses(given).lines}
        np.testing.assert_array_equal(curves["rows in training"], ae.loss_curve_)
        np.testing.assert_array_equal(curves["rows held out"], ae.held_out_loss_curve_)
        np.testing.assert_array_equal(curves["PCA of as many scores"], ae.pca_loss_)
    flat = losses(fastdr.AutoEncoder((2,), max_epochs=2, random_state=0).fit(np.ones((9, 3))))
    assert flat.get_yscale() == "linear"  # of losses that are all 0
    untrained = fastdr.NetworkModel.from_weights([np.ones((1, 2)), np.ones((2, 1))],
                                                 [np.zeros(1), np.zeros(2)], ["identity"] * 2)
    with pytest.raises(ValueError, match="no epochs on record"):
        losses(untrained)
    with pytest.raises(TypeError, match="expected a fitted AutoEncoder or a NetworkModel, got PCA"):
        losses(fastdr.PCA().fit(wine))
    with pytest.raises(ValueError, match="components=0 is not a whole number"):
        loadings(fastdr.PCA().fit(wine), components=0)
