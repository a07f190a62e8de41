"""From rows to principal axes: eigen-decomposition of the scatter, and QR routes behind it.

`lapack` decomposes the scatter, or the Gram matrix of fewer rows than features, and tests at no
cost whether the wanted variances can be trusted; if not, a factor R of the rows is found whose
singular values keep twice the digits. `qr_svd` takes that route at once. Both sides are one
problem: a tall matrix (the centred rows A, or A^T) of which only the small Gram matrix or the
triangular factor is held, and which is read again in blocks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Concatenate, ParamSpec

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cholesky, eigh, qr, svd
from scipy.linalg.lapack import dgejsv, dgeqrf, dsyevd, dtrcon

from fastdr.bases import completed, null_axes
from fastdr.centring import CentredRows, piece, read_again
from fastdr.certificate import EPS, Certificate, judged, slack
from fastdr.scatter import SINGLE_RTOL, blas_error, single_error
from fastdr.tall import Square, Tall, back_project, gram_of, upright, upright_rows
from fastdr.threads import calm_blas
from fastdr.validation import FloatArray

RTOL = 1e-6  # wanted relative accuracy of a variance of float64 data
SMALL = 1 << 21  # entries that one dense QR takes whole
DIVIDE = 2048  # order up to which divide and conquer may have its two squares of workspace
ALONE = 64  # order up to which BLAS multiplies on the calling thread
FEW = 8  # it finds all vectors in the time in which bisection finds an eighth of them
GRADED = 1e6  # ratio of column norms from which the SVD of R uses Jacobi rotations
Choice = Callable[[FloatArray], int]
Others = ParamSpec("Others")


@dataclass(frozen=True)
class Spectrum:
    """Principal axes of centred rows.

    ``values`` (k,) eigenvalues of the scatter, descending, not negative; ``vectors`` (k, d)
    orthonormal rows; ``left_out`` sum of all other eigenvalues; ``total`` the trace; ``error``
    bound on the rounding error of each value; ``rank`` number of values whose root exceeds
    max(n, d) eps times the largest root; ``method`` and ``passes`` (reads after the first);
    ``solver`` that found them, ``reason`` if it is not the one asked for; of an iteration the
    ``columns`` multiplied, the largest ``residual`` and whether it ``converged``; ``certificate``
    of the values, if one was asked for and there is a matrix.
    """

    values: FloatArray
    vectors: FloatArray
    left_out: float
    total: float
    error: float
    rank: int
    method: str
    passes: int
    solver: str = "lapack"
    reason: str = ""
    columns: int = 0
    residual: float | None = None
    converged: bool = True
    certificate: Certificate | None = None

    def first(self, count: int) -> Spectrum:
        """Return the first `count` axes."""
        left_out = self.left_out + float(self.values[count:].sum())
        told = None if self.certificate is None else self.certificate.first(count)
        return replace(self, values=self.values[:count], vectors=self.vectors[:count],
                       left_out=left_out, rank=min(self.rank, count), certificate=told)


@dataclass(frozen=True)
class Axes:
    """Eigenvalues (r,) and unit rows (r, size) of a tall matrix's Gram matrix."""

    values: FloatArray
    vectors: FloatArray
    method: str
    error: float
    passes: int = 0
    relative: bool = False  # each value is accurate relative to itself


def _calm(solve: Callable[Concatenate[CentredRows, Others], Spectrum], alone: int = 0
          ) -> Callable[Concatenate[CentredRows, Others], Spectrum]:
    """Let LAPACK keep to one thread where the matrix is small; see `calm_blas`.

    With matrices up to order `alone` it does so by itself, and to set the limit takes 40 us.
    """
    @wraps(solve)
    def run(rows: CentredRows, /, *others: Others.args, **named: Others.kwargs) -> Spectrum:
        order = min(rows.count, rows.mean.size)
        if order <= alone and not rows.wide:
            return solve(rows, *others, **named)
        with calm_blas(3.0 * order**3):
            return solve(rows, *others, **named)

    return run


@partial(_calm, alone=ALONE)
def lapack(rows: CentredRows, components: int, choose: Choice | None = None,
           prove: bool | None = None, square: Square | None = None) -> Spectrum:
    """Return `components` axes by LAPACK's symmetric eigensolver, checked.

    `choose`, if given, picks the number of components from all eigenvalues (padded with zeros
    to `components`). A value counts as accurate above (4 + sqrt(p)) eps values[0] / 1e-6, p the
    order of the matrix (float32 arithmetic: `single_error` trace / 1e-5). If a wanted one lies
    below, the scatter is summed again in float64 and then the rows are factored (`_factored`).
    `prove` True adds a certificate, False one of residuals alone.
    `square` is what `upright` returned, if it was called. O(n d min(n, d)), usually no further
    pass.
    """
    tall, matrix = square or upright(rows)
    diagonal = np.diagonal(matrix).copy()
    most = rows.bound if choose else min(rows.bound, components)
    values, vectors = eigh_of(matrix, most, keep=prove is True)
    known = np.maximum(values, 0.0), vectors
    values, vectors = known[0][:most], known[1][:most]
    count = choose(_padded(values, components)) if choose else components
    error = slack(tall.size) * float(values.max(initial=0.0))
    if rows.single:
        error = max(error, single_error(rows.terms) * rows.total)
    axes = Axes(values, vectors, "eig(gram)" if rows.wide else "eig(covariance)", error)
    least = values[min(count, rows.bound) - 1] if min(count, rows.bound) else math.inf
    if least <= error / (SINGLE_RTOL if rows.single else RTOL):
        if not tall.rereadable:
            axes = _from_sums(rows, matrix, diagonal, axes)
        elif rows.single:
            return _doubly(rows, components, choose, prove)
        else:
            _restore(matrix, diagonal)
            with calm_blas(3.0 * tall.size**3):
                axes = _factored(tall, matrix, axes)
            known = axes.values, axes.vectors
            if choose:
                count = choose(_padded(axes.values[:rows.bound], components))
    told = None
    if prove is not None and min(count, rows.bound):
        if not prove:
            _restore(matrix, diagonal)
        told = _told(rows, matrix, known, axes.error, count, prove)
    found = finish(rows, tall, axes, count, told)
    if rows.single and tall.rereadable and count < rows.bound and blurred(found, error):
        return _doubly(rows, components, choose, prove)
    return found


def _doubly(rows: CentredRows, components: int, choose: Choice | None, prove: bool | None
            ) -> Spectrum:
    """Return what `lapack` finds in the rows read again, multiplied in float64."""
    found = lapack(read_again(rows, double=True), components, choose, prove)
    return replace(found, passes=found.passes + 1)


def blurred(found: Spectrum, residuals: FloatArray | float) -> bool:
    """Whether what is left out may be, in part, what tilted axes leave of the variances kept.

    An axis of value v with residual r is off by about r / v, which leaves r² / v of it. For
    float32 arithmetic: in float64 that is next to nothing.
    """
    lost = float(np.sum(np.square(residuals) / found.values))
    return lost > SINGLE_RTOL * found.left_out


def _told(rows: CentredRows, matrix: FloatArray, known: tuple[FloatArray, FloatArray],
          error: float, count: int, prove: bool) -> Certificate:
    """Return the certificate of `count` axes of those known; if all are no proof is needed."""
    values, vectors = known
    wanted = min(count, rows.bound)
    following = float(values[wanted]) if len(values) > wanted else -math.inf
    judge = len(values) if prove and len(values) == len(matrix) else wanted
    error += rows.rounding
    told = judged(matrix, values[:judge], vectors[:judge], following, error, prove)
    if len(matrix) < rows.mean.size:
        told = told.beside_zeros(error)
    return told.first(wanted).padded(count, error)


def _from_sums(rows: CentredRows, matrix: FloatArray, diagonal: FloatArray, axes: Axes) -> Axes:
    """As `_factored` for rows that cannot be read again: by a Cholesky factor if there is one.

    Otherwise values that rounding alone may have made count as 0, so that nobody divides by them.
    """
    _restore(matrix, diagonal)
    factor = None if rows.single else cholesky_factor(matrix)
    if factor is None:
        values = np.where(axes.values > axes.error, axes.values, 0.0)
        return replace(axes, values=values, method=axes.method + ", small variances uncertain")
    return _svd_axes(factor, "jacobi(cholesky)", relative=True)


@_calm
def qr_svd(rows: CentredRows, components: int, choose: Choice | None = None,
           prove: bool | None = None) -> Spectrum:
    """Return `components` axes from the SVD of a triangular factor of the rows (TSQR).

    Small variances keep a relative accuracy of eps sqrt(values[0] / value). One further pass,
    two for fewer rows than features; O(n d min(n, d)); memory of a block and two small matrices.
    Arguments as for `lapack`. Raises ValueError if the rows cannot be read again.
    """
    if not rows.source.rereadable:
        raise ValueError("svd_solver='svd' reads the rows twice, but this source can be read "
                         "once only; use svd_solver='lapack'.")
    tall = upright_rows(rows)
    factor = _triangle(tall) if rows.bound else np.zeros((0, tall.size))
    axes = _svd_axes(factor, "svd(R)", 1, rounded=_householder_error(tall))
    count = choose(_padded(axes.values[:rows.bound], components)) if choose else components
    told, doubled = None, replace(rows, single=False)  # which the factor is, whatever the sums were
    if prove is not None and min(count, rows.bound):
        known = axes.values, axes.vectors
        told = _told(doubled, factor.T @ factor, known, axes.error, count, prove)
    return replace(finish(rows, tall, axes, count, told), solver="svd",
                   error=axes.error + doubled.rounding)


def _padded(values: FloatArray, size: int) -> FloatArray:
    """Return `values` with zeros behind, `size` in all."""
    return np.concatenate([values[:size], np.zeros(max(0, size - values.size))])


def eigh_of(matrix: FloatArray, count: int, keep: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return the `count` largest eigenvalues and one or all more, descending, and their unit rows.

    The upper triangle of `matrix` may be destroyed unless it is to be kept, see `_restore`.
    """
    size, failed = len(matrix), 1
    if count == 0:
        return np.zeros(0), np.zeros((0, size))
    count = size if size <= 12 * FEW else min(count + 1, size)
    if size <= 12 * FEW or (count > size // FEW and size <= DIVIDE):
        values, vectors, failed = dsyevd(matrix.T)
    if failed:
        values, vectors = _bisected(matrix, count, keep)
    kept = slice(None, -count - 1, -1)
    return values[kept], np.ascontiguousarray(vectors.T[kept])


def _bisected(matrix: FloatArray, count: int, keep: bool) -> tuple[FloatArray, FloatArray]:
    """Return the `count` largest eigenvalues or all, ascending, and their vectors as columns.

    Where many values agree to rounding, as those of white rows do, LAPACK's bisection (dstebz)
    now and then takes a few out of count and returns the fewer, as a success. Then all are found
    by QR iterations, of which values that agree need next to none.
    """
    size, diagonal = len(matrix), np.diagonal(matrix).copy()
    solve = partial(eigh, lower=True, overwrite_a=not keep, check_finite=False)
    values, vectors = solve(matrix.T, driver="evr", subset_by_index=(size - count, size - 1))
    if len(values) < count:
        _restore(matrix, diagonal)
        values, vectors = solve(matrix.T, driver="ev")
    return values, vectors


def _restore(matrix: FloatArray, diagonal: FloatArray) -> None:
    """Rebuild a symmetric `matrix` from its lower triangle and its `diagonal`."""
    np.fill_diagonal(matrix, diagonal)
    for row in range(len(matrix) - 1):
        matrix[row, row + 1:] = matrix[row + 1:, row]


def _factored(tall: Tall, matrix: FloatArray, axes: Axes) -> Axes:
    """Find all axes to the accuracy of a QR factorisation, the cheapest sound way.

    1. The Cholesky factor of the Gram matrix, if the matrix with unit diagonal is well
       conditioned: one-sided Jacobi then gives each value relative accuracy (Demmel & Veselic
       1992), whatever the units of the columns. No pass.
    2. Small data: Householder QR. One pass.
    3. Cholesky QR of B V^T, V the eigenvectors: the columns are nearly orthogonal, so the factor
       exists even if B is singular, and what V mixed up below sqrt(eps) comes apart. V stands
       where Cholesky QR 2 solves with a triangle (Yamamoto et al. 2015); columns of mere
       rounding are dropped. One pass, repeated once after a shift (Fukaya et al. 2020).
    4. TSQR (Demmel et al. 2012). One pass.
    """
    factor = cholesky_factor(matrix)
    if factor is not None:
        return _svd_axes(factor, "jacobi(cholesky)", relative=True)
    if tall.longest * tall.size <= SMALL:
        return _householder_axes(tall)
    vectors = axes.vectors
    if len(vectors) < tall.size:
        vectors = eigh_of(matrix, tall.size)[1]
    if tall.null is not None:
        vectors = np.asarray(qr(np.vstack([tall.null, vectors]).T, mode="economic")[0].T[1:])
    for passes in (1, 2):
        rotated = gram_of(tall, vectors)
        noise = np.diagonal(rotated) <= slack(tall.size) ** 2 * rotated.max()
        rotated[noise] = rotated[:, noise] = 0.0
        factor = cholesky_factor(rotated)
        if factor is not None:
            axes = _svd_axes(factor, "cholesky-qr", passes, rounded=blas_error(tall.longest))
            return replace(axes, vectors=axes.vectors @ vectors)
        factor = cholesky_factor(rotated, shift=tall.size**1.5 * EPS)
        if factor is None:
            break
        vectors = _jacobi(factor)[1] @ vectors
    return _householder_axes(tall, passes)


def cholesky_factor(matrix: FloatArray, shift: float = 0.0) -> FloatArray | None:
    """Return R with R^T R = `matrix`, or None if its singular values would miss RTOL.

    A `shift` of the diagonal, relative to each entry, lets a singular matrix pass.
    """
    norms = np.sqrt(np.diagonal(matrix))
    divisors = np.where(norms == 0, 1.0, norms)
    scaled = matrix / divisors / divisors[:, None]
    np.fill_diagonal(scaled, 1.0 + shift)
    try:
        factor = cholesky(scaled, check_finite=False, overwrite_a=True)
    except LinAlgError:
        return None
    inverse_condition, _ = dtrcon(np.asfortranarray(factor))
    sound = shift or inverse_condition**2 * RTOL >= slack(len(matrix))
    return np.asarray(factor * norms) if sound else None


@dataclass(frozen=True)
class _Triangle:
    """R of the QR factorisation of some rows; added up, that of them all."""

    factor: FloatArray

    def __add__(self, other: _Triangle) -> _Triangle:
        return _Triangle(_appended(self.factor, [other.factor]))


def _triangle(tall: Tall) -> FloatArray:
    """Return R of the QR factorisation, (min(rows, size), size), blocks appended in order."""
    found: _Triangle = tall.summed(_triangle_of)
    return found.factor


def _taken(tall: Tall) -> int:
    """Return how many rows at least one factorisation takes of many."""
    return max(tall.size, piece(tall.size))


def _householder_error(tall: Tall) -> float:
    """Bound on the norm of what QR of the rows adds to the square of R, relative to its trace.

    Each of `size` reflections errs by that of two products of all rows with one, whose roundings
    do not grow together, and each factorisation adds its own; a square errs by twice as much.
    """
    parts = 1 + tall.longest // _taken(tall)
    rows = min(tall.longest, 2 * _taken(tall)) + tall.size
    return 4 * math.sqrt(tall.size) * parts * blas_error(rows)


def _triangle_of(tall: Tall) -> _Triangle:
    factor = np.zeros((0, tall.size))
    waiting: list[FloatArray] = []
    for block in tall.blocks():
        waiting.append(block)
        if sum(map(len, waiting)) >= _taken(tall):
            factor, waiting = _appended(factor, waiting), []
    return _Triangle(_appended(factor, waiting) if waiting else factor)


def _householder_axes(tall: Tall, passes: int = 0) -> Axes:
    """Return the axes from a QR factorisation of the rows, one more pass over them."""
    return _svd_axes(_triangle(tall), "svd(R)", passes + 1, rounded=_householder_error(tall))


def _appended(factor: FloatArray, blocks: list[FloatArray]) -> FloatArray:
    """Return R of `factor` and `blocks` stacked, by Householder reflections."""
    size = factor.shape[1]
    stacked = np.empty((len(factor) + sum(map(len, blocks)), size), order="F")
    np.concatenate([factor, *blocks], out=stacked)
    packed = dgeqrf(stacked, lwork=64 * size, overwrite_a=1)[0]
    return np.triu(packed[:size])


def _svd_axes(factor: FloatArray, method: str, passes: int = 0, relative: bool = False,
              rounded: float = 0.0) -> Axes:
    """Return the axes of a triangular factor whose square is `rounded` relative to its trace."""
    if not factor.size:
        return Axes(np.zeros(0), np.zeros((0, factor.shape[1])), method, 0.0)
    sizes = np.sqrt(np.einsum("ij,ij->j", factor, factor))
    graded = relative or sizes.max() > GRADED * sizes.min()
    values, vectors = _jacobi(factor) if graded else _svd(factor)
    error = 2 * slack(factor.shape[1]) * float(values[0]) ** 2 + rounded * float(sizes @ sizes)
    return Axes(values**2, vectors, method, error, passes, relative)


def _svd(factor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Singular values, descending, and right vectors as rows."""
    try:
        _, values, vectors = svd(factor, full_matrices=False, check_finite=False)
    except LinAlgError:
        warnings.warn("LAPACK's divide-and-conquer SVD (gesdd) did not converge; QR iteration "
                      "(gesvd) is used.", RuntimeWarning, stacklevel=2)
        _, values, vectors = svd(factor, full_matrices=False, check_finite=False,
                                 lapack_driver="gesvd")
    return values, vectors


def _jacobi(factor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """As `_svd`, by one-sided Jacobi rotations, which respect the scale of each column."""
    rows, size = factor.shape
    square = np.zeros((size, size), order="F")
    square[:rows] = factor
    # jobu=2 lends U as workspace: without it LAPACK 3.12 refuses its own arguments
    values, _, vectors, work, _, info = dgejsv(square, joba=0, jobu=2, jobv=0, jobt=1,
                                               overwrite_a=1)
    if info:
        return _svd(factor)
    return values * (work[0] / work[1]), vectors.T


def finish(rows: CentredRows, tall: Tall | None, axes: Axes, count: int,
           told: Certificate | None = None) -> Spectrum:
    """Cut to `count` axes in feature space, complete the basis, and find what is left out.

    None for `tall`: the axes stand in feature space.
    """
    values = axes.values[:min(count, rows.bound)]
    cut = max(rows.count, rows.mean.size) * EPS * math.sqrt(values.max(initial=0.0))
    rank = int(np.count_nonzero(np.sqrt(values) > cut))
    real = int(np.count_nonzero(values)) if axes.relative else rank
    vectors = np.zeros((real, rows.mean.size))
    if tall is None:
        vectors[:] = axes.vectors[:real]
    elif rows.wide:
        back_project(tall, axes.vectors[:real], vectors)
    else:
        vectors[:, rows.squares > 0] = axes.vectors[:real]
    back = rows.wide and tall is not None
    passes, total = axes.passes + back, rows.total
    if axes.values.size >= rows.bound:
        left_out = float(axes.values[values.size:rows.bound].sum())
    else:
        left_out = total - float(values.sum())
        order = rows.mean.size if tall is None else tall.size
        single = rows.single and tall is not None
        doubt = single_error(rows.terms) / SINGLE_RTOL if single else slack(order) / RTOL
        again = rows.source.rereadable and not getattr(rows.source, "sparse", False)
        if left_out <= doubt * total and again:
            with calm_blas(3.0 * order**3):
                left_out, passes = residual(rows, vectors), passes + 1
    if count > real and tall and not rows.wide and len(axes.vectors) == tall.size:
        null = null_axes(rows.squares == 0, axes.vectors[real:], count - real)
        vectors = np.concatenate([vectors, null])
    return Spectrum(_padded(values, count), completed(vectors, count), max(left_out, 0.0), total,
                    axes.error + rows.rounding, rank, axes.method, passes, certificate=told)


def residual(rows: CentredRows, vectors: FloatArray) -> float:
    """Return the weighted sum of squared distances of the rows from the span of `vectors`."""
    return float(rows.summed(partial(_residual, vectors[:, rows.squares > 0])))


def _residual(axes: FloatArray, rows: CentredRows) -> float:
    total = 0.0
    for block in rows.blocks():
        block -= (block @ axes.T) @ axes
        total += float(np.einsum("ij,ij->", block, block))
    return total
