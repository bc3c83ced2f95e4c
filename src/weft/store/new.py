"""What a new array needs: metadata that go together, and a place that is free."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.store.codecs import with_checksum
from weft.store.dtypes import as_dtype, write_fill
from weft.store.files import Folder
from weft.store.metadata import EVERY_SHARD, Metadata
from weft.store.named import Said, as_codecs
from weft.store.sink import Lock, Sink
from weft.store.target import check_target, recover, replace
from weft.values import FrozenMap, Point

OWN = ("arrival", "frame_ndim", "frames", EVERY_SHARD)
"""What Weft says of an array in the attribute `weft`."""


def without_own(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes without what Weft says of the array that they were copied from."""
    kept = dict(attributes or {})
    if isinstance(kept.get("weft"), Mapping):
        kept["weft"] = {key: value for key, value in kept["weft"].items() if key not in OWN}
    return kept


def described(
    shape: Point,
    dtype: Any,
    chunks: Point,
    shards: Point,
    *,
    codecs: Said | Sequence[Said] = (),
    checksum: bool = True,
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    order: Sequence[int] = (),
    endian: str = "little",
    index_location: str = "end",
    is_sharded: bool = True,
) -> Metadata:
    """Return the metadata of a new array; what does not go together is refused.

    With `checksum`, every chunk carries a CRC32C of its stored bytes. The attribute "weft" promises
    that every shard is stored, those that are all fill value too.

    >>> described((9, 9), "uint8", (2, 2), (4, 4), codecs="zstd").codecs
    (Zstd(level=1, checksum=False, table=0), Crc32c())
    """
    name, kind = as_dtype(dtype)
    _one_of("index_location", index_location, "start", "end")
    _one_of("endian", endian, "little", "big")
    if order and sorted(order) != list(range(len(shape))):
        raise WeftError(f"{list(order)} is no order of {len(shape)} dimensions")
    if dimension_names is not None and len(dimension_names) != len(shape):
        raise WeftError(f"{len(dimension_names)} names for {len(shape)} dimensions")
    chain = as_codecs(codecs, kind.itemsize)
    given = dict(attributes or {})
    weft = given["weft"] if isinstance(given.get("weft"), Mapping) else {}
    given["weft"] = {**weft, EVERY_SHARD: True}
    return Metadata(
        shape,
        name,
        chunks,
        shards,
        with_checksum(chain) if checksum else chain,
        write_fill(name, fill_value),
        tuple(order),
        endian,
        index_location,
        None if dimension_names is None else tuple(dimension_names),
        FrozenMap(given.items()),
        is_sharded,
    )


def _one_of(what: str, said: str, one: str, other: str) -> None:
    if said not in (one, other):
        raise WeftError(f"{what}: {said!r} is neither {one} nor {other}")


def check_chunk(chunks: Point, itemsize: int) -> int:
    """Refuse a chunk that the memory of this machine cannot hold; return the bytes of that."""
    size = prod(chunks) * itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise WeftError(f"a chunk of {list(chunks)} has {size} B, and this machine has {memory} B")
    return memory


def begin(sink: Sink, metadata: Metadata, overwrite: bool) -> None:
    """Write the metadata of a new array, in place of what may be replaced; the sink is locked."""
    recover(sink)
    check_target(sink, overwrite)
    text, empty = metadata.to_json().encode(), without_elements(metadata).to_json().encode()
    replace(sink, text, empty=empty)


def without_elements(metadata: Metadata) -> Metadata:
    """The metadata of the same array, but without elements."""
    if 0 in metadata.shape:
        return metadata
    if metadata.shape:
        return dataclasses.replace(metadata, shape=(0, *metadata.shape[1:]))
    return Metadata((0,), metadata.dtype, (1,), (1,), is_sharded=False)


@contextmanager
def locked(sink: Sink) -> Iterator[Lock]:
    """Hold the lock of a store; if the block fails it is released, and no new folder stays."""
    try:
        absent = sink.absent() if isinstance(sink, Folder) else []
        try:
            lock = sink.lock()
            try:
                yield lock
            except BaseException:
                lock.release()
                raise
        except BaseException:
            with suppress(OSError):  # it holds something, or was never made
                for folder in absent:
                    folder.rmdir()
            raise
    except OSError as error:
        raise WeftError(f"{sink.url} cannot be written: {error}") from error
