"""Where the training of an auto-encoder begins: scaled rows, and weights that are PCA's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastdr._network import Network
from fastdr.centring import CentredRows, centred_rows, rows_meant
from fastdr.network_model import LEAST_SCALE, NetworkModel, check_shape, joined
from fastdr.solvers import lapack
from fastdr.sources import Source
from fastdr.validation import AnyArray, FloatArray, working_dtype

WIDEST = 8192  # features up to which the d x d scatter is formed
PAIRED = ("relu", "gelu")  # f(x) - f(-x) = x: two units pass a value unchanged
GAIN = {"identity": (1.0, 0.0, 1.0), "tanh": (0.25, 0.0, 1.0), "sigmoid": (1.0, 0.5, 0.25)}
"""How much of a score a unit gets, so that it stays near the middle; f(0) and f'(0)."""


@dataclass(frozen=True)
class Shape:
    """Layers of an auto-encoder: `sizes` with the features at both ends, one activation each."""

    sizes: tuple[int, ...]
    activations: tuple[str, ...]
    code: int
    tied: bool

    def __post_init__(self) -> None:
        """Refuse layers that make no auto-encoder."""
        check_shape(self.sizes, self.activations, self.code, self.tied)


def starting_model(source: Source, shape: Shape, *, init: str, standardize: bool,
                   dtype: np.dtype[np.generic] | None, seed: int) -> NetworkModel:
    """Return the model that training starts from.

    Reads the rows once for mean, scale and scatter; O(n d^2), or O(n^2 d) for fewer rows than
    features. "pca" passes as many principal scores as the layers have units for through the
    network, so its loss starts at PCA's, exactly with ReLU, GELU and linear layers. "random" is
    He's (2015) normal start in front of ReLU and GELU, and Glorot and Bengio's (2010) elsewhere;
    beyond 8192 features it forms no scatter, and PCA's loss stays unknown.
    """
    size, features = source.shape
    if size is not None:
        rows_meant(size, None, False)  # refuse too few before they are read
    few = size is not None and size < features
    compared = few or features <= WIDEST
    if init == "pca" and shape.activations[-1] != "identity":
        raise ValueError("init='pca' needs a linear last layer; its activation is "
                         f"{shape.activations[-1]!r}. Pass init='random'.")
    if not compared and init == "pca":
        raise ValueError(f"init='pca' would form a {features} x {features} matrix; more than "
                         f"{WIDEST} features need init='random'.")
    rows = centred_rows(source, standardize=standardize, scatter=compared)
    count = rows_meant(rows.count, None, False)
    scale = _scale(rows)
    # Of the sums of squares of rows as centred_rows scales them: what one of the mean loss is.
    unit = features * rows.divisor if standardize else rows.total or features * rows.weight
    weights, biases = _random(shape, np.random.Generator(np.random.Philox(seed)))
    pca_loss = math.nan
    if compared:
        found = lapack(rows, min(shape.sizes[shape.code], min(count, features)))
        pca_loss = found.left_out / unit
        if init == "pca":
            spread = np.sqrt(found.values[:1] * features / unit)
            _pass_scores(shape, weights, biases, found.vectors[:found.rank], spread)
    kind = working_dtype(source.dtype) if dtype is None else dtype
    network = Network(shape.sizes, shape.activations, shape.tied)
    return NetworkModel(
        joined(network, weights, biases, kind), shape.sizes, shape.activations, shape.code,
        np.ldexp(rows.mean, -rows.exponent), scale, shape.tied,
        pca_loss=pca_loss, count=count,
        feature_names=None if source.columns is None else tuple(map(str, source.columns)),
        report={"init": init, "mean_loss": rows.total / unit})


def _scale(rows: CentredRows) -> FloatArray:
    """Return what columns are divided by: their deviations (divisor n), or one number for all."""
    if rows.scale is not None:
        deviations = rows.scale * math.sqrt(rows.divisor / rows.weight)
        scale = np.where(rows.squares == 0, 1.0, deviations)
    else:
        common = math.sqrt(rows.total / rows.weight / rows.mean.size)
        scale = np.ldexp(np.full(rows.mean.size, common or 1.0), -rows.exponent)
    if scale.min() < LEAST_SCALE:
        raise ValueError(f"column {int(np.argmin(scale))} has standard deviation "
                         f"{scale.min():.3g}, which is too small to divide by; multiply it by a "
                         "power of two, or leave it out.")
    return scale


def _random(shape: Shape, rng: np.random.Generator) -> tuple[list[AnyArray], list[AnyArray]]:
    """Return weights and biases of each layer, drawn at random."""
    weights: list[AnyArray] = []
    for inputs, outputs, name in zip(shape.sizes, shape.sizes[1:], shape.activations,
                                     strict=False):
        if name in PAIRED:
            weights.append(rng.standard_normal((outputs, inputs)) * math.sqrt(2 / inputs))
        else:
            limit = math.sqrt(6 / (inputs + outputs))
            weights.append(rng.uniform(-limit, limit, (outputs, inputs)))
    return weights, [np.zeros(outputs) for outputs in shape.sizes[1:]]


def _pass_scores(shape: Shape, weights: list[AnyArray], biases: list[AnyArray], axes: FloatArray,
                 spread: FloatArray) -> None:
    """Change the first units of each layer so that they pass the scores on `axes` (k, d).

    Scores are divided by `spread`, the deviation of the first. Other units stay as they are, but
    nothing is made of what they say: the weights behind them are 0. Weights that are tied have
    no such freedom: scores stay as they are, other units are small.
    """
    units = zip(shape.sizes[1:-1], shape.activations, strict=False)
    kept = min(len(axes), *(size // (1 + (name in PAIRED)) for size, name in units))
    if kept == 0:
        return
    axes = axes[:kept]
    one, size = np.eye(kept), 1.0 if shape.tied else float(spread[0])
    read, offset = axes / size, np.zeros(kept)  # scores = read @ values + offset
    for layer, name in enumerate(shape.activations[:-1]):
        if name in PAIRED:
            made, back, middle = np.vstack([one, -one]), np.hstack([one, -one]), 0.0
        else:
            gain, middle, slope = GAIN[name]
            gain = 1.0 if shape.tied else gain
            made, back = gain * one, one / (gain * slope)
        w, b = weights[layer], biases[layer]
        if shape.tied:
            w *= 0.1
        w[:len(made)], b[:len(made)] = made @ read, made @ offset
        read = np.zeros((kept, len(w)))
        read[:, :len(made)] = back
        offset = -middle * back.sum(axis=1)
    weights[-1][...] = size * axes.T @ read
    biases[-1][...] = size * axes.T @ offset
