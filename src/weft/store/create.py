"""`create` and `open_array`: a new array to write to, and one that is there to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.codecs import Blosc, Codec
from weft.store.dtypes import as_dtype, write_fill
from weft.store.files import Folder
from weft.store.metadata import Metadata, checked
from weft.store.reader import Array
from weft.store.writer import Writer
from weft.values import FrozenMap


def create(
    path: str | PathLike[str],
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    codecs: Sequence[Codec] = (),
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    order: Sequence[int] = (),
    index_location: str = "end",
    overwrite: bool = False,
    fsync: bool = False,
    threads: int = 2,
) -> Writer:
    """A new array in a folder, to which frames are appended.

    The outermost dimension may have no end: its size is None, and in the end as many as came.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create(f"{folder}/a", (None, 5), "uint8", (2, 3), (4, 6)) as writer:
    ...         writer.append(np.arange(15, dtype="uint8").reshape(3, 5))
    ...     print(open_array(f"{folder}/a").read())
    [[ 0  1  2  3  4]
     [ 5  6  7  8  9]
     [10 11 12 13 14]]
    """
    size, small, large = checked(shape, chunks, shards or chunks)
    name, kind = as_dtype(dtype)
    if index_location not in ("start", "end"):
        raise WeftError(f"index_location: {index_location!r} is neither start nor end")
    if order and sorted(order) != list(range(len(size))):
        raise WeftError(f"{list(order)} is no order of {len(size)} dimensions")
    if dimension_names is not None and len(dimension_names) != len(size):
        raise WeftError(f"{len(dimension_names)} names for {len(size)} dimensions")
    metadata = Metadata(
        tuple(n or 0 for n in size),
        name,
        small,
        large,
        tuple(_sized(codec, kind.itemsize) for codec in codecs),
        write_fill(name, fill_value),
        tuple(order),
        "little",
        index_location,
        None if dimension_names is None else tuple(dimension_names),
        FrozenMap((attributes or {}).items()),
    )
    folder = Folder(Path(path), fsync)
    if (folder.path / "zarr.json").exists() and not overwrite:
        raise WeftError(
            f"{folder.path} holds an array already",
            hint="say overwrite=True, or go on with open(path, mode='a')",
        )
    lock = folder.lock()
    _clear(folder.path)
    folder.write_text("zarr.json", replace(metadata, shape=(0, *metadata.shape[1:])).to_json())
    return Writer(folder, metadata, size, threads, lock)


def _sized(codec: Codec, itemsize: int) -> Codec:
    """Blosc with the width of an element, where none was said."""
    if isinstance(codec, Blosc) and not codec.typesize:
        return Blosc(codec.cname, codec.clevel, codec.shuffle, itemsize, codec.blocksize)
    return codec


def _clear(path: Path) -> None:
    """Remove the shards of an array that was there: files under `c`, and nothing else."""
    for file in sorted((path / "c").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


@overload
def open_array(path: str | PathLike[str], mode: Literal["r"] = "r") -> Array: ...


@overload
def open_array(
    path: str | PathLike[str], mode: Literal["a"], *, threads: int = 2, fsync: bool = False
) -> Writer: ...


def open_array(
    path: str | PathLike[str], mode: str = "r", *, threads: int = 2, fsync: bool = False
) -> Array | Writer:
    """An array that is there: to read, or with mode "a" to append more frames to.

    Shards that are whole stay as they are. A short last one is written anew, and is there in its
    old form until the new one is whole. What a writer that was killed left aside is removed.
    """
    folder = Folder(Path(path), fsync)
    if mode == "r":
        return Array(folder.path, _read(folder.path))
    if mode != "a":
        raise WeftError(f"mode is 'r' or 'a', and not {mode!r}")
    lock = folder.lock()
    try:
        metadata = _read(folder.path)
        folder.clear_partial()
        writer = Writer(
            folder, metadata, (None, *metadata.shape[1:]), threads, lock, metadata.shape[0]
        )
    except BaseException:
        folder.unlock(lock)
        raise
    whole = metadata.shape[0] // metadata.shards[0] * metadata.shards[0]
    writer.start_at(whole)
    old, step = Array(folder.path, metadata), metadata.chunks[0]
    for row in range(whole, metadata.shape[0], step):
        stop = min(row + step, metadata.shape[0])
        box = ZRange((row, *[0] * (len(metadata.shape) - 1)), (stop, *metadata.shape[1:]))
        writer.append(old.read(box))
    return writer


def _read(path: Path) -> Metadata:
    try:
        text = (path / "zarr.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WeftError(f"{path} holds no Zarr v3 array: there is no zarr.json") from None
    return Metadata.from_json(text)
