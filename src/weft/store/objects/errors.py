"""What goes wrong between here and a store of objects, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import WeftError
from weft.extra import needed

_KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the options access_key_id and "
    "secret_access_key; install boto3 for profiles; skip_signature=True reads public buckets"
)

_BUCKET = r"NoSuchBucket|ContainerNotFound|bucket does not exist"

_WHOLE = r"non-partial response|Range request not supported"

_OUTSIDE = rf"code: 416|{_WHOLE}|[Rr]ange (start|end|is)|Invalid range|suffix"

_KNOWN = (
    (_BUCKET, "there is no such bucket", "make it, or look at its name and the endpoint"),
    (r"169\.254\.|metadata\.google|/latest/api/token", "there are no credentials", _KEYS),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|code: 401",
        "the credentials are refused",
        "look at the keys, the token, the region and the clock",
    ),
    (
        r"AccessDenied|code: 403|PermissionDenied",
        "access is denied",
        "look at the rights of these credentials, and at the bucket's policy",
    ),
    (r"builder error", "the endpoint is not https", "give the option allow_http=True"),
    (r"kind: Timeout", "the server does not answer in time", None),
    (r"kind: Connect", "there is no connection to the server", "look at the endpoint"),
    (
        r"error sending request",
        "the server does not answer",
        "look at the endpoint, or give longer timeouts in client_options",
    ),
    (r"error decoding response body|end of file|UnexpectedEof", "the answer is cut short", None),
    (_WHOLE, "the server cannot send a part of a value", None),
)
"""What a message of obstore holds, what that means, and the way out."""

_TRIES = re.compile(r" in ([\d.]+)(ns|µs|ms|s), after (\d+) retries")
_STATUS = re.compile(r"status code: (\d+ [A-Za-z -]+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


class SinkError(WeftError, OSError):
    """A store that cannot be reached, or refuses.

    >>> isinstance(SinkError("s3://b/c/0: access is denied"), OSError)
    True
    """


@contextmanager
def told(url: str) -> Iterator[None]:
    """Say in one line what obstore says in many."""
    known = (needed("obstore.exceptions", "store").BaseError, OSError, NotImplementedError)
    try:
        yield
    except WeftError:
        raise
    except known as error:
        raise fault(url, error) from None


def fault(url: str, error: Exception) -> SinkError:
    """An error that names the value, the reason, and how often it was tried.

    >>> text = "PUT http://h/b/k in 1.5s, after 3 retries - status code: 500 Internal Server Error"
    >>> print(fault("s3://b/k", OSError(text)))
    s3://b/k: the server answers 500 Internal Server Error, after 3 retries in 1.5 s
    """
    text = str(error)
    tries = _TRIES.search(text)
    tried = f", after {tries[3]} retries in {_seconds(tries):.2g} s" if tries else ""
    for pattern, what, hint in _KNOWN:
        if re.search(pattern, text):
            code = _CODE.search(text)
            said = f" ({code[1]})" if code and code[1] != "NoSuchBucket" else ""
            return SinkError(f"{url}: {what}{said}{tried}", hint=hint)
    status = _STATUS.search(text)
    if status:
        return SinkError(f"{url}: the server answers {status[1].strip()}{tried}")
    first = text.partition("\n")[0].strip()
    return SinkError(f"{url}: {first or type(error).__name__}")


def _seconds(tries: re.Match[str]) -> float:
    return float(tries[1]) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[tries[2]]


def no_credentials(url: str) -> SinkError:
    """Nobody said who asks."""
    return SinkError(f"{url}: there are no credentials", hint=_KEYS)


def is_no_bucket(error: Exception) -> bool:
    """Whether it is the bucket that is not there, rather than a value."""
    return re.search(_BUCKET, str(error)) is not None


def is_outside(error: Exception) -> bool:
    """Whether a part was asked for that does not lie in a value, or in a way that is not known."""
    return re.search(_OUTSIDE, str(error)) is not None
