"""Which packing every value of a network has: the choice whose costs add up to the least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import inf

import numpy as np

from weft.ckks.bsgs import split
from weft.ckks.calibrate import OperationTimes
from weft.ckks.candidates import packings
from weft.ckks.choose import Factor, NoChoiceError, Table, choose
from weft.ckks.cost import Cost, predict
from weft.ckks.linear import LinearMap, identity, linear
from weft.ckks.network import Linear, Network, Power
from weft.ckks.packing import Packing
from weft.ckks.reshard import reshard
from weft.errors import WeftError
from weft.lang import Signature

ROTATION, PLAIN_PRODUCT = 1.0, 1e-3
"""What operations weigh where nobody measured: rotations come first."""
LEVEL = 12
"""What a level more weighs, in rotations."""
MOVED = 4096
"""Masks of a ciphertext from which on nobody would move a tensor."""
WORSE, HOPELESS = 3, 32
"""How many times the fewest diagonals are looked into, of one packing of the operand and of all."""
FEW = 256
"""Diagonals that are few in any case."""


def choose_packings(
    network: Network, slots: int, times: OperationTimes | None, packed: Mapping[str, Packing]
) -> dict[str, Packing]:
    """The packing of every value: some by hand, all others by cost, forwards and backwards."""
    try:
        return Choice(network, slots, times, packed).packings()
    except NoChoiceError:  # what goes well with one neighbour goes with none of another
        return Choice(network, slots, times, packed, is_thorough=True).packings()


class Choice:
    """The packings of all values: those that are alike are one choice."""

    def __init__(
        self,
        network: Network,
        slots: int,
        times: OperationTimes | None,
        packed: Mapping[str, Packing],
        *,
        is_thorough: bool = False,
    ) -> None:
        self.network, self.times, self.is_thorough = network, times, is_thorough
        self.level = LEVEL * (ROTATION if times is None else times.rotation[-1])
        self.heads: dict[str, str] = {}
        self.sets: dict[str, list[Packing]] = {}
        for layer in network.layers:
            if not isinstance(layer, Linear | Power):
                for source in layer.sources:
                    self.heads[self.head(source)] = self.head(layer.name)
        for name, given in packings(network, slots).items():
            known = self.sets.setdefault(self.head(name), [])
            known += [each for each in given if each not in known]
        for name, packing in packed.items():
            self.sets[self.head(network.views.get(name, name))] = [packing]

    def head(self, name: str) -> str:
        """The value that stands for all that are packed alike."""
        while name in self.heads and self.heads[name] != name:
            name = self.heads[name]
        return name

    def packings(self) -> dict[str, Packing]:
        """The packing of every value."""
        sizes = {name: len(each) for name, each in self.sets.items()}
        factors = [Factor((name,), self._held(each)) for name, each in self.sets.items()]
        for layer in self.network.layers:
            if isinstance(layer, Linear):
                factors += self._prices(layer)
            elif isinstance(layer, Power):
                factors += self._moves(layer)
        chosen = choose(sizes, factors)
        names = [*self.network.inputs, *(layer.name for layer in self.network.layers)]
        return {name: self.sets[self.head(name)][chosen[self.head(name)]] for name in names}

    def _moves(self, layer: Power) -> Iterable[Factor]:
        """A polynomial leaves its value where it is, or it is moved."""
        (source, target) = map(self.head, (layer.sources[0], layer.name))
        if source != target:
            given = [[self._moving(a, b) for b in self.sets[target]] for a in self.sets[source]]
            yield Factor((source, target), np.array(given))

    def _moving(self, source: Packing, target: Packing) -> float:
        if source == target:
            return 0.0
        cost = _moved(source, target)
        return inf if cost is None else self._weight(cost) + self.level * cost.levels

    def _held(self, given: Sequence[Packing]) -> Table:
        """Fewer ciphertexts are better, all else alike: a little for each."""
        return np.array([1e-6 * packing.ciphertexts for packing in given])

    def _prices(self, layer: Linear) -> Iterable[Factor]:
        target = self.head(layer.name)
        for place, name in zip(layer.places, layer.sources):
            source = self.head(name)
            table = self._table(layer, place, self.sets[source], self.sets[target])
            if source == target:  # a layer whose result is packed as its operand is
                yield Factor((source,), table.diagonal())
            else:
                yield Factor((source, target), table)

    def _table(
        self, layer: Linear, place: int, sources: Sequence[Packing], targets: Sequence[Packing]
    ) -> Table:
        line, weight = layer.signature, layer.weight
        products = np.full((len(sources), len(targets)), inf)
        for n, m in np.ndindex(products.shape):
            given = _mapped(line, sources[n], targets[m], place, weight)
            products[n, m] = inf if given is None else given.products
        most = np.minimum(WORSE * products.min(axis=1, keepdims=True), HOPELESS * products.min())
        looked = np.isfinite(products) & (self.is_thorough | (products <= np.maximum(most, FEW)))
        table = np.full(products.shape, inf)
        for n, m in np.argwhere(looked).tolist():
            table[n, m] = self._price(line, sources[n], targets[m], place, weight)
        return table

    def _price(
        self, line: Signature, source: Packing, target: Packing, place: int, weight: int | None
    ) -> float:
        return self._weight(_priced(line, source, target, place, weight))

    def _weight(self, cost: Cost) -> float:
        """What operations weigh: seconds where they are known, and else mostly rotations."""
        if self.times is not None:
            return self.times.seconds(cost, max(1, self.times.depth))
        return ROTATION * cost.rotations + PLAIN_PRODUCT * cost.plain_products


@lru_cache(maxsize=4096)
def _mapped(
    line: Signature, source: Packing, target: Packing, place: int, weight: int | None
) -> LinearMap | None:
    """The map of a layer between two packings; None where they are no views of its shapes."""
    try:
        return linear(line, source, target, place, weight)
    except WeftError:
        return None


@lru_cache(maxsize=4096)
def _moved(source: Packing, target: Packing) -> Cost | None:
    """What it takes to move a tensor; None where that is out of the question."""
    if identity(source, target).products > MOVED * source.ciphertexts:
        return None
    return reshard(source, target).cost


@lru_cache(maxsize=4096)
def _priced(
    line: Signature, source: Packing, target: Packing, place: int, weight: int | None
) -> Cost:
    given = linear(line, source, target, place, weight)
    return predict(given, split(given))
