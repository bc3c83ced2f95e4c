"""What choices take because inputs and outputs lie in storage.

A placement decides what its application reads of a stored input, and the sharding of an output
what cells write. Where several read an input, they are taken to read the same, each its part of
it: what they read together is no sum over them, and an estimate has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import ShardingSpec
from weft.plan.chunking import Chunking, choose
from weft.plan.fetch import moved_bytes
from weft.plan.machine import Machine
from weft.plan.memory import sizes_of
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.searching.choices import shardings
from weft.plan.searching.problem import Price
from weft.plan.storage import Storage
from weft.plan.stored import Traffic, blocks, check_storage, lies, loaded, readers, stored
from weft.values import FrozenMap

Wanted = Mapping[str, Storage | Chunking]
"""How inputs and outputs lie in storage, or what is wanted of it."""


class Stored:
    """The prices of storage for one graph."""

    def __init__(self, graph: Graph, machine: Machine, storage: Wanted) -> None:
        check_storage(graph, storage)
        self.graph, self.machine = graph, machine
        inputs = {value.name for value in graph.inputs}
        self.inputs = {n: s for n, s in storage.items() if n in inputs and isinstance(s, Storage)}
        self.outputs = {n: s for n, s in storage.items() if n not in inputs}
        self.parts = {name: max(1, self._uses(name)) for name in self.inputs}
        """By how many each stored input is read."""

    @property
    def is_shared(self) -> bool:
        """Whether several read an input, so that prices are no sums."""
        return any(parts > 1 for parts in self.parts.values())

    def kind(self, number: int) -> object:
        """What tells applications apart that are alike but for storage."""
        operands = self._operands(number)
        return tuple(
            (self.inputs[name], self.parts[name], operands.index(name))
            if name in self.inputs
            else None
            for name in operands
        )

    def read(self, number: int, placed: Placed) -> Price:
        """What an application reads."""
        seconds, nbytes, operands = 0.0, 0, self._operands(number)
        for name in dict.fromkeys(operands):
            if name in self.inputs:
                needs = [boxes for n, boxes in zip(operands, placed.needs) if n == name]
                read = self._loaded(name, loaded(self.inputs[name], list(zip(*needs))))
                seconds, nbytes = seconds + read.communicate, nbytes + read.received
        return Price(0.0, seconds, nbytes)

    def lying(self, name: str, spec: ShardingSpec) -> Price:
        """What is read of an input that lies so, where somebody has it as it lies."""
        if name not in self.inputs or not lies(self.graph, name):
            return Price()
        boxes = [(box,) for box in spec.regions(self.graph.values[name].shape)]
        return self._loaded(name, loaded(self.inputs[name], boxes))

    def written(self, name: str, spec: ShardingSpec) -> Price:
        """What is written of an output that is returned so."""
        value, wanted = self.graph.values[name], self.outputs[name]
        if isinstance(wanted, Chunking):
            wanted = choose(spec, value.shape, itemsize(value.dtype), wanted)
        return self._price(wanted, stored(wanted, blocks(spec, value.shape, name)))

    def _uses(self, name: str) -> int:
        return len({number for number, _ in readers(self.graph, name)}) + lies(self.graph, name)

    def _operands(self, number: int) -> tuple[str, ...]:
        application = self.graph.applications[number]
        return () if application.regions or not application.results else application.operands

    def _loaded(self, name: str, read: Traffic) -> Price:
        parts, whole = self.parts[name], self._price(self.inputs[name], read)
        return Price(0.0, whole.communicate / parts, whole.received // parts)

    def _price(self, storage: Storage, traffic: Traffic) -> Price:
        return Price(0.0, traffic.seconds(storage, self.machine.storage), traffic.nbytes)


def settle_inputs(plan: Plan, storage: Wanted) -> Plan:
    """The plan in which stored inputs lie where they are read, if no cell then holds more.

    Nothing in its cost says how they lie; whoever has them in memory after all moves least.
    """
    graph, better = plan.graph, dict(plan.specs)
    for name in storage:
        free = name not in graph.shardings and not lies(graph, name)
        if free and any(value.name == name for value in graph.inputs) and readers(graph, name):
            better[name] = _nearest(plan, name)
    if better == plan.specs:
        return plan
    moved = replace(plan, specs=FrozenMap(better.items()))
    return moved if max(moved.peak) <= max(plan.peak) else plan


def _nearest(plan: Plan, name: str) -> ShardingSpec:
    """The sharding of an input from which the fewest bytes move to those that read it.

    Of several it is the one of which the cells hold least.
    """
    shape, width = plan.graph.values[name].shape, plan.itemsize(name)

    def cost(spec: ShardingSpec) -> tuple[int, int]:
        places = readers(plan.graph, name)
        moved = (moved_bytes(spec, plan.placed[n], slot, width) for n, slot in places)
        return sum(moved), max(sizes_of(spec, shape, width))

    return min((plan.specs[name], *shardings(plan.mesh, shape)), key=cost)
