"""`perform`: one task done on a worker, from the blocks that it reads, and what that took."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import array_api_compat.numpy as xp

from weft.errors import WeftError
from weft.lang import Block, Operator, Signature
from weft.lang.dtype import dtype_name
from weft.lang.kernel import Attributes
from weft.lang.monoid import combine
from weft.plan import Plan
from weft.runtime.arrays import Array, masked
from weft.runtime.blocks import run_block
from weft.runtime.cluster.metrics.meter import Meter, Report
from weft.runtime.cluster.weaving.memory import let_go, uses
from weft.runtime.cluster.weaving.source import Fold, Hide, Join, Leaf, Local, Part, Read, Source
from weft.runtime.cluster.weaving.task import Stage, Task
from weft.space import ZRange
from weft.values import Point

Blocks = tuple[Array, ...]
"""What a task made."""


class TaskError(WeftError):
    """A task that failed: its operator and its box; the traceback of the worker is a note."""


class Work(NamedTuple):
    """What the kernel of an application needs beside its box."""

    operator: Operator
    signature: Signature
    attributes: Attributes
    results: tuple[str, ...]
    """The values that it makes, for messages."""
    dtypes: tuple[str, ...] = ()
    """Their dtypes, as the graph declares them."""


class Reader(Protocol):
    """An input in storage, of which any worker reads boxes."""

    def read_counted(self, box: ZRange, *, threads: int) -> tuple[Array, int]:
        """A box, and the bytes that were fetched for it."""


class Writer(Protocol):
    """An output in storage, of which any worker writes whole shards."""

    def write(self, box: ZRange, array: Array) -> int:
        """Write a box; the bytes that were stored."""


@dataclass(frozen=True)
class Program:
    """What the tasks of a plan share."""

    works: tuple[Work, ...]
    """The applications in their order."""
    inputs: Mapping[str, Reader] = field(default_factory=dict)
    outputs: Mapping[str, Writer] = field(default_factory=dict)
    kept: dict[tuple[int, str], tuple[ZRange, Array]] = field(default_factory=dict, compare=False)
    """What the threads that work on it here have kept of stored inputs for their next tasks."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        inputs: Mapping[str, Reader] | None = None,
        outputs: Mapping[str, Writer] | None = None,
    ) -> Program:
        """What workers need to know of a plan."""
        works = tuple(
            Work(
                plan.graph.operators.find(a.operator),
                placed.signature,
                a.attributes,
                a.results,
                tuple(plan.graph.values[name].dtype for name in a.results),
            )
            for a, placed in zip(plan.graph.applications, plan.placed)
        )
        return cls(works, inputs or {}, outputs or {})


class Given(NamedTuple):
    """What a reader is given: an input, or the part of it that starts there."""

    array: Array
    start: Point


class Came(NamedTuple):
    """The blocks that came to a task from another, and the cell that had them."""

    cell: int
    blocks: Blocks


def perform(
    program: Program,
    task: Task,
    came: Mapping[int, Came],
    given: Given | None = None,
    *,
    alone: bool = True,
) -> tuple[Blocks, Report]:
    """The blocks that a task makes, and what it took: in a process of its own, if `alone`."""
    with Meter(task.number, alone=alone) as meter:
        hand = _Hand(program, task, came, given, meter)
        try:
            blocks = hand.blocks()
        except Exception as error:
            raise _failure(task, hand.stage, program, error) from None
    return blocks, meter.report()


class _Hand:
    """A task at work: what it has at hand, each array until its last use."""

    def __init__(
        self,
        program: Program,
        task: Task,
        came: Mapping[int, Came],
        given: Given | None,
        meter: Meter,
    ) -> None:
        self.program, self.task, self.came, self.given = program, task, came, given
        self.meter = meter
        self.left, self.live = uses(task), dict[Leaf | Local, Array]()
        self.stage: Stage | None = None

    def blocks(self) -> Blocks:
        """Run the stages, write what is written, and give what others read."""
        for number, stage in enumerate(self.task.stages):
            self.stage = stage
            self._run(number, stage)
        self.stage = None
        for write in self.task.writes:
            array = self.array(write.source)
            let_go(write.source, self.left, self.live)
            with self.meter.part("writing"):
                self.meter.written += self.program.outputs[write.value].write(write.box, array)
        return tuple(_own(self.array(made.source)) for made in self.task.made)

    def _run(self, number: int, stage: Stage) -> None:
        operator, signature, attributes, names, dtypes = self.program.works[stage.application]
        block = Block(xp, signature, attributes, stage.box)
        arrays = [self.array(source) for source in stage.sources]
        results = run_block(operator, block, [arrays[place] for place in stage.operands])
        _check_declared(names, dtypes, results)
        for source in stage.sources:
            let_go(source, self.left, self.live)
        for place, array in enumerate(results):
            if self.left[Local(number, place)]:
                self.live[Local(number, place)] = array

    def array(self, source: Source) -> Array:
        """The array that a source says; what comes from another cell is counted."""
        match source:
            case Read(task=task, place=place):
                return self._came(task, place)
            case Local():
                return self.live[source]
            case Leaf():
                if source not in self.live:
                    self.live[source] = self._read(source)
                return self.live[source]
            case Part(of=of, where=where):
                return self.array(of)[where]
        return self._new(source)

    def _new(self, source: Hide | Fold | Join) -> Array:
        match source:
            case Hide(of=of, monoid=monoid):
                return masked(xp, self.array(of), monoid)
            case Fold(monoid=monoid, parts=parts):
                arrays = [self.array(part) for part in parts]
                return combine(xp, monoid, arrays)
            case Join():
                return self._joined(source)

    def _read(self, leaf: Leaf) -> Array:
        if self.given is not None:
            return self.given.array[leaf.box.slices(self.given.start)]
        with self.meter.part("reading"):
            return self._stored(leaf)

    def _stored(self, leaf: Leaf) -> Array:
        """A box of a stored input: what the task before has kept of it is not read again."""
        mine = (threading.get_ident(), leaf.name)
        keeps = [kept.box for kept in self.task.keeps if kept.name == leaf.name]
        box = leaf.box.hull(*keeps)
        held = self.program.kept.pop(mine, None)
        if held is None or not (there := held[0] & box):
            array = self._fetched(leaf.name, box)
        else:
            before, known = held
            array = xp.empty(box.shape, dtype=known.dtype)
            array[there.slices(box.start)] = known[there.slices(before.start)]
            for rest in box.difference(there):
                array[rest.slices(box.start)] = self._fetched(leaf.name, rest)
        for kept in keeps:
            self.program.kept[mine] = kept, array[kept.slices(box.start)].copy()
        return array if box == leaf.box else array[leaf.box.slices(box.start)]

    def _fetched(self, name: str, box: ZRange) -> Array:
        array, size = self.program.inputs[name].read_counted(box, threads=1)
        self.meter.read += size
        return array

    def _came(self, task: int, place: int) -> Array:
        cell, blocks = self.came[task]
        if cell != self.task.cell:
            received = self.meter.received
            received[cell] = received.get(cell, 0) + int(blocks[place].nbytes)
        return blocks[place]

    def _joined(self, join: Join) -> Array:
        whole: Array | None = None
        for into, source in join.pieces:
            piece = self.array(source)
            if whole is None:
                whole = xp.empty(join.shape, dtype=piece.dtype)
            whole[into] = piece
        return xp.empty(join.shape, dtype=join.dtype) if whole is None else whole


def _check_declared(names: Sequence[str], dtypes: Sequence[str], results: Sequence[Array]) -> None:
    """Refuse what a kernel made if it is not what the graph declares: nothing is cast silently."""
    if len(results) != len(names):
        raise WeftError(f"the kernel made {len(results)} arrays for {len(names)} results")
    for name, dtype, array in zip(names, dtypes, results):
        if (found := dtype_name(array.dtype)) != dtype:
            raise WeftError(f"the kernel made {found} for {name}, which is declared as {dtype}")


def _own(array: Array) -> Array:
    """An array that keeps nothing larger than itself alive."""
    base = getattr(array, "base", None)
    return array.copy() if base is not None and _size(base) > array.nbytes else array


def _size(base: Any) -> int:
    return int(base.nbytes) if hasattr(base, "nbytes") else memoryview(base).nbytes


def _failure(task: Task, stage: Stage | None, program: Program, error: Exception) -> TaskError:
    """What failed: the application and its index box, or what else the task was at."""
    if stage is None:
        what = f"{task.operator} could not {task.kind} {task.values}, box {task.box}"
    else:
        work = program.works[stage.application]
        values = ", ".join(work.results)
        what = f"{work.operator.name} could not compute {values}, index box {stage.box}"
    failed = TaskError(f"{what} on cell {task.cell}: {type(error).__name__}: {error}")
    failed.add_note("".join(traceback.format_exception(error)).rstrip())
    return failed
