"""Programs of JAX as graphs: the values, shapes, dtypes and shardings of the text, and no crash."""

import random
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.interop.test_fuzz import chain, doubling, nested

import weft
from weft import WeftError
from weft.interop import stablehlo
from weft.interop.stablehlo import read
from weft.lang import OPERATORS, Operator, factor_rule
from weft.lang.graph_json import from_json, to_json

MESH = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))


def shard(*axes):
    return NamedSharding(MESH, PartitionSpec(*axes))


def mlp(x, w, v):
    return jax.nn.relu(x @ w) @ v


def loss(x, w, v):
    return jnp.mean(mlp(x, w, v) ** 2)


def attention(x, w, v):
    h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    a = jax.nn.softmax((h @ w) @ (h @ w).T, axis=-1)
    a = jax.lax.with_sharding_constraint(a, shard("x", None))
    return x + a @ (h @ w) @ v


def conv(x, w, v):
    image = jnp.reshape(x, (2, 4, 4, 4))
    kernel = jnp.reshape(w[:9, :8], (3, 3, 4, 2)).astype(jnp.bfloat16)
    return jax.lax.conv_general_dilated(
        image.astype(jnp.bfloat16),
        kernel,
        (2, 1),
        "SAME",
        rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ), jax.lax.conv_general_dilated(x[None], v[:8, :24].reshape(1, 8, 24), (1,), ((0, 8),))


def sorting(x, w, v):
    return jnp.sort(x, axis=0), jnp.argmax(w, axis=1), jnp.argsort(v)


def scanning(x, w, v):
    carry, ys = jax.lax.scan(lambda c, t: (c + t @ w[:16], c * 2), jnp.zeros(32), x)
    return carry, ys, jax.lax.cond(v[0, 0] > 0, lambda: v * 2, lambda: v @ v)


def indexing(x, w, v):
    taken = x[:, jnp.array([1, 2])]
    put = w.at[jnp.array([0, 3])].add(1.0)
    return taken, put, jnp.cumsum(v, axis=0), jnp.fft.rfft(x), jnp.pad(v, 1)[::2, ::-1]


PROGRAMS = {
    "mlp": mlp,
    "gradient": jax.grad(loss, (1, 2)),
    "attention": attention,
    "attention gradient": jax.grad(lambda *a: attention(*a).sum(), (0, 1, 2)),
    "conv": conv,
    "sorting": sorting,
    "scanning": scanning,
    "indexing": indexing,
}


def lower(name, sharded):
    function = PROGRAMS[name]
    shapes = [(8, 16), (16, 32), (32, 32)]
    if name.startswith("attention"):
        shapes = [(8, 16), (16, 16), (16, 16)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    more = {"in_shardings": (shard("x"), shard(None, "y"), None)} if sharded else {}
    text = jax.jit(function, **more).lower(*arguments).as_text()
    return text, jax.tree.leaves(jax.eval_shape(function, *arguments))


def main_of(text):
    return text[text.index("@main") :].split("\n  }\n")[0]


def names_in(text):
    """The values that the text of `main` names at its top level."""
    found = []
    for name, count in re.findall(r"^    %(\w+)(?::(\d+))? = ", main_of(text), re.MULTILINE):
        found += [f"{name}#{n}" for n in range(int(count))] if count else [name]
    return found


def types_in(text):
    """The shape and dtype of each value that a line of `main` makes alone."""
    dtypes = {"f32": "float32", "i32": "int32", "i1": "bool", "bf16": "bfloat16"}
    line = r"^    %(\w+) = .*tensor<([0-9x]*?)x?(f32|i32|i1|bf16)>$"
    return {
        name: (tuple(map(int, filter(None, shape.split("x")))), dtypes[dtype])
        for name, shape, dtype in re.findall(line, main_of(text), re.MULTILINE)
    }


def attributes_of(graph, name):
    operator = {name, f"opaque:{name}"}
    return [a.attributes for a in graph.applications if a.operator in operator]


def module(body, types="(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32>", rest=""):
    return f"module {{\n{rest}\nfunc.func public @main{types} {{\n{body}\n}}\n}}"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_has_the_values_of_the_text(name, sharded):
    text, outputs = lower(name, sharded)
    graph = stablehlo.read(text)
    top = [value for value in graph.values if "/" not in value]
    given = [value.name for value in graph.inputs]
    assert given == [f"arg{n}" for n in range(3)]
    assert set(top) - set(given) <= set(names_in(text))
    for alias in set(names_in(text)) - set(top):  # calls that return what they were given
        assert re.search(rf"%{alias.partition('#')[0]}(:\d+)? = call", text)
    for value, said in types_in(text).items():
        if value in graph.values:
            assert graph.values[value][1:] == said
    made = [graph.values[value] for value in graph.outputs]
    assert [(v.shape, v.dtype) for v in made] == [(o.shape, o.dtype.name) for o in outputs]


@pytest.mark.parametrize("name", PROGRAMS)
def test_shardings_come_along_and_can_be_read(name):
    graph = stablehlo.read(lower(name, True)[0])
    assert graph.meshes == ('@mesh = <["x"=2, "y"=4]>',)
    assert graph.shardings["arg0"] == '<@mesh, [{"x"}, {}]>'
    assert graph.shardings["arg1"] == '<@mesh, [{}, {"y"}]>'
    mesh = weft.DeviceMesh.parse(graph.meshes[0])
    for value, text in graph.shardings.items():
        spec = weft.ShardingSpec.parse(text, mesh)
        assert len(spec.grid) == len(graph.values[value].shape)
    constraints = [a for a in graph.applications if a.operator.endswith("sharding_constraint")]
    assert all(a.results[0] in graph.shardings for a in constraints)
    assert bool(constraints) == name.startswith("attention")


def test_shardings_of_results_and_of_operations():
    sharding = "#sdy.sharding<@m, [{?}, {}]>"
    text = module(
        '%0 = stablehlo.add %arg0, %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"a"}, '
        '{"b":(1)2, ?}p1], unreduced={"c"}>]>} : tensor<8x4xf32>\nreturn %0 : tensor<8x4xf32>',
        f"(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32> {{sdy.sharding = {sharding}}})",
        'sdy.mesh @m = <["a"=2, "b"=4, "c"=2]>',
    )
    graph = stablehlo.read(text)
    assert graph.shardings == {"0": '<@m, [{"a"}, {"b":(1)2, ?}p1], unreduced={"c"}>'}
    assert graph.output_shardings == {0: "<@m, [{?}, {}]>"}
    mesh = weft.DeviceMesh.parse(graph.meshes[0])
    weft.ShardingSpec.parse(graph.shardings["0"], mesh)


def test_a_mesh_inside_a_sharding_gets_a_name():
    text = module(
        'sdy.sharding_constraint %arg0 <mesh<["a"=2]>, [{"a"}, {}]> : tensor<8x4xf32>\n'
        "return %arg0 : tensor<8x4xf32>"
    ).replace("sdy.sharding_constraint", "%0 = sdy.sharding_constraint")
    graph = stablehlo.read(text)
    assert graph.meshes == ('@inlined_mesh_0 = <["a"=2]>',)
    assert graph.shardings == {"0": '<@inlined_mesh_0, [{"a"}, {}]>'}


def test_calls_are_inlined_and_their_values_have_paths():
    graph = stablehlo.read(lower("mlp", False)[0])
    assert [a.operator for a in graph.applications] == [
        *("dot_general", "data_flow_edge", "constant", "broadcast_in_dim", "maximum"),
        *("data_flow_edge", "dot_general"),
    ]
    assert list(graph.values)[3:] == ["0", "1/arg0", "1/cst", "1/0", "1/1", "1", "2"]


CALLS = """
    func.func private @swap(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>)
            -> (tensor<8x4xf32>, tensor<8x4xf32>) {
        return %arg1, %arg0 : tensor<8x4xf32>, tensor<8x4xf32>
    }
    func.func private @twice(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
        %0 = stablehlo.negate %arg0 : tensor<8x4xf32>
        %1:2 = call @swap(%0, %arg0) :
            (tensor<8x4xf32>, tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>)
        return %1#1, %1#1 : tensor<8x4xf32>, tensor<8x4xf32>
    }
    func.func private @loop(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
        %0 = call @loop(%arg0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
        return %0 : tensor<8x4xf32>
    }
    func.func private @elsewhere(tensor<8x4xf32>) -> tensor<8x4xf32>
    func.func private @held(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {}]>})
            -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"a"}, {}]>}) {
        return %arg0 : tensor<8x4xf32>
    }
    sdy.mesh @m = <["a"=2]>
"""


def call(callee, returned="%0", results="tensor<8x4xf32>"):
    count = f":{results.count('tensor')}" if "," in results else ""
    body = f"%0{count} = call @{callee}(%arg0) : (tensor<8x4xf32>) -> ({results})\n"
    return stablehlo.read(module(f"{body}return {returned} : tensor<8x4xf32>", rest=CALLS))


def test_arrays_cross_the_border_of_a_call_by_edges():
    graph = call("twice", "%0#1", "tensor<8x4xf32>, tensor<8x4xf32>")
    inner = ["0/1/arg0", "0/1/arg1", "0/1#0", "0/1#1"]
    assert list(graph.values) == ["arg0", "0/arg0", "0/0", *inner, "0#0", "0#1"]
    assert [a.operands for a in graph.applications[2:]] == [
        *(("0/0",), ("0/arg0",), ("0/1/arg1",), ("0/1/arg0",), ("0/1#1",), ("0/1#1",))
    ]
    edges = [a for a in graph.applications if a.operator == "data_flow_edge"]
    assert [a.attributes.get("enters", False) for a in edges] == [True] * 3 + [False] * 4


def test_elements_cross_no_border():
    text = """
        func.func private @f(%arg0: tensor<f32>) -> tensor<f32> {
            %0 = stablehlo.negate %arg0 : tensor<f32>
            return %0 : tensor<f32>
        }
        func.func public @main(%arg0: tensor<f32>) -> tensor<f32> {
            %0 = call @f(%arg0) : (tensor<f32>) -> tensor<f32>
            return %0 : tensor<f32>
        }"""
    assert [str(a) for a in stablehlo.read(text).applications] == ["0 = negate(arg0)"]


def test_shardings_of_a_private_function_are_those_of_its_border():
    graph = call("held")
    assert graph.shardings == {"0/arg0": "<@m, [{}, {}]>", "0": '<@m, [{"a"}, {}]>'}
    assert [a.operands for a in graph.applications] == [("arg0",), ("0/arg0",)]


def test_a_function_without_a_body_is_opaque_and_one_without_an_end_is_refused():
    assert stablehlo.opaque(call("elsewhere")) == ["func.call"]
    with pytest.raises(WeftError, match=r"^a function calls itself: @loop -> @loop$"):
        call("loop")


def test_attributes_are_plain_values():
    conv_graph = stablehlo.read(lower("conv", False)[0])
    first, second = attributes_of(conv_graph, "convolution")
    assert (
        first.items()
        >= {
            "input_batch_dimension": 0,
            "input_feature_dimension": 3,
            "input_spatial_dimensions": (1, 2),
            "kernel_output_feature_dimension": 3,
            "output_spatial_dimensions": (1, 2),
            "window_strides": (2, 1),
            "padding": (0, 1, 2, 2),
            "lhs_dilation": (1, 1),
            "rhs_dilation": (1, 2),
            "feature_group_count": 1,
            "batch_group_count": 1,
        }.items()
    )
    assert (second["padding"], second["window_strides"]) == ((0, 8), (1,))
    graph = stablehlo.read(lower("attention", False)[0])
    assert {a.get("monoid") for a in attributes_of(graph, "reduce")} == {"sum", "max"}
    dot = attributes_of(graph, "dot_general")[0]
    assert (dot["lhs_contracting_dimensions"], dot["lhs_batching_dimensions"]) == ((1,), ())
    graph = stablehlo.read(lower("indexing", False)[0])
    assert (
        attributes_of(graph, "gather")[0].items()
        >= {
            "offset_dims": (0,),
            "collapsed_slice_dims": (1,),
            "slice_sizes": (8, 1),
        }.items()
    )
    assert "result_shape" not in attributes_of(graph, "gather")[0]  # gather has no such attribute
    assert attributes_of(graph, "scatter")[0]["monoid"] == "sum"
    assert attributes_of(graph, "reduce_window")[0]["padding"] == (31, 0, 0, 0)
    assert (
        attributes_of(graph, "fft")[0].items() >= {"fft_type": "RFFT", "fft_length": (16,)}.items()
    )
    assert attributes_of(graph, "pad")[0]["edge_padding_high"] == (1, 1)
    assert attributes_of(graph, "constant")[0].keys() == {"result_shape", "dtype", "value"}
    graph = stablehlo.read(lower("sorting", False)[0])
    assert attributes_of(graph, "sort")[0]["dimension"] == 0
    assert attributes_of(graph, "aggregate")[0]["monoid"] == "argmax"


def test_defaults_of_the_text_are_filled_in():
    image, kernel = "tensor<1x8x4xf32>", "tensor<3x4x2xf32>"
    text = module(
        f"""
        %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
            window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
            : ({image}, {kernel}) -> tensor<1x6x2xf32>
        %1 = "stablehlo.triangular_solve"(%arg2, %arg2) <{{left_side = true, lower = true,
            transpose_a = #stablehlo<transpose ADJOINT>, unit_diagonal = false}}>
            : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
        %2 = "stablehlo.triangular_solve"(%arg2, %1) <{{left_side = true, lower = true,
            transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}}>
            : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
        return %0 : tensor<1x6x2xf32>""",
        f"(%arg0: {image}, %arg1: {kernel}, %arg2: tensor<4x4xf32>) -> tensor<1x6x2xf32>",
    )
    graph = stablehlo.read(text)
    (said,) = attributes_of(graph, "convolution")
    assert (said["window_strides"], said["padding"]) == ((1,), (0, 0))
    assert (said["lhs_dilation"], said["rhs_dilation"]) == ((1,), (1,))
    solves = attributes_of(graph, "triangular_solve")
    assert [said["transpose_a"] for said in solves] == ["ADJOINT", "NO_TRANSPOSE"]


def test_orders_are_recognised():
    """Those of JAX, which makes one zero of two and one NaN of many; and what is no order."""
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)

    def order_of(function, name="sort"):
        (said,) = attributes_of(stablehlo.read(jax.jit(function).lower(x).as_text()), name)
        return said["comparison_direction"]

    def pooled(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID").sum()

    assert order_of(jnp.sort) == "LT"
    assert order_of(lambda x: jax.lax.sort((x.astype(int), x), num_keys=1)) == "LT"
    assert order_of(lambda x: jax.lax.sort((x, x + 1), num_keys=2)) == "custom"
    assert order_of(jax.grad(pooled), "select_and_scatter") == "GE"


@pytest.mark.parametrize(
    ("compared", "order"),
    [
        ("compare GT, %a, %b, FLOAT", "GT"),
        ("compare GT, %b, %a, FLOAT", "LT"),
        ("compare LE, %b, %a, FLOAT", "GE"),
        ("compare LT, %a, %a, FLOAT", "custom"),
        ("compare LT, %n, %b, FLOAT", "custom"),
        ("compare LT, %s, %b, FLOAT", "custom"),
    ],
)
def test_orders_of_all_kinds(compared, order):
    text = module(
        f"""
        %0 = "stablehlo.sort"(%arg0) <{{dimension = 0 : i64}}> ({{
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %n = stablehlo.negate %a : tensor<f32>
            %f = stablehlo.compare LT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
            %s = stablehlo.select %f, %b, %a : tensor<i1>, tensor<f32>
            %c = stablehlo.{compared} : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
        }}) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>""",
        "(%arg0: tensor<8xf32>) -> tensor<8xf32>",
    )
    (said,) = attributes_of(stablehlo.read(text), "sort")
    assert said["comparison_direction"] == order


def test_composites_are_inlined_and_results_keep_their_own_names():
    square = jax.lax.composite(lambda x: x * x, "my.square")

    def function(x):
        return jax.lax.top_k(square(x), 2), x.at[0].set(0.0)

    argument = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    graph = stablehlo.read(jax.jit(function).lower(argument).as_text())
    assert graph.applications[0].operator.removeprefix("opaque:") == "multiply"
    assert graph.outputs[:2] == ("values", "indices")
    assert attributes_of(graph, "scatter")[0]["region"] == "replace"


def test_large_constants_are_not_read():
    table = np.arange(1_000_000)
    argument = jax.ShapeDtypeStruct((), jnp.int32)
    graph = stablehlo.read(jax.jit(lambda n: n + table).lower(argument).as_text())
    (constant,) = attributes_of(graph, "constant")
    assert constant["result_shape"] == (1_000_000,)
    assert "value" not in constant


@pytest.mark.parametrize(
    ("element", "body", "said"),
    [
        ("f32", ["add %a, %c", "add %b, %d"], {"monoid": "sum"}),
        ("f32", ["maximum %c, %a", "maximum %b, %d"], {"monoid": "max"}),
        ("i1", ["and %a, %c", "and %b, %d"], {"monoid": "and"}),
        ("i32", ["and %a, %c", "and %b, %d"], {"monoid": "and", "region": "bitwise"}),
        ("f32", ["add %a, %c", "maximum %b, %d"], {"monoid": "sum", "region": "custom"}),
        ("f32", ["add %a, %b", "add %c, %d"], {"monoid": "sum", "region": "custom"}),
        ("f32", ["subtract %a, %c", "subtract %b, %d"], {"monoid": "sum", "region": "custom"}),
    ],
)
def test_regions_are_monoids_if_they_treat_all_arrays_alike(element, body, said):
    one, many, few = f"tensor<{element}>", f"tensor<8x4x{element}>", f"tensor<8x{element}>"
    lines = "\n".join(f"%{name} = stablehlo.{line} : {one}" for name, line in zip("xy", body))
    graph = stablehlo.read(f"""
        func.func @main(%p: {many}, %q: {many}, %i: {one}) -> ({few}, {few}) {{
            %r, %s = "stablehlo.reduce"(%p, %q, %i, %i) ({{
            ^bb0(%a: {one}, %b: {one}, %c: {one}, %d: {one}):
                {lines}
                stablehlo.return %x, %y : {one}, {one}
            }}) {{dimensions = array<i64: 1>}} : ({many}, {many}, {one}, {one}) -> ({few}, {few})
            return %r, %s : {few}, {few}
        }}""")
    (attributes,) = attributes_of(graph, "reduce")
    assert {key: attributes[key] for key in ("monoid", "region") if key in attributes} == said
    monoid = "custom" if said.get("region") == "custom" else said["monoid"]
    assert dict(graph.signatures[-1].notation.reduced) == {"i1": monoid}


def test_captured_values_of_regions_are_operands():
    graph = stablehlo.read(lower("scanning", False)[0])
    assert not stablehlo.opaque(graph)
    (choice,) = [a for a in graph.applications if a.operator == "case"]
    index, *taken = choice.operands
    assert graph.values[index].shape == ()
    assert taken == ["arg2"]
    assert [[v.name for v in region.inputs] for region in choice.regions] == [taken, taken]
    (loop,) = [a for a in graph.applications if a.operator == "while"]
    _, body = loop.regions
    count = len(loop.results)
    assert [v.name for v in body.inputs[count:]] == list(loop.operands[count:])
    first = loop.results[0].partition("#")[0]
    assert all(v.name.startswith(f"{first}/body/iterArg") for v in body.inputs[:count])
    assert [graph.values[r].dtype for r in loop.results] == [
        body.values[name].dtype for name in body.outputs
    ]


@pytest.mark.parametrize("name", ["scanning", "mlp"])
def test_graphs_of_jax_are_read_back_from_json(name):
    graph = stablehlo.read(lower(name, True)[0])
    again = from_json(to_json(graph), graph.operators)
    assert again == graph
    assert again.all_values == graph.all_values


def test_the_dimensions_of_opaque_operators_are_not_cut():
    graph = call("elsewhere")
    assert len(graph.applications) == 1
    for application, signature in zip(graph.applications, graph.signatures):
        if application.operator.startswith("opaque:"):
            assert set(factor_rule(signature).kinds) <= {"whole"}
            shapes = signature.operand_shapes + signature.result_shapes
            assert len(signature.sizes) == sum(map(len, shapes))


def test_operators_of_the_library_are_not_opaque(monkeypatch):
    monkeypatch.setitem(OPERATORS, "negate", Operator("negate", "n m -> n m"))
    monkeypatch.setitem(OPERATORS, "sine", Operator("sine", "n -> n"))  # refuses two dimensions
    monkeypatch.setitem(OPERATORS, "cosine", Operator("cosine", "n m -> m n"))  # makes another
    body = "%0 = stablehlo.negate %arg0 : tensor<8x4xf32>\n%1 = stablehlo.sine %0 : tensor<8x4xf32>"
    body += "\n%2 = stablehlo.cosine %1 : tensor<8x4xf32>\nreturn %2 : tensor<8x4xf32>"
    graph = stablehlo.read(module(body))
    assert stablehlo.opaque(graph) == ["sine", "cosine"]
    assert "opaque:sine" in graph.operators
    assert not any(name.startswith("opaque:") for name in OPERATORS)


def test_a_manual_computation_has_a_region_and_says_how_its_results_lie():
    function = jax.shard_map(
        lambda x: jax.lax.psum(x, "y"),
        mesh=MESH,
        in_specs=PartitionSpec("x", "y"),
        out_specs=PartitionSpec("x"),
    )
    text = jax.jit(function).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32)).as_text()
    graph = stablehlo.read(text)
    assert not stablehlo.opaque(graph)
    (application,) = graph.applications
    (body,) = application.regions
    assert [str(value) for value in body.inputs] == ["0/arg1: float32[4, 4]"]
    assert [a.operator for a in body.applications] == ["all_reduce"]
    assert graph.values["0"].shape == (8, 4)
    assert application.attributes["in_shardings"] == ('<@mesh, [{"x"}, {"y"}]>',)
    assert application.attributes["manual_axes"] == ("x", "y")
    assert graph.shardings["0"] == '<@mesh, [{"x"}, {}]>'


def test_operations_of_other_dialects_are_opaque():
    text = module(
        '%0 = "other.thing"(%arg0) {n = 3 : i64, u} : (tensor<8x4xf32>) -> tensor<8x4xf32>\n'
        "return %0 : tensor<8x4xf32>"
    )
    graph = stablehlo.read(text)
    assert stablehlo.opaque(graph) == ["other.thing"]
    assert graph.applications[0].attributes.items() >= {"n": 3, "u": True}.items()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "module {\n  func.func @main() {\n  %0 = stablehlo.addd\n}}",
            "line 3, column 8: custom op",
        ),
        ("module {\n  what is this\n}", "line 2, column 3: custom op 'what' is unknown"),
        (
            module("%0 = stablehlo.add %arg0, %arg0 : tensor<8x5xf32>\nreturn %0"),
            "line 4, column 20: use of value '%arg0' expects different type",
        ),
        ("module {}", "the module has no function with a body of one block"),
        (
            "func.func @main(%arg0: tensor<?xf32>) { return %arg0 : tensor<*xf32> }",
            "use of value '%arg0' expects different type",
        ),
    ],
)
def test_errors_in_the_text_name_their_line(text, message):
    with pytest.raises(weft.WeftError, match=message):
        stablehlo.read(text)


def test_without_jaxlib_an_error_says_what_to_install():
    code = (
        "import sys; sys.modules['jaxlib'] = sys.modules['jax'] = None\n"
        "from weft.interop import stablehlo\n"
        "try: stablehlo.read('module {}')\n"
        "except ValueError as error: print(error, *error.__notes__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "which is not installed hint: pip install weft[jax]" in ran.stdout


STEPS = [
    jnp.sin,
    jnp.sort,
    jnp.cumsum,
    jax.nn.softmax,
    jax.nn.gelu,
    lambda x: x @ x.T @ x,
    lambda x: jnp.roll(x, 1, axis=0),
    lambda x: jnp.where(x > 0, x, jnp.median(x)),
    lambda x: x[::-1, :] + x[:1],
    lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 2 + x.sum(), x),
    lambda x: jax.lax.top_k(x, 2)[0] @ jnp.ones((2, x.shape[1])),
    lambda x: x.at[0].set(1.0),
    lambda x: jnp.linalg.qr(x)[0] @ jnp.linalg.qr(x)[1],
    jax.checkpoint(lambda y: jnp.tanh(y) * y),
    lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    lambda x: jnp.einsum("ij,kj->ik", x, x)[:, :4] + x[:, :4].max() + x.reshape(-1)[0],
    jax.vmap(lambda r: jnp.interp(r, jnp.arange(3.0), jnp.arange(3.0))),
    lambda x: jnp.concatenate([x, x], 1).astype(jnp.bfloat16).astype(jnp.float32),
]


@pytest.mark.parametrize("seed", range(20))
def test_random_compositions_are_read(seed):
    steps = random.Random(seed).choices(STEPS, k=5)

    def composed(x):
        for step in steps:
            x = jnp.reshape(jnp.ravel(step(x)), (8, -1))[:, :4]
        return x.sum()

    function = jax.grad(composed) if seed % 2 else composed
    argument = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    graph = stablehlo.read(jax.jit(function, in_shardings=shard("x")).lower(argument).as_text())
    assert graph.values[graph.outputs[0]].shape == ((8, 4) if seed % 2 else ())


def training_step(blocks, width=256, heads=8):
    """The text of a training step of a transformer; nothing is computed."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def norm(x, gain):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1) * gain

    def block(x, p):
        h = norm(x, p["gain"])
        q, k, v = (jnp.einsum("bsd,dhe->bhse", h, w) for w in p["qkv"])
        a = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", q, k), -1)
        x = x + jnp.einsum("bhst,bhte,hed->bsd", a, v, p["out"])
        return x + jax.nn.gelu(norm(x, p["gain"]) @ p["up"]) @ p["down"]

    def entropy(p, tokens):
        x = p["embed"][tokens]
        for each in p["blocks"]:
            x = block(x, each)
        chosen = jax.nn.log_softmax(x @ p["embed"].T)
        return -jnp.take_along_axis(chosen, tokens[..., None], -1).mean()

    def step(p, tokens):
        return jax.tree.map(lambda w, g: w - 0.01 * g, p, jax.grad(entropy)(p, tokens))

    head = (heads, width // heads)
    weights = {
        "gain": array(width),
        "qkv": [array(width, *head)] * 3,
        "out": array(*head, width),
        "up": array(width, 4 * width),
        "down": array(4 * width, width),
    }
    parameters = {"embed": array(1024, width), "blocks": [weights] * blocks}
    tokens = jax.ShapeDtypeStruct((8, 128), jnp.int32)
    return jax.jit(step, in_shardings=(None, shard("x"))).lower(parameters, tokens).as_text()


def test_a_training_step_of_a_transformer_is_read():
    graph = stablehlo.read(training_step(4))
    assert len(graph.applications) > 800


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (doubling(14), "inlining the calls of @main makes more than 8000 operations beyond those"),
        (chain(500), "@f350: calls and regions are more than 150 deep"),
    ],
)
def test_calls_that_grow_without_limit_are_refused(monkeypatch, text, message):
    monkeypatch.setattr(stablehlo, "MOST_INLINED", 8000)
    with pytest.raises(WeftError, match=message):
        read(text)


def test_a_function_that_calls_itself_is_refused():
    calls = (
        "%0 = func.call @NAME(%x) : (tensor<4xf32>) -> tensor<4xf32>\n return %0 : tensor<4xf32>"
    )
    one = f"(%x: tensor<4xf32>) -> tensor<4xf32> {{\n {calls}\n}}\n"
    with pytest.raises(WeftError, match=r"^a function calls itself: @main -> @main$"):
        read("func.func @main" + one.replace("NAME", "main"))
    both = [
        "func.func @main" + one.replace("NAME", "f"),
        "func.func @f" + one.replace("NAME", "main"),
    ]
    with pytest.raises(WeftError, match=r"^a function calls itself: @main -> @f -> @main$"):
        read("".join(both))


def test_text_that_nests_too_deeply_never_comes_to_the_parser():
    for text in ("module { " * 50_000, "tensor<" * 50_000, nested(200)):
        with pytest.raises(WeftError, match=r"^line \d+: brackets are nested more than 100 deep$"):
            read(text)
    quoted = "[" * 500
    graph = read(
        nested(3) + f'// {quoted}\nfunc.func @f() attributes {{s = "{quoted}"}} {{ return }}'
    )
    assert len(graph.applications) == 1


def test_values_inside_calls_have_names_of_some_length():
    text = """
        func.func @main() { func.call @A() : () -> () return }
        func.func @A() { func.call @B() : () -> () return }
        func.func @B() { %c = stablehlo.constant dense<0> : tensor<i32> return }
    """
    assert "A.1/B.2/c" in read(text).values
    text = text.replace("@A", "@" + "a" * 3000).replace("@B", "@" + "b" * 3000)
    with pytest.raises(WeftError, match="names of values inside would have more than 4096 char"):
        read(text)
