"""Linear subspaces of R^n, spanned by any basis: coordinates, projections, complements, angles."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import svd
from numpy.typing import ArrayLike
from scipy.linalg import qr, solve_triangular

from fastdr.operators import project, reconstruct
from fastdr.sources import ArraySource
from fastdr.validation import (
    AccuracyWarning,
    AnyArray,
    FloatArray,
    as_matrix,
    check_masks,
    check_square,
    raise_not_finite,
    read_only,
    working_dtype,
)


class _Factors(NamedTuple):
    """basis[:, order] = orthonormal upper diag(length 2**exponent), ranks below rounding cut."""

    orthonormal: FloatArray
    upper: FloatArray
    order: AnyArray
    length: FloatArray
    exponent: AnyArray


@dataclass(frozen=True, eq=False)
class Subspace:
    """The span of the columns of a basis, which need be neither orthogonal nor independent.

    Points are rows, as everywhere: (n,) for one, (N, n) for a batch. Results have the working
    dtype of the points: float32 for float32 and float16, else float64.

    Parameters
    ----------
    basis : (n, m) array, or (n,) for a line
        Finite real numbers; the columns span the subspace. No column at all spans the origin.
    angle_error : float, optional
        Radians by which the span may be off; by default what rounding of the entries may turn it.

    Attributes
    ----------
    basis : (n, m) read-only, float64 or float32.
    orthonormal : (n, dimension) float64, read-only: an orthonormal basis of the same span.
    dimension : int, number of independent columns.
    features : int, n.
    deficient : bool, whether `dimension` is less than m.

    Warns
    -----
    AccuracyWarning
        If columns are dependent: coordinates are then not unique.

    Notes
    -----
    A column counts as dependent if, scaled to length 1, it lies within max(n, m) eps of the span
    of the others (QR with column pivoting; eps of the dtype of the basis), so the units of the
    columns do not matter. O(n m min(n, m)).

    Examples
    --------
    >>> import fastdr
    >>> plane = fastdr.Subspace([[1, 0], [1, 1], [1, 2]])
    >>> plane.coordinates([6, 0, 0]).round(12)
    array([ 5., -3.])
    >>> plane.project([6, 0, 0]).round(12)
    array([ 5.,  2., -1.])
    """

    basis: AnyArray
    angle_error: float = math.nan

    def __post_init__(self) -> None:
        """Check the basis and factor it."""
        check_masks(self.basis, "basis")
        given = np.asarray(self.basis)
        if given.ndim == 1 and given.dtype != object:
            given = given[:, None]
        if given.ndim == 2 and given.shape[1] == 0 < given.shape[0]:
            given = np.zeros(given.shape)
        else:
            given = as_matrix(given, "basis")
            raise_not_finite(given, "basis")
        object.__setattr__(self, "basis", read_only(given.astype(working_dtype(given.dtype))))
        if not (math.isnan(self.angle_error) or 0 <= self.angle_error <= math.pi / 2):
            raise ValueError(f"angle_error={self.angle_error!r} must be an angle from 0 to pi/2 "
                             "radians.")
        if math.isnan(self.angle_error):
            values = svd(self._factors.upper, compute_uv=False)
            worst = self._rounding * (values[0] / values[-1] if values.size else 1.0)
            object.__setattr__(self, "angle_error", float(min(worst, math.pi / 2)))
        if self.deficient:
            warnings.warn(
                f"{self.basis.shape[1]} columns span only {self.dimension} dimension(s): "
                "coordinates are not unique, and those of least length are returned.",
                AccuracyWarning, stacklevel=3)

    @cached_property
    def _factors(self) -> _Factors:
        basis = self.basis.astype(np.float64)
        peak = np.abs(basis).max(axis=0, initial=0.0)
        exponent = np.frexp(np.where(peak == 0, 1.0, peak))[1]
        basis = np.ldexp(basis, -exponent)  # lengths neither overflow nor vanish
        length = np.sqrt(np.einsum("ij,ij->j", basis, basis))
        length[length == 0] = 1.0
        if not length.size:
            return _Factors(read_only(basis), np.zeros((0, 0)), exponent, length, exponent)
        Q, upper, order = qr(basis / length, mode="economic", pivoting=True)
        rank = int(np.count_nonzero(np.abs(np.diagonal(upper)) > self._rounding))
        return _Factors(read_only(Q[:, :rank]), upper[:rank], order, length[order],
                        exponent[order])

    @property
    def _rounding(self) -> float:
        return int(max(self.basis.shape)) * float(np.finfo(self.basis.dtype).eps)

    @property
    def orthonormal(self) -> FloatArray:
        """Orthonormal columns of the same span, (n, dimension)."""
        return self._factors.orthonormal

    @property
    def features(self) -> int:
        """Entries of a point."""
        return int(self.basis.shape[0])

    @property
    def dimension(self) -> int:
        """Number of independent columns."""
        return int(self.orthonormal.shape[1])

    @property
    def deficient(self) -> bool:
        """Whether some columns depend on the others."""
        return self.dimension < int(self.basis.shape[1])

    def coordinates(self, X: ArrayLike) -> AnyArray:
        """Return the coordinates c of the projections, B c = projection, (m,) or (N, m).

        These solve the normal equations BᵀB c = Bᵀx, but through QR, which squares no condition
        number; of dependent columns, the solution of least length. O(n m) a point.

        Raises ValueError for points of another length, NaN or infinity, and for coordinates
        that are.

        Examples
        --------
        >>> Subspace([[2, 0], [0, 1], [0, 0]]).coordinates([6.0, 5.0, 4.0])
        array([3., 5.])
        """
        points, single = self._points(X)
        _, upper, order, length, exponent = self._factors
        scores = self._scores(points).astype(np.float64).T
        solved = np.zeros((len(points), order.size))
        with np.errstate(over="ignore", invalid="ignore"):
            if self.deficient and self.dimension:
                level = int(exponent.max())  # least length in the units of the given columns
                space, lower = qr((upper * np.ldexp(length, exponent - level)).T, mode="economic")
                found = space @ np.ldexp(solve_triangular(lower, scores, trans="T"), -level)
                solved[:, order] = found.T
            elif self.dimension:
                found = solve_triangular(upper, scores).T / length
                solved[:, order] = np.ldexp(found, -exponent)
            solved = solved.astype(working_dtype(points.dtype))
        return _shaped(_finite(solved), single)

    def project(self, X: ArrayLike) -> AnyArray:
        """Return the nearest points of the subspace, (n,) or (N, n). O(n dimension) a point.

        Examples
        --------
        >>> Subspace([[2, 0], [0, 1], [0, 0]]).project([6.0, 5.0, 4.0])
        array([6., 5., 0.])
        """
        points, single = self._points(X)
        return _shaped(self._project(points), single)

    def decompose(self, X: ArrayLike) -> tuple[AnyArray, AnyArray]:
        """Return the parts of points inside the subspace and orthogonal to it; they add up.

        The second part is projected out twice, so it is orthogonal to the subspace to rounding
        of its own length, however close the point lies ("twice is enough", Kahan and Parlett).

        Examples
        --------
        >>> Subspace([[2, 0], [0, 1], [0, 0]]).decompose([6.0, 5.0, 4.0])
        (array([6., 5., 0.]), array([0., 0., 4.]))
        """
        points, single = self._points(X)
        inside, outside = self._split(points)
        return _shaped(inside, single), _shaped(outside, single)

    def distance(self, X: ArrayLike) -> Any:
        """Return the Euclidean distance of points from the subspace, a float or (N,) float64.

        Examples
        --------
        >>> Subspace([[2, 0], [0, 1], [0, 0]]).distance([[6.0, 5.0, 4.0], [1.0, 0.0, 0.0]])
        array([4., 0.])
        """
        points, single = self._points(X)
        distances = np.concatenate([lengths(self._split(block)[1])
                                    for block in ArraySource(points).blocks()])
        return float(distances[0]) if single else distances

    def projector(self) -> FloatArray:
        """Return the matrix P = B(BᵀB)⁻¹Bᵀ of the projection, (n, n), symmetric, P² = P.

        Raises ValueError beyond 32768 features; `project` needs no such matrix.

        Examples
        --------
        >>> Subspace([[1], [1]]).projector().round(12)
        array([[0.5, 0.5],
               [0.5, 0.5]])
        """
        check_square(self.features, "project() gives the same product without the matrix.")
        matrix: FloatArray = self.orthonormal @ self.orthonormal.T
        return matrix

    def complement(self) -> Subspace:
        """Return the orthogonal complement: all directions orthogonal to this subspace.

        Its basis is an n x (n - dimension) matrix; O(n² dimension).

        Examples
        --------
        >>> plane = Subspace([[1, 0], [0, 1], [0, 0]])
        >>> plane.complement().distance([6.0, 8.0, 5.0])
        10.0
        """
        whole = qr(self.orthonormal, mode="full")[0] if self.dimension else np.eye(self.features)
        return Subspace(whole[:, self.dimension:], self.angle_error)

    def angles(self, other: Subspace) -> FloatArray:
        """Return the principal angles to `other`, ascending, radians in [0, pi/2].

        Returns
        -------
        (min of the dimensions,) float64
            Accurate to rounding for small and large angles alike: cosines are the singular
            values of Q₁ᵀQ₂ (Björck & Golub 1973), but where the cosine is near 1 and tells
            little, sines are the singular values of Q₂ - Q₁Q₁ᵀQ₂ (Knyazev & Argentati 2002).

        Examples
        --------
        >>> import fastdr
        >>> bool(fastdr.Subspace([1, 0]).angles(fastdr.Subspace([1, 1e-12]))[0] == 1e-12)
        True
        """
        large, small = self._ordered(other)
        inner = large.orthonormal.T @ small.orthonormal
        outside = small.orthonormal - large.orthonormal @ inner
        cosines = np.minimum(svd(inner, compute_uv=False), 1.0)  # descending: angles ascend
        sines = np.minimum(svd(outside, compute_uv=False)[::-1], 1.0)
        angles: FloatArray = np.where(cosines**2 < 0.5, np.arccos(cosines), np.arcsin(sines))
        return angles

    def intersection(self, other: Subspace, tolerance: float | None = None) -> Subspace:
        """Return the directions common to both: those at an angle of at most `tolerance`.

        `tolerance` is in radians; by default what rounding of both bases may explain. The
        dimensions of intersection and `union` add up to those of the two subspaces.

        Examples
        --------
        >>> floor, wall = Subspace([[1, 0], [0, 1], [0, 0]]), Subspace([[1, 0], [0, 0], [0, 1]])
        >>> floor.intersection(wall).project([2.0, 3.0, 4.0]).round(12)
        array([2., 0., 0.])
        """
        _, small, _, right, common = self._common(other, tolerance)
        return Subspace(small.orthonormal @ right[common].T, self._both(other))

    def union(self, other: Subspace, tolerance: float | None = None) -> Subspace:
        """Return the span of both together, U + W; see `intersection` for `tolerance`.

        Examples
        --------
        >>> Subspace([[1], [0], [0]]).union(Subspace([[1], [1], [0]])).dimension
        2
        """
        large, _, left, _, common = self._common(other, tolerance)
        whole = np.concatenate([large.orthonormal, left[:, ~common]], axis=1)
        return Subspace(np.linalg.qr(whole)[0], self._both(other))

    def _common(self, other: Subspace, tolerance: float | None
                ) -> tuple[Subspace, Subspace, FloatArray, FloatArray, Any]:
        """Principal directions of the smaller subspace, and which of them lie in the larger."""
        if tolerance is not None and not 0 <= tolerance < math.pi / 2:
            raise ValueError(f"tolerance={tolerance!r} must be an angle of at least 0 and less "
                             "than pi/2 radians.")
        large, small = self._ordered(other)
        outside = small.orthonormal - large.orthonormal @ (
            large.orthonormal.T @ small.orthonormal)
        left, sines, right = svd(outside, full_matrices=False)
        common = sines <= math.sin(self._both(other) if tolerance is None else tolerance)
        surplus = large.dimension + small.dimension - self.features
        common[common.size - max(surplus, 0):] = True  # R^n has no room for more
        return large, small, left, right, common

    def _both(self, other: Subspace) -> float:
        """Angle that rounding of both bases may explain; each part adds its own."""
        return min(4 * (self.angle_error + other.angle_error), math.pi / 4)

    def _ordered(self, other: Subspace) -> tuple[Subspace, Subspace]:
        if not isinstance(other, Subspace):
            raise TypeError(f"other is {type(other).__name__}; expected a Subspace.")
        if other.features != self.features:
            raise ValueError(f"the subspaces lie in R^{self.features} and R^{other.features}; "
                             "they must have equal numbers of features.")
        return (self, other) if self.dimension >= other.dimension else (other, self)

    def _points(self, X: ArrayLike) -> tuple[AnyArray, bool]:
        """Return points as rows, and whether a single one was given."""
        single = np.ndim(X) == 1 and not hasattr(X, "tocsr")
        points = as_matrix(np.asanyarray(X)[None] if single else X)
        if points.shape[1] != self.features:
            raise ValueError(f"X has {points.shape[1]} features, but the subspace lies in "
                             f"R^{self.features}; expected ({self.features},) or "
                             f"(N, {self.features}).")
        return points, single

    def _scores(self, points: AnyArray) -> AnyArray:
        """Coordinates in the orthonormal basis; refuses NaN and infinity."""
        return project(points, self.orthonormal.T)

    def _project(self, points: AnyArray) -> AnyArray:
        scores = self._scores(points)
        if not self.dimension:
            return np.zeros(points.shape, working_dtype(points.dtype))
        return reconstruct(scores, self.orthonormal.T)

    def _split(self, points: AnyArray) -> tuple[AnyArray, AnyArray]:
        inside = self._project(points)
        with np.errstate(over="ignore"):
            outside = _finite(points.astype(inside.dtype) - inside)
        rest = self._project(outside)
        return inside + rest, outside - rest


def _shaped(values: AnyArray, single: bool) -> AnyArray:
    return values[0] if single else values


def _finite(values: AnyArray) -> AnyArray:
    """Return results of finite points; refuse them where numbers end."""
    if not np.isfinite(values).all():
        raise ValueError(f"a point of X has a result that leaves the range of {values.dtype}: "
                         f"numbers up to {np.finfo(values.dtype).max:.1e} are allowed. Scale the "
                         "points.")
    return values


def unit_rows(rows: AnyArray) -> tuple[FloatArray, FloatArray]:
    """Return rows of length 1 and the lengths, whose squares need not exist; zero rows stay."""
    units = rows.astype(np.float64, order="C")
    peaks = np.abs(units).max(axis=1, initial=0.0)
    units /= np.where(peaks > 0, peaks, 1.0)[:, None]
    sizes = np.sqrt(np.einsum("ij,ij->i", units, units))
    units /= np.where(sizes > 0, sizes, 1.0)[:, None]
    return units, peaks * sizes


def lengths(rows: AnyArray) -> FloatArray:
    """Return Euclidean lengths whose squares need not exist."""
    return unit_rows(rows)[1]
