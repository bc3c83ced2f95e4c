"""Uploads of objects: in parts as bytes come, or from a file when all of them are there."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes
from weft.store.objects.faults import SinkError, told


@dataclass(slots=True)
class Line:
    """What is known of the way to a server, by all the uploads that take it."""

    is_cut: bool = False
    """Whether a request to forget an upload failed; no others are tried then."""


@dataclass(slots=True)
class ObjectUpload:
    """An object whose parts leave as they fill, and that is seen when it is finished."""

    name: str
    """What messages call it."""
    file: Any
    """Obstore's writer, None when it is done."""
    part_size: int
    check: Callable[[], None]
    """Refuses where another may write."""
    line: Line
    filled: int = 0
    """The bytes of the part that is being filled."""
    has_failed: bool = False

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there, and wait while too many parts are on their way."""
        if self.has_failed or self.file is None:
            # Obstore's writer would begin another object.
            raise SinkError(f"{self.name}: the upload has ended")
        self.has_failed = True
        with told(self.name):
            for buffer in buffers:
                self._write(buffer)
        self.has_failed = False

    def _write(self, buffer: Bytes) -> None:
        """Never over the end of a part: that would begin one more before another has left.

        Obstore keeps what it is given as it is, so that what may change is copied.
        """
        if isinstance(buffer, bytes) and len(buffer) <= self.part_size - self.filled:
            return self._push(buffer)
        left = flat(buffer)
        while len(left):
            piece = bytes(left[: self.part_size - self.filled])
            left = left[len(piece) :]
            self._push(piece)
        return None

    def _push(self, piece: bytes) -> None:
        self.file.write(piece)
        self.filled = (self.filled + len(piece)) % self.part_size

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """False: an object is whole, or not there."""
        return False

    def finish(self, index: Bytes) -> None:
        """The index and the last part; if that fails, the server is told to forget the others."""
        self.check()
        self.append([index])
        file, self.file = self.file, None
        with told(self.name):
            file.close()

    def drop(self) -> None:
        """Let the server forget the parts, if it can be told."""
        file, self.file = self.file, None
        if file is None or self.line.is_cut:
            return
        try:
            file.__exit__(WeftError, None, None)
        except (needed("obstore.exceptions", "store").BaseError, OSError):
            # After this one, others would wait as long, one behind the other.
            self.line.is_cut = True


@dataclass(slots=True)
class SpooledUpload:
    """An object whose index comes last and lies in front: a file keeps the rest until then."""

    name: str
    head: int
    file: IO[bytes]
    """Without a name, in the folder for temporary files."""
    begin: Callable[[], ObjectUpload]

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there."""
        if self.file.closed:
            raise SinkError(f"{self.name}: the upload has ended")
        try:
            self.file.writelines(buffers)
        except OSError as error:
            raise SinkError(
                f"{self.name}: the temporary file: {error.strerror}",
                hint="TMPDIR says where it is; an index at the end needs no file",
            ) from error

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """False: an object is whole, or not there."""
        return False

    def finish(self, index: Bytes) -> None:
        """The index, and the file behind it."""
        if len(index) != self.head:
            raise WeftError(f"{self.name}: an index of {len(index)} B, and {self.head} B for it")
        self.append([])
        upload = self.begin()
        try:
            upload.append([index, _mapped(self.file)])
            upload.finish(b"")
        finally:
            upload.drop()
            self.file.close()

    def drop(self) -> None:
        """Forget the file."""
        with suppress(OSError):  # what is left to be written
            self.file.close()


def flat(data: Bytes) -> memoryview:
    """A buffer as bytes, one behind the other."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _mapped(file: IO[bytes]) -> memoryview:
    """What is in a file, without memory of our own; it is unmapped when nobody looks at it."""
    file.flush()
    if not file.tell():
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
