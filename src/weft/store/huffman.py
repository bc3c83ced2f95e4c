"""Prefix codes as zstd has them, of at most eleven bits, found by integers alone.

The lengths are those of Shannon's code, rounded: a symbol that is seen `f` times gets the least
length `n` with `f << n >= m`. The least `m` for which a code of such lengths exists is searched,
and what is left of it is given to symbols in order. On noise this is within a thousandth of the
best code, each step is the same for all symbols, and a graphics card finds the same lengths.
"""

from __future__ import annotations

import numpy as np

from weft.store.frames import Array

MOST_BITS = 11

_WHOLE = 1 << MOST_BITS


def code_lengths(counts: Array) -> Array:
    """The bits of each symbol, for rows of counts of which at least two are not zero.

    >>> code_lengths(np.array([[5, 0, 2, 1]])).tolist()
    [[1, 0, 2, 2]]
    """
    low, high = np.zeros(len(counts), np.int64), 2 * counts.sum(1)
    while (is_open := high - low > 1).any():
        middle = (low + high) // 2
        fits = shares(rounded(counts, middle)).sum(1) <= _WHOLE
        high = np.where(is_open & fits, middle, high)
        low = np.where(is_open & ~fits, middle, low)
    return filled(rounded(counts, high))


def rounded(counts: Array, goal: Array) -> Array:
    """For each count the least length that reaches a goal; none for counts of zero."""
    lengths = np.ones_like(counts)
    for _ in range(MOST_BITS - 1):
        lengths += (counts << lengths) < goal[:, None]
    return np.where(counts > 0, lengths, 0)


def shares(lengths: Array) -> Array:
    """What each length takes of all codes, of which there are 2048."""
    return np.where(lengths > 0, _WHOLE >> lengths, 0)


def filled(lengths: Array) -> Array:
    """Lengths of a code that is complete: the first symbols of each length get one bit less.

    Short lengths come first, each as often as what is left allows. The longest ones always fit, so
    that each round leaves less.
    """
    left = _WHOLE - shares(lengths).sum(1)
    while left.any():
        rank, shorter = ranks(lengths), np.zeros_like(lengths)
        for length in range(2, MOST_BITS + 1):
            is_here = lengths == length
            count = np.minimum(is_here.sum(1), left >> (MOST_BITS - length))
            left = left - (count << (MOST_BITS - length))
            shorter += is_here & (rank < count[:, None])
        lengths = lengths - shorter
    return lengths


def ranks(lengths: Array) -> Array:
    """For each symbol how many before it are as long."""
    found = np.zeros_like(lengths)
    for length in range(1, MOST_BITS + 1):
        is_here = lengths == length
        found += is_here * (np.cumsum(is_here, axis=1) - 1)
    return found


def codes(lengths: Array) -> Array:
    """The bits of each symbol: long ones first, and those of one length in order.

    >>> codes(np.array([[1, 0, 2, 2]])).tolist()
    [[1, 0, 0, 1]]
    """
    made, first = ranks(lengths), np.zeros(len(lengths), np.int64)
    for length in range(MOST_BITS, 0, -1):
        is_here = lengths == length
        made += is_here * first[:, None]
        first = (first + is_here.sum(1)) >> 1
    return made
