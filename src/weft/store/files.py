"""`FileUpload`: a file that is written aside, and appears when it is whole.

Files written past the page cache, where that is quicker: large shards on a disk.

What is written through the cache is copied there, and written back by the system when it likes: a
recording that outgrows memory stalls. Blocks that are aligned go straight to the disk instead, into
room that was set aside before.

Values as local files: written aside, and visible at once when they are whole.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path, PurePath
from typing import Literal
from uuid import uuid4

from weft.store.dtypes import Bytes
from weft.store.lock import FileLock
from weft.store.objects.errors import SinkError
from weft.store.sink import Entry, Fetched

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


LOCK = ".weft.lock"
"""The file that a writer holds locked."""

UNFINISHED = re.compile(
    r"\.(?:zarr\.json|\.weft\.replaced|c?[\d.]*)\.(?:[0-9a-f]{12}|published)\.partial"
)
"""How `upload` and `publish` call a file that is not finished."""

_SHARDS = re.compile(r"(?:c?(?:/\d+)*|\d+(?:/\d+)*)")
"""The folders in which an array has its shards; not those of arrays below it."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as a `Sink`: a file for every key."""

    path: Path
    fsync: bool = False
    is_direct: bool = False
    """Whether shards are written past the page cache."""

    def __reduce__(self) -> tuple[object, ...]:
        # Who it is sent to may work in another folder.
        return Folder, (self.path.absolute(), self.fsync, self.is_direct)

    @property
    def held(self) -> int:
        """The bytes of a block that is collected."""
        return BLOCK if self.is_direct else 0

    @property
    def url(self) -> str:
        """The path, as it was given."""
        return str(self.path)

    def check_writable(self) -> None:
        """Folders can be written; the system says so where one cannot."""

    def lock(self) -> FileLock:
        """Be the only writer; the lock is gone with the process, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / LOCK, what=str(self.path))

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """A part of a file, and its size."""
        try:
            return self._fetch(self.path / key, start, count)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SinkError(f"{self.path / key} cannot be read: {error.strerror}") from None

    def _fetch(self, path: Path, start: int, count: int | None) -> Fetched:
        file = os.open(path, os.O_RDONLY | FLAGS)
        try:
            size = os.fstat(file).st_size
            first = max(0, size + start) if start < 0 else start
            wanted = size - first if count is None else min(count, size - first)
            return Fetched(os.pread(file, max(0, wanted), first), size)
        finally:
            os.close(file)

    def fetch_spans(self, key: str, spans: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Several parts of a file."""
        file = os.open(self.path / key, os.O_RDONLY | FLAGS)
        try:
            return [os.pread(file, count, start) for start, count in spans]
        finally:
            os.close(file)

    def put(self, key: str, data: Bytes) -> None:
        """A small file, new or in place of an old one, at once."""
        upload = replace(self, is_direct=False).upload(key, 0)
        upload.append([data])
        upload.finish(b"")

    def upload(self, key: str, head: int) -> FileUpload:
        """A file that is written aside; whoever else writes the same key has a file of its own."""
        final = f"{self.path}/{key}"
        folder, _, name = final.rpartition("/")
        aside = f"{folder}/.{name}.{uuid4().hex[:12]}.partial"
        try:
            _make(aside)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            _make(aside)
        if self.is_direct and head < BLOCK:
            return DirectUpload(aside, final, head, head, self.fsync).open()
        return FileUpload(aside, final, head, head, self.fsync)

    def suited(self, shard: int, count: int, direct: bool | None) -> Folder:
        """The folder for shards of so many bytes, so many at a time; past the cache if it pays."""
        is_direct = pays(self.path, shard, count) if direct is None else direct
        return replace(self, is_direct=is_direct)

    def keys(self, prefix: str) -> Iterator[str]:
        """The files below a folder, but for those that are written aside."""
        top = self.path / prefix
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if not file.name.startswith(".") and file.is_file():
                yield file.relative_to(self.path).as_posix()

    def walk(self, prefix: str) -> Iterator[Entry]:
        """Everything below a folder; links are reported, and never followed."""
        top = self.path / prefix
        try:
            mode = (top.lstat() if prefix else top.stat()).st_mode
            if stat.S_ISDIR(mode):
                yield from _entries(str(top), prefix)
            else:
                yield Entry(prefix, _kind(mode))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise SinkError(f"{top} cannot be listed: {error.strerror}") from None

    @property
    def is_link(self) -> bool:
        """Whether the path is a symbolic link."""
        return self.path.is_symlink()

    def absent(self) -> list[Path]:
        """The folders that locking would create, the innermost first."""
        return [path for path in (self.path, *self.path.parents) if not os.path.lexists(path)]

    def delete(self, key: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        self.remove([key])

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files, and the folders that are empty without them."""
        for key in keys:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self.path / key)
        above = {parent for key in keys for parent in PurePath(key).parents if parent.name}
        for folder in sorted(above, key=lambda path: -len(path.parts)):
            with suppress(OSError):  # it holds something else, or is gone
                os.rmdir(self.path / folder)

    def sweep(self) -> None:
        """Remove the unfinished files of a writer that was killed, known by their names."""
        try:
            with os.scandir(self.path) as found:
                names = [entry.name for entry in found]
        except (FileNotFoundError, NotADirectoryError):
            return
        for top in names:
            if top == "c" or top.isdigit() or UNFINISHED.fullmatch(top):
                for key, kind in self.walk(top):
                    folder, _, name = key.rpartition("/")
                    is_shard = _SHARDS.fullmatch(folder) is not None
                    if is_shard and kind == "value" and UNFINISHED.fullmatch(name):
                        self.remove([key])

    def below(self, name: str) -> Folder:
        """A folder in the folder."""
        return replace(self, path=self.path / name)


def _entries(folder: str, key: str) -> Iterator[Entry]:
    """Everything below a folder, in the order of names; a folder itself if it is empty."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    if key and not entries:
        yield Entry(key, "folder")
    for entry in entries:
        name = f"{key}/{entry.name}" if key else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, name)
        else:
            yield Entry(name, _kind(entry.stat(follow_symlinks=False).st_mode))


def _kind(mode: int) -> Literal["value", "link", "other"]:
    if stat.S_ISREG(mode):
        return "value"
    return "link" if stat.S_ISLNK(mode) else "other"


def _make(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | FLAGS, 0o666))
