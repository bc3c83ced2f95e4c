"""The checker of certificates: it reads plain data, knows boxes and monoids, and nothing else.

A certificate lists what a run does: which boxes lie where, which pieces go from cell to cell, which
cell applies which operator to which box. The definition of the graph says what is to be computed;
it is written by `weft.lang.definition`, and never by the planner. The checker follows every array
and accepts a certificate only if its outputs are those of the graph.

A *state* is an array on cells: the value of the graph that it is, and its *layout*. A layout gives
each cell a box and the number of a part. Where there are several parts, each point of the array is
what a monoid makes of that point in all of them. `parts` lists the monoids with the number of parts
each combines; parts by several monoids are combined from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby, product
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.space import Projection, ZRange, cover


class CertificateError(WeftError):
    """A certificate that does not prove what it claims: which entry, and what is wrong in it."""


class Layout(NamedTuple):
    """The box and the part of an array that each cell has."""

    shape: tuple[int, ...]
    boxes: tuple[ZRange, ...]
    labels: tuple[int, ...]
    parts: tuple[tuple[int, str], ...]

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return prod(size for size, _ in self.parts)

    @property
    def is_replicated(self) -> bool:
        """Whether every cell has all of the array, and nothing is partial."""
        return self.part_count == 1 and all(box == ZRange.of(self.shape) for box in self.boxes)


class State(NamedTuple):
    """An array on cells: the value that it is, and its layout, by number."""

    value: str
    layout: int


class Space(NamedTuple):
    """The index space of an application, read from its definition."""

    sizes: tuple[int, ...]
    reduced: tuple[tuple[int, str], ...]
    whole: tuple[int, ...]
    once: frozenset[int]
    distributes: frozenset[tuple[str, tuple[int, ...]]]
    reads: tuple[tuple[Projection, tuple[int, ...]], ...]
    makes: tuple[tuple[Projection, tuple[int, ...]], ...]


Entry = Mapping[str, Any]
States = dict[str, State]
Given = Mapping[str, int]
"""The layouts of the inputs of a region, by name."""


def check(certificate: Mapping[str, Any], graph: Mapping[str, Any] | None = None) -> None:
    """Accept a certificate of a graph, or raise an error that names the first thing wrong in it.

    `graph` is a definition as `weft.lang.definition.define` writes it; without one the certificate
    is checked against the definition that it comes with.
    """
    try:
        _Checker(certificate).follow(graph or certificate["graph"], certificate, None)
    except CertificateError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CertificateError(f"the certificate is malformed: {error!r}") from None


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CertificateError(otherwise)


def _covers(boxes: Iterable[ZRange], whole: ZRange, what: str) -> None:
    """Each point of `whole` in exactly one of the boxes; copies of a box count once."""
    found = cover([box for box in dict.fromkeys(boxes) if box], whole)
    _expect(found.is_exact, f"{what}: {found}")


class _Checker:
    def __init__(self, certificate: Mapping[str, Any]) -> None:
        self.size = len(certificate["devices"])
        self.layouts = [self._layout(data) for data in certificate["layouts"]]
        self.spaces: dict[int, Space] = {}
        self.whole: set[int] = set()
        self.proved: dict[Hashable, Any] = {}

    def follow(
        self, graph: Mapping[str, Any], story: Mapping[str, Any], given: Given | None
    ) -> list[int]:
        """Follow the entries of a graph, or of a region; return the layouts of its outputs."""
        states: States = {}
        rules: dict[str, Callable[[Entry, States], None]] = {
            "input": lambda entry, known: self._input(entry, known, graph, given),
            "move": self._move,
            "mask": self._mask,
            "slice": self._slice,
            "keep": self._keep,
            "apply": lambda entry, known: self._apply(entry, known, graph),
            "loop": lambda entry, known: self._loop(entry, known, graph),
            "branch": lambda entry, known: self._branch(entry, known, graph),
        }
        for number, entry in enumerate(story["entries"]):
            _expect(entry["kind"] in rules, f"entry {number} is of no known kind: {entry['kind']}")
            try:
                rules[entry["kind"]](entry, states)
            except CertificateError as error:
                raise CertificateError(
                    f"entry {number}, {entry['kind']} {entry['name']}: {error}"
                ) from None
        outputs = story["outputs"]
        wanted = graph["outputs"]
        _expect(len(outputs) == len(wanted), f"{len(outputs)} outputs where {len(wanted)} are")
        for output, name in zip(outputs, wanted):
            _expect(output["state"] in states, f"output {name} is never made")
            state = states[output["state"]]
            _expect(state.value == name, f"output {name} is {state.value}")
            self._same(state.layout, output["layout"], f"output {name}")
            self._check_whole(state.layout)
        return [output["layout"] for output in outputs]

    # Layouts.

    def _layout(self, data: Mapping[str, Any]) -> Layout:
        boxes = tuple(ZRange(start, stop) for start, stop in data["boxes"])
        found = Layout(
            tuple(data["shape"]),
            boxes,
            tuple(data["labels"]),
            tuple((int(size), str(monoid)) for size, monoid in data["parts"]),
        )
        _expect(
            len(found.boxes) == len(found.labels) == self.size,
            f"a layout has {len(found.boxes)} boxes on {self.size} cells",
        )
        count = found.part_count
        _expect(all(0 <= n < count for n in found.labels), f"a label is not one of {count} parts")
        return found

    def _same(self, one: int, two: int, what: str) -> None:
        """Refuse two layouts that differ; a box that is empty may lie anywhere."""
        a, b = self.layouts[one], self.layouts[two]
        if one == two or a == b:
            return
        _expect(a.shape == b.shape, f"{what} has the shape {list(a.shape)}, not {list(b.shape)}")
        _expect(a.parts == b.parts, f"{what} is partial by {_text(a)}, not by {_text(b)}")
        for cell, (have, said) in enumerate(zip(a.boxes, b.boxes)):
            alike = have == said or (have.is_empty and have.shape == said.shape)
            _expect(alike, f"{what} on cell {cell} is {have}, not {said}")
        for cell, (label, said_label) in enumerate(zip(a.labels, b.labels)):
            _expect(label == said_label, f"{what} on cell {cell} is part {label}, not {said_label}")

    def _check_whole(self, number: int) -> None:
        """Refuse a layout in which a part does not hold the array exactly once."""
        if number in self.whole:
            return
        layout = self.layouts[number]
        for label in range(layout.part_count):
            boxes = [box for box, at in zip(layout.boxes, layout.labels) if at == label]
            _covers(boxes, ZRange.of(layout.shape), f"part {label} does not hold the array once")
        self.whole.add(number)

    # Arrays that come, move and stay.

    def _input(
        self, entry: Entry, states: States, graph: Mapping[str, Any], given: Given | None
    ) -> None:
        name, layout = entry["name"], entry["layout"]
        _expect(name in graph["inputs"], "the graph has no such input")
        shape = self.layouts[layout].shape
        _expect(shape == tuple(graph["shapes"][name]), f"it has the shape {list(shape)}")
        if given is None:
            self._check_whole(layout)
        else:
            self._same(given[name], layout, f"what the region is given as {name}")
        states[name] = State(name, layout)

    def _from(self, entry: Entry, states: States) -> tuple[State, Layout]:
        """The state from which an entry starts, which must lie as the entry assumes."""
        _expect(entry["from"] in states, f"{entry['from']} is not there")
        state = states[entry["from"]]
        self._same(state.layout, entry["before"], entry["from"])
        new = self.layouts[entry["layout"]]
        _expect(new.shape == self.layouts[state.layout].shape, "the shape changes")
        return state, new

    def _keep(self, entry: Entry, states: States) -> None:
        """The same arrays under another name."""
        state, _ = self._from(entry, states)
        self._same(state.layout, entry["layout"], entry["from"])
        states[entry["name"]] = State(state.value, entry["layout"])

    def _slice(self, entry: Entry, states: States) -> None:
        """Each cell takes a box of what it holds."""
        state, new = self._from(entry, states)
        old = self.layouts[state.layout]
        for cell, (box, held) in enumerate(zip(new.boxes, old.boxes)):
            fits = box in held if box else all(n <= m for n, m in zip(box.shape, held.shape))
            _expect(fits, f"cell {cell} takes {box} of {held}")
        _expect((old.labels, old.parts) == (new.labels, new.parts), "slices change no parts")
        states[entry["name"]] = State(state.value, entry["layout"])

    def _mask(self, entry: Entry, states: States) -> None:
        """Copies become parts: one new part of each old one has the values, others the identity."""
        state, new = self._from(entry, states)
        old, masked = self.layouts[state.layout], entry["masked"]
        _expect(old.boxes == new.boxes, "what is masked stays where it is")
        _expect(len(masked) == self.size, f"{len(masked)} cells are masked, or not")
        monoids = {monoid for _, monoid in (*old.parts, *new.parts)}
        _expect(len(monoids) < 2, f"parts by {_and(monoids)} at once")
        _expect(monoids.issuperset(filter(None, masked)), f"masked by another monoid: {masked}")
        became: dict[int, int] = {}
        shown: dict[int, set[int]] = {}
        for before, after, monoid in zip(old.labels, new.labels, masked):
            _expect(became.setdefault(after, before) == before, f"part {after} mixes parts")
            shown.setdefault(before, set()).update([] if monoid else [after])
        _expect(
            len(became) == new.part_count, f"{new.part_count} parts, and cells have {len(became)}"
        )
        for before, after, monoid in zip(old.labels, new.labels, masked):
            seen = shown[before]
            _expect(len(seen) == 1, f"part {before} counts {len(seen)} times, not once")
            _expect((after in seen) != bool(monoid), f"part {after} is masked on some cells only")
        states[entry["name"]] = State(state.value, entry["layout"])

    def _move(self, entry: Entry, states: States) -> None:
        """Pieces go from cell to cell, and parts are combined on arrival."""
        state, _ = self._from(entry, states)
        key = ("move", state.layout, entry["layout"], id(entry["pieces"]), tuple(entry["monoids"]))
        if key not in self.proved:
            self._check_move(entry, self.layouts[state.layout], self.layouts[entry["layout"]])
            self.proved[key] = entry["pieces"]  # kept, so that its id stays its own
        states[entry["name"]] = State(state.value, entry["layout"])

    def _check_move(self, entry: Entry, old: Layout, new: Layout) -> None:
        """Each new box is tiled by pieces; all parts of a piece come, one after another."""
        tiles: dict[int, list[ZRange]] = {}
        combined: dict[int, tuple[int, ...]] = {}
        for (cell, start, stop), pieces in groupby(entry["pieces"], lambda piece: piece[1:4]):
            tile = ZRange(start, stop)
            labels = tuple(self._sent(piece, tile, old, entry["monoids"]) for piece in pieces)
            _expect(0 <= cell < self.size, f"there is no cell {cell}")
            known = combined.setdefault(new.labels[cell], labels)
            _expect(
                sorted(known) == sorted(labels),
                f"cell {cell} combines parts {sorted(labels)}, not {sorted(known)}",
            )
            tiles.setdefault(cell, []).append(tile)
        for cell, box in enumerate(new.boxes):
            if box:
                found = cover(tiles.pop(cell, []), box)
                _expect(found.is_exact, f"cell {cell} gets its box wrong: {found}")
        _expect(not tiles, f"cells {sorted(tiles)} get what they have no room for")
        self._check_combined(entry["monoids"], old, new, combined)

    def _sent(self, piece: Sequence[Any], box: ZRange, old: Layout, monoids: Sequence[str]) -> int:
        """The part that a piece is of; its sender must hold it."""
        sender = piece[0]
        _expect(0 <= sender < self.size, f"there is no cell {sender}")
        held = old.boxes[sender]
        _expect(box in held, f"cell {sender} sends {box}, which it does not hold")
        label: int = old.labels[sender]
        if len(monoids) > 1:
            digits, rest = list[int](), label
            for size, _ in reversed(old.parts):
                digits.insert(0, rest % size)
                rest //= size
            _expect(list(piece[4]) == digits, f"part {label} is combined as {piece[4]}")
        return label

    def _check_combined(
        self,
        monoids: Sequence[str],
        old: Layout,
        new: Layout,
        combined: Mapping[int, tuple[int, ...]],
    ) -> None:
        """Every old part is in exactly one new part, combined by the monoid that they are of."""
        every = [part for parts in combined.values() for part in parts]
        _expect(len(every) == len(set(every)), f"parts are combined twice: {sorted(every)}")
        if len(combined) == new.part_count:
            lost = sorted(set(range(old.part_count)) - set(every))
            _expect(not lost, f"parts {lost} are combined nowhere")
        have = [monoid for _, monoid in old.parts]
        if any(len(parts) > 1 for parts in combined.values()):
            _expect(list(monoids) == have, f"parts by {_text(old)} are combined by {_and(monoids)}")
            simple = len(have) == 1 or new.part_count == 1
            _expect(simple, "parts by several monoids are combined, but not all of them")
        else:
            _expect(
                len(have) < 2 or old.parts == new.parts or not combined,
                f"parts by {_text(old)} become parts by {_text(new)}",
            )
        if new.part_count > 1 and combined:
            kept = [monoid for _, monoid in new.parts]
            _expect(kept == have, f"parts by {_text(old)} become parts by {_text(new)}")
            renumbered = any(label != parts[0] for label, parts in combined.items())
            _expect(len(have) == 1 or not renumbered, "parts by several monoids change places")

    # Applications.

    def _defined(self, entry: Entry, graph: Mapping[str, Any]) -> Mapping[str, Any]:
        """The definition of the application that an entry runs."""
        found: Mapping[str, Any] = graph["applications"][entry["application"]]
        for field in ("operator", "attributes"):
            _expect(
                entry[field] == found[field],
                f"{field} {entry[field]!r} where the graph has {found[field]!r}",
            )
        return found

    def _space(self, data: Mapping[str, Any]) -> Space:
        if id(data) not in self.spaces:
            count = len(data["sizes"])

            def rows(each: Mapping[str, Any]) -> tuple[Projection, tuple[int, ...]]:
                found = Projection(each["matrix"], each["offset"], each["window"], index_ndim=count)
                return found, tuple(each["shape"])

            self.spaces[id(data)] = Space(
                tuple(data["sizes"]),
                tuple((dim, monoid) for dim, monoid in data["reduced"]),
                tuple(data["whole"]),
                frozenset(data["once"]),
                frozenset((monoid, tuple(group)) for monoid, group in data["distributes"]),
                tuple(map(rows, data["reads"])),
                tuple(map(rows, data["makes"])),
            )
        return self.spaces[id(data)]

    def _apply(self, entry: Entry, states: States, graph: Mapping[str, Any]) -> None:
        """Each cell applies the operator to its box, and has for it what the graph says."""
        found = self._defined(entry, graph)
        _expect(not found["regions"], f"{found['operator']} runs regions")
        names, results = found["operands"], found["results"]
        _expect(len(entry["operands"]) == len(names), f"{len(names)} operands are expected")
        _expect(len(entry["results"]) == len(results), f"{len(results)} results are expected")
        operands = []
        for place, (name, state) in enumerate(zip(names, entry["operands"])):
            _expect(state in states, f"operand {place}, {state}, is not there")
            value = states[state].value
            _expect(value == name, f"operand {place} is {value} where the graph has {name}")
            operands.append(states[state].layout)
        made = [result["layout"] for result in entry["results"]]
        key = self._key(entry, id(found["space"]), operands, made)
        if key not in self.proved:
            _Application(
                self._space(found["space"]),
                self.layouts[entry["index"]],
                [self.layouts[number] for number in operands],
                [self.layouts[number] for number in made],
                [_Factor(*factor) for factor in entry["kept"]],
                entry["leaders"],
            ).check()
            for number in made:
                self._check_whole(number)
            self.proved[key] = found["space"]  # kept, so that its id stays its own
        for name, result in zip(results, entry["results"]):
            states[result["name"]] = State(name, result["layout"])

    def _key(
        self, entry: Entry, space: int, operands: Sequence[int], made: Sequence[int]
    ) -> Hashable:
        """What an application's proof depends on: equal ones are proved once."""
        kept = tuple((m, tuple(group), tuple(digits)) for m, group, digits in entry["kept"])
        leaders = tuple(entry["leaders"])
        return ("apply", space, entry["index"], tuple(operands), tuple(made), kept, leaders)

    # Regions.

    def _captured(
        self, region: Mapping[str, Any], operands: Sequence[str], states: States
    ) -> Given:
        """What a region takes from outside: it lies there as it is kept."""
        names = [name for name in region["inputs"] if name in operands]
        for name in names:
            _expect(name in states and states[name].value == name, f"{name} is not there")
        return {name: states[name].layout for name in names}

    def _loop(self, entry: Entry, states: States, graph: Mapping[str, Any]) -> None:
        """The carried values enter and leave every iteration as condition and body assume."""
        found = self._defined(entry, graph)
        _expect(found["operator"] == "while", f"{found['operator']} is no loop")
        names, regions = found["operands"], found["regions"]
        _expect(len(entry["regions"]) == len(regions) == 2, "a loop has a condition and a body")
        carried = []
        for place, state in enumerate(entry["carried"]):
            _expect(state in states, f"{state} is not there")
            value = states[state].value
            _expect(value == names[place], f"{value} is carried where the graph has {names[place]}")
            carried.append(states[state].layout)
        _expect(len(carried) == len(found["results"]), f"{len(carried)} values are carried")
        leaving = []
        for region, story in zip(regions, entry["regions"]):
            own = [name for name in region["inputs"] if name not in names]
            _expect(len(own) == len(carried), f"a region has {len(own)} arguments")
            given = {**self._captured(region, names, states), **dict(zip(own, carried))}
            leaving.append(self.follow(region, story, given))
        (going,), returned = leaving
        _expect(self.layouts[going].is_replicated, "cells may disagree on whether the loop goes on")
        for place, (enters, leaves) in enumerate(zip(carried, returned)):
            self._same(leaves, enters, f"what the body returns as value {place}")
        self._results(entry, states, found["results"], carried)

    def _branch(self, entry: Entry, states: States, graph: Mapping[str, Any]) -> None:
        """All cells take the same branch, and every branch returns the same layouts."""
        found = self._defined(entry, graph)
        _expect(found["operator"] in ("case", "if"), f"{found['operator']} is no choice")
        names, regions = found["operands"], found["regions"]
        _expect(len(entry["regions"]) == len(regions) > 0, f"{len(regions)} branches are expected")
        selector = entry["selector"]
        _expect(selector in states, f"{selector} is not there")
        value, layout = states[selector]
        _expect(value == names[0], f"{value} selects the branch where the graph has {names[0]}")
        _expect(self.layouts[layout].is_replicated, "cells may disagree on the branch")
        leaving = [
            self.follow(region, story, self._captured(region, names, states))
            for region, story in zip(regions, entry["regions"])
        ]
        for place, layouts in enumerate(zip(*leaving)):
            for number, one in enumerate(layouts):
                self._same(one, layouts[0], f"result {place} of branch {number}")
        self._results(entry, states, found["results"], leaving[0])

    def _results(
        self, entry: Entry, states: States, names: Sequence[str], layouts: Sequence[int]
    ) -> None:
        """What regions return becomes the results."""
        _expect(len(entry["results"]) == len(names), f"{len(names)} results are expected")
        for name, result, layout in zip(names, entry["results"], layouts):
            self._same(layout, result["layout"], name)
            states[result["name"]] = State(name, result["layout"])


class _Factor(NamedTuple):
    """Operands that are partial together: by which monoid, and the digit of the part by cell."""

    monoid: str
    operands: Sequence[int]
    digits: Sequence[int]


class _Application:
    """One application on all cells.

    Every part of the results is a *term*: what the operator makes of one part of the operands in
    one box of the reduced dimensions. The monoid of the parts makes the results of all terms.
    """

    def __init__(
        self,
        space: Space,
        index: Layout,
        operands: Sequence[Layout],
        results: Sequence[Layout],
        factors: Sequence[_Factor],
        leaders: Sequence[int],
    ) -> None:
        self.space, self.boxes = space, index.boxes
        self.operands, self.results = operands, results
        self.factors, self.leaders = factors, leaders
        _expect(index.shape == space.sizes, f"the index space is {list(space.sizes)}")
        self.terms = results[0].labels if results else index.labels
        self.digits = [tuple(f.digits[cell] for f in factors) for cell in range(len(self.boxes))]
        self.ranges = [self._range(box) for box in self.boxes]

    def check(self) -> None:
        self._check_cuts()
        monoid = self._check_monoid()
        self._check_needs()
        self._check_results(monoid)
        live = self._check_terms()
        self._check_cover()
        for number, layout in enumerate(self.operands):
            self._check_parts(number, layout, live, monoid)
        self._check_leaders()

    def _range(self, box: ZRange) -> tuple[tuple[int, int], ...] | None:
        """The box in the reduced dimensions; None where there is nothing to reduce."""
        found = tuple((box.start[dim], box.stop[dim]) for dim, _ in self.space.reduced)
        return found if all(low < high for low, high in found) else None

    def _seen(self, number: int) -> list[int]:
        """The parallel dimensions on which a result depends: its own, and those of its operands."""
        rows = [projection.matrix for projection, _ in self.space.reads]
        dims = _dims_of(self.space.makes[number][0].matrix)
        reading = [_dims_of(matrix) for matrix in rows]
        while more := [each for each in reading if each & dims and not each <= dims]:
            dims = dims.union(*more)
        return sorted(dims - {dim for dim, _ in self.space.reduced})

    def _check_cuts(self) -> None:
        """Refuse to cut what is seen whole."""
        sizes = self.space.sizes
        for box in filter(None, dict.fromkeys(self.boxes)):
            for dim in self.space.whole:
                whole = (box.start[dim], box.stop[dim]) == (0, sizes[dim])
                _expect(whole, f"index dimension {dim} is cut, {box}, and must be seen whole")

    def _check_monoid(self) -> str:
        """The one monoid of all parts: of operands that stay partial, and of what is reduced."""
        sizes, monoids = self.space.sizes, {factor.monoid for factor in self.factors}
        for place, (dim, monoid) in enumerate(self.space.reduced):
            spans = {ranges[place] for ranges in self.ranges if ranges is not None}
            monoids |= {monoid} if spans - {(0, sizes[dim])} else set()
        if not monoids and any(layout.part_count > 1 for layout in self.results):
            monoids = {monoid for _, monoid in self.space.reduced}  # parts of nothing
        _expect(len(monoids) < 2, f"parts by {_and(monoids)} at once")
        for monoid, group, digits in self.factors:
            _expect(len(digits) == len(self.boxes), "a part without a digit")
            _expect(
                (monoid, tuple(sorted(group))) in self.space.distributes,
                f"the operator does not distribute over {monoid} in operands {list(group)}",
            )
        return next(iter(monoids), "")

    def _check_needs(self) -> None:
        """Every cell has of every operand the box that the kernel is given, and nothing else."""
        _expect(len(self.operands) == len(self.space.reads), "operands without a projection")
        for number, layout in enumerate(self.operands):
            projection, shape = self.space.reads[number]
            _expect(shape == layout.shape, f"operand {number} has the shape {list(layout.shape)}")
            needs = {box: projection.region(box, shape) for box in dict.fromkeys(self.boxes)}
            for cell, (box, have) in enumerate(zip(self.boxes, layout.boxes)):
                need = needs[box]
                fits = have == need or (need.is_empty and need.shape == have.shape)
                _expect(fits, f"cell {cell} needs {need} of operand {number} and has {have}")

    def _check_results(self, monoid: str) -> None:
        """Every cell makes the boxes that the results are said to have."""
        _expect(len(self.results) == len(self.space.makes), "results without a projection")
        for number, layout in enumerate(self.results):
            projection, shape = self.space.makes[number]
            _expect(shape == layout.shape, f"result {number} has the shape {list(layout.shape)}")
            _expect(layout.labels == self.terms, f"result {number} has parts of its own")
            for _, by in layout.parts:
                _expect(by == monoid, f"parts of result {number} are by {by}, not {monoid or '-'}")
            made = {box: projection.region(box, shape) for box in dict.fromkeys(self.boxes)}
            for cell, (box, said) in enumerate(zip(self.boxes, layout.boxes)):
                image = made[box]
                fits = image == said or (image.is_empty and image.shape == said.shape)
                _expect(fits, f"cell {cell} makes {image} of result {number}, not {said}")
            for box, image in made.items():
                _expect(projection.is_dense(box), f"{box} leaves holes in {image}")

    def _check_terms(self) -> dict[int, int]:
        """Every part is one term, and no term is two parts; a cell of each part that is made."""
        live: dict[int, int] = {}
        for number, layout in enumerate(self.results):
            seen_dims = self._seen(number)
            for cell, box in enumerate(layout.boxes):
                if box.is_empty:
                    continue
                index = self.boxes[cell]
                _expect(
                    all(index.start[dim] < index.stop[dim] for dim in seen_dims),
                    f"cell {cell} makes {box} of result {number} of nothing, {index}",
                )
                first = live.setdefault(self.terms[cell], cell)
                same = (self.ranges[cell], self.digits[cell])
                _expect(
                    same == (self.ranges[first], self.digits[first]),
                    f"part {self.terms[cell]} mixes what cells {first} and {cell} make",
                )
        seen: dict[Hashable, int] = {}
        for term, cell in live.items():
            if self.ranges[cell] is not None:
                key = (self.ranges[cell], self.digits[cell])
                _expect(
                    seen.setdefault(key, term) == term, f"parts {seen[key]} and {term} are the same"
                )
        return live

    def _check_cover(self) -> None:
        """For every combination of the operands' parts, all of the index space is computed once."""
        radices = [sorted(set(factor.digits)) for factor in self.factors]
        for digits in product(*radices):
            mine = [box for box, at in zip(self.boxes, self.digits) if at == digits]
            where = f"the index space of parts {digits}" if digits else "the index space"
            _covers(mine, ZRange.of(self.space.sizes), f"{where} is not covered once")

    def _check_parts(
        self, number: int, layout: Layout, live: Mapping[int, int], monoid: str
    ) -> None:
        """Each part of an operand counts once: in a factor, or outside the reduction."""
        inside = [n for n, factor in enumerate(self.factors) if number in factor.operands]
        is_once = number in self.space.once
        if layout.part_count == 1 and not inside and not (is_once and len(live) > 1):
            return
        for _, by in layout.parts:
            _expect(by == monoid, f"operand {number} is partial by {by}, not by {monoid or '-'}")
        of_term: dict[int, int] = {}
        for box_layout in self.results:
            for cell, box in enumerate(box_layout.boxes):
                if box:
                    label = of_term.setdefault(self.terms[cell], layout.labels[cell])
                    _expect(
                        label == layout.labels[cell],
                        f"part {self.terms[cell]} is made of different parts of operand {number}",
                    )
        counted: dict[Hashable, dict[Hashable, list[int]]] = {}
        for term, cell in live.items():
            at = self.digits[cell]
            here = tuple(at[n] for n in inside)
            there = tuple(digit for n, digit in enumerate(at) if n not in inside)
            counted.setdefault(here, {}).setdefault(there, []).append(of_term[term])
        every: list[int] = []
        for by_others in counted.values():
            groups = [sorted(labels if is_once else set(labels)) for labels in by_others.values()]
            first = groups[0]
            _expect(
                all(group == first for group in groups) and (is_once or len(first) == 1),
                f"operand {number} is partial where the operator needs all of it",
            )
            every += first
        wanted = list(range(layout.part_count)) if live else []
        _expect(
            sorted(every) == wanted,
            f"operand {number} counts parts {sorted(every)}, not each of {layout.part_count} once",
        )

    def _check_leaders(self) -> None:
        """What one cell computes for others is what they would compute."""
        _expect(len(self.leaders) == len(self.boxes), "a cell without a leader")
        for cell, leader in enumerate(self.leaders):
            if leader == cell:
                continue
            _expect(self.leaders[leader] == leader, f"cell {leader} computes nothing")
            same = self.boxes[leader] == self.boxes[cell] and all(
                layout.labels[leader] == layout.labels[cell] for layout in self.operands
            )
            _expect(same, f"cell {leader} computes for cell {cell} what is not the same")


def _dims_of(matrix: Sequence[Sequence[int]]) -> set[int]:
    """The index dimensions that a projection looks at."""
    return {dim for row in matrix for dim, step in enumerate(row) if step}


def _and(names: Iterable[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"


def _text(layout: Layout) -> str:
    return ", ".join(f"{monoid} of {size}" for size, monoid in layout.parts) or "nothing"
