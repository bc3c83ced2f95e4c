"""The level of every value: as low as what follows allows, since low levels are cheap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.ckks.network import Network


@dataclass(frozen=True, slots=True)
class Levels:
    """The level at which each value is made."""

    at: Mapping[str, int]
    depth: int

    @classmethod
    def of(cls, network: Network) -> Levels:
        """The outputs are at level 0, and each value as high as the first who reads it needs.

        A value that is read at several levels is made at the highest.
        """
        at = dict.fromkeys((layer.name for layer in network.layers), 0)
        at |= dict.fromkeys(network.inputs, 0)
        for layer in reversed(network.layers):
            for source in layer.sources:
                at[source] = max(at[source], at[layer.name] + layer.levels)
        return cls(at, max((at[name] for name in network.inputs), default=0))
