"""Why a value lies as it does: what happened in propagation, read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from weft.lang import Application
from weft.lang.rule import TensorFactors
from weft.plan.propagation.factors import TensorSharding
from weft.plan.propagation.meshes import Meshes
from weft.plan.propagation.node import Event
from weft.plan.propagation.program import Program

Place: TypeAlias = tuple[str, int, str]
"""A value, a dimension of it, and an axis that cuts it."""


class Reason(NamedTuple):
    """Where an axis of a value came from: a dimension of another, through an application."""

    application: Application | None
    """None where both are of one sharding group."""
    value: str
    dim: int

    def __str__(self) -> str:
        place = f"{self.value} dimension {self.dim}"
        if self.application is None:
            return f"lies as {place}, of the same sharding group"
        operands = ", ".join(self.application.operands)
        results = ", ".join(self.application.results)
        return f"through {results} = {self.application.operator}({operands}) from {place}"


@dataclass(slots=True)
class History:
    """What happened in one propagation."""

    program: Program
    meshes: Meshes
    known: Sequence[TensorSharding | None]
    log: Sequence[Event]
    _reasons: dict[Place, Reason] | None = field(default=None, repr=False)

    def reason(self, value: str, dim: int, axis: str) -> Reason | None:
        """Where an axis came from; None if it was there from the beginning."""
        owner = self.program.names[self.program.numbers[value]]
        return self.reasons.get((owner, dim, axis))

    @property
    def reasons(self) -> Mapping[Place, Reason]:
        """The first reason for every axis that came; worked out once."""
        if self._reasons is None:
            self._reasons = {}
            for event in self.log:
                for place, reason in self._read(event):
                    self._reasons.setdefault(place, reason)
        return self._reasons

    def _read(self, event: Event) -> Iterator[tuple[Place, Reason]]:
        names = self.program.names
        if event.node < 0:
            (value, other), (old, new) = event.before, event.after
            for dim, axis in self._fresh(old, new):
                yield (names[other], dim, axis), Reason(None, names[value], dim)
            return
        node = self.program.nodes[event.node]
        mappings, values = node.rule.operands + node.rule.results, node.operands + node.results
        for place, (old, new) in enumerate(zip(event.before, event.after)):
            for dim, axis in self._fresh(old, new) if old != new else ():
                source = self._source(mappings, event.before, place, dim, axis)
                if source is not None:
                    origin = self.program.origins[event.node]
                    reason = Reason(origin, names[values[source[0]]], source[1])
                    yield (names[values[place]], dim, axis), reason

    def _fresh(self, old: int, new: int) -> list[tuple[int, str]]:
        """The dimensions with the axes that cut them now and did not before."""
        before, now = self.known[old], self.known[new]
        assert now is not None
        return [
            (dim, axis)
            for dim in range(len(now.axes))
            for axis in self._axes(now, dim)
            if before is None or axis not in self._axes(before, dim)
        ]

    def _axes(self, sharding: TensorSharding, dim: int) -> list[str]:
        names = self.meshes.all[sharding.mesh].axis_names
        return list(dict.fromkeys(names[piece[0]] for piece in sharding.axes[dim]))

    def _source(
        self,
        mappings: Sequence[TensorFactors],
        before: Sequence[int],
        place: int,
        dim: int,
        axis: str,
    ) -> tuple[int, int] | None:
        """The tensor and the dimension that had the axis on a factor of this dimension."""
        factors = set(mappings[place][dim])
        for other, (mapping, number) in enumerate(zip(mappings, before)):
            sharding = self.known[number]
            if other != place and sharding is not None:
                for d, of_dim in enumerate(mapping):
                    if factors & set(of_dim) and axis in self._axes(sharding, d):
                        return other, d
        return None
