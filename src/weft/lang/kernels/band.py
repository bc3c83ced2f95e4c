"""`slide_along`: windows along one dimension of one channel, as products with a band of numbers.

Such windows are narrow, and there is nothing to join but their elements: a matrix that has the
kernel along its diagonal makes many windows at once, at the speed of products of matrices. Most of
its elements are zeros, which is no loss below some hundred of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.lang.kernels.moves import along

WINDOWS = 128
"""So many windows are made by one product, or as many as a kernel has elements."""

TILE = 16
"""As many where products of small matrices cost nothing but their numbers."""

ROWS = 256
"""So many lines along the last dimension lie in a cache."""


def slide_along(
    xp: Any, x: Any, axis: int, kernel: Any, offsets: Sequence[int], count: int, stride: int
) -> Any:
    """Each of `count` windows along an axis: what lies at the offsets, weighed and added up.

    Window `i` begins at element `stride * i`. What is not a number, or infinite, reaches no further
    than the windows that see it.

    >>> import numpy
    >>> slide_along(numpy, numpy.arange(6.0), 0, numpy.asarray([1.0, -1.0]), [0, 2], 4, 1)
    array([-2., -2., -2., -2.])
    """
    if not bool(xp.all(xp.isfinite(x))):  # zeros of the band would meet it
        return _added(xp, x, axis, kernel, offsets, count, stride)
    strides = getattr(getattr(xp, "lib", None), "stride_tricks", None)
    if strides is not None and hasattr(x, "strides"):
        return _tiled(xp, strides.as_strided, x, axis, kernel, offsets, count, stride)
    many = max(WINDOWS, len(offsets))
    parts = []
    for first in range(0, count, many):
        some = min(many, count - first)
        reach = stride * (some - 1) + max(offsets) + 1
        piece = x[along(axis, slice(stride * first, stride * first + reach))]
        parts.append(_product(xp, piece, axis, _band(xp, kernel, offsets, some, stride)))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=axis)


def _tiled(
    np: Any,
    view: Any,
    x: Any,
    axis: int,
    kernel: Any,
    offsets: Sequence[int],
    count: int,
    stride: int,
) -> Any:
    """The same in NumPy, where tiles may overlap in memory: small ones waste the fewest zeros."""
    before, after, size = x.shape[:axis], x.shape[axis + 1 :], min(TILE, count)
    x = np.reshape(x, (prod(before), x.shape[axis], prod(after)))
    made = np.empty((x.shape[0], count, x.shape[2]), dtype=np.result_type(x, kernel))
    band = _band(np, kernel, offsets, size, stride)
    # The last tile ends with the last window, whichever it begins with.
    for first, tiles in ((0, count // size), (count - size, int(count % size > 0))):
        if tiles:
            seen = _overlapping(view, x, stride * first, tiles, stride * size, band.shape[1])
            into = _overlapping(view, made, first, tiles, size, size)
            if x.shape[2] > 1:
                np.matmul(band, seen, out=into)
                continue
            for row in range(0, x.shape[0], ROWS):
                rows = (slice(None), slice(row, row + ROWS), slice(None), 0)
                np.matmul(seen[rows], band.T, out=into[rows])
    return np.reshape(made, (*before, count, *after))


def _overlapping(view: Any, x: Any, first: int, tiles: int, step: int, size: int) -> Any:
    """Tiles of the middle dimension, one for every `step`, each of a size; tiles come first."""
    outer, line, inner = x.strides
    shape, strides = (tiles, x.shape[0], size, x.shape[2]), (step * line, outer, line, inner)
    return view(x[:, first:], shape, strides)


def _band(xp: Any, kernel: Any, offsets: Sequence[int], windows: int, stride: int) -> Any:
    """A row for each window, with the kernel where its elements lie, and zeros elsewhere."""
    last = max(offsets)
    known = xp.concat([xp.zeros((1,), dtype=kernel.dtype), kernel])
    numbers = dict(zip(offsets, range(1, len(offsets) + 1)))
    row = xp.take(known, xp.asarray([numbers.get(at, 0) for at in range(-1, last + 2)]), axis=0)
    rows = xp.reshape(xp.arange(windows) * stride, (-1, 1))
    at = xp.clip(xp.arange(stride * (windows - 1) + last + 1) - rows + 1, 0, last + 2)
    return xp.reshape(xp.take(row, xp.reshape(at, (-1,)), axis=0), at.shape)


def _product(xp: Any, x: Any, axis: int, band: Any) -> Any:
    """The band times what lies along an axis, for all that lies beside it."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if prod(after) == 1:
        flat = xp.reshape(x, (prod(before), x.shape[axis]))
        made = xp.matmul(flat, xp.permute_dims(band, (1, 0)))
    else:
        made = xp.matmul(band, xp.reshape(x, (prod(before), x.shape[axis], prod(after))))
    return xp.reshape(made, (*before, band.shape[0], *after))


def _added(
    xp: Any, x: Any, axis: int, kernel: Any, offsets: Sequence[int], count: int, stride: int
) -> Any:
    """The same, one element of all windows after the other."""
    total = None
    for number, at in enumerate(offsets):
        part = x[along(axis, slice(at, at + stride * (count - 1) + 1, stride))] * kernel[number]
        total = part if total is None else total + part
    return total
