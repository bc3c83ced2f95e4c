"""Block grids tile their shape; ranges, classes and neighbours agree with a plain enumeration."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import LayoutError
from weft.space import BlockGrid, ZRange, cover

sizes = st.integers(0, 12)


@st.composite
def grids(draw):
    shape = draw(st.lists(sizes, max_size=3))
    match draw(st.integers(0, 2)):
        case 0:
            counts = draw(st.tuples(*(st.integers(1, 6) for _ in shape)))
            return BlockGrid.cut(shape, counts)
        case 1:
            extents = draw(st.tuples(*(st.integers(1, 6) for _ in shape)))
            return BlockGrid.blocks(shape, extents)
    inner = [draw(st.lists(st.integers(0, n), max_size=4)) for n in shape]
    return BlockGrid.at_edges([(0, *sorted(each), n) for each, n in zip(inner, shape, strict=True)])


@st.composite
def grids_and_boxes(draw):
    grid = draw(grids())
    starts = [draw(st.integers(-3, n + 3)) for n in grid.shape]
    return grid, ZRange(starts, [low + draw(st.integers(0, 8)) for low in starts])


@given(grids())
def test_blocks_tile_the_shape(grid):
    boxes = grid.boxes()
    assert len(boxes) == grid.size
    assert cover([box for box in boxes if box], ZRange.of(grid.shape)).is_exact
    assert boxes == [grid.box(block) for block in product(*map(range, grid.counts))]


@given(grids())
def test_every_point_lies_in_the_block_that_is_said(grid):
    for point in ZRange.of(grid.shape):
        assert point in grid.box(grid.block_of(point))


@given(grids_and_boxes())
def test_blocks_that_meet_a_box(case):
    grid, box = case
    met = [b for b in product(*map(range, grid.counts)) if grid.box(b) & box]
    assert [b for b in grid.meeting(box) if grid.box(b)] == met
    assert grid.count_meeting(box) >= len(met)
    inside = box & ZRange.of(grid.shape)
    widened = grid.widen(box)
    if inside:
        assert widened == grid.box(met[0]).hull(*map(grid.box, met))
    else:
        assert widened.is_empty


@given(grids_and_boxes())
def test_blocks_that_a_range_meets(case):
    grid, box = case
    for dim, (low, high) in enumerate(zip(box.start, box.stop, strict=True)):
        taken = []
        for each in grid.classes_meeting(dim, low, high):
            for block in range(each.first, each.first + each.count):
                start = grid.span(dim, block)[0] + each.offset
                taken.append((block, start, start + each.extent))
        wanted = [
            (block, max(a, low), min(b, high))
            for block, (a, b) in ((k, grid.span(dim, k)) for k in grid.overlaps(dim, low, high))
        ]
        assert taken == wanted
        if grid.edges[dim] is None:
            assert len(grid.classes_meeting(dim, low, high)) <= 3


@given(grids())
def test_blocks_are_numbered_in_row_major_order(grid):
    blocks = list(product(*map(range, grid.counts)))
    assert [grid.ravel(block) for block in blocks] == list(range(grid.size))
    assert [grid.unravel(number) for number in range(grid.size)] == blocks


def test_blocks_of_a_long_dimension_are_not_listed():
    grid = BlockGrid.blocks((1 << 60, 3), (2, 2))
    assert next(grid.meeting(ZRange.of(grid.shape))) == (0, 0)


@given(grids())
def test_classes_are_runs_of_equal_extent(grid):
    for dim, count in enumerate(grid.counts):
        extents = [high - low for low, high in (grid.span(dim, k) for k in range(count))]
        classes = grid.classes(dim)
        assert [c.extent for c in classes for _ in range(c.count)] == extents
        assert [c.first for c in classes] == [
            sum(c.count for c in classes[:n]) for n in range(len(classes))
        ]
        assert max(extents, default=0) <= grid.block_shape[dim] or not extents
        if grid.edges[dim] is None:
            assert len(classes) <= 3
    even = len({box.shape for box in grid.boxes()}) < 2
    assert grid.is_even == even or grid.size == 0


@given(grids())
def test_neighbours_share_a_face(grid):
    blocks = list(product(*map(range, grid.counts)))
    for block in blocks:
        near = [
            other
            for other in blocks
            if sum(abs(a - b) for a, b in zip(block, other, strict=True)) == 1
        ]
        assert sorted(grid.neighbours(block)) == near


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockGrid.cut((4,), (0,)), "dimension 0 is cut into 0 blocks"),
        (lambda: BlockGrid.blocks((4,), (0,)), "dimension 0 of block shape (0,) is below 1"),
        (lambda: BlockGrid.at_edges([(0, 5, 3)]), "edges rise from 0 to the size, got (0, 5, 3)"),
        (lambda: BlockGrid.cut((4,), (2,)).box((2,)), "dimension 0 has no block 2"),
        (lambda: BlockGrid.cut((4,), (2,)).block_of((4,)), "has no coordinate 4"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        make()
