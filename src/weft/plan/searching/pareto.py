"""Pareto fronts: dominance, hypervolume, and `ParetoFront`, the plans that a search returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from operator import le
from typing import TYPE_CHECKING, SupportsFloat, TypeAlias, TypeVar

from weft.draw import Drawing, Drawn, Item, Label, Line, Rect
from weft.errors import WeftError
from weft.plan.estimate import Cost
from weft.plan.plan import Plan
from weft.values import counted, scaled

if TYPE_CHECKING:
    from weft.plan.searching.explain import Explanation

T = TypeVar("T")
Costs = Sequence[float]

OBJECTIVES: Mapping[str, Callable[[Cost], float]] = {
    "time": lambda cost: cost.seconds,
    "peak_memory": lambda cost: max(cost.peak, default=0),
    "bytes": lambda cost: cost.moved,
}
"""The objectives of a plan: seconds on the machine, the bytes of the fullest cell, and the bytes
that all cells receive, from each other and from storage, and that they write to it."""

UNITS = {"time": "s", "peak_memory": "B", "bytes": "B"}

Objective: TypeAlias = str | Callable[[Cost], float]
"""The name of an objective, or a function of a plan's cost; less is better."""


def objective_name(objective: Objective) -> str:
    """Return the name of an objective; a function has its own."""
    if isinstance(objective, str):
        return objective
    return str(getattr(objective, "__name__", type(objective).__name__))


def value_of(objective: Objective, cost: Cost) -> float:
    """Return what an objective is for a plan."""
    if isinstance(objective, str):
        return OBJECTIVES[objective](cost)
    value = objective(cost)
    if not isinstance(value, SupportsFloat) or isnan(float(value)):
        raise WeftError(f"the objective {objective_name(objective)} is {value!r}, not a number")
    return float(value)


def dominates(one: Costs, other: Costs) -> bool:
    """Whether a point is no worse than another in every coordinate.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (0, 3)), dominates((1, 2), (1, 2))
    (True, False, True)
    """
    return all(map(le, one, other))


def pareto_front(points: Iterable[tuple[Costs, T]]) -> list[tuple[Costs, T]]:
    """Return the points that no other dominates, each once, in order.

    >>> pareto_front([((2, 1), "a"), ((1, 2), "b"), ((2, 2), "c"), ((1, 2), "d")])
    [((1, 2), 'b'), ((2, 1), 'a')]
    """
    front: list[tuple[Costs, T]] = []
    for point, item in sorted(points, key=lambda pair: tuple(pair[0])):
        if not any(dominates(other, point) for other, _ in front):
            front.append((point, item))
    return front


def hypervolume(points: Iterable[Costs], worst: Costs) -> float:
    """Return the volume of the points that a front dominates, up to a worst point.

    The volume is summed over slices along the first coordinate, each computed recursively.

    >>> hypervolume([(1, 2), (2, 1)], (3, 3))
    3.0
    """
    inside = ((point, None) for point in points if all(a < b for a, b in zip(point, worst)))
    front = [point for point, _ in pareto_front(inside)]
    if not front or len(worst) == 1:
        return float(worst[0] - front[0][0]) if front else 0.0
    ends = [*(point[0] for point in front[1:]), worst[0]]
    return sum(
        (end - point[0]) * hypervolume([other[1:] for other in front[: number + 1]], worst[1:])
        for number, (point, end) in enumerate(zip(front, ends))
    )


@dataclass(frozen=True)
class ParetoFront(Drawn, Sequence[Plan]):
    """Plans for one graph, from the fastest on; none is better than another in every objective.

    It is a sequence of plans. Printed it is a table, drawn it is a plot.

    >>> from weft import DeviceMesh, Machine, search, trace
    >>> graph = trace(lambda x, w: x @ w, (8, 16), (16, 32))
    >>> mesh = DeviceMesh("m", (4,), ("x",))
    >>> front = search(graph, mesh, Machine(flops={"float32": 1e9}))
    >>> print(front)
    plan     time  peak_memory  bytes  cut
       0  2.05 µs       1280 B    0 B  x: n
    1 plan, exact over placements, rewrites and fusions
    """

    objectives: tuple[Objective, ...]
    costs: tuple[Cost, ...]
    is_complete: bool = True
    """Whether the search ran to its end and was not interrupted."""
    proved: tuple[str, ...] = ()
    """What was enumerated, or excluded by a bound: placements, rewrites, fusions. The front lacks
    no point of any such plan. Empty if nothing is proved."""
    reasons: tuple[str, ...] = ()
    """Why the front is not proved over the whole search space; empty if it is."""

    @property
    def is_exact(self) -> bool:
        """Whether the front is proved over the whole search space, as docs/search.md states it."""
        return bool(self.proved) and not self.reasons

    @property
    def claim(self) -> str:
        """The claim in a few words: what the front is exact over, or that it was found."""
        if self.proved:
            return f"exact over {proof(self.proved)}"
        return "found" if self.is_complete else "found before the search was interrupted"

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, in the order of the table."""
        return tuple(cost.plan for cost in self.costs)

    @cached_property
    def points(self) -> tuple[tuple[float, ...], ...]:
        """For every plan its value of each objective."""
        return tuple(tuple(value_of(one, cost) for one in self.objectives) for cost in self.costs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the objectives."""
        return tuple(map(objective_name, self.objectives))

    def best(self, objective: Objective) -> Plan:
        """Return the best plan by one objective, or by the name of one; the first of several."""
        known = self.objectives if objective in self.objectives else self.names
        if objective not in known:
            raise WeftError(
                f"the front has no objective {objective!r}", hint=f"it has {', '.join(self.names)}"
            )
        at = known.index(objective)
        return self.plans[min(range(len(self)), key=lambda n: self.points[n][at])]

    @property
    def balanced(self) -> Plan:
        """The plan with the least sum of objectives, each scaled from 0 (best) to 1 (worst)."""
        ranges = [(min(column), max(column)) for column in zip(*self.points)]
        sums = [
            sum((x - low) / (high - low) for x, (low, high) in zip(p, ranges) if high > low)
            for p in self.points
        ]
        return self.plans[sums.index(min(sums))]

    def explain(self, number: int = 0) -> Explanation:
        """Return for every application of a plan its placement, and what others would cost."""
        from weft.plan.searching.explain import explain  # it needs the searches, which need fronts

        cost = self.costs[number]
        return explain(cost.plan, cost.machine)

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, place: int) -> Plan:  # type: ignore[override]
        return self.plans[place]

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def drawing(self) -> Drawing:
        """Return a plot: the first objective across, the second up."""
        return _plot(self.names, self.points)

    def __str__(self) -> str:
        rows = [["plan", *self.names, "cut"]]
        for number, (point, plan) in enumerate(zip(self.points, self.plans)):
            cells = [scaled(x, UNITS.get(name, "")) for x, name in zip(point, self.names)]
            rows.append([str(number), *cells, cuts_summary(plan)])
        wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(c.rjust(w) for c, w in zip(row[:-1], wide)) + f"  {row[-1]}" for row in rows
        ]
        beyond = "not proved beyond that" if self.proved else "not proved exact"
        lines.append(f"{counted(len(self), 'plan')}, {self.claim}")
        return "\n".join([*lines, *(f"{beyond}: {reason}" for reason in self.reasons)])


def proof(proved: Sequence[str]) -> str:
    """Return what a front is proved over, as text.

    >>> proof(["placements", "rewrites", "fusions"])
    'placements, rewrites and fusions'
    """
    *others, last = proved
    return f"{', '.join(others)} and {last}" if others else last


def cuts_summary(plan: Plan) -> str:
    """Return for each mesh axis the index dimensions that it cuts where most is computed."""
    weights: dict[str, dict[str, float]] = {axis: {} for axis in plan.mesh.axis_names}
    for application, placed in zip(plan.graph.applications, plan.placed):
        operator = plan.graph.operators.find(application.operator)
        space, attributes = placed.signature.space, application.attributes
        flops = operator.count_flops(placed.signature, space, attributes)
        for dim, axes in placed.placement.items():
            for axis in axes:
                dims = weights[axis if isinstance(axis, str) else axis.name]
                dims[dim] = dims.get(dim, 0.0) + flops
    parts = []
    for name, dims in weights.items():
        top = sorted(dims, key=lambda dim: (-dims[dim], dim))[:3]
        parts.append(f"{name}: {' '.join(top) or '-'}")
    return ", ".join(parts)


# -- the plot

COLUMNS, ROWS, LEFT = 56, 16, 12
"""The size of the plot, and the column of its vertical axis."""

MAX_POINTS = 60
"""The most points that are drawn."""


def _plot(objectives: Sequence[str], points: Sequence[Costs]) -> Drawing:
    """Plot the points with their numbers; those of one tone are equal in the last objective."""
    if not points:
        return Drawing((), "an empty front")
    has_second = len(objectives) > 1
    across, up = [p[0] for p in points], [p[1] if has_second else 0.0 for p in points]
    items: list[Item] = [
        Line(LEFT, 0, LEFT, ROWS + 1),
        Line(LEFT, ROWS + 1, LEFT + COLUMNS + 2, ROWS + 1),
    ]
    taken = set[tuple[int, int]]()
    tones = sorted({p[-1] for p in points})
    for number, point in enumerate(points[:MAX_POINTS]):
        x = LEFT + 2 + _place(across, across[number], COLUMNS)
        y = ROWS - 1 - _place(up, up[number], ROWS)
        if len(str(number)) == 1 or not taken & {(x, y), (x + 1, y)}:
            items.append(Rect(x, y, 2, 1, "", tones.index(point[-1])))
            items.append(Label(x + 1, y, str(number)))
        taken |= {(x, y), (x + 1, y)}
    unit, unit_up = (UNITS.get(name, "") for name in (objectives[0], objectives[has_second]))
    items += [
        Label(LEFT - 1, 1, scaled(max(up), unit_up), "end"),
        Label(LEFT - 1, ROWS - 1, scaled(min(up), unit_up), "end"),
        Label(LEFT, ROWS + 2, scaled(min(across), unit)),
        Label(LEFT + COLUMNS + 2, ROWS + 2, scaled(max(across), unit), "end"),
    ]
    title = f"{len(points)} plans: {objectives[0]} across"
    title += f", {objectives[1]} up" if has_second else ""
    notes = [f"one tone, the same {objectives[2]}"] if len(objectives) > 2 else []
    return Drawing(tuple(items), title, tuple(notes))


def _place(numbers: Sequence[float], number: float, length: int) -> int:
    """Return where a number lies on an axis of some length, from the least to the largest."""
    low, high = min(numbers), max(numbers)
    return round((number - low) / (high - low) * (length - 2)) if high > low else length // 2
