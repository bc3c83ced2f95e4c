"""Chunks that C functions encode in batches are those that the libraries' wrappers encode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.store import Blosc, Metadata, Zstd, blosc_frames, create, scatter
from weft.store import open as open_array
from weft.store.codecs import Crc32c, Gzip, batch_encoder, decode
from weft.store.encoder import ChunkEncoder
from weft.store.scatter import Tiles

CODECS = [
    (Zstd(1),),
    (Zstd(3, checksum=True), Crc32c()),
    (Zstd(1, table=10),),
    (Blosc("lz4", 5, "shuffle", 2),),
    (Blosc("lz4", 1, "noshuffle", 4), Crc32c()),
    (Blosc("lz4", 9, "shuffle", 1),),
    (Blosc("blosclz", 5, "shuffle", 8),),
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
    ends = np.cumsum(packed.sizes)
    data = b"".join(packed.buffers)
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
    packed = encoder.encode_tiles([(Tiles.of(tiles), numbers)], codecs, memory)
    for number, chunk in zip(numbers, chunks_of(packed), strict=True):
        assert (chunk is None) == (encoder.encode(tiles[number], codecs) is None)
        if chunk is not None:
            assert decoded(codecs, chunk, tiles[0].nbytes) == tiles[number].tobytes()


@given(
    st.sampled_from(["lz4", "lz4hc", "blosclz", "zstd", "zlib"]),
    st.sampled_from([0, 1, 5, 9]),
    st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
    st.sampled_from([1, 2, 3, 4, 8, 16]),
    st.sampled_from([0, 0, 4096, 1 << 16]),
    st.sampled_from([96, 3000, 1 << 12, 1 << 14, 1 << 15, 50_000, 1 << 16, 1 << 17, 1 << 18]),
    st.integers(2, 20),
    st.sampled_from(["noise", "counts"]),
    st.randoms(use_true_random=False),
)
def test_chunks_of_one_call_are_byte_for_byte_those_of_a_call_for_each(
    cname, clevel, shuffle, width, blocksize, size, count, kind, picked
):
    size -= size % (2 * width)
    count = min(count, (1 << 20) // size + 2)
    tiles = tiles_of(kind, count, (size // 2,), np.dtype("uint16"))
    codec = Blosc(cname, clevel, shuffle, width, blocksize)
    memory = np.empty(count * (size + size // 128 + 1024), np.uint8)
    numbers = sorted(picked.sample(range(count), picked.randint(1, count)))
    found = chunks_of(codec.batch_encoder(size)(tiles.view(np.uint8), numbers, memory))
    for number, chunk in zip(numbers, found, strict=True):
        assert b"".join(chunk) == codec.encode(tiles[number].view(np.uint8).data)


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (Blosc("lz4", 5, "shuffle", 2), 1 << 15),
        (Blosc("lz4", 5, "shuffle", 2), 1 << 19),
        (Blosc("blosclz", 5, "shuffle", 4), 1 << 16),
        (Blosc("zstd", 1, "shuffle", 2), 1 << 15),
        (Blosc("zstd", 1, "bitshuffle", 2), 1 << 19),
    ],
)
def test_usual_chunks_are_compressed_by_one_call(codec, size, monkeypatch):
    tiles = tiles_of("counts", (1 << 22) // size, (size // 2,), np.dtype("uint16"))
    encode, calls = codec.batch_encoder(size), []
    one = blosc_frames.BloscEncoder._compress
    monkeypatch.setattr(
        blosc_frames.BloscEncoder, "_compress", lambda *args: calls.append(args) or one(*args)
    )
    encode(tiles.view(np.uint8), range(len(tiles)), np.empty(5 << 20, np.uint8))
    assert len(calls) == 1


def test_raw_tiles_are_written_from_where_they_are():
    tiles = np.arange(24, dtype="u2").reshape(4, 6) + 1
    encoder = encoder_of(tiles, ())
    packed = encoder.encode_tiles([(Tiles.of(tiles), (1, 2))], (), np.empty(0, np.uint8))
    assert np.shares_memory(np.frombuffer(packed.buffers[0], np.uint8), tiles)
    assert bytes(packed.buffers[0]) == tiles[1:3].tobytes()
    apart = encoder.encode_tiles([(Tiles.of(tiles), (1, 3))], (), np.empty(0, np.uint8))
    assert [bytes(piece) for piece in apart.buffers] == [tiles[1].tobytes(), tiles[3].tobytes()]


def test_other_codecs_have_no_encoder_of_batches():
    assert batch_encoder((Gzip(1),), 64) is None
    assert batch_encoder((Zstd(1), Zstd(1)), 64) is None
    assert batch_encoder((), 64) is None


def test_arrays_are_the_same_where_the_library_exports_nothing(tmp_path, monkeypatch):
    frames = np.random.default_rng(0).poisson(9, (6, 32, 48)).astype("u2")
    frames[2:4] = 0

    def write(name):
        path = tmp_path / name
        codecs = (Blosc("lz4", 5, "shuffle"),)
        with create(path, (None, 32, 48), "uint16", (2, 16, 16), (4, 32, 48), codecs=codecs) as one:
            for frame in frames:
                one.append(frame[None])
        return {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    found = write("blosc_frames")
    monkeypatch.setattr(blosc_frames, "encoder", lambda *settings: None)
    assert batch_encoder((Blosc("lz4"), Crc32c()), 64) is None
    assert write("wrappers") == found
    assert np.array_equal(open_array(tmp_path / "wrappers").read(), frames)


def test_a_function_that_fails_is_an_error():
    encode = Blosc("lz4", 5, "shuffle", 2).batch_encoder(128)
    with pytest.raises(WeftError, match="could not compress 128 B into 4 B"):
        encode(np.ones((1, 128), np.uint8), (0,), np.empty(4, np.uint8))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 5), st.booleans())
def test_copies_in_bands_are_copies(shape, bands, is_turned):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter, "MAX_COPIERS", bands)
        patch.setattr(scatter, "MIN_COPIED", 1)
        source = np.arange(np.prod(shape), dtype="u2").reshape(shape)
        source = source.T if is_turned else source
        target = np.zeros(source.shape, "u2")
        scatter._copy(target, source)
        assert np.array_equal(target, source)
