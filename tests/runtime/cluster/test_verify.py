"""Task graphs are verified against the graph's definitions: whatever would run wrong is refused."""

import random
from dataclasses import replace

import pytest
from tests.runtime.cluster.blur import plan_of
from tests.runtime.test_programs import planned
from tests.trials import trials

from weft import Plan, ops, propagate, trace
from weft.program import VerificationError
from weft.program.storage import Storage
from weft.runtime.cluster import TaskGraph
from weft.runtime.cluster.tasks import (
    BlockRef,
    Combined,
    InputBox,
    Joined,
    Masked,
    Sliced,
    Task,
    TaskOutput,
)
from weft.space import ZRange

PROGRAMS = trials(60)


def graph_of(function, *shapes, mesh='@m = <["x"=2]>', shardings=None, **storage):
    graph = trace(function, *shapes, meshes=[mesh], shardings=shardings or {})
    return TaskGraph.of(Plan.of(propagate(graph)), **storage)


def changed(graph, number, **fields):
    tasks = list(graph.tasks)
    tasks[number] = replace(tasks[number], **fields)
    return replace(graph, tasks=tuple(tasks))


def refused(graph, message):
    with pytest.raises(VerificationError, match=message):
        graph.verify()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_graphs_of_random_programs_are_accepted(seed):
    TaskGraph.of(Plan.of(propagate(planned(seed)[1]))).verify()


def stored_blur(memory=None):
    shape, chunk = (48, 48, 64), (16, 16, 16)
    plan = plan_of(shape, 2)
    blur, mean = plan.graph.outputs
    outputs = {blur: Storage(shape, chunk, None, 4), mean: Storage(shape[1:], chunk[1:], None, 4)}
    inputs = {"x": Storage(shape, chunk, None, 4)}
    return TaskGraph.of(plan, inputs, outputs, memory=memory, workers=2)


@pytest.mark.parametrize("memory", [None, 1 << 20, 1 << 18])
def test_tiled_graphs_with_storage_are_accepted(memory):
    stored_blur(memory).verify()


def tiled_linear():
    stored = {"y": Storage((8, 8), (4, 4), None, 4)}
    inputs = {"x": Storage((8, 512), (8, 16), None, 4), "w": Storage((512, 8), (16, 8), None, 4)}
    graph = trace(
        lambda x, w, b: {"y": ops.linear(x, w, b)},
        *((8, 512), (512, 8), (8,)),
        meshes=['@m = <["x"=2]>'],
        shardings={"x": '<@m, [{}, {"x"}]>'},
    )
    return TaskGraph.of(Plan.of(propagate(graph)), inputs, stored, memory=12 << 10)


def test_tiles_of_a_reduction_with_an_operand_outside_it_are_accepted():
    graph = tiled_linear()
    assert sum(task.kind == "compute" for task in graph.tasks) > 4
    graph.verify()


def test_an_operand_that_counts_in_two_tiles_is_refused():
    graph = tiled_linear()
    number, task = next(
        (n, t) for n, t in enumerate(graph.tasks) if any(isinstance(a, Masked) for a in t.arrays())
    )
    (step,) = task.steps
    arrays = tuple(a.of if isinstance(a, Masked) else a for a in step.arrays)
    refused(changed(graph, number, steps=(step._replace(arrays=arrays),)), "counts twice in a sum")


def matmul():
    return graph_of(lambda x, w: x @ w, (8, 4), (4, 2), shardings={"x": '<@m, [{}, {"x"}]>'})


def combining(graph):
    """Return the number of a task that combines parts, and the combination."""
    return next(
        (n, task.blocks[0].array)
        for n, task in enumerate(graph.tasks)
        if task.blocks and isinstance(task.blocks[0].array, Combined)
    )


def with_array(graph, number, array):
    block = graph.tasks[number].blocks[0]._replace(array=array)
    return changed(graph, number, blocks=(block,))


def test_parts_that_are_lost_repeated_or_combined_otherwise_are_refused():
    graph = matmul()
    number, array = combining(graph)
    one, two = array.parts
    refused(with_array(graph, number, one), "is not whole|differ")
    refused(with_array(graph, number, array._replace(parts=(one, one))), "twice")
    refused(with_array(graph, number, array._replace(monoid="max")), "reduces by")
    with_array(graph, number, array._replace(parts=(two, one))).verify()


def test_a_need_that_comes_later_is_refused():
    graph = matmul()
    number, array = combining(graph)
    late = array._replace(parts=(array.parts[0], BlockRef(len(graph.tasks))))
    refused(with_array(graph, number, late), "does not exist yet")
    tasks = (*graph.tasks[1:], graph.tasks[0])
    refused(replace(graph, tasks=tasks), "at place 0")


def test_operands_of_another_value_or_box_are_refused():
    graph = graph_of(lambda x, y: x - y, (8,), (8,), shardings={"x": '<@m, [{"x"}]>'})
    number = next(n for n, task in enumerate(graph.tasks) if task.steps)
    (step,) = graph.tasks[number].steps
    swapped = step._replace(operands=tuple(reversed(step.operands)))
    refused(changed(graph, number, steps=(swapped,)), "is given y")
    other = step._replace(box=ZRange((0,), (3,)))
    refused(changed(graph, number, steps=(other,)), "needs x")


def test_shards_that_are_written_twice_in_part_or_not_at_all_are_refused():
    graph = stored_blur()
    number = next(n for n, task in enumerate(graph.tasks) if task.writes)
    write = graph.tasks[number].writes[0]
    refused(changed(graph, number, writes=(write, write)), "written twice")
    refused(changed(graph, number, writes=()), "not written")
    less = ZRange(write.box.start, (*write.box.stop[:-1], write.box.stop[-1] - 1))
    part = Sliced(write.array, less.slices(write.box.start))
    short = write._replace(box=less, array=part, nbytes=4 * less.size)
    refused(changed(graph, number, writes=(short,)), "not whole shards")


def test_what_the_program_does_not_read_or_write_is_refused():
    graph = graph_of(
        lambda x: {"y": ops.relu(x[:4])},
        (8, 4),
        inputs={"x": Storage((8, 4), (2, 4), None, 4)},
        outputs={"y": Storage((4, 4), (2, 4), None, 4)},
    )
    graph.verify()
    assert {type(each).__name__ for each in graph.program.main.instructions} > {"Read", "Write"}
    number, task = next((n, t) for n, t in enumerate(graph.tasks) if any(t.input_boxes()))
    beyond = TaskOutput("x", ZRange((6, 0), (8, 4)), 32, InputBox("x", ZRange((6, 0), (8, 4))))
    refused(changed(graph, number, blocks=(beyond,)), "the program does not read x")
    elsewhere = task.writes[0]._replace(value="z")
    refused(changed(graph, number, writes=(elsewhere,)), "is not z")
    refused(replace(graph, stored={}), "is not stored|written")


def mutations(task: Task, places: set[int], rng: random.Random):
    """Return the task with one of the blocks at `places`, or a write, changed."""
    blocks = [task.blocks[place] for place in sorted(places)]
    outputs = [output for output in (*blocks, *task.writes) if output.box]
    if not outputs:
        return None
    output = rng.choice(outputs)
    match output.array:
        case Joined(pieces=pieces) if len(pieces) > 1:
            array = output.array._replace(pieces=pieces[1:])
        case Combined(parts=parts):
            array = output.array._replace(parts=(*parts, parts[0]))
        case array:
            array = Masked(array, "sum")
    old, new = output, output._replace(array=array)
    return replace(
        task,
        blocks=tuple(new if b is old else b for b in task.blocks),
        writes=tuple(new if w is old else w for w in task.writes),
    )


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_mutations_of_what_reaches_an_output_are_refused(seed):
    """A block that is read by nobody and is not an output may hold anything."""
    rng = random.Random(seed)
    graph = TaskGraph.of(Plan.of(propagate(planned(seed)[1])))
    needed: dict[int, set[int]] = {}
    for block in (block for blocks in graph.outputs for block in blocks):
        needed.setdefault(block.task, set()).add(block.place)
    for number, places in sorted(needed.items()):
        mutated = mutations(graph.tasks[number], places, rng)
        if mutated is not None:
            tasks = (*graph.tasks[:number], mutated, *graph.tasks[number + 1 :])
            refused(replace(graph, tasks=tasks), ".")
