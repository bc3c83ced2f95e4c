"""Programs with one thing changed, and plans with one thing changed."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import patch

from tests.program.random_plans import MONOIDS, REDUCED
from tests.runtime.monoids import MONOIDS_OF_USERS
from tests.runtime.tensors import pieces, random_spec

import weft.plan.placed
from weft import DeviceMesh, ShardingSpec, WeftError
from weft.lang import Graph
from weft.lang.dtype import components
from weft.plan.placed import place
from weft.program import (
    Apply,
    Branch,
    Combine,
    Copy,
    Free,
    Loop,
    Mask,
    Read,
    Slice,
    Storage,
    Transfer,
    Write,
)
from weft.space import BlockGrid, Digit
from weft.values import FrozenMap


class Chooser:
    """Changes one thing, chosen at random among `changes`."""

    def __init__(self, rng, monoids=MONOIDS):
        self.rng, self.monoids = rng, monoids
        self.changes = []

    def pick(self, items):
        items = list(items)
        if not items:
            raise IndexError("there is nothing to change")
        return items[int(self.rng.integers(len(items)))]

    def two(self, items):
        """The places of two items."""
        a = self.pick(range(len(items)))
        return a, self.pick(n for n in range(len(items)) if n != a)

    def chance(self, of):
        return self.rng.random() < of

    def mutant(self, what):
        """Something changed, and the name of the change; None where none can be made here."""
        for _ in range(20):
            change = self.pick(self.changes)
            try:
                changed = change(what)
            except (WeftError, IndexError):
                continue
            if changed is not None:
                return changed, change.__name__
        return None


class ProgramMutator(Chooser):
    """Changes one thing in a program: an instruction, a layout, an order, a body."""

    def __init__(self, rng, monoids=MONOIDS):
        super().__init__(rng, monoids)
        self.changes = [
            *(self.transfer_buffer, self.transfer_combine, self.transfer_combine),
            *(self.transfer_kept, self.transfer_layout, self.transfer_layout, self.kind),
            *(self.mask_digits, self.mask_digits, self.mask_monoid, self.mask_dropped),
            *(self.slice_buffer, self.slice_layout, self.copy_buffer, self.copy_frees),
            *(self.operand, self.operand, self.operands_swapped, self.definition),
            *(self.index_cuts, self.index_cuts, self.index_grid, self.factors, self.factors),
            *(self.layout_cuts, self.layout_parts, self.layout_parts, self.layout_grid),
            *(self.loop_layout, self.loop_layout, self.carried, self.captured, self.captured),
            *(self.donated, self.owned, self.called_body, self.selector, self.arguments),
            *(self.swapped, self.swapped, self.deleted, self.repeated, self.moved),
            *(self.freed_early, self.freed, self.outputs, self.results, self.value),
            self.monoid_definition,
        ]

    def for_storage(self):
        """The same, with changes of what is read and written more often than others."""
        self.changes += [
            *(self.read_buffer, self.read_name, self.read_layout, self.read_layout),
            *(self.read_elsewhere, self.write_buffer, self.write_name, self.write_layout),
            *(self.not_written, self.written_twice, self.bound, self.unbound, self.stored),
        ]
        return self

    # Programs with something else in one place.

    def with_body(self, program, number, **fields):
        bodies = list(program.bodies)
        bodies[number] = replace(bodies[number], **fields)
        return replace(program, bodies=tuple(bodies))

    def with_code(self, program, number, code):
        return self.with_body(program, number, instructions=tuple(code))

    def with_instruction(self, program, at, **fields):
        number, place = at
        code = list(program.bodies[number].instructions)
        code[place] = replace(code[place], **fields)
        return self.with_code(program, number, code)

    def with_buffer(self, program, number, **fields):
        buffers = list(program.buffers)
        buffers[number] = replace(buffers[number], **fields)
        return replace(program, buffers=tuple(buffers))

    def with_layout(self, program, number, **fields):
        layout = replace_layout(program.buffers[number].layout, **fields)
        return self.with_buffer(program, number, layout=layout)

    def find(self, program, *kinds):
        """The place of an instruction, and the instruction."""
        found = [
            ((number, place), instruction)
            for number, body in enumerate(program.bodies)
            for place, instruction in enumerate(body.instructions)
            if isinstance(instruction, kinds)
        ]
        return self.pick(found)

    def other_buffer(self, program, number):
        """Another buffer, mostly one of the same value or shape."""
        old = program.buffers[number]
        every = [n for n in range(len(program.buffers)) if n != number]
        alike = [n for n in every if program.buffers[n].layout.shape == old.layout.shape]
        same = [n for n in alike if program.buffers[n].value == old.value]
        choices = [each for each in (same, alike, every) if each]
        return self.pick(self.pick(choices))

    # Digits and layouts.

    def digit(self, program, stride=1):
        """A digit of the mesh: an axis, a part of one, or one that is not right."""
        shape = program.cells.shape
        dim = self.pick(range(len(shape)))
        size = shape[dim]
        if self.chance(0.05):
            return Digit(*(int(n) for n in self.rng.integers(-1, 4, 3)), stride)
        if size == 4 and self.chance(0.5):
            return Digit(dim, self.pick([1, 2]), 2, stride)
        return Digit(dim, 1, size, stride)

    def other_digit(self, program, digit):
        if self.chance(0.3):
            field = self.pick(["dim", "divisor", "radix", "stride"])
            return digit._replace(**{field: getattr(digit, field) + self.pick([-1, 1])})
        return self.digit(program, digit.stride)

    def other_cuts(self, program, cuts):
        """Other digits for the blocks of a grid, and the grid that they number."""
        cuts = [list(cut) for cut in cuts]
        what = self.pick(["swap", "digit", "add", "drop", "move", "order"])
        if what == "swap":
            a, b = self.two(cuts)
            cuts[a], cuts[b] = cuts[b], cuts[a]
        elif what == "digit":
            cut = self.pick([cut for cut in cuts if cut])
            n = self.pick(range(len(cut)))
            cut[n] = self.other_digit(program, cut[n])
        elif what == "add":
            self.pick(cuts).append(self.digit(program))
        elif what == "drop":
            self.pick([cut for cut in cuts if cut]).pop()
        elif what == "move":
            a, b = self.two(cuts)
            cuts[b].append(cuts[a].pop())
        else:
            self.pick([cut for cut in cuts if len(cut) > 1]).reverse()
        return cuts

    def recut(self, program, layout):
        cuts = self.other_cuts(program, layout.cuts)
        if self.chance(0.1):  # with the strides and the grid that it had
            return replace_layout(layout, cuts=tuple(map(tuple, cuts)))
        numbered, counts = [], []
        for cut in cuts:
            stride, found = 1, []
            for digit in reversed(cut):
                found.insert(0, digit._replace(stride=stride))
                stride *= digit.radix
            numbered.append(tuple(found))
            counts.append(stride)
        grid = BlockGrid.cut(layout.grid.shape, counts)
        return replace_layout(layout, cuts=tuple(numbered), grid=grid)

    def regrid(self, layout):
        """A grid whose blocks have another shape, or end elsewhere."""
        grid = layout.grid
        dim = self.pick(range(grid.ndim))
        if self.chance(0.5):
            edges = sorted(
                int(n) for n in self.rng.integers(0, grid.shape[dim] + 1, grid.counts[dim] + 1)
            )
            if self.chance(0.7):
                edges[0], edges[-1] = 0, grid.shape[dim]
            every = list(grid.edges)
            every[dim] = tuple(edges)
            changed = BlockGrid(grid.shape, grid.counts, grid.block_shape, tuple(every))
        else:
            extents = list(grid.block_shape)
            extents[dim] += self.pick([-1, 1])
            changed = BlockGrid(grid.shape, grid.counts, tuple(extents), grid.edges)
        return replace_layout(layout, grid=changed)

    def other_parts(self, program, parts):
        parts = list(parts)
        what = self.pick(["monoid", "drop", "add", "digit", "order"])
        if what == "add":
            parts.insert(self.pick([0, len(parts)]), (self.digit(program), self.pick(self.monoids)))
            return tuple(parts)
        n = self.pick(range(len(parts)))
        digit, monoid = parts[n]
        if what == "monoid":
            parts[n] = digit, self.pick(m for m in self.monoids if m != monoid)
        elif what == "drop":
            del parts[n]
        elif what == "digit":
            parts[n] = self.other_digit(program, digit), monoid
        else:
            parts.reverse()
        return tuple(parts)

    def other_layout(self, program, layout):
        what = self.pick(["cuts", "cuts", "parts", "grid", "image"])
        if what == "cuts":
            return self.recut(program, layout)
        if what == "parts":
            return replace_layout(layout, parts=self.other_parts(program, layout.parts))
        if what == "grid":
            return self.regrid(layout)
        fit = [
            each.layout
            for each in program.buffers
            if each.layout.shape == layout.shape and each.layout != layout
        ]
        return self.pick(fit)

    def used(self, program):
        """A buffer that some instruction makes or is given."""
        found = [b for body in program.bodies for b in body.arguments]
        for instruction in program.walk():
            found += made_by(instruction)
        return self.pick(found)

    def layout_cuts(self, program):
        number = self.used(program)
        layout = self.recut(program, program.buffers[number].layout)
        return self.with_buffer(program, number, layout=layout)

    def layout_grid(self, program):
        number = self.used(program)
        layout = self.regrid(program.buffers[number].layout)
        return self.with_buffer(program, number, layout=layout)

    def layout_parts(self, program):
        """Other parts, in one buffer or in all that are made of it without a kernel."""
        number = self.used(program)
        old = program.buffers[number].layout
        parts = self.other_parts(program, old.parts)
        if self.chance(0.5):
            return self.with_layout(program, number, parts=parts)
        buffers = [
            replace(each, layout=replace_layout(each.layout, parts=parts))
            if each.value == program.buffers[number].value and each.layout.parts == old.parts
            else each
            for each in program.buffers
        ]
        return replace(program, buffers=tuple(buffers))

    def value(self, program):
        number = self.used(program)
        other = program.buffers[self.other_buffer(program, number)]
        return self.with_buffer(program, number, value=other.value)

    # Storage.

    def other_name(self, program, name):
        """The name of another value, mostly one that is stored."""
        every = {buffer.value for buffer in program.buffers} - {name}
        stored = sorted(every & set(program.storage))
        return self.pick(stored if stored and self.chance(0.7) else sorted(every))

    def read_buffer(self, program):
        at, found = self.find(program, Read)
        return self.with_instruction(program, at, result=self.other_buffer(program, found.result))

    def read_name(self, program):
        at, found = self.find(program, Read)
        return self.with_instruction(program, at, storage=self.other_name(program, found.storage))

    def read_layout(self, program):
        _, found = self.find(program, Read)
        layout = self.other_layout(program, program.buffers[found.result].layout)
        return self.with_buffer(program, found.result, layout=layout)

    def read_elsewhere(self, program):
        """What another instruction makes is read instead, as if it were an input."""
        at, found = self.find(program, Apply, Transfer, Slice, Copy, Mask)
        (result,) = made_by(found)[:1]
        code = list(program.bodies[at[0]].instructions)
        code[at[1]] = Read(program.buffers[result].value, result)
        return self.with_code(program, at[0], code)

    def write_buffer(self, program):
        at, found = self.find(program, Write)
        return self.with_instruction(program, at, source=self.other_buffer(program, found.source))

    def write_name(self, program):
        at, found = self.find(program, Write)
        return self.with_instruction(program, at, storage=self.other_name(program, found.storage))

    def write_layout(self, program):
        _, found = self.find(program, Write)
        layout = self.other_layout(program, program.buffers[found.source].layout)
        return self.with_buffer(program, found.source, layout=layout)

    def not_written(self, program):
        (number, place), _ = self.find(program, Write)
        code = list(program.bodies[number].instructions)
        del code[place]
        return self.with_code(program, number, code)

    def written_twice(self, program):
        (number, place), found = self.find(program, Write)
        code = list(program.bodies[number].instructions)
        code.insert(place, found)
        return self.with_code(program, number, code)

    def bound(self, program):
        """Another value is said to be stored."""
        value = program.buffers[self.used(program)]
        shape = value.layout.shape
        storage = Storage(shape, [2] * len(shape), itemsize=value.itemsize)
        return replace(program, storage={**program.storage, value.value: storage})

    def unbound(self, program):
        left = dict(program.storage)
        del left[self.pick(left)]
        return replace(program, storage=left)

    def stored(self, program):
        """The storage of a value is that of another array."""
        name = self.pick(program.storage)
        old = program.storage[name]
        shape, itemsize = list(old.shape), old.itemsize
        if shape and self.chance(0.7):
            shape[self.pick(range(len(shape)))] += 1
        else:
            itemsize += 1
        other = Storage(shape, old.chunk, itemsize=itemsize)
        return replace(program, storage={**program.storage, name: other})

    # Transfers, masks, slices, copies.

    def transfer_buffer(self, program):
        at, found = self.find(program, Transfer)
        field = self.pick(["source", "source", "result"])
        other = self.other_buffer(program, getattr(found, field))
        return self.with_instruction(program, at, **{field: other})

    def transfer_layout(self, program):
        _, found = self.find(program, Transfer)
        number = self.pick([found.result, found.result, found.source])
        layout = self.other_layout(program, program.buffers[number].layout)
        return self.with_buffer(program, number, layout=layout)

    def transfer_combine(self, program):
        """Other runs of digits: dropped, added, divided, joined, by another monoid."""
        at, found = self.find(program, Transfer)
        runs = list(found.combine)
        what = self.pick(["monoid", "drop", "repeat", "order", "digit", "digits", "add", "split"])
        if what == "add" or not runs:
            digits = tuple(self.digit(program) for _ in range(self.pick([1, 1, 2])))
            run = Combine(self.pick(self.monoids), digits)
            runs.insert(self.pick([0, len(runs)]), run)
            return self.with_instruction(program, at, combine=tuple(runs))
        n = self.pick(range(len(runs)))
        run = runs[n]
        if what == "monoid":
            other = self.pick(m for m in self.monoids if m != run.monoid)
            runs[n] = replace(run, monoid=other)
        elif what == "drop":
            del runs[n]
        elif what == "repeat":
            runs.insert(n, run)
        elif what == "order":
            runs.reverse()
        elif what == "digit":
            digits = list(run.digits)
            m = self.pick(range(len(digits)))
            digits[m] = self.other_digit(program, digits[m])
            runs[n] = replace(run, digits=tuple(digits))
        elif what == "split":
            runs[n : n + 1] = [replace(run, digits=(digit,)) for digit in run.digits]
        else:
            digits = self.pick([run.digits[1:], run.digits[::-1], run.digits * 2, ()])
            runs[n] = replace(run, digits=digits)
        return self.with_instruction(program, at, combine=tuple(runs))

    def transfer_kept(self, program):
        at, found = self.find(program, Transfer)
        parts = program.buffers[found.result].layout.parts
        same = tuple((digit, digit) for digit, _ in parts)
        if self.chance(0.5) and same:
            n = self.pick(range(len(same)))
            one, two = same[n]
            changed = self.pick([(self.digit(program), two), (one, self.digit(program))])
            kept = (*same[:n], changed, *same[n + 1 :])
        else:
            kept = self.pick([(), same, same[1:], ((self.digit(program), self.digit(program)),)])
        return self.with_instruction(program, at, kept=kept)

    def kind(self, program):
        """The collective, and how senders are chosen: nothing relies on them."""
        at, _ = self.find(program, Transfer)
        paces = tuple((float(n), 0.0) for n in self.rng.random(len(program.cells.shape)))
        fields = {"kind": "all_gather", "balance": paces, "one_to_one": self.chance(0.5)}
        return self.with_instruction(program, at, **fields)

    def mask_digits(self, program):
        at, found = self.find(program, Mask)
        digits = list(found.digits)
        what = self.pick(["digit", "drop", "add", "repeat"])
        n = self.pick(range(len(digits)))
        if what == "digit":
            digits[n] = self.other_digit(program, digits[n])
        elif what == "drop":
            del digits[n]
        elif what == "add":
            digits.append(self.digit(program))
        else:
            digits.append(digits[n])
        changed = self.with_instruction(program, at, digits=tuple(digits))
        if self.chance(0.5):
            old = program.buffers[found.source].layout.parts
            parts = tuple((digit, found.monoid) for digit in digits)
            changed = self.with_layout(changed, found.result, parts=(*old, *parts))
        return changed

    def mask_monoid(self, program):
        at, found = self.find(program, Mask)
        other = self.pick(m for m in self.monoids if m != found.monoid)
        return self.with_instruction(program, at, monoid=other)

    def mask_dropped(self, program):
        """No mask: its source is used instead, as if it were masked."""
        (number, place), found = self.find(program, Mask)
        code = list(program.bodies[number].instructions)
        code[place] = Copy(found.source, found.result)
        return self.with_code(program, number, code)

    def slice_buffer(self, program):
        at, found = self.find(program, Slice)
        field = self.pick(["source", "result"])
        other = self.other_buffer(program, getattr(found, field))
        return self.with_instruction(program, at, **{field: other})

    def slice_layout(self, program):
        _, found = self.find(program, Slice)
        number = self.pick([found.source, found.result])
        layout = self.other_layout(program, program.buffers[number].layout)
        return self.with_buffer(program, number, layout=layout)

    def copy_buffer(self, program):
        at, found = self.find(program, Copy)
        field = self.pick(["source", "result"])
        other = self.other_buffer(program, getattr(found, field))
        return self.with_instruction(program, at, **{field: other})

    def copy_frees(self, program):
        at, found = self.find(program, Copy)
        frees = self.pick([(), found.frees[1:], (*found.frees, self.used(program))])
        return self.with_instruction(program, at, frees=frees)

    # Applications.

    def operand(self, program):
        at, found = self.find(program, Apply)
        operands = list(found.operands)
        n = self.pick(range(len(operands)))
        operands[n] = self.other_buffer(program, operands[n])
        return self.with_instruction(program, at, operands=tuple(operands))

    def operands_swapped(self, program):
        at, found = self.find(program, Apply)
        operands = list(found.operands)
        a, b = self.two(operands)
        operands[a], operands[b] = operands[b], operands[a]
        return self.with_instruction(program, at, operands=tuple(operands))

    def results(self, program):
        at, found = self.find(program, Apply, Loop, Branch)
        made = list(found.results)
        n = self.pick(range(len(made)))
        made[n] = self.other_buffer(program, made[n])
        return self.with_instruction(program, at, results=tuple(made))

    def definition(self, program):
        at, _ = self.find(program, Apply, Loop, Branch)
        count = len(program.bodies[at[0]].graph.applications)
        return self.with_instruction(program, at, definition=self.pick(range(-1, count + 1)))

    def index_cuts(self, program):
        at, found = self.find(program, Apply)
        return self.with_instruction(program, at, index=self.recut(program, found.index))

    def index_grid(self, program):
        at, found = self.find(program, Apply)
        return self.with_instruction(program, at, index=self.regrid(found.index))

    def factors(self, program):
        at, found = self.find(program, Apply)
        factors = list(found.factors)
        count = range(len(found.operands))
        if not factors or self.chance(0.3):
            group = tuple(n for n in count if self.chance(0.6))
            factors.append(((self.digit(program),), self.pick(self.monoids), group))
        else:
            n = self.pick(range(len(factors)))
            digits, monoid, group = factors[n]
            what = self.pick(["drop", "monoid", "group", "digit", "repeat"])
            if what == "drop":
                del factors[n]
            elif what == "monoid":
                factors[n] = digits, self.pick(self.monoids), group
            elif what == "group":
                factors[n] = digits, monoid, tuple(n for n in count if self.chance(0.6))
            elif what == "digit":
                factors[n] = (self.other_digit(program, digits[0]), *digits[1:]), monoid, group
            else:
                factors.append(factors[n])
        return self.with_instruction(program, at, factors=tuple(factors))

    # Loops and branches.

    def loop_layout(self, program):
        """Another layout of what a loop carries, returns, is given or captures."""
        _, found = self.find(program, Loop, Branch)
        numbers = [found.condition, found.body] if isinstance(found, Loop) else found.bodies
        buffers = [*found.results, *(b for each in found.captured for b in each)]
        for body in (program.bodies[number] for number in numbers):
            buffers += [*body.arguments, *body.results]
        if isinstance(found, Loop):
            buffers += found.carried
        number = self.pick(buffers)
        layout = self.other_layout(program, program.buffers[number].layout)
        return self.with_buffer(program, number, layout=layout)

    def carried(self, program):
        at, found = self.find(program, Loop)
        carried = list(found.carried)
        if self.chance(0.5):
            a, b = self.two(carried)
            carried[a], carried[b] = carried[b], carried[a]
        else:
            n = self.pick(range(len(carried)))
            carried[n] = self.pick([self.other_buffer(program, carried[n]), *carried])
        return self.with_instruction(program, at, carried=tuple(carried))

    def captured(self, program):
        at, found = self.find(program, Loop, Branch)
        captured = [list(each) for each in found.captured]
        each = self.pick(captured)
        what = self.pick(["drop", "swap", "other", "other", "add"])
        if what == "add":
            each.append(self.used(program))
        elif what == "swap":
            a, b = self.two(each)
            each[a], each[b] = each[b], each[a]
        elif what == "drop":
            del each[self.pick(range(len(each)))]
        else:
            n = self.pick(range(len(each)))
            each[n] = self.other_buffer(program, each[n])
        return self.with_instruction(program, at, captured=tuple(map(tuple, captured)))

    def donated(self, program):
        at, found = self.find(program, Loop)
        donated = found.donated ^ {self.pick(range(len(found.carried)))}
        return self.with_instruction(program, at, donated=donated)

    def owned(self, program):
        number = self.pick(range(len(program.bodies)))
        body = program.bodies[number]
        owned = body.owned ^ {self.pick(range(len(body.arguments)))}
        return self.with_body(program, number, owned=owned)

    def arguments(self, program):
        number = self.pick(range(len(program.bodies)))
        arguments = list(program.bodies[number].arguments)
        if self.chance(0.5):
            a, b = self.two(arguments)
            arguments[a], arguments[b] = arguments[b], arguments[a]
        else:
            n = self.pick(range(len(arguments)))
            arguments[n] = self.other_buffer(program, arguments[n])
        return self.with_body(program, number, arguments=tuple(arguments))

    def called_body(self, program):
        at, found = self.find(program, Loop, Branch)
        numbers = range(len(program.bodies))
        if isinstance(found, Loop):
            fields = {self.pick(["condition", "body"]): self.pick(numbers)}
        else:
            bodies = list(found.bodies)
            bodies[self.pick(range(len(bodies)))] = self.pick(numbers)
            fields = {"bodies": tuple(bodies)}
        return self.with_instruction(program, at, **fields)

    def selector(self, program):
        at, found = self.find(program, Branch)
        return self.with_instruction(
            program, at, selector=self.other_buffer(program, found.selector)
        )

    # Orders, frees, outputs.

    def swapped(self, program):
        """Two neighbouring instructions in another order."""
        number = self.pick(n for n, b in enumerate(program.bodies) if len(b.instructions) > 1)
        code = list(program.bodies[number].instructions)
        n = self.pick(range(len(code) - 1))
        code[n], code[n + 1] = code[n + 1], code[n]
        return self.with_code(program, number, code)

    def moved(self, program):
        (number, place), _ = self.find(program, object)
        code = list(program.bodies[number].instructions)
        code.insert(self.pick(range(len(code))), code.pop(place))
        return self.with_code(program, number, code)

    def deleted(self, program):
        (number, place), _ = self.find(program, object)
        code = list(program.bodies[number].instructions)
        del code[place]
        return self.with_code(program, number, code)

    def repeated(self, program):
        (number, place), found = self.find(program, object)
        code = list(program.bodies[number].instructions)
        code.insert(self.pick(range(place, len(code) + 1)), found)
        return self.with_code(program, number, code)

    def freed_early(self, program):
        (number, place), found = self.find(program, Free)
        code = list(program.bodies[number].instructions)
        del code[place]
        code.insert(self.pick(range(place + 1)), found)
        return self.with_code(program, number, code)

    def freed(self, program):
        at, found = self.find(program, Free)
        buffers = self.pick([(*found.buffers, self.used(program)), found.buffers * 2])
        return self.with_instruction(program, at, buffers=buffers)

    def monoid_definition(self, program):
        """Another definition under the name of a monoid, or none."""
        known = dict(program.monoids)
        name = self.pick(known)
        del known[name]
        if self.chance(0.7):
            known[name] = self.pick(m for m in MONOIDS_OF_USERS if m.name != name)
        return replace(program, monoids=known)

    def outputs(self, program):
        number = self.pick(range(len(program.bodies)))
        results = list(program.bodies[number].results)
        n = self.pick(range(len(results)))
        results[n] = self.other_buffer(program, results[n])
        return self.with_body(program, number, results=tuple(results))


def made_by(instruction):
    match instruction:
        case Transfer() | Slice() | Mask() | Copy() | Read():
            return [instruction.result]
        case Apply() | Loop() | Branch():
            return list(instruction.results)
    return []


def replace_layout(layout, **fields):
    names = ("cells", "shape", "grid", "cuts", "parts", "image")
    return type(layout)(**{**{name: getattr(layout, name) for name in names}, **fields})


class PlanMutator(Chooser):
    """Changes one thing in a plan, or in that of a region: the program follows from it."""

    def __init__(self, rng, mesh, monoids=MONOIDS):
        super().__init__(rng, monoids)
        self.mesh = mesh
        self.changes = [
            *(self.graph_operands, self.graph_operands, self.graph_operator),
            *(self.graph_attributes, self.spec, self.spec, self.spec_device_order, self.output),
            *(self.replaced, self.index, self.signature, self.operand_spec),
            *(self.partials_monoid, self.partials_dropped, self.partials_added),
            *(self.result_monoid, self.result_spec, self.kept, self.kept, self.swapped_placed),
        ]

    def mutant(self, plan):
        numbers = list(plan.regions)
        if not numbers or self.chance(0.4):
            return super().mutant(plan)
        number = self.pick(numbers)
        inner = list(plan.regions[number])
        place_ = self.pick(range(len(inner)))
        found = self.mutant(inner[place_])
        if found is None:
            return None
        inner[place_] = found[0]
        application = plan.graph.applications[number]
        graphs = tuple(each.graph for each in inner)
        changed = replace(plan, regions=FrozenMap({**plan.regions, number: tuple(inner)}.items()))
        if graphs != application.regions and self.chance(0.5):
            made = self.with_application(plan, number, application._replace(regions=graphs))
            changed = made and replace(changed, graph=made.graph)
        return changed and (changed, found[1])

    def application(self, plan, least=0):
        return self.pick(
            n
            for n, application in enumerate(plan.graph.applications)
            if not application.regions and len(application.operands) >= least
        )

    # The graph.

    def with_application(self, plan, number, application):
        graph = plan.graph
        applications = list(graph.applications)
        applications[number] = application
        made = Graph(graph.inputs, applications, graph.outputs)
        if made.signatures[number].sizes != graph.signatures[number].sizes:
            return None
        placed = list(plan.placed)
        placed[number] = replace(placed[number], signature=made.signatures[number])
        return replace(plan, graph=made, placed=tuple(placed))

    def graph_operands(self, plan):
        number = self.application(plan, 2)
        application = plan.graph.applications[number]
        operands = list(application.operands)
        if self.chance(0.5):
            operands.reverse()
        else:
            first = plan.graph.values[operands[0]]
            before = {value.name for value in plan.graph.inputs}
            before |= {n for a in plan.graph.applications[:number] for n in a.results}
            operands[0] = self.pick(
                value.name
                for value in plan.graph.values.values()
                if value[1:] == first[1:] and value.name in before
            )
        if tuple(operands) == application.operands:
            return None
        return self.with_application(plan, number, application._replace(operands=tuple(operands)))

    def graph_operator(self, plan):
        number = self.application(plan)
        application = plan.graph.applications[number]
        kinds = [
            ["add", "subtract", "multiply", "maximum", "minimum"],
            ["negate", "relu", "abs", "sign"],
            list(REDUCED),
        ]
        for names in kinds:
            if application.operator in names:
                other = self.pick(n for n in names if n != application.operator)
                return self.with_application(plan, number, application._replace(operator=other))
        return None

    def graph_attributes(self, plan):
        number = self.application(plan)
        application = plan.graph.applications[number]
        attributes = dict(application.attributes)
        if application.operator == "slice":
            for name in ("start_indices", "limit_indices"):
                attributes[name] = tuple(n - 1 for n in attributes[name])
            if min(attributes["start_indices"], default=-1) < 0:
                return None
        elif application.operator == "compare":
            attributes["comparison_direction"] = "GE"
        elif application.operator == "constant" and isinstance(attributes["value"], tuple):
            *rest, last = attributes["value"]  # a random key
            attributes["value"] = (*rest, last + 1)
        elif application.operator == "constant":
            attributes["value"] += 1
        elif application.operator == "dropout":
            attributes["rate"] /= 2
        elif application.operator == "aggregate":
            alike = [{"first_largest", "first_smallest"}, {"parity", "sum_of_users"}]
            names = self.pick(each for each in alike if attributes["monoid"] in each)
            (attributes["monoid"],) = names - {attributes["monoid"]}
        elif application.operator == "component":
            dtype = plan.graph.values[application.operands[0]].dtype
            attributes["name"] = self.pick(
                part.name for part in components(dtype) if part.name != attributes["name"]
            )
        elif application.operator == "convolution":
            attributes["padding"] = (2, 0)
        elif application.operator == "cumsum":
            attributes["dimension"] = (attributes["dimension"] + 1) % 2
        else:
            return None
        changed = application._replace(attributes=FrozenMap(attributes.items()))
        return self.with_application(plan, number, changed)

    # Shardings of values.

    def other_spec(self, spec, shape):
        """Another sharding."""
        monoids = self.monoids if self.chance(0.4) else ()
        for _ in range(10):
            if spec.partial and self.chance(0.4):
                other = self.pick(m for m in self.monoids if m not in spec.partial.values())
                parts = dict.fromkeys(spec.partial, other)
                found = ShardingSpec(self.mesh, spec.dim_specs, (), parts)
            elif spec.partial and self.chance(0.4):
                found = ShardingSpec(self.mesh, spec.dim_specs)
            else:
                found = random_spec(self.rng, self.mesh, shape, monoids)
            if found != spec:
                return found
        return spec

    def with_spec(self, plan, name, spec):
        return replace(plan, specs=FrozenMap({**plan.specs, name: spec}.items()))

    def spec(self, plan):
        name = self.pick(plan.specs)
        other = self.other_spec(plan.specs[name], plan.graph.values[name].shape)
        return self.with_spec(plan, name, other)

    def spec_device_order(self, plan):
        name = self.pick(plan.specs)
        spec, mesh = plan.specs[name], self.mesh
        ids = tuple(int(n) for n in self.rng.permutation(mesh.size))
        turned = DeviceMesh(mesh.name, mesh.shape, mesh.axis_names, device_ids=ids)
        other = ShardingSpec(turned, spec.dim_specs, (), spec.partial)
        return self.with_spec(plan, name, other)

    def output(self, plan):
        number = self.pick(range(len(plan.outputs)))
        outputs = list(plan.outputs)
        shape = plan.graph.values[plan.graph.outputs[number]].shape
        outputs[number] = self.other_spec(outputs[number], shape)
        return replace(plan, outputs=tuple(outputs))

    # Placements.

    def with_placed(self, plan, number, **fields):
        placed = list(plan.placed)
        placed[number] = replace(placed[number], **fields)
        return replace(plan, placed=tuple(placed))

    def index(self, plan):
        """Another sharding of the index space, with nothing that follows from it."""
        number = self.application(plan)
        placed = plan.placed[number]
        other = self.other_spec(placed.index, tuple(placed.signature.sizes.values()))
        return self.with_placed(plan, number, index=other)

    def operand_spec(self, plan):
        """Another sharding of what cells need of an operand."""
        number = self.application(plan, 1)
        operands = list(plan.placed[number].operands)
        place_ = self.pick(n for n, spec in enumerate(operands) if spec is not None)
        shape = plan.graph.signatures[number].operand_shapes[place_]
        operands[place_] = self.other_spec(operands[place_], shape)
        return self.with_placed(plan, number, operands=tuple(operands))

    def replaced(self, plan):
        """Another placement: all that follows changes with it."""
        number = self.application(plan)
        line = plan.graph.signatures[number]
        placement = {name: [] for name in line.sizes}
        for axis in pieces(self.rng, self.mesh):
            if self.chance(0.7):
                placement[self.pick(line.sizes)].append(axis)
        with unchecked_placements() if self.chance(0.5) else nullcontext():
            return self.with_results(plan, number, place(self.mesh, line, placement))

    def kept(self, plan):
        """Operands that stay partial, whatever the operator says of it."""
        number = self.application(plan, 1)
        placed, line = plan.placed[number], plan.graph.signatures[number]
        used = {str(axis) for axes in placed.placement.values() for axis in axes}
        free = [axis for axis in self.mesh.axis_names if axis not in used]
        count = len(line.notation.operands)
        group = [n for n in range(count) if self.chance(0.6)] or [0]
        kept = {self.pick(free): (self.pick(self.monoids), group)}
        with unchecked_placements():
            return self.with_results(plan, number, place(self.mesh, line, placed.placement, kept))

    def with_results(self, plan, number, placed):
        """The placement; its results are kept as they are made, so that nothing is combined."""
        every = list(plan.placed)
        every[number] = placed
        specs = dict(plan.specs)
        for name, made in zip(plan.graph.applications[number].results, placed.results):
            if self.chance(0.5):
                specs[name] = made
        return replace(plan, placed=tuple(every), specs=FrozenMap(specs.items()))

    def signature(self, plan):
        """An application placed as another one is, whose index space is as large."""
        number, other = self.two(plan.placed)
        one, two = plan.placed[number].signature, plan.placed[other].signature
        sizes = [tuple(line.sizes.values()) for line in (one, two)]
        if one == two or sizes[0] != sizes[1]:
            return None
        return self.with_placed(plan, number, signature=two)

    def partials_monoid(self, plan):
        number = self.application(plan, 1)
        partials = list(plan.placed[number].partials)
        place_ = self.pick(n for n, parts in enumerate(partials) if parts)
        monoid = self.pick(m for m in self.monoids if m not in partials[place_].values())
        partials[place_] = FrozenMap((axis, monoid) for axis in partials[place_])
        return self.with_placed(plan, number, partials=tuple(partials))

    def partials_dropped(self, plan):
        number = self.application(plan, 1)
        partials = list(plan.placed[number].partials)
        partials[self.pick(n for n, parts in enumerate(partials) if parts)] = FrozenMap(())
        return self.with_placed(plan, number, partials=tuple(partials))

    def partials_added(self, plan):
        number = self.application(plan, 1)
        partials = list(plan.placed[number].partials)
        place_ = self.pick(range(len(partials)))
        added = {**partials[place_], self.pick(self.mesh.axis_names): self.pick(self.monoids)}
        partials[place_] = FrozenMap(added.items())
        return self.with_placed(plan, number, partials=tuple(partials))

    def result_monoid(self, plan):
        """The parts of a result relabelled, in the placement and where they are kept."""
        number = self.application(plan)
        results, specs = list(plan.placed[number].results), dict(plan.specs)
        names = plan.graph.applications[number].results
        place_ = self.pick(n for n, spec in enumerate(results) if spec.partial)
        monoid = self.pick(self.monoids)
        spec = results[place_]
        parts = dict.fromkeys(spec.partial, monoid)
        results[place_] = ShardingSpec(self.mesh, spec.dim_specs, (), parts)
        kept = specs[names[place_]]
        if kept.partial:
            parts = dict.fromkeys(kept.partial, monoid)
            specs[names[place_]] = ShardingSpec(self.mesh, kept.dim_specs, (), parts)
        changed = self.with_placed(plan, number, results=tuple(results))
        return replace(changed, specs=FrozenMap(specs.items()))

    def result_spec(self, plan):
        number = self.application(plan)
        results = list(plan.placed[number].results)
        place_ = self.pick(range(len(results)))
        shape = plan.graph.signatures[number].result_shapes[place_]
        results[place_] = self.other_spec(results[place_], shape)
        return self.with_placed(plan, number, results=tuple(results))

    def swapped_placed(self, plan):
        placed = list(plan.placed)
        a, b = self.two(placed)
        if placed[a].signature != placed[b].signature or placed[a] == placed[b]:
            return None
        placed[a], placed[b] = placed[b], placed[a]
        return replace(plan, placed=tuple(placed))


@contextmanager
def unchecked_placements():
    """Let `place` cut what must be seen whole."""
    with patch.object(weft.plan.placed, "_check", lambda *_: None):
        yield
