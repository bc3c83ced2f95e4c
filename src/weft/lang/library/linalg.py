"""Decompositions, solvers, transforms and sorting: what must see some dimensions whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import (
    as_quotients,
    complex_dtype,
    for_kinds,
    real_dtype,
    summed,
)
from weft.lang.kernels import linalg as kernels
from weft.lang.library.flops import n_log_n, per_batch
from weft.lang.library.rows import numbered, place, whole
from weft.lang.notation import Notation
from weft.lang.operator import OPERATORS, Operator
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
    result = attributes.get("result_shape") or _transformed_shape(shapes[0], attributes)
    dims = [*numbered("i", len(shapes[0]) - count), *(whole(f"k{n}") for n in range(count))]
    if result[-1] == shapes[0][-1]:
        return Signature(Notation([dims], [dims]), shapes)
    made = [*dims[:-1], whole("r", f"k{count - 1}")]
    return Signature(Notation([dims], [made]), shapes, {"r": result[-1]})


def _transformed_shape(shape: Point, attributes: Attributes) -> Point:
    """A real transform has half of the frequencies, for the others say the same."""
    last = attributes["fft_length"][-1]
    ends = {"RFFT": last // 2 + 1, "IRFFT": last}
    return (*shape[:-1], ends.get(attributes.get("fft_type", "FFT"), shape[-1]))


def sign_sort(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the sorted dimension, which tensors share only if there is another to cut.

    >>> print(sign_sort([(8, 6)], {"dimension": 1}).notation)
    i0 [k] -> i0 [k]
    >>> print(sign_sort([(6,)], {"dimension": 0}).notation)
    [k0] -> [k1]
    """
    shape = shapes[0]
    along = place(attributes.get("dimension", -1), shape)
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


def sign_topk(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The largest `k` elements of the last dimension, which is seen whole, and their places.

    >>> print(sign_topk([(8, 6)], {"k": 2}))
    i0 [k] -> i0 [t], i0 [t]  {i0=8, t=2, k=6}
    """
    (shape,), count = shapes, attributes["k"]
    if not shape or not 0 <= count <= shape[-1]:
        raise WeftError(f"there are no {count} largest of {list(shape)[-1:] or 'a scalar'}")
    kept = numbered("i", len(shape) - 1)
    made = (*kept, whole("t"))
    return Signature(Notation([(*kept, whole("k"))], [made, made]), shapes, {"t": count})


def sign_along(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """One `dimension` seen whole, the last unless given; the others as they are.

    >>> print(sign_along([(8, 6)], {"dimension": 0}).notation)
    [k] i1 -> [k] i1
    """
    (shape,) = shapes
    along = place(attributes.get("dimension", -1), shape)
    dims = [whole("k") if d == along else row for d, row in enumerate(numbered("i", len(shape)))]
    return Signature(Notation([dims], [dims]), shapes)


def _with_places(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return [*for_kinds("bool int uint float")(dtypes, {}), "int64"]


def _transformed(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    (dtype,) = for_kinds("float complex")(dtypes, {})
    made = complex_dtype(dtype)
    return [real_dtype(made) if attributes.get("fft_type") == "IRFFT" else made]


def _of_fft(line: Signature, attributes: Attributes) -> float:
    """The usual count: 5 n log n, and half of that for real transforms."""
    half = 2 if attributes.get("fft_type") in ("RFFT", "IRFFT") else 1
    return 5 * n_log_n(prod(attributes["fft_length"])) / half


def _of_sort(line: Signature, attributes: Attributes) -> float:
    return n_log_n(line.operand_shapes[0][attributes.get("dimension", -1)])


_SOLVED: dict[str, Any] = {
    "dtypes": for_kinds("float complex"),
    "conversion": as_quotients,
    "accumulates": "always",
}
OPERATORS.add(
    Operator(
        "cholesky",
        sign_cholesky,
        kernels.cholesky,
        **_SOLVED,
        flops=per_batch(lambda line, _: line.sizes["m"] ** 3 / 3),
    )
)
OPERATORS.add(
    Operator(
        "triangular_solve",
        sign_triangular_solve,
        kernels.triangular_solve,
        keeps={"sum": [(1,)]},
        **_SOLVED,
    )
)
OPERATORS.add(
    Operator(
        "fft",
        sign_fft,
        kernels.fft,
        keeps={"sum": [(0,)]},
        flops=per_batch(_of_fft),
        dtypes=_transformed,
        conversion=as_quotients,
    )
)
OPERATORS.add(
    Operator(
        "sort", sign_sort, kernels.sort, flops=per_batch(_of_sort), dtypes=lambda dtypes, _: dtypes
    )
)
OPERATORS.add(
    Operator("topk", sign_topk, kernels.topk, flops=per_batch(_of_sort), dtypes=_with_places)
)
OPERATORS.add(
    Operator(
        "cumsum",
        sign_along,
        kernels.cumsum,
        keeps={"sum": [(0,)]},
        dtypes=for_kinds("bool int uint float complex", summed),
    )
)
OPERATORS.add(
    Operator(
        "batch_norm_inference",
        sign_batch_norm_inference,
        kernels.batch_norm_inference,
        keeps={"sum": [(0, 2, 3), (1, 2)]},
        flops=4,
        dtypes=for_kinds("float"),
        conversion=as_quotients,
        accumulates="always",
    )
)
OPERATORS.add(Operator("rng_bit_generator", sign_rng_bit_generator))
