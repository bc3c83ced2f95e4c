"""`Split`: diagonals as sums of a baby step and a giant step, shared by all ciphertexts.

Baby steps rotate inputs, once for all outputs; giant steps rotate partial sums of outputs, once for
all inputs. So the diagonals of a whole mesh of ciphertexts cost `sum of baby steps of every input +
sum of giant steps of every output` rotations.

The diagonals are written in the mixed radix of slot strides, an axis for each digit. Along each
axis the steps are cut into blocks: a diagonal is its place in its block (baby) and the block
(giant).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import gcd, inf
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.ckks.linear import LinearMap
from weft.ckks.packing import Integers
from weft.errors import WeftError

CANDIDATES = 6
"""Promising splits that are counted on the real sets, for each choice of axes."""
EFFORT = 1 << 17
"""Diagonals that are looked at for that, about: large sets get fewer candidates."""
LONG = 64
"""Block sizes that are tried along an axis of more than `LONG**2` steps."""
NEW_KEYS = 64
"""New differences that are tried at a time when a rotation tree grows."""

Edge: TypeAlias = tuple[int, int, int]
"""A step, the step that it is reached from, and their difference."""


# -- rotation trees -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RotationTree:
    """Steps, each reached by one rotation from its parent, which comes before it; 0 is the root.

    >>> tree = star([0, 3, 5])
    >>> len(tree), sorted(tree.keys)
    (2, [3, 5])
    """

    edges: tuple[Edge, ...]

    @cached_property
    def keys(self) -> frozenset[int]:
        """The differences: the rotation keys that are needed."""
        return frozenset(difference for _, _, difference in self.edges)

    @cached_property
    def children(self) -> dict[int, list[tuple[int, int]]]:
        """For each step those that are reached from it, with the difference."""
        result = dict[int, list[tuple[int, int]]]()
        for step, parent, difference in self.edges:
            result.setdefault(parent, []).append((step, difference))
        return result

    def __len__(self) -> int:
        return len(self.edges)


def star(steps: Iterable[int]) -> RotationTree:
    """Return the tree that reaches every step from 0, with a key of its own."""
    return RotationTree(tuple((int(step), 0, int(step)) for step in steps if step))


def chain(
    sets: Sequence[Integers], keys: int | Collection[int], units: Iterable[int], period: int
) -> list[RotationTree]:
    """Return a tree for each set of steps that together use few keys.

    `keys` is the largest number of keys, or the keys that exist. Steps are reached from their
    neighbours by the unit of an axis, so that there are as many rotations as steps. Where that
    takes too many keys, the trees pass through further steps.

    >>> (tree,) = chain([np.array([0, 1, 2, 3, 9])], 2, [1], 64)
    >>> tree.edges
    ((1, 0, 1), (2, 1, 1), (3, 2, 1), (9, 0, 9))
    """
    if not isinstance(keys, int):
        known = sorted(key for key in keys if key % period)
        return [_route(steps, known, period) for steps in sets]
    if keys < 1:
        raise WeftError(f"{keys} rotation keys reach nothing; at least 1 is needed")
    units = [unit % period for unit in units]
    grown = []
    for signs in (units, [*units, *(-unit % period for unit in units)]):
        known = list(dict.fromkeys(signs))
        grown.append([_grow(steps, known, period) for steps in sets])
    trees = min(grown, key=lambda each: len(_key_uses(each)))
    if len(_key_uses(trees)) <= keys:
        return trees
    used = [_key_uses(each).most_common() for each in grown]
    candidates = [
        [key for key, _ in sorted(each, key=lambda pair: (-pair[1], pair[0]))[:keys]]
        for each in used
    ]
    unit = gcd(period, *(int(step) for steps in sets for step in steps))
    candidates.append(_powers(keys, period, unit))
    routes = [
        [_route(steps, chosen, period) for steps in sets]
        for chosen in candidates
        if gcd(period, *chosen) == unit
    ]
    return min(routes, key=lambda trees: sum(map(len, trees)))


def _key_uses(trees: Iterable[RotationTree]) -> Counter[int]:
    return Counter(difference for tree in trees for _, _, difference in tree.edges)


def _powers(keys: int, period: int, unit: int) -> list[int]:
    """Return as many powers of a base as there may be keys: sums of them reach every step."""
    base = 2
    while base**keys * unit < period:
        base += 1
    return [unit * base**place for place in range(keys) if unit * base**place < period]


def _grow(steps: Integers, keys: list[int], period: int) -> RotationTree:
    """Reach all steps from each other by the keys, and by new ones where those do not lead.

    New keys are appended to the list, so that the next tree tries them as well.
    """
    left, edges = {int(step) for step in steps} - {0}, list[Edge]()
    added = _closure([0], left, keys, period)
    edges += added
    while left := left - {step for step, _, _ in added}:
        keys.append(
            max(sorted(left)[:NEW_KEYS], key=lambda key: len(_closure([key], left, keys, period)))
        )
        added = [(keys[-1], 0, keys[-1])]
        reached = [0, *(step for step, _, _ in edges), keys[-1]]
        added += _closure(reached, left - {keys[-1]}, keys, period)
        edges += added
    return RotationTree(tuple(edges))


def _closure(
    start: Iterable[int], left: Collection[int], keys: Sequence[int], period: int
) -> list[Edge]:
    """Return the edges to all steps in `left` that can be reached without leaving it."""
    queue, free, edges = deque(start), set(left), list[Edge]()
    while queue:
        at = queue.popleft()
        for key in keys:
            step = (at + key) % period
            if step in free:
                free.remove(step)
                edges.append((step, at, key))
                queue.append(step)
    return edges


def _route(steps: Integers, keys: Sequence[int], period: int) -> RotationTree:
    """Reach all steps by the keys only, each from the nearest step that is already reached."""
    left, edges, reached = {int(step) for step in steps} - {0}, list[Edge](), {0}
    while left:
        # Neighbours first; a search for longer paths only where there are none.
        added = _closure(sorted(reached), left, keys, period)
        added = added or _shortest_path(reached, left, keys, period)
        if not added:
            raise WeftError(
                f"a rotation by {min(left)} cannot be made of {list(keys)}, modulo {period}",
                hint="add a key",
            )
        edges += added
        reached |= {step for step, _, _ in added}
        left -= reached
    return RotationTree(tuple(edges))


def _shortest_path(
    reached: Collection[int], left: Collection[int], keys: Sequence[int], period: int
) -> list[Edge]:
    """Return the shortest path from a reached step to one that is left; empty if there is none."""
    parents: dict[int, tuple[int, int]] = {}
    queue, seen = deque(sorted(reached)), set(reached)
    while queue:
        at = queue.popleft()
        for key in keys:
            step = (at + key) % period
            if step in seen:
                continue
            seen.add(step)
            parents[step] = at, key
            if step in left:
                return _path(step, parents)
            queue.append(step)
    return []


def _path(step: int, parents: dict[int, tuple[int, int]]) -> list[Edge]:
    path = list[Edge]()
    while step in parents:
        parent, key = parents[step]
        path.append((step, parent, key))
        step = parent
    return path[::-1]


# -- axes of diagonals ----------------------------------------------------------------------------


class BlockSize(NamedTuple):
    """A way to cut the steps along an axis: blocks of `size` steps, 0 at place `zero` of its block.

    A step is its place in its block, relative to the place of 0, plus whole blocks.
    """

    size: int
    zero: int
    babies: int
    """The number of different places."""
    giants: int
    """The number of different blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalAxis:
    """One digit of all diagonals: it contributes `steps[n] * stride` to diagonal n."""

    stride: int
    steps: Integers

    @property
    def block_sizes(self) -> list[BlockSize]:
        """The ways to cut the steps, apart from those that are worse in both counts.

        >>> [tuple(size) for size in DiagonalAxis(1, np.arange(-2, 3)).block_sizes]
        [(1, 0, 1, 5), (2, 0, 2, 3), (3, 2, 3, 2), (5, 2, 5, 1)]
        """
        values = np.unique(self.steps)
        low, high = int(values[0]), int(values[-1])
        result = [BlockSize(1, 0, 1, len(values))]
        for size in _sizes(high - low + 1):
            zero = -low % size
            block, place = np.divmod(values + zero, size)
            result.append(BlockSize(size, zero, _distinct(place), _distinct(block - block[0])))
        if result[-1].giants > 1 or not low <= 0 <= high:
            # Zero is outside: one block that includes it.
            reach = max(high, 0) - min(low, 0) + 1
            result.append(BlockSize(reach, max(0, -low), len(values), 1))
        return result

    def babies(self, chosen: BlockSize) -> Integers:
        """Return the baby step of each diagonal along this axis."""
        return ((self.steps + chosen.zero) % chosen.size - chosen.zero) * self.stride


def _sizes(length: int) -> list[int]:
    """Return the block sizes that give different numbers of blocks; a sample of very many."""
    counts: Iterable[int] = range(1, length + 1)
    if length > LONG**2:
        counts = sorted({round(length ** (place / LONG)) for place in range(LONG + 1)})
    return sorted({-(-length // count) for count in counts} - {1})


def _distinct(values: Integers) -> int:
    """Return the number of distinct values, none of which is negative."""
    return int(np.count_nonzero(np.bincount(values)))


def decode(diagonals: Integers, strides: Iterable[int], period: int) -> list[DiagonalAxis]:
    """Return the diagonals in the mixed radix of the strides, the largest first.

    Each digit is rounded to the nearest, so that steps backwards are small negative numbers. Digits
    that are 0 everywhere are left out.

    >>> axes = decode(np.array([0, 7, 9]), [8, 1], 64)
    >>> [(axis.stride, axis.steps.tolist()) for axis in axes]
    [(8, [0, 1, 1]), (1, [0, -1, 1])]
    """
    axes, rest = list[DiagonalAxis](), _unrolled(diagonals, period, period)
    for stride in sorted({*strides, 1}, reverse=True):
        steps = np.floor_divide(rest + stride // 2, stride)
        rest = rest - steps * stride
        if period % stride == 0 and not axes:
            steps = _unrolled(steps, period // stride, period // stride)
        common = int(reduce(np.gcd, np.unique(steps), 0))
        if common:
            axes.append(DiagonalAxis(stride * common, steps // common))
    return axes


def _unrolled(values: Integers, count: int, period: int) -> Integers:
    """Return values modulo a period as integers around 0, cut where their largest gap is."""
    values = values % period
    known = np.unique(values)
    gaps = np.diff(known, append=known[0] + count)[::-1]
    start = known[-int(gaps.argmax())]
    opened = (values - start) % period + start
    # Zero should be among the values or near: shift everything by one period where that helps.
    turns = int(opened.min() > period // 2 or opened.max() >= period)
    result: Integers = opened - turns * period
    return result


def combinations(
    axes: Sequence[DiagonalAxis], inputs: int, outputs: int, most: int
) -> list[tuple[BlockSize, ...]]:
    """Return the block sizes of all axes that promise the fewest rotations, the best first.

    The promise is the product of the counts along the axes: baby steps for every input and giant
    steps for every output.
    """
    if not axes:
        return [()]
    sizes = [axis.block_sizes for axis in axes]
    babies = giants = np.ones(())
    for each in sizes:
        babies = babies[..., None] * np.array([size.babies for size in each])
        giants = giants[..., None] * np.array([size.giants for size in each])
    promised = (inputs * (babies - 1) + outputs * (giants - 1)).ravel()
    # Of equal ones the one with fewer baby steps, which are all in memory at once.
    order = np.lexsort((babies.ravel(), promised))[:most]
    chosen = np.array(np.unravel_index(order, babies.shape)).T
    return [tuple(each[n] for each, n in zip(sizes, row)) for row in chosen]


# -- the split ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """The baby step of each diagonal, and the rotation trees of all ciphertexts."""

    parts: tuple[Integers, ...]
    """The baby steps, one array for each set of the map."""
    babies: tuple[RotationTree, ...]
    """A tree for each input ciphertext."""
    giants: tuple[RotationTree, ...]
    """A tree for each output ciphertext."""

    @property
    def rotations(self) -> int:
        """The number of rotations."""
        return self.rotations_by_step.total()

    @cached_property
    def rotations_by_step(self) -> Counter[int]:
        """How often each rotation occurs."""
        # Ciphertexts share trees: count each tree once.
        uses = Counter(map(id, (*self.babies, *self.giants)))
        result = Counter[int]()
        for tree in {id(tree): tree for tree in (*self.babies, *self.giants)}.values():
            for _, _, difference in tree.edges:
                result[difference] += uses[id(tree)]
        return result

    @property
    def keys(self) -> frozenset[int]:
        """The steps that need a rotation key."""
        return frozenset(self.rotations_by_step)


def split(linear_map: LinearMap, keys: int | Collection[int] | None = None) -> Split:
    """Return the split of a map's diagonals with the fewest rotations.

    `keys` is the largest number of rotation keys, or the keys that exist: rotations then form
    chains, without becoming more where that is possible.

    >>> from weft.ckks.linear import linear
    >>> from weft.ckks.packing import Packing
    >>> from weft.lang import Signature
    >>> signature = Signature.of("k, k n -> n  sum: k", [(64,), (64, 64)])
    >>> vector = Packing.vector(64, slots=64)
    >>> dense = linear(signature, vector, vector, weight=1)
    >>> split(dense).rotations, len(split(dense).keys)
    (14, 14)
    >>> chained = split(dense, keys=2)
    >>> chained.rotations, sorted(chained.keys)
    (14, [1, 8])
    """
    search = _SplitSearch(linear_map)
    most = max(1, min(CANDIDATES, EFFORT // len(search.diagonals)))
    for axes in _axes(linear_map):
        for sizes in combinations(axes, search.inputs, search.outputs, most):
            search.try_split(axes, sizes)
    return search.best(keys)


def _axes(linear_map: LinearMap) -> list[list[DiagonalAxis]]:
    """Return the diagonals in the strides of operands, of results, of both, and of none."""
    source, target = linear_map.strides
    tried = source, target, (*source, *target), ()
    diagonals = np.concatenate(linear_map.sets)
    distinct = dict.fromkeys(tuple(sorted(set(each))) for each in tried)
    return [decode(diagonals, each, linear_map.period) for each in distinct]


class _SplitSearch:
    """The best split so far, counted on the real sets."""

    def __init__(self, linear_map: LinearMap) -> None:
        self.map = linear_map
        self.ends = np.cumsum([len(each) for each in linear_map.sets])[:-1]
        self.diagonals = np.concatenate(linear_map.sets)
        blocks = linear_map.blocks
        self.columns = _by_sets((number, key) for (_, number), key in blocks.items())
        self.rows = _by_sets((out, key) for (out, _), key in blocks.items())
        self.inputs = sum(map(len, self.columns.values()))
        self.outputs = sum(map(len, self.rows.values()))
        self.cost: tuple[float, int] = (inf, 0)
        self.parts: list[Integers] = []
        self.axes: list[tuple[DiagonalAxis, BlockSize]] = []
        self.seen = set[bytes]()

    def try_split(self, axes: Sequence[DiagonalAxis], sizes: Sequence[BlockSize]) -> None:
        """Count one split, and keep it if it is better."""
        total = np.zeros(len(self.diagonals), np.int64)
        for axis, size in zip(axes, sizes):
            total += axis.babies(size)
        total %= self.map.period
        digest = total.tobytes()
        if digest in self.seen:
            return
        self.seen.add(digest)
        parts = np.split(total, self.ends)
        babies = _count(parts, self.columns, self.map.period)
        giants = _count(self._giants(parts), self.rows, self.map.period)
        cost = babies + giants, babies
        if cost < self.cost:
            self.cost, self.parts, self.axes = cost, parts, list(zip(axes, sizes))

    def best(self, keys: int | Collection[int] | None) -> Split:
        """Return the best split with its trees."""
        babies = _steps(self.parts, self.columns, self.map.inputs)
        giants = _steps(self._giants(self.parts), self.rows, self.map.outputs)
        sets = list({id(each): each for each in (*babies, *giants)}.values())
        trees = {id(each): tree for each, tree in zip(sets, self._trees(sets, keys))}
        return Split(
            tuple(self.parts),
            tuple(trees[id(each)] for each in babies),
            tuple(trees[id(each)] for each in giants),
        )

    def _giants(self, parts: Sequence[Integers]) -> list[Integers]:
        return [(d - b) % self.map.period for d, b in zip(self.map.sets, parts)]

    def _trees(
        self, sets: list[Integers], keys: int | Collection[int] | None
    ) -> list[RotationTree]:
        if keys is not None and not isinstance(keys, int):
            keys = {key % self.map.slots for key in keys}
        direct = [star(each) for each in sets]
        need = {key for tree in direct for key in tree.keys}
        if keys is None or (len(need) <= keys if isinstance(keys, int) else need <= keys):
            return direct
        units = [axis.stride for axis, size in self.axes if size.size > 1]
        units += [axis.stride * size.size for axis, size in self.axes if size.giants > 1]
        return chain(sets, keys, units, self.map.period)


def _by_sets(pairs: Iterable[tuple[int, int]]) -> dict[frozenset[int], list[int]]:
    """Return the ciphertexts by the sets of diagonals that they take part in."""
    keys = dict[int, set[int]]()
    for number, key in pairs:
        keys.setdefault(number, set()).add(key)
    result = dict[frozenset[int], list[int]]()
    for number, each in keys.items():
        result.setdefault(frozenset(each), []).append(number)
    return result


def _count(
    values: Sequence[Integers], sharing: dict[frozenset[int], list[int]], period: int
) -> int:
    """Return the number of rotations by all values but 0."""
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
    """Return the steps of every ciphertext; those that have the same share the array."""
    result = [np.zeros(0, np.int64)] * count
    for keys, numbers in sharing.items():
        union = np.unique(np.concatenate([values[key] for key in keys]))
        for number in numbers:
            result[number] = union
    return result
