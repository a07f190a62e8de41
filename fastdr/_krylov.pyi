from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Real = TypeVar("_Real", np.float32, np.float64)

def expand(basis: NDArray[_Real], known: int, size: int, overlap: NDArray[_Real],
           factor: NDArray[_Real]) -> float: ...
def rotate(basis: NDArray[_Real], turn: NDArray[_Real], work: NDArray[_Real]) -> None: ...
def symmetry(matrix: NDArray[_Real], first: int, last: int) -> tuple[float, float]: ...
