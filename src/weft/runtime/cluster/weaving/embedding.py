"""`Embedding`: a plan as tasks for cells, whatever engine runs them.

The tasks are drawn from the boxes of the plan, which are those of the other executors. A cell runs
through applications that need nothing of other cells in one task, tile by tile where that takes too
much memory. There is a task for each part that leaves a cell, for each value that is kept otherwise
than it was made, and for each shard of a stored output that no tile is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import add

from weft.plan import Plan
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.storage import Storage
from weft.runtime.cluster.weaving.carry import carrying
from weft.runtime.cluster.weaving.memory import between, working
from weft.runtime.cluster.weaving.order import in_depth
from weft.runtime.cluster.weaving.refusal import Tried, check_least, joins
from weft.runtime.cluster.weaving.shelf import Shelf
from weft.runtime.cluster.weaving.source import Read
from weft.runtime.cluster.weaving.task import Task
from weft.runtime.cluster.weaving.tiling import RULES, Fit, Unfit, targets
from weft.runtime.cluster.weaving.weave import Loom, Woven
from weft.values import Point

AHEAD = (None, 32, 8, 2, 1)
"""So many tasks of each worker are on their way at once: as many as memory allows."""


@dataclass(frozen=True)
class Embedding:
    r"""Which tasks a plan is, what they read and make, on which cell and in which order.

    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w, (8, 4), (4, 2),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{}, {"x"}]>'},
    ... )
    >>> embedding = Embedding.of(Plan.of(propagate(graph)))
    >>> print(*embedding.tasks[4:8], sep="\n")
    4: compute matmul [0:8, 0:2, 0:2] for matmul on cell 0
    5: compute matmul [0:8, 0:2, 2:4] for matmul on cell 1
    6: keep matmul [0:8, 0:2] for matmul on cell 0
    7: keep matmul [0:8, 0:2] for matmul on cell 1
    >>> embedding.received == embedding.plan.received
    True
    """

    plan: Plan
    tasks: tuple[Task, ...]
    """In the order of the run, which is their priority: each comes behind what it reads."""
    outputs: tuple[tuple[Read, ...], ...]
    """The blocks of every output, in rank order; none of one that is stored."""
    window: int | None = None
    """How many tasks are on their way at once; None for any number."""
    extra: int = 0
    """The bytes that a task takes beside its arrays."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        inputs: Mapping[str, Storage] | None = None,
        outputs: Mapping[str, Storage] | None = None,
        *,
        memory: int | None = None,
        workers: int | None = None,
        extra: int = 0,
    ) -> Embedding:
        """Return the tasks of a plan.

        `inputs` and `outputs` are those that lie in storage. With `memory`, the bytes that a worker
        may take for arrays, tasks are cut until they fit; they take `extra` bytes beside. What fits
        some memory fits more of it. A plan is refused if no tiling can fit, or if none of those
        that were tried does; the message says which.
        """
        shelf = Shelf(plan, inputs or {}, outputs or {})
        count = min(workers or plan.mesh.size, plan.mesh.size)
        if memory is None:
            woven = Loom(shelf, Fit(extra=extra)).weave()
            return cls._drawn(shelf, woven, count, extra)._carrying(shelf, count)
        check_least(shelf, count, memory, extra)
        tried = Tried()
        for found in cls._tilings(shelf, count, memory, extra):
            if isinstance(found, Unfit):
                tried = tried.too_large(found)
                continue
            own = found._working(count)
            for ahead in AHEAD:
                window = ahead and ahead * count
                most = max(map(add, found._lying(count, window), own), default=0)
                if most <= memory:
                    fits = replace(found, window=window)
                    more = fits._carrying(shelf, count)
                    room = memory - more._kept
                    return more if max(more.peak(count), default=0) <= room else fits
            tried = tried.woven(most)
        raise tried.error(memory)

    @classmethod
    def _tilings(
        cls, shelf: Shelf, workers: int, memory: int, extra: int
    ) -> Iterator[Embedding | Unfit]:
        """Yield the tasks of every tiling that the rules make, large tiles first.

        Which ones there are does not depend on `memory`: it only leaves out those with a task that
        takes more. So what fits some memory is found with more memory, too.
        """
        fits = [Fit(extra=extra, rule=rule, memory=memory) for rule in RULES]
        for fit in fits[1:]:
            fit.prices, fit.dead = fits[0].prices, fits[0].dead
        for rungs in targets():
            below = dict.fromkeys(RULES, 1 << 62)
            for target, fit in product(rungs, fits):
                if target >= below[fit.rule]:
                    continue
                fit.target, fit.above = target, 0
                loom = Loom(shelf, fit)
                try:
                    woven = loom.weave()
                except Unfit as unfit:
                    yield unfit
                else:
                    fit.dead.add(loom.chosen)
                    yield cls._drawn(shelf, woven, workers, extra)
                    if any(joins(task) + extra > memory for task in woven[0]):
                        fit.above = 0  # smaller tiles leave no less to put together
                below[fit.rule] = fit.above  # no target above it changes anything

    @classmethod
    def _drawn(cls, shelf: Shelf, woven: Woven, workers: int, extra: int) -> Embedding:
        """The tasks of a loom, in the order of the plan or, with storage, in depth."""
        tasks, outputs = woven
        found = cls(shelf.plan, tasks, outputs, extra=extra)
        return found._in_depth(workers) if shelf.inputs or shelf.outputs else found

    def _in_depth(self, workers: int) -> Embedding:
        """The same tasks, in an order in which little lies between them."""
        order = in_depth(self.tasks, lambda task: self.worker(task.cell, workers))
        place = {number: n for n, number in enumerate(order)}
        tasks = tuple(self.tasks[number].renumbered(place.__getitem__) for number in order)
        outputs = tuple(
            tuple(Read(place[read.task], read.place) for read in blocks) for blocks in self.outputs
        )
        return replace(self, tasks=tasks, outputs=outputs)

    def _carrying(self, shelf: Shelf, workers: int) -> Embedding:
        """The same, with what tasks can keep of stored inputs for each other."""
        if not shelf.inputs:
            return self
        tasks = carrying(self.tasks, lambda task: self.worker(task.cell, workers), shelf.inputs)
        return replace(self, tasks=tasks)

    @property
    def _kept(self) -> int:
        """The most bytes that a task keeps: they lie there while the next one reads, too."""
        size = self.plan.itemsize
        kept = (sum(k.box.size * size(k.name) for k in task.keeps) for task in self.tasks)
        return max(kept, default=0)

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """For every task those whose blocks nobody needs after it; outputs have no end.

        What nobody reads has none either: it is waited for, as it may fail.
        """
        last: dict[int, int] = {}
        for task in self.tasks:
            for number in task.reads:
                last[number] = task.number
        kept = {read.task for blocks in self.outputs for read in blocks}
        found: list[list[int]] = [[] for _ in self.tasks]
        for number in last.keys() - kept:
            found[last[number]].append(number)
        return tuple(map(tuple, map(sorted, found)))

    def moved(self, task: Task) -> dict[int, int]:
        """The bytes that a task needs of other cells, by cell."""
        found: dict[int, int] = {}
        for read in task.uses():
            maker = self.tasks[read.task]
            if maker.cell != task.cell:
                size = maker.made[read.place].nbytes
                found[maker.cell] = found.get(maker.cell, 0) + size
        return found

    @cached_property
    def received(self) -> Point:
        """The bytes that each cell receives, in rank order."""
        counts = dict.fromkeys(self.ranks, 0)
        for task in self.tasks:
            counts[task.cell] += sum(self.moved(task).values())
        return tuple(counts.values())

    @cached_property
    def ranks(self) -> Mapping[int, int]:
        """The rank of each device."""
        return ranks_by_device(self.plan.mesh)

    def worker(self, cell: int, workers: int) -> int:
        """On which of some workers a cell runs: neighbours share one where cells outnumber them."""
        return self.ranks[cell] * min(workers, len(self.ranks)) // len(self.ranks)

    def peak(self, workers: int) -> Point:
        """The most bytes of arrays that each of some workers has at once.

        That is the largest of its tasks beside the blocks that lie between tasks. Tasks run one by
        one on a worker; with no window all blocks up to the last reader may lie there.
        """
        return tuple(map(add, self._lying(workers, self.window), self._working(workers)))

    def _working(self, workers: int) -> Point:
        """The bytes of the largest task of each worker."""
        most = [0] * min(workers, len(self.ranks))
        for task in self.tasks:
            worker = self.worker(task.cell, workers)
            most[worker] = max(most[worker], self._takes(task))
        return tuple(most)

    def _takes(self, task: Task) -> int:
        """The bytes of all that a task has at once."""
        return working(task, self.tasks, self.plan.itemsize, self.extra)

    def _lying(self, workers: int, window: int | None) -> Point:
        """The bytes of the blocks that lie on each worker, at most."""
        ends = [len(self.tasks)] * len(self.tasks)
        for number, gone in enumerate(self.ends):
            for each in gone:
                ends[each] = number
        at = [self.worker(task.cell, workers) for task in self.tasks]
        ahead = len(self.tasks) if window is None else window
        return between(self.tasks, ends, at, ahead, min(workers, len(self.ranks)))
