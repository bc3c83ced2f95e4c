"""`run_on`: run a plan as tasks on an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from weft.errors import LayoutError
from weft.lang.dtype import dtype_name
from weft.plan import Plan
from weft.runtime.arrays import Array
from weft.runtime.cluster.dispatch import Dispatcher, MemoryLimits
from weft.runtime.cluster.engines.engine import OWN_MEMORY, Engine, Session
from weft.runtime.cluster.engines.threads import Threads
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.metrics.record import RunRecord, deliver, is_recorded
from weft.runtime.cluster.storage import StorageBindings
from weft.runtime.cluster.task_graph import TaskGraph
from weft.runtime.cluster.unroll import Unroller
from weft.runtime.cluster.worker import WorkerContext
from weft.runtime.communication_log import Communication, Movement, active
from weft.runtime.execute import check_array, check_inputs
from weft.runtime.tensor import Tensor


class Progress(NamedTuple):
    """The progress of a run."""

    done: int
    """Tasks that have run or need not run again."""
    total: int


Watch = Callable[[Progress], None]


def run_on(
    engine: Engine,
    plan: Plan,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any] | None = None,
    *,
    memory: int | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    before: Callable[[], None] | None = None,
    verify: bool = False,
) -> tuple[Any, ...]:
    """Run the tasks of a plan on an engine; return the outputs of the plan.

    An input is a whole array, or one in storage. Outputs that are to be stored are returned as
    arrays in storage, the others as tensors. With `resume`, complete shards are kept. An output is
    locked for the whole run, and created or replaced when the engine has started: a run that is
    refused earlier changes nothing. `before` is called just before that. With `verify`, the program
    and the tasks that are about to run are proved to compute the graph first.
    """
    check_inputs(plan.graph, inputs)
    if memory is None and engine.memory is not None:
        memory = max(1, engine.memory - OWN_MEMORY)
    with ExitStack() as locks:
        bindings = StorageBindings.of(
            plan, inputs, outputs or {}, locks=locks, resume=resume, memory=memory
        )
        return _run(
            *(engine, bindings, inputs, outputs or {}, memory, resume, watch, before, verify)
        )


def _run(
    engine: Engine,
    bindings: StorageBindings,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    memory: int | None,
    resume: bool,
    watch: Watch | None,
    before: Callable[[], None] | None,
    verify: bool,
) -> tuple[Any, ...]:
    """Run a plan whose outputs are locked."""
    plan = bindings.plan
    arrays = {
        value.name: _array(plan, value.name, inputs[value.name])
        for value in plan.graph.inputs
        if value.name not in bindings.inputs
    }
    graph = bindings.task_graph(workers := engine.workers, memory)
    if verify:
        graph.program.verify()
        graph.verify()
    allow = partial(_allow, active(), ", ".join(plan.graph.outputs))
    if not graph.program.count.assumed:
        allow(sum(graph.received))
    begin, clock = time.time(), time.perf_counter()
    session = engine.start(WorkerContext.of(plan, bindings.inputs, bindings.outputs))
    dispatcher = _dispatcher(session, workers, graph, memory, watch)
    try:
        if before is not None:
            before()
        bindings.create_outputs(outputs)
        if watch is not None:
            watch(Progress(0, len(graph.tasks)))
        wanted = graph.remaining(bindings.is_done) if resume else None
        shards = Unroller(dispatcher, graph, arrays, allow).run(wanted)
        seconds, reports = time.perf_counter() - clock, list(session.reports())
    finally:
        dispatcher.close()
        session.close()
    bindings.finish()
    ran = replace(graph, tasks=tuple(dispatcher.tasks))
    _log_movements(ran, reports)
    if is_recorded():
        record = RunRecord.of(
            ran,
            reports,
            engine=type(engine).__name__,
            workers=workers,
            begin=begin,
            seconds=seconds,
            bound=_memory_bound(engine, dispatcher),
            stolen=dispatcher.stolen,
            adaptations=dispatcher.adaptations,
        )
        deliver(record)
    return tuple(
        bindings.outputs[name].reader()
        if name in bindings.outputs
        else Tensor.of_shards(own, spec, plan.graph.values[name].shape, name)
        for name, own, spec in zip(plan.graph.outputs, shards, plan.outputs)
    )


def _memory_bound(engine: Engine, dispatcher: Dispatcher) -> int | None:
    """Return the most bytes of a worker; None if it has no process of its own."""
    if isinstance(engine, Threads):
        return None
    bound = dispatcher.limits.bound(dispatcher)
    return None if bound is None else OWN_MEMORY + bound


def _allow(logs: Sequence[Communication], outputs: str, received: int) -> None:
    """Refuse a run that moves more than its budget allows."""
    for log in logs:
        log.allow(received, "the cluster", outputs)


def _dispatcher(
    session: Session, workers: int, graph: TaskGraph, memory: int | None, watch: Watch | None
) -> Dispatcher:
    """Return what gives the tasks of a graph to workers; cells begin with their neighbours."""
    homes = [graph.worker(cell, workers) for cell in graph.ranks]
    limits = MemoryLimits(graph, workers, memory)

    def progress(done: int) -> None:
        if watch is not None:
            watch(Progress(done, max(done, len(dispatcher.tasks), len(graph.tasks))))

    dispatcher = Dispatcher(
        session, workers, homes, graph.ranks.__getitem__, limits, graph.window, progress
    )
    return dispatcher


def _array(plan: Plan, name: str, given: Any) -> Array:
    value, array = plan.graph.values[name], np.asarray(given)
    check_array(value, array.shape, dtype_name(array.dtype))
    if plan.specs[name].partial:
        raise LayoutError(f"a whole array is not partial: input {value} is {plan.specs[name]}")
    return array


def _log_movements(graph: TaskGraph, reports: list[Report]) -> None:
    """Log what moved, for each operator and value in the order of the plan."""
    sent: dict[tuple[str, str], list[int]] = {}
    received: dict[tuple[str, str], list[int]] = {}
    if not active():
        return
    for report in {report.task: report for report in sorted(reports)}.values():
        task = graph.tasks[report.task]
        for cell, size in report.received.items():
            what = (task.operator, task.values)
            empty = [0] * graph.plan.mesh.size
            sent.setdefault(what, list(empty))[graph.ranks[cell]] += size
            received.setdefault(what, empty)[graph.ranks[task.cell]] += size
    for what, counts in received.items():
        movement = Movement(*what, "boxes", tuple(sent[what]), tuple(counts))
        for log in active():
            log.movements.append(movement)
