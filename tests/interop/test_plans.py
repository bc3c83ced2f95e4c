"""JAX functions as graphs by name; plans as NamedShardings and as placements; compiled HLO."""

import subprocess
import sys
from functools import partial
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.interop.exported import sharded
from tests.trials import trials
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from weft import (
    LayoutError,
    Plan,
    WeftError,
    from_jax,
    propagate,
    run,
    to_dtensor,
    to_jax,
    trace,
)
from weft.interop.hlo import Collective, collectives
from weft.interop.stablehlo import opaque, read


def names(graph):
    return [value.name for value in graph.inputs]


def network(params, x, *more, scale=1.0, **rest):
    for layer in params["layers"]:
        size = jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu((x * size) @ layer["up"], approximate=False) @ layer["down"]
    return {"made": x * scale, "more": [y.sum() for y in (*more, *rest.values())]}


def arrays(layers=2):
    rng = np.random.default_rng(0)
    layer = {"up": (8, 12), "down": (12, 8)}
    params = [
        {name: rng.normal(size=s).astype("float32") for name, s in layer.items()}
        for _ in range(layers)
    ]
    return {"layers": params, "unused": np.zeros(3, "float32")}, rng.normal(size=(4, 8)).astype("f")


def test_inputs_are_named_by_parameters_and_keys():
    params, x = arrays()
    graph = from_jax(network, params, x, x, scale=np.float32(2), other=x)
    assert names(graph) == [
        *("params.layers.0.down", "params.layers.0.up", "params.layers.1.down"),
        *("params.layers.1.up", "params.unused", "x", "more.0", "rest.other", "scale"),
    ]
    assert not opaque(graph)


@pytest.mark.parametrize("seed", range(8))
def test_functions_run_on_shards(seed):
    params, x = arrays()
    graph = from_jax(network, params, x)
    plan = Plan.of(propagate(sharded(graph, Random(seed))))
    plan.verify()
    (made,) = run(plan, dict(zip(names(graph), jax.tree.leaves((params, x)))))
    np.testing.assert_allclose(made.numpy(), network(params, x)["made"], rtol=1e-4, atol=1e-4)


def test_static_and_unused_arguments_of_jitted_functions_are_not_inputs():
    @partial(jax.jit, static_argnums=(1,))
    def power(x, n, unused):
        return x**n

    graph = from_jax(power, jnp.ones(3), 3, jnp.ones(2))
    assert names(graph) == ["x"]
    assert [a.operator for a in graph.applications] == ["multiply", "multiply"]


def test_shapes_without_numbers_will_do():
    shape = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)
    graph = from_jax(lambda x: x @ x.T, shape)
    assert [str(value) for value in graph.inputs] == ["x: bfloat16[8, 4]"]


def test_an_input_may_have_the_name_of_a_value():
    graph = from_jax(lambda c, cst: (c + 1) * cst, jnp.ones(3), jnp.ones(3))
    assert names(graph) == ["c", "cst"]
    (made,) = run(propagate(graph), {n: np.full(3, 2, "float32") for n in names(graph)})
    assert made.numpy().tolist() == [6, 6, 6]


def test_shardings_of_jax_come_along():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("dp", "tp"))
    rows = NamedSharding(mesh, PartitionSpec("dp"))
    jitted = jax.jit(lambda x, w: x @ w, in_shardings=(rows, None), out_shardings=rows)
    graph = from_jax(jitted, jnp.ones((8, 4)), jnp.ones((4, 4)))
    assert dict(graph.shardings) == {"x": '<@mesh, [{"dp"}, {}]>'}
    assert dict(graph.output_shardings) == {0: '<@mesh, [{"dp"}, {}]>'}


def test_names_are_as_many_as_inputs():
    text = jax.jit(lambda x, y: x + y).lower(1.0, 2.0).as_text()
    with pytest.raises(WeftError, match=r"^1 names are given for 2 inputs: x$"):
        read(text, ["x"])


@st.composite
def plans(draw):
    """Plans of a small network, whose inputs lie at random."""
    shapes = {"x": (8, 16), "w": (16, 8), "b": (8,)}
    dims = [draw(st.permutations(["x", "y"])) for _ in shapes]
    shardings = {}
    for (name, shape), axes in zip(shapes.items(), dims):
        cuts = [[] for _ in shape]
        for axis in axes:
            place = draw(st.integers(0, len(shape)))
            if place < len(shape):
                cuts[place].append(f'"{axis}"')
        shardings[name] = f"<@m, [{', '.join('{' + ', '.join(c) + '}' for c in cuts)}]>"
    graph = trace(
        products,
        *shapes.values(),
        names=list(shapes),
        meshes=['@m = <["x"=2, "y"=4]>'],
        shardings=shardings,
    )
    return Plan.of(propagate(graph))


def products(x, w, b):
    return x @ w + b, (x * x).sum(0)


def specs_of(plan):
    inputs = [(v.name, v.shape, plan.specs[v.name]) for v in plan.graph.inputs]
    outputs = zip(plan.graph.outputs, plan.outputs)
    return inputs, [(name, plan.graph.values[name].shape, spec) for name, spec in outputs]


@settings(max_examples=trials(60))
@given(plans(), st.booleans())
def test_plans_of_jax_put_the_same_boxes_on_devices(plan, own):
    devices = jax.devices()[:8]
    mesh = Mesh(np.array(devices).reshape(2, 4), ("x", "y")) if own else None
    found, (inputs, outputs) = to_jax(plan, mesh), specs_of(plan)
    assert jax.tree.structure(found).num_leaves == len(inputs) + len(outputs)
    pairs = [(spec, shape, found.inputs[name]) for name, shape, spec in inputs]
    pairs += [(spec, shape, s) for (_, shape, spec), s in zip(outputs, found.outputs)]
    for spec, shape, sharding in pairs:
        index = sharding.devices_indices_map(shape)
        for cell, box in enumerate(spec.regions(shape)):
            theirs = tuple(slice(*s.indices(n)[:2]) for s, n in zip(index[devices[cell]], shape))
            assert box.slices() == theirs


@settings(max_examples=trials(60))
@given(plans())
def test_plans_of_dtensor_put_the_same_boxes_on_ranks(plan):
    found, (inputs, outputs) = to_dtensor(plan), specs_of(plan)
    pairs = [(spec, shape, found.inputs[name]) for name, shape, spec in inputs]
    pairs += [(spec, shape, p) for (_, shape, spec), p in zip(outputs, found.outputs)]
    for spec, shape, placements in pairs:
        for cell in plan.mesh.cells():
            local, offset = _compute_local_shape_and_global_offset(
                shape, plan.mesh.shape, list(cell), placements
            )
            box = spec.region(shape, cell)
            assert (box.shape, box.start) == (tuple(local), tuple(offset))


def uneven(sharding):
    graph = trace(
        lambda x: x * 2, (10, 4), names=["x"], meshes=['@m = <["x"=2, "y"=2]>'],
        shardings={"x": sharding},
    )  # fmt: skip
    return Plan.of(propagate(graph))


def test_shardings_that_others_cannot_express_are_refused_by_name():
    with pytest.raises(LayoutError) as refused:
        to_jax(uneven('<@m, [{"x", "y"}, {}]>'))
    assert str(refused.value) == (
        'input x: dimension 0 of size 10 is cut by {"x", "y"}, and JAX has shards of one size: '
        "10 = 4 x 2 + 2"
    )
    with pytest.raises(LayoutError, match=r"^input x: block 1 of dimension 0 of size 10, cut by"):
        to_dtensor(uneven('<@m, [{"x", "y"}, {}]>'))
    assert to_dtensor(uneven('<@m, [{"y"}, {}]>')).inputs["x"][1].dim == 0


def test_the_mesh_of_jax_has_the_axes_of_the_plan():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "z"))
    with pytest.raises(LayoutError) as refused:
        to_jax(uneven('<@m, [{"x"}, {}]>'), mesh)
    assert str(refused.value) == (
        "the plan is for @m = <[\"x\"=2, \"y\"=2]>, and the JAX mesh has {'x': 2, 'z': 2}"
    )
    assert refused.value.__notes__ == ["hint: make a mesh with the same axes: jax.make_mesh"]


LINES = {
    "%a = f32[8,16]{1,0} all-gather(%x), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}": (
        Collective("all-gather", 512, 4, 8 * 384)
    ),
    "%a = f32[8]{0} all-reduce(%x), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%s": (
        Collective("all-reduce", 32, 2, 8 * 32)
    ),
    "%a = (f32[8]{0}, bf16[4]{0}) all-reduce(%x, %y), replica_groups={}, to_apply=%s": (
        Collective("all-reduce", 40, 8, 8 * 70)
    ),
    "%a = s8[6]{0} reduce-scatter(%x), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}": (
        Collective("reduce-scatter", 6, 4, 8 * 18)
    ),
    "%a = pred[8]{0} all-to-all(%x), replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) "
    "{'a','b'}, dimensions={0}": Collective("all-to-all", 8, 8, 8 * 7),
    "%a = c64[4]{0} collective-permute(%x), source_target_pairs={{0,0},{1,2},{2,1}}": (
        Collective("collective-permute", 32, 2, 64)
    ),
    "ROOT %a = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), replica_groups=[4,2]<=[8]": (
        Collective("all-gather", 32, 2, 8 * 16)
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_collectives_are_read(line):
    assert collectives(f"  {line}\n  %b = f32[8] add(%a, %a)", 8) == [LINES[line]]


def test_groups_that_are_not_understood_are_refused():
    with pytest.raises(WeftError, match=r"^the groups of a collective are not understood: %x\), "):
        collectives("%a = f32[8] all-reduce(%x), replica_groups=new, to_apply=%s", 8)


@pytest.mark.parametrize(
    ("said", "made", "kind", "received"),
    [
        (("x", None), (None, None), "all-gather", 8 * 16 * 4 * 7 // 8 * 8),
        ((None, "x"), ("x", None), "all-to-all", 8 * 16 * 4 // 8 * 7 // 8 * 8),
    ],
)
def test_compiled_collectives_are_read(said, made, kind, received):
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))
    before, after = (NamedSharding(mesh, PartitionSpec(*each)) for each in (said, made))
    jitted = jax.jit(lambda x: x * 2, in_shardings=before, out_shardings=after)
    text = jitted.lower(jnp.ones((8, 16), "float32")).compile().as_text()
    (found,) = collectives(text, 8)
    assert (found.kind, found.group, found.received) == (kind, 8, received)


def test_without_jax_an_error_says_what_to_install():
    code = (
        "import sys; sys.modules['jax'] = sys.modules['torch'] = None; import weft; weft.from_jax"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "JAX shardings need jax, which is not installed: pip install 'weft[jax]'"
    assert f"ModuleNotFoundError: {said}" in ran.stderr
