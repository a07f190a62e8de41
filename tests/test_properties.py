"""Properties that hold for all data, drawn by Hypothesis."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from reference import scatter
from tolerance import assert_orthonormal, merge_error, rounding, scatter_error

import fastdr
from fastdr.statistics import Moments

EPS = np.finfo(float).eps
SOLVERS = st.sampled_from(["auto", "lapack", "svd", "lanczos", "randomized"])
OFFSETS = st.sampled_from([0.0, 1e3, -1e6])
FINITE = st.floats(-1e6, 1e6, width=32)


@st.composite
def tables(draw, min_rows=2, max_rows=60, max_features=9):
    """Random rows with the awkward kinds among them: constant, repeated, tied, rank one."""
    rows = draw(st.integers(min_rows, max_rows))
    features = draw(st.integers(1, max_features))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.standard_normal((rows, features)) * 10.0 ** rng.integers(-2, 3, features)
    kind = draw(st.sampled_from(["plain", "constant", "repeated", "rank one", "whole"]))
    if kind == "constant":
        X[:, 0] = draw(FINITE)
    elif kind == "repeated":
        X[:, -1] = X[:, 0]
    elif kind == "rank one":
        X = np.outer(X[:, 0], rng.standard_normal(features))
    elif kind == "whole":
        X = np.rint(X)
    return X + draw(OFFSETS)


def varies(X):
    """Some column of X is not constant."""
    return bool(np.ptp(X, axis=0).any())


@given(X=tables(min_rows=4), cuts=st.lists(st.floats(0, 1), max_size=5), order=st.randoms(),
       weighted=st.booleans())
def test_merge_in_any_order_and_split(X, cuts, order, weighted):
    rows = len(X)
    weight = np.random.default_rng(rows).integers(1, 5, rows).astype(float) if weighted else None
    edges = sorted({0, rows, *(int(c * rows) for c in cuts)})
    parts = [Moments.of(X[a:b], None if weight is None else weight[a:b])
             for a, b in zip(edges, edges[1:], strict=False)]
    order.shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    whole = Moments.of(X, weight)
    assert total.count == whole.count
    assert total.weight == whole.weight
    true = np.asarray(scatter(X, weight), float)
    slack = scatter_error("f8", rows, true) + merge_error(whole, 2 * len(parts)) * len(parts)
    assert (np.abs(total.scatter - true) <= slack).all()
    assert (np.abs(total.mean - whole.mean) <= 4 * len(parts) * EPS * (
        np.abs(whole.mean) + np.abs(X).max())).all()
    np.testing.assert_array_equal(total.scatter, total.scatter.T)


@given(X=tables(), solver=SOLVERS, standardize=st.booleans())
def test_the_loss_is_the_sum_of_the_left_out_variances_for_every_k(X, solver, standardize):
    if not varies(X) or (standardize and (np.ptp(X, axis=0) == 0).any()):
        return
    full = fastdr.PCA(svd_solver=solver, standardize=standardize).fit(X)
    everything, rows = full.explained_variance_, len(X)
    for k in range(1, min(X.shape) + 1):
        model = fastdr.PCA(k, svd_solver=solver, standardize=standardize).fit(X)
        A = (X - model.mean_) / (1 if model.scale_ is None else model.scale_)
        residual = A - (A @ model.components_.T) @ model.components_
        loss, left = (residual**2).sum(), everything[k:].sum() * (rows - 1)
        size = everything.sum() * (rows - 1)
        slip = (4 * EPS * np.abs(X).max()) ** 2 * X.size  # entries of X are known to eps |X|
        bound = rounding("f8", rows + X.shape[1], size) + slip
        assert abs(loss - left) <= bound
        assert abs(model.model_.left_out * (rows - 1) - left) <= bound


@given(X=tables(), solver=SOLVERS, whiten=st.sampled_from([False, "pca", "zca"]),
       standardize=st.booleans(), k=st.integers(1, 9))
def test_inverse_after_transform_is_a_projection(X, solver, whiten, standardize, k):
    if not varies(X) or (standardize and (np.ptp(X, axis=0) == 0).any()):
        return
    model = fastdr.PCA(min(k, *X.shape), whiten=whiten, svd_solver=solver,
                       standardize=standardize).fit(X)
    assert_orthonormal(model.components_)

    def through(rows):
        return model.inverse_transform(model.transform(rows))

    once = through(X)
    # whitening divides by deviations down to the rank's cut and multiplies again
    bound = rounding("f8", sum(X.shape), np.abs(X - model.mean_).max()) + rounding(
        "f8", 1, np.abs(X).max())
    if standardize:  # what rounding does to a column of small scale reaches those of large scale
        bound *= model.scale_.max() / model.scale_.min()
    assert np.abs(through(once) - once).max() <= bound
    row = ((X - once) ** 2).sum(axis=1)
    found = model.reconstruction_error(X, per_row=True)
    assert (np.abs(found - row) <= 2 * np.sqrt(row) * bound * 3 + 9 * bound**2).all()
    inside = ((X - once) / (1 if model.scale_ is None else model.scale_**2)
              * (once - model.mean_)).sum(axis=1)
    size = (((X - model.mean_) / (1 if model.scale_ is None else model.scale_)) ** 2).sum(axis=1)
    stretch = 1.0 if model.scale_ is None else 1 / model.scale_.min()
    slack = bound * np.sqrt(X.shape[1]) * stretch
    assert (np.abs(inside) <= slack * np.sqrt(size) * 2 + slack**2).all()


@given(rows=st.integers(1, 1500), features=st.integers(1, 90), seed=st.integers(0, 99),
       threads=st.sampled_from([2, 3, 8]), kind=st.sampled_from(["f8", "f4", "u1", "i4"]))
def test_thread_count_never_changes_a_bit(rows, features, seed, threads, kind):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((rows, features)) * 40 + 100).astype(kind)
    V = rng.standard_normal((3, features))
    found = []
    for count in (1, threads):
        with fastdr.num_threads(count):
            moments = fastdr.moments(X)
            found.append((moments.mean, moments.scatter, fastdr.project(X, V, moments.mean),
                          fastdr.reconstruction_error(X, V[:1] / np.linalg.norm(V[0]))))
    for one, many in zip(*found, strict=True):
        np.testing.assert_array_equal(one, many)


@given(X=tables(min_rows=3, max_rows=400), kind=st.sampled_from(["f8", "f4"]), data=st.data())
def test_dense_layouts_agree(X, kind, data):
    X = X.astype(kind)
    V = np.eye(X.shape[1])[: min(2, X.shape[1])]
    wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]), kind)
    wide[::2, 1::3] = X
    layouts = {"F": np.asfortranarray(X), "strided": wide[::2, 1::3],
               "reversed": X[::-1, ::-1].copy()[::-1, ::-1],
               "swapped": X.astype(X.dtype.newbyteorder())}
    same = layouts[data.draw(st.sampled_from(sorted(layouts)))]
    np.testing.assert_array_equal(fastdr.moments(same).scatter, fastdr.moments(X).scatter)
    np.testing.assert_array_equal(fastdr.moments(same).mean, fastdr.moments(X).mean)
    np.testing.assert_array_equal(fastdr.project(same, V), fastdr.project(X, V))
    if np.ptp(X, axis=0).any():
        np.testing.assert_array_equal(fastdr.PCA().fit(X).components_,
                                      fastdr.PCA().fit(same).components_)


@given(X=arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
                elements=st.floats(-1e100, 1e100)))
def test_any_finite_table_has_finite_honest_moments(X):
    found = fastdr.moments(X)
    true = scatter(X)  # long double: small squares do not underflow
    assert (np.abs(found.scatter - true) <= scatter_error("f8", len(X), true) + 1e-300).all()
    assert np.isfinite(found.scatter).all()
    assert (np.diagonal(found.scatter) >= 0).all()
    low, high = X.min(axis=0), X.max(axis=0)
    room = 4 * EPS * np.maximum(np.abs(low), np.abs(high))
    assert (found.mean >= low - room).all()
    assert (found.mean <= high + room).all()


@given(X=tables(), weight_seed=st.integers(0, 99), factor=st.sampled_from([0.5, 3.0, 1e-3]))
def test_scaling_all_weights_changes_no_axis_and_no_ratio(X, weight_seed, factor):
    weight = np.random.default_rng(weight_seed).integers(2, 9, len(X)).astype(float) * 1000
    one = fastdr.moments(X, weight).covariance(ddof=0)
    other = fastdr.moments(X, weight * factor).covariance(ddof=0)
    size = np.sqrt(np.outer(np.diagonal(one), np.diagonal(one)))
    assert (np.abs(one - other) <= 600 * EPS * size + (EPS * np.abs(X).max()) ** 2).all()


@given(X=tables(), k=st.integers(1, 9))
def test_solvers_agree(X, k):
    if not varies(X):
        return
    k = min(k, *X.shape)
    first = fastdr.PCA(k, svd_solver="lapack").fit(X)
    second = fastdr.PCA(k, svd_solver="svd").fit(X)
    largest = first.explained_variance_[0]
    slip = (4 * EPS * np.abs(X).max()) ** 2 * X.size
    bound = rounding("f8", sum(X.shape), largest) + slip
    assert (np.abs(first.explained_variance_ - second.explained_variance_) <= bound).all()
    assert first.rank_ == second.rank_ or abs(X).max() > 1e5
