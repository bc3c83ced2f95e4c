"""A cut tensor as parts that are regular: a row-major sequence of factors, cut or kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, product
from math import prod
from typing import NamedTuple

from weft.ttmesh.cut import Cut
from weft.ttmesh.grid import Ranges
from weft.values import Point


class Factor(NamedTuple):
    """A digit of a tensor's index: kept by every chip, or spread over an axis of the mesh.

    `source` and `local` are what one step is in the tensor and on a chip, in elements.
    """

    size: int
    axis: int | None
    dim: int
    source: int
    local: int


class Loop(NamedTuple):
    """The same write again, further on in the tensor and on the chips."""

    size: int
    source: int
    local: int


@dataclass(frozen=True, slots=True)
class Part:
    """A contiguous piece of the tensor, once for each step of the loops, on a box of the mesh."""

    ranges: Ranges
    view: Point
    """The shape of a piece; the groups of an interleaved dimension are a dimension of their own."""
    factors: tuple[Factor, ...]
    loops: tuple[Loop, ...] = ()
    source: int = 0
    local: int = 0


class _Piece(NamedTuple):
    """Some of one dimension on some chips: the digits in it, and where it begins."""

    start: int
    digits: tuple[tuple[int, int | None, int, int], ...]  # size, axis, source step, local step
    at: int  # where on the chip
    total: int  # of the chip
    ranges: dict[int, tuple[int, int]]
    groups: int = 1

    @property
    def sizes(self) -> list[int]:
        """The piece as dimensions: its groups, where it has some, and the elements of one."""
        size = prod(digit[0] for digit in self.digits)
        return [self.groups, size // self.groups] if self.groups > 1 else [size]


def parts_of(cuts: Sequence[Cut], mesh_shape: Point) -> Iterator[Part]:
    """The parts of a tensor: one if it is regular, else more, cut at its last irregular dimension.

    A piece of that dimension is contiguous only for each index before it; so those are loops.
    """
    split = max((cut.dim for cut in cuts if not cut.is_regular), default=-1)
    if not all(cut.size for cut in cuts):
        return
    choices = [
        list(_runs(cut) if cut.dim < split else _pieces(cut, cut.dim == split)) for cut in cuts
    ]
    strides = [*accumulate((cut.size for cut in reversed(cuts)), int.__mul__, initial=1)][-2::-1]
    for pieces in product(*choices):
        yield _part(pieces, split, strides, mesh_shape)


def _part(pieces: Sequence[_Piece], split: int, strides: Sequence[int], mesh: Point) -> Part:
    ranges = [(0, size) for size in mesh]
    view: list[int] = []
    factors: list[Factor] = []
    loops: list[Loop] = []
    source = local = 0
    for dim, (piece, stride) in enumerate(zip(pieces, strides)):
        kept = prod(each.total for each in pieces[dim + 1 :])
        source, local = source + piece.start * stride, local + piece.at * kept
        for held, between in piece.ranges.items():
            ranges[held] = between
        if dim < split:
            loops += [Loop(n, step * stride, here * kept) for n, _, step, here in piece.digits]
            view.append(1)
            continue
        sizes = piece.sizes
        for number, (size, axis, step, here) in enumerate(piece.digits):
            place = len(view) + (number > 0 and len(sizes) > 1)
            factors.append(Factor(size, axis, place, step * stride, here * kept))
        view += sizes
    return Part(
        tuple(ranges),
        tuple(view),
        tuple(factor for factor in factors if factor.size > 1),
        tuple(loop for loop in loops if loop.size > 1),
        source,
        local,
    )


def _runs(cut: Cut) -> Iterator[_Piece]:
    """A dimension index by index: each run of each chip."""
    for block in range(cut.count):
        at, total = 0, cut.local(block)
        ranges = {axis: (x, x + 1) for axis, x in cut.coordinates(block)}
        for low, high in cut.runs(block):
            if high > low:
                yield _Piece(low, ((high - low, None, 1, 1),), at, total, ranges)
            at += high - low


def _pieces(cut: Cut, irregular: bool) -> Iterator[_Piece]:
    """A dimension as few pieces: for chips that hold alike, and for groups that are alike."""
    if not irregular:
        yield _regular(cut, 0, cut.groups, 0)
        return
    alike = groupby(range(cut.count), key=cut.lengths)
    classes = [(lengths, list(blocks)) for lengths, blocks in alike]
    for lengths, blocks in classes:
        for low, high, ranges in _boxes(blocks[0], blocks[-1] + 1, cut):
            whole = high - low == cut.count
            yield from _grouped(cut, lengths, low, ranges, whole)


def _grouped(
    cut: Cut, lengths: Point, low: int, ranges: dict[int, tuple[int, int]], whole: bool
) -> Iterator[_Piece]:
    start = at = 0
    for size, many in groupby(cut.groups):
        count = len(list(many))
        length = lengths[cut.groups.index(size)]
        if whole:  # equal groups one after another are a view of the tensor
            piece = _regular(cut, start, (size,) * count, at)
            yield piece._replace(total=sum(lengths), ranges=ranges)
        elif length:
            digits = [(b - a, axis) for axis, (a, b) in ranges.items()]
            steps = _stepped(digits, length)
            for group in range(count):
                begin = start + group * size + low * -(-size // cut.count)
                first = at + group * length
                yield _Piece(begin, (*steps, (length, None, 1, 1)), first, sum(lengths), ranges)
        start, at = start + size * count, at + length * count


def _regular(cut: Cut, start: int, groups: Point, at: int) -> _Piece:
    length = groups[0] // cut.count
    lead = ((len(groups), None, groups[0], length),) if len(groups) > 1 else ()
    digits = list(zip(cut.ways, cut.axes))
    ranges = {axis: (0, size) for size, axis in digits}
    steps = (*lead, *_stepped(digits, length), (length, None, 1, 1))
    return _Piece(start, steps, at, length * len(groups), ranges, len(groups))


def _stepped(
    digits: Sequence[tuple[int, int]], length: int
) -> tuple[tuple[int, int | None, int, int], ...]:
    """Digits that are spread over axes, with their steps in the tensor."""
    steps = [*accumulate((size for size, _ in reversed(digits)), int.__mul__, initial=length)]
    return tuple((size, axis, step, 0) for (size, axis), step in zip(digits, steps[-2::-1]))


def _boxes(low: int, high: int, cut: Cut) -> Iterator[tuple[int, int, dict[int, tuple[int, int]]]]:
    """A range of blocks as ranges that are boxes of the mesh, from the first to the last."""
    while low < high:
        weight, place = 1, len(cut.ways) - 1
        while place > 0 and low % (weight * cut.ways[place]) == 0:
            if low + weight * cut.ways[place] > high:
                break
            weight, place = weight * cut.ways[place], place - 1
        at = low // weight % cut.ways[place]
        many = min(cut.ways[place] - at, (high - low) // weight)
        ranges = {axis: (x, x + 1) for axis, x in reversed(list(cut.coordinates(low)))}
        ranges[cut.axes[place]] = at, at + many
        for axis, ways in zip(cut.axes[place + 1 :], cut.ways[place + 1 :]):
            ranges[axis] = 0, ways
        yield low, low + many * weight, ranges
        low += many * weight
