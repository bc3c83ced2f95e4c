"""Count what a program does: bytes that each cell receives, reads and writes, and its memory.

Cells in the same situation are counted once: a fold over the instructions looks at one cell of each
class, and values are expanded to all cells on request.

A cell holds a buffer from the instruction that makes it until it is freed. A slice is a view, and
so is the result of a transfer on a cell that receives nothing: views cost nothing, but the
allocation that they lie in stays as long as one of them does. A loop's body and every branch are
counted once; of several branches the one that needs most counts, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from weft.program.instructions import (
    Apply,
    Body,
    Branch,
    Copy,
    Free,
    Instruction,
    Loop,
    Mask,
    Read,
    Slice,
    Transfer,
    Write,
)
from weft.program.layout_rule import CellClasses, Layout
from weft.program.messages import Route, messages
from weft.program.storage import Traffic, first_boxes, joined, read_traffic, write_traffic
from weft.space import ZRange
from weft.values import Point

if TYPE_CHECKING:
    from weft.program.program import Program


@dataclass(frozen=True, slots=True)
class Executed:
    """An instruction that a run executes, and how often."""

    body: int
    place: int
    instruction: Instruction
    times: int
    inside: str
    """The loops and branches around it, as a text."""
    root: int | None
    """The application of the main body in which it happens; None for an output."""


class Counts:
    """The bytes that a program moves and holds, cell by cell."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def classes(self) -> CellClasses:
        """The cells in groups that receive, compute and hold the same."""
        classes = CellClasses(self.program.cells)
        buffers = self.program.buffers
        seen: set[object] = set()
        for layout in {buffer.layout for buffer in buffers}:
            for dim in range(len(layout.shape)):
                classes.refine_spans(layout.rule(dim))
        for instruction in self.program.walk():
            match instruction:
                case Transfer():
                    pair = buffers[instruction.source].layout, buffers[instruction.result].layout
                    if pair not in seen:
                        seen.add(pair)
                        for dim in range(len(pair[0].shape)):
                            classes.refine_spans(pair[1].rule(dim), pair[0].rule(dim))
                case Mask():
                    for digit in instruction.digits:
                        classes.refine_digit(digit)
                case Apply() if instruction.index not in seen:
                    seen.add(instruction.index)
                    for dim in range(len(instruction.index.shape)):
                        classes.refine_spans(instruction.index.rule(dim))
        return classes

    # Bytes that move.

    def received(self, transfer: Transfer) -> list[int]:
        """Return the bytes that a cell of each class receives in a transfer."""
        source, result = (self.program.buffers[n] for n in (transfer.source, transfer.result))
        key = (source.layout, result.layout, transfer.combine, source.itemsize)
        if key not in self._received:
            count = prod([digit.radix for run in transfer.combine for digit in run.digits])
            self._received[key] = [
                received_elements(source.layout, result.layout, count, coordinate) * source.itemsize
                for coordinate in self.classes.representatives
            ]
        return self._received[key]

    @cached_property
    def _received(self) -> dict[object, list[int]]:
        return {}

    def total(self, transfer: Transfer) -> int:
        """Return the bytes that all cells receive in a transfer, which may be to another mesh."""
        source, result = (self.program.buffers[n] for n in (transfer.source, transfer.result))
        if {source.layout.cells, result.layout.cells} != {self.program.cells}:
            found = messages(Route.of(transfer, source.layout, result.layout))
            return sum(m.box.size for m in found if m.sender != m.receiver) * source.itemsize
        return sum(map(int.__mul__, self.received(transfer), self.classes.counts))

    @cached_property
    def received_by_cell(self) -> Point:
        """The bytes that each cell receives in all, in rank order."""
        totals = [0] * len(self.classes.representatives)
        for each in self.executed:
            if isinstance(each.instruction, Transfer):
                more = self.received(each.instruction)
                totals = [total + each.times * n for total, n in zip(totals, more)]
        return self.classes.expand(totals)

    @property
    def executed(self) -> tuple[Executed, ...]:
        """The instructions that a run executes, in order, and how often."""
        return self._run[0]

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions about loops and branches; empty if bytes are exact."""
        return self._run[1]

    @cached_property
    def _run(self) -> tuple[tuple[Executed, ...], tuple[str, ...]]:
        run = _Run(self)
        found = tuple(run.body(0, 1, "", None))
        return found, tuple(dict.fromkeys(run.assumed))

    # Storage.

    @cached_property
    def reads(self) -> dict[str, Traffic]:
        """The bytes that cells read of each stored input of which anything is read."""
        found = {
            name: read_traffic(self.program.storage[name], self._needed(name))
            for name in self._layouts_read
        }
        return {name: traffic for name, traffic in found.items() if traffic.nbytes}

    @cached_property
    def writes(self) -> dict[str, Traffic]:
        """The bytes that cells write of each stored output that is not empty."""
        found = {
            each.storage: write_traffic(
                self.program.storage[each.storage],
                first_boxes(self.program.buffers[each.source].layout.boxes()),
            )
            for each in self.program.main.instructions
            if isinstance(each, Write)
        }
        return {name: traffic for name, traffic in found.items() if traffic.nbytes}

    def read_boxes(self, name: str) -> tuple[tuple[ZRange, ...], ...]:
        """Return for each cell, in rank order, the boxes of a stored input that it reads."""
        storage = self.program.storage[name]
        return tuple(joined(storage, boxes) for boxes in self._needed(name))

    def _needed(self, name: str) -> list[tuple[ZRange, ...]]:
        layouts = self._layouts_read.get(name, [])
        if not layouts:
            return [()] * self.program.cells.size
        return list(zip(*(layout.boxes() for layout in layouts)))

    @cached_property
    def _layouts_read(self) -> dict[str, list[Layout]]:
        """For each stored input, in the order of inputs, the layouts in which it is read."""
        found = {name: list[Layout]() for name in self.program.main.graph.inputs}
        for each in self.program.main.instructions:
            if isinstance(each, Read):
                found[each.storage].append(self.program.buffers[each.result].layout)
        return {name: list(dict.fromkeys(layouts)) for name, layouts in found.items() if layouts}

    # Memory.

    @cached_property
    def peak(self) -> Point:
        """The most bytes that each cell holds, in rank order."""
        found = [
            _Memory(self.program, coordinate).peak_of_main()
            for coordinate in self.classes.representatives
        ]
        return self.classes.expand(found)

    def moments(self, coordinate: Sequence[int]) -> list[Moment]:
        """Return what the cell at a coordinate holds after each instruction that adds to it."""
        memory = _Memory(self.program, coordinate)
        memory.peak_of_main()
        return memory.moments

    def busiest(self, rooms: Sequence[float] | None = None) -> tuple[int, str]:
        """Return the cell that holds most, for the room that it has, and what it is doing then."""
        room = rooms or (0.0,) * self.program.cells.size
        cell = max(range(self.program.cells.size), key=lambda cell: self.peak[cell] - room[cell])
        moments = self.moments(self.program.cells.coordinate(cell))
        return cell, self._text(max(moments, key=lambda moment: moment.held))

    def _text(self, moment: Moment) -> str:
        if moment.place < 0:
            return "inputs"
        body, buffers = self.program.bodies[moment.body], self.program.buffers
        instruction, number = body.instructions[moment.place], body.application_at(moment.place)
        made = "" if number is None else ", ".join(body.graph.applications[number].results)
        match instruction:
            case Read():
                return f"{instruction.storage} read for {made}" if made else "inputs"
            case Transfer() | Mask() | Copy() if number is None:
                return f"output {buffers[instruction.source].value}"
            case Transfer() | Mask() | Copy():
                value = buffers[instruction.source].value
                return f"{value} for {made}" if value != made else f"{value} resharded"
        return made

    def around(self, coordinate: Sequence[int]) -> list[Around]:
        """Return what a cell holds around every application of the main body."""
        memory = _Memory(self.program, coordinate)
        memory.begin()
        main, found = self.program.main, []
        memory.run(0, 0, main.starts[0])
        for start, end in pairwise(main.starts):
            memory.peak = before = memory.now
            code = main.instructions[start:end]
            kernel = next((n for n, each in enumerate(code) if isinstance(each, Apply)), 0)
            memory.run(0, start, start + kernel)
            brought = memory.peak - before
            memory.run(0, start + kernel, end)
            found.append(Around(before, brought, memory.peak))
        return found


def received_elements(before: Layout, after: Layout, count: int, coordinate: Sequence[int]) -> int:
    """Return the elements that a cell receives where `count` parts of each are combined."""
    wanted = held = 1
    for dim in range(len(after.shape)):
        old, new = before.rule(dim), after.rule(dim)
        first, end = old.spans[old.number(coordinate)]
        low, high = new.spans[new.number(coordinate)]
        wanted *= high - low
        held *= max(0, min(high, end) - max(low, first))
    return wanted * count - held


class _Run:
    """The instructions that are executed, through loops and branches."""

    def __init__(self, counts: Counts) -> None:
        self.counts, self.program = counts, counts.program
        self.assumed: list[str] = []

    def body(self, number: int, times: int, inside: str, root: int | None) -> Iterator[Executed]:
        for place, instruction in enumerate(self.program.bodies[number].instructions):
            at = root if number else self.program.main.application_at(place)
            yield Executed(number, place, instruction, times, inside, at)
            match instruction:
                case Loop():
                    yield from self._loop(instruction, times, inside, at)
                case Branch():
                    yield from self._branch(instruction, number, times, inside, at)

    def _loop(self, loop: Loop, times: int, inside: str, root: int | None) -> Iterator[Executed]:
        trips = loop.trip_count
        if trips is None:
            first = self.program.buffers[loop.results[0]].value
            self.assumed.append(f"while {first}: how often it runs is not known, once is counted")
        runs, tests = (1, "?") if trips is None else (trips, str(trips + 1))
        text = f"{inside}condition ×{tests}: "
        yield from self.body(loop.condition, times * (runs + 1), text, root)
        if runs:
            text = f"{inside}while ×{'?' if trips is None else trips}: "
            yield from self.body(loop.body, times * runs, text, root)

    def _branch(
        self, branch: Branch, number: int, times: int, inside: str, root: int | None
    ) -> Iterator[Executed]:
        definition = self.program.bodies[number].graph.applications[branch.definition]
        found = []
        for place, body in enumerate(branch.bodies):
            text = f"{inside}{definition.operator} branch {place}: "
            if branch.taken is None or branch.taken == place:
                found.append(list(self.body(body, times, text, root)))
        moved = [self._moved(each) for each in found]
        totals = [sum(map(int.__mul__, m, self.counts.classes.counts)) for m in moved]
        if len({tuple(m) for m in moved}) > 1:
            self.assumed.append(
                f"{definition.operator} {definition.results[0]}: branches move "
                f"{', '.join(map(str, totals))} B, the most is counted"
            )
        best = max(range(len(found)), key=lambda n: (totals[n], self._work(found[n])))
        yield from found[best]

    def _moved(self, executed: Sequence[Executed]) -> list[int]:
        totals = [0] * len(self.counts.classes.representatives)
        for each in executed:
            if isinstance(each.instruction, Transfer):
                more = self.counts.received(each.instruction)
                totals = [total + each.times * n for total, n in zip(totals, more)]
        return totals

    def _work(self, executed: Sequence[Executed]) -> int:
        """Return how many index points are computed, to tell branches apart that move the same."""
        return sum(
            each.times * prod(each.instruction.index.shape)
            for each in executed
            if isinstance(each.instruction, Apply)
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """The bytes that a cell holds after an instruction that adds to them."""

    body: int
    place: int
    held: int


@dataclass(frozen=True, slots=True)
class Around:
    """The bytes that a cell holds around one application."""

    before: int
    brought: int
    """The additional bytes while its operands are delivered."""
    most: int
    """All that it holds when it holds most."""


class Allocations:
    """The allocations of one cell: buffers lie in them, and one ends with its last buffer."""

    def __init__(self) -> None:
        self.place: dict[int, int] = {}
        """The allocation of every buffer."""
        self.sizes: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.now = self.peak = self.made = 0

    def allocate(self, buffer: int, size: int) -> None:
        """Give a buffer an allocation of its own."""
        self.made += 1
        self.place[buffer], self.sizes[self.made], self.uses[self.made] = self.made, size, 1
        self.now += size
        self.peak = max(self.peak, self.now)

    def alias(self, buffer: int, source: int) -> None:
        """Let a buffer lie where another does."""
        at = self.place[source]
        self.place[buffer] = at
        self.uses[at] += 1

    def free(self, buffer: int) -> None:
        """End a buffer, and its allocation if no other lies there."""
        at = self.place.pop(buffer)
        self.uses[at] -= 1
        if not self.uses[at]:
            self.now -= self.sizes.pop(at)
            del self.uses[at]


class _Memory(Allocations):
    """The allocations of one cell while it executes a program."""

    def __init__(self, program: Program, coordinate: Sequence[int]) -> None:
        super().__init__()
        self.program, self.coordinate = program, coordinate
        self.known: dict[Layout, int] = {}
        self.moments: list[Moment] = []

    def begin(self) -> None:
        """Hold the inputs that are the program's own."""
        main = self.program.main
        for number, buffer in enumerate(main.arguments):
            self.allocate(buffer, self._nbytes(buffer) if number in main.owned else 0)
        self._note(0, -1)

    def peak_of_main(self) -> int:
        """Return the most that is held while the program runs."""
        self.begin()
        self._body(0)
        return self.peak

    def _nbytes(self, number: int) -> int:
        buffer = self.program.buffers[number]
        layout = buffer.layout
        if layout not in self.known:
            size = 1
            for dim in range(len(layout.shape)):
                rule = layout.rule(dim)
                low, high = rule.spans[rule.number(self.coordinate)]
                size *= high - low
            self.known[layout] = size
        return self.known[layout] * buffer.itemsize

    def _note(self, body: int, place: int) -> None:
        self.moments.append(Moment(body, place, self.now))

    def _allocate(self, buffer: int) -> None:
        self.allocate(buffer, self._nbytes(buffer))

    def _body(self, number: int) -> None:
        self.run(number, 0, len(self.program.bodies[number].instructions))

    def run(self, number: int, start: int, end: int) -> None:
        """Execute the instructions of a body from one place to another."""
        code = self.program.bodies[number].instructions
        for place in range(start, end):
            instruction = code[place]
            self._instruction(instruction)
            if not isinstance(instruction, Free | Slice | Write):
                self._note(number, place)
            if isinstance(instruction, Copy):
                for buffer in instruction.frees:
                    self.free(buffer)

    def _instruction(self, instruction: Instruction) -> None:
        match instruction:
            case Transfer() | Slice() | Mask():
                if self._is_fresh(instruction):
                    self._allocate(instruction.result)
                else:
                    self.alias(instruction.result, instruction.source)
            case Copy():
                self._copy(instruction)
            case Apply():
                for buffer in instruction.results:
                    self._allocate(buffer)
            case Read():
                self._allocate(instruction.result)
            case Free():
                for buffer in instruction.buffers:
                    self.free(buffer)
            case Loop():
                self._loop(instruction)
            case Branch():
                self._branch(instruction)

    def _is_fresh(self, instruction: Transfer | Slice | Mask) -> bool:
        """Whether the cell makes an array, and not a view of what it has."""
        match instruction:
            case Transfer():
                count = prod([d.radix for run in instruction.combine for d in run.digits])
                before, after = (
                    self.program.buffers[n].layout for n in (instruction.source, instruction.result)
                )
                return received_elements(before, after, count, self.coordinate) > 0
            case Mask():
                return any(digit.of(self.coordinate) for digit in instruction.digits)
        return False

    def _copy(self, copy: Copy) -> None:
        at = self.place[copy.source]
        ending = {copy.source, *copy.frees}
        others = self.uses[at] - sum(self.place.get(buffer) == at for buffer in ending)
        fills = self.sizes[at] == self._nbytes(copy.result)
        if copy.source in copy.frees and not others and fills:
            self.alias(copy.result, copy.source)
        else:
            self._allocate(copy.result)

    def _call(self, body: Body, number: int, given: Sequence[tuple[int, int]]) -> None:
        """Run a body on buffers of the caller; those that it owns end with it."""
        for argument, buffer in given:
            if argument in body.owned:
                self.place[body.arguments[argument]] = self.place.pop(buffer)
            else:
                self.alias(body.arguments[argument], buffer)
        self._body(number)

    def _return(self, body: Body, results: Sequence[int]) -> None:
        """Let what a body returns be buffers of the caller, and end what it borrowed."""
        for buffer, result in zip(body.results, results):
            self.alias(result, buffer)
        for buffer in dict.fromkeys(body.results):
            if buffer not in body.arguments:
                self.free(buffer)
        for argument, buffer in enumerate(body.arguments):
            if argument not in body.owned or buffer in self.place:
                self.free(buffer)

    def _bind(
        self, body: Body, given: Sequence[int], captured: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return which argument of a body is which buffer of the caller."""
        return list(enumerate(bind(self.program, body, given, captured)))

    def _loop(self, loop: Loop) -> None:
        condition, body = self.program.bodies[loop.condition], self.program.bodies[loop.body]
        self._call(condition, loop.condition, self._bind(condition, loop.carried, loop.captured[0]))
        self._return(condition, ())
        given = self._bind(body, loop.carried, loop.captured[1])
        self._call(body, loop.body, given)
        self._return(body, loop.results)
        for n in loop.donated:
            if loop.carried[n] in self.place:
                self.free(loop.carried[n])

    def _branch(self, branch: Branch) -> None:
        before = (dict(self.place), dict(self.sizes), dict(self.uses), self.now)
        for number, captured in zip(branch.bodies, branch.captured):
            self.place, self.sizes, self.uses = (dict(each) for each in before[:3])
            self.now = before[3]
            body = self.program.bodies[number]
            self._call(body, number, self._bind(body, (), captured))
            self._return(body, branch.results)


def bind(program: Program, body: Body, given: Sequence[int], captured: Sequence[int]) -> list[int]:
    """Return the buffers of the caller that a body takes, argument by argument.

    Arguments that have the name of a captured value are captured; the others are given, in order.
    """
    names = {program.buffers[buffer].value for buffer in captured}
    own, theirs = iter(given), iter(captured)
    return [next(theirs if name in names else own) for name in body.graph.inputs]
