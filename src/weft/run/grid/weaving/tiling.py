"""`Fit`: how a strand is cut into tiles, so that a task fits a worker and reads little twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import lcm, prod
from random import Random
from typing import NamedTuple

from weft.run.grid.weaving.hand import Brought, Work
from weft.run.grid.weaving.memory import working
from weft.run.grid.weaving.seams import Cut, Seam, Targets, seams_of
from weft.run.grid.weaving.source import Leaf, leaves
from weft.run.grid.weaving.strands import Strand
from weft.run.grid.weaving.task import Task
from weft.run.grid.weaving.weave import Cuts, Lengths, Loom, lengths

READING = 3
"""A byte that is read from storage and unpacked takes as long as so many that are computed."""
SAMPLE = 12
"""So many tiles say what all of them take."""


class Price(NamedTuple):
    """What tiles take."""

    most: int
    """Bytes at once, of one of them."""
    read: int
    """Bytes that some of them read, in whole chunks."""
    made: int
    """Bytes that those compute, and give to others."""
    volume: int
    """Sub-problems of those."""

    def each(self, reading: int) -> float:
        """The effort for a sub-problem."""
        return (self.made + reading * self.read) / max(1, self.volume)


@dataclass(frozen=True, slots=True)
class Fit:
    """Cuts strands until a task takes no more than so many bytes; None for any number.

    The tile is halved along one seam after the other, each time along the one that costs least:
    at whole shards of what is stored, at whole chunks of what is read, or anywhere.
    """

    memory: int | None = None
    extra: int = 0
    reading: int = READING
    prices: dict[tuple[Lengths, ...], Price | None] = field(default_factory=dict, compare=False)
    """What is known already, by how this strand and those before it are cut."""

    def __call__(self, loom: Loom, strand: Strand, brought: Brought) -> Cuts:
        """How a strand is cut along each seam; not at all where nothing asks for it."""
        if self.memory is None and not loom.shelf.outputs:
            return ()
        scene = _Scene(loom, strand, brought, self.extra, self.prices)
        seams = seams_of(loom.plan, strand)
        cuts: Cuts = [(seam, Cut(None, scene.shard(seam))) for seam in seams]
        price = scene.price(cuts) if self.memory is not None else None
        while price is not None and price.most > (self.memory or 0):
            options = [(scene.price(option), option) for option in scene.halved(cuts)]
            better = [(p, option) for p, option in options if p and p.most < 0.99 * price.most]
            if not better:
                break
            price, cuts = min(better, key=lambda pair: (pair[0].each(self.reading), pair[0].most))
        return cuts


class _Scene(NamedTuple):
    """A strand that is cut."""

    loom: Loom
    strand: Strand
    brought: Brought
    extra: int
    prices: dict[tuple[Lengths, ...], Price | None]

    def price(self, cuts: Cuts) -> Price | None:
        """What tiles take that are cut so."""
        key = (*self.loom.chosen, lengths(cuts))
        if key not in self.prices:
            self.prices[key] = self._price(cuts)
        return self.prices[key]

    def _price(self, cuts: Cuts) -> Price | None:
        """What some tiles of a cell in the middle of the mesh take; None if it has none."""
        rank = len(self.loom.cells) // 2
        found = list(self.loom.tiles(self.strand, rank, cuts))
        if not found:
            return None
        some = [max(found, key=_volume), *Random(0).sample(found, min(SAMPLE, len(found)))]
        works = [self.loom.work(self.strand, self.brought, rank, tile) for tile in some]
        tasks = [self._task(work, rank) for work in works]
        before, size = self.loom.bobbin.tasks, self.loom.plan.itemsize
        most = max(working(task, before, size, self.extra) for task in tasks)
        read, made = sum(map(self._read, tasks[1:])), sum(map(_made, tasks[1:]))
        return Price(most, read, made, sum(map(_volume, some[1:])))

    def _task(self, work: Work, rank: int) -> Task:
        cell, box = self.loom.cells[rank], work.stages[-1].box
        return Task(0, "compute", cell, "", box, work.stages, *self.loom.parted(cell, work))

    def _read(self, task: Task) -> int:
        """The bytes of the chunks that a task reads."""
        read = {leaf for source in task.sources() for leaf in leaves(source)}
        return sum(
            self.loom.shelf.inputs[leaf.name].touched(leaf.box).nbytes
            for leaf in read
            if isinstance(leaf, Leaf)
        )

    def halved(self, cuts: Cuts) -> Iterator[Cuts]:
        """The cuts with one of them halved, in each way that there is."""
        for place, (seam, cut) in enumerate(cuts):
            length = cut.length or self._extent(seam)
            found = {_shorter(length, unit) for unit in self._units(seam)} - {length, 0}
            for shorter in sorted(found):
                halved = (seam, cut._replace(length=shorter))
                yield [*cuts[:place], halved, *cuts[place + 1 :]]

    def _extent(self, seam: Seam) -> int:
        """How long the longest box of a cell is along a seam."""
        return max(
            max(box.shape[dim] for box in self.loom.plan.placed[number].boxes)
            for number, dim in seam.dims.items()
        )

    def shard(self, seam: Seam) -> int:
        """How long the shards are along a seam of the largest output that is stored; 1 for none."""
        return max(self._extents(seam, is_output=True), default=(0, 1))[1]

    def _units(self, seam: Seam) -> set[int]:
        """Lengths of which tiles along a seam had better be multiples."""
        shards = [n for _, n in self._extents(seam, is_output=True)]
        chunks = [n for _, n in self._extents(seam, is_output=False)]
        return {1, self.shard(seam), lcm(*shards), max(chunks, default=1)}

    def _extents(self, seam: Seam, *, is_output: bool) -> Iterator[tuple[int, int]]:
        """The elements of stored arrays, and how long their shards or chunks are along a seam."""
        plan, shelf = self.loom.plan, self.loom.shelf
        for number, name in seam.along.items():
            application, line = plan.graph.applications[number], plan.placed[number].signature
            names = application.results if is_output else application.operands
            tensors = line.notation.results if is_output else line.notation.operands
            known = shelf.outputs if is_output else shelf.inputs
            for value, rows in zip(names, tensors):
                if value in known:
                    block = known[value].shard if is_output else known[value].chunk
                    size = prod(known[value].shape)
                    yield from ((size, n) for row, n in zip(rows, block) if name in row.dims)


def _shorter(length: int, unit: int) -> int:
    """About half a length: a multiple of the unit, as long as there is a shorter one."""
    if length <= unit:
        return length // 2 if unit == 1 else length
    return max(unit, length // 2 // unit * unit)


def _made(task: Task) -> int:
    """The bytes of all that a task computes, and of its blocks, there and back."""
    computed = sum(sum(stage.results) for stage in task.stages)
    return computed + 2 * sum(made.nbytes for made in task.made)


def _volume(targets: Targets) -> int:
    return max(prod(box.shape) for box in targets.values())
