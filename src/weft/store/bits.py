"""Strings of bits, the lowest of each byte first, that are written at any place in any order."""

from __future__ import annotations

import numpy as np

from weft.store.frames import Array


def zero_bits(size: int) -> Array:
    """The words of a string of so many bytes, all zero."""
    return np.zeros(size // 8 + 2, "<u8")


def put_bits(words: Array, at: Array, value: Array) -> None:
    """Set bits of values at places that grow; a value has at most 64 bits, and no two overlap.

    >>> words = zero_bits(3)
    >>> put_bits(words, np.array([3, 10]), np.array([5, 0x3FF]))
    >>> words.view("u1")[:3].tolist()
    [40, 252, 15]
    """
    if not len(at):
        return
    place, shift = at >> 6, (at & 63).astype(np.uint64)
    value = value.astype(np.uint64)
    first = np.flatnonzero(np.diff(place, prepend=-1))
    high = np.where(shift > 0, value >> (np.uint64(64) - shift & np.uint64(63)), np.uint64(0))
    words[place[first]] |= np.bitwise_or.reduceat(value << shift, first)
    words[place[first] + 1] |= np.bitwise_or.reduceat(high, first)
