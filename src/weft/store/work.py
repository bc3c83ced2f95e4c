"""What pipelines share: threads that work for one that waits, and things that are closed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
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
