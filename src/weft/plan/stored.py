"""The boxes that cells read from storage and write to it, as they follow from a plan.

- Of a stored input every cell reads straight from storage what its applications need, halos
  included; from cell to cell nothing moves for it. What several applications need is read once:
  boxes are joined where their hull touches no more bytes than each of them by itself.
- An application that runs graphs of its own, and an output, have a stored input as it lies: cells
  read their shards, and from there it moves as it would anyway.
- A block of a stored output is written by the first cell that holds it, in whole shards. Where two
  cells have parts of one shard, both write all of it, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import ShardingSpec
from weft.plan.chunking import Chunking, choose_storage
from weft.plan.machine import Link
from weft.plan.storage import Storage
from weft.program import Executed, Program, Transfer
from weft.space import ZRange
from weft.values import FrozenMap, Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan

Boxes = Sequence[Sequence[ZRange]]
"""For each cell, in rank order, some boxes of an array."""


class Traffic(NamedTuple):
    """The bytes that go between storage and cells."""

    cells: Point
    """The bytes of the chunks that each cell reads or writes, decoded, in rank order."""
    needed: int
    """The bytes that they are read or written for, of all cells."""

    @property
    def nbytes(self) -> int:
        """The bytes of all cells."""
        return sum(self.cells)

    def seconds(self, storage: Storage, link: Link) -> float:
        """Return the seconds of the busiest cell, or of all cells where they share a link."""
        most = self.nbytes if link.shared else max(self.cells, default=0)
        return link.latency + most / storage.ratio / link.bandwidth if most else 0.0


def reads(plan: Plan, name: str, storage: Storage) -> tuple[tuple[ZRange, ...], ...]:
    """For each cell, in rank order, the boxes of a stored input that it reads.

    >>> from weft import Plan, ops, propagate, trace
    >>> graph = trace(
    ...     lambda x, k: ops.convolve(x, k), (1, 1, 10), (1, 1, 3),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{}, {}, {"x"}]>'},
    ... )
    >>> plan = Plan.of(propagate(graph))
    >>> print(*reads(plan, "x", Storage((1, 1, 10), (1, 1, 2), itemsize=4))[1])
    [0:1, 0:1, 4:10]
    """
    return tuple(joined(storage, tuple(cell)) for cell in zip(*_needed(plan, name)))


def _needed(plan: Plan, name: str) -> Iterator[Sequence[ZRange]]:
    """Return the boxes of the cells, for each reader of an input."""
    graph = plan.graph
    yield [ZRange.of((0,) * len(graph.values[name].shape))] * plan.mesh.size
    for number, slot in readers(graph, name):
        yield plan.placed[number].needs[slot]
    if lies(graph, name):
        yield plan.specs[name].regions(graph.values[name].shape)


def readers(graph: Graph, name: str) -> list[tuple[int, int]]:
    """The applications that read an input straight from storage, and as which operand."""
    return [
        (number, slot)
        for number, application in enumerate(graph.applications)
        for slot, operand in enumerate(application.operands)
        if operand == name and application.results and not application.regions
    ]


def lies(graph: Graph, name: str) -> bool:
    """Whether an output, a loop or a branch takes an input as it is sharded."""
    inside = (a.operands for a in graph.applications if a.results and a.regions)
    return name in graph.outputs or any(name in operands for operands in inside)


@lru_cache(maxsize=1 << 14)
def joined(storage: Storage, boxes: tuple[ZRange, ...]) -> tuple[ZRange, ...]:
    """Boxes that hold some others, with as few as touch no more bytes than those apart.

    >>> x = Storage((100,), (10,))
    >>> print(*joined(x, (ZRange((0,), (4,)), ZRange((6,), (12,)), ZRange((50,), (51,)))))
    [0:12] [50:51]
    """
    left = [box for box in dict.fromkeys(boxes) if box]
    while pair := next((two for two in combinations(left, 2) if _belong(storage, *two)), None):
        left = [box for box in left if box not in pair]
        left.append(pair[0].hull(pair[1]))
    return tuple(sorted(left, key=lambda box: (box.start, box.stop)))


def _belong(storage: Storage, one: ZRange, two: ZRange) -> bool:
    apart = storage.touched(one).nbytes + storage.touched(two).nbytes
    return storage.touched(one.hull(two)).nbytes <= apart


def loaded(storage: Storage, boxes: Boxes) -> Traffic:
    """Return the traffic of reading boxes; those of one cell are joined."""
    found = [_loaded(storage, tuple(cell)) for cell in boxes]
    return Traffic(tuple(read for read, _ in found), sum(needed for _, needed in found))


@lru_cache(maxsize=1 << 14)
def _loaded(storage: Storage, boxes: tuple[ZRange, ...]) -> tuple[int, int]:
    """The bytes that one cell reads, and those that it needs, each once."""
    read = sum(storage.touched(box).nbytes for box in joined(storage, boxes))
    parts = (part for n, box in enumerate(boxes) for part in box.difference(*boxes[:n]))
    return read, storage.itemsize * sum(part.size for part in parts)


def loads(plan: Plan, name: str, storage: Storage) -> Traffic:
    """Return the traffic of reading a stored input."""
    return loaded(storage, list(zip(*_needed(plan, name))))


def writes(plan: Plan, name: str) -> tuple[ZRange | None, ...]:
    """For each cell, in rank order, the box of a stored output that it writes, if any."""
    return blocks(plan.outputs[plan.graph.outputs.index(name)], plan.graph.values[name].shape, name)


def blocks(spec: ShardingSpec, shape: Point, name: str) -> tuple[ZRange | None, ...]:
    """For each cell its box, if it is the first that holds it.

    >>> from weft import DeviceMesh
    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> print(*blocks(ShardingSpec.parse('<@m, [{"y"}]>', mesh), (8,), "y"))
    [0:4] [4:8] None None
    """
    _check_whole(spec, name)
    seen = set[ZRange]()
    found: list[ZRange | None] = []
    for box in spec.regions(shape):
        found.append(box if box and box not in seen else None)
        seen.add(box)
    return tuple(found)


def _check_whole(spec: ShardingSpec, name: str) -> None:
    if spec.partial:
        raise WeftError(
            f"{name} lies in parts, as {spec}, and storage holds whole arrays",
            hint="leave out what is unreduced",
        )


def stored(storage: Storage, boxes: Iterable[ZRange | None]) -> Traffic:
    """Return the traffic of writing the boxes of cells."""
    every = list(boxes)
    cells = tuple(storage.written(box).nbytes if box else 0 for box in every)
    return Traffic(cells, storage.itemsize * sum(box.size for box in every if box))


def check_storage(graph: Graph, storage: Mapping[str, Storage | Chunking]) -> None:
    """Refuse storage of what is no input or output, or is another array."""
    inputs, values = [value.name for value in graph.inputs], graph.values
    for name, one in storage.items():
        if name not in (*inputs, *graph.outputs):
            known = ", ".join(dict.fromkeys([*inputs, *graph.outputs]))
            raise WeftError(f"there is no input or output {name!r}", hint=f"there are {known}")
        if not isinstance(one, Storage | Chunking):
            raise WeftError(f"the storage of {name} is a Storage or a Chunking, got {one!r}")
        if isinstance(one, Chunking):
            if name in inputs:
                raise WeftError(f"{name} is an input: how it is stored is not to be chosen")
        elif (one.shape, one.itemsize) != (values[name].shape, itemsize(values[name].dtype)):
            raise WeftError(
                f"{values[name]} is another array than the one of {one.itemsize} B an element "
                f"that is {one}"
            )


def settled_storage(
    plan: Plan, storage: Mapping[str, Storage | Chunking]
) -> FrozenMap[str, Storage]:
    """Return the storage of inputs and outputs; chunks that were left open are chosen."""
    check_storage(plan.graph, storage)
    for name in (value.name for value in plan.graph.inputs if value.name in storage):
        _check_whole(plan.specs[name], name)
    return FrozenMap(
        (name, one if isinstance(one, Storage) else choose_storage(plan, name, one))
        for name, one in storage.items()
    )


def moving(plan: Plan, storage: Mapping[str, Storage]) -> tuple[Executed, ...]:
    """Return what a plan executes, without transfers of what is read from storage instead."""
    inputs = {value.name for value in plan.graph.inputs} & set(storage)
    program = plan.program
    return tuple(each for each in program.count.executed if not _is_read(program, each, inputs))


def _is_read(program: Program, each: Executed, inputs: set[str]) -> bool:
    if each.body or not isinstance(each.instruction, Transfer):
        return False
    number = program.main.application_at(each.place)
    value = program.buffers[each.instruction.source].value
    if number is None or value not in inputs:
        return False
    return not program.graphs[0].applications[number].regions
