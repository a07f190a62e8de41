"""From the results of `bench.claims` to fitted exponents, verdicts and their text; all pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import fits, tables
from bench.fits import Crossing, Fit
from bench.laws import CROSSOVER, LAWS, Law

Document = dict[str, Any]
TOLERANCE = 0.1  # from the claimed exponent: further away is another one, or small print
VAGUE = 0.3  # half width from which an interval tells too little
EPS = float(np.finfo(np.float64).eps)
COMMAND = "python -m bench.claims"
CLAIMS = {"form": "Forming XᵀX costs O(N d²)", "eig": "Its eigenvectors cost O(d³)",
          "svd": "The economy SVD costs O(N d min(N, d))",
          "pca": "fastdr's PCA costs O(N d min(N, d))"}


@dataclass(frozen=True)
class Exponent:
    """A fitted law: `kind` is "operations", "instructions" or "seconds" (of `who`, `threads`)."""

    law: Law
    operation: str
    kind: str
    who: str
    threads: int
    fit: Fit

    @property
    def label(self) -> str:
        """Name the column of a table."""
        if self.kind != "seconds":
            return self.kind
        return f"{self.who}, {self.threads} thread{'s' * (self.threads != 1)}"

    @property
    def near(self) -> bool:
        """Whether the exponent is the claimed one within the tolerance."""
        return abs(self.fit.exponent - self.law.exponent) <= TOLERANCE

    @property
    def agrees(self) -> bool:
        """Whether it is, or its interval holds the claimed one and tells something."""
        return self.near or abs(self.fit.exponent - self.law.exponent) <= self.fit.half <= VAGUE

    @property
    def vague(self) -> bool:
        """Whether the measurement is too uncertain to say either."""
        return self.fit.half > VAGUE and not self.near

    def __str__(self) -> str:
        return f"{self.law.axis}^({self.fit})"


def exponents(document: Document) -> list[Exponent]:
    """Fit every series of the document."""
    quick, found = document["quick"], []
    executed = (document["instructions"] or {"laws": {}})["laws"]
    for law in LAWS:
        counted = [("operations", law.counted(quick), document["counts"][law.key])]
        if law.key in executed:
            counted.append(("instructions", law.instructed(), executed[law.key]))
        for kind, shapes, values in counted:
            fit = fits.power_law(law.along(shapes), [[value] for value in values])
            found.append(Exponent(law, law.operation, kind, "", 1, fit))
        for series in document["times"]:
            if series["law"] == law.key:
                fit = fits.power_law(law.along(law.shapes(quick)), series["seconds"])
                found.append(Exponent(law, series["operation"], "seconds", series["who"],
                                      series["threads"], fit))
    return found


def repeated(document: Document) -> str:
    """Say how exponents of seconds came out when they were measured again, if they were."""
    runs = [[each for each in exponents(document | {"times": times}) if each.kind == "seconds"]
            for times in [document["times"], *document.get("again", [])]]
    pairs = [(one, other) for again in runs[1:] for one, other in zip(runs[0], again, strict=True)]
    if not pairs:
        return ""
    within = [(one, other) for one, other in pairs
              if abs(one.fit.exponent - other.fit.exponent) <= one.fit.half]
    apart = [f"{one.label}, {one.law.key}: {one.fit} and {other.fit}" for one, other in pairs
             if abs(one.fit.exponent - other.fit.exponent) > math.hypot(one.fit.half,
                                                                      other.fit.half)]
    return (f"Seconds were measured in {len(runs)} runs, of which the first is shown. Of "
            f"{len(pairs)} exponents of the others {len(within)} lie within its intervals, and "
            f"{len(pairs) - len(apart)} differ by no more than both intervals allow"
            f"{'; not: ' + '; '.join(apart) if apart else ''}.")


def problems(document: Document) -> list[str]:
    """Say which exponents of counted operations are not the claimed ones."""
    return [f"{each.law.key}: operations grow as {each}, claimed was {each.law.exponent}"
            for each in exponents(document)
            if each.kind == "operations" and not each.near]


def flops(document: Document, operation: str, rows: float, columns: float) -> float:
    """Return the operations of the counted routines, from their leading terms."""
    a, b = terms(document, operation)
    least = min(rows, columns)
    return a * rows * columns * least + b * least**3


def terms(document: Document, operation: str) -> tuple[float, float]:
    """Return a, b of a N d min(N, d) + b min(N, d)³.

    Forming has only the former term, eig the latter, and "pca" both.
    """
    if operation == "pca":
        return terms(document, "form")[0], terms(document, "eig")[1]
    laws = [law for law in LAWS if law.operation == operation]
    shapes = [shape for law in laws for shape in law.counted(document["quick"])]
    values = [value for law in laws for value in document["counts"][law.key]]
    if operation == "svd":
        return fits.two_terms(shapes, values)
    (n, d), last = shapes[-1], values[-1]
    return (last / (n * d * d), 0.0) if operation == "form" else (0.0, last / d**3)


def rates(document: Document, each: Exponent) -> tuple[float, float]:
    """Return counted operations a second, by the fit, at both ends of its range."""
    shapes = each.law.shapes(document["quick"])
    sizes = each.law.along(shapes)
    ends = [shapes[sizes.index(int(size))] for size in (each.fit.first, each.fit.last)]
    first, last = (flops(document, each.operation, *shape) for shape in ends)
    return first / each.fit.at(each.fit.first), last / each.fit.at(each.fit.last)


def small_print(document: Document, each: Exponent) -> str:
    """Say how seconds differ from the claim, and how the rate changes along with that."""
    first, last = rates(document, each)
    where = f"{each.law.axis} = {each.fit.first:.0f} … {each.fit.last:.0f}"
    side = f" ({each.law.side})" if each.operation in ("svd", "pca") else ""
    return (f"{each.label}: {each} for {where}{side}, not {each.law.exponent}: the rate goes from "
            f"{first / 1e9:.3g} to {last / 1e9:.3g} Gflop/s there")


def cost_verdict(document: Document, operation: str, found: list[Exponent]) -> str:
    """Return the verdict on one claimed cost."""
    mine = [each for each in found if each.operation == operation]
    counted = [each for each in mine if each.kind == "operations"]
    wrong = [each for each in counted if not each.near]
    seconds = [each for each in mine if each.kind == "seconds"]
    vague = [each for each in seconds if each.vague]
    print_ = [each for each in seconds if not each.agrees and not each.vague]
    if wrong:
        verdict = f"**Does not hold**: operations grow as {', '.join(map(str, wrong))}."
    else:
        verdict = f"**Holds{' with small print' if print_ else ''}.**"
        if counted:
            verdict += f" Counted operations grow as {', '.join(map(_sided, counted))}."
    agreed = len(seconds) - len(print_) - len(vague)
    verdict += f" In seconds, {agreed} of {len(seconds)} exponents are the claimed ones"
    verdict += f", {len(vague)} too uncertain to tell." if vague else "."
    return "\n".join([verdict, *(f"- {small_print(document, each)}." for each in print_)])


def _sided(each: Exponent) -> str:
    return f"{each}{f' ({each.law.side})' if each.operation == 'svd' else ''}"


def exponent_table(found: list[Exponent], operation: str) -> str:
    """Return one row for each law of an operation, one column for each kind of cost."""
    mine = [each for each in found if each.operation == operation]
    labels = list(dict.fromkeys(each.label for each in mine))
    body = []
    for law in dict.fromkeys(each.law for each in mine):
        cells = {each.label: each for each in mine if each.law == law}
        ranges = {each.kind: f"{each.fit.first:.0f} … {each.fit.last:.0f}"
                  for each in cells.values()}
        body.append([f"{law.axis}{f', {law.side}' if law.side else ''}",
                     ranges.get("operations", "—"), ranges.get("seconds", "—"), str(law.exponent),
                     *(str(cells[label].fit) if label in cells else "—" for label in labels)])
    return tables.table(["what grows", "counted for", "timed for", "claimed", *labels], body)


# Where eig(XᵀX) beats the SVD.


@dataclass(frozen=True)
class Race:
    """A ratio of costs by rows over columns, and where it passes 1.

    That of the SVD over the product and eig; if `ours`, that of the cheaper of these over fastdr.
    """

    label: str
    ours: bool
    parts: tuple[float, ...]
    ratio: tuple[float, ...]
    crossing: Crossing | None


def races(document: Document) -> list[Race]:
    """Compare both ways in counted operations and in LAPACK's seconds."""
    quick, counts = document["quick"], document["counts"]
    columns, rows = CROSSOVER.counted(quick)
    both = [f + e for f, e in zip(counts["crossover form"], counts["crossover eig"], strict=True)]
    found = [_race("operations", False, rows, columns, [[v] for v in counts["crossover svd"]],
                   [[v] for v in both])]
    columns, rows = CROSSOVER.sizes(quick)
    of = {(series["threads"], series["who"], series["operation"]): series["seconds"]
          for series in document["times"] if series["law"] == "crossover"}
    for threads in dict.fromkeys(key[0] for key in of):
        together = [[a + b for a, b in zip(form, eig, strict=False)]  # the last round may be cut
                    for form, eig in zip(of[threads, "LAPACK", "form"],
                                         of[threads, "LAPACK", "eig"], strict=True)]
        name = f"{threads} thread{'s' * (threads != 1)}"
        svd = of[threads, "LAPACK", "svd"]
        faster = [min(a, b, key=fits.best) for a, b in zip(svd, together, strict=True)]
        found += [_race(f"LAPACK, {name}", False, rows, columns, svd, together),
                  _race(f"fastdr, {name}", True, rows, columns, faster,
                        of[threads, "fastdr", "pca"])]
    return found


def _race(label: str, ours: bool, rows: Any, columns: int, above: fits.Samples,
          below: fits.Samples) -> Race:
    parts = tuple(n / columns for n in rows)
    ratio = tuple(fits.best(a) / fits.best(b) for a, b in zip(above, below, strict=True))
    return Race(label, ours, parts, ratio, fits.crossing(parts, above, below))


def race_table(title: str, found: list[Race]) -> str:
    body = []
    for race in found:
        passes = race.crossing
        at = "—" if passes is None else (
            f"{passes.at:.2f} ({passes.low:.2f} … {passes.high:.2f})")
        body.append([race.label, at, *(f"{value:.2f}×" for value in race.ratio)])
    return tables.table([title, "1 at N/d =",
                         *(f"N/d = {part:g}" for part in found[0].parts)], body)


def race_verdict(document: Document, found: list[Race]) -> str:
    """Say from where on eig(XᵀX) is cheaper, and by how much."""
    square = {race.label: race.ratio[race.parts.index(1)] for race in found}
    a, b = terms(document, "svd")
    form, _ = terms(document, "form")
    _, eig = terms(document, "eig")
    text = [f"**Small print of the comparison.** For N ≥ d both ways are O(N d²): the constants "
            f"differ. Counted are {form:.2g} N d² + {eig:.2g} d³ for XᵀX and its eigenvectors, "
            f"{a:.2g} N d min(N, d) + {b:.2g} min(N, d)³ for the SVD, so that for N ≫ d the "
            f"former takes {a / form:.1f} times fewer operations."]
    for race in found:
        if not race.ours:
            where = "nowhere in the measured range" if race.crossing is None else (
                f"from N = {race.crossing.at:.2f} d on")
            text.append(f"- {race.label}: eig(XᵀX) is cheaper {where}; {square[race.label]:.1f} "
                        f"times at N = d, {race.ratio[-1]:.1f} times at N = {race.parts[-1]:g} d.")
        else:
            least = min(race.ratio)
            text.append(f"- {race.label}: its PCA, which keeps the digits of the SVD, has "
                        f"{least:.2f} (at N = {race.parts[race.ratio.index(least)]:g} d) to "
                        f"{max(race.ratio):.2f} times the speed of LAPACK's faster way.")
    return "\n".join(text)


# What accuracy costs.


@dataclass(frozen=True)
class Loss:
    """The error of σᵢ as constant · eps · (σ₁/σᵢ) ** exponent, fitted where it is below 1 %."""

    route: str
    exponent: float
    half: float
    worst: float
    lost: float | None


def losses(document: Document) -> list[Loss]:
    """Fit the growth of the error of every route; `lost` is σ₁/σᵢ where the error passes 1."""
    ratio = np.asarray(document["accuracy"]["ratio"])
    return [_loss(name, ratio, np.asarray(errors))
            for name, errors in document["accuracy"]["error"].items()]


def _loss(name: str, ratio: Any, errors: Any) -> Loss:
    rounded = np.maximum(errors, EPS / 4)  # an exact answer by luck has no logarithm
    expected = 2 if "eig" in name else 1
    fair = (ratio > 10) & (EPS * ratio**expected < 0.01)
    slope, _, half = fits.line(list(np.log(ratio[fair])), list(np.log(rounded[fair])))
    worst = float((rounded[fair] / (EPS * ratio[fair] ** expected)).max())
    gone = ratio[errors >= 1]
    return Loss(name, slope, half, worst, float(gone.min()) if gone.size else None)


def loss_table(found: list[Loss]) -> str:
    body = [[loss.route, f"{loss.exponent:.2f} ± {math.ceil(100 * loss.half) / 100:.2f}",
             f"{loss.worst:.2g}", "none" if loss.lost is None else f"{loss.lost:.0e}"]
            for loss in found]
    return tables.table(["way", "error grows as σ₁/σᵢ to the", "largest error / (eps × growth)",
                         "no digit left from σ₁/σᵢ ="], body)


def loss_verdict(found: list[Loss]) -> str:
    by = {loss.route: loss for loss in found}
    eig, svd = by["LAPACK eig(XᵀX)"], by["LAPACK SVD"]
    ours = [loss for loss in found if loss.route.startswith("fastdr")]
    fails = [loss.route for loss in found if abs(loss.exponent - (2 if loss is eig else 1)) >
             max(2 * TOLERANCE, loss.half)]
    same = all(loss.worst <= 10 * max(svd.worst, 1.0) for loss in ours)
    verdict = "Does not hold" if fails else "Holds"
    text = (f"**{verdict}.** The error of σᵢ grows as (σ₁/σᵢ)^{eig.exponent:.2f} eps by way of "
            f"XᵀX, as (σ₁/σᵢ)^{svd.exponent:.2f} eps by the SVD.")
    if eig.lost:
        text += f" XᵀX has no digit of σᵢ left at σ₁/σᵢ = {eig.lost:.0e}."
    if fails:
        text += f" Not as claimed: {', '.join(fails)}."
    return text + (" fastdr keeps the digits of the SVD on both of its ways: it tests what the "
                   "scatter can tell and goes on by QR if that is not enough." if same else
                   " fastdr does not keep the digits of the SVD.")


def markdown(document: Document) -> str:
    """Return the whole text."""
    found, raced, lost = exponents(document), races(document), losses(document)
    plots, again = not document["quick"], document.get("again", [])
    runs = f" --runs {1 + len(again)}" if again else ""
    parts = ["# The cost claims of PCA, measured",
             f"Written by `{COMMAND}{runs}`; every figure is computed from claims.json. "
             "[README.md](README.md#claims) has the method.", tables.head(document)]
    if document["quick"]:
        parts.append("A quick run: sizes too small and samples too few to quote seconds.")
    if document["instructions"]:
        parts.append(f"Instructions of LAPACK are counted by {document['instructions']['by']}, at "
                     "twice the sizes of operations. They grow more slowly than operations as long "
                     "as larger blocks do more of the work in vectors.")
    if again:
        parts.append(repeated(document))
    for operation, claim in CLAIMS.items():
        parts += [f"## {claim}", cost_verdict(document, operation, found),
                  exponent_table(found, operation)]
    parts += ["## eig(XᵀX) against the SVD", race_verdict(document, raced),
              race_table("SVD over XᵀX and eig", [race for race in raced if not race.ours]),
              race_table("LAPACK's faster way over fastdr's PCA",
                         [race for race in raced if race.ours]),
              "## XᵀX squares what rounding costs", loss_verdict(lost), loss_table(lost)]
    if plots:
        parts += ["## Pictures", *(f"![{title}](claims-{name}.png)"
                                   for name, title in pictures(document).items())]
    return "\n\n".join(parts) + "\n"


def pictures(document: Document) -> dict[str, str]:
    """Return the end of the file name and the title of each picture."""
    threads = dict.fromkeys(series["threads"] for series in document["times"])
    return {"operations": "Counted operations"} | {
        f"seconds-{count}": f"Seconds, {count} thread{'s' * (count != 1)}" for count in threads
    } | {"crossover": "Which way is cheaper",
         "accuracy": "Relative error of singular values"}
