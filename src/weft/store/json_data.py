"""Plain JSON data from what a caller passes as attributes or metadata; anything else is refused."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from weft.errors import WeftError


def as_attributes(given: Mapping[str, Any] | None, what: str = "attributes") -> dict[str, Any]:
    """Return attributes as plain JSON data, none for None; refuse what is not a mapping.

    >>> as_attributes({"gain": np.float32(2.5)}), as_attributes(None)
    ({'gain': 2.5}, {})
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise WeftError(f"{what}: expected a mapping, got {type(given).__name__}")
    plain: dict[str, Any] = as_json(given, what)
    return plain


def as_json(value: Any, what: str) -> Any:
    """Return a value as plain JSON data; refuse what JSON has no words for.

    NumPy's numbers and arrays become numbers and lists. Numbers that are not finite are refused,
    and so are keys that are not text, which other libraries turn into text.

    >>> as_json({"at": (1, np.float32(2.5)), "ok": np.True_}, "metadata")
    {'at': [1, 2.5], 'ok': True}
    >>> as_json({"gain": {1: 2}}, "metadata")
    Traceback (most recent call last):
    weft.errors.WeftError: metadata.gain: a key must be text, got 1
    """
    try:
        return _as_json(value, what)
    except RecursionError:
        raise WeftError(f"{what} is nested too deeply") from None


def _as_json(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise WeftError(f"{path}: a key must be text, got {wrong[0]!r}")
        return {str(key): _as_json(one, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one, f"{path}[{number}]") for number, one in enumerate(value)]
    if isinstance(value, np.ndarray):
        return _as_json(value.tolist(), path)
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    return _as_scalar(value, path)


def _as_scalar(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return _as_text(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, float):
        kind = type(value).__name__
        raise WeftError(
            f"{path}: {kind} is not JSON",
            hint="text, numbers, booleans, None, lists and mappings are",
        )
    if not isfinite(value):
        raise WeftError(f"{path}: {value} is not a JSON number", hint="leave it out, or pass None")
    return float(value)


def _as_text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WeftError(f"{path}: {value!r} is not Unicode text: {error.reason}") from None
    return str(value)
