"""The covariance within classes, and how to read the rows about their class means again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdr._dense import PANEL, Matrix, centre_classes
from fastdr.centring import piece
from fastdr.class_statistics import ClassMoments, Codes, class_columns, labelled_blocks
from fastdr.mapped import read
from fastdr.scatter import ScatterSum
from fastdr.sources import Piece, Rows, Source, gathered
from fastdr.validation import AccuracyWarning, AnyArray, FloatArray, as_numbers, raise_not_finite

NOISE = 4  # deviations of a column, in eps times its mean, that count as rounding
SYMMETRIC = 1e-8  # asymmetry of a covariance, relative to its largest entry, that is no error
LEAST = 1e-290  # variance that float64 holds with all its digits, and with those of axes far below


class ClassColumns(Rows):
    """Rows less their class means, some columns at a time: the rows of a transposed view."""

    in_place = False

    def __init__(self, array: AnyArray, codes: Codes, means: FloatArray, rests: FloatArray,
                 squares: FloatArray) -> None:
        self.array, self.count = array, array.shape[1]
        self._codes, self._means = codes, means
        seen = (np.abs(rests) > np.finfo(float).eps * np.sqrt(squares)).any()
        self._rests = rests if seen else None

    def block(self, part: slice) -> FloatArray:
        """Return columns `part` of all rows, (n, columns), centred."""
        block = np.array(read(self.array[:, part]), dtype=np.float64, order="C")
        for centres in (self._means, self._rests):
            if centres is not None:
                centres = np.ascontiguousarray(centres[:, part])
                centre_classes(block, self._codes, centres, None, np.zeros_like(centres), block)
        return block

    def pieces(self, first: int, last: int, least: int = PANEL) -> Iterator[Piece]:
        """Yield as `Rows.pieces`, the columns standing as rows."""
        step = max(1, (1 << 17) // len(self.array) // least) * least
        for start in range(first, last, step):
            block = self.block(slice(start, min(start + step, last)))
            yield Matrix(block, transposed=True), start, 0, block.shape[1]

    def product(self, left: FloatArray) -> FloatArray:
        """Return left (k, n) times the rows, (k, d)."""
        result = np.empty((len(left), self.count))
        for part in self._parts():
            np.matmul(left, self.block(part), out=result[:, part])
        return result

    def inner(self, right: FloatArray) -> FloatArray:
        """Return right (k, d) times the transposed rows, (k, n)."""
        total = np.zeros((len(right), len(self.array)))
        for part in self._parts():
            total += right[:, part] @ self.block(part).T
        return total

    def gram(self, factor: FloatArray) -> FloatArray:
        """Return inner products (n, n) of the rows, their columns multiplied by `factor`."""
        size = len(self.array)
        total = ScatterSum(size, np.zeros(size), fixed=True)
        total.add(self, root=factor)
        return total.finish(centred=False)[1]

    def _parts(self) -> Iterator[slice]:
        step = max(8, (1 << 18) // len(self.array))
        for start in range(0, self.count, step):
            yield slice(start, min(start + step, self.count))


class Columns(Protocol):
    """Fewer rows than features, less their class means, as products with them."""

    def product(self, left: FloatArray) -> FloatArray: ...  # noqa: D102

    def inner(self, right: FloatArray) -> FloatArray: ...  # noqa: D102

    def gram(self, factor: FloatArray) -> FloatArray: ...  # noqa: D102

    def block(self, part: slice) -> FloatArray: ...  # noqa: D102

Spread = tuple[FloatArray, FloatArray, float]


@dataclass(frozen=True)
class Within:
    """A within-class covariance S = Σ weight z zᵀ + diag(ridge), z the class-centred rows.

    ``squares`` (d,) its diagonal, 0 for columns to leave out; ``weights`` (n,); ``ridge`` (d,)
    positive, or None; ``matrix`` (d, d) all of S, or None for fewer rows than features;
    ``blocks`` yields the z in order as float64, or is None if nothing but the matrix is known;
    ``columns`` and ``codes``, their columns and classes, for fewer rows than features; ``action``,
    if neither matrix nor columns are there, takes rows (k, d) and weights to rows Σ weight z zᵀ;
    ``raw`` (d,), if S is a difference, the diagonal of what it was taken from.
    """

    squares: FloatArray
    weights: FloatArray
    ridge: FloatArray | None
    matrix: FloatArray | None
    blocks: Callable[[], Iterator[FloatArray]] | None
    columns: Columns | None = None
    codes: Codes | None = None
    action: Callable[[FloatArray, FloatArray], FloatArray] | None = None
    raw: FloatArray | None = None

    @classmethod
    def of_matrix(cls, matrix: FloatArray, rows: int) -> Within:
        """Make one of a (d, d) covariance of `rows` rows that cannot be read again."""
        return cls(np.diagonal(matrix).copy(), np.full(rows, 1 / rows), None, matrix, None)

    def shrunk(self, strength: float) -> Within:
        """Return (1 - strength) S + strength (trace / d) I; the matrix is changed in place."""
        if strength == 0:
            return self
        kept, matrix = 1 - strength, self.matrix
        if matrix is not None:
            matrix *= kept
        level = strength * float(self.squares.mean())
        plain = replace(self, squares=kept * self.squares, weights=kept * self.weights,
                        raw=None if self.raw is None else kept * self.raw)
        return plain.with_ridge(np.full(self.squares.size, level))

    def with_ridge(self, ridge: FloatArray) -> Within:
        """Return S + diag(ridge); the matrix is changed in place."""
        if not ridge.any():
            return self
        if self.matrix is not None:
            self.matrix[np.diag_indices(ridge.size)] += ridge
        return replace(self, squares=self.squares + ridge, ridge=ridge)

    def cancelled(self, scale: FloatArray, trace: float) -> float:
        """Return how much larger rounding in S is for being a difference; `trace` in `scale`."""
        if self.raw is None or not trace:
            return 1.0
        return max(1.0, float((self.raw / scale**2)[self.squares > 0].sum()) / trace)

    @property
    def scale(self) -> FloatArray:
        """Deviations of the columns within classes; 1 where there is none."""
        return np.where(self.squares > 0, np.sqrt(self.squares), 1.0)


@dataclass(frozen=True)
class ClassSample:
    """What is known of the classes: labels, rows, weights, means and what rounding left."""

    classes: AnyArray
    counts: NDArray[np.int64]
    weights: FloatArray
    means: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    rests: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))


def of_tall(source: Source, codes: Codes, weights: FloatArray, sample: ClassSample
            ) -> tuple[ClassSample, Within]:
    """Class means and the within-class covariance of rows at least as many as features."""
    even = (weights == weights[0]).all()
    found = ClassMoments.of_source(source, codes, None if even else weights,
                                   precision="double")
    matrix = found.within
    if even:
        matrix *= weights[0]
    sample = replace(sample, means=found.means, rests=found.rests)

    def blocks() -> Iterator[FloatArray]:
        step = piece(matrix.shape[0])
        for part, block in labelled_blocks(source, len(codes)):
            for start in range(0, len(block), step):
                at = codes[part][start:start + step]
                rows = block[start:start + step] - sample.means[at]
                yield rows - sample.rests[at]

    return sample, Within(np.diagonal(matrix).copy(), weights, None, matrix,
                          blocks if source.rereadable else None)


def of_wide(source: Source, codes: Codes, weights: FloatArray, sample: ClassSample
            ) -> tuple[ClassSample, Within]:
    """Class means and column variances of fewer rows than features, read again as needed."""
    array = gathered(source).array
    means, rests, squares = class_columns(array, codes, weights, len(sample.classes))
    columns = ClassColumns(array, codes, means, rests, squares)

    def blocks() -> Iterator[FloatArray]:
        yield columns.block(slice(None))

    return replace(sample, means=means, rests=rests), Within(
        squares, weights, None, None, blocks, columns, codes)


def of_estimator(estimator: Any, X: AnyArray, codes: Codes, priors: FloatArray,
                 sample: ClassSample) -> tuple[ClassSample, Within]:
    """Class means, and the covariances that `estimator` finds for each class by the priors."""
    means, rests, _ = class_columns(X, codes, None, len(priors))
    matrix = np.zeros((X.shape[1],) * 2)
    for code, prior in enumerate(priors):
        each = copy.deepcopy(estimator)
        each.fit(X[codes == code])
        if not hasattr(each, "covariance_"):
            raise ValueError(f"{type(each).__name__} does not have a covariance_ attribute.")
        matrix += prior * _covariance(each, X.shape[1])
    return replace(sample, means=means, rests=rests), Within.of_matrix(matrix, len(X))


def _covariance(estimator: Any, features: int) -> FloatArray:
    """Return the covariance that an estimator found; refuse what cannot be one."""
    name = f"covariance_ of {type(estimator).__name__}"
    found = as_numbers(estimator.covariance_, name).astype(np.float64)
    if found.shape != (features, features):
        raise ValueError(f"{name} has shape {found.shape}; expected {(features, features)}.")
    away = np.abs(found - found.T).max()
    if not (away <= SYMMETRIC * np.abs(found).max() and (np.diagonal(found) >= 0).all()
            and _least_variance(found) >= -SYMMETRIC * features):
        raise ValueError(f"{name} is no covariance: it must be finite and symmetric, with no "
                         "negative variance along any direction.")
    return found


def _least_variance(covariance: FloatArray) -> float:
    """Return the smallest eigenvalue, in columns of unit deviation."""
    deviations = np.sqrt(np.diagonal(covariance))
    deviations[deviations == 0] = 1.0
    return float(np.linalg.eigvalsh(covariance / deviations / deviations[:, None])[0])


def check_variances(squares: FloatArray) -> None:
    """Refuse columns that vary within classes by what float64 does not hold the squares of."""
    held = (squares == 0) | ((squares >= LEAST) & (squares < np.inf))
    if not held.all():
        column = int(np.argmin(held))
        raise ValueError(
            f"column {column} varies so {'little' if squares[column] < 1 else 'much'} within "
            "classes that float64 does not hold the squares; multiply the column, or all of X, by "
            "a power of ten.")


def without_noise(within: Within, sample: ClassSample, dtype: Any) -> Within:
    """Leave out columns whose deviation within classes is rounding of their values."""
    if within.ridge is not None:
        return within
    eps = float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 2.0**-52
    still = np.sqrt(within.squares) <= NOISE * eps * np.abs(sample.means).max(axis=0)
    if still.all():
        raise ValueError("No feature varies within any class by more than rounding of its values: "
                         "the within-class variance is zero, so there is nothing to measure "
                         "distances between classes by. Any feature that differs between classes "
                         "separates them.")
    apart = np.abs(sample.means - sample.means[0]).max(axis=0)
    telling = np.flatnonzero(still & (apart > NOISE * eps * np.abs(sample.means).max(axis=0)))
    if telling.size:
        shown = ", ".join(map(str, telling[:5])) + (", ..." if telling.size > 5 else "")
        warnings.warn(f"{telling.size} column(s) ({shown}) are constant within every class but "
                      "differ between classes. They tell classes apart without error, but no "
                      "distance can be measured along them, so they are left out.",
                      AccuracyWarning, stacklevel=7)
    return replace(within, squares=np.where(still, 0.0, within.squares))


def covariance_of(within: Within, asked: bool) -> FloatArray | None:
    """Return the (d, d) covariance; of fewer rows than features only if it is asked for."""
    if within.matrix is not None or not asked:
        return within.matrix
    if within.columns is None:
        raise ValueError("store_covariance would make a matrix of all features of sparse rows, "
                         "which is not formed for so many.")
    rows = within.columns.block(slice(None)) * np.sqrt(within.weights)[:, None]
    matrix: FloatArray = rows.T @ rows
    if within.ridge is not None:
        matrix[np.diag_indices(len(matrix))] += within.ridge
    return matrix


def ledoit_wolf(X: AnyArray, codes: Codes, weights: FloatArray | None, priors: FloatArray
                ) -> tuple[FloatArray, FloatArray]:
    """Return what `shrunk_classes` does, of the rows of an array."""
    raise_not_finite(X)

    def spread(chosen: AnyArray, share: FloatArray) -> Spread:
        rows = X[chosen].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            rows -= rows[0]  # exact for constant columns
            exponents = np.frexp(np.abs(rows).max(axis=0))[1]  # lest squares vanish or overflow
            np.ldexp(rows, -exponents, out=rows)
            rows -= share @ rows
            deviations = np.sqrt(share @ rows**2)
            rows /= np.where(deviations > 0, deviations, 1.0)
            scale = np.where(deviations > 0, np.ldexp(deviations, exponents), 1.0)
        return scale, np.einsum("ij,ij->i", rows, rows), _square(rows, share)

    return shrunk_classes(spread, codes, weights, priors)


def shrunk_classes(spread: Callable[[AnyArray, FloatArray], Spread], codes: Codes,
                   weights: FloatArray | None, priors: FloatArray
                   ) -> tuple[FloatArray, FloatArray]:
    """Shrink each class by Ledoit and Wolf's (2004) lemma in columns of unit deviation.

    Returns what is left of each prior for the rows, (C,), and the ridge, (d,): the weighted
    covariances Σ prior D ((1 - s) R + s μ I) D, with D deviations, R correlations and μ their
    mean diagonal, are a scatter with other weights plus a diagonal matrix. `spread(chosen, share)`
    tells of the rows z of a class and their shares of its weight, centred and scaled: the
    deviations (d,), the squared norms of the z, and the sum of squares of the entries of R.
    """
    kept, ridge = priors.copy(), np.zeros(1)
    for code, prior in enumerate(priors):
        chosen = codes == code if weights is None else (codes == code) & (weights > 0)
        share = np.ones(np.count_nonzero(chosen)) if weights is None else weights[chosen]
        total = float(share.sum())
        share = share / total
        scale, lengths, square = spread(chosen, share)
        strength, level = shrinkage(lengths, square, share, total, scale.size)
        kept[code] = prior * (1 - strength)
        with np.errstate(over="ignore"):
            ridge = ridge + prior * strength * level * scale**2
    return kept, ridge


def _square(rows: FloatArray, share: FloatArray) -> float:
    """Return the sum of squares of the entries of Σ share z zᵀ."""
    rows = rows * np.sqrt(share)[:, None]
    product = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    return float(np.einsum("ij,ij->", product, product))


def shrinkage(lengths: FloatArray, square: float, share: FloatArray, total: float,
              features: int) -> tuple[float, float]:
    """Return how much to shrink Σ share z zᵀ towards its mean diagonal, and that.

    `lengths` (n,) are the squared norms of the z, `square` is the sum of squares of the entries of
    that matrix, `total` the weight of all rows (Ledoit & Wolf 2004).
    """
    trace = float(share @ lengths)
    level = trace / features
    if features == 1:
        return 0.0, level
    noise = float(share @ lengths**2 - square) / (features * total)
    spread = (square - level * trace) / features
    noise = min(noise, spread)
    return (float(noise / spread) if noise > 0 else 0.0), level
