"""The propagation engine: factor rules applied to a fixed point, in the order that Shardy uses.

Nodes wait on a stack, the first of the program on top. When the sharding of a value changes, the
node that produces it and those that use it are pushed again. Shardings are interned, and what a
kind of node does to the shardings of its tensors is cached: repeated layers are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from weft.lang.rule import FactorRule, Kind
from weft.plan.propagation.factors import (
    MERGES,
    Direction,
    propagate_rule,
)
from weft.plan.propagation.shardings import (
    EMPTY_KIND,
    AxisRef,
    ManualBoundary,
    TensorSharding,
)

Priorities: TypeAlias = tuple[int, ...]
"""The priority of each dimension of a tensor, 0 first."""

Siblings: TypeAlias = Mapping[int, Sequence[tuple[int, int]]]

OP_PRIORITIES = (0, 1, 2, 3, 4)
"""The order of `run_by_operator`: pass-through operators whose operands have no other use;
pass-through operators; parallel factors; all factors as far as an operator lets them; all."""

UNKNOWN = 0
"""The number of a value without a sharding."""


class PropagationNode(NamedTuple):
    """An application or a data flow edge: its factor rule, and the numbers of its values."""

    rule: FactorRule
    operands: tuple[int, ...]
    results: tuple[int, ...]
    pass_through: Direction = Direction.NONE
    """The directions that come first: through pointwise operators, reshapes and transposes."""
    usual: Direction = Direction.BOTH
    """The directions that come next: for instance not from a broadcast to its result."""
    is_pointwise: bool = False
    """Whether its tensors have one shape: an operand then takes no axis that the result lacks."""
    is_shared: bool = False
    """Whether an operand has other uses: then it passes through one priority later."""
    allowed: Direction = Direction.BOTH
    """The only directions at all: a propagation barrier allows one, or none."""
    boundary: ManualBoundary | None = None
    """The boundary of a manual computation that the result lies beyond."""

    @property
    def kind(self) -> tuple[int, ...]:
        """All of the node but its values, by identity."""
        directions = (id(self.pass_through), id(self.usual), id(self.allowed))
        flags = (self.is_pointwise, self.is_shared)
        return (id(self.rule), id(self.boundary), *directions, *flags)

    def direction(self, kind: Kind, priority: int) -> Direction:
        """Return where a factor may be propagated at a priority."""
        if priority == OP_PRIORITIES[-1]:
            return Direction.BOTH
        if priority == 3 or (priority == 2 and kind == "parallel"):
            return self.pass_through | self.usual
        return Direction.NONE if priority == 0 and self.is_shared else self.pass_through

    def can_propagate(self, priority: int) -> bool:
        """Whether a factor of two tensors may be propagated at a priority."""
        seen, shared = set[int](), set[int]()
        for mapping in (*self.rule.operands, *self.rule.results):
            factors = {factor for dim in mapping for factor in dim}
            shared |= seen & factors
            seen |= factors
        kinds = {self.rule.kinds[factor] for factor in shared}
        return any(self.direction(kind, priority) & self.allowed for kind in kinds)


class ShardingGroup(NamedTuple):
    """Values with one sharding: when one of `leaders` changes, all `members` follow."""

    members: tuple[tuple[int, Sequence[int]], ...]
    """Each with the nodes to push when it follows, the most urgent last."""
    leaders: frozenset[int]


class PropagationStep(NamedTuple):
    """A node that changed shardings: the numbers of all its shardings, before and after.

    Where a value followed another of its sharding group, the node is -1, `before` are both values,
    and `after` are the old and the new sharding of the one that followed.
    """

    node: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@lru_cache(maxsize=256)
def identity_rule(rank: int, operands: int = 1) -> FactorRule:
    """Return the rule of tensors that have the same sharding."""
    dims = tuple((dim,) for dim in range(rank))
    kinds: list[Kind] = ["parallel"] * rank
    return FactorRule((), (1 << 60,) * rank, tuple(kinds), (dims,) * operands, (dims,))


class PropagationEngine:
    """A program with the shardings of its values and its outputs so far."""

    def __init__(
        self,
        nodes: Sequence[PropagationNode],
        shardings: Sequence[TensorSharding | None],
        outputs: Sequence[int],
        output_shardings: Sequence[TensorSharding | None],
        merge: str,
        watchers: Sequence[Sequence[int]],
        groups: Sequence[ShardingGroup] = (),
        mesh_kinds: Sequence[int] = (0,),
        siblings: Siblings | None = None,
    ) -> None:
        """Prepare to propagate; `merge` is `basic` or `aggressive`.

        `watchers` lists for each value the nodes to push when it changes, the most urgent last.
        `mesh_kinds` numbers the meshes, equal for those that differ only in their names.
        `siblings` are the other results, with their ranks, of the application that produces a
        value: needed only where there are several meshes.
        """
        self.nodes, self.outputs, self.merge = nodes, outputs, MERGES[merge]
        self.interned: list[TensorSharding | None] = [None]
        self._numbers: dict[TensorSharding, int] = {}
        self.shardings = list(map(self.intern, shardings))
        self.output_shardings = list(map(self.intern, output_shardings))
        self.log: list[PropagationStep] = []
        self._watchers, self._mesh_kinds, self._siblings = watchers, mesh_kinds, siblings or {}
        self._groups = {leader: group for group in groups for leader in group.leaders}
        firsts: dict[object, tuple[int, PropagationNode]] = {}
        self._kinds = [firsts.setdefault(node.kind, (len(firsts), node))[0] for node in nodes]
        self._can_propagate = [
            [node.can_propagate(priority) for _, node in firsts.values()]
            for priority in OP_PRIORITIES
        ]
        self._cache: dict[tuple[int, ...], tuple[int, ...] | None] = {}

    def intern(self, sharding: TensorSharding | None) -> int:
        """Return the number of a sharding."""
        if sharding is None:
            return UNKNOWN
        number = self._numbers.get(sharding)
        if number is None:
            number = self._numbers[sharding] = len(self.interned)
            self.interned.append(sharding)
        return number

    def run(self, priority: int = OP_PRIORITIES[-1]) -> None:
        """Propagate at one operator priority until nothing changes."""
        self._propagate_outputs()
        can_propagate = [self._can_propagate[priority][kind] for kind in self._kinds]
        stack = [number for number in reversed(range(len(self.nodes))) if can_propagate[number]]
        waiting = set(stack)
        while stack:
            number = stack.pop()
            waiting.discard(number)
            for watchers in self._step(number, priority):
                for other in watchers:
                    if other not in waiting and other != number and can_propagate[other]:
                        stack.append(other)
                        waiting.add(other)
        self._propagate_outputs()

    def _step(self, number: int, priority: int) -> list[Sequence[int]]:
        """Propagate through one node; return the watchers of each value that changed."""
        node, shardings = self.nodes[number], self.shardings
        values = node.operands + node.results
        before = tuple([shardings[value] for value in values])
        key = (self._kinds[number], priority, *before)
        try:
            after = self._cache[key]
        except KeyError:
            after = self._cache[key] = self._propagate(node, before, priority)
        if after is None:
            return []
        self.log.append(PropagationStep(number, before, after))
        watchers: list[Sequence[int]] = []
        for place, new in enumerate(after):
            if new != before[place]:
                watchers += self._set(values[place], new)
        return watchers

    def _set(self, value: int, new: int) -> list[Sequence[int]]:
        """Set the sharding of a value and of its group; return the watchers of each."""
        self._put(value, new)
        watchers = [self._watchers[value]]
        if value in self._groups:
            for other, watching in self._groups[value].members:
                if other != value:
                    change = (self.shardings[other], new)
                    self.log.append(PropagationStep(-1, (value, other), change))
                    self._put(other, new)
                    watchers.append(watching)
        return watchers

    def _put(self, value: int, new: int) -> None:
        """Set the sharding of a value; siblings without one become open on the same mesh."""
        self.shardings[value] = new
        for other, rank in self._siblings.get(value, ()):
            sharding = self.interned[new]
            if self.shardings[other] == UNKNOWN and sharding is not None:
                self.shardings[other] = self.intern(TensorSharding.open(rank, sharding.mesh))

    def _propagate(
        self, node: PropagationNode, before: tuple[int, ...], priority: int
    ) -> tuple[int, ...] | None:
        if not any(before):
            return None
        directions = [node.direction(kind, priority) & node.allowed for kind in node.rule.kinds]
        known = [self.interned[number] for number in before]
        mesh = self.common_mesh(known)
        if mesh is None:
            return None
        boundary = node.boundary
        if boundary is not None and known[-1] is not None:
            known[-1] = boundary.to_source(known[-1])
        new = propagate_rule(node.rule, known, self.merge, directions, node.is_pointwise, mesh)
        if boundary is not None and new[-1] is not None:
            new[-1] = boundary.to_target(new[-1])
        after = tuple(old if one is None else self.intern(one) for old, one in zip(before, new))
        return None if after == before else after

    def common_mesh(self, shardings: Sequence[TensorSharding | None]) -> int | None:
        """Return the mesh of all shardings, or None if they differ; an empty mesh fits any."""
        if len(self._mesh_kinds) == 1:
            return 0
        mesh: int | None = None
        for sharding in shardings:
            if sharding is None:
                continue
            if mesh is None or self._mesh_kinds[mesh] == EMPTY_KIND:
                mesh = sharding.mesh
            elif self._mesh_kinds[sharding.mesh] not in (EMPTY_KIND, self._mesh_kinds[mesh]):
                return None
        return mesh

    def _propagate_outputs(self) -> None:
        """Propagate between the returned values and the shardings of the outputs."""
        for place, value in enumerate(self.outputs):
            pair = (self.shardings[value], self.output_shardings[place])
            known = [self.interned[number] for number in pair]
            mesh = self.common_mesh(known)
            if pair[0] == pair[1] or mesh is None:
                continue
            rank = len(next(s for s in known if s is not None).axes)
            both = [Direction.BOTH] * rank
            inner, outer = propagate_rule(identity_rule(rank), known, self.merge, both, mesh=mesh)
            if inner is not None:
                self._set(value, self.intern(inner))
            if outer is not None:
                self.output_shardings[place] = self.intern(outer)


def run_by_operator(engine: PropagationEngine) -> None:
    """Propagate by operator priority: pass-through operators first, reductions last."""
    for priority in OP_PRIORITIES:
        engine.run(priority)


def run_by_user(
    engine: PropagationEngine,
    priorities: Mapping[int, Priorities],
    output_priorities: Mapping[int, Priorities],
    below: int | None = None,
) -> None:
    """Propagate user priority 0, then 1 and so on, as far as `below`; each by operator.

    Until its priority is reached, a dimension is closed and its axes are not available to the
    other dimensions of its tensor.
    """
    waiting: list[tuple[list[int], int, Priorities, TensorSharding]] = []
    for shardings, given in (
        (engine.shardings, priorities),
        (engine.output_shardings, output_priorities),
    ):
        for place, levels in given.items():
            sharding = engine.interned[shardings[place]]
            if sharding is not None and any(levels):
                waiting.append((shardings, place, levels, sharding))
                shardings[place] = engine.intern(_postponed(sharding, levels))
    run_by_operator(engine)
    for level in sorted({level for _, _, levels, _ in waiting for level in levels if level}):
        if below is not None and level >= below:
            break
        for shardings, place, levels, original in waiting:
            now = engine.interned[shardings[place]]
            if now is not None and level in levels:
                shardings[place] = engine.intern(_released(now, original, levels, level))
        run_by_operator(engine)


def _postponed(sharding: TensorSharding, levels: Priorities) -> TensorSharding:
    """Return a sharding without the dimensions of later priorities."""
    later = [axis for axes, level in zip(sharding.axes, levels) if level for axis in axes]
    return sharding._replace(
        axes=tuple(() if level else axes for axes, level in zip(sharding.axes, levels)),
        is_open=tuple(not level and opened for opened, level in zip(sharding.is_open, levels)),
        replicated=tuple(sorted((*sharding.replicated, *later))),
    )


def _released(
    now: TensorSharding, original: TensorSharding, levels: Priorities, level: int
) -> TensorSharding:
    """Return a sharding with the dimensions of one priority as they were written."""
    axes, is_open, released = list(now.axes), list(now.is_open), set[AxisRef]()
    for dim, of_dim in enumerate(levels):
        if of_dim == level:
            axes[dim], is_open[dim] = original.axes[dim], original.is_open[dim]
            released.update(original.axes[dim])
    kept = tuple(axis for axis in now.replicated if axis not in released)
    return now._replace(axes=tuple(axes), is_open=tuple(is_open), replicated=kept)
