"""Cuts at given points: spread by propagation, run, counted, stored in plan files, and refused.

That programs with random cut points compute what NumPy does, and that their bytes are counted, is
checked by tests/program (with both verifiers, and with mutants) and tests/plan/test_reshard.py.
"""

import re

import numpy as np
import pytest

from weft import (
    DeviceMesh,
    LayoutError,
    Plan,
    ShardingSpec,
    Tensor,
    WeftError,
    ops,
    plan_reshard,
    propagate,
    run,
    search,
    trace,
)
from weft.lang import Graph
from weft.plan.placed import place

MESH = DeviceMesh("m", (2, 2), ("x", "y"))
WRITTEN = '<@m, [{"x"} at [3], {"y"} at [11]]>'


def two_layers(x, w):
    return ops.relu(x @ w).sum(0)


def graph_of(shardings, outputs=None):
    graph = trace(two_layers, (10, 16), (16, 12), meshes=[MESH], shardings=shardings)
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        graph.meshes,
        graph.shardings,
        outputs or {},
        graph.operators,
    )


def inputs():
    rng = np.random.default_rng(0)
    return {
        "x": rng.integers(-4, 5, (10, 16)).astype("float32"),
        "w": rng.integers(-4, 5, (16, 12)).astype("float32"),
    }


def test_cut_points_spread_to_index_spaces_and_other_values():
    found = propagate(graph_of({"x": WRITTEN}))
    assert str(found.specs["w"]) == '<@m, [{"y"} at [11], {?}]>'
    assert str(found.specs["relu"]) == '<@m, [{"x"} at [3], {?}]>'
    matmul = Plan.of(found).placed[0]
    assert {name: str(dim) for name, dim in matmul.cuts.items()} == {
        "m": '{"x"} at [3]',
        "k": '{"y"} at [11]',
    }


def test_a_dimension_that_is_written_without_cut_points_keeps_blocks_of_one_size():
    found = propagate(graph_of({"x": WRITTEN, "w": '<@m, [{"y"}, {}]>'}))
    assert str(found.specs["w"]) == '<@m, [{"y"}, {}]>'
    plan = Plan.of(found)
    (moved,) = [each for each in str(plan).splitlines() if "of w" in each]
    assert moved.split() == ["matmul", "exchange", "of", "w", "288", "B"]  # 3 rows to both of 2


def test_the_cut_points_of_an_output_spread_backwards():
    found = propagate(graph_of({}, {0: '<@m, [{"x"} at [2]]>'}))
    assert str(found.output_specs[0]) == '<@m, [{"x"} at [2]]>'
    assert str(found.specs["w"]) == '<@m, [{?}, {"x"} at [2]]>'


@pytest.mark.parametrize("strategy", ["user_priority", "cost"])
def test_a_plan_with_cut_points_runs_as_it_was_counted(strategy):
    plan = Plan.of(propagate(graph_of({"x": WRITTEN}), strategy=strategy))
    assert plan.specs["x"] == ShardingSpec.parse(WRITTEN, MESH)
    plan.verify()
    given = inputs()
    (found,) = run(plan, given)
    assert np.array_equal(found.numpy(), np.maximum(given["x"] @ given["w"], 0).sum(0))
    assert Plan.from_json(plan.to_json()) == plan
    fused = plan.fused()
    fused.verify()
    assert np.array_equal(run(fused, given)[0].numpy(), found.numpy())


def test_a_search_keeps_the_cut_points_that_are_written():
    front = search(graph_of({"x": WRITTEN}), MESH, rewrite=False)
    given = inputs()
    for plan in front:
        assert plan.specs["x"] == ShardingSpec.parse(WRITTEN, MESH)
        plan.verify()
        expected = np.maximum(given["x"] @ given["w"], 0).sum(0)
        assert np.array_equal(run(plan, given)[0].numpy(), expected)


def test_cut_points_go_through_windows_and_reshapes():
    line = DeviceMesh("m", (3,), ("x",))
    graph = trace(
        lambda x: (x[1:, :] - x[:-1, :]).reshape(22),
        (12, 2),
        meshes=[line],
        shardings={"x": '<@m, [{"x"} at [2, 9], {}]>'},
    )
    plan = Plan.of(propagate(graph))
    plan.verify()
    x = inputs()["x"][:, :2]
    x = np.concatenate([x, x[:2]])
    (found,) = run(plan, {"x": x})
    assert np.array_equal(found.numpy(), (x[1:] - x[:-1]).reshape(22))
    reshape = trace(lambda x: x.reshape(24), (12, 2)).signatures[0]
    first = next(iter(reshape.sizes))
    placed = place(line, reshape, {first: ShardingSpec(line, ['{"x"} at [2, 9]']).dim_specs[0]})
    assert str(placed.results[0]) == '<@m, [{"x"} at [4, 18]]>'


def test_eager_tensors_keep_their_cut_points():
    x, w = inputs().values()
    mesh = DeviceMesh("m", (2,), ("x",))
    a = Tensor(x).shard(mesh, ['{"x"} at [7]', "{}"])
    b = ops.relu(a @ Tensor(w)) + 1
    assert str(b.spec) == '<@m, [{"x"} at [7], {}]>'
    assert np.array_equal(b.numpy(), np.maximum(x @ w, 0) + 1)
    assert [shard.shape for shard in a.shards] == [(7, 16), (3, 16)]


def test_a_reshard_between_two_cuts_moves_what_lies_between_them():
    mesh = DeviceMesh("m", (4,), ("x",))
    src, dst = (ShardingSpec(mesh, [f'{{"x"}} at {at}']) for at in ([2, 4, 6], [1, 4, 7]))
    plan = plan_reshard(src, dst, (8,), 4)
    assert (plan.received, sum(plan.received)) == ((0, 4, 4, 0), plan.ideal)
    same = ShardingSpec(mesh, ['{"x"}'])
    assert plan_reshard(src, same, (8,)).steps == ()
    assert plan_reshard(src, same, (9,)).received == (4, 8, 12, 0)


@pytest.mark.parametrize("export", ["jax", "torch", "ttmesh", "ckks"])
def test_other_targets_have_no_cut_points(export):
    spec = ShardingSpec(MESH, ['{"x"} at [3]'])
    match export:
        case "jax":
            convert = pytest.importorskip("weft.interop.jax").to_named_sharding
        case "torch":
            convert = pytest.importorskip("weft.interop.torch").to_dtensor_placements
        case "ttmesh":
            convert = pytest.importorskip("weft.ttmesh.mapper").from_spec
        case _:
            packing = pytest.importorskip("weft.ckks.packing").Packing
            convert = lambda spec: packing([8], [[8]], spec, [1], 8)  # noqa: E731
    with pytest.raises(LayoutError, match=r"dimension 0 is cut at \[3\], and .* has blocks of one"):
        convert(spec)


@pytest.mark.parametrize(
    ("shardings", "message"),
    [
        ({"x": '<@m, [{"x"} at [11], {}]>'}, "dimension 0 of size 10 cannot be cut at [11] into 2"),
        ({"x": '<@m, [{"x"} at [1, 2], {}]>'}, "dimension 0 has 2 blocks and is cut at 2 points"),
    ],
)
def test_cut_points_that_do_not_fit_the_value_are_refused(shardings, message):
    with pytest.raises(WeftError, match=re.escape(message)):
        propagate(graph_of(shardings))


def test_a_plan_file_with_wrong_cut_points_is_refused():
    text = Plan.of(propagate(graph_of({"x": WRITTEN}))).to_json()
    assert '"k": [\n     11\n    ]' in text
    with pytest.raises(WeftError, match="cannot be cut at"):
        Plan.from_json(text.replace('"k": [\n     11\n    ]', '"k": [\n     17\n    ]'))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).reshape(-1) + 1,
        lambda x: ops.relu(x.reshape(-1)).reshape(8, 4, 8) * 2,
        lambda x: (x.reshape(-1, 8) * 2).reshape(8, 32),
    ],
)
def test_cut_points_go_on_through_a_reshape_that_merges_dimensions(function):
    graph = trace(
        function,
        (8, 32),
        names=["x"],
        meshes=['@m = <["a"=4]>'],
        shardings={"x": '<@m, [{"a"} at [1, 4, 6], {}]>'},
    )
    plan = Plan.of(propagate(graph))
    plan.verify()
    assert sum(plan.received) == 0
    x = np.arange(256, dtype="float32").reshape(8, 32)
    assert np.array_equal(run(plan, {"x": x})[0].numpy(), function(Tensor(x)).numpy())
