"""`Flat`: a plan with its regions as one drawing of nodes, edges and groups that open and close."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.lang import Application, Graph
from weft.lang.region import arguments
from weft.plan import Plan
from weft.report.folding import Fold, fold

NOWHERE = -1
"""The group of what is always shown."""


class Node(NamedTuple):
    """What is drawn as one box: an input, an application, an argument of a region, an output."""

    kind: str
    group: int
    values: tuple[str, ...]
    """What it makes; of an output, what it is."""
    plan: Plan
    number: int | None = None
    """The application of the plan, that which an argument is for, or the place of the output."""


class Edge(NamedTuple):
    """A value that goes from the node that makes it to one that uses it."""

    start: int
    end: int
    value: str


class Group(NamedTuple):
    """Nodes that are one box until it is opened."""

    title: str
    parent: int
    kind: str
    """`fold`, or `region`."""


class Flat(NamedTuple):
    """All that is drawn, in the order of the program."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...]


def flatten(plan: Plan) -> Flat:
    """The drawing of a plan.

    >>> from weft import propagate, trace
    >>> graph = trace(lambda x: x + x, (8,), meshes=['@m = <["x"=2]>'])
    >>> [(node.kind, node.values) for node in flatten(Plan.of(propagate(graph))).nodes]
    [('input', ('x',)), ('operator', ('add',)), ('output', ('add',))]
    """
    made = _Flattening()
    for value in plan.graph.inputs:
        made.add(Node("input", NOWHERE, (value.name,), plan))
    made.walk(plan, NOWHERE)
    for place, name in enumerate(plan.graph.outputs):
        end = made.add(Node("output", NOWHERE, (name,), plan, place), makes=False)
        made.join([name], end)
    return Flat(tuple(made.settled()), tuple(made.edges), tuple(made.groups))


class _Flattening:
    """Nodes, edges and groups as they are found."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.groups: list[Group] = []
        self.makers: dict[str, int] = {}

    def add(self, node: Node, makes: bool = True) -> int:
        self.nodes.append(node)
        if makes:
            self.makers |= dict.fromkeys(node.values, len(self.nodes) - 1)
        return len(self.nodes) - 1

    def join(self, names: Iterable[str], end: int) -> None:
        """Edges for values, each once; what a region takes from outside is made there."""
        for name in dict.fromkeys(names):
            if name in self.makers and self.makers[name] != end:
                self.edges.append(Edge(self.makers[name], end, name))

    def walk(self, plan: Plan, group: int) -> None:
        """The applications of a plan, in the groups that they fold into."""
        for number, inside in enumerate(self._folds(plan.graph, group)):
            application = plan.graph.applications[number]
            if number in plan.regions:
                self._regions(plan, number, inside)
            else:
                end = self.add(Node("operator", inside, application.results, plan, number))
                self.join(application.operands, end)

    def _folds(self, graph: Graph, group: int) -> list[int]:
        """The group of every application."""
        values = graph.values
        tokens = [
            (a.operator, tuple(values[name].shape for name in a.results))
            for a in graph.applications
        ]
        found = [group] * len(tokens)
        self._open(fold(tokens, list(map(_name, graph.applications))), group, found)
        return found

    def _open(self, folds: Sequence[Fold], parent: int, found: list[int]) -> None:
        for one in folds:
            number = self._group(one.title, parent, "fold")
            found[one.start : one.stop] = [number] * (one.stop - one.start)
            self._open(one.inner, number, found)

    def _group(self, title: str, parent: int, kind: str) -> int:
        self.groups.append(Group(title, parent, kind))
        return len(self.groups) - 1

    def _regions(self, plan: Plan, number: int, group: int) -> None:
        """A loop or a choice: its regions, and behind them what it makes."""
        application = plan.graph.applications[number]
        whole = self._group(f"{application.operator} {_name(application)}", group, "region")
        returned = list[str]()
        for place, inner in enumerate(plan.regions[number]):
            title = _titles(application)[place]
            inside = self._group(title, whole, "region")
            own = arguments(application, inner.graph)
            for value, operand in zip(own, application.operands):
                end = self.add(Node("argument", inside, (value.name,), plan, number))
                self.join([operand], end)
            self.walk(inner, inside)
            returned += inner.graph.outputs
        end = self.add(Node("operator", whole, application.results, plan, number))
        direct = [] if application.operator == "while" else application.operands[:1]
        self.join([*returned, *direct], end)

    def settled(self) -> Iterable[Node]:
        """The nodes, inputs in the group of those who use them."""
        users: dict[int, list[int]] = {}
        for start, end, _ in self.edges:
            users.setdefault(start, []).append(self.nodes[end].group)
        for number, node in enumerate(self.nodes):
            inputs = node.kind == "input" and number in users
            yield node._replace(group=self._common(users[number])) if inputs else node

    def _common(self, groups: Sequence[int]) -> int:
        """The innermost group that holds all of them."""
        first, *others = map(self._path, set(groups))
        shared = [group for group in first if all(group in other for other in others)]
        return shared[-1] if shared else NOWHERE

    def _path(self, group: int) -> list[int]:
        path = []
        while group != NOWHERE:
            path.append(group)
            group = self.groups[group].parent
        return path[::-1]


def _name(application: Application) -> str:
    return application.results[0] if application.results else application.operator


def _titles(application: Application) -> list[str]:
    if application.operator == "while":
        return ["condition", "body"]
    many = len(application.regions) > 1
    return [f"branch {n}" if many else "inside" for n in range(len(application.regions))]
