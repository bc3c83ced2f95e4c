"""The memory of single reshards and deliveries, for the search's price tables.

A program's memory is counted by `weft.program.count`; what is counted here of one step of it agrees
with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from weft.layout import ShardingSpec
from weft.plan.delivery import Delivery
from weft.plan.placed import Placed
from weft.plan.resharding.counts import sizes
from weft.plan.resharding.reshard import Reshard
from weft.values import Point

Made: TypeAlias = Sequence[int | None]
"""For each cell the bytes of the array that a step makes there; None where it is a view."""


def brought(delivery: Delivery, placed: Placed, place: int) -> tuple[list[int], list[int]]:
    """Return the extra bytes of cells for one operand: at most, and in the end."""
    return along(_delivered(delivery, placed, place), placed.mesh.size)


def along(steps: Iterable[Made], count: int) -> tuple[list[int], list[int]]:
    """Return the extra bytes of cells during steps: at most, and in the end."""
    most, beside = _along(steps, count)
    return most, [size or 0 for size in beside]


def settled(way: Reshard, gone: bool = True, made: Sequence[Made] | None = None) -> list[int]:
    """Return the most that cells hold beyond the source of a reshard.

    A view is copied, unless it is a view of all that is left: the source is gone, or not. What
    the steps make may be given, where it is known.
    """
    if gone and not way.steps:
        return [0] * way.dst.mesh.size
    source, final = (sizes_of(spec, way.shape, way.itemsize) for spec in (way.src, way.dst))
    steps = [step.made for step in way.steps] if made is None else made
    most, beside = _along(steps, len(final))
    copies = [
        size if size < (had if last is None else last) or (last is None and not gone) else 0
        for size, had, last in zip(final, source, beside)
    ]
    return [max(top, (last or 0) + copy) for top, last, copy in zip(most, beside, copies)]


def _along(steps: Iterable[Made], count: int) -> tuple[list[int], list[int | None]]:
    """Return the peak of steps, and the array that each cell made last, if any."""
    most, beside = [0] * count, list[int | None]([None] * count)
    for made in steps:
        cells = zip(most, beside, made)
        most = [max(top, (old or 0) + (new or 0)) for top, old, new in cells]
        beside = [old if new is None else new for old, new in zip(beside, made)]
    return most, beside


def _delivered(delivery: Delivery, placed: Placed, place: int) -> Iterator[Made]:
    """Return the arrays that a delivery makes, step by step."""
    if delivery.reshard is not None:
        yield from (step.made for step in delivery.reshard.steps)
    if delivery.fetch is None and not any(delivery.hidden):
        return
    needs = [box.size * delivery.itemsize for box in placed.needs[place]]
    if delivery.fetch is not None:
        yield [size if got else None for size, got in zip(needs, delivery.fetch.received)]
    if any(delivery.hidden):
        yield [size if monoid else None for size, monoid in zip(needs, delivery.hidden)]


@lru_cache(maxsize=4096)
def sizes_of(spec: ShardingSpec, shape: Point, itemsize: int) -> Point:
    """Return the bytes of the shard of every cell, in rank order."""
    return tuple(size * itemsize for size in sizes(spec, shape))
