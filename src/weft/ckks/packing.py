"""`Packing`: where the coordinates of a tensor go, which ciphertext and which slot of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.ckks.arrange import Place, arrange, regroup, trimmed
from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.layout import ShardingSpec
from weft.space import Digit, digits_of
from weft.values import Point, as_point, as_shape, counted, freeze

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Kind = TypeVar("Kind", np.float64, np.int64)


class Table(NamedTuple):
    """What each coordinate of one dimension adds to the ciphertext's number and to the slot."""

    ciphertext: Integers
    slot: Integers


@dataclass(frozen=True, slots=True, init=False)
class Packing(Drawn):
    """A map of the coordinates of a tensor to ciphertexts and their slots.

    `radices` splits each dimension into digits, major to minor, as a `Lifting` does. `spec` cuts
    the digits into blocks, one ciphertext each; the blocks are counted row by row. In a block the
    digits stand in the slots with `strides`. With a `period` the content repeats every so many
    slots. Slots that hold no element hold zero.

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
        steps = as_point(strides, "strides", len(lifted))
        every = slots if period is None else period
        for dim, (size, split) in enumerate(zip(sizes, splits)):
            if size < 1 or prod(split) < size:
                digits = " x ".join(map(str, split)) or "1"
                raise WeftError(f"dimension {dim} of size {size} does not fit digits of {digits}")
        if slots < 1 or slots & (slots - 1) or every < 1 or slots % every:
            raise WeftError(f"a period of {every} does not divide {slots} slots, a power of two")
        _check_apart(spec.shard_shape(lifted), steps, every)
        freeze(self, shape=sizes, radices=splits, spec=spec, strides=steps, slots=slots)
        freeze(self, period=every)

    @classmethod
    def dense(cls, shape: Iterable[int], slots: int, period: int | None = None) -> Packing:
        """Row by row, without padding.

        >>> Packing.dense((3, 5), slots=32).strides
        (5, 1)
        """
        sizes = as_shape(shape)
        order = [Place(dim) for dim in reversed(range(len(sizes)))]
        return cls._arranged(sizes, [(n,) for n in sizes], order, slots, period)

    @classmethod
    def tiled(
        cls,
        shape: Iterable[int],
        slots: int,
        side: int | tuple[int, int] | None = None,
        period: int | None = None,
    ) -> Packing:
        """The last two dimensions padded to powers of two, or to the sides that are given.

        >>> Packing.tiled((512, 7, 7), slots=1 << 15).strides
        (64, 8, 1)
        """
        sizes = as_shape(shape)
        high, wide = _sides(side)
        order = [Place(dim) for dim in reversed(range(len(sizes)))]
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
        """Channels in the gaps of a tile: `gap * gap` of them side by side in every gap.

        Channel `hi * gap * gap + a * gap + b` has its pixel (y, x) at row `gap * y + a` and column
        `gap * x + b` of tile `hi`. `side` is that of the tile.

        >>> Packing.multiplexed((8, 4, 4), slots=128, gap=2).place((7, 1, 2))
        (0, 93)
        """
        sizes = _spatial(shape)
        if gap < 1:
            raise WeftError(f"a gap of {gap} holds nothing; it must be at least 1")
        high, wide = _sides(side)
        lead, (channels, *image) = len(sizes) - 3, sizes[-3:]
        radices: list[Point] = [(n,) for n in sizes[:-3]]
        radices += [(-(-channels // gap**2), gap, gap)]
        top, a, b, y, x = range(lead, lead + 5)
        order = [Place(b), Place(x, True, wide), Place(a), Place(y, True, high), Place(top)]
        order += [Place(dim) for dim in reversed(range(lead))]
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
        """Rows and columns split by their remainders, each pair of which has a tile of its own.

        It is what a convolution of that stride likes: every tap reads one tile, shifted.

        >>> packing = Packing.phased((3, 224, 224), slots=1 << 15, phases=2)
        >>> packing.ciphertexts, packing.place((0, 2, 3))
        (6, (0, 16513))
        """
        sizes = _spatial(shape)
        down, along = (phases, phases) if isinstance(phases, int) else phases
        if min(down, along) < 1:
            raise WeftError(f"phases of {down} and {along} split nothing; they must be at least 1")
        high, wide = _sides(side)
        lead, (channels, rows, columns) = len(sizes) - 3, sizes[-3:]
        radices: list[Point] = [(n,) for n in (*sizes[:-3], channels)]
        radices += [(-(-rows // down), down), (-(-columns // along), along)]
        c, y, r, x, s = range(lead, lead + 5)
        order = [Place(x, True, wide), Place(y, True, high), Place(s), Place(r), Place(c)]
        order += [Place(dim) for dim in reversed(range(lead))]
        return cls._arranged(sizes, radices, order, slots, period)

    @classmethod
    def vector(cls, size: int, slots: int, stride: int = 1, period: int | None = None) -> Packing:
        """A vector whose elements stand so many slots apart.

        >>> Packing.vector(4, slots=32, stride=8).place((3,))
        (0, 24)
        """
        if stride < 1:
            raise WeftError(f"a stride of {stride} slots is not at least 1")
        (size,) = as_shape((size,))
        order = [Place(0, first=stride)]
        return cls._arranged((size,), [(size,)], order, slots, period)

    @classmethod
    def _arranged(
        cls,
        shape: Point,
        radices: Sequence[Point],
        order: Sequence[Place],
        slots: int,
        period: int | None,
        uncut: Sequence[int] = (),
    ) -> Packing:
        splits = [trimmed(n, split) for n, split in zip(shape, radices)]
        # Gaps are kept, be there channels for them or not.
        spec, strides = arrange(shape, radices if uncut else splits, order, period or slots, uncut)
        return cls(shape, splits, spec, strides, slots, period)

    def replicated(self, period: int | None = None) -> Packing:
        """The same content repeated, as often as it fits unless a period is given.

        >>> Packing.vector(3, slots=32).replicated().period
        4
        """
        every = 1 << (self.span - 1).bit_length() if period is None else period
        return Packing(self.shape, self.radices, self.spec, self.strides, self.slots, every)

    @property
    def ciphertexts(self) -> int:
        """How many ciphertexts hold the tensor."""
        return prod(self.spec.grid)

    @property
    def lifted(self) -> Point:
        """The sizes of all digits: the shape that `spec` cuts."""
        return tuple(radix for split in self.radices for radix in split)

    @property
    def extents(self) -> Point:
        """How many values each digit has inside one ciphertext."""
        return self.spec.shard_shape(self.lifted)

    @property
    def digits(self) -> tuple[Digit, ...]:
        """All digits with their strides in the slots; a cut digit counts inside its block."""
        return digits_of(self.radices, self.strides)

    @property
    def span(self) -> int:
        """How many slots there are from the first that a full block uses to the last."""
        return 1 + sum((n - 1) * stride for n, stride in zip(self.extents, self.strides))

    @property
    def occupancy(self) -> float:
        """The part of all slots that hold elements, copies counted.

        >>> Packing.tiled((512, 7, 7), slots=1 << 15).occupancy
        0.765625
        """
        return prod(self.shape) / (self.ciphertexts * self.period)

    def tables(self) -> tuple[Table, ...]:
        """For each dimension, what its coordinates add to the ciphertext's number and the slot."""
        return _tables(self)

    def place(self, point: Iterable[int]) -> tuple[int, int]:
        """The ciphertext and the first slot of an element."""
        at = as_point(point, "point", len(self.shape))
        if not all(0 <= x < n for x, n in zip(at, self.shape)):
            raise WeftError(f"a tensor of shape {list(self.shape)} has no element {list(at)}")
        parts = [(table.ciphertext[x], table.slot[x]) for table, x in zip(self.tables(), at)]
        return int(sum(c for c, _ in parts)), int(sum(s for _, s in parts))

    def numbers(self) -> Integers:
        """The element, counted row by row, in every slot of every ciphertext; -1 where none is.

        >>> Packing.vector(2, slots=8, stride=2, period=4).numbers()
        array([[ 0, -1,  1, -1,  0, -1,  1, -1]])
        """
        return self._spread(np.arange(prod(self.shape)).reshape(self.shape), -1)

    def coordinates(self, ciphertext: int) -> Integers:
        """The coordinates of the element in every slot, one row for each dimension; -1 for none."""
        numbers = self.numbers()[ciphertext]
        found = np.array(np.unravel_index(numbers.clip(0), self.shape), dtype=np.int64)
        return np.where(numbers < 0, -1, found.reshape(len(self.shape), self.slots))

    def pack(self, array: ArrayLike) -> list[Floats]:
        """The slots of every ciphertext, filled from an array.

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
        """The array, read from the slots of all ciphertexts.

        >>> packing = Packing.dense((2, 2), slots=4)
        >>> packing.unpack(packing.pack([[1, 2], [3, 4]])).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
        """
        if len(rows) != self.ciphertexts:
            need = counted(self.ciphertexts, "ciphertext")
            raise WeftError(f"{len(rows)} rows of slots are given for {need}")
        found: Floats = np.asarray(rows, dtype=np.float64)[self._places()]
        return found

    def reshaped(self, shape: Iterable[int]) -> Packing | None:
        """The same slots seen as another shape of as many elements; None where digits do not allow.

        >>> flat = Packing.tiled((8, 7, 7), slots=512).reshaped((392,))
        >>> flat.radices, flat.strides
        (((8, 7, 7),), (64, 8, 1))
        """
        sizes = as_shape(shape)
        if sizes == self.shape:
            return self
        found = regroup(self.shape, self.radices, self.spec, self.strides, sizes)
        if found is None:
            return None
        radices, cuts, strides = found
        spec = ShardingSpec(self.spec.mesh, cuts)
        return Packing(sizes, radices, spec, strides, self.slots, self.period)

    def drawing(self) -> Drawing:
        """The blocks of the digits, each with its ciphertext."""
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
    """The height and the width of a tile; 0 for the next power of two."""
    return (side or 0, side or 0) if not isinstance(side, tuple) else side


def _bare(shape: Iterable[int]) -> Point:
    return tuple(n for n in shape if n != 1)


def _check_apart(extents: Point, strides: Point, period: int) -> None:
    """Refuse digits that could meet in a slot, or leave the period."""
    reach = 0
    for stride, extent in sorted((s, n) for s, n in zip(strides, extents) if n > 1):
        if stride <= reach:
            raise WeftError(f"a stride of {stride} slots is within {reach + 1} that are in use")
        reach += stride * (extent - 1)
    if reach >= period:
        raise WeftError(f"{reach + 1} slots are needed and {period} are there")


@lru_cache(maxsize=4096)
def _tables(packing: Packing) -> tuple[Table, ...]:
    """Each digit's block and place in it, added up for each dimension."""
    grid, extents = packing.spec.grid, packing.extents
    weights = [prod(grid[place + 1 :]) for place in range(len(grid))]
    found = [Table(np.zeros(n, np.int64), np.zeros(n, np.int64)) for n in packing.shape]
    for place, (dim, divisor, radix, stride) in enumerate(packing.digits):
        values = np.arange(packing.shape[dim]) // divisor % radix
        block, inside = np.divmod(values, extents[place])
        found[dim] = Table(
            found[dim].ciphertext + block * weights[place], found[dim].slot + inside * stride
        )
    for table in found:
        table.ciphertext.flags.writeable = table.slot.flags.writeable = False
    return tuple(found)
