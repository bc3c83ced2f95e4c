"""A lowering as a picture: the tensor, and which chip holds which box of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.draw import Drawing, Patch, Scale, draw_patches, few, limits
from weft.values import counted

if TYPE_CHECKING:
    from weft.space import ZRange
    from weft.ttmesh.lowering import Lowering


def draw_lowering(lowering: Lowering) -> Drawing:
    """The boxes of the tensor, each with the chips that hold it."""
    mapper = lowering.mapper
    shape = lowering.shape
    holders: dict[ZRange, list[str]] = {}
    for rank, boxes in enumerate(mapper.boxes(shape)):
        for box in boxes:
            if box:
                holders.setdefault(box, []).append(str(mapper.mesh.device(rank)))
    kept = _shown(list(holders), len(shape))
    scales = [Scale.through(cuts, limit) for cuts, limit in zip(kept, limits(len(kept)))]
    named = [dim for dim in range(len(shape)) if dim >= len(shape) - len(kept)]
    patches = (
        Patch(
            tuple(box.start[dim] for dim in named),
            tuple(box.stop[dim] for dim in named),
            few(iter(names), len(names)),
            number,
        )
        for number, (box, names) in enumerate(holders.items())
    )
    title = f"{list(shape)} on {mapper.mesh} · {counted(lowering.count, 'write')}"
    return draw_patches(patches, scales, title)


def _shown(boxes: list[ZRange], rank: int) -> list[list[int]]:
    """The coordinates at which boxes begin and end; leading dimensions of one box are left out."""
    cuts = [
        sorted({box.start[dim] for box in boxes} | {box.stop[dim] for box in boxes})
        for dim in range(rank)
    ]
    while len(cuts) > 2 and len(cuts[0]) == 2:
        cuts.pop(0)
    return cuts
