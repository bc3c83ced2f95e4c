"""Flatten a graph with its regions to nodes: one for each application and each data flow edge.

Values become numbers, and all targets of an edge share one. For every value the program lists the
nodes to visit when it changes, in Shardy's order, which follows MLIR's use lists: a use is added
to the front of a list, a region is read before the operation that it belongs to, and where an edge
replaces a value the list is reversed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, FactorRule, Graph, Signature, factor_rule
from weft.lang.attributes import RULE_ATTRIBUTE
from weft.lang.region import Edge, arguments, edges, own_operands
from weft.lang.rule import written_rule
from weft.plan.propagation.annotations import Annotation, Annotations, sharding_groups
from weft.plan.propagation.engine import PropagationNode, ShardingGroup, Siblings, identity_rule
from weft.plan.propagation.factors import Direction
from weft.plan.propagation.shardings import Meshes

DIRECTIONS = {
    "": (Direction.NONE, Direction.BOTH),
    "forward": (Direction.FORWARD, Direction.BOTH),
    "backward": (Direction.NONE, Direction.BACKWARD),
    "both": (Direction.BOTH, Direction.BOTH),
}
"""For each `Operator.passes` the node's `pass_through` and `usual` directions."""

Use: TypeAlias = int | str | None
"""The node that uses a value; the owner of an edge whose node does not exist yet; or neither."""


class RuledApplication(NamedTuple):
    """An application with its factor rule, in the order of `Graph.walk`."""

    application: Application
    signature: Signature
    rule: FactorRule
    depth: int
    """The number of regions around it."""


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """The nodes of a graph for the engine, and how they map back to the graph."""

    names: Sequence[str]
    """The name of every number: the owner of its edge, where there is one."""
    numbers: Mapping[str, int]
    """The number of every value of the graph and its regions."""
    nodes: Sequence[PropagationNode]
    origins: Sequence[Application]
    """The application that each node belongs to."""
    applications: Sequence[RuledApplication]
    outputs: Sequence[int]
    watchers: Sequence[Sequence[int]]
    groups: Sequence[ShardingGroup]
    annotations: Sequence[Annotation | None]
    siblings: Siblings
    """The other results of a value's application, with their ranks, if there are several meshes."""


def flatten(graph: Graph, meshes: Meshes) -> FlatProgram:
    """Return the nodes of a graph and its regions."""
    return _Flattener(graph, meshes).program()


class _NodeDraft(NamedTuple):
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
        self.ranks = {name: len(value.shape) for name, value in graph.all_values.items()}
        self.depth = 0
        self.siblings = _siblings(graph) if len(meshes.all) > 1 else {}
        self.annotations = Annotations(graph, meshes)
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.drafts: list[_NodeDraft] = []
        self.applications: list[RuledApplication] = []
        self.uses: dict[str, list[Use]] = {}
        self.reversed: set[str] = set()
        """The values whose list of uses is reversed."""
        self.edge_nodes: dict[str, int] = {}
        self.stand_ins: dict[str, str] = {}
        """For a value whose group has conflicting annotations, what its users see instead."""
        self.groups = sharding_groups(graph)
        for group in self.groups:
            conflict = self.annotations.align(group)
            if conflict is None:
                self._open_siblings(group)
            else:
                self._add_stand_ins(group, conflict)

    def _open_siblings(self, group: list[str]) -> None:
        """Leave the siblings of annotated values open on the same mesh."""
        by_owner = self.annotations.by_owner
        for name, annotation in [(name, by_owner[name]) for name in group if name in by_owner]:
            for other in self.siblings.get(name, ()):
                mesh = annotation.sharding.mesh
                by_owner.setdefault(other, Annotation.open(self.ranks[other], mesh))

    def _add_stand_ins(self, group: list[str], conflict: Annotation) -> None:
        rank, mesh = len(conflict.priorities), conflict.sharding.mesh
        for place, name in enumerate(group):
            group[place] = self.stand_ins[name] = f"{name}*"
            self.annotations.by_owner[group[place]] = Annotation.open(rank, mesh)

    def program(self) -> FlatProgram:
        graph = self.graph
        self._begin([value.name for value in graph.inputs])
        self._add_graph(graph)
        for name in graph.outputs:
            self._use(name, None)
        watchers = list(self._watchers())
        siblings = {
            self.numbers[name]: [(self.numbers[other], self.ranks[other]) for other in others]
            for name, others in self.siblings.items()
        }
        return FlatProgram(
            self.names,
            self.numbers,
            list(map(self._node, self.drafts)),
            [draft.origin for draft in self.drafts],
            self.applications,
            [self.numbers[self._seen(name)] for name in graph.outputs],
            watchers,
            [self._group(group, watchers) for group in self.groups],
            [self.annotations.by_owner.get(name) for name in self.names],
            siblings,
        )

    # -- numbers, drafts and uses, in the order of the program

    def _begin(self, names: Sequence[str]) -> None:
        """Number the arguments of a block; their stand-ins follow, last to first."""
        for name in names:
            if name not in self.numbers:
                self._number(name)
        order = list(self.stand_ins)
        for name in sorted(set(names) & set(order), key=order.index, reverse=True):
            self._add_stand_in(name)

    def _number(self, name: str, *others: str) -> None:
        for each in (name, *others):
            self.numbers[each] = len(self.names)
        self.names.append(name)

    def _add_graph(self, graph: Graph) -> None:
        for application, signature in zip(graph.applications, graph.signatures):
            rule = _rule(application, signature)
            self.applications.append(RuledApplication(application, signature, rule, self.depth))
            data_flow = edges(application)
            if not data_flow and not application.regions:
                self._add_application(graph, application, signature, rule)
            else:
                self._add_edges(application, data_flow)

    def _add_application(
        self, graph: Graph, application: Application, signature: Signature, rule: FactorRule
    ) -> None:
        if application.operator == "sharding_group":
            self._use(application.operands[0], None)
            return
        operands = tuple(map(self._seen, application.operands))
        for name in operands:
            self.uses.setdefault(name, []).append(len(self.drafts))
        for name in application.results:
            self._number(name)
        passes = graph.operators.find(application.operator).passes
        if passes == "both" and signature.notation.whole:
            passes = ""  # it adds or removes a dimension: a bitcast to smaller elements
        results, is_pointwise = application.results, passes == "both"
        self.drafts.append(
            _NodeDraft(application, operands, results, rule, passes, is_pointwise, True)
        )
        for name in application.results:
            self._add_stand_in(name)

    def _add_edges(self, application: Application, data_flow: list[Edge]) -> None:
        """Add an application with edges or regions: its regions, then the edges to its results."""
        for edge in data_flow:
            self._number(edge.owner, *edge.others)
        without_edge = [name for name in application.results if name not in self.numbers]
        for name in without_edge:
            self._number(name)
        leaving = [edge for edge in data_flow if edge.region is None]
        entering = [edge for edge in data_flow if edge.region is not None]
        for number, region in enumerate(application.regions):
            for edge in entering:
                if edge.region == number:
                    self._add_edge(application, edge)
            owned = {edge.owner for edge in entering}
            inner = (value.name for value in arguments(application, region))
            self._begin([name for name in inner if name not in owned])
            self.depth += 1
            self._add_graph(region)
            self.depth -= 1
            self._use_each(region.outputs, leaving)
        enters = entering or application.attributes.get("enters")
        self._use_each(own_operands(application), [] if enters else leaving)
        for edge in leaving:
            self._add_edge(application, edge)
        for name in without_edge:
            self._add_stand_in(name)

    def _add_edge(self, application: Application, edge: Edge) -> None:
        """Add the node of an edge; the uses of its sources belong to the application."""
        self.edge_nodes[edge.owner] = len(self.drafts)
        self.reversed.add(edge.owner)
        sources = tuple(map(self._seen, edge.sources))
        rule = identity_rule(self.ranks[edge.owner], len(sources))
        self.drafts.append(_NodeDraft(application, sources, (edge.owner,), rule))
        self._add_stand_in(edge.owner)

    def _add_stand_in(self, name: str) -> None:
        """Add the stand-in of a value, if it has one, right behind it."""
        other = self.stand_ins.get(name)
        if other is None:
            return
        self._number(other)
        self.uses[name] = [len(self.drafts)]
        if name not in self.reversed:
            self.reversed.add(other)
        self.reversed.discard(name)
        origin = Application("sharding_constraint", (name,), (other,))
        rule = identity_rule(self.ranks[name])
        self.drafts.append(_NodeDraft(origin, (name,), (other,), rule, is_pointwise=True))

    def _seen(self, name: str) -> str:
        """Return the value that users see: itself, or its stand-in."""
        return self.stand_ins.get(name, name)

    def _use(self, name: str, use: Use) -> None:
        self.uses.setdefault(self._seen(name), []).append(use)

    def _use_each(self, names: Sequence[str], data_flow: Sequence[Edge]) -> None:
        """Add a use of each value: by its edge, or by nothing where there are fewer edges."""
        for place, name in enumerate(names):
            self._use(name, data_flow[place].owner if place < len(data_flow) else None)

    # -- nodes, watchers and groups, once all uses are known

    def _node(self, draft: _NodeDraft) -> PropagationNode:
        pass_through, usual = DIRECTIONS[draft.passes]
        allowed = _allowed_direction(draft.origin) if draft.is_application else Direction.BOTH
        if allowed != Direction.BOTH:
            pass_through = usual = allowed
        is_shared = any(
            len(self.uses[name]) > 1 and self.ranks[name.removesuffix("*")]
            for name in draft.operands
        )
        return PropagationNode(
            draft.rule,
            tuple([self.numbers[name] for name in draft.operands]),
            tuple([self.numbers[name] for name in draft.results]),
            pass_through,
            usual,
            draft.is_pointwise,
            draft.is_application and allowed == Direction.BOTH and is_shared,
            allowed,
            None if draft.is_application else self.annotations.boundaries.get(draft.results[0]),
        )

    def _watchers(self) -> Iterator[list[int]]:
        """Yield for each number the nodes to visit when it changes, the most urgent last."""
        others: dict[str, list[str]] = {}
        for other, owner in self.annotations.owners.items():
            others.setdefault(owner, []).append(other)
        producers = {name: n for n, draft in enumerate(self.drafts) for name in draft.results}
        for name in self.names:
            nodes = [node for other in others.get(name, ()) for node in self._users(other)]
            if name in producers:
                nodes.append(producers[name])
            yield nodes + self._users(name)

    def _users(self, name: str) -> list[int]:
        """Return the nodes that use a value, the most urgent last."""
        uses = self.uses.get(name, ())
        nodes = [self.edge_nodes.get(use) if isinstance(use, str) else use for use in uses]
        users = [node for node in nodes if node is not None]
        return users if name in self.reversed else users[::-1]

    def _group(self, names: Sequence[str], watchers: Sequence[Sequence[int]]) -> ShardingGroup:
        """Return a group by number; the argument of a loop follows and never leads."""
        inner = self.annotations.owners
        members = (
            (number := self.numbers[name], self._users(name) if name in inner else watchers[number])
            for name in names
        )
        leaders = (self.numbers[name] for name in names if name not in inner)
        return ShardingGroup(tuple(members), frozenset(leaders))


def _siblings(graph: Graph) -> dict[str, list[str]]:
    """Return for a value the other results of its application, unless they leave by edges."""
    return {
        name: [other for other in application.results if other != name]
        for application, _ in graph.walk()
        if len(application.results) > 1 and not edges(application)
        for name in application.results
    }


def _rule(application: Application, signature: Signature) -> FactorRule:
    """Return the factor rule written on an application, or that of its index notation."""
    if RULE_ATTRIBUTE not in application.attributes:
        return factor_rule(signature)
    return written_rule(application.attributes[RULE_ATTRIBUTE], signature)


def _allowed_direction(application: Application) -> Direction:
    direction = application.attributes.get("allowed_direction", "BOTH")
    if direction not in Direction.__members__:
        raise WeftError(
            f"{application} allows the direction {direction!r}",
            hint=f"there are {', '.join(Direction.__members__)}",
        )
    return Direction[direction]
