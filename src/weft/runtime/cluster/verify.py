"""Prove that tasks compute a graph: translation validation of the cluster's lowering.

The tasks are executed with descriptions in place of arrays. An array is described by its value, its
box, and the terms of a reduction that it holds: a term is what an operator computes of one box of
its reduced index dimensions and of some terms of its operands. Against the definitions, which
`weft.lang` writes from the graph, it is shown that

- every task reads only blocks of earlier tasks;
- every operand of a step is the right value on the image of the step's index box;
- whatever is combined counts every term once: boxes of the reduction do not overlap, and parts of
  operands are combined only where the operator distributes over the monoid;
- an operand outside the reduction counts in one part;
- every output lies as the program says, and is whole when its parts are combined;
- what is read of a stored input is in the box that some cell reads by the program, and every shard
  of a stored output is written once, whole;
- a loop or a branch is given, and returns, what its bodies take and return, whose tasks are shown
  to compute their regions.

Nothing is trusted but the definitions, the program's layouts of what bodies take and return, and
`weft.space`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weft.lang.definition import define
from weft.program import (
    Branch,
    Definition,
    GraphDefinition,
    IndexSpace,
    Layout,
    Loop,
    Read,
    VerificationError,
)
from weft.program.count import bind
from weft.program.storage import Storage
from weft.runtime.cluster.groups import called_bodies, operand_buffers, returned_buffers
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
    slice_box,
)
from weft.space import ZRange
from weft.values import Point

if TYPE_CHECKING:
    from weft.runtime.cluster.task_graph import TaskGraph


class Term(NamedTuple):
    """One term of a reduction: a box of the reduced index dimensions, and terms of operands."""

    reduced: ZRange
    operands: tuple[Terms, ...]


class Part(NamedTuple):
    """Some terms of a value, to be combined by a monoid with others; none for its identity."""

    terms: tuple[Term, ...]
    monoid: str = ""
    """The monoid whose identity it is, if there are no terms."""


Terms: TypeAlias = Part | None
"""The terms that an array holds; None for all of them, each once."""


class Description(NamedTuple):
    """What an array holds."""

    value: str
    box: ZRange
    terms: Terms


def verify_tasks(graph: TaskGraph, definition: GraphDefinition | None = None) -> None:
    """Raise `VerificationError` unless the tasks compute the outputs of a plan, or of a region."""
    verifier = _TaskVerifier(graph, definition or define(graph.plan.graph))
    tasks, outputs, stored = graph.tasks, graph.outputs, graph.stored
    for number, task in enumerate(tasks):
        _expect(task.number == number, f"task {task.number} is at place {number}")
        try:
            verifier.run(task)
        except VerificationError as error:
            error.add_note(f"in task {task}")
            raise
    for number, control in verifier.controls.items():
        verifier.check_control(number, control)
    buffers = graph.program.buffers
    for blocks, buffer in zip(outputs, returned_buffers(verifier.body, stored), strict=True):
        if buffer is not None:
            verifier.check_output(buffers[buffer].value, buffers[buffer].layout, blocks)
    writes = {name: list[ZRange]() for name in stored}
    for write in (write for task in tasks for write in task.writes):
        _expect(write.value in writes, f"{write.value} is written, and is not stored")
        writes[write.value].append(write.box)
    for name, boxes in writes.items():
        _check_shards(name, stored[name], boxes)


def _check_shards(name: str, storage: Storage, writes: Iterable[ZRange]) -> None:
    seen = set[ZRange]()
    for box in writes:
        _expect(storage.aligned(box), f"{box} of {name} is not whole shards")
        for shard in storage.shards(box):
            _expect(shard not in seen, f"shard {shard} of {name} is written twice")
            seen.add(shard)
    for shard in storage.shards():
        _expect(shard in seen, f"shard {shard} of {name} is not written")


class _TaskVerifier:
    def __init__(self, tasks: TaskGraph, definition: GraphDefinition) -> None:
        self.tasks, self.graph, self.controls = tasks, definition, tasks.controls
        program = tasks.program
        self.buffers, self.body = program.buffers, program.bodies[tasks.body]
        self.maker = {name: each for each in self.graph.applications for name in each.results}
        given = [
            *self.body.arguments,
            *(b for each in self.controls.values() for b in each.results),
        ]
        self.given = {self.buffers[buffer].value: self.buffers[buffer].layout for buffer in given}
        """How the arguments lie, and the results of loops and branches."""
        self.maker |= {name: _given(name, layout) for name, layout in self.given.items()}
        self.regions: dict[str, set[ZRange]] = {}
        """The boxes that the program reads of each stored input."""
        for read in (each for each in self.body.instructions if isinstance(each, Read)):
            boxes = self.buffers[read.result].layout.boxes()
            self.regions.setdefault(read.storage, set()).update(boxes)
        self.cells = dict[tuple[int, int], Sequence[BlockRef]]()
        """What each cell gives to a loop or a branch, by application and rank."""
        self.cell = 0
        self.blocks: list[list[Description]] = []
        """The blocks of the tasks so far."""
        self.results: list[list[Description]] = []
        """The results of the steps of the current task."""

    def run(self, task: Task) -> None:
        """Describe all that a task computes."""
        self.results, self.cell = [], self.tasks.ranks[task.cell]
        for step in task.steps:
            _expect(step.body == self.tasks.body, f"it runs a step of body {step.body}")
            definition = self.graph.applications[step.application]
            if task.is_control:
                self.results.append(self._enter(task))
                continue
            _expect(not definition.regions, f"{definition.operator} runs graphs of its own")
            arrays = [self.describe(array) for array in step.arrays]
            operands = [arrays[place] for place in step.operands]
            self.results.append(self._apply(definition, step.box, operands))
        for write in task.writes:
            found = self._output(write)
            _expect(found.terms is None, f"{write.value} {write.box} is written in part")
        self.blocks.append([self._output(block) for block in task.blocks])

    def _output(self, output: TaskOutput) -> Description:
        found = self.describe(output.array)
        _expect(_is_at(found, output.value, output.box), f"{found} is not {output.value}")
        size = output.box.size * self.tasks.itemsize(output.value)
        _expect(output.nbytes == size, f"{output.value} {output.box} has {size} B")
        return found._replace(value=output.value, box=output.box)

    # -- loops and branches

    def _given_part(self, name: str) -> Terms:
        """Return which terms a cell has of an argument, or of the result of a loop or branch."""
        layout = self.given.get(name)
        if layout is None or not layout.parts:
            return None
        part = layout.part(layout.cells.coordinate(self.cell))
        return self._simplify(self.maker[name], [Term(ZRange(part, [n + 1 for n in part]), ())])

    def _enter(self, task: Task) -> list[Description]:
        """Note what a cell gives to a loop or a branch; return what it then has."""
        step = task.steps[0]
        control = self.controls[step.application]
        operands = [step.arrays[place] for place in step.operands]
        refs = [operand for operand in operands if isinstance(operand, BlockRef)]
        _expect(len(refs) == len(operand_buffers(control)), "operands are missing, or no blocks")
        known = self.cells.setdefault((step.application, self.cell), refs)
        _expect(known is refs, f"cell {self.cell} enters {task.operator} twice")
        buffers = [self.buffers[buffer] for buffer in control.results]
        boxes = [each.layout.boxes()[self.cell] for each in buffers]
        names = self.graph.applications[step.application].results
        _expect(tuple(each.value for each in buffers) == names, f"it makes {names}")
        return [Description(n, box, self._given_part(n)) for n, box in zip(names, boxes)]

    def check_control(self, number: int, control: Loop | Branch) -> None:
        """Show that the bodies of a loop or a branch take what it is given and return its results.

        For a loop that is an invariant: values enter and leave every iteration alike.
        """
        definition, program = self.graph.applications[number], self.tasks.program
        buffers = operand_buffers(control)
        ranks = range(len(self.tasks.ranks))
        _expect(
            all((number, rank) in self.cells for rank in ranks), f"cells miss {definition.operator}"
        )
        given = {
            buffer: [self.cells[number, rank][place] for rank in ranks]
            for place, buffer in enumerate(buffers)
        }
        if isinstance(control, Loop):
            carried, called = control.carried, called_bodies(control)
            returned: Sequence[Point] = [(), control.results]
        else:
            carried, called = (), called_bodies(control)
            returned = [control.results] * len(called)
            selector = self.buffers[control.selector].layout
            _expect(selector.is_whole, "cells may disagree on the branch")
            self.check_output(definition.operands[0], selector, given[control.selector])
        _expect(len(called) == len(definition.regions), f"{len(called)} bodies")
        for at, region, captured, results in zip(
            called, definition.regions, control.captured, returned, strict=True
        ):
            body = program.bodies[at]
            for argument, buffer, name in zip(
                body.arguments, bind(program, body, carried, captured), region.inputs
            ):
                layout = self.buffers[argument].layout
                is_carried = name not in definition.operands
                value = definition.operands[carried.index(buffer)] if is_carried else name
                self.check_output(value, layout, given[buffer])
            for made, result in zip(body.results, results):
                one, two = self.buffers[made].layout, self.buffers[result].layout
                _expect(_lie_alike(one, two), f"a body returns {one}, and {two} is expected")
            for enters, result in zip(carried, results):
                one, two = self.buffers[enters].layout, self.buffers[result].layout
                _expect(_lie_alike(one, two), f"{one} is carried, and {two} is returned")
            _expect(at in self.tasks.bodies, f"body {at} has no tasks")
            verify_tasks(self.tasks.bodies[at], region)
        if isinstance(control, Loop):
            (test,) = program.bodies[control.condition].results
            _expect(self.buffers[test].layout.is_whole, "cells may disagree on whether to go on")

    # -- arrays

    def describe(self, array: ArrayExpr) -> Description:  # noqa: PLR0911 - one for each kind
        """Return what an expression holds."""
        match array:
            case InputBox(name=name, box=box):
                _expect(name in self.graph.inputs, f"{name} is not an input")
                whole = ZRange.of(self.graph.shapes[name])
                _expect(box in whole, f"input {name} has no {box}")
                if name not in self.given:
                    self._check_read(name, box)
                return Description(name, box, self._given_part(name))
            case BlockRef(task=task, place=place):
                is_there = 0 <= task < len(self.blocks) and place < len(self.blocks[task])
                _expect(is_there, f"block {place} of task {task} does not exist yet")
                return self.blocks[task][place]
            case StepResult(step=step, place=place):
                _expect(step < len(self.results), f"step {step} has not run yet")
                return self.results[step][place]
            case Sliced(of=inner, where=where):
                found, part = self.describe(inner), slice_box(where)
                _expect(
                    part.is_empty or part in ZRange.of(found.box.shape),
                    f"{found.value} {found.box} has no part {part}",
                )
                return found._replace(box=part.translate(found.box.start))
            case Masked(of=inner, monoid=monoid):
                return self.describe(inner)._replace(terms=Part((), monoid))
            case Combined(monoid=monoid, parts=parts):
                return self._combine_arrays(monoid, [self.describe(part) for part in parts])
            case Joined():
                return self._join(array)

    def _check_read(self, name: str, box: ZRange) -> None:
        """What a task reads from storage, a cell reads by the program.

        It may be another cell: a halo that the program moves may be computed again instead.
        """
        regions = self.regions.get(name, ())
        is_read = any(box in region for region in regions) or not any(box.difference(*regions))
        _expect(is_read or not box, f"the program does not read {name} {box}")

    def _combine_arrays(self, monoid: str, parts: Sequence[Description]) -> Description:
        first = parts[0]
        for part in parts[1:]:
            same = _is_at(part, first.value, first.box)
            _expect(same, f"{part.value} {part.box} is combined with {first.value} {first.box}")
        terms = self.combine(first.value, monoid, [part.terms for part in parts])
        return first._replace(terms=terms)

    def _join(self, join: Joined) -> Description:
        """Pieces of one value fill an array without overlap, each at its own place."""
        pieces = [(slice_box(into), self.describe(piece)) for into, piece in join.pieces]
        pieces = [(into, piece) for into, piece in pieces if into]
        whole = ZRange.of(join.shape)
        if not pieces:
            _expect(whole.is_empty, f"nothing fills an array of {list(join.shape)}")
            return Description("", whole, None)
        into, first = pieces[0]
        start = tuple(a - b for a, b in zip(first.box.start, into.start))
        for into, piece in pieces:
            moved = into.translate(start)
            _expect(_is_at(piece, first.value, moved), f"{piece.value} {piece.box} lies at {moved}")
            _expect(piece.terms == first.terms, f"{first.value} is joined from different parts")
            _expect(into in whole, f"{into} lies outside of {whole}")
        _expect(sum(into.size for into, _ in pieces) == whole.size, f"{whole} is not filled")
        for (one, _), (two, _) in combinations(pieces, 2):
            _expect(not (one & two), f"{one} and {two} overlap")
        return Description(first.value, whole.translate(start), first.terms)

    # -- applications

    def _apply(
        self, definition: Definition, box: ZRange, operands: Sequence[Description]
    ) -> list[Description]:
        """Return the results of an operator on a box of its index space."""
        space, operator = definition.space, definition.operator
        _expect(box.is_empty or box in ZRange.of(space.sizes), f"{operator} has no index box {box}")
        for dim in space.whole:
            whole = box.is_empty or box.shape[dim] == space.sizes[dim]
            _expect(whole, f"index dimension {dim} of {operator} is cut")
        _expect(
            len(operands) == len(definition.operands), f"{operator} has {len(operands)} operands"
        )
        for name, operand, (projection, shape) in zip(definition.operands, operands, space.reads):
            need = projection.region(box, shape)
            _expect(
                _is_at(operand, name, need),
                f"{operator} is given {operand.value} {operand.box}, and needs {name} {need}",
            )
        dims = [dim for dim, _ in space.reduced]
        reduced = ZRange([box.start[d] for d in dims], [box.stop[d] for d in dims])
        term = Term(reduced, tuple(operand.terms for operand in operands))
        terms = self._simplify(definition, [term])
        boxes = [projection.region(box, shape) for projection, shape in space.makes]
        return [Description(name, box, terms) for name, box in zip(definition.results, boxes)]

    def combine(self, value: str, monoid: str, parts: Sequence[Terms]) -> Terms:
        """Return parts of a value combined by a monoid; none of their terms may count twice."""
        terms = list[Term]()
        for part in parts:
            if part is not None and not part.terms:
                _expect(part.monoid == monoid, f"the identity of {part.monoid} in a {monoid}")
            terms += part.terms if part is not None else ()
        if None in parts:
            rest = [term for term in terms if not self._is_identity(value, term)]
            if not rest and (parts.count(None) == 1 or self._is_empty_reduction(value)):
                return None
            _expect(bool(rest) and value in self.maker, f"{value} counts twice in a {monoid}")
            terms += [self._whole(value)] * parts.count(None)
        if not terms:
            return Part((), monoid)
        _expect(value in self.maker, f"input {value} is not partial")
        definition, merged = self.maker[value], list[Term]()
        terms.sort(key=lambda term: (term.reduced.start, term.reduced.stop))
        for _, same in groupby(terms, key=lambda term: term.reduced):
            merged.append(self._merge_operands(definition, monoid, list(same)))
        if len(merged) > 1:
            monoids = _monoids(definition.space, [term.reduced for term in merged])
            _expect(
                monoids == {monoid}, f"{definition.operator} reduces by {monoids}, not {monoid}"
            )
        return self._simplify(definition, merged)

    def _whole(self, value: str) -> Term:
        """Return a whole value as the one term of its reduction."""
        definition = self.maker[value]
        sizes = [definition.space.sizes[dim] for dim, _ in definition.space.reduced]
        return Term(ZRange.of(sizes), (None,) * len(definition.operands))

    def _is_identity(self, value: str, term: Term) -> bool:
        """Return whether a term adds nothing: no box, and no operand that counts once."""
        once = [term.operands[n] for n in self.maker[value].space.once]
        return term.reduced.is_empty and all(p is not None and not p.terms for p in once)

    def _is_empty_reduction(self, value: str) -> bool:
        """Return whether a value is an identity: a reduction of nothing."""
        space = self.maker[value].space if value in self.maker else None
        return (
            space is not None
            and not space.once
            and any(space.sizes[dim] == 0 for dim, _ in space.reduced)
        )

    def _merge_operands(self, definition: Definition, monoid: str, terms: Sequence[Term]) -> Term:
        """Return terms of one box of the reduction as one: their operands are combined instead."""
        if len(terms) == 1:
            return terms[0]
        space, reduced = definition.space, terms[0].reduced
        columns = list(zip(*(term.operands for term in terms)))
        if reduced.is_empty:  # such terms hold the operands that count once, and nothing else
            return self._merge(definition, monoid, reduced, columns, space.once)
        varying = {n for n, column in enumerate(columns) if len(set(column)) > 1}
        masked = {n for n, column in enumerate(columns) if all(p and not p.terms for p in column)}
        for by, group in space.distributes:
            is_counted_once = varying or masked.intersection(group)
            if by == monoid and is_counted_once and varying.issubset(group):
                return self._merge(definition, monoid, reduced, columns, group)
        for _, group in space.distributes:  # of several operands, one after another
            buckets: dict[object, list[Term]] = {}
            for term in terms:
                others = tuple(p for n, p in enumerate(term.operands) if n not in group)
                buckets.setdefault(others, []).append(term)
            if 1 < len(buckets) < len(terms):
                fewer = [self._merge_operands(definition, monoid, b) for b in buckets.values()]
                return self._merge_operands(definition, monoid, fewer)
        raise VerificationError(f"{definition.operator} counts {reduced} of its reduction twice")

    def _merge(
        self,
        definition: Definition,
        monoid: str,
        reduced: ZRange,
        columns: Sequence[tuple[Terms, ...]],
        group: Collection[int],
    ) -> Term:
        operands = [
            self.combine(definition.operands[n], monoid, column) if n in group else column[0]
            for n, column in enumerate(columns)
        ]
        return Term(reduced, tuple(operands))

    def _simplify(self, definition: Definition, terms: Sequence[Term]) -> Terms:
        """Return terms as few as possible; None where they are the whole reduction."""
        space = definition.space
        full = ZRange.of([space.sizes[dim] for dim, _ in space.reduced])
        some = [term for term in terms if term.reduced]
        for one, two in combinations(some, 2):
            overlap = one.reduced & two.reduced
            _expect(not overlap, f"{definition.operator} counts {overlap} of its reduction twice")
        found = tuple(terms)
        if len(terms) > 1:
            monoid = space.reduced[0][1]
            hull = some[0].reduced.hull(*(t.reduced for t in some[1:])) if some else full
            others = [n for n in range(len(definition.operands)) if n not in space.once]
            alike = len({tuple(term.operands[n] for n in others) for term in some}) < 2
            if alike and hull.size == sum(term.reduced.size for term in some):
                first = (some or list(terms))[0]
                operands = [
                    self.combine(name, monoid, [term.operands[n] for term in terms])
                    if n in space.once
                    else first.operands[n]
                    for n, name in enumerate(definition.operands)
                ]
                found = (Term(hull, tuple(operands)),)
        is_full = len(found) == 1 and (found[0].reduced == full or full.is_empty)
        return None if is_full and set(found[0].operands) <= {None} else Part(found)

    # -- outputs

    def check_output(self, name: str, layout: Layout, blocks: Sequence[BlockRef]) -> None:
        """Every cell has its box of an output, and the parts of every box make it whole."""
        boxes = layout.boxes()
        _expect(len(blocks) == len(boxes), f"{name} has {len(blocks)} blocks")
        held: dict[ZRange, dict[tuple[int, ...], Terms]] = {}
        for rank, (block, box) in enumerate(zip(blocks, boxes)):
            found = self.describe(block)
            _expect(_is_at(found, name, box), f"cell {rank} has {found.value} {found.box}")
            part = layout.part(layout.cells.coordinate(rank))
            if box:
                known = held.setdefault(box, {}).setdefault(part, found.terms)
                _expect(known == found.terms, f"copies of {name} {box} differ")
        monoids = [monoid for _, monoid in layout.parts]
        for box, parts in held.items():
            terms = self._combine_parts(name, monoids, sorted(parts.items(), key=lambda p: p[0]))
            _expect(terms is None, f"{name} {box} is not whole")

    def _combine_parts(
        self, name: str, monoids: Sequence[str], parts: Sequence[tuple[tuple[int, ...], Terms]]
    ) -> Terms:
        if not monoids:
            return parts[0][1]
        groups = groupby(parts, key=lambda part: part[0][0])
        below = [
            self._combine_parts(name, monoids[1:], [(n[1:], terms) for n, terms in group])
            for _, group in groups
        ]
        return below[0] if len(below) == 1 else self.combine(name, monoids[0], below)


def _given(name: str, layout: Layout) -> Definition:
    """Return a definition for what lies in parts before any task: a reduction of its parts."""
    digits = [digit.radix for digit, _ in layout.parts]
    reduced = tuple((n, monoid) for n, (_, monoid) in enumerate(layout.parts))
    space = IndexSpace(tuple(digits), reduced, (), frozenset(), frozenset(), (), ())
    return Definition("argument", {}, (), (name,), space)


def _monoids(space: IndexSpace, boxes: Sequence[ZRange]) -> set[str]:
    """Return the monoids by which terms of a reduction are combined.

    For parts that were there before any task they are those of the digits in which the parts
    differ, and of digits behind those, unless they are complete: those are combined first.
    """
    if space.reads:
        return {by for _, by in space.reduced}
    sides = [{(box.start[n], box.stop[n]) for box in boxes} for n in range(len(space.reduced))]
    differ = [n for n, ends in enumerate(sides) if len(ends) > 1]
    found = {space.reduced[n][1] for n in differ}
    for n in range(min(differ, default=0), len(sides)):
        dim, monoid = space.reduced[n]
        if sides[n] != {(0, space.sizes[dim])}:
            found.add(monoid)
    return found


def _lie_alike(one: Layout, two: Layout) -> bool:
    """Return whether every cell has the same box and the same part in two layouts."""
    if one == two:
        return True
    same = one.boxes() == two.boxes() and one.parts == two.parts
    return same and one.cells == two.cells


def _is_at(found: Description, value: str, box: ZRange) -> bool:
    """Return whether an array holds a box of a value; an empty box may lie anywhere."""
    if box.is_empty:
        return found.box.shape == box.shape and found.value in (value, "")
    return (found.value, found.box) == (value, box)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise VerificationError(message)
