"""Errors of object stores, in one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import WeftError
from weft.extra import needed
from weft.store.sink import AccessDeniedError, SinkError

_KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass the options access_key_id and "
    "secret_access_key; install boto3 for profiles; skip_signature=True reads public buckets"
)

_BUCKET = r"NoSuchBucket|ContainerNotFound|bucket does not exist"

_DENIED = r"AccessDenied|code: 403|PermissionDenied"

_NO_RANGES = r"non-partial response|Range request not supported"

_OUT_OF_RANGE = rf"code: 416|{_NO_RANGES}|[Rr]ange (start|end|is)|Invalid range|suffix"

_KNOWN = (
    (_BUCKET, "there is no such bucket", "create it, or check its name and the endpoint"),
    (r"169\.254\.|metadata\.google|/latest/api/token", "there are no credentials", _KEYS),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|code: 401",
        "the credentials are refused",
        "check the keys, the token, the region and the clock",
    ),
    (
        _DENIED,
        "access is denied",
        "check the permissions of these credentials, and the bucket's policy",
    ),
    (r"builder error", "the endpoint is not https", "pass the option allow_http=True"),
    (r"kind: Timeout", "the server does not answer in time", None),
    (r"kind: Connect", "there is no connection to the server", "check the endpoint"),
    (
        r"error sending request",
        "the server does not answer",
        "check the endpoint, or pass longer timeouts in client_options",
    ),
    (r"error decoding response body|end of file|UnexpectedEof", "the answer is cut short", None),
    (_NO_RANGES, "the server cannot send a part of a value", None),
)
"""Patterns of obstore's messages, what they mean, and hints."""

_TRIES = re.compile(r" in ([\d.]+)(ns|µs|ms|s), after (\d+) retries")
_STATUS = re.compile(r"status code: (\d+ [A-Za-z -]+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Raise the errors of obstore, which have many lines, as a `SinkError` of one line."""
    known = (needed("obstore.exceptions", "store").BaseError, OSError, NotImplementedError)
    try:
        yield
    except WeftError:
        raise
    except known as error:
        raise sink_error(url, error) from None


def sink_error(url: str, error: Exception) -> SinkError:
    """Return an error with the URL, the reason, and the number of retries.

    >>> text = "PUT http://h/b/k in 1.5s, after 3 retries - status code: 500 Internal Server Error"
    >>> print(sink_error("s3://b/k", OSError(text)))
    s3://b/k: the server answers 500 Internal Server Error, after 3 retries in 1.5 s
    """
    text = str(error)
    tries = _TRIES.search(text)
    tried = ""
    if tries:
        seconds = float(tries[1]) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[tries[2]]
        tried = f", after {tries[3]} retries in {seconds:.2g} s"
    for pattern, what, hint in _KNOWN:
        if re.search(pattern, text):
            code = _CODE.search(text)
            detail = f" ({code[1]})" if code and code[1] != "NoSuchBucket" else ""
            kind = AccessDeniedError if pattern == _DENIED else SinkError
            return kind(f"{url}: {what}{detail}{tried}", hint=hint)
    status = _STATUS.search(text)
    if status:
        return SinkError(f"{url}: the server answers {status[1].strip()}{tried}")
    first = text.partition("\n")[0].strip()
    return SinkError(f"{url}: {first or type(error).__name__}")


def missing_credentials(url: str) -> SinkError:
    """Return the error for a store without credentials."""
    return SinkError(f"{url}: there are no credentials", hint=_KEYS)


def is_missing_bucket(error: Exception) -> bool:
    """Return whether the bucket does not exist, rather than a value."""
    return re.search(_BUCKET, str(error)) is not None


def is_out_of_range(error: Exception) -> bool:
    """Return whether a range outside of a value was requested, or ranges are not supported."""
    return re.search(_OUT_OF_RANGE, str(error)) is not None


def has_no_ranges(error: Exception) -> bool:
    """Return whether a server sends whole values only."""
    return re.search(_NO_RANGES, str(error)) is not None
