"""A store of one array, whose chunks a given codec encodes, and all who read it."""

import numpy as np
import tensorstore
import zarr
import zarrs  # noqa: F401  registers nothing; it is imported so that it is there

from weft.store import create
from weft.store import open as open_store


def read_by_zarr(path):
    return zarr.open_array(path, mode="r")[...]


def read_by_tensorstore(path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open(spec).result().read().result()


def read_by_zarrs(path):
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return read_by_zarr(path)


def read_by_weft(path):
    return open_store(path).read()


def check_readers(path, array, chunks, shards, codec):
    """Write an array by our writer, and compare what each reader finds."""
    with create(path, array.shape, array.dtype, chunks, shards, codecs=(codec,)) as writer:
        writer.append(array)
    for read in (read_by_weft, read_by_zarr, read_by_tensorstore, read_by_zarrs):
        found = read(path)
        assert found.dtype == array.dtype, read
        assert np.array_equal(found, array), read
