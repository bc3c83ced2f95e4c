"""Uploads of objects: in parts while bytes are appended, or from a file at the end.

Unfinished uploads of writers that were killed are aborted through boto3, where it is installed.
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
from weft.store.objects.errors import translate_errors
from weft.store.sink import SinkError


@dataclass(slots=True)
class Connection:
    """The state of the connection to a server, shared by all uploads."""

    is_broken: bool = False
    """Whether a request to abort an upload failed; no others are tried then."""


@dataclass(slots=True)
class ObjectUpload:
    """An object whose parts are sent as they fill, and which is visible when it is finished."""

    name: str
    """Its URL, for messages."""
    file: Any
    """Obstore's writer; None when it is done."""
    part_size: int
    check: Callable[[], None]
    """Raises an error where another may write."""
    connection: Connection
    filled: int = 0
    """The bytes of the part that is being filled."""
    has_failed: bool = False

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Append buffers, and wait while too many parts are being sent."""
        if self.has_failed or self.file is None:
            # Obstore's writer would begin another object.
            raise SinkError(f"{self.name}: the upload has ended")
        self.has_failed = True
        with translate_errors(self.name):
            for buffer in buffers:
                self._write(buffer)
        self.has_failed = False

    def _write(self, buffer: Bytes) -> None:
        """Write a buffer, cut where parts end: else one more part would begin before one was sent.

        Obstore keeps a reference to what it is given, so that memory that may change is copied.
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
        """Return False: an object is complete, or does not exist."""
        return False

    def finish(self, index: Bytes) -> None:
        """Send the index and the last part; if that fails, the upload is aborted."""
        self.check()
        self.append([index])
        file, self.file = self.file, None
        with translate_errors(self.name):
            file.close()

    def discard(self) -> None:
        """Abort the upload, if the server can be reached."""
        file, self.file = self.file, None
        if file is None or self.connection.is_broken:
            return
        try:
            file.__exit__(WeftError, None, None)
        except (needed("obstore.exceptions", "store").BaseError, OSError):
            # Other uploads would wait as long, one after the other.
            self.connection.is_broken = True


@dataclass(slots=True)
class SpooledUpload:
    """An object whose index comes first but is known last: a file holds the rest until then."""

    name: str
    head: int
    file: IO[bytes]
    """Without a name, in the folder for temporary files."""
    begin: Callable[[], ObjectUpload]

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Append buffers."""
        if self.file.closed:
            raise SinkError(f"{self.name}: the upload has ended")
        try:
            self.file.writelines(buffers)
        except OSError as error:
            raise SinkError(
                f"{self.name}: the temporary file: {error.strerror}",
                hint="TMPDIR sets its folder; an index at the end needs no file",
            ) from error

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Return False: an object is complete, or does not exist."""
        return False

    def finish(self, index: Bytes) -> None:
        """Send the index, and the file after it."""
        if len(index) != self.head:
            raise WeftError(f"{self.name}: an index of {len(index)} B, and {self.head} B for it")
        self.append([])
        upload = self.begin()
        try:
            upload.append([index, _mapped(self.file)])
            upload.finish(b"")
        finally:
            upload.discard()
            self.file.close()

    def discard(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what is left to be written
            self.file.close()


def flat(data: Bytes) -> memoryview:
    """Return a buffer as contiguous bytes."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _mapped(file: IO[bytes]) -> memoryview:
    """Return the content of a file, mapped into memory."""
    file.flush()
    if not file.tell():
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


SHARD = re.compile(r"(?:c|\d+)(?:[/.]\d+)*")
"""The keys of shards."""


def abort_leftovers(url: str, options: Mapping[str, Any]) -> None:
    """Abort the multipart uploads of shards below an S3 URL, as far as that is possible.

    Uploads under other names belong to others. Errors are ignored: nothing depends on these
    uploads.
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
                for upload in page.get("Uploads", ()):
                    if not SHARD.fullmatch(upload["Key"].removeprefix(prefix)):
                        continue
                    client.abort_multipart_upload(
                        Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        finally:
            client.close()
    except (botocore.BotoCoreError, botocore.ClientError, ValueError):
        return


def _client(boto3: Any, options: Mapping[str, Any]) -> Any:
    """Return a client with the options, and short timeouts."""
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
