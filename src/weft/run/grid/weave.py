"""`weave`: the tasks of a plan, drawn from its boxes strand by strand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.lang import Block
from weft.lang.kernels.workspace import workspace
from weft.plan.delivery import Delivery
from weft.plan.resharding.reshard import Reshard
from weft.run.grid.bobbin import Bobbin, Cause, Have, Held
from weft.run.grid.demand import demanded
from weft.run.grid.seams import Cut, Seam, Targets, seams_of, tiles
from weft.run.grid.shelf import Shelf
from weft.run.grid.source import Hide, Leaf, Local, Read, Source, narrowed
from weft.run.grid.strands import Strand
from weft.run.grid.task import Made, Stage, Task
from weft.run.grid.travel import combined, travel
from weft.run.hops import by_device, hops_of
from weft.space import ZRange
from weft.values import Point


class Work(NamedTuple):
    """What a strand does in one task."""

    stages: tuple[Stage, ...]
    results: Mapping[str, Have]
    """Of each value what it makes for others."""
    parts: frozenset[str]
    """The values of which that is a part of a sum, or of another reduction."""


Brought = Mapping[tuple[int, int], Held]
"""For operands, as application and place, that come from outside what each cell has of them."""

Choose = Callable[["Loom", Strand, Sequence[Seam], Brought], Sequence[Cut]]
"""Says how a strand is cut into tiles."""


class Loom:
    """Draws tasks from a plan, front to back."""

    def __init__(self, shelf: Shelf, choose: Choose) -> None:
        self.plan, self.shelf, self.choose = shelf.plan, shelf, choose
        plan = self.plan
        self.bobbin = Bobbin(plan)
        self.held = dict[str, Held]()
        self.cells: Sequence[int] = plan.mesh.device_ids or range(plan.mesh.size)

    def weave(self) -> tuple[tuple[Task, ...], tuple[tuple[Read, ...], ...]]:
        """The tasks in the order of the plan, and the blocks of its outputs in rank order."""
        for value in self.plan.graph.inputs:
            if value.name not in self.shelf.inputs:
                self.held[value.name] = self._input(value.name)
        for strand in self.shelf.strands:
            self._weave(strand)
        pairs = zip(self.plan.graph.outputs, self.plan.returns)
        outputs = tuple(self._output(name, way) for name, way in pairs)
        return tuple(self.bobbin.tasks), outputs

    def _input(self, name: str) -> Held:
        value, mesh = self.plan.graph.values[name], self.plan.mesh
        boxes = by_device(mesh, self.plan.specs[name].regions(value.shape))
        cause = Cause("input", name)
        return {
            cell: self.bobbin.block("read", cell, cause, Have(Leaf(name, box), box))
            for cell, box in boxes.items()
        }

    def _output(self, name: str, way: Reshard) -> tuple[Read, ...]:
        if name in self.shelf.outputs:
            if name in self.held:
                self.shelf.store(self.bobbin, name, self.plan.specs[name], self.held[name])
            elif name in self.shelf.inputs:
                self.shelf.copy(self.bobbin, name)
            return ()
        if name in self.shelf.inputs:
            self.held[name] = self._input(name)
        cause = Cause("output", name)
        held = self._keep(self.held[name], way, cause)
        return tuple(self.bobbin.read("keep", cell, cause, held[cell]) for cell in held)

    def _keep(self, held: Held, way: Reshard, cause: Cause) -> Held:
        """A value after a reshard, in blocks of every cell."""
        made = travel(self.bobbin, held, way.steps, cause)
        return {
            cell: have
            if self.bobbin.is_there(have.source, cell)
            else self.bobbin.block("keep", cell, cause, have)
            for cell, have in made.items()
        }

    # -- strands

    def _weave(self, strand: Strand) -> None:
        """The tasks of a strand, and how its results come to lie as they are kept."""
        brought, seams = self.brought(strand), seams_of(self.plan, strand)
        cuts = self.choose(self, strand, seams, brought)
        made: dict[str, dict[int, list[Have]]] = {name: {} for name in strand.wanted}
        for rank, cell in enumerate(self.cells):
            for targets in self.tiles(strand, rank, seams, cuts):
                work = self.work(strand, brought, rank, targets)
                for name, have in self._task(strand, cell, work, targets).items():
                    made[name].setdefault(cell, []).append(have)
        for number in strand.applications:
            self._settle(number, made)

    def tiles(
        self, strand: Strand, rank: int, seams: Sequence[Seam], cuts: Sequence[Cut]
    ) -> Iterator[Targets]:
        """What a cell computes of a strand, tile by tile."""
        sizes = [
            max(list(self.plan.placed[n].signature.sizes.values())[d] for n, d in seam.dims.items())
            for seam in seams
        ]
        return tiles(self.ends(strand, rank), seams, cuts, sizes)

    def _settle(self, number: int, made: Mapping[str, Mapping[int, Sequence[Have]]]) -> None:
        """Keep the results of an application as the plan says, or put them into storage."""
        application, placed = self.plan.graph.applications[number], self.plan.placed[number]
        ways = zip(application.results, placed.results, self.plan.settlings[number])
        for name, spec, way in ways:
            if name not in made:
                continue
            cause = Cause(application.operator, name)
            boxes = by_device(self.plan.mesh, spec.regions(self.plan.graph.values[name].shape))
            held = {
                cell: self._whole(cell, cause, boxes[cell], parts)
                for cell, parts in made[name].items()
            }
            if name in self.shelf.last:
                self.shelf.store(self.bobbin, name, spec, held)
            else:
                self.held[name] = self._keep(held, way, cause)

    def _whole(self, cell: int, cause: Cause, box: ZRange, parts: Sequence[Have]) -> Have:
        """What a cell has of a value from its tiles: parts of one box are combined."""
        found: dict[ZRange, list[Source]] = {}
        for part in parts:
            found.setdefault(part.box, []).append(part.source)
        monoid = self._monoid(cause.value)
        haves = []
        for inner, sources in found.items():
            points = [((n,), source) for n, source in enumerate(sources)]
            source = combined(self.bobbin, points, [monoid], inner, cause, cell)
            if len(sources) > 1:
                source = self.bobbin.read("fold", cell, cause, Have(source, inner))
            haves.append(Have(source, inner))
        return self.bobbin.join(cause.value, box, haves)

    def _monoid(self, name: str) -> str:
        """By what the parts of a value are combined that the tiles of a cell make."""
        for application, placed in zip(self.plan.graph.applications, self.plan.placed):
            if name in application.results:
                return next(iter(placed.signature.notation.reduced.values()), "sum")
        return "sum"

    def ends(self, strand: Strand, rank: int) -> Targets:
        """The last applications of a strand that a cell has to run, each with its own box."""
        return {
            number: self.plan.placed[number].boxes[rank]
            for number in strand.applications
            if number in strand.ends and self._is_mine(number, rank)
        }

    def _is_mine(self, number: int, rank: int) -> bool:
        """Whether a cell has to run an application: what is stored and no more is made once."""
        results = self.plan.graph.applications[number].results
        return not results or any(self.shelf.is_mine(name, rank) for name in results)

    def brought(self, strand: Strand) -> Brought:
        """For every operand that comes from outside what each cell has of it then."""
        found: dict[tuple[int, int], Held] = {}
        for number in strand.applications:
            application = self.plan.graph.applications[number]
            if not application.results:
                continue
            pairs = list(zip(application.operands, self.plan.deliveries[number]))
            for place, pair in enumerate(pairs):
                if (number, place) in strand.inner or pair[0] in self.shelf.inputs:
                    continue
                first = pairs.index(pair)
                if first < place:  # what two operands need alike comes once
                    found[number, place] = found[number, first]
                    continue
                cause = Cause(application.operator, pair[0])
                needs = self.plan.placed[number].needs[place]
                found[number, place] = self._deliver(cause, pair[0], pair[1], needs)
        return found

    def _deliver(
        self, cause: Cause, name: str, delivery: Delivery, needs: Sequence[ZRange]
    ) -> Held:
        """An operand as the cells need it; nothing is made a block that need not be."""
        held = travel(self.bobbin, self.held[name], hops_of(delivery), cause)
        found: dict[int, Have] = {}
        for cell, where, box in zip(self.cells, delivery.slices, needs):
            source = held[cell].source
            found[cell] = Have(source if where is None else narrowed(source, where), box)
        return found

    def work(
        self,
        strand: Strand,
        brought: Brought,
        rank: int,
        targets: Targets,
    ) -> Work:
        """What a cell does for a tile of a strand."""
        hand = _Hand(self, strand, brought, rank, targets, self._boxes(strand, rank, targets))
        return hand.work()

    def _boxes(self, strand: Strand, rank: int, targets: Targets) -> Mapping[int, ZRange]:
        own = {number: self.plan.placed[number].boxes[rank] for number in strand.applications}
        has_halos = any(
            self.plan.deliveries[number][place].fetch is not None for number, place in strand.inner
        )
        is_whole = targets == {number: own[number] for number in strand.ends}
        return own if is_whole and not has_halos else demanded(self.plan, strand, rank, targets)

    def _task(self, strand: Strand, cell: int, work: Work, targets: Targets) -> Mapping[str, Have]:
        """Add the task of a tile; what of its results the cell has then as blocks."""
        if not work.stages:
            return {}
        names = [self.plan.graph.applications[s.application].operator for s in work.stages]
        blocks, writes = list[Made](), list[Made]()
        for name, have in work.results.items():
            made = self.bobbin.made(name, have)
            is_written = name not in work.parts and self.shelf.writes(name, have.box, cell)
            if is_written:
                writes.append(made)
            if not is_written or name not in self.shelf.last:
                blocks.append(made)
        task = self.bobbin.add(
            *("compute", cell, " + ".join(dict.fromkeys(names)), work.stages[-1].box),
            *(work.stages, tuple(blocks), tuple(writes)),
        )
        return {block.value: Have(Read(task, n), block.box) for n, block in enumerate(blocks)}


class _Hand(NamedTuple):
    """A cell at work on a tile."""

    loom: Loom
    strand: Strand
    brought: Brought
    rank: int
    targets: Targets
    boxes: Mapping[int, ZRange]

    def work(self) -> Work:
        """The stages in order, and what others may have of them."""
        stages, made = list[Stage](), dict[str, Have]()
        leaves = self._leaves()
        for number, box in self.boxes.items():
            block = self._block(number, box)
            results = self.loom.plan.graph.applications[number].results
            if results:
                operands = [
                    self._operand(number, place, need, made, leaves)
                    for place, need in enumerate(block.operands)
                ]
                sources = [s for n, s in enumerate(operands) if s not in operands[:n]]
                sizes = tuple(map(self.loom.bobbin.nbytes, results, block.results))
                stage = (tuple(sources), tuple(map(sources.index, operands)), sizes)
                stages.append(Stage(number, box, *stage, self._workspace(number, box)))
            for place, (name, image) in enumerate(zip(results, block.results)):
                made[name] = Have(Local(len(stages) - 1, place), image)
        parts = (n for n, box in self.targets.items() if self._is_part(n, box))
        names = (name for n in parts for name in self.loom.plan.graph.applications[n].results)
        return Work(tuple(stages), dict(self._wanted(made)), frozenset(names))

    def _workspace(self, number: int, box: ZRange) -> int:
        plan, application = self.loom.plan, self.loom.plan.graph.applications[number]
        operator = plan.graph.operators.find(application.operator)
        names = (*application.operands, *application.results)
        size = max(map(plan.itemsize, names), default=1)
        line = plan.placed[number].signature
        return workspace(operator, line, box, application.attributes, size)

    def _is_part(self, number: int, box: ZRange) -> bool:
        """Whether a box of a cell is not all that it reduces."""
        placed = self.loom.plan.placed[number]
        own, names = placed.boxes[self.rank], list(placed.signature.sizes)
        dims = [names.index(name) for name in placed.signature.reduced]
        return any(box.shape[dim] != own.shape[dim] for dim in dims)

    def _block(self, number: int, box: ZRange) -> Block:
        return Block(None, self.loom.plan.placed[number].signature, {}, box)

    def _wanted(self, made: Mapping[str, Have]) -> Iterator[tuple[str, Have]]:
        """What is wanted of a tile outside it."""
        for number, target in self.targets.items():
            results = self.loom.plan.graph.applications[number].results
            for name, box in zip(results, self._images(number, target)):
                if name in self.strand.wanted and self.loom.shelf.is_mine(name, self.rank):
                    yield name, Have(taken(made[name], box), box)

    def _images(self, number: int, target: ZRange) -> Sequence[ZRange]:
        """The boxes of the results that a target makes: an empty one lies where the plan says."""
        placed, images = self.loom.plan.placed[number], self._block(number, target).results
        if target != placed.boxes[self.rank]:
            return images
        shapes = placed.signature.result_shapes
        return [spec.region(shape, self.rank) for spec, shape in zip(placed.results, shapes)]

    def _leaves(self) -> Mapping[str, ZRange]:
        """Of every stored input the box that all stages need of it."""
        found: dict[str, ZRange] = {}
        for number, box in self.boxes.items():
            application = self.loom.plan.graph.applications[number]
            for name, need in zip(application.operands, self._block(number, box).operands):
                if name in self.loom.shelf.inputs:
                    found[name] = found[name].hull(need) if name in found else need
        return found

    def _operand(
        self,
        number: int,
        place: int,
        need: ZRange,
        made: Mapping[str, Have],
        leaves: Mapping[str, ZRange],
    ) -> Source:
        name = self.loom.plan.graph.applications[number].operands[place]
        if (number, place) in self.strand.inner:
            source = taken(made[name], need)
        elif name in leaves:
            source = taken(Have(Leaf(name, leaves[name]), leaves[name]), need)
        else:
            source = taken(self.brought[number, place][self.loom.cells[self.rank]], need)
        monoid = self.loom.plan.deliveries[number][place].hidden[self.rank]
        monoid = monoid or self._hidden(number, place)
        return Hide(source, monoid) if monoid else source

    def _hidden(self, number: int, place: int) -> str:
        """From which monoid an operand that counts once is hidden, but in the first tile."""
        placed, box = self.loom.plan.placed[number], self.boxes[number]
        line, own = placed.signature, placed.boxes[self.rank]
        names = list(line.sizes)
        dims = [names.index(name) for name in line.reduced]
        is_first = all(box.start[dim] == own.start[dim] for dim in dims)
        if is_first or place not in line.notation.once:
            return ""
        return next(iter(line.notation.reduced.values()))


def taken(have: Have, box: ZRange) -> Source:
    """A box of what a cell has."""
    if have.box == box:
        return have.source
    start: Point = box.start if box.is_empty else have.box.start
    return narrowed(have.source, box.slices(start))
