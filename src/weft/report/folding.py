"""`fold`: a long program as a tree of few: layers that repeat, names that begin alike, sections."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby, pairwise
from math import isqrt
from typing import NamedTuple

FEW = 40
"""Applications that are seen at once."""
LONGEST = 512
"""The most applications of a layer."""

_JOINT = re.compile(r"[/.]")


class Fold(NamedTuple):
    """Applications that are shown as one until it is opened: from the first to before the last."""

    title: str
    start: int
    stop: int
    inner: tuple[Fold, ...] = ()


def fold(tokens: Sequence[Hashable], names: Sequence[str]) -> tuple[Fold, ...]:
    """The folds of a program: `tokens` are equal where applications are alike; names may say more.

    What is in no fold is shown as it is. A short program has none.

    >>> layers = ["matmul", "gelu", "matmul", "add"] * 12
    >>> for one in fold(["embed", *layers], [f"v{n}" for n in range(49)])[:2]:
    ...     print(one.title, one.start, one.stop)
    layer 0 1 5
    layer 1 5 9
    """
    return tuple(_within(list(tokens), list(names), 0))


def _within(tokens: list[Hashable], names: list[str], at: int) -> Iterator[Fold]:
    """The folds of a part that begins at an application."""
    if len(tokens) <= FEW:
        return
    runs = _named(names)
    if runs:
        found = [_part(tokens, names, at, *run) for run in runs]
    else:
        start, period, count = _repeated(tokens)
        if count * period * 2 < len(tokens):
            found = list(_sections(tokens, names, at))
        else:
            ends = [start + period * n for n in range(count + 1)]
            layers = [
                _part(tokens, names, at, f"layer {n}", low, high)
                for n, (low, high) in enumerate(pairwise(ends))
            ]
            yield from _within(tokens[:start], names[:start], at)
            yield from _bundled(layers, "layers")
            yield from _within(tokens[ends[-1] :], names[ends[-1] :], at + ends[-1])
            return
    yield from _bundled(found, "parts")


def _part(
    tokens: list[Hashable], names: list[str], at: int, title: str, low: int, high: int
) -> Fold:
    shorter = [_JOINT.split(name, maxsplit=1)[-1] for name in names[low:high]]
    inner = _within(tokens[low:high], shorter, at + low)
    return Fold(title, at + low, at + high, tuple(inner))


def _named(names: list[str]) -> list[tuple[str, int, int]]:
    """Runs of names that begin alike, up to the first joint; none where they say too little."""
    heads = [_JOINT.split(name, maxsplit=1) for name in names]
    if sum(len(head) > 1 for head in heads) * 2 < len(names):
        return []
    runs, at = [], 0
    for head, group in groupby(parts[0] if len(parts) > 1 else "" for parts in heads):
        size = len(list(group))
        runs.append((head or "others", at, at + size))
        at += size
    return runs if 1 < len(runs) <= len(names) // 2 else []


def _repeated(tokens: list[Hashable]) -> tuple[int, int, int]:
    """Where the longest repetition begins, how long one is, and how many there are."""
    best, n = (0, 1, 0), len(tokens)
    for period in range(2, min(n // 2, LONGEST) + 1):
        run = 0
        for end in range(period, n + 1):
            is_same = end < n and tokens[end] == tokens[end - period]
            if is_same:
                run += 1
                continue
            count = run // period + 1
            if count > 1 and count * period > best[1] * best[2]:
                best = end - run - period, period, count
            run = 0
    return best


def _sections(tokens: list[Hashable], names: list[str], at: int) -> Iterator[Fold]:
    """Sections of equal size, where nothing better is known."""
    size = max(8, min(FEW, isqrt(len(tokens))))
    for low in range(0, len(tokens), size):
        high = min(low + size, len(tokens))
        yield _part(tokens, names, at, f"operators {at + low} to {at + high - 1}", low, high)


def _bundled(folds: list[Fold], noun: str) -> list[Fold]:
    """The folds themselves if they are few, or in bundles."""
    if len(folds) <= FEW // 2:
        return folds
    size = isqrt(len(folds) - 1) + 1
    return [
        Fold(f"{noun} {n} to {n + len(some) - 1}", some[0].start, some[-1].stop, tuple(some))
        for n in range(0, len(folds), size)
        for some in [folds[n : n + size]]
    ]
