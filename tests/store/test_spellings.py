"""Data types, codecs and shapes as NumPy, zarr-python and numcodecs spell them."""

import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs as zarr_codecs

from weft.errors import WeftError
from weft.store import Blosc, Crc32c, Gzip, Zstd, create, create_image, create_shards
from weft.store import open as open_store


@pytest.mark.parametrize(
    "spelling",
    ["u2", "<u2", ">u2", "uint16", "H", np.uint16, np.dtype("u2"), np.dtype(">u2")],
    ids=repr,
)
def test_data_types_of_numpy(tmp_path, spelling):
    data = np.arange(600, dtype=np.dtype(spelling)).reshape(3, 10, 20)
    with create(tmp_path / "a", (None, 10, 20), spelling, (1, 4, 8), (2, 8, 16)) as writer:
        writer.append(data)
    array = open_store(tmp_path / "a")
    assert array.metadata.dtype == "uint16"
    assert np.array_equal(array.read(), data)
    assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], data)


@pytest.mark.parametrize("spelling", ["u3", "S4", "M8[s]", object, "nothing", None, "f16"])
def test_data_types_that_cannot_be_stored(tmp_path, spelling):
    with pytest.raises(WeftError, match="cannot be stored in Zarr v3"):
        create(tmp_path / "a", (None, 4), spelling, (1, 4))
    assert not (tmp_path / "a").exists()


CODECS = [
    (zarr_codecs.ZstdCodec(level=3, checksum=True), Zstd(3, checksum=True)),
    (zarr_codecs.GzipCodec(level=4), Gzip(4)),
    (zarr_codecs.BloscCodec(), Blosc("zstd", 5, "shuffle", 2)),
    (zarr_codecs.BloscCodec(cname="lz4", clevel=3, shuffle="bitshuffle"),
     Blosc("lz4", 3, "bitshuffle", 2)),
    (zarr_codecs.BloscCodec(cname="lz4", typesize=1), Blosc("lz4", 5, "shuffle", 1)),
    (numcodecs.Zstd(level=3), Zstd(3)),
    (numcodecs.GZip(level=2), Gzip(2)),
    (numcodecs.Blosc("lz4", 3, numcodecs.Blosc.BITSHUFFLE), Blosc("lz4", 3, "bitshuffle", 2)),
    (numcodecs.Blosc("zstd", 1, numcodecs.Blosc.AUTOSHUFFLE), Blosc("zstd", 1, "shuffle", 2)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), CODECS, ids=lambda value: type(value).__name__)
def test_codecs_of_other_libraries(tmp_path, given, wanted):
    data = np.arange(600, dtype="uint16").reshape(3, 10, 20)
    forms = [given, [given], (given, Crc32c())]
    if hasattr(given, "to_dict") and not getattr(given, "_tunable_attrs", ()):
        forms += [given.to_dict(), [given.to_dict()]]
    for number, form in enumerate(forms):
        path = tmp_path / str(number)
        with create(path, (None, 10, 20), "u2", (1, 4, 8), (2, 8, 16), codecs=form) as writer:
            writer.append(data)
        array = open_store(path)
        assert array.metadata.codecs == (wanted, Crc32c())
        assert np.array_equal(zarr.open_array(path, mode="r")[...], data)


def test_codecs_that_are_none(tmp_path):
    for wrong in (zarr_codecs.BytesCodec(), [numcodecs.Delta("u2")], 3, object()):
        with pytest.raises(WeftError, match="codec"):
            create(tmp_path / "a", (None, 4), "u2", (1, 4), codecs=wrong)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("make", [create, create_shards, create_image])
def test_shapes_that_would_fit_are_named(tmp_path, make):
    more = {"axes": "tyx"} if make is create_image else {}
    with pytest.raises(WeftError, match="dimension 1: chunks of 32 do not fill shards of 100") as e:
        make(tmp_path / "a", (9, 500, 500), "u2", (2, 32, 50), (8, 100, 120), **more)
    hint = "shards of [8, 96, 100] or chunks of [2, 25, 60] would fit"
    assert e.value.__notes__ == [f"hint: {hint}"]
    for chunks, shards in (((2, 32, 50), (8, 96, 100)), ((2, 25, 60), (8, 100, 120))):
        made = make(tmp_path / "a", (9, 500, 500), "u2", chunks, shards, overwrite=True, **more)
        if make is not create_shards:
            made.close()
    with pytest.raises(WeftError, match="do not fill shards"):
        make(tmp_path / "b", (9, 5, 5), "u2", (1, 1 << 50, 1), (1, (1 << 50) + 1, 1), **more)
