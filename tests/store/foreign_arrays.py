"""Random arrays of Zarr v2 and v3 that zarr-python, tensorstore and numcodecs write.

Each writer takes a random generator and a path, stores an array there, and returns the values that
NumPy has for it: the fill value where nothing was written, else what was. Filters that lose digits
give what the writer's own library reads back.
"""

import itertools
import json
import shutil
import warnings

import numcodecs
import numpy as np
import tensorstore
import zarr
from numcodecs import zarr3

NUMBERS = [
    *("|b1", "|i1", "|u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", "<i8", ">u8"),
    *("<f2", ">f4", "<f4", "<f8", ">f8", "<c8", "<c16", ">c16"),
]
OTHERS = ["<M8[ns]", "<M8[D]", "<m8[10us]", ">m8[s]", "|S1", "|S5", "<U1", "<U4", ">U3", "|V3"]
TEXT = np.dtypes.StringDType()
RECORD = [("a", "<i4"), ("b", "|S3"), ("c", "<f8")]


def random_shape(rng):
    rank = int(rng.choice([0, 1, 1, 2, 2, 3, 3, 4, 5]))
    most = {0: 0, 1: 60, 2: 20, 3: 10, 4: 6, 5: 4}[rank]
    least = 0 if rng.random() < 0.03 else 1
    shape = tuple(int(n) for n in rng.integers(least, most + 1, rank))
    return shape, tuple(int(rng.integers(1, n + 2)) for n in shape)


def random_dtype(rng):
    """A data type of zarr-python: a number mostly, a date, a text, bytes, or a record."""
    kind = rng.random()
    if kind < 0.1:
        return np.dtype(RECORD) if kind < 0.05 else TEXT
    return np.dtype(str(rng.choice(NUMBERS + OTHERS)))


def random_values(rng, shape, dtype):  # noqa: PLR0911 - a kind each
    """Values of any bits, except that booleans and texts have few, and NaNs none."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "SUT":
        words = ["", "a", "bc", "défg", "xyz", "ümlau"]
        words = [w.encode("ascii", "ignore") for w in words] if dtype.kind == "S" else words
        return np.array(words, dtype)[rng.integers(0, len(words), shape)]
    if dtype.names is not None:
        found = np.zeros(shape, dtype)
        for name in dtype.names:
            found[name] = random_values(rng, shape, dtype[name])
        return found
    if dtype.kind in "fc":
        number = rng.integers(-500, 500, shape) / 4
        return (number + 1j * rng.integers(0, 9, shape) if dtype.kind == "c" else number).astype(
            dtype
        )
    if dtype.kind == "V":
        return rng.integers(0, 256, (*shape, dtype.itemsize)).astype("u1").view(dtype)[..., 0]
    if dtype.kind in "mM":
        return rng.integers(-(10**6), 10**6, shape).astype("i8").astype(dtype)
    limits = np.iinfo(dtype)
    if rng.random() < 0.5:
        return rng.integers(max(limits.min, -9), min(limits.max, 200), shape).astype(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype.newbyteorder("=")).astype(dtype)


def random_fill(rng, dtype):
    """A fill value, or None."""
    dtype = np.dtype(dtype)
    if rng.random() < 0.3 or dtype.names is not None or dtype.kind == "V":
        return None
    if dtype.kind == "f" and rng.random() < 0.3:
        return float(rng.choice([np.nan, np.inf, -np.inf]))
    return random_values(rng, (1,), dtype)[0]


def blank(shape, dtype, fill):
    """An array of its fill value."""
    found = np.zeros(shape, dtype)
    if fill is not None:
        found[...] = fill
    return found


def random_part(rng, shape):
    """Where values are written: everywhere, or in a box."""
    if rng.random() < 0.6 or not shape:
        return (...,)
    start = [int(rng.integers(0, n + 1)) for n in shape]
    return tuple(slice(a, int(rng.integers(a, n + 1))) for a, n in zip(start, shape))


# -- codecs


def compressor_v2(rng):
    return rng.choice(
        [
            None,
            numcodecs.Zlib(int(rng.integers(1, 9))),
            numcodecs.GZip(int(rng.integers(1, 9))),
            numcodecs.BZ2(int(rng.integers(1, 9))),
            numcodecs.LZMA(preset=1),
            numcodecs.LZMA(format=3, filters=[{"id": 33, "preset": 1}]),
            numcodecs.LZ4(),
            numcodecs.Zstd(int(rng.integers(1, 9))),
            numcodecs.Blosc("lz4", 5, int(rng.integers(-1, 3))),
            numcodecs.Blosc("zstd", 3, int(rng.integers(-1, 3))),
            numcodecs.Blosc("zlib", 1, 1),
            numcodecs.Blosc("blosclz", 9, 2),
        ]
    )


def array_filters(rng, dtype):  # noqa: PLR0911 - a filter each
    """Filters that fit a dtype, as dictionaries with an `id`."""
    dtype, found = np.dtype(dtype), []
    native = dtype.newbyteorder("<").str
    if dtype.kind == "b" and rng.random() < 0.4:
        return [{"id": "packbits"}]
    if dtype.kind in "iu" and rng.random() < 0.3:
        wide = rng.choice([native, "<i8", "<u8"])
        return [{"id": "delta", "dtype": native, "astype": str(wide)}]
    if dtype.kind == "i" and rng.random() < 0.2:
        return [{"id": "astype", "encode_dtype": "<i8", "decode_dtype": native}]
    if dtype.kind == "f":
        kind = int(rng.integers(0, 7))
        if kind == 0:
            return [{"id": "delta", "dtype": native}]
        if kind == 1:
            more = {"offset": 10, "scale": 4, "dtype": native, "astype": "<i4"}
            return [{"id": "fixedscaleoffset", **more}]
        if kind == 2:
            return [{"id": "quantize", "digits": 1, "dtype": native}]
        if kind == 3:
            return [{"id": "bitround", "keepbits": 4}]
        if kind == 4 and dtype.itemsize < 8:
            return [{"id": "astype", "encode_dtype": "<f8", "decode_dtype": native}]
    return found


def bytes_filters(rng, itemsize):
    """Codecs from bytes to bytes that do not compress."""
    every = [
        {"id": each} for each in ("crc32", "adler32", "fletcher32", "jenkins_lookup3", "crc32c")
    ]
    found = [{"id": "shuffle", "elementsize": itemsize}] if rng.random() < 0.3 else []
    return found + ([every[int(rng.integers(len(every)))]] if rng.random() < 0.3 else [])


def filters_v2(rng, dtype):
    """Filters of any kind; of big-endian elements none, which zarr-python itself misreads."""
    dtype = np.dtype(dtype)
    if dtype.byteorder == ">" or dtype == TEXT:
        return []
    return array_filters(rng, dtype) + bytes_filters(rng, 1)


# -- writers


def by_zarr_v2(rng, path):
    """zarr-python, Zarr v2."""
    dtype = random_dtype(rng)
    shape, chunks = random_shape(rng)
    fill, part = random_fill(rng, dtype), random_part(rng, shape)
    filters = [numcodecs.get_codec(dict(each)) for each in filters_v2(rng, dtype)]
    chosen = {} if dtype == TEXT else {"filters": filters or None}  # texts have their own
    array = zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        dtype=str if dtype == TEXT else dtype,
        zarr_format=2,
        order=str(rng.choice(["C", "F"])),
        compressors=compressor_v2(rng),
        fill_value=fill,
        chunk_key_encoding={"name": "v2", "separator": str(rng.choice([".", "/"]))},
        **chosen,
    )
    return filled(array, rng, part, bool(filters))


def by_zarr_v3(rng, path):
    """zarr-python, Zarr v3, with shards or without."""
    dtype = random_dtype(rng)
    shape, chunks = random_shape(rng)
    fill, part = random_fill(rng, dtype), random_part(rng, shape)
    shards = tuple(c * int(rng.integers(1, 4)) for c in chunks) if rng.random() < 0.6 else None
    filters = [zarr_v3_codec(each) for each in array_filters(rng, dtype)]
    if shape and rng.random() < 0.3:
        order = tuple(map(int, rng.permutation(len(shape))))
        place = int(rng.integers(len(filters) + 1))
        filters.insert(place, zarr.codecs.TransposeCodec(order=order))
    big = zarr.codecs.BytesCodec(endian="big")
    is_plain = not filters and dtype.names is None and dtype != TEXT
    serializer = big if is_plain and rng.random() < 0.3 else "auto"
    array = zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=str if dtype == TEXT else dtype,
        filters=filters,
        serializer=serializer,
        compressors=compressors_v3(rng, dtype.itemsize),
        fill_value=fill,
        chunk_key_encoding={
            "name": str(rng.choice(["default", "v2"])),
            "separator": str(rng.choice([".", "/"])),
        },
    )
    found = filled(array, rng, part, bool(filters))
    return found.astype(found.dtype.newbyteorder("="))  # what is stored has no byte order


def zarr_v3_codec(options):
    kinds = {
        "delta": zarr3.Delta,
        "fixedscaleoffset": zarr3.FixedScaleOffset,
        "quantize": zarr3.Quantize,
        "packbits": zarr3.PackBits,
        "astype": zarr3.AsType,
        "bitround": zarr3.BitRound,
        "shuffle": zarr3.Shuffle,
        "crc32": zarr3.CRC32,
        "crc32c": zarr3.CRC32C,
        "adler32": zarr3.Adler32,
        "fletcher32": zarr3.Fletcher32,
        "jenkins_lookup3": zarr3.JenkinsLookup3,
    }
    return kinds[options["id"]](**{key: value for key, value in options.items() if key != "id"})


def compressors_v3(rng, itemsize):
    every = [
        zarr.codecs.ZstdCodec(level=int(rng.integers(1, 6)), checksum=bool(rng.integers(2))),
        zarr.codecs.GzipCodec(level=int(rng.integers(1, 9))),
        zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=itemsize),
        zarr.codecs.BloscCodec(cname="zstd", shuffle="shuffle", typesize=itemsize),
        zarr3.Zlib(level=3),
        zarr3.GZip(level=2),
        zarr3.BZ2(level=1),
        zarr3.LZMA(preset=1),
        zarr3.LZ4(),
        zarr3.Zstd(level=2),
        zarr3.Blosc(cname="lz4", clevel=3),
        None,
    ]
    chosen = every[int(rng.integers(len(every)))]
    before = [zarr_v3_codec(each) for each in bytes_filters(rng, itemsize)]
    return before + ([] if chosen is None else [chosen])


def filled(array, rng, part, has_filters):
    """Write a part of an array of zarr-python; return what all of it is.

    Without a fill value, dates that are not written are none. Records are written whole: what
    zarr-python reads elsewhere is a text of a zero.
    """
    fill = array.fill_value
    if fill is None and array.dtype.kind in "mM":
        fill = "NaT"
    part = (...,) if fill is None and array.dtype.names is not None else part
    expected = blank(array.shape, array.dtype, fill)
    if 0 in array.shape:
        return expected
    values = np.asarray(random_values(rng, expected[part].shape, array.dtype))
    values = values.astype(array.dtype)
    expected[part] = values
    array[part] = values
    return np.asarray(array[...], array.dtype) if has_filters else expected


def by_tensorstore_v2(rng, path):
    """Tensorstore's driver zarr."""
    dtype = np.dtype(str(rng.choice(NUMBERS)))
    shape, chunks = random_shape(rng)
    fill = random_values(rng, (1,), dtype)[0] if rng.random() < 0.6 else None
    compressor = [
        None,
        {"id": "zlib", "level": 3},
        {"id": "gzip", "level": 3},
        {"id": "bz2", "level": 1},
        {"id": "zstd", "level": 1},
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": int(rng.integers(-1, 3))},
        {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 1},
    ][int(rng.integers(7))]
    parts = [fill.real, fill.imag] if fill is not None and dtype.kind == "c" else fill
    metadata = {
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype.str,
        "order": str(rng.choice(["C", "F"])),
        "compressor": compressor,
        "fill_value": json.loads(json.dumps(parts, default=lambda value: value.item())),
        "dimension_separator": str(rng.choice([".", "/"])),
    }
    return by_tensorstore(rng, path, {"driver": "zarr", "metadata": metadata}, dtype, fill)


def by_tensorstore_v3(rng, path):
    """Tensorstore's driver zarr3, with shards or without."""
    dtype = np.dtype(str(rng.choice(NUMBERS))).newbyteorder("=")
    shape, chunks = random_shape(rng)
    fill = random_values(rng, (1,), dtype)[0]
    order = list(map(int, rng.permutation(len(shape))))
    codecs = (
        [{"name": "transpose", "configuration": {"order": order}}] if rng.random() < 0.3 else []
    )
    codecs.append(
        {"name": "bytes", "configuration": {"endian": str(rng.choice(["little", "big"]))}}
    )
    more = [
        [],
        [{"name": "zstd", "configuration": {"level": 1}}],
        [{"name": "gzip", "configuration": {"level": 5}}],
        [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}}],
        [{"name": "crc32c"}],
        [{"name": "zstd", "configuration": {"level": 3}}, {"name": "crc32c"}],
    ]
    codecs += more[int(rng.integers(len(more)))]
    grid = chunks
    if shape and rng.random() < 0.6:
        grid = tuple(c * int(rng.integers(1, 4)) for c in chunks)
        inside = {
            "chunk_shape": chunks,
            "codecs": codecs,
            "index_location": str(rng.choice(["start", "end"])),
        }
        codecs = [{"name": "sharding_indexed", "configuration": inside}]
    parts = [fill.real, fill.imag] if dtype.kind == "c" else fill
    metadata = {
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
        "codecs": codecs,
        "fill_value": json.loads(json.dumps(parts, default=lambda value: value.item())),
    }
    return by_tensorstore(rng, path, {"driver": "zarr3", "metadata": metadata}, dtype, fill)


def by_tensorstore(rng, path, spec, dtype, fill):
    spec["kvstore"] = {"driver": "file", "path": str(path)}
    store = tensorstore.open(spec, create=True).result()
    expected, part = blank(store.shape, dtype, fill), random_part(rng, store.shape)
    if 0 not in store.shape:
        values = np.asarray(random_values(rng, expected[part].shape, dtype)).astype(dtype)
        expected[part] = values
        store[part].write(values.astype(dtype.newbyteorder("="))).result()
    return expected


def by_numcodecs(rng, path):
    """Zarr v2 by hand: numcodecs encodes the chunks, and some of them are missing."""
    dtype = np.dtype(RECORD) if rng.random() < 0.1 else np.dtype(str(rng.choice(NUMBERS + OTHERS)))
    shape, chunks = random_shape(rng)
    order, separator = str(rng.choice(["C", "F"])), str(rng.choice([".", "/"]))
    filters = [numcodecs.get_codec(dict(each)) for each in filters_v2(rng, dtype)]
    compressor = compressor_v2(rng)
    metadata = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype.str if dtype.names is None else [list(each) for each in RECORD],
        "order": order,
        "filters": [each.get_config() for each in filters] or None,
        "compressor": None if compressor is None else compressor.get_config(),
        "fill_value": None,
    } | ({"dimension_separator": "/"} if separator == "/" else {})
    path.mkdir(parents=True)
    (path / ".zarray").write_text(json.dumps(metadata), encoding="utf-8")
    expected = blank(shape, dtype, "NaT" if dtype.kind in "mM" else None)
    for at in itertools.product(*(range(-(-n // c)) for n, c in zip(shape, chunks))):
        if rng.random() < 0.2:
            continue
        chunk = data = np.asarray(random_values(rng, chunks, dtype), dtype, order=order)
        for each in filters:
            data = each.encode(data)
        data = data if compressor is None else compressor.encode(data)
        stored = numcodecs.compat.ensure_bytes(data)
        file = path / (separator.join(map(str, at)) or "0")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(stored)
        for each in [compressor, *reversed(filters)]:
            stored = stored if each is None else each.decode(stored)
        chunk = np.frombuffer(numcodecs.compat.ensure_bytes(stored), dtype).reshape(
            chunks, order=order
        )
        where = tuple(slice(k * c, min((k + 1) * c, n)) for k, c, n in zip(at, chunks, shape))
        expected[where] = chunk[tuple(slice(0, s.stop - s.start) for s in where)]
    return expected


WRITERS = [by_zarr_v2, by_zarr_v3, by_tensorstore_v2, by_tensorstore_v3, by_numcodecs]


def random_array(seed, path):
    """Store a random array at a path; return its values, and the name of its writer.

    A combination that its writer refuses is drawn again.
    """
    writer = WRITERS[seed % len(WRITERS)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        attempt = 0
        while True:
            try:
                return writer(np.random.default_rng([seed, attempt]), path), writer.__name__
            except (ValueError, TypeError, IndexError, KeyError, OverflowError):
                shutil.rmtree(path, ignore_errors=True)
                attempt += 1
                if attempt > 20:
                    raise
