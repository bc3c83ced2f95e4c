"""`Storage`: the chunks and shards of an array, and which of them a box touches.

Chunks are the unit of reading, shards the unit of writing. Both are blocks of a `BlockGrid`, and a
shard consists of whole chunks. At the edge of an array chunks reach beyond it: they are stored
whole, as Zarr does, and count whole. Chunks of a shard that lie outside altogether are not stored.

What a cell reads several times is counted once: boxes are joined where their hull touches no more
bytes than each of them by itself. A block is written by the first cell that holds it, in whole
shards. Where two cells have parts of one shard, both write all of it, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from math import isfinite, prod
from typing import NamedTuple, SupportsFloat, SupportsIndex

from weft.errors import WeftError
from weft.space import BlockGrid, ZRange
from weft.values import Point, as_count, as_point, as_shape, freeze


class Touched(NamedTuple):
    """A number of chunks, and their bytes once they are decoded."""

    chunks: int
    nbytes: int


@dataclass(frozen=True, slots=True, init=False)
class Storage:
    """An array in storage: its shape, its chunks, its shards, the bytes of an element.

    Without shards every chunk is one. `ratio` says how many bytes become one by compression: bytes
    are counted as they are decoded, seconds as they are stored.

    >>> x = Storage((8, 100), chunk=(2, 64), itemsize=4)
    >>> x.touched(ZRange((1, 0), (3, 32)))
    Touched(chunks=2, nbytes=1024)
    >>> x.amplification([ZRange((1, 0), (3, 32))])
    4.0
    """

    shape: Point
    chunk: Point
    shard: Point
    itemsize: int
    ratio: float
    chunk_grid: BlockGrid = field(repr=False, compare=False)
    shard_grid: BlockGrid = field(repr=False, compare=False)

    def __init__(
        self,
        shape: Iterable[SupportsIndex],
        chunk: Iterable[SupportsIndex],
        shard: Iterable[SupportsIndex] | None = None,
        itemsize: int = 1,
        ratio: float = 1.0,
    ) -> None:
        sizes = as_shape(shape)
        small = _as_block(chunk, "a chunk", len(sizes))
        large = small if shard is None else _as_block(shard, "a shard", len(sizes))
        for dim, (s, c) in enumerate(zip(large, small)):
            if s % c:
                raise WeftError(
                    f"dimension {dim}: a shard of {s} is not made of whole chunks of {c}: "
                    f"{s} = {s // c} x {c} + {s % c}"
                )
        if as_count(itemsize, "itemsize") < 1:
            raise WeftError("an element in storage has at least 1 B, got an itemsize of 0")
        if not isinstance(ratio, SupportsFloat) or isinstance(ratio, str):
            raise WeftError(f"the ratio of storage must be a number: {ratio!r}")
        if not (float(ratio) > 0 and isfinite(float(ratio))):
            raise WeftError(f"the ratio of storage is {ratio}; it must be finite, above 0")
        freeze(
            self,
            shape=sizes,
            chunk=small,
            shard=large,
            itemsize=int(itemsize),
            ratio=float(ratio),
            chunk_grid=BlockGrid.blocks(sizes, small),
            shard_grid=BlockGrid.blocks(sizes, large),
        )

    @property
    def space(self) -> ZRange:
        """The box of the whole array."""
        return ZRange.of(self.shape)

    def chunks(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """Return the chunks that a box touches, or all, as far as they lie in the array.

        >>> print(*Storage((5, 4), (2, 4)).chunks())
        [0:2, 0:4] [2:4, 0:4] [4:5, 0:4]
        """
        return map(self.chunk_grid.box, self.chunk_grid.meeting(self.space if box is None else box))

    def shards(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """Return the shards that a box touches, or all, as far as they lie in the array.

        >>> print(*Storage((8, 4), (1, 4), (3, 4)).shards(ZRange((2, 1), (4, 2))))
        [0:3, 0:4] [3:6, 0:4]
        """
        return map(self.shard_grid.box, self.shard_grid.meeting(self.space if box is None else box))

    def touched(self, box: ZRange) -> Touched:
        """Return the chunks that are read for a box, each of them whole."""
        count = self.chunk_grid.count_meeting(box)
        return Touched(count, count * prod(self.chunk) * self.itemsize)

    def written(self, box: ZRange) -> Touched:
        """Return the chunks that are written for a box: all those of the shards that it touches.

        >>> y = Storage((8, 4), (1, 4), (4, 4))
        >>> y.written(ZRange((0, 0), (4, 4))), y.written(ZRange((2, 0), (4, 4)))
        (Touched(chunks=4, nbytes=16), Touched(chunks=4, nbytes=16))
        """
        return self.touched(self.shard_grid.widen(box))

    def aligned(self, box: ZRange) -> bool:
        """Return whether a box consists of whole shards, as far as they lie in the array.

        >>> y = Storage((10, 4), (1, 4), (4, 4))
        >>> y.aligned(ZRange((4, 0), (10, 4))), y.aligned(ZRange((0, 0), (2, 4)))
        (True, False)
        """
        return box.is_empty or self.shard_grid.widen(box) == box

    def amplification(self, boxes: Iterable[ZRange]) -> float:
        """Return the bytes of the chunks that boxes touch over their own; 1 for nothing."""
        every = list(boxes)
        needed = self.itemsize * sum((box & self.space).size for box in every)
        read = sum(self.touched(box).nbytes for box in every)
        return read / needed if needed else 1.0

    def __str__(self) -> str:
        shard = "" if self.shard == self.chunk else f" in shards of {_by(self.shard)}"
        return f"{_by(self.shape)} in chunks of {_by(self.chunk)}{shard}"


class Traffic(NamedTuple):
    """The bytes that go between storage and cells."""

    cells: Point
    """The bytes of the chunks that each cell reads or writes, decoded, in rank order."""
    needed: int
    """The bytes that they are read or written for, of all cells."""

    @property
    def nbytes(self) -> int:
        """The bytes of all cells."""
        return sum(self.cells)


def read_traffic(storage: Storage, boxes: Iterable[Sequence[ZRange]]) -> Traffic:
    """Return the traffic of reading some boxes for each cell; those of one cell are joined."""
    found = [_read(storage, tuple(cell)) for cell in boxes]
    return Traffic(tuple(read for read, _ in found), sum(needed for _, needed in found))


@lru_cache(maxsize=1 << 14)
def _read(storage: Storage, boxes: tuple[ZRange, ...]) -> tuple[int, int]:
    """Return the bytes that one cell reads, and those that it needs, each once."""
    read = sum(storage.touched(box).nbytes for box in joined(storage, boxes))
    parts = (part for n, box in enumerate(boxes) for part in box.difference(*boxes[:n]))
    return read, storage.itemsize * sum(part.size for part in parts)


@lru_cache(maxsize=1 << 14)
def joined(storage: Storage, boxes: tuple[ZRange, ...]) -> tuple[ZRange, ...]:
    """Return boxes that hold others, as few as touch no more bytes than those one by one.

    >>> x = Storage((100,), (10,))
    >>> print(*joined(x, (ZRange((0,), (4,)), ZRange((6,), (12,)), ZRange((50,), (51,)))))
    [0:12] [50:51]
    """
    left = sorted({box for box in boxes if box}, key=_corners)
    while pair := next((two for two in combinations(left, 2) if _belong(storage, *two)), None):
        left = [box for box in left if box not in pair]
        left.append(pair[0].hull(pair[1]))
    return tuple(sorted(left, key=_corners))


def _corners(box: ZRange) -> tuple[Point, Point]:
    return box.start, box.stop


def _belong(storage: Storage, one: ZRange, two: ZRange) -> bool:
    apart = storage.touched(one).nbytes + storage.touched(two).nbytes
    return storage.touched(one.hull(two)).nbytes <= apart


def first_boxes(boxes: Iterable[ZRange]) -> tuple[ZRange | None, ...]:
    """Return the box of each cell that is the first to hold it; None for the others.

    >>> print(*first_boxes([ZRange((0,), (4,)), ZRange((4,), (8,)), ZRange((0,), (4,))]))
    [0:4] [4:8] None
    """
    seen = set[ZRange]()
    found: list[ZRange | None] = []
    for box in boxes:
        found.append(box if box and box not in seen else None)
        seen.add(box)
    return tuple(found)


def write_traffic(storage: Storage, boxes: Iterable[ZRange | None]) -> Traffic:
    """Return the traffic of writing the boxes of cells."""
    every = list(boxes)
    cells = tuple(storage.written(box).nbytes if box else 0 for box in every)
    return Traffic(cells, storage.itemsize * sum(box.size for box in every if box))


def _as_block(given: Iterable[SupportsIndex], what: str, ndim: int) -> Point:
    block = as_point(given, what, ndim)
    for dim, extent in enumerate(block):
        if extent < 1:
            raise WeftError(f"dimension {dim} of {what}, {block}, is below 1")
    return block


def _by(extents: Point) -> str:
    return " x ".join(map(str, extents)) or "1"
