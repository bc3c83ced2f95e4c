"""Programs that read from storage and write to it run on Zarr arrays, cell by cell."""

import numpy as np
import pytest
import zarr

from weft import DeviceMesh, Plan, WeftError, communication, ops, propagate, trace
from weft.plan import Chunking, Storage
from weft.runtime import local

MESH = DeviceMesh("m", (2, 2), ("x", "y"))


class Recorded:
    """An array in storage, and the boxes that are read and written."""

    def __init__(self, array):
        self.array, self.read, self.written = array, [], []

    def __getitem__(self, box):
        self.read.append(box)
        return self.array[box]

    def __setitem__(self, box, values):
        self.written.append(box)
        self.array[box] = values


def test_a_blur_reads_halos_and_writes_every_block_once():
    graph = trace(
        lambda x, k: ops.convolve(x, k, padding=[(1, 1), (1, 1)]),
        (1, 1, 18, 20),
        (1, 1, 3, 3),
        meshes=[MESH],
        shardings={"x": '<@m, [{}, {}, {"x"}, {}]>'},
    )
    plan = Plan.of(propagate(graph))
    chunks = Storage((1, 1, 18, 20), (1, 1, 5, 20), itemsize=4)
    program = plan.program_with({"x": chunks, "convolution": Chunking()})
    program.verify()
    assert sum(plan.received) > 0 == sum(program.count.received_by_cell)
    rng = np.random.default_rng(0)
    x, k = (rng.integers(-4, 4, n).astype("float32") for n in ((1, 1, 18, 20), (1, 1, 3, 3)))
    source = Recorded(zarr.create_array({}, data=x, chunks=chunks.chunk))
    made = program.storage["convolution"]
    sink = Recorded(zarr.create_array({}, shape=made.shape, chunks=made.shard, dtype="float32"))
    with communication() as moved:
        kernel = [k] * MESH.size
        results = local.execute(program, np, [kernel], storage={"x": source, "convolution": sink})
    assert results == []
    assert moved.received == 0
    assert list(program.count.peak) == [moved.peaks[cell] for cell in range(MESH.size)]
    boxes = [box.slices() for cell in program.count.read_boxes("x") for box in cell]
    assert source.read == boxes
    assert len(sink.written) == 2  # the other two cells have copies
    padded = np.pad(x[0, 0], 1)
    expected = sum(
        k[0, 0, i, j] * padded[i : i + 18, j : j + 20] for i in range(3) for j in range(3)
    )
    assert np.array_equal(sink.array[0, 0], expected)


def test_a_program_does_not_run_without_its_storage():
    plan = Plan.of(propagate(trace(lambda x: x + x, (8, 4), meshes=[MESH])))
    program = plan.program_with({"x": Storage((8, 4), (2, 4), itemsize=4), "add": Chunking()})
    with pytest.raises(WeftError, match="the program reads or writes add, x in storage"):
        local.execute(program, np, [])
