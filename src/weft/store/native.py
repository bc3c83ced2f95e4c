"""Compression without the interpreter lock: the C functions that `numcodecs` contains, by ctypes.

The wrappers of codec libraries allocate a `bytes` for each chunk, and hold the interpreter lock
while they do: with many threads and small chunks that is most of the time. Their libraries are
called directly here, with addresses. A call holds the lock for about a microsecond, and chunks are
encoded one after the other into memory that is used again and again.

Not every build of `numcodecs` exports these functions. Where one is missing, `compressor` returns
None and chunks go through the wrappers, with the same result.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.extra import needed

Compress: TypeAlias = Callable[[int, int, int, int], int]
"""Compresses bytes: from an address, a number of them, to an address, at most a number of bytes.

It returns the number of bytes written, and a number below 1 if it fails.
"""

_FUNCTIONS = {
    "blosc_compress_ctx": (
        c_int,
        (c_int, c_int, c_size_t, c_size_t, c_void_p, c_void_p, c_size_t, c_char_p, c_size_t, c_int),
    ),
    "ZSTD_createCCtx": (c_void_p, ()),
    "ZSTD_freeCCtx": (c_size_t, (c_void_p,)),
    "ZSTD_CCtx_setParameter": (c_size_t, (c_void_p, c_int, c_int)),
    "ZSTD_compress2": (c_size_t, (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)),
}
"""Result and arguments of the functions, as their headers declare them."""

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
FRAME_HEAD = 20
"""The bytes before the only block of a Blosc frame: its header, and where the block begins."""

_MAX_OVERHEAD = 16
"""The bytes that a Blosc frame has more than its data, at most."""

_STORED = 0x02
"""The flag of frames whose bytes are not compressed."""

_LEVEL, _HASH_LOG, _CHECKSUM = 100, 102, 201
"""The numbers of parameters of a zstd context."""

_LOCAL = threading.local()


@cache
def _library() -> Any:
    """Return the library of Blosc, LZ4 and zstd, if it exports the functions that are used."""
    return _load(needed("numcodecs.blosc", "store").__file__, _FUNCTIONS)


@cache
def crc32c() -> Callable[[int, int, int], int] | None:
    """Return a function that continues a CRC32C with bytes at an address, if there is one in C."""
    module = needed("google_crc32c", "store")
    if module.implementation != "c":
        return None
    found = _load(
        needed("google_crc32c._crc32c", "store").__file__,
        {"crc32c_extend": (c_uint32, (c_uint32, c_void_p, c_size_t))},
    )
    extend: Callable[[int, int, int], int] | None = getattr(found, "crc32c_extend", None)
    return extend


def _load(path: str, functions: dict[str, tuple[Any, tuple[Any, ...]]]) -> Any:
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


def blosc(cname: str, clevel: int, shuffle: str, typesize: int, blocksize: int) -> Compress | None:
    """Return the compressor of Blosc frames, if there is one; it may run on any thread."""
    library = _library()
    if library is None:
        return None
    function, kind, name = library.blosc_compress_ctx, _SHUFFLES[shuffle], cname.encode()

    def compress(source: int, size: int, target: int, room: int) -> int:
        # With no more room than this, bytes that do not compress are stored as they are.
        most = min(room, size + _MAX_OVERHEAD)
        count: int = function(
            clevel, kind, typesize, size, source, target, most, name, blocksize, 1
        )
        return count

    return compress


class SplitFrame(NamedTuple):
    """A Blosc frame cut into frames of its blocks."""

    heads: np.ndarray[Any, Any]
    """The first bytes of each frame, `FRAME_HEAD` for each."""
    starts: list[int]
    """Where the rest of each begins in the frame that was cut."""
    stops: list[int]


def split_frame(frame: np.ndarray[Any, Any], count: int, size: int) -> SplitFrame | None:
    """Cut a Blosc frame of `count` blocks of `size` bytes into frames of one block each.

    A block is compressed by itself: with a head of its own, it is what the library makes of it
    alone. None if the library chose other blocks, or stored the bytes as they are.
    """
    head, at = frame[:16].copy(), 16 + 4 * count
    if head[2] & _STORED or int(head[8:12].view("<u4")[0]) != size:
        return None
    starts = frame[16:at].view("<u4").astype(np.int64)
    stops = np.append(starts[1:], int(head[12:16].view("<u4")[0]))
    if starts[0] != at or (starts >= stops).any():
        return None
    heads = np.empty((count, FRAME_HEAD), np.uint8)
    heads[:, :16] = head
    numbers = heads[:, 4:].view("<u4")
    numbers[:, 0], numbers[:, 1], numbers[:, 3] = size, size, FRAME_HEAD
    numbers[:, 2] = FRAME_HEAD + stops - starts
    return SplitFrame(heads, starts.tolist(), stops.tolist())


def zstd(level: int, checksum: bool, table: int) -> Compress | None:
    """Return the compressor of zstd frames, if there is one, for the thread that asks."""
    library = _library()
    return None if library is None else _ZstdContext.of(library, level, checksum, table).compress


class _ZstdContext:
    """A zstd context of one thread, with the settings of a codec; it is freed with the thread."""

    def __init__(self, library: Any, level: int, checksum: bool, table: int) -> None:
        self._free, self._compress2 = library.ZSTD_freeCCtx, library.ZSTD_compress2
        self._context = library.ZSTD_createCCtx()
        if not self._context:
            raise MemoryError("zstd could not allocate a context")
        settings = {_LEVEL: level, _CHECKSUM: checksum} | ({_HASH_LOG: table} if table else {})
        for number, value in settings.items():
            library.ZSTD_CCtx_setParameter(self._context, number, value)

    @staticmethod
    def of(library: Any, *settings: Any) -> _ZstdContext:
        """Return the context of this thread."""
        known: dict[Any, _ZstdContext] = _LOCAL.__dict__.setdefault("contexts", {})
        if settings not in known:
            known[settings] = _ZstdContext(library, *settings)
        return known[settings]

    def compress(self, source: int, size: int, target: int, room: int) -> int:
        """Compress, as `Compress` says."""
        count: int = self._compress2(self._context, target, room, source, size)
        return count if count <= room else 0  # the codes of errors are the largest numbers

    def __del__(self) -> None:
        self._free(self._context)
