"""Fused operators: the same values, the same boxes, and nothing in between."""

import numpy as np
import pytest
from tests.runtime.programs import Maker, run_steps
from tests.runtime.tensors import random_mesh, random_spec
from tests.runtime.test_eager import agree
from tests.trials import trials

from weft import DeviceMesh, Plan, WeftError, ops, propagate, run, trace
from weft.lang.fusion import fusable, fuse
from weft.lang.graph_json import from_json, to_json
from weft.runtime import validate

PROGRAMS = trials(150)


def fused_all(graph, rng):
    """The graph with as much fused as can be, in a random order."""
    while names := fusable(graph):
        graph = fuse(graph, names[int(rng.integers(len(names)))])
    return graph


def test_random_programs_fused_agree_with_numpy():
    fused = 0
    for seed in range(PROGRAMS):
        program, rng = Maker(seed, 2 + seed % 5), np.random.default_rng(seed)
        mesh = random_mesh(rng)
        names = [f"x{n}" for n in range(len(program.inputs))]
        specs = [random_spec(rng, mesh, array.shape, monoids=()) for array in program.inputs]
        graph = trace(
            lambda *symbols, program=program: run_steps(program, symbols),
            *program.inputs,
            names=names,
            meshes=[mesh],
            shardings=dict(zip(names, specs)),
        )
        together = fused_all(graph, rng)
        fused += len(graph.applications) - len(together.applications)
        assert from_json(to_json(together)) == together
        plan = Plan.of(propagate(together))
        plan.verify()
        outputs = run(plan, dict(zip(names, program.inputs)))
        for place, output in zip(program.outputs, outputs):
            assert agree(output, program.values[place]), f"seed {seed}\n{graph}\n{together}"
    assert fused > PROGRAMS


def block(x, w, b):
    return ops.relu(ops.linear(x, w, b))


def test_linear_and_relu_are_one_operator():
    """The last step of seed 004's sequence."""
    graph = fuse(trace(block, (8, 16), (16, 4), (4,)), "linear")
    (application,) = graph.applications
    assert application.operator == "linear=>relu"
    assert graph.values["relu"].shape == (8, 4)
    operator = graph.operators.find("linear=>relu")
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape) for shape in ((8, 16), (16, 4), (4,))]
    tried = validate(operator, arrays, application.attributes, trials=20)
    assert tried.boxes > 40


def test_linear_operators_may_be_cut_along_the_reduction():
    """A bias added to a product counts once; a rectifier needs the whole sum."""
    line = fuse(trace(lambda x, w, b: x @ w + b, (8, 16), (16, 4), (4,)), "matmul").signatures[0]
    assert dict(line.notation.reduced) == {"k": "sum"}
    assert line.notation.once == {2}
    line = fuse(trace(block, (8, 16), (16, 4), (4,)), "linear").signatures[0]
    assert "k" in line.fixed


def test_pointwise_into_a_convolution_reads_halos():
    graph = trace(
        lambda x, k: ops.convolve(ops.relu(x), k, padding=(1,)),
        (1, 2, 12),
        (3, 2, 3),
        meshes=[DeviceMesh("m", (4,), ("x",))],
        shardings={"x": '<@m, [{}, {}, {"x"}]>'},
    )
    together = fuse(graph, "relu")
    assert "y0+u0-1" in str(together.signatures[0])
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(1, 2, 12)), "k": rng.normal(size=(3, 2, 3))}
    inputs = {name: array.astype("float32") for name, array in inputs.items()}
    (one,), (two,) = run(propagate(graph), inputs), run(propagate(together), inputs)
    assert np.allclose(one, two, atol=1e-6)


def test_errors():
    graph = trace(lambda x: (ops.exp(x), ops.exp(x) + x), (4,))
    with pytest.raises(WeftError, match="nothing is not computed and used exactly once"):
        fuse(graph, "nothing")
    with pytest.raises(WeftError, match="exponential is not computed and used exactly once"):
        fuse(graph, "exponential")
    kept = trace(lambda x: (y := ops.exp(x), y + 1), (4,))
    with pytest.raises(WeftError, match="exponential is used elsewhere"):
        fuse(kept, "exponential")
    chain = fuse(trace(lambda x: -ops.exp(abs(x)), (4,)), "exponential")
    with pytest.raises(WeftError, match="exponential=>negate is already fused"):
        fuse(chain, "abs")
    assert fusable(chain) == []
