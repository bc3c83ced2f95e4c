"""Prefix codes as zstd has them, of at most eleven bits, found by integers alone.

The lengths are those of Shannon's code, rounded: a symbol that is seen `f` times gets the least
length `n` with `f << n >= m`. The least `m` for which a code of such lengths exists is searched,
and what is left of it is given to symbols in order. On noise this is within a thousandth of the
best code, each step is the same for all symbols, and a graphics card finds the same lengths.

How zstd describes a prefix code: the weights of its symbols, four bits each or FSE-coded.

The weight of a symbol is 0 if it has no code, and one more than the bits that it has less than the
longest one. That of the last symbol is not said. Up to 128 weights are stored as they are. More are
coded by two interleaved states of one table of 64 places, which is made for the weights at hand.
"""

from __future__ import annotations

import numpy as np
from tests.store.reference.blosc_frame import Array

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


DIRECT = 128
"""The most weights that can be stored as they are."""

LOG, PLACES = 6, 64
"""The logarithm of the places of the table, and these."""

VALUES = 12
"""Weights are less than that."""


def weights_of(lengths: Array) -> Array:
    """The weights of the symbols but the last one.

    >>> weights_of(np.array([2, 0, 2, 1])).tolist()
    [1, 0, 1]
    """
    last = int(np.flatnonzero(lengths)[-1])
    said = lengths[:last]
    return np.where(said > 0, lengths.max() + 1 - said, 0)


def tree(lengths: Array) -> bytes:
    """The description of a code; empty where it would be too long for the format.

    >>> tree(np.array([2, 0, 2, 1])).hex()
    '821010'
    """
    weights = weights_of(lengths).tolist()
    if len(weights) <= DIRECT:
        even = [*weights, 0]
        pairs = zip(even[0::2], even[1::2])
        return bytes([127 + len(weights), *(high << 4 | low for high, low in pairs)])
    made = fse(weights)
    return bytes([len(made)]) + made if len(made) < DIRECT else b""


def fse(weights: list[int]) -> bytes:
    """Weights by two states: one of those with even numbers, one of the others."""
    shares = normal([weights.count(value) for value in range(VALUES)])
    places = spread(shares)
    first = [places.index(value) if value in places else 0 for value in range(VALUES)]
    where = [[n for n, value in enumerate(places) if value == one] for one in range(VALUES)]
    states = [0, 0]
    fields = []
    for number in reversed(range(len(weights))):
        value, side = weights[number], number % 2
        if number >= len(weights) - 2:  # the first place of a symbol has the most bits to come
            states[side] = first[value]
            continue
        state, share, bits = states[side] + PLACES, shares[value], 0
        while state >> bits >= 2 * share:
            bits += 1
        fields.append((state & ((1 << bits) - 1), bits))
        states[side] = where[value][(state >> bits) - share]
    fields += [(states[1], LOG), (states[0], LOG), (1, 1)]
    return packed(described(shares)) + packed(fields)


def normal(counts: list[int]) -> list[int]:
    """Shares of 64 places: at least one for what occurs, the rest for the most frequent value.

    A value that is alone leaves one place, for a state that takes no bits would have no end.

    >>> normal([60, 1, 0, 68])
    [29, 1, 0, 34]
    """
    total = sum(counts)
    shares = [max(1, count * PLACES // total) if count else 0 for count in counts]
    most = counts.index(max(counts))
    if counts[most] == total:
        shares[0 if most else 1] = 1
    shares[most] += PLACES - sum(shares)
    return shares


def spread(shares: list[int]) -> list[int]:
    """The values in the places of the table."""
    places, at = [0] * PLACES, 0
    for value, share in enumerate(shares):
        for _ in range(share):
            places[at] = value
            at = (at + PLACES // 2 + PLACES // 8 + 3) % PLACES
    return places


def described(shares: list[int]) -> list[tuple[int, int]]:
    """The shares as the format has them: values and their bits.

    A share takes as many bits as what is left needs, and one less if it is small. After a share of
    zero, two bits say how many more follow.
    """
    fields, left, value = [(LOG - 5, 4)], PLACES, 0
    while left:
        share, value = shares[value], value + 1
        bits = (left + 1).bit_length()
        small = (1 << bits) - 2 - left  # values below take one bit less
        is_small = share + 1 < small
        is_high = share + 1 >= 1 << (bits - 1)
        fields.append((share + 1 + (small if is_high else 0), bits - is_small))
        left -= share
        if share == 0:
            zeros = 0
            while shares[value] == 0:
                zeros, value = zeros + 1, value + 1
            fields += [(3, 2)] * (zeros // 3) + [(zeros % 3, 2)]
    return fields


def packed(fields: list[tuple[int, int]]) -> bytes:
    """Values of some bits each, one after the other, the lowest bit first."""
    made = at = 0
    for value, bits in fields:
        made |= value << at
        at += bits
    return made.to_bytes(-(-at // 8), "little")


# -- strings of bits


def zero_bits(size: int) -> Array:
    """The words of a string of zero bytes."""
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
