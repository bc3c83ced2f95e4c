"""Who sends which box to whom in a transfer, and what each device then puts together.

A cell wants its box of the result. Each block of the source that meets it gives one piece for each
part that is combined; the piece of its own block the cell keeps. Where several cells have a block,
the one that shares all other digits with the receiver sends, or, where the load is balanced, the
nearest that has not had its share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, product
from math import inf, prod
from typing import NamedTuple

from weft.program.instructions import Combine, Transfer
from weft.program.layout_rule import Cells, Layout
from weft.space import Digit, ZRange, matching, weigh
from weft.space.zrange import unchecked
from weft.values import Point

Slices = tuple[slice, ...]


class Message(NamedTuple):
    """A box that goes from one device to another; where both are the same, it stays.

    `part` says which part of a partial array it is: for each run of digits that a transfer
    combines, major to minor, the number of the part. Without a combination it is empty.

    >>> print(Message(0, 3, ZRange((0, 4), (2, 8))))
    0 -> 3 [0:2, 4:8]
    """

    sender: int
    receiver: int
    box: ZRange
    part: Point = ()

    def __str__(self) -> str:
        part = f" part {self.part}" if self.part else ""
        return f"{self.sender} -> {self.receiver} {self.box}{part}"


@dataclass(frozen=True)
class Route:
    """All that decides who sends what in a transfer."""

    before: Layout
    after: Layout
    combine: tuple[Combine, ...] = ()
    kept: tuple[tuple[Digit, Digit], ...] | None = None
    """The digits of parts that stay, on the cells before and after; None where both are the
    same cells."""
    balance: tuple[tuple[float, float], ...] | None = None
    one_to_one: bool = False

    @classmethod
    def of(cls, transfer: Transfer, before: Layout, after: Layout) -> Route:
        """Return the route of a transfer between two layouts."""
        combine, balance = transfer.combine, transfer.balance
        return cls(before, after, combine, transfer.kept, balance, transfer.one_to_one)

    @property
    def stays(self) -> tuple[tuple[Digit, Digit], ...]:
        """The digits of parts that stay, before and after."""
        if self.kept is not None:
            return self.kept
        return tuple((digit, digit) for digit, _ in self.after.parts)


class _Wish(NamedTuple):
    """A cell that wants a box of one block of the source."""

    receiver: int
    """The device."""
    rank: int
    """Its rank among the cells of the source, or -1."""
    box: ZRange
    base: int
    """The rank of a holder, as far as the block and the part that it wants determine it."""


def messages(route: Route) -> list[Message]:
    """Return all pieces of a transfer, those that stay included: receiver by receiver.

    The parts of one box for one receiver come one after another, in order.
    """
    before, after = route.before, route.after
    weights = _row_major(before.cells.shape)
    kept = [(weights[here.dim] * here.divisor, there) for here, there in route.stays]
    numbers = list(product(*(range(prod([d.radix for d in run.digits])) for run in route.combine)))
    offsets = [_part_offset(route.combine, number, weights) for number in numbers]
    ranks = _ranks(before.cells)
    order: list[_Wish] = []
    sides = [_Side(before, dim, weights) for dim in range(len(before.shape))]
    for coordinate, box in zip(after.cells.coordinates(), after.boxes()):
        if box.is_empty:
            continue
        device = after.cells.device(after.cells.rank(coordinate))
        own = sum([weight * digit.of(coordinate) for weight, digit in kept])
        rank = ranks.get(device, -1)
        for piece in product(
            *(side.pieces(*ends) for side, *ends in zip(sides, box.start, box.stop))
        ):
            start, stop, adds = zip(*piece) if piece else ((), (), ())
            base = sum(adds) + own
            wish = _Wish(device, rank, unchecked(start, stop), base)
            order.append(wish)
    senders, devices = _Senders(route, weights), before.cells.devices or range(before.cells.size)
    if route.balance is None and not any(wish.rank < 0 for wish in order):
        fixed = senders.fixed
        return [
            Message(
                devices[wish.base + offset + wish.rank - fixed[wish.rank]],
                wish.receiver,
                wish.box,
                part,
            )
            for wish in order
            for part, offset in zip(numbers, offsets)
        ]
    wishes: dict[int, list[_Wish]] = {}
    for wish in order:
        wishes.setdefault(wish.base, []).append(wish)
    chosen = {
        (base, offset): iter(senders.choose(some, offset))
        for base, some in wishes.items()
        for offset in offsets
    }
    return [
        Message(devices[next(chosen[wish.base, offset])], wish.receiver, wish.box, part)
        for wish in order
        for part, offset in zip(numbers, offsets)
    ]


class _Piece(NamedTuple):
    """An interval inside a block, and the part of a holder's rank that the block determines."""

    low: int
    high: int
    adds: int


class _Side:
    """One dimension of the source, cut into blocks."""

    def __init__(self, layout: Layout, dim: int, weights: Point) -> None:
        self.grid, self.dim = layout.grid, dim
        self.digits = [(digit, weights[digit.dim] * digit.divisor) for digit in layout.cuts[dim]]
        self.known: dict[tuple[int, int], list[_Piece]] = {}

    def pieces(self, low: int, high: int) -> list[_Piece]:
        """Return the pieces of an interval, block by block."""
        if (low, high) not in self.known:
            found = []
            for block in self.grid.overlaps(self.dim, low, high):
                first, end = self.grid.span(self.dim, block)
                if first == end:
                    continue
                adds = sum([block // d.stride % d.radix * weight for d, weight in self.digits])
                found.append(_Piece(max(low, first), min(high, end), adds))
            self.known[low, high] = found
        return self.known[low, high]


class _Senders:
    """The choice of the holder of a block that serves each cell."""

    def __init__(self, route: Route, weights: Point) -> None:
        cells = route.before.cells
        self.balance, self.one_to_one = route.balance, route.one_to_one
        given = [digit for cut in route.before.cuts for digit in cut]
        given += [digit for run in route.combine for digit in run.digits]
        given += [here for here, _ in route.stays]
        free = matching(cells.shape, [(digit, 0) for digit in given])
        self.replicas = [cells.rank(at) for at in free]
        fixed = [d._replace(stride=weights[d.dim] * d.divisor) for d in given]
        self.fixed = weigh(cells.shape, fixed)
        self.cells = cells

    def choose(self, wishes: Sequence[_Wish], offset: int) -> list[int]:
        """Return for each wish for one block the rank that sends; its own if it has the part."""
        share = self._share(wishes, offset)
        loads: dict[int, int] = {}
        chosen = []
        for wish in wishes:
            base, size = wish.base + offset, wish.box.size
            near = base + wish.rank - self.fixed[wish.rank] if wish.rank >= 0 else -1
            if near != wish.rank or near < 0:
                if near < 0 or loads.get(near, 0) + size > share:
                    near = self._least_loaded(base, near, wish.rank, loads)
                loads[near] = loads.get(near, 0) + size
            chosen.append(near)
        return chosen

    def _share(self, wishes: Sequence[_Wish], offset: int) -> float:
        """Return how much a holder sends before another is asked."""
        if self.balance is None:
            return inf
        asked = [
            wish.box.size
            for wish in wishes
            if wish.rank < 0 or self.fixed[wish.rank] != wish.base + offset
        ]
        return max(sum(asked) / len(self.replicas), max(asked, default=0))

    def _least_loaded(self, base: int, near: int, rank: int, loads: Mapping[int, int]) -> int:
        holders = [base + replica for replica in self.replicas]
        if rank < 0:
            return min(holders, key=lambda holder: loads.get(holder, 0))
        if not self.one_to_one:
            pace = self._distance(near, rank)[0]
            holders = [holder for holder in holders if self._distance(holder, rank)[0] <= pace]
        return min(holders, key=lambda holder: (loads.get(holder, 0), self._distance(holder, rank)))

    def _distance(self, one: int, two: int) -> tuple[tuple[float, float], int]:
        """Return the slowest axis between two cells, and how many axes they differ in."""
        paces = self.balance or ((0.0, 0.0),) * len(self.cells.shape)
        here, there = self.cells.coordinate(one), self.cells.coordinate(two)
        apart = [pace for a, b, pace in zip(here, there, paces) if a != b]
        return max(apart, default=(0.0, 0.0)), len(apart)


def _part_offset(combine: Sequence[Combine], number: Point, weights: Point) -> int:
    """Return what the number of a part adds to the rank of its holders."""
    offset = 0
    for run, value in zip(combine, number):
        rest = value
        for digit in reversed(run.digits):
            rest, at = divmod(rest, digit.radix)
            offset += at * digit.divisor * weights[digit.dim]
    return offset


def _row_major(shape: Point) -> Point:
    """Return what a step along each axis adds to the rank of a cell."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@lru_cache(maxsize=64)
def _ranks(cells: Cells) -> dict[int, int]:
    return {cells.device(rank): rank for rank in range(cells.size)}


# What devices put together.


class Piece(NamedTuple):
    """A part of what a device puts together: where it goes, and who has it where."""

    into: Slices
    parts: tuple[tuple[Point, int, Slices], ...]
    """The number of each part that is combined, the device that has it, and where in its array."""


class Assembly(NamedTuple):
    """All that one device has after a transfer."""

    device: int
    shape: Point
    pieces: tuple[Piece, ...]


@lru_cache(maxsize=4096)
def assemblies(route: Route) -> tuple[Assembly, ...]:
    """Return what every device has after a transfer, piece by piece, in rank order."""
    before, after = route.before, route.after
    devices = [before.cells.device(rank) for rank in range(before.cells.size)]
    held = dict(zip(devices, before.boxes()))
    wanted = {after.cells.device(rank): box for rank, box in enumerate(after.boxes())}
    pieces: dict[int, list[Piece]] = {device: [] for device in wanted}
    for (device, box), parts in groupby(messages(route), key=lambda m: (m.receiver, m.box)):
        found = tuple((m.part, m.sender, box.slices(held[m.sender].start)) for m in parts)
        pieces[device].append(Piece(box.slices(wanted[device].start), found))
    return tuple(Assembly(device, wanted[device].shape, tuple(p)) for device, p in pieces.items())
