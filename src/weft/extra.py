"""Libraries that an extra brings, imported where they are used."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from weft.errors import WeftError


@cache
def needed(module: str, extra: str) -> Any:
    """A module that an extra brings.

    >>> needed("nothing.at.all", "store")
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: nothing is needed and not installed
    hint: pip install 'weft[store]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise WeftError(
            f"{name} is needed and not installed", hint=f"pip install 'weft[{extra}]'"
        ) from error
