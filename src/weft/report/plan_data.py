"""`plan_data`: the data that the page shows of a plan: figures, nodes, edges, values, transfers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

from weft.lang.dtype import itemsize
from weft.layout import ShardingSpec
from weft.plan import Cost, Machine, Plan
from weft.plan.estimate import priced, seconds_of_transfer
from weft.plan.lower import sharding_of, transfer_axes
from weft.plan.plan import MovedValue, moved_values
from weft.plan.searching.pareto import cuts_summary
from weft.program import Apply, Executed, Message, Program, Route, Transfer
from weft.program.messages import messages
from weft.report.plan_graph import GraphNode, PlanGraph, plan_graph
from weft.report.reasons import Reasons
from weft.values import Point

MOST_CELLS = 64
"""The most devices for which messages between pairs are listed."""
MOST_BOXES = 3
"""The most boxes listed for a pair of devices."""
MOST_SHOWN = 4096
"""The most cells whose bytes and memory are listed."""


class Detail(NamedTuple):
    """How much is listed about transfers and their reasons, so that the page stays small."""

    most_cells: int = MOST_CELLS
    has_reasons: bool = True
    remark: str = ""


def plan_data(cost: Cost, detail: Detail = Detail()) -> dict[str, Any]:  # noqa: B008 - frozen
    """Return the data of a plan and its cost."""
    return _PlanWriter(cost, detail).data()


class _PlanWriter:
    """Collects the data of one plan."""

    def __init__(self, cost: Cost, detail: Detail) -> None:
        self.cost, self.plan, self.detail = cost, cost.plan, detail
        self.graph: PlanGraph = plan_graph(self.plan)
        self.layouts: dict[tuple[str, Point], int] = {}
        self.layout_rows: list[dict[str, Any]] = []
        self.specs = dict(_specs(self.plan))
        self.names = {name: n for n, name in enumerate(self.specs)}
        self.routes = Routes(cost.plan.program, cost.machine, detail.most_cells)
        self.moves: list[dict[str, Any]] = []
        self.taken: dict[tuple[int, int | None], tuple[float, int]] = {}
        self.coming: dict[tuple[int, int | None, str], list[int]] = {}
        self.drawn: set[int] = set()
        program = self.plan.program
        for each in program.count.executed:
            if isinstance(each.instruction, Apply):
                self._computed(each)
        for move in moved_values(program):
            self._moved(move)

    def data(self) -> dict[str, Any]:
        plan, graph, reasons = self.plan, self.graph, self._reasons()
        values = plan.graph.all_values.values()
        return {
            "label": cuts_summary(plan),
            "mesh": mesh_data(plan),
            "machine": self.cost.machine.name or None,
            "figures": self._figures(),
            "assumed": list(plan.assumed),
            "reasons": "placements"
            if reasons is None or reasons.propagation is None
            else "propagation",
            "groups": [group._asdict() for group in graph.groups],
            "itemsizes": {value.dtype: itemsize(value.dtype) for value in values},
            "values": [self._value(name, reasons) for name in self.specs],
            "nodes": list(map(self._node, graph.nodes)),
            "edges": list(map(self._edge, range(len(graph.edges)))),
            "moves": self.moves,
            "routes": self.routes.rows,
            "layouts": self.layout_rows,
        }

    def _reasons(self) -> Reasons | None:
        return Reasons(self.plan) if self.detail.has_reasons else None

    def _figures(self) -> dict[str, Any]:
        cost = self.cost
        figures: dict[str, Any] = {
            "seconds": cost.seconds,
            "compute": cost.compute,
            "communicate": cost.communicate,
            "bytes": cost.received,
            "loaded": cost.loaded,
            "stored": cost.stored,
            "flops": cost.flops,
            "peak": max(cost.peak, default=0),
            "capacity": cost.machine.capacity if isfinite(cost.machine.capacity) else None,
            "fits": cost.fits,
            "operators": sum(node.kind == "operator" for node in self.graph.nodes),
        }
        if self.plan.mesh.size <= MOST_SHOWN:
            cells = {"peaks": list(cost.peak), "received": list(cost.received_by_cell)}
            figures |= cells
        return figures

    def _computed(self, each: Executed) -> None:
        program = self.plan.program
        assert isinstance(each.instruction, Apply)
        place = id(program.graphs[each.body]), each.instruction.definition
        (item,) = priced(program, [each], self.cost.machine)
        before = self.taken.get(place, (0.0, 0))
        self.taken[place] = before[0] + item.seconds, before[1] + item.flops

    def _moved(self, move: MovedValue) -> None:
        program, first = self.plan.program, move.steps[0]
        number = program.bodies[first.body].application_at(first.place)
        key = id(program.graphs[first.body]), number, move.value
        items = priced(program, move.steps, self.cost.machine)
        self.coming.setdefault(key, []).append(len(self.moves))
        self.moves.append(
            {
                "value": self.names[move.value],
                "route": self.routes.number(move),
                "times": first.times,
                "inside": move.inside.rstrip(": "),
                "bytes": move.received,
                "seconds": sum(item.seconds for item in items),
            }
        )

    def _layout(self, spec: ShardingSpec, shape: Point) -> int:
        """Return the number of a sharding of a shape; the boxes of cells follow from its digits."""
        key = str(spec), shape
        if key not in self.layouts:
            self.layouts[key] = len(self.layout_rows)
            self.layout_rows.append(
                {
                    "text": key[0],
                    "shape": list(shape),
                    "axes": [str(dim.closed) for dim in spec.dim_specs],
                    "digits": [[list(digit) for digit in cut] for cut in spec.digits],
                    "parts": [[list(digit), monoid] for digit, monoid in spec.parts],
                    **({} if spec.cut_points is None else {"cut_points": spec.cut_points}),
                }
            )
        return self.layouts[key]

    def _value(self, name: str, reasons: Reasons | None) -> dict[str, Any]:
        value, spec = self.plan.graph.all_values[name], self.specs[name]
        data: dict[str, Any] = {
            "name": name,
            "dtype": value.dtype,
            "shape": list(value.shape),
            "layout": self._layout(spec, value.shape),
        }
        why = [] if reasons is None else reasons.of(name, spec)
        return data | ({"why": why} if why else {})

    def _node(self, node: GraphNode) -> dict[str, Any]:
        data: dict[str, Any] = {
            "kind": node.kind,
            "group": node.group,
            "values": [self.names[name] for name in node.values],
        }
        if node.kind == "output":
            assert node.number is not None
            shape = node.plan.graph.values[node.values[0]].shape
            data["wanted"] = self._layout(node.plan.outputs[node.number], shape)
        return data | (self._operator(node) if node.kind == "operator" else {})

    def _operator(self, node: GraphNode) -> dict[str, Any]:
        """Return what an application computes, and where."""
        assert node.number is not None
        application, placed = (
            node.plan.graph.applications[node.number],
            node.plan.placed[node.number],
        )
        place = id(node.plan.graph), node.number
        seconds, flops = self.taken.get(place, (0.0, 0))
        sizes = placed.signature.sizes
        index = placed.index
        settles = [move for name in node.values for move in self.coming.get((*place, name), ())]
        return {
            "operator": application.operator,
            "line": str(placed.signature.notation),
            "index": list(sizes),
            "space": self._layout(index, tuple(sizes.values())),
            "seconds": seconds,
            "flops": flops,
            **({"settles": settles} if settles else {}),
            **(
                {"attributes": _attributes_text(application.attributes)}
                if application.attributes
                else {}
            ),
        }

    def _edge(self, number: int) -> list[Any]:
        """Return the ends of an edge, its value, and its transfers."""
        start, end, value = self.graph.edges[number]
        node = self.graph.nodes[end]
        moves = [move for move in self._along(node, value) if move not in self.drawn]
        self.drawn.update(moves)  # a value that enters a region twice is transferred once
        return [start, end, self.names[value], *([moves] if moves else [])]

    def _along(self, node: GraphNode, value: str) -> list[int]:
        """Return the transfers of a value on its way to a node."""
        if node.kind == "output":
            return self._returned(node)
        assert node.number is not None
        inner = node.plan.regions.get(node.number, ())
        moves = self.coming.get((id(node.plan.graph), node.number, value), [])
        if node.kind == "argument":  # a loop's values are brought once, for both of its regions
            return moves if node.values[0] in inner[-1].graph.values else []
        returned = (self.coming.get((id(plan.graph), None, value), ()) for plan in inner)
        return [*moves, *(move for found in returned for move in found)]

    def _returned(self, node: GraphNode) -> list[int]:
        """Return the transfers for one output; a value may be returned several times."""
        name, plan = node.values[0], node.plan
        moving = [n for n, way in enumerate(plan.returns) if any(way.received)]
        same = [n for n in moving if plan.graph.outputs[n] == name]
        if node.number not in same:
            return []
        return [self.coming[id(plan.graph), None, name][same.index(node.number)]]


def _specs(plan: Plan) -> Iterator[tuple[str, ShardingSpec]]:
    """Yield the sharding of every value, including those of regions."""
    yield from plan.specs.items()
    for plans in plan.regions.values():
        for inner in plans:
            yield from ((name, s) for name, s in _specs(inner) if name not in plan.specs)


def mesh_data(plan: Plan) -> dict[str, Any]:
    """Return the text, the axes, and the devices of a mesh if they are permuted."""
    mesh = plan.mesh
    return {
        "text": str(mesh),
        "axes": [list(axis) for axis in zip(mesh.axis_names, mesh.shape)],
        "devices": None if mesh.device_ids is None else list(mesh.device_ids),
    }


def _attributes_text(attributes: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}={value}" for key, value in attributes.items())
    return text if len(text) <= 200 else f"{text[:200]}…"


# -- routes ---------------------------------------------------------------------------------------


class Routes:
    """A table of routes, each listed once: its steps, and the messages between devices."""

    def __init__(self, program: Program, machine: Machine, most_cells: int = MOST_CELLS) -> None:
        self.program, self.machine, self.most_cells = program, machine, most_cells
        self.rows: list[dict[str, Any]] = []
        self.known: dict[Hashable, int] = {}

    def number(self, move: MovedValue) -> int:
        """Return the number of a move's route in the table."""
        transfers = [
            each.instruction for each in move.steps if isinstance(each.instruction, Transfer)
        ]
        key = tuple((self._route(transfer), self._width(transfer)) for transfer in transfers)
        if key not in self.known:
            self.known[key] = len(self.rows)
            self.rows.append({"steps": list(map(self._step, transfers))})
        return self.known[key]

    def _width(self, transfer: Transfer) -> int:
        return self.program.buffers[transfer.source].itemsize

    def _route(self, transfer: Transfer) -> Route:
        before, after = (self.program.buffers[n].layout for n in (transfer.source, transfer.result))
        return Route.of(transfer, before, after)

    def _step(self, transfer: Transfer) -> dict[str, Any]:
        program, route = self.program, self._route(transfer)
        before, after = (
            sharding_of(program.mesh, layout) for layout in (route.before, route.after)
        )
        count = program.count
        return {
            "kind": transfer.kind,
            "axes": transfer_axes(program, transfer),
            "before": str(before),
            "after": str(after or "the needed boxes"),
            "seconds": seconds_of_transfer(program, transfer, self.machine),
            "devices": list(map(program.cells.device, range(program.cells.size))),
            "received": list(count.classes.expand(count.received(transfer))),
            **self._pairs(route, self._width(transfer)),
        }

    def _pairs(self, route: Route, itemsize: int) -> dict[str, Any]:
        """Return the bytes and boxes for each pair of devices; nothing if there are too many."""
        if self.program.cells.size > self.most_cells:
            return {}
        moved = [m for m in messages(route) if m.sender != m.receiver]
        return {"pairs": list(_paired(moved, itemsize))}


def _paired(moved: Iterable[Message], itemsize: int) -> Iterator[list[Any]]:
    pairs: dict[tuple[int, int], list[Message]] = {}
    for message in moved:
        pairs.setdefault((message.sender, message.receiver), []).append(message)
    for (sender, receiver), some in pairs.items():
        boxes = [str(message.box) for message in some[:MOST_BOXES]]
        more = ["…"] * (len(some) > MOST_BOXES)
        yield [sender, receiver, sum(m.box.size for m in some) * itemsize, [*boxes, *more]]
