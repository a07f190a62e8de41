"""Rounding bounds: every tolerance in the tests is one of these, or a figure the case states.

Notation: ``eps`` is the spacing of the dtype at 1 (twice the unit roundoff); ``S`` a scatter.
"""

import numpy as np

PANEL = 192  # rows that one accumulator may sum before its result joins a float64 total


def rounding(dtype, n_terms, scale, safety=16):
    """Largest error that summing n_terms products of size scale may leave."""
    return safety * n_terms * np.finfo(dtype).eps * scale


def arithmetic(dtype):
    """Dtype in which rows of `dtype` are multiplied: float32 for float16/32, else float64."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize < 8 else np.float64)


def scatter_error(dtype, rows, scatter, shift_ratio=1.0):
    """Entrywise bound on the error of a scatter of `rows` rows of `dtype`.

    A panel of at most PANEL rows is summed in the arithmetic of the data, so by the
    probabilistic form of the summation bound (Higham & Mary 2019) an entry errs by at most
    sqrt(PANEL) eps sqrt(S_ii S_jj); panels are added in float64, one rounding each. Forming
    row - shift costs eps |row - shift|, which is `shift_ratio` deviations. The factor 2
    leaves room for the rank-one terms of the merge.
    """
    size = np.sqrt(np.diagonal(scatter))
    panels = rows / PANEL + 1
    relative = (np.sqrt(PANEL) * np.finfo(arithmetic(dtype)).eps * max(1.0, shift_ratio)
                + panels * np.finfo(np.float64).eps)
    return 2 * relative * np.outer(size, size)


def eigenvalue_error(features, largest, dtype=np.float64):
    """Bound on every eigenvalue of a `features` square matrix solved backward stably."""
    return rounding(dtype, features, largest, safety=4)


def product_error(dtype, features, rows_size, factor_size):
    """Bound on a length-`features` inner product of a row and a factor, given their norms."""
    return rounding(dtype, np.sqrt(features) + 2, rows_size * factor_size, safety=4)


def assert_orthonormal(vectors, dtype=np.float64):
    """Rows of `vectors` are orthonormal to a small multiple of the dtype's rounding."""
    vectors = np.asarray(vectors, dtype=np.float64)
    drift = np.abs(vectors @ vectors.T - np.eye(len(vectors))).max(initial=0.0)
    assert drift <= rounding(dtype, np.sqrt(vectors.shape[1]) + len(vectors) ** 0.5, 1.0, 4), drift


def subspace_angle(first, second):
    """Sine of the largest angle between the row spaces of two orthonormal matrices."""
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    return float(np.linalg.norm(second - second @ first.T @ first, 2))


def merge_error(found, merges=1):
    """Entrywise bound on what merging adds to the scatter of `found` (Moments), in float64.

    Each merge knows the means to eps |mean| only, so a step between means errs by that much
    and w step step^T by 2 w step eps |mean|; Cauchy-Schwarz over the parts bounds the sum.
    """
    size = np.sqrt(np.diagonal(found.scatter) * found.weight)
    slip = 2 * np.finfo(np.float64).eps * np.abs(found.mean)
    relative = merges * np.finfo(np.float64).eps * np.outer(size, size) / found.weight
    crossed = np.outer(slip, size)
    return relative + crossed + crossed.T + found.weight * np.outer(slip, slip)


def turned(model, variances):
    """Largest angle by which the residual of an iteration may have turned an axis.

    Davis and Kahan: residual over the gap to the nearest of all `variances`.
    """
    if "residual" not in model.report_:
        return 0.0
    gaps = -np.diff(np.append(variances, -variances[0]))[:model.n_components_]
    return 2 * model.report_["residual"] * variances[0] / min(gaps)
