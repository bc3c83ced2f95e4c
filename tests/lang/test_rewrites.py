"""Rewrites: another graph, the same values, however it is cut."""

import numpy as np
import pytest
from tests.runtime.cases import CASES
from tests.runtime.tensors import random_mesh, random_spec
from tests.runtime.test_eager import agree
from tests.runtime.test_validate import WITH_KERNELS
from tests.trials import trials

from weft import Plan, WeftError, ops, propagate, run, trace
from weft.lang.arithmetic import apply
from weft.lang.rewrite import REWRITES, Rewrite, rewrites_of

TRIALS = trials(12)
"""Applications of each rewrite: 12 in `make test`, 625 in `make fuzz`."""


def by_name(name):
    return next(rewrite for rewrite in REWRITES if rewrite.name == name)


def source(rewrite, rng):
    """A graph with the pattern of a rewrite in it, and arrays for its inputs."""
    if isinstance(rewrite.pattern[1], str):
        operator = rewrite.pattern[0]
        operands, said = transform(rng) if operator == "fft" else CASES[operator](rng)
        operands = [np.asarray(operand) for operand in operands]
        return trace(lambda *v: apply(operator, *v, **said), *operands), operands
    m, k, n = (int(x) for x in rng.integers(1, 7, 3))
    operands = [rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n)), rng.integers(-4, 5, n)]
    if rewrite.name == "matmul and add as linear":
        return trace(lambda x, w, b: x @ w + b, *operands), operands
    return trace(lambda x, w: ops.prod_of(x, w).sum(-1), *operands[:2]), operands[:2]


def transform(rng):
    """A transform along one dimension whose size has factors."""
    size, name = int(rng.choice([4, 6, 12, 16, 30])), str(rng.choice(["FFT", "IFFT"]))
    x = rng.normal(size=(3, size)) + 1j * rng.normal(size=(3, size))
    x = x.astype(str(rng.choice(["complex64", "complex128"])))
    return [x], {"fft_type": name, "fft_length": (size,)}


@pytest.mark.parametrize("name", [rewrite.name for rewrite in REWRITES])
def test_rewritten_graphs_make_the_same(name):
    rewrite, applied = by_name(name), 0
    for seed in range(TRIALS * 4):
        rng = np.random.default_rng(seed)
        graph, arrays = source(rewrite, rng)
        matches = list(rewrite.matches(graph))
        if not matches or applied == TRIALS:
            continue
        applied += 1
        again = rewrite.apply(graph, matches[0].root)
        assert again.values[graph.outputs[0]] == graph.values[graph.outputs[0]]
        mesh = random_mesh(rng)
        inputs = dict(zip((value.name for value in graph.inputs), arrays))
        found = []
        for each in (graph, again):
            shardings = {
                value.name: str(random_spec(rng, mesh, value.shape, monoids=()))
                for value in each.values.values()
                if rng.random() < 0.4
            }
            placed = trace_with(each, mesh, shardings)
            plan = Plan.of(propagate(placed))
            plan.verify()
            found.append(run(plan, inputs)[0])
        assert agree(*found), f"seed {seed}\n{graph}\n{again}"
    assert applied > TRIALS // 2


def trace_with(graph, mesh, shardings):
    from weft import Graph

    dtypes = {name: value.dtype for name, value in graph.values.items()}
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [str(mesh)],
        shardings,
        operators=graph.operators,
        dtypes=dtypes,
    )


def test_every_rewrite_is_about_operators_that_run():
    for rewrite in REWRITES:
        assert rewrite.pattern[0] in WITH_KERNELS
    assert [rewrite.name for rewrite in rewrites_of("softmax")] == ["softmax in stages"]


def test_values_with_other_uses_are_not_rewritten():
    graph = trace(lambda x, w, b: (y := x @ w, y + b), (4, 5), (5, 6), (6,))
    assert list(by_name("matmul and add as linear").matches(graph)) == []
    with pytest.raises(WeftError, match="matmul and add as linear cannot be applied to add"):
        by_name("matmul and add as linear").apply(graph, "add")


def test_a_wrong_rewrite_is_refused():
    wrong = Rewrite("wrong", ("relu", "x"), lambda v, _: v["x"].sum(0))
    graph = trace(ops.relu, (4, 5), names=["x"])
    with pytest.raises(WeftError, match=r"wrong replaces relu: float32\[4, 5\] by float32\[5\]"):
        wrong.apply(graph, "relu")
    nothing = Rewrite("nothing", ("relu", "x"), lambda v, _: v["x"])
    with pytest.raises(WeftError, match="must compute its value last"):
        nothing.apply(trace(lambda x: ops.relu(-x), (4,)), "relu")
