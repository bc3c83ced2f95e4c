"""From an address and options to a store of objects that obstore reaches.

Credentials for S3 are the options', or those that obstore finds: the environment, a web identity, a
container, the instance. It does not read profiles. Where none of these is named and boto3 is
installed, boto3 is asked, which knows profiles, single sign-on and all the rest.
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
from weft.store.objects.errors import no_credentials

PART = 8 << 20
"""Bytes of a part of an upload, unless told."""

LEAST_PART = 5 << 20
"""What S3 wants of every part but the last."""

PARTS = 2
"""Parts that one upload holds: one is filled while others are on their way."""

LEASE = 60.0
"""Seconds after which a lock that is not renewed is taken over."""

KINDS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("http", "https"), "http"),
    "memory": "memory",
}
"""Which store an address is of, by its scheme."""

CLIENT: Mapping[str, Any] = {"connect_timeout": 5.0, "timeout": 60.0}
"""Seconds until a request is given up, unless told."""

RETRY: Mapping[str, Any] = {"max_retries": 10, "retry_timeout": 120.0}
"""How often, and how long, a request is tried again, unless told."""

_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "root_certificate",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
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
"""What obstore reads of the environment."""

_MEMORY: dict[str, Any] = {}
"""The stores in memory, by name: whoever opens one of this process sees the same values."""


KNOWN = 16
"""Stores that a process stays connected to for what is sent to it."""

_KNOWN: dict[int, list[tuple[str, Mapping[str, Any], Reached]]] = {}


class Reached(NamedTuple):
    """A store of obstore, and how it is used."""

    store: Any
    kind: str
    prefix: str
    """What every key begins with, where the store itself does not see to that."""
    part_size: int
    parts: int
    lease: float


def reach(url: str, options: Mapping[str, Any]) -> Reached:
    """The store at an address.

    >>> reach("memory://doc/a.zarr", {"part_size": 6 << 20}).part_size
    6291456
    """
    scheme = urlsplit(url).scheme
    if scheme not in KINDS:
        raise WeftError(f"{url} is no store that is known", hint="s3, gs, az, https or memory")
    kind = KINDS[scheme]
    part_size = int(options.get("part_size", PART))
    parts, lease = int(options.get("parts", PARTS)), float(options.get("lease", LEASE))
    if part_size < LEAST_PART or parts < 2 or lease <= 0:
        raise WeftError(
            f"part_size={part_size}, parts={parts}, lease={lease:g} does not do",
            hint=f"a part has at least {LEAST_PART} B, an upload 2 parts, a lease some seconds",
        )
    rest = {name: value for name, value in options.items() if name not in _OWN}
    if kind == "memory":
        if rest:
            raise _unknown(url, min(rest), _OWN)
        at = urlsplit(url)
        prefix = unquote(at.path).strip("/")
        store = _MEMORY.setdefault(at.netloc, needed("obstore.store", "store").MemoryStore())
        return Reached(store, kind, f"{prefix}/" if prefix else "", part_size, parts, lease)
    return Reached(_connected(url, kind, rest), kind, "", part_size, parts, lease)


def known_reach(url: str, options: Mapping[str, Any]) -> Reached:
    """The same for what was sent here, over connections that this process has already."""
    known = _KNOWN.setdefault(os.getpid(), [])  # a forked process has none of them
    for place, (at, said, reached) in enumerate(known):
        if at == url and said == options:
            known.append(known.pop(place))
            return reached
    known.append((url, options, reach(url, options)))
    del known[:-KNOWN]
    return known[-1][2]


def _endpoint(kind: str) -> str | None:
    """The server that the environment names."""
    names = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if kind == "s3" else ()
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _connected(url: str, kind: str, options: Mapping[str, Any]) -> Any:
    """A store that is reached over a network."""
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
    if str(rest.get("endpoint") or _endpoint(kind) or url).startswith("http://"):
        client.setdefault("allow_http", True)
    if kind == "s3":
        # Values are deleted one at a time, and not all servers know how to delete many.
        rest.setdefault("disable_bulk_delete", True)
        provider = provider or _profile(url, rest)
    more = {"config": rest, "credential_provider": provider} if kind != "http" else {}
    if kind == "http" and rest:
        raise _unknown(url, min(rest), ("client_options", "retry_config", *_CLIENT, *_OWN))
    errors = needed("obstore.exceptions", "store")
    try:
        return needed("obstore.store", "store").from_url(
            url, client_options=_spans(client), retry_config=_spans(retry), **more
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


def _spans(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with numbers as spans of time, where such are wanted."""
    made = dict(given)
    for name, value in given.items():
        if isinstance(value, Mapping) and name == "backoff":
            made[name] = _spans(value)
        elif name.endswith(("timeout", "_backoff")) and isinstance(value, int | float):
            made[name] = timedelta(seconds=value)
    return made


def _profile(url: str, options: Mapping[str, Any]) -> Any:
    """Boto3's credentials, where nothing names others and it is installed."""
    named = {name.lower().removeprefix("aws_") for name in options}
    if named & {"access_key_id", "skip_signature", "web_identity_token_file"}:
        return None
    if any(name in os.environ for name in _CHAIN):
        return None
    if any(name.startswith("container_") for name in named):
        return None
    try:
        made = import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return made()
    except ValueError:
        raise no_credentials(url) from None
