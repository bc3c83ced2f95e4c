"""A verifier that enumerates: every cell, every message and every part, one by one.

It is slow and plain, and exists to be compared with `weft.program.verify`. It uses nothing of
`weft.program.layout_rule`: boxes and parts are recomputed from the digits of every cell, transfers
are expanded into messages, and what becomes of the parts of an array is followed as an expression.
The expression of a partial array combines its parts; whatever is done to the parts must leave an
equal expression, with monoids that are associative and commutative.
"""

from itertools import groupby, product
from math import prod

import numpy as np

from weft.program import Apply, Branch, Copy, Free, Loop, Mask, Read, Route, Slice, Transfer, Write
from weft.program.messages import messages

MALFORMED = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)


class RefusedError(Exception):
    """A program that does not compute its graph."""


def expect(holds, otherwise):
    if not holds:
        raise RefusedError(otherwise)


def accepts(program, graph=None):
    """Return whether a program computes its graph, or another one, and why not."""
    graph = graph or program.main.graph
    try:
        for name, monoid in graph.monoids.items():
            expect(program.monoids.get(name) is monoid, f"{name} is defined otherwise")
        Enumerator(program).body(0, graph)
    except RefusedError as error:
        return False, str(error)
    except MALFORMED as error:
        return False, f"malformed: {error!r}"
    return True, ""


# Layouts, cell by cell.


def digit_of(digit, coordinate):
    expect(0 <= digit.dim < len(coordinate), f"{digit} is of no axis")
    expect(digit.divisor > 0 and digit.radix > 0, f"{digit} is not a digit")
    return coordinate[digit.dim] // digit.divisor % digit.radix


def block_span(grid, dim, number):
    """Return where a block begins and ends; an empty one lies at 0."""
    expect(0 <= number < grid.counts[dim], f"dimension {dim} has no block {number}")
    if grid.edges[dim] is not None:
        low, high = grid.edges[dim][number : number + 2]
    else:
        low, high = (min(n * grid.block_shape[dim], grid.shape[dim]) for n in (number, number + 1))
    return (low, high) if low < high else (0, 0)


def image_span(row, offset, width, size, spans):
    """Return the span of `offset + row · index`, `width` wide, inside an array."""
    low = high = offset
    for step, (first, end) in zip(row, spans, strict=True):
        if step and first == end:
            return (0, 0)
        if step:
            ends = step * first, step * (end - 1)
            low, high = low + min(ends), high + max(ends)
    low, high = max(low, 0), min(high + width, size)
    return (low, high) if low < high else (0, 0)


class CellLayout:
    """The box and the number of the part of every cell."""

    def __init__(self, layout):
        cells = layout.cells
        self.shape = layout.shape
        self.size = prod(cells.shape)
        self.boxes, self.labels = [], []
        for coordinate in product(*map(range, cells.shape)):
            blocks = [
                block_span(layout.grid, dim, sum(digit_of(d, coordinate) * d.stride for d in cut))
                for dim, cut in enumerate(layout.cuts)
            ]
            expect(len(blocks) == len(layout.grid.shape), "a grid of another rank")
            image = layout.image
            if image is not None:
                rows = zip(image.matrix, image.offset, image.shape, layout.shape, strict=True)
                blocks = [image_span(*row, blocks) for row in rows]
            expect(len(blocks) == len(layout.shape), "a box of another rank")
            for (low, high), n in zip(blocks, layout.shape):
                expect(0 <= low <= high <= n, f"a box goes to {high} of {n}")
            self.boxes.append(tuple(blocks))
            label = 0
            for digit, _ in layout.parts:
                label = label * digit.radix + digit_of(digit, coordinate)
            self.labels.append(label)
        self.parts = [(digit.radix, monoid) for digit, monoid in layout.parts]
        self.part_count = prod(size for size, _ in self.parts)

    def is_held(self):
        """Return whether every point is somewhere in every part."""
        held = np.zeros((self.part_count, *self.shape), bool)
        for box, label in zip(self.boxes, self.labels):
            held[(label, *slices(box))] = True
        return bool(held.all())

    def expression(self, contents=None):
        """Return what the array is, given what its parts are: themselves, unless said."""
        return combined(self.parts, contents or {n: n for n in range(self.part_count)})


def slices(box, origin=None):
    starts = [low for low, _ in origin] if origin is not None else [0] * len(box)
    return tuple(slice(low - at, high - at) for (low, high), at in zip(box, starts))


def is_empty(box):
    return any(low == high for low, high in box)


def lies_in(inner, outer):
    if is_empty(inner):
        return all(b - a <= d - c for (a, b), (c, d) in zip(inner, outer))
    return all(c <= a and b <= d for (a, b), (c, d) in zip(inner, outer))


def alike(one, two):
    """Whether two boxes are the same; empty ones may lie anywhere."""
    extents = [[high - low for low, high in box] for box in (one, two)]
    return one == two or (is_empty(one) and extents[0] == extents[1])


# Expressions: a number is a part, ("identity", monoid) an identity, else (monoid, operands).


def combine(monoid, operands):
    """Return a combination in normal form: flat, without identities, in one order."""
    found = []
    for each in operands:
        if each == ("identity", monoid):
            continue
        if isinstance(each, tuple) and each[0] == monoid:
            found += each[1]
        else:
            found.append(each)
    if not found:
        return ("identity", monoid)
    return found[0] if len(found) == 1 else (monoid, tuple(sorted(found, key=repr)))


def combined(parts, contents):
    """Return what parts by several monoids are: combined from the last to the first."""
    if not parts:
        (only,) = contents.values()
        return only
    (size, monoid), rest = parts[0], parts[1:]
    stride = prod(n for n, _ in rest)
    return combine(
        monoid,
        [combined(rest, {n: contents[k * stride + n] for n in range(stride)}) for k in range(size)],
    )


def leaves(expression):
    if isinstance(expression, int):
        return [expression]
    if expression[0] == "identity":
        return []
    return [leaf for each in expression[1] for leaf in leaves(each)]


class Enumerator:
    def __init__(self, program):
        self.program, self.buffers = program, program.buffers
        self.layouts = {}
        self.active = []
        self.written = {}
        expect(all(each.layout.cells == program.cells for each in self.buffers), "other cells")

    def layout(self, layout):
        if layout not in self.layouts:
            self.layouts[layout] = CellLayout(layout)
        return self.layouts[layout]

    def of(self, buffer):
        expect(0 <= buffer < len(self.buffers), f"there is no buffer {buffer}")
        return self.layout(self.buffers[buffer].layout)

    def value(self, buffer):
        return self.buffers[buffer].value

    # Bodies.

    def body(self, number, graph):
        expect(number not in self.active, "a body calls itself")
        expect(number >= 0, f"there is no body {number}")
        self.active.append(number)
        body = self.program.bodies[number]
        stored = {} if number else self.program.storage
        expect(set(stored) <= {*graph.inputs, *graph.outputs}, "neither an input nor an output")
        inputs = [name for name in graph.inputs if name not in stored]
        expect([self.value(b) for b in body.arguments] == inputs, "other arguments")
        expect(body.graph.inputs == graph.inputs, "arguments are bound in another order")
        expect(len(set(body.arguments)) == len(body.arguments), "a buffer is two arguments")
        for buffer in body.arguments:
            layout = self.of(buffer)
            expect(layout.shape == graph.shapes[self.value(buffer)], "another shape")
            expect(number > 0 or layout.is_held(), "an input is not all there")
        live = set(body.arguments)
        for instruction in body.instructions:
            self.instruction(instruction, live, body, graph)
        outputs = list(graph.outputs)
        for name in set(stored) - set(graph.inputs):
            expect(name in self.written, "a stored output is not written")
            expect(self.written[name].all(), "not all of a stored output is written")
            outputs.remove(name)
        expect([self.value(b) for b in body.results] == outputs, "other outputs")
        for buffer in body.results:
            expect(buffer in live, "an output is not there")
            expect(self.of(buffer).is_held(), "an output is not all there")
        self.active.pop()
        return body

    def define(self, buffer, live):
        expect(buffer not in live, f"buffer {buffer} is there already")
        self.of(buffer)
        live.add(buffer)

    def free(self, buffers, live, body):
        for buffer in buffers:
            expect(buffer in live, f"buffer {buffer} is not there")
            if buffer in body.arguments:
                expect(body.arguments.index(buffer) in body.owned, "the caller's buffer is freed")
            live.discard(buffer)

    def instruction(self, instruction, live, body, graph):
        match instruction:
            case Transfer() | Slice() | Mask() | Copy():
                expect(instruction.source in live, "the source is not there")
                self.define(instruction.result, live)
                expect(self.value(instruction.source) == self.value(instruction.result), "value")
                old, new = self.of(instruction.source), self.of(instruction.result)
                expect(old.shape == new.shape, "the shape changes")
                rules = {Transfer: self.transfer, Mask: self.mask, Slice: self.slice_}
                rules.get(type(instruction), self.copy)(instruction, old, new)
                if isinstance(instruction, Copy):
                    self.free(instruction.frees, live, body)
            case Read():
                self.define(instruction.result, live)
                self.read(instruction, graph)
            case Write():
                expect(instruction.source in live, "what is written is not there")
                self.write(instruction, graph)
            case Free():
                self.free(instruction.buffers, live, body)
            case Apply():
                self.apply(instruction, live, graph)
            case Loop():
                self.loop(instruction, live, body, graph)
            case Branch():
                self.branch(instruction, live, graph)

    # Storage.

    def stored(self, name, buffer):
        expect(len(self.active) == 1, "a loop or a branch uses storage")
        expect(name in self.program.storage, "there is no such storage")
        storage, found = self.program.storage[name], self.of(buffer)
        expect(self.value(buffer) == name, "another value")
        expect(storage.shape == found.shape, "another shape")
        expect(storage.itemsize == self.buffers[buffer].itemsize, "another dtype")
        expect(found.part_count == 1, "parts are not stored")
        return found

    def read(self, read, graph):
        found = self.stored(read.storage, read.result)
        expect(read.storage in graph.inputs, "what is read is not an input")
        expect(found.shape == graph.shapes[read.storage], "another shape")

    def write(self, write, graph):
        found = self.stored(write.storage, write.source)
        expect(write.storage not in graph.inputs, "an input is written")
        expect(write.storage in graph.outputs, "what is written is not an output")
        expect(write.storage not in self.written, "written twice")
        self.written[write.storage] = np.zeros(found.shape, bool)
        for box in found.boxes:
            self.written[write.storage][slices(box)] = True

    # One value in another layout.

    def rewritten(self, old, new, contents):
        """Check that what cells now have of every part leaves the array what it was.

        `contents` has for each cell an expression of the old parts, None where it has nothing.
        """
        found = {}
        for label, content in zip(new.labels, contents, strict=True):
            if content is not None:
                same = found.setdefault(label, content) == content
                expect(same, f"part {label} is {found[label]} and {content}")
        if len(found) == new.part_count:
            before, after = old.expression(), new.expression(found)
            expect(before == after, f"{before} becomes {after}")
            return
        used = [leaf for each in found.values() for leaf in leaves(each)]
        expect(len(used) == len(set(used)), "a part counts twice")
        if len({monoid for _, monoid in old.parts}) > 1:
            expect(old.parts == new.parts, "some parts by several monoids are combined")

    def copy(self, instruction, old, new):
        expect(all(map(alike, old.boxes, new.boxes)), "boxes change")
        self.rewritten(old, new, old.labels)

    def slice_(self, instruction, old, new):
        inside = all(lies_in(a, b) for a, b in zip(new.boxes, old.boxes))
        expect(inside, "a slice of what a cell does not have")
        self.rewritten(old, new, old.labels)

    def mask(self, mask, old, new):
        expect(all(map(alike, old.boxes, new.boxes)), "boxes change")
        cells = product(*map(range, self.program.cells.shape))
        hidden = [any(digit_of(digit, at) for digit in mask.digits) for at in cells]
        contents = [
            ("identity", mask.monoid) if is_hidden else label
            for is_hidden, label in zip(hidden, old.labels)
        ]
        self.rewritten(old, new, contents)

    def transfer(self, transfer, old, new):
        layouts = [self.buffers[n].layout for n in (transfer.source, transfer.result)]
        cells = self.program.cells
        ranks = {cells.device(rank): rank for rank in range(old.size)}
        monoids = [run.monoid for run in transfer.combine]
        filled = [np.zeros(tuple(b - a for a, b in box), int) for box in new.boxes]
        contents = [None] * new.size
        moved = messages(Route.of(transfer, *layouts))
        for (device, box), some in groupby(moved, key=lambda each: (each.receiver, each.box)):
            group, receiver = list(some), ranks[device]
            tile = tuple(zip(box.start, box.stop))
            expect(lies_in(tile, new.boxes[receiver]), "a cell has no room for what it gets")
            filled[receiver][slices(tile, new.boxes[receiver])] += 1
            sent = []
            for message in group:
                sender = ranks[message.sender]
                expect(lies_in(tile, old.boxes[sender]), "a cell sends what it does not have")
                sent.append((message.part, old.labels[sender]))
            content = self.arrived(sent, monoids)
            known = contents[receiver]
            expect(known is None or known == content, "tiles of one cell differ")
            contents[receiver] = content
        expect(all((each == 1).all() for each in filled), "pieces do not tile a box")
        self.rewritten(old, new, contents)

    def arrived(self, sent, monoids):
        """Return what a cell puts together: the parts of the last run are combined first."""
        if not monoids:
            ((_, label),) = sent
            return label
        groups = [
            [(part[1:], label) for part, label in group]
            for _, group in groupby(sent, key=lambda each: each[0][:1])
        ]
        return combine(monoids[0], [self.arrived(group, monoids[1:]) for group in groups])

    # Applications.

    def expect_values(self, buffers, names, live=None):
        expect([self.value(b) for b in buffers] == list(names), f"{buffers} are not {names}")
        expect(live is None or all(b in live for b in buffers), "an operand is not there")

    def defined(self, number, graph):
        expect(0 <= number < len(graph.applications), "there is no such application")
        return graph.applications[number]

    def apply(self, apply, live, graph):
        found = self.defined(apply.definition, graph)
        runs = self.program.graphs[self.active[-1]].applications[apply.definition]
        expect(runs.operator == found.operator, f"{runs.operator} runs for {found.operator}")
        expect(dict(runs.attributes) == dict(found.attributes), "other attributes")
        expect(not found.regions, "regions")
        self.expect_values(apply.operands, found.operands, live)
        self.expect_values(apply.results, found.results)
        for buffer in apply.results:
            self.define(buffer, live)
        expect(apply.index.cells == self.program.cells, "other cells")
        AppliedCells(
            found.space,
            self.layout(apply.index),
            [self.of(buffer) for buffer in apply.operands],
            [self.of(buffer) for buffer in apply.results],
            self.factors(apply),
        ).check()

    def factors(self, apply):
        """Return monoid, operands and the number of the part of every cell."""
        found = []
        for digits, monoid, group in apply.factors:
            numbers = []
            for at in product(*map(range, self.program.cells.shape)):
                number = 0
                for digit in digits:
                    number = number * digit.radix + digit_of(digit, at)
                numbers.append(number)
            found.append((monoid, tuple(group), numbers, prod(d.radix for d in digits)))
        return found

    # Loops and branches.

    def expect_same(self, one, two):
        """Check that two buffers lie alike."""
        self.copy(None, self.of(one), self.of(two))

    def called(self, number, region, outside, given, captured):
        body = self.body(number, region)
        own = [n for n, name in enumerate(region.inputs) if name not in outside]
        theirs = [n for n, name in enumerate(region.inputs) if name in outside]
        for place, buffer in (
            *zip(own, given, strict=True),
            *zip(theirs, captured, strict=True),
        ):
            self.expect_same(buffer, body.arguments[place])
        self.expect_values(captured, [region.inputs[n] for n in theirs])
        expect(not body.owned & set(theirs), "a body owns what it captures")
        return body

    def loop(self, loop, live, outer, graph):
        found = self.defined(loop.definition, graph)
        expect(found.operator == "while" and len(found.regions) == 2, "not a loop")
        names = found.operands
        self.expect_values(loop.carried, names[: len(found.results)], live)
        self.expect_values(loop.results, found.results)
        expect(all(b in live for each in loop.captured for b in each), "a captured value")
        condition, inner = found.regions
        going = self.called(loop.condition, condition, names, loop.carried, loop.captured[0])
        (test,) = going.results
        expect(self.of(test).part_count == 1, "cells disagree")
        expect(set(self.of(test).boxes) == {tuple((0, n) for n in self.of(test).shape)}, "test")
        expect(not going.owned, "a condition owns")
        body = self.called(loop.body, inner, names, loop.carried, loop.captured[1])
        for enters, leaves_ in zip(loop.carried, body.results, strict=True):
            self.expect_same(leaves_, enters)
        for enters, result in zip(loop.carried, loop.results, strict=True):
            self.expect_same(enters, result)
        own = [n for n, name in enumerate(inner.inputs) if name not in names]
        for place, argument in enumerate(own):
            if argument in body.owned:
                expect(place in loop.donated, "the body owns what is not donated")
            else:
                stays = body.results[place] == body.arguments[argument]
                expect(stays, "a value changes in the caller's buffer")
        donated = [loop.carried[n] for n in loop.donated]
        others = [b for n, b in enumerate(loop.carried) if n not in loop.donated]
        others += [b for each in loop.captured for b in each]
        expect(len(set(donated)) == len(donated), "donated twice")
        expect(not set(donated) & set(others), "what is donated is used elsewhere")
        self.free(donated, live, outer)
        for buffer in loop.results:
            self.define(buffer, live)

    def branch(self, branch, live, graph):
        found = self.defined(branch.definition, graph)
        expect(found.operator in ("case", "if"), "not a branch")
        self.expect_values([branch.selector], found.operands[:1], live)
        selector = self.of(branch.selector)
        expect(selector.part_count == 1, "cells disagree")
        expect(set(selector.boxes) == {tuple((0, n) for n in selector.shape)}, "selector")
        self.expect_values(branch.results, found.results)
        for at, region, captured in zip(branch.bodies, found.regions, branch.captured, strict=True):
            expect(all(b in live for b in captured), "a captured value")
            body = self.called(at, region, found.operands, (), captured)
            expect(not body.owned, "a branch owns")
            for leaves_, result in zip(body.results, branch.results, strict=True):
                self.expect_same(leaves_, result)
        for buffer in branch.results:
            self.define(buffer, live)


def dims_of(projection):
    return {dim for row in projection.matrix for dim, step in enumerate(row) if step}


class AppliedCells:
    """One application on all cells.

    A cell with a box of the index space and with parts of the operands makes one term of the
    results; the monoid of the parts makes the results of all terms.
    """

    def __init__(self, space, index, operands, results, factors):
        self.space, self.index = space, index
        self.operands, self.results, self.factors = operands, results, factors
        self.cells = range(index.size)
        self.numbers = [tuple(f[2][cell] for f in factors) for cell in self.cells]
        self.terms = results[0].labels if results else index.labels

    def check(self):
        expect(self.index.shape == self.space.sizes, "another index space")
        expect(self.index.part_count == 1, "parts of an index space")
        self.check_whole()
        monoid = self.monoid()
        for what, layouts, maps in (
            ("operand", self.operands, self.space.reads),
            ("result", self.results, self.space.makes),
        ):
            expect(len(layouts) == len(maps), f"other {what}s")
            for number, (layout, (projection, shape)) in enumerate(zip(layouts, maps)):
                expect(layout.shape == shape, f"{what} {number} has another shape")
                for cell in self.cells:
                    image = self.image(projection, shape, self.index.boxes[cell])
                    same = alike(layout.boxes[cell], image)
                    expect(same, f"cell {cell} has another box of {what} {number} than {image}")
        self.check_cover()
        for number, layout in enumerate(self.results):
            expect(layout.is_held(), f"result {number} is not all there")
            expect(layout.labels == self.terms, "results in different parts")
            expect(all(by == monoid for _, by in layout.parts), f"result {number} by another")
            self.check_dense(number)
        terms = self.check_terms()
        for number, layout in enumerate(self.operands):
            self.check_parts(number, layout, terms, monoid)

    def image(self, projection, shape, box):
        rows = zip(projection.matrix, projection.offset, projection.shape, shape)
        return tuple(image_span(*row, box) for row in rows)

    def check_whole(self):
        for box in self.index.boxes:
            for dim in self.space.whole:
                whole = is_empty(box) or box[dim] == (0, self.space.sizes[dim])
                expect(whole, f"index dimension {dim} is cut")

    def monoid(self):
        """Return the one monoid of all parts."""
        monoids = {factor[0] for factor in self.factors}
        for dim, monoid in self.space.reduced:
            spans = {box[dim] for box in self.index.boxes if not is_empty(box)}
            monoids |= {monoid} if spans - {(0, self.space.sizes[dim])} else set()
        if not monoids and any(layout.part_count > 1 for layout in self.results):
            monoids = {monoid for _, monoid in self.space.reduced}  # parts of nothing
        expect(len(monoids) < 2, "several monoids at once")
        for monoid, group, _, _ in self.factors:
            distributes = (monoid, tuple(sorted(group))) in self.space.distributes
            expect(distributes, f"it does not distribute over {monoid} in {group}")
        return next(iter(monoids), "")

    def check_cover(self):
        """For every combination of the operands' parts the index space is covered once."""
        for numbers in product(*(range(factor[3]) for factor in self.factors)):
            mine = [b for b, at in zip(self.index.boxes, self.numbers) if at == numbers]
            count = np.zeros(self.space.sizes, int)
            for box in set(mine):
                count[slices(box)] += 1
            expect((count == 1).all(), f"the index space of parts {numbers} is not covered once")

    def check_dense(self, number):
        """Every point of the box that a cell makes is the image of an index."""
        projection, shape = self.space.makes[number]
        for box in set(self.index.boxes):
            if is_empty(box):
                continue
            extents = [high - low for low, high in box]
            index = np.indices(extents, int).reshape(len(box), prod(extents))
            index += np.array([low for low, _ in box], int)[:, None]
            matrix = np.array(projection.matrix, int).reshape(len(shape), len(box))
            corners = matrix @ index + np.array(projection.offset, int)[:, None]
            made = np.zeros(shape, bool)
            for step in product(*map(range, projection.shape)):
                points = corners + np.array(step, int)[:, None]
                inside = ((points >= 0) & (points < np.array(shape, int)[:, None])).all(0)
                made[tuple(points[:, inside])] = True
            image = self.image(projection, shape, box)
            expect(made[slices(image)].all(), f"{box} leaves holes in {image}")

    def term(self, cell):
        """Return what tells a term: the span of each reduced dimension, and the operands' parts."""
        spans = tuple(self.index.boxes[cell][dim] for dim, _ in self.space.reduced)
        nothing = any(low == high for low, high in spans)
        return (None if nothing else spans), self.numbers[cell]

    def depends_on(self, number):
        """Return the parallel dimensions on which a result depends, through operands too."""
        seen = dims_of(self.space.makes[number][0])
        reading = [dims_of(projection) for projection, _ in self.space.reads]
        while more := [each for each in reading if each & seen and not each <= seen]:
            seen = seen.union(*more)
        return seen - {dim for dim, _ in self.space.reduced}

    def check_terms(self):
        """Every part is one term, and no term is two parts; return a cell of each part."""
        found = {}
        for number, layout in enumerate(self.results):
            for cell in self.cells:
                if is_empty(layout.boxes[cell]):
                    continue
                spans = [self.index.boxes[cell][dim] for dim in self.depends_on(number)]
                expect(all(a < b for a, b in spans), f"cell {cell} makes something of nothing")
                first = found.setdefault(self.terms[cell], cell)
                expect(self.term(first) == self.term(cell), f"cells {first}, {cell} differ")
        seen = {}
        for label, cell in found.items():
            spans, numbers = self.term(cell)
            if spans is not None:
                same = seen.setdefault((spans, numbers), label) == label
                expect(same, f"part {label} counts twice")
        return found

    def check_parts(self, number, layout, terms, monoid):
        """Each part of an operand counts once: in a factor, or outside the reduction."""
        inside = [n for n, factor in enumerate(self.factors) if number in factor[1]]
        is_once = number in self.space.once
        if layout.part_count == 1 and not inside and not (is_once and len(terms) > 1):
            return
        expect(all(by == monoid for _, by in layout.parts), f"operand {number} by another")
        of_term = {}
        for result in self.results:
            for cell in self.cells:
                if not is_empty(result.boxes[cell]):
                    label = of_term.setdefault(self.terms[cell], layout.labels[cell])
                    expect(label == layout.labels[cell], f"parts of operand {number} are mixed")
        counted = {}
        for label, cell in terms.items():
            here = tuple(self.numbers[cell][n] for n in inside)
            there = tuple(k for n, k in enumerate(self.numbers[cell]) if n not in inside)
            counted.setdefault(here, {}).setdefault(there, []).append(of_term[label])
        every = []
        for groups in counted.values():
            each = [sorted(some if is_once else set(some)) for some in groups.values()]
            equal = all(some == each[0] for some in each)
            expect(equal and (is_once or len(each[0]) == 1), f"operand {number} is partial")
            every += each[0]
        wanted = list(range(layout.part_count)) if terms else []
        expect(sorted(every) == wanted, f"operand {number} counts parts {sorted(every)}")
