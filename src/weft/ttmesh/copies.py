"""Distribution of host arrays at the speed of memory: views, or threaded copies in blocks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, product, zip_longest
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.space import ZRange
from weft.values import Point, as_shape

Array: TypeAlias = NDArray[Any]
Boxes: TypeAlias = ZRange | Sequence[ZRange]
"""What one device holds: a box, boxes that lie side by side, in order, or nothing."""

BLOCK = 512 << 10
"""Bytes of short runs copied at a time: source and destination fit a core's second cache."""
LONG_BLOCK = 2 << 20
"""Bytes of longer runs copied at a time, which do not come back to what is in the cache."""
FOLDED = 1000
"""Up to so many bytes a run is moved as one element. NumPy lets go of the interpreter's lock for
more than 500 elements only, and a block has that many of these."""
LONG_RUN = 2176
"""From here on the C library copies a run without reading what it overwrites."""
STRETCH = 128
"""A run shorter by so much or less is copied as a long one: see `_stretched`."""
ALONE = 1 << 20
"""Below so many bytes a second thread costs more than it brings."""


Jobs: TypeAlias = deque[Callable[[], None]]


class Pair(NamedTuple):
    """Where a block goes and where it is taken from: two views of one shape."""

    target: Array
    source: Array


def distribute(
    array: Array,
    boxes: Iterable[Boxes],
    *,
    out: Sequence[Array] | None = None,
    threads: int = 2,
) -> list[Array]:
    """The shards of an array, one for each device.

    A shard that is contiguous in the array is a view of it, and devices that hold the same box
    have the same shard: no byte is copied that need not be. With `out`, every shard is copied
    into the array given for it.

    >>> whole = np.arange(12).reshape(3, 4)
    >>> top, right = distribute(whole, [ZRange((0, 0), (1, 4)), ZRange((0, 2), (3, 4))])
    >>> top.tolist(), right.tolist(), np.shares_memory(top, whole), np.shares_memory(right, whole)
    ([[0, 1, 2, 3]], [[2, 3], [6, 7], [10, 11]], True, False)
    """
    plans = [lay_out(entry, array.shape) for entry in boxes]
    if out is not None:
        shards = _check_out(out, plans, array.dtype)
        pairs = [pair for plan, shard in zip(plans, shards) for pair in plan.pairs(shard, array)]
        copy_all(pairs, threads)
        return shards
    known: dict[tuple[ZRange, ...], Array] = {}
    pairs = []
    for plan in plans:
        if plan.boxes not in known:
            shard, more = _shard(plan, array)
            known[plan.boxes] = shard
            pairs += more
    copy_all(pairs, threads)
    return [known[plan.boxes] for plan in plans]


def gather(
    shards: Sequence[Array],
    boxes: Iterable[Boxes],
    shape: Iterable[int],
    *,
    out: Array | None = None,
    threads: int = 2,
) -> Array:
    """The array whose shards these are; of replicas the first counts.

    >>> whole = np.arange(12).reshape(3, 4)
    >>> boxes = [ZRange((0, 0), (3, 1)), ZRange((0, 1), (3, 4)), ZRange((0, 0), (3, 1))]
    >>> bool((gather(distribute(whole, boxes), boxes, (3, 4)) == whole).all())
    True
    """
    sizes = as_shape(shape)
    plans = [lay_out(entry, sizes) for entry in boxes]
    if len(plans) != len(shards):
        raise WeftError(f"{len(shards)} shards are given for {len(plans)} devices")
    if not shards:
        raise WeftError("nothing is gathered from no shards")
    whole = np.empty(sizes, shards[0].dtype) if out is None else out
    if whole.shape != sizes or whole.dtype != shards[0].dtype:
        raise WeftError(
            f"out is {whole.dtype}{list(whole.shape)}; the array is {shards[0].dtype}{list(sizes)}"
        )
    first: dict[tuple[ZRange, ...], Array] = {}
    for number, (plan, shard) in enumerate(zip(plans, shards)):
        _check_shard(number, shard, plan, whole.dtype)
        first.setdefault(plan.boxes, shard)
    _check_whole(sizes, first)
    found = {plan.boxes: plan for plan in plans}
    pairs = [
        Pair(pair.source, pair.target)
        for key, shard in first.items()
        for pair in found[key].pairs(shard, whole)
    ]
    copy_all(pairs, threads)
    return whole


# -- boxes that lie side by side in one shard


class Layout(NamedTuple):
    """How boxes of the array lie in a shard."""

    boxes: tuple[ZRange, ...]
    shape: Point
    places: tuple[ZRange, ...]
    """Where each box lies in the shard."""

    def pairs(self, shard: Array, array: Array) -> list[Pair]:
        """Views of the shard, each with that of the array it holds."""
        return [
            Pair(part(shard, place), part(array, box))
            for place, box in zip(self.places, self.boxes)
            if box
        ]


def part(array: Array, box: ZRange) -> Array:
    """The elements of a box, as a view at any rank."""
    index: Any = (*box.slices(), ...)
    found: Array = array[index]
    return found


def lay_out(boxes: Boxes, shape: Point) -> Layout:
    """Boxes as a grid: in each dimension the intervals they have, in the order they come.

    >>> lay_out([ZRange((0, 2), (4, 4)), ZRange((0, 6), (4, 8))], (4, 8)).shape
    (4, 4)
    """
    found = (boxes,) if isinstance(boxes, ZRange) else tuple(boxes)
    if not found:
        return Layout((), (0,) * len(shape), ())
    for box in found:
        _check_inside(box, shape)
    if len(found) == 1:
        return Layout(found, found[0].shape, (ZRange.of(found[0].shape),))
    spans = [
        list(dict.fromkeys((box.start[d], box.stop[d]) for box in found)) for d in range(len(shape))
    ]
    if prod(map(len, spans)) != len(found) or len(set(found)) != len(found):
        raise WeftError(
            f"{len(found)} boxes of one device are no grid of "
            + " x ".join(str(len(span)) for span in spans)
        )
    offsets = [_offsets(span) for span in spans]
    starts = [tuple(o[b] for o, b in zip(offsets, zip(box.start, box.stop))) for box in found]
    places = tuple(ZRange.of(box.shape, start) for box, start in zip(found, starts))
    return Layout(found, tuple(sum(b - a for a, b in span) for span in spans), places)


def _offsets(spans: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    return dict(zip(spans, accumulate((stop - start for start, stop in spans), initial=0)))


def _shard(plan: Layout, array: Array) -> tuple[Array, list[Pair]]:
    """A view, or room for a shard and what is to be copied into it."""
    if len(plan.boxes) == 1:
        view = part(array, plan.boxes[0])
        if view.flags.c_contiguous:
            return view, []
    shard = np.empty(plan.shape, array.dtype)
    return shard, plan.pairs(shard, array)


# -- copies


def copy_all(pairs: Iterable[Pair], threads: int = 2) -> None:
    """Copy every pair, in blocks: the first of each, which lie near each other, then the second."""
    found = list(map(_normal, pairs))
    turns = zip_longest(*map(_jobs, found))
    total = sum(pair.target.nbytes for pair in found)
    run_all([job for turn in turns for job in turn if job], 1 if total < ALONE else threads)


def run_all(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run jobs: each thread a part of them in order, and when it is done the end of another's.

    So each thread walks through memory of its own, and none waits for one that is held up.
    """
    if threads < 1:
        raise WeftError(f"{threads} threads copy nothing", hint="give 1 or more")
    part = -(-len(jobs) // threads) or 1
    parts = [deque(jobs[low : low + part]) for low in range(0, len(jobs), part)]
    failed: list[BaseException] = []
    others = [
        threading.Thread(target=_work, args=(parts, number, failed))
        for number in range(1, len(parts))
    ]
    for other in others:
        other.start()
    if parts:
        _work(parts, 0, failed)
    for other in others:
        other.join()
    if failed:
        raise failed[0]


def _work(parts: Sequence[Jobs], mine: int, failed: list[BaseException]) -> None:
    try:
        while not failed and (job := _next(parts, mine)):
            job()
    except BaseException as error:
        failed.append(error)


def _next(parts: Sequence[Jobs], mine: int) -> Callable[[], None] | None:
    with suppress(IndexError):
        return parts[mine].popleft()
    while longest := max(parts, key=len):
        with suppress(IndexError):  # another thread was quicker
            return longest.pop()
    return None


def _normal(pair: Pair) -> Pair:
    """The same elements with as few dimensions as will do, the run of both as one element."""
    target, source = pair
    item = target.itemsize
    dims = merged(target.shape, target.strides, source.strides) or [(1, item, item)]
    shape, to, of = (tuple(column) for column in zip(*dims))
    views = as_strided(target, shape, to), as_strided(source, shape, of)
    if target.dtype.hasobject or dims[-1][1:] != (item, item):
        return Pair(*views)
    run = dims[-1][0] * item
    if run > FOLDED:
        return Pair(*(view.view(np.uint8) for view in views))
    folded = [view.view(f"V{run}") for view in views]
    return Pair(*(view[..., 0] for view in folded) if dims[1:] else folded)


def merged(shape: Point, *strides: Point) -> list[tuple[int, ...]]:
    """Dimensions, each with its strides, where those that follow upon each other are one.

    >>> merged((2, 3, 1, 4), (96, 32, 32, 8), (48, 16, 16, 4))
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


def _jobs(pair: Pair) -> Iterator[Callable[[], None]]:
    """The pair in blocks of some hundred KiB."""
    longer = _stretched(pair)
    limit = LONG_BLOCK if pair.target.dtype == np.uint8 else BLOCK
    for index in cuts(pair.target.shape, pair.target.itemsize, limit):
        yield (
            partial(_copy, pair, index)
            if longer is None
            else partial(_copy_stretched, pair, longer, index[0])
        )


def _copy(pair: Pair, index: tuple[slice, ...]) -> None:
    np.copyto(pair.target[index], pair.source[index])


def _copy_stretched(pair: Pair, longer: Pair, rows: slice) -> None:
    """What is written behind a run is overwritten by the next; the last is copied as it is."""
    _copy(longer, (slice(rows.start, rows.stop - 1),))
    _copy(pair, (slice(rows.stop - 1, rows.stop),))


def _stretched(pair: Pair) -> Pair | None:
    """Runs that are nearly long, all but the last, with the bytes behind them that make them long.

    The runs follow upon each other in the target. No byte beyond the last is touched: the bytes
    behind a run are fewer than its own, and than those to the next one.
    """
    if pair.target.ndim != 2:
        return None
    count, run = pair.target.shape
    steps, nearly = (pair.target.strides[0], pair.source.strides[0]), LONG_RUN - STRETCH
    fits = steps[0] == run <= steps[1] and pair.target.itemsize == 1
    if not fits or not max(nearly, LONG_RUN // 2 + 1) <= run < LONG_RUN <= LONG_BLOCK:
        return None
    shape = (count - 1, LONG_RUN)
    return Pair(*(as_strided(view, shape, (step, 1)) for view, step in zip(pair, steps)))


def cuts(shape: Point, item: int, limit: int) -> Iterator[tuple[slice, ...]]:
    """Indices that cut an array into blocks of at most `limit` bytes, or single elements.

    >>> list(cuts((2, 5), 8, 24))
    [(slice(0, 1, None), slice(0, 3, None)), (slice(0, 1, None), slice(3, 5, None)),
     (slice(1, 2, None), slice(0, 3, None)), (slice(1, 2, None), slice(3, 5, None))]
    """
    steps, size = [], item
    for extent in reversed(shape):
        step = min(extent, max(1, limit // size)) if extent else 1
        steps.append(step)
        size = max(size, size * step) if step == extent else limit + 1
    ranges = [range(0, n, step) for n, step in zip(shape, reversed(steps))]
    for corner in product(*ranges):
        yield tuple(slice(c, min(c + r.step, n)) for c, r, n in zip(corner, ranges, shape))


# -- checks


def _check_inside(box: ZRange, shape: Point) -> None:
    if box.ndim != len(shape):
        raise WeftError(f"box {box} has {box.ndim} dimensions; the array has {len(shape)}")
    for dim, (start, stop, size) in enumerate(zip(box.start, box.stop, shape)):
        if start < 0 or stop > size:
            raise WeftError(f"dimension {dim} of box {box} does not lie in the array's 0:{size}")


def _check_out(out: Sequence[Array], plans: list[Layout], dtype: np.dtype[Any]) -> list[Array]:
    if len(out) != len(plans):
        raise WeftError(f"out has {len(out)} arrays for {len(plans)} devices")
    for number, (shard, plan) in enumerate(zip(out, plans)):
        _check_shard(number, shard, plan, dtype)
    return list(out)


def _check_shard(number: int, shard: Array, plan: Layout, dtype: np.dtype[Any]) -> None:
    if shard.shape != plan.shape or shard.dtype != dtype:
        raise WeftError(
            f"shard {number} is {shard.dtype}{list(shard.shape)}; "
            f"its boxes make {dtype}{list(plan.shape)}"
        )


def _check_whole(shape: Point, keys: Iterable[tuple[ZRange, ...]]) -> None:
    """Shards that do not hold the whole array leave garbage in it: refused."""
    boxes = [box for key in keys for box in key if box]
    left = ZRange.of(shape).difference(*boxes)
    if left:
        raise WeftError(f"no shard holds {left[0]} of an array of shape {shape}")
