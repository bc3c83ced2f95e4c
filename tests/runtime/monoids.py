"""Monoids that a user defines, for tests: each with what NumPy makes of an array along one axis."""

from operator import gt, lt

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


def _welford(xp, a, b):
    """Means and squared differences of two sets of numbers, as of their union."""
    n, m = (xp.astype(each["count"], a["mean"].dtype) for each in (a, b))
    apart, total = b["mean"] - a["mean"], xp.maximum(n + m, xp.ones_like(n))
    squares = a["squares"] + b["squares"] + apart * apart * n * m / total
    return a["count"] + b["count"], a["mean"] + apart * m / total, squares


WELFORD = Monoid(
    "welford",
    _welford,
    components=lambda dtype: {"count": "int64", "mean": dtype, "squares": dtype},
    lift=lambda xp, x, index: (xp.ones_like(index), x, xp.zeros_like(x)),
)


def _first(is_better):
    def combine(xp, a, b):
        x, y = a["value"], b["value"]
        take = is_better(y, x) | ((x == y) & (b["place"] < a["place"]))
        return tuple(xp.where(take, b[name], a[name]) for name in ("value", "place"))

    return combine


FIRST_LARGEST, FIRST_SMALLEST = (
    Monoid(
        name,
        _first(is_better),
        identity=(worst, highest),
        components=lambda dtype: {"value": dtype, "place": "int64"},
        lift=lambda xp, x, index: (x, index),
    )
    for name, is_better, worst in (
        ("first_largest", gt, lowest),
        ("first_smallest", lt, highest),
    )
)
SUM_OF_USERS = Monoid("sum_of_users", lambda xp, a, b: a + b)


def _log_sum_exp(xp, a, b):
    top = xp.maximum(a["top"], b["top"])
    base = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    totals = (each["total"] * xp.exp(each["top"] - base) for each in (a, b))
    return top, sum(totals)


LOG_SUM_EXP = Monoid(
    "log_sum_exp",
    _log_sum_exp,
    identity=(lowest, 0),
    components=lambda dtype: {"top": dtype, "total": dtype},
    lift=lambda xp, x, index: (x, xp.ones_like(x)),
)
MONOIDS_OF_USERS = (
    *(SPREAD, PARITY, TWO_LARGEST, WELFORD, FIRST_LARGEST, FIRST_SMALLEST, LOG_SUM_EXP),
    SUM_OF_USERS,
)


def two_largest(x, axis):
    """NumPy's two largest elements, and their places; the first of equal ones first."""
    order = np.argsort(-x, axis=axis, kind="stable")
    order = np.take(order, [0, 1], axis=axis)
    return np.moveaxis(np.take_along_axis(x, order, axis), axis, -1), np.moveaxis(order, axis, -1)
