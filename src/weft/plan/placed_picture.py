"""Draw a placed application: the index boxes of its cells, and their images in all arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from weft.draw import ArrayPanel, Drawing, Patch, draw_figure, few, limits
from weft.lang.signature_picture import index_panel, panel_title
from weft.layout.picture import grid_scales
from weft.layout.shardy_text import write_axis
from weft.space import Projection, ZRange
from weft.values import Point

if TYPE_CHECKING:
    from weft.layout.mesh import Cell
    from weft.plan.placed import Placed


def draw_placed(placed: Placed, cell: Cell | None = None) -> Drawing:
    """Draw the index box of each cell, or of one, and its image in every operand and result.

    Boxes have the numbers of their cells, and the colour of the index box that they belong to.
    Arrays of which cells hold parts are hatched.
    """
    signature, line = placed.signature, placed.signature.notation
    boxes, is_whole = _index_boxes(placed) if cell is None else ([_box_of(placed, cell)], True)
    cut = [dim for dim, count in enumerate(placed.index.grid) if count > 1]
    parallel = {dim for dim, name in enumerate(signature.sizes) if name not in line.reduced}
    shown = sorted(parallel.union(cut))
    shown = cut if cut and len(shown) > 2 else shown
    patches = [Patch(box.start, box.stop, label, tone) for box, label, tone in boxes]
    index = index_panel(signature, shown, patches)
    operands = [
        ArrayPanel(panel_title(rows, shape, n in line.once), shape, _images(p, boxes, shape, parts))
        for n, (rows, shape, p, parts) in enumerate(
            zip(line.operands, signature.operand_shapes, signature.operands, placed.partials)
        )
    ]
    results = [
        ArrayPanel(panel_title(rows, shape), shape, _images(p, boxes, shape, spec.partial))
        for rows, shape, p, spec in zip(
            line.results, signature.result_shapes, signature.results, placed.results
        )
    ]
    cuts = ", ".join(f"{name}: {dim}" for name, dim in placed.cuts.items()) or "nothing is cut"
    notes = [
        f"{placed.mesh.axis_size(axis)} parts over {write_axis(axis)}, combined by {monoid}"
        for axis, monoid in (placed.results[0].partial if placed.results else {}).items()
    ]
    notes += [f"… of {placed.mesh.size} cells only some are drawn"] * (not is_whole)
    title = f"{signature} on {placed.mesh} · {cuts}"
    if cell is not None:
        title += f" · cell {placed.mesh.rank(placed.mesh.coord(cell))}"
    return draw_figure("", index, operands, results, title, notes)


IndexBox = tuple[ZRange, str, int]
"""An index box, the cells that compute it, and its colour."""


def _index_boxes(placed: Placed) -> tuple[list[IndexBox], bool]:
    """Return the index boxes that are drawn, the outer ones if many, and whether it is all."""
    spec, mesh = placed.index, placed.mesh
    grid = spec.blocks(tuple(placed.signature.sizes.values()))
    copies = mesh.size // prod(spec.grid)
    most = iter(limits(sum(count > 1 for count in spec.grid)))
    scales = grid_scales(grid, [next(most) if count > 1 else 1 for count in spec.grid])
    boxes: list[IndexBox] = []
    for number, step in enumerate(product(*(scale.steps for scale in scales))):
        box = ZRange([a for a, _ in step], [b for _, b in step])
        cells = spec.holders(grid.block_of(box.start))
        boxes.append((box, few((str(mesh.device(cell)) for cell in cells), copies), number))
    return boxes, not any(scale.elided for scale in scales)


def _box_of(placed: Placed, cell: Cell) -> IndexBox:
    box = placed.index.region(tuple(placed.signature.sizes.values()), cell)
    return box, str(placed.mesh.device(cell)), 0


def _images(
    image: Projection, boxes: Sequence[IndexBox], shape: Point, parts: Iterable[object]
) -> list[Patch]:
    """Return the images of index boxes in an array; those of several are drawn once."""
    together: dict[ZRange, tuple[list[str], int]] = {}
    for box, label, tone in boxes:
        region = image.region(box, shape)
        together.setdefault(region, ([], tone))[0].append(label)
    return [
        Patch(box.start, box.stop, few(labels, len(labels)), tone, bool([*parts]))
        for box, (labels, tone) in together.items()
    ]
