"""Partition a slot program among workers: each worker's instructions, and what it sends to others.

A ciphertext takes about as long to send as to rotate, and a sum is the same in any order. So every
worker computes some of the baby steps, multiplies those itself, and adds up its products; only
partial sums are sent. Polynomials are partitioned by their input ciphertexts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

from weft.ckks.slot_program import Instruction, SlotProgram

WEIGHTS = {"mul": 3.0, "rotate": 2.0, "mul_plain": 1.0, "rescale": 0.5}
"""The approximate costs of operations."""
CHEAP = 0.1
"""The cost of every other operation."""
DELAY = 3
"""Sums that a worker completes before it waits for the parts of another."""


class Send(NamedTuple):
    """Send a register to another worker."""

    a: int
    to: int


class Receive(NamedTuple):
    """Receive a register from another worker."""

    out: int
    source: int


WorkerInstruction: TypeAlias = Instruction | Send | Receive


class Partition(NamedTuple):
    """The instructions of each worker in order; the first worker ends with the outputs."""

    instructions: list[list[WorkerInstruction]]
    outputs: tuple[int, ...]


def partition(program: SlotProgram, workers: int) -> Partition:
    """Partition a program; together the workers run the same operations, no more and no fewer.

    >>> from weft.ckks.slot_program import SlotProgramBuilder
    >>> builder = SlotProgramBuilder(inputs=2)
    >>> total = builder.add(builder.rotate(0, 1), builder.rotate(1, 1))
    >>> for instructions in partition(builder.program([total]), 2).instructions:
    ...     print(*(getattr(each, "operation", each) for each in instructions))
    rotate Receive(out=3, source=1) add
    rotate Send(a=3, to=0)
    """
    partitioner = _Partitioner(program, workers)
    for instruction in program.instructions:
        partitioner.place(instruction)
    return partitioner.finish()


def worker_reads(instruction: WorkerInstruction) -> tuple[int, ...]:
    """Return the registers that an instruction of a worker reads."""
    match instruction:
        case Receive():
            return ()
        case Send():
            return (instruction.a,)
    return instruction.operands


class _Sums:
    """The additions of a program, grouped into sums of many terms."""

    def __init__(self, instructions: Sequence[Instruction], outputs: Iterable[int]) -> None:
        uses = Counter(register for each in instructions for register in each.operands)
        uses.update(outputs)
        self.root: dict[int, int] = {}
        """For each addition, the last one of its sum."""
        additions = {each.out: each for each in instructions if each.operation == "add"}
        for addition in reversed(additions.values()):
            root = self.root.setdefault(addition.out, addition.out)
            for a in addition.operands:
                if a in additions and uses[a] == 1:
                    self.root[a] = root

    def terms(self, addition: Instruction) -> list[int]:
        """Return the operands that are not partial sums themselves."""
        return [a for a in addition.operands if self.root.get(a) != self.root[addition.out]]


class _Partitioner:
    """Writes the instructions of all workers.

    All are written in one order, in which every register is sent before it is received, so that
    some worker can always proceed.
    """

    def __init__(self, program: SlotProgram, workers: int) -> None:
        self.program, self.sums = program, _Sums(program.instructions, program.outputs)
        self.written: list[list[WorkerInstruction]] = [[] for _ in range(workers)]
        self.fresh = count(1 + max([program.inputs, *(each.out for each in program.instructions)]))
        self.owner = _assign(program, self.sums, workers)
        self.load = [0.0] * workers
        """The sums of several workers' parts that each worker completes."""
        self.names: dict[int, int] = {}
        """The registers of sums that were combined from parts."""
        self.parts: dict[int, dict[tuple[int, bool], int]] = {}
        """For each sum its partial sums, by worker and by whether they are delayed."""
        self.present = {(worker, n) for n in range(program.inputs) for worker in range(workers)}
        self.delayed = set[tuple[int, int]]()
        """Registers of workers that depend on a delayed instruction."""
        self.queue: deque[tuple[int, int, WorkerInstruction]] = deque()
        self.closed = 0

    def place(self, instruction: Instruction) -> None:
        """Write an instruction for the worker that owns it."""
        if instruction.operation == "add":
            self._add(instruction)
            return
        worker = self.owner.get(instruction.out, self.owner[instruction.operands[0]])
        for register in instruction.operands:
            self._fetch(self.names.get(register, register), worker)
        self._write(worker, instruction.renamed(self.names))
        self.owner[instruction.out] = worker

    def finish(self) -> Partition:
        """Bring all outputs to the first worker."""
        outputs = tuple(self.names.get(out, out) for out in self.program.outputs)
        for out in outputs:
            self._fetch(out, 0)
        self._flush(self.closed + 1)
        return Partition(self.written, outputs)

    def _add(self, addition: Instruction) -> None:
        """Add new terms to the partial sum of their worker; combine the parts at the last one."""
        root = self.sums.root[addition.out]
        parts = self.parts.setdefault(root, {})
        for term in self.sums.terms(addition):
            register, worker = self.names.get(term, term), self.owner[term]
            key = worker, (worker, register) in self.delayed
            parts[key] = self._sum(worker, parts[key], register) if key in parts else register
        if addition.out == root:
            self._combine(root, self.parts.pop(root))

    def _combine(self, root: int, parts: dict[tuple[int, bool], int]) -> None:
        """Add all parts at the least loaded worker that has one."""
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
        self._write(worker, Instruction("add", out, (a, b)))
        return out

    def _fetch(self, register: int, worker: int) -> None:
        """Send a register to a worker, unless it has it."""
        if (worker, register) in self.present:
            return
        source = next(w for w in range(len(self.written)) if (w, register) in self.present)
        self._write(source, Send(register, worker))
        self.present.add((worker, register))
        self._delay(worker, Receive(register, source))

    def _write(self, worker: int, instruction: WorkerInstruction) -> None:
        """Write an instruction, or delay it with its operands."""
        if not isinstance(instruction, Send):
            self.present.add((worker, instruction.out))
        if any((worker, register) in self.delayed for register in worker_reads(instruction)):
            self._delay(worker, instruction)
        else:
            self.written[worker].append(instruction)

    def _delay(self, worker: int, instruction: WorkerInstruction) -> None:
        self.queue.append((self.closed, worker, instruction))
        if not isinstance(instruction, Send):
            self.delayed.add((worker, instruction.out))

    def _flush(self, before: int) -> None:
        """Write the instructions that were delayed before that many sums were closed."""
        while self.queue and self.queue[0][0] < before:
            _, worker, instruction = self.queue.popleft()
            self.written[worker].append(instruction)
            if not isinstance(instruction, Send):
                self.delayed.discard((worker, instruction.out))


def _assign(program: SlotProgram, sums: _Sums, workers: int) -> dict[int, int]:
    """Return the workers of inputs and baby steps: consecutive ones, with similar loads.

    A lane is an input or a baby step with everything that is computed from it alone.
    """
    lane = {n: n for n in range(program.inputs)}
    load = dict.fromkeys(lane, CHEAP)
    rotated = set(lane)
    for each in program.instructions:
        if each.operation == "rotate" and each.operands[0] in rotated:
            rotated.add(each.out)
            lane[each.out] = each.out
        elif each.operation == "add" and len({lane[a] for a in each.operands}) > 1:
            lane[each.out] = -1 - sums.root[each.out]  # a sum of several lanes is its own
        else:
            lane[each.out] = lane[each.operands[0]]
        weight = WEIGHTS.get(each.operation, CHEAP)
        load[lane[each.out]] = load.get(lane[each.out], 0.0) + weight
    lanes = {number: cost for number, cost in load.items() if number in rotated}
    total, before = sum(lanes.values()), 0.0
    owner = dict[int, int]()
    for number, cost in lanes.items():
        owner[number] = min(workers - 1, int(workers * (before + cost / 2) / total))
        before += cost
    return owner
