"""`Hand`: what a cell does for one tile of a strand: stages, and where their operands come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.lang import Block
from weft.runtime.cluster.weaving.bobbin import Bobbin, Have, Held, taken
from weft.runtime.cluster.weaving.seams import Targets
from weft.runtime.cluster.weaving.shelf import Shelf
from weft.runtime.cluster.weaving.source import Hide, Leaf, Local, Source
from weft.runtime.cluster.weaving.strands import Strand
from weft.runtime.cluster.weaving.task import Stage
from weft.space import ZRange


class Work(NamedTuple):
    """What a strand does in one task."""

    stages: tuple[Stage, ...]
    results: Mapping[str, Have]
    """Of each value what it makes for others."""
    parts: frozenset[str]
    """The values of which that is a part of a sum, or of another reduction."""


Brought = Mapping[tuple[int, int], Held]
"""For operands, as application and place, that come from outside what each cell has of them."""


class Hand(NamedTuple):
    """A cell at work on a tile."""

    shelf: Shelf
    bobbin: Bobbin
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
            block = self.shelf.block(number, box)
            results = self.bobbin.plan.graph.applications[number].results
            if results:
                operands = [
                    self._operand(number, place, need, made, leaves)
                    for place, need in enumerate(block.operands)
                ]
                sources = [s for n, s in enumerate(operands) if s not in operands[:n]]
                sizes = tuple(map(self.bobbin.nbytes, results, block.results))
                stage = (tuple(sources), tuple(map(sources.index, operands)), sizes)
                stages.append(Stage(number, box, *stage, self._workspace(number, block)))
            for place, (name, image) in enumerate(zip(results, block.results)):
                made[name] = Have(Local(len(stages) - 1, place), image)
        parts = (n for n, box in self.targets.items() if self._is_part(n, box))
        names = (name for n in parts for name in self.bobbin.plan.graph.applications[n].results)
        return Work(tuple(stages), dict(self._wanted(made)), frozenset(names))

    def _workspace(self, number: int, block: Block) -> int:
        plan, application = self.bobbin.plan, self.bobbin.plan.graph.applications[number]
        operator = plan.graph.operators.find(application.operator)
        names = (*application.operands, *application.results)
        return operator.workspace_bytes(block, max(map(plan.itemsize, names), default=1))

    def _is_part(self, number: int, box: ZRange) -> bool:
        """Whether a box of a cell is not all that it reduces."""
        own = self.bobbin.plan.placed[number].boxes[self.rank]
        return any(box.shape[dim] != own.shape[dim] for dim in self._reduced(number))

    def _reduced(self, number: int) -> list[int]:
        """The index dimensions of an application that it reduces."""
        line = self.bobbin.plan.placed[number].signature
        names = list(line.sizes)
        return [names.index(name) for name in line.reduced]

    def _wanted(self, made: Mapping[str, Have]) -> Iterator[tuple[str, Have]]:
        """What is wanted of a tile outside it."""
        for number, target in self.targets.items():
            results = self.bobbin.plan.graph.applications[number].results
            for name, box in zip(results, self._images(number, target)):
                if name in self.strand.wanted and self.shelf.is_mine(name, self.rank):
                    yield name, Have(taken(made[name], box), box)

    def _images(self, number: int, target: ZRange) -> Sequence[ZRange]:
        """The boxes of the results that a target makes: an empty one lies where the plan says."""
        placed, images = self.bobbin.plan.placed[number], self.shelf.block(number, target).results
        if target != placed.boxes[self.rank]:
            return images
        shapes = placed.signature.result_shapes
        return [spec.region(shape, self.rank) for spec, shape in zip(placed.results, shapes)]

    def _leaves(self) -> Mapping[str, ZRange]:
        """Of every stored input the box that all stages need of it."""
        found: dict[str, ZRange] = {}
        for number, box in self.boxes.items() if self.shelf.inputs else ():
            application = self.bobbin.plan.graph.applications[number]
            for name, need in zip(application.operands, self.shelf.block(number, box).operands):
                if name in self.shelf.inputs:
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
        name = self.bobbin.plan.graph.applications[number].operands[place]
        if (number, place) in self.strand.inner:
            source = taken(made[name], need)
        elif name in leaves:
            source = taken(Have(Leaf(name, leaves[name]), leaves[name]), need)
        else:
            source = taken(
                self.brought[number, place][self.bobbin.plan.mesh.device(self.rank)], need
            )
        monoid = self.bobbin.plan.deliveries[number][place].hidden[self.rank]
        monoid = monoid or self._hidden(number, place)
        return Hide(source, monoid) if monoid else source

    def _hidden(self, number: int, place: int) -> str:
        """From which monoid an operand that counts once is hidden, but in the first tile."""
        placed, box = self.bobbin.plan.placed[number], self.boxes[number]
        line, own = placed.signature.notation, placed.boxes[self.rank]
        if place not in line.once:
            return ""
        is_first = all(box.start[dim] == own.start[dim] for dim in self._reduced(number))
        return "" if is_first else next(iter(line.reduced.values()))
