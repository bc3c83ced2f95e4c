"""`ZRange` is a set of integer points: every operation agrees with Python's sets."""

import copy
import pickle
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import box_pairs, boxes, extents, small

from weft import WeftError, ZRange


@given(boxes())
def test_shape_size_and_emptiness_count_points(box):
    points = list(box)
    assert box.size == len(points) == len(set(points))
    assert box.is_empty == (not points) == (not box)
    assert box.ndim == len(box.shape) == len(box.start)
    assert ZRange.of(box.shape, box.start) == box
    assert points == sorted(points)


@given(box_pairs())
def test_intersection_containment_and_difference_are_those_of_sets(pair):
    a, b = pair
    points_a, points_b = set(a), set(b)
    assert set(a & b) == points_a & points_b
    assert (b in a) == (points_b <= points_a)
    pieces = a.difference(b)
    assert sorted(point for piece in pieces for point in piece) == sorted(points_a - points_b)
    assert all(pieces)
    assert all(point in a for point in points_a)
    assert all((point in a) == (point in points_a) for point in points_b)


@given(st.integers(0, 3).flatmap(lambda n: st.lists(boxes(n), min_size=1, max_size=4)))
def test_difference_of_many_loses_and_repeats_nothing(given_boxes):
    first, *others = given_boxes
    left = [point for piece in first.difference(*others) for point in piece]
    assert sorted(left) == sorted(set(first).difference(*map(set, others)))


@given(box_pairs())
def test_hull_is_the_smallest_box_around_both(pair):
    a, b = pair
    hull = a.hull(b)
    points = set(a) | set(b)
    assert points <= set(hull)
    if points:
        for dim in range(a.ndim):
            assert hull.start[dim] == min(point[dim] for point in points)
            assert hull.stop[dim] == max(point[dim] for point in points) + 1
    else:
        assert hull == a


@given(boxes(), st.data())
def test_translation_moves_every_point(box, data):
    offset = tuple(data.draw(small) for _ in range(box.ndim))
    moved = {tuple(map(sum, zip(point, offset))) for point in box}
    assert set(box.translate(offset)) == moved
    assert box.translate(offset).translate([-x for x in offset]) == box


@given(boxes(), st.data())
def test_tiles_cover_in_order_and_fit_the_block(box, data):
    block = tuple(data.draw(st.integers(1, 4)) for _ in range(box.ndim))
    anchor = data.draw(st.none() | st.tuples(*[small] * box.ndim))
    tiles = list(box.tiles(block, anchor))
    assert sorted(point for tile in tiles for point in tile) == list(box)
    assert tiles == sorted(tiles, key=lambda tile: tile.start)
    origin = box.start if anchor is None else anchor
    for tile in tiles:
        assert tile
        numbers = {tuple((x - o) // n for x, o, n in zip(point, origin, block)) for point in tile}
        assert len(numbers) == 1, "a tile lies in one block of the grid"


@given(st.integers(1, 4).flatmap(boxes), st.data())
def test_split_cuts_where_asked(box, data):
    dim = data.draw(st.integers(0, box.ndim - 1))
    cuts = data.draw(st.lists(small, max_size=4))
    pieces = box.split(dim, cuts)
    assert [point for piece in pieces for point in piece] == sorted(
        box, key=lambda p: (sum(p[dim] >= cut for cut in set(cuts)), p)
    )
    inner = {cut for cut in cuts if box.start[dim] < cut < box.stop[dim]}
    assert len(pieces) == len(inner) + 1


@given(st.lists(st.tuples(extents, extents, extents), max_size=4))
def test_slices_index_the_same_points_in_numpy(sides):
    shape = [a + b + c for a, b, c in sides]
    box = ZRange([a for a, _, _ in sides], [a + b for a, b, _ in sides])
    array = np.arange(int(np.prod(shape))).reshape(shape)
    picked = array[box.slices()]
    assert list(picked.ravel()) == [array[point] for point in box]
    shard = array[box.slices()]
    again = shard[box.slices(origin=box.start)]
    assert (again == picked).all()


def test_rank_zero_holds_one_point():
    box = ZRange((), ())
    assert list(box) == [()]
    assert box.size == 1
    assert () in box
    assert box
    assert list(box.tiles(())) == [box]
    assert box.difference(box) == ()
    assert box.slices() == ()


def test_is_a_value():
    box = ZRange([0, np.int64(2)], (4, 8))
    assert box == ZRange((0, 2), (4, 8))
    assert hash(box) == hash(ZRange((0, 2), (4, 8)))
    assert repr(box) == "ZRange(start=(0, 2), stop=(4, 8))"
    assert str(box) == "[0:4, 2:8]"
    assert pickle.loads(pickle.dumps(box)) == copy.deepcopy(box) == box
    with pytest.raises(AttributeError):
        box.start = (1, 1)
    assert not hasattr(box, "__dict__")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZRange((0,), (1, 2)), "stop has 2 dimensions where 1 are expected: (1, 2)"),
        (lambda: ZRange((0, 5), (1, 2)), "dimension 1 stops at 2, before its start 5"),
        (lambda: ZRange((0.5,), (1,)), "start must be a sequence of integers: (0.5,)"),
        (lambda: ZRange(0, 4), "start must be a sequence of integers: 0"),
        (lambda: ZRange("ab", "cd"), "start must be a sequence of integers: 'ab'"),
        (lambda: ZRange.of((2, -3)), "dimension 1 has the negative size -3 in shape (2, -3)"),
        (
            lambda: ZRange.of((2,), start=(0, 0)),
            "start has 2 dimensions where 1 are expected: (0, 0)",
        ),
        (
            lambda: ZRange((0,), (1,)) & ZRange((0, 0), (1, 1)),
            "[0:1, 0:1] is not a box of rank 1, as [0:1] is",
        ),
        (lambda: ZRange((0,), (1,)).hull(ZRange((), ())), "[] is not a box of rank 1, as [0:1] is"),
        (lambda: ZRange((0,), (1,)).hull(3), "3 is not a box of rank 1, as [0:1] is"),
        (lambda: ZRange((0,), (1,)).split("0", [1]), "dimension must be an integer: '0'"),
        (lambda: (1, 2) in ZRange((0,), (1,)), "point has 2 dimensions where 1 are expected"),
        (lambda: ZRange((0,), (1,)).translate((1, 2)), "offset has 2 dimensions where 1"),
        (lambda: ZRange((0,), (1,)).split(1, [0]), "no dimension 1 in a box of rank 1: [0:1]"),
        (lambda: ZRange((0,), (1,)).tiles((0,)), "dimension 0 of block shape (0,) is below 1"),
        (lambda: ZRange((0,), (1,)).tiles((1,), anchor=()), "anchor has 0 dimensions where 1"),
        (
            lambda: ZRange((-1,), (4,)).slices(),
            "dimension 0 of [-1:4] starts at -1, before origin 0",
        ),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_a_box_meets_boxes_only():
    with pytest.raises(TypeError):
        ZRange((0,), (1,)) & 3


def test_a_long_side_is_never_stored():
    long = ZRange.of((3, 2**70))
    assert next(iter(long)) == (0, 0)
    assert str(next(long.tiles((1, 10)))) == "[0:1, 0:10]"
    assert list(islice(ZRange((2**70,), (2**80,)), 2)) == [(2**70,), (2**70 + 1,)]


def test_an_integer_gets_a_hint():
    with pytest.raises(WeftError) as caught:
        ZRange(0, 4)
    assert caught.value.__notes__ == ["hint: write (0,) for one dimension"]
