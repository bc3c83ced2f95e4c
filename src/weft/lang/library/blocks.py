"""Operators in stages: what rewrites take others apart into."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import Operand, accumulator, as_quotients, for_kinds, like_all, together
from weft.lang.kernels import blocks as kernels
from weft.lang.library.contract import sign_matmul
from weft.lang.library.nn import flops_of_attention
from weft.lang.library.rows import numbered, place, plain, whole
from weft.lang.notation import CUSTOM, Notation, Row
from weft.lang.operator import OPERATORS, Operator
from weft.lang.signature import Signature
from weft.values import Point


def sign_prod_of(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The products of a matrix product, with the dimension that it sums over last.

    >>> print(sign_prod_of([(8, 16), (16, 4)], {}).notation)
    m k, k n -> m n k
    """
    line = sign_matmul(shapes, attributes).notation
    return Signature(Notation(line.operands, [(*line.results[0], *plain("k"))]), shapes)


def sign_reduce_blocks(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A dimension in blocks of one size, each reduced by itself; the last may be short or empty.

    >>> said = {"dimension": 1, "blocks": 4, "monoid": "sum"}
    >>> print(sign_reduce_blocks([(8, 10)], said))
    i0 3*b+t -> i0 b  sum: t  {i0=8, b=4, t=3}
    """
    (shape,) = shapes
    dim, width = place(attributes["dimension"], shape), _width(shapes[0], attributes)
    operand = [*numbered("i", len(shape))]
    made = [*operand]
    operand[dim] = Row((("b", width), ("t", 1)))
    made[dim] = Row((("b", 1),))
    sizes = {"b": attributes["blocks"], "t": width}
    return Signature(Notation([operand], [made], {"t": attributes["monoid"]}), shapes, sizes)


def _width(shape: Point, attributes: Attributes) -> int:
    """The size of a block."""
    count, size = int(attributes["blocks"]), shape[place(attributes["dimension"], shape)]
    if count < 1:
        raise WeftError(f"a dimension is cut into at least 1 block, got {count}")
    return -(-size // count)


def sign_attention_blocks(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Attention to each block of keys: the largest score, the sum of weights, and the mixture.

    >>> said = {"blocks": 2}
    >>> print(sign_attention_blocks([(4, 8, 16), (4, 6, 16), (4, 6, 5)], said))
    i0 q [d], i0 3*b+t [d], i0 3*b+t e -> i0 q b, i0 q b, i0 q b e  custom: t
        {i0=4, q=8, b=2, e=5, d=16, t=3}
    """
    queries, keys, values = shapes
    if queries[:-2] != keys[:-2] or keys[:-1] != values[:-1]:
        raise WeftError(
            f"attention in blocks takes as many keys as values, and heads of keys as of queries: "
            f"{list(map(list, shapes))}"
        )
    width = _width(keys, {**attributes, "dimension": -2})
    heads, (q, b, e) = numbered("i", len(queries) - 2), plain("q", "b", "e")
    d, key = whole("d"), Row((("b", width), ("t", 1)))
    operands = [(*heads, q, d), (*heads, key, d), (*heads, key, e)]
    results = [(*heads, q, b), (*heads, q, b), (*heads, q, b, e)]
    sizes = {"b": attributes["blocks"], "t": width}
    return Signature(Notation(operands, results, {"t": CUSTOM}), shapes, sizes)


def _as_wide(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert to what is added up in: blocks that meet later are rounded after that."""
    return [accumulator(dtype) for dtype in as_quotients(operands)]


OPERATORS.add(
    Operator(
        "prod_of",
        sign_prod_of,
        kernels.prod_of,
        keeps={"sum": [(0,), (1,)]},
        dtypes=like_all,
        conversion=together,
    )
)
OPERATORS.add(
    Operator(
        "reduce_blocks",
        sign_reduce_blocks,
        kernels.reduce_blocks,
        keeps={"own": [(0,)]},
        dtypes=kernels.reduced_dtype,
    )
)
OPERATORS.add(
    Operator(
        "attention_blocks",
        sign_attention_blocks,
        kernels.attention_blocks,
        flops=flops_of_attention,
        dtypes=for_kinds("float"),
        conversion=_as_wide,
    )
)
