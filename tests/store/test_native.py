"""Chunks that C functions encode in batches are those that the libraries' wrappers encode."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.store import Blosc, Metadata, Zstd, create, native, scatter
from weft.store import open as open_array
from weft.store.codecs import (
    CodecError,
    Crc32c,
    Gzip,
    decode,
    native_compressor,
    run_compressor,
)
from weft.store.encoder import ChunkEncoder
from weft.store.shard import PackedChunks

CODECS = [
    (Zstd(1),),
    (Zstd(3, checksum=True), Crc32c()),
    (Zstd(1, table=10),),
    (Blosc("lz4", 5, "shuffle", 2),),
    (Blosc("lz4hc", 4, "bitshuffle", 4), Crc32c()),
    (Blosc("zstd", 1, "shuffle", 2), Crc32c()),
    (Blosc("zstd", 3, "noshuffle", 8, blocksize=256),),
    (Blosc("zlib", 0, "shuffle", 3),),
    (Blosc("blosclz", 9, "bitshuffle", 1),),
]


def tiles_of(kind, count, shape, dtype):
    rng = np.random.default_rng(count)
    if kind == "noise":
        return rng.integers(0, 256, (count, *shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    tiles = rng.poisson(3, (count, *shape)).astype(dtype)
    tiles[rng.random(count) < 0.5] = 0
    return tiles


def encoder_of(tiles, codecs):
    shape = tiles.shape[1:]
    return ChunkEncoder(Metadata(shape, tiles.dtype.name, shape, shape, codecs), tiles.dtype)


def decoded(codecs, chunk, size):
    out = bytearray(size)
    decode(codecs, bytearray(b"".join(chunk)), memoryview(out))
    return bytes(out)


def chunks_of(packed):
    """The chunks of a batch, as the wrappers return them."""
    if not isinstance(packed, PackedChunks):
        return packed
    ends = np.cumsum(packed.sizes)
    data = bytes(packed.data)
    return [(data[end - n : end],) if n else None for end, n in zip(ends, packed.sizes)]


@given(
    st.sampled_from(CODECS),
    st.sampled_from(["noise", "counts"]),
    st.sampled_from(["uint16", "float32", "uint8", "complex128"]),
    st.integers(1, 5),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_batches_decode_to_their_tiles_and_skip_fill_values(codecs, kind, dtype, count, shape):
    tiles = tiles_of(kind, count, shape, np.dtype(dtype))
    encoder = encoder_of(tiles, codecs)
    memory = np.empty(count * encoder.extra_nbytes, np.uint8)
    numbers = tuple(range(count))[::-1]
    packed = encoder.encode_tiles(tiles, numbers, codecs, memory)
    assert isinstance(packed, PackedChunks) == (run_compressor(codecs, tiles[0].nbytes) is None)
    for number, chunk in zip(numbers, chunks_of(packed), strict=True):
        assert (chunk is None) == (encoder.encode(tiles[number], codecs) is None)
        if chunk is not None:
            assert decoded(codecs, chunk, tiles[0].nbytes) == tiles[number].tobytes()


@given(
    st.sampled_from([codecs for codecs in CODECS if isinstance(codecs[0], Blosc)]),
    st.sampled_from(["noise", "counts"]),
    st.integers(2, 6),
    st.integers(16, 90),
)
def test_chunks_that_one_call_compresses_are_as_small_as_those_of_a_call_for_each(
    codecs, kind, count, side
):
    tiles = tiles_of(kind, count, (side, 48), np.dtype("uint16"))
    encoder = encoder_of(tiles, codecs)
    memory = np.empty(count * encoder.extra_nbytes, np.uint8)
    found = chunks_of(encoder.encode_tiles(tiles, range(count), codecs, memory))
    alone = replace(codecs[0], blocksize=codecs[0].blocksize or tiles[0].nbytes)
    for tile, chunk in zip(tiles, found, strict=True):
        wanted = encoder.encode(tile, (alone, *codecs[1:]))
        if chunk is None or len(found) - found.count(None) == 1:
            continue
        assert sum(map(len, chunk)) <= sum(map(len, wanted)) + 16
        assert decoded(codecs, chunk, tile.nbytes) == tile.tobytes()


def test_raw_tiles_are_written_from_where_they_are():
    tiles = np.arange(24, dtype="u2").reshape(4, 6) + 1
    encoder = encoder_of(tiles, ())
    packed = encoder.encode_tiles(tiles, (1, 2), (), np.empty(0, np.uint8))
    assert np.shares_memory(np.frombuffer(packed.data, np.uint8), tiles)
    assert bytes(packed.data) == tiles[1:3].tobytes()
    apart = encoder.encode_tiles(tiles, (1, 3), (), np.empty(0, np.uint8))
    assert [bytes(piece) for (piece,) in apart] == [tiles[1].tobytes(), tiles[3].tobytes()]


def test_other_codecs_have_no_function_in_c():
    assert native_compressor((Gzip(1),), 64) is None
    assert native_compressor((Zstd(1), Zstd(1)), 64) is None
    assert native_compressor((), 64) is None


@pytest.mark.parametrize("missing", ["_library", "crc32c"])
def test_arrays_are_the_same_where_a_library_exports_nothing(tmp_path, monkeypatch, missing):
    frames = np.random.default_rng(0).poisson(9, (6, 32, 48)).astype("u2")
    frames[2:4] = 0

    def write(name):
        path = tmp_path / name
        with create(path, (None, 32, 48), "uint16", (2, 16, 16), (4, 32, 48), codecs="zstd") as one:
            for frame in frames:
                one.append(frame[None])
        return open_array(path).read()

    found = write("native")
    monkeypatch.setattr(native, missing, lambda: None)
    assert native_compressor((Zstd(1), Crc32c()), 64) is None
    assert np.array_equal(write("wrappers"), frames)
    assert np.array_equal(found, frames)


def test_a_function_that_fails_is_an_error():
    tiles = np.ones((1, 64), "u2")
    encoder = encoder_of(tiles, (Zstd(1),))
    with pytest.raises(CodecError, match="128 B could not be compressed"):
        encoder.encode_tiles(tiles, (0,), (Zstd(1),), np.empty(4, np.uint8))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 5), st.booleans())
def test_copies_in_bands_are_copies(shape, bands, is_turned):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter, "MAX_BANDS", bands)
        patch.setattr(scatter, "MIN_BAND", 1)
        source = np.arange(np.prod(shape), dtype="u2").reshape(shape)
        source = source.T if is_turned else source
        target = np.zeros(source.shape, "u2")
        scatter._copy(target, source)
        assert np.array_equal(target, source)
