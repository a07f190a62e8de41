"""Training of auto-encoders: epochs over shuffled rows, learning rates, when to stop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm.auto import tqdm

from fastdr._network import SLICE_ROWS, Training
from fastdr.mapped import file_of, taken
from fastdr.network_model import NetworkModel, as_kernels_want
from fastdr.sources import ArraySource, Source, block_rows
from fastdr.threads import blas_limit, get_num_threads, ordered_map
from fastdr.validation import AnyArray, FloatArray, as_matrix, raise_not_finite

WINDOW_BLOCKS = 4  # of 16 MB: rows of a stream that are shuffled together
NOISE_ROWS = 256  # that share a generator
HELD_OUT = 1 << 63  # stands for an epoch where rows are held out or tried with noise
BLOWN_UP = 1e12  # loss, where 1 is about what the mean of the rows leaves
FEW_FLOPS = 4e6  # of a batch, below which a second thread would cost more than it does
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    ``optimizer`` is "adam", "sgd" or "keep", which moves nothing and keeps the gradient of the
    last batch; ``weight_decay`` times half the squared weights (not biases) joins the loss;
    ``noise`` is the deviation of normal noise added to what the network is fed, in scaled units;
    ``held_out`` a share of the rows, 0 to train for all epochs.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    momentum: float = 0.9
    weight_decay: float = 0.0
    noise: float = 0.0
    batch_size: int = 256
    max_epochs: int = 100
    held_out: float = 0.1
    patience: int = 10

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch; the cosine would reach 0 after the last."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * epoch / self.max_epochs)) / 2

    def within(self, rows: int | None) -> Recipe:
        """Return the recipe with no larger batches than there are rows."""
        return self if rows is None else replace(self, batch_size=min(self.batch_size, rows))


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer remembers: (P,) first and second moments, updates and epochs done."""

    first: AnyArray
    second: AnyArray
    steps: int = 0
    epochs: int = 0


class Epochs:
    """Parameters on their way: copies of a model's, moved epoch by epoch."""

    def __init__(self, model: NetworkModel, recipe: Recipe, seed: int,
                 state: OptimizerState | None = None) -> None:
        self.model, self.recipe, self.seed = model, recipe, seed
        self.parameters = model.parameters.copy()
        zeros = np.zeros_like(model.parameters)
        before = OptimizerState(zeros, zeros) if state is None else state
        self.first, self.second = before.first.copy(), before.second.copy()
        self.steps, self.done = before.steps, before.epochs
        self._inverse = 1 / model.scale
        self._slices = math.ceil(recipe.batch_size / SLICE_ROWS)
        tasks = max(self._slices, model.network.block_count)
        small = 6.0 * recipe.batch_size * model.network.size < FEW_FLOPS
        self._workers = 1 if small else min(get_num_threads(), tasks)
        self._training = Training(model.network, recipe.batch_size, model.dtype == np.float32,
                                  recipe.noise > 0, self._workers)

    @property
    def state(self) -> OptimizerState:
        """What to go on from."""
        return OptimizerState(self.first, self.second, self.steps, self.done)

    def run(self, source: Source, rate: float, trained: Mask | None = None) -> float:
        """Update with each batch of the `trained` rows of a source once; return the mean loss.

        NaN if one was not finite: nothing was updated from that batch on.
        """
        rng = np.random.Generator(np.random.Philox(key=[self.seed, self.done]))
        total, count = 0.0, 0
        with blas_limit(1):
            for rows, order in _shuffled(source, trained, self.recipe.batch_size,
                                         self.model.dtype, rng):
                total += self.update(rows, order, rate, self._noise(len(order), rng))
                count += len(order)
                if not math.isfinite(total):
                    return math.nan
        self.done += 1
        return total / (count * self.model.sizes[0])

    def update(self, rows: AnyArray, order: NDArray[np.int64], rate: float, noise: AnyArray
               ) -> float:
        """Update with batches of rows[order]; return the sum of squared residuals."""
        batches = math.ceil(len(order) / self.recipe.batch_size)
        losses = np.zeros((batches, self._slices))
        recipe = self.recipe
        self._training.begin(rows, order, noise, self.parameters, self.first, self.second,
                             self.model.mean, self._inverse, losses, recipe.optimizer, rate,
                             recipe.momentum, recipe.weight_decay, self.steps)
        ordered_map(self._training.work, self._workers)
        self.steps += batches
        return math.nan if self._training.failed else float(losses.sum())

    def loss(self, source: Source, mask: Mask) -> float:
        """Return the mean squared error of an entry of chosen rows, in scaled units.

        If the network is fed with noise in training it is here, always with the same.
        """
        model = replace(self.model, parameters=self.parameters)
        rng = np.random.Generator(np.random.Philox(key=[self.seed, HELD_OUT]))
        total = 0.0
        for rows in _chosen(source, mask):
            noise = self._noise(len(rows), rng)
            if not len(noise):
                total += float(model.row_errors(rows, np.ones(rows.shape[1])).sum())
                continue
            rebuilt = model.reconstruct(rows + noise * model.scale)
            total += float(np.square((rebuilt - rows) / model.scale).sum())
        return total / (int(np.count_nonzero(mask)) * self.model.sizes[0])

    def sound(self, loss: float) -> bool:
        """Whether a loss and the parameters are finite and not beyond all bounds."""
        return loss < BLOWN_UP and bool(np.isfinite(self.parameters).all())

    def _noise(self, count: int, rng: np.random.Generator) -> AnyArray:
        """Return normal noise (count, d), or (0, 0); the same for any number of threads."""
        if not self.recipe.noise:
            return np.zeros((0, 0), self.model.dtype)
        noise = np.empty((count, self.model.sizes[0]), self.model.dtype)
        seeds = rng.integers(1 << 63, size=math.ceil(count / NOISE_ROWS))

        def draw(index: int) -> None:
            part = noise[index * NOISE_ROWS:(index + 1) * NOISE_ROWS]
            generator = np.random.Generator(np.random.Philox(int(seeds[index])))
            generator.standard_normal(out=part, dtype=part.dtype)
            part *= part.dtype.type(self.recipe.noise)

        ordered_map(draw, len(seeds))
        return noise


def _shuffled(source: Source, trained: Mask | None, batch: int, dtype: np.dtype[Any],
              rng: np.random.Generator) -> Iterator[tuple[AnyArray, NDArray[np.int64]]]:
    """Yield (rows, order) in float64 or float32, whole batches except the last.

    Rows of an array are shuffled as a whole and stay where they are if their dtype allows; rows
    of a stream are shuffled within windows of it.
    """
    if not isinstance(source, ArraySource):
        yield from _windows(source, trained, batch, dtype, rng)
        return
    array, file = source.array, file_of(source.array)
    order = rng.permutation(len(array) if trained is None else np.flatnonzero(trained))
    direct = (array.dtype in (np.float64, np.float32) and array.dtype.isnative
              and array.flags.aligned)
    step = batch * max(1, 2 * block_rows(array.shape[1]) // batch)
    for start in range(0, len(order), step):
        part = order[start:start + step]
        if file is not None:
            file.check()  # of what the kernels read where it is
        if direct:
            yield array, part
        else:
            yield taken(array, part).astype(dtype), np.arange(len(part))


def _windows(source: Source, trained: Mask | None, batch: int, dtype: np.dtype[Any],
             rng: np.random.Generator) -> Iterator[tuple[AnyArray, NDArray[np.int64]]]:
    """Gather blocks of a stream to windows; what is left of one begins the next."""
    window = WINDOW_BLOCKS * block_rows(source.shape[1])
    waiting: list[AnyArray] = []
    row = 0
    for block in _chosen(source, trained):
        raise_not_finite(block, columns=source.columns, first_row=row)
        row += len(block)
        waiting.append(block.astype(dtype))
        if sum(map(len, waiting)) >= max(window, batch):
            rows = np.concatenate(waiting)
            order = rng.permutation(len(rows))
            whole = len(rows) // batch * batch
            yield rows, order[:whole]
            waiting = [rows[order[whole:]]]
    if sum(map(len, waiting)):
        rows = np.concatenate(waiting)
        yield rows, rng.permutation(len(rows))


def _chosen(source: Source, mask: Mask | None) -> Iterator[AnyArray]:
    """Yield the rows of a source that a mask chooses, in pieces."""
    if mask is not None and isinstance(source, ArraySource):
        places = np.flatnonzero(mask)
        step = block_rows(source.shape[1])
        for start in range(0, len(places), step):
            yield taken(source.array, places[start:start + step])
        return
    start = 0
    for block in source.blocks():
        part = slice(start, start + len(block))
        start = part.stop
        if mask is not None and start > len(mask):
            break
        chosen = block if mask is None else block[mask[part]]
        if len(chosen):
            yield chosen
    if mask is not None and start != len(mask):
        raise ValueError(f"the source had {len(mask)} rows when it was first read, and has "
                         f"{'more' if start > len(mask) else start} now; it must give the same "
                         "rows each time.")


def train(start: NetworkModel, source: Source, recipe: Recipe, seed: int,
          progress: bool = False) -> NetworkModel:
    """Return the model after training, with the weights of the epoch that was best.

    Best is the epoch after which the loss of the rows held out was lowest, counting the start as
    epoch 0; without such rows, the epoch whose mean loss was. Training stops after
    ``recipe.patience`` epochs without a better one if rows are held out, and as soon as a loss
    is not finite or beyond all bounds. O(rows * P) an epoch; memory of a few vectors like the
    parameters, of a batch at every layer, and of 9 bytes a row. A stream is read twice an epoch
    if rows are held out.
    """
    trained = _trained_rows(start.count, recipe.held_out, seed)
    recipe = recipe.within(start.count)
    epochs = Epochs(start, recipe, seed)
    best, best_epoch, stopped, diverged = start.parameters, 0, "all epochs done", False
    lowest = math.inf if trained is None else epochs.loss(source, ~trained)
    losses: list[float] = []
    held_out: list[float] = []
    with tqdm(total=recipe.max_epochs, desc="training", unit="epoch", leave=False,
              disable=not progress) as bar:
        for epoch in range(1, recipe.max_epochs + 1):
            loss = epochs.run(source, recipe.rate(epoch - 1), trained)
            watched = (loss if trained is None or not epochs.sound(loss)
                       else epochs.loss(source, ~trained))
            if not epochs.sound(loss) or not epochs.sound(watched):
                stopped, diverged = f"the loss was {max(loss, watched):.3g} in epoch {epoch}", True
                break
            losses.append(loss)
            held_out += [] if trained is None else [watched]
            bar.set_postfix({"loss": f"{loss:.4g}", "PCA": f"{start.pca_loss:.4g}"}
                            | ({} if trained is None else {"held out": f"{watched:.4g}"}))
            bar.update()
            if watched < lowest:
                lowest, best, best_epoch = watched, epochs.parameters.copy(), epoch
            elif trained is not None and epoch - best_epoch >= recipe.patience:
                stopped = f"no better for {recipe.patience} epochs"
                break
    report = {
        **start.report, "optimizer": recipe.optimizer, "stopped": stopped, "diverged": diverged,
        "epochs": len(losses), "best_epoch": best_epoch,
        "loss": lowest if math.isfinite(lowest) else None, "pca_loss": start.pca_loss,
        "rows": start.count,
        "held_out_rows": 0 if trained is None else int(np.count_nonzero(~trained)),
        "updates": epochs.steps, "parameters": len(best), "dtype": str(start.dtype)}
    return replace(start, parameters=best, losses=np.array(losses),
                   held_out_losses=np.array(held_out), report=report)


def train_once(model: NetworkModel, source: Source, recipe: Recipe, seed: int,
               state: OptimizerState | None = None) -> tuple[NetworkModel, OptimizerState | None]:
    """Return the model after one pass over the rows, and what to go on from.

    If the loss was not sound, both are as they were, except for the report, which says so. Rows
    that are not finite are refused.
    """
    epochs = Epochs(model, recipe.within(source.shape[0]), seed, state)
    loss = epochs.run(source, recipe.learning_rate)
    report = {**model.report, "optimizer": recipe.optimizer, "pca_loss": model.pca_loss,
              "parameters": len(model.parameters), "dtype": str(model.dtype)}
    if not epochs.sound(loss):
        if isinstance(source, ArraySource):
            raise_not_finite(source.array, columns=source.columns)
        report = {"epochs": len(model.losses), "best_epoch": len(model.losses), "loss": None,
                  **report, "diverged": True, "stopped": f"the loss of a pass was {loss:.3g}"}
        return replace(model, report=report), state
    losses = np.append(model.losses, loss)
    report |= {"stopped": "one pass at a time", "diverged": False, "epochs": len(losses),
               "best_epoch": len(losses), "loss": loss,
               "updates": report.get("updates", 0) + epochs.steps
               - (0 if state is None else state.steps)}
    return replace(model, parameters=epochs.parameters, losses=losses, report=report), epochs.state


def _trained_rows(count: int, share: float, seed: int) -> Mask | None:
    """Return which rows are trained on, or None for all; at least one on each side."""
    if share == 0:
        return None
    held_out = min(max(1, round(share * count)), count - 1)
    trained = np.ones(count, bool)
    rng = np.random.Generator(np.random.Philox(key=[seed, HELD_OUT]))
    trained[rng.permutation(count)[:held_out]] = False
    return trained


def loss_and_gradient(model: NetworkModel, X: ArrayLike, weight_decay: float = 0.0
                      ) -> tuple[float, FloatArray]:
    """Return the loss of rows and its derivative with respect to ``model.parameters``, (P,).

    The loss is the mean squared error of an entry in scaled units, plus `weight_decay` times half
    the sum of the squared weights. O(rows * P); memory of all rows at every layer.

    Examples
    --------
    >>> model = NetworkModel.from_weights([[[1.0]], [[0.5]]], [[0.0], [0.0]], ["identity"] * 2)
    >>> loss_and_gradient(model, [[2.0]])
    (1.0, array([-2., -1., -4., -2.]))
    """
    rows = as_matrix(X)
    if rows.shape[1] != model.sizes[0]:
        raise ValueError(f"X has {rows.shape[1]} columns, but this model expects {model.sizes[0]}.")
    recipe = Recipe("keep", weight_decay=weight_decay, batch_size=len(rows))
    epochs = Epochs(model, recipe, 0)
    with blas_limit(1):
        total = epochs.update(as_kernels_want(rows, model.dtype), np.arange(len(rows)), 0.0,
                              np.zeros((0, 0), model.dtype))
    if not math.isfinite(total):
        raise_not_finite(rows)
        raise ValueError(f"the loss of these rows leaves the range of {model.dtype}.")
    squares = sum(float(np.vdot(w, w)) for w, (_, _, tied) in zip(
        model.weights, model.network.places, strict=True) if not tied)
    loss = total / rows.size + weight_decay / 2 * squares
    return loss, epochs.first.astype(np.float64)
