"""Count, mean and scatter of rows: statistics that merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastdr._dense import PANEL
from fastdr.scatter import ScatterSum, middle
from fastdr.sources import ArraySource, Source
from fastdr.threads import ordered_map
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    as_vector,
    as_weights,
    check_values,
    finite,
    raise_not_finite,
    rows_named,
    working_dtype,
)

Precision = Literal["double"] | None
Kind = Literal["frequency", "reliability"]

SMALLEST, LARGEST = 1e-260, 1e300  # sums of squares that float64 holds with all their digits
# Below this many rows float64 arithmetic costs next to nothing and is exact for float32 data.
FEW_ROWS = 4096


@dataclass(frozen=True)
class Joint:
    """First moments of two sets of rows together.

    ``step`` (d,) between their means, and the ``share`` with which its square joins the scatter.
    """

    count: int
    weight: float
    square_weight: float
    mean: FloatArray
    rest: FloatArray
    step: FloatArray
    share: float


class Weighted:
    """What moments of any kind know of their rows: weights and mean."""

    count: int
    weight: float
    square_weight: float
    mean: FloatArray
    rest: FloatArray

    def _joint(self, other: Weighted) -> Joint:
        """First moments of both sets of rows (Chan, Golub & LeVeque 1983); refuses other widths.

        The mean is reckoned from that of the heavier rows, so light ones far off cost no digits.
        """
        if other.mean.shape != self.mean.shape:
            raise ValueError(f"cannot merge moments of {len(self.mean)} and {len(other.mean)} "
                             "features.")
        weight = self.weight + other.weight
        step = (other.mean - self.mean) + (other.rest - self.rest)
        heavy, light = (self, other) if self.weight >= other.weight else (other, self)
        move = heavy.rest + (step if light is other else -step) * (light.weight / weight)
        mean = heavy.mean + move
        return Joint(self.count + other.count, weight, self.square_weight + other.square_weight,
                     mean, (heavy.mean - mean) + move, step, heavy.weight * light.weight / weight)

    def divisor(self, ddof: float = 1, kind: Kind = "frequency") -> float:
        """Divisor that makes a covariance of the scatter.

        ``"frequency"`` weights say how often a row occurred: Σw - ddof. ``"reliability"`` weights
        say how much a row is trusted: Σw - ddof Σw²/Σw.

        Raises ValueError if it is not positive, `ddof` not a finite number, or squares of weights
        that are reliabilities leave float64.

        Examples
        --------
        >>> found = Moments.of([[0.0], [1.0]], sample_weight=[3.0, 1.0])
        >>> found.divisor(), found.divisor(kind="reliability")
        (3.0, 1.5)
        """
        check_ddof(ddof)
        if kind not in ("frequency", "reliability"):
            raise ValueError(f"kind={kind!r}; allowed are 'frequency' and 'reliability'.")
        if kind == "reliability" and self.square_weight < SMALLEST:
            raise ValueError(f"the squares of these weights, {self.square_weight:g} in sum, leave "
                             "the range of float64; multiply the weights by a power of ten.")
        lost = ddof if kind == "frequency" else ddof * self.square_weight / self.weight
        return degrees_left(self.count, self.weight, lost, ddof)


def check_ddof(ddof: Any) -> None:
    """Refuse what is not a finite number."""
    check_values({"ddof": ddof}, {"ddof": (finite(ddof), "a finite number")})


def check_factor(factor: Any) -> None:
    """Refuse what weights cannot be multiplied by."""
    check_values({"factor": factor}, {"factor": (finite(factor) and factor > 0,
                                                 "a finite number above 0")})


def degrees_left(count: int, weight: float, lost: float, ddof: float) -> float:
    """Return the weight less what the mean has cost; ValueError if nothing is left."""
    if not weight - lost > 0:
        raise ValueError(
            f"ddof={ddof:g} leaves no degree of freedom for {count} row(s) of total "
            f"weight {weight:g}; give more rows, larger weights or a smaller ddof.")
    return weight - lost


@dataclass(frozen=True)
class Moments(Weighted):
    """First two moments of rows with d features; merge with ``a + b``.

    Attributes
    ----------
    count : int
        Rows with a positive weight.
    weight, square_weight : float
        Sum of the weights and of their squares; both equal `count` without weights.
    mean : (d,) float64
        Weighted mean, in input units.
    scatter : (d, d) float64, symmetric
        Sum of weight (row - mean)(row - mean)ᵀ, in squared input units.
    rest : (d,) float64
        What rounding took from `mean`: their sum is the mean to about twice the digits, so that
        merging costs none.

    Examples
    --------
    >>> import fastdr
    >>> first = fastdr.Moments.of([[0.0, 1.0], [2.0, 5.0]])
    >>> both = first + fastdr.Moments.of([[4.0, 3.0]])
    >>> both.count, both.mean
    (3, array([2., 3.]))
    >>> both.covariance()
    array([[4., 2.],
           [2., 4.]])
    """

    count: int
    weight: float
    square_weight: float
    mean: FloatArray
    scatter: FloatArray
    rest: FloatArray

    @classmethod
    def of(cls, X: Any, sample_weight: ArrayLike | None = None, *,
           precision: Precision = None) -> Self:
        """Moments of the rows of a dense (n, d) array of any real dtype and layout.

        Reads `X` once, O(n d²), without a copy. The rows are summed about a point near the first
        ones and about each panel's own mean where that is far away, so an offset of the data
        costs no digits (Chan, Golub & LeVeque 1983). float32 and float16 data are multiplied in
        float32 within 384 rows, of more than 512 columns 672, and added in float64: relative to
        the trace about 1e-8, at most 1.3e-5, and a few 1e-6 where the same numbers occur again and
        again. With ``precision="double"`` they are multiplied in float64; 8-bit integers are summed
        exactly. Rows of weight 0 are absent. The sums serve weights that are frequencies and such
        that are reliabilities: only the `divisor` of a covariance differs.

        Raises
        ------
        ValueError
            NaN or infinity (naming the first), wrong shape, negative or all-zero weights.
        TypeError
            Sparse, complex or non-numeric input.
        """
        rows = as_matrix(X)
        weight = as_weights(sample_weight, rows.shape[0])
        total, finite = scatter_of(rows, weight, arithmetic(rows, weight, precision))
        if total.outside:
            return cls.of(rows, weight, precision="double")
        shift = total.shift
        if finite:
            offset, scatter = total.finish()
        else:
            raise_not_finite(rows)
            shift, offset, scatter = _of_huge(rows, weight)
        mean = shift + offset
        counts = counts_of(rows.shape[0], weight)
        return cls(*counts, mean, scatter, (shift - mean) + offset)

    @classmethod
    def of_source(cls, source: Source, sample_weight: ArrayLike | None = None, *,
                  precision: Precision = None) -> Self:
        """Moments of all row blocks of a Source, read once and merged in order.

        A source that gathers its moments itself, as Dask collections do, is asked for them.
        """
        array = getattr(source, "array", None)
        if array is not None:
            return cls.of(array, sample_weight, precision=precision)
        gathered = getattr(source, "moments", None)
        weight = None if sample_weight is None else as_numbers(sample_weight, "sample_weight")
        if gathered is not None:
            found: Self = gathered(precision, weight)
            return found
        total: Self | None = None
        row = 0
        for block in source.blocks():
            if not len(block):
                continue
            part = None if weight is None else weight[row:row + len(block)]
            first, row = row, row + len(block)
            if part is not None and not part.any():
                continue
            with rows_named(block, source.columns, first):
                moments = cls.of(block, part, precision=precision)
            total = moments if total is None else total.merge(moments)
        if total is None:
            raise ValueError("Found no rows: the source is empty or all its weights are zero.")
        return total

    def merge(self, other: Self) -> Self:
        """Moments of both sets of rows together, O(d²); squares that overflow are infinite."""
        both, scatter = self._joint(other), self.scatter + other.scatter
        with np.errstate(over="ignore", invalid="ignore"):
            add_outer(scatter, both.step, both.share)
        return type(self)(both.count, both.weight, both.square_weight, both.mean, scatter,
                          both.rest)

    __add__ = merge

    def faded(self, factor: float) -> Self:
        """Moments of the same rows with all weights times a positive `factor`; ValueError else.

        Examples
        --------
        >>> found = Moments.of([[0.0], [2.0]]).faded(0.5)
        >>> found.weight, found.mean, found.scatter
        (1.0, array([1.]), array([[1.]]))
        """
        check_factor(factor)
        return type(self)(self.count, factor * self.weight, factor**2 * self.square_weight,
                          self.mean, factor * self.scatter, self.rest)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the moments to one safetensors file; `fastdr.load` reads them back."""
        # persistence knows the values, not the reverse
        import_module("fastdr.persistence").save(self, path)

    def about(self, mean: ArrayLike) -> FloatArray:
        """Return the (d, d) scatter about a given mean: Σ weight (row - mean)(row - mean)ᵀ.

        Squares that overflow are infinite.

        Examples
        --------
        >>> Moments.of([[0.0], [2.0]]).about([0.0])
        array([[4.]])
        """
        scatter = self.scatter.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            add_outer(scatter, self._distance(mean), self.weight)
        return scatter

    def _distance(self, mean: ArrayLike) -> FloatArray:
        return (self.mean - as_vector(mean, len(self.mean), "mean")) + self.rest

    def covariance(self, ddof: float = 1, mean: ArrayLike | None = None,
                   kind: Kind = "frequency") -> FloatArray:
        """Return the (d, d) covariance, about `mean` if it is given; see `divisor`."""
        scatter = self.scatter.copy() if mean is None else self.about(mean)
        divided(scatter, self.divisor(ddof, kind), scatter)
        return scatter

    @property
    def squares(self) -> FloatArray:
        """Sums of weight (row - mean)², (d,): a copy of the diagonal of the scatter."""
        return np.diagonal(self.scatter).copy()

    def variances(self, ddof: float = 1) -> FloatArray:
        """Return the (d,) variances of the features."""
        return self.squares / self.divisor(ddof)


def vanished(squares: FloatArray, sizes: FloatArray) -> AnyArray:
    """Tell what columns, unless they are 0, may vary though sums of squares of such `sizes` vanish.

    Of larger ones the deviations would have to be mere rounding.
    """
    seen = math.sqrt(SMALLEST) / float(np.finfo(np.float64).eps)
    return np.asarray((squares < SMALLEST) & (sizes < seen))


def check_squares(squares: FloatArray, varying: bool, way_out: str = "") -> None:
    """Refuse sums of squares (d,) outside of what float64 holds; `varying` rows have some."""
    largest = float(squares.max())
    if not largest < LARGEST or (varying and largest < SMALLEST):
        raise ValueError(f"the squares of these rows, up to {largest:g} in sum, leave the range "
                         f"of float64; {way_out}multiply the rows by a power of ten.")


def counts_of(rows: int, weight: FloatArray | None) -> tuple[int, float, float]:
    """Rows that count, sum of weights, sum of squared weights."""
    if weight is None:
        return rows, float(rows), float(rows)
    return int(np.count_nonzero(weight)), float(weight.sum()), float(weight @ weight)


def float_arithmetic(rows: AnyArray, precision: Precision) -> np.dtype[Any]:
    """Return the float type in which products of a panel are summed; see `ScatterSum`."""
    single = (working_dtype(rows.dtype) == np.float32 and precision is None
              and len(rows) > FEW_ROWS)
    return np.dtype(np.float32 if single else np.float64)


def arithmetic(rows: AnyArray, weight: FloatArray | None, precision: Precision) -> np.dtype[Any]:
    """Return the type in which products of a panel are summed: exact for 8-bit integers."""
    exact = rows.dtype.itemsize == 1 and weight is None
    return np.dtype(np.int16) if exact else float_arithmetic(rows, precision)


def scatter_of(rows: AnyArray, weight: FloatArray | None, working: DTypeLike, *,
              narrow: bool = False) -> tuple[ScatterSum, bool]:
    """Return the sum over all rows, and whether every value is finite."""
    shift = middle(rows, weight, integral=rows.dtype.kind in "iub")
    total = ScatterSum(rows.shape[1], shift, working, narrow=narrow)
    return total, total.add(rows, weight)


def _of_huge(rows: AnyArray, weight: FloatArray | None) -> tuple[FloatArray, ...]:
    """Shift, offset and scatter of finite rows whose squares overflow: infinite where they must.

    Columns that reach 2**500 are scaled by a power of two, which is exact, and the sums scaled
    back.
    """
    source = ArraySource(rows)
    largest = np.max([np.abs(block).max(axis=0) for block in source.blocks()], axis=0)
    exponent = np.where(largest < 2.0**500, 0, np.frexp(largest)[1])
    total = ScatterSum(rows.shape[1], middle(rows, weight, integral=False) * (exponent == 0))
    start = 0
    for block in source.blocks():
        part = None if weight is None else weight[start:start + len(block)]
        total.add(np.ldexp(block.astype(np.float64), -exponent), part)
        start += len(block)
    offset, scatter = total.finish()
    with np.errstate(over="ignore"):
        return (total.shift, np.ldexp(offset, exponent),
                np.ldexp(scatter, exponent + exponent[:, None]))


def add_outer(matrix: FloatArray, vector: FloatArray, factor: float) -> None:
    """Add factor vector vectorᵀ to `matrix`, a few rows at a time."""
    for start in range(0, len(vector), 64):
        part = slice(start, start + 64)
        matrix[part] += factor * np.outer(vector[part], vector)  # symmetric to the last bit


def moments(X: Any, sample_weight: ArrayLike | None = None) -> Moments:
    """Count, mean and scatter of the rows of `X`; see `Moments.of`.

    Examples
    --------
    >>> import fastdr
    >>> fastdr.moments([[1.0, 2.0], [3.0, 6.0]], sample_weight=[1, 3]).mean
    array([2.5, 5. ])
    """
    return Moments.of(X, sample_weight)


def divided(matrix: FloatArray, divisor: float, out: FloatArray) -> FloatArray:
    """Return the matrix over `divisor`, by all threads, in `out`; infinite beyond float64."""
    def part(index: int) -> None:
        rows = slice(index * PANEL, (index + 1) * PANEL)
        with np.errstate(over="ignore"):  # of this thread
            np.divide(matrix[rows], divisor, out=out[rows])

    ordered_map(part, -(-len(matrix) // PANEL))
    return out
