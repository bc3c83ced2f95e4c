"""`Fit`: how long the tiles of a strand are, so that a task fits and reads little twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import NamedTuple

from weft.run.grid.memory import working
from weft.run.grid.seams import Seam, Targets, tiles
from weft.run.grid.source import Leaf, leaves
from weft.run.grid.strands import Strand
from weft.run.grid.task import Task
from weft.run.grid.weave import Brought, Lengths, Loom, Work


class Price(NamedTuple):
    """What a tile takes."""

    most: int
    """Bytes at once."""
    each: float
    """Bytes that it reads from storage, in whole chunks, and computes, for a sub-problem."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Cuts strands until a task takes no more than so many bytes.

    The tile is halved along one seam after the other, each time along the one that costs least:
    at whole shards of what is stored and whole chunks of what is read, as long as there are any.
    """

    memory: int
    extra: int = 0

    def __call__(
        self,
        loom: Loom,
        strand: Strand,
        seams: Sequence[Seam],
        brought: Brought,
    ) -> Lengths:
        """How long the tiles of a strand are."""
        scene = _Scene(loom, strand, seams, brought, self.extra)
        lengths: Lengths = [None] * len(seams)
        price = scene.price(lengths)
        while price is not None and price.most > self.memory:
            options = [(scene.price(option), option) for option in scene.halved(lengths)]
            better = [(p, option) for p, option in options if p and p.most < 0.99 * price.most]
            if not better:
                break
            price, lengths = min(better, key=lambda pair: (pair[0].each, pair[0].most))
        return lengths


class _Scene(NamedTuple):
    """A strand that is cut."""

    loom: Loom
    strand: Strand
    seams: Sequence[Seam]
    brought: Brought
    extra: int

    def price(self, lengths: Lengths) -> Price | None:
        """What the largest tile of a cell in the middle of the mesh takes; None if it has none."""
        rank = len(self.loom.cells) // 2
        found = list(tiles(self.loom.ends(self.strand, rank), self.seams, lengths))
        if not found:
            return None
        middle = len(found) // 2
        largest = max(found[middle:] + found[:middle], key=_volume)
        work = self.loom.work(self.strand, self.brought, rank, largest)
        task = self._task(work, rank)
        most = working(task, self.loom.bobbin.tasks, self.loom.plan.itemsize, self.extra)
        return Price(most, self._effort(task) / max(1, _volume(largest)))

    def _task(self, work: Work, rank: int) -> Task:
        pairs = work.results.items()
        made = tuple(self.loom.bobbin.made(name, have) for name, have in pairs)
        box = work.stages[-1].box
        return Task(0, "compute", self.loom.cells[rank], "", box, work.stages, made)

    def _effort(self, task: Task) -> int:
        """The bytes of the chunks that a task reads, and of all that it computes."""
        read = {leaf for source in task.sources() for leaf in leaves(source)}
        computed = sum(sum(stage.results) for stage in task.stages)
        return computed + sum(self._touched(leaf) for leaf in read if isinstance(leaf, Leaf))

    def _touched(self, leaf: Leaf) -> int:
        return self.loom.shelf.inputs[leaf.name].touched(leaf.box).nbytes

    def halved(self, lengths: Lengths) -> Iterator[Lengths]:
        """The lengths with one of them halved."""
        for place, seam in enumerate(self.seams):
            length = lengths[place] or self._extent(seam)
            unit = self._unit(seam)
            shorter = length // 2 // unit * unit or min(unit, length - 1) or length // 2
            if unit <= shorter < length or (length <= unit and shorter > 0):
                yield [*lengths[:place], shorter, *lengths[place + 1 :]]

    def _extent(self, seam: Seam) -> int:
        """How long the longest box of a cell is along a seam."""
        return max(
            max(box.shape[dim] for box in self.loom.plan.placed[number].boxes)
            for number, dim in seam.dims.items()
        )

    def _unit(self, seam: Seam) -> int:
        """Where a seam may be cut: between shards of what is stored, or chunks of what is read."""
        shards = list(self._extents(seam, is_output=True))
        return lcm(*shards) if shards else max(self._extents(seam, is_output=False), default=1)

    def _extents(self, seam: Seam, *, is_output: bool) -> Iterator[int]:
        """How long shards of outputs, or chunks of inputs, are along a seam."""
        plan, shelf = self.loom.plan, self.loom.shelf
        for number, name in seam.along.items():
            application, line = plan.graph.applications[number], plan.placed[number].signature
            names = application.results if is_output else application.operands
            tensors = line.notation.results if is_output else line.notation.operands
            known = shelf.outputs if is_output else shelf.inputs
            for value, rows in zip(names, tensors):
                if value in known:
                    block = known[value].shard if is_output else known[value].chunk
                    yield from (n for row, n in zip(rows, block) if name in row.dims)


def _volume(targets: Targets) -> int:
    return max(prod(box.shape) for box in targets.values())
