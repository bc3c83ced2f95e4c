"""Parts of compressed chunks: the bytes that are wanted equal those of the whole chunk."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import zstandard
from numcodecs import blosc
from tests.trials import trials

from weft.store import decompress
from weft.store.decompress import ZSTD_BLOCK, CodecError, unblosc_into, unzstd_into


def chunk(rng: np.random.Generator, width: int) -> np.ndarray[Any, Any]:
    """Return counted photons, of which the upper bytes compress well, as elements of some width."""
    size = int(rng.integers(1, 3 * ZSTD_BLOCK // width))
    return rng.poisson(rng.choice([1, 200, 5000]), size).astype(f"u{width}")


@pytest.mark.parametrize("seed", range(trials(300)))
def test_part_of_a_blosc_frame(seed: int) -> None:
    """Whatever the codec, the shuffle and the block size."""
    rng = np.random.default_rng(seed)
    values = chunk(rng, int(rng.choice([1, 2, 4, 8])))
    cname, shuffle = rng.choice([b"zstd", b"zstd", b"lz4"]), int(rng.integers(0, 3))
    block = int(rng.choice([0, 4096, ZSTD_BLOCK, 1 << 21]))
    frame = blosc.compress(values, cname, int(rng.integers(1, 6)), shuffle, block)
    check(rng, frame, values.tobytes(), unblosc_into)


@pytest.mark.parametrize("seed", range(trials(300)))
def test_part_of_a_zstd_frame(seed: int) -> None:
    """With and without a checksum, the size of the content, and blocks of their own length."""
    rng = np.random.default_rng(seed)
    data = chunk(rng, 2).tobytes()
    options = {"write_checksum": bool(rng.integers(2)), "write_content_size": bool(rng.integers(2))}
    compressor = zstandard.ZstdCompressor(int(rng.choice([1, 3, 12])), **options)
    frame = compressor.compress(data)
    if rng.integers(2):
        stream = compressor.compressobj(size=len(data))
        cut = int(rng.integers(0, len(data)))
        first = stream.compress(data[:cut]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        frame = first + stream.compress(data[cut:]) + stream.flush()
    check(rng, frame, data, unzstd_into)


def check(rng: np.random.Generator, frame: bytes, data: bytes, into: Any) -> None:
    """Decode a part; of a frame that was damaged, the same, another, or none."""
    first, stop = sorted(map(int, rng.integers(0, len(data) + 1, 2)))
    for stored in (frame, bytearray(frame)):
        out = bytearray(len(data))
        into(stored, memoryview(out), first, stop)
        assert out[first:stop] == data[first:stop]
    damaged = bytearray(frame)
    damaged[int(rng.integers(len(frame)))] ^= 1 << int(rng.integers(8))
    with contextlib.suppress(CodecError):
        into(memoryview(damaged), memoryview(bytearray(len(data))), first, stop)


def test_the_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shuffled elements, the upper bytes of those after the part are not decoded."""
    decoded = []
    decode = decompress._unzstd_native

    def counting(library: Any, data: Any, out: memoryview) -> int:
        decoded.append(decode(library, data, out))
        return decoded[-1]

    monkeypatch.setattr(decompress, "_unzstd_native", counting)
    if decompress.blosc_library() is None:
        pytest.skip("numcodecs exports no functions of zstd")
    values = np.random.default_rng(0).poisson(200, 2 * ZSTD_BLOCK).astype("u2")
    frame = blosc.compress(values, b"zstd", 1, blosc.SHUFFLE, 1 << 20)
    out = bytearray(values.nbytes)
    unblosc_into(frame, memoryview(out), 0, 2000)
    assert out[:2000] == values.tobytes()[:2000]
    assert decoded == [3 * ZSTD_BLOCK]
