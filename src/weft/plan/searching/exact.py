"""The whole front, exactly: a dynamic programme along the program.

Decisions are taken one after the other in the order of the program. What is still to be read is
the state; for each state the partial plans are kept that no other of that state dominates. An input
lies on its cells from the beginning, though it is decided at its first use: its bytes are added to
all that was before. Nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from operator import add
from typing import NamedTuple

from weft.plan.placed import Placed
from weft.plan.searching.ahead import ALL, Ahead, Goal, Least
from weft.plan.searching.pareto import best, dominates
from weft.plan.searching.problem import Found, Link, Made, Moment, Problem

State = tuple[int, ...]


class TooWideError(Exception):
    """The graph is too wide: more partial plans than one may keep."""


class _Label(NamedTuple):
    """A partial plan: what it costs so far, and how it came to be."""

    costs: tuple[float, ...]
    """Compute with what of communication cannot hide, communication, bytes."""
    most: tuple[int, ...]
    """The most that the cells held so far."""
    gone: tuple[int, ...]
    """What outputs hold on the cells of which nothing more is to be decided."""
    before: _Label | None
    choice: int

    @property
    def point(self) -> tuple[float, ...]:
        return (*self.costs, *self.most, *self.gone)


Labels = dict[State, list[_Label]]


def _undominated(labels: list[_Label]) -> list[_Label]:
    return [label for _, label in best((label.point, label) for label in labels)]


ROUNDING = 1 + 1e-12
"""Sums in another order differ by rounding."""


def sweep(
    problem: Problem,
    goal: Goal = ALL,
    known: Sequence[Found] = (),
    limit: int = 200_000,
    tries: float = inf,
) -> list[list[int]]:
    """Choices for every point of the front, by what is to be small.

    Plans that are `known` already leave out what they dominate. A `TooWideError` is raised if more
    partial plans than `limit` would be kept at once, or more than `tries` were priced in all.
    """
    return _Sweep(problem, goal, known, limit, tries).front()


class _Sweep:
    def __init__(
        self,
        problem: Problem,
        goal: Goal,
        known: Sequence[Found],
        limit: int,
        tries: float = inf,
    ) -> None:
        self.problem, self.goal, self.limit, self.tries = problem, goal, limit, tries
        kept = next(iter(problem.kept.values()), None)
        cells = len(kept.sizes[0]) if kept and goal.memory else 0
        self.none = (0,) * cells
        self.order: list[int] = []
        """The decisions that have been taken, first to last."""
        self.state: list[int] = []
        """Those whose choice is still of consequence, in the order of a state."""
        self.alive: list[str] = []
        """The values that lie on the cells, of those whose decision is in the state."""
        self.pending = self._count_links()
        self.ahead = Ahead(problem, goal, self._decision_order())
        self.known = [(self._point(found), list(found)) for found in known]
        self.labels: Labels = {(): [_Label((0.0, 0.0, 0), self.none, self.none, None, -1)]}

    # -- the order

    def front(self) -> list[list[int]]:
        problem = self.problem
        inputs = {value.name for value in problem.graph.inputs}
        for name in problem.unused:
            self._introduce(inputs, name)
            self.alive.remove(name)
        for number, moment in enumerate(problem.moments):
            for name in problem.graph.applications[number].operands:
                self._introduce(inputs, name)
            self._apply(moment)
        for name in sorted(inputs):
            self._introduce(inputs, name)
        found = [*self.known]
        for labels in self.labels.values():
            for label in labels:
                choices = self._choices(label)
                found.append((self._point(choices), choices))
        return [choices for _, choices in best(found)]

    def _introduce(self, inputs: set[str], name: str) -> None:
        """An input, where it is read first."""
        if name in inputs:
            inputs.discard(name)
            decision = self.problem.kept[name].decision
            self._take(decision, (), lambda state, choice: None, is_input=True)
            self.alive.append(name)

    def _apply(self, moment: Moment) -> None:
        self._take(moment.decision, moment.brought, self._kernel(moment))
        unsettled = [made for made in moment.made if made.settled is not None]
        self.alive += [made.name for made in moment.made if made.settled is None]
        for number, made in enumerate(unsettled):
            assert made.settled is not None
            later = self._later(moment.decision, unsettled[number:])
            self._take(made.settled.second, (made.settled,), self._settle(made, later))
            self.alive.append(made.name)
        for name in moment.ends:
            self.alive.remove(name)
        self._forget()

    # -- one decision

    def _take(
        self,
        decision: int,
        links: Sequence[Link],
        room: Callable[[State, int], tuple[int, ...] | None],
        is_input: bool = False,
    ) -> None:
        """Take a decision in every way; `room` says what cells then hold at most."""
        places = [self.state.index(link.first) for link in links]
        prices = self.problem.decisions[decision].prices
        share = 1.0 - self.problem.machine.overlap
        sizes = self._sizes(decision) if is_input else None
        self.order.append(decision)
        self.state.append(decision)
        for link in links:
            self.pending[link.first] -= 1
            self.pending[link.second] -= 1
        ahead, same = self.ahead.after(self.order, self.state), self._same(decision)
        made: Labels = {}
        count = 0
        for state, labels in self.labels.items():
            for choice, price in enumerate(prices):
                moves = [link.table[state[at]][choice] for link, at in zip(links, places)]
                talk = price.communicate + sum(move.seconds for move in moves)
                bytes_ = price.received + sum(move.received for move in moves)
                more = self._goal((price.compute + share * talk, talk, bytes_))
                top = room(state, choice) if self.goal.memory else None
                least, found = ahead((*state, choice)), []
                for label in labels:
                    most = label.most
                    if sizes is not None and self.goal.memory:
                        most = tuple(map(add, most, sizes[choice]))
                    if top is not None:
                        most = tuple(map(max, most, map(add, top, label.gone)))
                    costs = tuple(map(add, label.costs, more))
                    new = _Label(costs, most, label.gone, label, choice)
                    if not self._is_hopeless(new, least):
                        found.append(new)
                if found:
                    made.setdefault((*state, same[choice]), []).extend(found)
                    count += len(found)
            self.tries -= len(labels) * len(prices)
            if count > self.limit or self.tries < 0:
                raise TooWideError
        are_merged = len(set(same)) < len(same)
        self.labels = {s: _undominated(each) for s, each in made.items()} if are_merged else made

    def _same(self, decision: int) -> list[int]:
        """For every choice the first that leaves its results in the same shardings."""
        firsts: dict[object, int] = {}
        return [
            firsts.setdefault(choice.results if isinstance(choice, Placed) else choice, number)
            for number, choice in enumerate(self.problem.decisions[decision].choices)
        ]

    def _goal(self, costs: tuple[float, float, int]) -> tuple[float, float, int]:
        """What does not matter counts nothing."""
        compute, talk, received = costs
        overlaps = self.problem.machine.overlap > 0
        return (
            compute if self.goal.time else 0.0,
            talk if self.goal.time and overlaps else 0.0,
            received if self.goal.received else 0,
        )

    def _is_hopeless(self, label: _Label, least: Least) -> bool:
        """Whether a plan that is known is no worse than anything that could come of this."""
        cost, talk, received = label.costs
        more, bytes_, waiting, room = least
        held = max((have + wait for have, wait in zip(label.most, waiting)), default=0)
        if self.goal.memory and held > self.problem.machine.capacity:
            return True
        bound = max((cost + more) * ROUNDING, talk), max(held, room), received + bytes_
        return any(dominates(point, bound) for point, _ in self.known)

    def _forget(self) -> None:
        """Leave out of the state what nobody will ask for; partial plans then compete."""
        problem = self.problem
        alive = {problem.kept[name].decision for name in self.alive}
        over = [
            (name, problem.kept[name].decision)
            for name in self.alive
            if not self.pending[problem.kept[name].decision]
            and not self._is_wanted(name)
            and problem.lives[name][1] > len(problem.moments)
        ]
        gone = {decision for _, decision in over}
        stay = [
            at
            for at, decision in enumerate(self.state)
            if self.pending[decision] or (decision in alive and decision not in gone)
        ]
        if len(stay) == len(self.state):
            return
        sizes = [(self.state.index(d), problem.kept[name].sizes) for name, d in over]
        self.alive = [name for name in self.alive if problem.kept[name].decision not in gone]
        merged: Labels = {}
        for state, labels in self.labels.items():
            left = merged.setdefault(tuple(state[at] for at in stay), [])
            if sizes and self.goal.memory:
                total = tuple(map(sum, zip(*(size[state[at]] for at, size in sizes))))
                left += [
                    label._replace(gone=tuple(map(add, label.gone, total))) for label in labels
                ]
            else:
                left += labels
        self.state = [self.state[at] for at in stay]
        self.labels = {state: _undominated(labels) for state, labels in merged.items()}

    # -- room

    def _kernel(self, moment: Moment) -> Callable[[State, int], tuple[int, ...]]:
        live = self._live()
        places = [self.state.index(link.first) for link in moment.brought]

        def room(state: State, choice: int) -> tuple[int, ...]:
            held = live(state)
            most = held
            for link, at in zip(moment.brought, places):
                move = link.table[state[at]][choice]
                most = tuple(map(max, most, map(add, held, move.most)))
                held = tuple(map(add, held, move.beside))
            for made in moment.made:
                held = tuple(map(add, held, made.sizes[choice]))
            return tuple(map(max, most, held))

        return room

    def _settle(
        self, made: Made, later: Callable[[State], tuple[int, ...]]
    ) -> Callable[[State, int], tuple[int, ...]]:
        live, link = self._live(), made.settled
        assert link is not None
        at = self.state.index(link.first)

        def room(state: State, choice: int) -> tuple[int, ...]:
            held = tuple(map(add, live(state), later(state)))
            return tuple(map(add, held, link.table[state[at]][choice].settled))

        return room

    def _later(
        self, decision: int, unsettled: Sequence[Made]
    ) -> Callable[[State], tuple[int, ...]]:
        """The bytes of results that still lie as they were made."""
        at = self.state.index(decision)

        def room(state: State) -> tuple[int, ...]:
            return tuple(map(sum, zip(*(made.sizes[state[at]] for made in unsettled))))

        return room

    def _live(self) -> Callable[[State], tuple[int, ...]]:
        kept = [self.problem.kept[name] for name in self.alive]
        places = [(self.state.index(one.decision), one.sizes) for one in kept]

        def live(state: State) -> tuple[int, ...]:
            held = self.none
            for at, sizes in places:
                held = tuple(map(add, held, sizes[state[at]]))
            return held

        return live

    def _sizes(self, decision: int) -> tuple[tuple[int, ...], ...]:
        return self.problem.kept[str(self.problem.decisions[decision].what)].sizes

    # -- what is known beforehand

    def _count_links(self) -> list[int]:
        pending = [0] * len(self.problem.decisions)
        for link in self.problem.links:
            pending[link.first] += 1
            pending[link.second] += 1
        return pending

    def _is_wanted(self, name: str) -> bool:
        """Whether a value is moved or copied once more in the end, as an output."""
        outputs = self.problem.graph.outputs
        is_moved = any(outputs[place] == name for place in self.problem.wanted)
        return is_moved or outputs.count(name) > 1

    def _decision_order(self) -> list[int]:
        """The order in which decisions will be taken."""
        inputs = {value.name for value in self.problem.graph.inputs} - {*self.problem.unused}
        order = [self.problem.kept[name].decision for name in self.problem.unused]
        for moment, application in zip(self.problem.moments, self.problem.graph.applications):
            for name in application.operands:
                if name in inputs:
                    inputs.discard(name)
                    order.append(self.problem.kept[name].decision)
            order.append(moment.decision)
            order += [made.settled.second for made in moment.made if made.settled is not None]
        return order + [self.problem.kept[name].decision for name in sorted(inputs)]

    def _point(self, found: Found) -> tuple[float, ...]:
        price = self.problem.price(found)
        return (
            self.problem.seconds(price) if self.goal.time else 0.0,
            self.problem.peak(found) if self.goal.memory else 0,
            price.received if self.goal.received else 0,
        )

    def _choices(self, label: _Label) -> list[int]:
        found = [0] * len(self.problem.decisions)
        step: _Label | None = label
        for decision in reversed(self.order):
            assert step is not None
            found[decision] = step.choice
            step = step.before
        return found
