"""The error function and its complement, to the last digits of the dtype, in NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import cos, erfc, exp, pi, sqrt
from math import erf as _erf
from typing import Any

_FAR = 30.0
"""Beyond it the complement is no number of any dtype but zero."""

_BEND = 3.75
"""Where `(x - bend) / (x + bend)` is 0: it takes [0, inf) to [-1, 1)."""


def erf_of(xp: Any, x: Any) -> Any:
    """The error function: a series for what is small, and 1 less the complement elsewhere."""
    if hasattr(xp, "erf"):
        return xp.erf(x)
    size = xp.abs(x)
    near = xp.minimum(size, xp.ones_like(x))
    series = x * _clenshaw(xp, 2 * near * near - 1, _small())
    return xp.where(size < 1, series, xp.sign(x) * (1 - _tail(xp, size)))


def erfc_of(xp: Any, x: Any) -> Any:
    """1 less the error function, with all its digits where that is next to nothing."""
    if hasattr(xp, "erfc"):
        return xp.erfc(x)
    tail = _tail(xp, xp.abs(x))
    return xp.where(x < 0, 2 - tail, tail)


def gelu_of(xp: Any, x: Any) -> Any:
    """The operand times the part of a normal distribution below it."""
    return 0.5 * x * erfc_of(xp, -0.7071067811865476 * x)


def _tail(xp: Any, x: Any) -> Any:
    """The complement of what is not negative: exp(-x²) times a function that bends little."""
    x = xp.minimum(x, xp.full_like(x, _FAR))
    return xp.exp(-x * x) * _clenshaw(xp, (x - _BEND) / (x + _BEND), _large())


@cache
def _small() -> tuple[float, ...]:
    """erf(x) / x on [0, 1], as a function of x²."""
    return _chebyshev(lambda t: _erf(sqrt((t + 1) / 2)) / sqrt((t + 1) / 2), 14)


@cache
def _large() -> tuple[float, ...]:
    """exp(x²) erfc(x) on [0, inf)."""
    return _chebyshev(lambda t: _scaled(_BEND * (1 + t) / (1 - t)), 30)


def _scaled(x: float) -> float:
    """exp(x²) erfc(x); where the product would lose digits, by the continued fraction."""
    if x < 2:
        return exp(x * x) * erfc(x)
    found = x
    for k in range(120, 0, -1):
        found = x + k / 2 / found
    return 1 / (sqrt(pi) * found)


def _chebyshev(function: Callable[[float], float], count: int) -> tuple[float, ...]:
    """The first coefficients of Chebyshev's polynomials, from the values at their zeros."""
    angles = [pi * (n + 0.5) / count for n in range(count)]
    values = [function(cos(angle)) for angle in angles]
    sums = [sum(v * cos(k * a) for v, a in zip(values, angles)) for k in range(count)]
    return tuple(s * (1 if k == 0 else 2) / count for k, s in enumerate(sums))


def _clenshaw(xp: Any, x: Any, coefficients: tuple[float, ...]) -> Any:
    one = two = xp.zeros_like(x)
    for c in coefficients[:0:-1]:
        one, two = 2 * x * one - two + c, one
    return x * one - two + coefficients[0]
