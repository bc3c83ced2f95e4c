"""Values as local files: written aside, and visible at once when they are whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.errors import WeftError
from weft.store.dtypes import Bytes
from weft.store.sink import Fetched

LOCK = ".weft.lock"
"""The file that a writer holds locked."""

MOST_BUFFERS = 512
"""Buffers in one write; systems allow 1,024."""

PIECE = 1 << 22
"""Bytes that are copied at a time."""

_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""What a system says that cannot copy inside itself."""

_FLAGS = getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as a `Sink`: a file for every key."""

    path: Path
    fsync: bool = False

    held = 0

    @property
    def url(self) -> str:
        """The path, as it was given."""
        return str(self.path)

    def lock(self) -> FileLock:
        """Be the only writer; the lock is gone with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        name = self.path / LOCK
        file = os.open(name, os.O_CREAT | os.O_RDWR | _FLAGS, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise WeftError(f"{self.path} is being written by somebody else") from None
        return FileLock(name, file)

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """A part of a file, and its size."""
        try:
            file = os.open(self.path / key, os.O_RDONLY | _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            size = os.fstat(file).st_size
            first = max(0, size + start) if start < 0 else start
            wanted = size - first if count is None else min(count, size - first)
            return Fetched(os.pread(file, max(0, wanted), first), size)
        finally:
            os.close(file)

    def fetch_spans(self, key: str, spans: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Several parts of a file."""
        file = os.open(self.path / key, os.O_RDONLY | _FLAGS)
        try:
            return [os.pread(file, count, start) for start, count in spans]
        finally:
            os.close(file)

    def put(self, key: str, data: Bytes) -> None:
        """A small file, new or in place of an old one, at once."""
        upload = self.upload(key, 0)
        upload.append([data])
        upload.finish(b"")

    def upload(self, key: str, head: int) -> FileUpload:
        """A file that is written aside."""
        final = self.path / key
        aside = final.with_name(f".{final.name}.partial")
        final.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | _FLAGS, 0o666))
        return FileUpload(aside, final, head, head, self.fsync)

    def keys(self, prefix: str) -> Iterator[str]:
        """The files below a folder, but for those that are written aside."""
        for file in sorted((self.path / prefix).rglob("*")):
            if not file.name.startswith(".") and file.is_file():
                yield file.relative_to(self.path).as_posix()

    def delete(self, key: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        file = self.path / key
        file.unlink(missing_ok=True)
        for parent in file.parents:
            if parent == self.path or any(parent.iterdir()):
                break
            parent.rmdir()

    def sweep(self) -> None:
        """Remove what a writer that was killed left aside."""
        for file in self.path.rglob(".*.partial"):
            file.unlink(missing_ok=True)

    def below(self, name: str) -> Folder:
        """A folder in the folder."""
        return Folder(self.path / name, self.fsync)


@dataclass(frozen=True, slots=True)
class FileLock:
    """A file that is locked as long as it is open."""

    name: Path
    file: int

    def release(self) -> None:
        """Let others write."""
        self.name.unlink(missing_ok=True)
        os.close(self.file)


@dataclass(slots=True)
class FileUpload:
    """A file that is written aside.

    It is open only while something is written: a store may have more shards begun than a process
    may have files.
    """

    aside: Path
    final: Path
    head: int
    """The bytes in front that are left for the index."""
    end: int
    fsync: bool

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there, with few calls."""
        file = os.open(self.aside, os.O_WRONLY | _FLAGS)
        try:
            self.end = _write(file, self.end, buffers)
        finally:
            os.close(file)

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Let a copy be seen: who has the file of before open goes on to read that."""
        copy = self.final.with_name(f".{self.final.name}.published.partial")
        source = os.open(self.aside, os.O_RDONLY | _FLAGS)
        target = os.open(copy, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | _FLAGS, 0o666)
        try:
            _copy(source, target, self.head, self.end)
            self._complete(target, _write(target, self.end, more), index)
        finally:
            os.close(source)
            os.close(target)
        copy.replace(self.final)
        return True

    def finish(self, index: Bytes) -> None:
        """Write the index, and rename the file."""
        file = os.open(self.aside, os.O_WRONLY | _FLAGS)
        try:
            self._complete(file, self.end, index)
        finally:
            os.close(file)
        self.aside.replace(self.final)

    def _complete(self, file: int, end: int, index: Bytes) -> None:
        _write(file, 0 if self.head else end, [index])
        if self.fsync:
            os.fsync(file)

    def drop(self) -> None:
        """Remove the file aside."""
        self.aside.unlink(missing_ok=True)


def _write(file: int, start: int, buffers: Sequence[Bytes]) -> int:
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
            moved = os.copy_file_range(source, target, count, start, start)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            moved = os.pwrite(target, os.pread(source, count, start), start)
        if not moved:
            raise OSError(f"the file that is copied ends at {start} B, before {stop} B")
        start += moved
