"""Fisher's directions: S_B w = λ S_W w, solved from the side that is small.

S_W is never inverted. Tall data: its Cholesky factor whitens the class means, and their singular
vectors are the directions. Where the factor is too ill-conditioned, or columns depend on each
other, the principal axes of the class-centred rows take its place, found by `solvers.lapack`
with its accuracy test and QR behind it. Fewer rows than features: the same through the Gram
matrix of the rows; a ridge acts outside their span as well, without a matrix of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, eigh, solve_triangular, svd
from scipy.linalg.lapack import dtrcon

from fastdr.centring import CentredRows, piece
from fastdr.certificate import slack
from fastdr.solvers import RTOL, cholesky_factor, lapack
from fastdr.sources import BlockSource
from fastdr.threads import calm_blas
from fastdr.validation import FloatArray
from fastdr.within import Within

STEPS = 1000  # of conjugate gradients, at most
CLOSE, ENOUGH = 1e-13, 1e-9  # relative residual at which they stop, and that will do


@dataclass(frozen=True)
class Directions:
    """Solutions of S_B w = λ S_W w with λ > 0.

    ``values`` (k,) λ, descending: variance between classes over variance within; ``vectors``
    (k, d) rows w with wᵀ S_W w = 1, mutually orthogonal in S_W; ``rank`` of S_W; ``error``
    relative rounding error of whitened means, or the residual of an iteration; ``method``;
    ``passes`` over the rows.
    """

    values: FloatArray
    vectors: FloatArray
    rank: int
    error: float
    method: str
    passes: int


@dataclass(frozen=True)
class _Axes:
    """Principal axes V (r, d) of rows with scaled columns, known by what they do.

    ``values`` (r,) variances along them; ``inner(M)`` is M Vᵀ, ``outer(W)`` is W V; ``error``
    relative, of rows whitened by them.
    """

    values: FloatArray
    inner: Callable[[FloatArray], FloatArray]
    outer: Callable[[FloatArray], FloatArray]
    method: str
    passes: int
    error: float


def directions(within: Within, between: FloatArray, tol: float) -> Directions:
    """Return the discriminant directions of classes whose centred means are `between`.

    `between` (C, d) has rows √prior (mean - overall mean), so S_B = betweenᵀ between. Columns
    are scaled to unit deviation within classes; axes of deviation `tol` or less are left out.
    O(d³/3 + C d²) and no pass, or O(n² d) and two passes for fewer rows than features.
    """
    if within.action is not None:
        return _by_action(within, between)
    if within.matrix is None and within.ridge is not None:
        return _by_axes_and_ridge(within, between)
    order = min(within.squares.size, len(within.weights))
    if within.matrix is not None:
        with calm_blas(order**3 / 3):
            found, axes = _by_cholesky(within, between, tol), None
    else:
        gram = _gram(within, within.scale)
        with calm_blas(order**3 / 3):
            found = _by_gram(within, gram, between, tol)
        axes = None if found else _gram_axes(within, gram, within.scale, tol)
    if found is not None:
        return found
    return _by_axes(within.scale, between, axes or _spectrum_axes(within, tol))


def _by_cholesky(within: Within, between: FloatArray, tol: float) -> Directions | None:
    """Whiten by the factor R of S = RᵀR; None if it is not to be trusted or rank is in doubt."""
    assert within.matrix is not None
    varying = np.flatnonzero(within.squares > 0)
    every = varying.size == within.squares.size
    factor = cholesky_factor(within.matrix if every else within.matrix[np.ix_(varying, varying)])
    if factor is None:
        return None
    scaled = np.asfortranarray(factor / within.scale[varying])
    inverse_condition, _ = dtrcon(scaled)
    least = inverse_condition * np.abs(scaled).sum(axis=0).max() / math.sqrt(varying.size)
    if least <= tol:
        return None
    means = solve_triangular(factor, between[:, varying].T, trans="T", check_finite=False).T
    values, turned = _separated(means, slack(varying.size) / inverse_condition)
    vectors = np.zeros((len(values), within.squares.size))
    vectors[:, varying] = solve_triangular(factor, turned.T, check_finite=False).T
    lost = within.cancelled(within.scale, varying.size)
    error = _formed_error(varying.size + len(within.weights), inverse_condition**-2) * lost
    return Directions(values, vectors, varying.size, error, "cholesky", 0)


def _separated(means: FloatArray, error: float) -> tuple[FloatArray, FloatArray]:
    """Squared singular values and right vectors of whitened means, those above rounding.

    Means are in units of the deviation within classes, so what is below `error` is rounding
    even if all of them are. Being centred, C of them have rank C - 1.
    """
    if not means.size:
        return np.zeros(0), np.zeros((0, means.shape[1]))
    _, sizes, turned = svd(means, full_matrices=False, check_finite=False)
    sizes = sizes[:len(means) - 1]
    count = int(np.count_nonzero(sizes > error * max(1.0, sizes.max(initial=0.0))))
    return sizes[:count] ** 2, turned[:count]


def _by_axes(scale: FloatArray, between: FloatArray, axes: _Axes) -> Directions:
    """Whiten by principal axes; what lies outside their span is left out."""
    deviations = np.sqrt(axes.values)
    values, turned = _separated(axes.inner(between / scale) / deviations,
                                _error(axes.values, scale.size))
    vectors = axes.outer(turned / deviations) / scale
    return Directions(values, vectors, len(axes.values), axes.error, axes.method, axes.passes)


def _by_axes_and_ridge(within: Within, between: FloatArray) -> Directions:
    """Whiten in columns scaled so that the ridge is I.

    By I - Vᵀ diag(1 - (1 + λ)^-1/2) V, the inverse root of Vᵀ diag(λ) V + I: axes that are mere
    rounding have no weight in it, and none is divided by.
    """
    assert within.ridge is not None
    scale = np.sqrt(within.ridge)
    plain = replace(within, ridge=None, squares=within.ridge)
    gram = _gram_axes(plain, _gram(plain, scale), scale, 0.0, least=1.0)
    axes = gram or _spectrum_axes(plain, 0.0, least=1.0)
    roots = np.sqrt(axes.values + 1)
    share = axes.values / (roots * (roots + 1))

    def whitened(rows: FloatArray) -> FloatArray:
        return rows - axes.outer(axes.inner(rows) * share)

    values, turned = _separated(whitened(between / scale), _error(
        np.append(axes.values + 1, 1.0), scale.size))
    return Directions(values, whitened(turned) / scale, scale.size, axes.error,
                      axes.method + " + ridge", axes.passes + 2 * (axes is gram))


def _by_action(within: Within, between: FloatArray) -> Directions:
    """Solve S M = betweenᵀ by conjugate gradients, S known by its action on vectors alone.

    All classes at once, one action for as many vectors; columns are scaled to unit deviation.
    The directions follow from betweenᵀ M, of order C: they are those of spectral regression (Cai,
    He & Han 2008), whose ridge and total scatter span the same space.
    """
    scale, varying = within.scale, within.squares > 0
    right = np.where(varying, between / scale, 0.0)
    assert within.action is not None
    action, ridge = within.action, 0.0 if within.ridge is None else within.ridge / scale**2

    def times(vectors: FloatArray) -> FloatArray:
        found = action(vectors / scale, within.weights) / scale + ridge * vectors
        return np.where(varying, found, 0.0)

    solved, steps, residual = _conjugate_gradients(times, right)
    if residual > ENOUGH:
        raise ValueError(f"the within-class scatter of {scale.size} features is too "
                         f"ill-conditioned to solve with by products alone: a residual of "
                         f"{residual:.0e} is left after {steps} of them. Give shrinkage=, such as "
                         "0.01.")
    inner = right @ solved.T
    values, turn = eigh((inner + inner.T) / 2, check_finite=False)
    values, turn = values[:0:-1], turn[:, :0:-1]  # centred means: the least is 0
    error = max(residual, slack(scale.size))
    count = int(np.count_nonzero(values > error * max(1.0, values.max(initial=0.0))))
    vectors = (turn[:, :count] / np.sqrt(values[:count])).T @ solved / scale
    return Directions(values[:count], vectors, int(np.count_nonzero(varying)), error,
                      "conjugate gradients", 1 + steps * math.ceil(len(between) / 8))


def _conjugate_gradients(times: Callable[[FloatArray], FloatArray], right: FloatArray
                         ) -> tuple[FloatArray, int, float]:
    """Solve for rows `right` (k, d), each by steps of its own (Hestenes & Stiefel 1952).

    Returns the solutions, the steps and the largest residual relative to its row.
    """
    solved, rest = np.zeros_like(right), right.copy()
    towards, sizes = rest.copy(), np.einsum("ij,ij->i", rest, rest)
    first, steps = np.where(sizes > 0, sizes, 1.0), 0
    while steps < STEPS and (live := sizes > CLOSE**2 * first).any():
        steps += 1
        image = times(towards)
        curve = np.einsum("ij,ij->i", towards, image)
        length = np.divide(sizes, curve, out=np.zeros_like(sizes), where=live & (curve > 0))
        solved += length[:, None] * towards
        rest -= length[:, None] * image
        fresh = np.einsum("ij,ij->i", rest, rest)
        towards = rest + np.divide(fresh, sizes, out=np.zeros_like(sizes), where=live)[:, None] * (
            towards)
        sizes = np.where(live, fresh, sizes)
    rest = right - times(solved)
    residual = float(np.sqrt(np.einsum("ij,ij->i", rest, rest) / first).max())
    return solved, steps, residual


def _formed_error(terms: int, condition: float) -> float:
    """Return the relative error of what is whitened by a matrix of squares, of this `condition`.

    `terms` are those of its entries and of its factor; of rounding that is random their root
    counts (Higham & Mary 2019).
    """
    return slack(terms) * condition


def _error(values: FloatArray, features: int) -> float:
    """Return the relative error of what is whitened by the factors of rows."""
    condition = math.sqrt(values[0] / values[-1]) if values.size else 1.0
    return slack(features) * condition


def _kept(values: FloatArray, tol: float, order: int) -> int:
    """Return how many variances count: deviation above `tol` and above rounding."""
    floor = max(tol, order * np.finfo(float).eps * math.sqrt(values.max(initial=0.0)))
    return int(np.count_nonzero(np.sqrt(values) > floor))


def _spectrum_axes(within: Within, tol: float, least: float = 0.0) -> _Axes:
    """Axes of the class-centred rows by `solvers.lapack`; a ridge stands as d more rows.

    Of a ridge that is not among them, `least` is to be added to their variances.
    """
    features, scale = within.squares.size, within.scale
    weights, blocks = within.weights, within.blocks
    if within.ridge is not None:
        weights = np.concatenate([weights, np.ones(features)])

    def rows() -> Iterator[FloatArray]:
        if blocks is None:
            return
        for block in blocks():
            block[:, within.squares == 0] = 0.0
            yield block
        if within.ridge is not None:
            for start in range(0, features, piece(features)):
                block = np.zeros((min(piece(features), features - start), features))
                at = np.arange(len(block))
                block[at, start + at] = np.sqrt(within.ridge[start:start + len(block)])
                yield block

    source = BlockSource(rows, features, len(weights), rereadable=blocks is not None)
    matrix = within.matrix
    if matrix is not None:
        matrix = matrix / scale
        matrix /= scale[:, None]
    centred = CentredRows(source, weights, np.zeros(features), within.squares / scale**2, matrix,
                          scale, len(weights), 1.0, 1.0, matrix is None, False)
    order = max(features, len(weights))

    def wanted(values: FloatArray) -> int:
        """Count those that rounding may have taken below `tol`, too: the rows will tell."""
        doubt = slack(min(features, len(weights))) * values.max(initial=0.0)
        return len(values) if tol**2 < doubt else _kept(values, tol, order)

    found = lapack(centred, centred.bound, wanted)
    found = found.first(_kept(found.values, tol, order))
    values = found.values
    error = _error(np.append(values + least, least) if least else values, features)
    if values.size and found.method.startswith(("eig", "jacobi")):
        error = _formed_error(features + len(weights), values[0] / (least or values[-1]))
    return _Axes(values, lambda M: M @ found.vectors.T, lambda W: W @ found.vectors,
                 found.method, found.passes, error)


def _gram(within: Within, scale: FloatArray) -> FloatArray:
    """Gram matrix (n, n) of the weighted rows in scaled columns."""
    assert within.columns is not None
    matrix = within.columns.gram(np.where(within.squares > 0, 1 / scale, 0.0))
    root = np.sqrt(within.weights)
    matrix *= root
    matrix *= root[:, None]
    return matrix


def _by_gram(within: Within, gram: FloatArray, between: FloatArray, tol: float
             ) -> Directions | None:
    """Whiten through the Cholesky factor of the Gram matrix G = A Aᵀ of fewer rows A.

    G vanishes only on the weighted indicators of the classes, so with these filled in it has a
    factor, and pinv(A) = Aᵀ G⁻¹ whitens. None if that is not to be trusted.
    """
    assert within.columns is not None
    assert within.codes is not None
    root = np.sqrt(within.weights)
    indicators = np.zeros((len(root), len(between)))
    indicators[np.arange(len(root)), within.codes] = root
    indicators /= np.sqrt(np.einsum("ij,ij->j", indicators, indicators))
    filled = indicators @ indicators.T
    filled *= np.trace(gram) / len(gram)
    filled += gram
    factor = cholesky_factor(filled)
    if factor is None:
        return None
    factor = np.asfortranarray(factor)
    inverse_condition, _ = dtrcon(factor)
    if inverse_condition * np.abs(factor).sum(axis=0).max() / math.sqrt(len(root)) <= tol:
        return None
    scale, varying = within.scale, within.squares > 0
    error = _formed_error(len(root) + scale.size, inverse_condition**-2)
    error *= within.cancelled(scale, np.trace(gram))
    if error > RTOL:
        return None
    means = within.columns.inner(np.where(varying, between / scale**2, 0.0)) * root
    means -= (means @ indicators) @ indicators.T
    values, turned = _separated(cho_solve((factor, False), means.T).T,
                                slack(len(root)) / inverse_condition**2)
    turned -= (turned @ indicators) @ indicators.T
    left = cho_solve((factor, False), turned.T).T * root
    vectors = np.where(varying, within.columns.product(left) / scale**2, 0.0)
    return Directions(values, vectors, len(root) - len(between), error, "cholesky(gram)", 3)


def _gram_axes(within: Within, gram: FloatArray, scale: FloatArray, tol: float,
               least: float = 0.0) -> _Axes | None:
    """Axes of fewer rows than features by their Gram matrix, never formed themselves.

    None if rounding may be more than RTOL of the least variance that counts, or of `least`: what
    lies so far below a ridge that it is rounding does no harm.
    """
    assert within.columns is not None
    columns, varying, root = within.columns, within.squares > 0, np.sqrt(within.weights)
    values, vectors = eigh(gram, check_finite=False, driver="evd")
    values, vectors = np.maximum(values[::-1], 0.0), vectors.T[::-1]
    lost = within.cancelled(scale, np.trace(gram))
    noise = slack(len(root)) * values[0] * lost
    count = int(np.count_nonzero(values > (noise if least else tol**2)))
    floor = least if least else values[count - 1] if count else math.inf
    doubtful = bool(noise > RTOL * floor or (not least and tol**2 < noise))
    if doubtful and within.blocks is not None:
        return None
    if doubtful:  # rows that are never made dense cannot be factored
        count = int(np.count_nonzero(values > noise))
    values = values[:count]
    left = vectors[:count] / np.sqrt(values)[:, None] * root
    factor = np.where(varying, 1 / scale, 0.0)
    return _Axes(values, lambda M: columns.inner(M * factor) @ left.T,
                 lambda W: columns.product(W @ left) * factor,
                 "eig(gram)" + ", small variances uncertain" * doubtful, 3,
                 _formed_error(len(root) + scale.size, values[0] / floor if count else 1.0) * lost)
