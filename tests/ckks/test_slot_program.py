"""Slot programs: every instruction runs and counts, registers are released early, refusals."""

from collections import Counter

import numpy as np
import pytest
from tests.ckks.layers import conv_signature, simulator

from weft.ckks.bsgs import split
from weft.ckks.linear import linear
from weft.ckks.lower import lower
from weft.ckks.packing import Packing
from weft.ckks.slot_program import (
    OperationCounts,
    SlotProgram,
    SlotProgramBuilder,
    SlotValues,
    count,
    execute,
    last_uses,
)
from weft.errors import WeftError


def test_every_instruction_runs_and_counts():
    plain, builder, backend = SlotValues(np.full(8, 3.0)), SlotProgramBuilder(2), simulator(8, 3)
    product = builder.rescale(builder.mul(0, 1))
    difference = builder.sub(product, builder.rotate(product, 1))
    scaled = builder.rescale(builder.mul_plain(builder.add_plain(difference, plain), plain))
    total = builder.add(scaled, builder.negate(builder.adjust(0, backend.parameters, 3, 1)))
    program = builder.program([builder.drop(total, 0)])
    x, y = np.arange(8.0), np.arange(8.0) - 3
    inputs = [backend.encrypt(x), backend.encrypt(y)]
    before = backend.counters.copy()
    (out,) = execute(program, backend, inputs)
    expected = (x * y - np.roll(x * y, -1) + 3) * 3 - x
    counted = count(program)
    assert counted == backend.counters - before
    assert np.abs(backend.decrypt(out) - expected).max() < 1e-9
    assert (counted.levels, counted.live, counted.keys) == (2, 4, {1})
    assert counted == OperationCounts(
        plain_products=2, products=1, rescales=3, additions=3, plain_additions=1, drops=2,
        rotations_by_step={1: 1},
    )  # fmt: skip


def layer(keys=None):
    packing = Packing.tiled((16, 4, 4), 64)
    line = conv_signature((1, 16, 4, 4), (16, 16, 3, 3), padding=(1, 1, 1, 1))
    linear_map = linear(line, packing, packing, weight=1)
    diagonal_split = split(linear_map, keys)
    return linear_map, diagonal_split, lower(linear_map, diagonal_split, [np.ones((16, 16, 3, 3))])


@pytest.mark.parametrize("keys", [None, 5])
def test_registers_are_written_once_and_released_after_their_last_use(keys):
    linear_map, diagonal_split, program = layer(keys)
    written, released = set(range(linear_map.inputs)), set()
    uses = last_uses((each.operands for each in program.instructions), program.outputs)
    for instruction, ended in zip(program.instructions, uses, strict=True):
        assert instruction.out not in written
        assert released.isdisjoint(instruction.operands)
        assert set(ended) <= set(instruction.operands)
        written.add(instruction.out)
        released |= set(ended)
    assert written - released == set(program.outputs)
    babies = sum(map(len, diagonal_split.babies)) + linear_map.inputs
    assert babies < count(program).live <= babies + linear_map.outputs + 4


def test_the_outer_product_of_giants_holds_few_sums_in_a_chain():
    packing = Packing.vector(64, 64)
    line = conv_signature((1, 64, 1, 1), (64, 64, 1, 1))
    linear_map = linear(
        line, packing.reshaped((1, 64, 1, 1)), packing.reshaped((1, 64, 1, 1)), weight=1
    )
    weights = [np.ones((64, 64, 1, 1))]
    direct = count(lower(linear_map, split(linear_map), weights))
    chained = count(lower(linear_map, split(linear_map, 2), weights))
    assert direct.rotations == chained.rotations == 14
    assert chained.live <= direct.live


def test_programs_follow_each_other():
    linear_map, _, program = layer()
    builder = SlotProgramBuilder(linear_map.inputs)
    middle = builder.inline(program, range(linear_map.inputs))
    both = builder.program(builder.inline(program, middle))
    one, two = count(program), count(both)
    assert two == one + one
    assert (two.rotations, two.levels) == (2 * one.rotations, 2)
    backend = simulator(64, 2)
    rows = [np.arange(64.0) / 64] * linear_map.inputs
    first = execute(program, backend, [backend.encrypt(row) for row in rows])
    twice = [backend.decrypt(each) for each in execute(program, backend, first)]
    results = execute(both, backend, [backend.encrypt(row) for row in rows])
    assert all((backend.decrypt(each) == row).all() for each, row in zip(results, twice))


def test_counts_add_up():
    one = OperationCounts(products=1, levels=1, live=9, rotations_by_step=Counter({1: 2}))
    two = OperationCounts(levels=1, live=4, rotations_by_step=Counter({1: 1, 4: 1}))
    both = one + two
    assert (both.rotations, both.levels, both.keys, both.live) == (4, 2, {1, 4}, 9)
    assert str(both) == "4 rotations, 1 product, 2 levels"
    assert str(OperationCounts()) == "nothing"
    assert both - two == one
    assert (one.repeated(3).rotations, one.repeated(3).products, one.repeated(3).levels) == (
        6,
        3,
        1,
    )
    copy = one.copy()
    one.rotations_by_step[7] += 1
    assert (copy.rotations, one.rotations) == (2, 3)


def test_refusals():
    with pytest.raises(WeftError, match="a program of 2 ciphertexts is given 0"):
        execute(SlotProgram(2, (0,), ()), simulator(8), [])
    with pytest.raises(WeftError, match="a program of 2 ciphertexts is given 1"):
        SlotProgramBuilder(1).inline(SlotProgram(2, (0,), ()), [0])
