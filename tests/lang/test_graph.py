"""Graphs: validated when made, read back from JSON, refused with the path of the field."""

import json

import pytest

from weft import WeftError
from weft.draw import draw, to_text
from weft.lang import Application, Graph, Library, Operator, Value
from weft.lang.graph_json import from_json, to_json

OPERATORS = Library()
for operator in (
    Operator("matmul", "m k, k n -> m n  sum: k"),
    Operator("tanh", "m n -> m n", passes="both"),
    Operator("halves", "m n -> m n, m n"),
    Operator("window", "s*y+u -> y  sum: u"),
):
    OPERATORS.add(operator)


def program(**changes):
    parts = {
        "inputs": [Value("x", (8, 16)), Value("w", (16, 4), "bfloat16")],
        "applications": [
            Application("matmul", ("x", "w"), ("y",)),
            Application("halves", ("y",), ("a", "b")),
        ],
        "outputs": ["a", "b"],
        "meshes": ['@m = <["p"=2]>'],
        "shardings": {"x": '<@m, [{"p"}, {}]>'},
        "output_shardings": {1: "<@m, [{}, {}]>"},
        "operators": OPERATORS,
        "dtypes": {"b": "int32"},
    }
    return Graph(**{**parts, **changes})


def test_a_graph_lists_its_values():
    graph = program()
    assert graph.values["y"] == Value("y", (8, 4), "float32")
    assert graph.values["b"].dtype == "int32"
    assert list(graph.values) == ["x", "w", "y", "a", "b"]
    assert str(graph).endswith("a: float32[8, 4], b: int32[8, 4] = halves(y)\nreturn a, b")


def test_a_graph_draws_itself():
    drawn = to_text(draw(program()))
    assert "╶╴ matmul ╶─▶" in drawn
    assert "m k" in drawn
    assert "sum: k" in drawn
    chain = [Application("tanh", (f"v{n}",), (f"v{n + 1}",)) for n in range(3000)]
    long = Graph([Value("v0", (8, 4))], chain, ["v3000"], operators=OPERATORS)
    assert "… 2988 applications between are not drawn" in to_text(draw(long))
    assert len(long._repr_html_()) < 20_000


def test_json_round_trip():
    graph = program()
    again = from_json(to_json(graph), OPERATORS)
    assert again == graph
    assert again.values == graph.values
    assert to_json(again) == to_json(graph)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": ["z"]}, "outputs[0]: z is not a value of the graph"),
        ({"shardings": {"z": ""}}, "shardings.z: z is not a value of the graph"),
        ({"output_shardings": {2: ""}}, "output_shardings.2: the graph has 2 outputs"),
        ({"inputs": [Value("x", (8, 16)), Value("x", (1,))]}, "inputs[1]: two values are named x"),
        ({"inputs": [Value("x", (8, 16))]}, "applications[0]: matmul uses w before it is defined"),
        (
            {"inputs": [Value("x", (8, -1)), Value("w", (1,))]},
            "inputs[0]: dimension 1 has the negative size",
        ),
        (
            {"applications": [Application("matmul", ("x", "w"), ("x",))]},
            "applications[0]: two values are named x",
        ),
        (
            {"applications": [Application("matmull", ("x",), ("y",))]},
            "applications[0]: there is no operator matmull",
        ),
        (
            {"applications": [Application("halves", ("x",), ("y",))]},
            "applications[0]: halves has 2 results, and 1 are named",
        ),
        (
            {"applications": [Application("matmul", ("w", "x"), ("y",))]},
            "applications[0]: dimension 0 of operand 1 has size 8, and 'k' has size 4 elsewhere",
        ),
    ],
)
def test_invalid_graphs_are_refused(changes, message):
    with pytest.raises(WeftError) as caught:
        program(**changes)
    assert str(caught.value).startswith(message)


def edited(*path, value):
    data = json.loads(to_json(program()))
    spot = data
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid JSON"),
        ("[" * 100_000, "invalid JSON"),
        ("[]", "the graph: expected an object, got []"),
        ("{}", "weft: expected the version 1, got None"),
        (edited("weft", value=2), "weft: expected the version 1, got 2"),
        (edited("code", value="import os"), "code: unknown field"),
        (edited("inputs", 0, "shape", 1, value=-3), "inputs[0].shape[1]: expected a size from 0"),
        (
            edited("inputs", 0, "shape", 1, value=2**60),
            "inputs[0].shape[1]: expected a size from 0",
        ),
        (edited("inputs", 0, "shape", value="8"), "inputs[0].shape: expected a list of at most"),
        (
            edited("inputs", 0, "dtype", value="float31"),
            "inputs[0].dtype: expected one of the dtyp",
        ),
        (edited("inputs", 0, "name", value=3), "inputs[0].name: expected a string, got 3"),
        (
            edited("applications", 0, "operator", value=None),
            "applications[0].operator: expected a s",
        ),
        (
            edited("applications", 0, "operands", 1, value="q"),
            "applications[0]: matmul uses q before",
        ),
        (
            edited("applications", 1, "attributes", value={"a": {"b": 1}}),
            "applications[1].attributes.a: expected a number, a string, a flag or a list",
        ),
        (
            edited("output_shardings", value={"one": "x"}),
            "output_shardings.one: expected the number",
        ),
    ],
)
def test_malformed_json_names_the_field(text, message):
    with pytest.raises(WeftError) as caught:
        from_json(text, OPERATORS)
    assert str(caught.value).startswith(message)


def test_a_user_adds_an_operator_in_a_line():
    library = Library()
    library.add(Operator("stencil", "b y+u -> b y  sum: u"))
    with pytest.raises(WeftError, match="there already is an operator stencil"):
        library.add(Operator("stencil", "n -> n"))
    with pytest.raises(WeftError) as caught:
        library.find("stensil")
    assert caught.value.__notes__ == ["hint: did you mean stencil?"]


def test_an_operator_says_where_it_was_applied():
    with pytest.raises(WeftError) as caught:
        OPERATORS.find("matmul").sign([(8, 16), (8, 4)])
    assert caught.value.__notes__ == ["while applying matmul to [8, 16], [8, 4]"]


@pytest.mark.parametrize(
    ("application", "message"),
    [
        ({"operator": "transpose"}, "transpose needs the attribute 'permutation'"),
        (
            {"operator": "transpose", "attributes": {"permutation": [0, 7]}},
            "transpose cannot have permutation=(0, 7): tuple index out of range",
        ),
        (
            {"operator": "reshape", "attributes": {"result_shape": "abc"}},
            "attribute result_shape of reshape must be integers, got 'abc'",
        ),
        ({"operator": "add", "operands": ["x", "i"]}, "the operands are of float32 and int32"),
        (
            {
                "operator": "broadcast_in_dim",
                "attributes": {"result_shape": [10**30, 8, 4], "broadcast_dimensions": [1, 2]},
            },
            "applications[0].results[0]: y has a dimension of 1000000000000000000000000000000",
        ),
        (
            {
                "operator": "slice",
                "attributes": {"start_indices": [0], "limit_indices": [1], "strides": [0]},
            },
            "slice cannot have start_indices=(0,), limit_indices=(1,), strides=(0,): ",
        ),
    ],
)
def test_attributes_that_make_no_sense_are_refused(application, message):
    whole = {
        "weft": 1,
        "inputs": [
            {"name": "x", "shape": [8, 4]},
            {"name": "i", "shape": [8, 4], "dtype": "int32"},
        ],
        "applications": [{"operands": ["x"], "results": [{"name": "y"}], **application}],
        "outputs": ["y"],
    }
    with pytest.raises(WeftError) as caught:
        from_json(json.dumps(whole))
    prefix = "" if message.startswith("applications") else "applications[0]: "
    assert str(caught.value).startswith(prefix + message)
