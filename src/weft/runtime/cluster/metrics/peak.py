"""How much memory this process has, and the most that it had since somebody began to look.

Linux keeps the most that a process ever had, and begins anew when it is asked to. Where it does not
(a system that has no such files, or that keeps them closed) the most of the whole life is told.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None  # type: ignore[assignment]

_STATUS, _REFS, _STATM = (f"/proc/self/{name}" for name in ("status", "clear_refs", "statm"))
_RESET = b"5"
"""What resets the most resident memory; see proc_pid_clear_refs(5)."""


class Peak(NamedTuple):
    """The most bytes that this process had, since it began anew or, where it `is_bound`, ever."""

    size: int
    is_bound: bool


class _Files(NamedTuple):
    """The files of one process, open: to open them for every task would cost as much again."""

    process: int
    status: int | None
    refs: int | None

    @classmethod
    def of(cls, process: int) -> _Files:
        return cls(process, _open(_STATUS, os.O_RDONLY), _open(_REFS, os.O_WRONLY))

    def close(self) -> None:
        for file in (self.status, self.refs):
            if file is not None:
                os.close(file)


_files = _Files(0, None, None)


def begin_anew() -> bool:
    """Count the most from now on, where that is possible."""
    refs = _here().refs
    try:
        return refs is not None and os.write(refs, _RESET) > 0
    except OSError:  # a container may show the file and refuse to write
        return False


def most(begun: bool) -> Peak:
    """The most that this process had since it has `begun` anew, or ever.

    >>> begun = begin_anew()
    >>> data = bytearray(b"x" * (1 << 24))
    >>> most(begun).size > 1 << 24 or not begun
    True
    """
    found = _high_water()
    return Peak(found, not begun) if found else Peak(_ever(), True)


def resident() -> int:
    """The bytes of memory that this process has now; 0 where nobody can tell.

    >>> resident() >= 0
    True
    """
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError, AttributeError):
        return 0


def _here() -> _Files:
    """The files of this process: what a parent opened before a fork is still the parent's."""
    global _files
    if _files.process != os.getpid():
        old, _files = _files, _Files.of(os.getpid())
        old.close()
    return _files


def _high_water() -> int:
    status = _here().status
    try:
        data = b"" if status is None else os.pread(status, 1 << 13, 0)
    except OSError:
        return 0
    _, found, rest = data.partition(b"VmHWM:")
    return int(rest.split(maxsplit=1)[0]) << 10 if found else 0


def _ever() -> int:
    """The most of the whole life of this process; macOS counts it in bytes, others in KiB."""
    if resource is None:
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def _open(path: str, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
