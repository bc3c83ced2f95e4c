"""The rules of levels, scales and keys: what every backend refuses, and what comes out.

Scales are floats that stand for exact numbers: two that differ by no more than the rounding of a
few products are the same. Nothing is ever brought closer than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, log2
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

import numpy as np

from weft.errors import WeftError
from weft.values import as_point

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.ckks.backend import Cipher, Slots
    from weft.ckks.parameters import Parameters

ROUNDING = 1e-12
"""By how much two scales that are the same may differ, in parts: float64 keeps 1e-16 a product."""


class Standing(NamedTuple):
    """The level and the scale of a ciphertext."""

    level: int
    scale: float


def sum_of(a: Cipher[Any], b: Cipher[Any]) -> Standing:
    """Where a sum stands: both must stand there."""
    _check_levels(a, b, "added")
    if not _same(a.scale, b.scale):
        raise WeftError(
            f"ciphertexts at scales {_power(a.scale)} and {_power(b.scale)} cannot be added",
            hint="rescale the products first, or adjust what comes from a higher level",
        )
    return Standing(a.level, a.scale)


def product_of(parameters: Parameters, a: Cipher[Any], b: Cipher[Any]) -> Standing:
    """Where a product of two ciphertexts stands."""
    _check_levels(a, b, "multiplied")
    return _roomy(parameters, a.level, a.scale * b.scale, "a product")


def plain_product_of(parameters: Parameters, a: Cipher[Any], scale: float | None) -> Standing:
    """Where a product with a plaintext stands; its own scale is that of the level unless given."""
    return _roomy(parameters, a.level, a.scale * plain_scale(parameters, a, scale), "a product")


def plain_scale(parameters: Parameters, a: Cipher[Any], scale: float | None) -> float:
    """The scale of a plaintext that a ciphertext is multiplied by."""
    if scale is None:
        return parameters.scales[a.level]
    if not (isinstance(scale, SupportsFloat) and isfinite(scale) and scale >= 1):
        raise WeftError(f"the scale of a plaintext is {scale!r}; it must be finite, 1 or more")
    return float(scale)


def rescale_of(parameters: Parameters, a: Cipher[Any]) -> Standing:
    """Where a ciphertext stands after a rescale."""
    if a.level == 0:
        raise WeftError(
            f"a ciphertext at level 0 cannot be rescaled: depth {parameters.depth} is used up",
            hint="take parameters of a greater depth",
        )
    scale, usual = a.scale / parameters.primes[a.level], parameters.scales[a.level - 1]
    if scale < 2:
        raise WeftError(
            f"a rescale from scale {_power(a.scale)} leaves {_power(scale)}, and no digits",
            hint="multiply before a rescale, or drop to a lower level",
        )
    return Standing(a.level - 1, usual if _same(scale, usual) else scale)


def drop_of(parameters: Parameters, a: Cipher[Any], level: int) -> Standing:
    """Where a ciphertext stands after a drop."""
    low = parameters.level(level)
    if low >= a.level:
        raise WeftError(f"a ciphertext at level {a.level} cannot drop to level {low}")
    return _roomy(parameters, low, a.scale, "a ciphertext")


def step_of(parameters: Parameters, steps: int, keys: frozenset[int] | None) -> int:
    """The steps of a rotation, from 1 to the slots less 1, for which there must be a key."""
    (step,) = steps_of(parameters, (steps,))
    if keys is not None and step not in keys:
        made = " ".join(map(str, sorted(keys)[:8])) + (" ..." if len(keys) > 8 else "")
        raise WeftError(
            f"there is no key for a rotation by {step}",
            hint=f"keys were made for {made or 'no rotation'}",
        )
    return step


def steps_of(parameters: Parameters, rotations: Iterable[int]) -> tuple[int, ...]:
    """The steps of rotations, each from 1 to the slots less 1."""
    steps = as_point(rotations, "rotations")
    for step in steps:
        if step % parameters.slots == 0:
            raise WeftError(
                f"a rotation by {step} moves nothing: there are {parameters.slots} slots"
            )
    return tuple(step % parameters.slots for step in steps)


def check_relinearisation(there: bool) -> None:
    """Refuse a product of ciphertexts where the key for it was not made."""
    if not there:
        raise WeftError(
            "there is no key for a product of two ciphertexts", hint="give relinearise=True"
        )


def slots_of(parameters: Parameters, values: ArrayLike, level: int, scale: float) -> float | Slots:
    """The values of all the slots, or the one number that all are; they must fit the modulus."""
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


def _real(values: ArrayLike) -> Slots:
    try:
        given = np.asarray(values)
        if given.dtype.kind in "biuf":
            return given.astype(np.float64, copy=False)
    except (TypeError, ValueError):  # rows of unequal length
        pass
    raise WeftError("values must be real numbers")


def _check_levels(a: Cipher[Any], b: Cipher[Any], done: str) -> None:
    if a.level != b.level:
        raise WeftError(
            f"ciphertexts at levels {a.level} and {b.level} cannot be {done}",
            hint="adjust the higher one to the level of the other",
        )


def _roomy(parameters: Parameters, level: int, scale: float, what: str) -> Standing:
    if log2(scale) >= parameters.room(level):
        raise WeftError(
            f"{what} at level {level} has no room: its scale would be {_power(scale)}, "
            f"the modulus is 2^{parameters.room(level):.1f}",
            hint="rescale first; at level 0 there is nothing left, take a greater depth",
        )
    return Standing(level, scale)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(a, b)


def _power(scale: float) -> str:
    return f"2^{log2(scale):.1f}"
