"""Hostile JSON of graphs is read or refused, within limits; what is read can be written again."""

import json

import numpy as np
from tests.fuzzing import Reader, fuzz
from tests.mutations import mutate_json
from tests.runtime.cases import CASES
from tests.runtime.test_validate import WITH_KERNELS
from tests.trials import large

from weft import Graph, ops, propagate, trace
from weft.lang import Application, Value
from weft.lang.fusion import fuse
from weft.lang.graph_json import from_json, to_json
from weft.values import FrozenMap


def _applied(name):
    """A graph of one operator, with operands and attributes that it takes."""
    operands, attributes = CASES[name](np.random.default_rng(1))
    inputs = [Value(f"x{n}", x.shape, x.dtype.name) for n, x in enumerate(operands)]
    names = tuple(value.name for value in inputs)
    for count in (1, 2, 3):
        made = tuple(f"y{n}" for n in range(count))
        try:
            return Graph(
                inputs, [Application(name, names, made, FrozenMap(attributes.items()))], made
            )
        except ValueError:
            continue
    raise AssertionError(name)


def mlp():
    return trace(
        lambda x, w, b, v: ops.relu(ops.linear(x, w, b)) @ v,
        *((8, 16), (16, 32), (32,), (32, 4)),
        names=["x", "w", "b", "v"],
        meshes=['@m = <["dp"=2, "tp"=4]>'],
        shardings={"x": '<@m, [{"dp"}, {}]>', "w": '<@m, [{}, {"tp"}]>'},
    )


def loop():
    return from_json(
        json.dumps(
            {
                "weft": 1,
                "inputs": [{"name": "x", "shape": [4]}],
                "applications": [
                    {
                        "operator": "while",
                        "operands": ["x"],
                        "results": [{"name": "y"}],
                        "regions": [
                            {
                                "inputs": [{"name": "a", "shape": [4]}],
                                "applications": [],
                                "outputs": ["a"],
                            },
                            {
                                "inputs": [{"name": "b", "shape": [4]}],
                                "applications": [
                                    {
                                        "operator": "tanh",
                                        "operands": ["b"],
                                        "results": [{"name": "c"}],
                                    }
                                ],
                                "outputs": ["c"],
                            },
                        ],
                    }
                ],
                "outputs": ["y"],
            }
        )
    )


def _documents():
    fused = fuse(trace(lambda x, w: ops.relu(x @ w), (8, 16), (16, 4)), "matmul")
    graphs = [mlp(), loop(), fused, *map(_applied, WITH_KERNELS)]
    return [to_json(graph, None).encode() for graph in graphs]


def _read(data):
    graph = from_json(data.decode("utf-8", "replace"))
    again = from_json(to_json(graph))
    assert again == graph
    assert str(again) == str(graph)
    if len(graph.applications) < 20:
        propagate(graph)


def _with(**fields):
    return json.dumps({**json.loads(to_json(mlp())), **fields}).encode()


def _applying(operator, operands, attributes=None, shape=(4,), results=("y",)):
    applied = {"operator": operator, "operands": operands, "attributes": attributes or {}}
    applied["results"] = [{"name": name} for name in results]
    inputs = [{"name": "x", "shape": list(shape)}]
    data = {"weft": 1, "inputs": inputs, "applications": [applied], "outputs": list(results)}
    return json.dumps(data).encode()


def _hostile():
    chain = [
        {"operator": "add", "operands": [f"v{n}", f"v{n}"], "results": [{"name": f"v{n + 1}"}]}
        for n in range(large(5000))
    ]
    nested = {"inputs": [], "applications": [], "outputs": []}
    for _ in range(200):
        nested = {
            "inputs": [],
            "applications": [
                {"operator": "case", "operands": [], "results": [], "regions": [nested]}
            ],
            "outputs": [],
        }
    return [
        _with(meshes=['@m = <["dp"=1000000, "tp"=1000000]>']),
        _with(meshes=['@m = <["dp"=999999999999999999]>'] * 1000),
        _with(meshes=["@m"]),
        _with(meshes=['@m = <["dp"=2, "tp"=4]>'] * 2),
        _with(shardings={"x": "garbage"}),
        _with(shardings={"x": "<@m, [{}, {}, {}]>"}),
        _with(inputs=[{"name": "x", "shape": [1 << 48] * 300}]),
        _with(inputs=[{"name": "x" * 100_000, "shape": [1]}]),
        json.dumps(
            {"weft": 1, "inputs": [{"name": "v0", "shape": [4]}], "applications": chain}
        ).encode(),
        json.dumps({"weft": 1, **nested}).encode(),
        _applying("=>".join(["tanh"] * large(20_000)), ["x"], {"first": 1}),
        _applying("tanh=>tanh@" + "9" * 5000, ["x"], {"first": 1}),
        _applying("tanh=>tanh@x", ["x"], {"first": 1}),
        _applying("tanh=>tanh", ["x"], {"first": 10**30}),
        _applying("tanh=>tanh", ["x"], {"first": "1"}),
        _applying("iota", [], {"result_shape": [10**30], "dtype": "int32", "iota_dimension": 0}),
        _applying("iota", [], {"result_shape": [4], "dtype": 5, "iota_dimension": 0}),
        _applying("iota", [], {"result_shape": [4] * large(100_000), "iota_dimension": 0}),
        _applying("tanh", ["x"], shape=[2] * 5000),
        _applying("reshape", ["x"], {"result_shape": [2] * 48}, shape=[1 << 48]),
        _applying("add", ["x"] * large(100_000)),
    ]


GRAPHS = Reader(_documents, _read, mutate_json, _hostile)


def test_hostile_graphs_are_read_or_refused():
    fuzz("tests.lang.test_fuzz:GRAPHS")
