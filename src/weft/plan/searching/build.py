"""Build the `Problem` of a search: the options of every decision, and their costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar

from weft.errors import WeftError
from weft.lang import Application, Graph
from weft.lang.dtype import itemsize
from weft.lang.fusion import is_uneven
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.balance import balanced_points, balanced_work
from weft.plan.estimate import placed_compute, priced
from weft.plan.liveness import lives
from weft.plan.machine import Machine
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.propagation.propagate import propagate_like_shardy
from weft.plan.propagation.shardings import Meshes
from weft.plan.resharding.reshard import check_machine
from weft.plan.searching.choices import (
    MAX_CUTS,
    Breadth,
    CutAt,
    PartialGroup,
    Symmetry,
    compatible_shardings,
    omits_cuts,
    placements,
    shardings,
    without_partial,
)
from weft.plan.searching.prices import (
    MoveCost,
    MovePrices,
    OptionCost,
    StorageOptions,
    StoragePrices,
)
from weft.plan.searching.problem import (
    ApplicationStep,
    Decision,
    Option,
    PairCost,
    Problem,
    ResultOptions,
    ReturnMemory,
    Table,
    ValueOptions,
)
from weft.plan.stored import lies
from weft.space import ZRange
from weft.values import FrozenMap, Point

T = TypeVar("T")

LARGE = 200
"""With more applications, symmetric options are left out, and reshards are priced by form."""

MAX_NAMES = 4
"""The most names that are listed in a reason."""


def on_mesh(graph: Graph, mesh: DeviceMesh) -> Graph:
    """Return the graph with a mesh as the only one that has axes."""
    meshes = list(map(DeviceMesh.parse, graph.meshes))
    for other in meshes:
        if other.shape and other != mesh:
            raise WeftError(f"the graph is annotated on {other}, and the search is for {mesh}")
    if mesh in meshes:
        return graph
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [*graph.meshes, str(mesh)],
        graph.shardings,
        graph.output_shardings,
        graph.operators,
        {name: value.dtype for name, value in graph.values.items()},
        graph.parameters,
    )


def build_problem(
    graph: Graph,
    mesh: DeviceMesh,
    machine: Machine | None,
    thorough: bool = False,
    storage: StorageOptions | None = None,
    with_memory: bool = True,
    prices: MovePrices | None = None,
) -> Problem:
    """Return the decisions for a graph on a mesh, each with its options and costs.

    Without a machine, arrays are resharded with the fewest bytes. A thorough problem of a graph
    that is not large has more options: operands that stay partial, what open dimensions of outputs
    may become and, for two axes, any order of them. Without `with_memory`, and in a thorough
    problem, the memory of moves is not counted.

    >>> from weft import trace
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> graph = trace(lambda x, w: x @ w, (8, 4), (4, 2))
    >>> [len(d.options) for d in build_problem(graph, mesh, Machine()).decisions]
    [3, 3, 4, 3]
    """
    check_machine(machine or Machine(), [mesh])
    return ProblemBuilder(
        graph, mesh, machine, thorough, storage, with_memory, prices=prices
    ).problem()


class ProblemBuilder:
    """Builds the decisions of a graph in program order; equal options and tables are shared."""

    def __init__(
        self,
        graph: Graph,
        mesh: DeviceMesh,
        machine: Machine | None,
        thorough: bool = False,
        storage: StorageOptions | None = None,
        with_memory: bool = True,
        max_cuts: int = MAX_CUTS,
        base: Plan | None = None,
        prices: MovePrices | None = None,
    ) -> None:
        graph = on_mesh(graph, mesh)
        self.graph, self.mesh, self.machine = graph, mesh, machine or Machine()
        self.max_cuts = max_cuts
        self.base = base or Plan.of(propagate_like_shardy(graph), machine)
        self.storage = StoragePrices(graph, self.machine, storage or {})
        self.meshes = Meshes(graph)
        self.symmetry = Symmetry(graph, mesh, self.machine)
        self.is_large = len(graph.applications) > LARGE
        self.thorough = thorough and not self.is_large
        self.decisions: list[Decision] = []
        self.pairs: list[PairCost] = []
        self.values: dict[str, ValueOptions] = {}
        self.tables: dict[object, Table] = {}
        self.placed: dict[object, tuple[Placed, ...]] = {}
        self.sizes: dict[object, tuple[Point, ...]] = {}
        self.compute_costs: dict[object, tuple[OptionCost, ...]] = {}
        self.interned: dict[object, Any] = {}
        with_memory = with_memory and not self.thorough
        by_cell = with_memory and (not self.is_large or self.machine.capacities(mesh) is not None)
        self.prices = prices or MovePrices(machine, mesh, self.symmetry.kinds, with_memory, by_cell)

    def work(self) -> int:
        """Return an upper bound on the pairs of options to price, and the boxes to compute.

        Applications of one signature are priced together, and counted once; arrays in uneven blocks
        count more, as each of their reshards is priced by itself.
        """
        graph, axes = self.graph, sum(size > 1 for size in self.mesh.shape)
        cells = self.mesh.size

        def ways(dims: int, more: int) -> int:
            while dims and (dims + 1) ** axes > self.max_cuts:
                dims -= 1
            count: int = (dims + 1 + more) ** axes
            return count

        seen: set[object] = set()
        total = 0
        for number, (app, line) in enumerate(zip(graph.applications, graph.signatures)):
            if app.regions or not app.results:
                continue
            groups = len(self.partial_groups(number)) if self.thorough else 0
            dims = sum(size > 1 and name not in line.fixed for name, size in line.sizes.items())
            placed = ways(dims, groups)
            for slot, name in enumerate((*app.operands, *app.results)):
                value = graph.values[name]
                sharding = number if name in graph.shardings else self._stays(name)
                key = (line, groups, slot, sharding)
                if key not in seen:
                    seen.add(key)
                    parts = bool(self.thorough and self.monoids[name])
                    uneven = any(size % cells and cells % size for size in value.shape if size)
                    total += placed * ways(len(value.shape), parts) * (1 + 3 * uneven)
            total += placed * cells
        return total

    def problem(self) -> Problem:
        """Return the decisions, each with its options and costs."""
        graph, ends = self.graph, lives(self.graph).ends
        for value in graph.inputs:
            self._add_value(value.name, self._specs(value.name, None))
        steps = [self._add_step(number, ends[number]) for number in range(len(graph.applications))]
        return_specs = {
            place: tuple(
                self._return_spec(place, spec) for spec in self.values[graph.outputs[place]].specs
            )
            for place in graph.output_shardings
        }
        memory = {
            place: self._return_memory(place, self.values[graph.outputs[place]].specs, returned)
            for place, returned in return_specs.items()
        }
        return Problem(
            graph,
            self.mesh,
            self.machine,
            self.base,
            tuple(self.decisions),
            tuple(self.pairs),
            FrozenMap(self.values.items()),
            tuple(steps),
            FrozenMap(memory.items()),
            FrozenMap(return_specs.items()),
            lives(graph).unused,
        )

    # -- options

    def _placements(self, number: int) -> tuple[Placed, ...]:
        application, base = self.graph.applications[number], self._base_placed(number)
        if application.regions or not application.results:
            assert base is not None
            return self._intern((base,))
        order = self.symmetry.order_of_application(number) if self.is_large else None
        groups = self.partial_groups(number) if self.thorough else ()
        key = (self.graph.signatures[number], order, self._breadth, groups, base)
        if key not in self.placed:
            self.placed[key] = self._intern(_with(placements(self.mesh, *key[:-1]), base))
        return self.placed[key]

    def _base_number(self, number: int) -> int:
        """Return the number of an application in the base plan; -1 if it is not in it."""
        return number

    def _base_placed(self, number: int) -> Placed | None:
        at = self._base_number(number)
        return self.base.placed[at] if at >= 0 else None

    def _specs(
        self, name: str, placed: Sequence[Placed] | None, place: int = 0
    ) -> tuple[ShardingSpec, ...]:
        """Return the shardings of a value: all for an input, for a result those that are used."""
        base, shape = self.base.specs.get(name), self.graph.values[name].shape
        if name in self._fixed:
            assert base is not None
            return self._intern((base,))
        order = self.symmetry.order_of_value(name) if self.is_large else None
        every = shardings(self.mesh, shape, order, self._breadth)
        text = self.graph.shardings.get(name)
        if text is not None:
            written = self.meshes.parse(self.graph.values[name], text)
            return self._intern(_with(compatible_shardings(written, every, self.mesh), base))
        if placed is None:
            return self._intern(_with(every, base))
        results = [one.results[place] for one in placed]
        first = () if base is None else (base,)
        specs = dict.fromkeys([*first, *map(without_partial, results)])
        if self.thorough and name not in self.graph.outputs:
            specs |= dict.fromkeys(results)
        for number, slot in self._readers[name]:
            for reader in self._placements(number):
                operand = reader.operands[slot]
                if operand is not None:
                    specs.setdefault(without_partial(operand))
        if not self.is_large:
            specs |= dict.fromkeys(every)
        return self._intern(tuple(specs))

    def _intern(self, options: tuple[T, ...]) -> tuple[T, ...]:
        """Return the first tuple that equals this one, so that tuples compare by identity."""
        first: tuple[T, ...] = self.interned.setdefault(options, options)
        return first

    @cached_property
    def _readers(self) -> dict[str, list[tuple[int, int]]]:
        """For every value the applications that read it, and as which operand."""
        readers: dict[str, list[tuple[int, int]]] = {name: [] for name in self.graph.values}
        for number, application in enumerate(self.graph.applications):
            if application.results:
                for slot, name in enumerate(application.operands):
                    readers[name].append((number, slot))
        return readers

    @cached_property
    def _fixed(self) -> set[str]:
        """The values that keep the sharding of propagation: those of regions and groups."""
        return {
            name
            for application in self.graph.applications
            if application.regions or application.operator == "sharding_group"
            for name in (*application.operands, *application.results)
        }

    @cached_property
    def _breadth(self) -> Breadth:
        """The options that are enumerated; cells are left idle only if an annotation does so."""
        usual, graph = Breadth(max_cuts=self.max_cuts, cut_points=self._cut_points), self.graph
        if not self.thorough or sum(size > 1 for size in self.mesh.shape) > 2:
            return usual
        written = [
            *graph.shardings.items(),
            *((graph.outputs[place], text) for place, text in graph.output_shardings.items()),
        ]
        values = [(graph.values[name], text) for name, text in written]
        idle = any(
            count > size
            for value, text in values
            for count, size in zip(self.meshes.parse(value, text).grid, value.shape)
        )
        return usual._replace(any_order=True, idle_cells=idle)

    @cached_property
    def _cut_points(self) -> tuple[CutAt, ...]:
        """The points at which dimensions may be cut: those of the base plan, and balanced ones."""
        specs = self.base.specs
        arrays = [(specs[v.name], v.shape) for v in self.graph.values.values() if v.name in specs]
        arrays += [(p.index, tuple(p.signature.sizes.values())) for p in self.base.placed]
        known = dict.fromkeys(
            CutAt(dim.axes, size, dim.cut_points)
            for spec, shape in arrays
            if spec.cut_points is not None
            for dim, size in zip(spec.dim_specs, shape)
            if dim.cut_points is not None
        )
        names = [axis for axis in self.mesh.axis_names if self.mesh.axis_size(axis) > 1]
        chosen = [c for n in range(1, len(names) + 1) for c in combinations(names, n)]
        if self.machine.cells:
            shapes = [value.shape for value in self.graph.values.values()]
            shapes += [tuple(line.sizes.values()) for line in self.graph.signatures]
            sizes = {size for shape in shapes for size in shape if size > 1}
            known |= dict.fromkeys(
                CutAt(axes, size, points)
                for axes in chosen
                for size in sorted(sizes)
                for points in balanced_points(self.mesh, self.machine, axes, size)
            )
        for number, application in enumerate(self.graph.applications):
            if is_uneven(self.graph.operators, application.operator):
                known |= dict.fromkeys(self._even_work(number, chosen))
        return tuple(known)

    def _even_work(self, number: int, chosen: Sequence[tuple[Axis, ...]]) -> Iterator[CutAt]:
        """Yield where an application may be cut whose sub-problems differ in their work."""
        application, line = self.graph.applications[number], self.graph.signatures[number]
        operator, box = self.graph.operators.find(application.operator), line.space
        for dim, (name, size) in enumerate(line.sizes.items()):
            if name in line.fixed:
                continue

            def work(low: int, high: int, dim: int = dim) -> int:
                start = (*box.start[:dim], low, *box.start[dim + 1 :])
                stop = (*box.stop[:dim], high, *box.stop[dim + 1 :])
                return operator.count_flops(line, ZRange(start, stop), application.attributes)

            for axes in chosen:
                points = balanced_work(self.mesh, self.machine, axes, size, work)
                if points is not None:
                    yield CutAt(axes, size, points)

    @cached_property
    def _uses(self) -> Counter[str]:
        uses = Counter(self.graph.outputs)
        for application in self.graph.applications:
            uses.update(application.operands)
        return uses

    def _stays(self, name: str) -> bool:
        """Whether a result keeps the sharding in which it is computed."""
        kept = {*self.graph.outputs, *self.graph.shardings, *self._fixed}
        if self.thorough and self.monoids[name]:
            return False  # it may be best to combine its parts first
        return self._uses[name] <= 1 and name not in kept

    # -- partial values

    @cached_property
    def monoids(self) -> Mapping[str, frozenset[str]]:
        """For every value the monoids by which it may be partial.

        Annotated values, outputs and values of fixed sharding are partial only as in the base plan.
        """
        base, monoids = self.base.specs, dict[str, frozenset[str]]()
        fixed = {*self._fixed, *self.graph.shardings, *self.graph.outputs}
        for value in self.graph.inputs:
            monoids[value.name] = frozenset(base[value.name].partial.values())
        for number, application in enumerate(self.graph.applications):
            signature = self.graph.signatures[number]
            possible = {
                signature.notation.reduced[name]
                for name in signature.reduced
                if name not in signature.fixed and signature.sizes[name] > 1
            }
            possible |= {monoid for monoid, _ in self._partial_groups(number, monoids)}
            for name in application.results:
                written = frozenset(base[name].partial.values())
                monoids[name] = written if name in fixed else frozenset(possible)
        return monoids

    def partial_groups(self, number: int) -> tuple[PartialGroup, ...]:
        """Return the groups of operands of an application that may be partial together."""
        return self._partial_groups(number, self.monoids)

    def _partial_groups(
        self, number: int, monoids: Mapping[str, frozenset[str]]
    ) -> tuple[PartialGroup, ...]:
        graph, application = self.graph, self.graph.applications[number]
        if application.regions or not application.results:
            return ()
        operator = graph.operators.find(application.operator)
        dtypes = [graph.values[name].dtype for name in application.operands]
        result_dtypes = [graph.values[name].dtype for name in application.results]
        groups: dict[PartialGroup, None] = {}
        for slot, name in enumerate(application.operands):
            for monoid in sorted(monoids[name]):
                for group in operator.groups(
                    monoid, graph.signatures[number], dtypes, result_dtypes
                ):
                    every = range(len(application.operands)) if group is ... else group
                    if slot in every:
                        groups[monoid, tuple(every)] = None
        return tuple(groups)

    # -- decisions and the costs between them

    def _decide(
        self,
        subject: str | int,
        options: tuple[Option, ...],
        costs: Iterable[OptionCost],
        kind: object,
    ) -> int:
        self.decisions.append(Decision(subject, options, tuple(costs), (kind, id(options))))
        return len(self.decisions) - 1

    def _add_value(self, name: str, specs: tuple[ShardingSpec, ...]) -> int:
        """Add the decision for the sharding of a value."""
        costs, value = self._value_costs(name, specs), self.graph.values[name]
        decision = self._decide(name, specs, costs, (value.shape, value.dtype, tuple(costs)))
        self.values[name] = ValueOptions(decision, specs, self._sizes(name, specs))
        return decision

    def _value_costs(self, name: str, specs: Sequence[ShardingSpec]) -> list[OptionCost]:
        """Return the cost of each sharding of a value: to read or write it, and to return it."""
        costs = [self._storage_cost(name, spec) for spec in specs]
        for place in self.graph.output_shardings:
            if self.graph.outputs[place] == name:
                moves = [self._move(name, spec, self._return_spec(place, spec)) for spec in specs]
                costs = [
                    OptionCost(0.0, old.communicate + m.seconds, old.received + m.received)
                    for old, m in zip(costs, moves)
                ]
        return costs

    def _add_step(self, number: int, ends: Sequence[str]) -> ApplicationStep:
        """Add the decision for the placement of an application, and those of its results."""
        application, placed = self.graph.applications[number], self._placements(number)
        kind = self._kind(number)
        key = (kind, id(placed))
        if key not in self.compute_costs:
            self.compute_costs[key] = self._compute_costs(number, placed)
        decision = self._decide(number, placed, self.compute_costs[key], kind)
        deliveries = (
            tuple(self._deliveries(number, decision, placed)) if application.results else ()
        )
        results = tuple(
            self._add_result(name, place, decision, placed)
            for place, name in enumerate(application.results)
        )
        return ApplicationStep(decision, deliveries, results, tuple(ends))

    def _kind(self, number: int) -> object:
        application = self.graph.applications[number]
        dtypes = [self.graph.values[n].dtype for n in (*application.operands, *application.results)]
        attributes = repr(sorted(application.attributes.items())) if application.attributes else ""
        inside = self._region_cost(number) if application.regions else None
        line, storage = self.graph.signatures[number], self.storage.kind(number)
        return (application.operator, line, tuple(dtypes), attributes, inside, storage)

    def _compute_costs(self, number: int, placed: Sequence[Placed]) -> tuple[OptionCost, ...]:
        application = self.graph.applications[number]
        if application.regions or not application.results:
            return (self._region_cost(number),)
        return tuple(
            self.storage.read(number, one)._replace(
                compute=placed_compute(self.graph, number, one, self.machine)[0]
            )
            for one in placed
        )

    def _region_cost(self, number: int) -> OptionCost:
        """Return the cost of an application in the base plan, with all in its regions."""
        made = self.base.made_by(self._base_number(number))
        items = list(priced(self.base.program, made, self.machine))
        return OptionCost(
            sum(item.seconds for item in items if not item.received),
            sum(item.seconds for item in items if item.received),
            sum(item.received for item in items),
        )

    def _deliveries(
        self, number: int, decision: int, placed: tuple[Placed, ...]
    ) -> Iterator[PairCost]:
        application = self.graph.applications[number]
        for slot, name in enumerate(application.operands if not application.regions else ()):
            value = self.values[name]
            table = self._table(application, slot, value.specs, placed)
            yield self._pair(value.decision, decision, table)

    def _table(
        self,
        application: Application,
        slot: int,
        specs: tuple[ShardingSpec, ...],
        placed: tuple[Placed, ...],
    ) -> Table:
        """Return the cost of an operand, cached."""
        name = application.operands[slot]
        earlier = tuple(n for n in range(slot) if application.operands[n] == name)
        width, is_held = itemsize(self.graph.values[name].dtype), self._is_held(name)
        is_stored = name in self.storage.inputs
        key = (id(specs), id(placed), slot, earlier, width, is_stored, is_held)
        if key not in self.tables:
            has = is_held if is_stored else None
            self.tables[key] = self._delivery_table(specs, placed, slot, earlier, width, has)
        return self.tables[key]

    def _delivery_table(
        self,
        specs: Sequence[ShardingSpec],
        placed: Sequence[Placed],
        slot: int,
        earlier: Sequence[int],
        width: int,
        has: bool | None,
    ) -> Table:
        """Return the cost of an operand from every sharding to every placement.

        Equal rows and columns are computed once. A stored input is read where it is needed and does
        not move; `has` says whether cells have its shards as well, and is None if it is not stored.
        """
        kinds: dict[object, int] = {}
        columns = []
        for one in placed:
            kind = [(one.operands[n] or one.needs[n], one.partials[n]) for n in (slot, *earlier)]
            columns.append(kinds.setdefault(tuple(kind), len(kinds)))
        firsts = [placed[columns.index(number)] for number in range(len(kinds))]
        rows: dict[ShardingSpec, list[MoveCost]] = {}
        for spec in specs:
            if spec not in rows:
                given = slot, spec, width, earlier
                moves = [
                    self.prices.deliver(one, *given)
                    if has is None
                    else self.prices.read(one, *given, is_held=has)
                    for one in firsts
                ]
                rows[spec] = [moves[column] for column in columns]
        return [rows[spec] for spec in specs]

    def _add_result(
        self, name: str, place: int, decision: int, placed: tuple[Placed, ...]
    ) -> ResultOptions:
        specs = self._intern(tuple(one.results[place] for one in placed))
        sizes = self._sizes(name, specs)
        if self._stays(name):
            self.values[name] = ValueOptions(decision, specs, sizes)
            return ResultOptions(name, sizes, None)
        keeper = self._add_value(name, self._specs(name, placed, place))
        table = self._reshard_table(name, specs, self.values[name].specs)
        return ResultOptions(name, sizes, self._pair(decision, keeper, table))

    def _reshard_table(
        self, name: str, specs: tuple[ShardingSpec, ...], wanted: tuple[ShardingSpec, ...]
    ) -> Table:
        """Return the cost of every reshard of a result, cached."""
        value = self.graph.values[name]
        key = (id(specs), id(wanted), value.shape, value.dtype)
        if key not in self.tables:
            array = value.shape, itemsize(value.dtype)
            rows = {one: self.prices.reshards(one, wanted, *array) for one in dict.fromkeys(specs)}
            self.tables[key] = [rows[one] for one in specs]
        return self.tables[key]

    def _pair(self, first: int, second: int, table: Table) -> PairCost:
        self.pairs.append(PairCost(first, second, table))
        return self.pairs[-1]

    def _move(self, name: str, src: ShardingSpec, dst: ShardingSpec) -> MoveCost:
        value = self.graph.values[name]
        return self.prices.reshard(src, dst, value.shape, itemsize(value.dtype))

    # -- outputs and memory

    def _return_spec(self, place: int, spec: ShardingSpec) -> ShardingSpec:
        """Return the sharding of an annotated output when it is returned: the nearest to `spec`."""
        name = self.graph.outputs[place]

        def cost(wanted: ShardingSpec) -> tuple[int, float]:
            move = self._move(name, spec, wanted)
            return move.received, move.seconds

        wanted, value = self.base.outputs[place], self.graph.values[name]
        if not self.thorough:
            return wanted
        written = self.meshes.parse(value, self.graph.output_shardings[place])
        every = shardings(self.mesh, value.shape, None, self._breadth)
        return min(_with(compatible_shardings(written, every, self.mesh), wanted), key=cost)

    def _storage_cost(self, name: str, spec: ShardingSpec) -> OptionCost:
        """Return the cost of storage for a value; an output is written as it is returned."""
        if name not in self.storage.outputs:
            return self.storage.read_whole(name, spec)
        place = self.graph.outputs.index(name)
        is_annotated = place in self.graph.output_shardings
        return self.storage.write(name, self._return_spec(place, spec) if is_annotated else spec)

    def _return_memory(
        self, place: int, specs: Sequence[ShardingSpec], returned: Sequence[ShardingSpec]
    ) -> tuple[ReturnMemory, ...]:
        name = self.graph.outputs[place]
        array = self.graph.values[name].shape, itemsize(self.graph.values[name].dtype)
        return tuple(
            ReturnMemory(
                *self.prices.return_peaks(spec, wanted, *array), self.prices.size(wanted, *array)
            )
            for spec, wanted in zip(specs, returned)
        )

    def _is_held(self, name: str) -> bool:
        """Return whether cells have the shards of a value: not of an input that is only read."""
        return name not in self.storage.inputs or lies(self.graph, name)

    def _sizes(self, name: str, specs: tuple[ShardingSpec, ...]) -> tuple[Point, ...]:
        value, is_held = self.graph.values[name], self._is_held(name)
        key = (id(specs), value.shape, value.dtype, is_held)
        if key not in self.sizes:
            array = value.shape, itemsize(value.dtype)
            self.sizes[key] = tuple(
                self.prices.size(spec, *array) if is_held else self.prices.none for spec in specs
            )
        return self.sizes[key]


def _with(options: tuple[T, ...], more: T | None) -> tuple[T, ...]:
    return options if more is None or more in options else (*options, more)


def omitted_options(graph: Graph, mesh: DeviceMesh, max_cuts: int = MAX_CUTS) -> list[str]:
    """Return why the options for a graph are not its whole search space, as docs/search.md has it.

    `max_cuts` is the most ways to cut an index space that were enumerated.

    >>> from weft import trace
    >>> graph = trace(lambda x, y: x + y, (8, 8), (8, 8))
    >>> omitted_options(graph, DeviceMesh("m", (2,), ("x",)))
    []
    """
    reasons = []
    bodies = [app.results[0] for app in graph.applications if app.regions and app.results]
    if bodies:
        reasons.append(
            "bodies of loops and branches, and the values that they read and return, were placed "
            f"by propagation and not searched: {_listed(bodies)}"
        )
    groups = [app.operands[0] for app in graph.applications if app.operator == "sharding_group"]
    if groups:
        reasons.append(f"values in sharding groups were placed by propagation: {_listed(groups)}")
    if len(graph.applications) > LARGE:
        reasons.append(
            f"the graph has more than {LARGE} applications: equal layers are decided together, and "
            "placements that differ by interchangeable axes or leave many cells idle are left out"
        )
    sizes = {
        v.name: {str(n): size for n, size in enumerate(v.shape)} for v in graph.values.values()
    }
    uncut = [name for name in sizes if omits_cuts(mesh, sizes[name], max_cuts)]
    for app, line in zip(graph.applications, graph.signatures):
        free = {name: size for name, size in line.sizes.items() if name not in line.fixed}
        if app.results and not app.regions and omits_cuts(mesh, free, max_cuts):
            uncut.append(app.results[0])
    if uncut:
        names = _listed(dict.fromkeys(uncut))
        reasons.append(f"small dimensions were not cut, as there are too many ways: {names}")
    return reasons


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - MAX_NAMES} more" if len(every) > MAX_NAMES else ""
    return ", ".join(every[:MAX_NAMES]) + more
