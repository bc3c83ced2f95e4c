"""Regions: graphs inside applications, checked, printed, drawn, and read back from JSON."""

import json

import pytest

from weft import Graph, WeftError
from weft.draw import draw, to_text
from weft.lang import Application, Value
from weft.lang.graph_json import NESTED, from_json, to_json


def value(name, *shape, dtype="float32"):
    return Value(name, shape or (8,), dtype)


def true(*inputs):
    """A condition that looks at nothing."""
    said = {"result_shape": (), "dtype": "bool"}
    flag = f"{inputs[0].name}?"
    return Graph(inputs, [Application("constant", (), (flag,), said)], [flag])


def body(*inputs, outputs=None):
    """Adds the last input to the first."""
    made = f"{inputs[0].name}'"
    add = Application("add", (inputs[0].name, inputs[-1].name), (made,))
    return Graph(inputs, [add], [made] if outputs is None else outputs)


def loop(**changes):
    parts = {
        "operands": ("a", "b"),
        "results": ("y",),
        "regions": (true(value("y/cond/i")), body(value("y/body/i"), value("b"))),
    }
    application = Application("while", **{**parts, **changes})
    return Graph([value("a"), value("b")], [application], ["y"], ["@m = <[]>"])


def test_a_graph_lists_the_values_of_its_regions():
    graph = loop()
    assert list(graph.values) == ["a", "b", "y"]
    assert list(graph.all_values) == [
        *("a", "b", "y/cond/i", "y/cond/i?", "y/body/i", "y/body/i'", "y"),
    ]
    assert [application.operator for application, _ in graph.walk()] == ["while", "constant", "add"]
    assert str(graph).splitlines() == [
        "@m = <[]>",
        "a: float32[8]",
        "b: float32[8]",
        "y: float32[8] = while(a, b)",
        "  region 0:",
        "    y/cond/i: float32[8]",
        "    y/cond/i?: bool[] = constant(, result_shape=(), dtype=bool)",
        "    return y/cond/i?",
        "  region 1:",
        "    y/body/i: float32[8]",
        "    y/body/i': float32[8] = add(y/body/i, b)",
        "    return y/body/i'",
        "return y",
    ]


def test_dtypes_come_out_of_regions():
    said = {"result_shape": (3,), "dtype": "int8"}
    branch = Graph([], [Application("constant", (), ("y/c",), said)], ["y/c"])
    choice = Application("case", ("n",), ("y",), regions=(branch,))
    graph = Graph([Value("n", (), "int32")], [choice], ["y"])
    assert graph.values["y"] == Value("y", (3,), "int8")
    carried = Application("optimization_barrier", ("n", "m"), ("y", "z"))
    graph = Graph([Value("n", (), "int32"), Value("m", (2,), "bool")], [carried], ["y"])
    assert [graph.values[name].dtype for name in "yz"] == ["int32", "bool"]


def test_regions_are_drawn_inside():
    drawn = to_text(draw(loop()))
    assert "region 0 of while" in drawn
    assert "region 1 of while" in drawn
    assert drawn.count("╷") == 2


def test_json_round_trip():
    graph = loop()
    again = from_json(to_json(graph))
    assert again == graph
    assert again.all_values == graph.all_values
    assert to_json(again) == to_json(graph)


CONDITION, BODY = loop().applications[0].regions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"operands": ("b", "a")},
            "applications[0]: the operands of while must end with what its regions capture",
        ),
        ({"regions": (BODY,)}, "applications[0]: while has 1 region, expected 2"),
        (
            {"regions": (CONDITION, body(value("i"), value("b"), outputs=["i", "i"]))},
            "applications[0]: while: region 1 has 2 outputs, expected 1",
        ),
        (
            {"regions": (true(value("i"), value("j")), BODY)},
            "applications[0]: while: region 0 has 2 arguments, expected 1",
        ),
        (
            {"regions": (true(value("i", 4)), BODY)},
            "applications[0]: while joins a of shape [8] and i of shape [4]",
        ),
        (
            {"regions": (CONDITION, body(value("y/cond/i"), value("b")))},
            "applications[0]: two values are named y/con",
        ),
        (
            {"regions": (CONDITION, body(value("i"), value("b", 8, 1)))},
            "applications[0]: two values are named b",
        ),
        ({"results": ("y/body/i",)}, "applications[0]: two values are named y/body/i"),
    ],
)
def test_invalid_regions_are_refused(changes, message):
    with pytest.raises(WeftError) as caught:
        loop(**changes)
    assert str(caught.value).startswith(message)


def edited(*path, value):
    data = json.loads(to_json(loop()))
    spot = data
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return json.dumps(data)


def nested(depth):
    """Choices in choices."""
    graph = {"inputs": [], "applications": [], "outputs": ["n"]}
    for level in range(depth):
        inputs = [{"name": "n", "shape": []}]
        choice = {
            "operator": "case",
            "operands": ["n", "n"],
            "regions": [{**graph, "inputs": inputs}],
        }
        name = f"r{level}"
        graph = {"applications": [{**choice, "results": [{"name": name}]}], "outputs": [name]}
    inputs = [{"name": "n", "shape": []}]
    return json.dumps({"weft": 1, **graph, "inputs": inputs})


REGION = ("applications", 0, "regions", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            edited(*REGION, "inputs", 0, "shape", value=[-1]),
            "applications[0].regions[1].inputs[0].",
        ),
        (
            edited(*REGION, "meshes", value=[]),
            "applications[0].regions[1].meshes: unknown field",
        ),
        (edited(*REGION, value=7), "applications[0].regions[1]: expected an object, got 7"),
        (edited("applications", 0, "regions", value=7), "applications[0].regions: expected a list"),
        (
            edited(*REGION, "outputs", value=["q"]),
            "applications[0].regions[1].outputs[0]: q is not a value of the graph",
        ),
        (nested(NESTED + 1), "applications[0].regions[0].applications[0].regions[0]"),
    ],
)
def test_malformed_json_names_the_field(text, message):
    with pytest.raises(WeftError) as caught:
        from_json(text)
    assert str(caught.value).startswith(message)


def test_regions_may_stand_deep_but_not_without_end():
    assert from_json(nested(NESTED)).values["r31"].shape == ()
    with pytest.raises(WeftError, match=f"expected regions at most {NESTED} deep"):
        from_json(nested(NESTED + 1))
