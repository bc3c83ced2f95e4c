"""The kernel of convolutions: window offsets one after the other, each a product of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from weft.lang.block import Block
from weft.lang.dtype import dtype_name
from weft.lang.kernels.band import slide_along
from weft.lang.kernels.moves import along
from weft.lang.kernels.window import Slide, lay, slides, stepped
from weft.values import Point

_INNER = 256
"""As many channels as make a product of matrices worth while: offsets are joined up to there."""


def convolution(block: Block, x: Any, kernel: Any, *bias: Any) -> Any:
    """A convolution with strides, padding, dilations, groups and reversed windows; and a bias."""
    made = _Convolution(block).run(x, kernel)
    for each in bias:
        feature = block.attributes["output_feature_dimension"]
        made = made + block.xp.reshape(each, (-1, *(1,) * (made.ndim - feature - 1)))
    return made


class _Convolution:
    """One box of a convolution: groups, batch, windows, elements of a window, channels, features.

    The input is brought into the order (groups, batch, places, channels), the kernel into
    (groups, elements and channels, features).
    """

    def __init__(self, block: Block) -> None:
        self.block, self.xp, at = block, block.xp, block.attributes
        self.spatial = range(len(at["input_spatial_dimensions"]))
        kernel = [block.signature.operand_shapes[1][dim] for dim in at["kernel_spatial_dimensions"]]
        self.slides = slides(kernel, at, "lhs_dilation", "rhs_dilation")
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
        """Where the elements of a window lie, for those in the box."""
        reversal = self.block.attributes.get("window_reversal", ())
        how, elements = self.slides[number], self.elements[number]
        last = how.size - 1
        is_turned = bool(reversal) and reversal[number]
        return [how.dilation * (last - u if is_turned else u) for u in elements]

    def run(self, x: Any, kernel: Any) -> Any:
        xp = self.xp
        x, kernel = self._input(x), self._kernel(kernel)
        windows = tuple(map(len, self.windows))
        if self._is_line(x):
            return self._result(self._line(x, kernel), windows)
        made = (len(self.groups), len(self.batch) * prod(windows), len(self.features))
        total = None
        for rows, patches in self._patches(x):
            flat = xp.reshape(patches, (*made[:2], patches.shape[-1]))
            part = xp.matmul(flat, kernel[:, rows, :])
            total = part if total is None else total + part
        if total is None:
            total = xp.zeros(made, dtype=x.dtype)
        return self._result(total, windows)

    def _is_line(self, x: Any) -> bool:
        """Whether one channel has windows along one dimension, of numbers that BLAS multiplies."""
        sizes = (len(self.groups), len(self.channels), len(self.features))
        long = [n for n in self.spatial if len(self.elements[n]) > 1]
        is_large = dtype_name(x.dtype) in ("float32", "float64")
        return sizes == (1, 1, 1) and len(long) == 1 and is_large and prod(x.shape) > 0

    def _line(self, x: Any, kernel: Any) -> Any:
        """The windows, made along the one dimension that they slide along."""
        for n, elements in enumerate(self.elements):
            if len(elements) == 1:
                x = x[stepped(2 + n, 0, len(self.windows[n]), self.slides[n].stride)]
        (axis,) = (n for n in self.spatial if len(self.elements[n]) > 1)
        offsets, how = self._from_first()[axis], self.slides[axis]
        numbers = self.xp.reshape(kernel, (-1,))
        count = len(self.windows[axis])
        return slide_along(self.xp, x, 2 + axis, numbers, offsets, count, how.stride)

    def _patches(self, x: Any) -> Iterator[tuple[slice, Any]]:
        """Some elements of all windows, and which rows of the kernel they meet."""
        count = len(self.channels)
        every = list(product(*self._from_first()))
        many = max(1, _INNER // max(1, count))
        for start in range(0, len(every), many):
            run = [self._strided(x, offset) for offset in every[start : start + many]]
            rows = slice(start * count, (start + len(run)) * count)
            yield rows, run[0] if len(run) == 1 else self.xp.concat(run, axis=-1)

    def _from_first(self) -> list[list[int]]:
        return [[at - min(offsets) for at in offsets] for offsets in self.offsets]

    def _strided(self, x: Any, offset: Point) -> Any:
        for n, at in enumerate(offset):
            x = x[stepped(2 + n, at, len(self.windows[n]), self.slides[n].stride)]
        return x

    def _input(self, x: Any) -> Any:
        """The input, its padding and its holes filled with zeros."""
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
            how = self.slides[n]
            places = _places(how, self.windows[n], self.offsets[n])
            x = lay(xp, x, 2 + n, have.start[dim], places, how.base, 0)
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
        """An axis of groups and what is in each, taken apart: those that are in the box."""
        inner, size = self._span(name), self.block.signature.sizes.get(name, 1)
        first = [0] if groups is None else [size * g for g in groups]
        places = [g + at - start for g in first for at in inner]
        x = _picked(self.xp, x, axis, places)
        return self.xp.reshape(x, (*x.shape[:axis], len(first), len(inner), *x.shape[axis + 1 :]))

    def _result(self, x: Any, windows: Point) -> Any:
        """The result's dimensions in their places."""
        xp, at = self.xp, self.block.attributes
        x = xp.reshape(x, (len(self.groups), len(self.batch), *windows, len(self.features)))
        last = x.ndim - 1
        x = xp.permute_dims(x, (1, 0, last, *range(2, last)))
        x = xp.reshape(x, (len(self.batch), len(self.groups) * len(self.features), *windows))
        places = (
            at["output_batch_dimension"],
            at["output_feature_dimension"],
            *at["output_spatial_dimensions"],
        )
        return xp.permute_dims(x, tuple(places.index(dim) for dim in range(x.ndim)))


def _places(how: Slide, windows: range, offsets: Sequence[int]) -> range:
    return how.places(windows, offsets) if windows and offsets else range(0)


def _picked(xp: Any, x: Any, axis: int, places: list[int]) -> Any:
    """Some elements along an axis: a slice where they lie side by side."""
    run = range(places[0], places[-1] + 1) if places else range(0)
    if places == list(run):
        return x[along(axis, slice(run.start, run.stop))]
    return xp.take(x, xp.asarray(places), axis=axis)
