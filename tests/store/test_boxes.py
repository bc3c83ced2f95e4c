"""Boxes that tasks read: the bytes they fetch are counted, and the memory they take is known."""

import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.cases import folder
from tests.store.foreign import WRITERS, described, values
from tests.trials import trials

from weft import WeftError, ZRange
from weft.store import Array, Blosc, Crc32c, Gzip, Lz4, Metadata, Zstd, create_shards, native
from weft.store import open as open_store
from weft.store.files import Folder
from weft.store.shard import index_size
from weft.store.sink import Fetched

MIB = 1 << 20


def boxes(shape, rng, count=4):
    for _ in range(count):
        start = [int(rng.integers(0, n + 1)) for n in shape]
        yield ZRange(start, [int(rng.integers(a, n + 1)) for a, n in zip(start, shape)])


class Far:
    """A folder as a store that is asked for values, and counts what it gives."""

    def __init__(self, path):
        self.folder, self.url, self.buffered, self.given = Folder(path), str(path), 0, []

    def fetch(self, key, start=0, count=None):
        found = self.folder.fetch(key, start, count)
        if found is not None:
            self.given.append(len(found.data))
        return found


@contextmanager
def counted_reads():
    """The bytes that this process reads from files, call by call, without compiled code."""
    real, seen, compiled = os.preadv, [], native.compiled

    def preadv(*given):
        got = real(*given)
        seen.append(got)
        return got

    os.preadv, native.compiled = preadv, lambda: None
    try:
        yield seen
    finally:
        os.preadv, native.compiled = real, compiled


@given(st.integers(0, 1 << 32), st.sampled_from(sorted(WRITERS)))
def test_the_bytes_of_a_box_are_counted(seed, writer):
    """Arrays of others, near and far, on any threads: as many as the store gave."""
    said, rng = described(seed), np.random.default_rng(seed)
    data = values(said, seed)
    with folder() as at:
        WRITERS[writer](at / "a", said, data)
        near, far = open_store(at / "a"), Far(at / "a")
        away = Array(far, Metadata.load(far))
        for box in boxes(said.shape, rng):
            threads = [None, 1, 2][rng.integers(3)]
            out = np.empty(box.shape, data.dtype)
            with counted_reads() as seen:
                found = near.read_counted(box, out, threads=threads)
            assert found.values is out
            assert found.fetched == sum(seen)
            far.given.clear()
            again = away.read_counted(box, threads=threads)
            assert again.fetched == sum(far.given)
            for one in (found.values, again.values):
                assert one.tobytes() == data[box.slices()].tobytes()


def test_read_memory_by_hand(tmp_path):
    writer = create_shards(tmp_path / "a", (8, 8), "uint8", (2, 2), (4, 4))
    writer.write(ZRange((0, 0), (4, 4)), np.ones((4, 4), "uint8"))
    array = open_store(tmp_path / "a")
    box = ZRange((0, 0), (2, 2))
    assert array.read_counted(box).fetched == index_size(4) + 4 + 4
    assert array.read_counted(box).fetched == 4 + 4  # the index is held
    assert array.read_counted(ZRange((4, 4), (8, 8))).fetched == 0
    assert array.read_counted(ZRange((0, 0), (0, 2))).fetched == 0
    there = pickle.loads(pickle.dumps(array))
    assert there.read_counted(box).fetched == index_size(4) + 4 + 4
    assert pickle.loads(pickle.dumps(array)).read_counted(box).fetched == 4 + 4
    for checksum, fetched in [(True, 16 + 4), (False, 6)]:  # the chunk; what the box spans of it
        form = (8, 8), "uint8", (4, 4)
        plain = create_shards(tmp_path / f"{checksum}", *form, checksum=checksum)
        plain.write(ZRange((0, 0), (4, 8)), np.ones((4, 8), "uint8"))
        assert plain.reader().read_counted(box).fetched == fetched


def test_no_metadata_are_fetched_on_arrival(tmp_path):
    array = create_shards(tmp_path / "a", (8,), "uint8", (2,), (4,)).reader()
    sent = pickle.dumps(array)
    (tmp_path / "a/zarr.json").unlink()
    there = pickle.loads(sent)
    assert there.shape == (8,)
    assert pickle.loads(sent) is there
    assert pickle.loads(pickle.dumps(there)) is there
    with pytest.raises(WeftError, match="the array is gone"):
        there.read()


def test_a_process_keeps_the_handles_that_were_last_used(tmp_path):
    sent = [
        pickle.dumps(create_shards(tmp_path / str(n), (2,), "uint8", (2,)).reader())
        for n in range(65)
    ]
    first, second = pickle.loads(sent[0]), pickle.loads(sent[1])
    for n in range(2, 64):
        pickle.loads(sent[n])
    assert pickle.loads(sent[0]) is first
    pickle.loads(sent[64])
    assert pickle.loads(sent[0]) is first
    assert pickle.loads(sent[1]) is not second


def test_zarr_v2_is_not_written_and_the_error_has_the_way_out(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1", zarr_format=2)
    with pytest.raises(WeftError) as caught:
        open_store(tmp_path / "a", mode="a")
    message = f"{tmp_path / 'a'} is of Zarr v2: there is a .zarray, and no zarr.json"
    assert caught.value.args == (message,)
    assert caught.value.__notes__ == ["hint: zarr-python's `zarr migrate v3` converts it to v3"]


# -- memory

KINDS = {
    "none": (),
    "zstd": (Zstd(1),),
    "zstd-9": (Zstd(9),),
    "gzip": (Gzip(1),),
    "lz4": (Blosc("lz4", 5, "shuffle"),),
    "blosc-zstd": (Blosc("zstd", 1, "shuffle"),),
    "bitshuffle": (Blosc("zstd", 1, "bitshuffle"),),
    "raw-lz4": (Lz4(),),
    "crc32c": (Crc32c(),),
    "both": (Zstd(1), Crc32c()),
    "three": (Zstd(1), Gzip(1), Crc32c()),
}


@contextmanager
def traced():
    """The most bytes of Python objects and arrays at a time."""
    tracemalloc.start()
    peak = []
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def fresh(call):
    """A call on a thread that has no buffers yet."""
    faults = []

    def work():
        try:
            call()
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if faults:
        raise faults[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [(64, 128, 128), None])
def test_memory_is_known_before(tmp_path, kind, shards):
    data = np.random.default_rng(0).integers(0, 60000, (128, 128, 128)).astype("uint16")
    form = data.shape, "uint16", (64, 64, 64), shards
    writer = create_shards(tmp_path / "a", *form, codecs=KINDS[kind])
    box = ZRange((0, 0, 0), (64, 128, 128))
    with traced() as peak:
        fresh(lambda: writer.write(box, data[:64]))
    assert peak[0] <= writer.write_memory(box)
    for wanted in (box, ZRange((3, 7, 5), (60, 99, 80))):
        out = np.empty(wanted.shape, "uint16")
        array = open_store(tmp_path / "a")
        with traced() as peak:
            fresh(partial(array.read, wanted, out, threads=1))
        assert peak[0] <= array.read_memory(wanted, threads=1)
        assert np.array_equal(out, data[wanted.slices()])


@given(st.integers(0, 1 << 32))
@settings(max_examples=trials(40))
def test_small_chunks_take_the_memory_of_their_objects(seed):
    said, rng = described(seed), np.random.default_rng(seed)
    data = values(said, seed)
    with folder() as at:
        WRITERS["zarr-python"](at / "a", said, data)
        for box in boxes(said.shape, rng):
            array = open_store(at / "a")
            out = np.empty(box.shape, data.dtype)
            with traced() as peak:
                fresh(partial(array.read, box, out, threads=1))
            assert peak[0] <= array.read_memory(box, threads=1)


def test_many_small_chunks(tmp_path):
    """The objects that say where chunks lie are counted, and there are never too many."""
    data = np.random.default_rng(0).integers(0, 99, (256, 256)).astype("uint8")
    form = data.shape, "uint8", (2, 2), (64, 256)
    writer = create_shards(tmp_path / "a", *form, codecs="zstd")
    with traced() as peak:
        fresh(lambda: writer.write(ZRange.of(data.shape), data))
    assert peak[0] <= writer.write_memory()
    array, out = open_store(tmp_path / "a"), np.empty_like(data)
    with traced() as peak:
        fresh(lambda: array.read(out=out, threads=1))
    assert peak[0] <= array.read_memory(threads=1) < 80 * MIB


def test_a_bound_is_worth_something(tmp_path):
    """It is a few chunks, whatever the box."""
    form = (1024,) * 3, "uint16", (64,) * 3, (256,) * 3
    for kind, codecs in KINDS.items():
        writer = create_shards(tmp_path / kind, *form, codecs=codecs)
        chunk = 64**3 * 2
        assert writer.reader().read_memory(threads=1) < 14 * chunk + 6 * MIB, kind
        if kind != "zstd-9":
            assert writer.write_memory() < 14 * chunk + 6 * MIB, kind
        many = writer.reader().read_memory(threads=2), writer.write_memory(threads=4)
        assert many[0] >= writer.reader().read_memory(threads=1)
        assert many[1] >= writer.write_memory()


RESIDENT = """
import sys
import numpy as np
from pathlib import Path
from weft import ZRange
from weft.store import *
from tests.store.test_boxes import KINDS

def most():
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024

def grown(call):
    Path("/proc/self/clear_refs").write_text("5")
    before = most()
    call()
    return most() - before

kind, path = sys.argv[1:]
small = create_shards(path + "/small", (8,), "uint16", (4,), (8,), codecs=KINDS[kind])
small.write(ZRange((0,), (8,)), np.arange(8, dtype="uint16"))  # what has to be imported is
small.reader().read(threads=1)
side = 160
data = np.random.default_rng(0).poisson(99, (2 * side, side, side)).astype("uint16")
form = data.shape, "uint16", (side,) * 3, data.shape
writer = create_shards(path + "/a", *form, codecs=KINDS[kind])
print(grown(lambda: writer.write(ZRange.of(data.shape), data)), writer.write_memory())
for box in (ZRange((0, 0, 0), (2 * side, side, side)), ZRange((5, 5, 5), (side + 9, 99, 99))):
    out, array = np.ones(box.shape, "uint16"), writer.reader()
    print(grown(lambda: array.read(box, out, threads=1)), array.read_memory(box, threads=1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no /proc")
def test_codec_libraries_take_no_more_than_predicted(tmp_path, kind):
    """What the process as a whole takes, with chunks of 8 MB."""
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(
        [sys.executable, "-c", RESIDENT, kind, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in ran.stdout.splitlines():
        seen, bound = map(int, line.split())
        assert seen <= bound + MIB // 4, ran.stdout  # pages of the allocator


def test_remote_reads_take_twice_the_fetched_bytes(tmp_path):
    data = np.ones((64, 64, 64), "uint16")
    writer = create_shards(tmp_path / "a", data.shape, "uint16", (32,) * 3, data.shape)
    writer.write(ZRange.of(data.shape), data)
    far = Far(tmp_path / "a")
    array = Array(far, writer.metadata)
    assert array.read_memory(threads=1) > writer.reader().read_memory(threads=1)
    assert array.read_memory(ZRange((0, 0, 0), (0, 1, 1))) == 1 << 15
    assert np.array_equal(array.read(threads=1), data)
    assert isinstance(far.fetch("zarr.json"), Fetched)
