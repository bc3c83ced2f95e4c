"""`fuse_plan`: producers and consumers that are placed alike, as one application each.

Nothing moves between the two, every cell makes just what it reads, and what lies between is needed
nowhere else: so it need not lie anywhere. No cell holds more for it, and it takes no longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, Block, Signature
from weft.lang.fusion import ARROW, join, own_names, pays, restrict, with_applications
from weft.lang.operator import Library
from weft.lang.region import arguments
from weft.plan.liveness import invariant, lives
from weft.plan.lower import lower
from weft.plan.memory import sizes_of
from weft.plan.placed import Placed, place
from weft.program import Program
from weft.space import ZRange
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.plan.plan import Plan

LONGEST = 16
"""So many operators may become one."""

Where: TypeAlias = Callable[[Application, Application], bool]
"""Whether a producer and a consumer are to be fused, whatever it costs."""


def fuse_plan(plan: Plan, where: Where | None = None) -> Plan:
    """The plan with all fused that can be, for nothing: no bytes more, no memory, no time.

    `where` names the pairs that are fused, those alone, whatever it costs: both compute then where
    the consumer did.

    >>> from weft import Plan, ops, propagate, trace
    >>> graph = trace(
    ...     lambda x, w: ops.relu(x @ w), (8, 4), (4, 2),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{"x"}, {}]>'},
    ... )
    >>> print(fuse_plan(Plan.of(propagate(graph))))
    relu  matmul=>relu i0: {"x"}  <@m, [{"x"}, {}]>
    """
    return _Fuser(plan, [value.name for value in plan.graph.inputs], where).plan()


class Use(NamedTuple):
    """What a cell of each class holds around one application."""

    before: Sequence[int]
    brought: Sequence[int]
    """How much more while its operands are brought."""
    most: Sequence[int]


class _Pair(NamedTuple):
    """A producer and a consumer by their numbers, and the value between them."""

    first: int
    second: int
    value: str


class _Fuser:
    """Goes through a program and fuses every application with a producer, in order."""

    def __init__(self, plan: Plan, own: Collection[str], where: Where | None) -> None:
        self.given, self.own, self.where = plan, own, where
        graph = plan.graph
        self.applications: list[Application | None] = list(graph.applications)
        self.placed, self.library = list(plan.placed), Library(graph.operators)
        self.makers = {n: k for k, a in enumerate(graph.applications) for n in a.results}
        self.uses = Counter([*graph.outputs, *graph.outputs, *graph.shardings, *graph.shardings])
        self.uses.update(name for a in graph.applications for name in a.operands)
        self.lent = {value.name for value in graph.inputs} - set(own)
        self.known: dict[str, list[int]] = {}
        self.asked: tuple[_Pair | None, list[Use]] = (None, [])
        self.boxes: dict[object, tuple[ZRange, ZRange]] = {}
        self.ends = {name: n for n, names in enumerate(lives(graph).ends) for name in names}

    @cached_property
    def profile(self) -> list[Use]:
        """What a cell of each class holds around every application, as fused so far."""
        count = self._program.count
        cells = [count.around(at) for at in count.classes.representatives]
        return [
            Use([a.before for a in each], [a.brought for a in each], [a.most for a in each])
            for each in zip(*cells)
        ]

    @cached_property
    def _program(self) -> Program:
        return lower(self.given, self.own)

    @cached_property
    def cells(self) -> list[int]:
        """The first cell of each class of cells that hold the same all the time."""
        found = self._program.count.classes.representatives
        return list(map(self._program.cells.rank, found))

    def _of_cells(self, counts: Sequence[int]) -> list[int]:
        return [counts[cell] for cell in self.cells]

    @cached_property
    def peak(self) -> list[int]:
        """What the cells may hold: as much as they did."""
        return list(map(max, zip(*(use.most for use in self.profile))))

    def plan(self) -> Plan:
        """The plan with all fused that can be."""
        given = self.given
        for number, application in enumerate(given.graph.applications):
            for name in sorted(dict.fromkeys(application.operands), key=self._size):
                if name in self.makers and self._fuse(_Pair(self.makers[name], number, name)):
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

    def _size(self, name: str) -> int:
        """Large values come first."""
        return -max(self._everywhere(name), default=0)

    def _everywhere(self, name: str) -> tuple[int, ...]:
        """The bytes of a value on every cell."""
        plan = self.given
        shape = plan.graph.values[name].shape
        return sizes_of(plan.specs[name], shape, plan.itemsize(name))

    def _bytes(self, name: str) -> Sequence[int]:
        """The bytes of a value on the cells that are looked at."""
        if name not in self.known:
            self.known[name] = self._of_cells(self._everywhere(name))
        return self.known[name]

    def _regions(self, number: int) -> tuple[Plan, ...]:
        """The plans of the regions of an application, fused as well."""
        application, plans = self.given.graph.applications[number], self.given.regions[number]
        own = [list[str]() for _ in plans]
        if application.operator == "while":
            body = plans[1]
            fixed = invariant(application, body.graph, body.returns)
            names = [value.name for value in arguments(application, body.graph)]
            own[1] = [name for n, name in enumerate(names) if n not in fixed]
        return tuple(_Fuser(plan, each, self.where).plan() for plan, each in zip(plans, own))

    def _fuse(self, pair: _Pair) -> bool:
        """Fuse a pair if it can be done."""
        made, user = self.applications[pair.first], self.given.graph.applications[pair.second]
        if made is None or self.uses[pair.value] != 1 or not self._is_wanted(made, user):
            return False
        lines = (self.placed[pair.first].signature, self.placed[pair.second].signature)
        if self.where is None and not pays(*lines):
            return False
        try:
            both, line = join(self.library, self.given.graph.values, made, user, pair.value)
            placed = self._place(pair, both, line)
        except WeftError:
            return False
        if placed is None or (self.where is None and not self._is_free(pair, made, user, both)):
            return False
        self._take(pair, made)
        self.applications[pair.first], self.applications[pair.second] = None, both
        self.placed[pair.second] = placed
        return True

    def _is_wanted(self, made: Application, user: Application) -> bool:
        short = made.operator.count(ARROW) + 2 <= LONGEST
        return short and (self.where is None or self.where(made, user))

    def _place(self, pair: _Pair, both: Application, line: Signature) -> Placed | None:
        """Where both compute, if that is where each of them did, and nothing moves between."""
        plan, one, two = self.given, self.placed[pair.first], self.placed[pair.second]
        at = plan.graph.applications[pair.second].operands.index(pair.value)
        cuts = {name: two.placement[name] for name in line.sizes if name in two.placement}
        own = own_names(self.library, both, line)
        cuts |= {into: one.placement[name] for name, into in own.items()}
        placed = place(plan.mesh, line, cuts)
        if self.where is not None:
            return placed if placed.results == two.results else None
        delivery, way = plan.deliveries[pair.second][at], plan.result_reshards[pair.first][0]
        if way.steps or delivery.reshard or delivery.fetch:
            return None
        if any(delivery.slices) or any(delivery.hidden):
            return None
        for box, *parts in zip(placed.boxes, one.boxes, two.boxes):
            if self._restrict(both, line, box) != tuple(parts):
                return None
        return placed if _lies_alike(placed, one, two, at) else None

    def _restrict(self, both: Application, line: Signature, box: ZRange) -> tuple[ZRange, ZRange]:
        """The boxes of the producer and of the consumer in a box of both, found once."""
        key = (both.operator, line, both.attributes, box)
        if key not in self.boxes:
            block = Block(None, line, both.attributes, box)
            self.boxes[key] = restrict(self.library, both.operator, block)
        return self.boxes[key]

    def _is_free(
        self, pair: _Pair, made: Application, user: Application, both: Application
    ) -> bool:
        """Whether it takes no longer, and no cell holds more."""
        dtypes = self._dtypes(both)
        if not (dtypes <= self._dtypes(made) and dtypes <= self._dtypes(user)):
            return False
        found = self._uses(pair, made)
        return all(
            held <= most for use in found for held, most in zip(use.most, self.peak, strict=True)
        )

    def _dtypes(self, application: Application) -> set[str]:
        """The dtypes that say how fast an application computes: those of `estimate`."""
        names = application.operands or application.results
        return {self.given.graph.values[name].dtype for name in names}

    def _uses(self, pair: _Pair, made: Application) -> list[Use]:
        """What is held from the producer to the consumer if they are fused, found once."""
        if self.asked[0] != pair:
            self.asked = pair, self._found_uses(pair, made)
        return self.asked[1]

    def _found_uses(self, pair: _Pair, made: Application) -> list[Use]:
        """The same: what the producer makes is not there, what it reads stays, and is brought."""
        found, value = [], self._bytes(pair.value)
        longer = {name: self.ends[name] for name in self._longer(pair, made)}
        for n in range(pair.first + 1, pair.second + 1):
            change = [-size for size in value]
            for name, end in longer.items():
                if end < n:
                    change = list(map(add, change, self._bytes(name)))
            before, brought, most = self.profile[n]
            if n == pair.second:
                early = self.profile[pair.first].brought
                brought, most = list(map(add, brought, early)), list(map(add, most, early))
            found.append(Use(list(map(add, before, change)), brought, list(map(add, most, change))))
        return found

    def _longer(self, pair: _Pair, made: Application) -> list[str]:
        """What the producer reads that would be gone before the consumer."""
        names = dict.fromkeys(made.operands)
        return [
            n for n in names if n not in self.lent and self.ends.get(n, pair.second) < pair.second
        ]

    def _take(self, pair: _Pair, made: Application) -> None:
        """Note what is held, and how long values live, once a pair is fused."""
        if self.where is None:
            self.profile[pair.first + 1 : pair.second + 1] = self._uses(pair, made)
        self.ends |= dict.fromkeys(self._longer(pair, made), pair.second)


def _lies_alike(placed: Placed, one: Placed, two: Placed, at: int) -> bool:
    """Whether operands and results lie as they did, those of the producer first."""

    def without(items: Sequence[object]) -> list[object]:
        return [item for n, item in enumerate(items) if n != at]

    return (
        placed.results == two.results
        and list(placed.needs) == [*one.needs, *without(two.needs)]
        and list(placed.operands) == [*one.operands, *without(two.operands)]
        and list(placed.partials) == [*one.partials, *without(two.partials)]
    )
