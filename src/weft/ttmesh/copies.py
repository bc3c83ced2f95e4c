"""Distribution of host arrays at the speed of memory: views, or threaded copies in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.ttmesh.blocks import copy_all
from weft.ttmesh.held import held_array
from weft.ttmesh.streams import Array, Pair
from weft.values import Point, as_shape

Boxes: TypeAlias = ZRange | Sequence[ZRange]
"""What one device holds: a box, boxes that lie side by side, in order, or nothing."""


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
            known[plan.boxes] = held_array(shard, plan.boxes)
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
