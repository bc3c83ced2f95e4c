"""`Meter`: the bytes that each device holds, counted in the arrays that are really there.

Every device counts its own bytes, also where devices of one process share an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.runtime.arrays import Array
from weft.runtime.exchange import Held


@dataclass(slots=True)
class Meter:
    """What devices hold now, and the most that they ever held.

    >>> import numpy
    >>> meter = Meter()
    >>> meter.hold({0: numpy.ones(4, "float32")})
    >>> meter.hold({0: numpy.ones(2, "float32")})
    >>> meter.drop({0: numpy.ones(4, "float32")})
    >>> meter.live, meter.most
    ({0: 8}, {0: 24})
    """

    live: dict[int, int] = field(default_factory=dict)
    most: dict[int, int] = field(default_factory=dict)

    def hold(self, arrays: Held) -> None:
        """Count arrays that devices have from now on."""
        for device, array in arrays.items():
            size = self.live[device] = self.live.get(device, 0) + int(array.nbytes)
            if size > self.most.get(device, -1):
                self.most[device] = size

    def drop(self, arrays: Held) -> None:
        """Count no longer what devices do not have any more."""
        for device, array in arrays.items():
            self.live[device] -= int(array.nbytes)

    def mark(self) -> dict[int, int]:
        """What devices hold now, to which `back` comes back."""
        return dict(self.live)

    def back(self, mark: dict[int, int], hold: Iterable[Held] = ()) -> None:
        """Drop all that came since a mark, but for some of it."""
        self.live = dict(mark)
        for arrays in hold:
            self.hold(arrays)


class Trail:
    """An array on its way from one sharding to another: what devices have of it at this step.

    What a device takes of an array that it has is a view of that, which stays as long as the view;
    everything else that a step makes is an array of its own, beside what the step before made. The
    array from which all began is held by others.
    """

    __slots__ = ("held", "meter", "moved", "rooms")

    def __init__(self, held: Held, meter: Meter | None = None) -> None:
        self.held, self.meter = held, meter
        self.rooms = held
        self.moved: set[int] = set()

    def step(self, made: Held, fresh: Iterable[int]) -> None:
        """What devices have after a step; the `fresh`, and new ones, an array of their own."""
        others = [device for device in made if device not in self.rooms]
        new = {device: made[device] for device in (*fresh, *others)}
        if self.meter is not None:
            self.meter.hold(new)
            gone = [d for d in self.moved if d in new or d not in made]
            self.meter.drop({device: self.rooms[device] for device in gone})
        self.rooms = {d: array if d in new else self.rooms[d] for d, array in made.items()}
        self.moved = {device for device in (*self.moved, *new) if device in made}
        self.held = made

    def views(self, gone: bool) -> list[int]:
        """The devices that have no array of their own, or more of one than they need.

        If the array from which all began is `gone` now, it may be theirs.
        """
        return [
            device
            for device, array in self.held.items()
            if _is_less(array, self.rooms[device]) or not (gone or device in self.moved)
        ]


def _is_less(array: Array, room: Array) -> bool:
    return int(array.nbytes) < int(room.nbytes)
