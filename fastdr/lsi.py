"""Latent semantic indexing: documents, queries and terms on common axes, found by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.random import Generator, RandomState
from scipy.sparse import csr_array
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    clone,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.utils.validation import check_is_fitted

from fastdr.certificate import Certificate
from fastdr.estimator import Report
from fastdr.lsi_model import (
    WEIGHTINGS,
    LSIModel,
    as_counts,
    check_extent,
    term_weights,
    weighed,
)
from fastdr.persistence import load
from fastdr.seeds import SEEDS, is_seed
from fastdr.texts import as_texts, check_distinct, plain_parameters, titles_of, vectorizer_of
from fastdr.truncated_svd import TruncatedSVD
from fastdr.validation import (
    AnyArray,
    FloatArray,
    check_values,
    finite,
    is_sparse,
    whole,
)

EPS = float(np.finfo(np.float64).eps)
UNNAMED = ("this index was fitted to counts without names of terms, so texts cannot be read; fit "
           "with terms=, or pass counts.")
TIGHT = 1e-6  # tolerance at which an iteration is believed to have missed nothing, if not proved


class Hit(NamedTuple):
    """A document that was found: its number in the index and its cosine to what was asked.

    Examples
    --------
    >>> Hit(4, 0.5).document
    4
    """

    document: int
    cosine: float


class LSI(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator  # type: ignore[misc]
):
    """Latent semantic indexing: texts, or counts of terms, on axes of terms that go together.

    Documents that share no word are near each other if their words occur together elsewhere.

    Parameters
    ----------
    n_components : int, default 100
        Axes to keep; no more than the rank of the documents are.
    weighting : {"tfidf", "log-entropy", None}, default "tfidf"
        "tfidf": counts times ln((1 + n) / df), rows of length 1; "log-entropy":
        log2(1 + count) times 1 + sum p ln p / ln n (Dumais 1991); None: counts as they are.
    vectorizer : CountVectorizer, optional
        How texts are cut into terms, an unfitted one of scikit-learn; the default takes words of
        two letters or more in lower case. A file keeps its parameters if they are plain values.
    tol : float, default 0
        As of `TruncatedSVD`.
    random_state : int, Generator, RandomState or None, default None
        Of the iteration's start; None means 0.

    Attributes
    ----------
    components_ : (k, d) float64, orthonormal rows, axes of terms.
    singular_values_ : (k,) float64, descending.
    documents_ : (n, k) float64, fitted documents on the axes, U diag(singular_values).
    terms_ : (d,) array of str, or None if counts without names were fitted.
    bound_ : float, how far squares of singular values may lie below those of all documents: 0
        after `fit`, of which ``certificate_`` tells, more after each `add` that left something out.
    certificate_ : Certificate or None, bounds on the singular values, until documents are added.
    report_ : dict that prints as a table.
    model_ : LSIModel, the frozen fitted state.

    Notes
    -----
    Deerwester et al. (1990). Cost of `TruncatedSVD`; a query costs O(n k), one read of the
    documents on the axes, in as many chunks as threads take.

    Examples
    --------
    >>> texts = ["real estate agency", "estate agency with three bedrooms",
    ...          "three bedrooms and a garden", "goals in the match", "the match of the season"]
    >>> lsi = LSI(2).fit(texts)
    >>> sorted(hit.document for hit in lsi.query("real estate", top=3))   # 2 has neither word
    [0, 1, 2]
    """

    model_: LSIModel

    def __init__(self, n_components: int = 100, weighting: str | None = "tfidf", *,
                 vectorizer: CountVectorizer | None = None, tol: float = 0.0,
                 random_state: int | Generator | RandomState | None = None) -> None:
        self.n_components = n_components
        self.weighting = weighting
        self.vectorizer = vectorizer
        self.tol = tol
        self.random_state = random_state

    def fit(self, documents: Any, y: Any = None, *, terms: Sequence[str] | None = None,
            titles: Sequence[str] | None = None) -> Self:
        """Fit to texts or counts.

        Parameters
        ----------
        documents : iterable of str, or (n, d) matrix of counts, sparse or dense
        y : ignored
        terms : (d,) names of the columns of counts, optional
        titles : (n,) what to call the documents; the beginning of each text if None.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            No documents, none with a term, counts that are negative, NaN or infinite, names that
            do not fit; the fitted state is unchanged.
        TypeError
            `documents` is one text, or neither texts nor numbers.
        """
        self._check_parameters()
        counts, names, texts = self._read(documents)
        if texts is None and terms is not None:
            names = tuple(map(str, terms))
        elif terms is not None:
            raise ValueError("terms are names of columns of counts; texts bring their own.")
        check_distinct(names)
        rows = as_counts(counts, self.weighting)
        weights = term_weights(rows, self.weighting, rows.shape[0])
        matrix = weighed(rows, weights, self.weighting)
        if not matrix.data.any():
            raise ValueError("no document has a term of positive weight: the matrix is zero, so "
                             "there are no axes.")
        check_extent(matrix)
        wanted = min(self.n_components, *matrix.shape)
        svd = TruncatedSVD(wanted, tol=self.tol, random_state=self.random_state).fit(matrix)
        self.model_ = self._model(svd, matrix, weights, names, titles_of(titles, texts))
        return self

    def _model(self, svd: TruncatedSVD, matrix: csr_array, weights: FloatArray,
               names: tuple[str, ...] | None, titles: tuple[str, ...] | None) -> LSIModel:
        values, report, told = svd.singular_values_, dict(svd.model_.report), svd.certificate_
        rank = int(np.count_nonzero(values > max(matrix.shape) * EPS * values[0]))
        total = report["frobenius_norm"]**2
        rest = max(0.0, total - float((values[:rank]**2).sum()))
        if rank == min(matrix.shape) or rest <= 4 * len(values) * EPS * total:
            rest = 0.0
        if told is not None and told.proved:
            rest = min(rest, float(told.upper[rank - 1])**2)
        elif self.tol <= TIGHT:
            rest = min(rest, float(values[rank - 1])**2)
        report.update(weighting=str(self.weighting), components=rank)
        if told is not None:
            told = told if rank == len(values) else replace(told.first(rank), angle=1.0)
            report["certificate"] = told.as_dict()
        return LSIModel(
            svd.components_[:rank], values[:rank], svd.transform(matrix)[:, :rank], weights,
            self.weighting, 0.0, rest, names, titles, plain_parameters(self.vectorizer),
            report)

    def transform(self, documents: Any, scaled: bool = False) -> FloatArray:
        """Return documents on the axes, (m, k): weighted counts times components' (folding-in).

        Fitted documents land on their row of ``documents_``; unknown words count for nothing.
        `scaled` divides by the singular values. Raises NotFittedError before ``fit``.
        """
        return self._placed(documents, scaled)

    def _placed(self, documents: Any, scaled: bool = False) -> FloatArray:
        """Return what `transform` does, whatever `set_output` makes of that."""
        check_is_fitted(self)
        return self.model_.transform(self._counts(documents), scaled)

    def similarities(self, documents: Any) -> FloatArray:
        """Return signed cosines (m, n) of documents to the fitted ones; 0 for empty ones.

        Examples
        --------
        >>> lsi = LSI(2).fit(["rain wind", "wind waves", "goals fouls", "fouls cards"])
        >>> lsi.similarities(["wind", "snow"]).round(3) + 0
        array([[1., 1., 0., 0.],
               [0., 0., 0., 0.]])
        """
        return self.model_.similarities(self._placed(documents))

    def query(self, text: Any, top: int = 10) -> list[Hit]:
        """Return the `top` documents of largest cosine to a text, descending.

        A text without a known word finds nothing: the list is empty. A row of counts (1, d) is
        taken too. Raises NotFittedError before ``fit``, and ValueError for several texts.

        Examples
        --------
        >>> lsi = LSI(2).fit(["rain wind", "wind waves", "goals fouls", "fouls cards"])
        >>> sorted(hit.document for hit in lsi.query("waves", top=2))  # 0 has not the word
        [0, 1]
        """
        placed = self._placed([text] if isinstance(text, str) else text)
        if len(placed) != 1:
            raise ValueError(f"query takes one text, but {len(placed)} were given; ask "
                             "similarities for the cosines of many.")
        return self._hits(placed, top)

    def similar(self, document: int, top: int = 10) -> list[Hit]:
        """Return the `top` other documents nearest to a fitted one, given by its number.

        Examples
        --------
        >>> lsi = LSI(2).fit(["rain wind", "wind waves", "goals fouls", "fouls cards"])
        >>> [hit.document for hit in lsi.similar(3, top=1)]
        [2]
        """
        check_is_fitted(self)
        count = len(self.model_.documents)
        if not whole(document, 0) or document >= count:
            raise ValueError(f"document={document!r} is not the number of a document, 0 to "
                             f"{count - 1}.")
        _check_top(top)
        hits = self._hits(self.model_.documents[document:document + 1], top + 1)
        return [hit for hit in hits if hit.document != document][:top]

    def terms(self, component: int, top: int = 10) -> list[tuple[str, float]]:
        """Return the `top` terms of largest weight on an axis, with their signed weights.

        Examples
        --------
        >>> lsi = LSI(1).fit(["wind wind rain", "wind wind waves", "wind"])
        >>> lsi.terms(0, top=1)[0][0]
        'wind'
        """
        check_is_fitted(self)
        count = len(self.model_.components)
        if not whole(component, 0) or component >= count:
            raise ValueError(f"component={component!r} is not the number of an axis, 0 to "
                             f"{count - 1}.")
        _check_top(top)
        axis, names = self.model_.components[component], self.model_.feature_names
        order = np.argsort(-np.abs(axis), kind="stable")[:top]
        return [(names[term] if names else f"x{term}", float(axis[term])) for term in order]

    def add(self, documents: Any, *, terms: Sequence[str] = (), titles: Sequence[str] | None = None,
            decay: float = 1.0) -> Self:
        """Add documents, with new terms if they have some; the axes move (Zha & Simon 1999).

        Known terms keep their weights. ``bound_`` grows by what the update leaves out.

        Parameters
        ----------
        documents : as for `fit`; counts may have more columns, which are new terms.
        terms : names of new columns of counts.
        titles : names of the documents.
        decay : float, default 1
            What the documents so far are multiplied by, in (0, 1].

        Raises
        ------
        ValueError
            As for `fit`; the fitted state is unchanged.

        Examples
        --------
        >>> lsi = LSI(2).fit(["rain wind", "wind waves", "goals fouls", "fouls cards"])
        >>> hits = lsi.add(["storm wind"]).query("storm", top=3)
        >>> sorted(hit.document for hit in hits)  # 0 and 1 have wind, too
        [0, 1, 4]
        """
        check_is_fitted(self)
        self._check_parameters()
        check_values({"decay": decay}, {"decay": (
            finite(decay) and 0 < decay <= 1, "a number above 0 and at most 1")})
        known, model, fresh = self._known(), self.model_, tuple(map(str, terms))
        texts = as_texts(documents)
        if known is None and texts is not None:
            raise TypeError(UNNAMED)
        counts, names, texts = self._read(documents if texts is None else texts, known)
        if known is not None and names is not None:
            if names[:len(known)] != known:
                raise ValueError("the columns of documents must begin with the terms of the index, "
                                 "in their order.")
            fresh = names[len(known):]
        if known is not None and len(known) + len(fresh) != counts.shape[1]:
            raise ValueError(f"documents have {counts.shape[1]} terms, of which the index names "
                             f"{len(known)}; terms= has {len(fresh)} new names.")
        check_distinct(None if known is None else (*known, *fresh))
        given = titles_of(titles, texts) or tuple("" for _ in range(counts.shape[0]))
        self.model_ = model.added(counts, fresh, given, float(decay), self.n_components)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that texts are taken, and counts, which may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.model_.components)

    def _check_parameters(self) -> None:
        check_values(vars(self), {
            "n_components": (whole(self.n_components, 1), "an integer of at least 1"),
            "weighting": (self.weighting in WEIGHTINGS, "'tfidf', 'log-entropy' or None"),
            "vectorizer": (self.vectorizer is None or (
                isinstance(self.vectorizer, CountVectorizer)
                and not isinstance(self.vectorizer, TfidfVectorizer)),
                "a CountVectorizer of scikit-learn or None"),
            "random_state": (is_seed(self.random_state), SEEDS),
        })

    def _hits(self, placed: FloatArray, top: int) -> list[Hit]:
        _check_top(top)
        if not placed.any():
            return []
        indices, cosines = self.model_.nearest(placed, top)
        return [Hit(int(index), float(cosine))
                for index, cosine in zip(indices[0], cosines[0], strict=True)]

    def _known(self) -> tuple[str, ...] | None:
        return self.model_.feature_names

    def _counts(self, documents: Any) -> Any:
        """Return counts of the known terms."""
        texts = as_texts(documents)
        if texts is None:
            return documents
        known = self._known()
        if known is None:
            raise TypeError(UNNAMED)
        return self._reader(known).transform(texts)

    def _read(self, documents: Any, known: tuple[str, ...] | None = None
              ) -> tuple[Any, tuple[str, ...] | None, list[str] | None]:
        """Return counts, terms (known ones first) and texts, None if counts were given."""
        texts = as_texts(documents)
        if texts is None:
            if not (is_sparse(documents) or np.ndim(documents) == 2):
                raise TypeError(f"documents is {type(documents).__name__}; expected texts, or a "
                                "matrix of counts.")
            names = getattr(documents, "columns", None)
            return documents, None if names is None else tuple(map(str, names)), None
        if not texts:
            raise ValueError("there are no documents; give at least one text.")
        cutter = self._cutter()
        if known is None:
            counts = cutter.fit_transform(texts)
            return counts, tuple(map(str, cutter.get_feature_names_out())), texts
        names = known
        if cutter.vocabulary is None:
            analyse = cutter.build_analyzer()
            names = (*known, *sorted({term for text in texts for term in analyse(text)}
                                     - set(known)))
        return cutter.set_params(vocabulary=names).transform(texts), names, texts

    def _reader(self, known: tuple[str, ...]) -> CountVectorizer:
        """Return what counts known terms; it is kept, for a vocabulary takes long to check."""
        kept = self.__dict__.get("_kept")
        if kept is None or kept[0] is not known or kept[1] is not self.vectorizer:
            kept = known, self.vectorizer, self._cutter().set_params(vocabulary=known)
            self._kept = kept
        return kept[2]

    def _cutter(self) -> CountVectorizer:
        return CountVectorizer() if self.vectorizer is None else clone(self.vectorizer)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return an LSI with the index that ``model_.save`` wrote; documents are mapped, not read.

        Raises ValueError if the file holds another kind of model.
        """
        model = load(path)
        if not isinstance(model, LSIModel):
            raise ValueError(f"{path} holds a {type(model).__name__}, which has no documents to "
                             "search; fit texts to get one.")
        cutter = vectorizer_of(model.tokens) if model.tokens else None
        self = cls(max(1, len(model.components)), model.weighting, vectorizer=cutter)
        self.model_ = model
        return self

    @property
    def components_(self) -> FloatArray:
        """Axes of terms, (k, d) orthonormal rows."""
        return self.model_.components

    @property
    def singular_values_(self) -> FloatArray:
        """Singular values, (k,), descending."""
        return self.model_.singular_values

    @property
    def documents_(self) -> FloatArray:
        """Fitted documents on the axes, (n, k)."""
        return self.model_.documents

    @property
    def terms_(self) -> AnyArray | None:
        """Terms, (d,) array of str, or None."""
        known = self._known()
        return None if known is None else np.array(known, dtype=object)

    @property
    def bound_(self) -> float:
        """How far squares of singular values may lie below those of all documents."""
        return self.model_.bound

    @property
    def report_(self) -> Report:
        """How the fit went; prints as a table."""
        return Report.of(self.model_.report, self.certificate_)

    @property
    def certificate_(self) -> Certificate | None:
        """Bounds on the singular values; None after `add`, and if the fit made none."""
        return self.model_.certificate


def _check_top(top: Any) -> None:
    check_values({"top": top}, {"top": (whole(top, 1), "an integer of at least 1")})
