"""The options of a search: placements of index spaces and shardings of arrays, up to symmetry.

Where two axes of a mesh have the same size and the same link, every plan has a twin in which they
are exchanged. For a large graph one of the two is enough: dimensions are ordered all over the
graph, and interchangeable axes are assigned to them in that order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import permutations, product
from math import prod
from typing import NamedTuple

from weft.errors import LayoutError
from weft.lang import Graph, Signature
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import Placed, place
from weft.plan.propagation.shardings import axis_name
from weft.values import Point

MAX_CUTS = 512
"""The most ways of cutting one index space that are enumerated; with more, its smallest dimensions
stay whole."""

Cuts = dict[str, tuple[Axis, ...]]

PartialGroup = tuple[str, tuple[int, ...]]
"""A monoid, and operands that may be partial by it together."""


class CutAt(NamedTuple):
    """Points at which axes may cut a dimension of some size."""

    axes: tuple[Axis, ...]
    size: int
    points: Point


class Breadth(NamedTuple):
    """How much more than usual is enumerated."""

    any_order: bool = False
    """Axes that cut one dimension come in any order, not only in that of the mesh."""
    idle_cells: bool = False
    """A dimension may be cut into more blocks than it has elements: some cells have nothing."""
    max_cuts: int = MAX_CUTS
    """The most ways of cutting one index space."""
    cut_points: tuple[CutAt, ...] = ()
    """Where a dimension may be cut, beside blocks of one size."""


USUAL = Breadth()


class AxisOrder(NamedTuple):
    """Classes of interchangeable axes, and an order of dimensions that picks one of each twin."""

    classes: tuple[tuple[str, ...], ...]
    ranks: tuple[tuple[str, int], ...]

    def allows(self, dims: Mapping[str, str | None]) -> bool:
        """Whether the axes of each class cut dimensions in their order.

        >>> order = AxisOrder((("x", "y"),), (("m", 0), ("n", 1)))
        >>> order.allows({"x": "m", "y": "n"}), order.allows({"x": "n", "y": "m"})
        (True, False)
        """
        ranks = dict(self.ranks)
        for axes in self.classes:
            taken = [ranks[name] for axis in axes if (name := dims[axis]) is not None]
            if taken != sorted(taken):
                return False
        return True


def enumerate_cuts(
    mesh: DeviceMesh,
    sizes: Mapping[str, int],
    order: AxisOrder | None = None,
    breadth: Breadth = USUAL,
) -> Iterator[Cuts]:
    """Yield the ways to assign every axis of a mesh to one of some dimensions, or to none.

    Axes that cut one dimension are in the order of the mesh, and a dimension is cut into at most as
    many blocks as it has elements, unless the breadth says otherwise. With an axis order, twins and
    cuts that leave many cells idle are left out.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> len(list(enumerate_cuts(mesh, {"m": 8, "n": 3}))), list(enumerate_cuts(mesh, {"k": 2}))
    (8, [{}, {'k': ('y',)}, {'k': ('x',)}])
    >>> [cuts for cuts in enumerate_cuts(mesh, {"k": 2}, None, Breadth(True, True))][3:]
    [{'k': ('x', 'y')}, {'k': ('y', 'x')}]
    """
    axes = _axes(mesh)
    dims = [name for name, size in sizes.items() if size > 1 or (size and breadth.idle_cells)]
    while dims and (len(dims) + 1) ** len(axes) > breadth.max_cuts:
        dims.remove(min(dims, key=lambda name: sizes[name]))
    for assigned in product([None, *dims], repeat=len(axes)):
        cuts: Cuts = {}
        for axis, name in zip(axes, assigned):
            if name is not None:
                cuts[name] = (*cuts.get(name, ()), axis)
        blocks = [(sizes[name], prod(map(mesh.axis_size, by))) for name, by in cuts.items()]
        if not breadth.idle_cells and any(count > size for size, count in blocks):
            continue
        if order is not None:
            if 1 < assigned.count(None) < len(axes) and len(dims) > 3:
                continue  # with so many dimensions there is one for all axes but one
            if not order.allows(dict(zip(axes, assigned))) or any(map(_is_wasteful, blocks)):
                continue
        if breadth.any_order:
            for orders in product(*map(permutations, cuts.values())):
                yield dict(zip(cuts, orders))
        else:
            yield cuts


def omits_cuts(mesh: DeviceMesh, sizes: Mapping[str, int], max_cuts: int = MAX_CUTS) -> bool:
    """Whether `enumerate_cuts` leaves dimensions whole because there are too many ways to cut.

    >>> mesh = DeviceMesh("m", (2,) * 5, tuple("abcde"))
    >>> omits_cuts(mesh, {"m": 8, "n": 8}), omits_cuts(mesh, {"m": 8, "n": 8, "k": 8})
    (False, True)
    """
    count: int = (sum(size > 1 for size in sizes.values()) + 1) ** len(_axes(mesh))
    return count > max_cuts


def _axes(mesh: DeviceMesh) -> list[str]:
    return [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]


def _is_wasteful(block: tuple[int, int]) -> bool:
    """Whether cells would be idle for more than a fifth of a dimension."""
    size, count = block
    return 4 * count * -(-size // count) > 5 * size


@lru_cache(maxsize=4096)
def placements(
    mesh: DeviceMesh,
    signature: Signature,
    order: AxisOrder | None = None,
    breadth: Breadth = USUAL,
    groups: tuple[PartialGroup, ...] = (),
) -> tuple[Placed, ...]:
    """Return the placements of an index space whose results are in blocks of one size.

    Over axes that cut nothing, the operands of `groups` may be partial and stay so in the results.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> [[d for d, axes in p.placement.items() if axes] for p in placements(mesh, line)]
    [[], ['m'], ['n'], ['k']]
    """
    sizes = {name: size for name, size in signature.sizes.items() if name not in signature.fixed}
    result = []
    for cuts in enumerate_cuts(mesh, sizes, order, breadth):
        for partial in _partial_operands(mesh, signature, cuts, groups):
            try:
                result += [
                    place(mesh, signature, dims, partial)
                    for dims in _at_points(cuts, sizes, breadth)
                ]
            except LayoutError:
                break
    return tuple(result)


def _at_points(
    cuts: Cuts, sizes: Mapping[str, int], breadth: Breadth
) -> Iterator[Mapping[str, DimSpec]]:
    """Yield the cuts with blocks of one size first, then with each choice of cut points."""
    options = [
        [
            DimSpec(axes),
            *(
                DimSpec(axes, cut_points=at.points)
                for at in breadth.cut_points
                if (at.axes, at.size) == (axes, sizes[name])
            ),
        ]
        for name, axes in cuts.items()
    ]
    for chosen in product(*options):
        yield dict(zip(cuts, chosen))


def _partial_operands(
    mesh: DeviceMesh, signature: Signature, cuts: Cuts, groups: tuple[PartialGroup, ...]
) -> Iterator[dict[Axis, PartialGroup]]:
    """Yield the ways to leave operands partial over axes that cut nothing; first none.

    Parts by two monoids at once would depend on the order in which they are combined.
    """
    used = {axis for axes in cuts.values() for axis in axes}
    free = [axis for axis in _axes(mesh) if axis not in used]
    reduced = signature.notation.reduced
    own = {reduced[name] for name in signature.reduced if cuts.get(name)}
    yield {}
    for monoid in dict.fromkeys(monoid for monoid, _ in groups):
        if own <= {monoid}:
            options = [None, *(group for group in groups if group[0] == monoid)]
            for picked in product(options, repeat=len(free)):
                kept: dict[Axis, PartialGroup] = {a: g for a, g in zip(free, picked) if g}
                if kept:
                    yield kept


@lru_cache(maxsize=4096)
def shardings(
    mesh: DeviceMesh, shape: Point, order: AxisOrder | None = None, breadth: Breadth = USUAL
) -> tuple[ShardingSpec, ...]:
    """Return the shardings of an array without partial axes.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> print(*shardings(mesh, (8, 1, 4)), sep=", ")
    <@m, [{}, {}, {}]>, <@m, [{"x"}, {}, {}]>, <@m, [{}, {}, {"x"}]>
    """
    names = [str(dim) for dim in range(len(shape))]
    sizes = dict(zip(names, shape))
    return tuple(
        ShardingSpec(mesh, [dims.get(name, DimSpec()) for name in names])
        for cuts in enumerate_cuts(mesh, sizes, order, breadth)
        for dims in _at_points(cuts, sizes, breadth)
    )


def compatible_shardings(
    written: ShardingSpec, specs: Iterable[ShardingSpec], mesh: DeviceMesh
) -> tuple[ShardingSpec, ...]:
    """Return a written sharding, and those of `specs` that only extend its open dimensions.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> written = ShardingSpec.parse('<@m, [{"x", ?}, {}]>', mesh)
    >>> print(*compatible_shardings(written, shardings(mesh, (8, 8)), mesh), sep=", ")
    <@m, [{"x"}, {}]>, <@m, [{"x", "y"}, {}]>
    """
    itself = ShardingSpec(mesh, [dim.closed for dim in written.dim_specs], (), written.partial)
    replicated = set(map(axis_name, written.replicated_axes))
    result = [itself]
    for spec in specs:
        used = {str(axis) for dim in spec.dim_specs for axis in dim.axes}
        extends = spec.partial == written.partial and all(
            new.closed == old.closed or (old.is_open and new.axes[: len(old.axes)] == old.axes)
            for new, old in zip(spec.dim_specs, written.dim_specs)
        )
        if spec != itself and not used & replicated and extends:
            result.append(spec)
    return tuple(result)


def without_partial(spec: ShardingSpec) -> ShardingSpec:
    """Return a sharding with nothing partial."""
    return ShardingSpec(spec.mesh, spec.dim_specs) if spec.partial else spec


class Symmetry:
    """The interchangeable axes of a mesh, and the dimensions of a graph that are the same one."""

    def __init__(self, graph: Graph, mesh: DeviceMesh, machine: Machine) -> None:
        self.graph = graph
        kinds: dict[object, list[str]] = {}
        for axis in mesh.axis_names:
            alone = axis if machine.cells else ""  # cells that differ tell all axes apart
            key = mesh.axis_size(axis), machine.link(axis), alone
            kinds.setdefault(key, []).append(axis)
        self.classes = tuple(tuple(axes) for axes in kinds.values() if len(axes) > 1)
        """The classes of interchangeable axes: of the same size and the same link."""
        self.kinds: dict[Axis, int] = {
            axis: number for number, axes in enumerate(kinds.values()) for axis in axes
        }
        """For every axis the number of its class, also where it is alone."""

    def classes_of(self, axes: Sequence[str]) -> list[list[str]]:
        """Return axes by class."""
        classes: dict[int, list[str]] = {}
        for axis in axes:
            classes.setdefault(self.kinds[axis], []).append(axis)
        return list(classes.values())

    def order_of_application(self, number: int) -> AxisOrder:
        """Return the order of the index dimensions of an application."""
        names = self.graph.signatures[number].sizes
        return self._order({name: self.groups[number, name] for name in names})

    def order_of_value(self, name: str) -> AxisOrder:
        """Return the order of the dimensions of a value."""
        rank = len(self.graph.values[name].shape)
        return self._order({str(dim): self.groups[name, dim] for dim in range(rank)})

    def _order(self, groups: Mapping[str, int]) -> AxisOrder:
        ranks = {group: rank for rank, group in enumerate(sorted(set(groups.values())))}
        return AxisOrder(self.classes, tuple((name, ranks[g]) for name, g in groups.items()))

    @cached_property
    def groups(self) -> Mapping[Hashable, int]:
        """For every dimension of a value and of an index space the number of its group.

        A dimension of an array and the index dimension that runs over it are in one group; groups
        are the classes of a union-find structure.
        """
        parents: dict[Hashable, Hashable] = {}

        def find(one: Hashable) -> Hashable:
            root = one
            while parents.setdefault(root, root) != root:
                root = parents[root]
            while parents[one] != root:
                parents[one], one = root, parents[one]
            return root

        graph = self.graph
        for name, value in graph.values.items():
            for dim in range(len(value.shape)):
                find((name, dim))
        for number, application in enumerate(graph.applications):
            signature = graph.signatures[number]
            names = (*application.operands, *application.results)
            for index in signature.sizes:
                find((number, index))
            for name, rows in zip(
                names, (*signature.notation.operands, *signature.notation.results)
            ):
                for dim, row in enumerate(rows):
                    if len(row.terms) == 1 and row.terms[0][1] == 1:
                        parents[find((number, row.terms[0][0]))] = find((name, dim))
        numbers: dict[Hashable, int] = {}
        return {one: numbers.setdefault(find(one), len(numbers)) for one in list(parents)}
