"""Plans of sparse rows: decisions, costs against the truth, budgets, files."""

import json
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

import fastdr
from fastdr.cli import application
from fastdr.plan import Rates, Task
from fastdr.sparse import SparseSource
from fastdr.sparse_plan import Stored, sparse_plan


@pytest.mark.parametrize(("rows", "features", "entries", "k", "more", "solver", "on"), [
    (1000, 300, 10, 5, {}, "lapack", "covariance"),
    (100_000, 1500, 20, 5, {}, "lanczos", "covariance"),        # few products of few entries
    (100_000, 1500, 20, 200, {}, "lapack", "covariance"),       # many axes
    (100_000, 1500, 900, 5, {}, "lanczos", "rows"),             # many entries a row
    (100_000, 20_000, 200, 50, {}, "lanczos", "rows"),
    (900, 1500, 20, 5, {}, "lanczos", "rows"),                  # fewer rows
    (1000, 300, 10, 5, {"solver": "lanczos"}, "lanczos", "rows"),
    (9000, 5000, 10, 5, {"solver": "lapack"}, "lapack", "covariance"),
    (1000, 300, 10, 5, {"share": True}, "lapack", "covariance"),
])
def test_decisions(rows, features, entries, k, more, solver, on):
    stored = Stored(rows * entries, float(rows * entries**2), float(rows * entries**2))
    task = Task(rows, features, "f8", k, **more)
    way = sparse_plan(task, stored)
    assert (way.solver, way.on) == (solver, on)
    assert way.reason.startswith(f"sparse rows; {rows * entries} entries are stored; ")
    assert (way.columns > 0) is (solver == "lanczos")
    slow = sparse_plan(task, stored, rates=Rates(1e9, 1e9))
    assert (slow.solver, slow.on) == (solver, on)
    assert slow.seconds > way.seconds > 0


def test_what_is_stored_is_counted(rng):
    X = sp.csr_array(sp.random_array((40, 90), density=0.2, rng=rng))
    each, columns = np.diff(X.indptr).astype(float), X.tocsc()
    assert Stored.of(SparseSource.of(X)) == (
        X.nnz, (each**2).sum(), (np.diff(columns.indptr).astype(float)**2).sum())
    tall = Stored.of(SparseSource.of(X.T.tocsr()))
    assert tall.scatter == tall.gram == (np.diff(columns.indptr).astype(float)**2).sum()


@pytest.mark.parametrize(("shape", "solver", "certificate"), [
    ((20_000, 300), "auto", "auto"), ((20_000, 300), "lapack", "residual"),
    ((2000, 12_000), "auto", "residual"), ((500, 12_000), "auto", "proof"),
    ((12_000, 600), "lanczos", "proof")])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_fits_stay_within_the_memory_that_was_planned(rng, shape, solver, certificate, dtype):
    X = sp.csr_array(sp.random_array(shape, density=0.02, rng=rng, dtype=dtype))
    X = sp.csr_array(X * (np.arange(1, shape[1] + 1)**-0.5).astype(dtype))
    model = fastdr.PCA(5, svd_solver=solver, certificate=certificate)
    planned = model.plan(X)
    model.fit(X[:100])
    tracemalloc.start()
    model.fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= planned.peak_bytes
    assert model.solver_used_ == planned.solver
    assert model.report_["reason"] == planned.reason
    assert model.certificate_.proved <= planned.proof
    assert planned.proof or certificate == "residual"


def test_budgets_and_refusals(rng):
    X = sp.csr_array(sp.random_array((30_000, 500), density=0.05, rng=rng))
    free = fastdr.PCA(5).plan(X)
    assert free.on == "covariance"
    tight = fastdr.PCA(5, max_memory=free.peak_bytes - 1).plan(X)
    assert tight.on == "rows"
    unproved = fastdr.PCA(5, svd_solver="lanczos", certificate="proof")
    assert unproved.plan(X).proof
    less = unproved.set_params(max_memory=unproved.plan(X).peak_bytes - 1)
    assert less.plan(X).reason.endswith("no proof: its matrix does not fit")
    with pytest.warns(UserWarning, match="asks for a proof, but there is none"):
        less.fit(X)
    with pytest.raises(ValueError, match=r"nothing fits in 1 kB beyond the data: 5 axes need"):
        fastdr.PCA(5, max_memory=1000).fit(X)
    with pytest.raises(ValueError, match="n_components=501"):
        fastdr.PCA(501).plan(X)
    with pytest.raises(ValueError, match="'svd' would make sparse rows dense"):
        fastdr.PCA(5, svd_solver="svd").plan(SparseSource.of(X))
    with pytest.raises(TypeError, match="sparse"):
        fastdr.PCA(5, svd_solver="svd").plan(X)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_array, sp.coo_array])
def test_files_of_sparse_matrices(rng, kind, tmp_path):
    X = sp.csr_array(sp.random_array((300, 40), density=0.1, rng=rng))
    path = tmp_path / "x.npz"
    sp.save_npz(path, kind(X))
    run = lambda *words: CliRunner().invoke(application(), [str(word) for word in words])  # noqa: E731
    way = json.loads(run("plan", path, "-k", 3, "--json").stdout)
    assert way["reason"].startswith("sparse rows; ")
    assert way["solver"] == "lapack"
    shown = run("plan", path, "-k", 3).stdout
    assert "300 rows x 40 features" in shown
    assert "sparse rows" in shown
    made = run("fit", path, "-k", 3, "-o", tmp_path / "m.fdr", "--memory", "1GB")
    assert made.exit_code == 0, made.output
    np.testing.assert_array_equal(fastdr.load(tmp_path / "m.fdr").variances,
                                  fastdr.PCA(3).fit(X).explained_variance_)
    assert run("transform", tmp_path / "m.fdr", path, "-o", tmp_path / "z.npy").exit_code == 0
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"),
                               fastdr.PCA(3).fit(X).transform(X.toarray()), rtol=0, atol=1e-12)
    assert "one sparse matrix" in run("plan", path, "--member", "data").output
    sound = dict(data=X.data, indices=X.indices, indptr=X.indptr, format=b"csr", shape=X.shape)
    for damage in ({"indices": None}, {"indptr": X.indptr[::-1]}, {"format": 3}, {"format": b"odd"},
                   {"shape": -5}, {"data": X.data * 1j}):
        parts = {name: part for name, part in (sound | damage).items() if part is not None}
        np.savez(tmp_path / "no.npz", **parts)
        outcome = run("plan", tmp_path / "no.npz")
        assert outcome.exit_code == 1
        words = "has dtype complex128" if "data" in damage else "not a sparse matrix of SciPy"
        assert f"no.npz: {words}" in outcome.stderr
        assert outcome.stderr.count("\n") == 1
