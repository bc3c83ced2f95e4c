"""A linear map and a split as a program: babies of all inputs, then every output giant by giant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count as counting
from itertools import zip_longest

from numpy.typing import ArrayLike

from weft.ckks.bsgs import Split
from weft.ckks.linear import LinearMap
from weft.ckks.packing import Floats
from weft.ckks.plaintext import Diagonal, Slots, Weights, packed
from weft.ckks.program import Add, AddPlain, Free, MulPlain, Program, Rescale, Rotate, Step
from weft.ckks.steps import Tree

Term = tuple[int, int]
"""An input and a baby step."""


def lower(
    given: LinearMap,
    parted: Split,
    weights: Sequence[ArrayLike | None] = (),
    *,
    scales: Sequence[ArrayLike | None] = (),
    biases: Sequence[ArrayLike | None] = (),
    encoded: Sequence[float] = (),
) -> Program:
    """The program of a linear map with its weights: one level, rescaled once for each output.

    There is a weight and a scale for each part of the map, a bias for each of its results; what is
    not there is None. A scale is part of the weights, a bias is added at the end, and both can be
    broadcast to the result. Plaintexts are `encoded` at the scale of the level, or at one for each
    operand: that which brings what dropped from a higher level to the scale of the result's.

    >>> from weft.ckks.bsgs import split
    >>> from weft.ckks.linear import linear
    >>> from weft.ckks.packing import Packing
    >>> from weft.ckks.program import count
    >>> from weft.lang import Signature
    >>> line = Signature.of("k, k n -> n  sum: k", [(64,), (64, 64)])
    >>> vector = Packing.vector(64, slots=64)
    >>> dense = linear(line, vector, vector, weight=1)
    >>> cost = count(lower(dense, split(dense), [[[1.0] * 64] * 64]))
    >>> print(cost, cost.live)
    14 rotations, 64 plain products, 1 rescale, 63 additions, 1 level 12
    """
    made = Weights(given, weights, scales)
    added = list[Floats | None]()
    for target, bias in zip_longest(given.targets, biases):
        added += [None] * target.ciphertexts if bias is None else packed(target, bias)
    scaled = list[float | None]()
    for source, scale in zip_longest(given.sources, encoded):
        scaled += [scale] * source.ciphertexts
    outputs = range(given.inputs, given.inputs + given.outputs)
    return Program(
        given.inputs, tuple(outputs), lambda: _Lowering(given, parted, made, added, scaled).steps()
    )


class _Lowering:
    """One pass over a linear map that writes its steps; registers die with their last use."""

    def __init__(
        self,
        given: LinearMap,
        parted: Split,
        weights: Weights,
        biases: list[Floats | None],
        scales: list[float | None],
    ) -> None:
        self.map, self.split, self.weights, self.biases = given, parted, weights, biases
        self.scales = scales
        self.fresh = counting(given.inputs + given.outputs)
        self.uses = Counter[int]()
        """How often each register is still to be read."""
        self.babies: list[dict[int, int]] = []
        """For each input the register of every baby step."""
        self.rests = [
            (diagonals - babies) % given.period
            for diagonals, babies in zip(given.sets, parted.parts)
        ]

    def steps(self) -> Iterator[Step]:
        """All steps."""
        needed = self._needed()
        for number, tree in enumerate(self.split.babies):
            yield from self._rotate(number, tree, needed[number])
        for out, tree in enumerate(self.split.giants):
            yield from self._output(out, tree)

    def _needed(self) -> list[Counter[int]]:
        """For each input, how many products need each of its baby steps."""
        needed = [Counter[int]() for _ in range(self.map.inputs)]
        counts = [Counter(part.tolist()) for part in self.split.parts]
        for (_, number), key in self.map.blocks.items():
            needed[number].update(counts[key])
        return needed

    def _rotate(self, number: int, tree: Tree, needed: Counter[int]) -> Iterator[Step]:
        """The baby steps of one input."""
        registers = {0: number}
        self.babies.append(registers)
        self.uses[number] = needed[0] + len(tree.children.get(0, ()))
        if not self.uses[number]:
            yield Free(number)
        for node, parent, step in tree.edges:
            registers[node] = next(self.fresh)
            self.uses[registers[node]] = needed[node] + len(tree.children.get(node, ()))
            yield Rotate(registers[node], registers[parent], step)
            yield from self._used(registers[parent])

    def _used(self, register: int) -> Iterator[Step]:
        self.uses[register] -= 1
        if not self.uses[register]:
            yield Free(register)

    def _output(self, out: int, tree: Tree) -> Iterator[Step]:
        """One output: partial sums from the ends of the tree to its root, each rotated once."""
        terms, turns = self._terms(out), _turns(tree, self.map.slots)
        sums: dict[int, int] = {}
        for node, parent, step in _inwards(tree):
            for number, baby in terms.get(node, ()):
                product = next(self.fresh)
                plain = Diagonal(self.weights, out, number, turns[node], baby)
                register = self.babies[number][baby]
                yield MulPlain(product, register, plain, self.scales[number])
                yield from self._used(register)
                yield from self._add(sums, node, product)
            if parent is not None:
                rotated = next(self.fresh)
                yield Rotate(rotated, sums[node], step)
                yield Free(sums.pop(node))
                yield from self._add(sums, parent, rotated)
        yield from self._finish(out, sums[0])

    def _terms(self, out: int) -> dict[int, list[Term]]:
        """The products of an output by giant step."""
        terms: dict[int, list[Term]] = {}
        for number in range(self.map.inputs):
            key = self.map.blocks.get((out, number))
            if key is not None:
                pairs = zip(self.rests[key].tolist(), self.split.parts[key].tolist())
                for giant, baby in pairs:
                    terms.setdefault(giant, []).append((number, baby))
        return terms

    def _add(self, sums: dict[int, int], node: int, term: int) -> Iterator[Step]:
        """Add a register to the sum of a node, which may be the first."""
        if node not in sums:
            sums[node] = term
            return
        total = next(self.fresh)
        yield Add(total, sums[node], term)
        yield Free(sums[node])
        yield Free(term)
        sums[node] = total

    def _finish(self, out: int, total: int) -> Iterator[Step]:
        made, bias = self.map.inputs + out, self.biases[out]
        if bias is None:
            yield Rescale(made, total)
            yield Free(total)
            return
        rescaled = next(self.fresh)
        yield Rescale(rescaled, total)
        yield Free(total)
        yield AddPlain(made, rescaled, Slots(bias))
        yield Free(rescaled)


def _turns(tree: Tree, slots: int) -> dict[int, int]:
    """How far the sum of each node is rotated in all: where operands repeat, rounds may add up."""
    turns = {0: 0}
    for node, parent, step in tree.edges:
        turns[node] = (turns[parent] + step) % slots
    return turns


def _inwards(tree: Tree) -> Iterator[tuple[int, int | None, int]]:
    """The nodes, children before their parents and one branch after the other; zero is the last."""
    ahead: list[tuple[int, int | None, int]] = [(0, None, 0)]
    order = list[tuple[int, int | None, int]]()
    while ahead:
        node, parent, step = ahead.pop()
        order.append((node, parent, step))
        ahead += [(child, node, way) for child, way in tree.children.get(node, ())]
    return reversed(order)
