"""`diff_plans`: the differences between two plans, value by value, and the cost of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from weft.layout.shardy_text import write_axis
from weft.plan.estimate import Cost, estimate
from weft.plan.machine import Machine
from weft.plan.placed import Placed, kept_of
from weft.plan.plan import Plan

NONE = "-"
"""Stands for something that one of the plans lacks."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A property that differs between the plans."""

    name: str
    """A value, or an output by its number."""
    what: str
    one: str
    two: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The total cost of a plan."""

    received: int
    """The bytes that all cells receive."""
    peak: int
    """The bytes of the fullest cell."""
    flops: int
    seconds: float

    @classmethod
    def of(cls, cost: Cost) -> Totals:
        """The totals of an estimate."""
        return cls(cost.received, max(cost.peak, default=0), cost.flops, cost.seconds)

    def texts(self) -> dict[str, str]:
        """Return each total with its unit."""
        return {
            "received": f"{self.received} B",
            "peak": f"{self.peak} B",
            "flops": f"{self.flops} flop",
            "seconds": f"{self.seconds:.3g} s",
        }


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences between two plans, and their totals."""

    changes: tuple[PlanChange, ...]
    one: Totals
    two: Totals
    assumed: tuple[str, ...] = ()
    """The assumptions about loops and branches; empty if bytes are exact."""

    def data(self) -> dict[str, Any]:
        """Return the difference as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [(c.name, c.what, c.one, c.two) for c in self.changes]
        texts = self.one.texts(), self.two.texts()
        rows += [(what, "", texts[0][what], texts[1][what]) for what in texts[0]]
        wide = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join(f"{text:{width}}" for text, width in zip(row, (*wide, 0))).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *(f"assumed: {text}" for text in self.assumed)])


def diff_plans(one: Plan, two: Plan, machine: Machine | None = None) -> PlanDiff:
    """Return the differences between two plans: shardings, placements, moves and totals.

    Without a machine each plan is priced on its own.

    >>> from weft import propagate, trace
    >>> def planned(sharding):
    ...     given = {"x": f"<@m, {sharding}>"}
    ...     graph = trace(lambda x: x.sum(0), (8, 4), meshes=['@m = <["a"=2]>'], shardings=given)
    ...     return Plan.of(propagate(graph))
    >>> print(diff_plans(planned('[{"a"}, {}]'), planned('[{}, {"a"}]')))
    x         sharding  <@m, [{"a"}, {}]>           <@m, [{}, {"a"}]>
    sum_dim   sharding  <@m, [{}]>                  <@m, [{"a"}]>
    sum_dim   sum_dim   i0: {"a"}                   i1: {"a"}
    output 0  sharding  <@m, [{}]>                  <@m, [{"a"}]>
    sum_dim   moves     all_reduce of sum_dim 32 B  -
    received            32 B                        0 B
    peak                96 B                        72 B
    flops               16 flop                     16 flop
    seconds             1.6e-08 s                   0 s
    """
    costs = estimate(one, machine), estimate(two, machine)
    rows = [*_rows(one, two), *_moves(*costs)]
    changes = [row for row in rows if row.one != row.two]
    assumed = dict.fromkeys(text for cost in costs for text in cost.assumed)
    totals = [Totals.of(cost) for cost in costs]
    return PlanDiff(tuple(changes), totals[0], totals[1], tuple(assumed))


def _rows(one: Plan, two: Plan) -> Iterator[PlanChange]:
    yield PlanChange("mesh", "", str(one.mesh), str(two.mesh))
    yield PlanChange("machine", "", _machine(one), _machine(two))
    for name in dict.fromkeys((*one.graph.values, *two.graph.values)):
        yield from _value(name, one, two)
    yield from _applications(one, two)
    for place in range(max(len(one.outputs), len(two.outputs))):
        texts = [
            str(plan.outputs[place]) if place < len(plan.outputs) else NONE for plan in (one, two)
        ]
        yield PlanChange(f"output {place}", "sharding", *texts)


def _machine(plan: Plan) -> str:
    if plan.machine is None:
        return NONE
    return plan.machine.name or str(plan.machine)


def _value(name: str, one: Plan, two: Plan) -> Iterator[PlanChange]:
    values = [plan.graph.values.get(name) for plan in (one, two)]
    yield PlanChange(name, "value", *(NONE if value is None else str(value) for value in values))
    if None not in values:
        yield PlanChange(name, "sharding", str(one.specs[name]), str(two.specs[name]))


def _applications(one: Plan, two: Plan) -> Iterator[PlanChange]:
    """Yield the changes of applications, matched by their results."""
    ones, twos = (
        {
            application.results: (application, placed)
            for application, placed in zip(plan.graph.applications, plan.placed)
        }
        for plan in (one, two)
    )
    for results in dict.fromkeys((*ones, *twos)):
        name, both = ", ".join(results), [ones.get(results), twos.get(results)]
        applied = [NONE if each is None else str(each[0]).partition(" = ")[2] for each in both]
        yield PlanChange(name, "application", *applied)
        if None not in both:
            (first, placed), (_, other) = ones[results], twos[results]
            yield PlanChange(name, first.operator, cuts_text(placed), cuts_text(other))


def _moves(one: Cost, two: Cost) -> Iterator[PlanChange]:
    """Yield the changes of what moves for each value."""
    texts: list[dict[str, list[str]]] = [{}, {}]
    for cost, found in zip((one, two), texts):
        for item in cost.items:
            moved = [f"{item.what} {item.received} B"] if item.received else []
            found.setdefault(item.name, []).extend(moved)
    for name in dict.fromkeys((*texts[0], *texts[1])):
        yield PlanChange(name, "moves", *(", ".join(t.get(name, ())) or NONE for t in texts))


def cuts_text(placed: Placed) -> str:
    """Return the axes that cut an index space, and those over which operands stay partial."""
    cuts = [f"{name}: {dim}" for name, dim in placed.cuts.items()]
    kept = [
        f"keeps {monoid} over {write_axis(axis)}" for axis, (monoid, _) in kept_of(placed).items()
    ]
    return ", ".join([*cuts, *kept]) or "whole"
