"""The annotations of a program: shardings written on values, and sharding groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang import Application, Graph, Value
from weft.lang.region import arguments, edges
from weft.layout import ShardingSpec
from weft.layout.shardy_text import write_axis
from weft.plan.propagation.engine import Priorities
from weft.plan.propagation.shardings import ManualBoundary, Meshes, TensorSharding, axis_name


class Annotation(NamedTuple):
    """A sharding that is written on a value, and the priority of each dimension."""

    sharding: TensorSharding
    priorities: Priorities
    is_maximal: bool = False
    """Whether it puts the value on one device, and says nothing about dimensions."""

    @classmethod
    def open(cls, rank: int, mesh: int) -> Annotation:
        """Return the annotation that leaves all dimensions open."""
        return cls(TensorSharding.open(rank, mesh), (0,) * rank)

    @property
    def is_trivial(self) -> bool:
        """Whether no dimension is sharded and none is closed."""
        return self.is_maximal or (all(self.sharding.is_open) and not self.sharding.is_sharded)


class Annotations:
    """The annotations of a graph and its regions, by the value that owns the sharding.

    All targets of a data flow edge have the sharding of its owner.
    """

    def __init__(self, graph: Graph, meshes: Meshes) -> None:
        self.meshes = meshes
        self.owners: dict[str, str] = {}
        """For the target of an edge that is not the owner, the owner."""
        self.by_owner: dict[str, Annotation] = {}
        self.boundaries: dict[str, ManualBoundary] = {}
        """For the owner of an edge into or out of a manual computation."""
        self._read(graph)

    def owner(self, name: str) -> str:
        """Return the value whose sharding a value has."""
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
                self._add_manual(graph, application)

    def _add(self, value: Value, text: str) -> None:
        owner = self.owner(value.name)
        spec = self.meshes.parse(value, text)
        is_maximal = not spec.mesh.shape and spec.mesh.device_ids is not None
        annotation = Annotation(self.meshes.sharding(spec), priorities_of(spec), is_maximal)
        if self.by_owner.setdefault(owner, annotation) != annotation:
            raise WeftError(
                f"{value.name} and {owner} are connected by a data flow edge and have different "
                "shardings"
            )

    def _add_manual(self, graph: Graph, application: Application) -> None:
        """Add the boundaries of a manual computation, and the shardings of its arguments."""
        manual = application.attributes["manual_axes"]
        (body,) = application.regions
        inner = arguments(application, body)
        for operand, value, text in zip(
            application.operands, inner, application.attributes["in_shardings"]
        ):
            spec = self._with_manual(graph.values[operand], text, manual)
            boundary = self._boundary(value, spec, manual, True)
            inside = boundary.enter(boundary.outer)
            self.by_owner[value.name] = Annotation(inside, priorities_of(spec))
        for name in application.results:
            if name not in graph.shardings:
                raise WeftError(f"{name} is a result of a manual computation without a sharding")
            spec = self._with_manual(graph.values[name], graph.shardings[name], manual)
            boundary = self._boundary(graph.values[name], spec, manual, False)
            self.by_owner[name] = Annotation(boundary.outer, priorities_of(spec))

    def _boundary(
        self, value: Value, spec: ShardingSpec, manual: tuple[str, ...], is_argument: bool
    ) -> ManualBoundary:
        axes = frozenset(spec.mesh.axis_names.index(axis) for axis in manual)
        boundary = ManualBoundary(self.meshes.sharding(spec), axes, is_argument)
        self.boundaries[value.name] = boundary
        return boundary

    def _with_manual(self, value: Value, text: str, manual: tuple[str, ...]) -> ShardingSpec:
        """Return a sharding at the boundary; manual axes that it does not use are replicated."""
        spec = self.meshes.parse(value, text)
        for axis in manual:
            if axis not in spec.mesh.axis_names:
                raise WeftError(f'manual axis "{axis}" is not an axis of {spec.mesh}')
        for dim, cut in enumerate(spec.dim_specs):
            free = tuple(axis for axis in cut.axes if axis_name(axis) not in manual)
            if free != cut.axes[len(cut.axes) - len(free) :]:
                raise WeftError(
                    f"dimension {dim} of {value.name} is cut by {write_axis(free[0])} before a "
                    f"manual axis: {spec}"
                )
        axes = [*(axis for dim in spec.dim_specs for axis in dim.axes), *spec.partial]
        used = {*map(axis_name, axes), *map(axis_name, spec.replicated_axes)}
        kept = (*spec.replicated_axes, *(axis for axis in manual if axis not in used))
        return ShardingSpec(spec.mesh, spec.dim_specs, kept, spec.partial)

    def align(self, group: list[str]) -> Annotation | None:
        """Give all values of a group the annotation that some of them have.

        If annotations differ, nothing changes and the first of them is returned: the members keep
        their own, and their users see stand-ins that share a sharding.
        """
        owners = [self.owner(name) for name in group]
        known = [self.by_owner[owner] for owner in owners if owner in self.by_owner]
        if len(group) > 1:
            known = [annotation for annotation in known if not annotation.is_trivial]
        if any(annotation != known[0] for annotation in known):
            return known[0]
        if known:
            self.by_owner.update(dict.fromkeys(owners, known[0]))
        return None


def priorities_of(spec: ShardingSpec) -> Priorities:
    """Return the priority of each dimension of a spec."""
    return tuple(dim.priority for dim in spec.dim_specs)


class _Membership(NamedTuple):
    """A value in a sharding group, and the manual computation around it."""

    value: Value
    group: int
    manual: Application | None


def sharding_groups(graph: Graph) -> list[list[str]]:
    """Return the sharding groups of a program; groups with a common value are joined."""
    members = list(_memberships(graph, None))
    first: dict[int, _Membership] = {}
    for member in members:
        _check(member, first.setdefault(member.group, member))
    parents = {member.group: member.group for member in members}

    def root(group: int) -> int:
        while parents[group] != group:
            group = parents[group]
        return group

    seen: dict[str, int] = {}
    for member in members:
        one, two = root(member.group), root(seen.setdefault(member.value.name, member.group))
        parents[max(one, two)] = min(one, two)
    groups: dict[int, dict[str, None]] = {}
    for member in members:
        groups.setdefault(root(member.group), {})[member.value.name] = None
    return [list(groups[number]) for number in sorted(groups)]


def _memberships(graph: Graph, manual: Application | None) -> Iterator[_Membership]:
    for application in graph.applications:
        if application.operator == "sharding_group":
            value = graph.values[application.operands[0]]
            yield _Membership(value, application.attributes["group_id"], manual)
        is_manual = application.operator == "manual_computation"
        for region in application.regions:
            yield from _memberships(region, application if is_manual else manual)


def _check(member: _Membership, first: _Membership) -> None:
    """Raise an error if two values cannot have one sharding."""
    if member.manual is not first.manual:
        raise WeftError(
            f"sharding group {member.group} has {first.value.name} and {member.value.name}, which "
            "are not in the same manual computation"
        )
    if member.value.shape != first.value.shape:
        raise WeftError(
            f"sharding group {member.group} has {first.value.name} of shape "
            f"{list(first.value.shape)} and {member.value.name} of shape {list(member.value.shape)}"
        )
