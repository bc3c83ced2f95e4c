"""`native.c`, compiled on first use: the inner loops of recording and reading, without Python.

With many cores the interpreter lock is what limits a recording: each thread that encodes takes it
several times for every few megabytes. The functions here copy and encode without it, on threads of
their own, and read chunks on those of readers. Where there is no C compiler, NumPy and the codecs'
wrappers do the same: `compiled()` is None then. The environment variable `WEFT_NATIVE=0` has the
same effect.

The compiled file is kept in `weft` below the user's cache folder (`XDG_CACHE_HOME`, or `~/.cache`),
under a name that depends on the source and the machine.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int64, c_void_p
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.space import ZRange
from weft.store.threads import CORES, for_each

Values: TypeAlias = np.ndarray[Any, Any]

FLAGS = ("-O3", "-shared", "-fPIC", "-pthread")

MAX_RANK = 32
"""Dimensions of a copy, at most."""

ITEM = 1 << 18
"""Bytes that a thread encodes before it looks for other work; at least one tile."""

COPY = 1 << 18
"""Bytes that a thread copies before it looks for other work."""

READ = (1 << 16, 1 << 18)
"""The least and the most bytes that a thread reads before it looks for other chunks."""

AT_ONCE = 1 << 25
"""Bytes after which a thread that reads returns to the interpreter, which may have a signal."""

CALLERS = min(CORES, 6, max(2, (CORES + 2) // 3))
"""Threads of the interpreter that encode and write; the others are here."""

STORED, BLOSC, ZSTD = range(3)


class _Libraries(Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            *("blosc", "zstd_create", "zstd_free", "zstd_reset", "zstd_set", "zstd_compress"),
            *("zstd_is_error", "crc32c", "unblosc", "unzstd_create", "unzstd_free", "unzstd"),
        )
    ]


_BOX = np.dtype(
    [
        *((name, "i8") for name in ("rank", "line")),
        *((name, "i8", MAX_RANK) for name in ("shape", "to_steps", "from_steps")),
        *((name, "u8") for name in ("to", "from", "parts")),
    ]
)
"""A box of lines that is copied."""


class _Encoding(Structure):
    _fields_ = [
        ("pieces", c_void_p),
        ("count", c_int64),
        ("pieces_each", c_int64),
        ("piece", c_int64),
        ("fill", c_char_p),
        ("fill_size", c_int64),
        ("group", c_int64),
        ("out", c_void_p),
        ("room", c_int64),
        ("sizes", c_void_p),
        ("codec", c_int64),
        ("level", c_int64),
        ("shuffle", c_int64),
        ("width", c_int64),
        ("block", c_int64),
        ("hash_log", c_int64),
        ("has_content_checksum", c_int64),
        ("name", c_char_p),
        ("has_checksum", c_int64),
    ]


_Sizes = c_int64 * MAX_RANK


class _ShardBox(Structure):
    _fields_ = [
        *((name, _Sizes) for name in ("low", "high", "to_steps")),
        *((name, c_void_p) for name in ("to", "offsets", "sizes")),
        *((name, c_int64) for name in ("file", "chunks")),
    ]


class _Reading(Structure):
    _fields_ = [
        ("boxes", c_void_p),
        *((name, c_int64) for name in ("all_chunks", "rank")),
        *((name, _Sizes) for name in ("chunk", "slot_steps", "from_steps")),
        *((name, c_int64) for name in ("width", "size", "most", "codec", "has_checksum")),
        *(("fill", c_char_p), ("path", c_char_p)),
        *((name, c_int64) for name in ("separator", "group", "next", "has_failed", "fetched")),
    ]


class StoredChunks(NamedTuple):
    """How the chunks of an array are stored, all alike."""

    shape: Sequence[int]
    slot_steps: Sequence[int]
    """The distance between the slots of neighbouring chunks, along each dimension."""
    steps: Sequence[int]
    """The bytes between neighbouring elements of a chunk."""
    itemsize: int
    nbytes: int
    most: int
    """The most bytes of a stored chunk."""
    codec: int
    has_checksum: bool
    fill: bytes
    """An element of a chunk that is not stored."""


class ShardBox(NamedTuple):
    """A box of a shard that is read into an array."""

    box: ZRange
    """Relative to the shard."""
    out: Values
    chunks: int
    """How many chunks the box meets."""
    file: int = -1
    offsets: array[int] = array("Q")
    """Where each chunk of the shard begins, by slot."""
    sizes: array[int] = array("Q")


class Compression(NamedTuple):
    """How tiles are compressed by a library; the fields are those of the codecs."""

    codec: int = STORED
    level: int = 0
    shuffle: int = 0
    width: int = 1
    block: int = 0
    hash_log: int = 0
    has_content_checksum: bool = False
    name: bytes = b""
    has_checksum: bool = False
    """Whether a CRC32C follows."""


class Native:
    """The compiled functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.weft_threads.argtypes, library.weft_threads.restype = (c_int64,), None
        library.weft_copy.argtypes, library.weft_copy.restype = (c_void_p, c_int64, c_int64), None
        library.weft_encode.argtypes, library.weft_encode.restype = (POINTER(_Encoding),), None
        library.weft_read.argtypes = POINTER(_Reading), c_int64
        library.weft_read.restype = c_int64
        library.weft_use(byref(_libraries()))
        self._is_started = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget the threads in a forked process, which has none of its parent's."""
        self._library.weft_forget()
        self._is_started = False

    def _start(self) -> None:
        """Start threads beside those that call, as many as there are other cores."""
        if not self._is_started:
            self._library.weft_threads(CORES - CALLERS)
            self._is_started = True

    def copy(self, boxes: Values) -> None:
        """Copy boxes of lines, which `boxes_of` describes."""
        self._start()
        self._library.weft_copy(boxes.ctypes.data, len(boxes), COPY)

    def encode(
        self,
        pieces: Values,
        piece: int,
        how: Compression,
        fill: bytes | None,
        memory: Values,
        room: int,
        *,
        is_alone: bool,
    ) -> tuple[Values, Sequence[tuple[int, int]]]:
        """Encode tiles, each given by the addresses of its pieces: a row for each tile.

        Return the bytes of each chunk, 0 for one that is all fill value; and the parts of `memory`,
        which has `room` for each tile, where chunks lie one after the other: the start and the
        bytes of each. Of tiles that are stored as they are it has the checksums alone. Without
        `is_alone`, other threads help.
        """
        count, each = pieces.shape
        sizes = np.empty(count, np.int64)
        group = count if is_alone else max(1, ITEM // (piece * each))
        if not is_alone:
            self._start()
        job = _Encoding(
            *(pieces.ctypes.data, count, each, piece),
            *(fill, len(fill or b""), group, memory.ctypes.data, room, sizes.ctypes.data),
            *how,
        )
        self._library.weft_encode(byref(job))
        if sizes.min() < 0:
            name = how.name.decode() or "zstd"
            raise WeftError(f"{name} could not compress a chunk of {piece * each} B")
        if how.codec == STORED:
            return sizes, ()
        starts = range(0, count, group)
        return sizes, list(zip((n * room for n in starts), np.add.reduceat(sizes, starts).tolist()))

    def read(
        self,
        boxes: Sequence[ShardBox],
        chunks: StoredChunks,
        threads: int | None,
        path: bytes | None = None,
        separator: bytes = b"/",
    ) -> int | None:
        """Read boxes; return the bytes that were fetched, or None if a chunk cannot be read.

        With a path, chunks are files: it is what comes before the place of a chunk in their names,
        which a separator joins. The array counts as one shard then.

        Threads that all readers share call it, and take one group of chunks after the other.
        """
        shards = (_ShardBox * len(boxes))()
        rank = len(chunks.shape)
        for shard, (box, out, count, file, offsets, sizes) in zip(shards, boxes):
            shard.low[:rank], shard.high[:rank] = box.start, box.stop
            shard.to_steps[:rank], shard.to = out.strides, out.ctypes.data
            shard.offsets, shard.sizes = offsets.buffer_info()[0], sizes.buffer_info()[0]
            shard.file, shard.chunks = file, count
        count = sum(box.chunks for box in boxes)
        least, most = (size // chunks.nbytes for size in READ)
        group = max(1, least, min(most, count // CORES))
        job = _Reading(
            *(ctypes.addressof(shards), count, rank),
            *(_Sizes(*sizes) for sizes in (chunks.shape, chunks.slot_steps, chunks.steps)),
            *(chunks.itemsize, chunks.nbytes, chunks.most, chunks.codec, chunks.has_checksum),
            *(chunks.fill, path, ord(separator), group, 0, 0, 0),
        )

        def read(_: int) -> None:
            try:
                while self._library.weft_read(byref(job), AT_ONCE):
                    pass  # signals are handled
            except BaseException:
                job.has_failed = 1  # others need not go on
                raise

        for_each(read, range(-(-count // group)), max_threads=threads)
        return None if job.has_failed else int(job.fetched)


def boxes_of(pairs: Sequence[tuple[Values, Values]]) -> Values | None:
    """Return how arrays are copied, each from the second of a pair to the first.

    None if elements along a last dimension are not neighbours, or are converted.
    """
    boxes = np.zeros(len(pairs), _BOX)
    for box, (target, source) in zip(boxes, pairs):
        rank, size = source.ndim - 1, source.itemsize
        if target.dtype != source.dtype or not 0 <= rank <= MAX_RANK:
            return None
        if source.shape[-1] > 1 and (source.strides[-1] != size or target.strides[-1] != size):
            return None
        box["rank"], box["line"] = rank, size * source.shape[-1]
        box["shape"][:rank] = source.shape[:-1]
        box["to_steps"][:rank] = target.strides[:-1]
        box["from_steps"][:rank] = source.strides[:-1]
        box["to"], box["from"] = target.ctypes.data, source.ctypes.data
    return boxes


def _libraries() -> _Libraries:
    """Return the functions of codecs, in the libraries that hold them."""
    blosc = ctypes.CDLL(needed("numcodecs.blosc", "store").__file__)
    crc = ctypes.CDLL(needed("google_crc32c._crc32c", "store").__file__)
    functions = (
        *(blosc.blosc_compress_ctx, blosc.ZSTD_createCCtx, blosc.ZSTD_freeCCtx),
        *(blosc.ZSTD_CCtx_reset, blosc.ZSTD_CCtx_setParameter, blosc.ZSTD_compress2),
        *(blosc.ZSTD_isError, crc.crc32c_extend, blosc.blosc_decompress_ctx),
        *(blosc.ZSTD_createDCtx, blosc.ZSTD_freeDCtx, blosc.ZSTD_decompressDCtx),
    )
    return _Libraries(*(ctypes.cast(function, c_void_p) for function in functions))


def compiled() -> Native | None:
    """Return the compiled functions; None where they are not wanted, or cannot be had."""
    found = _load()
    return found if isinstance(found, Native) else None


def why_not() -> str | None:
    """Return why there are no compiled functions; None where there are."""
    found = _load()
    return found if isinstance(found, str) else None


@cache
def _load() -> Native | str:
    """Return the compiled functions, or why there are none."""
    if os.environ.get("WEFT_NATIVE") == "0":
        return "WEFT_NATIVE is 0"
    if sys.platform == "win32" or ctypes.sizeof(c_void_p) != 8:
        return "it is for systems of 64 bits with POSIX threads"
    try:
        return Native(ctypes.CDLL(str(_library_file())))
    except subprocess.CalledProcessError as error:
        return f"{shlex.join(error.cmd[:1])} could not compile it"
    except (OSError, RuntimeError, AttributeError, WeftError, subprocess.SubprocessError) as error:
        return str(error)  # no compiler, no folder, or a library that exports no functions


def _library_file() -> Path:
    """Return the compiled file; compile it if there is none."""
    source = files("weft.store").joinpath("native.c").read_bytes()
    machine = f"{sys.platform}-{platform.machine()}-{platform.libc_ver()}-{FLAGS}"
    name = hashlib.sha256(source + machine.encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "weft"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise OSError(f"{folder} can be written by somebody else")
    library = folder / f"native-{name}.so"
    if not library.exists():
        _compile(source, library)
    return library


def _compile(source: bytes, library: Path) -> None:
    """Compile the source to a file that appears when it is complete."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        code, made = Path(folder) / "native.c", Path(folder) / "native.so"
        code.write_bytes(source)
        command = [*_compiler(), *FLAGS, "-o", str(made), str(code)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        made.replace(library)


def _compiler() -> list[str]:
    """Return the command of a C compiler: that of the environment, of Python, or the usual one."""
    named = os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"
    for command in (shlex.split(name or "") for name in named):
        if command and shutil.which(command[0]):
            return command
    raise OSError("there is no C compiler")
