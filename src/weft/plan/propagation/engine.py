"""Propagation over a program of factor rules, to a fixed point.

Operators wait on a stack, the first of the program on top. When the sharding of a value changes,
the operator that made it and those that use it are put back. Shardings are interned and known by
number, and what an operator does to the numbers of its tensors is remembered: repeated layers are
solved once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from weft.lang.rule import FactorRule, Kind
from weft.plan.propagation.axes import Piece, Pieces
from weft.plan.propagation.factors import TensorSharding, lift, project
from weft.plan.propagation.merge import Claims, Direction, merge_aggressive, merge_basic
from weft.plan.propagation.node import EMPTY, Event, Group, Node, identity, neighbours

Merge: TypeAlias = Callable[[Claims], set[int]]
Round: TypeAlias = int
Priorities: TypeAlias = tuple[int, ...]
"""The priority of each dimension of a tensor, 0 first."""

Siblings: TypeAlias = Mapping[int, Sequence[tuple[int, int]]]

ROUNDS: tuple[Round, ...] = (0, 1, 2, 3, 4)
"""What passes through and is used once; what passes through; what is parallel; all, as far as an
operator lets it; all."""

UNKNOWN = 0
"""The number of no sharding at all."""


@dataclass(slots=True)
class Engine:
    """A program, and what is known of its values and its outputs so far."""

    nodes: Sequence[Node]
    outputs: Sequence[int]
    merge: Merge
    shardings: list[int]
    output_shardings: list[int]
    known: list[TensorSharding | None] = field(default_factory=lambda: [None])
    log: list[Event] = field(default_factory=list)
    """What happened, in order."""
    _numbers: dict[TensorSharding, int] = field(default_factory=dict)
    _steps: dict[tuple[int, ...], tuple[int, ...] | None] = field(default_factory=dict)
    _notified: Sequence[Sequence[int]] = ()
    _groups: Mapping[int, tuple[Group, ...]] = field(default_factory=dict)
    _kinds: Sequence[int] = (0,)
    _siblings: Siblings = field(default_factory=dict)
    _alike: Sequence[int] = ()
    """For each node a number that nodes share which do the same to the same shardings."""
    _moving: Sequence[Sequence[bool]] = ()
    """For each round, and each of those numbers, whether such nodes can do anything."""

    @classmethod
    def over(
        cls,
        nodes: Sequence[Node],
        shardings: Sequence[TensorSharding | None],
        outputs: Sequence[int],
        output_shardings: Sequence[TensorSharding | None],
        merge: str,
        notified: Sequence[Sequence[int]] | None = None,
        groups: Sequence[Group] = (),
        mesh_kinds: Sequence[int] = (0,),
        siblings: Siblings | None = None,
    ) -> Engine:
        """An engine on a program; `merge` is `basic` or `aggressive`.

        `notified` lists for each value the nodes to look at again when it changes, the most urgent
        last. `mesh_kinds` has a number for each mesh: the same for meshes that are the same but for
        their names, and `EMPTY` for one that says nothing. `siblings` are, for a value, those that
        are made with it, and their ranks: needed only where there are several meshes.
        """
        engine = cls(nodes, outputs, MERGES[merge], [], [])
        engine.shardings = list(map(engine.number, shardings))
        engine.output_shardings = list(map(engine.number, output_shardings))
        engine._notified = neighbours(nodes, len(shardings)) if notified is None else notified
        engine._groups = {leader: (group,) for group in groups for leader in group.leaders}
        engine._kinds = mesh_kinds
        engine._siblings = siblings or {}
        ways: dict[object, int] = {}
        engine._alike = [ways.setdefault(_way(node), len(ways)) for node in nodes]
        kinds = [nodes[number] for number in _firsts(engine._alike)]
        engine._moving = [[_moves(node, rounds) for node in kinds] for rounds in ROUNDS]
        return engine

    def number(self, sharding: TensorSharding | None) -> int:
        """The number of a sharding, a new one if it has none."""
        if sharding is None:
            return UNKNOWN
        number = self._numbers.get(sharding)
        if number is None:
            number = self._numbers[sharding] = len(self.known)
            self.known.append(sharding)
        return number

    def run(self, rounds: Round = ROUNDS[-1]) -> None:
        """Propagate until nothing changes."""
        self._through_outputs()
        moves = [self._moving[rounds][way] for way in self._alike]
        stack = [number for number in reversed(range(len(moves))) if moves[number]]
        waiting = set(stack)
        while stack:
            number = stack.pop()
            waiting.discard(number)
            for notified in self._step(number, rounds):
                for other in notified:
                    if other not in waiting and other != number and moves[other]:
                        stack.append(other)
                        waiting.add(other)
        self._through_outputs()

    def _step(self, number: int, rounds: Round) -> list[Sequence[int]]:
        """Propagate through one operator; who must look again, for each value that changed."""
        node, shardings = self.nodes[number], self.shardings
        values = node.operands + node.results
        before = tuple([shardings[value] for value in values])
        key = (self._alike[number], rounds, *before)
        try:
            after = self._steps[key]
        except KeyError:
            after = self._steps[key] = self._propagate(node, before, rounds)
        if after is None:
            return []
        self.log.append(Event(number, before, after))
        notified: list[Sequence[int]] = []
        for place, new in enumerate(after):
            if new != before[place]:
                notified += self._set(values[place], new)
        return notified

    def _set(self, value: int, new: int) -> list[Sequence[int]]:
        """Give a value and those of its group a sharding; who must look again."""
        self._put(value, new)
        notified = [self._notified[value]]
        for group in self._groups.get(value, ()):
            for other, watching in group.members:
                if other != value:
                    self.log.append(Event(-1, (value, other), (self.shardings[other], new)))
                    self._put(other, new)
                    notified.append(watching)
        return notified

    def _put(self, value: int, new: int) -> None:
        """Give a value a sharding; those that are made with it lie open on the same mesh."""
        self.shardings[value] = new
        for other, rank in self._siblings.get(value, ()):
            sharding = self.known[new]
            if self.shardings[other] == UNKNOWN and sharding is not None:
                free = TensorSharding.free(rank)._replace(mesh=sharding.mesh)
                self.shardings[other] = self.number(free)

    def _propagate(
        self, node: Node, before: tuple[int, ...], rounds: Round
    ) -> tuple[int, ...] | None:
        if not any(before):
            return None
        allowed = [_direction(node, kind, rounds) for kind in node.rule.kinds]
        if node.limit != Direction.BOTH:
            allowed = [direction & node.limit for direction in allowed]
        known = [self.known[number] for number in before]
        mesh = self.common_mesh(known)
        if mesh is None:
            return None
        border = node.border
        if border is not None and known[-1] is not None:
            known[-1] = border.seen(known[-1])
        found = propagate_rule(node.rule, known, self.merge, allowed, node.is_pointwise, mesh)
        if border is not None and found[-1] is not None:
            found[-1] = border.kept(found[-1])
        after = tuple(old if new is None else self.number(new) for old, new in zip(before, found))
        return None if after == before else after

    def common_mesh(self, known: Sequence[TensorSharding | None]) -> int | None:
        """The mesh on which all shardings lie; None if they lie on different ones.

        An empty mesh says nothing, and lets the others decide.
        """
        if len(self._kinds) == 1:
            return 0
        mesh: int | None = None
        for sharding in known:
            if sharding is None:
                continue
            if mesh is None or self._kinds[mesh] == EMPTY:
                mesh = sharding.mesh
            elif self._kinds[sharding.mesh] not in (EMPTY, self._kinds[mesh]):
                return None
        return mesh

    def _through_outputs(self) -> None:
        """What the program returns lies as its outputs do."""
        for place, value in enumerate(self.outputs):
            pair = (self.shardings[value], self.output_shardings[place])
            if pair[0] != pair[1]:
                known = [self.known[number] for number in pair]
                mesh = self.common_mesh(known)
                if mesh is None:
                    continue
                rank = len(next(s for s in known if s is not None).axes)
                both = [Direction.BOTH] * rank
                rule = identity(rank)
                inner, outer = propagate_rule(rule, known, self.merge, both, mesh=mesh)
                if inner is not None:
                    self._set(value, self.number(inner))
                if outer is not None:
                    self.output_shardings[place] = self.number(outer)


def _way(node: Node) -> tuple[int, ...]:
    """All of a node but its values."""
    directions = (id(node.early), id(node.late), id(node.limit))
    return (id(node.rule), id(node.border), *directions, node.is_pointwise, node.shared)


def _firsts(numbers: Sequence[int]) -> list[int]:
    """Where each number, from 0 up, stands first."""
    found: dict[int, int] = {}
    for place, number in enumerate(numbers):
        found.setdefault(number, place)
    return list(found.values())


def _moves(node: Node, rounds: Round) -> bool:
    """Whether axes can go along some factor in a round, from one tensor to another."""
    seen, shared = set[int](), set[int]()
    for mapping in (*node.rule.operands, *node.rule.results):
        factors = {factor for dim in mapping for factor in dim}
        shared |= seen & factors
        seen |= factors
    kinds = {node.rule.kinds[factor] for factor in shared}
    return any(_direction(node, kind, rounds) & node.limit for kind in kinds)


def _direction(node: Node, kind: Kind, rounds: Round) -> Direction:
    """Where a factor may go in a round."""
    if rounds == ROUNDS[-1]:
        return Direction.BOTH
    if rounds == 3 or (rounds == 2 and kind == "parallel"):
        return node.early | node.late
    return Direction.NONE if rounds == 0 and node.shared else node.early


def propagate_rule(
    rule: FactorRule,
    known: Sequence[TensorSharding | None],
    merge: Merge,
    directions: Sequence[Direction],
    is_pointwise: bool = False,
    mesh: int = 0,
) -> list[TensorSharding | None]:
    """The new shardings of the tensors of one operator; None where nothing changes."""
    mappings = (*rule.operands, *rule.results)
    tensors = [project(sharding, m, rule.sizes) for sharding, m in zip(known, mappings)]
    kept: list[Pieces] = [() if s is None else s.kept for s in known]
    split = len(rule.operands)
    elements = [prod(rule.sizes[f] for dim in mapping for f in dim) for mapping in mappings]
    changed = merge(
        Claims(
            tensors[:split],
            tensors[split:],
            kept,
            elements,
            rule.sizes,
            directions,
            is_pointwise,
        )
    )
    found: list[TensorSharding | None] = [None] * len(known)
    for number in changed:
        old = known[number]
        new = lift(tensors[number], mappings[number], rule.sizes, old, mesh)
        if new != old and (old is not None or new.is_cut):
            found[number] = new
    return found


MERGES: dict[str, Merge] = {"basic": merge_basic, "aggressive": merge_aggressive}


def run_by_operator(engine: Engine) -> None:
    """Propagate in rounds: what passes through first, what must be combined last."""
    for rounds in ROUNDS:
        engine.run(rounds)


def run_by_user(
    engine: Engine,
    priorities: Mapping[int, Priorities],
    output_priorities: Mapping[int, Priorities],
    below: int | None = None,
) -> None:
    """Propagate what users gave priority 0, then 1 and so on, as far as `below`; each by operator.

    Until its turn comes, a dimension is closed and its axes are kept from the rest of its tensor.
    """
    waiting: list[tuple[list[int], int, Priorities, TensorSharding]] = []
    for shardings, given in (
        (engine.shardings, priorities),
        (engine.output_shardings, output_priorities),
    ):
        for place, levels in given.items():
            sharding = engine.known[shardings[place]]
            if sharding is not None and any(levels):
                waiting.append((shardings, place, levels, sharding))
                shardings[place] = engine.number(_held_back(sharding, levels))
    run_by_operator(engine)
    for level in sorted({level for _, _, levels, _ in waiting for level in levels if level}):
        if below is not None and level >= below:
            break
        for shardings, place, levels, original in waiting:
            now = engine.known[shardings[place]]
            if now is not None and level in levels:
                shardings[place] = engine.number(_let_go(now, original, levels, level))
        run_by_operator(engine)


def _held_back(sharding: TensorSharding, levels: Priorities) -> TensorSharding:
    later = [piece for axes, level in zip(sharding.axes, levels) if level for piece in axes]
    return sharding._replace(
        axes=tuple(() if level else axes for axes, level in zip(sharding.axes, levels)),
        is_open=tuple(not level and opened for opened, level in zip(sharding.is_open, levels)),
        replicated=tuple(sorted((*sharding.replicated, *later))),
    )


def _let_go(
    now: TensorSharding, original: TensorSharding, levels: Priorities, level: int
) -> TensorSharding:
    axes, is_open, seen = list(now.axes), list(now.is_open), set[Piece]()
    for dim, of_dim in enumerate(levels):
        if of_dim == level:
            axes[dim], is_open[dim] = original.axes[dim], original.is_open[dim]
            seen.update(original.axes[dim])
    kept = tuple(piece for piece in now.replicated if piece not in seen)
    return now._replace(axes=tuple(axes), is_open=tuple(is_open), replicated=kept)
