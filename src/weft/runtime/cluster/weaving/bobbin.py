"""`Bobbin`: the tasks of a plan as they are drawn, and what every cell has of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from weft.plan import Plan
from weft.runtime.cluster.weaving.source import Hide, Join, Part, Read, Source, narrowed
from weft.runtime.cluster.weaving.task import Made, Stage, Task
from weft.space import ZRange


class Have(NamedTuple):
    """What a cell has of a value."""

    source: Source
    box: ZRange


def taken(have: Have, box: ZRange) -> Source:
    """A box of what a cell has."""
    if have.box == box:
        return have.source
    start = box.start if box.is_empty else have.box.start
    return narrowed(have.source, box.slices(start))


Held = Mapping[int, Have]
"""What every cell has of a value, by device."""


class Cause(NamedTuple):
    """For which operator something is done, and with which value."""

    operator: str
    value: str


class Bobbin:
    """Tasks, one behind the other."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.tasks = plan, list[Task]()

    def add(
        self,
        kind: str,
        cell: int,
        operator: str,
        box: ZRange,
        stages: tuple[Stage, ...] = (),
        made: tuple[Made, ...] = (),
        writes: tuple[Made, ...] = (),
    ) -> int:
        """Add a task; its number."""
        number = len(self.tasks)
        self.tasks.append(Task(number, kind, cell, operator, box, stages, made, writes))
        return number

    def made(self, name: str, have: Have) -> Made:
        """A block of a value."""
        return Made(name, have.box, self.nbytes(name, have.box), have.source)

    def nbytes(self, name: str, box: ZRange) -> int:
        """The bytes of a box of a value."""
        return prod(box.shape) * self.plan.itemsize(name)

    def read(self, kind: str, cell: int, cause: Cause, have: Have) -> Read:
        """A block of its own for what a cell has, unless that is one."""
        source = have.source
        if isinstance(source, Read) and self.tasks[source.task].cell == cell:
            return source
        return self.copied(kind, cell, cause, have)

    def copied(self, kind: str, cell: int, cause: Cause, have: Have) -> Read:
        """A block of its own for what a cell has."""
        made = (self.made(cause.value, have),)
        return Read(self.add(kind, cell, cause.operator, have.box, made=made))

    def sent(self, cell: int, cause: Cause, have: Have) -> Read:
        """What others may read of a cell: a block by itself, so that nothing else moves with it."""
        source = have.source
        if isinstance(source, Read) and len(self.tasks[source.task].made) == 1:
            return source
        return self.copied("send", cell, cause, have)

    def block(self, kind: str, cell: int, cause: Cause, have: Have) -> Have:
        """What a cell has, as a block."""
        return Have(self.read(kind, cell, cause, have), have.box)

    def is_there(self, source: Source, cell: int) -> bool:
        """Whether a cell has an array in its blocks, with nothing to compute or to bring."""
        match source:
            case Read(task=task):
                return self.tasks[task].cell == cell
            case Part(of=inner) | Hide(of=inner):
                return self.is_there(inner, cell)
            case Join(pieces=pieces):
                return all(self.is_there(piece, cell) for _, piece in pieces)
        return False

    def join(self, name: str, box: ZRange, parts: Sequence[Have]) -> Have:
        """Boxes that cover another, put together."""
        if len(parts) == 1 and parts[0].box == box:
            return parts[0]
        pieces = tuple((part.box.slices(box.start), part.source) for part in parts)
        return Have(Join(box.shape, self.plan.graph.values[name].dtype, pieces), box)
