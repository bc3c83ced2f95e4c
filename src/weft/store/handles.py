"""What is sent from process to process, opened once in each: handles to stored arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np

from weft.store.dtypes import as_dtype
from weft.store.metadata import Metadata
from weft.store.reading.parts import Grid
from weft.store.reading.shards import Shards
from weft.store.sink import Sink
from weft.values import Point

KEPT = 64
"""Handles that a process keeps open, those that were last used."""

_HELD: dict[str, Any] = {}
_LOCK = threading.Lock()


def arrived(
    token: str, make: Callable[[Sink, Metadata], Any], sink: Sink, metadata: Metadata
) -> Any:
    """The handle that is known by a token here; made of what came along if it is the first time."""
    with _LOCK:
        handle = _HELD.pop(token, None)
        if handle is None:
            handle = make(sink, metadata)
            handle.token = token
        _HELD[token] = handle  # the last to be dropped
        while len(_HELD) > KEPT:
            del _HELD[next(iter(_HELD))]
        return handle


class Handle:
    """A stored array that is open, to read or to write; small, and known again where it is sent."""

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        self.sink, self.metadata = sink, metadata
        self.dtype: np.dtype[Any] = as_dtype(metadata.dtype)[1]
        small = tuple(max(1, n) for n in metadata.chunks)
        large = tuple(max(1, n) for n in metadata.shards)
        self._grid = Grid(small, large, metadata.order, self.dtype.itemsize)
        self._shards = Shards(sink, metadata, self._grid)
        self.token = uuid4().hex
        """What it is known by where it has been sent to."""

    def __reduce__(self) -> tuple[object, ...]:
        # What is sent is opened once in each process, and keeps the indexes that it has read.
        return arrived, (self.token, type(self), self.sink, self.metadata)

    def __repr__(self) -> str:
        what = f"{self.metadata.dtype}{list(self.shape)}"
        return f"<{type(self).__name__} {what} at {self.sink.url}>"

    @property
    def shape(self) -> Point:
        """The shape of the array."""
        return self.metadata.shape

    @property
    def chunks(self) -> Point:
        """The shape of a chunk: what is encoded and decoded at once."""
        return self.metadata.chunks

    @property
    def shards(self) -> Point:
        """The shape of a shard: what is one file."""
        return self.metadata.shards
