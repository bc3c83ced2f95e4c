"""Shards are views where they can be, and copies of the right bytes where they cannot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.space import ZRange
from weft.ttmesh import blocks
from weft.ttmesh.blocks import cuts, merged, run_all
from weft.ttmesh.copies import distribute, gather, lay_out, part

DTYPES = ["u1", "<u2", "f4", ">f8", "c16", "V5", "bool", "S3"]


@st.composite
def arrays(draw):
    """An array of any rank and type, in any order of memory, with steps of any sign."""
    shape = draw(st.lists(st.integers(1, 6), max_size=4))
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    room = [shape[d] * abs(steps[d]) for d in order]
    size = int(np.prod(room, dtype=int)) * dtype.itemsize
    values = np.frombuffer(np.random.default_rng(0).bytes(size) or b"", dtype).reshape(room)
    whole = values.transpose(np.argsort(order)) if shape else values
    return whole[(*(slice(None, None, step) for step in steps), ...)]


@st.composite
def cut_arrays(draw):
    """An array and blocks of it, uneven and empty ones too, some of them twice."""
    array = draw(arrays())
    blocks = [draw(st.integers(1, n + 1)) for n in array.shape]
    boxes = list(ZRange.of(array.shape).tiles(blocks))
    return array, boxes + draw(st.lists(st.sampled_from(boxes), max_size=2))


@given(cut_arrays(), st.integers(1, 3))
def test_shards_are_the_boxes_and_come_back(case, threads):
    array, boxes = case
    shards = distribute(array, boxes, threads=threads)
    for shard, box in zip(shards, boxes):
        assert shard.tobytes() == part(array, box).tobytes()
    whole = gather(shards, boxes, array.shape, threads=threads)
    assert whole.tobytes() == array.tobytes()
    out = [np.zeros(box.shape, array.dtype) for box in boxes]
    distribute(array, boxes, out=out, threads=threads)
    assert [shard.tobytes() for shard in out] == [shard.tobytes() for shard in shards]


@pytest.mark.parametrize("folded", [0, 20, 1000])
@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
@pytest.mark.parametrize("by", ["numpy", "loop", "past the cache", "both"])
def test_every_size_of_block_and_of_run_gives_the_same(monkeypatch, block, by, folded):
    made = {"BLOCK": block, "LONG_BLOCK": block, "FOLDED": folded}
    made |= {"ALONE": 0, "LARGE": 0, "SHARES": 1 << 20}
    made |= {"SHORT": {"numpy": 1 << 20, "both": 16}.get(by, 1)}
    made |= {"LONG": 18} if by in ("past the cache", "both") else {}
    for name, value in made.items():
        monkeypatch.setattr(blocks, name, value)
    array = np.random.default_rng(1).integers(0, 255, (7, 30, 55), dtype=np.uint8)
    boxes = list(ZRange.of(array.shape).tiles((3, 16, 20)))
    shards = distribute(array, boxes)
    assert all((s == array[b.slices()]).all() for s, b in zip(shards, boxes))
    assert (gather(shards, boxes, array.shape) == array).all()


@given(cut_arrays(), st.integers(1, 3), st.integers(1, 99))
def test_any_array_goes_through_the_loop_too(case, threads, shares):
    array, boxes = case
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ALONE", "LARGE", "SHORT", "LONG", "BLOCK"):
            patch.setattr(blocks, name, 0)
        patch.setattr(blocks, "SHARES", shares)
        out = [np.zeros(box.shape, array.dtype) for box in boxes]
        shards = distribute(array, boxes, out=out, threads=threads)
        whole = gather(shards, boxes, array.shape, threads=threads)
    assert [s.tobytes() for s in shards] == [part(array, box).tobytes() for box in boxes]
    assert whole.tobytes() == array.tobytes()


def test_what_may_not_be_written_is_not():
    array = np.zeros((64, 1 << 19), np.uint8)
    shard = np.ones((64, 1 << 18), np.uint8)
    shard.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        distribute(array, [ZRange((0, 0), (64, 1 << 18))], out=[shard])
    assert shard.all()


def test_contiguous_shards_are_views_and_replicas_are_one_array():
    array = np.arange(24).reshape(4, 6)
    rows = [ZRange((0, 0), (2, 6)), ZRange((2, 0), (4, 6))]
    assert all(np.shares_memory(shard, array) for shard in distribute(array, rows))
    left = ZRange((0, 0), (4, 3))
    first, again = distribute(array, [left, left])
    assert first is again
    assert not np.shares_memory(first, array)
    (kept,) = distribute(array, [rows[0]], out=[np.zeros((2, 6), array.dtype)])
    assert not np.shares_memory(kept, array)
    assert kept.tolist() == array[:2].tolist()


def test_boxes_of_one_device_lie_side_by_side():
    array = np.arange(48).reshape(4, 12)
    boxes = [ZRange((0, c), (4, c + 2)) for c in (0, 4, 8)]
    (shard,) = distribute(array, [boxes])
    assert shard.tolist() == np.hstack([array[:, c : c + 2] for c in (0, 4, 8)]).tolist()
    both = [boxes, [ZRange((0, c), (4, c + 2)) for c in (2, 6, 10)]]
    assert (gather(distribute(array, both), both, array.shape) == array).all()
    corners = [ZRange((r, c), (r + 1, c + 2)) for r in (0, 3) for c in (0, 6)]
    (shard,) = distribute(array, [corners])
    assert shard.tolist() == array[np.ix_((0, 3), (0, 1, 6, 7))].tolist()


def test_a_device_may_hold_nothing():
    array = np.arange(4)
    nothing, all_of_it = distribute(array, [(), ZRange.of((4,))])
    assert nothing.shape == (0,)
    assert gather([nothing, all_of_it], [(), ZRange.of((4,))], (4,)).tolist() == [0, 1, 2, 3]


def test_objects_are_copied_too():
    array = np.array([[1, "a"], [None, 2.5]], object)
    (shard,) = distribute(array, [ZRange((0, 1), (2, 2))])
    assert shard.tolist() == [["a"], [2.5]]


def test_a_failing_job_is_heard_of():
    def fail():
        raise KeyError("job")

    with pytest.raises(KeyError, match="job"):
        run_all([lambda: None, fail, lambda: None], 2)


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 8), st.integers(1, 200))
def test_cuts_cover_an_array_once_in_blocks_that_fit(shape, item, limit):
    count = np.zeros(shape, int)
    for index in cuts(tuple(shape), item, limit):
        block = count[(*index, ...)]
        assert block.size == 1 or block.size * item <= limit
        block += 1
    assert (count == 1).all()


def test_dimensions_merge_only_where_all_strides_allow_it():
    assert merged((2, 3, 4), (12, 4, 1), (12, 4, 1)) == [(24, 1, 1)]
    assert merged((2, 3, 4), (12, 4, 1), (100, 4, 1)) == [(2, 12, 100), (12, 1, 1)]
    assert merged((1, 1), (9, 9)) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: distribute(a, [ZRange((0,), (2,))]),
            "box [0:2] has 1 dimensions; the array has 2",
        ),
        (
            lambda a: distribute(a, [ZRange((0, 2), (2, 9))]),
            "dimension 1 of box [0:2, 2:9] does not lie in the array's 0:3",
        ),
        (
            lambda a: distribute(a, [[ZRange((0, 0), (1, 1)), ZRange((1, 1), (2, 2))]]),
            "2 boxes of one device are no grid of 2 x 2",
        ),
        (lambda a: distribute(a, [], out=[a]), "out has 1 arrays for 0 devices"),
        (
            lambda a: distribute(a, [ZRange((0, 0), (2, 2))], out=[a]),
            "shard 0 is int64[2, 3]; its boxes make int64[2, 2]",
        ),
        (lambda a: gather([a], [], (2, 3)), "1 shards are given for 0 devices"),
        (lambda a: gather([], [], (2, 3)), "nothing is gathered from no shards"),
        (
            lambda a: gather([a], [ZRange.of((2, 3))], (2, 3), out=np.zeros((2, 2), int)),
            "out is int64[2, 2]; the array is int64[2, 3]",
        ),
        (
            lambda a: gather([a], [ZRange.of((2, 3))], (2, 5)),
            "no shard holds [0:2, 3:5] of an array of shape (2, 5)",
        ),
        (lambda a: run_all([], 0), "0 threads copy nothing"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(WeftError) as refused:
        call(np.zeros((2, 3), np.int64))
    assert str(refused.value) == message


def test_a_grid_of_boxes_is_laid_out_in_the_order_it_comes():
    layout = lay_out([ZRange((4,), (6,)), ZRange((0,), (1,))], (8,))
    assert layout.shape == (3,)
    assert [str(place) for place in layout.places] == ["[0:2]", "[2:3]"]
