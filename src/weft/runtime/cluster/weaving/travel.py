"""`travel`: what cells have of a value after the steps of a plan, as sources and as blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from weft.plan import Step
from weft.plan.delivery import Delivery
from weft.plan.fetch import Fetch
from weft.program.messages import Piece, Slices, assemblies
from weft.runtime.cluster.weaving.bobbin import Bobbin, Cause, Have, Held
from weft.runtime.cluster.weaving.source import Fold, Hide, Join, Source, narrowed, shape_of
from weft.space import ZRange
from weft.values import Point

Hop = Step | Fetch

FAN = 8
"""So many parts are combined at once; more of them in a tree."""


def travel(bobbin: Bobbin, held: Held, hops: Iterable[Hop], cause: Cause) -> Held:
    """What the cells have after some steps."""
    for hop in hops:
        if isinstance(hop, Step) and hop.kind == "mask":
            held = _masked(held, _hidden_devices(hop))
        else:
            held = _hop(bobbin, held, hop, cause)
    return held


def _hop(bobbin: Bobbin, held: Held, hop: Hop, cause: Cause) -> Held:
    """What the cells have after a step: what is put together is read at once, or a block."""
    held = {
        cell: have
        if bobbin.is_there(have.source, cell)
        else bobbin.block("keep", cell, cause, have)
        for cell, have in held.items()
    }
    route, sent = hop.route, dict[object, Source]()
    cells = route.after.cells
    boxes = {cells.device(rank): box for rank, box in enumerate(route.after.boxes())}
    monoids = [run.monoid for run in route.combine]
    dtype, made = bobbin.plan.graph.values[cause.value].dtype, dict[int, Have]()
    for delivery in assemblies(route):
        cell, reading = delivery.device, _Reading(bobbin, held, delivery.device, cause, sent)
        pieces = tuple((p.into, reading.piece(p, monoids)) for p in delivery.pieces)
        is_whole = len(pieces) == 1 and shape_of(pieces[0][0]) == delivery.shape
        source = pieces[0][1] if is_whole else Join(delivery.shape, dtype, pieces)
        made[cell] = Have(source, boxes[cell])
    return made


class _Reading(NamedTuple):
    """What one cell reads in a step."""

    bobbin: Bobbin
    held: Held
    cell: int
    cause: Cause
    sent: dict[object, Source]
    """What was cut out for others in this step: many may read it."""

    def piece(self, piece: Piece, monoids: Sequence[str]) -> Source:
        """A piece with its parts combined, those along the last run first."""
        _, sender, where = piece.parts[0]
        parts = [(point, self.part(sender, where)) for point, sender, where in piece.parts]
        box = inside(self.held[sender].box, where)
        return combined(self.bobbin, parts, monoids, box, self.cause, self.cell)

    def part(self, sender: int, where: Slices) -> Source:
        """A part of what a cell has; what leaves a cell is a block by itself."""
        source, box = self.held[sender]
        mine = source if shape_of(where) == box.shape else narrowed(source, where)
        if sender == self.cell:
            return mine
        key = (sender, *((part.start, part.stop) for part in where))
        if key not in self.sent:
            have = Have(mine, inside(box, where))
            self.sent[key] = self.bobbin.sent(sender, self.cause, have)
        return self.sent[key]


def combined(
    bobbin: Bobbin,
    parts: Sequence[tuple[Point, Source]],
    monoids: Sequence[str],
    box: ZRange,
    cause: Cause,
    cell: int,
) -> Source:
    """Parts of a box combined on a cell: a few at once, many in a tree."""
    if len(parts) == 1:
        return parts[0][1]
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part[0][:1])]
    below = [
        combined(bobbin, [(p[1:], source) for p, source in group], monoids[1:], box, cause, cell)
        for group in groups
    ]
    while len(below) > FAN:
        folds = [Fold(monoids[0], tuple(below[n : n + FAN])) for n in range(0, len(below), FAN)]
        below = [bobbin.read("fold", cell, cause, Have(fold, box)) for fold in folds]
    return Fold(monoids[0], tuple(below)) if len(below) > 1 else below[0]


def hops_of(delivery: Delivery) -> Iterator[Hop]:
    """Return the steps by which an operand comes, one after another."""
    if delivery.reshard is not None:
        yield from delivery.reshard.steps
    if delivery.fetch is not None:
        yield delivery.fetch


def _hidden_devices(step: Step) -> dict[int, str]:
    """Return the devices on which a mask hides what they have, and from which monoid."""
    mesh = step.after.mesh
    return {
        mesh.device(cell): monoid
        for cell in mesh.cells()
        for digit, monoid in step.parts.masked
        if digit.of(cell)
    }


def _masked(held: Held, hidden: Mapping[int, str]) -> Held:
    return {
        cell: Have(Hide(source, hidden[cell]) if cell in hidden else source, box)
        for cell, (source, box) in held.items()
    }


def inside(box: ZRange, where: Slices) -> ZRange:
    """The box of a part of what lies in a box."""
    return ZRange.of(shape_of(where), [low + part.start for low, part in zip(box.start, where)])
