"""Figures of operators, signatures and placements: index boxes and their images in every array."""

import io
from random import Random
from xml.etree import ElementTree

import numpy as np
import pytest
import tests.runtime.test_eager  # noqa: F401 - it registers the cases
from tests.runtime.cases import CASES
from tests.trials import trials

from weft import DeviceMesh, WeftError, ZRange, ops, show, trace
from weft.draw import Patch, draw, to_html, to_svg, to_text
from weft.lang import OPERATORS, Operator, Signature
from weft.lang.signature_picture import index_box
from weft.plan.picture import draw_placed
from weft.plan.placed import fit, place

LINEAR = OPERATORS["linear"].sign([(6, 4), (4, 6), (6,)])
MESH = DeviceMesh("m", (2, 2), ("dp", "tp"))


def text(x, *args, **options):
    out = io.StringIO()
    show(x, *args, file=out, **options)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def test_the_figure_of_a_linear_layer():
    """The one of seed 004: a row of X, a column of W and an element of b make an element of Y."""
    assert (
        text(OPERATORS["linear"], (6, 4), (4, 5), (5,))
        == """\
linear: m k, k n, + n -> m n sum: k {m=6, n=5, k=4}
m k · [6, 4]   k n · [4, 5]                + n · [5]                              m n · [6, 5]
  0       4      0       2     3       5   0       2   3       5                    0       2     3       5
0 ┌───────┐    0 ┌───────┬─────┬───────┐   ┌───────┬───┬───────┐                  0 ┌─────────────────────┐
  │       │      │       │ k,n │       │   │       │ n │       │   ╶╴ linear ╶─▶    │                     │
  │       │    4 └───────┴─────┴───────┘   └───────┴───┴───────┘                    │                     │
  │       │                                                                         │                     │
3 ├───────┤                                                                       3 │       ┌─────┐       │
  │  m,k  │                                                                         │       │ m,n │       │
4 ├───────┤                                                                       4 │       └─────┘       │
  │       │                                                                         │                     │
  │       │                                                                         │                     │
6 └───────┘                                                                       6 └─────────────────────┘

index m=6 n=5 ⟪k=4⟫ sum
  0       2     3       5
0 ┌─────────────────────┐
  │                     │
  │                     │
  │                     │
3 │       ┌─────┐       │
  │       │ m,n │       │
4 │       └─────┘       │
  │                     │
  │                     │
6 └─────────────────────┘"""  # noqa: E501
    )


def test_cells_of_a_placement_and_parts_that_are_hatched():
    placed = place(MESH, LINEAR, {"m": ["dp"], "k": ["tp"]})
    assert (
        text(placed)
        == """\
m k, k n, + n -> m n sum: k {m=6, n=6, k=4} on @m = <["dp"=2, "tp"=2]> · m: {"dp"}, k: {"tp"}
m k · [6, 4]          k n · [4, 6]   + n · [6]              m n · [6, 6]
  0       2       4     0       6    0           6            0       6
0 ┌───────┬───────┐   0 ┌───────┐    ┌───────────┐          0 ┌───────┐
  │   0   │   1   │     │  0 2  │    │╱ 0 1 2 3 ╱│   ╶───▶    │╱ 0 1 ╱│
3 ├───────┼───────┤   2 ├───────┤    └───────────┘          3 ├───────┤
  │   2   │   3   │     │  1 3  │                             │╱ 2 3 ╱│
6 └───────┴───────┘   4 └───────┘                           6 └───────┘

index m=6 n=6 ⟪k=4⟫ sum, drawn along m, k
  0       2       4
0 ┌───────┬───────┐
  │   0   │   1   │
3 ├───────┼───────┤
  │   2   │   3   │
6 └───────┴───────┘
2 parts over "tp", combined by sum"""
    )
    one = text(placed, cell=3)
    assert one.split("\n")[0].endswith("· cell 3")
    assert text(placed, cell=(1, 1)) == one
    assert one.count("╱ 3 ╱") == 2
    assert "url(#weft-hatch)" in to_svg(draw(placed))
    assert "weft-hatch" not in to_svg(draw(place(MESH, LINEAR, {"m": ["dp"]})))


def test_a_halo_is_where_boxes_overlap():
    line = Signature.of("y+u-1, u -> y  sum: u", [(8,), (3,)], sizes={"y": 8})
    picture = text(place(DeviceMesh("m", (2,), ("x",)), line, {"y": ["x"]}))
    assert "0       3    5       8" in picture, "two rows of each neighbour"


def test_a_box_of_part_of_a_sum_is_hatched():
    picture = text(LINEAR, cell={"m": 2, "k": 1})
    assert "╱ m,n ╱" in picture
    assert "the index box [2:3, 0:6, 1:2] computes a part of each result" in picture
    assert "╱" not in text(LINEAR, cell={"m": 2})
    assert text(LINEAR, cell=(2, 0, 1)) == text(LINEAR, cell=ZRange((2, 0, 1), (3, 1, 2)))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: draw(LINEAR, cell=(9, 0, 0)), "has no box [9:10, 0:1, 0:1]"),
        (lambda: draw(LINEAR, cell=(0, 0)), "cell has 2 dimensions where 3 are expected"),
        (lambda: draw(LINEAR, cell={"q": 1}), "there is no index dimension 'q'"),
        (lambda: draw(LINEAR, cell=ZRange((0,), (1,))), "has no box [0:1]"),
        (lambda: draw(OPERATORS["convolution"]), "convolution is drawn for shapes and attributes"),
        (lambda: draw(OPERATORS["matmul"], (2, 3), (4, 5)), "'k' has size 3 elsewhere"),
        (lambda: draw(place(MESH, LINEAR, {}), cell=4), "no cell 4 in mesh"),
        (lambda: draw(Signature.of("n -> n", [("n",)])), "the size n has no number yet"),
    ],
)
def test_values_without_a_picture_are_refused(use, message):
    with pytest.raises(WeftError) as refusal:
        use()
    assert message in str(refusal.value)


def test_operators_without_shapes_are_drawn_for_small_ones():
    assert "k n · [4, 4]" in text(OPERATORS["matmul"])
    assert "index i0=4 ⟪i1=4⟫ sum" in text(OPERATORS["sum_dim"])
    assert "index n=4" in text(Operator("halve", "n -> n", lambda block, x: x / 2))
    drawn = sum(bool(to_html(draw(op))) for op in OPERATORS.values() if _has_figure(op))
    assert drawn > 100
    assert OPERATORS["convolution"]._repr_html_().startswith("<pre>"), "a notebook shows the name"


def _has_figure(operator):
    try:
        draw(operator)
    except WeftError:
        return False
    return True


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_operator_is_drawn_with_and_without_a_mesh(name):
    for seed in range(trials(10, limit=3, fewest=1)):
        operands, attributes = CASES[name](np.random.default_rng(seed))
        line = OPERATORS.find(name).sign([tuple(np.shape(x)) for x in operands], attributes)
        rng = Random(seed)
        free = [d for d in line.sizes if d not in line.fixed]
        names = rng.sample(free, min(2, len(free)))
        placed = fit(MESH, line, dict(zip(names, (["dp"], ["tp"]))))
        pictures = [draw(line), draw(placed), draw(placed, cell=rng.randrange(4))]
        for picture in pictures:
            ElementTree.fromstring(to_svg(picture))
            assert "None" not in to_text(picture)


def test_drawn_boxes_equal_those_that_cells_compute_and_read(monkeypatch):
    """The boxes of a figure are those that the planner derives, for every cell."""
    panels = []
    monkeypatch.setattr(
        "weft.plan.picture.draw_figure",
        lambda operator, index, operands, results, *_: panels.append((index, operands, results)),
    )
    conv = trace(
        lambda x, k: ops.convolve(x, k, padding=(1, 1)), (2, 3, 8, 9), (4, 3, 3, 3)
    ).signatures[0]
    attention = OPERATORS["attention"].sign([(4, 6, 8), (4, 5, 8), (4, 5, 8)])
    for line, cuts in [
        (LINEAR, {"m": ["dp"], "n": ["tp"]}),
        (LINEAR, {"k": ["dp", "tp"]}),
        (conv, {"y0": ["dp"], "y1": ["tp"]}),
        (attention, dict(zip(list(attention.sizes)[:2], (["dp"], ["tp"])))),
    ]:
        placed = place(MESH, line, cuts)
        for cell in range(4):
            draw_placed(placed, cell)
            index, operands, results = panels.pop()
            assert _boxes(operands) == [needs[cell] for needs in placed.needs]
            assert _boxes(results) == [
                spec.region(shape, cell) for spec, shape in zip(placed.results, line.result_shapes)
            ]
            (patch,) = index.patches
            cut = [dim for dim, count in enumerate(placed.index.grid) if count > 1]
            box = placed.boxes[cell]
            spans = set(zip(patch.start, patch.stop))
            assert {(box.start[dim], box.stop[dim]) for dim in cut} <= spans


def _boxes(panels):
    found = []
    for panel in panels:
        (patch,) = panel.patches
        assert isinstance(patch, Patch)
        found.append(ZRange(patch.start, patch.stop))
    return found


def test_a_point_of_the_index_space_is_in_the_middle_where_none_is_given():
    assert str(index_box(LINEAR, None)) == "[3:4, 3:4, 0:4]"
    empty = Signature.of("n -> n", [(0,)])
    assert "index n=0" in text(empty)


def test_many_cells():
    mesh = DeviceMesh("b", (1024, 64), ("a", "b"))
    line = OPERATORS["matmul"].sign([(4096, 512), (512, 2048)])
    picture = text(place(mesh, line, {"m": ["a"], "n": ["b"]}))
    assert picture.endswith("… of 65536 cells only some are drawn")
    assert "65535" in picture
