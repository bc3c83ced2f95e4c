"""`Split`: diagonals as sums of a baby step and a giant step, shared by all ciphertexts.

Baby steps rotate what goes in, once for all that comes out; giant steps rotate partial sums of what
comes out, once for all that went in. So the diagonals of a whole mesh of ciphertexts cost
`sum of babies of every input + sum of giants of every output` rotations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.ckks.axes import Axis, Option, combinations, decode
from weft.ckks.linear import LinearMap
from weft.ckks.packing import Integers
from weft.ckks.steps import Tree, chain, star

CANDIDATES = 6
"""How many promising splits are counted on the real sets, for each way to read the diagonals."""


@dataclass(frozen=True, eq=False)
class Split:
    """For each set of diagonals the baby step of each, and the trees along which rotations go.

    `babies` has a tree for every ciphertext that goes in, `giants` one for every one that comes
    out. A tree says from which step each step is reached; direct keys reach all from zero.
    """

    parts: tuple[Integers, ...]
    """The baby steps, one array for each set of the map."""
    babies: tuple[Tree, ...]
    giants: tuple[Tree, ...]

    @cached_property
    def rotations(self) -> int:
        """How many rotations there are."""
        return sum(map(len, self.babies)) + sum(map(len, self.giants))

    @cached_property
    def keys(self) -> frozenset[int]:
        """The steps that need a rotation key."""
        trees = {id(tree): tree for tree in (*self.babies, *self.giants)}
        return frozenset(step for tree in trees.values() for step in tree.steps)


def split(
    given: LinearMap,
    keys: int | Collection[int] | None = None,
    *,
    baby: float = 1.0,
    giant: float = 1.0,
    strides: Iterable[Iterable[int]] | None = None,
) -> Split:
    """The split of a map's diagonals with the cheapest rotations.

    `baby` and `giant` are what a rotation of either kind costs. `keys` bounds how many rotation
    keys there may be, or says which there are: rotations then go in chains, as many as without a
    bound where that can be, and more where it cannot.

    >>> from weft.ckks.linear import linear
    >>> from weft.ckks.packing import Packing
    >>> from weft.lang import Signature
    >>> line = Signature.of("k, k n -> n  sum: k", [(64,), (64, 64)])
    >>> vector = Packing.vector(64, slots=64)
    >>> found = split(linear(line, vector, vector, weight=1))
    >>> found.rotations, len(found.keys)
    (14, 14)
    >>> chained = split(linear(line, vector, vector, weight=1), keys=2)
    >>> chained.rotations, sorted(chained.keys)
    (14, [1, 8])
    """
    best = _Best(given, baby, giant)
    for axes in _readings(given, strides):
        for options in combinations(axes, best.inputs * baby, best.outputs * giant, CANDIDATES):
            best.look_at(axes, options)
    return best.split(keys)


def _readings(given: LinearMap, strides: Iterable[Iterable[int]] | None) -> list[list[Axis]]:
    """The diagonals of all sets in the strides of operands, of the result, of both, and of none."""
    source, target = given.strides
    tried = strides or (source, target, (*source, *target), ())
    diagonals = np.concatenate(given.sets)
    distinct = dict.fromkeys(tuple(sorted(set(each))) for each in tried)
    return [decode(diagonals, each, given.period) for each in distinct]


class _Best:
    """The best split so far, counted on the real sets."""

    def __init__(self, given: LinearMap, baby: float, giant: float) -> None:
        self.map, self.baby, self.giant = given, baby, giant
        self.ends = np.cumsum([len(each) for each in given.sets])[:-1]
        self.diagonals = np.concatenate(given.sets)
        self.columns = _sharing((number, key) for (_, number), key in given.blocks.items())
        self.rows = _sharing((out, key) for (out, _), key in given.blocks.items())
        self.inputs = sum(map(len, self.columns.values()))
        self.outputs = sum(map(len, self.rows.values()))
        self.cost = (float("inf"), 0)
        self.parts: list[Integers] = []
        self.axes: list[tuple[Axis, Option]] = []
        self.seen = set[bytes]()

    def look_at(self, axes: Sequence[Axis], options: Sequence[Option]) -> None:
        """Count one split, and keep it if it is better."""
        total = np.zeros(len(self.diagonals), np.int64)
        for axis, option in zip(axes, options):
            total += axis.babies(option)
        total %= self.map.period
        digest = total.tobytes()
        if digest in self.seen:
            return
        self.seen.add(digest)
        parts = np.split(total, self.ends)
        babies = _count(parts, self.columns, self.map.period)
        rests = [(d - b) % self.map.period for d, b in zip(self.map.sets, parts)]
        giants = _count(rests, self.rows, self.map.period)
        cost = self.baby * babies + self.giant * giants, babies
        if cost < self.cost:
            self.cost, self.parts, self.axes = cost, parts, list(zip(axes, options))

    def split(self, keys: int | Collection[int] | None) -> Split:
        """The split with its trees."""
        period = self.map.period
        rests = [(d - b) % period for d, b in zip(self.map.sets, self.parts)]
        babies = _steps(self.parts, self.columns, self.map.inputs)
        giants = _steps(rests, self.rows, self.map.outputs)
        nodes = list({id(each): each for each in (*babies, *giants)}.values())
        trees = {id(each): tree for each, tree in zip(nodes, self._trees(nodes, keys))}
        return Split(
            tuple(self.parts),
            tuple(trees[id(each)] for each in babies),
            tuple(trees[id(each)] for each in giants),
        )

    def _trees(self, nodes: list[Integers], keys: int | Collection[int] | None) -> list[Tree]:
        direct = [star(each) for each in nodes]
        need = {step for tree in direct for step in tree.steps}
        if keys is None or (len(need) <= keys if isinstance(keys, int) else need <= set(keys)):
            return direct
        units = [axis.stride for axis, option in self.axes if option.size > 1]
        units += [axis.stride * option.size for axis, option in self.axes if option.giants > 1]
        return chain(nodes, keys, units, self.map.period)


def _sharing(pairs: Iterable[tuple[int, int]]) -> dict[frozenset[int], list[int]]:
    """Ciphertexts by the sets that they have part in."""
    keys = dict[int, set[int]]()
    for number, key in pairs:
        keys.setdefault(number, set()).add(key)
    found = dict[frozenset[int], list[int]]()
    for number, each in keys.items():
        found.setdefault(frozenset(each), []).append(number)
    return found


def _union(values: Sequence[Integers], keys: Iterable[int]) -> Integers:
    return np.unique(np.concatenate([values[key] for key in keys]))


def _count(
    values: Sequence[Integers], sharing: dict[frozenset[int], list[int]], period: int
) -> int:
    """How many rotations there are by all values but zero."""
    total = 0
    for keys, numbers in sharing.items():
        marks = np.zeros(period, bool)
        for key in keys:
            marks[values[key]] = True
        total += (int(np.count_nonzero(marks)) - int(marks[0])) * len(numbers)
    return total


def _steps(
    values: Sequence[Integers], sharing: dict[frozenset[int], list[int]], count: int
) -> list[Integers]:
    """The values of every ciphertext; those that share them have the same array."""
    found = [np.zeros(0, np.int64)] * count
    for keys, numbers in sharing.items():
        union = _union(values, keys)
        for number in numbers:
            found[number] = union
    return found
