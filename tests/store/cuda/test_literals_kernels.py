"""The kernels of literals make the reference's bytes."""

import numpy as np
import pytest
from tests.store.chunks import KINDS, chunks
from tests.store.cuda.launches import by_literals, by_zstd
from tests.store.reference.literals import PIECE, encode_literals_of, encode_zstd_of
from tests.store.reference.runs import TYPESIZES
from tests.store.test_literals import odd_pieces
from tests.trials import trials

CASES = trials(100)


def test_random_chunks(host):
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        typesize, kind = int(rng.choice(TYPESIZES)), int(rng.integers(KINDS))
        most = int(rng.choice([40, 2_000, 3 * PIECE, 3 * PIECE * typesize])) // typesize
        rows = chunks(rng, int(rng.integers(1, 4)), typesize * int(rng.integers(1, most + 1)), kind)
        shift, gap = rng.integers(0, 20, 2).tolist() if rng.random() < 0.4 else (0, 0)
        made = by_literals(host, rows, typesize, shift=shift, gap=gap)
        assert made == encode_literals_of(rows, typesize), f"seed {seed}: {rows.shape} {typesize}"
        made = by_zstd(host, rows, shift=shift, gap=gap)
        assert made == encode_zstd_of(rows), f"seed {seed}: {rows.shape}"


@pytest.mark.parametrize("typesize", TYPESIZES)
@pytest.mark.parametrize("kind", range(KINDS))
def test_whole_blocks(host, typesize, kind):
    rows = chunks(np.random.default_rng(kind), 2, 2 * PIECE * typesize, kind)
    assert by_literals(host, rows, typesize) == encode_literals_of(rows, typesize)


def test_odd_codes(host):
    for piece in odd_pieces():
        assert by_zstd(host, piece[None]) == encode_zstd_of(piece[None])


def test_chunks_of_more_blocks_than_threads(host):
    rows = chunks(np.random.default_rng(0), 1, 300 * PIECE + 4, 4)
    assert by_literals(host, rows, 1) == encode_literals_of(rows, 1)
    assert by_zstd(host, rows) == encode_zstd_of(rows)


def test_chunks_that_are_absent_are_not_written(host):
    rows = chunks(np.random.default_rng(0), 3, 4000, 4)
    first, _, last = encode_literals_of(rows, 2)
    assert by_literals(host, rows, 2, absent=[1]) == [first, b"", last]
    first, _, last = encode_zstd_of(rows)
    assert by_zstd(host, rows, absent=[1]) == [first, b"", last]
