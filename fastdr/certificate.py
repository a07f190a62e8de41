"""Bounds on the eigenvalues of a symmetric matrix that an approximate answer proves.

Rayleigh quotients of orthonormal vectors are lower bounds (Cauchy). A Cholesky factorisation of
a shifted matrix proves that no eigenvalue was missed and that all others lie below mu (Rump 2006);
then quadratic bounds close the interval from above (Mathias 1998; Li & Li 2005) and bound the
angle of the subspace (Davis & Kahan 1970).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, get_args

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf

from fastdr.validation import AnyArray, FloatArray

EPS = float(np.finfo(np.float64).eps)

TRIES = (0.25, 0.6)  # where mu lies between the next value and the last one wanted
Proof = Literal["cholesky", "complete", "tracked", "none"]
TINY = 1e-280  # above the values of a zero matrix
NEAR = 1e-6  # values this close, relative to themselves or else to the largest, may be a tie
ROUNDING = 4  # of a shifted matrix, in units of order² eps norm, that a factorisation bears


@dataclass(frozen=True)
class Certificate:
    """What is proved about the `k` largest eigenvalues of a matrix.

    Attributes
    ----------
    lower, upper : (k,) float64
        The i-th largest eigenvalue lies between them; `upper` is infinite if nothing is proved.
    residuals : (k,) float64
        Norms of C v - value v, rounding included: some eigenvalue is that close to each value.
    angle : float
        Bound on the sine of the largest angle between the vectors' span and the true one; 1 if
        nothing is proved.
    method : {"cholesky", "complete", "tracked", "none"}
        How it was proved that no eigenvalue was missed: by a Cholesky factorisation, because all
        vectors are there, because what was left out of the matrix was added up, or not at all.
    clusters : tuple of (first, last)
        Runs of values that the bounds do not tell apart: their vectors are known as a set only.

    Notes
    -----
    The bounds are about the matrix as given: rounding in forming it is not theirs.

    Examples
    --------
    >>> import fastdr
    >>> told = fastdr.certify(np.diag([3.0, 2.0, 1.0]), np.eye(3)[:, :1])
    >>> told.method, bool(told.lower[0] <= 3 <= told.upper[0])
    ('cholesky', True)
    """

    lower: FloatArray
    upper: FloatArray
    residuals: FloatArray
    angle: float
    method: Proof
    clusters: tuple[tuple[int, int], ...]

    @property
    def proved(self) -> bool:
        """Whether it is proved that no larger eigenvalue was missed."""
        return self.method != "none"

    def first(self, count: int) -> Certificate:
        """Return what is proved of the first `count` values alone."""
        if count >= len(self.lower):
            return self
        spread = float(np.linalg.norm(self.residuals[:count]))
        gap = float(self.lower[count - 1] - self.upper[count]) if count else math.inf
        angle = min(1.0, spread / gap) if gap > 0 else 1.0
        return replace(self, lower=self.lower[:count], upper=self.upper[:count], angle=angle,
                       residuals=self.residuals[:count],
                       clusters=tuple((a, min(b, count - 1)) for a, b in self.clusters
                                      if a < count - 1))

    def padded(self, count: int, error: float) -> Certificate:
        """Return the same with values behind that are 0 because the rank is known, to `error`.

        Their vectors are any of those that are left, so nothing is known of the span.
        """
        known = len(self.lower)
        if count == known:
            return self
        zeros = np.zeros(count - known)
        lower, upper, residuals = (np.concatenate(parts) for parts in (
            (self.lower, zeros), (self.upper, zeros + error), (self.residuals, zeros + error)))
        runs, tie = list(self.clusters), known
        if known and lower[known - 1] <= error:
            tie = runs.pop()[0] if runs and runs[-1][1] == known - 1 else known - 1
        if tie < count - 1:
            runs.append((tie, count - 1))
        return replace(self, lower=lower, upper=upper, residuals=residuals, angle=1.0,
                       clusters=tuple(runs))

    def beside_zeros(self, error: float) -> Certificate:
        """Return the same for a larger matrix whose other eigenvalues are 0, to `error`.

        A'A is that for AA': what was complete is not any more, and may be tied with them.
        """
        if self.method != "complete":
            return self  # they lie below `mu`, too
        gap = float(self.lower[-1]) - error
        spread = float(np.linalg.norm(self.residuals))
        return replace(self, angle=min(1.0, spread / gap) if gap > 0 else 1.0)

    def times(self, factor: float, exponent: int = 0) -> Certificate:
        """Return the same for a positive semi-definite matrix times factor 2**exponent."""
        lower, upper, residuals = self.lower * factor, self.upper * factor, self.residuals * factor
        if exponent:
            with np.errstate(over="ignore", under="ignore"):
                lower, upper, residuals = (np.ldexp(bound, exponent)
                                           for bound in (lower, upper, residuals))
        return replace(self, lower=np.maximum(lower, 0.0), upper=upper, residuals=residuals)

    def loosened(self, share: float, values: FloatArray) -> Certificate:
        """Return the same for this positive semi-definite matrix times a factor near 1.

        The factor is off by `share` at most; `values` (k,) are what the residuals are of.
        """
        if not share:
            return self
        return replace(self, lower=self.lower * max(0.0, 1 - share), upper=self.upper * (1 + share),
                       residuals=self.residuals * (1 + share) + share * values)

    def around(self, values: FloatArray) -> Certificate:
        """Return the same with intervals that hold `values` (k,), which others found, too."""
        return replace(self, lower=np.minimum(self.lower, values),
                       upper=np.maximum(self.upper, values))

    def stored(self, vectors: AnyArray) -> Certificate:
        """Return the same for `vectors` (k, d), rounded to their dtype after they were measured."""
        count, features = vectors.shape
        if count == features:  # they span all there is
            return replace(self, angle=0.0 if self.proved else 1.0)
        if vectors.dtype == np.float64:
            return self
        turned = math.sqrt(count) * float(np.finfo(vectors.dtype).eps)  # twice what rounding does
        return replace(self, angle=min(1.0, self.angle + turned))

    def roots(self, values: FloatArray) -> Certificate:
        """Return bounds on singular values of A, found as `values` (k,), from those for A'A.

        The difference of two squares s² and t² is at least that of s and t squared, and at least
        s times it.
        """
        apart = self.residuals / np.where(values > 0, values, np.nan)
        return replace(self, lower=np.sqrt(np.maximum(self.lower, 0.0)),
                       upper=np.sqrt(np.maximum(self.upper, 0.0)),
                       residuals=np.fmin(np.sqrt(self.residuals), apart)).around(values)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a report; None for an infinite bound."""
        upper = self.upper.tolist() if self.proved or np.isfinite(self.upper).all() else [
            bound if math.isfinite(bound) else None for bound in self.upper.tolist()]
        return {"method": self.method, "angle": self.angle, "lower": self.lower.tolist(),
                "upper": upper, "residuals": self.residuals.tolist(),
                "clusters": [list(run) for run in self.clusters]}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Return what `as_dict` told, checked, as it may come from a file."""
        lower, upper, residuals = (
            np.array([math.inf if bound is None else bound for bound in values[name]], np.float64)
            for name in ("lower", "upper", "residuals"))
        runs = tuple((int(first), int(last)) for first, last in values["clusters"])
        method, angle = values["method"], float(values["angle"])
        if (method not in get_args(Proof) or not 0 <= angle <= 1
                or not lower.shape == upper.shape == residuals.shape
                or not (lower <= upper).all()):
            raise ValueError("the certificate is not one.")
        return cls(lower, upper, residuals, angle, method, runs)

    def __str__(self) -> str:
        """Say in one line what is proved."""
        return self.text()

    def text(self, exponent: int = 0) -> str:
        """Say in one line what is proved of the matrix times 2**`exponent`, which may overflow."""
        if not self.proved:
            within = power_text(self.residuals.max(initial=0), exponent, ".1e")
            return (f"not proved: a true value lies within {within} "
                    "of each, but larger ones may have been missed")
        apart = self.upper != self.lower
        width = float((self.upper[apart] - self.lower[apart]).max(initial=0.0))
        ties = f", {len(self.clusters)} cluster(s) of ties" if self.clusters else ""
        return (f"proved ({self.method}): intervals at most {power_text(width, exponent, '.1e')} "
                f"wide, sine of the angle at most {self.angle:.1e}{ties}")


def power_text(value: float, exponent: int, form: str) -> str:
    """Return value * 2**exponent in a `form` of decimals, also where no float64 is so large.

    Examples
    --------
    >>> power_text(1.5, 2, ".3g"), power_text(1.5, 2000, ".3g")
    ('6', '1.72e+602')
    """
    if math.frexp(value)[1] + exponent in range(-1021, 1025) or not value or math.isinf(value):
        return f"{math.ldexp(value, exponent):{form}}"
    return f"{Decimal(float(value)) * Decimal(2) ** exponent:{form}}"


def certificate(values: FloatArray, residuals: FloatArray, spread: float, doubt: float,
                mu: float | None, method: Proof, lead: int | None = None) -> Certificate:
    """Return the certificate of Ritz `values` when all but the first `lead` are below `mu`.

    `values` (k,) descending, `spread` the 2-norm of the residual matrix, `doubt` bounds rounding
    in all of them; `lead` is k unless the last ones are a tie with what was left out. None for
    `mu`: nothing is known of the others; -inf: there are none.
    """
    count = len(values)
    lead, spread = count if lead is None else lead, spread + doubt
    lower, upper, angle = values - doubt, np.full(count, math.inf), 1.0
    gap = -math.inf
    if mu == -math.inf:
        upper, angle, gap = values + spread, 0.0, math.inf
    elif mu is not None:
        gap = float(values[lead - 1]) - doubt - mu if lead else math.inf
        if gap > 0:
            width = 2 * spread**2 / (gap + math.sqrt(gap**2 + 4 * spread**2)) if lead else 0.0
            upper[:lead], upper[lead:] = values[:lead] + doubt + width, mu
            angle = min(1.0, spread / gap) if lead == count else 1.0
    if gap <= 0:
        method = "none"
    return Certificate(lower, upper, residuals + doubt, angle, method,
                       _clusters(lower, np.minimum(upper, values + residuals + doubt)))


def tracked(values: FloatArray, following: float, bound: float, doubt: float) -> Certificate:
    """Return the certificate of a matrix of which a part C' is known: 0 <= C - C' <= bound I.

    `values` (k,) the largest eigenvalues of C', descending, k > 0, `following` the next one;
    `doubt` bounds rounding. Each eigenvalue of C is at least that of C' and at most `bound` more
    (Weyl); vectors of C' turn as Davis & Kahan say.
    """
    off = np.full(len(values), bound + doubt)
    lower, upper = values - doubt, values + off
    gap = float(lower[-1]) - following - float(off[-1])
    angle = min(1.0, float(off[-1]) / gap) if gap > 0 else 1.0
    return Certificate(lower, upper, off, angle, "tracked", _clusters(lower, upper))


def _clusters(lower: FloatArray, upper: FloatArray) -> tuple[tuple[int, int], ...]:
    """Return runs (first, last) of values whose intervals overlap."""
    runs: list[tuple[int, int]] = []
    first = 0
    if (lower[:-1] > upper[1:]).all():
        return ()
    for index in range(1, len(lower) + 1):
        if index == len(lower) or lower[index - 1] > upper[index]:
            if index - first > 1:
                runs.append((first, index - 1))
            first = index
    return tuple(runs)


def slack(order: int) -> float:
    """Return the relative rounding error of a matrix of this `order` and its eigenvalues."""
    return (4 + math.sqrt(order)) * EPS


def doubt_of(order: int, scale: float) -> float:
    """Return the rounding error of a residual of a matrix of this `order` and norm `scale`."""
    return 4 * slack(order) * scale


def proved(matrix: FloatArray, values: FloatArray, vectors: FloatArray, residuals: FloatArray,
           spread: float, following: float, asymmetry: float = 0.0, *,
           definite: bool = False) -> Certificate:
    """Prove as much as can be proved of Ritz pairs of a symmetric `matrix` (d, d), float64.

    `vectors` (k, d) nearly orthonormal rows; `following` estimates
    the next eigenvalue; `asymmetry` bounds the norm of what the matrix differs from the one that
    the bounds are for; `definite` says that it has no negative eigenvalue. If the last values
    are tied with the next, the tie as a whole is bounded: closely, else less so. One to four
    factorisations, d³/3 operations each; memory of a second d x d.
    """
    order, count = len(matrix), len(values)
    scale = max(float(values[0]), -float(values[-1]))
    diagonal = np.diagonal(matrix)
    peak = max(float(diagonal.max()), -float(diagonal.min()))
    doubt = doubt_of(order, max(scale, peak)) + asymmetry
    if count == order:
        return certificate(values, residuals, spread, doubt, -math.inf, "complete")
    last = float(values[-1])
    following = following if math.isfinite(following) else last - scale
    tries = [(count, following + part * (last - following)) for part in TRIES
             if last - following > doubt]
    close = NEAR * abs(last) + ROUNDING * order**2 * EPS * max(scale, peak) + 2 * spread + doubt
    steps = np.flatnonzero(values[:-1] - values[1:] > 2 * close)
    tie = int(steps[-1]) + 1 if steps.size else 0
    tries.append((tie, float(values[tie]) + (close or TINY)))
    near = NEAR * scale + 2 * spread + doubt or TINY
    tie = int(np.argmax(values <= last + near))
    above = 0.25 * float(values[tie - 1] - values[tie]) if tie else near
    tries.append((tie, float(values[tie]) + above))
    largest = peak if definite else max(float(matrix.max()), -float(matrix.min()))
    for lead, mu in tries:
        if positive(matrix, values[:lead], vectors[:lead], mu, largest, asymmetry):
            return certificate(values, residuals, spread, doubt, mu, "cholesky", lead)
    return certificate(values, residuals, spread, doubt, None, "none")


def judged(matrix: FloatArray, values: FloatArray, vectors: FloatArray, following: float,
           error: float, prove: bool) -> Certificate:
    """Measure the answer of a direct method, and prove it if asked to.

    `matrix` is positive semi-definite to rounding; the bounds also hold for any matrix that
    differs from it by at most `error` in norm. 2 d² k operations, and those of `proved`.
    """
    moved = vectors @ matrix
    moved -= values[:, None] * vectors
    residuals = np.sqrt(np.einsum("ij,ij->i", moved, moved))
    spread = math.sqrt(residuals @ residuals)
    error += spread  # the values are not exactly Ritz values
    if prove:
        return proved(matrix, values, vectors, residuals, spread, following, error,
                      definite=True)
    doubt = doubt_of(len(matrix), float(values[0])) + error
    return certificate(values, residuals, spread, doubt, None, "none")


def positive(matrix: FloatArray, values: FloatArray, vectors: FloatArray, mu: float,
             largest: float, asymmetry: float = 0.0) -> bool:
    """Whether mu I - C + V' diag(2 (values - mu)) V is proved positive definite.

    Then every eigenvalue of C but the largest k is below `mu`, whatever the rows of V are: the
    update has rank k (Weyl). The shift covers rounding (Rump 2006, and forming the matrix, of
    entries up to `largest`).
    """
    order, count = vectors.shape[1], len(values)
    lift = 2 * (values - mu)
    shifted = np.array(matrix.T, order="F")  # its upper triangle is the lower one of `matrix`
    np.negative(shifted, out=shifted)
    if count:
        shifted = dsyrk(1.0, (vectors * np.sqrt(lift)[:, None]).T, beta=1.0, c=shifted,
                        overwrite_c=1)
    diagonal = np.diagonal(shifted).copy() + mu
    most = float(lift.max(initial=0.0)) * count + order * largest + abs(mu)
    shift = (1.01 * (order + 2) * EPS * float(np.abs(diagonal).sum())
             + (count + 4) * EPS * most + asymmetry)
    np.fill_diagonal(shifted, diagonal - shift)
    return bool(diagonal.min() > shift
                and dpotrf(shifted, clean=0, overwrite_a=1)[1] == 0)


def told_by(report: Mapping[str, Any]) -> Certificate | None:
    """Return the certificate that a report holds as plain values, None if there is none."""
    told = report.get("certificate")
    return None if told is None else Certificate.of_dict(told)
