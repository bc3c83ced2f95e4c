"""`ZRange`: a half-open box of integer points."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from math import prod
from operator import add, eq, le, lt, sub

from weft.draw import Drawing, Drawn, draw_boxes
from weft.errors import WeftError
from weft.values import Point, as_count, as_point, as_shape, check_rank, counted, freeze, points


@dataclass(frozen=True, slots=True, init=False)
class ZRange(Drawn):
    """A half-open box of integer points: `start[d] <= x[d] < stop[d]` in every dimension.

    A box has any rank: at rank 0 it holds one point, `()`. Negative coordinates are coordinates.
    Boxes with the same bounds are equal; an empty box holds no point wherever it lies.

    >>> box = ZRange((0, 2), (4, 8))
    >>> box.shape, box.size, box.ndim, (3, 7) in box
    ((4, 6), 24, 2, True)
    >>> print(box, box & ZRange((2, 0), (9, 5)))
    [0:4, 2:8] [2:4, 2:5]
    """

    start: Point
    stop: Point

    def __init__(self, start: Iterable[int], stop: Iterable[int]) -> None:
        low, high = as_point(start, "start"), as_point(stop, "stop")
        check_rank("stop", high, len(low))
        for dim, (first, end) in enumerate(zip(low, high)):
            if end < first:
                raise WeftError(f"dimension {dim} stops at {end}, before its start {first}")
        freeze(self, start=low, stop=high)

    @classmethod
    def of(cls, shape: Iterable[int], start: Iterable[int] | None = None) -> ZRange:
        """The box of that shape at `start`, or at the origin.

        >>> print(ZRange.of((4, 8)), ZRange.of((2,), start=(-1,)))
        [0:4, 0:8] [-1:1]
        """
        sizes = as_shape(shape)
        low = (0,) * len(sizes) if start is None else as_point(start, "start", len(sizes))
        return unchecked(low, tuple(map(add, low, sizes)))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.start)

    @property
    def shape(self) -> Point:
        """The extent in every dimension."""
        return tuple(map(sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(map(sub, self.stop, self.start))

    @property
    def is_empty(self) -> bool:
        """True when the box holds no point; `bool(box)` says the opposite."""
        return any(map(eq, self.start, self.stop))

    def __bool__(self) -> bool:
        return not self.is_empty

    def __iter__(self) -> Iterator[Point]:
        """The points, the last dimension running fastest.

        >>> list(ZRange((0, 5), (2, 7)))
        [(0, 5), (0, 6), (1, 5), (1, 6)]
        """
        return points(self.start, self.stop)

    def __contains__(self, item: Iterable[int] | ZRange) -> bool:
        """Whether a point, or every point of another box, lies in this box.

        >>> box = ZRange((0,), (4,))
        >>> (4,) in box, ZRange((1,), (3,)) in box, ZRange((9,), (9,)) in box
        (False, True, True)
        """
        if isinstance(item, ZRange):
            return (self & item) == item or item.is_empty
        return self._holds(as_point(item, "point", self.ndim))

    def _holds(self, point: Point) -> bool:
        return all(map(le, self.start, point)) and all(map(lt, point, self.stop))

    def __and__(self, other: ZRange) -> ZRange:
        """The points of both; boxes that do not meet give an empty box."""
        if not isinstance(other, ZRange):
            return NotImplemented
        self._check_meets(other)
        start = tuple(map(max, self.start, other.start))
        return unchecked(start, tuple(map(max, start, map(min, self.stop, other.stop))))

    def hull(self, *others: ZRange) -> ZRange:
        """The smallest box that holds this box and the others; empty ones do not count.

        >>> print(ZRange((0,), (2,)).hull(ZRange((5,), (7,)), ZRange((90,), (90,))))
        [0:7]
        """
        for other in others:
            self._check_meets(other)
        boxes = [box for box in (self, *others) if box] or [self]
        start = tuple(map(min, zip(*(box.start for box in boxes))))
        return unchecked(start, tuple(map(max, zip(*(box.stop for box in boxes)))))

    def translate(self, offset: Iterable[int]) -> ZRange:
        """The box moved by `offset`.

        >>> print(ZRange((0, 0), (2, 3)).translate((10, -1)))
        [10:12, -1:2]
        """
        by = as_point(offset, "offset", self.ndim)
        return unchecked(tuple(map(add, self.start, by)), tuple(map(add, self.stop, by)))

    def difference(self, *others: ZRange) -> tuple[ZRange, ...]:
        """The points of this box that lie in none of the others, as disjoint boxes.

        >>> print(*ZRange((0, 0), (4, 4)).difference(ZRange((1, 1), (3, 9))))
        [0:1, 0:4] [3:4, 0:4] [1:3, 0:1]
        """
        left: tuple[ZRange, ...] = (self,) if self else ()
        for other in others:
            left = tuple(piece for box in left for piece in box._peel(other))
        return left

    def _peel(self, other: ZRange) -> Iterator[ZRange]:
        """Slabs below and above `other`, dimension by dimension, until only `other` is left."""
        core, rest = self & other, self
        if core.is_empty:
            yield self
            return
        for dim, (low, high) in enumerate(zip(core.start, core.stop)):
            for piece in rest.split(dim, (low, high)):
                if piece.start[dim] == low:
                    rest = piece
                else:
                    yield piece

    def split(self, dim: int, cuts: Iterable[int]) -> tuple[ZRange, ...]:
        """The box cut across one dimension at the given coordinates; those outside cut nothing.

        >>> print(*ZRange((0, 0), (2, 9)).split(1, [3, 6]))
        [0:2, 0:3] [0:2, 3:6] [0:2, 6:9]
        """
        if as_count(dim, "dimension") >= self.ndim:
            raise WeftError(f"no dimension {dim} in a box of rank {self.ndim}: {self}")
        (*head, low), (*top, high) = self.start[: dim + 1], self.stop[: dim + 1]
        tail, end = self.start[dim + 1 :], self.stop[dim + 1 :]
        edges = (low, *sorted({cut for cut in as_point(cuts, "cuts") if low < cut < high}), high)
        return tuple(unchecked((*head, a, *tail), (*top, b, *end)) for a, b in pairwise(edges))

    def tiles(self, shape: Iterable[int], anchor: Iterable[int] | None = None) -> Iterator[ZRange]:
        """The box in blocks of that shape, the last dimension running fastest.

        Blocks count from `start`, or lie on the grid through `anchor`; edge blocks may be short.

        >>> print(*ZRange((3,), (10,)).tiles((4,)))
        [3:7] [7:10]
        >>> print(*ZRange((3,), (10,)).tiles((4,), anchor=(0,)))
        [3:4] [4:8] [8:10]
        """
        blocks = as_point(shape, "block shape", self.ndim)
        origin = self.start if anchor is None else as_point(anchor, "anchor", self.ndim)
        for dim, extent in enumerate(blocks):
            if extent < 1:
                raise WeftError(f"dimension {dim} of block shape {blocks} is below 1")
        if self.is_empty:
            return iter(())
        first = tuple((x - o) // n for x, o, n in zip(self.start, origin, blocks))
        end = tuple(-((o - x) // n) for x, o, n in zip(self.stop, origin, blocks))
        return (
            self & unchecked(corner, tuple(map(add, corner, blocks)))
            for number in points(first, end)
            for corner in [tuple(o + k * n for o, k, n in zip(origin, number, blocks))]
        )

    def slices(self, origin: Iterable[int] | None = None) -> tuple[slice, ...]:
        """The box as indices into an array whose first element has the coordinates `origin`.

        >>> ZRange((4, 8), (8, 12)).slices(origin=(4, 0))
        (slice(0, 4, None), slice(8, 12, None))
        """
        base = (0,) * self.ndim if origin is None else as_point(origin, "origin", self.ndim)
        start = tuple(map(sub, self.start, base))
        if min(start, default=0) < 0:  # a negative index would silently count from the end
            dim, zero = next((d, base[d]) for d, low in enumerate(start) if low < 0)
            low = self.start[dim]
            raise WeftError(f"dimension {dim} of {self} starts at {low}, before origin {zero}")
        return tuple(map(slice, start, map(sub, self.stop, base)))

    def drawing(self) -> Drawing:
        """The box as a picture."""
        return self.draw_together([self]).titled(f"{self} · {counted(self.size, 'point')}")

    @staticmethod
    def draw_together(boxes: Sequence[ZRange]) -> Drawing:
        """Several boxes in one picture, each with its number: what `show` makes of a list."""
        bounds = [(box.start, box.stop) for box in boxes]
        title = f"{counted(len(boxes), 'box', 'boxes')} in {boxes[0].hull(*boxes[1:])}"
        return draw_boxes(bounds, list(map(str, range(len(boxes)))) if boxes[1:] else [""], title)

    def _check_meets(self, other: ZRange) -> None:
        if not isinstance(other, ZRange) or len(other.start) != len(self.start):
            raise WeftError(f"{other} is not a box of rank {self.ndim}, as {self} is")

    def __reduce__(self) -> tuple[object, ...]:
        # Boxes travel by the thousand: what a frozen dataclass does by itself takes three times it.
        return unchecked, (self.start, self.stop)

    def __str__(self) -> str:
        return "[" + ", ".join(map("{}:{}".format, self.start, self.stop)) + "]"


_SET_START, _SET_STOP = (vars(ZRange)[name].__set__ for name in ("start", "stop"))


def unchecked(start: Point, stop: Point) -> ZRange:
    """A box whose bounds the caller knows to be good."""
    box = object.__new__(ZRange)
    _SET_START(box, start)
    _SET_STOP(box, stop)
    return box


def unchecked_all(count: int, starts: Iterable[Point], stops: Iterable[Point]) -> list[ZRange]:
    """Return boxes without checking them, and without a step of Python for each."""
    boxes = list(map(object.__new__, repeat(ZRange, count)))
    deque(map(_SET_START, boxes, starts), maxlen=0)
    deque(map(_SET_STOP, boxes, stops), maxlen=0)
    return boxes
