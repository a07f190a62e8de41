"""One epoch of an auto-encoder d - 128 - 32 - 128 - d by everybody: the same updates.

ReLU in front of the outer layers, Adam at its defaults, batches of 256 rows in one shuffled order,
rows standardised (by fastdr while it trains, for the others before). The result is the mean loss
of the epoch, which depends on every update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fastdr
from bench.contestants import OURS, Contestant
from bench.data import Inputs, matrix

HIDDEN = (128, 32, 128)
ACTIVATIONS = ("relu", "identity", "relu", "identity")
BATCH = 256
RATE = 1e-4  # small, so that an epoch in float32 ends where one in float64 does


def inputs(rows: int, columns: int, dtype: str) -> Inputs:
    return Inputs(matrix(rows, columns, dtype))


def start(inputs: Inputs) -> Any:
    """Return the mean and scale of the rows, and for each layer weights and biases."""

    def compute() -> Any:
        X = inputs.X
        rng = np.random.default_rng(7)
        sizes = (X.shape[1], *HIDDEN, X.shape[1])
        layers = [((rng.standard_normal((o, i)) * np.sqrt(2 / i)).astype(X.dtype),
                   np.zeros(o, X.dtype)) for i, o in zip(sizes, sizes[1:], strict=False)]
        return X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64), layers

    return inputs.once("start", compute)


def order(rows: int) -> Any:
    return np.random.Generator(np.random.Philox(key=[0, 0])).permutation(rows)


def scaled(inputs: Inputs, dtype: Any) -> Any:
    mean, scale, _ = start(inputs)
    return ((inputs.X - mean) / scale).astype(dtype)


def _ours(inputs: Inputs) -> Callable[[], float]:
    from fastdr.sources import ArraySource
    from fastdr.training import Epochs, Recipe

    mean, scale, layers = start(inputs)
    weights, biases = zip(*layers, strict=True)
    model = fastdr.NetworkModel.from_weights(weights, biases, ACTIVATIONS, mean=mean, scale=scale)
    source, recipe = ArraySource(inputs.X), Recipe(batch_size=BATCH)
    return lambda: Epochs(model, recipe, seed=0).run(source, RATE)


def numpy_epoch(X: Any, layers: Any) -> float:
    """Return the mean loss of an epoch, in the dtype of `X`."""
    parts = [part.astype(X.dtype) for layer in layers for part in layer]
    first, second = [np.zeros_like(p) for p in parts], [np.zeros_like(p) for p in parts]
    shuffled, total = order(len(X)), 0.0
    for step, begin in enumerate(range(0, len(X), BATCH), start=1):
        values = [X[shuffled[begin:begin + BATCH]]]
        for layer, name in enumerate(ACTIVATIONS):
            z = values[-1] @ parts[2 * layer].T + parts[2 * layer + 1]
            values.append(np.maximum(z, 0, out=z) if name == "relu" else z)
        delta = values[-1] - values[0]
        total += float(np.vdot(delta, delta))
        delta *= X.dtype.type(2 / delta.size)
        for layer in reversed(range(len(ACTIVATIONS))):
            if ACTIVATIONS[layer] == "relu":
                delta *= values[layer + 1] > 0
            slopes = delta.T @ values[layer], delta.sum(0)
            delta = delta @ parts[2 * layer] if layer else delta
            for i, slope in enumerate(slopes, start=2 * layer):
                first[i] += X.dtype.type(0.1) * (slope - first[i])
                second[i] += X.dtype.type(0.001) * (slope * slope - second[i])
                root = np.sqrt(second[i]) * X.dtype.type((1 - 0.999**step) ** -0.5)
                root += X.dtype.type(1e-8)
                parts[i] -= X.dtype.type(RATE / (1 - 0.9**step)) * first[i] / root
    return total / X.size


def _numpy(inputs: Inputs) -> Callable[[], float]:
    X, (_, _, layers) = scaled(inputs, inputs.X.dtype), start(inputs)
    return lambda: numpy_epoch(X, layers)


def _torch(fused: bool) -> Callable[[Inputs], Callable[[], float]]:
    def prepare(inputs: Inputs) -> Callable[[], float]:
        import torch

        torch.set_num_threads(fastdr.get_num_threads())
        X, (_, _, layers) = torch.tensor(scaled(inputs, inputs.X.dtype)), start(inputs)

        def run() -> float:
            modules = []
            for (w, b), name in zip(layers, ACTIVATIONS, strict=True):
                linear = torch.nn.Linear(w.shape[1], w.shape[0], dtype=X.dtype)
                linear.load_state_dict({"weight": torch.tensor(w), "bias": torch.tensor(b)})
                modules += [linear, torch.nn.ReLU()] if name == "relu" else [linear]
            net = torch.nn.Sequential(*modules)
            optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=fused)
            shuffled, total = torch.tensor(order(len(X))), 0.0
            for begin in range(0, len(X), BATCH):
                batch = X[shuffled[begin:begin + BATCH]]
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(net(batch), batch)
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            return total / len(X)

        return run

    return prepare


EPOCH = (
    Contestant(OURS, _ours),
    Contestant("PyTorch, fused Adam", _torch(True), "torch"),
    Contestant("PyTorch", _torch(False), "torch"),
    Contestant("NumPy", _numpy, "numpy"),
)


def epoch_error(inputs: Inputs, result: float) -> float:
    """Relative difference of the epoch's mean loss to that of a float64 epoch in NumPy."""
    exact = inputs.once("loss", lambda: numpy_epoch(scaled(inputs, np.float64),
                                                    start(inputs)[2]))
    return abs(result - exact) / exact
