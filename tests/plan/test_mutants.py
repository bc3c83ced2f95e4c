"""Plans are verified for what they compute: whatever runs wrong is refused.

Random plans are accepted, and agree with NumPy. Then something in them is changed: operands,
operators, monoids, parts, placements, shardings of values and of what loops carry and capture,
steps of reshards, fetches, masks. A changed plan that is accepted must agree with NumPy, too.
"""

from collections import Counter

import numpy as np
from tests.plan.mutants import Mutator, Planner, Program, TooLongError, agrees, random_mesh
from tests.trials import trials

from weft import WeftError

PROGRAMS = trials(30)
MUTANTS = 10
"""Of each program: 300 in all in `make test`, 10,000 in `make fuzz`."""


def accepts(plan, graph):
    """Whether a plan is proved to compute a graph."""
    try:
        plan.verify(graph)
    except WeftError:
        return False
    return True


def outcome(program, plan):
    """What becomes of a plan: refused by its proof or by its run, right, or wrong."""
    if not accepts(plan, program.graph):
        return "refused"
    try:
        return "right" if agrees(program, plan) else "wrong"
    except WeftError:
        return "refused when run"
    except (ArithmeticError, LookupError, TypeError, ValueError, TooLongError) as error:
        return f"crashed: {error!r}"


def test_whatever_runs_wrong_is_refused():
    found, tried = Counter(), Counter()
    for seed in range(PROGRAMS):
        program = Program(seed)
        if not program.is_exact:
            continue
        rng = np.random.default_rng(seed + 10**6)
        mesh = random_mesh(rng)
        plan = Planner(rng, mesh).plan(program.graph)
        assert outcome(program, plan) == "right", f"seed {seed}\n{program.graph}\n{plan}"
        mutator = Mutator(rng, mesh)
        for number in range(MUTANTS):
            mutant = mutator.mutant(plan)
            if mutant is not None:
                changed, way = mutant
                what = outcome(program, changed)
                assert what in ("refused", "right", "refused when run"), (
                    f"seed {seed}, mutant {number}, {way}: {what}\n{program.graph}\n{changed}"
                )
                found[what] += 1
                tried[way.removeprefix("region: ")] += 1
    print(f"{found.total()} mutants of {PROGRAMS} plans: {dict(found)}")
    assert found["refused"] > 0.4 * found.total()
    assert len(tried) > 20
