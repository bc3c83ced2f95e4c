"""The seed's own limits: one config, with the flattening (x, b·z·y), on rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.errors import LayoutError, WeftError
from weft.layout import DeviceMesh
from weft.ttmesh.cut import Cut
from weft.ttmesh.fold import fold
from weft.ttmesh.parts import Part

HINT = "without strict=True it is lowered all the same"


def explain(cuts: Sequence[Cut], mesh: DeviceMesh, parts: Sequence[Part]) -> WeftError | None:
    """Why one config with the seed's flattening cannot do it; None where it can."""
    if mesh.ndim != 2:
        return LayoutError(f"a config has rows and columns: {mesh} has {mesh.ndim} axes", hint=HINT)
    live = [cut for cut in cuts if cut.count > 1]
    for cut in live:
        if len(cut.groups) > 1:
            told = f"{cut.told(mesh)} in {len(cut.groups)} groups"
            return LayoutError(f"{told}, and one config cuts in one piece", hint=HINT)
    (part,) = parts
    if fold(part.view, part.factors, mesh.shape, 4, strict=True):
        return None
    for cut in live:
        if reason := _in_the_way(cut, cuts):
            return LayoutError(f"{cut.told(mesh)}, {reason}", hint=HINT)
    raise AssertionError("what cannot be folded has something in the way")


def _in_the_way(cut: Cut, cuts: Sequence[Cut]) -> str | None:
    """What lies before a dimension in the rows of the flattened buffer and is not cut away."""
    if cut.dim == len(cuts) - 1:
        return None
    before = [(each.dim, each.size // each.count) for each in cuts[: cut.dim]]
    kept = [(dim, size) for dim, size in before if size > 1]
    if not kept:
        return None
    names = " and ".join(f"dimension {dim}" for dim, _ in kept)
    total = prod(size for _, size in kept)
    return (
        f"and {names} before it {'keeps' if len(kept) == 1 else 'keep'} {total} on each chip: "
        "its shards are no blocks of rows of (x, b·z·y)"
    )
