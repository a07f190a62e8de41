"""What `random_state` of an estimator may be; apart, as numpy.random takes 15 ms to import."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import MT19937, Generator, RandomState

from fastdr.validation import whole

SEEDS = "an integer of at least 0, a Generator, a RandomState or None"


def is_seed(value: Any) -> bool:
    """Whether `as_generator` and `as_random_state` make something of `value`."""
    return value is None or isinstance(value, Generator | RandomState) or whole(value, 0)


def as_generator(random_state: int | Generator | RandomState | None) -> Generator:
    """Return what `random_state` stands for; None is 0, so that results repeat."""
    if isinstance(random_state, RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    return np.random.default_rng(0 if random_state is None else random_state)


def as_random_state(random_state: int | Generator | RandomState) -> RandomState:
    """Return what `random_state` stands for as scikit-learn draws from it; it ends at 2**32 - 1."""
    if isinstance(random_state, Generator):
        return RandomState(random_state.bit_generator)
    if isinstance(random_state, RandomState):
        return random_state
    seed = int(random_state)
    return RandomState(seed if seed < 1 << 32 else MT19937(seed))
