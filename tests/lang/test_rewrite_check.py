"""Rewrites that users give: checked on random arrays before a search uses them."""

import numpy as np
import pytest

from weft import DeviceMesh, Machine, WeftError, ops, run, search, trace
from weft.lang import Library, Operator
from weft.lang.graph import Application, Graph, Value
from weft.lang.operator import OPERATORS
from weft.lang.rewrite import REWRITES, Rewrite
from weft.lang.rewrite_check import check_rewrite

LINE = DeviceMesh("m", (2,), ("x",))
SLOW = Machine(latency=1e-7, bandwidth=1e9, flops={"float32": 1e9}, memory_bandwidth=1e10)


def test_rewrites_that_weft_ships_pass():
    graphs = [
        trace(ops.softmax, (4, 6)),
        trace(lambda x: x.sum(-1), (4, 9)),
        trace(lambda x: x.mean(0), (9, 3)),
        trace(ops.linear, (8, 16), (16, 4), (4,)),
        trace(lambda x, w, b: x @ w + b, (8, 16), (16, 4), (4,)),
        trace(ops.attention, *[(1, 2, 8, 4)] * 3),
    ]
    checked = 0
    for graph in graphs:
        for rewrite in REWRITES:
            for match in rewrite.matches(graph):
                if match.root == graph.outputs[0]:
                    check_rewrite(rewrite, graph, match.root)
                    checked += 1
    assert checked >= len(graphs)


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        (
            Rewrite("wrong sign", ("subtract", "a", "b"), lambda v, _: v["b"] - v["a"]),
            r"wrong sign changes subtract: expected .* at \[\d, \d\], got",
        ),
        (
            Rewrite("fails", ("subtract", "a", "b"), lambda v, _: ops.concatenate([], 0)),
            "fails fails: ",
        ),
    ],
)
def test_a_rewrite_that_computes_anything_else_is_refused(rewrite, message):
    graph = trace(lambda a, b: a - b, (4, 4), (4, 4))
    with pytest.raises(WeftError, match=message):
        search(graph, LINE, SLOW, rewrites=[rewrite])


def test_a_rewrite_that_holds_only_for_some_sizes_is_refused():
    """Rows and columns of a square matrix are as many, and the condition does not say so."""
    swapped = Rewrite(
        "sum of the other", ("sum_dim", "x"), lambda v, _: ops.transpose(v["x"], (1, 0)).sum(1)
    )
    graph = trace(lambda x: x.sum(1), (4, 4))
    with pytest.raises(WeftError, match="sum of the other changes sum_dim"):
        search(graph, LINE, SLOW, rewrites=[swapped])


def test_a_search_uses_rewrites_that_are_given():
    graph = trace(lambda x: ops.relu(ops.relu(x)), (64, 64), names=["x"])
    once = Rewrite("relu once", ("relu", ("relu", "x")), lambda v, _: ops.relu(v["x"]))
    front = search(graph, LINE, SLOW, ["time"], rewrites=[once])
    assert [a.operator for a in front[0].graph.applications] == ["relu"]
    assert front.is_exact
    x = np.arange(4096.0, dtype="float32").reshape(64, 64) - 2000
    (found,) = run(front[0], {"x": x})
    assert np.array_equal(found.numpy(), np.maximum(x, 0))


def test_an_operator_brings_its_rewrites():
    apart = Rewrite("triple as sums", ("triple", "x"), lambda v, _: v["x"] + v["x"] + v["x"])
    triple = Operator(
        "triple", "n -> n", lambda block, x: x * 3, passes="both", flops=1000, rewrites=[apart]
    )
    library = Library(OPERATORS)
    library["triple"] = triple
    graph = Graph(
        [Value("x", (64,))], [Application("triple", ("x",), ("y",))], ["y"], operators=library
    )
    front = search(graph, LINE, SLOW, ["time"])
    assert all("add" in a.operator for a in front[0].graph.applications)
    wrong = Rewrite("triple as double", ("triple", "x"), lambda v, _: v["x"] + v["x"])
    library["triple"] = Operator("triple", "n -> n", lambda block, x: x * 3, rewrites=[wrong])
    graph = Graph(
        [Value("x", (64,))], [Application("triple", ("x",), ("y",))], ["y"], operators=library
    )
    with pytest.raises(WeftError, match="triple as double changes y"):
        search(graph, LINE, SLOW, ["time"])


def test_a_rewrite_without_kernels_is_refused():
    library = Library(OPERATORS)
    library["planned"] = Operator("planned", "n -> n")
    graph = Graph(
        [Value("x", (64,))], [Application("planned", ("x",), ("y",))], ["y"], operators=library
    )
    rewrite = Rewrite("planned as relu", ("planned", "x"), lambda v, _: ops.relu(v["x"]))
    with pytest.raises(WeftError, match="planned as relu could not be checked for x: float32"):
        search(graph, LINE, SLOW, rewrites=[rewrite])
