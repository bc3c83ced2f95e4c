"""Which plans fit a worker: what fits stays fitting with more memory and with fewer rows."""

import random

import numpy as np
import pytest
import zarr
from tests.runtime.cluster.blur import WEIGHTS, blurred, plan_of
from tests.trials import trials

from weft import Plan, WeftError, ops, propagate, run, trace
from weft.program.storage import Storage
from weft.runtime.cluster import Output
from weft.runtime.cluster.schedule import depth_first
from weft.runtime.cluster.task_graph import TaskGraph

SWEEPS = trials(2)


def fits(plan, layouts, memory):
    """Whether a plan fits so much memory of each of two workers; what is found keeps to it."""
    try:
        graph = TaskGraph.of(plan, *layouts, memory=memory, workers=2)
    except WeftError:
        return False
    assert max(graph.peak(2)) <= memory
    graph.verify()
    return True


def layouts_of(plan, shape, chunk):
    blur, mean = plan.graph.outputs
    outputs = {blur: Storage(shape, chunk, None, 4), mean: Storage(shape[1:], chunk[1:], None, 4)}
    return {"x": Storage(shape, chunk, None, 4)}, outputs


@pytest.mark.parametrize("chunk", [(64, 64, 64), (32, 64, 64)])
def test_a_blur_and_its_mean_fit_64_mib_whatever_their_length(chunk):
    for rows in (320, 448):
        shape = (rows, 512, 1024)
        plan = plan_of(shape, 2)
        assert fits(plan, layouts_of(plan, shape, chunk), 64 << 20), rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SWEEPS))
def test_what_fits_keeps_fitting_with_more_memory(seed):
    rng = random.Random(seed)
    shape = (8 * rng.randint(3, 12), 48, 64)
    plan, chunk = plan_of(shape, rng.randint(1, 3)), rng.choice([(16, 16, 16), (8, 24, 32)])
    layouts = layouts_of(plan, shape, chunk)
    free = max(TaskGraph.of(plan, *layouts, workers=2).peak(2))
    found = [fits(plan, layouts, free // part) for part in (8, 4, 2, 1)]
    assert found[-1]
    assert found == sorted(found)


@pytest.mark.slow
def test_what_fits_keeps_fitting_with_fewer_rows():
    for memory in (1 << 20, 1 << 17):
        found = []
        for rows in (64, 56, 48, 32):
            plan = plan_of((rows, 48, 64), 2)
            found.append(fits(plan, layouts_of(plan, (rows, 48, 64), (16, 16, 16)), memory))
        assert found == sorted(found), (memory, found)


def test_large_applications_with_no_dimension_in_common_are_both_cut():
    """Neither makes the largest task smaller by itself."""
    plan = Plan.of(
        propagate(
            trace(
                lambda x: {"a": x.sum(0) + 1, "b": x.sum(1) + 1},
                (256, 256),
                meshes=['@m = <["x"=1]>'],
            )
        )
    )
    stored = {name: Storage((256,), (8,), None, 4) for name in ("a", "b")}
    assert fits(plan, ({"x": Storage((256, 256), (8, 8), None, 4)}, stored), 48 << 10)


@pytest.mark.parametrize("rows", [40, 48, 56])
def test_shards_across_cells_in_little_memory_hold_what_numpy_says(tmp_path, rows):
    x = np.random.default_rng(rows).normal(size=(rows, 64, 96)).astype("float32")
    plan, path = plan_of(x.shape, 2), tmp_path / "x"
    zarr.create_array(path, data=x, chunks=(16, 16, 16), zarr_format=3)
    chunks = dict(zip(plan.graph.outputs, ((16, 16, 16), (16, 16))))
    outputs = {name: Output(tmp_path / name, chunks=chunk) for name, chunk in chunks.items()}
    memory = 5 << 20  # codecs take most of it
    made = run(plan, {"x": path, "w": WEIGHTS}, on="threads", outputs=outputs, memory=memory)
    for array, wanted in zip(made, (blurred(x), blurred(x).mean(0))):
        assert np.allclose(array.read(), wanted, atol=1e-5)


def test_shards_that_are_left_to_the_plan_fit_the_memory(tmp_path):
    x = np.random.default_rng(0).normal(size=(64, 96, 96)).astype("float32")
    zarr.create_array(tmp_path / "x", data=x, chunks=(16, 32, 32), zarr_format=3)
    plan = Plan.of(
        propagate(trace(lambda x: {"y": ops.relu(x)}, x.shape, meshes=['@m = <["x"=2]>']))
    )
    outputs = {"y": tmp_path / "y"}
    (y,) = run(plan, {"x": tmp_path / "x"}, on="threads", outputs=outputs, memory=8 << 20)
    assert np.array_equal(y.read(), np.maximum(x, 0))
    assert np.prod(y.shards or y.chunks) * 4 <= (8 << 20) // 16


def test_every_task_comes_behind_what_it_reads():
    shape = (40, 48, 64)
    plan = plan_of(shape, 3)
    graph = TaskGraph.of(plan, *layouts_of(plan, shape, (16, 16, 16)), workers=2)
    graph.verify()
    order = depth_first(graph.tasks, lambda task: graph.worker(task.cell, 2))
    place = {number: n for n, number in enumerate(order)}
    assert sorted(order) == list(range(len(graph.tasks)))
    assert all(place[n] < place[t.number] for t in graph.tasks for n in t.needs)
