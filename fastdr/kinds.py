"""Kinds of models in files: what each writes, and how it is put together and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdr.certificate import told_by
from fastdr.discriminant_model import DiscriminantModel
from fastdr.low_rank import LowRankMoments
from fastdr.lsi_model import LSIModel
from fastdr.models import LinearModel
from fastdr.network_model import NetworkModel
from fastdr.singular_model import SingularModel
from fastdr.statistics import Moments
from fastdr.unmixing_model import UnmixingModel
from fastdr.validation import AnyArray

Model = (LinearModel | DiscriminantModel | UnmixingModel | NetworkModel | SingularModel
         | LSIModel | Moments | LowRankMoments)
Entries = Mapping[str, Any]
NUMBERS = ("total_variance", "noise_variance", "left_out")
COUNTS = ("rank", "count", "exponent")


@dataclass(frozen=True)
class Kind:
    """One kind of model.

    Attributes
    ----------
    needed, optional : tuple of str, attributes of the model that are its arrays.
    entries : model to what else its header holds, in JSON's types.
    fields : (header, arrays) to fields of the model other than arrays; raises ValueError for
        values that no model has, as a file may say anything.
    model : the class.
    described : whether it has `feature_names` and a `report` of its own.
    over : str, the array whose last axis is that of the features.
    """

    model: Callable[..., Model]
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    entries: Callable[[Any], dict[str, Any]]
    fields: Callable[[Entries, Mapping[str, AnyArray]], dict[str, Any]]
    described: bool = True
    over: str = "mean"

    def arrays(self, model: Model) -> dict[str, AnyArray]:
        """Return the arrays to write."""
        found = {name: getattr(model, name) for name in (*self.needed, *self.optional)}
        return {name: np.ascontiguousarray(array) for name, array in found.items()
                if array is not None}

    def made(self, header: Entries, arrays: Mapping[str, AnyArray]) -> Model:
        """Return the model that a file describes; raises ValueError if it describes none."""
        if not set(self.needed) <= set(arrays) <= {*self.needed, *self.optional}:
            perhaps = f" and perhaps {', '.join(self.optional)}" if self.optional else ""
            raise ValueError(f"it holds arrays {sorted(arrays)}; expected "
                             f"{', '.join(self.needed)}{perhaps}.")
        names = header["feature_names"]
        described = {"feature_names": None if names is None else tuple(names),
                     "report": header["report"]} if self.described else {}
        return self.model(**arrays, **self.fields(header, arrays), **described)


def _axes_entries(model: LinearModel) -> dict[str, Any]:
    return {"whiten": model.whiten,
            **{name: float(getattr(model, name)).hex() for name in NUMBERS},
            **{name: int(getattr(model, name)) for name in COUNTS}}


def _axes_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    numbers = {name: float.fromhex(header[name]) for name in NUMBERS}
    counts = {name: _count(header[name], name) for name in COUNTS}
    if not 0 <= counts["rank"] <= len(arrays["components"]) or counts["count"] < 0:
        raise ValueError(f"rank {counts['rank']} or count {counts['count']} is impossible.")
    if not all(value >= 0 and math.isfinite(value) for value in numbers.values()):
        raise ValueError(f"variances {numbers} must be finite and not negative.")
    _count(header["report"].get("rows_read", 0), "rows_read")
    _check_certificate(header, len(arrays["variances"]))
    return {**numbers, **counts, "whiten": header["whiten"]}


def _check_certificate(header: Entries, values: int) -> None:
    told = told_by(header["report"])
    if told is not None and len(told.lower) != values:
        raise ValueError("its certificate is of another number of values.")


def _class_entries(model: DiscriminantModel) -> dict[str, Any]:
    labels = model.classes.tolist()
    if not all(isinstance(label, str | int | float) for label in labels):
        raise TypeError("only labels that are strings, numbers or bool can be saved; got "
                        f"{type(labels[0]).__name__}.")
    return {"classes": [label.hex() if isinstance(label, float) else label for label in labels],
            "classes_dtype": model.classes.dtype.str,
            "n_components": model.n_components, "count": model.count}


def _class_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    labels, dtype = header["classes"], np.dtype(header["classes_dtype"])
    if not isinstance(labels, list) or dtype.kind not in "biufUOT":
        raise ValueError(f"classes must be a list of labels, not of dtype {dtype}.")
    if dtype.kind == "f":
        labels = [float.fromhex(label) for label in labels]
    classes = np.array(labels, dtype=dtype)
    if len(np.unique(classes)) < len(labels):
        raise ValueError("classes must differ from each other.")
    if (arrays["priors"] < 0).any() or (arrays["separations"] < 0).any():
        raise ValueError("priors and separations must not be negative.")
    counts = {name: _count(header[name], name) for name in ("n_components", "count")}
    if min(counts.values()) < 0 or counts["n_components"] > len(arrays["directions"]):
        raise ValueError(f"counts {counts} are impossible.")
    return {"classes": classes, **counts}


def _source_entries(model: UnmixingModel) -> dict[str, Any]:
    return {"count": model.count, "steps": model.steps, "certificate": dict(model.certificate)}


def _source_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    counts = {name: _count(header[name], name) for name in ("count", "steps")}
    if min(counts.values()) < 0:
        raise ValueError(f"counts {counts} are impossible.")
    if not isinstance(header["certificate"], dict):
        raise ValueError("certificate must be an object.")
    return {"certificate": header["certificate"], **counts}


def _network_entries(model: NetworkModel) -> dict[str, Any]:
    return {"sizes": list(model.sizes), "activations": list(model.activations),
            "code": model.code, "tied": model.tied, "count": model.count,
            "pca_loss": float(model.pca_loss).hex()}


def _network_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    counts = {name: _count(header[name], name) for name in ("code", "count")}
    if type(header["tied"]) is not bool or counts["count"] < 0:
        raise ValueError(f"tied={header['tied']!r} or count={counts['count']} is impossible.")
    return {"sizes": tuple(_count(size, "a size") for size in header["sizes"]),
            "activations": tuple(header["activations"]), "tied": header["tied"],
            "pca_loss": float.fromhex(header["pca_loss"]), **counts}


def _weight_entries(moments: Moments | LowRankMoments) -> dict[str, Any]:
    return {"count": moments.count, "weight": moments.weight.hex(),
            "square_weight": moments.square_weight.hex()}


def _moment_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    features = arrays["mean"].size
    shapes = {"mean": (features,), "rest": (features,), "scatter": (features, features)}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise ValueError(f"it holds arrays {sorted(arrays)} of other shapes than mean (d,), "
                         "rest (d,) and scatter (d, d).")
    if (np.diagonal(arrays["scatter"]) < 0).any():
        raise ValueError("sums of squares must not be negative.")
    return _weight_fields(header)


def _weight_fields(header: Entries) -> dict[str, Any]:
    count = _count(header["count"], "count")
    weights = {name: float.fromhex(header[name]) for name in ("weight", "square_weight")}
    if count < 1 or not all(0 < weight < math.inf for weight in weights.values()):
        raise ValueError(f"count {count} or weights {weights} are impossible.")
    return {"count": count, **weights}


def _low_rank_entries(moments: LowRankMoments) -> dict[str, Any]:
    return _weight_entries(moments) | {name: float(getattr(moments, name)).hex()
                                       for name in ("bound", "error")}


def _low_rank_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    features = arrays["mean"].shape
    wrong = [name for name in ("mean", "rest", "squares") if arrays[name].shape != features]
    if wrong or len(features) != 1 or arrays["factor"].shape[1:] != features:
        raise ValueError("mean, rest and squares must be (d,) and factor (m, d).")
    numbers = {name: float.fromhex(header[name]) for name in ("bound", "error")}
    if (arrays["squares"] < 0).any() or not all(0 <= number < math.inf
                                                for number in numbers.values()):
        raise ValueError(f"sums of squares and bounds {numbers} must be finite and not negative.")
    return _weight_fields(header) | numbers


def _singular_entries(model: SingularModel) -> dict[str, Any]:
    return {"count": model.count, "total_deviation": float(model.total_deviation).hex()}


def _singular_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    count, deviation = _count(header["count"], "count"), float.fromhex(header["total_deviation"])
    if count < 0 or not 0 <= deviation < math.inf:
        raise ValueError(f"count={count} or total_deviation={deviation} is impossible.")
    _check_certificate(header, len(arrays["singular_values"]))
    return {"count": count, "total_deviation": deviation}


def _index_entries(model: LSIModel) -> dict[str, Any]:
    return {"weighting": model.weighting, "bound": float(model.bound).hex(),
            "left_out": float(model.left_out).hex(), "tokens": dict(model.tokens),
            "titles": None if model.titles is None else list(model.titles)}


def _index_fields(header: Entries, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    numbers = {name: float.fromhex(header[name]) for name in ("bound", "left_out")}
    if not all(0 <= number < math.inf for number in numbers.values()):
        raise ValueError(f"bounds {numbers} must be finite and not negative.")
    titles, tokens = header["titles"], header["tokens"]
    if titles is not None and not (isinstance(titles, list)
                                   and all(isinstance(title, str) for title in titles)):
        raise ValueError("titles must be a list of strings.")
    if not isinstance(tokens, dict):
        raise ValueError("tokens must be an object.")
    _check_certificate(header, len(arrays["singular_values"]))
    return {**numbers, "weighting": header["weighting"], "tokens": tokens,
            "titles": None if titles is None else tuple(titles)}


def _count(value: Any, name: str) -> int:
    if type(value) is not int or abs(value) > 1 << 62:
        raise ValueError(f"{name}={value!r} is not a whole number.")
    return value


KINDS = {
    "LinearModel": Kind(LinearModel, ("mean", "components", "variances"), ("scale",),
                        _axes_entries, _axes_fields),
    "DiscriminantModel": Kind(
        DiscriminantModel, ("priors", "mean", "means", "directions", "separations", "centres"),
        ("covariance",), _class_entries, _class_fields),
    "UnmixingModel": Kind(UnmixingModel, ("mean", "components", "mixing"), ("whitening",),
                          _source_entries, _source_fields),
    "NetworkModel": Kind(NetworkModel, ("parameters", "mean", "scale", "losses", "held_out_losses"),
                         (), _network_entries, _network_fields),
    "Moments": Kind(Moments, ("mean", "rest", "scatter"), (), _weight_entries, _moment_fields,
                    described=False),
    "LowRankMoments": Kind(LowRankMoments, ("mean", "rest", "squares", "factor"), (),
                           _low_rank_entries, _low_rank_fields, described=False),
    "SingularModel": Kind(SingularModel, ("components", "singular_values", "deviations"), (),
                          _singular_entries, _singular_fields, over="components"),
    "LSIModel": Kind(LSIModel, ("components", "singular_values", "documents", "term_weights"), (),
                     _index_entries, _index_fields, over="components"),
}
