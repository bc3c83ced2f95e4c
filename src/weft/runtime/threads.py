"""Boxes side by side: on threads where they are large, in turn where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

LARGE = 1 << 18
"""From so many elements on, a box is worth a thread."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="weft")


def each(function: Callable[[T], U], items: Sequence[T], work: int) -> Iterable[U]:
    """The function of every item, in order; `work` is the size of the largest.

    >>> list(each(abs, [-1, 2], work=1 << 20))
    [1, 2]
    """
    if work < LARGE or len(items) < 2:
        return map(function, items)
    return _pool().map(function, items)
