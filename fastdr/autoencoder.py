"""Auto-encoder: a nonlinear reduction, trained from PCA's answer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.random import Generator, RandomState
from numpy.typing import ArrayLike, DTypeLike
from sklearn.exceptions import ConvergenceWarning

from fastdr.estimator import ModelEstimator, Report
from fastdr.network_model import NetworkModel
from fastdr.seeds import SEEDS, as_random_state, is_seed
from fastdr.sources import Source
from fastdr.start import Shape, starting_model
from fastdr.training import Recipe, train, train_once
from fastdr.validation import AnyArray, FloatArray, check_values, finite, is_flag, whole

LARGEST_SEED = int(np.iinfo(np.int32).max)


class AutoEncoder(ModelEstimator):
    """Auto-encoder: a network squeezes rows through few numbers and learns to rebuild them.

    Training minimises the mean squared error of the rebuilt rows, in scaled columns, by
    mini-batches. It starts as PCA with as many components, where layers of ReLU or GELU have two
    units for each of them and others one: where data lie near a curved surface, less is lost than
    along any axes.

    Parameters
    ----------
    hidden : sequence of int, default (128, 32)
        Outputs of the layers of the encoder; the last is the number of scores. The decoder
        mirrors them: d - 128 - 32 - 128 - d.
    decoder : sequence of int, optional
        Outputs of the hidden layers of the decoder, if it shall not be a mirror.
    activation : str or sequence of str, default "relu"
        "identity", "relu", "tanh", "sigmoid" or "gelu" for the hidden layers; scores and output
        are linear. A sequence names one for every layer, those two included.
    tied : bool, default False
        Let the decoder use the weights of the encoder, transposed.
    init : {"pca", "random"}, default "pca"
        Weights to start from. "pca" needs a d x d matrix, unless rows are fewer than features.
    standardize : bool, default True
        Divide columns by their standard deviation; otherwise all by one number.
    optimizer : {"adam", "sgd"}, default "adam"
    learning_rate : float, default 1e-3
    schedule : {"cosine", "constant"}, default "cosine"
        How the learning rate falls over `max_epochs`.
    momentum : float, default 0.9
        Of "sgd".
    weight_decay : float, default 0
        Add this times half the sum of squared weights to the loss.
    noise : float, default 0
        Train to rebuild rows from noisy ones: deviation of the noise, in scaled units.
    batch_size : int, default 256
        Rows of a batch; at most two threads are of full use for every 256 of them.
    max_epochs : int, default 100
    early_stopping : bool, default True
        Hold rows out, and stop after `patience` epochs in which their loss fell no lower.
    validation_fraction : float, default 0.1
        Share of the rows held out for that.
    patience : int, default 10
    dtype : {"float32", "float64"}, optional
        Arithmetic of the network; by default that of the data.
    random_state : int, Generator, RandomState or None, default None
        An int makes results repeat to the last bit, whatever the number of threads; None draws
        one each time.
    progress : bool, default False
        Show a bar on stderr with the loss and PCA's beside it.

    Attributes
    ----------
    loss_curve_ : (E,) float64, E epochs, mean squared error of an entry, in scaled units, of the
        rows of each epoch as they were trained on; 1 is what the mean of the rows leaves.
    held_out_loss_curve_ : (E,) or (0,), of the rows held out, after each epoch.
    loss_ : float or None, of the epoch whose weights are kept: held-out loss if there is one.
    pca_loss_ : float, of PCA with as many components, on all rows; NaN for more than 8192
        features.
    n_epochs_, best_epoch_ : int, epochs done, and the one whose weights are kept; 0 is the start.
    diverged_ : bool, whether training stopped because a loss was not finite, or more than 1e12
        times what the mean of the rows leaves; the best weights before are kept.
    mean_, scale_ : (d,) float64.
    n_features_in_ : int
    feature_names_in_ : (d,) array of str, for frames only.
    report_ : dict that prints as a table: how the training went.
    model_ : NetworkModel, the frozen fitted state; its `weights` and `biases` are plain arrays.

    Notes
    -----
    O(n P) an epoch for P parameters. Rows are read batch by batch from arrays and mapped files,
    which are never copied as a whole, or from sources that can be read again.

    References
    ----------
    Baldi & Hornik, Neural Networks 2 (1989); Kingma & Ba, ICLR (2015); Vincent et al., JMLR 11
    (2010); Kunin et al., ICML (2019).

    Examples
    --------
    >>> import numpy as np
    >>> t = np.random.default_rng(0).uniform(-1, 1, 1000)
    >>> X = np.column_stack([t, t**2])
    >>> ae = AutoEncoder(hidden=(16, 1), activation="tanh", learning_rate=0.01, batch_size=32,
    ...                  random_state=0)
    >>> Z = ae.fit_transform(X)
    >>> Z.shape, bool(ae.loss_ < 0.01 * ae.pca_loss_)
    ((1000, 1), True)
    """

    model_: NetworkModel

    def __init__(self, hidden: Sequence[int] = (128, 32), *, decoder: Sequence[int] | None = None,
                 activation: str | Sequence[str] = "relu", tied: bool = False, init: str = "pca",
                 standardize: bool = True, optimizer: str = "adam", learning_rate: float = 1e-3,
                 schedule: str = "cosine", momentum: float = 0.9, weight_decay: float = 0.0,
                 noise: float = 0.0, batch_size: int = 256, max_epochs: int = 100,
                 early_stopping: bool = True, validation_fraction: float = 0.1,
                 patience: int = 10, dtype: DTypeLike | None = None,
                 random_state: int | Generator | RandomState | None = None,
                 progress: bool = False) -> None:
        self.hidden = hidden
        self.decoder = decoder
        self.activation = activation
        self.tied = tied
        self.init = init
        self.standardize = standardize
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.noise = noise
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: ArrayLike | Source, y: Any = None) -> Self:  # type: ignore[override]
        """Train on rows.

        Parameters
        ----------
        X : (n, d) array, frame or `Source`, n at least 2
            Finite real rows of any layout and dtype; never modified, never copied as a whole.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            If the rows or parameters cannot be used; the fitted state is unchanged.

        Warns
        -----
        ConvergenceWarning
            If training blew up (see `diverged_`), or if the mean of the rows would lose less.
        """
        self._fit_rows(X, None)
        self.__dict__.pop("_state", None)
        return self

    def fit_transform(self, X: ArrayLike, y: Any = None) -> AnyArray:  # type: ignore[override]
        """Train on `X` and return its scores, bit for bit those of ``fit(X).transform(X)``."""
        return self.fit(X).transform(X)

    def partial_fit(self, X: ArrayLike | Source, y: Any = None) -> Self:
        """Train on the rows `X` once, at the constant learning rate.

        The first call sets mean, scale and starting weights by its rows, which should be many; a
        call after ``fit`` goes on from its weights. Parameters of the network cannot change then,
        others can; another optimizer begins with no memory. Errors and warnings as for ``fit``;
        if training blows up, weights stay as they were.
        """
        self._fit_rows(X, None, self._continued, further="model_" in vars(self))
        return self

    def encode(self, X: ArrayLike) -> AnyArray:
        """Return the scores of rows; the same as ``transform``."""
        return self.transform(X)

    def decode(self, Z: ArrayLike) -> AnyArray:
        """Return the rows that scores stand for; the same as ``inverse_transform``."""
        return self.inverse_transform(Z)

    def reconstruction_error(self, X: ArrayLike, per_row: bool = False) -> Any:
        """Return the squared distance of rows to their reconstruction, in squared input units.

        The mean, or with `per_row` one value a row, (n,). O(P) a row.
        """
        with self._rows(X) as rows:
            return self.model_.reconstruction_error(rows, per_row)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return minus the loss of rows: the mean squared error of an entry in scaled units."""
        with self._rows(X) as rows:
            errors = self.model_.row_errors(rows, np.ones(rows.shape[1]))
            return -float(errors.sum()) / rows.size

    def _fitted(self, source: Source, weights: FloatArray | None) -> NetworkModel:
        if not source.rereadable:
            raise ValueError("fit reads the rows once an epoch, and this source can be read only "
                             "once; call partial_fit with its blocks.")
        recipe, seed = self._recipe(), self._seed()
        model = train(self._start(source, seed), source, recipe, seed, self.progress)
        if not self._warn_diverged(model) and model.losses.min() > model.report["mean_loss"] > 0:
            warnings.warn(
                f"The loss was never below {model.losses.min():.3g}, which is more than the "
                f"{model.report['mean_loss']:.3g} that the mean of the rows leaves. Train for "
                f"more epochs, or with another learning_rate than {self.learning_rate:g}.",
                ConvergenceWarning, 4)
        return model

    def _continued(self, source: Source, weights: FloatArray | None) -> NetworkModel:
        recipe, seed = self._recipe(), self._seed()
        before: NetworkModel | None = vars(self).get("model_")
        if before is None and not source.rereadable:
            raise ValueError("the first partial_fit reads its rows twice, and this source can be "
                             "read only once; pass an array.")
        state = vars(self).get("_state")
        if before is not None:
            self._check_unchanged(before)
            if before.report.get("optimizer") != recipe.optimizer:
                state = None  # what another one remembers means something else
        model = self._start(source, seed) if before is None else before
        model, self._state = train_once(model, source, recipe, seed, state)
        self._warn_diverged(model)
        return model

    def _check_unchanged(self, model: NetworkModel) -> None:
        """Refuse parameters that make another network than the one to go on from."""
        now = self._shape(model.sizes[0])
        if (now != Shape(model.sizes, model.activations, model.code, model.tied)
                or (self.dtype is not None and np.dtype(self.dtype) != model.dtype)):
            raise ValueError("hidden, decoder, activation, tied and dtype cannot change between "
                             "calls of partial_fit; fit anew.")

    def _start(self, source: Source, seed: int) -> NetworkModel:
        kind = None if self.dtype is None else np.dtype(self.dtype)
        return starting_model(source, self._shape(source.shape[1]), init=self.init,
                              standardize=self.standardize, dtype=kind, seed=seed)

    def _shape(self, features: int) -> Shape:
        encoder = tuple(int(size) for size in self.hidden)
        decoder = (encoder[-2::-1] if self.decoder is None
                   else tuple(int(size) for size in self.decoder))
        sizes = (features, *encoder, *decoder, features)
        layers = len(sizes) - 1
        if isinstance(self.activation, str):
            names = [self.activation] * layers
            names[len(encoder) - 1] = names[-1] = "identity"
        else:
            names = list(self.activation)
            if len(names) != layers:
                raise ValueError(f"activation names {len(names)} layers; expected {layers}, for "
                                 f"outputs {sizes[1:]}.")
        return Shape(sizes, tuple(names), len(encoder), self.tied)

    def _recipe(self) -> Recipe:
        """Return how to train; refuse parameters outside their range, by name."""
        allowed = {
            "hidden": (_sizes(self.hidden, 1), "a sequence of positive integers, at least one"),
            "decoder": (self.decoder is None or _sizes(self.decoder, 0),
                        "a sequence of positive integers, or None"),
            "activation": (isinstance(self.activation, Sequence | np.ndarray),
                           "a name or a sequence of names"),
            "tied": (is_flag(self.tied), "True or False"),
            "init": (self.init in ("pca", "random"), "'pca' or 'random'"),
            "standardize": (is_flag(self.standardize), "True or False"),
            "early_stopping": (is_flag(self.early_stopping), "True or False"),
            "optimizer": (self.optimizer in ("adam", "sgd"), "'adam' or 'sgd'"),
            "schedule": (self.schedule in ("cosine", "constant"), "'cosine' or 'constant'"),
            "learning_rate": (finite(self.learning_rate) and self.learning_rate > 0,
                              "a positive number"),
            "momentum": (finite(self.momentum) and 0 <= self.momentum < 1,
                         "a number from 0 to below 1"),
            "weight_decay": (finite(self.weight_decay) and self.weight_decay >= 0,
                             "a number of at least 0"),
            "noise": (finite(self.noise) and self.noise >= 0, "a number of at least 0"),
            "batch_size": (whole(self.batch_size, 1), "an integer of at least 1"),
            "max_epochs": (whole(self.max_epochs, 1), "an integer of at least 1"),
            "patience": (whole(self.patience, 1), "an integer of at least 1"),
            "validation_fraction": (
                finite(self.validation_fraction) and 0 < self.validation_fraction < 1,
                "a number strictly between 0 and 1"),
            "random_state": (is_seed(self.random_state), SEEDS),
            "dtype": (self.dtype is None or np.dtype(self.dtype) in (np.float32, np.float64),
                      "'float32', 'float64' or None"),
        }
        check_values(vars(self), allowed)
        return Recipe(self.optimizer, float(self.learning_rate), self.schedule,
                      float(self.momentum), float(self.weight_decay), float(self.noise),
                      int(self.batch_size), int(self.max_epochs),
                      float(self.validation_fraction) if self.early_stopping else 0.0,
                      int(self.patience))

    def _seed(self) -> int:
        if self.random_state is None:  # another one each time, as np.random.seed says
            return int(np.random.randint(LARGEST_SEED))  # noqa: NPY002
        return int(as_random_state(self.random_state).randint(LARGEST_SEED))

    def _warn_diverged(self, model: NetworkModel) -> bool:
        """Return whether training blew up; say so."""
        report = model.report
        if report["diverged"]:
            warnings.warn(
                f"Training stopped because {report['stopped']}; the weights of epoch "
                f"{report['best_epoch']} are kept. Use a learning_rate below "
                f"{self.learning_rate:g}.", ConvergenceWarning, 5)
        return bool(report["diverged"])

    @property
    def loss_curve_(self) -> FloatArray:
        """Mean squared error of an entry in each epoch, (E,), scaled units."""
        return self.model_.losses

    @property
    def held_out_loss_curve_(self) -> FloatArray:
        """The same of the rows held out, after each epoch."""
        return self.model_.held_out_losses

    @property
    def loss_(self) -> float | None:
        """Loss of the epoch whose weights are kept; None if none was finite."""
        loss: float | None = self.report_["loss"]
        return loss

    @property
    def pca_loss_(self) -> float:
        """Loss of PCA with as many components, on all rows."""
        return self.model_.pca_loss

    @property
    def n_epochs_(self) -> int:
        """Epochs done."""
        return int(self.report_["epochs"])

    @property
    def best_epoch_(self) -> int:
        """Epoch whose weights are kept; 0 is the start."""
        return int(self.report_["best_epoch"])

    @property
    def diverged_(self) -> bool:
        """Whether training stopped because it blew up; the best weights before are kept."""
        return bool(self.report_["diverged"])

    @property
    def mean_(self) -> FloatArray:
        """Mean of the rows, (d,)."""
        return self.model_.mean

    @property
    def scale_(self) -> FloatArray:
        """What columns are divided by, (d,)."""
        return self.model_.scale

    @property
    def report_(self) -> Report:
        """How the training went; prints as a table."""
        return Report(self.model_.report)


def _sizes(values: Any, least: int) -> bool:
    return (isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
            and len(values) >= least and all(whole(value, 1) for value in values))
