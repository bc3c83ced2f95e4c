"""Exact fronts compared with brute force, and costs compared with estimates."""

from itertools import product
from math import prod
from random import Random

import jax
import jax.numpy as jnp
import pytest
from benchmarks.conflict_programs import Program
from tests.interop.test_run import (
    CASES,
    arrays,
    branch,
    exchange,
    loop,
    nested,
    sharded,
    shift,
    switch,
)
from tests.plan.searching.small import GRID, LINE, machine, program
from tests.runtime.test_programs import planned
from tests.trials import trials

from weft import Machine, estimate, ops, trace
from weft.interop.stablehlo import read
from weft.plan.searching import branch_and_bound
from weft.plan.searching.bounds import Goal
from weft.plan.searching.branch_and_bound import TooWideError, exact_front
from weft.plan.searching.build import ProblemBuilder, build_problem
from weft.plan.searching.choice_graph import assignment_of, choices_of
from weft.plan.searching.cost_strategy import cheapest, lexicographic
from weft.plan.searching.local_search import LocalSearch
from weft.plan.searching.pareto import pareto_front
from weft.plan.searching.problem import DecisionClasses

PROGRAMS = trials(60)


def point(problem, found):
    price = problem.cost(found)
    return problem.seconds(price), problem.peak(found), price.received


def same(one, two):
    """Whether two fronts are one, but for the order in which seconds were added."""
    return len(one) == len(two) and all(
        a[0] == pytest.approx(b[0], rel=1e-9) and tuple(a[1:]) == tuple(b[1:])
        for a, b in zip(sorted(one), sorted(two))
    )


def brute_force(problem, goal):
    every = product(*(range(len(decision.options)) for decision in problem.decisions))
    wanted = [n for n, is_wanted in enumerate((goal.time, goal.memory, goal.received)) if is_wanted]
    points = (point(problem, found) for found in every)
    rounded = ((float(f"{p[0]:.12g}"), *p[1:]) for p in points)
    return [tuple(p) for p, _ in pareto_front(([p[n] for n in wanted], None) for p in rounded)]


def swept(problem, goal, known=()):
    wanted = [n for n, is_wanted in enumerate((goal.time, goal.memory, goal.received)) if is_wanted]
    points = [point(problem, found) for found in known]
    for chosen in exact_front(choices_of(problem), goal, points):
        found = point(problem, assignment_of(problem, chosen.steps, chosen.specs))
        for n in wanted:
            assert chosen.point[n] == pytest.approx(found[n], rel=1e-9)
        points.append(found)
    rounded = ((float(f"{p[0]:.12g}"), *p[1:]) for p in points)
    return [tuple(p) for p, _ in pareto_front(([p[n] for n in wanted], None) for p in rounded)]


@pytest.mark.parametrize(
    "goal", [Goal(), Goal(memory=False), Goal(time=False), Goal(received=False, memory=False)]
)
def test_exact_front_equals_brute_force(goal):
    compared = 0
    for seed in range(PROGRAMS):
        rng = Random(seed)
        problem = build_problem(
            program(seed, 1 + seed % 4), rng.choice([LINE, LINE, GRID]), machine(rng)
        )
        if prod(len(decision.options) for decision in problem.decisions) > 4000:
            continue
        compared += 1
        wanted = brute_force(problem, goal)
        assert same(swept(problem, goal), wanted), f"seed {seed}"
        local = LocalSearch(DecisionClasses(problem), goal, rng)
        local.explore()
        assert same(swept(problem, goal, local.solutions), wanted), (
            f"seed {seed}, with what is known"
        )
    assert compared >= PROGRAMS // 4


def test_costs_and_peak_equal_the_estimate():
    for seed in range(PROGRAMS):
        _, graph, _ = planned(seed)
        rng = Random(seed)
        (mesh,) = {spec.mesh for spec in base_plan(graph).specs.values()}
        problem = build_problem(graph, mesh, machine(rng))
        for found in (problem.start, *(some_choices(problem, rng) for _ in range(2))):
            plan, price = problem.plan(found), problem.cost(found)
            plan.verify()
            cost = estimate(plan)
            assert cost.received == price.received, f"seed {seed}\n{plan}"
            assert cost.compute == pytest.approx(price.compute, rel=1e-9)
            assert cost.communicate == pytest.approx(price.communicate, rel=1e-9, abs=1e-18)
            assert max(cost.peak) == problem.peak(found), f"seed {seed}\n{plan}"


@pytest.mark.parametrize("axes", [['{"x"}'], ["{}", '{"y", "x"}'], ['{"x"}', '{"y"}']])
@pytest.mark.parametrize("function", [loop, exchange, shift, nested, branch, switch])
def test_costs_include_regions(function, axes):
    given = arrays(function, CASES[function])
    graph = sharded(read(jax.jit(function).lower(*given).as_text()), *axes)
    for seed in range(3):
        rng = Random(seed)
        problem = build_problem(graph, GRID, machine(rng))
        for found in (problem.start, some_choices(problem, rng)):
            plan, price = problem.plan(found), problem.cost(found)
            cost = estimate(plan)
            assert cost.received == price.received, f"seed {seed}\n{plan}"
            assert cost.compute == pytest.approx(price.compute, rel=1e-9)
            assert cost.communicate == pytest.approx(price.communicate, rel=1e-9, abs=1e-18)


def test_different_loop_bodies_have_different_costs():
    def twice(x, w):
        once = jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w), x)
        return jax.lax.fori_loop(0, 9, lambda _, c: jnp.tanh((c @ w) @ w), once)

    shapes = [jax.ShapeDtypeStruct((4, 4), "float32")] * 2
    graph = sharded(read(jax.jit(twice).lower(*shapes).as_text()), "{}", '{"x"}')
    problem = build_problem(graph, GRID, machine(Random(0)))
    price, cost = problem.cost(problem.start), estimate(problem.plan(problem.start))
    assert (price.received, price.compute) == (cost.received, pytest.approx(cost.compute))


def base_plan(graph):
    from weft import Plan, propagate

    return Plan.of(propagate(graph))


def some_choices(problem, rng):
    return [rng.randrange(len(decision.options)) for decision in problem.decisions]


def test_the_plan_of_propagation_is_a_candidate():
    for seed in range(PROGRAMS):
        _, graph, _ = planned(seed)
        problem = build_problem(graph, base_plan(graph).mesh, Machine())
        received = problem.cost(problem.start).received
        assert received <= sum(problem.base.received), f"seed {seed}"


def test_too_many_partial_plans_raise_an_error():
    problem = build_problem(program(3, 4), GRID, Machine())
    with pytest.raises(TooWideError):
        exact_front(choices_of(problem), limit=3)


def test_no_more_plans_are_priced_than_tries(monkeypatch):
    priced, leaf = [], branch_and_bound._Leaves._leaf

    def count(leaves, *picked):
        priced.append(len(leaves.known))
        leaf(leaves, *picked)

    monkeypatch.setattr(branch_and_bound._Leaves, "_leaf", count)
    graph = trace(lambda x, y: ops.relu(x) @ ops.relu(y), (64, 64), (64, 64))
    with pytest.raises(TooWideError):
        exact_front(choices_of(build_problem(graph, GRID, machine(Random(0)))), tries=3)
    assert sum(priced[:-1]) <= 3


def test_the_cheapest_plan_is_the_least_in_lexicographic_order():
    """Bytes, then time, then work: no assignment has a smaller packed cost."""
    compared = 0
    for seed in range(PROGRAMS):
        rng = Random(seed)
        mesh = rng.choice([LINE, GRID])
        builder = ProblemBuilder(program(seed, 1 + seed % 4), mesh, machine(rng), with_memory=False)
        problem = builder.problem()
        if prod(len(decision.options) for decision in problem.decisions) > 10_000:
            continue
        compared += 1
        packed = lexicographic(problem)
        every = product(*(range(len(decision.options)) for decision in problem.decisions))
        chosen, reasons = cheapest(problem)
        assert not reasons
        assert packed.cost(chosen).received == min(packed.cost(one).received for one in every)
    assert compared >= PROGRAMS // 4


@pytest.mark.parametrize("seed", [19, 41, 43])
def test_ties_are_broken_by_exact_integers(seed):
    """Packed costs have more digits than a float: no single change makes the plan cheaper."""
    graph = read(Program(seed).text)
    problem = ProblemBuilder(graph, base_plan(graph).mesh, None, True, with_memory=False).problem()
    packed, (chosen, _) = lexicographic(problem), cheapest(problem)
    for number, decision in enumerate(problem.decisions):
        for option in range(len(decision.options)):
            other = [*chosen[:number], option, *chosen[number + 1 :]]
            assert packed.cost(other).received >= packed.cost(chosen).received
