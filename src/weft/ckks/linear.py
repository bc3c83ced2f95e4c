"""`LinearMap`: which diagonals take the ciphertexts of an operand to those of a result.

Slot `s` of the result needs slot `s + d` of the operand: `d` is a diagonal. Which there are follows
from an operator's line and two packings. Each component has a set of differences, and the diagonals
of the whole map are their sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.ckks.components import Component, Side, components, in_order
from weft.ckks.packing import Integers, Packing
from weft.errors import WeftError
from weft.lang import Signature
from weft.values import Point

DENSE = 1 << 17
"""From how many pairs on a sum of two sets is a convolution of their indicators."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One operand and one result of a linear map: packings, components, the shape of its weight."""

    source: Packing
    target: Packing
    components: tuple[Component, ...]
    weight: Point | None
    first: int = 0
    """The number of the operand's first ciphertext among all that go in."""
    start: int = 0
    """The number of the result's first ciphertext among all that come out."""

    def has(self, out: int, number: int) -> bool:
        """Whether two ciphertexts, out and in, are of this result and this operand."""
        inside = 0 <= number - self.first < self.source.ciphertexts
        return inside and 0 <= out - self.start < self.target.ciphertexts


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """The structure of a linear map between packed tensors, without its weights.

    `blocks` names the set of diagonals, one of `sets`, for each pair of a ciphertext that comes out
    and one that goes in. Weights that happen to be zero change nothing.

    >>> line = Signature.of("k, k n -> n  sum: k", [(8,), (8, 4)])
    >>> dense = linear(line, Packing.vector(8, slots=8), Packing.vector(4, slots=8), weight=1)
    >>> print(dense, dense.sets[0])
    8 diagonals, 1 ciphertext to 1 [0 1 2 3 4 5 6 7]
    """

    parts: tuple[Part, ...]
    sources: tuple[Packing, ...]
    targets: tuple[Packing, ...]
    blocks: Mapping[tuple[int, int], int]
    sets: tuple[Integers, ...]

    @property
    def inputs(self) -> int:
        """How many ciphertexts go in."""
        return sum(source.ciphertexts for source in self.sources)

    @property
    def outputs(self) -> int:
        """How many ciphertexts come out."""
        return sum(target.ciphertexts for target in self.targets)

    @property
    def slots(self) -> int:
        """How many slots a ciphertext has."""
        return self.targets[0].slots

    @property
    def period(self) -> int:
        """How many different rotations the operands have: they repeat after so many slots."""
        return max(source.period for source in self.sources)

    @property
    def products(self) -> int:
        """How many plaintext products there are: one for each diagonal of each block."""
        return sum(len(self.sets[number]) for number in self.blocks.values())

    @property
    def strides(self) -> tuple[Point, Point]:
        """The strides of the digits that are counted in a ciphertext, of operands and of result."""
        return _counted(self.sources), _counted(self.targets)

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
    """The map of one operand of a line to its result, between two packings.

    Without a `weight` every related pair counts alike: an identity, a sum, a pool. Where a pair is
    related by several points of the index space their weights are added.

    >>> line = Signature.of("i j -> j i", [(4, 2)])
    >>> turn = linear(line, Packing.dense((4, 2), 8), Packing.dense((2, 4), 8))
    >>> turn.sets[0].tolist()
    [0, 1, 2, 3, 5, 6, 7]
    """
    given = seen_as(source, signature.operand_shapes[operand], "operand")
    made = seen_as(target, signature.result_shapes[0], "result")
    if given.slots != made.slots:
        raise WeftError(f"an operand in {given.slots} slots has a result in {made.slots}")
    found = tuple(components(signature, operand, weight))
    shape = None if weight is None else signature.operand_shapes[weight]
    return _mapped(Part(given, made, found, shape))


def identity(source: Packing, target: Packing) -> LinearMap:
    """The map of a tensor to itself in another packing, which may have another shape.

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
    return _mapped(Part(source, target, tuple(in_order(source.shape, target.shape)), None))


def _mapped(part: Part) -> LinearMap:
    """The map of one operand with the sets of its diagonals."""
    source, target = part.source, part.target
    blocks, given = structure(part.components, source, target, source.period)
    sets, reached = _Sets(given), {out for out, _ in blocks}
    for number in range(target.ciphertexts):
        # A result that nothing goes to is a product with zeros: a ciphertext has to come from one.
        if number not in reached:
            blocks[number, 0] = sets.number(np.zeros(1, np.int64))
    return LinearMap((part,), (source,), (target,), blocks, tuple(sets.found))


def joined(maps: Sequence[LinearMap]) -> LinearMap:
    """The sum of maps to one result, each of an operand of its own, as a concatenation is.

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
    if len({each.targets for each in maps}) > 1:
        raise WeftError("maps to different packings of a result cannot be joined")
    sources = [source for each in maps for source in each.sources]
    places = accumulate((each.inputs for each in maps[:-1]), initial=0)
    return _combined(maps, [(0, first) for first in places], sources, maps[0].targets)


def stacked(maps: Sequence[LinearMap]) -> LinearMap:
    """Several maps of the same operands, each to a result of its own: they share baby steps.

    >>> line = Signature.of("k, k n -> n  sum: k", [(16,), (16, 16)])
    >>> dense = linear(line, Packing.vector(16, 16), Packing.vector(16, 16), weight=1)
    >>> print(stacked([dense, dense]))
    32 diagonals, 1 ciphertext to 2
    """
    if len({each.sources for each in maps}) > 1:
        raise WeftError("maps of different packings of an operand cannot be stacked")
    targets = [target for each in maps for target in each.targets]
    places = accumulate((each.outputs for each in maps[:-1]), initial=0)
    return _combined(maps, [(start, 0) for start in places], maps[0].sources, targets)


def _combined(
    maps: Sequence[LinearMap],
    places: Sequence[tuple[int, int]],
    sources: Sequence[Packing],
    targets: Sequence[Packing],
) -> LinearMap:
    """Maps side by side, each with its first ciphertext out and its first one in."""
    parts, blocks, sets = list[Part](), dict[tuple[int, int], int](), _Sets()
    for each, (start, first) in zip(maps, places):
        for (out, number), key in each.blocks.items():
            blocks[start + out, first + number] = sets.number(each.sets[key])
        for part in each.parts:
            parts.append(replace(part, first=first + part.first, start=start + part.start))
    return LinearMap(tuple(parts), tuple(sources), tuple(targets), blocks, tuple(sets.found))


def seen_as(packing: Packing, shape: Point, what: str) -> Packing:
    """The packing of a tensor of that shape: its own, or a view of it."""
    seen = packing.reshaped(shape)
    if seen is None:
        raise WeftError(
            f"the {what} has shape {list(shape)} and is packed as {list(packing.shape)}",
            hint="reshard it first",
        )
    return seen


def _counted(packings: Sequence[Packing]) -> Point:
    """The strides of digits that have several values in a ciphertext, each once, in order."""
    pairs = {pair for each in packings for pair in zip(each.strides, each.extents)}
    return tuple(sorted({stride for stride, n in pairs if n > 1}))


def structure(
    found: Sequence[Component], source: Packing, target: Packing, period: int
) -> tuple[dict[tuple[int, int], int], list[Integers]]:
    """The sets of all blocks: for each choice of a group of every component the sum of their sets.

    Rotations that differ by a period are the same. Groups repeat from ciphertext to ciphertext, so
    that few sums are different.
    """
    known = _Sets()
    groups = [_groups(component, source, target, period, known) for component in found]
    copies = np.unique(-np.arange(0, target.slots, target.period) % period)
    start, sets = known.number(copies), known.found
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
    component: Component, source: Packing, target: Packing, period: int, known: _Sets
) -> list[tuple[int, int, int]]:
    """The sets of differences of a component by what it adds to the ciphertexts out and in."""
    (given, slot), (made, place) = (
        _parts(side, packing)
        for side, packing in ((component.source, source), (component.target, target))
    )
    codes = (made * source.ciphertexts + given) * period + (slot - place) % period
    codes = np.unique(np.broadcast_to(codes, component.address.shape))
    pairs, starts = np.unique(codes // period, return_index=True)
    sets = np.split(codes % period, starts[1:])
    return [
        (*divmod(int(pair), source.ciphertexts), known.number(each))
        for pair, each in zip(pairs, sets)
    ]


def _parts(side: Side, packing: Packing) -> tuple[Integers, Integers]:
    """What the coordinates of a side add to the ciphertext and to the slot."""
    ciphertext = slot = np.zeros((), np.int64)
    tables = packing.tables()
    for dim, at in zip(side.dims, side.coordinates):
        ciphertext = ciphertext + tables[dim].ciphertext[at]
        slot = slot + tables[dim].slot[at]
    return ciphertext, slot


def _sumset(one: Integers, two: Integers, period: int) -> Integers:
    """All sums of an element of each, modulo the period, in order.

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
    """Sets of diagonals, each once, found by what is in them."""

    def __init__(self, given: Iterable[Integers] = ()) -> None:
        self.found: list[Integers] = []
        self._numbers: dict[bytes, int] = {}
        for values in given:
            self.number(values)

    def number(self, values: Integers) -> int:
        """The number of a set; one that is not known yet is added."""
        number = self._numbers.setdefault(values.tobytes(), len(self.found))
        if number == len(self.found):
            self.found.append(values)
        return number
