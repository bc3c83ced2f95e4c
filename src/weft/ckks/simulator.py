"""`Simulator`: the slot operations on plain numbers, with the levels, scales and counts of CKKS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from weft.ckks import rules
from weft.ckks.backend import Cipher, Counters
from weft.ckks.parameters import Parameters
from weft.errors import WeftError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.ckks.backend import Slots

    Simulated: TypeAlias = Cipher[Slots]


class Simulator:
    """The slot operations, exact in float64, on numbers that are not encrypted.

    It refuses what encryption refuses, and values that overflow the modulus come out wrong, as from
    ciphertexts. `rotations` are the keys that there are; None is all. With
    `noise`, whatever brings noise into a ciphertext adds a normal error of that size to each slot.

    >>> backend = Simulator(Parameters(8192, depth=2))
    >>> a = backend.encrypt([1.0, 2.0, 3.0])
    >>> square = backend.rescale(backend.mul(a, a))
    >>> backend.decrypt(backend.rotate(square, 1))[:3].tolist()
    [4.0, 9.0, 0.0]
    >>> print(backend.counters)
    1 rotation, 1 product, 1 rescale, 1 encryption, 1 decryption, 1 encoding, rotations_used {1: 1}
    """

    __slots__ = ("_noise", "_random", "counters", "parameters", "relinearise", "rotations")

    def __init__(
        self,
        parameters: Parameters,
        rotations: Iterable[int] | None = None,
        relinearise: bool = True,
        *,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not noise >= 0:
            raise WeftError(f"noise is {noise}; it cannot be negative")
        keys = None if rotations is None else frozenset(rules.steps_of(parameters, rotations))
        self.parameters = parameters
        self.rotations = keys
        self.relinearise = relinearise
        self.counters = Counters()
        self._noise = noise
        self._random = np.random.default_rng(seed)

    def __repr__(self) -> str:
        keys = "all" if self.rotations is None else len(self.rotations)
        return f"Simulator({self.parameters}, rotation keys: {keys})"

    def encrypt(self, values: ArrayLike, level: int | None = None) -> Simulated:
        """Values as a ciphertext, at the highest level unless one is given."""
        at = self.parameters.level(level)
        scale = self.parameters.scales[at]
        slots = np.zeros(self.parameters.slots) + self._encode(values, at, scale)
        self.counters.encryptions += 1
        return Cipher(self._noisy(slots), at, scale)

    def decrypt(self, cipher: Simulated) -> Slots:
        """Return the values of all the slots, wrapped where they do not fit the modulus.

        Residues modulo the modulus of a level stay congruent through every operation, rescales
        included, so that a value that overflows on the way is wrong only if it is decrypted.
        """
        self.counters.decryptions += 1
        half = 2.0 ** (self.parameters.room(cipher.level) - 1) / cipher.scale
        if np.abs(cipher.content).max(initial=0.0) < half:  # no coefficient exceeds every slot
            return cipher.content.copy()
        return wrapped(cipher.content, 2 * half)

    def level_of(self, cipher: Simulated) -> int:
        """How many rescales a ciphertext can still take."""
        return cipher.level

    def add(self, a: Simulated, b: Simulated) -> Simulated:
        """The sum, of the same level and scale."""
        standing = rules.sum_of(a, b)
        self.counters.additions += 1
        return Cipher(a.content + b.content, *standing)

    def sub(self, a: Simulated, b: Simulated) -> Simulated:
        """The difference, of the same level and scale."""
        standing = rules.sum_of(a, b)
        self.counters.additions += 1
        return Cipher(a.content - b.content, *standing)

    def negate(self, a: Simulated) -> Simulated:
        """Zero less a ciphertext."""
        self.counters.additions += 1
        return Cipher(-a.content, a.level, a.scale)

    def add_plain(self, a: Simulated, values: ArrayLike) -> Simulated:
        """The sum with values."""
        slots = self._encode(values, a.level, a.scale)
        self.counters.plain_additions += 1
        return Cipher(a.content + slots, a.level, a.scale)

    def mul_plain(self, a: Simulated, values: ArrayLike, scale: float | None = None) -> Simulated:
        """The product with values, encoded at the scale of the level unless given; no rescale."""
        standing = rules.plain_product_of(self.parameters, a, scale)
        slots = self._encode(values, a.level, rules.plain_scale(self.parameters, a, scale))
        self.counters.plain_products += 1
        return Cipher(a.content * slots, *standing)

    def mul(self, a: Simulated, b: Simulated) -> Simulated:
        """The product of two ciphertexts; no rescale."""
        standing = rules.product_of(self.parameters, a, b)
        rules.check_relinearisation(self.relinearise)
        self.counters.products += 1
        return Cipher(self._noisy(a.content * b.content), *standing)

    def rotate(self, a: Simulated, steps: int) -> Simulated:
        """Slot s of the result is slot s + steps, modulo the slots."""
        step = rules.step_of(self.parameters, steps, self.rotations)
        self.counters.rotate(step)
        return Cipher(self._noisy(np.roll(a.content, -step)), a.level, a.scale)

    def rescale(self, a: Simulated) -> Simulated:
        """The same at the level below, its scale divided by the prime of its level."""
        standing = rules.rescale_of(self.parameters, a)
        self.counters.rescales += 1
        return Cipher(self._noisy(a.content), *standing)

    def drop(self, a: Simulated, level: int) -> Simulated:
        """The same at a lower level, its scale unchanged."""
        standing = rules.drop_of(self.parameters, a, level)
        self.counters.drops += 1
        return Cipher(a.content, *standing)

    def write(self, cipher: Simulated, path: str) -> None:
        """Write the numbers of a ciphertext to a file."""
        cipher.content.tofile(path)

    def read(self, path: str, level: int, scale: float) -> Simulated:
        """Read a ciphertext that stands at a level and a scale."""
        return Cipher(np.fromfile(path), level, scale)

    def _encode(self, values: ArrayLike, level: int, scale: float) -> float | Slots:
        slots = rules.slots_of(self.parameters, values, level, scale)
        self.counters.encodings += 1
        return slots

    def _noisy(self, slots: Slots) -> Slots:
        if not self._noise:
            return slots
        return slots + self._random.normal(0.0, self._noise, slots.shape)


def wrapped(slots: Slots, modulus: float) -> Slots:
    """Return what slots become when the coefficients of their polynomial wrap around a modulus.

    Slot j is the value of the polynomial at the root of unity to the power of 3^j, as in SEAL.

    >>> wrapped(np.full(4, 9.0), 8.0).round(9).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    ring = 2 * len(slots)
    powers = np.ones(len(slots), np.int64)
    for place in range(1, len(slots)):
        powers[place] = powers[place - 1] * 3 % (2 * ring)
    values = np.zeros(ring)
    values[powers // 2] = values[(2 * ring - powers) // 2] = slots
    turn = np.exp(1j * np.pi * np.arange(ring) / ring)
    coefficients = (np.fft.fft(values) / ring / turn).real
    coefficients -= modulus * np.round(coefficients / modulus)
    made: Slots = (np.fft.ifft(coefficients * turn) * ring).real[powers // 2]
    return made
