"""An exclusive lock on a file, which one process at a time holds and which ends with that process.

The lock is `flock` on a file that is created for it. The holder removes the file when it releases
the lock, so an acquirer may have opened a file that is removed, or replaced by another, before its
own `flock` succeeds: such a lock excludes no one. The acquirer therefore compares the file that it
has locked with the file that has the name now, and starts again if they differ. Only the holder of
the named file ever removes it, so a lock that passes this comparison stays the named one.

The operating system drops the lock when the holder ends, however it ends. `flock` belongs to an
open file, which a forked child shares: children therefore close their copy, and cannot release the
lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import threading
import weakref
from pathlib import Path

from weft.errors import WeftError

_FLAGS = os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_BUSY = (errno.EACCES, errno.EAGAIN)
_HOLDER_BYTES = 512
"""At most so much of a lock file is read for a message."""


class LockedError(WeftError):
    """Another holder has the lock."""


class FileLock:
    """An exclusive lock on the file `path`, held from its creation until `release`.

    Creating one raises `LockedError` at once if the lock is held, by this process or by another.
    `what` is what the message says is being written; the path itself unless given.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lock = FileLock(f"{folder}/lock")
    ...     try:
    ...         FileLock(f"{folder}/lock", what="a.zarr")
    ...     except LockedError as error:
    ...         print(error)
    ...     lock.release()
    ...     FileLock(f"{folder}/lock").release()
    a.zarr is locked by another writer
    """

    __slots__ = ("__weakref__", "_descriptor", "_releasing", "path")

    def __init__(self, path: str | os.PathLike[str], *, what: str | None = None) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        self._releasing = threading.RLock()
        with _GUARD:
            self._descriptor = _acquire(self.path, what or str(self.path))
            _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process still holds the lock."""
        return self._descriptor is not None

    @property
    def is_lost(self) -> bool:
        """Whether the lock file was removed or replaced, so that it excludes no one any more."""
        with self._releasing:
            return self._descriptor is not None and not _is_named(self._descriptor, self.path)

    def release(self) -> None:
        """Let others acquire the lock. Does nothing if it was released, or in a forked child."""
        with self._releasing:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                self._release(descriptor)

    def _release(self, descriptor: int) -> None:
        _HELD.discard(self)
        try:
            # While the lock is held: afterwards the name may be that of another holder's file.
            if _is_named(descriptor, self.path):
                self.path.unlink(missing_ok=True)
            # A child between fork and exec may still have the file open; closing would not do.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    def _disown(self) -> None:
        """Close the descriptor that a forked child inherited; the parent keeps the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()

_GUARD = threading.Lock()
"""Held while a lock is acquired, so that a fork inherits no descriptor that stays open."""


def _in_child() -> None:
    for lock in list(_HELD):
        lock._disown()
    _HELD.clear()
    _GUARD.release()


os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_in_child)


def _acquire(path: Path, what: str) -> int:
    """Return a locked descriptor of the file that has the name `path`."""
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, path):
                _sign(descriptor)
                return descriptor
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in _BUSY:
                raise LockedError(
                    f"{what} is locked by another writer", hint=f"{holder} holds {path}"
                ) from None
            if error.errno != errno.ESTALE:  # removed on the server of a network file system
                raise
        except BaseException:
            os.close(descriptor)
            raise
        else:
            os.close(descriptor)


def _open(path: Path) -> int:
    """Open the lock file, which must be a regular file: never a link to another one."""
    try:
        descriptor = os.open(path, _FLAGS | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise WeftError(f"{path} is not a lock file: it is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise WeftError(f"{path} is not a lock file: it is not a regular file")
    return descriptor


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that a path names now."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(descriptor), named)


def _sign(descriptor: int) -> None:
    """Write who holds the lock into its file, for the messages that others get."""
    text = f"process {os.getpid()} on {socket.gethostname()}".encode()[:_HOLDER_BYTES]
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except OSError:  # a full disk: the lock is held all the same
        return


def _holder(descriptor: int) -> str:
    """Return who holds the lock, as far as its file tells."""
    try:
        text = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
    except OSError:
        text = ""
    return text if text.startswith("process ") and text.isprintable() else "another holder"
