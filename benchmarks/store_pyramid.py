"""The same stack as an OME-NGFF image: three coarser levels are made while its frames arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.row import Row
from benchmarks.store import CODECS, FULL, THREADS, TINY, by_weft, folder, noisy, stream
from benchmarks.store_peers import Frame, Write, by_acquire_pyramid, has_acquire
from weft.store import Metadata, create_image

LEVELS = 4
"""The finest included; each is half as wide and half as high as the one before."""


def run(seconds: float) -> Iterator[Row]:
    """A row for every codec; `alone` is the finest level without the others."""
    job, rounds = (FULL, 3) if seconds else (TINY, 1)
    frames = noisy(job)
    for name, codecs in CODECS.items():
        metadata = job.metadata(codecs)
        writes: dict[str, Write] = {"weft": by_weft_pyramid, "alone": by_weft}
        if has_acquire():
            writes["acquire-zarr"] = by_acquire_pyramid
        best = dict.fromkeys(writes, 0.0)
        for _ in range(rounds):
            for who, write in writes.items():
                with folder() as path:
                    begin = time.perf_counter()
                    write(path / "a.zarr", stream(job, frames), metadata)
                    taken = time.perf_counter() - begin
                best[who] = max(best[who], job.size / taken / 1e9)
        row = Row(f"store/{name}-pyramid", best["weft"], "GB/s", rounds)
        if "acquire-zarr" in best:
            row = Row.against(
                row.name,
                best["weft"],
                "acquire-zarr",
                best["acquire-zarr"],
                "GB/s",
                rounds,
                "higher",
            )
        yield replace(row, more={"alone, GB/s": best["alone"]})


def by_weft_pyramid(path: Path, frames: Iterable[Frame], metadata: Metadata) -> None:
    """Our own."""
    with create_image(
        path,
        metadata.shape,
        metadata.dtype,
        metadata.chunks,
        metadata.shards,
        axes="tyx",
        levels=LEVELS,
        codecs=metadata.codecs,
        threads=THREADS,
        checksum=False,  # as the peers
    ) as writer:
        for frame in frames:
            writer.append(frame)
