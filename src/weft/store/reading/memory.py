"""How much memory a read takes at most, beside its result: known before it begins."""

from __future__ import annotations

from math import prod

from weft.space import ZRange
from weft.store.codecs import most_stored, most_work
from weft.store.reading.fetching import Form
from weft.store.reading.shards import Shards
from weft.store.reading.workers import SIZES

PART = 2048
"""Bytes of the objects that say where the part of a chunk lies and goes, and hold its turn."""

FIXED = 1 << 15
"""Bytes of the objects of any read or write, whatever its size."""

HELD = 2048
"""Bytes of the objects of a shard that is known, its index left out."""


def memory_of(form: Form, shards: Shards, box: ZRange, threads: int | None) -> int:
    """The bytes that reading a box takes at most, on so many threads.

    What no thread can do without is counted for each: the bytes of a run, or of a chunk as it is
    stored, the chunk as it was, and what its codecs need. An index is held in memory, and needs
    four times as much while it is read.
    """
    if box.is_empty:
        return FIXED
    many, per_shard = _most_parts(form, box)
    pool = SIZES[shards.source.kind]
    at_work = min(threads or pool, pool, many)
    index = shards.index_size if form.metadata.is_sharded else 0
    window = min(shards.window, many)
    held = min(shards.most, _shards_in(form)) + window if index else 0
    planned = min(many, window * per_shard)
    return (
        at_work * (_each(form, shards) + 4 * index)
        + held * (2 * index + HELD)
        + planned * PART
        + FIXED
    )


def _each(form: Form, shards: Shards) -> int:
    """The bytes of one thread."""
    codecs, size = form.metadata.codecs, form.grid.size
    fetched = max(shards.source.most, most_stored(codecs, size))
    if not shards.source.is_near:
        fetched *= 2  # as it comes over the line, and in one piece
    return fetched + (size + most_work(codecs, size) if codecs else 0)


def _most_parts(form: Form, box: ZRange) -> tuple[int, int]:
    """The chunks that a box meets, and how many of them lie in one shard at most."""
    sides = zip(box.start, box.stop, form.grid.chunks)
    counts = [-(-high // n) - low // n for low, high, n in sides]
    return prod(counts), prod(map(min, counts, form.grid.per_shard))


def _shards_in(form: Form) -> int:
    return prod(-(-n // s) for n, s in zip(form.metadata.shape, form.grid.shards))
