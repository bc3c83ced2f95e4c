"""`propagate`: the shardings that follow from those that a program's author wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, FactorRule, Graph, factor_rule
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec, SubAxis
from weft.plan.axes import Piece, Pieces, without
from weft.plan.engine import Engine, Node, run_by_operator, run_by_user
from weft.plan.factors import Factors, TensorSharding, project
from weft.plan.merge import Direction, common_axes, truncate
from weft.values import FrozenMap

Strategy: TypeAlias = Literal["basic", "aggressive", "op_priority", "user_priority"]

PASSES = {
    "": (Direction.NONE, Direction.BOTH),
    "forward": (Direction.FORWARD, Direction.BOTH),
    "backward": (Direction.NONE, Direction.BACKWARD),
    "both": (Direction.BOTH, Direction.BOTH),
}
"""Where axes go through an operator before all others, and where after that."""


@dataclass(frozen=True, slots=True)
class Propagation:
    """What propagation found: how every value lies, and how every index space is cut."""

    graph: Graph
    mesh: DeviceMesh
    specs: Mapping[str, ShardingSpec]
    """The sharding of every value, by name, in the order of the program."""
    output_specs: tuple[ShardingSpec, ...]
    placements: tuple[Mapping[str, tuple[Axis, ...]], ...]
    """For every application, the axes that cut each of its index dimensions."""
    _causes: Mapping[tuple[str, int, str], tuple[int, str, int]]

    @property
    def partials(self) -> Mapping[str, Mapping[Axis, str]]:
        """The results that are left unreduced: over which axes, by which monoid."""
        found: dict[str, Mapping[Axis, str]] = {}
        for application, placement, signature in zip(
            self.graph.applications, self.placements, self.graph.signatures
        ):
            monoids = signature.notation.reduced
            parts = {axis: monoids[dim] for dim in signature.reduced for axis in placement[dim]}
            if parts:
                found.update(dict.fromkeys(application.results, FrozenMap(parts.items())))
        return found

    def explain(self, value: str, dim: int) -> list[str]:
        """Why a dimension is cut as it is: for every axis, the way back to where it was written.

        The first line is the value; each further line is an operator and where the axis stood.
        """
        spec = self.specs.get(value)
        if spec is None:
            raise WeftError(f"there is no value {value} in the graph")
        if not 0 <= dim < spec.ndim:
            raise WeftError(f"{value} has no dimension {dim}: its sharding is {spec}")
        names = dict.fromkeys(
            axis if isinstance(axis, str) else axis.name for axis in spec.dim_specs[dim].axes
        )
        return [line for name in names for line in self._way_back(value, dim, name)] or [
            f"{value} dimension {dim} is not cut"
        ]

    def _way_back(self, value: str, dim: int, axis: str) -> Iterator[str]:
        yield f'{value} dimension {dim} is cut by "{axis}"'
        seen = set[tuple[str, int]]()
        while (value, dim) not in seen:
            seen.add((value, dim))
            cause = self._causes.get((value, dim, axis))
            if cause is None:
                break
            number, value, dim = cause
            application = self.graph.applications[number]
            operands, results = ", ".join(application.operands), ", ".join(application.results)
            applied = f"{results} = {application.operator}({operands})"
            yield f"  through {applied} from {value} dimension {dim}"
        written = self.graph.shardings.get(value, "an output")
        yield f"  as written on {value}: {written}"

    def __str__(self) -> str:
        rows = [(str(self.graph.values[name]), str(spec)) for name, spec in self.specs.items()]
        wide = max((len(left) for left, _ in rows), default=0)
        return "\n".join(f"{left:{wide}}  {right}" for left, right in rows)


def propagate(graph: Graph, strategy: Strategy = "user_priority") -> Propagation:
    r"""Propagate the shardings on a graph's values to all of them, forwards and backwards.

    The strategies build on each other, as Shardy's do: `basic` takes what nothing objects to,
    `aggressive` settles conflicts for the larger tensor, `op_priority` goes through pointwise
    operators first, `user_priority` takes what users gave a lower priority first.

    >>> from weft.lang import Application, Graph, Library, Operator, Value
    >>> graph = Graph(
    ...     inputs=[Value("x", (8, 16)), Value("w", (16, 32))],
    ...     applications=[Application("matmul", ("x", "w"), ("y",))],
    ...     outputs=["y"],
    ...     meshes=['@m = <["dp"=2, "tp"=4]>'],
    ...     shardings={"x": '<@m, [{"dp"}, {"tp"}]>'},
    ...     operators=Library({"matmul": Operator("matmul", "m k, k n -> m n  sum: k")}),
    ... )
    >>> found = propagate(graph)
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
    return _Run(graph, strategy).propagation()


class _Run:
    """One propagation: from text to numbers and back."""

    def __init__(self, graph: Graph, strategy: Strategy) -> None:
        if strategy not in ("basic", "aggressive", "op_priority", "user_priority"):
            raise WeftError(
                f"there is no strategy {strategy!r}",
                hint="there are basic, aggressive, op_priority and user_priority",
            )
        self.graph, self.strategy = graph, strategy
        self.mesh = _only_mesh(graph)
        self.numbers = {name: number for number, name in enumerate(graph.values)}
        self.specs: dict[tuple[int, int], ShardingSpec] = {}
        self.placements: dict[tuple[int, ...], Mapping[str, tuple[Axis, ...]]] = {}
        self.uses = Counter(graph.outputs)
        for application in graph.applications:
            self.uses.update(application.operands)
        self.given = {name: self._parse(name, text) for name, text in graph.shardings.items()}
        self.wanted = {
            place: self._parse(graph.outputs[place], text)
            for place, text in graph.output_shardings.items()
        }

    def propagation(self) -> Propagation:
        graph = self.graph
        engine = self._engine()
        if self.strategy == "user_priority":
            levels = {self.numbers[name]: _levels(spec) for name, spec in self.given.items()}
            run_by_user(engine, levels, {p: _levels(spec) for p, spec in self.wanted.items()})
        elif self.strategy == "op_priority":
            run_by_operator(engine)
        else:
            engine.run()
        names = list(graph.values)
        specs = {
            name: self._spec(engine, number, len(graph.values[name].shape))
            for name, number in zip(names, engine.shardings)
        }
        outputs = tuple(
            self._spec(engine, number, len(graph.values[name].shape))
            for name, number in zip(graph.outputs, engine.output_shardings)
        )
        causes = {
            (names[value], dim, self.mesh.axis_names[axis]): (node, names[source], at)
            for (value, dim, axis), (node, source, at) in engine.causes.items()
        }
        placements = tuple(self._placement(node, engine) for node in engine.nodes)
        return Propagation(graph, self.mesh, specs, outputs, placements, causes)

    def _engine(self) -> Engine:
        graph = self.graph
        nodes = [
            self._node(application, number) for number, application in enumerate(graph.applications)
        ]
        return Engine.over(
            nodes,
            [self._numbered(self.given.get(name)) for name in graph.values],
            [self.numbers[name] for name in graph.outputs],
            [self._numbered(self.wanted.get(place)) for place in range(len(graph.outputs))],
            "basic" if self.strategy == "basic" else "aggressive",
        )

    def _node(self, application: Application, number: int) -> Node:
        signature = self.graph.signatures[number]
        passes = self.graph.operators.find(application.operator).passes
        if passes == "both" and signature.notation.whole:
            passes = ""  # it makes or takes a dimension: a bitcast to smaller elements
        early, late = PASSES[passes]
        return Node(
            factor_rule(signature),
            tuple(self.numbers[name] for name in application.operands),
            tuple(self.numbers[name] for name in application.results),
            early,
            late,
            passes == "both",
            any(
                self.uses[name] > 1 and self.graph.values[name].shape
                for name in application.operands
            ),
        )

    def _parse(self, name: str, text: str) -> ShardingSpec:
        spec = ShardingSpec.parse(text, self.mesh)
        rank = len(self.graph.values[name].shape)
        if spec.ndim != rank:
            raise WeftError(f"{name} has rank {rank} and its sharding rank {spec.ndim}: {spec}")
        return spec

    def _numbered(self, spec: ShardingSpec | None) -> TensorSharding | None:
        if spec is None:
            return None
        return TensorSharding(
            tuple(self._pieces(dim.axes) for dim in spec.dim_specs),
            tuple(dim.is_open for dim in spec.dim_specs),
            self._pieces(spec.replicated_axes),
            self._pieces(tuple(spec.partial)),
        )

    def _pieces(self, axes: tuple[Axis, ...]) -> Pieces:
        return tuple(map(self._piece, axes))

    def _piece(self, axis: Axis) -> Piece:
        name, before, size = (axis, 1, 0) if isinstance(axis, str) else axis
        position = self.mesh.axis_names.index(name)
        return position, before, size or self.mesh.shape[position]

    def _axis(self, piece: Piece) -> Axis:
        position, before, size = piece
        name = self.mesh.axis_names[position]
        return name if size == self.mesh.shape[position] else SubAxis(name, before, size)

    def _spec(self, engine: Engine, number: int, rank: int) -> ShardingSpec:
        """The spec of a numbered sharding, made once."""
        if (number, rank) not in self.specs:
            self.specs[number, rank] = self._made(engine.known[number], rank)
        return self.specs[number, rank]

    def _made(self, sharding: TensorSharding | None, rank: int) -> ShardingSpec:
        found = TensorSharding.free(rank) if sharding is None else sharding
        dims = (
            DimSpec(map(self._axis, pieces), opened)
            for pieces, opened in zip(found.axes, found.is_open)
        )
        parts = ((axis, "sum") for axis in map(self._axis, found.unreduced))
        return ShardingSpec(self.mesh, dims, map(self._axis, found.replicated), parts)

    def _placement(self, node: Node, engine: Engine) -> Mapping[str, tuple[Axis, ...]]:
        """The placement of an application, made once for each rule and shardings."""
        numbers = [engine.shardings[value] for value in node.operands + node.results]
        key = (id(node.rule), *numbers)
        if key not in self.placements:
            known = [engine.known[number] for number in numbers]
            self.placements[key] = self._agreed(node.rule, known)
        return self.placements[key]

    def _agreed(
        self, rule: FactorRule, known: Sequence[TensorSharding | None]
    ) -> Mapping[str, tuple[Axis, ...]]:
        """The axes of each index dimension on which the tensors agree, each axis used once."""
        tensors: list[Factors] = [
            project(sharding, mapping, rule.sizes)
            for sharding, mapping in zip(known, rule.operands + rule.results)
        ]
        split, used = len(rule.operands), tuple[Piece, ...]()
        placement: dict[str, tuple[Axis, ...]] = {}
        for factor, name in enumerate(rule.names):
            if name.startswith("_"):
                continue
            axes = common_axes(factor, tensors[:split], tensors[split:], Direction.BOTH)
            axes = truncate(axes, _apart_from(used))
            used += axes
            placement[name] = tuple(map(self._axis, axes))
        return FrozenMap(placement.items())


def _only_mesh(graph: Graph) -> DeviceMesh:
    meshes = [DeviceMesh.parse(text) for text in graph.meshes]
    if len(meshes) != 1:
        raise WeftError(
            f"propagation needs one mesh and the graph has {len(meshes)}",
            hint="give it one: Graph(..., meshes=['@m = <[\"x\"=2]>'])",
        )
    return meshes[0]


def _apart_from(used: Pieces) -> Callable[[Piece, int], Piece | None]:
    return lambda piece, _: without(piece, used)


def _levels(spec: ShardingSpec) -> tuple[int, ...]:
    return tuple(dim.priority for dim in spec.dim_specs)
