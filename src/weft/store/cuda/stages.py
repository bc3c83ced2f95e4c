"""The stage that makes chunks of tiles on a GPU: none, and the encoders of standard frames."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from weft.store.cuda.device import module

THREADS = 256
"""Threads of a block, in every kernel."""

PART = 1 << 15
"""Bytes that a block of the gather copies."""

ALIGNED = 256
"""What buffers inside of another begin at a multiple of."""


class Stage(Protocol):
    """What makes chunks of tiles, in two steps with the offsets between them."""

    name: str
    fixed: int
    """The bytes of every chunk, or 0 where they differ."""

    def most(self, tile: int) -> int:
        """The most bytes of the chunk of a tile."""

    def scratch(self, tile: int, count: int) -> int:
        """The bytes of memory that so many tiles take meanwhile."""

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Find the sizes of chunks, on the stream that is current."""

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Put chunks in their places."""

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Refuse a batch that was not compressed as it should be, once it is on the host."""


class Plain:
    """No codec: tiles are chunks."""

    name = "none"

    def __init__(self, tile: int) -> None:
        self.fixed = tile
        self._gather = module("aggregate.cu").get_function("weft_gather")

    def most(self, tile: int) -> int:
        """As it is."""
        return tile

    def scratch(self, tile: int, count: int) -> int:
        """None."""
        return 0

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """All the same."""

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy those that are stored."""
        parts = -(-tile // PART)
        given = pool, np.uint64(tile), sizes, offsets, out, np.uint32(parts), np.uint64(PART)
        self._gather((count * parts,), (THREADS,), given)

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Nothing can go wrong."""


class Frames:
    """Blosc frames by kernels of three launches: blocks, sizes, frames."""

    fixed = 0

    def __init__(self, name: str, typesize: int, block: int, slot: int) -> None:
        self.name, self.typesize, self.block, self.slot = name, typesize, block, slot
        kernels = module("encode.cu")
        self._blocks, self._sizes, self._frames = (
            kernels.get_function(f"weft_{name}_{step}") for step in ("blocks", "sizes", "frames")
        )

    def most(self, tile: int) -> int:
        """A frame that is not smaller is stored behind a header."""
        return tile + 16

    def _count(self, tile: int) -> int:
        return -(-tile // self.block)

    def _layout(self, tile: int, count: int) -> tuple[int, int, int]:
        """Where slots, sizes and starts of blocks lie, and the end."""
        blocks = count * self._count(tile)
        slots = aligned(blocks * self.slot)
        table = aligned(4 * blocks)
        return slots, slots + table, slots + 2 * table

    def scratch(self, tile: int, count: int) -> int:
        """Slots, and two tables of blocks."""
        return self._layout(tile, count)[2]

    def _parts(self, scratch: Any, tile: int, count: int) -> tuple[Any, Any, Any]:
        first, second, _ = self._layout(tile, count)
        return scratch, scratch[first:], scratch[second:]

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Compress all blocks, and find the sizes of frames."""
        slots, table, starts = self._parts(scratch, tile, count)
        size, kind = np.uint64(tile), np.uint32(self.typesize)
        grid = (count * self._count(tile),)
        self._blocks(grid, (THREADS,), (pool, size, size, kind, slots, table))
        self._sizes((count,), (THREADS,), (size, kind, table, starts, sizes))

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy blocks into frames."""
        slots, table, starts = self._parts(scratch, tile, count)
        size, kind = np.uint64(tile), np.uint32(self.typesize)
        self._frames(
            (count * self._count(tile),),
            (THREADS,),
            (pool, size, size, kind, slots, table, starts, sizes, offsets, out),
        )

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Every block has a frame that holds it."""


def aligned(size: int) -> int:
    """Bytes rounded up to where the next buffer may begin."""
    return -(-size // ALIGNED) * ALIGNED
