"""What the author of a program wrote about its values, as the engine starts with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang import Application, Graph, Value
from weft.lang.region import arguments, edges
from weft.layout import Axis, ShardingSpec
from weft.plan.propagation.factors import TensorSharding
from weft.plan.propagation.manual import Border
from weft.plan.propagation.meshes import Meshes
from weft.text.shardy import write_axis


class Seed(NamedTuple):
    """A sharding that was written, and the priority of each dimension."""

    sharding: TensorSharding
    levels: tuple[int, ...]
    is_maximal: bool = False
    """Whether it puts the whole value on one device, and says nothing of dimensions."""

    @property
    def says_nothing(self) -> bool:
        """Whether nothing is cut and nothing is closed."""
        return self.is_maximal or (all(self.sharding.is_open) and not self.sharding.is_cut)


class Seeds:
    """The seeds of a graph and its regions, by the name of the value that has the sharding."""

    def __init__(self, graph: Graph, meshes: Meshes) -> None:
        self.meshes = meshes
        self.owners: dict[str, str] = {}
        """For a target of an edge that is not the owner, the owner."""
        self.found: dict[str, Seed] = {}
        self.borders: dict[str, Border] = {}
        """For the owner of an edge into or out of a manual computation."""
        self._read(graph)

    def owner(self, name: str) -> str:
        """The value whose sharding a value has."""
        return self.owners.get(name, name)

    def _read(self, graph: Graph) -> None:
        for application in graph.applications:
            for edge in edges(application):
                self.owners.update((other, edge.owner) for other in edge.others)
            for region in application.regions:
                self._read(region)
        for name, text in graph.shardings.items():
            self._add(graph.values[name], text)
        for application in graph.applications:
            if application.operator == "manual_computation":
                self._enter(graph, application)

    def _add(self, value: Value, text: str) -> None:
        owner = self.owner(value.name)
        spec = self.meshes.parse(value, text)
        maximal = not spec.mesh.shape and spec.mesh.device_ids is not None
        seed = Seed(self.meshes.numbered(spec), _levels(spec), maximal)
        if self.found.setdefault(owner, seed) != seed:
            raise WeftError(f"{value.name} and {owner} lie alike and have different shardings")

    def _enter(self, graph: Graph, application: Application) -> None:
        """The borders of a manual computation, and how its arguments lie inside."""
        manual = application.attributes["manual_axes"]
        texts = application.attributes["in_shardings"]
        (body,) = application.regions
        inner = arguments(application, body)
        for operand, value, text in zip(application.operands, inner, texts):
            spec = self._with_manual(graph.values[operand], text, manual)
            border = self._border(value, spec, manual, True)
            inside = border.going_in(border.outside)
            self.found[value.name] = Seed(inside, _levels(spec))
        for name in application.results:
            if name not in graph.shardings:
                raise WeftError(f"{name} comes out of a manual computation without a sharding")
            spec = self._with_manual(graph.values[name], graph.shardings[name], manual)
            border = self._border(graph.values[name], spec, manual, False)
            self.found[name] = Seed(border.outside, _levels(spec))

    def _border(
        self, value: Value, spec: ShardingSpec, manual: tuple[str, ...], is_argument: bool
    ) -> Border:
        axes = frozenset(spec.mesh.axis_names.index(axis) for axis in manual)
        border = Border(self.meshes.numbered(spec), axes, is_argument)
        self.borders[value.name] = border
        return border

    def _with_manual(self, value: Value, text: str, manual: tuple[str, ...]) -> ShardingSpec:
        """A sharding at the border, with the manual axes that it does not use replicated."""
        spec = self.meshes.parse(value, text)
        for axis in manual:
            if axis not in spec.mesh.axis_names:
                raise WeftError(f'"{axis}" is manual and not an axis of {spec.mesh}')
        used = set(_names(spec))
        _check_prefix(value, spec, manual)
        unused = [axis for axis in manual if axis not in used]
        kept = (*spec.replicated_axes, *unused)
        return ShardingSpec(spec.mesh, spec.dim_specs, kept, spec.partial)


def _check_prefix(value: Value, spec: ShardingSpec, manual: tuple[str, ...]) -> None:
    for dim, cut in enumerate(spec.dim_specs):
        free = [axis for axis in cut.axes if _name(axis) not in manual]
        if tuple(free) != cut.axes[len(cut.axes) - len(free) :]:
            raise WeftError(
                f"dimension {dim} of {value.name} is cut by {write_axis(free[0])} before a manual "
                f"axis: {spec}"
            )


def _names(spec: ShardingSpec) -> Iterator[str]:
    for dim in spec.dim_specs:
        yield from map(_name, dim.axes)
    yield from map(_name, spec.replicated_axes)
    yield from map(_name, spec.partial)


def _name(axis: Axis) -> str:
    return axis if isinstance(axis, str) else axis.name


def _levels(spec: ShardingSpec) -> tuple[int, ...]:
    return tuple(dim.priority for dim in spec.dim_specs)
