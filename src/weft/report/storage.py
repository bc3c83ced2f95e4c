"""`store_data`: a Zarr array as what the page draws: its shards, their chunks, and their bytes."""

from __future__ import annotations

from importlib import import_module
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.values import Point

if TYPE_CHECKING:
    from weft.store import Array

MOST_SHARDS = 4096
"""Shards that are looked at."""
MOST_CHUNKS = 1 << 16
"""Chunks whose sizes are kept."""


def store_data(given: Any) -> dict[str, Any]:
    """An array that is open, or that lies in a folder or at an address."""
    array: Array = given if hasattr(given, "metadata") else _opened(given)
    said, itemsize = array.metadata, int(array.dtype.itemsize)
    shards = tuple(max(1, n) for n in said.shards)
    chunks = tuple(max(1, n) for n in said.chunks)
    grid = tuple(-(-n // s) for n, s in zip(said.shape, shards))
    inner = tuple(s // c for s, c in zip(shards, chunks))
    points: Any = import_module("weft.store.chunk_layout").points
    seen = list(islice(points([range(n) for n in grid]), MOST_SHARDS))
    has_chunks = said.is_sharded and len(seen) * prod(inner) <= MOST_CHUNKS
    return {
        "url": array.sink.url,
        "shape": list(said.shape),
        "dtype": said.dtype,
        "itemsize": itemsize,
        "chunks": list(chunks),
        "shards": list(shards),
        "names": [name or "" for name in said.dimension_names or [""] * len(said.shape)],
        "codecs": [codec.name for codec in said.codecs] or ["none"],
        "is_sharded": said.is_sharded,
        "grid": list(grid),
        "inner": list(inner),
        "count": prod(grid),
        "files": [_shard(array, at, prod(inner) if has_chunks else 0) for at in seen],
    }


def _opened(place: Any) -> Array:
    try:
        store: Any = import_module("weft.store")
    except ImportError as error:
        raise WeftError("a store's report needs NumPy", hint="pip install 'weft[store]'") from error
    array: Array = store.open_array(place)
    return array


def _shard(array: Array, at: Point, slots: int) -> list[Any] | None:
    """The bytes of a shard and of each of its chunks, None for a chunk or a shard that is not."""
    said = array.metadata
    if not slots:
        found = array.sink.fetch(said.key(at), 0, 0)
        return None if found is None else [found.size]
    index: Any = import_module("weft.store.shard")
    count = index.length(slots, said.has_checksum)
    place = 0 if said.index_location == "start" else -count
    found = array.sink.fetch(said.key(at), place, count)
    if found is None:
        return None
    read = index.Index.parse(
        found.data, slots, has_checksum=said.has_checksum, endian=said.index_endian
    )
    sizes = [None if size == index.ABSENT else int(size) for size in read.sizes]
    return [found.size, sizes]
