"""`Metrics`: the progress of a writer, stage by stage, and how long `append` took."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from weft.values import FrozenMap

CPU_STAGES = ("scatter", "compress", "write", "publish")
"""The stages of frames on a CPU, in order; the seconds of a stage are those of all its threads."""

GPU_STAGES = ("arrive", "compress", "aggregate", "leave", "write", "publish")
"""The stages of frames on a GPU, in order; the seconds of kernels are by the device's clock."""

MAX_CALLS = 1024
"""Calls of `append` whose times are kept."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """The bytes that went into a stage, and the seconds that its threads took."""

    bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """The GB/s of one thread."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """The progress of a writer."""

    rows: int
    """Rows of the appended dimension, a begun one included."""
    safe: int
    """Frames that can be read, with all before them."""
    bytes: int
    """The bytes that were appended."""
    stored: int
    """The bytes that were written, with the indexes of complete shards."""
    seconds: float
    """Seconds since the writer was created."""
    stages: Mapping[str, StageTime]
    waited: float
    """Seconds that `append` waited for a free buffer."""
    epochs: int
    """Epochs that are full and not written yet."""
    batches: int
    """Batches of tiles that wait for a thread."""
    append_median: float
    """Seconds of the median of the last calls."""
    append_maximum: float
    """Seconds of the longest call."""

    @property
    def rate(self) -> float:
        """The GB/s that were appended."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def ratio(self) -> float | None:
        """The compression ratio: appended bytes per stored byte."""
        return self.bytes / self.stored if self.stored else None

    @property
    def binds(self) -> str:
        """The stage that took the most time."""
        return max(self.stages, key=lambda name: self.stages[name].seconds)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary, derived values included."""
        stages = {name: asdict(stage) | {"rate": stage.rate} for name, stage in self.stages.items()}
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "stages"}
        return fields | {
            "stages": stages,
            "rate": self.rate,
            "ratio": self.ratio,
            "binds": self.binds,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.rows} rows, {self.safe} frames safe; {self.bytes} B in {self.seconds:.1f} s, "
            f"{self.rate:.2f} GB/s"
            + (f", {self.ratio:.2f} times smaller" if self.ratio is not None else "")
        ]
        for name, stage in self.stages.items():
            lines.append(f"{name:9} {stage.seconds:8.2f} s  {stage.rate:6.2f} GB/s")
        lines.append(
            f"append    median {self.append_median * 1e3:.2f} ms, maximum "
            f"{self.append_maximum * 1e3:.2f} ms, waited {self.waited:.2f} s"
        )
        return "\n".join(lines)


class Clock:
    """Counts the bytes and seconds of a writer; any thread may count."""

    def __init__(self, stages: Sequence[str] = CPU_STAGES) -> None:
        self.stages = tuple(stages)
        self.begin = time.perf_counter()
        self.waited = 0.0
        self.stored = 0
        self._lock = threading.Lock()
        self._bytes = dict.fromkeys(stages, 0)
        self._seconds = dict.fromkeys(stages, 0.0)
        self._calls: deque[float] = deque(maxlen=MAX_CALLS)
        self._longest = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the writer was created."""
        return time.perf_counter() - self.begin

    @contextmanager
    def stage(self, name: str, size: int) -> Iterator[None]:
        """Count the time of a `with` block as a stage of `size` bytes."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.count(name, size, time.perf_counter() - begin)

    def count(self, name: str, size: int, seconds: float) -> None:
        """Add to a stage."""
        with self._lock:
            self._bytes[name] += size
            self._seconds[name] += seconds

    def spent(self, name: str) -> StageTime:
        """Return the time of a stage so far."""
        with self._lock:
            return StageTime(self._bytes[name], self._seconds[name])

    def count_append(self, seconds: float) -> None:
        """Count a call of `append`."""
        self._calls.append(seconds)
        self._longest = max(self._longest, seconds)

    def metrics(self, *, rows: int, safe: int, size: int, epochs: int, batches: int) -> Metrics:
        """Return the metrics, with values of the writer."""
        calls = list(self._calls)
        return Metrics(
            rows=rows,
            safe=safe,
            bytes=size,
            stored=self.stored,
            seconds=self.elapsed,
            stages=FrozenMap((name, self.spent(name)) for name in self.stages),
            waited=self.waited,
            epochs=epochs,
            batches=batches,
            append_median=statistics.median(calls) if calls else 0.0,
            append_maximum=self._longest,
        )
