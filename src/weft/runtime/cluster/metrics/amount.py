"""`Amount`: the work of a task by its plan, and its predicted seconds on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from weft.lang import Block, Graph
from weft.lang.dtype import itemsize
from weft.lang.fusion import work_in
from weft.layout import DeviceMesh
from weft.plan import Machine
from weft.plan.machine import GRID
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.resharding.pricing import seconds_of_messages
from weft.program import Program
from weft.space import ZRange
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.runtime.cluster.tasks import Task


class Amount(NamedTuple):
    """Operations, and the bytes of their operands and results.

    >>> Amount(6, "float32", 40) + Amount(2, "float64", 8)
    Amount(flops=8, dtype='float64', touched=48)
    """

    flops: int = 0
    dtype: str = ""
    """The widest of the operands; empty if nothing is computed."""
    touched: int = 0
    """Bytes of operands and results."""

    def __add__(self, other: object) -> Amount:
        if not isinstance(other, Amount):
            return NotImplemented
        wide = max((self.dtype, other.dtype), key=lambda dtype: itemsize(dtype) if dtype else 0)
        return Amount(self.flops + other.flops, wide, self.touched + other.touched)


def amount_of(program: Program, task: Task) -> Amount:
    """Return the work of a task."""
    graphs = program.graphs
    amounts = (_amount(graphs[step.body], step.application, step.box) for step in task.steps)
    return sum(amounts, Amount())


def _amount(graph: Graph, number: int, box: ZRange) -> Amount:
    application, line = graph.applications[number], graph.signatures[number]
    operator = graph.operators.find(application.operator)
    block = Block(None, line, application.attributes, box)
    names = (*application.operands, *application.results)
    widths = [itemsize(graph.values[name].dtype) for name in names]
    boxes = (*block.operands, *block.results)
    dtypes = [graph.values[name].dtype for name in application.operands or names]
    return Amount(
        operator.count_flops(line, box, application.attributes),
        max(dtypes, key=itemsize, default=""),
        sum(one.size * width for one, width in zip(boxes, widths)),
    )


def work_of(program: Program, task: Task) -> Mapping[str, tuple[int, int]]:
    """Return the operations of a task, and the bytes of its operands and results, by operator."""
    found: dict[str, tuple[int, int]] = {}
    for step in task.steps:
        graph: Graph = program.graphs[step.body]
        application, line = graph.applications[step.application], graph.signatures[step.application]
        work = work_in(
            graph.operators, application.operator, line, step.box, application.attributes
        )
        touched = _amount(graph, step.application, step.box).touched // len(work)
        for name, flops in work.items():
            old = found.get(name, (0, 0))
            found[name] = old[0] + flops, old[1] + touched
    return FrozenMap(found.items())


def seconds_by(
    machine: Machine,
    mesh: DeviceMesh,
    operator: str,
    amount: Amount,
    moved: Mapping[int, int],
    cell: int,
    work: Mapping[str, tuple[int, int]] | None = None,
) -> float:
    """Return the predicted seconds of a task: receiving from other cells, then computing.

    Computing takes what `Machine.seconds` says, on a cell of the speed of that one: of the task's
    operators together if they were measured together, otherwise of each as `work` has it.

    >>> amount, machine = Amount(2_000, "float32", 64), Machine(flops={"float32": 1e6})
    >>> seconds_by(machine, DeviceMesh("m", (2,), ("x",)), "matmul", amount, {1: 1_000_000}, 0)
    0.003
    """
    messages = [(sender, cell, size) for sender, size in moved.items()]
    dtypes = [amount.dtype] if amount.dtype else []
    flops = {operator: amount.flops}
    if work and operator not in machine.operations.get(GRID, ()):
        flops = {name: count for name, (count, _) in work.items()}
    computing = machine.seconds(flops, dtypes, amount.touched)
    speeds = machine.speeds(mesh)
    if speeds is not None:
        computing /= speeds[ranks_by_device(mesh)[cell]]
    return seconds_of_messages(messages, 1, mesh, machine) + computing
