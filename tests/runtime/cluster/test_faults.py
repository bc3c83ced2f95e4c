"""Kernels and storage that fail under a run: the error names path or box, and resume finishes."""

import os
import random
import shutil
import subprocess
import time

import numpy as np
import pytest
import zarr
from tests.disks import tmpfs
from tests.runtime.cluster.blur import RADIUS, WEIGHTS, kernel_of, signed
from tests.runtime.cluster.deaths import MEMORY, Volume, files
from tests.runtime.cluster.test_engines import operators  # noqa: F401
from tests.store.server import KEYS, QUICK, refusing_port

from weft import Plan, WeftError, ops, propagate, trace
from weft.lang import Operator
from weft.lang.arithmetic import apply_all
from weft.runtime.cluster import Dask, Output, Ray, TaskError, Threads, run_on

pytestmark = pytest.mark.slow

ENGINES = {
    "threads": (lambda: Threads(2), "numpy"),
    "ray": (lambda: Ray(workers=2), "ray"),
    "dask": (lambda: Dask(workers=2), "distributed"),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    make, library = ENGINES[request.param]
    pytest.importorskip(library)
    with make() as engine:
        yield engine


@pytest.fixture(scope="module")
def threads():
    with Threads(2) as engine:
        yield engine


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    return Volume.of(tmp_path_factory.mktemp("volume"))


@pytest.fixture(scope="module")
def wanted(volume, threads):
    volume.run(threads, volume.folder / "wanted")
    return files(volume.folder / "wanted")


def complete(path):
    """The names of the shards that are there, each of which can be read by others."""
    found = [name for name in files(path) if "/c/" in name]
    assert not [name for name in found if "partial" in name]
    for name in ("blur", "mean"):
        if (path / name / "zarr.json").exists():
            assert zarr.open_array(path / name, mode="r")[...].dtype == "float32"
    return found


def unlucky(operators, seed):  # noqa: F811
    """A blur whose second stage fails in one plane of its volume."""
    plane = random.Random(seed).randrange(40)

    def kernel(block, x, weights):
        if block.results[0].start[0] <= plane < block.results[0].stop[0]:
            raise ZeroDivisionError("out of luck")
        return kernel_of(1)(block, x, weights)

    operators.add(Operator("unlucky", signed(1), kernel, flops=2))
    for dim in (0, 2):
        operators.add(Operator(f"lucky_{dim}", signed(dim), kernel_of(dim), flops=2))

    def program(x, w):
        for name in ("lucky_2", "unlucky", "lucky_0"):
            (x,) = apply_all(name, x, w)
        return x, ops.mean(x, 0)

    return plane, Plan.of(
        propagate(
            trace(
                *(program, (40, 40, 40), (2 * RADIUS + 1,)),
                meshes=['@m = <["w"=4]>'],
                shardings={"x": '<@m, [{"w"}, {}, {}]>'},
            )
        )
    )


@pytest.mark.parametrize("seed", range(2))
def test_a_step_of_a_tile_from_storage_names_its_box(engine, operators, tmp_path, seed):  # noqa: F811
    plane, plan = unlucky(operators, seed)
    x = np.ones((40, 40, 40), "float32")
    made = zarr.create_array(tmp_path / "x", shape=x.shape, chunks=(10, 20, 20), dtype="float32")
    made[...] = x
    blur, mean = plan.graph.outputs
    outputs = {blur: Output(tmp_path / "blur", (5, 10, 10), (5, 10, 20)), mean: tmp_path / "mean"}
    inputs = {"x": str(tmp_path / "x"), "w": WEIGHTS}
    message = r"^unlucky could not compute unlucky, index box \[(\d+):(\d+), .*\] on cell \d: Zero"
    with pytest.raises(TaskError, match=message) as caught:
        run_on(engine, plan, inputs, outputs, memory=MEMORY)
    low, high = map(int, str(caught.value).partition("[")[2].partition(",")[0].split(":"))
    assert low <= plane < high
    (note,) = caught.value.__notes__
    assert "in kernel" in note
    assert note.endswith("ZeroDivisionError: out of luck")
    complete(tmp_path)


def test_nothing_is_written_after_the_end(engine, operators, tmp_path):  # noqa: F811
    """Tasks that waited behind one that failed do not begin, and those that run are waited for."""

    def kernel(block, x):
        time.sleep(0.1)
        if block.box.start[0] == 2:
            raise ZeroDivisionError("out of luck")
        return x + 1

    operators.add(Operator("slow", "m n -> m n", kernel))
    plan = Plan.of(
        propagate(
            trace(
                *(lambda x: apply_all("slow", x)[0], (64, 8)),
                meshes=['@m = <["w"=32]>'],
                shardings={"x": '<@m, [{"w"}, {}]>'},
            )
        )
    )
    (y,) = plan.graph.outputs
    output = Output(tmp_path / "y", (1, 8), (1, 8))
    with pytest.raises(TaskError, match="out of luck"):
        run_on(engine, plan, {"x": np.ones((64, 8), "float32")}, {y: output}, memory=MEMORY)
    found = complete(tmp_path)
    time.sleep(3)
    assert complete(tmp_path) == found
    assert len(found) < 64


@pytest.fixture
def small_disk(tmp_path):
    """A folder with little room, which can be given more."""
    with tmpfs(tmp_path / "disk", "400k") as path:
        yield path


def test_a_full_disk(small_disk, volume, wanted, threads):
    with pytest.raises(TaskError, match=rf"SinkError: {small_disk}/\S*/c/\S+ cannot be written: "):
        volume.run(threads, small_disk)
    some = complete(small_disk)
    assert 0 < len(some) < len([name for name in wanted if "/c/" in name])
    assert {name: files(small_disk)[name] for name in some} == {name: wanted[name] for name in some}
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    volume.run(threads, small_disk, resume=True)
    assert files(small_disk) == wanted


def test_a_disk_that_may_only_be_read(small_disk, volume, wanted, threads):
    """Refused before anything runs; it cannot become so while a run holds the locks on it."""

    def mount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    mount("size=20m,ro")
    with pytest.raises(WeftError, match=rf"{small_disk}/\S+.*Read-only file sys"):
        volume.run(threads, small_disk)
    mount("rw")
    assert not files(small_disk)
    volume.run(threads, small_disk)
    assert files(small_disk) == wanted


def test_an_output_that_cannot_be_created(tmp_path, volume, threads):
    (tmp_path / "blur").write_text("no folder")
    with pytest.raises(WeftError, match=f"{tmp_path}/blur"):
        volume.run(threads, tmp_path)


@pytest.mark.parametrize("how", ["gone", "no folder"])
def test_an_output_that_goes_away(how, tmp_path, volume, wanted, threads):
    def harm(progress):
        if progress.done > progress.total // 3 and not os.path.exists(tmp_path / "away"):
            os.rename(tmp_path / "blur", tmp_path / "away")
            if how == "no folder":
                (tmp_path / "blur").write_text("something else")

    message = rf"{tmp_path}/blur(/c/\S+ cannot be written| went away during the run)"
    with pytest.raises(WeftError, match=message):
        volume.run(threads, tmp_path, watch=harm)
    if how == "gone":  # shards may still be written where it was
        shutil.rmtree(tmp_path / "blur", ignore_errors=True)
    else:
        os.unlink(tmp_path / "blur")
    os.rename(tmp_path / "away", tmp_path / "blur")
    volume.run(threads, tmp_path, resume=True)
    assert files(tmp_path) == wanted


def test_a_chunk_of_an_input_that_is_corrupt(tmp_path, volume, wanted, threads):
    chunk = volume.folder / "x" / "c" / "5" / "1" / "2"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    try:
        with pytest.raises(TaskError, match=rf"{chunk.parents[3]}/?.*c/5/1/2"):
            volume.run(threads, tmp_path)
    finally:
        chunk.write_bytes(whole)
    complete(tmp_path)
    volume.run(threads, tmp_path, resume=True)
    assert files(tmp_path) == wanted


def test_a_store_that_cannot_be_reached(volume, threads):
    blur, mean = volume.plan.graph.outputs
    with refusing_port() as port:
        quick = {**KEYS, **QUICK, "endpoint": f"http://127.0.0.1:{port}", "allow_http": True}
        outputs = {
            blur: Output("s3://nowhere/blur", (5, 10, 10), (5, 10, 20), options=quick),
            mean: volume.folder / "no mean",
        }
        with pytest.raises(WeftError, match=r"s3://nowhere/blur/\S+: there is no connection"):
            run_on(threads, volume.plan, volume.inputs, outputs, memory=MEMORY)
    assert not (volume.folder / "no mean" / "zarr.json").exists()
