"""`weave`: the tasks of a plan, drawn from its boxes strand by strand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from weft.layout import DeviceMesh
from weft.plan.delivery import Delivery
from weft.plan.resharding.reshard import Reshard
from weft.runtime.cluster.weaving.bobbin import Bobbin, Cause, Have, Held
from weft.runtime.cluster.weaving.demand import demanded
from weft.runtime.cluster.weaving.hand import Brought, Hand, Work
from weft.runtime.cluster.weaving.seams import Cut, Seam, Targets, tiles
from weft.runtime.cluster.weaving.shelf import Shelf
from weft.runtime.cluster.weaving.source import Leaf, Read, Source, narrowed
from weft.runtime.cluster.weaving.strands import Strand
from weft.runtime.cluster.weaving.task import Made, Task
from weft.runtime.cluster.weaving.travel import combined, hops_of, travel
from weft.space import ZRange

Cuts = Sequence[tuple[Seam, Cut]]
"""How a strand is cut into tiles: along which seams, and where."""

Lengths = tuple[int | None, ...]
"""How long the tiles of a strand are along each of its seams; None for as long as there is."""

Woven = tuple[tuple[Task, ...], tuple[tuple[Read, ...], ...]]
"""Tasks, and the blocks of every output."""

Choose = Callable[["Loom", Strand, Brought], Cuts]
"""Says how a strand is cut."""


class Loom:
    """Draws tasks from a plan, front to back."""

    def __init__(self, shelf: Shelf, choose: Choose) -> None:
        self.plan, self.shelf, self.choose = shelf.plan, shelf, choose
        self.bobbin = Bobbin(shelf.plan)
        self.held = dict[str, Held]()
        self.chosen: tuple[Lengths, ...] = ()
        """How the strands up to here are cut."""
        self.cells: Sequence[int] = self.plan.mesh.device_ids or range(self.plan.mesh.size)

    def weave(self) -> Woven:
        """Return the tasks in the order of the plan, and its outputs' blocks in rank order."""
        for value in self.plan.graph.inputs:
            if value.name not in self.shelf.inputs:
                self.held[value.name] = self._input(value.name)
        for strand in self.shelf.strands:
            brought = self.brought(strand)
            cuts = self.choose(self, strand, brought)
            self.chosen += (lengths(cuts),)
            self._weave(strand, brought, cuts)
        pairs = zip(self.plan.graph.outputs, self.plan.returns)
        outputs = tuple(self._output(name, way) for name, way in pairs)
        return tuple(self.bobbin.tasks), outputs

    def _input(self, name: str) -> Held:
        value, mesh = self.plan.graph.values[name], self.plan.mesh
        boxes = _by_device(mesh, self.plan.specs[name].regions(value.shape))
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

    def _weave(self, strand: Strand, brought: Brought, cuts: Cuts) -> None:
        """The tasks of a strand, and how its results come to lie as they are kept."""
        made: dict[str, dict[int, list[Have]]] = {name: {} for name in strand.wanted}
        for rank, cell in enumerate(self.cells):
            for targets in self.tiles(strand, rank, cuts):
                work = self.work(strand, brought, rank, targets)
                for name, have in self._task(cell, work).items():
                    made[name].setdefault(cell, []).append(have)
        for number in strand.applications:
            self._settle(number, made)

    def tiles(self, strand: Strand, rank: int, cuts: Cuts) -> Iterator[Targets]:
        """What a cell computes of a strand, tile by tile."""
        sizes = [
            max(list(self.plan.placed[n].signature.sizes.values())[d] for n, d in seam.dims.items())
            for seam, _ in cuts
        ]
        seams = [seam for seam, _ in cuts]
        return tiles(self.ends(strand, rank), seams, [cut for _, cut in cuts], sizes)

    def _settle(self, number: int, made: Mapping[str, Mapping[int, Sequence[Have]]]) -> None:
        """Keep the results of an application as the plan says, or put them into storage."""
        application, placed = self.plan.graph.applications[number], self.plan.placed[number]
        ways = zip(application.results, placed.results, self.plan.result_reshards[number])
        for name, spec, way in ways:
            if name not in made:
                continue
            cause = Cause(application.operator, name)
            boxes = _by_device(self.plan.mesh, spec.regions(self.plan.graph.values[name].shape))
            monoid = next(iter(placed.signature.notation.reduced.values()), "sum")
            held = {
                cell: self._whole(cell, cause, boxes[cell], parts, monoid)
                for cell, parts in made[name].items()
            }
            if name in self.shelf.last:
                self.shelf.store(self.bobbin, name, spec, held)
            else:
                self.held[name] = self._keep(held, way, cause)

    def _whole(
        self, cell: int, cause: Cause, box: ZRange, parts: Sequence[Have], monoid: str
    ) -> Have:
        """What a cell has of a value from its tiles: parts of one box are combined."""
        found: dict[ZRange, list[Source]] = {}
        for part in parts:
            found.setdefault(part.box, []).append(part.source)
        haves = []
        for inner, sources in found.items():
            points = [((n,), source) for n, source in enumerate(sources)]
            source = combined(self.bobbin, points, [monoid], inner, cause, cell)
            if len(sources) > 1:
                source = self.bobbin.read("fold", cell, cause, Have(source, inner))
            haves.append(Have(source, inner))
        return self.bobbin.join(cause.value, box, haves)

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
        boxes = self._boxes(strand, rank, targets)
        return Hand(self.shelf, self.bobbin, strand, brought, rank, targets, boxes).work()

    def _boxes(self, strand: Strand, rank: int, targets: Targets) -> Mapping[int, ZRange]:
        own = {number: self.plan.placed[number].boxes[rank] for number in strand.applications}
        has_halos = any(
            self.plan.deliveries[number][place].fetch is not None for number, place in strand.inner
        )
        is_whole = targets == {number: own[number] for number in strand.ends}
        return own if is_whole and not has_halos else demanded(self.shelf, strand, rank, targets)

    def _task(self, cell: int, work: Work) -> Mapping[str, Have]:
        """Add the task of a tile; what of its results the cell has then as blocks."""
        if not work.stages:
            return {}
        names = [self.plan.graph.applications[s.application].operator for s in work.stages]
        blocks, writes = self.parted(cell, work)
        task = self.bobbin.add(
            *("compute", cell, " + ".join(dict.fromkeys(names)), work.stages[-1].box),
            *(work.stages, blocks, writes),
        )
        return {block.value: Have(Read(task, n), block.box) for n, block in enumerate(blocks)}

    def parted(self, cell: int, work: Work) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
        """Of what a tile makes the blocks for others, and the shards that it writes itself."""
        blocks, writes = list[Made](), list[Made]()
        for name, have in work.results.items():
            made = self.bobbin.made(name, have)
            is_written = name not in work.parts and self.shelf.writes(name, have.box, cell)
            if is_written:
                writes.append(made)
            if not is_written or name not in self.shelf.last:
                blocks.append(made)
        return tuple(blocks), tuple(writes)


def _by_device(mesh: DeviceMesh, items: Sequence[ZRange]) -> dict[int, ZRange]:
    return dict(zip(mesh.device_ids or range(mesh.size), items))


def lengths(cuts: Cuts) -> Lengths:
    """What tells the cuts of a strand from others of it."""
    return tuple(cut.length for _, cut in cuts)
