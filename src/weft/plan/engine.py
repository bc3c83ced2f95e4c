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
from typing import NamedTuple, TypeAlias

from weft.lang.rule import FactorRule, Kind
from weft.plan.axes import Piece, Pieces
from weft.plan.factors import TensorSharding, lift, project
from weft.plan.merge import Claims, Direction, merge_aggressive, merge_basic

Merge: TypeAlias = Callable[[Claims], set[int]]
Round: TypeAlias = int
Priorities: TypeAlias = tuple[int, ...]
"""The priority of each dimension of a tensor, 0 first."""

ROUNDS: tuple[Round, ...] = (0, 1, 2, 3, 4)
"""What passes through and is used once; what passes through; what is parallel; all, as far as an
operator lets it; all."""

UNKNOWN = 0
"""The number of no sharding at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An application for propagation: its rule, and the numbers of its values."""

    rule: FactorRule
    operands: tuple[int, ...]
    results: tuple[int, ...]
    early: Direction = Direction.NONE
    """Where axes go before all others: through what is pointwise, a reshape or a transpose."""
    late: Direction = Direction.BOTH
    """Where they go after that, before they go everywhere: not from a broadcast to its result."""
    is_pointwise: bool = False
    """Whether its tensors are all alike: then an operand takes no axis that the result does not."""
    shared: bool = False
    """Whether an operand has other uses: then its operators settle it together, a round later."""


class Cause(NamedTuple):
    """Why an axis cuts a dimension: through which node, and from where, it came."""

    node: int
    value: int
    dim: int


@dataclass(slots=True)
class Engine:
    """A program, and what is known of its values and its outputs so far."""

    nodes: Sequence[Node]
    outputs: Sequence[int]
    merge: Merge
    shardings: list[int]
    output_shardings: list[int]
    known: list[TensorSharding | None] = field(default_factory=lambda: [None])
    causes: dict[tuple[int, int, int], Cause] = field(default_factory=dict)
    """For (value, dimension, axis) what it came from."""
    _numbers: dict[TensorSharding, int] = field(default_factory=dict)
    _steps: dict[tuple[int, ...], tuple[int, ...] | None] = field(default_factory=dict)
    _users: list[list[int]] = field(default_factory=list)
    _makers: list[int] = field(default_factory=list)

    @classmethod
    def over(
        cls,
        nodes: Sequence[Node],
        shardings: Sequence[TensorSharding | None],
        outputs: Sequence[int],
        output_shardings: Sequence[TensorSharding | None],
        merge: str,
    ) -> Engine:
        """An engine on a program; `merge` is `basic` or `aggressive`."""
        engine = cls(nodes, outputs, MERGES[merge], [], [])
        engine.shardings = list(map(engine.number, shardings))
        engine.output_shardings = list(map(engine.number, output_shardings))
        engine._users = [[] for _ in shardings]
        engine._makers = [-1] * len(shardings)
        for number, node in enumerate(nodes):
            for value in dict.fromkeys(node.operands):
                engine._users[value].append(number)
            for value in node.results:
                engine._makers[value] = number
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
        stack = list(reversed(range(len(self.nodes))))
        waiting = set(stack)
        while stack:
            number = stack.pop()
            waiting.discard(number)
            for value in self._step(number, rounds):
                for other in (self._makers[value], *reversed(self._users[value])):
                    if other not in waiting and other not in (-1, number):
                        stack.append(other)
                        waiting.add(other)
        self._through_outputs()

    def _step(self, number: int, rounds: Round) -> list[int]:
        """Propagate through one operator; the values that changed, in order."""
        node, shardings = self.nodes[number], self.shardings
        values = node.operands + node.results
        before = tuple([shardings[value] for value in values])
        how = (node.early, node.late, node.is_pointwise, node.shared)
        key = (id(node.rule), rounds, *how, *before)
        try:
            after = self._steps[key]
        except KeyError:
            after = self._steps[key] = self._propagate(node, before, rounds)
        if after is None:
            return []
        changed = []
        for place, new in enumerate(after):
            if new != before[place]:
                self._explain(number, place, before, new)
                shardings[values[place]] = new
                changed.append(values[place])
        return changed

    def _propagate(
        self, node: Node, before: tuple[int, ...], rounds: Round
    ) -> tuple[int, ...] | None:
        if not any(before):
            return None
        allowed = [_direction(node, kind, rounds) for kind in node.rule.kinds]
        known = [self.known[number] for number in before]
        found = propagate_rule(node.rule, known, self.merge, allowed, node.is_pointwise)
        after = tuple(old if new is None else self.number(new) for old, new in zip(before, found))
        return None if after == before else after

    def _explain(self, number: int, place: int, before: tuple[int, ...], new: int) -> None:
        """Note where each axis that is new on a tensor came from."""
        node, sharding, old = self.nodes[number], self.known[new], self.known[before[place]]
        mappings, values = node.rule.operands + node.rule.results, node.operands + node.results
        assert sharding is not None
        for dim, pieces in enumerate(sharding.axes):
            had = {piece[0] for piece in old.axes[dim]} if old else set()
            for axis in {piece[0] for piece in pieces} - had:
                source = _source(mappings, [self.known[b] for b in before], place, dim, axis)
                if source is not None:
                    cause = Cause(number, values[source[0]], source[1])
                    self.causes.setdefault((values[place], dim, axis), cause)

    def _through_outputs(self) -> None:
        """What the program returns lies as its outputs do."""
        for place, value in enumerate(self.outputs):
            pair = (self.shardings[value], self.output_shardings[place])
            if pair[0] != pair[1]:
                known = [self.known[number] for number in pair]
                rank = len(next(s for s in known if s is not None).axes)
                both = [Direction.BOTH] * rank
                inner, outer = propagate_rule(_identity(rank), known, self.merge, both)
                if inner is not None:
                    self.shardings[value] = self.number(inner)
                if outer is not None:
                    self.output_shardings[place] = self.number(outer)


def _source(
    mappings: Sequence[Sequence[tuple[int, ...]]],
    known: Sequence[TensorSharding | None],
    place: int,
    dim: int,
    axis: int,
) -> tuple[int, int] | None:
    """The tensor and the dimension that had the axis on a factor of this dimension."""
    factors = set(mappings[place][dim])
    for other, (mapping, sharding) in enumerate(zip(mappings, known)):
        if other != place and sharding is not None:
            for d, of_dim in enumerate(mapping):
                if factors & set(of_dim) and any(piece[0] == axis for piece in sharding.axes[d]):
                    return other, d
    return None


def _identity(rank: int) -> FactorRule:
    dims = tuple((dim,) for dim in range(rank))
    kinds: list[Kind] = ["parallel"] * rank
    return FactorRule((), (1 << 60,) * rank, tuple(kinds), (dims,), (dims,))


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
        new = lift(tensors[number], mappings[number], rule.sizes, old)
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
) -> None:
    """Propagate what users gave priority 0, then 1 and so on; each by operator.

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
