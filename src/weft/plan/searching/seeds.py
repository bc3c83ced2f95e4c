"""Where a search starts: every axis of the mesh given to one group of dimensions all over a graph.

Dimensions that are one and the same in the arrays of a graph (its batch, its heads, its features)
move together. A seed says for each axis which of the large groups it cuts, and every decision
follows as far as it can; descent does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, product
from math import comb, prod

from weft.layout import Axis
from weft.plan.placed import Placed
from weft.plan.searching.model import Model, Priced
from weft.plan.searching.symmetry import Symmetry

GROUPS = 6
"""So many groups of dimensions are tried: those over which most is computed."""

MOST = 120
"""The most seeds that are looked at."""


class Seeds:
    """The starts for a model."""

    def __init__(self, model: Model) -> None:
        problem = model.problem
        self.model = model
        self.axes = [a for a in problem.mesh.axis_names if problem.mesh.axis_size(a) > 1]
        self.symmetry = Symmetry(problem.graph, problem.mesh, problem.machine)
        cuts = [
            tuple(self._cut(members[0], number) for number in range(count))
            for members, count in zip(model.members, model.sizes)
        ]
        self.kinds = list(dict.fromkeys(cuts))
        """The lists that differ of what choices cut: for each the group of every axis, or -1."""
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        self.of = [numbers[cut] for cut in cuts]

    def _cut(self, decision: int, number: int) -> tuple[int, ...]:
        what = self.model.problem.decisions[decision].what
        choice = self.model.problem.decisions[decision].choices[number]
        by: Iterable[tuple[str | int, Sequence[Axis]]]
        if isinstance(choice, Placed):
            by = choice.placement.items()
        else:
            by = enumerate(dim.axes for dim in choice.dim_specs)
        found = {axis: self.symmetry.places[what, dim] for dim, axes in by for axis in axes}
        return tuple(found.get(axis, -1) for axis in self.axes)

    def all(self) -> Iterator[list[int]]:
        """The seeds: all ways to give the axes to the large groups."""
        groups, classes = self._groups(), self.symmetry.classes_of(self.axes)
        while groups and prod(comb(len(groups) + len(c) - 1, len(c)) for c in classes) > MOST:
            groups.pop()
        ways = [combinations_with_replacement(sorted(groups), len(axes)) for axes in classes]
        for picked in product(*ways):
            wanted = {a: g for axes, given in zip(classes, picked) for a, g in zip(axes, given)}
            yield self.follow([wanted[axis] for axis in self.axes])

    def best(self, priced: Priced, count: int) -> list[list[int]]:
        """The cheapest of them, each once."""
        found = {tuple(seed): priced.total(seed) for seed in self.all()}
        return [list(seed) for seed in sorted(found, key=lambda seed: found[seed])[:count]]

    def follow(self, wanted: Sequence[int]) -> list[int]:
        """The choices that cut what is wanted, and nothing else if that can be."""
        found = []
        for cuts in self.kinds:
            fits = [sum((a == b) - (a != b and a >= 0) for a, b in zip(c, wanted)) for c in cuts]
            found.append(fits.index(max(fits)))
        return [found[kind] for kind in self.of]

    def _groups(self) -> list[int]:
        """The groups over which most is computed."""
        problem, weights = self.model.problem, dict[int, float]()
        for decision in problem.decisions:
            if isinstance(decision.what, int):
                signature = problem.graph.signatures[decision.what]
                cost = max(price.compute for price in decision.prices) or float(
                    prod(signature.sizes.values())
                )
                for name in signature.sizes:
                    if name not in signature.fixed and signature.sizes[name] > 1:
                        group = self.symmetry.places[decision.what, name]
                        weights[group] = weights.get(group, 0.0) + cost
        return sorted(weights, key=lambda group: -weights[group])[:GROUPS]
