"""Texts as an index takes them: lists of them, their titles, names of terms, what cuts words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from fastdr.validation import is_sparse

TITLE = 200  # characters of a text that are kept as its title


def check_distinct(names: tuple[str, ...] | None) -> None:
    """Refuse names of terms that occur twice: a word of a text would not know its column."""
    if names is not None and len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"the term {twice!r} names two columns; names of terms must differ.")


def as_texts(documents: Any) -> list[str] | None:
    """Return texts as a list, None for what is not texts."""
    if isinstance(documents, str | bytes):
        raise TypeError("documents is one text; give a list of texts.")
    if is_sparse(documents) or not isinstance(documents, Iterable) or (
            isinstance(documents, np.ndarray) and documents.dtype.kind not in "UTO"):
        return None
    if hasattr(documents, "iloc") and getattr(documents, "ndim", 1) == 2:  # a frame of counts
        return None
    items = list(documents)
    if items and not isinstance(items[0], str):
        return None
    others = {type(item).__name__ for item in items if not isinstance(item, str)}
    if others:
        raise TypeError(f"documents mixes texts and {', '.join(sorted(others))}; give texts only.")
    return items


def titles_of(titles: Sequence[str] | None, texts: list[str] | None) -> tuple[str, ...] | None:
    """Return the given titles, or the beginnings of texts."""
    if titles is not None:
        return tuple(map(str, titles))
    if texts is None:
        return None
    return tuple(" ".join(text[:2 * TITLE].split())[:TITLE] for text in texts)


def plain_parameters(vectorizer: CountVectorizer | None) -> dict[str, Any]:
    """Return the parameters that differ from scikit-learn's defaults."""
    if vectorizer is None:
        return {}
    usual = CountVectorizer().get_params()
    return {name: list(value) if isinstance(value, tuple) else value
            for name, value in vectorizer.get_params().items()
            if value is not usual[name] and value != usual[name] and name != "vocabulary"}


def vectorizer_of(tokens: Any) -> CountVectorizer:
    """Return the vectorizer whose `plain_parameters` stand in a file."""
    return CountVectorizer(**{name: tuple(value) if name == "ngram_range" else value
                              for name, value in tokens.items()})
