"""`Report`: what one task took, as the worker that ran it measured it."""

from __future__ import annotations

from typing import NamedTuple


class Report(NamedTuple):
    """What a task took."""

    task: int
    """The number of the task."""
    seconds: float
    received: dict[int, int]
    """The bytes that it read of other cells, by cell, counted in the arrays that came."""
    worker: str = ""
    """Which worker ran it: the host and the process, or the thread."""
    begin: float = 0.0
    """When it began, in seconds since 1970."""
    cpu: float = 0.0
    """The seconds of processors that it took."""
    read: int = 0
    """The bytes that it fetched from storage, as they are stored."""
    written: int = 0
    """The bytes that it put into storage, as they are stored."""
    peak: int = 0
    """The most bytes of memory that its process had meanwhile; 0 where nobody can tell."""
    receiving: float = 0.0
    """The seconds of it in which it waited for what came from other cells, where it does."""
    reading: float = 0.0
    """The seconds of it in which it fetched from storage."""
    writing: float = 0.0
    """The seconds of it in which it put into storage."""
    is_bound: bool = False
    """Whether `peak` is that of the whole life of the process, which nobody could begin anew."""
