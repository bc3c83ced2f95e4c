"""`ops.random_*` and `ops.dropout`: random numbers from keys, as `jax.random` has them.

A key is an array, uint32[2], or the integer that it is made from. The same key gives the same
numbers, so each draw takes a key of its own, from `random_split` or `random_fold_in`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, inf, sqrt
from operator import index
from typing import Any

from weft.errors import WeftError
from weft.lang.arithmetic import apply, as_operand, create, normalize_axis
from weft.lang.dtype import as_dtype, bounds, kind
from weft.lang.indexing import take
from weft.lang.size import as_sizes
from weft.values import Point

__all__ = [
    "dropout", "random_bernoulli", "random_bits", "random_exponential", "random_fold_in",
    "random_gumbel", "random_integers", "random_key", "random_normal", "random_permutation",
    "random_split", "random_truncated_normal", "random_uniform",
]  # fmt: skip

MOST_INTEGERS = 1 << 47
"""The largest range of random integers."""


def random_key(seed: int) -> Any:
    """Return the key of a seed from 0 to 2**64 - 1: its high and low 32 bits.

    >>> random_key(7).numpy()
    array([0, 7], dtype=uint32)
    """
    number = index(seed)
    if not 0 <= number < 1 << 64:
        raise WeftError(f"the seed of a random key is {number}, expected 0 to 2**64 - 1")
    words = number >> 32, number & 0xFFFFFFFF
    return create("constant", value=words, dtype="uint32", result_shape=(2,))


def random_split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """Return `num` new keys as an array, [num, 2].

    >>> one, two = random_split(random_key(7))
    """
    return apply("random_split", _key(key), result_shape=_shape(num))


def random_fold_in(key: Any, data: Any) -> Any:
    """Return a new key for an integer, such as the number of a step, or one for each in an array.

    Integers count modulo 2**32.
    """
    number = data if hasattr(data, "shape") else index(data) & 0xFFFFFFFF
    return apply("random_fold_in", _key(key), number)


def random_bits(
    key: Any, shape: int | Sequence[int] = (), dtype: Any = "uint32", *, generator: str = "threefry"
) -> Any:
    """Return integers whose bits are all random.

    >>> random_bits(7, 3).numpy()
    array([2895194379, 4185947648, 1300703658], dtype=uint32)
    """
    return _draw("random_bits", key, shape, dtype, generator)


def random_uniform(
    key: Any,
    shape: int | Sequence[int] = (),
    dtype: Any = "float32",
    low: Any = 0.0,
    high: Any = 1.0,
    *,
    generator: str = "threefry",
) -> Any:
    """Return floats from `low` to below `high`, which may be arrays.

    >>> random_uniform(7, 3).numpy()
    array([0.6740899 , 0.9746169 , 0.30284357], dtype=float32)
    """
    x = _draw("random_uniform", key, shape, dtype, generator)
    if _is_number(low, 0) and _is_number(high, 1):
        return x
    return apply("maximum", x * (high - low) + low, low)


def random_normal(
    key: Any,
    shape: int | Sequence[int] = (),
    dtype: Any = "float32",
    mean: Any = 0.0,
    std: Any = 1.0,
    *,
    generator: str = "threefry",
) -> Any:
    """Return floats of the normal distribution; mean and standard deviation may be arrays."""
    x = _draw("random_normal", key, shape, dtype, generator)
    x = x if _is_number(std, 1) else x * std
    return x if _is_number(mean, 0) else x + mean


def random_truncated_normal(
    key: Any,
    lower: float = -inf,
    upper: float = inf,
    shape: int | Sequence[int] = (),
    dtype: Any = "float32",
    *,
    generator: str = "threefry",
) -> Any:
    """Return floats of the normal distribution between two numbers."""
    if not lower < upper:
        raise WeftError(f"expected lower < upper, got {lower} and {upper}")
    low, high = erf(lower / sqrt(2)), erf(upper / sqrt(2))
    x = random_uniform(key, shape, dtype, low, high, generator=generator)
    return apply("clamp", lower, apply("erf_inv", x) * sqrt(2), upper)


def random_exponential(
    key: Any,
    shape: int | Sequence[int] = (),
    dtype: Any = "float32",
    *,
    generator: str = "threefry",
) -> Any:
    """Return floats of the exponential distribution, whose mean is 1."""
    return _draw("random_exponential", key, shape, dtype, generator)


def random_gumbel(
    key: Any,
    shape: int | Sequence[int] = (),
    dtype: Any = "float32",
    *,
    generator: str = "threefry",
) -> Any:
    """Return floats of Gumbel's distribution: added to logits, the largest is a random choice."""
    return _draw("random_gumbel", key, shape, dtype, generator)


def random_integers(
    key: Any,
    shape: int | Sequence[int],
    low: int,
    high: int,
    dtype: Any = "int64",
    *,
    generator: str = "threefry",
) -> Any:
    """Return integers from `low` to below `high`.

    >>> random_integers(7, 5, 0, 10).numpy()
    array([7, 9, 6, 9, 1])
    """
    name, low, high = as_dtype(dtype), index(low), index(high)
    if kind(name) not in ("int", "uint"):
        raise WeftError(f"random integers cannot be {name}", hint="expected an integer dtype")
    least, most = bounds(name)
    if not (least <= low < high <= most + 1):
        raise WeftError(
            f"random integers of {name} from {low} to below {high}: expected low < high, within "
            f"{least} to {most + 1}"
        )
    if high - low > MOST_INTEGERS or high > 1 << 63:
        raise WeftError(
            f"random integers from {low} to below {high}: expected a range of at most 2**47",
            hint="random_bits draws integers of all sizes",
        )
    return _draw("random_integers", key, shape, name, generator, low=low, high=high)


def random_bernoulli(
    key: Any, p: Any = 0.5, shape: int | Sequence[int] | None = None, *, generator: str = "threefry"
) -> Any:
    """Return booleans that are true with probability `p`, a number or an array."""
    if shape is None:
        shape = tuple(getattr(p, "shape", ()))
    return random_uniform(key, shape, generator=generator) < p


def random_permutation(key: Any, x: Any, axis: int = 0, *, generator: str = "threefry") -> Any:
    """Return an array in random order along an axis, or the integers below `x` in random order.

    >>> random_permutation(7, 5).numpy()
    array([4, 2, 3, 0, 1])
    """
    if not hasattr(x, "shape"):
        return _draw("random_permutation", key, index(x), "int64", generator)
    x = as_operand(x)
    (axis,) = normalize_axis(axis, len(x.shape))
    return take(x, random_permutation(key, x.shape[axis], generator=generator), axis)


def dropout(x: Any, rate: float = 0.5, key: Any = None, *, generator: str = "threefry") -> Any:
    """Return the array with elements set to zero at a rate, and the others divided by 1 - rate.

    The gradient of the result with respect to `x` is the same function, with the same key: the
    mask depends on the key and the shape alone.

    >>> from weft import Tensor
    >>> dropout(Tensor.ones((6,)), 0.5, key=7).numpy()
    array([0., 0., 2., 2., 0., 0.], dtype=float32)
    """
    return apply("dropout", as_operand(x), _key(key), rate=float(rate), generator=_named(generator))


def _draw(
    name: str, key: Any, shape: int | Sequence[int], dtype: Any, generator: str, **more: Any
) -> Any:
    given = {"result_shape": _shape(shape), "dtype": as_dtype(dtype), **more}
    return apply(name, _key(key), **given, generator=_named(generator))


def _shape(shape: int | Sequence[int]) -> Point:
    return as_sizes((shape,) if isinstance(shape, int) else shape)


def _named(generator: str) -> str | None:
    """Return the attribute of a generator: none for the default."""
    if generator not in ("threefry", "philox"):
        raise WeftError(f"there is no generator {generator!r}", hint="'threefry' or 'philox'")
    return None if generator == "threefry" else generator


def _key(key: Any) -> Any:
    if key is None:
        raise WeftError(
            "random numbers need a key", hint="key=ops.random_key(seed), or key=seed, an integer"
        )
    if isinstance(key, bool | float | complex | str):
        raise WeftError(f"a random key is an integer or uint32[2], got {key!r}")
    return as_operand(key) if hasattr(key, "shape") and key.shape != () else random_key(key)


def _is_number(x: Any, number: float) -> bool:
    return isinstance(x, int | float) and x == number
