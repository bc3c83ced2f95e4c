"""A cut tensor as parts that are regular: a row-major sequence of factors, cut or kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, product
from math import prod
from typing import Literal, NamedTuple

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
    when: Literal["always", "first", "between", "last"] = "always"
    """Of the indices before it: all; or it joins what ends one and begins the next."""

    @property
    def sizes(self) -> list[int]:
        """The piece as dimensions: its groups, where it has some, and the elements of one."""
        size = prod(digit[0] for digit in self.digits)
        return [self.groups, size // self.groups] if self.groups > 1 else [size]


def parts_of(cuts: Sequence[Cut], mesh_shape: Point) -> Iterator[Part]:
    """The parts of a tensor: one if it is regular, else more, cut at its last irregular dimension.

    A piece of that dimension is contiguous only for each index before it; so those are loops.
    """
    irregular = (cut.dim for cut in cuts if len(set(cut.groups)) > 1 or _held(cut) is None)
    split = max(irregular, default=-1)
    choices = [
        list(_runs(cut) if cut.dim < split else _pieces(cut, cut.dim == split)) for cut in cuts
    ]
    strides = [*accumulate((cut.size for cut in reversed(cuts)), int.__mul__, initial=1)][-2::-1]
    for pieces in product(*choices):
        part = _part(pieces, split, strides, mesh_shape)
        when = pieces[split].when if split >= 0 else "always"
        if when == "always":
            yield part
        else:
            row = cuts[split].size * strides[split]
            kept = prod(piece.total for piece in pieces[split:])
            yield from _chained(part, when, row, kept)


def _chained(part: Part, when: str, row: int, kept: int) -> Iterator[Part]:
    """A part at the first index only, at the last, or between each two: where loops are one run."""
    loops, count = list(part.loops), 1
    while loops and loops[-1].source == count * row and loops[-1].local == count * kept:
        count *= loops.pop().size
    match when:
        case "first":
            yield replace(part, loops=tuple(loops))
        case "last":
            source, local = part.source + (count - 1) * row, part.local + (count - 1) * kept
            yield replace(part, loops=tuple(loops), source=source, local=local)
        case "between" if count > 1:
            between = [Loop(count - 1, row, kept)] if count > 2 else []
            yield replace(part, loops=(*loops, *between))


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


def _held(cut: Cut) -> dict[int, tuple[int, int]] | None:
    """The box of the mesh whose chips hold a dimension, all alike; None if it is no box."""
    step = [-(-size // cut.count) for size in cut.groups]
    count = cut.groups[0] // step[0]
    if any(count * c != size for c, size in zip(step, cut.groups)):
        return None
    first, *others = _boxes(0, count, cut)
    return None if others else first[1]


def _pieces(cut: Cut, irregular: bool) -> Iterator[_Piece]:
    """A dimension as few pieces: for chips that hold alike, and for groups that are alike."""
    held = _held(cut)
    if held is not None:
        runs = [(size, len(list(many))) for size, many in groupby(cut.groups)]
        yield from _joined(runs, held) if irregular else [_regular(*runs[0], held)]
        return
    alike = groupby(range(cut.count), key=cut.lengths)
    for lengths, blocks in [(lengths, list(blocks)) for lengths, blocks in alike]:
        for low, ranges in _boxes(blocks[0], blocks[-1] + 1, cut):
            yield from _groups(cut, lengths, low, ranges)


def _joined(runs: Sequence[tuple[int, int]], held: dict[int, tuple[int, int]]) -> Iterator[_Piece]:
    """Runs of equal groups; if the last is like the first, it goes on at the next index."""
    chips = prod(b - a for a, b in held.values())
    total = sum(size * many for size, many in runs) // chips
    around = len(runs) > 1 and runs[0][0] == runs[-1][0]
    start = 0
    for number, (size, many) in enumerate(runs):
        piece = _regular(size, many, held)._replace(start=start, at=start // chips, total=total)
        if not around or 0 < number < len(runs) - 1:
            yield piece
        else:
            yield piece._replace(when="last" if number else "first")
        if around and number == len(runs) - 1:
            both = _regular(size, many + runs[0][1], held)
            yield both._replace(start=start, at=start // chips, total=total, when="between")
        start += size * many


def _groups(
    cut: Cut, lengths: Point, low: int, ranges: dict[int, tuple[int, int]]
) -> Iterator[_Piece]:
    """Each group by itself, on chips that hold alike among others that do not."""
    start = at = 0
    for size, length in zip(cut.groups, lengths):
        if length:
            digits = [(b - a, axis) for axis, (a, b) in ranges.items()]
            steps = (*_stepped(digits, length), (length, None, 1, 1))
            yield _Piece(start + low * -(-size // cut.count), steps, at, sum(lengths), ranges)
        start, at = start + size, at + length


def _regular(size: int, groups: int, held: dict[int, tuple[int, int]]) -> _Piece:
    """So many equal groups, evenly on the chips of a box."""
    digits = [(b - a, axis) for axis, (a, b) in held.items()]
    length = size // prod(many for many, _ in digits)
    lead = ((groups, None, size, length),) if groups > 1 else ()
    steps = (*lead, *_stepped(digits, length), (length, None, 1, 1))
    return _Piece(0, steps, 0, length * groups, held, groups)


def _stepped(
    digits: Sequence[tuple[int, int]], length: int
) -> tuple[tuple[int, int | None, int, int], ...]:
    """Digits that are spread over axes, with their steps in the tensor."""
    steps = [*accumulate((size for size, _ in reversed(digits)), int.__mul__, initial=length)]
    return tuple((size, axis, step, 0) for (size, axis), step in zip(digits, steps[-2::-1]))


def _boxes(low: int, high: int, cut: Cut) -> Iterator[tuple[int, dict[int, tuple[int, int]]]]:
    """A range of blocks as ranges that are boxes of the mesh, each with its first block."""
    if not cut.axes:
        yield 0, {}
        return
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
        yield low, ranges
        low += many * weight
