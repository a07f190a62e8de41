"""A few principal axes by iteration: from the scatter, or from the rows without forming it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator

from fastdr.actions import Action, MatrixAction
from fastdr.centring import CentredRows, read_again
from fastdr.certificate import Certificate, certificate, doubt_of, proved, slack
from fastdr.dimension import fraction
from fastdr.lanczos import (
    BLOCK,
    Callback,
    Ritz,
    hopeless,
    joint_norm,
    lanczos,
    rayleigh_ritz,
    rounding,
)
from fastdr.operators import gram_apply
from fastdr.power import power, randomized
from fastdr.scatter import SINGLE_RTOL, single_error
from fastdr.solvers import RTOL, Axes, Choice, Spectrum, blurred, finish, lapack
from fastdr.sources import ArraySource
from fastdr.sparse import SparseAction, SparseMoments, SparseSource, parts_of_centre
from fastdr.tall import Square, Tall, upright
from fastdr.validation import AnyArray, FloatArray

TOL = {8: 1e-10, 4: 1e-5}  # residual relative to the largest eigenvalue
SKETCH_TOL = 1e-4  # the same for the randomized method
SINGLE_EXPONENT = 100  # of numbers that float32 holds, and their inverses
SINGLE_TOL = 1e-6  # residual from which float32 arithmetic will do
NEAR = 8.0  # root mean square of means over deviations up to which means come off products
SHARP = {8: 1e-4, 4: 1e-3}  # the same relative to the smallest wanted eigenvalue
ROUGH = 1e-2  # the same while the number of axes is being sought
FEW, MANY = 8, 0.15  # axes to seek first, and the part of all beyond which LAPACK is faster
MAX_COLUMNS = {"lanczos": 300, "power": 3000, "randomized": math.inf}  # that an axis may cost


@dataclass
class RowsAction:
    """C = A'A of the centred, scaled, weighted rows A, never formed; one read for 8 columns.

    Means that are not far come off the products of an array (see `gram_apply`), and rounding grows
    as the root of ``offset``, rows times the sum of their squares, over the norm of C; it is 0 if
    they come off the rows. Rows that workers have are multiplied where they are, by any number of
    columns in one read.
    """

    rows: CentredRows
    dtype: np.dtype[Any]
    size: int = field(init=False)
    exponent: int = 0
    columns: int = 0
    passes: int = 0
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Take the order from the columns, and the size of the numbers from the trace."""
        self.size = self.rows.mean.size
        rows, total = self.rows, self.rows.total
        self.exponent = math.frexp(total)[1] if total else 0
        means = rows.mean if rows.scale is None else rows.mean / rows.scale
        offset = rows.weight * float(means @ means)
        plain = isinstance(rows.source, ArraySource) and rows.weights is None and not rows.far
        if plain and offset <= NEAR**2 * total:
            self.offset = offset

    def __call__(self, rows: AnyArray) -> AnyArray:
        """Return the images of `rows` (b, d)."""
        self.columns += len(rows)
        elsewhere = hasattr(self.rows.source, "summed")
        self.passes += 1 if elsewhere else math.ceil(len(rows) / (64 // rows.itemsize))
        half = self.exponent // 2  # of the factor on each side, so that float32 holds them
        given = np.ldexp(rows, -half)
        images = self.rows.summed(partial(_images, given, self.offset > 0))
        if self.rows.lost is not None:  # squares about a rounded mean
            lost = self.rows.lost if self.rows.scale is None else self.rows.lost / self.rows.scale
            images -= np.outer(given @ lost, self.rows.weight * lost)
        return np.asarray(np.ldexp(images, half - self.exponent), rows.dtype)


def _images(given: AnyArray, apart: bool, data: CentredRows) -> AnyArray:
    """Return the images of the rows `given` (b, d), in their dtype or float64."""
    if isinstance(data.source, SparseSource):
        action = SparseAction(data.source, _moments_about(data, data.source), data.scale,
                              data.weights, given.dtype)
        action.exponent = 0  # which `given` has been divided by
        return action(given)
    if isinstance(data.source, ArraySource) and data.weights is None and not data.far:
        mean = np.ldexp(data.mean, -data.exponent) if data.mean.any() else None
        given = np.ldexp(given, data.exponent).T  # half of the factor on each side of the rows
        images = gram_apply(data.source.array, given, mean, data.scale, apart=apart)
        return np.ldexp(images, data.exponent).T
    varying = data.squares > 0
    inner = given[:, varying].astype(np.float64)
    total = np.zeros_like(inner)
    for block in replace(data, lost=None).blocks():  # it comes off all images
        total += (block @ inner.T).T @ block
    images = np.zeros(given.shape)
    images[:, varying] = total
    return images


def _moments_about(data: CentredRows, rows: SparseSource) -> SparseMoments:
    """Say what to centre at: columns that are full and far from 0 first, the others afterwards."""
    full = np.bincount(rows.indices, minlength=data.mean.size) == len(rows)
    squares = data.squares if data.scale is None else data.squares * data.scale**2
    return SparseMoments(
        data.mean, squares, *parts_of_centre(data.mean, squares, data.weight, full),
        np.zeros_like(data.mean), data.count, data.weight, data.estimated, data.exponent)


@dataclass(frozen=True)
class Iteration:
    """How to iterate.

    ``method`` "lanczos", "power" or "randomized"; ``tol`` largest residual relative to the
    largest eigenvalue, 0 for the default; ``budget`` columns after which LAPACK takes over,
    infinite if it shall not; ``start`` (j, d) rows to begin with; ``prove`` as for `lapack`,
    where an iteration on rows proves only if it shall ``form`` a matrix of squares for that;
    ``oversamples`` and ``steps`` of the randomized method; ``reach`` is the residual that float32
    arithmetic is trusted to get to.
    """

    rng: Generator
    method: str = "lanczos"
    tol: float = 0.0
    budget: float = math.inf
    start: FloatArray | None = None
    callback: Callback | None = None
    prove: bool | None = None
    form: bool = False
    oversamples: int = 10
    steps: int = 7
    reach: float = SINGLE_TOL

    def solve(self, action: Action, count: int, tol: float, start: FloatArray | None) -> Ritz:
        """Return `count` eigenpairs."""
        if self.method == "randomized":
            return randomized(action, count, tol=tol, rng=self.rng, start=start,
                              callback=self.callback, oversamples=self.oversamples,
                              steps=self.steps)
        most = self.budget - action.columns
        if self.budget == math.inf:
            most = MAX_COLUMNS[self.method] * (count + 8)
        method = power if self.method == "power" else partial(lanczos, race=self.budget < math.inf)
        found = method(action, count, tol=tol, rng=self.rng, start=start, budget=most,
                       callback=self.callback)
        left = most - found.columns - count - 2 * BLOCK[4]
        if found.converged or action.dtype.itemsize == 8 or left <= 0 or (
                hopeless(found.residuals, tol, found.scale)):
            return found
        action.dtype = np.dtype(np.float64)  # for what rounding in float32 kept from converging
        return method(action, count, tol=tol, rng=self.rng, start=found.vectors, budget=left,
                      callback=self.callback)


def iterative(rows: CentredRows, components: int, how: Iteration, *, read: bool = False,
              share: float | None = None) -> Spectrum:
    """Return `components` axes by iteration, or as few as exceed a `share` of the variance.

    `read` iterates on the rows, one pass for each few columns; else on the scatter or the Gram
    matrix. LAPACK answers instead, as ``reason`` then says, if all axes are wanted, if the wanted
    values reach down to the rounding of a scatter, where only a QR factorisation of the rows
    tells them apart, and if the columns of the budget did not do.
    """
    choose: Choice | None = None
    if share is not None:
        choose = partial(fraction, total=rows.total, divisor=rows.divisor, share=share)
    square = None if read else upright(rows)
    exactly = partial(_exactly, rows, components, choose, how.prove, square)
    most = min(components, rows.bound)
    if most == 0 or (share is None and components > rows.bound):
        return exactly("every axis that varies is wanted")
    tall, matrix = square or (None, None)
    action, start = _action(rows, matrix, how.tol), _start(rows, how, matrix)
    if share is not None:
        start = _searched(action, most, how, share * math.ldexp(rows.total, -action.exponent))
        if start is None:
            return exactly("so many axes are needed that LAPACK is faster")
        most = len(start)
    found = unscaled(sharp(action, most, how, start), action.exponent)
    error = slack(action.size) * found.scale
    if isinstance(action, RowsAction):
        error *= math.sqrt(max(1.0, action.offset / found.scale)) if found.scale else 1.0
    if rows.single and matrix is not None:
        error = max(error, single_error(rows.terms) * rows.total)
    elsewhere = read and 0 < getattr(rows.source, "most", 0) < action.size  # no square of them
    uncertain = found.values[-1] <= error / (SINGLE_RTOL if rows.single else RTOL)

    def doubly(begun: FloatArray | None) -> Spectrum:
        again = read_again(rows, scatter=matrix is not None, double=True)
        better = iterative(again, components, replace(how, start=begun), read=read, share=share)
        return replace(better, passes=better.passes + 1)

    if uncertain and rows.single and rows.source.rereadable:
        return doubly(how.start)
    if uncertain and elsewhere:
        found = replace(found, values=np.where(found.values > error, found.values, 0.0))
    elif uncertain:
        return exactly("wanted variances reach down to the rounding of the scatter")
    if not found.converged and how.budget < math.inf:
        return exactly("the iteration did not converge in the time that LAPACK takes")
    count = most if choose is None else choose(found.values)
    doubt = error + float(found.residuals.max())
    if share is not None and not _settled(found.values, count, share * rows.total, doubt):
        return exactly("the share lies within rounding of that of some number of axes")
    bound = error + rows.rounding
    told = None if how.prove is None else _told(rows, matrix, found, bound, how).first(count)
    where = "rows" if matrix is None else "gram" if rows.wide else "covariance"
    formed = bool(how.form and how.prove)
    axes = Axes(found.values, found.vectors, f"{how.method}({where})", error,
                action.passes + formed if isinstance(action, RowsAction) else 0)
    made = finish(rows, tall, axes, count, told)
    if rows.single and not how.tol and rows.source.rereadable and count < rows.bound and (
            blurred(made, np.maximum(found.residuals[:count], error))):
        return doubly(made.vectors)
    return replace(made, solver=how.method, columns=action.columns, converged=found.converged,
                   residual=float(found.residuals.max()) / found.scale)


def _exactly(rows: CentredRows, components: int, choose: Choice | None, prove: bool | None,
             square: Square | None, reason: str) -> Spectrum:
    """Return the axes by LAPACK, from the scatter if it was formed, else after forming it."""
    if square is not None or rows.wide:
        return replace(lapack(rows, components, choose, prove, square), reason=reason)
    found = lapack(read_again(rows), components, choose, prove)
    return replace(found, passes=found.passes + 1, reason=reason)


def _action(rows: CentredRows, matrix: FloatArray | None, tol: float) -> Action:
    """Return the action of the matrix if there is one, else of the rows."""
    if matrix is None:
        sizes = math.sqrt(rows.total) if rows.scale is None else rows.scale
        small = np.abs(np.frexp(sizes)[1]).max() < SINGLE_EXPONENT and not rows.exponent
        single = rows.single and small and not 0 < tol < SINGLE_TOL
        return RowsAction(rows, np.dtype(np.float32 if single else np.float64))
    return MatrixAction(matrix, matrix.dtype, math.frexp(rows.total)[1])


def _start(rows: CentredRows, how: Iteration, matrix: FloatArray | None) -> FloatArray | None:
    """Return the axes to begin with in the space of the iteration, None if there are none."""
    if how.start is None or (rows.wide and matrix is not None):
        return None
    return how.start if matrix is None else how.start[:, rows.squares > 0]


def unscaled(found: Ritz, exponent: int) -> Ritz:
    """Return the same in the units of the rows."""
    values, residuals = np.ldexp(found.values, exponent), np.ldexp(found.residuals, exponent)
    spread, following, scale = np.ldexp([found.spread, found.next, found.scale], exponent).tolist()
    return replace(found, values=values, residuals=residuals, spread=spread, next=following,
                   scale=scale)


def sharp(action: Action, count: int, how: Iteration, start: FloatArray | None) -> Ritz:
    """Iterate until the smallest wanted value is accurate too, where the tolerance is ours.

    An error of a value is about its residual squared over the gap; relative to the largest value
    that may be nothing, and yet be much to a value far smaller.
    """
    tol, item = how.tol or TOL[action.dtype.itemsize], action.dtype.itemsize
    if how.method == "randomized":
        return how.solve(action, count, how.tol or SKETCH_TOL, start)
    found = how.solve(action, count, tol, start)
    if not found.scale:  # all is 0
        return found
    sharper = max(SHARP[item] * float(found.values[-1]) / found.scale, rounding(action.size))
    worst = float(found.residuals.max()) / found.scale
    if how.tol or not found.converged or worst <= sharper:
        return found
    if item == 4 and sharper < how.reach:
        action.dtype = np.dtype(np.float64)
    return how.solve(action, count, sharper, found.vectors)


def _searched(action: Action, most: int, how: Iteration, target: float) -> FloatArray | None:
    """Return axes whose values sum to more than `target`; None if LAPACK had better do it.

    Ritz values are lower bounds, so a rough iteration is enough to know that they suffice.
    """
    count, start = min(FEW, most), None
    while True:
        found = how.solve(action, count, ROUGH, start)
        enough = np.cumsum(found.values) > target
        if enough.any():
            return found.vectors[:int(np.argmax(enough)) + 1]
        if count == most or count > MANY * action.size or action.columns >= how.budget:
            return None
        count, start = min(2 * count, most), found.vectors


def _settled(values: FloatArray, count: int, target: float, doubt: float) -> bool:
    """Tell whether `count` values sum to more than `target` and fewer do not, whatever rounds."""
    sums = np.cumsum(values)
    less = sums[count - 2] if count > 1 else -math.inf
    return bool(less + count * doubt < target < sums[count - 1] - count * doubt)


def told_of(matrix: FloatArray | None, vectors: FloatArray, found: Ritz, error: float, prove: bool
            ) -> Certificate:
    """Return the certificate of eigenpairs from a matrix that has their eigenvalues.

    `matrix` is A'A or AA' to `error` in norm, or None if there is neither, and then nothing is
    proved; `vectors` are those of its own side, as well as they are known. Images of vectors are
    nearer to the truth than these, so the residuals of both sides count.
    """
    if matrix is None:
        doubt = doubt_of(found.vectors.shape[1], found.scale) + error
        return certificate(found.values, found.residuals, found.spread, doubt, None, "none")
    vectors = np.ascontiguousarray(np.linalg.qr(vectors.T)[0].T)
    values, vectors, moved = rayleigh_ritz(MatrixAction(matrix, matrix.dtype), vectors)
    moved -= values[:, None] * vectors
    apart = np.abs(values - found.values)
    residuals = np.maximum(np.linalg.norm(moved, axis=1), found.residuals) + apart
    spread = max(joint_norm(moved), found.spread) + float(apart.max())
    if prove:
        told = proved(matrix, values, vectors, residuals, spread, found.next, error,
                      definite=True)
    else:
        doubt = doubt_of(len(matrix), found.scale) + error
        told = certificate(values, residuals, spread, doubt, None, "none")
    if len(matrix) < found.vectors.shape[1]:
        told = told.beside_zeros(error)
    return told.around(found.values)


def _told(rows: CentredRows, matrix: FloatArray | None, found: Ritz, error: float, how: Iteration
          ) -> Certificate:
    """Return the certificate, with a proof if it is asked for and there is or shall be a matrix."""
    if matrix is None and how.prove and how.form:
        rows = read_again(rows, double=True)
        tall, matrix = upright(rows)
        vectors = _left(tall, found.vectors) if rows.wide else found.vectors[:, rows.squares > 0]
        found = replace(found, residuals=found.residuals + error, spread=found.spread + error)
        error = slack(len(matrix)) * found.scale + rows.rounding
        return told_of(matrix, vectors, found, error, prove=True)
    if matrix is not None and how.prove:
        told = proved(matrix, found.values, found.vectors, found.residuals, found.spread,
                      found.next, error, definite=True)
        return told.beside_zeros(error) if len(matrix) < rows.mean.size else told
    return told_of(None, found.vectors, found, error, prove=False)


def _left(tall: Tall, vectors: FloatArray) -> FloatArray:
    """Return the images A V', (k, n), of axes of the features."""
    images, start = np.zeros((len(vectors), tall.size)), 0
    for block in tall.blocks():
        images += vectors[:, start:start + len(block)] @ block
        start += len(block)
    return images
