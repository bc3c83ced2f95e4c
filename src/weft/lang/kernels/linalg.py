"""Kernels of decompositions, solvers, transforms and sorting, along dimensions that are whole."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.lang.block import Block
from weft.lang.dtype import accumulator, dtype_name, kind, summed
from weft.lang.kernels.dtypes import cast, summing
from weft.lang.kernels.moves import along

_SMALL = 64
"""The size below which a triangular system is solved at once."""


def cholesky(block: Block, x: Any) -> Any:
    """The triangular factor, lower or upper, of positive definite matrices.

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


def triangular_solve(block: Block, a: Any, b: Any) -> Any:
    """`op(a) x = b`, or `x op(a) = b`, where only one triangle of `a` is read."""
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
    """A triangular system by halves, so that most of the work is products of matrices."""
    size = a.shape[-1]
    if size <= _SMALL:
        return xp.linalg.solve(a, b)
    half = size // 2
    first, last = slice(0, half), slice(half, size)
    one, two = (first, last) if lower else (last, first)
    begun = _solve(xp, a[..., one, one], b[..., one, :], lower)
    rest = b[..., two, :] - xp.matmul(a[..., two, one], begun)
    ended = _solve(xp, a[..., two, two], rest, lower)
    return xp.concat([begun, ended] if lower else [ended, begun], axis=-2)


_TRANSFORMS = {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn", "IRFFT": "irfftn"}


def fft(block: Block, x: Any) -> Any:
    """The discrete Fourier transform along the last dimensions: FFT, IFFT, RFFT or IRFFT."""
    name, lengths = block.attributes.get("fft_type", "FFT"), block.attributes["fft_length"]
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    x = cast(block.xp, x, accumulator(dtype_name(x.dtype)))
    return getattr(block.xp.fft, _TRANSFORMS[name])(x, s=tuple(lengths), axes=axes)


def descending(xp: Any, x: Any, axis: int) -> Any:
    """The order of the elements along an axis, the largest first; of equal ones, the first.

    >>> import numpy
    >>> descending(numpy, numpy.asarray([1, 3, 2, 3]), 0)
    array([1, 3, 2, 0])
    """
    last = x.shape[axis] - 1
    return last - xp.flip(xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True), axis=axis)


def sort(block: Block, *operands: Any) -> Any:
    """All operands in the order of the first, ascending or descending; equal ones stay in order.

    `comparison_direction` says which: `LT`, ascending, unless given.
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


def topk(block: Block, x: Any) -> tuple[Any, Any]:
    """The largest elements of the last dimension, and their places; of equal ones, the first."""
    xp = block.xp
    order = descending(xp, x, x.ndim - 1)[..., : block.attributes["k"]]
    return xp.take_along_axis(x, order, axis=-1), order


def cumsum(block: Block, x: Any) -> Any:
    """Running sums along a dimension, from its end with `reverse`, or before each element."""
    xp, at = block.xp, block.attributes
    axis, before = at["dimension"] % x.ndim, bool(at.get("exclusive", False))
    if at.get("reverse", False):
        x = xp.flip(x, axis=axis)
    (result,) = summed([dtype_name(x.dtype)], at)
    within = summing(xp, accumulator(result))
    made = xp.cumulative_sum(x, axis=axis, dtype=within, include_initial=before)
    if before:
        made = made[along(axis, slice(0, x.shape[axis]))]
    return cast(xp, xp.flip(made, axis=axis) if at.get("reverse", False) else made, result)


def batch_norm_inference(
    block: Block, x: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> Any:
    """Each feature moved and scaled by its own numbers."""
    xp, axis = block.xp, block.attributes["feature_index"]
    by = scale / xp.sqrt(variance + block.attributes.get("epsilon", 0.0))
    shape = (-1, *(1,) * (x.ndim - axis - 1))
    mean, by, offset = (xp.reshape(each, shape) for each in (mean, by, offset))
    return (x - mean) * by + offset
