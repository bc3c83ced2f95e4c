"""Layouts as rules, against boxes and parts that are computed cell by cell."""

from itertools import product

import numpy as np
import pytest
from tests.program.enumerating import CellLayout, alike, lies_in
from tests.program.random_layouts import (
    cut,
    random_cells,
    random_digits,
    random_image,
    random_layout,
    random_shape,
)
from tests.trials import trials

from weft.program import CellClasses, Cells, Layout
from weft.program.layout_rule import (
    are_apart,
    covers,
    join_parts,
    lies_inside,
    same_boxes,
)
from weft.space import BlockGrid, Digit

LAYOUTS = trials(600)
X, Y = Digit(0, 1, 2, 1), Digit(1, 1, 2, 1)


def random_layouts():
    for seed in range(LAYOUTS):
        rng = np.random.default_rng(seed)
        cells = random_cells(rng)
        if rng.random() < 0.3:
            yield rng, random_image(rng, cells)
        else:
            yield rng, random_layout(rng, cells, random_shape(rng), overlap=True)


def spans_of(box):
    return tuple(zip(box.start, box.stop))


def test_boxes_and_parts_are_those_of_every_cell():
    for _, layout in random_layouts():
        found, every = CellLayout(layout), layout.boxes()
        for rank, at in enumerate(layout.cells.coordinates()):
            assert layout.cells.rank(at) == rank
            assert layout.cells.coordinate(rank) == at
            assert layout.box(at) == every[rank]
            assert alike(spans_of(every[rank]), found.boxes[rank])
            label = 0
            for (digit, _), value in zip(layout.parts, layout.part(at)):
                label = label * digit.radix + value
            assert label == found.labels[rank]


def test_layouts_compared_by_dimension_equal_layouts_compared_by_cell():
    agree = {True: 0, False: 0}
    for rng, one in random_layouts():
        two = random_layout(rng, one.cells, one.shape)
        boxes = [CellLayout(layout).boxes for layout in (one, two)]
        same = same_boxes(one, two)
        assert same == all(map(alike, *boxes))
        assert lies_inside(one, two) == all(map(lies_in, *boxes))
        assert same_boxes(one, one)
        assert lies_inside(one, one)
        agree[same] += 1
    assert min(agree.values()) > LAYOUTS // 20


def test_a_layout_that_covers_holds_every_part_of_the_array():
    """The rule is never wrong; it may miss layouts that hold an array by chance."""
    for _, layout in random_layouts():
        found = CellLayout(layout)
        if covers(layout):
            assert found.is_held()
        whole = tuple((0, n) for n in layout.shape)
        is_whole = found.part_count == 1 and all(alike(box, whole) for box in found.boxes)
        assert layout.is_whole <= is_whole
        for dim in range(len(layout.shape)):
            spans = {box[dim] for box in found.boxes}
            assert layout.spans(dim) >= spans
            assert layout.spans(dim) == spans or not covers(layout)


def test_a_layout_of_different_digits_holds_an_array():
    for seed in range(LAYOUTS):
        rng = np.random.default_rng(seed)
        layout = random_layout(rng, random_cells(rng), random_shape(rng))
        assert covers(layout)
        assert CellLayout(layout).is_held()


def test_digits_are_apart_when_all_their_values_occur_together():
    found = {True: 0, False: 0}
    for seed in range(LAYOUTS):
        rng = np.random.default_rng(seed)
        shape = random_cells(rng).shape
        digits = random_digits(rng, shape)
        if shape:
            for _ in range(int(rng.integers(0, 2))):
                dim = int(rng.integers(len(shape)))
                digits.append(Digit(dim, *(int(n) for n in rng.integers(1, 5, 2)), 1))
            digits = digits[int(rng.integers(2)) :]
        values = {tuple(d.of(at) for d in digits) for at in product(*map(range, shape))}
        occur = values == set(product(*(range(d.radix) for d in digits)))
        apart = are_apart(shape, digits)
        assert apart <= occur
        found[apart] += 1
    assert min(found.values()) > LAYOUTS // 20


def test_parts_are_joined_in_mesh_order():
    inner, outer = Digit(0, 1, 2, 1), Digit(0, 2, 2, 1)
    whole = Digit(0, 1, 4, 1)
    assert join_parts([(inner, "sum"), (outer, "sum")]) == ((whole, "sum"),)
    assert join_parts([(inner, "sum"), (outer, "max")]) == ((outer, "max"), (inner, "sum"))
    assert join_parts([(Y, "sum"), (X, "sum")]) == ((X, "sum"), (Y, "sum"))
    assert join_parts([(Digit(0, 1, 1, 1), "sum")]) == ()


@pytest.mark.parametrize(
    ("cuts", "parts", "text"),
    [
        (([X], []), (), "[{0/2}, {}]"),
        (([X, Y], []), (), "[{0/2, 1/2}, {}]"),
        (([], [Y]), ((X, "sum"),), "[{}, {1/2}] sum(0/2)"),
    ],
)
def test_a_layout_is_one_line(cuts, parts, text):
    assert str(cut(Cells((2, 2)), (4, 4), cuts, parts)) == text


def test_equal_rules_are_equal_layouts():
    def layout(count):
        return Layout(Cells((2,)), (8,), BlockGrid.cut((8,), (count,)), ((X,),))

    assert layout(2) == layout(2)
    assert hash(layout(2)) == hash(layout(2))
    assert layout(2) != layout(4)
    assert layout(2) != layout(2).with_parts([(X, "sum")])
    assert layout(2).with_parts(()) is not None


# Classes of cells.


def test_cells_of_a_class_have_boxes_of_the_same_size():
    for rng, one in random_layouts():
        two = random_layout(rng, one.cells, one.shape)
        classes = CellClasses(one.cells)
        for dim in range(len(one.shape)):
            classes.refine_spans(one.rule(dim))
            classes.refine_spans(one.rule(dim), two.rule(dim))
        assert sum(classes.counts) == one.cells.size
        numbers = classes.expand(range(len(classes.counts)))
        assert [numbers.count(n) for n in range(len(classes.counts))] == classes.counts
        ranks = [one.cells.rank(at) for at in classes.representatives]
        assert [numbers[rank] for rank in ranks] == list(range(len(ranks)))
        boxes, others = (CellLayout(layout).boxes for layout in (one, two))
        for rank, number in enumerate(numbers):
            first = ranks[number]
            assert extents(boxes[rank]) == extents(boxes[first])
            assert shared(boxes[rank], others[rank]) == shared(boxes[first], others[first])


def extents(box):
    return [high - low for low, high in box]


def shared(one, two):
    """How much two boxes have in common, dimension by dimension."""
    return [max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(one, two)]
