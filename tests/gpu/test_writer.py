"""The writer on a GPU: what it writes is what the CPU's writes, decoded."""

import numpy as np
import pytest
from tests.store.cases import Case
from tests.store.reference.literals import encode_literals, encode_zstd
from tests.store.reference.runs import encode_runs
from tests.trials import trials

from weft import WeftError
from weft.store import Blosc, Crc32c, Gzip, Zstd, create
from weft.store import open as open_store
from weft.store.codecs import checksum as encoded_checksum
from weft.store.cuda.encoders import library

cupy = pytest.importorskip("cupy", reason="no CuPy")
if not cupy.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

CASES = trials(60)
CODECS = {
    "none": (),
    "runs": (Blosc("lz4", 5, "bitshuffle"),),
    "literals": (Blosc("zstd", 1, "shuffle"),),
    "zstd": (Zstd(1),),
}


def has_nvcomp():
    try:
        return bool(library())
    except WeftError:
        return False


def given(case, block):
    """A block as people have it: on the host, pinned, or on the device, strided or not."""
    kind = int(case.rng.integers(4))
    if kind == 0:
        return block
    if kind == 1:
        memory = cupy.cuda.alloc_pinned_memory(max(1, block.nbytes))
        pinned = np.frombuffer(memory, block.dtype, block.size).reshape(block.shape)
        pinned[...] = block
        return pinned
    if kind == 2:
        return cupy.asarray(block)
    return cupy.repeat(cupy.asarray(block), 2, axis=-1)[..., ::2]


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
def test_arrays_hold_what_was_appended(tmp_path, codecs):
    for seed in range(CASES):
        case = Case(seed)
        path = tmp_path / f"a{seed}"
        options = case.options | {"codecs": codecs}
        with create(
            path, case.given_shape, case.dtype, case.chunks, case.shards, device="cuda",
            epochs=int(case.rng.integers(1, 5)), **options,
        ) as writer:  # fmt: skip
            for block in case.blocks():
                writer.append_rows(given(case, block))
                if case.rng.random() < 0.2:
                    writer.flush()
                    count = writer.safe * writer.layout.frame_size
                    seen = open_store(path).read().transpose(case.axis_order).reshape(-1)[:count]
                    assert np.array_equal(seen, case.stream.reshape(-1)[:count]), f"{seed}: {case}"
        array = open_store(path)
        found = array.read()
        assert found.dtype == case.array.dtype, f"seed {seed}: {case}"
        assert np.array_equal(found, case.array), f"seed {seed}: {case}"
        checked = array.verify()
        assert checked.matched == checked, f"seed {seed}: {case}"


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("width", [16, 200, 700], ids=str)
def test_checksums_are_those_of_the_cpu(tmp_path, codecs, width):
    """Chunks of less than a thread's slice, of one part of the kernel, and of many."""
    rng = np.random.default_rng(width)
    data = rng.poisson(2, (12, width, width)).astype("uint16")
    data[3] = 0
    data[5] = rng.integers(0, 65536, (width, width))
    for checksum in (True, False):
        path = tmp_path / str(checksum)
        with create(
            path, (None, width, width), "uint16", (1, width, width), (4, width, width),
            codecs=codecs, checksum=checksum, device="cuda",
        ) as writer:  # fmt: skip
            writer.append(cupy.asarray(data))
        array = open_store(path)
        found = array.verify()
        assert (found, found.matched, found.decoded) == (11, 11 * checksum, 11 * (not checksum))
        assert np.array_equal(array.read(), data)


def test_memory_is_as_predicted(tmp_path):
    frame = cupy.random.randint(0, 400, (512, 512)).astype("uint16")
    for codecs in CODECS.values():
        with create(
            tmp_path / str(codecs), (None, 512, 512), "uint16", (8, 128, 128),
            (16, 512, 512), codecs=codecs, device="cuda",
        ) as writer:  # fmt: skip
            for _ in range(256):
                writer.append(frame)
            pipeline = writer._pipeline
            made = pipeline._memory.device + pipeline._memory.pinned + pipeline._scatter.nbytes
            room = 3 * pipeline._sizes.epochs * pipeline._sizes.elements  # for blocks of the host
            assert made == pipeline.memory.total - room
        assert open_store(tmp_path / str(codecs)).verify() == 256 // 8 * 16


@pytest.mark.parametrize("codec", [Zstd(1), Gzip(1)], ids=["zstd", "gzip"])
def test_nvcomp(tmp_path, codec):
    if not has_nvcomp():
        pytest.skip("no nvCOMP")
    data = np.random.default_rng(0).poisson(200, (32, 256, 256)).astype("uint16")
    data[8:16] = 0
    with create(
        tmp_path / "a", (None, 256, 256), "uint16", (8, 64, 64), (16, 256, 256),
        codecs=[codec], device="cuda", encoder="nvcomp",
    ) as writer:  # fmt: skip
        writer.append(data)
    array = open_store(tmp_path / "a")
    assert np.array_equal(array.read(), data)
    assert array.verify() == 3 * 16


@pytest.mark.parametrize("codecs", list(CODECS.values())[1:], ids=list(CODECS)[1:])
def test_frames_are_those_of_the_reference(tmp_path, codecs):
    """Byte for byte what NumPy makes, on data that compress well, badly and not at all."""
    rng = np.random.default_rng(0)
    data = np.concatenate([
        rng.poisson(200, (8, 128, 128)).astype("uint16"),
        rng.integers(0, 65536, (8, 128, 128)).astype("uint16"),
        np.full((8, 128, 128), 7, "uint16"),
        rng.poisson(3, (8, 128, 128)).astype("uint16"),
    ])  # fmt: skip
    with create(
        tmp_path / "a", data.shape, "uint16", (8, 128, 128), (8, 128, 128), codecs=codecs,
        device="cuda",
    ) as writer:  # fmt: skip
        writer.append(cupy.asarray(data))
    for number in range(4):
        chunk = data[8 * number : 8 * number + 8].tobytes()
        made = (tmp_path / "a" / "c" / f"{number}" / "0" / "0").read_bytes()[:-20]
        made, stored = made[:-4], made[-4:]
        assert stored == encoded_checksum(made)
        if isinstance(codecs[0], Zstd):
            assert made == encode_zstd(chunk)
        else:
            encode = encode_runs if codecs[0].cname == "lz4" else encode_literals
            assert made == encode(chunk, 2)


def test_metrics_and_refusals(tmp_path):
    for codecs in ([Blosc("lz4", 5, "shuffle")], [Crc32c(), Zstd(1)]):
        with pytest.raises(WeftError, match=r"device='cuda' has no encoder for \["):
            create(tmp_path / "a", (None, 8), "uint8", (4, 8), codecs=codecs, device="cuda")
    with pytest.raises(WeftError, match="'zlib' is neither weft nor nvcomp"):
        create(tmp_path / "a", (None, 8), "uint8", (4, 8), device="cuda", encoder="zlib")
    with create(tmp_path / "b", (None, 64, 64), "uint16", (4, 64, 64), device="cuda") as writer:
        for _ in range(8):
            writer.append(np.ones((1, 64, 64), "uint16"))
        writer.flush()
        told = writer.metrics()
    assert told.safe == 8
    assert list(told.stages) == ["arrive", "compress", "aggregate", "leave", "write", "publish"]
    assert told.stages["leave"].bytes == 8 * 64 * 64 * 2 + 2 * 4
