"""The plaintexts of a linear map: the weights of one diagonal of one block, computed on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, zip_longest
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.ckks.linear import ConnectedDims, LinearMap, LinearPart, Side
from weft.ckks.packing import Floats, Integers, Kind, Packing
from weft.errors import WeftError

NOWHERE = -(1 << 50)
"""The address of a weight that does not exist: sums with it stay below zero."""
LARGE = 1 << 22
"""Pairs from which on a component is looked up by binary search, not in a table."""
SMALL = 1 << 16
"""Pairs up to which components are looked up together, in a table that stays in the cache."""


class Lookup:
    """The addresses of one component by the numbers of its coordinates in operand and result.

    A pair that several points of the index space relate has as many addresses. The number after the
    last stands for a slot without an element.
    """

    def __init__(self, component: ConnectedDims) -> None:
        self.sizes = prod(component.source.sizes), prod(component.target.sizes)
        pairs = component.source.numbers * (self.sizes[1] + 1) + component.target.numbers
        pairs = np.broadcast_to(pairs, component.address.shape)
        order = np.argsort(pairs, kind="stable")
        pairs, addresses = pairs[order], component.address[order]
        starts = np.flatnonzero(np.diff(pairs, prepend=-1))
        ranks = np.arange(len(pairs)) - np.repeat(starts, np.diff(starts, append=len(pairs)))
        self.layers = [
            (pairs[ranks == rank], addresses[ranks == rank])
            for rank in range(int(ranks.max(initial=-1)) + 1)
        ]

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return prod(n + 1 for n in self.sizes)

    @cached_property
    def tables(self) -> list[Integers]:
        """For each layer, the address of every pair, or `NOWHERE`."""
        tables = list[Integers]()
        for pairs, addresses in self.layers:
            table = np.full(self.pairs, NOWHERE)
            table[pairs] = addresses
            tables.append(table)
        return tables

    def addresses(self, pairs: Integers) -> Iterator[Integers]:
        """Return the addresses of pairs, layer by layer."""
        if self.pairs <= LARGE:
            for table in self.tables:
                yield table.take(pairs, mode="clip")
            return
        for known, addresses in self.layers:
            at = np.searchsorted(known, pairs).clip(max=len(known) - 1)
            yield np.where(known[at] == pairs, addresses[at], NOWHERE)


class _Group:
    """Components that are looked up together: one, or some whose common table is small."""

    def __init__(self, numbers: tuple[int, ...], lookups: Sequence[Lookup]) -> None:
        self.numbers, self.lookups = numbers, lookups
        self.width = prod(each.sizes[1] + 1 for each in lookups)
        """The numbers of the result: the step from one number of the operand to the next."""

    @cached_property
    def table(self) -> Integers:
        """The sums of the addresses of all lookups, by their numbers in operand and result."""
        tables = [each.tables[0].reshape([n + 1 for n in each.sizes]) for each in self.lookups]
        total = tables[0]
        for table in tables[1:]:
            total = total[:, None, :, None] + table[:, None]
            total = total.reshape(total.shape[0] * total.shape[1], -1)
        return total.ravel()

    def addresses(self, pairs: Integers) -> list[Integers]:
        if len(self.lookups) > 1:
            return [self.table.take(pairs, mode="clip")]
        return list(self.lookups[0].addresses(pairs))


def _grouped(lookups: Sequence[tuple[int, Lookup]]) -> list[_Group]:
    """Return groups of lookups that fit a small table; large or layered ones stay alone."""
    groups, open_, total = list[_Group](), list[tuple[int, Lookup]](), 1
    for number, lookup in sorted(lookups, key=lambda each: each[1].pairs):
        if len(lookup.layers) == 1 and total * lookup.pairs <= SMALL:
            open_.append((number, lookup))
            total *= lookup.pairs
        else:
            groups.append(_Group((number,), [lookup]))
    if open_:
        groups.append(_Group(tuple(n for n, _ in open_), [each for _, each in open_]))
    return groups


class _SlotRows:
    """The parts that each slot of a ciphertext adds to the pair of every group and to the address.

    Rows are stored twice in a row, so that a rotation is a slice.
    """

    def __init__(
        self,
        packing: Packing,
        groups: Sequence[tuple[int, Sequence[Side]]],
        alone: Sequence[tuple[Side, Integers]],
        start: int,
    ) -> None:
        self.packing, self.groups, self.alone, self.start = packing, groups, alone, start
        self.known: dict[int, tuple[list[Integers], Integers]] = {}

    @cached_property
    def elements(self) -> Integers:
        return self.packing.numbers()

    def __call__(self, ciphertext: int) -> tuple[list[Integers], Integers]:
        if ciphertext not in self.known:
            self.known[ciphertext] = self._rows(self.elements[ciphertext])
        return self.known[ciphertext]

    def _rows(self, elements: Integers) -> tuple[list[Integers], Integers]:
        shape, empty = self.packing.shape, elements < 0
        at = np.unravel_index(elements.clip(0), shape) if shape else ()

        def number(side: Side) -> Integers:
            total = np.zeros(len(elements), np.int64)
            for dim in side.dims:
                total = total * shape[dim] + at[dim]
            return np.where(empty, prod(side.sizes), total)

        rows = list[Integers]()
        for step, sides in self.groups:
            total = np.zeros(len(elements), np.int64)
            for side in sides:
                total = total * (prod(side.sizes) + 1) + number(side)
            rows.append(_twice(total * step))
        address = np.where(empty, NOWHERE, self.start)
        for side, table in self.alone:
            address += table[number(side)]
        return rows, _twice(address)


def _twice(row: NDArray[Kind]) -> NDArray[Kind]:
    return np.concatenate([row, row])


class _Operand:
    """The weights and tables of one part of a map."""

    def __init__(self, part: LinearPart, weight: ArrayLike | None, scale: ArrayLike | None) -> None:
        self.part, self.slots = part, part.source.slots
        lookups = list(enumerate(map(Lookup, part.components)))
        single = {n for n, each in lookups if len(each.layers) == 1 and 1 in each.sizes}
        self.groups = _grouped([each for each in lookups if each[0] not in single])
        self.source, self.target = self._rows(0, lookups, single), self._rows(1, lookups, single)
        self.weight = _flat(part, weight)
        self.scale = None if scale is None else [_twice(row) for row in packed(part.target, scale)]

    def _rows(self, side: int, lookups: list[tuple[int, Lookup]], single: set[int]) -> _SlotRows:
        """Return the rows of the operand (0) or of the result (1).

        A component with a single number on the other side adds to the address by itself; if both
        sides have one, the operand's does.
        """
        sides = [(each.source, each.target)[side] for each in self.part.components]
        alone = list[tuple[Side, Integers]]()
        for number, lookup in lookups:
            if number in single and side == (lookup.sizes[1] != 1):
                table = lookup.tables[0].reshape([n + 1 for n in lookup.sizes])
                alone.append((sides[number], table[0] if side else table[:, 0]))
        groups = [
            (1 if side else group.width, [sides[number] for number in group.numbers])
            for group in self.groups
        ]
        packing = (self.part.source, self.part.target)[side]
        return _SlotRows(packing, groups, alone, start=side)  # 1 for the zero before the weights

    def values(self, out: int, number: int, giant: int, baby: int) -> Floats:
        """Return the weights of one diagonal, each in the slot of its product."""
        sources, first = self.source(number - self.part.first)
        targets, last = self.target(out)
        ahead = slice(baby % self.slots, baby % self.slots + self.slots)
        back = slice(-giant % self.slots, -giant % self.slots + self.slots)
        alternatives = [
            group.addresses(one[ahead] + two[back])
            for group, one, two in zip(self.groups, sources, targets)
        ]
        start = first[ahead] + last[back]
        total = np.zeros(self.slots)
        for chosen in product(*alternatives):
            # Addresses below zero are clipped to the first, which holds a zero.
            total += self.weight.take(sum(chosen, start), mode="clip")
        if self.scale is not None:
            total *= self.scale[out][back]
        return total


def packed(packing: Packing, values: ArrayLike) -> list[Floats]:
    """Return values, broadcast to the shape of a tensor, in its packing.

    >>> [row.tolist() for row in packed(Packing.dense((2, 2), 4), [[1], [2]])]
    [[1.0, 1.0, 2.0, 2.0]]
    """
    given = np.asarray(values, np.float64)
    try:
        return packing.pack(np.broadcast_to(given, packing.shape))
    except ValueError:
        raise WeftError(
            f"values of shape {list(given.shape)} do not broadcast to {list(packing.shape)}"
        ) from None


def _flat(part: LinearPart, weight: ArrayLike | None) -> Floats:
    """Return a zero followed by the weights in row-major order."""
    given = np.asarray(1.0 if weight is None else weight, np.float64)
    shape = part.weight or ()
    if given.shape != shape:
        raise WeftError(f"a weight of shape {list(shape)} is given as {list(given.shape)}")
    return np.concatenate([[0.0], given.ravel()])


class DiagonalWeights:
    """The weights of a linear map: an array and a scale of the result for each of its parts.

    A part without weights has None, or a single number. A scale has a number for each element of
    the result, or one for all: an average is a sum with a scale.
    """

    def __init__(
        self,
        linear_map: LinearMap,
        weights: Sequence[ArrayLike | None] = (),
        scales: Sequence[ArrayLike | None] = (),
    ) -> None:
        pairs = zip_longest(weights, scales)
        self.operands = [_Operand(part, *pair) for part, pair in zip(linear_map.parts, pairs)]
        self.operands += [
            _Operand(part, None, None) for part in linear_map.parts[len(self.operands) :]
        ]

    def values(self, out: int, number: int, giant: int, baby: int) -> Floats:
        """Return the plaintext of one pair of ciphertexts and one pair of steps."""
        operand = next(each for each in self.operands if each.part.has(number))
        return operand.values(out, number, giant, baby)


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal:
    """The plaintext of one diagonal: slot t has the weight of input slot t + baby in t - giant."""

    weights: DiagonalWeights
    out: int
    number: int
    giant: int
    baby: int

    def values(self) -> Floats:
        """Return one value for each slot."""
        return self.weights.values(self.out, self.number, self.giant, self.baby)
