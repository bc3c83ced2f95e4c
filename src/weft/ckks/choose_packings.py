"""Choose the packing of every value of a network: the choice with the least total cost.

Costs are tables over the candidate packings of one value or two. One value after the other is
eliminated: its tables are summed, and only the best choice for each of its neighbours' is kept. It
is exact, and quick where a graph is nearly a chain, as networks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod
from typing import Any

import numpy as np

from weft.ckks.bsgs import split
from weft.ckks.calibrate import OperationTimes
from weft.ckks.linear import LinearMap, identity, linear
from weft.ckks.lower import predict, reshard
from weft.ckks.network import LinearLayer, Network, PolynomialLayer
from weft.ckks.packing import Floats, Packing
from weft.ckks.slot_program import OperationCounts
from weft.errors import WeftError
from weft.lang import Signature
from weft.layout import ShardingSpec
from weft.values import Point

GAPS = (1, 2, 4, 8, 16, 32)
STRIDES = tuple(1 << n for n in range(16))
MOST_CANDIDATES = 16
"""The most candidate packings of one value, copies aside."""
ROTATION, PLAIN_PRODUCT = 1.0, 1e-3
"""Weights of operations if no times are known: rotations dominate."""
LEVEL = 12
"""The weight of a level, in rotations."""
MOST_MASKS = 4096
"""Masks of a ciphertext from which on a repacking is not considered."""
WORSE, HOPELESS = 3, 32
"""Packings with more diagonals than this many times the fewest are not priced: the fewest for the
same packing of the operand, and for all."""
FEW = 256
"""A number of diagonals that is always priced."""
WIDE = 1 << 24
"""Entries from which on a cost table is too large."""


def choose_packings(
    network: Network, slots: int, times: OperationTimes | None, packed: Mapping[str, Packing]
) -> dict[str, Packing]:
    """Return the packing of every value; `packed` has those that are fixed."""
    try:
        return _PackingChoice(network, slots, times, packed).packings()
    except NoChoiceError:  # the packings that were priced are not compatible
        return _PackingChoice(network, slots, times, packed, is_thorough=True).packings()


class _PackingChoice:
    """The choice of all packings; values that must have the same packing are one choice."""

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
            if not isinstance(layer, LinearLayer | PolynomialLayer):
                for source in layer.sources:
                    self.heads[self.head(source)] = self.head(layer.name)
        for name, candidates in candidate_packings(network, slots).items():
            known = self.sets.setdefault(self.head(name), [])
            known += [each for each in candidates if each not in known]
        for name, packing in packed.items():
            self.sets[self.head(network.views.get(name, name))] = [packing]

    def head(self, name: str) -> str:
        """Return the value that represents all that have the same packing."""
        while name in self.heads and self.heads[name] != name:
            name = self.heads[name]
        return name

    def packings(self) -> dict[str, Packing]:
        """Return the packing of every value."""
        sizes = {name: len(each) for name, each in self.sets.items()}
        # Fewer ciphertexts are better if all else is equal.
        tables = [
            CostTable((name,), np.array([1e-6 * packing.ciphertexts for packing in each]))
            for name, each in self.sets.items()
        ]
        for layer in self.network.layers:
            if isinstance(layer, LinearLayer):
                tables += self._prices(layer)
            elif isinstance(layer, PolynomialLayer):
                tables += self._repackings(layer)
        chosen = choose(sizes, tables)
        names = [*self.network.inputs, *(layer.name for layer in self.network.layers)]
        return {name: self.sets[self.head(name)][chosen[self.head(name)]] for name in names}

    def _repackings(self, layer: PolynomialLayer) -> Iterable[CostTable]:
        """Return the costs of keeping or changing the packing after a polynomial."""
        (source, target) = map(self.head, (layer.sources[0], layer.name))
        if source != target:
            costs = [[self._repacking(a, b) for b in self.sets[target]] for a in self.sets[source]]
            yield CostTable((source, target), np.array(costs))

    def _repacking(self, source: Packing, target: Packing) -> float:
        if source == target:
            return 0.0
        cost = _repacking_cost(source, target)
        return inf if cost is None else self._weight(cost) + self.level * cost.levels

    def _prices(self, layer: LinearLayer) -> Iterable[CostTable]:
        target = self.head(layer.name)
        for place, name in zip(layer.places, layer.sources):
            source = self.head(name)
            table = self._table(layer, place, self.sets[source], self.sets[target])
            if source == target:  # the result has the packing of its operand
                yield CostTable((source,), table.diagonal())
            else:
                yield CostTable((source, target), table)

    def _table(
        self, layer: LinearLayer, place: int, sources: Sequence[Packing], targets: Sequence[Packing]
    ) -> Floats:
        signature, weight = layer.signature, layer.weight
        products = np.full((len(sources), len(targets)), inf)
        for n, m in np.ndindex(products.shape):
            linear_map = _mapped(signature, sources[n], targets[m], place, weight)
            products[n, m] = inf if linear_map is None else linear_map.products
        most = np.minimum(WORSE * products.min(axis=1, keepdims=True), HOPELESS * products.min())
        priced = np.isfinite(products) & (self.is_thorough | (products <= np.maximum(most, FEW)))
        table = np.full(products.shape, inf)
        for n, m in np.argwhere(priced).tolist():
            cost = _linear_cost(signature, sources[n], targets[m], place, weight)
            table[n, m] = self._weight(cost)
        return table

    def _weight(self, cost: OperationCounts) -> float:
        """Return seconds if times are known, otherwise mostly rotations."""
        if self.times is not None:
            return self.times.seconds(cost, max(1, self.times.depth))
        return ROTATION * cost.rotations + PLAIN_PRODUCT * cost.plain_products


@lru_cache(maxsize=4096)
def _mapped(
    signature: Signature, source: Packing, target: Packing, place: int, weight: int | None
) -> LinearMap | None:
    """Return the map of a layer between two packings; None if they do not fit its shapes."""
    try:
        return linear(signature, source, target, place, weight)
    except WeftError:
        return None


@lru_cache(maxsize=4096)
def _repacking_cost(source: Packing, target: Packing) -> OperationCounts | None:
    """Return the operations of a repacking; None if there would be far too many."""
    if identity(source, target).products > MOST_MASKS * source.ciphertexts:
        return None
    return reshard(source, target).cost


@lru_cache(maxsize=4096)
def _linear_cost(
    signature: Signature, source: Packing, target: Packing, place: int, weight: int | None
) -> OperationCounts:
    linear_map = linear(signature, source, target, place, weight)
    return predict(linear_map, split(linear_map))


# -- candidates ------------------------------------------------------------------------------------


def candidate_packings(network: Network, slots: int) -> dict[str, list[Packing]]:
    """Return the candidate packings of each value that is not a view.

    Images are packed in tiles with any gap, inputs of strided layers also in phases; vectors with
    any stride, and in the slots of the image that they are a sum of. Packings that leave room are
    tried with and without copies.
    """
    result: dict[str, list[Packing]] = {}
    strides = _strides_read(network)
    for name in network.inputs:
        general = [*_general(network.shape(name), slots), *_phased(network, name, strides, slots)]
        result[name] = _with_copies(name, general)
    for layer in network.layers:
        shape = network.shape(layer.name)
        candidates = [*_general(shape, slots), *_phased(network, layer.name, strides, slots)]
        if isinstance(layer, LinearLayer) and layer.operator in ("mean_dim", "sum_dim"):
            dims = layer.signature.notation.operands[0]
            kept = [n for n, row in enumerate(dims) if row in layer.signature.notation.results[0]]
            candidates += [
                remaining
                for source in result[layer.sources[0]]
                for remaining in _kept(source, network.shape(layer.sources[0]), kept, shape)
            ]
        result[layer.name] = _with_copies(layer.name, candidates)
    return result


def _with_copies(name: str, candidates: Iterable[Packing]) -> list[Packing]:
    once = list(dict.fromkeys(candidates))[:MOST_CANDIDATES]
    if not once:
        raise WeftError(f"{name} does not fit: no packing of it fits the slots")
    roomy = [each for each in once if each.ciphertexts == 1 and 2 * each.span <= each.slots]
    copies = [each.replicated() for each in roomy]
    return list(dict.fromkeys([*once, *copies]))


def _general(shape: Point, slots: int) -> Iterator[Packing]:
    """Return the packings that any value of a shape may have."""
    core = _without_leading_ones(shape)
    if len(core) < 2:
        size = core[0] if core else 1
        for stride in STRIDES:
            if size * stride <= slots or stride == 1:
                yield from _if_it_fits(Packing.vector, size, slots, stride)
    elif len(core) == 2:
        yield from _if_it_fits(Packing.tiled, core, slots)
        yield from _if_it_fits(Packing.dense, core, slots)
    else:
        for gap in GAPS:
            if gap == 1:
                yield from _if_it_fits(Packing.tiled, core, slots)
            elif gap * gap < 2 * core[-3] and prod(_sides(core, gap)) <= slots:
                yield from _if_it_fits(Packing.multiplexed, core, slots, gap, _sides(core, gap))


def _sides(shape: Point, gap: int) -> tuple[int, int]:
    high, wide = ((n - 1).bit_length() for n in shape[-2:])
    return gap << high, gap << wide


def _phased(
    network: Network, name: str, strides: dict[str, tuple[int, int]], slots: int
) -> Iterator[Packing]:
    core = _without_leading_ones(network.shape(name))
    if name not in strides or len(core) < 3:
        return
    down, along = strides[name]
    yield from _if_it_fits(Packing.phased, core, slots, (down, along))
    if name in network.inputs:  # the next layer may be strided as well
        yield from _if_it_fits(Packing.phased, core, slots, (down**2, along**2))


def _if_it_fits(make: Callable[..., Packing], *given: Any) -> Iterator[Packing]:
    """Return a packing, unless there is no room for it."""
    try:
        yield make(*given)
    except WeftError:
        return


def _strides_read(network: Network) -> dict[str, tuple[int, int]]:
    """Return the strides at which layers read values, directly or through polynomials."""
    result: dict[str, tuple[int, int]] = {}
    for layer in reversed(network.layers):
        if isinstance(layer, PolynomialLayer) and layer.name in result:
            result[layer.sources[0]] = result[layer.name]
        elif isinstance(layer, LinearLayer) and layer.places == (0,):
            rows = layer.signature.notation.operands[0][-2:]
            outer = [max((step for _, step in row.terms), default=1) for row in rows]
            if len(outer) == 2 and max(outer) > 1:
                result[layer.sources[0]] = outer[0], outer[1]
    return result


def _kept(packing: Packing, shape: Point, dims: list[int], result: Point) -> Iterator[Packing]:
    """Return a packing without some dimensions of its tensor, unless those are cut."""
    view = packing.reshaped(shape)
    if view is None:
        return
    first = [sum(map(len, view.radices[:dim])) for dim in range(len(shape))]
    digits = [n for dim in dims for n in range(first[dim], first[dim] + len(view.radices[dim]))]
    others = [n for n in range(len(view.lifted)) if n not in digits]
    if any(view.spec.grid[n] > 1 for n in others):
        return
    spec = ShardingSpec(view.spec.mesh, [view.spec.dim_specs[n] for n in digits])
    kept = Packing(
        [shape[dim] for dim in dims],
        [view.radices[dim] for dim in dims],
        spec,
        [view.strides[n] for n in digits],
        view.slots,
    )
    wanted = kept.reshaped(result)
    if wanted is not None:
        yield wanted


def _without_leading_ones(shape: Point) -> Point:
    """Return a shape without its leading ones."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


# -- elimination -----------------------------------------------------------------------------------


class NoChoiceError(WeftError):
    """There is no choice of finite cost."""


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """The costs of the choices of one or more values, an axis for each."""

    names: tuple[str, ...]
    costs: Floats


def choose(sizes: Mapping[str, int], tables: Sequence[CostTable]) -> dict[str, int]:
    """Return the choices with the least total cost.

    >>> costs = np.array([[5.0, 1.0], [2.0, 9.0]])
    >>> tables = [CostTable(("a", "b"), costs), CostTable(("b",), np.array([0.0, 3.0]))]
    >>> choose({"a": 2, "b": 2}, tables)
    {'b': 0, 'a': 1}
    """
    left, order = list(tables), list[CostTable]()
    names = set(sizes)
    while names:
        name = min(sorted(names), key=lambda each: _width(each, left, sizes))
        names.remove(name)
        mine = [table for table in left if name in table.names]
        left = [table for table in left if name not in table.names]
        joint = _joined(name, mine, sizes)
        order.append(joint)
        if len(joint.names) > 1:
            left.append(CostTable(joint.names[1:], joint.costs.min(axis=0)))
    chosen: dict[str, int] = {}
    for joint in reversed(order):
        at = tuple(chosen[name] for name in joint.names[1:])
        costs = np.moveaxis(joint.costs, 0, -1)[at]
        if not np.isfinite(costs).any():
            raise NoChoiceError(
                f"no packing of {joint.names[0]} is compatible with those of its neighbours"
            )
        chosen[joint.names[0]] = int(costs.argmin())
    return chosen


def _neighbours(name: str, tables: Sequence[CostTable]) -> list[str]:
    others = {other for each in tables if name in each.names for other in each.names}
    return sorted(others - {name})


def _width(name: str, tables: Sequence[CostTable], sizes: Mapping[str, int]) -> int:
    return sizes[name] * prod(sizes[other] for other in _neighbours(name, tables))


def _joined(name: str, tables: Sequence[CostTable], sizes: Mapping[str, int]) -> CostTable:
    """Return the sum of all tables of a value; its first axis is the value's."""
    names = (name, *_neighbours(name, tables))
    shape = [sizes[each] for each in names]
    if prod(shape) > WIDE:
        raise WeftError(f"{name} has too many neighbours: a table of {shape}")
    total = np.zeros(shape)
    for table in tables:
        axes = sorted(range(len(table.names)), key=lambda n: names.index(table.names[n]))
        place = [sizes[each] if each in table.names else 1 for each in names]
        total = total + table.costs.transpose(axes).reshape(place)
    return CostTable(names, total)
