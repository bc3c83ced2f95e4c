"""`report_data`: all that a page shows, as one JSON value. docs/report.md has its schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import weft
from weft.errors import WeftError
from weft.plan import Cost, Machine, ParetoFront, Plan, estimate
from weft.plan.searching.front import OBJECTIVES, UNITS
from weft.report.ciphertexts import ckks_data
from weft.report.planned import Detail, plan_data
from weft.report.storage import store_data

if TYPE_CHECKING:
    from weft.runtime.cluster import RunRecord

VERSION = 1
MOST_SPANS = 6000
"""Spans of a timeline: short ones are drawn together until they are so few."""
GIVEN = "the plans were given, not searched for"
"""Why plans that are only shown beside each other are not an exact front."""
MOST_PLANS = 64
"""Plans of one front."""


class Subject(NamedTuple):
    """What a report is about; nothing of it must be there, but not nothing at all."""

    front: ParetoFront | None = None
    run: RunRecord | None = None
    ckks: Any = None
    stores: tuple[Any, ...] = ()
    title: str = ""


class Grain(NamedTuple):
    """How finely everything is told."""

    detail: Detail = Detail()
    spans: int = MOST_SPANS
    remark: str = ""


GRAINS = (
    Grain(),
    Grain(Detail(16), 3000, "who sends what to whom is left out on meshes of more than 16 cells"),
    Grain(Detail(0), 1500, "who sends what to whom is left out"),
    Grain(Detail(0, False), 800, "who sends what to whom is left out, and why values lie so"),
)
"""What is tried until a page is small enough."""


def front_of(plans: Sequence[Plan | Cost], machine: Machine | None = None) -> ParetoFront:
    """Plans beside each other, as a search would give them; each is priced if it is not.

    >>> from weft import propagate, trace
    >>> plan = Plan.of(propagate(trace(lambda x: x + x, (8,), meshes=['@m = <["x"=2]>'])))
    >>> front_of([plan]).objectives
    ('time', 'peak_memory', 'bytes')
    """
    if len(plans) > MOST_PLANS:
        raise WeftError(f"{len(plans)} plans do not fit one page; at most {MOST_PLANS}")
    costs = [one if isinstance(one, Cost) else estimate(one, machine) for one in plans]
    return ParetoFront(tuple(OBJECTIVES), tuple(costs), reasons=(GIVEN,))


def report_data(subject: Subject, grain: Grain = GRAINS[0]) -> dict[str, Any]:
    """Everything that the page shows."""
    front = subject.front
    if front is None and subject.run is None and subject.ckks is None and not subject.stores:
        raise WeftError("a report about nothing", hint="give a plan, a run, a front or a store")
    return {
        "weft_report": VERSION,
        "weft": weft.__version__,
        "title": subject.title or "Weft report",
        "left_out": grain.remark,
        "plans": [] if front is None else [plan_data(cost, grain.detail) for cost in front.costs],
        "front": None if front is None else _front(front),
        "run": None if subject.run is None else _run(subject.run, grain.spans),
        "ckks": None if subject.ckks is None else ckks_data(subject.ckks),
        "stores": _stores(subject.stores),
    }


def _run(record: RunRecord, most_spans: int) -> dict[str, Any]:
    """A run; plans are shown where there is no NumPy, which runs need."""
    data: dict[str, Any] = import_module("weft.report.measured").run_data(record, most_spans)
    return data


def _stores(given: Iterable[Any]) -> list[dict[str, Any]]:
    return [store_data(one) for one in given]


def _front(front: ParetoFront) -> dict[str, Any]:
    balanced = next(n for n, plan in enumerate(front.plans) if plan is front.balanced)
    return {
        "objectives": list(front.objectives),
        "units": [UNITS[name] for name in front.objectives],
        "points": [list(point) for point in front.points],
        "is_exact": front.is_exact,
        "claim": None if front.reasons == (GIVEN,) else front.claim,
        "reasons": list(front.reasons),
        "balanced": balanced,
    }
