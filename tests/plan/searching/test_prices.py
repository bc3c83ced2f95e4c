"""Prices by form, batch evaluation, classes of decisions, cuts and Pareto fronts."""

from random import Random

import numpy as np
import pytest
from tests.plan.searching.small import CUBE, GRID, machine, program
from tests.trials import trials

from weft import DeviceMesh, Machine, ShardingSpec, plan_reshard, trace
from weft.plan.machines import H200_NODE
from weft.plan.searching.build import build_problem
from weft.plan.searching.choices import (
    Symmetry,
    compatible_shardings,
    enumerate_cuts,
    placements,
    shardings,
)
from weft.plan.searching.evolution import BatchEvaluator
from weft.plan.searching.integer_program import solve_integer_program
from weft.plan.searching.local_search import block_descent
from weft.plan.searching.pareto import dominates, hypervolume, pareto_front
from weft.plan.searching.prices import MovePrices
from weft.plan.searching.problem import DecisionClasses, ObjectiveWeights, equivalence_classes

PAIRS = trials(3000)


@pytest.mark.parametrize(
    ("shape", "kinds"), [((2, 4), {"a": 0, "b": 1}), ((2, 2, 2), {"a": 0, "b": 0, "c": 0})]
)
@pytest.mark.parametrize("rates", [H200_NODE, Machine({"a": (5e-6, 1e9)}, 1e-6, 1e10)])
def test_prices_by_form_equal_planned_reshards(shape, kinds, rates):
    rng, mesh = Random(0), DeviceMesh("m", shape, tuple(kinds))
    if rates.links:
        kinds = {axis: number for number, axis in enumerate(kinds)}
    prices, exact = MovePrices(rates, mesh, kinds, by_cell=False), MovePrices(rates, mesh)
    for _ in range(PAIRS):
        size = tuple(rng.choice([1, 3, 8, 16, 64]) for _ in range(rng.randint(1, 4)))
        src, dst = (rng.choice(shardings(mesh, size)) for _ in range(2))
        used = {axis for dim in src.dim_specs for axis in dim.axes}
        free = [axis for axis in mesh.axis_names if axis not in used]
        if free and rng.random() < 0.4:
            src = ShardingSpec(mesh, src.dim_specs, (), {rng.choice(free): "sum"})
        width = rng.choice([1, 4])
        found, wanted = (p.reshard(src, dst, size, width) for p in (prices, exact))
        assert found.received == wanted.received, f"{src} -> {dst}, {size}"
        assert found.seconds == pytest.approx(wanted.seconds, rel=1e-9)
        for mine, theirs in zip(found[2:], wanted[2:]):
            assert mine == (max(theirs),), f"{src} -> {dst}, {size}"
        assert wanted.received == sum(plan_reshard(src, dst, size, width, rates).received)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mesh", [GRID, CUBE])
def test_prices_by_form_have_the_memory_of_every_cell(mesh, seed):
    """Axes of one kind have other names, and the cells change places with them."""
    rng, rates = Random(seed), machine(Random(seed))
    prices = MovePrices(rates, mesh, dict.fromkeys(mesh.axis_names, 0))
    exact = MovePrices(rates, mesh)
    for _ in range(PAIRS // 10):
        size = rng.choice([(4, 4), (8, 4), (8,), (8, 8), (2, 4, 8)])
        src, dst = (rng.choice(shardings(mesh, size)) for _ in range(2))
        used = {axis for dim in src.dim_specs for axis in dim.axes}
        free = [axis for axis in mesh.axis_names if axis not in used]
        parts = dict.fromkeys(rng.sample(free, rng.randint(0, len(free))), "sum")
        src = ShardingSpec(mesh, src.dim_specs, (), parts)
        found, wanted = (p.reshard(src, dst, size, 4) for p in (prices, exact))
        assert found[1:] == wanted[1:], f"{src} -> {dst}, {size}"
        assert found.seconds == pytest.approx(wanted.seconds, rel=1e-9)


@pytest.mark.parametrize("rates", [None, Machine(latency=1e-6, bandwidth=1e9)])
def test_prices_by_form_without_memory(rates):
    """Without room, one reshard is priced for all that differ by names of axes and dimensions."""
    rng, mesh = Random(1), DeviceMesh("m", (2, 2, 3), ("x", "y", "z"))
    prices = MovePrices(rates, mesh, {"x": 0, "y": 0, "z": 1}, with_memory=False, by_cell=False)
    exact = MovePrices(rates, mesh, with_memory=False)
    for _ in range(PAIRS // 2):
        size = tuple(rng.choice([1, 3, 5, 6, 12, 36]) for _ in range(rng.randint(1, 3)))
        src, dst = (rng.choice(shardings(mesh, size)) for _ in range(2))
        cut = {axis for spec in (src, dst) for dim in spec.dim_specs for axis in dim.axes}
        free = [axis for axis in mesh.axis_names if axis not in cut]
        parts = {axis: rng.choice(["sum", "max"]) for axis in free[: rng.randint(0, len(free))]}
        kept = dict(list(parts.items())[: rng.randint(0, len(parts))])
        if len(set(parts.values())) < 2:
            src = ShardingSpec(mesh, src.dim_specs, (), parts)
            dst = ShardingSpec(mesh, dst.dim_specs, (), kept)
        found, wanted = (p.reshard(src, dst, size, 4) for p in (prices, exact))
        assert found.received == wanted.received, f"{src} -> {dst}, {size}"
        assert found.seconds == pytest.approx(wanted.seconds, rel=1e-9)


def test_batch_evaluation_equals_single_plans():
    for seed in range(20):
        rng = Random(seed)
        problem = build_problem(program(seed, 1 + seed % 5), GRID, machine(rng))
        model = DecisionClasses(problem)
        plans = [[rng.randrange(count) for count in model.sizes] for _ in range(8)]
        for plan, costs in zip(plans, BatchEvaluator(model)(plans)):
            price = problem.cost(plan)
            wanted = [problem.seconds(price), problem.peak(plan), price.received]
            assert np.allclose(costs[:3], wanted, rtol=1e-9, atol=0), f"seed {seed}"
            assert max(0, costs[3]) == problem.excess(plan)


def test_descent_and_integer_program_improve_a_random_start():
    for seed in range(20):
        rng = Random(seed)
        problem = build_problem(program(seed, 5), GRID, machine(rng))
        priced = DecisionClasses(problem).weighted(ObjectiveWeights(1.0, 1e-9))
        start = [rng.randrange(len(row)) for row in priced.unary]
        found = block_descent(priced, start, rng)
        optimum = solve_integer_program(priced)
        assert priced.total(found) <= priced.total(start)
        assert optimum.total <= priced.total(found) * (1 + 1e-9)
        assert optimum.bound <= optimum.total * (1 + 1e-6)


def test_repeated_layers_share_classes():
    def chain(count):
        def layers(x, *weights):
            for w in weights:
                x = x @ w
            return x

        return trace(layers, (8, 8), *[(8, 8)] * count)

    few, many = (
        equivalence_classes(build_problem(chain(count), GRID, Machine())) for count in (20, 60)
    )
    assert max(few) == max(many)
    assert len(many) > len(few)


def test_symmetric_placements_are_left_out():
    graph = trace(lambda x, w: x @ w, (8, 8), (8, 8))
    symmetry = Symmetry(graph, GRID, Machine())
    assert symmetry.classes == (("x", "y"),)
    all_of_them = placements(GRID, graph.signatures[0])
    one_of_each = placements(GRID, graph.signatures[0], symmetry.order_of_application(0))
    assert len(one_of_each) < len(all_of_them)
    assert Symmetry(graph, GRID, Machine({"x": (0.0, 1e6)})).classes == ()


def test_enumerated_cuts():
    assert len(list(enumerate_cuts(GRID, {"m": 8}))) == 4
    assert list(enumerate_cuts(GRID, {"m": 1})) == [{}]
    huge = DeviceMesh("m", (2,) * 6, tuple("abcdef"))
    assert len(list(enumerate_cuts(huge, dict.fromkeys("ijkl", 64)))) <= 512


def test_compatible_shardings():
    written = ShardingSpec.parse('<@m, [{}, {?}], replicated={"y"}>', GRID)
    found = compatible_shardings(written, shardings(GRID, (8, 8)), GRID)
    assert list(map(str, found)) == ["<@m, [{}, {}]>", '<@m, [{}, {"x"}]>']


def test_pareto_front_equals_pairwise_comparison():
    rng = np.random.default_rng(0)
    points = rng.integers(0, 10, (200, 3)).tolist()
    front = [p for p, _ in pareto_front((p, None) for p in points)]
    for point in points:
        assert any(dominates(other, point) for other in front)
    for number, point in enumerate(front):
        assert not any(dominates(o, point) for n, o in enumerate(front) if n != number)


def test_hypervolume_equals_counting_cells():
    rng = np.random.default_rng(1)
    for _ in range(20):
        points = rng.integers(0, 6, (8, 3)).tolist()
        cells = np.stack(np.meshgrid(*[np.arange(6)] * 3, indexing="ij"), -1).reshape(-1, 3)
        covered = np.zeros(len(cells), bool)
        for point in points:
            covered |= (cells >= point).all(1)
        assert hypervolume(points, (6, 6, 6)) == covered.sum()
