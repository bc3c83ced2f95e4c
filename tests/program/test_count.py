"""Bytes and memory of programs, against what runs count and against every single cell."""

import numpy as np
import pytest
from tests.program.random_plans import (
    Planner,
    RandomGraph,
    random_mesh,
    random_storage,
    run_program,
)
from tests.trials import trials

from weft import DeviceMesh, Plan, communication, propagate, trace
from weft.program import Branch, Route, Transfer
from weft.program.count import _Memory
from weft.program.messages import messages

PROGRAMS = trials(150)


def random_programs():
    """Random programs; a third of them read from storage and write to it."""
    for seed in range(PROGRAMS):
        graph = RandomGraph(seed)
        rng = np.random.default_rng(seed + 2 * 10**6)
        plan = Planner(rng, random_mesh(rng)).plan(graph.graph)
        yield graph, plan.program_with(random_storage(rng, plan) if seed % 3 == 0 else {})


def measured(graph, program):
    """The bytes that each cell receives in a run, and the most that it holds."""
    with communication() as moved:
        run_program(program, graph.inputs)
    cells = program.cells
    received = [sum(m.received[rank] for m in moved.movements) for rank in range(cells.size)]
    peak = [moved.peaks.get(cells.device(rank), 0) for rank in range(cells.size)]
    return tuple(received), tuple(peak)


def test_a_run_moves_and_holds_what_is_counted():
    exact = 0
    for graph, program in random_programs():
        received, peak = measured(graph, program)
        count = program.count
        has_branch = any(isinstance(each, Branch) for each in program.walk())
        if not has_branch:
            assert count.assumed == ()
            assert count.received_by_cell == received
            assert count.peak == peak
            exact += 1
        else:
            assert all(map(int.__ge__, count.peak, peak))
            if not count.assumed:
                assert count.received_by_cell == received
    assert exact > PROGRAMS // 3


def test_classes_of_cells_agree_with_every_cell():
    ragged = 0
    for _, program in random_programs():
        count, cells = program.count, program.cells
        every = list(cells.coordinates())
        assert count.peak == tuple(_Memory(program, at).peak_of_main() for at in every)
        assert [max(m.held for m in count.moments(at)) for at in every] == list(count.peak)
        for transfer in program.walk():
            if isinstance(transfer, Transfer):
                found = received_one_by_one(program, transfer)
                assert list(count.classes.expand(count.received(transfer))) == found
                assert count.total(transfer) == sum(found)
        ragged += len(count.classes.counts) > 1
        cell, text = count.busiest()
        assert count.peak[cell] == max(count.peak)
        assert text
    assert ragged > PROGRAMS // 5


def received_one_by_one(program, transfer):
    """The bytes that each cell receives in a transfer, message by message."""
    source, result = (program.buffers[n] for n in (transfer.source, transfer.result))
    cells = program.cells
    received = dict.fromkeys(map(cells.device, range(cells.size)), 0)
    for message in messages(Route.of(transfer, source.layout, result.layout)):
        if message.sender != message.receiver:
            received[message.receiver] += message.box.size * source.itemsize
    return list(received.values())


@pytest.mark.parametrize("shape", [(64, 64), (63, 64), (61, 3)])
def test_few_classes_on_a_large_mesh(shape):
    """Cost grows with the program: full, short and empty blocks, not 4,096 cells."""
    mesh = DeviceMesh("m", (64, 64), ("x", "y"))
    graph = trace(
        lambda a, b: (a @ b).sum(0),
        shape,
        (shape[1], 32),
        meshes=[mesh],
        shardings={"a": '<@m, [{"x"}, {"y"}]>'},
    )
    count = Plan.of(propagate(graph)).program.count
    assert len(count.classes.representatives) <= 9
    assert sum(count.classes.counts) == 4096
    assert len(count.peak) == len(count.received_by_cell) == 4096


def test_a_loop_counts_as_often_as_it_runs():
    for _, program in random_programs():
        for each in program.count.executed:
            body = program.bodies[each.body]
            assert body.instructions[each.place] is each.instruction
            assert each.times >= 1
            assert (each.inside == "") == (each.body == 0)
