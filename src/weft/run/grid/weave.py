"""`weave`: the tasks of a plan, drawn from its boxes in its order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from weft.errors import WeftError
from weft.plan import Plan, Step
from weft.plan.delivery import Delivery
from weft.plan.resharding.reshard import Reshard
from weft.run.grid.task import Fold, Hide, Join, Leaf, Made, Part, Read, Source, Task
from weft.run.hops import (
    Hop,
    Piece,
    Slices,
    boxes_after,
    by_device,
    hidden_devices,
    hop_deliveries,
    hops_of,
)
from weft.space import ZRange
from weft.values import Point

FAN = 8
"""So many parts are combined at once; more of them in a tree."""


class Have(NamedTuple):
    """What a cell has of a value."""

    source: Source
    box: ZRange


Held = Mapping[int, Have]
"""What every cell has of a value, by device."""


class Cause(NamedTuple):
    """For which operator something is done, and with which value."""

    operator: str
    value: str


def weave(plan: Plan) -> tuple[tuple[Task, ...], tuple[tuple[Read, ...], ...]]:
    """The tasks of a plan in its order, and the blocks of its outputs in rank order."""
    loom = _Loom(plan)
    outputs = loom.outputs()
    return tuple(loom.tasks), outputs


class _Loom:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.tasks = plan, list[Task]()
        self.held = dict[str, Held]()
        self.cells: Sequence[int] = plan.mesh.device_ids or range(plan.mesh.size)

    def outputs(self) -> tuple[tuple[Read, ...], ...]:
        """Weave all, and tell where the outputs are."""
        for value in self.plan.graph.inputs:
            self.held[value.name] = self._input(value.name)
        for number, application in enumerate(self.plan.graph.applications):
            if application.regions:
                raise WeftError(
                    f"{application.operator} {', '.join(application.results)} runs a graph of its "
                    "own, which the grid cannot",
                    hint="run the plan in one process or with weft.run.torch",
                )
            if application.results:
                self._compute(number)
        pairs = zip(self.plan.graph.outputs, self.plan.returns)
        return tuple(self._output(name, way) for name, way in pairs)

    def _input(self, name: str) -> Held:
        value, mesh = self.plan.graph.values[name], self.plan.mesh
        boxes = by_device(mesh, self.plan.specs[name].regions(value.shape))
        cause = Cause("input", name)
        return {
            cell: self.block("read", cell, cause, Have(Leaf(name, box), box))
            for cell, box in boxes.items()
        }

    def _output(self, name: str, way: Reshard) -> tuple[Read, ...]:
        held = self._keep(self.held[name], way, Cause("output", name))
        return tuple(self._read("keep", cell, Cause("output", name), held[cell]) for cell in held)

    def _compute(self, number: int) -> None:
        """The tasks of an application, and of how its results come to lie as they are kept."""
        plan, application = self.plan, self.plan.graph.applications[number]
        placed, places = plan.placed[number], tuple(plan.places_brought(number))
        pairs = list(zip(application.operands, plan.deliveries[number]))
        operands = tuple(places.index(pairs.index(pair)) for pair in pairs)
        causes = [Cause(application.operator, name) for name in application.operands]
        brought = [self._deliver(causes[n], *pairs[n], placed.needs[n]) for n in places]
        shapes = placed.signature.result_shapes
        makes = [spec.regions(shape) for spec, shape in zip(placed.results, shapes)]
        results: list[dict[int, Have]] = [{} for _ in makes]
        for rank, cell in enumerate(self.cells):
            sources = tuple(held[cell].source for held in brought)
            boxes = [regions[rank] for regions in makes]
            task = self._task(
                *("compute", cell, number, application.operator, placed.boxes[rank]),
                *(sources, operands, tuple(map(self._made, application.results, boxes))),
            )
            for place, have in enumerate(results):
                have[cell] = Have(Read(task, place), boxes[place])
        for name, have, way in zip(application.results, results, plan.settlings[number]):
            self.held[name] = self._keep(have, way, Cause(application.operator, name))

    def _deliver(
        self, cause: Cause, name: str, delivery: Delivery, needs: Sequence[ZRange]
    ) -> Held:
        """An operand as the cells need it; nothing is made a block that need not be."""
        held, found = self._travel(self.held[name], hops_of(delivery), cause), dict[int, Have]()
        ways = zip(self.cells, delivery.slices, delivery.hidden, needs)
        for cell, where, monoid, box in ways:
            source = held[cell].source
            source = source if where is None else Part(source, where)
            found[cell] = Have(Hide(source, monoid) if monoid else source, box)
        return found

    def _keep(self, held: Held, way: Reshard, cause: Cause) -> Held:
        """A value after a reshard, a block on every cell."""
        made = self._travel(held, way.steps, cause)
        return {cell: self.block("keep", cell, cause, made[cell]) for cell in self.cells}

    def _travel(self, held: Held, hops: Iterable[Hop], cause: Cause) -> Held:
        for hop in hops:
            if isinstance(hop, Step) and hop.kind == "mask":
                held = _masked(held, hidden_devices(hop))
            else:
                held = self._hop(held, hop, cause)
        return held

    def _hop(self, held: Held, hop: Hop, cause: Cause) -> Held:
        """What the cells have after a step: what is put together is read at once, or a block."""
        held = {
            cell: have
            if self._is_there(have.source, cell)
            else self.block("keep", cell, cause, have)
            for cell, have in held.items()
        }
        boxes, sent = boxes_after(hop), dict[object, Source]()
        dtype, made = self.plan.graph.values[cause.value].dtype, dict[int, Have]()
        for delivery in hop_deliveries(hop):
            cell, reading = delivery.device, _Reading(self, held, delivery.device, cause, sent)
            pieces = tuple((p.into, reading.piece(p, _monoids(hop))) for p in delivery.pieces)
            is_whole = len(pieces) == 1 and _shape(pieces[0][0]) == delivery.shape
            source = pieces[0][1] if is_whole else Join(delivery.shape, dtype, pieces)
            made[cell] = Have(source, boxes[cell])
        return made

    def _is_there(self, source: Source, cell: int) -> bool:
        """Whether a cell has an array without putting it together."""
        match source:
            case Read(task=task):
                return self.tasks[task].cell == cell
            case Part(of=inner) | Hide(of=inner):
                return self._is_there(inner, cell)
        return False

    def _read(self, kind: str, cell: int, cause: Cause, have: Have) -> Read:
        """A block of its own for what a cell has, unless that is one."""
        if isinstance(have.source, Read) and self.tasks[have.source.task].cell == cell:
            return have.source
        made = (self._made(cause.value, have.box),)
        what = (kind, cell, None, cause.operator, have.box)
        return Read(self._task(*what, (have.source,), (0,), made))

    def block(self, kind: str, cell: int, cause: Cause, have: Have) -> Have:
        """What a cell has, as a block."""
        return Have(self._read(kind, cell, cause, have), have.box)

    def _made(self, name: str, box: ZRange) -> Made:
        return Made(name, box, prod(box.shape) * self.plan.itemsize(name))

    def _task(
        self,
        kind: str,
        cell: int,
        application: int | None,
        operator: str,
        box: ZRange,
        sources: tuple[Source, ...],
        operands: tuple[int, ...],
        made: tuple[Made, ...],
    ) -> int:
        number = len(self.tasks)
        what = (number, kind, cell, application, operator, box)
        self.tasks.append(Task(*what, sources, operands, made))
        return number


class _Reading(NamedTuple):
    """What one cell reads in a step."""

    loom: _Loom
    held: Held
    cell: int
    cause: Cause
    sent: dict[object, Source]
    """What was cut out for others in this step: many may read it."""

    def piece(self, piece: Piece, monoids: Sequence[str]) -> Source:
        """A piece with its parts combined, those along the last run first."""
        _, sender, where = piece.parts[0]
        parts = [(point, self.part(sender, where)) for point, sender, where in piece.parts]
        return self.combined(parts, monoids, _inside(self.held[sender].box, where))

    def part(self, sender: int, where: Slices) -> Source:
        """A part of what a cell has; what leaves a cell is a block by itself."""
        source, box = self.held[sender]
        mine = source if _shape(where) == box.shape else Part(source, where)
        if sender == self.cell or self._is_alone(mine):
            return mine
        key = (sender, *((part.start, part.stop) for part in where))
        if key not in self.sent:
            have = Have(mine, _inside(box, where))
            self.sent[key] = self.loom.block("send", sender, self.cause, have).source
        return self.sent[key]

    def _is_alone(self, source: Source) -> bool:
        """Whether an array is all that its task made, so that nothing else moves with it."""
        return isinstance(source, Read) and len(self.loom.tasks[source.task].made) == 1

    def combined(
        self, parts: Sequence[tuple[Point, Source]], monoids: Sequence[str], box: ZRange
    ) -> Source:
        """Parts of a box combined: a few at once, many in a tree."""
        if len(parts) == 1:
            return parts[0][1]
        groups = [list(group) for _, group in groupby(parts, key=lambda part: part[0][:1])]
        below = [
            self.combined([(point[1:], source) for point, source in group], monoids[1:], box)
            for group in groups
        ]
        while len(below) > FAN:
            folds = [Fold(monoids[0], tuple(below[n : n + FAN])) for n in range(0, len(below), FAN)]
            haves = [Have(fold, box) for fold in folds]
            below = [self.loom.block("fold", self.cell, self.cause, h).source for h in haves]
        return Fold(monoids[0], tuple(below))


def _monoids(hop: Hop) -> Sequence[str]:
    return hop.monoids if isinstance(hop, Step) else ()


def _masked(held: Held, hidden: Mapping[int, str]) -> Held:
    return {
        cell: Have(Hide(source, hidden[cell]) if cell in hidden else source, box)
        for cell, (source, box) in held.items()
    }


def _shape(where: Slices) -> Point:
    return tuple(part.stop - part.start for part in where)


def _inside(box: ZRange, where: Slices) -> ZRange:
    """The box of a part of what lies in a box."""
    return ZRange.of(_shape(where), [low + part.start for low, part in zip(box.start, where)])
