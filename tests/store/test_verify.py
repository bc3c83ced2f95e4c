"""Checksums by default, and `verify`: what it finds, and what it says it has checked."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.store.readers import read_by_tensorstore, read_by_weft, read_by_zarr, read_by_zarrs
from tests.trials import trials

from weft import WeftError
from weft.space import ZRange
from weft.store import (
    Blosc,
    Crc32c,
    Gzip,
    IntegrityError,
    Lz4,
    Stream,
    Zstd,
    create,
    create_image,
    create_plate,
    create_shards,
    open_image,
)
from weft.store import (
    open as open_store,
)
from weft.store.shard import Index, index_size

DATA = np.random.default_rng(0).integers(0, 99, (20, 30)).astype("uint16")
FAMILIES = {
    "none": (),
    "zstd": "zstd",
    "gzip": "gzip",
    "lz4": "lz4",
    "blosc-lz4": "blosc-lz4",
    "blosc-zstd": "blosc-zstd",
    "blosc-bitshuffle": Blosc("lz4", 5, "bitshuffle"),
    "blosc-zlib": Blosc("zlib", 1, "noshuffle"),
    "blosclz": Blosc("blosclz", 3, "shuffle"),
    "two": [Zstd(1), Gzip(1)],
}

FLIPS = trials(60, fewest=15)
"""Damaged bits, one at a time."""


def stored(path, codecs="zstd", **more):
    """Forty chunks in six shards."""
    with create(path, (20, 30), "uint16", (4, 4), (8, 16), codecs=codecs, **more) as writer:
        writer.append(DATA)
    return open_store(path)


def shards(path):
    return sorted(file for file in (path / "c").rglob("*") if file.is_file())


def findings(path):
    try:
        return open_store(path).verify().findings
    except IntegrityError as error:
        return error.verification.findings


@pytest.mark.parametrize("codecs", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("location", ["start", "end"])
def test_any_flipped_bit_is_found(tmp_path, codecs, location):
    """Bits in chunks, indexes and checksums: a finding for each, and no other numbers read."""
    array = stored(tmp_path / "a", codecs, index_location=location)
    found = array.verify()
    assert (found, found.matched, found.decoded, found.shards, found.absent) == (40, 40, 0, 6, 0)
    rng, files = np.random.default_rng(0), shards(tmp_path / "a")
    for _ in range(FLIPS):
        file = files[int(rng.integers(len(files)))]
        good = file.read_bytes()
        damaged = bytearray(good)
        damaged[int(rng.integers(len(good)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        (finding,) = findings(tmp_path / "a")
        assert finding.startswith(f"{file}: "), finding
        with pytest.raises(WeftError):
            open_store(tmp_path / "a").read()
        file.write_bytes(good)
    assert findings(tmp_path / "a") == ()


@pytest.mark.parametrize("codecs", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("shape", [(8, 16), (4, 4)], ids=["sharded", "alone"])
def test_all_readers_read_arrays_with_checksums(tmp_path, codecs, shape):
    writer = create_shards(tmp_path / "a", (20, 30), "uint16", (4, 4), shape, codecs=codecs)
    writer.write(ZRange.of((20, 30)), DATA)
    assert writer.metadata.codecs[-1] == Crc32c()
    others = [] if codecs == "lz4" else [read_by_zarr, read_by_tensorstore, read_by_zarrs]
    for read in (read_by_weft, *others):
        assert np.array_equal(read(tmp_path / "a"), DATA), read
    assert writer.reader().verify().matched == 40


def test_without_checksums_chunks_are_only_decoded(tmp_path):
    array = stored(tmp_path / "a", "zstd", checksum=False)
    assert array.metadata.codecs == (Zstd(1),)
    found = array.verify()
    assert (found, found.matched, found.decoded) == (40, 0, 40)
    assert found.text == "40 chunks in 6 shards: 40 have no checksum and were only decoded"
    assert "only decoded" in repr(found)
    assert f"{found}" == "40"
    assert pickle.loads(pickle.dumps(found)).text == found.text
    zarr.create_array(
        tmp_path / "z", shape=(20, 30), chunks=(4, 4), shards=(20, 32), dtype="uint16"
    )[...] = DATA
    assert open_store(tmp_path / "z").verify().decoded == 40


def test_codecs_that_have_a_checksum_get_no_second_one(tmp_path):
    for number, codecs in enumerate([[Crc32c()], [Crc32c(), Zstd(1)], [Gzip(1), Crc32c()]]):
        array = stored(tmp_path / f"{number}", codecs)
        assert list(array.metadata.codecs) == codecs
        assert array.verify().matched == 40


def test_every_way_to_make_an_array_gives_it_checksums(tmp_path):
    form = (None, 20, 30), "uint16", (1, 10, 10), (2, 20, 30)
    arrays = []
    with create_image(tmp_path / "image", *form, axes="tyx", levels=2) as image:
        image.append(DATA)
    arrays += open_image(tmp_path / "image").levels
    names = ("shape", "dtype", "chunks", "shards")
    image = dict(zip(names, form), axes="tyx", levels=2)
    with (
        create_plate(tmp_path / "plate", "A", "1", **image) as plate,
        plate.field("A", "1", 0) as field,
    ):
        field.append(DATA)
    arrays += open_image(tmp_path / "plate/A/1/0").levels
    with Stream(tmp_path / "stream") as stream:
        stream.create("camera", *form)
        stream.append({"camera": DATA})
    arrays.append(open_store(tmp_path / "stream/camera"))
    for array in arrays:
        found = array.verify()
        assert found.matched == found > 0, array
    with create_image(tmp_path / "b", *form, axes="tyx", levels=2, checksum=False) as image:
        image.append(DATA)
    assert [level.verify().matched for level in open_image(tmp_path / "b").levels] == [0, 0]


def test_a_continued_array_keeps_its_metadata(tmp_path):
    for checksum in (True, False):
        path = tmp_path / str(checksum)
        with create(
            path, (None, 30), "uint16", (4, 4), (8, 16), frame_ndim=1, checksum=checksum
        ) as writer:
            writer.append(DATA[:13])
        with open_store(path, mode="a") as writer:
            writer.append(DATA[13:])
        array = open_store(path)
        found = array.verify()
        assert (found.matched, found.decoded) == ((40, 0) if checksum else (0, 40))
        assert np.array_equal(array.read(), DATA)


def test_missing_torn_and_longer_shards_are_found(tmp_path):
    stored(tmp_path / "a", index_location="start")
    file = tmp_path / "a/c/1/0"
    good = file.read_bytes()
    for damaged, message in [
        (None, "the shard is missing: it was not written, or was lost"),
        (good[:100], r"it has 100 B, and its index alone \(8 chunks\) 132 B"),
        (good[:-1], "the index places it at"),
        (b"", "it has 0 B, and its index"),
        (good + b"?", rf"{len(good) + 1} B, and its chunks and its index have {len(good)} B"),
    ]:
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=message) as caught:
            open_store(tmp_path / "a").verify()
        assert "c/1/0: " in str(caught.value)
        assert caught.value.verification.faults == 1
    file.unlink()
    assert not open_store(tmp_path / "a").read(ZRange((8, 0), (16, 16))).any(), "as Zarr has it"
    file.mkdir()
    with pytest.raises(IntegrityError, match="cannot be read"):
        open_store(tmp_path / "a").verify()


def test_chunks_that_share_bytes_are_found(tmp_path):
    stored(tmp_path / "a")
    file = tmp_path / "a/c/1/0"
    good = file.read_bytes()
    index = Index.parse(good[-index_size(8) :], 8)
    index.offsets[3], index.sizes[3] = index.offsets[2], index.sizes[2]
    file.write_bytes(good[: -index_size(8)] + index.to_bytes())
    with pytest.raises(IntegrityError, match=r"chunk [23], .* it lies at .*: they overlap"):
        open_store(tmp_path / "a").verify()


def test_several_findings_are_listed_and_counted(tmp_path):
    stored(tmp_path / "a")
    for file in shards(tmp_path / "a")[:3]:
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"checksum mismatch.*; and 2 more findings") as caught:
        open_store(tmp_path / "a").verify()
    error = caught.value
    assert len(error.verification.findings) == error.verification.faults == 3
    assert error.verification.text == "40 chunks in 6 shards: 37 match their checksums; 3 findings"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.verification.findings) == (str(error), error.verification.findings)


def test_shards_that_others_leave_out_are_no_finding(tmp_path):
    """zarr-python does not store shards of fill value, and which those were is unknown."""
    array = zarr.create_array(
        tmp_path / "a", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="uint8", fill_value=0
    )
    array[:4, :4] = 1
    found = open_store(tmp_path / "a").verify()
    assert (found, found.shards, found.absent) == (4, 1, 3)
    assert found.text.endswith("4 have no checksum and were only decoded; 3 shards are not stored")


def test_shards_of_fill_value_are_stored_and_missed(tmp_path):
    with create(tmp_path / "a", (None, 8, 8), "uint8", (1, 4, 4), (2, 8, 8)) as writer:
        writer.append(np.zeros((5, 8, 8), "uint8"))
    found = open_store(tmp_path / "a").verify()
    assert (found, found.shards, found.absent) == (0, 3, 0)
    (tmp_path / "a/c/2/0/0").unlink()
    assert "c/2/0/0: shard [4:6, 0:8, 0:8]: the shard is missing" in findings(tmp_path / "a")[0]


def test_only_frames_that_were_written_are_missed(tmp_path):
    """Of a row that is not whole, the shards of frames that never came may be absent."""
    shape = (None, 4, 8, 8)
    with create(tmp_path / "a", shape, "uint8", (1, 1, 4, 4), (1, 1, 8, 8)) as writer:
        writer.append(np.ones((2, 4, 8, 8), "uint8"))
        writer.append(np.ones((2, 8, 8), "uint8"))
    found = open_store(tmp_path / "a").verify()
    assert (found, found.shards, found.absent) == (40, 10, 2)
    (tmp_path / "a/c/2/1/0/0").unlink()
    (finding,) = findings(tmp_path / "a")
    assert "c/2/1/0/0: " in finding


def test_far_more_shards_than_files_are_listed_and_not_counted_through(tmp_path):
    stored(tmp_path / "a")
    said = json.loads((tmp_path / "a/zarr.json").read_text())
    for shape in ([1 << 24, 30], [1 << 62, 1 << 40]):
        said["shape"] = shape
        (tmp_path / "a/zarr.json").write_text(json.dumps(said))
        total = -(-shape[0] // 8) * -(-shape[1] // 16)
        with pytest.raises(WeftError) as caught:
            open_store(tmp_path / "a").verify()
        if isinstance(caught.value, IntegrityError):
            found = caught.value.verification
            assert (found.shards, found.matched, found.absent) == (6, 40, total - 6)
            assert found.faults == total - 6
            assert len(found.findings) == 100
        else:
            assert f"{total} shards cannot be counted" in str(caught.value)
    said["shape"], said["attributes"] = [1 << 24, 30], {}
    (tmp_path / "a/zarr.json").write_text(json.dumps(said))
    found = open_store(tmp_path / "a").verify()
    assert (found.shards, found.absent, found.faults) == (6, (1 << 22) - 6, 0)


def test_frames_of_another_size_are_refused(tmp_path):
    """A frame that decodes to fewer bytes than a chunk would leave the rest to chance."""
    for codec in (Zstd(1), Gzip(1), Lz4(), Blosc("lz4", 5, "shuffle", 2)):
        for size in (0, 2, 30, 34, 4096):
            path = tmp_path / f"{codec.name}{size}"
            create_shards(path, (4, 4), "uint16", (4, 4), codecs=[codec], checksum=False).write(
                ZRange.of((4, 4)), np.ones((4, 4), "uint16")
            )
            (path / "c/0/0").write_bytes(codec.encode(bytes(size)))
            for look in (open_store(path).read, open_store(path).verify):
                with pytest.raises(WeftError, match=r"c/0/0: chunk 0, \[0:4, 0:4\]: "):
                    look()


def test_boxes_beyond_memory_are_refused(tmp_path):
    stored(tmp_path / "a")
    said = json.loads((tmp_path / "a/zarr.json").read_text())
    for shape in ([1 << 44, 1 << 10], [1 << 62, 1 << 62]):
        (tmp_path / "a/zarr.json").write_text(json.dumps(said | {"shape": shape}))
        with pytest.raises(WeftError, match=r"not enough memory for the [0-9]+ B of"):
            open_store(tmp_path / "a").read()


def test_a_copy_does_not_inherit_the_attributes_of_weft(tmp_path):
    with create(tmp_path / "a", (4, 6), "uint8", (2, 2), axis_order=(1, 0)) as writer:
        writer.append(np.ones((6, 4), "uint8"))
    said = open_store(tmp_path / "a").metadata.attributes
    made = create_shards(tmp_path / "b", (4, 6), "uint8", (2, 2), attributes={**said, "n": 1})
    assert made.metadata.attributes == {"n": 1, "weft": {"every_shard_stored": True}}
    assert Path(tmp_path / "b/zarr.json").exists()
