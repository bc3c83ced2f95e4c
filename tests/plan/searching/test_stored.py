"""Searches with storage: costs equal estimates, fronts equal brute force, chunks are chosen."""

from itertools import product
from random import Random

import pytest
from tests.plan.searching.small import GRID, LINE, machine, program

from weft import DeviceMesh, Machine, WeftError, estimate, ops, search, trace
from weft.plan import Chunking, Storage
from weft.plan.machine import Link
from weft.plan.searching.build import build_problem
from weft.plan.searching.prices import StoragePrices
from weft.plan.stored import writes


def storage_of(rng, graph):
    """Random chunks for some inputs and outputs; of outputs they may be chosen."""
    found = {}
    for name in (*(value.name for value in graph.inputs), *graph.outputs):
        shape = graph.values[name].shape
        chunk = [rng.randint(1, 4) for _ in shape]
        shard = [rng.randint(1, 2) * n for n in chunk]
        if rng.random() < 0.7:
            found[name] = Storage(shape, chunk, shard, 4, rng.choice([1, 2.5]))
        elif name in graph.outputs and all(name != value.name for value in graph.inputs):
            found[name] = Chunking((16, 64), readers=[])
    return found


def posed(seed, mesh, count=3):
    rng = Random(seed)
    graph = program(seed, 1 + seed % count)
    rates = machine(rng)
    link = Link(rng.choice([0.0, 1e-7]), 1e8, rng.random() < 0.5)
    rates = Machine(
        latency=rates.latency,
        bandwidth=rates.bandwidth,
        flops=rates.flops,
        memory_bandwidth=rates.memory_bandwidth,
        overlap=rates.overlap,
        storage=link,
    )
    return rng, graph, rates, storage_of(rng, graph)


def test_costs_with_storage_equal_the_estimate():
    compared = 0
    for seed in range(60):
        rng, graph, rates, storage = posed(seed, GRID)
        if StoragePrices(graph, rates, storage).is_shared:
            continue
        problem = build_problem(graph, GRID, rates, storage=storage)
        for _ in range(5):
            found = [rng.randrange(len(d.options)) for d in problem.decisions]
            price, cost = problem.cost(found), estimate(problem.plan(found), rates, storage)
            assert price.received == cost.moved, f"seed {seed}"
            assert problem.seconds(price) == pytest.approx(cost.seconds), f"seed {seed}"
            assert problem.peak(found) == max(cost.peak), f"seed {seed}"
            compared += bool(cost.loaded)
    assert compared > 50


def test_one_input_read_twice_costs_less_than_two_inputs():
    """Applications that are alike but for this read another number of bytes."""
    same, other = Storage((8, 8), (8, 8), itemsize=4), Storage((8, 8), (8, 8), itemsize=4)
    graph = trace(lambda x, y, z: (x + x, y + z), (8, 8), (8, 8), (8, 8))
    problem = build_problem(graph, LINE, Machine(), storage={"x": same, "y": other, "z": other})
    prices = {
        d.subject: d.costs[0].received for d in problem.decisions if isinstance(d.subject, int)
    }
    assert prices == {0: 2 * 256, 1: 4 * 256}


@pytest.mark.slow
def test_the_front_has_the_best_of_all_plans():
    compared = 0
    for seed in range(40):
        _, graph, rates, storage = posed(seed, LINE, 2)
        if not storage:
            continue
        problem = build_problem(graph, LINE, rates, storage=storage)
        every = list(product(*(range(len(d.options)) for d in problem.decisions)))
        if len(every) > 3000:
            continue
        costs = [estimate(problem.plan(found), rates, storage) for found in every]
        objectives = ["time", "bytes", "peak_memory"]
        front = search(graph, LINE, rates, objectives, rewrite=False, storage=storage)
        if front.is_exact:
            compared += 1
            best = min(cost.seconds for cost in costs)
            assert front.costs[0].seconds <= best * (1 + 1e-9), f"seed {seed}"
            assert min(c.moved for c in front.costs) <= min(c.moved for c in costs)
            assert min(max(c.peak) for c in front.costs) <= min(max(c.peak) for c in costs)
        for cost in front.costs:
            cost.plan.verify()
    assert compared > 5


@pytest.mark.parametrize(
    ("chunk", "cut"),
    [
        ((4, 16, 16), [True, False, False]),
        ((16, 4, 16), [False, True, False]),
        ((16, 16, 4), [False, False, True]),
    ],
)
def test_an_input_is_cut_along_its_chunks(chunk, cut):
    graph = trace(ops.relu, (16, 16, 16), names=["x"])
    mesh = DeviceMesh("m", (4,), ("cells",))
    storage = {"x": Storage((16, 16, 16), chunk, itemsize=4)}
    (plan,) = search(graph, mesh, Machine(flops={"float32": 1e9}), ["time"], storage=storage)
    assert [bool(spec.axes) for spec in plan.specs["x"].dim_specs] == cut
    assert estimate(plan, storage=storage).amplification == 1.0
    assert sum(plan.received) == 0  # it lies where it is read


def test_slower_links_do_not_change_where_a_stored_input_is_read():
    """What is read from storage does not move, however slow the links between cells are."""
    graph = trace(ops.convolve, (1, 1, 64, 64), (1, 1, 3, 3))
    mesh = DeviceMesh("m", (4,), ("x",))
    storage = {"x": Storage((1, 1, 64, 64), (1, 1, 4, 64), itemsize=4)}
    slow = Machine(bandwidth=1.0, flops={"float32": 1e9}, storage=(0, 1e9))
    (plan,) = search(graph, mesh, slow, ["time"], storage={**storage, "convolution": Chunking()})
    cost = estimate(plan, slow, storage)
    assert cost.received == 0
    cuts = [dim.axes for dim in plan.outputs[0].dim_specs]
    assert cuts == [(), (), ("x",), ()]


def test_chunks_and_shards_of_an_output_are_chosen():
    graph = trace(lambda x: x + x, (100, 60))
    mesh = DeviceMesh("m", (3,), ("x",))
    wanted = Chunking((512, 1024))
    front = search(
        graph,
        mesh,
        Machine(flops={"float32": 1e9}),
        ["time"],
        storage={"x": Storage((100, 60), (10, 60), itemsize=4), "add": wanted},
    )
    (cost,) = front.costs
    found = cost.storage["add"]
    assert isinstance(found, Storage)
    assert all(found.aligned(box) for box in writes(cost.plan, "add") if box)
    assert cost.stored == found.touched(found.space).nbytes


def test_an_input_with_several_readers_prevents_a_proof():
    graph = trace(lambda x: ops.relu(x) @ (x + 1.0), (16, 16))
    storage = {"x": Storage((16, 16), (4, 16), itemsize=4)}
    front = search(graph, LINE, Machine(flops={"float32": 1e9}), storage=storage, rewrite=False)
    assert not front.is_exact
    for cost in front.costs:
        cost.plan.verify()
        assert cost.loaded <= 2 * 16 * 16 * 4


def test_written_shardings_of_stored_inputs_are_kept():
    graph = trace(
        ops.relu, (8, 8), names=["x"], meshes=[LINE], shardings={"x": '<@m, [{"x"}, {}]>'}
    )
    storage = {"x": Storage((8, 8), (8, 1), itemsize=4)}
    for plan in search(graph, LINE, storage=storage):
        assert str(plan.specs["x"]) == '<@m, [{"x"}, {}]>'


def test_storage_of_an_unknown_value_is_refused():
    graph = trace(ops.relu, (8, 8), names=["x"])
    with pytest.raises(WeftError, match="there is no input or output 'w'"):
        search(graph, LINE, storage={"w": Storage((8, 8), (8, 1), itemsize=4)})
