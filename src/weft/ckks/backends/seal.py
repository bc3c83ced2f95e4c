"""`Seal`: the slot operations on real ciphertexts, by Microsoft SEAL.

SEAL is reached through `tenseal.sealapi`. Its own rotations take few steps; the Galois elements
behind them take any: a rotation by k is the element 3^k modulo 2N. SEAL checks security up to
N=2^15, and Weft for every ring.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.ckks.backends.backend import Backend, Ciphertext, LevelScale
from weft.ckks.packing import Floats
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import Operation
from weft.errors import WeftError
from weft.extra import needed

LARGEST_CHECKED = 1 << 15
"""The largest ring whose security SEAL checks by itself, after Weft."""


class Seal(Backend):
    """The slot operations on ciphertexts of SEAL, with keys for the given rotations.

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
    )
    rotations: frozenset[int]

    def __init__(
        self, parameters: Parameters, rotations: Iterable[int] = (), relinearise: bool = True
    ) -> None:
        self._api = api = needed("tenseal.sealapi", "ckks")
        super().__init__(parameters, rotations, relinearise)
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

    def write(self, ciphertext: Ciphertext[Any], path: str) -> None:
        """Write a ciphertext to a file; it stays encrypted, and no key is written with it."""
        ciphertext.content.save(path)

    def read(self, path: str, level: int, scale: float) -> Ciphertext[Any]:
        """Read a ciphertext of a level and a scale from a file."""
        content = self._api.Ciphertext()
        content.load(self._context, path)
        content.scale = scale
        return Ciphertext(content, level, scale)

    def _encode(self, values: float | Floats, level: int, scale: float) -> Any:
        plain = self._api.Plaintext()
        # SEAL takes lists: an array would be read number by number, through Python objects.
        given = values if isinstance(values, float) else values.tolist()
        self._encoder.encode(given, self._levels[level], scale, plain)
        return plain

    def _encrypt(self, plain: Any) -> Any:
        content = self._api.Ciphertext()
        self._encryptor.encrypt_symmetric(plain, content)
        return content

    def _decrypt(self, ciphertext: Ciphertext[Any]) -> Floats:
        plain = self._api.Plaintext()
        self._decryptor.decrypt(ciphertext.content, plain)
        return np.array(self._encoder.decode_double(plain))

    def _apply(self, operation: Operation, result: LevelScale, *operands: Any) -> Any:
        seal, call = self._evaluator, self._call
        match operation, operands:
            case (("add" | "sub"), (a, b)):
                return self._sum(getattr(seal, operation), a, b, result)
            case "mul_plain", _:
                return self._product(result, *operands)
            case "mul", (a, b):
                product = self._api.Ciphertext()
                seal.square(a, product) if a is b else seal.multiply(a, b, product)
                return call(seal.relinearize, result, product, self._relin)
            case "rotate", (a, step):
                element = _element(step, self.parameters.ring)
                return call(seal.apply_galois, result, a, element, self._galois)
            case "drop", (a,):
                return call(seal.mod_switch_to, result, a, self._levels[result.level])
        name = "rescale_to_next" if operation == "rescale" else operation
        return call(getattr(seal, name), result, *operands)

    def _sum(self, operation: Any, a: Any, b: Any, result: LevelScale) -> Any:
        # SEAL compares scales to the last bit: give it one; those of Weft's ciphertexts are exact.
        b.scale = a.scale
        try:
            return self._call(operation, result, a, b)
        except RuntimeError as error:
            _check_transparent(error)
            hidden = self._api.Ciphertext()
            self._evaluator.add(a, self._zero(result), hidden)
            return self._call(operation, result, hidden, b)

    def _product(self, result: LevelScale, a: Any, plain: Any) -> Any:
        try:
            return self._call(self._evaluator.multiply_plain, result, a, plain)
        except RuntimeError as error:
            _check_transparent(error)
            return self._zero(result)

    def _zero(self, result: LevelScale) -> Any:
        """Return an encryption of zeros at a level, for a result that anyone could read.

        SEAL refuses a product with zeros, or a ciphertext less itself: nothing is left in it that
        the key hides. Such results are known to whoever computes; they take the encryption of
        zeros that was made with the keys, so that no encryptor is needed here.
        """
        content = self._api.Ciphertext()
        self._evaluator.mod_switch_to(self._zeros, self._levels[result.level], content)
        content.scale = result.scale
        return content

    def _call(self, operation: Any, result: LevelScale, *operands: Any) -> Any:
        """Return the result of an operation of SEAL in a ciphertext of its own."""
        content = self._api.Ciphertext()
        operation(*operands, content)
        content.scale = result.scale
        return content


def _check_transparent(error: RuntimeError) -> None:
    """Raise an error again unless it is that of a ciphertext which anyone could read."""
    if "transparent" not in str(error):
        raise error


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
    """Return SEAL's name of each level."""
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
