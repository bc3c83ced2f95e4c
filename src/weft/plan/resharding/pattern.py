"""What a step is called: which collective its pattern is, seen from the digits that change."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from weft.plan.resharding.frame import Layout
from weft.values import Point

Kind: TypeAlias = Literal[
    "slice",
    "all_gather",
    "all_to_all",
    "collective_permute",
    "reduce_scatter",
    "all_reduce",
    "exchange",
    "mask",
]
"""What a step can be; `exchange` is the general exchange of blocks, whatever the pattern."""


class Change(NamedTuple):
    """What happens to the digits between two layouts of a frame."""

    gone: tuple[Point, ...]
    """For each dimension the digits that no longer cut it."""
    new: tuple[Point, ...]
    """For each dimension the digits that begin to."""
    reduced: Point
    """The digits whose parts are combined."""


def find_change(before: Layout, after: Layout) -> Change:
    """The digits behind the longest common beginning, in each dimension."""
    gone, new = list[Point](), list[Point]()
    for had, has in zip(before.cuts, after.cuts):
        if had == has:
            gone.append(())
            new.append(())
            continue
        same = 0
        for a, b in zip(had, has):
            if a != b:
                break
            same += 1
        gone.append(had[same:])
        new.append(has[same:])
    reduced = tuple([digit for digit in before.parts if digit not in after.parts])
    return Change(tuple(gone), tuple(new), reduced)


def name_pattern(change: Change, src: Point, dst: Point, shape: Point) -> Kind | None:
    """The collective that takes one layout to the other; None if there is nothing to do.

    `src` and `dst` are the numbers of blocks in each dimension.
    """
    gone = {digit for each in change.gone for digit in each}
    new = {digit for each in change.new for digit in each}
    if not gone and not new:
        return "all_reduce" if change.reduced else None
    if _is_nested(change, src, dst, shape):
        if change.reduced:
            return "reduce_scatter" if not gone and new.issuperset(change.reduced) else "exchange"
        if not gone:
            return "slice"
        if not new:
            return "all_gather"
        if gone == new:
            return "all_to_all"
    return "collective_permute" if src == dst and not change.reduced else "exchange"


def _is_nested(change: Change, src: Point, dst: Point, shape: Point) -> bool:
    """Whether every dimension is only cut or only joined, and all blocks lie inside blocks."""
    for n, gone, new, had, has in zip(shape, change.gone, change.new, src, dst):
        if gone and new:
            return False
        if (gone and not nests(n, has, had)) or (new and not nests(n, had, has)):
            return False
    return True


def nests(n: int, outer: int, inner: int) -> bool:
    """Whether each of `inner` blocks of n lies in one of `outer` blocks, for the same cell.

    >>> nests(10, 1, 4), nests(10, 2, 4), nests(7, 4, 8)
    (True, False, True)
    """
    return outer == 1 or -(-n // outer) == -(-n // inner) * (inner // outer)


def most_received(change: Change, count: int, src: Point, dst: Point, shape: Point) -> int | None:
    """How many elements the cell receives that receives the most; None if shards are uneven.

    `count` parts of each element are combined.

    Where a dimension loses digits and gets others, some cell has nothing of what it wants; else
    the smaller of the two blocks lies inside the other, on every cell.
    """
    wanted = held = 1
    for n, had, has in zip(shape, src, dst):
        if n % had or n % has:
            return None
        block = n // has
        wanted *= block
        held *= block if has >= had else n // had
    for gone, new in zip(change.gone, change.new):
        if gone and new:
            held = 0
    return wanted * count - held
