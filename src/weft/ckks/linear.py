"""`LinearMap`: which diagonals take the ciphertexts of an operand to those of a result.

Slot `s` of the result needs slot `s + d` of the operand: `d` is a diagonal. Which there are follows
from an operator's line and two packings. Each component has a set of differences, and the diagonals
of the whole map are their sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from weft.ckks.components import Component, Side, components
from weft.ckks.packing import Integers, Packing
from weft.errors import WeftError
from weft.lang import Signature
from weft.values import Point

DENSE = 1 << 17
"""From how many pairs on a sum of two sets is a convolution of their indicators."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An operand of a linear map: its packing, its components, and the shape of its weight."""

    source: Packing
    components: tuple[Component, ...]
    weight: Point | None
    first: int
    """The number of its first ciphertext among all that go in."""


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
    target: Packing
    blocks: Mapping[tuple[int, int], int]
    sets: tuple[Integers, ...]

    @property
    def inputs(self) -> int:
        """How many ciphertexts go in."""
        return sum(part.source.ciphertexts for part in self.parts)

    @property
    def outputs(self) -> int:
        """How many ciphertexts come out."""
        return self.target.ciphertexts

    @property
    def slots(self) -> int:
        """How many slots a ciphertext has."""
        return self.target.slots

    @property
    def period(self) -> int:
        """How many different rotations the operands have: they repeat after so many slots."""
        return max(part.source.period for part in self.parts)

    @property
    def products(self) -> int:
        """How many plaintext products there are: one for each diagonal of each block."""
        return sum(len(self.sets[number]) for number in self.blocks.values())

    @property
    def strides(self) -> tuple[Point, Point]:
        """The strides of the digits that are counted in a ciphertext, of operands and of result."""
        sources = {stride for part in self.parts for stride in _counted(part.source)}
        return tuple(sorted(sources)), tuple(sorted(_counted(self.target)))

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
    given = _seen_as(source, signature.operand_shapes[operand], "operand")
    made = _seen_as(target, signature.result_shapes[0], "result")
    if given.slots != made.slots:
        raise WeftError(f"an operand in {given.slots} slots has a result in {made.slots}")
    found = tuple(components(signature, operand, weight))
    shape = None if weight is None else signature.operand_shapes[weight]
    blocks, sets = _structure(found, given, made)
    for number in range(made.ciphertexts):
        # A result that nothing goes to is a product with zeros: a ciphertext has to come from one.
        if not any((number, other) in blocks for other in range(given.ciphertexts)):
            blocks[number, 0] = _numbered(sets, np.zeros(1, np.int64))
    return LinearMap((Part(given, found, shape, 0),), made, blocks, tuple(sets))


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
    target = maps[0].target
    if any(each.target != target for each in maps):
        raise WeftError("maps to different packings of a result cannot be joined")
    parts, blocks, sets, first = list[Part](), dict[tuple[int, int], int](), list[Integers](), 0
    for each in maps:
        for (out, number), key in each.blocks.items():
            blocks[out, first + number] = _numbered(sets, each.sets[key])
        for part in each.parts:
            parts.append(Part(part.source, part.components, part.weight, first + part.first))
        first += each.inputs
    return LinearMap(tuple(parts), target, blocks, tuple(sets))


def _seen_as(packing: Packing, shape: Point, what: str) -> Packing:
    """The packing of a tensor of that shape: its own, or a view of it."""
    seen = packing if packing.shape == shape else packing.reshaped(shape)
    if seen is None:
        raise WeftError(
            f"the {what} has shape {list(shape)} and is packed as {list(packing.shape)}",
            hint="reshard it first",
        )
    return seen


def _counted(packing: Packing) -> set[int]:
    return {stride for stride, n in zip(packing.strides, packing.extents) if n > 1}


def _structure(
    found: Sequence[Component], source: Packing, target: Packing
) -> tuple[dict[tuple[int, int], int], list[Integers]]:
    """The sets of all blocks: for each choice of a group of every component the sum of their sets.

    Groups repeat from ciphertext to ciphertext, so that few sums are different.
    """
    period, known = source.period, list[Integers]()
    groups = [_groups(component, source, target, known) for component in found]
    copies = np.unique(-np.arange(0, target.slots, target.period) % period)
    start = _numbered(known, copies)
    sums = dict[tuple[int, int], int]()
    blocks = dict[tuple[int, int], int]()
    for chosen in product(*groups):
        total = start
        for _, _, key in chosen:
            if (total, key) not in sums:
                sums[total, key] = _numbered(known, _sumset(known[total], known[key], period))
            total = sums[total, key]
        block = sum(out for out, _, _ in chosen), sum(number for _, number, _ in chosen)
        blocks[block] = total
    used = {key: number for number, key in enumerate(dict.fromkeys(blocks.values()))}
    return {block: used[key] for block, key in blocks.items()}, [known[key] for key in used]


def _groups(
    component: Component, source: Packing, target: Packing, known: list[Integers]
) -> list[tuple[int, int, int]]:
    """The sets of differences of a component by what it adds to the ciphertexts out and in."""
    period = source.period
    (given, slot), (made, place) = (
        _parts(side, packing)
        for side, packing in ((component.source, source), (component.target, target))
    )
    codes = (made * source.ciphertexts + given) * period + (slot - place) % period
    codes = np.unique(np.broadcast_to(codes, component.address.shape))
    pairs, starts = np.unique(codes // period, return_index=True)
    sets = np.split(codes % period, starts[1:])
    return [
        (*divmod(int(pair), source.ciphertexts), _numbered(known, each))
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


def _numbered(known: list[Integers], values: Integers) -> int:
    """The number of a set among those that are known; a new one is added."""
    for number, each in enumerate(known):
        if len(each) == len(values) and (each == values).all():
            return number
    known.append(values)
    return len(known) - 1
