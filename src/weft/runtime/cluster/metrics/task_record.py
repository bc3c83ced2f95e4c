"""`TaskRecord`: one task as it ran, beside what was predicted; `Total`: many of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.space import ZRange


class TaskRecord(NamedTuple):
    """One task: what it was, what the plan says of it, and what it took."""

    number: int
    kind: str
    operator: str
    values: str
    """The values of which it made blocks."""
    box: ZRange
    cell: int
    worker: str
    begin: float
    """In seconds since 1970."""
    seconds: float
    cpu: float
    """The seconds of processors."""
    received: Mapping[int, int]
    """The bytes that it got of other cells, by cell."""
    sent: int = 0
    """The bytes that tasks of other cells got of it."""
    read: int = 0
    """The bytes from storage."""
    written: int = 0
    """The bytes to storage."""
    peak: int = 0
    """The most bytes of its process meanwhile; 0 where nobody could tell."""
    is_bound: bool = False
    """Whether `peak` is that of the whole life of the process."""
    receiving: float = 0.0
    """Seconds that it waited for what it received."""
    reading: float = 0.0
    """Seconds that it fetched from storage."""
    writing: float = 0.0
    """Seconds that it put into storage."""
    moved: int = 0
    """The bytes of other cells that it needs, by the plan: those that it received."""
    flops: int = 0
    """Its operations, by the plan."""
    dtype: str = ""
    """On what it computes; nothing where it does not."""
    touched: int = 0
    """The bytes of its operands and results, by the plan."""
    predicted: float | None = None
    """The seconds by the machine of the plan, if that has one."""

    @property
    def end(self) -> float:
        """When it ended."""
        return self.begin + self.seconds

    @property
    def arrived(self) -> int:
        """The bytes that it received in all."""
        return sum(self.received.values())

    @property
    def computing(self) -> float:
        """The seconds in which it did not wait for bytes to come or go."""
        return max(0.0, self.seconds - self.receiving - self.reading - self.writing)


class Total(NamedTuple):
    """What some tasks took together; `peak` is the highest of theirs."""

    tasks: int
    seconds: float
    cpu: float
    predicted: float | None
    received: int
    sent: int
    read: int
    written: int
    peak: int

    @classmethod
    def of(cls, tasks: Iterable[TaskRecord]) -> Total:
        """The sum over tasks."""
        all_ = list(tasks)
        guesses = [task.predicted for task in all_ if task.predicted is not None]
        return cls(
            len(all_),
            sum(task.seconds for task in all_),
            sum(task.cpu for task in all_),
            sum(guesses) if guesses else None,
            sum(task.arrived for task in all_),
            sum(task.sent for task in all_),
            sum(task.read for task in all_),
            sum(task.written for task in all_),
            max((task.peak for task in all_), default=0),
        )
