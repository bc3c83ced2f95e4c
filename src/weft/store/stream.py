"""`Stream`: several named arrays of one source, in a group."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from weft.errors import WeftError
from weft.store.attributes import Attributes, lock_and_change, node_attributes
from weft.store.buffers import memory_together
from weft.store.create import continue_array, create
from weft.store.hierarchy import member_of, read_node, sink_of, write_group
from weft.store.json_data import as_attributes
from weft.store.metrics import Metrics
from weft.store.sink import Sink, Url, writing
from weft.store.target import check_target
from weft.store.writer import Closeable, Writer


class Stream(Closeable):
    """Arrays that are recorded together, each at its own rate; used in a `with` block.

    >>> import numpy as np, tempfile, weft.store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Stream(f"{folder}/run.zarr", attributes={"sample": 7}) as stream:
    ...         _ = stream.create("camera", (None, 4, 4), "uint8", (1, 4, 4))
    ...         _ = stream.create("stage/position", (None, 2), "float32", (16, 2))
    ...         for step in range(3):
    ...             stream.append({
    ...                 "camera": np.full((4, 4), step, "uint8"),
    ...                 "stage/position": np.array([[step, 0]], "float32"),
    ...             })
    ...     print(weft.store.open(f"{folder}/run.zarr/stage/position").read()[:, 0])
    [0. 1. 2.]
    """

    def __init__(
        self,
        url: Url | Sink,
        *,
        attributes: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._sink = sink_of(url, options=options)
        self.url = self._sink.url
        self.writers: dict[str, Writer] = {}
        self._turn = threading.RLock()
        """Held by the thread that appends: others wait."""
        self._group("", as_attributes(attributes))

    def create(
        self,
        name: str,
        shape: Sequence[int | None],
        dtype: Any,
        chunks: Sequence[int],
        shards: Sequence[int] | None = None,
        **more: Any,
    ) -> Writer:
        """Create an array of the stream; the arguments are those of `weft.store.create`."""
        self._check(name)
        writer = create(self._at(name), shape, dtype, chunks, shards, **more)
        return self._add(name, writer)

    def open(self, name: str, **more: Any) -> Writer:
        """Open an existing array of the stream, to append to it."""
        self._check(name)
        return self._add(name, continue_array(self._at(name), **more))

    def _at(self, name: str) -> Sink:
        """Return where an array or a group of the stream is; the stream itself for no name."""
        return member_of(self._sink, name) if name else self._sink

    def _check(self, name: str) -> None:
        parts = name.split("/") if isinstance(name, str) else [""]
        if not all(parts) or "\0" in name or any(part.startswith((".", "__")) for part in parts):
            raise WeftError(f"{name!r} is not a name of an array")
        if name in self.writers:
            raise WeftError(f"{name!r} is an array of the stream already")
        for above in _groups_above(name):
            node = read_node(self._at(above))
            if node is not None and node.kind == "array":
                raise WeftError(f"{above!r} is an array of the stream, and holds no others")

    def _add(self, name: str, writer: Writer) -> Writer:
        """Add a writer, and create the groups that its array lies in."""
        self.writers[name] = writer
        for above in _groups_above(name):
            self._group(above, {})
        return writer

    def _group(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Create a group, or add attributes to one that exists.

        Consolidated metadata are removed: they would hide new members.
        """
        sink = self._at(name)
        with writing(sink.url):
            node = read_node(sink)
            if node is None:
                if not name:
                    check_target(sink, False)
                write_group(sink, attributes)
            elif node.kind == "array":
                raise WeftError(f"{sink.url} is an array, not a group")
            elif attributes or node.consolidated is not None:
                lock_and_change(sink, lambda existing: existing.update(attributes))

    @property
    def attrs(self) -> Attributes:
        """The attributes of the group, which can be changed at any time."""
        return node_attributes(self._sink)

    def append(
        self, blocks: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Append frames to each of the named arrays: to all of them, or to none.

        `metadata` has those of frames, by the names of arrays, as `Writer.append` takes them. If
        one array refuses its frames, nothing is appended to the others. If writing fails (a full
        disk), what this call appended does not count, and the arrays take no more.
        """
        if not isinstance(blocks, Mapping):
            raise WeftError(f"expected frames by the names of arrays, got {type(blocks).__name__}")
        given = metadata or {}
        unknown = [name for name in given if name not in blocks]
        if unknown:
            raise WeftError(f"metadata for {unknown[0]!r}, to which no frame is appended")
        with self._turn:
            checked = {}
            for name, block in blocks.items():
                values, level = self[name].check_frames(block)
                texts = self[name].check_metadata(given.get(name), values)
                checked[name] = values, level, texts
            with self._all_or_none(checked):
                for name, each in checked.items():
                    self[name].append_checked(*each)

    @contextmanager
    def _all_or_none(self, names: Iterable[str]) -> Iterator[None]:
        """Take back what a block of code appended, if it fails or is interrupted."""
        before = {name: self[name].elements for name in names}
        try:
            yield
        except BaseException:
            for name, elements in before.items():
                self[name].retract(elements)
            raise

    def skip(self, frames: int | Mapping[str, int] = 1) -> None:
        """Count frames that were dropped: the same number in every array, or one for each name.

        They are counted in all of them, or in none.
        """
        counts = dict(frames) if isinstance(frames, Mapping) else dict.fromkeys(self, frames)
        with self._turn:
            for name, count in counts.items():
                self[name].check_skip(count)
            with self._all_or_none(counts):
                for name, count in counts.items():
                    self[name].skip(count)

    def __getitem__(self, name: str) -> Writer:
        try:
            return self.writers[name]
        except KeyError:
            known = ", ".join(self.writers) or "none"
            raise WeftError(f"the stream has no array {name!r}", hint=f"it has {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.writers)

    def flush(self) -> None:
        """Make all frames that were appended visible."""
        with self._turn:
            for writer in self.writers.values():
                writer.flush()

    @property
    def safe(self) -> dict[str, int]:
        """For each array the frames that readers see now, and after a crash."""
        return {name: writer.safe for name, writer in self.writers.items()}

    def memory(self) -> int:
        """Return the most bytes that all arrays buffer together."""
        return memory_together(
            use for writer in self.writers.values() for use in writer.memory_uses()
        )

    def metrics(self) -> dict[str, Metrics]:
        """Return the metrics of each array."""
        return {name: writer.metrics() for name, writer in self.writers.items()}

    def close(self) -> None:
        """Close every array, even if closing others fails."""
        with self._turn, ExitStack() as stack:
            for writer in self.writers.values():
                stack.callback(writer.close)


def _groups_above(name: str) -> list[str]:
    """Return the names of the groups that an array lies in, the outermost, "", first.

    >>> _groups_above("stage/position/x")
    ['', 'stage', 'stage/position']
    """
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts))]
