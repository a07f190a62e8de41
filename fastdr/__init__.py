"""Dimension reduction that is right by default, certified and close to the hardware.

Names load on first use, so ``import fastdr`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastdr._serve import Projector as Projector
    from fastdr.autoencoder import AutoEncoder as AutoEncoder
    from fastdr.backend import patch_sklearn as patch_sklearn
    from fastdr.backend import patched as patched
    from fastdr.backend import unpatch_sklearn as unpatch_sklearn
    from fastdr.certificate import Certificate as Certificate
    from fastdr.class_statistics import ClassMoments as ClassMoments
    from fastdr.covariances import covariance as covariance
    from fastdr.discriminant import LinearDiscriminantAnalysis as LinearDiscriminantAnalysis
    from fastdr.discriminant_model import DiscriminantModel as DiscriminantModel
    from fastdr.drift import Drift as Drift
    from fastdr.eigen import EigenResult as EigenResult
    from fastdr.eigen import SolverInfo as SolverInfo
    from fastdr.eigen import certify as certify
    from fastdr.eigen import eigsh as eigsh
    from fastdr.graphs import to_onnx as to_onnx
    from fastdr.ica import FastICA as FastICA
    from fastdr.incremental import IncrementalPCA as IncrementalPCA
    from fastdr.inputs import open_rows as open_rows
    from fastdr.low_rank import LowRankMoments as LowRankMoments
    from fastdr.lsi import LSI as LSI
    from fastdr.lsi_model import LSIModel as LSIModel
    from fastdr.models import LinearModel as LinearModel
    from fastdr.network_model import NetworkModel as NetworkModel
    from fastdr.operators import project as project
    from fastdr.operators import reconstruct as reconstruct
    from fastdr.operators import reconstruction_error as reconstruction_error
    from fastdr.pca import PCA as PCA
    from fastdr.persistence import load as load
    from fastdr.plan import Plan as Plan
    from fastdr.singular import SVDResult as SVDResult
    from fastdr.singular import svds as svds
    from fastdr.singular_model import SingularModel as SingularModel
    from fastdr.statistics import Moments as Moments
    from fastdr.statistics import moments as moments
    from fastdr.subspace import Subspace as Subspace
    from fastdr.threads import get_num_threads as get_num_threads
    from fastdr.threads import num_threads as num_threads
    from fastdr.threads import set_num_threads as set_num_threads
    from fastdr.truncated_svd import TruncatedSVD as TruncatedSVD
    from fastdr.unmixing_model import UnmixingModel as UnmixingModel
    from fastdr.validation import AccuracyWarning as AccuracyWarning

__version__ = "0.1.0"

_HOME = {
    "AccuracyWarning": "validation", "AutoEncoder": "autoencoder", "Certificate": "certificate",
    "ClassMoments": "class_statistics", "DiscriminantModel": "discriminant_model",
    "Drift": "drift", "EigenResult": "eigen", "FastICA": "ica", "IncrementalPCA": "incremental",
    "LSI": "lsi", "LSIModel": "lsi_model", "LinearDiscriminantAnalysis": "discriminant",
    "LinearModel": "models", "LowRankMoments": "low_rank", "Moments": "statistics",
    "NetworkModel": "network_model",
    "PCA": "pca", "Plan": "plan", "Projector": "_serve", "SVDResult": "singular",
    "SingularModel": "singular_model", "SolverInfo": "eigen", "Subspace": "subspace",
    "TruncatedSVD": "truncated_svd",
    "UnmixingModel": "unmixing_model", "certify": "eigen", "covariance": "covariances",
    "eigsh": "eigen", "svds": "singular",
    "get_num_threads": "threads", "load": "persistence", "moments": "statistics",
    "num_threads": "threads", "open_rows": "inputs", "patch_sklearn": "backend",
    "patched": "backend", "project": "operators", "reconstruct": "operators",
    "reconstruction_error": "operators", "set_num_threads": "threads", "to_onnx": "graphs",
    "unpatch_sklearn": "backend",
}

__all__ = sorted([*_HOME, "get_include"])  # noqa: PLE0605


def get_include() -> str:
    """Return the folder of ``fastdr.h``, for the compiler of C and Cython code that includes it.

    Examples
    --------
    >>> import fastdr, os
    >>> os.path.isfile(os.path.join(fastdr.get_include(), "fastdr.h"))
    True
    """
    return str(Path(__file__).parent / "include")


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'fastdr' has no attribute {name!r}")
    value = getattr(import_module(f"fastdr.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    modules = (name for name, value in globals().items() if isinstance(value, ModuleType))
    return sorted({*__all__, "__version__", *modules})
