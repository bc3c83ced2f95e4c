"""Several arrays of one source."""

import numpy as np
import pytest
import zarr

from weft import WeftError
from weft.store import Stream, Zstd
from weft.store import open as open_store


def test_arrays_are_written_side_by_side(tmp_path):
    rng = np.random.default_rng(0)
    camera, stage = rng.integers(0, 99, (9, 8, 8)).astype("uint16"), rng.random((9, 3))
    path = tmp_path / "run.zarr"
    with Stream(path, attributes={"operator": "x"}) as stream:
        stream.create("camera", (None, 8, 8), "uint16", (2, 4, 4), (4, 8, 8), codecs=[Zstd(1)])
        stream.create("stage/xyz", (None, 3), "float64", (4, 3))
        assert stream.memory() == sum(stream[name].memory() for name in stream)
        for row in range(9):
            stream.append({"camera": camera[row], "stage/xyz": stage[row : row + 1]})
            if row == 5:
                stream.flush()
                assert open_store(path / "camera").shape == (6, 8, 8)
        assert stream.metrics()["camera"].rows == 9
    group = zarr.open_group(path, mode="r")
    assert dict(group.attrs) == {"operator": "x"}
    assert np.array_equal(group["camera"][...], camera)
    assert np.array_equal(group["stage/xyz"][...], stage)


def test_a_stream_is_continued(tmp_path):
    path = tmp_path / "run.zarr"
    with Stream(path, attributes={"a": 1}) as stream:
        stream.create("one", (None, 2), "uint8", (2, 2)).append(np.ones((3, 2), "uint8"))
    with Stream(path, attributes={"b": 2}) as stream:
        stream.open("one").append(np.ones((2, 2), "uint8"))
        stream.create("two", (None,), "uint8", (4,)).append(np.ones(3, "uint8"))
    assert dict(zarr.open_group(path, mode="r").attrs) == {"a": 1, "b": 2}
    assert open_store(path / "one").shape == (5, 2)


def test_refusals(tmp_path):
    with Stream(tmp_path / "run.zarr") as stream:
        for name in ("", "a//b", ".hidden", "__meta", "/a"):
            with pytest.raises(WeftError, match="is not a name of an array"):
                stream.create(name, (None,), "uint8", (4,))
        stream.create("one", (None,), "uint8", (4,))
        with pytest.raises(WeftError, match="'one' is an array of the stream already"):
            stream.create("one", (None,), "uint8", (4,))
        with pytest.raises(WeftError, match="the stream has no array 'two'"):
            stream.append({"one": np.ones(1, "uint8"), "two": np.ones(1, "uint8")})
        assert stream["one"].shape == (0,), "nothing was appended by half"


def test_one_array_that_fails_does_not_keep_others_from_being_closed(tmp_path):
    stream = Stream(tmp_path / "run.zarr")
    for name in ("one", "two"):
        stream.create(name, (None, 2), "uint8", (2, 2)).append(np.ones((3, 2), "uint8"))
        stream[name].flush()  # a shard is begun, whose file goes away with its folder
    (tmp_path / "run.zarr" / "one" / "c").rename(tmp_path / "gone")
    (tmp_path / "run.zarr" / "one" / "c").write_text("in the way")
    with pytest.raises(WeftError, match="one: writing failed"):
        stream.close()
    assert open_store(tmp_path / "run.zarr" / "two").shape == (3, 2)
