"""Propagation agrees with Shardy: random programs of random rules, all four strategies."""

import pytest
from tests.plan.programs import PASSES, program_text, random_program, shardy_says, weft_says
from tests.trials import trials

from weft import DeviceMesh, LayoutError, ShardingSpec

PROGRAMS = trials(500)
"""For each strategy: 500 in `make test`, 25,000 in `make fuzz`."""


def is_sound(sizes, shardings):
    """Whether the parts of axes in all shardings nest; those that Shardy finds may not."""
    axes = ", ".join(f'"a{axis}"={size}' for axis, size in enumerate(sizes))
    mesh = DeviceMesh.parse(f"@m = <[{axes}]>")
    try:
        return all(ShardingSpec.parse(text, mesh) for text in shardings if text)
    except LayoutError as error:
        if "do not nest" not in str(error):
            raise
        return False


@pytest.mark.parametrize("strategy", PASSES)
def test_shardings_equal_shardy(strategy):
    moved = refused = 0
    for seed in range(PROGRAMS):
        program = random_program(seed, nodes=1 + seed % 8, priorities=strategy == "user_priority")
        theirs, ours = shardy_says(program, strategy), weft_says(program, strategy)
        if ours != theirs and not is_sound(program.mesh, [*theirs[0], *theirs[1]]):
            refused += 1
            continue
        assert ours == theirs, f"seed {seed}\n{program_text(program)}"
        moved += sum(map(bool, theirs[0])) > sum(s is not None for s in program.shardings)
    assert refused <= PROGRAMS // 1000
    assert moved > PROGRAMS // 3, "most programs have something to propagate"
