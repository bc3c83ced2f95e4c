"""A volume twenty times as large as what the workers may take for arrays, on both engines."""

import pytest
from benchmarks.cluster_volume import blur, worst, write_volume

from weft.runtime.cluster import Dask, Ray
from weft.runtime.cluster.engines.engine import OWN_MEMORY

pytestmark = pytest.mark.slow

ARRAYS = 16 << 20
SHAPE = (576, 384, 384)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("volume")
    write_volume(made / "x", SHAPE)
    return made


@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_volume_larger_than_memory_is_blurred_within_the_bound(folder, tmp_path, name):
    pytest.importorskip({"dask": "distributed"}.get(name, name))
    assert 20 * ARRAYS < 4 * 576 * 384 * 384
    (tmp_path / "x").symlink_to(folder / "x")
    made = Ray if name == "ray" else Dask
    with made(workers=2, memory=OWN_MEMORY + ARRAYS) as engine:
        record = blur(tmp_path, SHAPE, engine)
    assert worst(tmp_path, SHAPE) < 1e-3
    assert record.is_exact
    assert record.bound <= OWN_MEMORY + ARRAYS
    assert max(task.peak for task in record.tasks) <= record.bound
    read = record.total.read
    assert (
        0
        < read
        < 14 * sum(path.stat().st_size for path in (folder / "x").rglob("*") if path.is_file())
    )
