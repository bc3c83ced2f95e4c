"""What happens around a recording: folders that go, full disks, other programs, odd arguments."""

import errno
import os
import shutil
import threading
from math import inf, nan

import numpy as np
import pytest
import zarr

from weft.errors import WeftError
from weft.store import (
    Blosc,
    Gzip,
    Stream,
    Zstd,
    attributes,
    create,
    create_image,
    create_plate,
    create_positions,
    create_shards,
)
from weft.store import open as open_store
from weft.store.sink import SinkError

GRID = ((None, 8, 8), "uint16", (2, 4, 4), (4, 8, 8))
IMAGE = {"shape": (None, 8, 8), "dtype": "uint16", "chunks": (1, 8, 8), "axes": "tyx"}
FRAME = np.ones((8, 8), "uint16")


def files_of(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def append_and_flush(writer, frames):
    for _ in range(frames):
        writer.append(FRAME)
    writer.flush()


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_folder_that_is_removed_is_not_written_again(tmp_path, again):
    """Shards after those that were removed would promise frames that nobody has."""
    writer = create(tmp_path / "a", *GRID)
    writer.append(np.ones((4, 8, 8), "uint16"))
    writer.flush()
    shutil.rmtree(tmp_path / "a")
    if again:
        create(tmp_path / "a", *GRID).close()
    with pytest.raises(WeftError, match="a was removed or replaced while it was written"):
        append_and_flush(writer, 20)
    writer.close()
    assert files_of(tmp_path) == (["a/zarr.json"] if again else [])


def test_a_relative_path_is_that_of_the_moment_it_was_given(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    writer = create("a.zarr", *GRID)
    image = create_image("i.zarr", **IMAGE)
    monkeypatch.chdir(tmp_path / "there")
    for each in (writer, image):
        each.append(np.ones((5, 8, 8), "uint16"))
        each.attrs["sample"] = 7
        each.close()
    assert files_of(tmp_path / "there") == []
    monkeypatch.chdir(tmp_path / "here")
    array = open_store("a.zarr")
    monkeypatch.chdir(tmp_path)
    assert array.read().min() == 1
    assert array.url == "a.zarr", "messages name it as it was given"
    assert open_store(tmp_path / "here" / "i.zarr").levels[0].read().min() == 1


def test_a_full_disk_leaves_nothing_unfinished(tmp_path, monkeypatch):
    with create(tmp_path / "a", *GRID) as writer:
        writer.append(FRAME)
    before = files_of(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    makers = [
        lambda path: create(path, *GRID),
        lambda path: create_image(path, **IMAGE),
        lambda path: create_plate(path, "A", "1", **IMAGE),
        lambda path: create_positions(path, **IMAGE),
        lambda path: create_shards(path, (8, 8), "uint16", (4, 4)),
        Stream,
        lambda _: attributes(tmp_path / "a").update(sample=7),
    ]
    for make in makers:
        with pytest.raises(SinkError, match=r"cannot be written: .*No space left"):
            make(tmp_path / "new")
        assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gain": nan}, "attributes.gain: nan is not a JSON number"),
        ({"a": [1, {"b": inf}]}, r"attributes.a\[1\].b: inf is not a JSON number"),
        ({"data": b"x"}, "attributes.data: bytes is not JSON"),
        ({1: 2}, "attributes: a key must be text, got 1"),
        ([("a", 1)], "attributes: expected a mapping, got list"),
        ({"text": "x" * (1 << 24)}, "zarr.json would have .* B; at most 16711680 are written"),
    ],
)
def test_attributes_are_kept_or_refused_wherever_they_are_given(tmp_path, given, message):
    makers = [
        lambda path, **more: create(path, *GRID, **more).close(),
        lambda path, **more: create_image(path, **IMAGE, **more).close(),
        lambda path, **more: create_plate(path, "A", "1", **IMAGE, **more).close(),
        lambda path, **more: create_positions(path, **IMAGE, **more).close(),
        lambda path, **more: create_shards(path, (8, 8), "uint16", (4, 4), **more),
        lambda path, **more: Stream(path, **more).close(),
    ]
    for make in makers:
        with pytest.raises(WeftError, match=message):
            make(tmp_path / "a", attributes=given)
        assert not (tmp_path / "a").exists()
    for number, make in enumerate(makers):
        make(tmp_path / str(number), attributes={"gain": np.float32(2.5), "at": (np.int8(1),)})
        kept = attributes(tmp_path / str(number))
        assert (kept["gain"], kept["at"]) == (2.5, [1])


def test_arguments_that_readers_would_refuse_are_refused(tmp_path):
    wrong = [
        ({"dimension_names": [1, 2, 3]}, "dimension_names: a name is text or null"),
        ({"dimension_names": "ty"}, "dimension_names: expected 3 names"),
        ({"threads": 0}, "threads is 0; it must be 1 or more"),
        ({"threads": 1.5}, "threads must be an integer: 1.5"),
        ({"epochs": -1}, "epochs is -1; it cannot be negative"),
        ({"attributes": {"weft": 3}}, "attributes.weft: Weft adds fields of its own, got 3"),
        ({"dimension_names": ["t", "y", "y"]}, "dimension_names: 'y' is the name of two"),
        ({"fill_value": 1.5}, "fill_value: 1.5 is not of uint16"),
        ({"fill_value": 1e300, "dtype": "f4"}, r"fill_value: 1e\+300 is not a fill value of fl"),
        ({"fill_value": None, "dtype": "bool"}, "fill_value: None is not a fill value of bool"),
        ({"fill_value": 2, "dtype": "bool"}, "fill_value: 2 is not a fill value of bool"),
        ({"codecs": Zstd(100)}, r"codecs.configuration.level: 100 is not in -131072:23"),
        ({"codecs": Zstd(1.5)}, "codecs.configuration.level: 1.5 is not supported"),
        ({"codecs": Gzip(10)}, "codecs.configuration.level: 10 is not in 0:10"),
        ({"codecs": Blosc("lz4", 10)}, "codecs.configuration.clevel: 10 is not in 0:10"),
        ({"codecs": Blosc("lzma")}, "codecs.configuration.cname: 'lzma' is not supported"),
        ({"codecs": Blosc("snappy")}, "codecs: Blosc with snappy is read, but not written"),
        ({"chunks": 4}, "chunks must be a list: 4"),
        ({"shape": 8}, "shape must be a list: 8"),
    ]
    sizes = dict(zip(("shape", "dtype", "chunks", "shards"), GRID))
    for more, message in wrong:
        with pytest.raises(WeftError, match=message):
            create(tmp_path / "a", **(sizes | more))
    for url in (5, None, ""):
        with pytest.raises(WeftError, match="expected a path"):
            create(url, *GRID)
    assert not (tmp_path / "a").exists()
    shape, chunks, shards = map(np.array, ([3, 8, 8], [1, 4, 4], [2, 8, 8]))
    create(tmp_path / "a", shape, "u2", chunks, shards).close()


def test_members_that_a_stream_adds_are_not_hidden(tmp_path):
    """Consolidated metadata list the members that there were before."""
    group = zarr.create_group(tmp_path, attributes={"sample": 7})
    group.create_array("old/stage", shape=(4,), chunks=(2,), dtype="u2")
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(tmp_path)
    with Stream(tmp_path) as stream:
        stream.create("old/camera", *GRID).append(FRAME)
        with pytest.raises(WeftError, match="'old/camera' is an array of the stream, and holds no"):
            stream.create("old/camera/left", *GRID)
        for name in (5, "a\0b"):
            with pytest.raises(WeftError, match="is not a name of an array"):
                stream.create(name, *GRID)
        with pytest.raises(WeftError, match="do not fill"):
            stream.create("new/camera", (None, 8), "u2", (2, 4), (3, 8))
        with pytest.raises(WeftError, match="expected frames by the names of arrays, got list"):
            stream.append([FRAME])
    assert not (tmp_path / "new").exists()
    assert sorted(dict(zarr.open_group(tmp_path / "old", mode="r").members())) == [
        "camera",
        "stage",
    ]
    assert "camera" in str(open_store(tmp_path).tree())
    assert dict(attributes(tmp_path)) == {"sample": 7}


def test_threads_that_append_to_an_image_take_turns(tmp_path):
    """Every frame of the finest level is the same one as that of the coarser level."""
    shape, chunks = (None, 256, 256), (2, 64, 64)
    with create_image(tmp_path / "a", shape, "u2", chunks, axes="tyx", levels=2) as writer:

        def record(number):
            for _ in range(20):
                writer.append(np.full((256, 256), number, "uint16"))

        threads = [threading.Thread(target=record, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    fine, coarse = (level.read() for level in open_store(tmp_path / "a").levels)
    assert np.array_equal(fine[:, ::2, ::2], coarse)
    assert np.unique(fine, return_counts=True)[1].tolist() == [20 * 256 * 256] * 3
