r"""Plans as JSON: versioned, checked field by field when it is read, never executed.

    {"weft_plan": 1,
     "graph": {"weft": 1, …},
     "mesh": "@m = <[\"x\"=2]>",
     "specs": {"a": "<@m, [{\"x\"}, {}]>", "b": "<@m, [{\"x\"}, {}]>"},
     "outputs": ["<@m, [{}, {}]>"],
     "placements": [{"cuts": {"i": ["x"]}, "kept": []}],
     "machine": {"weft_machine": 1, …}}

`cuts` are the axes by index dimension, whole or in part (`"x":(1)2`); `kept` are the axes over
which operands stay partial. What moves is not written: it follows. An error names the path of the
field that is wrong: `placements[3].cuts.k`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.errors import WeftError
from weft.lang import Graph, Signature
from weft.lang.field import MOST, Field, parse_json
from weft.lang.operator import OPERATORS, Library
from weft.lang.serial import read_graph, to_json
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.machine_file import finite, machine_data, read_machine
from weft.plan.placed import Placed, kept_of, place
from weft.text.shardy import as_axes
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.plan.plan import Plan

VERSION = 1
FIELDS = "weft_plan graph mesh specs outputs placements machine"

Cuts: TypeAlias = Mapping[str, tuple[Axis, ...]]
Kept: TypeAlias = dict[Axis, tuple[str, tuple[int, ...]]]
Parts: TypeAlias = tuple[
    Graph,
    DeviceMesh,
    Mapping[str, ShardingSpec],
    tuple[ShardingSpec, ...],
    tuple[Placed, ...],
    Machine | None,
]
"""What a `Plan` is made of."""


def write_plan(plan: Plan, indent: int | None = 1) -> str:
    """The plan as text."""
    for spec in (*plan.specs.values(), *plan.outputs):
        if spec.mesh != plan.mesh:
            raise WeftError(f"a plan on {plan.mesh} has a sharding on {spec.mesh}")
    return json.dumps(
        {
            "weft_plan": VERSION,
            "graph": json.loads(to_json(plan.graph)),
            "mesh": str(plan.mesh),
            "specs": {name: str(spec) for name, spec in plan.specs.items()},
            "outputs": list(map(str, plan.outputs)),
            "placements": list(map(_placement, plan.placed)),
            "machine": None if plan.machine is None else finite(machine_data(plan.machine)),
        },
        indent=indent,
    )


def _placement(placed: Placed) -> dict[str, Any]:
    return {
        "cuts": {dim: list(map(str, axes)) for dim, axes in placed.placement.items() if axes},
        "kept": [
            {"axis": str(axis), "monoid": monoid, "operands": list(operands)}
            for axis, (monoid, operands) in kept_of(placed).items()
        ],
    }


def read_plan(text: str, operators: Library = OPERATORS) -> Parts:
    """Read what a plan is made of from its text."""
    root = parse_json(text, "the plan")
    root.fields(FIELDS)
    if root.at("weft_plan").value != VERSION:
        root.at("weft_plan").fail(f"the version {VERSION}")
    graph = read_graph(root.at("graph"), operators)
    mesh, machine = _mesh(root.at("mesh")), root.at("machine")
    reader = _Reader(graph, mesh)
    return (
        graph,
        mesh,
        reader.specs(root.at("specs")),
        reader.outputs(root.at("outputs")),
        reader.placements(root.at("placements")),
        None if machine.value is None else machine.make(_machine, machine),
    )


def _mesh(field: Field) -> DeviceMesh:
    mesh = field.make(DeviceMesh.parse, field.text())
    if mesh.size > MOST:
        field.fail(f"a mesh of at most {MOST} cells")
    return mesh


def _machine(field: Field) -> Machine:
    return Machine(**read_machine(field))


class _Reader:
    """Reads what lies on the mesh of a plan."""

    def __init__(self, graph: Graph, mesh: DeviceMesh) -> None:
        self.graph, self.mesh = graph, mesh

    def specs(self, field: Field) -> Mapping[str, ShardingSpec]:
        """A sharding for each value, in the order of the program."""
        values = self.graph.values
        for name in field.table(Field.text):
            if name not in values:
                raise WeftError(f"{field.at(name).path}: there is no such value in the graph")
        return FrozenMap(
            (name, self._spec(field.at(name), len(value.shape))) for name, value in values.items()
        )

    def outputs(self, field: Field) -> tuple[ShardingSpec, ...]:
        """A sharding for each output."""
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
        field.fields("cuts kept")
        line = self.graph.signatures[number]
        cuts = field.at("cuts").table(_axes)
        for name in cuts:
            if name not in line.sizes:
                path = field.at("cuts").at(name).path
                raise WeftError(f"{path}: there is no such index dimension in {line}")
        kept: Kept = dict(field.at("kept").items(lambda one: self._kept(number, one)))
        field.make(self._check_apart, line, cuts, kept)
        return field.make(place, self.mesh, line, cuts, kept)

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
        groups = [
            everything if group is ... else tuple(group) for group in operator.groups(monoid, line)
        ]
        if not operands or sorted(operands) not in map(sorted, groups):
            field.at("operands").fail(f"operands that {operator.name} keeps partial by {monoid}")
        (axis,) = field.at("axis").make(as_axes, [field.at("axis").text()], "axis")
        return axis, (monoid, tuple(operands))


def _axes(field: Field) -> tuple[Axis, ...]:
    return field.make(as_axes, field.items(Field.text), "axes")
