"""Monoids of arrays: what each leaves as it is, and how it combines two parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from weft.errors import WeftError


@lru_cache(maxsize=256)
def identity(xp: Any, monoid: str, dtype: Any) -> Any:
    """What a monoid leaves as it is, for a dtype.

    >>> import numpy
    >>> identity(numpy, "max", numpy.dtype("int8")), identity(numpy, "sum", numpy.dtype("int8"))
    (-128, 0)
    """
    if monoid in ("sum", "or"):
        return False if dtype == xp.bool else 0
    if monoid == "prod":
        return 1
    if monoid == "and":
        return _all_ones(xp, dtype)
    if monoid == "logsumexp":
        return -float("inf")
    if monoid in ("max", "min"):
        return _extreme(xp, dtype, lowest=monoid == "max")
    raise WeftError(f"there is nothing that '{monoid}' leaves as it is")


def _all_ones(xp: Any, dtype: Any) -> Any:
    if dtype == xp.bool:
        return True
    return int(xp.iinfo(dtype).max) if xp.isdtype(dtype, "unsigned integer") else -1


def _extreme(xp: Any, dtype: Any, lowest: bool) -> Any:
    """The least or the greatest number of a dtype."""
    if dtype == xp.bool:
        return not lowest
    if xp.isdtype(dtype, "integral"):
        info = xp.iinfo(dtype)
        return int(info.min if lowest else info.max)
    return -float("inf") if lowest else float("inf")


@lru_cache(maxsize=256)
def combination(xp: Any, monoid: str, dtype: Any) -> Callable[[Any, Any], Any]:
    """What combines two parts.

    >>> import numpy
    >>> combination(numpy, "max", numpy.dtype("int8"))(numpy.int8(3), numpy.int8(5))
    np.int8(5)
    """
    logical = dtype == xp.bool
    names = {
        "sum": "logical_or" if logical else "add",
        "prod": "logical_and" if logical else "multiply",
        "max": "logical_or" if logical else "maximum",
        "min": "logical_and" if logical else "minimum",
        "and": "logical_and" if logical else "bitwise_and",
        "or": "logical_or" if logical else "bitwise_or",
        "logsumexp": "logaddexp",
    }
    if monoid not in names:
        raise WeftError(f"parts of '{monoid}' cannot be combined")
    found: Callable[[Any, Any], Any] = getattr(xp, names[monoid])
    return found
