"""Plates that are opened again, to add wells, fields and acquisitions."""

import json
import pickle

import numpy as np
import pytest
from tests.store.ome_validators import is_accepted

from weft import WeftError, store
from weft.store import Acquisition, create_plate, open_plate
from weft.store.hierarchy import read_group, sink_of

IMAGE = {
    "shape": (None, 2, 8, 8),
    "dtype": "uint16",
    "chunks": (1, 1, 8, 8),
    "axes": "tcyx",
    "levels": 2,
    "channels": ["DAPI", "GFP"],
}


def frame(value):
    return np.full((2, 8, 8), value, "uint16")


def tree(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def change(path, how):
    data = json.loads((path / "zarr.json").read_text())
    how(data["attributes"])
    (path / "zarr.json").write_text(json.dumps(data))


def test_a_plate_grows_when_it_is_opened_again(tmp_path):
    path = tmp_path / "p.zarr"
    with create_plate(
        path, "AB", "12", acquisitions=[Acquisition(0, "first")], attributes={"run": 5}, **IMAGE
    ) as plate:
        plate.field("A", "1", 0, acquisition=0).append(frame(1))
    change(path, lambda found: found["ome"]["plate"].update(note="kept"))
    change(path, lambda found: found["ome"]["plate"]["wells"][0].update(dye="kept"))
    change(path / "A" / "1", lambda found: found.update(temperature=37))
    before = tree(path / "A" / "1" / "0")
    with open_plate(path, mode="a", **IMAGE) as plate:
        plate.add_acquisition(Acquisition(4, "second", maximumfieldcount=2))
        assert is_accepted(path)
        plate.field("A", "1", 1, acquisition=4).append(frame(2))
        assert is_accepted(path)
        plate.field("B", "2", 0, acquisition=4).append(frame(3))
        with pytest.raises(WeftError, match="field A/1/0 exists already"):
            plate.field("A", "1", 0, acquisition=0)
        with pytest.raises(WeftError, match="acquisitions: two have one id"):
            plate.add_acquisition(Acquisition(4))
    assert is_accepted(path)
    assert {key: tree(path / "A" / "1" / "0")[key] for key in before} == before
    found = open_plate(path)
    assert found.plate.wells == (("A", "1"), ("B", "2"))
    assert [run.id for run in found.plate.acquisitions] == [0, 4]
    assert found.plate.field_count == 2
    assert found.attrs["run"] == 5
    assert repr(found) == f"<StoredPlate 2 x 2, 2 wells with images, at {path}>"
    assert found.well("A", "1").fields == (("0", 0), ("1", 4))
    attributes = read_group(sink_of(path))["ome"]["plate"]
    assert (attributes["note"], attributes["wells"][0]["dye"]) == ("kept", "kept")
    assert read_group(sink_of(path / "A" / "1"))["temperature"] == 37
    assert [channel.name for channel in found.image("B", "2", 0).channels] == ["DAPI", "GFP"]


def test_fields_are_continued(tmp_path):
    path = tmp_path / "p.zarr"
    with create_plate(path, "A", "1", **IMAGE) as plate:
        plate.field("A", "1", 0).append(frame(1))
        assert plate["A", "1", 0] is plate.images["A", "1", "0"]
    with open_plate(path, mode="a") as plate:
        assert plate["A", "1", 0].frames == 2
        plate["A", "1", 0].append(frame(2))
        plate.flush()
        assert plate.safe == {"A/1/0": 4}
        with pytest.raises(WeftError, match=r"has no field A/1/7"):
            plate["A", "1", 7]
        with pytest.raises(WeftError, match="a new image needs shape, dtype, chunks, axes"):
            plate.field("A", "1", 1)
    assert open_plate(path).image("A", "1", 0).levels[0].read()[:, 0, 0, 0].tolist() == [1, 2]
    with pytest.raises(WeftError, match="is closed: no image can be added"):
        plate.field("A", "1", 1)


def test_a_plate_without_wells_is_kept(tmp_path):
    """A crash before the first field loses no metadata."""
    path = tmp_path / "p.zarr"
    create_plate(path, "AB", "12", name="screen", acquisitions=[Acquisition(3)]).close()
    assert "ome" not in read_group(sink_of(path)), "it would not be valid"
    with pytest.raises(WeftError, match="holds a plate already"):
        create_plate(path, "A", "1")
    assert store.open(path).plate.wells == ()
    with open_plate(path, mode="a", **IMAGE) as plate:
        assert (plate.plate.name, plate.plate.rows) == ("screen", ("A", "B"))
        plate.add_acquisition(Acquisition(4))
        plate.field("B", "2", 0, acquisition=4)
        assert is_accepted(path)
    assert set(read_group(sink_of(path))) == {"ome"}
    assert [run.id for run in open_plate(path).plate.acquisitions] == [3, 4]


def test_what_is_refused(tmp_path):
    path = tmp_path / "p.zarr"
    with pytest.raises(WeftError, match=r"attributes\.ome\.plate\.rows: .* was given"):
        create_plate(path, "AB", "1", attributes={"ome": {"plate": {"rows": []}}})
    assert not path.exists()
    with create_plate(path, "A", "1", **IMAGE) as plate:
        plate.field("A", "1", 0)
        with pytest.raises(WeftError, match="locked by another writer"):
            open_plate(path, mode="a")
    with pytest.raises(WeftError, match="mode is 'r' or 'a', got 'w'"):
        open_plate(path, mode="w")
    with pytest.raises(WeftError, match="axes: these are for mode 'a'"):
        open_plate(path, axes="yx")


def test_plates_and_images_are_pickled_and_compared(tmp_path):
    with create_plate(tmp_path / "p.zarr", "A", "12", **IMAGE) as plate:
        for column in "12":
            plate.field("A", column, 0).append(frame(int(column)))
    found = open_plate(tmp_path / "p.zarr")
    one, two = (found.image("A", column, 0) for column in "12")
    assert pickle.loads(pickle.dumps(found)) == found
    again = pickle.loads(pickle.dumps(one))
    assert again == one != two
    assert np.array_equal(again.levels[0], one.levels[0])
