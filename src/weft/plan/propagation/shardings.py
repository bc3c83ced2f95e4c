"""Shardings as propagation sees them: small tuples of numbers in place of names.

An axis or a sub-axis is an `AxisRef` `(axis, pre_size, size)`: of axis number `axis` the digit of
`size` values after `pre_size` cells, which Shardy writes `"x":(pre_size)size`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Graph, Value
from weft.lang.graph import parse_sharding
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec, SubAxis

AxisRef: TypeAlias = tuple[int, int, int]
AxisRefs: TypeAlias = tuple[AxisRef, ...]


def overlaps(one: AxisRef, two: AxisRef) -> bool:
    """Whether two references share cells of an axis; an axis of one cell shares that with itself.

    >>> overlaps((0, 1, 4), (0, 2, 2)), overlaps((0, 1, 2), (0, 2, 2))
    (True, False)
    >>> overlaps((0, 1, 1), (0, 1, 1))
    True
    """
    return one == two or (
        one[0] == two[0] and one[1] < two[1] * two[2] and two[1] < one[1] * one[2]
    )


def contains(one: AxisRef, two: AxisRef) -> bool:
    """Whether the first reference contains the second."""
    return one[0] == two[0] and one[1] <= two[1] and two[1] * two[2] <= one[1] * one[2]


def is_prefix(one: AxisRef, two: AxisRef) -> bool:
    """Whether the first reference is the major part of the second, or all of it."""
    return one[0] == two[0] and one[1] == two[1] and one[2] <= two[2]


def is_strict_prefix(one: AxisRefs, two: AxisRefs) -> bool:
    """Whether the first list is a prefix of the second and not equal to it."""
    if len(one) > len(two) or one == two:
        return False
    if not one:
        return True
    return one[:-1] == two[: len(one) - 1] and is_prefix(one[-1], two[len(one) - 1])


def can_coexist(one: AxisRef, two: AxisRef) -> bool:
    """Whether two sub-axes of an axis are digits of one number: their ends divide each other.

    >>> can_coexist((0, 1, 2), (0, 2, 3)), can_coexist((0, 1, 2), (0, 3, 2))
    (True, False)
    """
    ends = sorted((one[1], one[1] * one[2], two[1], two[1] * two[2]))
    return not (ends[1] % ends[0] or ends[2] % ends[1] or ends[3] % ends[2])


def prefix_without_overlap(axis: AxisRef | None, others: AxisRefs) -> AxisRef | None:
    """Return the largest major part of a reference that overlaps none of the others.

    >>> prefix_without_overlap((0, 1, 8), ((0, 2, 2),))
    (0, 1, 2)
    >>> prefix_without_overlap((0, 2, 2), ((0, 1, 4),))
    """
    for other in others:
        if axis is None:
            return None
        if axis[0] == other[0]:
            if not can_coexist(axis, other):
                return None
            if overlaps(axis, other):
                number, pre_size, _ = axis
                axis = (number, pre_size, other[1] // pre_size) if pre_size < other[1] else None
    return axis


def append(axes: list[AxisRef], axis: AxisRef) -> None:
    """Append a reference at the minor end, joined to the last one where it continues that."""
    if axes:
        number, pre_size, size = axes[-1]
        if number == axis[0] and pre_size * size == axis[1]:
            axes[-1] = (number, pre_size, size * axis[2])
            return
    axes.append(axis)


def axis_ref(mesh: DeviceMesh, axis: Axis) -> AxisRef:
    """Return the reference to an axis or a sub-axis of a mesh.

    >>> axis_ref(DeviceMesh("m", (2, 8), ("x", "y")), SubAxis("y", 2, 2))
    (1, 2, 2)
    """
    name, pre_size, size = (axis, 1, 0) if isinstance(axis, str) else axis
    position = mesh.axis_names.index(name)
    return position, pre_size, size or mesh.shape[position]


def named_axis(mesh: DeviceMesh, axis: AxisRef) -> Axis:
    """Return the axis or sub-axis of a mesh that a reference stands for."""
    position, pre_size, size = axis
    name = mesh.axis_names[position]
    return name if size == mesh.shape[position] else SubAxis(name, pre_size, size)


def axis_name(axis: Axis) -> str:
    """Return the name of the axis that an axis or a sub-axis belongs to."""
    return axis if isinstance(axis, str) else axis.name


class TensorSharding(NamedTuple):
    """The sharding of a tensor: the axes of each dimension, and which dimensions are open."""

    axes: tuple[AxisRefs, ...]
    is_open: tuple[bool, ...]
    replicated: AxisRefs = ()
    unreduced: tuple[tuple[AxisRef, str], ...] = ()
    """The axes over which it is partial, each with the monoid of the parts."""
    mesh: int = 0
    """The number of the mesh to which the axes belong."""

    @classmethod
    def open(cls, ndim: int, mesh: int = 0) -> TensorSharding:
        """Return the sharding without axes whose dimensions are all open."""
        return cls(((),) * ndim, (True,) * ndim, mesh=mesh)

    @property
    def excluded(self) -> AxisRefs:
        """The axes that must not shard a dimension: replicated or unreduced."""
        return self.replicated + tuple([axis for axis, _ in self.unreduced])

    @property
    def is_sharded(self) -> bool:
        """Whether an axis shards a dimension."""
        return any(self.axes)


class ManualBoundary(NamedTuple):
    """The boundary that an array crosses into or out of a manual computation.

    The body of a manual computation is written for one cell along its manual axes and sees only
    the others, the free axes. Outside, manual axes shard a dimension before free ones; inside,
    they are absent. Propagation over the edge moves the free axes and keeps the manual ones.
    """

    outer: TensorSharding
    """The sharding that is written on the outside."""
    manual: frozenset[int]
    is_argument: bool
    """Whether the array goes in, so that the target of the edge is inside."""

    def to_source(self, target: TensorSharding) -> TensorSharding:
        """Return the target's sharding as the sources of the edge see it."""
        return self.leave(target) if self.is_argument else self.enter(target)

    def to_target(self, source: TensorSharding) -> TensorSharding:
        """Return the sources' sharding as the target of the edge sees it."""
        return self.enter(source) if self.is_argument else self.leave(source)

    def enter(self, sharding: TensorSharding) -> TensorSharding:
        """Return an outer sharding without the manual axes."""
        return sharding._replace(
            axes=tuple(axes[self._manual_count(axes) :] for axes in sharding.axes),
            replicated=tuple(axis for axis in sharding.replicated if axis[0] not in self.manual),
            unreduced=tuple(part for part in sharding.unreduced if part[0][0] not in self.manual),
        )

    def leave(self, sharding: TensorSharding) -> TensorSharding:
        """Return an inner sharding behind the manual axes."""
        major = [axes[: self._manual_count(axes)] for axes in self.outer.axes]
        return sharding._replace(
            axes=tuple(first + rest for first, rest in zip(major, sharding.axes)),
            replicated=tuple(sorted({*self.outer.replicated, *sharding.replicated})),
            unreduced=self.outer.unreduced,
        )

    def _manual_count(self, axes: AxisRefs) -> int:
        return sum(axis[0] in self.manual for axis in axes)


EMPTY_KIND = -1
"""The kind of a mesh without axes and devices."""


class Meshes:
    """The meshes of a graph by number, and conversion from specs to shardings and back."""

    def __init__(self, graph: Graph) -> None:
        self.named = {mesh.name: mesh for mesh in map(DeviceMesh.parse, graph.meshes)}
        if len(self.named) < len(graph.meshes):
            raise WeftError("two meshes have the same name", hint=", ".join(graph.meshes))
        self.all = tuple(self.named.values()) or (DeviceMesh("empty", (), ()),)
        self.by_name = {mesh.name: number for number, mesh in enumerate(self.all)}
        self.kinds = list(map(self._kind, self.all))
        self.default = next((number for number, mesh in enumerate(self.all) if mesh.shape), 0)
        """The mesh of values without a sharding: the first that has axes."""
        self._specs: dict[tuple[TensorSharding | None, int], ShardingSpec] = {}

    def _kind(self, mesh: DeviceMesh) -> int:
        """Return the first mesh that differs at most in its name, or `EMPTY_KIND`."""
        if not mesh.shape and mesh.device_ids is None:
            return EMPTY_KIND
        same = [(one.shape, one.axis_names, one.device_ids) for one in self.all]
        return same.index((mesh.shape, mesh.axis_names, mesh.device_ids))

    def parse(self, value: Value, text: str) -> ShardingSpec:
        """Parse the sharding of a value; a mesh without axes needs no dimensions."""
        spec = parse_sharding(text, self.named)
        rank = len(value.shape)
        if not spec.mesh.shape and not spec.ndim:
            return ShardingSpec(spec.mesh, [DimSpec()] * rank)
        if spec.ndim != rank:
            raise WeftError(
                f"{value.name} has rank {rank} and its sharding rank {spec.ndim}: {spec}"
            )
        return spec

    def sharding(self, spec: ShardingSpec) -> TensorSharding:
        """Return a spec as a sharding of numbers."""

        def refs(axes: Iterable[Axis]) -> AxisRefs:
            return tuple(axis_ref(spec.mesh, axis) for axis in axes)

        return TensorSharding(
            tuple(refs(dim.axes) for dim in spec.dim_specs),
            tuple(dim.is_open for dim in spec.dim_specs),
            refs(spec.replicated_axes),
            tuple((axis_ref(spec.mesh, axis), monoid) for axis, monoid in spec.partial.items()),
            self.by_name[spec.mesh.name],
        )

    def spec(self, sharding: TensorSharding | None, rank: int) -> ShardingSpec:
        """Return a sharding as a spec, cached; open everywhere where there is none."""
        key = (sharding, rank)
        if key not in self._specs:
            given = sharding or TensorSharding.open(rank, self.default)
            mesh, names = self.all[given.mesh], [self.axes(given.mesh, a) for a in given.axes]
            self._specs[key] = ShardingSpec(
                mesh,
                map(DimSpec, names, given.is_open),
                self.axes(given.mesh, given.replicated),
                ((named_axis(mesh, axis), monoid) for axis, monoid in given.unreduced),
            )
        return self._specs[key]

    def axes(self, mesh: int, axes: AxisRefs) -> tuple[Axis, ...]:
        """Return the axes of a mesh that references stand for."""
        return tuple(named_axis(self.all[mesh], axis) for axis in axes)
