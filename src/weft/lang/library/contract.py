"""Matrix products of all kinds."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Attributes, Operator
from weft.lang.signature import Signature
from weft.values import Point


def _named(rank: int, free: str, named: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """The names of an operand's dimensions: those that are paired, and the others in order."""
    names = [""] * rank
    for letter, dims in named:
        for number, dim in enumerate(dims):
            if not 0 <= dim < rank:
                raise WeftError(f"there is no dimension {dim} among {rank}")
            names[dim] = f"{letter}{number}"
    rest = (f"{free}{number}" for number in range(rank))
    return [name or next(rest) for name in names]


def sign_dot_general(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Batched, free and contracted dimensions.

    >>> dims = dict(lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))
    >>> print(sign_dot_general([(8, 16), (16, 4)], dims).notation)
    m0 k0, k0 n0 -> m0 n0  sum: k0
    """
    sides = []
    for side, free, shape in zip(("lhs", "rhs"), "mn", shapes):
        batched = attributes.get(f"{side}_batching_dimensions", ())
        contracted = attributes.get(f"{side}_contracting_dimensions", ())
        sides.append(_named(len(shape), free, [("b", batched), ("k", contracted)]))
    left, right = sides
    batch = sorted((n for n in left if n[0] == "b"), key=lambda n: int(n[1:]))
    made = [*batch, *(n for n in left if n[0] == "m"), *(n for n in right if n[0] == "n")]
    rows = [[Row(((name, 1),)) for name in names] for names in (left, right, made)]
    reduced = {name: "sum" for name in left if name[0] == "k"}
    return Signature(Notation(rows[:2], rows[2:], reduced), shapes)


def sign_dot(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Products of matrices and vectors.

    >>> print(sign_dot([(8, 16), (16,)], {}).notation)
    m0 k0, k0 -> m0  sum: k0
    """
    contracting = {
        "lhs_contracting_dimensions": (len(shapes[0]) - 1,),
        "rhs_contracting_dimensions": (0,),
    }
    return sign_dot_general(shapes, contracting)


def sign_matmul(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Matrices, or batches of them alike.

    >>> print(sign_matmul([(2, 8, 16), (2, 16, 4)], {}).notation)
    b0 m k, b0 k n -> b0 m n  sum: k
    """
    batch = " ".join(f"b{number}" for number in range(len(shapes[0]) - 2))
    return Signature.of(f"{batch} m k, {batch} k n -> {batch} m n  sum: k", shapes)


OPERATORS.add(Operator("matmul", sign_matmul))
OPERATORS.add(Operator("linear", "m k, k n, + n -> m n  sum: k"))
OPERATORS.add(Operator("dot_general", sign_dot_general))
OPERATORS.add(Operator("dot", sign_dot))
