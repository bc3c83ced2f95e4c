"""Polynomials of every element, as a program: the same operations on each ciphertext."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

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
