"""The libraries of the extra `store`, imported where they are used."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from weft.errors import WeftError


@cache
def needed(module: str) -> Any:
    """A module that the extra brings."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise WeftError(f"the store needs {name}", hint="pip install 'weft[store]'") from error
