"""Files written past the page cache, where that is quicker: large shards on a disk.

What is written through the cache is copied there, and written back by the system when it likes: a
recording that outgrows memory stalls. Blocks that are aligned go straight to the disk instead, into
room that was set aside before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

from weft.store.dtypes import Bytes
from weft.store.upload import FLAGS, FileUpload, write_all

BLOCK = 1 << 22
"""Bytes that are collected, and written at a time."""

AHEAD = 1 << 26
"""Bytes that are set aside at a time."""

LEAST = 1 << 24
"""Bytes of a shard from which it pays."""

KNOWN = ("ext4", "xfs")
"""File systems where it was seen to pay."""


def pays(folder: Path, shard: int, count: int) -> bool:
    """Whether shards of so many bytes are better written past the cache, so many at a time."""
    return shard >= LEAST and count * BLOCK <= AHEAD and file_system(folder) in KNOWN


def file_system(path: Path) -> str | None:
    """The kind of file system that a folder is on, or will be; None where nobody knows."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        device = path.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        place, _, kind = line.partition(" - ")
        if place.split()[2] == wanted:
            return kind.split()[0]
    return None


@dataclass(slots=True)
class DirectUpload(FileUpload):
    """A file that is written aside in aligned blocks, past the cache.

    The last block, which is not full, and the index are written as usual.
    """

    file: int = -1
    block: mmap = field(default_factory=lambda: mmap(-1, BLOCK))
    filled: int = 0
    """Bytes in the block."""
    set_aside: int = 0

    def open(self) -> DirectUpload:
        """Open the file as it is written; OSError where it cannot be."""
        self.file = os.open(self.aside, os.O_WRONLY | os.O_DIRECT | FLAGS)
        self.filled = self.head
        return self

    @property
    def place(self) -> int:
        """Where the block goes."""
        return self.end - self.filled

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Collect buffers in blocks, and write those that are full."""
        for buffer in buffers:
            data = memoryview(buffer).cast("B")
            while len(data):
                count = min(BLOCK - self.filled, len(data))
                self.block[self.filled : self.filled + count] = data[:count]
                self.filled += count
                self.end += count
                data = data[count:]
                if self.filled == BLOCK:
                    self._push()

    def _push(self) -> None:
        """Write the block, which is full."""
        if self.end > self.set_aside:
            self._set_aside(self.end)
        data = memoryview(self.block)
        while data:
            count = os.pwrite(self.file, data, self.end - len(data))
            data = data[count:]
        self.filled = 0

    def _set_aside(self, least: int) -> None:
        wanted = -(-least // AHEAD) * AHEAD
        try:
            os.posix_fallocate(self.file, self.set_aside, wanted - self.set_aside)
        except OSError as error:  # less than that may still fit, or nothing can be set aside
            if error.errno not in (errno.ENOSPC, errno.EOPNOTSUPP, errno.EINVAL, errno.EFBIG):
                raise
        self.set_aside = wanted

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Let a copy be seen, the block that is not full with it."""
        rest = memoryview(self.block)[self.head if self.place < self.head else 0 : self.filled]
        return self._publish(max(self.place, self.head), [rest, *more], index)

    def finish(self, index: Bytes) -> None:
        """Write what is left and the index, give back what was set aside, and rename."""
        file = os.open(self.aside, os.O_WRONLY | FLAGS)
        try:
            write_all(file, self.place, [memoryview(self.block)[: self.filled]])
            os.ftruncate(file, self.end)
            self._complete(file, self.end, index)
        finally:
            os.close(file)
        self._shut()
        self._appear()

    def drop(self) -> None:
        """Close and remove the file aside."""
        self._shut()
        FileUpload.drop(self)

    def _shut(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
