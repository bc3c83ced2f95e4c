"""How often loops run: what is found, against loops that are run step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trials import trials

from weft.lang import Application, Graph, Value
from weft.plan.trips import Number, find_branch, find_loop, follow

HOLDS = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def constant(name, value, dtype="int32", shape=()):
    said = {"value": value, "dtype": dtype, "result_shape": shape}
    return Application("constant", (), (name,), said)


def counting(direction, step, bound, start=0, dtype="int32", turned=False, less=False, ahead=0):
    """A loop that counts, and carries the bound along unchanged."""
    names = ("i", "n")
    inside = [[Value(f"{at}/{name}", (), dtype) for name in names] for at in ("c", "b")]
    shown = ("c/j", "c/n") if not turned else ("c/n", "c/j")
    said = {"comparison_direction": direction}
    condition = Graph(
        inside[0],
        [
            constant("c/ahead", ahead, dtype),
            Application("add", ("c/i", "c/ahead"), ("c/j",)),
            Application("compare", shown, ("c/p",), said),
        ],
        ["c/p"],
    )
    body = Graph(
        inside[1],
        [
            constant("b/step", step, dtype),
            Application("subtract" if less else "add", ("b/i", "b/step"), ("b/next",)),
        ],
        ["b/next", "b/n"],
    )
    loop = Application("while", names, ("i'", "n'"), {}, (condition, body))
    return Graph([], [constant("i", start, dtype), constant("n", bound, dtype), loop], ["i'"])


def found(graph):
    (loop,) = [a for a in graph.applications if a.regions]
    return find_loop(loop, follow(graph, {})).trips


def run_out(direction, step, bound, start, dtype, turned, less, ahead):
    """How often such a loop runs, and whether a number went over its dtype on the way."""
    kind, span = np.dtype(dtype).type, np.iinfo(dtype)
    step = -step if less else step
    at, trips, over = start, 0, False
    while trips < 400:
        over |= not span.min <= at + ahead <= span.max
        with np.errstate(over="ignore"):
            shown = np.array([at + ahead]).astype(kind)[0]
        pair = (shown, kind(bound))
        if not HOLDS[direction](*(pair[::-1] if turned else pair)):
            return trips, over
        at += step
        over |= not span.min <= at <= span.max
        at = int(np.array([at]).astype(kind)[0])
        trips += 1
    return None, over


@settings(max_examples=trials(1000))
@given(
    st.sampled_from(sorted(HOLDS)),
    st.integers(-7, 7),
    st.integers(-20, 127),
    st.integers(-20, 127),
    st.sampled_from(["int8", "int32", "uint8"]),
    st.booleans(),
    st.booleans(),
    st.integers(-3, 3),
)
def test_loops_run_as_often_as_is_found(direction, step, bound, start, dtype, turned, less, ahead):
    if dtype == "uint8":
        step, bound, start, ahead = map(abs, (step, bound, start, ahead))
    trips, over = run_out(direction, step, bound, start, dtype, turned, less, ahead)
    graph = counting(direction, step, bound, start, dtype, turned, less, ahead)
    assert found(graph) == (None if over else trips)


def test_numbers_are_followed_through_what_leaves_them_as_they_are():
    graph = Graph(
        [],
        [
            constant("a", 3, "int8"),
            Application("convert", ("a",), ("b",), {"dtype": "int32"}),
            Application("reshape", ("b",), ("c",), {"result_shape": (1,)}),
            constant("low", 0, shape=(1,)),
            constant("high", 2, shape=(1,)),
            Application("clamp", ("low", "c", "high"), ("d",)),
            Application("optimization_barrier", ("d", "c"), ("e", "f")),
            Application("multiply", ("e", "f"), ("g",)),
            Application("negate", ("g",), ("h",)),
            Application("convert", ("h",), ("wraps",), {"dtype": "uint8"}),
            Application("convert", ("h",), ("real",), {"dtype": "float32"}),
        ],
        ["h"],
    )
    known = follow(graph, {})
    assert [known[name].number for name in "abcdefgh"] == [3, 3, 3, 2, 2, 3, 6, -6]
    assert not {"wraps", "real"} & set(known)


@pytest.mark.parametrize(("value", "dtype"), [(2.0, "float32"), (True, "bool"), (300, "int8")])
def test_what_is_no_whole_number_is_not_known(value, dtype):
    graph = Graph([], [constant("a", value, dtype)], ["a"])
    assert follow(graph, {}) == {}


@pytest.mark.parametrize(("index", "taken"), [(0, 0), (1, 1), (2, 1), (-1, 1)])
def test_a_branch_that_the_program_names(index, taken):
    ways = tuple(Graph([Value("x", ())], [], ["x"]) for _ in range(2))
    case = Application("case", ("k", "x"), ("y",), {}, ways)
    known = {"k": Number(index, "int32")}
    assert find_branch(case, known) == taken
    assert find_branch(case, {}) is None
    assert find_branch(case._replace(operator="if"), known) is None


def test_a_value_that_a_loop_carries_unchanged_is_known_after_it():
    known = follow(counting("LT", 1, 5), {})
    assert known["n'"] == Number(5, "int32")
    assert "i'" not in known
