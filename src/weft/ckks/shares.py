"""How a program is divided among workers: who does which step, and what goes from one to another.

A ciphertext takes about as long to send as to rotate, and a sum is the same in any order. So every
worker makes some of the baby steps, multiplies those itself, and adds up its products; only partial
sums are sent. What is not linear is divided by the ciphertexts that go in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from weft.ckks.program import (
    Add,
    AddPlain,
    Adjust,
    Drop,
    Free,
    Mul,
    MulPlain,
    Negate,
    Program,
    Rescale,
    Rotate,
    Sub,
)

WEIGHTS = {Mul: 3.0, Rotate: 2.0, Adjust: 1.5, MulPlain: 1.0, Rescale: 0.5}
"""What a step costs, about, where it is not little."""
LITTLE = 0.1
DELAY = 3
"""How many sums a worker makes ahead of those that it waits for the parts of."""

Work: TypeAlias = Rotate | MulPlain | AddPlain | Add | Sub | Negate | Mul | Rescale | Drop | Adjust
"""A step that makes something."""


class Send(NamedTuple):
    """A register goes to another worker."""

    a: int
    to: int


class Receive(NamedTuple):
    """A register comes from another worker."""

    out: int
    source: int


Act: TypeAlias = Work | Send | Receive


class Shares(NamedTuple):
    """What each worker does, in order; the first one has all that comes out, in these registers."""

    acts: list[list[Act]]
    outputs: tuple[int, ...]


def share(program: Program, workers: int) -> Shares:
    """Divide a program; together the workers do its steps, no more and no fewer.

    >>> sums = Program(2, (4,), lambda: [Rotate(2, 0, 1), Rotate(3, 1, 1), Add(4, 2, 3)])
    >>> for acts in share(sums, 2).acts:
    ...     print(*acts)
    Rotate(out=2, a=0, steps=1) Receive(out=3, source=1) Add(out=5, a=2, b=3)
    Rotate(out=3, a=1, steps=1) Send(a=3, to=0)
    """
    steps = [step for step in program.steps() if not isinstance(step, Free)]
    plan = _Plan(program, steps, workers)
    for step in steps:
        plan.place(step)
    return plan.finish()


def reads(step: Act) -> tuple[int, ...]:
    """The registers that a step needs."""
    if isinstance(step, Receive):
        return ()
    return (step.a, step.b) if isinstance(step, Add | Sub | Mul) else (step.a,)


def freed(acts: Iterable[Act], outputs: Iterable[int]) -> Iterator[tuple[Act, list[int]]]:
    """Each act, and the registers that are not needed after it."""
    given, last = list(acts), dict[int, int]()
    for place, act in enumerate(given):
        last |= dict.fromkeys(reads(act), place)
    ends: dict[int, list[int]] = {}
    for register in last.keys() - set(outputs):
        ends.setdefault(last[register], []).append(register)
    for place, act in enumerate(given):
        yield act, ends.get(place, [])


class _Sums:
    """The additions of a program as sums of many: which sum each belongs to."""

    def __init__(self, steps: Sequence[Work], outputs: Iterable[int]) -> None:
        uses = Counter(register for step in steps for register in reads(step))
        uses.update(outputs)
        self.root: dict[int, int] = {}
        """For each addition the last one of its sum."""
        adds = {step.out: step for step in steps if isinstance(step, Add)}
        for step in reversed(adds.values()):
            root = self.root.setdefault(step.out, step.out)
            for a in (step.a, step.b):
                if a in adds and uses[a] == 1:
                    self.root[a] = root

    def leaves(self, step: Add) -> list[int]:
        """The operands that are no partial sums themselves."""
        return [a for a in (step.a, step.b) if self.root.get(a) != self.root[step.out]]


class _Plan:
    """The acts of all workers, while they are written.

    All are written in one order, in which what is sent is sent before it is received: so there is
    always someone who need not wait.
    """

    def __init__(self, program: Program, steps: Sequence[Work], workers: int) -> None:
        self.program, self.sums = program, _Sums(steps, program.outputs)
        self.acts: list[list[Act]] = [[] for _ in range(workers)]
        self.fresh = count(1 + max([program.inputs, *(step.out for step in steps)]))
        self.owner = _assign(program, steps, self.sums, workers)
        self.load = [0.0] * workers
        """What there is to do on sums whose parts came from several."""
        self.names: dict[int, int] = {}
        """The registers that sums of several parts came to stand in."""
        self.parts: dict[int, dict[tuple[int, bool], int]] = {}
        """For each sum the partial ones, by worker and by whether they are late."""
        self.there = {(worker, n) for n in range(program.inputs) for worker in range(workers)}
        self.late: dict[tuple[int, int], int] = {}
        """Registers of workers that are made later, with the number of the sum they wait for."""
        self.queue: deque[tuple[int, int, Act]] = deque()
        self.closed = 0

    def place(self, step: Work) -> None:
        """Write a step down where it belongs."""
        if isinstance(step, Add):
            self._add(step)
            return
        worker = self._worker(step)
        operands = {a: self.names.get(a, a) for a in reads(step)}
        for a in operands.values():
            self._fetch(a, worker)
        named: dict[str, Any] = {
            name: operands[getattr(step, name)] for name in ("a", "b") if name in step._fields
        }
        self._write(worker, step._replace(**named))
        self.owner[step.out] = worker

    def finish(self) -> Shares:
        """Bring all that comes out to the first worker."""
        outputs = tuple(self.names.get(out, out) for out in self.program.outputs)
        for out in outputs:
            self._fetch(out, 0)
        self._flush(self.closed + 1)
        return Shares(self.acts, outputs)

    def _worker(self, step: Work) -> int:
        return self.owner.get(step.out, self.owner[step.a])

    def _add(self, step: Add) -> None:
        """Add what is new to the partial sum of its worker; at the last, bring them together."""
        root = self.sums.root[step.out]
        parts = self.parts.setdefault(root, {})
        for leaf in self.sums.leaves(step):
            register, worker = self.names.get(leaf, leaf), self.owner[leaf]
            key = worker, (worker, register) in self.late
            parts[key] = self._sum(worker, parts[key], register) if key in parts else register
        if step.out == root:
            self._meet(root, self.parts.pop(root))

    def _meet(self, root: int, parts: dict[tuple[int, bool], int]) -> None:
        """One sum of all parts, at the worker that has least to do of those that have a part."""
        own = [key for key, register in parts.items() if register >= self.program.inputs]
        workers = {worker for worker, _ in own or parts}
        owner = min(workers, key=lambda worker: (self.load[worker], worker))
        if len(workers) > 1:
            self.load[owner] += 1
        total: int | None = None
        for worker in sorted({worker for worker, _ in parts}, key=lambda each: each != owner):
            mine = [parts[key] for key in ((worker, False), (worker, True)) if key in parts]
            part = mine[0] if len(mine) == 1 else self._sum(worker, *mine)
            self._fetch(part, owner)
            total = part if total is None else self._sum(owner, total, part)
        assert total is not None, root
        self.names[root], self.owner[root] = total, owner
        self.closed += 1
        self._flush(self.closed - DELAY)

    def _sum(self, worker: int, a: int, b: int) -> int:
        out = next(self.fresh)
        self._write(worker, Add(out, a, b))
        return out

    def _fetch(self, register: int, worker: int) -> None:
        """Have a register sent to a worker, unless it is there."""
        if (worker, register) in self.there:
            return
        source = next(w for w in range(len(self.acts)) if (w, register) in self.there)
        self._write(source, Send(register, worker))
        self.there.add((worker, register))
        self._put_off(worker, Receive(register, source))

    def _write(self, worker: int, act: Act) -> None:
        """Write an act down, or put it off with what it needs."""
        if not isinstance(act, Send):
            self.there.add((worker, act.out))
        if any((worker, a) in self.late for a in reads(act)):
            self._put_off(worker, act)
        else:
            self.acts[worker].append(act)

    def _put_off(self, worker: int, act: Act) -> None:
        self.queue.append((self.closed, worker, act))
        if not isinstance(act, Send):
            self.late[worker, act.out] = self.closed

    def _flush(self, before: int) -> None:
        """Write down what was put off before so many sums were closed."""
        while self.queue and self.queue[0][0] < before:
            _, worker, act = self.queue.popleft()
            self.acts[worker].append(act)
            if not isinstance(act, Send):
                self.late.pop((worker, act.out), None)


def _assign(program: Program, steps: Sequence[Work], sums: _Sums, workers: int) -> dict[int, int]:
    """Who has the ciphertexts that go in and their baby steps, in order and with like loads.

    A lane is one of them with all that is made of it alone.
    """
    lane = {n: n for n in range(program.inputs)}
    load = dict.fromkeys(lane, LITTLE)
    bare = set(lane)
    for step in steps:
        if isinstance(step, Rotate) and step.a in bare:
            bare.add(step.out)
            lane[step.out] = step.out
        elif isinstance(step, Add):
            lane[step.out] = _common(lane, sums, step)
        else:
            lane[step.out] = lane[step.a]
        weight = WEIGHTS.get(type(step), LITTLE)
        load[lane[step.out]] = load.get(lane[step.out], 0.0) + weight
    return _blocks({each: load[each] for each in load if each in bare}, workers)


def _common(lane: dict[int, int], sums: _Sums, step: Add) -> int:
    """The lane of both operands; of several a sum has its own, which is nobody's yet."""
    return lane[step.a] if lane[step.a] == lane[step.b] else -1 - sums.root[step.out]


def _blocks(loads: dict[int, float], workers: int) -> dict[int, int]:
    """Lanes in order, cut into as many blocks of like loads."""
    total, before = sum(loads.values()), 0.0
    owner = dict[int, int]()
    for lane, load in loads.items():
        owner[lane] = min(workers - 1, int(workers * (before + load / 2) / total))
        before += load
    return owner
