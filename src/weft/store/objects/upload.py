"""Uploads of objects: in parts as bytes come, or from a file when all of them are there.

Uploads that nobody finished, forgotten through boto3 where it is installed.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes
from weft.store.objects.errors import SinkError, told


@dataclass(slots=True)
class Line:
    """What is known of the way to a server, by all the uploads that take it."""

    is_cut: bool = False
    """Whether a request to forget an upload failed; no others are tried then."""


@dataclass(slots=True)
class ObjectUpload:
    """An object whose parts leave as they fill, and that is seen when it is finished."""

    name: str
    """What messages call it."""
    file: Any
    """Obstore's writer, None when it is done."""
    part_size: int
    check: Callable[[], None]
    """Refuses where another may write."""
    line: Line
    filled: int = 0
    """The bytes of the part that is being filled."""
    has_failed: bool = False

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there, and wait while too many parts are on their way."""
        if self.has_failed or self.file is None:
            # Obstore's writer would begin another object.
            raise SinkError(f"{self.name}: the upload has ended")
        self.has_failed = True
        with told(self.name):
            for buffer in buffers:
                self._write(buffer)
        self.has_failed = False

    def _write(self, buffer: Bytes) -> None:
        """Never over the end of a part: that would begin one more before another has left.

        Obstore keeps what it is given as it is, so that what may change is copied.
        """
        if isinstance(buffer, bytes) and len(buffer) <= self.part_size - self.filled:
            return self._push(buffer)
        left = flat(buffer)
        while len(left):
            piece = bytes(left[: self.part_size - self.filled])
            left = left[len(piece) :]
            self._push(piece)
        return None

    def _push(self, piece: bytes) -> None:
        self.file.write(piece)
        self.filled = (self.filled + len(piece)) % self.part_size

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """False: an object is whole, or not there."""
        return False

    def finish(self, index: Bytes) -> None:
        """The index and the last part; if that fails, the server is told to forget the others."""
        self.check()
        self.append([index])
        file, self.file = self.file, None
        with told(self.name):
            file.close()

    def drop(self) -> None:
        """Let the server forget the parts, if it can be told."""
        file, self.file = self.file, None
        if file is None or self.line.is_cut:
            return
        try:
            file.__exit__(WeftError, None, None)
        except (needed("obstore.exceptions", "store").BaseError, OSError):
            # After this one, others would wait as long, one behind the other.
            self.line.is_cut = True


@dataclass(slots=True)
class SpooledUpload:
    """An object whose index comes last and lies in front: a file keeps the rest until then."""

    name: str
    head: int
    file: IO[bytes]
    """Without a name, in the folder for temporary files."""
    begin: Callable[[], ObjectUpload]

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there."""
        if self.file.closed:
            raise SinkError(f"{self.name}: the upload has ended")
        try:
            self.file.writelines(buffers)
        except OSError as error:
            raise SinkError(
                f"{self.name}: the temporary file: {error.strerror}",
                hint="TMPDIR says where it is; an index at the end needs no file",
            ) from error

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """False: an object is whole, or not there."""
        return False

    def finish(self, index: Bytes) -> None:
        """The index, and the file behind it."""
        if len(index) != self.head:
            raise WeftError(f"{self.name}: an index of {len(index)} B, and {self.head} B for it")
        self.append([])
        upload = self.begin()
        try:
            upload.append([index, _mapped(self.file)])
            upload.finish(b"")
        finally:
            upload.drop()
            self.file.close()

    def drop(self) -> None:
        """Forget the file."""
        with suppress(OSError):  # what is left to be written
            self.file.close()


def flat(data: Bytes) -> memoryview:
    """A buffer as bytes, one behind the other."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _mapped(file: IO[bytes]) -> memoryview:
    """What is in a file, without memory of our own; it is unmapped when nobody looks at it."""
    file.flush()
    if not file.tell():
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


SHARD = re.compile(r"(?:c|\d+)(?:[/.]\d+)*")
"""How the shards of an array may be called."""


def abort_leftovers(url: str, options: Mapping[str, Any]) -> None:
    """Abort the multipart uploads of shards below an address of S3, as far as that is possible.

    Uploads under other names are somebody else's. What goes wrong is not told: nobody sees these
    uploads, and nothing depends on them.
    """
    try:
        boto3, botocore = import_module("boto3"), import_module("botocore.exceptions")
    except ImportError:
        return
    at = urlsplit(url)
    bucket, prefix = at.netloc, f"{unquote(at.path).strip('/')}/".removeprefix("/")
    try:
        client = _client(boto3, options)
        try:
            for page in client.get_paginator("list_multipart_uploads").paginate(
                Bucket=bucket, Prefix=prefix
            ):
                for found in page.get("Uploads", ()):
                    if not SHARD.fullmatch(found["Key"].removeprefix(prefix)):
                        continue
                    client.abort_multipart_upload(
                        Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"]
                    )
        finally:
            client.close()
    except (botocore.BotoCoreError, botocore.ClientError, ValueError):
        return


def _client(boto3: Any, options: Mapping[str, Any]) -> Any:
    """A client that asks as the options say, and does not wait for long."""
    config = import_module("botocore.config").Config
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    endpoint = given.get("endpoint") or given.get("endpoint_url") or os.environ.get("AWS_ENDPOINT")
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=given.get("region"),
        aws_access_key_id=given.get("access_key_id"),
        aws_secret_access_key=given.get("secret_access_key"),
        aws_session_token=given.get("session_token") or given.get("token"),
        config=config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2}),
    )
