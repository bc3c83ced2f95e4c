"""`run_on`: run a plan as tasks on an engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from weft.errors import LayoutError
from weft.lang.dtype import dtype_name
from weft.plan import Plan
from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.engine import OWN_MEMORY, Engine, Handle, Session
from weft.runtime.cluster.engines.threads import Threads
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.metrics.record import RunRecord, deliver, is_recorded
from weft.runtime.cluster.storage import StorageBindings
from weft.runtime.cluster.task_graph import TaskGraph
from weft.runtime.cluster.tasks import InputBox, Task
from weft.runtime.cluster.worker import Blocks, WorkerContext
from weft.runtime.communication_log import Movement, active
from weft.runtime.execute import check_array, check_inputs
from weft.runtime.tensor import Tensor

WATCHED_TASKS = 16
"""The tasks of each worker in flight while the progress of a run is reported."""


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
) -> tuple[Any, ...]:
    """Run the tasks of a plan on an engine; return the outputs of the plan.

    An input is a whole array, or one in storage. Outputs that are to be stored are returned as
    arrays in storage, the others as tensors. With `resume`, complete shards are kept. An output is
    locked for the whole run, and created or replaced when the engine has started: a run that is
    refused earlier changes nothing. `before` is called just before that.
    """
    check_inputs(plan.graph, inputs)
    if memory is None and engine.memory is not None:
        memory = max(1, engine.memory - OWN_MEMORY)
    with ExitStack() as locks:
        bindings = StorageBindings.of(
            plan, inputs, outputs or {}, locks=locks, resume=resume, memory=memory
        )
        return _run(engine, bindings, inputs, outputs or {}, memory, resume, watch, before)


def _run(
    engine: Engine,
    bindings: StorageBindings,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    memory: int | None,
    resume: bool,
    watch: Watch | None,
    before: Callable[[], None] | None,
) -> tuple[Any, ...]:
    """Run a plan whose outputs are locked."""
    plan = bindings.plan
    arrays = {
        value.name: _array(plan, value.name, inputs[value.name])
        for value in plan.graph.inputs
        if value.name not in bindings.inputs
    }
    graph = bindings.task_graph(workers := engine.workers, memory)
    for log in active():
        log.allow(sum(graph.received), "the cluster", ", ".join(plan.graph.outputs))
    begin, clock = time.time(), time.perf_counter()
    session = engine.start(WorkerContext.of(plan, bindings.inputs, bindings.outputs))
    try:
        if before is not None:
            before()
        bindings.create_outputs(outputs)
        submission = _Submission(session, workers, graph, arrays, watch)
        shards = submission.run(graph.remaining(bindings.is_done) if resume else None)
        seconds, reports = time.perf_counter() - clock, session.reports()
    finally:
        session.close()
    bindings.finish()
    _log_movements(graph, reports)
    if is_recorded():
        record = RunRecord.of(
            graph,
            reports,
            engine=type(engine).__name__,
            workers=workers,
            begin=begin,
            seconds=seconds,
            bound=_memory_bound(engine, graph, workers),
        )
        deliver(record)
    return tuple(
        bindings.outputs[name].reader()
        if name in bindings.outputs
        else Tensor.of_shards(own, spec, plan.graph.values[name].shape, name)
        for name, own, spec in zip(plan.graph.outputs, shards, plan.outputs)
    )


def _memory_bound(engine: Engine, graph: TaskGraph, workers: int) -> int | None:
    """Return the most bytes of a worker; None if it has no process of its own."""
    if isinstance(engine, Threads):
        return None
    return OWN_MEMORY + max(graph.peak(workers), default=0)


def _array(plan: Plan, name: str, given: Any) -> Array:
    value, array = plan.graph.values[name], np.asarray(given)
    check_array(value, array.shape, dtype_name(array.dtype))
    if plan.specs[name].partial:
        raise LayoutError(f"a whole array is not partial: input {value} is {plan.specs[name]}")
    return array


class _Submission:
    """Submits tasks to an engine in order, no more at once than memory allows."""

    def __init__(
        self,
        session: Session,
        workers: int,
        graph: TaskGraph,
        inputs: Mapping[str, Array],
        watch: Watch | None,
    ) -> None:
        self.session, self.workers, self.graph = session, workers, graph
        self.inputs, self.watch = inputs, watch
        self.window = graph.window or (WATCHED_TASKS * workers if watch else None)
        self.handles: dict[int, Handle] = {}
        self.in_flight: deque[int] = deque()
        self.ended: set[int] = set()
        self.done = 0

    def run(self, wanted: frozenset[int] | None) -> list[list[Array]]:
        """Return the shards of the outputs; other blocks are released with their last reader."""
        tasks = self.graph.tasks
        self._report(0 if wanted is None else len(tasks) - len(wanted))
        for task in tasks:
            if wanted is not None and task.number not in wanted:
                continue
            self._submit(task)
            if self.window is not None and len(self.in_flight) >= self.window:
                self._wait()
        while self.window is not None and self.in_flight:
            self._wait()
        self.session.wait(list(self.handles.values()))
        return self._gather()

    def _submit(self, task: Task) -> None:
        tasks, handles = self.graph.tasks, self.handles
        reads = {number: (tasks[number].cell, handles[number]) for number in task.needs}
        worker = self.graph.worker(task.cell, self.workers)
        handle = self.session.submit(task, worker, reads, self._given(task))
        self.handles[task.number] = handle
        self.ended.update(n for n in self.graph.ends[task.number] if n in handles)
        if self.window is None:
            self._release(self.ended)
        else:
            self.in_flight.append(task.number)

    def _wait(self) -> None:
        """Wait for the task that was submitted first; release what nobody needs any more."""
        number = self.in_flight.popleft()
        self.session.wait([self.handles[number]])
        self._release({n for n in self.ended if n <= number})
        self._report()

    def _release(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            self.session.release(self.handles.pop(number))
        self.ended -= numbers

    def _report(self, more: int = 1) -> None:
        self.done += more
        if self.watch is not None:
            self.watch(Progress(self.done, len(self.graph.tasks)))

    def _given(self, task: Task) -> Array | None:
        """Return the input in memory that a task reads, if any."""
        for block in task.blocks:
            if isinstance(block.array, InputBox) and block.array.name in self.inputs:
                return self.inputs[block.array.name]
        return None

    def _gather(self) -> list[list[Array]]:
        outputs = self.graph.outputs
        wanted = list(dict.fromkeys(block.task for blocks in outputs for block in blocks))
        gathered = self.session.gather([self.handles[number] for number in wanted])
        found: dict[int, Blocks] = dict(zip(wanted, gathered))
        return [[found[block.task][block.place] for block in blocks] for blocks in outputs]


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
