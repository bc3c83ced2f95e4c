"""Where a search starts: every axis of the mesh given to one group of dimensions all over a graph.

Dimensions that are one and the same in the arrays of a graph (its batch, its heads, its features)
move together. A seed says for each axis which of the large groups it cuts, and every decision
follows as far as it can; descent does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

from weft.layout import Axis
from weft.plan.placed import Placed
from weft.plan.searching.model import Model, Priced
from weft.plan.searching.symmetry import Symmetry

GROUPS = 6
"""So many groups of dimensions are tried: those over which most is computed."""

MOST = 216
"""The most seeds that are looked at."""


class Seeds:
    """The starts for a model."""

    def __init__(self, model: Model) -> None:
        problem = model.problem
        self.model = model
        self.axes = [a for a in problem.mesh.axis_names if problem.mesh.axis_size(a) > 1]
        self.symmetry = Symmetry(problem.graph, problem.mesh, problem.machine)
        self.cuts = [
            [self._cut(members[0], number) for number in range(count)]
            for members, count in zip(model.members, model.sizes)
        ]
        """For each choice of each class the group that every axis cuts, or -1."""

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
        groups = self._groups()
        while groups and len(groups) ** len(self.axes) > MOST:
            groups.pop()
        for wanted in product(groups, repeat=len(self.axes)):
            yield self.follow(wanted)

    def best(self, priced: Priced, count: int) -> list[list[int]]:
        """The cheapest of them, each once."""
        found = {tuple(seed): priced.total(seed) for seed in self.all()}
        return [list(seed) for seed in sorted(found, key=lambda seed: found[seed])[:count]]

    def follow(self, wanted: Sequence[int]) -> list[int]:
        """The choices that cut what is wanted, and nothing else if that can be."""
        found = []
        for cuts in self.cuts:
            fits = [sum((a == b) - (a != b and a >= 0) for a, b in zip(c, wanted)) for c in cuts]
            found.append(fits.index(max(fits)))
        return found

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
