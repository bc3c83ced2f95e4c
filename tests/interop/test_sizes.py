"""Programs of JAX with symbolic shapes: read once, then bound, planned and run at several sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.export import symbolic_shape
from tests.trials import trials

from weft import DeviceMesh, Graph, Plan, WeftError, from_jax, propagate, run
from weft.interop import stablehlo
from weft.interop.size_values import SizeArray, evaluate
from weft.lang.size import Size

MESH = DeviceMesh("m", (2, 2), ("a", "b"))
(N,) = symbolic_shape("n")
ROWS = jax.ShapeDtypeStruct((N, 4), "float32")
SIZES = (3, 8, 1)[: trials(3, fewest=1)]


def causal(x):
    seen = jnp.tril(jnp.ones((x.shape[0],) * 2, bool))
    return jax.nn.softmax(jnp.where(seen, x @ x.T, -1e9), axis=-1) @ x


PROGRAMS = {
    "mean": lambda x: (x.mean(0), x.var(), x / x.shape[0], x.shape[0] + jnp.arange(3)),
    "merged": lambda x: jnp.tanh(x).reshape(-1),
    "joined": lambda x: jnp.concatenate([x, x[:1], jnp.zeros((2, 4))]),
    "padded": lambda x: jnp.pad(x, ((1, x.shape[0] - 1), (0, 0)), constant_values=2.0),
    "every_other": lambda x: x[1::2],
    "first_half": lambda x: x[: x.shape[0] // 2],
    "slice": lambda x: jax.lax.dynamic_slice_in_dim(x, 1, x.shape[0] - 1, 0),
    "attention": causal,
    "pooled": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 1), (2, 1), "SAME"),
    "running": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(x, 0),
    "scanned": lambda x: jax.lax.scan(lambda c, a: (c + a, c * a), x[0], x),
    "looped": lambda x: jax.lax.fori_loop(0, x.shape[0], lambda i, y: y * 0.5 + i, x),
    "chosen": lambda x: jax.lax.cond(x.sum() > 0, lambda y: 2 * y, lambda y: -y, x),
    "convolved": lambda x: jax.lax.conv_general_dilated(
        x.T[None], jnp.ones((2, 4, 3)), (2,), "SAME"
    ),
}


def results(graph, inputs):
    """The results of a propagated plan."""
    names = [value.name for value in graph.inputs]
    plan = Plan.of(propagate(graph))
    plan.verify()
    return [each.numpy() for each in run(plan, dict(zip(names, inputs)))]


def sharded(graph):
    """The graph with its first input cut by rows."""
    first = graph.inputs[0].name
    dtypes = {name: value.dtype for name, value in graph.all_values.items()}
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [MESH],
        {first: '<@m, [{"a"}, {}]>'},
        operators=graph.operators,
        dtypes=dtypes,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_a_symbolic_shape_equals_jax_at_several_sizes(name):
    function = PROGRAMS[name]
    graph = from_jax(function, ROWS)
    assert graph.unknown_sizes == ("n",)
    assert not stablehlo.opaque(graph)
    for size in SIZES:
        x = np.random.default_rng(size).standard_normal((size, 4)).astype("float32")
        expected = jax.tree.leaves(function(jnp.asarray(x)))
        for one, two in zip(expected, results(sharded(graph.bind(n=size)), [x]), strict=True):
            assert (one.shape, one.dtype) == (two.shape, two.dtype)
            np.testing.assert_allclose(one, two, 1e-4, 1e-5)


def test_sizes_are_named_as_in_jax_and_constraints_are_conditions():
    (n,) = symbolic_shape("n", constraints=["n >= 4", "mod(n, 2) == 0"])
    graph = from_jax(
        lambda p, x: jnp.tanh(x @ p["w"]),
        {"w": jax.ShapeDtypeStruct((4, n), "float32")},
        jax.ShapeDtypeStruct((2 * n, 4), "float32"),
    )
    assert [str(value) for value in graph.inputs] == ["p.w: float32[4, n]", "x: float32[2*n, 4]"]
    assert graph.conditions == ("n >= 1", "n >= 4", "n-2*(n//2) == 0")
    with pytest.raises(WeftError, match="n=2 does not meet the condition n >= 4"):
        graph.bind(n=2)
    with pytest.raises(WeftError, match="n=5 does not meet"):
        graph.bind(n=5)
    assert graph.bind(n=6).values["1"].shape == (12, 6)


def test_an_exported_function_and_its_text_are_read():
    function = jax.jit(lambda x, y: x * x.shape[0] + y)
    exported = export.export(function)(ROWS, ROWS)
    graph, text = from_jax(exported), stablehlo.read(exported.mlir_module())
    assert [value.name for value in graph.inputs] == ["x", "y"]
    assert [str(v) for v in text.inputs] == ["arg0: float32[n, 4]", "arg1: float32[n, 4]"]
    assert text.conditions == graph.conditions == ("n >= 1",)
    x = np.ones((3, 4), "float32")
    assert np.array_equal(results(graph.bind(n=3), [x, x])[0], 4 * x)
    fixed = export.export(function)(x, x)
    assert from_jax(fixed).unknown_sizes == ()
    with pytest.raises(WeftError, match="an exported function has its arguments already"):
        from_jax(exported, x)


def test_shardings_of_a_function_with_symbolic_shapes_are_kept():
    mesh = jax.make_mesh((1,), ("dp",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp"))
    graph = from_jax(jax.jit(lambda x: x + 1, in_shardings=rows), ROWS)
    assert graph.shardings["x"] == '<@mesh, [{"dp"}, {}]>'


MODULE = "func.func @main({}) -> tensor<?xf32> {{\n  {}\n  return %r : tensor<?xf32>\n}}"


@pytest.mark.parametrize(
    ("arguments", "body", "message"),
    [
        (
            "%x: tensor<?xf32>, %n: tensor<1xi32>",
            "%r = stablehlo.dynamic_reshape %x, %n "
            ": (tensor<?xf32>, tensor<1xi32>) -> tensor<?xf32>",
            "dynamic_reshape takes result_shape from arg1, which depends on data",
        ),
        (
            "%x: tensor<?xf32>",
            "%r = stablehlo.custom_call @mine(%x) : (tensor<?xf32>) -> tensor<?xf32>",
            "custom_call @mine has a result of unknown size, and no operator describes it",
        ),
        (
            "%x: tensor<?xf32>, %y: tensor<?xf32>",
            "%r = stablehlo.add %x, %y : tensor<?xf32>",
            "add of unknown sizes: dimension 0 of operand 1 has size arg1_0",
        ),
    ],
)
def test_sizes_that_cannot_be_read_are_refused_with_the_operation(arguments, body, message):
    with pytest.raises(WeftError, match=message):
        stablehlo.read(MODULE.format(arguments, body))


CALLS = """
func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {{
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  %m = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  %b = stablehlo.compare EQ, %m, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.custom_call @shape_assertion(%b) {{has_side_effect = true}} : (tensor<i1>) -> ()
  {}
  %r = call @f(%n, %x, %{}) : (tensor<i32>, tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}}
func.func private @f(%n: tensor<i32>, %x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {{
  %0 = stablehlo.add %x, %y : tensor<?xf32>
  return %0 : tensor<?xf32>
}}
"""


@pytest.mark.parametrize("more", ["", "%z = stablehlo.tanh %y : tensor<?xf32>"])
@pytest.mark.parametrize("second", ["x", "y"])
def test_a_function_that_checks_sizes_and_calls_another(more, second):
    x, y = np.arange(4, dtype="float32"), np.ones(4, "float32")
    if more and second == "y":  # it does not only check sizes, so that they may differ
        with pytest.raises(WeftError, match="add of unknown sizes"):
            stablehlo.read(CALLS.format(more, second))
        return
    graph = stablehlo.read(CALLS.format(more, second))
    assert [value.name for value in graph.inputs] == ["arg0", "arg1"]
    sizes = dict.fromkeys(graph.unknown_sizes, 4)
    (found,) = results(graph.bind(sizes), [x, y])
    assert np.array_equal(found, x + (x if second == "x" else y))


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum"]
)
def test_operations_on_sizes_equal_those_of_stablehlo(name, size):
    function = {"divide": jax.lax.div, "remainder": jax.lax.rem}.get(name) or getattr(jnp, name)
    values = ["n", "2*n-7", "3", "-n", "n//2"]
    for one in values:
        for two in ("3", "-2", "n+1"):
            pair = [Size.parse(text) for text in (one, two)]
            arrays = [SizeArray((), "int32", (each,)) for each in pair]
            numbers = [each if isinstance(each, int) else each.bind({"n": size}) for each in pair]
            (found,) = evaluate(name, {}, arrays, (), "int32").elements
            assert _value(found, size) == int(function(*map(jnp.int32, numbers)))


def _value(element, size):
    """The number of an element for a size of n."""
    if isinstance(element, int):
        return element
    if isinstance(element, Size):
        return element.bind({"n": size})
    numbers = [SizeArray((), "int32", (_value(each, size),)) for each in element.operands]
    return evaluate(element.operation, {}, numbers, (), "int32").elements[0]
