"""A fitted latent semantic index as a frozen value: axes of terms, documents on them, nearest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from fastdr.certificate import Certificate, told_by
from fastdr.embedding import Frozen
from fastdr.sources import block_rows
from fastdr.sparse import SparseSource, sparse_product
from fastdr.statistics import check_squares
from fastdr.subspace import lengths, unit_rows
from fastdr.threads import blas_limit, ordered_map
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_numbers,
    is_sparse,
    raise_not_finite,
    read_only,
)

WEIGHTINGS = ("tfidf", "log-entropy", None)
CHUNK_BYTES = 1 << 22  # of documents or cosines that one thread handles at a time
LEAST_ROWS, MOST_ROWS = 16, 256  # documents that are added at a time: what is new is dense
ASKED = 64  # queries that are answered at a time
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class LSIModel(Frozen):
    """Documents by weighted counts of their terms, D = U diag(singular_values) components.

    Attributes
    ----------
    components : (k, d) float64, orthonormal rows: axes of terms.
    singular_values : (k,) float64, descending.
    documents : (n, k) float64, documents on the axes, U diag(singular_values).
    term_weights : (d,) float64, what counts of each term are multiplied by.
    weighting : "tfidf", "log-entropy" or None.
    bound : float, how far the square of a singular value may lie below that of the same rank of
        all documents: 0 for documents fitted at once, more after each truncated update.
    left_out : float, bound on the square of the largest singular value that the fit left out,
        which counts with the first update.
    feature_names : tuple of str, the terms, or None.
    titles : tuple of str, one a document, or None.
    tokens : dict of plain values: how texts are cut into terms.
    report : dict of plain values: how the fit went.

    Examples
    --------
    >>> model = LSIModel([[1.0, 0.0], [0.0, 1.0]], [2.0, 1.0], [[2.0, 0], [0, 1]], [1.0, 1.0], None)
    >>> model.nearest([[0.5, 0.5]], top=1)[0]
    array([[0]])
    """

    components: FloatArray
    singular_values: FloatArray
    documents: FloatArray
    term_weights: FloatArray
    weighting: str | None = "tfidf"
    bound: float = 0.0
    left_out: float = 0.0
    feature_names: tuple[str, ...] | None = None
    titles: tuple[str, ...] | None = None
    tokens: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts agree; make them arrays, read-only."""
        for name in ("components", "singular_values", "documents", "term_weights"):
            array = read_only(as_numbers(getattr(self, name), name), np.float64)
            if not np.isfinite(array).all():
                raise ValueError(f"{name} contains NaN or infinity; all entries must be finite.")
            object.__setattr__(self, name, array)
        if self.components.ndim != 2 or self.documents.ndim != 2:
            raise ValueError("components and documents must have two dimensions.")
        axes, features = self.components.shape
        for name, given, size in (
                ("singular_values", self.singular_values.shape, (axes,)),
                ("documents", self.documents.shape[1:], (axes,)),
                ("term_weights", self.term_weights.shape, (features,)),
                ("titles", None if self.titles is None else (len(self.titles),),
                 (len(self.documents),)),
                ("feature_names", None if self.feature_names is None else (
                    len(self.feature_names),), (features,))):
            if given is not None and given != size:
                raise ValueError(f"{name} has shape {given}; expected {size} beside components "
                                 f"of shape {self.components.shape}.")
        if self.weighting not in WEIGHTINGS:
            raise ValueError(f"weighting={self.weighting!r} is not 'tfidf', 'log-entropy' or "
                             "None.")

    @property
    def certificate(self) -> Certificate | None:
        """Bounds on `singular_values`; None after `added`, and if the fit made none."""
        return told_by(self.report)

    @cached_property
    def norms(self) -> FloatArray:
        """(n,) lengths of the documents; 0 for those without a known term."""
        return read_only(lengths(self.documents))

    def weighed(self, counts: Any) -> csr_array:
        """Return counts of terms (n, d), sparse or dense, weighted like those of the fit.

        Raises ValueError if `counts` has another number of terms, negative counts that a
        logarithm cannot take, NaN or infinity.
        """
        rows = as_counts(counts, self.weighting)
        if rows.shape[1] != len(self.term_weights):
            raise ValueError(f"documents have {rows.shape[1]} terms, but the index knows "
                             f"{len(self.term_weights)}; give one column a term, in its order.")
        return weighed(rows, self.term_weights, self.weighting)

    def transform(self, counts: Any, scaled: bool = False) -> FloatArray:
        """Return documents (n, d) on the axes, (n, k): weighted counts times components'.

        Fitted documents land where they are; `scaled` divides by the singular values, which gives
        the left singular vectors for them.
        """
        placed = sparse_product(SparseSource.of(self.weighed(counts)), self.components.T)
        return placed / self.singular_values if scaled else placed

    @cached_property
    def units(self) -> AnyArray:
        """(n, k) float32, documents divided by their lengths: half the bytes that a query reads."""
        units, edges = np.empty(self.documents.shape, np.float32), self._edges(1)

        def fill(part: int) -> None:
            rows = slice(edges[part], edges[part + 1])
            units[rows] = unit_rows(self.documents[rows])[0]

        ordered_map(fill, len(edges) - 1)
        return read_only(units)

    def nearest(self, placed: Any, top: int = 10) -> tuple[AnyArray, FloatArray]:
        """Return the `top` documents of largest cosine to each of `placed` (m, k).

        Returns
        -------
        indices : (m, top) int, descending by cosine, ties by index.
        cosines : (m, top) float64; 0 where either vector is 0.

        Notes
        -----
        O(n k) a row, one read of the documents in float32 for 64 rows, and of the few in float64
        that rounding does not tell from the best; memory of some chunks, and of `units`, which
        are made once.
        """
        given = unit_rows(_checked(placed))[0]
        top = min(top, len(self.documents))
        found = [self._nearest(given[first:first + ASKED], top)
                 for first in range(0, len(given), ASKED)]
        return (np.concatenate([indices for indices, _ in found]),
                np.concatenate([cosines for _, cosines in found]))

    def _nearest(self, given: FloatArray, top: int) -> tuple[AnyArray, FloatArray]:
        """As `nearest`, for a few unit rows."""
        edges, units, single = self._edges(len(given)), self.units, given.astype(np.float32)
        doubt = (given.shape[1] + 4) * float(np.finfo(np.float32).eps)  # of two cosines

        def near(part: int) -> tuple[AnyArray, AnyArray]:
            rough = single @ units[edges[part]:edges[part + 1]].T
            beaten = rough.shape[1] - top
            if beaten > 0:
                least = np.partition(rough, beaten, axis=1)[:, beaten]
                found = np.flatnonzero(rough >= (least - doubt)[:, None])
            else:
                found = np.arange(rough.size)
            asked, places = np.divmod(found, rough.shape[1])
            return asked, places + edges[part]

        with blas_limit(1):
            parts = ordered_map(near, len(edges) - 1)
        asked, places = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
        cosines = np.empty(len(asked))
        for first in range(0, len(asked), block_rows(given.shape[1])):
            some = slice(first, first + block_rows(given.shape[1]))
            cosines[some] = np.einsum("ij,ij->i", unit_rows(self.documents[places[some]])[0],
                                      given[asked[some]])
        cosines = np.clip(cosines, -1.0, 1.0)
        order = np.lexsort((places, -cosines, asked))
        starts = np.searchsorted(asked[order], np.arange(len(given)))
        chosen = order[starts[:, None] + np.arange(top)]
        return places[chosen], cosines[chosen]

    def similarities(self, placed: Any) -> FloatArray:
        """Return signed cosines of `placed` (m, k) to all documents, (m, n); 0 for zero vectors."""
        given = unit_rows(_checked(placed))[0]
        edges, result = self._edges(len(given)), np.empty((len(given), len(self.documents)))

        def fill(part: int) -> None:
            result[:, edges[part]:edges[part + 1]] = self._cosines(given, edges[part],
                                                                   edges[part + 1])

        with blas_limit(1):
            ordered_map(fill, len(edges) - 1)
        return result

    def _edges(self, asked: int) -> list[int]:
        count, width = self.documents.shape
        step = max(1, CHUNK_BYTES // (8 * max(width, asked, 1)))
        return [*range(0, count, step), count]

    def _cosines(self, given: FloatArray, first: int, last: int) -> FloatArray:
        """Cosines of unit rows to documents [first, last)."""
        norms = self.norms[first:last]
        cosines = given @ self.documents[first:last].T
        cosines /= np.where(norms > 0, norms, np.inf)
        clipped: FloatArray = np.clip(cosines, -1.0, 1.0, out=cosines)
        return clipped

    def added(self, counts: Any, terms: tuple[str, ...] = (), titles: tuple[str, ...] = (),
              decay: float = 1.0, most: int | None = None) -> LSIModel:
        """Return the index with more documents (m, d + new), whose last columns are new terms.

        Terms that are known keep their weights, new ones get those of the new documents. The
        axes are updated (Zha & Simon 1999), some documents at a time, and truncated to `most`, or
        as many as there are; `bound` grows by what that leaves out. `decay` multiplies the old
        documents. O(m d k), and O(n k²) for each 16 to 256 new documents.
        """
        rows = as_counts(counts, self.weighting)
        known, features = len(self.term_weights), rows.shape[1]
        if features < known:
            raise ValueError(f"documents have {features} terms, but the index knows {known}; give "
                             "one column a term, new terms last.")
        fresh = term_weights(rows[:, known:], self.weighting, len(self.documents) + rows.shape[0])
        weights = np.concatenate([self.term_weights, fresh])
        axes = np.zeros((len(self.components), features))
        axes[:, :known] = self.components
        names = self.feature_names
        grown = replace(
            self, components=axes, term_weights=weights, bound=decay**2 * self.bound,
            left_out=decay**2 * self.left_out, documents=self.documents * decay,
            singular_values=self.singular_values * decay,
            feature_names=None if names is None else (*names, *terms),
            report={name: told for name, told in self.report.items() if name != "certificate"})
        added = weighed(rows, weights, self.weighting)
        check_extent(added, least=False)
        batch = min(MOST_ROWS, max(LEAST_ROWS, 4 * block_rows(features)))
        for first in range(0, rows.shape[0], batch):
            grown = grown._appended(added[first:first + batch], most or len(self.components))
        return replace(grown, titles=None if self.titles is None else (*self.titles, *titles))

    def _appended(self, rows: csr_array, most: int) -> LSIModel:
        """Append weighted rows by the SVD of a matrix of their number plus that of the axes.

        With B = Z V' + L P' (Z on the axes, P' orthonormal and orthogonal to them) the documents
        are [F 0; Z L] [V'; P']; F has orthogonal columns of lengths S, so S stands for it.
        """
        axes, count = self.components, len(self.components)
        placed = sparse_product(SparseSource.of(rows), axes.T)
        outside = rows.toarray() - placed @ axes
        again = outside @ axes.T  # twice is enough
        placed, outside = placed + again, outside - again @ axes
        basis, factor = np.linalg.qr(outside.T)
        small = np.block([[np.diag(self.singular_values), np.zeros((count, len(factor)))],
                          [placed, factor.T]])
        values, turn = np.linalg.svd(small, full_matrices=False)[1:]
        kept = min(most, int(np.count_nonzero(values > len(small) * EPS * values[0])))
        dropped = float(values[kept])**2 if kept < len(values) else 0.0
        turn = turn[:kept].T
        moved = np.concatenate([self.documents @ turn[:count], placed @ turn[:count]
                                + factor.T @ turn[count:]])
        return replace(self, documents=moved, singular_values=values[:kept], left_out=0.0,
                       components=turn[:count].T @ axes + turn[count:].T @ basis.T,
                       bound=self.bound + self.left_out + dropped, titles=None)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the index to one safetensors file; `fastdr.load` maps it, documents included."""
        import_module("fastdr.persistence").save(self, path)  # it knows the models


def as_counts(counts: Any, weighting: str | None) -> csr_array:
    """Return counts as CSR in float64, after checking them; dense ones are converted."""
    if not is_sparse(counts):
        counts = as_matrix(counts, "documents")
        raise_not_finite(counts, "documents")
        counts = csr_array(counts.astype(np.float64, copy=False))
    judged = SparseSource.of(counts, "documents")
    rows = csr_array((judged.values.astype(np.float64), judged.indices, judged.indptr),
                     shape=judged.shape)
    if weighting is not None and rows.nnz and rows.data.min() < 0:
        raise ValueError(f"documents has negative counts, which weighting={weighting!r} cannot "
                         "take; use weighting=None for other numbers.")
    return rows


def term_weights(counts: csr_array, weighting: str | None, documents: int) -> FloatArray:
    """Return what counts of each term are multiplied by, among so many `documents`.

    "tfidf": ln((1 + n) / df) with df the documents that have the term, never 0, though nearly so
    for a term of them all (Sparck Jones 1972; scikit-learn adds 1, and few axes then hold little
    but common words); "log-entropy": 1 + sum p ln p / ln n with p its share in each document
    (Dumais 1991).
    """
    features = counts.shape[1]
    if weighting == "tfidf":
        present = np.bincount(counts.indices[counts.data > 0], minlength=features)
        return np.log((1 + documents) / np.maximum(present, 1))
    if weighting is None or documents < 2:
        return np.ones(features)
    totals = np.bincount(counts.indices, counts.data, minlength=features)
    shares = counts.data / np.where(totals > 0, totals, 1.0)[counts.indices]
    surprise = np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1.0)), 0.0)
    entropy = np.bincount(counts.indices, surprise, minlength=features)
    return np.maximum(0.0, 1 + entropy / math.log(documents))


def weighed(counts: csr_array, weights: FloatArray, weighting: str | None) -> csr_array:
    """Return weighted counts; those of "tfidf" have rows of length 1, or 0 if empty."""
    values, factors, size = counts.data, weights[counts.indices], counts.shape[0]
    if weighting != "tfidf":
        local = np.log1p(values) / math.log(2) if weighting == "log-entropy" else values
        return csr_array((local * factors, counts.indices, counts.indptr), shape=counts.shape)
    owner, peaks = np.repeat(np.arange(size), np.diff(counts.indptr)), np.zeros(size)
    np.maximum.at(peaks, owner, values)
    values = np.ldexp(values, -np.frexp(peaks)[1][owner]) * factors  # squares need not exist
    squares = np.bincount(owner, values**2, minlength=size)
    values /= np.sqrt(np.where(squares > 0, squares, 1.0))[owner]
    return csr_array((values, counts.indices, counts.indptr), shape=counts.shape)


def check_extent(rows: csr_array, least: bool = True) -> None:
    """Refuse weighted rows of squares, in which bounds are told, too large, or small if `least`."""
    with np.errstate(over="ignore", under="ignore"):
        squares = np.array([rows.data @ rows.data])
    check_squares(squares, least)


def _checked(placed: Any) -> FloatArray:
    """Return placed vectors as finite float64 rows, (m, k)."""
    rows = np.atleast_2d(as_numbers(placed, "placed")).astype(np.float64, copy=False)
    raise_not_finite(rows, "placed")
    return rows
