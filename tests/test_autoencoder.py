"""AutoEncoder as an estimator: scikit-learn's contract, parameters, state, streams, threads."""

import copy
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator
from tolerance import subspace_angle

import fastdr
from fastdr.persistence import FORMAT
from fastdr.sources import BlockSource

KEPT = Path(__file__).parent / "data" / "network_model_1.fdr"


@pytest.mark.parametrize("parameters", [
    {}, {"hidden": (3,), "optimizer": "sgd", "learning_rate": 0.05, "batch_size": 8},
    {"hidden": (6, 2), "activation": "gelu", "tied": True, "noise": 0.1,
     "early_stopping": False}], ids=str)
def test_scikit_learn_finds_an_estimator_of_its_own_kind(parameters):
    for result in check_estimator(fastdr.AutoEncoder(max_epochs=20, **parameters), on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped


def test_c123_expectations(rng):
    scales = np.geomspace(1, 1e4, 10)
    X = rng.standard_normal((500, 3)) @ rng.standard_normal((3, 10))
    X = (X + 0.01 * rng.standard_normal((500, 10))) * scales
    pca = fastdr.PCA(3, standardize=True).fit(X)
    for init in ("pca", "random"):
        ae = fastdr.AutoEncoder((3,), init=init, random_state=0, learning_rate=0.01,
                                max_epochs=200, batch_size=50, early_stopping=False).fit(X)
        decoder = np.linalg.qr(ae.model_.weights[1])[0].T
        assert subspace_angle(pca.components_, decoder) < 1e-2
        # From random weights the last digits come slowly: directions that share a score.
        assert -ae.score(X) <= (1.01 if init == "pca" else 2) * ae.pca_loss_


def test_parameters_out_of_range_are_named(iris):
    for name, values in {
            "hidden": [(), (3, 0), (2.5,), "ab", 3], "decoder": [(0,), 4], "init": ["svd"],
            "standardize": ["yes", 1], "tied": ["yes", 1], "early_stopping": ["no", 0, None],
            "activation": [None, 5, ["relu", 5, "relu", "identity"], [["relu"]] * 4],
            "optimizer": ["lbfgs"], "schedule": ["step"], "learning_rate": [0, -1, np.nan, "x"],
            "momentum": [1.0, -0.1], "weight_decay": [-1e-9], "noise": [-1, np.inf],
            "batch_size": [0, 2.5, True], "max_epochs": [0], "patience": [0],
            "validation_fraction": [0, 1, 1.5], "dtype": ["f2", int, "complex128"]}.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name}=.* is not allowed; it must be"):
                fastdr.AutoEncoder(**{name: value}).fit(iris)


@pytest.mark.parametrize("hidden", [(1 << 31,), (4, 1 << 62, 4), (1 << 33, 1 << 31), (1 << 62,) * 3,
                                    (1 << 21, 1 << 21), (1 << 100,)], ids=str)
def test_layers_whose_weights_nobody_could_count_are_refused(iris, tmp_path, hidden):
    with pytest.raises(ValueError, match="layers of sizes .* are too large"):
        fastdr.AutoEncoder(hidden).fit(iris)
    path = tmp_path / "ae.fdr"
    fastdr.AutoEncoder((2,) * len(hidden), max_epochs=1, random_state=0).fit(iris).model_.save(path)
    sizes = (4, *(2,) * (2 * len(hidden) - 1), 4), (4, *hidden, *hidden[-2::-1], 4)
    was, now = (f"[{', '.join(map(str, each))}]".encode() for each in sizes)
    content = path.read_bytes()
    assert content.count(was) == 1
    content = content.replace(was, now)
    length = int.from_bytes(content[:8], "little") + len(now) - len(was)
    path.write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(ValueError, match="too large|not a whole number"):
        fastdr.load(path)


@pytest.mark.parametrize(("parameters", "words"), [
    ({"activation": "swish"}, "activation='swish' is not allowed; it must be one of identity"),
    ({"activation": ("relu", "identity")}, "activation names 2 layers; expected 4"),
    ({"activation": ("relu", "identity", "relu", "relu")}, "init='pca' needs a linear last layer"),
    ({"decoder": (5,), "tied": True}, "tied weights need a decoder that mirrors"),
])
def test_layers_that_do_not_fit_are_refused(iris, parameters, words):
    with pytest.raises(ValueError, match=words):
        fastdr.AutoEncoder((8, 2), **parameters).fit(iris)


def test_too_many_features_for_the_start_are_refused_before_the_rows_are_read():
    source = BlockSource(lambda: pytest.fail("rows were read"), 9000, 20_000)
    with pytest.raises(ValueError, match="9000 x 9000 matrix; more than 8192 features need init="):
        fastdr.AutoEncoder().fit(source)


def test_many_features_train_from_random_weights(rng):
    X = rng.standard_normal((9000, 1)).astype("f4") * np.ones(8200, "f4")
    ae = fastdr.AutoEncoder((2,), init="random", max_epochs=1, random_state=0, batch_size=1000,
                            early_stopping=False, learning_rate=1e-4).fit(X)
    assert np.isnan(ae.pca_loss_)
    assert ae.transform(X[:3]).shape == (3, 2)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_failed_fit_changes_nothing(iris):
    pd = pytest.importorskip("pandas")
    model = fastdr.AutoEncoder((2,), max_epochs=2, random_state=0)
    model.fit(pd.DataFrame(iris, columns=list("abcd")))
    before = dict(vars(model))
    bad = iris[:, :3].copy()
    bad[7, 1] = np.nan
    for attempt in (lambda: model.fit(bad), lambda: model.fit(iris[:1]),
                    lambda: model.partial_fit(iris[:, :3]), lambda: model.partial_fit(bad),
                    lambda: model.fit(BlockSource(lambda: iter([iris]), 4, rereadable=False))):
        with pytest.raises(ValueError, match=r"NaN at row 7|1 sample|expecting 4|only once"):
            attempt()
        assert vars(model) == before
    with pytest.raises(TypeError, match="dtype"):
        model.fit(np.array([["a"]]))
    assert vars(model) == before


def test_partial_fit_learns_and_a_bad_pass_changes_only_the_report(rng, floating):
    X = (rng.standard_normal((4000, 2)) @ rng.standard_normal((2, 8))).astype(floating)
    X += 0.1 * rng.standard_normal(X.shape).astype(floating)
    ae = fastdr.AutoEncoder((2,), init="random", learning_rate=0.01, batch_size=10,
                            random_state=0)
    for rows in np.array_split(X, 20):
        ae.partial_fit(rows)
    assert len(ae.loss_curve_) == ae.n_epochs_ == 20
    assert ae.loss_curve_[-1] < 0.2 * ae.loss_curve_[0]
    assert ae.model_.dtype == floating
    parameters = ae.model_.parameters
    ae.set_params(learning_rate=1e30)
    with pytest.warns(ConvergenceWarning, match="the loss of a pass was"):
        ae.partial_fit(X)
    assert ae.diverged_
    np.testing.assert_array_equal(ae.model_.parameters, parameters)
    ae.set_params(learning_rate=0.001).partial_fit(X)
    assert not ae.diverged_
    assert ae.n_epochs_ == 21


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("as_rows", [np.asarray, lambda X: iter(np.split(X, 3)),
                                     lambda X: fastdr.open_rows(X, block_rows=40)])
def test_a_pass_over_rows_that_are_not_finite_is_refused(iris, value, as_rows):
    ae = fastdr.AutoEncoder((2,), max_epochs=1, random_state=0).fit(iris).partial_fit(iris)
    before = dict(vars(ae))
    bad = iris.copy()
    bad[107, 2] = value
    with pytest.raises(ValueError, match=r"(NaN|infinity) at row 107, column 2"):
        ae.partial_fit(as_rows(bad))
    assert vars(ae) == before


def test_partial_fit_takes_the_features_of_the_fit_by_name(iris):
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame(iris, columns=list("abcd"))
    ae = fastdr.AutoEncoder((2,), max_epochs=1, random_state=0).fit(rows)
    before = ae.model_
    for other in (rows[["b", "a", "c", "d"]], rows.rename(columns={"a": "z"}), rows[["a", "b"]],
                  fastdr.open_rows(rows[["b", "a", "c", "d"]])):
        with pytest.raises(ValueError, match="feature names should match"):
            ae.partial_fit(other)
        assert ae.model_ is before
        assert list(ae.feature_names_in_) == list("abcd")
    assert ae.partial_fit(rows).model_.feature_names == tuple("abcd")


@pytest.mark.parametrize("change", [
    {"hidden": (3,)}, {"hidden": (4, 2)}, {"decoder": (3,)}, {"activation": ["tanh", "identity"]},
    {"tied": True}, {"dtype": "float32"}], ids=str)
def test_partial_fit_refuses_to_make_another_network(iris, change):
    ae = fastdr.AutoEncoder((2,), random_state=0).partial_fit(iris)
    before = ae.model_
    with pytest.raises(ValueError, match="cannot change between calls of partial_fit; fit anew"):
        ae.set_params(**change).partial_fit(iris)
    assert ae.model_ is before


@pytest.mark.parametrize("order", [("sgd", "adam"), ("adam", "sgd")], ids=str)
def test_another_optimizer_begins_with_no_memory(iris, order):
    """What SGD remembers is a sum, of which Adam makes steps of a hundred times the rate."""
    ae = fastdr.AutoEncoder((2,), init="random", optimizer=order[0], batch_size=50, random_state=0)
    for _ in range(20):
        ae.partial_fit(iris)
    fresh = copy.deepcopy(ae)
    ae.set_params(optimizer=order[1]).partial_fit(iris)
    fresh._state = None
    fresh.set_params(optimizer=order[1]).partial_fit(iris)
    np.testing.assert_array_equal(ae.model_.parameters, fresh.model_.parameters)
    assert ae.loss_ < 1.1 * ae.loss_curve_[-2]


def test_partial_fit_goes_on_from_a_fit_and_keeps_its_scale(iris):
    ae = fastdr.AutoEncoder((2,), max_epochs=3, random_state=0).fit(iris)
    mean, epochs = ae.mean_, ae.n_epochs_
    ae.partial_fit(iris[:20] + 5)
    np.testing.assert_array_equal(ae.mean_, mean)
    assert ae.n_epochs_ == epochs + 1
    source = BlockSource(lambda: iter([iris]), 4, 150)
    assert ae.partial_fit(source).n_epochs_ == epochs + 2


@pytest.mark.parametrize("dtype", ["u1", "i4", "f2", "f4", "f8", "?"])
@pytest.mark.parametrize("arithmetic", [None, "float32", np.float64])
def test_arithmetic_is_that_of_the_data_or_as_asked(rng, dtype, arithmetic):
    X = (rng.standard_normal((60, 5)) * 2 + 3).clip(0, 9).astype(dtype)
    ae = fastdr.AutoEncoder((4, 2), max_epochs=2, dtype=arithmetic, random_state=0).fit(X)
    natural = np.float32 if dtype in ("f2", "f4") else np.float64
    assert ae.model_.dtype == (natural if arithmetic is None else arithmetic)
    assert ae.transform(X).dtype == natural
    assert ae.decode(ae.encode(X)).dtype == natural


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.filterwarnings("ignore:.*never below:sklearn.exceptions.ConvergenceWarning")
def test_awkward_rows(standardize):
    rng = np.random.default_rng(0)
    cases = {
        "constant": np.full((12, 3), 7.0), "two rows": np.array([[1.0, 2], [3, 5]]),
        "one column": rng.standard_normal((20, 1)),
        "wide": rng.standard_normal((6, 50)), "far": rng.standard_normal((50, 4)) + 1e8,
        "tiny": 1e-170 * rng.standard_normal((50, 4)),
        "tiniest": 1e-306 * rng.standard_normal((50, 4)),
        "huge": 1e155 * rng.standard_normal((50, 4)),
        "partly constant": rng.standard_normal((40, 4)) * [1, 0, 1, 1] + 3}
    for name, X in cases.items():
        ae = fastdr.AutoEncoder((4, 2), max_epochs=3, standardize=standardize,
                                random_state=0).fit(X)
        assert ae.transform(X).shape == (len(X), 2), name
        assert np.isfinite(ae.model_.parameters).all(), name
        assert -ae.score(X) <= max(1.0, ae.pca_loss_) + 1e-6, name
        assert name in ("constant", "two rows", "one column") or -ae.score(X) > 1e-3, name
        if name in ("far", "tiny", "tiniest", "huge"):
            with np.errstate(over="ignore", under="ignore"):
                lost = np.abs(ae.decode(ae.encode(X)) - X).max() / ae.scale_.max()
            assert lost < 5, name


@pytest.mark.parametrize("standardize", [False, True])
def test_deviations_that_cannot_be_divided_by_are_refused(iris, standardize):
    with pytest.raises(ValueError, match=r"column \d has .* deviation .*e-3\d\d, which is too"):
        fastdr.AutoEncoder((2,), standardize=standardize).fit(1e-310 * iris)


def test_seeds_repeat_and_differ(iris):
    def fitted(seed):
        return fastdr.AutoEncoder((8, 2), max_epochs=3, random_state=seed).fit(iris)

    first = fitted(0).model_.parameters
    np.testing.assert_array_equal(fitted(0).model_.parameters, first)
    assert not np.array_equal(fitted(1).model_.parameters, first)
    state = np.random.RandomState(4)
    assert not np.array_equal(fitted(state).model_.parameters, fitted(state).model_.parameters)


def test_the_bar_shows_the_loss_and_that_of_pca(iris, capsys):
    ae = fastdr.AutoEncoder((2,), max_epochs=3, progress=True, random_state=0).fit(iris)
    shown = capsys.readouterr().err
    assert "training" in shown
    assert f"PCA={ae.pca_loss_:.4g}" in shown
    assert "held out=" in shown
    fastdr.AutoEncoder((2,), max_epochs=3, random_state=0).fit(iris)
    assert capsys.readouterr().err == ""


def test_names_frames_reports_and_files(iris, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(iris, columns=list("abcd"))
    ae = fastdr.AutoEncoder((8, 2), max_epochs=3, random_state=0).set_output(transform="pandas")
    assert list(ae.fit_transform(frame).columns) == ["autoencoder0", "autoencoder1"]
    assert ae.model_.feature_names == tuple("abcd")
    report = ae.report_
    assert {"epochs", "best_epoch", "loss", "pca_loss", "stopped", "updates", "rows"} <= set(report)
    assert all(len(line) <= 80 for line in str(report).splitlines())
    ae.model_.save(tmp_path / "ae.fdr")
    model = fastdr.load(tmp_path / "ae.fdr")
    assert isinstance(model, fastdr.NetworkModel)
    for name in ("losses", "held_out_losses", "mean", "scale", "parameters"):
        np.testing.assert_array_equal(getattr(model, name), getattr(ae.model_, name))
    for name in ("sizes", "activations", "code", "tied", "pca_loss", "count", "feature_names",
                 "report"):
        assert getattr(model, name) == getattr(ae.model_, name)
    np.testing.assert_array_equal(model.transform(iris), ae.model_.transform(iris))


def test_a_file_that_was_tampered_with_is_refused(iris, tmp_path):
    path = tmp_path / "ae.fdr"
    fastdr.AutoEncoder((2,), max_epochs=1, random_state=0).fit(iris).model_.save(path)
    good = path.read_bytes()
    for old, new in ((b'\\"tied\\": false', b'\\"tied\\": 2    '),
                     (b'\\"code\\": 1', b'\\"code\\": 7'), (b"[4, 2, 4]", b"[4, 3, 4]"),
                     (b'\\"identity\\", \\"identity', b'\\"identity\\", \\"softplus')):
        assert good.count(old) == 1
        path.write_bytes(good.replace(old, new))
        with pytest.raises(ValueError, match="is not a valid fastdr model"):
            fastdr.load(path)


def test_a_file_of_format_1_can_be_read():
    model = fastdr.load(KEPT)
    assert (model.sizes, model.code, model.tied) == ((2, 3, 1, 3, 2), 2, True)
    assert model.activations == ("gelu", "identity", "tanh", "identity")
    assert model.feature_names == ("x", "y")
    np.testing.assert_array_equal(model.weights[0], [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(model.weights[2], [[7], [8], [9]])
    np.testing.assert_array_equal(model.biases[3], [0.5, -0.5])
    np.testing.assert_array_equal(model.losses, [2.0, 1.0])
    assert model.pca_loss == 0.25
    assert FORMAT == 1, "keep a file of every format here"


def test_errors_are_in_input_units(iris):
    ae = fastdr.AutoEncoder((2,), max_epochs=2, random_state=0).fit(iris)
    errors = ((ae.inverse_transform(ae.transform(iris)) - iris) ** 2).sum(axis=1)
    np.testing.assert_allclose(ae.reconstruction_error(iris, per_row=True), errors, rtol=1e-10)
    np.testing.assert_allclose(ae.reconstruction_error(iris), errors.mean(), rtol=1e-12)
    with pytest.raises(ValueError, match="X has 3 features, but AutoEncoder is expecting 4"):
        ae.reconstruction_error(iris[:, :3])
