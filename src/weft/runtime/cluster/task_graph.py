"""`TaskGraph`: a program lowered to tasks for cells, whatever engine runs them.

Each cell runs a group of applications as one task, or as one per tile where that takes too much
memory. Further tasks send parts that leave a cell, keep values that arrive in another layout, and
write the shards of stored outputs that no tile fills. The bodies of loops and branches are task
graphs of their own, of which the run makes tasks whenever such a body turns out to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import prod
from operator import add
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.plan import Plan
from weft.program import Branch, Loop, Program
from weft.program.storage import Storage, Traffic, read_traffic
from weft.runtime.cluster.build import TaskGraphBuilder
from weft.runtime.cluster.groups import GroupedProgram, called_bodies
from weft.runtime.cluster.schedule import block_memory, depth_first, keep_overlaps, task_memory
from weft.runtime.cluster.tasks import BlockRef, Joined, Task, TaskOutput
from weft.runtime.cluster.tiling import RULES, DoesNotFit, TileChooser, targets
from weft.runtime.cluster.verify import verify_tasks
from weft.space import ZRange
from weft.values import FrozenMap, Point

IN_FLIGHT = (None, 32, 8, 2, 1)
"""How many tasks of each worker may be in flight at once: the first that memory allows."""


@dataclass(frozen=True)
class TaskGraph:
    r"""The tasks of a plan: what they read and make, on which cell and in which order.

    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w, (8, 4), (4, 2),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{}, {"x"}]>'},
    ... )
    >>> tasks = TaskGraph.of(Plan.of(propagate(graph)))
    >>> print(*tasks.tasks, sep="\n")
    0: compute matmul [0:8, 0:2, 0:2] for matmul on cell 0
    1: compute matmul [0:8, 0:2, 2:4] for matmul on cell 1
    2: keep matmul [0:8, 0:2] for matmul on cell 0
    3: keep matmul [0:8, 0:2] for matmul on cell 1
    >>> tasks.received == tasks.plan.received
    True
    """

    plan: Plan
    program: Program
    """What the tasks compute: with the storage of inputs and outputs, and how it is accessed."""
    tasks: tuple[Task, ...]
    """In the order of the run, which is their priority: each comes behind those that it needs."""
    outputs: tuple[tuple[BlockRef, ...], ...]
    """The blocks of every output, in rank order; empty for a stored output."""
    window: int | None = None
    """How many tasks may be in flight at once; None for any number."""
    extra: int = 0
    """The bytes that a task takes in addition to its arrays."""
    stored: Mapping[str, Storage] = FrozenMap(())
    """The outputs that are written to storage."""
    body: int = 0
    """The body of the program that the tasks compute."""
    bodies: Mapping[int, TaskGraph] = FrozenMap(())
    """The tasks of all other bodies."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        inputs: Mapping[str, Storage] | None = None,
        outputs: Mapping[str, Storage] | None = None,
        *,
        memory: int | None = None,
        workers: int | None = None,
        extra: int = 0,
    ) -> TaskGraph:
        """Return the tasks of a plan.

        `inputs` and `outputs` are those that lie in storage: the tasks are those of
        `plan.program_with` both. With `memory`, the bytes that a worker may take for arrays, tasks
        are cut until they fit; each takes `extra` bytes in addition. What fits some memory fits
        more of it. A plan is refused if no tiling can fit, or if none of those that were tried
        does; the message says which.
        """
        names = {value.name for value in plan.graph.inputs}
        copies = FrozenMap((n, one) for n, one in (outputs or {}).items() if n in names)
        made = {name: one for name, one in (outputs or {}).items() if name not in names}
        program = plan.program_with({**(inputs or {}), **made})
        count = min(workers or plan.mesh.size, plan.mesh.size)
        cutting = partial(_TaskCutting, plan, workers=count)
        main = cutting(GroupedProgram(program, copies=copies), memory=memory, extra=extra)
        inner = [GroupedProgram(program, n) for n in range(1, len(program.bodies))]
        if memory is None or not inner:
            return main.graph(_graphs_of(cutting, inner, memory))
        refused = list[WeftError]()
        # The same limits whatever memory there is, so that what fits some memory fits more of it.
        for inside in (1 << power for power in range(memory.bit_length() - 1, 0, -1)):
            try:
                bodies = _graphs_of(cutting, inner, inside)
            except WeftError as error:
                error.add_note(f"where a loop or a branch may take {inside} B of {memory} B")
                refused.append(error)
                break
            try:
                return main.graph(bodies)
            except WeftError as error:
                refused.append(error)
        raise refused[0]

    def _keeping(self, program: GroupedProgram, workers: int) -> TaskGraph:
        """Return the same tasks with what they keep of stored inputs for each other."""
        if not program.inputs:
            return self

        def worker(task: Task) -> int:
            return self.worker(task.cell, workers)

        return replace(self, tasks=keep_overlaps(self.tasks, worker, program.inputs))

    def verify(self) -> None:
        """Prove that the tasks compute the graph of the plan, whole and once.

        The tasks of loops and branches are included. See `weft.runtime.cluster.verify` for the
        rules; what does not hold raises `VerificationError`.
        """
        verify_tasks(self)

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """For every task those whose blocks nobody needs after it.

        Outputs have no end, nor do blocks that nobody reads: the run waits for them, as their
        tasks may fail.
        """
        last: dict[int, int] = {}
        for task in self.tasks:
            last |= dict.fromkeys(task.needs, task.number)
        kept = {block.task for blocks in self.outputs for block in blocks}
        found: list[list[int]] = [[] for _ in self.tasks]
        for number in sorted(last.keys() - kept):
            found[last[number]].append(number)
        return tuple(map(tuple, found))

    def remaining(self, is_done: Callable[[TaskOutput], bool]) -> frozenset[int]:
        """Return the tasks that write what is not done yet, and all that those need.

        An output that is not stored is needed in full.
        """
        wanted = {block.task for blocks in self.outputs for block in blocks}
        found: set[int] = set()
        for task in reversed(self.tasks):
            is_left = not all(map(is_done, task.writes))
            if is_left or task.number in wanted or not (task.writes or task.blocks):
                found.add(task.number)
                wanted |= set(task.needs)
        return frozenset(found)

    def moved(self, task: Task) -> dict[int, int]:
        """Return the bytes that a task receives from other cells, by cell."""
        found: dict[int, int] = {}
        for block in task.block_uses():
            maker = self.tasks[block.task]
            if maker.cell != task.cell:
                size = maker.blocks[block.place].nbytes
                found[maker.cell] = found.get(maker.cell, 0) + size
        return found

    @cached_property
    def reads(self) -> dict[str, Traffic]:
        """What is read of each stored input, cell by cell, as `Counts.reads` counts it.

        It is what the program counts, but for halos that are computed again instead of received,
        and for copies of a value that is only stored, which one cell computes.
        """
        names = (value.name for value in self.graph.inputs if value.name in self.program.storage)
        boxes = {name: {cell: list[ZRange]() for cell in self.ranks} for name in names}
        for task in self.tasks:
            for name, box in task.input_boxes():
                if name in boxes:
                    boxes[name][task.cell].append(box)
        storage = self.program.storage
        return {name: read_traffic(storage[name], each.values()) for name, each in boxes.items()}

    @cached_property
    def writes(self) -> dict[str, Traffic]:
        """What is written of each stored output, cell by cell: every shard once.

        It is what the program counts where cells hold whole shards.
        """
        counts = {name: dict.fromkeys(self.ranks, 0) for name in self.stored}
        for task in self.tasks:
            for write in task.writes:
                size = self.stored[write.value].written(write.box).nbytes
                counts[write.value][task.cell] += size
        return {
            name: Traffic(tuple(each.values()), prod(self.stored[name].shape) * self.itemsize(name))
            for name, each in counts.items()
        }

    @cached_property
    def moved_bytes(self) -> int:
        """The bytes that all cells receive in these tasks, without those of loops and branches."""
        return sum(sum(self.moved(task).values()) for task in self.tasks)

    @cached_property
    def received(self) -> Point:
        """The bytes that each cell receives, in rank order.

        A loop counts as often as it is known to run, or once; of a branch the one that is known to
        be taken, or the one that moves most.
        """
        counts = dict.fromkeys(self.ranks, 0)
        for task in self.tasks:
            counts[task.cell] += sum(self.moved(task).values())
        totals = tuple(counts.values())
        for control in self.controls.values():
            totals = tuple(map(add, totals, self._received_inside(control)))
        return totals

    def _received_inside(self, control: Loop | Branch) -> Point:
        if isinstance(control, Loop):
            trips = 1 if control.trip_count is None else control.trip_count
            tests, body = (self.bodies[n].received for n in (control.condition, control.body))
            return tuple((trips + 1) * a + trips * b for a, b in zip(tests, body))
        branches = [self.bodies[n].received for n in control.bodies]
        return max(branches, key=sum) if control.taken is None else branches[control.taken]

    @cached_property
    def controls(self) -> Mapping[int, Loop | Branch]:
        """The loops and branches, by application."""
        code = self.program.bodies[self.body].instructions
        return {each.definition: each for each in code if isinstance(each, Loop | Branch)}

    @cached_property
    def control_cells(self) -> Mapping[int, Sequence[int]]:
        """The tasks of each loop and branch, by application and in rank order."""
        found: dict[int, list[int]] = {number: [] for number in self.controls}
        for task in sorted(self.tasks, key=lambda task: self.ranks[task.cell]):
            if task.is_control:
                found[task.steps[0].application].append(task.number)
        return found

    @property
    def graph(self) -> Graph:
        """The graph that the tasks compute: that of the plan, or a region of it."""
        found: Graph = self.program.graphs[self.body]
        return found

    def itemsize(self, name: str) -> int:
        """Return the bytes of an element of a value."""
        return itemsize(self.graph.values[name].dtype)

    @cached_property
    def ranks(self) -> Mapping[int, int]:
        """The rank of each device."""
        mesh = self.plan.mesh
        return {device: n for n, device in enumerate(mesh.device_ids or range(mesh.size))}

    def worker(self, cell: int, workers: int) -> int:
        """Return the worker that runs a cell; neighbours share one if cells outnumber workers."""
        return self.ranks[cell] * min(workers, len(self.ranks)) // len(self.ranks)

    def peak(self, workers: int) -> Point:
        """Return the most bytes of arrays that each of some workers has at once.

        That is its largest task and the blocks that lie between tasks. A worker runs one task at a
        time; without a window all blocks may lie there until their last reader.
        """
        if workers not in self._peaks:
            blocks = self._block_memory(workers, self.window)
            self._peaks[workers] = tuple(map(add, blocks, self.largest_tasks(workers)))
        return self._peaks[workers]

    @cached_property
    def _peaks(self) -> dict[int, Point]:
        return {}

    def largest_tasks(self, workers: int) -> Point:
        """Return the bytes of the largest task of each worker."""
        most = [0] * min(workers, len(self.ranks))
        for task in self.tasks:
            worker = self.worker(task.cell, workers)
            if task.is_control:
                control = self.controls[task.steps[0].application]
                size = max(self.bodies[n].peak(workers)[worker] for n in called_bodies(control))
            else:
                size = task_memory(task, self.tasks, self.itemsize, self.extra)
            most[worker] = max(most[worker], size)
        return tuple(most)

    def _block_memory(self, workers: int, window: int | None) -> Point:
        """Return the most bytes of blocks on each worker."""
        ends = [len(self.tasks)] * len(self.tasks)
        for number, freed in enumerate(self.ends):
            for each in freed:
                ends[each] = number
        at = [self.worker(task.cell, workers) for task in self.tasks]
        in_flight = len(self.tasks) if window is None else window
        return block_memory(self.tasks, ends, at, in_flight, min(workers, len(self.ranks)))

    @property
    def _kept_bytes(self) -> int:
        """The most bytes that a task keeps for the next, while that one reads."""
        size = self.itemsize
        kept = (sum(k.box.size * size(k.name) for k in task.keeps) for task in self.tasks)
        return max(kept, default=0)


class _TaskCutting:
    """Cuts the tasks of a body until they fit."""

    def __init__(
        self,
        plan: Plan,
        program: GroupedProgram,
        workers: int,
        memory: int | None,
        extra: int = 0,
    ) -> None:
        self.plan, self.program, self.workers = plan, program, workers
        self.memory, self.extra = memory, extra

    def graph(self, bodies: Mapping[int, TaskGraph]) -> TaskGraph:
        """Return the tasks of the body; `bodies` are those that it calls."""
        program, count, memory = self.program, self.workers, self.memory
        if memory is None:
            builder = TaskGraphBuilder(program, TileChooser(extra=self.extra))
            return self._build(builder, bodies)._keeping(program, count)
        _check_lower_bounds(program, count, memory, self.extra)
        peaks, large = list[int](), list[DoesNotFit]()
        for found in self._tilings(bodies, memory):
            if isinstance(found, DoesNotFit):
                large.append(found)
                continue
            own = found.largest_tasks(count)
            for in_flight in IN_FLIGHT:
                window = in_flight and in_flight * count
                peak = max(map(add, found._block_memory(count, window), own), default=0)
                if peak <= memory:
                    fits = replace(found, window=window)
                    more = fits._keeping(program, count)
                    room = memory - more._kept_bytes
                    return more if max(more.peak(count), default=0) <= room else fits
            peaks.append(peak)
        raise _refusal(peaks, large, memory)

    def _tilings(
        self, bodies: Mapping[int, TaskGraph], memory: int
    ) -> Iterator[TaskGraph | DoesNotFit]:
        """Return the tasks of every tiling that the rules make, large tiles first.

        Which ones there are does not depend on `memory`: it only leaves out those with a task that
        takes more. So what fits some memory is found with more memory, too.
        """
        choosers = [TileChooser(extra=self.extra, rule=rule, memory=memory) for rule in RULES]
        for chooser in choosers[1:]:
            chooser.costs, chooser.dead = choosers[0].costs, choosers[0].dead
        for rungs in targets():
            below = dict.fromkeys(RULES, 1 << 62)
            for target, chooser in product(rungs, choosers):
                if target >= below[chooser.rule]:
                    continue
                chooser.target, chooser.peak = target, 0
                builder = TaskGraphBuilder(self.program, chooser)
                try:
                    graph = self._build(builder, bodies)
                except DoesNotFit as large:
                    yield large
                else:
                    chooser.dead.add(builder.chosen)
                    yield graph
                    if any(_join_bytes(task) + self.extra > memory for task in graph.tasks):
                        chooser.peak = 0  # smaller tiles leave no less to put together
                below[chooser.rule] = chooser.peak  # no target above it changes anything

    def _build(self, builder: TaskGraphBuilder, bodies: Mapping[int, TaskGraph]) -> TaskGraph:
        """Return the tasks in program order or, with storage, depth first."""
        program, (tasks, outputs) = self.program, builder.build()
        stored, inner = FrozenMap(program.outputs.items()), FrozenMap(bodies.items())
        found = TaskGraph(
            *(self.plan, program.program, tasks, outputs, None, self.extra, stored),
            *(program.number, inner),
        )
        if not program.inputs and not program.outputs:
            return found
        order = depth_first(tasks, lambda task: found.worker(task.cell, self.workers))
        place = {number: n for n, number in enumerate(order)}

        def moved(block: BlockRef) -> BlockRef:
            return BlockRef(place[block.task], block.place)

        blocks = tuple(tuple(map(moved, each)) for each in outputs)
        ordered = tuple(tasks[number].renumber(n, moved) for n, number in enumerate(order))
        return replace(found, tasks=ordered, outputs=blocks)


def _graphs_of(
    cutting: Callable[..., _TaskCutting], programs: Sequence[GroupedProgram], memory: int | None
) -> Mapping[int, TaskGraph]:
    """Return the tasks of the bodies of loops and branches, each of which may call later ones."""
    found = dict[int, TaskGraph]()
    for program in reversed(programs):
        found[program.number] = cutting(program, memory=memory).graph(found)
    return found


def _join_bytes(task: Task) -> int:
    """Return the bytes that a task needs at least to put an array together from smaller blocks."""
    outputs = (*task.writes, *task.blocks)
    return max((2 * o.nbytes for o in outputs if isinstance(o.array, Joined)), default=0)


# -- plans that do not fit -------------------------------------------------------------------------


class _LowerBound(NamedTuple):
    """Bytes that some worker needs at once, however tasks are cut."""

    nbytes: int
    why: str
    hint: str


def _check_lower_bounds(program: GroupedProgram, workers: int, memory: int, extra: int) -> None:
    """Refuse a plan that cannot fit, whatever its tiles are."""
    bound = max(_lower_bounds(program, workers), key=lambda bound: bound.nbytes, default=None)
    if bound is not None and bound.nbytes + extra > memory:
        codecs = f" and {extra} B for codecs" if extra else ""
        raise WeftError(
            f"no tiling fits: a worker needs at least {bound.nbytes + extra} B for arrays at once, "
            f"{bound.why}{codecs}, and has {memory} B",
            hint=bound.hint if extra < memory else "give workers more memory",
        )


def _lower_bounds(program: GroupedProgram, workers: int) -> Iterator[_LowerBound]:
    body, buffers = program.body, program.program.buffers
    for name, storage in program.outputs.items():
        shard = tuple(map(min, storage.shard, storage.shape))
        size = prod(shard) * program.itemsize(name)
        yield _LowerBound(size, f"a shard of {name}, {list(shard)}", "make shards smaller")
    for buffer in map(buffers.__getitem__, body.arguments):
        if buffer.value not in program.direct:
            size = max(box.size for box in buffer.layout.boxes()) * buffer.itemsize
            why = f"a cell's part of input {program.graph.values[buffer.value]}"
            yield _LowerBound(size, why, f"store {buffer.value}, or give the plan more cells")
    held, names = [0] * workers, list[str]()
    for buffer in (buffers[number] for number in program.returned if number is not None):
        if buffer.value not in names:
            names.append(buffer.value)
            for rank, box in enumerate(buffer.layout.boxes()):
                held[rank * workers // program.program.cells.size] += box.size * buffer.itemsize
    if names:
        why = f"its part of {' and '.join(names)}, which is returned in memory"
        yield _LowerBound(max(held), why, "store the outputs, or give the plan more cells")


def _refusal(peaks: Sequence[int], large: Sequence[DoesNotFit], memory: int) -> WeftError:
    """Return the error that says which tilings were tried, and what could be done.

    `peaks` are the bytes of those without a task that is too large, `large` the tasks of others.
    """
    if peaks:
        what = (
            f"none of the {len(peaks)} tilings that were tried fits"
            if len(peaks) > 1
            else "the tiling that was tried does not fit"
        )
        return WeftError(
            f"{what}: a worker would need {min(peaks)} B for arrays at once, and has "
            f"{memory} B; blocks lie between tasks",
            hint="give workers more memory, or the plan more cells; smaller shards need less",
        )
    smallest = min((each for each in large if each.nbytes), key=lambda each: each.nbytes)
    whole = "it cannot be cut further: " if smallest.is_smallest else ""
    return WeftError(
        f"no tiling that was tried fits: the smallest task of {smallest.what} takes "
        f"{smallest.nbytes} B, and a worker has {memory} B for arrays",
        hint=f"{whole}give workers more memory",
    )
