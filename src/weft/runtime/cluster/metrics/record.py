"""`RunRecord`: the measurements of a run on a cluster, task by task, beside the predictions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.draw import clip
from weft.draw.drawing import escape
from weft.layout import DeviceMesh
from weft.plan import Machine, estimate
from weft.runtime.cluster.metrics import record_json, telemetry
from weft.runtime.cluster.metrics.amount import amount_of, seconds_by, work_of
from weft.runtime.cluster.metrics.meter import Report
from weft.space import ZRange
from weft.values import FrozenMap, counted, scaled

if TYPE_CHECKING:
    from weft.runtime.cluster.task_graph import TaskGraph


class TaskRecord(NamedTuple):
    """One task: what it is, the plan's predictions, and the measurements."""

    number: int
    kind: str
    operator: str
    values: str
    """The values of which it computes blocks."""
    box: ZRange
    cell: int
    worker: str
    begin: float
    """In seconds since 1970."""
    seconds: float
    cpu: float
    """CPU seconds."""
    received: Mapping[int, int]
    """Bytes received from other cells, by cell."""
    sent: int = 0
    """Bytes that tasks of other cells received from it."""
    read: int = 0
    """Bytes read from storage."""
    written: int = 0
    """Bytes written to storage."""
    peak: int = 0
    """Peak memory of its process in bytes; 0 if unknown."""
    is_bound: bool = False
    """Whether `peak` is the peak since the process started: an upper bound."""
    receiving: float = 0.0
    """Seconds spent waiting for data from other cells."""
    reading: float = 0.0
    """Seconds spent reading from storage."""
    writing: float = 0.0
    """Seconds spent writing to storage."""
    moved: int = 0
    """Predicted bytes received."""
    flops: int = 0
    """Predicted operations."""
    dtype: str = ""
    """The data type it computes in; empty if it computes nothing."""
    touched: int = 0
    """Predicted bytes of operands and results."""
    predicted: float | None = None
    """Predicted seconds, if the plan has a machine."""
    work: Mapping[str, tuple[int, int]] = FrozenMap(())
    """Predicted operations and bytes of each operator, of a task that runs several."""
    is_stolen: bool = False
    """Whether another worker ran it than the one that had its cell."""

    @property
    def end(self) -> float:
        """When it ended."""
        return self.begin + self.seconds

    @property
    def arrived(self) -> int:
        """Bytes received from all cells."""
        return sum(self.received.values())

    @property
    def computing(self) -> float:
        """Seconds not spent receiving, reading or writing."""
        return max(0.0, self.seconds - self.receiving - self.reading - self.writing)


class Adaptation(NamedTuple):
    """A decision that a run took because of what it measured."""

    at: float
    """In seconds since 1970."""
    kind: str
    """`rebalance`: cells were divided anew; `repeat`: a task was given to a second worker."""
    why: str


class Total(NamedTuple):
    """Sums over some tasks; `peak` is their maximum."""

    tasks: int
    stolen: int
    """Those that were taken from another worker."""
    seconds: float
    cpu: float
    predicted: float | None
    received: int
    sent: int
    read: int
    written: int
    peak: int

    @classmethod
    def of(cls, tasks: Iterable[TaskRecord]) -> Total:
        """Return the sums over tasks."""
        some = list(tasks)
        predicted = [task.predicted for task in some if task.predicted is not None]
        sums: dict[str, Any] = {name: sum(getattr(task, name) for task in some) for name in _SUMMED}
        received, stolen = sum(task.arrived for task in some), sum(task.is_stolen for task in some)
        return cls(
            tasks=len(some),
            stolen=stolen,
            predicted=sum(predicted) if predicted else None,
            received=received,
            peak=max((task.peak for task in some), default=0),
            **sums,
        )


_SUMMED = ("seconds", "cpu", "sent", "read", "written")


@dataclass(frozen=True)
class RunRecord:
    """The measurements of one run beside the predictions; `str` is a table.

    >>> task = TaskRecord(0, "compute", "add", "y", ZRange((0,), (4,)), 0, "host:7", 100.0, 2.0,
    ...                   1.5, {1: 16}, moved=16, flops=4)
    >>> record = RunRecord("threads", 2, DeviceMesh("m", (2,), ("x",)), 100.0, 3.0, (task,))
    >>> record.busy, record.overhead, record.is_exact
    (2.0, 4.0, True)
    >>> RunRecord.from_json(record.to_json()) == record
    True
    """

    engine: str
    workers: int
    mesh: DeviceMesh
    begin: float
    """In seconds since 1970."""
    seconds: float
    """From the beginning to the end of the run."""
    tasks: tuple[TaskRecord, ...]
    """The last attempt at each task, in program order."""
    again: tuple[TaskRecord, ...] = ()
    """Other attempts: a worker died with the result, or was late."""
    missing: int = 0
    """Tasks without a report: they ran in an earlier run, or their worker died."""
    bound: int | None = None
    """Predicted peak memory of a worker in bytes, including the interpreter."""
    predicted: float | None = None
    """Predicted seconds on the plan's machine, if it has one, with a processor for each cell."""
    machine: Machine | None = None
    adaptations: tuple[Adaptation, ...] = ()
    """What was decided during the run, and why."""

    @classmethod
    def of(
        cls,
        graph: TaskGraph,
        reports: Iterable[Report],
        *,
        engine: str,
        workers: int,
        begin: float,
        seconds: float,
        bound: int | None = None,
        stolen: Collection[int] = (),
        adaptations: Iterable[Adaptation] = (),
    ) -> RunRecord:
        """Return the record of a run from the reports of its workers.

        `graph` has all tasks of the run, those of loops and branches as often as they ran.
        """
        plan = graph.plan
        attempts = sorted(reports, key=lambda report: (report.task, report.begin))
        last = {report.task: report for report in attempts}
        sent = _sent(graph, last.values())
        return cls(
            engine,
            workers,
            plan.mesh,
            begin,
            seconds,
            tuple(
                _record(graph, one, sent.get(one.task, 0), one.task in stolen)
                for one in last.values()
            ),
            tuple(_record(graph, one) for one in attempts if one is not last[one.task]),
            len(graph.tasks) - len(last),
            bound,
            None if plan.machine is None else estimate(plan, storage=graph.program.storage).seconds,
            plan.machine,
            tuple(adaptations),
        )

    @cached_property
    def total(self) -> Total:
        """Sums over all tasks, each counted once."""
        return Total.of(self.tasks)

    @cached_property
    def by_operator(self) -> dict[str, Total]:
        """Sums by operator, in program order."""
        return _grouped(self.tasks, lambda task: task.operator)

    @cached_property
    def by_worker(self) -> dict[str, Total]:
        """Sums by worker, sorted by name; numbers in names sort as numbers."""
        totals = _grouped(self.tasks, lambda task: task.worker)
        return dict(sorted(totals.items(), key=lambda item: _natural_key(item[0])))

    @property
    def busy(self) -> float:
        """Seconds that workers spent on tasks."""
        return self.total.seconds

    @property
    def overhead(self) -> float:
        """Seconds that workers did not spend on tasks: idle, moving data, or lost work."""
        return self.seconds * self.workers - self.busy

    @property
    def is_exact(self) -> bool:
        """Whether every task received exactly the predicted bytes."""
        return all(task.arrived == task.moved for task in self.tasks)

    @property
    def headline(self) -> str:
        """The run in one line."""
        return (
            f"{counted(self.total.tasks, 'task')} on {self.engine}, "
            f"{counted(self.workers, 'worker')}: {scaled(self.seconds, 's')}, "
            f"busy {scaled(self.busy, 's')}, overhead {scaled(self.overhead, 's')}"
        )

    @property
    def remarks(self) -> list[str]:
        """Sentences that compare predictions with measurements and name what went wrong."""
        return list(_remarks(self))

    def to_json(self, indent: int | None = 1) -> str:
        """Return the record as JSON; `from_json` reads it."""
        return record_json.write_record(self, indent)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Read a record from JSON; every field is checked."""
        return cls(**record_json.read_record(text))

    def to_trace(self) -> str:
        """Return the tasks as Chrome trace JSON, for chrome://tracing and https://ui.perfetto.dev."""
        return record_json.write_trace(self)

    def __str__(self) -> str:
        return _table(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


# -- building a record ----------------------------------------------------------------------------


def _record(graph: TaskGraph, report: Report, sent: int = 0, is_stolen: bool = False) -> TaskRecord:
    plan, program, task = graph.plan, graph.program, graph.tasks[report.task]
    amount, moved, work = amount_of(program, task), graph.moved(task), work_of(program, task)
    predicted = None
    if plan.machine is not None:
        predicted = seconds_by(
            plan.machine, plan.mesh, task.operator, amount, moved, task.cell, work
        )
    fields: dict[str, Any] = report._asdict() | amount._asdict()
    fields |= {name: getattr(task, name) for name in _OF_TASK}
    fields |= {"received": FrozenMap(report.received.items()), "moved": sum(moved.values())}
    fields |= {"sent": sent, "predicted": predicted, "is_stolen": is_stolen}
    fields["work"] = work if len(work) > 1 else FrozenMap(())
    del fields["task"]
    return TaskRecord(**fields)


_OF_TASK = ("number", "kind", "operator", "values", "box", "cell")


def _sent(graph: TaskGraph, reports: Iterable[Report]) -> dict[int, int]:
    """Return the bytes each task sent: its blocks that tasks of other cells have read."""
    sent = Counter[int]()
    for report in reports:
        task = graph.tasks[report.task]
        for read in task.block_uses() if report.received else ():
            maker = graph.tasks[read.task]
            if maker.cell != task.cell:
                sent[read.task] += maker.blocks[read.place].nbytes
    return sent


def _grouped(tasks: Iterable[TaskRecord], key: Callable[[TaskRecord], str]) -> dict[str, Total]:
    groups: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        groups.setdefault(key(task), []).append(task)
    return {name: Total.of(group) for name, group in groups.items()}


def _natural_key(name: str) -> list[tuple[str, int]]:
    pairs = re.findall(r"([^0-9]*)([0-9]*)", name)
    return [(text, int(digits[:18] or 0)) for text, digits in pairs]


# -- the table ------------------------------------------------------------------------------------

MOST_WORKERS = 32
"""Workers that get a row in the table."""
NAME_WIDTH = 40
_HEADINGS = (
    *("tasks", "stolen", "seconds", "cpu", "predicted"),
    *("received", "sent", "read", "written", "peak"),
)
MOST_ADAPTATIONS = 8
"""Decisions that the table shows."""

Row = tuple[str, ...]


def _table(record: RunRecord) -> str:
    """Return rows for operators in program order, their total, and workers; then the remarks."""
    workers = list(record.by_worker.items())
    rows: list[Row] = [("operator", *_HEADINGS)]
    rows += [_row(name, total) for name, total in record.by_operator.items()]
    rows += [_row("all", record.total), ("worker",) + ("",) * len(_HEADINGS)]
    rows += [_row(name or "?", total) for name, total in workers[:MOST_WORKERS]]
    lines = _aligned(rows)
    if len(workers) > MOST_WORKERS:
        lines.append(f"… {len(workers) - MOST_WORKERS} more workers")
    return "\n".join([record.headline, *lines, *record.remarks])


def _row(name: str, total: Total) -> Row:
    sizes = (total.received, total.sent, total.read, total.written, total.peak)
    return (
        clip(name, NAME_WIDTH),
        str(total.tasks),
        str(total.stolen or ""),
        scaled(total.seconds, "s"),
        scaled(total.cpu, "s"),
        "" if total.predicted is None else scaled(total.predicted, "s"),
        *(scaled(size, "B") if size else "" for size in sizes),
    )


def _aligned(rows: Sequence[Row]) -> list[str]:
    """Return the rows as lines without empty columns; the first column is left-aligned."""
    columns = [column for column in zip(*rows) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            f"{text:{width}}" if place == 0 else f"{text:>{width}}"
            for place, (text, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in zip(*columns)
    ]


def _remarks(record: RunRecord) -> Iterator[str]:
    total, moved = record.total, sum(task.moved for task in record.tasks)
    comparison = "as predicted" if record.is_exact else f"{moved} B predicted"
    yield f"received {total.received} B, {comparison}"
    if record.predicted is not None:
        yield f"predicted {scaled(record.predicted, 's')} with a processor for each cell"
    if record.bound is not None:
        bound = scaled(record.bound, "B")
        yield f"peak {scaled(total.peak, 'B')} of a worker, predicted at most {bound}"
    if any(task.is_bound for task in record.tasks):
        yield "some peaks are of the process since it started: upper bounds for the task"
    if record.again:
        lost = scaled(sum(task.seconds for task in record.again), "s")
        yield f"{counted(len(record.again), 'attempt')} had to be repeated: {lost}"
    if record.missing:
        yield f"{counted(record.missing, 'task')} had run before or sent no report"
    for each in record.adaptations[:MOST_ADAPTATIONS]:
        yield f"{each.kind} after {scaled(max(0.0, each.at - record.begin), 's')}: {each.why}"
    if len(record.adaptations) > MOST_ADAPTATIONS:
        yield f"… {len(record.adaptations) - MOST_ADAPTATIONS} more decisions"


# -- recording runs -------------------------------------------------------------------------------

_RECORDINGS: ContextVar[tuple[list[RunRecord], ...]] = ContextVar("weft_recording", default=())


@contextmanager
def recording() -> Iterator[list[RunRecord]]:
    """Collect the record of every run inside the block, in order.

    >>> with recording() as runs:
    ...     pass
    >>> runs
    []
    """
    records: list[RunRecord] = []
    token = _RECORDINGS.set((*_RECORDINGS.get(), records))
    try:
        yield records
    finally:
        _RECORDINGS.reset(token)


def deliver(record: RunRecord) -> None:
    """Add a record to the surrounding `recording` blocks, and send it to OpenTelemetry."""
    for records in _RECORDINGS.get():
        records.append(record)
    telemetry.emit(record)


def is_recorded() -> bool:
    """Return whether anyone wants a record: building one takes up to 0.1 ms per task."""
    return bool(_RECORDINGS.get()) or telemetry.is_wanted()
