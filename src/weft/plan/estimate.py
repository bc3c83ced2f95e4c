"""`estimate`: what a plan takes on a machine. Bytes and memory are exact; seconds are estimates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.lang.fusion import ARROW, work_in
from weft.layout import DeviceMesh
from weft.plan.chunking import Chunking
from weft.plan.lower import sharding_of
from weft.plan.machine import GRID, Machine
from weft.plan.placed import Placed, layout_of
from weft.plan.plan import Plan
from weft.plan.resharding.choose import seconds_between
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.resharding.pricing import seconds_of_messages
from weft.plan.resharding.reshard import check_machine
from weft.plan.stored import settled_storage, traffic_seconds
from weft.program import (
    Apply,
    CellClasses,
    Cells,
    Executed,
    Layout,
    Program,
    Route,
    Storage,
    Traffic,
    Transfer,
)
from weft.program.messages import messages
from weft.space import ZRange
from weft.values import FrozenMap, Point

MOST_BOXES = 4096
"""Boxes for which the operations of a fused operator are counted one by one."""

KINDS = ("compute", "communicate")


@dataclass(frozen=True, slots=True)
class Item:
    """One line of an estimate: an application, or what moves for one."""

    name: str
    what: str
    """The operator, or the collective and what it moves."""
    seconds: float
    flops: int = 0
    """Of the cell that has most to compute."""
    read: int = 0
    """The bytes that all cells read to compute it."""
    received: int = 0
    """The bytes that all cells receive."""
    loaded: int = 0
    """The bytes of the chunks that all cells read from storage, decoded."""
    stored: int = 0
    """The bytes of the chunks that all cells write to storage, before they are encoded."""
    needed: int = 0
    """The bytes for which those are read or written."""

    @property
    def moved(self) -> int:
        """The bytes that go anywhere: from cell to cell, from storage or to it."""
        return self.received + self.loaded + self.stored

    @property
    def amount(self) -> str:
        """The bytes or the operations, as a text."""
        if self.needed:
            return f"{self.moved} B, {self.moved / self.needed:.3g} x what is needed"
        return f"{self.received} B" if self.received else f"{self.flops} flop"


@dataclass(frozen=True)
class Cost:
    """The cost of a plan, by application and by transfer: exact bytes, estimated seconds."""

    plan: Plan
    machine: Machine
    items: tuple[Item, ...]
    storage: Mapping[str, Storage] = FrozenMap(())
    """The storage of inputs and outputs."""

    @cached_property
    def program(self) -> Program:
        """The program whose cost this is, with what it reads from storage and writes to it."""
        return self.plan.program_with(self.storage)

    @property
    def compute(self) -> float:
        """The seconds that kernels take, one after the other."""
        return sum(item.seconds for item in self.items if not item.moved)

    @property
    def communicate(self) -> float:
        """The seconds that collectives and storage take, one after the other."""
        return sum(item.seconds for item in self.items if item.moved)

    @property
    def seconds(self) -> float:
        """The seconds in all: computation, and communication that does not overlap with it."""
        hidden = min(self.machine.overlap * self.communicate, self.compute)
        return self.compute + self.communicate - hidden

    @property
    def flops(self) -> int:
        """The operations of the cell that has most to compute."""
        return sum(item.flops for item in self.items)

    @property
    def read(self) -> int:
        """The bytes that all cells read to compute."""
        return sum(item.read for item in self.items)

    @property
    def received(self) -> int:
        """The bytes that all cells receive."""
        return sum(item.received for item in self.items)

    @property
    def received_by_cell(self) -> Point:
        """The bytes that each device receives; none of what it reads from storage."""
        return self.program.count.received_by_cell

    @property
    def loaded(self) -> int:
        """The bytes of the chunks that all cells read from storage."""
        return sum(item.loaded for item in self.items)

    @property
    def stored(self) -> int:
        """The bytes of the chunks that all cells write to storage."""
        return sum(item.stored for item in self.items)

    @property
    def moved(self) -> int:
        """The bytes that go anywhere: from cell to cell, from storage or to it."""
        return sum(item.moved for item in self.items)

    @property
    def amplification(self) -> float:
        """The bytes read from storage and written to it, over those needed; 1 where none are."""
        needed = sum(item.needed for item in self.items)
        return (self.loaded + self.stored) / needed if needed else 1.0

    @cached_property
    def by_axis(self) -> dict[str, int]:
        """The bytes that cross each axis of the mesh; what crosses two is counted in both."""
        return _by_axis(self.program)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions about loops and branches; empty if bytes are exact."""
        return self.program.count.assumed

    @cached_property
    def peak(self) -> Point:
        """The most bytes that each cell holds."""
        return self.program.count.peak

    @property
    def fits(self) -> bool:
        """Whether every cell has enough memory."""
        return not self.excess

    @property
    def excess(self) -> float:
        """The bytes by which some cell holds more than its capacity, at most; 0 if none does."""
        rooms = self.machine.capacities(self.plan.mesh)
        if rooms is None:
            return max(0.0, max(self.peak, default=0) - self.machine.capacity)
        return max(0.0, *(held - room for held, room in zip(self.peak, rooms)))

    def __str__(self) -> str:
        rows = [(i.name, i.what, f"{i.seconds:.3g} s", i.amount) for i in self.items]
        wide = [max((len(row[c]) for row in rows), default=0) for c in range(3)]
        lines = [f"{a:{wide[0]}}  {b:{wide[1]}}  {c:>{wide[2]}}  {d}" for a, b, c, d in rows]
        peak = max(self.peak, default=0)
        whole = f"{self.seconds:.3g} s, {self.received} B received, peak {peak} B"
        if self.storage:
            whole += (
                f", {self.loaded} B loaded, {self.stored} B stored, "
                f"{self.amplification:.3g} x what is needed"
            )
        return "\n".join([*lines, whole, *(f"assumed: {text}" for text in self.assumed)])


def estimate(
    plan: Plan,
    machine: Machine | None = None,
    storage: Mapping[str, Storage | Chunking] | None = None,
) -> Cost:
    """Return the cost of a plan on a machine.

    `storage` says which inputs and outputs lie in storage, and how; that of an output may be left
    to be chosen. The program then has `Read` and `Write`, and nothing moves for what is read.

    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w, (8, 16), (16, 32),
    ...     meshes=['@m = <["x"=4]>'], shardings={"x": '<@m, [{}, {"x"}]>'},
    ... )
    >>> cost = estimate(Plan.of(propagate(graph)), Machine(flops={"float32": 1e12}))
    >>> cost.flops, cost.received, max(cost.peak), cost.by_axis
    (2048, 6144, 2944, {'x': 6144})
    """
    chosen = machine or plan.machine or Machine()
    check_machine(chosen, [plan.mesh])
    known = settled_storage(plan, storage or {})
    program = plan.program_with(known)
    reads, writes = program.count.reads, program.count.writes
    items = (
        *(_stored(name, "read", each, known[name], chosen) for name, each in reads.items()),
        *priced(program, program.count.executed, chosen),
        *(_stored(name, "write", each, known[name], chosen) for name, each in writes.items()),
    )
    return Cost(plan, chosen, items, known)


def _stored(name: str, what: str, traffic: Traffic, storage: Storage, machine: Machine) -> Item:
    """Return the cost of reading an input or of writing an output."""
    seconds, moved = traffic_seconds(traffic, storage, machine.storage), traffic.nbytes
    loaded, stored = (moved, 0) if what == "read" else (0, moved)
    return Item(name, what, seconds, loaded=loaded, stored=stored, needed=traffic.needed)


def priced(program: Program, executed: Iterable[Executed], machine: Machine) -> Iterator[Item]:
    """Return the cost of instructions, times how often each is executed."""
    for each in executed:
        item = _item(program, each, machine)
        if item is not None:
            yield Item(
                item.name,
                f"{each.inside}{item.what}",
                each.times * item.seconds,
                each.times * item.flops,
                each.times * item.read,
                each.times * item.received,
            )


def _item(program: Program, each: Executed, machine: Machine) -> Item | None:
    """Return the cost of executing an instruction once; None if it takes no time."""
    body, graph = program.bodies[each.body], program.graphs[each.body]
    match each.instruction:
        case Apply() as apply:
            application = graph.applications[apply.definition]
            operands = [program.buffers[buffer].layout for buffer in apply.operands]
            results = [program.buffers[buffer].layout for buffer in apply.results]
            seconds, flops, read = roofline(
                graph, apply.definition, apply.index, operands, results, machine, program.mesh
            )
            return Item(", ".join(application.results), application.operator, seconds, flops, read)
        case Transfer() as transfer if received := program.count.total(transfer):
            value = program.buffers[transfer.source].value
            at = body.application_at(each.place)
            name = value if at is None else ", ".join(graph.applications[at].results)
            seconds = seconds_of_transfer(program, transfer, machine)
            return Item(name, f"{transfer.kind} of {value}", seconds, received=received)
    return None


def seconds_of_transfer(program: Program, transfer: Transfer, machine: Machine) -> float:
    """Return the estimated seconds of a transfer on a machine."""
    source, result = program.buffers[transfer.source], program.buffers[transfer.result]
    mesh, width = program.mesh, source.itemsize
    before, after = (sharding_of(mesh, buffer.layout) for buffer in (source, result))
    if before is None or after is None:
        route = Route.of(transfer, source.layout, result.layout)
        moved = [
            (m.sender, m.receiver, m.box.size) for m in messages(route) if m.sender != m.receiver
        ]
        return seconds_of_messages(moved, width, mesh, machine)
    return seconds_between(transfer.kind, before, after, source.layout.shape, width, machine)


def placed_compute(
    graph: Graph, number: int, placed: Placed, machine: Machine
) -> tuple[float, int, int]:
    """Return the roofline of an application that is placed, before there is a program."""
    line = placed.signature
    operands = list(map(placed.operand_layout, range(len(line.operand_shapes))))
    results = list(map(layout_of, placed.results, line.result_shapes))
    index = layout_of(placed.index, line.sizes.values())
    return roofline(graph, number, index, operands, results, machine, placed.mesh)


def roofline(
    graph: Graph,
    number: int,
    index: Layout,
    operands: Sequence[Layout],
    results: Sequence[Layout],
    machine: Machine,
    mesh: DeviceMesh,
) -> tuple[float, int, int]:
    """Return what an application takes on the cell that takes longest.

    Given are the seconds, the most operations of a cell, and the bytes that all cells read.
    """
    application, values = graph.applications[number], graph.values
    names = (*application.operands, *application.results)
    widths = [itemsize(values[name].dtype) for name in names]
    dtypes = [values[name].dtype for name in application.operands or application.results]
    layouts, reading = (*operands, *results), len(operands)
    sizes = [layout.size for layout in layouts]
    speeds, operator = machine.speeds(mesh), application.operator
    by_part = ARROW in operator and GRID in machine.operations
    if None not in sizes and speeds is None and not by_part:
        flops = flops_of(graph, number, index)
        held = [width * (size or 0) for width, size in zip(widths, sizes)]
        seconds = machine.seconds({operator: flops}, dtypes, sum(held))
        return seconds, flops, sum(held[:reading]) * index.cells.size
    classes = CellClasses(index.cells)
    for layout in (index, *layouts):
        for dim in range(len(layout.shape)):
            classes.refine_spans(layout.rule(dim))
    if speeds is not None:
        axes, labels = _varying(mesh.shape, speeds)
        classes.refine(axes, "speed", lambda: labels)
    by_cell = speeds is not None or by_part
    flops = 0 if by_cell else flops_of(graph, number, index)
    longest, read, signature = 0.0, 0, graph.signatures[number]
    for at, count in zip(classes.representatives, classes.counts):
        held = [layout.box(at).size * width for layout, width in zip(layouts, widths)]
        read += sum(held[:reading]) * count
        work = {operator: flops}
        if by_cell:
            box, attributes = index.box(at), application.attributes
            work = work_in(graph.operators, operator, signature, box, attributes)
            flops = max(flops, sum(work.values()))
        speed = 1.0 if speeds is None else speeds[index.cells.rank(at)]
        longest = max(longest, machine.seconds(work, dtypes, sum(held)) / speed)
    return longest, flops, read


@lru_cache(maxsize=64)
def _varying(shape: Point, speeds: tuple[float, ...]) -> tuple[frozenset[int], list[float]]:
    """Return the axes along which speeds differ, and the speeds of the cells along those axes."""
    cells = Cells(shape)
    axes = frozenset(
        axis
        for axis, size in enumerate(shape)
        if any(
            speeds[rank] != speeds[cells.rank((*at[:axis], 0, *at[axis + 1 :]))]
            for rank, at in enumerate(cells.coordinates())
        )
        and size > 1
    )
    along = product(*(range(n) if axis in axes else (0,) for axis, n in enumerate(shape)))
    return axes, [speeds[cells.rank(at)] for at in along]


def flops_of(graph: Graph, number: int, index: Layout) -> int:
    """Return the operations of the cell that has most to compute for an application."""
    application, signature = graph.applications[number], graph.signatures[number]
    operator, attributes = graph.operators.find(application.operator), application.attributes
    largest = ZRange.of(index.grid.block_shape)
    if operator.count is None:
        return operator.count_flops(signature, largest, attributes)
    spans = [sorted(index.spans(dim)) for dim in range(len(index.shape))]
    if prod(map(len, spans)) > MOST_BOXES:
        return operator.count_flops(signature, largest, attributes)
    boxes = (
        ZRange([low for low, _ in each], [high for _, high in each]) for each in product(*spans)
    )
    return max(operator.count_flops(signature, box, attributes) for box in boxes)


def _by_axis(program: Program) -> dict[str, int]:
    names = program.mesh.axis_names
    totals, ranks = dict.fromkeys(names, 0), ranks_by_device(program.mesh)
    for each in program.count.executed:
        if not isinstance(each.instruction, Transfer):
            continue
        transfer = each.instruction
        source, result = program.buffers[transfer.source], program.buffers[transfer.result]
        width = each.times * source.itemsize
        for message in messages(Route.of(transfer, source.layout, result.layout)):
            if message.sender != message.receiver:
                one, two = (
                    program.cells.coordinate(ranks[device])
                    for device in (message.sender, message.receiver)
                )
                for name, a, b in zip(names, one, two):
                    totals[name] += message.box.size * width if a != b else 0
    return totals
