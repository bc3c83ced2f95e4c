"""`Alternatives`: all the applications by which the values of a graph can be computed.

A rewrite adds another way to compute a value, and so does a fusion; the ways that were there stay.
A graph that computes the same outputs is then a choice of one way for every value that is needed,
and rewrites at different places are chosen independently: n places with two ways each are 2n
applications here and 2**n graphs. (Term rewriting calls this an e-graph; choosing is extraction.)

The closure is finite: a rewrite is not applied to what it made itself, and there is a limit on the
number of applications. `reasons` lists what either of the two left out, but for blocks, which are
not cut into blocks again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang.fusion import ARROW, MAX_FUSED, join, pays, with_fused
from weft.lang.graph import Application, Graph, Value
from weft.lang.operator import Library
from weft.lang.rewrite import Pattern, Rewrite
from weft.lang.rewrite_check import check_rewrite
from weft.lang.signature import Signature

MAX_PRODUCERS = 4
"""The most applications of the closure for each one of the graph, and a few more."""

FEW = 100

REWRITES = "rewrites were not tried"
FUSIONS = "fusions were not tried"
"""The beginnings of reasons that are about rewrites and fusions only."""


class Alternative(NamedTuple):
    """One way to compute a value: an application, and what it makes superfluous."""

    application: Application
    inlined: frozenset[str]
    """The values that are computed inside it: nothing else may read them."""
    made_by: tuple[str, ...]
    """The rewrites by which it came about; empty for an application of the graph as written."""
    own: tuple[str, ...]
    """The values that were made for it alone."""

    @property
    def result(self) -> str:
        """The value that it computes: the first of several."""
        return self.application.results[0] if self.application.results else ""


@dataclass
class Alternatives:
    """The ways to compute the values of a graph, by rewrites and by fusion.

    >>> from weft import ops, trace
    >>> from weft.lang.rewrite import shipped_rewrites
    >>> graph = trace(lambda x, w: ops.softmax(ops.relu(x @ w)), (8, 4), (4, 4), names=["x", "w"])
    >>> found = Alternatives.of(graph, shipped_rewrites(2))
    >>> [way.application.operator for way in found.producers_of("relu")]
    ['relu', 'matmul=>relu']
    >>> found.count_graphs(), found.reasons
    (19, [])
    """

    graph: Graph
    values: dict[str, Value]
    library: Library
    producers: dict[str, list[Alternative]] = field(default_factory=dict)
    """By the first result of an application as written, or of one that a rewrite made."""
    first: list[Alternative] = field(default_factory=list)
    """The applications as written, in order."""
    reasons: list[str] = field(default_factory=list)
    _keys: dict[str, set[Hashable]] = field(default_factory=dict)
    _expressions: dict[Hashable, int] = field(default_factory=dict)
    _expression_of: dict[str, int] = field(default_factory=dict)
    _signatures: dict[int, Signature] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        graph: Graph,
        rewrites: Sequence[Rewrite],
        fuses: bool = True,
        unproved: Sequence[Rewrite] = (),
    ) -> Alternatives:
        """Return the closure of a graph under rewrites and fusion.

        Those rewrites that are `unproved` are checked where they match, before they are used.
        """
        new = cls(graph, dict(graph.values), Library(graph.operators), fuses=fuses)
        for value in graph.inputs:
            new._expression_of[value.name] = new._intern(("input", value.name))
        for application in graph.applications:
            way = Alternative(application, frozenset(), (), ())
            new.first.append(way)
            new._add(way)
        new.limit = len(graph.applications) * MAX_PRODUCERS + FEW
        new.unproved = {id(rewrite) for rewrite in unproved}
        new._rewrite([*rewrites, *unproved])
        if fuses:
            new._fuse()
        return new

    limit: int = 0
    """The most applications of the closure."""
    fuses: bool = True
    unproved: set[int] = field(default_factory=set)

    # -- what there is

    def producers_of(self, value: str) -> list[Alternative]:
        """Return the ways to compute a value, as written first."""
        return self.producers.get(value, [])

    def in_order(self) -> Iterator[Alternative]:
        """Yield all ways in the order of the program: every way after those of its operands."""

        def block(ways: Iterable[Alternative]) -> Iterator[Alternative]:
            for way in ways:
                for name in way.own:
                    yield from block(self.producers.get(name, ()))
                yield way

        for way in self.first:
            yield from block(self.producers[way.result] if way.result else [way])

    @property
    def kept(self) -> set[str]:
        """The values that must not vanish: outputs, and those with a sharding of their own."""
        return {*self.graph.outputs, *self.graph.shardings}

    def signature(self, way: Alternative) -> Signature:
        """Return the signature of a way."""
        if id(way) not in self._signatures:
            application = way.application
            operator = self.library.find(application.operator)
            shapes = [self.values[name].shape for name in application.operands]
            self._signatures[id(way)] = operator.sign(shapes, application.attributes)
        return self._signatures[id(way)]

    def chosen(self, applications: Iterable[Application]) -> Graph:
        """Return the graph of chosen applications, given in the order of the program."""
        old, applications = self.graph, tuple(applications)
        return Graph(
            old.inputs,
            applications,
            old.outputs,
            old.meshes,
            old.shardings,
            old.output_shardings,
            with_fused(old.operators, (a.operator for a in applications)),
            {name: self.values[name].dtype for a in applications for name in a.results},
            old.parameters,
            old.is_region,
        )

    def graphs(self) -> Iterator[list[Alternative]]:
        """Yield every choice of ways that computes the outputs, each in program order."""
        order = list(self.in_order())
        needed = {*self.graph.outputs} - {value.name for value in self.graph.inputs}
        read = {name for way in self.first for name in way.application.operands}
        for way in self.first:  # values without a reader are computed as well
            if not any(name in read or name in needed for name in way.application.results):
                needed |= {*way.application.results}
        yield from self._choices(order, frozenset(needed), frozenset())

    def _choices(
        self, order: Sequence[Alternative], needed: frozenset[str], inlined: frozenset[str]
    ) -> Iterator[list[Alternative]]:
        inputs = {value.name for value in self.graph.inputs}
        while order and order[-1].result and not needed & {*order[-1].application.results}:
            order = order[:-1]
        if not order:
            if not needed:
                yield []
            return
        way, rest = order[-1], order[:-1]
        operands = {*way.application.operands}
        if not ((operands | way.inlined) & inlined or way.inlined & (needed | operands)):
            left = (needed - {*way.application.results}) | (operands - inputs)
            for chosen in self._choices(rest, left, inlined | way.inlined):
                yield [*chosen, way]
        if way.result and any(other.result == way.result for other in rest):
            yield from self._choices(rest, needed, inlined)

    def count_graphs(self) -> int:
        """Return how many graphs there are; each of them is enumerated."""
        return sum(1 for _ in self.graphs())

    # -- rewrites

    def _intern(self, key: Hashable) -> int:
        return self._expressions.setdefault(key, len(self._expressions))

    def _key(self, application: Application) -> Hashable:
        """Return what an application computes: its operator, and the expressions of its operands.

        Values of different names that are computed alike have one expression.
        """
        operands = tuple(self._expression_of[name] for name in application.operands)
        try:
            hash(application.attributes)
            attributes: Hashable = application.attributes
        except TypeError:
            attributes = repr(sorted(application.attributes.items()))
        regions = id(application) if application.regions else 0
        return application.operator, operands, attributes, regions

    def _add(self, way: Alternative) -> None:
        """Add a way; the first one of a value gives it its expression."""
        application, key = way.application, self._key(way.application)
        if not application.results:
            return
        self.producers.setdefault(way.result, []).append(way)
        self._keys.setdefault(way.result, set()).add(key)
        for number, name in enumerate(application.results):
            if name not in self._expression_of:
                self._expression_of[name] = self._intern((key, number))

    @property
    def _count(self) -> int:
        return sum(map(len, self.producers.values()))

    def _rewrite(self, rewrites: Sequence[Rewrite]) -> None:
        tried: set[Hashable] = set()
        again: dict[str, None] = {}
        changed = True
        while changed:
            changed = False
            for rewrite in rewrites:
                for root in [way for ways in self.producers.values() for way in ways]:
                    for ways in self._matches(rewrite.pattern, root):
                        key = (rewrite.name, *map(id, ways))
                        if key in tried:
                            continue
                        tried.add(key)
                        if self._count >= self.limit:
                            self.reasons.append(
                                f"{REWRITES} everywhere: there are more than {self.limit} "
                                f"applications to choose from"
                            )
                            return
                        changed |= self._apply(rewrite, ways, again)
        if again:
            self.reasons.append(f"{REWRITES} again on their own results: {', '.join(again)}")

    def _matches(self, pattern: Pattern, root: Alternative) -> Iterator[tuple[Alternative, ...]]:
        """Yield the ways that a pattern may match, the root first."""
        application = root.application
        if isinstance(pattern, str) or application.operator != pattern[0]:
            return
        if len(application.operands) != len(pattern) - 1 or len(application.results) != 1:
            return
        inner = [
            [
                match
                for way in self.producers.get(name, ())
                if name not in self.kept
                for match in self._matches(part, way)
            ]
            for part, name in zip(pattern[1:], application.operands)
            if not isinstance(part, str)
        ]
        for picked in product(*inner):
            yield (root, *(way for match in picked for way in match))

    def _apply(self, rewrite: Rewrite, ways: Sequence[Alternative], again: dict[str, None]) -> bool:
        """Apply a rewrite to matched ways; return whether that led to a new way."""
        root, inner = ways[0], [way.result for way in ways[1:]]
        inlined = frozenset(inner).union(*(way.inlined for way in ways))
        part = self._part(ways)
        if part is None or not any(match.root == root.result for match in rewrite.matches(part)):
            return False
        made_by = tuple(dict.fromkeys(name for way in ways for name in way.made_by))
        if id(rewrite) in self.unproved:
            check_rewrite(rewrite, part, root.result)
        new = rewrite.apply(part, root.result)
        old = {id(application) for application in part.applications}
        *others, last = [a for a in new.applications if id(a) not in old]
        own, names = list[str](), dict[str, str]()
        before = len(self._expression_of)
        added: list[Alternative] = []
        for application in others:
            named = self._renamed(application, names, new)
            added.append(Alternative(named, frozenset(), (*made_by, rewrite.name), ()))
            for number, name in enumerate(named.results):
                self._expression_of[name] = self._intern((self._key(named), number))
            own.append(named.results[0])
        application = last._replace(operands=tuple(names.get(n, n) for n in last.operands))
        way = Alternative(application, inlined, (*made_by, rewrite.name), tuple(own))
        is_known = self._key(application) in self._keys[root.result]
        if is_known or rewrite.name in made_by:
            if not is_known and not rewrite.makes_blocks:
                again[rewrite.name] = None
            for name in list(self._expression_of)[before:]:
                del self._expression_of[name], self.values[name]
            return False
        for one in (*added, way):
            self._add(one)
        return True

    def _part(self, ways: Sequence[Alternative]) -> Graph | None:
        """Return a graph of matched ways alone; None if a value between them is read from outside.

        Rewrites see this part only: what is around it does not matter.
        """
        applications = [way.application for way in reversed(ways)]
        inner = {name for a in applications[:-1] for name in a.results}
        every = [name for a in applications for name in a.operands]
        reads = dict.fromkeys(name for name in every if name not in inner)
        if len(inner) + 1 != sum(len(a.results) for a in applications):
            return None
        return Graph(
            [self.values[name] for name in reads],
            _sorted(applications),
            [ways[0].result],
            operators=self.graph.operators,
            dtypes={name: self.values[name].dtype for a in applications for name in a.results},
        )

    def _renamed(self, application: Application, names: dict[str, str], new: Graph) -> Application:
        """Return an application with fresh names for its results."""
        operands = tuple(names.get(name, name) for name in application.operands)
        for name in application.results:
            fresh, number = name, 1
            while fresh in self.values:
                number += 1
                fresh = f"{name}_{number}"
            names[name] = fresh
            self.values[fresh] = new.values[name]._replace(name=fresh)
        return application._replace(
            operands=operands, results=tuple(names[name] for name in application.results)
        )

    # -- fusion

    def _fuse(self) -> None:
        """Add every fusion of a producer with the only reader of its result."""
        uses, also_read, read_for = self.least_uses(), self._read_later(), self._read_before()
        for consumer in list(self.in_order()):
            application = consumer.application
            if not application.results or application.regions:
                continue
            for name, count in Counter(application.operands).items():
                if count > 1 or name in self.kept or uses[name] > 1:
                    continue
                others = (read_for[other] for other in application.operands if other != name)
                if name in also_read[consumer.result].union(*others):
                    continue  # something else reads it in every graph with this consumer
                for producer in list(self.producers.get(name, ())):
                    if self._count >= self.limit:
                        self.reasons.append(
                            f"{FUSIONS} everywhere: there are more than {self.limit} "
                            "applications to choose from"
                        )
                        return
                    self._join(producer, consumer, name)

    def _join(self, producer: Alternative, consumer: Alternative, value: str) -> None:
        one, two = producer.application, consumer.application
        if one.operator.count(ARROW) + 2 > MAX_FUSED or one.regions or len(one.results) != 1:
            return
        if not pays(self.signature(producer), self.signature(consumer)):
            return
        try:
            both, _ = join(self.library, self.values, one, two, value)
        except WeftError:
            return
        inlined = producer.inlined | consumer.inlined | {value}
        if not inlined & {*both.operands} and self._key(both) not in self._keys[consumer.result]:
            made_by = tuple(dict.fromkeys((*producer.made_by, *consumer.made_by)))
            self._add(Alternative(both, inlined, made_by, ()))

    def _read_before(self) -> Mapping[str, frozenset[str]]:
        """Return for every value the values that any graph with it reads to compute it."""
        before = {name: frozenset[str]() for name in self.values}
        for way in self.in_order():
            application = way.application
            own = frozenset(application.operands).union(*(before[n] for n in application.operands))
            is_first = not way.result or way is self.producers[way.result][0]
            for name in application.results:
                before[name] = own if is_first else before[name] & own
        return before

    def _read_later(self) -> Mapping[str, frozenset[str]]:
        """Return for every value the values that any graph with it reads later."""
        later: dict[str, frozenset[str] | None] = {}
        """None for a value whose readers have not been seen yet."""
        for way in reversed(list(self.in_order())):
            application = way.application
            own = frozenset[str]()
            for name in application.results:
                own |= (later.get(name) or frozenset()) if name not in self.kept else frozenset()
            own |= {*application.operands}
            for name in application.operands:
                known = later.get(name)
                later[name] = own if known is None else known & own
        return {name: later.get(name) or frozenset() for name in self.values}

    def least_uses(self) -> Mapping[str, int]:
        """Return for every value a lower bound on how often a graph that has it reads it.

        Fusion does not change how often values are read.
        """
        order = list(self.in_order())
        always = {*self.graph.outputs}
        uses: Counter[str] = Counter(self.graph.outputs)
        for way in reversed(order):
            if way.result and way is not self.producers[way.result][-1]:
                continue
            ways = self.producers[way.result] if way.result else [way]
            results = {name for one in ways for name in one.application.results}
            if way.result and not results & always:
                continue
            counts = [Counter(one.application.operands) for one in ways]
            common = counts[0]
            for other in counts[1:]:
                common &= other
            uses += common
            always |= {*common}
        return uses


def _sorted(applications: Sequence[Application]) -> list[Application]:
    """Return applications so that each comes after those that it reads; given root last."""
    makers = {name: a for a in applications for name in a.results}
    done: dict[int, Application] = {}

    def visit(application: Application) -> None:
        if id(application) not in done:
            for name in application.operands:
                if name in makers:
                    visit(makers[name])
            done[id(application)] = application

    for application in applications:
        visit(application)
    return list(done.values())
