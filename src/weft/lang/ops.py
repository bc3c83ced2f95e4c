"""`weft.ops`: the operators as functions, with NumPy's names and arguments.

An operator that needs only its operands is a function under its own name, so that an operator that
a user adds is a function here at once.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from math import prod as _prod
from typing import Any

from weft.errors import WeftError
from weft.lang.arithmetic import (
    AxisLike,
    apply,
    apply_all,
    as_operand,
    normalize_axis,
    reduce_along,
    shift_right,
)
from weft.lang.composed import *  # noqa: F403 - they are functions of this module
from weft.lang.dtype import as_dtype, components, dtype_name, is_scalar, mean_dtype
from weft.lang.indexing import *  # noqa: F403
from weft.lang.monoid import Monoid, largest
from weft.lang.operator import OPERATORS
from weft.lang.random import *  # noqa: F403
from weft.lang.size import as_sizes
from weft.values import Point

_NAMES = """
    bitwise_and=and bitwise_invert=not bitwise_left_shift=shift_left bitwise_or=or bitwise_xor=xor
    cos=cosine erfinv=erf_inv exp=exponential expm1=exponential_minus_one fmod=remainder
    isfinite=is_finite isinf=is_inf log1p=log_plus_one negative=negate nextafter=next_after
    pow=power remainder=mod round=round_nearest_even sigmoid=logistic sin=sine where=select
"""
_NUMPY_NAMES = dict(word.split("=") for word in _NAMES.split())
"""NumPy's names for operators that StableHLO spells out, or uses for something else."""

_COMPARED = {
    "equal": "EQ",
    "greater": "GT",
    "greater_equal": "GE",
    "less": "LT",
    "less_equal": "LE",
    "not_equal": "NE",
}
_LOGICAL = {"logical_and": "and", "logical_not": "not", "logical_or": "or", "logical_xor": "xor"}


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function that applies an operator."""
    if name in _COMPARED:
        return partial(_apply, "compare", comparison_direction=_COMPARED[name])
    if name in _LOGICAL:
        return partial(_apply_to_flags, _LOGICAL[name])
    operator = _NUMPY_NAMES.get(name, name)
    if name.startswith("__") or operator not in OPERATORS:
        known = {*_NUMPY_NAMES, *_COMPARED, *_LOGICAL, *OPERATORS, *globals()}
        close = get_close_matches(name, sorted(known), 3, 0.75)
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        raise AttributeError(f"there is no operator {name} in weft.ops{hint}")
    return partial(_apply, operator)


def _apply(name: str, /, *operands: Any, **attributes: Any) -> Any:
    results = apply_all(name, *operands, **attributes)
    return results[0] if len(results) == 1 else results


def _apply_to_flags(name: str, /, *operands: Any) -> Any:
    return apply(name, *(bool(x) if is_scalar(x) else astype(x, "bool") for x in operands))


def astype(x: Any, dtype: Any) -> Any:
    """Return the same numbers in another dtype: a name, or a dtype of NumPy, torch or JAX."""
    return apply("convert", x, dtype=as_dtype(dtype))


def isnan(x: Any) -> Any:
    """Return whether elements are NaN."""
    return apply("compare", x, x, comparison_direction="NE")


def bitwise_right_shift(x: Any, by: Any) -> Any:
    """Shift bits down; those of negative integers are filled with ones."""
    return shift_right(x, by)


def _reduction(name: str) -> Callable[..., Any]:
    def function(x: Any, axis: AxisLike = None, *, keepdims: bool = False) -> Any:
        return reduce_along(f"{name}_dim", x, axis, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the {name} along axes, all of them by default."
    return function


def _sum(name: str) -> Callable[..., Any]:
    def function(
        x: Any, axis: AxisLike = None, dtype: Any = None, *, keepdims: bool = False
    ) -> Any:
        return reduce_along(f"{name}_dim", x, axis, keepdims, dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Return the {name} along axes, all of them by default.

    Sums and products of integers have 64 bits, and means are float64, unless a dtype is given.
    """
    return function


sum, mean, prod = _sum("sum"), _sum("mean"), _sum("prod")  # noqa: A001
max, min = _reduction("max"), _reduction("min")  # noqa: A001
all, any, logsumexp = _reduction("all"), _reduction("any"), _reduction("logsumexp")  # noqa: A001


def aggregate(
    x: Any, monoid: Monoid | str, axis: AxisLike = None, *, keepdims: bool = False
) -> Any:
    """Return the elements along axes combined by a monoid, all of them by default.

    With several components the result is one value that has them all: see `component`.
    """
    name = monoid if isinstance(monoid, str) else monoid.name
    dims = normalize_axis(axis, len(x.shape))
    return apply("aggregate", x, dimensions=dims, keepdims=keepdims, monoid=name)


def component(x: Any, name: str) -> Any:
    """Return one component of the elements that a monoid made."""
    found = {each.name: each for each in components(dtype_name(x.dtype))}
    if name not in found:
        known = f"it has {', '.join(found)}" if found else "it has none"
        raise WeftError(f"{x.dtype} has no component {name}", hint=known)
    return apply("component", x, name=name, result_shape=(*x.shape, *found[name].shape))


def _place(name: str) -> Callable[..., Any]:
    def function(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        return component(aggregate(x, name, axis, keepdims=keepdims), "index")

    most = "largest" if name == "argmax" else "smallest"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Return where the first of the {most} elements is along an axis.

    Without an axis it is the place in the flattened array, as in NumPy.
    """
    return function


argmax, argmin = _place("argmax"), _place("argmin")


def var(
    x: Any,
    axis: AxisLike = None,
    dtype: Any = None,
    *,
    correction: float = 0,
    keepdims: bool = False,
) -> Any:
    """Return the variance along axes: the mean of squared differences from the mean.

    The sum of squares is divided by the number of elements less the `correction`.
    """
    x = x if dtype is None else astype(x, dtype)
    moments = aggregate(x, "moments", axis, keepdims=keepdims)
    size = _prod(x.shape[n] for n in normalize_axis(axis, len(x.shape)))
    spread = component(moments, "squares") / builtins.max(size - correction, 0)
    wanted = mean_dtype(dtype_name(x.dtype))
    return spread if spread.dtype == wanted else astype(spread, wanted)


def std(
    x: Any,
    axis: AxisLike = None,
    dtype: Any = None,
    *,
    correction: float = 0,
    keepdims: bool = False,
) -> Any:
    """Return the standard deviation along axes: the root of the variance."""
    return apply("sqrt", var(x, axis, dtype, correction=correction, keepdims=keepdims))


def reshape(x: Any, shape: int | Sequence[int]) -> Any:
    """Return the same elements in another shape; one size may be -1."""
    return x.reshape((shape,) if isinstance(shape, int) else tuple(shape))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Return the dimensions in another order, reversed by default."""
    return x.transpose(*(axes or ()))


permute_dims = permute = transpose


def expand_dims(x: Any, axis: int | Sequence[int] = 0) -> Any:
    """Return the array with new dimensions of size 1 at the given axes of the result.

    >>> from weft import trace
    >>> print(trace(lambda x: expand_dims(x, (0, -1)), (8, 6)).values["reshape"])
    reshape: float32[1, 8, 6, 1]
    """
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    rank = len(x.shape) + len(given)
    new, sizes = normalize_axis(given, rank), iter(x.shape)
    return x.reshape(tuple(1 if n in new else next(sizes) for n in range(rank)))


def squeeze(x: Any, axis: AxisLike = None) -> Any:
    """Return the array without its dimensions of size 1, or without the given ones."""
    shape = tuple(x.shape)
    axes = [n for n, size in enumerate(shape) if size == 1]
    gone = axes if axis is None else normalize_axis(axis, len(shape))
    for each in gone:
        if shape[each] != 1:
            raise WeftError(f"axis {each} of {list(shape)} has size {shape[each]}, expected 1")
    return x.reshape(tuple(size for n, size in enumerate(shape) if n not in gone))


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays side by side along an axis."""
    if not len(arrays):
        raise WeftError("there are no arrays to concatenate")
    return apply("concatenate", *arrays, dimension=_one_axis(arrays[0], axis))


concat = cat = concatenate


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays of one shape along a new axis."""
    return concatenate([expand_dims(x, axis) for x in arrays], axis)


def flip(x: Any, axis: AxisLike = None) -> Any:
    """Return the array reversed along axes, all of them by default."""
    return apply("reverse", x, dimensions=normalize_axis(axis, len(x.shape)))


def clip(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002
    """Return the array limited to a range; either end may be None."""
    x = x if min is None else apply("maximum", x, min)
    return x if max is None else apply("minimum", x, max)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """Return the array broadcast to a shape."""
    wanted, rank = as_sizes(shape), len(x.shape)
    tail = wanted[len(wanted) - rank :]
    if len(wanted) < rank or builtins.any(n not in (1, m) for n, m in zip(x.shape, tail)):
        raise WeftError(f"{list(x.shape)} cannot be broadcast to {list(wanted)}")
    dims = tuple(range(len(wanted) - rank, len(wanted)))
    return apply("broadcast_in_dim", x, broadcast_dimensions=dims, result_shape=wanted)


expand = broadcast_to


def _one_axis(x: Any, axis: int) -> int:
    return normalize_axis(axis, len(x.shape))[0]


def softmax(x: Any, axis: int = -1) -> Any:
    """Return exponentials that sum to one along an axis, which is not cut."""
    return apply("softmax", x, dimension=_one_axis(x, axis))


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Return the logarithm of the softmax."""
    return apply("log_softmax", x, dimension=_one_axis(x, axis))


def cumsum(x: Any, axis: int | None = None, dtype: Any = None, *, reverse: bool = False) -> Any:
    """Return running sums along an axis, of the flattened array without one, as NumPy does.

    Those of integers have 64 bits, unless a dtype is given. `reverse` begins at the end.
    """
    if axis is None:
        x, axis = x if len(x.shape) == 1 else x.reshape(-1), 0
    wanted = None if dtype is None else as_dtype(dtype)
    return apply("cumsum", x, dimension=_one_axis(x, axis), reverse=reverse, dtype=wanted)


cumulative_sum = cumsum


def sort(x: Any, axis: int = -1) -> Any:
    """Return the elements in ascending order along an axis."""
    return apply("sort", x, dimension=_one_axis(x, axis))


def topk(x: Any, k: int) -> tuple[Any, Any]:
    """Return the largest `k` elements along the last axis, and their indices.

    The axis may be cut: each part has its own `k` largest, and these are combined.
    """
    if not x.shape or not 0 < k <= x.shape[-1]:
        values, indices = apply_all("topk", x, k=k)
        return values, indices
    found = aggregate(x, largest(k), -1)
    return component(found, "values"), component(found, "indices")


def quantile(x: Any, q: float | Sequence[float], axis: AxisLike = None) -> Any:
    """Return quantiles along an axis, between neighbours by linear interpolation, as NumPy does.

    For several `q` the first axis of the result counts them. Without an axis, the array is
    flattened. Where an element is NaN, so is the result.

    >>> from weft import Tensor
    >>> quantile(Tensor([4.0, 1.0, 3.0, 2.0]), [0.5, 1]).numpy()
    array([2.5, 4. ])
    """
    if axis is None:
        x, axis = x if len(x.shape) == 1 else x.reshape(-1), 0
    (place,) = normalize_axis(axis, len(x.shape))
    size, every = x.shape[place], (q,) if isinstance(q, int | float) else tuple(q)
    if not size or not builtins.all(0 <= each <= 1 for each in every):
        raise WeftError(f"expected elements, and quantiles from 0 to 1: {list(x.shape)}, {q}")
    wanted = mean_dtype(dtype_name(x.dtype))
    ordered = sort(x if x.dtype == wanted else astype(x, wanted), place)

    def at(n: int) -> Any:
        return ordered[(*(slice(None),) * place, n)]

    last, found = at(size - 1), list[Any]()
    for each in every:
        low = int(each * (size - 1))
        part = each * (size - 1) - low
        one, two = at(low), at(builtins.min(low + 1, size - 1))
        found.append(
            apply("select", isnan(last), last, one if not part else one + (two - one) * part)
        )
    return found[0] if isinstance(q, int | float) else stack(found)


def median(x: Any, axis: AxisLike = None) -> Any:
    """Return the median along an axis."""
    return quantile(x, 0.5, axis)


def convolve(
    x: Any,
    kernel: Any,
    strides: int | Sequence[int] = (),
    padding: int | Sequence[int] | Sequence[tuple[int, int]] = (),
    dilation: int | Sequence[int] = (),
    groups: int = 1,
    bias: Any = None,
    input_dilation: int | Sequence[int] = (),
) -> Any:
    """Return the convolution of [batch, channels, …] by [features, channels, …], of any rank.

    Padding is one number for each dimension, or a pair of low and high; one number alone is for
    all of them. A bias is one number for each feature. With `input_dilation`, elements are that
    far apart, with zeros between them, as in a transposed convolution.
    """
    count = len(x.shape) - 2
    if count < 0 or len(kernel.shape) != count + 2:
        raise WeftError(
            f"expected [batch, channels, ...] and [features, channels, ...] of one rank, got "
            f"{list(x.shape)} and {list(kernel.shape)}"
        )
    spatial = tuple(range(2, count + 2))
    edges = [
        (p, p) if isinstance(p, int) else tuple(p) for p in _each("padding", padding, count, 0)
    ]
    numbers: dict[str, int | Point] = {}
    for tensor, first, second in (
        ("input", "batch", "feature"),
        ("kernel", "output_feature", "input_feature"),
        ("output", "batch", "feature"),
    ):
        numbers |= {f"{tensor}_{first}_dimension": 0, f"{tensor}_{second}_dimension": 1}
        numbers[f"{tensor}_spatial_dimensions"] = spatial
    return apply(
        "convolution",
        x,
        kernel,
        *(() if bias is None else (bias,)),
        **numbers,
        window_strides=_each("strides", strides, count, 1),
        padding=tuple(edge for pair in edges for edge in pair),
        lhs_dilation=_each("input_dilation", input_dilation, count, 1),
        rhs_dilation=_each("dilation", dilation, count, 1),
        feature_group_count=groups,
        batch_group_count=1,
    )


def _each(name: str, given: Any, count: int, otherwise: int) -> tuple[Any, ...]:
    """Return a number for each of the dimensions of a window; one may be given for all."""
    if isinstance(given, str):
        raise WeftError(f"{name} is a number, or one for each dimension, got {given!r}")
    found = (given,) * count if isinstance(given, int) else tuple(given) or (otherwise,) * count
    if len(found) != count:
        raise WeftError(f"{name} has {len(found)} numbers for {count} dimensions: {given}")
    return found


def correlate(x: Any, weights: Any, axis: int = -1) -> Any:
    """Return weighted sums of neighbours along an axis: a blur, a difference; zero beyond the ends.

    >>> from weft import trace
    >>> [a.operator for a in trace(lambda x, w: correlate(x, w, 0), (8, 6), (3,)).applications]
    ['reshape', 'reshape', 'convolution', 'reshape']
    """
    weights = as_operand(weights)
    if len(weights.shape) != 1:
        raise WeftError(f"expected weights of rank 1, got {list(weights.shape)}")
    shape, (size,) = tuple(x.shape), weights.shape
    axis = _one_axis(x, axis)
    window = [size if n == axis else 1 for n in range(len(shape))]
    before = (size - 1) // 2
    padding = [(before, size - 1 - before) if n == axis else (0, 0) for n in range(len(shape))]
    kernel = reshape(weights, (1, 1, *window))
    return reshape(convolve(reshape(x, (1, 1, *shape)), kernel, padding=padding), shape)


def polynomial(
    x: Any,
    coefficients: Sequence[float],
    low: float | None = None,
    high: float | None = None,
    **attributes: Any,
) -> Any:
    """Return a polynomial of each element: coefficients of its powers, the constant first.

    With `low` and `high` they are those of the Chebyshev polynomials on that range. Further
    attributes, such as a `name`, are passed on.
    """
    given = tuple(map(float, coefficients))
    return apply("polynomial", x, coefficients=given, low=low, high=high, **attributes)


def gelu(x: Any, exact: bool = False) -> Any:
    """Return the Gaussian error linear unit, by its usual approximation, or exactly."""
    return apply("gelu", x, exact=True) if exact else apply("gelu", x)
