"""What neural networks are made of: softmax, normalisation, attention."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import as_floats, as_quotients, for_kinds
from weft.lang.kernels import nn as kernels
from weft.lang.library.linalg import sign_along
from weft.lang.library.rows import digits, numbered, plain, whole
from weft.lang.notation import Notation, Row
from weft.lang.operator import NOTHING, OPERATORS, Keeps, Operator, Sign
from weft.lang.signature import Signature
from weft.values import Point

Rows = tuple[Row, ...]


def sign_norm(most: int) -> Sign:
    """The last dimension seen whole, and up to so many vectors along it.

    >>> print(sign_norm(2)([(8, 4), (4,), (4,)], {}).notation)
    i0 [k], [k], [k] -> i0 [k]
    """

    def sign(shapes: Sequence[Point], attributes: Attributes) -> Signature:
        if not 1 <= len(shapes) <= 1 + most or not shapes[0]:
            raise WeftError(
                f"a norm takes an array and up to {most} vectors, got {list(map(list, shapes))}"
            )
        dims = (*numbered("i", len(shapes[0]) - 1), whole("k"))
        return Signature(Notation([dims, *[dims[-1:]] * (len(shapes) - 1)], [dims]), shapes)

    return sign


def sign_attention(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Queries, keys and values, each [batches, heads, places, features]; heads may be missing.

    Where there are fewer heads of keys than of queries, each serves as many queries' heads.

    >>> print(sign_attention([(2, 4, 8, 16), (2, 4, 9, 16), (2, 4, 9, 5)], {}).notation)
    b0 h q [d], b0 h [k] [d], b0 h [k] e -> b0 h q e
    >>> print(sign_attention([(4, 8, 16), (2, 9, 16), (2, 9, 5)], {}).notation)
    2*h+g q [d], h [k] [d], h [k] e -> 2*h+g q e
    """
    ranks = {len(shape) for shape in shapes}
    if len(shapes) != 3 or len(ranks) != 1 or min(ranks) < 2:
        raise WeftError(
            f"attention takes queries, keys and values of one rank, got {list(map(list, shapes))}"
        )
    (q, e), d, k = plain("q", "e"), whole("d"), whole("k")
    heads, served, sizes = _heads(shapes[0], shapes[1])
    operands = [(*served, q, d), (*heads, k, d), (*heads, k, e)]
    return Signature(Notation(operands, [(*served, q, e)]), shapes, sizes)


def _heads(queries: Point, keys: Point) -> tuple[Rows, Rows, dict[str, int]]:
    """The batches and heads of keys, those of queries, and how many share each."""
    if len(queries) == 2:
        return (), (), {}
    batch, few, many = numbered("b", len(queries) - 3), keys[-3], queries[-3]
    kept = (*batch, *plain("h"))
    if few == many:
        return kept, kept, {}
    if few < 1 or many % few:
        raise WeftError(
            f"{many} heads of queries cannot share {few} heads of keys",
            hint="there must be a whole number of heads of queries for each",
        )
    group = many // few
    return kept, (*batch, digits([("h", few), ("g", group)])), {"g": group}


def flops_of_attention(line: Signature, attributes: Attributes) -> float:
    """Two products for each pair of a query and a key, and the softmax of their scores.

    A sub-problem is one feature of a key and one of a value for a query and a key.
    """
    d, e = line.sizes["d"], line.sizes["e"]
    return (2 * (d + e) + 5) / max(1, d * e)


def _scale_and_shift(count: int) -> Keeps:
    """The vectors of a norm together."""
    return {"sum": [tuple(range(1, count))]} if count > 1 else {}


for _name, _sign, _kernel, _keeps, _flops, _conversion in (
    ("softmax", sign_along, kernels.softmax, NOTHING, 5, as_floats),
    ("log_softmax", sign_along, kernels.log_softmax, NOTHING, 5, as_floats),
    ("layer_norm", sign_norm(2), kernels.layer_norm, _scale_and_shift, 8, as_quotients),
    ("rms_norm", sign_norm(1), kernels.rms_norm, _scale_and_shift, 5, as_quotients),
    (
        "attention",
        sign_attention,
        kernels.attention,
        {"sum": [(2,)]},
        flops_of_attention,
        as_quotients,
    ),
):
    OPERATORS.add(
        Operator(
            _name,
            _sign,
            _kernel,
            keeps=_keeps,
            flops=_flops,
            dtypes=for_kinds("float"),
            conversion=_conversion,
            accumulates="always",
        )
    )
