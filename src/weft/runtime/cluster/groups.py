"""Groups of applications that a cell runs in one task.

Consecutive applications that need nothing from other cells form a group: an operand joins two
applications if no transfer lies between them. A halo joins them, too, where the cell can compute it
again at little cost, because everything it takes is in storage, from which any box can be read. All
other operands come from other cells, or are read by several groups, and are blocks between tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TypeAlias, TypeVar

from weft.lang import Block, Graph, Signature
from weft.lang.dtype import itemsize
from weft.program import (
    Apply,
    Body,
    Branch,
    Copy,
    Layout,
    Loop,
    Mask,
    Program,
    Read,
    Slice,
    Transfer,
    Write,
)
from weft.program.storage import Storage
from weft.space import ZRange, weigh
from weft.values import FrozenMap, Point

T = TypeVar("T")

Move: TypeAlias = Transfer | Slice | Mask | Copy
"""An instruction that makes another buffer of the same value."""

MAX_RECOMPUTE = 1.5
"""A halo is computed again if a cell then computes at most this many times its own box."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Applications that run in one task, in order."""

    applications: tuple[int, ...]
    inner: frozenset[tuple[int, int]]
    """The operands, as application and place, that are computed inside the group."""
    wanted: frozenset[str]
    """The values that are needed outside."""
    ends: frozenset[int]
    """The applications with such a value, and those whose results nobody reads."""


class GroupedProgram:
    """A body of a program in groups.

    `copies` are inputs of the graph that it also returns, and that go to storage as they are; all
    else that is stored has instructions.
    """

    def __init__(
        self, program: Program, number: int = 0, copies: Mapping[str, Storage] = FrozenMap(())
    ) -> None:
        self.program, self.number = program, number
        self.graph: Graph = program.graphs[number]
        self.body = body = program.bodies[number]
        self.inputs = _stored(program, body, Read)
        """The inputs that are read from storage."""
        self.outputs = {**_stored(program, body, Write), **copies}
        """The outputs that are written to it."""
        self.applies = {i.definition: i for i in body.instructions if isinstance(i, Apply)}
        self.controls = {i.definition: i for i in body.instructions if isinstance(i, Loop | Branch)}
        """The loops and branches, which are groups of their own."""
        self.moves: dict[int, Move] = {}
        """How each buffer is made that is not an argument or the result of an application."""
        self.operators: dict[int, str] = {}
        """The operator for which a buffer is moved."""
        self.kept = {self._value(buffer): buffer for buffer in body.arguments}
        """The buffer of each value that other applications read."""
        for place, instruction in enumerate(body.instructions):
            at = body.application_at(place)
            if isinstance(instruction, Apply | Loop | Branch):
                self.kept |= {self._value(buffer): buffer for buffer in instruction.results}
            elif isinstance(instruction, Read):
                self.kept.setdefault(instruction.storage, instruction.result)
            elif isinstance(instruction, Move):
                self.moves[instruction.result] = instruction
                operator = "output" if at is None else self.graph.applications[at].operator
                self.operators[instruction.result] = operator
                if at is not None and place >= body.made[at]:
                    self.kept[self._value(instruction.result)] = instruction.result

    def _value(self, buffer: int) -> str:
        return self.program.buffers[buffer].value

    def itemsize(self, name: str) -> int:
        """Return the bytes of an element of a value."""
        return itemsize(self.graph.values[name].dtype)

    def moves_to(self, buffer: int) -> list[Move]:
        """Return the moves by which a buffer comes from an argument or from an application."""
        found = list[Move]()
        while buffer in self.moves:
            found.append(self.moves[buffer])
            buffer = found[-1].source
        return found[::-1]

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """The application that computes each value."""
        return {name: n for n, each in enumerate(self.graph.applications) for name in each.results}

    def layout(self, name: str) -> Layout:
        """Return how a value lies when it has been computed."""
        results = self.graph.applications[self.maker[name]].results
        buffer = self.applies[self.maker[name]].results[results.index(name)]
        return self.program.buffers[buffer].layout

    @cached_property
    def boxes(self) -> Mapping[int, Sequence[ZRange]]:
        """For each application the boxes of its index space, in rank order."""
        return {number: apply.index.boxes() for number, apply in self.applies.items()}

    @cached_property
    def block(self) -> Callable[[int, ZRange], Block]:
        """A function that returns the block of an application's box; recent ones are kept."""
        signatures, applications = self.graph.signatures, self.graph.applications

        @lru_cache(maxsize=1 << 13)
        def block(number: int, box: ZRange) -> Block:
            return Block(None, signatures[number], applications[number].attributes, box)

        return block

    @cached_property
    def groups(self) -> tuple[TaskGroup, ...]:
        """The groups, each behind those that it needs.

        >>> import weft
        >>> graph = weft.trace(lambda x, w: ((x + x) @ w).sum() * 2, (8, 4), (4, 2),
        ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{"x"}, {}]>'})
        >>> program = weft.Plan.of(weft.propagate(graph)).program
        >>> [group.applications for group in GroupedProgram(program).groups]
        [(0, 1, 2), (3, 4)]
        """
        return tuple(_Grouping(self).groups())

    @cached_property
    def returned(self) -> Sequence[int | None]:
        """The buffer of each output; None for one that is stored."""
        return returned_buffers(self.body, self.outputs)

    @cached_property
    def direct(self) -> Collection[str]:
        """The inputs that tasks read box by box: stored ones, and those that one group reads.

        Other inputs in memory become blocks, which several tasks read or send.
        """
        readers: dict[int, set[TaskGroup | None]] = {}

        def read(buffers: Iterable[int], group: TaskGroup | None) -> None:
            for buffer in buffers:
                origin = next((move.source for move in self.moves_to(buffer)), buffer)
                readers.setdefault(origin, set()).add(group)

        for group in self.groups if not self.number else ():  # those of other bodies are blocks
            for number in group.applications:
                if number in self.applies:
                    read(self.applies[number].operands, group)
                else:
                    read(operand_buffers(self.controls[number]), None)
        moves = self.moves.values()
        read([move.source for move in moves if isinstance(move, Transfer | Copy)], None)
        read(self.body.results, None)
        alone = (n for n in self.body.arguments if len(readers.get(n, ())) == 1)
        return {*self.inputs, *(self._value(n) for n in alone if None not in readers[n])}

    @cached_property
    def _with_halos(self) -> frozenset[int]:
        """The first applications of the groups that compute halos again."""
        return frozenset(
            group.applications[0]
            for group in self.groups
            if any(
                isinstance(move, Transfer)
                for number, place in group.inner
                for move in self.moves_to(self.applies[number].operands[place])
            )
        )

    def boxes_for(
        self, group: TaskGroup, rank: int, targets: Mapping[int, ZRange]
    ) -> Mapping[int, ZRange]:
        """Return the index box that each application computes on a cell for a tile of a group."""
        own = {number: self.boxes[number][rank] for number in group.applications}
        is_whole = targets == {number: own[number] for number in group.ends}
        if is_whole and group.applications[0] not in self._with_halos:
            return own
        return required_boxes(self, group, rank, targets)

    # -- storage

    @cached_property
    def stored_only(self) -> Collection[str]:
        """The values that are stored and that no other task reads."""
        inner = frozenset[tuple[int, int]]().union(*(group.inner for group in self.groups))
        read = {
            name
            for number, application in enumerate(self.graph.applications)
            for place, name in enumerate(application.operands)
            if (number, place) not in inner
        }
        return frozenset(self.outputs.keys() - read)

    def computes(self, name: str, rank: int) -> bool:
        """Return whether a cell computes a value: one that is only stored is computed once."""
        return name not in self.stored_only or first_holders(self.layout(name))[rank]

    def writes(self, name: str, box: ZRange, rank: int) -> bool:
        """Return whether what a cell computes is whole shards, which it writes at once."""
        if name not in self.outputs or self.layout(name).parts:
            return False
        is_whole = bool(box) and self.outputs[name].aligned(box)
        return is_whole and first_holders(self.layout(name))[rank]


def _stored(program: Program, body: Body, kind: type[Read] | type[Write]) -> dict[str, Storage]:
    """Return the storage that a body reads, or that it writes."""
    names = (each.storage for each in body.instructions if isinstance(each, kind))
    return {name: program.storage[name] for name in names}


def returned_buffers(body: Body, stored: Collection[str]) -> list[int | None]:
    """Return the buffer of each output of a body; None for one that is stored.

    A body returns what it does not write: an output that comes twice is written once.
    """
    written = [each.storage for each in body.instructions if isinstance(each, Write)]
    left, found = iter(body.results), list[int | None]()
    for name in body.graph.outputs:
        if name in written:
            written.remove(name)
            found.append(None)
        else:
            buffer = next(left)
            found.append(None if name in stored else buffer)
    return found


def operand_buffers(control: Loop | Branch) -> Point:
    """Return the buffers that a loop or a branch takes, in the order of its tasks' operands."""
    first = control.carried if isinstance(control, Loop) else (control.selector,)
    return (*first, *(buffer for captured in control.captured for buffer in captured))


def called_bodies(control: Loop | Branch) -> Point:
    """Return the bodies that a loop or a branch runs."""
    return (control.condition, control.body) if isinstance(control, Loop) else control.bodies


@lru_cache(maxsize=1 << 10)
def first_holders(layout: Layout) -> Sequence[bool]:
    """Return for each cell whether no cell before it has the same box and part."""
    shape = layout.cells.shape
    digits = [d._replace(stride=d.divisor * prod(shape[d.dim + 1 :])) for d in layout.digits()]
    return [rank == first for rank, first in enumerate(weigh(shape, digits))]


class _Grouping:
    """Puts applications on levels, which are cut where something comes from elsewhere."""

    def __init__(self, program: GroupedProgram) -> None:
        self.program, self.graph, self.maker = program, program.graph, program.maker
        self.readers: dict[str, list[tuple[int, int]]] = {}
        self.numbers = sorted([*program.applies, *program.controls])
        for number in self.numbers:
            for place, name in enumerate(self._operands(number)):
                self.readers.setdefault(name, []).append((number, place))
        self.level: dict[int, int] = {}
        self.grows: dict[int, bool] = {}
        """Whether a cell could compute more than its box: all that it then needs is stored."""
        self.inner: set[tuple[int, int]] = set()

    def groups(self) -> Iterator[TaskGroup]:
        """Return the connected applications of each level, level by level."""
        for number in self.numbers:
            self._place(number)
        for number in self.numbers:
            if number not in self.level:
                self._set_level(number, 0)
        for members in self._components():
            results = [name for n in members for name in self._results(n)]
            edges = ((n, k) for n in members for k in range(len(self._operands(n))))
            yield TaskGroup(
                tuple(members),
                frozenset(edge for edge in edges if edge in self.inner),
                frozenset(filter(self._is_wanted, results)),
                frozenset(filter(self._is_end, members)),
            )

    def _place(self, number: int) -> None:
        """Choose the level of an application and the operands that are there without a move."""
        operands = self._operands(number)
        makers = [(n, self.maker.get(name)) for n, name in enumerate(operands)]
        near = {n for n, maker in makers if maker is not None and self._is_near(number, n, maker)}
        halos = {n for n in near if self._fetch(number, n) is not None}
        for n, maker in makers:
            if maker is not None and n not in near and maker not in self.level:
                self._set_level(maker, 0)  # it needs no input, and must come before this one
        while True:
            above = [self.level[m] + (n not in near) for n, m in makers if m in self.level]
            level = max(above, default=0)
            # A halo that is computed again is computed in the same task.
            late = {
                n for n in halos & near if self.level.get(self.maker[operands[n]], level) < level
            }
            if not late:
                break
            near -= late
        is_free = all(m is not None and m not in self.level and n in near for n, m in makers)
        if is_free and number in self.program.applies:
            self.inner |= {(number, n) for n, _ in makers}  # needs no input: any level will do
        else:
            self._set_level(number, level)
            for n, m in makers:
                if m is not None and n in near and self.level.setdefault(m, level) == level:
                    self._set_level(m, level)
                    self.inner.add((number, n))
        self.grows[number] = self._can_grow(number)

    def _set_level(self, number: int, level: int) -> None:
        """Put an application on a level, with those before it that have no level yet."""
        self.level[number] = level
        for place, name in enumerate(self._operands(number)):
            maker = self.maker.get(name)
            if (number, place) not in self.inner or maker is None:
                continue
            if maker not in self.level:
                self._set_level(maker, level)
            elif self.level[maker] != level:
                self.inner.discard((number, place))

    def _transfers(self, number: int, place: int) -> list[Transfer]:
        moves = self.program.moves_to(self.program.applies[number].operands[place])
        return [move for move in moves if isinstance(move, Transfer)]

    def _fetch(self, number: int, place: int) -> Transfer | None:
        """Return the transfer of an operand's halo, if nothing else is transferred for it."""
        match self._transfers(number, place):
            case [Transfer(result=result, combine=()) as fetch]:
                return fetch if self.program.program.buffers[result].layout.image else None
        return None

    def _is_near(self, number: int, place: int, maker: int) -> bool:
        """Return whether an operand is on its cell, or could be computed there in full."""
        if number in self.program.controls or maker in self.program.controls:
            return False
        if not self._transfers(number, place):
            return True
        fetch = self._fetch(number, place)
        if fetch is None or not self.grows[maker]:
            return False
        need = self.program.program.buffers[fetch.result].layout
        have = self.program.layout(self._operands(number)[place])
        return sum(b.size for b in need.boxes()) <= MAX_RECOMPUTE * sum(
            b.size for b in have.boxes()
        )

    def _can_grow(self, number: int) -> bool:
        operands, signature = self._operands(number), self.graph.signatures[number]
        if not operands or number in self.program.controls or not is_dense(signature):
            return False
        return all(
            name in self.program.inputs
            or _is_fixed(signature, place)
            or ((number, place) in self.inner and self.grows[self.maker[name]])
            for place, name in enumerate(operands)
        )

    def _components(self) -> list[list[int]]:
        """Return the applications that inner operands connect, in the order of their levels."""
        sets = {number: [number] for number in self.numbers}
        for number, place in self.inner:
            unite(sets, number, self.maker[self._operands(number)[place]])
        unique = {id(members): sorted(members) for members in sets.values()}.values()
        return sorted(unique, key=lambda members: (self.level[members[0]], members))

    def _operands(self, number: int) -> Sequence[str]:
        return self.graph.applications[number].operands

    def _results(self, number: int) -> Sequence[str]:
        return self.graph.applications[number].results

    def _is_wanted(self, name: str) -> bool:
        is_read = any(reader not in self.inner for reader in self.readers.get(name, ()))
        return is_read or name in self.graph.outputs

    def _is_end(self, number: int) -> bool:
        results = self._results(number)
        return not any(map(self.readers.get, results)) or any(map(self._is_wanted, results))


def unite(sets: dict[T, list[T]], one: T, two: T) -> None:
    """Make two disjoint sets one; each member maps to its set.

    >>> sets = {n: [n] for n in range(3)}
    >>> unite(sets, 0, 2)
    >>> sets
    {0: [0, 2], 1: [1], 2: [0, 2]}
    """
    small, large = sorted((sets[two], sets[one]), key=len)
    if small is not large:
        large += small
        sets |= dict.fromkeys(small, large)


def _is_fixed(signature: Signature, place: int) -> bool:
    """Return whether an operand is needed alike, whatever box of the results is computed."""
    made = {dim for rows in signature.notation.results for row in rows for dim in row.dims}
    return made.isdisjoint(dim for row in signature.notation.operands[place] for dim in row.dims)


def is_dense(signature: Signature) -> bool:
    """Return whether any box of the results is the image of a box of the index space."""
    for rows in signature.notation.results:
        named = [row.plain for row in rows if row.dims]
        if None in named or len(named) != len(set(named)):
            return False
    return True


def required_boxes(
    program: GroupedProgram, group: TaskGroup, rank: int, targets: Mapping[int, ZRange]
) -> Mapping[int, ZRange]:
    """Return the index box that each application of a group computes on a cell for some targets.

    Boxes follow from the last applications to the first, and halos widen them on the way.
    Applications that nothing needs are left out.
    """
    found, needed = dict[int, ZRange](), dict[str, ZRange]()
    for number in reversed(group.applications):
        application, signature = (
            program.graph.applications[number],
            program.graph.signatures[number],
        )
        own, boxes = program.boxes[number][rank], list[ZRange]()
        if number in targets:
            boxes.append(targets[number])
        for place, name in enumerate(application.results):
            if name in needed:
                boxes.append(index_box(signature, place, needed[name], own))
        if not boxes:
            continue
        found[number] = hull(boxes)
        for place, box in enumerate(program.block(number, found[number]).operands):
            if (number, place) in group.inner:
                name = application.operands[place]
                needed[name] = hull([needed.get(name, box), box])
    return dict(sorted(found.items()))


def hull(boxes: Iterable[ZRange]) -> ZRange:
    """Return the smallest box around some boxes."""
    first, *others = boxes
    return first.hull(*others)


def index_box(signature: Signature, place: int, box: ZRange, own: ZRange) -> ZRange:
    """Return the index box that computes a box of a result; reduced dimensions are the cell's own.

    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> print(index_box(line, 0, ZRange((2, 0), (4, 8)), ZRange((0, 0, 8), (8, 32, 16))))
    [2:4, 0:8, 8:16]
    """
    if not is_dense(signature):
        return own.hull(signature.results[place].preimage(box, signature.space))
    spans = dict(zip(signature.sizes, zip(own.start, own.stop)))
    names = [row.plain for row in signature.notation.results[place]]
    for name, span in zip(names, zip(box.start, box.stop)):
        if name is not None and name not in signature.fixed:
            spans[name] = span
    return ZRange(*zip(*spans.values())) if spans else own
