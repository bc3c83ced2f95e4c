"""A graph with its regions as one flat program: nodes for applications and edges, values by number.

The targets of an edge share a number. For every value the program knows which nodes look again when
it changes, and in which order: that of Shardy, which follows its lists of uses. A use is added to
the front of a list; a region is read before the operation that it belongs to; and where an edge
takes the place of a value, the list is turned around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, FactorRule, Graph, Signature, factor_rule
from weft.lang.region import Edge, arguments, edges, own_operands
from weft.lang.written import ATTRIBUTE, written_rule
from weft.plan.propagation.engine import Siblings
from weft.plan.propagation.factors import TensorSharding
from weft.plan.propagation.groups import align, sharding_groups
from weft.plan.propagation.merge import Direction
from weft.plan.propagation.meshes import Meshes
from weft.plan.propagation.node import Group, Node, identity
from weft.plan.propagation.seeds import Seed, Seeds

PASSES = {
    "": (Direction.NONE, Direction.BOTH),
    "forward": (Direction.FORWARD, Direction.BOTH),
    "backward": (Direction.NONE, Direction.BACKWARD),
    "both": (Direction.BOTH, Direction.BOTH),
}
"""Where axes go through an operator before all others, and where after that."""

Use: TypeAlias = int | str | None
"""The node that uses a value; for one that is not made yet the owner of its edge; or nobody."""


class Applied(NamedTuple):
    """An application with its rule, as `Graph.walk` comes to it."""

    application: Application
    signature: Signature
    rule: FactorRule
    depth: int
    """How many regions it stands in."""


@dataclass(frozen=True, slots=True)
class Program:
    """All that the engine needs of a graph, and the way back to it."""

    names: Sequence[str]
    """The name of every number: the owner of its edge, where there is one."""
    numbers: Mapping[str, int]
    """The number of every value of the graph and its regions."""
    nodes: Sequence[Node]
    origins: Sequence[Application]
    """The application that each node belongs to."""
    applied: Sequence[Applied]
    outputs: Sequence[int]
    notified: Sequence[Sequence[int]]
    groups: Sequence[Group]
    seeds: Sequence[Seed | None]
    siblings: Siblings
    """For a value those that its application makes beside it, with ranks, if meshes differ."""


def flatten(graph: Graph, meshes: Meshes) -> Program:
    """The program of a graph."""
    return _Flattener(graph, meshes).program()


class Draft(NamedTuple):
    """A node before all uses are known; values by the names that it sees."""

    origin: Application
    operands: tuple[str, ...]
    results: tuple[str, ...]
    rule: FactorRule
    passes: str = "both"
    is_pointwise: bool = False
    is_application: bool = False


class _Flattener:
    def __init__(self, graph: Graph, meshes: Meshes) -> None:
        self.graph = graph
        self.shapes = {name: value.shape for name, value in graph.all_values.items()}
        self.depth = 0
        self.beside = _beside(graph) if len(meshes.all) > 1 else {}
        """For a value those that are made with it, where several meshes are."""
        self.seeds = Seeds(graph, meshes)
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.drafts: list[Draft] = []
        self.applied: list[Applied] = []
        self.uses: dict[str, list[Use]] = {}
        self.turned: set[str] = set()
        """The values whose list of uses was turned around."""
        self.edge_nodes: dict[str, int] = {}
        self.stand_ins: dict[str, str] = {}
        """For a value whose group has no common sharding, what its users see in its place."""
        self.groups = sharding_groups(graph)
        for group in self.groups:
            conflict = align(group, self.seeds)
            if conflict is None:
                self._open_beside(group)
            else:
                self._conflict(group, conflict)

    def _open_beside(self, group: list[str]) -> None:
        """What is made with a value that has a sharding lies open on the same mesh."""
        known = [(name, self.seeds.found[name]) for name in group if name in self.seeds.found]
        for name, seed in known:
            for other in self.beside.get(name, ()):
                rank = len(self.shapes[other])
                free = TensorSharding.free(rank)._replace(mesh=seed.sharding.mesh)
                self.seeds.found.setdefault(other, Seed(free, (0,) * rank))

    def _conflict(self, group: list[str], seed: Seed) -> None:
        free = TensorSharding.free(len(seed.levels))._replace(mesh=seed.sharding.mesh)
        for place, name in enumerate(group):
            group[place] = self.stand_ins[name] = f"{name}*"
            self.seeds.found[group[place]] = Seed(free, (0,) * len(seed.levels))

    def program(self) -> Program:
        graph = self.graph
        self._begin([value.name for value in graph.inputs])
        self._lay(graph)
        for name in graph.outputs:
            self._use(name, None)
        notified = list(self._notified())
        return Program(
            self.names,
            self.numbers,
            list(map(self._node, self.drafts)),
            [draft.origin for draft in self.drafts],
            self.applied,
            [self.numbers[self._seen(name)] for name in graph.outputs],
            notified,
            [self._group(group, notified) for group in self.groups],
            [self.seeds.found.get(name) for name in self.names],
            dict(self._siblings()),
        )

    # Laying out: numbers, drafts and uses, in the order of the program.

    def _begin(self, names: Sequence[str]) -> None:
        """Number the arguments of a block; what stands in for them comes last to first."""
        for name in names:
            if name not in self.numbers:
                self._number(name)
        order = list(self.stand_ins)
        for name in sorted(set(names) & set(order), key=order.index, reverse=True):
            self._stand(name)

    def _number(self, name: str, *others: str) -> None:
        for each in (name, *others):
            self.numbers[each] = len(self.names)
        self.names.append(name)

    def _lay(self, graph: Graph) -> None:
        for application, signature in zip(graph.applications, graph.signatures):
            rule = _rule(application, signature)
            self.applied.append(Applied(application, signature, rule, self.depth))
            around = edges(application)
            if not around and not application.regions:
                self._apply(graph, application, rule)
            else:
                self._lay_around(application, around)

    def _apply(self, graph: Graph, application: Application, rule: FactorRule) -> None:
        if application.operator == "sharding_group":
            self._use(application.operands[0], None)
            return
        operands = tuple(map(self._seen, application.operands))
        for name in operands:
            self.uses.setdefault(name, []).append(len(self.drafts))
        for name in application.results:
            self._number(name)
        passes = graph.operators.find(application.operator).passes
        if passes == "both" and self.applied[-1].signature.notation.whole:
            passes = ""  # it makes or takes a dimension: a bitcast to smaller elements
        draft = Draft(
            application, operands, application.results, rule, passes, passes == "both", True
        )
        self.drafts.append(draft)
        for name in application.results:
            self._stand(name)

    def _lay_around(self, application: Application, around: list[Edge]) -> None:
        """An application with edges or regions: what is inside, then the edges to its results."""
        for edge in around:
            self._number(edge.owner, *edge.others)
        alone = [name for name in application.results if name not in self.numbers]
        for name in alone:
            self._number(name)
        leaving = [edge for edge in around if edge.region is None]
        entering = [edge for edge in around if edge.region is not None]
        for number, region in enumerate(application.regions):
            for edge in entering:
                if edge.region == number:
                    self._edge(application, edge)
            owned = {edge.owner for edge in entering}
            inner = (value.name for value in arguments(application, region))
            self._begin([name for name in inner if name not in owned])
            self.depth += 1
            self._lay(region)
            self.depth -= 1
            self._use_each(region.outputs, leaving)
        enters = entering or application.attributes.get("enters")
        self._use_each(own_operands(application), [] if enters else leaving)
        for edge in leaving:
            self._edge(application, edge)
        for name in alone:
            self._stand(name)

    def _edge(self, application: Application, edge: Edge) -> None:
        """The node of an edge; its sources were, or will be, used by what it belongs to."""
        self.edge_nodes[edge.owner] = len(self.drafts)
        self.turned.add(edge.owner)
        rank = len(self.shapes[edge.owner])
        sources = tuple(map(self._seen, edge.sources))
        draft = Draft(application, sources, (edge.owner,), identity(rank, len(sources)))
        self.drafts.append(draft)
        self._stand(edge.owner)

    def _stand(self, name: str) -> None:
        """What stands in for a value, right behind it."""
        other = self.stand_ins.get(name)
        if other is None:
            return
        self._number(other)
        self.uses[name] = [len(self.drafts)]
        if name not in self.turned:
            self.turned.add(other)
        self.turned.discard(name)
        rank = len(self.shapes[name])
        origin = Application("sharding_constraint", (name,), (other,))
        self.drafts.append(Draft(origin, (name,), (other,), identity(rank), is_pointwise=True))

    def _seen(self, name: str) -> str:
        """The value that its users see: itself, or what stands in for it."""
        return self.stand_ins.get(name, name)

    def _use(self, name: str, use: Use) -> None:
        self.uses.setdefault(self._seen(name), []).append(use)

    def _use_each(self, names: Sequence[str], around: Sequence[Edge]) -> None:
        """Values that are handed over: each to its edge, those that are left to nobody."""
        for place, name in enumerate(names):
            self._use(name, around[place].owner if place < len(around) else None)

    # When everything is laid out: who looks again, and who shares.

    def _node(self, draft: Draft) -> Node:
        early, late = PASSES[draft.passes]
        limit = _limit(draft.origin) if draft.is_application else Direction.BOTH
        if limit != Direction.BOTH:
            early = late = limit
        return Node(
            draft.rule,
            tuple([self.numbers[name] for name in draft.operands]),
            tuple([self.numbers[name] for name in draft.results]),
            early,
            late,
            draft.is_pointwise,
            draft.is_application and limit == Direction.BOTH and self._shares(draft),
            limit,
            self.seeds.borders.get(draft.results[0]) if not draft.is_application else None,
        )

    def _shares(self, draft: Draft) -> bool:
        """Whether an operand that can be cut has other uses."""
        for name in draft.operands:
            if len(self.uses[name]) > 1 and self.shapes[name.removesuffix("*")]:
                return True
        return False

    def _notified(self) -> Iterator[list[int]]:
        """For each number the nodes to look at again, the most urgent last."""
        others: dict[str, list[str]] = {}
        for other, owner in self.seeds.owners.items():
            others.setdefault(owner, []).append(other)
        makers = {name: n for n, draft in enumerate(self.drafts) for name in draft.results}
        for name in self.names:
            found = [node for other in others.get(name, ()) for node in self._users(other)]
            if name in makers:
                found.append(makers[name])
            yield found + self._users(name)

    def _users(self, name: str) -> list[int]:
        """The nodes that use a value, the most urgent last."""
        found = []
        for use in self.uses.get(name, ()):
            node = self.edge_nodes.get(use) if isinstance(use, str) else use
            if node is not None:
                found.append(node)
        return found if name in self.turned else found[::-1]

    def _siblings(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        for name, others in self.beside.items():
            ranks = [(self.numbers[other], len(self.shapes[other])) for other in others]
            yield self.numbers[name], ranks

    def _group(self, names: Sequence[str], notified: Sequence[Sequence[int]]) -> Group:
        """A group by number; the argument of a loop follows, for its own users, and never leads."""
        inner = self.seeds.owners
        members = (
            (number := self.numbers[name], self._users(name) if name in inner else notified[number])
            for name in names
        )
        leaders = (self.numbers[name] for name in names if name not in inner)
        return Group(tuple(members), frozenset(leaders))


def _beside(graph: Graph) -> dict[str, list[str]]:
    """For a value those that its application makes as well; what leaves by an edge stands alone."""
    return {
        name: [other for other in application.results if other != name]
        for application, _ in graph.walk()
        if len(application.results) > 1 and not edges(application)
        for name in application.results
    }


def _rule(application: Application, signature: Signature) -> FactorRule:
    """The rule that the author wrote, or else the one that follows from the line."""
    if ATTRIBUTE not in application.attributes:
        return factor_rule(signature)
    return written_rule(application.attributes[ATTRIBUTE], signature)


def _limit(application: Application) -> Direction:
    """Where axes may go at all."""
    if "allowed_direction" not in application.attributes:
        return Direction.BOTH
    said = application.attributes["allowed_direction"]
    if said not in Direction.__members__:
        raise WeftError(
            f"{application} allows the direction {said!r}",
            hint=f"there are {', '.join(Direction.__members__)}",
        )
    return Direction[said]
