"""How much memory hostile input may take: chunks that claim far more than they are stored as.

Metadata say how large a chunk is, and a few bytes can claim to be that chunk: zstd stores 2 GiB of
zeros in 65 KB. A chunk of up to `CHUNK` bytes is decoded whatever it is stored as. A larger one
must be stored as at least one byte in `RATIO`: the memory that it takes is then in proportion to
what is there. The environment variable `WEFT_CHUNK_LIMIT` raises `CHUNK` for data that compress
better.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext

from weft.store.reading.unpack import CodecError

CHUNK = 1 << 27
"""Bytes of a chunk that is decoded however few bytes it is stored as."""

RATIO = 64
"""How many times its stored bytes a larger chunk may have."""

LARGE = 1 << 24
"""Bytes of a chunk from which it is decoded alone, if it is stored as few."""

VARIABLE = "WEFT_CHUNK_LIMIT"

_ALONE = threading.Lock()


def check_expansion(stored: int, size: int) -> None:
    """Raise `CodecError` where a chunk of `size` bytes is stored as suspiciously few.

    >>> check_expansion(65_000, 1 << 27)
    >>> check_expansion(65_000, 10**10)
    Traceback (most recent call last):
    ...
    weft.store.reading.unpack.CodecError: 65000 B claim to be a chunk of 10000000000 B
    hint: above 134217728 B, a chunk has at most 64 times its stored bytes; if this one has more,
    set WEFT_CHUNK_LIMIT=10000000000
    """
    if size <= CHUNK or size <= RATIO * stored or size <= _limit():
        return
    raise CodecError(
        f"{stored} B claim to be a chunk of {size} B",
        hint=f"above {CHUNK} B, a chunk has at most {RATIO} times its stored bytes; if this one "
        f"has more, set {VARIABLE}={size}",
    )


def turn(stored: int, size: int) -> AbstractContextManager[object]:
    """Return what to hold while a chunk is decoded: a lock, where it is large for what is stored.

    Such chunks are decoded one at a time, so that however many there are, and however many threads,
    they take the memory of one.
    """
    return _ALONE if size > LARGE and size > RATIO * stored else nullcontext()


def _limit() -> int:
    text = os.environ.get(VARIABLE, "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        raise CodecError(f"{VARIABLE}={text!r} is no number of bytes")
    return int(text)
