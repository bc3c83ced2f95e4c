"""`RunRecord`: what a run on a grid took, task by task, beside what was predicted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from weft.draw import Drawing, Drawn
from weft.layout import DeviceMesh
from weft.plan import Machine, estimate
from weft.runtime.cluster.metrics.amount import amount_of, seconds_by
from weft.runtime.cluster.metrics.record_file import read_record, write_record
from weft.runtime.cluster.metrics.record_table import write_table
from weft.runtime.cluster.metrics.report import Report
from weft.runtime.cluster.metrics.task_record import TaskRecord, Total
from weft.runtime.cluster.metrics.timeline import draw_timeline
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.runtime.cluster.weaving.embedding import Embedding

_NUMBERED = re.compile(r"([^0-9]*)([0-9]*)")


@dataclass(frozen=True)
class RunRecord(Drawn):
    """What one run took, task by task, beside what was predicted; see `record_file` for its JSON.

    >>> from weft import ZRange
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
    """From beginning to end."""
    tasks: tuple[TaskRecord, ...]
    """Each task once, as it ran last, in the order of the plan."""
    again: tuple[TaskRecord, ...] = ()
    """Attempts that were made once more, since a worker died with what they had made."""
    missing: int = 0
    """The tasks of which nothing was heard: they had run before, or their worker died."""
    bound: int | None = None
    """The most bytes that a worker was predicted to have, its own beside those of arrays."""
    predicted: float | None = None
    """The seconds of the plan on its machine, if it has one, a processor for each cell."""
    machine: Machine | None = None

    @classmethod
    def of(
        cls,
        embedding: Embedding,
        reports: Iterable[Report],
        *,
        engine: str,
        workers: int,
        begin: float,
        seconds: float,
        bound: int | None = None,
    ) -> RunRecord:
        """The record of a run: what its workers reported, beside what its plan says."""
        plan = embedding.plan
        attempts = sorted(reports, key=lambda report: (report.task, report.begin))
        last = {report.task: report for report in attempts}
        sent = _sent(embedding, last.values())
        write = _Writer(embedding)
        return cls(
            engine,
            workers,
            plan.mesh,
            begin,
            seconds,
            tuple(write.task(report, sent.get(report.task, 0)) for report in last.values()),
            tuple(write.task(one) for one in attempts if one is not last[one.task]),
            len(embedding.tasks) - len(last),
            bound,
            None if plan.machine is None else estimate(plan).seconds,
            plan.machine,
        )

    @cached_property
    def total(self) -> Total:
        """Of all tasks, each counted once."""
        return Total.of(self.tasks)

    @cached_property
    def by_operator(self) -> dict[str, Total]:
        """By operator, in the order of the plan."""
        return _grouped(self.tasks, lambda task: task.operator)

    @cached_property
    def by_worker(self) -> dict[str, Total]:
        """By worker, in the order of their names."""
        found = _grouped(self.tasks, lambda task: task.worker)
        return dict(sorted(found.items(), key=lambda item: _by_number(item[0])))

    @property
    def busy(self) -> float:
        """The seconds that workers worked on tasks."""
        return self.total.seconds

    @property
    def overhead(self) -> float:
        """The seconds of all workers in which they did not: waiting, moving, and what was lost."""
        return self.seconds * self.workers - self.busy

    @property
    def is_exact(self) -> bool:
        """Whether every task received what was predicted, byte by byte."""
        return all(task.arrived == task.moved for task in self.tasks)

    def to_json(self, indent: int | None = 1) -> str:
        """The record as text, from which `from_json` reads an equal one."""
        return write_record(self, indent)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Read a record from its text, every field of which is checked."""
        return cls(**read_record(text))

    def drawing(self) -> Drawing:
        """The timeline: a lane for each worker. `timeline_svg` draws it to the pixel."""
        return draw_timeline(self)

    def __str__(self) -> str:
        return write_table(self)


class _Writer:
    """Writes down tasks."""

    def __init__(self, embedding: Embedding) -> None:
        self.embedding, self.plan = embedding, embedding.plan

    def task(self, report: Report, sent: int = 0) -> TaskRecord:
        task = self.embedding.tasks[report.task]
        amount, moved = amount_of(self.plan, task), self.embedding.moved(task)
        predicted = None
        if self.plan.machine is not None:
            where = self.plan.machine, self.plan.mesh, task.operator, amount
            predicted = seconds_by(*where, moved, task.cell)
        return TaskRecord(
            task.number,
            task.kind,
            task.operator,
            task.values,
            task.box,
            task.cell,
            report.worker,
            report.begin,
            report.seconds,
            report.cpu,
            FrozenMap(report.received.items()),
            sent,
            report.read,
            report.written,
            report.peak,
            report.is_bound,
            report.receiving,
            report.reading,
            report.writing,
            sum(moved.values()),
            amount.flops,
            amount.dtype,
            amount.touched,
            predicted,
        )


def _sent(embedding: Embedding, reports: Iterable[Report]) -> dict[int, int]:
    """The bytes that tasks sent: what others received of their cell, by the blocks they read."""
    found: dict[int, int] = {}
    for report in reports:
        for cell, used in _used(embedding, report).items():
            parts = shared_out(report.received[cell], list(used.values()))
            for number, part in zip(used, parts):
                found[number] = found.get(number, 0) + part
    return found


def _used(embedding: Embedding, report: Report) -> dict[int, dict[int, int]]:
    """The bytes that a task reads of others, by the cells that it received of and by task."""
    found: dict[int, dict[int, int]] = {cell: {} for cell in report.received}
    for read in embedding.tasks[report.task].uses() if found else ():
        maker = embedding.tasks[read.task]
        if maker.cell in found:
            used = found[maker.cell]
            used[read.task] = used.get(read.task, 0) + maker.made[read.place].nbytes
    return found


def shared_out(size: int, weights: list[int]) -> list[int]:
    """A number of bytes in parts as large as some weights, which are exact if they add up to it.

    >>> shared_out(12, [4, 8]), shared_out(7, [4, 8]), shared_out(3, [0, 0])
    ([4, 8], [2, 5], [0, 3])
    """
    total = sum(weights)
    parts = [size * weight // total if total else 0 for weight in weights[:-1]]
    return [*parts, size - sum(parts)] if weights else []


def _grouped(tasks: Iterable[TaskRecord], key: Callable[[TaskRecord], str]) -> dict[str, Total]:
    groups: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        groups.setdefault(key(task), []).append(task)
    return {name: Total.of(group) for name, group in groups.items()}


def _by_number(name: str) -> list[tuple[str, int]]:
    """A name by which those with numbers in them are in the order of the numbers."""
    return [(text, int(digits[:18] or 0)) for text, digits in _NUMBERED.findall(name)]
