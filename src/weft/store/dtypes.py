"""Data types and fill values: those that are stored, and those of others that are read as well.

An array that Weft writes has a data type of Zarr v3, which is named as in `zarr.json`. Arrays of
other writers may have more, which are named as NumPy writes them: `<M8[ns]`, `<U5`, `|S3`, `>i4`;
the fields of a record are a JSON list, as in Zarr v2.
"""

from __future__ import annotations

import binascii
import json
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from math import inf, isinf, isnan, nan
from string import hexdigits
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

TEXT = "string"
"""Texts of any length."""

MAX_ITEMSIZE = 1 << 24
"""The most bytes of an element that is read: a long text, or a record."""

MAX_FIELDS, MAX_NESTED = 1024, 8
"""The most fields of a record, and the most records inside one another."""

_FOREIGN = re.compile(
    r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16)"
    r"|[<>][mM]8(\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
    r"|[<>]U\d{1,8}|\|[SV]\d{1,8}"
)
"""The NumPy spellings of data types of other writers."""

_SPECIAL = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def as_dtype(given: Any) -> tuple[str, np.dtype[Any]]:
    """Return the name of a data type, and its NumPy dtype; uint16 for bfloat16.

    It is given as in NumPy. The byte order is that of blocks, which are converted; the stored one
    is the `endian` of an array.

    >>> as_dtype("uint16"), as_dtype(np.float32), as_dtype(">u2")
    (('uint16', dtype('uint16')), ('float32', dtype('float32')), ('uint16', dtype('uint16')))
    """
    name = given if isinstance(given, str) else getattr(given, "name", None)
    if name not in NAMES and given is not None:
        try:
            name = np.dtype(given).name
        except TypeError:
            name = given
    if name not in NAMES:
        raise WeftError(f"{name!r} cannot be stored in Zarr v3", hint=", ".join(NAMES))
    return name, np.dtype(np.uint16 if name == "bfloat16" else name)


@lru_cache(maxsize=256)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a data type, also of one that is only read.

    >>> numpy_dtype("uint16"), numpy_dtype("<U5"), numpy_dtype('[["x", "<f4"], ["n", "|S3"]]')
    (dtype('uint16'), dtype('<U5'), dtype([('x', '<f4'), ('n', 'S3')]))
    """
    if name in NAMES:
        return as_dtype(name)[1]
    if name == TEXT:
        return np.dtypes.StringDType()
    try:
        given = json.loads(name) if name.startswith("[") else name
    except (ValueError, RecursionError):
        given = None
    return foreign_dtype(given)


def foreign_dtype(given: Any, depth: int = 0) -> np.dtype[Any]:
    """Return the NumPy dtype of a spelling, or of a list of fields, as in Zarr v2; refuse others.

    Objects are refused: what they are in memory is not what is stored.
    """
    if isinstance(given, list) and 0 < len(given) <= MAX_FIELDS and depth < MAX_NESTED:
        fields = [_field(each, depth) for each in given]
        try:
            return _checked(given, np.dtype(fields))
        except (TypeError, ValueError) as error:
            raise WeftError(f"{given!r} is not a data type: {error}") from None
    if isinstance(given, str) and re.fullmatch(r"\|O\d*", given):
        raise WeftError("object arrays hold Python objects, and cannot be read")
    if not isinstance(given, str) or not _FOREIGN.fullmatch(given):
        raise WeftError(f"{given!r} is not a data type that can be read")
    try:
        return _checked(given, np.dtype(given))
    except (TypeError, ValueError):
        raise WeftError(f"{given!r} is not a data type") from None


def _field(given: Any, depth: int) -> tuple[Any, ...]:
    """Return a field of a record: its name, its data type, and its shape if it has one."""
    if not isinstance(given, list) or len(given) not in (2, 3) or not isinstance(given[0], str):
        raise WeftError(f"expected a field's name and data type, got {given!r}")
    dtype, shape = foreign_dtype(given[1], depth + 1), given[2] if len(given) == 3 else []
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n < 1 << 24 for n in shape):
        raise WeftError(f"field {given[0]!r}: expected a shape, got {shape!r}")
    return (given[0], dtype, tuple(shape)) if shape else (given[0], dtype)


def _checked(given: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.itemsize > MAX_ITEMSIZE or not dtype.itemsize:
        raise WeftError(f"{given!r}: elements have {dtype.itemsize} B, of 1 to {MAX_ITEMSIZE}")
    return dtype


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a NumPy dtype: that of Zarr v3, or else NumPy's spelling.

    >>> dtype_name(np.dtype("<u2")), dtype_name(np.dtype(">u2")), dtype_name(np.dtype("M8[ns]"))
    ('uint16', '>u2', '<M8[ns]')
    """
    if dtype.names is not None:
        return json.dumps(_fields(dtype))
    if dtype.kind == "T":
        return TEXT
    return dtype.name if dtype.name in NAMES and dtype.isnative else dtype.str


def _fields(dtype: np.dtype[Any]) -> list[list[Any]]:
    found = []
    for name in dtype.names or ():
        whole = dtype[name]
        base, shape = whole.subdtype or (whole, ())
        field = [name, base.str if base.names is None else _fields(base)]
        found.append([*field, list(shape)] if shape else field)
    return found


def _is_foreign(name: str) -> bool:
    return name not in NAMES


def _read_foreign_fill(dtype: np.dtype[Any], value: Any) -> Any:
    """Return the fill value of a data type that is only read, as its JSON in v2 and v3 gives it.

    Bytes and records are base64; dates are numbers; texts are texts. In v3 bytes are also a list of
    numbers, and records an object of the fill values of their fields.
    """
    kind = dtype.kind
    if kind == "T":
        if not isinstance(value, str):
            raise TypeError
        return value
    if kind in "mM":
        if value != "NaT" and type(value) is not int:
            raise TypeError
        number = np.iinfo(np.int64).min if value == "NaT" else value
        return np.array([number], np.int64).view(dtype.newbyteorder("="))[0]
    if kind == "U":
        if not isinstance(value, str) or len(value) > dtype.itemsize // 4:
            raise TypeError
        return np.array([value], dtype)[0]
    if dtype.names is not None and isinstance(value, dict):
        return _read_fields(dtype, value)
    if kind in "SV":
        is_list = isinstance(value, list)
        data = bytes(value) if is_list else binascii.a2b_base64(value, strict_mode=True)
        if len(data) > dtype.itemsize or (kind == "V" and len(data) != dtype.itemsize):
            raise ValueError
        return np.frombuffer(data.ljust(dtype.itemsize, b"\0"), dtype)[0]
    return read_fill(dtype.newbyteorder("=").name, value)


def _read_fields(dtype: np.dtype[Any], value: Mapping[str, Any]) -> Any:
    """Return a record from the fill values of its fields, all of them."""
    if value.keys() != set(dtype.names or ()):
        raise ValueError
    found = np.zeros(1, dtype)
    for name in value:
        found[name] = read_fill(dtype_name(dtype[name]), value[name])
    return found[0]


def zero_fill(dtype: np.dtype[Any]) -> object:
    """Return the JSON of the fill value of arrays that declare none: zeros, or no date.

    >>> zero_fill(np.dtype("f4")), zero_fill(np.dtype("c8")), zero_fill(np.dtype("S3"))
    (0, [0, 0], '')
    """
    zeros = {"b": False, "c": [0, 0], "U": "", "S": "", "T": "", "m": "NaT", "M": "NaT"}
    if dtype.kind == "V":
        return binascii.b2a_base64(bytes(dtype.itemsize), newline=False).decode()
    return zeros.get(dtype.kind, 0)


def write_fill(name: str, value: Any) -> object:
    """Return a fill value as in `zarr.json`.

    >>> write_fill("uint8", 3), write_fill("float32", nan), write_fill("complex64", 1j)
    (3, 'NaN', [0.0, 1.0])
    >>> write_fill("bfloat16", "0x7fc0")
    '0x7fc0'
    """
    if isinstance(value, str | list) or _is_foreign(name):  # as in zarr.json already
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
    dtype = numpy_dtype(name)
    try:
        if _is_foreign(name):
            return _read_foreign_fill(dtype, value)
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
            _bits(value, dtype.itemsize).to_bytes(dtype.itemsize, "little"), f"<f{dtype.itemsize}"
        )[0]
    if isinstance(value, bool):
        raise TypeError
    with np.errstate(over="ignore"):
        return dtype.type(_SPECIAL[value] if isinstance(value, str) else float(value))


def _bits(text: str, size: int) -> int:
    """Return the bits of `size` bytes from all of their hexadecimal digits."""
    digits = text.removeprefix("0x")
    if digits == text or len(digits) != 2 * size or set(digits) - set(hexdigits):
        raise ValueError  # readers disagree about fewer digits
    return int(digits, 16)


def _bfloat16(value: Any) -> int:
    """Return the two upper bytes of a float32, rounded to the nearest, to even."""
    if isinstance(value, str) and value not in _SPECIAL:
        return _bits(value, 2)
    number = _SPECIAL[value] if isinstance(value, str) else float(value)
    if isnan(number):
        return 0x7FC0
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
