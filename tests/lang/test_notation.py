"""Index notation: what is read, what it says, and where it is refused."""

import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft import ParseError, WeftError, ZRange, cover
from weft.lang import Notation, Row, Signature, factor_rule

LINES = [
    "b m k, b k n -> b m n  sum: k",
    "m k, k n, + n -> m n  sum: k",
    "b c 2*y+u-1 x+2*v, f c u v -> b f y x  sum: c u v",
    "m [k] -> m [k]",
    "2*y+:3 -> y",
    "(2*y+u-1)/3, y+:1, [u] -> y  custom: u",
    "i [k] -> i [r<k]",
    ", i -> i",
    "i 1 -> i 1",
    "m k ->   sum: k  max: m",
    "i i -> i",
    "-i+7 -> i",
    "i -> i, i",
]


@pytest.mark.parametrize("line", LINES)
def test_lines_print_as_they_are_read(line):
    notation = Notation.parse(line)
    assert str(notation) == line
    assert Notation.parse(str(notation)) == notation
    assert pickle.loads(pickle.dumps(notation)) == notation
    assert hash(Notation.parse(line)) == hash(notation)


def test_names_may_stand_for_numbers():
    line = "b c s*y+d*u-p, f c u -> b f y  sum: c u"
    assert str(Notation.parse(line, s=2, d=3, p=1)) == "b c 2*y+3*u-1, f c u -> b f y  sum: c u"
    assert Notation.parse("y+:w -> y", w=5).operands[0][0].window == 5
    assert Notation.parse("2*3*y -> y").operands[0][0].terms == (("y", 6),)
    assert Notation.parse("y+y -> y").operands[0][0] == Row((("y", 2),))


def test_dimensions_reductions_and_operands_of_a_line():
    notation = Notation.parse("m k, k n, + n -> m n  sum: k")
    assert notation.dims == ("m", "n", "k")
    assert notation.reduced == {"k": "sum"}
    assert notation.once == {2}
    assert Notation.parse("m [k] -> m [k]").whole == {"k"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("i j", "column 4: expected '->', found the end"),
        ("i j -> i", "column 3: 'j' is in no result and not reduced"),
        ("a*b -> a", "column 1: 'a' and 'b' are both index dimensions"),
        ("i -> i  sum: i", "column 1: 'i' is reduced and stands in a result"),
        ("i -> i  sum: j", "column 14: no operand has the index dimension 'j'"),
        ("i k -> i  total: k", "column 11: 'total' is not a monoid"),
        ("i ] -> i", "column 3: expected a name, found ']'"),
        ("[i -> i", "column 4: expected ']', found '-'"),
        ("i+:w -> i", "column 4: 'w' is not a number that was given"),
        ("i+ -> i", "column 4: expected a name, found '-'"),
        ("i [k] -> i [r<q]", "column 15: no operand has the index dimension 'q'"),
        ("i+:0 -> i", "column 4: 0 is less than 1"),
        ("(i+1)/0 -> i", "column 7: 0 is less than 1"),
        ("(i+1) -> i", "column 7: expected '/', found '-'"),
    ],
)
def test_refusals_point_at_the_column(line, message):
    with pytest.raises(ParseError) as caught:
        Notation.parse(line)
    assert str(caught.value) == message


@given(st.text("ijk[]()/<+-*:,>123 sumax", max_size=24))
def test_no_text_crashes_the_reader(text):
    try:
        notation = Notation.parse(text)
    except WeftError:
        return
    assert Notation.parse(str(notation)) == notation


def test_dimensions_that_no_monoid_reduces_are_not_cut():
    line = Signature.of("m k -> m  custom: k", [(8, 4)])
    assert (line.reduced, line.notation.whole) == ((), {"k"})
    assert factor_rule(line).kinds == ("parallel", "reduced"), "as propagation sees it"


@given(st.data())
def test_boxes_of_a_dilated_array_hold_all_that_is_read(data):
    """Places that hold an element are those that the divisor divides."""
    y, u, window, by = (data.draw(st.integers(1, 5)) for _ in range(4))
    a, b, offset = (data.draw(st.integers(-4, 4)) for _ in range(3))
    assume(a and b)
    row = Row((("y", a), ("u", b)), offset, window, divisor=by)
    line = Signature.of(f"{row} -> y u", [(9,)], {"y": y, "u": u})
    assert line.notation.operands[0][0] == row
    box = ZRange((0, 0), (y, u)) & ZRange((data.draw(st.integers(0, 4)), 0), (5, 5))
    for point in box:
        place = a * point[0] + b * point[1] + offset
        read = [p // by for p in range(place, place + window) if p % by == 0]
        image = line.operands[0].image(box)
        assert all((element,) in image for element in read)


@st.composite
def signatures(draw):
    """Einsums with up to four index dimensions, some reduced, operands in any order."""
    sizes = {
        name: draw(st.integers(1, 4)) for name in draw(st.sets(st.sampled_from("ijkl"), min_size=1))
    }
    operands = [
        draw(st.permutations(sorted(draw(st.sets(st.sampled_from(sorted(sizes)))))))
        for _ in range(draw(st.integers(1, 3)))
    ]
    seen = sorted({name for operand in operands for name in operand})
    result = draw(
        st.permutations(
            sorted(draw(st.sets(st.sampled_from(seen or ["i"])) if seen else st.just(set())))
        )
    )
    reduced = [name for name in seen if name not in result]
    line = f"{', '.join(map(' '.join, operands))} -> {' '.join(result)}"
    line += f"  sum: {' '.join(reduced)}" if reduced else ""
    return Signature.of(line, [[sizes[name] for name in operand] for operand in operands])


@given(signatures(), st.data())
def test_blocks_of_the_index_space_cover_the_results_once_per_part(signature, data):
    space = signature.space
    for projection, shape in zip(signature.operands, signature.operand_shapes):
        assert projection.image(space) == ZRange.of(shape)
    block = [data.draw(st.integers(1, 4)) for _ in range(space.ndim)]
    reduced = [n for n, name in enumerate(signature.sizes) if name in signature.reduced]
    parts: dict[tuple[int, ...], list[ZRange]] = {}
    for tile in space.tiles(block):
        part = tuple(tile.start[n] for n in reduced)
        parts.setdefault(part, []).append(signature.results[0].image(tile))
    for boxes in parts.values():
        assert cover(boxes, ZRange.of(signature.result_shapes[0])).is_exact


@pytest.mark.parametrize(
    ("line", "shapes", "message"),
    [
        ("m k, k n -> m n  sum: k", [(8, 16)], "expected 2 operands, got 1"),
        (
            "m k -> m  sum: k",
            [(8,)],
            "operand 0 has 1 dimensions, [8], and its notation has 2: m k",
        ),
        (
            "m k, k n -> m n  sum: k",
            [(8, 16), (8, 4)],
            "dimension 0 of operand 1 has size 8, and 'k' has size 16 elsewhere",
        ),
        ("2*y+u -> y  sum: u", [(8,)], "the size of 'y' follows from no operand"),
        ("i 1 -> i", [(8, 2)], "dimension 1 of operand 0 has size 2, expected 1"),
    ],
)
def test_shapes_that_do_not_fit(line, shapes, message):
    with pytest.raises(WeftError) as caught:
        Signature.of(line, shapes)
    assert str(caught.value).startswith(message)


def test_halos_come_from_the_line():
    conv = Signature.of("2*y+u-1, u -> y  sum: u", [(16,), (3,)], sizes={"y": 8})
    assert conv.result_shapes == ((8,),)
    blocks = [conv.operands[0].image(tile) for tile in conv.space.tiles((4, 3))]
    assert [str(block) for block in blocks] == ["[-1:8]", "[7:16]"]
