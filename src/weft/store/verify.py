"""`Verifying`: every stored byte of an array is read, and what is wrong is listed.

A chunk with a CRC32C is compared with it; any changed bit is found. A chunk without one is decoded,
which finds only damage that its codec notices. The index of a shard has a checksum of its own.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from math import prod
from threading import Lock
from typing import Any, Self

from weft.errors import WeftError
from weft.store.chunk_layout import Part, Tiling, points
from weft.store.codecs import has_checksum
from weft.store.metadata import Metadata
from weft.store.read import ATTEMPTS, Fetching, Piece
from weft.store.shard import Shard, ShardError
from weft.store.target import ArrayKeys
from weft.store.threads import each
from weft.values import Point

ENUMERATED = 1 << 13
"""Shards that are asked for one by one; of a larger array the keys that are there are listed."""

LISTED = 100
"""Findings that are listed; all are counted."""


class Verification(int):
    """How many chunks were read of an array, how they were checked, and what is wrong with them.

    >>> found = Verification(8, shards=2, matched=8)
    >>> found == 8, found.matched, found.text
    (True, 8, '8 chunks in 2 shards: 8 match their checksums')
    >>> Verification(8, shards=2, decoded=8, absent=1).text
    '8 chunks in 2 shards: 8 have no checksum and were only decoded; 1 shard is not stored'
    """

    shards: int
    """Shards that are stored."""
    matched: int
    """Chunks whose stored bytes match their checksum, and which decode."""
    decoded: int
    """Chunks without a checksum that decode: damage may have gone unseen."""
    absent: int
    """Shards inside of the array that are not stored, and read as fill value.

    They are findings where the array promises that every shard is stored.
    """
    faults: int
    """How many findings there are."""
    findings: tuple[str, ...]
    """The first of them, each with the key, the chunk and its box."""

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
        """Make one; the number itself counts the chunks that are stored."""
        made = super().__new__(cls, chunks)
        made.shards, made.matched, made.decoded = shards, matched, decoded
        made.absent, made.faults, made.findings = absent, faults, tuple(findings)
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[int], dict[str, Any]]:
        return (int(self),), dict(self.__dict__)

    def __repr__(self) -> str:
        return f"<Verification: {self.text}>"

    __str__ = int.__repr__

    @property
    def chunks(self) -> int:
        """Chunks that are stored, as far as indexes can be read."""
        return int(self)

    @property
    def text(self) -> str:
        """All of it in a sentence, which claims no more than was checked."""
        parts = []
        if self.matched or not self.decoded:
            parts.append(f"{self.matched} match their checksums")
        if self.decoded:
            parts.append(f"{self.decoded} have no checksum and were only decoded")
        text = f"{_count(self.chunks, 'chunk')} in {_count(self.shards, 'shard')}: "
        text += ", ".join(parts)
        if self.absent:
            verb = "is" if self.absent == 1 else "are"
            text += f"; {_count(self.absent, 'shard')} {verb} not stored"
        if self.faults:
            text += f"; {_count(self.faults, 'finding')}"
        return text


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class VerificationError(ShardError):
    """An array of which something is wrong; `verification` says all that was checked."""

    def __init__(self, url: str, verification: Verification) -> None:
        self.url, self.verification = url, verification
        first, more = verification.findings[0], verification.faults - 1
        super().__init__(first if not more else f"{first}; and {_count(more, 'more finding')}")
        self.add_note(f"{url}: {verification.text}")

    def __reduce__(self) -> tuple[object, ...]:
        return VerificationError, (self.url, self.verification)


class Verifying(Fetching):
    """Reads every shard once, some of them at a time, and keeps what it finds."""

    _shard_count = _chunk_count = _good = _absent = _faults = 0

    def verify(
        self, shape: Point, progress: Callable[[int, int], None] | None = None
    ) -> Verification:
        """Read all shards of an array of some shape."""
        self._findings: list[str] = []
        self._promised = _promised(self._metadata)
        self._turn = Lock()
        sides = [range(-(-n // s)) for n, s in zip(shape, self._grid.shards)]
        total = prod(map(len, sides)) if prod(shape) else 0
        if total <= ENUMERATED:
            self._verify_all(points(sides) if total else iter(()), progress)
        else:
            self._verify_listed(sides, total, progress)
        return self._result()

    def _result(self) -> Verification:
        with_checksum = has_checksum(self._metadata.codecs)
        return Verification(
            self._chunk_count,
            shards=self._shard_count,
            matched=self._good if with_checksum else 0,
            decoded=0 if with_checksum else self._good,
            absent=self._absent,
            faults=self._faults,
            findings=self._findings,
        )

    # -- shards

    def _verify_all(
        self, shards: Iterator[Point], progress: Callable[[int, int], None] | None
    ) -> None:
        done = 0
        while window := list(islice(shards, self._shards.window)):
            self._verify_window(window)
            done += len(window)
            if progress is not None:
                progress(done, self._chunk_count)

    def _verify_listed(
        self, sides: list[range], total: int, progress: Callable[[int, int], None] | None
    ) -> None:
        """Read the shards whose keys are there: there may be far fewer than the shape says."""
        keys, there = ArrayKeys.of(json.loads(self._metadata.to_json())), array("Q")
        if total >> 64:
            raise WeftError(f"{self._shards.sink.url}: {total} shards cannot be counted")

        def listed() -> Iterator[Point]:
            for key in self._shards.sink.keys(keys.root):
                at = keys.place(key)
                if at is not None and keys.is_inside(at):
                    there.append(_flat(at, sides))
                    yield at

        self._verify_all(listed(), progress)
        missing = total - len(there)
        for number in _gaps(sorted(there), min(missing, ENUMERATED)):
            self._miss(_point(number, sides))
            missing -= 1
        self._absent += missing
        if self._metadata.stores_every_shard and self._promised is None:
            self._faults += missing

    def _verify_window(self, window: list[Point]) -> None:
        """Read some shards; one that is replaced meanwhile is read again."""
        for attempt in range(1, ATTEMPTS + 1):
            self._shards.forget(window)
            kept = list[tuple[Point, _Read]]()
            self._read_window(window, kept)
            again = []
            for at, read in kept:
                if read.findings and attempt < ATTEMPTS and not read.is_current():
                    again.append(at)
                else:
                    self._keep(at, read)
            if not again:
                return
            window = again

    def _read_window(self, window: list[Point], kept: list[tuple[Point, _Read]]) -> None:
        read = {at: _Read() for at in window}
        try:
            each(lambda at: self._open(at, read[at]), window, kind=self._shards.source.kind)
            tasks = [task for at in window for task in self._tasks(at, read[at])]
            self._do(tasks)
            kept.extend(read.items())
        finally:
            for one in read.values():
                if one.shard is not None:
                    one.shard.close()

    def _keep(self, at: Point, read: _Read) -> None:
        """Count a shard that was read, and what was found in it."""
        if not read.is_there:
            self._miss(at)
            return
        self._shard_count += 1
        self._chunk_count += read.chunks
        self._good += read.good
        for finding in sorted(read.findings):
            self._find_fault(finding)

    def _miss(self, at: Point) -> None:
        """Count a shard that is not there."""
        self._absent += 1
        if self._is_promised(at):
            message = "the shard is missing: it was not written, or was lost"
            self._find_fault(str(self._shards.error(at, None, message)))

    def _is_promised(self, at: Point) -> bool:
        """Whether a shard that is not there should be: its first element was written."""
        if not self._metadata.stores_every_shard or self._promised is None:
            return self._metadata.stores_every_shard
        dims, elements = self._promised
        first = 0
        for dim in dims:
            first = first * self._metadata.shape[dim] + at[dim] * self._grid.shards[dim]
        return first < elements

    def _find_fault(self, finding: str) -> None:
        self._faults += 1
        if len(self._findings) < LISTED:
            self._findings.append(finding)

    # -- one shard

    def _open(self, at: Point, read: _Read) -> None:
        """Find a shard and check its index."""
        if not self._metadata.is_sharded:
            return
        try:
            shard = read.shard = self._shards.find(at)
        except ShardError as error:
            read.is_there = True
            read.findings.append(str(error))
            return
        if shard is None:
            return
        read.is_there = True
        pair = shard.index.overlapping()
        if pair is not None:
            one, two = pair
            where = (
                f"{shard.index.said(one)}, and chunk {two} at {shard.index.said(two)}: they overlap"
            )
            read.findings.append(str(self._shards.error(at, one, f"it lies at {where}")))
        elif self._metadata.stores_every_shard:
            wanted = shard.index.stored_bytes() + self._shards.index_size
            if shard.size != wanted:
                message = f"{shard.size} B, and its chunks and its index have {wanted} B"
                read.findings.append(str(self._shards.error(at, None, message)))

    def _tasks(self, at: Point, read: _Read) -> Iterator[Callable[[], object]]:
        """Yield what decodes all chunks of a shard."""
        if not self._metadata.is_sharded:
            yield partial(self._verify_alone, at, read)
            return
        if read.shard is None:
            return
        pieces = []
        for slot in read.shard.index.present():
            read.chunks += 1
            try:
                pieces.append(self._piece(at, read.shard, Part(slot, 0, self._grid.size, (), ())))
            except ShardError as error:
                read.findings.append(str(error))
        if read.findings:  # chunks that share bytes could be many times the bytes that are there
            pieces = _disjoint(pieces)
        for run, stop in self._grouped(pieces):
            yield partial(self._verify_run, at, read, read.shard, run, stop)

    def _verify_run(
        self, at: Point, read: _Read, shard: Shard, run: list[Piece], stop: int
    ) -> None:
        start = run[0].start
        try:
            data = memoryview(shard.read(start, stop - start))
        except ShardError as error:
            for piece in run:
                read.findings.append(str(self._shards.error(at, piece.part.slot, error)))
            return
        good = 0
        for piece in run:
            try:
                self._place(None, at, piece.part, data[piece.start - start : piece.stop - start])
                good += 1
            except ShardError as error:
                read.findings.append(str(error))
        with self._turn:
            read.good += good

    def _verify_alone(self, at: Point, read: _Read) -> None:
        """Decode a chunk that is a value of its own."""
        try:
            read.chunks = read.good = self._take(None, at, Part(0, 0, self._grid.size, (), ()))
            read.is_there = read.chunks > 0
        except ShardError as error:
            read.is_there, read.chunks = True, 1
            read.findings.append(str(error))


@dataclass
class _Read:
    """What was read of a shard."""

    shard: Shard | None = None
    is_there: bool = False
    chunks: int = 0
    good: int = 0

    def __post_init__(self) -> None:
        self.findings: list[str] = []

    def is_current(self) -> bool:
        """Whether the shard is still the one that was read; a chunk alone is read at once."""
        return self.shard is None or self.shard.is_current()


def _promised(metadata: Metadata) -> tuple[Point, int] | None:
    """Return how many elements a writer promised, and the dimensions as they arrived.

    None if they are all of the array. Where the last row was not whole, the attributes count the
    frames that were written; shards behind them are not there.
    """
    own = metadata.attributes.get("weft")
    if not isinstance(own, Mapping) or "frames" not in own:
        return None
    create = import_module("weft.store.create")  # which reads arrays, and so imports this module
    try:
        dims = create.arrival_of(metadata)
        frame_ndim = create.frame_ndim_of(metadata, dims)
    except WeftError:
        return None
    tiling = Tiling(metadata.shape, metadata.chunks, metadata.shards, dims, frame_ndim=frame_ndim)
    return dims, create.promised(metadata, tiling)


def _disjoint(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces that share no bytes with one before them."""
    kept, end = list[Piece](), 0
    for piece in sorted(pieces):
        if piece.start >= end:
            kept.append(piece)
            end = piece.stop
    return kept


def _flat(at: Point, sides: list[range]) -> int:
    """Return the number of a point of a box, in row-major order."""
    number = 0
    for place, side in zip(at, sides):
        number = number * len(side) + place
    return number


def _point(number: int, sides: list[range]) -> Point:
    """Return the point of a box with a number."""
    found = []
    for side in reversed(sides):
        number, place = divmod(number, len(side))
        found.append(place)
    return tuple(reversed(found))


def _gaps(there: list[int], count: int) -> Iterator[int]:
    """Yield the first so many whole numbers that are not in a sorted list.

    >>> list(_gaps([0, 1, 4], 3))
    [2, 3, 5]
    """
    wanted = 0
    for number in [*there, 1 << 64]:
        while wanted < number and count:
            yield wanted
            wanted, count = wanted + 1, count - 1
        wanted = number + 1
