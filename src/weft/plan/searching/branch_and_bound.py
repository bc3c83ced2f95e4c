"""The exact Pareto front: dynamic programming over the program, pruned by lower bounds.

The program is built from its end: the outputs are needed; a step that computes a needed value may
be taken, with one of its placements, and then its operands are needed; or the value is left to an
earlier step that computes it in another way. The state of the dynamic program is the values that
are needed and not computed yet, each with its sharding (variable elimination along a path
decomposition); for each state the partial plans are kept that no other of that state dominates.
All that is in memory beside a step is known when it is taken: what is needed after it, and inputs.

As in branch and bound, a partial plan is pruned if known plans dominate the lower bounds of all its
completions. There is a sweep for each range of peak memory between known plans, from the least on:
in each range the bounds of `weft.plan.searching.bounds` leave few options. An output occupies
memory to the end though it is decided where it is last read or computed: its bytes are added to all
peaks after that. An input that no earlier step may read leaves the state; its bytes stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import inf, prod
from operator import add, le, sub
from typing import NamedTuple

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh
from weft.plan.propagation.shardings import Meshes
from weft.plan.resharding.counts import sizes_of
from weft.plan.searching.bounds import (
    ALL,
    ROUNDING,
    Bound,
    Goal,
    Measure,
    PricedChoices,
    PricedOperand,
    PricedResult,
    PricedValue,
    Relaxation,
    Triple,
    boxes_below,
)
from weft.plan.searching.choice_graph import ChoiceGraph
from weft.plan.searching.pareto import Costs
from weft.values import Point

State = tuple[tuple[int, int], ...]
"""Values by number, in order, and what is known of each: a sharding and whether it is read more
than once (twice its number, plus one), or one of the codes below."""

PENDING = -1
"""An output whose sharding is not decided yet."""
UNREAD = -2
"""A result that is computed though nothing reads it."""
INLINED = -3
"""A value that is computed inside another step, and must not be read."""
UNUSED = -4
"""An input that no step reads."""


class TooWideError(Exception):
    """The graph is too wide: there are more partial plans than the limit."""

    def __init__(self, chosen: Sequence[Chosen] = ()) -> None:
        super().__init__("there are too many partial plans")
        self.chosen = chosen
        """The plans that were found so far."""


class Chosen(NamedTuple):
    """A plan of the front: its steps with their placements, and the shardings of its values."""

    point: tuple[float, float, float]
    """Seconds, the bytes of the fullest cell, bytes received; 0 for what is not an objective."""
    steps: tuple[tuple[int, int], ...]
    specs: Mapping[str, int]


def exact_front(
    choices: ChoiceGraph,
    goal: Goal = ALL,
    known: Iterable[Costs] = (),
    limit: int = 200_000,
    tries: float = inf,
) -> list[Chosen]:
    """Return a plan for every point of the exact front that no known point dominates.

    Points are known by their seconds, peak and bytes, and prune what they dominate. A
    `TooWideError` is raised if more than `limit` partial plans would be kept at once, or more than
    `tries` were priced in all.
    """
    return _Ranges(choices, goal, known).front(limit, tries)


class _Ranges:
    """A search by ranges of peak memory, each bounded by what is known below it."""

    def __init__(self, choices: ChoiceGraph, goal: Goal, known: Iterable[Costs]) -> None:
        self.priced, self.goal = PricedChoices(choices, goal), goal
        wanted = (goal.time, goal.memory, goal.received)
        self.known = [tuple(x if w else 0 for x, w in zip(one, wanted)) for one in known]
        times, _, moved = zip(*self.known) if self.known else ((1.0,), (), (1,))
        self.weight = (max(moved) or 1) / (max(times) or 1.0)
        """The bytes that a second counts for in a sum of both."""
        self.measures = Measure.of(self.priced, self.weight)
        self.chosen: list[Chosen] = []

    def front(self, limit: int, tries: float) -> list[Chosen]:
        """Return the exact front, from plans in which axes are used together to all plans."""
        mesh = self.priced.choices.mesh
        axes = [axis for axis, size in zip(mesh.axis_names, mesh.shape) if size > 1]
        try:
            last = max(len(axes) - 1, 0)
            for count in range(last + 1) if self.goal.memory else (last,):
                tries = self._search(axes[count:], limit, tries)
        except TooWideError:
            raise TooWideError(_undominated_points(self.chosen)) from None
        return _undominated_points(self.chosen)

    def _search(self, together: Sequence[str], limit: int, tries: float) -> float:
        """Search each range of memory, and return the tries that are left."""
        floor: float = 0
        while True:
            higher = [peak for _, peak, _ in self.known if peak > floor]
            most = min(min(higher) - 1 if higher else inf, self.priced.room)
            below = [(one[0], one[2]) for one in self.known if one[1] <= floor]
            boxes = boxes_below(below, self.goal, self.weight)
            relaxation = self._relaxation(most, boxes, together)
            if not floor and self.goal.memory and not relaxation.is_empty:
                relaxation = self._least_memory(relaxation, together)
                if relaxation.most < most:
                    higher, most = [*higher, relaxation.most + 1], relaxation.most
            if not relaxation.is_empty:
                sweep = _Sweep(relaxation, limit, tries)
                self._add(sweep.front())
                tries = sweep.tries
            if most >= self.priced.room or not higher:
                return tries
            floor = min(higher)

    def _relaxation(
        self, most: float, boxes: Sequence[Bound], together: Sequence[str]
    ) -> Relaxation:
        return Relaxation(self.priced, self.measures, self.weight, most, boxes, together)

    def _least_memory(self, whole: Relaxation, together: Sequence[str]) -> Relaxation:
        """Return the least range from 0 on that is not proved to be empty, but for a hundredth."""
        low, best = 0.0, whole
        high = min(whole.most, 2 * sum(max(value.most) for value in self.priced.values))
        while high - low > max(1, high / 64):
            middle = (low + high) // 2
            relaxation = self._relaxation(middle, whole.boxes, together)
            if relaxation.is_empty:
                low = middle
            else:
                high, best = middle, relaxation
        return best

    def _add(self, found: Iterable[Chosen]) -> None:
        for one in found:
            self.chosen.append(one)
            self.known.append(one.point)


def _undominated_points(every: Iterable[Chosen]) -> list[Chosen]:
    front: list[Chosen] = []
    for one in sorted(every, key=lambda one: one.point):
        if not any(all(map(le, other.point, one.point)) for other in front):
            front.append(one)
    return front


class _PartialPlan(NamedTuple):
    """The costs of a partial plan, and how it was reached."""

    costs: Triple
    peak: Point
    retired: Point
    """The bytes of inputs that no earlier step reads, by cell."""
    before: _PartialPlan | None
    taken: tuple[int, int]
    """The step and its placement."""
    specs: tuple[tuple[int, int], ...]
    """The values whose sharding was chosen with it."""
    held: int = 0
    """The bytes of all values on their fullest cells, which decide between equals."""


PartialPlans = dict[State, list[_PartialPlan]]


class _Sweep:
    """The dynamic program for one range of memory."""

    def __init__(self, relaxation: Relaxation, limit: float, tries: float) -> None:
        self.relaxation, self.limit, self.tries = relaxation, limit, tries
        priced = self.priced = relaxation.priced
        self.goal, self.values, self.steps = priced.goal, priced.values, priced.steps
        self.columns, self.none = priced.columns, priced.none
        self.last_options: dict[object, list[int]] = {}
        self.input_sizes = {
            v.number: tuple(map(min, zip(*(v.sizes[o] for o in relaxation.options[v.number]))))
            for v in priced.inputs
            if priced.columns
        }
        self.zero: Bound = (0,) * len(relaxation.measures)
        self.made: list[list[Bound]] = [list(zip(*rows)) for rows in zip(*relaxation.made)]
        self.least: list[Bound] = list(zip(*relaxation.least))
        self.charged_from = [min(v.payers, default=len(self.steps)) for v in self.values]
        """The steps from here on include all that pay for a value in the lower bounds."""

    def front(self) -> list[Chosen]:
        """Return the plans that no other of this range dominates."""
        self.plans = self._at_the_end()
        for at in reversed(range(len(self.steps))):
            self._sweep(at)
        return self._finish()

    @cached_property
    def _eager(self) -> list[PricedValue]:
        """The outputs that are moved or copied when they are returned, and those that are inputs.

        They are decided first.
        """
        outputs = self.priced.choices.graph.outputs
        moved = {outputs[place] for place in self.priced.choices.return_memory}
        moved |= {value.name for value in self.priced.inputs}
        return [v for v in self.priced.outputs if v.name in moved or outputs.count(v.name) > 1]

    def _at_the_end(self) -> PartialPlans:
        eager, codes = self._eager, dict[int, int]()
        for value in self.priced.outputs:
            codes[value.number] = PENDING
        for value in self.values:
            if value.makers and not value.readers and value.number not in codes:
                codes[value.number] = UNREAD
        for value in self.priced.inputs:
            if not value.users and value.number not in codes:
                codes[value.number] = UNUSED
        plans: PartialPlans = {}
        for options in product(*(self._kept(value) for value in eager)):
            costs = [value.costs[option] for value, option in zip(eager, options)]
            total = tuple(map(sum, zip((0.0, 0.0, 0), *costs)))
            chosen = {value.number: option for value, option in zip(eager, options)}
            new = codes | {number: 2 * option + 1 for number, option in chosen.items()}
            plan = _PartialPlan(
                total,  # type: ignore[arg-type]
                self._return_peak(chosen),
                self.none,
                None,
                (-1, -1),
                tuple(chosen.items()),
            )
            state = tuple(sorted(new.items()))
            if not self._is_pruned(plan, self._bound(state, len(self.steps))):
                plans[state] = [plan]
        return plans

    def _kept(self, value: PricedValue) -> list[int]:
        """Return the shardings in which a value may be kept."""
        return [n for n in self.relaxation.options[value.number] if n < value.kept]

    def _return_peak(self, chosen: Mapping[int, int]) -> Point:
        """Return the peak while the outputs that are decided first are returned."""
        if not self.columns:
            return self.none
        choices, cells = self.priced.choices, self.priced.cells
        outputs, memory = choices.graph.outputs, choices.return_memory
        live = self.none
        for number, option in chosen.items():
            live = tuple(map(add, live, self.values[number].sizes[option]))
        most = live
        for place, name in enumerate(outputs):
            number, is_last = self.priced.number[name], name not in outputs[place + 1 :]
            if number not in chosen:
                continue
            size = self.values[number].sizes[chosen[number]]
            if place in memory:
                freed, kept, final = map(cells, memory[place][chosen[number]])
                most = tuple(map(max, most, map(add, live, freed if is_last else kept)))
                if is_last:
                    live = tuple(map(sub, live, size))
                live = tuple(map(add, live, final))
            elif not is_last:
                live = tuple(map(add, live, size))
            most = tuple(map(max, most, live))
        return most

    def _sweep(self, at: int) -> None:
        """Take a step in every partial plan that needs it, or leave its results to earlier ones."""
        step, plans = self.steps[at], PartialPlans()
        results = [result.value for result in step.results]
        self.count, self.sizes = 0, dict[State, int]()
        for state, known in self.plans.items():
            entries = dict(state)
            wanted = [v for v in results if entries.get(v.number, INLINED) != INLINED]
            if results and all(value.makers[0] < at for value in wanted):
                self.count += len(known)
                plans.setdefault(state, []).extend(known)
            if results and not wanted:
                continue
            if any(number in entries for number in step.inlined):
                continue
            codes = [entries.get(operand.value.number, PENDING) for operand in step.operands]
            if all(
                code == PENDING or (code >= 0 and code // 2 < operand.value.kept)
                for code, operand in zip(codes, step.operands)
            ):
                self._take(at, entries, known, plans)
            if self.count > self.limit or self.tries < 0:
                raise TooWideError
        self.plans = self._retire(plans, at)

    # -- bounds

    def _bound(self, state: State, at: int) -> tuple[Bound, Point, Point]:
        """Return lower bounds on what earlier steps add, by measure, and on memory.

        Of the memory there are the bytes of pending outputs, which every later step holds, and
        those of the inputs, which are there before the first step.
        """
        bounds, pending = [self.zero], self.none
        entries = dict(state)
        fixed = {number: code // 2 for number, code in state if code >= 0}
        for number, code in state:
            if self.charged_from[number] >= at:
                if code >= 0:
                    bounds.append(self.made_given(number, fixed)[code // 2])
                elif code == PENDING:
                    bounds.append(self.least[number])
            if code == PENDING and self.columns:
                sizes = (self.values[number].sizes[o] for o in self._kept(self.values[number]))
                pending = tuple(map(add, pending, map(min, zip(*sizes))))
        start = self.none
        for value in self.priced.inputs if self.columns else ():
            code = entries.get(value.number, PENDING)
            if code >= 0:
                start = tuple(map(add, start, value.sizes[code // 2]))
            elif code == UNUSED or (value.users and value.users[0] < at):
                start = tuple(map(add, start, self.input_sizes[value.number]))
        return tuple(map(sum, zip(*bounds))), pending, start

    def made_given(self, number: int, fixed: Mapping[int, int]) -> list[Bound]:
        """Return by option what it costs at least to make a value if others have some options."""
        given = {n: fixed[n] for n in self.priced.cones[number] if n in fixed}
        return self.relaxation.made_given(number, given) if given else self.made[number]

    def _is_pruned(self, plan: _PartialPlan, bound: tuple[Bound, Point, Point]) -> bool:
        """Whether no completion fits the machine, or known plans dominate all of them."""
        least, pending, start = bound
        peak = 0
        if self.columns:
            cells = list(map(max, map(add, plan.peak, pending), map(add, plan.retired, start)))
            peak = max(cells)
            if any(n > room for n, room in zip(cells, self.priced.rooms)):
                return True
        return self.is_excluded(plan.costs, least, peak)

    def is_excluded(self, cost: Triple, bound: Sequence[float], peak: float) -> bool:
        """Whether plans that cost so much, and by the bound more, are outside or dominated."""
        if peak > self.relaxation.most:
            return True
        a, b, c = cost
        if not self.goal.time:
            least = [c + bound[0]]
        elif self.goal.received:
            mixed = (self.relaxation.weight * a + c + bound[2]) * ROUNDING
            least = [max((a + bound[0]) * ROUNDING, b), c + bound[1], mixed]
        else:
            least = [max((a + bound[0]) * ROUNDING, b)]
        return self.relaxation.is_dominated(least)

    # -- one step

    def _take(
        self,
        at: int,
        entries: dict[int, int],
        known: Sequence[_PartialPlan],
        plans: PartialPlans,
    ) -> None:
        """Extend the partial plans of a state by a step, with each of its placements."""
        results = self.steps[at].results
        leaves = _Leaves(self, at, entries, known, plans)
        for choice in self.relaxation.placements[at]:
            choices = [
                self._result_options(result, entries.get(result.value.number, UNREAD), choice)
                for result in results
            ]
            for options in product(*choices):
                if self.tries >= 0:
                    leaves.place(options, choice)

    def _result_options(self, result: PricedResult, code: int, choice: int) -> Sequence[int]:
        """Return the options of a result for a placement; -1 for as computed, without a reader.

        Of an output that no later step reads only those matter that no other dominates.
        """
        value = result.value
        if code >= 0:
            option = code // 2
            if option >= value.kept:
                return [option] if result.computed[choice] == option else []
            return [option] if code % 2 or not value.several else []
        if code == UNREAD and (value.several or not value.kept):
            return [-1]
        key = (id(result), choice)
        if key not in self.last_options:
            points = []
            for option in self._kept(value):
                kind = result.rows[choice]
                costs = map(add, result.costs[kind][option], value.costs[option])
                move = result.moves[kind][option]
                memory = [*value.sizes[option], *move.reshard_peak] if self.columns else []
                points.append((costs, memory, option))
            self.last_options[key] = self.undominated_options(value, points)
        return self.last_options[key]

    def undominated_options(
        self, value: PricedValue, points: Iterable[tuple[Iterable[float], Sequence[int], int]]
    ) -> list[int]:
        """Return the options that no other dominates, by their costs and memory.

        Of equal ones it is the one with the fewest bytes, received and held.
        """
        keyed = []
        for costs, memory, option in points:
            a, b, c = costs
            point = (a, b, c if self.goal.received else 0, *memory)
            keyed.append((point, c, value.most[option], option))
        front: list[tuple[tuple[float, ...], int]] = []
        for point, _, _, option in sorted(keyed):
            if not any(all(map(le, other, point)) for other, _ in front):
                front.append((point, option))
        return [option for _, option in front]

    def _retire(self, plans: PartialPlans, at: int) -> PartialPlans:
        """Drop from the states what no earlier step may use; partial plans then compete."""
        over = {v.number for v in self.values if v.users and v.users[0] == at}
        inputs = [v for v in self.priced.inputs if v.number in over]
        if over:
            merged: PartialPlans = {}
            for state, known in plans.items():
                entries, retired = dict(state), self.none
                for value in inputs:
                    code = entries.pop(value.number, UNUSED)
                    if code == UNUSED:
                        entries[value.number] = UNUSED
                    elif self.columns and code >= 0:
                        retired = tuple(map(add, retired, value.sizes[code // 2]))
                left = tuple(
                    sorted(
                        (n, code) for n, code in entries.items() if code != INLINED or n not in over
                    )
                )
                moved = merged.setdefault(left, [])
                for plan in known:
                    held = tuple(map(add, plan.retired, retired))
                    moved.append(plan._replace(retired=held) if any(retired) else plan)
            plans = merged
        return {state: self.undominated(known) for state, known in plans.items()}

    def undominated(self, plans: list[_PartialPlan]) -> list[_PartialPlan]:
        """Return the plans that no other dominates; of equal ones that with the fewest bytes."""
        if len(plans) < 2:
            return plans
        overlaps, received = self.priced.overlaps, self.goal.received
        keyed = []
        for plan in plans:
            a, b, c = plan.costs
            point = (a, b if overlaps else 0.0, c if received else 0, *plan.peak, *plan.retired)
            keyed.append((point, (c, plan.held), plan))
        keyed.sort(key=lambda one: one[:2])
        front: list[tuple[tuple[float, ...], _PartialPlan]] = []
        for point, _, plan in keyed:
            for other, _ in front:
                for x, y in zip(other, point):
                    if x > y:
                        break
                else:
                    break
            else:
                front.append((point, plan))
        return [plan for _, plan in front]

    # -- results

    def _finish(self) -> list[Chosen]:
        """Decide the inputs that nothing reads, and return the front."""
        done: list[_PartialPlan] = []
        for state, plans in self.plans.items():
            left = [(self.values[number], code) for number, code in state]
            held = [(value, code // 2) for value, code in left if code >= 0]
            unused = [value for value, code in left if code == UNUSED]
            for options in product(*map(self._kept, unused)):
                picked = [*held, *zip(unused, options)]
                extra = [value.costs[option] for value, option in zip(unused, options)]
                for plan in plans:
                    total = tuple(map(sum, zip(plan.costs, *extra)))
                    start = plan.retired
                    for value, option in picked if self.columns else ():
                        start = tuple(map(add, start, value.sizes[option]))
                    done.append(
                        _PartialPlan(
                            total,  # type: ignore[arg-type]
                            tuple(map(max, plan.peak, start)),
                            self.none,
                            plan,
                            (-1, -1),
                            tuple((value.number, option) for value, option in zip(unused, options)),
                        )
                    )
                done = self.undominated(done)
        found: dict[tuple[float, float, float], Chosen] = {}
        for plan in done:
            chosen = self._chosen(plan)
            found.setdefault(chosen.point, chosen)
        return _undominated_points(found.values())

    def _chosen(self, plan: _PartialPlan) -> Chosen:
        cost, communicate, received = plan.costs
        steps, specs = list[tuple[int, int]](), dict[str, int]()
        step: _PartialPlan | None = plan
        while step is not None:
            if step.taken[0] >= 0:
                steps.append(step.taken)
            specs |= {self.values[number].name: option for number, option in step.specs}
            step = step.before
        point = (
            max(cost, communicate) if self.goal.time else 0.0,
            max(plan.peak, default=0),
            received if self.goal.received else 0,
        )
        return Chosen(point, tuple(sorted(steps)), specs)


class _Leaves:
    """The extensions of the partial plans of one state by one step."""

    def __init__(
        self,
        sweep: _Sweep,
        at: int,
        entries: dict[int, int],
        known: Sequence[_PartialPlan],
        plans: PartialPlans,
    ) -> None:
        self.sweep, self.at, self.entries, self.plans = sweep, at, entries, plans
        self.step, self.known = sweep.steps[at], known
        own = {result.value.number for result in self.step.results}
        self.others = {number: code for number, code in entries.items() if number not in own}
        """What is needed beside the results of the step."""
        self.fixed, self.free = list[tuple[int, PricedOperand, int]](), list[_FreeOperand]()
        relaxation = sweep.relaxation
        decided = {number: code // 2 for number, code in self.others.items() if code >= 0}
        self.decided = decided
        for place, operand in enumerate(self.step.operands):
            code = self.others.get(operand.value.number, PENDING)
            if code == PENDING:
                bounds = relaxation.least_given(at, place, decided)
                self.free.append(_FreeOperand(operand, relaxation.pairs[at][place], bounds))
            else:
                self.fixed.append((place, operand, code // 2))
                self.others[operand.value.number] = code | 1
        a, b, c = zip(*(plan.costs for plan in known))
        self.least: Triple = (min(a), min(b), min(c))
        self.peaks = tuple(map(min, zip(*(plan.peak for plan in known))))
        self.peak = min((max(plan.peak) for plan in known), default=0) if sweep.columns else 0
        self.retired = tuple(map(min, zip(*(plan.retired for plan in known))))
        self.live = sweep.none
        for number, code in self.others.items() if sweep.columns else ():
            if code >= 0:
                self.live = tuple(map(add, self.live, sweep.values[number].sizes[code // 2]))
        self.inlined = {
            number: INLINED for number in self.step.inlined if sweep.values[number].users[0] < at
        }
        self.bound, *_ = sweep._bound(tuple(self.others.items()), at)

    def place(self, options: Sequence[int], choice: int) -> None:
        """Extend the partial plans by one placement, and all shardings of new operands."""
        sweep, step = self.sweep, self.step
        pairs = sweep.relaxation.pairs[self.at]
        a, b, c = step.costs[choice]
        for place, operand, option in self.fixed:
            kind = operand.kinds[choice]
            if option not in pairs[place][kind]:
                return
            x, y, z = operand.costs[kind][option]
            a, b, c = a + x, b + y, c + z
        grown, specs = sweep.none, list[tuple[int, int]]()
        held = self.live
        for result, option in zip(step.results, options):
            value, code = result.value, self.entries.get(result.value.number, UNREAD)
            if 0 <= option < value.kept:
                x, y, z = result.costs[result.rows[choice]][option]
                a, b, c = a + x, b + y, c + z
            if code in (PENDING, UNREAD) and option >= 0:
                x, y, z = value.costs[option]
                a, b, c = a + x, b + y, c + z
                specs.append((value.number, option))
                if sweep.columns and code == PENDING:
                    grown = tuple(map(add, grown, value.sizes[option]))
            if sweep.columns:
                held = tuple(map(add, held, result.sizes[choice]))
        self.later = max(self.peak, max(map(add, self.peaks, grown), default=0))
        self.choice, self.options, self.grown, self.specs = choice, options, grown, specs
        bounds = [self.bound]
        for free in reversed(self.free):
            bounds.append(tuple(map(add, bounds[-1], free.bounds[free.priced.kinds[choice]])))
        self.bounds = bounds[::-1]
        """What the operands from a place on, and all beside the step, cost at least."""
        x, y, z = self.least
        if not sweep.is_excluded((a + x, b + y, c + z), self.bounds[0], self._peak(held)):
            self._pick((a, b, c), (), held, sweep.zero)

    def _peak(self, held: Point) -> int:
        """Return the least peak if cells hold at least so much while the step runs."""
        return max(self.later, *map(add, held, self.retired)) if held else 0

    def _pick(self, cost: Triple, picked: tuple[int, ...], held: Point, made: Bound) -> None:
        """Choose the shardings of new operands, one after the other.

        Cells hold at least `held` while the step runs. `made` is what the operands that are picked
        cost at least to make, in their shardings.
        """
        if len(picked) == len(self.free):
            self._leaf(cost, picked)
            return
        sweep, least, most = self.sweep, self.least, self.sweep.relaxation.most
        free, left = self.free[len(picked)], self.bounds[len(picked) + 1]
        operand, value = free.priced, free.priced.value
        kind, bound = operand.kinds[self.choice], list(map(add, left, made))
        is_pending = value.number in self.others
        """Whether it is an output, which the bound includes."""
        own: Sequence[Bound] = ()
        if operand.pays or is_pending:
            before = {one.priced.value.number: o for one, o in zip(self.free, picked)}
            own = sweep.made_given(value.number, self.decided | before)
        if is_pending:
            own = [tuple(map(sub, row, sweep.least[value.number])) for row in own]
        a, b, c = cost
        for option in self._options(free, kind):
            if sweep.tries < 0:
                return  # given up: the sweep raises `TooWideError`
            x, y, z = operand.costs[kind][option]
            if option < value.kept:
                more = value.costs[option]
                x, y, z = x + more[0], y + more[1], z + more[2]
            new, now = (a + x, b + y, c + z), held
            whole = list(map(add, bound, own[option])) if own else bound
            at_least = new[0] + least[0], new[1] + least[1], new[2] + least[2]
            if sweep.is_excluded(at_least, whole, 0):
                continue
            if held:
                now = tuple(map(add, held, value.sizes[option]))
                for move in operand.moves[kind][option]:
                    now = tuple(map(add, now, move.added))
                if self._peak(now) > most:
                    continue
            paid = tuple(map(add, made, own[option])) if own else made
            self._pick(new, (*picked, option), now, paid)

    def _options(self, free: _FreeOperand, kind: int) -> Sequence[int]:
        """Return the options of a new operand: kept, or as computed if it is read once.

        Of an input that no earlier step reads only those matter that no other dominates: nothing
        else depends on it.
        """
        operand, value, options = free.priced, free.priced.value, free.options[kind]
        if value.number in self.others or operand.reads > 1:
            # a pending output, or one that is read more than once
            return [option for option in options if option < value.kept]
        if value.makers or value.users[0] < self.at:
            return options
        sweep, key = self.sweep, (self.at, value.number, kind)
        if key not in sweep.last_options:
            points = []
            for option in options:
                costs = map(add, operand.costs[kind][option], value.costs[option])
                memory: list[int] = []
                if sweep.columns:
                    memory = list(value.sizes[option])
                    for move in operand.moves[kind][option]:
                        memory += [*move.peak, *move.added]
                points.append((costs, memory, option))
            sweep.last_options[key] = sweep.undominated_options(value, points)
        return sweep.last_options[key]

    def _leaf(self, cost: Triple, picked: Sequence[int]) -> None:
        sweep, grown, live = self.sweep, self.grown, self.live
        entries, chosen = dict(self.others), list(self.specs)
        for free, option in zip(self.free, picked):
            operand, value = free.priced, free.priced.value
            is_pending = value.number in self.others
            several = operand.reads > 1 or is_pending or not value.several
            entries[value.number] = 2 * option + (several and option < value.kept)
            if option < value.kept:
                chosen.append((value.number, option))
            if sweep.columns:
                live = tuple(map(add, live, value.sizes[option]))
                if is_pending:
                    grown = tuple(map(add, grown, value.sizes[option]))
        top = self._memory(live, picked) if sweep.columns else ()
        state = tuple(sorted((entries | self.inlined).items()))
        bound = sweep._bound(state, self.at)
        held = sum(sweep.values[number].most[option] for number, option in chosen)
        (a, b, c), kept = cost, []
        for plan in self.known:
            peak = plan.peak
            if sweep.columns:
                peak = tuple(map(max, map(add, peak, grown), map(add, top, plan.retired)))
            x, y, z = plan.costs
            new = _PartialPlan(
                (x + a, y + b, z + c),
                peak,
                plan.retired,
                plan,
                (self.at, self.choice),
                tuple(chosen),
                plan.held + held,
            )
            if not sweep._is_pruned(new, bound):
                kept.append(new)
        sweep.tries -= len(self.known)
        if kept:
            known = self.plans.setdefault(state, [])
            known += kept
            sweep.count += len(kept)
            if len(known) > sweep.sizes.get(state, 32):  # compact it when it has doubled
                left = sweep.undominated(known)
                sweep.count += len(left) - len(known)
                sweep.sizes[state] = 2 * len(left) + 32
                known[:] = left

    def _memory(self, live: Point, picked: Sequence[int]) -> Point:
        """Return the most bytes of the cells while the step runs, without retired inputs."""
        step, choice, none = self.step, self.choice, self.sweep.none
        options = {operand.value.number: option for _, operand, option in self.fixed}
        options |= {free.priced.value.number: o for free, o in zip(self.free, picked)}
        most = held = live
        seen = [0] * len(step.operands)
        for place in step.order:
            operand = step.operands[place]
            move = operand.moves[operand.kinds[choice]][options[operand.value.number]][seen[place]]
            seen[place] += 1
            most = tuple(map(max, most, map(add, held, move.peak)))
            held = tuple(map(add, held, move.added))
        results = none
        for result in step.results:
            results = tuple(map(add, results, result.sizes[choice]))
        most = tuple(map(max, most, map(add, held, results)))
        live = tuple(map(add, live, results))
        for result, option in zip(step.results, self.options):
            if 0 <= option < result.value.kept:
                move = result.moves[result.rows[choice]][option]
                most = tuple(map(max, most, map(add, live, move.reshard_peak)))
                live = tuple(
                    map(add, live, map(sub, result.value.sizes[option], result.sizes[choice]))
                )
        return most


class _FreeOperand(NamedTuple):
    """An operand whose sharding is chosen with a step."""

    priced: PricedOperand
    options: list[list[int]]
    """By kind, those that are not excluded."""
    bounds: list[Bound]
    """By kind, the least to deliver it, and to make it if the step pays."""


def peak_lower_bound(graph: Graph, mesh: DeviceMesh) -> int:
    """Return a lower bound on the bytes of the fullest cell, for every plan of a graph on a mesh.

    Inputs are on the cells before anything runs, and outputs afterwards, however the graph is
    rewritten, fused and cut. Each is somewhere at least once; an input that is annotated with
    closed dimensions is sharded as annotated.

    >>> from weft import trace
    >>> peak_lower_bound(trace(lambda x: x[:4] * 1, (1024,)), DeviceMesh("m", (8,), ("x",)))
    512
    """
    inputs, meshes = [value.name for value in graph.inputs], Meshes(graph)

    def bound(names: Iterable[str]) -> int:
        total, held = 0, [0] * mesh.size
        for name in names:
            value, text = graph.values[name], graph.shardings.get(name)
            spec = meshes.parse(value, text) if text is not None and name in inputs else None
            width = itemsize(value.dtype)
            if spec is not None and not any(dim.is_open for dim in spec.dim_specs):
                sizes = sizes_of(spec, value.shape, width)
                held = list(map(add, held, sizes)) if len(sizes) == len(held) else held
            else:
                total += prod(value.shape) * width
        return max(*held, -(-(sum(held) + total) // mesh.size))

    return max(bound(inputs), bound(dict.fromkeys(graph.outputs)))
