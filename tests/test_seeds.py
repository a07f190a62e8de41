"""The worked examples of the lecture notes this library grew from, by number."""

import numpy as np
import pytest
from reference import signs_fixed
from tolerance import assert_orthonormal, eigenvalue_error, rounding

import fastdr

SOLVERS = ["auto", "lapack", "svd", "lanczos"]


@pytest.fixture
def rows(rng):
    """Correlated rows (200, 6) away from zero."""
    return rng.standard_normal((200, 6)) @ rng.standard_normal((6, 6)) + [1, -2, 3, 0, 10, -7]


def test_s1_sample_covariance_equals_numpy(rows):
    np.testing.assert_allclose(fastdr.covariance(rows), np.cov(rows, rowvar=False),
                               atol=rounding("f8", 16, np.cov(rows, rowvar=False).max()))


def test_s2_both_divisors_and_a_known_mean(rows):
    mean = np.array([1.0, -2, 3, 0, 10, -7])
    A, B = rows - mean, rows - rows.mean(axis=0)
    for ddof, divisor in ((None, 200), (0, 200), (1, 199)):
        np.testing.assert_allclose(fastdr.covariance(rows, mean=mean, ddof=ddof), A.T @ A / divisor,
                                   rtol=1e-11, atol=1e-12)
    for ddof, divisor in ((None, 199), (0, 200), (1, 199)):
        np.testing.assert_allclose(fastdr.covariance(rows, ddof=ddof), B.T @ B / divisor,
                                   rtol=1e-11, atol=1e-12)
    model = fastdr.PCA(mean=mean).fit(rows)
    np.testing.assert_allclose(model.explained_variance_,
                               np.linalg.eigvalsh(A.T @ A / 200)[::-1], rtol=1e-11)
    np.testing.assert_array_equal(model.mean_, mean)


@pytest.mark.parametrize("solver", SOLVERS)
def test_s5_eigen_decomposition_of_the_covariance(rows, solver):
    model, C = fastdr.PCA(svd_solver=solver).fit(rows), fastdr.covariance(rows)
    P, D = model.components_.T, model.explained_variance_
    assert_orthonormal(P.T)
    assert (np.diff(D) <= 0).all()
    assert np.linalg.norm(C @ P - P * D) <= eigenvalue_error(6, D[0])
    assert np.linalg.norm((P * D) @ P.T - C) <= eigenvalue_error(6, D[0])


@pytest.mark.parametrize("solver", SOLVERS)
def test_s6_example_1_12_singular_values(solver):
    A = np.array([[1, -0.8], [0, 1], [1, 0]])
    model = fastdr.PCA(mean=[0, 0], svd_solver=solver).fit(A)
    np.testing.assert_allclose(model.singular_values_, [1.62, 1.00], atol=0.005)
    np.testing.assert_allclose(np.abs(model.components_.T), [[0.78, 0.62], [0.62, 0.78]],
                               atol=0.006)
    np.testing.assert_allclose(model.singular_values_**2, np.linalg.eigvalsh(A.T @ A)[::-1],
                               rtol=1e-14)
    scores = model.transform(A)  # A V = U S
    np.testing.assert_allclose(np.linalg.norm(scores, axis=0), model.singular_values_, rtol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS)
def test_s7_kl_transform_is_lossless_and_uncorrelated(rows, solver, floating):
    X = rows.astype(floating)
    model = fastdr.PCA(svd_solver=solver)
    z = model.fit_transform(X)
    size = np.abs(X).max()
    np.testing.assert_allclose(model.inverse_transform(z), X, atol=rounding(floating, 6, size))
    C = fastdr.covariance(z.astype(float))
    bound = eigenvalue_error(6, C[0, 0], floating)
    assert np.abs(C - np.diag(model.explained_variance_)).max() <= bound
    assert np.abs(z.mean(axis=0, dtype=float)).max() <= rounding(floating, 6, size)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("whiten", ["pca", "zca"])
def test_s8_whitening_is_identity_on_the_numerical_rank(rows, solver, whiten):
    X = np.column_stack([rows, rows[:, 0] + rows[:, 1], np.full(200, 3.0)])
    model = fastdr.PCA(whiten=whiten, svd_solver=solver).fit(X)
    Z = model.transform(X)
    values = np.linalg.eigvalsh(np.cov(Z, rowvar=False))[::-1]
    np.testing.assert_allclose(values[:6], 1, rtol=1e-10)
    np.testing.assert_allclose(values[6:], 0, atol=1e-10)
    assert np.abs(Z).max() <= np.sqrt(199)
    assert model.rank_ == 6
    if whiten == "zca":  # of all whitenings the one closest to the data; symmetric
        assert Z.shape == X.shape
        assert np.trace(np.cov((X - X.mean(axis=0)).T, Z.T)[:8, 8:]) > 0
    full = fastdr.PCA(whiten=whiten, svd_solver=solver).fit_transform(rows)
    np.testing.assert_allclose(np.cov(full, rowvar=False), np.eye(6), atol=1e-11)


def test_s8_zca_is_the_inverse_root_of_the_covariance(rows):
    C = np.cov(rows, rowvar=False)
    value, axes = np.linalg.eigh(C)
    expected = (rows - rows.mean(axis=0)) @ (axes / np.sqrt(value)) @ axes.T
    np.testing.assert_allclose(fastdr.PCA(whiten="zca").fit_transform(rows), expected, atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_s9_no_other_axes_capture_more_variance(rows, solver, k, rng):
    model, C = fastdr.PCA(k, svd_solver=solver).fit(rows), np.cov(rows, rowvar=False)
    V = model.components_
    captured = np.diagonal(V @ C @ V.T)
    np.testing.assert_allclose(captured, model.explained_variance_, rtol=1e-11)
    np.testing.assert_allclose(fastdr.project(rows, V, model.mean_).var(axis=0, ddof=1), captured,
                               rtol=1e-11)
    for _ in range(20):
        other = np.linalg.qr(rng.standard_normal((6, k)))[0]
        assert np.trace(other.T @ C @ other) <= captured.sum() * (1 + 1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_s10_the_loss_is_the_sum_of_the_left_out_variances(rows, solver):
    everything = fastdr.PCA(svd_solver=solver).fit(rows).explained_variance_
    C = fastdr.covariance(rows, ddof=0)
    for k in range(1, 7):
        model = fastdr.PCA(k, svd_solver=solver).fit(rows)
        Z = model.transform(rows)
        back = model.inverse_transform(Z)
        loss = ((rows - back) ** 2).sum(axis=1).mean()
        bound = rounding("f8", 16, everything.sum())
        assert abs(loss - everything[k:].sum() * 199 / 200) <= bound
        assert abs(model.reconstruction_error(rows) - loss) <= bound
        per_row = model.reconstruction_error(rows, per_row=True)
        assert abs(per_row.mean() - loss) <= bound
        assert abs(model.model_.left_out - everything[k:].sum()) <= bound
        U = model.components_.T
        assert abs(loss - (np.trace(C) - np.trace(U.T @ C @ U))) <= bound
        inside = ((rows - back) * (back - model.mean_)).sum(axis=1)  # (x - x~) is normal to x~
        assert np.abs(inside).max() <= rounding("f8", 6, (rows**2).sum(axis=1).max())


def test_s11_svd_without_forming_the_covariance_keeps_small_variances(rng):
    sizes = 10.0 ** -np.arange(0, 8)
    left = np.linalg.qr(rng.standard_normal((300, 9)) - 0)[0]
    left = np.linalg.qr(left - left.mean(axis=0))[0][:, :8]
    axes = np.linalg.qr(rng.standard_normal((8, 8)))[0].T
    X = (left * sizes) @ axes
    model = fastdr.PCA(svd_solver="svd").fit(X)
    # u s_1 / s_i relative in s: 1e-9 of the smallest; eig(X'X) would have kept no digit of it
    np.testing.assert_allclose(model.singular_values_, sizes, rtol=0, atol=8 * 8 * 2.3e-16)
    np.testing.assert_allclose(np.abs((model.components_ * axes).sum(axis=1)), 1, atol=1e-8)
    usual = fastdr.PCA(3, svd_solver="lapack").fit(X)
    np.testing.assert_allclose(usual.components_, model.components_[:3], atol=1e-11)


def test_s13_centring_and_scaling_lose_nothing(rows):
    model = fastdr.PCA(standardize=True).fit(rows)
    Z = (rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
    np.testing.assert_allclose(model.mean_, rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(model.scale_, rows.std(axis=0, ddof=1), rtol=1e-13)
    np.testing.assert_allclose(model.transform(rows), Z @ model.components_.T, atol=1e-12)
    np.testing.assert_allclose(model.inverse_transform(model.transform(rows)), rows, atol=1e-12)
    assert model.explained_variance_.sum() == pytest.approx(6, rel=1e-13)
    assert fastdr.PCA().fit(rows).scale_ is None


def test_s14_the_sign_of_a_covariance_says_together_or_against(rng):
    x = rng.standard_normal(500)
    X = np.column_stack([x, 2 * x, -x, rng.standard_normal(500)])
    C = fastdr.covariance(X)
    assert C[0, 1] > 0
    assert C[0, 2] < 0
    assert abs(C[0, 3]) < 0.2
    np.testing.assert_allclose(C[0, :3], C[0, 0] * np.array([1, 2, -1]), rtol=1e-13)
    np.testing.assert_allclose(np.diagonal(C), X.var(axis=0, ddof=1), rtol=1e-13)


def test_s15_length_and_shaku():
    axes = np.array([[0.96, 0.29], [0.29, -0.96]])
    point = np.array([[-0.50, -0.09]])
    z = fastdr.project(point, axes)
    np.testing.assert_allclose(z, [[-0.5061, -0.0586]], atol=1e-12)
    unit = axes / np.linalg.norm(axes[0])  # two decimals leave the axes 0.3 % too long
    assert_orthonormal(unit)
    np.testing.assert_allclose(fastdr.reconstruct(fastdr.project(point, unit), unit), point,
                               rtol=1e-15)


def test_s15_two_rulers_measure_one_variable(rng):
    length = rng.uniform(-1, 1, 300)
    X = np.column_stack([length, 0.3 * length]) + 0.01 * rng.standard_normal((300, 2))
    model = fastdr.PCA().fit(X)
    np.testing.assert_allclose(model.components_[0], [0.96, 0.29], atol=0.01)
    assert model.explained_variance_ratio_[0] > 0.999


def test_s16_the_training_transformation_serves_new_data(digits):
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    labels = load_digits().target
    train, test = digits[::2], digits[1::2]
    model = make_pipeline(fastdr.PCA(20), LogisticRegression(max_iter=2000))
    model.fit(train, labels[::2])
    plain = LogisticRegression(max_iter=4000).fit(train, labels[::2])
    reduced = model.score(test, labels[1::2])
    assert reduced >= plain.score(test, labels[1::2]) - 0.03
    pca = model.named_steps["pca"]
    np.testing.assert_allclose(pca.transform(test),
                               (test - train.mean(axis=0)) @ pca.components_.T, atol=1e-11)


def test_s17_scree_plot_and_choice_of_components(digits):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    from fastdr.plots import scree
    model = fastdr.PCA().fit(digits)
    axes = scree(model)
    drawn = np.concatenate([np.asarray(line.get_ydata(), float).ravel() for a in axes.figure.axes
                            for line in a.lines] + [np.array([bar.get_height() for bar in a.patches
                                                              ]) for a in axes.figure.axes])
    assert np.isclose(drawn, model.explained_variance_[0], rtol=1e-6).any() or np.isclose(
        drawn, 100 * model.explained_variance_ratio_[0], rtol=1e-6).any()
    pyplot.close("all")
    chosen = fastdr.PCA(0.9).fit(digits)
    shares = np.cumsum(model.explained_variance_ratio_)
    assert shares[chosen.n_components_ - 1] > 0.9 >= shares[chosen.n_components_ - 2]


@pytest.mark.parametrize("solver", SOLVERS)
def test_s18_images_of_2500_pixels_and_fewer_pictures(digits, solver):
    small = digits[:120].reshape(120, 8, 8)
    grid = np.arange(50) * 8 // 50
    images = small[:, grid][:, :, grid].reshape(120, 2500) / 16
    model = fastdr.PCA(30, svd_solver=solver).fit(images)
    centred = images - images.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(model.singular_values_, sizes[:30], rtol=1e-10)
    np.testing.assert_allclose(model.components_, signs_fixed(axes[:30]), atol=1e-8)
    left = (sizes[30:] ** 2).sum()
    assert model.reconstruction_error(images) * 120 == pytest.approx(left, rel=1e-10)


HOUSES = [
    "real estate agents list houses of three bedrooms",
    "real estate: houses for a single family",
    "houses with three bedrooms and a garden",
    "three bedrooms for a single family near a school",
    "single family homes with three bedrooms",
    "the team won the match by two goals",
    "a late goal decided the match",
    "fans of the team sang during the match",
]


def test_s19_a_query_finds_documents_that_share_no_word_with_it():
    """"real estate" means houses, which have bedrooms, which single families want."""
    from sklearn.feature_extraction.text import CountVectorizer

    words = CountVectorizer().fit(HOUSES)
    asked = words.transform(["real estate"]).toarray()[0]
    shared = words.transform(HOUSES).toarray() @ asked
    lsi = fastdr.LSI(2, vectorizer=CountVectorizer(stop_words="english")).fit(HOUSES)
    cosines = lsi.similarities(["real estate"])[0]
    about = [3, 4]  # three bedrooms, single family
    assert not shared[about].any()
    assert (cosines[about] > 0.9).all()
    assert (cosines[5:] < 0.2).all()
    found = [hit.document for hit in lsi.query("real estate", top=5)]
    assert sorted(found) == [0, 1, 2, 3, 4]
    query = [hit.document for hit in lsi.query("single family", top=5)]
    assert sorted(query) == [0, 1, 2, 3, 4]


def test_s24_many_sparse_rows_and_columns_are_never_made_dense():
    """Its dense copy would have 160 GB, a matrix of its features by features 320 GB."""
    import tracemalloc

    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    rows, features, each = 100_000, 200_000, 3
    columns = np.sort(rng.integers(0, 1000, (rows, each)) * 200 + [0, 1, 2], axis=1)
    X = csr_array((np.ones(rows * each), columns.ravel(), np.arange(0, rows * each + 1, each)),
                  shape=(rows, features))
    fastdr.TruncatedSVD(2).fit(X[:100, :1000])  # compiled
    tracemalloc.start()
    svd = fastdr.TruncatedSVD(2, tol=1e-4).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 600e6
    assert_orthonormal(svd.components_)
    scores = X @ svd.components_.T
    np.testing.assert_allclose(np.linalg.norm(scores, axis=0), svd.singular_values_, rtol=1e-12)
