"""Cut points for cells that differ, and for work that is uneven.

A block is as fast as the slowest cell that has it, and has room for as much as the smallest. Points
are given to the block that would finish first, one after another, so that the last block to finish
does so as early as whole points allow. Capacities limit the shares of blocks; as the bytes of a
program are not known here, several limits are tried, and each cut is priced like any other.

An operator that counts the operations of a box by itself may have more to do in some places than in
others. Its index space is cut so that the block with the most to do, for its speed, has least.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate
from math import inf

from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.machine import Machine
from weft.values import Point

FILLED = (1.0, 0.75, 0.5)
"""Shares of all memory that a program may take; a cut is proposed for each."""
HALVINGS = 40
"""The time of the longest block is found to one part in 2**HALVINGS."""


def balanced_points(
    mesh: DeviceMesh, machine: Machine, axes: Iterable[Axis], size: int
) -> tuple[Point, ...]:
    """Return the points at which axes may cut a dimension for the cells of a machine.

    There are none where cells are alike, or where the points are those of blocks of one size.

    >>> from weft.plan import CellGroup
    >>> mesh, slow = DeviceMesh("m", (4,), ("x",)), CellGroup(devices=[2], speed=0.25)
    >>> balanced_points(mesh, Machine(cells=[slow]), ["x"], 26)
    ((8, 16, 18),)
    """
    return _balanced(mesh, machine, tuple(axes), size)


@lru_cache(maxsize=1024)
def _balanced(
    mesh: DeviceMesh, machine: Machine, axes: tuple[Axis, ...], size: int
) -> tuple[Point, ...]:
    speeds, rooms = machine.speeds(mesh), machine.capacities(mesh)
    spec = ShardingSpec(mesh, [DimSpec(axes)])
    count = spec.grid[0]
    if count < 2 or size < 2 or (speeds is None and rooms is None):
        return ()
    blocks = [block for (block,) in map(spec.block, mesh.cells())]
    fast = _least(blocks, speeds or (1.0,) * mesh.size, count)
    limits: list[list[float]] = [[inf] * count]
    if rooms is not None and inf not in rooms:
        room = _least(blocks, rooms, count)
        limits += [[size * each / (part * sum(room)) for each in room] for part in FILLED]
    regular = tuple(spec.blocks((size,)).edges_of(0)[1:-1])
    found = (tuple(accumulate(split(size, fast, most)))[:-1] for most in limits)
    return tuple(dict.fromkeys(points for points in found if points != regular))


def balanced_work(
    mesh: DeviceMesh,
    machine: Machine,
    axes: Iterable[Axis],
    size: int,
    work: Callable[[int, int], float],
) -> Point | None:
    """Return the points at which axes cut a dimension so that the longest block is shortest.

    `work` returns the operations from one point to another; more points have no fewer. None is
    returned where the points are those of blocks of one size.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> balanced_work(mesh, Machine(), ["x"], 100, lambda low, high: high**2 - low**2)
    (71,)
    """
    spec = ShardingSpec(mesh, [DimSpec(axes)])
    count = spec.grid[0]
    if count < 2 or size < 2 or not work(0, size):
        return None
    blocks = [block for (block,) in map(spec.block, mesh.cells())]
    fast = _least(blocks, machine.speeds(mesh) or (1.0,) * mesh.size, count)

    def ends(limit: float) -> list[int]:
        """Return where blocks end if each takes as much as it can within a time."""
        found = [0]
        for speed in fast:
            low = found[-1]
            room = limit * speed
            found.append(bisect_right(range(low, size), room, key=lambda n: work(low, n + 1)) + low)
        return found[1:]

    low, high = 0.0, work(0, size) / max(fast)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if ends(middle)[-1] == size else (middle, high)
    points = tuple(ends(high)[:-1])
    return None if points == tuple(spec.blocks((size,)).edges_of(0)[1:-1]) else points


def _least(blocks: Sequence[int], values: Sequence[float], count: int) -> list[float]:
    """Return for each block the least value of the cells that have it."""
    found = [inf] * count
    for block, value in zip(blocks, values):
        found[block] = min(found[block], value)
    return found


def split(size: int, speeds: Sequence[float], most: Sequence[float]) -> list[int]:
    """Return how many of some points each block gets so that the last finishes first.

    No block gets more than `most`, rounded up, while another may have more.

    >>> split(10, [1.0, 1.0, 0.5], [9, 2, 9])
    [6, 2, 2]
    """
    total = sum(speeds)
    found = [
        min(int(size * speed / total), int(limit) if limit < inf else size)
        for speed, limit in zip(speeds, most)
    ]
    waiting = [
        ((n + 1) / speed if n < limit else inf, block)
        for block, (n, speed, limit) in enumerate(zip(found, speeds, most))
    ]
    heapify(waiting)
    for _ in range(size - sum(found)):
        end, block = waiting[0]
        found[block] += 1
        is_full = end == inf or found[block] >= most[block]
        later = (found[block] + 1) / speeds[block]
        heapreplace(waiting, (inf if is_full else later, block))
    return found
