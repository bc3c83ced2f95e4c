"""Rewrites: a pattern of applications, and another that makes the same values.

A pattern is a tree: an operator's name and what it is applied to, which is a name that stands for
any value, or a tree again. A replacement is written as a function of the values that the names
stand for, in the words of `weft.ops`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.graph import Application, Graph
from weft.lang.trace import Symbol, Tracer

Pattern: TypeAlias = str | tuple[Any, ...]
"""A name for any value, or an operator's name with patterns for its operands."""


class Match(NamedTuple):
    """Where a pattern was found: the value that its root makes, and what its names stand for."""

    root: str
    values: Mapping[str, str]
    applications: tuple[Application, ...]
    """Those of the pattern, the root first."""

    def attributes(self, operator: str) -> Attributes:
        """What the first application of an operator in the pattern says."""
        return next(a.attributes for a in self.applications if a.operator == operator)


Replacement: TypeAlias = Callable[[Mapping[str, Symbol], Match], Symbol]
Condition: TypeAlias = Callable[[Graph, Match], bool]


def always(graph: Graph, match: Match) -> bool:
    """The condition of rewrites that have none."""
    return True


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One way to say the same: a pattern, what may stand in its place, and when.

    >>> from weft import ops, trace
    >>> apart = Rewrite(
    ...     "linear as matmul and add",
    ...     ("linear", "x", "w", "b"),
    ...     lambda v, _: v["x"] @ v["w"] + v["b"],
    ... )
    >>> graph = trace(lambda x, w, b: ops.linear(x, w, b), (8, 16), (16, 4), (4,))
    >>> print(apart.apply(graph, "linear"))
    x: float32[8, 16]
    w: float32[16, 4]
    b: float32[4]
    matmul: float32[8, 4] = matmul(x, w)
    linear: float32[8, 4] = add(matmul, b)
    return linear
    """

    name: str
    pattern: Pattern
    replacement: Replacement
    condition: Condition = always

    def matches(self, graph: Graph) -> Iterator[Match]:
        """Where it may be applied."""
        makers = {name: a for a in graph.applications for name in a.results}
        for application in graph.applications:
            found = _find(self.pattern, application.results[0], makers)
            if found is not None and _is_apart(graph, found) and self.condition(graph, found):
                yield found

    def apply(self, graph: Graph, root: str) -> Graph:
        """The graph in which the value `root` is made in the other way, under its old name."""
        match = next((found for found in self.matches(graph) if found.root == root), None)
        if match is None:
            raise WeftError(f"{self.name} cannot be applied to {root}")
        return _Rewriter(graph, self, match).graph()


def _find(pattern: Pattern, value: str, makers: Mapping[str, Application]) -> Match | None:
    values: dict[str, str] = {}
    applications: list[Application] = []

    def fits(part: Pattern, name: str) -> bool:
        if isinstance(part, str):
            return values.setdefault(part, name) == name
        made = makers.get(name)
        if made is None or made.operator != part[0] or len(made.operands) != len(part) - 1:
            return False
        applications.append(made)
        return all(map(fits, part[1:], made.operands))

    found = not isinstance(pattern, str) and fits(pattern, value)
    return Match(value, values, tuple(applications)) if found else None


def _is_apart(graph: Graph, match: Match) -> bool:
    """Whether nobody else needs what lies inside the pattern."""
    uses = Counter(name for a in graph.applications for name in a.operands)
    uses.update(graph.outputs)
    uses.update(list(graph.shardings))
    own = Counter(name for a in match.applications for name in a.operands)
    inner = [name for a in match.applications[1:] for name in a.results]
    return len(match.applications[0].results) == 1 and all(uses[n] == own[n] for n in inner)


class _Rewriter:
    """Writes a graph down anew, with one pattern replaced."""

    def __init__(self, graph: Graph, rewrite: Rewrite, match: Match) -> None:
        self.old, self.rewrite, self.match = graph, rewrite, match
        self.tracer = Tracer(graph.operators)
        self.tracer.taken = dict.fromkeys(graph.values, 1)
        self.known = {value.name: Symbol(self.tracer, value) for value in graph.inputs}
        self.tracer.inputs = list(graph.inputs)

    def graph(self) -> Graph:
        inner = {id(application) for application in self.match.applications}
        root = id(self.match.applications[0])
        for application in self.old.applications:
            if id(application) == root:
                self._replace()
            elif id(application) not in inner:
                self._keep(application)
        old, tracer = self.old, self.tracer
        return Graph(
            old.inputs,
            tracer.applications,
            old.outputs,
            old.meshes,
            old.shardings,
            old.output_shardings,
            old.operators,
            tracer.dtypes,
            old.parameters,
        )

    def _keep(self, application: Application) -> None:
        self.tracer.applications.append(application)
        for name in application.results:
            value = self.old.values[name]
            self.known[name] = Symbol(self.tracer, value)
            self.tracer.dtypes[name] = value.dtype

    def _replace(self) -> None:
        values = {part: self.known[name] for part, name in self.match.values.items()}
        before = len(self.tracer.applications)
        made = self.rewrite.replacement(values, self.match)
        wanted = self.old.values[self.match.root]
        if (made.shape, made.dtype) != (wanted.shape, wanted.dtype):
            raise WeftError(
                f"{self.rewrite.name} makes {made.dtype}{list(made.shape)} of {wanted}: it must "
                f"make the same"
            )
        new = self.tracer.applications[before:]
        if not new or made.name not in new[-1].results:
            raise WeftError(f"{self.rewrite.name} must make its value last")
        last = new[-1]
        renamed = tuple(wanted.name if n == made.name else n for n in last.results)
        self.tracer.applications[-1] = last._replace(results=renamed)
        self.tracer.dtypes[wanted.name] = wanted.dtype
        self.known[wanted.name] = Symbol(self.tracer, wanted)
