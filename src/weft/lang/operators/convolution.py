"""Convolutions: windows one offset after the other, each a product of matrices.

    convolution   b c 2*y0+u0-1, f c u0, + f -> b f y0   sum: c u0

A convolution of one channel along one dimension is a product with a band matrix instead
(`slide_along`): the matrix has the kernel along its diagonal and computes many windows at once.
Most of its elements are zeros, which costs nothing for kernels of up to some hundred elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import dtype_name, together
from weft.lang.kernel import Attributes, Block, along
from weft.lang.notation import Notation, Row, digits, plain
from weft.lang.operator import define
from weft.lang.operators.contract import multiplied, with_bias
from weft.lang.operators.window import Window, place, stepped, windows_of
from weft.lang.signature import Signature
from weft.values import Point

JOINED_CHANNELS = 256
"""Offsets are joined until a product of matrices has this many channels."""

BAND_WINDOWS = 128
"""The windows computed by one product with a band matrix (at least the kernel's size)."""

BAND_TILE = 16
"""The same in NumPy, where overlapping tiles cost no copies."""

CACHED_ROWS = 256
"""The lines along the last dimension that fit in a cache."""


def sign_convolution(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a convolution with strides, padding, dilations and groups; a third operand is a bias.

    >>> numbers = dict(
    ...     input_batch_dimension=0, input_feature_dimension=1, input_spatial_dimensions=(2,),
    ...     kernel_output_feature_dimension=0, kernel_input_feature_dimension=1,
    ...     kernel_spatial_dimensions=(2,), output_batch_dimension=0,
    ...     output_feature_dimension=1, output_spatial_dimensions=(2,),
    ... )
    >>> strided = {**numbers, "window_strides": (2,), "padding": (1, 1)}
    >>> print(sign_convolution([(2, 3, 16), (8, 3, 3)], strided).notation)
    b c 2*y0+u0-1, f c u0 -> b f y0  sum: c u0
    >>> print(sign_convolution([(2, 3, 16), (8, 3, 3), (8,)], strided).notation)
    b c 2*y0+u0-1, f c u0, + f -> b f y0  sum: c u0
    """
    if len(shapes) not in (2, 3):
        raise WeftError(f"a convolution takes an input, a kernel and a bias, got {len(shapes)}")
    return _Line(shapes, attributes).signature()


class _Line:
    """Builds the signature of a convolution."""

    def __init__(self, shapes: Sequence[Point], attributes: Attributes) -> None:
        self.shapes, self.attributes = shapes, attributes
        kernel = [shapes[1][dim] for dim in attributes["kernel_spatial_dimensions"]]
        self.windows = windows_of(kernel, attributes, "lhs_dilation", "rhs_dilation")
        self.groups = attributes.get("feature_group_count", 1)
        self.batch_groups = attributes.get("batch_group_count", 1)
        features = shapes[1][attributes["kernel_output_feature_dimension"]]
        self._check(features)
        self.sizes = {
            "g": self.groups * self.batch_groups,
            "b": shapes[0][attributes["input_batch_dimension"]] // self.batch_groups,
            "c": shapes[1][attributes["kernel_input_feature_dimension"]],
            "f": features // (self.groups * self.batch_groups),
        }

    def _check(self, features: int) -> None:
        """Refuse channels, batches, features and a bias that do not fit together."""
        image, kernel, *bias = self.shapes
        channels = image[self.attributes["input_feature_dimension"]]
        each = kernel[self.attributes["kernel_input_feature_dimension"]]
        if channels != each * self.groups:
            raise WeftError(
                f"an input of {channels} channels and a kernel for {each * self.groups}: "
                f"{list(image)} and {list(kernel)}"
                + (f" in {self.groups} groups" if self.groups > 1 else "")
            )
        batch = image[self.attributes["input_batch_dimension"]]
        for what, size, groups in (
            ("features", features, self.groups * self.batch_groups),
            ("batches", batch, self.batch_groups),
        ):
            if size % groups != 0:
                raise WeftError(f"{size} {what} are not a multiple of {groups} groups")
        if bias and bias[0] != (features,):
            raise WeftError(f"a bias of shape {list(bias[0])} for {features} features")

    def signature(self) -> Signature:
        features = self._tensor("kernel", "input_feature", "output_feature")
        features(0, *plain("c"))
        features(1, self._grouped("f", self.groups * self.batch_groups))
        image = self._tensor("input", "batch", "feature")
        image(0, self._grouped("b", self.batch_groups))
        image(1, self._grouped("c", self.groups))
        result = self._tensor("output", "batch", "feature")
        result(0, *plain("b"))
        result(1, self._grouped("f", self.groups * self.batch_groups))
        for number, window in enumerate(self.windows):
            y, u = f"y{number}", f"u{number}"
            features(2 + number, *plain(u))
            result(2 + number, *plain(y))
            image(2 + number, self._slide(number, window, y, u))
        reduced = dict.fromkeys(("c", *(f"u{n}" for n in range(len(self.windows)))), "sum")
        bias = [[self._grouped("f", self.groups * self.batch_groups)]] * (len(self.shapes) - 2)
        line = Notation(
            [image.rows, features.rows, *bias], [result.rows], reduced, once=[2][: len(bias)]
        )
        return Signature(line, self.shapes, {d: self.sizes[d] for d in line.dims})

    def _tensor(self, tensor: str, first: str, second: str) -> _TensorRows:
        at = self.attributes
        ends = [at[f"{tensor}_{role}_dimension"] for role in (first, second)]
        return _TensorRows([*ends, *at[f"{tensor}_spatial_dimensions"]])

    def _grouped(self, name: str, groups: int) -> Row:
        """Return the row of a dimension of groups; a single feature is not a factor."""
        if groups > 1:
            return digits([("g", groups), (name, self.sizes[name])][: 1 + (self.sizes[name] > 1)])
        return Row() if name == "f" and self.sizes[name] == 1 else Row(((name, 1),))

    def _slide(self, number: int, window: Window, y: str, u: str) -> Row:
        """Return the row of one spatial dimension of the input."""
        size = self.shapes[0][self.attributes["input_spatial_dimensions"][number]]
        self.sizes[y], self.sizes[u] = window.count(size), window.size
        reversal = self.attributes.get("window_reversal", ())
        step, offset = window.dilation, -window.low
        if reversal and reversal[number]:
            step, offset = -step, offset + window.extent - 1
        return Row(((y, window.stride), (u, step)), offset, divisor=window.base)


class _TensorRows:
    """The rows of a tensor, set one by one."""

    def __init__(self, axes: Sequence[int]) -> None:
        self.axes = axes
        self.rows = [Row()] * len(axes)

    def __call__(self, number: int, row: Row) -> None:
        self.rows[self.axes[number]] = row


def convolution(block: Block, x: Any, kernel: Any, *bias: Any) -> Any:
    """Convolve with strides, padding, dilations, groups and reversed windows; add a bias."""
    result = _Convolution(block).run(x, kernel)
    for each in bias:
        feature = block.attributes["output_feature_dimension"]
        result = result + block.xp.reshape(each, (-1, *(1,) * (result.ndim - feature - 1)))
    return result


class _Convolution:
    """One box of a convolution: groups, batch, windows, elements of a window, channels, features.

    The input is transposed to (groups, batch, positions, channels), the kernel to
    (groups, elements and channels, features).
    """

    def __init__(self, block: Block) -> None:
        self.block, self.xp, at = block, block.xp, block.attributes
        self.spatial = range(len(at["input_spatial_dimensions"]))
        kernel = [block.signature.operand_shapes[1][dim] for dim in at["kernel_spatial_dimensions"]]
        self.sliding = windows_of(kernel, at, "lhs_dilation", "rhs_dilation")
        self.windows = [self._span(f"y{n}") for n in self.spatial]
        self.elements = [self._span(f"u{n}") for n in self.spatial]
        self.offsets = [self._offsets(n) for n in self.spatial]
        self.of_features = at.get("feature_group_count", 1) > 1
        self.of_batch = at.get("batch_group_count", 1) > 1
        self.groups, self.batch = self._span("g"), self._span("b")
        self.channels, self.features = self._span("c"), self._span("f")

    def _span(self, name: str) -> range:
        return self.block.span(name) if name in self.block.signature.sizes else range(1)

    def _offsets(self, number: int) -> list[int]:
        """Return the offsets of the elements of a window that are in the box."""
        reversal = self.block.attributes.get("window_reversal", ())
        window, elements = self.sliding[number], self.elements[number]
        last = window.size - 1
        is_reversed = bool(reversal) and reversal[number]
        return [window.dilation * (last - u if is_reversed else u) for u in elements]

    def run(self, x: Any, kernel: Any) -> Any:
        xp = self.xp
        x, kernel = self._input(x), self._kernel(kernel)
        windows = tuple(map(len, self.windows))
        if self._is_banded(x):
            return self._result(self._banded(x, kernel), windows)
        shape = (len(self.groups), len(self.batch) * prod(windows), len(self.features))
        total = None
        for rows, patches in self._patches(x):
            flat = xp.reshape(patches, (*shape[:2], patches.shape[-1]))
            part = xp.matmul(flat, kernel[:, rows, :])
            total = part if total is None else total + part
        if total is None:
            total = xp.zeros(shape, dtype=x.dtype)
        return self._result(total, windows)

    def _is_banded(self, x: Any) -> bool:
        """Whether one channel has windows along one dimension, in a dtype that BLAS multiplies."""
        sizes = (len(self.groups), len(self.channels), len(self.features))
        long = [n for n in self.spatial if len(self.elements[n]) > 1]
        is_large = dtype_name(x.dtype) in ("float32", "float64")
        return sizes == (1, 1, 1) and len(long) == 1 and is_large and prod(x.shape) > 0

    def _banded(self, x: Any, kernel: Any) -> Any:
        """Compute the windows along the one dimension that they slide along."""
        for n, elements in enumerate(self.elements):
            if len(elements) == 1:
                x = x[stepped(2 + n, 0, len(self.windows[n]), self.sliding[n].stride)]
        (axis,) = (n for n in self.spatial if len(self.elements[n]) > 1)
        offsets, window = self._from_first()[axis], self.sliding[axis]
        numbers = self.xp.reshape(kernel, (-1,))
        count = len(self.windows[axis])
        return slide_along(self.xp, x, 2 + axis, numbers, offsets, count, window.stride)

    def _patches(self, x: Any) -> Iterator[tuple[slice, Any]]:
        """Yield some elements of all windows, with the rows of the kernel to multiply by."""
        count = len(self.channels)
        every = list(product(*self._from_first()))
        many = max(1, JOINED_CHANNELS // max(1, count))
        for start in range(0, len(every), many):
            run = [self._strided(x, offset) for offset in every[start : start + many]]
            rows = slice(start * count, (start + len(run)) * count)
            yield rows, run[0] if len(run) == 1 else self.xp.concat(run, axis=-1)

    def _from_first(self) -> list[list[int]]:
        return [[at - min(offsets) for at in offsets] for offsets in self.offsets]

    def _strided(self, x: Any, offset: Point) -> Any:
        for n, at in enumerate(offset):
            x = x[stepped(2 + n, at, len(self.windows[n]), self.sliding[n].stride)]
        return x

    def _input(self, x: Any) -> Any:
        """Return the input with zeros for its padding and between dilated elements."""
        xp, at, have = self.xp, self.block.attributes, self.block.operands[0]
        batch, feature = at["input_batch_dimension"], at["input_feature_dimension"]
        spatial = at["input_spatial_dimensions"]
        x = xp.permute_dims(x, (batch, *spatial, feature))
        groups = self.groups if self.of_batch else None
        x = self._digits(x, 0, groups, "b", have.start[batch])
        groups = self.groups if self.of_features else None
        x = self._digits(x, x.ndim - 1, groups, "c", have.start[feature])
        last = x.ndim - 2
        x = xp.permute_dims(x, (0, last, *range(1, last), last + 1))
        x = xp.reshape(x, (len(self.groups), *x.shape[2:]))
        for n, dim in enumerate(spatial):
            window = self.sliding[n]
            positions = window.positions(self.windows[n], self.offsets[n])
            x = place(xp, x, 2 + n, have.start[dim], positions, window.base, 0)
        return x

    def _kernel(self, kernel: Any) -> Any:
        xp, at, have = self.xp, self.block.attributes, self.block.operands[1]
        feature = at["kernel_output_feature_dimension"]
        order = (*at["kernel_spatial_dimensions"], at["kernel_input_feature_dimension"], feature)
        kernel = xp.permute_dims(kernel, order)
        groups = self.groups if self.of_features or self.of_batch else None
        kernel = self._digits(kernel, kernel.ndim - 1, groups, "f", have.start[feature])
        last = kernel.ndim - 2
        kernel = xp.permute_dims(kernel, (last, *range(last), last + 1))
        inner = prod(map(len, self.elements)) * len(self.channels)
        return xp.reshape(kernel, (len(self.groups), inner, len(self.features)))

    def _digits(self, x: Any, axis: int, groups: range | None, name: str, start: int) -> Any:
        """Split an axis into groups and their members, those in the box."""
        inner, size = self._span(name), self.block.signature.sizes.get(name, 1)
        first = [0] if groups is None else [size * g for g in groups]
        indices = [g + at - start for g in first for at in inner]
        x = _take(self.xp, x, axis, indices)
        return self.xp.reshape(x, (*x.shape[:axis], len(first), len(inner), *x.shape[axis + 1 :]))

    def _result(self, x: Any, windows: Point) -> Any:
        """Return the result with its dimensions in order."""
        xp, at = self.xp, self.block.attributes
        x = xp.reshape(x, (len(self.groups), len(self.batch), *windows, len(self.features)))
        last = x.ndim - 1
        x = xp.permute_dims(x, (1, 0, last, *range(2, last)))
        x = xp.reshape(x, (len(self.batch), len(self.groups) * len(self.features), *windows))
        order = (
            at["output_batch_dimension"],
            at["output_feature_dimension"],
            *at["output_spatial_dimensions"],
        )
        return xp.permute_dims(x, tuple(order.index(dim) for dim in range(x.ndim)))


def _take(xp: Any, x: Any, axis: int, indices: list[int]) -> Any:
    """Return some elements along an axis: a slice where they are consecutive."""
    run = range(indices[0], indices[-1] + 1) if indices else range(0)
    if indices == list(run):
        return x[along(axis, slice(run.start, run.stop))]
    return xp.take(x, xp.asarray(indices), axis=axis)


def slide_along(
    xp: Any, x: Any, axis: int, kernel: Any, offsets: Sequence[int], count: int, stride: int
) -> Any:
    """Return the weighted sums of `count` windows along an axis, as products with a band matrix.

    Window `i` begins at element `stride * i` and has elements at the offsets. NaN and infinity
    affect only the windows that contain them.

    >>> import numpy
    >>> slide_along(numpy, numpy.arange(6.0), 0, numpy.asarray([1.0, -1.0]), [0, 2], 4, 1)
    array([-2., -2., -2., -2.])
    """
    if not bool(xp.all(xp.isfinite(x))):  # the zeros of the band would spread it
        return _sum_offsets(xp, x, axis, kernel, offsets, count, stride)
    strides = getattr(getattr(xp, "lib", None), "stride_tricks", None)
    if strides is not None and hasattr(x, "strides"):
        return _tiled(xp, strides.as_strided, x, axis, kernel, offsets, count, stride)
    many = max(BAND_WINDOWS, len(offsets))
    parts = []
    for first in range(0, count, many):
        some = min(many, count - first)
        extent = stride * (some - 1) + max(offsets) + 1
        piece = x[along(axis, slice(stride * first, stride * first + extent))]
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
    """Do the same in NumPy, where tiles may overlap in memory: small tiles waste fewer zeros."""
    before, after, size = x.shape[:axis], x.shape[axis + 1 :], min(BAND_TILE, count)
    x = np.reshape(x, (prod(before), x.shape[axis], prod(after)))
    result = np.empty((x.shape[0], count, x.shape[2]), dtype=np.result_type(x, kernel))
    band = _band(np, kernel, offsets, size, stride)
    # The last tile ends with the last window, and may overlap the one before.
    for first, tiles in ((0, count // size), (count - size, int(count % size > 0))):
        if tiles:
            seen = _overlapping(view, x, stride * first, tiles, stride * size, band.shape[1])
            into = _overlapping(view, result, first, tiles, size, size)
            if x.shape[2] > 1:
                np.matmul(band, seen, out=into)
                continue
            for row in range(0, x.shape[0], CACHED_ROWS):
                rows = (slice(None), slice(row, row + CACHED_ROWS), slice(None), 0)
                np.matmul(seen[rows], band.T, out=into[rows])
    return np.reshape(result, (*before, count, *after))


def _overlapping(view: Any, x: Any, first: int, tiles: int, step: int, size: int) -> Any:
    """Return overlapping tiles of the middle dimension, one every `step`; tiles come first."""
    outer, line, inner = x.strides
    shape, strides = (tiles, x.shape[0], size, x.shape[2]), (step * line, outer, line, inner)
    return view(x[:, first:], shape, strides)


def _band(xp: Any, kernel: Any, offsets: Sequence[int], windows: int, stride: int) -> Any:
    """Return a row for each window: the kernel at its elements, zeros elsewhere."""
    last = max(offsets)
    known = xp.concat([xp.zeros((1,), dtype=kernel.dtype), kernel])
    numbers = dict(zip(offsets, range(1, len(offsets) + 1)))
    row = xp.take(known, xp.asarray([numbers.get(at, 0) for at in range(-1, last + 2)]), axis=0)
    rows = xp.reshape(xp.arange(windows) * stride, (-1, 1))
    at = xp.clip(xp.arange(stride * (windows - 1) + last + 1) - rows + 1, 0, last + 2)
    return xp.reshape(xp.take(row, xp.reshape(at, (-1,)), axis=0), at.shape)


def _product(xp: Any, x: Any, axis: int, band: Any) -> Any:
    """Multiply the band with one axis of an array."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if prod(after) == 1:
        flat = xp.reshape(x, (prod(before), x.shape[axis]))
        result = xp.matmul(flat, xp.permute_dims(band, (1, 0)))
    else:
        result = xp.matmul(band, xp.reshape(x, (prod(before), x.shape[axis], prod(after))))
    return xp.reshape(result, (*before, band.shape[0], *after))


def _sum_offsets(
    xp: Any, x: Any, axis: int, kernel: Any, offsets: Sequence[int], count: int, stride: int
) -> Any:
    """Do the same by adding one element of all windows after the other."""
    total = None
    for number, at in enumerate(offsets):
        part = x[along(axis, slice(at, at + stride * (count - 1) + 1, stride))] * kernel[number]
        total = part if total is None else total + part
    return total


def _workspace(block: Block) -> int:
    """Count the padded input, the joined patches of all windows, and two sums of products."""
    spans = dict(zip(block.signature.sizes, block.box.shape))
    elements = [n for name, n in spans.items() if name.startswith("u")]
    inputs, results = prod(block.image(0).shape), sum(prod(b.shape) for b in block.results)
    channels = spans.get("c", 1)
    is_band = spans.get("g", 1) == channels == spans.get("f", 1) == 1
    if is_band and sum(n > 1 for n in elements) == 1:
        padded = inputs if block.image(0) != block.operands[0] else 0
        return padded + inputs // 3 + results
    joined = min(prod(elements), max(1, JOINED_CHANNELS // max(1, channels)))
    return 2 * inputs + results // max(1, spans.get("f", 1)) * channels * joined + 2 * results


_NUMBERING = """
    input_batch_dimension input_feature_dimension input_spatial_dimensions
    kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions
    output_batch_dimension output_feature_dimension output_spatial_dimensions
"""
define(
    "convolution",
    sign_convolution,
    convolution,
    keeps=with_bias,
    flops=2,
    dtypes=multiplied,
    conversion=together,
    accumulates="always",
    attributes=f"""{_NUMBERING} window_strides padding lhs_dilation rhs_dilation window_reversal
            feature_group_count batch_group_count""",
    workspace=_workspace,
)
