"""`Course`: all that happens while a plan runs, in the order of the program, and how often.

- What is brought to an application, what it computes, how its results come to lie as they are kept,
  and the outputs as they are wanted.
- A loop brings its values to where its body has them, then runs condition and body in turn, and the
  condition once more. Where the program does not say how often, once is assumed.
- Of several branches the one that moves most counts, unless the program says which is taken.

`weft.runtime` does the same, and counts what moves.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from weft.lang import Application, Graph
from weft.lang.region import arguments
from weft.plan.delivery import Delivery
from weft.plan.liveness import handed, invariant, lives
from weft.plan.placed import Placed
from weft.plan.resharding.reshard import Reshard
from weft.plan.trip_count import Fact, Known, analyze_loop, known_inside, known_values, taken_branch
from weft.values import Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan

RUN_INSIDE = frozenset(["while", "case", "if"])
"""The operators that run their regions in place, so that nothing is brought to them."""


class Event(NamedTuple):
    """One thing that happens: something moves, or an application computes."""

    plan: Plan
    """The plan, or that of a region in it."""
    number: int | None
    """The application of that plan; None for an output."""
    name: str
    """What the application makes, or the output."""
    value: str
    """What moves."""
    way: Delivery | Reshard | None
    """How it moves; None where the application computes."""
    times: int
    inside: str
    """The loops and branches around it, as a text before what it is."""
    root: int | None
    """The application of the whole plan in which it happens; None for an output."""

    @property
    def received(self) -> Point:
        """The bytes that each device receives, in all the times together."""
        if self.way is None:
            return ()
        return tuple(self.times * count for count in self.way.received)


class Course(NamedTuple):
    """All that happens, and what is assumed of it."""

    events: tuple[Event, ...]
    assumed: tuple[str, ...]
    """What the program does not say; empty if the bytes are exact."""


def course_of(plan: Plan) -> Course:
    """All that happens while a plan runs.

    >>> from weft import Plan, propagate, trace
    >>> graph = trace(
    ...     lambda x: (x + x).sum(0), (8, 4),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{"x"}, {}]>'},
    ... )
    >>> for event in course_of(Plan.of(propagate(graph))).events:
    ...     print(event.name, event.value or "computes", sum(event.received))
    add computes 0
    sum_dim computes 0
    sum_dim sum_dim 32
    """
    walk = _whole(plan)
    return Course(tuple(walk.events()), tuple(dict.fromkeys(walk.assumed)))


def made_by(plan: Plan, number: int) -> list[Event]:
    """What happens until an application has made its results."""
    return list(_whole(plan).made(number))


def total(events: Collection[Event], size: int) -> Point:
    """The bytes that each of so many devices receives."""
    counts = [event.received for event in events]
    return tuple(map(sum, zip((0,) * size, *(count for count in counts if count))))


def flops_of(graph: Graph, application: Application, placed: Placed) -> int:
    """The operations of the cell that has most to compute for an application."""
    operator, said = graph.operators.find(application.operator), application.attributes
    return max(operator.count_flops(placed.signature, box, said) for box in set(placed.boxes))


def _whole(plan: Plan) -> _Walk:
    return _Walk(plan, [value.name for value in plan.graph.inputs], {}, _Place())


class _Place(NamedTuple):
    """Where in the whole plan something is, and how often that runs."""

    times: int = 1
    inside: str = ""
    root: int | None = None

    def within(self, text: str, times: int = 1) -> _Place:
        return _Place(self.times * times, f"{self.inside}{text}: ", self.root)


class _Walk:
    """A walk through a plan, or that of a region; some of its inputs are its own."""

    def __init__(self, plan: Plan, own: Collection[str], known: Known, place: _Place) -> None:
        self.plan, self.given, self.place = plan, known, place
        self.lent = {value.name for value in plan.graph.inputs} - set(own)
        self.assumed: list[str] = []

    @cached_property
    def known(self) -> dict[str, Fact]:
        """The numbers that the graph is sure of."""
        return known_values(self.plan.graph, self.given)

    @cached_property
    def ends(self) -> Sequence[Collection[str]]:
        return lives(self.plan.graph).ends

    def events(self) -> Iterator[Event]:
        """All that happens."""
        graph = self.plan.graph
        for number, application in enumerate(graph.applications):
            none = yield from self.made(number)
            for name, way in zip(application.results, self.plan.result_reshards[number]):
                if name not in none:
                    yield from self._moves(number, name, way)
        for name, way in zip(graph.outputs, self.plan.returns):
            yield from self._moves(None, name, way)

    def made(self, number: int) -> Generator[Event, None, Collection[str]]:
        """What happens until an application has made its results; those that nobody needs."""
        application = self.plan.graph.applications[number]
        if not application.results:
            return ()
        match application.operator, bool(application.regions):
            case "while", True:
                return (yield from self._loop(number))
            case "case" | "if", True:
                yield from self._branches(number)
            case _:
                for name, delivery in self.plan.brought(number):
                    yield from self._moves(number, name, delivery)
                yield self._event(number, "", None)
        return ()

    def _event(self, number: int | None, value: str, way: Delivery | Reshard | None) -> Event:
        place, applications = self.place, self.plan.graph.applications
        name = value if number is None else ", ".join(applications[number].results)
        root = place.root if place.inside else number
        return Event(self.plan, number, name, value, way, place.times, place.inside, root)

    def _moves(self, number: int | None, value: str, way: Delivery | Reshard) -> Iterator[Event]:
        if any(way.received):
            yield self._event(number, value, way)

    def _loop(self, number: int) -> Generator[Event, None, Collection[str]]:
        lent = yield from self._entry(number)
        yield from self._iterations(number)
        results = self.plan.graph.applications[number].results
        none = {results[n] for n in lent if results[n] in self.ends[number]}
        for result, way in zip(results, self.plan.loop_reshards[number].exit):
            if result not in none:
                yield from self._moves(number, result, way)
        return none

    def _entry(self, number: int) -> Generator[Event, None, set[int]]:
        """How the values of a loop come to where its body has them; those that stay others'."""
        plan, application = self.plan, self.plan.graph.applications[number]
        taken = handed(application, self.ends[number], self.lent)
        stay = self._fixed(number) - taken
        ways = plan.loop_reshards[number].entry
        for n, (name, way) in enumerate(zip(application.operands, ways)):
            if way.steps:
                stay.discard(n)
            yield from self._moves(number, name, way)
        return stay

    def _iterations(self, number: int) -> Iterator[Event]:
        """What happens in the regions of a loop: the condition runs once more than the body."""
        application = self.plan.graph.applications[number]
        condition, body = self.plan.regions[number]
        trips, constants = analyze_loop(application, self.known)
        if trips is None:
            first = application.results[0]
            self.assumed.append(f"while {first}: how often it runs is not known, once is counted")
        times, tests = (1, "?") if trips is None else (trips, str(trips + 1))
        known = known_inside(application, condition.graph, self.known, constants)
        yield from self._inner(number, condition, (), known, f"condition ×{tests}", times + 1)
        if times:
            known = known_inside(application, body.graph, self.known, constants)
            names = [value.name for value in arguments(application, body.graph)]
            own = [name for n, name in enumerate(names) if n not in self._fixed(number)]
            text = f"while ×{'?' if trips is None else trips}"
            yield from self._inner(number, body, own, known, text, times)

    def _fixed(self, number: int) -> set[int]:
        """The values of a loop that its body gives back as they came."""
        application, body = self.plan.graph.applications[number], self.plan.regions[number][1]
        return invariant(application, body.graph, body.returns)

    def _inner(
        self, number: int, plan: Plan, own: Collection[str], known: Known, text: str, times: int = 1
    ) -> Iterator[Event]:
        """What happens in a region."""
        root = self.place.root if self.place.inside else number
        walk = _Walk(plan, own, known, self.place._replace(root=root).within(text, times))
        yield from walk.events()
        self.assumed += walk.assumed

    def _branches(self, number: int) -> Iterator[Event]:
        application = self.plan.graph.applications[number]
        chosen = taken_branch(application, self.known)
        if chosen is not None:
            yield from self._branch(number, chosen)
            return
        branches = [list(self._branch(number, n)) for n in range(len(application.regions))]
        moved = [total(events, self.plan.mesh.size) for events in branches]
        if len(set(moved)) > 1:
            sizes = ", ".join(str(sum(counts)) for counts in moved)
            self.assumed.append(
                f"{application.operator} {application.results[0]}: branches move {sizes} B, "
                "the most is counted"
            )
        yield from max(branches, key=lambda events: (_received(events), _flops(events)))

    def _branch(self, number: int, chosen: int) -> Iterator[Event]:
        """What happens in a branch, and how its outputs come to be the results."""
        plan, application = self.plan, self.plan.graph.applications[number]
        inner, operator = plan.regions[number][chosen], application.operator
        known = known_inside(application, inner.graph, self.known)
        yield from self._inner(number, inner, (), known, f"{operator} branch {chosen}")
        for result, way in zip(application.results, plan.branch_reshards[number][chosen]):
            yield from self._moves(number, result, way)


def _received(events: Collection[Event]) -> int:
    return sum(sum(event.received) for event in events)


def _flops(events: Collection[Event]) -> int:
    return sum(
        event.times * flops_of(graph, graph.applications[event.number], placed[event.number])
        for event in events
        for graph, placed in [(event.plan.graph, event.plan.placed)]
        if event.number is not None and event.way is None
    )
