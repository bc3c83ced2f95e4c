"""What runs slot operations: the protocol of a backend, its ciphertexts, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from math import log2
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from weft.values import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from weft.ckks.parameters import Parameters

    Slots: TypeAlias = NDArray[np.float64]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cipher(Generic[T]):
    """A ciphertext of a backend, with its level and its exact scale; it prints no more than those.

    >>> Cipher("secret", level=2, scale=2.0**40)
    Cipher(level=2, scale=2^40.000)
    """

    content: T
    level: int
    """How many rescales it can still take."""
    scale: float

    def __repr__(self) -> str:
        return f"Cipher(level={self.level}, scale=2^{log2(self.scale):.3f})"


@dataclass(slots=True)
class Counters:
    """How often a backend did what; take a copy before a layer, and the difference after it.

    A subtraction and a negation count as additions. Encodings are those of products, of additions
    and of encryptions together.

    >>> counters = Counters(rotations=3)
    >>> before = counters.copy()
    >>> counters.rotate(5)
    >>> print(counters - before)
    1 rotation, rotations_used {5: 1}
    """

    rotations: int = 0
    plain_products: int = 0
    products: int = 0
    """Of two ciphertexts, relinearised."""
    rescales: int = 0
    additions: int = 0
    plain_additions: int = 0
    drops: int = 0
    encryptions: int = 0
    decryptions: int = 0
    encodings: int = 0
    rotations_used: Counter[int] = field(default_factory=Counter)
    """How often there was a rotation by so many steps."""

    def rotate(self, steps: int) -> None:
        """Count a rotation."""
        self.rotations += 1
        self.rotations_used[steps] += 1

    def copy(self) -> Counters:
        """The counts as they are now."""
        return self - Counters()

    def include(self, other: Counters) -> None:
        """Count what another counted as well."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rotations_used.update(other.rotations_used)

    def __sub__(self, before: Counters) -> Counters:
        counts = {name: getattr(self, name) - getattr(before, name) for name in _NUMBERS}
        return Counters(**counts, rotations_used=self.rotations_used - before.rotations_used)

    def __str__(self) -> str:
        counts = [(name, getattr(self, name)) for name in _NUMBERS]
        said = [counted(n, name.replace("_", " ")[:-1]) for name, n in counts if n]
        if self.rotations_used:
            said.append(f"rotations_used {dict(sorted(self.rotations_used.items()))}")
        return ", ".join(said) or "nothing"


_NUMBERS = tuple(one.name for one in fields(Counters) if one.name != "rotations_used")


class Backend(Protocol):
    """What runs slot operations on ciphertexts, which are values: no operation changes its own.

    A backend counts what it does in `counters`, and refuses what the scheme cannot do: the levels
    or the scales of an addition that differ, a product that its level has no room for, a rotation
    without a key. The messages are the same on all.
    """

    @property
    def parameters(self) -> Parameters:
        """The parameters."""

    @property
    def rotations(self) -> frozenset[int] | None:
        """The steps that it has rotation keys for; None for all."""

    @property
    def relinearise(self) -> bool:
        """Whether it has the key for products of two ciphertexts."""

    @property
    def counters(self) -> Counters:
        """How often the backend did what, since it was made."""

    def encrypt(self, values: ArrayLike, level: int | None = None) -> Cipher[Any]:
        """Encrypt values, at the highest level unless one is given; fewer than slots have zeros."""

    def decrypt(self, cipher: Cipher[Any]) -> Slots:
        """The values of all the slots."""

    def level_of(self, cipher: Cipher[Any]) -> int:
        """How many rescales a ciphertext can still take."""

    def add(self, a: Cipher[Any], b: Cipher[Any]) -> Cipher[Any]:
        """The sum, of the same level and scale."""

    def sub(self, a: Cipher[Any], b: Cipher[Any]) -> Cipher[Any]:
        """The difference, of the same level and scale."""

    def negate(self, a: Cipher[Any]) -> Cipher[Any]:
        """Zero less a ciphertext."""

    def add_plain(self, a: Cipher[Any], values: ArrayLike) -> Cipher[Any]:
        """The sum with values, encoded at the level and the exact scale of the ciphertext."""

    def mul_plain(
        self, a: Cipher[Any], values: ArrayLike, scale: float | None = None
    ) -> Cipher[Any]:
        """The product with values, encoded at the scale of the level unless given; no rescale."""

    def mul(self, a: Cipher[Any], b: Cipher[Any]) -> Cipher[Any]:
        """The product of two ciphertexts, relinearised; no rescale."""

    def rotate(self, a: Cipher[Any], steps: int) -> Cipher[Any]:
        """Slot s of the result is slot s + steps, modulo the slots."""

    def rescale(self, a: Cipher[Any]) -> Cipher[Any]:
        """The same at the level below, its scale divided by the prime of its level."""

    def drop(self, a: Cipher[Any], level: int) -> Cipher[Any]:
        """The same at a lower level, its scale unchanged."""


def adjust(backend: Backend, cipher: Cipher[Any], level: int) -> Cipher[Any]:
    """A ciphertext at a lower level, at the scale of that level: a plaintext product and a rescale.

    >>> from weft.ckks.parameters import Parameters
    >>> from weft.ckks.simulator import Simulator
    >>> backend = Simulator(Parameters(16384, depth=6))
    >>> low = adjust(backend, backend.encrypt([1.5, 2.5]), level=2)
    >>> low, backend.decrypt(low)[:2].tolist()
    (Cipher(level=2, scale=2^40.000), [1.5, 2.5])
    """
    scale = backend.parameters.adjusting_scale(cipher.level, level)
    if cipher.level > level + 1:
        cipher = backend.drop(cipher, level + 1)
    return backend.rescale(backend.mul_plain(cipher, 1.0, scale))
