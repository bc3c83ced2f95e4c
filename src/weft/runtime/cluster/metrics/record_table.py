"""The table of a run: what each operator and each worker took, beside what was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.draw import clip
from weft.plan.searching.front_picture import scaled
from weft.values import counted

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import RunRecord
    from weft.runtime.cluster.metrics.task_record import Total

MOST_WORKERS = 32
"""Workers that have a line of their own."""
WIDE = 40
"""The most columns of a name."""

Row = tuple[str, ...]
_HEADINGS = ("tasks", "seconds", "cpu", "predicted", "received", "sent", "read", "written", "peak")


def write_table(record: RunRecord) -> str:
    """Operators in the order of the plan, all of them, then workers, and what is to be said."""
    workers = list(record.by_worker.items())
    rows: list[Row] = [("operator", *_HEADINGS)]
    rows += [_row(name, total) for name, total in record.by_operator.items()]
    rows += [_row("all", record.total), ("worker",) + ("",) * len(_HEADINGS)]
    rows += [_row(name or "?", total) for name, total in workers[:MOST_WORKERS]]
    lines = _lined(rows)
    if len(workers) > MOST_WORKERS:
        lines.append(f"… {len(workers) - MOST_WORKERS} more workers")
    return "\n".join([headline(record), *lines, *remarks(record)])


def headline(record: RunRecord) -> str:
    """The run in one line."""
    return (
        f"{counted(record.total.tasks, 'task')} on {record.engine}, "
        f"{counted(record.workers, 'worker')}: {scaled(record.seconds, 's')}, "
        f"busy {scaled(record.busy, 's')}, overhead {scaled(record.overhead, 's')}"
    )


def remarks(record: RunRecord) -> Iterator[str]:
    """Whether what was predicted is what happened, and what went wrong on the way."""
    total, moved = record.total, sum(task.moved for task in record.tasks)
    beside = "as predicted" if record.is_exact else f"where {moved} B were predicted"
    yield f"received {total.received} B, {beside}"
    if record.predicted is not None:
        yield f"predicted {scaled(record.predicted, 's')}, a processor for each cell"
    if record.bound is not None:
        held = scaled(record.bound, "B")
        yield f"peak {scaled(total.peak, 'B')} of a worker, at most {held} as predicted"
    if any(task.is_bound for task in record.tasks):
        yield "some peaks are those of the whole life of a process: no task had more"
    if record.again:
        lost = scaled(sum(task.seconds for task in record.again), "s")
        yield f"{counted(len(record.again), 'attempt')} had to be made again: {lost}"
    if record.missing:
        yield f"{counted(record.missing, 'task')} had run before, or did not come to report"


def _row(name: str, total: Total) -> Row:
    sizes = (total.received, total.sent, total.read, total.written, total.peak)
    return (
        clip(name, WIDE),
        str(total.tasks),
        scaled(total.seconds, "s"),
        scaled(total.cpu, "s"),
        "" if total.predicted is None else scaled(total.predicted, "s"),
        *(scaled(size, "B") if size else "" for size in sizes),
    )


def _lined(rows: Sequence[Row]) -> list[str]:
    """The rows as lines; a column in which nothing stands is left out."""
    columns = [column for column in zip(*rows) if any(column[1:])]
    wide = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            f"{text:{width}}" if place == 0 else f"{text:>{width}}"
            for place, (text, width) in enumerate(zip(row, wide))
        ).rstrip()
        for row in zip(*columns)
    ]
