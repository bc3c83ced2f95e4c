"""`Task`: one piece of work for one cell: what it reads, what it makes of that, where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.runtime.cluster.weaving.source import Leaf, Read, Source, leaves, renamed
from weft.space import ZRange


class Stage(NamedTuple):
    """One application on one box, inside a task."""

    application: int
    box: ZRange
    """Of its index space."""
    sources: tuple[Source, ...]
    """The arrays that it works on, each of them once."""
    operands: tuple[int, ...]
    """Which of them are the operands, in their order."""
    results: tuple[int, ...]
    """The bytes of each result."""
    extra: int
    """The bytes that its kernel takes beside."""


class Made(NamedTuple):
    """A box of a value that a task makes, as a block for others or as shards of an output."""

    value: str
    box: ZRange
    nbytes: int
    source: Source


@dataclass(frozen=True, slots=True)
class Task:
    """What one cell does at once; its number is its place in the order of the run.

    >>> from weft.runtime.cluster.weaving.source import Leaf
    >>> box = ZRange((4,), (8,))
    >>> print(Task(3, "read", 1, "input", box, (), (Made("x", box, 16, Leaf("x", box)),)))
    3: read x [4:8] for input on cell 1
    """

    number: int
    kind: str
    """`read` an input, `compute` boxes, `send` a part to other cells, `fold` parts of a reduction,
    `keep` what came as a value, `write` what came into storage."""
    cell: int
    """The device of the cell."""
    operator: str
    """For which operators; `input` and `output` stand for themselves."""
    box: ZRange
    """The box of the last index space, or of the value that it reads, sends, folds or keeps."""
    stages: tuple[Stage, ...]
    """What it computes, in order."""
    made: tuple[Made, ...]
    """The blocks that others read."""
    writes: tuple[Made, ...] = ()
    """The whole shards that it puts into storage."""
    keeps: tuple[Leaf, ...] = ()
    """What of stored inputs it keeps for the next task of its worker, beyond what it reads."""

    @property
    def reads(self) -> tuple[int, ...]:
        """The tasks whose blocks it reads, in order."""
        return tuple(dict.fromkeys(read.task for read in self.uses()))

    def uses(self) -> Iterator[Read]:
        """Every use of a block, one that is used twice twice."""
        for source in self.sources():
            yield from (leaf for leaf in leaves(source) if isinstance(leaf, Read))

    def sources(self) -> Iterator[Source]:
        """All that it makes arrays of, in the order in which it does."""
        for stage in self.stages:
            yield from stage.sources
        yield from (made.source for made in (*self.made, *self.writes))

    @property
    def values(self) -> str:
        """The values of which it makes blocks, or shards."""
        return ", ".join(dict.fromkeys(m.value for m in (*self.made, *self.writes)))

    def renumbered(self, number: Callable[[int], int]) -> Task:
        """The same task in another order."""
        stages = tuple(
            stage._replace(sources=tuple(renamed(s, number) for s in stage.sources))
            for stage in self.stages
        )
        return replace(
            self,
            number=number(self.number),
            stages=stages,
            made=tuple(m._replace(source=renamed(m.source, number)) for m in self.made),
            writes=tuple(w._replace(source=renamed(w.source, number)) for w in self.writes),
        )

    def __str__(self) -> str:
        what = f"{self.kind} {self.values} {self.box}"
        return f"{self.number}: {what} for {self.operator} on cell {self.cell}"
