"""`run_data`: a run as what the page draws: predicted beside measured, and the lanes of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.report.data import MOST_SPANS
from weft.runtime.cluster.metrics.lanes import PARTS, Lane, Span, lanes_of, length_of
from weft.runtime.cluster.metrics.record_table import headline, remarks

if TYPE_CHECKING:
    from weft.runtime.cluster import RunRecord
    from weft.runtime.cluster.metrics.task_record import Total

MOST_LANES = 512


def run_data(record: RunRecord, most_spans: int = MOST_SPANS) -> dict[str, Any]:
    """A run beside what was predicted of it."""
    lanes = _lanes(record, most_spans)
    operators = list(dict.fromkeys(span.operator for lane in lanes for span in lane.spans))
    return {
        "headline": headline(record),
        "remarks": list(remarks(record)),
        "engine": record.engine,
        "workers": record.workers,
        "mesh": str(record.mesh),
        "machine": record.machine.name if record.machine else None,
        "seconds": {"predicted": record.predicted, "measured": record.seconds},
        "bytes": {
            "predicted": sum(task.moved for task in record.tasks),
            "measured": record.total.received,
            "is_exact": record.is_exact,
        },
        "peak": {"predicted": record.bound, "measured": record.total.peak or None},
        "busy": record.busy,
        "overhead": record.overhead,
        "by_operator": [_row(name, total) for name, total in record.by_operator.items()],
        "by_worker": [_row(name or "?", total) for name, total in record.by_worker.items()],
        "length": length_of(record),
        "operators": operators,
        "lanes": [_lane(lane, operators) for lane in lanes[:MOST_LANES]],
        "lanes_left_out": max(0, len(lanes) - MOST_LANES),
    }


def _row(name: str, total: Total) -> dict[str, Any]:
    kept = ("tasks", "seconds", "predicted", "received", "sent", "read", "written", "peak")
    return {"name": name, **{key: getattr(total, key) for key in kept}}


def _lanes(record: RunRecord, most: int) -> tuple[Lane, ...]:
    """The lanes, grained as coarsely as it takes."""
    grain = 0.0
    while True:
        lanes = lanes_of(record, grain)
        if sum(len(lane.spans) for lane in lanes) <= most or grain > length_of(record):
            return lanes
        grain = max(2 * grain, length_of(record) / 4000)


def _lane(lane: Lane, operators: list[str]) -> dict[str, Any]:
    return {"worker": lane.worker or "?", "spans": [_span(s, operators) for s in lane.spans]}


def _span(span: Span, operators: list[str]) -> list[Any]:
    """Begin, end, operator, again, tasks, what came, the parts of its time, and what it was."""
    first = span.tasks[0]
    parts = [round(sum(getattr(task, part) for task in span.tasks), 6) for part in PARTS]
    what = f"{first.kind} {first.values} {first.box}" if len(span.tasks) == 1 else ""
    return [
        round(span.begin, 7),
        round(span.end, 7),
        operators.index(span.operator),
        int(span.is_again),
        len(span.tasks),
        sum(task.arrived for task in span.tasks),
        parts,
        what,
        first.cell,
    ]
