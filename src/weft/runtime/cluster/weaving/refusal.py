"""Why the tasks of a plan do not fit a worker: what is proved, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from weft.errors import WeftError
from weft.runtime.cluster.weaving.shelf import Shelf
from weft.runtime.cluster.weaving.source import Join
from weft.runtime.cluster.weaving.task import Task
from weft.runtime.cluster.weaving.tiling import Unfit


class Least(NamedTuple):
    """Bytes that some worker needs at once, however tasks are cut."""

    nbytes: int
    why: str
    hint: str


def check_least(shelf: Shelf, workers: int, memory: int, extra: int) -> None:
    """Refuse a plan that cannot fit, whatever its tiles are."""
    bound = max(_bounds(shelf, workers), key=lambda least: least.nbytes, default=None)
    if bound is not None and bound.nbytes + extra > memory:
        beside = f" and {extra} B for codecs" if extra else ""
        raise WeftError(
            f"no tiling fits: a worker needs at least {bound.nbytes + extra} B for arrays at once, "
            f"{bound.why}{beside}, and has {memory} B",
            hint=bound.hint if extra < memory else "give workers more memory",
        )


def _bounds(shelf: Shelf, workers: int) -> Iterator[Least]:
    plan = shelf.plan
    for name, storage in shelf.outputs.items():
        shard = tuple(map(min, storage.shard, storage.shape))
        size = prod(shard) * plan.itemsize(name)
        yield Least(size, f"a shard of {name}, {list(shard)}", "make shards smaller")
    for value in plan.graph.inputs:
        if value.name not in shelf.inputs:
            boxes = plan.specs[value.name].regions(value.shape)
            size = max((box.size for box in boxes), default=0) * plan.itemsize(value.name)
            why = f"what a cell has of input {value}"
            yield Least(size, why, f"store {value.name}, or give the plan more cells")
    cells = plan.mesh.size
    held = [0] * workers
    names = [name for name in dict.fromkeys(plan.graph.outputs) if name not in shelf.outputs]
    for name in names:
        spec = plan.outputs[plan.graph.outputs.index(name)]
        for rank, box in enumerate(spec.regions(plan.graph.values[name].shape)):
            held[rank * workers // cells] += box.size * plan.itemsize(name)
    if names:
        why = f"its part of {' and '.join(names)}, which is given back in memory"
        yield Least(max(held), why, "store the outputs, or give the plan more cells")


def joins(task: Task) -> int:
    """Return the bytes that a task needs at least to put an array together from smaller blocks."""
    made = (*task.writes, *task.made)
    return max((2 * m.nbytes for m in made if isinstance(m.source, Join)), default=0)


class Tried(NamedTuple):
    """The tilings that did not fit."""

    number: int = 0
    """How many have no task that is too large, and too much that lies between tasks."""
    least: int | None = None
    """The bytes of the best of them."""
    unfit: Unfit | None = None
    """The smallest task that was too large."""

    def woven(self, most: int) -> Tried:
        """Return this with one more that would need so many bytes."""
        least = most if self.least is None else min(most, self.least)
        return self._replace(number=self.number + 1, least=least)

    def too_large(self, unfit: Unfit) -> Tried:
        """Return this with a tiling whose tasks are too large."""
        is_less = self.unfit is None or unfit.nbytes < self.unfit.nbytes
        return self._replace(unfit=unfit) if is_less and unfit.nbytes else self

    def error(self, memory: int) -> WeftError:
        """Return the refusal: what was tried, and what could be done."""
        if self.least is not None:
            what = (
                f"none of the {self.number} tilings that were tried fits"
                if self.number > 1
                else ("the tiling that was tried does not fit")
            )
            return WeftError(
                f"{what}: a worker would need {self.least} B for arrays at once, and has "
                f"{memory} B; blocks lie between tasks",
                hint="give workers more memory, or the plan more cells; smaller shards need less",
            )
        assert self.unfit is not None
        told = (
            f"no tiling that was tried fits: the smallest task of {self.unfit.what} takes "
            f"{self.unfit.nbytes} B, and a worker has {memory} B for arrays"
        )
        whole = "it cannot be cut further: " if self.unfit.is_smallest else ""
        return WeftError(told, hint=f"{whole}give workers more memory")
