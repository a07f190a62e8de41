"""Sparse rows and an index of texts: their data, who competes, and how wrong a result is.

Rows are counts of words: each has a subject, half of its words are those of the subject, and
columns are used as often as a power of their rank says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

import fastdr
from bench.contestants import FIT_ARPACK, FIT_OURS, OURS, SCIKIT, Contestant
from bench.data import Inputs

WORDS = 240  # drawn for a row; some are drawn twice
SUBJECTS = 100
POWER = 3  # the frequency of rank r is about r ** (1 / POWER - 1)
STEP = 1 << 14


def entries(rows: int, columns: int) -> int:
    """Return about how many entries such rows store."""
    return rows * min(190, columns // 4)


def rows_of(rows: int, columns: int, dtype: str, words: int = WORDS) -> Any:
    """Return the CSR matrix described above."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng([5, rows, columns])
    words = min(words, columns // 3)
    turns = rng.integers(1, columns, SUBJECTS)
    parts = []
    for start in range(0, rows, STEP):
        size = min(STEP, rows - start)
        ranks = (columns * rng.random((size, words), np.float32) ** POWER).astype(np.int64)
        subject = (SUBJECTS * rng.random(size) ** 2).astype(np.int64)
        ranks[:, ::2] = (ranks[:, ::2] + turns[subject, None]) % columns
        cells = ranks + np.arange(size)[:, None] * columns
        places, counts = np.unique(cells, return_counts=True)
        parts.append(csr_array((counts.astype(dtype), (places // columns, places % columns)),
                               shape=(size, columns)))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(
        [np.diff(part.indptr) for part in parts]))])
    return csr_array((np.concatenate([part.data for part in parts]),
                      np.concatenate([part.indices for part in parts]).astype(np.int32), indptr),
                     shape=(rows, columns))


def counts(k: int) -> Callable[[int, int, str], Inputs]:
    return lambda rows, columns, dtype: Inputs(rows_of(rows, columns, dtype),
                                               min(k, min(rows, columns) // 2))


def with_columns(rows: int, columns: int, dtype: str) -> Inputs:
    """One block of columns to multiply by, a cache line a row; the mean of the rows."""
    X = rows_of(rows, columns, dtype)
    V = np.random.default_rng(2).standard_normal((columns, 64 // X.dtype.itemsize))
    return Inputs(X, V=V.astype(X.dtype), mean=np.asarray(X.mean(0), np.float64).ravel())


def index(rows: int, columns: int, dtype: str) -> Inputs:
    """Documents on axes of decaying strength, X, and a query on them, V."""
    rng = np.random.default_rng([6, rows, columns])
    strength = np.arange(1.0, columns + 1) ** -0.5
    X = rng.standard_normal((rows, columns)) * strength
    return Inputs(X, min(10, rows), V=rng.standard_normal((1, columns)) * strength)


# Fitting: (squares of singular values or variances, vectors).


def _decomposed(model: Any, X: Any) -> Any:
    model.fit(X)
    return model.singular_values_ ** 2, model.components_


def _scikit_svd(algorithm: str) -> Contestant:
    def prepare(inputs: Inputs) -> Callable[[], Any]:
        from sklearn.decomposition import TruncatedSVD

        model = TruncatedSVD(inputs.k, algorithm=algorithm, random_state=0)
        return lambda: _decomposed(model, inputs.X)

    return Contestant(f"{SCIKIT} {algorithm}", prepare, "sklearn")


FIT = (FIT_OURS, FIT_ARPACK)
DECOMPOSE = (Contestant(OURS, lambda i: lambda: _decomposed(fastdr.TruncatedSVD(i.k), i.X)),
             _scikit_svd("randomized"), _scikit_svd("arpack"))


def _scanpy(patched: bool) -> Callable[[Inputs], Callable[[], Any]]:
    """Prepare scanpy's PCA, which calls scikit-learn's, or fastdr's in its place."""
    def prepare(inputs: Inputs) -> Callable[[], Any]:
        import anndata
        import scanpy

        cells = anndata.AnnData(inputs.X)

        def run() -> Any:
            with fastdr.patched() if patched else nullcontext():
                scanpy.pp.pca(cells, n_comps=inputs.k)
            return cells.uns["pca"]["variance"], cells.varm["PCs"].T

        return run

    return prepare


SCANPY = (Contestant(OURS, _scanpy(True), "scanpy"),
          Contestant("scanpy on scikit-learn", _scanpy(False), "scanpy"))


def _residual(inputs: Inputs, result: Any, mean: Any, divisor: float) -> float:
    """Largest ‖C v - λ v‖ in float64, relative to the largest λ."""
    values, vectors = (np.asarray(part, np.float64) for part in result)
    X, V = inputs.X, vectors.T
    scores = X @ V - mean @ V
    image = (X.T @ scores - np.outer(mean, scores.sum(0))) / divisor
    return float(np.linalg.norm(image - V * values, axis=0).max() / values[0])


def fit_error(inputs: Inputs, result: Any) -> float:
    """As `_residual`, of the covariance; the rows are too many for another reference."""
    mean = np.asarray(inputs.X.mean(0, dtype=np.float64)).ravel()
    return _residual(inputs, result, mean, inputs.X.shape[0] - 1)


def decomposition_error(inputs: Inputs, result: Any) -> float:
    """As `_residual`, of XᵀX."""
    return _residual(inputs, result, np.zeros(inputs.X.shape[1]), 1.0)


# Products with the centred rows A = X - mean, the mean given.


def _ours_gram_apply(inputs: Inputs) -> Callable[[], Any]:
    from fastdr.sparse import SparseAction, SparseSource, sparse_moments

    source = SparseSource.of(inputs.X)
    action = SparseAction(source, sparse_moments(source), dtype=inputs.V.dtype)
    V = np.ascontiguousarray(inputs.V.T)
    return lambda: np.ldexp(action(V).T, action.exponent)


def _two_products(inputs: Inputs) -> Callable[[], Any]:
    X, V, mean = inputs.X, inputs.V, inputs.mean.astype(inputs.X.dtype)
    XT = X.T

    def run() -> Any:
        scores = X @ V
        scores -= mean @ V
        image = XT @ scores
        image -= np.outer(mean, scores.sum(0))
        return image

    return run


GRAM_APPLY = (Contestant(OURS, _ours_gram_apply),
              Contestant("SciPy two products, means taken off", _two_products, "scipy"))


def gram_apply_error(inputs: Inputs, result: Any) -> float:
    """Largest error of a column of AᵀAV, relative to the length of the column."""
    scores = inputs.X @ inputs.V.astype(np.float64) - inputs.mean @ inputs.V.astype(np.float64)
    exact = inputs.X.T @ scores - np.outer(inputs.mean, scores.sum(0))
    return float((np.linalg.norm(result - exact, axis=0) / np.linalg.norm(exact, axis=0)).max())


# The ten nearest of an index by cosine: (places, cosines).


def _ours_query(inputs: Inputs) -> Callable[[], Any]:
    features = inputs.X.shape[1]
    model = fastdr.LSIModel(np.eye(features), np.ones(features), inputs.X, np.ones(features), None)
    return lambda: [found[0] for found in model.nearest(inputs.V, inputs.k)]


def _units(inputs: Inputs) -> tuple[Any, Any]:
    return tuple((part / np.linalg.norm(part, axis=1)[:, None]).astype(np.float32)
                 for part in (inputs.X, inputs.V))


def _numpy_query(inputs: Inputs) -> Callable[[], Any]:
    units, asked = _units(inputs)

    def run() -> Any:
        cosines = units @ asked[0]
        best = np.argpartition(-cosines, inputs.k - 1)[:inputs.k]
        best = best[np.argsort(-cosines[best])]
        return best, cosines[best]

    return run


def _gensim_query(inputs: Inputs) -> Callable[[], Any]:
    from gensim.matutils import Dense2Corpus
    from gensim.similarities import MatrixSimilarity

    similar = MatrixSimilarity(Dense2Corpus(inputs.X, documents_columns=False),
                               num_features=inputs.X.shape[1], num_best=inputs.k)
    asked = list(enumerate(inputs.V[0].tolist()))
    return lambda: tuple(np.array(column) for column in zip(*similar[asked], strict=True))


def _faiss_query(inputs: Inputs) -> Callable[[], Any]:
    import faiss

    faiss.omp_set_num_threads(fastdr.get_num_threads())
    units, asked = _units(inputs)
    flat = faiss.IndexFlatIP(units.shape[1])
    flat.add(units)

    def run() -> Any:
        cosines, places = flat.search(asked, inputs.k)
        return places[0], cosines[0]

    return run


QUERY = (Contestant(OURS, _ours_query),
         Contestant("NumPy float32, argpartition", _numpy_query, "numpy"),
         Contestant("gensim MatrixSimilarity", _gensim_query, "gensim"),
         Contestant("faiss IndexFlatIP", _faiss_query, "faiss"))


def query_error(inputs: Inputs, result: Any) -> float:
    """Largest error of a cosine, by rank, and of the cosine of the place that was found."""
    def compute() -> Any:
        lengths = np.linalg.norm(inputs.X, axis=1) * np.linalg.norm(inputs.V)
        return (inputs.X @ inputs.V[0]) / lengths

    exact = inputs.once("cosines", compute)
    places, cosines = result
    best = np.sort(exact)[:-inputs.k - 1:-1]
    return float(max(np.abs(cosines - best).max(), np.abs(exact[places] - best).max()))
