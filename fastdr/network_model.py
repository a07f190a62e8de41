"""Fitted auto-encoders as frozen values: encode, decode, errors, plain weights in and out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from operator import mul
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastdr._network import ACTIVATIONS, SLICE_ROWS, Network, apply, row_errors
from fastdr.embedding import Frozen
from fastdr.mapped import read
from fastdr.threads import blas_limit, ordered_map
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    output,
    raise_not_finite,
    whole,
    working_dtype,
)

BLOCK_ROWS = 8 * SLICE_ROWS  # that one call of a kernel takes through the network
WIDEST = (1 << 31) - 1  # outputs of a layer: BLAS counts them in 32 bits
MOST_WEIGHTS = 1 << 40  # beyond any memory, so that sums and products of sizes fit into 64 bits
LEAST_SCALE = float(np.finfo(np.float64).tiny)  # a smaller one has no finite inverse


@dataclass(frozen=True, eq=False)
class NetworkModel(Frozen):
    """An encoder and a decoder: rows are scaled, then pass linear maps and activations.

    Layer l makes ``activations[l](weights[l] @ h + biases[l])`` of the values h before it.

    Attributes
    ----------
    parameters : (P,) float64 or float32
        For each layer its weights (outputs, inputs), row-major, then its biases; tied layers
        have biases only. `weights` and `biases` are views of it.
    sizes : tuple of int, features, then outputs of each layer; the last equals the first.
    activations : tuple of str, one a layer
        "identity", "relu", "tanh", "sigmoid" or "gelu" (x times the normal distribution function).
    code : int, layers of the encoder; ``sizes[code]`` is the number of scores.
    mean, scale : (d,) float64, rows enter as (x - mean) / scale and return likewise.
    tied : bool, whether decoder weights are those of the encoder, transposed.
    losses, held_out_losses : (E,) float64, mean squared error of an entry in scaled units, of
        the rows of each epoch as they were trained on, and of the rows held out after it.
    pca_loss : float, the same of principal components, as many as there are scores.
    count : int, rows fitted.
    feature_names : tuple of str, or None.
    report : dict of plain values: how the training went.

    Examples
    --------
    >>> model = NetworkModel.from_weights([[[0.6, 0.8]], [[0.6], [0.8]]], [[0.0], [0.0, 0.0]],
    ...                                   ["identity", "identity"])
    >>> model.transform([[3.0, 4.0]])
    array([[5.]])
    >>> model.inverse_transform([[5.0]])
    array([[3., 4.]])
    """

    parameters: AnyArray
    sizes: tuple[int, ...]
    activations: tuple[str, ...]
    code: int
    mean: FloatArray
    scale: FloatArray
    tied: bool = False
    losses: FloatArray = field(default_factory=lambda: np.zeros(0))
    held_out_losses: FloatArray = field(default_factory=lambda: np.zeros(0))
    pca_loss: float = math.nan
    count: int = 0
    feature_names: tuple[str, ...] | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts agree; make arrays read-only."""
        check_shape(self.sizes, self.activations, self.code, self.tied)
        dtype = np.float32 if np.asarray(self.parameters).dtype == np.float32 else np.float64
        arrays = {"parameters": (dtype, self.network.size), "mean": (float, self.sizes[0]),
                  "scale": (float, self.sizes[0]), "losses": (float, np.size(self.losses)),
                  "held_out_losses": (float, np.size(self.held_out_losses))}
        for name, (kind, size) in arrays.items():
            array = np.ascontiguousarray(as_numbers(getattr(self, name), name), dtype=kind).view()
            array.flags.writeable = False
            if array.shape != (size,):
                raise ValueError(f"{name} has shape {array.shape}; expected ({size},) for layers "
                                 f"of sizes {self.sizes}.")
            object.__setattr__(self, name, array)
        for name in ("parameters", "mean"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
        if not ((self.scale >= LEAST_SCALE) & np.isfinite(self.scale)).all():
            raise ValueError(f"scale must be positive and finite, {LEAST_SCALE:.3g} or more.")

    @classmethod
    def from_weights(cls, weights: Sequence[ArrayLike], biases: Sequence[ArrayLike],
                     activations: Sequence[str], *, code: int | None = None,
                     mean: ArrayLike | None = None, scale: ArrayLike | None = None,
                     tied: bool = False) -> NetworkModel:
        """Return a model of plain arrays, as other libraries keep them.

        Parameters
        ----------
        weights : for each layer (outputs, inputs), the layout of ``torch.nn.Linear.weight``.
        biases : for each layer (outputs,).
        activations : for each layer a name.
        code : int, layers of the encoder; by default those up to the narrowest output.
        mean, scale : (d,), by default 0 and 1.
        tied : bool, whether the weights of the decoder are those of the encoder, transposed.

        Returns
        -------
        NetworkModel
            In float32 if all weights are, else in float64.

        Raises
        ------
        ValueError
            If the arrays do not fit each other.

        Examples
        --------
        >>> model = NetworkModel.from_weights([[[1.0, 1.0]], [[0.5], [0.5]]],
        ...                                   [[0.0], [0.0, 0.0]], ["relu", "identity"])
        >>> model.sizes, model.code
        ((2, 1, 2), 1)
        """
        given = [as_numbers(w, "weights") for w in weights]
        vectors = [as_numbers(b, "biases") for b in biases]
        if not given or not len(given) == len(vectors) == len(activations):
            raise ValueError(f"got {len(given)} weights, {len(vectors)} biases and "
                             f"{len(activations)} activations; expected one of each a layer.")
        for layer, (w, b) in enumerate(zip(given, vectors, strict=True)):
            before = len(given[layer - 1]) if layer else w.shape[-1] if w.ndim else "d"
            if w.ndim != 2 or w.shape[1] != before or b.shape != w.shape[:1]:
                raise ValueError(f"layer {layer} has weights of shape {w.shape} and biases of "
                                 f"shape {b.shape} behind {before} values; expected (outputs, "
                                 f"{before}) and (outputs,).")
            if tied and 2 * layer >= len(given) and not np.array_equal(w, given[-1 - layer].T):
                raise ValueError(f"the weights of layer {layer} are not those of layer "
                                 f"{len(given) - 1 - layer}, transposed; pass tied=False.")
        sizes = (given[0].shape[1], *(len(w) for w in given))
        if code is None:
            code = int(np.argmin(sizes[1:-1])) + 1 if len(sizes) > 2 else 1
        check_shape(sizes, activations, code, tied)
        single = all(w.dtype == np.float32 for w in given)
        parameters = joined(Network(sizes, activations, tied), given, vectors,
                            np.float32 if single else np.float64)
        return cls(parameters, sizes, tuple(activations), code,
                   np.zeros(sizes[0]) if mean is None else as_numbers(mean, "mean"),
                   np.ones(sizes[0]) if scale is None else as_numbers(scale, "scale"), tied)

    @cached_property
    def network(self) -> Network:
        """The shape of the network, as kernels know it."""
        return Network(self.sizes, self.activations, self.tied)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the parameters, in which rows are taken through the network."""
        return self.parameters.dtype

    @property
    def n_outputs(self) -> int:
        """Columns of `transform`."""
        return self.sizes[self.code]

    @property
    def weights(self) -> tuple[AnyArray, ...]:
        """For each layer (outputs, inputs), views."""
        found: list[AnyArray] = []
        shapes = zip(self.network.places, self.sizes[1:], self.sizes[:-1], strict=True)
        for (place, _, transposed), outputs, inputs in shapes:
            w = self.parameters[place:place + outputs * inputs]
            found.append(w.reshape(inputs, outputs).T if transposed
                         else w.reshape(outputs, inputs))
        return tuple(found)

    @property
    def biases(self) -> tuple[AnyArray, ...]:
        """For each layer (outputs,), views."""
        return tuple(self.parameters[place:place + outputs] for (_, place, _), outputs
                     in zip(self.network.places, self.sizes[1:], strict=True))

    def transform(self, X: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the scores of rows (n, d) as (n, n_outputs), in the working dtype of `X`.

        One read, O(P) a row; computed in the dtype of the parameters. Raises ValueError or
        TypeError if `X` has another number of columns, NaN or infinity, or no real dtype.
        """
        return self._through(as_matrix(X), "X", 0, self.code, out)

    def inverse_transform(self, Z: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return the rows (n, d) that scores `Z` stand for; errors as for `transform`."""
        return self._through(as_matrix(Z, "Z"), "Z", self.code, self.network.depth, out)

    def reconstruct(self, X: ArrayLike, out: AnyArray | None = None) -> AnyArray:
        """Return ``inverse_transform(transform(X))`` without keeping the scores."""
        return self._through(as_matrix(X), "X", 0, self.network.depth, out)

    def reconstruction_error(self, X: ArrayLike, per_row: bool = False) -> Any:
        """Return the squared distance of rows to their reconstruction, mean or `per_row` (n,).

        In squared units of the input; the reconstruction is never built. O(P) a row.
        """
        errors = self.row_errors(as_matrix(X), self.scale)
        return errors if per_row else float(errors.mean())

    def row_errors(self, X: AnyArray, scale: FloatArray) -> FloatArray:
        """Return for each row the sum of squares of `scale` times what is lost of scaled rows."""
        errors = np.empty(len(X))
        self._check_width(X, "X", self.sizes[0])

        def run(rows: AnyArray, part: slice) -> bool:
            work = np.empty((3, SLICE_ROWS * self.network.width), self.dtype)
            return row_errors(self.network, rows, self.parameters, self.mean, self._inverse,
                              scale, work, errors[part])

        self._by_blocks(run, X, "X", working_dtype(X.dtype))
        return errors

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file; `fastdr.load` reads it back."""
        # persistence knows the models, not the reverse
        import_module("fastdr.persistence").save(self, path)

    def _through(self, X: AnyArray, name: str, begin: int, end: int, out: AnyArray | None
                 ) -> AnyArray:
        """Take rows through layers [begin, end)."""
        self._check_width(X, name, self.sizes[begin])
        result = output(out, (len(X), self.sizes[end]), working_dtype(X.dtype), X, self)
        zeros, ones = np.zeros(self.n_outputs), np.ones(self.n_outputs)
        before = (self.mean, self._inverse) if begin == 0 else (zeros, ones)
        after = (self.mean, self.scale) if end == self.network.depth else (zeros, ones)

        def run(rows: AnyArray, part: slice) -> bool:
            work = np.empty((2, SLICE_ROWS * self.network.width), self.dtype)
            return apply(self.network, begin, end, rows, self.parameters, *before, *after, work,
                         result[part])

        self._by_blocks(run, X, name, result.dtype)
        return result

    def _by_blocks(self, run: Any, X: AnyArray, name: str, dtype: np.dtype[Any]) -> None:
        """Call `run` for blocks of rows on all threads; refuse rows that are not finite."""
        def block(index: int) -> bool:
            part = slice(index * BLOCK_ROWS, (index + 1) * BLOCK_ROWS)
            return bool(run(as_kernels_want(read(X[part]), dtype), part))

        with blas_limit(1):
            good = ordered_map(block, math.ceil(len(X) / BLOCK_ROWS))
        if not all(good):
            raise_not_finite(X, name)
            raise ValueError(f"{name} has values that leave the range of {self.dtype} when scaled "
                             "by this model.")

    @cached_property
    def _inverse(self) -> FloatArray:
        return 1 / self.scale

    @staticmethod
    def _check_width(X: AnyArray, name: str, size: int) -> None:
        if X.shape[1] != size:
            raise ValueError(f"{name} has {X.shape[1]} columns, but this model expects {size}.")


def check_shape(sizes: Sequence[int], activations: Sequence[str], code: int, tied: bool) -> None:
    """Refuse layers that make no auto-encoder."""
    if len(sizes) != len(activations) + 1 or len(sizes) < 3 or min(sizes) < 1:
        raise ValueError(f"sizes {tuple(sizes)} and activations {tuple(activations)} do not "
                         "describe at least two layers.")
    if max(sizes) > WIDEST or sum(map(mul, sizes, sizes[1:])) > MOST_WEIGHTS:
        raise ValueError(f"layers of sizes {tuple(sizes)} are too large: at most {WIDEST} outputs "
                         f"and {MOST_WEIGHTS} weights in all are allowed.")
    if sizes[0] != sizes[-1]:
        raise ValueError(f"the last layer has {sizes[-1]} outputs; expected the {sizes[0]} "
                         "features that enter.")
    for name in activations:
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise ValueError(f"activation={name!r} is not allowed; it must be one of "
                             f"{', '.join(ACTIVATIONS)}.")
    if not whole(code, 1) or code >= len(activations):
        raise ValueError(f"code={code} must be a number of layers from 1 to "
                         f"{len(activations) - 1}.")
    if tied and (tuple(sizes) != tuple(sizes)[::-1] or 2 * code != len(activations)):
        raise ValueError(f"tied weights need a decoder that mirrors the encoder; got sizes "
                         f"{tuple(sizes)}.")


def joined(network: Network, weights: Sequence[AnyArray], biases: Sequence[AnyArray],
           dtype: Any) -> AnyArray:
    """Return the parameters of a network as one vector; tied layers give their biases only."""
    parameters = np.empty(network.size, dtype)
    for (place, bias, transposed), w, b in zip(network.places, weights, biases, strict=True):
        if not transposed:
            parameters[place:place + w.size] = w.ravel()
        parameters[bias:bias + b.size] = b
    return parameters


def as_kernels_want(rows: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Return rows in native, aligned `dtype`; themselves if they are."""
    if rows.dtype == dtype and rows.dtype.isnative and rows.flags.aligned:
        return rows
    return rows.astype(dtype)
