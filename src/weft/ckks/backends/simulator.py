"""`Simulator`: the slot operations on plain numbers, with the levels, scales and counts of CKKS."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from weft.ckks.backends.backend import Backend, Ciphertext, LevelScale
from weft.ckks.packing import Floats
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import Operation
from weft.errors import WeftError

COMPUTED: dict[Operation, Callable[..., Floats]] = {
    "add": np.add,
    "sub": np.subtract,
    "negate": np.negative,
    "add_plain": np.add,
    "mul_plain": np.multiply,
    "mul": np.multiply,
    "rotate": lambda slots, step: np.roll(slots, -step),
    "rescale": lambda slots: slots,
    "drop": lambda slots: slots,
}
NOISY = ("mul", "rotate", "rescale")
"""The operations that add noise to a ciphertext."""


class Simulator(Backend):
    """The slot operations in float64, on numbers that are not encrypted.

    It refuses what encryption refuses, and values that overflow the modulus come out wrong, as they
    do from ciphertexts. `rotations` are the keys that exist (default: all). With `noise`, every
    operation that adds noise to a ciphertext adds a normal error of that size to each slot.

    >>> backend = Simulator(Parameters(8192, depth=2))
    >>> a = backend.encrypt([1.0, 2.0, 3.0])
    >>> square = backend.rescale(backend.mul(a, a))
    >>> backend.decrypt(backend.rotate(square, 1))[:3].tolist()
    [4.0, 9.0, 0.0]
    >>> print(backend.counters)
    1 rotation, 1 product, 1 rescale, 1 encryption, 1 decryption
    """

    __slots__ = ("_noise", "_random")

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
        super().__init__(parameters, rotations, relinearise)
        self._noise = noise
        self._random = np.random.default_rng(seed)

    def write(self, ciphertext: Ciphertext[Any], path: str) -> None:
        """Write the numbers of a ciphertext to a file."""
        ciphertext.content.tofile(path)

    def read(self, path: str, level: int, scale: float) -> Ciphertext[Any]:
        """Read a ciphertext of a level and a scale from a file."""
        return Ciphertext(np.fromfile(path), level, scale)

    def _encode(self, values: float | Floats, level: int, scale: float) -> float | Floats:
        return values

    def _encrypt(self, plain: float | Floats) -> Floats:
        return self._noisy(np.zeros(self.parameters.slots) + plain)

    def _decrypt(self, ciphertext: Ciphertext[Floats]) -> Floats:
        # Residues modulo the modulus of a level stay congruent through every operation, rescales
        # included, so that a value that overflows on the way is wrong only if it is decrypted.
        half = 2.0 ** (self.parameters.room(ciphertext.level) - 1) / ciphertext.scale
        if np.abs(ciphertext.content).max(initial=0.0) < half:  # no coefficient exceeds every slot
            return ciphertext.content.copy()
        return wrapped(ciphertext.content, 2 * half)

    def _apply(self, operation: Operation, result: LevelScale, *operands: Any) -> Floats:
        slots: Floats = COMPUTED[operation](*operands)
        return self._noisy(slots) if operation in NOISY else slots

    def _noisy(self, slots: Floats) -> Floats:
        if not self._noise:
            return slots
        return slots + self._random.normal(0.0, self._noise, slots.shape)


def wrapped(slots: Floats, modulus: float) -> Floats:
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
    result: Floats = (np.fft.ifft(coefficients * turn) * ring).real[powers // 2]
    return result
