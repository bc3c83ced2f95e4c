"""Put the tasks of loops and branches in their place while a run goes on.

The tasks of a body are added once for every iteration, with numbers of their own, when it is known
that it runs. They are the tasks that `TaskGraph.verify` has checked, on other blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TypeAlias

from weft.errors import WeftError
from weft.program import Branch, Loop
from weft.program.count import bind
from weft.runtime.arrays import Array
from weft.runtime.cluster.dispatch import Dispatcher
from weft.runtime.cluster.groups import operand_buffers
from weft.runtime.cluster.task_graph import TaskGraph
from weft.runtime.cluster.tasks import BlockRef, Task
from weft.runtime.local import chosen_branch

PlacedBlocks: TypeAlias = tuple[tuple[BlockRef, ...], ...]
"""The blocks of some values, for each in rank order."""

Held: TypeAlias = dict[int, tuple[BlockRef, ...]]
"""The blocks of the buffers that a loop or a branch takes, in rank order."""


class Unroller:
    """Adds the tasks of a plan to a run, those of loops and branches as often as they run."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        graph: TaskGraph,
        inputs: Mapping[str, Array],
        allow: Callable[[int], None],
    ) -> None:
        self.dispatcher, self.main, self.inputs = dispatcher, graph, inputs
        self.allow, self.moved = allow, 0
        """Called with the bytes that all tasks so far move, before those of a body are added."""

    def run(self, wanted: frozenset[int] | None) -> list[list[Array]]:
        """Return the shards of the outputs; `wanted` are the tasks that have to run."""
        outputs = self._body(self.main, None, wanted)
        self.dispatcher.finish()
        found = iter(self.dispatcher.fetch([block for blocks in outputs for block in blocks]))
        return [[next(found) for _ in blocks] for blocks in outputs]

    def _body(
        self,
        graph: TaskGraph,
        given: Mapping[tuple[str, int], BlockRef] | None,
        wanted: frozenset[int] | None = None,
    ) -> PlacedBlocks:
        """Add the tasks of a body; return the blocks of what it returns, pinned.

        Other blocks are freed behind their last reader. `given` are the arguments by name and cell;
        None for the inputs of the run.
        """
        self.moved += graph.moved_bytes
        self.allow(self.moved)
        dispatcher, made = self.dispatcher, dict[BlockRef, BlockRef]()
        pinned: dict[int, Sequence[BlockRef]] = {}

        def hold(task: Task, blocks: Sequence[BlockRef]) -> None:
            pinned[task.number] = blocks
            for place, block in enumerate(blocks):
                made[BlockRef(task.number, place)] = block
                dispatcher.pin(block)

        for task in graph.tasks:
            is_wanted = wanted is None or task.number in wanted
            if task.is_control:
                if is_wanted and task.number not in pinned:
                    for cell, blocks in self._control(graph, task, made).items():
                        hold(graph.tasks[cell], blocks)
                        self._unpin(blocks)  # each is pinned once now
            elif given is not None and task.kind == "read":
                hold(task, [given[task.blocks[0].value, task.cell]])
            else:
                number = len(dispatcher.tasks)
                own = task
                if number != task.number or graph.controls or given is not None:
                    own = task.renumber(number, made.__getitem__)
                dispatcher.add(own, self._inputs(own, given is None), is_done=not is_wanted)
                hold(task, [BlockRef(number, place) for place in range(len(task.blocks))])
            for ended in graph.ends[task.number]:
                self._unpin(pinned.pop(ended, ()))
        outputs = tuple(tuple(made[block] for block in blocks) for blocks in graph.outputs)
        self._pin(*outputs)
        self._unpin(*pinned.values())
        return outputs

    def _pin(self, *blocks: Sequence[BlockRef]) -> None:
        for block in (block for each in blocks for block in each):
            self.dispatcher.pin(block)

    def _unpin(self, *blocks: Sequence[BlockRef]) -> None:
        for block in (block for each in blocks for block in each):
            self.dispatcher.unpin(block)

    def _inputs(self, task: Task, is_main: bool) -> Mapping[str, Array]:
        """Return the inputs in memory that a task reads."""
        if not is_main or not self.inputs:
            return {}
        names = {box.name for box in task.input_boxes()}
        return {name: self.inputs[name] for name in names if name in self.inputs}

    def _control(
        self, graph: TaskGraph, task: Task, made: Mapping[BlockRef, BlockRef]
    ) -> Mapping[int, Sequence[BlockRef]]:
        """Run a loop or a branch; return the pinned blocks of its results, for each cell's task."""
        number = task.steps[0].application
        control, cells = graph.controls[number], graph.control_cells[number]
        held: Held = {}
        for place, buffer in enumerate(operand_buffers(control)):
            steps = [graph.tasks[cell].steps[0] for cell in cells]
            arrays = [step.arrays[step.operands[place]] for step in steps]
            held[buffer] = tuple(made[array] for array in arrays if isinstance(array, BlockRef))
        if isinstance(control, Loop):
            results = self._loop(graph, control, held)
        else:
            results = self._branch(graph, control, held)
        return {cell: [blocks[n] for blocks in results] for n, cell in enumerate(cells)}

    def _call(
        self, graph: TaskGraph, number: int, buffers: Sequence[int], held: Held
    ) -> PlacedBlocks:
        """Run a body on the blocks of some buffers."""
        names = graph.program.bodies[number].graph.inputs
        given = {
            (name, cell): block
            for name, buffer in zip(names, buffers)
            for cell, block in zip(graph.ranks, held[buffer])
        }
        return self._body(graph.bodies[number], given)

    def _loop(self, graph: TaskGraph, loop: Loop, held: Held) -> PlacedBlocks:
        """Run a body as long as its condition holds.

        Where the program says how often that is, and memory is not limited, the conditions are
        checked when the loop is over, so that no iteration waits for one.
        """
        program, dispatcher = graph.program, self.dispatcher
        condition, body = (program.bodies[n] for n in (loop.condition, loop.body))
        first = bind(program, condition, loop.carried, loop.captured[0])
        second = bind(program, body, loop.carried, loop.captured[1])
        changing = [n for n, b in enumerate(loop.carried) if second.index(b) in body.owned]
        self._pin(*(held[buffer] for buffer in loop.carried))
        known = loop.trip_count if dispatcher.window is None else None
        tests = list[BlockRef]()
        for trip in count():
            ((test, *others),) = self._call(graph, loop.condition, first, held)
            self._unpin(others)
            if known is None:
                (going,) = dispatcher.fetch([test])
                self._unpin([test])
                if not bool(going):
                    break
            else:
                tests.append(test)
                if trip == known:
                    break
            returned = self._call(graph, loop.body, second, held)
            for n, blocks in enumerate(returned):
                old = blocks
                if n in changing:
                    old, held[loop.carried[n]] = held[loop.carried[n]], blocks
                self._unpin(old)
        if tests:
            ran = [bool(test) for test in dispatcher.fetch(tests)]
            self._unpin(tests)
            if ran != [True] * (len(tests) - 1) + [False]:
                name = program.buffers[loop.results[0]].value
                raise WeftError(f"the loop of {name} was to run {known} times, and did not")
        return tuple(held[buffer] for buffer in loop.carried)

    def _branch(self, graph: TaskGraph, branch: Branch, held: Held) -> PlacedBlocks:
        """Run the body that is selected by a number that was computed."""
        program = graph.program
        (index,) = self.dispatcher.fetch(held[branch.selector][:1])
        operator = graph.graph.applications[branch.definition].operator
        chosen = chosen_branch(index, len(branch.bodies), operator)
        body = program.bodies[branch.bodies[chosen]]
        buffers = bind(program, body, (), branch.captured[chosen])
        return self._call(graph, branch.bodies[chosen], buffers, held)
