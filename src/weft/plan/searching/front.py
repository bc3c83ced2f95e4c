"""`ParetoFront`: the plans worth choosing from, none better in everything than another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.plan.estimate import Cost
from weft.plan.plan import Plan
from weft.plan.searching.front_picture import draw_front, scaled
from weft.values import counted

Objective: TypeAlias = Literal["time", "peak_memory", "bytes"]

OBJECTIVES: Mapping[str, Callable[[Cost], float]] = {
    "time": lambda cost: cost.seconds,
    "peak_memory": lambda cost: max(cost.peak, default=0),
    "bytes": lambda cost: cost.moved,
}
"""What a plan can be judged by: seconds on the machine, the bytes of the fullest cell, and the
bytes that all cells receive, from each other and from storage, and that they write to it."""

NAMED = 4
"""So many graphs are named in what is printed."""

UNITS = {"time": "s", "peak_memory": "B", "bytes": "B"}


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
    1 plan, exact over the placements of 1 graph: as written
    """

    objectives: tuple[str, ...]
    costs: tuple[Cost, ...]
    is_complete: bool = True
    """Whether the search ran to its end, and was not interrupted."""
    proved: tuple[str, ...] = ()
    """The graphs, by how they came from the one that was written, over whose placements the front
    is exact: of no plan for them is the point missing. Empty if nothing is proved."""
    reasons: tuple[str, ...] = ()
    """Why the front is not proved over the whole search space; empty if it is."""

    @property
    def is_exact(self) -> bool:
        """Whether the front is proved over the whole search space, as docs/search.md states it."""
        return bool(self.proved) and not self.reasons

    @property
    def claim(self) -> str:
        """What the front is, in a few words: what it is exact over, or that it was found."""
        if self.proved:
            return f"exact over {over(self.proved)}"
        return "found" if self.is_complete else "found before the search was interrupted"

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, in the order of the table."""
        return tuple(cost.plan for cost in self.costs)

    @cached_property
    def points(self) -> tuple[tuple[float, ...], ...]:
        """What every plan takes, by objective."""
        return tuple(
            tuple(OBJECTIVES[name](cost) for name in self.objectives) for cost in self.costs
        )

    def best(self, objective: str) -> Plan:
        """The plan that is best by one objective; of equals the first."""
        if objective not in self.objectives:
            known = ", ".join(self.objectives)
            raise WeftError(f"the front knows nothing of {objective!r}", hint=f"it knows {known}")
        at = self.objectives.index(objective)
        return self.plans[min(range(len(self)), key=lambda n: self.points[n][at])]

    @property
    def balanced(self) -> Plan:
        """The plan nearest to the best in everything, each objective on a scale of its own."""
        return self.plans[min(range(len(self)), key=lambda n: sum(self._shares[n]))]

    @cached_property
    def _shares(self) -> list[list[float]]:
        """For every plan and objective how far it lies from the best to the worst, from 0 to 1."""
        columns = [(min(column), max(column)) for column in zip(*self.points)]
        return [
            [(x - low) / (high - low) if high > low else 0.0 for x, (low, high) in zip(p, columns)]
            for p in self.points
        ]

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, place: int) -> Plan:  # type: ignore[override]
        return self.plans[place]

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def drawing(self) -> Drawing:
        """The plans as points: the first objective across, the second up."""
        return draw_front(self.objectives, self.points, [UNITS[name] for name in self.objectives])

    def __str__(self) -> str:
        rows = [["plan", *self.objectives, "cut"]]
        for number, (point, plan) in enumerate(zip(self.points, self.plans)):
            cells = [scaled(x, UNITS[name]) for x, name in zip(point, self.objectives)]
            rows.append([str(number), *cells, said(plan)])
        wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(c.rjust(w) for c, w in zip(row[:-1], wide)) + f"  {row[-1]}" for row in rows
        ]
        beyond = "not proved beyond that" if self.proved else "not proved exact"
        lines.append(f"{counted(len(self), 'plan')}, {self.claim}")
        return "\n".join([*lines, *(f"{beyond}: {reason}" for reason in self.reasons)])


def over(graphs: Sequence[str]) -> str:
    """Whose placements were enumerated, in words.

    >>> over(["as written", "fused"])
    'the placements of 2 graphs: as written, fused'
    """
    named = graphs if len(graphs) <= NAMED else [*graphs[: NAMED - 1], "..."]
    return f"the placements of {counted(len(graphs), 'graph')}: {', '.join(named)}"


def said(plan: Plan) -> str:
    """Which index dimensions an axis cuts where most is computed, in a few words."""
    weights: dict[str, dict[str, float]] = {axis: {} for axis in plan.mesh.axis_names}
    for application, placed in zip(plan.graph.applications, plan.placed):
        operator = plan.graph.operators.find(application.operator)
        flops = operator.count_flops(
            placed.signature, placed.signature.space, application.attributes
        )
        for dim, axes in placed.placement.items():
            for axis in axes:
                name = axis if isinstance(axis, str) else axis.name
                seen = weights[name]
                seen[dim] = seen.get(dim, 0.0) + flops
    parts = []
    for axis, dims in weights.items():
        top = sorted(dims, key=lambda dim: (-dims[dim], dim))[:3]
        parts.append(f"{axis}: {' '.join(top) or '-'}")
    return ", ".join(parts)
