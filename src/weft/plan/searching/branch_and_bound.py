"""The exact Pareto front: dynamic programming over the program, pruned by lower bounds.

The program is built from its end: the outputs are needed; a step that computes a needed value may
be taken, with one of its placements, and then its operands are needed; or the value is left to an
earlier step that computes it in another way. The state of the dynamic program is the values that
are needed and not computed yet, each with its sharding (variable elimination along a path
decomposition); for each state the partial plans are kept that no other of that state dominates.
All that is in memory beside a step is known when it is taken: what is needed after it, and inputs.

As in branch and bound, a partial plan is pruned if a known plan dominates the lower bounds of all
its completions. An output occupies memory to the end though it is decided where it is last read or
computed: its bytes are added to all peaks after that. An input that no earlier step may read leaves
the state; its bytes stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import inf, prod
from operator import add, le
from typing import NamedTuple

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh
from weft.plan.propagation.shardings import Meshes
from weft.plan.resharding.counts import sizes_of
from weft.plan.searching.choice_graph import (
    ApplicationResult,
    ChoiceGraph,
    PlaceableApplication,
    exclusion,
)
from weft.plan.searching.pareto import Costs
from weft.plan.searching.prices import MoveCost, OptionCost
from weft.values import Point

ROUNDING = 1 + 1e-12
"""Sums in another order differ by rounding."""

BEAM_TRIES = 60
"""How many partial plans a beam prices at each step for each one that it keeps, at most."""

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

    def __init__(self, left: float = 1.0) -> None:
        super().__init__("there are too many partial plans")
        self.left = left
        """The fraction of the steps that were left."""


class Goal(NamedTuple):
    """The objectives to minimize."""

    time: bool = True
    received: bool = True
    memory: bool = True


ALL = Goal()


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
    return _Frontier(choices, goal, known, limit, tries).front()


def beam_front(
    choices: ChoiceGraph, goal: Goal = ALL, known: Iterable[Costs] = (), width: int = 24
) -> list[Chosen]:
    """Return good plans that no known point dominates: of the partial plans few are kept.

    Those are kept that promise the least time, memory or bytes, or the least sum of them.
    """
    return _Frontier(choices, goal, known, 1 << 60, inf, width).front()


class _PartialPlan(NamedTuple):
    """The costs of a partial plan, and how it was reached."""

    costs: tuple[float, float, float]
    """Computation with communication that cannot overlap, all communication, and bytes."""
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


class _Value:
    """A value: its options, where it is made and used, and a bound on what it costs to make."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.kept = 0
        """How many options there are in which it may be kept."""
        self.several = False
        """Whether it is kept only if it is read more than once."""
        self.sizes: list[Point] = []
        self.most: list[int] = []
        """By option the bytes on the fullest cell."""
        self.costs: list[tuple[float, float, float]] = []
        """The costs of the options in which it may be kept."""
        self.makers: list[int] = []
        self.users: list[int] = []
        """The steps that read it, or compute it inside."""
        self.charged_from = 0
        """The steps from here on include all that pay for it in the lower bounds."""
        self.seconds: list[float] = []
        self.received: list[float] = []
        """By option, lower bounds on what it costs to make it, with all that it is made of."""
        self.least_seconds: float = 0.0
        self.least_received: float = 0
        """The same for the best option in which it may be kept, with the cost of that."""


class _OperandPrices(NamedTuple):
    """An operand of a step: the value, and what it costs to deliver it, by option and placement."""

    value: _Value
    reads: int
    costs: list[list[tuple[float, float, float]]]
    moves: list[list[tuple[MoveCost, ...]]]
    """For every place where the step reads it, with memory on the counted cells."""
    pays: bool
    """Whether the step pays for the value in the lower bounds."""
    seconds: list[float]
    received: list[float]
    """By placement, lower bounds on the costs to deliver it, and to make it if the step pays."""


class _Frontier:
    def __init__(
        self,
        choices: ChoiceGraph,
        goal: Goal,
        known: Iterable[Costs],
        limit: int,
        tries: float,
        beam: int = 0,
    ) -> None:
        self.choices, self.goal, self.limit, self.tries = choices, goal, limit, tries
        self.beam = beam
        """How many partial plans are kept; 0 for all."""
        machine = choices.machine
        self.share, self.overlaps = 1.0 - machine.overlap, goal.time and machine.overlap > 0
        wanted = (goal.time, goal.memory, goal.received)
        self.known = [tuple(x if w else 0 for x, w in zip(one, wanted)) for one in known]
        self._reduced: dict[Point, Point] = {}
        self._moves: dict[int, MoveCost] = {}
        self.columns = self._distinct_cells() if goal.memory else []
        self.none = (0,) * len(self.columns)
        rooms = [choices.rooms[cell] for cell in self.columns]
        self.room = max(rooms, default=inf)
        self.rooms = rooms if len(set(rooms)) > 1 else []
        """The capacities of the distinct cells, where they differ."""
        self.last_options: dict[object, list[int]] = {}
        self.values = self._make_values()
        self.operands = [self._make_operands(number) for number in range(len(choices.steps))]
        self._bound_costs()
        self.input_sizes = {
            v.number: tuple(map(min, zip(*v.sizes))) for v in self.inputs if goal.memory
        }

    # -- what there is

    def _distinct_cells(self) -> list[int]:
        """Return one of each group of cells that hold the same whatever is chosen."""
        points: dict[Point, None] = {}
        for value in self.choices.values.values():
            points |= dict.fromkeys(value.sizes)
        tables = {
            id(table): table
            for step in self.choices.steps
            for table in (*step.deliveries, *(r.reshard for r in step.results))
            if table is not None
        }
        moves = {id(m): m for table in tables.values() for row in table for m in row}
        for move in moves.values():
            points |= dict.fromkeys(move[2:])
        for memories in self.choices.return_memory.values():
            for memory in memories:
                points |= dict.fromkeys(memory)
        for step in self.choices.steps:
            for result in step.results:
                points |= dict.fromkeys(result.sizes)
        cells = self.choices.cells
        columns = zip(self.choices.rooms, *(point for point in points if len(point) == cells))
        first: dict[tuple[float, ...], int] = {}
        for cell, column in enumerate(columns):
            first.setdefault(column, cell)
        return list(first.values())

    def _cells(self, point: Point) -> Point:
        """Return the bytes of the distinct cells."""
        if point not in self._reduced:
            self._reduced[point] = tuple(point[cell] for cell in self.columns)
        return self._reduced[point]

    def _move(self, move: MoveCost) -> MoveCost:
        """Return a move with memory on the distinct cells."""
        if id(move) not in self._moves:
            memory = (
                [self._cells(each) if each else self.none for each in move[2:]]
                if self.columns
                else [(), (), ()]
            )
            self._moves[id(move)] = MoveCost(move.seconds, move.received, *memory)
        return self._moves[id(move)]

    def _costs(self, cost: OptionCost) -> tuple[float, float, float]:
        """Return the three numbers that add up; 0 for what is not needed."""
        return (
            cost.compute + self.share * cost.communicate if self.goal.time else 0.0,
            cost.communicate if self.overlaps else 0.0,
            cost.received,
        )

    def _make_values(self) -> list[_Value]:
        graph, made = self.choices.graph, []
        for number, (name, options) in enumerate(self.choices.values.items()):
            value = _Value(number, name)
            value.kept, value.several = options.kept, options.several
            value.sizes = [self._cells(size) for size in options.sizes] if self.columns else []
            value.most = [max(size, default=0) for size in options.sizes]
            value.costs = list(map(self._costs, options.costs))
            made.append(value)
        self.number = {value.name: value.number for value in made}
        self.inputs = [made[self.number[value.name]] for value in graph.inputs]
        for at, step in enumerate(self.choices.steps):
            for result in step.results:
                made[self.number[result.value]].makers.append(at)
            for name in {*step.application.operands, *step.inlined}:
                made[self.number[name]].users.append(at)
        steps = [(step.application, step.inlined) for step in self.choices.steps]
        excludes = exclusion(steps, graph.outputs)
        self.payers: set[tuple[int, int]] = set()
        """The steps that pay for a value in the lower bounds: no two of them run together."""
        for value in made:
            paying: list[int] = []
            for at in reversed(value.users):
                reads = value.name in steps[at][0].operands
                if reads and all(excludes(at, other) for other in paying):
                    paying.append(at)
            self.payers |= {(at, value.number) for at in paying}
            value.charged_from = min(paying, default=len(steps))
        return made

    def _make_operands(self, at: int) -> list[_OperandPrices]:
        step, operands = self.choices.steps[at], []
        names = step.application.operands
        for name in dict.fromkeys(names):
            value = self.values[self.number[name]]
            tables = [t for n, t in zip(names, step.deliveries) if n == name]
            count = len(self.choices.values[name].specs)
            moves = [
                [
                    tuple(self._move(table[option][choice]) for table in tables)
                    for choice in range(len(step.options))
                ]
                for option in range(count)
            ]
            costs = [[self._sum_of_moves(each) for each in row] for row in moves]
            pays = (at, value.number) in self.payers
            operands.append(_OperandPrices(value, names.count(name), costs, moves, pays, [], []))
        return operands

    def _sum_of_moves(self, moves: Sequence[MoveCost]) -> tuple[float, float, float]:
        seconds = sum(move.seconds for move in moves) if self.goal.time else 0.0
        received = sum(move.received for move in moves)
        return self.share * seconds, seconds if self.overlaps else 0.0, received

    def _bound_costs(self) -> None:
        """Compute lower bounds for making each value, first to last.

        Every value is paid by at most one of the steps that read it, so that nothing counts twice.
        """
        for value in self.values:
            count = len(self.choices.values[value.name].specs)
            is_made = bool(value.makers)
            value.seconds = [inf if is_made else 0.0] * count
            value.received = [inf if is_made else 0] * count
            self._set_least(value)
        for at, step in enumerate(self.choices.steps):
            costs = list(map(self._costs, step.costs))
            seconds, received = [c[0] for c in costs], [c[2] for c in costs]
            for operand in self.operands[at]:
                value, pays = operand.value, operand.pays
                options = range(len(operand.costs))
                own_seconds, own_received = list[float](), list[float]()
                for option in options:
                    extra = value.costs[option] if option < value.kept and pays else (0.0, 0, 0)
                    own_seconds.append(extra[0] + (value.seconds[option] if pays else 0.0))
                    own_received.append(extra[2] + (value.received[option] if pays else 0))
                for choice in range(len(step.options)):
                    rows = [operand.costs[option][choice] for option in options]
                    operand.seconds.append(min(r[0] + x for r, x in zip(rows, own_seconds)))
                    operand.received.append(min(r[2] + x for r, x in zip(rows, own_received)))
                seconds = list(map(add, seconds, operand.seconds))
                received = list(map(add, received, operand.received))
            for place, result in enumerate(step.results):
                value = self.values[self.number[result.value]]
                if place:  # the first result pays for the step
                    seconds, received = [0.0] * len(seconds), [0] * len(received)
                for choice, number in enumerate(result.computed):
                    value.seconds[number] = min(value.seconds[number], seconds[choice])
                    value.received[number] = min(value.received[number], received[choice])
                for option in range(value.kept):
                    assert result.reshard is not None
                    moves = [row[option] for row in result.reshard]
                    share = self.share if self.goal.time else 0.0
                    least = min(s + share * m.seconds for s, m in zip(seconds, moves))
                    value.seconds[option] = min(value.seconds[option], least)
                    fewest = min(r + m.received for r, m in zip(received, moves))
                    value.received[option] = min(value.received[option], fewest)
                self._set_least(value)

    def _set_least(self, value: _Value) -> None:
        options = range(value.kept)
        value.least_seconds = min(
            (value.seconds[o] + value.costs[o][0] for o in options), default=0.0
        )
        value.least_received = min(
            (value.received[o] + value.costs[o][2] for o in options), default=0
        )

    # -- the sweep

    def front(self) -> list[Chosen]:
        self.plans = self._at_the_end()
        for at in reversed(range(len(self.choices.steps))):
            self._sweep(at)
        return self._finish()

    @cached_property
    def _eager(self) -> list[_Value]:
        """The outputs that are moved or copied when they are returned, and those that are inputs.

        They are decided first.
        """
        outputs, inputs = self.choices.graph.outputs, {value.name for value in self.inputs}
        moved = {outputs[place] for place in self.choices.return_memory}
        names = [n for n in dict.fromkeys(outputs) if n in moved | inputs or outputs.count(n) > 1]
        return [self.values[self.number[name]] for name in names]

    def _at_the_end(self) -> PartialPlans:
        outputs = self.choices.graph.outputs
        eager = self._eager
        codes: dict[int, int] = {}
        for name in outputs:
            codes[self.number[name]] = PENDING
        for value in self.values:
            is_read = any(
                value.name in self.choices.steps[at].application.operands for at in value.users
            )
            if value.makers and not is_read and value.number not in codes:
                codes[value.number] = UNREAD
        for value in self.inputs:
            if not value.users and value.number not in codes:
                codes[value.number] = UNUSED
        plans: PartialPlans = {}
        for options in product(*(range(value.kept) for value in eager)):
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
            self._note(plans, tuple(sorted(new.items())), [plan], len(self.choices.steps))
        return plans

    def _return_peak(self, chosen: Mapping[int, int]) -> Point:
        """Return the peak while the outputs that are decided first are returned."""
        if not self.columns:
            return self.none
        outputs, memory = self.choices.graph.outputs, self.choices.return_memory
        live = self.none
        for number, option in chosen.items():
            live = tuple(map(add, live, self.values[number].sizes[option]))
        most = live
        for place, name in enumerate(outputs):
            number, is_last = self.number[name], name not in outputs[place + 1 :]
            if number not in chosen:
                continue
            size = self.values[number].sizes[chosen[number]]
            if place in memory:
                freed, kept, final = map(self._cells, memory[place][chosen[number]])
                most = tuple(map(max, most, map(add, live, freed if is_last else kept)))
                if is_last:
                    live = tuple(a - b for a, b in zip(live, size))
                live = tuple(map(add, live, final))
            elif not is_last:
                live = tuple(map(add, live, size))
            most = tuple(map(max, most, live))
        return most

    def _sweep(self, at: int) -> None:
        """Take a step in every partial plan that needs it, or leave its results to earlier ones."""
        step, plans = self.choices.steps[at], PartialPlans()
        results = [self.values[self.number[result.value]] for result in step.results]
        self.count, self.sizes = 0, dict[State, int]()
        if self.beam:
            self.tries = self.beam * BEAM_TRIES
        for state, known in self.plans.items():
            entries = dict(state)
            wanted = [v for v in results if entries.get(v.number, INLINED) != INLINED]
            if results and not wanted:
                self._note(plans, state, known, at, is_old=True)
                continue
            if results and all(value.makers[0] < at for value in wanted):
                self._note(plans, state, known, at, is_old=True)
            if any(self.number[name] in entries for name in step.inlined):
                continue
            operands = self.operands[at]
            codes = [entries.get(operand.value.number, PENDING) for operand in operands]
            if all(
                code == PENDING or (code >= 0 and code // 2 < operand.value.kept)
                for code, operand in zip(codes, operands)
            ):
                self._take(at, step, entries, known, plans)
            if self.count > self.limit or self.tries < 0:
                if not self.beam:
                    raise TooWideError(at / len(self.choices.steps))
                break
        self.plans = self._retire(plans, at)
        if self.beam:
            self.plans = self._most_promising(at)

    def _most_promising(self, at: int) -> PartialPlans:
        """Return the best partial plans by each objective, and by their sum, the best first."""
        every = []
        for state, plans in self.plans.items():
            seconds, received, pending, start = self._bound(state, at)
            for plan in plans:
                peak = 0
                if self.columns:
                    first = max(map(add, plan.retired, start))
                    peak = max(first, *map(add, plan.peak, pending))
                point = (plan.costs[0] + seconds, peak, plan.costs[2] + received)
                every.append((point, state, plan))
        most = [max(p[n] for p, *_ in every) or 1 for n in range(3)] if every else []
        wanted = (self.goal.time, self.goal.memory, self.goal.received)
        scaled = [[p[n] / most[n] if wanted[n] else 0.0 for n in range(3)] for p, *_ in every]
        columns = [[sum(row) for row in scaled]]
        columns += [[row[n] for row in scaled] for n in range(3) if wanted[n]]
        orders = [
            sorted(range(len(every)), key=lambda n: (column[n], columns[0][n]))
            for column in columns
        ]
        kept: dict[int, None] = {}
        for best in zip(*orders):
            kept |= dict.fromkeys(best)
            if len(kept) >= self.beam:
                break
        promising = PartialPlans()
        for number in kept:
            _, state, plan = every[number]
            promising.setdefault(state, []).append(plan)
        return promising

    def _note(
        self,
        plans: PartialPlans,
        state: State,
        new: Sequence[_PartialPlan],
        at: int,
        is_old: bool = False,
    ) -> None:
        """Keep partial plans of a state, once all steps from `at` on are decided."""
        if is_old:
            self.count += len(new)
            plans.setdefault(state, []).extend(new)
            return
        bound = self._bound(state, at)
        kept = [plan for plan in new if not self._is_pruned(plan, bound)]
        if kept:
            plans.setdefault(state, []).extend(kept)

    def _bound(self, state: State, at: int) -> tuple[float, float, Point, Point]:
        """Return lower bounds on what earlier steps add: seconds, bytes, and memory.

        Of the memory there are the bytes of pending outputs, which every later step holds, and
        those of the inputs, which are there before the first step.
        """
        seconds: float = 0.0
        received: float = 0
        pending = start = self.none
        for number, code in state:
            value = self.values[number]
            if code >= 0:
                if value.charged_from >= at:
                    seconds += value.seconds[code // 2]
                    received += value.received[code // 2]
            elif code == PENDING and value.charged_from >= at:
                seconds += value.least_seconds
                received += value.least_received
        if self.columns:
            entries = dict(state)
            for number, code in state:
                if code == PENDING:
                    sizes = self.values[number].sizes[: self.values[number].kept]
                    pending = tuple(map(add, pending, map(min, zip(*sizes))))
            for value in self.inputs:
                code = entries.get(value.number, PENDING)
                if code >= 0:
                    start = tuple(map(add, start, value.sizes[code // 2]))
                elif code == UNUSED or (value.users and value.users[0] < at):
                    start = tuple(map(add, start, self.input_sizes[value.number]))
        return seconds, received, pending, start

    def _is_pruned(self, plan: _PartialPlan, bound: tuple[float, float, Point, Point]) -> bool:
        """Whether no completion fits the machine, or a known plan dominates all of them."""
        seconds, received, pending, start = bound
        cost, communicate, moved = plan.costs
        peak = 0
        if self.columns:
            held = map(max, map(add, plan.peak, pending), map(add, plan.retired, start))
            cells = list(held)
            peak = max(cells)
            if any(n > room for n, room in zip(cells, self.rooms)):
                return True
        return self.is_too_much(cost + seconds, communicate, moved + received, peak)

    def is_too_much(self, seconds: float, communicate: float, received: float, peak: float) -> bool:
        """Whether a plan with such costs does not fit the machine, or a known plan dominates it."""
        least = max(seconds * ROUNDING, communicate)
        if least == inf or peak > self.room:
            return True
        moved = received if self.goal.received else 0
        return any(a <= least and b <= peak and c <= moved for a, b, c in self.known)

    def _take(
        self,
        at: int,
        step: PlaceableApplication,
        entries: dict[int, int],
        known: Sequence[_PartialPlan],
        plans: PartialPlans,
    ) -> None:
        """Extend the partial plans of a state by a step, with each of its placements."""
        results = [self.values[self.number[result.value]] for result in step.results]
        own = {value.number for value in results}
        others = {number: code for number, code in entries.items() if number not in own}
        fixed, free = list[tuple[_OperandPrices, int]](), list[_OperandPrices]()
        for operand in self.operands[at]:
            code = others.get(operand.value.number, PENDING)
            if code == PENDING:
                free.append(operand)
            else:
                fixed.append((operand, code // 2))
                others[operand.value.number] = code | 1
        leaves = _Leaves(self, at, step, others, known, fixed, free, plans)
        for choice, cost in enumerate(step.costs):
            choices = [
                self._result_options(value, result, entries.get(value.number, UNREAD), choice)
                for value, result in zip(results, step.results)
            ]
            for options in product(*choices):
                if self.tries >= 0:
                    leaves.place(results, options, choice, self._costs(cost), entries)

    def _result_options(
        self, value: _Value, result: ApplicationResult, code: int, choice: int
    ) -> Sequence[int]:
        """Return the options of a result for a placement; -1 for as computed, without a reader.

        Of an output that no later step reads only those matter that no other dominates.
        """
        if code >= 0:
            option = code // 2
            if option >= value.kept:
                return [option] if result.computed[choice] == option else []
            return [option] if code % 2 or not value.several else []
        if code == UNREAD and (value.several or not value.kept):
            return [-1]
        key = (id(result), choice)
        if key not in self.last_options:
            self.last_options[key] = self._last_results(value, result, choice)
        return self.last_options[key]

    def _last_results(self, value: _Value, result: ApplicationResult, choice: int) -> list[int]:
        assert result.reshard is not None
        points = []
        for option in range(value.kept):
            move = self._move(result.reshard[choice][option])
            costs = map(add, self._sum_of_moves([move]), value.costs[option])
            memory = [*value.sizes[option], *move.reshard_peak] if self.columns else []
            points.append((costs, memory, option))
        return self.undominated_options(value, points)

    def undominated_options(
        self, value: _Value, points: Iterable[tuple[Iterable[float], Sequence[int], int]]
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
        inputs = [v for v in self.inputs if v.number in over]
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
        return {state: self._undominated(known) for state, known in plans.items()}

    def _undominated(self, plans: list[_PartialPlan]) -> list[_PartialPlan]:
        """Return the plans that no other dominates; of equal ones that with the fewest bytes."""
        if len(plans) < 2:
            return plans
        overlaps, received = self.overlaps, self.goal.received
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
            for options in product(*(range(value.kept) for value in unused)):
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
                done = self._undominated(done)
        found: dict[tuple[float, float, float], Chosen] = {}
        for plan in done:
            chosen = self._chosen(plan)
            found.setdefault(chosen.point, chosen)
        front: list[Chosen] = []
        for point in sorted(found):
            if not any(all(a <= b for a, b in zip(one.point, point)) for one in front):
                front.append(found[point])
        return front

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
        frontier: _Frontier,
        at: int,
        step: PlaceableApplication,
        others: dict[int, int],
        known: Sequence[_PartialPlan],
        fixed: Sequence[tuple[_OperandPrices, int]],
        free: Sequence[_OperandPrices],
        plans: PartialPlans,
    ) -> None:
        self.frontier, self.at, self.step, self.plans = frontier, at, step, plans
        self.others, self.known, self.fixed, self.free = others, known, fixed, free
        self.least = tuple(map(min, zip(*(plan.costs for plan in known))))
        self.peak = min((max(plan.peak) for plan in known), default=0) if frontier.columns else 0
        self.peaks = tuple(map(min, zip(*(plan.peak for plan in known))))
        self.live = frontier.none
        self.retired = tuple(map(min, zip(*(plan.retired for plan in known))))
        if frontier.columns:
            for number, code in others.items():
                if code >= 0:
                    sizes = frontier.values[number].sizes
                    self.live = tuple(map(add, self.live, sizes[code // 2]))
        self.inlined = {
            number: INLINED
            for number in map(frontier.number.__getitem__, step.inlined)
            if frontier.values[number].users[0] < at
        }
        self.seconds, self.received, *_ = frontier._bound(tuple(others.items()), at)
        for operand in free:  # a pending output that is read is bounded with its delivery
            if operand.value.number in others and operand.value.charged_from >= at:
                self.seconds -= operand.value.least_seconds
                self.received -= operand.value.least_received

    def place(
        self,
        results: Sequence[_Value],
        options: Sequence[int],
        choice: int,
        cost: tuple[float, float, float],
        entries: Mapping[int, int],
    ) -> None:
        """Extend the partial plans by one placement, and all shardings of new operands."""
        frontier = self.frontier
        a, b, c = cost
        grown, specs = frontier.none, list[tuple[int, int]]()
        for value, option, result in zip(results, options, self.step.results):
            if 0 <= option < value.kept:
                assert result.reshard is not None
                move = result.reshard[choice][option]
                seconds = move.seconds if frontier.goal.time else 0.0
                a, c = a + frontier.share * seconds, c + move.received
                b += seconds if frontier.overlaps else 0.0
            if entries.get(value.number, UNREAD) in (PENDING, UNREAD) and option >= 0:
                extra = value.costs[option]
                a, b, c = a + extra[0], b + extra[1], c + extra[2]
                specs.append((value.number, option))
                if frontier.columns and entries.get(value.number) == PENDING:
                    grown = tuple(map(add, grown, value.sizes[option]))
        for operand, option in self.fixed:
            more = operand.costs[option][choice]
            a, b, c = a + more[0], b + more[1], c + more[2]
        wanted = list(zip(self.step.results, results, options))
        held = self.live
        if frontier.columns:
            for result in self.step.results:
                held = tuple(map(add, held, frontier._cells(result.sizes[choice])))
        later = max(self.peak, max(map(add, self.peaks, grown), default=0))
        self._pick(choice, (a, b, c), (), wanted, grown, specs, held, later)

    def _pick(
        self,
        choice: int,
        cost: tuple[float, float, float],
        picked: tuple[int, ...],
        wanted: Sequence[tuple[ApplicationResult, _Value, int]],
        grown: Point,
        specs: Sequence[tuple[int, int]],
        held: Point,
        later: int,
        bound: tuple[float, float] = (0.0, 0),
    ) -> None:
        """Choose the shardings of new operands, one after the other.

        Cells hold at least `held` while the step runs, and `later` bytes afterwards. `bound` is
        what the operands that are picked cost at least to make, with their shardings.
        """
        frontier, left = self.frontier, self.free[len(picked) :]
        a, b, c = cost
        seconds = self.least[0] + a + bound[0] + self.seconds
        received = self.least[2] + c + bound[1] + self.received
        for operand in left:
            seconds += operand.seconds[choice]
            received += operand.received[choice]
        peak = max(later, *map(add, held, self.retired)) if held else 0
        if frontier.is_too_much(seconds, self.least[1] + b, received, peak):
            return
        if not left:
            self._leaf(choice, cost, picked, wanted, grown, specs)
            return
        operand, value = left[0], left[0].value
        for option in self._options(operand, choice):
            x, y, z = operand.costs[option][choice]
            if option < value.kept:
                extra = value.costs[option]
                x, y, z = x + extra[0], y + extra[1], z + extra[2]
            more = bound
            if operand.pays:
                more = bound[0] + value.seconds[option], bound[1] + value.received[option]
            now = held
            if held:
                now = tuple(map(add, held, value.sizes[option]))
                for move in operand.moves[option][choice]:
                    now = tuple(map(add, now, move.added))
            self._pick(
                choice,
                (a + x, b + y, c + z),
                (*picked, option),
                wanted,
                grown,
                specs,
                now,
                later,
                more,
            )

    def _options(self, operand: _OperandPrices, choice: int) -> Sequence[int]:
        """Return the options of a new operand: kept, or as computed if it is read once.

        Of an input that no earlier step reads only those matter that no other dominates: nothing
        else depends on it.
        """
        value = operand.value
        if value.number in self.others or operand.reads > 1:
            return range(value.kept)  # a pending output, or one that is read more than once
        if value.makers or value.users[0] < self.at:
            return range(len(operand.costs))
        key = (self.at, value.number, choice)
        cache = self.frontier.last_options
        if key not in cache:
            cache[key] = self._last_options(operand, choice)
        return cache[key]

    def _last_options(self, operand: _OperandPrices, choice: int) -> list[int]:
        frontier, value, points = self.frontier, operand.value, []
        for option in range(value.kept):
            costs = map(add, operand.costs[option][choice], value.costs[option])
            memory: list[int] = []
            if frontier.columns:
                memory = list(value.sizes[option])
                for move in operand.moves[option][choice]:
                    memory += [*move.peak, *move.added]
            points.append((costs, memory, option))
        return frontier.undominated_options(value, points)

    def _leaf(
        self,
        choice: int,
        cost: tuple[float, float, float],
        picked: Sequence[int],
        wanted: Sequence[tuple[ApplicationResult, _Value, int]],
        grown: Point,
        specs: Sequence[tuple[int, int]],
    ) -> None:
        frontier = self.frontier
        entries, live = dict(self.others), self.live
        chosen = list(specs)
        for operand, option in zip(self.free, picked):
            value = operand.value
            is_pending = value.number in self.others
            several = operand.reads > 1 or is_pending or not value.several
            entries[value.number] = 2 * option + (several and option < value.kept)
            if option < value.kept:
                chosen.append((value.number, option))
            if frontier.columns:
                live = tuple(map(add, live, value.sizes[option]))
                if is_pending:
                    grown = tuple(map(add, grown, value.sizes[option]))
        top = self._memory(choice, live, picked, wanted) if frontier.columns else ()
        state = tuple(sorted((entries | self.inlined).items()))
        bound = frontier._bound(state, self.at)
        held = sum(frontier.values[number].most[option] for number, option in chosen)
        a, b, c = cost
        kept = []
        for plan in self.known:
            peak = plan.peak
            if frontier.columns:
                if grown:
                    peak = tuple(map(add, peak, grown))
                peak = tuple(map(max, peak, map(add, top, plan.retired)))
            x, y, z = plan.costs
            new = _PartialPlan(
                (x + a, y + b, z + c),
                peak,
                plan.retired,
                plan,
                (self.at, choice),
                tuple(chosen),
                plan.held + held,
            )
            if not frontier._is_pruned(new, bound):
                kept.append(new)
        frontier.tries -= len(self.known)
        if kept:
            known = self.plans.setdefault(state, [])
            known += kept
            frontier.count += len(kept)
            if len(known) > frontier.sizes.get(state, 32):  # compact it when it has doubled
                left = frontier._undominated(known)
                frontier.count += len(left) - len(known)
                frontier.sizes[state] = 2 * len(left) + 32
                known[:] = left

    def _memory(
        self,
        choice: int,
        live: Point,
        picked: Sequence[int],
        wanted: Sequence[tuple[ApplicationResult, _Value, int]],
    ) -> Point:
        """Return the most bytes of the cells while the step runs, without retired inputs."""
        frontier, at = self.frontier, self.at
        options = {operand.value.number: option for operand, option in self.fixed}
        options |= {operand.value.number: o for operand, o in zip(self.free, picked)}
        places = dict.fromkeys(options, 0)
        most = held = live
        by_value = {operand.value.number: operand for operand in frontier.operands[at]}
        names = self.step.application.operands if self.step.deliveries else ()
        for name in names:
            number = frontier.number[name]
            moves = by_value[number].moves[options[number]][choice]
            move = moves[places[number]]
            places[number] += 1
            most = tuple(map(max, most, map(add, held, move.peak)))
            held = tuple(map(add, held, move.added))
        results = frontier.none
        for result, _, _ in wanted:
            results = tuple(map(add, results, frontier._cells(result.sizes[choice])))
        most = tuple(map(max, most, map(add, held, results)))
        live = tuple(map(add, live, results))
        for result, value, option in wanted:
            if 0 <= option < value.kept:
                assert result.reshard is not None
                move = frontier._move(result.reshard[choice][option])
                most = tuple(map(max, most, map(add, live, move.reshard_peak)))
                size = frontier._cells(result.sizes[choice])
                change = (new - old for new, old in zip(value.sizes[option], size))
                live = tuple(map(add, live, change))
        return most


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
