"""ATen's random numbers, by Weft's generator: each draw folds its number into one random key."""

from __future__ import annotations

from typing import Any

from weft.interop.aten import TABLE, AtenNode, converts
from weft.lang import Symbol, ops


@converts("native_dropout")
def native_dropout(node: AtenNode, x: Symbol, rate: float, train: bool | None = True) -> Any:
    """Set elements to zero at a rate, and scale the others."""
    if train is False or rate == 0:
        return x, None
    return ops.dropout(x, rate, node.random_key()), None


@converts("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(node: AtenNode, *args: Any, **_: Any) -> Any:
    """Return integers from a number, or 0, to below another."""
    numbers = [n for n in args if isinstance(n, int)]
    low, high = (0, *numbers)[-2:] if len(numbers) == 1 else numbers
    dtype = node.dtype if "int" in node.dtype else "int64"
    return node.cast(ops.random_integers(node.random_key(), node.shape, low, high, dtype))


def _key(node: AtenNode) -> dict[str, Any]:
    """Return a new key, and the shape and dtype of the result."""
    return {"key": node.random_key(), "shape": node.shape, "dtype": node.dtype}


TABLE |= {
    "bernoulli.p": lambda node, x, p=0.5, **_: node.cast(
        ops.random_bernoulli(node.random_key(), float(p), node.shape)
    ),
    "rand": lambda node, *_, **__: ops.random_uniform(**_key(node)),
    "rand_like": lambda node, *_, **__: ops.random_uniform(**_key(node)),
    "randn": lambda node, *_, **__: ops.random_normal(**_key(node)),
    "randn_like": lambda node, *_, **__: ops.random_normal(**_key(node)),
    "uniform": lambda node, x, low=0.0, high=1.0, **_: ops.random_uniform(
        **_key(node), low=float(low), high=float(high)
    ),
    "normal": lambda node, mean=0.0, std=1.0, *_, **__: ops.random_normal(
        **_key(node), mean=mean, std=std
    ),
    "normal_functional": lambda node, x, mean=0.0, std=1.0, **_: ops.random_normal(
        **_key(node), mean=mean, std=std
    ),
    "exponential": lambda node, x, rate=1.0, **_: (
        ops.random_exponential(**_key(node)) / float(rate)
    ),
    "randperm": lambda node, size, **_: node.cast(ops.random_permutation(node.random_key(), size)),
}
for _name in ("empty", "empty_permuted"):  # elements that may be any: zeros
    TABLE[_name] = lambda node, *_, **__: node.constant(node.cast(0), node.shape)
