"""Zip stores are read as folders are; what is damaged, encrypted or cut short is refused."""

import os
import pickle
import shutil
import subprocess
import sys
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
import zarr
from tests.trials import EXAMPLES, FULL

from weft import WeftError, store

DATA = np.arange(40 * 30, dtype="uint16").reshape(40, 30)


FORKED = """
import os, sys
import numpy as np
from weft.store import open as open_store
array = open_store(sys.argv[1])
whole = array.read()
child = os.fork()
same = all(np.array_equal(array[n:], whole[n:]) for n in range(40))
if child == 0:
    os._exit(not same)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not same)
"""


def fill(root):
    root.attrs["lab"] = "B2"
    options = {"shape": DATA.shape, "chunks": (8, 8), "dtype": "uint16"}
    root.create_array("s/a", **options)[...] = DATA
    if root.metadata.zarr_format == 3:
        root.create_array("s/b", **options, shards=(16, 32))[:20] = DATA[:20]


def zipped(folder, path, method=ZIP_STORED, top=""):
    with ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{top}{file.relative_to(folder).as_posix()}")
    return path


@pytest.fixture(params=[2, 3])
def folder(request, tmp_path):
    fill(zarr.create_group(tmp_path / "f.zarr", zarr_format=request.param))
    return tmp_path / "f.zarr"


@pytest.mark.parametrize("method", [ZIP_STORED, ZIP_DEFLATED])
def test_an_archive_is_read_as_its_folder(folder, tmp_path, method):
    path = zipped(folder, tmp_path / "f.ozx", method)
    group, expected = store.open(path), store.open(folder)
    assert str(group.tree()) == str(expected.tree())
    assert dict(group.attrs) == {"lab": "B2"}
    for name, array in group["s"].arrays():
        wanted = expected[f"s/{name}"].read()
        assert np.array_equal(array, wanted)
        assert np.array_equal(array[::-3, [1, 29]], wanted[::-3, [1, 29]])
        assert array.verify() == expected[f"s/{name}"].verify()
        assert np.array_equal(pickle.loads(pickle.dumps(array))[5:7], wanted[5:7])
    assert np.array_equal(store.open(path / "s/a"), DATA)
    assert np.array_equal(store.open(f"file://{path}/s/a"), DATA)
    for mode in ("s/a", "new"):
        with pytest.raises(WeftError, match="zip stores are read, and not written"):
            store.create(path / mode, (4,), "uint8", (2,))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_of_zarr_python_and_one_with_a_folder_around(tmp_path, folder):
    with zarr.storage.ZipStore(tmp_path / "z.zip", mode="w") as kept:
        fill(zarr.create_group(kept))
    assert np.array_equal(store.open(tmp_path / "z.zip")["s/a"], DATA)
    path = zipped(folder, tmp_path / "w.zip", top="f.zarr/")
    with pytest.raises(WeftError, match=r"there is no Zarr .*\n?.*hint: its folders are f.zarr"):
        store.open(path)
    assert np.array_equal(store.open(path / "f.zarr")["s/a"], DATA)


def test_an_archive_that_is_replaced(tmp_path, folder):
    path = zipped(folder, tmp_path / "f.zip")
    array = store.open(path)["s/a"]
    assert np.array_equal(array, DATA)
    options = {"zarr_format": array.metadata.zarr_format, "attributes": {}}
    zarr.open_group(folder)["s/a"][:2] = 0
    zipped(folder, tmp_path / "new.zip").replace(path)
    assert not array[:2].read().any()
    shutil.rmtree(folder)
    other = zarr.create_group(folder, **options)
    other.create_array("s/a", shape=DATA.shape, chunks=(8, 8), dtype="int16")
    zipped(folder, tmp_path / "new.zip").replace(path)
    with pytest.raises(WeftError, match="another array is there"):
        array.read()
    path.unlink()
    with pytest.raises(WeftError, match="the array is gone"):
        array.read()


def test_a_forked_process_reads_at_the_same_time(tmp_path):
    fill(zarr.create_group(tmp_path / "f"))
    path = zipped(tmp_path / "f", tmp_path / "f.zip", ZIP_DEFLATED)
    script = [sys.executable, "-W", "ignore", "-c", FORKED, str(path / "s/a")]
    assert subprocess.run(script, check=False, timeout=300).returncode == 0


@pytest.mark.parametrize("method", [ZIP_STORED, ZIP_DEFLATED])
def test_any_changed_byte_of_an_entry_is_found_or_harmless(tmp_path, method):
    zarr.create_array(tmp_path / "a", shape=(6,), chunks=(6,), dtype="u1", compressors=None)[:] = 7
    path = zipped(tmp_path / "a", tmp_path / "a.zip", method)
    whole = path.read_bytes()
    for place in range(0, len(whole), 1 if EXAMPLES >= FULL else 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        os.utime(path, ns=(place, place))
        try:
            values = store.open(path).read()
        except WeftError:
            continue
        name = ZipFile(path).namelist()
        assert (values == 7).all() or "c/0" not in name, place  # a chunk with another name


def test_what_archives_may_hold_and_is_not_read(tmp_path, folder):
    path = zipped(folder, tmp_path / "f.zip", ZIP_BZIP2)
    with pytest.raises(WeftError, match=r"method 12 of compression is not supported"):
        store.open(path)
    data = zipped(folder, path).read_bytes()
    entry = b"PK\x01\x02\x14\x03\x14\x00"
    path.write_bytes(data.replace(entry + b"\x00", entry + b"\x01"))
    with pytest.raises(WeftError, match="it is encrypted"):
        store.open(path)
    path.write_bytes(data.replace(b"PK\x03\x04", b"PK\x03\x05"))
    with pytest.raises(WeftError, match="it has no header"):
        store.open(path)
