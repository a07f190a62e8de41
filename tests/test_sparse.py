"""Sparse rows: kernels and moments against dense twins, every format; what is refused; memory."""

import json
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from reference import integer_scatter, scatter, weighted_scatter
from tolerance import rounding

import fastdr
from fastdr import sparse
from fastdr.sparse import (
    SparseAction,
    SparseSource,
    sparse_adjoint,
    sparse_moments,
    sparse_product,
)
from fastdr.sparse_scatter import sparse_gram

FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]
EPS = np.finfo(float).eps


def some_rows(rng, dtype="f8", rows=300, features=21):
    """A dense matrix, 15 % of it not zero; column 3 is constant and full, 4 empty, row 7 empty."""
    X = rng.integers(1, 100, (rows, features)) * (rng.random((rows, features)) < 0.15)
    X[:, 3], X[:, 4], X[7] = 100, 0, 0
    X[7, 3] = 100
    return X.astype(dtype)


def with_long_indices(X):
    """The same CSR matrix with 64-bit indices."""
    csr = sp.csr_array(X)
    csr.indices, csr.indptr = csr.indices.astype(np.int64), csr.indptr.astype(np.int64)
    return csr


def applied(action, X):
    """The action without its power of two."""
    return np.ldexp(action(X).astype(float), action.exponent)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "i2", "u1", "?"])
@pytest.mark.parametrize("long", [False, True])
def test_products_and_moments_equal_those_of_the_dense_rows(rng, dtype, long):
    """C71: indices of 64 bits change nothing; integers do not overflow (C13)."""
    D = some_rows(rng, dtype)
    rows = SparseSource.of(with_long_indices(D) if long else sp.csr_array(D))
    D = D.astype(float)
    size, top = np.linalg.norm(D, axis=1).max(), np.abs(D).max()
    for strip in (np.dtype("f8"), np.dtype("f4")):
        B = rng.standard_normal((21, 19)).astype(strip)
        Z = rng.standard_normal((300, 3)).astype(strip)
        np.testing.assert_allclose(sparse_product(rows, B), D @ B, rtol=0,
                                   atol=rounding(strip, 5, size * 6))
        np.testing.assert_allclose(sparse_adjoint(rows, Z), D.T @ Z, rtol=0,
                                   atol=rounding(strip, 20, top * 17 * 4))
    found = sparse_moments(rows)
    np.testing.assert_allclose(found.mean, D.mean(axis=0), rtol=0, atol=rounding(float, 17, top))
    np.testing.assert_allclose(found.squares, D.var(axis=0) * 300, rtol=1e-13, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centre", ["mean", "none", "known"])
@pytest.mark.parametrize("scaled", [False, True])
def test_scatter_is_that_of_centred_scaled_weighted_rows(rng, weighted, centre, scaled):
    D = some_rows(rng)
    D[:, 6] = 1e6 + rng.standard_normal(300)  # full and far from zero
    rows = SparseSource.of(sp.csr_array(D))
    weights = rng.integers(0, 4, 300).astype(float) if weighted else None
    known = {"mean": None, "none": np.zeros(21), "known": rng.random(21)}[centre]
    told = sparse_moments(rows, weights, known)
    mean = np.average(D, axis=0, weights=weights) if known is None else known
    scale = rng.random(21) + 0.5 if scaled else None
    C = weighted_scatter(D, mean, 1.0 if scale is None else scale,
                         1.0 if weights is None else weights)
    limit = rounding(float, np.sqrt(300), np.diagonal(C).max())
    np.testing.assert_allclose(told.squares, np.diagonal(C) * (1 if scale is None else scale**2),
                               rtol=0, atol=limit)
    np.testing.assert_allclose(sparse_gram(rows, told, scale, weights), C, rtol=0, atol=limit)
    X = rng.standard_normal((11, 21))
    most = np.abs(X).sum(axis=1).max()
    action = SparseAction(rows, told, scale, weights)
    assert action.trace == pytest.approx(np.trace(C), rel=1e-12)
    np.testing.assert_allclose(applied(action, X), X @ C, rtol=0, atol=limit * most)
    assert action.columns == 11
    single = SparseAction(rows, told, scale, weights, np.dtype("f4"))
    np.testing.assert_allclose(applied(single, X.astype("f4")), X @ C, rtol=0,
                               atol=limit * most * np.finfo("f4").eps / EPS)


def test_full_columns_far_from_zero_keep_their_digits(rng):
    """Implicit centring would lose eps (mean / deviation)^2, all of them here."""
    D = some_rows(rng)
    D[:, 5] = 1e8 + rng.standard_normal(300)
    D[:, 6] = D[:, 5] + rng.standard_normal(300)
    rows = SparseSource.of(sp.csr_array(D))
    told = sparse_moments(rows)
    A = D - [*D[:, :5].mean(axis=0), 1e8, 1e8, *D[:, 7:].mean(axis=0)]
    C = weighted_scatter(A, A.mean(axis=0))
    part = np.zeros((2, 21))
    part[[0, 1], [5, 6]] = 1
    size = np.sqrt(np.diagonal(C))
    slip = 300 * EPS * 1e8 * size / np.sqrt(300)  # the mean itself is rounded to eps 1e8
    for found in (sparse_gram(rows, told)[5:7], applied(SparseAction(rows, told), part)):
        assert (np.abs(found - C[5:7]) <= rounding(float, 18, size[5:7, None] * size) + slip).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_what_rounding_takes_from_a_mean_is_kept(rng, weighted):
    """Over many parts, of which the first has no weight."""
    N, weights = rng.integers(0, 2048, (20_000, 5)), rng.integers(0, 3, 20_000)
    weights[:9000] = 0
    weights = weights if weighted else np.ones_like(weights)
    told = sparse_moments(SparseSource.of(sp.csr_array(N / 256 + 1e10)),
                          weights.astype(float) if weighted else None)
    true = [Fraction(int(total), 256 * int(weights.sum())) + 10**10 for total in weights @ N]
    off = [float(Fraction(mean) + Fraction(lost) - exact)
           for mean, lost, exact in zip(told.mean, told.lost, true, strict=True)]
    np.testing.assert_allclose(off, 0, atol=64 * EPS)
    np.testing.assert_allclose(told.squares, np.diagonal(integer_scatter(N, weights)) / 256**2,
                               rtol=1e-13)


def test_squares_of_light_entries_far_from_the_others(rng):
    D = rng.integers(-50, 50, (500, 2)) / 8
    D[:40] += 1e9
    weights = np.where(np.arange(500) < 40, 1e-18, 1.0)
    found = sparse_moments(SparseSource.of(sp.csr_array(D)), weights)
    exact = np.diagonal(scatter(D, weights)).astype(float)
    np.testing.assert_allclose(found.squares, exact, rtol=1e-14)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("array", [False, True])
def test_every_format_is_accepted_and_left_as_it_was(rng, kind, array):
    D = some_rows(rng, rows=30)
    X = (sp.coo_array(D) if array else sp.coo_matrix(D)).asformat(kind)
    before = X.copy()
    rows = SparseSource.of(X)
    np.testing.assert_array_equal(np.concatenate(list(rows.blocks())), D)
    np.testing.assert_array_equal(sparse_product(rows, np.eye(21)), D)
    assert X.format == before.format
    assert (X.toarray() == before.toarray()).all()
    W = rng.standard_normal((2, 21))
    np.testing.assert_allclose(fastdr.project(X, W, mean=D.mean(axis=0)),
                               fastdr.project(D, W, mean=D.mean(axis=0)), rtol=0,
                               atol=rounding(float, 21, 100 * 3))
    np.testing.assert_allclose(fastdr.reconstruction_error(X, np.linalg.qr(W.T)[0].T),
                               fastdr.reconstruction_error(D, np.linalg.qr(W.T)[0].T), rtol=1e-14)


def test_unsorted_and_duplicate_entries_are_put_in_order_in_a_copy():
    X = sp.csr_array((np.array([1.0, 2, 3, 4]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])),
                     shape=(2, 3))
    rows = SparseSource.of(X)
    np.testing.assert_array_equal(rows.dense(0, 2), [[2, 0, 4], [0, 4, 0]])
    np.testing.assert_allclose(sparse_moments(rows).squares, [2, 8, 8], rtol=1e-15)
    np.testing.assert_array_equal(X.indices, [2, 0, 2, 1])


def test_stored_zeros_are_zeros(rng):
    D = some_rows(rng)
    plain = sp.csr_array(D)
    filled = sp.csr_array((D.ravel(), np.tile(np.arange(21), 300), np.arange(0, 6301, 21)),
                          shape=D.shape)
    for one, other in zip((plain, filled), (filled, plain), strict=True):
        first, second = (sparse_moments(SparseSource.of(X)) for X in (one, other))
        np.testing.assert_allclose(first.mean, second.mean, rtol=1e-14)
        np.testing.assert_allclose(first.squares, second.squares, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_c06_constant_columns_have_no_variance(rng, dtype):
    X = sp.csr_array(np.full((100, 1), 100, dtype))
    found = sparse_moments(SparseSource.of(X), rng.random(100))
    assert found.mean[0] == pytest.approx(100, rel=1e-15)
    assert 0 <= found.squares[0] <= 1e-20


def test_c06_blocks_do_not_change_the_moments(rng, monkeypatch):
    X = sp.csr_array(rng.integers(0, 2000, (5000, 50)).astype("f4"))
    whole = sparse_moments(SparseSource.of(X))
    monkeypatch.setattr(sparse, "PARTS", 10)
    monkeypatch.setattr(sparse, "PIECE", 1000)
    cut = sparse_moments(SparseSource.of(X))
    np.testing.assert_allclose(cut.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(cut.squares, whole.squares, rtol=1e-12)
    assert (cut.squares >= 0).all()


@pytest.mark.parametrize("size", [1e-170, 1e160])
def test_c09_squares_outside_the_range_of_float64(rng, size):
    D = some_rows(rng)
    rows = SparseSource.of(sp.csr_array(D * size))
    told = sparse_moments(rows)
    factor = np.ldexp(size, told.exponent)
    np.testing.assert_allclose(told.squares, D.var(axis=0) * 300 * factor**2, rtol=1e-12)
    C = weighted_scatter(D, D.mean(axis=0)) * factor**2
    np.testing.assert_allclose(sparse_gram(rows, told), C, rtol=0,
                               atol=rounding(float, 20, C.max()))
    found = applied(SparseAction(rows, told), np.eye(21)[:5])
    np.testing.assert_allclose(found, C[:5], rtol=0, atol=rounding(float, 20, C.max()))


def test_results_do_not_depend_on_the_number_of_threads(rng):
    X = sp.random_array((20_000, 40), density=0.1, rng=rng, format="csr")
    assert SparseSource.of(X).parts() > 8
    V, Z, results = rng.standard_normal((9, 40)), rng.standard_normal((20_000, 9)), []
    for threads in (1, 2, 3, 8):
        fastdr.set_num_threads(threads)
        rows = SparseSource.of(X)
        told = sparse_moments(rows)
        results.append([told.mean, told.squares, sparse_gram(rows, told), sparse_adjoint(rows, Z),
                        sparse_product(rows, V.T), SparseAction(rows, told)(V),
                        SparseAction(rows, told, dtype=np.dtype("f4"))(V.astype("f4"))])
    for others in results[1:]:
        for first, other in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(first, other)


def test_parts_hold_about_equally_many_entries(rng):
    counts = rng.integers(0, 3, 2000)
    counts[500] = 40
    X = sp.csr_array((np.ones(counts.sum()), np.concatenate([np.arange(c) for c in counts]),
                      np.concatenate([[0], np.cumsum(counts)])), shape=(2000, 40))
    rows = SparseSource.of(X)
    edges = np.array(rows.edges(8))
    assert edges[0] == 0
    assert edges[-1] == 2000
    held = np.diff(rows.indptr[edges])
    assert held.sum() == rows.stored
    assert np.abs(held - rows.stored / 8).max() <= 40


def test_read_only_and_mapped_storage(rng, tmp_path):
    D = some_rows(rng)
    csr, parts = sp.csr_array(D), []
    for name in ("data", "indices", "indptr"):
        np.save(tmp_path / f"{name}.npy", getattr(csr, name))
        parts.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    rows = SparseSource.of(sp.csr_array(tuple(parts), shape=D.shape))
    told = sparse_moments(rows)
    np.testing.assert_array_equal(told.mean, sparse_moments(SparseSource.of(csr)).mean)
    np.testing.assert_array_equal(SparseAction(rows, told)(np.eye(21)),
                                  SparseAction(SparseSource.of(csr), told)(np.eye(21)))


def test_c70_nothing_is_made_dense():
    X = sp.random_array((20_000, 5_000), density=0.001, rng=np.random.default_rng(0),
                        format="csr")
    rows = SparseSource.of(X)
    V, scale = np.ones((8, 5_000)), np.full(5_000, 2.0)
    SparseAction(rows, sparse_moments(rows), scale)(V)  # compiled
    tracemalloc.start()
    told = sparse_moments(rows)
    SparseAction(rows, told, scale)(V)
    fastdr.project(X, V, told.mean, scale)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6  # the dense matrix has 800 MB, the sparse one 1.2


def broken(name, values, shape=(3, 4)):
    """A CSR matrix whose part `name` is not what SciPy would make."""
    X = sp.csr_array(np.array([[1.0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 4]]))
    setattr(X, name, np.array(values, getattr(X, name).dtype))
    return X


@pytest.mark.parametrize(("X", "error", "words"), [
    (broken("indices", [0, 2, -1, 3]), ValueError, "column -1, but X has 4 columns, 0 to 3"),
    (broken("indices", [0, 2, 1, 4]), ValueError, "column 4, but X has 4 columns"),
    (broken("indices", [0, 2, 1, 9]).T, ValueError, "row 9, but X has 4 rows"),
    (broken("indptr", [0, 3, 2, 4]), ValueError, "indptr .* ascend"),
    (broken("indptr", [0, 2, 3, 9]), ValueError, "end at most at the number of indices"),
    (broken("indptr", [1, 2, 3, 4]), ValueError, "begin with 0"),
    (broken("data", [1, 2, np.nan, 4]), ValueError, "NaN at row 1, column 1"),
    (broken("data", [1, 2, 3, -np.inf]), ValueError, "infinity at row 2, column 3"),
    (sp.csr_array(np.eye(3) * 1j), ValueError, "Complex data not supported"),
    (sp.csr_array(np.eye(3, dtype=np.longdouble)), TypeError, "allowed are"),
    (sp.csr_array((0, 3)), ValueError, "0 sample"),
    (sp.csr_array((3, 0)), ValueError, "0 feature"),
    (sp.coo_array(np.ones(3)), ValueError, "1 dimension"),
    (sp.csr_array((3, 1 << 31)), ValueError, "at most 2147483647"),
])
def test_what_kernels_must_not_see_is_refused(X, error, words):
    with pytest.raises(error, match=words):
        SparseSource.of(X)


def test_an_empty_matrix_has_no_variance():
    rows = SparseSource.of(sp.csr_array((5, 4)))
    told = sparse_moments(rows)
    assert not told.mean.any()
    assert not told.squares.any()
    assert not sparse_gram(rows, told).any()
    assert not SparseAction(rows, told)(np.ones((3, 4))).any()
    assert not sparse_product(rows, np.ones((4, 2))).any()


def test_models_take_sparse_rows(rng):
    D = some_rows(rng)
    model = fastdr.PCA(5).fit(D).model_
    X = sp.csr_array(D)
    limit = rounding(float, 21, np.linalg.norm(D, axis=1).max())
    np.testing.assert_allclose(model.transform(X), model.transform(D), rtol=0, atol=limit)
    np.testing.assert_array_equal(model.reconstruction_error(X, True),
                                  model.reconstruction_error(D, True))
    np.testing.assert_array_equal(model.log_likelihood(X), model.log_likelihood(D))
    out = np.empty((300, 5))
    assert model.transform(X, out) is out
    with pytest.raises(ValueError, match="takes rows of 21"):
        model.transform(X[:, :20])


CODE = """
import json, numba.core.event, numpy as np, scipy.sparse as sp
from fastdr.sparse import *
from fastdr.sparse_scatter import sparse_gram
X = sp.random_array((300, 70), density=0.1, rng=np.random.default_rng(0), format="csr")
compiled = numba.core.event.RecordingListener()
numba.core.event.register("numba:compile", compiled)
for dtype in ("f8", "f4"):
    rows = SparseSource.of(X.astype(dtype))
    told = sparse_moments(rows)
    C, V = sparse_gram(rows, told), np.ones((2, 70), dtype)
    image = SparseAction(rows, told, dtype=np.dtype(dtype))(V)
    T = sparse_adjoint(rows, sparse_product(rows, V.T))
    assert np.allclose(image * 2.0**SparseAction(rows, told).exponent, V @ C, rtol=1e-5)
    assert np.allclose(T - 300 * np.outer(told.mean, told.mean @ V.T), C @ V.T, rtol=1e-4)
functions = [event.data["dispatcher"].py_func for _, event in compiled.buffer if event.is_start]
print(json.dumps([f.__name__ for f in functions if f.__module__.startswith("fastdr.")]))
"""


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT"])
def test_c93_first_calls(run_python, monkeypatch, variable, tmp_path):
    """They wait for one function a kernel and dtype, write nothing, and work uncompiled."""
    monkeypatch.setenv(variable, "1" if "JIT" in variable else str(tmp_path / "no"))
    monkeypatch.setenv("HOME", str(tmp_path))
    compiled = json.loads(run_python(CODE))
    once, twice = ["add_gram", "add_moments"], ["add_adjoint", "add_gram_action", "add_product"]
    assert sorted(compiled) == ([] if "JIT" in variable else sorted(once + 2 * twice))
    assert not list(tmp_path.iterdir())
