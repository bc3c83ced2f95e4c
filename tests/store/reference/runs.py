"""`encode_runs`: Blosc frames of bit planes whose LZ4 blocks know runs of one byte and no others.

A standard frame, which any reader of Blosc decodes, made so that each step is the same for all
bytes at once: nothing is searched. A chunk is cut into blocks of 16 KiB. The bits of a block's
elements are put into planes, and in the planes of high bits most bytes equal the one before them.
Stretches of `LEAST` and more of such bytes become matches of offset 1; what lies between them are
literals. A graphics card makes the same bytes (`cuda/kernels/runs.h`); this is their reference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tests.store.reference.blosc_frame import Array, framed

from weft.errors import WeftError
from weft.store.dtypes import Bytes

BLOCK = 1 << 14
"""The bytes of a block; the last one of a chunk may be shorter."""

LEAST = 6
"""The bytes of the shortest run that is a match: shorter ones save little and slow readers."""

MARGIN = 12
"""The bytes at the end of an LZ4 block where no match may start; here, none reaches there."""

TYPESIZES = (1, 2, 4, 8, 16)

FLAGS = 1 << 5 | 0x04
"""LZ4, and bits shuffled."""

_MOST = (1 << 31) - 1 - 16
"""The bytes of the largest buffer that Blosc has."""

_STEPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
"""How far which bits of an 8 x 8 matrix change places, in its three steps."""


def encode_runs(data: Bytes, typesize: int) -> bytes:
    """The frame of a chunk, of elements of 1, 2, 4, 8 or 16 bytes.

    >>> import numcodecs
    >>> data = np.arange(10_000, dtype="<u2").tobytes()
    >>> frame = encode_runs(data, 2)
    >>> len(frame), numcodecs.Blosc().decode(frame) == data
    (5208, True)
    """
    return encode_runs_of(np.frombuffer(data, np.uint8)[None], typesize)[0]


def encode_runs_of(chunks: Array, typesize: int) -> list[bytes]:
    """The frames of chunks of one size: rows of bytes."""
    count, size = chunks.shape
    check(size, typesize)
    full = size // BLOCK * BLOCK
    heads = lz4_runs(bit_planes(chunks[:, :full].reshape(-1, BLOCK), typesize))
    tails = lz4_runs(bit_planes(chunks[:, full:], typesize)) if full < size else [b""] * count
    per = full // BLOCK
    frames = []
    for number, (chunk, tail) in enumerate(zip(chunks, tails)):
        packed = heads[per * number : per * (number + 1)] + ([tail] if full < size else [])
        frames.append(framed(packed, chunk, typesize, min(BLOCK, size), FLAGS))
    return frames


def check(size: int, typesize: int) -> None:
    """Refuse chunks that have no such frame."""
    if typesize not in TYPESIZES:
        raise WeftError(
            f"elements of {typesize} B have no planes here, only those of 1, 2, 4, 8 or 16 B",
            hint='Blosc("lz4", shuffle="bitshuffle") takes elements of any size',
        )
    if size % typesize or not 0 < size <= _MOST:
        raise WeftError(
            f"a chunk of {size} B is no Blosc frame of elements of {typesize} B: "
            f"1 to {_MOST // typesize} of them"
        )


def bit_planes(blocks: Array, typesize: int) -> Array:
    """The bits of each block's elements, all first ones, all second ones, and so on.

    As Blosc has it, a block stays as it is if eight does not divide its elements.

    >>> bit_planes(np.array([[1, 1, 1, 1, 0, 0, 0, 3]], "u1"), 1).tolist()
    [[143, 128, 0, 0, 0, 0, 0, 0]]
    """
    count, size = blocks.shape
    eight = size // typesize // 8
    if size != 8 * eight * typesize:
        return blocks
    eights = blocks.reshape(count, eight, 8, typesize)
    words = np.array(eights.transpose(0, 3, 1, 2), order="C").view("<u8")[..., 0]
    swapped = np.empty_like(words)
    for distance, mask in _STEPS:
        np.right_shift(words, distance, out=swapped)
        swapped ^= words
        swapped &= np.uint64(mask)
        words ^= swapped
        swapped <<= np.uint64(distance)
        words ^= swapped
    rows = words.view(np.uint8).reshape(count, typesize, eight, 8).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(rows).reshape(count, size)


class Sequences(NamedTuple):
    """The sequences of LZ4 blocks that lie one after the other, as arrays."""

    start: Array
    """Where the literals of each start."""
    literals: Array
    match: Array
    """The bytes of its match; 0 for the last one of a block, which has none."""


def lz4_runs(blocks: Array) -> list[bytes]:
    """Each of some blocks of one size as an LZ4 block, or as it is if that is no longer.

    >>> [made.hex() for made in lz4_runs(np.zeros((1, 100), "u1"))]
    ['1f00010044c0000000000000000000000000']
    """
    count, size = blocks.shape
    if not count:
        return []
    found = sequences(blocks)
    ends = np.flatnonzero(found.match == 0)
    packed, stops = written(blocks.reshape(-1), found)
    made, start = [], 0
    for number, stop in enumerate(stops[ends].tolist()):
        is_shorter = stop - start < size
        made.append((packed[start:stop] if is_shorter else blocks[number]).tobytes())
        start = stop
    return made


def sequences(blocks: Array) -> Sequences:
    """Where literals and matches are."""
    count, size = blocks.shape
    same = np.zeros((count, size + 1), np.int8)
    last = max(1, size - MARGIN)
    same[:, 1:last] = blocks[:, 1:last] == blocks[:, : last - 1]
    edges = np.flatnonzero(np.diff(same.reshape(-1), prepend=0))
    edges -= edges // (size + 1)  # each block has one place more than bytes
    starts, stops = edges[0::2], edges[1::2]
    is_long = stops - starts >= LEAST
    starts, lengths = starts[is_long], (stops - starts)[is_long]
    ends = np.arange(1, count + 1) * size
    places = np.searchsorted(starts, ends)
    at, match = np.insert(starts, places, ends), np.insert(lengths, places, 0)
    begin = np.zeros_like(at)
    begin[1:] = (at + match)[:-1]
    return Sequences(begin, at - begin, match)


def written(data: Array, found: Sequences) -> tuple[Array, Array]:
    """The bytes of sequences, and where each ends."""
    more, far = extra(found.literals), np.where(found.match, 2 + extra(found.match - 4), 0)
    stops = np.cumsum(1 + more + found.literals + far)
    body = stops - far - found.literals
    tokens = body - more - 1
    made = np.full(stops[-1] if len(stops) else 0, 255, np.uint8)
    short = np.minimum(found.match - 4, 15).clip(0)
    made[tokens] = np.minimum(found.literals, 15) << 4 | short
    put_rest(made, body - 1, found.literals)
    is_literal = inside(body, found.literals, len(made))
    made[is_literal] = data[inside(found.start, found.literals, len(data))]
    is_match = found.match > 0
    after = (body + found.literals)[is_match]
    made[after], made[after + 1] = 1, 0
    put_rest(made, stops[is_match] - 1, found.match[is_match] - 4)
    return made, stops


def inside(start: Array, length: Array, size: int) -> Array:
    """Which bytes lie in stretches; no two of these overlap."""
    edges = np.zeros(size + 1, np.int8)
    edges[start] += 1
    edges[start + length] -= 1
    return np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)


def extra(length: Array) -> Array:
    """How many bytes follow a length that does not fit the token."""
    return np.where(length < 15, 0, (length - 15) // 255 + 1)


def put_rest(made: Array, at: Array, length: Array) -> None:
    """The last of those bytes; the ones before are 255."""
    is_long = length >= 15
    made[at[is_long]] = (length[is_long] - 15) % 255
