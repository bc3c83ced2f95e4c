"""`walk`: a plan executed on the cells that are here; every process walks the same way.

Every value has arrays of its own, from when it is made to its last use. What is brought to an
application lies beside it until that has run. A loop has arrays of its own for the values that its
body changes; all else that regions take from outside stays what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.lang.region import arguments
from weft.plan import Plan
from weft.plan.liveness import handed, invariant, lives
from weft.plan.resharding.reshard import Reshard
from weft.runtime.cells import Cause, Cells, Shards
from weft.runtime.prepared import Prepared, prepare

Values: TypeAlias = dict[str, Shards]


def walk(plan: Plan, xp: Any, inputs: Values, cells: Cells) -> list[Shards]:
    """The shards of the outputs; the inputs lie as the plan says.

    What no later application reads is dropped, and taken from the inputs, too.
    """
    with cells.counting() as counting:
        own = set(inputs)
        walk = _Walk(plan, xp, inputs, counting, own)
        for shards in inputs.values():
            walk.hold(shards)
        return walk.outputs()


class _Walk:
    def __init__(
        self, plan: Plan, xp: Any, values: Values, cells: Cells, own: Collection[str]
    ) -> None:
        self.plan, self.xp, self.values, self.cells = plan, xp, values, cells
        self.lent = {value.name for value in plan.graph.inputs} - set(own)
        self.lives = lives(plan.graph)

    def outputs(self, skip: Collection[int] = ()) -> list[Shards]:
        """The outputs but for some, which are left as they are."""
        graph = self.plan.graph
        self._end(self.lives.unused)
        for number, application in enumerate(graph.applications):
            if application.results:
                self._settle(number, self._made(number))
            self._end(self.lives.ends[number])
        wanted = [n for n in range(len(graph.outputs)) if n not in skip]
        return [self._returned(wanted[at:]) for at in range(len(wanted))]

    def hold(self, shards: Shards) -> None:
        """Count shards."""
        if self.cells.meter is not None:
            self.cells.meter.hold(self.cells.held(self.plan.mesh, shards))

    def drop(self, shards: Shards) -> None:
        """Count shards no longer."""
        if self.cells.meter is not None:
            self.cells.meter.drop(self.cells.held(self.plan.mesh, shards))

    def _end(self, names: Collection[str]) -> None:
        for name in names:
            shards = self.values.pop(name, None)
            if shards is not None and name not in self.lent:
                self.drop(shards)

    def _made(self, number: int) -> list[Shards | None]:
        """What an application makes, as it makes it; None for what nobody needs."""
        application = self.plan.graph.applications[number]
        match application.operator, bool(application.regions):
            case _, False:
                operands = [self.values[name] for name in application.operands]
                return list(self._prepared(number).run(self.xp, operands))
            case "while", _:
                return self._loop(number)
            case "case" | "if", _:
                return self._branch(number)
        raise WeftError(f"{application.operator} runs a graph of its own, and cannot be run here")

    def _prepared(self, number: int) -> Prepared:
        plan, application = self.plan, self.plan.graph.applications[number]
        operator = plan.graph.operators.find(application.operator)
        names = [self._label(name) for name in application.operands]
        placed, deliveries = plan.placed[number], plan.deliveries[number]
        return prepare(operator, application.attributes, placed, deliveries, names, self.cells)

    def _settle(self, number: int, made: list[Shards | None]) -> None:
        """Keep what an application made as it is to lie."""
        application, graph = self.plan.graph.applications[number], self.plan.graph
        specs, ways = self.plan.placed[number].results, self.plan.result_reshards[number]
        for name, spec, way in zip(application.results, specs, ways):
            shards = made.pop(0)
            if shards is not None:
                cause = Cause(application.operator, f"{graph.values[name]} {spec}")
                self.values[name] = self._keep(shards, way, cause)

    def _returned(self, places: Sequence[int]) -> Shards:
        """The first of some outputs, as it is wanted; it is handed over with its last return."""
        names, way = self.plan.graph.outputs, self.plan.returns[places[0]]
        name = names[places[0]]
        gone = name not in self.lent and all(names[n] != name for n in places[1:])
        shards = self.values.pop(name) if gone else self.values[name]
        return self._keep(shards, way, Cause("output", self._label(name)), gone)

    def _loop(self, number: int) -> list[Shards | None]:
        """A loop: its values as they are when the condition no longer holds."""
        plan, application = self.plan, self.plan.graph.applications[number]
        condition, body = plan.regions[number]
        reshards = plan.loop_reshards[number]
        fixed = invariant(application, body.graph, body.returns)
        taken = handed(application, self.lives.ends[number], self.lent)
        carried, lent = list[Shards](), set[int]()
        for n, (name, way) in enumerate(zip(application.operands, reshards.entry)):
            shards = self.values.pop(name) if n in taken else self.values[name]
            if n in fixed and n not in taken and not way.steps:
                lent.add(n)
            else:
                shards = self._keep(shards, way, self._cause(number, n), n in taken)
            carried.append(shards)
        while self._goes_on(number, condition, carried):
            inner, own = self._inside(number, body, carried), set(range(len(carried))) - fixed
            names = [value.name for value in arguments(application, body.graph)]
            walk = _Walk(body, self.xp, inner, self.cells, {names[n] for n in own})
            del inner
            carried = [s if n in fixed else () for n, s in enumerate(carried)]
            for n, shards in zip(sorted(own), walk.outputs(fixed)):
                carried[n] = shards
        made: list[Shards | None] = []
        for n, (result, way) in enumerate(zip(application.results, reshards.exit)):
            if n in lent and result in self.lives.ends[number]:
                made.append(None)
            else:
                made.append(self._keep(carried[n], way, self._cause(number, n), n not in lent))
        return made

    def _goes_on(self, number: int, condition: Plan, carried: Sequence[Shards]) -> bool:
        inner = self._inside(number, condition, carried)
        (going,) = _Walk(condition, self.xp, inner, self.cells, ()).outputs()
        self.drop(going)
        return bool(going[0])

    def _branch(self, number: int) -> list[Shards | None]:
        """What one of several branches makes."""
        application, plans = self.plan.graph.applications[number], self.plan.regions[number]
        index = self.values[application.operands[0]][0]
        place = _chosen(index, len(plans), application.operator)
        chosen, ways = plans[place], self.plan.branch_reshards[number][place]
        walk = _Walk(chosen, self.xp, self._inside(number, chosen, ()), self.cells, ())
        found, made = walk.outputs(), list[Shards | None]()
        for n, way in enumerate(ways):
            made.append(self._keep(found.pop(0), way, self._cause(number, n)))
        return made

    def _inside(self, number: int, inner: Plan, given: Sequence[Shards]) -> Values:
        """What a region is given, and what it takes from outside, which lies as it does there."""
        own = [v.name for v in arguments(self.plan.graph.applications[number], inner.graph)]
        taken = [value.name for value in inner.graph.inputs if value.name not in own]
        return {**dict(zip(own, given)), **{name: self.values[name] for name in taken}}

    def _keep(self, shards: Shards, way: Reshard, cause: Cause, gone: bool = True) -> Shards:
        return self.cells.keep(self.xp, shards, way.steps, cause, mesh=self.plan.mesh, gone=gone)

    def _cause(self, number: int, place: int) -> Cause:
        application = self.plan.graph.applications[number]
        return Cause(application.operator, self._label(application.results[place]))

    def _label(self, name: str) -> str:
        return f"{self.plan.graph.values[name]} {self.plan.specs[name]}"


def _chosen(index: Any, count: int, operator: str) -> int:
    """The number of the branch: of `case` the last one where the index is out of range."""
    if operator == "if":
        return 0 if bool(index) else 1
    chosen = int(index)
    return chosen if 0 <= chosen < count else count - 1
