"""What others store is read, box by box; what is damaged is said with its place, and no harm."""

import os
import pickle
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr
from tests.store.foreign import WRITERS, by_tensorstore, by_zarr, described, values
from tests.trials import trials

from weft import WeftError, ZRange
from weft.store import (
    Array,
    Blosc,
    CodecError,
    Crc32c,
    Gzip,
    Lz4,
    Metadata,
    ShardError,
    Zstd,
    create,
)
from weft.store import open as opened
from weft.store.codecs import checksum, decode, encode
from weft.store.files import Folder
from weft.store.shard import ABSENT, Index, index_size
from weft.store.sink import Fetched
from weft.store.threads import for_each

CHECKED = (Zstd(1, checksum=True),)
CASES = trials(300)
ALL = [(), (Zstd(1),), (Zstd(1, checksum=True),), (Gzip(1),), (Lz4(),), (Crc32c(),)]
ALL += [(Blosc("lz4", 5, "shuffle"),), (Blosc("zstd", 1, "bitshuffle"),), (Zstd(1), Crc32c())]


def same(one, two):
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


def random_box(rng, shape):
    start = [int(rng.integers(0, n + 1)) for n in shape]
    return ZRange(start, [int(rng.integers(a, n + 1)) for a, n in zip(start, shape)])


def test_verification_tells_how_far_it_is(tmp_path):
    with create(tmp_path / "a", (4, 8), "uint8", (1, 4), (2, 8)) as writer:
        writer.append(np.ones((4, 8), "uint8"))
    told = []
    assert opened(tmp_path / "a").verify(lambda *counts: told.append(counts)) == 8
    assert told[-1] == (2, 8)


@pytest.mark.parametrize("writer", WRITERS)
def test_arrays_of_other_writers_are_read(tmp_path, writer):
    for seed in range(CASES // 3):
        said = described(seed)
        data, rng = values(said, seed), np.random.default_rng(seed)
        path = tmp_path / str(seed)
        WRITERS[writer](path, said, data)
        array = opened(path)
        assert same(array.read(), data), f"seed {seed}: {said}"
        for _ in range(3):
            box = random_box(rng, said.shape)
            assert same(array.read(box), data[box.slices()]), f"seed {seed}: {said} {box}"
        assert array.verify() <= sum(1 for _ in array.chunks_of()) * 3**5


def test_chunks_of_many_blocks(tmp_path):
    """Of large chunks just the blocks that hold a box are decoded."""
    rng = np.random.default_rng(0)
    data = np.cumsum(rng.integers(-3, 4, (40, 100, 90)), axis=0).astype("int32")
    for number, codecs in enumerate(
        [(Zstd(1),), (Zstd(1, checksum=True),), (Blosc("lz4", 5, "shuffle", blocksize=5000),),
         (Blosc("zstd", 1, "bitshuffle", blocksize=1 << 14),), (Blosc("blosclz", 9, "shuffle"),),
         (Blosc("zlib", 1, "noshuffle", blocksize=12345),), (Blosc("lz4", 0, "shuffle"),)]
    ):  # fmt: skip
        for order in ((), (2, 0, 1)):
            path = tmp_path / f"{number}{order}"
            said = Metadata(data.shape, "int32", (32, 64, 90), (32, 128, 90), codecs, order=order)
            by_zarr(path, said, data)
            array = opened(path)
            for _ in range(20):
                box = random_box(rng, data.shape)
                assert same(array.read(box), data[box.slices()]), f"{codecs} {order} {box}"
            for frame in range(0, 40, 3):
                box = ZRange((frame, 0, 0), (frame + 1, 100, 90))
                assert same(array.read(box), data[box.slices()]), f"{codecs} {order} {box}"


def test_several_frames_and_members(tmp_path):
    """A chunk may be several zstd frames, a frame that says no size, or several gzip members."""
    import gzip

    import zstandard

    data = np.arange(300_000, dtype="uint16") % 777
    raw = data.tobytes()
    half = len(raw) // 2
    quiet = zstandard.ZstdCompressor(write_content_size=False)
    loud = zstandard.ZstdCompressor()
    for codec, stored in [
        (Zstd(), loud.compress(raw[:half]) + loud.compress(raw[half:])),
        (Zstd(), quiet.compress(raw)),
        (Zstd(), quiet.compress(raw[:half]) + loud.compress(raw[half:])),
        (Gzip(), gzip.compress(raw[:half]) + gzip.compress(raw[half:]) + bytes(9)),
    ]:
        said = Metadata(data.shape, "uint16", data.shape, data.shape, (codec,), is_sharded=False)
        path = tmp_path / "a"
        (path / "c").mkdir(parents=True, exist_ok=True)
        (path / "zarr.json").write_text(said.to_json(), encoding="utf-8")
        (path / "c" / "0").write_bytes(stored)
        assert same(opened(path).read(), data)
        assert same(opened(path).read(ZRange((10,), (20,))), data[10:20])


def test_no_elements_and_no_dimensions(tmp_path):
    for number, (shape, chunks) in enumerate(
        [((0, 3), (0, 3)), ((0, 3), (1, 3)), ((2, 0), (2, 1))]
    ):
        path = tmp_path / f"a{number}"
        zarr.create_array(path, shape=shape, chunks=chunks, dtype="uint16")
        array = opened(path)
        assert array.read().shape == shape
        assert array.verify() == 0
        assert list(array.shards_of()) == list(array.chunks_of()) == []
    said = Metadata((), "float32", (), (), (Zstd(),), fill_value=2.5)
    by_tensorstore(tmp_path / "b", said, np.float32(7))
    assert opened(tmp_path / "b").read() == np.float32(7)
    assert opened(tmp_path / "b").verify() == 1
    (tmp_path / "b" / "c").unlink()
    assert opened(tmp_path / "b").read() == np.float32(2.5)
    zarr.create_array(tmp_path / "c", shape=(), dtype="int8")[...] = 3
    assert opened(tmp_path / "c").read(ZRange((), ())) == np.int8(3)


def test_bfloat16_of_others(tmp_path):
    said = Metadata((5,), "bfloat16", (2,), (4,), fill_value="0x7fc1")
    data = np.array([1, 2, 3, 4, 5], tensorstore.bfloat16.numpy_dtype)
    by_tensorstore(tmp_path / "a", said, data)
    found = np.empty(5, tensorstore.bfloat16.numpy_dtype)
    assert opened(tmp_path / "a").read(out=found) is found
    assert same(found, data)
    (tmp_path / "a" / "c" / "1").unlink()
    assert opened(tmp_path / "a").read()[4] == 0x7FC1


def stored(path, codecs=CHECKED, location="end", **more):
    data = np.random.default_rng(0).integers(0, 99, (20, 30)).astype("uint16")
    with create(
        path, (20, 30), "uint16", (4, 4), (8, 16), codecs=codecs, index_location=location,
        overwrite=True, **more,
    ) as writer:  # fmt: skip
        writer.append(data)
    return data


def test_boxes_of_shards_and_chunks(tmp_path):
    stored(tmp_path / "a")
    array = opened(tmp_path / "a")
    assert (array.shape, array.chunks, array.shards) == ((20, 30), (4, 4), (8, 16))
    box = ZRange((7, 0), (17, 3))
    assert list(map(str, array.shards_of(box))) == ["[0:8, 0:16]", "[8:16, 0:16]", "[16:20, 0:16]"]
    assert list(map(str, array.chunks_of(ZRange((19, 27), (20, 29))))) == [
        "[16:20, 24:28]",
        "[16:20, 28:30]",
    ]
    assert sum(box.size for box in array.shards_of()) == 600
    assert sum(box.size for box in array.chunks_of()) == 600
    assert str(array) == f"<Array uint16[20, 30] at {tmp_path / 'a'}>"


def test_a_result_that_is_given(tmp_path):
    data = stored(tmp_path / "a")
    array = opened(tmp_path / "a")
    room = np.zeros((40, 60), "uint16")
    assert array.read(ZRange((3, 4), (13, 24)), out=room[::4, ::3]) is not None
    assert same(room[::4, ::3], data[3:13, 4:24].copy())
    assert room.sum() == data[3:13, 4:24].sum()
    frozen = np.zeros((20, 30), "uint16")
    frozen.flags.writeable = False
    for wrong in (np.zeros((20, 31), "uint16"), np.zeros((20, 30), "int16"), frozen):
        with pytest.raises(WeftError, match=r"out must be a writeable "):
            array.read(out=wrong)
    for wrong in (ZRange((0, 0), (21, 1)), ZRange((0,), (1,))):
        with pytest.raises(WeftError, match=r"is not inside the array, \[0:20, 0:30\]"):
            array.read(wrong)


def test_an_array_goes_to_other_processes(tmp_path):
    data = stored(tmp_path / "a")
    array = opened(tmp_path / "a")
    array.read()
    assert same(pickle.loads(pickle.dumps(array)).read(), data)


# -- while it is written


def replace(path, data):
    aside = path.with_name(".aside")
    aside.write_bytes(data)
    aside.replace(path)


def test_a_shard_that_is_replaced_is_seen(tmp_path):
    """A new shard with other offsets, as a writer that goes on puts it there."""
    data = stored(tmp_path / "a", codecs=())
    array = opened(tmp_path / "a")
    assert same(array.read(), data)
    stored(tmp_path / "b", codecs=(), location="end")
    with create(tmp_path / "c", (20, 30), "uint16", (4, 4), (8, 16)) as writer:
        writer.append(data + 1)
    file = tmp_path / "a" / "c" / "0" / "0"
    raw = (tmp_path / "c" / "c" / "0" / "0").read_bytes()
    body = raw[: -index_size(8)]
    index = Index.parse(raw[-index_size(8) :], 8)
    for slot in range(8):
        index.offsets[slot] += 100
    replace(file, bytes(100) + body + index.to_bytes())
    assert same(array.read(ZRange((0, 0), (8, 16))), data[:8, :16] + 1)
    file.unlink()
    assert not array.read(ZRange((0, 0), (8, 16))).any()


def test_reading_while_shards_are_replaced(tmp_path):
    """Each read sees every shard as it was at one moment, and none torn."""
    for number in range(2):
        with create(
            tmp_path / str(number), (8, 16), "uint16", (4, 4), (8, 16), codecs=(Zstd(1),)
        ) as writer:
            values = np.random.default_rng(0).integers(0, 9 + 900 * number, (8, 16))
            writer.append(((values // 2) * 2 + number).astype("uint16"))
    both = [(tmp_path / str(number) / "c" / "0" / "0").read_bytes() for number in range(2)]
    assert len(both[0]) != len(both[1])
    array, wanted = opened(tmp_path / "0"), [opened(tmp_path / str(n)).read() for n in range(2)]
    done = threading.Event()

    def swap():
        while not done.is_set():
            for data in both:
                replace(tmp_path / "0" / "c" / "0" / "0", data)

    writer = threading.Thread(target=swap)
    writer.start()
    seen = Counter()
    try:
        for _ in range(300):
            found = array.read()
            seen.update(n for n in range(2) if same(found, wanted[n]))
    finally:
        done.set()
        writer.join()
    assert seen.total() == 300


class Server:
    """A sink as a server is one: values in memory, every request counted."""

    url, held = "memory://here", 0

    def __init__(self, path):
        files = (file for file in path.rglob("*") if file.is_file())
        self.values = {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
        self.asked = []
        self.after = None

    def fetch(self, key, start=0, count=None):
        self.asked.append((key, start, count))
        if self.after is not None and start >= 0:  # chunks, not an index
            self.after()
        data = self.values.get(key)
        if data is None:
            return None
        first = max(0, len(data) + start) if start < 0 else start
        return Fetched(data[first : len(data) if count is None else first + count], len(data))


def test_range_requests(tmp_path):
    """One for the index of each shard, and one for chunks that lie together."""
    data = stored(tmp_path / "a")
    server = Server(tmp_path / "a")
    array = Array(server, Metadata.load(server))
    server.asked.clear()
    assert same(array.read(), data)
    keys = Counter(key for key, _, _ in server.asked)
    assert len(keys) == 6
    assert set(keys.values()) == {2}
    assert (("c/0/0", -index_size(8), index_size(8))) in server.asked
    size = len(server.values["c/0/0"]) - index_size(8)
    assert ("c/0/0", 0, size) in server.asked
    server.asked.clear()
    box = ZRange((0, 0), (4, 4))
    assert same(array.read(box), data[box.slices()])
    assert len(server.asked) == 2, "the chunk, and at the same time whether its index is current"
    assert array.verify() == opened(tmp_path / "a").verify() == 40


def test_without_shards_a_chunk_is_one_request(tmp_path):
    data = np.arange(35, dtype="int32").reshape(5, 7)
    said = Metadata((5, 7), "int32", (2, 4), (2, 4), (Gzip(),), is_sharded=False)
    by_zarr(tmp_path / "a", said, data)
    server = Server(tmp_path / "a")
    array = Array(server, Metadata.load(server))
    server.asked.clear()
    assert same(array.read(), data)
    assert len(server.asked) == 6
    assert array.verify() == 6


def test_a_gap_is_read_along_and_a_large_one_is_not(tmp_path):
    data = np.random.default_rng(0).integers(0, 1 << 16, (8, 512, 1024)).astype("uint16")
    said = Metadata(data.shape, "uint16", (1, 512, 1024), data.shape)
    by_zarr(tmp_path / "a", said, data)
    server = Server(tmp_path / "a")
    mega = 1 << 20
    for box, counts in [
        (ZRange((0, 0, 0), (8, 512, 1024)), [4 * mega, 4 * mega]),  # not too much at once
        (ZRange((3, 5, 7), (4, 6, 8)), [2]),  # of what is not compressed just what is wanted
        (ZRange((0, 0, 0), (8, 1, 1024)), [2048] * 8),
        (ZRange((1, 100, 0), (3, 512, 1024)), [mega - 204_800 + mega]),  # with a gap of 200 KiB
    ]:
        array = Array(server, said)
        server.asked.clear()
        assert same(array.read(box), data[box.slices()])
        assert sorted(count for _, start, count in server.asked if start >= 0) == counts


def test_a_value_that_is_replaced_on_a_server(tmp_path):
    stored(tmp_path / "a")
    server = Server(tmp_path / "a")
    array = Array(server, Metadata.load(server))
    array.read()
    with create(
        tmp_path / "b", (20, 30), "uint16", (4, 4), (8, 16), codecs=(Zstd(1, checksum=True),)
    ) as writer:
        new = np.random.default_rng(1).integers(0, 60_000, (20, 30)).astype("uint16")
        writer.append(new)
    other = Server(tmp_path / "b").values
    server.values = dict(other)  # an index that is held is not current any more
    assert same(array.read(), new)
    server.values = dict(Server(tmp_path / "a").values)
    array = Array(server, array.metadata)

    def swap():  # between an index and its chunks
        server.values, server.after = dict(other), None

    server.after = swap
    assert same(array.read(ZRange((0, 0), (8, 16))), new[:8, :16])


def test_a_value_that_is_replaced_again_and_again_is_reported(tmp_path):
    stored(tmp_path / "a")
    server = Server(tmp_path / "a")
    array = Array(server, Metadata.load(server))
    array.read()

    def grow():
        server.values["c/0/0"] = b"x" + server.values["c/0/0"]

    server.after = grow
    with pytest.raises(ShardError, match=r"memory://here/c/0/0: (chunk|shard) "):
        array.read(ZRange((0, 0), (8, 16)))


# -- damage


def test_errors_name_the_key_the_slot_and_the_box(tmp_path):
    data = stored(tmp_path / "a")
    file = tmp_path / "a" / "c" / "1" / "0"
    good = file.read_bytes()
    index = Index.parse(good[-index_size(8) :], 8)
    for damaged, message in [
        (
            good[:100],
            r"c/1/0: shard \[8:16, 0:16\]: it has 100 B, and its index alone \(8 chunks\) 132 B",
        ),
        (b"", r"c/1/0: shard \[8:16, 0:16\]: it has 0 B, and its index"),
        (good[:-1] + b"?", r"c/1/0: shard \[8:16, 0:16\]: the checksum of the index"),
        (
            flipped(good, index.offsets[5] + index.sizes[5] - 1),
            r"c/1/0: chunk 5, \[12:16, 4:8\]: checksum mismatch: \w+ is stored, and the CRC32C",
        ),
        (
            damaged_frame(good, index, 5),
            r"c/1/0: chunk 5, \[12:16, 4:8\]: not a zstd frame",
        ),
        (
            good[: -index_size(8)] + moved(index, 5, index.offsets[5], 1 << 40),
            r"c/1/0: chunk 5, \[12:16, 4:8\]: the index places it at byte \d+, 1099511627776 B",
        ),
        (
            good[: -index_size(8)] + moved(index, 2, len(good) - 10, 5),
            r"c/1/0: chunk 2, \[8:12, 8:12\]: the index places it at",
        ),
        (
            good[: -index_size(8)] + moved(index, 2, ABSENT, 5),
            r"c/1/0: chunk 2, \[8:12, 8:12\]: the index places it at",
        ),
        (
            good[: -index_size(8)] + moved(index, 7, ABSENT - 3, 8),
            r"c/1/0: chunk 7, \[12:16, 12:16\]: the index places it at",
        ),
    ]:
        file.write_bytes(damaged)
        for look in (Array.verify, Array.read):
            with pytest.raises(ShardError, match=message):
                look(opened(tmp_path / "a"))
        box = ZRange((0, 0), (8, 30))
        assert same(opened(tmp_path / "a").read(box), data[:8]), "what is whole is read"


def flipped(data, place, bit=1):
    made = bytearray(data)
    made[place] ^= bit
    return bytes(made)


def damaged_frame(data, index, slot):
    """The frame of a chunk damaged, and its checksum made anew."""
    start, stop = index.offsets[slot], index.offsets[slot] + index.sizes[slot]
    made = flipped(data, start)
    return made[: stop - 4] + checksum(made[start : stop - 4]) + made[stop:]


def moved(index, slot, offset, size):
    made = Index(index.offsets[:], index.sizes[:])
    made.offsets[slot], made.sizes[slot] = offset, size
    return made.to_bytes()


def test_a_chunk_is_not_larger_than_it_can_be(tmp_path):
    """What an index or a file claims is not allocated, nor read."""
    said = Metadata((4,), "uint8", (4,), (4,), (Zstd(1),), is_sharded=False)
    by_zarr(tmp_path / "a", said, np.arange(4, dtype="uint8"))
    with (tmp_path / "a" / "c" / "0").open("r+b") as file:
        file.truncate(1 << 40)  # no byte of it is on a disk
    with pytest.raises(ShardError, match="a chunk of 4 B was stored as 1099511627776 B"):
        opened(tmp_path / "a").read()
    said = Metadata((4,), "uint8", (2,), (4,), (Zstd(1),))
    index = Index.empty(2)
    index.offsets[1], index.sizes[1] = 0, 1 << 40
    by_zarr(tmp_path / "b", said, np.arange(4, dtype="uint8"))
    with (tmp_path / "b" / "c" / "0").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(index.to_bytes())
    with pytest.raises(ShardError, match="a chunk of 2 B was stored as 1099511627776 B"):
        opened(tmp_path / "b").verify()
    index.sizes[1] = 3
    (tmp_path / "b" / "c" / "0").write_bytes(bytes(9) + index.to_bytes())
    with pytest.raises(ShardError, match=r"b/c/0: chunk 1, \[2:4\]: "):
        opened(tmp_path / "b").verify()


def mutated(rng, good):
    """A shard with some bits flipped, cut or grown, or parts of it put elsewhere."""
    data = bytearray(good)
    kind = rng.integers(6)
    if kind == 0:
        return bytes(data[: rng.integers(len(data) + 1)])
    if kind == 1:
        return bytes(data) + rng.bytes(int(rng.integers(1, 40)))
    if kind == 2:
        start = int(rng.integers(len(data)))
        part = rng.bytes(int(rng.integers(1, 64)))[: len(data) - start]
        data[start : start + len(part)] = part
    elif kind == 3:
        one, two = sorted(int(n) for n in rng.integers(len(data), size=2))
        data[one:two] = data[one:two][::-1]
    else:
        for _ in range(int(rng.integers(1, 5))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def reindexed(rng, good, location, slots):
    """A shard whose index says something else, with a checksum that fits."""
    count = index_size(slots)
    raw = good[:count] if location == "start" else good[-count:]
    index = Index.parse(raw, slots)
    for _ in range(int(rng.integers(1, 4))):
        slot = int(rng.integers(slots))
        which = index.offsets if rng.random() < 0.5 else index.sizes
        near = int(rng.integers(len(good) + 20))
        which[slot] = [near, ABSENT, int(rng.integers(1 << 63)), ABSENT - near][rng.integers(4)]
    made = index.to_bytes()
    return made + good[count:] if location == "start" else good[:-count] + made


DAMAGE = """
import sys
from pathlib import Path
from tests.store.test_reader import damage, feed
(damage if sys.argv[3] == "shards" else feed)(Path(sys.argv[1]), int(sys.argv[2]))
print("all seen")
"""


def damage(folder, count):
    """Damaged shards: the right values where codecs can tell, an error, or other numbers."""
    rng, told = np.random.default_rng(count), []
    for number in range(count):
        codecs = ALL[number % len(ALL)]
        location = "start" if number // len(ALL) % 2 else "end"
        path = folder / f"{number % len(ALL)}{location}"
        if number < 2 * len(ALL):
            stored(path, codecs, location)
        good = stored_once(path)
        file = path / "c" / "1" / "0"
        made = reindexed(rng, good, location, 8) if rng.random() < 0.4 else mutated(rng, good)
        file.write_bytes(made)
        array = opened(path)
        for look in (array.verify, array.read, lambda a=array: a.read(ZRange((9, 1), (11, 30)))):
            try:
                look()
            except ShardError as error:
                told.append(str(error))
        file.write_bytes(good)
    assert all(PLACE.search(text) for text in told), told
    assert len(told) > count


PLACE = re.compile(r"/c/1/0: (shard \[8:16, 0:16\]|chunk [0-7], \[(8|12):1\d, \d+:\d+\]): .")
GOOD = {}


def stored_once(path):
    return GOOD.setdefault(path, (path / "c" / "1" / "0").read_bytes())


def feed(_, count):
    """Damaged chunks of many blocks, and bytes that are none, to every decoder."""
    rng = np.random.default_rng(count)
    data = np.cumsum(rng.integers(-2, 3, 100_000)).astype("int32").tobytes()
    blocks = [
        Blosc(name, 3, shuffle, 4, size)
        for name in ("lz4", "lz4hc", "zstd", "zlib", "blosclz")
        for shuffle, size in (("shuffle", 0), ("bitshuffle", 10_000), ("noshuffle", 1 << 16))
    ]
    every = [(codec,) for codec in (*blocks, Zstd(1), Gzip(1), Lz4())] + [(Blosc(), Zstd(1))]
    good = [encode(codecs, data) for codecs in every]
    out, failed = memoryview(bytearray(len(data))), 0
    for number in range(count):
        which = int(rng.integers(len(every)))
        made = mutated(rng, good[which])
        if number % 10 == 0:
            made = good[which][:16] + rng.bytes(int(rng.integers(5000)))
        elif number % 3 == 0:  # what stands in front is what says most
            head = bytearray(good[which])
            head[int(rng.integers(min(200, len(head))))] = int(rng.integers(256))
            made = bytes(head)
        first, stop = sorted(int(n) for n in rng.integers(0, len(data) + 1, 2))
        try:
            decode(every[which], made, out, first, max(stop, first + 1))
        except CodecError:
            failed += 1
    assert count // 10 < failed < count


@pytest.mark.parametrize("what", ["shards", "chunks"])
def test_damage_is_reported_and_never_harms(tmp_path, what):
    """In a process of its own, whose end would be seen."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", DAMAGE, str(tmp_path), str(CASES), what],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "all seen\n"


def test_changed_bytes_under_a_checksum_are_never_read(tmp_path):
    rng = np.random.default_rng(1)
    for codecs in [(Zstd(1, checksum=True),), (Crc32c(),), (Blosc(), Crc32c()), (Gzip(1),)]:
        data = stored(tmp_path / "a", codecs)
        file = tmp_path / "a" / "c" / "1" / "0"
        good = file.read_bytes()
        for _ in range(CASES // 4):
            damaged = bytearray(good)
            damaged[int(rng.integers(len(good)))] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged)
            try:
                found = opened(tmp_path / "a").read()
            except ShardError:
                continue
            assert same(found, data)  # a bit of a header that says nothing


# -- threads


def test_an_error_on_a_thread_is_raised_and_ends_the_rest():
    done = []

    def work(number):
        if number == 7:
            raise WeftError("seven")
        done.append(number)

    with pytest.raises(WeftError, match="seven"):
        for_each(work, range(100_000))
    assert len(done) < 100_000
    for joins in (True, False):
        done.clear()
        for_each(done.append, range(1000), kind="fetch", joins=joins)
        assert sorted(done) == list(range(1000))


FORKED = """
import os, sys
import numpy as np
from weft.store import open as open_store
array = open_store(sys.argv[1])
whole = array.read()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(array.read(), whole) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("codecs", [(Zstd(1),), (Blosc("lz4"),)])
def test_a_forked_process_reads(tmp_path, codecs):
    data = np.random.default_rng(0).integers(0, 99, (64, 256, 256)).astype("uint16")
    with create(
        tmp_path / "a", data.shape, "uint16", (16, 64, 64), (32, 256, 256), codecs=codecs
    ) as writer:
        writer.append(data)
    script = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "a")]
    assert subprocess.run(script, check=False, timeout=300).returncode == 0


def test_many_read_at_once(tmp_path):
    data = stored(tmp_path / "a")
    array = opened(tmp_path / "a")
    found = []

    def look(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            box = random_box(rng, data.shape)
            found.append(same(array.read(box), data[box.slices()].copy()))

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 240


def test_a_file_that_cannot_be_read(tmp_path):
    stored(tmp_path / "a")
    (tmp_path / "a" / "c" / "0" / "0").unlink()
    (tmp_path / "a" / "c" / "0" / "0").mkdir()
    with pytest.raises(WeftError, match=r"c/0/0 cannot be read: .* Is a directory"):
        Array(Folder(tmp_path / "a"), opened(tmp_path / "a").metadata).read()


@pytest.mark.parametrize(
    ("codecs", "chunk", "wanted", "is_alone"),
    [
        ((), 512, 16, True),  # a small part of each chunk
        ((), 512, 512, False),
        ((Crc32c(),), 512, 16, False),  # a checksum needs the whole chunk
        ((Zstd(1),), 64, 64, True),
        ((Zstd(1), Crc32c()), 256, 256, False),
        ((Blosc("lz4", 5, "shuffle"),), 128, 128, True),
        ((Gzip(1),), 64, 64, False),
    ],
)
def test_one_thread_reads_what_is_small(tmp_path, monkeypatch, codecs, chunk, wanted, is_alone):
    """Several threads would wait for the interpreter lock; slow codecs run without it."""
    data = np.random.default_rng(0).integers(0, 9, (4 * chunk, 128), "u1")
    grid = data.shape, "u1", (chunk, 128), data.shape
    with create(tmp_path / "a", *grid, codecs=codecs, checksum=False) as writer:
        writer.append_rows(data)
    threads = []

    def counting(work, tasks, **more):
        threads.append(more["max_threads"])
        for_each(work, tasks, **more)

    monkeypatch.setattr("weft.store.read.SMALL", 0)
    monkeypatch.setattr("weft.store.read.for_each", counting)
    picks = data.reshape(4, chunk, 128)[:, :wanted]
    rows = np.arange(len(data)).reshape(4, chunk)[:, :wanted].reshape(-1)
    assert np.array_equal(opened(tmp_path / "a")[rows], picks.reshape(-1, 128))
    assert threads == [1 if is_alone else None]
