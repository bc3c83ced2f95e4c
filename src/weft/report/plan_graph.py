"""`plan_graph`: a plan with its regions as nodes, edges, and groups that open and close."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import isqrt
from typing import NamedTuple

from weft.lang import Application, Graph
from weft.lang.region import arguments
from weft.plan import Plan

NOWHERE = -1
"""The group of nodes that are always shown."""


class GraphNode(NamedTuple):
    """A box of the drawing: an input, an application, an argument of a region, or an output."""

    kind: str
    group: int
    values: tuple[str, ...]
    """The values it computes; for an output, the value it returns."""
    plan: Plan
    number: int | None = None
    """The number of the application (of an argument, its application), or of the output."""


class GraphEdge(NamedTuple):
    """A value on its way from the node that computes it to one that uses it."""

    start: int
    end: int
    value: str


class NodeGroup(NamedTuple):
    """Nodes that are drawn as one box until it is opened."""

    title: str
    parent: int
    kind: str
    """`section` or `region`."""


class PlanGraph(NamedTuple):
    """The drawing of a plan, in program order."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    groups: tuple[NodeGroup, ...]


def plan_graph(plan: Plan) -> PlanGraph:
    """Return the drawing of a plan.

    >>> from weft import propagate, trace
    >>> graph = trace(lambda x: x + x, (8,), meshes=['@m = <["x"=2]>'])
    >>> [(node.kind, node.values) for node in plan_graph(Plan.of(propagate(graph))).nodes]
    [('input', ('x',)), ('operator', ('add',)), ('output', ('add',))]
    """
    builder = _GraphBuilder()
    for value in plan.graph.inputs:
        builder.add(GraphNode("input", NOWHERE, (value.name,), plan))
    builder.walk(plan, NOWHERE)
    for place, name in enumerate(plan.graph.outputs):
        end = builder.add(GraphNode("output", NOWHERE, (name,), plan, place), makes=False)
        builder.join([name], end)
    return PlanGraph(tuple(builder.grouped_nodes()), tuple(builder.edges), tuple(builder.groups))


class _GraphBuilder:
    """Collects nodes, edges and groups."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []
        self.groups: list[NodeGroup] = []
        self.makers: dict[str, int] = {}

    def add(self, node: GraphNode, makes: bool = True) -> int:
        self.nodes.append(node)
        if makes:
            self.makers |= dict.fromkeys(node.values, len(self.nodes) - 1)
        return len(self.nodes) - 1

    def join(self, names: Iterable[str], end: int) -> None:
        """Add an edge for each value; values that a region captures come from outside."""
        for name in dict.fromkeys(names):
            if name in self.makers and self.makers[name] != end:
                self.edges.append(GraphEdge(self.makers[name], end, name))

    def walk(self, plan: Plan, group: int) -> None:
        """Add the applications of a plan, in their sections."""
        for number, inside in enumerate(self._sections(plan.graph, group)):
            application = plan.graph.applications[number]
            if number in plan.regions:
                self._regions(plan, number, inside)
            else:
                end = self.add(GraphNode("operator", inside, application.results, plan, number))
                self.join(application.operands, end)

    def _sections(self, graph: Graph, group: int) -> list[int]:
        """Return the group of every application."""
        values = graph.values
        tokens = [
            (a.operator, tuple(values[name].shape for name in a.results))
            for a in graph.applications
        ]
        groups = [group] * len(tokens)
        names = list(map(_name, graph.applications))
        self._open(split_into_sections(tokens, names), group, groups)
        return groups

    def _open(self, sections: Sequence[Section], parent: int, groups: list[int]) -> None:
        for one in sections:
            number = self._group(one.title, parent, "section")
            groups[one.start : one.stop] = [number] * (one.stop - one.start)
            self._open(one.inner, number, groups)

    def _group(self, title: str, parent: int, kind: str) -> int:
        self.groups.append(NodeGroup(title, parent, kind))
        return len(self.groups) - 1

    def _regions(self, plan: Plan, number: int, group: int) -> None:
        """Add a loop or a branch: its regions, then the node of its results."""
        application = plan.graph.applications[number]
        whole = self._group(f"{application.operator} {_name(application)}", group, "region")
        returned = list[str]()
        for place, inner in enumerate(plan.regions[number]):
            title = _titles(application)[place]
            inside = self._group(title, whole, "region")
            own = arguments(application, inner.graph)
            for value, operand in zip(own, application.operands):
                end = self.add(GraphNode("argument", inside, (value.name,), plan, number))
                self.join([operand], end)
            self.walk(inner, inside)
            returned += inner.graph.outputs
        end = self.add(GraphNode("operator", whole, application.results, plan, number))
        direct = [] if application.operator == "while" else application.operands[:1]
        self.join([*returned, *direct], end)

    def grouped_nodes(self) -> Iterable[GraphNode]:
        """Yield the nodes; an input belongs to the innermost group of all its users."""
        users: dict[int, list[int]] = {}
        for start, end, _ in self.edges:
            users.setdefault(start, []).append(self.nodes[end].group)
        for number, node in enumerate(self.nodes):
            inputs = node.kind == "input" and number in users
            yield node._replace(group=self._common(users[number])) if inputs else node

    def _common(self, groups: Sequence[int]) -> int:
        """Return the innermost group that contains all of these."""
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


# -- sections of long programs --------------------------------------------------------------------

FEW = 40
"""The most applications that are shown at once."""
LONGEST = 512
"""The longest repetition that is looked for."""

_SEPARATOR = re.compile(r"[/.]")


class Section(NamedTuple):
    """Consecutive applications that are drawn as one box until it is opened."""

    title: str
    start: int
    stop: int
    inner: tuple[Section, ...] = ()


def split_into_sections(tokens: Sequence[Hashable], names: Sequence[str]) -> tuple[Section, ...]:
    """Split a program into sections: by prefixes of names, repeated layers, or equal parts.

    `tokens` are equal for applications of the same kind. Applications in no section are always
    shown, as are all of a short program.

    >>> layers = ["matmul", "gelu", "matmul", "add"] * 12
    >>> for one in split_into_sections(["embed", *layers], [f"v{n}" for n in range(49)])[:2]:
    ...     print(one.title, one.start, one.stop)
    layer 0 1 5
    layer 1 5 9
    """
    return tuple(_within(list(tokens), list(names), 0))


def _within(tokens: list[Hashable], names: list[str], at: int) -> Iterator[Section]:
    """Yield the sections of a part that begins at application `at`."""
    if len(tokens) <= FEW:
        return
    runs = _named(names)
    if runs:
        found = [_part(tokens, names, at, *run) for run in runs]
    else:
        start, period, count = _repeated(tokens)
        if count * period * 2 < len(tokens):
            found = list(_equal_parts(tokens, names, at))
        else:
            ends = [start + period * n for n in range(count + 1)]
            layers = [
                _part(tokens, names, at, f"layer {n}", low, high)
                for n, (low, high) in enumerate(pairwise(ends))
            ]
            yield from _within(tokens[:start], names[:start], at)
            yield from _bundled(layers, "layers")
            yield from _within(tokens[ends[-1] :], names[ends[-1] :], at + ends[-1])
            return
    yield from _bundled(found, "parts")


def _part(
    tokens: list[Hashable], names: list[str], at: int, title: str, low: int, high: int
) -> Section:
    shorter = [_SEPARATOR.split(name, maxsplit=1)[-1] for name in names[low:high]]
    inner = _within(tokens[low:high], shorter, at + low)
    return Section(title, at + low, at + high, tuple(inner))


def _named(names: list[str]) -> list[tuple[str, int, int]]:
    """Return runs of names with a common prefix; none if too few names have prefixes."""
    heads = [_SEPARATOR.split(name, maxsplit=1) for name in names]
    if sum(len(head) > 1 for head in heads) * 2 < len(names):
        return []
    runs, at = [], 0
    for head, group in groupby(parts[0] if len(parts) > 1 else "" for parts in heads):
        size = len(list(group))
        runs.append((head or "others", at, at + size))
        at += size
    return runs if 1 < len(runs) <= len(names) // 2 else []


def _repeated(tokens: list[Hashable]) -> tuple[int, int, int]:
    """Return the start, the period and the count of the longest repetition."""
    best, n = (0, 1, 0), len(tokens)
    for period in range(2, min(n // 2, LONGEST) + 1):
        run = 0
        for end in range(period, n + 1):
            is_same = end < n and tokens[end] == tokens[end - period]
            if is_same:
                run += 1
                continue
            count = run // period + 1
            if count > 1 and count * period > best[1] * best[2]:
                best = end - run - period, period, count
            run = 0
    return best


def _equal_parts(tokens: list[Hashable], names: list[str], at: int) -> Iterator[Section]:
    """Yield sections of equal size."""
    size = max(8, min(FEW, isqrt(len(tokens))))
    for low in range(0, len(tokens), size):
        high = min(low + size, len(tokens))
        yield _part(tokens, names, at, f"operators {at + low} to {at + high - 1}", low, high)


def _bundled(sections: list[Section], noun: str) -> list[Section]:
    """Return the sections, in bundles if they are many."""
    if len(sections) <= FEW // 2:
        return sections
    size = isqrt(len(sections) - 1) + 1
    return [
        Section(f"{noun} {n} to {n + len(some) - 1}", some[0].start, some[-1].stop, tuple(some))
        for n in range(0, len(sections), size)
        for some in [sections[n : n + size]]
    ]
