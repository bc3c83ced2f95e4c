"""Whole shards written by anybody, in any order: as others read them, and whatever goes wrong."""

import errno
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.storage
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.disks import tmpfs
from tests.store.cases import CODECS, DTYPES, OWN, folder
from tests.store.readers import read_by_tensorstore, read_by_zarr
from tests.trials import trials

from weft import WeftError, ZRange
from weft.store import Zstd, create, create_shards, open_shards
from weft.store import open as open_store
from weft.store.files import Folder
from weft.store.objects.sink import ObjectSink
from weft.store.sink import SinkError


@st.composite
def forms(draw, codecs=CODECS):
    """The arguments of `create_shards`, of any rank."""
    rank = draw(st.integers(0, 4))
    most = {0: 1, 1: 40, 2: 14, 3: 8, 4: 5}[rank]
    shape = tuple(draw(st.integers(0, most)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, 1 + n)) for n in shape)
    shards = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    said = {
        "codecs": draw(st.sampled_from(codecs)),
        "fill_value": draw(st.sampled_from([0, 1])),
        "order": draw(st.permutations(range(rank))) if draw(st.booleans()) else (),
        "endian": draw(st.sampled_from(["little", "big"])),
        "index_location": draw(st.sampled_from(["start", "end"])),
    }
    return (shape, draw(st.sampled_from(DTYPES)), chunks, shards), said


def values(shape, dtype, seed):
    """Many equal values, so that whole chunks and shards are fill value now and then."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 3, shape) * (rng.random(shape) < 0.6)
    if rng.random() < 0.3 and shape:
        found[: shape[0] // 2] = rng.integers(0, 2)
    return found.astype(dtype)


def odd(block, kind):
    """The same values, as they may lie in memory."""
    match kind if block.ndim else 0:
        case 0:
            return block
        case 1:
            return np.repeat(block, 2, axis=-1)[..., ::2]
        case 2:
            made = np.asfortranarray(block)
            made.flags.writeable = False
            return made
        case _:
            return block.astype(block.dtype.newbyteorder(">"))


def grid(writer):
    """The coordinates of all shards."""
    counts = [-(-n // s) for n, s in zip(writer.shape, writer.shards)]
    return list(product(*map(range, counts)))


def unions(writer, rng):
    """Boxes of whole shards that are all of the array, in any order."""
    cuts = []
    for n, s in zip(writer.shape, writer.shards):
        places = [0, *(p for p in range(s, n, s) if rng.random() < 0.6), n]
        cuts.append(list(pairwise(places)))
    boxes = [ZRange([a for a, _ in c], [b for _, b in c]) for c in product(*cuts)]
    return [boxes[n] for n in rng.permutation(len(boxes))]


def files(path):
    """What a store holds, by key."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


@given(forms(), st.integers(0, 1 << 32))
def test_written_shards_are_read_by_others(form, seed):
    given_, said = form
    data, rng = values(*given_[:2], seed), np.random.default_rng(seed)
    with folder() as at:
        writer = create_shards(at / "a", *given_, **said)
        stored = 0
        for box in unions(writer, rng):
            there = pickle.loads(pickle.dumps(writer))
            block = odd(data[box.slices()], int(rng.integers(4)))
            assert not writer.done(box) or box.is_empty
            stored += there.write(box, block, threads=int(rng.integers(1, 4)))
            assert writer.done(box)
        assert writer.written() == (grid(writer) if data.size else [])
        held = files(at / "a")
        assert stored == sum(len(text) for key, text in held.items() if key != "zarr.json")
        assert not [key for key in held if "partial" in key or "lock" in key]
        for read in (read_by_zarr, read_by_tensorstore, lambda path: open_store(path).read()):
            found = read(at / "a")
            assert found.dtype == data.dtype
            assert np.array_equal(found, data), read
        again = create_shards(at / "b", *given_, **said)
        for shard in writer.written():  # by one process, one shard at a time: the same bytes
            box = again.shard_box(shard)
            again.write(box, data[box.slices()].copy())
        assert files(at / "b") == held


@given(forms(CODECS + OWN), st.integers(0, 1 << 32))
@settings(max_examples=trials(60))
def test_every_codec_reads_what_it_wrote(form, seed):
    given_, said = form
    data = values(*given_[:2], seed)
    with folder() as at:
        writer = create_shards(at / "a", *given_, **said)
        writer.write(ZRange.of(data.shape), data)
        assert np.array_equal(writer.reader().read(), data)


@given(forms(), st.integers(0, 1 << 32))
@settings(max_examples=trials(60))
def test_a_part_of_the_shards_is_known_by_name(form, seed):
    given_, said = form
    data, rng = values(*given_[:2], seed), np.random.default_rng(seed)
    with folder() as at:
        writer = create_shards(at / "a", *given_, **said)
        all_of_them = grid(writer) if data.size else []
        chosen = [shard for shard in all_of_them if rng.random() < 0.5]
        for shard in chosen:
            box = writer.shard_box(shard)
            writer.write(box, data[box.slices()])
        assert writer.written() == chosen
        expected = np.full(data.shape, said["fill_value"], data.dtype)
        for shard in all_of_them:
            box = writer.shard_box(shard)
            assert writer.done(box) == (shard in chosen)
            if shard in chosen:
                expected[box.slices()] = data[box.slices()]
        assert np.array_equal(read_by_zarr(at / "a"), expected)


def test_large_chunks_on_threads_are_the_same_bytes(tmp_path):
    """Codecs are tried, and Blosc is called by a thread that is not the main one."""
    data = np.random.default_rng(0).poisson(200, (64, 128, 256)).astype("uint16")
    for codec in ("zstd", "blosc-lz4", "blosc-zstd", "none"):
        held = []
        for threads in (1, 2, 5):
            path = tmp_path / f"{codec}{threads}"
            writer = create_shards(path, data.shape, "uint16", (32,) * 3, data.shape, codecs=codec)
            writer.write(ZRange.of(data.shape), data, threads=threads)
            held.append(files(path))
        assert held[0] == held[1] == held[2]
        assert np.array_equal(read_by_tensorstore(path), data)


def test_one_core_is_one_thread(tmp_path):
    """Blosc would start threads of its own on the main one."""
    code = (
        "import numpy as np, threading, sys; from weft import ZRange\n"
        "from weft.store import create_shards\n"
        "a = np.random.default_rng(0).poisson(9, (64, 64, 64)).astype('uint16')\n"
        "form = a.shape, 'uint16', (32,) * 3, a.shape\n"
        "w = create_shards(sys.argv[1], *form, codecs='blosc-lz4')\n"
        "w.write(ZRange.of(a.shape), a); w.reader().read(threads=1)\n"
        "import os; print(len(os.listdir('/proc/self/task')), threading.active_count())"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    tasks, threads = map(int, ran.stdout.split())
    assert tasks == threads == 1


def test_bfloat16_is_two_bytes(tmp_path):
    import ml_dtypes

    data = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    writer = create_shards(tmp_path / "a", (3, 4), "bfloat16", (2, 2), (2, 4))
    writer.write(ZRange((0, 0), (2, 4)), data[:2])
    writer.write(ZRange((2, 0), (3, 4)), data[2:].view(np.uint16))
    assert np.array_equal(read_by_tensorstore(tmp_path / "a").view(np.uint16), data.view(np.uint16))


def test_without_shards_every_chunk_is_a_file(tmp_path):
    writer = create_shards(tmp_path / "a", (4, 4), "uint8", (2, 2))
    same = create_shards(tmp_path / "b", (4, 4), "uint8", (2, 2), (2, 2))
    for one in (writer, same):
        assert not one.metadata.is_sharded
        assert one.write(ZRange((0, 0), (4, 2)), np.ones((4, 2), "uint8")) == 2 * (4 + 4)
        assert sorted(files(Path(one.sink.url))) == ["c/0/0", "c/1/0", "zarr.json"]
    assert json.loads((tmp_path / "a/zarr.json").read_text())["codecs"] == [
        {"name": "bytes"}, {"name": "crc32c"},
    ]  # fmt: skip


def test_a_shard_of_fill_value_is_stored_and_replaces_another(tmp_path):
    writer = create_shards(tmp_path / "a", (4,), "float32", (1,), (4,), fill_value=float("nan"))
    box = ZRange((0,), (4,))
    assert writer.write(box, np.arange(4, dtype="float32")) == 4 * (4 + 4) + 68
    assert writer.write(box, np.full(4, np.nan, "float32")) == 68
    assert writer.done(box)
    assert np.isnan(read_by_zarr(tmp_path / "a")).all()
    assert writer.reader().verify() == 0


def test_arrays_of_others_are_gone_on_with(tmp_path):
    """Shards of a kind that only others write: no checksum, another order of bytes and keys."""
    for number, (location, endian, keys) in enumerate(
        product(["start", "end"], ["little", "big"], [("v2", "."), ("default", "."), ("v2", "/")])
    ):
        path = tmp_path / str(number)
        path.mkdir()
        index = [{"name": "bytes", "configuration": {"endian": endian}}]
        inner = {"chunk_shape": [1, 2], "codecs": [{"name": "bytes"}], "index_codecs": index}
        said = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [3, 4],
            "data_type": "int8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
            "chunk_key_encoding": {"name": keys[0], "configuration": {"separator": keys[1]}},
            "fill_value": 0,
            "codecs": [
                {"name": "sharding_indexed", "configuration": {**inner, "index_location": location}}
            ],
        }
        (path / "zarr.json").write_text(json.dumps(said))
        data = np.arange(12, dtype="int8").reshape(3, 4)
        writer = open_shards(path)
        writer.write(ZRange((2, 0), (3, 4)), data[2:])
        assert writer.written() == [(1, 0)]
        writer.write(ZRange((0, 0), (2, 4)), data[:2])
        assert writer.written() == [(0, 0), (1, 0)]
        assert np.array_equal(read_by_zarr(path), data)
        assert np.array_equal(read_by_tensorstore(path), data)


# -- what is refused


def refused(call, message, hint=None):
    with pytest.raises(WeftError) as caught:
        call()
    assert str(caught.value) == message
    assert "\n" not in str(caught.value)
    notes = getattr(caught.value, "__notes__", [])
    assert notes == ([] if hint is None else [f"hint: {hint}"])
    sent = pickle.loads(pickle.dumps(caught.value))  # it comes from a worker
    assert (type(sent), str(sent)) == (type(caught.value), message)
    assert getattr(sent, "__notes__", []) == notes


def test_boxes_that_are_not_whole_shards_are_refused(tmp_path):
    writer = create_shards(tmp_path / "a", (10, 9), "uint8", (2, 2), (4, 4))
    block = np.zeros((4, 9), "uint8")
    refused(
        lambda: writer.write(ZRange((2, 0), (6, 9)), block),
        "dimension 0: 2:6 of [2:6, 0:9] is not made of whole shards of 4, up to the end at 10",
        "the shards that it meets are 0:8",
    )
    refused(
        lambda: writer.write(ZRange((8, 4), (10, 6)), block[:2, :2]),
        "dimension 1: 4:6 of [8:10, 4:6] is not made of whole shards of 4, up to the end at 9",
        "the shards that it meets are 4:8",
    )
    refused(
        lambda: writer.write_memory(ZRange((8, 4), (9, 8))),
        "dimension 0: 8:9 of [8:9, 4:8] is not made of whole shards of 4, up to the end at 10",
        "the shards that it meets are 8:10",
    )
    refused(
        lambda: writer.write(ZRange((8, 0), (12, 9)), block),
        "dimension 0: 8:12 of [8:12, 0:9] is not inside 0:10",
    )
    refused(
        lambda: writer.write(ZRange((0,), (4,)), block[:, 0]),
        "[0:4] has rank 1, and the array rank 2",
    )
    refused(
        lambda: writer.done(ZRange((0, 0), (4, 10))),
        "[0:4, 0:10] is not inside the array, [0:10, 0:9]",
    )
    assert writer.written() == []
    assert writer.write(ZRange((4, 4), (4, 8)), block[:0, :4]) == 0
    assert writer.write_memory(ZRange((4, 4), (4, 8))) < writer.write_memory()


def test_blocks_of_another_form_are_refused(tmp_path):
    writer = create_shards(tmp_path / "a", (8, 8), "uint8", (2, 2), (4, 4))
    box = ZRange((0, 0), (4, 4))
    refused(
        lambda: writer.write(box, np.zeros((4, 5), "uint8")),
        "the block is uint8[4, 5], and [0:4, 0:4] is uint8[4, 4]",
    )
    refused(
        lambda: writer.write(box, np.zeros((4, 4), "int16")),
        "the block is int16[4, 4], and [0:4, 0:4] is uint8[4, 4]",
    )


def test_existing_arrays_are_not_replaced_without_overwrite(tmp_path):
    path = tmp_path / "a"
    writer = create_shards(path, (8,), "uint8", (2,), (4,))
    writer.write(ZRange((0,), (8,)), np.ones(8, "uint8"))
    (path / "c/.0.0123456789ab.partial").write_bytes(b"left")
    refused(
        lambda: create_shards(path, (8,), "uint8", (2,), (4,)),
        f"{path} holds an array already",
        "pass overwrite=True, or continue with open_shards(url)",
    )
    writer = create_shards(path, (), "uint8", (), overwrite=True)
    assert list(files(path)) == ["zarr.json"]
    assert writer.written() == []
    assert writer.write(ZRange((), ()), np.uint8(3)) == 1 + 4
    assert writer.written() == [()]
    create_shards(path, (4, 4), "uint8", (2, 2), overwrite=True)
    assert list(files(path)) == ["zarr.json"]


def test_arguments_that_contradict_each_other_are_refused(tmp_path):
    refused(
        lambda: create_shards(tmp_path / "a", (8, 8), "uint8", (2, 3), (4, 4)),
        "dimension 1: chunks of 3 do not fill shards of 4",
        "shards of [4, 3] or chunks of [2, 4] would fit",
    )
    refused(
        lambda: create_shards(tmp_path / "a", (8,), "uint8", (2, 3)),
        "shape, chunks and shards must have one rank, from 1 on: [8], [2, 3], [2, 3]",
    )
    refused(
        lambda: open_shards(tmp_path / "a"),
        f"there is no Zarr array at {tmp_path / 'a'}: the folder does not exist",
    )


def test_an_array_that_frames_are_appended_to_is_left_alone(tmp_path):
    path = tmp_path / "a"
    with create(path, (None, 4), "uint8", (2, 2), (4, 4)) as stream:
        stream.append(np.ones((4, 4), "uint8"))
        with pytest.raises(WeftError, match=f"^{path} is locked by another writer"):
            open_shards(path)
        with pytest.raises(WeftError, match=f"^{path} is locked by another writer"):
            create_shards(path, (4,), "uint8", (2,), overwrite=True)
    assert open_shards(path).written() == [(0, 0)]


# -- what goes wrong


def test_a_torn_file_is_not_done(tmp_path):
    """A host that lost its power may show a file whose bytes never reached the disk."""
    data = np.arange(8, dtype="uint8")
    writer = create_shards(tmp_path / "a", (8,), "uint8", (2,), (4,))
    writer.write(ZRange((0,), (8,)), data)
    whole = (tmp_path / "a/c/1").read_bytes()
    for torn in (b"", whole[:10], bytes(len(whole)), whole[:-1]):
        (tmp_path / "a/c/1").write_bytes(torn)
        assert writer.written() == [(0,)]
        assert not writer.done(ZRange((0,), (8,)))
    writer.write(ZRange((4,), (8,)), data[4:])
    assert (tmp_path / "a/c/1").read_bytes() == whole
    plain = create_shards(tmp_path / "b", (8,), "uint8", (4,))
    plain.write(ZRange((0,), (8,)), data)
    (tmp_path / "b/c/1").write_bytes(b"")
    assert plain.written() == [(0,)]


@pytest.mark.parametrize("shards", [(64, 64), None])
def test_a_full_disk(tmp_path, shards):
    data = np.random.default_rng(0).integers(0, 256, (64, 1024), "uint8")
    with tmpfs(tmp_path / "disk", 40 << 10) as disk:
        writer = create_shards(disk / "a", data.shape, "uint8", (32, 64), shards)
        with pytest.raises(SinkError) as caught:
            writer.write(ZRange.of(data.shape), data)
        said = re.fullmatch(
            rf"{disk}/a/(c/\d/\d+) cannot be written: No space left on device", str(caught.value)
        )
        assert said
        assert caught.value.__notes__ == [
            "hint: complete shards stay; write the others once the cause is gone"
        ]
        held = files(disk / "a")
        assert said[1] not in held
        assert not [key for key in held if "partial" in key]
        assert 4 <= len(writer.written()) == len(held) - 1
        found = read_by_zarr(disk / "a")
        for at in writer.written():
            box = writer.shard_box(at)
            assert np.array_equal(found[box.slices()], data[box.slices()])


def test_a_disk_that_is_full_at_any_moment(tmp_path, monkeypatch):
    """However little of a shard fits, nothing is under its key, and nothing is left aside."""
    data = np.random.default_rng(0).integers(0, 256, (64, 64), "uint8")
    writer = create_shards(tmp_path / "a", data.shape, "uint8", (8, 8), (32, 64))
    first = ZRange((0, 0), (32, 64))
    writer.write(first, data[:32])
    real, room = os.pwritev, [0]

    def short(file, buffers, offset):
        total = sum(len(b) for b in buffers)
        if total <= room[0]:
            room[0] -= total
            return real(file, buffers, offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", short)
    key = tmp_path / "a/c/1/0"
    for room[0] in (0, 2047, 2048, 2500):
        with pytest.raises(SinkError, match=f"^{key} cannot be written: No space left on device"):
            writer.write(ZRange((32, 0), (64, 64)), data[32:])
        assert sorted(files(tmp_path / "a")) == ["c/0/0", "zarr.json"]
    monkeypatch.undo()
    assert np.array_equal(read_by_zarr(tmp_path / "a")[:32], data[:32])


def test_a_folder_that_cannot_be_written(tmp_path):
    """To root nothing is read-only, and so a file stands where a folder should be."""
    writer = create_shards(tmp_path / "a", (8, 8), "uint8", (2, 2), (4, 4))
    (tmp_path / "a/c").mkdir()
    (tmp_path / "a/c/1").write_text("in the way")
    with pytest.raises(WeftError, match=f"^{tmp_path}/a/c/1/0 cannot be written: Not a directory"):
        writer.write(ZRange((0, 0), (8, 8)), np.ones((8, 8), "uint8"))
    assert writer.written() == [(0, 0), (0, 1)]
    (tmp_path / "b").write_text("in the way")
    with pytest.raises(WeftError, match=f"^{tmp_path}/b is a file, not a folder$"):
        create_shards(tmp_path / "b", (8,), "uint8", (2,))


READ_ONLY = """
import os, pickle, sys
import numpy as np
from weft import WeftError, ZRange
from weft.store import create_shards, open_shards, open as open_store
writer = pickle.loads(bytes.fromhex(sys.argv[1]))
if os.getuid() == 0:
    os.setuid(65534)  # nobody
for call in (
    lambda: writer.write(ZRange((0,), (4,)), np.ones(4, "uint8")),
    lambda: open_store(sys.argv[2]),
):
    try:
        call()
    except WeftError as error:
        print(error.args[0])
"""


def test_a_folder_that_is_read_only(tmp_path):
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o055)
    writer = create_shards(tmp_path / "a", (8,), "uint8", (2,), (4,))
    create_shards(tmp_path / "b", (8,), "uint8", (2,), (4,))
    (tmp_path / "b/zarr.json").chmod(0)
    (tmp_path / "a").chmod(0o555)
    command = [sys.executable, "-c", READ_ONLY, pickle.dumps(writer).hex(), str(tmp_path / "b")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        f"{tmp_path}/a/c/0 cannot be written: Permission denied",
        f"{tmp_path}/b/zarr.json cannot be read: Permission denied",
    ]


# -- many at a time

WORKER = """
import os, pickle, signal, sys
import numpy as np
from tests.store.test_shards import content
with open(sys.argv[1], "rb") as file:
    writer = pickle.load(file)
mine, count, last = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if mine == 0 and last:  # it is killed just before the n-th call of a function
    name, left = last.split(":")
    real, left = getattr(os, name), [int(left)]
    def dying(*given):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given)
    setattr(os, name, dying)
shards = [(n, m) for n in range(8) for m in range(8)]
for at in shards[mine::count]:
    box = writer.shard_box(at)
    writer.write(box, content(box))
"""
SIDE = 8 * 128


def content(box):
    """What is at a box: the same whoever makes it."""
    y, x = np.ogrid[tuple(map(slice, box.start, box.stop))]
    return ((y * 2654435761 + x * 40503) >> 7).astype("uint32")


def started(writer, tmp_path, count, last):
    sent = tmp_path / "writer"
    sent.write_bytes(pickle.dumps(writer))
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(sent), str(n), str(count), last], env=environment
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process writes."""
    path, whole = tmp_path_factory.mktemp("alone") / "a", (SIDE, SIDE)
    writer = create_shards(path, whole, "uint32", (16, 16), (128, 128), codecs="zstd")
    writer.write(ZRange.of(whole), content(ZRange.of(whole)))
    return files(path)


KILLED = {"": 0, "pwritev:1": 0, "pwritev:7": 3, "pwritev:8": 3, "replace:1": 0, "replace:9": 8}
"""How many shards are complete then: chunks are one call, and the index another."""


@pytest.mark.slow
@pytest.mark.parametrize("last", KILLED)
def test_many_processes_write_and_one_is_killed(tmp_path, alone, last):
    """At some moment, or in the middle of a shard, or when it is about to be seen."""
    path = tmp_path / "a"
    writer = create_shards(path, (SIDE, SIDE), "uint32", (16, 16), (128, 128), codecs="zstd")
    workers = started(writer, tmp_path, 3, last)
    end = time.monotonic() + 300
    while not list(path.rglob(".*.partial")) and workers[0].poll() is None:
        assert time.monotonic() < end
        time.sleep(0.0005)
    if not last:
        time.sleep(0.02)
        workers[0].send_signal(signal.SIGKILL)
    codes = [worker.wait() for worker in workers]
    assert codes[1:] == [0, 0]
    done = writer.written()
    assert len(done) >= 42  # those of the other two
    assert len(done) < 64 or codes[0] == 0
    if last:
        assert codes[0] == -signal.SIGKILL
        assert len(done) == 42 + KILLED[last]
        assert len(list(path.rglob(".*.partial"))) == 1
    found = read_by_zarr(path)
    for at in grid(writer):
        box = writer.shard_box(at)
        expected = content(box) if at in done else np.zeros(box.shape, "uint32")
        assert np.array_equal(found[box.slices()], expected)
        assert (path / f"c/{at[0]}/{at[1]}").exists() == (at in done)
    again = open_shards(path)
    assert not list(path.rglob(".*.partial"))
    for at in set(grid(writer)) - set(again.written()):
        again.write(again.shard_box(at), content(again.shard_box(at)))
    assert files(path) == alone


def test_two_that_write_one_shard_do_no_harm(tmp_path):
    """A task that was given up may still be at work when another does the same."""
    data = np.random.default_rng(0).integers(0, 9, (64, 64)).astype("uint32")
    writer = create_shards(tmp_path / "a", data.shape, "uint32", (8, 8), data.shape, codecs="zstd")
    box, faults = ZRange.of(data.shape), []

    def work():
        try:
            for _ in range(20):
                writer.write(box, data)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if writer.done(box):
            assert np.array_equal(read_by_zarr(tmp_path / "a"), data)
    assert not faults
    assert sorted(files(tmp_path / "a")) == ["c/0/0", "zarr.json"]


def test_a_handle_is_small_opened_once_and_knows_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = create_shards("a", (8, 8), "uint8", (2, 2), (4, 4), codecs="zstd")
    assert len(pickle.dumps(writer)) < 1000
    assert len(pickle.dumps(writer.reader())) < 1000
    there = pickle.loads(pickle.dumps(writer))
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(writer)) is there
    assert there.sink == Folder(tmp_path / "a")
    there.write(ZRange((0, 0), (4, 4)), np.ones((4, 4), "uint8"))
    assert there.written() == [(0, 0)]
    assert repr(there) == f"<ShardWriter uint8[8, 8] at {tmp_path}/a>"


# -- object stores


def test_shards_in_an_object_store(bucket, options, client):
    data = np.random.default_rng(0).integers(0, 256, (16, 1 << 20), "uint8")
    url = f"s3://{bucket}/a.zarr"
    writer = create_shards(url, data.shape, "uint8", (2, 1 << 19), (8, 1 << 20), options=options)
    there = pickle.loads(pickle.dumps(writer))
    assert there.sink.store.client is not writer.sink.store.client
    for at in [(1, 0), (0, 0)]:
        assert not writer.done(writer.shard_box(at))
        box = there.shard_box(at)  # 8 MiB, in two parts
        assert there.write(box, data[box.slices()]) == (8 << 20) + 8 * 4 + 16 * 8 + 4
        assert writer.done(box)
    assert writer.written() == [(0, 0), (1, 0)]
    keys = [found["Key"] for found in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["a.zarr/c/0/0", "a.zarr/c/1/0", "a.zarr/zarr.json"]
    array = pickle.loads(pickle.dumps(open_store(url, options=options)))
    box = ZRange((7, 5), (9, 1000))
    assert np.array_equal(array.read(box), data[box.slices()])
    store = zarr.storage.ObjectStore(writer.sink.store.client, read_only=True)
    assert np.array_equal(zarr.open_array(store, mode="r")[...], data)
    small = create_shards(url, (), "float32", (), options=options, overwrite=True)
    assert small.written() == []
    small.write(ZRange((), ()), np.float32(2))
    assert small.written() == [()]
    assert small.reader().read() == 2


def test_a_server_that_fails_in_the_middle(bucket, options, client, proxy):
    """Parts that have left are forgotten, and shards that are complete are read."""
    data = np.random.default_rng(0).integers(0, 256, (16, 1 << 20), "uint8")
    url = f"s3://{bucket}/a.zarr"
    writer = create_shards(url, data.shape, "uint8", (2, 1 << 19), (8, 1 << 20), options=options)
    writer.write(ZRange((0, 0), (8, 1 << 20)), data[:8])
    box = ZRange((8, 0), (16, 1 << 20))
    for words in (("PUT", "partNumber=2"), ("POST", "uploadId="), ("POST", "uploads")):
        proxy.harm("500", *words)
        with pytest.raises(SinkError, match=rf"^{url}/c/1/0: the server answers 500 Internal"):
            writer.write(box, data[8:])
        proxy.heal()
        assert writer.written() == [(0, 0)]
        found = writer.reader().read()
        assert np.array_equal(found[:8], data[:8])
        assert not found[8:].any()
    writer.write(box, data[8:])
    assert np.array_equal(writer.reader().read(), data)
    open_shards(url, options=options)
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_a_server_that_is_not_there_or_refuses(bucket, options, proxy):
    url = f"s3://{bucket}/a.zarr"
    writer = create_shards(url, (8,), "uint8", (2,), (4,), options=options)
    block, box = np.ones(4, "uint8"), ZRange((0,), (4,))
    proxy.harm("403", "PUT")
    refused(
        lambda: writer.write(box, block),
        f"{url}/c/0: access is denied (AccessDenied)",
        "check the permissions of these credentials, and the bucket's policy",
    )
    proxy.heal()
    proxy.harm("401")
    for call in (lambda: writer.write(box, block), lambda: writer.reader().read(box)):
        refused(
            call,
            f"{url}/c/0: the credentials are refused (InvalidToken)",
            "check the keys, the token, the region and the clock",
        )
    proxy.heal()
    away = {**options, "endpoint": "http://127.0.0.1:9"}
    gone = pickle.loads(pickle.dumps(type(writer)(ObjectSink.of(url, away), writer.metadata)))
    gone_away = "(there is no connection to the server|the server does not answer), after 3 retries"
    with pytest.raises(SinkError, match=rf"^{url}/c/0: {gone_away}"):
        gone.write(box, block)
    with pytest.raises(WeftError, match=rf"^{url}/zarr.json: {gone_away}"):
        create_shards(url, (8,), "uint8", (2,), options=away)
    refused(
        lambda: create_shards("https://127.0.0.1/a", (8,), "uint8", (2,), overwrite=True),
        "https://127.0.0.1/a can only be read",
        "write to s3://, gs:// or az://",
    )
    assert writer.written() == []


def test_memory_stores_stay_in_their_process():
    writer = create_shards("memory://stays/a", (8,), "uint8", (2,), (4,))
    there = pickle.loads(pickle.dumps(writer))
    there.write(ZRange((0,), (4,)), np.ones(4, "uint8"))
    assert writer.written() == [(0,)]
    assert writer.reader().read().tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    code = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    ran = subprocess.run(
        [sys.executable, "-c", code, pickle.dumps(writer).hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"WeftError: memory://stays/a ends with process {os.getpid()}, and this" in ran.stderr


def test_zstd_levels_take_the_predicted_memory(tmp_path):
    writers = [
        create_shards(tmp_path / str(n), (64,) * 3, "uint16", (64,) * 3, codecs=Zstd(n))
        for n in (1, 3, 9, 19)
    ]
    bounds = [writer.write_memory() for writer in writers]
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0]
