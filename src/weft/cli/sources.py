"""Inputs of `weft store write`: .npy, raw bytes, TIFF stacks, Zarr arrays, standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

from weft.cli.files import open_npy, reading_foreign
from weft.errors import WeftError
from weft.extra import needed

TIFF = (".tif", ".tiff")
CHUNK, SHARD = 1 << 20, 1 << 26
"""The most bytes of a chunk and of a shard, if their shapes are not given."""


@dataclass(frozen=True)
class ArraySource:
    """An array that is read block by block, in order."""

    shape: tuple[int | None, ...]
    """The first size may be None: unknown until the end."""
    dtype: str
    blocks: Callable[[int], Iterator[Any]]
    """Returns the blocks, with at most the given number of rows where that can be chosen."""
    names: tuple[str | None, ...] | None = None
    metadata: Any = None
    """The metadata of an array that is copied."""
    frames: Any = None
    """The metadata of its frames, if it has any."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(_kind(self.dtype).itemsize)


def open_source(
    place: str, shape: Sequence[int] | None, dtype: str | None, offset: int = 0
) -> ArraySource:
    """Open a path, an address or `-`; raw bytes need a shape and a data type."""
    if place == "-":
        return _stdin(*_raw_as(shape, dtype, "standard input"), sys.stdin.buffer)
    path = Path(place)
    if "://" in place or (path / "zarr.json").is_file():
        return of_zarr(place)
    if path.suffix.lower() in TIFF or (path.is_dir() and _tiffs(path)):
        return _tiff(path)
    if path.suffix == ".npy":
        array = open_npy(path)
        return ArraySource(array.shape, array.dtype.name, _rows(array))
    if path.is_dir():
        raise WeftError(f"{path} holds neither a Zarr v3 array nor TIFF files")
    return _raw(path, *_raw_as(shape, dtype, place), offset)


def _raw_as(
    shape: Sequence[int] | None, dtype: str | None, what: str
) -> tuple[tuple[int, ...], str]:
    if not shape or dtype is None:
        raise WeftError(
            f"{what} is raw bytes: give its shape and data type",
            hint="--shape -1 1024 1024 --dtype uint16; -1 for as many as there are",
        )
    if any(n < 1 for n in shape[1:]):
        raise WeftError(f"--shape: only the first size may be -1, got {list(shape)}")
    return tuple(shape), dtype


def _rows(array: Any) -> Callable[[int], Iterator[Any]]:
    """Return a function that yields an array in blocks of rows."""

    def blocks(step: int) -> Iterator[Any]:
        for start in range(0, len(array), step):
            yield array[start : start + step]

    return blocks


def _raw(path: Path, shape: tuple[int, ...], dtype: str, offset: int) -> ArraySource:
    import numpy as np

    kind = _kind(dtype)
    size, row = path.stat().st_size - offset, prod(shape[1:]) * kind.itemsize
    count, rest = divmod(size, row)
    if (shape[0] < 0 and rest) or (shape[0] >= 0 and shape[0] * row != size):
        raise WeftError(
            f"{path} has {size} B after {offset} B: {count} rows of {row} B and {rest} B, "
            f"not {list(shape)}"
        )
    array = np.memmap(path, kind, "r", offset, (count, *shape[1:]))
    return ArraySource(array.shape, dtype, _rows(array))


def _stdin(shape: tuple[int, ...], dtype: str, stream: IO[bytes]) -> ArraySource:
    import numpy as np

    kind = _kind(dtype)
    row = prod(shape[1:]) * kind.itemsize

    def blocks(step: int) -> Iterator[Any]:
        left = shape[0] if shape[0] >= 0 else None
        while left is None or left:
            wanted = step if left is None else min(step, left)
            data = stream.read(wanted * row)
            count, rest = divmod(len(data), row)
            yield np.frombuffer(data[: count * row], kind).reshape(count, *shape[1:])
            if rest or (len(data) < wanted * row and left is not None):
                raise WeftError(f"standard input ends in the middle: {rest} B of a row of {row} B")
            if len(data) < wanted * row:
                return
            left = None if left is None else left - count

    return ArraySource((shape[0] if shape[0] >= 0 else None, *shape[1:]), dtype, blocks)


def _kind(dtype: str) -> Any:
    import numpy as np

    if dtype == "bfloat16":
        return np.dtype(np.uint16)
    try:
        return np.dtype(dtype)
    except TypeError:
        raise WeftError(f"--dtype: unknown data type {dtype!r}") from None


def of_zarr(place: str) -> ArraySource:
    """Open a Zarr v3 array, read in boxes of rows."""
    from weft.store.create import open_array
    from weft.store.metadata import own_attributes

    array = open_array(place)
    metadata = array.metadata
    frames = array.frames if own_attributes(metadata.attributes).get("frame_segments") else None
    return ArraySource(
        metadata.shape, metadata.dtype, array.rows, metadata.dimension_names, metadata, frames
    )


def _tiffs(folder: Path) -> list[Path]:
    """Return the TIFF files of a folder; numbers in names sort as numbers."""
    found = [file for file in folder.iterdir() if file.suffix.lower() in TIFF]
    return sorted(found, key=lambda file: [_key(part) for part in re.split(r"(\d+)", file.name)])


def _key(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdecimal() else (1, 0, part)


def _tiff(path: Path) -> ArraySource:
    """Open a TIFF file page by page, or the files of a folder in order."""
    files = _tiffs(path) if path.is_dir() else [path]
    shape, dtype, axes = _series(files[0])
    for file in files[1:]:
        if _series(file)[:2] != (shape, dtype):
            raise WeftError(f"{file} is {_series(file)[:2]}, but {files[0].name} {shape, dtype}")

    def blocks(step: int) -> Iterator[Any]:
        for file in files:
            yield from _pages(file, shape, dtype, step)

    names = tuple(axes.lower())
    if len(files) == 1:
        return ArraySource(shape, dtype, blocks, names)
    return ArraySource((len(files), *shape), dtype, blocks, ("file", *names))


def _series(file: Path) -> tuple[tuple[int, ...], str, str]:
    with _tiff_file(file) as tiff, reading_foreign(file, "TIFF file of numbers"):
        series = tiff.series[0]
        return tuple(series.shape), series.dtype.name, series.axes


def _tiff_file(file: Path) -> Any:
    tifffile = needed("tifffile", "store")
    with reading_foreign(file, "TIFF file"):
        return tifffile.TiffFile(file)


def _pages(file: Path, shape: tuple[int, ...], dtype: str, step: int) -> Iterator[Any]:
    """Yield the first series of a file: blocks of rows if it is contiguous, otherwise pages.

    A missing page is all zero.
    """
    import numpy as np

    with _tiff_file(file) as tiff:
        series = tiff.series[0]
        if series.dataoffset is not None:
            kind = series.dtype.newbyteorder(tiff.byteorder)
            whole = np.memmap(file, kind, "r", series.dataoffset, shape)
            yield from _rows(whole)(step)
            return
        if len(series.pages) == 1:
            yield series.asarray().reshape(shape)
            return
        size = prod(shape) // len(series.pages)
        rank = next(n for n in range(len(shape) + 1) if prod(shape[n:]) == size)
        for page in series.pages:
            if page is None:
                yield np.zeros(shape[rank:], dtype)
            else:
                yield page.asarray().reshape(shape[rank:])


def chosen_chunks(source: ArraySource) -> tuple[int, ...]:
    """Return chunks of about a megabyte: the longest side is halved until they fit."""
    chunks = [max(1, n) if n is not None else 64 for n in source.shape]
    while prod(chunks) * source.itemsize > CHUNK and max(chunks) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def chosen_shards(source: ArraySource, chunks: Sequence[int]) -> tuple[int, ...]:
    """Return shards of many chunks, up to `SHARD` bytes, innermost dimensions first."""
    shards = list(chunks)
    for dim in reversed(range(len(shards))):
        size = source.shape[dim]
        most = 8 if size is None else -(-size // chunks[dim])
        fits = SHARD // max(1, prod(shards) * source.itemsize)
        shards[dim] *= max(1, min(most, fits))
    return tuple(shards)
