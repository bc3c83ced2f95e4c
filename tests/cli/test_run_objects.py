"""`weft run` from and to a store of objects."""

import boto3
import numpy as np
import pytest
import zarr
from tests.cli.test_run import begun, x  # noqa: F401
from tests.store.server import running_moto

from weft import ZRange
from weft.store import create_shards
from weft.store import open as open_store


@pytest.fixture
def endpoint(monkeypatch):
    """A server that the environment names, as for any program that uses S3."""
    with running_moto() as port:
        url = f"http://127.0.0.1:{port}"
        for name, value in {
            "AWS_ENDPOINT": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
        client.create_bucket(Bucket="grid")
        client.close()
        yield url


def test_from_objects_to_objects(x, endpoint, capsys):  # noqa: F811
    writer = create_shards("s3://grid/x.zarr", x.shape, "float32", (3, 5), (6, 10))
    source = zarr.open_array("x.zarr")[...]
    writer.write(ZRange.of(x.shape), source)
    args = ["--input", "x=s3://grid/x.zarr", "--output", "add=s3://grid/y.zarr"]
    assert begun(*args, "--output", "sum_dim=s.npy") == 0, capsys.readouterr().err
    assert np.array_equal(open_store("s3://grid/y.zarr").read(), x + x)
    capsys.readouterr()
    assert begun(*args, "--output", "sum_dim=s.npy") == 2
    assert "output add: s3://grid/y.zarr holds an array already" in capsys.readouterr().err
