"""Random applications of every operator: arrays and attributes, by the operator's name."""

import numpy as np

CASES = {}
"""For each operator what makes (operands, attributes) from a random generator."""


def case(*names):
    """Register a maker of applications under the names of operators."""

    def add(make):
        for name in names:
            assert name not in CASES, name
            CASES[name] = make
        return make

    return add


def shape_of(rng, low=1, high=3, largest=7):
    """A random shape."""
    return tuple(int(n) for n in rng.integers(1, largest + 1, rng.integers(low, high + 1)))


def numbers(rng, shape, dtype="float64"):
    """Random numbers: small integers, so that sums are exact in any order, or floats."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0 if dtype[0] == "u" else -9, 10, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def some_dtype(rng):
    """A dtype for arithmetic."""
    return str(rng.choice(["float64", "float32", "int64", "int32"]))
