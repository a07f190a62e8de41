"""Cases C45 to C63: component counts, containers, layout, copies, persistence, choices."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from reference import signs_fixed
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import fastdr

DIAGONAL = np.array([[3.0, 0, 0], [0, 2, 0], [0, 0, 1], [-3, 0, 0], [0, -2, 0], [0, 0, -1]])


def test_c45_too_many_components_name_the_limit(rng, solver):
    X = rng.standard_normal((10, 6))
    with pytest.raises(ValueError, match=r"n_components=7.*") as caught:
        fastdr.PCA(7, svd_solver=solver).fit(X)
    assert all(number in str(caught.value) for number in ("7", "10", "6"))
    with pytest.raises(ValueError, match=r"n_components=9") as caught:
        fastdr.PCA(9, svd_solver=solver).fit(X[:5])
    assert all(number in str(caught.value) for number in ("9", "5", "6"))


def test_c45_inside_cross_validation(rng):
    X, y = rng.standard_normal((12, 20)), rng.standard_normal(12)
    model = make_pipeline(fastdr.PCA(10), LinearRegression())
    with pytest.raises(ValueError, match="n_components=10") as caught:
        cross_val_score(model, X, y, cv=5, error_score="raise")
    assert "9" in str(caught.value)
    assert "20" in str(caught.value)


@pytest.mark.parametrize(("k", "kept"), [
    (9 / 14 - 1e-12, 1), (9 / 14 + 1e-12, 2), (0.5, 1), (0.7, 2), (13 / 14 - 1e-12, 2),
    (0.999999999, 3), (np.float32(0.5), 1), (np.float64(0.93), 3)])
def test_c46_fraction_of_variance_strictly_greater(solver, k, kept):
    model = fastdr.PCA(k, svd_solver=solver).fit(DIAGONAL)
    assert model.n_components_ == kept
    assert model.components_.shape == (kept, 3)
    assert model.explained_variance_ratio_.sum() <= 1 + 1e-15
    assert model.transform(DIAGONAL).shape == (6, kept)
    rest = [3.6, 1.6, 0.4][kept:]
    assert model.noise_variance_ == pytest.approx(np.mean(rest) if rest else 0.0, rel=1e-12)


@pytest.mark.parametrize("solver", ["auto", "lapack", "covariance_eigh", "lanczos", "randomized"])
@pytest.mark.parametrize(("k", "kept"), [(9 / 14, 2), (np.nextafter(9 / 14, 0), 1),
                                     (np.nextafter(9 / 14, 1), 2)])
def test_c46_to_the_last_bit_where_the_variances_are_exact(solver, k, kept):
    assert fastdr.PCA(k, svd_solver=solver).fit(DIAGONAL).n_components_ == kept


def test_c46_to_the_last_bit_of_the_ratios_a_fit_reports(iris, wine, solver):
    for X in (DIAGONAL, iris, wine):
        shares = np.cumsum(fastdr.PCA(svd_solver=solver).fit(X).explained_variance_ratio_)
        for i, share in enumerate(shares[:-1], 1):
            if share < 1:
                assert fastdr.PCA(share, svd_solver=solver).fit(X).n_components_ == i + 1
                below = np.nextafter(share, 0)
                assert fastdr.PCA(below, svd_solver=solver).fit(X).n_components_ == i


def test_c45_arpack_keeps_the_limit_it_has_in_scikit_learn(iris):
    expected = fastdr.PCA(3).fit(iris)
    assert fastdr.PCA(svd_solver="arpack").fit(iris).n_components_ == 3
    found = fastdr.PCA(3, svd_solver="arpack").fit(iris)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-12)
    with pytest.raises(ValueError, match="n_components=4 must be strictly less than"):
        fastdr.PCA(4, svd_solver="arpack").fit(iris)


def test_c46_iris_agrees_with_scikit_learn(iris, solver):
    from sklearn.decomposition import PCA
    for k in (0.5, 0.92, 0.95, 0.98, 0.995, 0.9999):
        expected = PCA(k, svd_solver="full").fit(iris).n_components_
        assert fastdr.PCA(k, svd_solver=solver).fit(iris).n_components_ == expected


def test_c46_one_point_zero_means_all_or_says_why(iris, solver):
    try:
        model = fastdr.PCA(1.0, svd_solver=solver).fit(iris)
    except ValueError as error:
        assert "1.0" in str(error)  # noqa: PT017
    else:
        assert model.n_components_ == 4
    assert fastdr.PCA(1, svd_solver=solver).fit(iris).n_components_ == 1


@pytest.mark.parametrize("bad", [-1, 2.5, 0.0, -0.5, float("nan"), True, False, np.True_, "max",
                                 [2], 1 + 0j])
def test_c48_odd_component_counts_are_refused(iris, solver, bad):
    with pytest.raises((ValueError, TypeError), match="n_components"):
        fastdr.PCA(bad, svd_solver=solver).fit(iris)


def test_c48_zero_components_are_empty_or_refused(iris, solver):
    model = fastdr.PCA(0, svd_solver=solver)
    try:
        model.fit(iris)
    except ValueError as error:
        assert "n_components" in str(error)  # noqa: PT017
        return
    assert model.transform(iris).shape == (150, 0)


@pytest.mark.parametrize("k", [np.int64(2), np.int32(2), np.uint8(2), np.float32(0.97),
                               np.float64(0.97)])
def test_c48_numpy_numbers_are_numbers(iris, solver, k):
    model = fastdr.PCA(k, svd_solver=solver).fit(iris)
    assert model.n_components_ == 2
    assert type(model.n_components_) is int
    assert fastdr.PCA(None, svd_solver=solver).fit(iris).n_components_ == 4


def test_c50_column_names(rng, solver):
    pd = pytest.importorskip("pandas")
    X = rng.standard_normal((10, 3))
    mixed = pd.DataFrame(X, columns=["a", 1, 2])
    with pytest.raises(TypeError, match="str"):
        fastdr.PCA(2, svd_solver=solver).fit(mixed)
    named = fastdr.PCA(2, svd_solver=solver).fit(pd.DataFrame(X, columns=["a", "b", "c"]))
    np.testing.assert_array_equal(named.feature_names_in_, ["a", "b", "c"])
    numbered = fastdr.PCA(2, svd_solver=solver).fit(pd.DataFrame(X))
    assert not hasattr(numbered, "feature_names_in_")
    twice = fastdr.PCA(2, svd_solver=solver).fit(pd.DataFrame(X, columns=["a", "a", "b"]))
    np.testing.assert_array_equal(twice.components_, numbered.components_)
    with pytest.raises(ValueError, match="feature names"):
        named.transform(pd.DataFrame(X, columns=["c", "b", "a"]))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("kind", ["f4", "f8", "i4"])
def test_c50_frames_of_every_library(rng, library, kind):
    frames = pytest.importorskip(library)
    X = (rng.standard_normal((10, 3)) * 9).astype(kind)
    columns = {name: X[:, i] for i, name in enumerate("abc")}
    frame = frames.table(columns) if library == "pyarrow" else frames.DataFrame(columns)
    expected = fastdr.PCA(2).fit(X)
    model = fastdr.PCA(2).fit(frame)
    np.testing.assert_array_equal(model.components_, expected.components_)
    assert model.components_.dtype == expected.components_.dtype
    np.testing.assert_array_equal(fastdr.covariance(frame), fastdr.covariance(X))
    if library != "pyarrow":
        np.testing.assert_array_equal(model.feature_names_in_, list("abc"))


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_c51_set_output(rng, library, kind):
    frames = pytest.importorskip(library)
    X = rng.standard_normal((20, 4)).astype(kind)
    frame = frames.DataFrame({name: X[:, i] for i, name in enumerate("abcd")})
    if library == "pandas":
        frame.index = [f"row {i}" for i in range(20)]
    model = fastdr.PCA(2).set_output(transform=library)
    for found in (model.fit_transform(frame), model.fit(frame).transform(frame)):
        assert list(found.columns) == ["pca0", "pca1"]
        if library == "pandas":
            assert list(found.index) == list(frame.index)
            assert all(found.dtypes == kind)
        else:
            wanted = frames.Float32 if kind == "f4" else frames.Float64
            assert found.dtypes == [wanted, wanted]
    np.testing.assert_array_equal(model.get_feature_names_out(), ["pca0", "pca1"])


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
def test_c52_pickle_copy_and_clone(iris, solver, whiten):
    joblib = pytest.importorskip("joblib")
    import io
    model = fastdr.PCA(2, svd_solver=solver, whiten=whiten).fit(iris)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    for same in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model),
                 joblib.load(file)):
        np.testing.assert_array_equal(same.transform(iris), model.transform(iris))
        np.testing.assert_array_equal(same.explained_variance_, model.explained_variance_)
        assert same.report_ == model.report_
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        fresh.transform(iris)


@pytest.mark.parametrize("whiten", [False, True])
def test_c52_an_estimator_built_from_its_attributes_transforms(iris, whiten):
    fitted = fastdr.PCA(2, whiten=whiten).fit(iris)
    built = fastdr.PCA(2, whiten=whiten)
    built.mean_ = fitted.mean_
    built.components_ = fitted.components_
    if whiten:
        built.explained_variance_ = fitted.explained_variance_
    np.testing.assert_allclose(built.transform(iris), fitted.transform(iris), atol=1e-12)


def test_c52_a_pickle_of_the_future_is_refused_and_one_without_parameters_is_completed(iris):
    model = fastdr.PCA(2).fit(iris)
    future = model.__getstate__()
    older = {k: v for k, v in future.items() if k not in {"n_oversamples", "standardize"}}
    same = fastdr.PCA()
    same.__setstate__(older)
    np.testing.assert_array_equal(same.transform(iris), model.transform(iris))
    assert same.n_oversamples == 10
    with pytest.raises(ValueError, match="Upgrade fastdr"):
        fastdr.PCA().__setstate__({**future, "_pickle_format": 99})


def test_c52_pickles_name_public_modules_only(iris):
    text = pickle.dumps(fastdr.PCA(2).fit(iris), protocol=0).decode("latin1")
    names = {line.split("\n")[0] for line in text.split("cfastdr")[1:]}
    assert not any("._" in name for name in names), names


def test_c53_read_only_input(rng, solver, floating, layout, stored):
    X = rng.standard_normal((40, 5)).astype(floating)
    same = stored(X, layout)
    if same.flags.writeable:
        same.setflags(write=False)
    expected = fastdr.PCA(3, svd_solver=solver).fit_transform(X)
    for keep in (True, False):
        model = fastdr.PCA(3, svd_solver=solver, copy=keep)
        np.testing.assert_allclose(model.fit_transform(same), expected,
                                   atol=1e-12 if floating == "f8" else 1e-5)
        np.testing.assert_array_equal(same, X)
    weight = np.ones(40)
    weight.setflags(write=False)
    fastdr.PCA(3, svd_solver=solver).fit(same, sample_weight=weight)


def test_c53_input_is_never_modified_even_with_copy_false(rng, solver):
    X = rng.standard_normal((40, 5)) + 3
    kept = X.copy()
    model = fastdr.PCA(3, svd_solver=solver, copy=False, whiten=True, standardize=True).fit(X)
    model.inverse_transform(model.transform(X))
    model.score(X)
    model.reconstruction_error(X, per_row=True)
    np.testing.assert_array_equal(X, kept)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_c55_no_copy_of_the_data(rng, keep, order):
    X = np.asarray(rng.standard_normal((20_000, 512), np.float32), order=order)
    fastdr.PCA(5).fit_transform(X[:600])
    square = 512 * 512 * 8

    def extra(call):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    model = fastdr.PCA(5, copy=keep)
    # the scatter, its eigenvectors and LAPACK's room are of the result's size, not the data's
    assert extra(lambda: model.fit(X)) <= 0.1 * X.nbytes + 6 * square
    scores = 20_000 * 5 * 4
    assert extra(lambda: model.transform(X)) <= scores + 0.1 * X.nbytes
    assert extra(lambda: model.fit_transform(X)) <= scores + 0.1 * X.nbytes + 6 * square
    assert extra(lambda: model.reconstruction_error(X, per_row=True)) <= 20_000 * 8 + 0.1 * X.nbytes
    assert extra(lambda: fastdr.covariance(X)) <= 0.1 * X.nbytes + 4 * square


def test_c60_shapes_and_fitted_state(rng, solver):
    X = rng.standard_normal((20, 4))
    model = fastdr.PCA(2, svd_solver=solver)
    for call in (model.transform, model.inverse_transform, model.score, model.score_samples,
                 model.reconstruction_error):
        with pytest.raises(NotFittedError, match="not fitted"):
            call(X)
    with pytest.raises(NotFittedError):
        model.get_covariance()
    model.fit(X)
    for call in (model.transform, model.score, model.score_samples, model.reconstruction_error):
        with pytest.raises(ValueError, match="X has 3 features, but PCA is expecting 4 features as "
                                             "input"):
            call(X[:, :3])
    with pytest.raises(ValueError, match=r"4.*2|2.*4"):
        model.inverse_transform(X)


@pytest.mark.parametrize(("bad", "error", "words"), [
    (np.ones(4), ValueError, "Expected 2D array, got 1D array instead"),
    (np.float64(3), ValueError, "Expected 2D array, got scalar array instead"),
    (np.ones((2, 3, 4)), ValueError, "dim"),
    (np.ones((5, 4), complex), ValueError, "Complex data not supported"),
    (np.empty((0, 4)), ValueError, r"Found array with 0 sample\(s\)"),
    (np.empty((5, 0)), ValueError, r"0 feature\(s\)"),
    (np.full((5, 4), "a"), (TypeError, ValueError), "dtype|numbers|convert"),
    (np.ones((5, 4), "M8[s]"), (TypeError, ValueError), "datetime64"),
    (np.ones((5, 4), np.longdouble), (TypeError, ValueError), "float128|longdouble|float64"),
    ([[1, 2, 3, 4], [1, 2]], ValueError, "rectang|inhomogeneous"),
    (None, (TypeError, ValueError), "None"),
    ("text", (TypeError, ValueError), "str|2D"),
])
def test_c60_bad_containers(bad, error, words, solver):
    with pytest.raises(error, match=words):
        fastdr.PCA(2, svd_solver=solver).fit(bad)
    fitted = fastdr.PCA(2, svd_solver=solver).fit(np.eye(4)[[0, 1, 2, 3, 0]])
    with pytest.raises(error, match=words):
        fitted.transform(bad)
    with pytest.raises(error, match=words):
        fastdr.covariance(bad)
    with pytest.raises(error, match=words):
        fastdr.project(bad, np.eye(4)[:2])


def test_c60_one_row_cannot_be_fitted_but_can_be_transformed(rng, solver):
    X = rng.standard_normal((6, 3))
    with pytest.raises(ValueError, match="1 sample|n_samples=1|2 rows|ddof|minimum of 2"):
        fastdr.PCA(1, svd_solver=solver).fit(X[:1])
    model = fastdr.PCA(2, svd_solver=solver).fit(X)
    np.testing.assert_array_equal(model.transform(X[2:3]), model.transform(X)[2:3])


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"),
                                       (-np.inf, "infinity")])
def test_c61_bad_values_are_located(rng, solver, floating, layout, stored, bad, word):
    X = rng.standard_normal((50, 4)).astype(floating)
    clean = fastdr.PCA(2, svd_solver=solver).fit(X)
    X[3, 1] = bad
    same = stored(X, layout)
    words = rf"Input X contains {word} at row 3, column 1.*\(1 non-finite value"
    for call in (fastdr.PCA(2, svd_solver=solver).fit, clean.transform, fastdr.covariance,
                 fastdr.moments, clean.reconstruction_error):
        with pytest.raises(ValueError, match=words):
            call(same)


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_c61_the_likelihood_looks_too(rng, floating, bad, word):
    X = rng.standard_normal((50, 4)).astype(floating)
    model = fastdr.PCA(2).fit(X)
    X[3, 1] = bad
    for call in (model.score, model.score_samples):
        with pytest.raises(ValueError, match=rf"contains {word} at row 3, column 1"):
            call(X)


def test_c61_the_column_of_a_frame_is_named(rng):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rng.standard_normal((9, 3)), columns=["length", "shaku", "sun"])
    frame.loc[4, "shaku"] = np.nan
    with pytest.raises(ValueError, match=r"NaN at row 4, column 1 \('shaku'\)"):
        fastdr.PCA(2).fit(frame)


def test_c61_inverse_transform_looks_too(rng, solver):
    model = fastdr.PCA(2, svd_solver=solver).fit(rng.standard_normal((9, 3)))
    with pytest.raises(ValueError, match="contains NaN at row 0, column 1"):
        model.inverse_transform([[0.0, np.nan]])


def test_c62_centring_and_scaling_are_choices(rng, solver):
    X = rng.standard_normal((100, 3)) * [1, 0.5, 0.2] + [5, 0, 0]
    raw = fastdr.PCA(mean=np.zeros(3), svd_solver=solver).fit(X)
    assert raw.components_[0, 0] > 0.99
    np.testing.assert_array_equal(raw.mean_, np.zeros(3))
    _, sizes, axes = np.linalg.svd(X, full_matrices=False)
    np.testing.assert_allclose(raw.singular_values_, sizes, rtol=1e-12)
    np.testing.assert_allclose(raw.components_, signs_fixed(axes), atol=1e-10)
    scaled = fastdr.PCA(standardize=True, svd_solver=solver).fit(X)
    value, axes = np.linalg.eigh(np.corrcoef(X, rowvar=False))
    np.testing.assert_allclose(scaled.explained_variance_, value[::-1], rtol=1e-12)
    np.testing.assert_allclose(scaled.components_, signs_fixed(axes.T[::-1]), atol=1e-10)
    np.testing.assert_allclose(scaled.inverse_transform(scaled.transform(X)), X, atol=1e-12)


def test_c62_a_constant_column_when_standardising(rng, solver):
    X = rng.standard_normal((50, 3))
    X[:, 1] = 7.3
    with pytest.warns(UserWarning, match=r"1 constant column\(s\) \(1\)"):
        model = fastdr.PCA(standardize=True, svd_solver=solver).fit(X)
    Z = model.transform(X)
    assert np.isfinite(Z).all()
    np.testing.assert_allclose(model.explained_variance_.sum(), 2, rtol=1e-12)
    np.testing.assert_allclose(model.inverse_transform(Z), X, atol=1e-12)


def test_c63_loadings_relate_features_and_components(iris, solver):
    X = (iris - iris.mean(axis=0)) / iris.std(axis=0, ddof=1)
    model = fastdr.PCA(svd_solver=solver).fit(X)
    np.testing.assert_allclose(np.abs(model.components_[0]), [0.521, 0.269, 0.580, 0.565],
                               atol=5e-4)
    loadings = np.asarray(model.loadings(), float)
    assert loadings.shape == (4, 4)
    np.testing.assert_allclose(loadings,
                               model.components_.T * np.sqrt(model.explained_variance_), rtol=1e-13)
    correlation = np.corrcoef(X.T, model.transform(X).T)[:4, 4:]
    np.testing.assert_allclose(loadings, correlation, atol=1e-12)
    assert np.abs(loadings).max() <= 1 + 1e-12
