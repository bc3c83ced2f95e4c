"""Data from files: bounded before it is parsed, refused with the place where it is wrong."""

from pathlib import Path

import pytest

from weft import WeftError
from weft.lang.field import Field, parse_json, read_text


def test_a_text_of_too_many_characters_is_not_parsed():
    with pytest.raises(WeftError, match=r"the graph has 67108865 characters; at most 67108864 are"):
        parse_json(" " * ((1 << 26) + 1), "the graph")


@pytest.mark.parametrize("text", ["[" + "0," * 4_000_000, "[" * 4_000_001, "{" * 1_000_001])
def test_a_text_of_too_many_values_is_not_parsed(text):
    with pytest.raises(WeftError, match=r"the plan may have \d+ values; at most 4000000 are read"):
        parse_json(text, "the plan")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "invalid JSON: "),
        ("9" * 5000, "invalid JSON: Exceeds the limit"),
        ('"\\ud83d"', "invalid JSON: it has half of a Unicode character"),
        ('{"\\udE00": 1}', "invalid JSON: it has half of a Unicode character"),
        ('"\ud800"', "invalid JSON: it has half of a Unicode character"),
    ],
)
def test_invalid_json_is_refused(text, message):
    with pytest.raises(WeftError) as caught:
        parse_json(text, "the graph")
    assert str(caught.value).startswith(message)


def test_a_character_in_two_halves_is_one():
    assert parse_json('"\\ud83d\\ude00"', "the graph").value == "\N{GRINNING FACE}"


def test_a_number_that_python_does_not_print_is_refused_all_the_same():
    with pytest.raises(
        WeftError, match=r"^size: expected a size from 0 .*, got an integer of \d+ b"
    ):
        Field({"size": 16**5000}, "", "the file").at("size").size()
    with pytest.raises(WeftError, match=r"^sizes: expected a string, got a list$"):
        Field({"sizes": [16**5000]}, "", "the file").at("sizes").text()


def test_no_more_is_read_of_a_file_than_may_be(tmp_path):
    path = tmp_path / "graph.json"
    path.write_bytes(b"12345")
    assert read_text(path, 5) == "12345"
    with pytest.raises(WeftError, match=r"graph.json has more than 4 B"):
        read_text(path, 4)
    path.write_bytes(b"\xff")
    with pytest.raises(WeftError, match=r"graph.json is not text: 'utf-8' codec can't decode"):
        read_text(path)
    if Path("/dev/zero").exists():
        with pytest.raises(WeftError, match=r"/dev/zero has more than 100 B"):
            read_text(Path("/dev/zero"), 100)
