"""`ChoiceGraph`: the steps that a program may consist of, with all their options and costs.

A step runs an application. Of the steps that compute one value a program takes one, or none if
nothing needs the value; `weft.lang.alternatives` says which applications there are. A plan is then
a choice of steps, with a placement for each, and a sharding for every value that is there.

A value that is read once keeps the sharding in which it was computed. Inputs, outputs, annotated
values and those that are read more often are kept in a sharding of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from weft.lang import Application, Graph
from weft.lang.alternatives import Alternative, Alternatives
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.searching.build import ProblemBuilder, omitted_options
from weft.plan.searching.prices import MovePrices, OptionCost, StorageOptions, StoragePrices
from weft.plan.searching.problem import Problem, ReturnMemory, Table
from weft.values import FrozenMap, Point


class ValueChoices(NamedTuple):
    """The shardings of a value: first those in which it may be kept, then those as computed."""

    specs: tuple[ShardingSpec, ...]
    sizes: tuple[Point, ...]
    costs: tuple[OptionCost, ...]
    """Of the shardings in which it may be kept."""
    several: bool = False
    """Whether it may be kept only if it is read more than once."""

    @property
    def kept(self) -> int:
        """How many of the shardings it may be kept in."""
        return len(self.costs)


class ApplicationResult(NamedTuple):
    """A result of a step."""

    value: str
    sizes: tuple[Point, ...]
    """The bytes on the cells as computed, by placement."""
    reshard: Table | None
    """The cost of the reshard to where it is kept, by placement and sharding; None if it never
    is."""
    computed: tuple[int, ...]
    """By placement the number of the sharding as computed; empty if it is always kept."""


class PlaceableApplication(NamedTuple):
    """An application that may run, with its placements."""

    application: Application
    inlined: frozenset[str]
    """The values that it computes inside: a program with it has no other use for them."""
    options: tuple[Placed, ...]
    costs: tuple[OptionCost, ...]
    deliveries: tuple[Table, ...]
    """For every operand the cost to deliver it, by sharding and placement; none for regions."""
    results: tuple[ApplicationResult, ...]


@dataclass(frozen=True, eq=False)
class ChoiceGraph:
    """The values and the steps of a search, in the order of the program."""

    graph: Graph
    mesh: DeviceMesh
    machine: Machine
    values: Mapping[str, ValueChoices]
    steps: tuple[PlaceableApplication, ...]
    return_memory: Mapping[int, tuple[ReturnMemory, ...]]
    return_specs: Mapping[int, tuple[ShardingSpec, ...]]
    alternatives: Alternatives | None = None
    base: Plan | None = None
    reasons: tuple[str, ...] = ()
    """Why the options are not the whole search space."""

    @cached_property
    def cells(self) -> int:
        """The number of cells whose memory is counted."""
        return max((len(value.sizes[0]) for value in self.values.values()), default=0)

    @cached_property
    def rooms(self) -> tuple[float, ...]:
        """The capacities of the cells that are counted."""
        rooms = self.machine.capacities(self.mesh)
        return rooms or (self.machine.capacity,) * self.cells

    def plan(self, steps: Sequence[tuple[int, int]], specs: Mapping[str, int]) -> Plan:
        """Return the plan of chosen steps, each with its placement, and of chosen shardings."""
        assert self.alternatives is not None
        assert self.base is not None
        chosen = [self.steps[number] for number, _ in steps]
        graph = self.alternatives.chosen(step.application for step in chosen)
        placed = tuple(self.steps[number].options[option] for number, option in steps)
        found = {name: self.values[name].specs[option] for name, option in specs.items()}
        for application, one in zip(graph.applications, placed):
            for name, spec in zip(application.results, one.results):
                found.setdefault(name, spec)
        outputs = tuple(
            self.return_specs[place][specs[name]] if place in self.return_specs else found[name]
            for place, name in enumerate(graph.outputs)
        )
        written = {id(a): number for number, a in enumerate(self.graph.applications)}
        regions = {
            number: self.base.regions[written[id(application)]]
            for number, application in enumerate(graph.applications)
            if application.regions
        }
        return Plan(
            graph,
            self.mesh,
            FrozenMap((name, found[name]) for name in graph.values),
            outputs,
            placed,
            self.base.machine,
            FrozenMap(regions.items()),
        )


def choices_of(problem: Problem) -> ChoiceGraph:
    """Return a problem, in which every step runs, as a choice graph."""
    values: dict[str, ValueChoices] = {}
    for name, value in problem.values.items():
        decision = problem.decisions[value.decision]
        costs = decision.costs if isinstance(decision.subject, str) else ()
        values[name] = ValueChoices(value.specs, value.sizes, costs)
    steps = []
    for step, application in zip(problem.steps, problem.graph.applications):
        decision = problem.decisions[step.decision]
        results = [
            ApplicationResult(
                result.name,
                result.sizes,
                result.reshard and result.reshard.table,
                () if result.reshard else _firsts(values[result.name].specs),
            )
            for result in step.results
        ]
        placed = tuple(one for one in decision.options if isinstance(one, Placed))
        tables = tuple(pair.table for pair in step.deliveries)
        steps.append(
            PlaceableApplication(
                application, frozenset(), placed, decision.costs, tables, tuple(results)
            )
        )
    return ChoiceGraph(
        problem.graph,
        problem.mesh,
        problem.machine,
        values,
        tuple(steps),
        problem.return_memory,
        problem.return_specs,
    )


def assignment_of(
    problem: Problem, steps: Iterable[tuple[int, int]], specs: Mapping[str, int]
) -> list[int]:
    """Return the assignment of a problem for a choice of `choices_of` it."""
    assignment = [0] * len(problem.decisions)
    for number, option in steps:
        assignment[problem.steps[number].decision] = option
    for name, option in specs.items():
        assignment[problem.values[name].decision] = option
    return assignment


def _firsts(specs: Sequence[ShardingSpec]) -> tuple[int, ...]:
    """Return for every sharding the number of the first that equals it."""
    first: dict[ShardingSpec, int] = {}
    return tuple(first.setdefault(spec, number) for number, spec in enumerate(specs))


def build_choices(
    alternatives: Alternatives,
    mesh: DeviceMesh,
    machine: Machine,
    base: Plan,
    prices: MovePrices,
    storage: StorageOptions | None = None,
) -> ChoiceGraph:
    """Return the steps of all alternatives, with their options and costs.

    `base` is the plan of propagation for the graph as written.
    """
    return _ChoiceBuilder(alternatives, mesh, machine, base, prices, storage or {}).choices()


class _ChoiceBuilder(ProblemBuilder):
    """Builds the options of all alternatives.

    They are one graph for it, in which the results of every further alternative have other names.
    """

    def __init__(
        self,
        alternatives: Alternatives,
        mesh: DeviceMesh,
        machine: Machine,
        base: Plan,
        prices: MovePrices,
        storage: StorageOptions,
    ) -> None:
        self.alternatives, self.every = alternatives, list(alternatives.in_order())
        written = alternatives.graph
        super().__init__(
            _joint_graph(alternatives, self.every), mesh, machine, base=base, prices=prices
        )
        self.is_large = False
        self.storage = StoragePrices(self.graph, self.machine, storage)
        self.storage.readers = StoragePrices(written, self.machine, storage).readers
        numbers = {id(application): n for n, application in enumerate(written.applications)}
        self.written = [numbers.get(id(way.application), -1) for way in self.every]

    def _base_number(self, number: int) -> int:
        return self.written[number]

    def choices(self) -> ChoiceGraph:
        """Return the steps and the values."""
        graph = self.graph
        producers: dict[str, list[tuple[int, int]]] = {}
        for number, way in enumerate(self.every):
            for place, name in enumerate(way.application.results):
                producers.setdefault(name, []).append((number, place))
        choices = {value.name: self._input(value.name) for value in graph.inputs}
        for name, made in producers.items():
            choices[name] = self._value(name, made)
        steps = tuple(self._step(number, way, choices) for number, way in enumerate(self.every))
        return_specs = {
            place: tuple(
                self._return_spec(place, spec) for spec in choices[graph.outputs[place]].specs
            )
            for place in graph.output_shardings
        }
        memory = {
            place: self._return_memory(place, choices[graph.outputs[place]].specs, returned)
            for place, returned in return_specs.items()
        }
        return ChoiceGraph(
            self.alternatives.graph,
            self.mesh,
            self.machine,
            choices,
            steps,
            memory,
            return_specs,
            self.alternatives,
            self.base,
            (*omitted_options(graph, self.mesh), *self._shared_storage()),
        )

    def _shared_storage(self) -> Iterator[str]:
        """Yield a reason if rewrites may read a stored input more than once."""
        for name in self.storage.inputs:
            if self.storage.readers[name] == 1 and self._may_be_read_again(name):
                yield f"rewrites may read a stored input twice, and the costs do not add up: {name}"

    def _input(self, name: str) -> ValueChoices:
        specs = self._specs(name, None)
        return ValueChoices(specs, self._sizes(name, specs), tuple(self._value_costs(name, specs)))

    def _value(self, name: str, producers: Sequence[tuple[int, int]]) -> ValueChoices:
        placed = [one for number, _ in producers for one in self._placements(number)]
        results = dict.fromkeys(
            one.results[place] for number, place in producers for one in self._placements(number)
        )
        kept: tuple[ShardingSpec, ...] = ()
        if self._may_be_kept(name):
            kept = self._specs(name, placed, producers[0][1])
        costs = self._value_costs(name, kept)
        computed = tuple(results) if self._may_stay(name) else ()
        specs = self._intern((*kept, *computed))
        several = name not in self._always_kept
        return ValueChoices(specs, self._sizes(name, specs), tuple(costs), several)

    @cached_property
    def _always_kept(self) -> set[str]:
        return {*self.graph.outputs, *self.graph.shardings, *self._fixed}

    @cached_property
    def _least_uses(self) -> Mapping[str, int]:
        return self.alternatives.least_uses()

    @cached_property
    def _excludes(self) -> Callable[[int, int], bool]:
        return exclusion([(way.application, way.inlined) for way in self.every], self.graph.outputs)

    def _may_be_kept(self, name: str) -> bool:
        """Whether a value may have several readers, or is kept for another reason."""
        return name in self._always_kept or self._may_be_read_again(name)

    def _may_be_read_again(self, name: str) -> bool:
        readers = [n for n, way in enumerate(self.every) if name in way.application.operands]
        several = any(self.every[n].application.operands.count(name) > 1 for n in readers)
        return several or not all(self._excludes(a, b) for a, b in combinations(readers, 2))

    def _may_stay(self, name: str) -> bool:
        """Whether a value may have a single reader, and keeps the sharding in which it is made."""
        return name not in self._always_kept and self._least_uses[name] <= 1

    def _step(
        self, number: int, way: Alternative, choices: Mapping[str, ValueChoices]
    ) -> PlaceableApplication:
        application, placed = way.application, self._placements(number)
        key = (self._kind(number), id(placed))
        if key not in self.compute_costs:
            self.compute_costs[key] = self._compute_costs(number, placed)
        slots = () if application.regions or not application.results else application.operands
        tables = tuple(
            self._table(application, slot, choices[name].specs, placed)
            for slot, name in enumerate(slots)
        )
        results = tuple(
            self._result(name, place, placed, choices[name])
            for place, name in enumerate(application.results)
        )
        return PlaceableApplication(
            application, way.inlined, placed, self.compute_costs[key], tables, results
        )

    def _result(
        self, name: str, place: int, placed: tuple[Placed, ...], value: ValueChoices
    ) -> ApplicationResult:
        specs = self._intern(tuple(one.results[place] for one in placed))
        kept, computed = value.specs[: value.kept], value.specs[value.kept :]
        places = {spec: value.kept + number for number, spec in enumerate(computed)}
        return ApplicationResult(
            name,
            self._sizes(name, specs),
            self._reshard_table(name, specs, self._intern(kept)) if kept else None,
            tuple(places[spec] for spec in specs) if computed else (),
        )


def exclusion(
    steps: Sequence[tuple[Application, frozenset[str]]], outputs: Iterable[str]
) -> Callable[[int, int], bool]:
    """Return a function that says of two steps whether no program has both.

    A step that runs decides which step computes its results, and that nothing computes what it
    inlines. If all readers of its results agree on such a fact, it holds for the step as well.
    Two steps exclude each other if they contradict. The test is sufficient, not necessary.
    """
    facts: list[dict[str, int]] = [{} for _ in steps]
    readers: dict[str, list[int]] = {}
    wanted = {*outputs}
    for number in reversed(range(len(steps))):
        application, inlined = steps[number]
        known: dict[str, int] = {}
        if application.results and not wanted & {*application.results}:
            later = [facts[r] for name in application.results for r in readers.get(name, ())]
            if later:
                common = {*later[0].items()}.intersection(*(one.items() for one in later[1:]))
                known = dict(common)
        known |= dict.fromkeys(application.results, number) | dict.fromkeys(inlined, -1 - number)
        facts[number] = known
        for name in dict.fromkeys(application.operands):
            readers.setdefault(name, []).append(number)

    def excludes(one: int, two: int) -> bool:
        other = facts[two]
        return any(other.get(name, fact) != fact for name, fact in facts[one].items())

    return excludes


def _joint_graph(alternatives: Alternatives, every: Sequence[Alternative]) -> Graph:
    """Return all alternatives as one graph; further results of a value have names of their own."""
    written, seen = alternatives.graph, Counter[str]()
    applications, dtypes = list[Application](), dict[str, str]()
    for way in every:
        application = way.application
        names = tuple(
            name if not seen[name] else f"{name} ({seen[name] + 1})" for name in application.results
        )
        dtypes |= {
            new: alternatives.values[old].dtype for new, old in zip(names, application.results)
        }
        seen.update(application.results)
        applications.append(application._replace(results=names))
    return Graph(
        written.inputs,
        applications,
        written.outputs,
        written.meshes,
        written.shardings,
        written.output_shardings,
        alternatives.library,
        dtypes,
        written.parameters,
    )
