"""The scanner: tokens, blanks, and refusals that point at the column."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import DeviceMesh, ParseError, ShardingSpec, WeftError
from weft.layout.shardy_text import Scanner


def test_tokens_and_blanks():
    scan = Scanner('  @ name$1.x  "a b" 42 [1,2 , 3]')
    scan.expect("@")
    assert scan.name() == "name$1.x"
    assert scan.string() == "a b"
    assert scan.integer() == 42
    assert scan.items("[", "]", scan.integer) == [1, 2, 3]
    assert scan.done
    scan.finish()


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda scan: scan.name(), "column 3: expected a name, found '4'"),
        (lambda scan: scan.string(), "column 3: expected a name in double quotes, found '4'"),
        (lambda scan: scan.expect("]"), "column 3: expected ']', found '4'"),
        (lambda scan: scan.finish(), "column 3: expected the end, found '4'"),
        (lambda scan: (scan.integer(), scan.integer()), "column 5: expected an integer, found the"),
        (lambda scan: scan.fail("no", column=1, hint="try"), "column 1: no"),
    ],
)
def test_refusals_point(read, message):
    with pytest.raises(ParseError) as caught:
        read(Scanner("  42"))
    assert str(caught.value).startswith(message)


def test_a_long_text_is_shown_around_the_column():
    text = "x" * 200 + "!" + "y" * 200
    with pytest.raises(ParseError) as caught:
        Scanner(text).fail("odd", column=201)
    shown, caret = caught.value.__notes__[0].split("\n")
    assert len(shown) < 130
    assert shown[caret.index("^")] == "!"


def test_of_several_lines_the_one_with_the_column_is_shown():
    with pytest.raises(ParseError) as caught:
        Scanner("first\nsecond\nthird").fail("odd", column=8)
    assert caught.value.__notes__[0] == "second\n ^"


def test_an_error_survives_pickling():
    error = ParseError("odd", text="abc", column=2, hint="even")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.column, again.text) == ("column 2: odd", 2, "abc")
    assert again.__notes__ == ["abc\n ^", "hint: even"]
    assert pickle.loads(pickle.dumps(WeftError("odd", hint="even"))).__notes__ == ["hint: even"]


MESH = DeviceMesh("m", (4, 2), ("x", "y"))
alphabet = st.sampled_from([*'<>[]{}()@=,:?"pxymqru0123 #', "replicated", "unreduced", '"x"'])


@given(st.lists(alphabet, max_size=30).map("".join))
def test_no_text_crashes_the_parsers(text):
    """Whatever the text, it is read or refused; a refused one names a column inside it."""
    for parse in (DeviceMesh.parse, lambda t: ShardingSpec.parse(t, MESH)):
        try:
            parse(text)
        except ParseError as error:
            assert 1 <= error.column <= len(text) + 1  # noqa: PT017
        except WeftError:
            pass


@given(st.data())
def test_no_edit_of_a_good_text_crashes_the_parser(data):
    text = '<@m, [{"x":(1)2, ?}p1, {"y"}], replicated={"x":(2)2}, unreduced={}>'
    at = data.draw(st.integers(0, len(text) - 1))
    edited = text[:at] + data.draw(alphabet) + text[at + data.draw(st.integers(0, 2)) :]
    try:
        spec = ShardingSpec.parse(edited, MESH)
    except WeftError:
        return
    assert ShardingSpec.parse(str(spec), MESH) == spec
