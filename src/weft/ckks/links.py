"""Ciphertexts from process to process: as files in memory whose descriptors are sent."""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weft.ckks.backend import Backend, Cipher, Counters
from weft.errors import WeftError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADER = struct.Struct("qqd")
"""The register, the level and the scale of a ciphertext."""
LONGEST = 1 << 17
"""The longest message: what a worker counted, or its error."""


class Portable(Backend, Protocol):
    """A backend whose ciphertexts can be written to files."""

    def write(self, cipher: Cipher[Any], path: str) -> None:
        """Write a ciphertext to a file."""

    def read(self, path: str, level: int, scale: float) -> Cipher[Any]:
        """Read a ciphertext that stands at a level and a scale."""


class Done(NamedTuple):
    """The last message of a worker: what it counted, or what went wrong."""

    counters: Counters
    error: BaseException | None = None


class Links:
    """The ends of a worker: a socket to each of the others, and what came by them.

    Files in memory belong to no folder. They go when the last process closes them, however it ends.
    """

    def __init__(self, backend: Portable, sockets: dict[int, socket.socket]) -> None:
        self.backend, self.sockets = backend, sockets
        self.workers = {each: worker for worker, each in sockets.items()}
        self.inbox: dict[int, Cipher[Any]] = {}
        self.done: dict[int, Done] = {}
        for each in sockets.values():
            each.setblocking(False)

    def send(self, register: int, cipher: Cipher[Any], to: int) -> None:
        """Send a ciphertext; what comes meanwhile is taken, so that no two wait for each other."""
        header = HEADER.pack(register, cipher.level, cipher.scale)
        with _file() as (file, path):
            self.backend.write(cipher, path)
            try:
                self._push(to, header, [file])
            except (BrokenPipeError, ConnectionResetError):
                while True:  # why it ended is the last that comes, and is raised
                    self._take(self.sockets[to])

    def receive(self, register: int, source: int) -> Cipher[Any]:
        """Wait for a ciphertext."""
        while register not in self.inbox:
            if source in self.done:
                raise WeftError(f"worker {source} ended before it sent register {register}")
            self._wait()
        return self.inbox.pop(register)

    def close(self, done: Done) -> None:
        """Tell all what was counted, or what went wrong; it is the last message."""
        said = _said(done)
        for worker in self.sockets.keys() - self.done.keys():
            with suppress(BrokenPipeError, ConnectionResetError):
                self._push(worker, said)

    def finish(self, worker: int) -> Counters:
        """Wait for the last message of a worker."""
        while worker not in self.done:
            self._wait()
        return self.done[worker].counters

    def _push(self, to: int, message: bytes, files: Sequence[int] = ()) -> None:
        end = self.sockets[to]
        while True:
            try:
                socket.send_fds(end, [message], files)
                return
            except BlockingIOError:
                self._wait(end)

    def _wait(self, full: socket.socket | None = None) -> None:
        """Wait until something comes, or until there is room; take what came."""
        open_ = [each for worker, each in self.sockets.items() if worker not in self.done]
        there, _, _ = select.select(open_, [full] if full else [], [])
        for each in there:
            self._take(each)

    def _take(self, end: socket.socket) -> None:
        try:
            message, files, _, _ = socket.recv_fds(end, LONGEST, 1)
        except ConnectionResetError:
            message, files = b"", []
        worker = self.workers[end]
        if not files:
            self._last(worker, message)
            return
        register, level, scale = HEADER.unpack(message)
        try:
            self.inbox[register] = self.backend.read(_path(files[0]), level, scale)
        finally:
            os.close(files[0])

    def _last(self, worker: int, message: bytes) -> None:
        lost = WeftError(f"worker {worker} was ended from outside", hint="is there enough memory?")
        self.done[worker] = pickle.loads(message) if message else Done(Counters(), lost)
        error = self.done[worker].error
        if error is not None:
            raise error


def _said(done: Done) -> bytes:
    """A last message, short enough to be sent; what cannot be sent is said in words."""
    with suppress(Exception):  # an error of any library may hold anything
        said = pickle.dumps(done)
        if len(said) <= LONGEST and pickle.loads(said):
            return said
    return pickle.dumps(done._replace(error=WeftError(f"in a worker: {done.error!r:.1000}")))


@contextmanager
def _file() -> Iterator[tuple[int, str]]:
    """A file in memory, open until it is sent, and its path in this process."""
    file = os.memfd_create("weft")
    try:
        yield file, _path(file)
    finally:
        os.close(file)


def _path(file: int) -> str:
    return f"/proc/self/fd/{file}"
