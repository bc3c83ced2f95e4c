"""Cut host arrays into the shards of devices and back: views, or copies in blocks on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, zip_longest
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from weft.errors import WeftError
from weft.space import BlockGrid, ZRange
from weft.ttmesh.formats import Array
from weft.values import Point, as_shape

Boxes: TypeAlias = ZRange | Sequence[ZRange]
"""The boxes of one device: one, several that lie side by side, in order, or none."""

BLOCK = 512 << 10
"""Bytes copied at a time."""
ELEMENT = 8 << 10
"""Contiguous runs of up to this many bytes are copied as one element each."""
ELEMENTS = 512
"""The fewest elements in a block: NumPy releases the interpreter's lock only for more than 500."""
ALONE = 1 << 20
"""Bytes below which a second thread costs more than it saves."""


class ShardArray(np.ndarray[Any, Any]):
    """A shard that knows which boxes of the tensor it holds, so that composers can check them.

    Arrays derived from it are ordinary arrays.

    >>> shard = shard_array(np.ones((2, 3)), (ZRange((2, 0), (4, 3)),))
    >>> print(*shard.boxes, (shard + 1).boxes)
    [2:4, 0:3] None
    """

    boxes: tuple[ZRange, ...] | None

    def __array_finalize__(self, obj: Any) -> None:
        self.boxes = None


def shard_array(array: Array, boxes: tuple[ZRange, ...]) -> ShardArray:
    """Return a view of an array as a shard with its boxes."""
    shard = array.view(ShardArray)
    shard.boxes = boxes
    return shard


def distribute(
    array: Array,
    boxes: Iterable[Boxes],
    *,
    out: Sequence[Array] | None = None,
    threads: int = 2,
) -> list[Array]:
    """Return the shards of an array, one for each device.

    A shard that is contiguous in the array is a view of it, and devices with the same box share
    one shard. With `out`, every shard is copied into the array given for it.

    >>> whole = np.arange(12).reshape(3, 4)
    >>> top, right = distribute(whole, [ZRange((0, 0), (1, 4)), ZRange((0, 2), (3, 4))])
    >>> top.tolist(), right.tolist(), np.shares_memory(top, whole), np.shares_memory(right, whole)
    ([[0, 1, 2, 3]], [[2, 3], [6, 7], [10, 11]], True, False)
    """
    layouts = [shard_layout(each, array.shape) for each in boxes]
    if out is not None:
        if len(out) != len(layouts):
            raise WeftError(f"out has {len(out)} arrays for {len(layouts)} devices")
        for number, (shard, layout) in enumerate(zip(out, layouts)):
            layout.check(number, shard, array.dtype)
        copy_all((p for layout, o in zip(layouts, out) for p in layout.pairs(o, array)), threads)
        return list(out)
    shards: dict[tuple[ZRange, ...], Array] = {}
    pairs: list[CopyPair] = []
    for layout in layouts:
        if layout.boxes in shards:
            continue
        view = view_of(array, layout.boxes[0]) if len(layout.boxes) == 1 else None
        if view is not None and view.flags.c_contiguous:
            shard = view
        else:
            shard = np.empty(layout.shape, array.dtype)
            pairs += layout.pairs(shard, array)
        shards[layout.boxes] = shard_array(shard, layout.boxes)
    copy_all(pairs, threads)
    return [shards[layout.boxes] for layout in layouts]


def gather(
    shards: Sequence[Array],
    boxes: Iterable[Boxes],
    shape: Iterable[int],
    *,
    out: Array | None = None,
    threads: int = 2,
) -> Array:
    """Return the array whose shards these are; of replicas the first counts.

    >>> whole = np.arange(12).reshape(3, 4)
    >>> boxes = [ZRange((0, 0), (3, 1)), ZRange((0, 1), (3, 4)), ZRange((0, 0), (3, 1))]
    >>> bool((gather(distribute(whole, boxes), boxes, (3, 4)) == whole).all())
    True
    """
    sizes = as_shape(shape)
    layouts = [shard_layout(each, sizes) for each in boxes]
    if len(layouts) != len(shards):
        raise WeftError(f"{len(shards)} shards are given for {len(layouts)} devices")
    if not shards:
        raise WeftError("gather needs at least one shard")
    whole = np.empty(sizes, shards[0].dtype) if out is None else out
    if whole.shape != sizes or whole.dtype != shards[0].dtype:
        raise WeftError(
            f"out is {whole.dtype}{list(whole.shape)}; the array is {shards[0].dtype}{list(sizes)}"
        )
    first: dict[tuple[ZRange, ...], tuple[ShardLayout, Array]] = {}
    for number, (layout, shard) in enumerate(zip(layouts, shards)):
        layout.check(number, shard, whole.dtype)
        first.setdefault(layout.boxes, (layout, shard))
    missing = ZRange.of(sizes).difference(*(box for key in first for box in key if box))
    if missing:  # it would be left uninitialised
        raise WeftError(f"no shard holds {missing[0]} of an array of shape {sizes}")
    pairs = (pair for layout, shard in first.values() for pair in layout.pairs(shard, whole))
    copy_all((CopyPair(pair.source, pair.target) for pair in pairs), threads)
    return whole


# -- boxes that lie side by side in one shard


def view_of(array: Array, box: ZRange) -> Array:
    """Return the elements of a box as a view, at any rank."""
    index: Any = (*box.slices(), ...)
    view: Array = array[index]
    return view


class CopyPair(NamedTuple):
    """Two views of one shape: where a block goes, and where it comes from."""

    target: Array
    source: Array


class ShardLayout(NamedTuple):
    """How boxes of an array lie in a shard."""

    boxes: tuple[ZRange, ...]
    shape: Point
    places: tuple[ZRange, ...]
    """Where each box lies in the shard."""

    def pairs(self, shard: Array, array: Array) -> list[CopyPair]:
        """Return views of the shard, each with the view of the array that belongs there."""
        return [
            CopyPair(view_of(shard, place), view_of(array, box))
            for place, box in zip(self.places, self.boxes)
            if box
        ]

    def check(self, number: int, shard: Array, dtype: np.dtype[Any]) -> None:
        """Raise unless an array has the shape of the shard and that dtype."""
        if shard.shape != self.shape or shard.dtype != dtype:
            raise WeftError(
                f"shard {number} is {shard.dtype}{list(shard.shape)}; "
                f"its boxes make {dtype}{list(self.shape)}"
            )


def shard_layout(boxes: Boxes, shape: Point) -> ShardLayout:
    """Lay the boxes of one device side by side: they form a grid, in the order in which they come.

    >>> shard_layout([ZRange((0, 2), (4, 4)), ZRange((0, 6), (4, 8))], (4, 8)).shape
    (4, 4)
    """
    given = (boxes,) if isinstance(boxes, ZRange) else tuple(boxes)
    if not given:
        return ShardLayout((), (0,) * len(shape), ())
    for box in given:
        _check_inside(box, shape)
    if len(given) == 1:
        return ShardLayout(given, given[0].shape, (ZRange.of(given[0].shape),))
    spans = [
        list(dict.fromkeys((box.start[d], box.stop[d]) for box in given)) for d in range(len(shape))
    ]
    if prod(map(len, spans)) != len(given) or len(set(given)) != len(given):
        counts = " x ".join(str(len(span)) for span in spans)
        raise WeftError(f"{len(given)} boxes of one device do not form a grid of {counts}")
    extents = [[high - low for low, high in span] for span in spans]
    offsets = [dict(zip(s, accumulate(e, initial=0))) for s, e in zip(spans, extents)]
    places = tuple(
        ZRange.of(box.shape, [at[side] for at, side in zip(offsets, zip(box.start, box.stop))])
        for box in given
    )
    return ShardLayout(given, tuple(map(sum, extents)), places)


def _check_inside(box: ZRange, shape: Point) -> None:
    if box.ndim != len(shape):
        raise WeftError(f"box {box} has {box.ndim} dimensions; the array has {len(shape)}")
    for dim, (start, stop, size) in enumerate(zip(box.start, box.stop, shape)):
        if start < 0 or stop > size:
            raise WeftError(f"dimension {dim} of box {box} does not lie in the array's 0:{size}")


# -- copies in blocks, on threads


def copy_all(pairs: Iterable[CopyPair], threads: int = 2) -> None:
    """Copy every pair in blocks: the first block of each pair, then the second of each, and so on.

    The shards of one array are then read in the order in which they lie in it.
    """
    simple = [simplify(pair) for pair in pairs if pair.target.size]
    total = sum(pair.target.nbytes for pair in simple)
    turns = zip_longest(*map(_copy_jobs, simple))
    jobs = [job for turn in turns for job in turn if job]
    run_all(jobs, threads if total >= ALONE else 1)


def _copy_jobs(pair: CopyPair) -> Iterator[Callable[[], None]]:
    limit = max(BLOCK, ELEMENTS * pair.target.itemsize)
    for index in blocks_within(pair.target.shape, pair.target.itemsize, limit):
        yield partial(np.copyto, pair.target[index], pair.source[index])


def simplify(pair: CopyPair) -> CopyPair:
    """Return the same elements with as few dimensions as possible.

    A last dimension that is contiguous in both views becomes one element, or bytes if it is long.
    """
    target, source = pair
    item = target.itemsize
    dims = merge_dims(target.shape, target.strides, source.strides) or [(1, item, item)]
    shape, to_strides, from_strides = (tuple(column) for column in zip(*dims))
    target, source = as_strided(target, shape, to_strides), as_strided(source, shape, from_strides)
    if {target.strides[-1], source.strides[-1]} != {item} or target.dtype.hasobject:
        return CopyPair(target, source)
    run = shape[-1] * item
    kind = np.dtype(f"V{run}" if run <= ELEMENT else "u1")
    return CopyPair(target.view(kind), source.view(kind))


def merge_dims(shape: Point, *strides: Point) -> list[tuple[int, ...]]:
    """Return dimensions with their strides, joining those that are contiguous in every view.

    >>> merge_dims((2, 3, 1, 4), (96, 32, 32, 8), (48, 16, 16, 4))
    [(24, 8, 4)]
    """
    dims: list[tuple[int, ...]] = []
    for size, *steps in zip(shape, *strides):
        if size == 1:
            continue
        if dims and all(outer == size * step for outer, step in zip(dims[-1][1:], steps)):
            dims[-1] = (dims[-1][0] * size, *steps)
        else:
            dims.append((size, *steps))
    return dims


def blocks_within(shape: Point, item_size: int, limit: int) -> list[tuple[slice, ...]]:
    """Return indices that cut an array into blocks of at most `limit` bytes, or single elements.

    >>> blocks_within((2, 5), 8, 24)[1:3]
    [(slice(0, 1, None), slice(3, 5, None)), (slice(1, 2, None), slice(0, 3, None))]
    """
    extents, size = [], item_size
    for length in reversed(shape):
        extent = max(1, min(length, limit // size))
        extents.append(extent)
        size = size * extent if extent == length else limit + 1
    return [box.slices() for box in BlockGrid.blocks(shape, extents[::-1]).boxes()]


def run_all(jobs: Iterable[Callable[[], object]], threads: int) -> None:
    """Run jobs on threads, this one included; each takes the next job when it is done."""
    if threads < 1:
        raise WeftError(f"at least 1 thread is needed, got {threads}")
    pending = iter(jobs)

    def work() -> None:
        for job in pending:
            job()

    if threads == 1:
        work()
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()
