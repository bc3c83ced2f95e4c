"""`run_on`: a plan run as tasks on an engine, checked before and counted after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import LayoutError
from weft.lang.trace import dtype_name
from weft.plan import Plan
from weft.run.arrays import Array
from weft.run.execute import check_array, check_inputs
from weft.run.grid.embedding import Embedding
from weft.run.grid.engine import Engine, Handle, Session
from weft.run.grid.perform import Blocks, Program
from weft.run.grid.report import Report
from weft.run.grid.source import Leaf
from weft.run.grid.task import Task
from weft.run.ledger import Movement, active
from weft.run.tensor import Tensor


def run_on(engine: Engine, plan: Plan, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs of a plan whose tasks an engine runs; the inputs are whole arrays."""
    check_inputs(plan.graph, inputs)
    arrays = {
        value.name: _array(plan, value.name, inputs[value.name]) for value in plan.graph.inputs
    }
    embedding = Embedding.of(plan)
    for ledger in active():
        ledger.allow(sum(embedding.received), "the grid", ", ".join(plan.graph.outputs))
    session = engine.start(Program.of(plan))
    try:
        made = _run(session, engine.workers, embedding, arrays)
        _note(embedding, session.reports())
    finally:
        session.close()
    return tuple(
        Tensor.of_shards(shards, spec, plan.graph.values[name].shape, name)
        for name, shards, spec in zip(plan.graph.outputs, made, plan.outputs)
    )


def _array(plan: Plan, name: str, given: Any) -> Array:
    value, array = plan.graph.values[name], np.asarray(given)
    check_array(value, array.shape, dtype_name(array.dtype))
    if plan.specs[name].partial:
        raise LayoutError(f"a whole array is not partial: input {value} is {plan.specs[name]}")
    return array


def _run(
    session: Session, workers: int, embedding: Embedding, inputs: Mapping[str, Array]
) -> list[list[Array]]:
    """The shards of the outputs; everything else is let go with its last reader."""
    handles: dict[int, Handle] = {}
    for task in embedding.tasks:
        reads = {n: (embedding.tasks[n].cell, handles[n]) for n in task.reads}
        worker = embedding.worker(task.cell, workers)
        handles[task.number] = session.submit(task, worker, reads, _given(task, inputs))
        for number in embedding.ends[task.number]:
            session.release(handles.pop(number))
    session.wait(list(handles.values()))
    wanted = list(dict.fromkeys(read.task for blocks in embedding.outputs for read in blocks))
    made: dict[int, Blocks] = dict(zip(wanted, session.gather([handles[n] for n in wanted])))
    return [[made[read.task][read.place] for read in blocks] for blocks in embedding.outputs]


def _given(task: Task, inputs: Mapping[str, Array]) -> Array | None:
    """The input that a reader reads."""
    for made in task.made:
        if isinstance(made.source, Leaf) and made.source.name in inputs:
            return inputs[made.source.name]
    return None


def _note(embedding: Embedding, reports: list[Report]) -> None:
    """Write down what moved, for each operator and value in the order of the plan."""
    sent: dict[tuple[str, str], list[int]] = {}
    received: dict[tuple[str, str], list[int]] = {}
    if not active():
        return
    for report in {report.task: report for report in sorted(reports)}.values():
        task = embedding.tasks[report.task]
        for cell, size in report.received.items():
            what = (task.operator, task.values)
            empty = [0] * embedding.plan.mesh.size
            sent.setdefault(what, list(empty))[embedding.ranks[cell]] += size
            received.setdefault(what, empty)[embedding.ranks[task.cell]] += size
    for what, counts in received.items():
        movement = Movement(*what, "boxes", tuple(sent[what]), tuple(counts))
        for ledger in active():
            ledger.movements.append(movement)
