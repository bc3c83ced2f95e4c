"""What a writer lets others see, holds, counts and says when it fails."""

import os
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorstore
import zarr
from tests.store.cases import Case
from tests.trials import trials

from weft import WeftError
from weft.store import Blosc, Crc32c, Gzip, Zstd, create, create_image
from weft.store import open as open_store
from weft.store.assembler import ChunkBatch, ShardAssembler
from weft.store.chunk_layout import FrameLayout
from weft.store.codecs import EncodedChunks
from weft.store.files import DIRECT_SYSTEMS, MIN_DIRECT, direct_pays, file_system
from weft.store.metadata import Metadata
from weft.store.metrics import Clock

CASES = trials(100)


def frames(count, *shape, dtype="uint16"):
    return np.random.default_rng(0).integers(1, 999, (count, *shape)).astype(dtype)


def contents(path):
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_flushing_is_visible_and_does_not_change_the_final_bytes(tmp_path):
    """After every flush all whole frames are read; then all goes on as if nothing had been."""
    for seed in range(CASES):
        case = Case(seed)
        made = {}
        for name in ("plain", "flushed"):
            path = tmp_path / f"{name}{seed}"
            with create(
                path, case.given_shape, case.dtype, case.chunks, case.shards, **case.options
            ) as writer:
                for block in Case(seed).blocks():
                    writer.append_rows(block)
                    if name == "flushed" and case.rng.random() < 0.5:
                        writer.flush()
                        seen = open_store(path)
                        size = writer.layout.frame_size
                        count = writer.metrics().bytes // case.array.itemsize // size
                        assert writer.safe == count
                        rows = -(-count * size // case.stream[0].size)
                        assert seen.shape[case.axis_order[0]] == rows
                        found = seen.read().transpose(case.axis_order).reshape(-1)[: count * size]
                        assert np.array_equal(found, case.stream.reshape(-1)[: count * size]), case
                        seen.verify()
            made[name] = contents(path)
        assert made["plain"] == made["flushed"], f"seed {seed}: {case}"


def until(found, seconds=300):
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_every_epoch_is_seen_while_others_are_written(tmp_path, index_location):
    data = frames(24, 20, 30)
    path = tmp_path / "a"
    with create(
        path, (None, 20, 30), "uint16", (4, 8, 8), (16, 16, 16), index_location=index_location,
        codecs=[Zstd(1)],
    ) as writer:  # fmt: skip
        for row in range(24):
            writer.append(data[row])
            if row % 4 == 3:
                until(lambda row=row: writer.safe == row + 1)
                for found in (
                    open_store(path).read(),
                    zarr.open_array(path, mode="r")[...],
                    tensorstore.open(
                        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
                    ).result().read().result(),
                ):  # fmt: skip
                    assert np.array_equal(found, data[: row + 1])


@pytest.mark.slow
def test_readers_see_nothing_torn(tmp_path):
    """Readers open the array again and again while it grows: what they see is right."""
    data = frames(400, 24, 24)
    path, is_over, seen = tmp_path / "a", threading.Event(), []

    def look():
        while not is_over.is_set():
            for find in (open_store, lambda at: zarr.open_array(at, mode="r")):
                array = find(path)
                rows = array.shape[0]
                found = array.read() if find is open_store else array[...]
                seen.append((rows, np.array_equal(found, data[:rows])))

    with create(
        path, (None, 24, 24), "uint16", (2, 8, 8), (40, 24, 24), codecs=[Blosc("zstd", 1)]
    ) as writer:
        reader = threading.Thread(target=look)
        reader.start()
        for row in range(400):
            writer.append(data[row])
            if row % 25 == 0:  # the reader sees it grow, however busy the machine is
                count = len(seen)
                until(lambda count=count: len(seen) > count + 2 or not reader.is_alive())
        is_over.set()
        reader.join()
    assert all(right for _, right in seen), [rows for rows, right in seen if not right]
    assert len({rows for rows, _ in seen}) > 3
    assert any(rows % 40 for rows, _ in seen), "no shard was seen before it was whole"


def test_more_shards_than_files(tmp_path):
    """Every channel and plane has a shard of its own begun, and a process few files."""
    code = """
import resource, sys
import numpy as np
from weft.store import create, open as open_store
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
data = np.random.default_rng(0).integers(1, 99, (3, 10, 20, 8, 8)).astype("uint8")
path = sys.argv[1]
with create(path, (None, 10, 20, 8, 8), "uint8", (1, 1, 1, 8, 8), (4, 1, 1, 8, 8)) as writer:
    for plane in data.reshape(-1, 8, 8):
        writer.append(plane)
    writer.flush()
assert np.array_equal(open_store(path).read(), data)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True)


@pytest.mark.parametrize("codecs", [(), (Zstd(1),), (Blosc("lz4", 5, "shuffle"),)], ids=str)
@pytest.mark.parametrize("chunks", [(8, 64, 64), (1, 128, 128), (2, 16, 256)], ids=str)
def test_memory_is_as_predicted_at_most(tmp_path, codecs, chunks):
    shards = tuple(4 * n for n in chunks)
    frame = np.random.default_rng(0).integers(0, 65535, (256, 256)).astype("uint16")
    open_array_and_codecs(tmp_path, codecs)  # what is imported is no memory of a writer
    tracemalloc.start()
    try:
        with create(
            tmp_path / "a", (None, 256, 256), "uint16", chunks, shards, codecs=codecs
        ) as writer:
            said = writer.memory()
            for _ in range(64):
                writer.append(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < said + (1 << 20)
    assert peak > said / 16, "a prediction that says nothing"


def open_array_and_codecs(folder, codecs):
    with create(folder / "warm", (1, 1), "uint16", (1, 1), codecs=codecs) as writer:
        writer.append(np.ones((1, 1), "uint16"))
    open_store(folder / "warm").read()


def test_metrics(tmp_path):
    data = frames(32, 64, 64)
    with create(
        tmp_path / "a", (None, 64, 64), "uint16", (4, 32, 32), (8, 64, 64), codecs=[Zstd(1)]
    ) as writer:
        for frame in data:
            writer.append(frame)
        writer.flush()
        told = writer.metrics()
    assert (told.rows, told.safe, told.bytes) == (32, 32, data.nbytes)
    assert (told.epochs, told.batches) == (0, 0)
    assert told.stages["scatter"].bytes == told.stages["compress"].bytes == data.nbytes
    assert 0 < told.append_median <= told.append_maximum
    assert told.binds in told.stages
    stored = sum(len(data) for name, data in contents(tmp_path / "a").items() if "c/" in name)
    assert writer.metrics().stored == stored == told.stored
    assert told.ratio == pytest.approx(data.nbytes / stored)
    said = told.to_json()
    assert said["stages"]["write"]["bytes"] == stored
    assert said["rate"] == told.rate > 0
    assert str(told).splitlines()[0].startswith("32 rows, 32 frames safe; 262144 B in")


def test_blocks_that_do_not_fit_are_refused(tmp_path):
    with create(tmp_path / "a", (None, 4, 6), "uint8", (2, 2, 2), (4, 4, 6)) as writer:
        writer.append_rows(np.ones((1, 6), "uint8"))
        for frame in (np.ones((1, 4, 6), "uint8"), np.ones((4, 6), "uint8")):
            with pytest.raises(WeftError, match="not complete, 6 of its 24 elements are there"):
                writer.append(frame)
        with pytest.raises(WeftError, match="would begin inside a row: 6 of its 24 elements"):
            writer.append_rows(np.ones((1, 4, 6), "uint8"))
        with pytest.raises(WeftError, match=r"does not fit rows of \[…, 4, 6\]"):
            writer.append_rows(np.ones((2, 4, 5), "uint8"))
        with pytest.raises(WeftError, match="does not fit rows of"):
            writer.append_rows(np.uint8(3))
        writer.append_rows(np.ones((3, 6), "uint8"))
        writer.append(np.ones((1, 4, 6), "uint8"))
    assert open_store(tmp_path / "a").read().tolist() == np.ones((2, 4, 6), int).tolist()


def test_blocks_that_would_lose_something_are_refused(tmp_path):
    masked = np.ma.MaskedArray(np.ones((4, 6), "uint8"), mask=np.eye(4, 6))
    with create(tmp_path / "a", (None, 4, 6), "uint8", (2, 2, 2), (4, 4, 6)) as writer:
        with pytest.raises(WeftError, match="which elements are masked"):
            writer.append(masked)
        with pytest.raises(WeftError, match="and the block int64"):
            writer.append(np.ones((4, 6), int))
        writer.append(masked.filled(3))
        writer.append(np.ma.MaskedArray(np.ones((4, 6), "uint8")))
        assert repr(writer) == f"<Writer of {tmp_path / 'a'}: uint8 2x4x6, open>"
    assert open_store(tmp_path / "a").read().sum() == 4 * 3 + 20 + 24


class Lender:
    """An array that only DLPack can read."""

    def __init__(self, values):
        self._values = values

    def __dlpack__(self, **options):
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._values.__dlpack_device__()


def test_what_is_no_array_is_refused_and_dlpack_is_read(tmp_path):
    data = frames(1, 8, 8)[0]
    with create(tmp_path / "a", (None, 8, 8), "uint16", (2, 4, 4)) as writer:
        for block in ((data for _ in range(3)), object(), [[1, 2], [3]]):
            with pytest.raises(WeftError, match="cannot be read as an array"):
                writer.append(block)
        writer.append(Lender(data.T))
    assert np.array_equal(open_store(tmp_path / "a").read()[0], data.T)


def test_frames_without_elements_are_not_lost_silently(tmp_path):
    with create(tmp_path / "a", (None, 0, 4), "uint8", (2, 2, 2)) as writer:
        writer.append(np.ones((0, 0, 4), "uint8"))
        with pytest.raises(WeftError, match=r"frames of \[0, 4\] have no elements"):
            writer.append(np.ones((3, 0, 4), "uint8"))
        with pytest.raises(WeftError, match="without elements cannot be skipped"):
            writer.skip()


def test_images_refuse_what_they_would_lose(tmp_path):
    image = {"shape": (None, 8, 8), "dtype": "uint16", "chunks": (1, 4, 4), "axes": "tyx"}
    with create_image(tmp_path / "a", **image, levels=2) as writer:
        with pytest.raises(WeftError, match="which elements are masked"):
            writer.append(np.ma.MaskedArray(frames(1, 8, 8)[0], mask=np.eye(8)))
        with pytest.raises(WeftError, match="cannot be read as an array"):
            writer.append([[1, 2], [3]])
        assert writer.frames == 0


def test_numbers_one_by_one(tmp_path):
    with create(tmp_path / "a", (None, 3), "uint8", (2, 2), (4, 4), frame_ndim=0) as writer:
        for number in range(6):
            writer.append(np.uint8(number))
    assert open_store(tmp_path / "a").read().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_tiles_that_arrive_in_another_order_than_they_are_stored(tmp_path):
    data = frames(6, 5, 3)
    with create(
        tmp_path / "a", (None, 3, 5), "uint16", (3, 2, 1), (6, 4, 3), checksum=False,
        axis_order=(0, 2, 1),
    ) as writer:  # fmt: skip
        writer.append(data)
    assert np.array_equal(open_store(tmp_path / "a").read(), data.transpose(0, 2, 1))


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_interrupt_between_epochs_loses_no_frame_silently(tmp_path, goes_on):
    data = frames(7, 8, 8)
    writer = create(tmp_path / "a", (None, 8, 8), "uint16", (2, 4, 4), (4, 8, 8))
    writer.append(data[:5])
    mark = writer.assembler.mark

    def interrupt(*_):
        writer.assembler.mark = mark
        raise KeyboardInterrupt

    writer.assembler.mark = interrupt
    with pytest.raises(KeyboardInterrupt):
        writer.append(data[5])
    if goes_on:
        with pytest.raises(WeftError, match="writing failed"):
            writer.append(data[6])
        writer.close()
    else:
        with pytest.raises(WeftError, match="of 6 frames are safe"):
            writer.close()
    assert np.array_equal(open_store(tmp_path / "a").read(), data[: writer.safe])


def test_threads_that_append_take_turns(tmp_path):
    some = [np.full((16, 16), n, "uint16") for n in range(40)]
    with (
        create(tmp_path / "a", (None, 16, 16), "uint16", (2, 8, 8), (4, 16, 16)) as writer,
        ThreadPoolExecutor(8) as threads,
    ):
        list(threads.map(writer.append, some))
    read = open_store(tmp_path / "a").read()
    assert sorted(read[:, 0, 0].tolist()) == list(range(40))
    assert (read == read[:, :1, :1]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_leaves_the_recording_alone(tmp_path):
    code = """
import os, sys
import numpy as np
from weft.store import create, open
writer = create(sys.argv[1], (None, 8, 8), "u2", (2, 4, 4), (4, 8, 8))
writer.append(np.ones((3, 8, 8), "u2"))
child = os.fork()
if child == 0:
    try:
        writer.append(np.ones((8, 8), "u2"))
    except ValueError as error:
        assert "forked" in str(error)
        writer.close()
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
writer.append(np.ones((2, 8, 8), "u2"))
writer.close()
assert (open(sys.argv[1]).read() == np.ones((5, 8, 8))).all()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True, timeout=600)


def test_arguments_that_do_not_go_together_are_refused(tmp_path):
    def make(shape=(None, 4), **more):
        return create(tmp_path / "a", shape, "uint8", (2, 2), (4, 4), **more)

    for arguments, message in [
        ({"append_dim": 2}, "append_dim: there is no dimension 2 of 2"),
        ({"axis_order": (0, 0)}, r"axis_order: \[0, 0\] is not a permutation of 2 dimensions"),
        ({"append_dim": 1, "axis_order": (0, 1)}, "these must be the same"),
        ({"append_dim": 1}, "dimension 0 cannot be unbounded: only 1, which"),
        ({"endian": "middle"}, "endian: 'middle' is neither little nor big"),
    ]:
        with pytest.raises(WeftError, match=message):
            make(**arguments)


def test_frames_along_another_dimension(tmp_path):
    data = frames(7, 5, 6)
    with create(
        tmp_path / "a", (5, None, 6), "uint16", (2, 2, 3), (4, 4, 6), append_dim=1
    ) as writer:
        for frame in data:
            writer.append(frame)
    assert np.array_equal(open_store(tmp_path / "a").read(), data.transpose(1, 0, 2))
    with open_store(tmp_path / "a", mode="a") as writer:
        writer.append(data[:2])
    wanted = np.concatenate([data, data[:2]]).transpose(1, 0, 2)
    assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], wanted)


READ_ONLY = """
import os, sys
import numpy as np
from weft import WeftError
from weft.store import create
if os.getuid() == 0:
    os.setuid(65534)  # nobody: to root nothing is read-only
path = sys.argv[1]
try:
    create(path + "/never", (None, 8, 8), "uint8", (2, 8, 8))
except WeftError as error:
    print(error.args[0])
"""


def test_a_folder_that_is_read_only(tmp_path):
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o055)
    tmp_path.chmod(0o555)
    ran = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith(f"{tmp_path}/never cannot be written: [Errno 13]")
    tmp_path.chmod(0o755)


def test_a_folder_that_goes_away(tmp_path):
    """The frames that are safe are counted; what comes afterwards is refused, and close too."""
    data = frames(4, 32, 32)
    path = tmp_path / "a"
    writer = create(path, (None, 32, 32), "uint16", (2, 16, 16), (4, 32, 32))
    writer.append(data)
    until(lambda: writer.safe == 4)
    (path / "c").rename(tmp_path / "c")
    (path / "c").write_text("in the way")
    with pytest.raises(WeftError, match=r"writing failed: .*; 4 of .* frames are safe"):
        until(lambda: writer.append(data))
    with pytest.raises(WeftError, match="writing failed before, and nothing can be appended"):
        writer.append(data)
    with pytest.raises(WeftError, match="writing failed before"):
        writer.flush()
    writer.close()
    assert open_store(path).shape == (4, 32, 32)
    open_array_is_free = create(tmp_path / "b", (None, 2), "uint8", (1, 2))
    open_array_is_free.abandon()
    open_array_is_free.close()


def test_a_failure_that_was_not_raised_before_is_raised_at_close(tmp_path):
    writer = create(tmp_path / "a", (None, 32, 32), "uint16", (2, 16, 16), (2, 32, 32))
    (tmp_path / "a" / "c").write_text("in the way")
    writer.append(frames(1, 32, 32))
    with pytest.raises(WeftError, match=r"writing failed: .*; 0 of 1 frames"):
        writer.close()
    (tmp_path / "a" / "c").unlink()
    open_store(tmp_path / "a", mode="a").close()


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_past_the_page_cache_the_bytes_are_the_same(tmp_path, index_location):
    """Shards of two blocks and a bit, flushed on the way; and small ones of less than one."""
    for chunks, shards in [((2, 256, 256), (12, 512, 1024)), ((7, 256, 64), (7, 256, 1024))]:
        made = {}
        for direct in (False, True):
            path = tmp_path / f"{direct}{chunks}"
            with create(
                path, (None, 512, 800), "uint16", chunks, shards, index_location=index_location,
                direct=direct,
            ) as writer:  # fmt: skip
                for number, frame in enumerate(frames(14, 512, 800)):
                    writer.append(frame)
                    if number == 10:
                        writer.flush()
                        assert open_store(path).verify()
            made[direct] = contents(path)
        assert made[False] == made[True]
        assert open_store(path).verify() == 14 // chunks[0] * 2 * -(-800 // chunks[2])


def test_which_files_are_written_past_the_page_cache(tmp_path):
    assert not direct_pays(tmp_path, MIN_DIRECT - 1, 2)
    assert not direct_pays(tmp_path, MIN_DIRECT, 1000)
    known = file_system(tmp_path) in DIRECT_SYSTEMS
    assert direct_pays(tmp_path / "not" / "there", MIN_DIRECT, 2) == known


def test_codecs_by_name_dictionary_and_value(tmp_path):
    for number, (said, wanted) in enumerate([
        ("blosc-lz4", [Blosc("lz4", 5, "shuffle", 2), Crc32c()]),
        (Zstd(3), [Zstd(3), Crc32c()]),
        (["zstd", {"name": "crc32c"}], [Zstd(1), Crc32c()]),
        ({"name": "gzip", "configuration": {"level": 6}}, [Gzip(6), Crc32c()]),
    ]):  # fmt: skip
        with create(tmp_path / f"{number}", (2, 4), "uint16", (1, 4), codecs=said) as writer:
            writer.append(np.ones((2, 4), "uint16"))
        array = open_store(tmp_path / f"{number}")
        assert list(array.metadata.codecs) == wanted
        assert array.read().tolist() == [[1] * 4] * 2
    for said, message in [
        ("zstandard", "'zstandard' is not a codec"),
        ([3], "3 is not a codec"),
        ({"name": "lzma"}, "the codec 'lzma' is not supported"),
    ]:
        with pytest.raises(WeftError, match=message):
            create(tmp_path / "no", (2, 4), "uint16", (1, 4), codecs=said)


def test_a_system_that_cannot_copy_inside_itself(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    data = frames(3, 8, 8)
    with create(tmp_path / "a", (None, 8, 8), "uint16", (2, 8, 8), (8, 8, 8)) as writer:
        writer.append(data)
        writer.flush()
        assert np.array_equal(open_store(tmp_path / "a").read(), data)


class Crowded:
    """A sink whose uploads say when two threads are at one."""

    url, held = "nowhere", 0

    def __init__(self):
        self.inside, self.orders, self.is_crowded = 0, [], False

    def put(self, key, data):
        pass

    def upload(self, key, head):
        return self

    def append(self, buffers):
        self.inside += 1
        self.is_crowded |= self.inside > 1
        self.orders += [int.from_bytes(buffer, "little") for buffer in buffers]
        self.inside -= 1

    def publish(self, more, index):
        return True

    def finish(self, index):
        pass


def test_one_thread_at_a_time_is_at_a_shard():
    """Batches of one shard from many threads, in any order: they go in one by one, in theirs."""
    count = 20 * CASES
    metadata = Metadata((0,), "uint8", (1,), (count,))
    sink, interval = Crowded(), sys.getswitchinterval()
    assembler = ShardAssembler(sink, metadata, FrameLayout((None,), (1,), (count,)), Clock())
    numbers = [assembler.issue((0,)) for _ in range(count)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for number in numbers:
                chunk = (number.to_bytes(4, "little"),)
                chunks = EncodedChunks.of([chunk])
                batch = ChunkBatch((0,), number, [number], chunks, lambda: None)
                threads.submit(assembler.add, batch)
    finally:
        sys.setswitchinterval(interval)
    assert not sink.is_crowded
    assert sink.orders == numbers
