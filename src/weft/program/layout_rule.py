"""`Layout`: which box of an array, and which part of it, each cell of a mesh has.

A layout is a rule and never a list: digits of a cell's coordinate number a block of a grid, and the
block is the cell's box, or is mapped to it by a projection. Along one array dimension the box of a
cell therefore depends on a few mesh axes only, and whatever is counted or proved is first split by
dimension and then looked at for the cells that differ along those axes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from weft.space import BlockGrid, Digit, Projection, ZRange, weigh
from weft.space.zrange import unchecked
from weft.values import Point

Digits: TypeAlias = tuple[Digit, ...]
"""Digits of a cell's coordinate, major to minor; their strides make the number of a block."""

Parts: TypeAlias = tuple[tuple[Digit, str], ...]
"""Digits that number a cell's part, major to minor, with the monoids that combine the parts."""

Span: TypeAlias = tuple[int, int]
"""The start and the end of a box along one dimension."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a mesh, as numbers: rank r is device r unless devices are listed."""

    shape: Point
    devices: Point | None = None

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def device(self, rank: int) -> int:
        """Return the device of a cell."""
        return rank if self.devices is None else self.devices[rank]

    def coordinates(self) -> Iterator[Point]:
        """Return the coordinates of all cells, in rank order."""
        return product(*map(range, self.shape))

    def rank(self, coordinate: Sequence[int]) -> int:
        """Return the rank of the cell at a coordinate."""
        number = 0
        for x, n in zip(coordinate, self.shape):
            number = number * n + x
        return number

    def coordinate(self, rank: int) -> Point:
        """Return the coordinate of a cell."""
        found = []
        for n in reversed(self.shape):
            rank, x = divmod(rank, n)
            found.append(x)
        return tuple(reversed(found))


@dataclass(frozen=True, eq=False)
class Layout:
    """Which box of an array, and which part of it, each cell has.

    >>> x = Digit(0, 1, 2, 1)
    >>> layout = Layout(Cells((2,)), (8,), BlockGrid.cut((8,), (2,)), ((x,),))
    >>> print(layout.box((1,)))
    [4:8]
    """

    cells: Cells
    shape: Point
    """The shape of the array."""
    grid: BlockGrid
    """The blocks of the array; where there is an `image`, those of an index space."""
    cuts: tuple[Digits, ...]
    """For each dimension of the grid the digits that number the block of a cell."""
    parts: Parts = ()
    """The parts of cells; those by several monoids are combined from the last to the first."""
    image: Projection | None = None
    """The map from a block of an index space to the array: an operand's needs, a halo."""
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        key = (self.cells, self.shape, self.grid, self.cuts, self.parts, self.image)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Layout)
            and self._hash == other._hash
            and (self.shape, self.parts, self.cuts, self.grid, self.image, self.cells)
            == (other.shape, other.parts, other.cuts, other.grid, other.image, other.cells)
        )

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return prod(digit.radix for digit, _ in self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether every cell has all of the array, and nothing is partial."""
        return not self.parts and not any(
            span != (0, n) for dim, n in enumerate(self.shape) for span in self.spans(dim)
        )

    def block(self, coordinate: Sequence[int]) -> Point:
        """Return the number of a cell's block along each dimension of the grid."""
        return tuple(
            [sum([digit.of(coordinate) * digit.stride for digit in cut]) for cut in self.cuts]
        )

    def box(self, coordinate: Sequence[int]) -> ZRange:
        """Return the box of the cell at a coordinate."""
        start, stop = [], []
        for dim in range(len(self.shape)):
            rule = self.rule(dim)
            low, high = rule.spans[rule.number(coordinate)]
            start.append(low)
            stop.append(high)
        return unchecked(tuple(start), tuple(stop))

    def boxes(self) -> list[ZRange]:
        """Return the boxes of all cells, in rank order."""
        if not self.shape:
            return [ZRange.of(())] * self.cells.size
        sides = []
        for dim in range(len(self.shape)):
            rule = self.rule(dim)
            sides.append([rule.spans[number] for number in rule.numbers(self.cells.shape)])
        return [
            unchecked(tuple([s[0] for s in spans]), tuple([s[1] for s in spans]))
            for spans in zip(*sides)
        ]

    @cached_property
    def size(self) -> int | None:
        """The number of elements that every cell has; None where they differ."""
        found = 1
        for rule in self._rules:
            if rule.extent is None:
                return None
            found *= rule.extent
        return found

    def part(self, coordinate: Sequence[int]) -> Point:
        """Return the number of a cell's part, digit by digit."""
        return tuple([digit.of(coordinate) for digit, _ in self.parts])

    def rule(self, dim: int) -> SpanRule:
        """Return how the span of a cell follows from its coordinate along one dimension."""
        return self._rules[dim]

    @cached_property
    def _rules(self) -> tuple[SpanRule, ...]:
        return tuple(self._rule(dim) for dim in range(len(self.shape)))

    def _rule(self, dim: int) -> SpanRule:
        if self.image is None:
            return _block_rule(self.grid, dim, self.cuts[dim])
        row = self.image.matrix[dim]
        dims = tuple([d for d, step in enumerate(row) if step])
        return _image_rule(
            tuple([row[d] for d in dims]),
            self.image.offset[dim],
            self.image.shape[dim],
            self.shape[dim],
            tuple([_block_rule(self.grid, d, self.cuts[d]) for d in dims]),
        )

    def spans(self, dim: int) -> set[Span]:
        """Return the different spans that cells have along a dimension; empty ones lie at 0."""
        return {_at_zero(*span) for span in self.rule(dim).spans}

    def with_parts(self, parts: Iterable[tuple[Digit, str]]) -> Layout:
        """Return the same boxes with other parts."""
        found = tuple(parts)
        if found == self.parts:
            return self
        return Layout(self.cells, self.shape, self.grid, self.cuts, found, self.image)

    def digits(self) -> list[Digit]:
        """Return the digits that number blocks and parts."""
        return [digit for cut in self.cuts for digit in cut] + [digit for digit, _ in self.parts]

    def __str__(self) -> str:
        def text(digits: Iterable[Digit]) -> str:
            return ", ".join(map(digit_text, digits))

        cuts = ", ".join(f"{{{text(cut)}}}" for cut in self.cuts)
        parts = "".join(f" {monoid}({digit_text(digit)})" for digit, monoid in self.parts)
        image = f" of {self.image}" if self.image is not None else ""
        return f"[{cuts}]{image}{parts}"


def digit_text(digit: Digit) -> str:
    """Return a digit as text: the number of its mesh axis, and which digit of it."""
    whole = digit.divisor == 1
    return f"{digit.dim}/{digit.radix}" if whole else f"{digit.dim}:({digit.divisor}){digit.radix}"


@dataclass(frozen=True, eq=False)
class SpanRule:
    """The span of a cell along one dimension: digits make a number, and each number has a span."""

    digits: Digits
    spans: tuple[Span, ...]

    def number(self, coordinate: Sequence[int]) -> int:
        """Return the number that a cell has."""
        return sum([d.of(coordinate) * d.stride for d in self.digits])

    def numbers(self, shape: Point) -> list[int]:
        """Return the numbers of all cells of a mesh of that shape, in rank order."""
        return weigh(shape, self.digits)

    @cached_property
    def extent(self) -> int | None:
        """The extent that all spans have; None where they differ."""
        extents = {high - low for low, high in self.spans}
        return extents.pop() if len(extents) == 1 else None

    @cached_property
    def axes(self) -> frozenset[int]:
        """The mesh axes on which the span depends."""
        return frozenset(digit.dim for digit in self.digits)


def _at_zero(low: int, high: int) -> Span:
    return (low, high) if low < high else (0, 0)


@lru_cache(maxsize=1 << 14)
def _block_rule(grid: BlockGrid, dim: int, cut: Digits) -> SpanRule:
    return SpanRule(cut, tuple([grid.span(dim, k) for k in range(grid.counts[dim])]))


@lru_cache(maxsize=1 << 14)
def _image_rule(
    steps: Point, offset: int, width: int, size: int, rules: tuple[SpanRule, ...]
) -> SpanRule:
    """The spans of an affine row: `offset + steps · index`, `width` wide, inside the array."""
    digits: list[Digit] = []
    weight = 1
    for rule in reversed(rules):
        digits[:0] = [digit._replace(stride=digit.stride * weight) for digit in rule.digits]
        weight *= len(rule.spans)
    found = []
    for spans in product(*(rule.spans for rule in rules)):
        low = high = offset
        for step, (first, end) in zip(steps, spans):
            if first == end:
                low = high = -width
                break
            low += step * (first if step > 0 else end - 1)
            high += step * (end - 1 if step > 0 else first)
        else:
            found.append(_at_zero(max(low, 0), max(min(high + width, size), 0)))
            continue
        found.append((0, 0))
    return SpanRule(tuple(digits), tuple(found))


def _numbers_along(cells: Cells, axes: Iterable[int], rule: SpanRule) -> list[int]:
    """Return the numbers of a rule for the cells that differ along some axes only."""
    chosen = set(axes)
    shape = tuple([n if axis in chosen else 1 for axis, n in enumerate(cells.shape)])
    return weigh(shape, rule.digits)


@lru_cache(maxsize=1 << 14)
def span_pairs(cells: Cells, one: SpanRule, two: SpanRule) -> frozenset[tuple[Span, Span]]:
    """Return the pairs of spans that some cell has by two rules; empty ones lie at 0."""
    if one is two:
        return frozenset([(_at_zero(*span), _at_zero(*span)) for span in one.spans])
    axes = one.axes | two.axes
    numbers = zip(_numbers_along(cells, axes, one), _numbers_along(cells, axes, two))
    return frozenset([(_at_zero(*one.spans[a]), _at_zero(*two.spans[b])) for a, b in set(numbers)])


def same_boxes(one: Layout, two: Layout) -> bool:
    """Whether every cell has the same box in both layouts; an empty box may lie anywhere."""
    if one.cells != two.cells or one.shape != two.shape:
        return False
    if all(a == b for pairs in _pairs_by_dim(one, two) for a, b in pairs):
        return True
    return all(a == b or (a.is_empty and a.shape == b.shape) for a, b in _box_pairs(one, two))


def lies_inside(inner: Layout, outer: Layout) -> bool:
    """Whether the box of every cell lies inside the one that it has in another layout.

    An empty box may lie anywhere, but the other must have room for its shape.
    """
    if inner.cells != outer.cells or inner.shape != outer.shape:
        return False
    if all(
        low == high or first <= low <= high <= end
        for pairs in _pairs_by_dim(inner, outer)
        for (low, high), (first, end) in pairs
    ):
        return True
    return all(
        a in b if a else all(n <= m for n, m in zip(a.shape, b.shape))
        for a, b in _box_pairs(inner, outer)
    )


def _pairs_by_dim(one: Layout, two: Layout) -> Iterator[frozenset[tuple[Span, Span]]]:
    """Return for each dimension the pairs of spans that some cell has in two layouts."""
    for dim in range(len(one.shape)):
        yield span_pairs(one.cells, one.rule(dim), two.rule(dim))


def _box_pairs(one: Layout, two: Layout) -> Iterator[tuple[ZRange, ZRange]]:
    """Return the pairs of boxes that some cell has in two layouts."""
    rules = [layout.rule(dim) for layout in (one, two) for dim in range(len(one.shape))]
    axes = frozenset[int]().union(*(rule.axes for rule in rules))
    numbers = [_numbers_along(one.cells, axes, rule) for rule in rules]
    half = len(one.shape)
    for chosen in dict.fromkeys(zip(*numbers)):
        spans = [rule.spans[n] for rule, n in zip(rules, chosen)]
        yield _box_of(spans[:half]), _box_of(spans[half:])


def _box_of(spans: Sequence[Span]) -> ZRange:
    return unchecked(tuple([low for low, _ in spans]), tuple([high for _, high in spans]))


def covers(layout: Layout) -> bool:
    """Whether the cells that have the same part hold every point of the array between them.

    So they do where the digits that cut the array, and those of its parts, are different digits:
    then every block of the grid is somebody's, in every part.
    """
    return layout.image is None and are_apart(layout.cells.shape, layout.digits())


def join_parts(parts: Iterable[tuple[Digit, str]]) -> tuple[tuple[Digit, str], ...]:
    """Return parts in mesh order, with neighbouring digits of one axis and monoid as one digit.

    >>> join_parts([(Digit(0, 1, 2, 1), "sum"), (Digit(0, 2, 4, 1), "sum")])
    ((Digit(dim=0, divisor=1, radix=8, stride=1), 'sum'),)
    """
    found: list[tuple[Digit, str]] = []
    ordered = [part for part in parts if part[0].radix > 1]
    for digit, monoid in sorted(ordered, key=lambda part: (part[0].dim, -part[0].divisor)):
        last, by = found[-1] if found else (digit, "")
        if by == monoid and last.dim == digit.dim and last.divisor == digit.divisor * digit.radix:
            found[-1] = Digit(digit.dim, digit.divisor, last.radix * digit.radix, 1), monoid
        else:
            found.append((digit._replace(stride=1), monoid))
    return tuple(found)


def are_apart(shape: Point, digits: Sequence[Digit]) -> bool:
    """Whether the values of some digits can be chosen independently of each other."""
    by_axis: dict[int, list[Span]] = {}
    for digit in digits:
        if digit.radix > 1:
            if shape[digit.dim] % (digit.divisor * digit.radix):
                return False
            by_axis.setdefault(digit.dim, []).append((digit.divisor, digit.divisor * digit.radix))
    for spans in by_axis.values():
        spans.sort()
        for (_, high), (low, _) in pairwise(spans):
            if low % high:
                return False
    return True


class CellClasses:
    """Cells in the same situation, described once.

    `refine` tells apart the cells for which a property differs that depends on some mesh axes.
    Each class has a representative; what is true of it is true of all cells of the class.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._tables: dict[frozenset[int], list[list[Hashable]]] = {}
        self._seen: set[Hashable] = set()

    def refine(
        self, axes: frozenset[int], key: Hashable, labels: Callable[[], Sequence[Hashable]]
    ) -> None:
        """Tell cells apart by labels, one for each cell that differs along the axes."""
        if key in self._seen:
            return
        self._seen.add(key)
        wide = frozenset(axis for axis in axes if self.cells.shape[axis] > 1)
        found = list(labels())
        if len(set(found)) > 1:
            self._tables.setdefault(wide, []).append(found)

    def refine_spans(self, one: SpanRule, two: SpanRule | None = None) -> None:
        """Tell cells apart by the extent of a span, and by how much of it they have elsewhere."""
        if two is None or two is one:
            if one.extent is None:
                self.refine(one.axes, one, lambda: self._extents(one))
            return
        if len(set(one.spans)) < 2 and len(set(two.spans)) < 2:
            return
        self.refine(one.axes | two.axes, (one, two), lambda: self._overlaps(one, two))

    def refine_digit(self, digit: Digit) -> None:
        """Tell the cells apart for which a digit is 0."""
        rule = SpanRule((digit._replace(stride=1),), ((0, 1),) + ((0, 0),) * (digit.radix - 1))
        self.refine(rule.axes, digit._replace(stride=0), lambda: self._extents(rule))

    def _extents(self, rule: SpanRule) -> list[Hashable]:
        extents = [b - a for a, b in rule.spans]
        return [extents[n] for n in _numbers_along(self.cells, rule.axes, rule)]

    def _overlaps(self, one: SpanRule, two: SpanRule) -> list[Hashable]:
        axes = one.axes | two.axes
        known: dict[tuple[int, int], Hashable] = {}
        found = []
        for pair in zip(
            _numbers_along(self.cells, axes, one), _numbers_along(self.cells, axes, two)
        ):
            if pair not in known:
                (a, b), (c, d) = one.spans[pair[0]], two.spans[pair[1]]
                known[pair] = (b - a, max(0, min(b, d) - max(a, c)))
            found.append(known[pair])
        return found

    @cached_property
    def _groups(self) -> list[tuple[tuple[int, ...], dict[Hashable, Point], list[Hashable]]]:
        """Axes that belong together, with the first position and the label of each position."""
        groups: list[set[int]] = []
        for axes in self._tables:
            joined = set(axes).union(*(g for g in groups if g & axes))
            groups = [g for g in groups if not g & axes] + [joined]
        found = []
        for group in groups:
            order = tuple(sorted(group))
            positions = list(product(*(range(self.cells.shape[axis]) for axis in order)))
            labels: list[tuple[Hashable, ...]] = [()] * len(positions)
            for axes, tables in self._tables.items():
                if not axes <= group:
                    continue
                places = [order.index(axis) for axis in sorted(axes)]
                sizes = [self.cells.shape[axis] for axis in sorted(axes)]
                index = []
                for position in positions:
                    number = 0
                    for place, size in zip(places, sizes):
                        number = number * size + position[place]
                    index.append(number)
                for table in tables:
                    labels = [(*label, table[n]) for label, n in zip(labels, index)]
            first: dict[Hashable, Point] = {}
            for label, position in zip(labels, positions):
                first.setdefault(label, position)
            found.append((order, first, list[Hashable](labels)))
        return found

    @cached_property
    def representatives(self) -> list[Point]:
        """The coordinate of one cell of each class."""
        found = []
        for chosen in product(*(first.values() for _, first, _ in self._groups)):
            coordinate = [0] * len(self.cells.shape)
            for (order, _, _), position in zip(self._groups, chosen):
                for axis, x in zip(order, position):
                    coordinate[axis] = x
            found.append(tuple(coordinate))
        return found

    @cached_property
    def counts(self) -> list[int]:
        """The number of cells of each class."""
        used = {axis for order, _, _ in self._groups for axis in order}
        rest = prod([n for axis, n in enumerate(self.cells.shape) if axis not in used])
        sizes = []
        for _, first, labels in self._groups:
            tally = dict.fromkeys(first, 0)
            for label in labels:
                tally[label] += 1
            sizes.append(list(tally.values()))
        return [rest * prod(chosen) for chosen in product(*sizes)]

    def expand(self, values: Sequence[int]) -> Point:
        """Return the values of all cells, in rank order, given those of the classes."""
        if len(values) == 1:
            return (values[0],) * self.cells.size
        number = [0] * self.cells.size
        weight = len(values)
        for order, first, labels in self._groups:
            weight //= len(first)
            index = {label: n * weight for n, label in enumerate(first)}
            numbers = [index[label] for label in labels]
            strides = []
            stride = 1
            for axis in reversed(order):
                strides.append(stride)
                stride *= self.cells.shape[axis]
            digits = [
                Digit(axis, 1, self.cells.shape[axis], step)
                for axis, step in zip(order, reversed(strides))
            ]
            at = weigh(self.cells.shape, digits)
            number = [n + numbers[k] for n, k in zip(number, at)]
        return tuple([values[n] for n in number])
