"""The same stack of frames through others: acquire-zarr, tensorstore, zarrs and zarr-python.

Each gets the frames one by one and may hold as many as it likes. Those that write boxes are given
whole shards, which is what they like best; tensorstore whole chunks as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.store import Blosc, Metadata, Zstd

Frame = np.ndarray[Any, Any]
Write = Callable[[Path, Iterable[Frame], Metadata], None]


def peers() -> dict[str, Write]:
    """Those that are installed."""
    found: dict[str, Write] = {}
    if find_spec("tensorstore") is not None:
        found["tensorstore, whole shards"] = by_tensorstore
        found["tensorstore, whole chunks"] = partial(by_tensorstore, whole="chunks")
    if find_spec("zarr") is not None:
        found["zarr-python"] = by_zarr
        if find_spec("zarrs") is not None:
            found["zarrs"] = by_zarrs
    if has_acquire():
        found["acquire-zarr"] = by_acquire
    return found


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def has_acquire() -> bool:
    """Whether acquire-zarr is installed."""
    return find_spec("acquire_zarr") is not None


def _boxes(frames: Iterable[Frame], depth: int) -> Iterable[tuple[int, Frame]]:
    """Frames in boxes of some depth."""
    held: Frame | None = None
    count = 0
    for frame in frames:
        if held is None:
            held = np.empty((depth, *frame.shape), frame.dtype)
        held[count % depth] = frame
        count += 1
        if count % depth == 0:
            yield count - depth, held
    if held is not None and count % depth:
        yield count - count % depth, held[: count % depth]


def by_tensorstore(
    path: Path, frames: Iterable[Frame], metadata: Metadata, whole: str = "shards"
) -> None:
    """Tensorstore's zarr3 driver, a thread for each core."""
    import json

    import tensorstore

    said = json.loads(metadata.to_json())
    said.pop("attributes")
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": said,
        "context": {"data_copy_concurrency": {"limit": cores()}, "file_io_sync": False},
    }
    store = tensorstore.open(spec, create=True, delete_existing=True).result()
    depth = metadata.shards[0] if whole == "shards" else metadata.chunks[0]
    for start, box in _boxes(frames, depth):
        store[start : start + len(box)].write(box).result()


def by_zarr(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """zarr-python, with its own codecs."""
    import zarr

    codec: Any = None
    for each in metadata.codecs:
        if isinstance(each, Zstd):
            codec = zarr.codecs.ZstdCodec(level=each.level)
        elif isinstance(each, Blosc):
            codec = zarr.codecs.BloscCodec(
                cname=each.cname, clevel=each.clevel, shuffle=each.shuffle
            )
    array = zarr.create_array(
        path,
        shape=metadata.shape,
        dtype=metadata.dtype,
        chunks=metadata.chunks,
        shards=metadata.shards,
        compressors=codec,
        overwrite=True,
    )
    for start, box in _boxes(frames, metadata.shards[0]):
        array[start : start + len(box)] = box


def by_zarrs(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """zarr-python with the codecs of zarrs."""
    import zarr

    chosen: Mapping[str, Any] = {
        "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
        "threading.max_workers": cores(),
    }
    with zarr.config.set(chosen):
        by_zarr(path, frames, metadata)


def by_acquire_pyramid(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """acquire-zarr with coarser levels, by the mean."""
    by_acquire(path, frames, metadata, pyramid=True)


def by_acquire(
    path: Path, frames: Iterable[Frame], metadata: Metadata, *, pyramid: bool = False
) -> None:
    """acquire-zarr, a C++ library for cameras."""
    aqz = import_module("acquire_zarr")
    compression = None
    for each in metadata.codecs:
        if isinstance(each, Zstd):
            compression = aqz.CompressionSettings(
                compressor=aqz.Compressor.ZSTD, codec=aqz.CompressionCodec.ZSTD, level=each.level
            )
        elif isinstance(each, Blosc):
            codec = aqz.CompressionCodec.BLOSC_LZ4
            if each.cname == "zstd":
                codec = aqz.CompressionCodec.BLOSC_ZSTD
            compression = aqz.CompressionSettings(
                compressor=aqz.Compressor.BLOSC1, codec=codec, level=each.clevel, shuffle=1
            )
    kinds = [aqz.DimensionType.TIME, aqz.DimensionType.SPACE, aqz.DimensionType.SPACE]
    sizes = zip("tyx", kinds, metadata.shape, metadata.chunks, metadata.shards)
    dimensions = [
        aqz.Dimension(
            name=name,
            kind=kind,
            array_size_px=0 if name == "t" else size,
            chunk_size_px=chunk,
            shard_size_chunks=shard // chunk,
        )
        for name, kind, size, chunk, shard in sizes
    ]
    array = aqz.ArraySettings(dimensions=dimensions, data_type=aqz.DataType.UINT16)
    if compression is not None:
        array.compression = compression
    if pyramid:
        array.downsampling_method = aqz.DownsamplingMethod.MEAN
    settings = aqz.StreamSettings(store_path=str(path), arrays=[array], max_threads=2)
    settings.overwrite = True
    stream = aqz.ZarrStream(settings)
    for frame in frames:
        stream.append(frame)
    stream.close()
