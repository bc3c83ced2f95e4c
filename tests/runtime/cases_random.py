"""Applications of operators that draw random numbers or read bits."""

import numpy as np
from tests.runtime.cases import case, numbers, shape_of


def key(rng):
    return rng.integers(0, 1 << 32, 2, dtype="uint32")


def options(rng, dtypes):
    dtype = str(rng.choice(dtypes))
    return {"result_shape": shape_of(rng, 0), "dtype": dtype}


@case("random_uniform", "random_normal", "random_exponential", "random_gumbel")
def floats(rng):
    return [key(rng)], options(rng, ["float32", "float64"])


@case("random_bits")
def bits(rng):
    return [key(rng)], options(rng, ["uint8", "uint16", "uint32", "uint64"])


@case("random_integers")
def integers(rng):
    given = options(rng, ["int8", "int16", "int32", "int64", "uint8", "uint32"])
    most = np.iinfo(given["dtype"]).max
    low = int(rng.integers(0, 100))
    high = low + 1 + int(rng.choice([rng.integers(0, 20), min(most, rng.integers(0, 1 << 46))]))
    return [key(rng)], {**given, "low": low, "high": min(high, most + 1)}


@case("random_split")
def split(rng):
    return [key(rng)], {"result_shape": shape_of(rng, 1, 2)}


@case("random_fold_in")
def fold_in(rng):
    return [key(rng), numbers(rng, shape_of(rng, 0, 2), "int32")], {}


@case("threefry2x32")
def threefry(rng):
    shape = shape_of(rng, 0)
    words = [rng.integers(0, 1 << 32, size, dtype="uint32") for size in ((), (), shape, shape)]
    return [np.asarray(word) for word in words], {}


@case("random_permutation")
def permutation(rng):
    return [key(rng)], {"result_shape": (int(rng.integers(0, 40)),)}


@case("dropout")
def dropout(rng):
    x = numbers(rng, shape_of(rng, 0), str(rng.choice(["float32", "float64"])))
    return [x, key(rng)], {"rate": float(rng.choice([0.0, 0.25, 0.5, 1.0]))}


@case("rng_bit_generator")
def rng_bit_generator(rng):
    state = rng.integers(0, 1 << 64, 2, dtype="uint64")
    given = options(rng, ["uint8", "uint16", "uint32", "uint64"])
    return [state], {**given, "rng_algorithm": str(rng.choice(["THREE_FRY", "PHILOX", "DEFAULT"]))}


@case("bitcast_convert")
def bitcast_convert(rng):
    wide, narrow = ("uint64", "float64", "int64"), ("float32", "uint32", "int32")
    shape = shape_of(rng, 0)
    one, two = str(rng.choice(wide)), str(rng.choice(narrow))
    kind = rng.integers(3)
    if kind == 0:
        dtype = str(rng.choice(narrow))
        return [numbers(rng, shape, two)], {"dtype": dtype, "result_shape": shape}
    if kind == 1:
        return [numbers(rng, shape, one)], {"dtype": two, "result_shape": (*shape, 2)}
    words = rng.integers(0, 1 << 16, (*shape, 2), dtype="uint32")
    return [words], {"dtype": "uint64", "result_shape": shape}


@case("erf_inv")
def erf_inv(rng):
    return [rng.uniform(-1, 1, shape_of(rng)).astype(str(rng.choice(["float32", "float64"])))], {}
