"""Decompositions, solvers, transforms and sorting: what must see some dimensions whole."""

from __future__ import annotations

from collections.abc import Sequence

from weft.lang.library.rows import numbered, whole
from weft.lang.notation import Notation
from weft.lang.operator import OPERATORS, Attributes, Operator
from weft.lang.signature import Signature
from weft.values import Point


def sign_cholesky(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Batches of matrices that are seen whole."""
    dims = (*numbered("b", len(shapes[0]) - 2), whole("m"), whole("n"))
    return Signature(Notation([dims], [dims]), shapes)


def sign_triangular_solve(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """`op(a) x = b`, or `x op(a) = b` from the right: all but batches is seen whole.

    >>> print(sign_triangular_solve([(8, 6, 6), (8, 6, 3)], {"left_side": True}).notation)
    b0 [n] [k], b0 [n] [m] -> b0 [k] [m]
    """
    batch = numbered("b", len(shapes[0]) - 2)
    n, m, k = whole("n"), whole("m"), whole("k")
    left = bool(attributes["left_side"])
    turned = attributes.get("transpose_a") in (True, "TRANSPOSE", "ADJOINT")
    a = (n, k) if left != turned else (k, n)
    b, x = ((n, m), (k, m)) if left else ((m, n), (m, k))
    operands = [(*batch, *a), (*batch, *b)]
    return Signature(Notation(operands, [(*batch, *x)]), shapes)


def sign_fft(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the transformed dimensions; a real transform makes the last one anew.

    >>> rfft = {"fft_length": (6,), "fft_type": "RFFT", "result_shape": (8, 4)}
    >>> print(sign_fft([(8, 6)], rfft))
    i0 [k0] -> i0 [r<k0]  {i0=8, r=4, k0=6}
    """
    count = len(attributes["fft_length"])
    result = attributes.get("result_shape", shapes[0])
    dims = [*numbered("i", len(shapes[0]) - count), *(whole(f"k{n}") for n in range(count))]
    if result[-1] == shapes[0][-1]:
        return Signature(Notation([dims], [dims]), shapes)
    made = [*dims[:-1], whole("r", f"k{count - 1}")]
    return Signature(Notation([dims], [made]), shapes, {"r": result[-1]})


def sign_sort(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the sorted dimension, which tensors share only if there is another to cut.

    >>> print(sign_sort([(8, 6)], {"dimension": 1}).notation)
    i0 [k] -> i0 [k]
    >>> print(sign_sort([(6,)], {"dimension": 0}).notation)
    [k0] -> [k1]
    """
    along, shape = attributes["dimension"], shapes[0]
    dims = numbered("i", len(shape))
    shared = any(size > 1 for dim, size in enumerate(shape) if dim != along)
    names = ["k" if shared else f"k{number}" for number in range(2 * len(shapes))]
    tensors = [[*dims[:along], whole(name), *dims[along + 1 :]] for name in names]
    line = Notation(tensors[: len(shapes)], tensors[len(shapes) :])
    return Signature(line, shapes, dict.fromkeys(names, shape[along]))


def sign_batch_norm_inference(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Four vectors along the feature dimension.

    >>> print(sign_batch_norm_inference([(8, 4)] + [(4,)] * 4, {"feature_index": 1}).notation)
    i0 i1, i1, i1, i1, i1 -> i0 i1
    """
    dims = numbered("i", len(shapes[0]))
    feature = [dims[attributes["feature_index"]]]
    return Signature(Notation([dims, *[feature] * 4], [dims]), shapes)


def sign_rng_bit_generator(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A state that is seen whole, and bits that depend on nothing else.

    >>> print(sign_rng_bit_generator([(2,)], {"result_shape": (8, 4)}).notation)
    [s] -> [t], i0 i1
    """
    bits = attributes["result_shape"]
    sizes = {f"i{dim}": size for dim, size in enumerate(bits)} | {"t": shapes[0][0]}
    results = [[whole("t")], numbered("i", len(bits))]
    return Signature(Notation([[whole("s")]], results), shapes, sizes)


OPERATORS.add(Operator("cholesky", sign_cholesky))
OPERATORS.add(Operator("triangular_solve", sign_triangular_solve))
OPERATORS.add(Operator("fft", sign_fft))
OPERATORS.add(Operator("sort", sign_sort))
OPERATORS.add(Operator("batch_norm_inference", sign_batch_norm_inference))
OPERATORS.add(Operator("rng_bit_generator", sign_rng_bit_generator))
