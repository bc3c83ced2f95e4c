"""The primes of a modulus, chosen so that the scale of every level is a constant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from math import isqrt, prod
from typing import NamedTuple

from weft.errors import WeftError

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Bases that decide every number below 3.3e24 (Sorenson and Webster, 2015)."""


class Chain(NamedTuple):
    """The primes by level, the special prime, and the scale of a ciphertext by level.

    `primes[l]` is what a rescale from level l divides by, and `primes[0]` is what is left at the
    end: a product of two ciphertexts at level l, rescaled, is at `scales[l]**2 / primes[l]`, which
    is `scales[l - 1]`, and so is every other way down.
    """

    primes: tuple[int, ...]
    special: int
    scales: tuple[float, ...]


def is_prime(number: int) -> bool:
    """Whether a number of at most 64 bits is prime: Miller-Rabin with bases that leave no doubt.

    >>> [number for number in range(20) if is_prime(number)], is_prime(2**61 - 1)
    ([2, 3, 5, 7, 11, 13, 17, 19], True)
    """
    if number < 2 or any(number % base == 0 for base in _WITNESSES):
        return number in _WITNESSES
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    return all(_passes(number, base, twos) for base in _WITNESSES)


def _passes(number: int, base: int, twos: int) -> bool:
    power = pow(base, (number - 1) >> twos, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


@cache
def choose_primes(
    ring: int, depth: int, scale_bits: int, first_bits: int, special_bits: int
) -> Chain:
    """The primes of a modulus of exactly `first + depth * scale + special` bits.

    Each prime of a level is the free one that brings the scale below nearest to `2**scale_bits`, so
    that the scales do not drift however deep the chain is.

    >>> chain = choose_primes(8192, 2, 40, 50, 60)
    >>> [prime % 16384 for prime in (*chain.primes, chain.special)]
    [1, 1, 1, 1]
    >>> [round(scale / 2**40, 5) for scale in chain.scales]
    [1.0, 1.0, 1.0]
    """
    step, target = 2 * ring, 2.0**scale_bits
    used = [first := _below(2**first_bits, first_bits, step, ())]
    falling, scales = list[int](), [target]
    for _ in range(depth):
        scale = scales[-1]
        prime = _nearest(round(scale * scale / target), scale_bits, step, used)
        used.append(prime)
        falling.append(prime)
        scales.append(scale * scale / prime)
    room = 2 ** (first_bits + depth * scale_bits + special_bits) // prod(used)
    special = _below(min(room, 2**special_bits), special_bits, step, used)
    return Chain((first, *reversed(falling)), special, tuple(reversed(scales)))


def _below(top: int, bits: int, step: int, used: Sequence[int]) -> int:
    """The greatest free prime below a bound that is 1 modulo the step."""
    for number in range((top - 2) // step * step + 1, 2 ** (bits - 1), -step):
        if number not in used and is_prime(number):
            return number
    raise _scarce(bits, step)


def _nearest(target: int, bits: int, step: int, used: Sequence[int]) -> int:
    """The free prime nearest to a target that is 1 modulo the step."""
    low, high = isqrt(2 ** (2 * bits - 1)), isqrt(2 ** (2 * bits + 1))
    middle = target // step * step + 1
    for away in count():
        around = sorted({middle - away * step, middle + away * step}, key=lambda n: abs(n - target))
        inside = [number for number in around if low < number < high]
        if not inside:
            raise _scarce(bits, step)
        for number in inside:
            if number not in used and is_prime(number):
                return number
    raise AssertionError  # the count has no end


def _scarce(bits: int, step: int) -> WeftError:
    return WeftError(
        f"there are too few primes of {bits} bits that are 1 modulo 2N = {step}",
        hint="take more bits, or a smaller ring",
    )
