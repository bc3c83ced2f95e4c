"""`Embedding`: a plan as tasks for cells, whatever engine runs them.

The tasks are drawn from the boxes of the plan, which are those of the other executors: one for each
application and cell, one for each part that leaves a cell, and one for each value that is kept
otherwise than it was made. What an application needs is put together inside its own task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.plan import Plan
from weft.plan.resharding.counts import ranks_by_device
from weft.run.grid.task import Read, Task
from weft.run.grid.weave import weave
from weft.values import Point


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
    """In the order of the plan, which is their priority: each comes behind what it reads."""
    outputs: tuple[tuple[Read, ...], ...]
    """The blocks of every output, in rank order."""

    @classmethod
    def of(cls, plan: Plan) -> Embedding:
        """The tasks of a plan."""
        return cls(plan, *weave(plan))

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """For every task those whose blocks nobody needs after it; outputs have no end.

        What nobody reads has none either: it is waited for, as it may fail.
        """
        last: dict[int, int] = {}
        for task in self.tasks:
            last |= dict.fromkeys(task.reads, task.number)
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
