"""`run_task`: execute one task on a worker, from the blocks that it reads, and measure it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import array_api_compat.numpy as xp

from weft.errors import WeftError
from weft.lang import Block, Graph, Operator, Signature
from weft.lang.dtype import dtype_name
from weft.lang.kernel import Attributes
from weft.lang.monoid import Monoid, combine, identities, monoid_named
from weft.lang.notation import CUSTOM
from weft.lang.struct_array import StructArray
from weft.plan import Plan
from weft.runtime.arrays import Array, empty
from weft.runtime.blocks import run_block
from weft.runtime.cluster.metrics.meter import Meter, Report
from weft.runtime.cluster.schedule import count_uses, drop_used
from weft.runtime.cluster.tasks import (
    ArrayExpr,
    BlockRef,
    Combined,
    InputBox,
    Joined,
    Masked,
    Sliced,
    StepResult,
    Task,
    TaskStep,
)
from weft.space import ZRange
from weft.values import FrozenMap, Point

Blocks = tuple[Array, ...]
"""The blocks of a task."""


class TaskError(WeftError):
    """A task that failed: its operator and its box; the traceback of the worker is a note."""


class ApplicationKernel(NamedTuple):
    """What the kernel of an application needs beside its box and its operands."""

    operator: Operator
    signature: Signature
    attributes: Attributes
    results: tuple[str, ...]
    """The values that it computes, for messages."""
    dtypes: tuple[str, ...] = ()
    """Their dtypes, as the graph declares them."""


class StoredInput(Protocol):
    """An input in storage, of which any worker reads boxes."""

    def read_counted(self, box: ZRange, *, threads: int) -> tuple[Array, int]:
        """Return a box, and the bytes that were fetched for it."""


class StoredOutput(Protocol):
    """An output in storage, of which any worker writes whole shards."""

    def write(self, box: ZRange, array: Array) -> int:
        """Write a box; return the bytes that were stored."""


@dataclass(frozen=True)
class WorkerContext:
    """What all tasks of a run share: kernels, stored inputs and outputs."""

    kernels: tuple[tuple[ApplicationKernel, ...], ...]
    """For each body of the program its applications in order."""
    inputs: Mapping[str, StoredInput] = field(default_factory=dict)
    outputs: Mapping[str, StoredOutput] = field(default_factory=dict)
    monoids: tuple[Monoid, ...] = ()
    """The monoids of the plan that are not Weft's own: a process that reads this has them then."""
    kept: dict[tuple[int, str], tuple[ZRange, Array]] = field(default_factory=dict, compare=False)
    """What the threads of this process have kept of stored inputs for their next tasks."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        inputs: Mapping[str, StoredInput] | None = None,
        outputs: Mapping[str, StoredOutput] | None = None,
    ) -> WorkerContext:
        """Return the context for the tasks of a plan."""
        graphs = plan.program.graphs
        lines = [line for graph in graphs for line in graph.signatures]
        named = {m for line in lines for m in line.notation.reduced.values()} - {CUSTOM}
        monoids = tuple(found for name in sorted(named) if (found := monoid_named(name)))
        kernels = tuple(tuple(_kernels(graph)) for graph in graphs)
        return cls(kernels, inputs or {}, outputs or {}, monoids)

    def kernel(self, step: TaskStep) -> ApplicationKernel:
        """Return the kernel of a step."""
        return self.kernels[step.body][step.application]


def _kernels(graph: Graph) -> Iterator[ApplicationKernel]:
    for application, signature in zip(graph.applications, graph.signatures):
        names = application.results
        yield ApplicationKernel(
            graph.operators.find(application.operator),
            signature,
            application.attributes,
            names,
            tuple(graph.values[name].dtype for name in names),
        )


class GivenInput(NamedTuple):
    """An input in memory, or the part of it that begins at `start`."""

    array: Array
    start: Point


GivenInputs: TypeAlias = Mapping[str, GivenInput]
"""The inputs in memory that a task reads."""

NO_INPUTS: GivenInputs = FrozenMap(())


class ReceivedBlocks(NamedTuple):
    """The blocks of another task, and the cell that had them."""

    cell: int
    blocks: Blocks


def run_task(
    context: WorkerContext,
    task: Task,
    received: Mapping[int, ReceivedBlocks],
    given: GivenInputs = NO_INPUTS,
    *,
    alone: bool = True,
) -> tuple[Blocks, Report]:
    """Return the blocks of a task and its measurements.

    `alone` says that no other task runs in this process.
    """
    with Meter(task.number, alone=alone) as meter:
        run = _TaskRun(context, task, received, given, meter)
        try:
            blocks = run.blocks()
        except Exception as error:
            raise _failure(task, run.step, context, error) from None
    return blocks, meter.report()


class _TaskRun:
    """One execution of a task; every array is held until its last use."""

    def __init__(
        self,
        context: WorkerContext,
        task: Task,
        received: Mapping[int, ReceivedBlocks],
        given: GivenInputs,
        meter: Meter,
    ) -> None:
        self.context, self.task, self.received = context, task, received
        self.given, self.meter = given, meter
        self.left, self.live = count_uses(task), dict[InputBox | StepResult, Array]()
        self.step: TaskStep | None = None

    def blocks(self) -> Blocks:
        """Run the steps, write the shards, and return the blocks."""
        for number, step in enumerate(self.task.steps):
            self.step = step
            self._run(number, step)
        self.step = None
        for write in self.task.writes:
            array = self._array(write.array)
            drop_used(write.array, self.left, self.live)
            with self.meter.part("writing"):
                self.meter.written += self.context.outputs[write.value].write(write.box, array)
        return tuple(_own(self._array(block.array)) for block in self.task.blocks)

    def _run(self, number: int, step: TaskStep) -> None:
        operator, signature, attributes, names, dtypes = self.context.kernel(step)
        block = Block(xp, signature, attributes, step.box)
        arrays = [self._array(array) for array in step.arrays]
        results = run_block(operator, block, [arrays[place] for place in step.operands])
        _check_declared(names, dtypes, results)
        for expression in step.arrays:
            drop_used(expression, self.left, self.live)
        for place, array in enumerate(results):
            if self.left[StepResult(number, place)]:
                self.live[StepResult(number, place)] = array

    def _array(self, array: ArrayExpr) -> Array:  # noqa: PLR0911 - one for each kind
        """Compute an expression; blocks that come from other cells are counted."""
        match array:
            case BlockRef(task=task, place=place):
                return self._block(task, place)
            case StepResult():
                return self.live[array]
            case InputBox():
                if array not in self.live:
                    self.live[array] = self._input(array)
                return self.live[array]
            case Sliced(of=of, where=where):
                return self._array(of)[where]
            case Masked(of=of, monoid=monoid):
                return identities(xp, monoid, self._array(of))
            case Combined(monoid=monoid, parts=parts):
                return combine(xp, monoid, list(map(self._array, parts)))
            case Joined():
                return self._join(array)

    def _block(self, task: int, place: int) -> Array:
        cell, blocks = self.received[task]
        if cell != self.task.cell:
            received = self.meter.received
            received[cell] = received.get(cell, 0) + int(blocks[place].nbytes)
        return blocks[place]

    def _join(self, join: Joined) -> Array:
        whole: Array | None = None
        for into, expression in join.pieces:
            piece = self._array(expression)
            if whole is None:
                whole = empty(xp, join.shape, piece.dtype)
            whole[into] = piece
        return empty(xp, join.shape, join.dtype) if whole is None else whole

    def _input(self, wanted: InputBox) -> Array:
        if wanted.name in self.given:
            array, start = self.given[wanted.name]
            return array[wanted.box.slices(start)]
        with self.meter.part("reading"):
            return self._read(wanted)

    def _read(self, wanted: InputBox) -> Array:
        """Read a box of a stored input, except what the task before has kept of it."""
        mine = (threading.get_ident(), wanted.name)
        keeps = [kept.box for kept in self.task.keeps if kept.name == wanted.name]
        box = wanted.box.hull(*keeps)
        held = self.context.kept.pop(mine, None)
        if held is None or not (known := held[0] & box):
            array = self._fetch(wanted.name, box)
        else:
            before, old = held
            array = xp.empty(box.shape, dtype=old.dtype)
            array[known.slices(box.start)] = old[known.slices(before.start)]
            for rest in box.difference(known):
                array[rest.slices(box.start)] = self._fetch(wanted.name, rest)
        for kept in keeps:
            self.context.kept[mine] = kept, array[kept.slices(box.start)].copy()
        return array if box == wanted.box else array[wanted.box.slices(box.start)]

    def _fetch(self, name: str, box: ZRange) -> Array:
        array, size = self.context.inputs[name].read_counted(box, threads=1)
        self.meter.read += size
        return array


def _check_declared(names: Sequence[str], dtypes: Sequence[str], results: Sequence[Array]) -> None:
    """Refuse results that are not what the graph declares: nothing is cast silently."""
    if len(results) != len(names):
        raise WeftError(f"the kernel made {len(results)} arrays for {len(names)} results")
    for name, dtype, array in zip(names, dtypes, results):
        if (found := dtype_name(array.dtype)) != dtype:
            raise WeftError(f"the kernel made {found} for {name}, which is declared as {dtype}")


def _own(array: Array) -> Array:
    """Return an array that keeps nothing larger than itself alive."""
    if isinstance(array, StructArray):
        return array.map(_own)
    base = getattr(array, "base", None)
    return array.copy() if base is not None and _size(base) > array.nbytes else array


def _size(base: Any) -> int:
    return int(base.nbytes) if hasattr(base, "nbytes") else memoryview(base).nbytes


def _failure(
    task: Task, step: TaskStep | None, context: WorkerContext, error: Exception
) -> TaskError:
    """Return the error that names the application and its index box, or what the task was doing."""
    if step is None:
        what = f"{task.operator} could not {task.kind} {task.values}, box {task.box}"
    else:
        kernel = context.kernel(step)
        values = ", ".join(kernel.results)
        what = f"{kernel.operator.name} could not compute {values}, index box {step.box}"
    failed = TaskError(f"{what} on cell {task.cell}: {type(error).__name__}: {error}")
    failed.add_note("".join(traceback.format_exception(error)).rstrip())
    return failed
