"""Counts of elements that cells hold, want, and have already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from weft.layout import DeviceMesh, ShardingSpec
from weft.layout.sharding import join_digits
from weft.plan.placed import layout_of
from weft.program import CellClasses
from weft.space import Digit, weigh
from weft.values import Point

SMALL = 64
"""Cells of a mesh that are quicker to enumerate than to classify."""


def ranks_by_device(mesh: DeviceMesh) -> dict[int, int]:
    """The rank of each device of a mesh."""
    return _ranks(mesh.device_ids or range(mesh.size))


@lru_cache(maxsize=64)
def _ranks(devices: Point | range) -> dict[int, int]:
    return {device: rank for rank, device in enumerate(devices)}


def wanted_and_held(
    before: ShardingSpec, after: ShardingSpec, shape: Point
) -> tuple[list[int], list[int]]:
    """For each cell of the second sharding, how many elements it wants, and has already.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> rows = ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh)
    >>> wanted_and_held(rows, ShardingSpec.parse('<@m, [{"y"}, {}]>', mesh), (4, 3))
    ([6, 6, 6, 6], [6, 0, 0, 6])
    """
    size = after.mesh.size
    ranks = ranks_in(before.mesh, after.mesh)
    wanted, held = [1] * size, [1] * size
    mine, others = before.blocks(shape), after.blocks(shape)
    for dim in range(len(shape)):
        edges = others.edges_of(dim)
        own = mine.edges_of(dim)
        wants = weigh(after.mesh.shape, after.digits[dim])
        blocks = weigh(before.mesh.shape, before.digits[dim])
        if ranks is not None:
            blocks = [blocks[rank] for rank in ranks]
        wanted = [w * (edges[k + 1] - edges[k]) for w, k in zip(wanted, wants)]
        held = [
            h * max(0, min(edges[w + 1], own[k + 1]) - max(edges[w], own[k]))
            for h, w, k in zip(held, wants, blocks)
        ]
    if ranks is not None:
        held = [0 if rank < 0 else h for rank, h in zip(ranks, held)]
    return wanted, held


def wanted_and_held_by_class(
    before: ShardingSpec, after: ShardingSpec, shape: Point
) -> list[tuple[int, int, int]]:
    """Return how many elements cells want, how many they have, and how many such cells there are.

    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> rows = ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh)
    >>> wanted_and_held_by_class(rows, ShardingSpec.parse('<@m, [{"y"}, {}]>', mesh), (4, 3))
    [(6, 6, 2), (6, 0, 2)]
    """
    mesh, other = before.mesh, after.mesh
    is_small = mesh.size <= SMALL
    if is_small or (mesh.shape, mesh.device_ids) != (other.shape, other.device_ids):
        tally = Counter(zip(*wanted_and_held(before, after, shape)))
        return [(want, have, count) for (want, have), count in tally.items()]
    one, two = layout_of(before, shape), layout_of(after, shape)
    classes = CellClasses(one.cells)
    for dim in range(len(shape)):
        classes.refine_spans(two.rule(dim), one.rule(dim))
    found = []
    for at, count in zip(classes.representatives, classes.counts):
        want = two.box(at)
        found.append((want.size, (want & one.box(at)).size, count))
    return found


def ranks_in(before: DeviceMesh, after: DeviceMesh) -> list[int] | None:
    """The rank in the first mesh of each cell of the second, -1 for none; None: all the same."""
    if before is after or (before.size == after.size and before.device_ids == after.device_ids):
        return None
    ranks = ranks_by_device(before)
    return [ranks.get(device, -1) for device in after.device_ids or range(after.size)]


def sizes(spec: ShardingSpec, shape: Point) -> list[int]:
    """Return how many elements each cell holds."""
    found, grid = [1] * spec.mesh.size, spec.blocks(shape)
    for dim, digits in enumerate(spec.digits):
        edges = grid.edges_of(dim)
        held = [edges[k + 1] - edges[k] for k in weigh(spec.mesh.shape, digits)]
        found = list(map(int.__mul__, found, held))
    return found


@lru_cache(maxsize=4096)
def sizes_of(spec: ShardingSpec, shape: Point, itemsize: int) -> Point:
    """Return the bytes that each cell holds, in rank order."""
    return tuple(size * itemsize for size in sizes(spec, shape))


def shared(src: ShardingSpec, dst: ShardingSpec, shape: Point, kept: Iterable[Digit]) -> int:
    """The elements that some cell both holds and wants, once for each value of the kept digits."""
    _, held = wanted_and_held(src, dst, shape)
    ranks = ranks_in(src.mesh, dst.mesh) or range(dst.mesh.size)
    parts = weigh(dst.mesh.shape, join_digits(kept))
    found = {
        (src.block(rank), dst.block(cell), part): size
        for cell, (rank, size, part) in enumerate(zip(ranks, held, parts))
        if rank >= 0
    }
    return sum(found.values())
