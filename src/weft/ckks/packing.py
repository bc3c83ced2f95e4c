"""`Packing`: the ciphertext and the slot of each element of a tensor.

A packing is a sharding of the digits of the coordinates over a mesh of ciphertexts, and a stride
for each digit in the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.layout.sharding import refuse_cut_points
from weft.space import BlockGrid, Digit, digits_of
from weft.values import Point, as_point, as_shape, counted, freeze

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Kind = TypeVar("Kind", np.float64, np.int64)


class AddressTable(NamedTuple):
    """For one dimension, the ciphertext number and the slot that each coordinate adds."""

    ciphertext: Integers
    slot: Integers


@dataclass(frozen=True, slots=True, init=False)
class Packing(Drawn):
    """A map from the elements of a tensor to ciphertexts and their slots.

    `radices` splits each dimension into digits, major to minor. `spec` shards the digits into
    blocks, one ciphertext each, numbered in row-major order. Inside a block the digits have
    `strides` in the slots. With a `period` the content repeats every `period` slots. Slots without
    an element are zero.

    >>> packing = Packing.tiled((64, 56, 56), slots=1 << 15)
    >>> print(packing)
    64x56x56 in 8 ciphertexts of 32768 slots, <@ct, [{"y"}, {"z"}, {"w"}]>, strides 4096 64 1
    >>> packing.ciphertexts, packing.place((9, 1, 2))
    (8, (1, 4162))
    """

    shape: Point
    radices: tuple[Point, ...]
    spec: ShardingSpec
    strides: Point
    slots: int
    period: int

    def __init__(
        self,
        shape: Iterable[int],
        radices: Iterable[Iterable[int]],
        spec: ShardingSpec,
        strides: Iterable[int],
        slots: int,
        period: int | None = None,
    ) -> None:
        splits = tuple(as_point(split, "radices") for split in radices)
        sizes = as_shape(shape, len(splits))
        lifted = [radix for split in splits for radix in split]
        places = as_point(strides, "strides", len(lifted))
        every = slots if period is None else period
        for dim, (size, split) in enumerate(zip(sizes, splits)):
            if size < 1 or prod(split) < size:
                digits = " x ".join(map(str, split)) or "1"
                raise WeftError(f"dimension {dim} of size {size} does not fit digits of {digits}")
        if slots < 1 or slots & (slots - 1) or every < 1 or slots % every:
            raise WeftError(f"a period of {every} does not divide {slots} slots, a power of two")
        refuse_cut_points(spec, "a packing")
        _check_apart(spec.shard_shape(lifted), places, every)
        freeze(self, shape=sizes, radices=splits, spec=spec, strides=places, slots=slots)
        freeze(self, period=every)

    @classmethod
    def dense(cls, shape: Iterable[int], slots: int, period: int | None = None) -> Packing:
        """Pack row by row, without padding.

        >>> Packing.dense((3, 5), slots=32).strides
        (5, 1)
        """
        sizes = as_shape(shape)
        order = [_Fill(dim) for dim in reversed(range(len(sizes)))]
        return cls._arranged(sizes, [(n,) for n in sizes], order, slots, period)

    @classmethod
    def tiled(
        cls,
        shape: Iterable[int],
        slots: int,
        side: int | tuple[int, int] | None = None,
        period: int | None = None,
    ) -> Packing:
        """Pack the last two dimensions as tiles, padded to `side` (default: to powers of two).

        >>> Packing.tiled((512, 7, 7), slots=1 << 15).strides
        (64, 8, 1)
        """
        sizes = as_shape(shape)
        high, wide = _sides(side)
        order = [_Fill(dim) for dim in reversed(range(len(sizes)))]
        for number, given in enumerate((wide, high)[: len(sizes)]):
            order[number] = order[number]._replace(pads=True, side=given)
        return cls._arranged(sizes, [(n,) for n in sizes], order, slots, period)

    @classmethod
    def multiplexed(
        cls,
        shape: Iterable[int],
        slots: int,
        gap: int,
        side: int | tuple[int, int] | None = None,
        period: int | None = None,
    ) -> Packing:
        """Pack `gap * gap` channels into one tile, interleaved.

        Channel `hi * gap * gap + a * gap + b` has its pixel (y, x) at row `gap * y + a` and column
        `gap * x + b` of tile `hi`. `side` is that of the tile.

        >>> Packing.multiplexed((8, 4, 4), slots=128, gap=2).place((7, 1, 2))
        (0, 93)
        """
        sizes = _spatial(shape)
        if gap < 1:
            raise WeftError(f"gap is {gap}; it must be at least 1")
        high, wide = _sides(side)
        lead, (channels, *image) = len(sizes) - 3, sizes[-3:]
        radices: list[Point] = [(n,) for n in sizes[:-3]]
        radices += [(-(-channels // gap**2), gap, gap)]
        top, a, b, y, x = range(lead, lead + 5)
        order = [_Fill(b), _Fill(x, True, wide), _Fill(a), _Fill(y, True, high), _Fill(top)]
        order += [_Fill(dim) for dim in reversed(range(lead))]
        uncut = (a, b)
        return cls._arranged(sizes, [*radices, *((n,) for n in image)], order, slots, period, uncut)

    @classmethod
    def phased(
        cls,
        shape: Iterable[int],
        slots: int,
        phases: int | tuple[int, int],
        side: int | tuple[int, int] | None = None,
        period: int | None = None,
    ) -> Packing:
        """Pack the rows and columns of each remainder modulo `phases` into a tile of its own.

        It suits the input of a convolution of that stride: every tap reads one tile, shifted.

        >>> packing = Packing.phased((3, 224, 224), slots=1 << 15, phases=2)
        >>> packing.ciphertexts, packing.place((0, 2, 3))
        (6, (0, 16513))
        """
        sizes = _spatial(shape)
        down, along = (phases, phases) if isinstance(phases, int) else phases
        if min(down, along) < 1:
            raise WeftError(f"phases are {down} and {along}; they must be at least 1")
        high, wide = _sides(side)
        lead, (channels, rows, columns) = len(sizes) - 3, sizes[-3:]
        radices: list[Point] = [(n,) for n in (*sizes[:-3], channels)]
        radices += [(-(-rows // down), down), (-(-columns // along), along)]
        c, y, r, x, s = range(lead, lead + 5)
        order = [_Fill(x, True, wide), _Fill(y, True, high), _Fill(s), _Fill(r), _Fill(c)]
        order += [_Fill(dim) for dim in reversed(range(lead))]
        return cls._arranged(sizes, radices, order, slots, period)

    @classmethod
    def vector(cls, size: int, slots: int, stride: int = 1, period: int | None = None) -> Packing:
        """Pack a vector, its elements `stride` slots apart.

        >>> Packing.vector(4, slots=32, stride=8).place((3,))
        (0, 24)
        """
        if stride < 1:
            raise WeftError(f"stride is {stride}; it must be at least 1")
        (size,) = as_shape((size,))
        order = [_Fill(0, first=stride)]
        return cls._arranged((size,), [(size,)], order, slots, period)

    @classmethod
    def _arranged(
        cls,
        shape: Point,
        radices: Sequence[Point],
        order: Sequence[_Fill],
        slots: int,
        period: int | None,
        uncut: Sequence[int] = (),
    ) -> Packing:
        splits = [_trimmed(n, split) for n, split in zip(shape, radices)]
        # Gaps are kept even where there are no channels for them.
        spec, strides = _arrange(shape, radices if uncut else splits, order, period or slots, uncut)
        return cls(shape, splits, spec, strides, slots, period)

    def replicated(self, period: int | None = None) -> Packing:
        """Return the packing with its content repeated (default: as often as it fits).

        >>> Packing.vector(3, slots=32).replicated().period
        4
        """
        every = 1 << (self.span - 1).bit_length() if period is None else period
        return Packing(self.shape, self.radices, self.spec, self.strides, self.slots, every)

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts."""
        return prod(self.spec.grid)

    @property
    def lifted(self) -> Point:
        """The radices of all digits: the shape that `spec` shards."""
        return tuple(radix for split in self.radices for radix in split)

    @property
    def extents(self) -> Point:
        """The number of values that each digit has inside one ciphertext."""
        return self.spec.shard_shape(self.lifted)

    @property
    def digits(self) -> tuple[Digit, ...]:
        """All digits with their strides in the slots; a sharded digit counts inside its block."""
        return digits_of(self.radices, self.strides)

    @property
    def span(self) -> int:
        """The number of slots from the first that a full block uses to the last."""
        return 1 + sum((n - 1) * stride for n, stride in zip(self.extents, self.strides))

    def tables(self) -> tuple[AddressTable, ...]:
        """Return the address table of each dimension."""
        return _tables(self)

    def place(self, point: Iterable[int]) -> tuple[int, int]:
        """Return the ciphertext and the first slot of an element."""
        at = as_point(point, "point", len(self.shape))
        if not all(0 <= x < n for x, n in zip(at, self.shape)):
            raise WeftError(f"a tensor of shape {list(self.shape)} has no element {list(at)}")
        parts = [(table.ciphertext[x], table.slot[x]) for table, x in zip(self.tables(), at)]
        return int(sum(c for c, _ in parts)), int(sum(s for _, s in parts))

    def numbers(self) -> Integers:
        """Return the row-major number of the element in every slot of every ciphertext, or -1.

        >>> Packing.vector(2, slots=8, stride=2, period=4).numbers()
        array([[ 0, -1,  1, -1,  0, -1,  1, -1]])
        """
        return self._spread(np.arange(prod(self.shape)).reshape(self.shape), -1)

    def pack(self, array: ArrayLike) -> list[Floats]:
        """Return the slots of every ciphertext, filled from an array.

        >>> [row.tolist() for row in Packing.vector(3, slots=4, stride=2).pack([1, 2, 3])]
        [[1.0, 0.0, 2.0, 0.0], [3.0, 0.0, 0.0, 0.0]]
        """
        given = np.asarray(array, dtype=np.float64)
        if _bare(given.shape) != _bare(self.shape):
            raise WeftError(
                f"an array of shape {list(given.shape)} is packed as {list(self.shape)}"
            )
        return list(self._spread(given.reshape(self.shape), 0.0))

    def unpack(self, rows: Sequence[Floats]) -> Floats:
        """Return the array that the slots of all ciphertexts hold.

        >>> packing = Packing.dense((2, 2), slots=4)
        >>> packing.unpack(packing.pack([[1, 2], [3, 4]])).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
        """
        if len(rows) != self.ciphertexts:
            need = counted(self.ciphertexts, "ciphertext")
            raise WeftError(f"{len(rows)} rows of slots are given for {need}")
        array: Floats = np.asarray(rows, dtype=np.float64)[self._places()]
        return array

    def reshaped(self, shape: Iterable[int]) -> Packing | None:
        """Return the same slots as a tensor of another shape; None if the digits do not allow it.

        >>> flat = Packing.tiled((8, 7, 7), slots=512).reshaped((392,))
        >>> flat.radices, flat.strides
        (((8, 7, 7),), (64, 8, 1))
        """
        sizes = as_shape(shape)
        return self if sizes == self.shape else _regroup(self, sizes)

    def drawing(self) -> Drawing:
        """Return a drawing of the blocks of the digits, each with its ciphertext."""
        return self.spec.drawing(self.lifted)

    def _places(self) -> tuple[Integers, Integers]:
        ciphertext = slot = np.zeros((), dtype=np.int64)
        for table in self.tables():
            ciphertext = ciphertext[..., None] + table.ciphertext
            slot = slot[..., None] + table.slot
        return ciphertext, slot

    def _spread(self, values: NDArray[Kind], rest: float) -> NDArray[Kind]:
        spread = np.full((self.ciphertexts, self.period), rest, dtype=values.dtype)
        spread[self._places()] = values
        return np.tile(spread, (1, self.slots // self.period))

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        strides = " ".join(map(str, self.strides))
        every = f", every {self.period}" if self.period < self.slots else ""
        count = counted(self.ciphertexts, "ciphertext")
        return f"{size} in {count} of {self.slots} slots, {self.spec}, strides {strides}{every}"


def _spatial(shape: Iterable[int]) -> Point:
    sizes = as_shape(shape)
    if len(sizes) < 3:
        raise WeftError(f"a tensor of shape {list(sizes)} has no channels, rows and columns")
    return sizes


def _sides(side: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return the height and the width of a tile; 0 for the next power of two."""
    return (side or 0, side or 0) if not isinstance(side, tuple) else side


def _bare(shape: Iterable[int]) -> Point:
    return tuple(n for n in shape if n != 1)


def _check_apart(extents: Point, strides: Point, period: int) -> None:
    """Refuse digits that share a slot, or that do not fit the period."""
    reach = 0
    for stride, extent in sorted((s, n) for s, n in zip(strides, extents) if n > 1):
        if stride <= reach:
            raise WeftError(f"a stride of {stride} slots overlaps the {reach + 1} slots in use")
        reach += stride * (extent - 1)
    if reach >= period:
        raise WeftError(f"{reach + 1} slots are needed; there are {period}")


@lru_cache(maxsize=4096)
def _tables(packing: Packing) -> tuple[AddressTable, ...]:
    """Return the address tables: each digit's block and place in it, added up per dimension."""
    grid, extents = packing.spec.grid, packing.extents
    weights = [prod(grid[place + 1 :]) for place in range(len(grid))]
    tables = [AddressTable(np.zeros(n, np.int64), np.zeros(n, np.int64)) for n in packing.shape]
    for place, (dim, divisor, radix, stride) in enumerate(packing.digits):
        values = np.arange(packing.shape[dim]) // divisor % radix
        block, inside = np.divmod(values, extents[place])
        tables[dim] = AddressTable(
            tables[dim].ciphertext + block * weights[place], tables[dim].slot + inside * stride
        )
    for table in tables:
        table.ciphertext.flags.writeable = table.slot.flags.writeable = False
    return tuple(tables)


class _Fill(NamedTuple):
    """A digit that fills slots; the fastest running digit comes first."""

    digit: int
    pads: bool = False
    """Whether the slots it fills are padded: to `side`, or to the next power of two."""
    side: int = 0
    first: int = 1
    """The smallest stride that it may have."""


def _arrange(
    shape: Point,
    radices: Sequence[Point],
    order: Sequence[_Fill],
    room: int,
    uncut: Sequence[int],
) -> tuple[ShardingSpec, Point]:
    """Return how digits are cut over ciphertexts, and their strides in `room` slots.

    The slowest digits are cut first: channels, then rows, then columns.
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
            f"a tensor of shape {list(shape)} needs at least {span} slots; there are {room}"
        )
    counts = BlockGrid.blocks(lifted, extents).counts
    spec = _cut(shape, radices, counts)
    return spec, _strides(lifted, spec.shard_shape(lifted), order)


def _largest(
    lifted: Point, extents: list[int], order: Sequence[_Fill], digit: int, room: int
) -> int:
    """Return the most values of a digit that fit, or 1."""
    low, high = 1, lifted[digit]
    while low < high:
        middle = (low + high + 1) // 2
        tried = [*extents[:digit], middle, *extents[digit + 1 :]]
        low, high = (middle, high) if _span(lifted, tried, order) <= room else (low, middle - 1)
    return low


def _span(lifted: Point, extents: Sequence[int], order: Sequence[_Fill]) -> int:
    strides = _strides(lifted, extents, order)
    return 1 + sum((n - 1) * stride for n, stride in zip(extents, strides))


def _strides(lifted: Point, extents: Sequence[int], order: Sequence[_Fill]) -> Point:
    """Return the stride of each digit: as many slots as the digits before it fill."""
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
    """Return the sharding over a mesh of ciphertexts; its axes are named in `_axis_name`."""
    names, left = list[tuple[str, int]](), iter(counts)
    for dim, split in enumerate(radices):
        for place, _ in enumerate(split):
            names.append((_axis_name(len(shape), dim, place), next(left)))
    kept = [(name, count) for name, count in names if count > 1 or name in ("y", "z", "w")]
    mesh = DeviceMesh("ct", [count for _, count in kept], [name for name, _ in kept])
    specs = [DimSpec([name] if (name, count) in kept else []) for name, count in names]
    return ShardingSpec(mesh, specs)


def _axis_name(rank: int, dim: int, place: int) -> str:
    """Return `y` for channels, `z` for rows, `w` for columns, numbered for their minor digits."""
    lead = max(0, rank - 3)
    name = f"b{dim}" if dim < lead else "yzw"[dim - lead]
    return f"{name}{place}" if place else name


def _trimmed(size: int, split: Point) -> Point:
    """Return the radices of a dimension without values that no coordinate has."""
    radices, unit = list[int](), 1
    for radix in reversed(split):
        radices.append(min(radix, -(-size // unit)))
        unit *= radix
    return tuple(reversed(radices))


class _ViewDigit(NamedTuple):
    """A digit taken out of its dimension, to be dealt to those of another shape."""

    radix: int
    stride: int
    cut: DimSpec
    blocks: int
    """The number of blocks that it is cut into."""
    atom: int = 0
    """The size of a dimension that must stay whole and come first, and begins with this digit."""
    inner: int = 0
    """The number of further digits of such a dimension."""


def _regroup(packing: Packing, wanted: Point) -> Packing | None:
    """Return the same slots as a tensor of another shape; None if the digits do not allow it."""
    if prod(packing.shape) != prod(wanted):
        return None
    pieces = _pieces(packing)
    groups = list[list[_ViewDigit]]()
    for size in wanted:
        group = _take(pieces, size)
        if group is None:
            return None
        groups.append(group)
    if pieces:
        return None
    flat = [piece for group in groups for piece in group]
    splits = [tuple(piece.radix for piece in group) for group in groups]
    spec = ShardingSpec(packing.spec.mesh, [piece.cut for piece in flat])
    strides = [piece.stride for piece in flat]
    return Packing(wanted, splits, spec, strides, packing.slots, packing.period)


def _pieces(packing: Packing) -> list[_ViewDigit]:
    """Return all digits of more than one value, the first one last."""
    spec, pieces, closed = packing.spec, list[_ViewDigit](), 0
    left = iter(zip(packing.strides, spec.dim_specs, spec.grid))
    for size, split in zip(packing.shape, packing.radices):
        digits = [_ViewDigit(radix, *next(left)) for radix in split]
        if prod(split) != size:
            rest = prod(split[1:])
            if size % rest or digits[0].blocks > 1:
                digits[0] = digits[0]._replace(atom=size, inner=len(digits) - 1)
                pieces += digits
                closed = len(pieces)
                continue
            digits[0] = digits[0]._replace(radix=size // rest)
        for piece in digits:
            if len(pieces) > closed and _is_joined(pieces[-1], piece):
                hi = pieces.pop()
                pieces.append(piece._replace(radix=hi.radix * piece.radix))
            elif piece.radix > 1:
                pieces.append(piece)
    return pieces[::-1]


def _is_joined(major: _ViewDigit, minor: _ViewDigit) -> bool:
    """Whether two digits are one in the slots: the major one continues the minor one."""
    free = major.blocks == minor.blocks == 1 and not major.atom and not minor.atom
    return free and minor.radix > 1 and major.stride == minor.stride * minor.radix


def _take(pieces: list[_ViewDigit], size: int) -> list[_ViewDigit] | None:
    """Take the digits of one dimension of that size from the end of the list."""
    group = list[_ViewDigit]()
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
