"""What every choice costs beside every other: seconds, bytes and room, each found once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd, prod
from typing import NamedTuple, TypeAlias

from weft.errors import LayoutError
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.delivery import Delivery, deliver, masks
from weft.plan.fetch import landing
from weft.plan.machine import Machine
from weft.plan.memory import along, brought, settled, sizes_of
from weft.plan.placed import Placed
from weft.plan.resharding.choose import PLAIN
from weft.plan.resharding.media import seconds_of_messages
from weft.plan.resharding.pricing import single_link
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
        self._link = single_link(machine or PLAIN, [mesh], is_framed=True)
        self.none = (0,) * (mesh.size if kinds is None else 1)
        self.nothing = Move(0.0, 0, self.none, self.none, self.none)
        self._moves: dict[object, dict[ShardingSpec, dict[ShardingSpec, Move]]] = {}
        self._patterns: dict[object, tuple[Move, int]] = {}
        self._forms = _Forms(mesh, kinds or {})
        self._held: dict[object, Point] = {}
        self._fetched: dict[object, Move] = {}

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
        known = self._moves.setdefault((shape, itemsize), {}).setdefault(src, {})
        found = known.get(dst)
        if found is None:
            found = known[dst] = self._reshard(src, dst, shape, itemsize)
        return found

    def reshards(
        self, src: ShardingSpec, every: Iterable[ShardingSpec], shape: Point, itemsize: int
    ) -> list[Move]:
        """What reshards from one sharding to every one of others take."""
        known = self._moves.setdefault((shape, itemsize), {}).setdefault(src, {src: self.nothing})
        found = []
        for dst in every:
            move = known.get(dst)
            if move is None:
                move = known[dst] = self._reshard(src, dst, shape, itemsize)
            found.append(move)
        return found

    def _reshard(self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int) -> Move:
        if self.kinds is None:
            return self._found(src, dst, shape, itemsize)
        if not self.has_room:
            return self._isomorphic(src, dst, shape, itemsize)
        if dst.partial:
            return self._found(src, dst, shape, itemsize)
        has_routes = self._link is None or bool(src.partial)
        pattern = _pattern(src, dst, shape, self.kinds, self._least_room(src))
        if pattern is None:
            return self._found(src, dst, shape, itemsize)
        size = prod(shape) * itemsize
        key = (*pattern, size) if has_routes else pattern
        if key not in self._patterns:
            self._patterns[key] = self._found(src, dst, shape, itemsize), size
        return self._scaled(*self._patterns[key], size)

    def _isomorphic(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int
    ) -> Move:
        """The price of any one of the reshards that are alike but for names of axes and dimensions.

        Seconds and bytes are counted over all cells, and renaming axes of one size and one link
        permutes the cells. Where the order of axes or dimensions may decide which way is taken,
        each reshard has its own price: of uneven blocks, and of parts that no dimension takes
        evenly or that move over links that differ.
        """
        if self._link is None and src.partial:
            return self._found(src, dst, shape, itemsize)
        form = self._forms.of(src, dst, shape, prod(map(src.mesh.axis_size, src.partial)))
        if form is None:
            return self._found(src, dst, shape, itemsize)
        key = (form, prod(shape), itemsize)
        if key not in self._patterns:
            self._patterns[key] = self._found(src, dst, shape, itemsize), 0
        return self._patterns[key][0]

    def _least_room(self, src: ShardingSpec) -> int:
        """How far a dimension must go on to be cut evenly, for partial sums to be scattered."""
        if self._link is None:
            return src.mesh.size + 1  # any room may matter
        return prod(map(src.mesh.axis_size, src.partial))

    def _found(self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int) -> Move:
        try:
            plan = plan_reshard(src, dst, shape, itemsize, self.machine)
        except LayoutError:  # what is cut cannot become parts
            return self.nothing._replace(received=IMPOSSIBLE)
        seconds, received = _taken(plan)
        if not self.has_room:
            return self.nothing._replace(seconds=seconds, received=received)
        made = [step.made for step in plan.steps]
        most, beside = map(self._at, along(made, src.mesh.size))
        return Move(seconds, received, most, beside, self._at(settled(plan, made=made)))

    def _scaled(self, move: Move, of: int, size: int) -> Move:
        """The same move of an array of another size: one step, through one kind of link."""
        if of == size or self._link is None:
            return move
        seconds, received, *rooms = move
        if received:
            latency = self._link.latency
            seconds = latency + (seconds - latency) * size / of
        most, beside, kept = (tuple(room * size // of for room in each) for each in rooms)
        return Move(seconds, received * size // of, most, beside, kept)

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
        if not self.has_room and all(placed.operands[n] is not None for n in (number, *earlier)):
            return self._landed(placed, number, src, itemsize, earlier)
        if held is None and not earlier:
            key = (src, placed.partials[number], itemsize, *_spans(placed, number, src))
            if key not in self._fetched:
                delivery = deliver(placed, number, src, itemsize, self.machine)
                self._fetched[key] = self._delivered(placed, number, delivery)
            return self._fetched[key]
        delivery = deliver(placed, number, src, itemsize, self.machine)
        for other in earlier:
            if deliver(placed, other, src, itemsize, self.machine) == delivery:
                return self.nothing
        return self._delivered(placed, number, delivery)

    def _landed(
        self,
        placed: Placed,
        number: int,
        src: ShardingSpec,
        itemsize: int,
        earlier: Sequence[int],
    ) -> Move:
        """The price of a delivery without its room, where a sharding says what cells need."""
        held = landing(src, placed, number)
        for other in earlier:
            if landing(src, placed, other) == held and masks(placed, other, held) == masks(
                placed, number, held
            ):
                return self.nothing
        return self.reshard(src, held, placed.signature.operand_shapes[number], itemsize)

    def _delivered(self, placed: Placed, number: int, delivery: Delivery) -> Move:
        seconds, received = _taken(delivery.reshard) if delivery.reshard else (0.0, 0)
        if delivery.fetch is not None:
            fetch, width = delivery.fetch, delivery.itemsize
            machine = self.machine or PLAIN
            seconds += seconds_of_messages(fetch.elements, width, fetch.src.mesh, machine)
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


def _spans(placed: Placed, number: int, src: ShardingSpec) -> Iterator[object]:
    """What cells need along every dimension; of one that nobody has cut it is all the same where.

    An array of other sizes is another array.
    """
    needs = placed.needs[number]
    yield placed.signature.operand_shapes[number]
    for dim, blocks in enumerate(src.grid):
        if blocks > 1:
            yield tuple((need.start[dim], need.stop[dim]) for need in needs)
        else:
            yield tuple(need.stop[dim] - need.start[dim] for need in needs)


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
    src: ShardingSpec, dst: ShardingSpec, shape: Point, kinds: Mapping[Axis, int], least: int
) -> tuple[object, ...] | None:
    """What a reshard is but for the order and the sizes of dimensions; None if blocks are uneven.

    Where every block is full, a cell's bytes follow from the bytes of the array and from which axes
    leave and enter a dimension: the same for any shape. Where no dimension has the least room to
    be cut further evenly, the room of each decides which ways there are. Axes of one kind are
    named in the order in which they come.
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
        spare.add(room)
    if max(spare, default=0) >= least:
        dims, spare = [(held, wanted, 0) for held, wanted, _ in dims], set()
    ways: dict[Axis, list[int]] = {axis: [-1, -1, -2, -2] for axis in src.partial}
    for held, wanted, room in dims:
        for at, axis in enumerate(held):
            ways.setdefault(axis, [-3, -3, -2, -2])[:2] = room, at
        for at, axis in enumerate(wanted):
            ways.setdefault(axis, [-3, -3, -2, -2])[2:] = room, at
    dims.sort(key=lambda dim: (dim[2], [ways[a] for a in dim[0]], [ways[a] for a in dim[1]]))
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

    moved = tuple((name(held), name(wanted), room) for held, wanted, room in dims)
    return moved, frozenset(spare), name(src.partial), *src.partial.values()


Place: TypeAlias = tuple[int, int] | tuple[str, str] | None
"""Where an axis stands in a sharding: its dimension and place there, or the monoid of its parts."""


class _Forms:
    """The forms of reshards on one mesh.

    Two reshards in even blocks, of arrays with as many elements, have one form only if a renaming
    of axes of one kind, and of dimensions, turns one into the other.
    """

    def __init__(self, mesh: DeviceMesh, kinds: Mapping[Axis, int]) -> None:
        self.axes = [(axis, kind) for axis, kind in kinds.items() if mesh.axis_size(axis) > 1]
        self.cells = mesh.size
        self.places: dict[ShardingSpec, list[Place] | None] = {}

    def of(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, least: int
    ) -> tuple[object, ...] | None:
        """The form; None for parts of axes, uneven blocks, and parts that no dimension takes."""
        before, after = self._places(src), self._places(dst)
        if before is None or after is None:
            return None
        rooms = self._rooms(src, dst, shape)
        if rooms is None or (src.partial and max(rooms, default=0) < least):
            return None
        entries = [
            (kind, _code(one, rooms), _code(two, rooms), one, two)
            for (_, kind), one, two in zip(self.axes, before, after)
            if one is not None or two is not None
        ]
        entries.sort(key=lambda entry: entry[:3])
        names: dict[int, int] = {}
        form: list[object] = [entry[:3] for entry in entries]
        for entry in entries:
            for place in entry[3:]:
                if place is not None and isinstance(place[0], int):
                    form.append(names.setdefault(place[0], len(names)))
        return (*form, *sorted(set(rooms)))

    def _rooms(self, src: ShardingSpec, dst: ShardingSpec, shape: Point) -> list[int] | None:
        """How often each dimension can be cut further evenly; None for uneven blocks."""
        rooms = []
        for size, held, wanted, one, two in zip(
            shape, src.dim_specs, dst.dim_specs, src.grid, dst.grid
        ):
            blocks = one if held.axes == wanted.axes else one * two
            if size % blocks or not size:
                return None
            rooms.append(gcd(size // blocks, self.cells))
        return rooms

    def _places(self, spec: ShardingSpec) -> list[Place] | None:
        """For every axis where it stands; None where an axis is split."""
        if spec not in self.places:
            found: dict[Axis, Place] = {}
            for dim, by in enumerate(spec.dim_specs):
                found |= {axis: (dim, at) for at, axis in enumerate(by.axes)}
            found |= {axis: ("parts", monoid) for axis, monoid in spec.partial.items()}
            known = {axis for axis, _ in self.axes}
            is_split = any(axis not in known for axis in found)
            self.places[spec] = None if is_split else [found.get(axis) for axis, _ in self.axes]
        return self.places[spec]


def _code(place: Place, rooms: Sequence[int]) -> tuple[object, ...]:
    """Where an axis stands, whichever dimension it is; codes can be sorted."""
    if place is None:
        return ("", 0, 0)
    dim, at = place
    return (f"parts by {at}", 0, 0) if isinstance(dim, str) else ("cut", rooms[dim], at)
