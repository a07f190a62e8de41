"""Symmetric operators as iterative solvers see them: rows in, the images of these rows out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fastdr.operators import multiply_symmetric
from fastdr.validation import AnyArray, FloatArray


class Action(Protocol):
    """A symmetric operator C of order `size` times 2**-exponent, so that numbers are near 1.

    A call maps rows (b, size) to rows C x in their own dtype; ``columns`` counts the rows;
    ``dtype`` is the arithmetic to iterate in.
    """

    size: int
    dtype: np.dtype[Any]
    exponent: int
    columns: int

    def __call__(self, rows: AnyArray) -> AnyArray: ...  # noqa: D102


@dataclass
class MatrixAction:
    """A symmetric matrix in memory; results do not depend on the number of threads."""

    matrix: AnyArray
    dtype: np.dtype[Any]
    exponent: int = 0
    columns: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Take the order from the matrix."""
        self.size = len(self.matrix)

    def __call__(self, rows: AnyArray) -> AnyArray:
        """Return the images of `rows`; 2 size² operations a row, half the matrix read for 8."""
        self.columns += len(rows)
        half = self.exponent // 2  # before and behind, so that neither overflows nor vanishes
        images = multiply_symmetric(self.matrix, np.ldexp(rows, -half).T).T
        return np.ldexp(images, half - self.exponent) if self.exponent else images


@dataclass
class OperatorAction:
    """A function from (size, b) to C times it, such as the matmat of a LinearOperator."""

    function: Callable[[AnyArray], Any]
    size: int
    dtype: np.dtype[Any]
    exponent: int = 0
    columns: int = 0

    def __call__(self, rows: AnyArray) -> AnyArray:
        """Return the images of `rows`; refuse what is not finite or has another shape."""
        self.columns += len(rows)
        half = self.exponent // 2
        given = np.ldexp(rows, -half).T
        images = np.asarray(self.function(given))
        if images.shape != given.shape:
            raise ValueError(f"the operator returned shape {images.shape} for a block of shape "
                             f"{given.shape}; it must return the same shape.")
        if images.dtype.kind not in "fiu" or not np.isfinite(images).all():
            raise ValueError("the operator returned values that are not finite real numbers.")
        found: AnyArray = images.T.astype(rows.dtype, copy=False)
        return np.ldexp(found, half - self.exponent) if self.exponent else found


def images(action: Action, rows: FloatArray) -> FloatArray:
    """Return the images of float64 `rows`, a few at a time, contiguous."""
    result = np.empty_like(rows)
    for first in range(0, len(rows), 64):
        result[first:first + 64] = action(rows[first:first + 64])
    return result
