"""`choose_storage`: choose the chunks and shards in which an output is stored.

Every cell writes whole shards, and every shard is written by one cell: where the cells' boxes cut
a dimension, shards divide the box. Of all chunks in the given range of sizes, those are chosen of
which readers touch the fewest bytes; of all shards, the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, isqrt, prod
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import WeftError
from weft.layout import ShardingSpec
from weft.program.storage import Storage
from weft.space import BlockGrid, ZRange
from weft.values import Point, as_count, as_point, as_tuple, check_rank, freeze

if TYPE_CHECKING:
    from weft.plan.plan import Plan

MIB = 1 << 20


@dataclass(frozen=True, slots=True, init=False)
class Chunking:
    """The constraints on chunks and shards that are to be chosen.

    `chunk_bytes` are the fewest and the most bytes of a chunk; where no chunk has so many, the
    largest below is taken. A shard has at most `shard_bytes`, and at most `shard_chunks`, but at
    least one chunk. `readers` are the boxes that will be read; by default all planes across every
    dimension, one element thick. `ratio` is that of `Storage`.

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
    """Return the storage of an output, so that cells write whole shards and readers read least.

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
            f"there is no output {name!r} to choose storage for",
            hint=f"there are {', '.join(plan.graph.outputs)}",
        )
    spec = plan.outputs[plan.graph.outputs.index(name)]
    return choose(spec, plan.graph.values[name].shape, plan.itemsize(name), chunking or Chunking())


def choose(spec: ShardingSpec, shape: Point, itemsize: int, chunking: Chunking) -> Storage:
    """Return the storage of an array of which every cell writes its box."""
    for box in chunking.readers:
        check_rank("a reader's box", box.start, len(shape))
    most = min(chunking.chunk_bytes[1], chunking.shard_bytes)
    if most < itemsize:
        raise WeftError(f"a chunk of at most {most} B cannot hold an element of {itemsize} B")
    cuts = _cut_lengths(spec.blocks(shape))
    least = -(-chunking.chunk_bytes[0] // itemsize)
    chunk = _Chunks(shape, cuts, chunking.readers).best(least, most // itemsize)
    limit = min(chunking.shard_chunks, chunking.shard_bytes // (prod(chunk) * itemsize))
    shard = tuple(map(mul, chunk, _shard(shape, cuts, chunk, limit)))
    return Storage(shape, chunk, shard, itemsize, chunking.ratio)


def _cut_lengths(grid: BlockGrid) -> Point:
    """Return for each dimension the longest of which all its cuts are multiples; 0 if uncut.

    >>> _cut_lengths(BlockGrid.cut((64, 100), (4, 3), [None, (20, 50)]))
    (16, 10)
    """
    inside = (
        [edge for edge in grid.edges_of(dim) if 0 < edge < size]
        for dim, size in enumerate(grid.shape)
    )
    return tuple(gcd(*edges) for edges in inside)


class _ReadBox(NamedTuple):
    """A box, and how often it is read."""

    box: ZRange
    times: int


def planes(shape: Point) -> list[_ReadBox]:
    """Return one plane across every dimension, to be read as often as there are such planes."""
    boxes = [
        ZRange((0,) * len(shape), (*shape[:dim], min(size, 1), *shape[dim + 1 :]))
        for dim, size in enumerate(shape)
    ]
    return [_ReadBox(box, size) for box, size in zip(boxes, shape)] or [_ReadBox(ZRange((), ()), 1)]


class _Extent(NamedTuple):
    """A possible length of chunks along one dimension."""

    length: int
    touched: Point
    """The elements that each reader touches along it."""
    stored: int
    """The elements that whole chunks store along it."""


class _Chunks:
    """The possible chunks, and a search for the best by branch and bound."""

    def __init__(self, shape: Point, cuts: Point, readers: Sequence[ZRange]) -> None:
        inside = [_ReadBox(box & ZRange.of(shape), 1) for box in readers]
        self.readers = [r for r in inside if r.box] or planes(shape)
        self.extents = [self._extents(dim, n, cut) for dim, (n, cut) in enumerate(zip(shape, cuts))]

    def _extents(self, dim: int, size: int, cut: int) -> list[_Extent]:
        spans = [(r.box.start[dim], r.box.stop[dim]) for r in self.readers]
        found = []
        for n in lengths(size, cut):
            grid = BlockGrid.blocks((size,), (n,))
            touched = tuple(n * len(grid.overlaps(0, *span)) for span in spans)
            found.append(_Extent(n, touched, n * grid.size))
        return found

    def best(self, least: int, most: int) -> Point:
        """Return the chunk of which readers touch least; of several the one that stores least."""
        every = [[e.length for e in extents] for extents in self.extents]
        sizes = {1}
        for more in every:
            sizes = {a * b for a in sizes for b in more if a * b <= most}
        low = least if max(sizes) >= least else max(sizes)
        self.best_chunk: tuple[tuple[int, ...], Point] | None = None
        self.largest = [prod(map(max, every[dim:])) for dim in range(len(every) + 1)]
        self.lower_bounds = self._lower_bounds()
        self._extend((), [r.times for r in self.readers], 1, 1, (low, most))
        assert self.best_chunk is not None  # some size is in bounds
        return self.best_chunk[1]

    def _lower_bounds(self) -> list[Point]:
        """Return for each dimension the least that readers touch along it and those after it."""
        ones = (1,) * len(self.readers)
        leasts = [tuple(map(min, zip(*(e.touched for e in dim)))) for dim in self.extents]
        back = accumulate(
            reversed(leasts), lambda one, two: tuple(map(mul, one, two)), initial=ones
        )
        return list(back)[::-1]

    def _extend(
        self, chunk: Point, touched: Sequence[int], stored: int, size: int, bounds: tuple[int, int]
    ) -> None:
        dim = len(chunk)
        if size > bounds[1] or size * self.largest[dim] < bounds[0]:
            return
        bound = sum(map(mul, touched, self.lower_bounds[dim]))
        if self.best_chunk is not None and bound > self.best_chunk[0][0]:
            return
        if dim == len(self.extents):
            # of equals, the one that is long where the array is contiguous
            rank = (bound, stored, -size, *(-n for n in reversed(chunk)))
            if self.best_chunk is None or rank < self.best_chunk[0]:
                self.best_chunk = rank, chunk
            return
        for length, read, more in self.extents[dim]:
            reads = list(map(mul, touched, read))
            self._extend((*chunk, length), reads, stored * more, size * length, bounds)


def lengths(size: int, cut: int) -> list[int]:
    """Return the possible lengths of chunks in a dimension that is cut into boxes of `cut`, if any.

    They divide the box; in an uncut dimension they divide its size or are a power of two.

    >>> lengths(100, 6), lengths(10, 0)
    ([1, 2, 3, 6], [1, 2, 4, 5, 8, 10])
    """
    if cut:
        return list(divisors(cut))
    powers = (1 << n for n in range(size.bit_length()))
    return sorted({1, *divisors(size), *powers} - {0}) if size else [1]


def divisors(number: int) -> Iterator[int]:
    """Yield the divisors of a number, small to large."""
    small = [n for n in range(1, isqrt(number) + 1) if not number % n]
    yield from sorted({*small, *(number // n for n in small)})


def _shard(shape: Point, cuts: Point, chunk: Point, limit: int) -> Point:
    """Return how many chunks a shard has along every dimension, so that there are fewest shards."""
    counts = [max(1, count) for count in BlockGrid.blocks(shape, chunk).counts]
    choices = [
        list(divisors(cut // n)) if cut else _parts(count)
        for cut, n, count in zip(cuts, chunk, counts)
    ]
    shards: list[Point] = [()]
    for some in choices:
        shards = [(*shard, n) for shard in shards for n in some if prod(shard) * n <= limit]

    def rank(shard: Point) -> tuple[int, ...]:
        number = prod(-(-count // n) for count, n in zip(counts, shard))
        return number, prod(shard), *(-n for n in reversed(shard))

    return min(shards, key=rank)


def _parts(count: int) -> list[int]:
    """Return for every number of shards the fewest chunks of the largest of them."""
    few = range(1, isqrt(count) + 2)
    return sorted({1, *few, *(-(-count // shards) for shards in few)})
