"""Task graphs compute what the plan says, move what the program counts, and are verified."""

from collections import Counter

import numpy as np
import pytest
from tests.runtime.test_programs import planned
from tests.trials import trials

from weft import DeviceMesh, Plan, ops, propagate, trace
from weft.program import Apply
from weft.runtime.cluster import TaskGraph
from weft.runtime.cluster.build import FAN_IN
from weft.runtime.cluster.tasks import Combined

PROGRAMS = trials(200)


def tasks_of(function, *shapes, mesh, shardings):
    graph = trace(function, *shapes, meshes=[mesh], shardings=shardings)
    tasks = TaskGraph.of(Plan.of(propagate(graph)))
    tasks.verify()
    return tasks


def applies(plan):
    return [(i.definition, i) for i in plan.program.walk() if isinstance(i, Apply)]


def buffers(plan):
    return plan.program.buffers


@pytest.fixture(scope="module")
def graphs():
    plans = (Plan.of(propagate(planned(seed)[1])) for seed in range(PROGRAMS))
    return [TaskGraph.of(plan) for plan in plans]


def test_every_box_of_an_application_is_computed_once_on_its_cell(graphs):
    for graph in graphs:
        plan = graph.plan
        computed = Counter(
            (step.application, task.cell, step.box) for task in graph.tasks for step in task.steps
        )
        wanted = {
            (number, plan.mesh.device(rank), box)
            for number, apply in applies(plan)
            for rank, box in enumerate(apply.index.boxes())
        }
        assert computed == Counter(wanted)


def test_inputs_are_read_by_one_task_of_each_cell_and_outputs_lie_as_the_program_says(graphs):
    for graph in graphs:
        plan, tasks = graph.plan, graph.tasks
        read = Counter((t.cell, name, box) for t in tasks for name, box in t.input_boxes())
        assert set(read.values()) <= {1}
        lies = {
            buffers(plan)[n].value: buffers(plan)[n].layout for n in plan.program.main.arguments
        }
        for cell, name, box in read:
            assert box in lies[name].boxes()[graph.ranks[cell]]
        for blocks, result in zip(graph.outputs, plan.program.main.results, strict=True):
            found, buffer = [tasks[b.task].blocks[b.place] for b in blocks], buffers(plan)[result]
            assert [block.value for block in found] == [buffer.value] * plan.mesh.size
            assert [block.box for block in found] == buffer.layout.boxes()
            assert [tasks[b.task].cell for b in blocks] == list(range(plan.mesh.size))


def test_tasks_read_blocks_that_exist_and_are_not_freed(graphs):
    for graph in graphs:
        alive, ended = set(), []
        for task in graph.tasks:
            assert set(task.needs) <= alive, task
            for read in task.block_uses():
                assert read.place < len(graph.tasks[read.task].blocks)
            alive.add(task.number)
            alive -= set(graph.ends[task.number])
            ended += graph.ends[task.number]
        assert len(ended) == len(set(ended))
        outputs = {block.task for blocks in graph.outputs for block in blocks}
        readers = {number for task in graph.tasks for number in task.needs}
        assert alive == outputs | (set(range(len(graph.tasks))) - readers)


def test_received_bytes_are_those_that_the_program_counts(graphs):
    for graph in graphs:
        assert graph.received == graph.plan.received, graph.plan
    assert sum(sum(graph.received) for graph in graphs) > 40 * PROGRAMS


def test_a_block_that_leaves_a_cell_is_the_only_one_of_its_task():
    """A task with two results has one of them cut out, so that the other does not move with it."""

    def program(x):
        largest, places = ops.topk(x, 2)
        return largest.sum(0), places

    graph = tasks_of(
        program,
        (8, 6),
        mesh='@m = <["x"=2]>',
        shardings={"x": '<@m, [{"x"}, {}]>'},
    )
    assert any(len(task.blocks) == 2 for task in graph.tasks)
    for task in graph.tasks:
        for read in task.block_uses():
            maker = graph.tasks[read.task]
            assert maker.cell == task.cell or len(maker.blocks) == 1


def part_counts(array):
    """Return how many parts each combination in an expression has."""
    if isinstance(array, Combined):
        yield len(array.parts)
    for inner in array if isinstance(array, tuple) else ():
        yield from part_counts(inner)


def test_many_parts_are_combined_in_a_tree():
    mesh = DeviceMesh("m", (20,), ("x",))
    graph = tasks_of(lambda x: x.sum(0), (40, 3), mesh=mesh, shardings={"x": '<@m, [{"x"}, {}]>'})
    found = [n for task in graph.tasks for array in task.arrays() for n in part_counts(array)]
    assert max(found) <= FAN_IN
    assert sum(task.kind == "combine" for task in graph.tasks) > 0
    assert graph.received == graph.plan.received


def test_cells_share_workers_in_blocks():
    mesh = DeviceMesh("m", (6,), ("x",), device_ids=(5, 4, 3, 2, 1, 0))
    graph = tasks_of(lambda x: x + x, (12,), mesh=mesh, shardings={"x": '<@m, [{"x"}]>'})
    assert [graph.worker(cell, 2) for cell in range(6)] == [1, 1, 1, 0, 0, 0]
    assert [graph.worker(cell, 4) for cell in (5, 4, 3, 2, 1, 0)] == [0, 0, 1, 2, 2, 3]
    assert [graph.worker(cell, 50) for cell in (5, 4, 3, 2, 1, 0)] == [0, 1, 2, 3, 4, 5]


def test_a_task_prints_its_kind_value_box_and_cell():
    graph = tasks_of(lambda x: x + x, (4,), mesh='@m = <["x"=2]>', shardings={"x": '<@m, [{"x"}]>'})
    assert str(graph.tasks[-1]) == "1: compute add [2:4] for add on cell 1"
    assert np.sum(graph.received) == 0
