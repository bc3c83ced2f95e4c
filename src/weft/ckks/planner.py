"""`plan`: packings, levels, baby and giant steps and keys for a whole network, with exact costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from math import inf

import numpy as np

from weft.ckks.bsgs import Split, split
from weft.ckks.calibrate import OperationTimes
from weft.ckks.candidates import packings
from weft.ckks.choose import Factor, NoChoiceError, Table, choose
from weft.ckks.cost import Cost, predict
from weft.ckks.levels import Levels
from weft.ckks.linear import LinearMap, identity, joined, linear
from weft.ckks.network import BEFORE, Layer, Linear, Move, Network, Power, Product, Shift
from weft.ckks.packing import Packing
from weft.ckks.parameters import Parameters
from weft.ckks.reshard import reshard
from weft.ckks.table import table
from weft.errors import WeftError
from weft.lang import Graph, Signature
from weft.values import counted

ROTATION, PLAIN_PRODUCT = 1.0, 1e-3
"""What operations weigh where nobody measured: rotations come first."""
LEVEL = 12.0
"""What a level more weighs."""
MOVED = 4096
"""Masks of a ciphertext from which on nobody would move a tensor."""
WORSE, HOPELESS = 3, 32
"""How many times the fewest diagonals are looked into, of one packing of the operand and of all."""
FEW = 256
"""Diagonals that are few in any case."""
FEWER = (None, 64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2)
"""Keys of one layer that are tried in turn, until those of all layers are few enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A layer with all that was chosen for it."""

    layer: Layer
    sources: tuple[Packing, ...]
    target: Packing
    given: tuple[int, ...]
    """The levels that its operands are made at."""
    level: int
    """That of its result."""
    cost: Cost
    map: LinearMap | None = None
    split: Split | None = None

    @property
    def name(self) -> str:
        """The value that it makes."""
        return self.layer.name

    @property
    def start(self) -> int:
        """The level that it starts at: operands that are higher are lowered first."""
        return self.level + self.layer.levels


@dataclass(frozen=True, eq=False)
class Plan:
    """A network with its packings, levels, steps and keys; `print` it for a table."""

    network: Network
    slots: int
    packings: Mapping[str, Packing]
    levels: Levels
    layers: tuple[Placed, ...]
    times: OperationTimes | None = None

    @property
    def depth(self) -> int:
        """The levels that it takes from the input to the output."""
        return self.levels.depth

    @cached_property
    def cost(self) -> Cost:
        """What all layers take."""
        total = reduce(Cost.__add__, (placed.cost for placed in self.layers), Cost())
        return replace(total, levels=self.depth)

    @property
    def linear(self) -> tuple[Placed, ...]:
        """The linear layers."""
        return tuple(placed for placed in self.layers if isinstance(placed.layer, Linear))

    @property
    def needs_products(self) -> bool:
        """Whether there are products of ciphertexts, which need a key of their own."""
        return self.cost.products > 0

    def seconds(self, times: OperationTimes | None = None) -> float:
        """What it should take by measured times."""
        known = times or self.times
        if known is None:
            raise WeftError("no operation times are known", hint="measure: weft.ckks.calibrate")
        return sum((known.seconds(each.cost, each.start) for each in self.layers), 0.0)

    def parameters(self, security: int | None = 128, **bits: int) -> Parameters:
        """Parameters that fit: these slots, this depth."""
        return Parameters(2 * self.slots, self.depth, security=security, **bits)

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters that do not fit, before there are keys."""
        if parameters.slots != self.slots:
            raise WeftError(
                f"the plan is for {self.slots} slots and N={parameters.ring} has "
                f"{parameters.slots}",
                hint=f"plan again with slots={parameters.slots}, or take N={2 * self.slots}",
            )
        if parameters.depth < self.depth:
            short = self.depth - parameters.depth
            first = next(p for p in self.layers if p.level < short)
            raise WeftError(
                f"layer {first.name}: no level is left for it; the network takes "
                f"{counted(self.depth, 'level')} and N={parameters.ring} is given "
                f"{parameters.depth}",
                hint=_deeper(self.depth, self.slots, parameters),
            )

    def key_bytes(self, parameters: Parameters) -> int:
        """The bytes of all rotation keys, and of the one for products."""
        keys = len(self.cost.keys) * parameters.rotation_key_bytes
        return keys + self.needs_products * parameters.relinearisation_key_bytes

    def __str__(self) -> str:
        return table(self)


def _deeper(depth: int, slots: int, given: Parameters) -> str:
    try:
        fits = Parameters.fitting(depth, slots, given.security or 128, given.scale_bits)
        return f"N={fits.ring} with depth={depth} would fit at {fits.security}-bit security"
    except WeftError:
        return f"no ring of the standard holds depth {depth}: cut the network, or bootstrap"


def plan(
    graph: Graph,
    slots: int,
    encrypted: Iterable[str] = (),
    *,
    keys: int | None = None,
    times: OperationTimes | None = None,
    packed: Mapping[str, Packing] | None = None,
) -> Plan:
    """Choose how a network runs on ciphertexts of so many slots.

    `encrypted` names the inputs that are encrypted, the first one unless said. At most so many
    rotation `keys` are used, if given. By operation `times` seconds are the least, and else
    rotations. Values may be `packed` by hand, all others follow.

    >>> import numpy as np
    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w), np.ones((1, 64)), np.ones((64, 64)))
    >>> plan(graph, slots=1024).cost.rotations
    14
    """
    names = tuple(encrypted) or (graph.inputs[0].name,)
    network = Network.of(graph, names).folded()
    try:
        found = _Choice(network, slots, times, packed or {}).packings()
    except NoChoiceError:  # what goes well with one neighbour goes with none of another
        found = _Choice(network, slots, times, packed or {}, is_thorough=True).packings()
    network, found = _with_moves(network, found)
    levels = Levels.of(network)
    placed = _fewer(network, found, levels, keys)
    return Plan(network, slots, found, levels, tuple(placed), times)


def _with_moves(network: Network, found: dict[str, Packing]) -> tuple[Network, dict[str, Packing]]:
    """The network with a move behind each polynomial whose result is packed otherwise."""
    levels = dict[str, int]()
    for layer in network.layers:
        if isinstance(layer, Power) and found[layer.name] != found[layer.sources[0]]:
            before = found[layer.sources[0]]
            levels[layer.name] = reshard(before, found[layer.name]).cost.levels
            found[layer.name + BEFORE] = before
    return network.moved(levels), found


def _fewer(
    network: Network, found: Mapping[str, Packing], levels: Levels, keys: int | None
) -> list[Placed]:
    """All layers, with few enough keys in all."""
    used = 0
    for each in FEWER if keys is not None else (None,):
        placed = [_placed(layer, found, levels, each) for layer in network.layers]
        used = len(frozenset().union(*(each.cost.keys for each in placed)))
        if keys is None or used <= keys:
            return placed
    raise WeftError(f"{used} rotation keys are needed at least and {keys} are allowed")


class _Choice:
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
        return inf if cost is None else self._weight(cost) + LEVEL * cost.levels

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


def _placed(layer: Layer, found: Mapping[str, Packing], levels: Levels, keys: int | None) -> Placed:
    sources = tuple(found[name] for name in layer.sources)
    target, level = found[layer.name], levels.at[layer.name]
    given = tuple(levels.at[name] for name in layer.sources)
    if isinstance(layer, Linear):
        maps = [
            linear(layer.signature, source, target, place, layer.weight)
            for source, place in zip(sources, layer.places)
        ]
        whole = maps[0] if len(maps) == 1 else joined(maps)
        parted = split(whole, keys)
        has_bias = bool(layer.bias or layer.shift)
        cost = predict(whole, parted, [has_bias])
        return Placed(layer, sources, target, given, level, cost, whole, parted)
    if isinstance(layer, Move):
        cost = reshard(sources[0], target, keys).cost
    else:
        count = target.ciphertexts
        cost = replace(_cost(layer, count), inputs=len(sources) * count, outputs=count)
        cost = replace(cost, levels=layer.levels)
    # What is read at a lower level than it has is brought there: a plain product and a rescale.
    high = [source for source, at in zip(sources, given) if at > level + layer.levels]
    lowered = sum(source.ciphertexts for source in high)
    products, rescales = cost.plain_products + lowered, cost.rescales + lowered
    cost = replace(cost, plain_products=products, rescales=rescales)
    return Placed(layer, sources, target, given, level, cost)


def _cost(layer: Layer, count: int) -> Cost:
    """What a layer that works slot by slot takes on so many ciphertexts."""
    if isinstance(layer, Power):
        counts = layer.evaluation.counts
        return Cost(
            plain_products=count * counts.plain_products,
            products=count * counts.products,
            rescales=count * counts.rescales,
            additions=count * counts.additions,
            plain_additions=count * counts.plain_additions,
        )
    if isinstance(layer, Product):
        return Cost(products=count, rescales=count)
    if isinstance(layer, Shift):
        negated = count * (layer.sign < 0)
        return Cost(additions=negated, plain_additions=count * bool(layer.plain))
    return Cost(additions=count)
