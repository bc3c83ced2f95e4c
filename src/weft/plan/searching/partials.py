"""`Partials`: which values may be left partial, and which applications may keep them so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from weft.lang import Graph
from weft.plan.plan import Plan
from weft.plan.searching.choices import Keep


class Partials:
    """The monoids by which the values of a graph may be partial.

    What somebody wrote is as written, what is an output is whole, and `settled` are the values that
    lie as a plan has them.
    """

    def __init__(self, graph: Graph, base: Plan, settled: Collection[str]) -> None:
        self.graph, self.base = graph, base
        self.settled = {*settled, *graph.shardings, *graph.outputs}

    @cached_property
    def monoids(self) -> Mapping[str, frozenset[str]]:
        """For every value the monoids by which it may be partial."""
        found: dict[str, frozenset[str]] = {}
        for value in self.graph.inputs:
            found[value.name] = frozenset(self.base.specs[value.name].partial.values())
        for number, application in enumerate(self.graph.applications):
            made = self._made(number, found)
            for name in application.results:
                written = frozenset(self.base.specs[name].partial.values())
                found[name] = written if name in self.settled else made
        return found

    def keeps(self, number: int) -> tuple[Keep, ...]:
        """The groups of operands of an application that may be partial together, by monoid."""
        return self._keeps(number, self.monoids)

    def _made(self, number: int, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
        signature = self.graph.signatures[number]
        reduced = signature.notation.reduced
        own = {
            reduced[name]
            for name in signature.reduced
            if name not in signature.fixed and signature.sizes[name] > 1
        }
        kept = {monoid for monoid, _ in self._keeps(number, known)}
        return frozenset(own | kept)

    def _keeps(self, number: int, known: Mapping[str, frozenset[str]]) -> tuple[Keep, ...]:
        application = self.graph.applications[number]
        if application.regions or not application.results:
            return ()
        operator, signature = (
            self.graph.operators.find(application.operator),
            self.graph.signatures[number],
        )
        values, found = self.graph.values, dict[Keep, None]()
        dtypes = [values[name].dtype for name in application.operands]
        made = [values[name].dtype for name in application.results]
        for slot, name in enumerate(application.operands):
            for monoid in sorted(known[name]):
                for group in operator.groups(monoid, signature, dtypes, made):
                    every = range(len(application.operands)) if group is ... else group
                    if slot in every:
                        found[monoid, tuple(every)] = None
        return tuple(found)
