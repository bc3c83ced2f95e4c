"""The whole pipeline of a GPU, on the host: what it writes is read back, by others too."""

import sys

import numpy as np
import pytest
import zarr
from tests.store.cases import Case
from tests.store.cuda.host import needs_compiler
from tests.store.cuda.host_cupy import Array, Host
from tests.store.readers import read_by_tensorstore, read_by_weft, read_by_zarr, read_by_zarrs

from weft import WeftError
from weft.extra import needed
from weft.store import Blosc, Crc32c, Zstd, create, create_image, open_image
from weft.store import open as open_store
from weft.store.cuda import device

CODECS = {
    "none": (),
    "runs": (Blosc("lz4", 5, "bitshuffle"),),
    "literals": (Blosc("zstd", 1, "shuffle"),),
    "zstd": (Zstd(1),),
}


@pytest.fixture
def host(monkeypatch, tmp_path_factory):
    needs_compiler()
    made = Host(tmp_path_factory.mktemp("compiled"))
    monkeypatch.setitem(sys.modules, "cupy", made)
    needed.cache_clear()
    device.module.cache_clear()
    yield made
    needed.cache_clear()
    device.module.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", CODECS)
def test_arrays_hold_what_was_appended(tmp_path, host, name):
    for seed in range(4):
        case = Case(seed)
        path = tmp_path / f"a{seed}"
        options = case.options | {"codecs": CODECS[name]}
        with create(
            path, case.given_shape, case.dtype, case.chunks, case.shards, device="cuda",
            epochs=int(case.rng.integers(1, 4)), **options,
        ) as writer:  # fmt: skip
            for block in case.blocks():
                writer.append_rows(Array(block) if case.rng.random() < 0.5 else block)
                if case.rng.random() < 0.3:
                    writer.flush()
                    count = writer.safe * writer.layout.frame_size
                    seen = open_store(path).read().transpose(case.axis_order).reshape(-1)[:count]
                    assert np.array_equal(seen, case.stream.reshape(-1)[:count]), f"{seed}: {case}"
        array = open_store(path)
        found = array.verify()
        assert (found.matched, found.decoded) == (found, 0)
        assert np.array_equal(array.read(), case.array), f"seed {seed}: {case}"
        assert np.array_equal(zarr.open_array(path, mode="r")[...], case.array), f"seed {seed}"


@pytest.mark.parametrize("held", [1, 2000, 1 << 20])
def test_the_cpus_writer_makes_the_same_of_an_image(tmp_path, host, monkeypatch, held):
    monkeypatch.setattr("weft.store.cuda.pyramid.HELD", held)
    data = np.random.default_rng(0).poisson(100, (7, 30, 44)).astype("uint16")
    for where in ("cpu", "cuda"):
        with create_image(
            tmp_path / where, (None, 30, 44), "uint16", (2, 16, 16), (4, 32, 32), axes="tyx",
            factors=(2, 2, 2), levels=3, device=where,
        ) as writer:  # fmt: skip
            for start in range(0, 7, 3):
                writer.append(data[start : start + 3])
    ours, theirs = open_image(tmp_path / "cuda"), open_image(tmp_path / "cpu")
    for one, two in zip(ours.levels, theirs.levels):
        assert np.array_equal(one.read(), two.read())


@pytest.mark.slow
@pytest.mark.parametrize("name", CODECS)
def test_checksums_are_those_of_the_cpu(tmp_path, host, name):
    """Chunks of more than one part of the kernel, with and without a checksum."""
    data = np.random.default_rng(0).poisson(2, (6, 200, 300)).astype("uint16")
    data[2] = 0
    for checksum in (True, False):
        path = tmp_path / str(checksum)
        with create(
            path, (None, 200, 300), "uint16", (1, 200, 300), (2, 200, 300), codecs=CODECS[name],
            checksum=checksum, device="cuda",
        ) as writer:  # fmt: skip
            writer.append(Array(data))
        found = open_store(path).verify()
        assert (found, found.matched, found.decoded) == (5, 5 * checksum, 5 * (not checksum))
        for read in (read_by_weft, read_by_zarr, read_by_tensorstore, read_by_zarrs):
            assert np.array_equal(read(path), data), read


def test_memory_metrics_and_failures(tmp_path, host, monkeypatch):
    data = np.random.default_rng(0).poisson(100, (16, 64, 64)).astype("uint16")
    writer = create(
        tmp_path / "a", (None, 64, 64), "uint16", (4, 32, 32), (8, 64, 64), device="cuda", epochs=1
    )
    writer.append(Array(data))
    writer.flush()
    told = writer.metrics()
    assert list(told.stages) == ["arrive", "compress", "aggregate", "leave", "write", "publish"]
    assert (told.safe, told.stages["leave"].bytes) == (16, data.nbytes + 16 * 4)
    pipeline = writer._pipeline
    made = pipeline._memory.device + pipeline._memory.pinned + pipeline._scatter.nbytes
    room = 3 * pipeline._sizes.epochs * pipeline._sizes.elements  # for blocks of the host
    assert made == pipeline.memory.total - room

    def broken(*_):
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(pipeline._encoder, "put", broken)
    with pytest.raises(
        WeftError, match=r"stage compute, epochs \(4,\) to \(4,\).*16 of \d+ frames"
    ):
        writer.append(Array(data[:8]))
    with pytest.raises(WeftError, match="writing failed before"):
        writer.append(Array(data))
    writer.close()
    assert np.array_equal(open_store(tmp_path / "a").read(), data)


def test_invalid_arguments_are_refused_before_anything_is_written(tmp_path, host):
    for more, message in [
        ({"codecs": [Blosc("lz4", 5, "shuffle")]}, r"no encoder for \['blosc'\] as given"),
        ({"codecs": [Crc32c(), Zstd(1)]}, r"no encoder for \['crc32c', 'zstd'\] as given"),
        ({"encoder": "zlib"}, "'zlib' is neither weft nor nvcomp"),
        ({"codecs": [Zstd(1)], "encoder": "nvcomp"}, "nvCOMP is needed and not installed"),
    ]:
        with pytest.raises(WeftError, match=message):
            create(tmp_path / "a", (None, 8), "uint8", (4, 8), device="cuda", **more)
    assert not (tmp_path / "a" / "zarr.json").exists()
    with pytest.raises(WeftError, match="encoder: 'nvcomp' is for device='cuda'"):
        create(tmp_path / "a", (None, 8), "uint8", (4, 8), encoder="nvcomp")
    with pytest.raises(WeftError, match="'tpu' is neither cpu nor cuda"):
        create(tmp_path / "a", (None, 8), "uint8", (4, 8), device="tpu")


def test_without_cupy_or_a_gpu(tmp_path, monkeypatch):
    needed.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(WeftError, match="device='cuda' needs CuPy, which is not installed"):
        create(tmp_path / "a", (None, 8), "uint8", (4, 8), device="cuda")
    monkeypatch.setitem(sys.modules, "cupy", host_without_gpu())
    with pytest.raises(WeftError, match="device='cuda' needs a GPU, and there is none"):
        create(tmp_path / "a", (None, 8), "uint8", (4, 8), device="cuda")
    needed.cache_clear()


def host_without_gpu():
    made = Host(None)
    made.cuda.runtime.getDeviceCount = lambda: 0
    return made


@pytest.mark.parametrize("name", ["none", "runs"])
def test_planes_are_put_many_at_a_time(tmp_path, host, name):
    """Blocks of many planes, in batches of four: whole launches, cut ones, and single planes."""
    data = np.random.default_rng(0).poisson(2, (9, 3, 20, 30)).astype("uint16")
    data[2, 1] = 0
    with create(
        tmp_path / "a", (None, 3, 20, 30), "uint16", (1, 1, 8, 16), (2, 2, 16, 32),
        codecs=CODECS[name], device="cuda", epochs=4,
    ) as writer:  # fmt: skip
        writer.append(Array(data[:3]))
        writer.append(Array(data[3, 0]))
        writer.append(data[3, 1:])
        writer.append(Array(data[4:8].reshape(-1, 20, 30)[:11]))
        writer.append_rows(Array(data[7, 2, :5]))
        writer.append_rows(Array(data[7, 2, 5:]))
        writer.append(Array(data[8:]))
    array = open_store(tmp_path / "a")
    assert np.array_equal(array.read(), data)
    assert array.verify() == (27 - 1) * 3 * 2
