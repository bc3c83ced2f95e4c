"""The arrays that the cluster's benchmark works on, in Zarr, and what must come out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RADIUS = 6
WEIGHTS = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / 1.5) ** 2)
WEIGHTS = (WEIGHTS / WEIGHTS.sum()).astype("float32")
"""A Gaussian of 1.5, cut off at 4 of them."""


class Sizes(NamedTuple):
    """How large everything is."""

    matrix: int
    volume: int
    chunk: int
    """Of the volume, in each direction."""
    tasks: int
    """How many no-ops are run."""


FULL = Sizes(4096, 512, 64, 1000)
TINY = Sizes(128, 32, 16, 40)


def make_data(folder: Path, sizes: Sizes) -> None:
    """Write what is read: two matrices as they are, and a volume that can be compressed."""
    rng = np.random.default_rng(0)
    for name in "ab":
        matrix = rng.random((sizes.matrix, sizes.matrix))
        chunks = (max(sizes.matrix // 4, 1),) * 2
        _write(folder / f"{name}.zarr", matrix, chunks, None)
        np.save(folder / f"{name}.npy", matrix)
    edge = np.linspace(0, 9, sizes.volume, dtype="float32")
    wave = np.sin(edge)
    volume = wave[:, None, None] * wave[None, :, None] + wave
    volume = np.round(volume * 64 + rng.integers(0, 4, volume.shape, dtype="int8"))
    _write(folder / "volume.zarr", volume.astype("float32"), (sizes.chunk,) * 3, "auto")


def _write(path: Path, array: Any, chunks: tuple[int, ...], compressors: Any) -> None:
    import zarr

    made = zarr.create_array(
        path, shape=array.shape, dtype=array.dtype, chunks=chunks, compressors=compressors
    )
    made[...] = array


def blurred(x: Any) -> Any:
    """The blur as everybody with SciPy would write it: zero beyond the ends."""
    from scipy.ndimage import correlate1d

    for axis in range(3):
        x = correlate1d(x, WEIGHTS, axis, mode="constant")
    return x


def check(what: str, folder: Path, found: Any) -> float:
    """How far a result is from what it should be, by a sample of it, beside its size."""
    import zarr

    if what == "matmul":
        a, b = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "ab")
        wanted, found = a[:8] @ b, found[:8]
    else:
        x = zarr.open_array(folder / "volume.zarr", mode="r")
        rows = slice(x.shape[1] // 2 - 2, x.shape[1] // 2 + 2)
        wide = x[:, max(0, rows.start - RADIUS) : rows.stop + RADIUS]
        at = rows.start - max(0, rows.start - RADIUS)
        wanted, found = blurred(wide)[:, at : at + 4].mean(0), found[rows]
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
