"""`Shelf`: which inputs and outputs of a plan lie in storage, and the tasks that write them.

Every shard of an output is written by one task, whole. A tile that is whole shards is written by
the task that computes it; other shards are put together from blocks, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from weft.lang import Block
from weft.layout import ShardingSpec
from weft.plan import Plan
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.storage import Storage
from weft.runtime.cluster.weaving.bobbin import Bobbin, Cause, Have, Held, taken
from weft.runtime.cluster.weaving.source import Leaf, Source
from weft.runtime.cluster.weaving.strands import Strand, strands
from weft.runtime.cluster.weaving.travel import combined
from weft.space import ZRange
from weft.values import Point


@dataclass(frozen=True)
class Shelf:
    """What of a plan lies in storage, and how that is cut."""

    plan: Plan
    inputs: Mapping[str, Storage] = field(default_factory=dict)
    outputs: Mapping[str, Storage] = field(default_factory=dict)

    @cached_property
    def last(self) -> Collection[str]:
        """The values that are stored and that no other task reads: they lie as they were made."""
        inner = frozenset[tuple[int, int]]().union(*(strand.inner for strand in self.strands))
        read = {
            name
            for number, application in enumerate(self.plan.graph.applications)
            for place, name in enumerate(application.operands)
            if (number, place) not in inner
        }
        return frozenset(self.outputs.keys() - read)

    @cached_property
    def strands(self) -> tuple[Strand, ...]:
        """The applications that run in one task."""
        return strands(self.plan, self.inputs)

    @cached_property
    def block(self) -> Callable[[int, ZRange], Block]:
        """A box of an application, which knows its images; those asked for last are kept."""
        placed, applications = self.plan.placed, self.plan.graph.applications

        @lru_cache(maxsize=1 << 13)
        def block(number: int, box: ZRange) -> Block:
            return Block(None, placed[number].signature, applications[number].attributes, box)

        return block

    @cached_property
    def _made(self) -> Mapping[str, ShardingSpec]:
        """How the stored values lie when they are made."""
        return {
            name: spec
            for application, placed in zip(self.plan.graph.applications, self.plan.placed)
            for name, spec in zip(application.results, placed.results)
            if name in self.outputs
        }

    @cached_property
    def _ranks(self) -> Mapping[int, int]:
        return ranks_by_device(self.plan.mesh)

    def is_mine(self, name: str, rank: int) -> bool:
        """Whether a cell has to make a value: one that is stored and no more is made once."""
        return name not in self.last or _is_first(self._made[name], rank)

    def writes(self, name: str, box: ZRange, cell: int) -> bool:
        """Whether what a cell made is whole shards, which it writes at once."""
        if name not in self.outputs or self._made[name].partial:
            return False
        is_whole = bool(box) and self.outputs[name].aligned(box)
        return is_whole and _is_first(self._made[name], self._ranks[cell])

    def store(self, bobbin: Bobbin, name: str, spec: ShardingSpec, held: Held) -> None:
        """Tasks that write all shards of a value that are not written yet."""
        storage = self.outputs[name]
        written = (w.box for task in bobbin.tasks for w in task.writes if w.value == name)
        done = {shard.start for box in written for shard in storage.shards(box)}
        for number, box in enumerate(storage.shards()):
            if box.start not in done:
                self._write(bobbin, name, number, box, spec, held)

    def copy(self, bobbin: Bobbin, name: str) -> None:
        """Tasks that write an input, which lies in storage itself, shard by shard."""
        cells = list(self._ranks)
        for number, box in enumerate(self.outputs[name].shards()):
            self._add(bobbin, name, cells[number % len(cells)], Have(Leaf(name, box), box))

    def _write(
        self, bobbin: Bobbin, name: str, number: int, box: ZRange, spec: ShardingSpec, held: Held
    ) -> None:
        """A task that puts a shard together from what cells have, on one of those."""
        found: dict[ZRange, list[tuple[Point, int, Source]]] = {}
        for cell, have in held.items():
            rank, piece = self._ranks[cell], have.box & box
            if piece and _is_first(spec, rank):
                part = (_point(spec, rank), cell, taken(have, piece))
                found.setdefault(piece, []).append(part)
        cells = [cell for parts in found.values() for _, cell, _ in parts]
        at = cells[number % len(cells)]
        cause, monoids = Cause("output", name), [monoid for _, monoid in spec.parts]
        haves = []
        for piece, parts in found.items():
            sent = [
                (point, s if cell == at else bobbin.sent(cell, cause, Have(s, piece)))
                for point, cell, s in sorted(parts, key=lambda part: part[0])
            ]
            haves.append(Have(combined(bobbin, sent, monoids, piece, cause, at), piece))
        self._add(bobbin, name, at, bobbin.join(name, box, haves))

    def _add(self, bobbin: Bobbin, name: str, cell: int, have: Have) -> None:
        bobbin.add("write", cell, "output", have.box, writes=(bobbin.made(name, have),))


def _is_first(spec: ShardingSpec, rank: int) -> bool:
    """Whether no cell before this one has the same of a value."""
    return spec.mesh.rank(next(spec.replicas(rank))) == rank


def _point(spec: ShardingSpec, rank: int) -> Point:
    """Which part of its box a cell has."""
    coord = spec.mesh.coord(rank)
    return tuple(d.of(coord) for d, _ in spec.parts)
