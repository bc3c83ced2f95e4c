"""Arrays that others remove, replace, cut or extend while they are open."""

import json
import shutil

import numpy as np
import pytest
import zarr

from weft import WeftError, store

DATA = np.arange(12 * 8, dtype="int32").reshape(12, 8)


@pytest.fixture(params=[(2, None), (3, None), (3, (4, 8))], ids=["v2", "v3", "shards"])
def made(request, tmp_path):
    version, shards = request.param

    def make(dtype="int32", values=DATA, **more):
        path = tmp_path / "a"
        shutil.rmtree(path, ignore_errors=True)
        options = {"chunks": (2, 4), "shards": shards, "zarr_format": version, "dtype": dtype}
        array = zarr.create_array(path, shape=values.shape, **(options | more))
        array[...] = values
        return path, array

    return make


def reads(array):
    """Every way to read an array, one after the other."""
    yield array.read
    yield array[::5, 1].read
    yield lambda: array[[0, 11]]
    yield array.verify
    yield lambda: np.asarray(array)


@pytest.mark.parametrize("was_read", [False, True])
def test_an_array_that_is_gone_is_not_fill_value(made, was_read):
    path, _ = made()
    array = store.open(path)
    if was_read:
        array.read()
    path.rename(path.parent / "moved")
    for read in reads(array):
        with pytest.raises(WeftError, match=r"the array is gone: there is no .* any more"):
            read()
    assert np.array_equal(store.open(path.parent / "moved"), DATA)


def test_an_array_that_is_gone_from_a_server_is_not_fill_value():
    url = "memory://changes/gone"
    with store.create(url, (4, 4), "uint8", (2, 2)) as writer:
        writer.append(np.ones((4, 4), "uint8"))
    array = store.open(url)
    assert array.read().all()
    for key in [key for key, _ in array.sink.walk("")]:
        array.sink.delete(key)
    with pytest.raises(WeftError, match="the array is gone"):
        array.read()
    with pytest.raises(WeftError, match="the array is gone"):
        array[[0, 3]]


def test_another_array_in_its_place_is_refused(made):
    path, _ = made(compressors=None)
    array = store.open(path)
    assert np.array_equal(array, DATA)
    made("float32", DATA, compressors=None)  # bytes that look like elements
    for read in reads(array):
        with pytest.raises(WeftError, match="another array is there than when it was opened"):
            read()
    made("int32", DATA + 1, compressors=None)
    assert np.array_equal(array, DATA + 1)


def test_an_array_that_was_cut_is_refused_and_one_that_has_grown_is_read(made):
    path, other = made()
    array = store.open(path)
    other.append(DATA)
    other.attrs["more"] = 1
    assert np.array_equal(array, DATA)
    other.resize((6, 8))
    with pytest.raises(WeftError, match=r"was \[12, 8\] when it was opened, and is \[6, 8\]"):
        array.read()


def test_metadata_that_are_written_in_place_are_waited_for(made, monkeypatch):
    path, _ = made()
    array = store.open(path)
    file = next(each for each in (path / "zarr.json", path / ".zarray") if each.exists())
    text = file.read_text()
    file.write_text(text[:20])
    monkeypatch.setattr("time.sleep", lambda _: file.write_text(text))
    assert np.array_equal(array, DATA)
    file.write_text(json.dumps({"zarr_format": 3}))
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(WeftError):
        array.read()
