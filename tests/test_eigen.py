"""Eigenpairs by every method against spectra known by construction, and what is proved of them."""

import mpmath
import numpy as np
import pytest
from scipy.linalg.lapack import dpotrf
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.exceptions import ConvergenceWarning
from tolerance import rounding

import fastdr
from fastdr import certificate
from fastdr.eigen import METHODS

EPS = np.finfo(float).eps
SPECTRA = {
    "slow": lambda d: np.arange(1, d + 1) ** -0.5,
    "fast": lambda d: np.arange(1, d + 1) ** -2.0,
    "ties": lambda d: np.r_[np.ones(12), np.linspace(0.5, 0, d - 12)],
    "few": lambda d: np.r_[3.0, 2.0, 1.0, np.zeros(d - 3)],
    "graded": lambda d: 10.0 ** -np.linspace(0, 30, d),
    "zero": np.zeros,
    "one": np.ones,
    "one but the last": lambda d: np.r_[np.ones(d - 1), 0.0],
}


def with_spectrum(values, seed=0):
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values),) * 2))[0]
    matrix = (turn * values) @ turn.T
    return (matrix + matrix.T) / 2


def check(matrix, k, result, reference, tol):
    """Residuals are what they are said to be, vectors orthonormal, values and bounds right."""
    values, vectors, info = result
    scale = max(np.abs(reference).max(), np.finfo(float).tiny)
    noise = rounding(np.float64, len(matrix), scale)
    vectors = vectors.astype(float)
    assert np.abs(vectors.T @ vectors - np.eye(k)).max() <= rounding(result.vectors.dtype, k, 1)
    residuals = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)
    stored = rounding(result.vectors.dtype, len(matrix), scale) if vectors is not None else 0
    assert (residuals <= info.residuals + stored).all()
    assert (info.residuals <= tol * scale + noise).all()
    assert np.abs(values - reference[:k]).max() <= (tol**2 * len(matrix) ** 2) * scale + noise
    assert (np.diff(values) <= 0).all()
    sound = info.certificate
    assert (sound.lower <= reference[:k] + noise).all()
    assert (sound.upper >= reference[:k] - noise).all()


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_every_kind_of_spectrum(method, spectrum):
    values = SPECTRA[spectrum](90)
    matrix = with_spectrum(values)
    for k in (1, 7, 90):
        result = fastdr.eigsh(matrix, k, method=method)
        assert result.info.converged
        check(matrix, k, result, values, 1e-10)
        assert result.info.certificate.proved


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("power", [-960, -600, -100, 100, 600, 1000])
def test_operators_of_any_size_that_take_ones_to_zero(dtype, power):
    """Laplacians: what they make of ones does not tell how large they are."""
    if dtype == np.float32 and abs(power) > 100:
        return
    steps = np.diff(np.eye(41, dtype=dtype), axis=0)
    matrix = np.ldexp(steps.T @ steps, power)
    operator = LinearOperator(matrix.shape, matvec=lambda x: matrix @ x, dtype=dtype)
    values = np.ldexp(fastdr.eigsh(operator, 5).values, -power)
    reference = 4 * np.cos(np.arange(1, 6) * np.pi / 82) ** 2
    np.testing.assert_allclose(values, reference, rtol=0, atol=rounding(dtype, 3, 4.0))


def test_large_orders_restart_and_are_proved():
    values = np.arange(1, 601) ** -0.25
    result = fastdr.eigsh(with_spectrum(values), 5, method="lanczos", ncv=40)
    assert result.info.restarts > 0
    assert result.info.columns < 600
    check(with_spectrum(values), 5, result, values, 1e-10)
    assert result.info.certificate.method == "cholesky"
    assert (result.info.certificate.upper - result.info.certificate.lower < 1e-9).all()


def test_float32_is_iterated_in_float32_and_finished_in_float64():
    values = np.arange(1, 501) ** -0.5
    matrix = with_spectrum(values).astype(np.float32)
    reference = np.linalg.eigvalsh(matrix.astype(float))[::-1]
    result = fastdr.eigsh(matrix, 10, method="lanczos")
    assert result.values.dtype == np.float64
    assert result.vectors.dtype == np.float32
    assert np.abs(result.values - reference[:10]).max() < 1e-8


def test_an_operator_gives_what_its_matrix_gives():
    values = np.arange(1, 121) ** -1.0
    matrix = with_spectrum(values)
    operator = LinearOperator(matrix.shape, matvec=lambda x: matrix @ x, dtype=float)
    for method in ("auto", "lanczos", "power"):
        result = fastdr.eigsh(operator, 4, method=method)
        check(matrix, 4, result, values, 1e-10)
        assert not result.info.certificate.proved
        assert np.isinf(result.info.certificate.upper).all()


def test_eigenvalues_may_be_negative():
    values = np.linspace(2, -5, 80)
    result = fastdr.eigsh(with_spectrum(values), 6, method="lanczos")
    check(with_spectrum(values), 6, result, values, 4e-10)
    assert result.info.certificate.proved
    with pytest.raises(ValueError, match="not positive semi-definite"):
        fastdr.eigsh(with_spectrum(values), 6, method="power")


@pytest.mark.parametrize("kind", [np.asarray, aslinearoperator])
def test_the_power_method_takes_zeros_as_rounding_leaves_them(rng, floating, kind):
    rows = rng.standard_normal((100, 5)).astype(floating)
    matrix = rows @ rows.T
    matrix = (matrix + matrix.T) / 2
    values = fastdr.eigsh(kind(matrix), 3, method="power").values
    reference = np.linalg.eigvalsh(matrix.astype(float))[::-1][:3]
    np.testing.assert_allclose(values, reference, rtol=0, atol=rounding(floating, 10, reference[0]))
    negative = matrix - np.eye(100, dtype=floating)
    with pytest.raises(ValueError, match="not positive semi-definite"):
        fastdr.eigsh(kind(negative), 8, method="power")


@pytest.mark.parametrize(("dtype", "exponent"), [("f4", -146), ("f4", -130), ("f4", 126),
                                                 ("f8", -1070), ("f8", -1050), ("f8", 1022)])
@pytest.mark.parametrize("operator", [np.asarray, aslinearoperator])
def test_numbers_may_lie_at_the_ends_of_their_dtype(dtype, exponent, operator):
    """Integers times a power of two are exact even where nothing is normal any more."""
    whole = np.array([[5, 1, 0, 1], [1, 4, 1, 0], [0, 1, 3, 1], [1, 0, 1, 2.0]]) / 4
    matrix = np.ldexp(whole * (4 if exponent < 0 else 1), exponent).astype(dtype)
    unit = np.ldexp(matrix.astype(float), -exponent)
    true = np.linalg.eigvalsh(unit)[::-1][:2]
    for method in ("lanczos", "power", "lapack")[:2 if operator is aslinearoperator else 3]:
        values, vectors, info = fastdr.eigsh(operator(matrix), 2, method=method)
        error = rounding(dtype, 4, true[0]) + 2.0 ** (-1074 - exponent)
        assert np.abs(np.ldexp(values, -exponent) - true).max() <= error
        assert np.isfinite(info.certificate.lower).all()
        assert np.isfinite(vectors).all()


@pytest.mark.parametrize("scale", [1e-290, 1e-12, 1e12, 1e300])
@pytest.mark.parametrize("method", METHODS)
def test_scale_does_not_matter(method, scale):
    values = np.arange(1, 61) ** -1.0
    matrix = with_spectrum(values)
    with np.errstate(all="raise", under="ignore"):
        result = fastdr.eigsh(matrix * scale, 5, method=method)
    plain = fastdr.eigsh(matrix, 5, method=method)
    np.testing.assert_allclose(result.values / scale, plain.values, rtol=1e-12)
    assert result.info.certificate.proved


def test_a_good_start_saves_columns_and_more_pairs_go_on_from_fewer():
    values = np.arange(1, 501) ** -0.5
    matrix = with_spectrum(values)
    first = fastdr.eigsh(matrix, 20, method="lanczos")
    again = fastdr.eigsh(matrix, 20, method="lanczos", start=first.vectors)
    assert again.info.columns < first.info.columns / 2
    more = fastdr.eigsh(matrix, 30, method="lanczos", start=first.vectors)
    check(matrix, 30, more, values, 1e-10)


def test_threads_do_not_change_a_bit():
    matrix = with_spectrum(np.arange(1, 501) ** -0.5)
    found = []
    for threads in (1, 2, 3, 8):
        with fastdr.num_threads(threads):
            found.append(fastdr.eigsh(matrix, 10, method="lanczos"))
    for other in found[1:]:
        assert np.array_equal(other.values, found[0].values)
        assert np.array_equal(other.vectors, found[0].vectors)


def test_too_few_columns_are_said_and_bounds_stay_true():
    values = np.linspace(1, 0.9, 500)
    matrix = with_spectrum(values)
    with pytest.warns(ConvergenceWarning, match="raise maxiter or tol"):
        result = fastdr.eigsh(matrix, 10, method="lanczos", maxiter=40)
    assert not result.info.converged
    assert (result.info.certificate.lower <= values[:10] + 1e-12).all()
    assert (result.info.certificate.upper >= values[:10]).all()


def test_auto_gives_a_flat_spectrum_to_lapack():
    values = np.linspace(1, 0.9, 700)
    flat = fastdr.eigsh(with_spectrum(values), 3)
    assert (flat.info.method, flat.info.converged) == ("lapack", True)
    check(with_spectrum(values), 3, flat, values, 1e-10)
    assert fastdr.eigsh(with_spectrum(np.arange(1, 701) ** -1.0), 3).info.method == "lanczos"


def test_callback_sees_progress_and_may_stop():
    matrix, seen = with_spectrum(np.arange(1, 501) ** -0.25), []
    fastdr.eigsh(matrix, 5, method="lanczos", callback=lambda *told: seen.append(told))
    columns = [told[0] for told in seen]
    assert columns == sorted(columns)
    assert seen[-1][2].max() < seen[0][2].max()

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastdr.eigsh(matrix, 5, method="lanczos", callback=stop)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"k": 0}, ValueError, "k=0 is not allowed; it must be an integer from 1 to the order of C"),
    ({"k": 31}, ValueError, "k=31"),
    ({"k": True}, ValueError, "k=True"),
    ({"method": "arnoldi"}, ValueError, "must be one of auto, lanczos, power, lapack"),
    ({"tol": -1.0}, ValueError, "tol=-1.0"),
    ({"tol": "0"}, ValueError, "tol='0' is not allowed; it must be a number"),
    ({"tol": None}, ValueError, "tol=None"),
    ({"certificate": "yes"}, ValueError, "certificate='yes'"),
    ({"ncv": 0}, ValueError, "ncv=0"),
    ({"ncv": "20"}, ValueError, "ncv='20'"),
    ({"ncv": 20.5}, ValueError, "ncv=20.5"),
    ({"maxiter": 1e3}, ValueError, "maxiter=1000.0 is not allowed; it must be None or an integer"),
    ({"start": np.ones((3, 2))}, ValueError, r"start has shape \(3, 2\)"),
    ({"C": np.triu(np.ones((30, 30)))}, ValueError, "not symmetric"),
    ({"C": np.full((30, 30), np.nan)}, ValueError, "NaN at row 0, column 0"),
    ({"C": np.ones((30, 4))}, ValueError, "expected a square matrix"),
    ({"C": LinearOperator((30, 4), matvec=sum, dtype=float)}, ValueError, "square operator"),
    ({"C": np.ones((30, 30)) * 1j}, ValueError, "Complex"),
])
def test_refusals_say_what_is_wrong(change, error, message):
    arguments = {"C": np.eye(30), "k": 2, **change}
    with pytest.raises(error, match=message):
        fastdr.eigsh(**arguments)


@pytest.mark.parametrize("place", [(0, 1), (7, 8), (3, 70), (64, 65), (100, 7), (128, 100)])
@pytest.mark.parametrize("value", [1.0 + 1e-7, np.nan, np.inf])
def test_every_entry_is_compared_with_its_mirror_image(floating, place, value):
    C = np.ones((129, 129), floating)
    C[place] = value if floating.itemsize == 8 or not np.isfinite(value) else 1.01
    with pytest.raises(ValueError, match="not symmetric" if np.isfinite(value) else "row"):
        fastdr.eigsh(C, 2)
    strided = np.ones((258, 258), floating)[::2, ::-2]
    assert fastdr.eigsh(strided, 1).values == pytest.approx(129, rel=1e-6)


def test_operators_are_judged_too():
    bad = LinearOperator((30, 30), matvec=lambda x: x * np.nan, dtype=float)
    with pytest.raises(ValueError, match="not finite"):
        fastdr.eigsh(bad, 2)
    good = LinearOperator((30, 30), matvec=lambda x: x, dtype=float)
    with pytest.raises(ValueError, match="needs a matrix"):
        fastdr.eigsh(good, 2, method="lapack")
    with pytest.raises(ValueError, match="needs a matrix"):
        fastdr.eigsh(good, 2, certificate="proof")


def test_tolerance_below_rounding_is_said():
    with pytest.warns(UserWarning, match="limit accuracy"):
        result = fastdr.eigsh(with_spectrum(np.arange(1, 61) ** -1.0), 3, tol=1e-18)
    assert result.info.converged
    assert result.info.tol > 1e-18


def test_c28_identity_never_fails():
    for seed in range(100):
        values, vectors, info = fastdr.eigsh(np.eye(100), 6, method="lanczos", random_state=seed)
        assert np.abs(values - 1).max() <= 1e-14
        assert np.abs(vectors.T @ vectors - np.eye(6)).max() <= 1e-13
        assert info.certificate.clusters == ((0, 5),)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_c30_many_zero_eigenvalues_and_small_orders(method, k):
    values = np.r_[1 / np.arange(1, 79), np.zeros(426)]
    check(np.diag(values), k, fastdr.eigsh(np.diag(values), k, method=method), values, 1e-10)
    ring = 2 * np.eye(10) - np.roll(np.eye(10), 1, 0) - np.roll(np.eye(10), -1, 0)
    reference = np.sort(2 - 2 * np.cos(2 * np.pi * np.arange(10) / 10))[::-1]
    check(ring, k, fastdr.eigsh(ring, k, method=method), reference, 1e-10)


def exact(matrix):
    """Eigenvalues in 40 digits, descending."""
    with mpmath.workdps(40):
        found = mpmath.eigsy(mpmath.matrix(matrix.tolist()), eigvals_only=True)
        return sorted(found, reverse=True)


def problem(rng):
    """A small matrix, exactly symmetric: generic, graded, with near or exact ties, of low rank."""
    size = int(rng.integers(2, 7))
    values = np.sort(rng.random(size))[::-1]
    kind = int(rng.integers(5))
    if kind == 1:
        values = 10.0 ** -rng.uniform(0, 14, size)
    elif kind == 2:
        values[: size // 2] = values[0] * (1 + rng.choice([0, 1e-15, 1e-12, 1e-8]))
    elif kind == 3:
        values[int(rng.integers(size)):] = 0
    elif kind == 4:
        values -= 0.5
    return with_spectrum(np.sort(values)[::-1], int(rng.integers(1 << 30)))


def assert_sound(seed, trials):
    """Certificates of right, turned and wrong answers hold the true eigenvalues."""
    rng = np.random.default_rng(seed)
    proofs = 0
    for _ in range(trials):
        matrix = problem(rng)
        size = len(matrix)
        k = int(rng.integers(1, size + 1))
        truth = exact(matrix)
        vectors = np.linalg.eigh(matrix)[1][:, ::-1]
        kind = int(rng.integers(4))
        if kind == 1 and k < size:  # one of the largest is missing
            vectors = np.delete(vectors, int(rng.integers(k)), axis=1)
        chosen = vectors[:, :k]
        if kind == 2:  # turned a little
            chosen = chosen + 10.0 ** -rng.uniform(1, 12) * rng.standard_normal(chosen.shape)
        elif kind == 3:  # not an answer at all
            chosen = rng.standard_normal(chosen.shape)
        told = fastdr.certify(matrix, chosen)
        for i in range(chosen.shape[1]):
            assert mpmath.mpf(told.lower[i]) <= truth[i] <= mpmath.mpf(told.upper[i])
        proofs += told.proved
    assert proofs > trials // 3


# The mathematics is the same whatever the kernels: all 10 000 need not run for each of them.
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))])
def test_certificates_are_sound_and_wrong_answers_are_not_proved(seed):
    assert_sound(seed, trials=2500)


def test_the_angle_bound_holds():
    rng = np.random.default_rng(5)
    for _ in range(50):
        values = np.sort(rng.random(20))[::-1]
        matrix = with_spectrum(values, int(rng.integers(1 << 30)))
        truth = np.linalg.eigh(matrix)[1][:, -4:]
        given = truth + 10.0 ** -rng.uniform(2, 9) * rng.standard_normal(truth.shape)
        told = fastdr.certify(matrix, given)
        cosines = np.linalg.svd(truth.T @ np.linalg.qr(given)[0])[1]
        sine = np.sqrt(max(0.0, 1 - min(1.0, cosines.min()) ** 2))
        assert sine <= told.angle + 4 * np.sqrt(20 * EPS)


def test_the_lengths_of_the_vectors_are_no_matter():
    matrix = with_spectrum(np.arange(1, 31) ** -1.0)
    vectors = fastdr.eigsh(matrix, 3).vectors
    plain = fastdr.certify(matrix, vectors)
    told = fastdr.certify(matrix, np.ldexp(vectors, [1020, -1000, 0]))
    assert told.proved
    np.testing.assert_allclose(told.upper, plain.upper, rtol=0, atol=rounding(float, 30, 1))


def test_a_certificate_says_itself_in_a_line():
    matrix = with_spectrum(np.arange(1, 31) ** -1.0)
    good = fastdr.eigsh(matrix, 3).info.certificate
    assert str(good).startswith("proved (cholesky): intervals at most")
    assert str(fastdr.eigsh(matrix, 3, certificate=False).info.certificate).startswith("not proved")
    with pytest.raises(ValueError, match="dependent"):
        fastdr.certify(matrix, np.ones((30, 2)))
    with pytest.raises(ValueError, match=r"vectors has shape \(7, 2\); expected \(30, j\)"):
        fastdr.certify(matrix, np.ones((7, 2)))


TIES = {
    "far below": ([1e6, 1, 1, 1, 1, 0.5], 2), "below": ([10, 1, 1, 1, 1, 1], 2),
    "beside another": ([1e6, 1.8, 1, 1, 1, 0.5], 3), "at the top": ([3, 3, 3, 3, 1, 0], 2),
    "of all": ([1] * 6, 2), "of zeros": ([1, 0, 0, 0, 0, 0], 2),
    "below zero": ([-5, -5, -5, -6, -7, -9], 1),
}


@pytest.fixture
def factorisations(monkeypatch):
    """A list with an entry for each matrix that a proof has factored since."""
    made = []

    def counted(*given, **options):
        made.append(given)
        return dpotrf(*given, **options)

    monkeypatch.setattr(certificate, "dpotrf", counted)
    return made


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("order", [6, 200])
def test_a_tie_with_what_is_left_out_is_bounded_closely(name, order, factorisations):
    values, k = TIES[name]
    values = np.r_[values, np.full(order - 6, values[-1] - 0.25 * (values[-1] > 0.5))].astype(float)
    turn = np.linalg.qr(np.random.default_rng(4).standard_normal((order, order)))[0]
    matrix = (turn * values) @ turn.T
    told = fastdr.certify((matrix + matrix.T) / 2, turn[:, :k])
    assert told.method == "cholesky"
    noise = 1e-10 * np.abs(values).max()
    assert (told.upper >= values[:k] - noise).all()
    assert (told.upper <= values[:k] + 2e-6 * np.abs(values[:k]) + noise).all()
    assert len(factorisations) == 1


@pytest.mark.parametrize("solver", ["lanczos", "power", "lapack"])
def test_variances_tied_with_those_left_out_are_bounded_closely(rng, solver):
    X = rng.standard_normal((200, 6))
    X = np.linalg.qr(X - X.mean(axis=0))[0] * np.sqrt([100, 1, 1, 1, 1, 1])
    told = fastdr.PCA(2, svd_solver=solver).fit(X).certificate_
    np.testing.assert_allclose(told.upper, told.lower, rtol=2e-6)


def test_what_was_missed_costs_few_factorisations(factorisations):
    values = np.r_[4.0, 3.0, 1.0, np.zeros(17)]
    assert not fastdr.certify(np.diag(values), np.eye(20)[:, 1:3]).proved
    assert len(factorisations) <= 4
