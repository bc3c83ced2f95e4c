"""Propagate the shardings written on a graph to all its values, and explain their origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, FactorRule, Graph
from weft.lang.notation import CUSTOM
from weft.lang.region import arguments
from weft.lang.rule import TensorFactors
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.placed import Placement
from weft.plan.propagation.annotations import priorities_of
from weft.plan.propagation.cut_points import (
    CutPoints,
    cut_points_of,
    spread_cut_points,
    with_cut_points,
)
from weft.plan.propagation.engine import (
    PropagationEngine,
    PropagationStep,
    run_by_operator,
    run_by_user,
)
from weft.plan.propagation.factors import Direction, compatible_axes, project, truncate
from weft.plan.propagation.flatten import FlatProgram, RuledApplication, flatten
from weft.plan.propagation.shardings import (
    AxisRef,
    AxisRefs,
    Meshes,
    TensorSharding,
    axis_name,
    prefix_without_overlap,
)
from weft.values import FrozenMap

ShardyStrategy: TypeAlias = Literal["basic", "aggressive", "op_priority", "user_priority"]


class Settled(NamedTuple):
    """A plan that was chosen by cost, where propagation alone would choose another."""

    specs: Mapping[str, ShardingSpec]
    """The sharding of every value of the graph, partial where it stays partial."""
    kept: tuple[Mapping[Axis, tuple[str, tuple[int, ...]]], ...]
    """For every application the axes over which operands stay partial: the monoid, and which."""
    received: float
    """The bytes that the plan moves."""
    usual: float
    """The bytes that the plan of `user_priority` moves; infinite if it has none."""
    reasons: tuple[str, ...] = ()
    """Why the plan is not proved to move the fewest bytes; empty if it is."""

    def __str__(self) -> str:
        usual = f"{self.usual} B" if isfinite(self.usual) else "no plan"
        text = f"chosen by cost: {self.received} B move, {usual} as propagation would have it"
        return "; ".join([text, *(f"not proved to be the fewest: {why}" for why in self.reasons)])


class Reason(NamedTuple):
    """The origin of an axis of a value: a dimension of another, through an application."""

    application: Application | None
    """None where both values are of one sharding group."""
    value: str
    dim: int

    def __str__(self) -> str:
        source = f"{self.value} dimension {self.dim}"
        if self.application is None:
            return f"in one sharding group with {source}"
        operands = ", ".join(self.application.operands)
        results = ", ".join(self.application.results)
        return f"through {results} = {self.application.operator}({operands}) from {source}"


@dataclass(frozen=True, slots=True)
class Propagation:
    """The sharding of every value, and the placement of every index space."""

    graph: Graph
    meshes: tuple[DeviceMesh, ...]
    specs: Mapping[str, ShardingSpec]
    """The sharding of every value, by name, in the order of the program, those of regions too."""
    output_specs: tuple[ShardingSpec, ...]
    placements: tuple[Mapping[str, tuple[Axis, ...]], ...]
    """For every application of the graph itself, the axes that cut each of its index dimensions."""
    all_placements: tuple[Mapping[str, tuple[Axis, ...]], ...]
    """For the applications of regions as well, in the order of `Graph.walk`."""
    partials: Mapping[str, Mapping[Axis, str]]
    """The results that are left unreduced: over which axes, by which monoid."""
    _history: History = field(compare=False, repr=False)
    settled: Settled | None = None
    """The plan that `strategy="cost"` chose; None for the other strategies."""
    cut_points: tuple[CutPoints, ...] = ()
    """The cut points of all applications, in the order of `all_placements`; empty if there are
    none."""
    strategy: ShardyStrategy = field(default="user_priority", compare=False)
    """The strategy that propagated."""

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh; of several, the first that has axes."""
        return next((mesh for mesh in self.meshes if mesh.shape), self.meshes[0])

    def cuts(self, number: int) -> Placement:
        """Return the placement of one of `all_placements`, with its cut points."""
        placement = self.all_placements[number]
        points = self.cut_points[number] if self.cut_points else {}
        return {
            name: DimSpec(axes, cut_points=points[name]) if name in points else axes
            for name, axes in placement.items()
        }

    def bind(self, sizes: Mapping[str, int]) -> Propagation:
        """Return the propagation with numbers for the sizes of its graph that are not known.

        The shardings stay as they are, unless an operator has other index dimensions then (a
        reshape may, for sizes that divide each other), or a dimension is cut at chosen points. The
        bound graph is propagated in these cases.
        """
        graph = self.graph.bind(sizes)
        pairs = zip(self.graph.walk(), graph.walk())
        if not self.cut_points and all(
            one.notation.dims == other.notation.dims for (_, one), (_, other) in pairs
        ):
            return replace(self, graph=graph)
        return propagate_like_shardy(graph, self.strategy)

    def explain(self, value: str, dim: int) -> list[str]:
        """Return for every axis of a dimension how it came there from where it was written.

        The first line is the value; each further line is an operator and the dimension before it.
        """
        spec = self.specs.get(value)
        if spec is None:
            raise WeftError(f"there is no value {value} in the graph")
        if not 0 <= dim < spec.ndim:
            raise WeftError(f"{value} has no dimension {dim}: its sharding is {spec}")
        names = dict.fromkeys(map(axis_name, spec.dim_specs[dim].axes))
        return [line for name in names for line in self._trace_back(value, dim, name)] or [
            f"{value} dimension {dim} is not cut"
        ]

    def reason(self, value: str, dim: int, axis: str) -> Reason | None:
        """Return where an axis of a value came from; None where it was there from the start."""
        return self._history.reason(value, dim, axis)

    def _trace_back(self, value: str, dim: int, axis: str) -> Iterator[str]:
        yield f'{value} dimension {dim} is cut by "{axis}"'
        if self.settled is not None and value in self.graph.values:
            text = self.graph.shardings.get(value)
            dims = ShardingSpec.parse(text, self.meshes).dim_specs if text else ()
            is_written = dims and axis in map(axis_name, dims[dim].axes)
            yield f"  as written on {value}: {text}" if is_written else f"  {self.settled}"
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

    def __str__(self) -> str:
        values = self.graph.all_values
        rows = [(str(values[name]), str(spec)) for name, spec in self.specs.items()]
        wide = max((len(left) for left, _ in rows), default=0)
        return "\n".join(f"{left:{wide}}  {right}" for left, right in rows)


def propagate_like_shardy(
    graph: Graph, strategy: ShardyStrategy = "user_priority", below: int | None = None
) -> Propagation:
    r"""Propagate the shardings on a graph's values to all of them, by one of Shardy's strategies.

    Only `user_priority` uses priorities; with `below` it stops before that priority.

    >>> from weft.lang import Application, Graph, Library, Operator, Value
    >>> graph = Graph(
    ...     inputs=[Value("x", (8, 16)), Value("w", (16, 32))],
    ...     applications=[Application("matmul", ("x", "w"), ("y",))],
    ...     outputs=["y"],
    ...     meshes=['@m = <["dp"=2, "tp"=4]>'],
    ...     shardings={"x": '<@m, [{"dp"}, {"tp"}]>'},
    ...     operators=Library({"matmul": Operator("matmul", "m k, k n -> m n  sum: k")}),
    ... )
    >>> result = propagate_like_shardy(graph)
    >>> print(result)
    x: float32[8, 16]   <@m, [{"dp"}, {"tp"}]>
    w: float32[16, 32]  <@m, [{"tp", ?}, {?}]>
    y: float32[8, 32]   <@m, [{"dp", ?}, {?}]>
    >>> dict(result.partials["y"]), result.placements[0]["k"]
    ({'tp': 'sum'}, ('tp',))
    >>> print(*result.explain("w", 0), sep="\n")
    w dimension 0 is cut by "tp"
      through y = matmul(x, w) from x dimension 1
      as written on x: <@m, [{"dp"}, {"tp"}]>
    """
    if strategy not in ("basic", "aggressive", "op_priority", "user_priority"):
        raise WeftError(
            f"there is no strategy {strategy!r}",
            hint="there are basic, aggressive, op_priority, user_priority and cost",
        )
    meshes = Meshes(graph)
    program = flatten(graph, meshes)
    wanted = {
        place: meshes.parse(graph.values[graph.outputs[place]], text)
        for place, text in graph.output_shardings.items()
    }
    output_shardings = {place: meshes.sharding(spec) for place, spec in wanted.items()}
    engine = PropagationEngine(
        program.nodes,
        [None if one is None else one.sharding for one in program.annotations],
        program.outputs,
        [output_shardings.get(place) for place in range(len(program.outputs))],
        "basic" if strategy == "basic" else "aggressive",
        program.watchers,
        program.groups,
        meshes.kinds,
        program.siblings,
    )
    if strategy == "user_priority":
        priorities = {n: one.priorities for n, one in enumerate(program.annotations) if one}
        run_by_user(
            engine, priorities, {n: priorities_of(spec) for n, spec in wanted.items()}, below
        )
    elif strategy == "op_priority":
        run_by_operator(engine)
    else:
        engine.run()
    result = _result(graph, meshes, program, engine, wanted)
    return replace(result, strategy=strategy)


def _result(
    graph: Graph,
    meshes: Meshes,
    program: FlatProgram,
    engine: PropagationEngine,
    wanted: Mapping[int, ShardingSpec],
) -> Propagation:
    values = graph.all_values

    def spec(name: str, number: int) -> ShardingSpec:
        return meshes.spec(engine.interned[number], len(values[name].shape))

    cache: dict[tuple[int, ...], Mapping[str, tuple[Axis, ...]]] = {}

    def placement(one: RuledApplication) -> Mapping[str, tuple[Axis, ...]]:
        names = one.application.operands + one.application.results
        numbers = [engine.shardings[program.numbers[name]] for name in names]
        key = (id(one.rule), *numbers)
        if key not in cache:
            shardings = [engine.interned[number] for number in numbers]
            mesh = engine.common_mesh(shardings)
            axes = {} if mesh is None else _agreed_axes(one.rule, shardings)
            cache[key] = FrozenMap(
                (name, meshes.axes(mesh or 0, axes.get(name, ())))
                for name in one.rule.names
                if not name.startswith("_")
            )
        return cache[key]

    placements = tuple(map(placement, program.applications))
    specs = {name: spec(name, engine.shardings[program.numbers[name]]) for name in values}
    outputs = tuple(map(spec, graph.outputs, engine.output_shardings))
    cut_points: tuple[CutPoints, ...] = ()
    written = {name: meshes.parse(values[name], text) for name, text in _written(graph)}
    if any(one.cut_points is not None for one in (*written.values(), *wanted.values())):
        shapes = {name: value.shape for name, value in values.items()}
        returned = {graph.outputs[place]: one for place, one in wanted.items()}
        found, cut_points = spread_cut_points(
            program.applications, placements, specs, written, shapes, returned
        )
        specs = {name: with_cut_points(one, found[name]) for name, one in specs.items()}
        outputs = tuple(
            with_cut_points(one, cut_points_of(wanted[place], shapes[name]))
            if place in wanted
            else specs[name]
            for place, (name, one) in enumerate(zip(graph.outputs, outputs))
        )
    return Propagation(
        graph,
        meshes.all,
        specs,
        outputs,
        tuple(one for one, ruled in zip(placements, program.applications) if not ruled.depth),
        placements,
        dict(_partials(program.applications, placements)),
        History(program, meshes, engine.interned, engine.log),
        cut_points=cut_points,
    )


def _agreed_axes(
    rule: FactorRule, shardings: Sequence[TensorSharding | None]
) -> dict[str, AxisRefs]:
    """Return the axes of each index dimension on which the tensors agree, each axis used once.

    An axis that cuts a result along one index dimension is not given to another along which it
    cuts none, so that results are computed where they are wanted.
    """
    tensors = [
        project(sharding, mapping, rule.sizes)
        for sharding, mapping in zip(shardings, rule.operands + rule.results)
    ]
    split, used = len(rule.operands), tuple[AxisRef, ...]()
    placement: dict[str, AxisRefs] = {}
    in_results = [(f, axis) for t in tensors[split:] for f, s in t.items() for axis in s.axes]
    for factor, name in enumerate(rule.names):
        if not name.startswith("_"):
            axes = compatible_axes(factor, tensors[:split], tensors[split:], Direction.BOTH)
            own = {axis for other, axis in in_results if other == factor}
            taken = used + tuple(axis for _, axis in in_results if axis not in own)
            placement[name] = truncate(axes, _unused(taken))
            used += placement[name]
    return placement


def _unused(taken: AxisRefs) -> Callable[[AxisRef, int], AxisRef | None]:
    return lambda axis, _: prefix_without_overlap(axis, taken)


def _partials(
    applications: Sequence[RuledApplication], placements: Sequence[Mapping[str, tuple[Axis, ...]]]
) -> Iterator[tuple[str, Mapping[Axis, str]]]:
    """Yield the results whose reduced index dimensions are cut, with their axes and monoids."""
    for (application, signature, rule, _), placement in zip(applications, placements):
        monoids = signature.notation.reduced
        partial = {
            axis: monoids.get(name, "sum")
            for name, kind in zip(rule.names, rule.kinds)
            if kind == "reduced" and monoids.get(name, "sum") != CUSTOM
            for axis in placement[name]
        }
        if partial:
            for name in application.results:
                yield name, FrozenMap(partial.items())


def _written(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the annotated values of a graph and its regions, with their shardings as text."""
    yield from graph.shardings.items()
    for application in graph.applications:
        for region in application.regions:
            yield from _written(region)
        if application.operator == "manual_computation":
            inner = arguments(application, application.regions[0])
            for value, text in zip(inner, application.attributes["in_shardings"]):
                yield value.name, text


@dataclass(slots=True)
class History:
    """The steps of one propagation, from which the origin of an axis is found on request."""

    program: FlatProgram
    meshes: Meshes
    interned: Sequence[TensorSharding | None]
    log: Sequence[PropagationStep]
    _reasons: dict[tuple[str, int, str], Reason] | None = field(default=None, repr=False)

    def reason(self, value: str, dim: int, axis: str) -> Reason | None:
        """Return where an axis came from; None if it was there from the start."""
        if self._reasons is None:
            self._reasons = {}
            for step in self.log:
                for place, reason in self._read(step):
                    self._reasons.setdefault(place, reason)
        owner = self.program.names[self.program.numbers[value]]
        return self._reasons.get((owner, dim, axis))

    def _read(self, step: PropagationStep) -> Iterator[tuple[tuple[str, int, str], Reason]]:
        """Yield value, dimension and axis of all that is new in a step, each with its reason."""
        names = self.program.names
        if step.node < 0:
            (value, other), (old, new) = step.before, step.after
            for dim, axis in self._added(old, new):
                yield (names[other], dim, axis), Reason(None, names[value], dim)
            return
        node = self.program.nodes[step.node]
        mappings, values = node.rule.operands + node.rule.results, node.operands + node.results
        for place, (old, new) in enumerate(zip(step.before, step.after)):
            for dim, axis in self._added(old, new) if old != new else ():
                source = self._source(mappings, step.before, place, dim, axis)
                if source is not None:
                    origin = self.program.origins[step.node]
                    reason = Reason(origin, names[values[source[0]]], source[1])
                    yield (names[values[place]], dim, axis), reason

    def _added(self, old: int, new: int) -> list[tuple[int, str]]:
        """Return the dimensions and axes of a sharding that an earlier one did not have."""
        before, now = self.interned[old], self.interned[new]
        assert now is not None
        return [
            (dim, axis)
            for dim in range(len(now.axes))
            for axis in self._axes(now, dim)
            if before is None or axis not in self._axes(before, dim)
        ]

    def _axes(self, sharding: TensorSharding, dim: int) -> list[str]:
        names = self.meshes.all[sharding.mesh].axis_names
        return list(dict.fromkeys(names[axis[0]] for axis in sharding.axes[dim]))

    def _source(
        self,
        mappings: Sequence[TensorFactors],
        before: Sequence[int],
        place: int,
        dim: int,
        axis: str,
    ) -> tuple[int, int] | None:
        """Return the tensor and dimension that had the axis on a factor of this dimension."""
        factors = set(mappings[place][dim])
        for other, (mapping, number) in enumerate(zip(mappings, before)):
            sharding = self.interned[number]
            if other != place and sharding is not None:
                for d, of_dim in enumerate(mapping):
                    if factors & set(of_dim) and axis in self._axes(sharding, d):
                        return other, d
        return None
