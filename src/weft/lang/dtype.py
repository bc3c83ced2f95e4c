"""The sizes of dtypes by their names."""

from __future__ import annotations

import re

_BITS = re.compile(r"(\d+)")


def itemsize(dtype: str) -> int:
    """The bytes of an element; those of less than a byte take a whole one.

    >>> itemsize("float32"), itemsize("bool"), itemsize("complex64"), itemsize("float8_e5m2")
    (4, 1, 8, 1)
    """
    bits = _BITS.search(dtype)
    return max(1, int(bits[1]) // 8) if bits else 1
