"""The plaintexts of a linear map: the weights of one diagonal of one block, made on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from weft.ckks.components import Component
from weft.ckks.linear import LinearMap, Part
from weft.ckks.packing import Floats, Integers, Packing
from weft.errors import WeftError

NOWHERE = -(1 << 50)
"""The address of a weight that is not there: sums with it stay below zero."""
LARGE = 1 << 22
"""From how many pairs on a component is looked up by search, not in a table."""


class Lookup:
    """The addresses of one component by the numbers of its coordinates in operand and result.

    A pair that is related by several points of the index space has as many addresses.
    """

    def __init__(self, component: Component) -> None:
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

    @cached_property
    def tables(self) -> list[Integers]:
        """For each layer the address of every pair, or `NOWHERE`."""
        tables = list[Integers]()
        for pairs, addresses in self.layers:
            table = np.full(prod(n + 1 for n in self.sizes), NOWHERE)
            table[pairs] = addresses
            tables.append(table)
        return tables

    def addresses(self, pairs: Integers) -> Iterator[Integers]:
        """The addresses of pairs, layer by layer."""
        if prod(n + 1 for n in self.sizes) <= LARGE:
            for table in self.tables:
                yield table[pairs]
            return
        for known, addresses in self.layers:
            at = np.searchsorted(known, pairs).clip(max=len(known) - 1)
            yield np.where(known[at] == pairs, addresses[at], NOWHERE)


class _Numbers:
    """For each ciphertext of a packing the numbers of its slots in every component."""

    def __init__(self, packing: Packing, sides: Sequence[tuple[tuple[int, ...], int]]) -> None:
        self.packing, self.sides = packing, sides
        self.known: dict[int, list[Integers]] = {}

    @cached_property
    def elements(self) -> Integers:
        return self.packing.numbers()

    def __call__(self, ciphertext: int) -> list[Integers]:
        if ciphertext not in self.known:
            self.known[ciphertext] = list(self._made(self.elements[ciphertext]))
        return self.known[ciphertext]

    def _made(self, elements: Integers) -> Iterator[Integers]:
        shape = self.packing.shape
        at = np.unravel_index(elements.clip(0), shape) if shape else ()
        for dims, size in self.sides:
            number = np.zeros(len(elements), np.int64)
            for dim in dims:
                number = number * shape[dim] + at[dim]
            yield np.where(elements < 0, size, number)


class _Operand:
    """One operand's weights and tables."""

    def __init__(self, part: Part, target: Packing, weight: ArrayLike | None) -> None:
        self.lookups = [Lookup(component) for component in part.components]
        sources = [(c.source.dims, prod(c.source.sizes)) for c in part.components]
        targets = [(c.target.dims, prod(c.target.sizes)) for c in part.components]
        self.source, self.target = _Numbers(part.source, sources), _Numbers(target, targets)
        self.first = part.first
        self.weight = _flat(part, weight)

    def values(self, out: int, number: int, giant: int, baby: int) -> Floats:
        """The weights of one diagonal, each in the slot where its product is made."""
        made, given = self.target(out), self.source(number - self.first)
        alternatives = [
            list(
                lookup.addresses(np.roll(one, -baby) * (lookup.sizes[1] + 1) + np.roll(two, giant))
            )
            for lookup, one, two in zip(self.lookups, given, made)
        ]
        total = np.zeros(len(self.weight) and self.source.packing.slots)
        for chosen in product(*alternatives):
            address = sum(chosen, np.zeros(len(total), np.int64))
            total += self.weight[np.maximum(address, -1)]
        return total


def _flat(part: Part, weight: ArrayLike | None) -> Floats:
    """The weights in order and a zero behind them, which is the last: where -1 points to."""
    if part.weight is None:
        given, shape = np.asarray(1.0 if weight is None else weight, np.float64), ()
    else:
        given, shape = np.asarray(weight, np.float64), part.weight
    if given.shape != shape:
        raise WeftError(f"a weight of shape {list(shape)} is given as {list(given.shape)}")
    return np.append(given.ravel(), 0.0)


class Weights:
    """The weights of a linear map, one array for each operand, and a scale of the result.

    `weights` has None, or a single number, for an operand without a weight. `scale` is a number for
    each element of the result, or one for all: an average is a sum with a scale.
    """

    def __init__(
        self,
        given: LinearMap,
        weights: Sequence[ArrayLike | None] = (),
        scale: ArrayLike | None = None,
    ) -> None:
        padded = [*weights, *[None] * (len(given.parts) - len(weights))]
        self.operands = [
            _Operand(part, given.target, weight) for part, weight in zip(given.parts, padded)
        ]
        self.scale: list[Floats] | None = None
        if scale is not None:
            shape = given.target.shape
            full = np.broadcast_to(np.asarray(scale, np.float64), shape)
            self.scale = given.target.pack(full)

    def values(self, out: int, number: int, giant: int, baby: int) -> Floats:
        """The plaintext for one pair of ciphertexts and one pair of steps."""
        operand = next(each for each in reversed(self.operands) if each.first <= number)
        found = operand.values(out, number, giant, baby)
        return found if self.scale is None else found * np.roll(self.scale[out], giant)


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal:
    """The plaintext of one diagonal of one block; slot t weighs input t + baby for output t - giant."""

    weights: Weights
    out: int
    number: int
    giant: int
    baby: int

    def values(self) -> Floats:
        """One value for each slot."""
        return self.weights.values(self.out, self.number, self.giant, self.baby)


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """A plaintext that is there already."""

    content: Floats

    def values(self) -> Floats:
        """One value for each slot."""
        return self.content
