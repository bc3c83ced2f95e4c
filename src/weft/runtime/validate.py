"""The proof of an operator by trying: box by box it must compute what it computes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.lang import Operator, Signature
from weft.lang.kernel import Attributes, Block
from weft.lang.monoid import combination
from weft.runtime.arrays import Array, masked
from weft.runtime.blocks import mask_once, run_block, take
from weft.space import ZRange
from weft.values import FrozenMap

Parts = Mapping[str, int]
"""Into how many parts each index dimension is cut."""


class Validation(NamedTuple):
    """How much was tried, and found right."""

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
        self.operands = [xp.asarray(operand) for operand in operands]
        self.line = operator.sign([tuple(a.shape) for a in self.operands], self.attributes)
        self.expected = self._in_boxes(self.operands, {})

    def run(self, rng: Random, trials: int) -> Validation:
        boxes = partials = 0
        for _ in range(trials):
            parts = self._random_parts(rng)
            found = self._in_boxes(self.operands, parts)
            cuts = ", ".join(f"'{name}' is cut into {n}" for name, n in parts.items() if n > 1)
            self._compare(found, f"where {cuts or 'nothing is cut'}")
            boxes += prod(parts.values())
        for monoid, group in self._groups():
            parts = self._random_parts(rng)
            found = self._of_parts(monoid, group, rng, parts)
            self._compare(found, f"where operands {list(group)} are partial by {monoid}")
            partials += 1
        return Validation(trials, boxes, partials)

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

    def _in_boxes(self, operands: Sequence[Array], parts: Parts) -> list[np.ndarray]:
        """The results, put together from all boxes."""
        monoid = next(iter(self.line.notation.reduced.values()), "")
        made: list[np.ndarray | None] = [None] * len(self.line.result_shapes)
        filled = [np.zeros(shape, bool) for shape in self.line.result_shapes]
        for box in self._boxes(parts):
            block = Block(self.xp, self.line, self.attributes, box)
            inputs = mask_once(block, take(self.xp, block, operands))
            results = run_block(self.operator, block, inputs)
            for number, (array, where) in enumerate(zip(results, block.results)):
                part = np.asarray(array)
                if made[number] is None:
                    made[number] = np.zeros(self.line.result_shapes[number], part.dtype)
                whole, at = made[number], where.slices()
                assert whole is not None
                if self._is_copy(number, box):
                    self._compare_copy(number, whole[at], part)
                    continue
                if part.size and filled[number][at].all():
                    part = combination(np, monoid, part.dtype)(whole[at], part)
                whole[at] = part
                filled[number][at] = True
        for number, done in enumerate(filled):
            if not done.all():
                raise WeftError(f"{self.operator.name} leaves a part of result {number} unmade")
        return [array for array in made if array is not None]

    def _is_copy(self, number: int, box: ZRange) -> bool:
        """Whether a box makes what another has made: it is cut along what a result does not see."""
        line = self.line.notation
        seen = {name for row in line.results[number] for name in row.dims}
        return any(
            start and name not in seen and name not in line.reduced
            for name, start in zip(self.line.sizes, box.start)
        )

    def _compare_copy(self, number: int, one: np.ndarray, two: np.ndarray) -> None:
        if not _agree(one, two, self.tolerance):
            raise WeftError(f"{self.operator.name} makes result {number} differently in two boxes")

    def _groups(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        every = tuple(range(len(self.operands)))
        for monoid in ("sum", "prod", "max", "min"):
            for group in self.operator.groups(monoid, self.line):
                yield monoid, every if group is ... else group

    def _of_parts(
        self, monoid: str, group: tuple[int, ...], rng: Random, parts: Parts
    ) -> list[np.ndarray]:
        """The results of operands that are partial, combined after the kernel ran on each part."""
        split = {number: self._split(self.operands[number], monoid, rng) for number in group}
        results = []
        for part in range(2):
            operands = [
                split[number][part] if number in split else operand
                for number, operand in enumerate(self.operands)
            ]
            results.append(self._in_boxes(operands, parts))
        return [combination(np, monoid, one.dtype)(one, two) for one, two in zip(*results)]

    def _split(self, array: Array, monoid: str, rng: Random) -> tuple[Array, Array]:
        """Two parts of an array: at random in place where that is exact, or all in one of them."""
        nothing = masked(self.xp, array, monoid)
        if rng.random() < 0.3:
            return (array, nothing) if rng.random() < 0.5 else (nothing, array)
        chosen = np.random.default_rng(rng.randrange(1 << 30)).random(array.shape) < 0.5
        here = self.xp.asarray(chosen)
        return self.xp.where(here, array, nothing), self.xp.where(here, nothing, array)

    def _compare(self, found: Sequence[np.ndarray], what: str) -> None:
        for one, two in zip(self.expected, found):
            if not _agree(one, two, self.tolerance):
                raise WeftError(f"{self.operator.name} is wrong {what}")


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


def _agree(one: np.ndarray, two: np.ndarray, tolerance: float) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.dtype.kind in "biu":
        return bool(np.array_equal(one, two))
    scale = reduce(max, (float(np.abs(a[np.isfinite(a)]).max(initial=1)) for a in (one, two)))
    return bool(np.allclose(one, two, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
