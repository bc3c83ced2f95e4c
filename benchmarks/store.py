"""A stack of microscopy-like frames streamed into sharded Zarr, beside others that do it.

Throughput is of the input, on memory-backed storage where there is some. Peers run in the same
round, one after the other, so that a noisy moment hits all alike; the best round of each counts.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import Row
from benchmarks.store_peers import Write, peers
from weft.store import Blosc, Metadata, Zstd, create
from weft.store.codecs import Codec

CODECS: dict[str, tuple[Codec, ...]] = {
    "none": (),
    "zstd": (Zstd(1),),
    "blosc-lz4": (Blosc("lz4", 5, "shuffle", 2),),
    "blosc-zstd": (Blosc("zstd", 1, "shuffle", 2),),
}


@dataclass(frozen=True)
class Job:
    """What is streamed: so many frames of some size, in chunks and shards."""

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


FULL = Job(256, 1024, (16, 128, 128), (64, 1024, 1024))
TINY = Job(8, 64, (4, 32, 32), (8, 64, 64))


def run(seconds: float) -> Iterator[Row]:
    """All rows; a round of every peer takes some seconds."""
    job, rounds = (FULL, 3) if seconds else (TINY, 1)
    frames = noisy(job)
    for name, codecs in CODECS.items():
        yield from compare(f"store/{name}", job, frames, codecs, rounds)
    for name, codecs in CODECS.items():
        yield from latency(f"store/{name}-latency", job, frames, codecs)


def noisy(job: Job) -> list[np.ndarray[Any, Any]]:
    """Sixteen frames: a smooth signal, and the noise of counting photons."""
    rng = np.random.default_rng(0)
    y, x = np.meshgrid(np.arange(job.side), np.arange(job.side), indexing="ij")
    signal = 200 + 100 * np.sin(x / 40) + 80 * np.cos(y / 35)
    return [rng.poisson(signal).astype(np.uint16) for _ in range(16)]


def stream(job: Job, frames: Sequence[np.ndarray[Any, Any]]) -> Iterator[np.ndarray[Any, Any]]:
    """The frames of a job, one by one."""
    for number in range(job.count):
        yield frames[number % len(frames)]


def by_weft(path: Path, frames: Iterable[np.ndarray[Any, Any]], metadata: Metadata) -> None:
    """Our own."""
    with create(
        path,
        metadata.shape,
        metadata.dtype,
        metadata.chunks,
        metadata.shards,
        codecs=metadata.codecs,
        overwrite=True,
    ) as writer:
        for frame in frames:
            writer.append(frame)


def compare(
    name: str,
    job: Job,
    frames: Sequence[np.ndarray[Any, Any]],
    codecs: tuple[Codec, ...],
    rounds: int,
) -> Iterator[Row]:
    """Our throughput beside that of the best peer."""
    metadata = Metadata(job.shape, "uint16", job.chunks, job.shards, codecs)
    everyone: dict[str, Write] = {"weft": by_weft, **peers()}
    best = dict.fromkeys(everyone, 0.0)
    for _ in range(rounds):
        for who, write in everyone.items():
            with folder() as path:
                begin = time.perf_counter()
                write(path / "a.zarr", stream(job, frames), metadata)
                taken = time.perf_counter() - begin
            best[who] = max(best[who], job.size / taken / 1e9)
    ours = best.pop("weft")
    if not best:
        yield Row(name, ours, "GB/s", rounds)
        return
    peer = max(best, key=lambda who: best[who])
    yield Row.against(name, ours, peer, best[peer], "GB/s", rounds, "higher")


def latency(
    name: str, job: Job, frames: Sequence[np.ndarray[Any, Any]], codecs: tuple[Codec, ...]
) -> Iterator[Row]:
    """How long `append` takes when frames come at 80 % of the rate that can be kept up."""
    metadata = Metadata(job.shape, "uint16", job.chunks, job.shards, codecs)
    with folder() as path:
        begin = time.perf_counter()
        by_weft(path / "a.zarr", stream(job, frames), metadata)
        pace = (time.perf_counter() - begin) / job.count / 0.8
    taken = []
    with (
        folder() as path,
        create(
            path / "a.zarr", job.shape, "uint16", job.chunks, job.shards, codecs=codecs
        ) as writer,
    ):
        due = time.perf_counter()
        for frame in stream(job, frames):
            due += pace
            time.sleep(max(0.0, due - time.perf_counter()))
            begin = time.perf_counter()
            writer.append(frame)
            taken.append((time.perf_counter() - begin) * 1e3)
    yield Row(f"{name}-median", statistics.median(taken), "ms", job.count)
    yield Row(f"{name}-maximum", max(taken), "ms", job.count)


class folder:  # noqa: N801 - it is used like a function
    """A folder in memory where there is one, gone in the end."""

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")
        base = str(memory) if memory.is_dir() else None
        self.path = Path(tempfile.mkdtemp(dir=base))
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
