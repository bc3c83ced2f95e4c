"""`Lane`: what one worker did in the course of a run, in spans that can be drawn.

A worker that does several tasks at a time has a lane for each. What is too short to be seen is
drawn together: as the operator that took most of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import RunRecord
    from weft.runtime.cluster.metrics.task_record import TaskRecord

PARTS = ("receiving", "reading", "writing")
"""What a task does beside computing; the last of them at its end."""


class Span(NamedTuple):
    """A time in which a worker was busy, in seconds from the beginning of the run."""

    begin: float
    end: float
    operator: str
    tasks: tuple[TaskRecord, ...]
    is_again: bool = False
    """Whether it was in vain, and done again."""


class Lane(NamedTuple):
    """The spans of a worker, in order and apart."""

    worker: str
    spans: tuple[Span, ...]


def lanes_of(record: RunRecord, grain: float) -> tuple[Lane, ...]:
    """A lane or more for each worker; what is shorter than a grain, in seconds, is merged."""
    start, by_worker = begin_of(record), dict[str, list[Span]]()
    for tasks, is_again in ((record.tasks, False), (record.again, True)):
        for task in tasks:
            begin = max(0.0, task.begin - start)
            span = Span(begin, begin + task.seconds, task.operator, (task,), is_again)
            by_worker.setdefault(task.worker, []).append(span)
    names = [*record.by_worker, *sorted(by_worker.keys() - record.by_worker.keys())]
    return tuple(
        Lane(name, tuple(merged(spans, grain)))
        for name in names
        for spans in _side_by_side(sorted(by_worker[name], key=_when), grain)
    )


def _when(span: Span) -> tuple[float, float]:
    return span.begin, span.end


def begin_of(record: RunRecord) -> float:
    """When a run began: a worker's clock may be ahead of the client's."""
    return min([record.begin, *(task.begin for task in (*record.tasks, *record.again))])


def length_of(record: RunRecord) -> float:
    """The seconds from the beginning to the end of a run, and of all its tasks."""
    begin = begin_of(record)
    ends = [record.begin + record.seconds, *(task.end for task in (*record.tasks, *record.again))]
    return max(max(ends) - begin, 1e-9)


def _side_by_side(spans: Iterable[Span], grain: float) -> list[list[Span]]:
    """The spans in as few rows as have no two at a time; clocks are not better than a grain.

    The spans come in the order in which they begin. Each gets the first row that is free: once a
    row is free it stays so until it is taken, and two heaps find it.
    """
    rows: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for span in spans:
        while busy and busy[0][0] <= span.begin + grain:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, len(rows))
            rows.append([])
        row = heappop(free)
        rows[row].append(span)
        heappush(busy, (span.end, row))
    return rows


def merged(spans: Iterable[Span], grain: float) -> Iterator[Span]:
    """The spans, those within one grain put together; what fills it is as long as it is."""
    waiting: list[Span] = []
    for span in spans:
        is_short = span.end - span.begin < grain
        if waiting and (not is_short or span.end - waiting[0].begin >= grain):
            yield _together(waiting)
            waiting = []
        if is_short:
            waiting.append(span)
        else:
            yield span
    if waiting:
        yield _together(waiting)


def _together(spans: Sequence[Span]) -> Span:
    """Short spans as one; it ends when the last of them does."""
    taken: dict[str, float] = {}
    for span in spans:
        taken[span.operator] = taken.get(span.operator, 0.0) + span.end - span.begin
    tasks = tuple(task for span in spans for task in span.tasks)
    is_again = all(span.is_again for span in spans)
    most = max(taken, key=taken.__getitem__)
    return Span(spans[0].begin, max(span.end for span in spans), most, tasks, is_again)
