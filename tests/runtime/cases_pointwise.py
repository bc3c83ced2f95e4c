"""Applications of pointwise operators."""

import numpy as np
from tests.runtime.cases import case, numbers, shape_of

FLOATS = (
    *(
        "cbrt",
        "ceil",
        "trunc",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "floor",
        "is_finite",
    ),
    *("asinh", "atan", "cosh", "erf", "erfc", "is_inf", "lgamma", "sinh"),
    *("logistic", "round_nearest_afz", "round_nearest_even", "sine", "tan", "tanh", "silu"),
)
INTEGERS = ("popcnt", "count_leading_zeros")


@case(*FLOATS)
def floats(rng):
    return [numbers(rng, shape_of(rng))], {}


@case("gelu")
def gelu(rng):
    return [numbers(rng, shape_of(rng))], {"exact": True} if rng.random() < 0.5 else {}


@case("acos", "asin", "atanh")
def below_one(rng):
    return [np.tanh(numbers(rng, shape_of(rng)))], {}


@case("acosh")
def above_one(rng):
    return [1 + np.abs(numbers(rng, shape_of(rng)))], {}


@case("log", "log2", "log10", "log_plus_one", "rsqrt", "sqrt")
def positive(rng):
    return [np.abs(numbers(rng, shape_of(rng))) + 0.1], {}


@case(*INTEGERS)
def integers(rng):
    dtype = str(rng.choice(["int32", "uint8", "int64"]))
    return [numbers(rng, shape_of(rng), dtype)], {}


@case(
    *("abs", "negate", "relu", "sign", "square"),
    *("sharding_constraint", "propagation_barrier", "data_flow_edge"),
)
def numeric(rng):
    return [numbers(rng, shape_of(rng), str(rng.choice(["float64", "int32"])))], {}


@case("real", "imag")
def complexes(rng):
    shape = shape_of(rng)
    return [numbers(rng, shape) + 1j * numbers(rng, shape)], {}


def repeated(rng, shape):
    """A shape that NumPy repeats to the other."""
    kept = shape[int(rng.integers(0, len(shape) + 1)) :]
    return tuple(1 if rng.random() < 0.3 else n for n in kept)


def pair(rng, dtype):
    shape = shape_of(rng)
    two = [numbers(rng, shape, dtype), numbers(rng, repeated(rng, shape), dtype)]
    return two if rng.random() < 0.5 else two[::-1]


@case("add", "subtract", "multiply", "maximum", "minimum")
def arithmetic(rng):
    return pair(rng, str(rng.choice(["float64", "int32"]))), {}


@case("divide", "floor_divide", "mod", "remainder")
def division(rng):
    x, y = pair(rng, str(rng.choice(["float64", "int32"])))
    return [x, np.where(y == 0, y + 1, y)], {}


@case("atan2", "complex", "next_after", "copysign", "hypot", "logaddexp")
def of_floats(rng):
    return pair(rng, "float64"), {}


@case("power")
def power(rng):
    x, y = pair(rng, "float64")
    return [np.abs(x) + 0.1, y], {}


@case("and", "or", "xor")
def logic(rng):
    return pair(rng, str(rng.choice(["bool", "int32"]))), {}


@case("not")
def negation(rng):
    return [numbers(rng, shape_of(rng), str(rng.choice(["bool", "int32"])))], {}


@case("shift_left", "shift_right_arithmetic", "shift_right_logical")
def shifts(rng):
    shape = shape_of(rng)
    return [numbers(rng, shape, "int32"), rng.integers(0, 40, shape).astype("int32")], {}


@case("compare")
def comparison(rng):
    how = str(rng.choice(["EQ", "NE", "LT", "LE", "GT", "GE"]))
    return pair(rng, "int32"), {"comparison_direction": how}


@case("convert")
def conversion(rng):
    return [numbers(rng, shape_of(rng), "int32")], {"dtype": "float64"}


@case("select")
def selection(rng):
    shape = shape_of(rng)
    flag = numbers(rng, shape if rng.random() < 0.5 else (), "bool")
    return [flag, numbers(rng, shape, "int32"), numbers(rng, shape, "int32")], {}


@case("clamp")
def clamping(rng):
    shape = shape_of(rng)
    edge = shape if rng.random() < 0.5 else ()
    low = numbers(rng, edge, "int32")
    return [low, numbers(rng, shape, "int32"), low + 5], {}


@case("polynomial")
def polynomial(rng):
    attributes = {"coefficients": tuple(rng.normal(size=int(rng.integers(1, 9))).tolist())}
    x = rng.uniform(-3, 5, shape_of(rng))
    if rng.random() < 0.5:
        attributes |= {"low": -3.0, "high": 5.0, "name": "mine"}
    return [x], attributes
