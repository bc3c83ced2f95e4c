"""Files that other libraries read: whatever these raise on a damaged file is a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from typing import Any

from weft.errors import WeftError


@contextmanager
def reading(place: str | PathLike[str], kind: str) -> Iterator[None]:
    """Refuse a file that the library for its kind cannot read, with the library's reason.

    >>> with reading("x.npy", ".npy file of numbers"):
    ...     raise EOFError("No data left in file")
    Traceback (most recent call last):
    weft.errors.WeftError: x.npy is no .npy file of numbers: No data left in file
    """
    try:
        yield
    except (WeftError, OSError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise WeftError(f"{place} is no {kind}: {reason}") from None


def open_npy(place: str | PathLike[str]) -> Any:
    """Return the array of a .npy file, mapped into memory and never unpickled."""
    numpy: Any = import_module("numpy")
    with reading(place, ".npy file of numbers"):
        array = numpy.load(place, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, numpy.ndarray):
        raise WeftError(f"{place} is no .npy file of numbers: it is an archive of several")
    if array.dtype.kind not in "biufc":
        raise WeftError(f"{place} is no .npy file of numbers: it holds {array.dtype}")
    return array
