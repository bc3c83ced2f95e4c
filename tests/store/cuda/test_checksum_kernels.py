"""The kernels of checksums give what google-crc32c gives."""

import google_crc32c
import numpy as np
import pytest
from tests.store.cuda.host import Buffer, Host, empty, needs_compiler, u32, u64
from tests.trials import trials

from weft.store.cuda.encoders import CHECKSUM_PART as PART

CASES = trials(60)
SIZES = [1, 2, 3, 4, 5, 255, 256, 257, 511, 513, PART - 1, PART, PART + 1, 2 * PART + 9]


@pytest.fixture(scope="module")
def checksums(tmp_path_factory):
    needs_compiler()
    return Host(tmp_path_factory.mktemp("kernels"), "checksum.cu")


def check(host, rng, sizes, shift=0, gap=0):
    """Chunks of some sizes with room behind each, at any alignment: nothing else is written."""
    count, parts = len(sizes), max(1, -(-max(sizes) // PART)) + gap
    ends = np.cumsum([size + 4 if size else 0 for size in sizes])
    data = rng.integers(0, 256, int(ends[-1]), "u1")
    offsets = [int(end) - (size + 4 if size else 0) for end, size in zip(ends, sizes)]
    wanted = data.copy()
    for at, size in zip(offsets, sizes):
        if size:
            crc = google_crc32c.value(data[at : at + size].tobytes())
            wanted[at + size : at + size + 4] = np.frombuffer(crc.to_bytes(4, "little"), "u1")
    out, sums = Buffer(data, shift), empty(count * parts, "u4")
    given = out, Buffer(np.array(sizes, "u8")), Buffer(np.array(offsets, "u8")), sums, u32(parts)
    host.launch("weft_crc_parts", count * parts, *given)
    host.launch("weft_crc_put", -(-count // 256), *given, u64(count))
    assert np.array_equal(out.array, wanted), (sizes, shift, gap)


@pytest.mark.parametrize("size", SIZES)
def test_one_chunk_of_any_size(checksums, size):
    check(checksums, np.random.default_rng(size), [size], shift=size % 16)


def test_random_chunks(checksums):
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        most = int(rng.choice([8, 600, 3 * PART]))
        sizes = rng.integers(0, most + 1, int(rng.integers(1, 6))).tolist()
        check(checksums, rng, [*sizes, 1], int(rng.integers(16)), int(rng.integers(3)))


def test_more_chunks_than_threads(checksums):
    check(checksums, np.random.default_rng(0), [n % 7 for n in range(600)])
