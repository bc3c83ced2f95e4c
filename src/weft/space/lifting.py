"""`Lifting`: split dimensions into mixed-radix digits, permute the digits, give the strides.

An element of a tiled array has a shard, a tile in the shard and a place in the tile; a reshape has
the common factors of two shapes; a packing has a ciphertext and a slot. All are digits of the same
coordinates in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from weft.errors import WeftError
from weft.values import Point, as_count, as_point, as_shape, freeze, points


class Digit(NamedTuple):
    """One digit of a coordinate: `x[dim] // divisor % radix`, worth `stride` in an address.

    >>> [digit.stride for digit in Lifting.tiled((6, 4), (2, 2)).digits]
    [8, 2, 4, 1]
    """

    dim: int
    divisor: int
    radix: int
    stride: int

    def of(self, point: Sequence[int]) -> int:
        """The digit that a point has."""
        return point[self.dim] // self.divisor % self.radix


def digits_of(radices: Iterable[Point], strides: Iterable[int]) -> tuple[Digit, ...]:
    """The digits of dimensions that are split, each with its stride.

    >>> [digit.divisor for digit in digits_of([(3, 2), (2, 2)], (8, 2, 4, 1))]
    [2, 1, 2, 1]
    """
    each = iter(strides)
    return tuple(
        Digit(dim, prod(split[place + 1 :]), radix, next(each))
        for dim, split in enumerate(radices)
        for place, radix in enumerate(split)
    )


@dataclass(frozen=True, slots=True, init=False)
class Lifting:
    """A map of the points of an array to addresses, by digits.

    `radices` splits each dimension, major to minor; their product may exceed the size (a ragged
    edge), never fall short of it. `order` lists all digits, counted dimension by dimension, as
    they stand in the address, major to minor.

    Six tiles by four, two by two in a shard, are laid out shard after shard:

    >>> lift = Lifting.tiled((6, 4), (2, 2))
    >>> lift.radices, lift.order, lift.strides
    (((3, 2), (2, 2)), (0, 2, 1, 3), (8, 2, 4, 1))
    >>> lift.address((1, 2)), lift.capacity
    (6, 24)
    """

    shape: Point
    radices: tuple[Point, ...]
    order: Point

    def __init__(
        self, shape: Iterable[int], radices: Iterable[Iterable[int]], order: Iterable[int]
    ) -> None:
        splits = tuple(
            as_point(split, f"split of dimension {d}") for d, split in enumerate(radices)
        )
        sizes, places = as_shape(shape, len(splits)), as_point(order, "order")
        for dim, (size, split) in enumerate(zip(sizes, splits)):
            if min(split, default=1) < 1 or prod(split) < size:
                digits = " x ".join(map(str, split)) or "1"
                raise WeftError(f"dimension {dim} of size {size} does not fit digits of {digits}")
        if sorted(places) != list(range(sum(map(len, splits)))):
            raise WeftError(
                f"order {places} is not a permutation of {sum(map(len, splits))} digits"
            )
        freeze(self, shape=sizes, radices=splits, order=places)

    @classmethod
    def tiled(cls, shape: Iterable[int], *blocks: Iterable[int]) -> Lifting:
        """Blocks of blocks, given innermost first, laid out outermost first.

        `blocks` are a tile's shape in elements, then a shard's shape in tiles, and so on; the
        outermost count is what the size needs, rounded up. With the tiles of an array as `shape`
        and the tiles of a shard as the only block, the addresses are the tiles in shard order.

        >>> Lifting.tiled((100,), (16,), (4,)).radices
        ((2, 4, 16),)
        """
        sizes = as_shape(shape)
        inner = [as_point(block, f"block {n}", len(sizes)) for n, block in enumerate(blocks)]
        for level, block in enumerate(inner):
            if min(block, default=1) < 1:
                raise WeftError(f"block {level} is {block}; each extent must be at least 1")
        splits = [[block[dim] for block in reversed(inner)] for dim in range(len(sizes))]
        radices = [(max(1, -(-n // prod(split))), *split) for n, split in zip(sizes, splits)]
        levels, dims = range(len(inner) + 1), range(len(sizes))
        return cls(sizes, radices, [dim * len(levels) + level for level in levels for dim in dims])

    @property
    def strides(self) -> Point:
        """What one step of each digit adds to the address."""
        sizes = [radix for split in self.radices for radix in split]
        strides, stride = [0] * len(sizes), 1
        for digit in reversed(self.order):
            strides[digit] = stride
            stride *= sizes[digit]
        return tuple(strides)

    @property
    def digits(self) -> tuple[Digit, ...]:
        """All digits, dimension by dimension, each major to minor: the table a kernel needs."""
        return digits_of(self.radices, self.strides)

    @property
    def capacity(self) -> int:
        """The number of addresses: one for each point, and those that ragged edges leave unused."""
        return prod(map(prod, self.radices))

    def address(self, point: Iterable[int]) -> int:
        """Where a point of the array goes."""
        x = as_point(point, "point", len(self.shape))
        for dim, (at, size) in enumerate(zip(x, self.shape)):
            if not 0 <= at < size:
                raise WeftError(f"dimension {dim} of size {size} has no coordinate {at}")
        return sum(x[dim] // div % radix * stride for dim, div, radix, stride in self.digits)

    def point(self, address: int) -> Point | None:
        """Which point goes to an address; None for one that a ragged edge leaves unused.

        >>> lift = Lifting.tiled((5,), (2,))
        >>> [lift.point(a) for a in range(lift.capacity)]
        [(0,), (1,), (2,), (3,), (4,), None]
        """
        if as_count(address, "address") >= self.capacity:
            raise WeftError(f"no address {address} among {self.capacity}")
        x = [0] * len(self.shape)
        for dim, divisor, radix, stride in self.digits:
            x[dim] += address // stride % radix * divisor
        return tuple(x) if all(at < n for at, n in zip(x, self.shape)) else None

    def addresses(self) -> list[int]:
        """The address of every point, in row-major order of the points."""
        return weigh(self.shape, self.digits)

    def permutation(self) -> list[int]:
        """The place of every point among all points sorted by address: ragged edges closed up.

        It equals `addresses()` where nothing is ragged.

        >>> lift = Lifting.tiled((3, 3), (2, 2))
        >>> lift.addresses()
        [0, 1, 4, 2, 3, 6, 8, 9, 12]
        >>> lift.permutation()
        [0, 1, 4, 2, 3, 5, 6, 7, 8]
        """
        addresses = self.addresses()
        places = [0] * len(addresses)
        for place, number in enumerate(sorted(range(len(addresses)), key=addresses.__getitem__)):
            places[number] = place
        return places


def weigh(shape: Sequence[int], digits: Iterable[Digit]) -> list[int]:
    """The sum of its digits, each times its stride, at every point of a grid of that shape.

    >>> weigh((2, 3), [Digit(0, 1, 2, stride=10), Digit(1, 1, 3, stride=1)])
    [0, 1, 2, 10, 11, 12]
    """
    terms = [[0] * size for size in shape]
    for dim, divisor, radix, stride in digits:
        terms[dim] = [t + x // divisor % radix * stride for x, t in enumerate(terms[dim])]
    sums = [0]
    for column in terms:
        sums = [total + term for total in sums for term in column]
    return sums


def matching(shape: Sequence[int], fixed: Iterable[tuple[Digit, int]]) -> Iterator[Point]:
    """The points of a grid of that shape whose digits have the given values, in order.

    >>> list(matching((4, 2), [(Digit(dim=0, divisor=2, radix=2, stride=1), 1)]))
    [(2, 0), (2, 1), (3, 0), (3, 1)]
    """
    first, free, rests = [0] * len(shape), list[Digit](), list(shape)
    for (dim, divisor, radix, _), value in sorted(fixed, key=lambda each: -each[0].divisor):
        free.append(Digit(dim, divisor * radix, rests[dim] // (divisor * radix), 1))
        first[dim] += value * divisor
        rests[dim] = divisor
    free += [Digit(dim, 1, rest, 1) for dim, rest in enumerate(rests)]
    free = sorted((d for d in free if d.radix > 1), key=lambda d: (d.dim, -d.divisor))
    for values in points((0,) * len(free), tuple(digit.radix for digit in free)):
        point = first.copy()
        for digit, value in zip(free, values):
            point[digit.dim] += value * digit.divisor
        yield tuple(point)
