"""The claims as a table: which cost grows with which size, how fast, and where it is measured."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, int]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Law:
    """A cost that grows as `axis` ** `exponent` while the other size stays `fixed`.

    `timed` are the operations timed here besides being counted as `operation`; sizes are given
    for seconds, for the quick run, and for counting. Rows exceed columns on the side "tall".
    """

    operation: str
    axis: str
    exponent: int
    side: str
    fixed: int
    sizes: Sizes
    quick_fixed: int
    quick_sizes: Sizes
    count_fixed: int
    count_sizes: Sizes
    timed: tuple[str, ...]

    @property
    def key(self) -> str:
        """Name the law in the results, as "svd N tall"."""
        return f"{self.operation} {self.axis} {self.side}".strip()

    def shape(self, size: int, fixed: int) -> Shape:
        """Return rows and columns; what is square itself is XᵀX of twice as many rows."""
        if not fixed:
            return 2 * size, size
        return (size, fixed) if self.axis == "N" else (fixed, size)

    def shapes(self, quick: bool) -> list[Shape]:
        """Return the shapes that are timed."""
        fixed, sizes = (self.quick_fixed, self.quick_sizes) if quick else (self.fixed, self.sizes)
        return [self.shape(size, fixed) for size in sizes]

    def counted(self, quick: bool) -> list[Shape]:
        """Return the shapes whose operations are counted; a quick run leaves the largest out."""
        sizes = self.count_sizes[:-1] if quick else self.count_sizes
        return [self.shape(size, self.count_fixed) for size in sizes]

    def instructed(self) -> list[Shape]:
        """Return the shapes whose instructions are counted: twice the sizes, to fill blocks."""
        return [self.shape(2 * size, self.count_fixed) for size in self.count_sizes]

    def along(self, shapes: list[Shape]) -> list[int]:
        """Return the size that varies."""
        return [shape[0 if self.axis == "N" else 1] for shape in shapes]


def _doubled(first: int, count: int) -> Sizes:
    return tuple(first << step for step in range(count))


def _between(first: int, count: int) -> Sizes:
    """Powers of two times `first` and three halves of them."""
    return tuple(size for power in _doubled(first, (count + 1) // 2)
                 for size in (power, power * 3 // 2))[:count]


LAWS = (
    Law("form", "N", 1, "tall", 256, _between(2048, 8), 128, _doubled(1024, 4),
        32, _doubled(64, 6), ("form",)),
    Law("form", "d", 2, "tall", 8192, _between(64, 8), 2048, _doubled(64, 4),
        512, _doubled(16, 6), ("form",)),
    Law("eig", "d", 3, "", 0, _between(128, 7), 0, _between(64, 4),
        0, _between(32, 7), ("eig",)),
    Law("svd", "N", 1, "tall", 64, _between(4096, 9), 32, _doubled(512, 4),
        16, _doubled(128, 7), ("svd", "pca")),
    Law("svd", "d", 2, "tall", 16384, _between(32, 7), 4096, _between(16, 4),
        4096, _between(8, 7), ("svd", "pca")),
    Law("svd", "N", 2, "wide", 16384, _between(32, 7), 4096, _between(16, 4),
        4096, _between(8, 7), ("svd", "pca")),
    Law("svd", "d", 1, "wide", 64, _between(1024, 9), 32, _doubled(512, 4),
        16, _doubled(128, 7), ("svd", "pca")),
)


@dataclass(frozen=True)
class Crossover:
    """Both ways at d columns for rows around d, in seconds and in counted operations."""

    columns: int
    parts: tuple[float, ...]
    quick_columns: int
    count_columns: int

    def _at(self, columns: int) -> tuple[int, Sizes]:
        return columns, tuple(max(2, round(part * columns)) for part in self.parts)

    def sizes(self, quick: bool) -> tuple[int, Sizes]:
        """Return the columns and the numbers of rows that are timed."""
        return self._at(self.quick_columns if quick else self.columns)

    def counted(self, quick: bool) -> tuple[int, Sizes]:
        """Return the columns and the numbers of rows that are counted."""
        return self._at(self.count_columns // 2 if quick else self.count_columns)


CROSSOVER = Crossover(512, (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1, 2, 4, 8), 128, 96)
