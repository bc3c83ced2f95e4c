"""A server of objects for the tests that need one, and a proxy before it."""

import os

import pytest
from tests.store import server

from weft.store.objects.sink import ObjectSink


@pytest.fixture(scope="session")
def moto():
    kept = {name: value for name, value in os.environ.items() if name.lower() == "no_proxy"}
    os.environ.update(no_proxy="127.0.0.1", NO_PROXY="127.0.0.1")
    with server.running_moto() as port:
        yield port
    for name in ("no_proxy", "NO_PROXY"):
        os.environ.pop(name)
    os.environ.update(kept)


@pytest.fixture(scope="session")
def client(moto):
    """What the server has, as another client sees it."""
    made = pytest.importorskip("boto3").client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{moto}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_proxy(moto):
    with server.running_proxy(moto) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy):
    yield shared_proxy
    shared_proxy.heal()
    shared_proxy.seen.clear()
    shared_proxy.asked_by.clear()


@pytest.fixture
def bucket(client, request):
    name = f"b{abs(hash(request.node.nodeid)):x}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def options(proxy):
    return {**server.QUICK, **server.KEYS, "endpoint": f"http://127.0.0.1:{proxy.port}"}


@pytest.fixture
def sink(bucket, options):
    return ObjectSink.of(f"s3://{bucket}/some folder/a.zarr", options)
