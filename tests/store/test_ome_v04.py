"""OME-Zarr 0.4, in Zarr v2: read by the same objects as 0.5, and not written."""

import warnings

import numpy as np
import pytest
import zarr
from tests.store.ome_validators import optional

from weft import WeftError, store
from weft.store import open_image, open_plate, open_positions

AXES = [
    {"name": "c", "type": "channel"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]
OMERO = {
    "channels": [
        {
            "label": name,
            "color": color,
            "window": {"min": 0, "max": 255, "start": 0, "end": 99},
            "lut": "glow",
        }
        for name, color in [("DAPI", "0000FF"), ("GFP", "00FF00")]
    ]
}


def multiscales(**more):
    datasets = [
        {
            "path": str(number),
            "coordinateTransformations": [{"type": "scale", "scale": [1, 2**number, 2**number]}],
        }
        for number in range(2)
    ]
    return {"multiscales": [{"version": "0.4", "axes": AXES, "datasets": datasets, **more}]}


def write_image(group, values, attributes):
    group.attrs.update(attributes)
    for number in range(2):
        level = values[..., :: 2**number, :: 2**number]
        array = group.create_array(
            str(number), shape=level.shape, chunks=(1, 4, 4), dtype=level.dtype
        )
        array[...] = level


def test_an_image_with_labels(tmp_path):
    values = np.arange(2 * 8 * 8, dtype="uint8").reshape(2, 8, 8)
    group = zarr.open_group(tmp_path / "a", mode="w", zarr_format=2)
    write_image(group, values, {**multiscales(name="cells"), "omero": OMERO, "extra": 1})
    labels = group.create_group("labels")
    labels.attrs["labels"] = ["mask"]
    about = {"image-label": {"colors": [{"label-value": 1, "rgba": [255, 0, 0, 255]}]}}
    write_image(labels.create_group("mask"), values, {**multiscales(), **about})
    image = store.open(tmp_path / "a")
    assert isinstance(image, store.Image)
    assert (image.name, image.attrs["extra"]) == ("cells", 1)
    assert image.scales == ((1, 1, 1), (1, 2, 2))
    assert [axis.unit for axis in image.axes] == [None, "micrometer", "micrometer"]
    assert [channel.name for channel in image.channels] == ["DAPI", "GFP"]
    assert image.channels[1].window == (0, 99)
    assert dict(image.channels[1].extra) == {"lut": "glow"}
    assert np.array_equal(image.levels[0].read(), values)
    assert np.array_equal(image.levels[1].read(), values[:, ::2, ::2])
    assert image.labels["mask"].image_label["colors"][0]["label-value"] == 1
    with pytest.raises(WeftError, match="is of Zarr v2: there is a"):
        open_image(tmp_path / "a", mode="a")
    with pytest.raises(WeftError, match=r"of OME-NGFF 0\.4, which is read, and not written"):
        image.labels.create("other")


def test_a_plate_and_positions(tmp_path):
    values = np.arange(2 * 8 * 8, dtype="uint16").reshape(2, 8, 8)
    plate = zarr.open_group(tmp_path / "plate", mode="w", zarr_format=2)
    plate.attrs["plate"] = {
        "version": "0.4",
        "rows": [{"name": "A"}, {"name": "B"}],
        "columns": [{"name": "1"}],
        "wells": [{"path": "B/1", "rowIndex": 1, "columnIndex": 0}],
        "field_count": 1,
    }
    well = plate.create_group("B").create_group("1")
    well.attrs["well"] = {"images": [{"path": "0"}], "version": "0.4"}
    write_image(well.create_group("0"), values, multiscales())
    found = store.open(tmp_path / "plate")
    assert found.plate.wells == (("B", "1"),)
    assert np.array_equal(found.image("B", "1", 0).levels[0].read(), values)
    with pytest.raises(WeftError, match="is of Zarr v2: there is a"):
        open_plate(tmp_path / "plate", mode="a")

    several = zarr.open_group(tmp_path / "run", mode="w", zarr_format=2)
    several.attrs["bioformats2raw.layout"] = 3
    for number in range(3):
        write_image(several.create_group(str(number)), values + number, multiscales())
    assert len(store.open(tmp_path / "run")) == 3, "without a list, images are counted"
    several.create_group("OME").attrs["series"] = ["2", "0"]
    listed = open_positions(tmp_path / "run")
    assert [int(image.levels[0].read()[0, 0, 0]) for image in listed] == [2, 0]
    with pytest.raises(WeftError, match="is of Zarr v2: there is a"):
        open_positions(tmp_path / "run", mode="a")


def test_older_versions_are_refused(tmp_path):
    group = zarr.open_group(tmp_path / "a", mode="w", zarr_format=2)
    old = multiscales()
    old["multiscales"][0]["version"] = "0.3"
    write_image(group, np.zeros((2, 8, 8), "uint8"), old)
    with pytest.raises(WeftError, match=r"versions 0\.4 and 0\.5 are supported, got '0\.3'"):
        store.open(tmp_path / "a")


def test_images_of_other_writers(tmp_path):
    values = np.random.default_rng(0).integers(0, 99, (2, 32, 32)).astype("uint16")
    writer, formats = optional("ome_zarr.writer"), optional("ome_zarr.format")
    ngff = optional("ngff_zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if writer is not None:
            for name, kind in [("a4", formats.FormatV04()), ("a5", formats.FormatV05())]:
                group = zarr.open_group(
                    tmp_path / name, mode="w", zarr_format=2 if name == "a4" else 3
                )
                writer.write_image(values, group, axes="cyx", fmt=kind)
        if ngff is not None:
            image = ngff.to_ngff_image(values, dims=["c", "y", "x"], scale={"y": 0.5, "x": 0.5})
            for version in ("0.4", "0.5"):
                ngff.to_ngff_zarr(
                    str(tmp_path / f"n{version[-1]}"), ngff.to_multiscales(image), version=version
                )
    if writer is None and ngff is None:
        pytest.skip("neither ome-zarr nor ngff-zarr is installed")
    for path in sorted(tmp_path.iterdir()):
        image = store.open(path)
        assert [axis.name for axis in image.axes] == ["c", "y", "x"]
        assert np.array_equal(image.levels[0].read(), values), path.name
        assert all(level.read().shape == level.shape for level in image.levels)
