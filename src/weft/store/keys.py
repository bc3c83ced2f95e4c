"""`Keys`: what the shards of an array are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.values import Point


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
