"""What a new array needs: metadata that go together, and a place that is free."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.store.dtypes import as_dtype, write_fill
from weft.store.files import Folder
from weft.store.metadata import Metadata
from weft.store.named import Said, as_codecs
from weft.store.sink import Lock, Sink
from weft.store.target import check_target, recover, replace
from weft.values import FrozenMap, Point


def described(
    shape: Point,
    dtype: Any,
    chunks: Point,
    shards: Point,
    *,
    codecs: Said | Sequence[Said] = (),
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    order: Sequence[int] = (),
    endian: str = "little",
    index_location: str = "end",
    is_sharded: bool = True,
) -> Metadata:
    """The metadata of an array that is to be; what does not go together is refused.

    >>> described((9, 9), "uint8", (2, 2), (4, 4), codecs="zstd").codecs
    (Zstd(level=1, checksum=False, table=0),)
    """
    name, kind = as_dtype(dtype)
    _one_of("index_location", index_location, "start", "end")
    _one_of("endian", endian, "little", "big")
    if order and sorted(order) != list(range(len(shape))):
        raise WeftError(f"{list(order)} is no order of {len(shape)} dimensions")
    if dimension_names is not None and len(dimension_names) != len(shape):
        raise WeftError(f"{len(dimension_names)} names for {len(shape)} dimensions")
    return Metadata(
        shape,
        name,
        chunks,
        shards,
        as_codecs(codecs, kind.itemsize),
        write_fill(name, fill_value),
        tuple(order),
        endian,
        index_location,
        None if dimension_names is None else tuple(dimension_names),
        FrozenMap((attributes or {}).items()),
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
