"""`perform`: one task done on a worker, from the blocks that it reads, and what that took."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import array_api_compat.numpy as xp

from weft.errors import WeftError
from weft.lang import Block, Operator, Signature
from weft.lang.block import Attributes
from weft.lang.kernels.monoids import combination
from weft.plan import Plan
from weft.run.arrays import Array, masked
from weft.run.blocks import run_block
from weft.run.grid.report import Report
from weft.run.grid.task import Fold, Hide, Join, Leaf, Part, Read, Source, Task
from weft.values import Point

Blocks = tuple[Array, ...]
"""The blocks that a task made."""


class TaskError(WeftError):
    """A task that failed: its operator and its box; the traceback of the worker is a note."""


class Work(NamedTuple):
    """What the kernel of an application needs beside its box."""

    operator: Operator
    signature: Signature
    attributes: Attributes


Program = tuple[Work, ...]
"""What the tasks of a plan share: the applications in their order."""


def program_of(plan: Plan) -> Program:
    """What workers need to know of a plan."""
    return tuple(
        Work(plan.graph.operators.find(a.operator), placed.signature, a.attributes)
        for a, placed in zip(plan.graph.applications, plan.placed)
    )


class Given(NamedTuple):
    """What a reader is given: an input, or the part of it that starts there."""

    array: Array
    start: Point


class Came(NamedTuple):
    """The blocks that came to a task from another, and the cell that had them."""

    cell: int
    blocks: Blocks


def perform(
    program: Program, task: Task, came: Mapping[int, Came], given: Given | None = None
) -> tuple[Blocks, Report]:
    """The blocks that a task makes, and what it took."""
    begin = time.perf_counter()
    try:
        hand = _Hand(task.cell, came, given, {})
        arrays = [hand.array(source) for source in task.sources]
        blocks = tuple(map(_own, _made(program, task, arrays)))
    except Exception as error:
        raise _failure(task, error) from None
    return blocks, Report(task.number, time.perf_counter() - begin, hand.received)


def _made(program: Program, task: Task, arrays: Sequence[Array]) -> Sequence[Array]:
    if task.application is None:
        return arrays
    operator, signature, attributes = program[task.application]
    block = Block(xp, signature, attributes, task.box)
    return run_block(operator, block, [arrays[place] for place in task.operands])


class _Hand(NamedTuple):
    """What a task has at hand."""

    cell: int
    came: Mapping[int, Came]
    given: Given | None
    received: dict[int, int]

    def array(self, source: Source) -> Array:
        """The array that a source says; what comes from another cell is counted."""
        match source:
            case Read(task=task, place=place):
                return self._came(task, place)
            case Part(of=of, where=where):
                return self.array(of)[where]
            case Hide(of=of, monoid=monoid):
                return masked(xp, self.array(of), monoid)
            case Fold(monoid=monoid, parts=parts):
                arrays = [self.array(part) for part in parts]
                return reduce(combination(xp, monoid, arrays[0].dtype), arrays)
            case Join():
                return self._joined(source)
            case Leaf(box=box):
                assert self.given is not None
                return self.given.array[box.slices(self.given.start)]

    def _came(self, task: int, place: int) -> Array:
        cell, blocks = self.came[task]
        if cell != self.cell:
            self.received[cell] = self.received.get(cell, 0) + int(blocks[place].nbytes)
        return blocks[place]

    def _joined(self, join: Join) -> Array:
        pieces = [(into, self.array(source)) for into, source in join.pieces]
        whole = xp.empty(join.shape, dtype=pieces[0][1].dtype if pieces else join.dtype)
        for into, piece in pieces:
            whole[into] = piece
        return whole


def _own(array: Array) -> Array:
    """An array that keeps nothing larger than itself alive."""
    base = getattr(array, "base", None)
    return array.copy() if base is not None and _size(base) > array.nbytes else array


def _size(base: Any) -> int:
    return int(base.nbytes) if hasattr(base, "nbytes") else memoryview(base).nbytes


def _failure(task: Task, error: Exception) -> TaskError:
    what = "box" if task.application is None else "index box"
    failed = TaskError(
        f"{task.operator} could not {task.kind} {task.values}, {what} {task.box} on cell "
        f"{task.cell}: {type(error).__name__}: {error}"
    )
    failed.add_note("".join(traceback.format_exception(error)).rstrip())
    return failed
