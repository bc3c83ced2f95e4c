"""A store of a user's own: a class with six methods, and one that replaces others."""

import copy

import numpy as np
import pytest

from weft.cli import store_nodes
from weft.errors import WeftError
from weft.store import (
    Fetched,
    Sink,
    SinkError,
    StoreEntry,
    Stream,
    attributes,
    create,
    create_image,
    create_plate,
    create_positions,
    open_group,
)
from weft.store import open as open_store


class DictSink(Sink):
    """Values in a dictionary."""

    def __init__(self, values, prefix=""):
        self.values, self.prefix = values, prefix

    @property
    def url(self):
        return f"dict:{self.prefix}"

    def fetch(self, key, start=0, count=None):
        data = self.values.get(self.prefix + key)
        if data is None:
            return None
        first = max(0, len(data) + start) if start < 0 else start
        stop = len(data) if count is None else first + count
        return Fetched(data[first:stop], len(data))

    def put(self, key, data):
        self.values[self.prefix + key] = bytes(data)

    def delete(self, key):
        self.values.pop(self.prefix + key, None)

    def walk(self, prefix):
        start = f"{self.prefix}{prefix}".rstrip("/")
        for key in sorted(self.values):
            if not start or key == start or key.startswith(f"{start}/"):
                yield StoreEntry(key.removeprefix(self.prefix), "value")

    def below(self, name):
        return DictSink(self.values, f"{self.prefix}{name}/")


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_store_of_your_own_is_recorded_to_and_continued(location):
    values, data = {}, np.arange(9 * 16 * 16, dtype="u2").reshape(9, 16, 16)
    grid = ((None, 16, 16), "u2", (2, 8, 8), (4, 16, 16))
    with create(DictSink(values), *grid, codecs="zstd", index_location=location) as writer:
        assert writer.memory() > 4 * 16 * 16 * 2
        writer.append(data[:5], metadata=[{"n": n} for n in range(5)])
        with pytest.raises(WeftError, match="dict: is locked by another writer"):
            open_store(DictSink(values), "a")
        with pytest.raises(WeftError, match="holds an array already"):
            create(DictSink(values), *grid)
    assert {key.split("/")[0] for key in values} == {"zarr.json", "c", "frames"}
    with open_store(DictSink(values), "a") as writer:
        writer.skip()
        writer.append(data[6:])
        writer.attrs["sample"] = 7
    attributes(DictSink(values))["medium"] = "water"
    array = open_store(DictSink(values))
    wanted = data.copy()
    wanted[5] = 0
    assert np.array_equal(array.read(), wanted)
    array.verify()
    assert array.frames["n"][:5].tolist() == [0, 1, 2, 3, 4]
    assert array.frames.dropped.tolist() == [5]
    assert {"sample", "medium"} < set(array.metadata.attributes)
    create(DictSink(values), *grid, overwrite=True).close()
    assert set(values) == {"zarr.json"}


def test_a_stream_and_its_group(tmp_path):
    values = {}
    with Stream(DictSink(values), attributes={"sample": 7}) as stream:
        stream.create("stage/position", (None, 2), "f4", (4, 2))
        stream.append({"stage/position": np.ones((3, 2), "f4")})
    group = open_group(DictSink(values))
    assert group["stage/position"].shape == (3, 2)
    tree = store_nodes.described(group, "run")
    assert tree["members"][0]["members"][0]["name"] == "position"


IMAGE = {"shape": (None, 16, 16), "dtype": "u2", "chunks": (1, 8, 8), "axes": "tyx", "levels": 2}


def test_images_plates_and_positions():
    """They are recorded, continued and read as in a folder."""
    values, block = {}, np.arange(3 * 256, dtype="u2").reshape(3, 16, 16)
    root = DictSink(values)
    with create_image(root.below("image"), **IMAGE) as writer:
        writer.append(block)
    with open_store(root.below("image"), "a") as writer:
        writer.append(block)
    image = open_store(root.below("image"))
    assert [level.shape for level in image.levels] == [(6, 16, 16), (6, 8, 8)]
    with image.labels.create("cells") as writer:
        writer.append(block.astype("u4"))
    assert np.array_equal(open_store(root.below("image")).labels["cells"].levels[0], block)
    with create_plate(root.below("plate"), "A", "12", **IMAGE) as plate:
        plate.field("A", "1", 0).append(block)
    with open_store(root.below("plate"), "a") as plate:
        plate["A", "1", 0].append(block)
    assert open_store(root.below("plate")).image("A", "1", 0).levels[0].shape == (6, 16, 16)
    with create_positions(root.below("run"), **IMAGE) as recording:
        recording.position("left").append(block)
    with open_store(root.below("run"), "a") as recording:
        recording["left"].append(block)
    positions = open_store(root.below("run"))
    assert np.array_equal(positions["left"].levels[0][3:], block)
    assert "left" in positions.ome_xml
    assert copy.copy(image) == image != positions["left"]
    for name, found in [("plate", "plate.image"), ("run", "positions"), ("image", "image.levels")]:
        with pytest.raises(TypeError, match=f"is not an array: {found}"):
            np.asarray(open_store(root.below(name)))
    with pytest.raises(TypeError, match="is not an array: group"):
        np.asarray(open_group(root.below("image")))
    with pytest.raises(WeftError, match="options are for a URL"):
        create_image(root.below("other"), **IMAGE, options={"region": "here"})


class FullSink(DictSink):
    """One that has room for a few shards."""

    def put(self, key, data):
        if key.startswith("c/") and sum(key.startswith("c/") for key in self.values) == 2:
            raise SinkError(f"{self.url}{key}: there is no room")
        super().put(key, data)


def test_its_errors_are_those_of_a_writer():
    sink = FullSink({})
    writer = create(sink, (None, 8, 8), "u2", (1, 8, 8))
    for number in range(3):
        writer.append(np.full((8, 8), number + 1, "u2"))
    with pytest.raises(WeftError, match=r"there is no room; [012] of 3 frames are safe"):
        writer.close()
    assert open_store(sink).read()[:, 0, 0].tolist() == [1, 2][: writer.safe]
