"""The instructions of a program, the buffers they work on, and the definitions they must meet.

A `Program` is bodies of instructions over buffers. A buffer holds one value of the graph in one
layout, on every cell; several buffers may hold the same value. What the program must compute is
said by its definitions, which `weft.lang` writes from the graph, and never by the lowering.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weft.program.layout_rule import Layout
from weft.space import Digit, Projection
from weft.values import Point

# What is to be computed.


@dataclass(frozen=True, eq=False)
class IndexSpace:
    """The sub-problems of an application, and what each of them reads and makes."""

    sizes: Point
    reduced: tuple[tuple[int, str], ...]
    """The index dimensions that are reduced, each with its monoid."""
    whole: Point
    """The index dimensions that must not be cut."""
    once: frozenset[int]
    """The operands outside the reduction: where it is cut, they count in one part only."""
    distributes: frozenset[tuple[str, Point]]
    """Operands that may be partial together by a monoid: the results are then partial by it."""
    reads: tuple[tuple[Projection, Point], ...]
    """For each operand its projection and its shape."""
    makes: tuple[tuple[Projection, Point], ...]
    """For each result its projection and its shape."""


@dataclass(frozen=True, eq=False)
class Definition:
    """One application of the graph: an operator on values, in order."""

    operator: str
    attributes: Mapping[str, Any]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    space: IndexSpace
    regions: tuple[GraphDefinition, ...] = ()


@dataclass(frozen=True, eq=False)
class GraphDefinition:
    """A graph, or the region of an application: what a body of instructions must compute."""

    inputs: tuple[str, ...]
    shapes: Mapping[str, Point]
    applications: tuple[Definition, ...]
    outputs: tuple[str, ...]
    monoids: Mapping[str, object] = field(default_factory=dict)
    """The definitions of the monoids by which its applications reduce, where they are a user's."""


# What is done.


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value of the graph in one layout, on every cell."""

    value: str
    dtype: str
    itemsize: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Combine:
    """Neighbouring digits over which parts are combined by one monoid, major to minor."""

    monoid: str
    digits: tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Boxes go from cells to cells, and parts are combined on arrival.

    Every cell gets its box of the result from the cells that have the points of it: from itself
    what it has, the rest from the holder that differs from it in the fewest digits, or, where
    `balance` is given, from holders that share the load. Parts along the last run of `combine` are
    combined first. A cell that receives nothing has a view of what it had.
    """

    source: int
    result: int
    combine: tuple[Combine, ...] = ()
    kept: tuple[tuple[Digit, Digit], ...] | None = None
    """The digits of parts that stay, before and after; None where they are the same, as they are
    on the same cells."""
    kind: str = "exchange"
    """The collective that may implement it; nothing relies on it."""
    balance: tuple[tuple[float, float], ...] | None = None
    """Seconds for a byte and to start a message along each mesh axis, to choose senders by."""
    one_to_one: bool = False
    """Whether a cell should send to one receiver only, if it can."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Each cell takes a view of a part of what it has."""

    source: int
    result: int


@dataclass(frozen=True, slots=True)
class Mask:
    """Copies become parts: the identity of the monoid, except where all digits are 0."""

    source: int
    result: int
    digits: tuple[Digit, ...]
    monoid: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Each cell gets an allocation of its own; the buffers in `frees` end here.

    A cell whose source fills an allocation that no other buffer uses then, takes it over.
    """

    source: int
    result: int
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """Each cell runs the kernel of an operator on its box of the index space."""

    definition: int
    """The number of the application in the definition of the body."""
    operands: Point
    results: Point
    index: Layout
    factors: tuple[tuple[tuple[Digit, ...], str, Point], ...] = ()
    """Digits over which some operands are partial by a monoid and the results stay so."""


@dataclass(frozen=True, slots=True)
class Read:
    """Each cell reads its box of a stored input, and nothing comes from other cells."""

    storage: str
    """The name under which the program has the storage: that of the input."""
    result: int


@dataclass(frozen=True, slots=True)
class Write:
    """Each box is written to storage, in whole shards, by the first cell that holds it."""

    source: int
    storage: str
    """The name under which the program has the storage: that of the output."""


@dataclass(frozen=True, slots=True)
class Free:
    """The last use of buffers has passed."""

    buffers: Point


@dataclass(frozen=True, slots=True)
class Loop:
    """A body that runs as long as a condition holds.

    Condition and body take the carried values first and the captured ones behind them. The body
    owns the carried buffers in `donated` and makes new ones; the others stay what they are, and
    the results for them are views.
    """

    definition: int
    condition: int
    body: int
    carried: Point
    captured: tuple[Point, Point]
    """For the condition and for the body, the buffers that they take from outside."""
    results: Point
    donated: frozenset[int]
    trip_count: int | None = None
    """The number of times the body runs; None where the program does not say."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One of several bodies runs, chosen by a number that all cells agree on."""

    definition: int
    selector: int
    bodies: Point
    captured: tuple[Point, ...]
    """For each body the buffers that it takes from outside."""
    results: Point
    taken: int | None = None
    """The body that runs; None where the program does not say."""


Instruction: TypeAlias = (
    Transfer | Slice | Mask | Copy | Apply | Read | Write | Free | Loop | Branch
)
"""An instruction of a body."""


@dataclass(frozen=True, eq=False)
class Body:
    """Instructions in order, between the buffers that they are given and those that they return."""

    graph: GraphDefinition
    arguments: Point
    """One buffer for each input of the graph; of main, for each that is not stored."""
    instructions: tuple[Instruction, ...]
    results: Point
    """One buffer for each output of the graph; of main, for each that is not written."""
    owned: frozenset[int]
    """The arguments that end inside; the others are the caller's."""
    starts: Point = ()
    """The first instruction of each application, and the first of the outputs."""
    made: Point = ()
    """The instruction after which each application has its results; the next reshard them."""

    def application_at(self, place: int) -> int | None:
        """Return the application to which an instruction belongs; None for the outputs."""
        number = bisect_right(self.starts, place) - 1
        return number if 0 <= number < len(self.starts) - 1 else None
