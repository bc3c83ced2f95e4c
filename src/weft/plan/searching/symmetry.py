"""`Symmetry`: axes that a machine does not tell apart, and dimensions that go together.

Where two axes have the same size and the same link, every plan has a twin in which they change
places. A search over a large graph looks at one of them: dimensions are put in one order all over
the graph, and such axes are given to them in that order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

from weft.lang import Graph, Row
from weft.layout import Axis, DeviceMesh
from weft.plan.machine import Machine
from weft.plan.searching.choices import Alike


class Symmetry:
    """The classes of axes that are alike, and the groups of dimensions that are one."""

    def __init__(self, graph: Graph, mesh: DeviceMesh, machine: Machine) -> None:
        self.graph = graph
        kinds: dict[object, list[str]] = {}
        for axis in mesh.axis_names:
            kinds.setdefault((mesh.axis_size(axis), machine.link(axis)), []).append(axis)
        self.classes = tuple(tuple(axes) for axes in kinds.values() if len(axes) > 1)
        self.kinds: dict[Axis, int] = {
            axis: n for n, axes in enumerate(kinds.values()) for axis in axes
        }
        """For every axis the number of its kind."""

    def classes_of(self, axes: Sequence[str]) -> list[list[str]]:
        """Axes, those that are alike together."""
        found: dict[int, list[str]] = {}
        for axis in axes:
            found.setdefault(self.kinds[axis], []).append(axis)
        return list(found.values())

    def of_application(self, number: int) -> Alike:
        """How the index dimensions of an application stand in the order."""
        names = self.graph.signatures[number].sizes
        return self._alike({name: self.places[number, name] for name in names})

    def of_value(self, name: str) -> Alike:
        """How the dimensions of a value stand in the order."""
        rank = len(self.graph.values[name].shape)
        return self._alike({str(dim): self.places[name, dim] for dim in range(rank)})

    def _alike(self, places: Mapping[str, int]) -> Alike:
        ranks = {place: rank for rank, place in enumerate(sorted(set(places.values())))}
        return Alike(self.classes, tuple((name, ranks[p]) for name, p in places.items()))

    @cached_property
    def places(self) -> Mapping[Hashable, int]:
        """For every dimension of a value and of an index space the number of its group."""
        ties = _Ties()
        graph = self.graph
        for name, value in graph.values.items():
            for dim in range(len(value.shape)):
                ties.find((name, dim))
        for number, (application, signature) in enumerate(
            zip(graph.applications, graph.signatures)
        ):
            line = signature.notation
            for index in signature.sizes:
                ties.find((number, index))
            for name, rows in zip(
                (*application.operands, *application.results), (*line.operands, *line.results)
            ):
                for dim, row in enumerate(rows):
                    for index in _plain(row):
                        ties.join((number, index), (name, dim))
        numbers: dict[Hashable, int] = {}
        return {one: numbers.setdefault(ties.find(one), len(numbers)) for one in list(ties.parents)}


def _plain(row: Row) -> list[str]:
    """The index dimension that a row is, if it is one."""
    terms = [name for name, coefficient in row.terms if coefficient == 1]
    return terms if len(row.terms) == 1 else []


class _Ties:
    """Sets that grow together."""

    def __init__(self) -> None:
        self.parents: dict[Hashable, Hashable] = {}

    def find(self, one: Hashable) -> Hashable:
        """The one that stands for a set."""
        root = one
        while self.parents.setdefault(root, root) != root:
            root = self.parents[root]
        while self.parents[one] != root:
            self.parents[one], one = root, self.parents[one]
        return root

    def join(self, one: Hashable, other: Hashable) -> None:
        """Make two sets one."""
        self.parents[self.find(one)] = self.find(other)
