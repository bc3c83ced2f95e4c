"""`connect`: from a URL and options to an object store, through obstore.

Credentials for S3 come from the options, or from where obstore finds them: the environment, a web
identity, a container, the instance. It does not read profiles. Where none of these is configured
and boto3 is installed, boto3 is asked, which supports profiles and single sign-on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from weft.errors import WeftError
from weft.extra import needed
from weft.store.objects.errors import missing_credentials

PART = 8 << 20
"""Bytes of a part of an upload, unless given."""

MIN_PART = 5 << 20
"""The least bytes of a part but the last, for S3."""

PARTS = 2
"""Parts that one upload buffers: one is filled while others are sent."""

LEASE = 60.0
"""Seconds after which a lock that is not renewed is taken over."""

KINDS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("http", "https"), "http"),
    "memory": "memory",
}
"""The kind of store of each URL scheme."""

CLIENT: Mapping[str, Any] = {"connect_timeout": 5.0, "timeout": 60.0}
"""Timeouts of a request in seconds, unless given."""

RETRY: Mapping[str, Any] = {"max_retries": 10, "retry_timeout": 120.0}
"""How often, and how long, a request is retried, unless given."""

_CLIENT = frozenset(
    (
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type"),
        *("default_headers", "http1_only", "http2_keep_alive_interval", "http2_only"),
        *("http2_keep_alive_timeout", "http2_keep_alive_while_idle", "pool_idle_timeout"),
        *("pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes"),
        *("root_certificate", "randomize_addresses", "read_timeout", "timeout", "user_agent"),
    )
)
_BACKOFF = frozenset({"init_backoff", "max_backoff", "base"})
_RETRY = frozenset({"max_retries", "retry_timeout", "backoff"})
_OWN = ("part_size", "parts", "lease")
_USUAL = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")

_CHAIN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
"""The environment variables from which obstore takes credentials."""

_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""The environment variables that name an endpoint."""

_MEMORY: dict[str, Any] = {}
"""The stores in memory of this process, by name."""


MAX_CACHED = 16
"""Stores that a process stays connected to for what is sent to it."""

_KNOWN: dict[int, list[tuple[str, Mapping[str, Any], ObjectStore]]] = {}


class ObjectStore(NamedTuple):
    """An obstore store, and how it is used."""

    client: Any
    """The store of obstore."""
    kind: str
    prefix: str
    """The prefix of every key, where the store does not add it itself."""
    part_size: int
    parts: int
    lease: float


def connect(url: str, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store at a URL.

    >>> connect("memory://doc/a.zarr", {"part_size": 6 << 20}).part_size
    6291456
    """
    scheme = urlsplit(url).scheme
    if scheme not in KINDS:
        raise WeftError(f"{url} is not a supported store", hint="s3, gs, az, https or memory")
    kind = KINDS[scheme]
    part_size = int(options.get("part_size", PART))
    parts, lease = int(options.get("parts", PARTS)), float(options.get("lease", LEASE))
    if part_size < MIN_PART or parts < 2 or lease <= 0:
        raise WeftError(
            f"part_size={part_size}, parts={parts}, lease={lease:g} is too small",
            hint=f"part_size is at least {MIN_PART} B, parts at least 2, and lease some seconds",
        )
    rest = {name: value for name, value in options.items() if name not in _OWN}
    if kind == "memory":
        if rest:
            raise _unknown(url, min(rest), _OWN)
        at = urlsplit(url)
        prefix = unquote(at.path).strip("/")
        store = _MEMORY.setdefault(at.netloc, needed("obstore.store", "store").MemoryStore())
        return ObjectStore(store, kind, f"{prefix}/" if prefix else "", part_size, parts, lease)
    return ObjectStore(_connected(url, kind, rest), kind, "", part_size, parts, lease)


def cached_connection(url: str, options: Mapping[str, Any]) -> ObjectStore:
    """Return the store at a URL, reusing a connection that this process has."""
    known = _KNOWN.setdefault(os.getpid(), [])  # a forked process has none of them
    for place, (at, given, store) in enumerate(known):
        if at == url and given == options:
            known.append(known.pop(place))
            return store
    known.append((url, options, connect(url, options)))
    del known[:-MAX_CACHED]
    return known[-1][2]


def _connected(url: str, kind: str, options: Mapping[str, Any]) -> Any:
    """A store that is store over a network."""
    rest = dict(options)
    client = {**CLIENT, **rest.pop("client_options", {})}
    retry = {**RETRY, **rest.pop("retry_config", {})}
    provider = rest.pop("credential_provider", None)
    for name in list(rest):
        if name.lower().removeprefix("aws_") in _CLIENT:
            client[name.lower().removeprefix("aws_")] = rest.pop(name)
    _check(url, "client_options", client, _CLIENT)
    _check(url, "retry_config", retry, _RETRY)
    _check(url, "backoff", retry.get("backoff", {}), _BACKOFF)
    named = [os.environ.get(name) for name in _ENDPOINTS] if kind == "s3" else []
    endpoint = rest.get("endpoint") or next(filter(None, named), url)
    if str(endpoint).startswith("http://"):
        client.setdefault("allow_http", True)
    if kind == "s3":
        # Values are deleted one at a time: not all servers support bulk deletes.
        rest.setdefault("disable_bulk_delete", True)
        provider = provider or _profile(url, rest)
    more = {"config": rest, "credential_provider": provider} if kind != "http" else {}
    if kind == "http" and rest:
        raise _unknown(url, min(rest), ("client_options", "retry_config", *_CLIENT, *_OWN))
    errors = needed("obstore.exceptions", "store")
    try:
        return needed("obstore.store", "store").from_url(
            url, client_options=_timedeltas(client), retry_config=_timedeltas(retry), **more
        )
    except errors.UnknownConfigurationKeyError as error:
        name = next((n for n in rest if repr(n) in str(error)), str(error).partition("\n")[0])
        known = (*_USUAL, "client_options", "retry_config", "credential_provider", *_OWN, *_CLIENT)
        raise _unknown(url, name, known) from None
    except (errors.BaseError, ValueError, TypeError) as error:
        raise WeftError(f"{url}: {str(error).partition(chr(10))[0]}") from None


def _check(url: str, name: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in given:
        if key not in known:
            raise _unknown(url, key, tuple(known), f" in {name}")


def _unknown(url: str, name: str, known: tuple[str, ...], where: str = "") -> WeftError:
    near = get_close_matches(name.lower(), known, 1)
    hint = f"{near[0]}?" if near else f"there are {', '.join(sorted(known)[:12])}, …"
    if len(known) <= len(_OWN) and not near:
        hint = f"there are {', '.join(known)}"
    return WeftError(f"{url}: there is no option {name}{where}", hint=hint)


def _timedeltas(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with numbers as timedeltas, where obstore expects these."""
    options = dict(given)
    for name, value in given.items():
        if isinstance(value, Mapping) and name == "backoff":
            options[name] = _timedeltas(value)
        elif name.endswith(("timeout", "_backoff")) and isinstance(value, int | float):
            options[name] = timedelta(seconds=value)
    return options


def _profile(url: str, options: Mapping[str, Any]) -> Any:
    """Return boto3's credentials, where no others are configured and it is installed."""
    named = {name.lower().removeprefix("aws_") for name in options}
    if named & {"access_key_id", "skip_signature", "web_identity_token_file"}:
        return None
    if any(name in os.environ for name in _CHAIN):
        return None
    if any(name.startswith("container_") for name in named):
        return None
    try:
        provider = import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return provider()
    except ValueError:
        raise missing_credentials(url) from None
