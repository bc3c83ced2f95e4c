"""Boxes read back from Zarr, beside others: random ones, single frames, whole shards.

All read the same store, written by Weft to memory-backed storage where there is some, and open it
before the clock starts. Peers run in the same round, one after the other, so that a noisy moment
hits all alike; the best round of each counts. Throughput is of the elements that come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.row import Row
from benchmarks.store import CODECS, FULL, THREADS, TINY, Job, by_weft, folder, noisy, stream
from benchmarks.store_peers import Frame, Write
from weft.space import ZRange
from weft.store import Metadata, create_shards
from weft.store import open as open_store

Read: TypeAlias = Callable[[ZRange], Any]

COUNT = 16
"""Random boxes of a round."""


OTHERS = (1, 512, 512), (4, 64, 64)
"""Other chunks: planes, and small ones."""


def run(seconds: float) -> Iterator[Row]:
    """Three rows for every codec and kind of chunks."""
    job, rounds = (FULL, 5 if seconds < 5 else 15) if seconds else (TINY, 1)
    frames = noisy(job)
    step = max(1, job.count // COUNT + 1)  # so that no two are of one row of chunks
    kinds = {
        "boxes": random_boxes(job),
        "frames": list(ZRange.of(job.shape).tiles((1, *job.shape[1:])))[::step],
        "shards": list(ZRange.of(job.shape).tiles(job.shards)),
    }
    for suffix, (form, write) in forms(job).items():
        for name, codecs in CODECS.items():
            with folder() as path:
                write(path / "a.zarr", stream(form, frames), form.metadata(codecs))
                readers = {"weft": by_us(path / "a.zarr"), **peers(path / "a.zarr")}
                for kind, boxes in kinds.items():
                    yield compare(f"store/{name}-{kind}{suffix}", readers, boxes, rounds)


def forms(job: Job) -> dict[str, tuple[Job, Write]]:
    """The same stack with other chunks, and with a file for each chunk; by the end of a name."""
    found: dict[str, tuple[Job, Write]] = {"": (job, by_weft)}
    for sizes in OTHERS:
        rows, height, width = map(min, sizes, job.shards)
        form = replace(job, chunks=(rows, height, width))
        found[f"-{'x'.join(map(str, sizes))}"] = form, by_weft
    return {**found, "-files": (job, to_files)}


def to_files(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """Without sharding, and without checksums."""
    made = create_shards(
        path, metadata.shape, "uint16", metadata.chunks, codecs=metadata.codecs, checksum=False
    )
    stack = np.stack(list(frames))
    for box in made.box.tiles((metadata.chunks[0], *metadata.shape[1:])):
        made.write(box, stack[box.slices()])


def random_boxes(job: Job) -> list[ZRange]:
    """Boxes anywhere, each side up to a shard's along time and half of one in the plane."""
    rng = np.random.default_rng(0)
    most = (job.shards[0], job.side // 2, job.side // 2)
    found = []
    for _ in range(COUNT):
        sizes = [int(rng.integers(1, n + 1)) for n in most]
        start = [int(rng.integers(0, n - size + 1)) for n, size in zip(job.shape, sizes)]
        found.append(ZRange.of(sizes, start))
    return found


def compare(name: str, readers: dict[str, Read], boxes: Sequence[ZRange], rounds: int) -> Row:
    """Our throughput beside that of the best peer."""
    best = dict.fromkeys(readers, 0.0)
    size = sum(box.size for box in boxes) * 2
    for _ in range(rounds):
        for who, read in readers.items():
            begin = time.perf_counter()
            for box in boxes:
                read(box)
            best[who] = max(best[who], size / (time.perf_counter() - begin) / 1e9)
    return Row.beside_best(name, best, "GB/s", rounds)


def by_us(path: Path) -> Read:
    """Our own."""
    read: Read = open_store(path).read
    return read


def peers(path: Path) -> dict[str, Read]:
    """Those that are installed."""
    found: dict[str, Read] = {}
    if find_spec("tensorstore") is not None:
        found["tensorstore"] = by_tensorstore(path)
    if find_spec("zarr") is not None and find_spec("zarrs") is not None:
        found["zarrs"] = by_zarrs(path)
    return found


def by_tensorstore(path: Path) -> Read:
    """Tensorstore's zarr3 driver, two threads."""
    import tensorstore

    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        "context": {"data_copy_concurrency": {"limit": THREADS}},
    }
    store = tensorstore.open(spec).result()
    return lambda box: store[box.slices()].read().result()


def by_zarrs(path: Path) -> Read:
    """zarr-python with the codecs of zarrs."""
    import zarr

    chosen = {
        "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
        "threading.max_workers": THREADS,
    }
    with zarr.config.set(chosen):
        array = zarr.open_array(path, mode="r")
    return lambda box: array[box.slices()]
