"""The store: arrays streamed into sharded Zarr v3, and boxes read from it. Extra `store`."""

from weft.store.codecs import Blosc, CodecError, Crc32c, Gzip, Lz4, Zstd
from weft.store.create import create, open_array
from weft.store.create import open_array as open  # noqa: A004 - the word that everybody knows
from weft.store.index import ShardError
from weft.store.metadata import Metadata
from weft.store.reader import Array
from weft.store.writer import Writer

__all__ = [
    "Array",
    "Blosc",
    "CodecError",
    "Crc32c",
    "Gzip",
    "Lz4",
    "Metadata",
    "ShardError",
    "Writer",
    "Zstd",
    "create",
    "open",
    "open_array",
]
