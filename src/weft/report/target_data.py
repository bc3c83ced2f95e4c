"""The data that the page shows of Zarr arrays and of ciphertext plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.lang.field import Field, parse_json
from weft.values import Point

if TYPE_CHECKING:
    from weft.store import Array

COUNTS = ("rotations", "plain_products", "products", "inputs", "outputs", "bytes")
TOTALS = ("rotations", "plain_products", "products")
MOST_COUNT = 1 << 62
MOST_SHARDS = 4096
"""The most shards that are listed."""
MOST_CHUNKS = 1 << 16
"""The most chunks whose sizes are listed."""


def store_data(given: Any) -> dict[str, Any]:
    """Return the data of an open array, or of one in a folder or at an address."""
    array: Array = given if hasattr(given, "metadata") else _opened(given)
    metadata, itemsize = array.metadata, int(array.dtype.itemsize)
    layout = array.layout
    shards, chunks = layout.shards, layout.chunks
    grid, inner = layout.shard_grid.counts, layout.slot_grid.counts
    seen = list(islice(layout.shard_grid.meeting(array.box), MOST_SHARDS))
    has_chunks = metadata.is_sharded and len(seen) * prod(inner) <= MOST_CHUNKS
    return {
        "url": array.sink.url,
        "shape": list(metadata.shape),
        "dtype": metadata.dtype,
        "itemsize": itemsize,
        "chunks": list(chunks),
        "shards": list(shards),
        "names": [name or "" for name in metadata.dimension_names or [""] * len(metadata.shape)],
        "codecs": [codec.name for codec in metadata.codecs] or ["none"],
        "is_sharded": metadata.is_sharded,
        "grid": list(grid),
        "inner": list(inner),
        "count": prod(grid),
        "files": [_shard(array, at, prod(inner) if has_chunks else 0) for at in seen],
    }


def _opened(place: Any) -> Array:
    try:
        from weft.store.create import open_array
    except ImportError as error:
        raise WeftError("a store's report needs NumPy", hint="pip install 'weft[store]'") from error
    return open_array(place)


def _shard(array: Array, at: Point, slots: int) -> list[Any] | None:
    """Return the bytes of a shard and of each of its chunks; None for missing ones."""
    from weft.store import shard as index

    metadata = array.metadata
    if not slots:
        found = array.sink.fetch(metadata.key(at), 0, 0)
        return None if found is None else [found.size]
    count = index.index_size(slots, metadata.has_checksum)
    place = 0 if metadata.index_location == "start" else -count
    found = array.sink.fetch(metadata.key(at), place, count)
    if found is None:
        return None
    read = index.Index.parse(
        found.data, slots, has_checksum=metadata.has_checksum, endian=metadata.index_endian
    )
    sizes = [None if size == index.ABSENT else int(size) for size in read.sizes]
    return [found.size, sizes]


# -- ciphertexts ----------------------------------------------------------------------------------


def ckks_data(given: Any) -> dict[str, Any]:
    """Return what the page draws of a `weft.ckks` plan, or of the JSON of `weft ckks plan`."""
    text = given if isinstance(given, str) else json.dumps(_described(given))
    root = parse_json(text, "the ciphertext plan")
    return {
        "headline": _text(root.at("headline")),
        "slots": _count(root.at("slots")),
        "depth": _count(root.at("depth")),
        "parameters": _text(root.at("parameters")),
        "key_bytes": _count(root.at("key_bytes")) if root.at("key_bytes").value else None,
        "layers": root.at("layers").items(_layer),
        "total": _counts(root.at("total"), TOTALS),
    }


def _described(given: Any) -> Mapping[str, Any]:
    """Return a plan as `weft ckks plan --json` prints it: counts of each layer and of all."""
    described: Mapping[str, Any] = given if isinstance(given, Mapping) else given.describe()
    return described


def _layer(field: Field) -> dict[str, Any]:
    start, seconds = field.at("start"), field.at("seconds")
    return {
        "name": _text(field.at("name")),
        "operator": _text(field.at("operator")),
        "mesh": _text(field.at("mesh")),
        "packing": _text(field.at("packing")),
        "start": None if start.value is None else _count(start),
        "level": _count(field.at("level")),
        "seconds": None if seconds.value is None else seconds.number(0),
        **_counts(field, COUNTS),
    }


def _counts(field: Field, keys: tuple[str, ...]) -> dict[str, Any]:
    counts: dict[str, Any] = {key: _count(field.at(key)) for key in keys}
    rotations = field.at("keys").value
    return counts | {"keys": len(rotations) if isinstance(rotations, list) else 0}


def _count(field: Field) -> int:
    number = field.value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST_COUNT:
        field.fail("a count, 0 or more")
    return int(number)


def _text(field: Field) -> str:
    return "" if field.value in (None, "") else field.text()
