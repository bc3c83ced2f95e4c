"""What a search chooses from: placements of an index space, and shardings of an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import NamedTuple

from weft.errors import LayoutError
from weft.lang import Signature
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.placed import Placed, place
from weft.values import Point

MOST = 512
"""The most ways of cutting that are looked at for one index space; with more, small dimensions
stay whole."""

Cuts = dict[str, tuple[Axis, ...]]

Keep = tuple[str, tuple[int, ...]]
"""A monoid, and operands that may be partial by it together."""


class Breadth(NamedTuple):
    """How far choices reach beyond the usual."""

    orders: bool = False
    """Axes that cut one dimension stand in any order, not in that of the mesh alone."""
    idle: bool = False
    """A dimension may be cut into more blocks than it has elements: some cells have nothing."""
    most: int = MOST
    """The most ways of cutting that are looked at for one index space."""


USUAL = Breadth()


def cuttings(
    mesh: DeviceMesh,
    sizes: Mapping[str, int],
    alike: Alike | None = None,
    breadth: Breadth = USUAL,
) -> Iterator[Cuts]:
    """The ways to give every axis of a mesh to one of some dimensions, or to none.

    Axes that cut one dimension stand in the order of the mesh, and a dimension is cut into no more
    blocks than it has elements, unless the breadth says otherwise.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> len(list(cuttings(mesh, {"m": 8, "n": 3}))), list(cuttings(mesh, {"k": 2}))
    (8, [{}, {'k': ('y',)}, {'k': ('x',)}])
    >>> [cuts for cuts in cuttings(mesh, {"k": 2}, None, Breadth(True, True))][3:]
    [{'k': ('x', 'y')}, {'k': ('y', 'x')}]
    """
    axes, dims = _axes(mesh), _dims(sizes, breadth)
    while dims and (len(dims) + 1) ** len(axes) > breadth.most:
        dims.remove(min(dims, key=lambda name: sizes[name]))
    for picked in product([None, *dims], repeat=len(axes)):
        cuts: Cuts = {}
        for axis, name in zip(axes, picked):
            if name is not None:
                cuts[name] = (*cuts.get(name, ()), axis)
        blocks = [(sizes[name], prod(map(mesh.axis_size, by))) for name, by in cuts.items()]
        if not breadth.idle and any(count > size for size, count in blocks):
            continue
        if alike is not None:
            unused = picked.count(None)
            if 1 < unused < len(axes) and len(dims) > 3:
                continue  # with so many dimensions there is one for all axes but one
            if not alike.in_order(dict(zip(axes, picked))) or any(map(_is_wasteful, blocks)):
                continue
        yield from _ordered(cuts) if breadth.orders else (cuts,)


def leaves_out(mesh: DeviceMesh, sizes: Mapping[str, int], most: int = MOST) -> bool:
    """Whether `cuttings` leaves some dimensions whole because there are too many ways to cut.

    >>> mesh = DeviceMesh("m", (2,) * 5, tuple("abcde"))
    >>> leaves_out(mesh, {"m": 8, "n": 8}), leaves_out(mesh, {"m": 8, "n": 8, "k": 8})
    (False, True)
    """
    ways: int = (len(_dims(sizes)) + 1) ** len(_axes(mesh))
    return ways > most


def _axes(mesh: DeviceMesh) -> list[str]:
    return [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]


def _dims(sizes: Mapping[str, int], breadth: Breadth = USUAL) -> list[str]:
    return [name for name, size in sizes.items() if size > 1 or (size and breadth.idle)]


def _ordered(cuts: Cuts) -> Iterator[Cuts]:
    """The same cuts with the axes of each dimension in every order."""
    for orders in product(*map(permutations, cuts.values())):
        yield dict(zip(cuts, orders))


def _is_wasteful(block: tuple[int, int]) -> bool:
    """Whether cells would be idle for more than a fifth of a dimension."""
    size, count = block
    return 4 * count * -(-size // count) > 5 * size


class Alike(NamedTuple):
    """Axes that a machine does not tell apart, and an order of dimensions to tell them by.

    Of plans that differ only by which axis is called what, one is enough: the one in which the
    first of such axes cut the first dimensions.
    """

    classes: tuple[tuple[str, ...], ...]
    order: tuple[tuple[str, int], ...]

    def in_order(self, picked: Mapping[str, str | None]) -> bool:
        """Whether the axes of each class cut dimensions in their order.

        >>> alike = Alike((("x", "y"),), (("m", 0), ("n", 1)))
        >>> alike.in_order({"x": "m", "y": "n"}), alike.in_order({"x": "n", "y": "m"})
        (True, False)
        """
        places = dict(self.order)
        for axes in self.classes:
            taken = [places[name] for axis in axes if (name := picked[axis]) is not None]
            if taken != sorted(taken):
                return False
        return True


@lru_cache(maxsize=4096)
def placements(
    mesh: DeviceMesh,
    signature: Signature,
    alike: Alike | None = None,
    breadth: Breadth = USUAL,
    keeps: tuple[Keep, ...] = (),
) -> tuple[Placed, ...]:
    """The placements of an index space that leave its results in blocks of one size.

    Over axes that cut nothing, operands of `keeps` may be partial and stay so in the results.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> [[d for d, axes in p.placement.items() if axes] for p in placements(mesh, line)]
    [[], ['m'], ['n'], ['k']]
    """
    sizes = {name: size for name, size in signature.sizes.items() if name not in signature.fixed}
    found = []
    for cuts in cuttings(mesh, sizes, alike, breadth):
        for kept in _keepings(mesh, signature, cuts, keeps):
            try:
                found.append(place(mesh, signature, cuts, kept))
            except LayoutError:
                break
    return tuple(found)


def _keepings(
    mesh: DeviceMesh, signature: Signature, cuts: Cuts, keeps: tuple[Keep, ...]
) -> Iterator[dict[Axis, Keep]]:
    """The ways to leave operands partial over the axes that are free; nothing first.

    Parts by two monoids at once would depend on the order in which they are combined.
    """
    used = {axis for axes in cuts.values() for axis in axes}
    free = [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1 and axis not in used]
    reduced = signature.notation.reduced
    own = {reduced[name] for name in signature.reduced if cuts.get(name)}
    yield {}
    for monoid in dict.fromkeys(monoid for monoid, _ in keeps):
        if own <= {monoid}:
            ways = [None, *(keep for keep in keeps if keep[0] == monoid)]
            for picked in product(ways, repeat=len(free)):
                kept: dict[Axis, Keep] = {a: keep for a, keep in zip(free, picked) if keep}
                if kept:
                    yield kept


@lru_cache(maxsize=4096)
def shardings(
    mesh: DeviceMesh, shape: Point, alike: Alike | None = None, breadth: Breadth = USUAL
) -> tuple[ShardingSpec, ...]:
    """The shardings of an array of which nothing is partial.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> print(*shardings(mesh, (8, 1, 4)), sep=", ")
    <@m, [{}, {}, {}]>, <@m, [{"x"}, {}, {}]>, <@m, [{}, {}, {"x"}]>
    """
    names = [str(dim) for dim in range(len(shape))]
    return tuple(
        ShardingSpec(mesh, [DimSpec(cuts.get(name, ())) for name in names])
        for cuts in cuttings(mesh, dict(zip(names, shape)), alike, breadth)
    )


def agreeing(
    written: ShardingSpec, specs: Iterable[ShardingSpec], mesh: DeviceMesh
) -> tuple[ShardingSpec, ...]:
    """The shardings that do what a person wrote: it, and what its open dimensions may become.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> written = ShardingSpec.parse('<@m, [{"x", ?}, {}]>', mesh)
    >>> print(*agreeing(written, shardings(mesh, (8, 8)), mesh), sep=", ")
    <@m, [{"x"}, {}]>, <@m, [{"x", "y"}, {}]>
    """
    dims = [DimSpec(dim.axes) for dim in written.dim_specs]
    itself = ShardingSpec(mesh, dims, (), written.partial)
    kept = {axis if isinstance(axis, str) else axis.name for axis in written.replicated_axes}
    found = [itself]
    for spec in specs:
        used = {str(axis) for dim in spec.dim_specs for axis in dim.axes}
        if spec != itself and not used & kept and _extends(spec, written):
            found.append(spec)
    return tuple(found)


def _extends(spec: ShardingSpec, written: ShardingSpec) -> bool:
    return spec.partial == written.partial and all(
        mine.axes == said.axes or (said.is_open and mine.axes[: len(said.axes)] == said.axes)
        for mine, said in zip(spec.dim_specs, written.dim_specs)
    )


def whole(spec: ShardingSpec) -> ShardingSpec:
    """The sharding with nothing partial."""
    return ShardingSpec(spec.mesh, spec.dim_specs) if spec.partial else spec
