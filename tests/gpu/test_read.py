"""Reading to a GPU: the elements that the CPU's reader gives, and the same refusals."""

from array import array

import numpy as np
import pytest
from tests.store.cases import Case
from tests.store.cuda.test_decode_kernels import damage
from tests.store.foreign import WRITERS, described, values
from tests.trials import trials

from weft import WeftError, ZRange
from weft.store import Blosc, Crc32c, Gzip, Lz4, Zstd, create
from weft.store import open as open_store
from weft.store.cuda.decoders import chunk_decoder
from weft.store.cuda.read import DeviceReader
from weft.store.shard import Index

cupy = pytest.importorskip("cupy", reason="no CuPy")
if not cupy.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

CASES = trials(200)
DAMAGED = trials(20_000)
CODECS = {
    "none": (),
    "lz4": (Lz4(),),
    "zstd": (Zstd(1),),
    "zstd-9": (Zstd(9),),
    "zstd-checksum": (Zstd(3, checksum=True),),
    "gzip": (Gzip(1),),
    **{
        f"{cname}-{shuffle}": (Blosc(cname, 5, shuffle),)
        for cname in ("lz4", "lz4hc", "zstd", "blosclz")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
}


def random_box(rng, shape):
    low = [int(rng.integers(0, n + 1)) for n in shape]
    high = [int(rng.integers(a, n + 1)) for a, n in zip(low, shape)]
    return ZRange(low, high) if rng.random() < 0.7 else ZRange.of(shape)


def check(opened, box, message=""):
    found, wanted = opened.read(box, device="cuda"), opened.read(box)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), message
    assert found.get().tobytes() == wanted.tobytes(), message


def test_arrays_of_weft(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.store.cuda.read.MIN_BATCH", 300)  # several batches in every lane
    names = list(CODECS)
    for seed in range(CASES):
        case = Case(seed)
        codecs = CODECS[names[seed % len(names)]]
        with create(
            tmp_path / f"a{seed}", case.given_shape, case.dtype, case.chunks, case.shards,
            checksum=bool(seed % 2), **(case.options | {"codecs": codecs}),
        ) as writer:  # fmt: skip
            for block in case.blocks():
                writer.append_rows(block)
        opened = open_store(tmp_path / f"a{seed}")
        for box in (None, *(random_box(case.rng, case.shape) for _ in range(3))):
            check(opened, box, f"seed {seed}: {case}")


@pytest.mark.parametrize("writer", ["zarr-python", "tensorstore"])
def test_arrays_of_others(tmp_path, writer):
    for seed in range(CASES):
        metadata = described(seed)
        WRITERS[writer](tmp_path / f"a{seed}", metadata, values(metadata, seed))
        rng, opened = np.random.default_rng(seed), open_store(tmp_path / f"a{seed}")
        for box in (None, random_box(rng, metadata.shape)):
            check(opened, box, f"seed {seed}: {metadata}")


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
def test_images(tmp_path, codecs):
    """Chunks of many blocks, of photon noise, of nothing, and of what cannot be compressed."""
    rng = np.random.default_rng(0)
    x = np.arange(512)
    signal = 200 + 100 * np.sin(x / 40) + 80 * np.cos(x[:, None] / 35)
    data = rng.poisson(signal, (40, 512, 512)).astype("uint16")
    data[16:20] = 0
    data[20:24] = rng.integers(0, 65536, (4, 512, 512))
    with create(
        tmp_path / "a", (None, 512, 512), "uint16", (4, 200, 256), (16, 400, 512), codecs=codecs
    ) as writer:
        writer.append(data)
    opened = open_store(tmp_path / "a")
    assert np.array_equal(opened.read(device="cuda").get(), data)
    check(opened, ZRange((3, 17, 5), (39, 500, 301)))
    out = cupy.empty((40, 512, 512), "uint16")
    assert opened.read(out=out, device=cupy.cuda.Device(0)) is out
    assert np.array_equal(out.get(), data)


@pytest.mark.parametrize("name", ["runs", "literals", "zstd"])
def test_what_the_gpu_wrote(tmp_path, name):
    codec = {
        "runs": Blosc("lz4", 5, "bitshuffle"),
        "literals": Blosc("zstd", 1, "shuffle"),
        "zstd": Zstd(1),
    }[name]
    data = np.random.default_rng(0).poisson(200, (32, 256, 256)).astype("uint16")
    with create(
        tmp_path / "a", (None, 256, 256), "uint16", (8, 64, 64), (16, 256, 256), codecs=[codec],
        device="cuda",
    ) as writer:  # fmt: skip
        writer.append(cupy.asarray(data))
    opened = open_store(tmp_path / "a")
    assert np.array_equal(opened.read(device="cuda").get(), data)


@pytest.mark.parametrize("name", ["lz4-shuffle", "lz4-bitshuffle", "zstd-shuffle", "zstd", "lz4"])
def test_damaged_frames(tmp_path, name):
    """Thousands of damaged chunks at a time: those that the device accepts, the CPU reads alike."""
    rng = np.random.default_rng(0)
    count = 500
    data = rng.poisson(rng.integers(1, 300, (count, 1)), (count, 3000)).astype("uint16")
    with create(
        tmp_path / "a", data.shape, "uint16", (1, 3000), (count, 3000), codecs=CODECS[name],
        checksum=False,
    ) as writer:  # fmt: skip
        writer.append_rows(data)
    file = tmp_path / "a" / "c" / "0" / "0"
    stored, size = file.read_bytes(), 16 * count + 4
    index = Index.parse(stored[-size:], count)
    whole = [stored[a : a + n] for a, n in zip(index.offsets, index.sizes)]
    accepted = 0
    for _ in range(max(1, DAMAGED // count)):
        frames = [damage(rng, frame) for frame in whole]
        made = Index.empty(count)
        sizes = np.array([len(frame) for frame in frames], "u8")
        made.sizes[:] = array("Q", sizes.tobytes())
        made.offsets[:] = array("Q", (np.cumsum(sizes) - sizes).tobytes())
        file.write_bytes(b"".join(frames) + made.to_bytes())
        opened = open_store(tmp_path / "a")
        decoder = chunk_decoder(opened.metadata.codecs)
        out = cupy.empty(data.shape, "uint16")
        reader = DeviceReader(cupy, opened._format, opened._shards, decoder, None)
        failed = {box.start[0] for box in reader.fill(opened.box, out)}
        found = out.get()
        for row in set(range(count)) - failed:
            box = ZRange((row, 0), (row + 1, 3000))
            assert np.array_equal(opened.read(box)[0], found[row]), row
            accepted += 1
        with pytest.raises(WeftError, match=r"c/0/0: chunk \d+"):
            opened.read(device="cuda")
    assert accepted


def test_checksums(tmp_path):
    data = np.random.default_rng(0).poisson(9, (64, 4000)).astype("uint16")
    with create(
        tmp_path / "a", data.shape, "uint16", (4, 4000), (64, 4000), codecs=[Crc32c()]
    ) as writer:
        writer.append_rows(data)
    file = tmp_path / "a" / "c" / "0" / "0"
    whole = file.read_bytes()
    assert np.array_equal(open_store(tmp_path / "a").read(device="cuda").get(), data)
    for place in (0, 31_999, 32_000, 32_004, 100_000, 16 * 32_004 - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(WeftError, match=r"c/0/0: chunk \d+, .*checksum mismatch"):
            open_store(tmp_path / "a").read(device="cuda")


def test_refusals(tmp_path):
    with create(tmp_path / "a", (4, 4), "uint8", (4, 4)) as writer:
        writer.append_rows(np.ones((4, 4), "uint8"))
    opened = open_store(tmp_path / "a")
    with pytest.raises(WeftError, match="there is no 'cuda:99'"):
        opened.read(device="cuda:99")
    with pytest.raises(WeftError, match="out must be a CuPy array"):
        opened.read(out=np.zeros((4, 4), "uint8"), device="cuda")
    with pytest.raises(WeftError, match=r"out must be uint8\[4, 4\] on GPU 0"):
        opened.read(out=cupy.zeros((4, 5), "uint8"), device="cuda")
