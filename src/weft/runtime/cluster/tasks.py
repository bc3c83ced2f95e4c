"""`Task`: work that one cell does at once, described in full, so that a worker needs no plan.

A task runs steps, each an operator's kernel on one box of its index space, and then hands out
blocks or writes shards. Every array that it works on is an expression: boxes of inputs, blocks of
other tasks and results of its own steps, sliced, masked, combined and joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from weft.program.messages import Slices
from weft.space import ZRange
from weft.values import Point

# -- arrays ----------------------------------------------------------------------------------------


class InputBox(NamedTuple):
    """A box of an input of the graph."""

    name: str
    box: ZRange


class BlockRef(NamedTuple):
    """A block of another task."""

    task: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A result of a step of the same task; not a tuple, so that it never equals a `BlockRef`."""

    step: int
    place: int = 0


class Sliced(NamedTuple):
    """A part of an array."""

    of: ArrayExpr
    where: Slices


class Masked(NamedTuple):
    """An array of the same shape, filled with the identity of a monoid."""

    of: ArrayExpr
    monoid: str


class Combined(NamedTuple):
    """Parts of a reduction, combined in order."""

    monoid: str
    parts: tuple[ArrayExpr, ...]


class Joined(NamedTuple):
    """An array put together from pieces."""

    shape: Point
    dtype: str
    pieces: tuple[tuple[Slices, ArrayExpr], ...]


Leaf: TypeAlias = InputBox | BlockRef | StepResult
ArrayExpr: TypeAlias = InputBox | BlockRef | StepResult | Sliced | Masked | Combined | Joined


def leaves(array: ArrayExpr) -> Iterator[Leaf]:
    """Return the arrays from which an expression is computed, with repetitions.

    >>> list(leaves(Combined("sum", (BlockRef(1), Sliced(BlockRef(2), (slice(0, 1),))))))
    [BlockRef(task=1, place=0), BlockRef(task=2, place=0)]
    """
    match array:
        case InputBox() | BlockRef() | StepResult():
            yield array
        case Sliced(of=inner) | Masked(of=inner):
            yield from leaves(inner)
        case Combined(parts=parts):
            for part in parts:
                yield from leaves(part)
        case Joined(pieces=pieces):
            for _, piece in pieces:
                yield from leaves(piece)


def _rename(array: ArrayExpr, block: Callable[[BlockRef], BlockRef]) -> ArrayExpr:
    """Return the expression on other blocks."""
    match array:
        case BlockRef():
            return block(array)
        case Sliced(of=inner) | Masked(of=inner):
            return array._replace(of=_rename(inner, block))
        case Combined(monoid=monoid, parts=parts):
            return Combined(monoid, tuple(_rename(part, block) for part in parts))
        case Joined(pieces=pieces):
            return array._replace(pieces=tuple((into, _rename(p, block)) for into, p in pieces))
    return array


def slice_array(array: ArrayExpr, where: Slices) -> ArrayExpr:
    """Return a part of an array, computed from no more than it needs.

    >>> whole = Joined((4,), "int8", (((slice(0, 2),), BlockRef(0)), ((slice(2, 4),), BlockRef(1))))
    >>> slice_array(whole, (slice(3, 4),))
    Sliced(of=BlockRef(task=1, place=0), where=(slice(1, 2, None),))
    """
    match array:
        case Sliced(of=inner, where=outer):
            within = (slice(a.start + b.start, a.start + b.stop) for a, b in zip(outer, where))
            return slice_array(inner, tuple(within))
        case Masked(of=inner, monoid=monoid):
            return Masked(slice_array(inner, where), monoid)
        case Combined(monoid=monoid, parts=parts):
            return Combined(monoid, tuple(slice_array(part, where) for part in parts))
        case Joined(dtype=dtype, pieces=pieces):
            return join_pieces(slice_shape(where), dtype, tuple(_slice_pieces(pieces, where)))
    return Sliced(array, where)


def join_pieces(
    shape: Point, dtype: str, pieces: tuple[tuple[Slices, ArrayExpr], ...]
) -> ArrayExpr:
    """Return an array put together from pieces; a piece that fills it is returned as it is."""
    if len(pieces) == 1 and slice_shape(pieces[0][0]) == shape:
        return pieces[0][1]
    return Joined(shape, dtype, pieces)


def _slice_pieces(
    pieces: tuple[tuple[Slices, ArrayExpr], ...], where: Slices
) -> Iterator[tuple[Slices, ArrayExpr]]:
    """Return the parts of pieces that meet a slice, and where they lie in it."""
    outer = slice_box(where)
    for into, piece in pieces:
        box = slice_box(into)
        if shared := box & outer:
            inner = piece if shared == box else slice_array(piece, shared.slices(box.start))
            yield shared.slices(outer.start), inner


def slice_box(where: Slices) -> ZRange:
    """Return slices as a box."""
    return ZRange([part.start for part in where], [part.stop for part in where])


def slice_shape(where: Slices) -> Point:
    """Return the shape of a slice of an array."""
    return tuple(part.stop - part.start for part in where)


# -- tasks -----------------------------------------------------------------------------------------


class TaskStep(NamedTuple):
    """One application on one box, inside a task."""

    application: int
    box: ZRange
    """Of its index space."""
    arrays: tuple[ArrayExpr, ...]
    """The arrays that it works on, each of them once."""
    operands: tuple[int, ...]
    """For each operand the number of its array."""
    result_bytes: tuple[int, ...]
    workspace: int
    """The bytes that its kernel takes beside operands and results."""
    body: int = 0
    """The body of the program that has the application."""


class TaskOutput(NamedTuple):
    """A box of a value that a task computes, as a block for other tasks or as stored shards."""

    value: str
    box: ZRange
    nbytes: int
    array: ArrayExpr


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one cell at one time; the number of a task is its place in the run's order.

    >>> box = ZRange((4,), (8,))
    >>> print(Task(3, "read", 1, "input", box, (), (TaskOutput("x", box, 16, InputBox("x", box)),)))
    3: read x [4:8] for input on cell 1
    """

    number: int
    kind: str
    """`read` an input, `compute` boxes, `send` a part to other cells, `combine` parts of a
    reduction, `keep` what arrived as a value, `write` what arrived to storage. A `loop` or a
    `branch` is what a cell gives to one and has of its results; the run puts the tasks of a body
    in its place, as often as it turns out to run."""
    cell: int
    """The device of the cell."""
    operator: str
    """The operators it runs for; `input` and `output` stand for themselves."""
    box: ZRange
    """The box of the last step's index space, or of the value that is read, sent or kept."""
    steps: tuple[TaskStep, ...]
    blocks: tuple[TaskOutput, ...]
    """What other tasks read."""
    writes: tuple[TaskOutput, ...] = ()
    """The whole shards that it writes to storage."""
    keeps: tuple[InputBox, ...] = ()
    """Boxes of stored inputs that it keeps for the next task of its worker."""

    @property
    def is_control(self) -> bool:
        """Whether it stands for the tasks of a loop or a branch."""
        return self.kind in ("loop", "branch")

    @property
    def needs(self) -> tuple[int, ...]:
        """The tasks whose blocks it reads, in order."""
        return tuple(dict.fromkeys(block.task for block in self.block_uses()))

    def block_uses(self) -> Iterator[BlockRef]:
        """Return every use of a block, with repetitions."""
        for array in self.arrays():
            yield from (leaf for leaf in leaves(array) if isinstance(leaf, BlockRef))

    def input_boxes(self) -> Iterator[InputBox]:
        """Return every box of an input that it reads, each once."""
        found = (leaf for array in self.arrays() for leaf in leaves(array))
        yield from dict.fromkeys(leaf for leaf in found if isinstance(leaf, InputBox))

    def arrays(self) -> Iterator[ArrayExpr]:
        """Return the arrays that it computes, in order."""
        for step in self.steps:
            yield from step.arrays
        yield from (output.array for output in (*self.blocks, *self.writes))

    @property
    def values(self) -> str:
        """The values of which it makes blocks or shards, as text."""
        return ", ".join(dict.fromkeys(o.value for o in (*self.blocks, *self.writes)))

    def renumber(self, number: int, block: Callable[[BlockRef], BlockRef]) -> Task:
        """Return the same task with another number, on other blocks."""

        def outputs(old: tuple[TaskOutput, ...]) -> tuple[TaskOutput, ...]:
            return tuple(o._replace(array=_rename(o.array, block)) for o in old)

        steps = tuple(
            step._replace(arrays=tuple(_rename(array, block) for array in step.arrays))
            for step in self.steps
        )
        blocks, writes = outputs(self.blocks), outputs(self.writes)
        return replace(self, number=number, steps=steps, blocks=blocks, writes=writes)

    def __str__(self) -> str:
        what = f"{self.kind} {self.values} {self.box}"
        return f"{self.number}: {what} for {self.operator} on cell {self.cell}"
