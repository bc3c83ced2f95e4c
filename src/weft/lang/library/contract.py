"""Matrix products of all kinds."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import like_all, together
from weft.lang.kernels.contract import contract
from weft.lang.library.rows import aligned, plain
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Keeps, Operator
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
    """Matrices, vectors, or batches of matrices that are repeated to one shape.

    >>> print(sign_matmul([(2, 8, 16), (16, 4)], {}).notation)
    b0 m k, k n -> b0 m n  sum: k
    """
    if len(shapes) != 2 or not all(shapes):
        raise WeftError(f"matmul takes two arrays of rank 1 or more, got {list(map(list, shapes))}")
    (one, two), made = aligned("b", [shape[:-2] for shape in shapes])
    left = plain("m", "k")[-len(shapes[0]) :]
    right = plain("k", "n")[: len(shapes[1])]
    ends = [row for row in (*left, *right) if row.plain != "k"]
    line = Notation([[*one, *left], [*two, *right]], [[*made, *ends]], {"k": "sum"})
    return Signature(line, shapes)


def sign_linear(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A matrix for the last dimension, and a bias that is added once.

    >>> print(sign_linear([(2, 8, 16), (16, 4), (4,)], {}).notation)
    b0 m k, k n, + n -> b0 m n  sum: k
    """
    names = [*(f"b{n}" for n in range(len(shapes[0]) - 2)), "m"][-len(shapes[0]) + 1 :]
    kept = plain(*names) if len(shapes[0]) > 1 else ()
    k, n = plain("k", "n")
    operands = [[*kept, k], [k, n], [n]][: len(shapes)]
    return Signature(
        Notation(operands, [[*kept, n]], {"k": "sum"}, once=[2][: len(shapes) - 2]), shapes
    )


def sign_einsum(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Any line of index notation that names plain dimensions, or an equation of single letters.

    >>> print(sign_einsum([(8, 16), (16, 4)], {"equation": "ij,jk->ik"}).notation)
    i j, j k -> i k  sum: j
    """
    text = attributes["equation"]
    if "->" not in text:
        raise WeftError(f"the equation {text!r} has no '->'", hint="name what it makes: ij,jk->ik")
    if " " not in text.strip():
        text = ", ".join(map(" ".join, text.replace("->", ",->").split(",")))
        text = text.replace(", - >", " ->")
    line = Notation.parse(_with_sum(text))
    for rows in (*line.operands, *line.results):
        for row in rows:
            if row.plain is None or row.whole:
                raise WeftError(f"the equation {text!r} has '{row}', which is no plain dimension")
    return Signature(line, shapes)


def _with_sum(text: str) -> str:
    """The line with what no result names summed."""
    left, _, right = text.partition("->")
    names = [name for tensor in left.split(",") for name in tensor.split()]
    summed = [name for name in dict.fromkeys(names) if name not in right.split()]
    return f"{text}  sum: {' '.join(summed)}" if summed and ":" not in text else text


def with_bias(count: int) -> Keeps:
    """Either factor, and the bias with it where there is one."""
    bias = tuple(range(2, count))
    return {"sum": [(0, *bias), (1, *bias)]}


def multiplied(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a sum of products: that of its factors unless another is given."""
    return [attributes["dtype"]] if attributes.get("dtype") else like_all(dtypes, attributes)


_PRODUCT = {"sum": [(0,), (1,)]}
for _name, _sign, _keeps, _flops in (
    ("matmul", sign_matmul, _PRODUCT, 2),
    ("linear", sign_linear, with_bias, 2),
    ("dot_general", sign_dot_general, _PRODUCT, 2),
    ("dot", sign_dot, _PRODUCT, 2),
    (
        "einsum",
        sign_einsum,
        {"sum": [(0,), (1,), (2,), (3,)]},
        lambda line, _: len(line.notation.operands),
    ),
):
    OPERATORS.add(
        Operator(
            _name,
            _sign,
            contract,
            keeps=_keeps,
            flops=_flops,
            dtypes=multiplied,
            conversion=together,
            accumulates="numpy",
        )
    )
