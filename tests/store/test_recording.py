"""Dropped frames, metadata of frames, and attributes that change during a recording."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.trials import trials

from weft.errors import WeftError
from weft.store import IntegrityError, Stream, attributes, create, create_image, open_image
from weft.store import frames as frames_module
from weft.store import open as open_store
from weft.store.buffers import BUFFERS
from weft.store.hierarchy import sink_of
from weft.store.threads import CORES

RUNS = trials(40)


def frame(value, *shape):
    return np.full(shape or (8, 8), value, "uint16")


# -- dropped frames

LAYOUTS = [
    ((None, 8, 8), (1, 4, 4), (4, 8, 8), {}),
    ((None, 8, 8), (4, 4, 4), (8, 8, 8), {}),
    ((None, 2, 3, 8, 8), (1, 1, 1, 8, 8), (2, 2, 3, 8, 8), {}),
    ((None, 2, 3, 8, 8), (2, 1, 3, 4, 4), (4, 2, 3, 8, 8), {}),
    ((2, None, 8, 8), (1, 2, 4, 8), (2, 4, 8, 8), {"axis_order": (1, 0, 2, 3)}),
    ((9, 8, 8), (2, 8, 8), (4, 8, 8), {}),
]


@pytest.mark.parametrize(("shape", "chunks", "shards", "more"), LAYOUTS)
def test_dropped_frames_read_as_fill_value_wherever_they_are(tmp_path, shape, chunks, shards, more):
    """Random runs of frames and gaps, continued in between, give what NumPy says."""
    rng = np.random.default_rng(0)
    for number in range(max(1, RUNS // len(LAYOUTS))):
        path, wanted, missing = tmp_path / str(number), [], []
        writer = create(path, shape, "uint16", chunks, shards, fill_value=7, **more)
        limit = 9 if shape[0] == 9 else int(rng.integers(10, 40))
        while len(wanted) < limit:
            count = int(min(rng.integers(1, 9), limit - len(wanted)))
            if rng.random() < 0.5:
                missing += range(len(wanted), len(wanted) + count)
                wanted += [7] * count
                writer.skip(count)
            else:
                values = np.arange(len(wanted) + 100, len(wanted) + 100 + count)
                wanted += values.tolist()
                block = np.broadcast_to(values[:, None, None], (count, 8, 8)).astype("uint16")
                writer.append(block)
            if rng.random() < 0.2 and len(wanted) < 9:
                writer.close()
                writer = open_store(path, "a")
        assert writer.frames == limit
        writer.close()
        array = open_store(path)
        array.verify()
        order = more.get("axis_order", range(len(shape)))
        found = array.read().transpose(order).reshape(-1, 8, 8)
        assert found[:limit, 3, 5].tolist() == wanted
        assert (found[limit:] == 7).all()
        assert array.frames.dropped.tolist() == missing
        at = array.frames.indices
        picked = [array.read()[tuple(place)][0, 0] for place in at]
        assert picked == wanted


def test_dropped_frames_are_not_stored(tmp_path):
    with create(tmp_path / "a", (None, 64, 64), "uint16", (4, 32, 32), (64, 64, 64)) as writer:
        writer.append(frame(1, 64, 64))
        writer.skip(10_000)
        writer.append(frame(2, 64, 64))
    array = open_store(tmp_path / "a")
    assert array.shape == (10_002, 64, 64)
    assert array.verify() == 8
    assert len(array.frames.dropped) == 10_000
    stored = sum(file.stat().st_size for file in Path(tmp_path, "a").rglob("*") if file.is_file())
    assert stored < 1 << 20


def test_frames_are_not_skipped_where_that_cannot_be(tmp_path):
    with create(tmp_path / "a", (5, 8, 8), "uint16", (2, 8, 8)) as writer:
        with pytest.raises(WeftError, match=r"6 frames are skipped, and .* has room for 5"):
            writer.skip(6)
        with pytest.raises(WeftError, match="skip is -1; it cannot be negative"):
            writer.skip(-1)
        writer.append_rows(np.ones((3, 8), "uint16"))
        with pytest.raises(WeftError, match="cannot be skipped inside of a frame"):
            writer.skip(1)
        assert writer.metrics().bytes == 48


def test_an_image_skips_in_all_levels(tmp_path):
    path = tmp_path / "a"
    with create_image(path, (None, 8, 8), "uint16", (1, 4, 4), axes="tyx", levels=2) as writer:
        writer.append(frame(4), metadata={"delta_t": 0.5})
        writer.skip(3)
        writer.append(frame(8), metadata={"delta_t": 2.0})
        writer.attrs["operator"] = "Ada"
    writer.attrs["medium"] = "water"
    image = open_image(path)
    assert [level.read()[:, 0, 0].tolist() for level in image.levels] == [[4, 0, 0, 0, 8]] * 2
    assert image.frames.dropped.tolist() == [1, 2, 3]
    assert image.frames["delta_t"][[0, 4]].tolist() == [0.5, 2.0]
    stored = json.loads((path / "zarr.json").read_text())["attributes"]
    assert (stored["operator"], stored["medium"]) == ("Ada", "water")
    assert "multiscales" in stored["ome"]


# -- metadata of frames


def record(path, count, **more):
    with create(path, (None, 8, 8), "uint16", (2, 4, 4), (8, 8, 8), **more) as writer:
        for number in range(count):
            writer.append(frame(number), metadata={"number": number, "name": f"µ{number}\u2028"})


def test_metadata_are_read_as_dictionaries_columns_and_a_data_frame(tmp_path):
    path = tmp_path / "a"
    with create(path, (None, 8, 8), "uint16", (1, 8, 8)) as writer:
        writer.append(frame(1), metadata={"t": np.float32(0.5), "n": np.int16(3), "ok": True})
        writer.append(frame(2))
        more = [{"t": 1, "n": 4, "stage": {"x": 1.5, "y": [1, 2]}}, None, {"name": "last"}]
        writer.append(frame(3, 3, 8, 8), metadata=more)
        writer.append(frame(4, 1, 8, 8), metadata={"at": (1, 2), "big": 1 << 70})
    table = open_store(path).frames
    assert len(table) == 6
    assert table[0] == {"t": 0.5, "n": 3, "ok": True}
    assert table[1] == table[-3] == {}
    assert table[2:5] == [more[0], {}, more[2]]
    assert table.columns == ("t", "n", "ok", "stage", "name", "at", "big")
    assert np.array_equal(table["t"], [0.5, np.nan, 1, np.nan, np.nan, np.nan], equal_nan=True)
    assert table["name"].tolist() == [None, None, None, None, "last", None]
    assert table[5]["big"] == table["big"][5] == 1 << 70
    assert table[5]["at"] == [1, 2]
    assert repr(table) == "<FrameTable of 6 frames: t, n, ok, stage, name, at, big>"
    with pytest.raises(KeyError, match="no frame has 'x'"):
        table["x"]
    with pytest.raises(IndexError, match="no frame 6 of 6"):
        table[6]
    pandas = pytest.importorskip("pandas")
    framed = table.to_pandas()
    assert isinstance(framed, pandas.DataFrame)
    assert framed.loc[2, "t"] == 1
    assert not framed["dropped"].any()


def test_whole_columns_have_the_dtype_of_their_numbers(tmp_path):
    path = tmp_path / "a"
    record(path, 20)
    table = open_store(path).frames
    assert table["number"].dtype == np.int64
    assert table["number"].tolist() == list(range(20))
    assert table["name"].tolist() == [f"µ{number}\u2028" for number in range(20)]
    assert zarr.open_array(path, mode="r")[:, 0, 0].tolist() == list(range(20))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"gain": float("nan")}, "metadata.gain: nan is not a JSON number"),
        ({"a": [1, float("inf")]}, r"metadata.a\[1\]: inf is not a JSON number"),
        ({"a": np.array([1.0, np.nan])}, r"metadata.a\[1\]: nan is not"),
        ({"a": object()}, "metadata.a: object is not JSON"),
        ({"a": {1, 2}}, "metadata.a: set is not JSON"),
        ({"a": b"x"}, "metadata.a: bytes is not JSON"),
        ({1: 2}, "metadata: a key must be text, got 1"),
        ({"a": "\ud800"}, "metadata.a: '.ud800' is not Unicode text"),
        ({"a": 10**5000}, "metadata is not JSON"),
        ({"a": "x" * (1 << 20)}, "metadata has 1048585 B; at most 1048576 are stored"),
        ("x", "metadata of a frame is a mapping, and of several a list, got str"),
        (3, "metadata of a frame is a mapping, and of several a list, got int"),
        ([], "the block has 1 frame, and its metadata is a list of 0"),
        ([{}, {}], "the block has 1 frame, and its metadata is a list of 2"),
        ([3], r"metadata\[0\]: expected a mapping, got int"),
    ],
)
def test_malformed_metadata_are_refused_before_the_frame_is_taken(tmp_path, metadata, message):
    with create(tmp_path / "a", (None, 8, 8), "uint16", (1, 8, 8)) as writer:
        writer.append(frame(1), metadata={"n": 1})
        with pytest.raises(WeftError, match=message):
            writer.append(frame(2), metadata=metadata)
        with pytest.raises(WeftError, match="2 frames, and its metadata is one mapping"):
            writer.append(frame(2, 2, 8, 8), metadata={})
        assert (writer.frames, writer.metrics().bytes) == (1, 128)
    table = open_store(tmp_path / "a").frames
    assert list(table) == [{"n": 1}]


def test_metadata_that_are_nested_too_deeply_are_refused(tmp_path):
    nested = {}
    for _ in range(100_000):
        nested = {"a": nested}
    with create(tmp_path / "a", (None, 8, 8), "uint16", (1, 8, 8)) as writer:
        with pytest.raises(WeftError, match="nested too deeply"):
            writer.append(frame(1), metadata=nested)
        assert writer.frames == 0


@pytest.mark.parametrize("segment", [1 << 16, 150])
def test_metadata_are_visible_with_their_frames_and_continued(tmp_path, monkeypatch, segment):
    monkeypatch.setattr(frames_module, "SEGMENT_BYTES", segment)
    path, rng = tmp_path / "a", np.random.default_rng(1)
    writer = create(path, (None, 8, 8), "uint16", (4, 4, 4), (8, 8, 8))
    for number in range(40):
        writer.append(frame(number), metadata={"number": number} if number % 5 else None)
        if rng.random() < 0.3:
            writer.flush()
            seen = open_store(path)
            assert seen.shape[0] == len(seen.frames) == number + 1
        if rng.random() < 0.1:
            writer.close()
            writer = open_store(path, mode="a")
        seen = open_store(path)
        wanted = [{"number": n} if n % 5 else {} for n in range(seen.shape[0])]
        assert list(seen.frames) == wanted
    writer.close()
    assert list(open_store(path).frames) == [{"number": n} if n % 5 else {} for n in range(40)]
    names = sorted(os.listdir(path / "frames"))
    assert len(names) == (1 if segment > 1000 else 8)
    open_store(path).verify()


def test_lines_of_frames_that_were_not_promised_do_not_count(tmp_path):
    """A writer that is killed between the lines and `zarr.json` leaves lines of later frames."""
    path = tmp_path / "a"
    record(path, 8)
    before = (path / "zarr.json").read_bytes()
    with open_store(path, "a") as writer:
        for number in range(8, 12):
            writer.append(frame(number), metadata={"number": number, "old": True})
        writer.skip(4)
    after = frames_module.segment_bytes(1, [b'{"frame": 12, "metadata": {}}\n'])
    (path / "frames/1.jsonl").write_bytes(after)
    (path / "zarr.json").write_bytes(before)
    assert len(open_store(path).frames) == 8
    with open_store(path, "a") as writer:
        writer.append(frame(8, 6, 8, 8))
    assert not (path / "frames/1.jsonl").exists()
    table = open_store(path).frames
    assert table["number"][:8].tolist() == list(range(8))
    assert table[8:] == [{}] * 6
    assert len(table.dropped) == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "longer", "swapped"])
def test_damaged_metadata_are_found(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(frames_module, "SEGMENT_BYTES", 100)
    path = tmp_path / "a"
    record(path, 8)
    segment = path / "frames/1.jsonl"
    data = segment.read_bytes()
    changed = {
        "flip": data.replace(b'"number": ', b'"number": 1'),
        "cut": data[:-9],
        "missing": None,
        "longer": data * 2,
        "swapped": (path / "frames/0.jsonl").read_bytes(),
    }[damage]
    if changed is None:
        segment.unlink()
    else:
        segment.write_bytes(changed)
    with pytest.raises(WeftError, match=r"frames/1.jsonl is (damaged|missing)"):
        len(open_store(path).frames)
    with pytest.raises(IntegrityError, match=r"frames/1.jsonl is (damaged|missing)"):
        open_store(path).verify()


def test_overwriting_removes_metadata_and_keeps_other_files(tmp_path):
    path = tmp_path / "a"
    record(path, 8)
    (path / "frames/notes.txt").write_text("mine")
    create(path, (None, 8, 8), "uint16", (1, 8, 8), overwrite=True).close()
    assert os.listdir(path / "frames") == ["notes.txt"]
    assert len(open_store(path).frames) == 0


def test_object_stores_hold_metadata_too():
    url = "memory://recording/a"
    record(url, 20)
    assert open_store(url).frames["number"].tolist() == list(range(20))
    with open_store(url, "a") as writer:
        writer.append(frame(20), metadata={"number": 20})
        writer.skip(3)
    assert open_store(url).frames["number"][:21].tolist() == list(range(21))
    assert open_store(url).frames.dropped.tolist() == [21, 22, 23]
    assert sorted(sink_of(url).keys("frames")) == ["frames/0.jsonl"]


# -- attributes


def test_attributes_change_at_any_time_and_none_is_lost(tmp_path):
    path = tmp_path / "a"

    def stored():
        found = dict(zarr.open_array(path, mode="r").attrs)
        found.pop("weft")
        return found

    with create(path, (None, 8, 8), "uint16", (1, 8, 8), attributes={"first": [1]}) as writer:
        for number in range(4):
            writer.append(frame(number), metadata={"number": number})
            writer.attrs[f"a{number}"] = {"n": np.int32(number)}
            assert stored() == {"first": [1]} | {f"a{n}": {"n": n} for n in range(number + 1)}
        del writer.attrs["a0"]
        writer.attrs["a1"]["n"] = 9  # a copy
        assert writer.attrs["a1"] == {"n": 1}
    assert stored() == {"first": [1]} | {f"a{n}": {"n": n} for n in range(1, 4)}
    writer.attrs.update(after=True, first=None)
    with open_store(path, "a") as writer:
        inode = (path / "c/3/0/0").stat().st_ino
        writer.attrs["again"] = 1
    assert (path / "c/3/0/0").stat().st_ino == inode  # nothing was appended: no shard is written
    attributes(path).update({"by": "url"})
    assert stored() == {
        "first": None,
        "after": True,
        "again": 1,
        "by": "url",
        **{f"a{n}": {"n": n} for n in range(1, 4)},
    }
    assert len(open_store(path).frames) == 4
    attributes(path).clear()
    assert stored() == {}
    assert len(open_store(path).frames) == 4


def test_attributes_that_cannot_be_are_refused_and_change_nothing(tmp_path):
    path = tmp_path / "a"
    with create(path, (None, 8, 8), "uint16", (1, 8, 8), attributes={"first": 1}) as writer:
        before = (path / "zarr.json").read_bytes()
        for name, value, message in (
            ("a", float("nan"), "attributes.a: nan is not a JSON number"),
            ("a", object(), "attributes.a: object is not JSON"),
            (3, 4, "a key must be text"),
            ("weft", {}, "the attribute 'weft' is written by Weft alone"),
            ("ome", {}, "the attribute 'ome' is written by Weft alone"),
            ("a", "x" * (1 << 24), "zarr.json would have .* B; at most 16711680 are written"),
        ):
            with pytest.raises(WeftError, match=message):
                writer.attrs[name] = value
        with pytest.raises(KeyError):
            del writer.attrs["none"]
        with pytest.raises(WeftError, match="is locked by another writer"):
            attributes(path)["b"] = 1
        assert (path / "zarr.json").read_bytes() == before
    with pytest.raises(WeftError, match="there is no Zarr array or group at"):
        attributes(tmp_path / "none")


def test_a_stream_takes_metadata_attributes_and_gaps(tmp_path):
    with Stream(tmp_path / "run", attributes={"sample": 7}) as stream:
        stream.create("a", (None, 8, 8), "uint16", (1, 8, 8))
        stream.create("b", (None, 2), "float32", (4, 2))
        blocks = {"a": frame(1), "b": np.ones(2, "float32")}
        stream.append(blocks, metadata={"a": {"n": 0}})
        for wrong in ({"b": {"n": float("nan")}}, {"c": {}}, {"a": [{}, {}]}):
            with pytest.raises(WeftError):
                stream.append(blocks, metadata=wrong)
        assert [stream[name].frames for name in stream] == [1, 1]
        stream.skip()
        stream.skip({"a": 2})
        stream.append(blocks, metadata={"a": {"n": 1}, "b": {"n": 2}})
        stream.attrs["operator"] = "Ada"
    assert attributes(tmp_path / "run") == {"sample": 7, "operator": "Ada"}
    first, second = (open_store(tmp_path / "run" / name).frames for name in "ab")
    assert (first[4], first.dropped.tolist()) == ({"n": 1}, [1, 2, 3])
    assert (second[2], second.dropped.tolist()) == ({"n": 2}, [1])


def test_a_stream_skips_in_all_arrays_or_in_none(tmp_path, monkeypatch):
    def interrupt(count):
        raise KeyboardInterrupt

    with Stream(tmp_path / "run") as stream:
        for name in "ab":
            stream.create(name, (None, 8, 8), "uint16", (1, 8, 8))
        stream.append({"a": frame(1), "b": frame(1)})
        monkeypatch.setattr(stream["b"], "skip", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.skip(3)
        assert [stream[name].frames for name in "ab"] == [1, 1]
    for name in "ab":
        found = open_store(tmp_path / "run" / name)
        assert (found.shape[0], found.frames.dropped.tolist()) == (1, [])
        found.verify()


# -- many recordings at a time

FIELDS = """
    import gc, sys, tempfile, threading
    import numpy as np
    from weft.store import create_plate

    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    folder, (chunk, side, levels, frames) = sys.argv[1], map(int, sys.argv[2:])
    frame = np.random.default_rng(0).poisson(100, (256, 256)).astype("uint16")
    columns = [str(number) for number in range(1, 13)]
    image = dict(shape=(None, 256, 256), dtype="uint16", axes="tyx",
                 chunks=(chunk, side, side), shards=(4 * chunk, 256, 256), codecs="blosc-lz4",
                 levels=levels)
    gc.collect()
    memory, threads, most = resident(), threading.active_count(), 0
    with create_plate(f"{folder}/plate", "ABCDEFGH", columns, **image) as plate:
        fields = [plate.field(row, column, 0) for row in "ABCDEFGH" for column in columns]
        predicted = plate.memory()
        for number in range(frames):
            for field in fields:
                field.append(frame, metadata={"delta_t": number})
            most = max(most, resident())
        threads = threading.active_count() - threads
    print(most - memory, predicted, threads)
"""


@pytest.mark.parametrize(
    ("chunk", "side", "levels", "frames"),
    [
        (1, 128, 2, 3),
        pytest.param(8, 128, 2, 3, marks=pytest.mark.slow),
        pytest.param(16, 64, 3, 18, marks=pytest.mark.slow, id="whole epochs"),
    ],
)
def test_many_fields_share_threads_and_memory(tmp_path, chunk, side, levels, frames):
    """Of 96 fields with coarser levels all are written; no thread is started for each."""
    sizes = map(str, (chunk, side, levels, frames))
    command = [sys.executable, "-c", textwrap.dedent(FIELDS), str(tmp_path), *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    used, predicted, threads = map(int, ran.stdout.split())
    assert used < 300e6
    assert predicted < 300e6 or chunk > 1
    assert threads <= CORES
    field = open_image(tmp_path / "plate/H/12/0")
    assert [level.shape for level in field.levels] == [
        (frames, 256 >> level, 256 >> level) for level in range(levels)
    ]
    assert field.frames["delta_t"].tolist() == list(range(frames))


def test_a_writer_that_waits_for_another_one_does_not_block_it(tmp_path):
    """Coarser levels are appended to by the threads that encode them: they help themselves."""
    more = {"axes": "tyx", "levels": 3, "threads": 1, "codecs": "zstd"}
    grid = ((None, 64, 64), "uint16", (1, 16, 16), (4, 64, 64))
    images = [create_image(tmp_path / str(number), *grid, **more) for number in range(4)]
    for number in range(12):
        for image in images:
            image.append(frame(number, 64, 64))
    for image in images:
        image.close()
    for number in range(4):
        for level in open_image(tmp_path / str(number)).levels:
            assert level.read()[:, 0, 0].tolist() == list(range(12))
    assert BUFFERS.writers == BUFFERS.used == 0
