"""Models in files: one safetensors file with a JSON header and a format number; never pickle.

A file holds the arrays of a model; everything else stands as JSON under the metadata key
"fastdr". Loaded arrays are read-only views of the mapped file, so loading costs no copy and
processes share the memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from fastdr.kinds import KINDS, Model
from fastdr.lsi_model import LSIModel
from fastdr.models import LinearModel
from fastdr.outputs import replacing
from fastdr.singular_model import SingularModel
from fastdr.statistics import Moments
from fastdr.validation import AnyArray

FORMAT = 1
DTYPES = {"F64": "<f8", "F32": "<f4"}
MAX_HEADER = 100_000_000  # the limit of the safetensors format


def save(model: Model, path: str | PathLike[str],
         report: Mapping[str, Any] | None = None) -> None:
    """Write `model` to `path`: beside it first, then renamed, so no half-written file remains.

    Parameters
    ----------
    model : LinearModel, DiscriminantModel, UnmixingModel, NetworkModel, SingularModel,
        LSIModel or Moments
    path : str or path
        By convention with suffix ``.fdr``; the file is an ordinary safetensors file. Symbolic
        links are followed, and a file that is replaced keeps its mode.
    report : mapping of plain values, optional
        What to keep beside Moments, which have no report of their own.

    Raises
    ------
    OSError
        If the folder does not exist or cannot be written.
    TypeError
        If the labels of classes are objects other than strings, numbers and bool.
    ValueError
        If there is something at `path` that is not a regular file, or the model could not be
        loaded: its names are not one string a feature, or an array is not finite.

    Examples
    --------
    >>> import fastdr, tempfile, os
    >>> model = LinearModel([0.0, 1.0], [[0.6, 0.8]], [2.0])
    >>> path = os.path.join(tempfile.mkdtemp(), "axes.fdr")
    >>> save(model, path)
    >>> fastdr.load(path).variances
    array([2.])
    """
    kind = KINDS[type(model).__name__]
    names = getattr(model, "feature_names", None)
    header = {
        "format": FORMAT,
        "kind": type(model).__name__,
        "version": _version(),
        "feature_names": None if names is None else list(names),
        "report": dict(getattr(model, "report", report or {})),
        **kind.entries(model),
    }
    arrays = kind.arrays(model)
    _check(header, arrays)  # so that what was written can be read
    text = json.dumps(header, default=_plain)
    with replacing(path) as part:
        part.write_bytes(to_bytes(arrays, {"fastdr": text}))


def load(path: str | PathLike[str]) -> Model:
    """Return the model saved at `path`.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    LinearModel, DiscriminantModel, UnmixingModel, NetworkModel, SingularModel,
        LSIModel or Moments
        Its arrays are read-only views of the mapped file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a fastdr model, is truncated or tampered with, or of a later format.

    Examples
    --------
    >>> import fastdr, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "axes.fdr")
    >>> LinearModel([0.0, 1.0], [[0.6, 0.8]], [2.0]).save(path)
    >>> fastdr.load(path).components
    array([[0.6, 0.8]])
    """
    header, arrays = _opened(path)
    with _invalid(path):
        return KINDS[header["kind"]].made(header, arrays)


def load_moments(path: str | PathLike[str]) -> tuple[Moments, dict[str, Any]]:
    """Return saved Moments and the report kept beside them; ValueError if they are not such."""
    header, arrays = _opened(path)
    if header["kind"] != "Moments":
        raise ValueError(f"{path} holds a {header['kind']}, not Moments.")
    with _invalid(path):
        moments = KINDS["Moments"].made(header, arrays)
        assert isinstance(moments, Moments)
        return moments, header["report"]


def load_axes(path: str | PathLike[str]) -> LinearModel:
    """As `load`; raises ValueError if the model is not one of axes."""
    model = load(path)
    if not isinstance(model, LinearModel):
        raise ValueError(f"{path} holds a {type(model).__name__}, which has no principal axes; "
                         "use fastdr.load in Python.")
    return model


def load_values(path: str | PathLike[str]) -> LinearModel | SingularModel | LSIModel:
    """As `load`; raises ValueError if the model is not one of variances or singular values."""
    model = load(path)
    if not isinstance(model, LinearModel | SingularModel | LSIModel):
        raise ValueError(f"{path} holds a {type(model).__name__}, which has no principal axes or "
                         "singular values; use fastdr.load in Python.")
    return model


@contextmanager
def _invalid(path: str | PathLike[str]) -> Iterator[None]:
    """Say of which file a fault is."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is not a valid fastdr model: {error}") from None


def _opened(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the header and the arrays of a file after checking what all kinds have."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a model file.")
    try:
        with safe_open(path, framework="numpy") as file:  # checks lengths, offsets and shapes
            text = (file.metadata() or {}).get("fastdr")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}.") from None
    if text is None:
        raise ValueError(f"{path} is a safetensors file but holds no fastdr model.")
    with _invalid(path):
        header, arrays = _header(text), _mapped(path)
        _check(header, arrays)
        return header, arrays


def _header(text: str) -> dict[str, Any]:
    """Return the JSON header after checking what kind of file it announces."""
    header = json.loads(text)
    if not isinstance(header, dict) or not isinstance(header.get("format"), int):
        raise ValueError("its header has no format number.")
    if header["format"] > FORMAT:
        raise ValueError(f"it has format {header['format']}, written by fastdr "
                         f"{header.get('version')}; this version reads up to {FORMAT}. Upgrade "
                         "fastdr.")
    if header["format"] < 1 or header.get("kind") not in KINDS:
        raise ValueError(f"unknown format {header['format']} or kind {header.get('kind')!r}.")
    return header


def _check(header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
    """Check what models of all kinds have: finite arrays, names of features, a report."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} contains NaN or infinity.")
    names, over = header["feature_names"], arrays.get(KINDS[header["kind"]].over)
    if names is not None and (not isinstance(names, list) or not all(
            isinstance(name, str) for name in names)
            or (over is not None and over.shape[-1:] != (len(names),))):
        raise ValueError("feature_names must be one string for each feature.")
    if not isinstance(header["report"], dict):
        raise ValueError("report must be an object.")


def _mapped(path: Path) -> dict[str, AnyArray]:
    """Return the arrays as read-only views of the mapped file, which safe_open has checked."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = int(data[:8].view("<u8")[0])
    if length > min(MAX_HEADER, data.size - 8):
        raise ValueError("its header is longer than the file.")
    table = json.loads(bytes(data[8:8 + length]))
    arrays: dict[str, AnyArray] = {}
    for name, entry in table.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{name} has dtype {entry['dtype']}; expected F64 or F32.")
        first, last = (8 + length + offset for offset in entry["data_offsets"])
        values = data[first:last].view(np.ndarray).view(DTYPES[entry["dtype"]])
        arrays[name] = np.require(values.reshape(entry["shape"]), requirements="A")
    return arrays


def _version() -> str:
    try:
        return version("fastdr")
    except PackageNotFoundError:
        return "unknown"


def _plain(value: Any) -> Any:
    """Turn NumPy scalars of a report into JSON's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to JSON")
