"""`explain`: why a plan places its applications as it does, and what others would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang.rewrite import shipped_rewrites
from weft.plan.machine import Machine
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.searching.bounds import Goal
from weft.plan.searching.build import build_problem
from weft.plan.searching.local_search import LocalSearch
from weft.plan.searching.prices import IMPOSSIBLE
from weft.plan.searching.problem import DecisionClasses, Problem, take_over
from weft.values import scaled

TINY = 1e-15
"""Changes of time that are rounding."""


def _signed(change: float, unit: str) -> str:
    """Return a change with its sign.

    >>> _signed(-2.5e-6, "s"), _signed(4096, "B")
    ('-2.5 µs', '+4096 B')
    """
    return ("-" if change < 0 else "+") + scaled(abs(change), unit)


class AlternativeCost(NamedTuple):
    """Another way to run one application, and how the cost of the plan changes with it."""

    what: str
    """The cuts of its index space, or the name of a rewrite."""
    seconds: float
    compute: float
    transfer: float
    """The changes of the time in all, of kernels, and of transfers."""
    received: int
    peak: int
    """The changes of the bytes that cells receive, and of those on the fullest cell."""

    @property
    def cause(self) -> str:
        """What changes, in words."""
        parts = [
            f"{name} {_signed(change, unit)}"
            for name, change, unit in (
                ("compute", self.compute, "s"),
                ("transfer", self.transfer, "s"),
                ("received", self.received, "B"),
                ("memory", self.peak, "B"),
            )
            if abs(change) > TINY
        ]
        return ", ".join(parts) or "nothing changes"


class Choice(NamedTuple):
    """The placement of an application, and its alternatives, the fastest first."""

    application: str
    operator: str
    chosen: str
    alternatives: tuple[AlternativeCost, ...]


@dataclass(frozen=True)
class Explanation:
    """For every application of a plan its placement, and the best alternatives.

    An alternative changes one placement and leaves the rest of the plan as it is; after a rewrite
    the rest follows by descent.

    >>> from weft import DeviceMesh, Machine, search, trace
    >>> graph = trace(lambda x, w: x @ w, (64, 16), (16, 16))
    >>> machine = Machine(latency=1e-6, bandwidth=1e9, flops={"float32": 1e9})
    >>> front = search(graph, DeviceMesh("m", (4,), ("x",)), machine, ["time"])
    >>> print(front.explain())
    matmul  matmul  m: x  8.19 µs in all
      next  n: x  +5.84 µs: transfer +5.84 µs, received +15360 B, memory +4096 B
      then  k: x  +5.84 µs: transfer +5.84 µs, received +15360 B, memory +4096 B
    """

    seconds: float
    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for choice in self.choices:
            line = f"{choice.application}  {choice.operator}  {choice.chosen}"
            lines.append(line + (f"  {scaled(self.seconds, 's')} in all" if not lines else ""))
            for name, one in zip(("next", "then"), choice.alternatives):
                lines.append(f"  {name}  {one.what}  {_signed(one.seconds, 's')}: {one.cause}")
        return "\n".join(lines)


def explain(plan: Plan, machine: Machine | None = None) -> Explanation:
    """Return why a plan places its applications as it does."""
    rates = machine or plan.machine or Machine()
    problem = build_problem(plan.graph, plan.mesh, rates)
    assignment = _assignment(problem, plan)
    before = _totals(problem, assignment)
    choices = []
    for number, application in enumerate(plan.graph.applications):
        if not application.results:
            continue
        found = [
            *_other_placements(problem, assignment, number, before),
            *_rewritten(problem, assignment, application.results[0], before),
        ]
        found.sort(key=lambda one: (one.seconds, one.peak, one.received))
        chosen = _cuts(plan.placed[number])
        name = ", ".join(application.results)
        choices.append(Choice(name, application.operator, chosen, tuple(found)))
    return Explanation(before[0], tuple(choices))


def _assignment(problem: Problem, plan: Plan) -> list[int]:
    """Return the assignment of a plan; an error if it is outside what a search enumerates."""
    result = []
    for decision in problem.decisions:
        at = decision.subject
        option = plan.placed[at] if isinstance(at, int) else plan.specs[at]
        if option not in decision.options:
            what = plan.graph.applications[at].results[0] if isinstance(at, int) else at
            raise WeftError(
                f"the plan cannot be explained: a search does not try {what} as it is placed",
                hint="explain plans that a search returned",
            )
        result.append(decision.options.index(option))
    return result


def _totals(problem: Problem, assignment: Sequence[int]) -> tuple[float, float, float, int, int]:
    """Return the seconds of a plan, of its kernels and transfers, its bytes and its peak."""
    cost = problem.cost(assignment)
    return (
        problem.seconds(cost),
        cost.compute,
        cost.communicate,
        cost.received,
        problem.peak(assignment),
    )


def _changed(
    what: str, problem: Problem, assignment: Sequence[int], before: Sequence[float]
) -> AlternativeCost:
    after = _totals(problem, assignment)
    seconds, compute, transfer = (a - b for a, b in zip(after[:3], before))
    received, peak = (int(a - b) for a, b in zip(after[3:], before[3:]))
    return AlternativeCost(what, seconds, compute, transfer, received, peak)


def _other_placements(
    problem: Problem, assignment: Sequence[int], number: int, before: Sequence[float]
) -> list[AlternativeCost]:
    (at,) = (n for n, one in enumerate(problem.decisions) if one.subject == number)
    found = []
    for option, placed in enumerate(problem.decisions[at].options):
        if option != assignment[at] and isinstance(placed, Placed):
            other = [*assignment[:at], option, *assignment[at + 1 :]]
            one = _changed(_cuts(placed), problem, other, before)
            if one.received < IMPOSSIBLE // 2:
                found.append(one)
    return found


def _rewritten(
    problem: Problem, assignment: Sequence[int], root: str, before: Sequence[float]
) -> list[AlternativeCost]:
    graph, found = problem.graph, []
    for rewrite in shipped_rewrites(problem.mesh.size):
        if any(match.root == root for match in rewrite.matches(graph)):
            new = build_problem(rewrite.apply(graph, root), problem.mesh, problem.machine)
            local = LocalSearch(DecisionClasses(new), Goal(), Random(0))
            local.descend(take_over(problem, assignment, new))
            best = local.classes.assignment(local.solutions[-1])
            found.append(_changed(rewrite.name, new, best, before))
    return found


def _cuts(placed: Placed) -> str:
    """Return which axes cut which dimensions."""
    parts = [f"{dim}: {' '.join(map(str, axes))}" for dim, axes in placed.placement.items() if axes]
    return ", ".join(parts) or "not cut"
