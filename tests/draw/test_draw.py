"""Pictures: what they show, that they stay small, and that they are valid SVG."""

import io
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import boxes, meshes, partitions, projections, sharded_shapes, specs
from tests.trials import trials

from weft import DeviceMesh, DimSpec, Projection, ShardingSpec, WeftError, ZRange, cover, show
from weft.draw import (
    SIZE_LIMIT,
    Drawing,
    Drawn,
    Label,
    Line,
    Rect,
    draw,
    to_html,
    to_svg,
    to_text,
    wants_colour,
)


def picture(*args):
    stream = io.StringIO()
    show(*args, file=stream)
    return stream.getvalue().rstrip("\n")


def assert_good_html(html):
    assert len(html.encode()) <= SIZE_LIMIT == 20_000
    root = ET.fromstring(html)
    assert root.tag in ("{http://www.w3.org/2000/svg}svg", "pre")


MESH = DeviceMesh("cluster", (2, 4), ("dp", "tp"))


def test_a_mesh():
    assert (
        picture(MESH)
        == """\
@cluster = <["dp"=2, "tp"=4]> · 8 cells
       tp=0    tp=1    tp=2    tp=3
     ┌───────┬───────┬───────┬───────┐
dp=0 │   0   │   1   │   2   │   3   │
     ├───────┼───────┼───────┼───────┤
dp=1 │   4   │   5   │   6   │   7   │
     └───────┴───────┴───────┴───────┘"""
    )


def test_an_uneven_sharding():
    spec = ShardingSpec(MESH, [DimSpec(["dp"]), DimSpec(["tp"])])
    assert (
        picture(spec, (8, 15))
        == """\
[8, 15] as <@cluster, [{"dp"}, {"tp"}]> · shard [4, 4]
  0       4       8      12    15
0 ┌───────┬───────┬───────┬─────┐
  │   0   │   1   │   2   │  3  │
4 ├───────┼───────┼───────┼─────┤
  │   4   │   5   │   6   │  7  │
8 └───────┴───────┴───────┴─────┘
dimension 1 is uneven: 3 blocks of 4, 1 of 3"""
    )


def test_leading_dimensions_are_panels_and_remarks_say_the_rest():
    mesh = DeviceMesh("c", (4, 3, 2), ("x", "y", "z"))
    spec = ShardingSpec(mesh, [DimSpec(["y"]), DimSpec(["z"]), DimSpec()], partial={"x": "max"})
    text = picture(spec, (3, 224, 224))
    assert "[0:1, …]" in text
    assert "[2:3, …]" in text
    assert "0 6 12 18" in text, "the four cells along x hold parts of the same box"
    assert text.endswith('4 parts over "x", combined by max')


def test_boxes_that_overlap_and_boxes_that_lie_alike():
    a, b = ZRange((0, 0), (2, 4)), ZRange((1, 2), (5, 8))
    crossing = picture([a, b])
    assert "┼" in crossing
    assert "│  0 1  │" in picture([a, a])


def test_a_cover_shows_its_boxes_by_number_and_the_gaps():
    parts = [ZRange((0,), (2,)), ZRange((1,), (3,)), ZRange((3,), (4,))]
    assert (
        picture(cover(parts, ZRange((0,), (6,))))
        == """\
3 boxes cover [0:6]: overlap [1:2] by boxes 0, 1; gap [4:6]
0   1   2   3   4       6
┌───┬───┬───┬───┬───────┐
│ 0 │   │ 1 │ 2 │  gap  │
└───┴───┴───┴───┴───────┘"""
    )


def test_ticks_do_not_run_into_each_other():
    mesh = DeviceMesh("m", (100,), ("x",))
    ticks = picture(ShardingSpec(mesh, [DimSpec(["x"])]), (10**6,)).split("\n")[1]
    assert ticks.split() == [str(n * 10_000) for n in (0, 1, 2, 3, 4, 96, 97, 98, 99, 100)]
    assert picture(ZRange((0,), (10**20,))).split("\n")[1].split() == ["0", str(10**20)]


def test_parts_that_are_not_drawn_are_counted():
    assert "… panels between are not drawn" in picture(DeviceMesh("m", (4,) * 5, list("abcde")))
    crossing = [ZRange((0, n), (9, 200 - n)) for n in range(100)]
    assert "more boxes are not drawn" in picture(crossing)
    assert "first 16 points of [0:4, 0:4, 0:4]" in picture(Projection([[1, 1, 1]]))


def test_any_rank():
    assert picture(ZRange((), ())).startswith("[] · 1 point\n┌")
    assert "│" in picture(ZRange((0,), (4,)))
    assert picture(ZRange((3,), (3,))) == "[3:3] · 0 points\n3"
    assert picture(ZRange.of((2, 2, 2, 2, 2))).count("┌") == 1
    assert "image" in picture(Projection([[2]], shape=(3,)))
    assert "gap [1:2]" in picture(cover([ZRange((0,), (1,))], ZRange((0,), (2,))))


@settings(max_examples=trials(60))
@given(
    st.one_of(
        meshes(), specs(), boxes(), projections(), partitions().map(lambda p: cover(p[1], p[0]))
    )
)
def test_every_value_draws_itself_small(value):
    assert picture(value)
    assert_good_html(value._repr_html_())


@settings(max_examples=trials(60))
@given(sharded_shapes())
def test_every_sharding_of_every_shape_draws(case):
    spec, shape = case
    assert picture(spec, shape).count("\n") < 200
    assert_good_html(to_html(draw(spec, shape)))


@settings(max_examples=trials(40))
@given(st.lists(boxes(2), min_size=1, max_size=40))
def test_any_set_of_boxes_draws(many):
    assert picture(many)
    assert_good_html(to_html(draw(many)))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 6, 10, 20])
def test_large_meshes_are_summarised(rank):
    mesh = DeviceMesh("m" * 5000, (1 << (20 // rank),) * rank, [f"axis{n}" for n in range(rank)])
    spec = ShardingSpec(mesh, [DimSpec([name]) for name in mesh.axis_names])
    assert_good_html(mesh._repr_html_())
    assert_good_html(spec._repr_html_())
    assert_good_html(to_html(draw(spec, (10**6,) * rank)))
    assert_good_html(to_html(draw(ShardingSpec(mesh, [DimSpec()] * 3), (5, 6, 7))))
    assert len(picture(mesh)) < 20_000


def test_many_boxes_are_drawn():
    many = list(ZRange.of((200, 200)).tiles((2, 2)))
    assert_good_html(to_html(draw(many)))


def test_html_never_raises():
    class Broken(Drawn):
        __slots__ = ()

        def drawing(self):
            raise RuntimeError("no")

        def __repr__(self):
            return "<Broken>"

    assert Broken()._repr_html_() == "<pre>&lt;Broken&gt;</pre>"
    assert_good_html(ZRange((0,), (10**5000,))._repr_html_())
    for signs in ("<", "&", '"', "\x00"):
        names = [f"{signs * 300}{n}".replace('"', "'").replace("\x00", " ") for n in range(3)]
        assert_good_html(DeviceMesh("m", (6, 4, 3), names)._repr_html_())


def test_a_drawing_too_large_for_svg_becomes_text():
    crowd = Drawing(tuple(Rect(n * 10, 0, 10, 2, "label") for n in range(2000)))
    assert to_html(crowd).startswith("<pre>")
    assert_good_html(to_html(crowd))


def test_lines_arrows_and_labels():
    drawing = Drawing(
        (
            Line(0, 0, 4, 0, arrow=True),
            Line(4, 2, 0, 2, arrow=True),
            Line(6, 0, 6, 2, arrow=True),
            Line(8, 2, 8, 0, arrow=True),
            Label(4, 1, "mid", "middle"),
        )
    )
    assert to_text(drawing).split("\n") == ["╶───▶ ╷ ▲", "   mid│ │", "◀───╴ ▼ ╵"]
    assert to_svg(drawing).count("<polygon") == 4
    ET.fromstring(to_svg(drawing))


def test_text_in_a_picture_cannot_be_markup():
    svg = to_svg(Drawing((Label(0, 0, "<script>&\x00"),), title='"<b>'))
    assert "<script>" not in svg
    ET.fromstring(svg)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    show(MESH, file=stream)
    assert "\x1b[38;5;16;48;5;" in stream.getvalue()
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(stream)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(stream)


def test_a_stream_of_ascii_gets_ascii():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    show(ShardingSpec(MESH, [DimSpec(["tp"])]), (100,), file=stream)
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "+-" in text
    assert "|" in text
    assert "?" not in text


def test_show_without_a_console_prints_nothing(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    show(MESH)


@pytest.mark.parametrize("nothing", [[], 3, "text", [1, 2], None, [MESH, MESH], ZRange])
def test_values_without_a_drawing_are_refused(nothing):
    with pytest.raises(WeftError, match="nothing to draw in"):
        show(nothing)
