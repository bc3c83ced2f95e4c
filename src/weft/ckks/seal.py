"""`Seal`: the slot operations on real ciphertexts, by Microsoft SEAL.

SEAL is reached through `tenseal.sealapi`. Its own rotations take few steps; the Galois elements
behind them take any: a rotation by k is the element 3^k modulo 2N. SEAL checks security up to
N=2^15, and Weft for every ring.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.ckks import rules
from weft.ckks.backend import Cipher, Counters
from weft.ckks.parameters import Parameters
from weft.errors import WeftError
from weft.extra import needed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.ckks.backend import Slots

Sealed: TypeAlias = Cipher[Any]

LARGEST_CHECKED = 1 << 15
"""The largest ring whose security SEAL checks by itself, after Weft."""


class Seal:
    """The slot operations on ciphertexts of SEAL, with keys for the rotations that are given.

    The keys are made here, in memory, and stay there. One process uses one core.

    >>> backend = Seal(Parameters(8192, depth=2), rotations=[1])
    >>> a = backend.encrypt([1.0, 2.0, 3.0])
    >>> square = backend.rescale(backend.mul(a, a))
    >>> backend.decrypt(backend.rotate(square, 1))[:2].round(4).tolist()
    [4.0, 9.0]
    >>> backend.rotate(a, 2)
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: there is no key for a rotation by 2
    hint: keys were made for 1
    """

    __slots__ = (
        "_api",
        "_context",
        "_decryptor",
        "_encoder",
        "_encryptor",
        "_evaluator",
        "_galois",
        "_levels",
        "_relin",
        "_zeros",
        "counters",
        "parameters",
        "relinearise",
        "rotations",
    )

    def __init__(
        self, parameters: Parameters, rotations: Iterable[int] = (), relinearise: bool = True
    ) -> None:
        self._api = api = needed("tenseal.sealapi", "ckks")
        self.parameters = parameters
        self.rotations = frozenset(rules.steps_of(parameters, rotations))
        self.relinearise = relinearise
        self.counters = Counters()
        self._context = context = _context(api, parameters)
        self._levels = _levels(context)
        generator = api.KeyGenerator(context)
        self._encryptor = api.Encryptor(context, generator.secret_key())
        self._decryptor = api.Decryptor(context, generator.secret_key())
        self._evaluator = api.Evaluator(context)
        self._encoder = api.CKKSEncoder(context)
        self._galois = _galois_keys(api, generator, self.rotations, parameters.ring)
        self._relin = _relin_keys(api, generator) if relinearise else None
        self._zeros = api.Ciphertext()
        self._encryptor.encrypt_zero_symmetric(self._levels[parameters.depth], self._zeros)

    def __repr__(self) -> str:
        return f"Seal({self.parameters}, rotation keys: {len(self.rotations)})"

    def encrypt(self, values: ArrayLike, level: int | None = None) -> Sealed:
        """Encrypt values with the secret key, at the highest level unless one is given."""
        at = self.parameters.level(level)
        scale = self.parameters.scales[at]
        plain = self._encode(values, at, scale)
        self.counters.encryptions += 1
        content = self._api.Ciphertext()
        self._encryptor.encrypt_symmetric(plain, content)
        return Cipher(content, at, scale)

    def decrypt(self, cipher: Sealed) -> Slots:
        """The values of all the slots."""
        self.counters.decryptions += 1
        plain = self._api.Plaintext()
        self._decryptor.decrypt(cipher.content, plain)
        return np.array(self._encoder.decode_double(plain))

    def level_of(self, cipher: Sealed) -> int:
        """How many rescales a ciphertext can still take."""
        return cipher.level

    def add(self, a: Sealed, b: Sealed) -> Sealed:
        """The sum, of the same level and scale."""
        return self._sum(self._evaluator.add, a, b)

    def sub(self, a: Sealed, b: Sealed) -> Sealed:
        """The difference, of the same level and scale."""
        return self._sum(self._evaluator.sub, a, b)

    def negate(self, a: Sealed) -> Sealed:
        """Zero less a ciphertext."""
        self.counters.additions += 1
        return self._done(self._evaluator.negate, a.content, standing=(a.level, a.scale))

    def add_plain(self, a: Sealed, values: ArrayLike) -> Sealed:
        """The sum with values, encoded at the level and the exact scale of the ciphertext."""
        plain = self._encode(values, a.level, a.scale)
        self.counters.plain_additions += 1
        return self._done(self._evaluator.add_plain, a.content, plain, standing=(a.level, a.scale))

    def mul_plain(self, a: Sealed, values: ArrayLike, scale: float | None = None) -> Sealed:
        """The product with values, encoded at the scale of the level unless given; no rescale."""
        standing = rules.plain_product_of(self.parameters, a, scale)
        plain = self._encode(values, a.level, rules.plain_scale(self.parameters, a, scale))
        self.counters.plain_products += 1
        try:
            return self._done(self._evaluator.multiply_plain, a.content, plain, standing=standing)
        except RuntimeError as error:
            _check_transparent(error)
            return self._zero(standing)

    def mul(self, a: Sealed, b: Sealed) -> Sealed:
        """The product of two ciphertexts, relinearised; no rescale."""
        standing = rules.product_of(self.parameters, a, b)
        rules.check_relinearisation(self.relinearise)
        self.counters.products += 1
        product = self._api.Ciphertext()
        if a is b:
            self._evaluator.square(a.content, product)
        else:
            self._evaluator.multiply(a.content, b.content, product)
        return self._done(self._evaluator.relinearize, product, self._relin, standing=standing)

    def rotate(self, a: Sealed, steps: int) -> Sealed:
        """Slot s of the result is slot s + steps, modulo the slots."""
        step = rules.step_of(self.parameters, steps, self.rotations)
        self.counters.rotate(step)
        element = _element(step, self.parameters.ring)
        turn, standing = self._evaluator.apply_galois, (a.level, a.scale)
        return self._done(turn, a.content, element, self._galois, standing=standing)

    def rescale(self, a: Sealed) -> Sealed:
        """The same at the level below, its scale divided by the prime of its level."""
        standing = rules.rescale_of(self.parameters, a)
        self.counters.rescales += 1
        return self._done(self._evaluator.rescale_to_next, a.content, standing=standing)

    def drop(self, a: Sealed, level: int) -> Sealed:
        """The same at a lower level, its scale unchanged."""
        standing = rules.drop_of(self.parameters, a, level)
        self.counters.drops += 1
        low = self._levels[standing.level]
        return self._done(self._evaluator.mod_switch_to, a.content, low, standing=standing)

    def write(self, cipher: Sealed, path: str) -> None:
        """Write a ciphertext to a file; it stays encrypted, and no key goes with it."""
        cipher.content.save(path)

    def read(self, path: str, level: int, scale: float) -> Sealed:
        """Read a ciphertext that stands at a level and a scale."""
        content = self._api.Ciphertext()
        content.load(self._context, path)
        content.scale = scale
        return Cipher(content, level, scale)

    def _encode(self, values: ArrayLike, level: int, scale: float) -> Any:
        slots = rules.slots_of(self.parameters, values, level, scale)
        self.counters.encodings += 1
        plain = self._api.Plaintext()
        # SEAL takes lists: an array would be read number by number, through Python objects.
        given = slots if isinstance(slots, float) else slots.tolist()
        self._encoder.encode(given, self._levels[level], scale, plain)
        return plain

    def _sum(self, operation: Any, a: Sealed, b: Sealed) -> Sealed:
        standing = rules.sum_of(a, b)
        self.counters.additions += 1
        try:
            return self._done(operation, *_at_one_scale(a, b), standing=standing)
        except RuntimeError as error:
            _check_transparent(error)
            hidden = self._api.Ciphertext()
            self._evaluator.add(a.content, self._zero(standing).content, hidden)
            return self._done(operation, hidden, b.content, standing=standing)

    def _zero(self, standing: tuple[int, float]) -> Sealed:
        """Return an encryption of zeros at a level, for a result that anyone could read.

        SEAL refuses a product with zeros, or a ciphertext less itself: nothing is left in it that
        the key hides. Such results are known to whoever computes; they take the encryption of
        zeros that was made with the keys, so that no encryptor is needed here.
        """
        level, scale = standing
        content = self._api.Ciphertext()
        self._evaluator.mod_switch_to(self._zeros, self._levels[level], content)
        content.scale = scale
        return Cipher(content, level, scale)

    def _done(self, operation: Any, *operands: Any, standing: tuple[int, float]) -> Sealed:
        """What an operation gives, in a ciphertext of its own."""
        level, scale = standing
        content = self._api.Ciphertext()
        operation(*operands, content)
        content.scale = scale
        return Cipher(content, level, scale)


def _check_transparent(error: RuntimeError) -> None:
    """Raise any error but that of a ciphertext which anyone could read."""
    if "transparent" not in str(error):
        raise error


def _at_one_scale(a: Sealed, b: Sealed) -> tuple[Any, Any]:
    """The contents of ciphertexts whose scales are the same but for rounding.

    SEAL compares to the last bit, so that it is told one scale; the ciphertexts of Weft, which are
    the truth, keep theirs.
    """
    b.content.scale = a.content.scale
    return a.content, b.content


def _context(api: Any, parameters: Parameters) -> Any:
    given = api.EncryptionParameters(api.SCHEME_TYPE.CKKS)
    given.set_poly_modulus_degree(parameters.ring)
    primes = (*parameters.primes, parameters.special)
    given.set_coeff_modulus([api.Modulus(prime) for prime in primes])
    checked = parameters.ring <= LARGEST_CHECKED and parameters.security
    security = getattr(api.SEC_LEVEL_TYPE, f"TC{checked}" if checked else "NONE")
    context = api.SEALContext(given, True, security)
    if not context.parameters_set():
        raise WeftError(f"SEAL refuses {parameters}: {context.parameters_error_message()}")
    return context


def _levels(context: Any) -> dict[int, Any]:
    """How SEAL names each level."""
    levels = {}
    data = context.first_context_data()
    while data is not None:
        levels[data.chain_index()] = data.parms_id()
        data = data.next_context_data()
    return levels


def _element(step: int, ring: int) -> int:
    return pow(3, step, 2 * ring)


def _galois_keys(api: Any, generator: Any, rotations: Iterable[int], ring: int) -> Any:
    keys = api.GaloisKeys()
    elements = [_element(step, ring) for step in sorted(rotations)]
    if elements:  # SEAL takes none for all the powers of two
        generator.create_galois_keys(elements, keys)
    return keys


def _relin_keys(api: Any, generator: Any) -> Any:
    keys = api.RelinKeys()
    generator.create_relin_keys(keys)
    return keys
