"""Arrays of Zarr v2 and v3 that zarr-python, tensorstore and numcodecs write are read as NumPy."""

import shutil

import numpy as np
import pytest
from tests.store.foreign_arrays import random_array
from tests.store.index_expressions import random_index
from tests.trials import EXAMPLES, FULL, trials

from weft.store import open as open_store

ARRAYS = trials(2000, None if EXAMPLES >= FULL else 60)


def same(one, two):
    """Whether two arrays are equal in every bit, except that NaNs may differ."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    if one.dtype.kind in "fcT":
        return np.array_equal(one, two, equal_nan=one.dtype.kind != "T")
    return one.tobytes() == two.tobytes()


@pytest.mark.parametrize("first", range(5))
def test_random_arrays_of_other_writers_are_read(tmp_path, first):
    for seed in range(first, ARRAYS, 5):
        path = tmp_path / str(seed)
        expected, writer = random_array(seed, path)
        array = open_store(path)
        note = f"seed {seed}, {writer}: {array!r}"
        assert same(array.read(), expected), note
        assert same(np.asarray(array), expected), note
        rng = np.random.default_rng(seed)
        for _ in range(5):
            index = random_index(rng, expected.shape)
            assert same(np.asarray(array[index]), np.asarray(expected[index])), f"{note} {index!r}"
        array.verify()
        shutil.rmtree(path)
