"""`Backend`: the operations on ciphertexts, with the rules that all back-ends check and count by.

Scales are floats that stand for exact numbers: two that differ by no more than the rounding of a
few products are the same. Scales are never made equal beyond that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, log2
from typing import Any, Generic, NamedTuple, SupportsFloat, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from weft.ckks.packing import Floats
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import Operation, OperationCounts
from weft.errors import WeftError
from weft.values import as_point

ROUNDING = 1e-12
"""Relative difference below which two scales are the same: float64 keeps 1e-16 per product."""

T = TypeVar("T")


class LevelScale(NamedTuple):
    """The level and the scale of a ciphertext."""

    level: int
    scale: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ciphertext(Generic[T]):
    """A ciphertext of a back-end, with its level and its exact scale; its repr shows only those.

    >>> Ciphertext("secret", level=2, scale=2.0**40)
    Ciphertext(level=2, scale=2^40.000)
    """

    content: T
    level: int
    """The number of rescales left."""
    scale: float

    def __repr__(self) -> str:
        return f"Ciphertext(level={self.level}, scale=2^{log2(self.scale):.3f})"


class Backend(ABC):
    """Slot operations on ciphertexts, checked and counted; a subclass computes their contents.

    Ciphertexts are values: no operation changes its operands. Refused are additions of different
    levels or scales, products that the modulus has no room for, rotations without a key. What is
    refused is not counted.
    """

    __slots__ = ("counters", "parameters", "relinearise", "rotations")

    def __init__(
        self, parameters: Parameters, rotations: Iterable[int] | None, relinearise: bool
    ) -> None:
        self.parameters = parameters
        self.rotations = None if rotations is None else frozenset(_steps(parameters, rotations))
        """The steps that have a rotation key; None for all."""
        self.relinearise = relinearise
        """Whether there is a key for products of two ciphertexts."""
        self.counters = OperationCounts()
        """The operations since the back-end was created."""

    def __repr__(self) -> str:
        keys = "all" if self.rotations is None else len(self.rotations)
        return f"{type(self).__name__}({self.parameters}, rotation keys: {keys})"

    def encrypt(self, values: ArrayLike, level: int | None = None) -> Ciphertext[Any]:
        """Encrypt values (default: at the highest level); missing slots are zero."""
        at = self.parameters.level(level)
        scale = self.parameters.scales[at]
        plain = self._encode(_slots(self.parameters, values, at, scale), at, scale)
        self.counters.encryptions += 1
        return Ciphertext(self._encrypt(plain), at, scale)

    def decrypt(self, ciphertext: Ciphertext[Any]) -> Floats:
        """Return the values of all slots."""
        self.counters.decryptions += 1
        return self._decrypt(ciphertext)

    def add(self, a: Ciphertext[Any], b: Ciphertext[Any]) -> Ciphertext[Any]:
        """Return the sum of two ciphertexts of one level and scale."""
        result = _sum(a, b)
        self.counters.additions += 1
        return Ciphertext(self._apply("add", result, a.content, b.content), *result)

    def sub(self, a: Ciphertext[Any], b: Ciphertext[Any]) -> Ciphertext[Any]:
        """Return the difference of two ciphertexts of one level and scale."""
        result = _sum(a, b)
        self.counters.additions += 1
        return Ciphertext(self._apply("sub", result, a.content, b.content), *result)

    def negate(self, a: Ciphertext[Any]) -> Ciphertext[Any]:
        """Return a ciphertext with its sign changed."""
        result = LevelScale(a.level, a.scale)
        self.counters.additions += 1
        return Ciphertext(self._apply("negate", result, a.content), *result)

    def add_plain(self, a: Ciphertext[Any], values: ArrayLike) -> Ciphertext[Any]:
        """Return the sum with values, encoded at the level and scale of the ciphertext."""
        result = LevelScale(a.level, a.scale)
        plain = self._encode(_slots(self.parameters, values, *result), *result)
        self.counters.plain_additions += 1
        return Ciphertext(self._apply("add_plain", result, a.content, plain), *result)

    def mul_plain(
        self, a: Ciphertext[Any], values: ArrayLike, scale: float | None = None
    ) -> Ciphertext[Any]:
        """Return the product with values, not rescaled (default scale: that of the level)."""
        scale = self.parameters.scales[a.level] if scale is None else _plain_scale(scale)
        result = _with_room(self.parameters, a.level, a.scale * scale, "a product")
        plain = self._encode(_slots(self.parameters, values, a.level, scale), a.level, scale)
        self.counters.plain_products += 1
        return Ciphertext(self._apply("mul_plain", result, a.content, plain), *result)

    def mul(self, a: Ciphertext[Any], b: Ciphertext[Any]) -> Ciphertext[Any]:
        """Return the product of two ciphertexts, relinearised and not rescaled."""
        _check_levels(a, b, "multiplied")
        result = _with_room(self.parameters, a.level, a.scale * b.scale, "a product")
        if not self.relinearise:
            raise WeftError(
                "there is no key for a product of two ciphertexts", hint="give relinearise=True"
            )
        self.counters.products += 1
        return Ciphertext(self._apply("mul", result, a.content, b.content), *result)

    def rotate(self, a: Ciphertext[Any], steps: int) -> Ciphertext[Any]:
        """Return a ciphertext whose slot s is slot s + steps, modulo the slots."""
        (step,) = _steps(self.parameters, (steps,))
        if self.rotations is not None and step not in self.rotations:
            known = sorted(self.rotations)
            shown = " ".join(map(str, known[:8])) + (" ..." if len(known) > 8 else "")
            raise WeftError(
                f"there is no key for a rotation by {step}",
                hint=f"keys were made for {shown or 'no rotation'}",
            )
        result = LevelScale(a.level, a.scale)
        self.counters.rotations_by_step[step] += 1
        return Ciphertext(self._apply("rotate", result, a.content, step), *result)

    def rescale(self, a: Ciphertext[Any]) -> Ciphertext[Any]:
        """Return a ciphertext one level lower, its scale divided by the prime of its level."""
        if a.level == 0:
            raise WeftError(
                f"a ciphertext at level 0 cannot be rescaled: depth {self.parameters.depth} is "
                "used up",
                hint="take parameters of a greater depth",
            )
        usual = self.parameters.scales[a.level - 1]
        scale = a.scale / self.parameters.primes[a.level]
        if scale < 2:
            raise WeftError(
                f"a rescale from scale {_power(a.scale)} leaves {_power(scale)}, and no digits",
                hint="multiply before a rescale, or drop to a lower level",
            )
        result = LevelScale(a.level - 1, usual if _same(scale, usual) else scale)
        self.counters.rescales += 1
        return Ciphertext(self._apply("rescale", result, a.content), *result)

    def drop(self, a: Ciphertext[Any], level: int) -> Ciphertext[Any]:
        """Return a ciphertext at a lower level, its scale unchanged."""
        low = self.parameters.level(level)
        if low >= a.level:
            raise WeftError(f"a ciphertext at level {a.level} cannot drop to level {low}")
        result = _with_room(self.parameters, low, a.scale, "a ciphertext")
        self.counters.drops += 1
        return Ciphertext(self._apply("drop", result, a.content), *result)

    @abstractmethod
    def write(self, ciphertext: Ciphertext[Any], path: str) -> None:
        """Write the content of a ciphertext to a file."""

    @abstractmethod
    def read(self, path: str, level: int, scale: float) -> Ciphertext[Any]:
        """Read a ciphertext of a level and a scale from a file."""

    # Contents: what a subclass makes of values and of the contents of other ciphertexts.

    @abstractmethod
    def _encode(self, values: float | Floats, level: int, scale: float) -> Any: ...

    @abstractmethod
    def _encrypt(self, plain: Any) -> Any: ...

    @abstractmethod
    def _decrypt(self, ciphertext: Ciphertext[Any]) -> Floats: ...

    @abstractmethod
    def _apply(self, operation: Operation, result: LevelScale, *operands: Any) -> Any:
        """Return the content of a result, given its level and scale.

        Operands are contents; the last one of a plain operation is encoded, of a rotation its step.
        """


def _sum(a: Ciphertext[Any], b: Ciphertext[Any]) -> LevelScale:
    _check_levels(a, b, "added")
    if not _same(a.scale, b.scale):
        raise WeftError(
            f"ciphertexts at scales {_power(a.scale)} and {_power(b.scale)} cannot be added",
            hint="rescale the products first, or adjust what comes from a higher level",
        )
    return LevelScale(a.level, a.scale)


def _check_levels(a: Ciphertext[Any], b: Ciphertext[Any], operation: str) -> None:
    if a.level != b.level:
        raise WeftError(
            f"ciphertexts at levels {a.level} and {b.level} cannot be {operation}",
            hint="adjust the higher one to the level of the other",
        )


def _plain_scale(scale: float) -> float:
    if not (isinstance(scale, SupportsFloat) and isfinite(scale) and scale >= 1):
        raise WeftError(f"the scale of a plaintext is {scale!r}; it must be finite, 1 or more")
    return float(scale)


def _with_room(parameters: Parameters, level: int, scale: float, what: str) -> LevelScale:
    """Return a level and a scale, refused if the scale exceeds the modulus of the level."""
    if log2(scale) >= parameters.room(level):
        raise WeftError(
            f"{what} at level {level} has no room: its scale would be {_power(scale)}, "
            f"the modulus is 2^{parameters.room(level):.1f}",
            hint="rescale first; at level 0 there is nothing left, take a greater depth",
        )
    return LevelScale(level, scale)


def _steps(parameters: Parameters, rotations: Iterable[int]) -> tuple[int, ...]:
    """Return the steps of rotations, each from 1 to the slots less 1."""
    steps = as_point(rotations, "rotations")
    for step in steps:
        if step % parameters.slots == 0:
            raise WeftError(
                f"a rotation by {step} moves nothing: there are {parameters.slots} slots"
            )
    return tuple(step % parameters.slots for step in steps)


def _slots(parameters: Parameters, values: ArrayLike, level: int, scale: float) -> float | Floats:
    """Return the values of all slots, or the one number in all; they must fit the modulus."""
    given = _real(values)
    if given.ndim > 1:
        raise WeftError(f"values are one number or a row, not an array of shape {given.shape}")
    if given.size > parameters.slots:
        raise WeftError(f"{given.size} values do not fit {parameters.slots} slots")
    largest = float(np.max(np.abs(given), initial=0.0))
    if not isfinite(largest):
        raise WeftError("values must be finite numbers; one is nan or infinite")
    # Two bits less than the modulus: one for the sign, and one that SEAL keeps free.
    if largest > 0 and log2(largest) + log2(scale) + 2 >= parameters.room(level):
        raise WeftError(
            f"a value of {largest:.6g} at scale {_power(scale)} does not fit the modulus of "
            f"2^{parameters.room(level):.1f} at level {level}"
        )
    if given.ndim == 0:
        return float(given)
    filled = np.zeros(parameters.slots)
    filled[: given.size] = given
    return filled


def _real(values: ArrayLike) -> Floats:
    try:
        given = np.asarray(values)
        if given.dtype.kind in "biuf":
            return given.astype(np.float64, copy=False)
    except (TypeError, ValueError):  # rows of unequal length
        pass
    raise WeftError("values must be real numbers")


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(a, b)


def _power(scale: float) -> str:
    return f"2^{log2(scale):.1f}"
