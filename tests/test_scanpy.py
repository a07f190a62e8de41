"""scanpy on patched scikit-learn, if it is installed: the same answer, and ours."""

import logging

import numpy as np
import pytest
from scipy import sparse
from tolerance import eigenvalue_error

import fastdr

pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]  # theirs


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("arguments", [{}, {"zero_center": False, "svd_solver": "arpack"}], ids=str)
def test_pca_of_scanpy(rng, caplog, kind, arguments):
    scanpy, anndata = pytest.importorskip("scanpy"), pytest.importorskip("anndata")
    counts = rng.poisson(rng.gamma(0.3, 2.0, 60), (300, 60)).astype(np.float32)
    counts[:100, :10] += 20 * rng.random((100, 1), np.float32)
    theirs, ours = (anndata.AnnData(kind(counts)) for _ in range(2))
    scanpy.pp.pca(theirs, n_comps=2, **arguments)
    with fastdr.patched(), caplog.at_level(logging.INFO, "fastdr.backend"):
        scanpy.pp.pca(ours, n_comps=2, **arguments)
    assert ".fit_transform: by fastdr" in caplog.text
    assert "original is used" not in caplog.text
    variances = theirs.uns["pca"]["variance"]
    error = eigenvalue_error(60, variances[0], np.float32)
    np.testing.assert_allclose(ours.uns["pca"]["variance"], variances, atol=error)
    axes = ours.varm["PCs"].T.astype(float) @ theirs.varm["PCs"].astype(float)
    np.testing.assert_allclose(np.abs(axes), np.eye(2), atol=error / -np.diff(variances)[0])
