"""Buffer configs of the mesh runtime, and `MeshBuffer`: the memory of a mesh, byte by byte.

A `MeshBuffer` knows only configs, not how they were derived: lowerings are tested against it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.space import BlockGrid, ZRange
from weft.ttmesh.distribution import CopyPair, copy_all
from weft.ttmesh.formats import Bytes
from weft.ttmesh.mesh import Mesh, as_mesh
from weft.values import Point, as_count, freeze

WORD = 4
"""The bytes of a word: the runtime copies rows of a shard in words."""
SHARD_BYTES_LIMIT = 1 << 32
"""The runtime counts the bytes of a shard in 32 bits."""


class ShardOrientation(Enum):
    """Where the next shard goes: along a row of the mesh, or down a column."""

    ROW_MAJOR = "ROW_MAJOR"
    COL_MAJOR = "COL_MAJOR"


@dataclass(frozen=True, slots=True, init=False)
class Extent:
    """A height and a width, by name only: some APIs write (x, y), others (height, width).

    >>> print(Extent(width=32, height=96))
    96 x 32
    """

    height: int
    width: int

    def __init__(self, *, height: int, width: int) -> None:
        freeze(self, height=as_count(height, "height"), width=as_count(width, "width"))

    @property
    def size(self) -> int:
        """Height times width."""
        return self.height * self.width

    def __str__(self) -> str:
        return f"{self.height} x {self.width}"


EMPTY = Extent(height=0, width=0)


@dataclass(frozen=True, slots=True, init=False)
class ShardedBufferConfig:
    """A buffer of `global_buffer_shape`, cut into shards, on a mesh of rows and columns.

    Shards are read row by row. ROW_MAJOR places them along a row of the mesh and wraps to the next,
    COL_MAJOR down a column. A shard extent of 0 means that of the whole buffer: shards are then
    placed in one direction without wrapping, and repeated along the other. If both are 0, every
    chip has the whole buffer. The full extent in place of 0 repeats nothing.

    >>> half = Extent(width=0, height=96)
    >>> config = ShardedBufferConfig((2, 4), 24576, half, Extent(width=32, height=384))
    >>> print(config.physical_shard_shape, config.datum_size, config.mesh_shard_orientation.name)
    96 x 32 2 ROW_MAJOR
    """

    mesh_device: DeviceMesh
    global_buffer_size: int
    shard_shape: Extent
    global_buffer_shape: Extent
    mesh_shard_orientation: ShardOrientation
    device_shard_layout: Hashable

    def __init__(
        self,
        mesh_device: Mesh,
        global_buffer_size: int,
        shard_shape: Extent = EMPTY,
        global_buffer_shape: Extent = EMPTY,
        mesh_shard_orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
        device_shard_layout: Hashable = None,
    ) -> None:
        mesh = as_mesh(mesh_device)
        if mesh.ndim != 2:
            raise WeftError(
                f"a sharded buffer needs rows and columns: {mesh} has {mesh.ndim} axes",
                hint="lower() flattens other meshes",
            )
        pairs = {"shard_shape": shard_shape, "global_buffer_shape": global_buffer_shape}
        for name, pair in pairs.items():
            if not isinstance(pair, Extent):
                raise WeftError(
                    f"{name} must be an Extent: {pair!r}",
                    hint="write (x, y) as Extent(width=x, height=y)",
                )
        if not isinstance(mesh_shard_orientation, ShardOrientation):
            raise WeftError(
                f"mesh_shard_orientation must be a ShardOrientation: {mesh_shard_orientation!r}"
            )
        freeze(
            self,
            mesh_device=mesh,
            global_buffer_size=as_count(global_buffer_size, "global_buffer_size"),
            shard_shape=shard_shape,
            global_buffer_shape=global_buffer_shape,
            mesh_shard_orientation=mesh_shard_orientation,
            device_shard_layout=device_shard_layout,
        )

    @property
    def size(self) -> int:
        """The bytes of the whole buffer."""
        return self.global_buffer_size

    @property
    def physical_shard_shape(self) -> Extent:
        """The shard of one chip: extents of 0 are those of the whole buffer."""
        whole, shard = self.global_buffer_shape, self.shard_shape
        return Extent(height=shard.height or whole.height, width=shard.width or whole.width)

    @property
    def datum_size(self) -> int:
        """The bytes of one element, computed as the runtime does: the size by the shape."""
        return self.global_buffer_size // max(1, self.global_buffer_shape.size)


@dataclass(frozen=True, slots=True, init=False)
class ReplicatedBufferConfig:
    """A buffer of which every chip of the mesh has a copy.

    >>> ReplicatedBufferConfig((2, 4), 4096).size
    4096
    """

    mesh_device: DeviceMesh
    size: int

    def __init__(self, mesh_device: Mesh, size: int) -> None:
        freeze(self, mesh_device=as_mesh(mesh_device), size=as_count(size, "size"))


# -- what the runtime refuses, or would silently get wrong


def check(config: ShardedBufferConfig) -> None:
    """Raise for a config that the runtime refuses, or would silently get wrong.

    >>> half, whole = Extent(height=2, width=0), Extent(height=4, width=4)
    >>> check(ShardedBufferConfig((2, 4), 64, half, whole))
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: 2 x 1 = 2 shards leave chips unwritten: a row of the mesh has 4
    hint: an extent of 0 repeats along the other direction, a full extent does not
    """
    whole, shard = config.global_buffer_shape, config.physical_shard_shape
    if not whole.size or config.global_buffer_size != whole.size * config.datum_size:
        raise WeftError(
            f"a buffer of {config.global_buffer_size} bytes does not have {whole} equal elements"
        )
    if whole.height % shard.height or whole.width % shard.width:
        raise WeftError(f"a buffer of {whole} is not a whole number of shards of {shard}")
    grid, (receivers, where) = _shard_grid(config), _receivers(config)
    if grid.size != len(receivers):
        wrong = "run off the mesh" if grid.size > len(receivers) else "leave chips unwritten"
        raise WeftError(
            f"{grid.counts[0]} x {grid.counts[1]} = {grid.size} shards {wrong}: {where}",
            hint="an extent of 0 repeats along the other direction, a full extent does not",
        )
    if fault := row_fault(shard.width, config.datum_size):
        raise WeftError(fault, hint="lower() offers a copy on the host")
    check_shard_bytes(config)


def row_fault(width: int, item_size: int) -> str | None:
    """Return what the runtime would get wrong with rows of that width; None if nothing."""
    if width * item_size % WORD:
        return (
            f"rows of a shard are {width} x {item_size} = {width * item_size} bytes, "
            f"not a multiple of {WORD}, and the runtime would shift them"
        )
    return None


def check_shard_bytes(config: ShardedBufferConfig) -> None:
    """Raise if a shard has more bytes than the runtime counts."""
    shard = config.physical_shard_shape
    size = config.global_buffer_size * shard.size // config.global_buffer_shape.size
    if size >= SHARD_BYTES_LIMIT:
        raise WeftError(
            f"a shard of {shard} elements is {size} bytes; the runtime counts in 32 bits, "
            f"so it must be less than {SHARD_BYTES_LIMIT}",
            hint="cut the tensor over more chips, or write slices of it",
        )


def _shard_grid(config: ShardedBufferConfig) -> BlockGrid:
    whole, shard = config.global_buffer_shape, config.physical_shard_shape
    return BlockGrid.blocks((whole.height, whole.width), (shard.height, shard.width))


def _receivers(config: ShardedBufferConfig) -> tuple[list[list[Point]], str]:
    """Return the chips that get each shard, in order of the shards, and in words what has room."""
    rows, columns = map(range, config.mesh_device.shape)
    row_major = config.mesh_shard_orientation is ShardOrientation.ROW_MAJOR
    by_column: list[list[Point]] = [[(row, column) for row in rows] for column in columns]
    by_row: list[list[Point]] = [[(row, column) for column in columns] for row in rows]
    if config.shard_shape == EMPTY:
        return [list(config.mesh_device.cells())], ""
    if config.shard_shape.size:
        order = [chip for line in (by_row if row_major else by_column) for chip in line]
        where = f"a mesh of {len(rows)} x {len(columns)} has {len(order)} chips"
        return [[chip] for chip in order], where
    if row_major:
        return by_column, f"a row of the mesh has {len(columns)}"
    return by_row, f"a column of the mesh has {len(rows)}"


def shards_of(config: ShardedBufferConfig) -> Iterator[tuple[Point, ZRange]]:
    """Return each chip with its box of the buffer (height, width), in the order of the runtime.

    >>> half, whole = Extent(height=2, width=0), Extent(height=4, width=4)
    >>> config = ShardedBufferConfig((2, 2), 64, half, whole)
    >>> for chip, box in shards_of(config):
    ...     print(chip, box)
    (0, 0) [0:2, 0:4]
    (1, 0) [0:2, 0:4]
    (0, 1) [2:4, 0:4]
    (1, 1) [2:4, 0:4]
    """
    check(config)
    receivers, _ = _receivers(config)
    boxes = _shard_grid(config).boxes()
    return ((chip, box) for box, chips in zip(boxes, receivers) for chip in chips)


class MeshBuffer:
    """The same number of bytes on every chip of a mesh, at the same address.

    >>> buffer = MeshBuffer((1, 2), 4)
    >>> halves = ShardedBufferConfig(
    ...     (1, 2), 8, Extent(height=0, width=4), Extent(height=1, width=8)
    ... )
    >>> buffer.write(halves, bytes(range(8)))
    >>> buffer.device_bytes(1).tolist(), buffer.read(halves).tolist()
    ([4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])
    """

    def __init__(self, mesh_device: Mesh, size: int) -> None:
        self.mesh: DeviceMesh = as_mesh(mesh_device)
        self.size = as_count(size, "size")
        devices = map(self.mesh.device, range(self.mesh.size))
        self._memory: dict[int, Bytes] = {device: np.zeros(size, np.uint8) for device in devices}
        self._written: dict[int, list[tuple[int, int]]] = {device: [] for device in self._memory}

    def write(
        self, config: ShardedBufferConfig | ReplicatedBufferConfig, data: Any, offset: int = 0
    ) -> None:
        """Write a buffer: each chip's shard goes to `offset` of its memory."""
        if isinstance(config, ShardedBufferConfig):
            check(config)
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        source: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if source.size != config.size:
            raise WeftError(f"the config has {config.size} bytes, and {source.size} are given")
        shards = list(self._shards(config, source))
        for device, shard in shards:  # before anything is changed
            self._check_room(device, offset, shard.size)
        copy_all(
            CopyPair(self._memory[device][offset : offset + shard.size].reshape(shard.shape), shard)
            for device, shard in shards
        )
        for device, shard in shards:
            written = (offset, offset + shard.size)
            self._written[device] = _merge([*self._written[device], written])

    def read(self, config: ShardedBufferConfig | ReplicatedBufferConfig, offset: int = 0) -> Bytes:
        """Return the buffer, put together from the bytes at `offset`; of copies the first."""
        data = np.zeros(config.size, np.uint8)
        pairs: dict[int, CopyPair] = {}
        for device, shard in self._shards(config, data):
            if shard.ctypes.data not in pairs:
                here = self.device_bytes(device, offset, offset + shard.size)
                pairs[shard.ctypes.data] = CopyPair(shard, here.reshape(shard.shape))
        copy_all(pairs.values())
        return data

    def device_bytes(self, device: int, start: int = 0, stop: int | None = None) -> Bytes:
        """Return the bytes of a chip, read-only; raise if some were never written."""
        if device not in self._memory:
            raise WeftError(f"no device {device} in {self.mesh}")
        end = self.size if stop is None else stop
        self._check_room(device, start, end - start)
        if end > start and not any(a <= start and end <= b for a, b in self._written[device]):
            raise WeftError(
                f"device {device} has bytes in [{start}, {end}) that were never written",
                hint=f"written are {self._written[device] or 'none'}",
            )
        data = self._memory[device][start:end]
        data.flags.writeable = False
        return data

    def _shards(
        self, config: ShardedBufferConfig | ReplicatedBufferConfig, data: Bytes
    ) -> Iterator[tuple[int, Bytes]]:
        """Return each device with its part of the data, as a view."""
        mesh = config.mesh_device
        if isinstance(config, ReplicatedBufferConfig):
            for rank in range(mesh.size):
                yield mesh.device(rank), data
            return
        rows = data.reshape(config.global_buffer_shape.height, -1)
        for chip, box in shards_of(config):
            (top, left), (bottom, right) = box.start, box.stop
            columns = slice(left * config.datum_size, right * config.datum_size)
            yield mesh.device(chip), rows[top:bottom, columns]

    def _check_room(self, device: int, offset: int, size: int) -> None:
        if device not in self._memory:
            raise WeftError(f"the config names device {device}, which is not in {self.mesh}")
        if offset < 0 or offset + size > self.size:
            raise WeftError(
                f"{size} bytes at {offset} do not fit the {self.size} of device {device}"
            )


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, those that touch joined."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
