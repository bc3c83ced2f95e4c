"""Uploads that nobody finished, forgotten through boto3 where it is installed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

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
