"""The exact front against all plans, and prices against estimates."""

from itertools import product
from math import prod
from random import Random

import jax
import jax.numpy as jnp
import pytest
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

from weft import Machine, estimate
from weft.interop.stablehlo import read
from weft.plan.searching.ahead import Goal
from weft.plan.searching.build import pose
from weft.plan.searching.exact import TooWideError, sweep
from weft.plan.searching.model import Model
from weft.plan.searching.pareto import best
from weft.plan.searching.scout import Scout

PROGRAMS = trials(60)


def point(problem, found):
    price = problem.price(found)
    return problem.seconds(price), problem.peak(found), price.received


def same(one, two):
    """Whether two fronts are one, but for the order in which seconds were added."""
    return len(one) == len(two) and all(
        a[0] == pytest.approx(b[0], rel=1e-9) and tuple(a[1:]) == tuple(b[1:])
        for a, b in zip(sorted(one), sorted(two))
    )


def brute_force(problem, goal):
    every = product(*(range(len(decision.choices)) for decision in problem.decisions))
    wanted = [n for n, is_wanted in enumerate((goal.time, goal.memory, goal.received)) if is_wanted]
    points = (point(problem, found) for found in every)
    rounded = ((float(f"{p[0]:.12g}"), *p[1:]) for p in points)
    return [tuple(p) for p, _ in best(([p[n] for n in wanted], None) for p in rounded)]


def swept(problem, goal, known=()):
    wanted = [n for n, is_wanted in enumerate((goal.time, goal.memory, goal.received)) if is_wanted]
    points = [point(problem, found) for found in sweep(problem, goal, known)]
    rounded = ((float(f"{p[0]:.12g}"), *p[1:]) for p in points)
    return [tuple(p) for p, _ in best(([p[n] for n in wanted], None) for p in rounded)]


@pytest.mark.parametrize(
    "goal", [Goal(), Goal(memory=False), Goal(time=False), Goal(received=False, memory=False)]
)
def test_the_front_is_that_of_all_plans(goal):
    compared = 0
    for seed in range(PROGRAMS):
        rng = Random(seed)
        problem = pose(program(seed, 1 + seed % 4), rng.choice([LINE, LINE, GRID]), machine(rng))
        if prod(len(decision.choices) for decision in problem.decisions) > 4000:
            continue
        compared += 1
        wanted = brute_force(problem, goal)
        assert same(swept(problem, goal), wanted), f"seed {seed}"
        scout = Scout(Model(problem, range(len(problem.decisions))), goal, rng)
        scout.look()
        assert same(swept(problem, goal, scout.found), wanted), f"seed {seed}, with what is known"
    assert compared >= PROGRAMS // 4


def test_prices_and_room_are_those_of_the_plan():
    for seed in range(PROGRAMS):
        _, graph, _ = planned(seed)
        rng = Random(seed)
        (mesh,) = {spec.mesh for spec in pose_base(graph).specs.values()}
        problem = pose(graph, mesh, machine(rng))
        for found in (problem.start, *(some_choices(problem, rng) for _ in range(2))):
            plan, price = problem.plan(found), problem.price(found)
            plan.verify()
            cost = estimate(plan)
            assert cost.received == price.received, f"seed {seed}\n{plan}"
            assert cost.compute == pytest.approx(price.compute, rel=1e-9)
            assert cost.communicate == pytest.approx(price.communicate, rel=1e-9, abs=1e-18)
            assert max(cost.peak) == problem.peak(found), f"seed {seed}\n{plan}"


@pytest.mark.parametrize("axes", [['{"x"}'], ["{}", '{"y", "x"}'], ['{"x"}', '{"y"}']])
@pytest.mark.parametrize("function", [loop, exchange, shift, nested, branch, switch])
def test_prices_hold_all_that_happens_in_regions(function, axes):
    given = arrays(function, CASES[function])
    graph = sharded(read(jax.jit(function).lower(*given).as_text()), *axes)
    for seed in range(3):
        rng = Random(seed)
        problem = pose(graph, GRID, machine(rng))
        for found in (problem.start, some_choices(problem, rng)):
            plan, price = problem.plan(found), problem.price(found)
            cost = estimate(plan)
            assert cost.received == price.received, f"seed {seed}\n{plan}"
            assert cost.compute == pytest.approx(price.compute, rel=1e-9)
            assert cost.communicate == pytest.approx(price.communicate, rel=1e-9, abs=1e-18)


def test_loops_that_look_alike_from_outside_have_prices_of_their_own():
    def twice(x, w):
        once = jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w), x)
        return jax.lax.fori_loop(0, 9, lambda _, c: jnp.tanh((c @ w) @ w), once)

    shapes = [jax.ShapeDtypeStruct((4, 4), "float32")] * 2
    graph = sharded(read(jax.jit(twice).lower(*shapes).as_text()), "{}", '{"x"}')
    problem = pose(graph, GRID, machine(Random(0)))
    price, cost = problem.price(problem.start), estimate(problem.plan(problem.start))
    assert (price.received, price.compute) == (cost.received, pytest.approx(cost.compute))


def pose_base(graph):
    from weft import Plan, propagate

    return Plan.of(propagate(graph))


def some_choices(problem, rng):
    return [rng.randrange(len(decision.choices)) for decision in problem.decisions]


def test_what_propagation_does_is_among_the_plans():
    for seed in range(PROGRAMS):
        _, graph, _ = planned(seed)
        problem = pose(graph, pose_base(graph).mesh, Machine())
        received = problem.price(problem.start).received
        assert received <= sum(problem.base.received), f"seed {seed}"


def test_too_wide_is_said():
    problem = pose(program(3, 4), GRID, Machine())
    with pytest.raises(TooWideError):
        sweep(problem, limit=3)
