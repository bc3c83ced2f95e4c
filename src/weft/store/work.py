"""What pipelines share: threads that work for one that waits, and things that are closed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Work:
    """Work of other threads: what it fails with is kept for the thread that waits for it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.epochs = 0
        """Epochs that are full and not written yet."""
        self._turn = threading.Condition()

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
