"""`ZipArchive`: the values of a zip store (`a.zarr.zip`, `a.ozx`), to read.

An archive lists its entries once. Those that are stored as they are, as Zarr's writers store them,
are read in parts; those that are deflated are read whole, and the last one is kept.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo, is_zipfile

from weft.store.decompress import inflate
from weft.store.dtypes import Bytes
from weft.store.files import file_identity
from weft.store.sink import Fetched, Sink, SinkError, StoreEntry

MAX_DEFLATED = 1 << 31
"""The most bytes of an entry that is read whole."""

MAX_OPEN = 16
"""Archives that a process keeps open, the last used."""

_HEADER = 30
"""Bytes of the header of an entry before its name."""


def split_archive(path: Path) -> tuple[Path, str] | None:
    """Return the zip archive that a path leads to or into, and the path inside; None for none.

    >>> split_archive(Path("no/archive")) is None
    True
    """
    path = path.absolute()
    for place in (path, *path.parents):
        if os.path.isdir(place):
            return None
        if os.path.isfile(place):
            inside = path.relative_to(place).as_posix()
            return (place, "" if inside == "." else f"{inside}/") if is_zipfile(place) else None
    return None


def is_torn_archive(path: Path) -> bool:
    """Return whether a file begins as an archive, and is none: it was not closed, or was cut."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04" and not is_zipfile(path)
    except OSError:
        return False


class _Directory:
    """An open archive and its entries by name."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.identity = file_identity(os.fstat(self.file))
        with os.fdopen(os.dup(self.file), "rb") as shared, ZipFile(shared) as archive:
            self.entries = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        self.below: dict[str, set[str]] = defaultdict(set)
        for name in self.entries:
            folder, _, rest = name.rpartition("/")
            while folder and rest not in self.below[f"{folder}/"]:
                self.below[f"{folder}/"].add(rest)
                folder, _, rest = folder.rpartition("/")
            self.below[""].add(name.partition("/")[0])
        self.last: tuple[str, bytes] = "", b""
        """The deflated entry that was read last, and its bytes."""

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)

    def read(self, entry: ZipInfo, start: int, stop: int) -> Bytes:
        """Return some bytes of an entry; all of them are compared with its checksum."""
        if entry.flag_bits & 1:
            raise SinkError("it is encrypted")
        if entry.compress_type == ZIP_STORED and entry.compress_size == entry.file_size:
            data: bytes = self._stored(entry, start, stop)
            return data if stop - start < entry.file_size else _checked(entry, data)
        if entry.compress_type != ZIP_DEFLATED:
            raise SinkError(f"method {entry.compress_type} of compression is not supported")
        if entry.file_size > MAX_DEFLATED:
            raise SinkError(f"deflated entries of up to {MAX_DEFLATED} B are read")
        name, whole = self.last
        if name != entry.filename:
            packed = self._stored(entry, 0, entry.compress_size)
            whole = _checked(entry, b"".join(inflate(packed, entry.file_size, -15)))
            self.last = entry.filename, whole
        return memoryview(whole)[start:stop]

    def _stored(self, entry: ZipInfo, start: int, stop: int) -> bytes:
        """Return bytes of an entry as they are stored, after its header."""
        head = os.pread(self.file, _HEADER, entry.header_offset)
        if len(head) < _HEADER or head[:4] != b"PK\x03\x04":
            raise SinkError("it has no header")
        names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        first, found = entry.header_offset + _HEADER + names + start, b""
        while len(found) < stop - start:
            more = os.pread(self.file, stop - start - len(found), first + len(found))
            if not more:
                raise SinkError("it is cut short")
            found += more
        return found


_ERRORS = (BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, OSError)
"""What the module `zipfile` raises for damaged archives; Weft's own errors are ValueErrors."""

_OPEN: dict[str, _Directory] = {}


@dataclass(frozen=True)
class ZipArchive(Sink):
    """A zip archive, or a folder in it, as a `Sink` to read."""

    path: Path
    """The archive."""
    prefix: str = ""
    """The folder in it, with a slash at its end."""
    url: str = ""

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """Return a part of an entry, and its size."""
        with self._errors(key):
            directory = self._directory()
            entry = directory.entries.get(self.prefix + key)
            if entry is None:
                return None
            size = entry.file_size
            first = max(0, size + start) if start < 0 else min(start, size)
            stop = size if count is None else min(first + count, size)
            return Fetched(directory.read(entry, first, stop) if stop > first else b"", size)

    def walk(self, prefix: str) -> Iterator[StoreEntry]:
        """Return everything below a folder."""
        with self._errors(prefix):
            names = sorted(self._directory().entries)
        top = self.prefix + prefix
        for name in names:
            if name == top or name.startswith(f"{top}/" if prefix else top):
                yield StoreEntry(name.removeprefix(self.prefix), "value")

    def folders(self) -> list[str]:
        """Return the names of the folders directly below, sorted."""
        with self._errors(""):
            below = self._directory().below
            return sorted(n for n in below.get(self.prefix, ()) if f"{self.prefix}{n}/" in below)

    def below(self, name: str) -> ZipArchive:
        """Return a folder in the archive."""
        return ZipArchive(self.path, f"{self.prefix}{name}/", f"{self.url}/{name}")

    def check_writable(self) -> None:
        """Refuse: archives are only read."""
        raise SinkError(f"{self.url}: zip stores are read, and not written", hint="unpack it")

    def put(self, key: str, data: Bytes) -> None:
        """Refuse, as `check_writable`."""
        self.check_writable()

    def delete(self, key: str) -> None:
        """Refuse, as `check_writable`."""
        self.check_writable()

    def sweep(self) -> None:
        """Refuse, as `check_writable`."""
        self.check_writable()

    def _directory(self) -> _Directory:
        """Return the archive as it is now, open."""
        known = _OPEN.pop(str(self.path), None)
        if known is None or known.identity != file_identity(self.path.stat()):
            known = _Directory(self.path)
        _OPEN[str(self.path)] = known  # the last to be dropped
        for oldest in list(_OPEN)[:-MAX_OPEN]:
            _OPEN.pop(oldest, None)
        return known

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Name the entry in errors of an archive."""
        try:
            yield
        except _ERRORS as error:
            text = (isinstance(error, OSError) and error.strerror) or error
            raise SinkError(f"{self.url}/{key}".rstrip("/") + f" cannot be read: {text}") from None


def _checked(entry: ZipInfo, data: bytes) -> bytes:
    if len(data) != entry.file_size or zlib.crc32(data) != entry.CRC:
        raise SinkError("it does not match its checksum")
    return data
