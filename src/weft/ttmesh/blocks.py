"""Copies of strided views in blocks, on threads: by the processor's own loop, or by NumPy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product, zip_longest
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from weft.errors import WeftError
from weft.ttmesh import streams
from weft.ttmesh.streams import Pair
from weft.values import Point

BLOCK = 512 << 10
"""Bytes of short runs copied at a time: source and destination fit a core's second cache."""
LONG_BLOCK = 2 << 20
"""Bytes of longer runs that NumPy copies at a time: none of them is used again."""
FOLDED = 1000
"""Up to so many bytes NumPy moves a run as one element. It lets go of the interpreter's lock for
more than 500 elements only, and a block has that many of these."""
SHARES = 16
"""Into about so many blocks runs for the loop are cut: taking turns at the interpreter's lock
costs more than the blocks' sizes matter, and two threads that are not equally quick even out."""
SHORT = 32
"""Runs of fewer bytes are left to NumPy."""
LONG = 1 << 10
"""Runs of so many bytes and more are written past the cache."""
LARGE = 16 << 20
"""From so many bytes on, which no cache keeps, the loop copies; below, NumPy is as good."""
ALONE = 1 << 20
"""Below so many bytes a second thread costs more than it brings."""


Jobs: TypeAlias = deque[Callable[[], None]]


def copy_all(pairs: Iterable[Pair], threads: int = 2) -> None:
    """Copy every pair, in blocks: the first of each, which lie near each other, then the second."""
    found = [_normal(pair) for pair in pairs if pair.target.size]
    total = sum(pair.target.nbytes for pair in found)
    if total < ALONE:
        run_all(_in_turn(found), 1)
    else:
        run_all(_in_blocks(found, total), threads)


def _in_blocks(pairs: Sequence[Pair], total: int) -> list[Callable[[], None]]:
    """Runs of bytes row by row, those of one shape together; what is left, as NumPy does it."""
    groups: dict[Point, list[Pair]] = {}
    left = []
    by_loop = total >= LARGE and streams.loop()
    for pair in pairs:
        if by_loop and (runs := _runs(pair)):
            groups.setdefault(runs.target.shape, []).append(runs)
        else:
            left.append(pair)
    jobs = [job for group in groups.values() for job in _streamed(group, total)]
    return jobs + _in_turn(left)


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
    """The same elements with as few dimensions as will do."""
    target, source = pair
    item = target.itemsize
    dims = merged(target.shape, target.strides, source.strides) or [(1, item, item)]
    shape, to, of = (tuple(column) for column in zip(*dims))
    return Pair(as_strided(target, shape, to), as_strided(source, shape, of))


def _has_runs(pair: Pair) -> bool:
    """Whether the last dimension is bytes that follow upon each other, in both views."""
    items = {view.strides[-1] for view in pair} | {pair.target.itemsize}
    return len(items) == 1 and not pair.target.dtype.hasobject


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


# -- by the processor's own loop


def _runs(pair: Pair) -> Pair | None:
    """Rows of bytes for the loop; None where it is not for these elements."""
    if not _has_runs(pair) or not pair.target.flags.writeable:
        return None
    target, source = (np.atleast_2d(view.view(np.uint8)) for view in pair)
    return Pair(target, source) if target.shape[-1] >= SHORT else None


def _streamed(group: Sequence[Pair], total: int) -> Iterator[Callable[[], None]]:
    """Pairs of one shape in blocks, each a row of all of them after the other."""
    block = max(BLOCK, -(-total // SHARES))
    run = group[0].target.shape[-1]
    table, rows = streams.entries(group, run >= LONG)
    for index in cuts((rows, len(table), run), 1, block):
        yield partial(streams.copy, table, *index)


# -- by NumPy


def _in_turn(pairs: Sequence[Pair]) -> list[Callable[[], None]]:
    turns = zip_longest(*(_jobs(_folded(pair)) for pair in pairs))
    return [job for turn in turns for job in turn if job]


def _folded(pair: Pair) -> Pair:
    """The run as one element, or as bytes."""
    if not _has_runs(pair):
        return pair
    run = pair.target.shape[-1] * pair.target.itemsize
    if run > FOLDED:
        return Pair(*(view.view(np.uint8) for view in pair))
    folded = [view.view(f"V{run}") for view in pair]
    return Pair(*(view[..., 0] for view in folded) if pair.target.ndim > 1 else folded)


def _jobs(pair: Pair) -> Iterator[Callable[[], None]]:
    """The pair in blocks of some hundred KiB."""
    limit = LONG_BLOCK if pair.target.dtype == np.uint8 else BLOCK
    for index in cuts(pair.target.shape, pair.target.itemsize, limit):
        yield partial(np.copyto, pair.target[index], pair.source[index])


# -- blocks


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
