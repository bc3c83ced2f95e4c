"""Monoids that a user defines, for tests: each with what NumPy makes of an array along one axis."""

import numpy as np

from weft.lang.monoid import Monoid, highest, lowest

SPREAD = Monoid(
    "spread",
    lambda xp, a, b: (xp.minimum(a["low"], b["low"]), xp.maximum(a["high"], b["high"])),
    identity=(highest, lowest),
    components=lambda dtype: {"low": dtype, "high": dtype},
    lift=lambda xp, x, index: (x, x),
)
PARITY = Monoid("parity", lambda xp, a, b: xp.bitwise_xor(a, b))


def _two_largest(xp, a, b):
    """The two largest of two times two numbers, and where they are; of equal ones the first."""
    x = xp.concat([a["value"], b["value"]], axis=-1)
    at = xp.concat([a["place"], b["place"]], axis=-1)
    order = xp.argsort(at, axis=-1, stable=True)
    x, at = xp.take_along_axis(x, order, axis=-1), xp.take_along_axis(at, order, axis=-1)
    order = xp.argsort(-x, axis=-1, stable=True)[..., :2]
    return xp.take_along_axis(x, order, axis=-1), xp.take_along_axis(at, order, axis=-1)


def _one_of_two(xp, x, index):
    value, place = xp.expand_dims(x, axis=-1), xp.expand_dims(index, axis=-1)
    nothing = xp.full_like(value, lowest("float64"))
    nowhere = xp.full_like(place, highest("int64"))
    return xp.concat([value, nothing], axis=-1), xp.concat([place, nowhere], axis=-1)


TWO_LARGEST = Monoid(
    "two_largest",
    _two_largest,
    identity=(lowest, highest),
    components=lambda dtype: {"value": (dtype, (2,)), "place": ("int64", (2,))},
    lift=_one_of_two,
)


def two_largest(x, axis):
    """NumPy's two largest elements, and their places; the first of equal ones first."""
    order = np.argsort(-x, axis=axis, kind="stable")
    order = np.take(order, [0, 1], axis=axis)
    return np.moveaxis(np.take_along_axis(x, order, axis), axis, -1), np.moveaxis(order, axis, -1)
