"""Storage of inputs and outputs: how what is read and written follows from a plan.

- Of a stored input every cell reads straight from storage what its applications need, halos
  included; from cell to cell nothing moves for it. What several applications need is read once:
  boxes are joined where their hull touches no more bytes than each of them by itself.
- An application that runs graphs of its own, and an output, have a stored input as it is sharded:
  cells read their shards, and from there it moves as it would anyway.
- A block of a stored output is written by the first cell that holds it, in whole shards. Where two
  cells have parts of one shard, both write all of it, one after the other.

`weft.plan.lower` makes these rules the instructions `Read` and `Write` of a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import ShardingSpec
from weft.plan.chunking import Chunking, choose_storage
from weft.plan.machine import Link
from weft.program.storage import Storage, Traffic, first_boxes
from weft.space import ZRange
from weft.values import FrozenMap, Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan


def traffic_seconds(traffic: Traffic, storage: Storage, link: Link) -> float:
    """Return the seconds of the busiest cell, or of all cells where they share a link."""
    most = traffic.nbytes if link.shared else max(traffic.cells, default=0)
    return link.latency + most / storage.ratio / link.bandwidth if most else 0.0


def reads(plan: Plan, name: str, storage: Storage) -> tuple[tuple[ZRange, ...], ...]:
    """Return for each cell, in rank order, the boxes of a stored input that it reads.

    >>> from weft import Plan, ops, propagate, trace
    >>> from weft.plan import Storage
    >>> graph = trace(
    ...     lambda x, k: ops.convolve(x, k), (1, 1, 10), (1, 1, 3),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{}, {}, {"x"}]>'},
    ... )
    >>> plan = Plan.of(propagate(graph))
    >>> print(*reads(plan, "x", Storage((1, 1, 10), (1, 1, 2), itemsize=4))[1])
    [0:1, 0:1, 4:10]
    """
    return plan.program_with({name: storage}).count.read_boxes(name)


def readers(graph: Graph, name: str) -> list[tuple[int, int]]:
    """Return the applications that read an input from storage, and as which operand."""
    return [
        (number, slot)
        for number, application in enumerate(graph.applications)
        for slot, operand in enumerate(application.operands)
        if operand == name and application.results and not application.regions
    ]


def lies(graph: Graph, name: str) -> bool:
    """Return whether an output, a loop or a branch takes an input as it is sharded."""
    inside = (a.operands for a in graph.applications if a.results and a.regions)
    return name in graph.outputs or any(name in operands for operands in inside)


def writes(plan: Plan, name: str) -> tuple[ZRange | None, ...]:
    """Return for each cell, in rank order, the box of a stored output that it writes, if any."""
    return blocks(plan.outputs[plan.graph.outputs.index(name)], plan.graph.values[name].shape, name)


def blocks(spec: ShardingSpec, shape: Point, name: str) -> tuple[ZRange | None, ...]:
    """Return for each cell its box, if it is the first that holds it.

    >>> from weft import DeviceMesh
    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> print(*blocks(ShardingSpec.parse('<@m, [{"y"}]>', mesh), (8,), "y"))
    [0:4] [4:8] None None
    """
    _check_whole(spec, name)
    return first_boxes(spec.regions(shape))


def _check_whole(spec: ShardingSpec, name: str) -> None:
    if spec.partial:
        raise WeftError(
            f"{name} lies in parts, as {spec}, and storage holds whole arrays",
            hint="leave out what is unreduced",
        )


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
                raise WeftError(f"{name} is an input: its chunks are given, and cannot be chosen")
        elif (one.shape, one.itemsize) != (values[name].shape, itemsize(values[name].dtype)):
            raise WeftError(
                f"{values[name]} is another array than the one of {one.itemsize} B an element "
                f"that is {one}"
            )


def settled_storage(
    plan: Plan, storage: Mapping[str, Storage | Chunking]
) -> FrozenMap[str, Storage]:
    """Return the storage of inputs and outputs; chunks that were left open are chosen."""
    check_stored(plan, storage)
    return FrozenMap(
        (name, one if isinstance(one, Storage) else choose_storage(plan, name, one))
        for name, one in storage.items()
    )


def check_stored(plan: Plan, storage: Mapping[str, Storage | Chunking]) -> None:
    """Refuse storage that does not fit a graph, and values that a plan has in parts."""
    check_storage(plan.graph, storage)
    inputs = {value.name for value in plan.graph.inputs}
    for name in storage:
        is_input = name in inputs
        spec = plan.specs[name] if is_input else plan.outputs[plan.graph.outputs.index(name)]
        _check_whole(spec, name)
