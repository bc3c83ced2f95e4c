"""Random arrays as others write them: their metadata, and three libraries that store them."""

import json

import numpy as np
import tensorstore
import zarr
from tests.store.cases import CODECS, DTYPES

from weft.store import Blosc, Metadata
from weft.store.metadata import KeyEncoding

MORE = [
    (Blosc("blosclz", 3, "shuffle"),),
    (Blosc("zlib", 1, "bitshuffle"),),
    (Blosc("lz4hc", 5, "shuffle"),),
]


def described(seed, rank=None):
    """Random metadata."""
    rng = np.random.default_rng(seed)
    rank = rank or int(rng.integers(1, 6))
    most = {1: 60, 2: 20, 3: 10, 4: 6, 5: 4}[rank]
    shape = tuple(int(n) for n in rng.integers(1, most + 1, rank))
    chunks = tuple(int(rng.integers(1, n + 2)) for n in shape)
    is_sharded = bool(rng.random() < 0.7)
    options = CODECS + MORE
    return Metadata(
        shape,
        str(rng.choice(DTYPES)),
        chunks,
        tuple(c * int(rng.integers(1, 4)) for c in chunks) if is_sharded else chunks,
        options[int(rng.integers(len(options)))],
        int(rng.integers(0, 2)),
        tuple(map(int, rng.permutation(rank))) if rng.random() < 0.3 else (),
        str(rng.choice(["little", "big"])),
        str(rng.choice(["start", "end"])),
        tuple([None, "y", "x", "t", "c"][:rank]) if rng.random() < 0.3 else None,
        is_sharded=is_sharded,
        keys=[
            KeyEncoding(),
            KeyEncoding("default", "."),
            KeyEncoding("v2", "."),
            KeyEncoding("v2", "/"),
        ][rng.integers(4)],
        has_checksum=bool(rng.random() < 0.8),
    )


def values(metadata, seed):
    """Values with many equal ones, so that whole chunks are fill value now and then."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 3, metadata.shape) * (rng.random(metadata.shape) < 0.6)
    return (found * (rng.random() < 0.9)).astype(metadata.dtype)


def by_zarr(path, metadata, array):
    """zarr-python: it reads the metadata that Weft writes, and stores the values."""
    path.mkdir()
    (path / "zarr.json").write_text(metadata.to_json(), encoding="utf-8")
    zarr.open_array(path, mode="r+")[...] = array


def by_zarrs(path, metadata, array):
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        by_zarr(path, metadata, array)


def by_tensorstore(path, metadata, array):
    said = json.loads(metadata.to_json())
    del said["attributes"]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, "metadata": said}
    tensorstore.open(spec, create=True).result().write(array).result()


WRITERS = {"zarr-python": by_zarr, "tensorstore": by_tensorstore, "zarrs": by_zarrs}
