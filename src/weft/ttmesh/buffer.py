"""`MeshBuffer`: the memory of a mesh of chips, byte by byte, as the runtime would fill it.

It knows configs alone, and not how they were found: what a lowering says is proved against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.space import ZRange
from weft.ttmesh.blocks import copy_all
from weft.ttmesh.config import ReplicatedBufferConfig, ShardedBufferConfig, ShardOrientation
from weft.ttmesh.grid import Mesh, as_mesh
from weft.ttmesh.streams import Pair
from weft.values import Point, as_count

Bytes = NDArray[np.uint8]
WORD = 4
LIMIT = 1 << 32


def check(config: ShardedBufferConfig) -> None:
    """Refuse a config that the runtime refuses, or would silently get wrong.

    >>> from weft.ttmesh import Extent
    >>> half, whole = Extent(height=2, width=0), Extent(height=4, width=4)
    >>> check(ShardedBufferConfig((2, 4), 64, half, whole))
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: 2 x 1 = 2 shards leave chips unwritten: a row of the mesh has 4
    hint: an extent of 0 repeats along the other direction, a full extent does not
    """
    whole, shard, mesh = config.global_buffer_shape, config.physical_shard_shape, config.mesh_device
    if not whole.size or config.global_buffer_size != whole.size * config.datum_size:
        raise WeftError(
            f"a buffer of {config.global_buffer_size} bytes does not have {whole} equal elements"
        )
    if whole.height % shard.height or whole.width % shard.width:
        raise WeftError(f"a buffer of {whole} is not made of shards of {shard}")
    grid = whole.height // shard.height, whole.width // shard.width
    _check_grid(config, grid)
    row = shard.width * config.datum_size
    if row % WORD:
        raise WeftError(
            f"rows of a shard are {shard.width} x {config.datum_size} = {row} bytes, "
            f"no multiple of {WORD}: the runtime counts words, and would shift them",
            hint="lower() offers a copy on the host",
        )
    if row * shard.height >= LIMIT:
        raise WeftError(
            f"a shard of {shard} elements of {config.datum_size} bytes is {row * shard.height} "
            f"bytes; the runtime counts them in 32 bits, so that it must be less than {LIMIT}",
            hint=f"cut it over more chips than those of {mesh}, or write slices",
        )


def _check_grid(config: ShardedBufferConfig, grid: Point) -> None:
    """Refuse shards that run off the mesh, or leave chips without any."""
    (rows, columns), shard = config.mesh_device.shape, config.shard_shape
    count = grid[0] * grid[1]
    if shard.height and shard.width:
        room, where = rows * columns, f"a mesh of {rows} x {columns} has {rows * columns} chips"
    elif not shard.height and not shard.width:
        return
    elif config.mesh_shard_orientation is ShardOrientation.ROW_MAJOR:
        room, where = columns, f"a row of the mesh has {columns}"
    else:
        room, where = rows, f"a column of the mesh has {rows}"
    if count != room:
        wrong = "run off the mesh" if count > room else "leave chips unwritten"
        raise WeftError(
            f"{grid[0]} x {grid[1]} = {count} shards {wrong}: {where}",
            hint="an extent of 0 repeats along the other direction, a full extent does not",
        )


def shards_of(config: ShardedBufferConfig) -> Iterator[tuple[Point, ZRange]]:
    """Which chip gets which box of the buffer (height, width), in the order of the runtime.

    >>> from weft.ttmesh import Extent
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
    return _placed(config)


def _placed(config: ShardedBufferConfig) -> Iterator[tuple[Point, ZRange]]:
    whole, shard = config.global_buffer_shape, config.physical_shard_shape
    rows, columns = config.mesh_device.shape
    along = config.mesh_shard_orientation is ShardOrientation.ROW_MAJOR
    high, wide = config.shard_shape.height, config.shard_shape.width
    boxes = ZRange.of((whole.height, whole.width)).tiles((shard.height, shard.width))
    for number, box in enumerate(boxes):
        if not high and not wide:
            chips = [(row, column) for row in range(rows) for column in range(columns)]
        elif high and wide:
            major, minor = divmod(number, columns if along else rows)
            chips = [(major, minor) if along else (minor, major)]
        elif along:
            chips = [(row, number) for row in range(rows)]
        else:
            chips = [(number, column) for column in range(columns)]
        for chip in chips:
            yield chip, box


class MeshBuffer:
    """So many bytes on every chip of a mesh, at the same address.

    >>> from weft.ttmesh import Extent
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
        ids = map(self.mesh.device, range(self.mesh.size))
        self._memory: dict[int, Bytes] = {chip: np.zeros(size, np.uint8) for chip in ids}
        self._written: dict[int, list[tuple[int, int]]] = {chip: [] for chip in self._memory}

    def write(
        self, config: ShardedBufferConfig | ReplicatedBufferConfig, data: Any, offset: int = 0
    ) -> None:
        """Write a buffer: each chip's shard goes to `offset` of its memory."""
        if isinstance(config, ShardedBufferConfig):
            check(config)
        source, expected = as_bytes(data), _size(config)
        if source.size != expected:
            raise WeftError(f"the config is of {expected} bytes, and {source.size} are given")
        parts = list(self._parts(config, source))
        for device, part in parts:  # before anything is changed
            self._check_room(device, offset, part.size)
        rooms = [self._memory[device][offset : offset + part.size] for device, part in parts]
        copy_all(Pair(room.reshape(part.shape), part) for room, (_, part) in zip(rooms, parts))
        for device, part in parts:
            self._written[device] = _joined([*self._written[device], (offset, offset + part.size)])

    def read(self, config: ShardedBufferConfig | ReplicatedBufferConfig, offset: int = 0) -> Bytes:
        """The buffer put together again from what lies at `offset`; of copies the first is read."""
        found = np.zeros(_size(config), np.uint8)
        pairs: dict[int, Pair] = {}
        for device, part in self._parts(config, found):
            if part.ctypes.data not in pairs:
                here = self.device_bytes(device, offset, offset + part.size)
                pairs[part.ctypes.data] = Pair(part, here.reshape(part.shape))
        copy_all(pairs.values())
        return found

    def device_bytes(self, device: int, start: int = 0, stop: int | None = None) -> Bytes:
        """What a chip holds; bytes that nobody wrote are refused."""
        if device not in self._memory:
            raise WeftError(f"no device {device} in {self.mesh}")
        end = self.size if stop is None else stop
        self._check_room(device, start, end - start)
        whole = end <= start or any(a <= start and end <= b for a, b in self._written[device])
        if not whole:
            raise WeftError(
                f"device {device} has bytes in [{start}, {end}) that were never written",
                hint=f"written are {self._written[device] or 'none'}",
            )
        found = self._memory[device][start:end]
        found.flags.writeable = False
        return found

    def _parts(
        self, config: ShardedBufferConfig | ReplicatedBufferConfig, data: Bytes
    ) -> Iterator[tuple[int, Bytes]]:
        """Devices with the part of the data that is theirs, as views of it."""
        mesh = config.mesh_device
        if isinstance(config, ReplicatedBufferConfig):
            for rank in range(mesh.size):
                yield mesh.device(rank), data
            return
        datum = config.datum_size
        rows = data.reshape(config.global_buffer_shape.height, -1)
        for chip, box in shards_of(config):
            (top, left), (bottom, right) = box.start, box.stop
            yield mesh.device(chip), rows[top:bottom, left * datum : right * datum]

    def _check_room(self, device: int, offset: int, size: int) -> None:
        if device not in self._memory:
            raise WeftError(f"the config names device {device}, which is not in {self.mesh}")
        if offset < 0 or offset + size > self.size:
            raise WeftError(
                f"{size} bytes at {offset} do not fit the {self.size} of device {device}"
            )


def as_bytes(data: Any) -> Bytes:
    """Anything contiguous as bytes: an array, `bytes`, a memory view."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _size(config: ShardedBufferConfig | ReplicatedBufferConfig) -> int:
    if isinstance(config, ReplicatedBufferConfig):
        return config.size
    return config.global_buffer_size


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined
