"""The store: arrays streamed into sharded Zarr v3, and boxes read from it. Extra `store`."""

from weft.store.array import Array
from weft.store.attributes import Attributes, attributes
from weft.store.codecs import Blosc, CodecError, Crc32c, Gzip, Lz4, Zstd
from weft.store.create import create
from weft.store.frames import FrameTable
from weft.store.group import Group, open_group
from weft.store.metadata import Metadata
from weft.store.metrics import Metrics
from weft.store.ome.channels import Channel
from weft.store.ome.image import Image, ImageWriter, create_image, open_image
from weft.store.ome.metadata import Acquisition, Axis
from weft.store.ome.plate import create_plate, open_plate
from weft.store.ome.positions import PositionsWriter, create_positions, open_positions
from weft.store.open_node import open  # noqa: A004 - what everybody calls it
from weft.store.shard import ShardError
from weft.store.shard_writer import ShardWriter, create_shards, open_shards
from weft.store.sink import Fetched, Lock, Sink, SinkError, StoreEntry, Upload
from weft.store.stream import Stream
from weft.store.verify import IntegrityError, Verification
from weft.store.view import View
from weft.store.writer import Writer

__all__ = [
    "Acquisition",
    "Array",
    "Attributes",
    "Axis",
    "Blosc",
    "Channel",
    "CodecError",
    "Crc32c",
    "Fetched",
    "FrameTable",
    "Group",
    "Gzip",
    "Image",
    "ImageWriter",
    "IntegrityError",
    "Lock",
    "Lz4",
    "Metadata",
    "Metrics",
    "PositionsWriter",
    "ShardError",
    "ShardWriter",
    "Sink",
    "SinkError",
    "StoreEntry",
    "Stream",
    "Upload",
    "Verification",
    "View",
    "Writer",
    "Zstd",
    "attributes",
    "create",
    "create_image",
    "create_plate",
    "create_positions",
    "create_shards",
    "open",
    "open_group",
    "open_image",
    "open_plate",
    "open_positions",
    "open_shards",
]
