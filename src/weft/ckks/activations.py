"""Activations as polynomials: a least-squares fit on a stated range, and its largest error.

Ciphertexts can only be added and multiplied, so the activations of a network must be polynomials. A
fit is good on its range only: a value outside is refused before anything is encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import ArrayLike, NDArray

from weft.errors import WeftError
from weft.lang.operators import pointwise

Function: TypeAlias = Callable[[NDArray[np.float64]], Any]
"""A function of all elements of an array."""

NODES = 4096
"""Points of a fit: Chebyshev nodes, which are dense at the ends, where polynomials swing most."""

NAMED: dict[str, Function] = {
    "gelu": lambda x: pointwise.gelu(np, x),
    "relu": lambda x: pointwise.relu(np, x),
    "silu": lambda x: pointwise.silu(np, x),
    "square": lambda x: x * x,
}
"""The functions that have a name."""


class ValuesOutside(NamedTuple):
    """The values outside of a range: the worst one, how many, and a range that holds all values."""

    worst: float
    summary: str
    low: float
    high: float


def values_outside(values: ArrayLike, low: float, high: float) -> ValuesOutside | None:
    """Return the values outside of a range; None if there are none. NaN is outside.

    >>> values_outside([0.5, 3.0], -1, 1)
    ValuesOutside(worst=3.0, summary='1 of 2 values are outside', low=-1.0, high=3.0)
    """
    given = np.asarray(values, np.float64)
    wrong = given[~((given >= low) & (given <= high))]
    if not wrong.size:
        return None
    worst = float(wrong[np.argmax(np.maximum(low - wrong, wrong - high))])
    summary = f"{wrong.size} of {given.size} values are outside"
    known = given[np.isfinite(given)]
    low, high = float(known.min(initial=low)), float(known.max(initial=high))
    return ValuesOutside(worst, summary, low, high)


@dataclass(frozen=True, slots=True)
class Activation:
    """A polynomial that approximates a function on a range.

    >>> relu = fit("relu", degree=2, low=-4, high=4)
    >>> relu
    Activation(relu, degree 2 on [-4, 4], error 0.424)
    >>> print(relu(np.array([-2.0, 0.0, 2.0])).round(3))
    [-0.151  0.424  1.849]
    """

    name: str
    coefficients: tuple[float, ...]
    """Coefficients of Chebyshev polynomials, with the range mapped to [-1, 1]."""
    low: float
    high: float
    error: float = nan
    """The largest distance from the function on the range; nan if it is not known."""

    def __post_init__(self) -> None:
        _check_range(self.name, self.low, self.high)
        if not self.coefficients or not all(map(isfinite, self.coefficients)):
            raise WeftError(f"{self.name} has the coefficients {list(self.coefficients)}")

    @property
    def degree(self) -> int:
        """The degree: the number of the last coefficient that is not zero."""
        return max((n for n, c in enumerate(self.coefficients) if c), default=0)

    @property
    def power(self) -> tuple[float, ...]:
        """The coefficients in powers of x, the constant first.

        >>> square(-3, 5).power
        (0.0, 0.0, 1.0)
        """
        powers = self._series.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1]).coef
        return tuple(float(c) for c in _rounded(np.asarray(powers, np.float64)))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the operator `polynomial`."""
        return {
            "coefficients": self.coefficients,
            "low": self.low,
            "high": self.high,
            "name": self.name,
            **({} if isnan(self.error) else {"error": self.error}),
        }

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Activation:
        """Return the activation of an application of `polynomial`.

        >>> Activation.of(square(-3, 5).attributes) == square(-3, 5)
        True
        """
        name = str(attributes.get("name", "polynomial"))
        low, high = attributes.get("low"), attributes.get("high")
        if low is None or high is None:
            raise WeftError(f"{name} has no range", hint="give low= and high=, or fit it")
        coefficients = tuple(map(float, attributes["coefficients"]))
        return cls(name, coefficients, float(low), float(high), attributes.get("error", nan))

    @property
    def _series(self) -> Chebyshev:
        return Chebyshev(self.coefficients, domain=[self.low, self.high])

    def __call__(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the polynomial of every value, in the range or not."""
        return np.asarray(self._series(np.asarray(values, np.float64)))

    def check(self, values: ArrayLike, layer: str = "") -> None:
        """Refuse values outside of the range, with the name of the layer.

        >>> square(-3, 5).check([1.0, 5.5], "stem.relu")
        Traceback (most recent call last):
        weft.errors.WeftError: stem.relu: the value 5.5 is outside of [-3, 5], where square fits
        hint: 1 of 2 values are outside; fit it on [-3, 5.5]
        """
        outside = values_outside(values, self.low, self.high)
        if outside is not None:
            raise WeftError(
                f"{layer or self.name}: the value {outside.worst:.6g} is outside of "
                f"[{self.low:g}, {self.high:g}], where {self.name} fits",
                hint=f"{outside.summary}; fit it on [{outside.low:g}, {outside.high:g}]",
            )

    def __repr__(self) -> str:
        where = f"[{self.low:g}, {self.high:g}]"
        return f"Activation({self.name}, degree {self.degree} on {where}, error {self.error:.3g})"


def square(low: float, high: float) -> Activation:
    """Return the square: one product, and no error.

    >>> square(-1, 1).coefficients
    (0.5, 0.0, 0.5)
    """
    low, high = float(low), float(high)
    _check_range("square", low, high)
    half, middle = (high - low) / 2, (high + low) / 2
    second = half * half / 2
    return Activation("square", (middle**2 + second, 2 * half * middle, second), low, high, 0.0)


def fit(
    function: str | Function, degree: int, low: float, high: float, name: str | None = None
) -> Activation:
    """Return the polynomial of a degree that is closest to a function on a range.

    The fit is by least squares with the Chebyshev weight, which keeps the largest error close to
    the smallest possible. The function is `relu`, `gelu`, `silu` or `square` by name, or any
    function of an array.

    >>> fit("gelu", 6, -4, 4)
    Activation(gelu, degree 6 on [-4, 4], error 0.0395)
    >>> fit(np.tanh, 5, -2, 2, "tanh")
    Activation(tanh, degree 5 on [-2, 2], error 0.0128)
    """
    name, function = _named(function, name)
    low, high = float(low), float(high)
    _check_range(name, low, high)
    if not 0 <= degree < NODES:
        raise WeftError(f"{name} cannot have degree {degree}: from 0 to {NODES - 1}")
    angles = np.pi * (np.arange(NODES) + 0.5) / NODES
    at = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    values = np.asarray(function(at), np.float64)
    if values.shape != at.shape or not np.isfinite(values).all():
        raise WeftError(f"{name} is not a number at every point of [{low}, {high}]")
    fitted = np.cos(np.arange(degree + 1)[:, None] * angles) @ values * (2 / NODES)
    fitted[0] /= 2
    coefficients = tuple(float(c) for c in _rounded(fitted))
    series = Chebyshev(coefficients, domain=[low, high])
    error = _largest(lambda x: np.abs(series(x) - function(x)), low, high)
    return Activation(name, coefficients, low, high, error)


def _named(function: str | Function, name: str | None) -> tuple[str, Function]:
    """Return the name and the function."""
    if not isinstance(function, str):
        return name or str(getattr(function, "__name__", "function")), function
    if function not in NAMED:
        raise WeftError(f"there is no activation {function}", hint=f"there are {', '.join(NAMED)}")
    return name or function, NAMED[function]


def _check_range(name: str, low: float, high: float) -> None:
    if not (isfinite(low) and isfinite(high) and low < high):
        raise WeftError(f"{name} needs a range from low to high, got [{low}, {high}]")


def _rounded(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients with rounding errors set to 0: an even function has no odd terms."""
    least = 1e-14 * float(np.abs(coefficients).max())
    return np.where(np.abs(coefficients) <= least, 0.0, coefficients)


def _largest(function: Callable[[NDArray[np.float64]], Any], low: float, high: float) -> float:
    """Return the largest value on a range: on a fine grid, then on finer ones around it."""
    best, start, stop = 0.0, low, high
    for _ in range(4):
        at = np.linspace(start, stop, 8193)
        values = np.asarray(function(at))
        place = int(values.argmax())
        best = max(best, float(values[place]))
        start, stop = float(at[max(0, place - 1)]), float(at[min(8192, place + 1)])
    return best
