"""Operators that slide a window: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import as_quotients, for_kinds, like_all, together
from weft.lang.kernels import window as kernels
from weft.lang.kernels.convolve import convolution
from weft.lang.kernels.window import last_dims
from weft.lang.library.contract import multiplied, with_bias
from weft.lang.library.reduce import each_input
from weft.lang.library.rows import digits, numbered, plain, whole
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Operator
from weft.lang.signature import Signature
from weft.values import Point


class _Window(NamedTuple):
    """How a window slides along one dimension."""

    size: int
    stride: int
    low: int
    high: int
    base: int
    dilation: int

    @property
    def reach(self) -> int:
        """From its first element to its last."""
        return (self.size - 1) * self.dilation + 1

    @property
    def is_trivial(self) -> bool:
        return (self.size, *self[1:5]) == (1, 1, 0, 0, 1)

    def count(self, size: int) -> int:
        """How many windows there are along a dimension."""
        padded = self.low + max(0, (size - 1) * self.base + 1) + self.high
        return (padded - self.reach) // self.stride + 1 if padded >= self.reach else 0


def _windows(
    sizes: Sequence[int], attributes: Attributes, base: str, dilation: str
) -> list[_Window]:
    """The windows of an application, one for each dimension that they slide along."""
    ones = (1,) * len(sizes)
    strides = attributes.get("window_strides", ones)
    padding = attributes.get("padding", (0, 0) * len(sizes))
    bases, dilations = attributes.get(base, ones), attributes.get(dilation, ones)
    edges = zip(padding[::2], padding[1::2])
    return [
        _Window(size, stride, low, high, base, dilation)
        for size, stride, (low, high), base, dilation in zip(
            sizes, strides, edges, bases, dilations
        )
    ]


def _pool(name: str, window: _Window) -> Row:
    """The elements of one window, be it of one element."""
    if window.is_trivial:
        return Row(((name, 1),))
    return Row(((name, window.stride),), -window.low, window.reach, divisor=window.base)


def sign_reduce_window(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A window of each input for each element of its result.

    >>> pool = {"window_dimensions": (1, 4), "window_strides": (1, 4)}
    >>> print(sign_reduce_window([(8, 16), ()], pool))
    i0 4*i1+:4, +  -> i0 i1  {i0=8, i1=4}
    """
    count = len(shapes) // 2
    windows = _windows(
        attributes["window_dimensions"], attributes, "base_dilations", "window_dilations"
    )
    sizes = {f"i{dim}": w.count(n) for dim, (w, n) in enumerate(zip(windows, shapes[0]))}
    rows = [_pool(f"i{dim}", window) for dim, window in enumerate(windows)]
    operands = [rows] * count + [()] * count
    results = [numbered("i", len(rows))] * count
    return Signature(Notation(operands, results, once=range(count, 2 * count)), shapes, sizes)


def sign_select_and_scatter(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The operand and the result alike; the source is seen whole where windows are not single.

    >>> pool = {"window_dimensions": (1, 4), "window_strides": (1, 4)}
    >>> print(sign_select_and_scatter([(8, 16), (8, 4), ()], pool).notation)
    i0 i1-3+:7, i0 [s1],  -> i0 i1
    """
    windows = _windows(attributes["window_dimensions"], attributes, "", "")
    dims, sizes = numbered("i", len(windows)), {f"i{d}": n for d, n in enumerate(shapes[0])}
    operand, source = list(dims), list(dims)
    for dim, window in enumerate(windows):
        if not window.is_trivial:
            reach = max(2, window.reach)
            operand[dim] = Row(((f"i{dim}", 1),), 1 - reach, 2 * reach - 1)
            source[dim] = whole(f"s{dim}")
    return Signature(Notation([operand, source, ()], [dims]), shapes, sizes)


class _Convolution:
    """A convolution on its way to a signature."""

    def __init__(self, shapes: Sequence[Point], attributes: Attributes) -> None:
        self.shapes, self.attributes = shapes, attributes
        kernel = [shapes[1][dim] for dim in attributes["kernel_spatial_dimensions"]]
        self.windows = _windows(kernel, attributes, "lhs_dilation", "rhs_dilation")
        self.groups = attributes.get("feature_group_count", 1)
        self.batch_groups = attributes.get("batch_group_count", 1)
        features = shapes[1][attributes["kernel_output_feature_dimension"]]
        self.sizes = {
            "g": self.groups * self.batch_groups,
            "b": shapes[0][attributes["input_batch_dimension"]] // self.batch_groups,
            "c": shapes[1][attributes["kernel_input_feature_dimension"]],
            "f": features // (self.groups * self.batch_groups),
        }

    def signature(self) -> Signature:
        features = self._tensor("kernel", "input_feature", "output_feature")
        features(0, *plain("c"))
        features(1, self._grouped("f", self.groups * self.batch_groups))
        image = self._tensor("input", "batch", "feature")
        image(0, self._grouped("b", self.batch_groups))
        image(1, self._grouped("c", self.groups))
        made = self._tensor("output", "batch", "feature")
        made(0, *plain("b"))
        made(1, self._grouped("f", self.groups * self.batch_groups))
        for number, window in enumerate(self.windows):
            y, u = f"y{number}", f"u{number}"
            features(2 + number, *plain(u))
            made(2 + number, *plain(y))
            image(2 + number, self._slide(number, window, y, u))
        reduced = dict.fromkeys(("c", *(f"u{n}" for n in range(len(self.windows)))), "sum")
        bias = [[self._grouped("f", self.groups * self.batch_groups)]] * (len(self.shapes) - 2)
        line = Notation(
            [image.rows, features.rows, *bias], [made.rows], reduced, once=[2][: len(bias)]
        )
        return Signature(line, self.shapes, {d: self.sizes[d] for d in line.dims})

    def _tensor(self, tensor: str, first: str, second: str) -> _Places:
        given = self.attributes
        ends = [given[f"{tensor}_{what}_dimension"] for what in (first, second)]
        return _Places([*ends, *given[f"{tensor}_spatial_dimensions"]])

    def _grouped(self, name: str, groups: int) -> Row:
        """A dimension of groups and what is in each; a single feature is no factor."""
        if groups > 1:
            return digits([("g", groups), (name, self.sizes[name])][: 1 + (self.sizes[name] > 1)])
        return Row() if name == "f" and self.sizes[name] == 1 else Row(((name, 1),))

    def _slide(self, number: int, window: _Window, y: str, u: str) -> Row:
        """The row of one spatial dimension of the input."""
        size = self.shapes[0][self.attributes["input_spatial_dimensions"][number]]
        self.sizes[y], self.sizes[u] = window.count(size), window.size
        reversal = self.attributes.get("window_reversal", ())
        step, offset = window.dilation, -window.low
        if reversal and reversal[number]:
            step, offset = -step, offset + window.reach - 1
        return Row(((y, window.stride), (u, step)), offset, divisor=window.base)


class _Places:
    """The rows of a tensor, put in their places one by one."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self.rows = [Row()] * len(places)

    def __call__(self, number: int, row: Row) -> None:
        self.rows[self.places[number]] = row


def sign_convolution(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A convolution with strides, padding, dilations and groups; a third operand is a bias.

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
    return _Convolution(shapes, attributes).signature()


def sign_pool(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Windows over the last dimensions: `window`, `strides` and `padding` (low and high of each).

    >>> print(sign_pool([(8, 16)], {"window": (4,)}))
    i0 4*i1+:4 -> i0 i1  {i0=8, i1=4}
    """
    (shape,), window = shapes, attributes["window"]
    if not 0 < len(window) <= len(shape):
        raise WeftError(f"a window {tuple(window)} does not slide over {list(shape)}")
    _check_each("window", window, len(window), 1)
    _check_each("strides", attributes.get("strides") or window, len(window), 1)
    _check_each("padding", attributes.get("padding") or (0, 0) * len(window), 2 * len(window), 0)
    line = sign_reduce_window([shape, ()], last_dims(len(shape), attributes))
    return Signature(
        Notation(line.notation.operands[:1], line.notation.results), shapes, line.sizes
    )


def _check_each(what: str, given: Sequence[int], count: int, least: int) -> None:
    if len(given) != count or any(n < least for n in given):
        raise WeftError(f"{what} {tuple(given)} must be {count} numbers of at least {least}")


def _in_window(line: Signature, attributes: Attributes) -> float:
    """One operation for each element of a window."""
    return float(prod(attributes.get("window") or attributes["window_dimensions"]))


def _of_source(line: Signature, attributes: Attributes) -> float:
    """For each window a comparison and a sum for each of its elements."""
    total = 2 * prod(line.operand_shapes[1]) * prod(attributes["window_dimensions"])
    return total / max(1, line.space.size)


OPERATORS.add(
    Operator(
        "reduce_window",
        sign_reduce_window,
        kernels.reduce_window,
        flops=_in_window,
        dtypes=each_input,
        accumulates="always",
    )
)
OPERATORS.add(
    Operator(
        "select_and_scatter",
        sign_select_and_scatter,
        kernels.select_and_scatter,
        flops=_of_source,
        dtypes=like_all,
        accumulates="always",
    )
)
OPERATORS.add(
    Operator(
        "convolution",
        sign_convolution,
        convolution,
        keeps=with_bias,
        flops=2,
        dtypes=multiplied,
        conversion=together,
        accumulates="always",
    )
)
OPERATORS.add(
    Operator(
        "avg_pool",
        sign_pool,
        kernels.pooling("sum", mean=True),
        keeps={"sum": [(0,)]},
        flops=_in_window,
        dtypes=for_kinds("float complex"),
        conversion=as_quotients,
        accumulates="always",
    )
)
OPERATORS.add(
    Operator(
        "max_pool",
        sign_pool,
        kernels.pooling("max"),
        keeps={"max": [(0,)]},
        flops=_in_window,
        dtypes=for_kinds("bool int uint float"),
    )
)
