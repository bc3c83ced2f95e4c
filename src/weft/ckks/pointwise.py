"""Operations on every element, as programs: the same steps on each ciphertext, or on each pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from weft.ckks.cost import Cost
from weft.ckks.operations import (
    Difference,
    Dropped,
    Negated,
    Op,
    Product,
    Rescaled,
    Scaled,
    Shifted,
    Sum,
)
from weft.ckks.packing import Floats
from weft.ckks.parameters import Parameters
from weft.ckks.polynomial import Evaluation, Ladder
from weft.ckks.program import (
    Add,
    AddPlain,
    Adjust,
    Drop,
    Free,
    Mul,
    MulPlain,
    Negate,
    Program,
    Rescale,
    Step,
    Sub,
)
from weft.errors import WeftError
from weft.values import counted

Pairs: TypeAlias = Literal["add", "subtract", "multiply"]
"""What can be done with two tensors, element by element."""


class Constant(NamedTuple):
    """A plaintext with one number in all slots, or in those that a mask has ones for."""

    number: float
    mask: Floats | None = None

    def values(self) -> Floats:
        """The number, which back-ends repeat, or one value for each slot."""
        if self.mask is None:
            return np.asarray(self.number, np.float64)
        return self.number * self.mask


def lower_polynomial(
    evaluation: Evaluation,
    parameters: Parameters,
    level: int,
    ciphertexts: int = 1,
    masks: Sequence[Floats] | None = None,
) -> Program:
    """The program of a polynomial on so many ciphertexts at a level.

    With masks, one for each ciphertext, constants are added in the slots of elements only, and
    slots that are zero outside of them stay zero, at the same cost.

    >>> from weft.ckks.polynomial import plan
    >>> from weft.ckks.program import count
    >>> program = lower_polynomial(plan([1, 2, 3]), Parameters(64, 3, security=None), 3, 2)
    >>> print(count(program))
    2 plain products, 2 products, 4 rescales, 4 plain additions, 2 levels
    """
    if masks is not None and len(masks) != ciphertexts:
        raise WeftError(f"{counted(ciphertexts, 'ciphertext')} have {len(masks)} masks")
    operations = evaluation.operations(Ladder.of(parameters, level))
    size = len(operations)

    def register(of: int, ciphertext: int) -> int:
        return ciphertexts + ciphertext * size + of - 1 if of else ciphertext

    def steps() -> Iterator[Step]:
        for number in range(ciphertexts):
            mask = None if masks is None else masks[number]
            for step in _freed(operations, level, mask):
                named: dict[str, Any] = {
                    name: register(getattr(step, name), number)
                    for name in ("out", "a", "b")
                    if name in step._fields
                }
                yield step._replace(**named)

    return Program(ciphertexts, tuple(register(size, n) for n in range(ciphertexts)), steps)


def _freed(operations: tuple[Op, ...], level: int, mask: Floats | None) -> Iterator[Step]:
    """The steps for one ciphertext, each register freed after its last use."""
    last = dict[int, int]()
    for place, op in enumerate(operations):
        last |= dict.fromkeys(_read(op), place)
    for place, op in enumerate(operations):
        yield _step(op, level, mask)
        yield from (Free(a) for a in sorted(set(_read(op))) if last[a] == place)


def _read(op: Op) -> tuple[int, ...]:
    return (op.a, op.b) if isinstance(op, Product | Sum | Difference) else (op.a,)


def _step(op: Op, level: int, mask: Floats | None) -> Step:
    match op:
        case Product(out, a, b):
            step: Step = Mul(out, a, b)
        case Sum(out, a, b):
            step = Add(out, a, b)
        case Difference(out, a, b):
            step = Sub(out, a, b)
        case Scaled(out, a, value, scale):
            step = MulPlain(out, a, Constant(value), scale)
        case Shifted(out, a, value):
            step = AddPlain(out, a, Constant(value, mask))
        case Negated(out, a):
            step = Negate(out, a)
        case Rescaled(out, a):
            step = Rescale(out, a)
        case Dropped(out, a, depth):
            step = Drop(out, a, level - depth)
    return step


class Pairwise(NamedTuple):
    """A program on pairs of ciphertexts, and what it takes."""

    program: Program
    cost: Cost


def lower_pairs(operation: Pairs, levels: tuple[int, int], ciphertexts: int = 1) -> Pairwise:
    """The sums, differences or products of two tensors that are packed alike.

    The ciphertexts of the first go in before those of the second, each at its level; the one that
    has more is adjusted. A product takes one level.

    >>> print(lower_pairs("multiply", levels=(3, 2), ciphertexts=2).cost)
    2 plain products, 2 products, 4 rescales, 2 levels
    """
    first, second = levels
    if min(levels) < (operation == "multiply"):
        raise WeftError(
            f"operands at levels {first} and {second} leave no level for a product",
            hint="parameters of a greater depth",
        )
    adjusted, times = int(first != second), int(operation == "multiply")
    steps = [
        step
        for number in range(ciphertexts)
        for step in _pair(operation, levels, (number, number + ciphertexts), 2 * ciphertexts)
    ]
    cost = Cost(
        plain_products=adjusted * ciphertexts,
        products=times * ciphertexts,
        rescales=(adjusted + times) * ciphertexts,
        additions=(1 - times) * ciphertexts,
        levels=adjusted + times,
        inputs=2 * ciphertexts,
        outputs=ciphertexts,
    )
    outputs = tuple(2 * ciphertexts + 3 * number + 2 for number in range(ciphertexts))
    return Pairwise(Program(2 * ciphertexts, outputs, lambda: steps), cost)


def _pair(
    operation: str, levels: tuple[int, int], pair: tuple[int, int], start: int
) -> Iterator[Step]:
    """The steps of one pair; each pair has three registers of its own behind the operands."""
    fresh = start + 3 * pair[0]
    a, b = pair
    if levels[0] != levels[1]:
        higher = a if levels[0] > levels[1] else b
        yield Adjust(fresh, higher, min(levels))
        yield Free(higher)
        a, b = (fresh, b) if higher == a else (a, fresh)
    if operation == "multiply":
        yield Mul(fresh + 1, a, b)
        yield from (Free(a), Free(b), Rescale(fresh + 2, fresh + 1), Free(fresh + 1))
        return
    yield (Add if operation == "add" else Sub)(fresh + 2, a, b)
    yield from (Free(a), Free(b))
