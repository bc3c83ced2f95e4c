"""Other libraries validate and read images, labels, plates and positions, live and closed."""

import importlib.util
import warnings
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr
from tests.store.ome_validators import is_accepted

from weft.store import (
    Acquisition,
    Axis,
    Channel,
    create_image,
    create_plate,
    create_positions,
    open_image,
)
from weft.store.ome.metadata import UNITS, Multiscale
from weft.store.ome.xml import ImageDescription, OmeXml

SPACE = [Axis(name, unit="micrometer") for name in "zyx"]
IMAGE = {
    "shape": (None, 2, 4, 16, 12),
    "dtype": "uint16",
    "chunks": (1, 1, 2, 8, 8),
    "axes": [Axis("t", unit="second"), Axis("c"), *SPACE],
    "scale": {"t": 0.5, "z": 2, "y": 0.65, "x": 0.65},
    "translation": {"y": -3.5, "x": 12},
    "channels": ["DAPI", Channel("GFP", "green", (10, 4000))],
    "factors": (1, 1, 2, 2, 2),
    "levels": 3,
}
FRAMES = np.random.default_rng(0).integers(0, 999, (2, 2, 4, 16, 12)).astype("uint16")


@pytest.fixture(scope="module", params=["live", "closed"])
def stores(request, tmp_path_factory):
    """One store of each kind; all writers are closed, or none is."""
    root = tmp_path_factory.mktemp(request.param)
    image = create_image(root / "image.zarr", **IMAGE)
    flat = {"shape": (16, 12), "dtype": "float32", "chunks": (8, 8), "axes": "yx"}
    plane = create_image(root / "plane.zarr", **flat)
    plate = create_plate(root / "plate.zarr", "AB", "12", acquisitions=[Acquisition(0)], **IMAGE)
    positions = create_positions(root / "run.zarr", **IMAGE)
    labels = open_image(root / "image.zarr").labels.create("cells", colors={1: "red"})
    fields = [plate.field("B", "2", number, acquisition=0) for number in range(2)]
    places = [positions.position(f"p{n}", translation={"x": 100.0 * n}) for n in range(2)]
    for frame in FRAMES:
        labels.append(frame[0].astype("uint32"))
        for writer in (image, *fields):
            writer.append(frame)
        for writer in places:
            for at in frame.reshape(-1, 16, 12):
                writer.append(at, metadata={"delta_t": writer.frames / 8, "position_z": 2})
    plane.append_rows(FRAMES[0, 0, 0].astype("float32"))
    writers = [image, plane, labels, plate, positions]
    for writer in writers:
        writer.close() if request.param == "closed" else writer.flush()
    yield root
    for writer in writers:
        writer.close()


def load(name):
    """A library that may not be installed.

    ome-zarr is not in the extra `test`: it pins another botocore than moto. `make beside` has it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


KINDS = ("image", "plane", "plate", "run")


@pytest.mark.parametrize("kind", KINDS)
def test_yaozarrs(stores, kind):
    assert is_accepted(stores / f"{kind}.zarr")


def test_ome_zarr_models(stores):
    models = load("ome_zarr_models")
    several = importlib.import_module("ome_zarr_models.v05.bioformats2raw").BioFormats2Raw
    omero = importlib.import_module("ome_zarr_models.common.omero").Omero
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = {
            path: models.open_ome_zarr(stores / path, version="0.5")
            for path in (
                *("image.zarr", "plane.zarr", "plate.zarr"),
                *("plate.zarr/B/2", "image.zarr/labels", "image.zarr/labels/cells"),
            )
        }
        run = several.from_zarr(zarr.open_group(stores / "run.zarr", mode="r"))
    kinds = [type(one).__name__ for one in opened.values()]
    assert kinds == ["Image", "Image", "HCS", "Well", "Labels", "ImageLabel"]
    assert opened["image.zarr"].labels is not None
    channels = omero.model_validate(opened["image.zarr"].ome_attributes.omero).channels
    assert [channel.color for channel in channels] == ["0000FF", "00FF00"]
    wells = opened["plate.zarr"].ome_attributes.plate.wells
    assert [well.path for well in wells] == ["B/2"]
    assert run.image_paths == ["0", "1"]


@pytest.mark.slow
def test_ome_zarr_py(stores):
    reader, io = load("ome_zarr.reader"), load("ome_zarr.io")

    def nodes(path):
        return list(reader.Reader(io.parse_url(stores / path))())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image, *labels = nodes("image.zarr")
        for path in ("image.zarr", "run.zarr/0", "run.zarr/1", "plate.zarr/B/2/1"):
            found = nodes(path)[0]
            assert found.metadata["channel_names"] == ["DAPI", "GFP"]
            assert found.metadata["contrast_limits"][1] == [10, 4000]
            assert np.array_equal(np.asarray(found.data[0]), FRAMES)
        (plate,) = nodes("plate.zarr")[:1]
        assert np.asarray(plate.data[0]).max() == FRAMES.max()
    assert [level.shape[0] for level in image.data] == [2, 2, 2]
    assert "cells" in [node.zarr.basename() for node in labels]


@pytest.mark.slow
def test_ngff_zarr(stores):
    ngff = load("ngff_zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in ("image.zarr", "run.zarr/1", "plate.zarr/B/2/0"):
            found = ngff.from_ngff_zarr(str(stores / path), validate=True)
            assert np.array_equal(np.asarray(found.images[0].data), FRAMES)
            assert [one.label for one in found.metadata.omero.channels] == ["DAPI", "GFP"]
            assert found.images[0].scale["y"] == 0.65
            assert len(found.images) == 3
        cells = ngff.from_ngff_zarr(str(stores / "image.zarr/labels/cells"), validate=True)
        assert list(cells.images[0].dims) == ["t", "z", "y", "x"]
        ngff.from_ngff_zarr(str(stores / "plane.zarr"), validate=True)
        plate = ngff.from_hcs_zarr(str(stores / "plate.zarr"), validate=True)
        field = plate.get_well("B", "2").get_image(1)
        assert np.array_equal(np.asarray(field.images[0].data), FRAMES)


@pytest.mark.slow
def test_ome_types(stores):
    """OME-XML, against its schema."""
    types = load("ome_types")
    if not any(map(importlib.util.find_spec, ("lxml", "xmlschema"))):
        pytest.skip("neither lxml nor xmlschema is installed")
    text = Path(stores, "run.zarr/OME/METADATA.ome.xml").read_text(encoding="utf-8")
    found = types.from_xml(text, validate=True)
    assert [image.name for image in found.images] == ["p0", "p1"]
    pixels = found.images[1].pixels
    assert (pixels.size_t, pixels.size_c, pixels.size_z) == (2, 2, 4)
    assert (pixels.physical_size_z, pixels.physical_size_z_unit.value) == (2.0, "µm")
    assert pixels.channels[1].color.as_rgb_tuple() == (0, 255, 0)
    assert found.images[1].stage_label.x == 100.0
    assert len(pixels.planes) == 16
    assert (pixels.planes[3].the_z, pixels.planes[3].delta_t) == (3, 3 / 8)
    for kind, letter in (("space", "x"), ("time", "t")):
        for unit in sorted(UNITS[kind]):
            axes = [Axis("t", unit=unit if letter == "t" else None), "y"]
            axes.append(Axis("x", unit=unit if letter == "x" else None))
            xml = OmeXml()
            image = Multiscale.of(axes, None, (1, 1, 1), 1, translation={"x": 3}, name="a")
            xml.describe(0, ImageDescription(image, (1, 4, 4), "uint8"))
            if kind == "space" or unit in ("second", "yoctosecond", "minute", "day"):
                types.from_xml(xml.to_bytes().decode(), validate=True)


def test_units_of_ome_xml_are_all_there():
    """The units of OME-NGFF all have a symbol."""
    for kind, dim in (("space", 2), ("time", 0)):
        for unit in UNITS[kind]:
            axes = [Axis("t", "time"), Axis("y"), Axis("x")]
            axes[dim] = Axis(axes[dim].name, unit=unit)
            xml = OmeXml()
            image = Multiscale.of(axes, None, (1, 1, 1), 1)
            xml.describe(0, ImageDescription(image, (1, 4, 4), "uint8"))
            (pixels,) = ElementTree.fromstring(xml.to_bytes()).iter(
                "{http://www.openmicroscopy.org/Schemas/OME/2016-06}Pixels"
            )
            name = "PhysicalSizeXUnit" if kind == "space" else "TimeIncrementUnit"
            assert pixels.get(name), unit
