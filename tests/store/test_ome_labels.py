"""Label images: listed, valid, and with the levels of the image that they belong to."""

import numpy as np
import pytest
from tests.store.ome_validators import is_accepted
from tests.store.windows import brute

from weft import WeftError
from weft.store import create_image, open_image
from weft.store.hierarchy import read_group, sink_of

IMAGE = {
    "shape": (None, 2, 10, 12),
    "dtype": "uint16",
    "chunks": (1, 1, 4, 4),
    "shards": (2, 1, 8, 8),
    "axes": "tcyx",
    "scale": {"y": 0.5, "x": 0.5},
    "translation": {"x": 7},
    "channels": ["a", "b"],
    "levels": 3,
}


@pytest.fixture
def image(tmp_path):
    with create_image(tmp_path / "a.zarr", **IMAGE) as writer:
        writer.append(np.ones((3, 2, 10, 12), "uint16"))
    return open_image(tmp_path / "a.zarr")


def test_labels_follow_their_image(tmp_path, image):
    assert not image.labels
    assert list(image.labels) == []
    cells = np.random.default_rng(0).integers(0, 4, (3, 10, 12)).astype("uint32")
    properties = {1: {"class": "cell", "area": 12}, 2: {}}
    colors = {1: "red", 2: (0, 255, 0, 128), 3: "#00f"}
    with image.labels.create("cells", colors=colors, properties=properties) as writer:
        assert is_accepted(tmp_path / "a.zarr")
        for frame in cells:
            writer.append(frame)
    with image.labels.create("nuclei", "uint8", method="first") as writer:
        writer.append(cells.astype("uint8"))
    assert is_accepted(tmp_path / "a.zarr")
    assert list(image.labels) == ["cells", "nuclei"]
    found = image.labels["cells"]
    assert [axis.name for axis in found.axes] == ["t", "y", "x"]
    assert found.scales == tuple((t, y, x) for t, _, y, x in image.scales)
    assert found.translations == tuple((t, y, x) for t, _, y, x in image.translations)
    assert found.levels[0].chunks == (1, 4, 4)
    wanted = cells
    for level, other in zip(found.levels, image.labels["nuclei"].levels):
        assert np.array_equal(level.read(), wanted)
        assert other.dtype == "uint8"
        shape = [-(-n // f) for n, f in zip(wanted.shape, (1, 2, 2))]
        wanted = brute(wanted, wanted.size, (1, 2, 2), "mode", "uint32").reshape(shape)
    assert np.array_equal(image.labels["nuclei"].levels[1].read(), cells[:, ::2, ::2])
    assert found.image_label == {
        "version": "0.5",
        "colors": [
            {"label-value": 1, "rgba": [255, 0, 0, 255]},
            {"label-value": 2, "rgba": [0, 255, 0, 128]},
            {"label-value": 3, "rgba": [0, 0, 255, 255]},
        ],
        "properties": [
            {"label-value": 1, "class": "cell", "area": 12},
            {"label-value": 2},
        ],
        "source": {"image": "../../"},
    }
    assert image.image_label is None


def test_labels_are_continued_and_replaced(tmp_path, image):
    path = tmp_path / "a.zarr" / "labels"
    image.labels.create("cells").close()
    with open_image(path / "cells", mode="a") as writer:
        writer.append(np.ones((1, 10, 12), "uint32"))
    with pytest.raises(WeftError, match="holds an image already"):
        image.labels.create("cells")
    other = read_group(sink_of(path))
    with image.labels.create("cells", overwrite=True) as writer:
        writer.append(np.full((1, 10, 12), 5, "uint32"))
    assert read_group(sink_of(path)) == other, "it is listed once"
    assert image.labels["cells"].levels[2].read().max() == 5
    with create_image(tmp_path / "a.zarr", overwrite=True, **IMAGE):
        pass
    assert not open_image(tmp_path / "a.zarr").labels, "labels belong to the image that they label"
    assert not (path / "cells" / "zarr.json").exists()


def test_labels_that_cannot_be_are_refused(tmp_path, image):
    for name, more, message in [
        ("cells", {"dtype": "float32"}, "labels are integers, got float32"),
        ("a/b", {}, "'a/b' is not a name of labels"),
        (".cells", {}, "'.cells' is not a name of labels"),
        ("cells", {"colors": {1: "reddish"}}, "'reddish' is not a colour"),
        ("cells", {"colors": {"1": "red"}}, "colors: a label is an integer, got '1'"),
        ("cells", {"properties": [{"label-value": 1}] * 2}, "properties: label 1 occurs 2 times"),
        ("cells", {"attributes": {"ome": {"image-label": {"version": "0.4"}}}}, "'0.4' was given"),
    ]:
        with pytest.raises(WeftError, match=message):
            image.labels.create(name, **more)
        assert not (tmp_path / "a.zarr" / "labels").exists(), more
    with pytest.raises(KeyError, match="has no labels 'cells'"):
        image.labels["cells"]


def test_labels_of_part_of_an_image(tmp_path, image):
    """Other axes and sizes, as the caller says."""
    with image.labels.create(
        "regions", "int16", axes="yx", shape=(10, 12), chunks=(10, 12)
    ) as writer:
        writer.append_rows(np.full((10, 12), -1, "int16"))
    assert image.labels["regions"].levels[2].read().tolist() == [[-1] * 3] * 3
    assert is_accepted(tmp_path / "a.zarr")
