"""How many bytes tasks take: each by itself while it runs, and the blocks that lie between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeVar

from weft.lang.dtype import itemsize
from weft.runtime.cluster.weaving.source import (
    Fold,
    Hide,
    Join,
    Leaf,
    Local,
    Part,
    Read,
    Source,
    leaves,
)
from weft.runtime.cluster.weaving.task import Task

T = TypeVar("T")

Size = Callable[[str], int]
"""The bytes of an element of a value."""


def working(task: Task, tasks: Sequence[Task], size: Size, extra: int = 0) -> int:
    """The most bytes that a task takes at once: what it reads, makes, and gives away.

    It reads blocks and boxes, puts together what it needs, and keeps the results of a stage until
    their last use. Beside that it may take `extra` bytes.
    """
    return _Working(task, tasks, size, extra).most()


class _Working:
    """A task gone through by its sizes, as `perform` goes through it by its arrays."""

    def __init__(self, task: Task, tasks: Sequence[Task], size: Size, extra: int) -> None:
        self.task, self.tasks, self.size, self.extra = task, tasks, size, extra
        self.left = uses(task)
        self.live: dict[Leaf | Local, int] = {}
        self.blocks = sum(sum(m.nbytes for m in tasks[number].made) for number in task.reads)
        self.blocks += sum(prod(kept.box.shape) * size(kept.name) for kept in task.keeps)

    def most(self) -> int:
        """The largest moment."""
        most = 0
        for number, stage in enumerate(self.task.stages):
            temporary = sum(map(self._new, stage.sources))
            self.live |= {Local(number, place): n for place, n in enumerate(stage.results)}
            most = max(most, self._now(temporary + stage.extra))
            for source in stage.sources:
                let_go(source, self.left, self.live)
            self._drop_unused(number, len(stage.results))
        temporary = 0
        for write in self.task.writes:  # what a writer takes beside is in `extra`
            most = max(most, self._now(self._new(write.source)))
            let_go(write.source, self.left, self.live)
        for made in self.task.made:
            # A block is copied out of what it is a part of, and again into the engine's memory.
            temporary += self._new(made.source) + 2 * made.nbytes
            most = max(most, self._now(temporary))
        return most

    def _now(self, temporary: int) -> int:
        return self.blocks + sum(self.live.values()) + temporary + self.extra

    def _new(self, source: Source) -> int:
        """The bytes of arrays that are made for a source, and dropped with its use."""
        match source:
            case Leaf(name=name, box=box):
                whole = box.hull(*(kept.box for kept in self.task.keeps if kept.name == name))
                self.live[source] = prod(whole.shape) * self.size(name)
                return 0
            case Read() | Local():
                return 0
            case Part(of=inner):
                return self._new(inner)
            case Hide(of=inner):
                return self._new(inner) + self.bytes(inner)
            case Fold(parts=parts):
                return sum(map(self._new, parts)) + 2 * self.bytes(parts[0])
            case Join(shape=shape, dtype=dtype, pieces=pieces):
                return sum(self._new(piece) for _, piece in pieces) + prod(shape) * itemsize(dtype)

    def bytes(self, source: Source) -> int:
        """The bytes of an array, or of what it is a part of."""
        match source:
            case Leaf(name=name, box=box):
                return prod(box.shape) * self.size(name)
            case Read(task=task, place=place):
                return self.tasks[task].made[place].nbytes
            case Local(stage=stage, place=place):
                return self.task.stages[stage].results[place]
            case Part(of=inner) | Hide(of=inner):
                return self.bytes(inner)
            case Fold(parts=parts):
                return self.bytes(parts[0])
            case Join(shape=shape, dtype=dtype):
                return prod(shape) * itemsize(dtype)

    def _drop_unused(self, stage: int, results: int) -> None:
        for place in range(results):
            if not self.left[Local(stage, place)]:
                self.live.pop(Local(stage, place), None)


def uses(task: Task) -> Counter[Leaf | Local]:
    """How often a task uses its results and what it reads of inputs."""
    found = (leaf for source in task.sources() for leaf in leaves(source))
    return Counter(leaf for leaf in found if not isinstance(leaf, Read))


def let_go(source: Source, left: Counter[Leaf | Local], live: dict[Leaf | Local, T]) -> None:
    """Count a use of a source, and forget what was used for the last time."""
    for leaf in leaves(source):
        if not isinstance(leaf, Read):
            left[leaf] -= 1
            if not left[leaf]:
                live.pop(leaf, None)


def between(
    tasks: Sequence[Task], ends: Sequence[int], at: Sequence[int], window: int, workers: int
) -> tuple[int, ...]:
    """The most bytes of blocks that lie on each worker while so many tasks are on their way.

    `ends` says for each task behind which one its blocks are let go, and `at` where it runs.
    """
    change: list[Counter[int]] = [Counter() for _ in range(len(tasks) + window + 2)]
    for task, end, worker in zip(tasks, ends, at):
        size = sum(made.nbytes for made in task.made)
        change[task.number][worker] += size
        change[min(end + window + 1, len(change) - 1)][worker] -= size
    now, most = Counter[int](), Counter[int]()
    for step in change:
        now.update(step)
        for worker in step:
            most[worker] = max(most[worker], now[worker])
    return tuple(most[worker] for worker in range(workers))
