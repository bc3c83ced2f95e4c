"""The stage that makes chunks of tiles on a GPU: none, and the encoders of standard frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from weft.store.cuda.device import module

THREADS = 256
"""Threads of a block, in every kernel."""

PART = 1 << 15
"""Bytes that a block of the gather copies."""

BATCHED = 1 << 28
"""Bytes of a batch."""

ALIGNED = 256
"""What buffers inside of another begin at a multiple of."""


class Stage(Protocol):
    """What makes chunks of tiles, in two steps with the offsets between them."""

    name: str
    fixed: int
    """The bytes of every chunk, or 0 where they differ."""
    batch: int
    """Bytes of tiles that keep the device busy; at least one epoch is a batch."""

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
    batch = BATCHED

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


@dataclass(frozen=True)
class Shape:
    """How an encoder cuts a chunk: pieces, each made by a block of threads into a slot."""

    pieces: int
    slot: int
    """The most bytes of what is made of a piece."""
    most: int
    """The most bytes of a chunk."""


class Frames:
    """Frames by kernels of three launches: pieces, sizes, frames. See `encode.cu`."""

    fixed = 0
    batch = BATCHED

    def __init__(self, name: str, shape: Shape, typesize: int | None) -> None:
        self.name, self.shape = name, shape
        self._kind = () if typesize is None else (np.uint32(typesize),)
        kernels = module("encode.cu")
        self._blocks, self._sizes, self._frames = (
            kernels.get_function(f"weft_{name}_{step}") for step in ("blocks", "sizes", "frames")
        )

    def most(self, tile: int) -> int:
        """As the encoder has it."""
        return self.shape.most

    def _parts(self, count: int) -> tuple[int, int, int]:
        """Where the sizes and the starts of pieces lie behind the slots, and the end."""
        pieces = count * self.shape.pieces
        slots, table = aligned(pieces * self.shape.slot), aligned(4 * pieces)
        return slots, slots + table, slots + 2 * table

    def scratch(self, tile: int, count: int) -> int:
        """Slots, and two tables of pieces."""
        return self._parts(count)[2]

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Compress all pieces, and find the sizes of frames."""
        first, second, _ = self._parts(count)
        table, starts, size = scratch[first:], scratch[second:], np.uint64(tile)
        grid = (count * self.shape.pieces,)
        self._blocks(grid, (THREADS,), (pool, size, size, *self._kind, scratch, table))
        self._sizes((count,), (THREADS,), (size, *self._kind, table, starts, sizes))

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy pieces into frames; where a frame may be stored, the tiles are read once more."""
        first, second, _ = self._parts(count)
        table, starts, size = scratch[first:], scratch[second:], np.uint64(tile)
        tiles = (pool, size) if self._kind else ()
        given = *tiles, size, *self._kind, scratch, table, starts, sizes, offsets, out
        self._frames((count * self.shape.pieces,), (THREADS,), given)

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Every piece has a frame that holds it."""


def aligned(size: int) -> int:
    """Bytes rounded up to where the next buffer may begin."""
    return -(-size // ALIGNED) * ALIGNED
