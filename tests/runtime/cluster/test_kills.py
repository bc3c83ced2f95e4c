"""Workers killed at random moments: results are right, and nothing is left half-written."""

import random
import threading
import time

import numpy as np
import pytest
import zarr
from tests.runtime.cluster.blur import blurred
from tests.runtime.cluster.deaths import Volume, files, kill, workers_of
from tests.runtime.cluster.test_engines import cut
from tests.trials import trials

from weft import communication, run
from weft.runtime.cluster import Dask, Ray, Threads, recording, run_on

pytestmark = pytest.mark.slow

KILLS = trials(1)
"""Of each kind on each engine."""
LIBRARIES = {"ray": "ray", "dask": "distributed"}


@pytest.fixture(scope="module", params=LIBRARIES)
def engine(request):
    pytest.importorskip(LIBRARIES[request.param])
    with {"ray": Ray, "dask": Dask}[request.param](workers=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    return Volume.of(tmp_path_factory.mktemp("volume"))


@pytest.fixture(scope="module")
def wanted(volume):
    """The files of a run in which nobody died."""
    path = volume.folder / "wanted"
    with Threads(2) as engine:
        volume.run(engine, path)
    assert np.allclose(zarr.open_array(path / "blur")[...], blurred(volume.x), atol=1e-5)
    return files(path)


class Killer:
    """Kills a worker a moment after a run is so far."""

    def __init__(self, pid, part, delay):
        self.pid, self.part = pid, part
        self.timer = threading.Timer(delay, self.kill)
        self.moment = None

    def __call__(self, progress):
        if self.moment is None and progress.done >= self.part * progress.total:
            self.moment = 0.0
            self.timer.start()

    def kill(self):
        self.moment = time.monotonic()
        kill(self.pid)


@pytest.mark.parametrize("seed", range(KILLS))
def test_shards_are_those_of_a_run_in_which_no_worker_died(engine, volume, wanted, tmp_path, seed):
    rng = random.Random(seed)
    killer = Killer(rng.choice(workers_of(engine)), rng.random() * 0.95, rng.random() * 0.003)
    with recording() as records, communication() as moved:
        volume.run(engine, tmp_path, watch=killer)
    end = time.monotonic()
    killer.timer.join()
    assert files(tmp_path) == wanted
    (record,) = records
    assert record.is_exact
    assert moved.received == record.total.received
    assert all(np.isfinite(zarr.open_array(tmp_path / n)[...]).all() for n in ("blur", "mean"))
    print(f"killed {killer.part:.0%}, {end - killer.moment:+.2f} s before the end", record.missing)


@pytest.mark.parametrize("seed", range(KILLS))
def test_blocks_in_memory_are_computed_again(engine, seed):
    rng = random.Random(seed)
    x = np.random.default_rng(0).integers(0, 9, (64, 64))

    def program(x):
        y = x
        for _ in range(40):
            y = (y @ x).max(0, keepdims=True) - x
        return y, y.sum(0)

    plan = cut(program, x, size=4, x='<@m, [{"x"}, {}]>')
    killer = Killer(rng.choice(workers_of(engine)), 0, rng.random() * 0.3)
    killer.timer.start()
    with recording() as records:
        found = run_on(engine, plan, {"x": x})
    end = time.monotonic()
    killer.timer.join()
    for one, other in zip(found, run(plan, {"x": x})):
        assert np.array_equal(one.numpy(), other.numpy())
    assert records[0].is_exact
    print(f"killed {end - killer.moment:+.2f} s before the end", records[0].missing)
