"""Build the tasks of a program, group by group, in program order.

Every buffer of the program becomes one located array per cell: an expression over blocks and the
box that it holds. Slices and masks only change expressions. A transfer makes a block for each part
that leaves a cell, and an expression that joins and combines them where they arrive. A copy makes a
block where the cell has none. Each cell runs a group as one task per tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from weft.lang import Application
from weft.program import Branch, Copy, Loop, Mask, Route, Slice, Transfer
from weft.program.messages import Piece, Slices, assemblies
from weft.runtime.cluster.groups import (
    GroupedProgram,
    TaskGroup,
    first_holders,
    operand_buffers,
)
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
    TaskOutput,
    TaskStep,
    join_pieces,
    slice_array,
    slice_shape,
)
from weft.runtime.cluster.tiling import Cuts, Targets, TileShape, tile_shape, tiles
from weft.space import ZRange
from weft.values import Point

FAN_IN = 8
"""This many parts are combined at once; more are combined in a tree."""


class LocatedArray(NamedTuple):
    """An array that a cell has: a box of a value."""

    array: ArrayExpr
    box: ZRange

    def take(self, box: ZRange) -> ArrayExpr:
        """Return a box of the array."""
        if self.box == box:
            return self.array
        start = box.start if box.is_empty else self.box.start
        return slice_array(self.array, box.slices(start))


PlacedArrays: TypeAlias = Mapping[int, LocatedArray]
"""The array of each cell, by device."""

GroupInputs: TypeAlias = Mapping[int, PlacedArrays]
"""The buffers that a group takes from other tasks."""


class MoveCause(NamedTuple):
    """The operator for which a value is moved, and the value."""

    operator: str
    value: str


class TaskList:
    """Tasks in order, and the verbs that add one."""

    def __init__(self, program: GroupedProgram) -> None:
        self.program, self.tasks = program, list[Task]()

    def add(
        self,
        kind: str,
        cell: int,
        operator: str,
        box: ZRange,
        steps: tuple[TaskStep, ...] = (),
        blocks: tuple[TaskOutput, ...] = (),
        writes: tuple[TaskOutput, ...] = (),
    ) -> int:
        """Add a task; return its number."""
        number = len(self.tasks)
        self.tasks.append(Task(number, kind, cell, operator, box, steps, blocks, writes))
        return number

    def output(self, name: str, located: LocatedArray) -> TaskOutput:
        """Return an array of a value as what a task hands out."""
        return TaskOutput(name, located.box, self.nbytes(name, located.box), located.array)

    def nbytes(self, name: str, box: ZRange) -> int:
        """Return the bytes of a box of a value."""
        return box.size * self.program.itemsize(name)

    def block(self, kind: str, cell: int, cause: MoveCause, located: LocatedArray) -> BlockRef:
        """Return the array as a block on a cell, which it may be already."""
        array = located.array
        if isinstance(array, BlockRef) and self.tasks[array.task].cell == cell:
            return array
        return self._copy(kind, cell, cause, located)

    def send(self, cell: int, cause: MoveCause, located: LocatedArray) -> BlockRef:
        """Return a part as a block of its own, so that nothing else moves with it."""
        array = located.array
        if isinstance(array, BlockRef) and len(self.tasks[array.task].blocks) == 1:
            return array
        return self._copy("send", cell, cause, located)

    def _copy(self, kind: str, cell: int, cause: MoveCause, located: LocatedArray) -> BlockRef:
        blocks = (self.output(cause.value, located),)
        return BlockRef(self.add(kind, cell, cause.operator, located.box, blocks=blocks))

    def keep(self, placed: PlacedArrays, cause: MoveCause) -> PlacedArrays:
        """Return arrays that consist of blocks on their own cells, or views of such."""
        return {
            cell: located
            if self._is_local(located.array, cell)
            else LocatedArray(self.block("keep", cell, cause, located), located.box)
            for cell, located in placed.items()
        }

    def _is_local(self, array: ArrayExpr, cell: int) -> bool:
        """Return whether a cell has an array in its blocks, with nothing to compute or receive."""
        match array:
            case BlockRef(task=task):
                return self.tasks[task].cell == cell
            case Sliced(of=inner) | Masked(of=inner):
                return self._is_local(inner, cell)
            case Joined(pieces=pieces):
                return all(self._is_local(piece, cell) for _, piece in pieces)
        return False

    def combine(
        self,
        parts: Sequence[tuple[Point, ArrayExpr]],
        monoids: Sequence[str],
        box: ZRange,
        cause: MoveCause,
        cell: int,
    ) -> ArrayExpr:
        """Return numbered parts combined on a cell, along the last number first."""
        if len(parts) == 1:
            return parts[0][1]
        below = [
            self.combine([(n[1:], array) for n, array in group], monoids[1:], box, cause, cell)
            for _, group in groupby(parts, key=lambda part: part[0][:1])
        ]
        while len(below) > FAN_IN:
            some = [below[n : n + FAN_IN] for n in range(0, len(below), FAN_IN)]
            arrays = [LocatedArray(Combined(monoids[0], tuple(each)), box) for each in some]
            below = [self.block("combine", cell, cause, located) for located in arrays]
        return Combined(monoids[0], tuple(below)) if len(below) > 1 else below[0]

    def join(self, name: str, box: ZRange, parts: Sequence[LocatedArray]) -> LocatedArray:
        """Return arrays that cover a box as one."""
        pieces = tuple((part.box.slices(box.start), part.array) for part in parts)
        dtype = self.program.graph.values[name].dtype
        return LocatedArray(join_pieces(box.shape, dtype, pieces), box)


class TileWork(NamedTuple):
    """The work of a group in one task."""

    steps: tuple[TaskStep, ...]
    results: Mapping[str, LocatedArray]
    """The values that it computes for others."""
    partial: frozenset[str]
    """The values of which it computes a part of a reduction."""


ChooseCuts: TypeAlias = Callable[["TaskGraphBuilder", TaskGroup, GroupInputs], Cuts]
"""Returns how a group is cut into tiles."""


class TaskGraphBuilder:
    """Builds the tasks of a program, group by group, in program order."""

    def __init__(self, program: GroupedProgram, choose_cuts: ChooseCuts) -> None:
        self.program, self.choose_cuts = program, choose_cuts
        self.list = TaskList(program)
        self.placed = dict[int, PlacedArrays]()
        """The arrays of each buffer."""
        self.chosen: tuple[TileShape, ...] = ()
        """How the groups so far are cut."""
        cells = program.program.cells
        self.cells: Sequence[int] = cells.devices or range(cells.size)
        self.ranks = {cell: rank for rank, cell in enumerate(self.cells)}

    def build(self) -> tuple[tuple[Task, ...], tuple[tuple[BlockRef, ...], ...]]:
        """Return the tasks in program order, and the blocks of every output in rank order."""
        body = self.program.body
        for buffer in body.arguments:
            if self._value(buffer) not in self.program.direct:
                self._place(buffer)
        for group in self.program.groups:
            if group.applications[0] in self.program.controls:
                self._control(self.program.controls[group.applications[0]])
                self.chosen += ((),)
                continue
            inputs = self.group_inputs(group)
            cuts = self.choose_cuts(self, group, inputs)
            self.chosen += (tile_shape(cuts),)
            self._build(group, inputs, cuts)
        outputs = tuple(() if n is None else self._output(n) for n in self.program.returned)
        for name in self.program.outputs:
            number = self.program.maker.get(name, -1)
            if name not in self.program.stored_only or number not in self.program.applies:
                self._store(name, self.program.kept[name])
        return tuple(self.list.tasks), outputs

    def _value(self, buffer: int) -> str:
        return self.program.program.buffers[buffer].value

    def _boxes(self, buffer: int) -> list[ZRange]:
        return self.program.program.buffers[buffer].layout.boxes()

    def _output(self, buffer: int) -> tuple[BlockRef, ...]:
        """Return the blocks of an output."""
        cause, placed = MoveCause("output", self._value(buffer)), self._place(buffer)
        return tuple(self.list.block("keep", cell, cause, placed[cell]) for cell in self.cells)

    # -- one value in another layout

    def _place(self, buffer: int) -> PlacedArrays:
        """Return the arrays of a buffer; the moves that make it happen on the first call."""
        if buffer not in self.placed:
            self.placed[buffer] = self._move(buffer)
        return self.placed[buffer]

    def _move(self, buffer: int) -> PlacedArrays:
        boxes, value = self._boxes(buffer), self._value(buffer)
        move = self.program.moves.get(buffer)
        if move is None:
            cause = MoveCause("input", value)
            arrays = [LocatedArray(InputBox(value, box), box) for box in boxes]
            return {
                cell: LocatedArray(self.list.block("read", cell, cause, array), array.box)
                for cell, array in zip(self.cells, arrays)
            }
        cause, source = MoveCause(self.program.operators[buffer], value), self._place(move.source)
        match move:
            case Copy():
                return self.list.keep(source, cause)
            case Slice():
                return {
                    cell: LocatedArray(source[cell].take(box), box)
                    for cell, box in zip(self.cells, boxes)
                }
            case Mask(monoid=monoid):
                return {
                    cell: LocatedArray(Masked(array, monoid), box)
                    if self.is_masked(move, self.ranks[cell])
                    else LocatedArray(array, box)
                    for cell, (array, box) in source.items()
                }
            case Transfer():
                return self._transfer(move, self.list.keep(source, cause), boxes, cause)

    def is_masked(self, mask: Mask, rank: int) -> bool:
        """Return whether a mask replaces the array of a cell."""
        at = self.program.program.cells.coordinate(rank)
        return any(digit.of(at) for digit in mask.digits)

    def _transfer(
        self, transfer: Transfer, source: PlacedArrays, boxes: Sequence[ZRange], cause: MoveCause
    ) -> PlacedArrays:
        """Return what the cells have after a transfer: pieces that are joined where they are read.

        A part that leaves a cell is a block of its own, which many may read.
        """
        buffers = self.program.program.buffers
        before, after = buffers[transfer.source].layout, buffers[transfer.result].layout
        monoids = [run.monoid for run in transfer.combine]
        dtype, sent = buffers[transfer.source].dtype, dict[object, ArrayExpr]()

        def part(cell: int, sender: int, where: Slices) -> ArrayExpr:
            located = source[sender]
            box = _inside(located.box, where)
            array = located.array if box.shape == located.box.shape else located.take(box)
            if sender == cell:
                return array
            key = (sender, box)
            if key not in sent:
                sent[key] = self.list.send(sender, cause, LocatedArray(array, box))
            return sent[key]

        def combined(cell: int, piece: Piece) -> ArrayExpr:
            _, sender, where = piece.parts[0]
            parts = [(number, part(cell, at, inside)) for number, at, inside in piece.parts]
            box = _inside(source[sender].box, where)
            return self.list.combine(parts, monoids, box, cause, cell)

        found = dict[int, LocatedArray]()
        for assembly in assemblies(Route.of(transfer, before, after)):
            cell = assembly.device
            pieces = tuple((piece.into, combined(cell, piece)) for piece in assembly.pieces)
            array = join_pieces(assembly.shape, dtype, pieces)
            found[cell] = LocatedArray(array, boxes[self.ranks[cell]])
        return found

    # -- groups

    def group_inputs(self, group: TaskGroup) -> GroupInputs:
        """Return the buffers that a group needs from other tasks."""
        return {
            buffer: self._place(buffer)
            for number in group.applications
            for place, buffer in enumerate(self.program.applies[number].operands)
            if (number, place) not in group.inner and self._value(buffer) not in self.program.direct
        }

    def _control(self, control: Loop | Branch) -> None:
        """Add what each cell gives to a loop or a branch, and has of its results."""
        number, results = control.definition, control.results
        operator, buffers = (
            self.program.graph.applications[number].operator,
            operand_buffers(control),
        )
        given = {buffer: self._place(buffer) for buffer in dict.fromkeys(buffers)}
        found: dict[int, dict[int, LocatedArray]] = {buffer: {} for buffer in results}
        kept = {
            (buffer, cell): self.list.block(
                "keep", cell, MoveCause(operator, self._value(buffer)), given[buffer][cell]
            )
            for buffer in given
            for cell in self.cells
        }
        for rank, cell in enumerate(self.cells):
            operands = [kept[buffer, cell] for buffer in buffers]
            arrays = tuple(dict.fromkeys(operands))
            boxes = [self._boxes(buffer)[rank] for buffer in results]
            blocks = tuple(
                self.list.output(self._value(buffer), LocatedArray(StepResult(0, place), box))
                for place, (buffer, box) in enumerate(zip(results, boxes))
            )
            sizes = tuple(block.nbytes for block in blocks)
            places = tuple(map(arrays.index, operands))
            step = TaskStep(number, ZRange.of(()), arrays, places, sizes, 0, self.program.number)
            kind = "loop" if isinstance(control, Loop) else "branch"
            task = self.list.add(kind, cell, operator, ZRange.of(()), (step,), blocks)
            for place, (buffer, box) in enumerate(zip(results, boxes)):
                found[buffer][cell] = LocatedArray(BlockRef(task, place), box)
        self.placed |= found
        for buffer in results:
            self._place(self.program.kept[self._value(buffer)])

    def _build(self, group: TaskGroup, inputs: GroupInputs, cuts: Cuts) -> None:
        """Add the tasks of a group, then those that keep its results or write them to storage."""
        results: dict[str, dict[int, list[LocatedArray]]] = {name: {} for name in group.wanted}
        for rank, cell in enumerate(self.cells):
            for targets in self.tiles(group, rank, cuts):
                work = self.work(group, inputs, rank, targets)
                for name, located in self._add(rank, work).items():
                    results[name].setdefault(cell, []).append(located)
        for number in group.applications:
            for buffer in self.program.applies[number].results:
                if (name := self._value(buffer)) in results:
                    self._keep(number, name, buffer, results[name])

    def _keep(
        self, number: int, name: str, buffer: int, tiles: Mapping[int, Sequence[LocatedArray]]
    ) -> None:
        """Put the tiles of a result together, and store it or keep it as others read it."""
        application, boxes = self.program.graph.applications[number], self._boxes(buffer)
        reduced = self.program.graph.signatures[number].notation.reduced
        cause, monoid = MoveCause(application.operator, name), next(iter(reduced.values()), "sum")
        self.placed[buffer] = {
            cell: self._join_tiles(cell, cause, boxes[self.ranks[cell]], parts, monoid)
            for cell, parts in tiles.items()
        }
        if name in self.program.stored_only:
            self._store(name, buffer)
        else:
            self._place(self.program.kept[name])

    def _join_tiles(
        self, cell: int, cause: MoveCause, box: ZRange, tiles: Sequence[LocatedArray], monoid: str
    ) -> LocatedArray:
        """Return what a cell has of a value from its tiles: parts of one box are combined."""
        found: dict[ZRange, list[ArrayExpr]] = {}
        for tile in tiles:
            found.setdefault(tile.box, []).append(tile.array)
        joined = []
        for inner, arrays in found.items():
            parts = [((n,), array) for n, array in enumerate(arrays)]
            array = self.list.combine(parts, [monoid], inner, cause, cell)
            if len(arrays) > 1:
                array = self.list.block("combine", cell, cause, LocatedArray(array, inner))
            joined.append(LocatedArray(array, inner))
        if len(joined) == 1 and joined[0].box == box:
            return joined[0]
        return self.list.join(cause.value, box, joined)

    def tiles(self, group: TaskGroup, rank: int, cuts: Cuts) -> Iterator[Targets]:
        """Return what a cell computes of a group, tile by tile."""
        signatures = self.program.graph.signatures
        ends = [
            max(list(signatures[n].sizes.values())[d] for n, d in dim.dims.items())
            for dim, _ in cuts
        ]
        return tiles(self.targets(group, rank), cuts, ends)

    def targets(self, group: TaskGroup, rank: int) -> Targets:
        """Return the last applications of a group that a cell has to run, with its own boxes."""
        program = self.program
        return {
            number: program.boxes[number][rank]
            for number in group.applications
            if number in group.ends
            and any(program.computes(n, rank) for n in program.graph.applications[number].results)
        }

    def _add(self, rank: int, work: TileWork) -> Mapping[str, LocatedArray]:
        """Add the task of a tile; return its results as blocks."""
        if not work.steps:
            return {}
        names = [self.program.graph.applications[s.application].operator for s in work.steps]
        blocks, writes = self.split_outputs(rank, work)
        task = self.list.add(
            *("compute", self.cells[rank], " + ".join(dict.fromkeys(names)), work.steps[-1].box),
            *(work.steps, blocks, writes),
        )
        return {b.value: LocatedArray(BlockRef(task, n), b.box) for n, b in enumerate(blocks)}

    def split_outputs(
        self, rank: int, work: TileWork
    ) -> tuple[tuple[TaskOutput, ...], tuple[TaskOutput, ...]]:
        """Return the blocks that a tile makes for others, and the shards that it writes itself."""
        blocks, writes = list[TaskOutput](), list[TaskOutput]()
        for name, located in work.results.items():
            output = self.list.output(name, located)
            is_written = name not in work.partial and self.program.writes(name, located.box, rank)
            if is_written:
                writes.append(output)
            if not is_written or name not in self.program.stored_only:
                blocks.append(output)
        return tuple(blocks), tuple(writes)

    def work(self, group: TaskGroup, inputs: GroupInputs, rank: int, targets: Targets) -> TileWork:
        """Return the steps of a cell for a tile of a group."""
        return TileLowering(self, group, inputs, rank, targets).work()

    # -- storage

    def _store(self, name: str, buffer: int) -> None:
        """Add tasks that write all shards of a value that are not written yet.

        A shard is put together on one of the cells that have a piece of it.
        """
        storage, placed = self.program.outputs[name], self.placed.get(buffer)
        written = (w.box for task in self.list.tasks for w in task.writes if w.value == name)
        done = {shard.start for box in written for shard in storage.shards(box)}
        for number, box in enumerate(storage.shards()):
            if box.start in done:
                continue
            if placed is None:  # an input, which lies in storage itself
                cell = self.cells[number % len(self.cells)]
                located = LocatedArray(InputBox(name, box), box)
            else:
                cell, located = self._shard(name, buffer, number, box, placed)
            self.list.add("write", cell, "output", box, writes=(self.list.output(name, located),))

    def _shard(
        self, name: str, buffer: int, number: int, box: ZRange, placed: PlacedArrays
    ) -> tuple[int, LocatedArray]:
        layout = self.program.program.buffers[buffer].layout
        is_first = first_holders(layout)
        found: dict[ZRange, list[tuple[Point, int, ArrayExpr]]] = {}
        for cell, located in placed.items():
            rank, piece = self.ranks[cell], located.box & box
            if piece and is_first[rank]:
                part = layout.part(layout.cells.coordinate(rank))
                found.setdefault(piece, []).append((part, cell, located.take(piece)))
        cells = [cell for parts in found.values() for _, cell, _ in parts]
        at = cells[number % len(cells)]
        cause, monoids = MoveCause("output", name), [monoid for _, monoid in layout.parts]
        pieces = []
        for piece, parts in found.items():
            arrays = [
                (n, a if cell == at else self.list.send(cell, cause, LocatedArray(a, piece)))
                for n, cell, a in sorted(parts, key=lambda part: part[0])
            ]
            array = self.list.combine(arrays, monoids, piece, cause, at)
            pieces.append(LocatedArray(array, piece))
        return at, self.list.join(name, box, pieces)


class TileLowering:
    """The steps of one cell for one tile of a group, and where their operands come from."""

    def __init__(
        self,
        builder: TaskGraphBuilder,
        group: TaskGroup,
        inputs: GroupInputs,
        rank: int,
        targets: Targets,
    ) -> None:
        self.builder, self.program, self.group = builder, builder.program, group
        self.inputs, self.rank, self.targets = inputs, rank, targets
        self.boxes = self.program.boxes_for(group, rank, targets)
        self.results = dict[str, LocatedArray]()
        self.direct = dict(self._direct())

    def work(self) -> TileWork:
        """Return the steps in order, and what others may have of their results."""
        steps = list[TaskStep]()
        for number, box in self.boxes.items():
            block, names = self.program.block(number, box), self._application(number).results
            operands = [self._operand(number, *pair) for pair in enumerate(block.operands)]
            arrays = [array for n, array in enumerate(operands) if array not in operands[:n]]
            sizes = tuple(map(self.builder.list.nbytes, names, block.results))
            places = tuple(map(arrays.index, operands))
            workspace = self._workspace(number, box)
            body = self.program.number
            steps.append(TaskStep(number, box, tuple(arrays), places, sizes, workspace, body))
            for place, (name, image) in enumerate(zip(names, block.results)):
                self.results[name] = LocatedArray(StepResult(len(steps) - 1, place), image)
        partial = (n for n, box in self.targets.items() if self._is_partial(n, box))
        values = (name for n in partial for name in self._application(n).results)
        return TileWork(tuple(steps), dict(self._wanted()), frozenset(values))

    def _application(self, number: int) -> Application:
        return self.program.graph.applications[number]

    def _workspace(self, number: int, box: ZRange) -> int:
        application = self._application(number)
        operator = self.program.graph.operators.find(application.operator)
        names = (*application.operands, *application.results)
        block = self.program.block(number, box)
        return operator.workspace_bytes(block, max(map(self.program.itemsize, names), default=1))

    def _reduced(self, number: int) -> list[int]:
        """Return the index dimensions that an application reduces."""
        signature = self.program.graph.signatures[number]
        return list(map(list(signature.sizes).index, signature.reduced))

    def _is_partial(self, number: int, box: ZRange) -> bool:
        own = self.program.boxes[number][self.rank]
        return any(box.shape[dim] != own.shape[dim] for dim in self._reduced(number))

    def _wanted(self) -> Iterator[tuple[str, LocatedArray]]:
        """Return what others need of the tile; empty boxes lie where the program says."""
        program, buffers = self.program, self.program.program.buffers
        for number, target in self.targets.items():
            at = program.program.cells.coordinate(self.rank)
            is_own = target == program.boxes[number][self.rank]
            images = program.block(number, target).results
            for image, buffer in zip(images, program.applies[number].results):
                name, box = buffers[buffer].value, buffers[buffer].layout.box(at)
                if name in self.group.wanted and program.computes(name, self.rank):
                    box = box if is_own else image
                    yield name, LocatedArray(self.results[name].take(box), box)

    def _direct(self) -> Iterator[tuple[str, LocatedArray]]:
        """Return for every input that is read box by box what all steps need of it."""
        found: dict[str, ZRange] = {}
        for number, box in self.boxes.items() if self.program.direct else ():
            names = self._application(number).operands
            for name, need in zip(names, self.program.block(number, box).operands):
                if name in self.program.direct:
                    found[name] = found[name].hull(need) if name in found else need
        return ((name, LocatedArray(InputBox(name, box), box)) for name, box in found.items())

    def _operand(self, number: int, place: int, need: ZRange) -> ArrayExpr:
        buffer = self.program.applies[number].operands[place]
        name = self._application(number).operands[place]
        monoid = ""
        if buffer in self.inputs and (number, place) not in self.group.inner:
            array = self.inputs[buffer][self.builder.cells[self.rank]].take(need)
        else:
            source = self.direct if name in self.direct else self.results
            array = source[name].take(need)
            monoid = self._mask(buffer)
        monoid = monoid or self._mask_once(number, place)
        return Masked(array, monoid) if monoid else array

    def _mask(self, buffer: int) -> str:
        """Return the monoid by which the program masks a buffer on this cell, or nothing."""
        masks = (move for move in self.program.moves_to(buffer) if isinstance(move, Mask))
        masking = (mask.monoid for mask in masks if self.builder.is_masked(mask, self.rank))
        return next(masking, "")

    def _mask_once(self, number: int, place: int) -> str:
        """Return the monoid by which an operand is masked that counts in the first tile only."""
        notation = self.program.graph.signatures[number].notation
        if place not in notation.once:
            return ""
        box, own = self.boxes[number], self.program.boxes[number][self.rank]
        is_first = all(box.start[dim] == own.start[dim] for dim in self._reduced(number))
        return "" if is_first else next(iter(notation.reduced.values()))


def _inside(box: ZRange, where: Slices) -> ZRange:
    """Return the box of a slice of what lies in a box."""
    return ZRange.of(slice_shape(where), [low + part.start for low, part in zip(box.start, where)])
