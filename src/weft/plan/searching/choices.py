"""What a search chooses from: placements of an index space, and shardings of an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
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


def cuttings(
    mesh: DeviceMesh, sizes: Mapping[str, int], alike: Alike | None = None
) -> Iterator[Cuts]:
    """The ways to give every axis of a mesh to one of some dimensions, or to none.

    Axes that cut one dimension stand in the order of the mesh. A dimension is cut into no more
    blocks than it has elements.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> len(list(cuttings(mesh, {"m": 8, "n": 3}))), list(cuttings(mesh, {"k": 2}))
    (8, [{}, {'k': ('y',)}, {'k': ('x',)}])
    """
    axes = [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]
    dims = [name for name, size in sizes.items() if size > 1]
    while dims and (len(dims) + 1) ** len(axes) > MOST:
        dims.remove(min(dims, key=lambda name: sizes[name]))
    for picked in product([None, *dims], repeat=len(axes)):
        cuts: Cuts = {}
        for axis, name in zip(axes, picked):
            if name is not None:
                cuts[name] = (*cuts.get(name, ()), axis)
        blocks = [(sizes[name], prod(map(mesh.axis_size, by))) for name, by in cuts.items()]
        if any(count > size for size, count in blocks):
            continue
        if alike is None or (
            alike.in_order(dict(zip(axes, picked))) and not any(map(_is_wasteful, blocks))
        ):
            yield cuts


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
    mesh: DeviceMesh, signature: Signature, alike: Alike | None = None
) -> tuple[Placed, ...]:
    """The placements of an index space that leave its results in blocks of one size.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> [[d for d, axes in p.placement.items() if axes] for p in placements(mesh, line)]
    [[], ['m'], ['n'], ['k']]
    """
    sizes = {name: size for name, size in signature.sizes.items() if name not in signature.fixed}
    found = []
    for cuts in cuttings(mesh, sizes, alike):
        try:
            found.append(place(mesh, signature, cuts))
        except LayoutError:
            continue
    return tuple(found)


@lru_cache(maxsize=4096)
def shardings(
    mesh: DeviceMesh, shape: Point, alike: Alike | None = None
) -> tuple[ShardingSpec, ...]:
    """The shardings of an array of which nothing is partial.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> print(*shardings(mesh, (8, 1, 4)), sep=", ")
    <@m, [{}, {}, {}]>, <@m, [{"x"}, {}, {}]>, <@m, [{}, {}, {"x"}]>
    """
    names = [str(dim) for dim in range(len(shape))]
    return tuple(
        ShardingSpec(mesh, [DimSpec(cuts.get(name, ())) for name in names])
        for cuts in cuttings(mesh, dict(zip(names, shape)), alike)
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
