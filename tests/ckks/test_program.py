"""Programs: every step runs and counts, registers die early, what is refused."""

import numpy as np
import pytest
from tests.ckks.layers import conv_signature, simulator

from weft.ckks.bsgs import split
from weft.ckks.linear import linear
from weft.ckks.lower import lower
from weft.ckks.packing import Packing
from weft.ckks.plaintext import Slots
from weft.ckks.program import (
    Add,
    AddPlain,
    Adjust,
    Drop,
    Free,
    Mul,
    MulPlain,
    Program,
    Rescale,
    Rotate,
    Sub,
    count,
    execute,
    then,
)
from weft.errors import WeftError


def test_every_step_runs_and_counts():
    plain = Slots(np.full(8, 3.0))
    steps = [
        *(Mul(2, 0, 1), Rescale(3, 2), Rotate(4, 3, 1), Sub(5, 3, 4), AddPlain(6, 5, plain)),
        *(MulPlain(7, 6, plain), Rescale(8, 7), Adjust(9, 0, 1), Add(10, 8, 9), Drop(11, 10, 0)),
    ]
    program = Program(2, (11,), lambda: steps)
    backend = simulator(8, 3)
    x, y = np.arange(8.0), np.arange(8.0) - 3
    inputs = [backend.encrypt(x), backend.encrypt(y)]
    (out,) = execute(program, backend, inputs)
    expected = (x * y - np.roll(x * y, -1) + 3) * 3 + x
    assert np.abs(backend.decrypt(out) - expected).max() < 1e-9
    cost, counters = count(program), backend.counters
    assert (cost.rotations, cost.plain_products, cost.products) == (1, 2, 1)
    assert (counters.rotations, counters.plain_products, counters.products) == (1, 2, 1)
    assert (cost.rescales, counters.rescales, cost.levels, cost.keys) == (3, 3, 2, {1})
    assert (cost.additions, cost.plain_additions, cost.live) == (2, 1, 12)
    assert (counters.additions, counters.plain_additions) == (2, 1)


def layer(keys=None):
    packing = Packing.tiled((16, 4, 4), 64)
    line = conv_signature((1, 16, 4, 4), (16, 16, 3, 3), padding=(1, 1, 1, 1))
    found = linear(line, packing, packing, weight=1)
    parted = split(found, keys)
    return found, parted, lower(found, parted, [np.ones((16, 16, 3, 3))])


@pytest.mark.parametrize("keys", [None, 5])
def test_registers_are_written_once_and_die_with_their_last_use(keys):
    found, parted, program = layer(keys)
    last, written, freed = {}, set(range(found.inputs)), {}
    for time, step in enumerate(program.steps()):
        if isinstance(step, Free):
            freed[step.a] = time
            continue
        assert step.out not in written
        written.add(step.out)
        for register in (step.a, *([step.b] if isinstance(step, Add) else [])):
            assert register not in freed
            last[register] = time
    assert written - set(freed) == set(program.outputs)
    assert all(freed[register] - last[register] in (1, 2) for register in freed)
    babies = sum(map(len, parted.babies)) + found.inputs
    assert babies < count(program).live <= babies + found.outputs + 4


def test_the_outer_product_of_giants_holds_few_sums_in_a_chain():
    packing = Packing.vector(64, 64)
    line = conv_signature((1, 64, 1, 1), (64, 64, 1, 1))
    found = linear(line, packing.reshaped((1, 64, 1, 1)), packing.reshaped((1, 64, 1, 1)), weight=1)
    weights = [np.ones((64, 64, 1, 1))]
    direct = count(lower(found, split(found), weights))
    chained = count(lower(found, split(found, 2), weights))
    assert direct.rotations == chained.rotations == 14
    assert chained.live <= direct.live


def test_programs_follow_each_other():
    found, _, program = layer()
    both = then(program, program)
    one, two = count(program), count(both)
    assert (two.rotations, two.levels) == (2 * one.rotations, 2)
    backend = simulator(64, 2)
    rows = [np.arange(64.0) / 64] * found.inputs
    first = execute(program, backend, [backend.encrypt(row) for row in rows])
    twice = [backend.decrypt(each) for each in execute(program, backend, first)]
    made = execute(both, backend, [backend.encrypt(row) for row in rows])
    assert all((backend.decrypt(each) == row).all() for each, row in zip(made, twice))


def test_what_is_refused():
    with pytest.raises(WeftError, match="a program of 2 ciphertexts is given 0"):
        execute(Program(2, (0,), list), simulator(8), [])
