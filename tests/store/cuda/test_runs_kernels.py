"""The kernels of runs make the reference's bytes."""

import os

import numpy as np
import pytest
from tests.store.chunks import KINDS, chunks
from tests.store.cuda.host import Buffer, empty, u32, u64

from weft.store.runs import BLOCK, TYPESIZES, encode_runs_of

CASES = int(os.environ.get("WEFT_FUZZ", "0")) or 150


def encoded(host, rows, typesize, shift=0, gap=0, absent=()):
    """Frames by the three launches, at offsets that leave no room between them."""
    count, size = rows.shape
    blocks = -(-size // BLOCK)
    padded = np.pad(rows, ((0, 0), (0, gap)))
    source, shape = Buffer(padded, shift), (u64(size + gap), u64(size), u32(typesize))
    slots, sizes = empty(count * blocks * BLOCK, "u1"), empty(count * blocks, "u4")
    starts, totals = empty(count * blocks, "u4"), empty(count, "u8")
    host.launch("weft_runs_blocks", count * blocks, source, *shape, slots, sizes)
    host.launch("weft_runs_sizes", count, *shape[1:], sizes, starts, totals)
    totals.array[list(absent)] = 0
    order = host.rng.permutation(count)
    offsets = Buffer(np.zeros(count, "u8"))
    ends = np.cumsum(totals.array[order])
    offsets.array[order] = ends - totals.array[order]
    out = empty(int(ends[-1]), "u1", int(host.rng.integers(16)))
    given = (source, *shape, slots, sizes, starts, totals, offsets, out)
    host.launch("weft_runs_frames", count * blocks, *given)
    return [
        out.array[at : at + total].tobytes()
        for at, total in zip(offsets.array.astype(int), totals.array.astype(int))
    ]


def test_random_chunks(host):
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        typesize, kind = int(rng.choice(TYPESIZES)), int(rng.integers(KINDS))
        most = int(rng.choice([40, 2_000, 3 * BLOCK])) // typesize
        rows = chunks(rng, int(rng.integers(1, 4)), typesize * int(rng.integers(1, most + 1)), kind)
        shift, gap = (
            (int(rng.integers(16)), int(rng.integers(20))) if rng.random() < 0.4 else (0, 0)
        )
        made = encoded(host, rows, typesize, shift, gap)
        assert made == encode_runs_of(rows, typesize), f"seed {seed}: {rows.shape} {typesize}"


@pytest.mark.parametrize("typesize", TYPESIZES)
@pytest.mark.parametrize("kind", range(KINDS))
def test_whole_blocks(host, typesize, kind):
    rows = chunks(np.random.default_rng(kind), 2, 2 * BLOCK, kind)
    assert encoded(host, rows, typesize) == encode_runs_of(rows, typesize)


@pytest.mark.parametrize("size", [1, 2, 12, 13, 18, 19, 20, 63, 64, 65, BLOCK - 1, BLOCK + 1])
@pytest.mark.parametrize("value", [0, 255])
def test_one_value(host, size, value):
    rows = np.full((1, size), value, np.uint8)
    assert encoded(host, rows, 1) == encode_runs_of(rows, 1)


def test_chunks_of_more_blocks_than_threads(host):
    rows = chunks(np.random.default_rng(0), 1, 300 * BLOCK + 4, 1)
    assert encoded(host, rows, 4) == encode_runs_of(rows, 4)


def test_chunks_that_are_absent_are_not_written(host):
    rows = chunks(np.random.default_rng(0), 3, 4000, 4)
    first, _, last = encode_runs_of(rows, 2)
    assert encoded(host, rows, 2, absent=[1]) == [first, b"", last]
