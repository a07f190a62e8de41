"""Orthonormal rows: made orthonormal in place, and completed to more of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, qr, solve_triangular

from fastdr.validation import FloatArray


def orthonormalise(rows: FloatArray) -> None:
    """Make nearly orthogonal `rows` orthonormal, in place; earlier rows keep their directions.

    Cholesky QR twice (Yamamoto et al. 2015), a few thousand columns at a time.
    """
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    for _ in range(2):
        lower = cholesky(rows @ rows.T, lower=True, check_finite=False)
        for first in range(0, rows.shape[1], 4096):
            part = rows[:, first:first + 4096]
            part[...] = solve_triangular(lower, part, lower=True, check_finite=False)


def completed(rows: FloatArray, count: int) -> FloatArray:
    """Append orthonormal rows up to `count`, the same for every basis of the span of `rows`.

    Each is the unit vector farthest from the span so far (ties: lowest index), made orthogonal.
    """
    known, features = rows.shape
    if known >= count:
        return rows
    result = np.concatenate([rows, np.zeros((count - known, features))])
    outside = 1.0 - np.einsum("ij,ij->j", rows, rows)
    for row in range(known, count):
        index = int(np.argmax(outside > (1 - 1e-9) * outside.max()))
        new = result[row]
        new[index] = 1.0
        if result[:row, index].any():
            for _ in range(2):  # twice is enough
                new -= (result[:row] @ new) @ result[:row]
            new /= math.sqrt(new @ new)
        outside -= new**2
    return result


def null_axes(constant: NDArray[np.bool_], basis: FloatArray, count: int) -> FloatArray:
    """Return `count` of the rows that `completed` would append, given a `basis` of them all.

    `basis` (m, p) lacks the `constant` columns, whose unit vectors come first; the others are
    rows of R in a QR of `basis` with pivoting, which picks the same columns in O(m^2 p).
    """
    first = np.flatnonzero(constant)[:count]
    result = np.zeros((min(count, first.size + len(basis)), constant.size))
    result[np.arange(first.size), first] = 1.0
    if len(result) > first.size:
        upper, order = qr(basis, mode="r", pivoting=True, check_finite=False)
        turned = np.empty_like(basis)
        turned[:, order] = upper
        result[first.size:, ~constant] = turned[:len(result) - first.size]
    return result
