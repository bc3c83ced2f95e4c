"""Cut groups into tiles, so that a task fits a worker and reads little twice.

Index dimensions of consecutive applications are one tile dimension where a box of the one is a box
of the other, halos aside. The last applications of a group are cut along it at the same places, and
the boxes of the others follow. A tile of a reduction is a part of it.

The tile of a group is halved along one dimension after another, each time along the cheapest: at
whole shards of what is stored, at whole chunks of what is read, or anywhere. That makes a sequence
of tilings. The target, the bytes that a task may take, decides how far along it a group goes.
Neither depends on the memory of a worker, so that what fits one worker fits a larger one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import lcm, prod
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weft.lang import Row, Signature
from weft.runtime.cluster.groups import GroupedProgram, TaskGroup, unite
from weft.runtime.cluster.schedule import task_memory
from weft.runtime.cluster.tasks import Task
from weft.space import ZRange

if TYPE_CHECKING:
    from weft.runtime.cluster.build import GroupInputs, TaskGraphBuilder, TileWork

Targets: TypeAlias = Mapping[int, ZRange]
"""For the last applications of a group the box of the index space that a tile computes."""

Cuts: TypeAlias = "Sequence[tuple[TileDim, Cut]]"
"""How a group is cut into tiles: along which dimensions, and where."""

TileShape: TypeAlias = tuple[int | None, ...]
"""The length of a group's tiles along each of its tile dimensions; None: not cut."""

# -- tiles -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TileDim:
    """Index dimensions that are cut together, at most one of each application."""

    dims: Mapping[int, int]
    """For each application that is cut along it the number of its index dimension."""
    names: Mapping[int, str] = field(default_factory=dict)
    """For each application that it runs through the name of its index dimension."""


def tile_dims(program: GroupedProgram, group: TaskGroup) -> tuple[TileDim, ...]:
    """Return the dimensions along which a group can be cut."""
    graph, sets = program.graph, dict[tuple[int, str], list[tuple[int, str]]]()
    for number in group.applications:
        for name in graph.signatures[number].sizes:
            sets[number, name] = [(number, name)]
    for number, place in sorted(group.inner):
        value = graph.applications[number].operands[place]
        maker = program.maker[value]
        result = graph.applications[maker].results.index(value)
        signature = graph.signatures[number]
        rows = zip(
            graph.signatures[maker].notation.results[result], signature.notation.operands[place]
        )
        for row, other in rows:
            one, two = row.plain, _main_dim(other, signature)
            if one is not None and two is not None:
                unite(sets, (maker, one), (number, two))
    found = []
    for members in {id(members): sorted(members) for members in sets.values()}.values():
        dims: dict[int, int] = {}
        for number, name in members:
            if number not in dims and _can_cut(program, group, number, name):
                dims[number] = list(graph.signatures[number].sizes).index(name)
        if dims:
            found.append(TileDim(dims, dict(reversed(members))))
    return tuple(found)


def _main_dim(row: Row, signature: Signature) -> str | None:
    """Return the index dimension that a row moves with: a parallel one before a reduced one."""
    names = [name for name, step in row.terms if step == 1 and row.divisor == 1]
    reduced = signature.notation.reduced
    return next(iter(sorted(names, key=lambda name: name in reduced)), None)


def _can_cut(program: GroupedProgram, group: TaskGroup, number: int, name: str) -> bool:
    """Return whether an application of a group may be cut along a dimension."""
    signature, applications = program.graph.signatures[number], program.graph.applications
    if name in signature.fixed or number not in group.ends:
        return False
    if name in signature.reduced:
        if len(set(signature.notation.reduced.values())) > 1:
            return False
        inside = {applications[n].operands[place] for n, place in group.inner}
        # Inside the group a part of a reduction would not do.
        return inside.isdisjoint(applications[number].results)
    return all(any(row.plain == name for row in rows) for rows in signature.notation.results)


class Cut(NamedTuple):
    """Where a tile dimension is cut: at multiples of a length, and around whole stored shards."""

    length: int | None = None
    shard: int = 1

    def points(self, low: int, high: int, end: int) -> list[int]:
        """Return where a span of a dimension is cut, both ends included; the array ends at `end`.

        >>> Cut(64).points(80, 200, 500), Cut(None, 64).points(80, 200, 500)
        ([80, 128, 192, 200], [80, 128, 192, 200])
        >>> Cut(None, 64).points(0, 500, 500)
        [0, 500]
        """
        step = self.length or high - low or 1
        inner = range(low // step * step, high, step) if self.length else ()
        first, last = -(-low // self.shard) * self.shard, high // self.shard * self.shard
        last = high if high == end else last
        return sorted({low, high, *(x for x in (first, last, *inner) if low < x < high)})


def tile_shape(cuts: Cuts) -> TileShape:
    """Return the lengths that tell the cuts of a group from others."""
    return tuple(cut.length for _, cut in cuts)


def tiles(own: Targets, cuts: Cuts, ends: Sequence[int]) -> Iterator[Targets]:
    """Return the boxes of a cell cut along tile dimensions, whose arrays end at `ends`.

    >>> own = {0: ZRange((2, 0), (8, 4)), 1: ZRange((0,), (4,))}
    >>> cuts = [(TileDim({0: 0}), Cut(4)), (TileDim({0: 1, 1: 0}), Cut(2))]
    >>> for tile in tiles(own, cuts, [8, 4]):
    ...     print(", ".join(f"{n}: {box}" for n, box in tile.items()))
    0: [2:4, 0:2], 1: [0:2]
    0: [2:4, 2:4], 1: [2:4]
    0: [4:8, 0:2]
    0: [4:8, 2:4]
    """
    spans = [(dim, _spans(own, dim, cut, end)) for (dim, cut), end in zip(cuts, ends)]
    spans = [(dim, parts) for dim, parts in spans if len(parts) > 1]
    for corner in product(*(parts for _, parts in spans)):
        boxes = {number: _tile(number, box, spans, corner) for number, box in own.items()}
        if found := {number: box for number, box in boxes.items() if box is not None}:
            yield found


Span: TypeAlias = tuple[int, int]


def _spans(own: Targets, dim: TileDim, cut: Cut, end: int) -> list[Span]:
    sides = [
        (box.start[dim.dims[n]], box.stop[dim.dims[n]])
        for n, box in own.items()
        if n in dim.dims and box
    ]
    if not sides:
        return []
    low, high = min(low for low, _ in sides), max(high for _, high in sides)
    return list(pairwise(cut.points(low, high, end)))


def _tile(
    number: int, box: ZRange, spans: Sequence[tuple[TileDim, list[Span]]], corner: Sequence[Span]
) -> ZRange | None:
    """Return the part of a box in a tile; what is not cut along a dimension is in the first."""
    start, stop = list(box.start), list(box.stop)
    for (tile_dim, parts), (low, high) in zip(spans, corner):
        dim = tile_dim.dims.get(number)
        if dim is None or not box:
            if (low, high) != parts[0]:
                return None
            continue
        start[dim], stop[dim] = max(start[dim], low), min(stop[dim], high)
        if start[dim] >= stop[dim]:
            return None
    return ZRange(start, stop)


# -- the choice of tiles ---------------------------------------------------------------------------

READ_WEIGHT = 3
"""Reading and decoding a byte from storage takes as long as computing this many."""
SAMPLE = 12
"""The number of tiles from which the cost of all is estimated."""
MIN_TILES, TILE_BYTES = 128, 1 << 20
"""A group is cut into at most `MIN_TILES` tiles, or as many as hold `TILE_BYTES` of a value."""


class TileCost(NamedTuple):
    """Memory and work of tiles."""

    peak: int
    """Bytes that the largest tile takes at once."""
    read: int
    """Bytes that the sample reads, in whole chunks."""
    made: int
    """Bytes that the sample computes and hands out."""
    volume: int
    """Index points of the sample."""
    tiles: int
    """The approximate number of tiles of all cells."""

    def per_point(self, read_weight: int) -> float:
        """Return the effort for one index point."""
        return (self.made + read_weight * self.read) / max(1, self.volume)


class HalvingRule(NamedTuple):
    """How the next dimension to halve is chosen."""

    read_weight: int = READ_WEIGHT
    """The weight of a byte that is read against one that is computed."""
    aligned: bool = False
    """Whether tiles are whole shards for as long as they hold more than one."""


RULES = (HalvingRule(), HalvingRule(aligned=True), HalvingRule(read_weight=1))
"""Each makes one sequence of ever smaller tiles."""

Tiling: TypeAlias = tuple[TileCost, Cuts]


class TilingSequence:
    """The tilings of a group by one rule, from no cuts to the smallest tiles; made on demand."""

    def __init__(self, costs: _GroupCosts, rule: HalvingRule, cuts: Cuts) -> None:
        self.costs, self.rule = costs, rule
        first = costs.cost(cuts)
        self.tilings: list[Tiling] = [] if first is None else [(first, cuts)]
        self.is_ended = first is None

    def below(self, target: int) -> Tiling | None:
        """Return the first tiling whose tasks take at most so many bytes, or the smallest."""
        for tiling in self._all():
            if tiling[0].peak <= target:
                return tiling
        return min(self.tilings, key=lambda tiling: tiling[0].peak, default=None)

    def _all(self) -> Iterator[Tiling]:
        yield from self.tilings
        while not self.is_ended:
            following = self._following(*self.tilings[-1])
            if following is None:
                self.is_ended = True
            else:
                self.tilings.append(following)
                yield following

    def _following(self, cost: TileCost, cuts: Cuts) -> Tiling | None:
        """Return the tiling with one dimension halved at the least effort.

        Where no dimension alone makes the largest task smaller, as where two large applications
        have none in common, the one is halved that leaves the smallest tiles.
        """
        if cost.tiles > max_tiles(self.costs.builder.program):
            return None
        halved = self.costs.halved(cuts, self.rule.aligned)
        options = [(found, each) for each in halved if (found := self.costs.cost(each)) is not None]
        better = [(found, each) for found, each in options if found.peak < 0.99 * cost.peak]
        if better:
            weight = self.rule.read_weight
            return min(better, key=lambda tiling: (tiling[0].per_point(weight), tiling[0].peak))
        return min(options, key=lambda tiling: (tiling[0].peak, -tiling[0].tiles), default=None)


class DoesNotFit(Exception):  # noqa: N818 - it never leaves the search
    """A group does not fit, cut like this behind the groups before it."""

    def __init__(self, what: str, nbytes: int, *, is_smallest: bool) -> None:
        super().__init__(what, nbytes)
        self.what, self.nbytes, self.is_smallest = what, nbytes, is_smallest


@dataclass
class TileChooser:
    """Cuts every group until its tasks take at most `target` bytes; None: without a limit.

    `memory` are the bytes of a worker: a task that takes more is not built. `dead` holds the tile
    shapes of groups, from the first one on, that are known not to fit.
    """

    target: int | None = None
    extra: int = 0
    rule: HalvingRule = RULES[0]
    memory: int | None = None
    costs: dict[tuple[TileShape, ...], TileCost | None] = field(default_factory=dict)
    sequences: dict[tuple[HalvingRule, tuple[TileShape, ...]], TilingSequence] = field(
        default_factory=dict
    )
    dead: set[tuple[TileShape, ...]] = field(default_factory=set)
    peak: int = 0
    """The largest task that a smaller target would change: a target of at least this many bytes
    makes the same tiles."""

    def __call__(self, builder: TaskGraphBuilder, group: TaskGroup, inputs: GroupInputs) -> Cuts:
        """Return how a group is cut along each tile dimension."""
        if self.target is None and not builder.program.outputs:
            return ()
        costs = _GroupCosts(builder, group, inputs, self.extra, self.costs)
        dims = tile_dims(builder.program, group)
        cuts: Cuts = [(dim, Cut(None, costs.shard(dim))) for dim in dims]
        if self.target is None:
            return cuts
        key = (self.rule, builder.chosen)
        if key not in self.sequences:
            self.sequences[key] = TilingSequence(costs, self.rule, cuts)
        sequence = self.sequences[key]
        sequence.costs = costs  # the builder of a later attempt has the same tasks up to here
        tiling = sequence.below(self.target)
        if tiling is None:
            return cuts
        cost, cuts = tiling
        if cost.peak <= self.target:
            self.peak = max(self.peak, cost.peak)
        chosen = (*builder.chosen, tile_shape(cuts))
        if (self.memory is not None and cost.peak > self.memory) or chosen in self.dead:
            self.dead.add(chosen)
            applications = builder.program.graph.applications
            names = [applications[n].operator for n in group.applications]
            is_smallest = not any(True for _ in costs.halved(cuts, aligned=False))
            raise DoesNotFit(" + ".join(dict.fromkeys(names)), cost.peak, is_smallest=is_smallest)
        return cuts


def targets() -> Iterator[tuple[int, ...]]:
    """Return the bytes that a task may take, from more to less, whatever memory there is.

    The powers of two come first; those between them are tried if none of these fits.

    >>> [(rungs[0] >> 40, rungs[-2:]) for rungs in targets()]
    [(256, (2, 1)), (181, (2, 1))]
    """
    yield tuple(1 << power for power in range(48, -1, -1))
    yield tuple(int(2 ** (power + 0.5)) for power in range(47, -1, -1))


def max_tiles(program: GroupedProgram) -> int:
    """Return how many tiles are worth a try: beyond that the tasks' overhead dominates."""
    values = program.graph.values.items()
    largest = max((prod(v.shape) * program.itemsize(name) for name, v in values), default=0)
    return max(MIN_TILES, largest // TILE_BYTES)


class _GroupCosts:
    """The costs of the tilings of one group."""

    def __init__(
        self,
        builder: TaskGraphBuilder,
        group: TaskGroup,
        inputs: GroupInputs,
        extra: int,
        costs: dict[tuple[TileShape, ...], TileCost | None],
    ) -> None:
        self.builder, self.program, self.group = builder, builder.program, group
        self.inputs, self.extra, self.costs = inputs, extra, costs
        middle = len(builder.cells) // 2

        def work(rank: int) -> tuple[int, int]:
            boxes = builder.targets(group, rank)
            return (_volume(boxes) if boxes else -1), -abs(rank - middle)

        # One cell stands for all: one with most to do, in the middle of the mesh if possible.
        self.rank = max(range(len(builder.cells)), key=work)

    def cost(self, cuts: Cuts) -> TileCost | None:
        """Return the cost of tiles; None if no cell has any."""
        key = (*self.builder.chosen, tile_shape(cuts))
        if key not in self.costs:
            self.costs[key] = self._cost(cuts)
        return self.costs[key]

    def _cost(self, cuts: Cuts) -> TileCost | None:
        found = list(self.builder.tiles(self.group, self.rank, cuts))
        if not found:
            return None
        some = [max(found, key=_volume), *Random(0).sample(found, min(SAMPLE, len(found)))]
        works = [self.builder.work(self.group, self.inputs, self.rank, tile) for tile in some]
        tasks = [self._task(work) for work in works]
        before, size = self.builder.list.tasks, self.program.itemsize
        return TileCost(
            max(task_memory(task, before, size, self.extra) for task in tasks),
            sum(map(self._read_bytes, tasks[1:])),
            sum(map(_made_bytes, tasks[1:])),
            sum(map(_volume, some[1:])),
            len(found) * len(self.builder.cells),
        )

    def _task(self, work: TileWork) -> Task:
        cell, outputs = self.builder.cells[self.rank], self.builder.split_outputs(self.rank, work)
        return Task(0, "compute", cell, "", work.steps[-1].box, work.steps, *outputs)

    def _read_bytes(self, task: Task) -> int:
        """Return the bytes of the chunks that a task reads."""
        stored = self.program.inputs
        boxes = (box for box in task.input_boxes() if box.name in stored)
        return sum(stored[name].touched(box).nbytes for name, box in boxes)

    def halved(self, cuts: Cuts, aligned: bool) -> Iterator[Cuts]:
        """Return the cuts with one of them halved: into whole shards, if `aligned` and possible."""
        for place, (dim, cut) in enumerate(cuts):
            length = cut.length or self._extent(dim)
            if aligned and (whole := _half(length, self.shard(dim))) < length:
                found = {whole} - {0}
            else:
                found = {_half(length, unit) for unit in self._units(dim)} - {length, 0}
            for shorter in sorted(found):
                yield [*cuts[:place], (dim, cut._replace(length=shorter)), *cuts[place + 1 :]]

    def _extent(self, dim: TileDim) -> int:
        """Return the length of the longest box of a cell along a tile dimension."""
        boxes = self.program.boxes
        return max(max(box.shape[d] for box in boxes[number]) for number, d in dim.dims.items())

    def shard(self, dim: TileDim) -> int:
        """Return the length of the shards of the largest stored output; 1 if there is none."""
        return max(self._extents(dim, is_output=True), default=(0, 1))[1]

    def _units(self, dim: TileDim) -> set[int]:
        """Return lengths of which tiles had better be multiples."""
        shards = [n for _, n in self._extents(dim, is_output=True)]
        chunks = [n for _, n in self._extents(dim, is_output=False)]
        return {1, self.shard(dim), lcm(*shards), max(chunks, default=1)}

    def _extents(self, dim: TileDim, *, is_output: bool) -> Iterator[tuple[int, int]]:
        """Return the size of each stored array, and the length of its shards or chunks."""
        stored = self.program.outputs if is_output else self.program.inputs
        for number, name in dim.names.items():
            application = self.program.graph.applications[number]
            notation = self.program.graph.signatures[number].notation
            values = application.results if is_output else application.operands
            tensors = notation.results if is_output else notation.operands
            for value, rows in zip(values, tensors):
                if value in stored:
                    block = stored[value].shard if is_output else stored[value].chunk
                    size = prod(stored[value].shape)
                    yield from ((size, n) for row, n in zip(rows, block) if name in row.dims)


def _half(length: int, unit: int) -> int:
    """Return about half a length: a multiple of the unit, as long as there is a shorter one."""
    if length <= unit:
        return length // 2 if unit == 1 else length
    return max(unit, length // 2 // unit * unit)


def _made_bytes(task: Task) -> int:
    """Return the bytes of all that a task computes, and of its blocks, written and read."""
    computed = sum(sum(step.result_bytes) for step in task.steps)
    return computed + 2 * sum(block.nbytes for block in task.blocks)


def _volume(boxes: Targets) -> int:
    return max(box.size for box in boxes.values())
