"""Execute a program on the cells of this process: all of them side by side, or one rank.

The executor interprets the instructions that `weft.program` verifies and counts, one after another.
How boxes go between cells is given to it: by copies where all cells are here, by messages and
collectives where each is a rank of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from weft.errors import WeftError
from weft.lang import Block, Operator
from weft.lang.monoid import identities
from weft.plan import Reshard
from weft.plan.lower import reshard_program, sharding_of
from weft.program import (
    Apply,
    Branch,
    Buffer,
    Copy,
    Free,
    Layout,
    Loop,
    Mask,
    Program,
    Read,
    Route,
    Slice,
    Transfer,
    Write,
)
from weft.program.count import Allocations, bind
from weft.program.storage import first_boxes
from weft.runtime.arrays import Array, copied
from weft.runtime.blocks import each, run_block
from weft.runtime.communication_log import Communication, Movement, active
from weft.runtime.exchange import Held, MovedBytes, copy
from weft.space import Digit, weigh
from weft.values import Point

Shards = Sequence[Array]
"""The arrays of the cells of this process, in rank order."""


class Cause(NamedTuple):
    """For which operator something moves, and what messages call it."""

    operator: str
    tensor: object
    """Made a text only where a message needs one."""

    def __str__(self) -> str:
        return f"{self.tensor} for {self.operator}"


Carry = Callable[[Any, Held, Route, str, Cause], tuple[Held, MovedBytes]]
"""Brings boxes from cell to cell: the arrays here after a transfer, and what it moved."""


@dataclass(frozen=True, slots=True)
class Here:
    """The cells that run in this process, and the function that brings boxes to them."""

    device: int | None = None
    """The only device that is here; None where all of them are."""
    carry: Carry = copy

    def devices(self, layout: Layout) -> Sequence[int]:
        """Return the devices of a layout that are here, in rank order."""
        if self.device is not None:
            return (self.device,)
        return layout.cells.devices or range(layout.cells.size)

    def ranks(self, layout: Layout) -> Sequence[int]:
        """Return the ranks of the cells that are here."""
        if self.device is None:
            return range(layout.cells.size)
        devices = layout.cells.devices
        return (self.device if devices is None else devices.index(self.device),)


ALL = Here()
"""All cells in one process."""


def execute(
    program: Program,
    xp: Any,
    inputs: Iterable[Shards],
    here: Here = ALL,
    cause: Cause | None = None,
    counts_memory: bool = True,
    storage: Mapping[str, Any] | None = None,
) -> list[Shards]:
    """Run a program; the inputs lie as it says, in the order of its arguments.

    `storage` has the arrays that the program reads and writes: whatever gives and takes boxes when
    it is indexed with slices.

    What no later instruction reads is dropped, and so are the inputs that are the program's own.
    Messages say that something moves for the `cause`, or else for an application of the program.
    """
    missing = program.storage.keys() - (storage or {}).keys()
    if missing:
        raise WeftError(f"the program reads or writes {', '.join(sorted(missing))} in storage")
    executor = _Executor(program, xp, here, cause, counts_memory, storage or {})
    given = list(inputs)
    held = dict(zip(program.main.arguments, given))
    del given
    memory = executor.memory
    if memory is not None:
        for number, buffer in enumerate(program.main.arguments):
            counted = number in program.main.owned
            memory.allocate(buffer, executor.by_device(buffer, held), counted)
    results = executor.run(0, held)
    if memory is not None:
        for ledger in executor.ledgers:
            ledger.reach(memory.most)
    return [results[buffer] for buffer in program.main.results]


def move(
    xp: Any, shards: Shards, reshard: Reshard, cause: Cause, here: Here = ALL
) -> Sequence[Array]:
    """Return the shards after a reshard, maybe as views of those before, which others hold."""
    if not reshard.steps:
        return shards
    (made,) = execute(reshard_program(reshard), xp, [shards], here, cause)
    return made


_KERNELS: WeakKeyDictionary[Program, dict[tuple[object, ...], Kernel]] = WeakKeyDictionary()


@dataclass(slots=True)
class Kernel:
    """An application on the cells that are here, with everything worked out that runs share."""

    operator: Operator
    blocks: list[Block]
    leaders: Point | None
    """For each cell the first one that computes the same from the same; None if all differ."""
    work: int
    """The points of the largest box."""

    def run(self, operands: Sequence[Shards]) -> list[list[Array]]:
        """Return the shards of every result."""

        def compute(place: int) -> tuple[Array, ...]:
            return run_block(
                self.operator, self.blocks[place], [shards[place] for shards in operands]
            )

        if self.leaders is None:
            made = list(each(compute, range(len(self.blocks)), self.work))
        else:
            leading = [place for place, leader in enumerate(self.leaders) if leader == place]
            found = dict(zip(leading, each(compute, leading, self.work)))
            made = [found[leader] for leader in self.leaders]
        return [list(shards) for shards in zip(*made)]


def kernel_of(program: Program, body: int, apply: Apply, xp: Any, here: Here = ALL) -> Kernel:
    """Return the kernel of an instruction, prepared once."""
    known = _KERNELS.setdefault(program, {})
    key = (body, apply.results, id(xp), here.device)
    if key not in known:
        known[key] = _prepare(program, body, apply, xp, here)
    return known[key]


def _prepare(program: Program, body: int, apply: Apply, xp: Any, here: Here) -> Kernel:
    graph, index = program.graphs[body], apply.index
    application, signature = (
        graph.applications[apply.definition],
        graph.signatures[apply.definition],
    )
    operator = graph.operators.find(application.operator)
    if application.regions:
        raise WeftError(f"{application.operator} runs graphs of its own, and cannot be run here")
    ranks = here.ranks(index)
    boxes = index.boxes() if here.device is None else [index.box(index.cells.coordinate(ranks[0]))]
    found = {box: Block(xp, signature, application.attributes, box) for box in dict.fromkeys(boxes)}
    layouts = [program.buffers[buffer].layout for buffer in apply.operands]
    leaders = _leaders(index, layouts) if here.device is None else None
    work = max((box.size for box in boxes), default=0)
    return Kernel(operator, [found[box] for box in boxes], leaders, work)


def _leaders(index: Layout, operands: Sequence[Layout]) -> Point | None:
    """Return for each cell the first with the same index box and the same parts of operands."""
    digits = [digit for cut in index.cuts for digit in cut]
    digits += [digit for layout in operands for digit, _ in layout.parts]
    numbered, weight = list[Digit](), 1
    for digit in dict.fromkeys(digit._replace(stride=1) for digit in digits):
        numbered.append(digit._replace(stride=weight))
        weight *= digit.radix
    numbers = weigh(index.cells.shape, numbered)
    first: dict[int, int] = {}
    found = tuple(first.setdefault(number, rank) for rank, number in enumerate(numbers))
    return None if len(first) == len(found) else found


class _Executor:
    def __init__(
        self,
        program: Program,
        xp: Any,
        here: Here,
        cause: Cause | None,
        counts_memory: bool,
        storage: Mapping[str, Any],
    ) -> None:
        self.storage = storage
        self.program, self.xp, self.here, self.cause = program, xp, here, cause
        self.buffers: tuple[Buffer, ...] = program.buffers
        self.ledgers = active()
        self.memory = _MemoryTracker() if self.ledgers and counts_memory else None
        self.rooms: dict[int, list[int]] = {}
        """The bytes of the allocations in which views lie, cell by cell."""
        self.parents: dict[int, tuple[int, list[bool]]] = {}
        """For views the buffer that they are views of, and on which cells they are none."""

    def by_device(self, buffer: int, held: Mapping[int, Shards]) -> Held:
        return dict(zip(self.here.devices(self.buffers[buffer].layout), held[buffer]))

    def run(self, number: int, held: dict[int, Shards]) -> dict[int, Shards]:
        """Execute a body on its arguments; return what is there in the end."""
        body = self.program.bodies[number]
        for place, instruction in enumerate(body.instructions):
            match instruction:
                case Apply():
                    self._apply(number, instruction, held)
                case Free():
                    self._free(instruction.buffers, held)
                case Transfer():
                    self._transfer(number, place, instruction, held)
                case Slice():
                    self._slice(instruction, held)
                case Copy():
                    self._copy(instruction, held)
                case Mask():
                    self._mask(instruction, held)
                case Read():
                    self._read(instruction, held)
                case Write():
                    self._write(instruction, held)
                case Loop():
                    self._loop(instruction, held)
                case Branch():
                    self._branch(number, instruction, held)
        return held

    def _apply(self, number: int, apply: Apply, held: dict[int, Shards]) -> None:
        kernel = kernel_of(self.program, number, apply, self.xp, self.here)
        made = kernel.run([held[buffer] for buffer in apply.operands])
        for buffer, shards in zip(apply.results, made):
            held[buffer] = shards
            if self.memory is not None:
                self.memory.allocate(buffer, self.by_device(buffer, held))

    def _free(self, buffers: Iterable[int], held: dict[int, Shards]) -> None:
        for buffer in buffers:
            del held[buffer]
            self.rooms.pop(buffer, None)
            self.parents.pop(buffer, None)
            if self.memory is not None:
                self.memory.free(buffer)

    # Storage.

    def _read(self, read: Read, held: dict[int, Shards]) -> None:
        layout, array = self.buffers[read.result].layout, self.storage[read.storage]
        boxes = [layout.box(layout.cells.coordinate(rank)) for rank in self.here.ranks(layout)]
        held[read.result] = [copied(self.xp, array[box.slices()]) for box in boxes]
        if self.memory is not None:
            self.memory.allocate(read.result, self.by_device(read.result, held))

    def _write(self, write: Write, held: dict[int, Shards]) -> None:
        layout, array = self.buffers[write.source].layout, self.storage[write.storage]
        boxes = first_boxes(layout.boxes())
        for shard, rank in zip(held[write.source], self.here.ranks(layout)):
            box = boxes[rank]
            if box is not None:
                array[box.slices()] = shard

    # One value in another layout.

    def _derive(
        self, source: int, result: int, shards: Shards, fresh: list[bool], held: dict[int, Shards]
    ) -> None:
        """Hold what was made of a buffer: arrays of its own on the `fresh` cells, or views."""
        there, devices = (self.here.devices(self.buffers[n].layout) for n in (source, result))
        before = dict(zip(there, self._rooms(source, held)))
        held[result] = shards
        self.rooms[result] = [
            int(shard.nbytes) if is_new else before[device]
            for device, shard, is_new in zip(devices, shards, fresh)
        ]
        self.parents[result] = source, fresh
        if self.memory is not None:
            self.memory.derive(result, source, dict(zip(devices, zip(shards, fresh))))

    def _rooms(self, buffer: int, held: Mapping[int, Shards]) -> list[int]:
        if buffer not in self.rooms:
            return [int(shard.nbytes) for shard in held[buffer]]
        return self.rooms[buffer]

    def _transfer(
        self, number: int, place: int, transfer: Transfer, held: dict[int, Shards]
    ) -> None:
        source, result = self.buffers[transfer.source], self.buffers[transfer.result]
        cause = self._cause(number, place, transfer.source)
        if self.ledgers:
            self._allow(number, place, cause)
        route = Route.of(transfer, source.layout, result.layout)
        before = self.by_device(transfer.source, held)
        made, counts = self.here.carry(self.xp, before, route, transfer.kind, cause)
        devices = self.here.devices(result.layout)
        fresh = [bool(counts.received.get(device)) or device not in before for device in devices]
        shards = [made[device] for device in devices]
        self._derive(transfer.source, transfer.result, shards, fresh, held)
        if self.ledgers:
            note_movement(self.ledgers, route, transfer.kind, cause, counts)

    def _cause(self, number: int, place: int, buffer: int) -> Cause:
        if self.cause is not None:
            return self.cause
        graph = self.program.graphs[number]
        at = self.program.bodies[number].application_at(place)
        operator = "output" if at is None else graph.applications[at].operator
        return Cause(operator, _Label(self.program, number, buffer))

    def _allow(self, number: int, place: int, cause: Cause) -> None:
        """Refuse what would go beyond a budget before anything of it moves."""
        body, count = self.program.bodies[number], self.program.count
        following = body.instructions[place:]
        earlier = [each for each in body.instructions[:place] if not isinstance(each, Free)]
        if earlier and isinstance(earlier[-1], Transfer):
            return  # allowed with that one
        moving = []
        for instruction in following:
            if isinstance(instruction, Apply | Copy | Loop | Branch):
                break
            if isinstance(instruction, Transfer):
                moving.append(instruction)
        received = sum(map(count.total, moving))
        made = {transfer.result for transfer in moving}
        sources = [transfer.source for transfer in moving if transfer.source not in made]
        names = [str(self._cause(number, place, source).tensor) for source in sources]
        text = " and ".join(dict.fromkeys(names))
        for ledger in self.ledgers:
            ledger.allow(received, cause.operator, text)

    def _slice(self, cut: Slice, held: dict[int, Shards]) -> None:
        before, after = self.buffers[cut.source].layout, self.buffers[cut.result].layout
        shards = held[cut.source]
        ranks = self.here.ranks(after)
        made = []
        for shard, rank in zip(shards, ranks):
            at = after.cells.coordinate(rank)
            box, whole = after.box(at), before.box(at)
            if box == whole:
                made.append(shard)
            else:
                made.append(shard[box.slices(box.start if box.is_empty else whole.start)])
        self._derive(cut.source, cut.result, made, [False] * len(made), held)

    def _mask(self, mask: Mask, held: dict[int, Shards]) -> None:
        layout = self.buffers[mask.source].layout
        made, fresh = [], []
        for shard, rank in zip(held[mask.source], self.here.ranks(layout)):
            at = layout.cells.coordinate(rank)
            hidden = any(digit.of(at) for digit in mask.digits)
            made.append(identities(self.xp, mask.monoid, shard) if hidden else shard)
            fresh.append(hidden)
        self._derive(mask.source, mask.result, made, fresh, held)

    def _copy(self, own: Copy, held: dict[int, Shards]) -> None:
        shards, rooms = held[own.source], self._rooms(own.source, held)
        made, fresh = [], []
        for n, shard in enumerate(shards):
            takes = own.source in own.frees and rooms[n] == int(shard.nbytes)
            takes = takes and not self._is_shared(own, n, held)
            made.append(shard if takes else copied(self.xp, shard))
            fresh.append(not takes)
        self._derive(own.source, own.result, made, fresh, held)
        self.rooms.pop(own.result)
        self.parents.pop(own.result)
        self._free(own.frees, held)

    def _is_shared(self, own: Copy, cell: int, held: Mapping[int, Shards]) -> bool:
        """Whether a buffer that stays uses the allocation that a copy's source lies in."""
        at = own.source
        while at in self.parents:
            parent, fresh = self.parents[at]
            if fresh[cell]:
                return False
            if parent in held and parent not in own.frees:
                return True
            at = parent
        return False

    # Loops and branches.

    def _call(self, number: int, given: Sequence[int], held: dict[int, Shards]) -> list[Shards]:
        """Execute a body on buffers of the caller; those that it owns are gone then."""
        body = self.program.bodies[number]
        inner: dict[int, Shards] = {}
        for n, (argument, buffer) in enumerate(zip(body.arguments, given)):
            owned = n in body.owned
            inner[argument] = held.pop(buffer) if owned else held[buffer]
            if self.memory is not None:
                self.memory.rename(argument, buffer, owned)
        self.run(number, inner)
        found = [inner[buffer] for buffer in body.results]
        for argument in body.arguments:
            self.rooms.pop(argument, None)
            self.parents.pop(argument, None)
        return found

    def _finish(self, number: int, results: Sequence[int]) -> None:
        """Count what a body returns as buffers of the caller, and no longer as its own."""
        if self.memory is None:
            return
        body = self.program.bodies[number]
        for buffer, result in zip(body.results, results):
            self.memory.alias(result, buffer)
        for buffer in dict.fromkeys((*body.results, *body.arguments)):
            self.memory.free(buffer, missing_ok=True)

    def _loop(self, loop: Loop, held: dict[int, Shards]) -> None:
        condition, body = self.program.bodies[loop.condition], self.program.bodies[loop.body]
        first = bind(self.program, condition, loop.carried, loop.captured[0])
        second = bind(self.program, body, loop.carried, loop.captured[1])
        places = [second.index(buffer) for buffer in loop.carried]
        changing = [n for n, place in enumerate(places) if place in body.owned]
        while True:
            (going,) = self._call(loop.condition, first, held)
            self._finish(loop.condition, ())
            if not bool(going[0]):
                break
            made = self._call(loop.body, second, held)
            if self.memory is not None:
                for n in changing:
                    self.memory.alias(loop.carried[n], body.results[n])
                self._finish(loop.body, ())
            for n in changing:
                held[loop.carried[n]] = made[n]
            del made
        for n, (buffer, result) in enumerate(zip(loop.carried, loop.results)):
            held[result] = held[buffer]
            if self.memory is not None:
                self.memory.alias(result, buffer)
            if n in loop.donated:
                if buffer in self.rooms:
                    self.rooms[result] = self.rooms[buffer]
                self._free([buffer], held)
            else:
                self.rooms[result] = self._rooms(buffer, held)
                self.parents[result] = buffer, [False] * len(held[buffer])

    def _branch(self, number: int, branch: Branch, held: dict[int, Shards]) -> None:
        graph = self.program.graphs[number]
        operator = graph.applications[branch.definition].operator
        chosen = chosen_branch(held[branch.selector][0], len(branch.bodies), operator)
        body = self.program.bodies[branch.bodies[chosen]]
        given = bind(self.program, body, (), branch.captured[chosen])
        made = self._call(branch.bodies[chosen], given, held)
        self._finish(branch.bodies[chosen], branch.results)
        held.update(zip(branch.results, made))


def chosen_branch(index: Any, count: int, operator: str) -> int:
    """Return the number of the branch: of `case` the last where the index is out of range."""
    if operator == "if":
        return 0 if bool(index) else 1
    chosen = int(index)
    return chosen if 0 <= chosen < count else count - 1


class _Label:
    """The name of a buffer in messages: its value and its sharding."""

    def __init__(self, program: Program, number: int, buffer: int) -> None:
        self.program, self.number, self.buffer = program, number, buffer

    def __str__(self) -> str:
        buffer = self.program.buffers[self.buffer]
        spec = sharding_of(self.program.mesh, buffer.layout)
        return f"{self.program.graphs[self.number].values[buffer.value]} {spec or buffer.layout}"


def note_movement(
    ledgers: Sequence[Communication], route: Route, kind: str, cause: Cause, counts: MovedBytes
) -> None:
    """Write down what a transfer moved."""
    before, after = route.before.cells, route.after.cells
    devices = dict.fromkeys(map(before.device, range(before.size)))
    devices |= dict.fromkeys(map(after.device, range(after.size)))

    def of_each(count: dict[int, int]) -> Point:
        return tuple(count.get(device, 0) for device in devices)

    movement = Movement(
        cause.operator, str(cause.tensor), kind, of_each(counts.sent), of_each(counts.received)
    )
    for ledger in ledgers:
        ledger.movements.append(movement)


class _MemoryTracker:
    """The bytes that each device holds, counted in the arrays that are really there.

    Every device counts its own bytes, also where devices of one process share an array.
    """

    def __init__(self) -> None:
        self.devices: dict[int, list[int]] = {}
        """The devices that have a buffer."""
        self.held: dict[int, Allocations] = {}

    @property
    def most(self) -> dict[int, int]:
        """The most bytes that each device has held."""
        return {device: one.peak for device, one in self.held.items()}

    def allocate(self, buffer: int, arrays: Held, is_counted: bool = True) -> None:
        """Count arrays that devices have from now on."""
        self.devices[buffer] = list(arrays)
        for device, array in arrays.items():
            self._of(device).allocate(buffer, int(array.nbytes) if is_counted else 0)

    def _of(self, device: int) -> Allocations:
        return self.held.setdefault(device, Allocations())

    def derive(self, buffer: int, source: int, made: Mapping[int, tuple[Array, bool]]) -> None:
        """Count what was made of a buffer: new arrays, and views of what is there."""
        self.devices[buffer] = list(made)
        for device, (array, is_new) in made.items():
            if is_new or source not in self._of(device).place:
                self._of(device).allocate(buffer, int(array.nbytes))
            else:
                self._of(device).alias(buffer, source)

    def alias(self, buffer: int, source: int) -> None:
        """Count a buffer that is another."""
        self.devices[buffer] = list(self.devices[source])
        for device in self.devices[source]:
            self._of(device).alias(buffer, source)

    def rename(self, buffer: int, source: int, is_moved: bool) -> None:
        """Count a buffer under another name, instead of its own or beside it."""
        self.alias(buffer, source)
        if is_moved:
            self.free(source)

    def free(self, buffer: int, missing_ok: bool = False) -> None:
        """Count no longer what devices do not have any more."""
        if missing_ok and buffer not in self.devices:
            return
        for device in self.devices.pop(buffer):
            self._of(device).free(buffer)
