"""Certificates: the story of a plan as plain data, for the checker to follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.delivery import Delivery
from weft.plan.placed import Placed
from weft.plan.resharding.reshard import Reshard
from weft.space import Projection, ZRange
from weft.values import Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan

Entry = dict[str, Any]


def certify(plan: Plan) -> dict[str, Any]:
    """The certificate of a plan."""
    writer = _Writer(plan)
    for value in plan.graph.inputs:
        writer.input(value.name)
    for number in range(len(plan.graph.applications)):
        writer.application(number)
    outputs = [
        writer.moved(name, f"output {place}", plan.returns[place])
        for place, name in enumerate(plan.graph.outputs)
    ]
    return {
        "version": 1,
        "devices": list(plan.mesh.device_ids or range(plan.mesh.size)),
        "entries": writer.entries,
        "outputs": outputs,
        "applications": writer.summaries,
    }


def labels(mesh: DeviceMesh, axes: Iterable[Axis]) -> list[int]:
    """The number of the part that each cell holds of an array that is partial over axes.

    >>> labels(DeviceMesh("m", (2, 2), ("x", "y")), ["y"])
    [0, 1, 0, 1]
    """
    digits = sorted(map(mesh.digit, axes), key=lambda digit: (digit.dim, -digit.divisor))
    found = []
    for cell in mesh.cells():
        number = 0
        for digit in digits:
            number = number * digit.radix + digit.of(cell)
        found.append(number)
    return found


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.entries: list[Entry] = []
        self.summaries: list[Entry] = []
        self.ranks = {device: rank for rank, device in enumerate(_devices(plan.mesh))}

    def input(self, name: str) -> None:
        shape = self.plan.graph.values[name].shape
        self.entries.append({"kind": "input", "name": name, **_lies(self.plan.specs[name], shape)})

    def application(self, number: int) -> None:
        plan, application = self.plan, self.plan.graph.applications[number]
        placed = plan.placed[number]
        if not application.results:
            self.summaries.append({"operator": application.operator})
            return
        operands = [
            self._delivered(name, f"{application.results[0]} operand {n}", placed, n, delivery)
            for n, (name, delivery) in enumerate(zip(application.operands, plan.deliveries[number]))
        ]
        made = [f"{name} as made" for name in application.results]
        if application.regions:
            self._from_regions(application.operator, placed, made)
        else:
            self._apply(application.operator, placed, operands, made)
        for name, source, reshard in zip(application.results, made, plan.settlings[number]):
            self.moved(source, name, reshard, rename=True)

    def _from_regions(self, operator: str, placed: Placed, made: Sequence[str]) -> None:
        """What regions return is taken as given: their plans are proved by themselves."""
        shapes = placed.signature.result_shapes
        for name, spec, shape in zip(made, placed.results, shapes):
            self.entries.append({"kind": "input", "name": name, **_lies(spec, shape)})
        self.summaries.append({"operator": operator})

    def moved(self, source: str, name: str, reshard: Reshard, rename: bool = False) -> str:
        """Write down the steps of a reshard; the name of what they make."""
        for place, step in enumerate(reshard.steps):
            last = place == len(reshard.steps) - 1
            target = name if last else f"{name} after step {place}"
            if step.kind == "mask":
                hidden = self._hidden(step.after, step.before)
                self._hide(source, target, step.after, reshard.shape, hidden)
            else:
                pieces = [_piece(self.ranks, move) for move in step.moves()]
                self._move(source, target, pieces, **_lies(step.after, reshard.shape))
            source = target
        if rename and source != name:
            lies = _lies(reshard.dst, reshard.shape)
            self.entries.append({"kind": "take", "name": name, "from": source, **lies})
            return name
        return source

    def _delivered(
        self, value: str, name: str, placed: Placed, number: int, delivery: Delivery
    ) -> str:
        shape, needs = placed.signature.operand_shapes[number], placed.needs[number]
        mesh, source = placed.mesh, value
        spec = self.plan.specs[value]
        if delivery.reshard is not None:
            source = self.moved(source, f"{name} moved", delivery.reshard)
            spec = delivery.reshard.dst
        at = labels(mesh, spec.partial)
        if delivery.fetch is not None:
            pieces = [_piece(self.ranks, move) for move in delivery.fetch.transfers]
            lies = {"shape": list(shape), "boxes": _boxes(needs), "labels": at, "whole": False}
            self._move(source, f"{name} fetched", pieces, **lies)
            source = f"{name} fetched"
        else:
            lies = {"shape": list(shape), "boxes": _boxes(needs), "labels": at}
            self.entries.append({"kind": "take", "name": f"{name} taken", "from": source, **lies})
            source = f"{name} taken"
        if any(delivery.hidden):
            after = labels(mesh, placed.partials[number])
            lies = {"shape": list(shape), "boxes": _boxes(needs), "labels": after}
            hidden = [bool(monoid) for monoid in delivery.hidden]
            entry = {"kind": "hide", "name": f"{name} once", "from": source, "hidden": hidden}
            self.entries.append({**entry, **lies})
            source = f"{name} once"
        return source

    def _move(self, source: str, name: str, pieces: list[Any], **lies: Any) -> None:
        self.entries.append(
            {"kind": "move", "name": name, "from": source, "pieces": pieces, **lies}
        )

    def _hide(
        self, source: str, name: str, spec: ShardingSpec, shape: Point, hidden: list[bool]
    ) -> None:
        entry = {"kind": "hide", "name": name, "from": source, "hidden": hidden}
        self.entries.append({**entry, **_lies(spec, shape)})

    def _hidden(self, after: ShardingSpec, before: ShardingSpec) -> list[bool]:
        new = [axis for axis in after.partial if axis not in before.partial]
        digits = [after.mesh.digit(axis) for axis in new]
        return [any(d.of(cell) for d in digits) for cell in after.mesh.cells()]

    def _apply(
        self, operator: str, placed: Placed, operands: Sequence[str], made: Sequence[str]
    ) -> None:
        line, names = placed.signature, list(placed.signature.sizes)
        reduced = [names.index(name) for name in line.reduced]
        parts = {axis: m for spec in placed.results for axis, m in spec.partial.items()}
        self.entries.append(
            {
                "kind": "apply",
                "name": operator,
                "sizes": list(line.sizes.values()),
                "reduced": reduced,
                "boxes": _boxes(placed.boxes),
                "monoid": next(iter(parts.values()), ""),
                "groups": _groups(placed),
                "operands": [
                    {"state": state, **_rows(projection)}
                    for state, projection in zip(operands, line.operands)
                ],
                "results": [
                    {"name": name, **_rows(projection), **_lies(spec, shape)}
                    for name, projection, spec, shape in zip(
                        made, line.results, placed.results, line.result_shapes
                    )
                ],
            }
        )
        cut = [axis for name in line.reduced for axis in placed.placement[name]]
        count = 1
        for axis in cut:
            count *= placed.mesh.axis_size(axis)
        boxes = len({box for box in placed.boxes if box})
        self.summaries.append({"operator": operator, "cover": {"boxes": boxes, "parts": count}})


def _groups(placed: Placed) -> list[list[int]]:
    """The operands that are partial over the same axes, other than by counting once."""
    line = placed.signature
    own = {axis for name in line.reduced for axis in placed.placement[name]}
    groups: dict[tuple[Axis, ...], list[int]] = {}
    for number, parts in enumerate(placed.partials):
        axes = tuple(axis for axis in parts if axis not in own)
        if axes:
            groups.setdefault(axes, []).append(number)
    return list(groups.values())


def _devices(mesh: DeviceMesh) -> Sequence[int]:
    return mesh.device_ids or range(mesh.size)


def _piece(ranks: Mapping[int, int], move: Any) -> list[Any]:
    return [ranks[move.sender], ranks[move.receiver], list(move.box.start), list(move.box.stop)]


def _boxes(boxes: Iterable[ZRange]) -> list[list[list[int]]]:
    return [[list(box.start), list(box.stop)] for box in boxes]


def _lies(spec: ShardingSpec, shape: Point) -> Entry:
    return {
        "shape": list(shape),
        "boxes": _boxes(spec.regions(shape)),
        "labels": labels(spec.mesh, spec.partial),
    }


def _rows(projection: Projection) -> Entry:
    return {
        "matrix": [list(row) for row in projection.matrix],
        "offset": list(projection.offset),
        "window": list(projection.shape),
    }
