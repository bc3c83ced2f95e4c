"""Hostile `zarr.json`, shards and chunks: read rightly or refused, in bounded time and memory."""

import json
import struct
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import numcodecs
import numcodecs.blosc
import numpy as np
import pytest
import tensorstore
import zarr
from numcodecs import zarr3
from tests.fuzzing import Reader, fuzz
from tests.mutations import mutate_bytes, mutate_json
from tests.store.unlisted import UnlistedFolder
from tests.trials import large

from weft import WeftError
from weft.space import ZRange
from weft.store import (
    Array,
    Blosc,
    Gzip,
    Lz4,
    Metadata,
    Zstd,
    create,
    create_plate,
    create_positions,
    open_group,
    open_image,
    open_plate,
    open_positions,
)
from weft.store import (
    open as open_store,
)
from weft.store.codecs import checksum, encode, with_checksum
from weft.store.shard import ABSENT, Index, index_size

SHAPE, CHUNKS, SHARDS = (20, 30), (4, 4), (8, 16)
DATA = np.random.default_rng(0).integers(1, 99, SHAPE).astype("uint16")


@cache
def folder():
    """A folder that lasts as long as this process."""
    kept = tempfile.TemporaryDirectory()
    folder.kept = kept
    return Path(kept.name)


# -- zarr.json


@cache
def base():
    """An array whose shards stay as they are, whatever its metadata say."""
    path = folder() / "metadata"
    with create(path, SHAPE, "uint16", CHUNKS, SHARDS, codecs="zstd") as writer:
        writer.append(DATA)
    return path


def metadata_documents():
    """What Weft, zarr-python and tensorstore write."""
    found = [(base() / "zarr.json").read_bytes()]
    with tempfile.TemporaryDirectory() as place:
        more = {"codecs": Blosc("lz4", 5, "shuffle"), "order": (1, 0), "index_location": "start"}
        for number, options in enumerate([more, {"codecs": [Gzip(6)], "append_dim": 1}]):
            path = Path(place) / str(number)
            create(path, SHAPE, "complex64", CHUNKS, SHARDS, **options).abandon()
            found.append((path / "zarr.json").read_bytes())
        for number, options in enumerate([{}, {"shards": SHARDS, "fill_value": 7}]):
            path = Path(place) / f"z{number}"
            zarr.create_array(path, shape=SHAPE, dtype="float32", chunks=CHUNKS, **options)
            found.append((path / "zarr.json").read_bytes())
        filters = [
            zarr3.Delta(dtype="<i2", astype="<i4"),
            zarr3.AsType(encode_dtype="<i8", decode_dtype="<i4"),
        ]
        kinds = [
            {"dtype": "int16", "filters": filters, "compressors": [zarr3.Shuffle(), zarr3.LZMA()]},
            {
                "dtype": "float64",
                "filters": [zarr3.FixedScaleOffset(offset=1, scale=2, dtype="<f8")],
            },
            {"dtype": "M8[ns]", "compressors": [zarr3.BZ2(), zarr3.CRC32()]},
            {"dtype": [("a", "<i4"), ("b", "S3")], "compressors": None},
            {"dtype": "<U3", "fill_value": "ab"},
        ]
        for number, options in enumerate(kinds):
            path = Path(place) / f"n{number}"
            zarr.create_array(path, shape=SHAPE, chunks=CHUNKS, shards=SHARDS, **options)
            found.append((path / "zarr.json").read_bytes())
        said = json.loads(found[0])
        del said["attributes"]
        path = Path(place) / "t"
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        tensorstore.open(spec | {"metadata": said}, create=True).result()
        found.append((path / "zarr.json").read_bytes())
    return found


def read_metadata(data):
    (base() / "zarr.json").write_bytes(data)
    read_corners(open_store(base()))


def read_corners(array):
    """Read both ends of an array, and verify it."""
    if not isinstance(array, Array):
        return
    corner = tuple(min(n, 5) for n in array.shape)
    boxes = [ZRange.of(corner), ZRange([n - c for n, c in zip(array.shape, corner)], array.shape)]
    for box in boxes if np.prod(corner) < 4096 else []:
        with suppress(WeftError):
            array.read(box)
        array.read_memory(box)
    with suppress(WeftError):
        array.verify()


def hostile_metadata():
    """Far more shards than files, chunks that no memory holds, ranks and nesting without end."""
    good = json.loads((base() / "zarr.json").read_bytes())
    inner = good["codecs"][0]["configuration"]

    def said(shape, chunks, shards, **more):
        codec = {"name": "sharding_indexed", "configuration": inner | {"chunk_shape": chunks}}
        grid = {"name": "regular", "configuration": {"chunk_shape": shards}}
        return json.dumps(
            good | {"shape": shape, "codecs": [codec], "chunk_grid": grid} | more
        ).encode()

    twice = json.dumps(good | {"codecs": good["codecs"] * 2}).encode()
    one = [1] * 65
    return [
        said([1 << 24], [1], [1], dimension_names=None),
        said([1 << 40, 1 << 20], [1, 1], [1, 1]),
        said([(1 << 63) - 1] * 3, [1] * 3, [1] * 3),
        said([1 << 40], [1 << 40], [1 << 40]),
        said([1 << 62] * 8, [1 << 62] * 8, [1 << 62] * 8),
        said([1 << 40], [1], [1 << 40]),
        said([1 << 63], [1], [1]),
        said(one, one, one),
        b'{"zarr_format": 3, "node_type": "array", "attributes": ' + b"[" * 100_000,
        b'{"zarr_format": 3, "node_type": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"[" + b"[]," * large(5_000_000) + b"[]]",
        b"x" * (1 << 25),
        twice,
    ]


METADATA = Reader(metadata_documents, read_metadata, mutate_json, hostile_metadata)


def test_hostile_metadata_are_read_or_refused():
    fuzz("tests.store.test_fuzz:METADATA")


# -- Zarr v2


@cache
def base_v2():
    """A folder with chunks that stay as they are, whatever its `.zarray` says."""
    path = folder() / "v2"
    zarr.create_array(path, shape=SHAPE, dtype="<u2", chunks=CHUNKS, zarr_format=2)[...] = DATA
    return path


def documents_v2():
    """What zarr-python writes: filters, compressors, orders, data types."""
    found = [(base_v2() / ".zarray").read_bytes()]
    kinds = [
        {"dtype": "<i4", "filters": [numcodecs.Delta("<i4", "<i8"), numcodecs.Shuffle(8)]},
        {"dtype": "<f4", "filters": [numcodecs.FixedScaleOffset(1, 2, "<f4", "<i2")], "order": "F"},
        {"dtype": "|b1", "filters": [numcodecs.PackBits()], "compressors": numcodecs.BZ2()},
        {"dtype": ">U4", "compressors": numcodecs.LZMA(format=3, filters=[{"id": 33}])},
        {"dtype": [("a", "<i4"), ("b", "S3")], "compressors": numcodecs.Zlib()},
        {"dtype": "<M8[ns]", "compressors": None, "fill_value": 0},
    ]
    with tempfile.TemporaryDirectory() as place:
        for number, options in enumerate(kinds):
            path = Path(place) / str(number)
            zarr.create_array(path, shape=SHAPE, chunks=CHUNKS, zarr_format=2, **options)
            found.append((path / ".zarray").read_bytes())
    return found


def read_v2(data):
    (base_v2() / ".zarray").write_bytes(data)
    read_corners(open_store(base_v2()))


def hostile_v2():
    """Sizes and data types that no memory holds, dictionaries of LZMA, nesting without end."""
    good = json.loads(documents_v2()[0])
    deep = "<i4"
    for _ in range(100):
        deep = [["a", deep]]
    raw = {"id": "lzma", "format": 3, "filters": [{"id": 33, "dict_size": 1 << 31}]}
    edits = [
        {"shape": [1 << 62] * 8, "chunks": [1 << 62] * 8},
        {"dtype": "<U99999999"},
        {"dtype": "|O", "filters": [{"id": "pickle"}]},
        {"dtype": deep},
        {"dtype": [["a", "<i4", [1 << 23, 1 << 23]]]},
        {"compressor": raw},
        {"filters": [{"id": "delta", "dtype": "O"}]},
        {"filters": [{"id": "astype", "encode_dtype": "<U8", "decode_dtype": "<u2"}]},
        {"filters": [{"id": "fixedscaleoffset", "offset": "x", "scale": 0, "dtype": "<u2"}]},
        {"filters": [{"id": "shuffle", "elementsize": 1 << 60}] * 40},
        {"filters": [{"id": "packbits"}] * 32},
    ]
    return [json.dumps(good | edit).encode() for edit in edits] + [b"[" * 100_000, b"x" * (1 << 25)]


@cache
def consolidated():
    """A group of v2 and one of v3, with the metadata of their members."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (2, 3):
            group = zarr.create_group(folder() / f"group{kind}", zarr_format=kind)
            group.create_group("s").create_array("x", shape=SHAPE, chunks=CHUNKS, dtype="u2")
            zarr.consolidate_metadata(folder() / f"group{kind}", zarr_format=kind)
    return [folder() / "group2/.zmetadata", folder() / "group3/zarr.json"]


def consolidated_documents():
    return [path.read_bytes() for path in consolidated()]


def read_consolidated(data):
    for path in consolidated():
        good = path.read_bytes()
        try:
            path.write_bytes(data)
            str(open_group(UnlistedFolder(path.parent)).tree())
        except WeftError:
            if data == good:
                raise
        finally:
            path.write_bytes(good)


CONSOLIDATED = Reader(consolidated_documents, read_consolidated, mutate_json)


def test_hostile_consolidated_metadata_are_read_or_refused():
    fuzz("tests.store.test_fuzz:CONSOLIDATED")


ZARR_V2 = Reader(documents_v2, read_v2, mutate_json, hostile_v2)


def test_hostile_metadata_of_zarr_v2_are_read_or_refused():
    fuzz("tests.store.test_fuzz:ZARR_V2")


# -- shards

FAMILIES = [
    {"codecs": codecs, "index_location": location, "checksum": checksum}
    for checksum in (True, False)
    for location in ("end", "start")
    for codecs in (
        (), (Zstd(1),), (Gzip(1),), (Lz4(),), (Blosc("lz4", 5, "shuffle"),),
        (Blosc("zstd", 1, "bitshuffle"),), (Blosc("zlib", 1, "noshuffle"), Zstd(1)),
    )
]  # fmt: skip
SLOTS = 8
PLAIN, REBUILT = 0, 1


@cache
def family(number):
    """An array of a family: its folder and the shard that is edited."""
    path = folder() / f"shards{number}"
    with create(path, SHAPE, "uint16", CHUNKS, SHARDS, **FAMILIES[number]) as writer:
        writer.append(DATA)
    return path, (path / "c/1/0").read_bytes()


def shard_documents():
    return [bytes([n, PLAIN]) + family(n)[1] for n in range(len(FAMILIES))]


def mutate_shard(random, documents):
    """Bytes edited at random; or chunks and entries of the index, with checksums that fit them."""
    if random.random() < 0.5:
        return mutate_bytes(random, documents)
    number = random.randrange(len(FAMILIES))
    options, good = FAMILIES[number], family(number)[1]
    is_first, count = options["index_location"] == "start", index_size(SLOTS)
    index = Index.parse(good[:count] if is_first else good[-count:], SLOTS)
    spans = zip(index.offsets, index.sizes)
    chunks = [good[at : at + size] for at, size in spans]
    for slot in random.sample(range(SLOTS), random.randrange(3)):
        body = chunks[slot][:-4] if options["checksum"] else chunks[slot]
        body = mutate_bytes(random, [body])
        chunks[slot] = body + checksum(body) if options["checksum"] else body
    end = count if is_first else 0
    for slot, chunk in enumerate(chunks):
        index.offsets[slot], index.sizes[slot] = end, len(chunk)
        end += len(chunk)
    for _ in range(random.choice([0, 0, 1, 3])):
        which, slot = random.choice([index.offsets, index.sizes]), random.randrange(SLOTS)
        near = random.randrange(end + 20)
        which[slot] = random.choice([near, ABSENT, random.getrandbits(63), ABSENT - near, 0])
    body, table = b"".join(chunks), index.to_bytes()
    return bytes([number, REBUILT]) + (table + body if is_first else body + table)


def read_shard(data):
    """Read a shard; with checksums, every chunk is one that was written, or it is refused.

    A chunk that another was copied over, with its checksum, is one of those.
    """
    number = data[0] % len(FAMILIES) if data else 0
    path, good = family(number)
    (path / "c/1/0").write_bytes(data[2:])
    is_sure = data[1:2] == bytes([PLAIN]) and FAMILIES[number]["checksum"]
    try:
        for box in (ZRange((9, 1), (11, 30)), ZRange((15, 15), (16, 16))):
            with suppress(WeftError):
                open_store(path).read(box)
        array = open_store(path)
        array.verify()
        found = array.read()
        if is_sure and data[2:] != good:
            assert blocks(found) <= blocks(DATA), "a changed chunk passes"
            assert len(data[2:]) == len(good), "a longer shard passes"
    finally:
        (path / "c/1/0").write_bytes(good)


def blocks(array):
    """The bytes of the chunks of the shard that is edited."""
    rows, columns = range(8, 16, 4), range(0, 16, 4)
    return {array[y : y + 4, x : x + 4].tobytes() for y in rows for x in columns}


def hostile_shards():
    return [b"", b"\0\0", bytes([0, 0]) + bytes(1000), bytes([1, 0]) + b"\xff" * 10_000]


SHARDED = Reader(shard_documents, read_shard, mutate_shard, hostile_shards)


def test_hostile_shards_are_read_rightly_or_refused():
    fuzz("tests.store.test_fuzz:SHARDED")


# -- chunks that claim far more than they are stored as


def zstd_of_zeros(size, says=True):
    """A zstd frame of runs of 128 KiB, four bytes each."""
    head = bytes([0xA0]) + struct.pack("<I", size) if says else bytes([0x00, 0x88])
    runs = -(-size // (1 << 17))
    block = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", (1 << 17) << 3 | 1 << 1 | 1)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd" + head + block * (runs - 1) + last


def bomb(codec, size):
    """Few bytes that say they are many zeros."""
    if codec in ("zstd", "zstd-unsaid"):
        return zstd_of_zeros(size, codec == "zstd")
    if codec == "gzip":
        return encode([Gzip(9)], bytes(1 << 20)) * (size >> 20)
    if codec == "blosc":
        return numcodecs.blosc.compress(bytes(min(size, 1 << 28)), b"zstd", 1, 1)
    if codec == "lz4":
        return struct.pack("<I", size) + bytes(1000)
    return encode([Zstd(1)], encode([Gzip(9)], bytes(1 << 20)) * (size >> 20))


CODECS = {
    "zstd": [Zstd(1)],
    "zstd-unsaid": [Zstd(1)],
    "gzip": [Gzip(1)],
    "blosc": [Blosc("zstd", 1, "shuffle", 1)],
    "lz4": [Lz4()],
    "nested": [Gzip(9), Zstd(1)],
}


def read_claim(data):
    """Read four elements of a chunk of some size that claims another, and verify the array."""
    codec, size, claimed, count, is_sharded = json.loads(data)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a"
        (path / "c").mkdir(parents=True)
        shape, codecs = (size * count,), with_checksum(CODECS[codec])
        shards = shape if is_sharded else (size,)
        said = Metadata(shape, "uint8", (size,), shards, codecs, is_sharded=is_sharded)
        (path / "zarr.json").write_text(said.to_json(), encoding="utf-8")
        chunk = bomb(codec, claimed)
        chunk += checksum(chunk)
        if is_sharded:
            index = Index.empty(count)
            for slot in range(count):
                index.offsets[slot], index.sizes[slot] = slot * len(chunk), len(chunk)
            chunk = chunk * count + index.to_bytes()
        (path / "c/0").write_bytes(chunk)
        array = open_store(path)
        for box in (ZRange((0,), (4,)), ZRange((size - 4,), (size,))):
            found = array.read(box)
            assert not found.any()
        array.verify()


def claims():
    """Chunks of 2 GiB; small ones that claim 2 GiB; four of 128 MiB, which are decoded."""
    many = 1 << 31
    return [
        json.dumps([codec, size, claimed, count, is_sharded]).encode()
        for codec in CODECS
        for size, claimed, count in [
            (many, many, 1),
            (4096, many - (1 << 20), 1),
            (1 << 27, 1 << 27, 4),
        ]
        for is_sharded in (True, False)
    ]


def small_claims():
    return [
        json.dumps([codec, 1 << 20, 1 << 20, 2, True]).encode()
        for codec in CODECS
        if codec != "lz4"
    ]


CLAIMS = Reader(small_claims, read_claim, lambda random, some: random.choice(some), claims)


@pytest.mark.slow
def test_chunks_that_claim_too_much_are_refused_before_they_are_decoded():
    report = fuzz("tests.store.test_fuzz:CLAIMS", len(claims()))
    assert report.counts["refused"] >= 4 * len(CODECS)


# -- groups of OME-NGFF


@cache
def images():
    """A plate, an image with channels and labels, and positions, whose groups are written anew."""
    form = {"shape": (None, 8, 8), "dtype": "uint8", "chunks": (1, 4, 4), "axes": "tyx"}
    ones = np.ones((2, 8, 8), "uint8")
    plate = create_plate(folder() / "groups/plate", "AB", "12", **form, levels=2)
    with plate, plate.field("A", "1", 0, channels=["DAPI"]) as field:
        field.append(ones)
    image = open_image(folder() / "groups/plate/A/1/0")
    with image.labels.create("cells", "uint8", colors={1: "red"}) as labels:
        labels.append(ones)
    with create_positions(folder() / "groups/run", **form, levels=2) as recording:
        recording.position("left").append(ones)
    return folder() / "groups"


GROUP_FILES = [
    *("plate/zarr.json", "plate/A/1/zarr.json", "plate/A/1/0/zarr.json"),
    *("plate/A/1/0/labels/zarr.json", "plate/A/1/0/labels/cells/zarr.json"),
    *("run/zarr.json", "run/OME/zarr.json"),
]


def group_documents():
    return [(images() / name).read_bytes() for name in GROUP_FILES]


def read_group(data):
    """Read a group in the place of every other one; one place may refuse it, and others not."""
    good, refused = group_documents(), 0
    for name, document in zip(GROUP_FILES, good):
        path = images() / name
        path.write_bytes(data)
        try:
            look_at_groups()
        except WeftError:
            refused += 1
        finally:
            path.write_bytes(document)
    if refused == len(GROUP_FILES) and data not in good:
        raise WeftError("refused in every place")


def look_at_groups():
    plate = open_plate(images() / "plate")
    for row, column in plate.plate.wells:
        for field in plate.well(row, column).fields:
            image = plate.image(row, column, field.path)
            str((image, image.channels, image.factors))
            assert len(image.levels) == len(image.scales)
            image.levels[0].read(ZRange.of((1,) * len(image.levels[0].shape)))
            for name in image.labels:
                str(image.labels[name].image_label)
    str(open_positions(images() / "run").names)


GROUPS = Reader(group_documents, read_group, mutate_json)


def test_hostile_groups_are_read_or_refused():
    fuzz("tests.store.test_fuzz:GROUPS")
