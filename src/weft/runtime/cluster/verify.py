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
- every shard of a stored output is written once, whole.

Nothing is trusted but the definitions, the program's layouts of the outputs, and `weft.space`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, groupby
from typing import NamedTuple, TypeAlias

from weft.lang.definition import define
from weft.plan import Plan
from weft.plan.storage import Storage
from weft.program import Definition, Layout, VerificationError
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


def verify_tasks(
    plan: Plan,
    tasks: Sequence[Task],
    outputs: Sequence[Sequence[BlockRef]],
    stored: Mapping[str, Storage],
) -> None:
    """Raise `VerificationError` unless the tasks compute the outputs of a plan."""
    verifier = _TaskVerifier(plan)
    for number, task in enumerate(tasks):
        _expect(task.number == number, f"task {task.number} is at place {number}")
        try:
            verifier.run(task)
        except VerificationError as error:
            error.add_note(f"in task {task}")
            raise
    body = plan.program.main
    for blocks, buffer in zip(outputs, body.results, strict=True):
        name = plan.program.buffers[buffer].value
        if name not in stored:
            verifier.check_output(name, plan.program.buffers[buffer].layout, blocks)
    for name, storage in stored.items():
        writes = [write.box for task in tasks for write in task.writes if write.value == name]
        _check_shards(name, storage, writes)


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
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, define(plan.graph)
        self.maker = {name: each for each in self.graph.applications for name in each.results}
        self.blocks: list[list[Description]] = []
        """The blocks of the tasks so far."""
        self.results: list[list[Description]] = []
        """The results of the steps of the current task."""

    def run(self, task: Task) -> None:
        """Describe all that a task computes."""
        self.results = []
        for step in task.steps:
            definition = self.graph.applications[step.application]
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
        size = output.box.size * self.plan.itemsize(output.value)
        _expect(output.nbytes == size, f"{output.value} {output.box} has {size} B")
        return found._replace(value=output.value, box=output.box)

    # -- arrays

    def describe(self, array: ArrayExpr) -> Description:  # noqa: PLR0911 - one for each kind
        """Return what an expression holds."""
        match array:
            case InputBox(name=name, box=box):
                _expect(name in self.graph.inputs, f"{name} is not an input")
                whole = ZRange.of(self.graph.shapes[name])
                _expect(box in whole, f"input {name} has no {box}")
                return Description(name, box, None)
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
            is_once = parts.count(None) == 1 or self._is_empty_reduction(value)
            _expect(not rest and is_once, f"{value} counts twice in a {monoid}")
            return None
        if not terms:
            return Part((), monoid)
        _expect(value in self.maker, f"input {value} is not partial")
        definition, merged = self.maker[value], list[Term]()
        terms.sort(key=lambda term: (term.reduced.start, term.reduced.stop))
        for _, same in groupby(terms, key=lambda term: term.reduced):
            merged.append(self._merge_operands(definition, monoid, list(same)))
        if len(merged) > 1:
            monoids = {by for _, by in definition.space.reduced}
            _expect(
                monoids == {monoid}, f"{definition.operator} reduces by {monoids}, not {monoid}"
            )
        return self._simplify(definition, merged)

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
        groups = [group for by, group in space.distributes if by == monoid]
        for group in groups:
            if varying and varying.issubset(group):
                return self._merge(definition, monoid, reduced, columns, group)
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


def _is_at(found: Description, value: str, box: ZRange) -> bool:
    """Return whether an array holds a box of a value; an empty box may lie anywhere."""
    if box.is_empty:
        return found.box.shape == box.shape and found.value in (value, "")
    return (found.value, found.box) == (value, box)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise VerificationError(message)
