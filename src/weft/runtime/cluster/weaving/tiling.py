"""`Fit`: how a strand is cut into tiles, so that a task fits a worker and reads little twice.

The tile of a strand is halved along one dimension after the other, each time along the one that
costs least: at whole shards of what is stored, at whole chunks of what is read, or anywhere. That
makes a sequence of tilings; how far along it a strand goes is said by the bytes that a task may
take, its target. Neither depends on how much memory there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import lcm, prod
from random import Random
from typing import NamedTuple

from weft.plan import Plan
from weft.runtime.cluster.weaving.hand import Brought, Work
from weft.runtime.cluster.weaving.memory import working
from weft.runtime.cluster.weaving.seams import Cut, Seam, Targets, seams_of
from weft.runtime.cluster.weaving.source import Leaf, leaves
from weft.runtime.cluster.weaving.strands import Strand
from weft.runtime.cluster.weaving.task import Task
from weft.runtime.cluster.weaving.weave import Cuts, Lengths, Loom, lengths

READING = 3
"""A byte that is read from storage and unpacked takes as long as so many that are computed."""
SAMPLE = 12
"""So many tiles say what all of them take."""
MANY, SMALL = 128, 1 << 20
"""Strands are cut into up to so many tiles, or into as many as have so many bytes of a value."""


class Price(NamedTuple):
    """Memory and work of tiles."""

    most: int
    """Bytes that the largest of them takes at once."""
    read: int
    """Bytes that some of them read, in whole chunks."""
    made: int
    """Bytes that those compute, and give to others."""
    volume: int
    """Sub-problems of those."""
    tiles: int
    """How many tiles all cells have together, about."""

    def each(self, reading: int) -> float:
        """Return the effort for a sub-problem."""
        return (self.made + reading * self.read) / max(1, self.volume)


class Rule(NamedTuple):
    """How the next dimension to halve is chosen."""

    reading: int = READING
    """The weight of a byte that is read against one that is computed."""
    aligned: bool = False
    """Whether tiles are whole shards for as long as they hold more than one."""


RULES = (Rule(), Rule(aligned=True), Rule(reading=1))
"""Each makes one sequence of ever smaller tiles."""

Step = tuple[Price, Cuts]


class Steps:
    """The tilings of a strand that one rule makes, from no cuts at all to the smallest tiles.

    They do not depend on the memory of a worker, so that what fits a worker fits a larger one.
    """

    def __init__(self, scene: _Scene, rule: Rule, cuts: Cuts) -> None:
        self.scene, self.rule = scene, rule
        first = scene.price(cuts)
        self.steps: list[Step] = [] if first is None else [(first, cuts)]
        self.is_ended = first is None

    def below(self, target: int) -> Step | None:
        """Return the first tiling whose tasks take at most so many bytes, or the smallest."""
        for step in self._every():
            if step[0].most <= target:
                return step
        return min(self.steps, key=lambda step: step[0].most, default=None)

    def _every(self) -> Iterator[Step]:
        yield from self.steps
        while not self.is_ended:
            following = self._following(*self.steps[-1])
            if following is None:
                self.is_ended = True
            else:
                self.steps.append(following)
                yield following

    def _following(self, price: Price, cuts: Cuts) -> Step | None:
        """Return the tiling with one dimension halved at the least effort.

        Where no dimension alone makes the largest task smaller, as where two large applications
        have none in common, the one is halved that leaves the smallest tiles.
        """
        if price.tiles > self.scene.most_tiles:
            return None
        options = [(self.scene.price(o), o) for o in self.scene.halved(cuts, self.rule.aligned)]
        priced = [(p, option) for p, option in options if p is not None]
        better = [(p, option) for p, option in priced if p.most < 0.99 * price.most]
        if better:
            return min(better, key=lambda step: (step[0].each(self.rule.reading), step[0].most))
        return min(priced, key=lambda step: (step[0].most, -step[0].tiles), default=None)


class Unfit(Exception):  # noqa: N818 - it never leaves the search
    """A strand cannot fit, cut like this behind the strands before it."""

    def __init__(self, what: str, nbytes: int, *, is_smallest: bool) -> None:
        super().__init__(what, nbytes)
        self.what, self.nbytes, self.is_smallest = what, nbytes, is_smallest


@dataclass
class Fit:
    """Cuts every strand until its tasks take at most `target` bytes; None: as they come.

    `memory` are the bytes of a worker: what takes more is not woven. `dead` holds the cuts of
    strands, from the first one on, that are known not to fit.
    """

    target: int | None = None
    extra: int = 0
    rule: Rule = RULES[0]
    memory: int | None = None
    prices: dict[tuple[Lengths, ...], Price | None] = field(default_factory=dict)
    steps: dict[tuple[Rule, tuple[Lengths, ...]], Steps] = field(default_factory=dict)
    dead: set[tuple[Lengths, ...]] = field(default_factory=set)
    above: int = 0
    """The largest task, as far as a smaller target would change it: a target of as much or more
    makes the same tiles."""

    def __call__(self, loom: Loom, strand: Strand, brought: Brought) -> Cuts:
        """Return how a strand is cut along each seam; not at all where nothing asks for it."""
        if self.target is None and not loom.shelf.outputs:
            return ()
        scene = _Scene.of(loom, strand, brought, self.extra, self.prices)
        cuts: Cuts = [(seam, Cut(None, scene.shard(seam))) for seam in seams_of(loom.plan, strand)]
        if self.target is None:
            return cuts
        key = (self.rule, loom.chosen)
        if key not in self.steps:
            self.steps[key] = Steps(scene, self.rule, cuts)
        # The loom of a later attempt has the same tasks up to here.
        steps = self.steps[key]
        steps.scene = scene
        found = steps.below(self.target)
        if found is None:
            return cuts
        price, cuts = found
        if price.most <= self.target:
            self.above = max(self.above, price.most)
        chosen = (*loom.chosen, lengths(cuts))
        if (self.memory is not None and price.most > self.memory) or chosen in self.dead:
            self.dead.add(chosen)
            names = [loom.plan.graph.applications[n].operator for n in strand.applications]
            is_smallest = not any(True for _ in scene.halved(cuts, aligned=False))
            what = " + ".join(dict.fromkeys(names))
            raise Unfit(what, price.most, is_smallest=is_smallest)
        return cuts


def targets() -> Iterator[tuple[int, ...]]:
    """Yield the bytes that a task may take, from more to less, whatever memory there is.

    The powers of two come first; those between them are tried if none of these fits.

    >>> [(rungs[0] >> 40, rungs[-2:]) for rungs in targets()]
    [(256, (2, 1)), (181, (2, 1))]
    """
    yield tuple(1 << power for power in range(48, -1, -1))
    yield tuple(int(2 ** (power + 0.5)) for power in range(47, -1, -1))


def most_tiles(plan: Plan) -> int:
    """Return how many tiles are worth a try: more are so small that the tasks' overhead rules."""
    values = plan.graph.values
    largest = max((prod(v.shape) * plan.itemsize(name) for name, v in values.items()), default=0)
    return max(MANY, largest // SMALL)


class _Scene(NamedTuple):
    """A strand that is cut."""

    loom: Loom
    strand: Strand
    brought: Brought
    extra: int
    prices: dict[tuple[Lengths, ...], Price | None]
    rank: int
    """The cell that stands for all: one with most to do, in the middle of the mesh if it can be."""

    @classmethod
    def of(
        cls,
        loom: Loom,
        strand: Strand,
        brought: Brought,
        extra: int,
        prices: dict[tuple[Lengths, ...], Price | None],
    ) -> _Scene:
        """Return the scene of a strand; what is stored and replicated only some cells compute."""
        middle = len(loom.cells) // 2

        def work(rank: int) -> tuple[int, int]:
            ends = loom.ends(strand, rank)
            return (_volume(ends) if ends else -1), -abs(rank - middle)

        rank = max(range(len(loom.cells)), key=work)
        return cls(loom, strand, brought, extra, prices, rank)

    def price(self, cuts: Cuts) -> Price | None:
        """What tiles take that are cut so."""
        key = (*self.loom.chosen, lengths(cuts))
        if key not in self.prices:
            self.prices[key] = self._price(cuts)
        return self.prices[key]

    def _price(self, cuts: Cuts) -> Price | None:
        """Return what some tiles of one cell take; None if no cell has any."""
        rank = self.rank
        found = list(self.loom.tiles(self.strand, rank, cuts))
        if not found:
            return None
        some = [max(found, key=_volume), *Random(0).sample(found, min(SAMPLE, len(found)))]
        works = [self.loom.work(self.strand, self.brought, rank, tile) for tile in some]
        tasks = [self._task(work, rank) for work in works]
        before, size = self.loom.bobbin.tasks, self.loom.plan.itemsize
        most = max(working(task, before, size, self.extra) for task in tasks)
        read, made = sum(map(self._read, tasks[1:])), sum(map(_made, tasks[1:]))
        tiles = len(found) * len(self.loom.cells)
        return Price(most, read, made, sum(map(_volume, some[1:])), tiles)

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

    @property
    def most_tiles(self) -> int:
        """How many tiles are worth a try."""
        return most_tiles(self.loom.plan)

    def halved(self, cuts: Cuts, aligned: bool) -> Iterator[Cuts]:
        """Yield the cuts with one of them halved: into whole shards, if `aligned` and possible."""
        for place, (seam, cut) in enumerate(cuts):
            length = cut.length or self._extent(seam)
            units = self._units(seam)
            if aligned and (whole := _shorter(length, self.shard(seam))) < length:
                found = {whole} - {0}
            else:
                found = {_shorter(length, unit) for unit in units} - {length, 0}
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
