"""`Reasons`: why a value is sharded as it is.

A plan has the shardings given for its graph, but not how it was planned. So propagation runs again;
where it agrees with the plan, its reasons apply. Elsewhere, as in a plan that was searched, the
placements give the reason: the application that computes or uses the value has an index dimension
cut.
"""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.layout import Axis, ShardingSpec
from weft.plan import Plan, Propagation, propagate


class Reasons:
    """Reasons by value, dimension and axis; each goes one step back, to another value."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.propagation = _propagated(plan)
        self.makers: dict[str, tuple[Plan, int, int]] = {}
        self.users: dict[str, tuple[Plan, int, int]] = {}
        self._collect(plan)

    def _collect(self, plan: Plan) -> None:
        for number, application in enumerate(plan.graph.applications):
            for inner in plan.regions.get(number, ()):
                self._collect(inner)
            for place, name in enumerate(application.operands):
                self.users.setdefault(name, (plan, number, place))
            for place, name in enumerate(application.results):
                self.makers[name] = plan, number, place

    def of(self, name: str, spec: ShardingSpec) -> list[dict[str, Any]]:
        """Return why each axis cuts the dimension that it cuts."""
        return [
            {"dim": dim, "axis": axis, **self._why(name, spec, dim, axis)}
            for dim, cut in enumerate(spec.dim_specs)
            for axis in dict.fromkeys(map(_name, cut.axes))
        ]

    def _why(self, name: str, spec: ShardingSpec, dim: int, axis: str) -> dict[str, Any]:
        if self.propagation is not None and self._agrees(name, spec, dim):
            reason = self.propagation.reason(name, dim, axis)
            if reason is not None:
                through = reason.application
                results = [] if through is None else list(through.results)
                operator = "" if through is None else through.operator
                return {
                    "kind": "through",
                    "operator": operator,
                    "results": results,
                    "value": reason.value,
                    "from": reason.dim,
                }
            written = self.plan.graph.shardings.get(name)
            if written is not None:
                return {"kind": "written", "text": written}
        return self._placed(name, dim, axis)

    def _agrees(self, name: str, spec: ShardingSpec, dim: int) -> bool:
        assert self.propagation is not None
        other = self.propagation.specs.get(name)
        return other is not None and other.dim_specs[dim].axes == spec.dim_specs[dim].axes

    def _placed(self, name: str, dim: int, axis: str) -> dict[str, Any]:
        """Return the index dimension that an axis cuts where the value is computed or used."""
        for kind, known in (("made", self.makers), ("used", self.users)):
            if name in known:
                plan, number, place = known[name]
                placed, application = plan.placed[number], plan.graph.applications[number]
                line = placed.signature.notation
                rows = (line.results if kind == "made" else line.operands)[place]
                cut = [
                    index
                    for index in rows[dim].dims
                    if axis in map(_name, placed.placement.get(index, ()))
                ]
                if cut:
                    return {
                        "kind": kind,
                        "operator": application.operator,
                        "results": list(application.results),
                        "index": cut[0],
                    }
        return {"kind": "chosen"}


def _propagated(plan: Plan) -> Propagation | None:
    """Return the propagation of the shardings given for the graph, if there are any."""
    if not (plan.graph.shardings or plan.graph.output_shardings):
        return None
    try:
        return propagate(plan.graph)
    except WeftError:
        return None


def _name(axis: Axis) -> str:
    return axis if isinstance(axis, str) else axis.name
