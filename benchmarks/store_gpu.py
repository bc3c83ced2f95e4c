"""The store on a GPU: end to end, every stage alone, and the floor that the machine sets.

Frames come from device arrays or from pinned memory, over and over the same sixteen. Output is
discarded, or goes to files in memory or on the disk. The floor is the slowest of: bytes over the
bus at the rate of a plain copy, the codec alone, and memory traffic over the rate of a copy on the
device; `fraction` is the rate over that of the floor. The codec's rate is measured once it is warm,
and over whole batches: a first batch loads kernels, and a small one leaves the device idle. The
faster of two measurements counts, one alone and one inside the row's own run; the batches of a run
are compressed one after the other on the device, so that no run is faster than the latter. Where a
rate is above the floor all the same, the floor bounds nothing, and there is no fraction. The
CPU's writer runs on all cores of the same machine, in the same run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.discard import Discard
from benchmarks.row import Row
from weft.errors import WeftError
from weft.store import Blosc, Writer, Zstd, create
from weft.store.codecs import Codec
from weft.store.cuda.encoders import library
from weft.store.metrics import Metrics, StageTime
from weft.store.ome.image import ImageWriter, create_pyramid
from weft.store.ome.metadata import Multiscale

CODECS: dict[str, tuple[Codec, ...]] = {
    "none": (),
    "blosc-lz4": (Blosc("lz4", 5, "bitshuffle", 2),),
    "blosc-zstd": (Blosc("zstd", 1, "shuffle", 2),),
    "nvcomp-zstd": (Zstd(1),),
}
FRAMES = {"2048": (2048, 2048), "4096x2304": (2304, 4096)}
CHUNKS = {
    "32K": (4, 64, 64),
    "128K": (16, 64, 64),
    "512K": (16, 128, 128),
    "2M": (16, 256, 256),
    "plane": (1, 512, 512),
}
PYRAMIDS = {"pyramid": (1, 2, 2), "pyramid-3d": (2, 2, 2)}
"""Coarser levels of frames have a third of the bytes of the finest, those of volumes a seventh."""
DEPTH = 16
SECONDS = 1.0
NOISE = 1.05
"""A rate may be above its floor by so much, as two measurements differ."""


def is_there() -> bool:
    """Whether there is a GPU, and CuPy."""
    if find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


def has_nvcomp() -> bool:
    """Whether nvCOMP is installed."""
    try:
        return bool(library())
    except WeftError:
        return False


@dataclass(frozen=True)
class Rates:
    """GB/s of plain copies, measured here."""

    to_device: float
    to_host: float
    both_ways: float
    """To the device, while as much goes to the host."""
    on_device: float


def run(seconds: float) -> Iterator[Row]:
    """All rows."""
    if not is_there():
        raise SystemExit("store-gpu needs a GPU and CuPy")
    rates = measured()
    for what in ("to_device", "to_host", "both_ways", "on_device"):
        yield Row(f"store-gpu/copy-{what.replace('_', '-')}", getattr(rates, what), "GB/s", 1)
    sizes = list(FRAMES.items()) if seconds else [("256", (256, 256))]
    for frame, shape in sizes:
        stack = noisy(shape)
        for codec, codecs in CODECS.items():
            if codec == "nvcomp-zstd" and not has_nvcomp():
                continue
            for chunk, chunks in CHUNKS.items() if seconds else [("512K", (16, 128, 128))]:
                yield from rows(f"{frame}-{codec}-{chunk}", stack, chunks, codecs, rates, seconds)


def measured() -> Rates:
    """Rates of copies of a GiB."""
    import cupy as cp

    size = 1 << 30
    one, two = cp.empty(size, np.uint8), cp.empty(size, np.uint8)
    host = np.frombuffer(cp.cuda.alloc_pinned_memory(size), np.uint8, size)

    def rate(to: int, source: int, count: int) -> float:
        stream, best = cp.cuda.Stream(), 0.0
        for _ in range(5):
            begin = time.perf_counter()
            cp.cuda.runtime.memcpyAsync(to, source, size, 4, stream.ptr)
            stream.synchronize()
            best = max(best, count * size / (time.perf_counter() - begin) / 1e9)
        return best

    return Rates(
        rate(one.data.ptr, host.ctypes.data, 1),
        rate(host.ctypes.data, one.data.ptr, 1),
        both_ways(one, host),
        rate(one.data.ptr, two.data.ptr, 2),
    )


def both_ways(device: Any, host: np.ndarray[Any, Any]) -> float:
    """GB/s to the device, while as much goes to the host: halves of two buffers are exchanged."""
    import cupy as cp

    half, best = len(host) // 2, 0.0
    there, back = (cp.cuda.Stream(non_blocking=True) for _ in "12")
    here, away = host.ctypes.data, device.data.ptr
    for _ in range(5):
        begin = time.perf_counter()
        cp.cuda.runtime.memcpyAsync(away, here, half, 4, there.ptr)
        cp.cuda.runtime.memcpyAsync(here + half, away + half, half, 4, back.ptr)
        for stream in (there, back):
            stream.synchronize()
        best = max(best, half / (time.perf_counter() - begin) / 1e9)
    return best


def noisy(shape: tuple[int, int]) -> Any:
    """Sixteen frames on the device: a smooth signal, and the noise of counting photons."""
    import cupy as cp

    rng = np.random.default_rng(0)
    y, x = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
    signal = 200 + 100 * np.sin(x / 40) + 80 * np.cos(y / 35)
    return cp.asarray(np.stack([rng.poisson(signal).astype(np.uint16) for _ in range(DEPTH)]))


def pinned(stack: Any) -> np.ndarray[Any, Any]:
    """The frames in pinned memory of the host."""
    import cupy as cp

    memory = cp.cuda.alloc_pinned_memory(stack.nbytes)
    made = np.frombuffer(memory, np.uint16, stack.size).reshape(stack.shape)
    made[...] = stack.get()
    return made


def rows(
    name: str,
    stack: Any,
    chunks: tuple[int, int, int],
    codecs: tuple[Codec, ...],
    rates: Rates,
    seconds: float,
) -> Iterator[Row]:
    """One configuration, from the device and from the host, to nowhere and to files."""
    limit = min(SECONDS, seconds) or 0.05
    host = pinned(stack)
    ratio, codec, scatter = alone(stack, chunks, codecs)
    traffic = 2 + 2 + 2 / ratio  # read and scatter, read and compress, aggregate
    for source, block in (("device", stack), ("pinned", host)):
        for sink in ("discard", "memory", "disk"):
            with _place(sink) as place:
                rate, stages = streamed(place, block, chunks, codecs, limit, "cuda")
            floor = min(
                rates.to_host * ratio,
                max(codec, stages.get("compress", 0.0)),
                rates.on_device / traffic,
                rates.both_ways if source == "pinned" else float("inf"),
            )
            more = {f"{stage}, GB/s": each for stage, each in stages.items()}
            more |= {"floor, GB/s": floor, "ratio": ratio, "codec alone, GB/s": codec}
            more |= {"scatter alone, of the copy": scatter / rates.on_device}
            yield Row(
                f"store-gpu/{name}-{source}-{sink}", rate, "GB/s", 1, None, None, None,
                fraction_of(rate, floor), more,
            )  # fmt: skip
        without, _ = streamed(Discard(), block, chunks, codecs, limit, "cuda")
        for what, factors in PYRAMIDS.items():
            with_levels = imaged(block, chunks, codecs, limit, factors)
            yield Row.against(
                f"store-gpu/{name}-{source}-{what}", with_levels, "without levels", without,
                "GB/s", 1, "higher",
            )  # fmt: skip
    with _place("memory") as place:
        rate, _ = streamed(place, host, chunks, codecs, limit, "cpu")
    yield Row(f"store-gpu/{name}-cpu-memory", rate, "GB/s", 1)


def fraction_of(rate: float, floor: float) -> float | None:
    """Return the part of the floor that a rate reaches; None for a floor that bounds nothing.

    >>> fraction_of(3.0, 4.0), fraction_of(3.0, 1.0)
    (0.75, None)
    """
    return rate / floor if 0 < rate <= NOISE * floor else None


def rates_between(before: Metrics, after: Metrics) -> dict[str, float]:
    """Return the GB/s of every stage between two moments of a writer."""
    found = {}
    for name, stage in after.stages.items():
        first = before.stages[name]
        rate = StageTime(stage.bytes - first.bytes, stage.seconds - first.seconds).rate
        if rate:
            found[name] = rate
    return found


def shards_of(chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Shards of 64 frames by about a thousand by a thousand."""
    return (64, *(1024 // n * n for n in chunks[1:]))


def encoder_of(codecs: tuple[Codec, ...], device: str) -> Any:
    """Who compresses: our own kernels, but for plain zstd."""
    is_theirs = device == "cuda" and any(isinstance(codec, Zstd) for codec in codecs)
    return "nvcomp" if is_theirs else None


def writer_of(
    place: Any,
    shape: tuple[int | None, ...],
    chunks: tuple[int, ...],
    codecs: tuple[Codec, ...],
    device: Any,
) -> Writer:
    """A writer of frames to a place."""
    encoder = encoder_of(codecs, device)
    return create(
        place,
        shape,
        "uint16",
        chunks,
        shards_of(chunks),
        codecs=codecs,
        device=device,
        encoder=encoder,
    )


def streamed(
    place: Any,
    block: Any,
    chunks: tuple[int, ...],
    codecs: tuple[Codec, ...],
    limit: float,
    device: Any,
) -> tuple[float, dict[str, float]]:
    """Return the GB/s that are kept up for a while, once all is warm, and those of every stage."""
    shape = (None, *block.shape[1:])
    with writer_of(place, shape, chunks, codecs, device) as writer:
        for _ in range(4):
            writer.append(block)
        writer._settle()
        warm = writer.metrics()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < limit:
            writer.append(block)
            count += 1
        writer._settle()
        taken = time.perf_counter() - begin
        stages = rates_between(warm, writer.metrics())
    return count * block.nbytes / taken / 1e9, stages


def imaged(
    block: Any,
    chunks: tuple[int, ...],
    codecs: tuple[Codec, ...],
    limit: float,
    factors: tuple[int, int, int] = (1, 2, 2),
) -> float:
    """GB/s of the finest level, with three coarser ones made of it, all of them discarded."""
    writers = []
    for level in range(4):
        shape = (None, *(-(-n >> level) for n in block.shape[1:]))
        writers.append(writer_of(Discard(), shape, chunks, codecs, "cuda"))
    image = ImageWriter(
        Discard(), Multiscale.of("tyx", (1, 1, 1), factors, 4), writers,
        create_pyramid(writers, factors, "mean"), Discard(),
    )  # fmt: skip
    image.unwatch()  # nothing of it is kept

    def settled() -> None:
        for writer in writers:
            writer._settle()

    for _ in range(16):
        image.append(block)
    settled()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < limit:
        image.append(block)
        count += 1
    settled()
    taken = time.perf_counter() - begin
    for writer in writers:
        writer.abandon()
    return float(count * block.nbytes / taken / 1e9)


def alone(
    stack: Any, chunks: tuple[int, int, int], codecs: tuple[Codec, ...]
) -> tuple[float, float, float]:
    """The ratio, GB/s of the codec alone, and of the scatter alone, reads and writes counted."""
    shape = (None, *stack.shape[1:])
    writer = writer_of(Discard(), shape, chunks, codecs, "cuda")
    pipeline: Any = writer._pipeline
    for frame in stack:
        writer.append(frame)
    now = pipeline._current()
    arrival, buffers = pipeline._scatter, now.buffers
    arrival.stream.synchronize()
    begin, count = time.perf_counter(), 20
    epochs = max(1, min(pipeline._sizes.epochs, DEPTH // arrival.rows))
    for _ in range(count):
        arrival._launch(buffers, 0, stack.data.ptr, 0, arrival.rows, epochs=epochs)
    arrival.stream.synchronize()
    scatter = 2 * count * epochs * arrival.elements / (time.perf_counter() - begin) / 1e9
    whole = max(1, -(-pipeline._sizes.epochs * arrival.rows // DEPTH))  # stacks of a batch
    metrics = []
    for _ in range(2):  # the first time all is loaded and allocated
        for _ in range(max(8, 4 * whole)):
            writer.append(stack)
        writer._settle()
        metrics.append(writer.metrics())
    writer.abandon()
    ratio = metrics[-1].ratio or 1.0
    return ratio, rates_between(*metrics).get("compress", float("inf")), scatter


class _place:  # noqa: N801 - it is used like a function
    """Where output goes: nowhere, to files in memory, or to files on a disk."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Any:
        if self.kind == "discard":
            return Discard()
        memory = Path("/dev/shm")
        base = str(memory) if self.kind == "memory" and memory.is_dir() else None
        self.folder = tempfile.TemporaryDirectory(dir=base)
        return Path(self.folder.name) / "a.zarr"

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()


if __name__ == "__main__":
    for row in run(1.0):
        print(row.line(), flush=True)
