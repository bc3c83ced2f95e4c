"""`Parameters`: the ring, the primes and the scales of a CKKS encryption, and its security.

The primes are chosen here, not by the library: the scale of every level is then a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import isqrt, log2, prod
from typing import NamedTuple, SupportsIndex

from weft.errors import WeftError
from weft.values import as_count, freeze

# The bits of a modulus that a ring may have: ternary secret, classical attacks. Up to 2^15 these
# are table 1 of the Homomorphic Encryption Standard (HomomorphicEncryption.org, November 2018),
# where SEAL's own check ends; 2^16 is from the Security Guidelines for Implementing Homomorphic
# Encryption (Bossuat et al., 2024) and the tables of OpenFHE that follow the lattice estimator.
STANDARD = {
    128: {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881, 65536: 1747},
    192: {1024: 19, 2048: 37, 4096: 75, 8192: 152, 16384: 305, 32768: 611, 65536: 1199},
    256: {1024: 14, 2048: 29, 4096: 58, 8192: 118, 16384: 237, 32768: 476, 65536: 929},
}
"""The most bits of the whole modulus, by security in bits and by ring."""

RINGS = tuple(1 << power for power in range(3, 18))
"""The rings, up to the largest of SEAL. Those below 1024 are for tests only."""

BITS = range(20, 61)
"""The bits that a prime may have."""

MOST_PRIMES = 64
"""The most primes of a modulus in SEAL."""

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Bases that decide every number below 3.3e24 (Sorenson and Webster, 2015)."""


class PrimeChain(NamedTuple):
    """The primes by level, the special prime, and the scale of a ciphertext by level.

    A rescale from level l divides by `primes[l]`, and `primes[0]` is the modulus of level 0. A
    product of two ciphertexts at level l, rescaled, is at `scales[l]**2 / primes[l]`, which is
    `scales[l - 1]`, and so is every other way to get there.
    """

    primes: tuple[int, ...]
    special: int
    scales: tuple[float, ...]


def is_prime(number: int) -> bool:
    """Whether a number of at most 64 bits is prime, by the deterministic Miller-Rabin test.

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
) -> PrimeChain:
    """Return the primes of a modulus of exactly `first + depth * scale + special` bits.

    The prime of each level is the unused one for which the scale below is closest to
    `2**scale_bits`, so that scales do not drift however deep the chain is.

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
    return PrimeChain((first, *reversed(falling)), special, tuple(reversed(scales)))


def _below(top: int, bits: int, step: int, used: Sequence[int]) -> int:
    """Return the largest unused prime below a bound that is 1 modulo the step."""
    for number in range((top - 2) // step * step + 1, 2 ** (bits - 1), -step):
        if number not in used and is_prime(number):
            return number
    raise _scarce(bits, step)


def _nearest(target: int, bits: int, step: int, used: Sequence[int]) -> int:
    """Return the unused prime closest to a target that is 1 modulo the step."""
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


@dataclass(frozen=True, slots=True)
class Parameters:
    """The ring (N), the rescales that a fresh ciphertext can take, and the bits of its primes.

    A ciphertext has N/2 slots. Its scale at level l is `scales[l]`, however it got there.

    >>> parameters = Parameters(8192, depth=2)
    >>> print(parameters)
    CKKS N=8192: 4096 slots, depth 2, 50 + 2 x 40 + 60 = 190 bits of 218 at 128-bit security
    >>> Parameters(8192, depth=6)
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: N=8192 holds 218 bits at 128-bit security; depth 6 at 40 bits needs 350
    hint: N=16384 would fit, or depth 2
    """

    ring: int
    """N, the degree of the polynomials."""
    depth: int
    scale_bits: int = 40
    first_bits: int = 50
    """Bits of the modulus of level 0: those beyond the scale are room for values."""
    special_bits: int = 60
    """Bits of the additional prime of keys, which absorbs the noise of key switching."""
    security: int | None = 128
    """128, 192 or 256 bits; None, for tests only, checks nothing."""

    def __post_init__(self) -> None:
        for name in ("ring", "depth", *BIT_FIELDS):
            what = "the ring N" if name == "ring" else name
            freeze(self, **{name: as_count(getattr(self, name), what)})
        if self.security is not None:
            freeze(self, security=as_count(self.security, "security"))
        _check_shape(self)
        _check_bits(self)
        _check_security(self)
        _ = self.chain  # too few primes are refused here, before there are keys

    @classmethod
    def fitting(
        cls, depth: int, slots: int = 1, security: int = 128, scale_bits: int = 40, **bits: int
    ) -> Parameters:
        """Return the parameters of the smallest ring with the depth, the slots and the security.

        >>> Parameters.fitting(depth=6, slots=2048).ring
        16384
        """
        bits = {"first_bits": 50, "special_bits": 60, **bits, "scale_bits": scale_bits}
        need = _total(as_count(depth, "depth"), **{n: as_count(bits[n], n) for n in bits})
        width = as_count(slots, "slots")
        table = _standard(as_count(security, "security"))
        wide = [ring for ring in table if ring // 2 >= width]
        if not wide:
            raise WeftError(f"{width} slots do not fit: N={max(table)} has {max(table) // 2}")
        ring = next((ring for ring in wide if need <= table[ring]), max(table))
        return cls(ring, depth, security=security, **bits)

    @property
    def slots(self) -> int:
        """The number of values in a ciphertext."""
        return self.ring // 2

    @property
    def chain(self) -> PrimeChain:
        """The primes and the scales."""
        return choose_primes(
            self.ring, self.depth, self.scale_bits, self.first_bits, self.special_bits
        )

    @property
    def primes(self) -> tuple[int, ...]:
        """The primes by level: a rescale from level l divides by `primes[l]`."""
        return self.chain.primes

    @property
    def special(self) -> int:
        """The additional prime of keys."""
        return self.chain.special

    @property
    def scales(self) -> tuple[float, ...]:
        """The scale of a ciphertext by level."""
        return self.chain.scales

    @property
    def modulus_bits(self) -> int:
        """The bits of the whole modulus with the special prime, which determine the security."""
        return _total(self.depth, self.scale_bits, self.first_bits, self.special_bits)

    def room(self, level: int) -> float:
        """Return the bits of the modulus of a level, which value times scale must fit.

        >>> round(Parameters(8192, depth=2).room(1), 3)
        90.0
        """
        return _bits(self.chain.primes[: self.level(level) + 1])

    def level(self, level: SupportsIndex | None) -> int:
        """Return a level of these parameters (None: the highest), or refuse it.

        >>> Parameters(8192, depth=2).level(3)
        Traceback (most recent call last):
        ...
        weft.errors.WeftError: there is no level 3: the levels go from 0 to the depth, 2
        """
        if level is None:
            return self.depth
        number = as_count(level, "level")
        if number > self.depth:
            raise WeftError(
                f"there is no level {number}: the levels go from 0 to the depth, {self.depth}"
            )
        return number

    def adjusting_scale(self, start: int, stop: int) -> float:
        """Return the scale of the plaintext 1 that takes a ciphertext to a lower level.

        The ciphertext drops to the level above `stop`, is multiplied by 1 at this scale, and is
        rescaled: then it is at `scales[stop]`, as if it had come by products.

        >>> parameters = Parameters(16384, depth=6)
        >>> scale = parameters.adjusting_scale(5, 2)
        >>> parameters.scales[5] * scale / parameters.primes[3] == parameters.scales[2]
        True
        """
        if not 0 <= stop < start <= self.depth:
            raise WeftError(
                f"a ciphertext cannot go from level {start} to {stop}: the depth is {self.depth}, "
                "and levels only fall"
            )
        return self.scales[stop] * self.primes[stop + 1] / self.scales[start]

    def ciphertext_bytes(self, level: int | None = None) -> int:
        """Return the bytes of a ciphertext at a level: two polynomials, a number for each prime.

        >>> Parameters(8192, depth=2).ciphertext_bytes()
        393216
        """
        return 2 * (self.level(level) + 1) * self.ring * 8

    @property
    def rotation_key_bytes(self) -> int:
        """The bytes of a rotation key, or of the key for products: a ciphertext for each prime."""
        primes = self.depth + 1
        return primes * 2 * (primes + 1) * self.ring * 8

    def __str__(self) -> str:
        safe = "security is not checked"
        if self.security is not None:
            safe = f"{STANDARD[self.security][self.ring]} at {self.security}-bit security"
        joint = " of " if self.security else ", "
        sizes = f"{self.first_bits} + {self.depth} x {self.scale_bits} + {self.special_bits}"
        return (
            f"CKKS N={self.ring}: {self.slots} slots, depth {self.depth}, "
            f"{sizes} = {self.modulus_bits} bits{joint}{safe}"
        )


BIT_FIELDS = ("scale_bits", "first_bits", "special_bits")


@cache
def _bits(primes: tuple[int, ...]) -> float:
    return log2(prod(primes))


def _total(depth: int, scale_bits: int, first_bits: int, special_bits: int) -> int:
    return first_bits + depth * scale_bits + special_bits


def _standard(security: int) -> dict[int, int]:
    if security not in STANDARD:
        known = ", ".join(map(str, STANDARD))
        raise WeftError(f"there is no table for {security}-bit security", hint=f"there are {known}")
    return STANDARD[security]


def _check_shape(given: Parameters) -> None:
    if given.ring not in RINGS:
        raise WeftError(
            f"the ring N={given.ring} is not a power of two from {RINGS[0]} to {RINGS[-1]}"
        )
    if given.depth + 2 > MOST_PRIMES:
        raise WeftError(
            f"depth {given.depth} needs {given.depth + 2} primes; SEAL takes {MOST_PRIMES}"
        )


def _check_bits(given: Parameters) -> None:
    for name in BIT_FIELDS:
        if getattr(given, name) not in BITS:
            raise WeftError(
                f"{name} is {getattr(given, name)}; a prime has {BITS[0]} to {BITS[-1]} bits"
            )
    if given.first_bits <= given.scale_bits:
        raise WeftError(
            f"the first prime has {given.first_bits} bits and the scale {given.scale_bits}: "
            "there is no room for values at level 0"
        )
    if given.special_bits < given.first_bits:
        raise WeftError(
            f"the special prime has {given.special_bits} bits, the first {given.first_bits}: "
            "it must be the largest, or keys add noise"
        )


def _check_security(given: Parameters) -> None:
    if given.security is None:
        return
    table = _standard(given.security)
    if given.ring not in table:
        raise WeftError(
            f"the security tables do not have N={given.ring}: they are for N={min(table)} to "
            f"{max(table)}",
            hint="security=None checks nothing, for tests",
        )
    if given.modulus_bits > table[given.ring]:
        raise WeftError(
            f"N={given.ring} holds {table[given.ring]} bits at {given.security}-bit security; "
            f"depth {given.depth} at {given.scale_bits} bits needs {given.modulus_bits}",
            hint=_what_fits(given, table),
        )


def _what_fits(given: Parameters, table: dict[int, int]) -> str:
    """Return the larger ring and the smaller depth that the table allows."""
    options = [f"N={ring} would fit" for ring, bits in table.items() if given.modulus_bits <= bits][
        :1
    ]
    room = table[given.ring] - given.first_bits - given.special_bits
    if room >= 0:
        options.append(f"depth {room // given.scale_bits}" + ("" if options else " would fit"))
    return ", or ".join(options) or "take primes of fewer bits"
