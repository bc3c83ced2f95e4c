"""Exact fronts compared with all plans of all graphs that rewrites and fusions lead to.

The graphs come from applying every rewrite and every fusion to whole graphs, the plans from all
ways to cut index spaces and arrays, and their costs from `estimate`: nothing here is the search's.
"""

from itertools import islice, product
from random import Random

from tests.plan.searching.small import CUBE, GRID, LINE, machine
from tests.plan.searching.test_claim import THREE, VALUES, plans_of
from tests.trials import EXAMPLES, FEWEST, FULL, trials

from weft import DeviceMesh, Machine, estimate, ops, search, trace
from weft.lang.alternatives import Alternatives
from weft.lang.fusion import fusable, fuse
from weft.lang.rewrite import shipped_rewrites
from weft.plan.machines import H200_NODE
from weft.plan.searching.pareto import pareto_front

GRAPHS = trials(500) if EXAMPLES >= FULL else FEWEST
"""Random graphs of which all plans are enumerated: 500 in `make test-all`."""
MOST_GRAPHS, MOST_PLANS = 60, 400
OBJECTIVES = ("time", "peak_memory", "bytes")


def random_graph(seed):
    """A graph of one to three operators, of which several can be rewritten or fused."""
    rng = Random(seed)
    shape = rng.choice([(4,), (1, 4), (4, 1), (4, 4), (3, 4), (6, 2)])
    count = rng.choice([1, 1, 2, 2, 3])

    def body(x, w, b):
        values = [x]
        for _ in range(count):
            one = rng.choice(values[-2:])
            kind = rng.randrange(8)
            last = len(one.shape) - 1
            if kind == 0 and one.shape and one.shape[-1] == w.shape[0]:
                made = ops.linear(one, w, b) if rng.random() < 0.5 else one @ w
            elif kind == 1 and one.shape and one.shape[-1] == b.shape[0]:
                made = one + b
            elif kind == 2:
                made = ops.relu(one)
            elif kind == 3 and one.shape:
                made = one.sum(last)
            elif kind == 4 and one.shape:
                made = one.max(rng.randrange(len(one.shape)), keepdims=True)
            elif kind == 5 and one.shape:
                made = ops.softmax(one)
            elif kind == 6:
                made = one * rng.choice([v for v in values if v.shape == one.shape])
            else:
                made = -one
            values.append(made)
        return tuple(values[-2:]) if rng.random() < 0.2 and count > 1 else values[-1]

    size = shape[-1]
    mesh = rng.choice([LINE, LINE, THREE, GRID, CUBE])
    return trace(body, shape, (size, size), (size,), names=["x", "w", "b"]), mesh, machine(rng)


def alike(graph):
    """A graph without the names of its values, and without the order of its applications."""
    names = {value.name: value.name for value in graph.inputs}
    for application in graph.applications:
        operands = ", ".join(names[name] for name in application.operands)
        text = f"{application.operator}({operands}; {application.attributes})"
        names |= {name: f"{text}.{n}" for n, name in enumerate(application.results)}
    return tuple(sorted(names.values())), tuple(names[name] for name in graph.outputs)


def closure(graph, rewrites):
    """All graphs that rewrites and fusions lead to; None if there are too many."""
    graphs = {alike(graph): graph}
    queue = [graph]
    for one in queue:
        rewritten = (r.apply(one, match.root) for r in rewrites for match in r.matches(one))
        fused = (fuse(one, name) for name in fusable(one))
        for new in (*rewritten, *fused):
            if alike(new) not in graphs:
                graphs[alike(new)] = new
                queue.append(new)
        if len(graphs) > MOST_GRAPHS:
            return None
    return graphs


def test_alternatives_are_all_rewritten_and_fused_graphs():
    compared = 0
    for seed in range(4 * GRAPHS):
        graph, mesh, _ = random_graph(seed)
        rewrites = shipped_rewrites(mesh.size)
        graphs = closure(graph, rewrites)
        if graphs is None:
            continue
        found = Alternatives.of(graph, rewrites)
        assert not found.reasons
        chosen = [alike(found.chosen(a.application for a in ways)) for ways in found.graphs()]
        assert len(chosen) == len(set(chosen)), f"seed {seed}"
        assert set(chosen) == set(graphs), f"seed {seed}"
        compared += 1
    assert compared > GRAPHS


def every_plan(graph, mesh, rates):
    """All plans of all graphs; None if there are too many."""
    graphs, plans = closure(graph, shipped_rewrites(mesh.size)), []
    for one in graphs.values() if graphs else ():
        more = plans_of(one, mesh, rates, MOST_PLANS - len(plans))
        if more is None:
            return None
        plans += more
    return plans or None


def test_exact_fronts_are_those_of_all_plans():
    compared = rewritten = 0
    for seed in range(10 * GRAPHS):
        graph, mesh, rates = random_graph(seed)
        plans = every_plan(graph, mesh, rates)
        if plans is None:
            continue
        rng = Random(seed)
        objectives = rng.choice([OBJECTIVES, OBJECTIVES, ("time",), ("peak_memory", "bytes")])
        front = search(graph, mesh, rates, objectives)
        assert front.is_exact, f"seed {seed}: {front}"
        costs = [estimate(plan, rates) for plan in plans]
        points = [tuple(float(f"{VALUES[n](cost):.9g}") for n in objectives) for cost in costs]
        wanted = [tuple(point) for point, _ in pareto_front((p, None) for p in points)]
        found = [tuple(float(f"{x:.9g}") for x in point) for point in front.points]
        assert sorted(found) == sorted(wanted), f"seed {seed}: {objectives}\n{graph}\n{front}"
        compared += 1
        rewritten += any(len(plan.graph.applications) > len(graph.applications) for plan in front)
        if compared == GRAPHS:
            break
    assert compared == GRAPHS, compared


def test_few_choices_are_searched_for_many_graphs():
    """Four softmaxes can each be staged, and then fused in several ways: each by itself."""
    graph = trace(
        lambda a, b, c, d: ops.softmax(a) + ops.softmax(b) + ops.softmax(c) + ops.softmax(d),
        *[(4, 64)] * 4,
    )
    found = Alternatives.of(graph, shipped_rewrites(8))
    assert len(list(found.in_order())) < 100
    assert len(list(islice(found.graphs(), 10_000))) == 10_000


def test_exactly_one_of_four_softmaxes_is_staged():
    """Only the one with a single row gains from stages; every subset of stages is slower."""
    rates = Machine(latency=1e-6, bandwidth=1e10, flops={"float32": 1e12}, memory_bandwidth=1e11)
    mesh = DeviceMesh("m", (8,), ("x",))
    graph = trace(
        lambda *arrays: tuple(map(ops.softmax, arrays)), (64, 4096), (1, 1 << 20), *[(64, 4096)] * 2
    )
    front = search(graph, mesh, rates, ["time"])
    assert front.is_exact
    (plan,) = front
    whole = [a.results[0] for a in plan.graph.applications if "softmax" in a.operator]
    assert whole == [name for n, name in enumerate(graph.outputs) if n != 1]
    staged = next(r for r in shipped_rewrites(mesh.size) if r.name == "softmax in stages")
    times = {}
    for subset in product((False, True), repeat=4):
        one = graph
        for name in (name for name, is_staged in zip(graph.outputs, subset) if is_staged):
            one = staged.apply(one, name)
        (seconds,) = search(one, mesh, rates, ["time"], rewrite=False, engine="descend").points[0]
        times[subset] = seconds
    assert min(times, key=times.get) == (False, True, False, False)
    assert front.points[0][0] <= min(times.values()) < 0.7 * times[False, False, False, False]


def test_blocks_of_a_convolution_are_not_cut_again():
    graph = trace(
        lambda x, k: ops.relu(ops.convolve(x, k, padding=(1, 1))),
        (2, 4, 16, 16),
        (4, 4, 3, 3),
    )
    front = search(graph, LINE, H200_NODE, ["time"])
    assert front.is_exact, front.reasons


def test_pointwise_operators_are_forwarded_by_default():
    """Before a concatenation they are fused with what computes their operands."""
    rates = Machine(latency=1e-7, bandwidth=1e11, flops={"float32": 1e9}, memory_bandwidth=1e12)
    graph = trace(lambda x, y: ops.tanh(ops.concatenate([x @ x, y], 0)), *[(64, 64)] * 2)
    front = search(graph, LINE, rates, ["time"])
    assert front.is_exact, front.reasons
    (plan,) = front
    operators = [a.operator for a in plan.graph.applications]
    assert operators == ["matmul=>tanh", "tanh=>concatenate@1"]
    slower = search(graph, LINE, rates, ["time"], rewrite=False)
    assert front.points[0][0] < slower.points[0][0]
