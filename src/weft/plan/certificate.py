"""Certificates: what a run of a plan does, as plain data for the checker to follow.

Everything here is read from what the executors use: the steps of reshards, the pieces of fetches,
the slices that cells take, the cells that are masked, and the boxes that they compute. What the
plan is to compute is not said here; `weft.lang.definition` says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.lang.region import arguments
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.delivery import Delivery, Slices
from weft.plan.fetch import Fetch
from weft.plan.placed import kept_of
from weft.plan.resharding.moves import Transfer
from weft.plan.resharding.reshard import Reshard
from weft.plan.resharding.step import Step
from weft.space import Digit, ZRange
from weft.values import Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan

Entry = dict[str, Any]


def certify(plan: Plan) -> dict[str, Any]:
    """Return the certificate of a plan."""
    table = _Table(plan.mesh)
    writer = _Writer(plan, table)
    writer.write()
    return {
        "version": 2,
        "devices": list(plan.mesh.device_ids or range(plan.mesh.size)),
        "layouts": table.layouts,
        "entries": writer.entries,
        "outputs": writer.outputs,
        "applications": writer.summaries,
    }


def labels(mesh: DeviceMesh, axes: Iterable[Axis]) -> list[int]:
    """The number of the part that each cell holds of an array that is partial over axes.

    >>> labels(DeviceMesh("m", (2, 2), ("x", "y")), ["y"])
    [0, 1, 0, 1]
    """
    digits = _in_mesh_order(map(mesh.digit, axes))
    found = []
    for cell in mesh.cells():
        number = 0
        for digit in digits:
            number = number * digit.radix + digit.of(cell)
        found.append(number)
    return found


def _in_mesh_order(digits: Iterable[Digit]) -> list[Digit]:
    return sorted(digits, key=lambda digit: (digit.dim, -digit.divisor))


class _Table:
    """The layouts of a certificate, each written down once, and the pieces of moves."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.ranks = {d: rank for rank, d in enumerate(mesh.device_ids or range(mesh.size))}
        self.layouts: list[Entry] = []
        self.boxes: list[Sequence[ZRange]] = []
        self.known: dict[object, int] = {}
        self.moves: dict[Step | Fetch, list[list[Any]]] = {}

    def of(self, spec: ShardingSpec, shape: Point) -> int:
        """The number of the layout that a sharding gives an array."""
        key = spec, shape
        if key not in self.known:
            if spec.mesh != self.mesh:
                raise WeftError(f"{spec} lies on {spec.mesh}, and the plan runs on {self.mesh}")
            self.known[key] = self.add(shape, spec.regions(shape), spec.partial)
        return self.known[key]

    def add(self, shape: Point, boxes: Sequence[ZRange], partial: Mapping[Axis, str]) -> int:
        """The number of a layout."""
        digits = {self.mesh.digit(axis): monoid for axis, monoid in partial.items()}
        parts: list[list[Any]] = []
        for digit in _in_mesh_order(digits):
            if parts and parts[-1][1] == digits[digit]:
                parts[-1][0] *= digit.radix
            elif digit.radix > 1:
                parts.append([digit.radix, digits[digit]])
        return self._add(shape, boxes, labels(self.mesh, partial), parts)

    def like(self, number: int, boxes: Sequence[ZRange]) -> int:
        """The number of a layout with the parts of another."""
        other = self.layouts[number]
        return self._add(tuple(other["shape"]), boxes, other["labels"], other["parts"])

    def _add(
        self,
        shape: Point,
        boxes: Sequence[ZRange],
        at: Sequence[int],
        parts: Sequence[Sequence[Any]],
    ) -> int:
        key = (tuple(shape), tuple(boxes), tuple(at), tuple(map(tuple, parts)))
        if key not in self.known:
            self.known[key] = len(self.layouts)
            self.boxes.append(boxes)
            self.layouts.append(
                {
                    "shape": list(shape),
                    "boxes": [[list(box.start), list(box.stop)] for box in boxes],
                    "labels": list(at),
                    "parts": list(map(list, parts)),
                }
            )
        return self.known[key]

    def pieces(self, hop: Step | Fetch) -> list[list[Any]]:
        """Who sends what to whom; with several monoids also which part it is."""
        if hop not in self.moves:
            several = isinstance(hop, Step) and len(hop.monoids) > 1
            found = hop.moves() if isinstance(hop, Step) else hop.transfers
            self.moves[hop] = [self._piece(move, several) for move in found]
        return self.moves[hop]

    def _piece(self, move: Transfer, with_part: bool) -> list[Any]:
        box, ranks = move.box, self.ranks
        piece = [ranks[move.sender], ranks[move.receiver], list(box.start), list(box.stop)]
        return [*piece, list(move.part)] if with_part else piece


class _Writer:
    """Writes down what a run of a plan, or of a region's, does."""

    def __init__(self, plan: Plan, table: _Table) -> None:
        if plan.mesh != table.mesh:
            raise WeftError(f"a region runs on {plan.mesh}, and the plan on {table.mesh}")
        graph = plan.graph
        for application, line, placed in zip(graph.applications, graph.signatures, plan.placed):
            name = application.operator
            if placed.mesh != plan.mesh:
                raise WeftError(f"{name} is placed on {placed.mesh}, and runs on {plan.mesh}")
            if placed.signature != line:
                raise WeftError(f"{name} is placed as {placed.signature}, and the graph has {line}")
        self.plan, self.table = plan, table
        self.entries: list[Entry] = []
        self.summaries: list[Entry] = []
        self.outputs: list[Entry] = []
        self.at: dict[str, int] = {}
        """The layout of every state so far."""

    def write(self, further: Sequence[Reshard] = ()) -> None:
        """Write everything; `further` are the reshards of the outputs after the graph's own."""
        plan = self.plan
        for value in plan.graph.inputs:
            layout = self.table.of(plan.specs[value.name], value.shape)
            self._add("input", value.name, layout)
        for number in range(len(plan.graph.applications)):
            self.application(number)
        for place, name in enumerate(plan.graph.outputs):
            shape = plan.graph.values[name].shape
            state, layout = f"output {place}", self.table.of(plan.outputs[place], shape)
            self._kept(self._moved(name, state, plan.returns[place]), state, layout)
            if further:
                state = self._moved(state, f"{state} outside", further[place])
                layout = self.at[state]
            self.outputs.append({"state": state, "layout": layout})

    def application(self, number: int) -> None:
        """Write what an application does, and how its results come to lie as they are kept."""
        plan, application = self.plan, self.plan.graph.applications[number]
        if not application.results:
            self.summaries.append({"operator": application.operator})
            return
        what: Entry = {
            "application": number,
            "operator": application.operator,
            "attributes": dict(application.attributes),
        }
        match application.operator, bool(application.regions):
            case _, False:
                made = self._apply(number, what)
            case "while", _:
                made = self._loop(number, what)
            case "case" | "if", _:
                made = self._branch(number, what)
            case operator, _:
                raise WeftError(
                    f"{operator} runs a graph of its own that no executor runs: nothing is proved"
                )
        placed = plan.placed[number]
        for n, (name, source) in enumerate(zip(application.results, made)):
            shape = plan.graph.values[name].shape
            state = self._kept(source, f"{name} as made", self.table.of(placed.results[n], shape))
            state = self._moved(state, f"{name} resharded", plan.result_reshards[number][n])
            self._kept(state, name, self.table.of(plan.specs[name], shape))

    def _add(self, kind: str, name: str, layout: int, **fields: Any) -> str:
        self.entries.append({"kind": kind, "name": name, "layout": layout, **fields})
        self.at[name] = layout
        return name

    def _from(self, kind: str, source: str, name: str, layout: int, **fields: Any) -> str:
        before = fields.pop("before", self.at[source])
        return self._add(kind, name, layout, **{"from": source}, before=before, **fields)

    def _kept(self, source: str, name: str, layout: int) -> str:
        """The same arrays under another name, and in the layout that they are said to have."""
        return self._from("keep", source, name, layout) if source != name else name

    def _moved(self, source: str, name: str, reshard: Reshard | None) -> str:
        """Write the steps of a reshard; return the name of the state that they make."""
        table, shape = self.table, reshard.shape if reshard else ()
        for place, step in enumerate(reshard.steps if reshard else ()):
            target = f"{name}, step {place}"
            before, after = table.of(step.before, shape), table.of(step.after, shape)
            if step.kind == "mask":
                masked = [""] * table.mesh.size
                for rank, cell in enumerate(table.mesh.cells()):
                    for digit, monoid in step.parts.masked:
                        masked[rank] = monoid if digit.of(cell) else masked[rank]
                source = self._from("mask", source, target, after, before=before, masked=masked)
            else:
                pieces, monoids = table.pieces(step), list(step.monoids)
                source = self._from(
                    "move", source, target, after, before=before, pieces=pieces, monoids=monoids
                )
        return source

    def _delivered(self, number: int, place: int) -> str:
        """Write how an operand comes to an application; return the name of the state."""
        plan, placed, table = self.plan, self.plan.placed[number], self.table
        application = plan.graph.applications[number]
        delivery: Delivery = plan.deliveries[number][place]
        shape = placed.signature.operand_shapes[place]
        name = f"{application.results[0]} operand {place}"
        state = self._moved(application.operands[place], name, delivery.reshard)
        fetch = delivery.fetch
        if fetch is not None:
            before = table.of(fetch.src, fetch.shape)
            layout = table.like(before, fetch.needs)
            pieces = table.pieces(fetch)
            state = self._from(
                "move", state, f"{name} fetched", layout, before=before, pieces=pieces, monoids=[]
            )
        if any(delivery.slices):
            boxes = list(map(_sliced, table.boxes[self.at[state]], delivery.slices))
            state = self._from("slice", state, f"{name} sliced", table.like(self.at[state], boxes))
        if any(delivery.hidden):
            layout = table.add(shape, table.boxes[self.at[state]], placed.partials[place])
            masked = list(delivery.hidden)
            state = self._from("mask", state, f"{name} masked", layout, masked=masked)
        return state

    def _apply(self, number: int, what: Entry) -> list[str]:
        """Write what the cells compute; return the names of the results."""
        plan, placed, table = self.plan, self.plan.placed[number], self.table
        application, mesh = plan.graph.applications[number], table.mesh
        operands = [self._delivered(number, n) for n in range(len(application.operands))]
        line = placed.signature
        made = [f"{name} computed" for name in application.results]
        layouts = list(map(table.of, placed.results, line.result_shapes))
        kept = [
            [monoid, sorted(group), list(map(mesh.digit(axis).of, mesh.cells()))]
            for axis, (monoid, group) in kept_of(placed).items()
        ]
        self.entries.append(
            {
                "kind": "apply",
                "name": application.results[0],
                **what,
                "index": table.add(tuple(line.sizes.values()), placed.boxes, {}),
                "operands": operands,
                "kept": kept,
                "leaders": list(placed.leaders),
                "results": [
                    {"name": name, "layout": layout} for name, layout in zip(made, layouts)
                ],
            }
        )
        self.at.update(zip(made, layouts))
        cut = [axis for name in line.reduced for axis in placed.placement[name]]
        count = prod(map(placed.mesh.axis_size, cut))
        boxes = len({box for box in placed.boxes if box})
        cover = {"boxes": boxes, "parts": count}
        self.summaries.append({"operator": application.operator, "cover": cover})
        return made

    def _loop(self, number: int, what: Entry) -> list[str]:
        """Write what a loop does; return the names of its results."""
        plan, application = self.plan, self.plan.graph.applications[number]
        reshards, body = plan.loop_reshards[number], plan.regions[number][1]
        carried, layouts = [], []
        names = arguments(application, body.graph)
        for n, result in enumerate(application.results):
            name, value = f"{result} carried", names[n]
            state = self._moved(application.operands[n], name, reshards.entry[n])
            layouts.append(self.table.of(body.specs[value.name], value.shape))
            carried.append(self._kept(state, name, layouts[-1]))
        regions = [_Writer(inner, self.table) for inner in plan.regions[number]]
        for region in regions:
            region.write()
        made = self._regions("loop", number, what, regions, layouts, carried=carried)
        return [
            self._moved(state, f"{name} returned", way)
            for state, name, way in zip(made, application.results, reshards.exit)
        ]

    def _branch(self, number: int, what: Entry) -> list[str]:
        """Write what a choice between branches does; return the names of its results."""
        plan, application = self.plan, self.plan.graph.applications[number]
        regions = [_Writer(inner, self.table) for inner in plan.regions[number]]
        for region, ways in zip(regions, plan.branch_reshards[number]):
            region.write(ways)
        layouts = [output["layout"] for output in regions[0].outputs]
        selector = application.operands[0]
        return self._regions("branch", number, what, regions, layouts, selector=selector)

    def _regions(
        self,
        kind: str,
        number: int,
        what: Entry,
        regions: Sequence[_Writer],
        layouts: Sequence[int],
        **fields: Any,
    ) -> list[str]:
        application = self.plan.graph.applications[number]
        made = [f"{name} computed" for name in application.results]
        stories = [{"entries": each.entries, "outputs": each.outputs} for each in regions]
        results = [{"name": name, "layout": layout} for name, layout in zip(made, layouts)]
        name = application.results[0]
        self.entries.append(
            {"kind": kind, "name": name, **what, **fields, "regions": stories, "results": results}
        )
        self.at.update(zip(made, layouts))
        inner = [{"applications": region.summaries} for region in regions]
        self.summaries.append({"operator": application.operator, "regions": inner})
        return made


def _sliced(box: ZRange, part: Slices | None) -> ZRange:
    """The box that a cell takes of the one that it holds."""
    if part is None:
        return box
    starts = [low + cut.start for low, cut in zip(box.start, part)]
    return ZRange(starts, [low + cut.stop for low, cut in zip(box.start, part)])
