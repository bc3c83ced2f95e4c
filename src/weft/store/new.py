"""What a new array needs: metadata that go together, and a place that is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from weft.errors import WeftError
from weft.store.codecs import with_checksum
from weft.store.dtypes import as_dtype, write_fill
from weft.store.metadata import EVERY_SHARD, Metadata
from weft.store.named import Said, as_codecs
from weft.store.sink import Lock, Sink
from weft.values import FrozenMap, Point


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
    arrival: Point = (),
    order: Sequence[int] = (),
    endian: str = "little",
    index_location: str = "end",
    is_sharded: bool = True,
) -> Metadata:
    """Return the metadata of a new array; what does not go together is refused.

    With `checksum`, every chunk carries a CRC32C of its stored bytes. The attribute "weft" is
    written anew, whatever the attributes given say there: it promises that every shard is stored,
    and says the order in which dimensions arrive, where that is not the stored one.

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
    own: dict[str, Any] = {EVERY_SHARD: True}
    if arrival and arrival != tuple(range(len(shape))):
        own["arrival"] = list(arrival)
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
        FrozenMap({**(attributes or {}), "weft": own}.items()),
        is_sharded,
    )


def _one_of(what: str, said: str, one: str, other: str) -> None:
    if said not in (one, other):
        raise WeftError(f"{what}: {said!r} is neither {one} nor {other}")


def check_free(sink: Sink, overwrite: bool, other: str) -> None:
    """Refuse a place that holds an array, unless it may go; `other` is the way to go on with it."""
    if not overwrite and sink.fetch("zarr.json", 0, 1) is not None:
        raise WeftError(
            f"{sink.url} holds an array already", hint=f"say overwrite=True, or go on with {other}"
        )


def begin(sink: Sink, metadata: Metadata) -> None:
    """An array without chunks, in place of what was there."""
    sink.sweep()
    for key in list(sink.keys("c")):
        sink.delete(key)
    if not metadata.shape:
        sink.delete(metadata.key(()))
    sink.put("zarr.json", metadata.to_json().encode())


@contextmanager
def locked(sink: Sink) -> Iterator[Lock]:
    """The lock of a store, which is let go again if what is done with it fails."""
    try:
        lock = sink.lock()
        try:
            yield lock
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise WeftError(f"{sink.url} cannot be written: {error}") from error
