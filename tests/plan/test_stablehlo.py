"""Whole programs: StableHLO read, propagated by Weft and by Shardy, compared value by value."""

import os

import pytest
from tests.plan.programs import PASSES, run_pass
from tests.plan.stablehlo_programs import Writer

from weft import ShardingSpec
from weft.interop.stablehlo import read
from weft.plan import propagate

PROGRAMS = int(os.environ.get("WEFT_FUZZ", "0")) * 5 or 500
"""For each strategy: 500 in `make test`, 25,000 in `make fuzz`."""


def says_shardy(text, strategy, found):
    """The shardings after Shardy's pass, by value; open everywhere where it says nothing."""
    shardings = read(run_pass(text, PASSES[strategy])).shardings
    for name, spec in found.specs.items():
        free = f"<@m, [{', '.join(['{?}'] * spec.ndim)}]>"
        yield name, str(ShardingSpec.parse(shardings.get(name, free), found.mesh))


@pytest.mark.parametrize("strategy", PASSES)
def test_shardings_are_those_of_shardy(strategy):
    for seed in range(PROGRAMS):
        text = Writer(seed).text(1 + seed % 12, priorities=strategy == "user_priority")
        found = propagate(read(text), strategy)
        ours = {name: str(spec) for name, spec in found.specs.items()}
        assert ours == dict(says_shardy(text, strategy, found)), f"seed {seed}\n{text}"
