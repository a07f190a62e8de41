"""svds: values to rounding of the largest, true residuals, operators, refusals."""

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.exceptions import ConvergenceWarning
from tolerance import assert_orthonormal, rounding

import fastdr

METHODS = ["auto", "lapack", "lanczos", "power"]


def matrix(rng, shape, values):
    U = np.linalg.qr(rng.standard_normal((shape[0], len(values))))[0]
    V = np.linalg.qr(rng.standard_normal((shape[1], len(values))))[0]
    return (U * values) @ V.T


def assert_triplets(A, found, k, dtype="f8"):
    U, s, Vt, info = found
    true = np.linalg.svd(A, compute_uv=False)
    size = rounding(dtype, np.sqrt(max(A.shape)), true[0], 2)
    assert U.shape == (len(A), k)
    assert Vt.shape == (k, A.shape[1])
    assert U.dtype == Vt.dtype == np.dtype(dtype)
    assert s.dtype == np.float64
    np.testing.assert_allclose(s, true[:k], rtol=0, atol=size)
    assert_orthonormal(U.T, dtype)
    assert_orthonormal(Vt, dtype)
    residuals = np.linalg.norm(A.T @ U - s * Vt.T, axis=0)
    np.testing.assert_allclose(residuals, info.residuals, rtol=0, atol=size)
    assert np.linalg.norm(A @ Vt.T - U * s, 2) <= size
    assert (info.certificate.lower <= true[:k] + size).all()
    assert (info.certificate.upper >= true[:k] - size).all()
    lead = np.abs(Vt).argmax(axis=1)
    assert (Vt[np.arange(k), lead] > 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(300, 80), (80, 300), (90, 90)])
@pytest.mark.parametrize("options", [{}, {"center": True}, {"scale": True},
                                     {"center": True, "scale": True}], ids=str)
def test_triplets(rng, method, shape, options):
    X = matrix(rng, shape, 2.0 ** -np.arange(40)) + 0.1
    A = X - X.mean(0) * options.get("center", False)
    if options.get("scale"):
        A = A / np.sqrt((A**2).sum(0) / (len(X) - options.get("center", False)))
    assert_triplets(A, fastdr.svds(X, 5, method=method, **options), 5)


@pytest.mark.parametrize("shape", [(200, 90), (203, 301)])
@pytest.mark.parametrize("base", [2.0, 4.0])
@pytest.mark.parametrize("method", METHODS)
def test_float32(rng, method, base, shape):
    X = matrix(rng, shape, base ** -np.arange(40)).astype("f4")
    assert_triplets(X.astype("f8"), fastdr.svds(X, 4, method=method), 4, "f4")


@pytest.mark.parametrize("method", METHODS)
def test_small_values_are_accurate_to_the_largest(rng, method):
    values = 10.0 ** -np.arange(14)
    X = matrix(rng, (120, 60), values)
    found = fastdr.svds(X, 12, method=method)
    np.testing.assert_allclose(found.s, values[:12], rtol=0, atol=rounding("f8", 12, 1.0))
    assert_orthonormal(found.U.T)


def test_every_k_of_a_deficient_matrix(rng):
    X = matrix(rng, (9, 6), np.array([3.0, 2, 2, 1]))
    for k in range(1, 7):
        found = fastdr.svds(X, k)
        np.testing.assert_allclose(found.s, [3, 2, 2, 1, 0, 0][:k], atol=1e-14)
        assert_orthonormal(found.U.T)
    nothing = np.zeros((4, 3))
    for kind in (np.asarray, np.transpose, scipy.sparse.csr_array, aslinearoperator):
        for k in (1, 3):
            zero = fastdr.svds(kind(nothing), k)
            np.testing.assert_array_equal(zero.s, 0)
            assert_orthonormal(zero.U.T)
            assert_orthonormal(zero.Vt)


@pytest.mark.parametrize("shape", [(300, 80), (80, 300)])
@pytest.mark.parametrize("kind", ["csr", "csc", "operator"])
@pytest.mark.parametrize("method", ["auto", "power"])
def test_operators(rng, shape, kind, method):
    X = matrix(rng, shape, 2.0 ** -np.arange(40))
    given = (aslinearoperator(X) if kind == "operator"
             else scipy.sparse.csr_matrix(X).asformat(kind))
    found = fastdr.svds(given, 5, method=method)
    assert_triplets(X, found, 5)
    assert found.info.certificate.method == "none"
    again = fastdr.svds(given, 5, method=method, start=found.Vt.T)
    assert again.info.columns < found.info.columns
    np.testing.assert_allclose(again.s, found.s, rtol=0, atol=1e-14)


@pytest.mark.parametrize("power", [-600, -400, -250, 250, 400, 600])
@pytest.mark.parametrize("options", [{}, {"method": "lanczos", "center": True}, {"scale": True}])
def test_a_power_of_two_changes_nothing_but_the_unit(rng, options, power):
    X = rng.standard_normal((60, 20)) * np.linspace(3, 1, 20)
    plain, scaled = (fastdr.svds(np.ldexp(X, k), 3, **options) for k in (0, power))
    np.testing.assert_allclose(scaled.Vt, plain.Vt, atol=1e-12)
    unit = 0 if "scale" in options else power
    np.testing.assert_allclose(scaled.s, np.ldexp(plain.s, unit), rtol=1e-12)
    np.testing.assert_allclose(scaled.info.certificate.upper,
                               np.ldexp(plain.info.certificate.upper, unit), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("power", [-960, -600, -100, 100, 600, 1000])
def test_c09_operators_of_any_size(rng, kind, dtype, power):
    """Neither squares nor products of squares need exist."""
    if dtype == "f4" and abs(power) > 100:
        return
    X = matrix(rng, (50, 30), 2.0 ** -np.arange(6)).astype(dtype)
    plain, scaled = (fastdr.svds(kind(np.ldexp(X, exponent)), 3) for exponent in (0, power))
    np.testing.assert_array_equal(scaled.Vt, plain.Vt)
    np.testing.assert_array_equal(scaled.s, np.ldexp(plain.s, power))
    np.testing.assert_array_equal(scaled.info.residuals, np.ldexp(plain.info.residuals, power))


def test_refusals(rng):
    X = rng.standard_normal((8, 5))
    lame = LinearOperator((8, 5), matvec=lambda v: X @ v, dtype=float)
    with pytest.raises(ValueError, match="no adjoint: define rmatvec"):
        fastdr.svds(lame, 2)
    wrong = LinearOperator((8, 5), matvec=lambda v: X @ v, rmatvec=lambda v: 2 * X.T @ v,
                           dtype=float)
    with pytest.raises(ValueError, match="not the adjoint"):
        fastdr.svds(wrong, 2)
    for k in (0, 6, 2.0, True):
        with pytest.raises(ValueError, match="an integer from 1 to min"):
            fastdr.svds(X, k)
    with pytest.raises(ValueError, match="method='arpack' is not allowed"):
        fastdr.svds(X, 2, method="arpack")
    for tol in (-1.0, 1.0, np.nan, "0", None, True):
        with pytest.raises(ValueError, match="tol="):
            fastdr.svds(X, 2, tol=tol)
    with pytest.raises(ValueError, match="start has shape"):
        fastdr.svds(X, 2, start=np.ones((4, 1)))
    with pytest.raises(ValueError, match="need an array"):
        fastdr.svds(aslinearoperator(X), 2, center=True)
    with pytest.raises(ValueError, match="needs an array"):
        fastdr.svds(aslinearoperator(X), 2, method="lapack")
    with pytest.raises(TypeError, match="real"):
        fastdr.svds(aslinearoperator(X * 1j), 2)
    X[3, 2] = np.nan
    for bad in (X, scipy.sparse.csr_matrix(X)):
        with pytest.raises(ValueError, match="NaN"):
            fastdr.svds(bad, 2)


def test_a_sketch_that_misses_warns(rng):
    X = rng.standard_normal((400, 300))
    with pytest.warns(ConvergenceWarning, match="randomized stopped"):
        found = fastdr.svds(X, 5, method="randomized")
    assert not found.info.converged
    true = np.linalg.svd(X, compute_uv=False)
    assert (found.s <= true[:5]).all()
    assert (found.info.certificate.upper >= true[:5] - 1e-12).all()


def test_a_mapped_array_is_read_in_place(rng, tmp_path):
    X = matrix(rng, (500, 60), 2.0 ** -np.arange(40))
    X.tofile(tmp_path / "rows.bin")
    mapped = np.memmap(tmp_path / "rows.bin", "f8", "r", shape=X.shape)
    np.testing.assert_array_equal(fastdr.svds(mapped, 3).s, fastdr.svds(X, 3).s)
