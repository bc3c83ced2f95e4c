"""Random programs on sharded tensors, eagerly and as plans, against NumPy."""

from collections import Counter

import numpy as np
from tests.runtime.programs import Maker, run_steps, sometimes_elsewhere
from tests.runtime.tensors import random_mesh, random_spec, scattered
from tests.runtime.test_eager import agree
from tests.runtime.user_programs import user_plan
from tests.trials import EXAMPLES, FULL, trials

from weft import Plan, communication, propagate, run, trace
from weft.lang.graph_json import from_json, to_json

PROGRAMS = trials(1000)
"""Of each kind: 100 in `make test`, 1,000 in `make test-all`."""
USER_PROGRAMS = trials(2000) if EXAMPLES >= FULL else 20


def test_eager_programs_agree_with_numpy():
    for seed in range(PROGRAMS):
        program = Maker(seed, 1 + seed % 6)
        rng = np.random.default_rng(seed)
        mesh = random_mesh(rng)
        tensors = [scattered(rng, array, mesh) for array in program.inputs]
        with communication() as moved:
            found = run_steps(program, tensors, sometimes_elsewhere(rng, mesh))
        for place, output in zip(program.outputs, found):
            assert agree(output, program.values[place]), f"seed {seed}"
        assert moved.sent == moved.received


def planned(seed, mesh=None):
    """A program traced, with random shardings on its inputs."""
    program = Maker(seed, 1 + seed % 6)
    rng = np.random.default_rng(seed)
    mesh = mesh or random_mesh(rng)
    names = [f"x{n}" for n in range(len(program.inputs))]
    specs = {
        name: random_spec(rng, mesh, array.shape, monoids=())
        for name, array in zip(names, program.inputs)
    }
    graph = trace(
        lambda *symbols: run_steps(program, symbols),
        *program.inputs,
        names=names,
        meshes=[mesh],
        shardings=specs,
    )
    return program, graph, dict(zip(names, program.inputs))


def held(plan, moved):
    """The bytes that were counted on each cell, in rank order."""
    return tuple(moved.peaks[plan.mesh.device(rank)] for rank in range(plan.mesh.size))


def check_run(seed, program, plan, inputs):
    """A plan is verified and run: values as NumPy's, bytes and memory as predicted."""
    plan.verify()
    with communication() as moved:
        outputs = run(plan, inputs)
    for place, output, spec in zip(program.outputs, outputs, plan.outputs):
        assert agree(output, program.values[place]), f"seed {seed}\n{plan.graph}\n{plan}"
        assert output.spec == spec
    counted = np.zeros(plan.mesh.size, int)
    for movement in moved.movements:
        counted += movement.received
    assert tuple(counted) == plan.received, f"seed {seed}\n{plan}"
    assert held(plan, moved) == plan.peak, f"seed {seed}\n{plan}"


def test_planned_programs_agree_with_numpy_and_with_their_prediction():
    for seed in range(PROGRAMS):
        program, graph, inputs = planned(seed)
        check_run(seed, program, Plan.of(propagate(graph)), inputs)


def test_programs_of_users_agree_with_numpy_and_with_their_prediction():
    """Monoids, rewrites and random numbers of a user's, in plans of all kinds."""
    used = Counter()
    for seed in range(USER_PROGRAMS):
        program, plan, inputs, rewrites = user_plan(seed)
        check_run(seed, program, plan, inputs)
        used.update(rewrites)
    assert used["searched"]
    assert len(used) > 5


def test_traced_programs_survive_json():
    for seed in range(50):
        _, graph, inputs = planned(seed)
        again = from_json(to_json(graph))
        assert again == graph
        for one, two in zip(run(propagate(graph), inputs), run(propagate(again), inputs)):
            assert agree(one, two)
