"""What a search claims, against all plans: exact is said only where no plan is better."""

import os
from collections import Counter
from itertools import product
from math import prod
from random import Random

import jax
import jax.numpy as jnp
import pytest
from tests.plan.searching.small import GRID, LINE, machine

from weft import DeviceMesh, Graph, Machine, Plan, WeftError, estimate, ops, propagate, search, trace
from weft.errors import LayoutError
from weft.interop.stablehlo import read
from weft.layout import DimSpec, ShardingSpec
from weft.plan.machines import H200_NODE
from weft.plan.placed import place
from weft.plan.searching.claim import least_peak
from weft.plan.searching.meshed import on_mesh
from weft.plan.searching.variants import enumerate_variants
from weft.values import FrozenMap

PROGRAMS = int(os.environ.get("WEFT_FUZZ", "0")) or 40
"""Random graphs whose plans are all enumerated: 40 in `make test`, thousands in `make fuzz`."""

THREE = DeviceMesh("m", (3,), ("x",))
EIGHT = DeviceMesh("m", (8,), ("x",))
MOST = 900
"""Plans that are enumerated for one graph."""


def small(seed):
    """A random graph of one to three operators, some annotated; a mesh; a machine."""
    rng = Random(seed)
    size, count = rng.choice([4, 4, 6, 5, 2]), rng.choice([1, 2, 2, 3])

    def body(x, w):
        values = [x, w]
        for _ in range(count):
            one, two = rng.choice(values[-2:]), rng.choice(values)
            kind = rng.randrange(8)
            if kind <= 1:
                made = one @ two
            elif kind == 2:
                made = one + two
            elif kind <= 4:
                made = ops.relu(one)
            elif kind == 5:
                made = one.sum(rng.randrange(2), keep=True) + one
            elif kind == 6:
                made = ops.softmax(one)
            else:
                made = ops.transpose(one, (1, 0))
            values.append(made)
        return tuple(values[-2:]) if rng.random() < 0.2 else values[-1]

    mesh = rng.choice([LINE, LINE, THREE, GRID])
    dims = rng.choice(['{"x"}, {}', '{}, {"x", ?}', "{?}, {?}"])
    graph = trace(body, (size, size), (size, size), names=["x", "w"])
    if rng.random() < 0.3:
        graph = Graph(graph.inputs, graph.applications, graph.outputs, [str(mesh)], {"x": f"<@m, [{dims}]>"})
    return graph, mesh, machine(rng)


def cuts_of(mesh, sizes):
    """Every axis, whole, given to one dimension or to none; no more blocks than elements."""
    axes = [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]
    for picked in product([None, *(name for name, size in sizes.items() if size > 1)], repeat=len(axes)):
        cuts = {}
        for axis, name in zip(axes, picked):
            if name is not None:
                cuts[name] = (*cuts.get(name, ()), axis)
        if all(prod(map(mesh.axis_size, by)) <= sizes[name] for name, by in cuts.items()):
            yield cuts


def placements_of(mesh, line):
    for cuts in cuts_of(mesh, {n: s for n, s in line.sizes.items() if n not in line.fixed}):
        try:
            yield place(mesh, line, cuts)
        except LayoutError:
            continue


def shardings_of(graph, mesh, name):
    """The shardings of a value that agree with what is written on it."""
    shape, text = graph.values[name].shape, graph.shardings.get(name)
    written = text and ShardingSpec.parse(text, [mesh])
    for cuts in cuts_of(mesh, dict(enumerate(shape))):
        spec = ShardingSpec(mesh, [DimSpec(cuts.get(dim, ())) for dim in range(len(shape))])
        pairs = zip(spec.dim_specs, written.dim_specs if written else ())
        if all(
            mine.axes == theirs.axes
            or (theirs.is_open and mine.axes[: len(theirs.axes)] == theirs.axes)
            for mine, theirs in pairs
        ):
            yield spec


def plans_of(graph, mesh, rates):
    """All plans of the search space for one graph; None if there are too many."""
    graph = on_mesh(graph, mesh)
    uses = Counter([*graph.outputs, *(n for a in graph.applications for n in a.operands)])
    kept = {v.name for v in graph.inputs} | {*graph.outputs, *graph.shardings}
    kept |= {name for name, count in uses.items() if count > 1}
    kept = sorted(kept)
    placed = [list(placements_of(mesh, line)) for line in graph.signatures]
    specs = [list(shardings_of(graph, mesh, name)) for name in kept]
    if prod(map(len, [*placed, *specs])) > MOST:
        return None
    return [
        plan_of(graph, mesh, rates, dict(zip(kept, lying)), ways)
        for ways in product(*placed)
        for lying in product(*specs)
    ]


def plan_of(graph, mesh, rates, specs, placed):
    for application, way in zip(graph.applications, placed):
        for name, spec in zip(application.results, way.results):
            specs.setdefault(name, spec)
    outputs = tuple(specs[name] for name in graph.outputs)
    ordered = FrozenMap((name, specs[name]) for name in graph.values)
    return Plan(graph, mesh, ordered, outputs, placed, rates, FrozenMap(()))


VALUES = {
    "time": lambda cost: cost.seconds,
    "peak_memory": lambda cost: max(cost.peak),
    "bytes": lambda cost: cost.moved,
}


def is_reached(front, cost):
    """Whether some plan of a front is as good in everything, but for rounding."""
    wanted = [VALUES[name](cost) * (1 + 1e-9) for name in front.objectives]
    return any(all(a <= b for a, b in zip(point, wanted)) for point in front.points)


@pytest.mark.parametrize(
    "objectives", [("time", "peak_memory", "bytes"), ("time",), ("bytes", "peak_memory")]
)
def test_no_plan_of_what_is_claimed_is_better(objectives):
    """A front that is exact over some graphs is that of all plans for them, fused."""
    claimed = proved = 0
    for seed in range(PROGRAMS):
        graph, mesh, rates = small(seed)
        front = search(graph, mesh, rates, objectives, budget=64)
        every = enumerate_variants(graph, mesh.size, rewrite=True).every
        covered = [variant for variant in every if variant.name in front.proved]
        claimed += front.is_exact
        plans = [plans_of(variant.graph, mesh, rates) for variant in covered]
        if not plans or None in plans or sum(map(len, plans)) > MOST:
            continue
        proved += 1
        for plan in (plan for some in plans for plan in some):
            cost = estimate(plan.fused(), rates)
            assert is_reached(front, cost), f"seed {seed}: {cost.seconds} {max(cost.peak)}\n{front}"
    assert claimed > PROGRAMS // 4
    assert proved > PROGRAMS // 4
