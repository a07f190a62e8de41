"""Further rivals of PCA.fit, each by its best way on data in memory; results as in `contestants`.

Approximate ones are shown with the error they reach, and compared with only where a row's accuracy
is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fastdr
from bench.contestants import Contestant
from bench.data import Inputs


def _dask(inputs: Inputs) -> Callable[[], Any]:
    import dask
    import dask.array
    from dask_ml.decomposition import PCA

    threads = fastdr.get_num_threads()
    X = dask.array.from_array(inputs.X, chunks=(-(-len(inputs.X) // threads), inputs.X.shape[1]))

    def run() -> Any:
        with dask.config.set(scheduler="threads", num_workers=threads):
            model = PCA(inputs.k, svd_solver="full").fit(X)
        return model.explained_variance_, model.components_

    return run


def _fbpca(inputs: Inputs) -> Callable[[], Any]:
    from fbpca import pca

    def run() -> Any:
        np.random.seed(0)  # noqa: NPY002 - where it takes its random numbers from
        _, s, axes = pca(inputs.X, inputs.k, raw=False)
        return s**2 / (len(inputs.X) - 1), axes

    return run


def _torch_lowrank(inputs: Inputs) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(fastdr.get_num_threads())
    X = torch.from_numpy(inputs.X)

    def run() -> Any:
        torch.manual_seed(0)
        _, s, axes = torch.pca_lowrank(X, q=inputs.k)
        return (s**2 / (len(X) - 1)).numpy(), axes.T.numpy()

    return run


def _torch_eigh(inputs: Inputs) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(fastdr.get_num_threads())
    X = torch.from_numpy(inputs.X)

    def run() -> Any:
        values, axes = torch.linalg.eigh(torch.cov(X.T))
        return values.numpy()[: -inputs.k - 1 : -1], axes.numpy()[:, : -inputs.k - 1 : -1].T

    return run


def _faiss(inputs: Inputs) -> Callable[[], Any]:
    import faiss

    faiss.omp_set_num_threads(fastdr.get_num_threads())
    rows, columns = inputs.X.shape

    def run() -> Any:
        matrix = faiss.PCAMatrix(columns, inputs.k)
        matrix.max_points_per_d = rows  # or it would take a sample of the rows
        matrix.train(inputs.X)
        values, axes = map(faiss.vector_to_array, (matrix.eigenvalues, matrix.PCAMat))
        return values[: inputs.k] / (rows - 1), axes.reshape(-1, columns)[: inputs.k]

    return run


EXACT = (Contestant("PyTorch cov, eigh", _torch_eigh, "torch"),
         Contestant("dask-ml full", _dask, "dask_ml"))
APPROXIMATE = (Contestant("PyTorch pca_lowrank", _torch_lowrank, "torch", approximate=True),
               Contestant("fbpca", _fbpca, "fbpca", approximate=True))
SINGLE = (Contestant("faiss PCAMatrix", _faiss, "faiss"),)  # float32 only
