"""`Verifier`: reads every stored byte of an array, and lists what is wrong.

A chunk with a CRC32C is compared with it, which detects any changed bit. A chunk without one is
decoded, which detects only damage that its codec notices. The index of a shard has a checksum too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, Self

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.chunk_layout import ChunkPart, FrameLayout
from weft.store.codecs import has_checksum
from weft.store.frames import segment_findings
from weft.store.metadata import Metadata, own_attributes
from weft.store.read import ATTEMPTS, BoxReader, ChunkRead
from weft.store.shard import ShardError, ShardReader
from weft.store.target import ArrayKeys
from weft.store.threads import for_each
from weft.values import Point, counted

MAX_ENUMERATED = 1 << 13
"""Shards that are asked for one by one; of a larger array the existing keys are listed."""

MAX_LISTED = 100
"""Findings that are listed; all are counted."""

Progress = Callable[[int, int], None] | None


class Verification(int):
    """The number of chunks of an array, how they were checked, and what is wrong with them.

    >>> result = Verification(8, shards=2, matched=8)
    >>> result == 8, result.matched, result.text
    (True, 8, '8 chunks in 2 shards: 8 match their checksums')
    >>> Verification(8, shards=2, decoded=8, absent=1).text
    '8 chunks in 2 shards: 8 have no checksum and were only decoded; 1 shard is not stored'
    """

    shards: int
    """The number of stored shards."""
    matched: int
    """Chunks whose stored bytes match their checksum, and which decode."""
    decoded: int
    """Chunks without a checksum that decode: damage may be undetected."""
    absent: int
    """Shards inside the array that are not stored, and read as fill value.

    They are findings where the array promises that every shard is stored.
    """
    faults: int
    """The number of findings."""
    findings: tuple[str, ...]
    """The first findings, each with the key, the chunk and its box."""

    def __new__(
        cls,
        chunks: int,
        *,
        shards: int = 0,
        matched: int = 0,
        decoded: int = 0,
        absent: int = 0,
        faults: int = 0,
        findings: Sequence[str] = (),
    ) -> Self:
        """Create one; the number itself counts the stored chunks."""
        self = super().__new__(cls, chunks)
        self.shards, self.matched, self.decoded = shards, matched, decoded
        self.absent, self.faults, self.findings = absent, faults, tuple(findings)
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[int], dict[str, Any]]:
        return (int(self),), dict(self.__dict__)

    def __repr__(self) -> str:
        return f"<Verification: {self.text}>"

    __str__ = int.__repr__

    @property
    def chunks(self) -> int:
        """The number of stored chunks, as far as indexes can be read."""
        return int(self)

    @property
    def text(self) -> str:
        """A summary that claims no more than was checked."""
        checks = []
        if self.matched or not self.decoded:
            checks.append(f"{self.matched} match their checksums")
        if self.decoded:
            checks.append(f"{self.decoded} have no checksum and were only decoded")
        text = f"{counted(self, 'chunk')} in {counted(self.shards, 'shard')}: {', '.join(checks)}"
        if self.absent:
            verb = "is" if self.absent == 1 else "are"
            text += f"; {counted(self.absent, 'shard')} {verb} not stored"
        if self.faults:
            text += f"; {counted(self.faults, 'finding')}"
        return text


class IntegrityError(ShardError):
    """An array with findings; `verification` holds all of them."""

    def __init__(self, url: str, verification: Verification) -> None:
        self.url, self.verification = url, verification
        first, more = verification.findings[0], verification.faults - 1
        super().__init__(first if not more else f"{first}; and {counted(more, 'more finding')}")
        self.add_note(f"{url}: {verification.text}")

    def __reduce__(self) -> tuple[object, ...]:
        return IntegrityError, (self.url, self.verification)


@dataclass
class _ShardResult:
    """The result of verifying one shard."""

    shard: ShardReader | None = None
    exists: bool = False
    chunks: int = 0
    good: int = 0
    findings: list[str] = field(default_factory=list)

    def is_current(self) -> bool:
        """Return whether the shard is still the one that was read; a lone chunk is read at once."""
        return self.shard is None or self.shard.is_current()


class Verifier(BoxReader):
    """Reads every shard once, some of them at a time, and collects findings."""

    _shard_count = _chunk_count = _good = _absent = _faults = 0

    def verify(self, progress: Progress = None) -> Verification:
        """Read all shards of the array."""
        self._findings: list[str] = []
        self._promised = _promised(self._metadata)
        self._turn = Lock()
        grid = self._layout.shard_grid
        if grid.size <= MAX_ENUMERATED:
            self._verify_all(grid.meeting(ZRange.of(grid.shape)), progress)
        else:
            self._verify_existing(progress)
        for finding in segment_findings(self._shards.sink, self._metadata):
            self._add_finding(finding)
        is_checked = has_checksum(self._metadata.codecs)
        return Verification(
            self._chunk_count,
            shards=self._shard_count,
            matched=self._good if is_checked else 0,
            decoded=0 if is_checked else self._good,
            absent=self._absent,
            faults=self._faults,
            findings=self._findings,
        )

    # -- shards

    def _verify_all(self, shards: Iterator[Point], progress: Progress) -> None:
        done = 0
        while window := list(islice(shards, self._shards.window)):
            self._verify_window(window)
            done += len(window)
            if progress is not None:
                progress(done, self._chunk_count)

    def _verify_existing(self, progress: Progress) -> None:
        """Read the shards whose keys exist: there may be far fewer than the shape has."""
        keys, grid = ArrayKeys.of_grid(self._metadata), self._layout.shard_grid
        numbers = array("Q")
        if grid.size >> 64:
            raise WeftError(f"{self._shards.sink.url}: {grid.size} shards cannot be counted")

        def existing() -> Iterator[Point]:
            for key in self._shards.sink.keys(keys.keys.root):
                at = keys.shard_at(key)
                if at is not None and keys.is_inside(at):
                    numbers.append(grid.ravel(at))
                    yield at

        self._verify_all(existing(), progress)
        missing = grid.size - len(numbers)
        for number in _gaps(sorted(numbers), min(missing, MAX_ENUMERATED)):
            self._count_missing(grid.unravel(number))
            missing -= 1
        self._absent += missing
        if self._metadata.stores_every_shard and self._promised is None:
            self._faults += missing

    def _verify_window(self, window: list[Point]) -> None:
        """Read some shards; those that are replaced meanwhile are read again."""
        for attempt in range(1, ATTEMPTS + 1):
            self._shards.forget(window)
            again = []
            for at, result in self._verify_shards(window).items():
                if result.findings and attempt < ATTEMPTS and not result.is_current():
                    again.append(at)
                else:
                    self._count(at, result)
            if not again:
                return
            window = again

    def _verify_shards(self, window: list[Point]) -> dict[Point, _ShardResult]:
        results = {at: _ShardResult() for at in window}
        try:
            for_each(lambda at: self._open(at, results[at]), window, kind=self._shards.source.kind)
            tasks = [task for at in window for task in self._verify_tasks(at, results[at])]
            self._run(tasks, self.threads)
        finally:
            for result in results.values():
                if result.shard is not None:
                    result.shard.close()
        return results

    def _count(self, at: Point, result: _ShardResult) -> None:
        if not result.exists:
            self._count_missing(at)
            return
        self._shard_count += 1
        self._chunk_count += result.chunks
        self._good += result.good
        for finding in sorted(result.findings):
            self._add_finding(finding)

    def _count_missing(self, at: Point) -> None:
        self._absent += 1
        if self._is_promised(at):
            message = "the shard is missing: it was not written, or was lost"
            self._add_finding(str(self._shards.error(at, None, message)))

    def _is_promised(self, at: Point) -> bool:
        """Return whether a missing shard should exist: its first element was written."""
        if not self._metadata.stores_every_shard or self._promised is None:
            return self._metadata.stores_every_shard
        axes, elements = self._promised
        start, first = self._layout.shard_box(at).start, 0
        for dim in axes:
            first = first * self._metadata.shape[dim] + start[dim]
        return first < elements

    def _add_finding(self, finding: str) -> None:
        self._faults += 1
        if len(self._findings) < MAX_LISTED:
            self._findings.append(finding)

    # -- one shard

    def _open(self, at: Point, result: _ShardResult) -> None:
        """Find a shard and check its index."""
        if not self._metadata.is_sharded:
            return
        try:
            shard = result.shard = self._shards.find(at)
        except ShardError as error:
            result.exists = True
            result.findings.append(str(error))
            return
        if shard is None:
            return
        result.exists = True
        index, pair = shard.index, shard.index.overlapping()
        if pair is not None:
            one, two = pair
            message = (
                f"it lies at {index.describe(one)}, and chunk {two} at {index.describe(two)}: "
                f"they overlap"
            )
            result.findings.append(str(self._shards.error(at, one, message)))
        elif self._metadata.stores_every_shard:
            expected = index.stored_bytes() + self._shards.index_size
            if shard.size != expected:
                message = f"{shard.size} B, and its chunks and its index have {expected} B"
                result.findings.append(str(self._shards.error(at, None, message)))

    def _verify_tasks(self, at: Point, result: _ShardResult) -> Iterator[Callable[[], object]]:
        """Yield the tasks that decode all chunks of a shard."""
        if not self._metadata.is_sharded:
            yield partial(self._verify_chunk, at, result)
            return
        if result.shard is None:
            return
        reads = []
        for slot in result.shard.index.stored_slots():
            result.chunks += 1
            try:
                reads.append(self._chunk_read(at, result.shard, self._whole_chunk(slot)))
            except ShardError as error:
                result.findings.append(str(error))
        if result.findings:  # chunks that share bytes could be many times the stored bytes
            reads = _disjoint(reads)
        for run, stop in self._grouped(reads):
            yield partial(self._verify_run, at, result, result.shard, run, stop)

    def _whole_chunk(self, slot: int) -> ChunkPart:
        return ChunkPart(slot, 0, self._layout.chunk_nbytes, (), ())

    def _verify_run(
        self, at: Point, result: _ShardResult, shard: ShardReader, run: list[ChunkRead], stop: int
    ) -> None:
        start = run[0].start
        try:
            data = memoryview(shard.read(start, stop - start))
        except ShardError as error:
            for read in run:
                result.findings.append(str(self._shards.error(at, read.part.slot, error)))
            return
        good = 0
        for read in run:
            try:
                part = data[read.start - start : read.stop - start]
                self._decode_part(None, at, read.part, part)
                good += 1
            except ShardError as error:
                result.findings.append(str(error))
        with self._turn:
            result.good += good

    def _verify_chunk(self, at: Point, result: _ShardResult) -> None:
        """Decode a chunk that is a file of its own."""
        try:
            result.chunks = result.good = self._read_chunk(None, at, self._whole_chunk(0))
            result.exists = result.chunks > 0
        except ShardError as error:
            result.exists, result.chunks = True, 1
            result.findings.append(str(error))


def _promised(metadata: Metadata) -> tuple[Point, int] | None:
    """Return the axis order and the number of elements that a writer promised; None for all.

    Where the last row is not whole, the attributes count the written frames; shards after them do
    not exist.
    """
    if "frames" not in own_attributes(metadata.attributes):
        return None
    try:
        layout = FrameLayout.stored(metadata)
    except WeftError:
        return None
    return layout.axis_order, layout.promised_elements(metadata)


def _disjoint(reads: list[ChunkRead]) -> list[ChunkRead]:
    """Return the reads that share no bytes with one before them."""
    kept, end = list[ChunkRead](), 0
    for read in sorted(reads):
        if read.start >= end:
            kept.append(read)
            end = read.stop
    return kept


def _gaps(numbers: list[int], count: int) -> Iterator[int]:
    """Yield the first `count` integers from 0 on that are not in a sorted list.

    >>> list(_gaps([0, 1, 4], 3))
    [2, 3, 5]
    """
    wanted = 0
    for number in [*numbers, 1 << 64]:
        while wanted < number and count:
            yield wanted
            wanted, count = wanted + 1, count - 1
        wanted = number + 1
