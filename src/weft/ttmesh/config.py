"""What the mesh runtime is told: how a 2-D buffer is cut, and which chip gets which shard."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.ttmesh.grid import Mesh, as_mesh
from weft.values import as_count, freeze


class ShardOrientation(Enum):
    """Where the next shard goes: along a row of the mesh, or down a column."""

    ROW_MAJOR = "ROW_MAJOR"
    COL_MAJOR = "COL_MAJOR"


@dataclass(frozen=True, slots=True, init=False)
class Extent:
    """A height and a width, by name only: the seed writes (x, y), the runtime (height, width).

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


NOTHING = Extent(height=0, width=0)


@dataclass(frozen=True, slots=True, init=False)
class ShardedBufferConfig:
    """A buffer of `global_buffer_shape`, cut into shards, on a mesh of rows and columns.

    Shards are read row by row. ROW_MAJOR places them along a row of the mesh and wraps to the next,
    COL_MAJOR down a column. A shard extent of 0 is the whole buffer's, and then shards are placed
    along the one direction without wrap, and repeated along the other. With both 0 every chip has
    the whole buffer. The full extent in place of 0 repeats nothing.

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
        shard_shape: Extent = NOTHING,
        global_buffer_shape: Extent = NOTHING,
        mesh_shard_orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
        device_shard_layout: Hashable = None,
    ) -> None:
        mesh = as_mesh(mesh_device)
        if mesh.ndim != 2:
            raise WeftError(
                f"a sharded buffer lies on rows and columns: {mesh} has {mesh.ndim} axes",
                hint="lower() folds other meshes",
            )
        pairs = {"shard_shape": shard_shape, "global_buffer_shape": global_buffer_shape}
        for name, pair in pairs.items():
            if not isinstance(pair, Extent):
                raise WeftError(
                    f"{name} must be an Extent: {pair!r}",
                    hint="the seed's (x, y) is Extent(width=x, height=y)",
                )
        if not isinstance(mesh_shard_orientation, ShardOrientation):
            raise WeftError(f"no ShardOrientation: {mesh_shard_orientation!r}")
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
    def physical_shard_shape(self) -> Extent:
        """What one chip gets: extents of 0 are those of the whole buffer."""
        whole, shard = self.global_buffer_shape, self.shard_shape
        return Extent(height=shard.height or whole.height, width=shard.width or whole.width)

    @property
    def datum_size(self) -> int:
        """The bytes of one element, as the runtime works it out: the size by the shape."""
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
