"""Lower bounds on the costs of plans, and the options that no better plan can have.

The bounds are those of a relaxation in which a value may lie differently for each of its readers,
and is paid for by at most one of them. Dynamic programming over the steps, from first to last,
bounds what it costs to make a value; from last to first, what everything else costs. The sum of the
two bounds every plan that has an option: where a known plan is no worse, the option is excluded
(integer programming calls this reduced-cost fixing).

Peak memory does not add up. Plans are searched by ranges of it: in each, an option is excluded that
takes more memory than the range allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from operator import add, itemgetter
from typing import NamedTuple

from weft.layout import ShardingSpec
from weft.plan.placed import Placed
from weft.plan.searching.choice_graph import ChoiceGraph, exclusion
from weft.plan.searching.prices import MoveCost, OptionCost
from weft.values import Point

ROUNDING = 1 + 1e-12
"""Sums in another order differ by rounding."""

Triple = tuple[float, float, float]
"""Computation with communication that cannot overlap, all communication, and bytes."""


class Goal(NamedTuple):
    """The objectives to minimize."""

    time: bool = True
    received: bool = True
    memory: bool = True


ALL = Goal()


class PricedValue:
    """A value: its options, where it is made and used, and what it costs to keep it."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.kept = 0
        """How many options there are in which it may be kept."""
        self.several = False
        """Whether it is kept only if it is read more than once."""
        self.sizes: list[Point] = []
        """By option the bytes on the distinct cells."""
        self.most: list[int] = []
        """By option the bytes on the fullest cell."""
        self.costs: list[Triple] = []
        """The costs of the options in which it may be kept."""
        self.makers: list[int] = []
        self.users: list[int] = []
        """The steps that read it, or compute it inside."""
        self.readers: list[int] = []
        self.payers: list[int] = []
        """The readers that pay for it in the bounds: no two of them run together."""
        self.is_paid = False
        """Whether one of them runs wherever it is made."""


class PricedOperand(NamedTuple):
    """An operand of a step; placements that need it alike are one kind."""

    value: PricedValue
    reads: int
    kinds: list[int]
    """By placement."""
    costs: list[list[Triple]]
    """By kind and option, what it costs to deliver it."""
    moves: list[list[tuple[MoveCost, ...]]]
    """The same for every place where the step reads it, with memory on the distinct cells."""
    memory: list[list[int]]
    """The bytes on the first cell, where it lies and as delivered."""
    pays: bool


class PricedResult(NamedTuple):
    """A result of a step."""

    value: PricedValue
    sizes: list[Point]
    """By placement the bytes on the distinct cells as computed."""
    rows: list[int]
    """By placement the kind of its reshards."""
    moves: list[list[MoveCost]]
    """By kind and option, the reshard to where it is kept."""
    costs: list[list[Triple]]
    computed: tuple[int, ...]
    """By placement the number of the sharding as computed; empty if it is always kept."""


class PricedStep(NamedTuple):
    """A step with the costs of its placements."""

    costs: list[Triple]
    operands: list[PricedOperand]
    results: list[PricedResult]
    order: list[int]
    """For every operand of the application its place among `operands`."""
    inlined: list[int]
    memory: list[int]
    """By placement the bytes on the first cell of its results and of inputs that are read later."""


class PricedChoices:
    """The costs of a choice graph for some objectives, with memory on distinct cells only."""

    def __init__(self, choices: ChoiceGraph, goal: Goal) -> None:
        self.choices, self.goal = choices, goal
        self.share = 1.0 - choices.machine.overlap
        self.overlaps = goal.time and choices.machine.overlap > 0
        self._reduced: dict[Point, Point] = {}
        self._moves: dict[int, MoveCost] = {}
        self._together: dict[tuple[str, ...], tuple[list[list[int]], list[list[int]]]] = {}
        self.columns = self._distinct_cells() if goal.memory else []
        self.none = (0,) * len(self.columns)
        rooms = [choices.rooms[cell] for cell in self.columns]
        self.room = max(rooms, default=inf)
        self.rooms = rooms if len(set(rooms)) > 1 else []
        """The capacities of the distinct cells, where they differ."""
        self.values = self._make_values()
        self.steps = [self._make_step(at) for at in range(len(choices.steps))]
        self.cones: list[frozenset[int]] = [frozenset()] * len(self.values)
        """For every value those that are read to make it, as far as it pays for them."""
        for step in self.steps:
            for result in step.results:
                for operand in step.operands:
                    other, number = operand.value.number, result.value.number
                    more = self.cones[other] if operand.pays else frozenset()
                    self.cones[number] = self.cones[number] | more | {other}

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
        rows = {id(row): row for table in tables.values() for row in table}
        moves = {id(move): move for row in rows.values() for move in row}
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

    def cells(self, point: Point) -> Point:
        """Return the bytes of the distinct cells."""
        if point not in self._reduced:
            self._reduced[point] = tuple(point[cell] for cell in self.columns)
        return self._reduced[point]

    def _move(self, move: MoveCost) -> MoveCost:
        """Return a move with memory on the distinct cells."""
        if id(move) not in self._moves:
            memory = (
                [self.cells(each) if each else self.none for each in move[2:]]
                if self.columns
                else [(), (), ()]
            )
            self._moves[id(move)] = MoveCost(move.seconds, move.received, *memory)
        return self._moves[id(move)]

    def _cost(self, cost: OptionCost) -> Triple:
        """Return the three numbers that add up; 0 for what is not needed."""
        return (
            cost.compute + self.share * cost.communicate if self.goal.time else 0.0,
            cost.communicate if self.overlaps else 0.0,
            cost.received,
        )

    def _sum_of_moves(self, moves: Sequence[MoveCost]) -> Triple:
        seconds = sum(move.seconds for move in moves) if self.goal.time else 0.0
        received = sum(move.received for move in moves)
        return self.share * seconds, seconds if self.overlaps else 0.0, received

    def _make_values(self) -> list[PricedValue]:
        graph, made = self.choices.graph, []
        for number, (name, options) in enumerate(self.choices.values.items()):
            value = PricedValue(number, name)
            value.kept, value.several = options.kept, options.several
            value.sizes = [self.cells(size) if self.columns else () for size in options.sizes]
            value.most = [max(size, default=0) for size in options.sizes]
            value.costs = list(map(self._cost, options.costs))
            made.append(value)
        self.number = {value.name: value.number for value in made}
        self.inputs = [made[self.number[value.name]] for value in graph.inputs]
        self.outputs = [made[self.number[name]] for name in dict.fromkeys(graph.outputs)]
        for at, step in enumerate(self.choices.steps):
            for result in step.results:
                made[self.number[result.value]].makers.append(at)
            for name in dict.fromkeys(step.application.operands):
                made[self.number[name]].readers.append(at)
            for name in {*step.application.operands, *step.inlined}:
                made[self.number[name]].users.append(at)
        steps = [(step.application, step.inlined) for step in self.choices.steps]
        excludes = exclusion(steps, graph.outputs)
        for value in made:
            for at in reversed(value.readers if value not in self.outputs else ()):
                if all(excludes(at, other) for other in value.payers):
                    value.payers.append(at)
        for value in made:
            pays = {*value.payers}
            implied = [self._implies(at, pays, made) for at in value.readers]
            value.is_paid = value not in self.outputs and bool(implied) and all(implied)
        self._live_until = self._certain_lives(made)
        return made

    def _implies(self, at: int, payers: set[int], values: Sequence[PricedValue]) -> bool:
        """Whether one of some steps runs wherever a step runs, as its results have other users."""
        if at in payers:
            return True
        step = self.choices.steps[at]
        if len(step.results) != 1:
            return False
        value = values[self.number[step.results[0].value]]
        readers = value.readers if value not in self.outputs else []
        return bool(readers) and all(self._implies(reader, payers, values) for reader in readers)

    def _certain_lives(self, values: Sequence[PricedValue]) -> dict[int, int]:
        """Return for inputs the step before which no plan has read them for the last time."""
        needed, until = {value.number for value in self.outputs}, dict[int, int]()
        for value in reversed(values):
            if value.number in needed and value.makers:
                operands = [
                    {*map(self.number.__getitem__, self.choices.steps[at].application.operands)}
                    for at in value.makers
                ]
                common = set[int].intersection(*operands)
                needed |= common
                for number in common:
                    until[number] = max(until.get(number, 0), value.makers[0])
        until |= {value.number: len(self.choices.steps) for value in self.outputs}
        return {value.number: until.get(value.number, 0) for value in self.inputs}

    def _make_step(self, at: int) -> PricedStep:
        step = self.choices.steps[at]
        names = step.application.operands
        order = list(dict.fromkeys(names))
        results = []
        for result in step.results:
            value, kinds = self.values[self.number[result.value]], dict[int, int]()
            table = result.reshard or ()
            rows = [kinds.setdefault(id(row), len(kinds)) for row in table]
            firsts = [table[rows.index(kind)] for kind in range(len(kinds))]
            moves = [[self._move(move) for move in row[: value.kept]] for row in firsts]
            costs = [[self._sum_of_moves([move]) for move in row] for row in moves]
            sizes = [self.cells(size) if self.columns else () for size in result.sizes]
            results.append(PricedResult(value, sizes, rows, moves, costs, result.computed))
        memory = [0] * len(step.options)
        if self.columns:
            operands = {*map(self.number.__getitem__, names)}
            live = sum(
                min(size[0] for size in value.sizes)
                for value in self.inputs
                if value.number not in operands and self._live_until[value.number] > at
            )
            memory = [
                live + sum(result.sizes[choice][0] for result in results)
                for choice in range(len(memory))
            ]
        return PricedStep(
            list(map(self._cost, step.costs)),
            [self._make_operand(at, name) for name in order],
            results,
            list(map(order.index, names)) if step.deliveries else [],
            [self.number[name] for name in step.inlined],
            memory,
        )

    def using_together(self, axes: tuple[str, ...]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the placements of steps, and the options of values, that use axes as if one."""
        if axes not in self._together:
            choices = self.choices
            self._together[axes] = (
                [[n for n, o in enumerate(s.options) if _is_one(o, axes)] for s in choices.steps],
                [
                    [n for n, o in enumerate(v.specs) if _is_one(o, axes)]
                    for v in choices.values.values()
                ],
            )
        placements, options = self._together[axes]
        return list(map(list, placements)), list(map(list, options))

    def _make_operand(self, at: int, name: str) -> PricedOperand:
        step, value = self.choices.steps[at], self.values[self.number[name]]
        names = step.application.operands
        tables = [t for n, t in zip(names, step.deliveries) if n == name]
        columns: dict[object, int] = {}
        keys = zip(*(map(id, row) for table in tables for row in table))
        kinds = [columns.setdefault(key, len(columns)) for key in keys] or [0] * len(step.options)
        firsts = [kinds.index(kind) for kind in range(len(columns) or 1)]
        options = range(len(value.sizes))
        moves = [
            [tuple(self._move(table[option][choice]) for table in tables) for option in options]
            for choice in firsts
        ]
        costs = [list(map(self._sum_of_moves, column)) for column in moves]
        memory = [
            [
                size[0] + sum(move.added[0] for move in each) if self.columns else 0
                for size, each in zip(value.sizes, column)
            ]
            for column in moves
        ]
        pays = at in value.payers
        return PricedOperand(value, names.count(name), kinds, costs, moves, memory, pays)


def _is_one(option: Placed | ShardingSpec, axes: Sequence[str]) -> bool:
    """Whether a placement or a sharding uses some axes as if they were one axis."""
    if len(axes) < 2:
        return True
    uses: dict[object, object] = {}
    if isinstance(option, Placed):
        uses = {axis: dim for dim, by in option.placement.items() for axis in by}
    else:
        uses = {axis: dim for dim, by in enumerate(option.dim_specs) for axis in by.axes}
        uses |= dict(option.partial.items())
    return len({uses.get(axis) for axis in axes}) == 1


Bound = tuple[float, ...]
"""By measure, a lower bound."""


class Measure:
    """One number for every cost: time, bytes, or a weighted sum of them."""

    def __init__(self, priced: PricedChoices, number: Callable[[Triple], float]) -> None:
        self.steps = [list(map(number, step.costs)) for step in priced.steps]
        self.operands = [
            [[list(map(number, column)) for column in operand.costs] for operand in step.operands]
            for step in priced.steps
        ]
        self.results = [
            [[list(map(number, row)) for row in result.costs] for result in step.results]
            for step in priced.steps
        ]
        self.values = [
            [*map(number, value.costs), *[0] * (len(value.sizes) - value.kept)]
            for value in priced.values
        ]

    @staticmethod
    def of(priced: PricedChoices, weight: float) -> list[Measure]:
        """Return the measures for the objectives; `weight` is that of a second, in bytes."""
        goal, every = priced.goal, list[Measure]()
        if goal.time:
            every.append(Measure(priced, itemgetter(0)))
        if goal.received or not goal.time:  # for memory alone, to see what cannot be made
            every.append(Measure(priced, itemgetter(2)))
        if goal.time and goal.received:
            every.append(Measure(priced, lambda cost: weight * cost[0] + cost[2]))
        return every


class Relaxation:
    """Lower bounds for plans in a range of memory, and the options that are left.

    `boxes` lists what no known plan dominates: a plan is better only if it is below some box in
    every measure.
    """

    def __init__(
        self,
        priced: PricedChoices,
        measures: Sequence[Measure],
        weight: float,
        most: float,
        boxes: Sequence[Bound],
        together: Sequence[str] = (),
    ) -> None:
        self.priced, self.measures, self.weight = priced, measures, weight
        self.most, self.boxes = most, boxes
        self.placements, self.options = priced.using_together(tuple(together))
        """The placements of steps, and the options of values, that are not excluded."""
        self.pairs = [
            [[list(range(len(column))) for column in operand.costs] for operand in step.operands]
            for step in priced.steps
        ]
        """The options of each operand of each step that are not excluded, by kind."""
        if priced.columns:
            self._exclude_by_memory()
        self.is_empty = not boxes
        for with_pairs in (False, True):
            if self.is_empty:
                return
            self._bound()
            self._exclude(with_pairs)
        self._bound()
        self._given: dict[object, list[Bound]] = {}
        self._rows: dict[object, list[float]] = {}

    def is_dominated(self, least: Sequence[float]) -> bool:
        """Whether known plans are no worse than all that cost at least so much, by measure."""
        for box in self.boxes:
            for x, y in zip(least, box):
                if x >= y:
                    break
            else:
                return False
        return True

    def _exclude_by_memory(self) -> None:
        most = self.most
        for at, step in enumerate(self.priced.steps):
            least = [list(map(min, operand.memory)) for operand in step.operands]
            held = [
                own + sum(row[o.kinds[choice]] for row, o in zip(least, step.operands))
                for choice, own in enumerate(step.memory)
            ]
            self.placements[at] = [n for n in self.placements[at] if held[n] <= most]
            for place, operand in enumerate(step.operands):
                rest = _least_by_kind(
                    ((n, held[n]) for n in self.placements[at]), operand, least[place]
                )
                self.pairs[at][place] = [
                    [n for n, own in enumerate(memory) if more + own <= most]
                    for memory, more in zip(operand.memory, rest)
                ]

    def _bound(self) -> None:
        """Bound what it costs to make each value in each option, first to last."""
        self.made: list[list[list[float]]] = []
        """By measure, value and option."""
        self.messages: list[list[list[list[float]]]] = []
        """By measure, step, operand and kind: the least to deliver it, and to make it if paid."""
        self.totals: list[list[dict[int, float]]] = []
        """By measure, step and placement: the step, with all that its operands cost."""
        self.least: list[list[float]] = []
        """By measure and value: the least to make it, and to keep it."""
        values = self.priced.values
        for measure in self.measures:
            made = [[inf if v.makers else 0] * len(v.sizes) for v in values]
            messages, totals = list[list[list[float]]](), list[dict[int, float]]()
            for at, step in enumerate(self.priced.steps):
                rows = [
                    self._deliver(measure, at, place, made[operand.value.number])
                    for place, operand in enumerate(step.operands)
                ]
                total = self._total(measure, at, rows)
                for place, result in enumerate(step.results):
                    own = total if not place else dict.fromkeys(total, 0)  # the first one pays
                    number = result.value.number
                    self._make(result, own, measure.results[at][place], made[number])
                messages.append(rows)
                totals.append(total)
            self.made.append(made)
            self.messages.append(messages)
            self.totals.append(totals)
            kept = [list(map(add, *rows)) for rows in zip(made, measure.values)]
            self.least.append([min(row[: v.kept], default=0) for v, row in zip(values, kept)])

    def _deliver(
        self,
        measure: Measure,
        at: int,
        place: int,
        made: Sequence[float],
        only: int | None = None,
    ) -> list[float]:
        """Return by kind the least to deliver an operand, and to make it if the step pays."""
        operand, columns = self.priced.steps[at].operands[place], measure.operands[at][place]
        pairs = self.pairs[at][place]
        own = [0] * len(made)
        if operand.pays:
            own = list(map(add, made, measure.values[operand.value.number]))
        if only is not None:
            return [
                column[only] + own[only] if only in options else inf
                for column, options in zip(columns, pairs)
            ]
        if not operand.pays:
            return [min([c[n] for n in options], default=inf) for c, options in zip(columns, pairs)]
        return [
            min([column[n] + own[n] for n in options], default=inf)
            for column, options in zip(columns, pairs)
        ]

    def _total(
        self, measure: Measure, at: int, rows: Sequence[Sequence[float]]
    ) -> dict[int, float]:
        """Return by placement what a step costs with its operands."""
        costs = measure.steps[at]
        total = {choice: costs[choice] for choice in self.placements[at]}
        for operand, row in zip(self.priced.steps[at].operands, rows):
            kinds = operand.kinds
            total = {choice: cost + row[kinds[choice]] for choice, cost in total.items()}
        return total

    def made_given(self, number: int, fixed: Mapping[int, int]) -> list[Bound]:
        """Return by option what it costs at least to make a value if others have some options."""
        key = number, tuple(sorted(fixed.items()))
        if key not in self._given:
            rows = [self._made_given(n, number, fixed) for n in range(len(self.measures))]
            self._given[key] = list(zip(*rows))
        return self._given[key]

    def least_given(self, at: int, place: int, fixed: Mapping[int, int]) -> list[Bound]:
        """Return by kind the least to deliver an operand, and to make it if the step pays."""
        number = self.priced.steps[at].operands[place].value.number
        given = {n: fixed[n] for n in self.priced.cones[number] if n in fixed}
        key = at, place, tuple(sorted(given.items()))
        if key not in self._given:
            rows = [
                self._deliver(measure, at, place, self._made_given(n, number, given))
                for n, measure in enumerate(self.measures)
            ]
            kinds = len(self.pairs[at][place])
            self._given[key] = list(zip(*rows)) or [()] * kinds
        return self._given[key]

    def _made_given(self, measure: int, number: int, fixed: Mapping[int, int]) -> list[float]:
        priced, value = self.priced, self.priced.values[number]
        cone = priced.cones[number]
        fixed = {other: option for other, option in fixed.items() if other in cone}
        if not fixed:
            return self.made[measure][number]
        key = measure, number, tuple(sorted(fixed.items()))
        if key in self._rows:
            return self._rows[key]
        made: list[float] = [inf] * len(value.sizes)
        for at in value.makers:
            step, rows = priced.steps[at], list[list[float]]()
            for place, operand in enumerate(step.operands):
                other = operand.value.number
                own, only = self.made[measure][other], fixed.get(other)
                if operand.pays and not priced.cones[other].isdisjoint(fixed):
                    own = self._made_given(measure, other, fixed)
                elif only is None:
                    rows.append(self.messages[measure][at][place])
                    continue
                rows.append(self._deliver(self.measures[measure], at, place, own, only))
            total = self._total(self.measures[measure], at, rows)
            for place, result in enumerate(step.results):
                if result.value is value:
                    paid = total if not place else dict.fromkeys(total, 0)
                    moves = self.measures[measure].results[at][place]
                    self._make(result, paid, moves, made)
        self._rows[key] = made
        return made

    def _make(
        self,
        result: PricedResult,
        total: Mapping[int, float],
        moves: Sequence[Sequence[float]],
        row: list[float],
    ) -> None:
        """Bound what it costs to make a result, by option."""
        best = dict[int, float]()
        options = self.options[result.value.number]
        for choice, cost in total.items():
            if result.computed:
                option = result.computed[choice]
                if cost < row[option] and option in options:
                    row[option] = cost
            if result.rows:
                kind = result.rows[choice]
                if cost < best.get(kind, inf):
                    best[kind] = cost
        kept = [option for option in options if option < result.value.kept]
        for kind, cost in best.items():
            own = moves[kind]
            for option in kept:
                row[option] = min(row[option], cost + own[option])

    def _exclude(self, with_pairs: bool) -> None:
        """Exclude the options, and at last the pairs, that no better plan has."""
        priced = self.priced
        placements, options, pairs = zip(*map(self._plans_with, range(len(self.measures))))
        for at, choices in enumerate(self.placements):
            choices[:] = [
                choice
                for choice in choices
                if not self.is_dominated([whole[at][choice] for whole in placements])
            ]
        for number, left in enumerate(self.options):
            left[:] = [
                option
                for option in left
                if not self.is_dominated([whole[number][option] for whole in options])
            ]
        self.is_empty = any(not self.options[v.number] for v in (*priced.inputs, *priced.outputs))
        for at, step in enumerate(priced.steps):
            for place, operand in enumerate(step.operands):
                used = {operand.kinds[choice] for choice in self.placements[at]}
                allowed = {*self.options[operand.value.number]}
                for kind, left in enumerate(self.pairs[at][place]):
                    whole = [one[at][place][kind] for one in pairs]
                    left[:] = [
                        option
                        for option in (left if kind in used else ())
                        if option in allowed
                        and not (with_pairs and self.is_dominated([w[option] for w in whole]))
                    ]

    def _plans_with(
        self, number: int
    ) -> tuple[list[dict[int, float]], list[list[float]], list[list[list[dict[int, float]]]]]:
        """Return bounds by one measure for all plans with a placement, an option, or a pair."""
        priced, measure, made = self.priced, self.measures[number], self.made[number]
        least = self.least[number]
        total = sum(least[value.number] for value in priced.outputs)
        out = [[inf if v.is_paid else total] * len(v.sizes) for v in priced.values]
        """By value and option, a bound on everything else."""
        for value in priced.outputs:
            others = sum(least[v.number] for v in priced.outputs if v is not value)
            out[value.number] = [others + cost for cost in measure.values[value.number]]
        whole: list[dict[int, float]] = [{} for _ in priced.steps]
        pairs: list[list[list[dict[int, float]]]] = [[] for _ in priced.steps]
        for at in reversed(range(len(priced.steps))):
            step, own = priced.steps[at], self.totals[number][at]
            outside = self._after(step, own, out, measure.results[at], total)
            whole[at] = {choice: outside[choice] + cost for choice, cost in own.items()}
            for place, operand in enumerate(step.operands):
                operand_number = operand.value.number
                row, paid, kept = (
                    out[operand_number],
                    made[operand_number],
                    measure.values[operand_number],
                )
                rests = _least_by_kind(whole[at].items(), operand, self.messages[number][at][place])
                columns = measure.operands[at][place]
                pairs[at].append([])
                for rest, column, options in zip(rests, columns, self.pairs[at][place]):
                    if operand.pays:
                        costs = {n: rest + column[n] + kept[n] for n in options}
                        for option, cost in costs.items():
                            row[option] = min(row[option], cost)
                            costs[option] = cost + paid[option]
                    else:
                        costs = {n: rest + column[n] for n in options}
                    pairs[at][-1].append(costs)
        return whole, [list(map(add, *rows)) for rows in zip(out, made)], pairs

    def _after(
        self,
        step: PricedStep,
        choices: Iterable[int],
        out: Sequence[Sequence[float]],
        moves: Sequence[Sequence[Sequence[float]]],
        total: float,
    ) -> dict[int, float]:
        """Return by placement a bound on everything but a step and what its operands cost.

        `total` bounds all plans; a step that nothing pays for adds to it.
        """
        if not step.results:
            return dict.fromkeys(choices, total)
        result, least, outside = step.results[0], dict[int, float](), dict[int, float]()
        row, options = out[result.value.number], self.options[result.value.number]
        kept = [option for option in options if option < result.value.kept]
        for choice in choices:
            cost = row[result.computed[choice]] if result.computed else inf
            if result.rows:
                kind = result.rows[choice]
                if kind not in least:
                    own = moves[0][kind]
                    least[kind] = min([row[n] + own[n] for n in kept], default=inf)
                cost = min(cost, least[kind])
            outside[choice] = min(cost, total) if len(step.results) > 1 else cost
        return outside


def _least_by_kind(
    costs: Iterable[tuple[int, float]], operand: PricedOperand, own: Sequence[float]
) -> list[float]:
    """Return by kind the least cost of a placement, without that of the operand itself."""
    rest = [inf] * len(operand.costs)
    for choice, cost in costs:
        kind = operand.kinds[choice]
        if cost < inf and cost - own[kind] < rest[kind]:
            rest[kind] = cost - own[kind]
    return rest


def boxes_below(points: Iterable[tuple[float, float]], goal: Goal, weight: float) -> list[Bound]:
    """Return what no point dominates: corners of the staircase that points of time and bytes make.

    >>> boxes_below([(1.0, 8), (3.0, 2)], Goal(), 1.0)
    [(1.0, inf, inf), (3.0, 8, 11.0), (inf, 2, inf)]
    >>> boxes_below([(1.0, 0)], Goal(received=False), 1.0)
    [(1.0,)]
    >>> boxes_below([(0.0, 0)], Goal(False, False), 1.0), boxes_below([], Goal(False, False), 1.0)
    ([], [(inf,)])
    """
    corners, lowest = list[tuple[float, float]](), inf
    for seconds, received in sorted(points):
        if received < lowest:
            corners.append((seconds, lowest))
            lowest = received
    corners.append((inf, lowest))
    if not goal.time:
        corners = [corner for corner in corners if corner[0] > 0]
    boxes = list[Bound]()
    for seconds, received in corners:
        if not received:
            continue
        box = [seconds] * goal.time + [received] * (goal.received or not goal.time)
        if goal.time and goal.received:
            box.append(weight * seconds + received)
        boxes.append(tuple(box))
    return boxes
