"""Who sends which box to whom: the blocks of one sharding, taken where another wants them.

A cell wants its box of the destination. Each block of the source that meets it gives one piece, a
box; the piece of its own block the cell keeps. Where several cells hold a block, the nearest sends,
as long as no holder has more than its share to send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import NamedTuple

from weft.layout import ShardingSpec
from weft.plan.machine import Machine
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.resharding.frame import row_major
from weft.plan.resharding.parts import Parts
from weft.space import ZRange, matching, weigh
from weft.space.zrange import unchecked
from weft.values import Point


class Transfer(NamedTuple):
    """A box that goes from one device to another; where both are the same, it stays.

    `part` says which part of an unreduced array it is: for each run of axes that a step reduces,
    major to minor, the number of the part. Without reduction it is empty.

    >>> print(Transfer(0, 3, ZRange((0, 4), (2, 8))))
    0 -> 3 [0:2, 4:8]
    """

    sender: int
    receiver: int
    box: ZRange
    part: Point = ()

    def __str__(self) -> str:
        part = f" part {self.part}" if self.part else ""
        return f"{self.sender} -> {self.receiver} {self.box}{part}"


class Wish(NamedTuple):
    """A cell that wants a box of one block."""

    box: ZRange
    receiver: int
    """The device."""
    rank: int
    """The rank of the device in the source's mesh, or -1."""
    base: int
    """What the parts that it wants add to the rank of a holder."""


def moves(
    before: ShardingSpec,
    after: ShardingSpec,
    shape: Point,
    parts: Parts,
    machine: Machine,
    even_out: bool,
    one_to_one: bool,
) -> Iterator[Transfer]:
    """All pieces of a step, those that stay included: block by block, receiver by receiver.

    The parts of one box for one receiver come one after another, in order. `even_out` lets others
    than the nearest holder send; `one_to_one` lets a cell send to one receiver only, if it can.
    """
    mesh = before.mesh
    if prod(before.grid) == mesh.size:
        yield from _from_sole_holders(before, after, shape)
        return
    senders = _Senders(before, parts, machine, even_out, one_to_one)
    devices = mesh.device_ids or range(mesh.size)
    ranks = ranks_by_device(mesh)
    worths = row_major(mesh.shape)
    kept = [(worths[here.dim] * here.divisor, there) for here, there, _ in parts.kept]
    numbers = list(product(*(range(run.size) for run in parts.reduced)))
    offsets = [_part_offset(parts, number, worths) for number in numbers]
    for block in _blocks_with_points(before, shape):
        held = before.box(shape, block)
        first = senders.rank_of(block)
        wishes = []
        for wanted in _blocks_meeting(after, shape, held):
            box = held & after.box(shape, wanted)
            for cell in after.holders(wanted):
                device = after.mesh.device(cell)
                own = sum(worth * d.of(cell) for worth, d in kept)
                wishes.append(Wish(box, device, ranks.get(device, -1), first + own))
        chosen = [senders.choose(wishes, offset) for offset in offsets]
        for number, wish in enumerate(wishes):
            for part, found in zip(numbers, chosen):
                yield Transfer(devices[found[number]], wish.receiver, wish.box, part)


def _from_sole_holders(
    before: ShardingSpec, after: ShardingSpec, shape: Point
) -> Iterator[Transfer]:
    """The pieces where every block has one holder, so that there is nothing to choose."""
    devices = before.mesh.device_ids or range(before.mesh.size)
    cuts = [_Cut(*each) for each in zip(shape, before.shard_shape(shape), _worths(before))]
    regions = after.regions(shape)
    for receiver, box in zip(after.mesh.device_ids or range(after.mesh.size), regions):
        if box.is_empty:
            continue
        spans = [cut.pieces(*ends) for cut, *ends in zip(cuts, box.start, box.stop)]
        for piece in product(*spans):
            start, stop, worth = zip(*piece) if piece else ((), (), ())
            yield Transfer(devices[sum(worth)], receiver, unchecked(start, stop))


def _worths(spec: ShardingSpec) -> list[list[int]]:
    """For each dimension and each of its blocks what that adds to the rank of the holder."""
    worths = row_major(spec.mesh.shape)
    return [
        [
            sum(block // d.stride % d.radix * d.divisor * worths[d.dim] for d in digits)
            for block in range(count)
        ]
        for digits, count in zip(spec.digits, spec.grid)
    ]


class _Cut:
    """A dimension that is cut into blocks."""

    def __init__(self, size: int, extent: int, worths: list[int]) -> None:
        self.size, self.extent, self.worths = size, extent, worths
        self.found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def pieces(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Where an interval begins and ends in every block that it meets, and the block's worth."""
        if (low, high) not in self.found:
            e = self.extent
            self.found[low, high] = [
                (max(low, k * e), min(high, k * e + e), self.worths[k])
                for k in range(low // e, (high - 1) // e + 1)
            ]
        return self.found[low, high]


class _Senders:
    """Which holder of a block serves which cell."""

    def __init__(
        self,
        before: ShardingSpec,
        parts: Parts,
        machine: Machine,
        even_out: bool,
        one_to_one: bool,
    ) -> None:
        self.mesh = mesh = before.mesh
        self.worths = row_major(mesh.shape)
        self.cuts = before.digits
        self.even_out, self.one_to_one = even_out, one_to_one
        given = [digit for cut in before.digits for digit in cut]
        given += [digit for run in parts.reduced for digit in run.digits]
        given += [digit for digit, _, _ in parts.kept]
        self.replicas = [mesh.rank(at) for at in matching(mesh.shape, [(d, 0) for d in given])]
        fixed = [d._replace(stride=self.worths[d.dim] * d.divisor) for d in given]
        self.fixed = weigh(mesh.shape, fixed)
        self.coords = list(mesh.cells())
        links = [machine.link(axis) for axis in mesh.axis_names]
        self.slow = [(1 / link.bandwidth, link.latency) for link in links]

    def rank_of(self, block: Point) -> int:
        """What the digits of a block add to the rank of its holders."""
        return sum(
            number // d.stride % d.radix * d.divisor * self.worths[d.dim]
            for cut, number in zip(self.cuts, block)
            for d in cut
        )

    def choose(self, wishes: Sequence[Wish], offset: int) -> list[int]:
        """For each wish the rank of the cell that sends; its own if it holds the part."""
        share = self._shares(wishes, offset)
        loads = dict[int, int]()
        chosen = []
        for wish in wishes:
            base, size = wish.base + offset, wish.box.size
            near = base + wish.rank - self.fixed[wish.rank] if wish.rank >= 0 else -1
            if near != wish.rank or near < 0:
                if near < 0 or loads.get(near, 0) + size > share[base]:
                    near = self._least_loaded(base, near, wish.rank, loads)
                loads[near] = loads.get(near, 0) + size
            chosen.append(near)
        return chosen

    def _shares(self, wishes: Sequence[Wish], offset: int) -> dict[int, float]:
        """How much a holder may send before another is asked."""
        asked, most = dict[int, int](), dict[int, int]()
        for wish in wishes:
            base, size = wish.base + offset, wish.box.size
            if wish.rank < 0 or self.fixed[wish.rank] != base:
                asked[base] = asked.get(base, 0) + size
                most[base] = max(most.get(base, 0), size)
        if not self.even_out:
            return dict.fromkeys(asked, inf)
        return {base: max(total / len(self.replicas), most[base]) for base, total in asked.items()}

    def _least_loaded(self, base: int, near: int, rank: int, loads: dict[int, int]) -> int:
        holders = [base + replica for replica in self.replicas]
        if rank < 0:
            return min(holders, key=lambda holder: loads.get(holder, 0))
        if not self.one_to_one:
            pace = self._way(near, rank)[0]
            holders = [holder for holder in holders if self._way(holder, rank)[0] <= pace]
        return min(holders, key=lambda holder: (loads.get(holder, 0), self._way(holder, rank)))

    def _way(self, one: int, two: int) -> tuple[tuple[float, float], int]:
        """The slowest axis between two cells, and how many they are apart."""
        apart = [
            slow for a, b, slow in zip(self.coords[one], self.coords[two], self.slow) if a != b
        ]
        return max(apart, default=(0.0, 0.0)), len(apart)


def _part_offset(parts: Parts, number: Point, worths: Point) -> int:
    """What the number of a part adds to the rank of its holders."""
    offset = 0
    for run, value in zip(parts.reduced, number):
        rest = value
        for digit in reversed(run.digits):
            rest, at = divmod(rest, digit.radix)
            offset += at * digit.divisor * worths[digit.dim]
    return offset


def _blocks_with_points(spec: ShardingSpec, shape: Point) -> Iterable[Point]:
    extents = spec.shard_shape(shape)
    if 0 in shape:
        return ()
    return product(*(range(-(-n // extent)) for n, extent in zip(shape, extents)))


def _blocks_meeting(spec: ShardingSpec, shape: Point, box: ZRange) -> Iterable[Point]:
    extents = spec.shard_shape(shape)
    return product(
        *(
            range(low // extent, (high - 1) // extent + 1)
            for low, high, extent in zip(box.start, box.stop, extents)
        )
    )
