"""The search for plans: time to a front, gap to the optimum, and comparison with random plans.

The training step is that of `benchmarks.transformer`, read from JAX without its annotations: the
search is given the graph, a mesh and a machine. The optimum is HiGHS' on the same decisions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

from examples.demo import transformer_block

from benchmarks.row import Row
from benchmarks.transformer import train_step_text
from weft import DeviceMesh, Machine, ops, search, trace
from weft.interop.stablehlo import read
from weft.lang import Graph
from weft.plan.machines import H200_NODE
from weft.plan.searching.bounds import ALL
from weft.plan.searching.build import build_problem
from weft.plan.searching.evolution import BatchEvaluator, evolutionary_search
from weft.plan.searching.integer_program import solve_integer_program
from weft.plan.searching.local_search import LocalSearch
from weft.plan.searching.pareto import Costs, hypervolume
from weft.plan.searching.problem import DecisionClasses, ObjectiveWeights, equivalence_classes

MESHES = {
    "2x4": DeviceMesh("m", (2, 4), ("a", "b")),
    "2x2x2": DeviceMesh("m", (2, 2, 2), ("a", "b", "c")),
}
MACHINE = Machine(
    latency=1e-6,
    bandwidth=50e9,
    flops={"float32": 60e12},
    memory_bandwidth=4e12,
    capacity=141e9,
)


def run(seconds: float) -> Iterator[Row]:
    """All rows; each may take about `seconds`, but for the large graphs."""
    yield from small_fronts()
    yield from block(3000 if seconds else 128)
    try:
        graph = bare(train_step_text(12 if seconds else 1))
    except ImportError:
        return
    for name, mesh in MESHES.items() if seconds else [("2x4", MESHES["2x4"])]:
        yield from train_step(name, graph, mesh)


def bare(text: str) -> Graph:
    """A program without the shardings that are written on it."""
    graph = read(text)
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        operators=graph.operators,
        dtypes={name: value.dtype for name, value in graph.values.items()},
    )


def small_fronts() -> Iterator[Row]:
    """The exact fronts of a wide MLP and of four operators, with rewrites and fusion."""
    graph = trace(lambda x, w, v: ops.relu(x @ w) @ v, (64, 8192), (8192, 32768), (32768, 8192))
    begin = time.perf_counter()
    front = search(graph, MESHES["2x4"], H200_NODE)
    taken = time.perf_counter() - begin
    assert front.is_exact
    yield Row("search/mlp-exact-front", taken, "s", len(front))
    four = trace(
        lambda x, w, v: ops.softmax(ops.relu(x @ w)) @ v, (256, 128), (128, 512), (512, 64)
    )
    for name, mesh in {"8": DeviceMesh("m", (8,), ("x",)), **MESHES}.items():
        begin = time.process_time()
        front = search(four, mesh, H200_NODE)
        taken = time.process_time() - begin
        assert front.is_exact
        yield Row(f"search/four-operators-{name}-exact-front", taken, "s", len(front))


def block(budget: int) -> Iterator[Row]:
    """The front of a transformer block compared with as many random plans as the search priced."""
    shapes = [(8, 512, 512), *[(512, 8, 64)] * 3, (8, 64, 512), (512, 2048), (2048, 512)]
    problem = build_problem(trace(transformer_block, *shapes), MESHES["2x4"], MACHINE)
    classes, rng = DecisionClasses(problem), Random(0)
    begin = time.perf_counter()
    local = LocalSearch(classes, ALL, rng)
    local.explore()
    for plans in evolutionary_search(classes, ALL, local.solutions, local.models, budget, rng):
        front = plans
    taken = time.perf_counter() - begin
    evaluate = BatchEvaluator(classes)
    ours = evaluate(front)[:, :3].tolist()
    random_plans = [[rng.randrange(count) for count in classes.sizes] for _ in range(budget)]
    theirs = evaluate(random_plans)[:, :3].tolist()
    worst = tuple(map(max, zip(*ours, *theirs)))
    yield Row("search/block-time-to-front", taken, "s", len(front))
    yield Row.against(
        "search/block-hypervolume",
        share_of(ours, worst),
        f"the best of {budget} random plans",
        share_of(theirs, worst),
        "of all there is",
        budget,
        "higher",
    )


def share_of(points: Sequence[Costs], worst: Sequence[float]) -> float:
    """Return the hypervolume of points as a fraction of the whole."""
    ones = [1.0] * len(worst)
    return hypervolume([[x / w if w else 0.0 for x, w in zip(p, worst)] for p in points], ones)


def train_step(name: str, graph: Graph, mesh: DeviceMesh) -> Iterator[Row]:
    """The fastest plan of a training step: time to find it, and gap to the optimum."""
    begin = time.perf_counter()
    front = search(graph, mesh, H200_NODE, ["time"])
    taken = time.perf_counter() - begin
    assert front.costs[0].fits
    yield Row(f"search/train-step-{name}-fastest", taken, "s", len(graph.applications))
    problem = build_problem(graph, mesh, H200_NODE)
    classes = DecisionClasses(problem, equivalence_classes(problem))
    local = LocalSearch(classes, ALL, Random(0))
    model = classes.weighted(ObjectiveWeights())
    ours = model.total(local.minimize())
    optimum = solve_integer_program(model, seconds=300)
    label = f"search/train-step-{name}-seconds"
    yield Row.against(label, ours * 1e3, "HiGHS' optimum", optimum.total * 1e3, "ms", 1)
