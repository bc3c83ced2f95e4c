"""ATen's random numbers, by Weft's generator: each draw folds its number into one random key."""

from __future__ import annotations

from typing import Any

from weft.interop.aten import AtenNode, converts
from weft.lang import Symbol, ops


@converts("native_dropout")
def native_dropout(node: AtenNode, x: Symbol, rate: float, train: bool | None = True) -> Any:
    """Set elements to zero at a rate, and scale the others."""
    if train is False or rate == 0:
        return x, None
    return ops.dropout(x, rate, node.random_key()), None


@converts("dropout")
def dropout(node: AtenNode, x: Symbol, rate: float, train: bool) -> Any:
    """Set elements to zero at a rate, and scale the others."""
    return native_dropout(node, x, rate, train)[0]


@converts("bernoulli.p")
def bernoulli(node: AtenNode, x: Symbol, p: float = 0.5, **_: Any) -> Any:
    """Return ones with a probability, and zeros."""
    return node.cast(ops.random_bernoulli(node.random_key(), float(p), node.shape))


@converts("rand", "rand_like")
def rand(node: AtenNode, *_: Any, **__: Any) -> Any:
    """Return floats from 0 to below 1."""
    return ops.random_uniform(node.random_key(), node.shape, node.dtype)


@converts("randn", "randn_like")
def randn(node: AtenNode, *_: Any, **__: Any) -> Any:
    """Return floats of the normal distribution."""
    return ops.random_normal(node.random_key(), node.shape, node.dtype)


@converts("uniform")
def uniform(node: AtenNode, x: Symbol, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    """Return floats between two numbers."""
    return ops.random_uniform(node.random_key(), node.shape, node.dtype, float(low), float(high))


@converts("normal")
def normal(node: AtenNode, mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> Any:
    """Return floats of the normal distribution; mean and deviation may be tensors."""
    return ops.random_normal(node.random_key(), node.shape, node.dtype, mean, std)


@converts("normal_functional")
def normal_like(node: AtenNode, x: Symbol, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> Any:
    """Return floats of the normal distribution in the shape of a tensor."""
    return normal(node, mean, std)


@converts("exponential")
def exponential(node: AtenNode, x: Symbol, rate: float = 1.0, **_: Any) -> Any:
    """Return floats of the exponential distribution."""
    result = ops.random_exponential(node.random_key(), node.shape, node.dtype)
    return result if rate == 1 else result / float(rate)


@converts("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(node: AtenNode, *args: Any, **_: Any) -> Any:
    """Return integers from a number, or 0, to below another."""
    numbers = [n for n in args if isinstance(n, int)]
    low, high = (0, *numbers)[-2:] if len(numbers) == 1 else numbers
    dtype = node.dtype if "int" in node.dtype else "int64"
    return node.cast(ops.random_integers(node.random_key(), node.shape, low, high, dtype))


@converts("randperm")
def randperm(node: AtenNode, size: int, **_: Any) -> Any:
    """Return the integers below a number in random order."""
    return node.cast(ops.random_permutation(node.random_key(), size))


@converts("empty", "empty_like", "empty_permuted")
def empty(node: AtenNode, *_: Any, **__: Any) -> Any:
    """Return zeros: the elements may be any."""
    return node.constant(node.cast(0), node.shape)
