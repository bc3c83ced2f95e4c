"""Shards that know which boxes of the tensor they hold, so that composers can check their order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.space import ZRange

Boxes = tuple[ZRange, ...]


class HeldArray(np.ndarray[Any, Any]):
    """A shard with the boxes that it holds; an array made from it is an array as any other.

    >>> shard = held_array(np.ones((2, 3)), (ZRange((2, 0), (4, 3)),))
    >>> print(*shard.boxes, (shard + 1).boxes)
    [2:4, 0:3] None
    """

    boxes: Boxes | None

    def __array_finalize__(self, obj: Any) -> None:
        self.boxes = None


def held_array(array: NDArray[Any], boxes: Boxes) -> HeldArray:
    """The array as one that knows its boxes; the memory is the same."""
    found = array.view(HeldArray)
    found.boxes = boxes
    return found


def boxes_of(shard: Any) -> Boxes | None:
    """The boxes that a shard holds, if it knows them."""
    return shard.boxes if isinstance(shard, HeldArray) else None
