"""Operations on ciphertexts of which polynomials are made, and how many of each there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from weft.ckks.packing import Floats

if TYPE_CHECKING:
    from weft.ckks.backend import Backend, Cipher

Number = TypeVar("Number", float, Floats)


class Product(NamedTuple):
    """`out = a * b`, not rescaled."""

    out: int
    a: int
    b: int


class Scaled(NamedTuple):
    """`out = value * a`, the value encoded at a scale; not rescaled."""

    out: int
    a: int
    value: float
    scale: float


class Sum(NamedTuple):
    """`out = a + b`."""

    out: int
    a: int
    b: int


class Difference(NamedTuple):
    """`out = a - b`."""

    out: int
    a: int
    b: int


class Negated(NamedTuple):
    """`out = -a`."""

    out: int
    a: int


class Shifted(NamedTuple):
    """`out = a + value`."""

    out: int
    a: int
    value: float


class Rescaled(NamedTuple):
    """`out = a`, one level lower."""

    out: int
    a: int


class Dropped(NamedTuple):
    """`out = a` at a depth, with its scale."""

    out: int
    a: int
    depth: int


Op: TypeAlias = Product | Scaled | Sum | Difference | Negated | Shifted | Rescaled | Dropped
"""One operation on registers: 0 is the argument, and each `out` is a new one."""


class Counts(NamedTuple):
    """What an evaluation costs, exactly."""

    levels: int
    products: int
    plain_products: int
    rescales: int
    additions: int
    """Of two ciphertexts; differences and changes of sign as well."""
    plain_additions: int
    drops: int


def count(levels: int, operations: Iterable[Op]) -> Counts:
    """The operations by kind, as a back-end counts them."""
    kinds = [type(op) for op in operations]
    return Counts(
        levels,
        kinds.count(Product),
        kinds.count(Scaled),
        kinds.count(Rescaled),
        kinds.count(Sum) + kinds.count(Difference) + kinds.count(Negated),
        kinds.count(Shifted),
        kinds.count(Dropped),
    )


def apply(op: Op, made: Mapping[int, Number]) -> Number:
    """Compute an operation on numbers, or arrays of them, that are not encrypted."""
    a = made[op.a]
    match op:
        case Product() | Sum() | Difference():
            b = made[op.b]
            return a * b if isinstance(op, Product) else a + b if isinstance(op, Sum) else a - b
        case Scaled():
            return a * op.value
        case Shifted():
            return a + op.value
        case Negated():
            return -a
    return a


def execute(op: Op, backend: Backend, made: dict[int, Cipher[Any]], level: int) -> Cipher[Any]:
    """What an operation makes of ciphertexts; depth 0 is the level given."""
    a = made[op.a]
    match op:
        case Product():
            found = backend.mul(a, made[op.b])
        case Sum():
            found = backend.add(a, made[op.b])
        case Difference():
            found = backend.sub(a, made[op.b])
        case Scaled():
            found = backend.mul_plain(a, op.value, op.scale)
        case Shifted():
            found = backend.add_plain(a, op.value)
        case Negated():
            found = backend.negate(a)
        case Rescaled():
            found = backend.rescale(a)
        case Dropped():
            found = backend.drop(a, level - op.depth)
    return found
