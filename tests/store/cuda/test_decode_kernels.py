"""Frames of numcodecs and zstandard, decoded by the kernels; and damaged ones, refused."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from numcodecs import blosc, lz4
from tests.store.chunks import KINDS, chunks
from tests.store.cuda.host import Buffer, Host, empty, needs_compiler, u32, u64
from tests.store.reference.literals import encode_literals_of, encode_zstd_of
from tests.store.reference.runs import encode_runs_of
from tests.trials import trials

CASES = trials(60)
DAMAGED = trials(400)
SEQUENCES = trials(2000)
PARTS = 3


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    needs_compiler()
    return Decoder(tmp_path_factory.mktemp("decode"))


class Decoder:
    """The kernels of both files."""

    def __init__(self, folder):
        with ThreadPoolExecutor() as pool:  # compiled at the same time
            names = "decode.cu", "decode_zstd.cu"
            self.hosts = list(pool.map(lambda name: Host(folder, name), names))
        self.rng = self.hosts[0].rng

    def launch(self, name, *given):
        self.hosts["zstd" in name].launch(name, *given)


def staged(host, frames):
    """Frames at any address, and tables of where they are."""
    sizes = np.array([len(frame) for frame in frames], "u8")
    offsets = np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(frames), np.uint8)
    return [Buffer(data, int(host.rng.integers(16))), Buffer(offsets), Buffer(sizes)]


def by_kernels(host, kind, frames, size):
    """The decoded chunks, None for those that the kernels refuse."""
    stride = -(-size // 16) * 16
    pool, failed = empty(stride * len(frames), "u1"), Buffer(np.zeros(len(frames), "u4"))
    given = [*staged(host, frames), u64(size), u64(stride)]
    planes = empty(stride * len(frames), "u1")
    more, count = (planes, pool, failed), PARTS * len(frames)
    if kind == "blosc_lz4":
        host.launch("weft_blosc_lz4", count, *given, u32(PARTS), *more)
    elif kind in ("blosc_zstd", "zstd"):
        for step in ("literals", "sequences"):
            options = u32(PARTS), u32(kind != "zstd")
            host.launch(f"weft_zstd_{step}", count, *given, *options, *more)
    elif kind == "lz4":
        host.launch("weft_lz4_decode", len(frames), *given, pool, failed)
    else:
        host.launch("weft_unpack", count, *given, u32(PARTS), pool, failed)
    if kind.startswith("blosc"):
        host.launch("weft_blosc_join", count, *given, u32(PARTS), *more)
    rows = pool.array.reshape(len(frames), stride)[:, :size]
    assert set(failed.array.tolist()) <= {0, 1}
    return [None if bad else row.tobytes() for row, bad in zip(rows, failed.array)]


def random_frames(rng, cnames):
    """Chunks of one size, and their frames, each with options of its own."""
    kind = int(rng.integers(KINDS))
    sizes = [1, 7, 100, 100, 1000, 1000, 5000, 5000, 70_000, 300_000]
    size = int(rng.integers(1, int(rng.choice(sizes)) + 1))
    rows = chunks(rng, 3, size, kind)
    frames = []
    for row in rows:
        typesize = int(rng.choice([1, 2, 3, 4, 5, 8, 16, 17, 255]))
        width = typesize if size % typesize == 0 else 1
        block = int(rng.choice([0, 0, 128, 1000, 1 << 12, 1 << 15, 77_777]))
        level, shuffle = int(rng.integers(0, 10)), int(rng.integers(3))
        cname = str(rng.choice(cnames)).encode()
        frames.append(blosc.compress(row.view(f"V{width}"), cname, level, shuffle, block))
    return rows, frames


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_frames_of_blosc(decoder, kind):
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rows, frames = random_frames(rng, ["lz4", "lz4hc"] if kind == "lz4" else ["zstd"])
        made = by_kernels(decoder, f"blosc_{kind}", frames, rows.shape[1])
        assert made == [row.tobytes() for row in rows], f"seed {seed}"


def zstd_frames(rng):
    """Chunks of one size, and frames of any level and strategy."""
    size = int(rng.integers(1, int(rng.choice([9, 300, 5000, 140_000, 500_000])) + 1))
    rows = chunks(rng, 2, size, int(rng.integers(KINDS)))
    if rng.random() < 0.3:  # words of a few letters: many matches
        words = rng.integers(0, 5, (50, int(rng.integers(3, 40)))).astype("u1")
        rows = np.resize(words[rng.integers(0, 50, 60_000)].reshape(-1), rows.shape)
    frames = []
    for row in rows:
        level = int(rng.choice([-20, -1, 1, 1, 2, 3, 5, 9, 15, 19]))
        has_size = bool(rng.random() < 0.8)
        writer = zstandard.ZstdCompressor(level, write_content_size=has_size)
        frames.append(writer.compress(row.tobytes()))
    return rows, frames


def test_frames_of_zstd(decoder):
    for seed in range(CASES):
        rows, frames = zstd_frames(np.random.default_rng(seed))
        made = by_kernels(decoder, "zstd", frames, rows.shape[1])
        assert made == [row.tobytes() for row in rows], f"seed {seed}"


def test_frames_of_the_kernels_own_encoder(decoder):
    for kind in range(KINDS):
        rows = chunks(np.random.default_rng(kind), 2, 40_000, kind)
        made = by_kernels(decoder, "zstd", encode_zstd_of(rows), rows.shape[1])
        assert made == [row.tobytes() for row in rows]
        made = by_kernels(decoder, "blosc_zstd", encode_literals_of(rows, 2), rows.shape[1])
        assert made == [row.tobytes() for row in rows]
        made = by_kernels(decoder, "blosc_lz4", encode_runs_of(rows, 2), rows.shape[1])
        assert made == [row.tobytes() for row in rows]


def test_damaged_frames_of_zstd(decoder):
    """What is accepted is what zstd makes of the same bytes."""
    for seed in range(DAMAGED):
        rng = np.random.default_rng(seed)
        rows, frames = zstd_frames(rng)
        damaged = [damage(rng, frame) for frame in frames]
        for frame, made in zip(damaged, by_kernels(decoder, "zstd", damaged, rows.shape[1])):
            if made is not None:
                reader = zstandard.ZstdDecompressor().stream_reader(frame)
                assert reader.read() == made, f"seed {seed}"


def test_frames_that_are_left_to_the_host(decoder):
    row = np.random.default_rng(0).poisson(20, 3000).astype("u1").tobytes()
    whole = zstandard.ZstdCompressor(1).compress(row)
    for frame in (
        zstandard.ZstdCompressor(1, write_checksum=True).compress(row),
        zstandard.ZstdCompressor(1).compress(row[:1000])
        + zstandard.ZstdCompressor(1).compress(row[1000:]),
        whole + b"\0",
        whole[:-1],
    ):
        assert by_kernels(decoder, "zstd", [frame, whole], len(row)) == [None, row]


def test_frames_of_other_compressors_are_left_to_the_host(decoder):
    rows = np.repeat(np.arange(3000, dtype="u1"), 4).reshape(2, -1)
    for cname in (b"zlib", b"blosclz"):
        frames = [blosc.compress(row, cname, 5, 1) for row in rows]
        assert by_kernels(decoder, "blosc_lz4", frames, rows.shape[1]) == [None, None]


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_damaged_frames_of_blosc(decoder, kind):
    """What is accepted is what numcodecs makes of the same bytes."""
    for seed in range(DAMAGED):
        rng = np.random.default_rng(seed)
        rows, frames = random_frames(rng, [kind])
        size = rows.shape[1]
        damaged = [damage(rng, frame) for frame in frames]
        for frame, made in zip(damaged, by_kernels(decoder, f"blosc_{kind}", damaged, size)):
            if made is not None:
                assert len(frame) >= 16
                assert int.from_bytes(frame[4:8], "little") == size
                assert int.from_bytes(frame[12:16], "little") == len(frame)
                assert bytes(blosc.decompress(frame)) == made, f"seed {seed}"


def damage(rng, frame):
    """A frame with changed, lost or added bytes, or other numbers in its header and tables."""
    frame = bytearray(frame)
    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(5))
        if kind == 0 and frame:
            frame[int(rng.integers(len(frame)))] ^= 1 << int(rng.integers(8))
        elif kind == 1 and frame:
            frame[int(rng.integers(len(frame)))] = int(rng.choice([0, 255, 15, 240, 16, 1]))
        elif kind == 2:
            frame = frame[: int(rng.integers(len(frame) + 1))]
        elif kind == 3 and len(frame) >= 24:
            at = 4 * int(rng.integers(1, 6))
            odd = [0, 1, 16, 127, len(frame), (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
            value = int(rng.choice(odd))
            frame[at : at + 4] = value.to_bytes(4, "little")
        elif len(frame) > 2:
            first, last = sorted(rng.integers(0, len(frame), 2).tolist())
            frame[first:last] = rng.integers(0, 256, last - first).astype("u1").tobytes()
        if rng.random() < 0.7 and len(frame) >= 16:
            frame[12:16] = len(frame).to_bytes(4, "little")
    return bytes(frame) or b"\0"


def test_blocks_of_lz4(decoder):
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rows = chunks(rng, 2, int(rng.integers(1, 40_000)), int(rng.integers(KINDS)))
        frames = [bytes(lz4.compress(row.tobytes())) for row in rows]
        made = by_kernels(decoder, "lz4", frames, rows.shape[1])
        assert made == [row.tobytes() for row in rows], f"seed {seed}"
        damaged = [damage(rng, frame) for frame in frames]
        for frame, made in zip(damaged, by_kernels(decoder, "lz4", damaged, rows.shape[1])):
            assert made is None or bytes(lz4.decompress(frame)) == made, f"seed {seed}"


@pytest.mark.parametrize("offset", [1, 2, 3, 5, 17, 31, 33, 64, 100])
def test_matches_that_overlap(decoder, offset):
    rng = np.random.default_rng(offset)
    for length in (20, 64, 65, 150, 1000, 70_000):
        row = np.resize(rng.integers(0, 256, offset).astype("u1"), offset + length)
        made = by_kernels(decoder, "lz4", [bytes(lz4.compress(row.tobytes()))], len(row))
        assert made == [row.tobytes()]


def lz4_length(length):
    """The bytes behind a token that add to a length of 15 and more."""
    return b"" if length < 15 else b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


def lz4_block(rng):
    """An LZ4 block of sequences of any lengths and offsets, and the bytes that it stands for."""
    block, made = bytearray(), bytearray(rng.integers(0, 256, 5).astype("u1").tobytes())
    literals = bytes(made)
    for _ in range(int(rng.integers(1, 60))):
        count = 4 + int(rng.integers(0, rng.choice([8, 30, 70, 300, 3000])))
        offset = int(rng.integers(1, min(len(made), rng.choice([4, 40, 140, 2100, 65535])) + 1))
        block.append(min(15, len(literals)) << 4 | min(15, count - 4))
        block += lz4_length(len(literals)) + literals + offset.to_bytes(2, "little")
        block += lz4_length(count - 4)
        repeated = bytes(made[-offset:])
        made += (repeated * (count // offset + 1))[:count]
        size = int(rng.integers(0, rng.choice([1, 1, 9, 20, 70, 140, 700])))
        literals = rng.integers(0, 256, size).astype("u1").tobytes()
        made += literals
    last = rng.integers(0, 256, 12).astype("u1").tobytes()  # a block ends with literals
    literals += last
    block.append(min(15, len(literals)) << 4)
    return bytes(block) + lz4_length(len(literals)) + literals, bytes(made) + last


def test_sequences_of_any_lengths(decoder):
    """Copies that are short, long, far or of what was just written, in any order."""
    for seed in range(SEQUENCES):
        block, wanted = lz4_block(np.random.default_rng(seed))
        frame = len(wanted).to_bytes(4, "little") + block
        assert lz4.decompress(frame) == wanted
        assert by_kernels(decoder, "lz4", [frame], len(wanted)) == [wanted], f"seed {seed}"


def test_chunks_that_are_not_compressed(decoder):
    for size in (1, 15, 16, 1000, 4099):
        rows = chunks(np.random.default_rng(size), 3, size, 1)
        frames = [row.tobytes() for row in rows]
        assert by_kernels(decoder, "none", frames, size) == frames
        wrong = [frames[0] + b"0", frames[1] * 2]
        assert by_kernels(decoder, "none", [*wrong, frames[2]], size) == [None, None, frames[2]]
