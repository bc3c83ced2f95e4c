"""How the digits of a tensor are put into slots, cut over ciphertexts where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from weft.errors import WeftError
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.values import Point


class Place(NamedTuple):
    """A digit on its way into the slots, the fastest running digit first."""

    digit: int
    pads: bool = False
    """Whether what it fills is padded: to `side`, or to the next power of two."""
    side: int = 0
    first: int = 1
    """The stride that it has at least."""


def arrange(
    shape: Point, radices: Sequence[Point], order: Sequence[Place], room: int, uncut: Sequence[int]
) -> tuple[ShardingSpec, Point]:
    """The cut and the strides of digits that are put into so many slots in that order.

    Whole digits are cut first where they run slowest: channels, then rows, then columns.

    >>> spec, strides = arrange((6, 4), [(6,), (4,)], [Place(1), Place(0)], 16, ())
    >>> spec.grid, strides
    ((2, 1), (4, 1))
    """
    lifted = tuple(radix for split in radices for radix in split)
    if min(shape, default=1) < 1:
        raise WeftError(f"a tensor of shape {list(shape)} has no elements to pack")
    extents = list(lifted)
    for place in reversed(order):
        if _span(lifted, extents, order) <= room:
            break
        if place.digit not in uncut:
            extents[place.digit] = _largest(lifted, extents, order, place.digit, room)
    span = _span(lifted, extents, order)
    if span > room:
        raise WeftError(
            f"a tensor of shape {list(shape)} needs {span} slots at least and {room} are there"
        )
    counts = [-(-n // extent) for n, extent in zip(lifted, extents)]
    spec = _cut(shape, radices, counts)
    return spec, _strides(lifted, spec.shard_shape(lifted), order)


def _largest(
    lifted: Point, extents: list[int], order: Sequence[Place], digit: int, room: int
) -> int:
    """The most values of a digit that fit, or one."""
    low, high = 1, lifted[digit]
    while low < high:
        middle = (low + high + 1) // 2
        tried = [*extents[:digit], middle, *extents[digit + 1 :]]
        low, high = (middle, high) if _span(lifted, tried, order) <= room else (low, middle - 1)
    return low


def _span(lifted: Point, extents: Sequence[int], order: Sequence[Place]) -> int:
    strides = _strides(lifted, extents, order)
    return 1 + sum((n - 1) * stride for n, stride in zip(extents, strides))


def _strides(lifted: Point, extents: Sequence[int], order: Sequence[Place]) -> Point:
    """The stride of each digit, each as long as what stands before it."""
    strides, filled, row = [0] * len(lifted), 1, 1
    for digit, pads, side, first in order:
        strides[digit] = max(filled, first)
        filled = strides[digit] * extents[digit]
        if pads:
            # A tile that is cut has no side of its own: its blocks are as small as they can be.
            wanted = row * side if side and extents[digit] == lifted[digit] else 0
            if 0 < wanted < filled:
                raise WeftError(f"{filled // row} rows or columns do not fit a side of {side}")
            filled = row = wanted or 1 << (filled - 1).bit_length()
    return tuple(strides)


def _cut(shape: Point, radices: Sequence[Point], counts: Sequence[int]) -> ShardingSpec:
    """The sharding over a mesh of ciphertexts, whose axes are named as channels, rows, columns."""
    names, left = list[tuple[str, int]](), iter(counts)
    for dim, split in enumerate(radices):
        for place, _ in enumerate(split):
            names.append((_axis_name(len(shape), dim, place), next(left)))
    kept = [(name, count) for name, count in names if count > 1 or name in ("y", "z", "w")]
    mesh = DeviceMesh("ct", [count for _, count in kept], [name for name, _ in kept])
    specs = [DimSpec([name] if (name, count) in kept else []) for name, count in names]
    return ShardingSpec(mesh, specs)


def _axis_name(rank: int, dim: int, place: int) -> str:
    """`y` for channels, `z` for rows, `w` for columns, with a number for their minor digits."""
    lead = max(0, rank - 3)
    name = f"b{dim}" if dim < lead else "yzw"[dim - lead]
    return f"{name}{place}" if place else name


def trimmed(size: int, split: Point) -> Point:
    """The digits of a dimension without values that no coordinate has.

    >>> trimmed(3, (1, 2, 4))
    (1, 1, 3)
    """
    radices, unit = list[int](), 1
    for radix in reversed(split):
        radices.append(min(radix, -(-size // unit)))
        unit *= radix
    return tuple(reversed(radices))


class Piece(NamedTuple):
    """A digit with all that belongs to it, taken out of its dimension."""

    radix: int
    stride: int
    cut: DimSpec
    blocks: int
    """How many blocks it is cut into."""
    atom: int = 0
    """The size of a dimension that can only be kept as a whole and in front, and starts here."""
    inner: int = 0
    """How many more digits such a dimension has."""


def regroup(
    shape: Point, radices: Sequence[Point], spec: ShardingSpec, strides: Point, wanted: Point
) -> tuple[list[Point], list[DimSpec], list[int]] | None:
    """The digits of a tensor dealt to the dimensions of another shape; None where they do not fit.

    >>> mesh = DeviceMesh("ct", (), ())
    >>> spec = ShardingSpec(mesh, [DimSpec(), DimSpec()])
    >>> regroup((6, 4), [(6,), (4,)], spec, (4, 1), (2, 12))[::2]
    ([(2,), (12,)], [12, 1])
    """
    if prod(shape) != prod(wanted):
        return None
    pieces = _pieces(shape, radices, spec, strides)
    groups = list[list[Piece]]()
    for size in wanted:
        group = _take(pieces, size)
        if group is None:
            return None
        groups.append(group)
    if pieces:
        return None
    flat = [piece for group in groups for piece in group]
    splits = [tuple(piece.radix for piece in group) for group in groups]
    return splits, [piece.cut for piece in flat], [piece.stride for piece in flat]


def _pieces(
    shape: Point, radices: Sequence[Point], spec: ShardingSpec, strides: Point
) -> list[Piece]:
    """All digits of more than one value, the first one last."""
    left, pieces = iter(zip(strides, spec.dim_specs, spec.grid)), list[Piece]()
    for size, split in zip(shape, radices):
        digits = [Piece(radix, *next(left)) for radix in split]
        if prod(split) != size:
            rest = prod(split[1:])
            if size % rest or digits[0].blocks > 1:
                digits[0] = digits[0]._replace(atom=size, inner=len(digits) - 1)
                pieces += digits
                continue
            digits[0] = digits[0]._replace(radix=size // rest)
        for piece in digits:
            if pieces and _is_joined(pieces[-1], piece):
                hi = pieces.pop()
                pieces.append(piece._replace(radix=hi.radix * piece.radix))
            elif piece.radix > 1:
                pieces.append(piece)
    return pieces[::-1]


def _is_joined(major: Piece, minor: Piece) -> bool:
    """Whether two digits count on in the slots, so that they are one."""
    free = major.blocks == minor.blocks == 1 and not major.atom and not minor.atom
    return free and minor.radix > 1 and major.stride == minor.stride * minor.radix


def _take(pieces: list[Piece], size: int) -> list[Piece] | None:
    """The digits of one dimension of that size, taken from the end of the list."""
    group = list[Piece]()
    while size > 1:
        piece = pieces.pop()
        if piece.atom:
            if group or size % piece.atom:
                return None
            size //= piece.atom
            group += [piece, *(pieces.pop() for _ in range(piece.inner))]
        elif size % piece.radix == 0:
            size //= piece.radix
            group.append(piece)
        elif piece.radix % size == 0 and piece.blocks == 1:
            rest = piece.radix // size
            group.append(piece._replace(radix=size, stride=piece.stride * rest))
            pieces.append(piece._replace(radix=rest, cut=DimSpec()))
            size = 1
        else:
            return None
    return group
