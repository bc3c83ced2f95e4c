"""Random numbers from counter-based generators, and the inverse of the error function.

    random_uniform   [k] -> i0 i1
    dropout          i0 i1, [k] -> i0 i1

The generator is a function of a key and a counter, and the counter of an element is its row-major
index in the whole array. So a block computes its own numbers from its box, without communication
and without state, and they are the same however the array is cut. Threefry-2x32 gives the numbers
of `jax.random` with `jax_threefry_partitionable`; Philox-4x32 gives the stream of XLA's `PHILOX`.
Both generators are from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

Floats are made of sums, products and quotients alone, which every library rounds alike, so that
they are the same to the bit on every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log, prod, sqrt
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang.dtype import as_floats, dtype_name, for_kinds, itemsize, kind
from weft.lang.kernel import Attributes, Block, Kernel, bitcast, cast, native
from weft.lang.notation import Notation, aligned, numbered, whole
from weft.lang.operator import define
from weft.lang.operators.pointwise import sign_pointwise
from weft.lang.signature import Signature
from weft.space import ZRange
from weft.values import Point

Words: TypeAlias = tuple[Any, ...]
"""Arrays of 32-bit words, or Python's integers."""
Key: TypeAlias = tuple[int, int]

MASK = 0xFFFFFFFF
CHUNK = 1 << 15
"""The number of elements that are drawn at once, so that their words stay in the cache."""


class WordArithmetic(NamedTuple):
    """How words of 32 bits are computed: by Python's integers, or by arrays of a library.

    Torch has no arithmetic for uint32: there, words are int64, cut to 32 bits after each step.
    """

    xp: Any = None
    is_wide: bool = True

    @classmethod
    def of(cls, xp: Any) -> WordArithmetic:
        """Return the arithmetic of a library."""
        return cls(xp, is_wide="torch" in getattr(xp, "__name__", ""))

    @property
    def dtype(self) -> Any:
        """The library's own dtype of a word."""
        return native(self.xp, "int64" if self.is_wide else "uint32")

    def constant(self, number: int) -> Any:
        """Return a word that array words can be combined with."""
        return number if self.xp is None else self.xp.asarray(number, dtype=self.dtype)

    def cut(self, x: Any) -> Any:
        """Return the low 32 bits, changing an array in place."""
        if self.is_wide:
            x &= MASK
        return x

    def multiply(self, x: Any, by: int) -> tuple[Any, Any]:
        """Return the high and the low word of a product."""
        if self.is_wide:
            product = x * by  # where it overflows 64 bits, its low 64 bits remain
            return (product >> 32) & MASK, product & MASK
        low, high = x & 0xFFFF, x >> 16
        first, second = (low * (by & 0xFFFF)) >> 16, low * (by >> 16)
        third = high * (by & 0xFFFF) + first
        carried = (third >> 16) + (((third & 0xFFFF) + second) >> 16)
        return high * (by >> 16) + carried, x * self.constant(by)


INTEGERS = WordArithmetic()

# Generators.

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(words: WordArithmetic, key: Key, x0: Any, x1: Any) -> Words:
    """Return two words for each counter of two words, by 20 rounds of Threefry.

    >>> [hex(word) for word in threefry2x32(INTEGERS, (0, 0), 0, 0)]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x0 = words.cut(x0 + words.constant(keys[0]))
    x1 = words.cut(x1 + words.constant(keys[1]))
    for step in range(5):
        for by in _ROTATIONS[step % 2]:
            x0 += x1
            x0 = words.cut(x0)
            low = x1 << by
            x1 >>= 32 - by
            x1 |= low
            x1 = words.cut(x1)
            x1 ^= x0
        x0 += words.constant(keys[(step + 1) % 3])
        x1 += words.constant((keys[(step + 2) % 3] + step + 1) & MASK)
        x0, x1 = words.cut(x0), words.cut(x1)
    return x0, x1


def philox4x32(words: WordArithmetic, key: Key, counter: Words) -> Words:
    """Return four words for each counter of four words, the lowest first, by 10 rounds of Philox.

    >>> [hex(word) for word in philox4x32(INTEGERS, (0, 0), (0, 0, 0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = words.multiply(c0, 0xD2511F53)
        high1, low1 = words.multiply(c2, 0xCD9E8D57)
        c0, c1 = high1 ^ c1 ^ words.constant(k0), low1
        c2, c3 = high0 ^ c3 ^ words.constant(k1), low0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def fold(key: Key, number: int) -> Key:
    """Return a new key from a key and a number below 2**64, as `jax.random.fold_in` does.

    >>> fold((0, 7), 3)
    (276534068, 1641862660)
    """
    k0, k1 = threefry2x32(INTEGERS, key, number >> 32, number & MASK)
    return k0, k1


# Counters.


def _counters(xp: Any, box: ZRange, shape: Point, halved: int | None = None) -> Words:
    """Return the high and low words of the row-major index of each element in a box, flattened.

    Two neighbours along a dimension that is halved have one index.
    """
    words = WordArithmetic.of(xp)
    is_long = prod(shape) > MASK
    dtype = native(xp, "int64") if is_long else words.dtype
    index, stride = xp.zeros((1,) * max(1, box.ndim), dtype=dtype), 1
    for axis in reversed(range(box.ndim)):
        line = xp.arange(box.start[axis], box.stop[axis], dtype=native(xp, _counting(xp)))
        line = xp.astype(line // 2 if axis == halved else line, dtype)
        line = line * xp.asarray(stride, dtype=dtype)
        index = index + xp.reshape(line, (-1, *(1,) * (box.ndim - axis - 1)))
        stride *= -(-shape[axis] // 2) if axis == halved else shape[axis]
    low = xp.reshape(index, (-1,))
    if not is_long:
        return xp.zeros_like(low), low
    return xp.astype(low >> 32, words.dtype), xp.astype(low & MASK, words.dtype)


def _counting(xp: Any) -> str:
    return dtype_name(xp.arange(1).dtype)


def _plus(words: WordArithmetic, high: Any, low: Any, number: int) -> Words:
    """Return the high and low words of a sum, and what is carried beyond 64 bits."""
    low, carry = _add(words, low, number & MASK)
    high, one = _add(words, high, number >> 32)
    high, two = _add(words, high, carry)
    return high, low, one | two


def _add(words: WordArithmetic, x: Any, y: Any) -> Words:
    """Return the sum of two words, the second an integer or an array, and the carry."""
    y = words.constant(y) if isinstance(y, int) else y
    total = x + y
    if words.is_wide:
        return total & MASK, total >> 32
    return total, words.xp.astype(total < y, words.dtype)


class BitStream(NamedTuple):
    """The random bits of the elements in a chunk: those of a key, at their counters."""

    words: WordArithmetic
    generator: str
    key: Key
    high: Any
    low: Any

    def draw(self, bits: int, key: Key | None = None) -> Words:
        """Return a word for each element, or for 64 bits the high and the low one."""
        if self.generator == "philox":
            found = self._philox(self.key if key is None else key, bits)
            return (found[1], found[0]) if bits == 64 else found
        x0, x1 = threefry2x32(self.words, key or self.key, self.high, self.low)
        return (x0, x1) if bits == 64 else (x0 ^ x1,)

    def _philox(self, key: Key, bits: int) -> Words:
        none = self.words.xp.zeros_like(self.low)
        return philox_at(self.words, key, self.high, self.low, bits, lambda x: (*x, none, none))


def philox_at(
    words: WordArithmetic,
    key: Key,
    high: Any,
    low: Any,
    bits: int,
    counter: Callable[[Words], Words],
) -> Words:
    """Return the words of elements by their numbers in a stream, the low word first.

    Each counter gives four words, to four elements of 32 bits or two of 64. `counter` returns the
    four words of a counter from its number, given as a low and a high word.
    """
    xp, shift = words.xp, 2 if bits <= 32 else 1
    lane = low & ((1 << shift) - 1)
    number = (low >> shift) | words.cut(high << (32 - shift)), high >> shift
    made = philox4x32(words, key, counter(number))
    if bits <= 32:
        pairs = [xp.where(lane & 1 == 0, one, two) for one, two in (made[:2], made[2:])]
        return (xp.where(lane < 2, *pairs),)
    return tuple(xp.where(lane == 0, made[n], made[n + 2]) for n in range(2))


def key_of(key: Any) -> Key:
    """Return the two words of a key, an array of shape [2]."""
    return int(key[0]), int(key[1])


# Numbers of a dtype.

_MANTISSAS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def as_bits(words: WordArithmetic, drawn: Words, dtype: str) -> Any:
    """Return drawn words as integers of a dtype, with all their bits."""
    xp, bits, unsigned = words.xp, 8 * itemsize(dtype), f"uint{8 * itemsize(dtype)}"
    if bits == 64:
        wide = native(xp, "int64" if words.is_wide else "uint64")
        made = (xp.astype(drawn[0], wide) << 32) | xp.astype(drawn[1], wide)
    else:
        made = drawn[0] & ((1 << bits) - 1) if bits < 32 else drawn[0]
        made = xp.astype(made, native(xp, unsigned))
    return made if dtype_name(made.dtype) == dtype else bitcast(xp, made, dtype)


def uniform(stream: BitStream, dtype: str) -> Any:
    """Return floats in [0, 1): random mantissas, times a power of two.

    They have the bits that `jax.random.uniform` draws; floats of 16 bits are returned as float32.
    """
    mantissa, xp = _MANTISSAS[dtype], stream.words.xp
    if dtype == "float64":
        high, low = stream.draw(64)
        wide = native(xp, "float64")
        return xp.astype(high, wide) * 2.0**-32 + xp.astype(low >> 12, wide) * 2.0**-52
    width = {"float32": 32, "float16": 16, "bfloat16": 8}[dtype]
    (word,) = stream.draw(32)
    word = (word if width == 32 else word & ((1 << width) - 1)) >> (width - mantissa)
    return xp.astype(word, native(xp, "float32")) * 2.0**-mantissa


def logarithm(xp: Any, x: Any) -> Any:
    """Return the logarithm of positive numbers, the same in every library.

    x = m * 2**e with m near 1, and log(m) = 2 atanh(s) with s = (m - 1) / (m + 1), by its series.
    """
    is_double = dtype_name(x.dtype) == "float64"
    integer, mantissa, terms = ("int64", 52, 11) if is_double else ("int32", 23, 5)
    middle = 0x3FE6A09E667F3BCD if is_double else 0x3F3504F3  # the bits of the root of a half
    bits = bitcast(xp, x, integer)
    exponent = (bits - middle) >> mantissa
    m = bitcast(xp, bits - (exponent << mantissa), dtype_name(x.dtype))
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = square * (1 / (2 * terms - 1))
    for n in range(terms - 2, 0, -1):
        series = (series + 1 / (2 * n + 1)) * square
    return xp.astype(exponent, x.dtype) * log(2) + (series + 1.0) * (2.0 * s)


_ERF_INV = {
    "float32": (
        (5.0, 2.5, """
            2.81022636e-08 3.43273939e-07 -3.5233877e-06 -4.39150654e-06 0.00021858087
            -0.00125372503 -0.00417768164 0.246640727 1.50140941"""),
        (float("inf"), 3.0, """
            -0.000200214257 0.000100950558 0.00134934322 -0.00367342844 0.00573950773
            -0.0076224613 0.00943887047 1.00167406 2.83297682"""),
    ),
    "float64": (
        (6.25, 3.125, """
            -3.6444120640178196996e-21 -1.685059138182016589e-19 1.2858480715256400167e-18
            1.115787767802518096e-17 -1.333171662854620906e-16 2.0972767875968561637e-17
            6.6376381343583238325e-15 -4.0545662729752068639e-14 -8.1519341976054721522e-14
            2.6335093153082322977e-12 -1.2975133253453532498e-11 -5.4154120542946279317e-11
            1.051212273321532285e-09 -4.1126339803469836976e-09 -2.9070369957882005086e-08
            4.2347877827932403518e-07 -1.3654692000834678645e-06 -1.3882523362786468719e-05
            0.0001867342080340571352 -0.00074070253416626697512 -0.0060336708714301490533
            0.24015818242558961693 1.6536545626831027356"""),
        (16.0, 3.25, """
            2.2137376921775787049e-09 9.0756561938885390979e-08 -2.7517406297064545428e-07
            1.8239629214389227755e-08 1.5027403968909827627e-06 -4.013867526981545969e-06
            2.9234449089955446044e-06 1.2475304481671778723e-05 -4.7318229009055733981e-05
            6.8284851459573175448e-05 2.4031110387097893999e-05 -0.0003550375203628474796
            0.00095328937973738049703 -0.0016882755560235047313 0.0024914420961078508066
            -0.0037512085075692412107 0.005370914553590063617 1.0052589676941592334
            3.0838856104922207635"""),
        (float("inf"), 5.0, """
            -2.7109920616438573243e-11 -2.5556418169965252055e-10 1.5076572693500548083e-09
            -3.7894654401267369937e-09 7.6157012080783393804e-09 -1.4960026627149240478e-08
            2.9147953450901080826e-08 -6.7711997758452339498e-08 2.2900482228026654717e-07
            -9.9298272942317002539e-07 4.5260625972231537039e-06 -1.9681778105531670567e-05
            7.5995277030017761139e-05 -0.00021503011930044477347 -0.00013871931833623122026
            1.0103004648645343977 4.8499064014085844221"""),
    ),
}  # fmt: skip
"""For each range of w = -log(1 - x²): its end, its centre, the coefficients of a polynomial.

The first range is in w, the others in its square root. From M. Giles, "Approximating the erfinv
function", GPU Computing Gems, 2012.
"""


def _square_root(xp: Any, x: Any) -> Any:
    """Return the square root of numbers above 1, by Newton's method; libraries round it variously.

    Half of a number's bits, as an integer, is a guess that is right to 4 %.
    """
    is_double = dtype_name(x.dtype) == "float64"
    integer, half = ("int64", 0x1FF7A3BEA91D9B1B) if is_double else ("int32", 0x1FBD1DF5)
    x = xp.where(x > 1.0, x, xp.ones_like(x))
    root = bitcast(xp, (bitcast(xp, x, integer) >> 1) + half, dtype_name(x.dtype))
    for _ in range(4 if is_double else 3):
        root = 0.5 * (root + x / root)
    return root


def erf_inv(xp: Any, x: Any) -> Any:
    """Return the inverse of the error function, the same in every library; ±inf at ±1."""
    inside = (x > -1.0) & (x < 1.0)
    safe = xp.where(inside, x, xp.zeros_like(x))
    w = -logarithm(xp, (1.0 - safe) * (1.0 + safe))
    w = xp.where(w > 0.0, w, xp.zeros_like(w))
    root, result = _square_root(xp, w), None
    for number, (end, centre, text) in enumerate(reversed(_ERF_INV[dtype_name(x.dtype)]), 1):
        is_first = number == len(_ERF_INV[dtype_name(x.dtype)])
        at, terms = (w if is_first else root) - centre, list(map(float, text.split()))
        value = xp.full_like(at, terms[0])
        for term in terms[1:]:
            value = value * at + term
        result = value if result is None else xp.where(w < end, value, result)
    nan, inf = xp.full_like(x, float("nan")), xp.full_like(x, float("inf"))
    outside = xp.where(x == 1.0, inf, xp.where(x == -1.0, -inf, nan))
    return xp.where(inside, result * safe, outside)


# Signatures.


def sign_random(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a key, which is not cut, and numbers.

    >>> print(sign_random([(2,)], {"result_shape": (8, 4)}))
    [k] -> i0 i1  {i0=8, i1=4, k=2}
    """
    _check_keys(shapes)
    result = attributes["result_shape"]
    sizes = {f"i{dim}": size for dim, size in enumerate(result)}
    return Signature(Notation([[whole("k")]], [numbered("i", len(result))]), shapes, sizes)


def sign_split(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a key, and a key for each of some numbers; keys are not cut.

    >>> print(sign_split([(2,)], {"result_shape": (8,)}))
    [k] -> i0 [w]  {i0=8, w=2, k=2}
    """
    line = sign_random(shapes, attributes)
    rows = (*line.notation.results[0], whole("w"))
    return Signature(Notation(line.notation.operands, [rows]), shapes, {**line.sizes, "w": 2})


def sign_fold_in(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a key and integers, and a key for each of these; keys are not cut.

    >>> print(sign_fold_in([(2,), (8,)], {}).notation)
    [k], i0 -> i0 [w]
    """
    _check_keys(shapes[:1])
    dims = numbered("i", len(shapes[1]))
    return Signature(Notation([[whole("k")], dims], [[*dims, whole("w")]]), shapes, {"w": 2})


def sign_permutation(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a key and the numbers of a permutation, neither of which is cut.

    >>> print(sign_permutation([(2,)], {"result_shape": (8,)}))
    [k] -> [n]  {n=8, k=2}
    """
    _check_keys(shapes)
    (size,) = attributes["result_shape"]
    return Signature(Notation([[whole("k")]], [[whole("n")]]), shapes, {"n": size})


def sign_dropout(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an array and a key.

    >>> print(sign_dropout([(8, 4), (2,)], {"rate": 0.5}).notation)
    i0 i1, [k] -> i0 i1
    """
    _check_keys(shapes[1:])
    rate = attributes["rate"]
    if not 0 <= rate <= 1:
        raise WeftError(f"the rate of dropout is {rate}, expected 0 to 1")
    dims = numbered("i", len(shapes[0]))
    return Signature(Notation([dims, [whole("k")]], [dims]), shapes)


def _check_keys(shapes: Sequence[Point]) -> None:
    if list(shapes) != [(2,)]:
        given = ", ".join(str(list(shape)) for shape in shapes) or "nothing"
        raise WeftError(
            f"expected one random key, uint32[2], got {given}",
            hint="ops.random_key(seed); one of several keys is keys[0]",
        )


def sign_threefry(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign the two words of a key and those of counters; two words are returned for each.

    >>> print(sign_threefry([(), (), (8, 4), (8, 4)], {}).notation)
    , , i0 i1, i0 i1 -> i0 i1, i0 i1
    """
    operands, result = aligned("i", shapes)
    return Signature(Notation(operands, [result, result]), shapes)


def sign_rng_bit_generator(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a state that is not cut, and random bits.

    >>> print(sign_rng_bit_generator([(2,)], {"result_shape": (8, 4)}).notation)
    [s] -> [t], i0 i1
    """
    bits = attributes["result_shape"]
    if len(shapes) != 1 or len(shapes[0]) != 1:
        raise WeftError(f"expected a state of one dimension, got {list(map(list, shapes))}")
    sizes = {f"i{dim}": size for dim, size in enumerate(bits)} | {"t": shapes[0][0]}
    results = [[whole("t")], numbered("i", len(bits))]
    return Signature(Notation([[whole("s")]], results), shapes, sizes)


# Dtype rules.


def _drawn(kinds: str, default: str) -> Callable[[Sequence[str], Attributes], Sequence[str]]:
    """Return the rule of numbers drawn by a key: the `dtype` among the attributes."""

    def rule(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
        _check_key_dtype(dtypes[0])
        dtype = attributes.get("dtype") or default
        if kind(dtype) not in kinds.split() or (kind(dtype) == "float" and dtype not in _MANTISSAS):
            words = ", ".join(_MANTISSAS) if kinds == "float" else "int or uint"
            raise WeftError(f"random numbers of {dtype} are not defined: expected {words}")
        return [dtype]

    return rule


def _check_key_dtype(dtype: str) -> None:
    if dtype != "uint32":
        raise WeftError(
            f"expected a random key, uint32[2], got {dtype}", hint="ops.random_key(seed)"
        )


def _keys(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    _check_key_dtype(dtypes[0])
    if len(dtypes) > 1 and kind(dtypes[1]) not in ("int", "uint"):
        raise WeftError(f"a key is folded with integers, not with {dtypes[1]}")
    return ["uint32"]


def _kept(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    _check_key_dtype(dtypes[1])
    return for_kinds("float complex")(dtypes[:1], {})


def _state_and_bits(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtypes of a state and of bits; those of floats are not defined."""
    dtype = attributes.get("dtype") or "uint32"
    if dtypes[0] != "uint64" or kind(dtype) not in ("int", "uint"):
        raise WeftError(f"random bits of {dtype} from a state of {dtypes[0]} are not supported")
    return [dtypes[0], dtype]


# Kernels.


def _in_chunks(block: Block, box: ZRange, counters: Words, make: Callable[..., Any]) -> Any:
    """Return the elements of a box, made of their counters chunk by chunk."""
    xp, size = block.xp, counters[0].shape[0]
    if size <= CHUNK:
        return xp.reshape(make(*counters), box.shape)
    starts = range(0, size, CHUNK)
    parts = [make(*(x[at : at + CHUNK] for x in counters)) for at in starts]
    return xp.reshape(xp.concat(parts), box.shape)


Maker: TypeAlias = Callable[[BitStream, Attributes, str], Any]
"""Makes numbers of a dtype from random bits and attributes."""


def draws(make: Maker, default: str = "float32") -> Kernel:
    """Return the kernel that makes numbers of a dtype from streams of random bits."""

    def kernel(block: Block, key: Any) -> Any:
        words, given = WordArithmetic.of(block.xp), block.attributes
        dtype, box = given.get("dtype") or default, block.results[0]
        generator = given.get("generator") or "threefry"
        if generator not in ("threefry", "philox"):
            raise WeftError(f"there is no generator {generator}", hint="threefry or philox")
        found = key_of(key)

        def chunk(high: Any, low: Any) -> Any:
            made = make(BitStream(words, generator, found, high, low), given, dtype)
            return cast(block.xp, made, dtype)

        counters = _counters(block.xp, box, block.signature.result_shapes[0])
        return _in_chunks(block, box, counters, chunk)

    return kernel


def bits_of(stream: BitStream, attributes: Attributes, dtype: str) -> Any:
    """Draw random bits."""
    return as_bits(stream.words, stream.draw(max(32, 8 * itemsize(dtype))), dtype)


def uniform_of(stream: BitStream, attributes: Attributes, dtype: str) -> Any:
    """Draw from the uniform distribution on [0, 1)."""
    return uniform(stream, dtype)


def normal_of(stream: BitStream, attributes: Attributes, dtype: str) -> Any:
    """Draw from the normal distribution: the inverse error function of numbers in (-1, 1)."""
    xp = stream.words.xp
    least = -1 + 2.0 ** -(_MANTISSAS[dtype] + 1)
    x = uniform(stream, dtype) * 2.0 + least
    x = cast(xp, cast(xp, x, dtype), "float64" if dtype == "float64" else "float32")
    made = cast(xp, erf_inv(xp, x), dtype)
    return made * xp.asarray(sqrt(2), dtype=made.dtype)


def exponential_of(stream: BitStream, attributes: Attributes, dtype: str) -> Any:
    """Draw from the exponential distribution."""
    return -logarithm(stream.words.xp, 1.0 - uniform(stream, dtype))


def gumbel_of(stream: BitStream, attributes: Attributes, dtype: str) -> Any:
    """Draw from Gumbel's distribution, whose largest of several sums is a random choice."""
    xp = stream.words.xp
    tiny = 2.0 ** (-1022 if dtype == "float64" else -14 if dtype == "float16" else -126)
    x = -logarithm(xp, cast(xp, uniform(stream, dtype), _wide(dtype)) + tiny)
    return -logarithm(xp, x)


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def integers_of(stream: BitStream, attributes: Attributes, dtype: str) -> Any:
    """Draw integers from `low` to below `high`, those of `jax.random.randint`.

    A draw is the remainder of a random number of 64 bits, or of 128 for dtypes of 64. Where the
    range is above the square root of the numbers of the dtype, it is that of half as many bits.
    """
    words, xp, bits = stream.words, stream.words.xp, max(32, 8 * itemsize(dtype))
    low, span = attributes["low"], attributes["high"] - attributes["low"]
    drawn = stream.draw(bits, fold(stream.key, 1))
    if span <= 1 << bits // 2:
        drawn = (*stream.draw(bits, fold(stream.key, 0)), *drawn)
    wide = words.dtype if span <= 1 << 16 else native(xp, "int64")
    rest, by = xp.zeros(drawn[0].shape, dtype=wide), xp.asarray(span, dtype=wide)
    for word in drawn:
        for half in (word >> 16, word & 0xFFFF):
            rest = ((rest << 16) | xp.astype(half, wide)) % by
    counting = native(xp, _counting(xp))
    return xp.astype(rest, counting) + xp.asarray(low, dtype=counting)


def split(block: Block, key: Any) -> Any:
    """Return a new key for each number, as `jax.random.split` does."""
    box = block.results[0]
    numbers = ZRange(box.start[:-1], box.stop[:-1])
    return _keys_at(block, key, *_counters(block.xp, numbers, block.attributes["result_shape"]))


def fold_in(block: Block, key: Any, data: Any) -> Any:
    """Return a new key for each integer, modulo 2**32, as `jax.random.fold_in` does."""
    xp, words = block.xp, WordArithmetic.of(block.xp)
    low = words.cut(xp.astype(xp.reshape(data, (-1,)), words.dtype))
    return _keys_at(block, key, xp.zeros_like(low), low)


def _keys_at(block: Block, key: Any, high: Any, low: Any) -> Any:
    found = threefry2x32(WordArithmetic.of(block.xp), key_of(key), high, low)
    keys = block.xp.reshape(block.xp.stack(found, axis=-1), block.results[0].shape)
    return cast(block.xp, keys, "uint32")


def permutation(block: Block, key: Any) -> Any:
    """Return the numbers below a size in random order: sorted by random bits, several times.

    Bits may collide; after these rounds it is unlikely that a pair did in all of them.
    """
    xp, words, (size,) = block.xp, WordArithmetic.of(block.xp), block.results[0].shape
    generator = block.attributes.get("generator") or "threefry"
    order, found = xp.arange(size), key_of(key)
    for _ in range(ceil(3 * log(max(1, size)) / log(MASK))):
        found, own = fold(found, 0), fold(found, 1)
        counters = _counters(xp, block.results[0], (size,))
        (bits,) = BitStream(words, generator, own, *counters).draw(32)
        order = xp.take(order, xp.argsort(bits, stable=True), axis=0)
    return cast(xp, order, block.attributes.get("dtype") or "int64")


def dropout(block: Block, x: Any, key: Any) -> Any:
    """Set elements to zero at a rate, and divide the others by the rate at which they are kept."""
    xp, given = block.xp, block.attributes
    kept = 1 - given["rate"]
    if kept == 0:
        return xp.zeros_like(x)
    words, found = WordArithmetic.of(xp), key_of(key)
    generator = given.get("generator") or "threefry"

    def chunk(high: Any, low: Any) -> Any:
        drawn = uniform(BitStream(words, generator, found, high, low), "float32")
        return drawn < xp.asarray(kept, dtype=drawn.dtype)

    counters = _counters(xp, block.results[0], block.signature.result_shapes[0])
    flags = _in_chunks(block, block.results[0], counters, chunk)
    return xp.where(flags, x / kept, xp.zeros_like(x))


def threefry(block: Block, k0: Any, k1: Any, x0: Any, x1: Any) -> Words:
    """Return the words of counters that a program computed."""
    xp, words = block.xp, WordArithmetic.of(block.xp)
    lists = [xp.reshape(x, (-1,)) for x in (x0, x1)]  # NumPy's scalars warn where words overflow
    counters = [words.cut(xp.astype(x, words.dtype)) for x in lists]
    found = threefry2x32(words, (int(k0), int(k1)), *counters)
    return tuple(xp.reshape(cast(xp, x, "uint32"), x0.shape) for x in found)


def rng_bit_generator(block: Block, state: Any) -> tuple[Any, Any]:
    """Return a new state, and the random bits that XLA has on a CPU for each algorithm."""
    xp = block.xp
    halves = bitcast(xp, state, "uint32")
    key, *rest = (int(halves[n, 0]) | int(halves[n, 1]) << 32 for n in range(state.shape[0]))
    is_threefry = block.attributes.get("rng_algorithm") == "THREE_FRY"
    if len(rest) not in ((1,) if is_threefry else (1, 2)):
        raise WeftError(f"a state of {len(rest) + 1} words does not fit the random algorithm")
    made, count = (_xla_threefry if is_threefry else _xla_philox)(block, key, *rest)
    after = key | (sum(word << 64 * n for n, word in enumerate(rest)) + count) << 64
    new = [[(after >> 64 * n + at) & MASK for at in (0, 32)] for n in range(len(rest) + 1)]
    return bitcast(xp, xp.asarray(new, dtype=native(xp, "uint32")), "uint64"), made


def _xla_threefry(block: Block, key: int, start: int) -> tuple[Any, int]:
    """Return bits, and the number of counters that they take.

    A counter gives 64 bits: one element, or two neighbours along one dimension.
    """
    xp, words, box = block.xp, WordArithmetic.of(block.xp), block.results[1]
    shape, dtype = block.signature.result_shapes[1], block.attributes.get("dtype") or "uint32"
    is_whole = itemsize(dtype) == 8
    axis = None if is_whole else _paired_axis(shape)

    def chunk(high: Any, low: Any, lane: Any) -> Any:
        high, low, _ = _plus(words, high, low, start)
        x0, x1 = threefry2x32(words, (key & MASK, key >> 32), low, high)
        return as_bits(words, (x1, x0) if is_whole else (xp.where(lane == 0, x0, x1),), dtype)

    counters = *_counters(xp, box, shape, axis), _lanes(xp, box, axis)
    count = prod(-(-size // 2) if n == axis else size for n, size in enumerate(shape))
    return _in_chunks(block, box, counters, chunk), count


def _xla_philox(block: Block, key: int, start: int, top: int | None = None) -> tuple[Any, int]:
    """Return bits, and the number of counters that they take, each of 128 bits.

    A state of two words has a counter of 64 bits, whose high half is the key.
    """
    xp, words, box = block.xp, WordArithmetic.of(block.xp), block.results[1]
    shape, dtype = block.signature.result_shapes[1], block.attributes.get("dtype") or "uint32"
    bits = max(32, 8 * itemsize(dtype))

    def counter(number: Words) -> Words:
        c1, c0, carry = _plus(words, number[1], number[0], start)
        c3, c2, _ = _plus(words, xp.zeros_like(carry), carry, key if top is None else top)
        return c0, c1, c2, c3

    def chunk(high: Any, low: Any) -> Any:
        made = philox_at(words, (key & MASK, key >> 32), high, low, bits, counter)
        return as_bits(words, made[::-1], dtype)

    counters = _counters(xp, box, shape)
    return _in_chunks(block, box, counters, chunk), -(-prod(shape) * bits // 128)


def _paired_axis(shape: Point) -> int | None:
    """Return the dimension whose neighbours share a counter: an even one, or else the largest."""
    even = [axis for axis, size in enumerate(shape) if size % 2 == 0]
    return even[0] if even else shape.index(max(shape)) if shape else None


def _lanes(xp: Any, box: ZRange, axis: int | None) -> Any:
    """Return for each element of a box, flattened, whether its index along an axis is odd."""
    if axis is None:
        return xp.zeros((box.size,), dtype=xp.int32)
    line = xp.arange(box.start[axis], box.stop[axis], dtype=xp.int32) % 2
    line = xp.reshape(line, (-1, *(1,) * (box.ndim - axis - 1)))
    return xp.reshape(xp.broadcast_to(line, box.shape), (-1,))


# Operators.


def _draw(
    name: str, make: Maker, kinds: str = "float", default: str = "float32", extra: str = ""
) -> None:
    define(
        name,
        sign_random,
        draws(make, default),
        f"result_shape generator {extra}",
        flops=60,
        dtypes=_drawn(kinds, default),
        workspace=5.0,
    )


_draw("random_bits", bits_of, "int uint", "uint32")
_draw("random_integers", integers_of, "int uint", "int64", "low high")
_draw("random_uniform", uniform_of)
_draw("random_normal", normal_of)
_draw("random_exponential", exponential_of)
_draw("random_gumbel", gumbel_of)
define("random_split", sign_split, split, "result_shape", flops=60, dtypes=_keys)
define("random_fold_in", sign_fold_in, fold_in, flops=60, dtypes=_keys)
define(
    "random_permutation",
    sign_permutation,
    permutation,
    "result_shape generator",
    flops=120,
    dtypes=_drawn("int uint", "int64"),
    workspace=4.0,
)
define(
    "dropout",
    sign_dropout,
    dropout,
    "rate generator",
    passes="both",
    keeps={"sum": [(0,)]},
    flops=60,
    dtypes=_kept,
    accumulates="always",
    workspace=5.0,
)
define(
    "rng_bit_generator",
    sign_rng_bit_generator,
    rng_bit_generator,
    "result_shape rng_algorithm",
    flops=60,
    dtypes=_state_and_bits,
    workspace=6.0,
)
define(
    "threefry2x32",
    sign_threefry,
    threefry,
    passes="both",
    flops=60,
    dtypes=lambda dtypes, _: ["uint32", "uint32"],
    workspace=4.0,
)
define(
    "erf_inv",
    sign_pointwise,
    lambda block, x: erf_inv(block.xp, x),
    passes="both",
    flops=40,
    dtypes=for_kinds("float"),
    conversion=as_floats,
    accumulates="always",
    workspace=10.5,
)
