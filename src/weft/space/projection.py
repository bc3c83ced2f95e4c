"""`Projection`: the affine map with a window that takes index boxes to tensor boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import add, mul

from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.space.integer import bound
from weft.space.zrange import ZRange, unchecked
from weft.values import Point, as_count, as_point, as_tuple, check_rank, counted, freeze


@dataclass(frozen=True, slots=True, init=False)
class Projection(Drawn):
    """An affine map with a window: `P(i) = ZRange(start = A·i + b, shape = w)`.

    `matrix` has one row per tensor dimension and one column per index dimension; `offset` is 0 and
    the window `shape` 1 unless given; `index_ndim` is needed only where the matrix has no row.

    The rows of `X` that a linear layer over (batch, in, out) reads, 16 wide:

    >>> p = Projection([[1, 0, 0], [0, 0, 0]], shape=(1, 16))
    >>> print(p((3, 0, 5)), p.image(ZRange((4, 0, 0), (8, 1, 32))))
    [3:4, 0:16] [4:8, 0:16]
    """

    matrix: tuple[Point, ...]
    offset: Point
    shape: Point
    index_ndim: int

    def __init__(
        self,
        matrix: Iterable[Iterable[int]],
        offset: Iterable[int] | None = None,
        shape: Iterable[int] | None = None,
        index_ndim: int | None = None,
    ) -> None:
        given = as_tuple(matrix, "matrix", Iterable)  # type: ignore[type-abstract]
        rows = tuple(as_point(row, f"row {r} of matrix") for r, row in enumerate(given))
        columns = len(rows[0]) if rows else 0
        if index_ndim is not None:
            columns = as_count(index_ndim, "index_ndim")
        for r, row in enumerate(rows):
            check_rank(f"row {r} of matrix", row, columns)
        base = (0,) * len(rows) if offset is None else as_point(offset, "offset", len(rows))
        window = (1,) * len(rows) if shape is None else as_point(shape, "window", len(rows))
        for dim, width in enumerate(window):
            if width < 1:
                raise WeftError(f"dimension {dim} has a window of {width}; at least 1 is needed")
        freeze(self, matrix=rows, offset=base, shape=window, index_ndim=columns)

    @classmethod
    def identity(cls, ndim: int) -> Projection:
        """The map of every index to itself.

        >>> print(Projection.identity(2)((3, 4)))
        [3:4, 4:5]
        """
        return cls.permutation(range(as_count(ndim, "ndim")))

    @classmethod
    def permutation(cls, axes: Iterable[int]) -> Projection:
        """The map whose dimension `d` is index dimension `axes[d]`, as `transpose` counts them.

        >>> print(Projection.permutation((2, 0, 1))((5, 6, 7)))
        [7:8, 5:6, 6:7]
        """
        order = as_point(axes, "axes")
        if sorted(order) != list(range(len(order))):
            raise WeftError(f"{order} is not a permutation of {len(order)} dimensions")
        return cls([[int(c == axis) for c in range(len(order))] for axis in order])

    @property
    def ndim(self) -> int:
        """The rank of the tensor."""
        return len(self.matrix)

    def __call__(self, at: Iterable[int] | ZRange) -> ZRange:
        """The tensor box of one index, or the image of an index box."""
        if isinstance(at, ZRange):
            return self.image(at)
        point = as_point(at, "index", self.index_ndim)
        start = tuple([sum(map(mul, row, point), b) for row, b in zip(self.matrix, self.offset)])
        return unchecked(start, tuple(map(add, start, self.shape)))

    def image(self, box: ZRange) -> ZRange:
        """The smallest tensor box that holds `P(i)` for every index `i` of the box.

        Each coefficient takes the end of the interval that its sign asks for.

        >>> print(Projection([[1, -2]], shape=(3,)).image(ZRange((0, 0), (4, 4))))
        [-6:6]
        """
        self._check_box("index box", box, self.index_ndim)
        if box.is_empty:
            return unchecked(self.offset, self.offset)
        start, stop = [], []
        for row, base, width in zip(self.matrix, self.offset, self.shape):
            low = high = base
            for a, first, end in zip(row, box.start, box.stop):
                low += a * (first if a > 0 else end - 1)
                high += a * (end - 1 if a > 0 else first)
            start.append(low)
            stop.append(high + width)
        return unchecked(tuple(start), tuple(stop))

    def image_by_dim(self, box: ZRange) -> ZRange:
        """The image of a box; of an empty one each dimension by itself.

        A dimension that no empty index dimension moves keeps its extent, for a sum over nothing
        still has a result.

        >>> print(Projection([[1, 0], [0, 1]]).image_by_dim(ZRange((2, 3), (5, 3))))
        [2:5, 0:0]
        """
        if not box.is_empty:
            return self.image(box)
        start, stop = [], []
        for row, base, width in zip(self.matrix, self.offset, self.shape):
            moved = [(a, low, high - 1) for a, low, high in zip(row, box.start, box.stop) if a]
            ends = [sorted((a * low, a * high)) if low <= high else None for a, low, high in moved]
            known = [end for end in ends if end is not None]
            is_empty = len(known) < len(ends)
            start.append(base + sum(low for low, _ in known))
            stop.append(start[-1] if is_empty else base + sum(high for _, high in known) + width)
        return ZRange(start, stop)

    def region(self, box: ZRange, shape: Sequence[int]) -> ZRange:
        """The part of a box's image that lies inside an array; where none does, it is at the start.

        This is the box of an operand that a kernel is given, and that of a result that it returns.

        >>> print(Projection([[2]], offset=(-1,), shape=(3,)).region(ZRange((0,), (4,)), (16,)))
        [0:8]
        """
        found = self.image_by_dim(box) & ZRange.of(shape)
        if not found.is_empty:
            return found
        return ZRange.of(found.shape, [low if n else 0 for low, n in zip(found.start, found.shape)])

    def is_dense(self, box: ZRange) -> bool:
        """Whether every cell of `image(box)` is touched by the window of some index.

        >>> stride2 = Projection([[2]])
        >>> stride2.is_dense(ZRange((0,), (8,))), stride2.is_dense(ZRange((0,), (1,)))
        (False, True)
        """
        self._check_box("index box", box, self.index_ndim)
        moving = [(c, extent) for c, extent in enumerate(box.shape) if extent > 1]
        # An index dimension that moves two tensor dimensions at once never reaches the corner
        # where one of them is lowest and the other highest, so such an image has holes.
        alone = all(sum(row[c] != 0 for row in self.matrix) < 2 for c, _ in moving)
        return box.is_empty or (
            alone
            and all(
                _is_dense_row([(abs(row[c]), extent) for c, extent in moving if row[c]], width)
                for row, width in zip(self.matrix, self.shape)
            )
        )

    def preimage(self, box: ZRange, within: ZRange | None = None) -> ZRange:
        """The smallest index box that holds every index whose window touches the tensor box.

        `within` bounds the index. It is needed where the tensor box does not: a dimension the
        tensor does not see, or several that share a row. Rows that share dimensions in a knot are
        searched; should a search run out of its budget, the box is larger, never smaller.

        >>> conv = Projection([[2, 1]], offset=(-1,))  # 2*y + u - 1
        >>> print(conv.preimage(ZRange((4,), (6,)), within=ZRange((0, 0), (16, 3))))
        [2:4, 0:3]
        """
        self._check_box("tensor box", box, self.ndim)
        low: Sequence[int | None] = (None,) * self.index_ndim
        high, corner = low, (0,) * self.index_ndim
        if within is not None:
            self._check_box("index box", within, self.index_ndim)
            low, high, corner = within.start, [x - 1 for x in within.stop], within.start
        if box.is_empty:
            return unchecked(corner, corner)
        alone = [row for row in self.matrix if sum(a != 0 for a in row) == 1]
        for c in range(self.index_ndim if within is None else 0):
            if not any(row[c] for row in alone):
                raise WeftError(
                    f"index dimension {c} is not bounded by the tensor box {box}",
                    hint="give the index space: preimage(box, within=...)",
                )
        # P(i) meets [first, end) in a row exactly when  first - w < row·i + b < end.
        sides = zip(self.matrix, self.offset, self.shape, box.start, box.stop)
        rows = [(row, first - w + 1 - b, end - 1 - b) for row, b, w, first, end in sides]
        found = bound(rows, low, high)
        if found is None:
            return unchecked(corner, corner)
        return unchecked(tuple(found[0]), tuple(x + 1 for x in found[1]))

    def __matmul__(self, other: Projection) -> Projection:
        """The composition: `(P @ Q)(i) == P(Q(i))`, windows included.

        >>> p, q = Projection([[-1]], shape=(2,)), Projection([[3]], shape=(4,))
        >>> (p @ q)((5,)) == p(q((5,)))
        True
        """
        if not isinstance(other, Projection):
            return NotImplemented
        check_rank(f"the result of {other}", other.matrix, self.index_ndim)
        columns = list(zip(*other.matrix)) or [()] * other.index_ndim
        matrix = [[sum(map(mul, row, column)) for column in columns] for row in self.matrix]
        base = self.image(ZRange.of(other.shape, other.offset))
        return Projection(matrix, base.start, base.shape, other.index_ndim)

    def drawing(self, box: ZRange | None = None) -> Drawing:
        """The images of the first points of a box (of extent 4 unless given), overlaps and all."""
        box = ZRange.of((4,) * self.index_ndim) if box is None else box
        images = [self(i) for i in islice(box, 16)] or [self.image(box)]
        title = f"{self} · images of the first {counted(len(images), 'point')} of {box}"
        return ZRange.draw_together(images).titled(title)

    def _check_box(self, what: str, box: ZRange, ndim: int) -> None:
        if not isinstance(box, ZRange) or len(box.start) != ndim:
            raise WeftError(f"{what} {box} is not a box of rank {ndim}, as {self} needs")

    def __str__(self) -> str:
        """Each row in the index dimensions `i0`, `i1` and so on; `+:w` is a window of w.

        >>> print(Projection([[2, -1], [0, 1], [0, 0]], offset=(-1, 0, 0), shape=(1, 3, 16)))
        [2*i0-i1-1, i1+:3, 0+:16]
        """
        rows = zip(self.matrix, self.offset, self.shape)
        return "[" + ", ".join(_row_text(*row) for row in rows) + "]"


def _is_dense_row(steps: list[tuple[int, int]], width: int) -> bool:
    """Whether a window of that width, moved by each step up to `extent` times, leaves no hole.

    Shortest steps first: a run of `width` cells grows while the next step is no longer than it,
    and the cell just behind it is out of everyone's reach as soon as one is.
    """
    for step, extent in sorted(steps):
        if step > width:
            return False
        width += step * (extent - 1)
    return True


def _row_text(row: Sequence[int], base: int, width: int) -> str:
    terms = "".join(f"{a:+d}*i{c}" for c, a in enumerate(row) if a)
    terms = terms.replace("+1*", "+").replace("-1*", "-").removeprefix("+")
    text = terms + f"{base:+d}" * (base != 0) if terms else str(base)
    return text + f"+:{width}" * (width != 1)
