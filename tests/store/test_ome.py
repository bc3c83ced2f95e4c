"""Images and plates: metadata that others accept, levels that are what windows give."""

import json
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import yaozarrs
import zarr
from tests.store.ome_validators import is_accepted
from tests.store.windows import brute
from tests.trials import trials

from weft import WeftError, store
from weft.store import Crc32c, Zstd
from weft.store.hierarchy import read_group, sink_of, write_group
from weft.store.ome.image import create_image, open_image
from weft.store.ome.metadata import (
    VERSION,
    Acquisition,
    Axis,
    Dataset,
    FieldOfView,
    Multiscale,
    Plate,
    Well,
    WellPosition,
    as_axes,
)
from weft.store.ome.plate import create_plate, open_plate
from weft.store.pyramid.levels import BUFFERED, BUFFERS, Pyramid, buffer_size

CASES = trials(100, fewest=20)
KILLS = trials(3)


# -- what images say


def test_axes():
    axes = as_axes([Axis("t", unit="second"), "c", Axis("z", unit="micrometer"), "y", "x"])
    assert [axis.type for axis in axes] == ["time", "channel", "space", "space", "space"]
    assert as_axes(["phase", "y", "x"])[0].to_json() == {"name": "phase"}
    for given, message in [
        ("x", r"an image has 2 to 5 axes, got 1: \['x'\]"),
        ("tczyxw", "an image has 2 to 5 axes, got 6"),
        ("yyx", "two axes have the name 'y'"),
        ("cty", r"in the order time, channel, space, got \['channel', 'time', 'space'\]"),
        ("tx", "1 axes of space, where 2 to 3 can be"),
        (["t", Axis("u", "time"), "y", "x"], "2 axes of time, where at most 1 can be"),
        (["c", "other", "y", "x"], "2 axes of channel, where at most 1 can be"),
        (["", "y"], "name: '' is not a name of an axis"),
        ([Axis("y"), 3], "name: 3 is not a name of an axis"),
    ]:
        with pytest.raises(WeftError, match=message):
            as_axes(given)
    with pytest.warns(UserWarning, match="axis x: 'micron' is not a unit of space in OME-NGFF"):
        Axis("x", unit="micron")


def test_the_middle_of_a_window_is_where_its_elements_are():
    """The centres of level k's elements are the means of the coordinates they were made of."""
    image = Multiscale.of("zyx", (3.0, 0.5, 0.25), (1, 2, 3), 4, translation=(1.0, 10.0, -2.0))
    base = image.levels[0]
    for number, level in enumerate(image.levels):
        for axis, factor in enumerate((1, 2, 3)):
            size = factor**number
            for place in (0, 1, 5):
                inside = np.arange(place * size, (place + 1) * size)
                centre = np.mean(inside * base.scale[axis] + base.translation[axis])
                assert centre == pytest.approx(
                    place * level.scale[axis] + level.translation[axis], abs=1e-12
                )
    first = Multiscale.of("yx", (2.0, 2.0), (2, 2), 3, "first")
    assert [level.translation for level in first.levels] == [(0.0, 0.0)] * 3


def test_an_image_is_read_as_it_was_written():
    image = Multiscale.of(
        [Axis("t", unit="second"), "c", Axis("y", unit="micrometer"), "x"],
        (2, 1, 0.5, 0.5),
        (1, 1, 2, 2),
        3,
        "max",
        name="cells",
    )
    data = json.loads(json.dumps(image.to_json()))
    assert Multiscale.from_json(data) == image
    found = yaozarrs.v05.Image.model_validate(data).multiscales[0]
    assert [dataset.path for dataset in found.datasets] == ["0", "1", "2"]
    assert found.datasets[2].scale_transform.scale == [2.0, 1.0, 2.0, 2.0]
    assert found.datasets[2].translation_transform.translation == [0.0, 0.0, 0.75, 0.75]
    assert (found.name, found.type) == ("cells", "max")
    assert found.metadata["factors"] == [1, 1, 2, 2]


def test_common_transformations_are_applied_to_all_levels():
    data = Multiscale.of("yx", (1, 1), (2, 2), 2).to_json()
    data["multiscales"][0]["coordinateTransformations"] = [
        {"type": "scale", "scale": [10, 100]},
        {"type": "translation", "translation": [1, 2]},
    ]
    levels = Multiscale.from_json(data).levels
    assert [level.scale for level in levels] == [(10, 100), (20, 200)]
    assert [level.translation for level in levels] == [(1, 2), (6, 52)]


def image_data():
    return json.loads(json.dumps(Multiscale.of("yx", (1, 1), (2, 2), 2).to_json()))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], "0.3", "ome: versions 0.4 and 0.5 are supported, got '0.3'"),
        (["multiscales"], None, "multiscales: expected a list, got None"),
        (["multiscales"], [], r"multiscales\[0\]\.?:? ?axes: expected a list, got None"),
        (["multiscales", 0, "axes"], [], r"multiscales\[0\]: an image has 2 to 5 axes, got 0"),
        (
            ["multiscales", 0, "axes", 1],
            4,
            r"multiscales\[0\]\.axes\[1\]: axis: expected an object, got 4",
        ),
        (["multiscales", 0, "axes", 1, "name"], 4, r"axes\[1\]: name: expected text, got 4"),
        (["multiscales", 0, "datasets"], {}, "datasets: expected a list, got {}"),
        (["multiscales", 0, "datasets"], [], r"multiscales\[0\]: an image has no level"),
        (
            ["multiscales", 0, "datasets", 0, "path"],
            1,
            r"datasets\[0\]: path: expected text, got 1",
        ),
        (["multiscales", 0, "datasets", 0, "path"], "..", r"'\.\.' is not a path inside of"),
        (
            ["multiscales", 0, "datasets", 0, "path"],
            "/etc",
            "'/etc' is not a path inside of an image",
        ),
        (["multiscales", 0, "datasets", 0, "path"], "1", "two levels have one path"),
        (
            ["multiscales", 0, "datasets", 0, "coordinateTransformations"],
            [{"type": "translation"}],
            r"a scale, then perhaps a translation, got \['translation'\]",
        ),
        (
            ["multiscales", 0, "datasets", 0, "coordinateTransformations", 0, "scale"],
            [1, "a"],
            "scale: expected finite numbers, got 'a'",
        ),
        (
            ["multiscales", 0, "datasets", 0, "coordinateTransformations", 0, "scale"],
            [1, 0],
            "must be greater than 0",
        ),
        (
            ["multiscales", 0, "datasets", 1, "coordinateTransformations", 1, "translation"],
            [1],
            "a scale of 2 numbers, and a translation of 1",
        ),
        (
            ["multiscales", 0, "datasets", 0, "coordinateTransformations", 0, "scale"],
            [1, 1, 1],
            "level 0: 3 numbers for 2 axes",
        ),
        (
            ["multiscales", 0, "datasets", 0, "coordinateTransformations", 0, "scale"],
            [3, 3],
            "level 1 is finer than the one before it",
        ),
        (
            ["multiscales", 0, "coordinateTransformations"],
            [{"type": "scale", "scale": [1]}],
            "coordinateTransformations: 1 numbers for 2 axes",
        ),
        (["multiscales", 0, "metadata"], "x", "metadata: expected an object, got 'x'"),
    ],
)
def test_images_that_contradict_themselves_are_refused(path, value, message):
    data = image_data()
    inside = data
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(WeftError, match=message):
        Multiscale.from_json(data)


def test_levels_that_cannot_be_are_refused():
    with pytest.raises(WeftError, match="a scale of 2 numbers, and a translation of 1"):
        Dataset("0", (1.0, 1.0), (1.0,))
    with pytest.raises(WeftError, match="scale has 1 numbers for 2 axes"):
        Multiscale.of("yx", (1,), (2, 2), 2)
    with pytest.raises(WeftError, match="scale: expected finite numbers, got nan"):
        Multiscale.of("yx", (1, float("nan")), (2, 2), 2)
    with pytest.raises(WeftError, match="there is no 'multiscales', only"):
        Multiscale.from_json({"version": VERSION, "plate": {}})


# -- what plates and wells say


def a_plate(**more):
    runs = (Acquisition(0, "day 1", 4, starttime=1), Acquisition(3, "day 2", 4, endtime=5))
    wells = (WellPosition("A", "1"), WellPosition("B", "2"))
    return Plate(("A", "B"), ("1", "2", "3"), wells, runs, "screen", 4, **more)


def test_a_plate_is_read_as_it_was_written():
    plate, well = a_plate(), Well((FieldOfView("0", 0), FieldOfView("f1", 3)))
    for value in (plate, well):
        data = json.loads(json.dumps(value.to_json()))
        assert type(value).from_json(data) == value
    found = yaozarrs.v05.Plate.model_validate(plate.to_json()).plate
    assert [(w.path, w.rowIndex, w.columnIndex) for w in found.wells] == [
        ("A/1", 0, 0),
        ("B/2", 1, 1),
    ]
    assert [run.id for run in found.acquisitions] == [0, 3]
    images = yaozarrs.v05.Well.model_validate(well.to_json()).well.images
    assert [(image.path, image.acquisition) for image in images] == [("0", 0), ("f1", 3)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plate((), ("1",)), "rows: there are none"),
        (lambda: Plate(("A",), ("1_2",)), "columns: '1_2' is not a name of letters and digits"),
        (lambda: Plate(("Aa", "aA"), ("1",)), "rows: 'Aa' occurs twice, at least for file systems"),
        (lambda: Plate(("A",), ("1",), (WellPosition("B", "1"),)), "well B/1: there is no row 'B'"),
        (lambda: Plate(("A",), ("1",), (("A", "2"),)), "well A/2: there is no column '2'"),
        (lambda: Plate(("A",), ("1",), (("A", "1"),) * 2), "well A/1 is listed twice"),
        (
            lambda: Plate(("A",), ("1",), field_count=0),
            "field_count: expected an integer from 1 on, got 0",
        ),
        (lambda: Plate(("A",), ("1",), name=3), "name: expected text, got 3"),
        (
            lambda: Plate(("A",), ("1",), (), (Acquisition(1), Acquisition(1))),
            r"two have one id: \[1, 1\]",
        ),
        (lambda: Acquisition(-1), "id: expected an integer from 0 on, got -1"),
        (lambda: Acquisition(1, maximumfieldcount=0), "maximumfieldcount: expected an integer"),
        (lambda: Acquisition(1, starttime=1.5), r"starttime: expected an integer"),
        (lambda: Well(()), "images: there are none"),
        (lambda: Well((FieldOfView("a/b"),)), "images: 'a/b' is not a name of letters and digits"),
        (lambda: Well((FieldOfView("0"), FieldOfView("0"))), "images: '0' occurs twice"),
        (lambda: Well((FieldOfView("0", -1),)), "acquisition: expected an integer"),
    ],
)
def test_plates_that_cannot_be_are_refused(make, message):
    with pytest.raises(WeftError, match=message):
        make()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["plate", "rows", 0, "name"], "C", r"plate\.wells\[0\]: 'A/1' does not match its indices"),
        (["plate", "wells", 1, "rowIndex"], 2, r"wells\[1\]: B/2: row 2 of 2, column 1 of 3"),
        (
            ["plate", "wells", 1, "rowIndex"],
            "x",
            "rowIndex: expected an integer from 0 on, got 'x'",
        ),
        (["plate", "acquisitions", 1, "id"], None, r"acquisitions\[1\]: id: expected an integer"),
        (["plate", "columns"], 7, "plate: columns: expected a list, got 7"),
    ],
)
def test_plates_that_contradict_themselves_are_refused(path, value, message):
    data = json.loads(json.dumps(a_plate().to_json()))
    inside = data
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(WeftError, match=message):
        Plate.from_json(data)


# -- images that are streamed


AXES = {2: "yx", 3: "tyx", 4: "tcyx", 5: "tczyx"}


class Case:
    """A random image, and how it is streamed."""

    def __init__(self, seed):
        rng = self.rng = np.random.default_rng(seed)
        rank = int(rng.integers(2, 6))
        most = {2: 24, 3: 12, 4: 8, 5: 6}[rank]
        self.shape = tuple(int(n) for n in rng.integers(1, most + 1, rank))
        self.chunks = tuple(int(rng.integers(1, n + 2)) for n in self.shape)
        self.shards = tuple(c * int(rng.integers(1, 3)) for c in self.chunks)
        self.factors = tuple(int(f) for f in rng.integers(1, 4, rank))
        if max(self.factors) == 1:
            self.factors = (2,) * rank
        self.levels = int(rng.integers(1, 4))
        self.method = str(rng.choice(["mean", "min", "max", "median", "first", "mode"]))
        dtypes = ["uint8", "int16", "uint16", "bool", "float32"]
        self.dtype = str(rng.choice(dtypes[: 4 if self.method == "mode" else 5]))
        self.array = rng.integers(0, 256, self.shape).astype(self.dtype)
        self.given = (None, *self.shape[1:]) if rng.random() < 0.5 else self.shape

    def blocks(self):
        start = 0
        while start < self.shape[0]:
            count = int(self.rng.integers(1, self.shape[0] + 1))
            yield self.array[start : start + count]
            start += count

    def wanted(self):
        """Every level, by brute force from the one before."""
        found = [self.array]
        for _ in range(self.levels - 1):
            last = found[-1]
            shape = [-(-n // f) for n, f in zip(last.shape, self.factors)]
            made = brute(last, last.size, self.factors, self.method, self.dtype)
            found.append(made.reshape(shape))
        return found

    def write(self, path, **more):
        options = {
            "axes": AXES[len(self.shape)],
            "factors": self.factors,
            "levels": self.levels,
            "method": self.method,
        }
        with create_image(
            path, self.given, self.dtype, self.chunks, self.shards, **options | more
        ) as writer:
            for block in self.blocks():
                writer.append_rows(block)

    def __repr__(self):
        return (
            f"{self.method} of {self.dtype}{self.given} by {self.factors}, {self.levels} levels, "
            f"chunks {self.chunks} shards {self.shards}"
        )


def test_levels_equal_windows_reduced_by_hand(tmp_path):
    for seed in range(CASES):
        case = Case(seed)
        path = tmp_path / f"{seed}.zarr"
        case.write(path)
        assert is_accepted(path), f"seed {seed}: {case}"
        image, wanted = open_image(path), case.wanted()
        group = zarr.open_group(path, mode="r")
        assert len(image.levels) == len(wanted)
        for number, (level, array) in enumerate(zip(image.levels, wanted)):
            found = level.read()
            assert found.dtype == array.dtype
            assert np.array_equal(found, array), f"seed {seed}, level {number}: {case}"
            assert np.array_equal(group[str(number)][...], array), f"seed {seed}: {case}"


def test_levels_do_not_depend_on_blocks_buffers_and_flushes(tmp_path, monkeypatch):
    """Buffers of a few elements; frames, lines and batches; flushes in the middle of a frame."""
    rng = np.random.default_rng(5)
    array = rng.standard_normal((5, 9, 7)).astype("float32")
    whole = {"axes": "tyx", "factors": (2, 2, 2), "levels": 3}
    with create_image(tmp_path / "one", (None, 9, 7), "float32", (1, 4, 4), **whole) as writer:
        writer.append(array)
    monkeypatch.setattr("weft.store.pyramid.levels.BUFFERED", 4 * 17)
    with create_image(tmp_path / "two", (None, 9, 7), "float32", (1, 4, 4), **whole) as writer:
        writer.append(array[0])
        writer.append_rows(array[1, :4])
        writer.flush()
        writer.append_rows(array[1, 4:])
        writer.flush()
        writer.append(np.repeat(array[2:], 2, axis=2)[..., ::2])
    one, two = open_image(tmp_path / "one"), open_image(tmp_path / "two")
    for fine, coarse in zip(one.levels, two.levels):
        assert fine.read().tobytes() == coarse.read().tobytes()


def test_dimensions_that_arrive_in_another_order(tmp_path):
    """Planes arrive by z, then by time; z is reduced by 3, time not at all."""
    array = np.random.default_rng(8).integers(0, 999, (4, 7, 6, 5)).astype("uint16")
    for name, more in [("a", {"append_dim": 1}), ("b", {"axis_order": (1, 0, 3, 2)})]:
        path, dims = tmp_path / name, more.get("axis_order", (1, 0, 2, 3))
        with create_image(
            path,
            (4, None, 6, 5),
            "uint16",
            (1, 2, 4, 4),
            axes="tzyx",
            factors=(1, 3, 2, 1),
            levels=2,
            **more,
        ) as writer:
            for planes in array.transpose(dims):
                writer.append(planes[None])
        fine, coarse = open_image(path).levels
        assert np.array_equal(fine.read(), array)
        wanted = brute(array, array.size, (1, 3, 2, 1), "mean", "uint16")
        assert np.array_equal(coarse.read(), wanted.reshape(4, 3, 3, 5))


def test_numbers_that_numpy_has_not(tmp_path):
    """bfloat16 is reduced as numbers, whether it comes as such or as bits."""
    values = np.arange(16, dtype="float32").reshape(4, 4)
    bits = np.right_shift(values.view("uint32"), 16).astype("uint16")
    for block in (values.astype(ml_dtypes.bfloat16), bits):
        with create_image(
            tmp_path / "a", (4, 4), "bfloat16", (4, 4), axes="yx", levels=2, overwrite=True
        ) as writer:
            writer.append_rows(block)
        coarse = open_image(tmp_path / "a").levels[1].read().view(ml_dtypes.bfloat16)
        assert coarse.astype("float32").tolist() == [[2.5, 4.5], [10.5, 12.5]]


def test_an_incomplete_frame_is_padded_with_the_fill_value(tmp_path):
    array = np.arange(1, 33, dtype="uint8").reshape(2, 4, 4)
    options = {"axes": "tyx", "levels": 2, "chunks": (1, 2, 2)}
    with create_image(tmp_path / "a", (None, 4, 4), "uint8", **options) as writer:
        writer.append(array[0])
        writer.append_rows(array[1, :3])
    fine, coarse = open_image(tmp_path / "a").levels
    assert fine.read()[1].tolist() == [*array[1, :3].tolist(), [0] * 4]
    assert coarse.read().tolist() == [[[4, 6], [12, 14]], [[20, 22], [26, 28]]]


def test_a_stream_that_ends_early_is_shown_as_far_as_it_came(tmp_path):
    with create_image(
        tmp_path / "a", (None, 4, 4), "uint16", (2, 4, 4), axes="tyx", factors=(2, 2, 2), levels=3
    ) as writer:
        assert is_accepted(tmp_path / "a"), "an image of nothing"
        for _ in range(5):
            writer.append(np.full((4, 4), 7, "uint16"))
            assert is_accepted(tmp_path / "a")
        assert writer.shape == (5, 4, 4)
    shapes = [level.shape for level in open_image(tmp_path / "a").levels]
    assert shapes == [(5, 4, 4), (3, 2, 2), (2, 1, 1)]


def test_images_are_continued(tmp_path):
    """Cut anywhere, a stream gives the levels that it gives in one go."""
    for seed in range(100, 100 + CASES // 2):
        case = Case(seed)
        case.given = (None, *case.shape[1:])
        path, rows = tmp_path / f"{seed}", case.shape[0]
        cut = sorted(int(n) for n in case.rng.integers(0, rows + 1, 2))
        array, case.array = case.array, case.array[: cut[0]]
        case.blocks = lambda case=case: [case.array]
        case.write(path)
        for start, stop in [(cut[0], cut[1]), (cut[1], rows)]:
            with open_image(path, mode="a") as writer:
                assert writer.shape[0] == start
                writer.append(array[start:stop])
            assert is_accepted(path)
        case.array = array
        for number, (level, wanted) in enumerate(zip(open_image(path).levels, case.wanted())):
            assert np.array_equal(level.read(), wanted), f"seed {seed}, level {number}: {case}"
            level.verify()


RECORDING = """
import sys, time
import numpy as np
from weft.store import Zstd
from weft.store.ome.image import create_image

with create_image(
    sys.argv[1], (None, 40, 48), "uint16", (4, 16, 16), (8, 32, 32), codecs=[Zstd(1)], axes="tyx",
    factors=(2, 2, 2), levels=3,
) as writer:
    for row in range(int(sys.argv[2])):
        writer.append(np.random.default_rng(row).integers(0, 50, (1, 40, 48)).astype("uint16"))
        time.sleep(0.0005)
    time.sleep(float(sys.argv[3]))
"""


@pytest.mark.slow
def test_an_image_whose_writer_is_killed_is_continued(tmp_path):
    array = np.concatenate(
        [np.random.default_rng(n).integers(0, 50, (1, 40, 48)).astype("uint16") for n in range(200)]
    )
    wanted = [array, *(by_means(array, n) for n in (1, 2))]
    rng, seen = np.random.default_rng(1), set()
    for number in range(KILLS):
        path = tmp_path / f"a{number}"
        begun, rows = path / "0" / "zarr.json", int(rng.integers(8, 100)) * (number > 0)
        some = [str(path), str(rows + 50), "600"]  # it does not end before it is killed
        process = subprocess.Popen([sys.executable, "-c", RECORDING, *some])
        group = path / "zarr.json"
        while not (begun.exists() and group.exists() and '"ome"' in group.read_text()):
            time.sleep(0.002)
        while process.poll() is None and json.loads(begun.read_text())["shape"][0] < rows:
            time.sleep(0.002)
        process.kill()
        process.wait()
        assert is_accepted(path)
        with open_image(path, mode="a") as writer:
            rows = writer.shape[0]
            seen.add(rows)
            writer.append(array[rows:])
        for level, values in zip(open_image(path).levels, wanted):
            level.verify()
            assert np.array_equal(level.read(), values)
    assert len(seen) > 1


def by_means(array, times):
    for _ in range(times):
        t, y, x = array.shape
        split = array.astype(int).reshape(t // 2, 2, y // 2, 2, x // 2, 2)
        array = (split.sum(axis=(1, 3, 5)) + 4) // 8
    return array


def test_images_that_cannot_be_continued_are_refused(tmp_path):
    path = tmp_path / "a"
    with create_image(path, (None, 8, 8), "uint8", (1, 4, 4), axes="tyx", levels=2) as writer:
        with pytest.raises(WeftError, match="is locked by another writer"):
            open_image(path, mode="a")
        writer.append(np.ones((3, 8, 8), "uint8"))
    assert open_image(path).levels[1].read().tolist() == [[[1] * 4] * 4] * 3
    with pytest.raises(WeftError, match="mode is 'r' or 'a', got 'w'"):
        open_image(path, mode="w")
    said = read_group(sink_of(path))["ome"]
    del said["multiscales"][0]["metadata"]
    write_group(sink_of(path), {"ome": said})
    with pytest.raises(WeftError, match="do not say how its levels"):
        open_image(path, mode="a")


def test_chunks_and_shards_are_not_larger_than_a_level(tmp_path):
    with create_image(
        tmp_path / "a", (None, 300, 200), "uint8", (4, 64, 64), (8, 128, 256), axes="tyx"
    ) as writer:
        pass
    found = [(w.metadata.shape, w.metadata.chunks, w.metadata.shards) for w in writer.levels]
    assert found == [
        ((0, 300, 200), (4, 64, 64), (8, 128, 256)),
        ((0, 150, 100), (4, 64, 64), (8, 128, 128)),
        ((0, 75, 50), (4, 64, 50), (8, 128, 50)),
        ((0, 38, 25), (4, 38, 25), (8, 38, 25)),
    ]


def test_the_finest_level_has_the_given_chunks(tmp_path):
    with create_image(tmp_path / "a", (5, 6), "uint8", (8, 8), (16, 8), axes="yx", levels=2) as w:
        found = [(level.metadata.chunks, level.metadata.shards) for level in w.levels]
    assert found == [((8, 8), (16, 8)), ((3, 3), (3, 3))]


def test_metadata_of_an_image(tmp_path):
    with create_image(
        tmp_path / "a.zarr",
        (2, 8, 8),
        "uint8",
        (1, 4, 4),
        axes=[Axis("t", unit="second"), Axis("y", unit="micrometer"), Axis("x", unit="micrometer")],
        scale=(0.1, 0.65, 0.65),
        translation=(0.0, 100.0, 200.0),
        levels=2,
        attributes={"microscope": {"objective": 20}},
        codecs=[Zstd(1)],
        fill_value=3,
    ):
        pass
    assert read_group(sink_of(tmp_path / "a.zarr"))["microscope"] == {"objective": 20}
    image = open_image(tmp_path / "a.zarr")
    assert image.metadata.name == "a.zarr"
    assert [axis.unit for axis in image.axes] == ["second", "micrometer", "micrometer"]
    assert image.scales == ((0.1, 0.65, 0.65), (0.1, 1.3, 1.3))
    assert image.translations == ((0.0, 100.0, 200.0), (0.0, 100.325, 200.325))
    for level in image.levels:
        assert level.metadata.dimension_names == ("t", "y", "x")
        assert level.metadata.fill == 3
        assert level.metadata.codecs == (Zstd(1), Crc32c())


def test_memory_is_bounded(tmp_path):
    """What is held does not grow with what came, and is known before."""
    with create_image(
        tmp_path / "a", (None, 512, 512), "uint16", (1, 256, 256), axes="tyx", levels=4
    ) as writer:
        before = writer.memory()
        assert before > sum(level.memory() for level in writer.levels)
        assert before < sum(level.memory() for level in writer.levels) + 8 * BUFFERED
        for _ in range(40):
            writer.append(np.zeros((512, 512), "uint16"))
            assert writer._pyramid.waiting <= 4
        assert writer.memory() == before


def test_buffers_hold_whole_windows():
    for shape, factors in [
        ((None, 2048, 2048), (1, 2, 2)),
        ((None, 3, 5), (7, 2, 2)),
        ((9,), (2,)),
    ]:
        size = buffer_size(shape, factors, 2)
        assert 2 * size <= BUFFERED
        assert size % factors[-1] == 0 or size % shape[-1] == 0
    assert buffer_size((None, 1 << 30), (1, 3), 1) == BUFFERED - BUFFERED % 3


class Slow:
    """A level that takes its time, or fails."""

    sink = None

    def __init__(self, error=None):
        self.error, self.go, self.blocks = error, threading.Event(), []

    def append_rows(self, block):
        assert self.go.wait(300)
        if self.error is not None:
            raise self.error
        self.blocks.append(block)


def test_taking_does_not_wait_for_the_reduction(monkeypatch):
    monkeypatch.setattr("weft.store.pyramid.levels.BUFFERED", 8)
    level = Slow()
    pyramid = Pyramid((None, 4), (2, 2), "max", "uint8", [level])
    for _ in range(BUFFERS):
        pyramid.append(np.ones((2, 4), "uint8"))
    assert not level.blocks, "nothing was written so far"
    level.go.set()
    pyramid.drain()
    assert sum(map(len, level.blocks)) == BUFFERS
    pyramid.close()


def test_the_failure_of_a_level_is_raised(monkeypatch):
    monkeypatch.setattr("weft.store.pyramid.levels.BUFFERED", 8)
    level = Slow(OSError("no space left"))
    level.go.set()
    pyramid = Pyramid((None, 4), (2, 2), "max", "uint8", [level])
    for _ in range(20):  # buffers go around, whatever happens to their elements
        pyramid.append(np.ones((2, 4), "uint8"))
    with pytest.raises(WeftError, match="a coarser level failed: no space left"):
        pyramid.drain()
    with pytest.raises(WeftError, match="a coarser level failed: no space left"):
        pyramid.check()
    pyramid.close()  # it was said


def test_an_image_whose_level_fails_keeps_its_finest(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.store.pyramid.levels.BUFFERED", 64)
    frame = np.ones((8, 8), "uint8")
    writer = create_image(tmp_path / "a", (None, 8, 8), "uint8", (1, 8, 8), axes="tyx", levels=2)
    writer.append(frame)
    writer.flush()

    def fail(block):
        raise OSError("no space left")

    monkeypatch.setattr(writer.levels[1], "append_rows", fail)
    writer.append(frame)
    with pytest.raises(WeftError, match="a coarser level failed: no space left"):
        writer.flush()
    with pytest.raises(WeftError, match="a coarser level failed: no space left"):
        writer.append(frame)
    writer.close()
    fine, coarse = open_image(tmp_path / "a").levels
    assert (fine.shape, coarse.shape) == ((2, 8, 8), (1, 4, 4))
    assert is_accepted(tmp_path / "a")


def test_invalid_images_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "a"

    def make(shape=(4, 8, 8), dtype="uint8", axes="tyx", **more):
        return create_image(path, shape, dtype, (1, 4, 4), axes=axes, **more)

    for arguments, message in [
        ({"axes": "yx"}, "factors has 3 numbers for 2 axes"),
        ({"factors": (2, 2)}, "2 factors for 3 dimensions"),
        ({"factors": (2, 2, 0)}, "dimension 2 is reduced by 0"),
        ({"factors": (1, 1, 1), "levels": 2}, "reduce nothing"),
        ({"levels": 0}, "levels: expected an integer from 1 on, got 0"),
        ({"method": "sum"}, "'sum' is not a way to reduce"),
        ({"dtype": "complex64", "method": "max"}, "complex64 numbers have no max"),
        ({"scale": (1, 1)}, "scale has 2 numbers for 3 axes"),
        ({"shape": (4, 8)}, "must have one rank"),
        ({"append_dim": 3}, "append_dim: there is no dimension 3 of 3"),
        (
            {"axis_order": (0, 1, 1)},
            r"axis_order: \[0, 1, 1\] is not a permutation of 3 dimensions",
        ),
    ]:
        with pytest.raises(WeftError, match=message):
            make(**arguments)
        assert not path.exists(), arguments
    with make() as writer:
        with pytest.raises(WeftError, match="the array holds uint8, and the block int64"):
            writer.append(np.zeros((1, 8, 8), int))
        writer.append(np.zeros((1, 8, 8), "uint8"))
    with pytest.raises(WeftError, match="closed"):
        writer.append(np.zeros((1, 8, 8), "uint8"))
    with pytest.raises(WeftError, match="holds an image already"):
        make()
    assert len(open_image(path).levels) == 2
    with make(overwrite=True, levels=1) as writer:
        assert is_accepted(path)
    assert len(open_image(path).levels) == 1
    assert not (path / "1" / "zarr.json").exists(), "a level that is not listed is removed"


def test_groups_that_are_none_are_refused(tmp_path):
    for text, message in [
        (None, "there is no Zarr group at .*: it has no zarr.json"),
        ("{", "is not JSON"),
        ("[]", "is not of Zarr v3"),
        ('{"zarr_format": 3, "node_type": "array"}', "is a Zarr 'array', not a group"),
        (
            '{"zarr_format": 3, "node_type": "group", "attributes": 3}',
            "attributes: expected an object, got 3",
        ),
        ('{"zarr_format": 3, "node_type": "group"}', "is not an OME-NGFF group"),
    ]:
        if text is not None:
            (tmp_path / "zarr.json").write_text(text)
        with pytest.raises(WeftError, match=message):
            open_image(tmp_path)


def test_levels_that_do_not_fit_their_axes_are_refused(tmp_path):
    with create_image(tmp_path / "a", (4, 8, 8), "uint8", (1, 4, 4), axes="tyx", levels=1):
        pass
    for axes, message in [
        ("yx", "level 0 has rank 3, and axes are"),
        ("cyx", "level 0 has dimensions"),
    ]:
        ome = Multiscale.of(axes, None, (1,) * len(axes), 1).to_json()
        write_group(sink_of(tmp_path / "a"), {"ome": ome})
        with pytest.raises(WeftError, match=message):
            open_image(tmp_path / "a")


# -- plates that are streamed


IMAGE = {"shape": (None, 8, 8), "dtype": "uint8", "chunks": (1, 8, 8), "axes": "tyx", "levels": 2}


def test_a_plate_is_valid_at_every_moment(tmp_path):
    path = tmp_path / "p.zarr"
    runs = [Acquisition(0, "first"), Acquisition(1, "second")]
    with create_plate(path, "ABC", ["1", "2"], acquisitions=runs, name="screen", **IMAGE) as plate:
        places = [("B", "2", 0), ("B", "2", 1), ("A", "2", 0), ("B", "1", 7)]
        for value, (row, column, field) in enumerate(places, 1):
            image = plate.field(row, column, field, acquisition=field % 2)
            assert is_accepted(path)
            image.append(np.full((1, 8, 8), value, "uint8"))
            assert is_accepted(path)
        assert plate.memory() <= sum(image.memory() for image in plate.images.values())
        before = plate.memory()
        image.close()
        assert 0 < plate.memory() < before, "what is closed holds nothing"
    assert is_accepted(path)
    found = open_plate(path)
    assert found.plate.wells == (("B", "2"), ("A", "2"), ("B", "1"))
    assert found.plate.field_count == 2
    assert found.well("B", "2").fields == (("0", 0), ("1", 1))
    assert found.image("B", "1", 7).levels[1].read().tolist() == [[[4] * 4] * 4]
    assert found.image("B", "1", "7").metadata.name == "B/1/7"
    assert not (path / "C").exists(), "a row without images is no group"
    root = zarr.open_group(path, mode="r")
    assert root["B/2/1/0"][...].max() == 2
    for wrong, message in [
        (lambda: found.well("C", "1"), "has no well C/1"),
        (lambda: found.image("A", "2", 3), r"well A/2 has no field 3, only \['0'\]"),
    ]:
        with pytest.raises(WeftError, match=message):
            wrong()


def test_fields_that_cannot_be_are_refused(tmp_path):
    runs = [Acquisition(0), Acquisition(1)]
    path = tmp_path / "p"
    with create_plate(path, "A", "12", acquisitions=runs, field_count=1, **IMAGE) as plate:
        for arguments, message in [
            (("B", "1", 0, 0), "well B/1: there is no row 'B'"),
            (("A", "3", 0, 0), "well A/3: there is no column '3'"),
            (("A", "1", "a b", 0), "field: 'a b' is not a name of letters and digits"),
            (("A", "1", 0, None), r"field A/1/0 needs an acquisition, one of \[0, 1\]"),
            (("A", "1", 0, 2), r"there is no acquisition 2, only \[0, 1\]"),
        ]:
            with pytest.raises(WeftError, match=message):
                plate.field(*arguments[:3], acquisition=arguments[3])
            assert not (path / "A").exists()
        plate.field("A", "1", 0, acquisition=1, dtype="float32", levels=1)
        with pytest.raises(WeftError, match="field A/1/0 exists already"):
            plate.field("A", "1", 0, acquisition=1)
        with pytest.raises(WeftError, match="the well has 1 fields, its field_count"):
            plate.field("A", "1", 1, acquisition=1)
    assert open_plate(path).image("A", "1", 0).levels[0].metadata.dtype == "float32"
    with pytest.raises(WeftError, match="holds a plate already"):
        create_plate(path, "A", "1", **IMAGE)
    with create_plate(path, "A", "1", overwrite=True, **IMAGE) as plate:
        plate.field("A", "1", 0)
        assert is_accepted(path)


def test_open_recognises_images_and_plates(tmp_path):
    image = {"shape": (None, 4, 4), "dtype": "uint8", "chunks": (1, 4, 4), "axes": "tyx"}
    with create_image(tmp_path / "a", **image) as writer:
        writer.append(np.ones((4, 4), "uint8"))
    with store.open(tmp_path / "a", mode="a") as writer:
        assert isinstance(writer, store.ImageWriter)
        writer.append(np.ones((4, 4), "uint8"))
    found = store.open(tmp_path / "a")
    assert isinstance(found, store.Image)
    assert found.levels[0].shape == (2, 4, 4)
    assert isinstance(store.open(tmp_path / "a" / "0"), store.Array)
    with create_plate(tmp_path / "p", "A", "1", **image) as plate:
        plate.field("A", "1", 0).append(np.ones((4, 4), "uint8"))
    assert store.open(tmp_path / "p").plate.wells == (WellPosition("A", "1"),)
    with store.open(tmp_path / "p", mode="a") as plate:
        plate["A", "1", 0].append(np.ones((4, 4), "uint8"))
    assert store.open(tmp_path / "p").image("A", "1", 0).levels[0].shape == (2, 4, 4)
    write_group(sink_of(tmp_path / "g"), {})
    assert isinstance(store.open(tmp_path / "g"), store.Group)
    with pytest.raises(WeftError, match="mode is 'r' or 'a', got 'w'"):
        store.open(tmp_path / "a", mode="w")
