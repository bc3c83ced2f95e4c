"""The kernels of runs make the reference's bytes."""

import numpy as np
import pytest
from tests.store.chunks import KINDS, chunks
from tests.store.cuda.launches import by_runs
from tests.store.reference.runs import BLOCK, TYPESIZES, encode_runs_of
from tests.trials import trials

CASES = trials(150)


def test_random_chunks(host):
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        typesize, kind = int(rng.choice(TYPESIZES)), int(rng.integers(KINDS))
        most = int(rng.choice([40, 2_000, 3 * BLOCK])) // typesize
        rows = chunks(rng, int(rng.integers(1, 4)), typesize * int(rng.integers(1, most + 1)), kind)
        shift, gap = (
            (int(rng.integers(16)), int(rng.integers(20))) if rng.random() < 0.4 else (0, 0)
        )
        made = by_runs(host, rows, typesize, shift=shift, gap=gap)
        assert made == encode_runs_of(rows, typesize), f"seed {seed}: {rows.shape} {typesize}"


@pytest.mark.parametrize("typesize", TYPESIZES)
@pytest.mark.parametrize("kind", range(KINDS))
def test_whole_blocks(host, typesize, kind):
    rows = chunks(np.random.default_rng(kind), 2, 2 * BLOCK, kind)
    assert by_runs(host, rows, typesize) == encode_runs_of(rows, typesize)


@pytest.mark.parametrize("size", [1, 2, 12, 13, 18, 19, 20, 63, 64, 65, BLOCK - 1, BLOCK + 1])
@pytest.mark.parametrize("value", [0, 255])
def test_one_value(host, size, value):
    rows = np.full((1, size), value, np.uint8)
    assert by_runs(host, rows, 1) == encode_runs_of(rows, 1)


def test_chunks_of_more_blocks_than_threads(host):
    rows = chunks(np.random.default_rng(0), 1, 300 * BLOCK + 4, 1)
    assert by_runs(host, rows, 4) == encode_runs_of(rows, 4)


def test_chunks_that_are_absent_are_not_written(host):
    rows = chunks(np.random.default_rng(0), 3, 4000, 4)
    first, _, last = encode_runs_of(rows, 2)
    assert by_runs(host, rows, 2, absent=[1]) == [first, b"", last]
