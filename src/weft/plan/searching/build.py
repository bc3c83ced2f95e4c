"""`pose`: from a graph, a mesh and a machine to the decisions and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.estimate import placed_compute, priced
from weft.plan.liveness import lives
from weft.plan.machine import Machine
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.propagation.propagate import propagate_like_shardy
from weft.plan.propagation.shardings import Meshes
from weft.plan.resharding.reshard import check_machine
from weft.plan.searching.choices import MOST, Breadth, agreeing, placements, shardings, whole
from weft.plan.searching.meshed import on_mesh
from weft.plan.searching.partials import Partials
from weft.plan.searching.prices import Move, Prices
from weft.plan.searching.problem import (
    Choice,
    Decision,
    Kept,
    Link,
    Made,
    Moment,
    Price,
    Problem,
    Return,
    Table,
)
from weft.plan.searching.stored import Stored, Wanted
from weft.plan.searching.symmetry import Symmetry
from weft.values import FrozenMap, Point

T = TypeVar("T")

LARGE = 200
"""With more applications than this, twins are left out, and reshards are priced by pattern."""


def pose(
    graph: Graph,
    mesh: DeviceMesh,
    machine: Machine | None,
    thorough: bool = False,
    storage: Wanted | None = None,
    has_room: bool = True,
) -> Problem:
    """The decisions for a graph on a mesh, each with its choices and prices.

    Without a machine arrays go the ways that move the fewest bytes. A thorough problem of a graph
    that is not large has more to choose from: operands that stay partial, what open dimensions of
    outputs may become and, for two axes, any order of them. With `has_room=False`, and in a
    thorough problem, memory on the way is not counted.

    >>> from weft import trace
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> graph = trace(lambda x, w: x @ w, (8, 4), (4, 2))
    >>> [len(d.choices) for d in pose(graph, mesh, Machine()).decisions]
    [3, 3, 4, 3]
    """
    check_machine(machine or Machine(), [mesh])
    return Builder(graph, mesh, machine, thorough, storage or {}, has_room).problem()


class Builder:
    """Makes the decisions for a graph on a mesh."""

    def __init__(
        self,
        graph: Graph,
        mesh: DeviceMesh,
        machine: Machine | None,
        thorough: bool = False,
        storage: Wanted | None = None,
        has_room: bool = True,
        most: int = MOST,
    ) -> None:
        graph, storage = on_mesh(graph, mesh), storage or {}
        self.graph, self.mesh, self.machine = graph, mesh, machine or Machine()
        self.usual = Breadth(most=most)
        self.base = Plan.of(propagate_like_shardy(graph), machine)
        self.stored = Stored(graph, self.machine, storage)
        self.meshes = Meshes(graph)
        self.symmetry = Symmetry(graph, mesh, self.machine)
        self.is_large = len(graph.applications) > LARGE
        self.thorough = thorough and not self.is_large
        self.decisions: list[Decision] = []
        self.links: list[Link] = []
        self.kept: dict[str, Kept] = {}
        self.tables: dict[object, Table] = {}
        self.ways: dict[object, tuple[Placed, ...]] = {}
        self.sizes: dict[object, tuple[Point, ...]] = {}
        self.computed: dict[object, tuple[Price, ...]] = {}
        self.lists: dict[object, Any] = {}
        has_room = has_room and not self.thorough
        kinds = self.symmetry.kinds if self.is_large or not has_room else None
        self.prices = Prices(machine, mesh, kinds, has_room)

    def work(self) -> int:
        """Return an upper bound on the pairs of choices to price, and the boxes to make.

        Applications of one signature are priced together, and counted once; arrays in uneven blocks
        count more, as each of their reshards is priced by itself.
        """
        graph, axes = self.graph, sum(size > 1 for size in self.mesh.shape)
        seen: set[object] = set()
        total = 0
        for number, (app, line) in enumerate(zip(graph.applications, graph.signatures)):
            if app.regions or not app.results:
                continue
            keeps = len(self.partials.keeps(number)) if self.thorough else 0
            dims = sum(size > 1 and name not in line.fixed for name, size in line.sizes.items())
            placed = self._ways(dims, axes, keeps)
            for slot, name in enumerate((*app.operands, *app.results)):
                value = graph.values[name]
                lies = number if name in graph.shardings else self._stays(name)
                key = (line, keeps, slot, lies)
                if key not in seen:
                    seen.add(key)
                    parts = bool(self.thorough and self.partials.monoids[name])
                    cells = self.mesh.size
                    uneven = any(size % cells and cells % size for size in value.shape if size)
                    total += placed * self._ways(len(value.shape), axes, parts) * (1 + 3 * uneven)
            total += placed * self.mesh.size
        return total

    def _ways(self, dims: int, axes: int, more: int) -> int:
        """Return at most how many ways there are to give axes to dimensions, or to keep parts."""
        while dims and (dims + 1) ** axes > self.usual.most:
            dims -= 1
        ways: int = (dims + 1 + more) ** axes
        return ways

    def problem(self) -> Problem:
        """Return the decisions, each with its choices and prices."""
        graph, ends = self.graph, lives(self.graph).ends
        for value in graph.inputs:
            self._keep(value.name, self._specs(value.name, None))
        moments = [self._moment(number, ends[number]) for number in range(len(graph.applications))]
        returned = {
            place: tuple(
                self._return(place, spec) for spec in self.kept[graph.outputs[place]].specs
            )
            for place in graph.output_shardings
        }
        wanted = {place: self._returned(place, specs) for place, specs in returned.items()}
        return Problem(
            graph,
            self.mesh,
            self.machine,
            self.base,
            tuple(self.decisions),
            tuple(self.links),
            FrozenMap(self.kept.items()),
            tuple(moments),
            FrozenMap(wanted.items()),
            FrozenMap(returned.items()),
            lives(graph).unused,
        )

    # -- what there is to choose from

    def _placements(self, number: int) -> tuple[Placed, ...]:
        application, base = self.graph.applications[number], self.base.placed[number]
        if application.regions or not application.results:
            return self._same((base,))
        alike = self.symmetry.of_application(number) if self.is_large else None
        keeps = self.partials.keeps(number) if self.thorough else ()
        key = (self.graph.signatures[number], alike, self._breadth, keeps, base)
        if key not in self.ways:
            self.ways[key] = self._same(_with(placements(self.mesh, *key[:-1]), [base]))
        return self.ways[key]

    def _specs(
        self, name: str, made: Sequence[Placed] | None, place: int = 0
    ) -> tuple[ShardingSpec, ...]:
        """The ways in which a value may be kept: an input anyhow, a result as somebody has it."""
        base, shape = self.base.specs[name], self.graph.values[name].shape
        if name in self._at_regions:
            return self._same((base,))
        alike = self.symmetry.of_value(name) if self.is_large else None
        every = shardings(self.mesh, shape, alike, self._breadth)
        written = self.graph.shardings.get(name)
        if written is not None:
            said = self.meshes.parse(self.graph.values[name], written)
            return self._same(_with(agreeing(said, every, self.mesh), [base]))
        if made is None:
            return self._same(_with(every, [base]))
        results = [placed.results[place] for placed in made]
        seen = dict.fromkeys([base, *map(whole, results)])
        if self.thorough and name not in self.graph.outputs:
            seen |= dict.fromkeys(results)
        for number, slot in self.readers[name]:
            for placed in self._placements(number):
                wanted = placed.operands[slot]
                if wanted is not None:
                    seen.setdefault(whole(wanted))
        if not self.is_large:
            seen |= dict.fromkeys(every)
        return self._same(tuple(seen))

    def _same(self, found: tuple[T, ...]) -> tuple[T, ...]:
        """Equal lists of choices are one, so that they can be told by identity."""
        same: tuple[T, ...] = self.lists.setdefault(found, found)
        return same

    @cached_property
    def readers(self) -> dict[str, list[tuple[int, int]]]:
        """For every value the applications that read it, and as which operand."""
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in self.graph.values}
        for number, application in enumerate(self.graph.applications):
            if application.results:
                for slot, name in enumerate(application.operands):
                    found[name].append((number, slot))
        return found

    @cached_property
    def _at_regions(self) -> set[str]:
        """The values that regions see, or that lie alike: they lie as propagation says."""
        return {
            name
            for application in self.graph.applications
            if application.regions or application.operator == "sharding_group"
            for name in (*application.operands, *application.results)
        }

    @cached_property
    def _breadth(self) -> Breadth:
        """Cells stay idle on purpose only where somebody wrote it."""
        if not self.thorough or sum(size > 1 for size in self.mesh.shape) > 2:
            return self.usual
        graph = self.graph
        said = [
            *((name, text) for name, text in graph.shardings.items()),
            *((graph.outputs[place], text) for place, text in graph.output_shardings.items()),
        ]
        specs = [
            (self.meshes.parse(graph.values[n], text), graph.values[n].shape) for n, text in said
        ]
        idle = any(k > n for spec, shape in specs for k, n in zip(spec.grid, shape))
        return self.usual._replace(orders=True, idle=idle)

    @cached_property
    def partials(self) -> Partials:
        """Which values may be left partial."""
        return Partials(self.graph, self.base, self._at_regions)

    @cached_property
    def _uses(self) -> Counter[str]:
        uses = Counter(self.graph.outputs)
        for application in self.graph.applications:
            uses.update(application.operands)
        return uses

    def _stays(self, name: str) -> bool:
        """Whether a result stays as it is made, for the one that reads it."""
        kept = {*self.graph.outputs, *self.graph.shardings, *self._at_regions}
        if self.thorough and self.partials.monoids[name]:
            return False  # on the way it may be best to finish it first
        return self._uses[name] <= 1 and name not in kept

    # -- decisions and what lies between them

    def _decide(
        self, what: str | int, choices: tuple[Choice, ...], prices: Iterable[Price], kind: object
    ) -> int:
        self.decisions.append(Decision(what, choices, tuple(prices), (kind, id(choices))))
        return len(self.decisions) - 1

    def _keep(self, name: str, specs: tuple[ShardingSpec, ...]) -> int:
        returned = [self._stored(name, spec) for spec in specs]
        for place in self.graph.output_shardings:
            if self.graph.outputs[place] == name:
                moves = [self._move(name, spec, self._return(place, spec)) for spec in specs]
                returned = [
                    Price(0.0, old.communicate + m.seconds, old.received + m.received)
                    for old, m in zip(returned, moves)
                ]
        value = self.graph.values[name]
        kind = (value.shape, value.dtype, tuple(returned))
        decision = self._decide(name, specs, returned, kind)
        self.kept[name] = Kept(decision, specs, self._sizes(name, specs))
        return decision

    def _moment(self, number: int, ends: Sequence[str]) -> Moment:
        application, placed = self.graph.applications[number], self._placements(number)
        kind = self._kind(number)
        key = (kind, id(placed))
        prices = self.computed.get(key) or self.computed.setdefault(
            key, self._computed(number, placed)
        )
        decision = self._decide(number, placed, prices, kind)
        brought = tuple(self._brought(number, decision, placed)) if application.results else ()
        made = tuple(
            self._made(name, place, decision, placed)
            for place, name in enumerate(application.results)
        )
        return Moment(decision, brought, made, tuple(ends))

    def _kind(self, number: int) -> object:
        application = self.graph.applications[number]
        dtypes = [self.graph.values[n].dtype for n in (*application.operands, *application.results)]
        said = repr(sorted(application.attributes.items())) if application.attributes else ""
        inside = self._within(number) if application.regions else None
        line, stored = self.graph.signatures[number], self.stored.kind(number)
        return (application.operator, line, tuple(dtypes), said, inside, stored)

    def _computed(self, number: int, placed: Sequence[Placed]) -> tuple[Price, ...]:
        application = self.graph.applications[number]
        if application.regions or not application.results:
            return (self._within(number),)
        return tuple(
            self.stored.read(number, way)._replace(
                compute=placed_compute(self.graph, number, way, self.machine)[0]
            )
            for way in placed
        )

    def _within(self, number: int) -> Price:
        """What an application takes that is placed as propagation says, with all in its regions."""
        items = list(priced(self.base.program, self.base.made_by(number), self.machine))
        return Price(
            sum(item.seconds for item in items if not item.received),
            sum(item.seconds for item in items if item.received),
            sum(item.received for item in items),
        )

    def _brought(self, number: int, decision: int, placed: tuple[Placed, ...]) -> Iterator[Link]:
        application = self.graph.applications[number]
        for slot, name in enumerate(application.operands if not application.regions else ()):
            earlier = tuple(n for n in range(slot) if application.operands[n] == name)
            kept, width = self.kept[name], itemsize(self.graph.values[name].dtype)
            stored = name in self.stored.inputs
            key = (id(kept.specs), id(placed), slot, earlier, width, stored)
            table = self._table(
                key, partial(self._bring, kept.specs, placed, slot, earlier, width, stored)
            )
            yield self._link(kept.decision, decision, table)

    def _bring(
        self,
        specs: Sequence[ShardingSpec],
        placed: Sequence[Placed],
        slot: int,
        earlier: Sequence[int],
        width: int,
        stored: bool,
    ) -> Table:
        """What every way of lying costs for every placement; equal rows and columns found once.

        What is stored is read where it is needed, and does not move; its room is as it lies.
        """
        kinds: dict[object, int] = {}
        columns = []
        for way in placed:
            kind = [(way.operands[n] or way.needs[n], way.partials[n]) for n in (slot, *earlier)]
            columns.append(kinds.setdefault(tuple(kind), len(kinds)))
        firsts = [placed[columns.index(number)] for number in range(len(kinds))]
        rows: dict[ShardingSpec, list[Move]] = {}
        for spec in specs:
            if spec not in rows:
                found = [self.prices.bring(way, slot, spec, width, earlier) for way in firsts]
                if stored:
                    found = [move._replace(seconds=0.0, received=0) for move in found]
                rows[spec] = [found[column] for column in columns]
        return [rows[spec] for spec in specs]

    def _made(self, name: str, place: int, decision: int, placed: tuple[Placed, ...]) -> Made:
        specs = self._same(tuple(way.results[place] for way in placed))
        sizes = self._sizes(name, specs)
        if self._stays(name):
            self.kept[name] = Kept(decision, specs, sizes)
            return Made(name, sizes, None)
        keeper = self._keep(name, self._specs(name, placed, place))
        wanted, value = self.kept[name].specs, self.graph.values[name]
        key = (id(specs), id(wanted), value.shape, value.dtype)
        table = self._table(key, lambda: self._settle(name, specs, wanted))
        return Made(name, sizes, self._link(decision, keeper, table))

    def _settle(
        self, name: str, specs: Sequence[ShardingSpec], wanted: Sequence[ShardingSpec]
    ) -> Table:
        """What it takes from every way a value is made to every way it is kept."""
        value = self.graph.values[name]
        array = value.shape, itemsize(value.dtype)
        rows = {made: self.prices.reshards(made, wanted, *array) for made in dict.fromkeys(specs)}
        return [rows[made] for made in specs]

    def _link(self, first: int, second: int, table: Table) -> Link:
        self.links.append(Link(first, second, table))
        return self.links[-1]

    def _move(self, name: str, src: ShardingSpec, dst: ShardingSpec) -> Move:
        value = self.graph.values[name]
        return self.prices.reshard(src, dst, value.shape, itemsize(value.dtype))

    def _return(self, place: int, spec: ShardingSpec) -> ShardingSpec:
        """How an output that someone wrote is returned from where it lies: the nearest way."""
        name = self.graph.outputs[place]

        def price(wanted: ShardingSpec) -> tuple[int, float]:
            move = self._move(name, spec, wanted)
            return move.received, move.seconds

        return min(self._returns(place), key=price)

    def _stored(self, name: str, spec: ShardingSpec) -> Price:
        """What storage takes for a value that lies so: an output is written as it is returned."""
        if name not in self.stored.outputs:
            return self.stored.lying(name, spec)
        place = self.graph.outputs.index(name)
        is_wanted = place in self.graph.output_shardings
        return self.stored.written(name, self._return(place, spec) if is_wanted else spec)

    def _returns(self, place: int) -> tuple[ShardingSpec, ...]:
        """The ways in which an output that someone wrote may be returned."""
        wanted, value = self.base.outputs[place], self.graph.values[self.graph.outputs[place]]
        if not self.thorough:
            return (wanted,)
        said = self.meshes.parse(value, self.graph.output_shardings[place])
        every = shardings(self.mesh, value.shape, None, self._breadth)
        return _with(agreeing(said, every, self.mesh), [wanted])

    def _returned(self, place: int, returned: Sequence[ShardingSpec]) -> tuple[Return, ...]:
        name = self.graph.outputs[place]
        value = self.graph.values[name]
        array = value.shape, itemsize(value.dtype)
        return tuple(
            Return(*self.prices.settled(spec, wanted, *array), self.prices.held(wanted, *array))
            for spec, wanted in zip(self.kept[name].specs, returned)
        )

    def _sizes(self, name: str, specs: tuple[ShardingSpec, ...]) -> tuple[Point, ...]:
        value = self.graph.values[name]
        key = (id(specs), value.shape, value.dtype)
        if key not in self.sizes:
            width = itemsize(value.dtype)
            self.sizes[key] = tuple(self.prices.held(spec, value.shape, width) for spec in specs)
        return self.sizes[key]

    def _table(self, key: object, make: Callable[[], Table]) -> Table:
        """A table that is made once for all that are alike."""
        if key not in self.tables:
            self.tables[key] = make()
        return self.tables[key]


def _with(found: tuple[T, ...], more: Iterable[T]) -> tuple[T, ...]:
    return found + tuple(one for one in more if one not in found)
