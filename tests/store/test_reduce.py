"""A stream that is reduced as it arrives is what the whole array gives, window by window."""

import tracemalloc
from itertools import product
from math import prod

import numpy as np
import pytest
from tests.store.cases import DTYPES
from tests.store.windows import brute, one_of
from tests.trials import trials

from weft import WeftError
from weft.store.pyramid.reduce import METHODS, Reducer

CASES = trials(600)


# -- random streams


def methods_of(name):
    """The ways to reduce numbers of a kind."""
    if name.startswith("complex"):
        return ("mean", "first")
    is_whole = name == "bool" or "int" in name
    return METHODS if is_whole else tuple(method for method in METHODS if method != "mode")


class Stream:
    """A random array, how it is reduced, and the blocks in which it arrives."""

    def __init__(self, seed):
        rng = self.rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 6))
        most = {1: 50, 2: 16, 3: 9, 4: 6, 5: 4}[rank]
        self.shape = tuple(int(n) for n in rng.integers(1, most + 1, rank))
        self.factors = tuple(int(f) for f in rng.integers(1, 4, rank))
        if rng.random() < 0.3:  # the leading dimensions only count
            lead = int(rng.integers(0, rank + 1))
            self.factors = (1,) * lead + self.factors[lead:]
        self.name = str(rng.choice([*DTYPES, "bfloat16"]))
        self.method = str(rng.choice(methods_of(self.name)))
        self.is_unbounded = rng.random() < 0.5
        self.array = self._array()
        self.count = self.array.size
        if rng.random() < 0.3:
            self.count = int(rng.integers(0, self.array.size + 1))

    def _array(self):
        rng, name = self.rng, self.name
        if name == "bool":
            return rng.random(self.shape) < 0.5
        if "int" in name:
            limits = np.iinfo(name)
            ends = rng.choice(np.array([limits.min, limits.max], name), self.shape)
            small = rng.integers(0, 100, self.shape).astype(name)
            any_ = rng.integers(limits.min, limits.max, self.shape, name, endpoint=True)
            return [ends, small, any_, np.where(rng.random(self.shape) < 0.5, ends, any_)][
                int(rng.integers(4))
            ]
        if name == "bfloat16":
            bits = rng.integers(0, 1 << 16, self.shape, "uint16")
            return self._numbers(bits, bits & 0x7F80 == 0x7F80, np.uint16(0x7FC0))
        values = rng.standard_normal(self.shape) * 10.0 ** rng.integers(-8, 4, self.shape)
        if name.startswith("complex"):
            values = values + 1j * rng.standard_normal(self.shape)
        return self._numbers(values, rng.random(self.shape) < 0.1, np.nan).astype(name)

    def _numbers(self, values, is_odd, odd):
        """The values, with NaN here and there or nowhere."""
        if self.rng.random() < 0.5:
            return np.where(is_odd, values.dtype.type(0), values)
        return np.where(is_odd, odd, values)

    @property
    def given_shape(self):
        return (None, *self.shape[1:]) if self.is_unbounded else self.shape

    def blocks(self):
        """The elements in blocks of any rank, some strided, that begin and end anywhere."""
        at = 0
        while at < self.count:
            dim = int(self.rng.integers(0, len(self.shape)))
            inner = self.shape[dim + 1 :]
            unit = prod(inner)
            if unit > self.count - at:
                continue
            rows = int(self.rng.integers(1, (self.count - at) // unit + 1))
            rows = min(rows, int(self.rng.integers(1, 40)))
            block = self.array.reshape(-1)[at : at + rows * unit].reshape(rows, *inner)
            if self.rng.random() < 0.3:
                block = np.repeat(block, 2, axis=-1)[..., ::2]
            at += block.size
            yield block

    def __repr__(self):
        return (
            f"{self.method} of {self.name}{self.given_shape} by {self.factors}, "
            f"{self.count} of {self.array.size} elements"
        )


def reduce_stream(case):
    reducer = Reducer(case.given_shape, case.factors, case.method, case.name)
    found = []
    for block in case.blocks():
        made = list(reducer.push(block.copy()))
        assert sum(given.size for given in made) <= reducer.max_output(block.size)
        found += made
    return [*found, *reducer.finish()], reducer


def is_same(one, two, name):
    if name == "bfloat16":
        is_nan = (one & 0x7FFF > 0x7F80) & (two & 0x7FFF > 0x7F80)
        return bool(np.all((one == two) | is_nan | ((one | two) & 0x7FFF == 0)))
    return one.dtype == two.dtype and np.array_equal(one, two, equal_nan="int" not in name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reducing_a_stream_equals_reducing_the_whole_array():
    for seed in range(CASES):
        case = Stream(seed)
        made, reducer = reduce_stream(case)
        wanted = brute(case.array, case.count, case.factors, case.method, case.name)
        found = np.concatenate([np.zeros(0, wanted.dtype), *(block.reshape(-1) for block in made)])
        assert is_same(found, wanted, case.name), f"seed {seed}: {case}"
        inner = reducer.reduced_shape[1:]
        for block in made:
            tail = block.shape[1:]
            assert tail == inner[len(inner) - len(tail) :], f"seed {seed}: {case}"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in ("uint8", "int16", "uint16", "int64", "float32")
        for method in methods_of(name)
    ],
)
def test_frames_that_are_worked_on_in_pieces(name, method):
    """Large enough for several pieces; sizes that divide and that do not, frame by frame."""
    rng = np.random.default_rng(3)
    for width in (700, 701):
        array = rng.integers(-(1 << 62), 1 << 62, (4, 400, width)).astype(name)
        if method == "mode":
            array = rng.integers(0, 4, (4, 400, width)).astype(name)
        reducer = Reducer((None, 400, width), (2, 2, 2), method, name)
        found = [block for frame in array for block in reducer.push(frame)]
        wanted = by_numpy(array[..., :700], 2, method)
        if width % 2:
            wanted = np.concatenate([wanted, by_numpy(array[..., 700:], 1, method)], axis=2)
        assert is_same(np.concatenate(found), wanted, name)


def by_numpy(array, last, method):
    """The windows of 2 x 2 x `last` elements that fill an array."""
    t, y, x = array.shape
    split = array.reshape(t // 2, 2, y // 2, 2, x // last, last).transpose(0, 2, 4, 1, 3, 5)
    return of_numpy(split.reshape(*split.shape[:3], -1), method)


def of_numpy(windows, method):
    if method == "first":
        return windows[..., 0]
    if method in ("min", "max"):
        return getattr(windows, method)(axis=-1)
    if method == "mode":
        ordered = np.sort(windows, axis=-1)
        counts = (ordered[..., :, None] == ordered[..., None, :]).sum(axis=-1)
        most = counts.argmax(axis=-1)[..., None]  # the first of several, which is the least
        return np.take_along_axis(ordered, most, -1)[..., 0]
    if method == "median":
        middle = np.sort(windows, axis=-1)
        count = windows.shape[-1]
        windows = middle[..., [count // 2 - 1, count // 2]]
    count = windows.shape[-1]
    if windows.dtype.kind == "f":
        total = np.zeros(windows.shape[:-1])
        for column in np.moveaxis(windows, -1, 0):
            total = total + column
        return (total / count).astype(windows.dtype)
    total = windows.astype(object).sum(axis=-1)
    return ((total + count // 2) // count).astype(windows.dtype)


def test_large_windows_are_partitioned():
    rng = np.random.default_rng(4)
    for size, name in [(81, "uint16"), (64, "float32"), (64, "bfloat16")]:
        values = rng.integers(0, 0x7F80, 2 * size).astype("uint16")
        array = values if name == "bfloat16" else values.astype(name)
        if name == "float32":
            array[5] = np.nan
        (found,) = Reducer((None,), (size,), "median", name).push(array)
        halves = (array[:size], array[size:])
        wanted = np.array([one_of(list(half), "median", name) for half in halves], array.dtype)
        assert is_same(found, wanted, name)


def test_large_windows_have_a_mode():
    array = np.random.default_rng(4).integers(0, 9, 2 * 81).astype("int8")
    (found,) = Reducer((None,), (81,), "mode", "int8").push(array)
    assert found.tolist() == [
        one_of(list(half), "mode", "int8") for half in (array[:81], array[81:])
    ]


def test_bytes_of_either_order_are_numbers():
    array = np.arange(40, dtype=">u2").reshape(5, 8) * 1600
    for method in METHODS:
        big, little = (Reducer((5, 8), (2, 2), method, "uint16") for _ in range(2))
        (one,), (two,) = big.push(array), little.push(array.astype("<u2"))
        assert one.dtype == two.dtype == np.uint16
        assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in ("uint16", "uint64", "float32", "bfloat16")
        for method in methods_of(name)
    ],
)
def test_memory_is_at_most_as_predicted(method, name):
    frames = np.ones((4, 512, 640), "uint16" if name == "bfloat16" else name)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        reducer = Reducer((None, 512, 640), (2, 2, 2), method, name)
        held = tracemalloc.get_traced_memory()[0] - before
        predicted = reducer.memory() + reducer.workspaces.nbytes
        assert 0 <= held - predicted < 20_000, "arrays, and a few Python objects"
        tracemalloc.reset_peak()
        for frame in frames:
            for made in reducer.push(frame):
                given = made.nbytes
        peak = tracemalloc.get_traced_memory()[1] - before
        casts = 100_000  # NumPy casts 8,192 elements at a time
        assert peak - predicted - 2 * given < casts
        others = [Reducer((None, 512, 640), (2, 2, 2), method, name) for _ in range(9)]
        more = tracemalloc.get_traced_memory()[0] - before - predicted
        assert more - 9 * reducer.memory() < given + 100_000, "they share the workspace"
        del reducer, others
        assert tracemalloc.get_traced_memory()[0] - before < 2 * given + 100_000
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_factor_of_an_outer_dimension():
    """A mean over many frames holds one number for each window, a median every frame."""
    few, many = (Reducer((None, 256, 256), (n, 1, 1), "mean", "uint16") for n in (32, 128))
    assert many.memory() <= few.memory()
    few, many = (Reducer((None, 256, 256), (n, 1, 1), "median", "uint16") for n in (32, 128))
    assert many.memory() > 3 * few.memory()


def test_blocks_can_be_written_to_again():
    array = np.arange(24, dtype="uint8").reshape(6, 4)
    for factors, method in product([(1, 1), (2, 2), (4, 2)], METHODS):
        one, two = (Reducer((None, 4), factors, method, "uint8") for _ in range(2))
        found, buffer = [], np.empty((1, 4), "uint8")
        for row in array:
            buffer[0] = row
            found += one.push(buffer)
        found += one.finish()
        wanted = [*two.push(array), *two.finish()]
        assert np.concatenate(found).tolist() == np.concatenate(wanted).tolist()


def test_invalid_reductions_are_refused():
    for arguments, message in [
        (((4, 4), (2, 2), "sum", "uint8"), "'sum' is not a way to reduce"),
        (((4, 4), (2, 2), "mode", "float32"), "float32 numbers have no mode"),
        (((4, 4), (2,), "mean", "uint8"), "1 factors for 2 dimensions"),
        (((4, 4), (2, 0), "mean", "uint8"), "dimension 1 is reduced by 0"),
        (((4, 4), (2, 1.5), "mean", "uint8"), r"dimension 1 is reduced by 1\.5"),
        (((4, None), (2, 2), "mean", "uint8"), "dimension 1 cannot be unbounded"),
        (((4, 0), (2, 2), "mean", "uint8"), "dimension 1 of a stream has the size 0"),
        (((4,), (1 << 31,), "mean", "uint8"), "windows of 2147483648 elements are too large"),
        (((4, 4), (2, 2), "median", "complex64"), "complex64 numbers have no median"),
        (((4, 4), (2, 2), "mean", "str"), "cannot be stored in Zarr v3"),
    ]:
        with pytest.raises(WeftError, match=message):
            Reducer(*arguments)
    with pytest.raises(WeftError, match="no window begins at row 3: they have 2 rows"):
        Reducer((None, 4), (2, 2), "mean", "uint8").start_at(3)
    reducer = Reducer((4, 4), (2, 2), "mean", "uint8")
    with pytest.raises(WeftError, match="the stream is of uint8, and the block of int64"):
        reducer.push(np.zeros((1, 4), int))
    with pytest.raises(
        WeftError, match=r"a block of \[1, 5\] is not a part of a stream of \[…, 4\]"
    ):
        reducer.push(np.zeros((1, 5), "uint8"))
    assert len(list(reducer.push(np.zeros((3, 4), "uint8")))) == 1
    with pytest.raises(WeftError, match="8 elements after 12 are past the end"):
        reducer.push(np.zeros((2, 4), "uint8"))
    assert len(list(reducer.push(np.zeros((1, 4), "uint8")))) == 1, (
        "what was refused changed nothing"
    )
