"""The bytes that cells hold, counted while plans run, against what was predicted."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.moving import make_parts, scatter
from tests.plan.test_reshard import reshards

from weft import (
    DeviceMesh,
    Graph,
    Plan,
    ShardingSpec,
    WeftError,
    communication,
    ops,
    plan_reshard,
    propagate,
    run,
    trace,
)
from weft.lang import Application, Value
from weft.runtime.history import closed
from weft.runtime.tensor import Tensor

LINE = DeviceMesh("m", (2,), ("x",))


def counted(plan, inputs):
    with communication() as moved:
        outputs = run(plan, inputs)
    return outputs, moved.peak


def planned(function, *shapes, mesh=LINE, **shardings):
    graph = trace(
        function,
        *shapes,
        meshes=[mesh],
        shardings={name: f"<@m, {text}>" for name, text in shardings.items()},
    )
    return Plan.of(propagate(graph))


def held_at(plan, cell=0):
    """The bytes that a cell holds after each instruction that adds to it."""
    count = plan.program.count
    return [moment.held for moment in count.moments(plan.program.cells.coordinate(cell))]


def ones(plan):
    return {v.name: np.ones(v.shape, v.dtype) for v in plan.graph.inputs}


@given(reshards(), st.sampled_from(["int64", "int32", "int8"]))
def test_a_reshard_holds_what_it_says(case, dtype):
    src, dst, shape = case[0], closed(case[1]), case[2]  # an open dimension keeps its axes
    if not set(src.partial.values()) <= {"sum", "max", "min", "prod", "and", "or"}:
        return
    plan = plan_reshard(src, dst, shape, np.dtype(dtype).itemsize)
    parts, _ = make_parts(src, shape, np.random.default_rng(0))
    shards = scatter(src, shape, parts)
    held = [shards[device].astype(dtype) for device in src.mesh.device_ids or range(src.mesh.size)]
    tensor = Tensor.of_shards(held, src, shape)
    with communication() as moved:
        tensor.with_sharding(dst)
    assert moved.peaks == (dict(zip(plan.devices, plan.peak)) if plan.steps else {})


def test_replicas_count_on_every_cell():
    plan = planned(lambda x: x + x, (4,))
    assert counted(plan, ones(plan))[1] == plan.peak == (32, 32)


def test_a_value_is_dropped_after_its_last_use():
    plan = planned(lambda x: ((x + x) + x.sum()) * 1, (8,), x='[{"x"}]')
    assert counted(plan, ones(plan))[1] == plan.peak
    assert held_at(plan) == [16, 32, 36, 24, 40, 20, 36]  # 24: x is gone; 20: so are both sums
    assert plan.program.count.busiest() == (0, "add_2")


def test_unused_values_are_freed_at_once():
    plan = planned(lambda x, y: (y + y, x * 2)[1], (4,), (4,))
    _, peak = counted(plan, ones(plan))
    assert peak == plan.peak
    assert held_at(plan) == [32, 48, 20, 36]


def test_a_slice_that_outlives_its_array_is_copied():
    """A slice of a value that is whole on every cell: the rest of it is not kept alive."""
    graph = Graph(
        [Value("x", (8,))],
        [Application("add", ("x", "x"), ("y",))],
        ["y"],
        ['@m = <["x"=2]>'],
        {"x": "<@m, [{}]>", "y": "<@m, [{}]>"},
        {0: '<@m, [{"x"}]>'},
    )
    plan = Plan.of(propagate(graph))
    assert [step.kind for step in plan.returns[0].steps] == ["slice"]
    (output,), peak = counted(plan, ones(plan))
    assert peak == plan.peak == (64, 64)  # x and y, then y and what is kept of it
    assert held_at(plan) == [32, 64, 48]
    assert all(shard.base is None for shard in output.shards)


@pytest.mark.parametrize("wanted", ["[{}]", '[{"x"}]'])
def test_every_output_has_arrays_of_its_own(wanted):
    """One value that is returned three times, and an input that is returned as it is."""
    graph = Graph(
        [Value("x", (8,))],
        [Application("add", ("x", "x"), ("y",))],
        ["y", "x", "y", "y"],
        ['@m = <["x"=2]>'],
        {"x": '<@m, [{"x"}]>'},
        {2: f"<@m, {wanted}>"},
    )
    plan = Plan.of(propagate(graph))
    outputs, peak = counted(plan, {"x": np.arange(8, dtype="float32")})
    assert peak == plan.peak
    assert len({id(shard) for output in outputs for shard in output.shards}) == 8
    for output, times in zip(outputs, (2, 1, 2, 2)):
        assert np.array_equal(output.numpy(), np.arange(8) * times)


def test_one_tensor_for_two_inputs_is_held_and_brought_twice():
    plan = planned(lambda x, y: x @ y, (4, 4), (4, 4), x='[{"x"}, {}]', y='[{"x"}, {}]')
    tensor = Tensor(np.ones((4, 4), "float32")).shard(ShardingSpec.parse('<@m, [{"x"}, {}]>', LINE))
    with communication() as moved:
        run(plan, {"x": tensor, "y": tensor})
    assert (moved.peak, moved.received) == (plan.peak, sum(plan.received))


def test_an_operand_that_comes_twice_comes_once_wherever_it_stands():
    """Of three operands that are brought alike, the last two are one value."""
    plan = planned(
        lambda c, y: ops.where(c > 0, y, y) @ y, (4, 4), (4, 4), c='[{}, {"x"}]', y='[{"x"}, {}]'
    )
    with communication() as moved:
        run(plan, ones(plan))
    assert (moved.peak, moved.received) == (plan.peak, sum(plan.received))


def test_a_block_counts_the_most_of_all_runs():
    small, large = (planned(lambda x: x + x, (n,)) for n in (4, 8))
    with communication() as outer:
        run(large, ones(large))
        with communication() as inner:
            run(small, ones(small))
    assert (outer.peak, inner.peak) == (large.peak, small.peak)


def test_nothing_is_held_where_nothing_runs():
    with communication() as moved:
        pass
    assert (moved.peak, moved.peaks) == ((), {})
    with pytest.raises(WeftError, match="input x is missing"), communication() as moved:
        run(planned(lambda x: x + x, (4,)), {})
    assert moved.peak == ()


def test_the_count_is_what_the_process_holds():
    """Python's own count of one cell's arrays, the inputs apart, which are the caller's."""
    mesh, size = DeviceMesh("m", (1,), ("x",)), 1 << 18
    plan = planned(lambda x: (((x + x) - x) + (x * x)) * x, (size,), mesh=mesh)
    inputs = ones(plan)
    counted(plan, inputs)
    tracemalloc.start()
    _, (peak,) = counted(plan, inputs)
    _, real = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak == plan.peak[0] == 4 * 4 * size
    assert peak - 4 * size <= real < peak - 4 * size + (1 << 18)
