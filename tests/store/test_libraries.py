"""Stored arrays in the hands of pandas, xarray and dask; `make beside` has all of them."""

import pickle
import warnings

import numpy as np
import pytest

from weft import store

DATA = np.arange(12 * 8 * 6, dtype="uint16").reshape(12, 8, 6)


@pytest.fixture
def array(tmp_path):
    """A recording with the metadata of frames; every fifth frame was dropped."""
    grid = (None, 8, 6), "uint16", (2, 4, 4), (4, 8, 8)
    with store.create(tmp_path / "a", *grid, dimension_names=["t", "y", "x"]) as writer:
        for number, frame in enumerate(DATA):
            if number % 5 == 4:
                writer.skip()
            else:
                about = {"delta_t": number / 4, "stage": {"x": number}, "name": f"frame {number}"}
                writer.append(frame, metadata=about)
    return store.open(tmp_path / "a")


def test_frames_as_a_table_of_pandas(array):
    pandas = pytest.importorskip("pandas")
    table = array.frames.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.shape[0] == len(array.frames) == 12
    assert table["dropped"].tolist() == [number % 5 == 4 for number in range(12)]
    assert table["delta_t"].dtype == float
    assert table["delta_t"].isna().tolist() == table["dropped"].tolist()
    kept = table[~table["dropped"]]
    assert kept["delta_t"].tolist() == [number / 4 for number in range(12) if number % 5 != 4]
    assert kept["name"].iloc[-1] == "frame 11"
    assert table.set_index("delta_t").loc[0.5, "name"] == "frame 2"


def test_arrays_of_xarray(array):
    xarray = pytest.importorskip("xarray")
    dask = pytest.importorskip("dask.array")
    read = xarray.DataArray(array, dims=array.dimension_names)
    wanted = np.asarray(array)
    assert np.array_equal(read.values, wanted)
    lazy = xarray.DataArray(dask.from_array(array, chunks=array.shards), dims=array.dimension_names)
    assert lazy.isel(t=slice(2, 9), x=-1).mean("t").shape == (8,)
    assert int(lazy.sum()) == int(wanted.sum())
    assert np.array_equal(lazy.sel(y=[0, 3]).values, wanted[:, [0, 3]])


def test_what_xarray_wrote(tmp_path):
    """Coordinates, times and text of a dataset, as a group of arrays."""
    xarray = pytest.importorskip("xarray")
    times = np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")
    values = np.random.default_rng(0).normal(size=(2, 5))
    coords = {"time": times, "station": [f"s{n}" for n in range(5)]}
    data = xarray.Dataset({"t2m": (("time", "station"), values)}, coords)
    for version in (2, 3):
        with warnings.catch_warnings():  # text of Zarr v3 is not specified yet
            warnings.simplefilter("ignore")
            data.to_zarr(tmp_path / f"v{version}", zarr_format=version)
        group = store.open(tmp_path / f"v{version}")
        assert sorted(group) == ["station", "t2m", "time"]
        assert np.array_equal(group["t2m"], values)
        assert group["time"].attrs["units"].startswith("days since 2026-01-01")
        assert group["station"][...].tolist() == coords["station"]


def test_blocks_of_dask(array, tmp_path):
    dask = pytest.importorskip("dask.array")
    wanted = np.asarray(array)
    blocks = dask.from_array(array, chunks=(4, 8, 6))
    assert np.array_equal((blocks[1:11:3, ::-1] + 1).compute(), wanted[1:11:3, ::-1] + 1)
    view = dask.from_array(array[2:, :, 1], chunks=4)
    assert np.array_equal(view.compute(scheduler="threads"), wanted[2:, :, 1])
    assert np.array_equal(pickle.loads(pickle.dumps(array[3:5])), wanted[3:5])
    blocks.to_zarr(str(tmp_path / "copy"))
    assert np.array_equal(store.open(tmp_path / "copy"), wanted)
