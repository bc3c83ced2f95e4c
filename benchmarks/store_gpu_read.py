"""Whole arrays read to a GPU from the page cache, beside the CPU's reader on all cores.

The frames are those of `store_gpu`: a smooth signal and photon noise. The floor is the rate of a
plain copy to the device, times the compression ratio: stored bytes go over the bus, elements come
out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.row import Row
from benchmarks.store import folder
from benchmarks.store_gpu import CHUNKS, DEPTH, fraction_of, is_there, measured, noisy, shards_of
from weft.store import Blosc, Zstd, create
from weft.store import open as open_store
from weft.store.codecs import Codec

CODECS: dict[str, tuple[str, Codec | None]] = {
    "none": ("cpu", None),
    "blosc-lz4": ("cpu", Blosc("lz4", 5, "shuffle", 2)),
    "blosc-lz4-bitshuffle": ("cpu", Blosc("lz4", 5, "bitshuffle", 2)),
    "blosc-lz4-of-the-gpu": ("cuda", Blosc("lz4", 5, "bitshuffle", 2)),
    "zstd": ("cpu", Zstd(1)),
    "zstd-of-the-gpu": ("cuda", Zstd(1)),
    "blosc-zstd": ("cpu", Blosc("zstd", 1, "shuffle", 2)),
}
"""Codecs, and who writes them: the CPU's are those of numcodecs and zstandard."""

FRAMES, SIDE = 512, 2048


def run(seconds: float, names: Sequence[str] = ("",)) -> Iterator[Row]:
    """A row for every codec whose name begins with one of `names`, and size of chunks."""
    if not is_there():
        raise SystemExit("store-gpu needs a GPU and CuPy")
    frames, side = (FRAMES, SIDE) if seconds else (DEPTH, 256)
    stack, bus = noisy((side, side)), measured().to_device
    yield Row("store-gpu/read-copy-to-device", bus, "GB/s", 1)
    for name, (device, codec) in CODECS.items():
        if not name.startswith(tuple(names)):
            continue
        for chunk in ("512K", "2M") if seconds else ("512K",):
            with folder() as path:
                stored = write(path / "a.zarr", stack, frames, chunk, codec, device)
                yield read_row(f"{name}-{chunk}", path / "a.zarr", stored, bus, seconds)


def write(path: Path, stack: Any, frames: int, chunk: str, codec: Codec | None, device: Any) -> int:
    """Write frames over and over; return the bytes of all files."""
    chunks, block = CHUNKS[chunk], stack if device == "cuda" else stack.get()
    with create(
        path, (None, *stack.shape[1:]), "uint16", chunks, shards_of(chunks),
        codecs=[codec] if codec else (), device=device,
    ) as writer:  # fmt: skip
        for _ in range(frames // len(stack)):
            writer.append(block)
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def read_row(name: str, path: Path, stored: int, bus: float, seconds: float) -> Row:
    """Read an array again and again, once it is warm; the best counts."""
    array = open_store(path)
    begin = time.perf_counter()
    wanted = array.read()
    cpu = wanted.nbytes / (time.perf_counter() - begin) / 1e9
    out = array.read(device="cuda")
    assert bool((out.get() == wanted).all())
    taken: list[float] = []
    until = time.perf_counter() + min(1.0, seconds)
    while len(taken) < 3 or time.perf_counter() < until:
        begin = time.perf_counter()
        array.read(out=out, device="cuda")
        taken.append(time.perf_counter() - begin)
    rate, ratio = wanted.nbytes / min(taken) / 1e9, wanted.nbytes / stored
    floor = bus * ratio
    more = {
        "median, GB/s": wanted.nbytes / sorted(taken)[len(taken) // 2] / 1e9,
        "floor, GB/s": floor,
        "ratio": ratio,
        "the CPU's reader, GB/s": cpu,
    }
    fraction = fraction_of(rate, floor)
    return Row(f"store-gpu/read-{name}", rate, "GB/s", len(taken), None, None, None, fraction, more)


if __name__ == "__main__":
    for row in run(1.0, sys.argv[1:] or ("",)):
        print(row.line(), flush=True)
