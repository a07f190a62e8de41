"""Proofs about axes of sparse rows, and of rows that are iterated on: bounds, files, honesty."""

import json
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from tolerance import rounding, subspace_angle
from typer.testing import CliRunner

import fastdr
from fastdr import plan
from fastdr.cli import application
from fastdr.sparse import SparseSource, sparse_moments
from fastdr.sparse_axes import SparseRows
from fastdr.sparse_scatter import sparse_gram, sparse_images, sparse_outer_gram

SHAPES = [(300, 120), (70, 500), (900, 450)]


def decaying(rng, rows, features):
    """Sparse rows with a few strong directions, a full column far from 0, and one without entry."""
    D = sp.random_array((rows, features), density=0.1, rng=rng).toarray()
    D *= 3.0 * np.arange(1, features + 1)**-0.7
    D[:, 1] = 20 + rng.standard_normal(rows)
    D[:, 2] = 0
    return D


def true_values(D, weights=None, scale=False):
    """Return variances along all axes, descending, by a dense SVD."""
    weights = np.ones(len(D)) if weights is None else weights
    rest = D - np.average(D, axis=0, weights=weights)
    if scale:
        deviation = np.sqrt(weights @ rest**2 / (weights.sum() - 1))
        rest /= np.where(deviation > 0, deviation, 1)
    rest *= np.sqrt(weights)[:, None]
    return np.linalg.svd(rest, compute_uv=False)**2 / (weights.sum() - 1)


def assert_bounds(told, true, features, width):
    slack = rounding(float, features, true[0])
    assert (told.lower <= true + slack).all()
    assert (true <= told.upper + slack).all()
    if told.proved:
        assert (told.upper - told.lower <= width * true[0]).all()


@pytest.mark.parametrize("certificate", ["auto", "proof", "residual", False])
@pytest.mark.parametrize("solver", ["auto", "lanczos", "lapack"])
@pytest.mark.parametrize("shape", SHAPES)
def test_certificates_of_sparse_pca(rng, certificate, solver, shape, tmp_path):
    D = decaying(rng, *shape)
    D[0, 2] = 1  # or it cannot be scaled
    weights = rng.integers(1, 3, shape[0]).astype(float)
    model = fastdr.PCA(5, svd_solver=solver, certificate=certificate, standardize=True)
    told = model.fit(sp.csr_array(D), sample_weight=weights).certificate_
    if certificate is False:
        assert told is None
        return
    assert told.proved or certificate != "proof"
    assert not told.proved or certificate != "residual"
    assert_bounds(told, true_values(D, weights, True)[:5], shape[1], 1e-9)
    assert str(told) == model.report_["certificate"]
    model.model_.save(tmp_path / "axes.fdr")
    np.testing.assert_array_equal(fastdr.load(tmp_path / "axes.fdr").certificate.upper, told.upper)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("certificate", ["auto", "proof", "residual", False])
@pytest.mark.parametrize("shape", SHAPES)
def test_certificates_of_singular_values(rng, certificate, kind, dtype, shape, tmp_path):
    D = decaying(rng, *shape).astype(dtype)
    svd = fastdr.TruncatedSVD(5, certificate=certificate).fit(kind(D))
    told, values = svd.certificate_, svd.singular_values_
    if certificate is False:
        assert told is None
        assert "certificate" not in svd.report_
        return
    assert told.proved or certificate != "proof"
    assert not told.proved or certificate != "residual"
    true = np.linalg.svd(D.astype(float), compute_uv=False)
    assert_bounds(told, true[:5], shape[1], 1e-7 if dtype == "f8" else 1e-2)
    assert (told.lower <= values).all()
    assert (values <= told.upper).all()
    slack = rounding(float, shape[1], true[0])
    near = np.abs(true[:, None] - values).min(axis=0)
    assert (near <= told.residuals + slack).all()
    assert svd.report_["certificate"] == str(told)
    svd.model_.save(tmp_path / "svd.fdr")
    again = fastdr.load(tmp_path / "svd.fdr").certificate
    np.testing.assert_array_equal(again.lower, told.lower)
    assert again.method == told.method


@pytest.mark.parametrize("solver", ["lanczos", "power", "randomized"])
@pytest.mark.parametrize("shape", [(800, 100), (90, 700)])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_proof_is_made_though_the_rows_are_iterated_on(rng, solver, shape, dtype, monkeypatch):
    monkeypatch.setattr("fastdr.plan._worth_reading", lambda task: True)
    monkeypatch.setattr("fastdr.plan.CLEAR", 1e-9)
    monkeypatch.setattr("fastdr.sparse_plan.plan", plan.plan.__wrapped__)
    D = decaying(rng, *shape).astype(dtype)
    model = fastdr.PCA(3, svd_solver=solver, certificate="proof").fit(D)
    assert "rows" in model.report_["method"]
    assert model.certificate_.proved
    assert_bounds(model.certificate_, true_values(D.astype(float))[:3], shape[1], 1e-3)
    assert model.plan(D).proof
    assert model.set_params(certificate="residual").plan(D).proof is False
    assert not model.fit(D).certificate_.proved


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("tol", [0.0, 1e-3, 0.1])
def test_angles_of_wide_rows_are_those_of_the_axes(rng, kind, dtype, tol, monkeypatch):
    """Proved by the inner products of the rows, whose own vectors are a product nearer to truth."""
    monkeypatch.setattr("fastdr.plan._worth_reading", lambda task: True)
    monkeypatch.setattr("fastdr.plan.CLEAR", 1e-9)
    monkeypatch.setattr("fastdr.sparse_plan.plan", plan.plan.__wrapped__)
    D = decaying(rng, 90, 700).astype(dtype)
    for model in (fastdr.PCA(6, svd_solver="lanczos", certificate="proof", tol=tol),
                  fastdr.TruncatedSVD(6, algorithm="lanczos", certificate="proof", tol=tol)):
        told = model.fit(kind(D)).certificate_
        assert told.proved
        assert "rows" in model.report_["method"]
        mean = D.astype(float).mean(axis=0) if isinstance(model, fastdr.PCA) else 0.0
        values, true = np.linalg.svd(D - mean, full_matrices=False)[1:]
        for count in range(1, 7):
            reference = rounding(float, 1, values[0]) / (values[count - 1] - values[count])
            angle = subspace_angle(model.components_[:count], true[:count])
            bound = told.first(count).stored(model.components_[:count]).angle
            assert angle <= bound + reference, count


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("estimator", [fastdr.PCA, fastdr.TruncatedSVD])
def test_who_asks_for_a_proof_that_is_not_made_is_told(rng, kind, estimator, monkeypatch):
    """Nothing is silently left out."""
    for name in ("plan", "sparse_plan"):
        monkeypatch.setattr(f"fastdr.{name}.LARGEST_SCATTER", 40)
    monkeypatch.setattr("fastdr.plan._worth_reading", lambda task: True)
    monkeypatch.setattr("fastdr.plan.CLEAR", 1e-9)
    monkeypatch.setattr("fastdr.sparse_plan.plan", plan.plan.__wrapped__)
    how = {"svd_solver": "lanczos"} if estimator is fastdr.PCA else {"algorithm": "lanczos"}
    model = estimator(2, certificate="proof", **how)
    with pytest.warns(UserWarning, match="there is none: .*a matrix of order 60, more than 40"):
        model.fit(kind(decaying(rng, 60, 450)))
    assert "no proof" in model.report_["reason"]
    assert model.report_["certificate"].startswith("not proved")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(certificate="auto").fit(kind(decaying(rng, 60, 450)))


def test_a_value_that_was_missed_is_not_certified(rng):
    """A start without the first axis, and one step: the proof must fail, or the bound must hold."""
    D = decaying(rng, 500, 60)
    found = fastdr.TruncatedSVD(3, algorithm="lanczos", tol=0.9, certificate="proof").fit(
        sp.csr_array(D))
    true = np.linalg.svd(D, compute_uv=False)[:3]
    assert (found.certificate_.upper >= true * (1 - 1e-14)).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e200])
def test_both_gram_matrices_are_those_of_the_centred_rows(rng, weighted, scaled, size):
    D = decaying(rng, 40, 90) * size
    weights = rng.integers(0, 3, 40).astype(float) if weighted else None
    rows = SparseSource.of(sp.csr_array(D))
    told = sparse_moments(rows, weights)
    given = SparseRows(rows, told, told.scale if scaled else None, weights)
    B = np.ldexp(D, told.exponent) - told.mean
    B = B / told.scale if scaled else B
    B = B if weights is None else B * np.sqrt(weights)[:, None]
    limit = rounding(float, 90, (B**2).sum() + told.weight * 20**2 * (size == 1))
    np.testing.assert_allclose(sparse_outer_gram(*given.parts), B @ B.T, rtol=0, atol=limit)
    np.testing.assert_allclose(sparse_gram(*given.parts), B.T @ B, rtol=0, atol=limit)
    V = rng.standard_normal((3, 90))
    np.testing.assert_allclose(sparse_images(V, *given.parts), B @ V.T, rtol=0,
                               atol=rounding(float, 90, np.abs(B).max() * 30 + 900))


def test_lsi_has_a_certificate_until_documents_are_added(tmp_path):
    texts = [f"{a} {b}" for a in ("red", "blue", "green") for b in ("apple", "pear", "car")]
    lsi = fastdr.LSI(3).fit(texts)
    told = lsi.certificate_
    assert told.proved
    assert (told.lower <= lsi.singular_values_).all()
    lsi.model_.save(tmp_path / "index.fdr")
    assert fastdr.load(tmp_path / "index.fdr").certificate.method == told.method
    lsi.add(["red car"])
    assert lsi.certificate_ is None


def test_the_command_tells_of_singular_values_and_indexes(rng, tmp_path):
    run = lambda *words: CliRunner().invoke(application(), [str(word) for word in words])  # noqa: E731
    path = tmp_path / "svd.fdr"
    svd = fastdr.TruncatedSVD(12).fit(decaying(rng, 90, 50))
    svd.model_.save(path)
    shown = run("info", path)
    assert shown.exit_code == 0
    assert "kind            SingularModel" in shown.stdout
    assert "(2 more)" in shown.stdout
    assert "certificate: proved" in " ".join(shown.stdout.split())
    assert f"{svd.singular_values_[9]:.8g}" in shown.stdout
    known = json.loads(run("info", path, "--json").stdout)
    assert known["certificate"]["method"] == svd.certificate_.method
    (tmp_path / "texts.txt").write_text("red apple\nblue car\nred car\n")
    made = run("fit", "--text", tmp_path / "texts.txt", "-k", 2, "-o", tmp_path / "index.fdr")
    assert "certificate: proved" in made.stdout
    shown = run("info", tmp_path / "index.fdr").stdout
    assert "weighting       tfidf" in shown
    assert "certificate: proved" in shown
