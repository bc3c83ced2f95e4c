"""From storage to storage: what zarr-python wrote, read in boxes, and shards that it reads."""

import random
import tracemalloc

import numpy as np
import pytest
import zarr
from tests.runtime.cluster.blur import WEIGHTS, add_operators, blurred, plan_of
from tests.runtime.test_eager import agree
from tests.runtime.test_programs import planned
from tests.trials import trials

from weft import Plan, WeftError, communication, ops, propagate, run, trace
from weft.plan.chunking import choose_storage
from weft.plan.stored import writes
from weft.program.storage import Storage
from weft.runtime.cluster import Output, RunRecord, TaskGraph, Threads, recording, run_on
from weft.runtime.cluster.schedule import task_memory
from weft.runtime.cluster.tasks import InputBox
from weft.runtime.cluster.worker import GivenInput, ReceivedBlocks, WorkerContext, run_task

BUFFERS = 100_000
"""What NumPy takes for itself, whatever the arrays."""
PROGRAMS = trials(60)


@pytest.fixture(scope="module", autouse=True)
def operators():
    add_operators()


def stored(path, array, chunks, shards=None):
    made = zarr.create_array(
        path, shape=array.shape, chunks=chunks, shards=shards, dtype=array.dtype, fill_value=0
    )
    made[...] = array
    return str(path)


def sizes(rng, shape):
    return tuple(rng.randint(1, max(1, n)) for n in shape)


@pytest.mark.parametrize("part", range(4))
def test_programs_from_storage_to_storage_equal_one_process(tmp_path, part):
    with Threads(2) as engine:
        for seed in range(part, PROGRAMS, 4):
            rng = random.Random(seed)
            _, graph, inputs = planned(seed)
            plan = Plan.of(propagate(graph))
            given, outputs = dict(inputs), {}
            for value in graph.inputs:
                is_partial = bool(plan.specs[value.name].partial)
                known = value.dtype != "bfloat16"  # zarr-python, which writes here, has none
                if (
                    min(value.shape, default=0) > 0
                    and rng.random() < 0.8
                    and not is_partial
                    and known
                ):
                    path = tmp_path / f"{seed}-{value.name}"
                    given[value.name] = stored(path, inputs[value.name], sizes(rng, value.shape))
            for name in dict.fromkeys(graph.outputs):
                shape = graph.values[name].shape
                known = graph.values[name].dtype != "bfloat16"
                if min(shape, default=0) > 0 and rng.random() < 0.8 and known:
                    chunks = sizes(rng, shape)
                    shards = tuple(n * rng.randint(1, 3) for n in chunks)
                    outputs[name] = Output(tmp_path / f"{seed}-out-{name}", chunks, shards)
            with communication() as moved, recording() as records:
                found = run_on(engine, plan, given, outputs, verify=True)
            for name, got, wanted in zip(graph.outputs, found, run(plan, inputs), strict=True):
                whole = zarr.open_array(outputs[name].url)[...] if name in outputs else got.numpy()
                assert whole.dtype == wanted.numpy().dtype
                assert agree(whole, wanted), f"seed {seed}"
            assert records[0].is_exact
            assert moved.received == records[0].total.received


def test_tasks_read_and_write_what_the_stored_program_says():
    """Where no halo is computed again, and every cell holds whole shards."""
    same = 0
    for seed in range(PROGRAMS):
        rng, graph = random.Random(seed), planned(seed)[1]
        plan = Plan.of(propagate(graph))
        inputs = {
            v.name: Storage(v.shape, sizes(rng, v.shape), None, plan.itemsize(v.name))
            for v in graph.inputs
            if min(v.shape, default=0) > 0 and not plan.specs[v.name].partial
        }
        tasks = TaskGraph.of(plan, inputs)
        tasks.verify()
        count = tasks.program.count
        reads = {name: traffic for name, traffic in tasks.reads.items() if traffic.nbytes}
        assert sum(tasks.received) <= sum(count.received_by_cell)
        if tasks.received == count.received_by_cell:
            assert reads == count.reads, f"seed {seed}"
            same += 1
        computed = {name for each in graph.applications for name in each.results}
        outputs = {
            name: choose_storage(plan, name)
            for name, spec in zip(graph.outputs, plan.outputs)
            if name in computed
            and min(graph.values[name].shape, default=0) > 0
            and not spec.partial
        }
        tasks = TaskGraph.of(plan, inputs, outputs)
        tasks.verify()
        for name, traffic in tasks.program.count.writes.items():
            if all(outputs[name].aligned(box) for box in writes(plan, name) if box):
                assert tasks.writes[name].nbytes == traffic.nbytes
                assert tasks.writes[name].needed == traffic.needed
    assert same > PROGRAMS / 2


class Arrays:
    """Arrays in memory that are read and written as if they were stored."""

    def __init__(self, whole, storage):
        self.whole, self.storage = whole, storage
        self.times = np.zeros(whole.shape, int)

    def read_counted(self, box, *, threads):
        return self.whole[box.slices()].copy(), 0

    def write(self, box, array):
        assert self.storage.aligned(box)
        assert array.shape == box.shape
        self.whole[box.slices()] = array
        self.times[box.slices()] += 1
        return array.nbytes


def run_in_order(graph, context, inputs):
    """Run all tasks here; their blocks, and the most memory of each task beside those."""
    made, peaks = {}, {}
    for task in graph.tasks:
        received = {n: ReceivedBlocks(graph.tasks[n].cell, made[n]) for n in task.needs}
        given = {name: GivenInput(x, (0,) * x.ndim) for name, x in inputs.items()}
        tracemalloc.start()
        made[task.number], report = run_task(context, task, received, given)
        peaks[task.number] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report.received == graph.moved(task)
        assert [block.nbytes for block in made[task.number]] == [m.nbytes for m in task.blocks]
        for gone in graph.ends[task.number]:
            del made[gone]
    return made, peaks


@pytest.mark.parametrize("seed", range(PROGRAMS // 6))
def test_tiles_of_a_blur_are_written_once_and_take_what_is_predicted(seed):
    rng = random.Random(seed)
    shape = tuple(rng.randint(20, 40) for _ in range(3))
    plan = plan_of(shape, rng.randint(1, 4), rng.choice("zyx"))
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    names, chunks = dict(zip(("blur_z", "mean"), plan.graph.outputs)), sizes(rng, (20, 20, 20))
    layouts = {}
    for name in names.values():
        full = plan.graph.values[name].shape
        chunk = tuple(rng.randint(4, 16) for _ in full)
        layouts[name] = Storage(full, chunk, [n * rng.randint(1, 2) for n in chunk], 4)
    inputs = {"x": Storage(shape, chunks, None, 4)}
    free = max(TaskGraph.of(plan, inputs, layouts, workers=2).peak(2))
    for part in (None, 0.5):
        memory = part and int(part * free)
        try:
            graph = TaskGraph.of(plan, inputs, layouts, memory=memory, workers=2)
            graph.verify()
        except WeftError as error:
            assert f"has {memory} B" in str(error)  # noqa: PT017 - some are too small to be cut
            continue
        writers = {n: Arrays(np.zeros(s.shape, "float32"), s) for n, s in layouts.items()}
        context = WorkerContext.of(plan, {"x": Arrays(x, None)}, writers)
        _, peaks = run_in_order(graph, context, {"w": WEIGHTS})
        for name, wanted in zip(plan.graph.outputs, (blurred(x), blurred(x).mean(0))):
            assert (writers[name].times == 1).all()
            assert np.allclose(writers[name].whole, wanted, atol=1e-5)
        for task in (task for task in graph.tasks if task.steps):
            room = task_memory(task, graph.tasks, plan.itemsize) + BUFFERS
            assert peaks[task.number] <= room, f"{task}: {peaks[task.number]} > {room}"
        assert memory is None or max(graph.peak(2)) <= memory


def test_a_volume_is_cut_until_its_tasks_fit():
    shape = (2560, 1448, 1448)
    plan = plan_of(shape, 2)
    inputs = {"x": Storage(shape, (64, 64, 64), None, 4)}
    blur, mean = plan.graph.outputs
    outputs = {
        blur: Storage(shape, (64, 64, 64), (128, 128, 128), 4),
        mean: Storage(shape[1:], (256, 256), None, 4),
    }
    graph = TaskGraph.of(plan, inputs, outputs, memory=320 << 20, workers=2)
    graph.verify()
    assert max(graph.peak(2)) <= 320 << 20
    written = [w.box for task in graph.tasks for w in task.writes if w.value == blur]
    assert sum(box.size for box in written) == 2560 * 1448 * 1448
    assert all(
        task.kind == "compute" for task in graph.tasks for w in task.writes if w.value == blur
    )
    read = {leaf for t in graph.tasks for s in t.arrays() for leaf in _leaves(s)}
    assert sum(leaf.box.size for leaf in read) < 1.2 * 2560 * 1448 * 1448


def _leaves(source):
    if isinstance(source, InputBox) and source.name == "x":
        yield source
    for inner in source if isinstance(source, tuple) else ():
        yield from _leaves(inner)


def test_what_cannot_be_cut_to_fit_is_refused_with_both_numbers():
    plan = Plan.of(propagate(trace(ops.sort, (64, 2000), meshes=['@m = <["x"=1]>'])))
    layout = {"x": Storage((64, 2000), (8, 100), None, 4)}
    message = (
        "no tiling fits: a worker needs at least 512000 B for arrays at once, its part of sort, "
        "which is returned in memory, and has 99 B\nhint: store the outputs, or give the plan"
    )
    with pytest.raises(WeftError, match=message):
        TaskGraph.of(plan, layout, {}, memory=99)
    stored = {"sort": Storage((64, 2000), (1, 100), None, 4)}
    message = r"the smallest task of sort takes \d+ B, and a worker has 9999 B for arrays\n"
    with pytest.raises(
        WeftError, match=message + "hint: it cannot be cut further: give workers more"
    ):
        TaskGraph.of(plan, layout, stored, memory=9999)
    message = r"at least 512000 B for arrays at once, a cell's part of input x: float32\[64, 2000\]"
    twice = trace(
        lambda x: {"a": ops.sort(x), "b": x.sum(0)}, (64, 2000), meshes=['@m = <["x"=1]>']
    )
    outputs = {"a": stored["sort"], "b": Storage((2000,), (100,), None, 4)}
    with pytest.raises(WeftError, match=message):
        TaskGraph.of(Plan.of(propagate(twice)), {}, outputs, memory=9999)


def test_shards_that_are_too_large_are_named():
    plan = Plan.of(propagate(trace(lambda x: {"y": x + 1}, (64, 64), meshes=['@m = <["x"=1]>'])))
    layouts = [{name: Storage((64, 64), (8, 8), (32, 64), 4)} for name in "xy"]
    message = (
        r"no tiling fits: a worker needs at least 8192 B for arrays at once, a shard of y, "
        r"\[32, 64\], and has 8000 B\nhint: make shards smaller"
    )
    with pytest.raises(WeftError, match=message):
        TaskGraph.of(plan, *layouts, memory=8000)
    message = (
        r"none of the \d+ tilings that were tried fits: a worker would need \d+ B for arrays at"
    )
    with pytest.raises(WeftError, match=message):
        TaskGraph.of(plan, *layouts, memory=16 << 10)
    assert TaskGraph.of(plan, layouts[0], {"y": Storage((64, 64), (8, 8), None, 4)}, memory=8 << 10)


def test_an_output_that_is_an_input_is_copied_and_one_in_memory_is_read(tmp_path):
    x = np.arange(35.0).reshape(5, 7)
    plan = Plan.of(propagate(trace(lambda x: (x, x + x), x, meshes=['@m = <["x"=2]>'])))
    path = stored(tmp_path / "x", x, (2, 3))
    first = plan.graph.outputs[0]
    got, twice = run(
        plan, {"x": path}, on="threads", outputs={first: Output(tmp_path / "y", (2, 2), (4, 4))}
    )
    assert np.array_equal(zarr.open_array(tmp_path / "y")[...], x)
    assert np.array_equal(got.read(), x)
    assert np.array_equal(twice.numpy(), x + x)
    assert np.array_equal(run(plan, {"x": path}, on="threads")[0].numpy(), x)


def test_refusals_name_the_value(tmp_path):
    plan = Plan.of(propagate(trace(lambda x: x + x, (4, 6), meshes=['@m = <["x"=2]>'])))
    path = stored(tmp_path / "x", np.ones((4, 5), "float32"), (2, 2))
    with pytest.raises(WeftError, match=r"input x: float32\[4, 6\] cannot have the shape \[4, 5\]"):
        run(plan, {"x": path}, on="threads")
    with pytest.raises(WeftError, match="there is no output y"):
        run(plan, {"x": path}, on="threads", outputs={"y": "out"})
    with pytest.raises(WeftError, match="an output goes to a path, a URL or an Output, got 7"):
        run(plan, {"x": np.ones((4, 6), "float32")}, on="threads", outputs={"add": 7})
    with pytest.raises(WeftError, match="arrays in storage and bounded memory need an engine"):
        run(plan, {"x": path})
    with pytest.raises(WeftError, match="there is no Zarr array at"):
        run(plan, {"x": str(tmp_path / "nothing")}, on="threads")


def test_the_plan_chooses_chunks_and_shards_that_every_cell_writes_whole(tmp_path):
    x = np.random.default_rng(0).normal(size=(48, 40, 32)).astype("float32")
    plan, path = plan_of(x.shape, 4), stored(tmp_path / "x", x, (16, 16, 16))
    blur, _ = plan.graph.outputs
    with recording() as records:
        run(plan, {"x": path, "w": WEIGHTS}, on="threads", outputs={blur: tmp_path / "y"})
    assert np.allclose(zarr.open_array(tmp_path / "y")[...], blurred(x), atol=1e-5)
    assert isinstance(records[0], RunRecord)
    writers = [task for task in records[0].tasks if task.written and task.kind == "write"]
    assert writers == []


def test_rows_that_a_task_keeps_are_not_read_again(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 16, 16)).astype("float32")
    plan, layout = plan_of(x.shape, 1), Storage(x.shape, (16, 16, 16), None, 4)
    outputs = {
        n: Storage(plan.graph.values[n].shape, (16,) * d, None, 4)
        for n, d in zip(plan.graph.outputs, (3, 2))
    }
    free = max(TaskGraph.of(plan, {"x": layout}, outputs).peak(1))
    memory = free * 9 // 20
    graph = TaskGraph.of(plan, {"x": layout}, outputs, memory=memory)
    graph.verify()
    assert any(task.keeps for task in graph.tasks)
    path, boxes = stored(tmp_path / "x", x, (16, 16, 16)), []

    class Counted:
        def read_counted(self, box, *, threads):
            boxes.append(box)
            return x[box.slices()].copy(), layout.touched(box).nbytes

    writers = {n: Arrays(np.zeros(s.shape, "float32"), s) for n, s in outputs.items()}
    context = WorkerContext.of(plan, {"x": Counted()}, writers)
    _, peaks = run_in_order(graph, context, {"w": WEIGHTS})
    assert np.allclose(writers[plan.graph.outputs[0]].whole, blurred(x), atol=1e-5)
    leaf_boxes = [leaf.box for t in graph.tasks for s in t.arrays() for leaf in _leaves(s)]
    once = sum(layout.touched(box).nbytes for box in dict.fromkeys(leaf_boxes))
    assert sum(layout.touched(box).nbytes for box in boxes) < once
    for task in (task for task in graph.tasks if task.steps):
        assert peaks[task.number] <= task_memory(task, graph.tasks, plan.itemsize) + BUFFERS
    assert max(graph.peak(1)) <= memory
    with Threads(2) as engine:  # the cells of a thread keep for themselves
        both = plan_of(x.shape, 2)
        options = {n: Output(tmp_path / n, s.chunk) for n, s in outputs.items()}
        found = run_on(engine, both, {"x": path, "w": WEIGHTS}, options, memory=3 * free)
    assert np.allclose(found[0].read(), blurred(x), atol=1e-5)
