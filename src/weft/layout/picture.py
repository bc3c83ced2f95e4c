"""Draw meshes and shardings, of any rank and any size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from weft.draw import Drawing, Scale, draw_blocks, few, limits
from weft.layout.shardy_text import write_axis
from weft.space import BlockGrid
from weft.values import counted

if TYPE_CHECKING:
    from weft.layout.mesh import DeviceMesh
    from weft.layout.sharding import ShardingSpec

MOST_RUNS = 8
"""Runs of equal blocks that a picture lists."""


def draw_mesh(mesh: DeviceMesh) -> Drawing:
    """Draw the cells of a mesh, each with its device."""
    scales = []
    for axis, size, most in zip(mesh.axis_names, mesh.shape, limits(mesh.ndim)):
        plain = Scale.of_blocks(size, 1, most)
        names = [f"{axis}={low}" for low in plain.cuts[:-1]]
        for n in plain.elided:
            names[n] = "⋯"
        scales.append(Scale(plain.cuts, plain.elided, tuple(names)))
    return draw_blocks(
        scales, lambda at: str(mesh.device(at)), f"{mesh} · {counted(mesh.size, 'cell')}"
    )


def draw_sharding(spec: ShardingSpec, shape: tuple[int, ...] | None) -> Drawing:
    """Draw the boxes of an array, each with the devices that hold it; without a shape, blocks."""
    sizes = spec.grid if shape is None else shape
    grid = BlockGrid.cut(sizes, spec.grid) if shape is None else spec.blocks(sizes)
    extents = grid.block_shape
    copies = spec.mesh.size // prod(spec.grid)

    def holders(start: tuple[int, ...]) -> str:
        cells = spec.holders(grid.block_of(start))
        return few((str(spec.mesh.device(cell)) for cell in cells), copies)

    scales = grid_scales(grid, limits(spec.ndim))
    title = f"{list(sizes)} as {spec} · shard {list(extents)}"
    if shape is None:
        title = f"{spec} · {' x '.join(map(str, spec.grid)) or '1'} blocks"
    return draw_blocks(scales, holders, title, _remarks(spec, grid))


def grid_scales(grid: BlockGrid, most: Sequence[int]) -> list[Scale]:
    """Return the blocks of a grid along each dimension, of which only the outer ones if many."""
    return [
        Scale.of_blocks(n, extent, limit) if at is None else Scale.through(at, limit)
        for n, extent, at, limit in zip(grid.shape, grid.block_shape, grid.edges, most)
    ]


def _remarks(spec: ShardingSpec, grid: BlockGrid) -> list[str]:
    remarks = []
    if spec.replica_count > 1:
        remarks.append(f"{spec.replica_count} replicas of each box")
    for axis, monoid in spec.partial.items():
        parts = spec.mesh.axis_size(axis)
        remarks.append(f"{parts} parts over {write_axis(axis)}, combined by {monoid}")
    for dim in range(grid.ndim):
        runs = grid.classes(dim)
        if len(runs) > 1:
            blocks = [
                f"{each.count} empty" if not each.extent else f"{each.count} of {each.extent}"
                for each in runs[:MOST_RUNS]
            ]
            blocks += [f"{len(runs) - MOST_RUNS} more"] if len(runs) > MOST_RUNS else []
            first, _, size = blocks[0].partition(" ")
            blocks[0] = f"{counted(int(first), 'block')} {size}"
            remarks.append(f"dimension {dim} is uneven: {', '.join(blocks)}")
    return remarks
