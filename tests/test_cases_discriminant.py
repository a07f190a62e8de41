"""Cases from people who do this job: discriminants, C94 to C103."""

import tracemalloc
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_wine

import fastdr
from fastdr import LinearDiscriminantAnalysis as LDA
from fastdr.sources import BlockSource

SOLVERS = ["auto", "svd", "eigen"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_c94_no_more_components_than_there_are(rng, solver):
    X, y = rng.standard_normal((10, 5)), np.arange(10) % 2
    with pytest.raises(ValueError, match=r"n_components=2, 5 features and 2 classes: pass at mo"):
        LDA(solver, n_components=2).fit(X, y)
    spread = np.array([[0.5, 0.2], [-0.5, 0.3], [0.25, -0.75], [-0.25, 0.25]])
    X = np.concatenate([spread + [shift, 0] for shift in (0.0, 3.0, 6.0)])
    y = np.repeat([0, 1, 2], 4)
    with pytest.warns(UserWarning, match=r"Only 1 direction\(s\) separate the class means"):
        lda = LDA(solver, n_components=2).fit(X, y)
    assert lda.n_components_ == lda.transform(X).shape[1] == 1
    assert lda.explained_variance_ratio_ == pytest.approx([1.0])
    assert len(lda.get_feature_names_out()) == 1
    assert LDA(solver).fit(X, y).n_components_ == 1


@pytest.mark.parametrize("solver", [*SOLVERS, "lsqr"])
def test_c95_singular_scatter_within_classes(rng, solver):
    y = np.arange(60) % 3
    X = rng.standard_normal((60, 5)) + y[:, None]
    X[:, 4] = X[:, 0]
    duplicate, without = LDA(solver).fit(X, y), LDA(solver).fit(X[:, :4], y)
    assert duplicate.report_["rank"] == 4
    np.testing.assert_allclose(duplicate.predict_proba(X), without.predict_proba(X[:, :4]),
                               atol=1e-11)
    X[:, 4] = 7.0
    constant = LDA(solver).fit(X, y)
    assert constant.report_["rank"] == 4
    np.testing.assert_allclose(constant.predict_proba(X), without.predict_proba(X[:, :4]),
                               atol=1e-13)
    assert not constant.coef_[:, 4].any()
    with pytest.raises(ValueError, match="the within-class variance is zero"):
        LDA(solver).fit([[0], [1], [1]], [0, 1, 1])
    X[:, 4] = y
    with pytest.warns(fastdr.AccuracyWarning, match=r"1 column\(s\) \(4\) are constant within"):
        telling = LDA(solver).fit(X, y)
    np.testing.assert_allclose(telling.predict_proba(X), constant.predict_proba(X), atol=1e-13)


def test_c95_more_features_than_rows(rng):
    y = np.arange(12) % 3
    X = rng.standard_normal((12, 50)) + 2 * np.eye(3, 50)[y]
    for shrinkage in (0.5, "auto", 1.0):
        assert LDA(shrinkage=shrinkage).fit(X, y).score(X, y) == 1.0
    X[:, 3], X[:, 7] = 1.0, X[:, 8]
    plain = LDA().fit(X, y)
    assert plain.report_["rank"] == 9
    assert np.isfinite(plain.transform(X)).all()


@pytest.mark.parametrize(("rows", "features"), [(300, 6), (40, 60)])
def test_c95_near_dependence_goes_through_qr(rng, rows, features):
    y = np.arange(rows) % 3
    X = rng.standard_normal((rows, features)) + y[:, None]
    if rows > features:
        X[:, 1] = X[:, 0] + 1e-7 * X[:, 1]
    else:  # two rows of a class
        X[3] = X[0] + 1e-7 * X[3]
    near = LDA(tol=1e-12).fit(X, y)
    assert "cholesky" not in near.report_["method"]
    A = (X - near.means_[y]) / np.sqrt(rows)  # the same by SVD of the rows
    scale = np.linalg.norm(A, axis=0)
    _, sizes, axes = np.linalg.svd(A / scale, full_matrices=False)
    kept = sizes > 1e-11
    whitened = (near.means_ - near.xbar_) / scale @ axes[kept].T / sizes[kept]
    values = np.linalg.svd(whitened * np.sqrt(near.priors_)[:, None], compute_uv=False)[:2] ** 2
    np.testing.assert_allclose(near.separations_, values, rtol=1e-7)
    tight = LDA().fit(X, y)  # below scikit-learn's default tol they count as one
    assert near.report_["rank"] == kept.sum() == tight.report_["rank"] + 1
    if rows > features:
        once = iter([X])
        with pytest.warns(fastdr.AccuracyWarning, match="cannot be read again"):
            LDA(tol=1e-12).fit(BlockSource(lambda: once, features, rereadable=False), y)


def test_c95_a_class_of_one_row(rng):
    X = rng.standard_normal((31, 4))
    y = np.array([0] * 15 + [1] * 15 + [2])
    X[y == 2] += 9
    for shrinkage in (None, 0.1, "auto"):
        lda = LDA(shrinkage=shrinkage).fit(X, y)
        assert lda.predict(X[-1:]) == [2]
    with pytest.raises(ValueError, match="number of classes has to be greater than one; got 1"):
        LDA().fit(X, np.zeros(31))
    with pytest.raises(ValueError, match="The number of samples must be more"):
        LDA().fit(X[:3], [0, 1, 2])


def test_c99_solvers_agree_and_all_shrink():
    X, y = load_wine(return_X_y=True)
    plain = LDA("svd").fit(X, y)
    np.testing.assert_allclose(plain.transform(X).std(0), [3.175175, 2.264612], atol=5e-7)
    np.testing.assert_allclose(plain.explained_variance_ratio_, [0.687479, 0.312521], atol=5e-7)
    centred = plain.transform(X) - plain.transform(plain.means_)[y]
    np.testing.assert_allclose(centred.T @ centred / 178, np.eye(2), atol=1e-12)
    for solver in SOLVERS:
        other = LDA(solver).fit(X, y)
        np.testing.assert_allclose(other.transform(X), plain.transform(X), atol=1e-12)
        np.testing.assert_array_equal(other.predict(X), plain.predict(X))
    for shrinkage in (0.1, "auto"):
        one, other = (LDA(solver, shrinkage).fit(X, y) for solver in ("auto", "eigen"))
        np.testing.assert_array_equal(one.transform(X), other.transform(X))


@pytest.mark.slow
def test_c100_memory_is_one_square_whatever_the_classes(rng):
    X, y = rng.standard_normal((20_000, 100)), rng.integers(0, 2000, 20_000)
    wide, label = rng.standard_normal((100, 20_000)), rng.integers(0, 4, 100)
    LDA().fit(X[:300], y[:300] % 5)
    for rows, labels, allowed in ((X, y, 16e6 + 3 * 2000 * 100 * 8 + 40e6),
                                  (wide, label, 3 * (100**2 + 4 * 20_000) * 8 + 40e6)):
        tracemalloc.start()
        LDA().fit(rows, labels)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < allowed  # one covariance a class would be 160 MB, d x d 3.2 GB


def test_c103_weights_and_partial_fit_equal_fit(rng):
    X, y = rng.standard_normal((90, 4)), np.arange(90) % 3
    X += y[:, None]
    weight = rng.integers(1, 4, 90)
    weighted = LDA().fit(X, y, sample_weight=weight)
    repeated = LDA().fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-12)
    parts = LDA()
    for part in np.array_split(np.arange(90), 3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parts.partial_fit(X[part], y[part])
    whole = LDA().fit(X, y)
    np.testing.assert_allclose(parts.coef_, whole.coef_, atol=1e-12)
    np.testing.assert_allclose(parts.transform(X), whole.transform(X), atol=1e-12)
