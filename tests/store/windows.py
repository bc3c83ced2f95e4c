"""What windows become: Python's own numbers, one window after the other."""

import struct
from fractions import Fraction
from itertools import product
from math import isfinite, isnan, prod

import numpy as np


def read(bits):
    return struct.unpack("<f", struct.pack("<I", int(bits) << 16))[0]


def nearest_bfloat16(value):
    """The bits of the nearest number with 8 binary places, of two the even one."""
    if isnan(value):
        return 0x7FC0
    (bits,) = struct.unpack("<I", np.float32(value).tobytes())
    near = [b for b in range(max((bits >> 16) - 1, 0), (bits >> 16) + 2) if isfinite(read(b))]
    near = [b for b in near if (b ^ (bits >> 16)) < 0x8000]
    if not near or not isfinite(value):
        return bits >> 16
    exact = Fraction(value)
    return min(near, key=lambda b: (abs(Fraction(read(b)) - exact), b & 1))


def half_up(total, count):
    return (2 * total + count) // (2 * count)


def one_of(values, method, name):
    """What a window becomes, from its elements in arrival order."""
    if method == "first":
        return values[0]
    if name == "bfloat16":
        found = one_of([read(v) for v in values], method, "float64")
        return nearest_bfloat16(float(found))
    if name == "bool" or "int" in name:
        numbers = sorted(int(v) for v in values)
        low, high = numbers[(len(numbers) - 1) // 2], numbers[len(numbers) // 2]
        return {
            "mean": half_up(sum(numbers), len(numbers)),
            "min": numbers[0],
            "max": numbers[-1],
            "median": half_up(low + high, 2),
            "mode": max(numbers, key=lambda n: (numbers.count(n), -n)),
        }[method]
    return float_of(values, method, name)


def float_of(values, method, name):
    wide = np.array(values, "complex128" if name.startswith("complex") else "float64")
    if method == "mean":
        total = wide[0]
        for value in wide[1:]:
            total = total + value
        if name.startswith("complex"):
            return complex(total.real / len(wide), total.imag / len(wide))
        return total / len(wide)
    if any(isnan(v) for v in wide):
        return np.nan
    ordered = sorted(wide)
    middle = (ordered[(len(wide) - 1) // 2], ordered[len(wide) // 2])
    median = (middle[0] + middle[1]) / 2 if len(wide) % 2 == 0 else middle[0]
    return {"min": ordered[0], "max": ordered[-1], "median": median}[method]


def brute(array, count, factors, method, name):
    """The reduced elements of the first `count` ones of an array, in order."""
    found = []
    flat = array.reshape(-1)
    strides = [prod(array.shape[d + 1 :]) for d in range(array.ndim)]
    for at in product(*(range(-(-n // f)) for n, f in zip(array.shape, factors))):
        spans = (range(a * f, min(a * f + f, n)) for a, f, n in zip(at, factors, array.shape))
        places = [sum(i * s for i, s in zip(place, strides)) for place in product(*spans)]
        values = [flat[place] for place in places if place < count]
        if values:
            found.append(one_of(values, method, name))
    return np.array(found, array.dtype)
