"""Stored arrays are indexed and computed with as NumPy's are; only what is needed is read."""

import pickle

import numpy as np
import pytest
import zarr
from tests.store.index_expressions import outer, random_index, take_outer
from tests.trials import EXAMPLES, FULL, trials

from weft import WeftError
from weft.store import create, native
from weft.store import open as open_store
from weft.store.view import View

EXPRESSIONS = trials(10_000, None if EXAMPLES >= FULL else 300)
PER_ARRAY = 25


def random_stored(seed, path):
    """An array of random shape, chunks, shards and storage order, and its values."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(0, 6))
    most = {0: 1, 1: 40, 2: 15, 3: 9, 4: 6, 5: 4}[rank]
    shape = tuple(int(n) for n in rng.integers(rng.random() > 0.1, most + 1, rank))
    chunks = tuple(int(rng.integers(1, n + 2)) for n in shape)
    shards = tuple(c * int(rng.integers(1, 4)) for c in chunks)
    order = tuple(map(int, rng.permutation(rank)))
    array = zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        shards=shards if shape and rng.random() < 0.6 else None,
        dtype="int32",
        filters=[zarr.codecs.TransposeCodec(order=order)] if rng.random() < 0.3 and shape else [],
        compressors=None if rng.random() < 0.3 else "auto",
    )
    values = rng.integers(0, 1000, shape).astype("int32")
    if 0 not in shape:
        array[...] = values
    return rng, values


def check(found, expected, note):
    assert np.shape(found) == np.shape(expected), note
    assert isinstance(found, np.generic) == isinstance(expected, np.generic), note
    assert np.asarray(found).dtype == expected.dtype, note
    assert np.array_equal(found, expected), note


@pytest.mark.parametrize("part", range(4))
def test_random_indices_select_what_numpy_selects(tmp_path, part):
    for seed in range(part, EXPRESSIONS // PER_ARRAY, 4):
        rng, values = random_stored(seed, tmp_path / str(seed))
        array = open_store(tmp_path / str(seed))
        for _ in range(PER_ARRAY):
            index = random_index(rng, values.shape)
            found, expected = array[index], values[index]
            check(found, expected, f"seed {seed}: {index!r}")
            if isinstance(found, View):
                then = random_index(rng, expected.shape)
                check(found[then], expected[then], f"seed {seed}: {index!r} then {then!r}")
            items = outer(rng, values.shape)
            check(array.oindex[items], take_outer(values, items), f"seed {seed}: outer {items!r}")


X = np.arange(24 * 10 * 12, dtype="uint16").reshape(24, 10, 12)


@pytest.fixture
def array(tmp_path):
    with create(
        tmp_path / "a", (None, 10, 12), "uint16", (4, 5, 6), (8, 10, 12), codecs="zstd",
        dimension_names=["t", "y", "x"], attributes={"gain": 2},
    ) as writer:  # fmt: skip
        writer.append(X)
    return open_store(tmp_path / "a")


def test_attributes_are_those_of_arrays(array):
    assert (array.shape, array.ndim, array.size, array.nbytes) == (X.shape, 3, X.size, X.nbytes)
    assert (array.chunks, array.shards, array.dtype, len(array)) == (
        (4, 5, 6),
        (8, 10, 12),
        "u2",
        24,
    )
    assert (array.attrs["gain"], array.fill_value, array.dimension_names) == (2, 0, ("t", "y", "x"))
    assert repr(array) == f"<Array uint16[24, 10, 12] at {array.url}>"
    assert repr(array[:2]) == f"<View uint16[2, 10, 12] of {array!r}>"
    assert "[4, 5, 6], 24 in all" in array.info
    assert "[8, 10, 12], 3 in all" in array._repr_html_()
    assert "uint16[2, 10, 12]" in array[:2]._repr_html_()


def fetched(array, monkeypatch):
    """The number of stored chunks that are decoded from now on."""
    import weft.store.read as module

    monkeypatch.setattr(native, "compiled", lambda: None)
    counted, decode = [], module.decode
    monkeypatch.setattr(module, "decode", lambda *a, **k: (counted.append(1), decode(*a, **k))[1])
    return counted


def test_views_read_what_they_select_and_nothing_before(array, monkeypatch):
    decoded = fetched(array, monkeypatch)
    view = array[10:20][..., 5]
    assert isinstance(view, View)
    assert (view.shape, decoded) == ((10, 10), [])
    assert np.array_equal(view, X[10:20, :, 5])
    assert len(decoded) == 3 * 2  # of 24 chunks
    decoded.clear()
    assert np.array_equal(array[::8, 0], X[::8, 0])
    assert len(decoded) == 3 * 2
    decoded.clear()
    assert np.array_equal(array[[0, 23], [0, 9], [0, 11]], X[[0, 23], [0, 9], [0, 11]])
    assert len(decoded) == 2


def test_iteration_reads_each_chunk_once(array, monkeypatch):
    decoded = fetched(array, monkeypatch)
    for frame, expected in zip(array, X, strict=True):
        assert np.array_equal(frame, expected)
    assert len(decoded) == 24
    assert all(np.array_equal(*pair) for pair in zip(array[20:1:-3], X[20:1:-3], strict=True))
    assert list(array[0, 0]) == list(X[0, 0])
    with pytest.raises(TypeError, match="without dimensions"):
        iter(array[0, 0, 0, ...])


def test_arithmetic_and_numpy_functions(array):
    assert np.array_equal(array[2:4] + 1, X[2:4] + 1)
    assert np.array_equal(X[0] - array[0], np.zeros((10, 12)))
    assert np.array_equal(array[0] < 5, X[0] < 5)
    assert (array == X).all()
    assert array[3].sum() == X[3].sum() == np.sum(array[3])
    assert np.array_equal(np.concatenate([array[:5], array[5:]]), X)
    assert np.array_equal(np.where(array > 9, array, 0), np.where(X > 9, X, 0))
    assert np.array_equal(array.T, X.T)
    assert np.array_equal(np.add.reduce(array, axis=0), np.add.reduce(X, axis=0))
    assert array[0].astype("f4").dtype == "f4"
    assert np.array_equal(np.from_dlpack(array), X)
    assert isinstance(array[3, 4, 5], np.uint16)
    assert (int(array[0, 0, 1]), bool(array[0, 0, :1]), 7 in array[0]) == (1, False, True)
    assert np.array(array, dtype="f8").dtype == "f8"
    with pytest.raises(ValueError, match="ambiguous"):
        bool(array)
    with pytest.raises(ValueError, match="copy=False is not possible"):
        np.asarray(array, copy=False)
    with pytest.raises(TypeError, match="read-only"):
        np.add(X, 1, out=array)
    with pytest.raises(TypeError, match="stored arrays are read-only"):
        array[0] = 1
    assert np.array_equal(pickle.loads(pickle.dumps(array[3:5])), X[3:5])


def test_wrong_indices_are_refused_as_in_numpy(array):
    for index in (24, -25, (0, 0, 0, 0), "x", 1.5, [1.5], (..., ...), [[0], [24]]):
        with pytest.raises(IndexError):
            array[index]
        with pytest.raises(WeftError):
            array[index]
    for index in (np.ones(23, bool), ([0, 1], [0, 1, 2]), np.ones((24, 10, 13), bool)):
        with pytest.raises(IndexError):
            array[index]
    with pytest.raises(ValueError, match="zero"):
        array[::0]


def test_points_and_outer_indices(array):
    rows, columns = np.array([[1], [5]]), np.array([0, 3, 7])
    assert np.array_equal(array.vindex[rows, :, columns], X[rows, :, columns])
    assert np.array_equal(array.vindex[:, [0, 1], [2, 3]], np.moveaxis(X[:, [0, 1], [2, 3]], 1, 0))
    assert np.array_equal(array.oindex[[5, 1], 2, [0, 3, 7]], X[[5, 1], 2][:, [0, 3, 7]])
    assert np.array_equal(array.oindex[X[:, 0, 0] > 99, ..., ::5], X[X[:, 0, 0] > 99][..., ::5])
    assert array.oindex[1, 2, 3] == X[1, 2, 3]


def test_dense_masks_and_sparse_points(array):
    mask = X % 3 > 0
    assert np.array_equal(array[mask], X[mask])
    assert np.array_equal(array[:, mask[0]], X[:, mask[0]])
    at = tuple(np.random.default_rng(0).integers(0, n, 400) for n in X.shape)
    assert np.array_equal(array[at], X[at])
    few = tuple(each[:3] for each in at)
    assert np.array_equal(array[few], X[few])


@pytest.mark.slow
def test_dask_reads_blocks(array):
    dask = pytest.importorskip("dask.array")
    found = dask.from_array(array, chunks=(7, 10, 5))
    assert np.array_equal(found[5:9, ::2].compute(), X[5:9, ::2])
    assert type(found.compute()) is np.ndarray
    assert dask.from_array(array[2:9]).sum().compute() == X[2:9].sum()


def test_huge_arrays_have_views(tmp_path):
    shape = (1 << 40, 1 << 30, 1 << 20)
    zarr.create_array(tmp_path / "a", shape=shape, chunks=(1, 64, 64), dtype="u1", fill_value=3)
    view = open_store(tmp_path / "a")[1 << 39 :, 5][..., ::-1][:2, :3]
    assert np.array_equal(view, np.full((2, 3), 3, "u1"))
    with pytest.raises(WeftError, match="not enough memory"):
        open_store(tmp_path / "a").sum()


def test_bfloat16_has_its_values(tmp_path):
    types = pytest.importorskip("ml_dtypes")
    values = np.arange(6).reshape(2, 3).astype(types.bfloat16)
    with create(tmp_path / "a", (2, 3), "bfloat16", (1, 3), fill_value=1.5) as writer:
        writer.append(values.view("u2"))
    array = open_store(tmp_path / "a")
    assert array.dtype == types.bfloat16
    assert array.fill_value == 1.5
    assert np.array_equal(array[...] + 1, values + 1)
    assert array.read().dtype == np.uint16  # their bits


def test_arguments_that_are_none_are_refused(array):
    for refused, message in [
        (lambda: array.read(np.s_[0:2, :, :]), "expected a box, a ZRange, got"),
        (lambda: array.read(out=[1]), "out: expected a NumPy array, got list"),
        (lambda: array.read(threads=0), "threads is 0; it must be 1 or more"),
        (lambda: array[::2].read(threads=-1), "threads is -1; it cannot be negative"),
        (lambda: array.read(device="tpu"), "device: 'tpu' is not a device"),
        (lambda: next(array.rows(0)), "0 rows at a time of dimension 0 of 3"),
        (lambda: open_store("file://host/a"), "is on the host 'host'"),
    ]:
        with pytest.raises(WeftError, match=message):
            refused()
    with pytest.raises(TypeError, match="read-only"):
        np.add.at(array, 0, 1)
    assert {"sum", "T", "read", "shape"} < set(dir(array))


def test_bytes_text_and_comparisons_are_those_of_numpy(tmp_path):
    data = np.arange(300, dtype="int16").reshape(3, 100)
    zarr.create_array(tmp_path / "a", shape=data.shape, chunks=(2, 60), dtype="int16")[...] = data
    array = open_store(tmp_path / "a")
    assert bytes(array[0, :9]) == bytes(data[0, :9])  # not the elements as bytes
    assert bytes(array) == data.tobytes()
    for other in ("a", None, 7, data, [1] * 100):
        assert np.array_equal(array == other, data == other)
        assert np.array_equal(array != other, data != other)
    assert f"{array[0, 7:8].read()[0]:03d} {array[2, 99, ...]:.1f}" == "007 299.0"
    assert f"{array}" == str(array)
