"""The costs of options and of moves between them, each computed once.

A reshard is priced from its plan. Where memory is not counted, or the graph is large, one reshard
is priced for all that differ only by the names of interchangeable axes and of dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import NamedTuple, TypeAlias

from weft.errors import LayoutError
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.chunking import Chunking, choose
from weft.plan.delivery import Delivery, deliver, landing, masked_sizes
from weft.plan.machine import Machine
from weft.plan.placed import Placed, layout_of
from weft.plan.plan import Plan
from weft.plan.resharding.choose import PLAIN
from weft.plan.resharding.counts import sizes_of
from weft.plan.resharding.pricing import seconds_of_messages, single_link
from weft.plan.resharding.reshard import Made, along, plan_reshard
from weft.plan.resharding.step import Step
from weft.plan.searching.choices import shardings
from weft.plan.stored import blocks, check_storage, lies, readers, traffic_seconds
from weft.program.layout_rule import lies_inside
from weft.program.storage import Storage, Traffic, read_traffic, write_traffic
from weft.values import FrozenMap, Point

IMPOSSIBLE = 1 << 60
"""The bytes of a reshard that cannot be done: more than any plan moves."""

StorageOptions = Mapping[str, Storage | Chunking]
"""How inputs and outputs are stored, or the constraints for outputs whose chunks are chosen."""


class OptionCost(NamedTuple):
    """The cost of one option by itself."""

    compute: float = 0.0
    communicate: float = 0.0
    received: int = 0


class MoveCost(NamedTuple):
    """The cost of a reshard or of the delivery of an operand."""

    seconds: float
    received: int
    """The bytes that all cells receive."""
    peak: Point
    """The most bytes that cells hold for it meanwhile, beyond what they held."""
    added: Point
    """The bytes that cells hold for it in the end, beyond what they held."""
    reshard_peak: Point
    """The most bytes that cells hold until it is in arrays of its own."""


class MovePrices:
    """The costs of moves on one machine; without one, of the moves with the fewest bytes.

    Memory is counted on every cell, or else on the fullest only. It takes most of the time to
    compute, and is left out without `with_memory`. `kinds` gives for every axis the number of its
    kind: reshards that differ by the names of axes of one kind are priced together.
    """

    def __init__(
        self,
        machine: Machine | None,
        mesh: DeviceMesh,
        kinds: Mapping[Axis, int] | None = None,
        with_memory: bool = True,
        by_cell: bool = True,
    ) -> None:
        self.machine, self.mesh = machine, mesh
        self.with_memory, self.by_cell = with_memory, by_cell
        self._link = single_link(machine or PLAIN, [mesh], is_common=True)
        self.none = (0,) * (mesh.size if by_cell else 1)
        self.free = MoveCost(0.0, 0, self.none, self.none, self.none)
        self._moves: dict[object, dict[ShardingSpec, dict[ShardingSpec, MoveCost]]] = {}
        self._forms = _ReshardForms(mesh, kinds) if kinds is not None else None
        self._by_form: dict[object, tuple[MoveCost, int, tuple[int, ...]]] = {}
        self._sizes: dict[object, Point] = {}
        self._fetches: dict[object, MoveCost] = {}

    def size(self, spec: ShardingSpec, shape: Point, itemsize: int) -> Point:
        """Return the bytes of an array on the cells that are counted."""
        key = (spec, shape, itemsize)
        if key not in self._sizes:
            self._sizes[key] = self._counted(sizes_of(spec, shape, itemsize))
        return self._sizes[key]

    def reshard(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int
    ) -> MoveCost:
        """Return the cost of a reshard."""
        return self.reshards(src, (dst,), shape, itemsize)[0]

    def reshards(
        self, src: ShardingSpec, targets: Iterable[ShardingSpec], shape: Point, itemsize: int
    ) -> list[MoveCost]:
        """Return the costs of the reshards from one sharding to each of others."""
        known = self._moves.setdefault((shape, itemsize), {}).setdefault(src, {src: self.free})
        costs = []
        for dst in targets:
            cost = known.get(dst)
            if cost is None:
                cost = known[dst] = self._reshard(src, dst, shape, itemsize)
            costs.append(cost)
        return costs

    def _reshard(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int
    ) -> MoveCost:
        """Return the cost of a reshard, or of one that has the same form.

        Renaming axes of one size and one link permutes the cells, which changes no sum and no
        maximum over them: the memory of the cells is permuted with them. Where every block is full
        and all links are alike, the cost of a reshard without partial sums is also proportional to
        the size of the array. Where the order of axes or dimensions may decide which route is
        taken, each reshard is planned: those of uneven blocks, and of partial sums that no
        dimension divides or that move over different links. Of other partial sums the dimensions
        keep their names.
        """
        form = None
        if self._forms is not None and not (self.with_memory and dst.partial):
            is_scalable = self.with_memory and not self.by_cell and self._link is not None
            if self._link is not None or not src.partial:
                form = self._forms.of(src, dst, shape, is_scalable)
        if self._forms is None or form is None:
            return self._plan(src, dst, shape, itemsize)
        size = prod(shape) * itemsize
        key = form.key if is_scalable and not src.partial else (form.key, size, itemsize)
        if key not in self._by_form:
            self._by_form[key] = self._plan(src, dst, shape, itemsize), size, form.axes
        cost, of, axes = self._by_form[key]
        if self.by_cell and axes != form.axes:
            cost = self._forms.renamed(cost, axes, form.axes)
        return self._scaled(cost, of, size)

    def _scaled(self, cost: MoveCost, of: int, size: int) -> MoveCost:
        """Return the cost of the same move of an array of another size, through one link."""
        if of == size or self._link is None:
            return cost
        seconds, received, *memory = cost
        if received:
            latency = self._link.latency
            seconds = latency + (seconds - latency) * size / of
        peaks = (tuple(n * size // of for n in each) for each in memory)
        return MoveCost(seconds, received * size // of, *peaks)

    def _plan(self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int) -> MoveCost:
        try:
            plan = plan_reshard(src, dst, shape, itemsize, self.machine)
        except LayoutError:  # blocks cannot become partial sums
            return self.free._replace(received=IMPOSSIBLE)
        seconds, received = _seconds_and_bytes(plan.steps)
        if not self.with_memory:
            return self.free._replace(seconds=seconds, received=received)
        made = [step.made for step in plan.steps]
        own = self._counted(plan.peak_beside(made=made))
        return MoveCost(seconds, received, *self._memory(made, src.mesh.size), own)

    def _memory(self, made: Iterable[Made], count: int) -> tuple[Point, Point]:
        """Return what cells hold of what steps make: at most, and in the end."""
        most, beside = along(made, count)
        return self._counted(most), self._counted([size or 0 for size in beside])

    def deliver(
        self,
        placed: Placed,
        number: int,
        src: ShardingSpec,
        itemsize: int,
        earlier: Sequence[int] = (),
    ) -> MoveCost:
        """Return the cost to deliver an operand; nothing if an earlier operand is the same."""
        held = placed.operands[number]
        shape = placed.signature.operand_shapes[number]
        if _is_delivered(placed, number, earlier):
            return self.free
        if held is not None and not placed.partials[number]:
            return self.reshard(src, held, shape, itemsize)
        if held is not None and not self.with_memory:
            return self.reshard(src, landing(src, placed, number), shape, itemsize)
        if held is not None:
            return self._delivery(deliver(placed, number, src, itemsize, self.machine))
        key = (src, placed.partials[number], itemsize, *_needs(placed, number, src))
        if key not in self._fetches:
            delivery = deliver(placed, number, src, itemsize, self.machine)
            self._fetches[key] = self._delivery(delivery)
        return self._fetches[key]

    def read(
        self,
        placed: Placed,
        number: int,
        src: ShardingSpec,
        itemsize: int,
        earlier: Sequence[int] = (),
        is_held: bool = False,
    ) -> MoveCost:
        """Return the memory of an operand that is read from storage and does not move.

        It takes none where an earlier operand is the same. Where the input `is_held` anyway, in the
        sharding `src`, what lies in that is not read again.
        """
        if not self.with_memory or _is_delivered(placed, number, earlier):
            return self.free
        need, masked = placed.operand_layout(number), placed.operand_parts(number)
        sizes = [box.size * itemsize for box in placed.needs[number]]
        is_view = is_held and lies_inside(need, layout_of(src, need.shape))
        made: list[Made] = [] if is_view else [sizes]
        if masked:
            made.append(masked_sizes(masked, need, sizes))
        return MoveCost(0.0, 0, *self._memory(made, placed.mesh.size), self.none)

    def _delivery(self, delivery: Delivery) -> MoveCost:
        seconds, received = _seconds_and_bytes(delivery.steps)
        if delivery.fetches:
            machine = self.machine or PLAIN
            seconds += seconds_of_messages(delivery.fetched, delivery.itemsize, self.mesh, machine)
            received += sum(delivery.fetched_by_cell)
        if not self.with_memory:
            return self.free._replace(seconds=seconds, received=received)
        memory = self._memory(delivery.made, self.mesh.size)
        return MoveCost(seconds, received, *memory, self.none)

    def return_peaks(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int
    ) -> tuple[Point, Point]:
        """Return the peak memory of a reshard whose source is freed, and of one that keeps it."""
        if self.reshard(src, dst, shape, itemsize).received == IMPOSSIBLE:
            return self.none, self.none
        plan = plan_reshard(src, dst, shape, itemsize, self.machine)
        one, two = plan.peak_beside(), plan.peak_beside(frees_source=False)
        return self._counted(one), self._counted(two)

    def _counted(self, counts: Sequence[int]) -> Point:
        return tuple(counts) if self.by_cell else (max(counts, default=0),)


def _needs(placed: Placed, number: int, src: ShardingSpec) -> Iterator[object]:
    """Yield the shape of an operand, and what cells need of it along each dimension.

    Of a dimension that the source does not cut, only the length of what they need matters.
    """
    yield placed.signature.operand_shapes[number]
    for dim, count in enumerate(src.grid):
        spans = ((need.start[dim], need.stop[dim]) for need in placed.needs[number])
        yield tuple(spans) if count > 1 else tuple(stop - start for start, stop in spans)


def _is_delivered(placed: Placed, number: int, earlier: Iterable[int]) -> bool:
    """Whether an earlier operand brings the same array to the same boxes, in the same parts."""
    return any(
        placed.partials[n] == placed.partials[number]
        and placed.operand_layout(n) == placed.operand_layout(number)
        for n in earlier
    )


def _seconds_and_bytes(steps: Iterable[Step]) -> tuple[float, int]:
    """Return the seconds and the bytes of the steps that move anything."""
    seconds, received = 0.0, 0
    for step in steps:
        count = sum(step.received)
        if count:
            seconds += step.seconds
            received += count
    return seconds, received


AxisUse: TypeAlias = tuple[int, int] | tuple[str, str] | None
"""The use of an axis by a sharding: its dimension and position, or the monoid of its parts."""


class _ReshardForm(NamedTuple):
    """What reshards have in common that differ by names, and the axes in a common order."""

    key: tuple[object, ...]
    axes: tuple[int, ...]


class _ReshardForms:
    """The canonical forms of reshards on one mesh.

    Two reshards in even blocks, of arrays with as many elements, have one form only if a renaming
    of axes of one kind, and of dimensions, turns one into the other.
    """

    def __init__(self, mesh: DeviceMesh, kinds: Mapping[Axis, int]) -> None:
        self.axes = [(axis, kind) for axis, kind in kinds.items() if mesh.axis_size(axis) > 1]
        self.cells = mesh.size
        self.mesh = mesh
        self._cache: dict[ShardingSpec, list[AxisUse] | None] = {}
        self._cells: dict[object, Point] = {}

    def of(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point, for_any_size: bool = False
    ) -> _ReshardForm | None:
        """Return the form; None for sub-axes, uneven blocks and parts that no dimension divides.

        The form `for_any_size` does not tell arrays of different sizes apart.
        """
        before, after = self._uses(src), self._uses(dst)
        if before is None or after is None:
            return None
        factors = self._spare_factors(src, dst, shape)
        parts = prod(map(src.mesh.axis_size, src.partial))
        if factors is None or (src.partial and max(factors, default=0) < parts):
            return None
        if for_any_size:
            factors = [0] * len(factors)
        entries = [
            (kind, _code(one, factors), _code(two, factors), one, two, number)
            for number, ((_, kind), one, two) in enumerate(zip(self.axes, before, after))
        ]
        entries.sort(key=lambda entry: entry[:3])
        names: dict[int, int] = {}
        form: list[object] = [entry[:3] for entry in entries]
        for entry in entries:
            for use in entry[3:5]:
                if use is not None and isinstance(use[0], int):
                    first = use[0] if src.partial and not for_any_size else len(names)
                    form.append(names.setdefault(use[0], first))
        if src.partial and not for_any_size:
            form.append(shape)
        axes = tuple(entry[-1] for entry in entries)
        return _ReshardForm((*form, *sorted(set(factors))), axes)

    def renamed(self, cost: MoveCost, old: Point, new: Point) -> MoveCost:
        """Return the cost of a move in which axes have other names, each from `old` to `new`."""
        if all(len(set(memory)) <= 1 for memory in cost[2:]):
            return cost
        if (old, new) not in self._cells:
            name_of, cells = dict(zip(new, old)), list[int]()
            sizes = [self.mesh.axis_size(axis) for axis, _ in self.axes]
            strides = [prod(sizes[number + 1 :]) for number in range(len(sizes))]
            for cell in range(self.cells):
                digits = [cell // stride % size for stride, size in zip(strides, sizes)]
                cells.append(sum(digits[n] * strides[name_of[n]] for n in name_of))
            self._cells[old, new] = tuple(cells)
        order = self._cells[old, new]
        memory = (tuple(each[cell] for cell in order) for each in cost[2:])
        return MoveCost(cost.seconds, cost.received, *memory)

    def _spare_factors(
        self, src: ShardingSpec, dst: ShardingSpec, shape: Point
    ) -> list[int] | None:
        """Return how far each dimension can be cut further evenly; None for uneven blocks."""
        if src.cut_points is not None or dst.cut_points is not None:
            return None
        factors = []
        for size, held, wanted, one, two in zip(
            shape, src.dim_specs, dst.dim_specs, src.grid, dst.grid
        ):
            blocks = one if held.axes == wanted.axes else one * two
            if size % blocks or not size:
                return None
            factors.append(gcd(size // blocks, self.cells))
        return factors

    def _uses(self, spec: ShardingSpec) -> list[AxisUse] | None:
        """Return the use of every axis; None if a sub-axis is used."""
        if spec not in self._cache:
            uses: dict[Axis, AxisUse] = {}
            for dim, by in enumerate(spec.dim_specs):
                uses |= {axis: (dim, at) for at, axis in enumerate(by.axes)}
            uses |= {axis: ("parts", monoid) for axis, monoid in spec.partial.items()}
            known = {axis for axis, _ in self.axes}
            is_split = any(axis not in known for axis in uses)
            self._cache[spec] = None if is_split else [uses.get(axis) for axis, _ in self.axes]
        return self._cache[spec]


def _code(use: AxisUse, factors: Sequence[int]) -> tuple[object, ...]:
    """Return the use of an axis without the name of its dimension; codes can be sorted."""
    if use is None:
        return ("", 0, 0)
    dim, at = use
    return (f"parts by {at}", 0, 0) if isinstance(dim, str) else ("cut", factors[dim], at)


class StoragePrices:
    """The costs of reading stored inputs and writing stored outputs.

    A placement determines what its application reads of a stored input, and the sharding of an
    output what cells write. Where several applications read an input, each is charged an equal
    part: what they read together is not a sum over them, and `estimate` has the last word.
    """

    def __init__(self, graph: Graph, machine: Machine, storage: StorageOptions) -> None:
        check_storage(graph, storage)
        self.graph, self.machine = graph, machine
        inputs = {value.name for value in graph.inputs}
        self.inputs = {n: s for n, s in storage.items() if n in inputs and isinstance(s, Storage)}
        self.outputs = {n: s for n, s in storage.items() if n not in inputs}
        self.readers = {
            name: max(1, len({n for n, _ in readers(graph, name)}) + lies(graph, name))
            for name in self.inputs
        }
        """How many applications read each stored input."""

    @property
    def is_shared(self) -> bool:
        """Whether several applications read one input, so that costs do not add up."""
        return any(count > 1 for count in self.readers.values())

    def kind(self, number: int) -> object:
        """Return what distinguishes applications that are equal but for storage."""
        operands = self._operands(number)
        return tuple(
            (self.inputs[name], self.readers[name], operands.index(name))
            if name in self.inputs
            else None
            for name in operands
        )

    def read(self, number: int, placed: Placed) -> OptionCost:
        """Return the cost of what a placed application reads."""
        seconds, nbytes, operands = 0.0, 0, self._operands(number)
        for name in dict.fromkeys(operands):
            if name in self.inputs:
                needs = [boxes for n, boxes in zip(operands, placed.needs) if n == name]
                read = self._loaded(name, read_traffic(self.inputs[name], zip(*needs)))
                seconds, nbytes = seconds + read.communicate, nbytes + read.received
        return OptionCost(0.0, seconds, nbytes)

    def read_whole(self, name: str, spec: ShardingSpec) -> OptionCost:
        """Return the cost to read an input in a sharding, if something uses it in its sharding."""
        if name not in self.inputs or not lies(self.graph, name):
            return OptionCost()
        boxes = [(box,) for box in spec.regions(self.graph.values[name].shape)]
        return self._loaded(name, read_traffic(self.inputs[name], boxes))

    def write(self, name: str, spec: ShardingSpec) -> OptionCost:
        """Return the cost to write an output that is returned in a sharding."""
        value, storage = self.graph.values[name], self.outputs[name]
        if isinstance(storage, Chunking):
            storage = choose(spec, value.shape, itemsize(value.dtype), storage)
        return self._cost(storage, write_traffic(storage, blocks(spec, value.shape, name)))

    def _operands(self, number: int) -> tuple[str, ...]:
        application = self.graph.applications[number]
        return () if application.regions or not application.results else application.operands

    def _loaded(self, name: str, traffic: Traffic) -> OptionCost:
        count, cost = self.readers[name], self._cost(self.inputs[name], traffic)
        return OptionCost(0.0, cost.communicate / count, cost.received // count)

    def _cost(self, storage: Storage, traffic: Traffic) -> OptionCost:
        seconds = traffic_seconds(traffic, storage, self.machine.storage)
        return OptionCost(0.0, seconds, traffic.nbytes)


def place_stored_inputs(plan: Plan, storage: StorageOptions) -> Plan:
    """Return the plan with stored inputs sharded as they are read, if no cell then holds more.

    The cost does not depend on it; a caller that has them in memory after all moves the least.
    """
    graph, better = plan.graph, dict(plan.specs)
    for name in storage:
        is_free = name not in graph.shardings and not lies(graph, name)
        if is_free and any(value.name == name for value in graph.inputs) and readers(graph, name):
            better[name] = _nearest_sharding(plan, name)
    if better == plan.specs:
        return plan
    moved = replace(plan, specs=FrozenMap(better.items()))
    return moved if max(moved.peak) <= max(plan.peak) else plan


def _nearest_sharding(plan: Plan, name: str) -> ShardingSpec:
    """Return the sharding of an input from which the fewest bytes move to its readers.

    Of several it is the one of which the cells hold the least.
    """
    shape, width = plan.graph.values[name].shape, plan.itemsize(name)

    def cost(spec: ShardingSpec) -> tuple[int, int]:
        places = readers(plan.graph, name)
        moved = (sum(deliver(plan.placed[n], slot, spec, width).received) for n, slot in places)
        return sum(moved), max(sizes_of(spec, shape, width))

    return min((plan.specs[name], *shardings(plan.mesh, shape)), key=cost)
