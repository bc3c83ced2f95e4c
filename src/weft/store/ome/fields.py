"""Metadata read field by field; what is wrong is refused with its name and what was there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from typing import Any, TypeVar

from weft.errors import WeftError

VERSION = "0.5"
"""The version of OME-NGFF that is written and read."""

T = TypeVar("T")


def read_at(path: str, read: Callable[[Any], T], data: Any) -> T:
    """What is read at a place, which an error names.

    >>> read_at("axes[1]", lambda data: as_text(data, "name"), {})
    Traceback (most recent call last):
    weft.errors.WeftError: axes[1]: name: None is no text
    """
    try:
        return read(data)
    except WeftError as error:
        raise error.at(path) from None


def as_ome(data: Any, key: str) -> Mapping[str, Any]:
    """What a group's attributes say under `ome`, of the version that is read here."""
    said = as_object(data, "ome")
    if said.get("version") != VERSION:
        raise WeftError(f"ome: version {VERSION} is read, and not {said.get('version')!r}")
    if key not in said:
        raise WeftError(f"ome: there is no {key!r}, only {sorted(said)}")
    return said


def as_object(data: Any, what: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(data, Mapping):
        raise WeftError(f"{what}: {data!r} is no object")
    return data


def as_list(data: Any, what: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(data, list | tuple):
        raise WeftError(f"{what}: {data!r} is no list")
    return list(data)


def as_text(said: Mapping[str, Any], key: str, *default: str | None) -> Any:
    """A string under a key; if there is a default, the key may be missing."""
    value = said.get(key)
    if value is None and default:
        return default[0]
    if not isinstance(value, str):
        raise WeftError(f"{key}: {value!r} is no text")
    return value


def as_numbers(data: Any, what: str) -> tuple[float, ...]:
    """Finite numbers."""
    numbers = as_list(data, what)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, Real) or not isfinite(number):
            raise WeftError(f"{what}: {number!r} is no finite number")
    return tuple(map(float, numbers))


def as_whole(said: Mapping[str, Any], key: str, least: int, *default: int | None) -> Any:
    """A whole number under a key; if there is a default, the key may be missing."""
    value = said.get(key)
    if value is None and default:
        return default[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WeftError(f"{key}: {value!r} is no whole number from {least} on")
    return value
