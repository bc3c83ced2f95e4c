"""The claims of a search, compared with brute force: a front is exact only if no plan is better."""

from collections import Counter
from importlib import import_module
from itertools import islice, product
from math import prod
from random import Random

import jax
import jax.numpy as jnp
import pytest
from tests.plan.searching.small import GRID, LINE, machine
from tests.trials import trials

from weft import (
    DeviceMesh,
    Graph,
    Machine,
    Plan,
    WeftError,
    estimate,
    ops,
    propagate,
    search,
    trace,
)
from weft.errors import LayoutError
from weft.interop.stablehlo import read
from weft.lang.alternatives import Alternatives
from weft.lang.rewrite import Rewrite, shipped_rewrites
from weft.layout import DimSpec, ShardingSpec
from weft.plan import Storage
from weft.plan.machines import H200_NODE
from weft.plan.placed import place
from weft.plan.searching.branch_and_bound import peak_lower_bound
from weft.plan.searching.build import omitted_options, on_mesh
from weft.values import FrozenMap

PROGRAMS = trials(16)
"""Random graphs whose plans are all enumerated: 16 in `make test`, thousands in `make fuzz`."""

THREE = DeviceMesh("m", (3,), ("x",))
EIGHT = DeviceMesh("m", (8,), ("x",))
MOST = 450
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
                made = one.sum(rng.randrange(2), keepdims=True) + one
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
        graph = Graph(
            graph.inputs, graph.applications, graph.outputs, [str(mesh)], {"x": f"<@m, [{dims}]>"}
        )
    return graph, mesh, machine(rng)


def cuts_of(mesh, sizes):
    """Every axis, whole, given to one dimension or to none; no more blocks than elements."""
    axes = [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]
    for picked in product(
        [None, *(name for name, size in sizes.items() if size > 1)], repeat=len(axes)
    ):
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


def plans_of(graph, mesh, rates, most=MOST):
    """All plans of the search space for one graph; None if there are too many."""
    graph = on_mesh(graph, mesh)
    uses = Counter([*graph.outputs, *(n for a in graph.applications for n in a.operands)])
    kept = {v.name for v in graph.inputs} | {*graph.outputs, *graph.shardings}
    kept |= {name for name, count in uses.items() if count > 1}
    kept = sorted(kept)
    placed = [list(placements_of(mesh, line)) for line in graph.signatures]
    specs = [list(shardings_of(graph, mesh, name)) for name in kept]
    if prod(map(len, [*placed, *specs])) > most:
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
def test_no_plan_of_the_proved_graphs_is_better(objectives):
    """A front that is exact over some graphs is that of all plans for them, fused."""
    claimed = proved = 0
    for seed in range(PROGRAMS):
        graph, mesh, rates = small(seed)
        front = search(graph, mesh, rates, objectives, budget=64)
        found = Alternatives.of(graph, shipped_rewrites(mesh.size))
        claimed += front.is_exact
        graphs = (found.chosen(a.application for a in ways) for ways in found.graphs())
        plans = [plans_of(one, mesh, rates) for one in islice(graphs, MOST)]
        if not front.proved or None in plans or sum(map(len, plans)) > MOST:
            continue
        proved += 1
        for plan in (plan for some in plans for plan in some):
            cost = estimate(plan.fused(), rates)
            assert is_reached(front, cost), f"seed {seed}: {cost.seconds} {max(cost.peak)}\n{front}"
    assert claimed > PROGRAMS // 4
    assert proved > PROGRAMS // 4


def looped(count=4):
    """A program whose work is in the body of a loop, as JAX writes it."""

    def steps(x, w):
        return jax.lax.fori_loop(0, count, lambda _, c: jnp.tanh(c @ w), x)

    shapes = [jax.ShapeDtypeStruct((256, 256), "float32")] * 2
    return read(jax.jit(steps).lower(*shapes).as_text())


def branched():
    def either(p, x, w):
        return jax.lax.cond(p, lambda: x @ w, lambda: x)

    shapes = [jax.ShapeDtypeStruct(s, t) for s, t in (((), "bool"), ((8, 8), "f4"), ((8, 8), "f4"))]
    return read(jax.jit(either).lower(*shapes).as_text())


def annotated(graph, mesh, **specs):
    dtypes = {name: value.dtype for name, value in graph.values.items()}
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [str(mesh)],
        {name: f"<@m, {text}>" for name, text in specs.items()},
        {},
        graph.operators,
        dtypes,
    )


@pytest.mark.parametrize("graph", [looped(), branched()])
def test_loops_and_branches_are_a_reason(graph):
    front = search(graph, EIGHT, H200_NODE)
    assert not front.is_exact
    assert front.proved == ()
    assert front.claim == "found"
    assert any("bodies of loops and branches" in reason for reason in front.reasons)
    assert "not proved exact: bodies of loops and branches" in str(front)


def test_loop_is_no_slower_than_propagation():
    for text in ('[{"x"}, {}]', '[{}, {"x"}]', "[{}, {}]"):
        graph = annotated(looped(), EIGHT, arg0=text)
        front = search(graph, EIGHT, H200_NODE)
        for strategy in ("user_priority", "op_priority", "aggressive", "basic"):
            plan = Plan.of(propagate(graph, strategy), H200_NODE)
            assert is_reached(front, estimate(plan, H200_NODE)), f"{text} {strategy}\n{front}"


def test_no_front_is_worse_than_propagation():
    for seed in range(PROGRAMS // 4):
        graph, mesh, rates = small(seed)
        graph = on_mesh(graph, mesh)
        for engine in ("auto", "descend", "integer"):
            objectives = ("time",) if engine == "integer" else ("time", "peak_memory", "bytes")
            front = search(graph, mesh, rates, objectives, 64, engine=engine, rewrite=False)
            cost = estimate(Plan.of(propagate(graph), rates), rates)
            assert is_reached(front, cost), f"seed {seed}, {engine}\n{front}"


def refusal(graph, mesh, rates, **options):
    with pytest.raises(WeftError) as error:
        search(graph, mesh, rates, **options)
    return str(error.value), "\n".join(error.value.__notes__)


def test_no_plan_fits_is_claimed_only_if_proved():
    graph = looped()
    plan = Plan.of(propagate(annotated(graph, EIGHT, arg0='[{"x"}, {}]')), H200_NODE)
    peak = max(plan.peak)
    first, notes = refusal(graph, EIGHT, Machine(capacity=peak))
    assert first.startswith("no plan was found that fits: cell 0 holds ")
    assert "not proved: bodies of loops and branches" in notes
    least = peak_lower_bound(graph, EIGHT)
    assert least == 2 * 256 * 256 * 4 // 8
    first, notes = refusal(graph, EIGHT, Machine(capacity=least - 1))
    assert first.startswith("no plan fits: cell 0 holds ")
    assert f"every plan holds at least {least} B on some cell for its inputs or outputs" in notes


def test_no_plan_of_the_search_space_fits():
    graph = trace(lambda x, w: x @ w, (4, 4), (4, 4))
    smallest = min(max(cost.peak) for cost in search(graph, LINE, Machine()).costs)
    assert peak_lower_bound(graph, LINE) < smallest
    first, notes = refusal(graph, LINE, Machine(capacity=smallest - 1))
    assert first.startswith("no plan of the search space fits: cell ")
    assert "searched: all placements, rewrites and fusions" in notes
    first, notes = refusal(graph, LINE, Machine(capacity=smallest - 1), engine="descend")
    assert first.startswith("no plan was found that fits: cell ")
    assert "descent looks at some plans, not at all" in notes


def test_integer_program_makes_no_claim_about_capacity():
    graph = trace(lambda x, w: x @ w, (64, 64), (64, 64))
    rates = Machine(flops={"float32": 1e9})
    fastest = search(graph, LINE, rates, ["time"], engine="integer")
    assert not fastest.is_exact
    assert "the integer program ignores capacity" in fastest.reasons
    tight = Machine(flops={"float32": 1e9}, capacity=max(fastest[0].peak) - 1)
    try:
        search(graph, LINE, tight, ["time"], engine="integer")
    except WeftError as error:
        assert str(error).startswith("no plan was found that fits")  # noqa: PT017


def test_peak_lower_bound_holds_for_every_plan():
    for seed in range(PROGRAMS // 4):
        graph, mesh, rates = small(seed)
        bound = peak_lower_bound(on_mesh(graph, mesh), mesh)
        front = search(graph, mesh, rates, ["peak_memory"], 64, rewrite=False)
        assert min(max(cost.peak) for cost in front.costs) >= bound
        for strategy in ("user_priority", "basic"):
            assert max(Plan.of(propagate(on_mesh(graph, mesh), strategy), rates).peak) >= bound


def test_rewrites_that_lead_on_and_on_are_a_reason():
    """A rewrite that matches its own result is applied once, and the front is not exact."""
    again = Rewrite("relu twice", ("relu", "x"), lambda v, _: ops.relu(ops.relu(v["x"])))
    graph = trace(ops.relu, (8, 8))
    assert search(graph, LINE, Machine()).is_exact
    front = search(graph, LINE, Machine(), rewrites=[again])
    assert front.reasons == ("rewrites were not tried again on their own results: relu twice",)
    assert not front.is_exact
    lines = str(front).splitlines()
    assert lines[-2].endswith("exact over placements, rewrites and fusions")
    assert lines[-1].startswith("not proved beyond that: rewrites were not tried again")


def test_too_many_alternatives_are_a_reason():
    def body(x):
        for _ in range(30):
            x = ops.relu(x)
        return x

    front = search(trace(body, (8,)), LINE, Machine(), ["time"])
    assert not front.is_exact
    assert any(reason.startswith("fusions were not tried everywhere") for reason in front.reasons)
    assert front.proved == ()


def test_all_rewrites_and_fusions_are_searched():
    graph = trace(lambda x, w, v: ops.relu(x @ w) @ v, *[(8, 8)] * 3)
    front = search(graph, GRID, Machine(flops={"float32": 1e9}))
    assert front.is_exact
    assert front.proved == ("placements", "rewrites", "fusions")
    alone = search(graph, GRID, Machine(flops={"float32": 1e9}), rewrite=False)
    assert not alone.is_exact
    assert alone.reasons == ("fusions were not tried in the search",)
    total = trace(lambda x: x.sum(0), (8, 8))
    assert search(total, LINE).is_exact
    unchanged = search(total, LINE, rewrite=False)
    assert unchanged.proved == ("placements",)
    assert unchanged.reasons == ("rewrites were not tried in the search",)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("evolve", "evolution looks at some plans, not at all"),
        ("descend", "descent looks at some plans, not at all"),
    ],
)
def test_heuristic_engines_give_a_reason(engine, reason):
    front = search(trace(lambda x, w: x @ w, (8, 8), (8, 8)), GRID, budget=64, engine=engine)
    assert front.claim == "found"
    assert front.reasons == (reason,)


def test_wide_graph_gives_a_reason(monkeypatch):
    monkeypatch.setattr(import_module("weft.plan.searching.search"), "MAX_TRIES", -1)
    front = search(trace(lambda x, w: ops.relu(x @ w) @ w, (8, 8), (8, 8)), GRID, budget=64)
    assert not front.is_exact
    assert "there are too many partial plans for the exact engine" in front.reasons


def test_omitted_cuts_are_a_reason():
    graph = trace(lambda x, y: x + y, (8, 8, 8), (8, 8, 8))
    assert omitted_options(on_mesh(graph, GRID), GRID, 4) == [
        "small dimensions were not cut, as there are too many ways: x, y, add"
    ]


def test_large_graphs_and_groups_are_reasons():
    def layers(x, w):
        for _ in range(101):
            x = ops.relu(x @ w)
        return x

    front = search(trace(layers, (8, 8), (8, 8)), LINE, H200_NODE, ["time"], engine="exact")
    assert not front.is_exact
    reason = (
        "rewrites were tried kind by kind, and fusions only at the end: "
        "the graph has more than 200 applications"
    )
    assert reason in front.reasons
    assert any("equal layers are decided together" in reason for reason in front.reasons)


def test_stored_inputs_allow_a_proof_of_memory():
    """What is read is held while it is used, wherever a plan says that the input lies."""
    graph = trace(ops.relu, (16, 16), names=["x"])
    storage = {"x": Storage((16, 16), (4, 16), itemsize=4)}
    assert search(graph, LINE, objectives=["time"], storage=storage).is_exact
    front = search(graph, LINE, storage=storage)
    assert front.is_exact
    assert min(max(cost.peak) for cost in front.costs) == 2 * 16 * 16 * 4 // LINE.size
