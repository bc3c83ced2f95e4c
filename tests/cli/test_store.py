"""`weft store`: write, ls, info, verify, copy; refusals."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tifffile
import zarr

from weft.cli import main
from weft.store import Stream, create, create_image, create_plate, create_positions
from weft.store import open as open_store


@pytest.fixture
def stack(tmp_path):
    array = np.random.default_rng(0).integers(0, 9, (10, 20, 30)).astype("uint16")
    np.save(tmp_path / "stack.npy", array)
    return array


def said(capsys, *args):
    assert main(["store", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip", "blosc-lz4", "blosc-zstd"])
def test_a_file_is_written_looked_at_verified_and_copied(capsys, tmp_path, stack, codec):
    one, two = tmp_path / "one.zarr", tmp_path / "two.zarr"
    sizes = ["--chunks", 4, 8, 8, "--shards", 8, 16, 16, "--codec", codec]
    written = said(capsys, "write", tmp_path / "stack.npy", one, *sizes)
    assert written["bytes"] == stack.nbytes
    told = said(capsys, "info", one)
    assert (told["shape"], told["chunks"], told["shards"]) == ([10, 20, 30], [4, 8, 8], [8, 16, 16])
    assert told["stored"] == written["stored"]
    checked = said(capsys, "verify", one)
    assert (checked["chunks"], checked["matched"], checked["decoded"]) == (36, 36, 0)
    assert (told["checksum"], checked["findings"]) == (True, [])
    said(capsys, "copy", one, two, "--chunks", 3, 20, 7)
    for path in (one, two):
        assert np.array_equal(open_store(path).read(), stack)
        assert np.array_equal(zarr.open_array(path, mode="r")[...], stack)
    assert said(capsys, "info", two)["codecs"] == told["codecs"]


def test_arrays_without_checksums(capsys, tmp_path, stack):
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    said(capsys, "write", tmp_path / "stack.npy", one, "--no-checksum", "--codec", "zstd")
    said(capsys, "copy", one, two)
    said(capsys, "copy", two, three, "--no-checksum")
    for path, checksum in ((one, False), (two, True), (three, False)):
        told, checked = said(capsys, "info", path), said(capsys, "verify", path)
        assert told["codecs"] == (["zstd", "crc32c"] if checksum else ["zstd"])
        assert told["checksum"] == checksum
        assert checked["matched" if checksum else "decoded"] == checked["chunks"] > 0
        assert ("only decoded" in checked["checked"]) != checksum
        assert np.array_equal(open_store(path).read(), stack)


def test_findings_of_verify_are_printed_and_fail(capsys, tmp_path, stack):
    one = tmp_path / "one"
    sizes = ["--chunks", 4, 8, 8, "--shards", 8, 16, 16]
    said(capsys, "write", tmp_path / "stack.npy", one, *sizes)
    data = bytearray((one / "c/0/0/0").read_bytes())
    data[5] ^= 4
    (one / "c/0/0/0").write_bytes(data)
    (one / "c/1/0/0").unlink()
    assert main(["store", "verify", str(one), "--json"]) == 2
    told = capsys.readouterr()
    found = json.loads(told.out)
    mismatch, missing = found["findings"]
    assert "c/0/0/0: chunk 0, [0:4, 0:8, 0:8]: checksum mismatch" in mismatch
    assert "c/1/0/0: shard [8:16, 0:16, 0:16]: the shard is missing" in missing
    assert found["absent"] == 1
    assert "checksum mismatch" in told.err
    assert main(["store", "verify", str(one)]) == 2
    assert "finding  " in (out := capsys.readouterr().out)
    assert mismatch in out
    assert missing in out


def test_raw_bytes(capsys, tmp_path, stack):
    (tmp_path / "a.raw").write_bytes(b"head" + stack.tobytes())
    raw = ["--shape", -1, 20, 30, "--dtype", "uint16", "--offset", 4]
    written = said(capsys, "write", tmp_path / "a.raw", tmp_path / "a", *raw)
    assert (written["rows"], written["bytes"]) == (10, stack.nbytes)
    assert np.array_equal(open_store(tmp_path / "a").read(), stack)
    raw[1] = 11
    assert main(["store", "write", *map(str, [tmp_path / "a.raw", tmp_path / "b", *raw])]) == 2
    message = "12000 B after 4 B: 10 rows of 1200 B and 0 B, not [11, 20, 30]"
    assert message in capsys.readouterr().err


def test_standard_input(tmp_path, stack):
    def write(data, name, count=-1):
        raw = ["--shape", str(count), "20", "30", "--dtype", "uint16", "--chunks", "4", "8", "8"]
        command = [sys.executable, "-m", "weft", "store", "write", "-", str(tmp_path / name), *raw]
        return subprocess.run(command, input=data, capture_output=True, check=False)

    assert write(stack.tobytes(), "a").returncode == 0
    assert np.array_equal(open_store(tmp_path / "a").read(), stack)
    ran = write(stack.tobytes()[:-1], "b")  # what came before is kept
    assert ran.returncode == 2
    assert b"standard input ends in the middle: 1199 B of a row of 1200 B" in ran.stderr
    assert np.array_equal(open_store(tmp_path / "b").read(), stack[:9])
    assert write(stack.tobytes(), "c", 7).returncode == 0
    assert np.array_equal(open_store(tmp_path / "c").read(), stack[:7])
    assert write(stack.tobytes(), "d", 11).returncode == 2


@pytest.mark.parametrize("how", ["contiguous", "pages", "hyperstack", "big-endian"])
def test_tiff_stacks(capsys, tmp_path, stack, how):
    array = stack.reshape(5, 2, 20, 30) if how == "hyperstack" else stack
    more = {
        "contiguous": {},
        "pages": {"compression": "zlib"},
        "hyperstack": {"imagej": True, "metadata": {"axes": "ZCYX"}},
        "big-endian": {"byteorder": ">"},
    }[how]
    tifffile.imwrite(tmp_path / "a.tif", array, **more)
    said(capsys, "write", tmp_path / "a.tif", tmp_path / "a")
    assert np.array_equal(open_store(tmp_path / "a").read(), array)
    if how == "hyperstack":
        assert said(capsys, "info", tmp_path / "a")["dimension_names"] == ["z", "c", "y", "x"]


def test_a_folder_of_tiffs_is_read_as_a_person_counts(capsys, tmp_path, stack):
    folder = tmp_path / "frames"
    folder.mkdir()
    for number, frame in enumerate(stack):
        tifffile.imwrite(folder / f"frame{number + 1}.tif", frame)
    said(capsys, "write", folder, tmp_path / "a")
    assert np.array_equal(open_store(tmp_path / "a").read(), stack)
    tifffile.imwrite(folder / "frame3.tif", stack[0, :5])
    assert main(["store", "write", str(folder), str(tmp_path / "b")]) == 2
    assert "frame3.tif is ((5, 30), 'uint16'), but frame1.tif" in capsys.readouterr().err


def test_another_zarr_is_written_anew(capsys, tmp_path, stack):
    made = zarr.create_array(
        tmp_path / "theirs", shape=stack.shape, dtype="uint16", chunks=(3, 7, 9)
    )
    made[...] = stack
    said(capsys, "write", tmp_path / "theirs", tmp_path / "ours", "--codec", "blosc-zstd")
    assert np.array_equal(open_store(tmp_path / "ours").read(), stack)


def test_a_table_is_printed(capsys, tmp_path, stack):
    assert main(["store", "write", str(tmp_path / "stack.npy"), str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["rows", "10"]
    assert main(["store", "info", str(tmp_path / "a")]) == 0
    assert "dtype            uint16" in capsys.readouterr().out


def test_refusals_are_one_line(capsys, tmp_path, stack):
    (tmp_path / "text.npy").write_text("no numbers")
    target = str(tmp_path / "a")
    for args, message in [
        (["info", target], "there is no Zarr array at"),
        (["write", str(tmp_path / "text.npy"), target], "is not a valid .npy file of numbers"),
        (["write", str(tmp_path / "gone.npy"), target], "gone.npy"),
        (["write", str(tmp_path / "stack.npy"), target, "--chunks", "4"], "must have one rank"),
        (["write", str(tmp_path), target], "holds neither a Zarr v3 array nor TIFF files"),
        (["write", "-", target], "standard input is raw bytes: give its shape and data type"),
        (
            ["write", "-", target, "--shape", "2", "-1", "--dtype", "uint8"],
            "only the first size may be -1, got [2, -1]",
        ),
        (
            ["write", str(tmp_path / "text.npy"), target, "--shape", "2", "--dtype", "uint7"],
            "is not a valid .npy file",
        ),
    ]:
        assert main(["store", *args]) == 2
        assert message in capsys.readouterr().err
    assert main(["store", "write", str(tmp_path / "stack.npy"), target]) == 0
    assert main(["store", "write", str(tmp_path / "stack.npy"), target]) == 2
    assert "holds an array already" in capsys.readouterr().err
    shard = next(file for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    shard.write_bytes(shard.read_bytes()[:-1])
    assert main(["store", "verify", target]) == 2
    assert "checksum" in capsys.readouterr().err


def test_objects_that_are_not_arrays_are_refused_and_untouched(capsys, tmp_path, stack):
    """With and without --overwrite, in the folder itself and through a link."""
    np.save(tmp_path / "x.npy", stack)
    source, project = tmp_path / "proj/c/src/main.c", tmp_path / "proj"
    source.parent.mkdir(parents=True)
    source.write_text("precious")
    (tmp_path / "link").symlink_to(project)
    for target in ("proj", "link"):
        for more in ([], ["--overwrite"]):
            args = ["store", "write", str(tmp_path / "x.npy"), str(tmp_path / target), *more]
            assert main(args) == 2
            told = capsys.readouterr().err
            assert "is not empty and holds no Zarr v3 array or group: there is c/src/main.c" in told
    assert [file for file in project.rglob("*") if file.is_file()] == [source]
    assert source.read_text() == "precious"
    said(capsys, "write", tmp_path / "x.npy", tmp_path / "a")
    (tmp_path / "to").symlink_to(tmp_path / "a")
    args = ["store", "write", str(tmp_path / "x.npy"), str(tmp_path / "to"), "--overwrite"]
    assert main(args) == 2
    assert "is a symbolic link, and an array is not replaced through one" in capsys.readouterr().err
    assert np.array_equal(open_store(tmp_path / "a").read(), stack)


def test_a_copy_has_the_frames_that_came_and_no_more(capsys, tmp_path):
    planes = np.arange(1, 1 + 7 * 6 * 5, dtype="uint16").reshape(7, 6, 5)
    with create(tmp_path / "a", (None, 2, 2, 6, 5), "uint16", (1, 1, 1, 3, 5)) as writer:
        writer.append(planes)
    said(capsys, "copy", tmp_path / "a", tmp_path / "b", "--chunks", "2", "1", "2", "6", "5")
    with open_store(tmp_path / "b", mode="a") as writer:
        assert writer.frames == 7
        writer.append(planes[0])
    found = open_store(tmp_path / "b").read().reshape(8, 6, 5)
    assert np.array_equal(found, np.concatenate([planes, planes[:1]]))


# -- images, plates, groups, Zarr v2


@pytest.fixture
def stored(tmp_path):
    """An image, a plate, positions, a stream, and arrays of Zarr v2, below one group."""
    root = zarr.open_group(tmp_path / "all", mode="w")
    root.attrs["project"] = "loom"
    block = np.arange(3 * 16 * 16, dtype="uint16").reshape(3, 16, 16)
    image = {"shape": (None, 16, 16), "dtype": "u2", "chunks": (1, 8, 8), "axes": "tyx"}
    with create_image(tmp_path / "all/image", levels=2, **image) as writer:
        writer.append(block, metadata=[{"delta_t": n / 2} for n in range(3)])
        writer.skip(2)
    with create_plate(tmp_path / "all/plate", "AB", "12", levels=1, **image) as plate:
        for row, column in ("A1", "B2"):
            plate.field(row, column, 0).append(block)
    several = image | {"shape": (None, 2, 16, 16), "chunks": (1, 1, 8, 8), "axes": "tcyx"}
    several["channels"] = ["DAPI", "GFP"]
    with create_positions(tmp_path / "all/stage", levels=2, **several) as recording:
        for name in ("left", "right"):
            recording.position(name).append(np.stack([block, block], 1))
    with Stream(tmp_path / "all/run", attributes={"sample": 7}) as stream:
        stream.create("camera", (None, 16, 16), "u2", (1, 8, 8), (2, 16, 16))
        stream.append({"camera": block})
    old = zarr.open_group(tmp_path / "all/old", mode="w", zarr_format=2)
    old.create_array("a", shape=(5, 7), chunks=(2, 3), dtype="<i4")[...] = 1
    return tmp_path / "all"


def test_what_is_stored_is_listed_as_a_tree(capsys, stored):
    tree = said(capsys, "ls", stored)
    assert (tree["name"], tree["kind"]) == ("all", "group")
    kinds = {each["name"]: each["kind"] for each in tree["members"]}
    assert kinds == {
        "image": "image",
        "old": "group",
        "plate": "plate",
        "run": "group",
        "stage": "collection",
    }
    assert main(["store", "ls", str(stored)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all  group"
    assert "├── image  image 'image', axes tyx, 2 levels" in lines
    assert "├── plate  plate, rows A B, columns 1 2, wells A/1 B/2" in lines
    assert "└── stage  collection, positions left right" in lines
    assert "    ├── 0  image 'left', axes tcyx, channels DAPI GFP, 2 levels" in lines
    assert "│   ├── 0  uint16[5, 16, 16] in chunks of 1x8x8" in lines
    assert "│   └── camera  uint16[3, 16, 16] in chunks of 1x8x8, shards of 2x16x16" in lines
    assert any(line.endswith("a  int32[5, 7] in chunks of 2x3") for line in lines)
    assert main(["store", "ls", str(stored), "--depth", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert said(capsys, "ls", stored / "run/camera")["shape"] == [3, 16, 16]


def test_info_describes_every_kind(capsys, stored):
    told = said(capsys, "info", stored)
    assert (told["kind"], told["arrays"], told["attributes"]) == ("group", 10, ["project"])
    assert told["stored"] > 0
    told = said(capsys, "info", stored / "image")
    assert (told["kind"], told["axes"]) == ("image", ["t", "y", "x"])
    assert told["levels"] == [[5, 16, 16], [5, 8, 8]]
    assert (told["frames"], told["dropped"], told["frame_metadata"]) == (5, 2, ["delta_t"])
    told = said(capsys, "info", stored / "plate")
    assert (told["kind"], told["wells"], told["arrays"]) == ("plate", ["A/1", "B/2"], 2)
    assert [field["name"] for field in told["fields"]] == ["A/1/0", "B/2/0"]
    told = said(capsys, "info", stored / "stage")
    assert (told["kind"], told["arrays"]) == ("collection", 4)
    assert told["positions"][1] == {
        "name": "right",
        "axes": "tcyx",
        "channels": ["DAPI", "GFP"],
        "levels": [[3, 2, 16, 16], [3, 2, 8, 8]],
    }
    assert said(capsys, "info", stored / "stage/0")["channels"] == ["DAPI", "GFP"]
    told = said(capsys, "info", stored / "image/0")
    assert (told["kind"], told["frames"], told["zarr_format"]) == ("array", 5, 3)
    told = said(capsys, "info", stored / "old/a")
    assert (told["zarr_format"], told["shape"], told["files"]) == (2, [5, 7], 9)
    assert told["shards"] is None
    assert said(capsys, "info", stored / "run")["attributes"] == ["sample"]
    assert main(["store", "info", str(stored / "plate")]) == 0
    table = capsys.readouterr().out
    assert "kind          plate" in table
    assert "fields        A/1/0, axes tyx, channels [], levels [[3, 16, 16]]" in table


def test_verify_reads_all_arrays_below_a_group(capsys, stored):
    told = said(capsys, "verify", stored)
    assert (told["arrays"], told["findings"]) == (10, [])
    assert told["matched"] + told["decoded"] == told["chunks"]
    assert told["decoded"] == 9  # those of Zarr v2 have no checksum
    shard = stored / "plate/B/2/0/0/c/1/0/0"
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    (stored / "image/0/frames/0.jsonl").unlink()
    assert main(["store", "verify", str(stored), "--json"]) == 2
    captured = capsys.readouterr()
    findings = json.loads(captured.out)["findings"]
    assert len(findings) == 2
    assert "frames/0.jsonl is missing" in findings[0]
    assert "checksum mismatch" in findings[1]
    assert "2 findings in" in captured.err
    assert main(["store", "verify", str(stored / "plate")]) == 2


def test_addresses_are_looked_at_too(capsys):
    url = "memory://cli/run"
    with Stream(url) as stream:
        stream.create("camera", (None, 8, 8), "u2", (1, 8, 8))
        stream.append({"camera": np.ones((2, 8, 8), "u2")}, metadata={"camera": [{"n": 1}, None]})
    assert [each["name"] for each in said(capsys, "ls", url)["members"]] == ["camera"]
    assert said(capsys, "verify", url)["matched"] == 2
    assert said(capsys, "info", f"{url}/camera")["frame_metadata"] == ["n"]


def test_a_copy_has_the_metadata_of_frames(capsys, stored, tmp_path):
    said(capsys, "copy", stored / "image/0", tmp_path / "copy", "--chunks", 2, 16, 16)
    frames = open_store(tmp_path / "copy").frames
    assert list(frames) == [{"delta_t": 0.0}, {"delta_t": 0.5}, {"delta_t": 1.0}, {}, {}]
    assert frames.dropped.tolist() == [3, 4]
