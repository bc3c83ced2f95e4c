"""Python functions over symbols become graphs."""

import re

import numpy as np
import pytest

from weft import (
    DeviceMesh,
    DimSpec,
    Graph,
    Operator,
    ShardingSpec,
    Tensor,
    WeftError,
    ops,
    propagate,
    trace,
)
from weft.lang import Library, Value
from weft.lang.arithmetic import apply
from weft.lang.graph_json import from_json, to_json
from weft.lang.operator import OPERATORS

MESH = DeviceMesh("m", (2, 4), ("dp", "tp"))


def operators_of(graph):
    return [application.operator for application in graph.applications]


def test_values_are_named_by_parameters_and_operators():
    graph = trace(lambda x, w: ops.tanh(x @ w) @ w.T, (8, 16), (16, 4))
    assert [value.name for value in graph.inputs] == ["x", "w"]
    assert list(graph.values) == ["x", "w", "matmul", "tanh", "transpose", "matmul_2"]
    assert graph.values["matmul_2"].shape == (8, 16)
    assert graph.outputs == ("matmul_2",)


def test_inputs_are_shapes_values_or_arrays():
    graph = trace(lambda a, b, c: (a, b, c), (2,), Value("mine", (3,), "int8"), np.ones((4, 5)))
    assert [str(value) for value in graph.inputs] == [
        "a: float32[2]",
        "mine: int8[3]",
        "c: float64[4, 5]",
    ]


def test_scalars_become_constants_of_the_dtype():
    graph = trace(lambda x: 2 * x - 1.5, Value("x", (4,), "float64"))
    constants = [a for a in graph.applications if a.operator == "constant"]
    assert [dict(a.attributes)["value"] for a in constants] == [2, 1.5]
    assert {graph.values[a.results[0]].dtype for a in constants} == {"float64"}


def test_arrays_from_outside_become_inputs_once():
    table = np.ones((4, 4), "float32")
    graph = trace(lambda x: (x + table) @ table, (4, 4))
    assert [value.name for value in graph.inputs] == ["x", "input"]


@pytest.mark.parametrize(
    "index",
    [
        np.s_[1],
        np.s_[-1],
        np.s_[2:5],
        np.s_[::2],
        np.s_[::-1],
        np.s_[5:1:-2],
        np.s_[..., 1:3],
        np.s_[:, None, 2],
        np.s_[None],
        np.s_[1:3, ..., ::3],
        np.s_[3:3],
        np.s_[...],
    ],
)
def test_indexing_has_numpys_shapes(index):
    graph = trace(lambda x: x[index], (6, 5, 7))
    assert graph.values[graph.outputs[0]].shape == np.ones((6, 5, 7))[index].shape


def test_operators_of_python():
    def function(x, y):
        return [x + y, x - y, x * y, x / y, x**y, -x, abs(x), x < y, x >= y, (x < y) & (x > y)]

    graph = trace(function, (4,), (4,))
    assert "compare" in operators_of(graph)
    assert [graph.values[name].dtype for name in graph.outputs[-3:]] == ["bool"] * 3


def test_reductions_and_reshapes():
    def function(x):
        return (
            x.sum(),
            x.mean(-1),
            x.max((0, 1), keepdims=True),
            x.reshape(6, -1),
            x.transpose(1, 0, 2),
        )

    graph = trace(function, (2, 3, 4))
    shapes = [graph.values[name].shape for name in graph.outputs]
    assert shapes == [(), (2, 3), (1, 1, 4), (6, 4), (3, 2, 4)]


def test_a_users_operator_is_a_function():
    mine = Library(OPERATORS)
    mine.add(Operator("outer", "m, n -> m n"))
    with pytest.raises(AttributeError, match="there is no operator outer in weft"):
        ops.outer  # it is not in the library that ships
    graph = trace(lambda x, y: apply("outer", x, y), (3,), (4,), operators=mine)
    assert graph.values["outer"].shape == (3, 4)


def test_shardings_are_constraints():
    def function(x, w):
        h = (x @ w).with_sharding(MESH, [DimSpec(["dp"]), DimSpec(["tp"])])
        return ops.exp(h).with_sharding(ShardingSpec(MESH, [DimSpec(["dp"]), DimSpec([])]))

    graph = trace(function, (8, 16), (16, 32))
    assert graph.meshes == ('@m = <["dp"=2, "tp"=4]>',)
    assert operators_of(graph) == ["matmul", *["sharding_constraint", "exponential"] * 2][:4]
    assert list(graph.shardings.values()) == ['<@m, [{"dp"}, {"tp"}]>', '<@m, [{"dp"}, {}]>']
    assert str(propagate(graph).specs["w"]) == '<@m, [{?}, {"tp", ?}]>'


def test_shardings_of_inputs_go_by_name():
    spec = ShardingSpec(MESH, [DimSpec(["dp"]), DimSpec([])])
    graph = trace(lambda x, w: x @ w, (8, 16), (16, 32), shardings={"x": spec})
    assert str(propagate(graph).specs["matmul"]) == '<@m, [{"dp", ?}, {?}]>'
    again = from_json(to_json(graph))
    assert again == graph
    text = trace(lambda x: -x, (8,), meshes=[MESH], shardings={"x": '<@m, [{"dp"}]>'})
    assert text.meshes == (str(MESH),)


def broken(function, message, *shapes):
    with pytest.raises(WeftError, match=message):
        trace(function, *(shapes or [(4, 5)]))


def test_errors():
    broken(lambda x: x if x else -x, "x has no numbers yet: a traced function cannot branch on")
    broken(lambda x: 3, "expected a traced function to return tensors, got a int")
    broken(lambda x: x @ "w", "matmul cannot be applied to a str")
    broken(lambda x: x[9], "index 9 is out of bounds for a dimension of size 4")
    broken(lambda x: x[1, 2, 3], "an array of rank 2 cannot be indexed by")
    broken(
        lambda x: x["a"], "expected an integer, a slice, ..., None or an array of integers, got 'a'"
    )
    broken(lambda x: x.sum(2), "axis 2 is out of bounds for an array of rank 2")
    broken(lambda x: x.reshape(3, -1), r"\[4, 5\] cannot be reshaped to \[3, -1\]")
    broken(lambda x: x.transpose(0, 0), r"axes \(0, 0\) are not an order of the 2 dimensions")
    broken(lambda x: x & x, "expected a dtype of kind bool, int, uint, got float32")
    broken(lambda x: x.astype("float31"), "'float31' is not a dtype that Weft knows")
    broken(lambda x: x.astype("uint8") + 256, "256 does not fit uint8, which holds 0 to 255")
    broken(lambda x: x.astype("float8_e5m2") + x, "float8_e5m2 and float32 have no common dtype")
    broken(lambda x: ops.broadcast_to(x, (4,)), r"\[4, 5\] cannot be broadcast to \[4\]")
    broken(lambda x: ops.einsum("ijk", x), "the equation 'ijk' has 'ijk' for an operand of rank 2")
    broken(
        lambda x, y: x + y,
        "dimension 1 of operand 1 has size 6, and 'i1' has size 5",
        (4, 5),
        (4, 6),
    )


def test_a_dict_names_the_outputs():
    mesh = '@m = <["x"=2]>'

    def function(x):
        first = (x + 1).with_sharding('<@m, [{"x"}]>')
        return {"add": first * x, "mul": first + x, "x": x}

    graph = trace(function, (8,), meshes=[mesh])
    assert list(map(str, graph.applications[1:])) == [
        "add_3 = add(x, constant)",
        "sharding_constraint = sharding_constraint(add_3)",
        "add = multiply(sharding_constraint, x)",
        "mul = add(sharding_constraint, x)",
    ]
    assert graph.outputs == ("add", "mul", "x")
    assert graph.shardings == {"sharding_constraint": '<@m, [{"x"}]>'}
    kept = trace(lambda x: {"y": x.with_sharding('<@m, [{"x"}]>')}, (8,), meshes=[mesh])
    assert (kept.outputs, kept.shardings) == (("y",), {"y": '<@m, [{"x"}]>'})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: {"y": x}, "output y is the input x, which cannot be renamed"),
        (lambda x, w: {"w": x + 1}, "output w has the name of an input"),
        (lambda x, w: dict.fromkeys("ab", x + 1), "outputs a and b are one value"),
        (lambda x, w: {1: x + 1}, "expected outputs named by strings, got 1"),
        (lambda x, w: {"y": 1}, "expected a traced function to return tensors, got a int"),
    ],
)
def test_names_that_outputs_cannot_have(function, message):
    with pytest.raises(WeftError, match=message):
        trace(function, (8,), (8,))


def test_two_programs_do_not_mix():
    outer = []
    trace(lambda x: outer.append(x) or x, (4,))
    broken(
        lambda y: y + outer[0],
        "add is applied to x: .* which depends on x: .* of another traced function",
    )


def test_two_meshes_of_one_name():
    other = DeviceMesh("m", (8,), ("x",))

    def function(x):
        first = x.with_sharding(MESH, [DimSpec(["dp"]), DimSpec([])])
        return first.with_sharding(other, [DimSpec(["x"]), DimSpec([])])

    broken(function, "two meshes are named m")


def test_only_tensors_can_be_applied_to():
    with pytest.raises(WeftError, match="exponential is applied to int, none of them a tensor"):
        ops.exp(3)


def test_traced_values_become_numbers():
    a = Tensor.ones((4, 3)).trace("a")
    total = (a * 2).sum()
    assert float(total) == 24.0
    assert int(total) == 24
    assert complex(total) == 24
    assert range(30)[Tensor(3).trace()] == 3
    assert np.asarray(a).shape == (4, 3)
    assert np.array(a, dtype="int32").dtype == np.int32
    assert len(a) == 4
    assert [row.shape for row in a] == [(3,)] * 4
    assert 1.0 in a
    assert 2.0 not in a
    with pytest.raises(WeftError, match="cannot branch"):
        bool(total)
    with pytest.raises(TypeError, match="which has no dimensions"):
        len(total)
    np.testing.assert_allclose(np.sin(a).numpy(), np.sin(a.numpy()))
    with pytest.raises(ValueError, match="needs copy=None or True"):
        a.__array__(copy=False)


@pytest.mark.parametrize(
    "use", [float, int, np.asarray, lambda x: x.numpy(), lambda x: x.run(), lambda x: 1 in x]
)
def test_a_traced_value_has_no_array(use):
    with pytest.raises(WeftError, match=r"there is no array for x: float32\[\]"):
        trace(lambda x: use(x + 1) and x, ())


def test_the_sharding_of_a_tensor_is_that_of_the_input():
    spec = ShardingSpec.parse('<@m, [{"dp", ?}p1, {}]>', MESH)
    x = Tensor.ones((8, 4)).shard(spec)
    assert x.trace().graph().shardings == {"input": str(spec)}
    assert x.trace().graph().meshes == (str(MESH),)
    captured = trace(lambda y: y + x, (8, 4))
    assert captured.shardings == {"input": str(spec)}
    assert trace(lambda y: y, x).shardings == {"y": str(spec)}
    other = '<@m, [{}, {"tp"}]>'
    assert trace(lambda y: y, x, shardings={"y": other}).shardings == {"y": other}
    made = x + 1
    assert made.trace().graph().shardings == {"input": '<@m, [{"dp"}, {}]>'}


def test_traced_tensors_meet():
    a, b = Tensor.ones((4,)), Tensor.full((4,), 3)
    one, two = a.trace("a") + 1, b.trace("b") * 2
    both = one + two
    again = both * two - one
    assert np.array_equal(both.numpy(), np.full(4, 8))
    assert np.array_equal(again.numpy(), np.full(4, 46))
    assert len(again.graph().inputs) == 2  # what was copied is not copied again
    assert np.array_equal((a.trace() + (a.trace() + 1)).numpy(), np.full(4, 3))
    for _ in range(2):  # a traced value may be captured by several functions
        assert [v.name for v in trace(lambda x: x + two, (4,)).inputs] == ["x", "b"]
    assert np.array_equal(two.numpy(), np.full(4, 6))


def test_an_array_that_changes_is_captured_again():
    table = np.ones(4, "float32")
    x = Tensor.zeros((4,)).trace() + table
    table[:] = 5
    x = x + table
    assert np.array_equal(x.numpy(), np.full(4, 6))
    assert len(x.graph().inputs) == 3


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        ("garbage", "shardings.x: 'garbage' is not a sharding: column 1: expected '<'"),
        ('<@m, [{"dp"}]>', "the sharding has 1 dimension and the array has 2"),
        ('<@m, [{"zz"}, {}]>', 'axis "zz" cuts dimension 0, but is not an axis of mesh @m'),
        ("<@n, [{}, {}]>", "mesh @n is not known"),
        ('<@m, [{"dp"}, {"dp"}]>', 'axis "dp" cuts dimension 0 and cuts dimension 1'),
        ('<@m, [{"dp"}, {}], replicated={"dp"}>', 'axis "dp" cuts dimension 0 and is replicated'),
        ('<@m, [{"dp":(1)3}, {}]>', 'does not divide "dp"='),
        ('<@m, [{}, {}], unreduced=total{"dp"}>', "which is not a monoid"),
    ],
)
def test_annotations_that_do_not_fit_are_refused_when_the_graph_is_made(sharding, message):
    with pytest.raises(WeftError, match=re.escape(message)):
        trace(lambda x: x, (8, 4), meshes=[MESH], shardings={"x": sharding})
    with pytest.raises(WeftError, match=re.escape(message.removeprefix("shardings.x: "))):
        trace(lambda x: x.with_sharding(MESH, sharding), (8, 4))
    with pytest.raises(WeftError, match=re.escape(message)):
        Graph([Value("x", (8, 4))], [], ["x"], [str(MESH)], {"x": sharding})
    with pytest.raises(WeftError, match=r"output_shardings\.0: "):
        Graph([Value("x", (8, 4))], [], ["x"], [str(MESH)], {}, {0: sharding})


def test_shardings_of_unknown_inputs():
    with pytest.raises(WeftError, match="the program has no value y") as caught:
        trace(lambda x: x, (8,), meshes=[MESH], shardings={"y": "<@m, [{}]>"})
    assert caught.value.__notes__ == ["hint: the inputs are x"]
    with pytest.raises(WeftError, match="a sharding needs a mesh and one DimSpec"):
        trace(lambda x: x.with_sharding(MESH), (8,))
    with pytest.raises(WeftError, match=r"meshes\[0\]: "):
        Graph([Value("x", (8,))], [], ["x"], ["garbage"])


def test_meshes_and_shardings_are_texts_or_objects():
    mesh = DeviceMesh.parse('@m = <["x"=2]>')
    spec = ShardingSpec(mesh, ['{"x"}', "{}"])
    texts = trace(
        lambda x: x.with_sharding(str(mesh), ['{"x"}', "{}"]),
        (8, 4),
        meshes=[str(mesh)],
        shardings={"x": str(spec)},
    )
    objects = trace(lambda x: x.with_sharding(spec), (8, 4), meshes=[mesh], shardings={"x": spec})
    assert texts == objects
    parts = texts.inputs, texts.applications, texts.outputs
    assert Graph(*parts, shardings=dict.fromkeys(texts.shardings, spec)) == texts
    assert Graph(*parts, [mesh], texts.shardings) == texts


def test_functions_take_the_arguments_of_numpy():
    def function(x):
        return {
            "total": ops.sum(x, axis=0, keepdims=True),
            "typed": ops.sum(x, 1, "float64"),
            "running": ops.cumsum(x),
            "wide": ops.expand_dims(x, axis=(0, -1)),
            "narrow": ops.squeeze(ops.expand_dims(x, axis=1), axis=1),
            "order": ops.permute_dims(x, (1, 0)),
            "both": ops.concat([x, x], axis=-1),
            "stacked": ops.stack([x, x, x], axis=1),
            "flipped": ops.flip(x, axis=0),
            "limited": ops.clip(x, 0, max=1),
            "method": x.any(axis=1, keepdims=True),
        }

    graph = trace(function, (4, 5))
    shapes = {name: graph.values[name].shape for name in graph.outputs}
    assert shapes == {
        "total": (1, 5),
        "typed": (4,),
        "running": (20,),
        "wide": (1, 4, 5, 1),
        "narrow": (4, 5),
        "order": (5, 4),
        "both": (4, 10),
        "stacked": (4, 3, 5),
        "flipped": (4, 5),
        "limited": (4, 5),
        "method": (4, 1),
    }
    assert graph.values["typed"].dtype == "float64"
    broken(lambda x: ops.squeeze(x, 0), r"axis 0 of \[4, 5\] has size 4, expected 1")
    broken(lambda x: ops.expand_dims(x, (0, 0)), r"axis \(0, 0\) names a dimension twice")
