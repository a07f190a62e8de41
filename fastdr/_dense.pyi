from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from fastdr._threads import Work
from fastdr.validation import FloatArray

def available_isas() -> list[str]: ...
def isa() -> str: ...

EXPANDED: int
GROUPS: int
LARGE_PAGE: int
LEAST_PANEL: int
PANEL: int
SHARED_FEATURES: int

@final
class Matrix:
    def __init__(self, array: NDArray[Any], transposed: bool = False,
                 writable: bool = False) -> None: ...

@final
class Memory: ...

@final
class Scatter:
    features: int
    itemsize: int
    outside: bool
    def __init__(self, features: int, storage: FloatArray | None, shift: FloatArray,
                 itemsize: int, fixed: bool, row_shift: FloatArray | None = None) -> None: ...
    def add_rows(self, rows: Matrix, first: int, last: int, weight: FloatArray | None = None,
                 root: FloatArray | None = None) -> bool: ...
    def merge(self, other: Scatter) -> None: ...
    def centre(self, offset: FloatArray) -> None: ...
    def movable(self, first: int, itemsize: int) -> int: ...

@disjoint_base
class Chunks(Work): ...

@final
class Expansion(Chunks):
    def __init__(self, scatter: Scatter, first: int, last: int, mirrored: bool = False,
                 divisor: float = 0) -> None: ...

@final
class ScatterGroups(Chunks):
    finite: bool
    def __init__(self, total: Scatter, others: list[Scatter], rows: Matrix,
                 edges: NDArray[np.intp], weight: FloatArray | None, root: FloatArray | None,
                 threads: int) -> None: ...
    def merge(self) -> None: ...

@final
class SharedScatter(Work):
    finite: bool
    def __init__(self, total: Scatter, parts: NDArray[np.intp]) -> None: ...
    def begin(self, rows: Matrix, first: int, last: int, weight: FloatArray | None = None,
              root: FloatArray | None = None) -> None: ...

def triangle_size(features: int, itemsize: int) -> int: ...
def storage_size(features: int, itemsize: int) -> int: ...
def step_rows(itemsize: int) -> int: ...
def strip_width(itemsize: int) -> int: ...
def centre_classes(rows: FloatArray, codes: NDArray[np.intp], centres: FloatArray,
                   weight: FloatArray | None, sums: FloatArray, out: FloatArray) -> None: ...
def add_column_sums(rows: Matrix, first: int, last: int, shift: FloatArray,
                    root: FloatArray | None, sums: FloatArray, squares: FloatArray) -> None: ...
@disjoint_base
class RowChunks(Chunks): ...

@final
class Products(RowChunks):
    finite: bool
    def __init__(self, rows: Matrix, first: int, last: int, step: int, threads: int,
                 shift: FloatArray, factor: Matrix, offset: FloatArray, out: Matrix) -> None: ...

@final
class RowErrors(RowChunks):
    def __init__(self, rows: Matrix, first: int, last: int, step: int, threads: int,
                 shift: FloatArray, forward: Matrix, backward: Matrix, out: FloatArray
                 ) -> None: ...

@disjoint_base
class Action(RowChunks): ...

@final
class GramSum(Action):
    def __init__(self, rows: Matrix, first: int, last: int, step: int, threads: int,
                 shift: FloatArray, apart: bool, V: Matrix, out: Matrix) -> None: ...

@final
class SymmetricSum(Action):
    def __init__(self, C: Matrix, edges: NDArray[np.intp], threads: int, V: Matrix, out: Matrix
                 ) -> None: ...

def gram_width(single: bool) -> int: ...
def peak_flops(itemsize: int, iterations: int) -> float: ...
def read_bytes(view: NDArray[Any], start: int, stop: int) -> float: ...
