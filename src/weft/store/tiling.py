"""`Tiling`: which tile an element goes to, which shard a tile, and which slot of it.

Frames arrive in row-major order of the leading dimensions. The first dimension whose chunks are
longer than one is the *grain*: as many frames as a chunk is long along it make an *epoch*, which
fills every tile of the dimensions behind it once. The tiles of an epoch are grouped by shard by the
lifting of `weft.space`: tile t is shard t // n and place t % n of it, along every dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

from weft.space import Lifting, ZRange
from weft.values import Point


class Group(NamedTuple):
    """The tiles of one epoch that go to one shard: their numbers, and their slots in it."""

    shard: Point
    tiles: Point
    slots: Point


@dataclass(frozen=True)
class Tiling:
    """The tiles and shards of an array; a size of None has no end."""

    shape: tuple[int | None, ...]
    chunks: Point
    shards: Point

    @cached_property
    def grain(self) -> int:
        """The dimension along which an epoch is cut."""
        return next((dim for dim, n in enumerate(self.chunks) if n > 1), len(self.chunks) - 1)

    @cached_property
    def inner(self) -> Point:
        """The sizes behind the grain."""
        return tuple(n or 0 for n in self.shape[self.grain + 1 :])

    @cached_property
    def inner_counts(self) -> Point:
        """How many tiles there are along every dimension behind the grain."""
        chunks = self.chunks[self.grain + 1 :]
        return tuple(-(-n // c) for n, c in zip(self.inner, chunks))

    @cached_property
    def tiles(self) -> int:
        """How many tiles an epoch has."""
        return prod(self.inner_counts)

    @cached_property
    def per_shard(self) -> Point:
        """How many chunks a shard has along every dimension."""
        return tuple(s // c for s, c in zip(self.shards, self.chunks))

    @property
    def slots(self) -> int:
        """How many chunks a shard has."""
        return prod(self.per_shard)

    @cached_property
    def _groups(self) -> list[tuple[Point, Point, Point]]:
        """For each shard of an epoch its coordinates behind the grain, its tiles, their places.

        Tiles are lifted to shard-major order: the address of a tile is that of its shard, and its
        place there.
        """
        within, counts = self.per_shard[self.grain + 1 :], self.inner_counts
        size, found = prod(within), dict[int, list[tuple[int, int]]]()
        addresses = Lifting.tiled(counts, within).addresses() if within else [0] * self.tiles
        for tile, address in enumerate(addresses):
            shard, place = divmod(address, size)
            found.setdefault(shard, []).append((place, tile))
        grid = list(product(*(range(-(-n // per)) for n, per in zip(counts, within))))
        return [
            (grid[shard], tuple(t for _, t in sorted(pairs)), tuple(p for p, _ in sorted(pairs)))
            for shard, pairs in sorted(found.items())
        ]

    def groups(self, at: Point) -> Iterator[Group]:
        """The tiles of an epoch by shard; `at` is its chunk along the dimensions to the grain.

        >>> tiling = Tiling((None, 3, 4), (2, 1, 1), (4, 2, 4))
        >>> [(group.shard, group.tiles, group.slots) for group in tiling.groups((1,))]
        [((0, 0, 0), (0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15)),
        ((0, 1, 0), (8, 9, 10, 11), (8, 9, 10, 11))]
        """
        outer = self.per_shard[: self.grain + 1]
        inner = prod(self.per_shard[self.grain + 1 :])
        before = 0
        for t, n in zip(at, outer):
            before = before * n + t % n
        head = tuple(t // n for t, n in zip(at, outer))
        for shard, tiles, places in self._groups:
            yield Group(head + shard, tiles, tuple(before * inner + place for place in places))

    def expected(self, shard: Point, size: Point) -> int:
        """How many chunks of a shard lie inside an array of some size."""
        found = 1
        for s, n, c, per in zip(shard, size, self.chunks, self.per_shard):
            found *= max(0, min(-(-n // c) - s * per, per))
        return found

    def box(self, shard: Point, slot: int) -> ZRange:
        """The box of the array that a chunk of a shard is, beyond the array's edge too."""
        start = []
        for s, c, per in zip(reversed(shard), reversed(self.chunks), reversed(self.per_shard)):
            slot, place = divmod(slot, per)
            start.append((s * per + place) * c)
        start.reverse()
        return ZRange(start, [a + c for a, c in zip(start, self.chunks)])
