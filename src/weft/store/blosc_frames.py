"""Blosc without the interpreter lock: the C function that `numcodecs` contains, by ctypes.

The wrapper of the library allocates a `bytes` for each chunk, and a thread takes the interpreter
lock again after each call: with many threads and small chunks, waiting for it is most of the time.
Here the function is called with addresses, and one call compresses many chunks: a frame of all of
them is cut into frames of one chunk each, byte for byte those that the library makes of it alone.

A Blosc frame has a header of 16 bytes, the places of its blocks, and the blocks. Some codecs cut
a block further into streams, one for each byte of an element, each compressed by itself. A chunk of
several blocks is cut out of a frame at the ends of blocks. Where a chunk is one block of streams,
which the library makes no smaller than 64 KiB, a block has the streams of several chunks instead:
its "element" has all their bytes, and the shuffle is done before.

Not every build of `numcodecs` exports the function. Where it is missing, `encoder` returns None,
and chunks go through the wrapper, with the same result.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes
from weft.store.threads import scratch

Values: TypeAlias = np.ndarray[Any, Any]

_ARGUMENTS = (
    *(c_int, c_int, c_size_t, c_size_t, c_void_p, c_void_p, c_size_t),
    *(c_char_p, c_size_t, c_int),
)
"""Those of `blosc_compress_ctx`: level, shuffle, bytes of an element, bytes, source, target, room,
codec, bytes of a block, threads."""

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_HEADER = struct.Struct("<BBBBIII")
"""Versions of format and codec, flags, bytes of an element, bytes, bytes of a block, of all."""

_SHUFFLED, _STORED, _UNSPLIT = 0x01, 0x02, 0x10
"""Flags: bytes are shuffled, bytes are not compressed, blocks are one stream."""

_MAX_OVERHEAD = 16
"""The bytes that a frame has more than its data, at most."""

_MAX_STREAMS = 16
"""Streams of a block, at most."""

_MAX_BLOCK = 1 << 20
"""Bytes of a block that is cut into streams, at most."""

_MAX_RUN = 1 << 22
"""Bytes that a call compresses, at most, where there are several chunks."""

_LENGTH = struct.Struct("<I")


class BloscSettings(NamedTuple):
    """How chunks are compressed."""

    cname: str
    clevel: int
    shuffle: str
    width: int
    """The bytes of an element."""
    block: int
    """The bytes of a block; 0 for what the library chooses."""


@cache
def _function() -> Any:
    """Return `blosc_compress_ctx`, if the library exports it."""
    try:
        library = ctypes.CDLL(needed("numcodecs.blosc", "store").__file__)
        function = library.blosc_compress_ctx
    except (OSError, AttributeError):
        return None
    function.restype, function.argtypes = c_int, _ARGUMENTS
    return function


@cache
def encoder(settings: BloscSettings, size: int) -> BloscEncoder | None:
    """Return what compresses chunks of `size` bytes on any thread, if the function is there."""
    return None if _function() is None else BloscEncoder(settings, size)


class _Run(NamedTuple):
    """How one call compresses several chunks."""

    chunks: int
    """Chunks that a block has streams of; 1 where a chunk is whole blocks."""
    width: int
    kind: int
    block: int
    most: int
    """Chunks in a call, at most."""


class BloscEncoder:
    """Compresses chunks of one size; neighbours by one call, where the frame can be cut."""

    def __init__(self, settings: BloscSettings, size: int) -> None:
        self.settings, self.size = settings, size
        self._function = _function()
        self._name, self._kind = settings.cname.encode(), _SHUFFLES[settings.shuffle]
        self._run = self._plan_run()

    def encode(
        self, tiles: Values, numbers: Sequence[int], memory: Values
    ) -> tuple[list[Bytes], Values]:
        """Return the frames of some tiles in pieces, and the bytes of each; they lie in `memory`.

        Tiles are rows of bytes; `memory` has a 128th more than the bytes of all of them, and 1 KiB
        for each.
        """
        buffers, sizes, end = list[Bytes](), list[Values](), 0
        width, block = self.settings.width, self.settings.block
        for some in self._groups(numbers):
            made = self._encode_run(tiles, some, memory[end:]) if len(some) > 1 else None
            if made is not None:
                pieces, found, used = made
                buffers += pieces
                sizes.append(found)
                end += used
                continue
            for number in some:
                used = self._compress(tiles[number], memory[end:], width, self._kind, block)
                buffers.append(memory.data[end : end + used])
                sizes.append(np.array([used]))
                end += used
        return buffers, np.concatenate(sizes)

    def _groups(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        """Cut numbers into those that one call may compress."""
        step, most = (self._run.chunks, self._run.most) if self._run else (1, 1)
        most -= most % step
        at = 0
        while at < len(numbers):
            count = min(len(numbers) - at, most)
            count = count - count % step or 1
            yield numbers[at : at + count]
            at += count

    def _compress(self, source: Values, target: Values, width: int, kind: int, block: int) -> int:
        """Compress bytes into a frame; return its bytes."""
        # With no more room than this, bytes that do not compress are stored as they are.
        room = min(target.nbytes, source.nbytes + _MAX_OVERHEAD)
        where = source.ctypes.data, target.ctypes.data
        count: int = self._function(
            *(self.settings.clevel, kind, width, source.nbytes, *where, room),
            *(self._name, block, 1),
        )
        if count < 1:
            raise WeftError(f"Blosc could not compress {source.nbytes} B into {room} B")
        return count

    # -- several chunks by one call

    def _plan_run(self) -> _Run | None:
        """Return how one call compresses several chunks, or None."""
        _, _, _, width, block = self.settings
        size, kind = self.size, self._kind
        alone = self._blocks(width, kind, block, size)
        if alone is None:
            return None
        found, is_split = alone
        if found < size or not is_split:
            asked = block if found < size else size
            if size % found or self._blocks(width, kind, asked, 2 * size) != alone:
                return None
            return _Run(1, width, kind, asked, max(1, _MAX_RUN // size))
        chunks = min(_MAX_STREAMS // width, _MAX_BLOCK // size)
        if kind == _SHUFFLES["bitshuffle"] or sys.byteorder != "little" or chunks < 2:
            return None
        if kind and width not in (1, 2, 4, 8):
            return None
        run = _Run(chunks, chunks * width, 0, size // width, _MAX_RUN // size)
        wanted = chunks * size, True
        is_so = self._blocks(run.width, run.kind, run.block, 2 * chunks * size) == wanted
        return run if is_so else None

    def _blocks(self, width: int, kind: int, block: int, size: int) -> tuple[int, bool] | None:
        """Return the bytes of a block that the library makes, and whether it has streams."""
        frame = np.empty(size + size // 128 + 1024, np.uint8)
        self._compress(np.zeros(size, np.uint8), frame, width, kind, block)
        _, _, flags, _, _, found, _ = _HEADER.unpack_from(frame.data)
        return None if flags & _STORED else (min(found, size), not flags & _UNSPLIT)

    def _encode_run(
        self, tiles: Values, numbers: Sequence[int], memory: Values
    ) -> tuple[list[Bytes], Values, int] | None:
        """Return frames in pieces, the bytes of each, and the bytes of memory that they take.

        None if they hardly compress: one of them may have to be stored as it is.
        """
        run, count = self._run, len(numbers)
        assert run is not None
        source = self._together(tiles, numbers)
        used = self._compress(source, memory, run.width, run.kind, run.block)
        frame = memory[:used]
        _, _, flags, _, _, block, _ = _HEADER.unpack_from(frame.data)
        if flags & _STORED:
            return None
        starts = self._starts(frame, count, block)
        sizes = np.empty(count, np.int64)
        sizes[:-1] = starts[1:, 0]
        sizes[-1] = used
        sizes -= starts[:, 0]
        head = _HEADER.size + 4 * starts.shape[1]
        sizes += head
        if sizes.max() > self.size + _MAX_OVERHEAD:
            return None
        heads = np.empty((count, head // 4), "<u4")
        heads[:, :4] = self._header(flags, min(block, self.size), bytes(frame[:2]))
        heads[:, 3] = sizes
        heads[:, 4:] = starts
        heads[:, 4:] -= (starts[:, :1] - head).astype("<u4")
        data, view, at = heads.reshape(-1).view(np.uint8).data, memory.data, int(starts[0, 0])
        pieces = list[Bytes]()
        for n, size in enumerate(sizes.tolist()):
            end = at + size - head
            pieces += data[n * head : (n + 1) * head], view[at:end]
            at = end
        return pieces, sizes, used

    @lru_cache  # noqa: B019 - encoders are kept
    def _header(self, flags: int, block: int, versions: bytes) -> Values:
        """Return the header of a chunk's frame as numbers, without the bytes of the frame."""
        flags |= _SHUFFLED * (self.settings.shuffle == "shuffle")
        packed = _HEADER.pack(*versions, flags, self.settings.width, self.size, block, 0)
        return np.frombuffer(packed, "<u4")

    def _together(self, tiles: Values, numbers: Sequence[int]) -> Values:
        """Return the bytes of tiles one after the other, shuffled if the run needs it."""
        assert self._run is not None
        is_shuffled = self._run.kind != self._kind
        count, rows = len(numbers), _rows(tiles, numbers)
        if len(rows) == 1 and not is_shuffled:
            return rows
        place = np.frombuffer(scratch("together", count * self.size), np.uint8)
        if not is_shuffled:
            np.copyto(place.reshape(rows.shape), rows)
            return place
        width = self.settings.width
        planes = place.reshape(*rows.shape[:2], width, self.size // width)
        words = rows.view(f"u{width}")
        for byte in range(width):
            np.right_shift(words, 8 * byte, out=planes[:, :, byte], casting="unsafe")
        return place

    def _starts(self, frame: Values, count: int, block: int) -> Values:
        """Return where the blocks of each chunk begin, or its streams: a row for each chunk."""
        assert self._run is not None
        blocks = count * self.size // block
        table = frame[_HEADER.size : _HEADER.size + 4 * blocks].view("<u4")
        if self._run.chunks == 1:
            return table.astype(np.int64).reshape(count, -1)
        length, width, starts = _LENGTH.unpack_from, self.settings.width, list[int]()
        data = frame.data
        for start in table.tolist():
            at = start
            for _ in range(self._run.chunks):
                starts.append(at)
                for _ in range(width):  # each stream has its length before it
                    at += 4 + length(data, at)[0]
        return np.array(starts).reshape(count, 1)


def _rows(tiles: Values, numbers: Sequence[int]) -> Values:
    """Return some tiles as rows of neighbours; a view where all rows are as far apart."""
    grid = _grid(tuple(numbers))
    if grid is None:
        gathered: Values = tiles[np.asarray(numbers)]
        return gathered[None]
    count, length, step = grid
    size = tiles.shape[1]
    return np.lib.stride_tricks.as_strided(
        tiles[numbers[0] :], (count, length, size), (step * size, size, 1)
    )


@lru_cache(maxsize=1024)
def _grid(numbers: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return how many rows of how many neighbours numbers are, and how far rows are apart.

    >>> _grid((4, 5, 6, 14, 15, 16)), _grid((1, 2)), _grid((1, 2, 4))
    ((2, 3, 10), (1, 2, 0), None)
    """
    length = 1
    while length < len(numbers) and numbers[length] == numbers[0] + length:
        length += 1
    starts = numbers[::length]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    wanted = (numbers[0] + row * step + n for row in range(len(starts)) for n in range(length))
    return (len(starts), length, step) if tuple(wanted) == numbers else None
