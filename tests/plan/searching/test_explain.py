"""Explanations of searched plans: what other placements and rewrites would cost."""

from random import Random

import pytest
from tests.plan.searching.small import GRID, LINE, machine, program
from tests.trials import trials

from weft import Machine, Plan, WeftError, ops, propagate, search, trace

SLOW = Machine(latency=1e-7, bandwidth=1e9, flops={"float32": 1e9}, memory_bandwidth=1e10)


def test_no_alternative_of_a_fastest_plan_is_faster():
    for seed in range(trials(20)):
        rates = machine(Random(seed))
        front = search(program(seed, 1 + seed % 3), GRID, rates, ["time"])
        if not front.is_exact:
            continue
        found = front.explain()
        assert found.seconds == pytest.approx(front.costs[0].seconds)
        assert len(found.choices) == len(front[0].graph.applications)
        for choice in found.choices:
            for one in choice.alternatives:
                assert one.seconds >= -1e-12, f"seed {seed}: {choice}"
                assert one.seconds <= one.compute + one.transfer + 1e-12 or rates.overlap


def test_rewrites_are_among_the_alternatives():
    front = search(trace(ops.softmax, (64, 64)), LINE, SLOW, ["time"])
    (choice,) = front.explain().choices
    assert choice.chosen == "i0: x"
    assert "softmax in stages" in [one.what for one in choice.alternatives]
    text = str(front.explain())
    assert text.splitlines()[0].startswith("softmax  softmax  i0: x  ")
    assert "  next  " in text


def test_a_plan_that_no_search_tries_is_not_explained():
    from weft.plan.searching.explain import explain

    graph = trace(
        lambda x: ops.relu(x) @ x,
        (8, 8),
        meshes=[str(GRID)],
        shardings={"x": '<@m, [{"y", "x"}, {}]>'},
    )
    bare = trace(lambda x: ops.relu(x) @ x, (8, 8))
    plan = Plan.of(propagate(graph))
    other = Plan(bare, plan.mesh, plan.specs, plan.outputs, plan.placed, None, plan.regions)
    with pytest.raises(WeftError, match="the plan cannot be explained: a search does not try"):
        explain(other)
