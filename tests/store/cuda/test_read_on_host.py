"""Reading to a GPU, with its kernels on the host: the elements that the CPU's reader gives."""

import sys
import threading

import numcodecs
import numpy as np
import pytest
import zarr
from tests.store.cases import Case
from tests.store.cuda.host import needs_compiler
from tests.store.cuda.host_cupy import Array, Host
from tests.store.foreign import WRITERS, described, values
from tests.trials import trials

from weft import WeftError, ZRange
from weft.extra import needed
from weft.store import Blosc, Crc32c, Lz4, create
from weft.store import open as open_store
from weft.store.cuda import device

CASES = trials(60, fewest=3)
FOREIGN = trials(40, fewest=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    needs_compiler()
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def compiled(folder):
    return Host(folder)


@pytest.fixture
def host(monkeypatch, compiled):
    monkeypatch.setitem(sys.modules, "cupy", compiled)
    needed.cache_clear()
    device.module.cache_clear()
    yield compiled
    needed.cache_clear()
    device.module.cache_clear()


def random_box(rng, shape):
    """A box that may be empty, or whole, or one element."""
    low = [int(rng.integers(0, n + 1)) for n in shape]
    high = [int(rng.integers(a, n + 1)) for a, n in zip(low, shape)]
    return ZRange(low, high) if rng.random() < 0.7 else ZRange.of(shape)


def check(array, box, message):
    found = array.read(box, device="cuda")
    wanted = array.read(box)
    assert isinstance(found, Array)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), message
    assert np.array_equal(found.array, wanted, equal_nan=wanted.dtype.kind in "fc"), message


def test_arrays_of_weft(tmp_path, host, monkeypatch):
    monkeypatch.setattr("weft.store.cuda.read.MIN_BATCH", 300)  # several batches in every lane
    monkeypatch.setattr("weft.store.cuda.read.PIECE", 128)
    monkeypatch.setattr("weft.store.cuda.read._LOCAL", threading.local())
    for seed in range(CASES):
        case = Case(seed)
        codecs = [case.codecs, (Blosc("lz4", 5, "bitshuffle"),), (Lz4(), Crc32c())][seed % 3]
        with create(
            tmp_path / f"a{seed}", case.given_shape, case.dtype, case.chunks, case.shards,
            checksum=bool(seed % 2), **(case.options | {"codecs": codecs}),
        ) as writer:  # fmt: skip
            for block in case.blocks():
                writer.append_rows(block)
        array = open_store(tmp_path / f"a{seed}")
        assert np.array_equal(array.read(device="cuda").array, case.array), f"seed {seed}: {case}"
        for _ in range(3):
            check(array, random_box(case.rng, case.shape), f"seed {seed}: {case}")


@pytest.mark.parametrize("writer", ["zarr-python", "tensorstore"])
def test_arrays_of_others(tmp_path, host, writer):
    for seed in range(FOREIGN):
        metadata = described(seed)
        WRITERS[writer](tmp_path / f"a{seed}", metadata, values(metadata, seed))
        rng, array = np.random.default_rng(seed), open_store(tmp_path / f"a{seed}")
        for box in (None, random_box(rng, metadata.shape), random_box(rng, metadata.shape)):
            check(array, box, f"seed {seed}: {metadata}")


def stored(path, codecs="blosc-lz4", **more):
    data = np.random.default_rng(0).poisson(100, (8, 48, 64)).astype("uint16")
    with create(
        path, (None, 48, 64), "uint16", (4, 16, 32), (8, 48, 64), codecs=codecs, **more
    ) as writer:
        writer.append(data)
    return data, open_store(path)


def test_damaged_chunks_are_refused_as_by_the_cpu(tmp_path, host):
    data, array = stored(tmp_path / "a")
    shard = next(file for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    whole = shard.read_bytes()
    for place in (3, 1000, 5000):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(WeftError) as refused:
            array.read()
        with pytest.raises(WeftError, match=r"c/0/0/0: chunk \d+, \[.*checksum mismatch") as error:
            array.read(device="cuda")
        assert str(error.value) == str(refused.value)
    shard.write_bytes(whole)
    assert np.array_equal(array.read(device="cuda").array, data)
    shard.write_bytes(whole[:-1])
    with pytest.raises(WeftError, match="index"):
        open_store(tmp_path / "a").read(device="cuda")


def test_damaged_frames_without_checksums(tmp_path, host):
    rng = np.random.default_rng(0)
    _, array = stored(tmp_path / "a", checksum=False)
    shard = next(file for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    whole = shard.read_bytes()
    for _ in range(trials(300)):
        changed = bytearray(whole)
        for place in rng.integers(0, len(whole) - 16 * 12 - 4, 3):
            changed[place] = int(rng.integers(256))
        shard.write_bytes(changed)
        try:
            wanted = array.read()
        except WeftError as error:
            with pytest.raises(type(error), match=r"chunk \d+"):
                array.read(device="cuda")
        else:
            assert np.array_equal(array.read(device="cuda").array, wanted)


def test_files_of_single_chunks_and_missing_ones(tmp_path, host):
    data = np.random.default_rng(0).integers(0, 9, (40, 50)).astype("int32")
    with create(
        tmp_path / "a", (40, 50), "int32", (8, 16), codecs="blosc-lz4", fill_value=7
    ) as writer:
        writer.append_rows(data)
    array = open_store(tmp_path / "a")
    check(array, None, "whole")
    (tmp_path / "a" / "c" / "1" / "2").unlink()
    check(array, None, "a chunk is missing")
    check(array, ZRange((3, 5), (33, 49)), "a chunk is missing")


@pytest.mark.parametrize("shards", [None, (8, 32)], ids=["chunks", "shards"])
def test_objects(host, shards):
    data = np.random.default_rng(0).integers(0, 9, (16, 50)).astype("int32")
    url = f"memory://read-to-a-gpu-{shards}/a.zarr"
    with create(url, (16, 50), "int32", (4, 16), shards, codecs="blosc-lz4") as writer:
        writer.append_rows(data)
    array = open_store(url)
    assert np.array_equal(array.read(device="cuda").array, data)
    check(array, ZRange((3, 5), (13, 49)), "a part")


def test_arrays_without_dimensions(tmp_path, host):
    for codec in (None, numcodecs.Blosc("lz4")):
        path = tmp_path / str(codec)
        made = zarr.create_array(path, shape=(), dtype="int32", zarr_format=2, compressors=codec)
        check(open_store(path), None, "nothing is stored")
        made[...] = 7
        check(open_store(path), None, "an element")


def test_out_and_devices(tmp_path, host):
    data, array = stored(tmp_path / "a")
    out = host.empty((8, 48, 64), np.uint16)
    assert array.read(out=out, device="cuda:0") is out
    assert np.array_equal(out.array, data)
    strided = Array(np.zeros((8, 48, 128), np.uint16)[..., ::2])
    array.read(out=strided, device=host.cuda.Device(0))
    assert np.array_equal(strided.array, data)
    for out, message in [
        (np.zeros((8, 48, 64), "u2"), "out must be a CuPy array to read to a GPU, got ndarray"),
        (host.empty((8, 48), np.uint16), r"out must be uint16\[8, 48, 64\] on GPU 0"),
    ]:
        with pytest.raises(WeftError, match=message):
            array.read(out=out, device="cuda")
    for name in ("tpu", "cuda:x", "cuda:-1"):
        with pytest.raises(WeftError, match="is not a device"):
            array.read(device=name)
    with pytest.raises(WeftError, match="there is no 'cuda:1'"):
        array.read(device="cuda:1")


def test_memory_of_the_gpu(tmp_path, host, monkeypatch):
    """Fewer batches at a time where there is less memory; an error where there is too little."""
    data, array = stored(tmp_path / "a")
    monkeypatch.setattr("weft.store.cuda.read.MIN_BATCH", 1)
    empty, left = host.empty, 0

    def limited(*given):
        nonlocal left
        left -= 1
        if left < 0:
            raise MemoryError("out of memory")
        return empty(*given)

    monkeypatch.setattr(host, "empty", limited)
    for count, message in [(0, "no memory for the 49152 B of"), (3, "no memory for the .* chunks")]:
        left = count
        with pytest.raises(WeftError, match=message):
            array.read(device="cuda")
    for count in (6, 13, 100):
        left = count
        assert np.array_equal(array.read(device="cuda").array, data)


def test_codecs_of_the_host(tmp_path, host):
    for codecs in ("gzip", "zstd", "blosc-zstd", [Blosc("zlib", 1, "shuffle")], [Crc32c(), Lz4()]):
        data, array = stored(tmp_path / str(codecs), codecs)
        assert np.array_equal(array.read(device="cuda").array, data)


def test_a_file_that_is_cut_while_it_is_read(tmp_path, host):
    _, array = stored(tmp_path / "a", codecs="none")
    array.read(device="cuda")
    shard = next(file for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(WeftError, match="c/0/0/0"):
        array.read(device="cuda")


def test_without_cupy(tmp_path, monkeypatch):
    _, array = stored(tmp_path / "a")
    needed.cache_clear()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(WeftError, match="device='cuda' needs CuPy, which is not inst") as error:
        array.read(device="cuda")
    assert "pip install 'weft[cuda13]'" in " ".join(error.value.__notes__)
    needed.cache_clear()
