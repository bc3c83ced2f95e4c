"""`Keys`: what the shards of an array are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.values import Point

_DIGITS = 20
"""Digits of the largest coordinate, 2**64."""


@dataclass(frozen=True, slots=True)
class Keys:
    """How a key is made of the coordinates of a shard: as Zarr v3 does it, or as v2 did.

    >>> Keys().of((0, 12)), Keys("default", ".").of((0, 12)), Keys("v2", ".").of((0, 12))
    ('c/0/12', 'c.0.12', '0.12')
    >>> Keys().of(()), Keys("v2", ".").of(())
    ('c', '0')
    """

    name: Literal["default", "v2"] = "default"
    separator: Literal["/", "."] = "/"

    def of(self, shard: Point) -> str:
        """The key of a shard."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, shard)])
        return self.separator.join(map(str, shard)) or "0"

    def parse(self, key: str, rank: int) -> Point | None:
        """Return the coordinates of the shard with a key, or None if it is no shard's key.

        >>> Keys().parse("c/0/12", 2), Keys().parse("c/0/012", 2), Keys().parse("zarr.json", 2)
        ((0, 12), None, None)
        """
        words = key.split(self.separator)
        if self.name == "default":
            words = words[1:]
        elif not rank:
            words = []
        if len(words) != rank or not all(word.isascii() and word.isdigit() for word in words):
            return None
        if any(len(word) > _DIGITS for word in words):
            return None
        found = tuple(map(int, words))
        return found if self.of(found) == key else None
