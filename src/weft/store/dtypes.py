"""Data types and fill values as Zarr v3 names and writes them."""

from __future__ import annotations

import struct
from math import inf, isinf, isnan, nan
from typing import Any, TypeAlias

import numpy as np

from weft.errors import WeftError

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Bytes in any buffer."""

Pieces: TypeAlias = tuple[Bytes, ...]
"""The stored bytes of a chunk, in consecutive pieces."""

NAMES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
)
"""The data types that can be stored."""

_SPECIAL = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def as_dtype(given: Any) -> tuple[str, np.dtype[Any]]:
    """Return the name of a data type, and its NumPy dtype; uint16 for bfloat16.

    >>> as_dtype("uint16"), as_dtype(np.float32)
    (('uint16', dtype('uint16')), ('float32', dtype('float32')))
    """
    name = given if isinstance(given, str) else getattr(given, "name", None) or np.dtype(given).name
    if name not in NAMES:
        raise WeftError(f"{name!r} cannot be stored in Zarr v3", hint=", ".join(NAMES))
    return name, np.dtype(np.uint16 if name == "bfloat16" else name)


def write_fill(name: str, value: Any) -> object:
    """Return a fill value as in `zarr.json`.

    >>> write_fill("uint8", 3), write_fill("float32", nan), write_fill("complex64", 1j)
    (3, 'NaN', [0.0, 1.0])
    >>> write_fill("bfloat16", "0x7fc0")
    '0x7fc0'
    """
    if isinstance(value, str | list):  # as in zarr.json already
        read_fill(name, value)
        return value
    if name == "bool":
        return bool(value)
    try:
        return _written(name, value)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, WeftError):
            raise
        raise WeftError(f"{value!r} is not a fill value of {name}") from None


def _written(name: str, value: Any) -> object:
    if "int" in name:
        return _whole(name, value)
    if name.startswith("complex"):
        number = complex(value)
        return [_write_float(number.real), _write_float(number.imag)]
    return _write_float(float(value))


def _whole(name: str, value: Any) -> int:
    number, limits = int(value), np.iinfo(name)
    if number != value or not limits.min <= number <= limits.max:
        raise WeftError(f"{value!r} is not of {name}: {limits.min} to {limits.max}")
    return number


def _write_float(value: float) -> object:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def read_fill(name: str, value: Any) -> Any:
    """Return a fill value from `zarr.json` as a NumPy scalar.

    >>> read_fill("float64", "-Infinity"), read_fill("float32", "0x7fc00000"), read_fill("int8", -1)
    (np.float64(-inf), np.float32(nan), np.int8(-1))
    """
    _, dtype = as_dtype(name)
    try:
        if name == "bool":
            if not isinstance(value, bool):
                raise TypeError
            return dtype.type(value)
        if "int" in name:
            return dtype.type(_whole(name, value))
        if name.startswith("complex"):
            real, imaginary = value
            half = "float32" if name == "complex64" else "float64"
            parts = np.array([_read_float(half, real), _read_float(half, imaginary)])
            return parts.view(dtype)[0]
        if name == "bfloat16":
            return dtype.type(_bfloat16(value))
        return _read_float(name, value)
    except (TypeError, ValueError, OverflowError, struct.error):
        raise WeftError(f"{value!r} is not a fill value of {name}") from None


def _read_float(name: str, value: Any) -> Any:
    """Read a number, or its bits in hexadecimal digits, which distinguish NaNs."""
    dtype = np.dtype(name)
    if isinstance(value, str) and value not in _SPECIAL:
        return np.frombuffer(
            _bits(value).to_bytes(dtype.itemsize, "little"), f"<f{dtype.itemsize}"
        )[0]
    if isinstance(value, bool):
        raise TypeError
    with np.errstate(over="ignore"):
        return dtype.type(_SPECIAL[value] if isinstance(value, str) else float(value))


def _bits(text: str) -> int:
    if not text.startswith("0x"):
        raise ValueError
    return int(text, 16)


def _bfloat16(value: Any) -> int:
    """Return the two upper bytes of a float32, rounded to the nearest, to even."""
    if isinstance(value, str) and value not in _SPECIAL:
        return _bits(value)
    number = _SPECIAL[value] if isinstance(value, str) else float(value)
    if isnan(number):
        return 0x7FC0
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
