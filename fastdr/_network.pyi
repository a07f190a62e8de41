from collections.abc import Sequence
from typing import Any, Self, final

from numpy.typing import NDArray

from fastdr.validation import FloatArray

SLICE_ROWS: int
ACTIVATIONS: dict[str, int]
UPDATES: dict[str, int]

@final
class Network:
    depth: int
    size: int
    width: int
    block_count: int
    def __new__(cls, sizes: Sequence[int], activations: Sequence[str], tied: bool) -> Self: ...
    @property
    def places(self) -> list[tuple[int, int, bool]]: ...

@final
class Training:
    def __new__(cls, net: Network, batch: int, single: bool, noisy: bool,
                workers: int) -> Self: ...
    def begin(self, rows: NDArray[Any], order: NDArray[Any], noise: NDArray[Any],
              parameters: NDArray[Any], first: NDArray[Any], second: NDArray[Any],
              mean: FloatArray, inverse: FloatArray, losses: FloatArray, update: str, rate: float,
              momentum: float, decay: float, steps: int) -> None: ...
    def work(self, worker: int) -> None: ...
    @property
    def failed(self) -> bool: ...

def apply(net: Network, begin: int, end: int, rows: NDArray[Any], parameters: NDArray[Any],
          shift: FloatArray, inverse: FloatArray, mean: FloatArray, scale: FloatArray,
          work: NDArray[Any], out: NDArray[Any]) -> bool: ...
def row_errors(net: Network, rows: NDArray[Any], parameters: NDArray[Any], mean: FloatArray,
               inverse: FloatArray, scale: FloatArray, work: NDArray[Any],
               out: FloatArray) -> bool: ...
def activate(activation: str, z: NDArray[Any], bias: NDArray[Any], slope: NDArray[Any]) -> None: ...
