"""Random arrays, tilings and codecs, and a folder for them."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from weft.store import Blosc, Crc32c, Gzip, Lz4, Zstd

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
CODECS = [
    (),
    (Zstd(1),),
    (Zstd(3, checksum=True),),
    (Gzip(1),),
    (Blosc("lz4", 5, "shuffle"),),
    (Blosc("zstd", 1, "bitshuffle"),),
    (Blosc("lz4", 1, "noshuffle"),),
    (Zstd(1), Crc32c()),
    (Crc32c(),),
]
OWN = [(Lz4(),)]
"""Codecs that not every reader knows."""


@contextmanager
def folder():
    """A folder for one example of a property, which gets no `tmp_path` of its own."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


class Case:
    """One array to be stored, and how."""

    def __init__(self, seed, rank=None):
        rng = self.rng = np.random.default_rng(seed)
        rank = rank or int(rng.integers(1, 6))
        most = {1: 60, 2: 20, 3: 10, 4: 6, 5: 4}[rank]
        self.shape = tuple(int(n) for n in rng.integers(1, most + 1, rank))
        self.chunks = tuple(int(rng.integers(1, n + 2)) for n in self.shape)
        if rng.random() < 0.4:  # leading dimensions that are streamed one by one
            lead = int(rng.integers(1, rank + 1))
            self.chunks = (1,) * lead + self.chunks[lead:]
        self.shards = tuple(c * int(rng.integers(1, 4)) for c in self.chunks)
        self.dtype = str(rng.choice(DTYPES))
        self.codecs = CODECS[int(rng.integers(len(CODECS)))]
        self.index_location = str(rng.choice(["start", "end"]))
        self.order = tuple(map(int, rng.permutation(rank))) if rng.random() < 0.2 else ()
        self.endian = "big" if rng.random() < 0.2 else "little"
        self.axis_order = tuple(range(rank))
        if rng.random() < 0.4:  # frames count through dimensions in another order
            self.axis_order = tuple(map(int, rng.permutation(rank)))
        self.array = self._array()
        self.fill = self.array.dtype.type(rng.integers(0, 2))
        self.is_unbounded = rng.random() < 0.5

    def _array(self):
        """Values with many equal ones, so that whole chunks are fill value now and then."""
        values = self.rng.integers(0, 3, self.shape) * (self.rng.random(self.shape) < 0.6)
        if self.rng.random() < 0.2:
            values = np.zeros(self.shape, int)
        return values.astype(self.dtype)

    @property
    def options(self):
        return {
            "codecs": self.codecs,
            "fill_value": self.fill,
            "index_location": self.index_location,
            "order": self.order,
            "endian": self.endian,
            "axis_order": self.axis_order,
        }

    @property
    def given_shape(self):
        outer = self.axis_order[0] if self.is_unbounded else None
        return tuple(None if dim == outer else n for dim, n in enumerate(self.shape))

    @property
    def stream(self):
        """The array as its dimensions arrive."""
        return self.array.transpose(self.axis_order)

    def blocks(self):
        """The stream in pieces, sometimes strided: rows, or lines of rows, or elements."""
        stream, level = self.stream, 0
        if self.rng.random() < 0.3:
            level = int(self.rng.integers(0, stream.ndim))
            stream = stream.reshape(-1, *stream.shape[level + 1 :])
        start = 0
        while start < len(stream):
            count = int(self.rng.integers(1, len(stream) + 1))
            block = stream[start : start + count]
            if self.rng.random() < 0.3:
                block = np.repeat(block, 2, axis=-1)[..., ::2]
            yield block
            start += count

    def __repr__(self):
        return (
            f"{self.dtype}{self.given_shape} chunks {self.chunks} shards {self.shards} "
            f"{self.codecs} order {self.order} index at the {self.index_location} "
            f"{self.endian} endian, axis_order {self.axis_order}"
        )
