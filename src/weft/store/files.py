"""Shards as local files: written aside, and visible at once when they are whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from weft.errors import WeftError
from weft.store.codecs import Bytes
from weft.store.index import Index, length
from weft.values import Point

LOCK = ".weft.lock"
"""The file that a writer holds locked."""

MOST_BUFFERS = 512
"""Buffers in one write; systems allow 1,024."""


Chunks: TypeAlias = Sequence[Bytes | None]
"""The bytes of chunks, None for one that is all fill value."""

Ready: TypeAlias = tuple[Sequence[int], Chunks]
"""The slots of chunks, and their bytes."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is a Zarr array: `zarr.json`, and a file for every shard."""

    path: Path
    fsync: bool = False

    def shard(self, at: Point) -> Path:
        """The file of a shard."""
        return self.path.joinpath("c", *map(str, at))

    def write_text(self, name: str, text: str) -> None:
        """A small file, new or in place of an old one, at once."""
        self.path.mkdir(parents=True, exist_ok=True)
        aside = self.path / f".{name}.partial"
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if self.fsync:
                os.fsync(file.fileno())
        aside.replace(self.path / name)

    def lock(self) -> int:
        """Be the only writer; the lock is gone with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = os.open(
            self.path / LOCK, os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666
        )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise WeftError(f"{self.path} is being written by somebody else") from None
        return file

    def unlock(self, file: int) -> None:
        """Let others write."""
        (self.path / LOCK).unlink(missing_ok=True)
        os.close(file)

    def clear_partial(self) -> None:
        """Remove what a writer that was killed left aside."""
        for file in self.path.rglob(".*.partial"):
            file.unlink(missing_ok=True)

    def open_shard(self, at: Point, slots: int, index_first: bool) -> Shard:
        """A shard to be written."""
        final = self.shard(at)
        final.parent.mkdir(parents=True, exist_ok=True)
        aside = final.with_name(f".{final.name}.partial")
        flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        file = os.open(aside, flags, 0o666)
        start = length(slots) if index_first else 0
        return Shard(file, aside, final, Index.empty(slots), start, index_first, self.fsync)


@dataclass(slots=True)
class Shard:
    """A shard that is being written: what is there, and where the next chunk goes."""

    file: int
    aside: Path
    final: Path
    index: Index
    end: int
    index_first: bool
    fsync: bool
    seen: int = 0
    """How many chunks have come, those that are all fill value included."""
    written: int = 0
    """How many epochs are in the file."""
    next: int = 0
    """The number of the epoch whose chunks go in next."""
    ready: dict[int, Ready] = field(default_factory=dict)
    """Chunks of later epochs, which wait: however threads run, bytes are the same."""

    def take(self, number: int, ready: Ready) -> list[tuple[int, Chunks]]:
        """Places for the chunks of an epoch, and of those that waited for it, in their order."""
        self.ready[number] = ready
        found = []
        while self.next in self.ready:
            slots, chunks = self.ready.pop(self.next)
            self.next += 1
            self.seen += len(chunks)
            start = self.reserve(slots, [None if c is None else len(c) for c in chunks])
            found.append((start, chunks))
        return found

    def reserve(self, slots: Sequence[int], sizes: Sequence[int | None]) -> int:
        """Places for chunks, one behind the other; None for one that is not stored."""
        start = self.end
        for slot, size in zip(slots, sizes):
            if size is not None:
                self.index.offsets[slot], self.index.sizes[slot] = self.end, size
                self.end += size
        return start

    def write(self, start: int, buffers: Sequence[Bytes]) -> None:
        """Put buffers one behind the other, with few calls."""
        for first in range(0, len(buffers), MOST_BUFFERS):
            part = [memoryview(b) for b in buffers[first : first + MOST_BUFFERS] if len(b)]
            while part:
                written = os.pwritev(self.file, part, start)
                start += written
                while part and written >= part[0].nbytes:
                    written -= part.pop(0).nbytes
                if part and written:
                    part[0] = part[0].cast("B")[written:]

    def finish(self) -> None:
        """Write the index, and let the shard be seen; one without chunks is no file at all."""
        if not any(True for _ in self.index.present()):
            self.drop()
            return
        data = self.index.to_bytes()
        self.write(0 if self.index_first else self.end, [data])
        if self.fsync:
            os.fsync(self.file)
        os.close(self.file)
        self.aside.replace(self.final)

    def drop(self) -> None:
        """Forget all of it."""
        os.close(self.file)
        self.aside.unlink(missing_ok=True)
