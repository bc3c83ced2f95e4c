"""Frames: which blocks `append` takes, what is promised of them, and what survives."""

import json
import subprocess
import sys
import textwrap
import time
import warnings

import numpy as np
import pytest
import tensorstore
import zarr
from tests.trials import trials

from weft.errors import WeftError
from weft.store import (
    Stream,
    create,
    create_image,
    create_plate,
    create_shards,
    open_image,
)
from weft.store import (
    open as open_store,
)
from weft.store.chunk_layout import FrameLayout
from weft.store.create import check_memory

KILLS = trials(3)


def frames(*shape):
    return np.arange(1, 1 + np.prod(shape), dtype="uint16").reshape(shape)


# -- what is a frame

REFUSED = [
    ((None, 64, 48), {}, [(60, 48), (65, 48), (64, 47), (48,), (5, 60, 48), (1, 5, 64, 48), ()]),
    ((None, 64, 48, 3), {}, [(60, 48, 3), (64, 48, 4), (48, 3), (3,), (2, 60, 48, 3)]),
    ((None, 2, 5, 8, 9), {}, [(7, 9), (9,), (3, 7, 9), (2, 4, 8, 9), (3, 5, 8, 9, 1)]),
    ((None, 5), {}, [(4,), (6,), (3, 4), ()]),
    ((None,), {}, [(2, 1)]),
    ((9, None, 7), {"append_dim": 1}, [(8, 7), (7, 9), (2, 7, 9), (7,)]),
    ((None, 4, 6, 8), {"frame_ndim": 3}, [(6, 8), (3, 6, 8), (5, 6, 8)]),
    ((None, 6, 7, 9), {"dimension_names": ["t", "y", "x", "c"]}, [(7, 9), (5, 7, 9), (9,)]),
]


@pytest.mark.parametrize(("shape", "more", "blocks"), REFUSED)
def test_blocks_that_are_not_frames_are_refused_and_change_nothing(tmp_path, shape, more, blocks):
    chunks = tuple(min(4, n or 2) for n in shape)
    with create(tmp_path / "a", shape, "uint16", chunks, **more) as writer:
        whole = writer.layout.ordered_shape[1:]
        writer.append(np.ones((1, *whole), "uint16"))
        state = writer.shape, writer.frames, writer.metrics().bytes
        for block in blocks:
            with pytest.raises(WeftError, match=r"is not a frame of .*: a frame is \[") as caught:
                writer.append(np.ones(block, "uint16"))
            assert "append_rows takes loose rows" in caught.value.__notes__[0]
            assert (writer.shape, writer.frames, writer.metrics().bytes) == state
        for values in (np.ones((1, *whole), "int16"), np.ones(whole), [[1]]):
            with pytest.raises(
                WeftError, match=r"the array holds uint16, and the block|not a frame"
            ):
                writer.append(values)
            assert (writer.shape, writer.frames, writer.metrics().bytes) == state
        writer.append(np.full(writer.frame, 2, "uint16"))
    assert open_store(tmp_path / "a").read().max() == 2


def test_frames_of_the_wrong_height_are_never_glued(tmp_path):
    with create(tmp_path / "a", (None, 64, 48), "uint8", (1, 64, 48)) as writer:
        for _ in range(20):
            with pytest.raises(WeftError, match=r"a block of \[60, 48\] is not a frame of"):
                writer.append(np.ones((60, 48), "uint8"))
    assert open_store(tmp_path / "a").shape == (0, 64, 48)


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((None, 6, 4), [(6, 4), (3, 6, 4), (0, 6, 4)]),
        ((None, 2, 5, 8, 9), [(8, 9), (4, 8, 9), (5, 8, 9), (2, 5, 8, 9), (3, 2, 5, 8, 9)]),
        ((None, 5), [(5,), (2, 5)]),
        ((None,), [(), (3,)]),
        ((None, 6, 5, 3), [(6, 5, 3), (2, 6, 5, 3)]),
    ],
)
def test_one_frame_and_several_are_taken(tmp_path, shape, blocks):
    taken = []
    with create(tmp_path / "a", shape, "uint16", tuple(n or 2 for n in shape)) as writer:
        for number, block in enumerate(blocks):
            taken.append(np.full(block, number + 1, "uint16"))
            writer.append(taken[-1])
        writer.flush()
        assert (
            writer.safe == writer.frames == sum(x.size for x in taken) // writer.layout.frame_size
        )
    flat = np.concatenate([x.reshape(-1) for x in taken])
    assert np.array_equal(open_store(tmp_path / "a").read().reshape(-1)[: flat.size], flat)


def test_values_of_another_byte_order_are_the_same_values(tmp_path):
    with create(tmp_path / "a", (None, 3, 4), "uint16", (1, 3, 4)) as writer:
        writer.append(frames(2, 3, 4).astype(">u2"))
    assert np.array_equal(zarr.open_array(tmp_path / "a")[...], frames(2, 3, 4))


def test_images_and_plates_refuse_as_arrays_do(tmp_path):
    given = {"dtype": "uint16", "chunks": (1, 8, 8), "axes": "tyx", "levels": 2}
    with create_image(tmp_path / "a", (None, 16, 16), **given) as image:
        with pytest.raises(WeftError, match=r"a block of \[15, 16\] is not a frame of"):
            image.append(np.ones((15, 16), "uint16"))
        image.append(frames(16, 16))
        image.append_rows(frames(3, 16))
        image.flush()
        assert (image.safe, image.frames) == (1, 2)
        image.append_rows(frames(13, 16))
    assert [level.shape for level in open_image(tmp_path / "a").levels] == [(2, 16, 16), (2, 8, 8)]
    with create_plate(tmp_path / "p", "A", "1", shape=(None, 16, 16), **given) as plate:
        field = plate.field("A", "1", 0)
        with pytest.raises(WeftError, match=r"a block of \[15, 16\] is not a frame of"):
            field.append(np.ones((15, 16), "uint16"))


def test_frame_ndim_is_checked_and_remembered(tmp_path):
    for given in (4, -1, 2.0, True):
        with pytest.raises(WeftError, match=r"frame_ndim: expected 0 to 3 of 4 dimensions"):
            create(tmp_path / "a", (None, 4, 6, 8), "uint16", (1, 2, 3, 4), frame_ndim=given)
    create(tmp_path / "a", (None, 4, 6, 8), "uint16", (1, 2, 3, 4), frame_ndim=3).close()
    with open_store(tmp_path / "a", mode="a") as writer:
        assert writer.frame == (4, 6, 8)


def test_attributes_of_another_array_are_not_taken_for_its_own(tmp_path):
    """As when an array is copied with its attributes: what Weft said of the other is left out."""
    said = {"weft": {"frames": 1, "axis_order": [1, 0], "mine": 7}, "x": 1}
    with create(tmp_path / "a", (None, 5), "uint16", (2, 5), attributes=said) as writer:
        writer.append(frames(3, 5))
    weft = {"mine": 7, "every_shard_stored": True}
    assert dict(open_store(tmp_path / "a").metadata.attributes) == {"weft": weft, "x": 1}


# -- what is promised


def test_every_flushed_plane_is_stored(tmp_path):
    """99 of 100 planes of one time point: other readers see a valid array, too."""
    data, path = frames(1, 2, 50, 8, 8), tmp_path / "a"
    planes = data.reshape(100, 8, 8)
    grid = ((None, 2, 50, 8, 8), "uint16", (1, 1, 1, 8, 8), (1, 1, 25, 8, 8))
    writer = create(path, *grid)
    writer.append(planes[:98])
    writer.append(planes[98])
    writer.flush()
    assert (writer.safe, writer.frames) == (99, 99)
    wanted = np.concatenate([planes[:99], np.zeros((1, 8, 8), "uint16")]).reshape(data.shape)
    assert json.loads((path / "zarr.json").read_text())["attributes"]["weft"]["frames"] == 99
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    for found in (
        open_store(path).read(),
        zarr.open_array(path, mode="r")[...],
        tensorstore.open(spec).result().read().result(),
    ):
        assert np.array_equal(found, wanted)
    writer.abandon()  # as if it had been killed
    with open_store(path, mode="a") as writer:
        assert (writer.safe, writer.frames) == (99, 99)
        writer.append(planes[99])
        writer.append(planes[0])
    assert open_store(path).shape == (2, 2, 50, 8, 8)
    assert np.array_equal(open_store(path).read()[0], data[0])
    assert open_store(path).metadata.attributes["weft"]["frames"] == 101
    with open_store(path, mode="a") as writer:
        writer.append(planes[1:100])
    assert "frames" not in open_store(path).metadata.attributes["weft"]
    assert np.array_equal(open_store(path).read(), np.concatenate([data, data]))


def test_images_promise_planes_and_are_continued_by_planes(tmp_path):
    data = np.random.default_rng(0).integers(0, 99, (2, 2, 6, 8, 8)).astype("uint16")
    planes, path = data.reshape(-1, 8, 8), tmp_path / "a"
    given = {"axes": "tczyx", "levels": 2, "scale": (1, 1, 1, 1, 1)}
    grid = ((None, 2, 6, 8, 8), "uint16", (1, 1, 2, 4, 4), (1, 2, 6, 8, 8))
    for stop in (5, 11, 12, 17, 23):
        with create_image(path, *grid, **given, overwrite=True) as image:
            for plane in planes[:stop]:
                image.append(plane)
            image.flush()
            assert image.safe == stop
        with open_image(path, mode="a") as image:
            assert image.frames == stop
            for plane in planes[stop:]:
                image.append(plane)
        finest, coarse = (level.read() for level in open_image(path).levels)
        assert np.array_equal(finest, data), stop
        windows = data.astype(int).reshape(2, 2, 6, 4, 2, 4, 2).sum(axis=(4, 6))
        assert np.array_equal(coarse, (windows + 2) // 4), stop


RECORDING = """
    import sys, time
    import numpy as np
    from weft.store import create
    shape = (None, 2, 10, 16, 16)
    with create(sys.argv[1], shape, "uint16", (1, 1, 1, 8, 8), (2, 1, 5, 16, 16)) as writer:
        for number in range(int(sys.argv[2])):
            writer.append(np.full((16, 16), number + 1, "uint16"))
            if number % 7 == 3:
                writer.flush()
            if number % 3 == 1:
                print(writer.safe, flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
def test_planes_that_were_promised_survive_a_kill(tmp_path):
    """Whatever `safe` said before the kill is there, and recording continues behind it."""
    rng, seen = np.random.default_rng(0), set()
    for number in range(KILLS):
        path = tmp_path / f"a{number}"
        # The first is killed within its first row. No other records much more than it has said,
        # or on a busy machine all would have recorded everything before they are killed.
        lines, more = map(int, rng.integers((1, 0), (120, 40))) if number else (2, 0)
        some = [str(path), str(3 * lines + more)]
        command = [sys.executable, "-c", textwrap.dedent(RECORDING), *some]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(lines)]
            time.sleep(float(rng.uniform(0, 0.01)))
            process.kill()
            told += process.stdout.readlines()
        said = int([line for line in told if line.endswith("\n")][-1])
        with open_store(path, mode="a") as writer:
            count = writer.safe
            assert count == writer.frames >= said
            found = open_store(path).read().reshape(-1, 16, 16)[:count]
            assert np.array_equal(found[:, 0, 0], np.arange(1, count + 1))
            assert np.array_equal(found, np.broadcast_to(found[:, :1, :1], found.shape))
            for value in range(count, 410):
                writer.append(np.full((16, 16), value + 1, "uint16"))
        found = zarr.open_array(path, mode="r")[...].reshape(-1, 16, 16)
        assert np.array_equal(found[:410, 3, 4], np.arange(1, 411))
        assert not found[410:].any()
        seen.add(count)
    assert any(count % 20 for count in seen)


# -- streams


def test_a_stream_appends_to_all_of_its_arrays_or_to_none(tmp_path):
    with Stream(tmp_path / "run") as stream:
        stream.create("camera", (None, 4, 4), "uint16", (1, 4, 4))
        stream.create("stage", (None, 2), "float32", (4, 2))
        good = {"camera": frames(4, 4), "stage": np.ones(2, "float32")}
        stream.append(good)
        for bad in (
            good | {"stage": np.ones(3, "float32")},
            good | {"stage": np.ones(2)},
            good | {"camera": frames(5, 4)},
            {"camera": frames(4, 4), "nothing": 1},
        ):
            with pytest.raises(WeftError):
                stream.append(bad)
            assert {name: stream[name].frames for name in stream} == {"camera": 1, "stage": 1}
        stream.flush()
        assert stream.safe == {"camera": 1, "stage": 1}
        stream["stage"].close()
        with pytest.raises(WeftError, match="stage is closed: nothing can be appended"):
            stream.append(good)
        assert stream["camera"].frames == 1
    assert open_store(tmp_path / "run/camera").shape == (1, 4, 4)


def test_a_stream_whose_disk_fails_counts_the_frames_of_all_arrays(tmp_path, monkeypatch):
    with Stream(tmp_path / "run") as stream:
        for name in ("a", "b"):
            stream.create(name, (None, 4, 4), "uint16", (1, 4, 4))
        one = {"a": frames(4, 4), "b": frames(4, 4)}
        stream.append(one)

        def fail(*given):
            raise OSError("no space left")

        monkeypatch.setattr(stream["b"]._pipeline, "put", fail)
        with pytest.raises(OSError, match="no space left"):
            stream.append(one)
        with pytest.raises(WeftError, match="appending was given up: nothing can be appended"):
            stream.append(one)
    assert [open_store(tmp_path / "run" / name).shape[0] for name in ("a", "b")] == [1, 1]


# -- writers that are never closed

UNCLOSED = """
    import os, sys
    import numpy as np
    from weft.store import create, create_image

    kind, path = sys.argv[1:]
    more = {"axes": "tyx", "levels": 2} if "image" in kind else {}
    make = create_image if more else create
    def begin():
        writer = make(path, (None, 8, 8), "uint16", (4, 4, 4), (8, 8, 8), **more)
        for number in range(21):
            writer.append(np.full((8, 8), number + 1, "uint16"))
        return writer
    if kind == "dropped":
        begin()
        os._exit(0)
    writer = begin()
    if kind == "forked":
        if os.fork() == 0:
            sys.exit()  # not the child's to finish
        os.wait()
        writer.append(np.full((8, 8), 22, "uint16"))
    if kind == "failed":
        raise ValueError("the experiment failed")
"""


@pytest.mark.parametrize("kind", ["ended", "dropped", "forked", "failed", "image"])
def test_a_writer_that_is_never_closed_is_finished(tmp_path, kind):
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(UNCLOSED), kind]
    ran = subprocess.run(
        [*command, str(tmp_path / "a")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == (kind == "failed"), ran.stderr
    assert ran.stderr.count("a was not closed; it is closed now") == 1, ran.stderr
    assert "ResourceWarning" in ran.stderr
    array = open_image(tmp_path / "a").levels[0] if kind == "image" else open_store(tmp_path / "a")
    count = 22 if kind == "forked" else 21
    assert array.read()[:, 3, 4].tolist() == list(range(1, count + 1))
    if kind == "image":
        assert [level.shape[0] for level in open_image(tmp_path / "a").levels] == [21, 21]
        open_image(tmp_path / "a", mode="a").close()  # its lock is free


def test_a_writer_that_was_closed_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer = create(tmp_path / "a", (None, 4), "uint16", (1, 4))
        writer.close()
        del writer
        with create_image(tmp_path / "b", (None, 8, 8), "uint16", (1, 4, 4), axes="tyx") as image:
            pass
        del image


# -- sizes that nothing can hold

HUGE = [
    ((10**15, 4), (1, 2)),
    ((None, 10**15), (1, 100)),
    ((None, 10**15), (1, 10**15)),
    ((None, 10**6, 10**6), (1, 10, 10)),
    ((2**63,), (10,)),
    ((None, 2**63), (1, 10)),
    ((None, 2**62, 2**62), (1, 1, 1)),
    ((None, 10), (2**63, 10)),
    ((None, 4), (10**14, 4)),
    ((10**30, 4), (4, 4)),
]


@pytest.mark.parametrize(("shape", "chunks"), HUGE)
def test_impossible_sizes_are_refused_before_anything_is_written(tmp_path, shape, chunks):
    small = shape == (10**15, 4)  # 4 PB in frames of 8 B: that can be recorded
    for make in (
        lambda path: create(path, shape, "uint16", chunks),
        lambda path: create(path, shape, "uint16", chunks, tuple(4 * n for n in chunks)),
        lambda path: create_image(path, shape, "uint16", chunks, axes="tyx"[-len(shape) :]),
        lambda path: Stream(tmp_path / "run").create("x/y", shape, "uint16", chunks),
    ):
        if small:
            continue
        with pytest.raises(WeftError):
            make(tmp_path / "a")
        assert not (tmp_path / "a").exists()
    assert not (tmp_path / "run/x/y").exists()
    if chunks == (10**14, 4):
        with pytest.raises(WeftError, match=r"a chunk of \[.*\] has \d+ B, and this machine has"):
            create_shards(tmp_path / "a", (10**14, 4), "uint16", chunks)
    if None not in shape and max(shape) > 2**60:
        with pytest.raises(WeftError, match=r"shape of \[.*\] has more than \d+ elements"):
            create_shards(tmp_path / "a", shape, "uint16", chunks)
    assert not (tmp_path / "a").exists()


def test_blocks_that_do_not_fit_are_refused_with_numbers():
    with pytest.raises(WeftError, match=r"frames of \['…', 10+\] need buffers of \d+ B, and this"):
        check_memory(FrameLayout((None, 10**15), (1, 100), (1, 100)), 2)
    for given in (2.5, "3"):
        with pytest.raises(WeftError, match="a size must be an integer, got"):
            create_shards("unused", (given,), "uint8", (1,))
    with pytest.raises(WeftError, match="dimension 1 has no size"):
        create_shards("unused", (2, None), "uint8", (1, 1))
