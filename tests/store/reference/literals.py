"""`encode_literals`, `encode_zstd`: frames of zstd with literals only, by prefix codes.

Standard frames, which any reader of zstd decodes, made so that each step is the same for all bytes
at once: no matches are searched. Bytes are cut into blocks of 8 KiB, and each is stored as one byte
and a count, or by a prefix code of its own , or as it is. `encode_literals`
has Blosc frames in which each plane of bytes is such a block. A graphics card makes the same bytes
(`cuda/kernels/literals.h`); this is their reference.
"""

from __future__ import annotations

import struct

import numpy as np
from tests.store.reference.blosc_frame import Array, framed
from tests.store.reference.prefix_codes import code_lengths, codes, put_bits, tree, zero_bits
from tests.store.reference.runs import check

from weft.store.dtypes import Bytes

PIECE = 1 << 13
"""The most bytes of a block of zstd."""

SMALL = 64
"""Fewer bytes are not worth a code."""

FLAGS = 4 << 5 | 0x01
"""Zstd, and bytes shuffled."""

_RAW, _ALIKE, _CODED = 0, 1, 2
_HEAD = struct.Struct("<IBI")
_MAGIC, _ONE_SEGMENT = 0xFD2FB528, 0xA0
"""A frame whose size is said in four bytes, in one segment."""


def encode_literals(data: Bytes, typesize: int) -> bytes:
    """The Blosc frame of a chunk, of elements of 1, 2, 4, 8 or 16 bytes.

    >>> import numcodecs
    >>> data = (np.arange(10_000) % 300).astype("<u2").tobytes()
    >>> frame = encode_literals(data, 2)
    >>> len(frame), numcodecs.Blosc().decode(frame) == data
    (11344, True)
    """
    return encode_literals_of(np.frombuffer(data, np.uint8)[None], typesize)[0]


def encode_literals_of(chunks: Array, typesize: int) -> list[bytes]:
    """The Blosc frames of chunks of one size: rows of bytes."""
    count, size = chunks.shape
    check(size, typesize)
    block = PIECE * typesize
    full = size // block * block
    heads = plane_frames(chunks[:, :full].reshape(-1, block), typesize)
    tails = plane_frames(chunks[:, full:], typesize) if full < size else []
    per = full // block
    return [
        framed(
            [*heads[per * n : per * (n + 1)], *tails[n : n + 1]],
            chunks[n],
            typesize,
            min(block, size),
            FLAGS,
        )
        for n in range(count)
    ]


def plane_frames(blocks: Array, typesize: int) -> list[bytes]:
    """Each block as a frame of its planes, or its planes as they are if that is no longer."""
    count, size = blocks.shape
    planes = blocks.reshape(count, size // typesize, typesize).transpose(0, 2, 1)
    pieces = np.ascontiguousarray(planes).reshape(count * typesize, size // typesize)
    made = zstd_blocks(pieces, np.arange(count * typesize) % typesize == typesize - 1)
    frames = []
    for first in range(0, count * typesize, typesize):
        frame = zstd_frame(made[first : first + typesize], size)
        is_shorter = len(frame) < size
        frames.append(frame if is_shorter else pieces[first : first + typesize].tobytes())
    return frames


def encode_zstd(data: Bytes) -> bytes:
    """The zstd frame of a chunk's bytes as they are.

    >>> import zstandard
    >>> frame = encode_zstd(b"abracadabra" * 1000)
    >>> len(frame), len(zstandard.decompress(frame))
    (3033, 11000)
    """
    return encode_zstd_of(np.frombuffer(data, np.uint8)[None])[0]


def encode_zstd_of(chunks: Array) -> list[bytes]:
    """The zstd frames of chunks of one size: rows of bytes."""
    count, size = chunks.shape
    check(size, 1)
    full = size // PIECE * PIECE
    per = full // PIECE
    is_last = np.arange(1, count * per + 1) % max(1, per) == 0
    heads = zstd_blocks(chunks[:, :full].reshape(-1, PIECE), is_last & (full == size))
    tails = zstd_blocks(chunks[:, full:], np.ones(count, bool)) if full < size else []
    return [
        zstd_frame([*heads[per * n : per * (n + 1)], *tails[n : n + 1]], size) for n in range(count)
    ]


def zstd_frame(blocks: list[bytes], size: int) -> bytes:
    """A frame of blocks, of `size` bytes in all."""
    return b"".join([_HEAD.pack(_MAGIC, _ONE_SEGMENT, size), *blocks])


def zstd_blocks(pieces: Array, is_last: Array) -> list[bytes]:
    """Each of some pieces of one size as a block."""
    count, size = pieces.shape
    numbers = pieces + 256 * np.arange(count)[:, None]
    counts = np.bincount(numbers.reshape(-1), minlength=256 * count).reshape(count, 256)
    is_alike = (counts > 0).sum(1) < 2
    coded = dict(coded_blocks(pieces, counts, np.flatnonzero(~is_alike))) if size >= SMALL else {}
    made = []
    for n, piece in enumerate(pieces):
        kind, body = _RAW, piece.tobytes()
        if is_alike[n]:
            kind, body = _ALIKE, body[:1]
        elif n in coded and len(coded[n]) < size:
            kind, body = _CODED, coded[n]
        length = len(body) if kind == _CODED else size
        made.append((length << 3 | kind << 1 | int(is_last[n])).to_bytes(3, "little") + body)
    return made


def coded_blocks(pieces: Array, counts: Array, rows: Array) -> list[tuple[int, bytes]]:
    """What blocks are by prefix codes: a header, the tree, four streams, and no sequences."""
    lengths = code_lengths(counts[rows])
    trees = [tree(row) for row in lengths]
    fits = np.array([len(made) > 0 for made in trees], bool)
    rows, lengths = rows[fits], lengths[fits]
    trees = [made for made in trees if made]
    streams = coded_streams(pieces[rows], lengths, codes(lengths))
    made, size = [], pieces.shape[1]
    for row, described, four in zip(rows.tolist(), trees, streams):
        jumps = struct.pack("<3H", *map(len, four[:3]))
        body = b"".join([described, jumps, *four])
        head = 2 | 2 << 2 | size << 4 | len(body) << 18  # coded, by sizes of fourteen bits
        made.append((row, head.to_bytes(5, "little")[:4] + body + b"\0"))
    return made


def coded_streams(pieces: Array, lengths: Array, values: Array) -> list[list[bytes]]:
    """Four streams for each piece: its last symbol comes first, and a set bit after the first."""
    count, size = pieces.shape
    quarter = -(-size // 4)
    padded = np.zeros((count, 4 * quarter), np.int64)
    padded[:, :size] = pieces
    bits = np.take_along_axis(lengths, padded, 1)
    bits[:, size:] = 0
    bits = bits.reshape(4 * count, quarter)[:, ::-1]
    symbols = np.take_along_axis(values, padded, 1).reshape(4 * count, quarter)[:, ::-1]
    totals = bits.sum(1)
    sizes = totals // 8 + 1
    stops = np.cumsum(sizes)
    starts = 8 * (stops - sizes)
    words = zero_bits(int(stops[-1]) if count else 0)
    symbols, bits = paired(*paired(np.where(bits, symbols, 0), bits))
    put_bits(words, (starts[:, None] + np.cumsum(bits, 1) - bits).reshape(-1), symbols.reshape(-1))
    put_bits(words, starts + totals, np.ones_like(totals))
    whole, ends = words.view(np.uint8).tobytes(), stops.tolist()
    cut = [whole[start:stop] for start, stop in zip([0, *ends], ends)]
    return [cut[n : n + 4] for n in range(0, 4 * count, 4)]


def paired(values: Array, bits: Array) -> tuple[Array, Array]:
    """Two values each as one, the first in the low bits."""
    width = values.shape[1] % 2
    values, bits = (np.pad(array, ((0, 0), (0, width))) for array in (values, bits))
    low = bits[:, 0::2]
    return values[:, 0::2] | values[:, 1::2] << low, low + bits[:, 1::2]
