"""Centred rows stood upright: one tall matrix, known by blocks, of which few columns are many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator

from fastdr.bases import orthonormalise
from fastdr.centring import CentredRows
from fastdr.dimension import flipped_values
from fastdr.operators import gram
from fastdr.sources import gathered
from fastdr.validation import FloatArray


@dataclass(frozen=True)
class Tall:
    """A tall matrix B (longest, size), known by blocks of its rows; B `null` = 0 if given.

    ``rows`` are what it is made of, if they stand upright by themselves.
    """

    blocks: Callable[[], Iterator[FloatArray]]
    size: int
    longest: int
    rereadable: bool
    null: FloatArray | None = None
    rows: CentredRows | None = None

    def summed(self, function: Callable[[Tall], Any]) -> Any:
        """Return `function` of this, or its sum over the rows of B that workers have."""
        if self.rows is None:
            return function(self)
        return self.rows.summed(partial(_of_rows, function))


Square = tuple[Tall, FloatArray]


def upright_rows(rows: CentredRows) -> Tall:
    """Stand the rows upright: A itself, or A^T if it has fewer rows than columns."""
    if rows.wide:
        size = rows.source.shape[0] or 0
        root = np.ones(size) if rows.weights is None else np.sqrt(rows.weights)
        null = root / math.sqrt(rows.weight) if rows.estimated else None
        return Tall(rows.transposed_blocks, size, rows.mean.size, True, null)
    return _as_they_are(rows)


def _as_they_are(rows: CentredRows) -> Tall:
    size = int(np.count_nonzero(rows.squares))
    return Tall(rows.blocks, size, rows.count, rows.source.rereadable, rows=rows)


def _of_rows(function: Callable[[Tall], Any], rows: CentredRows) -> Any:
    return function(_as_they_are(rows))


def upright(rows: CentredRows) -> tuple[Tall, FloatArray]:
    """Return the upright matrix and its Gram matrix, which may be destroyed."""
    tall = upright_rows(rows)
    if rows.scatter is not None:
        varying = np.flatnonzero(rows.squares > 0)
        every = varying.size == rows.mean.size
        return tall, rows.scatter if every else rows.scatter[varying].take(varying, axis=1)
    if rows.far:
        return tall, gram_of(tall)
    array = gathered(rows.source).array
    mean = np.ldexp(rows.mean, -rows.exponent)
    matrix = gram(array, mean, rows.scale, single=rows.single)
    if matrix is None:  # squares leave the float32 range
        matrix = gram(array, mean, rows.scale)
    assert matrix is not None
    if rows.exponent:
        np.ldexp(matrix, 2 * rows.exponent, out=matrix)
    if rows.weights is not None:
        unused = rows.weights == 0  # rows that may be so far away that their squares overflow
        matrix[unused] = matrix[:, unused] = 0.0
        matrix *= np.sqrt(rows.weights)
        matrix *= np.sqrt(rows.weights[:, None])
    if tall.null is not None:  # the mean is rounded, so B null is not 0 yet
        along = matrix @ tall.null
        along -= tall.null * (0.5 * (tall.null @ along))
        matrix -= np.outer(along, tall.null) + np.outer(tall.null, along)
    return tall, matrix


def gram_of(tall: Tall, vectors: FloatArray | None = None) -> FloatArray:
    """Sum B^T B over the blocks B, or the same of B V^T for `vectors` V, in float64."""
    total: FloatArray = tall.summed(partial(_gram_of, vectors))
    return total


def _gram_of(vectors: FloatArray | None, tall: Tall) -> FloatArray:
    total = np.zeros((tall.size if vectors is None else len(vectors),) * 2)
    for block in tall.blocks():
        part = block if vectors is None else block @ vectors.T
        total += part.T @ part
    return total


def back_project(tall: Tall, vectors: FloatArray, out: FloatArray) -> None:
    """Put the orthonormal rows W B / |W B| for left `vectors` W into `out`, in column chunks."""
    if not len(out):
        return
    start = 0
    for block in tall.blocks():
        np.matmul(vectors, block.T, out=out[:, start:start + len(block)])
        start += len(block)
    orthonormalise(out)


def signflipped(rows: CentredRows, rng: Generator, trials: int) -> FloatArray:
    """Return (trials, order) eigenvalues of the scatter of rows whose entries got random signs."""
    tall = upright_rows(rows)
    return np.array([flipped_values(tall.blocks(), tall.size, rng) for _ in range(trials)])
