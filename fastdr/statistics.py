"""Count, mean and scatter of rows: statistics that merge, and the covariances made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastdr._dense import PANEL, add_column_sums
from fastdr.scatter import ScatterSum, middle
from fastdr.sources import ArraySource, BlockSource, Rows, Source
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
    output,
    raise_not_finite,
    rows_named,
    working_dtype,
)

Precision = Literal["double"] | None
Kind = Literal["frequency", "reliability"]

SMALLEST, LARGEST = 1e-260, 1e300  # sums of squares that float64 holds with all their digits
# Below this many rows float64 arithmetic costs next to nothing and is exact for float32 data.
FEW_ROWS = 4096
SHRINKING = -530  # exponent that takes sums of squares which overflow into the range
# Columns and cells that one thread takes at a time in `column_moments`, and the squared distance of
# the shift from the mean, relative to the variance, up to which squares are corrected for it.
_COLUMNS, _CELLS, NEAR = 1 << 14, 1 << 22, 4.0


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
        return _left(self.count, self.weight, lost, ddof)


def check_ddof(ddof: Any) -> None:
    """Refuse what is not a finite number."""
    check_values({"ddof": ddof}, {"ddof": (finite(ddof), "a finite number")})


def check_factor(factor: Any) -> None:
    """Refuse what weights cannot be multiplied by."""
    check_values({"factor": factor}, {"factor": (finite(factor) and factor > 0,
                                                 "a finite number above 0")})


def _left(count: int, weight: float, lost: float, ddof: float) -> float:
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
        float32 within 384 rows and added in float64: relative to the trace about 1e-8, at most
        1.3e-5, and a few 1e-6 where the same numbers occur again and again. With
        ``precision="double"`` they are multiplied in float64; 8-bit integers are summed exactly.
        Rows of weight 0 are absent. The sums serve weights that are frequencies and such that are
        reliabilities: only the `divisor` of a covariance differs.

        Raises
        ------
        ValueError
            NaN or infinity (naming the first), wrong shape, negative or all-zero weights.
        TypeError
            Sparse, complex or non-numeric input.
        """
        rows = as_matrix(X)
        weight = as_weights(sample_weight, rows.shape[0])
        total, finite = _gathered(rows, weight, _arithmetic(rows, weight, precision))
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
            _add_outer(scatter, both.step, both.share)
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

        Examples
        --------
        >>> Moments.of([[0.0], [2.0]]).about([0.0])
        array([[4.]])
        """
        scatter = self.scatter.copy()
        _add_outer(scatter, self._distance(mean), self.weight)
        return scatter

    def _distance(self, mean: ArrayLike) -> FloatArray:
        return (self.mean - as_vector(mean, len(self.mean), "mean")) + self.rest

    def covariance(self, ddof: float = 1, mean: ArrayLike | None = None,
                   kind: Kind = "frequency") -> FloatArray:
        """Return the (d, d) covariance, about `mean` if it is given; see `divisor`."""
        scatter = self.scatter.copy() if mean is None else self.about(mean)
        _divided(scatter, self.divisor(ddof, kind), scatter)
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


def _arithmetic(rows: AnyArray, weight: FloatArray | None, precision: Precision) -> np.dtype[Any]:
    exact = rows.dtype.itemsize == 1 and weight is None
    return np.dtype(np.int16) if exact else float_arithmetic(rows, precision)


def _gathered(rows: AnyArray, weight: FloatArray | None, working: DTypeLike, *,
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


def _add_outer(matrix: FloatArray, vector: FloatArray, factor: float) -> None:
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


def covariance(X: Any, *, sample_weight: ArrayLike | None = None, mean: ArrayLike | None = None,
               ddof: float | None = None, dtype: DTypeLike | None = None,
               out: AnyArray | None = None) -> AnyArray:
    """Covariance matrix of the columns of `X`, accurate for any offset.

    Parameters
    ----------
    X : (n, d) array of float64, float32, float16, integers or bool
        Any memory layout; memory-mapped arrays are read in place.
    sample_weight : (n,), optional
        Frequencies: how often each row counts. 2 is the row twice, 0 is no row. For reliabilities,
        whose scale means nothing, see `Moments.covariance`.
    mean : (d,), optional
        The known mean; without it the sample mean is used.
    ddof : float, optional
        The divisor is the number (or total weight) of rows less `ddof`: by default 1 with the
        sample mean and 0 with a known one.
    dtype : float64 or float32, optional
        Of the result, by default float64. Sums are of float64 in any case. A float32 result of
        more than 4096 rows of float32 takes half the memory throughout.
    out : (d, d) float64 or float32 array, optional
        Where to put the result; it shares no memory with the operands.

    Returns
    -------
    (d, d) array, symmetric, in squared units of `X`.

    Raises
    ------
    ValueError
        NaN or infinity in `X`, wrong shapes, too few rows for `ddof`, another `dtype`, or
        variances that float32 cannot hold if it was asked for.
    TypeError
        Sparse, complex or non-numeric `X`.

    Notes
    -----
    One pass, O(n d²); extra memory of a few blocks of rows. Error relative to √(C_ii C_jj):
    a small multiple of rounding for float64; for more than 4096 float32 rows about 1e-8, a few 1e-6
    where the same numbers occur again and again; 6e-8 more in a float32 result. However it rounds,
    at most (288 + n/192) 1.1e-16, of float32 rows 1.3e-5 more (Higham, Accuracy and Stability of
    Numerical Algorithms, 2002, section 3.5); ``X.astype(float)`` has the former.

    References
    ----------
    Chan, Golub & LeVeque, Amer. Statist. 37 (1983).

    Examples
    --------
    >>> import fastdr
    >>> fastdr.covariance([[1e9, 1.0], [1e9 + 2, 5.0]])
    array([[2., 4.],
           [4., 8.]])
    """
    rows = as_matrix(X)
    kind = _result_dtype(dtype, out)
    if out is not None:
        output(out, (rows.shape[1],) * 2, kind, rows, sample_weight, mean)
    lost = float(mean is None) if ddof is None else ddof
    check_ddof(lost)
    if kind == np.float32 and mean is None:
        narrow = _narrow_covariance(rows, as_weights(sample_weight, len(rows)), lost)
        if narrow is not None:
            if out is None:
                return narrow
            out[...] = narrow
            return out
    found, about = Moments.of(rows, sample_weight), mean
    exponents = np.where(np.isfinite(found.squares), 0, SHRINKING)
    if exponents.any():  # sums overflow, which the variances need not
        found = _of_shrunk(rows, sample_weight, exponents)
        about = None if mean is None else np.ldexp(as_vector(mean, len(exponents), "mean"),
                                                   exponents)
    divisor = found.divisor(lost)
    if about is not None:
        _add_outer(found.scatter, found._distance(about), found.weight)
    if exponents.any():
        _divided(found.scatter, divisor, found.scatter)
        divisor = 1.0
        with np.errstate(over="ignore"):
            np.ldexp(found.scatter, -exponents - exponents[:, None], out=found.scatter)
    if kind == np.float32:
        _refuse_what_float32_cannot_hold(np.diagonal(found.scatter) / divisor)
        out = np.empty(found.scatter.shape, kind) if out is None else out
    return _divided(found.scatter, divisor, found.scatter if out is None else out)


def _of_shrunk(rows: AnyArray, weight: ArrayLike | None, exponents: AnyArray) -> Moments:
    """Moments of the rows with columns times 2**exponents."""
    def blocks() -> Iterator[AnyArray]:
        for block in ArraySource(rows).blocks():
            yield np.ldexp(block.astype(np.float64), exponents)

    return Moments.of_source(BlockSource(blocks, rows.shape[1], len(rows)), weight)


def _result_dtype(dtype: DTypeLike | None, out: AnyArray | None) -> np.dtype[Any]:
    """Return the type that was asked for, by `out` if it was not named."""
    if dtype is None:
        single = getattr(out, "dtype", None) == np.float32
        return np.dtype(np.float32 if single else np.float64)
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind not in (np.float64, np.float32):
        raise ValueError(f"dtype={dtype!r}; allowed are float64 and float32.")
    return kind


def _narrow_covariance(rows: AnyArray, weight: FloatArray | None, ddof: float) -> AnyArray | None:
    """Return a float32 covariance where one of float64 never stood, None if that does not do."""
    working = _arithmetic(rows, weight, None)
    if working == np.float64:
        return None
    count, whole, _ = counts_of(len(rows), weight)
    divisor = _left(count, whole, ddof, ddof)
    total, finite = _gathered(rows, weight, working, narrow=True)
    if not finite or total.outside:
        return None
    found = total.finish_narrow(divisor)
    return found if _float32_holds(np.diagonal(found)) else None


def _float32_holds(variances: AnyArray) -> bool:
    info = np.finfo(np.float32)
    return bool(((variances == 0) | (variances >= info.tiny) & (variances <= info.max)).all())


def _refuse_what_float32_cannot_hold(variances: FloatArray) -> None:
    if not _float32_holds(variances):
        some = variances[variances != 0]
        raise ValueError(f"variances are {some.min():.1e} to {some.max():.1e}, which float32 "
                         "cannot hold: leave out dtype=float32, or scale the columns.")


def _divided(matrix: FloatArray, divisor: float, out: FloatArray) -> FloatArray:
    """Return the matrix over `divisor`, by all threads, in `out`."""
    def part(index: int) -> None:
        rows = slice(index * PANEL, (index + 1) * PANEL)
        np.divide(matrix[rows], divisor, out=out[rows])

    ordered_map(part, -(-len(matrix) // PANEL))
    return out


def _column_sums(X: AnyArray, shift: FloatArray, root: FloatArray | None
                 ) -> tuple[FloatArray, FloatArray]:
    """Return Σ root² (x - shift) and Σ root² (x - shift)² by column, from parts of fixed size."""
    rows, features = X.shape
    wide = min(features, _COLUMNS)
    tall = max(256, _CELLS // wide)
    corners = [(row, left) for left in range(0, features, wide) for row in range(0, rows, tall)]
    sums, squares = np.zeros((2, features))

    def part(index: int) -> tuple[slice, FloatArray]:
        row, left = corners[index]
        columns = slice(left, min(left + wide, features))
        found = np.zeros((2, columns.stop - left))
        for matrix, start, first, last in Rows(X[:, columns]).pieces(row, min(row + tall, rows)):
            add_column_sums(matrix, first, last, shift[columns],
                            None if root is None else root[start:], *found)
        return columns, found

    for columns, found in ordered_map(part, len(corners)):
        sums[columns] += found[0]
        squares[columns] += found[1]
    return sums, squares


def column_moments(X: AnyArray, weight: FloatArray | None = None
                   ) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (mean, squares, rest) of the columns; no (d, d) matrix.

    squares = Σ weight (x - mean)², and rest is what rounding took from the mean.

    One pass over `X`, O(n d), for data with more features than rows, and a second one where the
    first rows are not near the mean. Raises ValueError for NaN and infinity.
    """
    total = float(len(X)) if weight is None else float(weight.sum())
    root = None if weight is None else np.sqrt(weight)
    means = middle(X, weight, integral=False)
    for _ in range(2):
        sums, squares = _column_sums(X, means, root)
        with np.errstate(all="ignore"):
            step = sums / total
            shift, means, moved = means, means + step, total * step**2
            squares -= moved
        if not (moved > NEAR * squares).any():
            break
    if not np.isfinite(means).all() or not np.isfinite(squares).all():
        raise_not_finite(X)
    return means, squares, (shift - means) + step
