"""Pictures of rows: what they show, for every kind of model, in blocks, within their refusals."""

import io

import numpy as np
import pytest

import fastdr
from fastdr import diagnostics, limits
from fastdr.sources import BlockSource

pytest.importorskip("matplotlib")
from fastdr import canvas, plots  # noqa: E402


@pytest.fixture(scope="module")
def pca(wine):
    return fastdr.PCA(standardize=True).fit(wine)


@pytest.fixture(scope="module")
def classes():
    from sklearn.datasets import load_wine
    return load_wine().target


@pytest.fixture(scope="module")
def mixed():
    """Three independent signals in 13 proportions, with a little noise."""
    rng = np.random.default_rng(2)
    return rng.uniform(size=(2000, 3)) @ rng.uniform(size=(3, 13)) + 1e-3 * rng.normal(
        size=(2000, 13))


@pytest.fixture(scope="module")
def models(wine, classes, mixed):
    """A fitted estimator of every kind, by name."""
    return {
        "PCA": fastdr.PCA(standardize=True).fit(wine),
        "LDA": fastdr.LinearDiscriminantAnalysis(shrinkage=0.1).fit(wine, classes),
        "ICA": fastdr.FastICA(3).fit(mixed),
        "AE": fastdr.AutoEncoder((8, 2), max_epochs=2, random_state=0).fit(wine),
    }


def drawn(ax):
    """Points of all scatters, in the order of drawing; the picture can be saved."""
    ax.figure.savefig(io.BytesIO())
    return np.concatenate([np.asarray(each.get_offsets()) for each in ax.collections])


@pytest.mark.parametrize(("kind", "label"), [
    ("PCA", "component 2 (19.2 % of the variance)"),
    ("LDA", "discriminant 2 (0.865 % of the separation)"), ("ICA", "source 2"), ("AE", "score 2")])
def test_scores_are_those_of_transform(models, wine, mixed, kind, label):
    rows = mixed if kind == "ICA" else wine
    for given in (models[kind], models[kind].model_):
        ax = plots.scores(given, rows)
        np.testing.assert_array_equal(drawn(ax), models[kind].transform(rows)[:, :2])
        assert ax.get_ylabel().startswith(label)


def test_colours_tell_classes_or_numbers(pca, wine, classes):
    ax = plots.scores(pca, wine, np.array(["a", "b", "c"])[classes], axes=(3, 1))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b", "c"]
    assert [len(each.get_offsets()) for each in ax.collections] == np.bincount(classes).tolist()
    np.testing.assert_allclose(np.asarray(ax.collections[1].get_offsets()),
                               pca.transform(wine)[classes == 1][:, [2, 0]])
    for numbers in (wine[:, 0], np.arange(len(wine))):
        ax = plots.scores(pca, wine, numbers)
        assert ax.get_legend() is None
        np.testing.assert_array_equal(ax.collections[0].get_array(), numbers)
        assert ax.figure.axes[1].get_ylabel() == "labels"


def test_labels_that_have_a_name_give_it(pca, wine):
    pandas = pytest.importorskip("pandas")
    ax = plots.scores(pca, wine, pandas.Series(wine[:, 0], name="alcohol"))
    assert ax.figure.axes[1].get_ylabel() == "alcohol"


NAMES = ["_a", "price ($) per lb ($)", "$\\foo$"]


def test_names_of_classes_and_features_are_no_formulas_and_all_there(wine, classes):
    named = np.array(NAMES)[classes]
    lda = fastdr.LinearDiscriminantAnalysis(shrinkage=0.1).fit(wine, named)
    some = wine[classes > 0], named[classes > 0]
    two = fastdr.LinearDiscriminantAnalysis(shrinkage=0.1).fit(*some)
    pca = fastdr.PCA(3).fit(wine[:, :3])
    pictures = [plots.scores(pca, wine[:, :3], named),
                plots.biplot(pca, wine[:, :3], named, names=NAMES),
                plots.discriminants(lda, wine, named), plots.loadings(pca, names=NAMES)]
    for ax in (*pictures, plots.discriminants(two, *some)):
        ax.figure.savefig(io.BytesIO())  # a formula that is none would end here
        found = ax.get_legend().get_texts() if ax.get_legend() else ax.get_yticklabels()
        shown = {text.get_text().replace(r"\$", "$").strip() for text in found}
        assert shown >= set(NAMES[1:] if len(shown) == 2 else NAMES)


def test_rows_whose_number_is_not_known_are_grey(pca, wine):
    numbers = np.where(wine[:, 0] > 13, np.nan, wine[:, 0])
    points = plots.scores(pca, wine, numbers).collections[0]
    points.update_scalarmappable()
    grey = (np.abs(points.get_facecolor()[:, :3] - np.array([107, 114, 128]) / 255) < 1e-9).all(1)
    np.testing.assert_array_equal(grey, np.isnan(numbers))


def test_many_rows_are_thinned_and_the_title_says_so(pca, wine, monkeypatch):
    monkeypatch.setattr(canvas, "MANY_ROWS", 100)
    ax = plots.scores(pca, wine, np.arange(len(wine)) % 2)
    assert ax.get_title() == "89 of 178 rows"
    assert len(drawn(ax)) == 89


def test_sources_of_blocks_are_drawn_as_arrays_are(pca, wine):
    def blocks():
        return (wine[start:start + 50] for start in range(0, len(wine), 50))

    stream = BlockSource(blocks, 13)
    np.testing.assert_allclose(drawn(plots.scores(pca, stream)), drawn(plots.scores(pca, wine)))
    assert plots.errors(pca, stream, k=3).texts[-1].get_text() == (
        plots.errors(pca, wine, k=3).texts[-1].get_text())


@pytest.mark.parametrize("whiten", [False, True, "zca"])
def test_biplot_puts_rows_and_features_on_the_same_axes(wine, whiten):
    """Gabriel: scores of unit variance times loadings are the rows in those two components."""
    fitted = fastdr.PCA(standardize=True, whiten=whiten).fit(wine)
    ax = plots.biplot(fitted, wine, features=13, names=[f"f{i}" for i in range(13)])
    points = np.asarray(ax.collections[0].get_offsets())
    arrows = np.column_stack([ax.collections[1].U, ax.collections[1].V])
    named = [int(text.get_text()[1:]) for text in ax.texts]
    assert sorted(named) == list(range(13))
    np.testing.assert_allclose(points.std(axis=0, ddof=1), 1)
    order = np.argsort(-np.hypot(*fitted.loadings()[:, :2].T), kind="stable")
    scale = arrows / fitted.loadings()[order, :2]
    np.testing.assert_allclose(scale, scale[0, 0])
    ax.figure.savefig(io.BytesIO())
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    assert ((arrows > [left, low]) & (arrows < [right, high])).all()


def test_names_stay_inside_the_picture_and_apart(pca, wine):
    names = [f"a rather long name {index}" for index in range(13)]
    ax = plots.biplot(pca, wine, names=names, features=13)
    ax.figure.savefig(io.BytesIO())
    frame = ax.get_window_extent()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(one.overlaps(other) for index, one in enumerate(boxes)
                   for other in boxes[:index])


@pytest.mark.parametrize("places", [[0.0, 0.0, 0.0], [3.0, 1.0, 1.2, -5.0], [1.0], []])
def test_spread_out(places):
    moved = canvas.spread_out(places, 0.5)
    order = np.argsort(places, kind="stable")
    assert (np.diff(moved[order]) >= 0.5 - 1e-15).all()
    if places and min(np.diff(sorted(places)), default=1) >= 0.5:
        np.testing.assert_array_equal(moved, places)


def test_errors_show_every_row_and_mark_those_beyond(wine):
    X = np.random.default_rng(3).standard_normal((400, 8))
    X[[7, 250]] += np.array([[6.0], [9.0]])
    whole = fastdr.PCA().fit(X[8:250])
    values, limit = diagnostics.spe(whole, X, 3), limits.spe_limit(whole, 3, 0.99)
    ax = plots.errors(whole, X, k=3)
    assert sum(bar.get_height() for bar in ax.patches) == 400
    marks = ax.lines[1].get_xdata()
    np.testing.assert_array_equal(np.sort(marks), np.sort(values[values > limit]))
    assert {"7", "250"} <= {text.get_text() for text in ax.texts[:-1]}
    assert f"{len(marks)} of 400 rows beyond" in ax.texts[-1].get_text()
    few = fastdr.PCA(3).fit(X[8:250])  # knows only the sum of what it left out
    shown = plots.errors(few, X).texts[-1].get_text()
    assert f"limit {limits.spe_limit_of(diagnostics.spe(few, X), 0.99):.3g}" in shown
    assert "limit 50\n" in plots.errors(few, X, limit=50).texts[-1].get_text()


@pytest.mark.parametrize("factor", [1e3, 1e8, 1e60])
def test_errors_of_outliers_take_no_more_bars(wine, factor):
    pca = fastdr.PCA(3).fit(wine)
    ax = plots.errors(pca, np.vstack([wine, factor * np.arange(13.0)]))
    assert sum(bar.get_height() for bar in ax.patches) == 179
    assert len(ax.patches) <= 200
    assert [text.get_text() for text in ax.texts[:-1]] == ["178"]


def test_errors_of_other_models_are_their_reconstruction_errors(models, wine):
    values = models["AE"].reconstruction_error(wine, per_row=True)
    ax = plots.errors(models["AE"], wine, limit=np.median(values))
    assert len(ax.lines[1].get_xdata()) == len(wine) // 2


def test_discriminants_mark_class_means(models, wine, classes):
    lda = models["LDA"]
    ax = plots.discriminants(lda, wine, classes)
    points = drawn(ax)
    np.testing.assert_allclose(points[-3:], lda.transform(lda.means_)[:, :2], atol=1e-10)
    two = fastdr.LinearDiscriminantAnalysis().fit(wine[classes < 2], classes[classes < 2])
    ax = plots.discriminants(two, wine[classes < 2], classes[classes < 2])
    assert sum(bar.get_height() for bar in ax.patches) == np.sum(classes < 2)
    np.testing.assert_allclose([line.get_xdata()[0] for line in ax.lines],
                               two.transform(two.means_)[:, 0], atol=1e-10)
    assert ax.get_ylabel() == "rows"


def test_sources_are_drawn_apart(models, mixed):
    ax = plots.sources(models["ICA"], mixed, rows=100)
    signals = models["ICA"].transform(mixed)[:100]
    curves = [line.get_ydata() for line in ax.lines]
    for curve, signal, above in zip(curves, signals.T, [None, *curves], strict=False):
        np.testing.assert_allclose(np.corrcoef(curve, signal)[0, 1], 1)
        np.testing.assert_allclose(curve.std(), 1)
        assert above is None or above.min() > curve.max()
    assert len(plots.sources(models["ICA"], mixed, rows=9999).lines[0].get_ydata()) == len(mixed)


def test_refusals(models, pca, wine, classes):
    with pytest.raises(ValueError, match=r"labels has shape \(3,\); expected \(178,\)"):
        plots.scores(pca, wine, [1, 2, 3])
    with pytest.raises(ValueError, match="labels has 178 different values; colours tell at most"):
        plots.scores(pca, wine, [f"row {index}" for index in range(len(wine))])
    for axes in ((1, 14), (0, 1), (1,), (1.5, 2)):
        with pytest.raises(ValueError, match="two whole numbers from 1 to the 13 scores"):
            plots.scores(pca, wine, axes=axes)
    with pytest.raises(ValueError, match="X has 12 features, but this model takes rows of 13"):
        plots.scores(pca, wine[:, 1:])
    with pytest.raises(TypeError, match="mixes strings and other labels"):
        plots.scores(pca, wine, np.array([None, "b", "c"])[classes])
    bad = wine.copy()
    bad[170, 2] = np.nan
    with pytest.raises(ValueError, match="NaN at row 170, column 2"):
        plots.scores(pca, bad)
    with pytest.raises(TypeError, match="expected a fitted estimator or model of fastdr, got list"):
        plots.scores([1], wine)
    with pytest.raises(TypeError, match="a fitted FastICA or an UnmixingModel, got FastICA that"):
        plots.sources(fastdr.FastICA(), wine)
    with pytest.raises(TypeError, match="LinearDiscriminantAnalysis or a DiscriminantModel, got P"):
        plots.discriminants(pca, wine, classes)
    with pytest.raises(ValueError, match="nothing is left out of the reconstruction; pass k"):
        plots.errors(pca, wine)
    with pytest.raises(ValueError, match="features=0 is not a whole number"):
        plots.biplot(pca, wine, features=0)
    with pytest.raises(ValueError, match="names has 2 entries for 13 features"):
        plots.biplot(pca, wine, names=["a", "b"])
    flat = fastdr.PCA().fit(np.outer(np.arange(5.0), [1, 2]))
    with pytest.raises(ValueError, match="the model has rank 1, so a score of the other axes is 0"):
        plots.biplot(flat, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="rows=1 is not a whole number of at least 2"):
        plots.sources(models["ICA"], wine, rows=1)


def test_columns_of_a_frame_must_be_those_fitted(wine):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(wine, columns=[f"f{index}" for index in range(13)])
    fitted = fastdr.PCA().fit(frame)
    assert "f3" in {text.get_text() for text in plots.biplot(fitted, frame, features=13).texts}
    for draw in (plots.scores, diagnostics.t_squared):
        with pytest.raises(ValueError, match="other columns, or in another order"):
            draw(fitted, frame[frame.columns[::-1]])
