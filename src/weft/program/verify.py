"""Prove that a program computes a graph.

The verifier follows every buffer: the value of the graph that it holds, and its layout. It accepts
a program only if the outputs are those of the graph, computed by the graph's applications from the
graph's operands in their order, every point once in every part. It reads definitions that
`weft.lang` writes and the instructions, and trusts nothing else: kinds of collectives, balances
and trip counts are hints. Kernels, and the executors' code, are outside the proof.

Nothing is enumerated by cell. What must hold for every cell is a condition on digits, or it holds
exactly when it holds in every dimension, and along one dimension a box depends on a few mesh axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.program.instructions import (
    Apply,
    Body,
    Branch,
    Buffer,
    Copy,
    Definition,
    Free,
    GraphDefinition,
    IndexSpace,
    Instruction,
    Loop,
    Mask,
    Read,
    Slice,
    Transfer,
    Write,
)
from weft.program.layout_rule import (
    Layout,
    are_apart,
    covers,
    join_parts,
    lies_inside,
    same_boxes,
    span_pairs,
)
from weft.space import BlockGrid, Digit, Projection, ZRange
from weft.values import MONOIDS, Point

if TYPE_CHECKING:
    from weft.program.program import Program


class VerificationError(WeftError):
    """A program that does not compute its graph: which instruction, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class AppliedProof:
    """The part of a proof that is about one application."""

    operator: str
    boxes: int
    """The number of different boxes that its index space is cut into."""
    parts: int
    """The number of parts that its results are left in by cutting reduced dimensions."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a program: how much was proved."""

    instructions: int
    applications: tuple[AppliedProof, ...]
    """Those of the main body that run a kernel, in program order."""


def verify(program: Program, graph: GraphDefinition | None = None) -> Proof:
    """Prove that a program computes its graph, or the one given; raise VerificationError if not."""
    try:
        return _Verifier(program).verify(graph or program.main.graph)
    except VerificationError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise VerificationError(f"the program is malformed: {error!r}") from None


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise VerificationError(otherwise)


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program, self.buffers = program, program.buffers
        self.count = 0
        self.applied: list[AppliedProof] = []
        self.active: list[int] = []
        self.made: list[set[int]] = []
        """For each active body the buffers that it has made or was given."""
        self.homes: dict[int, int] = {}
        """The body of each buffer."""
        self.proved: dict[object, object] = {}
        self.dtypes: dict[str, str] = {}
        """The dtype in which each stored input is read."""
        self.written: set[str] = set()

    def verify(self, graph: GraphDefinition) -> Proof:
        for name, monoid in graph.monoids.items():
            same = self.program.monoids.get(name) is monoid
            _expect(same, f"parts by {name} are combined by another definition than the graph's")
        for buffer in self.buffers:
            self._expect_well_formed(buffer.layout)
            self._expect_elements(buffer)
        for given in map(self.buffers.__getitem__, self.program.main.arguments):
            _expect(covers(given.layout), f"input {given.value} is not held in full")
        for name in self.program.storage:
            known = name in (*graph.inputs, *graph.outputs)
            _expect(known, f"{name} is stored, and is neither an input nor an output")
        self._body(0, graph)
        return Proof(self.count, tuple(self.applied))

    def _expect_elements(self, buffer: Buffer) -> None:
        """Expect parts of a dtype that their monoid combines."""
        for _, monoid in buffer.layout.parts:
            definition: Any = self.program.monoids.get(monoid)
            if definition is None:
                _expect(MONOIDS.get(monoid, "") is None, f"parts by {monoid}, which is not defined")
            is_struct = buffer.dtype.startswith("struct")
            fits = not is_struct if definition is None else definition.fits(buffer.dtype)
            _expect(fits, f"{buffer.value}: {buffer.dtype} cannot lie in parts by {monoid}")

    def _expect_well_formed(self, layout: Layout) -> None:
        if id(layout) in self.proved:
            return
        self.proved[id(layout)] = layout
        _expect(layout.cells == self.program.cells, "a layout lies on other cells")
        grid, ndim = layout.grid, len(layout.shape)
        _expect(len(layout.cuts) == grid.ndim, f"{len(layout.cuts)} cuts of rank {grid.ndim}")
        self._expect_digits(layout.digits())
        self._expect_tiles(grid)
        for dim, cut in enumerate(layout.cuts):
            number = prod([digit.radix for digit in cut])
            _expect(number == grid.counts[dim], f"dimension {dim} of a grid has no such block")
            stride = 1
            for digit in reversed(cut):
                _expect(digit.stride == stride, f"dimension {dim} is not numbered block by block")
                stride *= digit.radix
        if layout.image is None:
            _expect(grid.shape == layout.shape, "a grid cuts another shape")
        else:
            fits = (layout.image.ndim, layout.image.index_ndim) == (ndim, grid.ndim)
            _expect(fits, "a projection maps another space")
        digits = [digit for digit, _ in layout.parts]
        _expect(layout.parts == join_parts(layout.parts), "parts are not in mesh order")
        _expect(are_apart(layout.cells.shape, digits), "digits of parts overlap")

    def _expect_digits(self, digits: Iterable[Digit]) -> None:
        """Digits are of axes of the mesh, and have values."""
        axes = len(self.program.cells.shape)
        for digit in digits:
            exists = 0 <= digit.dim < axes and digit.divisor > 0 and digit.radix > 0
            _expect(exists, f"a cell has no digit {tuple(digit)}")

    def _expect_tiles(self, grid: BlockGrid) -> None:
        """Every point of the grid's shape lies in one block."""
        for dim, (size, count) in enumerate(zip(grid.shape, grid.counts, strict=True)):
            edges, extent = grid.edges[dim], grid.block_shape[dim]
            if edges is None:
                tiles = extent >= 0 and extent * count >= size
            else:
                rising = all(low <= high for low, high in pairwise(edges))
                tiles = rising and (edges[0], edges[-1], len(edges)) == (0, size, count + 1)
            _expect(tiles, f"{count} blocks do not cover {size} points of dimension {dim}")

    def _body(self, number: int, graph: GraphDefinition) -> Body:
        """Follow the instructions of a body; what it is given and returns is the caller's."""
        _expect(0 <= number < len(self.program.bodies), f"there is no body {number}")
        _expect(number not in self.active, f"body {number} calls itself")
        self.active.append(number)
        body = self.program.bodies[number]
        values = [self.buffers[buffer].value for buffer in body.arguments]
        inputs = [name for name in graph.inputs if number or name not in self.program.storage]
        _expect(values == inputs, f"arguments {values} where {inputs} are")
        _expect(body.graph.inputs == graph.inputs, f"body {number} is called by other names")
        for buffer in body.arguments:
            shape = self.buffers[buffer].layout.shape
            value = self.buffers[buffer].value
            _expect(shape == graph.shapes[value], f"{value} has the shape {list(shape)}")
        live = set[int]()
        self.made.append(set())
        for buffer in body.arguments:
            self._define(buffer, live)
        owned = {body.arguments[n] for n in body.owned}
        for place, instruction in enumerate(body.instructions):
            self.count += 1
            try:
                self._instruction(instruction, live, owned, graph, number == 0)
            except VerificationError as error:
                what = f"instruction {place} of body {number}, {self._text(instruction)}"
                raise VerificationError(f"{what}: {error}") from None
        outputs = list(graph.outputs) if number else self._returned(graph)
        _expect(len(body.results) == len(outputs), f"{len(body.results)} outputs")
        for name, buffer in zip(outputs, body.results):
            self._expect_live(buffer, live)
            value = self.buffers[buffer].value
            _expect(value == name, f"output {name} is {value}")
            _expect(covers(self.buffers[buffer].layout), f"output {name} is not held in full")
        self.active.pop()
        self.made.pop()
        return body

    def _returned(self, graph: GraphDefinition) -> list[str]:
        """Return the outputs that main returns: a stored one is written where it comes first."""
        left = list(graph.outputs)
        for name in self.program.storage:
            if name not in graph.inputs:
                _expect(name in self.written, f"output {name} is stored, and is not written")
                left.remove(name)
        return left

    def _text(self, instruction: Instruction) -> str:
        kind = type(instruction).__name__
        match instruction:
            case Read() | Write():
                return f"{kind} of {instruction.storage}"
            case Transfer() | Slice() | Mask() | Copy():
                return f"{kind} of {self.buffers[instruction.source].value}"
            case Apply() | Loop() | Branch():
                names = [self.buffers[buffer].value for buffer in instruction.results]
                return f"{kind} making {', '.join(names)}"
            case Free():
                return kind

    # Buffers.

    def _expect_live(self, buffer: int, live: set[int]) -> None:
        _expect(buffer in live, f"buffer {buffer} is not there")

    def _define(self, buffer: int, live: set[int]) -> None:
        _expect(0 <= buffer < len(self.buffers), f"there is no buffer {buffer}")
        _expect(buffer not in self.made[-1], f"buffer {buffer} is made twice")
        home = self.homes.setdefault(buffer, self.active[-1])
        _expect(home == self.active[-1], f"buffer {buffer} belongs to body {home}")
        self.made[-1].add(buffer)
        live.add(buffer)

    def _free(self, buffers: Iterable[int], live: set[int], owned: set[int], body: Body) -> None:
        for buffer in buffers:
            self._expect_live(buffer, live)
            theirs = buffer in body.arguments and buffer not in owned
            _expect(not theirs, f"buffer {buffer} belongs to the caller")
            live.discard(buffer)

    def _instruction(
        self,
        instruction: Instruction,
        live: set[int],
        owned: set[int],
        graph: GraphDefinition,
        is_main: bool,
    ) -> None:
        body = self.program.bodies[self.active[-1]]
        match instruction:
            case Transfer() | Slice() | Mask() | Copy():
                self._expect_live(instruction.source, live)
                self._define(instruction.result, live)
                self._derived(instruction)
                if isinstance(instruction, Copy):
                    self._free(instruction.frees, live, owned, body)
            case Apply():
                self._apply(instruction, live, graph, is_main)
            case Read() | Write():
                _expect(is_main, "only main reads from storage and writes to it")
                self._stored(instruction, live, graph)
            case Free():
                self._free(instruction.buffers, live, owned, body)
            case Loop():
                for buffer in (*instruction.carried, *(b for c in instruction.captured for b in c)):
                    self._expect_live(buffer, live)
                self._loop(instruction, graph)
                donated = [instruction.carried[n] for n in instruction.donated]
                given = (*instruction.carried, *(b for c in instruction.captured for b in c))
                alone = all(given.count(buffer) == 1 for buffer in donated)
                _expect(alone, "a donated buffer is carried or captured twice")
                self._free(donated, live, owned, body)
                for buffer in instruction.results:
                    self._define(buffer, live)
            case Branch():
                captured = [buffer for each in instruction.captured for buffer in each]
                for buffer in (instruction.selector, *captured):
                    self._expect_live(buffer, live)
                self._branch(instruction, graph)
                for buffer in instruction.results:
                    self._define(buffer, live)

    # Storage.

    def _stored(self, instruction: Read | Write, live: set[int], graph: GraphDefinition) -> None:
        match instruction:
            case Read():
                self._define(instruction.result, live)
                self._read(instruction, graph)
            case Write():
                self._expect_live(instruction.source, live)
                self._write(instruction, graph)

    def _expect_stored(self, name: str, buffer: Buffer) -> None:
        """A buffer is of the value that is stored under a name, and has no parts."""
        storage = self.program.storage.get(name)
        _expect(storage is not None, f"{name} is not stored")
        assert storage is not None
        _expect(buffer.value == name, f"{buffer.value} is stored as {name}")
        same = (storage.shape, storage.itemsize) == (buffer.layout.shape, buffer.itemsize)
        _expect(same, f"storage has {storage}, {storage.itemsize} B an element")
        _expect(not buffer.layout.parts, f"storage holds whole arrays, not {buffer.layout}")

    def _read(self, read: Read, graph: GraphDefinition) -> None:
        """Every cell has its box of an input."""
        name, buffer = read.storage, self.buffers[read.result]
        _expect(name in graph.inputs, f"{name} is not an input")
        self._expect_stored(name, buffer)
        shape = graph.shapes[name]
        _expect(shape == buffer.layout.shape, f"{name} has the shape {list(shape)}")
        dtype = self.dtypes.setdefault(name, buffer.dtype)
        _expect(dtype == buffer.dtype, f"{name} is read as {dtype} and as {buffer.dtype}")

    def _write(self, write: Write, graph: GraphDefinition) -> None:
        """An output is written once, and some cell has every point of it."""
        name, buffer = write.storage, self.buffers[write.source]
        is_output = name in graph.outputs and name not in graph.inputs
        _expect(is_output, f"{name} is not an output that the program makes")
        self._expect_stored(name, buffer)
        _expect(covers(buffer.layout), f"output {name} is not held in full")
        _expect(name not in self.written, f"output {name} is written twice")
        self.written.add(name)

    # One value in another layout.

    def _derived(self, instruction: Transfer | Slice | Mask | Copy) -> None:
        old, new = self.buffers[instruction.source], self.buffers[instruction.result]
        _expect(old.value == new.value, f"{old.value} becomes {new.value}")
        _expect((old.dtype, old.itemsize) == (new.dtype, new.itemsize), "the dtype changes")
        before, after = old.layout, new.layout
        _expect(before.shape == after.shape, "the shape changes")
        match instruction:
            case Copy():
                _expect(self._same(before, after), f"{before} becomes {after}")
            case Slice():
                _expect(before.parts == after.parts, "a slice changes parts")
                _expect(lies_inside(after, before), f"{after} does not lie inside {before}")
            case Mask():
                self._mask(instruction, before, after)
            case Transfer():
                self._transfer(instruction, before, after)

    def _same(self, one: Layout, two: Layout) -> bool:
        return one == two or (one.parts == two.parts and same_boxes(one, two))

    def _mask(self, mask: Mask, before: Layout, after: Layout) -> None:
        """Copies become parts: cells that differ in the digits alone have the same values."""
        _expect(same_boxes(before, after), "what is masked moves")
        new = [(digit, mask.monoid) for digit in mask.digits]
        _expect(bool(new), "a mask without digits")
        self._expect_digits(mask.digits)
        used = [*box_digits(before), *(digit for digit, _ in before.parts), *mask.digits]
        apart = are_apart(before.cells.shape, used)
        _expect(apart, "only copies become parts, and cells along the digits are not copies")
        monoids = {monoid for _, monoid in (*before.parts, *new)}
        _expect(len(monoids) == 1, f"parts by {_and(monoids)} at once")
        _expect(join_parts((*before.parts, *new)) == after.parts, f"parts are {after}")

    def _transfer(self, transfer: Transfer, before: Layout, after: Layout) -> None:
        """Every cell can get its box, and every old part is in exactly one new one."""
        _expect(covers(before), "the source is not held in full")
        _expect(transfer.kept is None, "parts that stay on the same cells are given other digits")
        gone = [(digit, run.monoid) for run in transfer.combine for digit in run.digits]
        digits = [digit for digit, _ in (*gone, *after.parts)]
        self._expect_digits(digits)
        _expect(are_apart(before.cells.shape, digits), "parts are combined twice, or stay as well")
        _expect(
            join_parts((*gone, *after.parts)) == join_parts(before.parts),
            f"parts by {_parts(before)} are combined by {_and(m for _, m in gone)} "
            f"into parts by {_parts(after)}",
        )
        for digit, monoid in gone:
            for kept, other in after.parts:
                inside = _place(digit) > _place(kept) or monoid == other
                _expect(inside, f"{monoid} is combined before {other}, which lies inside it")
        if len({monoid for _, monoid in gone}) > 1:
            places = [_place(digit) for digit, _ in gone]
            in_order = all(one < two for one, two in pairwise(places))
            _expect(in_order, "parts by several monoids are combined in another order")

    # Applications.

    def _defined(self, number: int, graph: GraphDefinition) -> Definition:
        _expect(0 <= number < len(graph.applications), f"the graph has no application {number}")
        found = graph.applications[number]
        runs = self.program.graphs[self.active[-1]].applications[number]
        same = runs.operator == found.operator and runs.attributes == found.attributes
        _expect(same, f"{_operator_text(runs)} runs where the graph has {_operator_text(found)}")
        return found

    def _expect_values(self, buffers: Sequence[int], names: Sequence[str], what: str) -> None:
        found = [self.buffers[buffer].value for buffer in buffers]
        _expect(len(found) == len(names), f"{len(found)} {what}s where {len(names)} are expected")
        for place, (value, name) in enumerate(zip(found, names)):
            _expect(value == name, f"{what} {place} is {value} where the graph has {name}")

    def _apply(self, apply: Apply, live: set[int], graph: GraphDefinition, is_main: bool) -> None:
        for buffer in apply.operands:
            self._expect_live(buffer, live)
        for buffer in apply.results:
            self._define(buffer, live)
        found = self._defined(apply.definition, graph)
        _expect(not found.regions, f"{found.operator} runs graphs of its own; none is proved")
        self._expect_values(apply.operands, found.operands, "operand")
        self._expect_values(apply.results, found.results, "result")
        operands = tuple(self.buffers[buffer].layout for buffer in apply.operands)
        results = tuple(self.buffers[buffer].layout for buffer in apply.results)
        key = (id(found.space), apply.index, apply.factors, operands, results)
        if key not in self.proved:
            self._expect_well_formed(apply.index)
            self._expect_digits(digit for digits, _, _ in apply.factors for digit in digits)
            _Application(found.space, apply.index, operands, results, apply.factors).check()
            self.proved[key] = found.space  # kept, so that its id stays its own
        if is_main:
            dims = range(len(found.space.sizes))
            boxes = prod([len(apply.index.spans(dim) - {(0, 0)}) for dim in dims])
            reduced = [d for dim, _ in found.space.reduced for d in apply.index.cuts[dim]]
            parts = prod([digit.radix for digit in reduced])
            self.applied.append(AppliedProof(found.operator, boxes, parts))

    # Loops and branches.

    def _called(
        self,
        number: int,
        region: GraphDefinition,
        outside: Sequence[str],
        given: Sequence[int],
        captured: Sequence[int],
    ) -> Body:
        """Verify a body that is called with buffers of the caller."""
        body = self._body(number, region)
        own = [n for n, name in enumerate(region.inputs) if name not in outside]
        theirs = [n for n, name in enumerate(region.inputs) if name in outside]
        _expect(len(own) == len(given), f"a body has {len(own)} arguments, {len(given)} are given")
        _expect(len(theirs) == len(captured), f"{len(captured)} values are captured")
        for place, buffer in (*zip(own, given), *zip(theirs, captured)):
            want, have = self.buffers[body.arguments[place]], self.buffers[buffer]
            what = region.inputs[place]
            same = self._same(have.layout, want.layout) and have.dtype == want.dtype
            _expect(same, f"{what} is given as {have.layout} and assumed as {want.layout}")
        for place, buffer in zip(theirs, captured):
            value, name = self.buffers[buffer].value, region.inputs[place]
            _expect(value == name, f"{value} is captured as {name}")
            _expect(place not in body.owned, f"a body owns {name}, which it captures")
        return body

    def _loop(self, loop: Loop, graph: GraphDefinition) -> None:
        """The carried values enter and leave every iteration as condition and body assume."""
        found = self._defined(loop.definition, graph)
        _expect(found.operator == "while", f"{found.operator} is not a loop")
        _expect(len(found.regions) == 2, "a loop has a condition and a body")
        names = found.operands
        self._expect_values(loop.carried, names[: len(found.results)], "carried value")
        self._expect_values(loop.results, found.results, "result")
        going = self._called(
            loop.condition, found.regions[0], names, loop.carried, loop.captured[0]
        )
        (test,) = going.results
        _expect(self.buffers[test].layout.is_whole, "cells may disagree on whether to go on")
        _expect(not going.owned, "a condition takes no buffer over")
        body = self._called(loop.body, found.regions[1], names, loop.carried, loop.captured[1])
        for place, (enters, leaves) in enumerate(zip(loop.carried, body.results)):
            one, two = self.buffers[leaves].layout, self.buffers[enters].layout
            _expect(
                self._same(one, two), f"value {place} is carried as {two} and returned as {one}"
            )
        own = [n for n, name in enumerate(found.regions[1].inputs) if name not in names]
        for place, argument in enumerate(own):
            if argument in body.owned:
                _expect(place in loop.donated, f"the body frees value {place} of the caller")
            else:
                stays = body.results[place] == body.arguments[argument]
                _expect(stays, f"value {place} changes, and its buffer is not the body's")
        for buffer, result in zip(loop.carried, loop.results):
            one, two = self.buffers[buffer].layout, self.buffers[result].layout
            _expect(self._same(one, two), f"{one} becomes {two}")

    def _branch(self, branch: Branch, graph: GraphDefinition) -> None:
        """All cells take the same branch, and every branch returns the same layouts."""
        found = self._defined(branch.definition, graph)
        _expect(found.operator in ("case", "if"), f"{found.operator} does not choose")
        _expect(len(branch.bodies) == len(found.regions) > 0, f"{len(branch.bodies)} branches")
        self._expect_values([branch.selector], found.operands[:1], "selector")
        whole = self.buffers[branch.selector].layout.is_whole
        _expect(whole, "cells may disagree on the branch")
        self._expect_values(branch.results, found.results, "result")
        _expect(len(branch.captured) == len(branch.bodies), "captured values without a branch")
        for number, (at, region, captured) in enumerate(
            zip(branch.bodies, found.regions, branch.captured)
        ):
            body = self._called(at, region, found.operands, (), captured)
            _expect(not body.owned, "a branch takes no buffer over")
            for place, (leaves, result) in enumerate(zip(body.results, branch.results)):
                one, two = self.buffers[leaves].layout, self.buffers[result].layout
                what = f"result {place} of branch {number}"
                _expect(self._same(one, two), f"{what} is {one}, not {two}")


class _Application:
    """One application on all cells.

    Every part of the results is a term: what the operator makes of one part of the operands in one
    block of the reduced dimensions. The monoid of the parts makes the results of all terms.
    """

    def __init__(
        self,
        space: IndexSpace,
        index: Layout,
        operands: Sequence[Layout],
        results: Sequence[Layout],
        factors: Sequence[tuple[tuple[Digit, ...], str, Point]],
    ) -> None:
        self.space, self.index = space, index
        self.operands, self.results, self.factors = operands, results, factors
        _expect(index.shape == space.sizes, f"the index space is {list(space.sizes)}")
        _expect(index.image is None and not index.parts, "an index space is cut into blocks")
        self.reduced = [digit for dim, _ in space.reduced for digit in index.cuts[dim]]

    def check(self) -> None:
        for dim in self.space.whole:
            spans = self.index.spans(dim)
            _expect(len(spans) < 2, f"index dimension {dim} is cut and must be seen whole")
        monoid = self._monoid()
        used = [digit for digits, _, _ in self.factors for digit in digits]
        digits = [digit for cut in self.index.cuts for digit in cut]
        apart = are_apart(self.index.cells.shape, [*digits, *used])
        _expect(apart, "the index space is not covered once for every part of the operands")
        _expect(len(self.operands) == len(self.space.reads), "operands without a projection")
        for number, layout in enumerate(self.operands):
            self._check_operand(number, layout, monoid)
        _expect(len(self.results) == len(self.space.makes), "results without a projection")
        parts = join_parts((digit, monoid) for digit in (*self.reduced, *used))
        for number, layout in enumerate(self.results):
            projection, shape = self.space.makes[number]
            _expect(shape == layout.shape, f"result {number} has the shape {list(layout.shape)}")
            _expect(
                layout.parts == parts,
                f"result {number} is left in parts by {_parts(layout)}, not by {_text(parts)}",
            )
            self._check_boxes("result", number, projection, layout)
            _expect(covers(layout), f"result {number} is not held in full")
            self._check_dense(number, projection)
            self._check_made_of_something(number, projection)

    def _monoid(self) -> str:
        """The one monoid of all parts: of operands that stay partial, and of what is reduced."""
        monoids = {monoid for dim, monoid in self.space.reduced if self.index.cuts[dim]}
        for digits, monoid, group in self.factors:
            _expect(bool(digits), "a factor without digits")
            monoids.add(monoid)
            _expect(
                (monoid, tuple(sorted(group))) in self.space.distributes,
                f"the operator does not distribute over {monoid} in operands {list(group)}",
            )
        _expect(len(monoids) < 2, f"parts by {_and(monoids)} at once")
        return next(iter(monoids), "")

    def _image(self, projection: Projection, shape: Point) -> Layout:
        index = self.index
        return Layout(index.cells, shape, index.grid, index.cuts, (), projection)

    def _check_boxes(self, what: str, number: int, projection: Projection, layout: Layout) -> None:
        """Every cell has the box that its kernel is given, or makes, and nothing else."""
        image = self._image(projection, layout.shape)
        if same_boxes(image, layout):
            return
        for dim in range(len(layout.shape)):
            for need, have in span_pairs(layout.cells, image.rule(dim), layout.rule(dim)):
                _expect(
                    need == have,
                    f"a cell has {list(have)} of dimension {dim} of {what} {number} where its "
                    f"index box has {list(need)}",
                )

    def _check_operand(self, number: int, layout: Layout, monoid: str) -> None:
        projection, shape = self.space.reads[number]
        _expect(shape == layout.shape, f"operand {number} has the shape {list(layout.shape)}")
        self._check_boxes("operand", number, projection, layout)
        mine = [d for digits, _, group in self.factors if number in group for d in digits]
        once = self.reduced if number in self.space.once else []
        parts = join_parts((digit, monoid) for digit in (*mine, *once))
        _expect(
            layout.parts == parts,
            f"operand {number} is partial by {_parts(layout)} where {_text(parts)} is expected",
        )

    def _check_dense(self, number: int, projection: Projection) -> None:
        """The boxes that cells make have no holes."""
        extents = [
            sorted({high - low for low, high in self.index.spans(dim)})
            for dim in range(len(self.space.sizes))
        ]
        moving = [dim for dim, each in enumerate(extents) if max(each, default=0) > 1]
        for dim in moving:
            rows = sum(row[dim] != 0 for row in projection.matrix)
            _expect(rows < 2, f"index dimension {dim} moves result {number} along a diagonal")
        for n, row in enumerate(projection.matrix):
            dims = [dim for dim in moving if row[dim]]
            one = Projection(
                [[row[dim] for dim in dims]],
                shape=(projection.shape[n],),
                index_ndim=len(dims),
            )
            for chosen in product(*(extents[dim] for dim in dims)):
                dense = one.is_dense(ZRange.of(chosen))
                _expect(dense, f"blocks of {list(chosen)} leave holes in result {number}")

    def _check_made_of_something(self, number: int, projection: Projection) -> None:
        """A cell that makes a box has something of every dimension that the result depends on."""
        own = _dims_of(projection)
        reading = [_dims_of(each) for each, _ in self.space.reads]
        seen = set(own)
        while more := [dims for dims in reading if dims & seen and not dims <= seen]:
            seen = seen.union(*more)
        for dim in sorted(seen - own - {dim for dim, _ in self.space.reduced}):
            some = self.space.sizes[dim] == 0 or (0, 0) not in self.index.spans(dim)
            _expect(some, f"a cell makes result {number} of nothing of index dimension {dim}")


def box_digits(layout: Layout) -> list[Digit]:
    """Return the digits on which the boxes of a layout depend."""
    found = (digit for dim in range(len(layout.shape)) for digit in layout.rule(dim).digits)
    return list(dict.fromkeys(digit._replace(stride=1) for digit in found))


def _operator_text(application: Any) -> str:
    """Return an operator with its attributes, as text."""
    attributes = ", ".join(f"{name}={value}" for name, value in application.attributes.items())
    return f"{application.operator}({attributes})"


def _dims_of(projection: Projection) -> set[int]:
    """Return the index dimensions that a projection looks at."""
    return {dim for row in projection.matrix for dim, step in enumerate(row) if step}


def _place(digit: Digit) -> tuple[int, int]:
    """Return the place of a digit in mesh order."""
    return digit.dim, -digit.divisor


def _and(names: Iterable[str]) -> str:
    return " and ".join(sorted(set(names))) or "nothing"


def _text(parts: Sequence[tuple[Digit, str]]) -> str:
    return ", ".join(f"{monoid} of {digit.radix}" for digit, monoid in parts) or "nothing"


def _parts(layout: Layout) -> str:
    return _text(layout.parts)
