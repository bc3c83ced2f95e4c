"""Shards are views if they are contiguous, and else copies of the right bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.space import ZRange
from weft.ttmesh import distribution
from weft.ttmesh.distribution import (
    blocks_within,
    distribute,
    gather,
    merge_dims,
    run_all,
    shard_layout,
    view_of,
)

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
def test_shards_are_the_boxes_and_gather_restores_the_array(case, threads):
    array, boxes = case
    shards = distribute(array, boxes, threads=threads)
    for shard, box in zip(shards, boxes):
        assert shard.tobytes() == view_of(array, box).tobytes()
    whole = gather(shards, boxes, array.shape, threads=threads)
    assert whole.tobytes() == array.tobytes()
    out = [np.zeros(box.shape, array.dtype) for box in boxes]
    distribute(array, boxes, out=out, threads=threads)
    assert [shard.tobytes() for shard in out] == [shard.tobytes() for shard in shards]


@pytest.mark.parametrize("element", [0, 20, 1000])
@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
def test_every_block_and_element_size_gives_the_same(monkeypatch, block, element):
    for name, value in {"BLOCK": block, "ELEMENT": element, "ALONE": 0}.items():
        monkeypatch.setattr(distribution, name, value)
    array = np.random.default_rng(1).integers(0, 255, (7, 30, 55), dtype=np.uint8)
    boxes = list(ZRange.of(array.shape).tiles((3, 16, 20)))
    shards = distribute(array, boxes)
    assert all((s == array[b.slices()]).all() for s, b in zip(shards, boxes))
    assert (gather(shards, boxes, array.shape) == array).all()


@given(cut_arrays(), st.integers(1, 3), st.integers(1, 99))
def test_any_array_is_copied_in_any_blocks(case, threads, block):
    array, boxes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "ALONE", 0)
        patch.setattr(distribution, "BLOCK", block)
        out = [np.zeros(box.shape, array.dtype) for box in boxes]
        shards = distribute(array, boxes, out=out, threads=threads)
        whole = gather(shards, boxes, array.shape, threads=threads)
    assert [s.tobytes() for s in shards] == [view_of(array, box).tobytes() for box in boxes]
    assert whole.tobytes() == array.tobytes()


def test_a_read_only_out_is_refused():
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


def test_a_device_may_hold_an_empty_shard():
    array = np.arange(4)
    nothing, all_of_it = distribute(array, [(), ZRange.of((4,))])
    assert nothing.shape == (0,)
    assert gather([nothing, all_of_it], [(), ZRange.of((4,))], (4,)).tolist() == [0, 1, 2, 3]


def test_object_arrays_are_copied():
    array = np.array([[1, "a"], [None, 2.5]], object)
    (shard,) = distribute(array, [ZRange((0, 1), (2, 2))])
    assert shard.tolist() == [["a"], [2.5]]


def test_the_error_of_a_failing_job_is_raised():
    def fail():
        raise KeyError("job")

    with pytest.raises(KeyError, match="job"):
        run_all([lambda: None, fail, lambda: None], 2)


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 8), st.integers(1, 200))
def test_blocks_cover_an_array_once_and_fit(shape, item, limit):
    count = np.zeros(shape, int)
    for index in blocks_within(tuple(shape), item, limit):
        block = count[(*index, ...)]
        assert block.size == 1 or block.size * item <= limit
        block += 1
    assert (count == 1).all()


def test_dimensions_merge_only_if_all_strides_allow_it():
    assert merge_dims((2, 3, 4), (12, 4, 1), (12, 4, 1)) == [(24, 1, 1)]
    assert merge_dims((2, 3, 4), (12, 4, 1), (100, 4, 1)) == [(2, 12, 100), (12, 1, 1)]
    assert merge_dims((1, 1), (9, 9)) == []


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
            "2 boxes of one device do not form a grid of 2 x 2",
        ),
        (lambda a: distribute(a, [], out=[a]), "out has 1 arrays for 0 devices"),
        (
            lambda a: distribute(a, [ZRange((0, 0), (2, 2))], out=[a]),
            "shard 0 is int64[2, 3]; its boxes make int64[2, 2]",
        ),
        (lambda a: gather([a], [], (2, 3)), "1 shards are given for 0 devices"),
        (lambda a: gather([], [], (2, 3)), "gather needs at least one shard"),
        (
            lambda a: gather([a], [ZRange.of((2, 3))], (2, 3), out=np.zeros((2, 2), int)),
            "out is int64[2, 2]; the array is int64[2, 3]",
        ),
        (
            lambda a: gather([a], [ZRange.of((2, 3))], (2, 5)),
            "no shard holds [0:2, 3:5] of an array of shape (2, 5)",
        ),
        (lambda a: run_all([], 0), "at least 1 thread is needed, got 0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(WeftError) as refused:
        call(np.zeros((2, 3), np.int64))
    assert str(refused.value) == message


def test_a_grid_of_boxes_keeps_its_order():
    layout = shard_layout([ZRange((4,), (6,)), ZRange((0,), (1,))], (8,))
    assert layout.shape == (3,)
    assert [str(place) for place in layout.places] == ["[0:2]", "[2:3]"]
