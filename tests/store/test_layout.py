"""Layouts of chunks, shards and frames, against NumPy and the shard permutation of seed 000."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft import ZRange
from weft.store.chunk_layout import ChunkLayout, FrameLayout


def seed_permutation(tile_count, tiles_per_shard):
    """P of seed 000, as its text computes it: for each tile, its address by shard and slot."""
    shard_count = [-(-n // t) for n, t in zip(tile_count, tiles_per_shard, strict=True)]
    addresses = []
    for i in range(prod(tile_count)):
        t = np.unravel_index(i, tile_count)
        s = [int(x) // n for x, n in zip(t, tiles_per_shard, strict=True)]
        w = [int(x) % n for x, n in zip(t, tiles_per_shard, strict=True)]
        addresses.append(int(np.ravel_multi_index(s + w, shard_count + list(tiles_per_shard))))
    return addresses


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=3))
def test_tiles_of_an_epoch_are_in_the_order_of_seed_000(sides):
    tile_count, tiles_per_shard = zip(*sides, strict=True)
    layout = FrameLayout((None, *tile_count), (2, *[1] * len(sides)), (2, *tiles_per_shard))
    addresses = seed_permutation(tile_count, tiles_per_shard)
    order = sorted(range(len(addresses)), key=addresses.__getitem__)
    inner = prod(tiles_per_shard)
    groups = list(layout.shard_tiles((0,)))
    assert [tile for each in groups for tile in each.tiles] == order
    assert [slot for each in groups for slot in each.slots] == [addresses[n] % inner for n in order]
    assert len({each.shard for each in groups}) == len(groups) == layout.shards_per_row


def test_the_typical_configuration_of_seed_000():
    """768 tiles in an epoch, 4 x 4 x 4 x 1 of them in a shard.

    The seed counts 768 / 64 = 12 active shards. That is so if an epoch has all tiles of a shard; if
    the first 4 are along the dimension that grows, it has 16 of each, and 48 shards are active.
    """
    inside = FrameLayout((None, 8, 8, 4, 3), (2, 1, 1, 1, 1), (2, 4, 4, 4, 1))
    assert (inside.tiles_per_epoch, inside.shards_per_row) == (768, 12)
    layout = FrameLayout((None, 16, 16, 3), (2, 1, 1, 1), (8, 4, 4, 1))
    assert (layout.tiles_per_epoch, layout.shards_per_row) == (768, 48)
    assert next(iter(layout.shard_tiles((0,)))).tiles[:5] == (0, 3, 6, 9, 48)


@st.composite
def layouts_and_boxes(draw):
    shape, chunks, shards, start, stop = [], [], [], [], []
    for _ in range(draw(st.integers(0, 3))):
        n, c, per = draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
        low = draw(st.integers(0, n))
        shape.append(n)
        chunks.append(c)
        shards.append(c * per)
        start.append(low)
        stop.append(draw(st.integers(low, n)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    itemsize = draw(st.sampled_from([1, 2, 8]))
    layout = ChunkLayout(tuple(shape), tuple(chunks), tuple(shards), order, itemsize)
    return layout, ZRange(start, stop)


@given(layouts_and_boxes())
def test_parts_of_chunks_cover_a_box(case):
    layout, box = case
    seen = np.zeros(box.shape, int)
    for shard in layout.shard_grid.meeting(box):
        parts = layout.parts(box, shard)
        assert [part.slot for part in parts] == sorted(part.slot for part in parts)
        for part in parts:
            where = layout.chunk_box(shard, part.slot) & box
            assert (part.shape, part.target) == (where.shape, (*where.slices(box.start), ...))
            seen[part.target] += 1
            first = np.subtract(where.start, layout.chunk_box(shard, part.slot).start)
            assert part.start == int(np.dot(first, layout.strides) if len(first) else 0)
            last = sum((n - 1) * s for n, s in zip(part.shape, layout.strides, strict=True))
            assert part.nbytes == last + layout.itemsize
    assert (seen == 1).all()


@given(layouts_and_boxes())
def test_expected_chunks_are_those_inside_the_array(case):
    layout, _ = case
    for shard in layout.shard_grid.meeting(ZRange.of(layout.shape)):
        boxes = (layout.chunk_box(shard, slot) for slot in range(layout.slots))
        inside = [box for box in boxes if box & ZRange.of(layout.shape)]
        assert layout.expected_chunks(shard) == len(inside)
