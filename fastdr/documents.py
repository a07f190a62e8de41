"""Texts in files: one a line, or one JSON object a line; and an index of them for the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastdr.lsi import LSI

SUFFIXES = (".txt", ".jsonl")


def read_documents(path: Path) -> tuple[list[str], list[str] | None]:
    """Return the texts of a file and their titles, None if it has none.

    A ``.txt`` file has one document a line. A ``.jsonl`` file has a JSON string a line, or an
    object with "text" and perhaps "title". Empty lines are documents without a word.

    Raises
    ------
    ValueError
        Another suffix, bytes that are not UTF-8, or a line that is neither; the line is named.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.jsonl"
    >>> _ = path.write_text('{"text": "real estate", "title": "A"}' + chr(10) + '"garden"')
    >>> read_documents(path)
    (['real estate', 'garden'], ['A', ''])
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: texts are read from {' and '.join(SUFFIXES)} files.")
    try:
        with open(path, encoding="utf-8-sig") as file:  # a mark of the byte order is no text
            lines = [line.rstrip("\n") for line in file]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8.") from None
    if not lines:
        raise ValueError(f"{path}: there are no documents in it.")
    if path.suffix.lower() == ".txt":
        return lines, None
    pairs = [_parsed(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]
    titles = [title for _, title in pairs]
    return [text for text, _ in pairs], titles if any(titles) else None


def _parsed(line: str, place: str) -> tuple[str, str]:
    """Return text and title of a line of JSON."""
    if not line.strip():
        return "", ""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}.") from None
    if isinstance(value, str):
        return value, ""
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError(f'{place} is neither a string nor an object with a string "text".')
    title = value.get("title")
    return value["text"], "" if title is None else str(title)


def index_documents(path: Path, components: int | None, weighting: str | None) -> LSI:
    """Return an index of the texts of a file."""
    texts, titles = read_documents(path)
    index = LSI(weighting=weighting) if components is None else LSI(components, weighting)
    return index.fit(texts, titles=titles)


def search(path: Path, text: str, top: int) -> list[dict[str, Any]]:
    """Return what an index in a file finds, as plain values: document, cosine, title."""
    index = LSI.load(path)
    titles = index.model_.titles
    return [{"document": hit.document, "cosine": round(hit.cosine, 6),
             **({} if titles is None else {"title": titles[hit.document]})}
            for hit in index.query(text, top)]
