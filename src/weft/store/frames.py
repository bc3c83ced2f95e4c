"""Metadata of frames: written beside them by `FrameLog`, and read as a `FrameTable`.

The metadata of an array's frames are JSON lines, in segments `frames/0.jsonl`, `frames/1.jsonl`, …
beside its `zarr.json`. A line describes one frame, or frames that were dropped:

    {"frame": 12, "metadata": {"delta_t": 0.12, "position_x": 100.5}}
    {"frame": 13, "dropped": 2}
    {"segment": 0, "lines": 2, "crc32c": "1d6a7e0b"}

The last line of a segment has the CRC32C of the bytes before it. Only the last segment changes, as
a whole: it is written again with more lines, until it is large. Before `zarr.json` promises frames,
their lines are stored; the attribute `weft.frame_segments` then counts the segments. Lines of later
frames, which a writer that was killed left, do not count, and the next writer removes them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, overload

import numpy as np

from weft.errors import WeftError
from weft.store.chunk_layout import FrameLayout
from weft.store.codecs import checksum
from weft.store.json_data import as_json
from weft.store.metadata import Metadata, own_attributes
from weft.store.shard import ShardError
from weft.store.sink import Sink
from weft.store.threads import for_each
from weft.values import counted

FOLDER = "frames"
"""Where the segments of an array lie, beside its `zarr.json`."""

SEGMENTS = "frame_segments"
"""The field of the attribute "weft" that counts segments."""

SEGMENT_BYTES = 1 << 16
"""Bytes from which a segment is complete, and another one begins."""

MAX_RECORD = 1 << 20
"""The most bytes of one frame's metadata."""

MAX_SEGMENT = SEGMENT_BYTES + MAX_RECORD + 1024
"""The most bytes of a segment."""

MAX_SEGMENTS = 1 << 24

PLANE_KEYS = ("delta_t", "exposure_time", "position_x", "position_y", "position_z")
"""Names that OME has for the metadata of a plane: seconds, and micrometres of the stage."""


class FrameRecord(NamedTuple):
    """A line of a segment: the metadata of a frame, or some dropped frames."""

    frame: int
    metadata: Mapping[str, Any] | None
    """None for dropped frames."""
    dropped: int = 0

    def line(self) -> bytes:
        """Return the line."""
        if self.metadata is None:
            return dropped_line(self.frame, self.dropped)
        return metadata_line(self.frame, json.dumps(self.metadata, ensure_ascii=False))


def metadata_line(frame: int, text: str) -> bytes:
    """Return the line of a frame's metadata, given as JSON."""
    return b'{"frame": %d, "metadata": %s}\n' % (frame, text.encode())


def dropped_line(frame: int, count: int) -> bytes:
    """Return the line of dropped frames."""
    return b'{"frame": %d, "dropped": %d}\n' % (frame, count)


def check_metadata(given: Any, frames: int) -> list[str | None]:
    """Return the metadata of some frames as JSON, None for a frame without; refuse malformed ones.

    >>> check_metadata({"delta_t": 0.5}, 1), check_metadata([None, {}], 2)
    (['{"delta_t": 0.5}'], [None, '{}'])
    """
    each = [given] if isinstance(given, Mapping) else given
    if isinstance(each, str | bytes) or not isinstance(each, Sequence):
        kind = type(given).__name__
        raise WeftError(f"metadata of a frame is a mapping, and of several a list, got {kind}")
    if len(each) != frames:
        got = "one mapping" if isinstance(given, Mapping) else f"a list of {len(each)}"
        raise WeftError(
            f"the block has {counted(frames, 'frame')}, and its metadata is {got}",
            hint="pass a list with a mapping, or None, for each frame",
        )
    return [_checked(one, number, isinstance(given, Mapping)) for number, one in enumerate(each)]


def _checked(given: Any, number: int, is_one: bool) -> str | None:
    name = "metadata" if is_one else f"metadata[{number}]"
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise WeftError(f"{name}: expected a mapping, got {type(given).__name__}")
    try:
        text = json.dumps(as_json(given, name), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        if isinstance(error, WeftError):
            raise
        raise WeftError(f"{name} is not JSON: {error}") from None  # an endless integer
    if len(text.encode()) > MAX_RECORD:
        raise WeftError(f"{name} has {len(text.encode())} B; at most {MAX_RECORD} are stored")
    return text


# -- writing


class FrameLog:
    """The metadata of frames that are being appended, and which of them are stored."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.segments = 0
        """Segments that are stored."""
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Frames that are not promised yet, and their lines."""
        self._last: list[bytes] = []
        """The lines of the last segment, which is not complete."""
        self._size = 0
        self._is_stale = False
        """Whether the last segment is stored with other lines."""

    def add(self, frame: int, line: bytes) -> None:
        """Note the line of a frame, to be stored before the frame is promised."""
        self._waiting.append((frame, line))

    def forget(self, frame: int) -> None:
        """Forget the lines of a frame and of those after it, which were not appended."""
        waiting = [_parse_record(json.loads(line)) for _, line in self._waiting]
        self._waiting = deque((each.frame, each.line()) for each in _before(frame, waiting))
        last = [_parse_record(json.loads(line)) for line in self._last[-1:]]
        if _before(frame, last) != last:  # dropped frames, of which some are stored
            self._last[-1:] = [each.line() for each in _before(frame, last)]
            self._is_stale = True

    def store(self, frames: int) -> int:
        """Store the lines of the first frames; return the number of segments."""
        while self._waiting and self._waiting[0][0] < frames:
            self._add_line(self._waiting.popleft()[1])
            if self._size >= SEGMENT_BYTES:
                self._put()
                self._last, self._size = [], 0
        if self._is_stale:
            self._put()
        return self.segments

    def _add_line(self, line: bytes) -> None:
        if not self._last:
            self.segments += 1
        self._last.append(line)
        self._size += len(line)
        self._is_stale = True

    def _put(self) -> None:
        number = self.segments - 1
        self.sink.put(segment_key(number), segment_bytes(number, self._last))
        self._is_stale = False

    def continue_from(self, segments: int, frames: int) -> None:
        """Continue the log of an array with some promised frames; forget lines of later ones."""
        self._remove_after(segments)
        self.segments = segments
        if not segments:
            return
        records = read_segment(self.sink, segments - 1)
        kept = _before(frames, records)
        self._last = [record.line() for record in kept]
        self._size = sum(map(len, self._last))
        self._is_stale = kept != records
        if self._size >= SEGMENT_BYTES or not kept:
            if self._is_stale:
                self._put()
            self._last, self._size = [], 0

    def _remove_after(self, segments: int) -> None:
        """Remove segments that were stored before a crash and never promised."""
        while is_segment(self.sink, segments):
            self.sink.delete(segment_key(segments))
            segments += 1


def _before(frame: int, records: Sequence[FrameRecord]) -> list[FrameRecord]:
    """Return the records of the frames before one; dropped frames that go past it are cut."""
    return [
        record._replace(dropped=min(record.dropped, frame - record.frame))
        for record in records
        if record.frame < frame
    ]


def segment_key(number: int) -> str:
    """Return the key of a segment."""
    return f"{FOLDER}/{number}.jsonl"


def segment_bytes(number: int, lines: Sequence[bytes]) -> bytes:
    """Return a segment: lines, and a last one with their checksum."""
    body = b"".join(lines)
    last = {"segment": number, "lines": len(lines), "crc32c": checksum(body).hex()}
    return body + json.dumps(last).encode() + b"\n"


# -- reading


def segment_count(metadata: Metadata) -> int:
    """Return the number of segments that the metadata of an array promise."""
    count = own_attributes(metadata.attributes).get(SEGMENTS, 0)
    if type(count) is not int or not 0 <= count <= MAX_SEGMENTS:
        raise WeftError(f"attributes.weft.{SEGMENTS}: expected a number of segments, got {count!r}")
    return count


def is_segment(sink: Sink, number: int) -> bool:
    """Return whether a segment is stored, by its checksum."""
    try:
        return bool(read_segment(sink, number))
    except ShardError:
        return False


def read_segment(sink: Sink, number: int) -> list[FrameRecord]:
    """Return the records of a segment, after comparing its checksum."""
    key = segment_key(number)
    fetched = sink.fetch(key, 0, MAX_SEGMENT + 1)
    if fetched is None:
        raise ShardError(f"{sink.url}/{key} is missing: metadata of frames were lost")
    if fetched.size > MAX_SEGMENT:
        raise ShardError(f"{sink.url}/{key} has {fetched.size} B; at most {MAX_SEGMENT} are read")
    try:
        return _parse_segment(bytes(fetched.data), number)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ShardError(f"{sink.url}/{key} is damaged: {error}") from None


def _parse_segment(data: bytes, number: int) -> list[FrameRecord]:
    if not data.endswith(b"\n"):
        raise ValueError("its last line is not complete")
    body, _, end = data[:-1].rpartition(b"\n")
    body = body + b"\n" if body else b""
    last = json.loads(end)
    if not isinstance(last, dict) or last.get("crc32c") != checksum(body).hex():
        raise ValueError("its checksum does not match")
    lines = body.split(b"\n")[:-1]
    if last.get("segment") != number or last.get("lines") != len(lines):
        raise ValueError(f"its last line is that of segment {last.get('segment')!r}")
    records, end_before = [], 0
    for line in lines:
        record = _parse_record(json.loads(line))
        if record.frame < end_before:
            raise ValueError(f"frame {record.frame} comes after frame {end_before - 1}")
        records.append(record)
        end_before = record.frame + max(1, record.dropped)
    return records


def _parse_record(data: Any) -> FrameRecord:
    frame, dropped = data["frame"], data.get("dropped", 0)
    if type(frame) is not int or type(dropped) is not int or frame < 0 or dropped < 0:
        raise ValueError(f"a line has the frame {frame!r}")
    if dropped:
        return FrameRecord(frame, None, dropped)
    if not isinstance(data["metadata"], dict):
        raise ValueError(f"the metadata of frame {frame} are no object")
    return FrameRecord(frame, data["metadata"])


class FrameTable(Sequence[dict[str, Any]]):
    """The metadata of an array's frames: a sequence of dictionaries, and columns.

    A frame without metadata has an empty dictionary. `table["delta_t"]` is a column: numbers as a
    NumPy array, with NaN where a frame has none; anything else as an array of objects, with None.

    >>> import numpy as np, tempfile
    >>> from weft.store import create, open
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create(f"{folder}/a", (None, 4, 4), "uint8", (1, 4, 4)) as writer:
    ...         for number in range(3):
    ...             writer.append(np.ones((4, 4), "uint8"), metadata={"delta_t": number / 4})
    ...         writer.skip(2)
    ...     frames = open(f"{folder}/a").frames
    ...     print(len(frames), frames[1], frames["delta_t"], frames.dropped)
    5 {'delta_t': 0.25} [0.   0.25 0.5   nan  nan] [3 4]
    """

    def __init__(
        self,
        records: Mapping[int, Mapping[str, Any]],
        dropped: Sequence[range],
        layout: FrameLayout,
        count: int,
    ) -> None:
        self._records, self._dropped, self._layout, self._count = records, dropped, layout, count

    @classmethod
    def load(cls, sink: Sink, metadata: Metadata) -> FrameTable:
        """Read the metadata of the frames that an array promises."""
        layout = FrameLayout.stored(metadata)
        size = layout.frame_size
        count = layout.promised_elements(metadata) // size if size else 0
        segments: dict[int, list[FrameRecord]] = {}

        def read(number: int) -> None:
            segments[number] = read_segment(sink, number)

        for_each(read, range(segment_count(metadata)), kind="fetch")
        records, dropped = dict[int, Mapping[str, Any]](), list[range]()
        for number in sorted(segments):
            for record in segments[number]:
                if record.frame >= count:
                    continue
                if record.metadata is None:
                    dropped.append(range(record.frame, min(count, record.frame + record.dropped)))
                else:
                    records[record.frame] = record.metadata
        return cls(records, dropped, layout, count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Any]]: ...

    @overload
    def __getitem__(self, key: str) -> np.ndarray[Any, Any]: ...

    def __getitem__(self, key: int | slice | str) -> Any:
        """Return the metadata of a frame, of several, or a column."""
        if isinstance(key, str):
            return self._column(key)
        if isinstance(key, slice):
            return [self[number] for number in range(*key.indices(len(self)))]
        number = key + len(self) if key < 0 else key
        if not 0 <= number < len(self):
            raise IndexError(f"there is no frame {key} of {len(self)}")
        return dict(self._records.get(number, {}))

    def __repr__(self) -> str:
        dropped = f", {len(self.dropped)} dropped" if self._dropped else ""
        return f"<FrameTable of {counted(len(self), 'frame')}{dropped}: {', '.join(self.columns)}>"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of columns, in the order in which they first appear."""
        return tuple(dict.fromkeys(name for one in self._records.values() for name in one))

    @cached_property
    def dropped(self) -> np.ndarray[Any, Any]:
        """The numbers of the frames that were dropped, which read as fill value."""
        parts = [np.arange(each.start, each.stop) for each in self._dropped]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def indices(self) -> np.ndarray[Any, Any]:
        """For each frame its place along the dimensions of the array that a frame does not have.

        Dimensions are in the order of the array: of [t, c, z, y, x] a frame has t, c and z.
        """
        layout = self._layout
        outer = layout.axis_order[: layout.frame_axis]
        sizes = [len(self), *(n or 0 for n in layout.ordered_shape[1 : layout.frame_axis])]
        if 0 in sizes:
            return np.zeros((0, len(outer)), np.int64)
        at = np.stack(np.unravel_index(np.arange(len(self)), sizes), axis=1)
        return at[:, np.argsort(outer)]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the array that the columns of `indices` count along."""
        return tuple(sorted(self._layout.axis_order[: self._layout.frame_axis]))

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame: a row for each frame, its columns, and `dropped`."""
        try:
            pandas: Any = import_module("pandas")
        except ImportError:
            raise WeftError("to_pandas needs pandas", hint="pip install pandas") from None
        table = pandas.DataFrame(
            {name: self[name] for name in self.columns}, index=range(len(self))
        )
        table.index.name = "frame"
        if "dropped" not in table:
            is_dropped = np.zeros(len(self), bool)
            is_dropped[self.dropped] = True
            table["dropped"] = is_dropped
        return table

    def lines_for(self, layout: FrameLayout) -> Iterator[tuple[int, bytes]]:
        """Yield frames and their lines, to be stored with a copy of the array in its layout."""
        own = self._layout
        if layout.frame_shape != own.frame_shape or layout.axis_order != own.axis_order:
            there, here = list(layout.frame_shape), list(own.frame_shape)
            raise WeftError(
                f"the metadata of frames do not fit the copy: there a frame is {there}, by "
                f"dimensions {list(layout.axis_order)}, and here {here}, by {list(own.axis_order)}",
                hint="copy the array with its dimension_names, frame_ndim and axis_order",
            )
        dropped = {each.start: dropped_line(each.start, len(each)) for each in self._dropped}
        for frame in sorted({*self._records, *dropped}):
            if frame in dropped:
                yield frame, dropped[frame]
            else:
                yield frame, FrameRecord(frame, self._records[frame]).line()

    def _column(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self.columns:
            raise KeyError(f"no frame has {name!r}; there are {', '.join(self.columns) or 'none'}")
        values = [self._records.get(number, {}).get(name) for number in range(len(self))]
        kinds = {type(value) for value in values}
        if kinds == {bool}:
            return np.array(values, bool)
        largest = max((abs(value) for value in values if type(value) is int), default=0)
        if kinds == {int} and largest < 1 << 63:
            return np.array(values, np.int64)
        if kinds <= {int, float, type(None)} and largest <= 1 << 53:
            numbers = [np.nan if value is None else value for value in values]
            return np.array(numbers, np.float64)
        column = np.empty(len(values), object)
        column[:] = values
        return column


def segment_findings(sink: Sink, metadata: Metadata) -> list[str]:
    """Return what is wrong with the stored metadata of frames; the segments are read one by one."""
    findings = []
    for number in range(segment_count(metadata)):
        try:
            read_segment(sink, number)
        except ShardError as error:
            findings.append(str(error))
    return findings
