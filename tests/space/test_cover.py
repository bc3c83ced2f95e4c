"""Exact covers: what brute force counts, what islpy says, and what is named when they fail."""

from collections import Counter
from math import prod

import islpy as isl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import boxes, partitions

from weft import WeftError, ZRange, cover


@given(partitions())
def test_a_partition_is_exact(case):
    target, parts = case
    result = cover(parts, target)
    assert result.is_exact
    assert str(result).endswith("exactly once")
    result.check()


@given(partitions(), st.data())
def test_a_part_lost_or_repeated_is_named(case, data):
    target, parts = case
    full = [number for number, part in enumerate(parts) if part]
    number = data.draw(st.sampled_from(full))
    (gap,) = cover([*parts[:number], *parts[number + 1 :]], target).defects
    assert (gap.box, gap.by, gap.inside) == (parts[number], (), True)
    (overlap,) = cover([*parts, parts[number]], target).defects
    assert (overlap.box, overlap.by) == (parts[number], (number, len(parts)))


@given(st.integers(0, 3).flatmap(lambda n: st.tuples(st.lists(boxes(n), max_size=6), boxes(n))))
def test_defects_are_exactly_the_points_counted_wrong(case):
    given_boxes, target = case
    counts = Counter(point for box in given_boxes for point in box)
    wrong = {point for point in {*counts, *target} if counts[point] != (point in target)}
    result = cover(given_boxes, target, limit=10_000)
    assert result.is_exact == (not wrong)
    named = [point for defect in result.defects for point in defect.box]
    assert len(named) == len(set(named)), "defects are disjoint"
    assert set(named) == wrong
    for defect in result.defects:
        for point in defect.box:
            assert defect.by == tuple(n for n, box in enumerate(given_boxes) if point in box)
            assert defect.inside == (point in target)


any_boxes = st.integers(1, 3).flatmap(lambda n: st.tuples(boxes(n), st.lists(boxes(n), max_size=5)))


@given(st.one_of(any_boxes, partitions(1), partitions(2), partitions(3)))
def test_exactness_agrees_with_islpy(case):
    target, given_boxes = case

    def as_set(box):
        names = [f"x{d}" for d in range(box.ndim)]
        where = " and ".join(f"{a} <= {x} < {b}" for x, a, b in zip(names, box.start, box.stop))
        return isl.Set(f"{{ [{', '.join(names)}] : {where} }}")

    sets = [as_set(box) for box in given_boxes]
    union = as_set(target) - as_set(target)
    disjoint = True
    for each in sets:
        disjoint = disjoint and (union & each).is_empty()
        union = union | each
    assert cover(given_boxes, target).is_exact == (disjoint and union == as_set(target))


def test_an_overlap_and_a_gap_of_equal_size_are_both_found():
    parts = [ZRange((0,), (1,)), ZRange((0,), (1,)), ZRange((2,), (4,))]
    with pytest.raises(WeftError) as caught:
        cover(parts, ZRange((0,), (4,))).check()
    assert str(caught.value) == ("3 boxes cover [0:4]: overlap [0:1] by boxes 0, 1; gap [1:2]")


def test_a_box_outside_is_named():
    result = cover([ZRange((0,), (6,))], ZRange((0,), (4,)))
    assert str(result) == "1 box covers [0:4]: outside [4:6] by boxes 0"


def test_only_as_many_defects_as_asked_for():
    assert len(cover([], ZRange.of((4, 4)), limit=0).defects) == 0
    holes = [box for n, box in enumerate(ZRange.of((40,)).tiles((1,))) if n % 2]
    assert len(cover(holes, ZRange.of((40,)), limit=3).defects) == 3


def test_rank_zero():
    point = ZRange((), ())
    assert cover([point], point).is_exact
    assert str(cover([], point)) == "0 boxes cover []: gap []"
    assert str(cover([point, point], point)) == "2 boxes cover []: overlap [] by boxes 0, 1"


def test_ranks_must_agree():
    with pytest.raises(WeftError, match=r"box 0 is \[0:1\], not of rank 2 as \[0:2, 0:2\] is"):
        cover([ZRange((0,), (1,))], ZRange.of((2, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda box: cover([3], box), "boxes must be a list of ZRange: [3]"),
        (lambda box: cover(box, box), "boxes must be a list of ZRange: ZRange"),
        (lambda box: cover([box], box, limit=-1), "limit is -1; it cannot be negative"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(WeftError) as caught:
        call(ZRange.of((2,)))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "shape",
    [
        *[(10_000,), (100, 100), (22, 22, 22)],
        *(pytest.param(n, marks=pytest.mark.slow) for n in [(100_000,), (320, 320), (47, 47, 47)]),
    ],
)
def test_many_boxes_are_covered(shape):
    target = ZRange.of([3 * n for n in shape])
    parts = list(target.tiles((3,) * len(shape)))
    assert len(parts) == prod(shape)
    assert cover(parts, target).is_exact
    parts[777] = parts[778]
    assert [len(d.by) for d in cover(parts, target).defects] == [0, 2]
