"""Values as local files: written aside, and visible at once when they are whole."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal
from uuid import uuid4

from weft.store.direct import BLOCK, DirectUpload, pays
from weft.store.dtypes import Bytes
from weft.store.lock import FileLock
from weft.store.objects.faults import SinkError
from weft.store.sink import Entry, Fetched
from weft.store.upload import FLAGS, FileUpload

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
