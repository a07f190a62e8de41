"""The table of cases: what is computed on which data, by whom, and what must be reached.

`target` is the least ratio of the fastest rival's time to ours, `share` the least share of the
binding machine limit, `allowed` the largest error that counts as a right answer. Targets hold
for the full shape on two threads; the quick shape only shows that the row works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from bench import contestants, data, gaps, networks, reference, rivals, sparse
from bench.contestants import Contestant
from bench.data import Inputs

Shape = tuple[int, int]


@dataclass(frozen=True)
class Work:
    """Operations and bytes that a case cannot do without.

    `flops` counts multiplications and additions, done in `arithmetic`; `traffic` is what must be
    read and written once, in bytes.
    """

    flops: float
    traffic: float
    arithmetic: str


@dataclass(frozen=True)
class Case:
    """One row of the table; `full` and `quick` are shapes (rows, columns).

    `entries` tells how many such a shape stores if the rows are sparse.
    """

    group: str
    dtype: str
    full: Shape
    quick: Shape
    make: Callable[[int, int, str], Inputs]
    contestants: tuple[Contestant, ...]
    error: Callable[[Inputs, Any], float]
    allowed: float
    work: Callable[[int, int, str], Work] | None = None
    target: float = 1.0
    share: float | None = None
    detail: str = ""
    entries: Callable[[int, int], int] | None = None

    @property
    def name(self) -> str:
        """Tell the case by its full shape; a quick run has the same name."""
        rows, columns = self.full
        return f"{self.group} {rows}x{columns}{self.detail} {self.dtype}"

    def nbytes(self, shape: Shape) -> int:
        """Return the size of the data, about if they are sparse."""
        if self.entries is None:
            return shape[0] * shape[1] * _size(self.dtype)
        return self.entries(*shape) * (_size(self.dtype) + 4) + 8 * shape[0]

    def inputs(self, shape: Shape) -> Inputs:
        """Make the data of the case for a shape (rows, columns)."""
        return self.make(*shape, self.dtype)


def _size(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def _arithmetic(dtype: str) -> str:
    """Return the least precise floating-point arithmetic that does it; bytes are exact in f4.

    They are multiplied as int16 in fact, so their share of f4's peak may exceed 1.
    """
    return "f4" if dtype in ("f4", "u1") else "f8"


def _triangle(rows: int, columns: int, dtype: str) -> Work:
    """Count one triangle of the scatter: one multiplication and one addition an entry and row."""
    return Work(float(rows) * columns * (columns + 1),
                float(rows) * columns * _size(dtype) + 8.0 * columns**2, _arithmetic(dtype))


def _gram_triangle(rows: int, columns: int, dtype: str) -> Work:
    return Work(float(columns) * rows * (rows + 1),
                float(rows) * columns * _size(dtype) + 8.0 * rows**2, "f8")


def _scores(k: int, products: int = 1, results: int | None = None) -> Callable[..., Work]:
    """Count `products` products with k components, reading X and writing `results` columns."""

    def work(rows: int, columns: int, dtype: str) -> Work:
        written = k if results is None else results
        return Work(2.0 * products * rows * columns * k,
                    float(rows) * (columns + written) * _size(dtype), _arithmetic(dtype))

    return work


def _twice(rows: int, columns: int, dtype: str) -> Work:
    """Count A V, then Aᵀ times that, in one read of A."""
    width = 64 // _size(dtype)
    return Work(4.0 * rows * columns * width, float(rows) * columns * _size(dtype), dtype)


def _epoch(rows: int, columns: int, dtype: str) -> Work:
    """Count rows forward, residuals back to the first layer, and gradients, in one read of X."""
    sizes = (columns, *networks.HIDDEN, columns)
    weights = sum(i * o for i, o in zip(sizes, sizes[1:], strict=False))
    return Work(2.0 * rows * (3 * weights - columns * networks.HIDDEN[0]),
                float(rows) * columns * _size(dtype), _arithmetic(dtype))


def _covariance(full: Shape, quick: Shape, target: float, share: float | None) -> list[Case]:
    return [Case("covariance", dtype, full, quick, data.plain, contestants.COVARIANCE,
                 reference.covariance_error, allowed, _triangle, target, share)
            for dtype, allowed in (("f8", 1e-12), ("f4", 1e-5))]


_COVARIANCES = [
    *_covariance((1_000_000, 8), (100_000, 8), 4.0, 0.65),
    *_covariance((1_000_000, 16), (50_000, 16), 2.5, 0.65),
    *_covariance((1_000_000, 32), (50_000, 32), 2.5, None),
    *_covariance((1_000_000, 64), (50_000, 64), 2.5, 0.60),
    *_covariance((1_000_000, 128), (20_000, 128), 1.8, 0.60),
    *_covariance((200_000, 512), (8_000, 512), 1.45, 0.75),
    *_covariance((20_000, 1000), (2_000, 1000), 1.2, 0.75),
    *_covariance((10_000, 4000), (1_000, 2000), 1.05, 0.75),
    Case("covariance", "u1", (1_000_000, 64), (50_000, 64), data.plain,
         contestants.INTEGER_COVARIANCE, reference.covariance_error, 1e-12, _triangle, 4.0),
]

_GRAM_APPLIES = [
    Case("gram_apply", dtype, full, quick, data.with_columns, contestants.GRAM_APPLY,
         reference.gram_apply_error, allowed, _twice, 3.0, detail=f"·{64 // _size(dtype)}")
    for full, quick in (((60_000, 500), (6_000, 500)), ((20_000, 1500), (2_000, 1500)),
                        ((8_000, 4000), (1_000, 4000)))
    for dtype, allowed in (("f8", 1e-12), ("f4", 1e-5))
]

_FEW_AXES = [
    *(Case("PCA.fit few", dtype, full, quick, data.decaying(k), rivals, reference.fit_error,
           1e-9 if dtype == "f8" else 1e-5, None, target, detail=f"→{k}")
      for full, quick, dtype, k, rivals, target in (
          ((10_000, 4000), (2_000, 1000), "f8", 50, contestants.FIT_FEW, 4.0),
          ((10_000, 4000), (2_000, 1000), "f4", 50, contestants.FIT_FEW, 3.0),
          ((2000, 20_000), (500, 4000), "f4", 50, contestants.FIT_FEW_WIDE, 2.0),
          ((100_000, 2000), (4_000, 1000), "f8", 10, contestants.FIT_FEW, 4.0))),
    *(Case("eigsh", "f8", (4000, 4000), (1000, 1000), data.with_covariance(k), contestants.EIGSH,
           reference.eigen_error, 1e-9, None, 2.0, detail=f"→{k}") for k in (10, 50)),
    Case("eigsh, proof", "f8", (4000, 4000), (1000, 1000), data.with_covariance(10),
         contestants.PROOF, reference.eigen_error, 1e-9, detail="→10"),
]



def _stored_twice(rows: int, columns: int, dtype: str) -> Work:
    """Count A V, then Aᵀ times that, in one read of what A stores."""
    stored = float(sparse.entries(rows, columns))
    return Work(4.0 * stored * (64 // _size(dtype)), stored * (_size(dtype) + 4), dtype)


def _query(rows: int, columns: int, dtype: str) -> Work:
    """Count the cosines of one query, the documents read in float32."""
    return Work(2.0 * rows * columns, 4.0 * rows * columns, "f4")


_SPARSE = [
    Case("PCA.fit sparse", "f4", (200_000, 20_000), (2_000, 1_000), sparse.counts(50), sparse.FIT,
         sparse.fit_error, 1e-5, None, 3.0, detail="→50", entries=sparse.entries),
    Case("TruncatedSVD.fit sparse", "f4", (200_000, 20_000), (2_000, 1_000), sparse.counts(100),
         sparse.DECOMPOSE, sparse.decomposition_error, 1e-5, None, 2.0, detail="→100",
         entries=sparse.entries),
    *(Case("gram_apply sparse", dtype, (200_000, 20_000), (2_000, 1_000), sparse.with_columns,
           sparse.GRAM_APPLY, sparse.gram_apply_error, allowed, _stored_twice, 2.0,
           detail=f"·{64 // _size(dtype)}", entries=sparse.entries)
      for dtype, allowed in (("f8", 1e-12), ("f4", 1e-5))),
    Case("LSI query", "f8", (100_000, 100), (5_000, 50), sparse.index, sparse.QUERY,
         sparse.query_error, 1e-6, _query, detail="→10"),
]

if find_spec("scanpy"):  # which is ours on our side, too, so without it there is no row
    _SPARSE.append(Case(
        "scanpy.pp.pca sparse", "f4", (50_000, 2_000), (2_000, 1_000), sparse.counts(50),
        sparse.SCANPY, sparse.fit_error, 1e-5, None, detail="→50", entries=sparse.entries))

CASES: tuple[Case, ...] = (
    *_COVARIANCES,
    Case("transform", "f8", (1_000_000, 128), (50_000, 128), data.with_components(10),
         contestants.TRANSFORM, reference.transform_error, 1e-12, _scores(10), 3.0, detail="→10"),
    Case("transform", "f8", (200_000, 512), (10_000, 512), data.with_components(50),
         contestants.TRANSFORM, reference.transform_error, 1e-12, _scores(50), 2.0, detail="→50"),
    Case("transform", "f4", (1_000_000, 128), (50_000, 128), data.with_components(10),
         contestants.TRANSFORM, reference.transform_error, 1e-5, _scores(10), 1.0, detail="→10"),
    Case("reconstruct", "f8", (1_000_000, 128), (50_000, 128), data.with_scores(10),
         contestants.RECONSTRUCT, reference.reconstruct_error, 1e-12, _scores(10), detail="←10"),
    Case("reconstruct", "f8", (200_000, 512), (10_000, 512), data.with_scores(50),
         contestants.RECONSTRUCT, reference.reconstruct_error, 1e-12, _scores(50), detail="←50"),
    Case("reconstruction_error", "f8", (200_000, 512), (10_000, 512), data.with_components(50),
         contestants.ROW_ERRORS, reference.row_error_error, 1e-9, _scores(50, 2, 1), 3.0,
         detail="→50"),
    Case("PCA.fit", "f8", (1_000_000, 128), (20_000, 128), data.with_components(10),
         contestants.FIT + rivals.EXACT + rivals.APPROXIMATE, reference.fit_error, 1e-10,
         _triangle, 1.9, detail="→10"),
    Case("PCA.fit", "f4", (1_000_000, 128), (20_000, 128), data.with_components(10),
         contestants.FIT + rivals.EXACT + rivals.APPROXIMATE + rivals.SINGLE,
         reference.fit_error, 1e-5, _triangle, 1.9, detail="→10"),
    Case("PCA.fit digits", "f8", (1797, 64), (1797, 64), data.digits(10), contestants.FIT,
         reference.fit_error, 1e-10, detail="→10"),
    Case("PCA.fit digits", "f8", (1797, 64), (1797, 64), data.digits(0), contestants.FIT,
         reference.fit_error, 1e-10, detail="→all"),
    Case("PCA.fit", "f4", (50, 200_000), (50, 20_000), data.with_components(5),
         contestants.FIT_WIDE, reference.fit_error, 1e-5, _gram_triangle, detail="→5"),
    *_FEW_AXES,
    Case("PCA.fit missing", "f8", (4_000, 50), (500, 30), gaps.inputs, gaps.MISSING, gaps.gap,
         2 * gaps.GAP, target=5.0, detail=f"→{gaps.AXES}"),
    Case("partial_fit", "f8", (20_000, 200), (3_000, 20), data.with_components(10),
         contestants.STREAM, reference.fit_error, 1e-11, _triangle, 10.0, detail="→10"),
    Case("partial_fit", "f8", (20_000, 1_000), (1_000, 50), data.with_components(10),
         contestants.STREAM, reference.fit_error, 1e-11, _triangle, 10.0, detail="→10"),
    Case("LDA.fit", "f8", (100_000, 200), (10_000, 50), data.with_classes(10),
         contestants.DISCRIMINANT, reference.discriminant_error, 1e-10, _triangle, 5.0,
         detail="→9"),
    Case("LDA.fit", "f8", (500, 10_000), (200, 2_000), data.with_classes(10),
         contestants.DISCRIMINANT_WIDE, reference.discriminant_error, 1e-9, _gram_triangle, 3.0,
         detail="→9"),
    Case("FastICA.fit", "f8", (100_000, 64), (10_000, 16), data.mixture, contestants.UNMIXING,
         reference.unmixing_error, 1e-6, target=4.0),
    Case("AutoEncoder epoch", "f4", (60_000, 784), (4_000, 784), networks.inputs, networks.EPOCH,
         networks.epoch_error, 1e-5, _epoch, 1.5, detail="→128→32"),
    *_GRAM_APPLIES,
    Case("gram", "f8", (1_000, 20_000), (300, 5_000), data.with_mean, contestants.GRAM,
         reference.gram_error, 1e-12, _gram_triangle),
    Case("gram", "f8", (50, 200_000), (50, 20_000), data.with_mean, contestants.GRAM,
         reference.gram_error, 1e-12, _gram_triangle),
    *_SPARSE,
)


def select(pattern: str | None) -> list[Case]:
    """Cases whose name holds every word of `pattern`; ValueError if there is none."""
    words = (pattern or "").lower().split()
    chosen = [case for case in CASES if all(word in case.name.lower() for word in words)]
    if not chosen:
        names = "\n  ".join(case.name for case in CASES)
        raise ValueError(f"no case matches {pattern!r}; the cases are\n  {names}")
    return chosen
