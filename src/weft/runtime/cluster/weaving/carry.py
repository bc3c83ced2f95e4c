"""`carrying`: tasks that keep what the next one on their worker would read from storage again.

Chunks are unpacked whole. A tile that ends inside one, as halos do, has the rest of it at hand; the
next tile along the same dimension begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from weft.plan.storage import Storage
from weft.runtime.cluster.weaving.source import Leaf, leaves
from weft.runtime.cluster.weaving.task import Task
from weft.space import ZRange


def carrying(
    tasks: Sequence[Task], worker: Callable[[Task], int], stored: Mapping[str, Storage]
) -> tuple[Task, ...]:
    """The same tasks, each with the boxes of stored inputs that it keeps for the next."""
    found, last = list(tasks), dict[int, tuple[int, Mapping[str, ZRange]]]()
    for number, task in enumerate(tasks):
        boxes = dict(_boxes(task, stored))
        if not boxes:
            continue
        if worker(task) in last:
            before, held = last[worker(task)]
            kept = tuple(_kept(stored, held, boxes))
            found[before] = replace(found[before], keeps=kept)
        last[worker(task)] = number, boxes
    return tuple(found)


def _boxes(task: Task, stored: Mapping[str, Storage]) -> Iterator[tuple[str, ZRange]]:
    """What a task reads of each stored input, which is one box."""
    for source in task.sources():
        for leaf in leaves(source):
            if isinstance(leaf, Leaf) and leaf.name in stored:
                yield leaf.name, leaf.box


def _kept(
    stored: Mapping[str, Storage], one: Mapping[str, ZRange], two: Mapping[str, ZRange]
) -> Iterator[Leaf]:
    for name in one.keys() & two.keys():
        box = shared(one[name], two[name], stored[name])
        if box is not None:
            yield Leaf(name, box)


def shared(one: ZRange, two: ZRange, storage: Storage) -> ZRange | None:
    """What two boxes that differ along one dimension have in common, to the ends of the chunks.

    >>> x = Storage((100, 8), (10, 4))
    >>> print(shared(ZRange((0, 2), (26, 6)), ZRange((24, 2), (50, 6)), x))
    [20:30, 2:6]
    >>> shared(ZRange((0, 2), (26, 6)), ZRange((24, 0), (50, 6)), x)
    """
    sides = list(zip(zip(one.start, one.stop), zip(two.start, two.stop)))
    moved = [dim for dim, (a, b) in enumerate(sides) if a != b]
    if len(moved) != 1 or not one or not two:
        return None
    (dim,) = moved
    n, size = storage.chunk[dim], storage.shape[dim]
    (low, high), (first, last) = sides[dim]
    start = max(low // n * n, first // n * n)
    stop = min(-(-high // n) * n, -(-last // n) * n, size)
    if start >= stop:
        return None
    starts, stops = list(one.start), list(one.stop)
    starts[dim], stops[dim] = start, stop
    return ZRange(starts, stops)
