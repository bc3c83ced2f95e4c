"""The bytes that each cell holds while a plan runs, event by event, in the order of the program.

- A value lies on its cells from when it is made until its last use, an input from the beginning, an
  output to the end. It has arrays of its own.
- On the way from one sharding to another, or to an application, a cell holds what it comes from,
  what the step before made, and what this step makes. What a cell takes of an array that it has is
  a view: no bytes more, but that array stays as long. Where a view would be kept as a value, it
  is copied.
- What is brought to an application lies beside it until that has run; the results lie beside that,
  and each once more where it is kept otherwise than it was made.
- A loop has arrays of its own for what its body changes; it takes over those from which it starts
  where nobody needs them any more. Of several branches the largest counts, cell by cell.

`weft.runtime` keeps to the same rules, and counts.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weft.lang.region import arguments
from weft.layout import ShardingSpec
from weft.plan.delivery import Delivery
from weft.plan.liveness import handed, invariant, lives
from weft.plan.placed import Placed
from weft.plan.resharding.counts import sizes
from weft.plan.resharding.reshard import Reshard
from weft.values import Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan

Made: TypeAlias = Sequence[int | None]
"""For each cell the bytes of the array that a step makes there; None where it is a view."""


class Held(NamedTuple):
    """What the cells hold at one moment."""

    what: str
    """Which application, and what it is doing."""
    cells: Point
    """The bytes of every cell, in rank order."""


def moments(plan: Plan) -> Iterator[Held]:
    """The moments at which the cells may hold most.

    >>> from weft import Plan, propagate, trace
    >>> plan = Plan.of(propagate(trace(lambda x: (x + x) * x, (4,), meshes=['@m = <["x"=2]>'])))
    >>> for held in moments(plan):
    ...     print(held.what, held.cells)
    inputs (16, 16)
    add (32, 32)
    multiply (48, 48)
    outputs (16, 16)
    """
    walk = _Walk(plan, [0] * plan.mesh.size, [value.name for value in plan.graph.inputs])
    for value in plan.graph.inputs:
        walk.add(walk.bytes(value.name, plan.specs[value.name]))
    yield walk.held("inputs")
    yield from walk.moments()
    yield walk.held("outputs")


def peak(plan: Plan) -> Point:
    """The most bytes that each cell ever holds."""
    return tuple(map(max, zip(*(held.cells for held in moments(plan)))))


class Use(NamedTuple):
    """What the cells hold around one application."""

    before: Sequence[int]
    brought: Sequence[int]
    """How much more while its operands are brought."""
    most: Sequence[int]
    """All that they hold when they hold most."""


def profile(plan: Plan, own: Collection[str]) -> Iterator[Use]:
    """What the cells hold around every application; some of the inputs are the plan's own."""
    walk = _Walk(plan, [0] * plan.mesh.size, own)
    for name in own:
        walk.add(walk.bytes(name, plan.specs[name]))
    walk.end(walk.lives.unused)
    for number, application in enumerate(plan.graph.applications):
        before, brought = walk.live, [0] * plan.mesh.size
        if not application.regions:
            found = [held.cells for held in walk.bring(number)]
            walk.live = before
            peaks = map(max, zip(before, *found))
            brought = [most - size for most, size in zip(peaks, before)]
        cells = [held.cells for held in walk.application(number)]
        yield Use(before, brought, list(map(max, zip(before, *cells))))


class _Walk:
    """A walk through a graph; those of its inputs that are its own are counted already."""

    def __init__(self, plan: Plan, live: list[int], own: Collection[str]) -> None:
        self.plan, self.live = plan, live
        self.lent = {value.name for value in plan.graph.inputs} - set(own)
        self.lives = lives(plan.graph)

    def moments(self, skip: Collection[int] = ()) -> Iterator[Held]:
        """What is held until the outputs are there, but for some, which are left as they are."""
        graph = self.plan.graph
        self.end(self.lives.unused)
        for number in range(len(graph.applications)):
            yield from self.application(number)
        places = [n for n in range(len(graph.outputs)) if n not in skip]
        names = [graph.outputs[place] for place in places]
        for at, (place, name) in enumerate(zip(places, names)):
            gone = name not in self.lent and name not in names[at + 1 :]
            yield from self._keep(f"output {name}", self.plan.returns[place], gone)

    def application(self, number: int) -> Iterator[Held]:
        """What an application holds, and what it leaves."""
        application, none = self.plan.graph.applications[number], set[str]()
        if not application.results:
            self.end(self.lives.ends[number])
            return
        match application.operator, bool(application.regions):
            case "while", True:
                none = yield from self._loop(number)
            case "case" | "if", True:
                yield from self._branches(number)
            case _:
                yield from self._kernel(number)
        for name, way in zip(application.results, self.plan.result_reshards[number]):
            if name not in none:
                yield from self._keep(f"{name} settled", way)
        self.end([name for name in self.lives.ends[number] if name not in none])

    def _kernel(self, number: int) -> Iterator[Held]:
        plan, application = self.plan, self.plan.graph.applications[number]
        name, before = ", ".join(application.results), self.live
        yield from self.bring(number)
        made = [
            self.bytes(result, spec)
            for result, spec in zip(application.results, plan.placed[number].results)
        ]
        for each in made:
            self.add(each)
        yield self.held(name)
        self.live = list(map(sum, zip(before, *made)))

    def bring(self, number: int) -> Iterator[Held]:
        """The operands of an application, one after the other, where they are needed."""
        application = self.plan.graph.applications[number]
        for place in self.plan.places_brought(number):
            placed = self.plan.placed[number]
            most, beside = brought(self.plan.deliveries[number][place], placed, place)
            if any(most):
                made = ", ".join(application.results)
                yield self.held(f"{application.operands[place]} for {made}", most)
                self.add(beside)

    def _loop(self, number: int) -> Generator[Held, None, set[str]]:
        """What a loop holds; the values that it took over, and results that nobody needs."""
        plan, application = self.plan, self.plan.graph.applications[number]
        (condition, body), ends = plan.regions[number], self.lives.ends[number]
        names = [value.name for value in arguments(application, body.graph)]
        fixed = invariant(application, body.graph, body.returns)
        taken, lent = handed(application, ends, self.lent), set[int]()
        reshards = plan.loop_reshards[number]
        for n, (name, result) in enumerate(zip(application.operands, application.results)):
            way = reshards.entry[n]
            if n in fixed and n not in taken and not way.steps:
                lent.add(n)
            else:
                yield from self._keep(f"{name} for {result}", way, n in taken)
        yield from _Walk(condition, self.live, ()).moments()
        inner = _Walk(body, self.live, [name for n, name in enumerate(names) if n not in fixed])
        yield from inner.moments(fixed)
        self.live = inner.live
        none = {application.operands[n] for n in taken}
        for n, result in enumerate(application.results):
            way = reshards.exit[n]
            if n in lent and result in ends:
                none.add(result)
            else:
                yield from self._keep(result, way, n not in lent)
        return none

    def _branches(self, number: int) -> Iterator[Held]:
        """What each of several branches holds; all come to the same in the end."""
        plan, application, before = self.plan, self.plan.graph.applications[number], self.live
        for branch, ways in zip(plan.regions[number], plan.branch_reshards[number]):
            inner = _Walk(branch, before, ())
            yield from inner.moments()
            self.live = inner.live
            for result, way in zip(application.results, ways):
                yield from self._keep(result, way)

    def _keep(self, what: str, way: Reshard, gone: bool = True) -> Iterator[Held]:
        """A value under another sharding; what it was is gone then, or not."""
        if gone and not way.steps:
            return
        yield self.held(what, settled(way, gone))
        if gone:
            self.add(sizes_of(way.src, way.shape, way.itemsize), -1)
        self.add(sizes_of(way.dst, way.shape, way.itemsize))

    def end(self, names: Iterable[str]) -> None:
        """Hold some values no longer, unless they are others'."""
        for name in names:
            if name not in self.lent:
                self.add(self.bytes(name, self.plan.specs[name]), -1)

    def held(self, what: str, more: Sequence[int] | None = None) -> Held:
        """What is held now, and more."""
        return Held(what, tuple(map(add, self.live, more) if more else self.live))

    def add(self, sizes: Sequence[int], sign: int = 1) -> None:
        """Hold more, or less."""
        self.live = [live + sign * size for live, size in zip(self.live, sizes)]

    def bytes(self, name: str, spec: ShardingSpec) -> Sequence[int]:
        """What each cell holds of a value that lies so."""
        return sizes_of(spec, self.plan.graph.values[name].shape, self.plan.itemsize(name))


def brought(delivery: Delivery, placed: Placed, place: int) -> tuple[list[int], list[int]]:
    """What cells hold beyond what they had for one operand: on the way at most, and in the end."""
    return along(_delivered(delivery, placed, place), placed.mesh.size)


def along(steps: Iterable[Made], count: int) -> tuple[list[int], list[int]]:
    """What so many cells hold beyond the source of some steps: at most, and in the end."""
    most, beside = _along(steps, count)
    return most, [size or 0 for size in beside]


def settled(way: Reshard, gone: bool = True, made: Sequence[Made] | None = None) -> list[int]:
    """The most that cells hold beyond the source, until a value lies in arrays of its own.

    A view is copied, unless it is a view of all that is left: the source is gone, or not. What
    the steps make may be given, where it is known.
    """
    if gone and not way.steps:
        return [0] * way.dst.mesh.size
    source, final = (sizes_of(spec, way.shape, way.itemsize) for spec in (way.src, way.dst))
    steps = [step.made for step in way.steps] if made is None else made
    most, beside = _along(steps, len(final))
    copies = [
        size if size < (had if last is None else last) or (last is None and not gone) else 0
        for size, had, last in zip(final, source, beside)
    ]
    return [max(top, (last or 0) + copy) for top, last, copy in zip(most, beside, copies)]


def _along(steps: Iterable[Made], count: int) -> tuple[list[int], list[int | None]]:
    """The most that cells hold on a way, and in the end what each made last, None for nothing."""
    most, beside = [0] * count, list[int | None]([None] * count)
    for made in steps:
        cells = zip(most, beside, made)
        most = [max(top, (old or 0) + (new or 0)) for top, old, new in cells]
        beside = [old if new is None else new for old, new in zip(beside, made)]
    return most, beside


def _delivered(delivery: Delivery, placed: Placed, place: int) -> Iterator[Made]:
    """What is made on the way to an application: by a reshard, a fetch, and to be hidden."""
    if delivery.reshard is not None:
        yield from (step.made for step in delivery.reshard.steps)
    if delivery.fetch is None and not any(delivery.hidden):
        return
    needs = [box.size * delivery.itemsize for box in placed.needs[place]]
    if delivery.fetch is not None:
        yield [size if got else None for size, got in zip(needs, delivery.fetch.received)]
    if any(delivery.hidden):
        yield [size if monoid else None for size, monoid in zip(needs, delivery.hidden)]


@lru_cache(maxsize=4096)
def sizes_of(spec: ShardingSpec, shape: Point, itemsize: int) -> Point:
    """The bytes of the shard of every cell, in rank order."""
    return tuple(size * itemsize for size in sizes(spec, shape))
