"""PCA as an estimator: scikit-learn's contract, parameters, choices of k, state and reports."""

import copy
import pickle
from math import lgamma, log, pi

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.decomposition import PCA as ScikitPCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from tolerance import assert_orthonormal, eigenvalue_error, turned

import fastdr
from fastdr.dimension import fraction, minka, minka_evidence
from fastdr.plan import ITERATIVE
from fastdr.scatter import single_error
from fastdr.sources import BlockSource
from fastdr.statistics import FEW_ROWS


@pytest.mark.parametrize("parameters", [
    {}, {"n_components": 2, "whiten": "zca"}, {"standardize": True}, {"svd_solver": "svd"},
    {"n_components": 0.9, "whiten": True}], ids=str)
@pytest.mark.filterwarnings("ignore:.*constant column:UserWarning")
def test_scikit_learn_finds_an_estimator_of_its_own_kind(parameters):
    for result in check_estimator(fastdr.PCA(**parameters), on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped


@pytest.mark.parametrize("k", [None, 1, 10, 30, 0.5, 0.95, "mle"])
@pytest.mark.parametrize("whiten", [False, True])
def test_digits_agree_with_scikit_learn(digits, solver, k, whiten):
    if k == "mle" and solver in ITERATIVE:
        with pytest.raises(ValueError, match="n_components='mle' cannot be a string"):
            fastdr.PCA(k, svd_solver=solver).fit(digits)
        return
    ours = fastdr.PCA(k, svd_solver=solver, whiten=whiten).fit(digits)
    theirs = ScikitPCA(k, svd_solver="full", whiten=whiten).fit(digits)
    kept, rank = ours.n_components_, ours.rank_
    assert kept == theirs.n_components_
    bound = eigenvalue_error(64, theirs.explained_variance_[0])
    for name in ("explained_variance_", "explained_variance_ratio_", "noise_variance_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=bound)
    np.testing.assert_allclose(ours.singular_values_[:rank], theirs.singular_values_[:rank],
                               rtol=1e-9)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-14)
    assert_orthonormal(ours.components_)
    apart = min(kept, 55)  # gaps of the last few are small
    near = 1e-9
    if solver == "power":
        near += turned(ours, ScikitPCA(svd_solver="full").fit(digits).explained_variance_)
    np.testing.assert_allclose(ours.components_[:apart], theirs.components_[:apart], atol=near)
    if kept < 60 and not whiten:
        np.testing.assert_allclose(ours.score(digits), theirs.score(digits), rtol=1e-10)


def test_pipelines_keep_the_accuracy_with_fewer_features(digits):
    from sklearn.datasets import load_digits
    target = load_digits().target
    pipeline = make_pipeline(fastdr.PCA(20, whiten=True), LogisticRegression(max_iter=500))
    assert pipeline.fit(digits[:1200], target[:1200]).score(digits[1200:], target[1200:]) > 0.88


def test_standardize_is_the_pca_of_scaled_columns(wine, solver):
    ours = fastdr.PCA(5, standardize=True, svd_solver=solver).fit(wine)
    scaled = StandardScaler().fit_transform(wine) * np.sqrt(177 / 178)
    theirs = ScikitPCA(5, svd_solver="full").fit(scaled)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(ours.components_, theirs.components_, atol=1e-11)
    np.testing.assert_allclose(ours.transform(wine), theirs.transform(scaled), atol=1e-11)
    np.testing.assert_allclose(ours.scale_, wine.std(0, ddof=1), rtol=1e-13)
    np.testing.assert_allclose(ours.total_variance_, 13, rtol=1e-13)
    restored = theirs.inverse_transform(theirs.transform(scaled)) * ours.scale_ + wine.mean(0)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(wine)), restored, rtol=1e-11)
    np.testing.assert_allclose(
        ours.score(wine), theirs.score(scaled) - np.log(ours.scale_).sum(), rtol=1e-12)
    correlations = np.corrcoef(np.hstack([wine, ours.transform(wine)]).T)[:13, 13:]
    np.testing.assert_allclose(ours.loadings(), correlations, atol=1e-12)


def test_a_known_mean_has_divisor_n(iris, solver):
    mean = iris.mean(0) + [0.1, 0, -0.2, 0]
    model = fastdr.PCA(mean=mean, svd_solver=solver).fit(iris)
    values = np.linalg.eigvalsh((iris - mean).T @ (iris - mean) / 150)[::-1]
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-12)
    np.testing.assert_array_equal(model.mean_, mean)
    for k in range(5):
        model = fastdr.PCA(k if solver not in ITERATIVE else max(k, 1), mean=mean,
                           svd_solver=solver).fit(iris)
        np.testing.assert_allclose(model.reconstruction_error(iris), model.model_.left_out,
                                   rtol=1e-10, atol=1e-13)


def in_blocks(X, **known):
    return BlockSource(lambda: (X[i:i + 70] for i in range(0, len(X), 70)), X.shape[1], **known)


def in_batches(pca, X, weights):
    for start in range(0, len(X), 70):
        part = slice(start, start + 70)
        pca.partial_fit(X[part], sample_weight=None if weights is None else weights[part])
    return pca


FAR = {
    "array": lambda pca, X, w: pca.fit(X, sample_weight=w),
    "blocks": lambda pca, X, w: pca.fit(in_blocks(X, rows=len(X), dtype=X.dtype), sample_weight=w),
    "batches": in_batches,
    "sparse": lambda pca, X, w: pca.fit(csr_array(X), sample_weight=w),
    "read once": lambda pca, X, w: pca.fit(iter(np.array_split(X, 3))),
}


@pytest.mark.parametrize("way", FAR)
@pytest.mark.parametrize("shape", [(210, 3), (9000, 3), (7, 30)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kind", ["f8", "f4"])
def test_a_known_mean_far_from_zero_costs_no_digits(rng, way, shape, weighted, standardize, kind):
    if way == "read once" and (weighted or shape[0] < shape[1]):
        pytest.skip("the number of rows is not known")
    offset, step = (1e10, 1024.0) if kind == "f8" else (2.0**20, 4.0)
    N = rng.integers(-3 * step, 3 * step, shape)
    weights = rng.integers(0, 3, shape[0]).astype(float) if weighted else None
    counts = np.ones(shape[0]) if weights is None else weights
    A = N / step + 2
    square = (A.T * counts) @ A / counts.sum()
    scale = np.sqrt(np.diagonal(square)) if standardize else np.ones(shape[1])
    expected = np.linalg.svd(np.sqrt(counts)[:, None] * A / scale, compute_uv=False)**2
    expected /= counts.sum()
    pca = fastdr.PCA(2, mean=np.full(shape[1], offset - 2), standardize=standardize)
    found = FAR[way](pca, (N / step + offset).astype(kind), weights)
    atol = 2 * eigenvalue_error(max(min(shape), 3), expected[0])
    in_single = way in ("array", "blocks", "read once") and shape[0] > FEW_ROWS
    if kind == "f4" and (in_single or (shape[0] < shape[1] and way != "sparse")):
        atol = single_error(shape[0]) * expected.sum()
    np.testing.assert_allclose(found.explained_variance_, expected[:2], rtol=0, atol=atol)
    total = (np.diagonal(square) / scale**2).sum()
    assert found.total_variance_ == pytest.approx(total, rel=max(1e-14, atol / total / 100))
    told = found.certificate_
    assert (told.lower <= expected[:2] + atol / 8).all()
    assert (told.upper >= expected[:2] - atol / 8).all()


def test_what_is_said_of_a_known_mean_does_not_depend_on_the_solver(rng, solver):
    A = rng.integers(-3000, 3000, (200, 3)) * [3, 2, 1] / 1024
    expected = np.linalg.svd(A, compute_uv=False)[:2]**2 / 200
    found = fastdr.PCA(2, mean=np.full(3, 1e10), svd_solver=solver).fit(A + 1e10)
    np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-12)
    assert found.total_variance_ == pytest.approx(np.trace(A.T @ A) / 200, rel=1e-14)


@pytest.mark.parametrize("given", [np.asarray, csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("shape", [(50, 3), (3, 50), (50, 1)])
@pytest.mark.parametrize(("offset", "size"), [
    (1e160, 1.0), (1e308, 1.0), (1.0, 1e-200), (1e-170, 1e-200), (-1e-200, 1e-200)])
def test_a_known_mean_may_be_of_another_scale_than_the_rows(rng, given, shape, offset, size):
    """Variances that float64 does not hold are infinite or 0, and their shares are right."""
    X, k = rng.standard_normal(shape), min(2, *shape)
    unit = 2.0 ** -np.frexp(offset)[1]
    far = np.ldexp(X, int(np.log2(unit))) * size - offset * unit
    expected = np.linalg.svd(far, compute_uv=False)**2
    for solver in ("auto", "lapack", "lanczos"):
        found = fastdr.PCA(k, mean=np.full(shape[1], offset), svd_solver=solver).fit(
            given(X * size))
        np.testing.assert_allclose(found.explained_variance_ratio_, expected[:k] / expected.sum(),
                                   atol=1e-14)
        with np.errstate(over="ignore", under="ignore"):
            largest = expected[0] / shape[0] / unit / unit
        np.testing.assert_allclose(found.explained_variance_[0], largest, rtol=1e-12)


def test_an_svd_about_a_mean_of_another_scale(rng):
    X = rng.standard_normal((50, 3))
    for offset, size in ((1e160, 1.0), (1.0, 1e-200)):
        found = fastdr.PCA(mean=np.full(3, offset), svd_solver="svd").fit(X * size)
        np.testing.assert_allclose(found.explained_variance_ratio_, [1, 0, 0], atol=1e-14)


@pytest.mark.parametrize("factor", [1e200, 1e-170])
@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize("mean", [None, 0.0])
def test_rows_read_once_whose_squares_leave_float64_are_refused(rng, factor, rows, mean):
    X = rng.standard_normal((300, 2)) * factor
    pca = fastdr.PCA(1, mean=None if mean is None else np.full(2, mean))
    with pytest.raises(ValueError, match="range of float64; pass an array, or multiply the rows"):
        pca.fit(X[start:start + rows] for start in range(0, 300, rows))


def test_rows_read_once_one_by_one_may_still_vary():
    blocks = (np.full((3, 2), value) for value in (1e-170, 1e-170, 2e-170))
    with pytest.raises(ValueError, match="up to 0 in sum"):
        fastdr.PCA(1).fit(blocks)


@pytest.mark.parametrize("mean", [None, np.full(2, 1e-170)])
def test_equal_rows_read_once_have_no_variance(mean):
    with pytest.warns(UserWarning, match="All rows are equal"):
        found = fastdr.PCA(1, mean=mean).fit(np.full((3, 2), 1e-170) for _ in range(4))
    assert found.total_variance_ == 0


def test_rows_of_no_weight_do_not_vary():
    X, weights = np.full((6, 2), 1e-170), np.array([1.0, 1, 1, 1, 1, 0])
    X[5] = 1
    once = in_blocks(X, rows=6, rereadable=False)
    with pytest.warns(UserWarning, match="All rows are equal"):
        found = fastdr.PCA(1).fit(once, sample_weight=weights)
    assert found.total_variance_ == 0


def test_batches_about_a_mean_too_far_off_are_refused(rng):
    pca = fastdr.PCA(1, mean=np.full(2, 1e160)).partial_fit(rng.standard_normal((300, 2)))
    with pytest.raises(ValueError, match="leave the range of float64"):
        pca.explained_variance_  # noqa: B018


def test_weights_stand_for_rows(rng, solver, floating):
    X = np.array([[0, 0], [2, 0], [0, 1]], floating)
    model = fastdr.PCA(svd_solver=solver).fit(X, sample_weight=[1, 2, 3])
    np.testing.assert_allclose(model.mean_, [2 / 3, 1 / 2], rtol=1e-14)
    np.testing.assert_allclose(model.explained_variance_, [1.237359, 0.129308], atol=5e-7)
    assert model.n_samples_ == 6
    X = rng.standard_normal((30, 6)).astype(floating)
    weights = rng.integers(0, 4, 30)
    one = fastdr.PCA(4, svd_solver=solver).fit(X, sample_weight=weights)
    other = fastdr.PCA(4, svd_solver=solver).fit(np.repeat(X, weights, axis=0))
    for name in ("explained_variance_", "noise_variance_", "mean_", "singular_values_"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)
    scaled = fastdr.PCA(4, svd_solver=solver).fit(X, sample_weight=weights * 7.5)
    np.testing.assert_allclose(scaled.explained_variance_ratio_, one.explained_variance_ratio_,
                               rtol=1e-12)


@pytest.mark.parametrize(("weights", "words"), [
    ([0.1, 0.2, 0.3], "sum 0.6"), ([1, 0, 0], "sum 1"), ([0, 0, 0], "zero for every row"),
    ([1, -1, 1], "row 1 has -1"), ([1, np.nan, 1], "index 1"), ([1, 1], r"shape \(2,\)")])
def test_useless_weights_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        fastdr.PCA().fit(np.eye(3), sample_weight=weights)


@pytest.mark.parametrize(("name", "value"), [("whiten", 1), ("standardize", "yes")])
def test_parameters_are_judged_before_the_rows_are_read(value, name):
    rows = fastdr.open_rows(np.ones((2, 3)) for _ in range(2))
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed"):
        fastdr.PCA(**{name: value}).fit(rows)
    assert sum(len(block) for block in rows.blocks()) == 4


@pytest.mark.parametrize("estimator", [fastdr.PCA, fastdr.IncrementalPCA])
def test_flags_of_numpy_are_flags(iris, estimator):
    for flag in (False, True):
        found, expected = (estimator(2, whiten=value, standardize=value).fit(iris)
                           for value in (np.bool_(flag), flag))
        np.testing.assert_array_equal(found.transform(iris), expected.transform(iris))
        assert found.model_.whiten == expected.model_.whiten


@pytest.mark.parametrize(("name", "value"), [
    ("whiten", "cholesky"), ("svd_solver", "gpu"), ("certificate", "full"), ("tol", -1.0),
    ("tol", np.inf), ("standardize", "yes"), ("standardize", 1), ("whiten", 1), ("whiten", 0),
    ("max_memory", "a lot"), ("n_oversamples", 0), ("iterated_power", -1),
    ("power_iteration_normalizer", "SVD")])
def test_parameters_out_of_range_are_named(iris, name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed; it must be"):
        fastdr.PCA(**{name: value}).fit(iris)


def test_allowed_solvers_are_listed(iris):
    with pytest.raises(ValueError, match="auto, lapack, svd, lanczos, power, randomized, full, c"):
        fastdr.PCA(svd_solver="gpu").fit(iris)


@pytest.mark.parametrize(("asked", "used", "words"), [
    ("auto", "lapack", "rows at least as many"), ("svd", "svd", "as asked"),
    ("full", "svd", "as asked"), ("covariance_eigh", "lapack", "rows at least"),
    ("arpack", "lanczos", "as asked"), ("lanczos", "lanczos", "as asked"),
    ("power", "power", "as asked"), ("randomized", "randomized", "as asked")])
def test_the_report_says_what_was_done(iris, asked, used, words):
    model = fastdr.PCA(2, svd_solver=asked).fit(iris)
    assert model.solver_used_ == model.report_["solver"] == used
    assert model.report_["asked_for"] == asked
    assert words in model.report_["reason"]
    assert model.report_["passes"] >= 1
    assert all(len(line) <= 80 for line in str(model.report_).splitlines())
    assert 0 < model.report_["variance_error"] < 1e-12


def test_a_failed_fit_changes_nothing(iris):
    pd = pytest.importorskip("pandas")
    model = fastdr.PCA(2).fit(pd.DataFrame(iris, columns=list("abcd")))
    before = dict(vars(model))
    bad = iris[:, :3].copy()
    bad[7, 2] = np.nan
    for X in (bad, iris[:1], iris.astype(complex), [[1, "x"]], np.zeros((3, 0))):
        with pytest.raises((ValueError, TypeError)):
            model.fit(X)
        assert vars(model) == before
    model.n_components = 9
    with pytest.raises(ValueError, match="150 samples and 4 features"):
        model.fit(iris)
    assert model.transform(pd.DataFrame(iris, columns=list("abcd"))).shape == (150, 2)


def test_attributes_can_be_set_by_hand(iris):
    fitted = fastdr.PCA(2, whiten=True).fit(iris)
    for names in (("components_", "mean_"), ("mean_", "components_")):
        made = fastdr.PCA(2)
        for name in names:
            setattr(made, name, getattr(fitted, name))
        plain = fastdr.PCA(2).fit(iris).transform(iris)
        np.testing.assert_array_equal(made.transform(iris), plain)
    made = fastdr.PCA(2, whiten=True)
    with pytest.raises(AttributeError, match="set components_"):
        made.explained_variance_ = [1.0]
    for name in ("components_", "mean_", "explained_variance_", "noise_variance_"):
        setattr(made, name, getattr(fitted, name))
    np.testing.assert_array_equal(made.transform(iris), fitted.transform(iris))
    np.testing.assert_allclose(made.score(iris), fitted.score(iris))
    fitted.components_ = -fitted.components_
    assert (fitted.transform(iris)[0] == -made.transform(iris)[0]).all()
    fitted.components_ = fitted.components_[:1]
    assert fitted.transform(iris).shape == (150, 1)


def test_an_unfitted_estimator_has_no_results():
    for name in ("components_", "mean_", "explained_variance_", "report_", "n_components_"):
        assert not hasattr(fastdr.PCA(), name)


def test_pickles_of_other_versions(iris):
    model = fastdr.PCA(2, whiten="zca").fit(iris)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(twin.transform(iris), model.transform(iris))
        assert twin.get_params() == model.get_params()
    state = model.__getstate__()
    older = {name: value for name, value in state.items()
             if name not in {"standardize", "progress", "_pickle_format"}}
    restored = fastdr.PCA.__new__(fastdr.PCA)
    restored.__setstate__(older)
    assert restored.standardize is False
    np.testing.assert_array_equal(restored.transform(iris), model.transform(iris))
    with pytest.raises(ValueError, match="pickled in format 99.*Upgrade"):
        restored.__setstate__({**state, "_pickle_format": 99})


@pytest.mark.parametrize("k", [2, None, 0.9, "mle"])
@pytest.mark.parametrize("known", [True, False])
def test_a_source_gives_what_its_rows_give(iris, k, known):
    def opened():
        return (iris[i:i + 40] for i in range(0, 150, 40))

    source = BlockSource(opened, 4, 150 if known else None, columns=list("abcd"))
    model, reference = fastdr.PCA(k).fit(source), fastdr.PCA(k).fit(iris)
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_,
                               rtol=1e-12)
    assert list(model.feature_names_in_) == list("abcd")
    assert model.model_.feature_names == tuple("abcd")
    assert model.n_samples_ == 150
    np.testing.assert_array_equal(fastdr.PCA(k).fit_transform(source),
                                  model.model_.transform(iris))
    if not known:
        with pytest.raises(ValueError, match="knows its number of rows"):
            model.fit(source, sample_weight=np.ones(150))


def test_progress_goes_to_stderr(iris, capsys):
    model = fastdr.PCA(2, progress=True).fit(iris)
    out, err = capsys.readouterr()
    assert out == ""
    assert "reading rows" in err
    np.testing.assert_allclose(model.components_, fastdr.PCA(2).fit(iris).components_, atol=1e-14)


def test_loadings_have_names(iris):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(iris, columns=["sl", "sw", "pl", "pw"])
    model = fastdr.PCA(2, standardize=True).fit(frame)
    table = model.loadings(as_frame=True)
    assert list(table.index) == ["sl", "sw", "pl", "pw"]
    assert list(table.columns) == ["pca0", "pca1"]
    np.testing.assert_array_equal(table.to_numpy(), model.loadings())
    np.testing.assert_allclose(model.components_[0], [0.521, -0.269, 0.580, 0.565], atol=5e-4)


def test_zca_gives_features_back(iris):
    model = fastdr.PCA(whiten="zca").fit(iris)
    Z = model.transform(iris)
    np.testing.assert_allclose(np.cov(Z, rowvar=False), np.eye(4), atol=1e-12)
    np.testing.assert_allclose(model.inverse_transform(Z), iris, atol=1e-13)
    assert len(model.get_feature_names_out()) == 4
    assert len(fastdr.PCA(2, whiten="zca").fit(iris).get_feature_names_out()) == 4


def brute_evidence(variances, k, n):
    """Minka's evidence term by term: every pair, no prefix sums."""
    d = len(variances)
    noise = variances[k:].mean()
    inverse = np.r_[1 / variances[:k], np.full(d - k, 1 / noise)]
    prior = -k * log(2) + sum(lgamma((d - i) / 2) - log(pi) * (d - i) / 2 for i in range(k))
    degrees = d * k - k * (k + 1) / 2
    hessian = sum(log((variances[i] - variances[j]) * (inverse[j] - inverse[i]) * n)
                  for i in range(k) for j in range(i + 1, d))
    return (prior - n / 2 * np.log(variances[:k]).sum() - n / 2 * (d - k) * log(noise)
            + (degrees + k) / 2 * log(2 * pi) - hessian / 2 - k / 2 * log(n))


def test_minka_evidence_equals_the_sum_over_pairs(rng):
    variances = np.sort(rng.gamma(1.0, size=12))[::-1]
    expected = [brute_evidence(variances, k, 200) for k in range(1, 12)]
    np.testing.assert_allclose(minka_evidence(variances, 200), expected, rtol=1e-12)
    np.testing.assert_allclose(minka_evidence(variances * 1e-200, 200) - expected,
                               np.full(11, 200 * 12 / 2 * 200 * log(10)), rtol=1e-10)


@pytest.mark.parametrize(("variances", "kept"), [
    ([0.0], 1), ([3.0], 1), ([0.0, 0.0], 1), ([1.0, 1e-30, 1e-31], 1), ([2.0, 2.0, 2.0], None),
    ([5.0, 5.0, 5.0, 0.1, 0.1, 0.1], None), ([9.0, 4.0, 0.0, 0.0], 2)])
def test_minka_on_ties_and_zeros(variances, kept):
    chosen = minka(np.array(variances), 100)
    assert 1 <= chosen <= max(1, len(variances) - 1)
    assert kept in (None, chosen)


def test_fraction_is_strict_and_bounded():
    values = np.array([18.0, 8.0, 2.0])
    for share, kept in ((9 / 14, 2), (np.nextafter(9 / 14, 0), 1), (13 / 14, 3),
                        (np.nextafter(1, 0), 3), (5e-324, 1)):
        assert fraction(values, 28.0, 5.0, share) == kept
    assert fraction(np.zeros(3), 0.0, 5.0, 0.5) == 1
    assert fraction(np.array([0.1] * 10), 1.0000000000000002, 1.0, 0.9999999999999999) == 10
