"""Calls of a Ray actor: one task with large blocks, or some small ones, and what they read."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.runtime.cluster.perform import Blocks
from weft.runtime.cluster.weaving.source import Leaf, leaves
from weft.runtime.cluster.weaving.task import Task

SMALL = 64 << 10
"""Blocks of so many bytes in all travel with the report; Ray itself keeps less than 100 KiB so."""

LIGHT = 1 << 20
"""A task that makes no more bytes than these on its way takes less time than a call."""


def is_small(task: Task) -> bool:
    """Whether what a task makes for others goes with its report."""
    return sum(made.nbytes for made in task.made) <= SMALL


def is_light(task: Task) -> bool:
    """Whether a task may share a call with others: it is done at once, and waits for no storage."""
    if task.writes or not is_small(task):
        return False
    if sum(sum(stage.results) + stage.extra for stage in task.stages) > LIGHT:
        return False
    sources = (source for stage in task.stages for source in stage.sources)
    return not any(isinstance(leaf, Leaf) for source in sources for leaf in leaves(source))


class Reading(NamedTuple):
    """Of a task that is read which blocks come, and as which arguments of the call."""

    task: int
    cell: int
    places: tuple[int, ...] = ()
    """Its blocks that come one by one, if they are large."""
    at: tuple[int, ...] = ()
    """As which arguments; none for a task of the same call."""
    number: int = 0
    """Which task of its call it was, if that came in one piece."""


class Entry(NamedTuple):
    """A task of a call."""

    task: Task
    reads: tuple[Reading, ...]
    given: int | None
    """As which argument the input comes that it reads."""


@dataclass(eq=False, slots=True)
class Call:
    """Tasks that one call of an actor does, in order."""

    worker: int
    is_small: bool
    entries: list[Entry] = field(default_factory=list)
    references: list[Any] = field(default_factory=list)
    note: Any = None
    """What refers to its reports, once it is made, and to all that it gives if that is small."""
    blocks: list[Any] = field(default_factory=list)
    """What refers to the blocks, if they are large."""

    def add(self, task: Task, reads: Mapping[int, tuple[int, Handle]], given: Any) -> Handle:
        """Take in a task, and refer to what it reads."""
        used: dict[int, set[int]] = {}
        for read in task.uses():
            used.setdefault(read.task, set()).add(read.place)
        brought = tuple(
            self._reading(number, cell, handle, used[number])
            for number, (cell, handle) in reads.items()
        )
        place = None if given is None else self._argument(given)
        self.entries.append(Entry(task, brought, place))
        return Handle(self, len(self.entries) - 1)

    def _reading(self, number: int, cell: int, handle: Handle, used: set[int]) -> Reading:
        call = handle.call
        if call is self:
            return Reading(number, cell)
        if call.is_small:
            return Reading(number, cell, (), (self._argument(call.note),), handle.number)
        places = tuple(sorted(used))
        return Reading(number, cell, places, tuple(self._argument(call.blocks[n]) for n in places))

    def _argument(self, reference: Any) -> int:
        """As which argument a reference goes: each goes once."""
        for number, known in enumerate(self.references):
            if known is reference:
                return number
        self.references.append(reference)
        return len(self.references) - 1


class Handle(NamedTuple):
    """A task that was submitted: its call, and which of that it is."""

    call: Call
    number: int


class Brought:
    """What came with a call."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = arrays
        self.here: dict[int, Blocks] = {}
        """What tasks of this call have made."""
        self._opened: dict[int, Any] = {}

    def blocks(self, read: Reading) -> Any:
        """The blocks of a task, by their places."""
        if not read.at:
            return self.here[read.task]
        if read.places:
            return {place: self.arrays[at] for place, at in zip(read.places, read.at)}
        (at,) = read.at
        if at not in self._opened:
            self._opened[at] = pickle.loads(self.arrays[at])
        return self._opened[at][read.number][1]
