"""Loops, branches, manual computations, groups and several meshes, compared with Shardy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from tests.plan.programs import PASSES
from tests.plan.region_programs import Writer, loop
from tests.plan.region_shardy import shardings, shardy
from tests.trials import trials

from weft import Graph, ShardingSpec, WeftError
from weft.interop.stablehlo import opaque, read
from weft.lang import Application, Value
from weft.plan import propagate

PROGRAMS = trials(500)
"""For each strategy: 500 in `make test`, 25,000 in `make fuzz`."""


def theirs(module, found):
    """The shardings after Shardy's passes, by value; open everywhere where they say nothing."""
    said = list(shardings(module))
    shapes = {name: value.shape for name, value in found.graph.all_values.items()}
    assert [shape for shape, _ in said] == list(shapes.values())
    for (name, shape), (_, text) in zip(shapes.items(), said):
        dims = ", ".join(["{?}" if not text else "{}"] * len(shape))
        mesh = "maximal" if text == "<@maximal, []>" else found.mesh.name
        spelled = f"<@{mesh}, [{dims}]>" if text in ("", "<@maximal, []>") else text
        yield name, str(ShardingSpec.parse(spelled, found.meshes))


def assert_same(text, strategy, module):
    found = propagate(read(text), strategy)
    ours = {name: str(spec) for name, spec in found.specs.items()}
    assert ours == dict(theirs(module, found)), text


@pytest.mark.parametrize("strategy", PASSES)
def test_shardings_equal_shardy(strategy):
    compared = 0
    for seed in range(PROGRAMS):
        priorities, meshes = strategy == "user_priority", seed % 4 == 3
        text = Writer(seed, priorities, meshes=meshes).text(1 + seed % 8)
        try:
            module = shardy(text, strategy)
        except ir.MLIRError as error:
            assert_refused(text, strategy, str(error))
            continue
        assert_same(text, strategy, module)
        compared += 1
    assert compared > 0.9 * PROGRAMS


def assert_refused(text, strategy, message):
    """What Shardy refuses for its groups we refuse; its own slips at borders we do not have."""
    if "ShardingGroupOps" in message:
        with pytest.raises(WeftError, match="sharding group"):
            propagate(read(text), strategy)
    else:
        assert "data_flow_edge" in message, message
        propagate(read(text), strategy)


# JAX.

MESH = Mesh(np.array(jax.devices()[:8], dtype=object).reshape(2, 4), ("x", "y"))


def shard(*axes):
    return NamedSharding(MESH, PartitionSpec(*axes))


def scanned(x, w):
    def step(carry, row):
        carry = jnp.tanh(carry @ w + row)
        return carry, carry.sum()

    return jax.lax.scan(step, jnp.zeros(16), x)


def chosen(x, w):
    y = jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: jnp.sin(x) + 1.0)
    return jax.lax.switch(jnp.int32(1), [jnp.cos, jnp.tanh, lambda y: y @ y.T @ y], y)


def mapped(x, w):
    inner = jax.shard_map(
        lambda a, b: jax.lax.psum(jnp.tanh(a @ b), "y"),
        mesh=MESH,
        in_specs=(PartitionSpec("x", "y"), PartitionSpec("y", None)),
        out_specs=PartitionSpec("x", None),
    )
    return jax.nn.relu(inner(x, w)) + 1.0


def partly_mapped(x, w):
    inner = jax.shard_map(
        lambda a: jnp.sin(a) * 2.0,
        mesh=MESH,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec("x"),
        axis_names={"x"},
    )
    return inner(x @ w) + x


def looped(x, w):
    def body(state):
        n, y = state
        return n + 1, jax.lax.cond(n > 2, lambda: y @ w, lambda: jax.lax.fori_loop(0, 3, relu, y))

    def relu(_, y):
        return jax.nn.relu(y) + x

    return jax.lax.while_loop(lambda state: state[0] < 5, body, (0, x))


@pytest.mark.parametrize("strategy", PASSES)
@pytest.mark.parametrize("function", [scanned, chosen, mapped, partly_mapped, looped])
def test_loops_and_branches_of_jax_equal_shardy(function, strategy):
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 16), (16, 16))]
    shardings = (shard("x", None), shard(None, "y"))
    text = jax.jit(function, in_shardings=shardings).lower(*shapes).as_text()
    assert not opaque(read(text))
    assert_same(text, strategy, shardy(text, strategy))


# What a person sees.

LOOP = loop("{?}")


def test_values_of_regions_have_paths_and_are_in_order():
    found = propagate(read(LOOP))
    assert {name: str(spec) for name, spec in found.specs.items()} == {
        "arg0": '<@m, [{"x"}, {?}]>',
        "arg1": "<@m, [{?}, {?}]>",
        "c": "<@m, []>",
        "0/cond/iterArg": "<@m, []>",
        "0/cond/iterArg_0": '<@m, [{"x", ?}, {?}]>',
        "0/cond/1": "<@m, []>",
        "0/body/iterArg": "<@m, []>",
        "0/body/iterArg_0": '<@m, [{"x", ?}, {?}]>',
        "0/body/1": '<@m, [{"x", ?}, {?}]>',
        "0#0": "<@m, []>",
        "0#1": '<@m, [{"x", ?}, {?}]>',
    }
    (_, loop, _, dot) = [application.operator for application, _ in found.graph.walk()]
    assert (loop, dot) == ("while", "dot_general")
    assert found.all_placements[3]["m0"] == ("x",)
    assert len(found.placements) == 2
    assert found.placements[1] == found.all_placements[1]
    assert found.placements[1]["v1_0"] == ("x",)
    assert str(found).splitlines()[7].split() == [
        "0/body/iterArg_0:", "float32[8,", "16]", '<@m,', '[{"x",', "?},", "{?}]>"
    ]  # fmt: skip


def test_explain_goes_through_data_flow_edges():
    found = propagate(read(LOOP))
    assert found.explain("0/body/iterArg_0", 0) == [
        '0/body/iterArg_0 dimension 0 is cut by "x"',
        "  through 0#0, 0#1 = while(c, arg0, arg1) from arg0 dimension 0",
        '  as written on arg0: <@m, [{"x"}, {?}]>',
    ]


GROUPS = """
sdy.mesh @m = <["x"=2]>
func.func @main(%a: tensor<8xf32> {A}, %b: tensor<8xf32> {B}) -> (tensor<8xf32>, tensor<8xf32>) {
  sdy.sharding_group %a group_id=3 : tensor<8xf32>
  sdy.sharding_group %b group_id=3 : tensor<8xf32>
  %0 = stablehlo.negate %a : tensor<8xf32>
  %1 = stablehlo.negate %b {C} : tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}
"""


def grouped(a="", b="", c=""):
    on = [f"sdy.sharding = #sdy.sharding<@m, [{s}]>" if s else "" for s in (a, b)]
    per_value = f"sdy.sharding = #sdy.sharding_per_value<[<@m, [{c}]>]>" if c else ""
    text = GROUPS.replace("A}", on[0] + "}").replace("B}", on[1] + "}")
    return read(text.replace("C}", per_value + "}"))


def test_a_group_shares_a_sharding_and_explains_it():
    found = propagate(grouped(c='{"x"}'))
    assert str(found.specs["arg0"]) == str(found.specs["arg1"]) == '<@m, [{"x", ?}]>'
    assert found.explain("arg0", 0) == [
        'arg0 dimension 0 is cut by "x"',
        "  in one sharding group with arg1 dimension 0",
        "  through 1 = negate(arg1) from 1 dimension 0",
        '  as written on 1: <@m, [{"x"}]>',
    ]
    assert str(propagate(grouped(a='{"x"}')).specs["arg1"]) == '<@m, [{"x"}]>'


def test_a_group_with_a_conflict_keeps_its_annotations():
    found = propagate(grouped(a='{"x"}', b="{}"))
    assert [str(found.specs[name]) for name in ("arg0", "arg1", "0", "1")] == [
        '<@m, [{"x"}]>',
        "<@m, [{}]>",
        '<@m, [{"x", ?}]>',
        '<@m, [{"x", ?}]>',
    ]


def region(*names, outputs=None, **more):
    """A region that negates its first input."""
    inputs = [Value(name, (8,)) for name in names]
    made = f"{names[0]}'"
    negate = Application("negate", names[:1], (made,))
    return Graph(inputs, [negate], [made] if outputs is None else outputs, **more)


def manual(is_bare=False, **changes):
    said = {"in_shardings": ('<@m, [{"x"}]>',), "manual_axes": ("x",), "result_shapes": ((8,),)}
    body = Graph([Value("4/a", (4,))], [Application("negate", ("4/a",), ("4/b",))], ["4/b"])
    return Graph(
        [Value("a", (8,))],
        [Application("manual_computation", ("a",), ("b",), {**said, **changes}, (body,))],
        ["b"],
        ['@m = <["x"=2, "y"=2]>'],
        {} if is_bare else {"b": '<@m, [{"x"}]>'},
    )


def test_a_manual_computation_sees_free_axes_only():
    text = """
    sdy.mesh @m = <["x"=2, "y"=2]>
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = sdy.manual_computation(%a) in_shardings=[<@m, [{"x", ?}]>]
          out_shardings=[<@m, [{"x", ?}]>] manual_axes={"x"} (%b: tensor<4xf32>) {
        %1 = stablehlo.negate %b
          {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"y"}]>]>} : tensor<4xf32>
        sdy.return %1 : tensor<4xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    graph = read(text)
    found = propagate(graph)
    assert [(n, str(s)) for n, s in found.specs.items()] == [
        ("arg0", '<@m, [{"x", "y", ?}]>'),
        ("0/arg1", '<@m, [{"y", ?}]>'),
        ("0/1", '<@m, [{"y"}]>'),
        ("0", '<@m, [{"x", "y", ?}]>'),
    ]
    assert str(graph).splitlines()[1:] == [
        "arg0: float32[8]",
        "0: float32[8] = manual_computation(arg0, in_shardings=('<@m, [{\"x\", ?}]>',), "
        "manual_axes=('x',), result_shapes=((8,),))",
        '    0 <@m, [{"x", ?}]>',
        "  region 0:",
        "    0/arg1: float32[4]",
        "    0/1: float32[4] = negate(0/arg1)",
        '        0/1 <@m, [{"y"}]>',
        "    return 0/1",
        "return 0",
    ]
    assert str(propagate(manual()).specs["4/a"]) == "<@m, [{}]>"


BARRIER = Application("propagation_barrier", ("a",), ("b",), {"allowed_direction": "UP"})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Graph([Value("a", (8,))], [BARRIER], ["b"]),
            "b = propagation_barrier(a, allowed_direction=UP) allows the direction 'UP'",
        ),
        (lambda: manual(in_shardings=('<@m, [{"y", "x"}]>',)), "dimension 0 of a is cut by"),
        (lambda: manual(manual_axes=("z",)), 'manual axis "z" is not an axis of @m'),
        (lambda: manual(is_bare=True), "b is a result of a manual computation without a sharding"),
        (
            lambda: Graph([Value("a", (8,))], [], ["a"], shardings={"a": '<@m, [{"x"}]>'}),
            "shardings.a: mesh @m is not known",
        ),
        (
            lambda: Graph([Value("a", ())], [], ["a"], ['@m = <["x"=2]>', '@m = <["y"=2]>']),
            "meshes[1]: two meshes are named @m",
        ),
    ],
)
def test_invalid_regions_are_refused(call, message):
    with pytest.raises(WeftError) as caught:
        propagate(call())
    assert str(caught.value).startswith(message)


def test_a_program_without_annotations_is_open():
    found = propagate(Graph([Value("a", (8, 4))], [Application("tanh", ("a",), ("b",))], ["b"]))
    assert {name: str(spec) for name, spec in found.specs.items()} == {
        "a": "<@empty, [{?}, {?}]>",
        "b": "<@empty, [{?}, {?}]>",
    }
    assert found.mesh.size == 1
