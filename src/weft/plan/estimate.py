"""`estimate`: what a plan takes on a machine. Bytes and memory are exact; seconds are estimates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from weft.lang import Application, Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh
from weft.plan.chunking import Chunking
from weft.plan.course import Event, flops_of, total
from weft.plan.delivery import Delivery
from weft.plan.machine import Machine
from weft.plan.memory import sizes_of
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.resharding.choose import seconds_on
from weft.plan.resharding.media import seconds_of_messages
from weft.plan.resharding.moves import Transfer
from weft.plan.resharding.reshard import Reshard, check_machine
from weft.plan.storage import Storage
from weft.plan.stored import loads, moving, settled_storage, stored, writes
from weft.values import FrozenMap, Point

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
        """How much it moves, or computes."""
        if self.needed:
            return f"{self.moved} B, {self.moved / self.needed:.3g} x what is needed"
        return f"{self.received} B" if self.received else f"{self.flops} flop"


@dataclass(frozen=True)
class Cost:
    """What a plan takes: by application and by collective, in exact bytes and estimated seconds."""

    plan: Plan
    machine: Machine
    items: tuple[Item, ...]
    storage: Mapping[str, Storage] = FrozenMap(())
    """How the inputs and outputs lie in storage that do."""

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
        """The seconds in all: what of communication does not hide behind computation is added."""
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
        return total(moving(self.plan, self.storage), self.plan.mesh.size)

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
        return _by_axis(self.plan.mesh, moving(self.plan, self.storage))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the program does not say of its loops and branches; empty if bytes are exact."""
        return self.plan.assumed

    @cached_property
    def peak(self) -> Point:
        """The most bytes that each cell holds."""
        return self.plan.peak

    @property
    def fits(self) -> bool:
        """Whether no cell holds more than it can."""
        return max(self.peak, default=0) <= self.machine.capacity

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
    """What a plan takes on a machine, before it runs.

    `storage` says which inputs and outputs lie in storage, and how; that of an output may be left
    to be chosen. `weft.plan.stored` says what is read and written then, and does not move.

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
    items = (
        *_loads(plan, known, chosen),
        *priced(moving(plan, known), chosen),
        *_stores(plan, known, chosen),
    )
    return Cost(plan, chosen, items, known)


def _loads(plan: Plan, storage: Mapping[str, Storage], machine: Machine) -> Iterator[Item]:
    """What is read from storage, input by input."""
    for name in (value.name for value in plan.graph.inputs if value.name in storage):
        read = loads(plan, name, storage[name])
        if read.nbytes:
            seconds = read.seconds(storage[name], machine.storage)
            yield Item(name, "read", seconds, loaded=read.nbytes, needed=read.needed)


def _stores(plan: Plan, storage: Mapping[str, Storage], machine: Machine) -> Iterator[Item]:
    """What is written to storage, output by output."""
    inputs = {value.name for value in plan.graph.inputs}
    for name in dict.fromkeys(plan.graph.outputs):
        if name in storage and name not in inputs:
            made = stored(storage[name], writes(plan, name))
            if made.nbytes:
                seconds = made.seconds(storage[name], machine.storage)
                yield Item(name, "write", seconds, stored=made.nbytes, needed=made.needed)


def priced(events: Iterable[Event], machine: Machine) -> Iterator[Item]:
    """What events take, each in all the times that it happens."""
    for event in events:
        for item in _once(event, machine):
            yield Item(
                item.name,
                f"{event.inside}{item.what}",
                event.times * item.seconds,
                event.times * item.flops,
                event.times * item.read,
                event.times * item.received,
            )


def _once(event: Event, machine: Machine) -> Iterator[Item]:
    match event.way:
        case None:
            yield _computed(event, machine)
        case Delivery():
            yield from _delivered(event.name, event.value, event.way, machine)
        case Reshard():
            yield from _resharded(event.name, event.value, event.way, machine)


def _delivered(name: str, operand: str, delivery: Delivery, machine: Machine) -> Iterator[Item]:
    if delivery.reshard is not None:
        yield from _resharded(name, operand, delivery.reshard, machine)
    if delivery.fetch is not None:
        fetch, width = delivery.fetch, delivery.itemsize
        seconds = seconds_of_messages(fetch.messages, width, fetch.src.mesh, machine)
        received = sum(fetch.received) * width
        yield Item(name, f"fetch of {operand}", seconds, received=received)


def _resharded(name: str, value: str, reshard: Reshard, machine: Machine) -> Iterator[Item]:
    for step in reshard.steps:
        received = sum(step.received)
        if received:
            seconds = seconds_on(step, machine)
            yield Item(name, f"{step.kind} of {value}", seconds, received=received)


def _computed(event: Event, machine: Machine) -> Item:
    plan, number = event.plan, event.number
    assert number is not None
    application, placed = plan.graph.applications[number], plan.placed[number]
    seconds, flops, read = compute(plan.graph, application, placed, machine)
    return Item(event.name, application.operator, seconds, flops, read)


def compute(
    graph: Graph, application: Application, placed: Placed, machine: Machine
) -> tuple[float, int, int]:
    """The roofline: the slower of computing and of reading and writing, on the busiest cell.

    Given are the seconds, the operations of that cell, and the bytes that all cells read.
    """
    values, flops = graph.values, flops_of(graph, application, placed)
    reads = [0] * placed.mesh.size
    for operand, needs in zip(application.operands, placed.needs):
        size = itemsize(values[operand].dtype)
        reads = [total + box.size * size for total, box in zip(reads, needs)]
    writes = [0] * placed.mesh.size
    for result, spec in zip(application.results, placed.results):
        held = sizes_of(spec, values[result].shape, itemsize(values[result].dtype))
        writes = [total + more for total, more in zip(writes, held)]
    dtypes = [values[name].dtype for name in application.operands or application.results]
    rate = min(map(machine.rate, dtypes), default=inf)
    touched = max(map(sum, zip(reads, writes)), default=0)
    return max(flops / rate, touched / machine.memory_bandwidth), flops, sum(reads)


def _by_axis(mesh: DeviceMesh, events: Iterable[Event]) -> dict[str, int]:
    totals = dict.fromkeys(mesh.axis_names, 0)
    for move, width in _transfers(events):
        for axis in _crossed(mesh, move):
            totals[axis] += move.box.size * width
    return totals


def _transfers(events: Iterable[Event]) -> Iterator[tuple[Transfer, int]]:
    """What goes from cell to cell, and the bytes of an element, in all the times together."""
    for event in events:
        if event.way is None:
            continue
        way, width = event.way, event.times * event.way.itemsize
        reshard = way.reshard if isinstance(way, Delivery) else way
        for step in reshard.steps if reshard else ():
            yield from ((transfer, width) for transfer in step.transfers())
        if isinstance(way, Delivery) and way.fetch is not None:
            yield from ((transfer, width) for transfer in way.fetch.transfers)


def _crossed(mesh: DeviceMesh, move: Transfer) -> list[str]:
    devices = list(mesh.device_ids or range(mesh.size))
    one, two = (mesh.coord(devices.index(device)) for device in (move.sender, move.receiver))
    return [axis for axis, a, b in zip(mesh.axis_names, one, two) if a != b]
