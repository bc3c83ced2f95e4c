"""Boxes of an array, read to a GPU.

Threads read stored bytes into pinned memory, from where they are copied to the device. When all
bytes of a batch of chunks are on their way, its kernels are launched behind them: checksums,
decoding, and placing the elements in the result. Batches take turns in a few *lanes*, each a stream
with buffers, so that the bytes of one batch arrive while another is decoded.

A chunk that the device cannot decode is read again by the host. It has the last word on what is
damaged, and its error names the chunk and the file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.codecs import Crc32c, max_stored
from weft.store.cuda.decoders import ChecksumCheck, ChunkDecoder, StoredChunks, chunk_decoder
from weft.store.cuda.device import DeviceMemory, address, cupy, device_of, module, move_bytes
from weft.store.cuda.encoders import SIZE, THREADS, aligned
from weft.store.read import ATTEMPTS, MAX_EXPANSION, MAX_FREE_CHUNK, ChunkFormat
from weft.store.shard import ABSENT, FileShard, Index, ShardError, ShardIndexCache, ShardReader
from weft.store.threads import CORES, for_each
from weft.values import Point

if TYPE_CHECKING:
    from weft.store.array import Array

LANES = 8
"""Batches on the device: one arrives, and the others are decoded.

Decoding a chunk takes long, as its sequences depend on each other; many are decoded at a time.
"""

MIN_BATCH, MAX_BATCH = 1 << 25, 1 << 27
"""Bytes of the elements of a batch: a sixteenth of all, within these limits; at least one chunk."""

PIECE, BUFFERS = 1 << 23, 2
"""Bytes that a thread reads and copies to the device at a time, and its pinned buffers for them.

With small pieces, threads wait for the interpreter lock.
"""

READERS = max(1, CORES * 7 // 8)
"""Threads that read files: with more, they wait for each other."""

WINDOW, FILES = 64, 1024
"""Shards that are open at the same time, and files of single chunks that are read at once."""

MOVES = 4 * THREADS
"""Moves of one block of threads of the kernel that places elements."""

_LOCAL = threading.local()


def read_to_device(
    array: Array, chunk_format: ChunkFormat, shards: ShardIndexCache, box: ZRange, out: Any,
    device: Any, threads: int | None,
) -> Any:  # fmt: skip
    """Return the elements of a box as a CuPy array of a device, or fill one that is given."""
    cp = cupy()
    with device_of(cp, device) as number:
        if array.dtype.kind not in "biufc":
            raise WeftError(f"{array.metadata.dtype} has no arrays on a GPU", hint="device='cpu'")
        target = _allocate(cp, array, box) if out is None else out
        _check_out(cp, target, array, box, int(number.id))
        decoder = chunk_decoder(array.metadata.codecs)
        if box.is_empty:
            pass
        elif decoder is None or not target.flags.c_contiguous:
            target[...] = cp.asarray(array.read(box, threads=threads))
        else:
            reader = DeviceReader(cp, chunk_format, shards, decoder, threads)
            for failed in reader.fill(box, target):
                values = array.read(
                    failed, threads=threads
                )  # it raises the error, if it is damaged
                target[failed.slices(box.start)] = cp.asarray(values)
        cp.cuda.get_current_stream().synchronize()
    return target


def _allocate(cp: Any, array: Array, box: ZRange) -> Any:
    try:
        return cp.empty(box.shape, array.dtype)
    except cp.cuda.memory.OutOfMemoryError as error:
        size = prod(box.shape) * array.dtype.itemsize
        raise WeftError(
            f"the GPU has no memory for the {size} B of {box} of {array.sink.url}: {error}",
            hint="read smaller boxes",
        ) from None


def _check_out(cp: Any, out: Any, array: Array, box: ZRange, number: int) -> None:
    if not isinstance(out, cp.ndarray):
        raise WeftError(f"out must be a CuPy array to read to a GPU, got {type(out).__name__}")
    if out.shape != box.shape or out.dtype != array.dtype or int(out.device.id) != number:
        raise WeftError(
            f"out must be {array.metadata.dtype}{list(box.shape)} on GPU {number} to hold {box}, "
            f"got {out.dtype.name}{list(out.shape)} on GPU {out.device.id}"
        )


class WantedChunks(NamedTuple):
    """Chunks that a box meets, with where they are stored; one entry for each in every array."""

    shards: np.ndarray[Any, Any]
    """The number of the shard among those that are read at the same time."""
    slots: np.ndarray[Any, Any]
    origins: np.ndarray[Any, Any]
    """Where each chunk begins in the box, along each dimension."""
    offsets: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    """Stored bytes; 0 for chunks that are left to the host."""

    @property
    def is_sorted(self) -> bool:
        """Whether they are in the order in which their bytes lie in shards."""
        shards, offsets = self.shards, self.offsets
        is_next = shards[1:] > shards[:-1]
        is_behind = (shards[1:] == shards[:-1]) & (offsets[1:] >= offsets[:-1])
        return bool((is_next | is_behind).all())

    def take(self, some: Any) -> WantedChunks:
        """Return some of the chunks."""
        return WantedChunks(*(each[some] for each in self))


class Fetch(NamedTuple):
    """Bytes of a shard, and where they go in the stored bytes of a batch."""

    shard: int
    start: int
    to: int
    size: int


class Piece(NamedTuple):
    """Bytes that one thread reads, and copies to the device at once."""

    batch: Batch
    low: int
    high: int
    fetches: list[Fetch]


class Batch:
    """Chunks that are decoded together."""

    def __init__(
        self, number: int, first: int, chunks: WantedChunks, places: np.ndarray[Any, Any],
        runs: list[Fetch], staged: int,
    ) -> None:  # fmt: skip
        self.number, self.first, self.chunks = number, first, chunks
        self.places, self.runs, self.staged = places, runs, staged
        self.left = 0
        """Pieces that are not on their way yet."""
        self.is_launched = False
        self.host: list[Any] = []
        """Tables that are being copied to the device."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the stored bytes."""
        low, fetches = 0, list[Fetch]()
        for shard, start, to, count in self.runs:
            done = 0
            while done < count:
                if to + done >= low + PIECE:
                    yield Piece(self, low, to + done, fetches)
                    low, fetches = to + done, []
                part = min(count - done, low + PIECE - to - done)
                fetches.append(Fetch(shard, start + done, to + done, part))
                done += part
        if fetches:
            yield Piece(self, low, fetches[-1].to + fetches[-1].size, fetches)


def batches_of(chunks: WantedChunks, count: int, gap: int) -> list[Batch]:
    """Return the batches of so many chunks each, with the runs of bytes to read for them.

    Chunks that lie next to each other are read at once, with up to `gap` bytes between them.

    >>> tables = [0, 0, 1, 1], [0, 1, 0, 1], [[0], [1], [2], [3]], [8, 20, 0, 5], [9, 4, 5, 7]
    >>> one, two = batches_of(WantedChunks(*map(np.array, tables)), 3, 4)
    >>> one.places.tolist(), [tuple(run) for run in one.runs], one.staged
    ([0, 12, 16], [(0, 8, 0, 16), (1, 0, 16, 5)], 32)
    >>> two.places.tolist(), [tuple(run) for run in two.runs], two.staged
    ([0], [(1, 5, 0, 7)], 16)
    """
    offsets, sizes = chunks.offsets.astype(np.int64), chunks.sizes.astype(np.int64)
    firsts_of_batches = range(0, len(sizes), count)
    places = np.zeros(len(sizes), np.int64)
    stored = np.flatnonzero(sizes)
    low, high, shard = offsets[stored], (offsets + sizes)[stored], chunks.shards[stored]
    batch, apart = stored // count, low[1:] - high[:-1]
    is_apart = (shard[1:] != shard[:-1]) | (batch[1:] != batch[:-1]) | (apart < 0) | (apart > gap)
    begins = np.r_[True, is_apart][: len(stored)]
    firsts = np.flatnonzero(begins)
    lasts = np.r_[firsts[1:], len(stored)][: len(firsts)] - 1
    counts, owners = high[lasts] - low[firsts], batch[firsts]
    room = -(-counts // 16) * 16
    bounds = np.searchsorted(owners, range(len(firsts_of_batches) + 1)).tolist()
    ends = np.r_[0, np.cumsum(room)]
    bases = ends[:-1] - ends[bounds][owners]
    run = np.cumsum(begins) - 1
    places[stored] = bases[run] + low - low[firsts][run]
    runs = list(map(Fetch, *(x.tolist() for x in (shard[firsts], low[firsts], bases, counts))))
    staged = np.diff(ends[bounds]).tolist()
    return [
        Batch(
            number, first, chunks.take(some := slice(first, first + count)), places[some],
            runs[bounds[number] : bounds[number + 1]], staged[number],
        )
        for number, first in enumerate(firsts_of_batches)
    ]  # fmt: skip


class Lane:
    """A stream, and the buffers of the batches that use it one after the other."""

    def __init__(self, cp: Any, number: int, sizes: Sequence[int]) -> None:
        self.stream = lane_stream(int(cp.cuda.Device().id), number)
        self.staged, self.tables, self.pool, self.planes, self.sums = (
            cp.empty(max(16, size), cp.uint8) for size in sizes
        )
        self.stream.wait_event(cp.cuda.get_current_stream().record())


@cache
def lane_stream(device: int, lane: int) -> Any:
    """Return the stream of a lane, which all reads share: creating one takes long."""
    return cupy().cuda.Stream(non_blocking=True)


class DeviceReader:
    """One read of a box to a device."""

    def __init__(
        self, cp: Any, chunk_format: ChunkFormat, shards: ShardIndexCache,
        decoder: type[ChunkDecoder], threads: int | None,
    ) -> None:  # fmt: skip
        self.cp, self.shards, self.threads = cp, shards, threads
        self.metadata, self.layout, self.dtype = chunk_format[:3]
        self.fixed = chunk_format.stored
        self.size = self.layout.chunk_nbytes
        self.stride = aligned(self.size)
        self._decoder = decoder(self.size, self.stride)
        codecs = self.metadata.codecs
        is_checked = bool(codecs) and isinstance(codecs[-1], Crc32c)
        self._checksums = ChecksumCheck() if is_checked else None
        self._turn = threading.Condition()
        self._error: BaseException | None = None

    def fill(self, box: ZRange, out: Any) -> Iterator[ZRange]:
        """Read a box into an array; yield the parts that are left to the host."""
        placing = Placing(self, box, out)
        wanted = self.layout.shard_grid.meeting(box)
        count = min(WINDOW, self.shards.max_cached) if self.metadata.is_sharded else FILES
        while window := list(islice(wanted, count)):
            yield from self._read_window(box, window, placing)

    # -- shards

    def _read_window(self, box: ZRange, window: list[Point], placing: Placing) -> list[ZRange]:
        """Read some shards, again if one of them is replaced meanwhile."""
        for attempt in range(1, ATTEMPTS + 1):
            shards = self._find(window)
            try:
                return self._read_shards(box, window, shards, placing)
            except ShardError:
                if attempt == ATTEMPTS or all(shard.is_current() for shard in shards.values()):
                    raise
                self.shards.forget(window)
            finally:
                for shard in shards.values():
                    shard.close()
        raise AssertionError

    def _find(self, window: list[Point]) -> dict[Point, ShardReader]:
        """Return those of some shards that exist, with their indexes."""
        if self.metadata.is_sharded:
            if not self.shards.source.is_local:
                self.shards.forget(window)  # so that indexes and chunks are of the same objects
            cached = {at: shard for at in window if (shard := self.shards.cached(at)) is not None}
            missing = [at for at in window if at not in cached]
            return cached | self.shards.find_all(missing, self.threads)
        found: dict[Point, ShardReader] = {}

        def find(at: Point) -> None:
            shard = self.shards.source.find(self.metadata.key(at), 0, 0)
            if shard is not None:
                shard.index = Index.empty(1)
                shard.index.offsets[0], shard.index.sizes[0] = 0, shard.size
                shard.close()
                found[at] = shard

        for_each(find, window, kind=self.shards.source.kind, max_threads=self.threads)
        return found

    def _read_shards(
        self, box: ZRange, window: list[Point], shards: dict[Point, ShardReader], placing: Placing
    ) -> list[ZRange]:
        chunks = self._wanted(box, window, shards)
        is_absent = chunks.offsets == ABSENT
        if is_absent.any():
            placing.fill(chunks.take(is_absent))
            chunks = chunks.take(~is_absent)
        if not chunks.is_sorted:
            chunks = chunks.take(np.lexsort((chunks.offsets, chunks.shards)))
        stored = self._refuse(chunks)
        failed = self._read_chunks(stored, [shards.get(at) for at in window], placing)
        places = zip(stored.shards[failed].tolist(), stored.slots[failed].tolist())
        return [self.layout.chunk_box(window[shard], slot) & box for shard, slot in places]

    def _wanted(
        self, box: ZRange, window: list[Point], shards: dict[Point, ShardReader]
    ) -> WantedChunks:
        """Return the chunks of some shards that a box meets."""
        layout, found = self.layout, []
        places_of = cache(self._places)
        for number, at in enumerate(window):
            first = [k * extent for k, extent in zip(at, layout.shards)]
            spans = tuple(
                (max(0, low - start) // chunk, -(-min(high - start, extent) // chunk))
                for start, low, high, chunk, extent in zip(
                    first, box.start, box.stop, layout.chunks, layout.shards
                )
            )
            slots, places = places_of(spans)
            origins = places + np.subtract(first, box.start, dtype=np.int64) if first else places
            shard = shards.get(at)
            offsets = sizes = np.full(len(slots), ABSENT, np.uint64)
            if shard is not None:
                offsets, sizes = (np.frombuffer(each, np.uint64)[slots] for each in shard.index)
            numbers = np.full(len(slots), number)
            found.append(WantedChunks(numbers, slots, origins, offsets, sizes))
        return WantedChunks(*map(np.concatenate, zip(*found)))

    def _places(
        self, spans: tuple[tuple[int, int], ...]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the slots of a range of chunks of a shard, and where they begin in it."""
        if not spans:
            return np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
        grid = np.indices([high - low for low, high in spans]).reshape(len(spans), -1).T
        grid = grid + np.array([low for low, _ in spans], np.int64)
        slots = grid @ np.array(self.layout.slot_strides, np.int64)
        origins = grid * np.array(self.layout.chunks, np.int64)
        return slots, origins

    def _refuse(self, chunks: WantedChunks) -> WantedChunks:
        """Leave chunks of impossible sizes to the host, as those of a size of 0."""
        sizes = chunks.sizes
        is_odd = sizes > max_stored(self.metadata.codecs, self.size)
        if self.fixed is not None:
            is_odd |= sizes != self.fixed
        elif self.size > MAX_FREE_CHUNK:
            is_odd |= sizes * MAX_EXPANSION < self.size
        if self._checksums is not None:
            is_odd |= sizes <= SIZE
        return chunks._replace(sizes=np.where(is_odd, 0, sizes))

    # -- chunks

    def _read_chunks(
        self, chunks: WantedChunks, shards: list[ShardReader | None], placing: Placing
    ) -> np.ndarray[Any, Any]:
        """Read and decode chunks; return the numbers of those that are left to the host."""
        total = len(chunks.slots)
        if not total:
            return np.zeros(0, np.int64)
        size = min(max(total * self.size // 16, MIN_BATCH), MAX_BATCH)
        batches = batches_of(chunks, max(1, size // self.stride), self.shards.source.gap)
        self._failed = self.cp.asarray((chunks.sizes == 0).astype(np.uint32))
        self._lanes = self._make_lanes(batches)
        self._batches, self._placing, self._shards = batches, placing, shards
        pieces = []
        for batch in batches:
            own = list(batch.pieces())
            batch.left = len(own)
            batch.is_launched = not own  # all of its chunks are left to the host
            pieces += own
        self._number = self.cp.cuda.Device().id
        self._error = None
        try:
            source = self.shards.source
            threads = self.threads or (READERS if source.is_local else None)
            for_each(self._fetch, pieces, kind=source.kind, max_threads=threads)
        except BaseException as error:
            raise self._error or error from None
        finally:
            for lane in self._lanes:
                lane.stream.synchronize()
        return np.flatnonzero(self._failed.get())

    def _make_lanes(self, batches: list[Batch]) -> list[Lane]:
        """Return as many lanes as there is memory for, one at least."""
        sizes, lanes = self._lane_sizes(batches), list[Lane]()
        try:
            for number in range(min(LANES, len(batches))):
                lanes.append(Lane(self.cp, number, sizes))
        except self.cp.cuda.memory.OutOfMemoryError as error:
            if not lanes:
                raise WeftError(
                    f"the GPU has no memory for the {sum(sizes)} B to read chunks of "
                    f"{self.shards.sink.url}: {error}",
                    hint="free memory, as by cupy.get_default_memory_pool().free_all_blocks()",
                ) from None
        return lanes

    def _lane_sizes(self, batches: list[Batch]) -> tuple[int, int, int, int, int]:
        """Return the bytes of the buffers of a lane."""
        count = max(len(batch.chunks.slots) for batch in batches)
        rank = batches[0].chunks.origins.shape[1]
        most = max(int(batch.chunks.sizes.max()) for batch in batches)
        pool = count * self.stride
        return (
            max(batch.staged for batch in batches) + 16,
            8 * count * (2 + rank),
            pool,
            pool if self._decoder.has_planes else 0,
            self._checksums.scratch(count, most) if self._checksums else 0,
        )

    def _fetch(self, piece: Piece) -> None:
        """Read a piece, send it to the device, and launch its batch if it is the last one."""
        try:
            with self.cp.cuda.Device(self._number):
                self._send(piece)
        except BaseException as error:
            with self._turn:
                self._error = self._error or error
                self._turn.notify_all()
            raise

    def _send(self, piece: Piece) -> None:
        batch, lanes = piece.batch, len(self._lanes)
        lane = self._lanes[batch.number % lanes]
        buffer, event = pinned_buffer(self.cp, self._number)
        if not event.done:  # waiting gives up the interpreter lock, for which others queue
            event.synchronize()
        for fetch in piece.fetches:
            to = fetch.to - piece.low
            self._read_into(fetch, buffer[to : to + fetch.size])
        if batch.number >= lanes:
            before = self._batches[batch.number - lanes]
            with self._turn:
                self._turn.wait_for(lambda: before.is_launched or self._error is not None)
        if self._error is not None:
            raise self._error
        count = piece.high - piece.low
        to = int(lane.staged.data.ptr) + piece.low
        move_bytes(self.cp, to, buffer.ctypes.data, count, lane.stream)
        event.record(lane.stream)
        with self._turn:
            batch.left -= 1
            is_last = not batch.left
        if is_last:
            self._launch(batch, lane)
            with self._turn:
                batch.is_launched = True
                self._turn.notify_all()

    def _read_into(self, fetch: Fetch, to: np.ndarray[Any, Any]) -> None:
        """Read bytes of a shard."""
        shard = self._shards[fetch.shard]
        if not isinstance(shard, FileShard):
            assert shard is not None
            to[...] = np.frombuffer(shard.read(fetch.start, fetch.size), np.uint8)
        elif shard.file >= 0:
            shard.read_into(fetch.start, to.data)
        else:
            again = shard.reopen()
            if again is None:
                raise ShardError(f"{shard.path} was replaced")
            try:
                again.read_into(fetch.start, to.data)
            finally:
                again.close()

    def _launch(self, batch: Batch, lane: Lane) -> None:
        """Launch the kernels of a batch behind its bytes."""
        chunks, count = batch.chunks, len(batch.chunks.slots)
        tail = SIZE if self._checksums else 0
        sizes = np.where(chunks.sizes, chunks.sizes.astype(np.int64) - tail, 0)
        tables = np.concatenate([batch.places, sizes, chunks.origins.reshape(-1)])
        batch.host.append(tables)
        move_bytes(self.cp, lane.tables.data.ptr, tables.ctypes.data, tables.nbytes, lane.stream)
        words = lane.tables.view(self.cp.uint64)
        stored = StoredChunks(count, lane.staged, words, lane.pool, lane.planes)
        stored.most, stored.failed = int(sizes.max()), self._failed[batch.first :]
        with lane.stream:
            if self._checksums:
                self._checksums.check(stored, lane.sums)
            self._decoder.decode(stored)
            self._placing.place(count, lane.pool, stored.failed, words[2 * count :])


class Placing:
    """Places the elements of chunks, or the fill value, in an array that holds a box."""

    def __init__(self, reader: DeviceReader, box: ZRange, out: Any) -> None:
        layout, self._out, self.cp = reader.layout, out, reader.cp
        item = layout.itemsize
        chunks, extents = layout.chunks or (1,), box.shape or (1,)
        starts, order = box.start or (0,), layout.order or tuple(range(len(chunks)))
        width = item
        if order[-1] == len(chunks) - 1:
            width = move_width(item, chunks[-1], extents[-1], starts[-1])
        swapped = item // (2 if reader.dtype.kind == "c" else 1) if not reader.dtype.isnative else 1
        source = place_source(len(chunks), width, item, swapped, prod(chunks))
        self._kernel = module("place.cu", source).get_function("weft_place")
        steps = [prod(extents[dim + 1 :]) for dim in range(len(extents))]
        table = [[chunks[dim] for dim in order], order, extents, steps]
        self._shape = self.cp.asarray(np.array(table, np.uint64).reshape(-1))
        moves = reader.size // width
        self._parts = -(-moves // MOVES)
        self._moves = np.uint64(moves), np.uint32(self._parts)
        fill = np.asarray(reader.metadata.fill, reader.dtype.newbyteorder("="))
        words = np.frombuffer(fill.tobytes() * (16 // item), np.uint64)
        self._fill = words[0], words[1]
        self._stride = np.uint64(reader.stride)

    def place(self, count: int, pool: Any, failed: Any, origins: Any) -> None:
        """Place the chunks of a pool, on the current stream."""
        at = np.uint64(0) if pool is None else address(pool)
        given = at, self._stride, np.uint64(0) if failed is None else address(failed)
        shape = address(origins), address(self._shape), *self._fill, *self._moves
        self._kernel((count * self._parts,), (THREADS,), (*given, *shape, address(self._out)))

    def fill(self, chunks: WantedChunks) -> None:
        """Write the fill value where nothing is stored."""
        origins = self.cp.asarray(np.ascontiguousarray(chunks.origins))
        self.place(len(chunks.slots), None, None, origins)


def place_source(ndim: int, width: int, item: int, swapped: int, elements: int) -> str:
    """Return the code before the kernel that places the elements of chunks."""
    count = "u32" if elements < 1 << 32 else "u64"
    sizes = {"NDIM": ndim, "WIDTH": width, "PER": width // item, "SWAPPED": swapped, "COUNT": count}
    return "\n".join(f"#define {name} {value}" for name, value in sizes.items())


def move_width(item: int, chunk: int, extent: int, start: int) -> int:
    """Return how many bytes can be moved at a time along the last dimension.

    >>> move_width(2, 128, 1000, 0), move_width(2, 128, 1000, 3), move_width(16, 3, 5, 1)
    (16, 2, 16)
    """
    return gcd(chunk * item, extent * item, start * item, 16)


def pinned_buffer(cp: Any, device: int) -> tuple[np.ndarray[Any, Any], Any]:
    """Return a pinned buffer of this thread, in turn, and the event after which it is free."""
    own: deque[tuple[np.ndarray[Any, Any], Any]]
    own = _LOCAL.__dict__.setdefault(f"buffers of {device}", deque())
    if len(own) < BUFFERS:
        own.appendleft((DeviceMemory(cp).on_host(PIECE), cp.cuda.Event(block=True)))
    else:
        own.rotate(1)
    return own[0]
