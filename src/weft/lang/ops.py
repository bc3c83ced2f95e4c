"""The operators of the library as functions of tensors: `weft.ops`.

Those that need no more than their operands go by their names in the library, so that an operator
that a user adds is a function here at once.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.errors import WeftError
from weft.lang.arithmetic import Dims, apply, apply_all, as_dims, reduce_along, shift_right
from weft.lang.dtype import as_dtype, is_scalar
from weft.lang.operator import OPERATORS
from weft.values import Point, as_shape

_SHORT = {
    "bitwise_and": "and",
    "bitwise_invert": "not",
    "bitwise_left_shift": "shift_left",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "concat": "concatenate",
    "cos": "cosine",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "fmod": "remainder",
    "isfinite": "is_finite",
    "isinf": "is_inf",
    "log1p": "log_plus_one",
    "negative": "negate",
    "pow": "power",
    "remainder": "mod",
    "round": "round_nearest_even",
    "sigmoid": "logistic",
    "sin": "sine",
    "where": "select",
}
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
    """The function that applies an operator of the library."""
    if name in _COMPARED:
        return partial(_apply, "compare", comparison_direction=_COMPARED[name])
    if name in _LOGICAL:
        return partial(_apply_to_flags, _LOGICAL[name])
    found = _SHORT.get(name, name)
    if name.startswith("__") or found not in OPERATORS:
        raise AttributeError(f"there is no operator {name} in weft.ops")
    return partial(_apply, found)


def _apply(name: str, /, *operands: Any, **attributes: Any) -> Any:
    results = apply_all(name, *operands, **attributes)
    return results[0] if len(results) == 1 else results


def _apply_to_flags(name: str, /, *operands: Any) -> Any:
    return apply(name, *(bool(x) if is_scalar(x) else astype(x, "bool") for x in operands))


def astype(x: Any, dtype: Any) -> Any:
    """The same numbers in another dtype: a name, or a dtype of NumPy, torch or JAX."""
    return apply("convert", x, dtype=as_dtype(dtype))


def isnan(x: Any) -> Any:
    """Whether elements are not a number."""
    return apply("compare", x, x, comparison_direction="NE")


def bitwise_right_shift(x: Any, by: Any) -> Any:
    """The bits moved down; those of negative integers are filled up with ones."""
    return shift_right(x, by)


def einsum(equation: str, *operands: Any) -> Any:
    """A sum of products: `einsum("ij,jk->ik", a, b)`, or with names `"b m k, k n -> b m n"`."""
    return apply("einsum", *operands, equation=equation)


def _along(name: str) -> Callable[..., Any]:
    def function(x: Any, dims: Dims = None, keep: bool = False) -> Any:
        return reduce_along(f"{name}_dim", x, dims, keep)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {name} along dimensions, all of them unless given."
    return function


def _summed(name: str) -> Callable[..., Any]:
    def function(x: Any, dims: Dims = None, keep: bool = False, dtype: Any = None) -> Any:
        return reduce_along(f"{name}_dim", x, dims, keep, dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {name} along dimensions, all of them unless given.

    Sums and products of integers have 64 bits, and means are float64, unless a dtype is given.
    """
    return function


sum, mean, prod = _summed("sum"), _summed("mean"), _summed("prod")  # noqa: A001
max, min = _along("max"), _along("min")  # noqa: A001
all, any, logsumexp = _along("all"), _along("any"), _along("logsumexp")  # noqa: A001


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """The same elements in another shape; one size may be -1."""
    return x.reshape(tuple(shape))


def transpose(x: Any, order: Sequence[int] = ()) -> Any:
    """The dimensions in another order, reversed if none is given."""
    return x.transpose(*order)


def concatenate(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors side by side along a dimension."""
    (along,) = as_dims(dim, len(tensors[0].shape))
    return apply("concatenate", *tensors, dimension=along)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """A tensor repeated to a shape, as NumPy does."""
    wanted, rank = as_shape(shape), len(x.shape)
    tail = wanted[len(wanted) - rank :]
    if len(wanted) < rank or builtins.any(n not in (1, m) for n, m in zip(x.shape, tail)):
        raise WeftError(f"{list(x.shape)} cannot be repeated to {list(wanted)}")
    places = tuple(range(len(wanted) - rank, len(wanted)))
    return apply("broadcast_in_dim", x, broadcast_dimensions=places, result_shape=wanted)


def softmax(x: Any, dim: int = -1) -> Any:
    """Exponentials that sum to one along a dimension, which is seen whole."""
    return apply("softmax", x, dimension=as_dims(dim, len(x.shape))[0])


def log_softmax(x: Any, dim: int = -1) -> Any:
    """The logarithm of the softmax."""
    return apply("log_softmax", x, dimension=as_dims(dim, len(x.shape))[0])


def cumsum(x: Any, dim: int = -1, reverse: bool = False, dtype: Any = None) -> Any:
    """Running sums along a dimension; of integers they have 64 bits, unless a dtype is given."""
    along, wanted = as_dims(dim, len(x.shape))[0], None if dtype is None else as_dtype(dtype)
    return apply("cumsum", x, dimension=along, reverse=reverse, dtype=wanted)


def sort(x: Any, dim: int = -1) -> Any:
    """The elements in order along a dimension."""
    return apply("sort", x, dimension=as_dims(dim, len(x.shape))[0])


def topk(x: Any, k: int) -> tuple[Any, Any]:
    """The largest elements along the last dimension, and their places."""
    values, places = apply_all("topk", x, k=k)
    return values, places


def convolve(
    x: Any,
    kernel: Any,
    strides: Sequence[int] = (),
    padding: Sequence[int] | Sequence[tuple[int, int]] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    bias: Any = None,
) -> Any:
    """A convolution of [batch, channels, …] by [features, channels, …], any number of dimensions.

    Padding is one number for each dimension, or a pair of low and high. A bias is one number for
    each feature.
    """
    count = len(x.shape) - 2
    spatial, ones = tuple(range(2, count + 2)), (1,) * count
    edges = [(p, p) if isinstance(p, int) else tuple(p) for p in padding or (0,) * count]
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
        window_strides=tuple(strides) or ones,
        padding=tuple(edge for pair in edges for edge in pair),
        lhs_dilation=ones,
        rhs_dilation=tuple(dilation) or ones,
        feature_group_count=groups,
        batch_group_count=1,
    )


def correlate(x: Any, weights: Any, dim: int = -1) -> Any:
    """Weighted sums of neighbours along a dimension: a blur, a difference; zero beyond the ends.

    >>> from weft import trace
    >>> [a.operator for a in trace(lambda x, w: correlate(x, w, 0), (8, 6), (3,)).applications]
    ['reshape', 'reshape', 'convolution', 'reshape']
    """
    shape, (size,) = tuple(x.shape), weights.shape
    axis = range(len(shape))[dim]
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
    **said: Any,
) -> Any:
    """A polynomial of each element: coefficients of its powers, the constant first.

    With `low` and `high` they are those of Chebyshev's polynomials of that range. What else is
    said, such as a `name`, goes with it.
    """
    given = tuple(map(float, coefficients))
    return apply("polynomial", x, coefficients=given, low=low, high=high, **said)


def gelu(x: Any, exact: bool = False) -> Any:
    """The Gaussian error linear unit, by its usual approximation, or as it is."""
    return apply("gelu", x, exact=True) if exact else apply("gelu", x)
