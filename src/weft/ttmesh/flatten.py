"""Flatten a sharded tensor to 2-D buffers: which dimensions become rows, which become columns.

Write the index of a tensor in digits, row-major. A digit is spread over a mesh axis, or kept by
every chip. A config reads its buffer as (shards down, rows of a shard, shards across, columns of a
shard). So a tensor is one config if, on either side of a pivot dimension, the spread digits come
before the kept ones, and the spread digits number the chips by rows or by columns. Digits at the
front that are in the way are *separated*: one write for each of their values. A tensor with short
shards or unequal groups is first split into regular parts, for which such digits exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, combinations, groupby, pairwise, product
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from weft.space import ZRange
from weft.ttmesh.buffer import Extent, ShardOrientation, row_fault
from weft.ttmesh.mapper import ShardedDim
from weft.values import Point

Spans: TypeAlias = dict[int, tuple[int, int]]
"""The first coordinate and the end along some axes of a mesh."""


_When: TypeAlias = Literal["always", "first", "between", "last"]
"""For which indices before a piece it is: all, the first, between each two, or the last."""


class TensorDigit(NamedTuple):
    """A digit of a tensor's index: spread over a mesh axis, or kept by every chip (axis None).

    `source` and `local` are the elements that one step moves in the tensor and on a chip.
    """

    size: int
    axis: int | None
    dim: int
    source: int
    local: int


class Repeat(NamedTuple):
    """The same write again, `source` elements further in the tensor and `local` on the chips."""

    size: int
    source: int
    local: int


@dataclass(frozen=True, slots=True)
class RegularPart:
    """A contiguous piece of the tensor, once for each repeat, on a box of the mesh."""

    mesh_box: ZRange
    view: Point
    """The shape of a piece; the groups of an interleaved dimension are a dimension of their own."""
    digits: tuple[TensorDigit, ...]
    repeats: tuple[Repeat, ...] = ()
    source: int = 0
    local: int = 0


class _DimPiece(NamedTuple):
    """Some of one dimension on some chips: its digits, and where it begins."""

    start: int
    digits: tuple[tuple[int, int | None, int, int], ...]  # size, axis, source step, local step
    local_start: int
    local_size: int  # of the whole dimension on a chip
    spans: Spans
    groups: int = 1
    when: _When = "always"

    @property
    def sizes(self) -> list[int]:
        """The piece as dimensions: its groups, if it has several, and the elements of one."""
        size = prod(digit[0] for digit in self.digits)
        return [self.groups, size // self.groups] if self.groups > 1 else [size]


def regular_parts(dims: Sequence[ShardedDim], mesh_shape: Point) -> Iterator[RegularPart]:
    """Split a tensor into regular parts: one if possible, else at its last irregular dimension.

    A piece of that dimension is contiguous only for each index before it, so those are repeats.
    """
    irregular = (each.dim for each in dims if len(set(each.groups)) > 1 or _holders(each) is None)
    split = max(irregular, default=-1)
    choices = [
        list(_runs(each) if each.dim < split else _pieces(each, each.dim == split)) for each in dims
    ]
    strides = [*accumulate((each.size for each in reversed(dims)), int.__mul__, initial=1)][-2::-1]
    for pieces in product(*choices):
        part = _part(pieces, split, strides, mesh_shape)
        when = pieces[split].when if split >= 0 else "always"
        if when == "always":
            yield part
        else:
            row = dims[split].size * strides[split]
            yield from _chained(part, when, row, prod(piece.local_size for piece in pieces[split:]))


def _chained(part: RegularPart, when: str, row: int, local: int) -> Iterator[RegularPart]:
    """Return a part at the first index only, the last, or between each two of a run of repeats."""
    repeats, count = list(part.repeats), 1
    while repeats and repeats[-1].source == count * row and repeats[-1].local == count * local:
        count *= repeats.pop().size
    match when:
        case "first":
            yield replace(part, repeats=tuple(repeats))
        case "last":
            source, at = part.source + (count - 1) * row, part.local + (count - 1) * local
            yield replace(part, repeats=tuple(repeats), source=source, local=at)
        case "between" if count > 1:
            between = [Repeat(count - 1, row, local)] if count > 2 else []
            yield replace(part, repeats=(*repeats, *between))


def _part(
    pieces: Sequence[_DimPiece], split: int, strides: Sequence[int], mesh: Point
) -> RegularPart:
    start, stop = [0] * len(mesh), list(mesh)
    view: list[int] = []
    digits: list[TensorDigit] = []
    repeats: list[Repeat] = []
    source = local = 0
    for dim, (piece, stride) in enumerate(zip(pieces, strides)):
        behind = prod(each.local_size for each in pieces[dim + 1 :])
        source, local = source + piece.start * stride, local + piece.local_start * behind
        for axis, span in piece.spans.items():
            start[axis], stop[axis] = span
        if dim < split:
            repeats += [Repeat(n, s * stride, at * behind) for n, _, s, at in piece.digits]
            view.append(1)
            continue
        sizes = piece.sizes
        for number, (size, mesh_axis, step, local_step) in enumerate(piece.digits):
            place = len(view) + (number > 0 and len(sizes) > 1)
            digits.append(TensorDigit(size, mesh_axis, place, step * stride, local_step * behind))
        view += sizes
    return RegularPart(
        ZRange(start, stop),
        tuple(view),
        tuple(digit for digit in digits if digit.size > 1),
        tuple(repeat for repeat in repeats if repeat.size > 1),
        source,
        local,
    )


def _runs(each: ShardedDim) -> Iterator[_DimPiece]:
    """Return a dimension as the ranges of single chips, to be repeated index by index."""
    for block in range(each.count):
        local, total = 0, sum(each.extents(block))
        spans = {digit.dim: _single(digit.stride, digit.radix, block) for digit in each.digits}
        for low, high in each.spans(block):
            if high > low:
                yield _DimPiece(low, ((high - low, None, 1, 1),), local, total, spans)
            local += high - low


def _holders(each: ShardedDim) -> Spans | None:
    """Return the box of the mesh whose chips evenly hold a dimension; None if there is no box."""
    sides = zip(each.grid.shape, each.grid.block_shape)
    (count, short), *unequal = {divmod(size, extent) for size, extent in sides}
    if short or unequal:
        return None
    (_, first), *others = _mesh_boxes(each, 0, count)
    return None if others else first


def _pieces(each: ShardedDim, irregular: bool) -> Iterator[_DimPiece]:
    """Return a dimension as few pieces: for chips with equal shards, and for equal groups."""
    holders = _holders(each)
    if holders is not None:
        runs = [(size, len(list(many))) for size, many in groupby(each.groups)]
        yield from _joined(runs, holders) if irregular else [_regular(*runs[0], holders)]
        return
    alike = groupby(range(each.count), key=each.extents)
    for extents, blocks in [(extents, list(blocks)) for extents, blocks in alike]:
        for low, spans in _mesh_boxes(each, blocks[0], blocks[-1] + 1):
            yield from _groups(each, extents, low, spans)


def _joined(runs: Sequence[tuple[int, int]], holders: Spans) -> Iterator[_DimPiece]:
    """Return runs of equal groups; a last run like the first continues at the next index."""
    chips = prod(high - low for low, high in holders.values())
    total = sum(size * many for size, many in runs) // chips
    around = len(runs) > 1 and runs[0][0] == runs[-1][0]
    start = 0
    for number, (size, many) in enumerate(runs):
        options: list[tuple[int, _When]] = [(many, "always")]
        if around and number == 0:
            options = [(many, "first")]
        if around and number == len(runs) - 1:
            options = [(many, "last"), (many + runs[0][1], "between")]
        for groups, when in options:
            yield _regular(size, groups, holders)._replace(
                start=start, local_start=start // chips, local_size=total, when=when
            )
        start += size * many


def _groups(each: ShardedDim, extents: Point, low: int, spans: Spans) -> Iterator[_DimPiece]:
    """Return each group by itself, on chips with equal shards among others that differ."""
    local = 0
    for (start, _), length in zip(each.spans(low), extents):
        if length:
            digits = (*_spread(spans, length), (length, None, 1, 1))
            yield _DimPiece(start, digits, local, sum(extents), spans)
        local += length


def _regular(size: int, groups: int, holders: Spans) -> _DimPiece:
    """Return a number of equal groups, spread evenly over the chips of a box."""
    length = size // prod(high - low for low, high in holders.values())
    lead = ((groups, None, size, length),) if groups > 1 else ()
    digits = (*lead, *_spread(holders, length), (length, None, 1, 1))
    return _DimPiece(0, digits, 0, length * groups, holders, groups)


def _spread(spans: Spans, length: int) -> tuple[tuple[int, int | None, int, int], ...]:
    """Return the digits that are spread over axes, with their steps in the tensor."""
    sizes = [(high - low, axis) for axis, (low, high) in spans.items()]
    steps = [*accumulate((size for size, _ in reversed(sizes)), int.__mul__, initial=length)]
    return tuple((size, axis, step, 0) for (size, axis), step in zip(sizes, steps[-2::-1]))


def _single(stride: int, radix: int, block: int) -> tuple[int, int]:
    at = block // stride % radix
    return at, at + 1


def _mesh_boxes(each: ShardedDim, low: int, high: int) -> Iterator[tuple[int, Spans]]:
    """Return a range of blocks as ranges that are boxes of the mesh, each with its first block."""
    if not each.digits:
        yield 0, {}
        return
    while low < high:
        place = min(
            place
            for place, digit in enumerate(each.digits)
            if low % digit.stride == 0 and low + digit.stride <= high
        )
        _, _, radix, stride = each.digits[place]
        at = low // stride % radix
        many = min(radix - at, (high - low) // stride)
        spans = {digit.dim: _single(digit.stride, digit.radix, low) for digit in each.digits}
        spans[each.digits[place].dim] = at, at + many
        spans |= {digit.dim: (0, digit.radix) for digit in each.digits[place + 1 :]}
        yield low, spans
        low += many * stride


# -- regular parts as rows and columns


class Flattening(NamedTuple):
    """How a part is written: the digits that are separated, and the config of each write."""

    separated: tuple[TensorDigit, ...]
    copied_axes: Point
    """Mesh axes that hold copies and are written one coordinate at a time."""
    row_axes: int
    """How many leading axes of the mesh are its rows."""
    orientation: ShardOrientation
    pivot: int
    whole: Extent
    shard: Extent


def flatten_2d(
    view: Point, digits: Sequence[TensorDigit], mesh: Point, item_size: int, strict: bool = False
) -> Flattening | None:
    """Return the flattening with the fewest writes; None if `strict` and there is none.

    Of several, rows of whole words are preferred, then the last pivot. `strict` allows one write,
    with the last dimension as columns.
    """
    spread = {digit.axis for digit in digits}
    copies = [axis for axis, size in enumerate(mesh) if size > 1 and axis not in spread]
    candidates = _separations(digits, copies, mesh)
    for _, first, copied in candidates[:1] if strict else candidates:
        rest = digits[first:]
        done = {*copied, *(spread - {digit.axis for digit in rest})}
        live = [axis for axis, size in enumerate(mesh) if size > 1 and axis not in done]
        configs = list(_configs(view, rest, live, len(mesh), strict))
        if configs:
            best = min(configs, key=lambda config: _rank(config, item_size))
            return Flattening(tuple(digits[:first]), copied, *best)
    return None


def _separations(
    digits: Sequence[TensorDigit], copies: Sequence[int], mesh: Point
) -> list[tuple[int, int, Point]]:
    """Return (writes, leading digits separated, copied axes), the fewest writes first."""
    subsets = list(chain.from_iterable(combinations(copies, n) for n in range(len(copies) + 1)))
    options = []
    for first in range(len(digits) + 1):
        writes = prod(digit.size for digit in digits[:first])
        options += [(writes * prod(mesh[a] for a in copied), first, copied) for copied in subsets]
    return sorted(options, key=lambda each: (each[0], each[1], len(each[2]), each[2]))


_Config: TypeAlias = tuple[int, ShardOrientation, int, Extent, Extent]


def _rank(config: _Config, item_size: int) -> tuple[bool, int]:
    _, _, pivot, whole, shard = config
    return row_fault(shard.width or whole.width, item_size) is not None, -pivot


def _configs(
    view: Point, digits: Sequence[TensorDigit], live: Sequence[int], mesh_ndim: int, strict: bool
) -> Iterator[_Config]:
    """Return all configs that write these digits at once, on the live axes of the mesh."""
    order = [digit.axis for digit in digits if digit.axis is not None]
    last = max(len(view) - 1, 0)
    for row_axes, orientation in _orientations(order, live, mesh_ndim):
        for pivot in range(last, last - 1 if strict else -1, -1):
            rows = [digit for digit in digits if digit.dim < pivot]
            columns = digits[len(rows) :]
            if _spread_first(rows) and _spread_first(columns):
                whole = Extent(height=_size(rows), width=_size(columns))
                if shard := _shard_extent(rows, columns, live, row_axes):
                    yield row_axes, orientation, pivot, whole, shard


def _orientations(
    order: Sequence[int], live: Sequence[int], mesh_ndim: int
) -> Iterator[tuple[int, ShardOrientation]]:
    """Return row axes and orientations that number the chips in the order of the spread digits."""
    # A mesh of two axes is rows and columns already; one of more axes may be joined anywhere.
    many = [*range(mesh_ndim - 1, -1, -1), mesh_ndim]
    for row_axes in [mesh_ndim - 1] if mesh_ndim < 3 else many:
        rows = [axis for axis in live if axis < row_axes]
        columns = list(live[len(rows) :])
        if order in (columns, []) or (rows and columns and order == [*rows, *columns]):
            yield row_axes, ShardOrientation.ROW_MAJOR
        elif order in (rows, [*columns, *rows]):
            yield row_axes, ShardOrientation.COL_MAJOR


def _spread_first(digits: Sequence[TensorDigit]) -> bool:
    """Whether spread digits come before kept ones."""
    kept = [digit.axis is None for digit in digits]
    return all(before <= behind for before, behind in pairwise(kept))


def _size(digits: Iterable[TensorDigit]) -> int:
    return prod(digit.size for digit in digits)


def _shard_extent(
    rows: Sequence[TensorDigit],
    columns: Sequence[TensorDigit],
    live: Sequence[int],
    row_axes: int,
) -> Extent | None:
    """Return the extents of a shard, 0 where it is not cut and repeats; None if impossible."""
    height, width = (_size(d for d in side if d.axis is None) for side in (rows, columns))
    down, across = (any(d.axis is not None for d in side) for side in (rows, columns))
    spread = {digit.axis for digit in (*rows, *columns)}
    copied = [axis for axis in live if axis not in spread]
    wraps = not copied and 0 < sum(axis < row_axes for axis in live) < len(live)
    if down and across and copied:  # a buffer cut both ways has a shard for every chip
        return None
    if wraps or (down and across):
        return Extent(height=height, width=width)
    return Extent(height=height * down, width=width * across)
