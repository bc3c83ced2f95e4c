"""`Signature`: a line of index notation with sizes, from which everything else is derived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.lang.notation import CUSTOM, Notation, Row
from weft.lang.signature_picture import Cell, draw_signature
from weft.lang.size import Size, as_sizes
from weft.space import Projection, ZRange
from weft.values import FrozenMap, Point, freeze

TensorRows: TypeAlias = tuple[Row, ...]


@dataclass(frozen=True, slots=True, init=False)
class Signature(Drawn):
    """The index space of one application of an operator, and its projections onto the tensors.

    >>> matmul = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> dict(matmul.sizes), matmul.result_shapes
    ({'m': 8, 'n': 32, 'k': 16}, ((8, 32),))
    >>> box = ZRange((4, 0, 8), (8, 32, 12))  # a block of m, all of n, a block of k
    >>> print(*(p.image(box) for p in matmul.operands), matmul.results[0].image(box))
    [4:8, 8:12] [8:12, 0:32] [4:8, 0:32]
    """

    notation: Notation
    sizes: Mapping[str, int]
    operand_shapes: tuple[Point, ...]
    result_shapes: tuple[Point, ...]

    def __init__(
        self,
        notation: Notation,
        operand_shapes: Iterable[Iterable[int]],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        shapes = tuple(map(as_sizes, operand_shapes))
        if len(shapes) != len(notation.operands):
            raise WeftError(
                f"expected {len(notation.operands)} operands, got {len(shapes)}: {notation}"
            )
        known: dict[str, int] = {}
        for number, (shape, rows) in enumerate(zip(shapes, notation.operands)):
            _measure(number, shape, rows, known, sizes or {})
        known |= sizes or {}
        for name in notation.dims:
            if name not in known:
                raise WeftError(f"the size of '{name}' follows from no operand: {notation}")
        ordered = FrozenMap((name, known[name]) for name in notation.dims)
        results = tuple(tuple(_extent(row, ordered) for row in rows) for rows in notation.results)
        freeze(self, notation=notation, sizes=ordered, operand_shapes=shapes, result_shapes=results)

    @classmethod
    def of(
        cls,
        text: str,
        operand_shapes: Iterable[Iterable[int]],
        sizes: Mapping[str, int] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> Signature:
        """Return the signature of a line of text; `numbers` replaces names in it.

        `sizes` are those of index dimensions that stand alone in no operand.
        """
        return cls(Notation.parse(text, **(numbers or {})), operand_shapes, sizes)

    def drawing(self, *, cell: Cell | None = None) -> Drawing:
        """Draw an index box and its images in all arrays; by default that of one result element.

        `cell` is an index box, a point of the index space, or a point along some of its dimensions.
        """
        return draw_signature(self, cell)

    @property
    def space(self) -> ZRange:
        """The index space: all sub-problems, dimensions in the order of `sizes`."""
        return ZRange.of(self.sizes.values())

    @property
    def operands(self) -> tuple[Projection, ...]:
        """The projections of the index space onto the operands."""
        return tuple(
            _projection(rows, tuple(self.sizes.items())) for rows in self.notation.operands
        )

    @property
    def results(self) -> tuple[Projection, ...]:
        """The projections of the index space onto the results."""
        sizes = tuple(self.sizes.items())
        return tuple(_projection(rows, sizes) for rows in self.notation.results)

    @property
    def reduced(self) -> tuple[str, ...]:
        """The index dimensions that are combined by a monoid."""
        monoids = self.notation.reduced
        return tuple(name for name in self.sizes if monoids.get(name, CUSTOM) != CUSTOM)

    @property
    def fixed(self) -> frozenset[str]:
        """The index dimensions that cannot be cut: in brackets, or lost without a reduction.

        With two monoids no reduced dimension can be cut: the maximum of sums is not the sum of
        maxima, so that parts of the one cannot be combined before the other.

        >>> Signature.of("m [k] -> m [k]", [(4, 2)]).fixed
        frozenset({'k'})
        >>> sorted(Signature.of("i j k -> i  sum: k  max: j", [(4, 2, 3)]).fixed)
        ['j', 'k']
        """
        kept = {name for rows in self.notation.results for row in rows for name in row.dims}
        lost = {d for d in self.sizes if d not in kept and d not in self.notation.reduced}
        reduced = self.reduced
        monoids = {self.notation.reduced[name] for name in reduced}
        return self.notation.whole.union(lost, reduced if len(monoids) > 1 else ())

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.notation}  {{{sizes}}}"


def _measure(
    number: int, shape: Point, rows: TensorRows, known: dict[str, int], given: Mapping[str, int]
) -> None:
    """Add the sizes of the dimensions that are plain rows; they must agree.

    A given size need not be that of the operand: a slice reads a part of it.
    """
    if len(shape) != len(rows):
        raise WeftError(
            f"operand {number} has {len(shape)} dimensions, {list(shape)}, and its notation has "
            f"{len(rows)}: {' '.join(map(str, rows)) or 'a scalar'}"
        )
    for dim, (size, row) in enumerate(zip(shape, rows)):
        name = row.plain
        if name is not None and name not in given and known.setdefault(name, size) != size:
            unknown = [f"{n} may be any" for n in (size, known[name]) if isinstance(n, Size)]
            raise WeftError(
                f"dimension {dim} of operand {number} has size {size}, and '{name}' has size "
                f"{known[name]} elsewhere",
                hint=f"{unknown[0]} number: give equal sizes one name" if unknown else None,
            )
        if row == Row() and size != 1:
            raise WeftError(f"dimension {dim} of operand {number} has size {size}, expected 1")


def _extent(row: Row, sizes: Mapping[str, int]) -> int:
    """Return the size of a result dimension: one past the last element of the row."""
    last = sum(a * (sizes[name] - 1) for name, a in row.terms if a > 0)
    return max(0, last + row.offset + row.extent) if all(sizes[d] for d in row.dims) else 0


@lru_cache(maxsize=4096)
def _projection(rows: TensorRows, sizes: tuple[tuple[str, int], ...]) -> Projection:
    whole = [row if row.divisor == 1 else _undivided(row, dict(sizes)) for row in rows]
    matrix = [[dict(row.terms).get(name, 0) for name, _ in sizes] for row in whole]
    return Projection(
        matrix, [row.offset for row in whole], [row.extent for row in whole], index_ndim=len(sizes)
    )


def _undivided(row: Row, sizes: Mapping[str, int]) -> Row:
    """Return a row without division whose window contains all elements that are read.

    >>> print(_undivided(Row((("y", 1),), divisor=2), {"y": 8}))
    y-3+:4
    """
    by = row.divisor
    whole = {n: (1 if a > 0 else -1) * max(1, abs(a) // by) for n, a in row.terms}
    drift = [(a - whole[name] * by) * max(0, sizes[name] - 1) for name, a in row.terms]
    low = -(-(row.offset + sum(min(0, d) for d in drift)) // by)
    high = (row.offset + row.extent - 1 + sum(max(0, d) for d in drift)) // by
    return Row(tuple(whole.items()), low, max(1, high - low + 1))
