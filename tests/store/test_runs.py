"""Frames of runs: read by everybody, small on noise, and as the formats want them."""

import struct

import numpy as np
import pytest
from numcodecs import blosc
from tests.store.chunks import KINDS, chunks
from tests.store.readers import check_readers
from tests.store.reference.runs import (
    BLOCK,
    LEAST,
    TYPESIZES,
    bit_planes,
    encode_runs,
    encode_runs_of,
    lz4_runs,
)
from tests.trials import trials

from weft import WeftError

CASES = trials(300)


class Runs:
    """A codec that encodes by runs; metadata says what any reader needs to know."""

    name = "blosc"

    def __init__(self, typesize):
        self.configuration = {
            "cname": "lz4",
            "clevel": 1,
            "shuffle": "bitshuffle",
            "typesize": typesize,
            "blocksize": BLOCK,
        }
        self.typesize = typesize

    def encode(self, data):
        return encode_runs(data, self.typesize)


def test_frames_are_decoded_by_blosc():
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        typesize, kind = int(rng.choice(TYPESIZES)), int(rng.integers(KINDS))
        most = int(rng.choice([40, 2_000, 3 * BLOCK])) // typesize
        rows = chunks(rng, int(rng.integers(1, 4)), typesize * int(rng.integers(1, most + 1)), kind)
        for row, frame in zip(rows, encode_runs_of(rows, typesize)):
            assert blosc.decompress(frame) == row.tobytes(), f"seed {seed}"
            assert len(frame) <= len(row) + 16
            assert encode_runs(row, typesize) == frame


@pytest.mark.parametrize("typesize", TYPESIZES)
def test_planes_are_those_of_blosc(typesize):
    data = np.random.default_rng(typesize).integers(0, 4, 64 * typesize).astype(np.uint8)
    theirs = blosc.compress(np.repeat(data, 16).view(f"V{typesize}"), b"lz4", 1, blosc.BITSHUFFLE)
    ours = encode_runs(np.repeat(data, 16), typesize)
    assert ours[:2] == theirs[:2]
    assert ours[2] == theirs[2] & ~1 | 0x10
    bits = np.unpackbits(data.reshape(64, typesize), axis=1, bitorder="little")
    packed = np.packbits(bits.T, axis=1, bitorder="little").reshape(-1)
    assert np.array_equal(bit_planes(data[None], typesize)[0], packed)


def test_a_block_of_elements_that_eight_does_not_divide_stays_as_it_is():
    data = np.arange(14, dtype=np.uint8)[None]
    assert np.array_equal(bit_planes(data, 2), data)


@pytest.mark.parametrize("size", [1, 4, 5, 12, 13, 18, 19, 20, 31, 273, 274, 275, 4096])
def test_the_end_of_a_block_is_literals(size):
    made = lz4_runs(np.zeros((1, size), np.uint8))[0]
    if size < 12 + 1 + LEAST:
        assert made == bytes(size)
    else:
        assert made.endswith(b"\xc0" + bytes(12))


def test_runs_are_matches_from_six_bytes_on():
    def block(count):
        return np.array([[*range(1, 101), *[100] * count, *range(14)]], np.uint8)

    assert lz4_runs(block(5))[0] == block(5).tobytes()
    token, *_ = made = lz4_runs(block(6))[0]
    assert len(made) == 120 + 5 - 6
    assert token == 15 << 4 | 2


def test_noise_is_stored_as_it_is():
    data = np.random.default_rng(0).integers(0, 256, 50_000).astype(np.uint8)
    frame = encode_runs(data, 1)
    assert struct.unpack("<BBBBIII", frame[:16]) == (2, 1, 0x36, 1, 50_000, BLOCK, 50_016)
    assert frame[16:] == data.tobytes()


def test_noisy_images_become_little_more_than_half():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:128, :128]
    signal = 200 + 100 * np.sin(x / 40) + 80 * np.cos(y / 35)
    data = rng.poisson(signal, (16, 128, 128)).astype(np.uint16)
    assert data.nbytes / len(encode_runs(data.tobytes(), 2)) > 1.85


def test_stores_are_read_by_all_readers(tmp_path):
    rng = np.random.default_rng(0)
    for dtype in ("uint8", "uint16", "float32", "float64", "complex128"):
        array = rng.poisson(50, (7, 130, 70)).astype(dtype)
        codec = Runs(array.itemsize)
        check_readers(tmp_path / dtype, array, (2, 64, 33), (4, 128, 99), codec)


def test_other_elements_and_sizes_are_refused():
    with pytest.raises(WeftError, match="elements of 3 B have no planes here") as caught:
        encode_runs(bytes(6), 3)
    assert "bitshuffle" in caught.value.__notes__[0]
    with pytest.raises(WeftError, match="a chunk of 7 B is no Blosc frame of elements of 2 B"):
        encode_runs(bytes(7), 2)
    with pytest.raises(WeftError, match="a chunk of 0 B is no Blosc frame"):
        encode_runs(b"", 1)
