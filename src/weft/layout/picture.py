"""Draw meshes and shardings, of any rank and any size."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weft.draw import Drawing, Scale, draw_blocks, few, limits
from weft.layout.shardy_text import write_axis
from weft.values import counted

if TYPE_CHECKING:
    from weft.layout.mesh import DeviceMesh
    from weft.layout.sharding import ShardingSpec


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
    extents = spec.shard_shape(sizes)
    copies = spec.mesh.size // prod(spec.grid)

    def holders(start: tuple[int, ...]) -> str:
        cells = spec.holders(spec.block_of(sizes, start))
        return few((str(spec.mesh.device(cell)) for cell in cells), copies)

    scales = list(map(Scale.of_blocks, sizes, extents, limits(spec.ndim)))
    title = f"{list(sizes)} as {spec} · shard {list(extents)}"
    if shape is None:
        title = f"{spec} · {' x '.join(map(str, spec.grid)) or '1'} blocks"
    return draw_blocks(scales, holders, title, _remarks(spec, sizes))


def _remarks(spec: ShardingSpec, shape: tuple[int, ...]) -> list[str]:
    remarks = []
    if spec.replica_count > 1:
        remarks.append(f"{spec.replica_count} replicas of each box")
    for axis, monoid in spec.partial.items():
        parts = spec.mesh.axis_size(axis)
        remarks.append(f"{parts} parts over {write_axis(axis)}, combined by {monoid}")
    for dim, (n, count, extent) in enumerate(zip(shape, spec.grid, spec.shard_shape(shape))):
        if n % count:
            full, short = divmod(n, extent)
            empty = count - full - (short > 0)
            blocks = [f"{counted(full, 'block')} of {extent}"]
            blocks += [f"1 of {short}"] if short else []
            blocks += [f"{empty} empty"] if empty else []
            remarks.append(f"dimension {dim} is uneven: {', '.join(blocks)}")
    return remarks
