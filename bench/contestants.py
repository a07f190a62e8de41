"""Who competes in each group of cases: fastdr first, then its rivals, each at its best.

`prepare` does what is not timed (fit a model on the first rows, make a centred copy) and
returns the function that is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

import fastdr
from bench.data import HEAD_ROWS, Inputs

OURS = "fastdr"
SCIKIT = "scikit-learn"
INTELEX = "scikit-learn-intelex"


@dataclass(frozen=True)
class Contestant:
    """A name for the table, how to prepare the timed call, and the package that it needs.

    An approximate one competes only where it reaches the accuracy of the row.
    """

    name: str
    prepare: Callable[[Inputs], Callable[[], Any]]
    package: str = "fastdr"
    approximate: bool = False

    @property
    def present(self) -> bool:
        """Whether the package is installed."""
        return find_spec(self.package) is not None


def simple(function: Callable[[Any], Any]) -> Callable[[Inputs], Callable[[], Any]]:
    """Prepare a call that needs only the data matrix."""
    return lambda inputs: lambda: function(inputs.X)


# Covariance: an uncentred result is the pair (mean, product); see reference.covariance_error.


def _uncentred(dtype: str | None = None) -> Callable[[Any], Any]:
    def run(X: Any) -> Any:
        A = X if dtype is None else X.astype(dtype)
        return A.mean(0), A.T @ A

    return run


def _numpy_cov(X: Any) -> Any:
    return np.cov(X, rowvar=False, dtype=np.float32 if X.dtype == np.float32 else np.float64)


def _intelex_covariance(X: Any) -> Any:
    from sklearnex.preview.covariance import EmpiricalCovariance

    model = EmpiricalCovariance(store_precision=False).fit(X)
    return model.covariance_ * (len(X) / (len(X) - 1))


def _ours_covariance(X: Any) -> Any:
    return fastdr.covariance(X, dtype=np.float32 if X.dtype == np.float32 else None)


COVARIANCE = (
    Contestant(OURS, simple(_ours_covariance)),
    Contestant("NumPy X.mean(0), X.T @ X (uncentred)", simple(_uncentred()), "numpy"),
    Contestant("np.cov", simple(_numpy_cov), "numpy"),
    Contestant(f"{INTELEX} EmpiricalCovariance", simple(_intelex_covariance), "sklearnex"),
)
INTEGER_COVARIANCE = (
    COVARIANCE[0],
    Contestant("NumPy astype(f4), uncentred", simple(_uncentred("f4")), "numpy"),
    Contestant("NumPy astype(f8), uncentred", simple(_uncentred("f8")), "numpy"),
    *COVARIANCE[2:],
)


# Fitting: the result is (explained variances, components).


def _fitted(model: Any, X: Any) -> Any:
    model.fit(X)
    return model.explained_variance_, model.components_


def _ours_pca(k: int) -> Any:
    return fastdr.PCA(k or None)


def _scikit_pca(k: int, solver: str) -> Any:
    from sklearn.decomposition import PCA

    return PCA(k or None, svd_solver=solver)


def _intelex_pca(k: int) -> Any:
    from sklearnex.decomposition import PCA

    return PCA(k or None, svd_solver="covariance_eigh")


FIT_OURS = Contestant(OURS, lambda i: lambda: _fitted(_ours_pca(i.k), i.X))
FIT_EIGH = Contestant(f"{SCIKIT} covariance_eigh",
                      lambda i: lambda: _fitted(_scikit_pca(i.k, "covariance_eigh"), i.X),
                      "sklearn")
FIT_FULL = Contestant(f"{SCIKIT} full",
                      lambda i: lambda: _fitted(_scikit_pca(i.k, "full"), i.X), "sklearn")
FIT_INTELEX = Contestant(f"{INTELEX} covariance_eigh",
                         lambda i: lambda: _fitted(_intelex_pca(i.k), i.X), "sklearnex")
FIT = (FIT_OURS, FIT_EIGH, FIT_FULL, FIT_INTELEX)
# The others would form the d × d covariance.
FIT_WIDE = (FIT_OURS, FIT_FULL,
            Contestant(f"{SCIKIT} arpack",
                       lambda i: lambda: _fitted(_scikit_pca(i.k, "arpack"), i.X), "sklearn"))


def _streamed(model: Any, X: Any) -> Any:
    """Fit in batches of 5 d rows, scikit-learn's default; it keeps k axes, fastdr the moments."""
    step = 5 * X.shape[1]
    for start in range(0, len(X), step):
        model.partial_fit(X[start:start + step])
    return model.explained_variance_, model.components_


def _scikit_stream(k: int) -> Any:
    from sklearn.decomposition import IncrementalPCA

    return IncrementalPCA(k)


STREAM = (Contestant(OURS, lambda i: lambda: _streamed(fastdr.IncrementalPCA(i.k), i.X)),
          Contestant(f"{SCIKIT} IncrementalPCA",
                     lambda i: lambda: _streamed(_scikit_stream(i.k), i.X), "sklearn"))


FIT_RANDOMIZED = Contestant(f"{SCIKIT} randomized",
                            lambda i: lambda: _fitted(_scikit_pca(i.k, "randomized"), i.X),
                            "sklearn", approximate=True)
FIT_ARPACK = Contestant(f"{SCIKIT} arpack",
                        lambda i: lambda: _fitted(_scikit_pca(i.k, "arpack"), i.X), "sklearn")
FIT_FEW = (FIT_OURS, FIT_EIGH, FIT_ARPACK, FIT_RANDOMIZED, FIT_INTELEX)
FIT_FEW_WIDE = (FIT_OURS, FIT_ARPACK, FIT_RANDOMIZED)


# A few eigenpairs of a symmetric matrix: the result is (values, vectors), largest first.


def _ours_eigsh(certificate: bool | str) -> Callable[[Inputs], Callable[[], Any]]:
    return lambda i: lambda: fastdr.eigsh(i.X, i.k, certificate=certificate)[:2]


def _scipy_eigsh(inputs: Inputs) -> Callable[[], Any]:
    from scipy.sparse.linalg import eigsh

    def run() -> Any:
        values, vectors = eigsh(inputs.X, inputs.k, which="LA")
        return values[::-1], vectors[:, ::-1]

    return run


def _scipy_eigh(inputs: Inputs) -> Callable[[], Any]:
    from scipy.linalg import eigh

    def run() -> Any:
        order = len(inputs.X)
        values, vectors = eigh(inputs.X, subset_by_index=(order - inputs.k, order - 1))
        return values[::-1], vectors[:, ::-1]

    return run


EIGSH = (
    Contestant(OURS, _ours_eigsh(False)),
    Contestant("SciPy eigsh", _scipy_eigsh, "scipy"),
    Contestant("SciPy eigh, subset", _scipy_eigh, "scipy"),
)
PROOF = (Contestant(OURS, _ours_eigsh("proof")), EIGSH[2])  # of rivals LAPACK misses none


def _ours_discriminant(inputs: Inputs) -> Callable[[], Any]:
    return lambda: fastdr.LinearDiscriminantAnalysis().fit(inputs.X, inputs.y).coef_


def _scikit_discriminant(solver: str) -> Contestant:
    def prepare(inputs: Inputs) -> Callable[[], Any]:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        return lambda: LinearDiscriminantAnalysis(solver=solver).fit(inputs.X, inputs.y).coef_

    return Contestant(f"{SCIKIT} {solver}", prepare, "sklearn")


DISCRIMINANT_OURS = Contestant(OURS, _ours_discriminant)
DISCRIMINANT = (DISCRIMINANT_OURS, *map(_scikit_discriminant, ("svd", "lsqr", "eigen")))
# The others would form the d × d covariance, and divide by its zeros.
DISCRIMINANT_WIDE = DISCRIMINANT[:2]


# Unmixing to one and the same gradient: the result is the unmixing matrix.


def _ours_unmixing(inputs: Inputs) -> Callable[[], Any]:
    return lambda: fastdr.FastICA().fit(inputs.X).components_


def _scikit_unmixing(inputs: Inputs) -> Callable[[], Any]:
    from sklearn.decomposition import FastICA

    # Its tolerance is of 1 - cos of the last turn, so of the square of the gradient.
    model = FastICA(whiten_solver="eigh", tol=1e-13, max_iter=1000, random_state=0)
    return lambda: model.fit(inputs.X).components_


def _picard(inputs: Inputs) -> Callable[[], Any]:
    from picard import picard

    def run() -> Any:
        whitening, rotation, _ = picard(inputs.X.T, ortho=True, extended=True, tol=1e-7,
                                        max_iter=1000, fastica_it=10, random_state=0)
        return rotation @ whitening

    return run


UNMIXING = (
    Contestant(OURS, _ours_unmixing),
    Contestant(f"{SCIKIT} eigh, tol 1e-13", _scikit_unmixing, "sklearn"),
    Contestant("python-picard, 10 FastICA steps first", _picard, "picard"),
)


# Applying a model, fitted on the first rows: the result is (what was asked, components, mean).


def _with_model(make: Callable[[int], Any], run: Callable[[Any, Inputs], Any]) -> Any:
    def prepare(inputs: Inputs) -> Callable[[], Any]:
        model = make(inputs.k).fit(inputs.X[:HEAD_ROWS])
        return lambda: (run(model, inputs), model.components_, model.mean_)

    return prepare


def _scikit_model(k: int) -> Any:
    return _scikit_pca(k, "covariance_eigh")


def _scikit_row_errors(model: Any, inputs: Inputs) -> Any:
    rebuilt = model.inverse_transform(model.transform(inputs.X))
    np.subtract(inputs.X, rebuilt, out=rebuilt)
    return np.einsum("ij,ij->i", rebuilt, rebuilt)


def _applied(ours: Callable[[Any, Inputs], Any], theirs: Callable[[Any, Inputs], Any],
             step: str) -> tuple[Contestant, ...]:
    return (Contestant(OURS, _with_model(_ours_pca, ours)),
            Contestant(f"{SCIKIT} {step}", _with_model(_scikit_model, theirs), "sklearn"),
            Contestant(f"{INTELEX} {step}", _with_model(_intelex_pca, theirs), "sklearnex"))


TRANSFORM = _applied(lambda model, i: model.transform(i.X),
                     lambda model, i: model.transform(i.X), "transform")
RECONSTRUCT = _applied(lambda model, i: model.inverse_transform(i.Z),
                       lambda model, i: model.inverse_transform(i.Z), "inverse_transform")
ROW_ERRORS = _applied(lambda model, i: model.reconstruction_error(i.X, per_row=True),
                      _scikit_row_errors, "transform, inverse, norm")


# Products with the centred matrix A = X - mean, the mean given.


def _ours_gram_apply(inputs: Inputs) -> Callable[[], Any]:
    from fastdr.operators import gram_apply

    # as the solver calls it for means no farther away than these
    return lambda: gram_apply(inputs.X, inputs.V, inputs.mean, apart=True)


def _two_products(inputs: Inputs) -> Callable[[], Any]:
    X, V, mean = inputs.X, inputs.V, inputs.mean.astype(inputs.X.dtype)

    def run() -> Any:
        scores = X @ V
        scores -= mean @ V
        image = X.T @ scores
        image -= np.outer(mean, scores.sum(0))
        return image

    return run


def _two_products_of_copy(inputs: Inputs) -> Callable[[], Any]:
    A = inputs.X - inputs.mean.astype(inputs.X.dtype)
    return lambda: A.T @ (A @ inputs.V)


GRAM_APPLY = (
    Contestant(OURS, _ours_gram_apply),
    Contestant("NumPy two products, means taken off", _two_products, "numpy"),
    Contestant("NumPy two products of a centred copy (copy not timed)", _two_products_of_copy,
               "numpy"),
)


def _ours_gram(inputs: Inputs) -> Callable[[], Any]:
    from fastdr.operators import gram

    return lambda: gram(inputs.X, inputs.mean)


def _numpy_gram(inputs: Inputs) -> Callable[[], Any]:
    def run() -> Any:
        A = inputs.X - inputs.mean.astype(inputs.X.dtype)
        return A @ A.T

    return run


def _double_centred(inputs: Inputs) -> Callable[[], Any]:
    def run() -> Any:
        K = inputs.X @ inputs.X.T
        mean = K.mean(0)
        K -= mean
        K -= mean[:, None]
        K += mean.mean()
        return K

    return run


GRAM = (
    Contestant(OURS, _ours_gram),
    Contestant("NumPy A = X - mean, A @ A.T", _numpy_gram, "numpy"),
    Contestant("NumPy X @ X.T, centred afterwards", _double_centred, "numpy"),
)
