"""What a task of a cluster does on one thread, beside others: a box read, whole shards written.

A volume of 256³ elements in chunks of 64³, in one shard, and with a file for every chunk. The box
is as long as a shard and begins in the middle of chunks. All are given one thread for their codecs;
tensorstore and zarr-python have others that wait for files. What counts is the time of the
processor, of all threads together, since a task has one core; the best round of each is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.row import Row
from benchmarks.store import folder
from weft.extra import needed
from weft.space import ZRange
from weft.store import ShardWriter, create_shards
from weft.store import open as open_store

Values: TypeAlias = np.ndarray[Any, Any]
Call: TypeAlias = Callable[[], object]

CODECS = ("zstd", "blosc-lz4", "blosc-zstd", "none")


def run(seconds: float) -> Iterator[Row]:
    """Three rows for every data type and codec."""
    side, rounds = (256, 3 if seconds < 5 else 9) if seconds else (16, 1)
    with one_thread():
        for dtype in ("uint16", "float32"):
            data = volume(side, dtype)
            for codec in CODECS:
                yield from rows(data, codec, rounds)


def volume(side: int, dtype: str) -> Values:
    """A smooth signal, and noise; two shards of it."""
    rng = np.random.default_rng(0)
    signal = 1000 + 300 * np.sin(np.arange(side**3) / 4000).reshape(side, side, side)
    once = (signal + rng.normal(0, 8, signal.shape)).astype(dtype)
    return np.concatenate([once, once])


def rows(data: Values, codec: str, rounds: int) -> Iterator[Row]:
    """A box, a shard, and a shard's chunks as files."""
    side = data.shape[1]
    shard, box = ZRange.of((side,) * 3), middle(side)
    name = f"store/{data.dtype.name}-{codec}"
    form = data.shape, data.dtype, (side // 4,) * 3
    with folder() as path:
        writer = create_shards(path / "a", *form, (side,) * 3, codecs=codec)
        writer.write(ZRange.of(data.shape), data)
        yield compare(f"{name}-box", readers(path / "a", box), box, data, rounds)
        for kind, shards in (("shard", (side,) * 3), ("files", None)):
            places = {
                who: create_shards(path / f"{kind}-{who}", *form, shards, codecs=codec)
                for who in ("weft", "tensorstore", "zarr-python")
            }
            calls = writers(places, shard, data[:side])
            yield compare(f"{name}-{kind}", calls, shard, data, rounds)


def middle(side: int) -> ZRange:
    """A box of a shard's size along the first dimension, that begins and ends inside of chunks."""
    return ZRange((side // 2 - 3, side // 8, side // 8), (side + side // 2 - 3, *[side - 5] * 2))


def compare(name: str, calls: Mapping[str, Call], box: ZRange, data: Values, rounds: int) -> Row:
    """Our throughput beside that of the best peer."""
    best = dict.fromkeys(calls, 0.0)
    size = box.size * data.itemsize
    for _ in range(rounds):
        for who, call in calls.items():
            begin = time.process_time()
            call()
            taken = max(time.process_time() - begin, 1e-6)
            best[who] = max(best[who], size / taken / 1e9)
    return Row.beside_best(name, best, "GB/s", rounds)


def readers(path: Path, box: ZRange) -> dict[str, Call]:
    """Those that are installed, each with the array open."""
    ours = open_store(path)
    found: dict[str, Call] = {"weft": lambda: ours.read(box, threads=1)}
    for who, array in peers(dict.fromkeys(("tensorstore", "zarr-python"), path)).items():
        found[who] = array.read(box)
    return found


def writers(places: Mapping[str, ShardWriter], box: ZRange, data: Values) -> dict[str, Call]:
    """The same: each writes to a place of its own."""
    ours = places["weft"]
    found: dict[str, Call] = {"weft": lambda: ours.write(box, data)}
    for who, array in peers({who: Path(at.sink.url) for who, at in places.items()}).items():
        found[who] = array.write(box, data)
    return found


class Tensorstore:
    """An array as tensorstore has it, on one thread and without a cache."""

    def __init__(self, path: Path) -> None:
        import tensorstore

        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(path)},
            "context": {
                "data_copy_concurrency": {"limit": 1},
                "file_io_concurrency": {"limit": 1},
            },
        }
        self.array = tensorstore.open(spec).result()

    def read(self, box: ZRange) -> Call:
        """What reads a box."""
        return lambda: self.array[box.slices()].read().result()

    def write(self, box: ZRange, data: Values) -> Call:
        """What writes one."""
        return lambda: self.array[box.slices()].write(data).result()


class ZarrPython:
    """An array as zarr-python has it."""

    def __init__(self, path: Path) -> None:
        import zarr

        self.array = zarr.open_array(path, mode="r+")

    def read(self, box: ZRange) -> Call:
        """What reads a box."""
        return lambda: self.array[box.slices()]

    def write(self, box: ZRange, data: Values) -> Call:
        """What writes one."""
        return lambda: self.array.__setitem__(box.slices(), data)


def peers(paths: Mapping[str, Path]) -> dict[str, Tensorstore | ZarrPython]:
    """Those that are installed."""
    found: dict[str, Tensorstore | ZarrPython] = {}
    if find_spec("tensorstore") is not None:
        found["tensorstore"] = Tensorstore(paths["tensorstore"])
    if find_spec("zarr") is not None:
        found["zarr-python"] = ZarrPython(paths["zarr-python"])
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Blosc and zarr-python with one thread for their codecs."""
    blosc = needed("numcodecs.blosc", "store")
    before = blosc.set_nthreads(1)
    try:
        if find_spec("zarr") is None:
            yield
        else:
            import zarr

            with zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1}):
                yield
    finally:
        blosc.set_nthreads(before)
