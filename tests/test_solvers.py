"""Routes from rows to axes: the accuracy test, what stands behind it, ranges and completion."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.linalg import LinAlgError
from tolerance import assert_orthonormal, eigenvalue_error, rounding, subspace_angle

import fastdr
from fastdr import centring, solvers
from fastdr.bases import completed, null_axes, orthonormalise
from fastdr.centring import centred_rows
from fastdr.diagnostics import cos_squared, spe, t_squared
from fastdr.scatter import SINGLE_RTOL
from fastdr.solvers import lapack, qr_svd
from fastdr.sources import ArraySource, BlockSource
from fastdr.statistics import FEW_ROWS, Moments
from fastdr.tall import Tall

EPS = np.finfo(np.float64).eps


def graded(rng, rows, features, condition):
    """Rows with mean 0 and known singular values from 1 down to 1 / condition."""
    left = rng.standard_normal((rows, features))
    left = np.linalg.qr(left - left.mean(0))[0]
    right = np.linalg.qr(rng.standard_normal((features, features)))[0]
    sizes = np.logspace(0, -np.log10(condition), features)
    return (left * sizes) @ right.T, sizes


def blocks_of(X, step=64, **kwargs):
    """The same rows as a stream."""
    return BlockSource(lambda: (X[i:i + step] for i in range(0, len(X), step)), X.shape[1],
                       **{"rows": len(X), "dtype": X.dtype, **kwargs})


def solved(X, k=None, route=lapack, **kwargs):
    source = X if hasattr(X, "blocks") else ArraySource(X)
    rows = centred_rows(source, scatter=route is lapack, **kwargs)
    return route(rows, min(rows.count, X.shape[1]) if k is None else k)


@pytest.mark.parametrize("route", [lapack, qr_svd])
@pytest.mark.parametrize("shape", [(200, 7), (7, 200), (30, 30), (600, 300), (300, 600)])
def test_axes_are_eigenvectors_of_the_scatter(rng, route, shape):
    X = rng.standard_normal(shape) + 5
    found = solved(X, route=route)
    scatter = np.cov(X, rowvar=False, ddof=0) * len(X)
    bound = eigenvalue_error(min(shape), found.values[0])
    assert_orthonormal(found.vectors)
    residual = scatter @ found.vectors.T - found.vectors.T * found.values
    assert np.linalg.norm(residual, 2) <= bound * np.sqrt(shape[1])
    assert abs(found.total - np.trace(scatter)) <= bound * shape[1]
    assert (np.diff(found.values) <= 0).all()
    assert found.left_out == 0


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e9, 1e12, 1e14])
@pytest.mark.parametrize("small", [0, 1 << 21])
def test_small_variances_keep_the_accuracy_of_a_qr(rng, monkeypatch, condition, small):
    monkeypatch.setattr(solvers, "SMALL", small)
    X, sizes = graded(rng, 3000, 20, condition)
    found = solved(X)
    error = np.abs(np.sqrt(found.values) - sizes)
    trusted = 10 * EPS * sizes**-1 * (1 if condition > 1e3 else sizes**-1)
    assert (error <= np.maximum(trusted, solvers.RTOL if condition < 1e3 else 0) * sizes).all()
    assert_orthonormal(found.vectors)
    routes = {1e2: "eig(covariance)", 1e5: "cholesky-qr", 1e9: "cholesky-qr"}
    if small == 0 and condition in routes:
        assert found.method == routes[condition]
    if small:
        assert found.method in {"eig(covariance)", "svd(R)"}


def test_columns_in_different_units_need_no_further_pass(rng):
    X = rng.standard_normal((500, 6)) * 10.0 ** np.array([9, 5, 2, 0, -6, -12])
    found = solved(X)
    assert found.method == "jacobi(cholesky)"
    assert found.passes == 0
    A = X - X.mean(0)
    R = np.linalg.qr(A, mode="r")  # columns descend, so Householder QR respects each
    np.testing.assert_allclose(np.sqrt(found.values), np.abs(np.diagonal(R)), rtol=1e-3)
    exact = solved(X, route=qr_svd)
    np.testing.assert_allclose(found.values, exact.values, rtol=1e-12)


@pytest.mark.parametrize("small", [0, 1 << 21])
@pytest.mark.parametrize("route", [lapack, qr_svd])
def test_rank_and_null_axes_do_not_depend_on_the_route(rng, monkeypatch, route, small):
    monkeypatch.setattr(solvers, "SMALL", small)
    X = rng.standard_normal((90, 3)) @ rng.standard_normal((3, 12))
    X[:, 4] = 7.0
    found, other = solved(X, route=route), solved(X, 6, route=qr_svd)
    assert found.rank == 3
    assert found.values[3] <= (90 * EPS) ** 2 * found.values[0]
    np.testing.assert_array_equal(found.vectors[3], np.eye(12)[4])
    signs = np.sign(np.sum(found.vectors[:6] * other.vectors, axis=1))
    np.testing.assert_allclose(signs[:, None] * found.vectors[:6], other.vectors, atol=1e-12)


@pytest.mark.parametrize("small", [0, 1 << 21])
@pytest.mark.parametrize("route", [lapack, qr_svd])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(3000, 2), (8, 40)])
def test_rounding_of_the_mean_is_no_direction(rng, monkeypatch, route, small, weighted, shape):
    monkeypatch.setattr(solvers, "SMALL", small)
    A = rng.integers(-50, 50, shape).astype(float)
    X = np.column_stack([A, A[:, 0] + A[:, 1]]) + 1e7 + 1 / 8
    X = np.repeat(X, 2, axis=0)
    weights = rng.integers(1, 4, len(X)).astype(float) if weighted else None
    assert solved(X, None, route, weights=weights).rank == min(shape[0] - 1, shape[1])
    few = solved(X, 2, route, weights=weights)
    if shape[1] == 2:
        assert few.passes <= 2  # the first one has told the mean's second half
        assert few.left_out <= (len(X) * EPS) ** 2 * few.total


@pytest.mark.parametrize("condition", [1e6, 1e8, 1e11])
@pytest.mark.parametrize("small", [0, 1 << 21])
@pytest.mark.parametrize("weighted", [False, True])
def test_small_variances_of_few_rows(rng, monkeypatch, condition, small, weighted):
    monkeypatch.setattr(solvers, "SMALL", small)
    weights = rng.integers(0, 3, 30).astype(float) if weighted else np.ones(30)
    left = rng.standard_normal((30, 12))
    left -= np.average(left, axis=0, weights=weights)
    left = np.linalg.qr(left * np.sqrt(weights[:, None]))[0]
    left /= np.sqrt(np.fmax(weights, 0.1))[:, None]
    sizes = np.logspace(0, -np.log10(condition), 12)
    X = left * sizes @ np.linalg.qr(rng.standard_normal((200, 12)))[0].T + 0.25
    found = solved(X, 12, weights=weights if weighted else None)
    assert found.method == ("svd(R)" if small else "cholesky-qr")
    np.testing.assert_allclose(np.sqrt(found.values), sizes, rtol=0, atol=50 * EPS)
    assert_orthonormal(found.vectors)


def test_what_is_left_out_is_accurate_even_if_tiny(rng):
    X, sizes = graded(rng, 400, 8, 1e7)
    for k in range(9):
        found = solved(X, k)
        np.testing.assert_allclose(found.left_out, (sizes[k:] ** 2).sum(), rtol=1e-5,
                                   atol=(400 * EPS) ** 2)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
@pytest.mark.parametrize("route", [lapack, qr_svd])
def test_weights_repeat_rows(rng, route, shape):
    X = rng.standard_normal(shape)
    weights = rng.integers(0, 4, shape[0]).astype(float)
    weighted = solved(X, 3, route, weights=weights)
    repeated = solved(np.repeat(X, weights.astype(int), axis=0), 3, route)
    np.testing.assert_allclose(weighted.values, repeated.values, rtol=1e-12)
    np.testing.assert_allclose(weighted.total, repeated.total, rtol=1e-12)


@pytest.mark.parametrize("route", [lapack, qr_svd])
@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_known_mean_and_scale(rng, route, shape):
    X = rng.standard_normal(shape) + 3
    mean = np.full(shape[1], 2.5)
    found = solved(X, route=route, mean=mean, standardize=True)
    A = (X - mean) / np.sqrt(((X - mean) ** 2).mean(0))
    reference = np.linalg.svd(A, compute_uv=False) ** 2
    np.testing.assert_allclose(found.values, reference, atol=rounding(float, 40, reference[0]))
    assert found.rank == min(shape)


@pytest.mark.parametrize(("dtype", "power"), [("f8", -560), ("f8", 80), ("f8", 512), ("f8", 900),
                                              ("f4", -80), ("f4", 80)])
@pytest.mark.parametrize("shape", [(50, 4), (4, 50)])
@pytest.mark.parametrize("route", [lapack, qr_svd])
def test_a_power_of_two_changes_nothing(rng, route, shape, power, dtype):
    X = rng.standard_normal(shape).astype(dtype)
    rows = centred_rows(ArraySource(np.ldexp(X, power)), scatter=route is lapack)
    plain, found = solved(X, 3, route), route(rows, 3)
    scaled = np.sqrt(found.values) * 2.0 ** (-rows.exponent - power)
    rtol = 1e-14 if dtype == "f8" else SINGLE_RTOL  # plain float32 arithmetic is rounder
    np.testing.assert_allclose(scaled, np.sqrt(plain.values), rtol=rtol)
    np.testing.assert_allclose(found.vectors, plain.vectors, atol=10 * rtol)


def test_a_tiny_column_beside_a_constant_one():
    X = np.ones((9, 2))
    X[:, 1] = np.arange(9) * 1e-170
    rows = centred_rows(ArraySource(X))
    found = lapack(rows, 2)
    assert found.rank == 1
    np.testing.assert_allclose(np.sqrt(found.values[0]) / 2.0**rows.exponent,
                               np.sqrt(60) * 1e-170, rtol=1e-12)


@pytest.mark.parametrize("known", [True, False])
def test_a_stream_gives_what_the_array_gives(rng, known):
    X = rng.standard_normal((500, 5)) * [1, 1, 1, 1, 1e-6] + 3
    stream = blocks_of(X, rows=len(X) if known else None)
    found, reference = solved(stream, 5), solved(X, 5)
    assert found.method == reference.method
    np.testing.assert_allclose(found.values, reference.values, rtol=1e-9)
    svd = solved(stream, 5, qr_svd)
    np.testing.assert_allclose(svd.values, reference.values, rtol=1e-9)


def test_a_stream_of_few_rows_takes_the_gram_side(rng):
    X = rng.standard_normal((9, 300))
    found = solved(blocks_of(X, 4), 4)
    assert found.method == "eig(gram)"
    np.testing.assert_allclose(found.values, solved(X, 4).values, rtol=1e-12)


def test_a_stream_that_reads_once_says_what_it_cannot_do(rng):
    X = graded(rng, 300, 5, 1e9)[0]
    once = blocks_of(X, rereadable=False)
    assert "uncertain" in solved(once, 5).method
    with pytest.raises(ValueError, match="read once only|once only"):
        solved(once, 5, qr_svd)


@pytest.mark.parametrize(("least", "passes"), [(0.5, 0), (0.01, 1)])
def test_float32_arithmetic_is_checked_and_repeated_in_float64(rng, least, passes):
    X = (rng.standard_normal((FEW_ROWS + 1000, 4)) * [1, 1, 0.9, least]).astype(np.float32)
    reference = np.linalg.svd(X.astype(float) - X.mean(0, dtype=float), compute_uv=False) ** 2
    for k in (3, 4):  # with 3 axes the small variance is left out, with 4 it is wanted
        found = solved(X, k)
        assert found.passes == passes
        np.testing.assert_allclose(found.values, reference[:k], rtol=1e-5)
        np.testing.assert_allclose(found.left_out, reference[k:].sum(), rtol=1e-5)


def test_few_float32_rows_are_summed_in_float64(rng):
    X = rng.standard_normal((FEW_ROWS, 3)).astype(np.float32)
    np.testing.assert_array_equal(Moments.of(X).scatter, Moments.of(X, precision="double").scatter)


def test_tsqr_appends_blocks(rng):
    X = rng.standard_normal((200, 6))
    tall = Tall(lambda: iter(np.array_split(X, 50)), 6, X.size, True)
    R = solvers._triangle(tall)
    assert R.shape == (6, 6)
    np.testing.assert_array_equal(R, np.triu(R))
    np.testing.assert_allclose(R.T @ R, X.T @ X, atol=rounding(float, 200, 3.0))


def test_large_matrices_are_restored_for_the_second_route(rng, monkeypatch):
    monkeypatch.setattr(solvers, "DIVIDE", 3)
    monkeypatch.setattr(solvers, "FEW", 1)
    X, sizes = graded(rng, 300, 20, 1e9)
    for k in (1, 4, 20):
        found = solved(X, k)
        np.testing.assert_allclose(np.sqrt(found.values), sizes[:k], rtol=1e-5)


def test_failing_drivers_are_replaced(rng, monkeypatch):
    X = rng.standard_normal((60, 5))
    reference = solved(X, route=qr_svd)
    real = solvers.svd

    def failing(matrix, **kwargs):
        if kwargs.get("lapack_driver", "gesdd") == "gesdd":
            raise LinAlgError("SVD did not converge")
        return real(matrix, **kwargs)

    monkeypatch.setattr(solvers, "svd", failing)
    with pytest.warns(RuntimeWarning, match="gesdd"):
        found = solved(X, route=qr_svd)
    np.testing.assert_allclose(found.values, reference.values, rtol=1e-12)
    monkeypatch.setattr(solvers, "dsyevd", lambda *args, **kwargs: (None, None, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(solved(X).values, reference.values, rtol=1e-12)


@pytest.mark.parametrize("size", [100, 150])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("values", ["one", "one but the last", "two"])
def test_bisection_that_misses_values_is_noticed(size, k, values):
    """Of values that agree to rounding LAPACK now and then returns too few, as a success."""
    spectrum = np.ones(size)
    if values != "one":
        spectrum[size - 1 if values == "one but the last" else size // 2:] = 0
    for seed in range(6):
        turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]
        matrix = (turn * spectrum) @ turn.T
        matrix = (matrix + matrix.T) / 2
        found, vectors = solvers.eigh_of(matrix.copy(), k)
        assert len(found) == len(vectors) == k + 1
        np.testing.assert_allclose(found, 1, rtol=0, atol=rounding(float, size, 1))
        assert_orthonormal(vectors)
        assert np.abs(vectors @ matrix - vectors).max() <= rounding(float, size, 1)


@pytest.mark.parametrize("keep", [False, True])
def test_values_that_bisection_misses_are_found(rng, monkeypatch, keep):
    def few(matrix, **kwargs):
        calls.append(kwargs)
        values, vectors = whole(matrix, **kwargs)
        missed = 2 if kwargs.get("subset_by_index") else 0
        return values[missed:], vectors[:, missed:]

    whole, calls = solvers.eigh, []
    monkeypatch.setattr(solvers, "eigh", few)
    square = rng.standard_normal((120, 120))
    matrix = square + square.T
    wanted = np.linalg.eigvalsh(matrix)[::-1]
    given = matrix.copy()
    found, vectors = solvers.eigh_of(given, 3, keep=keep)
    assert len(calls) == 2
    assert np.array_equal(given, matrix) == keep
    bound = rounding(float, 120, wanted[0])
    np.testing.assert_allclose(found[:4], wanted[:4], rtol=0, atol=bound)
    assert np.abs(vectors @ matrix - found[:, None] * vectors).max() <= bound


@pytest.mark.parametrize("shape", [(360, 120), (450, 150), (150, 400)])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_c30_white_rows_have_axes(shape, kind):
    """All variances are one: no axis is better than another, but there are as many as asked for."""
    rows, features = shape
    for seed in range(4):
        Z = np.random.default_rng(seed).standard_normal((max(shape), min(shape)))
        if rows > features:
            white = np.linalg.qr(Z - Z.mean(0))[0]
        else:
            white = np.linalg.qr(Z)[0].T
        for k in (1, 2, 5):
            pca = fastdr.PCA(k, svd_solver="lapack").fit(kind(white))
            assert pca.components_.shape == (k, features)
            assert_orthonormal(pca.components_)
            np.testing.assert_allclose(pca.explained_variance_ * (rows - 1), 1,
                                       atol=eigenvalue_error(min(shape), 1))


def test_completion_depends_on_the_span_only(rng):
    basis = np.linalg.qr(rng.standard_normal((9, 4)))[0].T
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    first, second = completed(basis, 9), completed(turn @ basis, 9)
    assert_orthonormal(first)
    np.testing.assert_allclose(first[4:], second[4:], atol=1e-13)
    constant = np.zeros(9, bool)
    pivoted = null_axes(constant, turned_null(rng, first[4:]), 5)
    signs = np.sign((pivoted * first[4:]).sum(axis=1))
    np.testing.assert_allclose(signs[:, None] * pivoted, first[4:], atol=1e-13)


def turned_null(rng, basis):
    return np.linalg.qr(rng.standard_normal((len(basis),) * 2))[0] @ basis


def test_nearly_orthogonal_rows_become_orthonormal(rng):
    rows = np.linalg.qr(rng.standard_normal((9000, 4)))[0].T * [[3.0], [1.0], [1e-9], [1e5]]
    rows[1] += 1e-4 * rows[0]
    first = rows[0] / 3
    orthonormalise(rows)
    assert_orthonormal(rows)
    np.testing.assert_allclose(rows[0], first, atol=1e-15)


def test_rows_are_read_once_in_the_usual_case(rng):
    X = rng.standard_normal((500, 5))
    reads = []
    source = BlockSource(lambda: reads.append(1) or iter([X[:300], X[300:]]), 5, 500)
    assert centring.centred_rows(source).scatter is not None
    lapack(centring.centred_rows(source), 2)
    assert len(reads) == 2


def of_two_values(signs, sizes):
    """Rows of `signs` times `sizes`, and their variances without a rounding of the sums."""
    count, exact = len(signs), sizes.astype(np.longdouble)
    sums = signs.sum(axis=0)
    pairs = (signs.T @ signs).astype(np.longdouble) - np.outer(sums, sums) / np.longdouble(count)
    covariance = np.outer(exact, exact) * pairs / (count - 1)
    return signs * sizes, np.linalg.eigvalsh(covariance.astype(np.float64))[::-1]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("storage", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("solver", ["auto", "lapack", "svd", "lanczos"])
@pytest.mark.parametrize("shape", [(50_000, 8), (3, 200_000)])
def test_bounds_hold_where_rounding_does_not_even_out(rng, dtype, storage, solver, shape):
    if storage is not np.asarray and solver in ("svd", "lapack"):
        pytest.skip("sparse rows have solvers of their own")
    signs = np.where(rng.random(shape) < 0.5, 1, -1)
    sizes = np.full(shape[1], 1.9, dtype) * 2.0 ** -(np.arange(shape[1]) % 3)
    count = min(shape) - 1
    if shape[0] > shape[1]:
        X, true = of_two_values(signs, sizes.astype(dtype))
    else:
        X = signs * sizes.astype(dtype)
        about = X.astype(np.longdouble) - X.astype(np.longdouble).mean(axis=0)
        true = np.linalg.eigvalsh((about @ about.T / 2).astype(np.float64))[::-1]
    model = fastdr.PCA(count, svd_solver=solver).fit(storage(X.astype(dtype)))
    own = eigenvalue_error(min(shape), true[0])
    told, true = model.certificate_, true[:count]
    assert told.proved or storage is not np.asarray
    assert (np.abs(model.explained_variance_ - true) <= model.report_["variance_error"] + own).all()
    assert (told.lower <= true + own).all()
    assert (true <= told.upper + own).all()
    assert model.report_["variance_error"] < (1e-4 if dtype == "f4" else 1e-10) * true[0]


@pytest.mark.parametrize("solver", ["lapack", "lanczos"])
def test_a_proof_that_is_asked_for_is_made_in_float64(rng, solver):
    X = rng.standard_normal((5000, 8), dtype=np.float32)
    assert fastdr.PCA(3, svd_solver=solver).fit(X).report_["variance_error"] > 1e-6
    model = fastdr.PCA(3, svd_solver=solver, certificate="proof").fit(X)
    assert model.certificate_.proved
    assert model.report_["variance_error"] < 1e-12


@pytest.mark.parametrize("solver", ["lapack", "svd", "lanczos"])
def test_the_angle_is_that_of_stored_components(rng, solver):
    X = rng.standard_normal((50, 6)).astype(np.float32) * np.float32([6, 5, 4, 3, 2, 1])
    model = fastdr.PCA(2, svd_solver=solver).fit(X)
    true = np.linalg.svd(X.astype(float) - X.astype(float).mean(axis=0))[2][:2]
    angle = subspace_angle(true, model.components_)
    assert 1e-9 < angle <= model.certificate_.angle
    assert model.certificate_.angle < 1e-6


@pytest.mark.parametrize("depth", [8, 20, 44])
def test_the_angle_of_as_many_axes_as_rows_counts_the_directions_that_no_row_has(depth):
    """The Gram matrix has as many eigenvectors as rows, the scatter has more."""
    span = np.array([[1.0, 1, 1, 1, 0], [1, -1, 1, -1, 0], [1, 1, -1, -1, 0]])  # orthogonal
    mixed = [[1, 2, 0], [3, 1, 1], [2, 1, -2]] * 2.0 ** -np.array([0, depth // 2, depth])
    X, known = mixed @ span, np.zeros(5)  # exactly
    models = [fastdr.PCA(3, mean=known, svd_solver=solver, certificate="proof").fit(rows)
              for solver in ("lapack", "lanczos", "power") for rows in (X, sp.csr_array(X))]
    models.append(fastdr.PCA(3, mean=known, svd_solver="svd").fit(X))
    models += [fastdr.TruncatedSVD(3, certificate="proof").fit(rows)
               for rows in (X, sp.csr_array(X))]
    told = [(model.certificate_, model.components_) for model in models]
    Vt, info = fastdr.svds(X, 3)[2:]
    for certificate, axes in [*told, (info.certificate, Vt)]:
        assert 0 < certificate.angle
        assert subspace_angle(span / 2, axes) <= certificate.angle + 8 * EPS
        assert certificate.angle < 1e-6 or depth > 8 or not certificate.proved


@pytest.mark.parametrize("solver", ["lapack", "svd", "lanczos"])
@pytest.mark.parametrize("given", [np.asarray, sp.csr_array])
def test_axes_beyond_the_rank_leave_the_span_unknown(solver, given):
    X = np.outer([1.0, 2, 3, 6], [2.0, 1, 2, 0, 0])
    if given is sp.csr_array and solver == "svd":
        pytest.skip("dense rows only")
    for count in (2, 3, 4):
        told = fastdr.PCA(count, svd_solver=solver).fit(given(X)).certificate_
        assert told.angle == 1
        assert told.clusters == (((1, count - 1),) if count > 2 else ())
    told = fastdr.PCA(5, svd_solver=solver).fit(given(np.concatenate([X, X]))).certificate_
    assert told.angle == 0
    assert told.proved


@pytest.mark.parametrize("solver", ["lapack", "lanczos", "power", "svd"])
@pytest.mark.parametrize("least", [0.0, 1e-161, 1e-170])
def test_fewer_rows_than_features_may_lie_at_the_known_mean_or_near(solver, least):
    mean = np.array([0.0, 0, 1, 0])
    X = np.array([[1.0, 2, 0, 1], [least, least, 0, 0], [1, -1, 3, 0]]) + mean
    model = fastdr.PCA(3, mean=mean, svd_solver=solver).fit(X)
    assert_orthonormal(model.components_)
    assert model.rank_ == 2
    assert (model.singular_values_[2] <= 2 * least)
    assert np.isfinite(model.transform(X)).all()
    assert not np.signbit(fastdr.svds(X - mean, 3).s).any()


@pytest.mark.parametrize("shape", [(40, 70), (90, 9), (65, 64)])
def test_layouts_agree_to_the_bit(rng, shape, stored):
    X = rng.standard_normal(shape) * np.logspace(0, 2, shape[1]) + 5
    known = np.full(shape[1], 4.0)
    settings = [{}, {"n_components": 2, "svd_solver": "lanczos"}, {"svd_solver": "svd"},
                {"n_components": 2, "svd_solver": "power", "standardize": True},
                {"n_components": 3, "mean": known}, {"n_components": "parallel"}]

    def answers(rows):
        for named in settings:
            model = fastdr.PCA(certificate="residual", **named).fit(rows)
            yield from (model.components_, model.explained_variance_, model.noise_variance_,
                        model.certificate_.residuals)
        few = fastdr.PCA(2, standardize=True).fit(X).model_
        yield few.log_likelihood(rows)
        yield from (judge(few, rows) for judge in (t_squared, spe, cos_squared))
        yield fastdr.moments(rows).scatter
        yield from fastdr.svds(rows, 2)[:3]

    told = list(answers(X))
    for layout in ("F", "strided", "reversed", "memmap-F"):
        assert all(map(np.array_equal, told, answers(stored(X, layout))))


@pytest.mark.parametrize("features", [1, 3, 8])
@pytest.mark.parametrize("share", [0.55, 0.75, 1.2])
def test_bounds_of_qr_hold_where_all_sums_of_blas_round_one_way(features, share):
    """Thousands of squares of which each is about half an ulp of the sum so far."""
    column = np.full(5000, np.sqrt(share * EPS))
    column[:16] = 0.25
    X = np.outer(column, np.ones(features))
    exact = features * (1 + 4984 * Fraction(column[-1]) ** 2) / 5000  # the one variance
    for solver in ("svd", "lapack"):
        model = fastdr.PCA(1, mean=np.zeros(features), svd_solver=solver).fit(X)
        error = abs(Fraction(model.explained_variance_[0]) - exact)
        assert error <= model.report_["variance_error"] <= 1e-11 * exact
        told = model.certificate_
        assert told.lower[0] <= exact <= told.upper[0]


@pytest.mark.parametrize("solver", ["lapack", "svd", "lanczos", "power"])
@pytest.mark.parametrize("far", [1e15, 3e19, 1e44, 1e140])
def test_a_known_mean_may_lie_beyond_float32(rng, solver, far):
    """The rows then are all but equal seen from there: one axis, towards the mean."""
    X = rng.standard_normal((3, 5)).astype(np.float32)
    mean = far * np.array([3.0, 0, -4, 0, 0])
    model = fastdr.PCA(1, mean=mean, svd_solver=solver).fit(X)
    away = 20 / far + 4 * np.finfo(np.float32).eps  # as a share
    np.testing.assert_allclose(model.explained_variance_, 25 * far * far, rtol=2 * away)
    np.testing.assert_allclose(model.components_, [[-0.6, 0, 0.8, 0, 0]], atol=2 * away)
    few = fastdr.PCA(1, mean=mean[:3], svd_solver=solver, standardize=True).fit(X[:2, :3])
    np.testing.assert_allclose(few.scale_[[0, 2]], [3 * far, 4 * far], rtol=2 * away)
    assert np.isfinite(few.explained_variance_).all()


@pytest.mark.parametrize("solver", ["lapack", "svd", "lanczos", "power"])
@pytest.mark.parametrize("rows", [3, 12])
def test_rows_of_no_weight_do_not_hide_a_column_that_hardly_varies(solver, rows):
    """Seen from a known mean of 1e-200 zeros vary by it, whatever stands in an absent row."""
    X = np.eye(rows, 5)
    X[1:, 0] = 0
    weights = np.r_[0.0, np.arange(1, rows)]
    mean = np.array([1e-200, 0.5, 0.5, 0.5, 0.5])
    models = [fastdr.PCA(2, mean=mean, standardize=True, svd_solver=solver).fit(*given)
              for given in ((X, None, weights), (X[1:], None, weights[1:]))]
    for model in models:
        np.testing.assert_allclose(model.scale_, [1e-200, 0.5, 0.5, 0.5, 0.5], rtol=8 * EPS)
        assert model.total_variance_ == pytest.approx(5, rel=8 * EPS)
        error = model.report_["variance_error"] + models[0].report_["variance_error"]
        apart = np.abs(model.explained_variance_ - models[0].explained_variance_)
        assert apart.max() <= error
