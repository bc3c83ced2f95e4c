"""The reduction kernel on the host, beside the CPU's reducer."""

import numpy as np
import pytest
from tests.store.cuda.host import Buffer, Host, empty, needs_compiler, u64

from weft import WeftError
from weft.store.cuda.pyramid import METHODS, reduce_source
from weft.store.pyramid.reduce import Reducer

DTYPES = ["bool", "uint8", "uint16", "uint64", "int8", "int32", "int64", "float32", "float64"]


@pytest.mark.parametrize("seed", range(15))
def test_windows_are_reduced_as_by_the_cpu(tmp_path, seed):
    needs_compiler()
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.integers(1, 9, rank))
    factors = tuple(int(n) for n in rng.integers(1, 4, rank))
    factors = tuple(f if np.prod(factors) <= 64 else min(f, 2) for f in factors)
    method, name = METHODS[seed % len(METHODS)], str(rng.choice(DTYPES))
    values = (rng.standard_normal(shape) * 90).astype(name)
    if "int64" in name:  # at the extremes
        values = np.where(rng.random(shape) < 0.5, np.iinfo(name).max, values).astype(name)
    if name.startswith("float") and rng.random() < 0.5:
        values.reshape(-1)[int(rng.integers(values.size))] = np.nan
    reducer = Reducer(shape, factors, method, name)
    made = [*reducer.push(values), *reducer.finish()]
    wanted = np.concatenate([part.reshape(-1) for part in made])
    host = Host(tmp_path, "reduce.cu", reduce_source(shape[1:], factors, method, name))
    out = empty(wanted.size, name)
    blocks = -(-wanted.size // 256)
    given = Buffer(values), out, u64(shape[0]), u64(wanted.size)
    host.launch("weft_reduce", blocks, *given)
    assert np.array_equal(out.array, wanted, equal_nan=name.startswith("float")), (method, name)


def test_unsupported_reductions_on_a_gpu_are_refused():
    with pytest.raises(WeftError, match="levels of complex64 cannot be computed on a GPU"):
        reduce_source((4,), (1, 2), "mean", "complex64")
    with pytest.raises(WeftError, match="a window of 125 elements; a GPU takes at most 64"):
        reduce_source((9, 9), (5, 5, 5), "mean", "uint8")
