"""Frames of literals: read by everybody, small on noise, and as the formats want them."""

import struct

import numpy as np
import pytest
import zstandard
from numcodecs import blosc
from tests.store.chunks import KINDS, chunks
from tests.store.readers import check_readers
from tests.store.reference.literals import (
    PIECE,
    encode_literals,
    encode_literals_of,
    encode_zstd,
    encode_zstd_of,
    zstd_blocks,
)
from tests.store.reference.prefix_codes import (
    MOST_BITS,
    PLACES,
    code_lengths,
    codes,
    described,
    fse,
    normal,
    spread,
    tree,
)
from tests.store.reference.runs import TYPESIZES
from tests.trials import trials

from weft import WeftError

CASES = trials(200)


class Literals:
    """A codec that encodes by literals; metadata says what any reader needs to know."""

    name = "blosc"

    def __init__(self, typesize):
        said = {"cname": "zstd", "clevel": 1, "shuffle": "shuffle", "blocksize": 0}
        self.configuration = said | {"typesize": typesize}
        self.typesize = typesize

    def encode(self, data):
        return encode_literals(data, self.typesize)


class Plain:
    """The same without planes."""

    name = "zstd"

    @property
    def configuration(self):
        return {"level": 1, "checksum": False}

    def encode(self, data):
        return encode_zstd(data)


def odd_pieces():
    """Pieces whose codes are not what noise has."""
    rng = np.random.default_rng(0)

    def mixed(symbols, times):
        piece = np.repeat(np.array(symbols, np.uint8), times)[:PIECE]
        return rng.permutation(piece)

    ladder = [1 << n for n in range(13)]
    yield mixed(range(193), [32] * 192 + [2048])  # all weights but the last are one value
    yield mixed(range(255), [32] * 254 + [64])
    yield mixed([0, 255], [100, 100])  # hundreds of weights of zero
    yield mixed([7, 255], [1, 8000])
    yield mixed([128, 129], [50, 50])  # the most weights that are stored as they are, and one more
    yield mixed([127, 128], [50, 50])
    yield mixed([0, 1], [31, 33])
    yield mixed(range(13), ladder)  # longer codes than eleven bits, were they allowed
    yield mixed(range(100, 113), ladder[::-1])
    yield mixed([*range(13), *range(200, 256)], ladder + [1] * 56)
    yield mixed(range(256), [1] * 255 + [7000])
    for count in (129, 130, 200, 254, 256):
        yield mixed(range(count), rng.integers(1, 60, count))
        yield mixed(range(256 - count, 256), (rng.random(count) ** 9 * 500).astype(int) + 1)


def test_frames_are_decoded_by_blosc_and_by_zstd():
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        typesize, kind = int(rng.choice(TYPESIZES)), int(rng.integers(KINDS))
        most = int(rng.choice([40, 2_000, 3 * PIECE * typesize])) // typesize
        rows = chunks(rng, int(rng.integers(1, 4)), typesize * int(rng.integers(1, most + 1)), kind)
        for row, frame in zip(rows, encode_literals_of(rows, typesize)):
            assert blosc.decompress(frame) == row.tobytes(), f"seed {seed}"
            assert len(frame) <= len(row) + 16
            assert encode_literals(row, typesize) == frame
        for row, frame in zip(rows, encode_zstd_of(rows)):
            assert zstandard.decompress(frame) == row.tobytes(), f"seed {seed}"
            assert len(frame) <= 9 + len(row) + 3 * -(-len(row) // PIECE)
            assert encode_zstd(row) == frame


def test_odd_codes_are_decoded():
    for number, piece in enumerate(odd_pieces()):
        assert zstandard.decompress(encode_zstd(piece)) == piece.tobytes(), number


def test_codes_are_complete_and_short():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, (500, 256)) * rng.integers(0, 1 << 13, (500, 256)) ** 3 >> 28
    counts[:, 0], counts[:, 255] = 1, 1
    lengths = code_lengths(counts)
    assert ((lengths > 0) == (counts > 0)).all()
    assert lengths.max() <= MOST_BITS
    taken = np.where(lengths, 1 << MOST_BITS >> lengths, 0)
    assert (taken.sum(1) == 1 << MOST_BITS).all()
    for row, values in zip(lengths, codes(lengths)):
        there = np.flatnonzero(row)
        words = {f"{values[n]:0{row[n]}b}" for n in there}
        assert len(words) == len(there)
        assert not any(word[:n] in words for word in words for n in range(1, len(word)))


def test_codes_are_within_a_percent_of_the_best():
    rng = np.random.default_rng(0)
    for width in (3, 10, 40):
        values = rng.normal(128, width, PIECE).clip(0, 255).astype(int)
        counts = np.bincount(values, minlength=256)
        there = counts[counts > 0]
        entropy = -(there * np.log2(there / PIECE)).sum()
        assert (counts * code_lengths(counts[None])[0]).sum() < 1.01 * entropy + 0.03 * PIECE


def test_shares_of_places():
    rng = np.random.default_rng(0)
    for _ in range(500):
        counts = rng.multinomial(255, rng.dirichlet([rng.random() + 0.01] * 12)).tolist()
        shares = normal(counts)
        assert sum(shares) == PLACES
        assert all(share > 0 for share, count in zip(shares, counts) if count)
        assert max(shares) < PLACES
        assert [spread(shares).count(value) for value in range(12)] == shares
        assert sum(bits for _, bits in described(shares)) < 100


def test_a_tree_that_the_format_has_no_room_for_is_none():
    for first, size in ((28, 0), (0, 110)):
        counts = [first, 21, 18, 20, 18, 23, 19, 22, 19, 23, 21, 23]
        weights = np.repeat(np.arange(12), counts)
        lengths = np.where(weights, 12 - weights, 0)
        coded, made = fse(weights.tolist()), tree(np.append(lengths, 1))
        assert len(made) == size
        assert made in (b"", bytes([len(coded)]) + coded)


def test_blocks_of_one_byte_and_small_ones():
    assert zstd_blocks(np.full((1, 500), 7, np.uint8), np.ones(1, bool)) == [
        (500 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x07"
    ]
    small = np.arange(63, dtype=np.uint8)[None] % 2
    assert zstd_blocks(small, np.zeros(1, bool)) == [
        (63 << 3).to_bytes(3, "little") + small.tobytes()
    ]


def test_noise_is_stored_as_it_is():
    data = np.random.default_rng(0).integers(0, 256, 50_000).astype(np.uint8)
    frame = encode_literals(data, 2)
    head = (2, 1, 0x93, 2, 50_000, 2 * PIECE, 50_016)
    assert struct.unpack("<BBBBIII", frame[:16]) == head
    assert frame[16:] == data.tobytes()
    assert len(encode_zstd(data)) == 9 + 50_000 + 3 * 7


def test_noisy_images_become_little_more_than_half():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:128, :128]
    signal = 200 + 100 * np.sin(x / 40) + 80 * np.cos(y / 35)
    data = rng.poisson(signal, (16, 128, 128)).astype(np.uint16)
    assert data.nbytes / len(encode_literals(data.tobytes(), 2)) > 1.8


def test_stores_are_read_by_all_readers(tmp_path):
    rng = np.random.default_rng(0)
    for dtype in ("uint8", "uint16", "float32", "float64", "complex128"):
        array = rng.poisson(50, (7, 130, 70)).astype(dtype)
        codec = Literals(array.itemsize)
        check_readers(tmp_path / dtype, array, (2, 64, 33), (4, 128, 99), codec)
        check_readers(tmp_path / f"plain {dtype}", array, (2, 64, 33), (4, 128, 99), Plain())


def test_other_elements_and_sizes_are_refused():
    with pytest.raises(WeftError, match="elements of 3 B have no planes here"):
        encode_literals(bytes(6), 3)
    with pytest.raises(WeftError, match="a chunk of 0 B"):
        encode_zstd(b"")
