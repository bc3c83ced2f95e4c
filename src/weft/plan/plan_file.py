r"""Plans as JSON: versioned, checked field by field when it is read, never executed.

    {"weft_plan": 1,
     "graph": {"weft": 1, …},
     "mesh": "@m = <[\"x\"=2]>",
     "specs": {"a": "<@m, [{\"x\"}, {}]>", "b": "<@m, [{\"x\"}, {}]>"},
     "outputs": ["<@m, [{}, {}]>"],
     "placements": [{"cuts": {"i": ["x"]}, "kept": []}],
     "machine": {"weft_machine": 1, …}}

`cuts` are the axes by index dimension, whole or in part (`"x":(1)2`); `kept` are the axes over
which operands stay partial. An application that runs graphs of its own has `regions` as well: for
each the `specs`, `outputs` and `placements` inside. What moves is not written: it follows.
`monoids` has the fingerprints of monoids that a user defined and values are partial by. An error
names the path of the field that is wrong: `placements[3].cuts.k`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.errors import WeftError
from weft.lang import Graph, Row, Signature
from weft.lang.field import MOST, Field, parse_json
from weft.lang.graph_json import check_monoids, read_graph, to_json
from weft.lang.monoid import definitions_of
from weft.lang.operator import OPERATORS, Library
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.layout.shardy_text import as_axes
from weft.plan.machine import Machine
from weft.plan.placed import Placed, kept_of, place
from weft.values import FrozenMap, Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan

VERSION = 1
MOST_BOXES = 8_000_000
"""The limit on the boxes of cells in a file, weighted by the work to compute them."""
FIELDS = "weft_plan graph mesh specs outputs placements machine monoids"

Cuts: TypeAlias = Mapping[str, tuple[Axis, ...]]
Kept: TypeAlias = dict[Axis, tuple[str, tuple[int, ...]]]
Parts: TypeAlias = tuple[
    Graph,
    DeviceMesh,
    Mapping[str, ShardingSpec],
    tuple[ShardingSpec, ...],
    tuple[Placed, ...],
    Machine | None,
    Mapping[int, tuple["Plan", ...]],
]
"""The fields of a `Plan`."""

Make: TypeAlias = Callable[..., "Plan"]
"""Makes a plan of its parts."""


def write_plan(plan: Plan, indent: int | None = 1) -> str:
    """Return the plan as JSON."""
    for spec in (*plan.specs.values(), *plan.outputs):
        if spec.mesh != plan.mesh:
            raise WeftError(f"a plan on {plan.mesh} has a sharding on {spec.mesh}")
    monoids = definitions_of(_monoids(plan))
    return json.dumps(
        {
            "weft_plan": VERSION,
            "graph": json.loads(to_json(plan.graph)),
            "mesh": str(plan.mesh),
            **_inside(plan),
            "machine": None if plan.machine is None else plan.machine.to_data(),
            **({"monoids": monoids} if monoids else {}),
        },
        indent=indent,
    )


def _monoids(plan: Plan) -> Iterator[str]:
    """Yield the monoids by which values are partial, in regions, too."""
    for spec in (*plan.specs.values(), *plan.outputs):
        yield from spec.partial.values()
    for region in (each for regions in plan.regions.values() for each in regions):
        yield from _monoids(region)


def _inside(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan as JSON values."""
    return {
        "specs": {name: str(spec) for name, spec in plan.specs.items()},
        "outputs": list(map(str, plan.outputs)),
        "placements": [
            _placement(placed) | _regions(plan.regions.get(number, ()))
            for number, placed in enumerate(plan.placed)
        ],
    }


def _regions(plans: Sequence[Plan]) -> dict[str, Any]:
    return {"regions": list(map(_inside, plans))} if plans else {}


def _placement(placed: Placed) -> dict[str, Any]:
    points = {name: dim.cut_points for name, dim in placed.cuts.items() if dim.cut_points}
    return {
        "cuts": {dim: list(map(str, axes)) for dim, axes in placed.placement.items() if axes},
        "kept": [
            {"axis": str(axis), "monoid": monoid, "operands": list(operands)}
            for axis, (monoid, operands) in kept_of(placed).items()
        ],
        **({"cut_points": {name: list(at) for name, at in points.items()}} if points else {}),
    }


def read_plan(text: str, make: Make, operators: Library = OPERATORS) -> Parts:
    """Read what a plan is made of from its text; `make` makes those of its regions."""
    root = parse_json(text, "the plan")
    root.fields(FIELDS)
    if root.at("weft_plan").value != VERSION:
        root.at("weft_plan").fail(f"the version {VERSION}")
    check_monoids(root.at("monoids"))
    graph = read_graph(root.at("graph"), operators)
    mesh, field = read_mesh(root.at("mesh")), root.at("machine")
    machine = None if field.value is None else field.make(_machine, field)
    return _Reader(graph, _Placer(mesh), machine, make).parts(root)


def read_mesh(field: Field) -> DeviceMesh:
    """Return a mesh from its text; meshes that are too large to plan are refused."""
    mesh = field.make(DeviceMesh.parse, field.text())
    if mesh.size > MOST:
        field.fail(f"a mesh of at most {MOST} cells")
    return mesh


def _machine(field: Field) -> Machine:
    return Machine.from_field(field)


class _Placer:
    """Places applications on the mesh of a plan, each kind once, within `MOST_BOXES`."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.placed: dict[object, Placed] = {}
        self.boxes = 0

    def place(self, line: Signature, cuts: Cuts, kept: Kept, points: Mapping[str, Point]) -> Placed:
        """Place an application, or return the one that is placed alike."""
        key = line, frozenset(cuts.items()), frozenset(kept.items()), frozenset(points.items())
        if key not in self.placed:
            self.boxes += self._boxes(line, cuts)
            if self.boxes > MOST_BOXES:
                raise WeftError(
                    f"the applications of the plan up to here take {self.boxes} boxes on "
                    f"{self.mesh.size} cells; at most {MOST_BOXES} are read"
                )
            dims = {name: DimSpec(axes, False, 0, points.get(name)) for name, axes in cuts.items()}
            self.placed[key] = place(self.mesh, line, dims, kept)
        return self.placed[key]

    def _boxes(self, line: Signature, cuts: Cuts) -> int:
        """Return an upper bound of the boxes that `place` makes, weighted by what one takes.

        A box that several cells share is a reference; one that follows from a window is computed.
        """
        cut = prod(self.mesh.axis_size(axis) for axes in cuts.values() for axis in axes)
        plain = [((), len(line.sizes))]
        tensors = [(rows, len(rows)) for rows in line.notation.operands + line.notation.results]
        return sum(
            self.mesh.size + min(cut, self.mesh.size) * (ndim // 2 + (2 if _is_plain(rows) else 64))
            for rows, ndim in (*plain, *tensors)
        )


def _is_plain(rows: Sequence[Row]) -> bool:
    return all(row.plain for row in rows)


class _Reader:
    """Reads what lies on the mesh of a plan."""

    def __init__(self, graph: Graph, placer: _Placer, machine: Machine | None, make: Make) -> None:
        self.graph, self.placer, self.machine, self.make = graph, placer, machine, make
        self.mesh = placer.mesh

    def parts(self, field: Field) -> Parts:
        """Return the fields of a plan."""
        return (
            self.graph,
            self.mesh,
            self.specs(field.at("specs")),
            self.outputs(field.at("outputs")),
            self.placements(field.at("placements")),
            self.machine,
            FrozenMap(self._regions(field.at("placements"))),
        )

    def _regions(self, field: Field) -> Iterator[tuple[int, tuple[Plan, ...]]]:
        """Return the plans of regions, by application."""
        for number, one in enumerate(field.items(lambda each: each)):
            graphs = self.graph.applications[number].regions
            found = one.at("regions").items(lambda each: each)
            if len(found) != len(graphs):
                one.at("regions").fail(f"a list of {len(graphs)}, one for each region")
            plans = []
            for graph, inside in zip(graphs, found):
                inside.fields("specs outputs placements")
                reader = _Reader(graph, self.placer, self.machine, self.make)
                plans.append(self.make(*reader.parts(inside)))
            if plans:
                yield number, tuple(plans)

    def specs(self, field: Field) -> Mapping[str, ShardingSpec]:
        """Return the sharding of each value, in program order."""
        values = self.graph.values
        for name in field.table(Field.text):
            if name not in values:
                raise WeftError(f"{field.at(name).path}: there is no such value in the graph")
        return FrozenMap(
            (name, self._spec(field.at(name), len(value.shape))) for name, value in values.items()
        )

    def outputs(self, field: Field) -> tuple[ShardingSpec, ...]:
        """Return the sharding of each output."""
        ranks = [len(self.graph.values[name].shape) for name in self.graph.outputs]
        found = field.items(lambda one: one)
        if len(found) != len(ranks):
            field.fail(f"a list of {len(ranks)} shardings, one for each output")
        return tuple(map(self._spec, found, ranks))

    def _spec(self, field: Field, rank: int) -> ShardingSpec:
        spec = field.make(ShardingSpec.parse, field.text(), self.mesh)
        if spec.ndim != rank:
            field.fail(f"a sharding of rank {rank}")
        return spec

    def placements(self, field: Field) -> tuple[Placed, ...]:
        """Each application placed as the file says."""
        found = field.items(lambda one: one)
        if len(found) != len(self.graph.applications):
            field.fail(f"a list of {len(self.graph.applications)}, one for each application")
        return tuple(self._placed(number, one) for number, one in enumerate(found))

    def _placed(self, number: int, field: Field) -> Placed:
        field.fields("cuts kept cut_points regions")
        line = self.graph.signatures[number]
        cuts = field.at("cuts").table(_axes)
        for name in cuts:
            if name not in line.sizes:
                path = field.at("cuts").at(name).path
                raise WeftError(f"{path}: there is no such index dimension in {line}")
        kept: Kept = dict(field.at("kept").items(lambda one: self._kept(number, one)))
        field.make(self._check_apart, line, cuts, kept)
        points = field.at("cut_points").table(lambda each: tuple(each.items(Field.size)))
        for name in points:
            if not cuts.get(name):
                path = field.at("cut_points").at(name).path
                raise WeftError(f"{path}: the index dimension is not cut")
        return field.make(self.placer.place, line, cuts, kept, points)

    def _check_apart(self, line: Signature, cuts: Cuts, kept: Kept) -> None:
        """Refuse an axis that both cuts and is kept, and parts by two monoids at once."""
        partial = {axis: monoid for axis, (monoid, _) in kept.items()}
        ShardingSpec(self.mesh, map(DimSpec, cuts.values()), (), partial)
        monoids = {
            *partial.values(),
            *(line.notation.reduced[d] for d in line.reduced if cuts.get(d)),
        }
        if partial and len(monoids) > 1:
            raise WeftError(f"parts by {' and '.join(sorted(monoids))} at once")

    def _kept(self, number: int, field: Field) -> tuple[Axis, tuple[str, tuple[int, ...]]]:
        """Operands that stay partial together: some that the operator keeps so."""
        field.fields("axis monoid operands")
        monoid, operands = field.at("monoid").text(), field.at("operands").items(Field.size)
        application, line = self.graph.applications[number], self.graph.signatures[number]
        operator = self.graph.operators.find(application.operator)
        everything = tuple(range(len(application.operands)))
        dtypes = [self.graph.values[name].dtype for name in application.operands]
        made = [self.graph.values[name].dtype for name in application.results]
        groups = [
            everything if group is ... else tuple(group)
            for group in operator.groups(monoid, line, dtypes, made)
        ]
        if not operands or sorted(operands) not in map(sorted, groups):
            field.at("operands").fail(f"operands that {operator.name} keeps partial by {monoid}")
        (axis,) = field.at("axis").make(as_axes, [field.at("axis").text()], "axis")
        return axis, (monoid, tuple(operands))


def _axes(field: Field) -> tuple[Axis, ...]:
    return field.make(as_axes, field.items(Field.text), "axes")
