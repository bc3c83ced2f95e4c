"""`FileUpload`: a file that is written aside, and appears when it is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from weft.store.dtypes import Bytes

MOST_BUFFERS = 512
"""Buffers in one write; systems allow 1,024."""

PIECE = 1 << 22
"""Bytes that are copied at a time."""

_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""What a system says that cannot copy inside itself."""

FLAGS = getattr(os, "O_CLOEXEC", 0)


@dataclass(slots=True)
class FileUpload:
    """A file that is written aside.

    It is open only while something is written: a store may have more shards begun than a process
    may have files.
    """

    aside: str
    final: str
    head: int
    """The bytes in front that are left for the index."""
    end: int
    fsync: bool

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there, with few calls."""
        file = os.open(self.aside, os.O_WRONLY | FLAGS)
        try:
            self.end = write_all(file, self.end, buffers)
        finally:
            os.close(file)

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Let a copy be seen: who has the file of before open goes on to read that."""
        return self._publish(self.end, more, index)

    def _publish(self, stop: int, more: Sequence[Bytes], index: Bytes) -> bool:
        """A copy of the file up to a place, with more behind it."""
        folder, _, name = self.final.rpartition("/")
        copy = f"{folder}/.{name}.published.partial"
        source = os.open(self.aside, os.O_RDONLY | FLAGS)
        target = os.open(copy, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | FLAGS, 0o666)
        try:
            _copy(source, target, self.head, stop)
            self._complete(target, write_all(target, stop, more), index)
        finally:
            os.close(source)
            os.close(target)
        os.replace(copy, self.final)
        self._sync_folder()
        return True

    def finish(self, index: Bytes) -> None:
        """Write the index, and rename the file."""
        file = os.open(self.aside, os.O_WRONLY | FLAGS)
        try:
            self._complete(file, self.end, index)
        finally:
            os.close(file)
        self._appear()

    def _complete(self, file: int, end: int, index: Bytes) -> None:
        write_all(file, 0 if self.head else end, [index])
        if self.fsync:
            os.fsync(file)

    def _appear(self) -> None:
        os.replace(self.aside, self.final)
        self._sync_folder()

    def _sync_folder(self) -> None:
        """A name is as safe as what it names, if that is asked for."""
        if self.fsync:
            folder = os.open(os.path.dirname(self.final), os.O_RDONLY | FLAGS)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def drop(self) -> None:
        """Remove the file aside, unless it is gone, and be it with its folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self.aside)


def write_all(file: int, start: int, buffers: Sequence[Bytes]) -> int:
    """Put buffers one behind the other from a place on; the place behind them."""
    for first in range(0, len(buffers), MOST_BUFFERS):
        part = [memoryview(b) for b in buffers[first : first + MOST_BUFFERS] if len(b)]
        while part:
            written = os.pwritev(file, part, start)
            start += written
            while part and written >= part[0].nbytes:
                written -= part.pop(0).nbytes
            if part and written:
                part[0] = part[0].cast("B")[written:]
    return start


def _copy(source: int, target: int, start: int, stop: int) -> None:
    """Bytes of a file to the same place of another; by reference where the file system can."""
    while start < stop:
        count = min(PIECE, stop - start)
        try:
            moved = _copied(source, target, count, start)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            moved = os.pwrite(target, os.pread(source, count, start), start)
        if not moved:
            raise OSError(f"the file that is copied ends at {start} B, before {stop} B")
        start += moved


def _copied(source: int, target: int, count: int, start: int) -> int:
    """Copy inside the system; not every one can."""
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "this system cannot copy inside itself")
    return os.copy_file_range(source, target, count, start, start)
