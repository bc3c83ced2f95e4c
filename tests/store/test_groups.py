"""Groups of Zarr v2 and v3 are walked, by listing or by consolidated metadata."""

import json
import re
import shutil
from zipfile import ZipFile

import numpy as np
import pytest
import zarr
from tests.store.unlisted import UnlistedFolder

from weft import WeftError, store
from weft.store import Array, Group, open_group
from weft.store.files import Folder
from weft.store.objects.errors import sink_error


def fill(group):
    """A small tree: an array, and a group with another."""
    group.attrs["lab"] = "B2"
    group.create_array("x", shape=(4, 6), chunks=(2, 3), dtype="int16")[...] = 7
    inner = group.create_group("s")
    inner.attrs["n"] = 3
    inner.create_array("y", shape=(3,), dtype="float32")[...] = 1.5


@pytest.fixture(params=[2, 3])
def tree(request, tmp_path):
    fill(zarr.create_group(tmp_path / "g", zarr_format=request.param))
    return tmp_path / "g"


def check(group):
    assert isinstance(group, Group)
    assert (list(group), len(group), dict(group.attrs)) == (["s", "x"], 2, {"lab": "B2"})
    assert [name for name, _ in group.arrays()] == list(group.array_keys()) == ["x"]
    assert [name for name, _ in group.groups()] == list(group.group_keys()) == ["s"]
    assert isinstance(group["x"], Array)
    assert dict(group["s"].attrs) == {"n": 3}
    assert np.array_equal(group["s/y"], np.full(3, 1.5))
    assert np.array_equal(group["/s"]["y"][1:], group["s"]["y"].read()[1:])
    assert {name: type(value) for name, value in group.items()} == {"s": Group, "x": Array}
    assert ("s/y" in group, "s/z" in group, "x/y" in group, 3 in group) == (
        True,
        False,
        False,
        False,
    )
    text = "/\n├── s\n│   └── y float32[3]\n└── x int16[4, 6]"
    assert repr(group.tree()) == str(group.tree()) == text
    assert "int16[4, 6]" in group._repr_html_()
    assert str(group.tree(1)) == "/\n├── s\n└── x int16[4, 6]"
    for path in ("z", "s/z", "..", "x/y"):
        with pytest.raises(KeyError):
            group[path]
    with pytest.raises(TypeError, match="found by its name"):
        group[0]


def test_groups_are_walked(tree):
    check(store.open(tree))
    check(open_group(tree))
    assert store.open(tree) == store.open(tree)
    assert store.open(tree).zarr_format == store.open(tree)["s"].zarr_format
    with pytest.raises(WeftError, match="is an array, not a group"):
        open_group(tree / "x")
    with pytest.raises(WeftError, match="there is no Zarr group at"):
        open_group(tree / "nothing")


@pytest.mark.filterwarnings("ignore")
def test_consolidated_metadata_list_the_members_where_nothing_else_does(tree):
    kind = store.open(tree).zarr_format
    with pytest.raises(WeftError, match="cannot be listed"):
        list(store.open(UnlistedFolder(tree)))
    zarr.consolidate_metadata(tree, zarr_format=kind)
    check(store.open(UnlistedFolder(tree)))
    check(store.open(tree))


@pytest.mark.filterwarnings("ignore")
def test_consolidated_metadata_that_are_out_of_date_do_no_harm(tree):
    zarr.consolidate_metadata(tree, zarr_format=store.open(tree).zarr_format)
    group = zarr.open_group(tree, mode="a", use_consolidated=False)
    group["s/y"].resize((5,))
    group["s/y"][...] = 2.5
    group.create_array("new", shape=(2,), dtype="int16")[...] = 9
    del group["x"]
    assert list(store.open(tree)) == ["new", "s"]
    for found in (store.open(tree), store.open(UnlistedFolder(tree))):
        assert np.array_equal(found["s/y"], np.full(5, 2.5))
        assert np.array_equal(found["new"], [9, 9])
        assert "x" not in found
    assert list(found) == ["s", "x"]
    with pytest.raises(KeyError, match=r"x is not in .*: consolidated metadata list it"):
        found["x"]


@pytest.mark.filterwarnings("ignore")
def test_consolidated_metadata_name_nothing_outside_of_the_group(tree):
    kind = store.open(tree).zarr_format
    zarr.consolidate_metadata(tree, zarr_format=kind)
    path = tree / (".zmetadata" if kind == 2 else "zarr.json")
    data = json.loads(path.read_text())
    listed = data["metadata"] if kind == 2 else data["consolidated_metadata"]["metadata"]
    for name in ("..", "../x", "", "s/../../x"):
        end = "/.zarray" if kind == 2 else ""
        listed[f"{name}{end}"] = listed["x/.zarray" if kind == 2 else "x"]
    path.write_text(json.dumps(data))
    check(store.open(UnlistedFolder(tree)))


def test_objects_are_listed():
    from weft.store.hierarchy import sink_of

    sink = sink_of("memory://groups/g")
    sink.put("zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    with store.create("memory://groups/g/a", (2, 3), "uint8", (1, 3)) as writer:
        writer.append(np.ones((2, 3), "uint8"))
    assert str(store.open("memory://groups/g").tree()) == "/\n└── a uint8[2, 3]"


def test_what_cannot_be_read_is_shown_in_the_tree(tmp_path):
    fill(zarr.create_group(tmp_path / "g", zarr_format=2))
    data = json.loads((tmp_path / "g/x/.zarray").read_text())
    (tmp_path / "g/x/.zarray").write_text(json.dumps(data | {"dtype": "|O"}))
    assert "x (cannot be read: " in str(store.open(tmp_path / "g").tree())
    shutil.rmtree(tmp_path / "g/s")
    assert list(store.open(tmp_path / "g")) == ["x"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"dtype": "|O"}, "dtype: object arrays hold Python objects"),
        ({"dtype": "<i3"}, "dtype: '<i3' is not a data type"),
        ({"dtype": [["a", "<i4", [0]]]}, r"dtype: field 'a': expected a shape, got \[0\]"),
        ({"fill_value": "x"}, "fill_value: 'x' is not a fill value of int16"),
        ({"order": "K"}, "order: expected 'C' or 'F', got 'K'"),
        ({"dimension_separator": "-"}, "dimension_separator: expected '.' or '/', got '-'"),
        ({"chunks": [2]}, "shape has rank 2 and chunk_shape rank 1"),
        ({"compressor": {"id": "pickle"}}, "compressor: the codec 'pickle' is not supported"),
        ({"compressor": "zlib"}, "compressor: expected a codec with its id, got 'zlib'"),
        ({"filters": [{"id": "delta"}]}, r"filters\[0\].astype: expected a data type, got None"),
        ({"filters": {"id": "delta"}}, "filters: expected a list of codecs"),
        ({"zarr_format": 1}, "zarr_format: expected 2, got 1"),
        ({"shape": [-1, 2]}, "shape: expected integers from 0 on"),
    ],
)
def test_metadata_of_v2_that_are_not_understood_are_refused(tmp_path, edit, message):
    fill(zarr.create_group(tmp_path / "g", zarr_format=2))
    path = tmp_path / "g/x/.zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(WeftError, match=message) as caught:
        store.open(tmp_path / "g/x")
    assert str(caught.value).startswith(f"{tmp_path / 'g/x'}/.zarray: ")


def test_arrays_of_others_are_not_continued(tmp_path):
    shape, chunks = (4, 6), (2, 3)
    zarr.create_array(tmp_path / "a", shape=shape, chunks=chunks, shards=(4, 6), dtype="M8[s]")
    with pytest.raises(WeftError, match="of a kind that is read, but not written"):
        store.open(tmp_path / "a", mode="a")
    with pytest.raises(WeftError, match="of a kind that is read, but not written"):
        store.open_shards(tmp_path / "a")
    zarr.create_array(tmp_path / "b", shape=shape, chunks=chunks, dtype="u1", zarr_format=2)
    with pytest.raises(WeftError, match="arrays of Zarr v2 are read, and not written"):
        store.open(tmp_path / "b").metadata.to_json()


def test_places_without_an_array_say_what_is_there(tmp_path):
    """Nothing, a file, a zip store, or a folder of other things."""
    (tmp_path / "text").write_text("no array")
    (tmp_path / "torn.zip").write_bytes(b"PK\x03\x04 cut off")
    with ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("zarr.json", "{}")
    for name, message in [
        ("gone", "gone: the folder does not exist"),
        ("text", "text: it is a file, not a folder"),
        ("a.zip", "a.zip: zarr.json is not of Zarr v3: zarr_format is None"),
        ("a.zip/b", "a.zip/b: it has no zarr.json"),
        ("torn.zip", "torn.zip: it is a zip archive without its directory"),
        ("", "it has no zarr.json (Zarr v3), .zarray or .zgroup (Zarr v2)"),
    ]:
        with pytest.raises(WeftError, match=re.escape(message)):
            store.open(tmp_path / name)
    for name in "abcdefg":
        (tmp_path / "many" / name).mkdir(parents=True)
    with pytest.raises(WeftError, match=r"hint: its folders are a, b, c, d, e, … \(7 in all\)"):
        store.open(tmp_path / "many")


def test_shards_are_none_where_chunks_are_files(tmp_path):
    """As zarr-python has it."""
    for name, shards in [("plain", None), ("sharded", (4, 4))]:
        zarr.create_array(tmp_path / name, shape=(8, 8), chunks=(2, 2), shards=shards, dtype="u1")
        assert store.open(tmp_path / name).shards == shards


def plate(path, end=".zgroup"):
    """A group, and below it arrays in folders that no metadata describe."""
    fill(zarr.create_group(path, zarr_format=2 if end == ".zgroup" else 3))
    (path / "r").mkdir()
    (path / "s").rename(path / "r/s")
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("end", [".zgroup", "zarr.json"])
def test_folders_without_metadata_that_hold_arrays_are_groups(tmp_path, end):
    path = plate(tmp_path / "g", end)
    (path / "notes").mkdir()
    (path / "up").symlink_to(tmp_path, target_is_directory=True)
    (path / "r/here").symlink_to(path, target_is_directory=True)
    group = store.open(path)
    assert str(group.tree()) == "/\n├── r\n│   └── s\n│       └── y float32[3]\n└── x int16[4, 6]"
    assert np.array_equal(group["r/s/y"], np.full(3, 1.5))
    assert (dict(group["r"].attrs), group["r"].zarr_format) == ({}, group.zarr_format)
    assert ("r" in group, "r/s" in group, "notes" in group, "q/s/y" in group) == (1, 1, 0, 0)
    assert np.array_equal(store.open(UnlistedFolder(path))["r/s/y"], np.full(3, 1.5))
    if end == ".zgroup":
        files = {
            name: json.loads((path / name).read_text())
            for name in (".zgroup", "x/.zarray", "r/s/.zgroup", "r/s/y/.zarray")
        }
        (path / ".zmetadata").write_text(json.dumps({"metadata": files}))
        unlisted = store.open(UnlistedFolder(path))
        assert (list(unlisted), list(unlisted["r"])) == (["r", "x"], ["s"])


def test_one_member_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    fill(zarr.create_group(tmp_path / "g"))
    (tmp_path / "g/x/zarr.json").write_text("")
    group = store.open(tmp_path / "g")
    assert list(group) == ["s", "x"]
    assert [*group.array_keys(), *group.group_keys()] == ["s"]
    assert "x (cannot be read: " in str(group.tree())
    with pytest.raises(WeftError, match=r"g/x: zarr.json is not JSON"):
        group["x"]


class Discreet(Folder):
    """A server that says that access is denied where there is nothing."""

    def fetch(self, key, start=0, count=None):
        found = Folder.fetch(self, key, start, count)
        if found is None:
            raise sink_error(f"{self.url}/{key}", OSError("status code: 403 Forbidden"))
        return found


def test_what_is_denied_on_the_way_is_taken_for_missing(tree):
    if not (tree / "zarr.json").exists():
        (tree / "x/.zattrs").unlink()
    group = store.open(Discreet(tree))
    assert group["x"].shape == (4, 6)
    assert np.array_equal(group["s"]["y"], np.full(3, 1.5))
    with pytest.raises(WeftError, match=r"nothing/zarr.json: access is denied"):
        store.open(Discreet(tree / "nothing"))


@pytest.mark.parametrize("name", ["a:b", "run:1/a", "s3:x", "c:x", "file:x", "a b%20#?é"])
def test_names_with_colons_are_paths(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with store.create(name, (2,), "uint8", (2,)) as writer:
        writer.append(np.ones(2, "uint8"))
    assert (tmp_path / name / "zarr.json").exists()
    for url in (name, f"./{name}", (tmp_path / name).as_uri()):
        assert store.open(url).read().sum() == 2


def test_chunks_in_folders_are_found_where_the_separator_is_not_stated(tmp_path):
    """As zarr-python wrote nested folders before version 2.8."""
    data = np.arange(24, dtype="int16").reshape(4, 6)
    for separator in "./":
        encoding = {"name": "v2", "separator": separator}
        options = {"chunks": (2, 3), "zarr_format": 2, "chunk_key_encoding": encoding}
        path = tmp_path / ("dots" if separator == "." else "folders")
        zarr.create_array(path, shape=(4, 6), dtype="int16", **options)[...] = data
        stated = json.loads((path / ".zarray").read_text())
        stated.pop("dimension_separator", None)
        (path / ".zarray").write_text(json.dumps(stated))
        array = store.open(path)
        assert np.array_equal(array, data)
        assert array.verify() == 4
    (tmp_path / "dots/0").mkdir()  # something else
    assert np.array_equal(store.open(tmp_path / "dots"), data)
