"""The windows of a reduction: blocks of elements that become one, counted and cut into pieces.

Dimension d is cut into windows of `factors[d]`; the last one may be shorter. Everything here is
integers: which windows have how many elements, and which pieces of them are small enough to work
on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from weft.values import Point

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of windows that all have the same elements, seen from each window's first place."""

    windows: Slices
    count: int
    offsets: Iterable[Point]


def reduced(sizes: Sequence[int], factors: Sequence[int]) -> Point:
    """How many windows there are along every dimension.

    >>> reduced((5, 8), (2, 4))
    (3, 2)
    """
    return tuple(-(-n // f) for n, f in zip(sizes, factors))


def regions(sizes: Sequence[int], factors: Sequence[int]) -> Iterator[Region]:
    """The windows by how many elements they have: full ones, and short ones at the ends.

    >>> [(region.windows, region.count) for region in regions((5,), (2,))]
    [((slice(0, 2, None),), 2), ((slice(2, 3, None),), 1)]
    """
    for picked in product(*map(_extents, sizes, factors)):
        windows, extents = zip(*picked) if picked else ((), ())
        yield Region(windows, prod(extents), product(*map(range, extents)))


def _extents(size: int, factor: int) -> list[tuple[slice, int]]:
    whole, rest = divmod(size, factor)
    found = [(slice(0, whole), factor)] if whole else []
    return [*found, (slice(whole, whole + 1), rest)] if rest else found


def regions_before(
    stop: Sequence[int], sizes: Sequence[int], factors: Sequence[int]
) -> Iterator[Region]:
    """The windows that have elements before `stop` in row-major order, by which ones they have.

    >>> found = regions_before((1, 1), (2, 2), (2, 1))
    >>> [(region.windows, list(region.offsets)) for region in found]
    [((slice(0, 1, None), slice(0, 1, None)), [(0, 0), (1, 0)]),
    ((slice(0, 1, None), slice(1, 2, None)), [(0, 0)])]
    """
    for box in _boxes_before(stop, reduced(sizes, factors), factors):
        for windows in product(*map(_edges, box, sizes, factors)):
            if any(span.start >= span.stop for span in windows):
                continue
            first = [span.start * f for span, f in zip(windows, factors)]
            offsets = [
                offset
                for offset in product(*map(range, factors))
                if _is_before([a + o for a, o in zip(first, offset)], sizes, stop)
            ]
            if offsets:
                yield Region(windows, len(offsets), offsets)


def _is_before(at: Sequence[int], sizes: Sequence[int], stop: Sequence[int]) -> bool:
    return all(a < n for a, n in zip(at, sizes)) and list(at) < list(stop)


def _boxes_before(stop: Sequence[int], counts: Point, factors: Sequence[int]) -> Iterator[Slices]:
    """Boxes of windows on either side of the one in which `stop` lies, dimension by dimension."""
    head: Slices = ()
    for dim, (at, f) in enumerate(zip(stop, factors)):
        rest = tuple(slice(0, n) for n in counts[dim + 1 :])
        here = at // f
        yield (*head, slice(0, min(here, counts[dim])), *rest)
        yield (*head, slice(here + 1, counts[dim]), *rest)
        head = (*head, slice(here, min(here + 1, counts[dim])))
    yield head


def _edges(span: slice, size: int, factor: int) -> list[slice]:
    """A span of windows in full ones and a short last one."""
    whole = size // factor
    return [
        slice(span.start, min(span.stop, whole)),
        slice(max(span.start, whole), span.stop),
    ]


def pieces(shape: Sequence[int], most: int) -> Iterator[Slices]:
    """Boxes that cover an array, in row-major order, each with at most so many elements.

    >>> list(pieces((2, 5), 4))[:2]
    [(slice(0, 1, None), slice(0, 4, None)), (slice(0, 1, None), slice(4, 5, None))]
    """
    if not prod(shape):
        return
    dim, inner = len(shape), 1
    while dim and inner * shape[dim - 1] <= most:
        dim -= 1
        inner *= shape[dim]
    if not dim:
        yield tuple(slice(0, n) for n in shape)
        return
    step = most // inner
    tail = tuple(slice(0, n) for n in shape[dim:])
    for head in product(*map(range, shape[: dim - 1])):
        for start in range(0, shape[dim - 1], step):
            cut = slice(start, min(start + step, shape[dim - 1]))
            yield (*(slice(i, i + 1) for i in head), cut, *tail)


def elements(windows: Slices, factors: Sequence[int]) -> Slices:
    """The elements of a box of windows; beyond the end of an array there are none."""
    return tuple(slice(span.start * f, span.stop * f) for span, f in zip(windows, factors))


def inside(windows: Slices, piece: Slices) -> Slices:
    """A piece of a box of windows, seen from the array."""
    return tuple(slice(a.start + b.start, a.start + b.stop) for a, b in zip(windows, piece))
