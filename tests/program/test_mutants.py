"""Programs are verified for what they compute: whatever runs wrong is refused.

Random programs with loops and branches are accepted, and agree with NumPy. Then one thing is
changed in them: a transfer, an operand, a monoid, a mask, a layout, an order. A changed program
that is accepted must agree with NumPy, too. Every verdict is compared with that of a verifier that
enumerates all cells, messages and parts: it accepts whatever the symbolic one accepts.
"""

from collections import Counter

import numpy as np
from tests.program import enumerating
from tests.program.mutants import PlanMutator, ProgramMutator
from tests.program.random_plans import (
    MONOIDS,
    Planner,
    RandomGraph,
    TooLongError,
    agrees,
    random_mesh,
    random_storage,
)
from tests.runtime.monoids import MONOIDS_OF_USERS
from tests.runtime.user_programs import UserGraph
from tests.trials import trials

from weft import WeftError
from weft.lang.definition import define

PROGRAMS = trials(100, 1000)
MUTANTS = 10
"""Of each program and each plan: 100 of both in `make test`, 1,000 of both in `make test-all`."""


def random_programs(users=0.3):
    """Random graphs with random plans of them; numbers that are too large are left out.

    A share of them are programs of users: with their monoids and rewrites, and random numbers.
    """
    for seed in range(PROGRAMS):
        rng = np.random.default_rng(seed + 10**6)
        if rng.random() < users:
            graph = UserGraph(seed)
            yield seed, graph, graph.plan, rng
            continue
        graph = RandomGraph(seed)
        if graph.is_exact:
            mesh = random_mesh(rng)
            yield seed, graph, Planner(rng, mesh, MONOIDS).plan(graph.graph), rng


def monoids_of(graph):
    """The monoids that mutants of a graph's program may have."""
    return (*MONOIDS, *(m.name for m in MONOIDS_OF_USERS)) if define(graph).monoids else MONOIDS


def accepts(program, definition):
    """Whether a program is proved to compute a graph."""
    try:
        program.verify(definition)
    except WeftError:
        return False
    return True


def outcome(graph, program, definition, where):
    """What becomes of a program: refused or right; and whether the enumerating verifier agrees."""
    accepted = accepts(program, definition)
    one_by_one, reason = enumerating.accepts(program, definition)
    if not accepted:
        return "refused by the symbolic verifier only" if one_by_one else "refused"
    assert one_by_one, f"{where}: accepted, but {reason}\n{program}"
    try:
        is_right = agrees(graph, program)
    except (ArithmeticError, LookupError, TypeError, ValueError, TooLongError) as error:
        raise AssertionError(f"{where}: accepted, and crashed\n{program}") from error
    assert is_right, f"{where}: accepted, and wrong\n{program}"
    return "right"


def test_random_programs_are_accepted_and_right():
    for seed, graph, plan, _ in random_programs():
        assert outcome(graph, plan.program, define(graph.graph), seed) == "right"


def test_mutants_that_compute_something_else_are_refused():
    found, tried = Counter(), Counter()
    for seed, graph, plan, rng in random_programs():
        mutator, definition = ProgramMutator(rng, monoids_of(graph.graph)), define(graph.graph)
        for number in range(MUTANTS):
            mutant = mutator.mutant(plan.program)
            if mutant is not None:
                changed, change = mutant
                where = f"seed {seed}, mutant {number}, {change}"
                found[outcome(graph, changed, definition, where)] += 1
                tried[change] += 1
    print(f"{found.total()} mutants: {dict(found)}")
    assert found["refused"] > 0.4 * found.total()
    assert found["refused by the symbolic verifier only"] < 0.05 * found.total() + 2
    assert len(tried) > 15


def test_plans_that_compute_something_else_are_refused():
    """A changed plan is lowered, and verified against the graph that it was made for."""
    found, tried = Counter(), Counter()
    for seed, graph, plan, rng in random_programs():
        mutator = PlanMutator(rng, plan.mesh, monoids_of(graph.graph))
        definition = define(graph.graph)
        for number in range(MUTANTS):
            mutant = mutator.mutant(plan)
            if mutant is None:
                continue
            changed, change = mutant
            tried[change] += 1
            try:
                program = changed.program
            except WeftError:
                found["not lowered"] += 1
                continue
            where = f"seed {seed}, mutant {number}, {change}"
            found[outcome(graph, program, definition, where)] += 1
    print(f"{found.total()} mutants: {dict(found)}")
    assert found["refused"] + found["not lowered"] > 0.3 * found.total()
    assert found["refused by the symbolic verifier only"] < 0.05 * found.total() + 2
    assert len(tried) > 10


def test_programs_that_read_and_write_storage_are_accepted_and_right():
    read = written = removed = 0
    for seed, graph, plan, rng in random_programs():
        program = plan.program_with(random_storage(rng, plan))
        assert outcome(graph, program, define(graph.graph), seed) == "right"
        read, written = read + len(program.count.reads), written + len(program.count.writes)
        removed += sum(program.count.received_by_cell) < sum(plan.received)
    assert read > PROGRAMS // 4
    assert written > PROGRAMS // 4
    assert removed > PROGRAMS // 20


def test_mutants_that_read_or_write_something_else_are_refused():
    found, tried = Counter(), Counter()
    for seed, graph, plan, rng in random_programs():
        mutator, definition = ProgramMutator(rng, monoids_of(graph.graph)), define(graph.graph)
        mutator.for_storage()
        program = plan.program_with(random_storage(rng, plan, 0.9))
        for number in range(MUTANTS):
            mutant = mutator.mutant(program)
            if mutant is not None:
                changed, change = mutant
                where = f"seed {seed}, mutant {number}, {change}"
                found[outcome(graph, changed, definition, where)] += 1
                tried[change] += 1
    print(f"{found.total()} mutants: {dict(found)}")
    assert found["refused"] > 0.4 * found.total()
    assert found["refused by the symbolic verifier only"] < 0.05 * found.total() + 2
    assert len(tried) > 20
