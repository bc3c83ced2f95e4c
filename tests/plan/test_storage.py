"""Storage: what boxes touch, against counting chunk by chunk and point by point."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import WeftError, ZRange, cover
from weft.plan import Storage


@st.composite
def storages(draw, ndim=None):
    """Small arrays of any rank, sometimes empty, with chunks that may be longer than the array."""
    ndim = draw(st.integers(0, 3)) if ndim is None else ndim
    shape = [draw(st.integers(0, 9)) for _ in range(ndim)]
    chunk = [draw(st.integers(1, 4)) for _ in range(ndim)]
    shard = [draw(st.integers(1, 3)) * c for c in chunk]
    return Storage(shape, chunk, shard, draw(st.sampled_from([1, 4, 8])))


@st.composite
def stored_boxes(draw):
    """An array, and a box that may be empty or reach beyond it."""
    storage = draw(storages())
    start = [draw(st.integers(-2, 10)) for _ in storage.shape]
    box = ZRange(start, [low + draw(st.integers(0, 7)) for low in start])
    return storage, box


def numbers(storage, box, block):
    """The blocks in which some point of a box lies, found point by point."""
    inside = box & ZRange.of(storage.shape)
    return {tuple(x // n for x, n in zip(point, block)) for point in inside}


def chunks_of(storage, shard):
    """The chunks of a shard that hold some point of the array."""
    box = ZRange.of(storage.shard, [k * n for k, n in zip(shard, storage.shard)])
    return numbers(storage, box, storage.chunk)


@given(stored_boxes())
def test_touched_chunks_equal_those_found_by_counting_points(given_):
    storage, box = given_
    found = numbers(storage, box, storage.chunk)
    whole = prod(storage.chunk) * storage.itemsize
    assert storage.touched(box) == (len(found), len(found) * whole)
    written = {
        c for shard in numbers(storage, box, storage.shard) for c in chunks_of(storage, shard)
    }
    assert storage.written(box) == (len(written), len(written) * whole)


@given(stored_boxes())
def test_blocks_are_boxes_that_tile_the_array(given_):
    storage, box = given_
    for blocks, extent in ((storage.chunks, storage.chunk), (storage.shards, storage.shard)):
        if storage.space:
            assert cover(blocks(), storage.space).is_exact
        meet = [block for block in blocks() if block & box]
        assert list(blocks(box)) == meet
        assert len(meet) == len(numbers(storage, box, extent))


@given(stored_boxes())
def test_a_box_is_aligned_where_it_is_made_of_whole_shards(given_):
    storage, box = given_
    whole = list(storage.shards(box))
    made = not box or (bool(whole) and cover(whole, box).is_exact)
    assert storage.aligned(box) == made


@given(storages(), st.data())
def test_amplification_is_the_bytes_touched_over_the_bytes_needed(storage, data):
    boxes = data.draw(st.lists(st.sampled_from([*storage.chunks(), storage.space]), max_size=3))
    needed = storage.itemsize * sum(box.size for box in boxes)
    read = sum(storage.touched(box).nbytes for box in boxes)
    assert storage.amplification(iter(boxes)) == (read / needed if needed else 1.0)


def test_huge_arrays_are_counted_without_enumerating_chunks():
    huge = Storage((1 << 40,) * 3, (1, 64, 64), (64, 64, 64), itemsize=2)
    assert huge.touched(huge.space).chunks == 1 << 108
    assert huge.aligned(ZRange((64, 0, 0), (128, 1 << 40, 64)))


def test_chunks_at_the_edge_of_an_array_are_stored_whole():
    storage = Storage((10,), (4,), (8,), itemsize=4)
    assert storage.touched(ZRange((9,), (10,))) == (1, 16)
    assert storage.written(ZRange((9,), (10,))) == (1, 16)  # the chunk [12:16] is not there
    assert storage.amplification([storage.space]) == 1.2


def test_storage_is_a_value():
    one = Storage([8, 8], (2, 4), itemsize=4)
    assert one == Storage((8, 8), (2, 4), (2, 4), 4, 1)
    assert len({one, Storage((8, 8), (2, 4), itemsize=4)}) == 1
    assert str(one) == "8 x 8 in chunks of 2 x 4"
    assert str(Storage((8,), (2,), (4,))) == "8 in chunks of 2 in shards of 4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((8,), (0,)), r"dimension 0 of a chunk, \(0,\), is below 1"),
        (((8,), (2,), (0,)), r"dimension 0 of a shard, \(0,\), is below 1"),
        (((8, 8), (2,)), "a chunk has 1 dimension where 2 are expected"),
        (
            ((4, 8), (2, 3), (2, 7)),
            "dimension 1: a shard of 7 is not made of whole chunks of 3: 7 = 2 x 3 [+] 1",
        ),
        (((8,), (2,), None, 0), "an element in storage has at least 1 B, got an itemsize of 0"),
        (((8,), (2,), None, 1, 0), "the ratio of storage is 0; it must be finite, above 0"),
        (((8,), (2,), None, 1, "2"), "the ratio of storage must be a number: '2'"),
    ],
)
def test_invalid_chunks_and_shards_are_refused(arguments, message):
    with pytest.raises(WeftError, match=message):
        Storage(*arguments)
