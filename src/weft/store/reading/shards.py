"""`Shards`: the shards of an array with their indexes, found once and held as long as they last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from weft.store.index import Index, ShardError, length
from weft.store.metadata import Metadata
from weft.store.reading.parts import Grid
from weft.store.reading.source import OpenFile, Shard, source_of
from weft.store.reading.workers import each
from weft.store.sink import Sink
from weft.values import Point

MOST_HELD = 1024
"""Shards whose index is held."""

MOST_SLOTS = 1 << 20
"""Slots of all indexes that are held, 16 B each."""

WINDOW = 16
"""Shards that are read at the same time: each local one is an open file."""


class Shards:
    """Finds shards, and knows which are still what they were."""

    def __init__(self, sink: Sink, metadata: Metadata, grid: Grid) -> None:
        self.sink, self.metadata, self.grid = sink, metadata, grid
        self.source = source_of(sink)
        self._held: dict[Point, Shard] = {}
        self.most = max(1, min(MOST_HELD, MOST_SLOTS // max(1, grid.slots)))
        """Shards whose index is held."""
        self.window = min(WINDOW, self.most) if metadata.is_sharded else 64 * WINDOW
        """Shards that are read at the same time."""
        self.index_size = length(grid.slots, metadata.has_checksum)

    def key(self, at: Point) -> str:
        """The key of a shard."""
        return self.metadata.key(at)

    def error(self, at: Point, slot: int | None, message: object) -> ShardError:
        """What is wrong with a shard, or with a chunk of it: its key, its slot and its box."""
        box = self.grid.box(at, slot)
        where = f"shard {box}" if slot is None else f"chunk {slot}, {box}"
        error = ShardError(f"{self.sink.url}/{self.key(at)}: {where}: {message}")
        for note in getattr(message, "__notes__", ()):
            error.add_note(note)
        return error

    def find(self, at: Point) -> Shard | None:
        """A shard as it is now, with its index; None where there is none."""
        has_checksum, slots, count = self.metadata.has_checksum, self.grid.slots, self.index_size
        is_first = self.metadata.index_location == "start"
        shard = self.source.find(self.key(at), 0 if is_first else -count, count)
        if shard is None:
            return None
        if len(shard.head) != count:
            message = f"{shard.size} B, and the index of {slots} chunks has {count} B"
            raise self.error(at, None, message)
        try:
            shard.index = Index.parse(
                shard.head, slots, has_checksum=has_checksum, endian=self.metadata.index_endian
            )
        except ShardError as error:
            raise self.error(at, None, error) from None
        self._check(at, shard, *((count, shard.size) if is_first else (0, shard.size - count)))
        if isinstance(shard, OpenFile):
            shard.head = b""  # a file is told from another by other things
        return shard

    def _check(self, at: Point, shard: Shard, start: int, stop: int) -> None:
        slot = shard.index.misplaced(start, stop)
        if slot is not None:
            said = shard.index.said(slot)
            raise self.error(at, slot, f"said to lie at {said}, and chunks lie in {start}:{stop}")

    def held(self, at: Point) -> Shard | None:
        """A shard that was found before, opened once more."""
        known = self._held.pop(at, None)
        shard = None if known is None else known.again()
        if shard is not None:
            self._held[at] = shard  # the last to be dropped
        return shard

    def find_all(self, wanted: Sequence[Point], threads: int | None = None) -> dict[Point, Shard]:
        """Those of some shards that are there, as they are now."""
        found: dict[Point, Shard] = {}
        each(partial(self._find_one, found), wanted, kind=self.source.kind, most=threads)
        for at, shard in found.items():
            self._held[at] = shard
        for at in list(self._held)[: -self.most]:
            self._held.pop(at, None)
        return found

    def _find_one(self, found: dict[Point, Shard], at: Point) -> None:
        shard = self.find(at)
        if shard is not None:
            found[at] = shard

    def forget(self, some: Iterable[Point]) -> None:
        """Find these anew next time."""
        for at in some:
            self._held.pop(at, None)
