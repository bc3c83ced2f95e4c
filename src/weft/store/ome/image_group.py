"""`ImageGroupWriter`: creates and continues the images of a group: a plate, or a collection."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from weft.errors import WeftError
from weft.store.buffers import memory_together
from weft.store.create import locked
from weft.store.hierarchy import group_json, member_of, pending
from weft.store.ome.image import ImageWriter, create_image, is_empty_image, open_image
from weft.store.sink import Lock, Sink
from weft.store.target import check_target, recover, replace
from weft.store.writer import AutoClosed

_NEEDED = ("shape", "dtype", "chunks", "axes")
"""The arguments without which no image can be created."""


@contextmanager
def new_group(sink: Sink, document: Mapping[str, Any], *, overwrite: bool) -> Iterator[Lock]:
    """Lock a place and write a group there, pending until it has an image; yield the lock."""
    check_target(sink, overwrite)
    with locked(sink) as lock:
        recover(sink)
        check_target(sink, overwrite)
        replace(sink, group_json(pending(document)))
        yield lock


class ImageGroupWriter(AutoClosed):
    """Images below one group, each with a writer of its own; any thread may create them.

    One that is never closed is closed when it is dropped or the interpreter exits, with a
    `ResourceWarning`.
    """

    def __init__(self, sink: Sink, image: Mapping[str, Any], lock: Lock) -> None:
        self.url, self._sink, self._image = sink.url, sink, dict(image)
        self._store_lock, self.is_open = lock, True
        self._writers: dict[str, ImageWriter] = {}
        """The images that were created or continued, by path."""
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """The address of the group."""
        return self.url

    def _check_open(self) -> None:
        if not self.is_open:
            raise WeftError(f"{self.url} is closed: no image can be added")

    def _create(self, path: str, options: Mapping[str, Any]) -> ImageWriter:
        """Create an image that is not listed yet.

        A writer that was killed may have left it, still empty; then it is replaced.
        """
        sink, arguments = member_of(self._sink, path), self._image | dict(options)
        if missing := [key for key in _NEEDED if key not in arguments]:
            raise WeftError(
                f"{sink.url}: a new image needs {', '.join(missing)}",
                hint=f"give them here, or for all images where {self.url} is created or opened",
            )
        if is_empty_image(sink):
            arguments["overwrite"] = True
        writer = create_image(sink, **arguments)
        writer.unwatch()
        return writer

    def _continue(self, path: str) -> ImageWriter:
        """Return the writer of a listed image: the one that is open, or one that continues it."""
        writer = self._writers.get(path)
        if writer is None or not writer.is_open:
            self._check_open()
            threads = self._image.get("threads")
            writer = open_image(member_of(self._sink, path), "a", threads=threads)
            writer.unwatch()
            self._writers[path] = writer
        return writer

    def flush(self) -> None:
        """Make all frames that were appended visible; no other thread may append meanwhile."""
        for writer in self._open_writers().values():
            writer.flush()

    def close(self) -> None:
        """Close all images, even if closing others fails."""
        with self._lock, ExitStack() as closing:
            if not self.is_open:
                return
            self.is_open = False
            self.unwatch()
            closing.callback(self._store_lock.release)
            closing.callback(self._closed)
            for writer in self._writers.values():
                closing.callback(writer.close)

    def _closed(self) -> None:
        """Write what can be written once all images are closed."""

    def memory(self) -> int:
        """Return the most bytes that the open images buffer together."""
        return memory_together(
            use for writer in self._open_writers().values() for use in writer.memory_uses()
        )

    @property
    def safe(self) -> dict[str, int]:
        """For each image that was created or continued, by path, the frames that are safe."""
        return {path: writer.safe for path, writer in self._writers.items()}

    def _open_writers(self) -> dict[str, ImageWriter]:
        with self._lock:
            return {path: one for path, one in self._writers.items() if one.is_open}
