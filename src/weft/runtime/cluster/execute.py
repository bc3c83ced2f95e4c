"""`run_on`: a plan run as tasks on an engine, checked before and counted after."""

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
from weft.runtime.cluster.engines.engine import Engine, Handle, Session
from weft.runtime.cluster.engines.limits import OWN_MEMORY
from weft.runtime.cluster.engines.local import Threads
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.metrics.record import RunRecord, deliver, is_recorded
from weft.runtime.cluster.perform import Blocks, Program
from weft.runtime.cluster.places import Places
from weft.runtime.cluster.resume import remaining
from weft.runtime.cluster.weaving.embedding import Embedding
from weft.runtime.cluster.weaving.source import Leaf
from weft.runtime.cluster.weaving.task import Task
from weft.runtime.communication_log import Movement, active
from weft.runtime.execute import check_array, check_inputs
from weft.runtime.tensor import Tensor

WATCHED = 16
"""Of a run that is watched so many tasks of each worker are on their way at once."""


class Progress(NamedTuple):
    """How far a run is."""

    done: int
    """Tasks that have run, or need not; before the first one runs, those that need not."""
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
    """Return the outputs of a plan whose tasks an engine runs.

    An input is a whole array, or one in storage. Outputs that are to be stored are given back as
    arrays in storage, the others as tensors. With `resume` shards that are there stay. An output
    is locked for the whole run, and created, or replaced, when the engine has started: a run that
    is refused before leaves what was there. `before` is called just before that.
    """
    check_inputs(plan.graph, inputs)
    if memory is None and engine.memory is not None:
        memory = max(1, engine.memory - OWN_MEMORY)
    with ExitStack() as locks:
        places = Places.of(plan, inputs, outputs or {}, locks=locks, resume=resume, memory=memory)
        return _run(engine, places, inputs, outputs or {}, memory, resume, watch, before)


def _run(
    engine: Engine,
    places: Places,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    memory: int | None,
    resume: bool,
    watch: Watch | None,
    before: Callable[[], None] | None,
) -> tuple[Any, ...]:
    """Run a plan whose outputs are locked."""
    plan = places.plan
    arrays = {
        value.name: _array(plan, value.name, inputs[value.name])
        for value in plan.graph.inputs
        if value.name not in places.inputs
    }
    embedding = places.embedding(workers := engine.workers, memory)
    for ledger in active():
        ledger.allow(sum(embedding.received), "the grid", ", ".join(plan.graph.outputs))
    begin, clock = time.time(), time.perf_counter()
    session = engine.start(Program.of(plan, places.inputs, places.outputs))
    try:
        if before is not None:
            before()
        places.begin(outputs)
        course = _Course(session, workers, embedding, arrays, watch)
        made = course.run(remaining(embedding, places.is_done) if resume else None)
        seconds, reports = time.perf_counter() - clock, session.reports()
    finally:
        session.close()
    places.settle()
    _note(embedding, reports)
    if is_recorded():
        record = RunRecord.of(
            embedding,
            reports,
            engine=type(engine).__name__,
            workers=workers,
            begin=begin,
            seconds=seconds,
            bound=_bound(engine, embedding, workers),
        )
        deliver(record)
    return tuple(
        places.outputs[name].reader()
        if name in places.outputs
        else Tensor.of_shards(shards, spec, plan.graph.values[name].shape, name)
        for name, shards, spec in zip(plan.graph.outputs, made, plan.outputs)
    )


def _bound(engine: Engine, embedding: Embedding, workers: int) -> int | None:
    """The most bytes of a worker, if it has a process of its own."""
    if isinstance(engine, Threads):
        return None
    return OWN_MEMORY + max(embedding.peak(workers), default=0)


def _array(plan: Plan, name: str, given: Any) -> Array:
    value, array = plan.graph.values[name], np.asarray(given)
    check_array(value, array.shape, dtype_name(array.dtype))
    if plan.specs[name].partial:
        raise LayoutError(f"a whole array is not partial: input {value} is {plan.specs[name]}")
    return array


class _Course:
    """Hands tasks to an engine in their order, no more at once than memory allows."""

    def __init__(
        self,
        session: Session,
        workers: int,
        embedding: Embedding,
        inputs: Mapping[str, Array],
        watch: Watch | None,
    ) -> None:
        self.session, self.workers, self.embedding = session, workers, embedding
        self.inputs, self.watch = inputs, watch
        self.window = embedding.window or (WATCHED * workers if watch else None)
        self.handles: dict[int, Handle] = {}
        self.going: deque[int] = deque()
        self.ended: set[int] = set()
        self.done = 0

    def run(self, wanted: frozenset[int] | None) -> list[list[Array]]:
        """The shards of the outputs; everything else is let go with its last reader."""
        tasks = self.embedding.tasks
        self._tell(0 if wanted is None else len(tasks) - len(wanted))
        for task in tasks:
            if wanted is not None and task.number not in wanted:
                continue
            self._submit(task)
            if self.window is not None and len(self.going) >= self.window:
                self._wait()
        while self.window is not None and self.going:
            self._wait()
        self.session.wait(list(self.handles.values()))
        return self._gather()

    def _submit(self, task: Task) -> None:
        tasks, handles = self.embedding.tasks, self.handles
        reads = {number: (tasks[number].cell, handles[number]) for number in task.reads}
        worker = self.embedding.worker(task.cell, self.workers)
        handle = self.session.submit(task, worker, reads, self._given(task))
        self.handles[task.number] = handle
        self.ended.update(n for n in self.embedding.ends[task.number] if n in handles)
        if self.window is None:
            self._release(self.ended)
        else:
            self.going.append(task.number)

    def _wait(self) -> None:
        """Wait for the task that was handed over first, and let go of what has had its day."""
        number = self.going.popleft()
        self.session.wait([self.handles[number]])
        self._release({n for n in self.ended if n <= number})
        self._tell()

    def _release(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            self.session.release(self.handles.pop(number))
        self.ended -= numbers

    def _tell(self, more: int = 1) -> None:
        self.done += more
        if self.watch is not None:
            self.watch(Progress(self.done, len(self.embedding.tasks)))

    def _given(self, task: Task) -> Array | None:
        """The input that a reader reads, unless it is in storage."""
        for made in task.made:
            if isinstance(made.source, Leaf) and made.source.name in self.inputs:
                return self.inputs[made.source.name]
        return None

    def _gather(self) -> list[list[Array]]:
        outputs = self.embedding.outputs
        wanted = list(dict.fromkeys(read.task for blocks in outputs for read in blocks))
        found = self.session.gather([self.handles[number] for number in wanted])
        made: dict[int, Blocks] = dict(zip(wanted, found))
        return [[made[read.task][read.place] for read in blocks] for blocks in outputs]


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
