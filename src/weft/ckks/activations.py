"""Activations as polynomials: a least-squares fit on a stated range, and how far off it is.

Ciphertexts can be added and multiplied, so what a network applies to every element must be a
polynomial. It is good on its range only: a value outside is refused before anything is encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any, TypeAlias

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import ArrayLike, NDArray

from weft.errors import WeftError
from weft.lang.operators import pointwise

Function: TypeAlias = Callable[[NDArray[np.float64]], Any]
"""A function of all elements of an array."""

NODES = 4096
"""Points of a fit; the nodes of Chebyshev crowd at the ends, where polynomials swing most."""

NAMED: dict[str, Function] = {
    "gelu": lambda x: pointwise.gelu(np, x),
    "relu": lambda x: pointwise.relu(np, x),
    "silu": lambda x: pointwise.silu(np, x),
    "square": lambda x: x * x,
}
"""The functions that go by a name."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A polynomial that stands for a function on a range.

    >>> relu = fit("relu", degree=2, low=-4, high=4)
    >>> relu
    Activation(relu, degree 2 on [-4, 4], error 0.424)
    >>> print(relu(np.array([-2.0, 0.0, 2.0])).round(3))
    [-0.151  0.424  1.849]
    """

    name: str
    coefficients: tuple[float, ...]
    """Of the Chebyshev polynomials of the range, which it brings to [-1, 1]."""
    low: float
    high: float
    error: float = nan
    """The largest distance from the function on the range, where it is known."""

    def __post_init__(self) -> None:
        _check_range(self.name, self.low, self.high)
        if not self.coefficients or not all(map(isfinite, self.coefficients)):
            raise WeftError(f"{self.name} has the coefficients {list(self.coefficients)}")

    @property
    def degree(self) -> int:
        """The number of its last coefficient that is not zero."""
        return max((n for n, c in enumerate(self.coefficients) if c), default=0)

    @property
    def power(self) -> tuple[float, ...]:
        """Its coefficients for the powers of the value itself, the constant first.

        >>> square(-3, 5).power
        (0.0, 0.0, 1.0)
        """
        found = self._series.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1]).coef
        return tuple(float(c) for c in _without_dust(np.asarray(found, np.float64)))

    @property
    def attributes(self) -> dict[str, Any]:
        """What the operator `polynomial` of the language takes."""
        return {
            "coefficients": self.coefficients,
            "low": self.low,
            "high": self.high,
            "name": self.name,
            **({} if isnan(self.error) else {"error": self.error}),
        }

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Activation:
        """The activation of an application of `polynomial`.

        >>> Activation.of(square(-3, 5).attributes) == square(-3, 5)
        True
        """
        name = str(attributes.get("name", "polynomial"))
        low, high = attributes.get("low"), attributes.get("high")
        if low is None or high is None:
            raise WeftError(f"{name} has no range", hint="say low= and high=, or fit it")
        coefficients = tuple(map(float, attributes["coefficients"]))
        return cls(name, coefficients, float(low), float(high), attributes.get("error", nan))

    @property
    def _series(self) -> Chebyshev:
        return Chebyshev(self.coefficients, domain=[self.low, self.high])

    def __call__(self, values: ArrayLike) -> NDArray[np.float64]:
        """The polynomial of every value, which need not lie in the range."""
        return np.asarray(self._series(np.asarray(values, np.float64)))

    def check(self, values: ArrayLike, layer: str = "") -> None:
        """Refuse values outside of the range, with the name of the layer.

        >>> square(-3, 5).check([1.0, 5.5], "stem.relu")
        Traceback (most recent call last):
        weft.errors.WeftError: stem.relu: the value 5.5 is outside of [-3, 5], where square fits
        hint: 1 of 2 values are outside; fit it on [-3, 5.5]
        """
        given = np.asarray(values, np.float64)
        outside = ~((given >= self.low) & (given <= self.high))  # what is no number is outside, too
        if not outside.any():
            return
        wrong = given[outside]
        worst = float(wrong[np.argmax(np.maximum(self.low - wrong, wrong - self.high))])
        message = (
            f"{layer or self.name}: the value {worst:.6g} is outside of "
            f"[{self.low:g}, {self.high:g}], where {self.name} fits"
        )
        known = given[np.isfinite(given)]
        low, high = known.min(initial=self.low), known.max(initial=self.high)
        raise WeftError(
            message,
            hint=f"{wrong.size} of {given.size} values are outside; fit it on [{low:g}, {high:g}]",
        )

    def __repr__(self) -> str:
        where = f"[{self.low:g}, {self.high:g}]"
        return f"Activation({self.name}, degree {self.degree} on {where}, error {self.error:.3g})"


def square(low: float, high: float) -> Activation:
    """The square: one product, and no error.

    >>> square(-1, 1).coefficients
    (0.5, 0.0, 0.5)
    """
    low, high = float(low), float(high)
    _check_range("square", low, high)
    half, middle = (high - low) / 2, (high + low) / 2
    bent = half * half / 2
    return Activation("square", (middle**2 + bent, 2 * half * middle, bent), low, high, 0.0)


def fit(
    function: str | Function, degree: int, low: float, high: float, name: str | None = None
) -> Activation:
    """The polynomial of a degree that is nearest to a function on a range.

    Nearest by least squares with the weight of Chebyshev, which keeps the largest error near the
    smallest possible. `relu`, `gelu`, `silu` and `square` go by their names; any function of an
    array will do.

    >>> fit("gelu", 6, -4, 4)
    Activation(gelu, degree 6 on [-4, 4], error 0.0395)
    >>> fit(np.tanh, 5, -2, 2, "tanh")
    Activation(tanh, degree 5 on [-2, 2], error 0.0128)
    """
    name, function = _named(function, name)
    low, high = float(low), float(high)
    _check_range(name, low, high)
    if not 0 <= degree < NODES:
        raise WeftError(f"{name} cannot be of degree {degree}: from 0 to {NODES - 1}")
    angles = np.pi * (np.arange(NODES) + 0.5) / NODES
    at = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    values = np.asarray(function(at), np.float64)
    if values.shape != at.shape or not np.isfinite(values).all():
        raise WeftError(f"{name} is not a number at every point of [{low}, {high}]")
    found = np.cos(np.arange(degree + 1)[:, None] * angles) @ values * (2 / NODES)
    found[0] /= 2
    coefficients = tuple(float(c) for c in _without_dust(found))
    series = Chebyshev(coefficients, domain=[low, high])
    error = _largest(lambda x: np.abs(series(x) - function(x)), low, high)
    return Activation(name, coefficients, low, high, error)


def _named(function: str | Function, name: str | None) -> tuple[str, Function]:
    """A function and what to call it."""
    if not isinstance(function, str):
        return name or str(getattr(function, "__name__", "function")), function
    if function not in NAMED:
        raise WeftError(f"there is no activation {function}", hint=f"there are {', '.join(NAMED)}")
    return name or function, NAMED[function]


def _check_range(name: str, low: float, high: float) -> None:
    if not (isfinite(low) and isfinite(high) and low < high):
        raise WeftError(f"{name} needs a range from low to high, got [{low}, {high}]")


def _without_dust(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients with zero for what rounding left: an even function has no odd terms."""
    least = 1e-14 * float(np.abs(coefficients).max())
    return np.where(np.abs(coefficients) <= least, 0.0, coefficients)


def _largest(function: Callable[[NDArray[np.float64]], Any], low: float, high: float) -> float:
    """The largest value on a range: on a fine grid, and on finer ones around the largest."""
    best, start, stop = 0.0, low, high
    for _ in range(4):
        at = np.linspace(start, stop, 8193)
        values = np.asarray(function(at))
        place = int(values.argmax())
        best = max(best, float(values[place]))
        start, stop = float(at[max(0, place - 1)]), float(at[min(8192, place + 1)])
    return best
