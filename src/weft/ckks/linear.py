"""`LinearMap`: the diagonals that take the ciphertexts of an operand to those of a result.

Slot `s` of the result needs slot `s + d` of the operand: `d` is a diagonal. The diagonals follow
from an operator's index notation and two packings. Dimensions of the two tensors that share an
index dimension form a component: a convolution has one for its channels, one for its features, one
for rows and one for columns. Each component has a set of slot differences, and the diagonals of the
map are the sums of one difference from each, so no matrix is ever built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.ckks.packing import Integers, Packing
from weft.errors import WeftError
from weft.lang import Row, Signature
from weft.values import Point

DENSE = 1 << 17
"""Pairs from which on the sum of two sets is computed as a convolution of their indicators."""

Rows = tuple[Row, ...]


class Side(NamedTuple):
    """The dimensions of one tensor in a component, with their coordinates at all points."""

    dims: Point
    sizes: Point
    coordinates: tuple[Integers, ...]

    @property
    def numbers(self) -> Integers:
        """The coordinates as one row-major number."""
        number = np.zeros((), np.int64)
        for size, at in zip(self.sizes, self.coordinates):
            number = number * size + at
        return number


@dataclass(frozen=True, slots=True, eq=False)
class ConnectedDims:
    """Connected dimensions of two tensors: the points of their index space where both have one.

    `address` is the part of the weight's address that these index dimensions contribute.

    >>> line = Signature.of("2*y+u-1, u -> y  sum: u", [(4,), (3,)], sizes={"y": 2})
    >>> (rows,) = components(line, operand=0, weight=1)
    >>> list(zip(rows.source.numbers.tolist(), rows.target.numbers.tolist(), rows.address.tolist()))
    [(0, 0, 1), (1, 0, 2), (1, 1, 0), (2, 1, 1), (3, 1, 2)]
    """

    source: Side
    target: Side
    address: Integers


def components(
    signature: Signature, operand: int, weight: int | None = None
) -> list[ConnectedDims]:
    """Return the components of an operand and the result; they share no index dimension."""
    line = signature.notation
    if len(line.results) != 1:
        raise WeftError(f"a linear map has one result; {len(line.results)} in {line}")
    _check_linear(signature, operand)
    sizes = dict(signature.sizes)
    source = _with_windows(line.operands[operand], sizes)
    target = line.results[0]
    steps, first = _addresses(signature, weight)
    shapes = signature.operand_shapes[operand], signature.result_shapes[0]
    result = list[ConnectedDims]()
    for names in _connected([row.dims for row in (*source, *target)], sizes):
        sides = [_chosen(rows, names) for rows in (source, target)]
        result.append(_component(names, sizes, steps, sides, shapes))
    fixed = [[dim for dim, row in enumerate(rows) if not row.terms] for rows in (source, target)]
    start = _component([], sizes, steps, [_at(source, fixed[0]), _at(target, fixed[1])], shapes)
    if first or any(fixed):
        result.append(ConnectedDims(start.source, start.target, start.address + first))
    return result


def in_order(source: Point, target: Point) -> list[ConnectedDims]:
    """Return the components of the identity between two shapes of a tensor, in row-major order.

    >>> [each.source.dims for each in in_order((2, 3), (2, 3))]
    [(0,), (1,)]
    >>> [each.source.dims for each in in_order((4, 3), (3, 4))]
    [(0, 1)]
    """
    if source == target:
        alone = [(dim, n, np.arange(n)) for dim, n in enumerate(source)]
        sides = [Side((dim,), (n,), (at,)) for dim, n, at in alone]
        return [ConnectedDims(side, side, np.zeros(side.sizes, np.int64)) for side in sides]
    elements = np.arange(prod(source))
    one, two = (
        Side(tuple(range(len(shape))), shape, np.unravel_index(elements, shape))
        for shape in (source, target)
    )
    return [ConnectedDims(one, two, np.zeros(len(elements), np.int64))]


def _check_linear(signature: Signature, operand: int) -> None:
    """Refuse lines whose result is not a sum over the operand."""
    line = signature.notation
    for name in {name for row in line.operands[operand] for name in row.dims}:
        monoid = line.reduced.get(name, "sum")
        if monoid != "sum":
            raise WeftError(f"'{name}' is reduced by {monoid}, which is not linear: {line}")
    for row in (*line.operands[operand], *line.results[0]):
        if row.source:
            raise WeftError(f"'{row}' does not say which elements it reads: {line}")
    for row in line.results[0]:
        if row.window or row.divisor != 1:
            raise WeftError(f"'{row}' in a result stands for several elements: {line}")


def _with_windows(rows: Rows, sizes: dict[str, int]) -> Rows:
    """Replace each window by one more index dimension, whose size is added to `sizes`."""
    result = list(rows)
    for dim, row in enumerate(rows):
        if row.window > 1:
            name = f"+:{dim}"
            sizes[name] = row.window
            result[dim] = row._replace(terms=(*row.terms, (name, 1)), window=0)
    return tuple(result)


def _addresses(signature: Signature, weight: int | None) -> tuple[dict[str, int], int]:
    """Return the stride of each index dimension in the weight, and the address of its origin."""
    steps, first = dict.fromkeys(signature.sizes, 0), 0
    if weight is None:
        return steps, first
    shape, line = signature.operand_shapes[weight], signature.notation
    for dim, row in enumerate(line.operands[weight]):
        stride = prod(shape[dim + 1 :])
        low = row.offset + sum(a * (signature.sizes[n] - 1) for n, a in row.terms if a < 0)
        high = row.offset + sum(a * (signature.sizes[n] - 1) for n, a in row.terms if a > 0)
        if row.window or row.divisor != 1 or low < 0 or high >= shape[dim]:
            raise WeftError(f"'{row}' is not a single element of a weight of {shape[dim]}: {line}")
        first += stride * row.offset
        for name, a in row.terms:
            steps[name] += stride * a
    return steps, first


def _connected(groups: Iterable[Sequence[str]], names: Iterable[str]) -> Iterator[list[str]]:
    """Return the connected components of names; names in one group are connected."""
    parts = {name: [name] for name in names}
    for group in groups:
        for name in group[1:]:
            one, other = parts[group[0]], parts[name]
            if one is not other:
                one += other
                parts.update(dict.fromkeys(other, one))
    seen = set[int]()
    for part in parts.values():
        if id(part) not in seen:
            seen.add(id(part))
            yield part


def _chosen(rows: Rows, names: Sequence[str]) -> list[tuple[int, Row]]:
    return [(dim, row) for dim, row in enumerate(rows) if row.terms and row.dims[0] in names]


def _at(rows: Rows, dims: Iterable[int]) -> list[tuple[int, Row]]:
    return [(dim, rows[dim]) for dim in dims]


def _component(
    names: Sequence[str],
    sizes: Mapping[str, int],
    steps: Mapping[str, int],
    sides: Sequence[Sequence[tuple[int, Row]]],
    shapes: Sequence[Point],
) -> ConnectedDims:
    """Return the points of the index dimensions at which both tensors have an element."""
    box = [sizes[name] for name in names]
    points = prod(box)
    index = dict(zip(names, np.indices(box, dtype=np.int64).reshape(len(names), points)))
    valid, coordinates = np.ones(points, bool), list[list[Integers]]()
    for rows, shape in zip(sides, shapes):
        coordinates.append([])
        for dim, row in rows:
            at = sum((a * index[name] for name, a in row.terms), np.full(points, row.offset))
            if row.divisor != 1:
                valid &= at % row.divisor == 0
                at //= row.divisor
            valid &= (at >= 0) & (at < shape[dim])
            coordinates[-1].append(at)
    address = sum((steps.get(n, 0) * index[n] for n in names), np.zeros(points, np.int64))
    source, target = (
        Side(
            tuple(dim for dim, _ in rows),
            tuple(shape[dim] for dim, _ in rows),
            tuple(at[valid] for at in each),
        )
        for rows, shape, each in zip(sides, shapes, coordinates)
    )
    return ConnectedDims(source, target, address[valid])


@dataclass(frozen=True, slots=True, eq=False)
class LinearPart:
    """One operand of a linear map: packings, components, the weight's shape."""

    source: Packing
    target: Packing
    components: tuple[ConnectedDims, ...]
    weight: Point | None
    first: int = 0
    """The number of the operand's first ciphertext among all inputs."""

    def has(self, number: int) -> bool:
        """Whether an input ciphertext belongs to this operand."""
        return 0 <= number - self.first < self.source.ciphertexts


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """The structure of a linear map between packed tensors, without its weights.

    `blocks` maps each pair of an output and an input ciphertext to the number of its set of
    diagonals in `sets`. Weights that happen to be zero change nothing.

    >>> line = Signature.of("k, k n -> n  sum: k", [(8,), (8, 4)])
    >>> dense = linear(line, Packing.vector(8, slots=8), Packing.vector(4, slots=8), weight=1)
    >>> print(dense, dense.sets[0])
    8 diagonals, 1 ciphertext to 1 [0 1 2 3 4 5 6 7]
    """

    parts: tuple[LinearPart, ...]
    sources: tuple[Packing, ...]
    target: Packing
    blocks: Mapping[tuple[int, int], int]
    sets: tuple[Integers, ...]

    @property
    def inputs(self) -> int:
        """The number of input ciphertexts."""
        return sum(source.ciphertexts for source in self.sources)

    @property
    def outputs(self) -> int:
        """The number of output ciphertexts."""
        return self.target.ciphertexts

    @property
    def slots(self) -> int:
        """The number of slots of a ciphertext."""
        return self.target.slots

    @property
    def period(self) -> int:
        """The number of different rotations of the operands: their content repeats after it."""
        return max(source.period for source in self.sources)

    @property
    def products(self) -> int:
        """The number of plaintext products: one for each diagonal of each block."""
        return sum(len(self.sets[number]) for number in self.blocks.values())

    @property
    def strides(self) -> tuple[Point, Point]:
        """The strides of the digits inside a ciphertext, of the operands and of the result."""
        return _inner_strides(self.sources), _inner_strides([self.target])

    def __str__(self) -> str:
        plural = "s" if self.inputs > 1 else ""
        return f"{self.products} diagonals, {self.inputs} ciphertext{plural} to {self.outputs}"


def linear(
    signature: Signature,
    source: Packing,
    target: Packing,
    operand: int = 0,
    weight: int | None = None,
) -> LinearMap:
    """Return the map from one operand of an operator to its result, between two packings.

    `weight` is the number of the operand with the weights. Without it every related pair has weight
    1: an identity, a sum, a pool. Where several points of the index space relate a pair, their
    weights are added.

    >>> line = Signature.of("i j -> j i", [(4, 2)])
    >>> turn = linear(line, Packing.dense((4, 2), 8), Packing.dense((2, 4), 8))
    >>> turn.sets[0].tolist()
    [0, 1, 2, 3, 5, 6, 7]
    """
    source = view_as(source, signature.operand_shapes[operand], "operand")
    target = view_as(target, signature.result_shapes[0], "result")
    if source.slots != target.slots:
        raise WeftError(f"an operand in {source.slots} slots has a result in {target.slots}")
    related = tuple(components(signature, operand, weight))
    shape = None if weight is None else signature.operand_shapes[weight]
    return _mapped(LinearPart(source, target, related, shape))


def identity(source: Packing, target: Packing) -> LinearMap:
    """Return the map of a tensor to itself in another packing, which may have another shape.

    >>> moved = identity(Packing.vector(4, slots=8), Packing.dense((2, 2), slots=4 * 2))
    >>> moved.sets[0].tolist()
    [0]
    """
    if source.slots != target.slots:
        raise WeftError(f"a tensor in {source.slots} slots is wanted in {target.slots}")
    if prod(source.shape) != prod(target.shape):
        raise WeftError(f"a tensor of shape {list(source.shape)} is wanted as {list(target.shape)}")
    if source.shape != target.shape:
        source = source.reshaped(target.shape) or source
    if source.shape != target.shape:
        target = target.reshaped(source.shape) or target
    return _mapped(LinearPart(source, target, tuple(in_order(source.shape, target.shape)), None))


def _mapped(part: LinearPart) -> LinearMap:
    """Return the map of one part, with the sets of its diagonals."""
    source, target = part.source, part.target
    blocks, known = structure(part.components, source, target, source.period)
    sets, reached = _Sets(known), {out for out, _ in blocks}
    for number in range(target.ciphertexts):
        # An output without inputs is a product with zeros: ciphertexts only come from ciphertexts.
        if number not in reached:
            blocks[number, 0] = sets.number(np.zeros(1, np.int64))
    return LinearMap((part,), (source,), target, blocks, tuple(sets.distinct))


def joined(maps: Sequence[LinearMap]) -> LinearMap:
    """Return the sum of maps to one result, each of an operand of its own, as in a concatenation.

    >>> parts = [(3,), (5,)]
    >>> whole = Packing.vector(8, slots=16)
    >>> lines = [f"i{-start or ''} -> i" for start in (0, 3)]
    >>> both = joined([
    ...     linear(Signature.of(line, [part], {"i": 8}), Packing.vector(*part, slots=16), whole)
    ...     for line, part in zip(lines, parts)
    ... ])
    >>> print(both, [diagonals.tolist() for diagonals in both.sets])
    2 diagonals, 2 ciphertexts to 1 [[0], [13]]
    """
    if len({each.target for each in maps}) > 1:
        raise WeftError("maps to different packings of a result cannot be joined")
    parts, blocks, sets, first = list[LinearPart](), dict[tuple[int, int], int](), _Sets(), 0
    for each in maps:
        for (out, number), key in each.blocks.items():
            blocks[out, first + number] = sets.number(each.sets[key])
        parts += [replace(part, first=first + part.first) for part in each.parts]
        first += each.inputs
    sources = tuple(source for each in maps for source in each.sources)
    return LinearMap(tuple(parts), sources, maps[0].target, blocks, tuple(sets.distinct))


def view_as(packing: Packing, shape: Point, what: str) -> Packing:
    """Return the packing as one of a tensor of that shape."""
    view = packing.reshaped(shape)
    if view is None:
        raise WeftError(
            f"the {what} has shape {list(shape)} and is packed as {list(packing.shape)}",
            hint="reshard it first",
        )
    return view


def _inner_strides(packings: Sequence[Packing]) -> Point:
    """Return the sorted strides of digits that have several values inside a ciphertext."""
    pairs = {pair for each in packings for pair in zip(each.strides, each.extents)}
    return tuple(sorted({stride for stride, n in pairs if n > 1}))


def structure(
    related: Sequence[ConnectedDims], source: Packing, target: Packing, period: int
) -> tuple[dict[tuple[int, int], int], list[Integers]]:
    """Return the number of the set of diagonals of each block, and the different sets.

    A block is a choice of one group from every component, and its set is the sum of their sets.
    Rotations that differ by a period are the same. Groups repeat from ciphertext to ciphertext, so
    that few sums are different.
    """
    known = _Sets()
    groups = [_groups(component, source, target, period, known) for component in related]
    copies = np.unique(-np.arange(0, target.slots, target.period) % period)
    start, sets = known.number(copies), known.distinct
    sums = dict[tuple[int, int], int]()
    blocks = dict[tuple[int, int], int]()
    for chosen in product(*groups):
        total = start
        for _, _, key in chosen:
            if (total, key) not in sums:
                sums[total, key] = known.number(_sumset(sets[total], sets[key], period))
            total = sums[total, key]
        block = sum(out for out, _, _ in chosen), sum(number for _, number, _ in chosen)
        blocks[block] = total
    used = {key: number for number, key in enumerate(dict.fromkeys(blocks.values()))}
    return {block: used[key] for block, key in blocks.items()}, [sets[key] for key in used]


def _groups(
    component: ConnectedDims, source: Packing, target: Packing, period: int, known: _Sets
) -> list[tuple[int, int, int]]:
    """Return (output, input, set of differences) of a component, ciphertexts relative to it."""
    inputs, slots = _addresses_of(component.source, source)
    outputs, places = _addresses_of(component.target, target)
    codes = (outputs * source.ciphertexts + inputs) * period + (slots - places) % period
    codes = np.unique(np.broadcast_to(codes, component.address.shape))
    pairs, starts = np.unique(codes // period, return_index=True)
    sets = np.split(codes % period, starts[1:])
    return [
        (*divmod(int(pair), source.ciphertexts), known.number(each))
        for pair, each in zip(pairs, sets)
    ]


def _addresses_of(side: Side, packing: Packing) -> tuple[Integers, Integers]:
    """Return the ciphertext and the slot that the coordinates of a side contribute."""
    ciphertext = slot = np.zeros((), np.int64)
    tables = packing.tables()
    for dim, at in zip(side.dims, side.coordinates):
        ciphertext = ciphertext + tables[dim].ciphertext[at]
        slot = slot + tables[dim].slot[at]
    return ciphertext, slot


def _sumset(one: Integers, two: Integers, period: int) -> Integers:
    """Return the sorted sums of an element of each, modulo the period.

    >>> _sumset(np.array([0, 7]), np.array([0, 1]), 8).tolist()
    [0, 1, 7]
    """
    if len(one) * len(two) < DENSE:
        marks = np.zeros(period, bool)
        marks[(one[:, None] + two) % period] = True
    else:
        spectrum = _spectrum(one, period) * _spectrum(two, period)
        marks = np.fft.irfft(spectrum, period) > 0.5
    return np.flatnonzero(marks)


def _spectrum(values: Integers, period: int) -> NDArray[np.complex128]:
    marks = np.zeros(period)
    marks[values] = 1
    return np.fft.rfft(marks)


class _Sets:
    """Different sets of diagonals, numbered."""

    def __init__(self, sets: Iterable[Integers] = ()) -> None:
        self.distinct: list[Integers] = []
        self._numbers: dict[bytes, int] = {}
        for values in sets:
            self.number(values)

    def number(self, values: Integers) -> int:
        """Return the number of a set; a new one is added."""
        number = self._numbers.setdefault(values.tobytes(), len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(values)
        return number
