"""Decompositions, solvers, Fourier transforms, sorting and running sums.

They need all of some dimensions, which are written in brackets and never cut:

    cholesky           b0 [m] [n] -> b0 [m] [n]
    triangular_solve   b0 [n] [k], b0 [n] [m] -> b0 [k] [m]
    fft                i0 [k0] -> i0 [k0]
    sort               i0 [k] -> i0 [k]
    topk               i0 [k] -> i0 [t], i0 [t]
    cumsum             i0 [k] -> i0 [k]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import (
    accumulator,
    as_quotients,
    complex_dtype,
    dtype_name,
    for_kinds,
    kind,
    real_dtype,
    summed,
)
from weft.lang.kernel import Attributes, Block, along, cast, descending, summing
from weft.lang.notation import Notation, axis_of, numbered, whole
from weft.lang.operator import Flops, define
from weft.lang.operators.nn import sign_along
from weft.lang.signature import Signature
from weft.values import Point

_DIRECT = 64
"""The largest triangular system that is solved in one step."""


def sign_cholesky(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign batches of matrices."""
    _check_square("cholesky", shapes[0])
    dims = (*numbered("b", len(shapes[0]) - 2), whole("m"), whole("n"))
    return Signature(Notation([dims], [dims]), shapes)


def cholesky(block: Block, x: Any) -> Any:
    """Compute the triangular factor, lower or upper, of positive definite matrices.

    Only that triangle is read, and the other one is zero.
    """
    xp = block.xp
    try:
        if block.attributes.get("lower", False):
            return xp.linalg.cholesky(x)
        return _adjoint(xp, xp.linalg.cholesky(_adjoint(xp, x)))
    except (ArithmeticError, ValueError, RuntimeError) as error:  # each library has its own
        raise WeftError(f"cholesky: {error}") from error


def _adjoint(xp: Any, x: Any) -> Any:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if kind(dtype_name(x.dtype)) == "complex" else x


def _check_square(name: str, shape: Point) -> None:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise WeftError(f"{name} takes square matrices, got {list(shape)}")


def sign_triangular_solve(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign `op(a) x = b`, or `x op(a) = b` from the right, for batches of matrices.

    >>> print(sign_triangular_solve([(8, 6, 6), (8, 6, 3)], {"left_side": True}).notation)
    b0 [n] [k], b0 [n] [m] -> b0 [k] [m]
    """
    _check_square("triangular_solve", shapes[0])
    batch = numbered("b", len(shapes[0]) - 2)
    n, m, k = whole("n"), whole("m"), whole("k")
    left = bool(attributes["left_side"])
    turned = attributes.get("transpose_a") in (True, "TRANSPOSE", "ADJOINT")
    a = (n, k) if left != turned else (k, n)
    b, x = ((n, m), (k, m)) if left else ((m, n), (m, k))
    operands = [(*batch, *a), (*batch, *b)]
    return Signature(Notation(operands, [(*batch, *x)]), shapes)


def triangular_solve(block: Block, a: Any, b: Any) -> Any:
    """Solve `op(a) x = b`, or `x op(a) = b`, reading one triangle of `a`."""
    xp, at = block.xp, block.attributes
    lower = bool(at.get("lower", False))
    a = xp.tril(a) if lower else xp.triu(a)
    if at.get("unit_diagonal", False):
        eye = xp.eye(a.shape[-1], dtype=a.dtype)
        a = a * (1 - eye) + eye
    turn = at.get("transpose_a", "NO_TRANSPOSE")
    if turn == "ADJOINT":
        a, lower = _adjoint(xp, a), not lower
    elif turn not in ("NO_TRANSPOSE", False):
        a, lower = xp.matrix_transpose(a), not lower
    if at["left_side"]:
        return _solve(xp, a, b, lower)
    turned = _solve(xp, xp.matrix_transpose(a), xp.matrix_transpose(b), not lower)
    return xp.matrix_transpose(turned)


def _solve(xp: Any, a: Any, b: Any, lower: bool) -> Any:
    """Solve a triangular system by halves, so that most of the work is matrix products."""
    size = a.shape[-1]
    if size <= _DIRECT:
        return xp.linalg.solve(a, b)
    half = size // 2
    first, last = slice(0, half), slice(half, size)
    one, two = (first, last) if lower else (last, first)
    begun = _solve(xp, a[..., one, one], b[..., one, :], lower)
    rest = b[..., two, :] - xp.matmul(a[..., two, one], begun)
    ended = _solve(xp, a[..., two, two], rest, lower)
    return xp.concat([begun, ended] if lower else [ended, begun], axis=-2)


def sign_fft(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a transform along the last dimensions; a real one changes the size of the last.

    >>> rfft = {"fft_length": (6,), "fft_type": "RFFT", "result_shape": (8, 4)}
    >>> print(sign_fft([(8, 6)], rfft))
    i0 [k0] -> i0 [r<k0]  {i0=8, r=4, k0=6}
    """
    count = len(attributes["fft_length"])
    result = attributes.get("result_shape") or _transformed_shape(shapes[0], attributes)
    dims = [*numbered("i", len(shapes[0]) - count), *(whole(f"k{n}") for n in range(count))]
    if result[-1] == shapes[0][-1]:
        return Signature(Notation([dims], [dims]), shapes)
    result_rows = [*dims[:-1], whole("r", f"k{count - 1}")]
    return Signature(Notation([dims], [result_rows]), shapes, {"r": result[-1]})


def _transformed_shape(shape: Point, attributes: Attributes) -> Point:
    """Return the shape of a transform; a real one has half of the frequencies."""
    last = attributes["fft_length"][-1]
    ends = {"RFFT": last // 2 + 1, "IRFFT": last}
    return (*shape[:-1], ends.get(attributes.get("fft_type", "FFT"), shape[-1]))


_TRANSFORMS = {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn", "IRFFT": "irfftn"}


def fft(block: Block, x: Any) -> Any:
    """Compute the Fourier transform along the last dimensions: FFT, IFFT, RFFT or IRFFT."""
    name, lengths = block.attributes.get("fft_type", "FFT"), block.attributes["fft_length"]
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    x = cast(block.xp, x, accumulator(dtype_name(x.dtype)))
    return getattr(block.xp.fft, _TRANSFORMS[name])(x, s=tuple(lengths), axes=axes)


def sign_sort(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign arrays sorted along one dimension, which they share only if there is another to cut.

    >>> print(sign_sort([(8, 6)], {"dimension": 1}).notation)
    i0 [k] -> i0 [k]
    >>> print(sign_sort([(6,)], {"dimension": 0}).notation)
    [k0] -> [k1]
    """
    shape = shapes[0]
    if any(other != shape for other in shapes):
        raise WeftError(f"arrays of one shape are sorted, got {list(map(list, shapes))}")
    axis = axis_of(attributes.get("dimension", -1), shape)
    dims = numbered("i", len(shape))
    shared = any(size > 1 for dim, size in enumerate(shape) if dim != axis)
    names = ["k" if shared else f"k{number}" for number in range(2 * len(shapes))]
    tensors = [[*dims[:axis], whole(name), *dims[axis + 1 :]] for name in names]
    line = Notation(tensors[: len(shapes)], tensors[len(shapes) :])
    return Signature(line, shapes, dict.fromkeys(names, shape[axis]))


def sort(block: Block, *operands: Any) -> Any:
    """Sort all operands by the first, stably.

    `comparison_direction` is `LT` (ascending, the default) or `GT`.
    """
    xp, first = block.xp, operands[0]
    axis = block.attributes.get("dimension", -1) % first.ndim
    match block.attributes.get("comparison_direction", "LT"):
        case "LT" | "LE":
            order = xp.argsort(first, axis=axis, stable=True)
        case "GT" | "GE":
            order = descending(xp, first, axis)
        case other:
            raise WeftError(f"an order by {other} cannot be run box by box")
    return tuple(xp.take_along_axis(x, order, axis=axis) for x in operands)


def sign_topk(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign the largest `k` elements of the last dimension, and their indices.

    >>> print(sign_topk([(8, 6)], {"k": 2}))
    i0 [k] -> i0 [t], i0 [t]  {i0=8, t=2, k=6}
    """
    (shape,), count = shapes, attributes["k"]
    if not shape or not 0 <= count <= shape[-1]:
        raise WeftError(f"expected k from 0 to the last size of {list(shape)}, got {count}")
    kept = numbered("i", len(shape) - 1)
    result = (*kept, whole("t"))
    return Signature(Notation([(*kept, whole("k"))], [result, result]), shapes, {"t": count})


def topk(block: Block, x: Any) -> tuple[Any, Any]:
    """Return the largest elements of the last dimension, and their indices."""
    xp = block.xp
    order = descending(xp, x, x.ndim - 1)[..., : block.attributes["k"]]
    return xp.take_along_axis(x, order, axis=-1), order


def cumsum(block: Block, x: Any) -> Any:
    """Compute running sums along a dimension, from its end with `reverse`.

    With `exclusive` each sum leaves its own element out.
    """
    xp, at = block.xp, block.attributes
    axis, exclusive = at["dimension"] % x.ndim, bool(at.get("exclusive", False))
    if at.get("reverse", False):
        x = xp.flip(x, axis=axis)
    (result,) = summed([dtype_name(x.dtype)], at)
    within = summing(xp, accumulator(result))
    total = xp.cumulative_sum(x, axis=axis, dtype=within, include_initial=exclusive)
    if exclusive:
        total = total[along(axis, slice(0, x.shape[axis]))]
    return cast(xp, xp.flip(total, axis=axis) if at.get("reverse", False) else total, result)


def _with_indices(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return [*for_kinds("bool int uint float")(dtypes, {}), "int64"]


def _transformed(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    (dtype,) = for_kinds("float complex")(dtypes, {})
    result = complex_dtype(dtype)
    return [real_dtype(result) if attributes.get("fft_type") == "IRFFT" else result]


def per_batch(total: Callable[[Signature, Attributes], float]) -> Flops:
    """Return a cost rule: the operations of one batch, divided among its points.

    >>> line = Signature.of("m [k] -> m [k]", [(8, 4)])
    >>> per_batch(lambda line, attributes: 12)(line, {})
    3.0
    """

    def flops(line: Signature, attributes: Attributes) -> float:
        points = prod(line.sizes[name] for name in line.notation.whole)
        return total(line, attributes) / points if points else 0

    return flops


def n_log_n(count: int) -> float:
    """Return a count times its binary logarithm.

    >>> n_log_n(8), n_log_n(1), n_log_n(0)
    (24.0, 0.0, 0.0)
    """
    return count * log2(count) if count else 0.0


def _fft_flops(line: Signature, attributes: Attributes) -> float:
    """Count 5 n log n, and half of that for real transforms."""
    half = 2 if attributes.get("fft_type") in ("RFFT", "IRFFT") else 1
    return 5 * n_log_n(prod(attributes["fft_length"])) / half


def _sort_flops(line: Signature, attributes: Attributes) -> float:
    return n_log_n(line.operand_shapes[0][attributes.get("dimension", -1)])


_SOLVED: dict[str, Any] = {
    "dtypes": for_kinds("float complex"),
    "conversion": as_quotients,
    "accumulates": "always",
}
define(
    "cholesky",
    sign_cholesky,
    cholesky,
    **_SOLVED,
    flops=per_batch(lambda line, _: line.sizes["m"] ** 3 / 3),
    attributes="lower",
)
define(
    "triangular_solve",
    sign_triangular_solve,
    triangular_solve,
    keeps={"sum": [(1,)]},
    **_SOLVED,
    attributes="left_side lower unit_diagonal transpose_a",
)
define(
    "fft",
    sign_fft,
    fft,
    keeps={"sum": [(0,)]},
    flops=per_batch(_fft_flops),
    dtypes=_transformed,
    conversion=as_quotients,
    attributes="fft_type fft_length result_shape",
)
define(
    "sort",
    sign_sort,
    sort,
    flops=per_batch(_sort_flops),
    dtypes=lambda dtypes, _: dtypes,
    attributes="dimension comparison_direction is_stable",
    workspace=2.5,
)
define(
    "topk",
    sign_topk,
    topk,
    flops=per_batch(_sort_flops),
    dtypes=_with_indices,
    attributes="k",
    workspace=4.5,
)
define(
    "cumsum",
    sign_along,
    cumsum,
    keeps={"sum": [(0,)]},
    dtypes=for_kinds("bool int uint float complex", summed),
    attributes="dimension reverse exclusive",
)
