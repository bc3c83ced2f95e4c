"""What the runtime's own mapper does with a config: its shards, and its refusals.

Weft distributes more than the runtime does (one dimension over several axes, short shards). This
is the part that both do, rule by rule in the runtime's order; `make parity` holds it to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from weft.errors import LayoutError
from weft.space import ZRange
from weft.ttmesh.cut import Cut
from weft.ttmesh.grid import Mesh, as_mesh
from weft.ttmesh.mapper import Mapper, Placement, Shard, as_placement
from weft.values import Point, as_point, as_shape


def runtime_shards(
    shape: Iterable[int],
    mesh: Mesh,
    placements: Iterable[Placement | int | None],
    mesh_shape_override: Iterable[int] | None = None,
    mesh_offset_override: Iterable[int] = (),
) -> list[tuple[Point, ZRange]]:
    """The coordinate of every chip that gets a shard, with its box, as the runtime's mapper has it.

    >>> for at, box in runtime_shards((4, 6), (2, 2), [None, 1]):
    ...     print(at, box)
    (0, 0) [0:4, 0:3]
    (0, 1) [0:4, 3:6]
    (1, 0) [0:4, 0:3]
    (1, 1) [0:4, 3:6]
    """
    chips, each = as_mesh(mesh), tuple(map(as_placement, placements))
    over = chips.shape if mesh_shape_override is None else as_point(mesh_shape_override, "override")
    offset = as_point(mesh_offset_override, "offset")
    _check_config(chips.shape, each, over, offset)
    mapper = Mapper(chips, each, over, offset if any(offset) else None)
    sizes = as_shape(shape)
    cuts = mapper.cuts(sizes)
    _check_cuts(each, cuts, sizes)
    cells = mapper.cells
    boxes = mapper.boxes(sizes)
    where = [chips.coord(cells.device(cell)) for cell in cells.cells()]
    held = [(at, boxes[_rank(at, chips.shape)][0]) for at in where]
    return held[: prod(map(_chunks, cuts))] if len(over) == 1 and _is_cut(each) else held


def _rank(at: Point, shape: Point) -> int:
    rank = 0
    for x, size in zip(at, shape):
        rank = rank * size + x
    return rank


def _is_cut(placements: Sequence[Placement]) -> bool:
    return any(isinstance(placement, Shard) for placement in placements)


def _check_config(mesh: Point, placements: Sequence[Placement], over: Point, offset: Point) -> None:
    """What the runtime refuses when a mapper is made."""
    if prod(over) > prod(mesh):
        raise LayoutError(f"a distribution over {over} needs {prod(over)} chips of {prod(mesh)}")
    if len(placements) != len(over):
        raise LayoutError(f"{len(placements)} placements for the {len(over)} axes of {over}")
    if not any(offset):
        return
    fits = len(over) == len(mesh) and all(map(int.__le__, over, mesh))
    if not fits:
        raise LayoutError(
            f"a distribution over {over} is a new order of the chips of a mesh {mesh}, "
            f"which has no offset: {offset}"
        )
    if len(offset) != len(mesh):
        raise LayoutError(
            f"offset {offset} has {len(offset)} axes; the mesh {mesh} has {len(mesh)}"
        )
    for axis, (low, size, most) in enumerate(zip(offset, over, mesh)):
        if low + size > most:
            raise LayoutError(f"mesh axis {axis} of size {most} ends before {low} + {size}")


def _check_cuts(placements: Sequence[Placement], cuts: Sequence[Cut], shape: Point) -> None:
    """What the runtime refuses when a tensor is distributed."""
    cut = [each for each in cuts if each.axes]
    for each in cut:
        if len(each.groups) > 1:
            raise LayoutError(f"dimension {each.dim} is interleaved, which the runtime has not")
        if len(each.axes) > 1:
            raise LayoutError(
                f"dimension {each.dim} is cut by mesh axes {each.axes}; the runtime's mapper cuts "
                "each dimension by one",
                hint="lower it with Weft, or give the mesh in one axis",
            )
    for each in cut:
        if each.size == 0:
            raise LayoutError(f"dimension {each.dim} of size 0 has no chunks")
    if len(placements) > 1:
        for each in cut:
            if _chunks(each) != each.count:
                raise LayoutError(
                    f"dimension {each.dim} of size {each.size} makes {_chunks(each)} chunks for "
                    f"the {each.count} chips of mesh axis {each.axes[0]}"
                )
    for each in cut:
        if each.size % _chunks(each):
            raise LayoutError(
                f"dimension {each.dim} of size {each.size} makes chunks of {_length(each)} and a "
                f"shorter last one over mesh axis {each.axes[0]}={each.count}"
            )


def _length(cut: Cut) -> int:
    return -(-cut.size // cut.count)


def _chunks(cut: Cut) -> int:
    """How many chunks of equal length, but for the last, a dimension makes."""
    return -(-cut.size // _length(cut)) if cut.size and cut.axes else 1
