"""What every choice costs beside every other: seconds, bytes and room, each found once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, prod
from typing import NamedTuple

from weft.errors import LayoutError
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.delivery import Delivery, deliver
from weft.plan.machine import Machine
from weft.plan.memory import brought, resharded, settled, sizes_of
from weft.plan.placed import Placed
from weft.plan.resharding.choose import PLAIN
from weft.plan.resharding.media import seconds_of_messages
from weft.plan.resharding.reshard import Reshard, plan_reshard
from weft.values import Point

IMPOSSIBLE = 1 << 60
"""The bytes of what cannot be done: more than any plan moves."""


class Move(NamedTuple):
    """What it takes to bring an array somewhere."""

    seconds: float
    received: int
    """The bytes that all cells receive."""
    most: Point
    """The most bytes that cells hold for it on the way, beyond what they held."""
    beside: Point
    """The bytes that cells hold for it in the end, beyond what they held."""
    settled: Point
    """The most bytes that cells hold until it lies there in arrays of its own."""


class Prices:
    """Prices on one machine, remembered; without one, of the ways that move the fewest bytes.

    Room is counted on every cell; with the kinds of axes, for large graphs, on one that is as full
    as the fullest, and reshards are priced by their pattern. Room on the way costs most of the
    time to find, and is left out where nobody asks for it.
    """

    def __init__(
        self,
        machine: Machine | None,
        mesh: DeviceMesh,
        kinds: Mapping[Axis, int] | None = None,
        has_room: bool = True,
    ) -> None:
        self.machine, self.kinds, self.has_room = machine, kinds, has_room
        self.none = (0,) * (mesh.size if kinds is None else 1)
        self.nothing = Move(0.0, 0, self.none, self.none, self.none)
        self._moves: dict[object, Move] = {}
        self._patterns: dict[object, Move] = {}
        self._held: dict[object, Point] = {}

    def held(self, spec: ShardingSpec, shape: Point, itemsize: int) -> Point:
        """The bytes of an array on the cells that are counted."""
        key = (spec, shape, itemsize)
        if key not in self._held:
            self._held[key] = self._at(sizes_of(spec, shape, itemsize))
        return self._held[key]

    def reshard(self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int) -> Move:
        """What a reshard takes."""
        if src == dst:
            return self.nothing
        key = (src, dst, shape, itemsize)
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = self._reshard(src, dst, shape, itemsize)
        return found

    def _reshard(self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int) -> Move:
        kinds = self.kinds
        pattern = _pattern(src, dst, shape, kinds) if kinds and not dst.partial else None
        if pattern is not None:
            pattern = (*pattern, prod(shape), itemsize)
            if pattern in self._patterns:
                return self._patterns[pattern]
        try:
            plan = plan_reshard(src, dst, shape, itemsize, self.machine)
        except LayoutError:  # what is cut cannot become parts
            return self.nothing._replace(received=IMPOSSIBLE)
        seconds, received = _taken(plan)
        found = self.nothing._replace(seconds=seconds, received=received)
        if self.has_room:
            rooms = (*resharded(plan), settled(plan))
            found = Move(seconds, received, *map(self._at, rooms))
        if pattern is not None:
            self._patterns[pattern] = found
        return found

    def bring(
        self,
        placed: Placed,
        number: int,
        src: ShardingSpec,
        itemsize: int,
        earlier: Sequence[int] = (),
    ) -> Move:
        """What it takes to bring an operand; nothing if it came for an earlier operand already."""
        held = placed.operands[number]
        if held is not None and not placed.partials[number]:
            for other in earlier:
                if not placed.partials[other] and placed.operands[other] == held:
                    return self.nothing
            return self.reshard(src, held, placed.signature.operand_shapes[number], itemsize)
        delivery = deliver(placed, number, src, itemsize, self.machine)
        for other in earlier:
            if deliver(placed, other, src, itemsize, self.machine) == delivery:
                return self.nothing
        return self._delivered(placed, number, delivery)

    def _delivered(self, placed: Placed, number: int, delivery: Delivery) -> Move:
        seconds, received = _taken(delivery.reshard) if delivery.reshard else (0.0, 0)
        if delivery.fetch is not None:
            fetch, width = delivery.fetch, delivery.itemsize
            machine = self.machine or PLAIN
            seconds += seconds_of_messages(fetch.messages, width, fetch.src.mesh, machine)
            received += sum(fetch.received) * width
        if not self.has_room:
            return self.nothing._replace(seconds=seconds, received=received)
        most, beside = map(self._at, brought(delivery, placed, number))
        return Move(seconds, received, most, beside, self.none)

    def settled(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int
    ) -> tuple[Point, Point]:
        """The room on a way, if the source is gone then, and if it stays."""
        if self.reshard(src, dst, shape, itemsize).received == IMPOSSIBLE:
            return self.none, self.none
        way = plan_reshard(src, dst, shape, itemsize, self.machine)
        return self._at(settled(way)), self._at(settled(way, gone=False))

    def _at(self, counts: Sequence[int]) -> Point:
        return tuple(counts) if self.kinds is None else (max(counts, default=0),)


def _taken(plan: Reshard) -> tuple[float, int]:
    """The seconds and the bytes of the steps that move anything."""
    seconds, received = 0.0, 0
    for step in plan.steps:
        count = sum(step.received)
        if count:
            seconds += step.seconds
            received += count
    return seconds, received


def _pattern(
    src: ShardingSpec, dst: ShardingSpec, shape: Point, kinds: Mapping[Axis, int]
) -> tuple[object, ...] | None:
    """What a reshard is but for the order and the sizes of dimensions; None if blocks are uneven.

    Where every block is full, a cell's bytes follow from the bytes of the array and from which axes
    leave and enter a dimension: the same for any shape. How much further a dimension could be cut
    evenly decides which ways there are. Axes of one kind are named in the order in which they come.
    """
    dims, spare = [], set[int]()
    for size, before, after, one, two in zip(
        shape, src.dim_specs, dst.dim_specs, src.grid, dst.grid
    ):
        blocks = one if before.axes == after.axes else one * two
        if size % blocks or not size:
            return None
        room = gcd(size // blocks, src.mesh.size)
        if before.axes or after.axes:
            dims.append((before.axes, after.axes, room))
        else:
            spare.add(room)
    dims.sort(key=lambda dim: _order(dim, kinds))
    names: dict[Axis, tuple[int, int]] = {}

    def name(axes: Iterable[Axis]) -> tuple[object, ...]:
        found: list[object] = []
        for axis in axes:
            if axis not in kinds:
                found.append(axis)
                continue
            if axis not in names:
                names[axis] = kinds[axis], len(names)
            found.append(names[axis])
        return tuple(found)

    moved = tuple((name(before), name(after), room) for before, after, room in dims)
    return moved, frozenset(spare), name(src.partial), *src.partial.values()


def _order(
    dim: tuple[Sequence[Axis], Sequence[Axis], int], kinds: Mapping[Axis, int]
) -> tuple[object, ...]:
    before, after, room = dim
    return room, [kinds.get(a, -1) for a in before], [kinds.get(a, -1) for a in after]
