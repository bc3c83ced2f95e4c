"""`communication`: every byte that moves, by the operator that made it move, and what is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.errors import WeftError
from weft.values import Point, counted


class Movement(NamedTuple):
    """One step of communication: what it was, for which operator, and the bytes of each device."""

    operator: str
    tensor: str
    kind: str
    sent: Point
    received: Point

    def __str__(self) -> str:
        most = max(self.received, default=0)
        return f"{self.kind} of {self.tensor} for {self.operator}: {most} B to a device at most"


class CommunicationError(WeftError):
    """More would move than the budget allows."""


@dataclass(slots=True)
class Communication:
    """The bytes that moved inside a `communication` block, and those that devices held."""

    budget: int | None = None
    """The bytes that all devices together may receive; None for any number."""
    movements: list[Movement] = field(default_factory=list)
    peaks: dict[int, int] = field(default_factory=dict)
    """The most bytes that each device held, of what a plan or a reshard had there."""

    @property
    def peak(self) -> Point:
        """The most bytes that each device held, in the order of the devices."""
        return tuple(self.peaks[device] for device in sorted(self.peaks))

    def reach(self, held: Mapping[int, int]) -> None:
        """Write down what devices held at most."""
        for device, size in held.items():
            self.peaks[device] = max(size, self.peaks.get(device, 0))

    @property
    def received(self) -> int:
        """The bytes that all devices received."""
        return sum(sum(movement.received) for movement in self.movements)

    @property
    def sent(self) -> int:
        """The bytes that all devices sent."""
        return sum(sum(movement.sent) for movement in self.movements)

    def allow(self, received: int, operator: str, tensor: str) -> None:
        """Refuse what would go beyond the budget, before it moves."""
        if self.budget is not None and self.received + received > self.budget:
            raise CommunicationError(
                f"{operator} would move {received} B for {tensor}: {self.received} + {received} B "
                f"is more than the budget of {self.budget} B",
                hint="give the operands shardings that agree, or a larger budget",
            )

    def __str__(self) -> str:
        lines = [f"{self.received} B received in {counted(len(self.movements), 'step')}"]
        return "\n".join([*lines, *(f"  {movement}" for movement in self.movements)])


_ACTIVE: ContextVar[tuple[Communication, ...]] = ContextVar("weft_communication", default=())


@contextmanager
def communication(budget: int | None = None) -> Iterator[Communication]:
    """Count every byte that moves inside the block; refuse more than a budget before it moves.

    Where a plan runs, or an array is resharded, it counts the bytes that each device holds, too.

    >>> with communication() as moved:
    ...     pass
    >>> print(moved)
    0 B received in 0 steps
    """
    ledger = Communication(budget)
    token = _ACTIVE.set((*_ACTIVE.get(), ledger))
    try:
        yield ledger
    finally:
        _ACTIVE.reset(token)


def active() -> Sequence[Communication]:
    """The blocks that count now, the outermost first."""
    return _ACTIVE.get()
