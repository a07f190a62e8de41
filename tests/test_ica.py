"""FastICA: sources found, the gradient it certifies, its options, storage and persistence."""

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import amari, relative_gradient
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator
from tolerance import rounding

import fastdr
from fastdr import panels
from fastdr.persistence import load_axes
from fastdr.sources import BLOCK_BYTES, ArraySource, BlockSource, each_once


def mixed(rows, kinds, seed=0, offset=0.0, noise=0.0):
    """Return rows, the mixing matrix (d, k) and the unit-variance sources."""
    rng = np.random.default_rng(seed)
    make = {"laplace": lambda: rng.laplace(size=rows), "uniform": lambda: rng.uniform(-1, 1, rows),
            "normal": lambda: rng.standard_normal(rows)}
    S = np.column_stack([make[kind]() for kind in kinds])
    S = (S - S.mean(axis=0)) / S.std(axis=0)
    A = rng.standard_normal((S.shape[1], S.shape[1]))
    X = S @ A.T + noise * rng.standard_normal(S.shape)
    return X + offset, A, S


FOUR = ["laplace", "uniform"] * 2


def gradient_of(ica, X):
    """Return the certified quantity, in NumPy and float64."""
    Y = (np.asarray(X, float) - ica.mean_) @ np.asarray(ica.components_, float).T
    return np.abs(relative_gradient(Y, ica.fun if isinstance(ica.fun, str) else "cube")).max()


@pytest.mark.filterwarnings("ignore::fastdr.AccuracyWarning",  # their rows are normal blobs
                            "ignore:There are some small singular values",
                            "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("parameters", [
    {}, {"fun": "exp", "whiten": "arbitrary-variance"}, {"fun": "cube", "whiten_solver": "svd"}])
def test_scikit_learn_accepts_it(parameters):
    for result in check_estimator(fastdr.FastICA(**parameters), on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped


@pytest.mark.filterwarnings("ignore")  # corners of a simplex have no sources
@pytest.mark.parametrize("parameters", [{"algorithm": "deflation"}, {"whiten": False}, {}])
@pytest.mark.parametrize("shape", [(9, 10), (4, 3)])
def test_order_and_repeats_of_few_rows_do_not_matter(parameters, shape, rng):
    X = rng.standard_normal(shape)
    counts = rng.integers(1, 5, len(X))
    counts[2] = 0
    repeated = rng.permutation(np.repeat(X, counts, axis=0))
    one = fastdr.FastICA(2, **parameters).fit(X[::-1], sample_weight=counts[::-1])
    other = fastdr.FastICA(2, **parameters).fit(np.asfortranarray(repeated))
    np.testing.assert_array_equal(one.components_, other.components_)
    with pytest.raises(ValueError, match=r"row 1\b.*NaN|NaN.*row 1\b"):
        fastdr.FastICA(2, **parameters).fit(np.where(X == X[1, 2], np.nan, X))


def test_repeats_are_not_sought_in_rows_whose_copy_would_count():
    source = ArraySource(np.zeros((3, BLOCK_BYTES // 16)))
    assert each_once(source, None) == (source, None)


@pytest.mark.parametrize("kinds", [["laplace"] * 8, ["uniform"] * 8, FOUR + FOUR,
                                   ["laplace"] * 5 + ["normal"], ["uniform"] * 5 + ["normal"]])
@pytest.mark.parametrize("fun", ["logcosh", "exp", "cube"])
def test_known_mixtures_are_undone_and_the_gradient_is_true(kinds, fun):
    rows = 120_000 if fun == "cube" else 50_000  # cube is the least efficient for peaked sources
    X, A, _ = mixed(rows, kinds)
    ica = fastdr.FastICA(fun=fun).fit(X)
    assert amari(ica.components_ @ A) < 1e-2
    certificate = ica.certificate_
    assert certificate["converged"]
    assert certificate["gradient"] <= ica.tol
    slack = rounding(float, 30, np.abs(ica.transform(X)).max() ** 2, safety=1)
    assert abs(gradient_of(ica, X) - certificate["gradient"]) <= slack
    assert certificate["orthogonality_defect"] <= rounding(float, len(kinds), 1.0, safety=4)
    assert certificate["nearly_normal"] == []


def test_noisy_sources_are_found_up_to_what_noise_leaves():
    # sensor noise a tenth of a source: the sources' own directions move by its square
    X, A, _ = mixed(50_000, ["laplace"] * 3 + ["uniform"] * 3 + ["normal"], noise=0.02)
    ica = fastdr.FastICA().fit(X)
    assert amari(ica.components_ @ A) < 1e-2
    assert gradient_of(ica, X) <= ica.tol * (1 + 1e-6)


@pytest.mark.parametrize("kinds", [["laplace"] * 20, ["laplace", "uniform", "normal"] * 6])
def test_few_rows_for_many_sources_still_reach_the_gradient(kinds):
    X, _, _ = mixed(3000, kinds, noise=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fastdr.AccuracyWarning)
        ica = fastdr.FastICA().fit(X)
    assert ica.certificate_["converged"]
    assert gradient_of(ica, X) <= ica.tol * (1 + 1e-6)


@pytest.mark.parametrize("fun", ["logcosh", "cube"])
def test_one_by_one_finds_them_too(fun):
    X, A, _ = mixed(20_000, FOUR)
    ica = fastdr.FastICA(algorithm="deflation", fun=fun).fit(X)
    assert amari(ica.components_ @ A) < 2e-2  # deflation is less efficient
    assert ica.certificate_["gradient"] <= ica.tol


def test_a_callable_gives_what_the_built_in_function_gives():
    X, _, _ = mixed(5000, FOUR)
    built_in = fastdr.FastICA(fun="cube").fit(X)
    own = fastdr.FastICA(fun=lambda x, power: (x**power, (power * x**2).mean(axis=-1)),
                         fun_args={"power": 3}).fit(X)
    np.testing.assert_allclose(own.components_, built_in.components_, atol=1e-5)
    assert own.certificate_["gradient"] <= own.tol
    weights = np.random.default_rng(1).integers(0, 3, len(X))
    np.testing.assert_allclose(own.fit(X, sample_weight=weights).components_,
                               built_in.fit(X, sample_weight=weights).components_, atol=1e-5)


def test_alpha_sharpens_the_contrast():
    X, A, _ = mixed(20_000, FOUR)
    ica = fastdr.FastICA(fun_args={"alpha": 2.0}).fit(X)
    Y = ica.transform(X)
    assert np.abs(relative_gradient(Y, a=2.0)).max() <= ica.tol * (1 + 1e-6)
    assert np.abs(relative_gradient(Y)).max() > 10 * ica.tol
    assert amari(ica.components_ @ A) < 2e-2


def test_peaked_sources_alone_without_extension():
    X, A, _ = mixed(20_000, ["laplace"] * 4)
    for fun in ("logcosh", "exp", "cube"):
        ica = fastdr.FastICA(extended=False, fun=fun).fit(X)
        assert ica.certificate_["converged"]
        assert amari(ica.components_ @ A) < 2e-2


def test_flat_sources_need_extension():
    X, A, _ = mixed(20_000, ["uniform"] * 4)
    assert amari(fastdr.FastICA().fit(X).components_ @ A) < 1e-2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = fastdr.FastICA(extended=False, max_iter=50).fit(X)
    assert amari(wrong.components_ @ A) > 0.1


def test_integer_weights_equal_repeated_rows():
    X, _, _ = mixed(4000, FOUR)
    weights = np.random.default_rng(3).integers(0, 4, len(X))
    weighted = fastdr.FastICA().fit(X, sample_weight=weights)
    repeated = fastdr.FastICA().fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.components_, repeated.components_, atol=1e-5)
    Y = weighted.transform(X)
    assert np.average(Y**2, axis=0, weights=weights) == pytest.approx(1, abs=1e-11)


def test_restarts_keep_the_best_of_all():
    X, _, _ = mixed(2000, ["laplace"] * 12)
    ica = fastdr.FastICA(n_init=4).fit(X)
    single = [fastdr.FastICA(w_init=w).fit(X) for w in _starts(12, 4)]
    quality = [_distance_from_normal(one.transform(X)) for one in single]
    assert _distance_from_normal(ica.transform(X)) >= max(quality) - 1e-6
    assert ica.report_["best_start"] == int(np.argmax(quality))


def _starts(size, count):
    random = np.random.RandomState(0)
    return [random.normal(size=(size, size)) for _ in range(count)]


def _distance_from_normal(Y):
    losses = (np.logaddexp(Y, -Y) - np.log(2)).mean(axis=0)
    return np.abs(losses - 0.3745672075).sum()


def test_threads_change_nothing():
    X, _, _ = mixed(30_000, FOUR)
    with fastdr.num_threads(1):
        one = fastdr.FastICA().fit(X)
    for count in (2, 3, 8):
        with fastdr.num_threads(count):
            many = fastdr.FastICA().fit(X)
        np.testing.assert_array_equal(many.components_, one.components_)
        assert many.certificate_ == one.certificate_


@pytest.mark.parametrize("weighted", [False, True])
def test_storage_changes_nothing(weighted, tmp_path, monkeypatch):
    X, _, _ = mixed(30_000, FOUR)
    weights = np.random.default_rng(0).integers(0, 3, len(X)) if weighted else None
    expected = fastdr.FastICA().fit(X, sample_weight=weights)
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    stream = BlockSource(lambda: (X[i:i + 777] for i in range(0, len(X), 777)), 4, len(X))
    unknown = BlockSource(stream.open_blocks, 4)
    np.testing.assert_array_equal(
        fastdr.FastICA().fit(mapped, sample_weight=weights).components_, expected.components_)
    for source in (stream,) if weighted else (stream, unknown):
        found = fastdr.FastICA().fit(source, sample_weight=weights)
        np.testing.assert_allclose(found.components_, expected.components_, atol=1e-6)
        monkeypatch.setattr(panels, "KEEP", 30_000 * 4 * 8 // 2)
        again = fastdr.FastICA().fit(source, sample_weight=weights)
        monkeypatch.undo()
        assert again.report_["whitened_rows"] == "made in each pass"
        np.testing.assert_array_equal(again.components_, found.components_)


def test_a_stream_that_ends_is_refused():
    X, _, _ = mixed(100, FOUR)
    once = BlockSource(lambda: iter([X]), 4, 100, rereadable=False)
    with pytest.raises(ValueError, match="several times"):
        fastdr.FastICA().fit(once)


@pytest.mark.parametrize("kept", [1, 239, 240, 241, 1000])
def test_panels_are_cut_the_same_whatever_the_blocks(kept, rng):
    X = rng.standard_normal((1500, 3))
    blocks = BlockSource(lambda: (X[i:i + kept] for i in range(0, 1500, kept)), 3, 1500)
    cut = [np.concatenate(list(panels._cut(source, 480)))
           for source in (ArraySource(X), blocks)]
    np.testing.assert_array_equal(cut[0], cut[1])
    assert [len(part) for part in panels._cut(blocks, 480)] == [480, 480, 480, 60]


def test_the_model_file_holds_all(tmp_path):
    X, _, _ = mixed(3000, FOUR)
    for whiten in ("unit-variance", False):
        rows = X if whiten else fastdr.PCA(whiten=True).fit_transform(X)
        ica = fastdr.FastICA(whiten=whiten).fit(rows)
        ica.model_.save(tmp_path / "sources.fdr")
        model = fastdr.load(tmp_path / "sources.fdr")
        assert isinstance(model, fastdr.UnmixingModel)
        np.testing.assert_array_equal(model.transform(rows), ica.transform(rows))
        Y = model.transform(rows)
        np.testing.assert_array_equal(model.inverse_transform(Y), ica.inverse_transform(Y))
        assert (model.whitening is None) == (whiten is False)
        assert dict(model.certificate) == ica.certificate_
        assert dict(model.report) == ica.report_
        assert (model.count, model.steps) == (3000, ica.n_iter_)
        copy = pickle.loads(pickle.dumps(ica))
        np.testing.assert_array_equal(copy.transform(rows), ica.transform(rows))


def test_a_file_of_format_1_can_be_read():
    model = fastdr.load(Path(__file__).parent / "data" / "unmixing_model_1.fdr")
    np.testing.assert_array_equal(model.mean, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(model.components, [[0.5, 0, 0], [0, 2, 0]])
    np.testing.assert_array_equal(model.mixing, [[2, 0], [0, 0.5], [0, 0]])
    np.testing.assert_array_equal(model.whitening, [[1, 0, 0], [0, 1, 0]])
    assert (model.count, model.steps, model.feature_names) == (10, 4, ("x", "y", "z"))
    assert (model.certificate["gradient"], model.report["rows"]) == (1e-9, 10)


@pytest.mark.parametrize(("tensors", "header"), [
    ({"mixing": np.zeros((3, 3))}, {}), ({"extra": np.zeros(2)}, {}), ({"mixing": None}, {}),
    ({"whitening": np.zeros((3, 2))}, {}), ({"components": np.full((2, 3), np.nan)}, {}),
    ({"mean": np.zeros(2)}, {}), ({}, {"count": -1}), ({}, {"steps": 1.5}),
    ({}, {"certificate": []}), ({}, {"feature_names": ["x"]}), ({}, {"kind": "LinearModel"})])
def test_a_file_that_says_the_impossible_is_refused(tensors, header, tmp_path):
    path = tmp_path / "m.fdr"
    model = fastdr.UnmixingModel(np.zeros(3), np.eye(2, 3), np.eye(3, 2), np.eye(2, 3), 5, 1)
    model.save(path)
    arrays = {**load_file(path), **tensors}
    with safe_open(path, "numpy") as file:
        text = json.loads(file.metadata()["fastdr"])
    save_file({name: array for name, array in arrays.items() if array is not None}, path,
              {"fastdr": json.dumps({**text, **header})})
    with pytest.raises(ValueError, match="not a valid fastdr model"):
        fastdr.load(path)


def test_the_command_says_that_it_is_for_axes(tmp_path):
    fastdr.UnmixingModel(np.zeros(3), np.eye(2, 3), np.eye(3, 2)).save(tmp_path / "m.fdr")
    with pytest.raises(ValueError, match="holds a UnmixingModel"):
        load_axes(tmp_path / "m.fdr")


@pytest.mark.parametrize(("parts", "message"), [
    ((np.zeros(3), np.zeros(3), np.eye(3)), "components has shape"),
    ((np.zeros(2), np.eye(2, 3), np.eye(3, 2)), "mean has shape"),
    ((np.zeros(3), np.eye(2, 3), np.eye(2, 3)), "mixing has shape")])
def test_parts_of_a_model_must_agree(parts, message):
    with pytest.raises(ValueError, match=message):
        fastdr.UnmixingModel(*parts)


def test_float32_rows_give_float32_sources():
    X, A, _ = mixed(30_000, FOUR, offset=5.0)
    ica = fastdr.FastICA().fit(X.astype(np.float32))
    for array in (ica.components_, ica.mixing_, ica.whitening_, ica.transform(X.astype("f4"))):
        assert array.dtype == np.float32
    assert amari(ica.components_ @ A) < 1e-2
    # components are rounded to float32, which turns them by eps at most
    assert gradient_of(ica, X) <= ica.tol + rounding(np.float32, 4, 1.0)


@given(scale=st.sampled_from([1e-300, 1e-200, 1e-30, 1.0, 1e30, 1e150, 1e200]),
       seed=st.integers(0, 20))
def test_units_of_the_rows_do_not_matter(scale, seed):
    X, _, _ = mixed(3000, ["laplace", "uniform"], seed)
    plain = fastdr.FastICA(fun="cube").fit(X)
    scaled = fastdr.FastICA(fun="cube").fit(X * scale)
    np.testing.assert_allclose(scaled.components_ * scale, plain.components_, atol=1e-4)
    np.testing.assert_allclose(scaled.transform(X * scale), plain.transform(X), atol=1e-4)
    back = scaled.inverse_transform(scaled.transform(X * scale))
    assert np.abs(back - X * scale).max() <= rounding(float, 4, np.abs(X).max() * scale)


@pytest.mark.parametrize("rows", [2000, 20_000])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("whiten", ["unit-variance", "arbitrary-variance", False])
def test_units_of_the_weights_do_not_matter(rows, dtype, whiten, rng):
    X = mixed(rows, ["laplace", "uniform"])[2].astype(dtype)
    weight = rng.uniform(0.5, 2, rows)
    plain = fastdr.FastICA(whiten=whiten).fit(X, sample_weight=weight)
    for exponent in (140, 180):  # beyond float32
        scaled = fastdr.FastICA(whiten=whiten).fit(X, sample_weight=np.ldexp(weight, exponent))
        found, expected = scaled.transform(X), plain.transform(X)
        if whiten == "arbitrary-variance":
            found = np.ldexp(found, exponent // 2)
        error = 0.0 if dtype == "f8" else rounding(dtype, 4, np.abs(expected).max())
        assert np.abs(found - expected).max() <= error


def test_what_float32_does_not_hold_is_refused():
    X = mixed(500, ["laplace", "uniform"])[2].astype("f4")
    ica = fastdr.FastICA().fit(np.ldexp(X, -120))
    model = ica.model_
    with pytest.raises(ValueError, match="largest of components_ is .* float32 does not hold"):
        ica.fit(np.ldexp(X, -130))
    ica.set_params(whiten="arbitrary-variance")
    with pytest.raises(ValueError, match="largest of components_ is .* float32 does not hold"):
        ica.fit(X, sample_weight=np.full(500, 1e90))
    assert ica.model_ is model


@pytest.mark.parametrize(("parameters", "message"), [
    ({"n_components": 5}, r"n_components=5 exceeds .*=4"), ({"n_components": 0}, "n_components=0"),
    ({"n_components": 2.0}, "n_components=2.0"), ({"algorithm": "both"}, "algorithm='both'"),
    ({"whiten": True}, "whiten=True"), ({"whiten": "pca"}, "whiten='pca'"),
    ({"fun": "tanh"}, "fun='tanh'"), ({"fun": np.tanh}, "fun returned"),
    ({"fun_args": {"alpha": 3}}, "alpha"), ({"fun_args": 3}, "fun_args=3"),
    ({"fun_args": {"alpha": True}}, "alpha must be in"),
    ({"fun_args": {"alfa": 2.0}}, r"has \['alfa'\]; fun='logcosh' takes 'alpha' only"),
    ({"max_iter": 0}, "max_iter=0"), ({"tol": -1.0}, "tol=-1.0"), ({"tol": np.nan}, "tol=nan"),
    ({"tol": np.inf}, "tol=inf"),
    ({"w_init": np.ones((2, 4))}, "w_init has invalid shape"),
    ({"w_init": np.full((4, 4), np.nan)}, "w_init contains"),
    ({"whiten_solver": "qr"}, "whiten_solver='qr'"), ({"extended": 1}, "extended=1"),
    ({"algorithm": "deflation", "extended": False}, "extended=False needs"),
    ({"n_init": 0}, "n_init=0"),
    ({"fun": lambda x: (x * np.inf, x.mean(axis=-1))}, "NaN or infinity on these rows")])
def test_parameters_out_of_range_are_refused_and_the_fit_stays(parameters, message):
    X, _, _ = mixed(2000, FOUR)
    ica = fastdr.FastICA().fit(X)
    before = ica.components_
    with pytest.raises(ValueError, match=message), np.errstate(invalid="ignore"):
        ica.set_params(**parameters).fit(X)
    assert ica.components_ is before


def test_complex_scores_are_refused():
    with pytest.raises(TypeError, match="what fun returns has dtype complex128"):
        fastdr.FastICA(fun=lambda x: (x**3 + 0j, 3 * (x**2).mean(-1))).fit(mixed(500, FOUR)[0])


@pytest.mark.parametrize("algorithm", ["parallel", "deflation"])
def test_the_size_of_a_start_does_not_matter(algorithm, rng):
    X, start = mixed(2000, FOUR)[0], rng.standard_normal((4, 4))
    found = [fastdr.FastICA(w_init=np.ldexp(start, exponent), algorithm=algorithm).fit(X)
             for exponent in (0, -1000, 1000)]
    for other in found[1:]:
        np.testing.assert_array_equal(other.components_, found[0].components_)


def test_a_start_that_is_given_is_used():
    X, _, _ = mixed(2000, FOUR)
    ica = fastdr.FastICA().fit(X)
    whitened = np.linalg.pinv(ica.whitening_)
    again = fastdr.FastICA(w_init=ica.components_ @ whitened, max_iter=1).fit(X)
    np.testing.assert_allclose(again.components_, ica.components_, atol=1e-6)


def test_the_steps_are_shown_if_asked_for(capsys):
    X, _, _ = mixed(2000, FOUR)
    fastdr.FastICA(progress=True).fit(X)
    assert "unmixing" in capsys.readouterr().err
    fastdr.FastICA().fit(X)
    assert capsys.readouterr().err == ""


def test_names_of_sources(rng):
    import pandas

    frame = pandas.DataFrame(rng.laplace(size=(2000, 3)), columns=list("abc"))
    ica = fastdr.FastICA(2).fit(frame)
    assert list(ica.get_feature_names_out()) == ["fastica0", "fastica1"]
    assert ica.model_.feature_names == ("a", "b", "c")
    assert "gradient" in str(ica.certificate_)


@pytest.mark.parametrize("whiten", ["unit-variance", "arbitrary-variance", False])
def test_whitening_choices(whiten):
    X, _, _ = mixed(5000, FOUR, offset=3.0)
    rows = X if whiten else fastdr.PCA(whiten=True).fit_transform(X) * np.sqrt(5000 / 4999)
    ica = fastdr.FastICA(whiten=whiten).fit(rows)
    Y = ica.transform(rows)
    variance = 1 / 5000 if whiten == "arbitrary-variance" else 1.0
    sizes = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    slack = rounding(float, 4, (sizes[0] / sizes[-1]) ** 2, safety=1)
    np.testing.assert_allclose(Y.T @ Y / 5000, variance * np.eye(4), atol=slack)
    np.testing.assert_allclose(ica.inverse_transform(Y), rows, atol=1e-11)
    assert hasattr(ica, "whitening_") == bool(whiten)
    if whiten:
        Z = (rows - ica.mean_) @ ica.whitening_.T
        np.testing.assert_allclose(Z.T @ Z / 5000, variance * np.eye(4), atol=slack)


def test_rows_that_are_not_white_are_told(rng):
    with pytest.warns(fastdr.AccuracyWarning, match="second moments"):
        fastdr.FastICA(whiten=False).fit(3 * rng.laplace(size=(1000, 2)))
    with pytest.raises(ValueError, match="squares of the rows leave"):
        fastdr.FastICA(whiten=False).fit(1e200 * rng.laplace(size=(1000, 2)))


def test_a_single_source_is_the_first_axis():
    X, _, _ = mixed(500, FOUR)
    ica = fastdr.FastICA(1).fit(X)
    pca = fastdr.PCA(1).fit(X)
    scores = pca.transform(X)[:, 0] / pca.transform(X)[:, 0].std()
    np.testing.assert_allclose(np.abs(ica.transform(X)[:, 0]), np.abs(scores), atol=1e-12)
    assert ica.n_iter_ == 1


def test_a_step_that_cannot_be_taken_warns_once_and_truly():
    X, _, _ = mixed(2000, FOUR)
    with pytest.warns(ConvergenceWarning, match="relative gradient is .* after 1 step") as caught:
        ica = fastdr.FastICA(max_iter=1).fit(X)
    assert len(caught) == 1
    assert not ica.certificate_["converged"]
    assert gradient_of(ica, X) == pytest.approx(ica.certificate_["gradient"], rel=1e-6)


@pytest.mark.parametrize("algorithm", ["parallel", "deflation"])
def test_a_loose_tolerance_does_not_stop_beside_a_saddle(rng, algorithm):
    """Halfway between two like sources the gradient is zero too: these starts are next to it."""
    S = rng.laplace(size=(500, 2))
    X = S @ [[2.0, 1.0], [1.0, 1.5]]
    for angle in np.pi * np.arange(4, 8) / 100:
        start = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        ica = fastdr.FastICA(w_init=start, tol=5e-3, algorithm=algorithm).fit(X)
        found = np.abs(np.corrcoef(ica.transform(X).T, S.T)[:2, 2:]).max(axis=1)
        assert found.min() > 0.9
