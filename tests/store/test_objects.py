"""Stores of objects, on a server of its own, with and without harm."""

import json
import os
import threading
import time
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import obstore
import pytest
import zarr
import zarr.storage
from tests.store import server

from weft.errors import WeftError
from weft.space import ZRange
from weft.store import create, create_positions, open_positions
from weft.store import open as open_store
from weft.store.files import Folder
from weft.store.objects import lease as lease_module
from weft.store.objects.lease import LOCK, Lease
from weft.store.objects.sink import ObjectSink
from weft.store.sink import SinkError

PART, QUICK = server.PART, server.QUICK


@pytest.fixture(params=["s3", "memory"])
def any_sink(request):
    if request.param == "s3":
        return request.getfixturevalue("sink")
    return ObjectSink.of(f"memory://{abs(hash(request.node.name)):x}/a.zarr", {"part_size": PART})


def noise(size, seed=0):
    return np.random.default_rng(seed).bytes(size)


def value(sink, key):
    found = sink.fetch(key)
    return None if found is None else bytes(found.data)


def uploads(client, bucket):
    return [
        found["Key"] for found in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    ]


def fill(upload):
    """Three parts, in four pieces."""
    for _ in range(4):
        upload.append([bytes(PART // 4 * 3)])
    upload.finish(b"index")


PATIENT = 300.0
"""Seconds that a server may take which is expected to answer."""


def impatient(options, timeout=PATIENT, retries=1):
    """Options with few retries, with which a request that hangs is given up after some seconds."""
    retry = {**options["retry_config"], "max_retries": retries}
    return {**options, "retry_config": retry, "client_options": {"timeout": timeout}}


# -- a map from keys to values


def test_parts_of_values_are_those_of_files(any_sink, tmp_path):
    folder = Folder(tmp_path)
    for key, data in {"c/0": b"0123456789", "c/1": b"", "zarr.json": b"{}"}.items():
        any_sink.put(key, data)
        folder.put(key, data)
    for key in ("c/0", "c/1", "c/2"):
        for start in (0, 1, 9, 10, 11, 40, -1, -3, -10, -11):
            for count in (None, 0, 1, 2, 10, 30):
                ours, theirs = any_sink.fetch(key, start, count), folder.fetch(key, start, count)
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    assert bytes(ours.data) == theirs.data, (key, start, count)
                    assert ours.size == theirs.size


def test_keys_and_parts_of_a_store(any_sink):
    assert list(any_sink.keys("")) == []
    below = any_sink.below("red").below("plates ü")
    for key in ("zarr.json", "c/0/0", "c/0/1", "c/.hidden", "cat/0"):
        below.put(key, b"x")
    any_sink.put("zarr.json", b"{}")
    assert below.url == f"{any_sink.url}/red/plates ü"
    assert list(below.keys("c")) == ["c/0/0", "c/0/1"]
    assert set(any_sink.keys("")) == {"zarr.json", *(f"red/plates ü/{k}" for k in below.keys(""))}
    below.delete("c/0/0")
    below.delete("c/0/0")
    assert list(below.keys("c/")) == ["c/0/1"]
    assert value(below, "c/0/0") is None


def test_stores_in_memory_are_shared_by_name():
    ObjectSink.of("memory://one/a", {}).put("k", b"1")
    assert value(ObjectSink.of("memory://one", {}), "a/k") == b"1"
    assert value(ObjectSink.of("memory://other/a", {}), "k") is None


def test_a_server_of_pages_is_read(bucket, moto, client):
    key = "some folder/a.zarr/c/0"
    client.put_object(Bucket=bucket, Key=key, Body=b"0123456789", ACL="public-read")
    client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    pages = ObjectSink.of(f"http://127.0.0.1:{moto}/{bucket}/some folder/a.zarr", {})
    assert pages.fetch("c/0", -3).size == 10
    assert value(pages, "c/1") is None
    assert [bytes(pages.fetch("c/0", *span).data) for span in ((8, 1), (2, 3))] == [b"8", b"234"]
    for write in (lambda: pages.put("k", b""), lambda: pages.upload("k", 0), pages.lock):
        with pytest.raises(WeftError, match=r"a\.zarr can only be read"):
            write()


class _Whole(SimpleHTTPRequestHandler):
    """Pages that are sent as a whole, whatever part was asked for."""

    sent = ()
    """The paths of the pages that were sent."""

    def do_GET(self):
        _Whole.sent = (*_Whole.sent, self.path)
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def pages(tmp_path, moto):
    """The folder, served as it is."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Whole, directory=tmp_path)) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield ObjectSink.of(f"http://127.0.0.1:{made.server_port}", {})
        made.shutdown()
        thread.join()


def test_a_server_without_range_requests_sends_whole_objects_once(pages, tmp_path):
    (tmp_path / "k").write_bytes(b"0123456789")
    assert value(pages, "k") == b"0123456789"
    assert bytes(pages.fetch("k", 10, 5).data) == b""
    sent = _Whole.sent
    for start, part in ((-3, b"789"), (2, b"234"), (9, b"9"), (20, b"")):
        assert (bytes(pages.fetch("k", start, 3).data), pages.fetch("k", start, 3).size) == (
            part,
            10,
        )
    assert len(_Whole.sent) <= len(sent) + 2  # one that asks for a range, and one for all of it
    (tmp_path / "k").write_bytes(b"abc")
    assert bytes(pages.fetch("k", -2, 2).data) == b"bc"  # it was replaced
    assert pages.fetch("gone", 1, 2) is None


def test_arrays_are_read_from_a_server_without_range_requests(pages, tmp_path):
    frames = (np.arange(8192) % 251).astype("u1").reshape(2, 64, 64)
    with create(tmp_path / "a", (2, 64, 64), "uint8", (1, 16, 16), (2, 64, 64)) as writer:
        writer.append(frames)
    array = open_store(f"{pages.url}/a")
    before = len(_Whole.sent)
    assert np.array_equal(array[1, 3:40], frames[1, 3:40])
    assert np.array_equal(array, frames)
    assert len(_Whole.sent) - before <= 2
    with pytest.raises(WeftError, match="cannot be listed: HTTP has no folders"):
        pages.folders()


def test_a_server_that_does_not_allow_head_is_not_empty(pages, tmp_path, monkeypatch):
    """What was read once is not taken for missing, nor is what has fewer bytes than are asked."""
    monkeypatch.setattr(_Whole, "do_HEAD", lambda page: page.send_error(405))
    (tmp_path / "k").write_bytes(b"0123456789")
    for _ in range(3):
        assert value(pages, "k") == b"0123456789"
        assert bytes(pages.fetch("k", -3, 3).data) == b"789"
        assert pages.fetch("k", 0, 0).size == 10
    (tmp_path / "k").unlink()
    assert value(pages, "k") is pages.fetch("k", 0, 0) is None


def test_secrets_are_not_shown(sink):
    assert "secret" not in repr(sink)


# -- uploads


@pytest.mark.parametrize("head", [0, 20])
@pytest.mark.parametrize("size", [0, 1000, PART - 20, PART, 2 * PART + 7])
def test_uploads_hold_what_was_appended(any_sink, size, head):
    data, index = noise(size), noise(20, 1)
    upload = any_sink.upload("c/0", head)
    rng = np.random.default_rng(size)
    cuts = [0, *sorted(rng.integers(0, size + 1, 9).tolist()), size]
    for start, stop in pairwise(cuts):
        scratch = bytearray(data[start:stop])
        upload.append([b"", memoryview(scratch)])
        scratch[:] = bytes(len(scratch))
    assert upload.publish([b"more"], index) is False
    assert value(any_sink, "c/0") is None
    upload.finish(index)
    assert value(any_sink, "c/0") == (index + data if head else data + index)
    for again in (lambda: upload.append([b"x"]), lambda: upload.finish(index)):
        with pytest.raises(SinkError, match="c/0: the upload has ended"):
            again()
    upload.discard()
    assert value(any_sink, "c/0") == (index + data if head else data + index)


def test_small_values_are_one_request_and_large_ones_parts(sink, proxy):
    upload = sink.upload("c/0", 0)
    upload.append([bytes(1000)])
    upload.finish(b"index")
    assert [line.split()[0] for line in proxy.seen] == ["PUT"]
    proxy.seen.clear()
    upload = sink.upload("c/1", 0)
    upload.append([np.zeros((PART + 10) // 2, np.uint16).data])
    upload.finish(b"index")
    assert sum("partNumber" in line for line in proxy.seen) == 2
    assert len(proxy.seen) == 4


def test_large_shards_have_large_parts():
    sink = ObjectSink.of("memory://parts", {})
    assert sink.tuned(64 << 20, 4, None).buffered == sink.buffered == 16 << 20
    large = sink.tuned(1 << 40, 4, None)
    assert large.buffered == 2 * large.store.part_size
    assert (1 << 40) * 1.5 <= 10_000 * large.store.part_size < (1 << 40) * 1.5 + 10_000
    assert large.state is sink.state


def test_an_index_in_front_has_its_size(sink):
    upload = sink.upload("c/0", 20)
    with pytest.raises(WeftError, match="c/0: an index of 19 B, and 20 B for it"):
        upload.finish(bytes(19))
    upload.discard()


@pytest.mark.parametrize("head", [0, 20])
def test_discarded_uploads_leave_nothing(sink, client, bucket, head):
    sink.put("c/0", b"old")
    upload = sink.upload("c/0", head)
    upload.append([bytes(PART), bytes(PART)])
    assert bool(uploads(client, bucket)) == (not head)
    upload.discard()
    upload.discard()
    assert uploads(client, bucket) == []
    assert value(sink, "c/0") == b"old"
    with pytest.raises(SinkError, match="the upload has ended"):
        upload.append([b"x"])


def test_an_upload_buffers_no_more_than_predicted(sink, proxy):
    """While no part arrives, no more is taken than `held`."""
    proxy.harm("hang", "partNumber")
    upload, taken = sink.upload("c/0", 0), []

    def feed():
        for _ in range(24):
            upload.append([bytes(PART // 4)])
            taken.append(PART // 4)
        upload.finish(b"")

    thread = threading.Thread(target=feed)
    thread.start()
    until(lambda: sum(taken) >= sink.buffered)
    time.sleep(0.3)
    assert sum(taken) == sink.buffered == 2 * PART
    proxy.heal()
    thread.join()
    assert sink.fetch("c/0", -1).size == 6 * PART


def test_leftovers_of_a_killed_writer_are_swept(sink, client, bucket):
    lost = [sink.upload("c/0", 0), sink.below("red").upload("c/1", 0)]
    for upload in lost:
        upload.append([bytes(PART)])
    other = ObjectSink.of(f"s3://{bucket}/other.zarr", sink.options).upload("c/0", 0)
    other.append([bytes(PART)])
    assert len(uploads(client, bucket)) == 3
    film = sink.upload("film.mp4", 0)
    film.append([bytes(PART)])
    sink.sweep()  # neither what is no shard nor what is another array's
    rest = ["other.zarr/c/0", "some folder/a.zarr/film.mp4", "some folder/a.zarr/red/c/1"]
    assert sorted(uploads(client, bucket)) == rest
    film.discard()
    sink.below("red").sweep()
    assert uploads(client, bucket) == ["other.zarr/c/0"]
    other.finish(b"")
    ObjectSink.of("memory://swept", {}).sweep()


def test_a_sweep_without_access_does_nothing(sink, proxy):
    proxy.harm("403")
    sink.sweep()
    assert any("uploads" in line for line in proxy.seen)


# -- harm that passes


@pytest.mark.parametrize("kind", ["500", "503", "drop", "lose", "truncate"])
def test_passing_faults_are_not_noticed(sink, proxy, kind):
    data = noise(2 * PART + 100)
    proxy.harm(kind, times=2)
    sink.put("zarr.json", b"{}" * 1000)
    assert value(sink, "zarr.json") == b"{}" * 1000
    upload = sink.upload("c/0", 0)
    for words in ("?uploads", "partNumber=2", "POST uploadId"):
        if kind != "truncate":  # obstore asks again for what it gets, not for what it posts
            proxy.harm(kind, *words.split(), times=1)
    upload.append([data])
    upload.finish(b"index")
    proxy.harm(kind, "GET", times=2)
    assert value(sink, "c/0") == data + b"index"
    proxy.harm(kind, "GET", times=2)
    assert bytes(sink.fetch("c/0", 10, 100).data) == data[10:110]
    if kind != "truncate":  # nor for lists
        proxy.harm(kind, "GET", times=1)
    assert list(sink.keys("c")) == ["c/0"]
    proxy.harm(kind, times=1)
    sink.delete("c/0")
    assert value(sink, "c/0") is None


@pytest.mark.slow
def test_a_server_that_hangs_for_a_while_is_waited_for(bucket, options, proxy):
    sink = ObjectSink.of(f"s3://{bucket}", impatient(options, 2.0, retries=50))
    proxy.harm("hang", times=1)
    sink.put("k", b"1")
    proxy.harm("hang", times=1)
    assert value(sink, "k") == b"1"


# -- harm that lasts


REASONS = {
    "500": r"the server answers 500 Internal Server Error, after 1 retries in [\d.]+ s",
    "hang": r"the server does not answer( in time)?(, after 1 retries in [\d.]+ s)?",
    "drop": r"the server does not answer, after 1 retries in [\d.]+ s",
    "403": r"access is denied( \(AccessDenied\))?",
    "401": r"the credentials are refused( \(InvalidToken\))?",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(REASONS))
def test_lasting_faults_are_reported_in_one_line(bucket, options, proxy, kind):
    ObjectSink.of(f"s3://{bucket}/a", options).put("k", b"1")
    sink = ObjectSink.of(
        f"s3://{bucket}/a", impatient(options, 0.25 if kind == "hang" else PATIENT)
    )
    proxy.harm(kind)
    for ask in (
        lambda: sink.fetch("k"),
        lambda: sink.fetch("k", -1),
        lambda: sink.fetch("k", 0, 0),
        lambda: sink.fetch("k", 0, 1),
        lambda: sink.put("k", b"2"),
        lambda: sink.delete("k"),
    ):
        with pytest.raises(SinkError, match=rf"^s3://{bucket}/a/k: {REASONS[kind]}(\n|$)"):
            ask()
    with pytest.raises(SinkError, match=REASONS[kind]):
        list(sink.keys("c"))
    with pytest.raises(SinkError, match=rf"a/{LOCK}: {REASONS[kind]}"):
        sink.lock()
    proxy.heal()
    assert value(ObjectSink.of(f"s3://{bucket}/a", options), "k") == b"1"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["500", "hang", "drop"])
@pytest.mark.parametrize("words", ["?uploads", "partNumber=1", "partNumber=3", "POST uploadId"])
def test_an_upload_that_fails_leaves_nothing(bucket, options, client, proxy, kind, words):
    patient = ObjectSink.of(f"s3://{bucket}/a", options)
    patient.put("c/0", b"old")
    waits = (10.0, 0) if kind == "hang" else (PATIENT, 1)
    sink = ObjectSink.of(f"s3://{bucket}/a", impatient(options, *waits))
    proxy.harm(kind, *words.split())
    upload = sink.upload("c/0", 0)
    with pytest.raises(SinkError, match=rf"^s3://{bucket}/a/c/0: the server "):
        fill(upload)
    with pytest.raises(SinkError, match="the upload has ended"):
        upload.append([b"x"])
    upload.discard()
    assert uploads(client, bucket) == [], proxy.seen
    assert value(patient, "c/0") == b"old"


def test_an_index_in_front_that_fails_leaves_nothing(bucket, options, client, proxy):
    sink = ObjectSink.of(f"s3://{bucket}/a", impatient(options, retries=0))
    upload = sink.upload("c/0", 20)
    upload.append([bytes(3 * PART)])
    proxy.harm("500", "partNumber=2")
    with pytest.raises(SinkError, match="c/0: the server answers 500"):
        upload.finish(bytes(20))
    assert uploads(client, bucket) == []
    assert value(sink, "c/0") is None


def test_a_server_that_is_gone_is_asked_once_to_forget(bucket, options, client, proxy):
    sink = ObjectSink.of(f"s3://{bucket}/a", impatient(options, retries=0))
    begun = [sink.upload(f"c/{n}", 0) for n in range(8)]
    for upload in begun:
        upload.append([bytes(PART)])
    until(lambda: sum("partNumber" in line for line in proxy.seen) == 8)
    proxy.harm("drop")
    before = len(proxy.seen)
    for upload in begun:
        upload.discard()
    assert len(proxy.seen) - before == 1, "one that is not answered is enough"
    proxy.heal()
    sink.sweep()
    assert uploads(client, bucket) == []


def test_a_full_temporary_file_is_reported(sink, monkeypatch):
    upload = sink.upload("c/0", 20)
    upload.discard()
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(upload, "file", full)
        with pytest.raises(SinkError, match="c/0: the temporary file: No space left on device"):
            upload.append([bytes(100)])


# -- what a person may have got wrong


def test_a_bucket_that_is_not_there(options):
    sink = ObjectSink.of("s3://nobody-made-this/a", options)
    for ask in (
        lambda: sink.fetch("k"),
        lambda: sink.put("k", b""),
        lambda: list(sink.keys("")),
        lambda: sink.fetch("k", 0, 1),
        lambda: sink.upload("k", 0).append([bytes(PART)]),
        sink.lock,
    ):
        with pytest.raises(SinkError, match=r"^s3://nobody.*: there is no such bucket\n") as caught:
            ask()
        assert caught.value.__notes__ == ["hint: create it, or check its name and the endpoint"]


def test_a_server_that_is_not_there(bucket, options):
    with server.refusing_port() as port:
        nobody = {**impatient(options), "endpoint": f"http://127.0.0.1:{port}"}
        sink = ObjectSink.of(f"s3://{bucket}/a", nobody)
        with pytest.raises(SinkError, match="a/k: there is no connection to the server, after 1 "):
            sink.fetch("k")


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """An environment that says nothing of who asks."""
    for name in list(os.environ):
        if name.startswith("AWS_") and name != "AWS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


def test_missing_credentials_are_reported(nobody, options):
    anonymous = {k: v for k, v in options.items() if k not in server.KEYS}
    with pytest.raises(SinkError, match=r"^s3://b/a: there are no credentials\n") as caught:
        ObjectSink.of("s3://b/a", anonymous)
    assert "AWS_ACCESS_KEY_ID" in caught.value.__notes__[0]
    ObjectSink.of("s3://b/a", {**anonymous, "skip_signature": True})


def test_without_boto3_the_instance_is_asked(nobody, options, monkeypatch, proxy):
    monkeypatch.setattr("weft.store.objects.connect.import_module", absent)
    proxy.harm("403")
    anonymous = {k: v for k, v in options.items() if k not in server.KEYS}
    metadata = f"http://127.0.0.1:{proxy.port}/latest"
    sink = ObjectSink.of("s3://b/a", {**anonymous, "metadata_endpoint": metadata})
    with pytest.raises(SinkError, match=r"^s3://b/a/k: there are no credentials"):
        sink.fetch("k")


def absent(name):
    raise ImportError(name)


def test_a_profile_says_who_asks(nobody, bucket, options, proxy, monkeypatch):
    (nobody / "credentials").write_text(
        "[lab]\naws_access_key_id = LABKEY\naws_secret_access_key = secret\n"
    )
    (nobody / "config").write_text("[profile lab]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    anonymous = {k: v for k, v in options.items() if k not in server.KEYS}
    ObjectSink.of(f"s3://{bucket}/a", anonymous).put("k", b"1")
    assert "Credential=LABKEY/" in proxy.asked_by[-1]
    assert "/eu-north-1/s3/" in proxy.asked_by[-1]


def test_the_environment_says_who_asks(nobody, bucket, options, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    anonymous = {k: v for k, v in options.items() if k not in server.KEYS}
    ObjectSink.of(f"s3://{bucket}/a", {**anonymous, "region": "us-west-2"}).put("k", b"1")
    assert "Credential=ENVKEY/" in proxy.asked_by[-1]
    assert "/us-west-2/s3/" in proxy.asked_by[-1]


@pytest.mark.parametrize(
    ("url", "wrong", "message"),
    [
        ("s3://b", {"endpont": "x"}, "s3://b: there is no option endpont"),
        ("s3://b", {"client_options": {"timout": 1}}, "no option timout in client_options"),
        ("s3://b", {"retry_config": {"retries": 1}}, "no option retries in retry_config"),
        ("s3://b", {"retry_config": {"backoff": {"x": 1}}}, "no option x in backoff"),
        ("memory://b", {"region": "x"}, "memory://b: there is no option region"),
        ("http://b", {"region": "x"}, "http://b: there is no option region"),
        ("s3://b", {"part_size": 1000}, "part_size=1000, parts=2, lease=60 is too small"),
        ("s3://b", {"parts": 1}, "parts=1"),
        ("s3://b", {"lease": 0}, "lease=0"),
        ("ftp://b", {}, "ftp://b is not a supported store"),
        ("s3://b", {"client_options": {"timeout": "soon"}}, "s3://b: "),
    ],
)
def test_options_are_checked(url, wrong, message):
    with pytest.raises(WeftError, match=message):
        ObjectSink.of(url, {**({} if url[-1] == "b" and url[0] != "s" else server.KEYS), **wrong})


def test_an_option_that_is_nearly_right_is_guessed():
    with pytest.raises(WeftError, match="no option endpont") as caught:
        ObjectSink.of("s3://b", {**server.KEYS, "endpont": "x"})
    assert caught.value.__notes__ == ["hint: endpoint?"]


def test_http_is_refused_where_it_is_not_allowed(bucket, options):
    sink = ObjectSink.of(f"s3://{bucket}", {**impatient(options), "allow_http": False})
    with pytest.raises(SinkError, match="the endpoint is not https"):
        sink.fetch("k")


# -- the only writer


def leased(sink, seconds=1.2):
    return ObjectSink.of(sink.url, {**sink.options, "lease": seconds})


class Hurried(threading.Event):
    """An event for which nobody waits long."""

    def wait(self, timeout=None):
        return super().wait(0.05)


@pytest.fixture
def renewing(sink, monkeypatch):
    """A store whose locks last for minutes, and are renewed many times a second."""
    hurried = SimpleNamespace(Event=Hurried, Thread=threading.Thread)
    monkeypatch.setattr(lease_module, "threading", hurried)
    return leased(sink, 300)


def test_two_writers_are_refused(any_sink):
    lock = any_sink.lock()
    with pytest.raises(WeftError, match=r"a\.zarr is locked by another writer") as caught:
        any_sink.lock()
    assert f"process {os.getpid()} on " in caught.value.__notes__[0]
    assert list(any_sink.keys("")) == []
    lock.release()
    lock.release()
    again = any_sink.lock()
    again.release()
    assert any_sink.fetch(LOCK) is None


def test_parts_of_a_store_have_their_own_writers(any_sink):
    locks = [any_sink.below(name).lock() for name in ("red", "green")]
    any_sink.below("red").put("k", b"1")
    for lock in locks:
        lock.release()


def until(seen, seconds=300.0):
    """Wait for something that comes on its own."""
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.02)


def refuses(write, message):
    try:
        write()
    except SinkError as error:
        return message in str(error)
    return False


def test_a_lock_is_renewed(renewing):
    sink, lock = renewing, renewing.lock()
    first = json.loads(value(sink, LOCK))
    until(lambda: json.loads(value(sink, LOCK))["count"] > first["count"])
    with pytest.raises(WeftError, match="another writer"):
        leased(sink, 300).lock()
    last = json.loads(value(sink, LOCK))
    lock.release()
    assert first["holder"] == last["holder"]
    assert first["renewed"] < last["renewed"]


@pytest.mark.slow
def test_a_lock_that_is_not_renewed_is_taken_over(sink):
    """The writer that slept may not finish what it began."""
    sink, awake = leased(sink), threading.Event()
    slow, lock = sink.upload("c/0", 0), sink.lock()
    lock._stop.wait = lambda seconds: not awake.wait(600)  # it sleeps, and does not know
    until(lambda: refuses(lambda: sink.put("k", b""), "the lock was not renewed for "))
    other, taken = leased(sink, 2.2), []

    def take():
        with suppress(WeftError):
            taken.append(other.lock())
        return taken

    until(take)
    taken[0].seconds = 300  # it does not end while the test goes on
    for write in (lambda: slow.finish(b""), lambda: sink.put("k", b""), lambda: sink.delete("k")):
        with pytest.raises(SinkError, match=r"the lock was not renewed for \d+ s"):
            write()
    other.put("k", b"2")
    awake.set()
    lock._thread.join()
    with pytest.raises(SinkError, match=r"a\.zarr: another writer took the lock over"):
        sink.put("k", b"")
    lock.release()
    assert json.loads(value(sink, LOCK))["holder"] == taken[0].holder
    taken[0].release()
    assert value(sink, LOCK) is None
    slow.discard()
    assert list(sink.keys("")) == ["k"]


def test_a_lock_that_cannot_be_renewed_stops_its_writer(sink, proxy):
    sink = leased(sink)
    lock = sink.lock()
    proxy.harm("500", LOCK)
    until(lambda: refuses(lambda: sink.put("k", b"1"), ".weft.lock: the server answers 500"))
    proxy.heal()
    until(lambda: not refuses(lambda: sink.put("k", b"1"), "the lock was not renewed for "))
    assert value(sink, "k") == b"1"
    lock.release()


def test_a_lock_that_is_removed_stops_its_writer(renewing, client, bucket):
    sink, lock = renewing, renewing.lock()
    client.delete_object(Bucket=bucket, Key=f"some folder/a.zarr/{LOCK}")
    lock._thread.join()
    with pytest.raises(SinkError, match="another writer took the lock over"):
        sink.put("k", b"1")
    lock.release()


def test_a_lost_answer_does_not_lose_the_lock(renewing, proxy):
    sink = renewing
    proxy.harm("lose", "PUT", times=1)
    lock = sink.lock()
    proxy.harm("lose", "PUT", times=1)
    until(lambda: json.loads(value(sink, LOCK))["count"] >= 3)
    sink.put("k", b"1")
    lock.release()
    assert value(sink, LOCK) is None


def test_a_store_without_conditions_has_a_weaker_lock(renewing):
    sink = ObjectSink.of(renewing.url, {**renewing.options, "conditional_put": "disabled"})
    lock = sink.lock()
    with pytest.raises(WeftError, match="another writer"):
        leased(sink, 300).lock()
    until(lambda: json.loads(value(sink, LOCK))["count"] >= 3)
    sink.put("k", b"1")
    lock.release()
    assert list(sink.keys("")) == ["k"]
    sink.lock().release()


def test_of_writers_that_begin_together_one_is_let_in(sink):
    found, barrier = [], threading.Barrier(6)

    def begin():
        barrier.wait()
        try:
            found.append(leased(sink, 30).lock())
        except WeftError as error:
            found.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks = [lock for lock in found if isinstance(lock, Lease)]
    assert len(locks) == 1
    refused = [text for text in found if isinstance(text, str)]
    assert all("is locked by another writer" in text for text in refused), refused
    locks[0].release()


def test_a_lock_that_was_taken_over_is_not_removed_by_its_old_holder(sink):
    """Between its last look at the lock and its release, another writer may have taken it."""
    slow = leased(sink).lock()
    slow._stop.wait = lambda seconds: True  # never renewed
    slow._thread.join()
    said = json.loads(value(sink, LOCK)) | {"holder": "another"}
    sink.put(LOCK, json.dumps(said).encode())
    slow.release()
    assert json.loads(value(sink, LOCK))["holder"] == "another"
    sink.delete(LOCK)


def test_a_forked_child_neither_writes_nor_releases(sink):
    """The lock is its parent's, at the end of the child's interpreter too."""
    lock = sink.lock()
    lock._process = -1  # as it is in a child
    with pytest.raises(SinkError, match="the lock belongs to the process that was forked"):
        sink.put("k", b"")
    lock.release()
    assert value(sink, LOCK) is not None
    sink.delete(LOCK)
    lock._thread.join()


class Unconditional:
    """The lock's store, as one that knows no conditional puts."""

    def put(self, store, path, data, *, mode=None):
        if mode not in (None, "overwrite"):
            raise NotImplementedError
        return obstore.put(store, path, data)

    def __getattr__(self, name):
        return getattr(obstore, name)


class Held(threading.Event):
    """An event for which everybody waits until they are let go."""

    go = threading.Event()

    def wait(self, timeout=None):
        assert self.go.wait(300)
        return super().wait(0.05)


def test_without_conditional_puts_one_of_two_loses_the_lock(sink, monkeypatch):
    """Both begin at the very same time; at its renewal the first sees that it is not the last."""
    real = lease_module.needed
    monkeypatch.setattr(Held, "go", threading.Event())
    held = SimpleNamespace(Event=Held, Thread=threading.Thread)
    monkeypatch.setattr(lease_module, "threading", held)
    without = {"obstore": Unconditional()}
    monkeypatch.setattr(
        lease_module, "needed", lambda name, extra: without.get(name) or real(name, extra)
    )
    first = leased(sink, 300).lock()
    said = json.loads(value(sink, LOCK)) | {"holder": "another"}
    ObjectSink.of(sink.url, sink.options).put(LOCK, json.dumps(said).encode())
    Held.go.set()
    until(lambda: first._is_lost)
    assert json.loads(value(sink, LOCK))["holder"] == "another"
    first.release()
    assert json.loads(value(sink, LOCK))["holder"] == "another"


# -- targets


def test_objects_that_are_not_arrays_are_refused_and_untouched(any_sink):
    for key in ("c/src/main.c", "notes.txt"):
        any_sink.put(key, b"precious")
        for overwrite in (False, True):
            with pytest.raises(WeftError, match=f"is not empty and holds no .*: there is {key}"):
                created(any_sink.url, any_sink.options, overwrite=overwrite)
        assert value(any_sink, key) == b"precious"
        assert value(any_sink, "zarr.json") is None
        any_sink.delete(key)


def test_overwriting_removes_the_objects_of_the_array_and_no_others(any_sink):
    with created(any_sink.url, any_sink.options) as writer:
        writer.append(frames(150))
    any_sink.put("README.md", b"precious")
    any_sink.put("c/9/9/9", b"precious")
    with pytest.raises(WeftError, match="c/9/9/9 lies among the shards of the array and does not"):
        created(any_sink.url, any_sink.options, overwrite=True)
    assert np.array_equal(open_store(any_sink.url, options=any_sink.options).read(), frames(150))
    any_sink.delete("c/9/9/9")
    with created(any_sink.url, any_sink.options, overwrite=True) as writer:
        writer.append(frames(3))
    keys = sorted(key for key, _ in any_sink.walk(""))
    assert keys == ["README.md", "c/0/0/0", "zarr.json"]


def _with(counted, call):
    return lambda sink, *given: counted(call, sink, *given)


class StoppedError(Exception):
    """The process ended here."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(9))
def test_a_replacement_that_stops_anywhere_leaves_the_old_array_or_the_new_one(
    any_sink, moment, monkeypatch
):
    url, options, left = any_sink.url, any_sink.options, [moment]
    with created(url, options) as writer:
        writer.append(frames(70))

    def counted(call, sink, *given):
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError
        return call(sink, *given)

    with monkeypatch.context() as patched:
        for name in ("put", "delete", "remove"):
            patched.setattr(ObjectSink, name, _with(counted, getattr(ObjectSink, name)))
        with suppress(StoppedError), created(url, options, overwrite=True):
            pass
    found = open_store(url, options=options).read()
    assert not len(found) or np.array_equal(found, frames(70))
    with open_store(url, "a", options=options) as writer:
        count = len(found)
        assert writer.frames == count
        writer.append(frames(100)[count:])
    assert np.array_equal(open_store(url, options=options).read(), frames(100))
    assert not [key for key, _ in any_sink.walk("") if key.startswith(".")]


# -- arrays


def frames(count):
    rng = np.random.default_rng(7)
    return rng.integers(0, 4096, (count, 256, 256), np.uint16)


def created(url, options, **more):
    return create(
        url, (None, 256, 256), "uint16", (8, 64, 64), (64, 256, 256), options=options, **more
    )


def seen_by_zarr(sink):
    store = zarr.storage.ObjectStore(sink.store.client, read_only=True)
    return zarr.open_array(store, path=sink.prefix.rstrip("/"), mode="r")


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_streamed_arrays_are_read_by_zarr(any_sink, index_location):
    stack = frames(150)
    with created(any_sink.url, any_sink.options, index_location=index_location) as writer:
        for first in range(0, 150, 10):
            writer.append(stack[first : first + 10])
        with pytest.raises(WeftError, match="is locked by another writer"):
            created(any_sink.url, any_sink.options, overwrite=True)
    assert set(any_sink.keys("")) == {"zarr.json", "c/0/0/0", "c/1/0/0", "c/2/0/0"}
    np.testing.assert_array_equal(seen_by_zarr(any_sink)[:], stack)
    found = open_store(any_sink.url, options=any_sink.options)
    np.testing.assert_array_equal(found.read(), stack)
    box = ZRange((60, 3, 70), (70, 90, 71))
    np.testing.assert_array_equal(found.read(box), stack[60:70, 3:90, 70:71])
    found.verify()
    with open_store(any_sink.url, "a", options=any_sink.options) as writer:
        writer.append(stack[:20])
    again = open_store(any_sink.url, options=any_sink.options).read()
    np.testing.assert_array_equal(again, np.concatenate([stack, stack[:20]]))
    with pytest.raises(WeftError, match="holds an array already"):
        created(any_sink.url, any_sink.options)
    with created(any_sink.url, any_sink.options, overwrite=True) as writer:
        writer.append(stack[:5])
    assert set(any_sink.keys("")) == {"zarr.json", "c/0/0/0"}
    np.testing.assert_array_equal(seen_by_zarr(any_sink)[:], stack[:5])


@pytest.mark.parametrize("kind", ["500", pytest.param("hang", marks=pytest.mark.slow), "drop"])
def test_a_failure_while_streaming_is_raised(bucket, options, client, proxy, kind):
    stack, url = frames(256), f"s3://{bucket}/a"
    sink = ObjectSink.of(url, options)
    waits = (10.0, 0) if kind == "hang" else (PATIENT, 1)
    with created(url, impatient(options, *waits)) as writer:
        writer.append(stack[:64])
        until(lambda: value(sink, "c/0/0/0") is not None)
        proxy.harm(kind, "PUT", "c/1")
        with pytest.raises(WeftError, match=rf"{url}: writing failed: {url}/c/1/0/0: the server"):
            feed(writer, stack[64:])
        with pytest.raises(WeftError, match=r"before, and nothing can be appended.* 64 of \d+"):
            writer.append(stack[:1])
    assert "c/1/0/0" not in set(sink.keys(""))
    assert uploads(client, bucket) == []
    found = seen_by_zarr(sink)
    assert found.shape[0] <= 64
    np.testing.assert_array_equal(found[:], stack[: found.shape[0]])
    sink.lock().release()


def feed(writer, stack):
    for frame in stack:
        writer.append(frame)
    writer.flush()
    writer.close()


def test_faults_that_pass_do_not_show_in_an_array(sink, proxy):
    stack, retry = frames(150), {**QUICK["retry_config"], "max_retries": 20}
    with created(sink.url, {**sink.options, "retry_config": retry}) as writer:
        for first in range(0, 150, 10):
            proxy.harm(["500", "drop", "lose"][first // 10 % 3], times=1)
            writer.append(stack[first : first + 10])
    np.testing.assert_array_equal(seen_by_zarr(sink)[:], stack)


def test_positions_and_labels_of_an_object_store(bucket, options):
    """Images are created, listed, continued and labelled by objects alone."""
    image = {"shape": (None, 8, 8), "dtype": "uint8", "chunks": (1, 8, 8), "axes": "tyx"}
    url, frame = f"s3://{bucket}/run.zarr", np.ones((8, 8), "uint8")
    with create_positions(url, options=options, levels=2, **image) as recording:
        recording.position("left", translation={"x": 3.0}).append(frame, metadata={"delta_t": 1})
    with open_positions(url, "a", options=options, levels=2, **image) as recording:
        recording["left"].append(2 * frame)
        recording.position("right").append(3 * frame)
    found = open_positions(url, options=options)
    assert found.names == ("left", "right")
    assert found[0].levels[0].read()[:, 0, 0].tolist() == [1, 2]
    assert [level.shape for level in found[0].levels] == [(2, 8, 8), (2, 4, 4)]
    assert 'DeltaT="1.0"' in found.ome_xml
    with found[1].labels.create("cells", "uint8") as writer:
        writer.append(frame)
    assert found[1].labels["cells"].levels[1].read().tolist() == [[[1] * 4] * 4]
