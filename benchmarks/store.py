"""A stack of microscopy-like frames streamed into sharded Zarr, beside others that do it.

Throughput is of the input, on memory-backed storage where there is some. Peers run in the same
round, one after the other, so that a noisy moment hits all alike; the best round of each counts.
The limit is the codec alone on two threads, as the libraries have it; without one, `write()` alone.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import Row
from benchmarks.store_peers import Frame, Write, peers
from weft.extra import needed
from weft.store import Blosc, Metadata, Zstd, create
from weft.store.codecs import Codec

CODECS: dict[str, tuple[Codec, ...]] = {
    "none": (),
    "zstd": (Zstd(1),),
    "blosc-lz4": (Blosc("lz4", 5, "shuffle", 2),),
    "blosc-zstd": (Blosc("zstd", 1, "shuffle", 2),),
}

THREADS = len(os.sched_getaffinity(0))
CHECKED = "weft with checksums"
LOAD = 0.8
"""The part of the rate that can be kept up at which frames come while `append` is timed."""


@dataclass(frozen=True)
class Job:
    """A recording: the number and size of its frames, its chunks and its shards."""

    count: int
    side: int
    chunks: tuple[int, int, int]
    shards: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the stack."""
        return self.count, self.side, self.side

    @property
    def size(self) -> int:
        """The bytes of all frames."""
        return 2 * self.count * self.side * self.side

    def metadata(self, codecs: tuple[Codec, ...]) -> Metadata:
        """The array that is written."""
        return Metadata(self.shape, "uint16", self.chunks, self.shards, codecs)


FULL = Job(256, 1024, (16, 128, 128), (64, 1024, 1024))
TINY = Job(8, 64, (4, 32, 32), (8, 64, 64))


def run(seconds: float) -> Iterator[Row]:
    """All rows; a round of every peer takes some seconds."""
    job, rounds = (FULL, 3 if seconds < 5 else 5) if seconds else (TINY, 1)
    frames = noisy(job)
    for name, codecs in CODECS.items():
        yield compare(name, job, frames, codecs, rounds)


def noisy(job: Job) -> list[Frame]:
    """Sixteen frames: a smooth signal, and the noise of counting photons."""
    rng = np.random.default_rng(0)
    y, x = np.meshgrid(np.arange(job.side), np.arange(job.side), indexing="ij")
    signal = 200 + 100 * np.sin(x / 40) + 80 * np.cos(y / 35)
    return [rng.poisson(signal).astype(np.uint16) for _ in range(16)]


def stream(job: Job, frames: Sequence[Frame]) -> Iterator[Frame]:
    """The frames of a job, one by one."""
    for number in range(job.count):
        yield frames[number % len(frames)]


def by_weft(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """Our own, without checksums: the peers store none."""
    with writer(path, metadata) as made:
        for frame in frames:
            made.append(frame)


def by_weft_checked(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """Our own, as it is by default: with a checksum of every chunk."""
    with writer(path, metadata, checksum=True) as made:
        for frame in frames:
            made.append(frame)


def writer(path: Path, metadata: Metadata, *, checksum: bool = False) -> Any:
    """Our writer of an array."""
    return create(
        path,
        metadata.shape,
        metadata.dtype,
        metadata.chunks,
        metadata.shards,
        codecs=metadata.codecs,
        checksum=checksum,
        overwrite=True,
        threads=THREADS,
    )


def everyone() -> dict[str, Write]:
    """Weft, and those that are installed."""
    return {"weft": by_weft, CHECKED: by_weft_checked, **peers()}


def compare(
    name: str, job: Job, frames: Sequence[Frame], codecs: tuple[Codec, ...], rounds: int
) -> Row:
    """Our throughput beside that of the best peer, and what else there is to know."""
    metadata = job.metadata(codecs)
    best = dict.fromkeys(everyone(), 0.0)
    limit = 0.0
    for _ in range(rounds):
        limit = max(limit, ceiling(job, frames, codecs))
        for who, write in everyone().items():
            with folder() as path:
                begin = time.perf_counter()
                write(path / "a.zarr", stream(job, frames), metadata)
                taken = time.perf_counter() - begin
            best[who] = max(best[who], job.size / taken / 1e9)
    more = {f"{who}, GB/s": rate for who, rate in best.items()} | {"limit, GB/s": limit}
    for who in best if job == FULL else ["weft"]:
        more[f"{who}, MB more"] = memory(who, name, job)
    median, longest = latency(job, frames, metadata)
    more |= {"append median, ms": median, "append maximum, ms": longest}
    ours = best.pop("weft")
    del best[CHECKED]
    row = Row(f"store/{name}", ours, "GB/s", rounds)
    if best:
        peer = max(best, key=lambda who: best[who])
        row = Row.against(row.name, ours, peer, best[peer], "GB/s", rounds, "higher")
    return replace(row, fraction=ours / limit, more=more)


# -- limits


def ceiling(job: Job, frames: Sequence[Frame], codecs: tuple[Codec, ...]) -> float:
    """GB/s of the codec alone on two threads, or of `write()` to a file."""
    tiles = _tiles(job, frames)
    if not codecs:
        return _write_alone(tiles)
    encode = _library(codecs[0])
    batches = [tiles[n : n + 8] for _ in range(2) for n in range(0, len(tiles), 8)]
    with ThreadPoolExecutor(THREADS) as threads:
        begin = time.perf_counter()
        for _ in threads.map(lambda batch: [encode(tile) for tile in batch], batches):
            pass
        taken = time.perf_counter() - begin
    return 2 * sum(tile.nbytes for tile in tiles) / taken / 1e9


def _tiles(job: Job, frames: Sequence[Frame]) -> list[Frame]:
    """The tiles of sixteen frames."""
    depth, *sides = job.chunks
    stack = np.stack(frames)[:depth]
    across = [range(0, job.side, side) for side in sides]
    return [
        np.ascontiguousarray(stack[:, y : y + sides[0], x : x + sides[1]]).reshape(-1)
        for y in across[0]
        for x in across[1]
    ]


def _library(codec: Codec) -> Callable[[Frame], bytes]:
    """What compresses a tile, as a library has it."""
    if isinstance(codec, Zstd):
        zstandard = needed("zstandard", "store")
        level = codec.level

        def by_zstd(tile: Frame) -> bytes:
            made: bytes = zstandard.ZstdCompressor(level).compress(tile.data)
            return made

        return by_zstd
    blosc = needed("numcodecs.blosc", "store")
    assert isinstance(codec, Blosc)
    cname, clevel = codec.cname.encode(), codec.clevel

    def by_blosc(tile: Frame) -> bytes:
        made: bytes = blosc.compress(tile, cname, clevel, blosc.SHUFFLE, 0)
        return made

    return by_blosc


def _write_alone(tiles: Sequence[Frame]) -> float:
    with folder() as path:
        begin, size = time.perf_counter(), 0
        with (path / "a").open("wb", buffering=0) as file:
            for _ in range(4):
                for tile in tiles:
                    size += os.write(file.fileno(), tile.data.cast("B"))
        return size / (time.perf_counter() - begin) / 1e9


# -- how long `append` takes, and how much memory all of it


def latency(job: Job, frames: Sequence[Frame], metadata: Metadata) -> tuple[float, float]:
    """Median and maximum of `append` in ms, when frames come at 80 % of what can be kept up."""
    with folder() as path:
        begin = time.perf_counter()
        by_weft(path / "a.zarr", stream(job, frames), metadata)
        pace = (time.perf_counter() - begin) / job.count / LOAD
    taken = []
    with folder() as path, writer(path / "a.zarr", metadata) as made:
        due = time.perf_counter()
        for frame in stream(job, frames):
            due += pace
            time.sleep(max(0.0, due - time.perf_counter()))
            begin = time.perf_counter()
            made.append(frame)
            taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken), max(taken)


def memory(who: str, codec: str, job: Job) -> float:
    """MB that a process has more at its peak while it streams, in a process of its own."""
    size = "full" if job == FULL else "tiny"
    command = [sys.executable, "-m", "benchmarks.store_memory", who, codec, size]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ran.stdout)


class folder:  # noqa: N801 - it is used like a function
    """A folder in memory where there is one, gone in the end."""

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")
        base = str(memory) if memory.is_dir() else None
        self.path = Path(tempfile.mkdtemp(dir=base))
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
