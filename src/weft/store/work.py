"""What pipelines share: threads that work for one that waits, and things that are closed."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import Any, Self

from weft.store.delivery import Batch, Delivery, Showing


class Work:
    """Work of other threads: what it fails with is kept for the thread that waits for it."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.error: BaseException | None = None
        self.epochs = 0
        """Epochs that are full and not written yet."""
        self._turn = threading.Condition()
        self._free: list[Any] = []
        """Room for epochs that is not taken."""
        self._is_due = False
        """Whether an epoch was written, and nobody has seen to it that readers see it."""
        self._showing = Showing(delivery, lambda: self.epochs == 0, self._guarded)

    def settle(self) -> None:
        """Until all epochs that are full are written, or something failed."""
        with self._turn:
            while self.epochs and self.error is None:
                self._turn.wait()

    def fail(self, error: BaseException) -> None:
        """Let nobody wait any longer."""
        with self._turn:
            self.error = self.error or error
            self._turn.notify_all()

    def _deliver(self, batch: Batch) -> None:
        """Hand chunks over, and show what is written by then."""
        self.delivery.take(batch)
        with self._turn:
            is_due, self._is_due = self._is_due, False
        if is_due:
            self._showing.show()

    def _give_back(self, room: Any, epochs: int) -> None:
        """Epochs are written, and others find room; the turn is taken."""
        self._free.append(room)
        self.epochs -= epochs
        self._is_due = True

    def _start(self, threads: Executor, work: Callable[..., None], *given: Any) -> None:
        """Let a thread do work; do it here while the interpreter ends, when none can be asked."""
        try:
            threads.submit(self._guarded, work, *given)
        except RuntimeError:
            self._guarded(work, *given)

    def _guarded(self, work: Callable[..., None], *given: Any) -> None:
        """Do work; what it fails with is said by the thread that appends."""
        try:
            work(*given)
        except BaseException as error:
            self.fail(error)


class Closing(ABC):
    """What is used in a `with` block, and closed at its end."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Finishing(Closing):
    """What is finished even if nobody closes it: when it is dropped, or when the interpreter ends.

    A `ResourceWarning` says so, as for files. A process that is killed finishes nothing, and
    neither does a forked child: what it inherits belongs to its parent.
    """

    is_open: bool
    """Whether it is not closed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    def watch(self) -> None:
        """Finish it at the end of the interpreter, unless it is closed before."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        _WATCHED[id(self)] = weakref.ref(self)

    def unwatch(self) -> None:
        """It is closed, or belongs to something that is watched."""
        _WATCHED.pop(id(self), None)

    def finish(self) -> None:
        """Close what nobody closed, with a warning."""
        self.unwatch()
        if not self.is_open or self._process != os.getpid():
            return
        try:
            self.close()
        except Exception as error:
            warnings.warn(
                f"{self.name} was not closed, and could not be finished: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            warnings.warn(
                f"{self.name} was not closed, and has been finished", ResourceWarning, stacklevel=2
            )

    def __del__(self) -> None:
        if id(self) not in _WATCHED:
            return
        if self._thread == threading.get_ident():
            self.finish()
        else:
            # The collector runs in any thread, and one of its own would wait for itself: it lives
            # on, and is finished at the end of the interpreter.
            _WATCHED[id(self)] = partial(_same, self)


_WATCHED: dict[int, Callable[[], Finishing | None]] = {}
"""What is open, in the order in which it was opened."""


def _same(one: Finishing) -> Finishing:
    return one


@atexit.register
def _finish_all() -> None:
    """Finish what is open, the last first."""
    for number in reversed(list(_WATCHED)):
        found = _WATCHED[number]() if number in _WATCHED else None
        if found is not None:
            found.finish()
