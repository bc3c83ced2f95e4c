"""`SearchInterrupted`: the interrupt of a search, with the best front so far."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from weft.plan.searching.front import ParetoFront


class SearchInterrupted(KeyboardInterrupt):
    """A search was interrupted: by Ctrl-C, or by a `KeyboardInterrupt` of a progress function.

    It is a `KeyboardInterrupt`: whoever does not catch it ends as by any other.

    >>> from weft import DeviceMesh, search, trace
    >>> def stop(progress):
    ...     raise KeyboardInterrupt
    >>> try:
    ...     search(trace(lambda x: x + x, (8,)), DeviceMesh("m", (2,), ("x",)), progress=stop)
    ... except SearchInterrupted as error:
    ...     len(error.front), error.front.is_complete
    (1, False)
    """

    def __init__(self, front: Callable[[], ParetoFront | None] | None = None) -> None:
        super().__init__("the search was interrupted")
        self._make = front

    @cached_property
    def front(self) -> ParetoFront | None:
        """The best front so far; of a search that had found nothing yet, the plan of propagation.

        None if no plan that was found fits the machine. The plans are built when this is first
        asked for, so the interrupt itself is immediate; a second interrupt meanwhile raises again
        and loses nothing.
        """
        return None if self._make is None else self._make()
