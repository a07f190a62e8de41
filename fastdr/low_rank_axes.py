"""Principal axes of rows of which a factor of the scatter is left, and what truncation may hide."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fastdr.bases import orthonormalise
from fastdr.centring import CentredRows
from fastdr.certificate import doubt_of, tracked
from fastdr.low_rank import LowRankMoments, principal, rotated
from fastdr.solvers import Axes, Spectrum, finish


def low_rank_spectrum(total: LowRankMoments, rows: CentredRows, count: int) -> Spectrum:
    """Return `count` axes of `rows`, which `centred_moments` made of `total`, and a certificate.

    A variance lies at most ``total.bound`` over the divisor above the one found. Dividing columns
    by deviations multiplies that by the largest of their inverse squares.
    """
    total, stretch = total.scaled(rows.exponent), 1.0
    factor = total.factor
    if not rows.estimated:
        step = (total.mean - rows.mean) + total.rest
        factor = np.concatenate([factor, math.sqrt(total.weight) * step[None]])
    if rows.scale is not None:
        factor = factor / rows.scale
        stretch = float(rows.scale[rows.squares > 0].min(initial=math.inf)) ** -2
    values, turn = principal(factor)
    bound = total.bound * stretch
    doubt = total.error * stretch + doubt_of(rows.mean.size, float(values[0]))
    wanted = min(count, rows.bound, len(values))
    vectors = rotated(factor, turn[:, :np.count_nonzero(values[:wanted] > doubt)])
    if len(vectors):
        orthonormalise(vectors)
    kept = np.where(values > doubt, values, 0.0)[:wanted]  # nobody shall divide by rounding
    found = finish(rows, None, Axes(kept, vectors, "incremental svd", doubt), count)
    told = None
    if wanted:
        following = float(values[wanted]) if len(values) > wanted else 0.0
        told = tracked(values[:wanted], following, bound, doubt).padded(count, bound + doubt)
    return replace(found, solver="svd", certificate=told)
