"""A plan as tasks: everything is made once, comes from one place, and moves as predicted."""

from collections import Counter

import numpy as np
import pytest
from tests.runtime.test_programs import planned
from tests.trials import trials

from weft import DeviceMesh, Plan, WeftError, ops, propagate, trace
from weft.lang import Application, Graph, Value
from weft.runtime.cluster import Embedding
from weft.runtime.cluster.weaving.source import Fold
from weft.runtime.cluster.weaving.travel import FAN

PROGRAMS = trials(200)


def embedded(function, *shapes, mesh, shardings):
    graph = trace(function, *shapes, meshes=[mesh], shardings=shardings)
    return Embedding.of(Plan.of(propagate(graph)))


@pytest.fixture(scope="module")
def embeddings():
    plans = (Plan.of(propagate(planned(seed)[1])) for seed in range(PROGRAMS))
    return [Embedding.of(plan) for plan in plans]


def test_every_box_of_an_application_is_computed_once_on_its_cell(embeddings):
    for embedding in embeddings:
        plan = embedding.plan
        computed = Counter(
            (stage.application, task.cell, stage.box)
            for task in embedding.tasks
            for stage in task.stages
        )
        wanted = {
            (number, plan.mesh.device(rank), box)
            for number, placed in enumerate(plan.placed)
            for rank, box in enumerate(placed.boxes)
        }
        assert computed == Counter(wanted)


def test_every_input_is_read_once_on_each_cell_and_every_output_lies_as_it_is_wanted(embeddings):
    for embedding in embeddings:
        plan, tasks = embedding.plan, embedding.tasks
        read = [(t.values, t.cell, t.box) for t in tasks if t.kind == "read"]
        assert sorted(map(str, read)) == sorted(
            str((value.name, plan.mesh.device(rank), box))
            for value in plan.graph.inputs
            for rank, box in enumerate(plan.specs[value.name].regions(value.shape))
        )
        for name, blocks, spec in zip(plan.graph.outputs, embedding.outputs, plan.outputs):
            made = [tasks[block.task].made[block.place] for block in blocks]
            assert [m.value for m in made] == [name] * plan.mesh.size
            assert [m.box for m in made] == spec.regions(plan.graph.values[name].shape)
            assert [tasks[b.task].cell for b in blocks] == list(range(plan.mesh.size))


def test_tasks_read_blocks_that_are_made_before_and_not_let_go(embeddings):
    for embedding in embeddings:
        alive, ended = set(), []
        for task in embedding.tasks:
            assert set(task.reads) <= alive, task
            for read in task.uses():
                assert read.place < len(embedding.tasks[read.task].made)
            alive.add(task.number)
            alive -= set(embedding.ends[task.number])
            ended += embedding.ends[task.number]
        assert len(ended) == len(set(ended))
        outputs = {block.task for blocks in embedding.outputs for block in blocks}
        readers = {number for task in embedding.tasks for number in task.reads}
        assert alive == outputs | (set(range(len(embedding.tasks))) - readers)


def test_bytes_between_cells_are_those_of_the_plan(embeddings):
    for embedding in embeddings:
        assert embedding.received == embedding.plan.received, embedding.plan
    assert sum(sum(embedding.received) for embedding in embeddings) > 50 * PROGRAMS


def test_what_leaves_a_cell_leaves_alone():
    """A task with two results has one of them cut out, so that the other does not move with it."""

    def program(x):
        largest, places = ops.topk(x, 2)
        return largest.sum(0), places

    embedding = embedded(
        program,
        (8, 6),
        mesh='@m = <["x"=2]>',
        shardings={"x": '<@m, [{"x"}, {}]>'},
    )
    assert any(len(task.made) == 2 for task in embedding.tasks)
    for task in embedding.tasks:
        for read in task.uses():
            maker = embedding.tasks[read.task]
            assert maker.cell == task.cell or len(maker.made) == 1


def folds(source):
    if isinstance(source, Fold):
        yield len(source.parts)
    for inner in source if isinstance(source, tuple) else ():
        yield from folds(inner)


def test_many_parts_are_combined_in_a_tree():
    mesh = DeviceMesh("m", (20,), ("x",))
    embedding = embedded(
        lambda x: x.sum(0), (40, 3), mesh=mesh, shardings={"x": '<@m, [{"x"}, {}]>'}
    )
    found = [n for task in embedding.tasks for source in task.sources() for n in folds(source)]
    assert max(found) <= FAN
    assert sum(task.kind == "fold" for task in embedding.tasks) > 0
    assert embedding.received == embedding.plan.received


def test_cells_share_workers_in_blocks():
    mesh = DeviceMesh("m", (6,), ("x",), device_ids=(5, 4, 3, 2, 1, 0))
    embedding = embedded(lambda x: x + x, (12,), mesh=mesh, shardings={"x": '<@m, [{"x"}]>'})
    assert [embedding.worker(cell, 2) for cell in range(6)] == [1, 1, 1, 0, 0, 0]
    assert [embedding.worker(cell, 4) for cell in (5, 4, 3, 2, 1, 0)] == [0, 0, 1, 2, 2, 3]
    assert [embedding.worker(cell, 50) for cell in (5, 4, 3, 2, 1, 0)] == [0, 1, 2, 3, 4, 5]


def test_a_loop_is_refused():
    i, j, n = (Value(name, (), "int32") for name in "ijn")
    less = Application("compare", ("i", "i"), ("go",), {"comparison_direction": "LT"})
    regions = Graph([i], [less], ["go"]), Graph([j], [], ["j"])
    graph = Graph(
        [n],
        [Application("while", ("n",), ("end",), {}, regions)],
        ["end"],
        meshes=['@m = <["x"=2]>'],
    )
    message = "while end runs a graph of its own, which the grid cannot"
    with pytest.raises(WeftError, match=message):
        Embedding.of(Plan.of(propagate(graph)))


def test_a_task_says_what_it_is():
    embedding = embedded(
        lambda x: x + x, (4,), mesh='@m = <["x"=2]>', shardings={"x": '<@m, [{"x"}]>'}
    )
    assert str(embedding.tasks[-1]) == "3: compute add [2:4] for add on cell 1"
    assert np.sum(embedding.received) == 0
