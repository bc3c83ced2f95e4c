"""Operators on sharded tensors, however they lie, against the same operators on whole arrays."""

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.cases import CASES
from tests.runtime.tensors import random_mesh, scattered
from tests.runtime.test_validate import WITH_KERNELS
from tests.trials import trials

from weft.lang.arithmetic import apply_all
from weft.runtime.communication_log import communication
from weft.runtime.tensor import Tensor

TRIALS = trials(25)
"""Applications of each operator: 25 in `make test`, 500 in `make fuzz`."""


def agree(one, two):
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.dtype.kind in "biu":
        return np.array_equal(one, two)
    tolerance = max(1e-5, 32 * float(ml_dtypes.finfo(one.dtype).eps) * (one.dtype.itemsize == 2))
    wide = "complex128" if one.dtype.kind == "c" else "float64"
    one, two = one.astype(wide), two.astype(wide)
    scale = np.abs(two[np.isfinite(two)]).max(initial=1)
    return np.allclose(one, two, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_any_sharding_gives_what_whole_arrays_give(name):
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        operands, attributes = CASES[name](rng)
        if not operands:
            continue
        mesh = random_mesh(rng)
        tensors = [scattered(rng, operand, mesh) for operand in operands]
        expected = apply_all(name, *map(Tensor, map(np.asarray, operands)), **attributes)
        with communication() as moved:
            found = apply_all(name, *tensors, **attributes)
        how = f"seed {seed}: {', '.join(map(str, tensors))} {attributes}"
        for one, two in zip(found, expected):
            assert agree(one, two), how
        assert moved.received == moved.sent, how
