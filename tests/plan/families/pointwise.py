"""Pointwise operations of all kinds, and constraints in their midst."""

from tests.plan.writer import COMPLEX, ELEMENTS, FLOATS, INTEGERS, ORDERED, Kind, Writer

NUMBERS = (*FLOATS, *INTEGERS, COMPLEX)
INEXACT = (*FLOATS, COMPLEX)
BITS = (*INTEGERS, "i1")

SMOOTH = """
    cbrt cosine exponential exponential_minus_one log log_plus_one logistic rsqrt sine sqrt tan tanh
"""
UNARY = {
    **dict.fromkeys(SMOOTH.split(), INEXACT),
    **dict.fromkeys(["ceil", "floor", "round_nearest_afz", "round_nearest_even"], FLOATS),
    **dict.fromkeys(["count_leading_zeros", "popcnt"], INTEGERS),
    **dict.fromkeys(["sign", "negate"], (*FLOATS, "i32", COMPLEX)),
    "abs": (*FLOATS, "i32"),
    "not": BITS,
}
BINARY = {
    **dict.fromkeys(["add", "multiply", "maximum", "minimum"], ELEMENTS),
    **dict.fromkeys(["divide", "power", "remainder", "subtract"], NUMBERS),
    **dict.fromkeys(["and", "or", "xor"], BITS),
    **dict.fromkeys(["shift_left", "shift_right_arithmetic", "shift_right_logical"], INTEGERS),
    "atan2": INEXACT,
}
DIRECTIONS = ["EQ", "NE", "GE", "GT", "LE", "LT"]


def unary(w: Writer) -> None:
    name = w.rng.choice(sorted(UNARY))
    a = w.any(elements=UNARY[name])
    w.emit(name, [a], [w.kinds[a]])


def binary(w: Writer) -> None:
    name = w.rng.choice(sorted(BINARY))
    a = w.any(elements=BINARY[name])
    w.emit(name, [a, w.like(a)], [w.kinds[a]])


def compare(w: Writer) -> None:
    a = w.any(elements=ORDERED)
    direction = f"#stablehlo<comparison_direction {w.rng.choice(DIRECTIONS)}>"
    made = Kind(w.kinds[a].shape, "i1")
    w.emit("compare", [a, w.like(a)], [made], [f"comparison_direction = {direction}"])


def convert(w: Writer) -> None:
    a = w.any()
    w.emit("convert", [a], [Kind(w.kinds[a].shape, w.rng.choice(ELEMENTS))])


def of_complex(w: Writer) -> None:
    a = w.any(elements=[COMPLEX])
    w.emit(w.rng.choice(["real", "imag"]), [a], [Kind(w.kinds[a].shape)])


def make_complex(w: Writer) -> None:
    a = w.any(elements=["f32"])
    w.emit("complex", [a, w.like(a)], [Kind(w.kinds[a].shape, COMPLEX)])


def of_floats(w: Writer) -> None:
    a = w.any(elements=FLOATS)
    if w.rng.random() < 0.5:
        w.emit("is_finite", [a], [Kind(w.kinds[a].shape, "i1")])
    else:
        bits = ["exponent_bits = 5 : i32", "mantissa_bits = 2 : i32"]
        w.emit("reduce_precision", [a], [w.kinds[a]], bits)


def select(w: Writer) -> None:
    a = w.any()
    flag = w.need(w.kinds[a].shape if w.rng.random() < 0.6 else (), "i1")
    w.emit("select", [flag, a, w.like(a)], [w.kinds[a]])


def clamp(w: Writer) -> None:
    a = w.any(elements=(*FLOATS, *INTEGERS))
    element = w.kinds[a].element
    low, high = (w.scalar(element) if w.rng.random() < 0.5 else w.like(a) for _ in "lh")
    w.emit("clamp", [low, a, high], [w.kinds[a]])


def constraint(w: Writer) -> None:
    a = w.any()
    sharding = f"sharding = #sdy.sharding{w.sharding(w.kinds[a])}"
    w.emit("sdy.sharding_constraint", [a], [w.kinds[a]], [sharding])


FAMILIES = (
    *(unary,) * 4,
    *(binary,) * 6,
    *(compare, convert, of_complex, make_complex, of_floats, select, clamp, constraint),
)
