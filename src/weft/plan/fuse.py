"""`fuse_plan`: fuse producers with consumers that are placed alike.

Nothing moves between the two, every cell computes exactly what it reads, and nothing else reads
the value between them: so it need not be stored. Fusion takes no more memory and no more time.
Products before their sum are always fused with it: `without_products`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, Block, Signature
from weft.lang.fusion import ARROW, MAX_FUSED, join, own_names, pays, restrict, with_applications
from weft.lang.operator import Library
from weft.lang.operators.contract import LARGEST_PRODUCT, too_many_products
from weft.lang.region import arguments
from weft.layout import DimSpec
from weft.plan.delivery import deliver
from weft.plan.liveness import invariant, lives
from weft.plan.lower import lower
from weft.plan.placed import Placed, place
from weft.plan.resharding.counts import sizes_of
from weft.program import Program
from weft.space import ZRange
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.plan.plan import Plan

Where: TypeAlias = Callable[[Application, Application], bool]
"""Whether to fuse a producer with a consumer, whatever it costs."""


def fuse_plan(plan: Plan, where: Where | None = None) -> Plan:
    """Return the plan with everything fused that costs no bytes, no memory and no time.

    With `where`, exactly the pairs that it selects are fused, whatever it costs: both then compute
    where the consumer did.

    >>> from weft import Plan, ops, propagate, trace
    >>> graph = trace(
    ...     lambda x, w: ops.relu(x @ w), (8, 4), (4, 2),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{"x"}, {}]>'},
    ... )
    >>> print(fuse_plan(Plan.of(propagate(graph))))
    relu  matmul=>relu i0: {"x"}  <@m, [{"x"}, {}]>
    """
    return _Fuser(plan, [value.name for value in plan.graph.inputs], where).plan()


class _MemoryUse(NamedTuple):
    """The bytes of a cell of each class before an application, for its operands, and at most."""

    before: Sequence[int]
    delivered: Sequence[int]
    most: Sequence[int]


class _FusionPair(NamedTuple):
    """A producer and a consumer by number, and the value between them."""

    first: int
    second: int
    value: str


class _Fuser:
    """Fuses every application of a program with a producer, in program order."""

    def __init__(self, plan: Plan, owned: Collection[str], where: Where | None) -> None:
        self.given, self.owned, self.where = plan, owned, where
        graph = plan.graph
        self.applications: list[Application | None] = list(graph.applications)
        self.placed, self.library = list(plan.placed), Library(graph.operators)
        self.producers = {n: k for k, a in enumerate(graph.applications) for n in a.results}
        self.uses = Counter([*graph.outputs, *graph.outputs, *graph.shardings, *graph.shardings])
        self.uses.update(name for a in graph.applications for name in a.operands)
        self.borrowed = {value.name for value in graph.inputs} - set(owned)
        self.boxes: dict[object, tuple[ZRange, ZRange]] = {}
        self.ends = {name: n for n, names in enumerate(lives(graph).ends) for name in names}

    @cached_property
    def program(self) -> Program:
        return lower(self.given, self.owned)

    @cached_property
    def cells(self) -> list[int]:
        """The first cell of each class of cells that hold the same at all times."""
        return list(map(self.program.cells.rank, self.program.count.classes.representatives))

    @cached_property
    def profile(self) -> list[_MemoryUse]:
        """The memory of a cell of each class around every application, as fused so far."""
        count = self.program.count
        cells = [count.around(at) for at in count.classes.representatives]
        return [
            _MemoryUse([a.before for a in each], [a.brought for a in each], [a.most for a in each])
            for each in zip(*cells)
        ]

    @cached_property
    def peak(self) -> list[int]:
        """The peak of the given plan, which fusion must not exceed."""
        return list(map(max, zip(*(use.most for use in self.profile))))

    def plan(self) -> Plan:
        """Return the plan with everything fused that can be."""
        given = self.given
        for number, application in enumerate(given.graph.applications):
            operands = dict.fromkeys(application.operands)
            for name in sorted(operands, key=lambda n: -max(self._sizes(n), default=0)):
                first = self.producers.get(name)
                if first is not None and self._fuse(_FusionPair(first, number, name)):
                    break
        kept = [(n, a) for n, a in enumerate(self.applications) if a is not None]
        numbers = {number: n for n, (number, _) in enumerate(kept)}
        regions = {numbers[number]: self._regions(number) for number in given.regions}
        applications = [
            a._replace(regions=tuple(inner.graph for inner in regions[n])) if n in regions else a
            for n, (_, a) in enumerate(kept)
        ]
        if applications == list(given.graph.applications):
            return given
        graph = with_applications(given.graph, applications)
        return replace(
            given,
            graph=graph,
            specs=FrozenMap((name, given.specs[name]) for name in graph.values),
            placed=tuple(self.placed[number] for number, _ in kept),
            regions=FrozenMap(regions.items()),
        )

    def _sizes(self, name: str) -> tuple[int, ...]:
        """Return the bytes of a value on every cell."""
        plan = self.given
        return sizes_of(plan.specs[name], plan.graph.values[name].shape, plan.itemsize(name))

    def _class_sizes(self, name: str) -> list[int]:
        sizes = self._sizes(name)
        return [sizes[cell] for cell in self.cells]

    def _regions(self, number: int) -> tuple[Plan, ...]:
        """Return the fused plans of the regions of an application."""
        application, plans = self.given.graph.applications[number], self.given.regions[number]
        owned = [list[str]() for _ in plans]
        if application.operator == "while":
            body = plans[1]
            fixed = invariant(application, body.graph, body.returns)
            names = [value.name for value in arguments(application, body.graph)]
            owned[1] = [name for n, name in enumerate(names) if n not in fixed]
        return tuple(_Fuser(plan, each, self.where).plan() for plan, each in zip(plans, owned))

    def _fuse(self, pair: _FusionPair) -> bool:
        """Fuse a pair if that is possible and allowed; return whether it was."""
        producer, consumer = (
            self.applications[pair.first],
            self.given.graph.applications[pair.second],
        )
        if producer is None or self.uses[pair.value] != 1:
            return False
        lines = (self.placed[pair.first].signature, self.placed[pair.second].signature)
        is_short = producer.operator.count(ARROW) + 2 <= MAX_FUSED
        if not (is_short and (self.where(producer, consumer) if self.where else pays(*lines))):
            return False
        try:
            both, line = join(self.library, self.given.graph.values, producer, consumer, pair.value)
            placed = self._place(pair, both, line)
        except WeftError:
            return False
        if placed is None:
            return False
        extended = self._extended(pair, producer)
        if self.where is None:
            memory = self._fused_memory(pair, extended)
            is_slower = not (self._dtypes(both) <= self._dtypes(producer) & self._dtypes(consumer))
            if is_slower or any(n > most for use in memory for n, most in zip(use.most, self.peak)):
                return False
            self.profile[pair.first + 1 : pair.second + 1] = memory
        self.ends |= dict.fromkeys(extended, pair.second)
        self.applications[pair.first], self.applications[pair.second] = None, both
        self.placed[pair.second] = placed
        return True

    def _place(self, pair: _FusionPair, both: Application, line: Signature) -> Placed | None:
        """Return the placement of both; None if one was placed otherwise or something moves."""
        plan, one, two = self.given, self.placed[pair.first], self.placed[pair.second]
        at = plan.graph.applications[pair.second].operands.index(pair.value)
        cuts = {name: dim for name, dim in two.cuts.items() if name in line.sizes}
        own = own_names(self.library, both, line)
        cuts |= {into: one.cuts.get(name, DimSpec()) for name, into in own.items()}
        placed = place(plan.mesh, line, cuts)
        if self.where is not None:
            return placed if placed.results == two.results else None
        spec, width = plan.specs[pair.value], plan.itemsize(pair.value)
        delivery = deliver(plan.placed[pair.second], at, spec, width, plan.machine)
        if plan.result_reshards[pair.first][0].steps or not delivery.is_nothing:
            return None
        for box, *parts in zip(placed.boxes, one.boxes, two.boxes):
            if self._restrict(both, line, box) != tuple(parts):
                return None
        return placed if _has_same_arrays(placed, one, two, at) else None

    def _restrict(self, both: Application, line: Signature, box: ZRange) -> tuple[ZRange, ZRange]:
        """Return the boxes of the producer and of the consumer in a box of both, cached."""
        key = (both.operator, line, both.attributes, box)
        if key not in self.boxes:
            block = Block(None, line, both.attributes, box)
            self.boxes[key] = restrict(self.library, both.operator, block)
        return self.boxes[key]

    def _dtypes(self, application: Application) -> set[str]:
        """Return the dtypes that determine the rate of an application, as in `estimate`."""
        names = application.operands or application.results
        return {self.given.graph.values[name].dtype for name in names}

    def _extended(self, pair: _FusionPair, producer: Application) -> dict[str, int]:
        """Return the operands of the producer that would die before the consumer, and where."""
        names = (n for n in dict.fromkeys(producer.operands) if n not in self.borrowed)
        ends = ((name, self.ends.get(name, pair.second)) for name in names)
        return {name: end for name, end in ends if end < pair.second}

    def _fused_memory(self, pair: _FusionPair, extended: dict[str, int]) -> list[_MemoryUse]:
        """Return the memory from the producer to the consumer if they are fused.

        The value between them is not stored; the producer's operands live on, and are delivered
        together with the consumer's.
        """
        result, value = [], self._class_sizes(pair.value)
        for n in range(pair.first + 1, pair.second + 1):
            change = [-size for size in value]
            for name, end in extended.items():
                if end < n:
                    change = list(map(add, change, self._class_sizes(name)))
            before, delivered, most = self.profile[n]
            if n == pair.second:
                early = self.profile[pair.first].delivered
                delivered, most = list(map(add, delivered, early)), list(map(add, most, early))
            before, most = list(map(add, before, change)), list(map(add, most, change))
            result.append(_MemoryUse(before, delivered, most))
        return result


def _has_same_arrays(placed: Placed, one: Placed, two: Placed, at: int) -> bool:
    """Whether operands and results are sharded as before, those of the producer first."""

    def without(items: Sequence[object]) -> list[object]:
        return [item for n, item in enumerate(items) if n != at]

    return (
        placed.results == two.results
        and list(placed.needs) == [*one.needs, *without(two.needs)]
        and list(placed.operands) == [*one.operands, *without(two.operands)]
        and list(placed.partials) == [*one.partials, *without(two.partials)]
    )


# Products before their sum. `prod_of` makes a product for every point of an index space, far more
# than what it is made of or what becomes of it. Each of its consumers gets products of its own,
# fused; where that cannot be, and they would be too many to hold, the plan is refused.

PRODUCTS = "prod_of"


def without_products(plan: Plan) -> Plan:
    """Return the plan with large products fused into the reductions that consume them."""
    if not any(application.operator == PRODUCTS for application, _ in plan.graph.walk()):
        return plan
    fused, before = fuse_plan(_apart(plan), where=_are_products), plan
    while fused is not before:
        before, fused = fused, fuse_plan(_apart(fused), where=_are_products)
    for name, size in _in_full(fused):
        raise too_many_products(name, size)
    return fused


def _are_products(made: Application, user: Application) -> bool:
    """Whether an application makes products that are not reduced yet."""
    first, *rest = made.operator.split(ARROW)
    return first == PRODUCTS and not any(map(_reduces, rest))


def _reduces(operator: str) -> bool:
    return operator.partition("@")[0].endswith("_dim") or operator.startswith("reduce")


def _in_full(plan: Plan) -> Iterator[tuple[str, int]]:
    """Return the products that take too much memory, with their bytes on the fullest cell."""
    for number, application in enumerate(plan.graph.applications):
        if _are_products(application, application):
            (name,) = application.results
            (spec,), shape = plan.placed[number].results, plan.graph.values[name].shape
            size = max(sizes_of(spec, shape, plan.itemsize(name)))
            if size > LARGEST_PRODUCT:
                yield name, size
        for inner in plan.regions.get(number, ()):
            yield from _in_full(inner)


def _apart(plan: Plan) -> Plan:
    """Return the plan in which every consumer of products computes its own."""
    graph = plan.graph
    uses = Counter(name for a in graph.applications for name in a.operands)
    kept = {*graph.outputs, *graph.shardings}
    shared = {
        name: number
        for number, application in enumerate(graph.applications)
        for name in application.results
        if _are_products(application, application) and uses[name] > 1 and name not in kept
    }
    if not shared:
        return plan
    names, specs = set(graph.all_values), dict(plan.specs)
    rows: list[tuple[Application, Placed]] = []
    regions = {}
    for number, application in enumerate(graph.applications):
        new = dict[str, str]()
        for name in dict.fromkeys(application.operands):
            if name in shared and uses[name] > application.operands.count(name) == 1:
                first, placed = graph.applications[shared[name]], plan.placed[shared[name]]
                new[name] = _free(name, names)
                uses[name] -= 1
                (specs[new[name]],) = placed.results
                rows.append((first._replace(results=(new[name],)), placed))
        if number in plan.regions:
            regions[len(rows)] = plan.regions[number]
        operands = tuple(new.get(name, name) for name in application.operands)
        rows.append((application._replace(operands=operands), plan.placed[number]))
    made = with_applications(graph, [application for application, _ in rows])
    return replace(
        plan,
        graph=made,
        specs=FrozenMap((name, specs[name]) for name in made.values),
        placed=tuple(placed for _, placed in rows),
        regions=FrozenMap(regions.items()),
    )


def _free(name: str, names: set[str]) -> str:
    """Return an unused name that resembles another."""
    number = 1
    while f"{name}_{number}" in names:
        number += 1
    names.add(f"{name}_{number}")
    return f"{name}_{number}"
