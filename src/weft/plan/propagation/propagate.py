"""`follow`: the shardings that follow from those that a program's author wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import FactorRule, Graph
from weft.lang.notation import CUSTOM
from weft.lang.region import arguments
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.propagation.axes import Piece, Pieces, without
from weft.plan.propagation.engine import Engine, run_by_operator, run_by_user
from weft.plan.propagation.factors import Factors, TensorSharding, project
from weft.plan.propagation.merge import Direction, common_axes, truncate
from weft.plan.propagation.meshes import Meshes
from weft.plan.propagation.program import Applied, flatten
from weft.plan.propagation.reasons import History, Reason
from weft.values import FrozenMap

Rule: TypeAlias = Literal["basic", "aggressive", "op_priority", "user_priority"]


class Settled(NamedTuple):
    """How a plan was settled otherwise than propagation leaves it: by what it costs."""

    specs: Mapping[str, ShardingSpec]
    """How every value of the graph is kept, partial where it stays so."""
    kept: tuple[Mapping[Axis, tuple[str, tuple[int, ...]]], ...]
    """For every application the axes over which operands stay partial: the monoid, and which."""
    received: float
    """The bytes that the plan moves."""
    usual: float
    """The bytes that the plan of ordinary propagation moves; without end if it has none."""
    reasons: tuple[str, ...] = ()
    """Why no other plan is proved to move fewer bytes; empty if that is proved."""

    def __str__(self) -> str:
        usual = f"{self.usual} B" if isfinite(self.usual) else "no plan"
        text = f"chosen by cost: {self.received} B move, {usual} as propagation would have it"
        return "; ".join([text, *(f"not proved to be the fewest: {why}" for why in self.reasons)])


@dataclass(frozen=True, slots=True)
class Propagation:
    """What propagation found: how every value lies, and how every index space is cut."""

    graph: Graph
    meshes: tuple[DeviceMesh, ...]
    specs: Mapping[str, ShardingSpec]
    """The sharding of every value, by name, in the order of the program, those of regions too."""
    output_specs: tuple[ShardingSpec, ...]
    placements: tuple[Mapping[str, tuple[Axis, ...]], ...]
    """For every application of the graph itself, the axes that cut each of its index dimensions."""
    all_placements: tuple[Mapping[str, tuple[Axis, ...]], ...]
    """For those of regions as well, as `Graph.walk` comes to them."""
    partials: Mapping[str, Mapping[Axis, str]]
    """The results that are left unreduced: over which axes, by which monoid."""
    _history: History = field(compare=False, repr=False)
    settled: Settled | None = None
    """What a choice by cost adds: then a plan has values and operands as this says."""

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh; of several the first that has axes, on which what is not sharded lies."""
        return next((mesh for mesh in self.meshes if mesh.shape), self.meshes[0])

    def explain(self, value: str, dim: int) -> list[str]:
        """Why a dimension is cut as it is: for every axis, the way back to where it was written.

        The first line is the value; each further line is an operator and where the axis stood.
        """
        spec = self.specs.get(value)
        if spec is None:
            raise WeftError(f"there is no value {value} in the graph")
        if not 0 <= dim < spec.ndim:
            raise WeftError(f"{value} has no dimension {dim}: its sharding is {spec}")
        names = dict.fromkeys(map(_name, spec.dim_specs[dim].axes))
        return [line for name in names for line in self._way_back(value, dim, name)] or [
            f"{value} dimension {dim} is not cut"
        ]

    def reason(self, value: str, dim: int, axis: str) -> Reason | None:
        """Where an axis of a value came from, one step back; None where it was there at first."""
        return self._history.reason(value, dim, axis)

    def _way_back(self, value: str, dim: int, axis: str) -> Iterator[str]:
        yield f'{value} dimension {dim} is cut by "{axis}"'
        if self.settled is not None and value in self.graph.values:
            yield f"  {self._said_or_chosen(value, dim, axis)}"
            return
        seen = set[tuple[str, int]]()
        while (value, dim) not in seen:
            seen.add((value, dim))
            reason = self.reason(value, dim, axis)
            if reason is None:
                break
            value, dim = reason.value, reason.dim
            yield f"  {reason}"
        yield f"  as written on {value}: {dict(_written(self.graph)).get(value, 'an output')}"

    def _said_or_chosen(self, value: str, dim: int, axis: str) -> str:
        """Why an axis is there where costs decided: it was written, or it was chosen."""
        text = self.graph.shardings.get(value)
        dims = ShardingSpec.parse(text, self.meshes).dim_specs if text else ()
        if dims and axis in map(_name, dims[dim].axes):
            return f"as written on {value}: {text}"
        return str(self.settled)

    def __str__(self) -> str:
        values = self.graph.all_values
        rows = [(str(values[name]), str(spec)) for name, spec in self.specs.items()]
        wide = max((len(left) for left, _ in rows), default=0)
        return "\n".join(f"{left:{wide}}  {right}" for left, right in rows)


def follow(graph: Graph, rule: Rule = "user_priority", below: int | None = None) -> Propagation:
    r"""Propagate the shardings on a graph's values to all of them, by one of Shardy's rules.

    Only `user_priority` looks at priorities; with `below` it stops before that priority.

    >>> from weft.lang import Application, Graph, Library, Operator, Value
    >>> graph = Graph(
    ...     inputs=[Value("x", (8, 16)), Value("w", (16, 32))],
    ...     applications=[Application("matmul", ("x", "w"), ("y",))],
    ...     outputs=["y"],
    ...     meshes=['@m = <["dp"=2, "tp"=4]>'],
    ...     shardings={"x": '<@m, [{"dp"}, {"tp"}]>'},
    ...     operators=Library({"matmul": Operator("matmul", "m k, k n -> m n  sum: k")}),
    ... )
    >>> found = follow(graph)
    >>> print(found)
    x: float32[8, 16]   <@m, [{"dp"}, {"tp"}]>
    w: float32[16, 32]  <@m, [{"tp", ?}, {?}]>
    y: float32[8, 32]   <@m, [{"dp", ?}, {?}]>
    >>> dict(found.partials["y"]), found.placements[0]["k"]
    ({'tp': 'sum'}, ('tp',))
    >>> print(*found.explain("w", 0), sep="\n")
    w dimension 0 is cut by "tp"
      through y = matmul(x, w) from x dimension 1
      as written on x: <@m, [{"dp"}, {"tp"}]>
    """
    return _Run(graph, rule, below).propagation()


class _Run:
    """One propagation: from text to numbers and back."""

    def __init__(self, graph: Graph, strategy: Rule, below: int | None = None) -> None:
        if strategy not in ("basic", "aggressive", "op_priority", "user_priority"):
            raise WeftError(
                f"there is no strategy {strategy!r}",
                hint="there are basic, aggressive, op_priority, user_priority and cost",
            )
        self.graph, self.strategy, self.below = graph, strategy, below
        self.meshes = Meshes(graph)
        self.flat = flatten(graph, self.meshes)
        self.wanted = {
            place: self.meshes.parse(graph.values[graph.outputs[place]], text)
            for place, text in graph.output_shardings.items()
        }
        self.engine = self._engine()
        self.placements: dict[tuple[int, ...], Mapping[str, tuple[Axis, ...]]] = {}

    def _engine(self) -> Engine:
        flat, wanted = self.flat, {p: self.meshes.numbered(s) for p, s in self.wanted.items()}
        return Engine.over(
            flat.nodes,
            [None if seed is None else seed.sharding for seed in flat.seeds],
            flat.outputs,
            [wanted.get(place) for place in range(len(flat.outputs))],
            "basic" if self.strategy == "basic" else "aggressive",
            flat.notified,
            flat.groups,
            self.meshes.kinds,
            flat.siblings,
        )

    def _propagate(self) -> None:
        if self.strategy == "user_priority":
            levels = {n: seed.levels for n, seed in enumerate(self.flat.seeds) if seed is not None}
            wanted = {
                place: tuple(dim.priority for dim in spec.dim_specs)
                for place, spec in self.wanted.items()
            }
            run_by_user(self.engine, levels, wanted, self.below)
        elif self.strategy == "op_priority":
            run_by_operator(self.engine)
        else:
            self.engine.run()

    def propagation(self) -> Propagation:
        self._propagate()
        graph, engine, values = self.graph, self.engine, self.graph.all_values
        specs = {
            name: self._spec(engine.shardings[self.flat.numbers[name]], len(value.shape))
            for name, value in values.items()
        }
        outputs = tuple(
            self._spec(number, len(values[name].shape))
            for name, number in zip(graph.outputs, engine.output_shardings)
        )
        placements = tuple(map(self._placement, self.flat.applied))
        outer = (number for number, applied in enumerate(self.flat.applied) if not applied.depth)
        return Propagation(
            graph,
            self.meshes.all,
            specs,
            outputs,
            tuple(placements[number] for number in outer),
            placements,
            dict(_partials(self.flat.applied, placements)),
            History(self.flat, self.meshes, engine.known, engine.log),
        )

    def _spec(self, number: int, rank: int) -> ShardingSpec:
        return self.meshes.spec(self.engine.known[number], rank)

    def _placement(self, applied: Applied) -> Mapping[str, tuple[Axis, ...]]:
        """The placement of an application, made once for each rule and shardings."""
        values = applied.application.operands + applied.application.results
        numbers = [self.engine.shardings[self.flat.numbers[name]] for name in values]
        key = (id(applied.rule), *numbers)
        if key not in self.placements:
            known = [self.engine.known[number] for number in numbers]
            mesh = self.engine.common_mesh(known)
            found = {} if mesh is None else _agreed(applied.rule, known)
            self.placements[key] = FrozenMap(
                (name, self.meshes.axes(mesh or 0, found.get(name, ())))
                for name in applied.rule.names
                if not name.startswith("_")
            )
        return self.placements[key]


def _agreed(rule: FactorRule, known: Sequence[TensorSharding | None]) -> dict[str, Pieces]:
    """The axes of each index dimension on which the tensors agree, each axis used once.

    An axis that cuts a result along one index dimension is not given to one along which it cuts
    none, so that results are computed where they are wanted.
    """
    tensors: list[Factors] = [
        project(sharding, mapping, rule.sizes)
        for sharding, mapping in zip(known, rule.operands + rule.results)
    ]
    split, used = len(rule.operands), tuple[Piece, ...]()
    placement: dict[str, Pieces] = {}
    cut = [(f, piece) for t in tensors[split:] for f, s in t.items() for piece in s.axes]
    for factor, name in enumerate(rule.names):
        if not name.startswith("_"):
            axes = common_axes(factor, tensors[:split], tensors[split:], Direction.BOTH)
            own = {piece for other, piece in cut if other == factor}
            elsewhere = tuple(piece for _, piece in cut if piece not in own)
            placement[name] = truncate(axes, _apart_from(used + elsewhere))
            used += placement[name]
    return placement


def _partials(
    applied: Sequence[Applied], placements: Sequence[Mapping[str, tuple[Axis, ...]]]
) -> Iterator[tuple[str, Mapping[Axis, str]]]:
    for (application, signature, rule, _), placement in zip(applied, placements):
        monoids = signature.notation.reduced
        reduced = {
            name: monoids.get(name, "sum")
            for name, kind in zip(rule.names, rule.kinds)
            if kind == "reduced"
        }
        parts = {
            axis: monoid
            for dim, monoid in reduced.items()
            for axis in placement[dim]
            if monoid != CUSTOM
        }
        if parts:
            for name in application.results:
                yield name, FrozenMap(parts.items())


def _name(axis: Axis) -> str:
    return axis if isinstance(axis, str) else axis.name


def _written(graph: Graph) -> Iterator[tuple[str, str]]:
    """What was written on values of a graph and its regions."""
    yield from graph.shardings.items()
    for application in graph.applications:
        for region in application.regions:
            yield from _written(region)
        if application.operator == "manual_computation":
            inner = arguments(application, application.regions[0])
            for value, text in zip(inner, application.attributes["in_shardings"]):
                yield value.name, text


def _apart_from(used: Pieces) -> Callable[[Piece, int], Piece | None]:
    return lambda piece, _: without(piece, used)
