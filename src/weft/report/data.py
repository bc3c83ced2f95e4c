"""`report_data`: the data of a page as one JSON value; docs/report.md has its schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import weft
from weft.errors import WeftError
from weft.plan import Cost, Machine, ParetoFront, Plan, estimate
from weft.plan.searching.pareto import OBJECTIVES, UNITS
from weft.report.plan_data import Detail, plan_data
from weft.report.target_data import ckks_data, store_data

if TYPE_CHECKING:
    from weft.runtime.cluster import RunRecord
    from weft.runtime.cluster.metrics.record import Total

VERSION = 1
GIVEN = "the plans were given, not searched for"
"""The reason why plans that were given do not form an exact front."""
MOST_PLANS = 64
"""The most plans of one page."""


class Subject(NamedTuple):
    """The subject of a report: at least one of these."""

    front: ParetoFront | None = None
    run: RunRecord | None = None
    ckks: Any = None
    stores: tuple[Any, ...] = ()
    title: str = ""


DETAILS = (
    Detail(),
    Detail(16, remark="messages between devices are left out on meshes of more than 16 cells"),
    Detail(0, remark="messages between devices are left out"),
    Detail(0, False, "messages between devices and the reasons for shardings are left out"),
)
"""The levels of detail that are tried until a page is small enough."""


def front_of(plans: Sequence[Plan | Cost], machine: Machine | None = None) -> ParetoFront:
    """Return plans as a front; those without a cost are priced.

    >>> from weft import propagate, trace
    >>> plan = Plan.of(propagate(trace(lambda x: x + x, (8,), meshes=['@m = <["x"=2]>'])))
    >>> front_of([plan]).objectives
    ('time', 'peak_memory', 'bytes')
    """
    if len(plans) > MOST_PLANS:
        raise WeftError(f"{len(plans)} plans do not fit one page; at most {MOST_PLANS} do")
    costs = [one if isinstance(one, Cost) else estimate(one, machine) for one in plans]
    return ParetoFront(tuple(OBJECTIVES), tuple(costs), reasons=(GIVEN,))


def report_data(subject: Subject, detail: Detail = DETAILS[0]) -> dict[str, Any]:
    """Return the data of a page."""
    front = subject.front
    if front is None and subject.run is None and subject.ckks is None and not subject.stores:
        raise WeftError("a report needs a subject", hint="give a plan, a run, a front or a store")
    return {
        "weft_report": VERSION,
        "weft": weft.__version__,
        "title": subject.title or "Weft report",
        "left_out": detail.remark,
        "plans": [] if front is None else [plan_data(cost, detail) for cost in front.costs],
        "front": None if front is None else _front(front),
        "run": None if subject.run is None else run_data(subject.run),
        "ckks": None if subject.ckks is None else ckks_data(subject.ckks),
        "stores": list(map(store_data, subject.stores)),
    }


def run_data(record: RunRecord) -> dict[str, Any]:
    """Return the data of a run: measurements beside predictions."""
    return {
        "headline": record.headline,
        "remarks": record.remarks,
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
    }


def _row(name: str, total: Total) -> dict[str, Any]:
    kept = ("tasks", "seconds", "predicted", "received", "sent", "read", "written", "peak")
    return {"name": name, **{key: getattr(total, key) for key in kept}}


def _front(front: ParetoFront) -> dict[str, Any]:
    balanced = next(n for n, plan in enumerate(front.plans) if plan is front.balanced)
    return {
        "objectives": list(front.names),
        "units": [UNITS.get(name, "") for name in front.names],
        "points": [list(point) for point in front.points],
        "is_exact": front.is_exact,
        "claim": None if front.reasons == (GIVEN,) else front.claim,
        "reasons": list(front.reasons),
        "balanced": balanced,
    }
