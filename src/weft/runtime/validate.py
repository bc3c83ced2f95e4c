"""The proof of an operator by trying: box by box it must compute what it computes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.lang import Operator, Signature
from weft.lang.kernel import Attributes, Block
from weft.lang.monoid import combine, identities
from weft.lang.struct_array import StructArray
from weft.runtime.arrays import Array, empty, paste
from weft.runtime.blocks import run_block
from weft.space import ZRange
from weft.values import FrozenMap, Point

Parts = Mapping[str, int]
"""Into how many parts each index dimension is cut."""


class Validation(NamedTuple):
    """The number of placements, boxes and partial operands that were tried."""

    placements: int
    boxes: int
    partials: int


def validate(
    operator: Operator,
    operands: Sequence[Array],
    attributes: Attributes | None = None,
    *,
    xp: Any = np,
    trials: int = 8,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> Validation:
    """Run an operator's kernel in random boxes and with partial operands; compare with one run.

    Integers must be equal; other numbers may differ by `tolerance`, for sums in another order
    are rounded differently. A difference is an error that names the placement.

    >>> from weft.lang import Operator
    >>> double = Operator("double", "n -> n", lambda block, x: x + x, keeps={"sum": [(0,)]})
    >>> validate(double, [np.arange(10)], trials=3).placements
    3
    >>> shifted = Operator("shift", "n -> n", lambda block, x: block.xp.roll(x, 1))
    >>> validate(shifted, [np.arange(10)])
    Traceback (most recent call last):
    weft.errors.WeftError: shift is wrong where 'n' is cut into 3
    """
    return _Trial(operator, operands, attributes or {}, xp, tolerance).run(Random(seed), trials)


class _Trial:
    def __init__(
        self,
        operator: Operator,
        operands: Sequence[Array],
        attributes: Attributes,
        xp: Any,
        tolerance: float,
    ) -> None:
        self.operator, self.xp, self.tolerance = operator, xp, tolerance
        self.attributes = FrozenMap(attributes.items())
        self.operands = [
            operand.map(xp.asarray) if isinstance(operand, StructArray) else xp.asarray(operand)
            for operand in operands
        ]
        self.line = operator.sign([tuple(a.shape) for a in self.operands], self.attributes)
        self.expected = self._in_boxes(self.operands, {})

    def run(self, rng: Random, trials: int) -> Validation:
        boxes = partials = 0
        for _ in range(trials):
            parts = self._random_parts(rng)
            if self._failure(parts):
                parts = self._fewest_cuts(parts)
                cuts = ", ".join(f"'{name}' is cut into {n}" for name, n in parts.items() if n > 1)
                where = f"where {cuts or 'nothing is cut'}"
                raise WeftError(f"{self.operator.name} {self._failure(parts)} {where}")
            boxes += prod(parts.values())
        for monoid, group in self._groups():
            parts = self._random_parts(rng)
            found = self._of_parts(monoid, group, rng, parts)
            if not self._is_expected(found):
                raise WeftError(
                    f"{self.operator.name} is wrong where operands {list(group)} are partial by "
                    f"{monoid}"
                )
            partials += 1
        return Validation(trials, boxes, partials)

    def _failure(self, parts: Parts) -> str:
        """Return what is wrong where the index space is cut into parts; empty if nothing is."""
        try:
            found = self._in_boxes(self.operands, parts)
        except _WrongError as error:
            return str(error)
        return "" if self._is_expected(found) else "is wrong"

    def _fewest_cuts(self, parts: Parts) -> Parts:
        """The same with every cut undone without which it is still wrong."""
        for name in parts:
            fewer = {**parts, name: 1}
            if parts[name] > 1 and self._failure(fewer):
                parts = fewer
        return parts

    def _random_parts(self, rng: Random) -> Parts:
        """Cut what may be cut, at random, so that the results are cut into boxes."""
        fixed = self.line.fixed
        free = [name for name in self.line.sizes if name not in fixed]
        for _ in range(20):
            parts = {name: rng.choice([1, 1, 2, 3, 4, self.line.sizes[name]]) for name in free}
            parts = {name: max(1, n) for name, n in parts.items()}
            if prod(parts.values()) <= 512 and self._is_dense(parts):
                return parts
        return dict.fromkeys(free, 1)

    def _is_dense(self, parts: Parts) -> bool:
        """Whether every box of the index space makes boxes of the results, without holes."""
        return all(p.is_dense(box) for box in self._boxes(parts) for p in self.line.results)

    def _boxes(self, parts: Parts) -> Iterator[ZRange]:
        return cut(self.line, parts)

    def _in_boxes(self, operands: Sequence[Array], parts: Parts) -> list[Array]:
        """The results, put together from all boxes.

        Boxes that differ in dimensions a result does not see make copies of it, which must agree.
        """
        line, made = self.line, [dict[Point, _Result]() for _ in self.line.result_shapes]
        monoid = next((by for name, by in line.notation.reduced.items() if parts.get(name)), "")
        for box in self._boxes(parts):
            block = Block(self.xp, line, self.attributes, box)
            results = run_block(self.operator, block, _inputs(block, operands))
            for number, (array, where) in enumerate(zip(results, block.results)):
                shape, copy = line.result_shapes[number], self._copy(number, box)
                if copy not in made[number]:
                    whole = empty(self.xp, shape, array.dtype)
                    made[number][copy] = _Result(whole, np.zeros(shape, bool))
                made[number][copy].put(self.xp, where.slices(), array, monoid)
        for number, copies in enumerate(made):
            first, *others = copies.values()
            if not all(result.filled.all() for result in copies.values()):
                raise WeftError(f"{self.operator.name} leaves a part of result {number} unmade")
            if not all(_agree(first.array, other.array, self.tolerance) for other in others):
                raise _WrongError(f"makes result {number} differently in two boxes")
        return [next(iter(copies.values())).array for copies in made]

    def _copy(self, number: int, box: ZRange) -> Point:
        """Return the number of the copy of a result that a box belongs to."""
        line = self.line.notation
        seen = {name for row in line.results[number] for name in row.dims}
        return tuple(
            start
            for name, start in zip(self.line.sizes, box.start)
            if name not in seen and name not in line.reduced
        )

    def _groups(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        every = tuple(range(len(self.operands)))
        own = self.line.notation.reduced.values()
        for monoid in dict.fromkeys(("sum", "prod", "max", "min", *own)):
            for group in self.operator.groups(monoid, self.line):
                yield monoid, every if group is ... else group

    def _of_parts(
        self, monoid: str, group: tuple[int, ...], rng: Random, parts: Parts
    ) -> list[Array]:
        """The results of operands that are partial, combined after the kernel ran on each part."""
        split = {number: self._split(self.operands[number], monoid, rng) for number in group}
        results = []
        for part in range(2):
            operands = [
                split[number][part] if number in split else operand
                for number, operand in enumerate(self.operands)
            ]
            results.append(self._in_boxes(operands, parts))
        return [combine(self.xp, monoid, pair) for pair in zip(*results)]

    def _split(self, array: Array, monoid: str, rng: Random) -> tuple[Array, Array]:
        """Two parts of an array: at random in place where that is exact, or all in one of them."""
        nothing = identities(self.xp, monoid, array)
        if rng.random() < 0.3:
            return (array, nothing) if rng.random() < 0.5 else (nothing, array)
        chosen = np.random.default_rng(rng.randrange(1 << 30)).random(array.shape) < 0.5
        here = self.xp.asarray(chosen)
        return self.xp.where(here, array, nothing), self.xp.where(here, nothing, array)

    def _is_expected(self, found: Sequence[Array]) -> bool:
        return all(_agree(one, two, self.tolerance) for one, two in zip(self.expected, found))


class _WrongError(WeftError):
    """Results that contradict each other."""


@dataclass(slots=True)
class _Result:
    """A result that is put together box by box."""

    array: Array
    filled: np.ndarray

    def put(self, xp: Any, at: tuple[slice, ...], part: Array, monoid: str) -> None:
        """Add what a box made: combined with what is there, or written where there is nothing."""
        filled = self.filled[at]
        if filled.size and filled.all():
            part = combine(xp, monoid, [self.array[at], part])
        self.array = paste(self.array, at, part)
        self.filled[at] = True


def _inputs(block: Block, operands: Sequence[Array]) -> list[Array]:
    """The boxes that a block reads; what counts once is seen by the first part of a reduction."""
    line = block.signature
    inputs = [array[box.slices()] for array, box in zip(operands, block.operands)]
    starts = dict(zip(line.sizes, block.box.start))
    if line.notation.once and any(starts[name] for name in line.reduced):
        monoid = next(iter(line.notation.reduced.values()))
        for number in line.notation.once:
            inputs[number] = identities(block.xp, monoid, inputs[number])
    return inputs


def cut(line: Signature, parts: Parts) -> Iterator[ZRange]:
    """The boxes of an index space whose dimensions are cut into so many blocks of one size.

    >>> print(*cut(Signature.of("m n -> m n", [(5, 2)]), {"m": 2}))
    [0:3, 0:2] [3:5, 0:2]
    """
    ranges = []
    for name, size in line.sizes.items():
        step = -(-size // parts.get(name, 1)) or 1
        ranges.append([(at, min(at + step, size)) for at in range(0, size, step)] or [(0, 0)])
    for chosen in product(*ranges):
        yield ZRange([low for low, _ in chosen], [high for _, high in chosen])


def _agree(one: Array, two: Array, tolerance: float) -> bool:
    if isinstance(one, StructArray):
        pairs = zip(one.components, two.components)
        return one.dtype == two.dtype and all(_agree(*pair, tolerance) for pair in pairs)
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.dtype.kind in "biu":
        return bool(np.array_equal(one, two))
    scale = reduce(max, (float(np.abs(a[np.isfinite(a)]).max(initial=1)) for a in (one, two)))
    return bool(np.allclose(one, two, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
