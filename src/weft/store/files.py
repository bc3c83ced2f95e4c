"""`Folder`: values as local files, written beside their place and renamed when they are complete.

Large shards on a disk bypass the page cache. What is written through the cache is copied there and
written back when the system decides: a recording that outgrows memory stalls. Aligned blocks go
straight to the disk instead, into space that was allocated before.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path, PurePath
from typing import Literal
from uuid import uuid4

from weft.store.dtypes import Bytes
from weft.store.lock import FileLock
from weft.store.sink import Fetched, SinkError, StoreEntry
from weft.values import freeze

MAX_BUFFERS = 512
"""Buffers of one write; systems allow 1,024."""

COPY_BYTES = 1 << 22
"""Bytes that are copied at a time."""

_NO_COPY_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""The errors of systems that cannot copy between files."""

FLAGS = getattr(os, "O_CLOEXEC", 0)


@dataclass(slots=True)
class FileUpload:
    """A file that is written beside its place, and renamed when it is complete.

    It stays open, unless many files are: a store may have more unfinished shards than a process
    may have open files.
    """

    unfinished: str
    final: str
    head: int
    """The bytes at the start that are left for the index."""
    end: int
    fsync: bool
    file: int = -1
    """The open file, if it is open."""

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Append buffers, with few calls."""
        if self.file < 0:
            self.file = os.open(self.unfinished, os.O_WRONLY | FLAGS)
        try:
            self.end = write_all(self.file, self.end, buffers)
        finally:
            if not _may_stay_open(self.file):
                self._shut()

    def _shut(self) -> None:
        """Close the file, if it is open."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        self._shut()

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Make a copy visible: readers that have the earlier file open go on reading it."""
        return self._publish(self.end, more, index)

    def _publish(self, stop: int, more: Sequence[Bytes], index: Bytes) -> bool:
        """Make a copy of the file up to a place visible, with more bytes after it."""
        folder, _, name = self.final.rpartition("/")
        copy = f"{folder}/.{name}.published.partial"
        source = os.open(self.unfinished, os.O_RDONLY | FLAGS)
        target = os.open(copy, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | FLAGS, 0o666)
        try:
            _copy(source, target, self.head, stop)
            self._complete(target, write_all(target, stop, more), index)
            os.replace(copy, self.final)
        except BaseException:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(copy)
            raise
        finally:
            os.close(source)
            os.close(target)
        self._sync_folder()
        return True

    def finish(self, index: Bytes) -> None:
        """Write the index, and rename the file."""
        self._shut()
        file = os.open(self.unfinished, os.O_WRONLY | FLAGS)
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
        os.replace(self.unfinished, self.final)
        self._sync_folder()

    def _sync_folder(self) -> None:
        """Make a new name as durable as its file, with `fsync`."""
        if self.fsync:
            folder = os.open(os.path.dirname(self.final), os.O_RDONLY | FLAGS)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Remove the unfinished file, unless it, or its folder, is gone."""
        self._shut()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self.unfinished)


def _may_stay_open(file: int) -> bool:
    """Return whether few files are open: each gets the lowest number that is free."""
    try:
        import resource
    except ImportError:  # on Windows
        return False
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or file < limit // 4


def write_all(file: int, start: int, buffers: Sequence[Bytes]) -> int:
    """Write buffers one after the other from a place on; return where they end."""
    for first in range(0, len(buffers), MAX_BUFFERS):
        part = buffers[first : first + MAX_BUFFERS]
        left = sum(map(len, part))
        while left:
            written = os.pwritev(file, part, start)
            start, left = start + written, left - written
            if left:
                part = _after(part, written)
    return start


def _after(buffers: Sequence[Bytes], count: int) -> list[Bytes]:
    """Return what follows the first bytes of buffers."""
    views = deque(memoryview(buffer).cast("B") for buffer in buffers)
    while count >= len(views[0]):
        count -= len(views.popleft())
    views[0] = views[0][count:]
    return list(views)


def _copy(source: int, target: int, start: int, stop: int) -> None:
    """Copy bytes of a file to the same place of another; by reference where possible."""
    while start < stop:
        count = min(COPY_BYTES, stop - start)
        try:
            moved = _copied(source, target, count, start)
        except OSError as error:
            if error.errno not in _NO_COPY_RANGE:
                raise
            moved = os.pwrite(target, os.pread(source, count, start), start)
        if not moved:
            raise OSError(f"the file that is copied ends at {start} B, before {stop} B")
        start += moved


def _copied(source: int, target: int, count: int, start: int) -> int:
    """Copy in the kernel; not every system can."""
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "this system cannot copy between files")
    return os.copy_file_range(source, target, count, start, start)


BLOCK = 1 << 22
"""Bytes that are written at a time."""

AHEAD = 1 << 26
"""Bytes of disk space that are allocated at a time."""

MAX_DIRECT = AHEAD // BLOCK
"""Files that bypass the page cache at a time, of all arrays: each has a block in memory."""

MIN_DIRECT = 1 << 24
"""Bytes of a shard from which bypassing the page cache pays."""

DIRECT_SYSTEMS = ("ext4", "xfs")
"""File systems where that was measured."""


def direct_pays(folder: Path, shard: int, count: int) -> bool:
    """Return whether shards of `shard` bytes, `count` at a time, should bypass the page cache."""
    return shard >= MIN_DIRECT and count * BLOCK <= AHEAD and file_system(folder) in DIRECT_SYSTEMS


def file_system(path: Path) -> str | None:
    """Return the kind of file system of a folder, which need not exist; None if unknown."""
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


_DIRECT = [0]
_DIRECT_LOCK = threading.Lock()


def _count_direct(change: int) -> int:
    """Return the number of open files that bypass the page cache, after a change."""
    with _DIRECT_LOCK:
        _DIRECT[0] += change
        return _DIRECT[0]


@dataclass(slots=True)
class DirectUpload(FileUpload):
    """A file that is written in aligned blocks, past the page cache.

    The last block, which is not full, and the index are written as usual.
    """

    block: mmap = field(default_factory=lambda: mmap(-1, BLOCK))
    filled: int = 0
    """Bytes in the block."""
    allocated: int = 0

    def open(self) -> DirectUpload:
        """Open the file for direct writes; OSError where that is not possible."""
        self.file = os.open(self.unfinished, os.O_WRONLY | os.O_DIRECT | FLAGS)
        self.filled = self.head
        _count_direct(1)
        return self

    def _shut(self) -> None:
        if self.file >= 0:
            _count_direct(-1)
        FileUpload._shut(self)

    @property
    def place(self) -> int:
        """Where the block goes."""
        return self.end - self.filled

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Collect buffers in blocks, and write full ones."""
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
        if self.end > self.allocated:
            self._allocate(self.end)
        data = memoryview(self.block)
        while data:
            count = os.pwrite(self.file, data, self.end - len(data))
            data = data[count:]
        self.filled = 0

    def _allocate(self, least: int) -> None:
        wanted = -(-least // AHEAD) * AHEAD
        try:
            os.posix_fallocate(self.file, self.allocated, wanted - self.allocated)
        except OSError as error:  # less may still fit, or the file system cannot allocate
            if error.errno not in (errno.ENOSPC, errno.EOPNOTSUPP, errno.EINVAL, errno.EFBIG):
                raise
        self.allocated = wanted

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Make a copy visible, with the block that is not full."""
        rest = memoryview(self.block)[self.head if self.place < self.head else 0 : self.filled]
        return self._publish(max(self.place, self.head), [rest, *more], index)

    def finish(self, index: Bytes) -> None:
        """Write the rest and the index, free the space that was allocated, and rename."""
        file = os.open(self.unfinished, os.O_WRONLY | FLAGS)
        try:
            write_all(file, self.place, [memoryview(self.block)[: self.filled]])
            os.ftruncate(file, self.end)
            self._complete(file, self.end, index)
        finally:
            os.close(file)
        self._shut()
        self._appear()


LOCK = ".weft.lock"
"""The file that a writer holds locked."""

UNFINISHED = re.compile(
    r"\.(?:zarr\.json|\.weft\.replaced|c?[\d.]*|\d+\.jsonl)\.(?:[0-9a-f]{12}|published)\.partial"
)
"""The names of unfinished files of `upload` and `publish`."""

_SHARDS = re.compile(r"(?:c?(?:/\d+)*|\d+(?:/\d+)*|frames)")
"""The folders of an array's shards and frames, but not those of arrays below it."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as a `Sink`: a file for every key.

    A relative path counts from the working directory of the moment, and is not looked up again.
    """

    path: Path
    fsync: bool = False
    is_direct: bool = False
    """Whether shards bypass the page cache."""
    url: str = field(default="", compare=False)
    """The path, as it was given."""
    held: FileLock | None = field(default=None, compare=False)
    """The lock of the writer: once it is lost, nothing is put and no folder is created."""

    def __post_init__(self) -> None:
        freeze(self, path=self.path.absolute(), url=self.url or str(self.path))

    def __reduce__(self) -> tuple[object, ...]:
        return Folder, (self.path, self.fsync, self.is_direct)

    @property
    def buffered(self) -> int:
        """The bytes of a block that is collected."""
        return BLOCK if self.is_direct else 0

    def check_writable(self) -> None:
        """Do nothing: a write to a read-only folder fails with an error."""

    def lock(self) -> FileLock:
        """Become the only writer; the lock ends with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / LOCK, what=self.url)

    def held_by(self, lock: FileLock) -> Folder:
        """Return the folder for the writer that holds its lock."""
        return replace(self, held=lock)

    def _check_held(self) -> None:
        """Refuse to write what its writer no longer has for itself."""
        if self.held is not None and self.held.is_lost:
            raise SinkError(
                f"{self.url} was removed or replaced while it was written: its lock file, {LOCK}, "
                f"is gone"
            )

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """Return a part of a file, and its size."""
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

    def put(self, key: str, data: Bytes) -> None:
        """Write a small file, new or existing, atomically."""
        self._check_held()
        upload = replace(self, is_direct=False).upload(key, 0)
        try:
            upload.append([data])
            upload.finish(b"")
        except BaseException:
            upload.discard()
            raise

    def upload(self, key: str, head: int) -> FileUpload:
        """Begin a file; another writer of the same key has an unfinished file of its own."""
        final = f"{self.path}/{key}"
        folder, _, name = final.rpartition("/")
        unfinished = f"{folder}/.{name}.{uuid4().hex[:12]}.partial"
        try:
            _create_file(unfinished)
        except FileNotFoundError:
            self._check_held()
            os.makedirs(folder, exist_ok=True)
            _create_file(unfinished)
        if self.is_direct and head < BLOCK and _count_direct(0) < MAX_DIRECT:
            return DirectUpload(unfinished, final, head, head, self.fsync).open()
        return FileUpload(unfinished, final, head, head, self.fsync)

    def tuned(self, shard: int, count: int, direct: bool | None) -> Folder:
        """Return the folder, bypassing the page cache where that pays for such shards."""
        is_direct = direct_pays(self.path, shard, count) if direct is None else direct
        return replace(self, is_direct=is_direct)

    def keys(self, prefix: str) -> Iterator[str]:
        """Return the files below a folder, except hidden and unfinished ones."""
        top = self.path / prefix
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if not file.name.startswith(".") and file.is_file():
                yield file.relative_to(self.path).as_posix()

    def walk(self, prefix: str) -> Iterator[StoreEntry]:
        """Return everything below a folder; links are reported, and never followed."""
        top = self.path / prefix
        try:
            mode = (top.lstat() if prefix else top.stat()).st_mode
            if stat.S_ISDIR(mode):
                yield from _entries(str(top), prefix)
            else:
                yield StoreEntry(prefix, _kind(mode))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise SinkError(f"{top} cannot be listed: {error.strerror}") from None

    def folders(self) -> list[str]:
        """Return the names of the folders directly in this one, sorted; links are followed."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise SinkError(f"{self.path} cannot be listed: {error.strerror}") from None

    @property
    def is_link(self) -> bool:
        """Whether the path is a symbolic link."""
        return self.path.is_symlink()

    def absent(self) -> list[Path]:
        """Return the folders that locking would create, the innermost first."""
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
            with suppress(OSError):  # it is not empty, or gone
                os.rmdir(self.path / folder)

    def sweep(self) -> None:
        """Remove the unfinished files of a writer that was killed, by their names."""
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return
        for top in names:
            if top in ("c", "frames") or top.isdigit() or UNFINISHED.fullmatch(top):
                for key, kind in self.walk(top):
                    folder, _, name = key.rpartition("/")
                    is_shard = _SHARDS.fullmatch(folder) is not None
                    if is_shard and kind == "value" and UNFINISHED.fullmatch(name):
                        self.remove([key])

    def below(self, name: str) -> Folder:
        """Return a folder in the folder."""
        return replace(self, path=self.path / name, url=str(PurePath(self.url, name)), held=None)


def file_identity(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells a file from another, or from itself before it was written again."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _entries(folder: str, key: str) -> Iterator[StoreEntry]:
    """Yield everything below a folder, in the order of names; the folder if it is empty."""
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    if key and not entries:
        yield StoreEntry(key, "folder")
    for entry in entries:
        name = f"{key}/{entry.name}" if key else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, name)
        else:
            yield StoreEntry(name, _kind(entry.stat(follow_symlinks=False).st_mode))


def _kind(mode: int) -> Literal["value", "link", "other"]:
    if stat.S_ISREG(mode):
        return "value"
    return "link" if stat.S_ISLNK(mode) else "other"


def _create_file(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | FLAGS, 0o666))
