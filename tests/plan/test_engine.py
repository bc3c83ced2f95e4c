"""Propagation agrees with Shardy: random programs of random rules, all four strategies."""

import os

import pytest
from tests.plan.programs import PASSES, program_text, random_program, shardy_says, weft_says

PROGRAMS = int(os.environ.get("WEFT_FUZZ", "0")) * 5 or 500
"""For each strategy: 500 in `make test`, 25,000 in `make fuzz`."""


@pytest.mark.parametrize("strategy", PASSES)
def test_shardings_are_those_of_shardy(strategy):
    moved = 0
    for seed in range(PROGRAMS):
        program = random_program(seed, nodes=1 + seed % 8, priorities=strategy == "user_priority")
        theirs, ours = shardy_says(program, strategy), weft_says(program, strategy)
        assert ours == theirs, f"seed {seed}\n{program_text(program)}"
        moved += sum(map(bool, theirs[0])) > sum(s is not None for s in program.shardings)
    assert moved > PROGRAMS // 3, "most programs have something to propagate"
