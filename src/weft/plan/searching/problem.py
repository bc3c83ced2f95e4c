"""`Problem`: the decisions of a search, with a cost table between each two that interact.

Three kinds of thing are decided: the sharding of an input, the placement of an application's index
space, and the sharding of a result that several applications read or that is an output. A result
that one application reads keeps the sharding in which it was computed. The cost of a plan is then a
sum of unary costs (what an application computes) and pairwise costs (what moves between two
decisions): a weighted constraint network, or the energy of a Markov random field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from weft.lang import Graph
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.searching.prices import MoveCost, OptionCost
from weft.values import FrozenMap, Point

Option: TypeAlias = ShardingSpec | Placed
Table: TypeAlias = Sequence[Sequence[MoveCost]]
"""For each option of one decision and each of another, what moves between them."""

Assignment: TypeAlias = Sequence[int]
"""For every decision the number of the chosen option."""


class Decision(NamedTuple):
    """One decision: the sharding of a value, or the placement of an application by number."""

    subject: str | int
    options: tuple[Option, ...]
    costs: tuple[OptionCost, ...]
    kind: Hashable
    """Equal for decisions that may be tied together."""


class PairCost(NamedTuple):
    """The cost table between two decisions."""

    first: int
    second: int
    table: Table

    def move(self, assignment: Assignment) -> MoveCost:
        """Return what moves under an assignment."""
        return self.table[assignment[self.first]][assignment[self.second]]


class ValueOptions(NamedTuple):
    """The decision that determines a value's sharding, and its bytes per cell by option."""

    decision: int
    specs: tuple[ShardingSpec, ...]
    sizes: tuple[Point, ...]


class ResultOptions(NamedTuple):
    """A result: its bytes as computed, by option, and its reshard to where it is kept, if any."""

    name: str
    sizes: tuple[Point, ...]
    reshard: PairCost | None


class ApplicationStep(NamedTuple):
    """The run of an application: the moves of its operands, its results, and what dies after it."""

    decision: int
    deliveries: tuple[PairCost, ...]
    results: tuple[ResultOptions, ...]
    ends: tuple[str, ...]


class ReturnMemory(NamedTuple):
    """The bytes per cell while an output is resharded, and after."""

    freed: Point
    """The peak if the value is freed with it."""
    kept: Point
    """The peak if the value is kept."""
    final: Point


@dataclass(frozen=True, eq=False)
class Problem:
    """The decisions for a graph on a mesh, with their costs on a machine."""

    graph: Graph
    mesh: DeviceMesh
    machine: Machine
    base: Plan
    """The plan of propagation, which is always one of the candidates."""
    decisions: tuple[Decision, ...]
    pairs: tuple[PairCost, ...]
    values: FrozenMap[str, ValueOptions]
    steps: tuple[ApplicationStep, ...]
    return_memory: FrozenMap[int, tuple[ReturnMemory, ...]]
    """For an output with a written sharding, by the option of its value."""
    return_specs: FrozenMap[int, tuple[ShardingSpec, ...]]
    """For such an output the sharding in which it is returned, by the option of its value."""
    unused: tuple[str, ...]
    """The inputs that no application reads."""

    @cached_property
    def start(self) -> list[int]:
        """The assignment of the base plan."""
        return [
            decision.options.index(
                self.base.placed[decision.subject]
                if isinstance(decision.subject, int)
                else self.base.specs[decision.subject]
            )
            for decision in self.decisions
        ]

    def plan(self, assignment: Assignment) -> Plan:
        """Return the plan of an assignment."""
        placed: dict[int, Placed] = {}
        for decision, choice in zip(self.decisions, assignment):
            option = decision.options[choice]
            if isinstance(decision.subject, int) and isinstance(option, Placed):
                placed[decision.subject] = option
        specs = {name: one.specs[assignment[one.decision]] for name, one in self.values.items()}
        outputs = tuple(
            self.return_specs[place][assignment[self.values[name].decision]]
            if place in self.return_specs
            else specs[name]
            for place, name in enumerate(self.graph.outputs)
        )
        return Plan(
            self.graph,
            self.mesh,
            FrozenMap((name, specs[name]) for name in self.graph.values),
            outputs,
            tuple(placed[number] for number in range(len(placed))),
            self.base.machine,
            self.base.regions,
        )

    def cost(self, assignment: Assignment) -> OptionCost:
        """Return the sums of `estimate` for the plan of an assignment, without building it."""
        compute = communicate = 0.0
        received = 0
        for decision, choice in zip(self.decisions, assignment):
            cost = decision.costs[choice]
            compute += cost.compute
            communicate += cost.communicate
            received += cost.received
        for pair in self.pairs:
            move = pair.move(assignment)
            communicate += move.seconds
            received += move.received
        return OptionCost(compute, communicate, received)

    def seconds(self, cost: OptionCost) -> float:
        """Return the seconds of a cost: computation, and communication that does not overlap."""
        hidden = min(self.machine.overlap * cost.communicate, cost.compute)
        return cost.compute + cost.communicate - hidden

    def peak(self, assignment: Assignment) -> int:
        """Return the most bytes of any cell: `Plan.peak`, without building the plan."""
        return max(max(held, default=0) for held in self.memory_profile(assignment))

    def excess(self, assignment: Assignment) -> float:
        """Return the bytes by which some cell holds more than its capacity; 0 if none does."""
        rooms = self.rooms
        return max(
            0.0,
            *(n - room for held in self.memory_profile(assignment) for n, room in zip(held, rooms)),
        )

    @cached_property
    def rooms(self) -> tuple[float, ...]:
        """The capacities of the cells that are counted."""
        rooms = self.machine.capacities(self.mesh)
        return rooms or (self.machine.capacity,) * self.cells

    @cached_property
    def scales(self) -> tuple[float, ...] | None:
        """How much a byte of each cell counts where capacities differ: most on the smallest."""
        if self.machine.capacities(self.mesh) is None:
            return None
        return tuple(max(min(self.rooms) / room, 1e-3) for room in self.rooms)

    def memory_profile(self, assignment: Assignment) -> list[Point]:
        """Return the most bytes of the cells: at first, during each step, and at the end."""
        live = [0] * self.cells
        none = (0,) * self.cells
        most = live[:]
        levels: list[Point] = []

        def add(amount: Point, sign: int = 1) -> None:
            for cell, size in enumerate(amount):
                live[cell] += sign * size

        def note(more: Point) -> None:
            most[:] = map(max, most, map(int.__add__, live, more))

        def end() -> None:
            levels.append(tuple(most))
            most[:] = none

        for value in self.graph.inputs:
            add(self.size(value.name, assignment))
        note(none)
        end()
        for name in self.unused:
            add(self.size(name, assignment), -1)
        for step in self.steps:
            moves = [pair.move(assignment) for pair in step.deliveries]
            for move in moves:
                note(move.peak)
                add(move.added)
            for result in step.results:
                add(result.sizes[assignment[step.decision]])
            note(none)
            for move in moves:
                add(move.added, -1)
            for result in step.results:
                if result.reshard is not None:
                    note(result.reshard.move(assignment).reshard_peak)
                    add(self.size(result.name, assignment))
                    add(result.sizes[assignment[step.decision]], -1)
            for name in step.ends:
                add(self.size(name, assignment), -1)
            end()
        outputs = self.graph.outputs
        for place, name in enumerate(outputs):
            is_last = name not in outputs[place + 1 :]
            size = self.size(name, assignment)
            if place in self.return_memory:
                memory = self.return_memory[place][assignment[self.values[name].decision]]
                note(memory.freed if is_last else memory.kept)
                add(size, -is_last)
                add(memory.final)
            elif not is_last:
                note(size)
                add(size)
        note(none)
        end()
        return levels

    @cached_property
    def lifetimes(self) -> FrozenMap[str, tuple[int, int]]:
        """For every value the first and the last level of `memory_profile` at which it is live."""
        begin = {value.name: 0 for value in self.graph.inputs}
        end = dict[str, int]()
        for number, step in enumerate(self.steps, 1):
            begin |= {result.name: number for result in step.results}
            end |= dict.fromkeys(step.ends, number)
        end |= dict.fromkeys(self.unused, 0)
        last = len(self.steps) + 1
        return FrozenMap((name, (first, end.get(name, last))) for name, first in begin.items())

    @cached_property
    def cells(self) -> int:
        """The number of cells whose memory is counted."""
        return max((len(value.sizes[0]) for value in self.values.values()), default=0)

    def size(self, name: str, assignment: Assignment) -> Point:
        """Return the bytes of a value on each cell."""
        value = self.values[name]
        return value.sizes[assignment[value.decision]]


Matrix = list[list[float]]


class ObjectiveWeights(NamedTuple):
    """The weights of a second and of a received byte in a weighted sum."""

    seconds: float = 1.0
    received: float = 0.0


def fullest(held: Sequence[int], scales: Sequence[float] | None = None) -> float:
    """Return the bytes of the cell that holds most, each counted by its scale."""
    if scales is None:
        return max(held, default=0)
    return max(map(float.__mul__, map(float, held), scales), default=0.0)


class DecisionClasses:
    """A problem in which the decisions of each class are tied: they take the same option."""

    def __init__(self, problem: Problem, class_of: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.class_of = range(len(problem.decisions)) if class_of is None else class_of
        """For every decision its class; by default each is a class of its own."""
        self.members: list[list[int]] = [[] for _ in range(max(self.class_of, default=-1) + 1)]
        for decision, number in enumerate(self.class_of):
            self.members[number].append(decision)
        self.sizes = [len(problem.decisions[members[0]].options) for members in self.members]
        """For every class how many options it has."""
        self._matrices: dict[object, Matrix] = {}

    @cached_property
    def tables(self) -> Mapping[tuple[int, int], list[tuple[Table, int]]]:
        """For two classes the tables between them, and how often each occurs."""
        tables = {id(pair.table): pair.table for pair in self.problem.pairs}
        counts: dict[tuple[int, int], Counter[int]] = {}
        for first, second, table in self.problem.pairs:
            classes = self.class_of[first], self.class_of[second]
            counts.setdefault(classes, Counter())[id(table)] += 1
        return {
            classes: [(tables[number], count) for number, count in counted.items()]
            for classes, counted in counts.items()
        }

    def assignment(self, choices: Assignment) -> list[int]:
        """Return the option of every decision, from that of every class."""
        return [choices[number] for number in self.class_of]

    def choices(self, assignment: Assignment) -> list[int]:
        """Return the option of every class: that of its first decision."""
        return [assignment[members[0]] for members in self.members]

    def weighted(self, weights: ObjectiveWeights) -> PairwiseModel:
        """Return the model of a weighted sum of seconds and bytes."""
        seconds, received = weights
        share = 1.0 - self.problem.machine.overlap
        unary = [
            [
                len(members)
                * (seconds * (cost.compute + share * cost.communicate) + received * cost.received)
                for cost in self.problem.decisions[members[0]].costs
            ]
            for members in self.members
        ]
        pairwise: dict[tuple[int, int], Matrix] = {}
        for classes, tables in self.tables.items():
            first, second = sorted(classes)
            matrix = self._matrix(tables, seconds * share, received)
            if first == second:
                unary[first] = [a + matrix[n][n] for n, a in enumerate(unary[first])]
                continue
            oriented = matrix if classes == (first, second) else transposed(matrix)
            known = pairwise.get((first, second))
            pairwise[first, second] = oriented if known is None else matrix_sum(known, oriented)
        return PairwiseModel(unary, pairwise)

    def _matrix(
        self, tables: Sequence[tuple[Table, int]], seconds: float, received: float
    ) -> Matrix:
        key = (seconds, received, *((id(table), count) for table, count in tables))
        if key not in self._matrices:
            matrices = [
                [
                    [count * (seconds * move[0] + received * move[1]) for move in row]
                    for row in table
                ]
                for table, count in tables
            ]
            total = matrices[0]
            for matrix in matrices[1:]:
                total = matrix_sum(total, matrix)
            self._matrices[key] = total
        return self._matrices[key]

    def memory(
        self, level: int | None = None, scales: Sequence[float] | None = None
    ) -> list[list[float]]:
        """Return by class and option the bytes on a cell of the values live at a level, or ever."""
        total = [[0.0] * count for count in self.sizes]
        for name, (first, last) in self.problem.lifetimes.items():
            if level is None or first <= level <= last:
                value = self.problem.values[name]
                row = total[self.class_of[value.decision]]
                row[:] = [old + fullest(size, scales) for old, size in zip(row, value.sizes)]
        return total


class PairwiseModel:
    """A cost for every option of every class, and for every pair of options of two classes."""

    def __init__(
        self,
        unary: Sequence[Sequence[float]],
        pairwise: Mapping[tuple[int, int], Matrix],
        neighbours: list[list[tuple[int, Matrix]]] | None = None,
    ) -> None:
        self.unary, self.pairwise = unary, pairwise
        self.neighbours = neighbours or [[] for _ in unary]
        """For each class its neighbours: by option of the neighbour a row over its own options."""
        if neighbours is None:
            for (first, second), matrix in pairwise.items():
                self.neighbours[first].append((second, transposed(matrix)))
                self.neighbours[second].append((first, matrix))

    def plus(self, more: Sequence[Sequence[float]], weight: float) -> PairwiseModel:
        """Return the model with a weighted number more for every option."""
        unary = [[a + weight * b for a, b in zip(*rows)] for rows in zip(self.unary, more)]
        return PairwiseModel(unary, self.pairwise, self.neighbours)

    def total(self, choices: Assignment) -> float:
        """Return the sum of all costs."""
        total = sum(row[choice] for row, choice in zip(self.unary, choices))
        for (first, second), matrix in self.pairwise.items():
            total += matrix[choices[first]][choices[second]]
        return total


def transposed(matrix: Sequence[Sequence[float]]) -> Matrix:
    """Return a matrix with rows and columns exchanged."""
    return [list(column) for column in zip(*matrix)]


def matrix_sum(one: Matrix, two: Matrix) -> Matrix:
    """Return the sum of two matrices."""
    return [[a + b for a, b in zip(*rows)] for rows in zip(one, two)]


def equivalence_classes(problem: Problem, rounds: int = 4) -> list[int]:
    """Return for every decision the number of its class: repeated layers share their decisions.

    This is colour refinement (the Weisfeiler-Leman test): decisions start with the colour of their
    kind, and in each round those with different neighbours get different colours.

    >>> from weft import DeviceMesh, Machine, trace
    >>> from weft.plan.searching.build import build_problem
    >>> def layers(x, w):
    ...     for _ in range(20):
    ...         x = x @ w
    ...     return x
    >>> graph, mesh = trace(layers, (8, 8), (8, 8)), DeviceMesh("m", (2,), ("x",))
    >>> problem = build_problem(graph, mesh, Machine())
    >>> len(problem.decisions), max(equivalence_classes(problem)) + 1
    (23, 12)
    """
    tables: dict[int, int] = {}
    neighbours: list[list[tuple[int, int, int]]] = [[] for _ in problem.decisions]
    for first, second, table in problem.pairs:
        number = tables.setdefault(id(table), len(tables))
        neighbours[first].append((0, number, second))
        neighbours[second].append((1, number, first))

    def numbered(colours: Sequence[Hashable]) -> list[int]:
        numbers: dict[Hashable, int] = {}
        return [numbers.setdefault(colour, len(numbers)) for colour in colours]

    colours = numbered([decision.kind for decision in problem.decisions])
    for _ in range(rounds):
        colours = numbered(
            [
                (colour, tuple(sorted({(side, table, colours[n]) for side, table, n in near})))
                for colour, near in zip(colours, neighbours)
            ]
        )
    return colours


def take_over(old: Problem, assignment: Assignment, new: Problem) -> list[int]:
    """Return an assignment for another graph: what both have as before, the rest as in its base."""
    known: dict[object, Option] = {}
    for decision, choice in zip(old.decisions, assignment):
        known[_name_of(old, decision.subject)] = decision.options[choice]
    result = []
    for decision, first in zip(new.decisions, new.start):
        option = known.get(_name_of(new, decision.subject))
        result.append(decision.options.index(option) if option in decision.options else first)
    return result


def _name_of(problem: Problem, subject: str | int) -> object:
    """Return a value's name, or the operator and results of an application."""
    if isinstance(subject, str):
        return subject
    application = problem.graph.applications[subject]
    return application.operator, application.results
