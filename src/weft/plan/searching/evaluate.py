"""Many plans priced at once, with NumPy: what the stochastic search asks for. Extra `search`."""

from __future__ import annotations

from typing import Any

from weft.extra import needed
from weft.plan.searching.model import Model
from weft.plan.searching.problem import Link, Moment


class Evaluator:
    """Seconds, peak and bytes of plans, each given as the choices of a model's classes."""

    def __init__(self, model: Model) -> None:
        self.model, self.problem = model, model.problem
        self.np = needed("numpy", "search")
        self.count = 0
        """How many plans have been priced."""
        self._tables: dict[int, tuple[Any, ...]] = {}
        self._alone = [
            len(members) * self.np.array(self.problem.decisions[members[0]].prices, dtype=float)
            for members in model.members
        ]
        self._between = [
            (pair, [(self._table(table), count) for table, count in tables])
            for pair, tables in model.between.items()
        ]
        self._kinds: dict[tuple[int, int], tuple[int, Any]] = {}
        self._moments = self._distinct()
        self._live = self._lives()

    def __call__(self, plans: Any) -> Any:
        """For every plan, a row of choices, its seconds, its peak and its bytes."""
        np = self.np
        plans = np.asarray(plans, dtype=int)
        self.count += len(plans)
        total = np.zeros((len(plans), 3))
        for number, prices in enumerate(self._alone):
            total += prices[plans[:, number]]
        for (first, second), tables in self._between:
            for (moved, *_), count in tables:
                total[:, 1:] += count * moved[plans[:, first], plans[:, second]]
        compute, talk, received = total.T
        hidden = np.minimum(self.problem.machine.overlap * talk, compute)
        return np.stack([compute + talk - hidden, self.peak(plans), received], axis=1)

    def peak(self, plans: Any) -> Any:
        """The most bytes that any cell holds, of every plan."""
        np = self.np
        peaks = np.zeros(len(plans))
        for cell in range(self.problem.cells):
            sizes = np.stack(
                [table[plans[:, number], cell] for (number, _), (_, table) in self._kinds.items()],
                axis=1,
            )
            live = sizes @ self._live
            above = np.stack([self._above(m, plans, cell) for m in self._moments[0]], axis=1)
            held = live[:, 1:-1] + above[:, self._moments[1]] if len(self._moments[1]) else live
            peaks = np.maximum(peaks, np.maximum(held.max(1), live.max(1)))
            peaks = np.maximum(peaks, self._returned(plans, cell, live[:, -1]))
        return peaks

    # -- tables

    def _table(self, table: Any) -> tuple[Any, ...]:
        """A table of moves as arrays: what is moved, and room on the way, in the end, settled."""
        if id(table) not in self._tables:
            np = self.np
            moved = np.array([[(m.seconds, m.received) for m in row] for row in table], float)
            rooms = [
                np.array([[getattr(m, what) for m in row] for row in table], float)
                for what in ("most", "beside", "settled")
            ]
            self._tables[id(table)] = (moved, *rooms)
        return self._tables[id(table)]

    def _distinct(self) -> tuple[list[Moment], list[int]]:
        """The moments that differ, and which of them each moment is."""
        seen: dict[object, int] = {}
        moments: list[Moment] = []
        numbers = []
        for moment in self.problem.moments:
            links = [*moment.brought, *(made.settled for made in moment.made)]
            key = (
                self.model.of[moment.decision],
                tuple(self._key(link) for link in links),
                tuple(id(made.sizes) for made in moment.made),
            )
            if key not in seen:
                seen[key] = len(moments)
                moments.append(moment)
            numbers.append(seen[key])
        return moments, numbers

    def _key(self, link: Link | None) -> object:
        of = self.model.of
        return link and (of[link.first], of[link.second], id(link.table))

    def _lives(self) -> Any:
        """For every kind of value how many of it lie on the cells at every level, made ones not."""
        np, problem = self.np, self.problem
        rows = []
        for name, (first, last) in problem.lives.items():
            kept = problem.kept[name]
            key = (self.model.of[kept.decision], id(kept.sizes))
            if key not in self._kinds:
                self._kinds[key] = len(self._kinds), np.array(kept.sizes, float)
            rows.append((self._kinds[key][0], first, last, name))
        live = np.zeros((len(self._kinds), len(problem.moments) + 2))
        inputs = {value.name for value in problem.graph.inputs}
        for kind, first, last, name in rows:
            live[kind, first + (name not in inputs) : last + 1] += 1
        return live

    def _above(self, moment: Moment, plans: Any, cell: int) -> Any:
        """The most that a moment holds beyond what lies on the cells before it."""
        np = self.np
        held = np.zeros(len(plans))
        most = np.zeros(len(plans))
        of = self.model.of
        mine = plans[:, of[moment.decision]]
        for link in moment.brought:
            _, room, beside, _ = self._table(link.table)
            at = plans[:, of[link.first]], mine
            most = np.maximum(most, held + room[(*at, cell)])
            held = held + beside[(*at, cell)]
        made = [np.array(one.sizes, float)[mine, cell] for one in moment.made]
        most = np.maximum(most, held + sum(made))
        held = sum(made)
        for one, size in zip(moment.made, made):
            if one.settled is not None:
                at = mine, plans[:, of[one.settled.second]]
                most = np.maximum(most, held + self._table(one.settled.table)[3][(*at, cell)])
                kept = self.problem.kept[one.name]
                held = held - size + np.array(kept.sizes, float)[at[1], cell]
        return most

    def _returned(self, plans: Any, cell: int, live: Any) -> Any:
        np, outputs = self.np, self.problem.graph.outputs
        most = live
        for place, name in enumerate(outputs):
            kept, gone = self.problem.kept[name], name not in outputs[place + 1 :]
            chosen = plans[:, self.model.of[kept.decision]]
            size = np.array(kept.sizes, float)[chosen, cell]
            if place in self.problem.wanted:
                ways = np.array(self.problem.wanted[place], float)[chosen, :, cell]
                most = np.maximum(most, live + ways[:, 0 if gone else 1])
                live = live - gone * size + ways[:, 2]
            elif not gone:
                most = np.maximum(most, live + size)
                live = live + size
        return np.maximum(most, live)
