"""Compiled code copies, encodes and reads as NumPy and the wrappers of codecs do."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trials import trials

from weft.errors import WeftError
from weft.space import ZRange
from weft.store import (
    Blosc,
    Metadata,
    Zstd,
    create,
    create_shards,
    native,
    pipeline,
    read,
    scatter,
)
from weft.store import open as open_array
from weft.store.chunk_layout import ChunkLayout
from weft.store.codecs import Crc32c, decode
from weft.store.encoder import ChunkEncoder
from weft.store.scatter import Tiles
from weft.store.shard import ABSENT

CODECS = [
    (),
    (Crc32c(),),
    (Zstd(1),),
    (Zstd(-3, checksum=True), Crc32c()),
    (Zstd(1, table=10), Crc32c()),
    (Blosc("lz4", 5, "shuffle", 2),),
    (Blosc("lz4hc", 4, "bitshuffle", 4), Crc32c()),
    (Blosc("zstd", 1, "shuffle", 2), Crc32c()),
    (Blosc("blosclz", 9, "noshuffle", 1),),
]


def needs_compiler():
    if native.compiled() is None:
        pytest.skip(native.why_not())


@pytest.fixture(params=["compiled", "python"])
def engine(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(native, "compiled", lambda: None)
    else:
        needs_compiler()
    return request.param


def in_pieces(tiles, bands):
    """The same tiles, with a block for each first index and band."""
    count, rows, *rest = tiles.shape
    size = -(-count // bands)
    made = Tiles(count, tiles.shape[1:], bands, rows)
    for band in range(bands):
        for row in range(rows):
            block = np.zeros((size, 1, *rest), tiles.dtype)
            some = tiles[band * size : (band + 1) * size, row : row + 1]
            block[: len(some)] = some
            made.add(band, scatter.Block.of(block, band))
    return made


@given(
    st.sampled_from(CODECS),
    st.sampled_from(["uint16", "float32", "uint8", "complex128"]),
    st.integers(1, 7),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    st.booleans(),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_chunks_are_those_of_the_wrappers(codecs, dtype, count, shape, alone, bands, picked):
    needs_compiler()
    rng = np.random.default_rng(picked.randint(0, 99))
    tiles = rng.poisson(1, (count, *shape)).astype(dtype)
    tiles[rng.random(count) < 0.3] = 0
    encoder = ChunkEncoder(Metadata(shape, dtype, shape, shape, codecs), tiles.dtype)
    whole = Tiles.of(tiles) if bands == 1 else in_pieces(tiles, min(bands, count))
    numbers = sorted(picked.sample(range(count), picked.randint(1, count)))
    memory = np.empty(2 * count * encoder.extra_nbytes, np.uint8)
    groups = [(whole, numbers), (whole, [0])]
    found = encoder.encode_tiles(groups, codecs, memory, is_alone=alone)
    data, end = b"".join(found.buffers), 0
    for number, size in zip([*numbers, 0], found.sizes.tolist(), strict=True):
        wanted = encoder.encode(tiles[number], codecs)
        assert (wanted is None) == (size == 0)
        if wanted is not None:
            chunk = data[end : end + size]
            if not isinstance(codecs and codecs[0], Zstd):  # the libraries have different versions
                assert chunk == b"".join(wanted)
            out = bytearray(tiles[0].nbytes)
            decode(codecs, bytearray(chunk), memoryview(out))
            assert bytes(out) == tiles[number].tobytes()
        end += size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_boxes_are_copied(data):
    needs_compiler()
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    axes = data.draw(st.permutations(range(len(shape))))
    source = np.arange(np.prod(shape), dtype="u4").reshape(shape).transpose(axes)
    target = np.zeros(tuple(n + 2 for n in source.shape), "u4")
    place = target[tuple(slice(1, 1 + n) for n in source.shape)]
    boxes = native.boxes_of([(place, source)])
    if boxes is None:
        assert source.strides[-1] != 4
        return
    native.compiled().copy(boxes)
    wanted = np.zeros_like(target)
    wanted[tuple(slice(1, 1 + n) for n in source.shape)] = source
    assert np.array_equal(target, wanted)


def test_elements_that_are_converted_or_apart_are_not_copied():
    numbers = np.zeros((4, 6), "u2")
    assert native.boxes_of([(numbers, numbers.astype("u4"))]) is None
    assert native.boxes_of([(numbers[:, :3], numbers[:, ::2])]) is None


@pytest.mark.parametrize("seed", range(trials(60)))
def test_rows_that_are_kept_apart_make_the_same_array(tmp_path, monkeypatch, engine, seed):
    """Large epochs lie in blocks that are reused for any band; edges still have the fill value."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(scatter, "LARGE", 0)
    monkeypatch.setattr(scatter, "MAX_BANDS", int(rng.integers(2, 5)))
    monkeypatch.setattr(pipeline, "AHEAD_BYTES", 0)
    monkeypatch.setattr(pipeline, "BATCH", int(rng.choice([1, 200, 1 << 20])))
    shape = tuple(int(n) for n in rng.integers(3, 20, int(rng.integers(2, 4))))
    chunks = (int(rng.integers(2, 5)), *(int(rng.integers(1, min(4, n) + 1)) for n in shape))
    shards = tuple(n * int(rng.integers(1, 4)) for n in chunks)
    fill = int(rng.integers(0, 2))
    codecs = [(), "zstd", "blosc-lz4", "gzip"][seed % 4]
    count = int(rng.integers(1, 30))
    frames = rng.integers(0, 3, (count, *shape)).astype("u2")
    frames[rng.random(count) < 0.3] = fill
    with create(
        tmp_path / "a", (None, *shape), "u2", chunks, shards,
        codecs=codecs, fill_value=fill, frame_ndim=len(shape), threads=[None, 2][seed % 2],
    ) as stream:  # fmt: skip
        at = 0
        while at < count:
            step = int(rng.integers(1, 6))
            stream.append(frames[at : at + step])
            at += step
            if rng.random() < 0.2:
                stream.flush()
                assert np.array_equal(open_array(tmp_path / "a").read(), frames[:at])
    assert np.array_equal(open_array(tmp_path / "a").read(), frames)


def test_rows_of_small_or_turned_tiles_stay_together():
    def is_apart(shape, chunks, **options):
        layout = scatter.FrameLayout(shape, chunks, chunks, **options)
        return scatter.Scatter(layout, np.dtype("u2"), 0).is_apart

    assert is_apart((None, 2048, 2048), (16, 128, 128))
    assert not is_apart((None, 2048, 2048), (4, 64, 64))
    assert not is_apart((None, 8192, 8192), (1, 512, 512))
    assert not is_apart((2048, 2048, None), (128, 128, 16), axis_order=(2, 0, 1))


def test_a_chunk_that_cannot_be_compressed_is_an_error():
    needs_compiler()
    tiles, how = Tiles.of(np.ones((1, 64), "u1")), native.Compression(native.BLOSC, name=b"none")
    with pytest.raises(WeftError, match="none could not compress a chunk of 64 B"):
        native.compiled().encode(
            tiles.addresses_of([0]), 64, how, None, np.empty(2048, "u1"), 2048, is_alone=True
        )


# -- reading


@pytest.fixture
def reads(monkeypatch):
    """The boxes of shards that compiled code reads from now on."""
    needs_compiler()
    monkeypatch.setattr(read, "LEAST_COMPILED", 1)
    seen, real = [], native.Native.read

    def counted(self, boxes, *rest):
        seen.append((list(boxes), real(self, boxes, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(native.Native, "read", counted)
    return seen


def random_array(path, rng):
    """An array with shards and chunks that are not stored, and its values."""
    rank = int(rng.integers(1, 5))
    chunks = tuple(int(n) for n in rng.integers(1, 7, rank))
    shards = tuple(n * int(rng.integers(1, 5)) for n in chunks)
    shape = tuple(int(n) for n in rng.integers(1, 30 // rank, rank))
    codecs = CODECS[int(rng.integers(len(CODECS)))]
    dtype = str(rng.choice(["uint16", "float32", "uint8", "complex128", "bool", "int64"]))
    fill = [0, 1][int(rng.integers(2))]
    values = rng.integers(0, 3, shape).astype(dtype)
    options = {"codecs": codecs, "fill_value": fill, "checksum": False}
    writer = create_shards(path, shape, dtype, chunks, shards, **options)
    for box in writer.layout.shard_grid.boxes():
        if rng.random() < 0.2:
            values[box.slices()] = fill
        else:
            if rng.random() < 0.3:
                values[box.slices()] = fill
                values[box.start] = 1 - fill
            writer.write(box, values[box.slices()])
    return values


def random_box(rng, shape):
    low = [int(rng.integers(0, n)) for n in shape]
    return ZRange(low, [int(rng.integers(at, n)) + 1 for at, n in zip(low, shape)])


def target(rng, shape, dtype):
    """An array to read into, alone or a part of another whose rows are turned around."""
    if rng.random() < 0.5:
        return np.empty(shape, dtype)
    wide = np.empty([n + 2 for n in shape], dtype)
    inside = wide[tuple(slice(1, -1) for _ in shape)]
    return inside[::-1] if len(shape) > 1 else inside


@pytest.mark.parametrize("seed", range(trials(150)))
def test_boxes_are_read_as_numpy_takes_them(tmp_path, reads, seed):
    rng = np.random.default_rng(seed)
    values = random_array(tmp_path / "a", rng)
    array = open_array(tmp_path / "a")
    for _ in range(4):
        box = random_box(rng, values.shape)
        out = target(rng, box.shape, values.dtype)
        array.read(box, out, threads=[None, 1, 2][int(rng.integers(3))])
        assert np.array_equal(out, values[box.slices()])
    array.read()  # the indexes are known
    assert all(fetched is not None for _, fetched in reads)
    reads.clear()
    fetched = array.read_counted(array.box).fetched
    assert fetched == sum(fetched for _, fetched in reads)
    if array.metadata.is_sharded and array.metadata.codecs:
        sizes = (size for boxes, _ in reads for box in boxes for size in box.sizes)
        assert fetched == sum(size for size in sizes if size != ABSENT)


@pytest.mark.parametrize("seed", range(trials(100)))
def test_damaged_chunks_are_what_they_are_without_it(tmp_path, reads, seed, monkeypatch):
    """The same values or the same error, whatever byte is changed or missing."""
    rng = np.random.default_rng(seed)
    values = random_array(tmp_path / "a", rng)
    files = [file for file in sorted(tmp_path.rglob("c/**/*")) if file.is_file()]
    if not files:
        return
    file = files[int(rng.integers(len(files)))]
    data = bytearray(file.read_bytes())
    index = ChunkLayout.of(open_array(tmp_path / "a").metadata).slots * 16 + 4
    for _ in range(int(rng.integers(1, 3))):
        data[int(rng.integers(max(1, len(data) - index)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(data)

    def outcome():
        try:
            return open_array(tmp_path / "a").read().tobytes()
        except WeftError as error:
            return str(error)

    found = outcome()
    monkeypatch.setattr(native, "compiled", lambda: None)
    assert outcome() == found
    assert isinstance(found, str) or len(found) == values.nbytes


def test_a_shard_that_is_cut_short_is_an_error(tmp_path, reads):
    writer = create_shards(tmp_path / "a", (64,), "u2", (4,), (64,), codecs=(), checksum=False)
    writer.write(ZRange((0,), (64,)), np.arange(64, dtype="u2"))
    array = open_array(tmp_path / "a")
    array.read()
    (boxes, _), *_ = reads
    file = os.open(tmp_path / "short", os.O_RDWR | os.O_CREAT)
    os.write(file, b"too short")
    cut = [box._replace(file=file) for box in boxes]
    assert native.compiled().read(cut, array._format.compiled, None) is None
    os.close(file)


PROGRAM = """
import os, sys
import numpy as np
from weft.store import create, native, open
with create(sys.argv[1], (None, 64, 64), "u2", (4, 16, 16), (8, 32, 32), codecs="blosc-lz4") as one:
    one.append(np.ones((5, 64, 64), "u2"))
child = os.fork() if hasattr(os, "fork") else None
if child:
    assert os.waitpid(child, 0)[1] == 0
path = f"{sys.argv[1]}{int(bool(child))}"
with create(path, (None, 64, 64), "u2", (4, 16, 16), (8, 32, 32), codecs="zstd") as one:
    one.append(np.full((5, 64, 64), 7, "u2"))
assert (open(path).read() == 7).all()
if child != 0:
    print(native.why_not())
"""


def run_program(folder, **environment):
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    command = [sys.executable, "-c", PROGRAM, str(folder / "a")]
    ran = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_it_is_compiled_once_and_forked_processes_have_threads_of_their_own(tmp_path):
    needs_compiler()
    assert run_program(tmp_path) == "None"
    (made,) = (tmp_path / "cache/weft").iterdir()
    assert made.suffix == ".so"


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"WEFT_NATIVE": "0"}, "WEFT_NATIVE is 0"),
        ({"CC": "false"}, "false could not compile it"),
        ({"XDG_CACHE_HOME": "/dev/null"}, "/dev/null"),
    ],
)
def test_without_it_python_does_the_same(tmp_path, variables, reason):
    assert reason in run_program(tmp_path, **variables)
