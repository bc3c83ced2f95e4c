"""What is stored is what others read, and what others store is read."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorstore
import zarr
import zarrs  # noqa: F401  registers nothing; it is imported so that it is there
from tests.store.cases import OWN, Case
from tests.trials import trials

from weft import WeftError, ZRange
from weft.store import Blosc, CodecError, ShardError, Zstd, create
from weft.store import open as open_store
from weft.store.codecs import checksum
from weft.store.shard import ABSENT, Index, index_size

KILLS = trials(6)
CASES = trials(300)


def stored(folder, case, **more):
    path = folder / "array"
    options = case.options | more
    with create(
        path, case.given_shape, case.dtype, case.chunks, case.shards, overwrite=True, **options
    ) as writer:
        for block in case.blocks():
            writer.append_rows(block)
    return path


def read_by_tensorstore(path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open(spec).result().read().result()


def read_by_zarrs(path):
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return zarr.open_array(path, mode="r")[...]


def same(one, two):
    return one.dtype == two.dtype and one.shape == two.shape and np.array_equal(one, two)


def test_arrays_are_read_back_by_all_readers(tmp_path):
    for seed in range(CASES):
        case = Case(seed)
        path = stored(tmp_path, case)
        array = open_store(path)
        assert same(array.read(), case.array), f"seed {seed}: {case}"
        assert array.verify() == count_chunks(path, array), f"seed {seed}: {case}"
        assert same(zarr.open_array(path, mode="r")[...], case.array), f"seed {seed}: {case}"
        if not (case.codecs and case.order):
            assert same(read_by_tensorstore(path), case.array), f"seed {seed}: {case}"
        # zarrs turns all sixteen bytes of a big-endian complex around, and not each half.
        if seed % 3 == 0 and not (case.endian == "big" and "complex" in case.dtype):
            assert same(read_by_zarrs(path), case.array), f"seed {seed}: {case}"


def count_chunks(path, array):
    """The chunks of all shards; every byte of every shard belongs to a chunk or to the index."""
    total = 0
    slots = array.layout.slots
    for file in (path / "c").rglob("*"):
        if not file.is_file():
            continue
        assert not file.name.startswith("."), "nothing is left aside"
        data = file.read_bytes()
        first = array.metadata.index_location == "start"
        raw = data[: index_size(slots)] if first else data[-index_size(slots) :]
        index = Index.parse(raw, slots)
        spans = sorted((index.offsets[n], index.sizes[n]) for n in index.stored_slots())
        at = index_size(slots) if first else 0
        for offset, size in spans:
            assert offset == at
            at += size
        assert at + (0 if first else index_size(slots)) == len(data)
        total += len(spans)
    return total


def test_chunks_of_fill_value_are_not_stored_and_every_shard_is(tmp_path):
    with create(tmp_path / "a", (8, 8), "float32", (2, 2), (4, 4), fill_value=np.nan) as writer:
        block = np.full((8, 8), np.nan, "float32")
        block[5, 5] = 1.0
        writer.append(block)
    assert open_store(tmp_path / "a").verify() == 1
    sizes = {at: (tmp_path / "a" / "c" / at).stat().st_size for at in ("0/0", "0/1", "1/0", "1/1")}
    assert sizes == {"0/0": 68, "0/1": 68, "1/0": 68, "1/1": 68 + 16 + 4}


def test_bfloat16_with_a_fill_value(tmp_path):
    """Two bytes of a number, as tensorstore knows it; the fill value is written as a number."""
    with create(tmp_path / "a", (4, 4), "bfloat16", (2, 4), fill_value=1.0) as writer:
        writer.append(np.full((2, 4), 0x3F80, "uint16"))  # all fill value: 1.0
        writer.append(np.full((2, 4), 0x4000, "uint16"))  # 2.0
    array = open_store(tmp_path / "a")
    assert json.loads(array.metadata.to_json())["fill_value"] == 1.0
    assert array.verify() == 1
    assert array.read().tolist() == [[0x3F80] * 4] * 2 + [[0x4000] * 4] * 2
    assert (
        read_by_tensorstore(tmp_path / "a").astype("float32").tolist()
        == [[1.0] * 4] * 2 + [[2.0] * 4] * 2
    )


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("codecs", OWN)
def test_codecs_that_few_readers_support(tmp_path, codecs):
    array = np.arange(100, dtype="int32").reshape(10, 10)
    with create(tmp_path / "a", (10, 10), "int32", (4, 4), (8, 8), codecs=codecs) as writer:
        writer.append(array)
    assert same(open_store(tmp_path / "a").read(), array)
    assert same(zarr.open_array(tmp_path / "a", mode="r")[...], array)


def test_boxes(tmp_path):
    for seed in range(CASES // 3):
        case = Case(seed)
        array = open_store(stored(tmp_path, case))
        for _ in range(4):
            start = [int(case.rng.integers(0, n)) for n in case.shape]
            stop = [int(case.rng.integers(a, n + 1)) for a, n in zip(start, case.shape)]
            box = ZRange(start, stop)
            assert same(array.read(box), case.array[box.slices()]), f"seed {seed}: {case} {box}"
    with pytest.raises(WeftError, match="is not inside the array"):
        array.read(ZRange.of([n + 1 for n in case.shape]))


def test_arrays_of_other_writers_are_read(tmp_path):
    for seed in range(CASES // 3):
        case = Case(seed)
        path = tmp_path / f"zarr{seed}"
        wanted = json.loads(open_store(stored(tmp_path, case)).metadata.to_json())
        del wanted["attributes"]
        made = zarr.create_array(
            path,
            shape=case.shape,
            dtype=case.dtype,
            chunks=case.chunks,
            shards=case.shards,
            compressors=zarr.codecs.ZstdCodec() if seed % 2 else zarr.codecs.BloscCodec(),
            fill_value=case.fill,
        )
        made[...] = case.array
        assert same(open_store(path).read(), case.array), f"seed {seed}: {case}"
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(tmp_path / f"ts{seed}")},
        }
        if not (case.codecs and case.order):
            other = tensorstore.open(spec | {"metadata": wanted}, create=True).result()
            other.write(case.array).result()
            assert same(open_store(tmp_path / f"ts{seed}").read(), case.array), f"seed {seed}"


def test_streams_of_several_leading_dimensions(tmp_path):
    array = np.random.default_rng(0).integers(0, 9, (3, 2, 4, 6, 5)).astype("uint8")
    shape = (None, 2, 4, 6, 5)
    with create(tmp_path / "a", shape, "uint8", (1, 1, 1, 4, 4), (2, 2, 3, 4, 8)) as writer:
        for plane in array.reshape(-1, 6, 5):
            writer.append(plane)
    assert same(open_store(tmp_path / "a").read(), array)
    assert same(zarr.open_array(tmp_path / "a", mode="r")[...], array)


def test_invalid_arguments_are_refused(tmp_path):
    def make(shape=(4, 4), dtype="uint8", chunks=(2, 2), shards=(4, 4), **more):
        return create(tmp_path / "a", shape, dtype, chunks, shards, **more)

    for arguments, message in [
        ({"shape": (4,)}, "must have one rank"),
        ({"shards": (3, 4)}, "dimension 0: chunks of 2 do not fill shards of 3"),
        ({"shape": (4, None)}, "dimension 1 cannot be unbounded"),
        ({"dtype": "str"}, "cannot be stored in Zarr v3"),
        ({"fill_value": 300}, "300 is not of uint8"),
        ({"order": (0, 0)}, "is not a permutation of 2 dimensions"),
        ({"index_location": "middle"}, "neither start nor end"),
        ({"dimension_names": ["x"]}, "dimension_names: expected 2 names"),
    ]:
        with pytest.raises(WeftError, match=message):
            make(**arguments)
    with make() as writer:
        with pytest.raises(WeftError, match="the array holds uint8, and the block int64"):
            writer.append(np.zeros((1, 4), int))
        with pytest.raises(WeftError, match=r"is not a frame of .*: a frame is \[4\]"):
            writer.append(np.zeros((1, 5), "uint8"))
        writer.append(np.zeros((4, 4), "uint8"))
        with pytest.raises(WeftError, match="goes past the end of"):
            writer.append(np.zeros((1, 4), "uint8"))
    with pytest.raises(WeftError, match="is closed"):
        writer.append(np.zeros((1, 4), "uint8"))
    with pytest.raises(WeftError, match="holds an array already"):
        make()
    with pytest.raises(WeftError, match="the folder does not exist"):
        open_store(tmp_path / "b")


def test_a_damaged_shard_is_found(tmp_path):
    array = np.random.default_rng(0).integers(0, 99, (8, 8)).astype("uint16")
    with create(
        tmp_path / "a", (8, 8), "uint16", (4, 4), (8, 8), codecs=[Zstd(1, checksum=True)]
    ) as writer:
        writer.append(array)
    file = tmp_path / "a" / "c" / "0" / "0"
    good = file.read_bytes()
    for damaged in (
        good[:-1],
        good[:40],
        b"",
        bytes([good[0] ^ 1]) + good[1:],
        good[:-9] + b"123456789",
    ):
        file.write_bytes(damaged)
        with pytest.raises(ShardError, match="c/0/0"):
            open_store(tmp_path / "a").verify()
    rng = np.random.default_rng(1)
    for _ in range(CASES):
        damaged = bytearray(good)
        damaged[int(rng.integers(len(good)))] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        try:
            found = open_store(tmp_path / "a").read()
        except ShardError:
            continue
        assert same(found, array)  # a bit of a frame's header that says nothing


def test_an_index_that_points_outside_is_refused():
    index = Index.empty(2)
    index.offsets[1], index.sizes[1] = 90, 20
    assert Index.parse(index.to_bytes(), 2) == index
    assert index.misplaced(0, 100) == 1
    assert index.misplaced(0, 110) is None
    assert index.describe(1) == "byte 90, 20 B long"
    assert index.offsets[0] == ABSENT
    with pytest.raises(ShardError, match="has 36 B, got 35 B"):
        Index.parse(index.to_bytes()[:-1], 2)


def test_a_codec_claims_no_more_than_a_chunk():
    large = Zstd(1).encode(bytes(1 << 20))
    with pytest.raises(CodecError, match="claims 1048576 B"):
        Zstd(1).decode(large, 1000)
    with pytest.raises(CodecError, match="claims 1048576 B"):
        Blosc().decode(Blosc().encode(bytes(1 << 20)), 1000)
    assert checksum(b"") == bytes(4)


FULL_DISK = """
import resource, signal, sys
import numpy as np
from weft import WeftError
from weft.store import create

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
frame = np.random.default_rng(0).integers(0, 255, (4, 256, 256)).astype("uint8")
writer = create(sys.argv[1], (None, 256, 256), "uint8", (4, 64, 64), (8, 256, 256))
for attempt in range(2):
    try:
        for _ in range(1000):  # more than is buffered
            writer.append(frame)
    except WeftError as error:
        print(error)
writer.close()
"""


def test_a_failed_write_is_raised_and_nothing_torn_is_visible(tmp_path):
    """Files may not grow: a real refusal by the system."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "a")],
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = ran.stdout.splitlines()
    assert "a: writing failed: [Errno 27] File too large" in first
    assert "writing failed before, and nothing can be appended" in second
    assert not [file for file in (tmp_path / "a" / "c").rglob("*") if file.is_file()]
    assert open_store(tmp_path / "a").shape == (0, 256, 256)


def test_an_array_is_continued(tmp_path):
    for seed in range(CASES // 3):
        case = Case(seed)
        case.is_unbounded = True
        cut = int(case.rng.integers(0, len(case.stream) + 1))
        path = tmp_path / f"a{seed}"
        with create(
            path, case.given_shape, case.dtype, case.chunks, case.shards, **case.options
        ) as writer:
            writer.append(case.stream[:cut])
        assert open_store(path).shape[case.axis_order[0]] == cut
        with open_store(path, mode="a") as writer:
            writer.append(case.stream[cut:])
        assert same(open_store(path).read(), case.array), f"seed {seed}: {case} cut at {cut}"
        assert open_store(path).verify() == count_chunks(path, open_store(path))
        other = stored(tmp_path, case)
        assert contents(path) == contents(other), f"seed {seed}: {case} cut at {cut}"


def contents(path):
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_bytes_are_the_same_however_threads_run(tmp_path):
    array = np.random.default_rng(0).integers(0, 50, (64, 24, 24)).astype("uint8")
    found = []
    for number in range(CASES // 10):
        path = tmp_path / f"a{number}"
        with create(
            path, (None, 24, 24), "uint8", (2, 4, 4), (8, 24, 24), codecs=[Zstd(1)],
            threads=1 + number % 8,
        ) as writer:  # fmt: skip
            writer.append(array)
        found.append(contents(path))
    assert all(one == found[0] for one in found)
    assert same(open_store(path).read(), array)


def test_two_writers_are_refused(tmp_path):
    with create(tmp_path / "a", (None, 4), "uint8", (2, 4), (4, 4)):
        with pytest.raises(WeftError, match="is locked by another writer"):
            open_store(tmp_path / "a", mode="a")
        with pytest.raises(WeftError, match="is locked by another writer"):
            create(tmp_path / "a", (None, 4), "uint8", (2, 4), (4, 4), overwrite=True)
    open_store(tmp_path / "a", mode="a").close()
    with pytest.raises(WeftError, match="mode is 'r' or 'a', got 'w'"):
        open_store(tmp_path / "a", mode="w")


RECORDING = """
import sys, time
import numpy as np
from weft.store import Zstd, create

with create(
    sys.argv[1], (None, 40, 48), "uint16", (4, 16, 16), (8, 32, 32), codecs=[Zstd(1)]
) as writer:
    for row in range(int(sys.argv[2])):
        writer.append(np.random.default_rng(row).integers(0, 50, (1, 40, 48)).astype("uint16"))
        time.sleep(0.0005)
    time.sleep(float(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_shards_and_can_be_continued(tmp_path):
    wanted = np.concatenate(
        [np.random.default_rng(n).integers(0, 50, (1, 40, 48)).astype("uint16") for n in range(200)]
    )
    whole = [str(tmp_path / "whole"), "200", "0"]
    subprocess.run([sys.executable, "-c", RECORDING, *whole], check=True)
    assert same(open_store(tmp_path / "whole").read(), wanted)
    rng, seen = np.random.default_rng(0), set()
    for number in range(KILLS):
        path = tmp_path / f"a{number}"
        rows = int(rng.integers(8, 100)) * (number > 0)
        some = [str(path), str(rows + 50), "600"]  # it does not end before it is killed
        process = subprocess.Popen([sys.executable, "-c", RECORDING, *some])
        while not (path / "zarr.json").exists():
            time.sleep(0.002)
        while process.poll() is None and open_store(path).shape[0] < rows:
            time.sleep(0.002)
        process.kill()
        process.wait()
        array = open_store(path)
        array.verify()
        assert same(array.read(), wanted[: array.shape[0]])
        seen.add(array.shape[0])
        with open_store(path, mode="a") as writer:
            writer.append(wanted[array.shape[0] :])
        assert contents(path) == contents(tmp_path / "whole")
    assert len(seen) > 1
