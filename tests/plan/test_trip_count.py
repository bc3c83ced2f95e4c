"""Trip counts against loops that are run step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trials import trials

from weft.lang import Application, Graph, Value
from weft.plan.trip_count import Number, analyze_loop, known_values, taken_branch

HOLDS = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def constant(name, value, dtype="int32", shape=()):
    attributes = {"value": value, "dtype": dtype, "result_shape": shape}
    return Application("constant", (), (name,), attributes)


def counting(direction, step, bound, start=0, dtype="int32", turned=False, less=False, ahead=0):
    """A loop that counts, and carries the bound along unchanged."""
    names = ("i", "n")
    inside = [[Value(f"{at}/{name}", (), dtype) for name in names] for at in ("c", "b")]
    shown = ("c/j", "c/n") if not turned else ("c/n", "c/j")
    attributes = {"comparison_direction": direction}
    condition = Graph(
        inside[0],
        [
            constant("c/ahead", ahead, dtype),
            Application("add", ("c/i", "c/ahead"), ("c/j",)),
            Application("compare", shown, ("c/p",), attributes),
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


def trip_count(graph):
    (loop,) = [a for a in graph.applications if a.regions]
    return analyze_loop(loop, known_values(graph, {})).trip_count


def run_loop(direction, step, bound, start, dtype, turned, less, ahead):
    """Return how often such a loop runs, and whether a number overflows."""
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
def test_trip_count_is_that_of_a_run(direction, step, bound, start, dtype, turned, less, ahead):
    if dtype == "uint8":
        step, bound, start, ahead = map(abs, (step, bound, start, ahead))
    trips, over = run_loop(direction, step, bound, start, dtype, turned, less, ahead)
    graph = counting(direction, step, bound, start, dtype, turned, less, ahead)
    assert trip_count(graph) == (None if over else trips)


def test_constants_are_propagated():
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
    known = known_values(graph, {})
    assert [known[name].number for name in "abcdefgh"] == [3, 3, 3, 2, 2, 3, 6, -6]
    assert not {"wraps", "real"} & set(known)


@pytest.mark.parametrize(("value", "dtype"), [(2.0, "float32"), (True, "bool"), (300, "int8")])
def test_only_integers_that_fit_are_known(value, dtype):
    graph = Graph([], [constant("a", value, dtype)], ["a"])
    assert known_values(graph, {}) == {}


@pytest.mark.parametrize(("index", "taken"), [(0, 0), (1, 1), (2, 1), (-1, 1)])
def test_branch_with_a_constant_index(index, taken):
    ways = tuple(Graph([Value("x", ())], [], ["x"]) for _ in range(2))
    case = Application("case", ("k", "x"), ("y",), {}, ways)
    known = {"k": Number(index, "int32")}
    assert taken_branch(case, known) == taken
    assert taken_branch(case, {}) is None
    assert taken_branch(case._replace(operator="if"), known) is None


def test_unchanged_carried_value_is_known_after_the_loop():
    known = known_values(counting("LT", 1, 5), {})
    assert known["n'"] == Number(5, "int32")
    assert "i'" not in known
