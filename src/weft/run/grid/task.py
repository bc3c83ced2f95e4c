"""`Task`: one piece of work for one cell: what it reads, what it makes of that, where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weft.run.hops import Slices
from weft.space import ZRange
from weft.values import Point


class Leaf(NamedTuple):
    """A box of an input of the graph."""

    name: str
    box: ZRange


class Read(NamedTuple):
    """A block that another task made."""

    task: int
    place: int = 0


class Part(NamedTuple):
    """A part of an array."""

    of: Source
    where: Slices


class Hide(NamedTuple):
    """An array of its shape that a monoid does not see."""

    of: Source
    monoid: str


class Fold(NamedTuple):
    """Parts of a reduction, combined in their order."""

    monoid: str
    parts: tuple[Source, ...]


class Join(NamedTuple):
    """An array put together from pieces."""

    shape: Point
    dtype: str
    pieces: tuple[tuple[Slices, Source], ...]


Source: TypeAlias = Leaf | Read | Part | Hide | Fold | Join
"""Where an array comes from: said in full, so that a worker needs no plan to make it."""


class Made(NamedTuple):
    """A block that a task makes: a box of a value."""

    value: str
    box: ZRange
    nbytes: int


@dataclass(frozen=True, slots=True)
class Task:
    """What one cell does at once; its number is its place in the order of the plan.

    >>> made = Made("x", ZRange((4,), (8,)), 16)
    >>> print(Task(3, "read", 1, None, "input", made.box, (Leaf("x", made.box),), (0,), (made,)))
    3: read x [4:8] for input on cell 1
    """

    number: int
    kind: str
    """`read` an input, `compute` a box, `send` a part to other cells, `fold` parts of a reduction,
    `keep` what came as a value."""
    cell: int
    """The device of the cell."""
    application: int | None
    """The application of the plan that it computes."""
    operator: str
    """For which operator; `input` and `output` stand for themselves."""
    box: ZRange
    """The box of the index space, or of the value that it reads, sends, folds or keeps."""
    sources: tuple[Source, ...]
    """The arrays that it works on, each of them once."""
    operands: tuple[int, ...]
    """Which of them are the operands, in their order."""
    made: tuple[Made, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        """The tasks whose blocks it reads, in order."""
        return tuple(dict.fromkeys(read.task for read in self.uses()))

    def uses(self) -> Iterator[Read]:
        """Every use of a block, one that is used twice twice."""
        for source in self.sources:
            yield from _reads(source)

    @property
    def values(self) -> str:
        """The values of which it makes blocks."""
        return ", ".join(made.value for made in self.made)

    def __str__(self) -> str:
        what = f"{self.kind} {self.values} {self.box}"
        return f"{self.number}: {what} for {self.operator} on cell {self.cell}"


def _reads(source: Source) -> Iterator[Read]:
    match source:
        case Read():
            yield source
        case Part(of=inner) | Hide(of=inner):
            yield from _reads(inner)
        case Fold(parts=parts):
            for part in parts:
                yield from _reads(part)
        case Join(pieces=pieces):
            for _, piece in pieces:
                yield from _reads(piece)
