"""`choose_storage`: the chunks and shards in which an output is stored best.

Every cell writes whole shards, and every shard is written by one cell: where the cells' boxes cut
a dimension, shards divide the box. Of the chunks that may be, those are taken of which readers
touch the fewest bytes; of the shards, those that are fewest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt, prod
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import WeftError
from weft.layout import ShardingSpec
from weft.plan.storage import Storage
from weft.space import ZRange
from weft.values import Point, as_count, as_point, as_tuple, check_rank, freeze

if TYPE_CHECKING:
    from weft.plan.plan import Plan

MIB = 1 << 20


@dataclass(frozen=True, slots=True, init=False)
class Chunking:
    """What is wanted of chunks and shards that are to be chosen.

    `chunk_bytes` are the fewest and the most of a chunk; where no chunk has so many, the largest
    below is taken. A shard has at most `shard_bytes`, and at most `shard_chunks`, but never less
    than a chunk. `readers` are the boxes that will be read; without any, it is all planes of one
    element's thickness across every dimension. `ratio` is that of `Storage`.

    >>> Chunking(chunk_bytes=(1 << 16, 1 << 18)).shard_chunks
    4096
    """

    chunk_bytes: tuple[int, int]
    shard_bytes: int
    shard_chunks: int
    readers: tuple[ZRange, ...]
    ratio: float

    def __init__(
        self,
        chunk_bytes: Iterable[int] = (MIB, 4 * MIB),
        shard_bytes: int = 1024 * MIB,
        shard_chunks: int = 4096,
        readers: Iterable[ZRange] = (),
        ratio: float = 1.0,
    ) -> None:
        low, high = as_point(chunk_bytes, "chunk_bytes", 2)
        if not 0 <= low <= high or not high:
            raise WeftError(f"chunk_bytes are the fewest and the most, got {low} and {high}")
        for what, most in (("shard_bytes", shard_bytes), ("shard_chunks", shard_chunks)):
            if as_count(most, what) < 1:
                raise WeftError(f"{what} is 0; a shard has at least one chunk")
        freeze(
            self,
            chunk_bytes=(low, high),
            shard_bytes=int(shard_bytes),
            shard_chunks=int(shard_chunks),
            readers=as_tuple(readers, "readers", ZRange),
            ratio=Storage((), (), ratio=ratio).ratio,
        )


def choose_storage(plan: Plan, name: str, chunking: Chunking | None = None) -> Storage:
    """How an output is stored, so that every cell writes whole shards, and readers read least.

    >>> from weft import Plan, propagate, trace
    >>> graph = trace(
    ...     lambda x: x + x, (64, 100), meshes=['@m = <["x"=4]>'],
    ...     shardings={"x": '<@m, [{"x"}, {}]>'},
    ... )
    >>> plan = Plan.of(propagate(graph))
    >>> print(choose_storage(plan, "add", Chunking(chunk_bytes=(256, 512))))
    64 x 100 in chunks of 8 x 8 in shards of 16 x 104
    """
    if name not in plan.graph.outputs:
        raise WeftError(
            f"there is no output {name!r} whose storage could be chosen",
            hint=f"there are {', '.join(plan.graph.outputs)}",
        )
    spec = plan.outputs[plan.graph.outputs.index(name)]
    return choose(spec, plan.graph.values[name].shape, plan.itemsize(name), chunking or Chunking())


def choose(spec: ShardingSpec, shape: Point, itemsize: int, chunking: Chunking) -> Storage:
    """The storage of an array of which every cell writes its box."""
    for box in chunking.readers:
        check_rank("a reader's box", box.start, len(shape))
    most = min(chunking.chunk_bytes[1], chunking.shard_bytes)
    if most < itemsize:
        raise WeftError(f"a chunk of at most {most} B cannot hold an element of {itemsize} B")
    boxes = spec.shard_shape(shape)
    cuts = tuple(0 if box >= size else box for box, size in zip(boxes, shape))
    least = -(-chunking.chunk_bytes[0] // itemsize)
    chunk = _Chunks(shape, cuts, chunking.readers).best(least, most // itemsize)
    limit = min(chunking.shard_chunks, chunking.shard_bytes // (prod(chunk) * itemsize))
    shard = tuple(map(mul, chunk, _shard(shape, cuts, chunk, limit)))
    return Storage(shape, chunk, shard, itemsize, chunking.ratio)


class _Reader(NamedTuple):
    """A box that is read so often."""

    box: ZRange
    times: int


def planes(shape: Point) -> list[_Reader]:
    """All planes across every dimension: one of each direction, which touches as much as any."""
    whole = [
        ZRange((0,) * len(shape), (*shape[:dim], min(size, 1), *shape[dim + 1 :]))
        for dim, size in enumerate(shape)
    ]
    return [_Reader(box, size) for box, size in zip(whole, shape)] or [_Reader(ZRange((), ()), 1)]


class _Extent(NamedTuple):
    """A length that chunks may have along one dimension."""

    length: int
    touched: Point
    """The elements that each reader touches along it."""
    stored: int
    """The elements that are stored along it, in whole chunks."""


class _Chunks:
    """The chunks that may be, and the best of them, found by branch and bound."""

    def __init__(self, shape: Point, cuts: Point, readers: Sequence[ZRange]) -> None:
        inside = [_Reader(box & ZRange.of(shape), 1) for box in readers]
        self.readers = [r for r in inside if r.box] or planes(shape)
        self.extents = [self._extents(dim, n, cut) for dim, (n, cut) in enumerate(zip(shape, cuts))]

    def _extents(self, dim: int, size: int, cut: int) -> list[_Extent]:
        spans = [(r.box.start[dim], r.box.stop[dim]) for r in self.readers]
        return [
            _Extent(n, tuple((-(-b // n) - a // n) * n for a, b in spans), -(-size // n) * n)
            for n in lengths(size, cut)
        ]

    def best(self, least: int, most: int) -> Point:
        """The chunk of which readers touch least; then that which stores least, and the largest."""
        every = [[e.length for e in extents] for extents in self.extents]
        sizes = {1}
        for more in every:
            sizes = {a * b for a in sizes for b in more if a * b <= most}
        low = least if max(sizes) >= least else max(sizes)
        self.found: tuple[tuple[int, ...], Point] | None = None
        self.room = [prod(map(max, every[dim:])) for dim in range(len(every) + 1)]
        self.ahead = self._ahead()
        self._walk((), [r.times for r in self.readers], 1, 1, (low, most))
        assert self.found is not None  # some size is in bounds
        return self.found[1]

    def _ahead(self) -> list[Point]:
        """What readers touch at least along the dimensions from one on."""
        ones = (1,) * len(self.readers)
        leasts = [tuple(map(min, zip(*(e.touched for e in dim)))) for dim in self.extents]
        back = accumulate(
            reversed(leasts), lambda one, two: tuple(map(mul, one, two)), initial=ones
        )
        return list(back)[::-1]

    def _walk(
        self, chunk: Point, touched: Sequence[int], stored: int, size: int, bounds: tuple[int, int]
    ) -> None:
        dim = len(chunk)
        if size > bounds[1] or size * self.room[dim] < bounds[0]:
            return
        bound = sum(map(mul, touched, self.ahead[dim]))
        if self.found is not None and bound > self.found[0][0]:
            return
        if dim == len(self.extents):
            # of equals, the one that is long where the array is contiguous
            rank = (bound, stored, -size, *(-n for n in reversed(chunk)))
            if self.found is None or rank < self.found[0]:
                self.found = rank, chunk
            return
        for length, read, more in self.extents[dim]:
            reads = list(map(mul, touched, read))
            self._walk((*chunk, length), reads, stored * more, size * length, bounds)


def lengths(size: int, cut: int) -> list[int]:
    """How long chunks may be along a dimension that is cut into boxes of a length, or not, if 0.

    They divide the box; where there is none, they divide the dimension or are a power of two.

    >>> lengths(100, 6), lengths(10, 0)
    ([1, 2, 3, 6], [1, 2, 4, 5, 8, 10])
    """
    if cut:
        return list(divisors(cut))
    powers = (1 << n for n in range(size.bit_length()))
    return sorted({1, *divisors(size), *powers} - {0}) if size else [1]


def divisors(number: int) -> Iterator[int]:
    """What divides a number, small to large."""
    small = [n for n in range(1, isqrt(number) + 1) if not number % n]
    yield from sorted({*small, *(number // n for n in small)})


def _shard(shape: Point, cuts: Point, chunk: Point, limit: int) -> Point:
    """How many chunks a shard has along every dimension: so many that shards are fewest."""
    counts = [max(1, -(-size // n)) for size, n in zip(shape, chunk)]
    choices = [
        list(divisors(cut // n)) if cut else _parts(count)
        for cut, n, count in zip(cuts, chunk, counts)
    ]
    ways: list[Point] = [()]
    for some in choices:
        ways = [(*way, n) for way in ways for n in some if prod(way) * n <= limit]

    def rank(way: Point) -> tuple[int, ...]:
        shards = prod(-(-count // n) for count, n in zip(counts, way))
        return shards, prod(way), *(-n for n in reversed(way))

    return min(ways, key=rank)


def _parts(count: int) -> list[int]:
    """For every number of shards the fewest chunks that one of them must have."""
    few = range(1, isqrt(count) + 2)
    return sorted({1, *few, *(-(-count // shards) for shards in few)})
