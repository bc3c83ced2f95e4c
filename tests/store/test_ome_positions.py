"""Positions without a plate: a collection that others accept at every moment, and that goes on."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr
from tests.store.ome_validators import is_accepted

from weft import WeftError, store
from weft.store import Axis, Channel, create_positions, open_positions
from weft.store.hierarchy import read_group, sink_of
from weft.store.ome.xml import NAMESPACE

AXES = [
    Axis("t", unit="second"),
    Axis("c"),
    *(Axis(name, unit="micrometer") for name in "zyx"),
]
IMAGE = {
    "shape": (None, 2, 2, 16, 12),
    "dtype": "uint16",
    "chunks": (1, 1, 1, 8, 8),
    "axes": AXES,
    "scale": {"t": 0.5, "z": 2, "y": 0.65, "x": 0.65},
    "channels": ["DAPI", Channel("GFP", "green", (10, 4000))],
    "levels": 2,
}


def frame(value):
    return np.full((2, 2, 16, 12), value, "uint16")


def images_of(path):
    """The elements of OME-XML, by the standard library."""
    root = ElementTree.fromstring((path / "OME" / "METADATA.ome.xml").read_bytes())
    return root.findall(f"{{{NAMESPACE}}}Image")


def test_positions_are_valid_at_every_moment(tmp_path):
    path = tmp_path / "run.zarr"
    with create_positions(path, attributes={"sample": 7}, **IMAGE) as recording:
        assert read_group(sink_of(path))["sample"] == 7
        assert len(store.open(path)) == 0, "a collection, although it has no image yet"
        for number, name in enumerate(["left", "right", "top"]):
            recording.position(name, translation={"y": 5.0, "x": 100.0 * number})
            assert is_accepted(path)
            assert len(images_of(path)) == number + 1
        for step in range(3):
            for name in ("top", "left", "right"):
                recording[name].append(frame(step))
        recording.flush()
        assert is_accepted(path)
        assert [image.levels[0].shape[0] for image in open_positions(path)] == [3, 3, 3]
        assert recording.safe == {"0": 12, "1": 12, "2": 12}
        assert recording.memory() > 0
    assert is_accepted(path)
    found = store.open(path)
    assert found.names == ("left", "right", "top")
    assert found["right"].translations[0] == (0, 0, 0, 5, 100)
    assert found[-1].levels[0].read()[:, 0, 0, 0, 0].tolist() == [0, 1, 2]
    assert found.attrs["sample"] == 7
    assert zarr.open_group(path, mode="r")["2/1"].shape == (3, 2, 2, 8, 6)


def test_names_that_xml_cannot_spell(tmp_path):
    path, name = tmp_path / "run.zarr", "cell\x07\n<1>\ufffe"
    with create_positions(path, **IMAGE | {"channels": ["a\x00", "b"]}) as recording:
        recording.position(name)
    (image,) = images_of(path)
    assert image.get("Name") == "cell\ufffd\n<1>\ufffd"
    with open_positions(path, mode="a", **IMAGE) as recording:
        recording[name].append(frame(1))
    found = store.open(path)
    assert found.names == (name,)
    assert found[name].channels[0].name == "a\x00"


def test_metadata_of_frames_are_planes_of_ome_xml(tmp_path):
    path = tmp_path / "run.zarr"
    with create_positions(path, **IMAGE) as recording:
        writer = recording.position("a")
        for number in range(8):
            at = {"delta_t": number / 4, "exposure_time": 0.01, "position_z": 3, "gain": "high"}
            writer.append(frame(1)[0, 0], metadata=at if number != 5 else {"position_x": None})
        recording.flush()
        planes = images_of(path)[0].findall(f".//{{{NAMESPACE}}}Plane")
        found = [tuple(int(plane.get(f"The{axis}")) for axis in "TCZ") for plane in planes]
        wanted = [(t, c, z) for t in range(2) for c in range(2) for z in range(2)]
        assert found == [*wanted[:5], *wanted[6:]], "a plane without metadata is not listed"
        assert planes[3].get("DeltaT") == "0.75"
        assert (planes[3].get("PositionZ"), planes[3].get("PositionZUnit")) == ("3.0", "µm")
        writer.append(frame(1)[0, 0], metadata={"delta_t": 2.5})
    assert len(images_of(path)[0].findall(f".//{{{NAMESPACE}}}Plane")) == 8
    with open_positions(path, "a") as recording:
        recording[0].append(frame(1)[0, 0], metadata={"delta_t": 3})
    planes = images_of(path)[0].findall(f".//{{{NAMESPACE}}}Plane")
    assert [plane.get("DeltaT") for plane in planes[-2:]] == ["2.5", "3.0"]


def test_frames_of_several_planes(tmp_path):
    image = {**IMAGE, "frame_ndim": 3}  # a frame is a stack
    with create_positions(tmp_path / "a", **image) as recording:
        writer = recording.position()
        for number in range(2):
            writer.append(frame(1)[0], metadata={"delta_t": number})
    planes = images_of(tmp_path / "a")[0].findall(f".//{{{NAMESPACE}}}Plane")
    found = [[plane.get(key) for key in ("TheC", "TheZ", "DeltaT")] for plane in planes]
    assert found == [["0", "0", "0.0"], ["0", "1", "0.0"], ["1", "0", "1.0"], ["1", "1", "1.0"]]


def test_positions_are_continued(tmp_path):
    path = tmp_path / "run.zarr"
    with create_positions(path, **IMAGE) as recording:
        recording.position("a").append(frame(1))
        recording.position().append(frame(2))
        assert recording.names == ("a", "1")
    text = (path / "OME" / "METADATA.ome.xml").read_text(encoding="utf-8")
    text = text.replace('<Image ID="Image:0" Name="a"', '<Image ID="Image:mine" Name="mine"', 1)
    text = re.sub(r'Color="-?\d+"', 'Color="7"', text, count=1)
    (path / "OME" / "METADATA.ome.xml").write_text(text, encoding="utf-8")
    root = json.loads((path / "OME" / "zarr.json").read_text())
    root["attributes"]["ome"]["note"] = root["attributes"]["other"] = "kept"
    (path / "OME" / "zarr.json").write_text(json.dumps(root))
    with open_positions(path, "a", **IMAGE) as recording:
        assert recording["a"].frames == 4
        assert recording["a"] is recording[0], "it is opened once"
        recording["a"].append(frame(3))
        recording.position("b").append(frame(4))
        with pytest.raises(WeftError, match="has a position 'a' already"):
            recording.position("a")
    assert is_accepted(path)
    found = open_positions(path)
    assert found.names == ("a", "1", "b")
    assert [image.levels[0].shape[0] for image in found] == [2, 1, 1]
    sizes = [image.find(f"{{{NAMESPACE}}}Pixels").get("SizeT") for image in images_of(path)]
    assert sizes == ["2", "1", "1"]
    first = images_of(path)[0]
    channel = first.find(f"{{{NAMESPACE}}}Pixels/{{{NAMESPACE}}}Channel")
    assert (first.get("ID"), first.get("Name")) == ("Image:mine", "mine"), "what others wrote stays"
    assert channel.get("Color") == "7"
    ome = read_group(sink_of(path / "OME"))
    assert (ome["other"], ome["ome"]["note"]) == ("kept", "kept")
    assert ome["ome"]["series"] == ["0", "1", "2"]


def test_a_writer_that_is_killed_while_it_lists_its_first_position(tmp_path):
    """After each of its writes: the position is there, or can be created."""
    path = tmp_path / "run.zarr"
    create_positions(path, attributes={"sample": 7}, **IMAGE).close()
    store.create_image(path / "0", name="a", **IMAGE).close()
    assert len(open_positions(path)) == 0, "it is not listed"
    with open_positions(path, mode="a", **IMAGE) as recording:
        assert recording.names == ()
        recording.position("b")
        assert is_accepted(path)
    listed = (path / "zarr.json").read_text()
    create_positions(tmp_path / "other", attributes={"sample": 7}, **IMAGE).close()
    (path / "zarr.json").write_text((tmp_path / "other" / "zarr.json").read_text())
    assert open_positions(path).names == ("b",), "it is listed, and the root does not say so yet"
    with open_positions(path, mode="a", **IMAGE) as recording:
        assert recording.names == ("b",)
    assert json.loads((path / "zarr.json").read_text()) == json.loads(listed)
    assert is_accepted(path)


def test_empty_images_of_a_killed_writer_are_replaced(tmp_path):
    """An image that is not listed yet is replaced while it is empty, and never if it has frames."""
    path = tmp_path / "run.zarr"
    with create_positions(path, **IMAGE) as recording:
        recording.position("a")
    store.create_image(path / "1", name="left over", **IMAGE).close()
    with store.open(path, mode="a") as recording:
        assert recording.names == ("a",)
        with pytest.raises(WeftError, match="a new image needs shape, dtype, chunks, axes"):
            recording.position("b")
    with open_positions(path, mode="a", **IMAGE) as recording:
        recording.position("b")
    assert open_positions(path).names == ("a", "b")
    with store.create_image(path / "2", name="not mine", **IMAGE) as writer:
        writer.append(frame(1))
    with (
        open_positions(path, mode="a", **IMAGE) as recording,
        pytest.raises(WeftError, match="holds an image already"),
    ):
        recording.position("c")
    assert open_positions(path).names == ("a", "b")


def test_positions_that_are_replaced(tmp_path):
    path = tmp_path / "run.zarr"
    with create_positions(path, **IMAGE) as recording:
        recording.position("a").append(frame(1))
        recording.position("b").append(frame(1))
        with pytest.raises(WeftError, match="locked by another writer"):
            open_positions(path, "a")
    with pytest.raises(WeftError, match="holds a collection already"):
        create_positions(path, **IMAGE)
    with create_positions(path, overwrite=True, **IMAGE) as recording:
        assert [file.name for file in path.rglob("*.json")] == ["zarr.json"]
        assert not (path / "OME" / "METADATA.ome.xml").exists()
        recording.position("c")
    assert is_accepted(path)
    assert len(open_positions(path)) == 1


def test_what_is_refused(tmp_path):
    path = tmp_path / "run.zarr"
    with pytest.raises(WeftError, match=r"attributes\.ome\.version: '0\.4' was given"):
        create_positions(path, attributes={"ome": {"version": "0.4"}})
    assert not path.exists()
    with create_positions(path, attributes={"ome": {"_creator": {"name": "me"}}}) as recording:
        for name, message in [("x", "has no position 'x'"), (0, "has 0 positions"), (True, "True")]:
            with pytest.raises(WeftError, match=message):
                recording[name]
        recording.position("a", **IMAGE)
    assert read_group(sink_of(path))["ome"]["_creator"] == {"name": "me"}
    with pytest.raises(WeftError, match="is closed: no image can be added"):
        recording.position("b", **IMAGE)
    with pytest.raises(WeftError, match="mode is 'r' or 'a', got 'w'"):
        open_positions(path, "w")
    with pytest.raises(WeftError, match="axes: these are for mode 'a'"):
        open_positions(path, axes="yx")
    with pytest.raises(WeftError, match=r"there is no 'bioformats2raw.layout'"):
        open_positions(path / "0")
    (path / "OME" / "METADATA.ome.xml").write_text("<a/>")
    with pytest.raises(WeftError, match=r"METADATA.ome.xml: expected OME of"):
        open_positions(path, "a")
    (path / "OME" / "METADATA.ome.xml").write_text("<!DOCTYPE a><a/>")
    with pytest.raises(WeftError, match="with a document type is not read"):
        open_positions(path, "a")


def test_pixels_that_ome_xml_has_not(tmp_path):
    """No description is better than a wrong one."""
    image = {**IMAGE, "channels": None, "dtype": "uint64"}
    with create_positions(tmp_path / "a", **image) as recording:
        recording.position(dtype="uint16")
        assert open_positions(tmp_path / "a").ome_xml is not None
        recording.position()
    assert open_positions(tmp_path / "a").ome_xml is None
    assert is_accepted(tmp_path / "a")
    create_positions(tmp_path / "b", **IMAGE).close()
    with open_positions(tmp_path / "b", "a", **image) as recording:
        recording.position(dtype="uint16")
    with (
        open_positions(tmp_path / "b", "a", **image) as recording,
        pytest.raises(WeftError, match="has pixels of uint64, which OME-XML cannot describe"),
    ):
        recording.position()
    assert open_positions(tmp_path / "b").ome_xml is not None


def test_reprs_of_positions(tmp_path):
    with create_positions(tmp_path / "a", **IMAGE) as recording:
        recording.position("left").append(frame(1))
    found = store.open(tmp_path / "a")
    assert repr(found) == f"<StoredPositions 1 position at {tmp_path}/a>"
    assert repr(found[0]) == f"<Image tczyx uint16[1, 2, 2, 16, 12], 2 levels, at {tmp_path}/a/0>"
