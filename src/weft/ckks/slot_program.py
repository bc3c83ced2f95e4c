"""Slot programs: instructions on ciphertexts in numbered registers, run on a back-end or counted.

Every linear map, repacking, polynomial and sum is lowered to one (`weft.ckks.lower`). A register is
written once, and released after its last use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from weft.ckks.packing import Floats
from weft.errors import WeftError
from weft.values import counted

if TYPE_CHECKING:
    from weft.ckks.parameters import Parameters

T = TypeVar("T")


class Plaintext(Protocol):
    """The numbers that a ciphertext is multiplied by or added to, computed on demand."""

    def values(self) -> Floats:
        """Return one value for each slot, or a single number for all of them."""


class Constant(NamedTuple):
    """A plaintext with one number in all slots, or times a mask of zeros and ones."""

    number: float
    mask: Floats | None = None

    def values(self) -> Floats:
        """Return the number, or one value for each slot."""
        if self.mask is None:
            return np.asarray(self.number, np.float64)
        return self.number * self.mask


class SlotValues(NamedTuple):
    """A plaintext whose values are already known."""

    content: Floats

    def values(self) -> Floats:
        """Return one value for each slot."""
        return self.content


Operation: TypeAlias = Literal[
    "add", "sub", "negate", "mul", "add_plain", "mul_plain", "rotate", "rescale", "drop"
]
"""The operations: methods of a back-end, or of an analysis of values."""


class Instruction(NamedTuple):
    """An operation on registers, each of which holds a ciphertext.

    A rotation takes its steps, a drop its level, a sum or product with a plaintext the plaintext,
    a product also the plaintext's scale (None: that of the ciphertext's level).
    """

    operation: Operation
    out: int
    operands: tuple[int, ...]
    arguments: tuple[Any, ...] = ()

    def renamed(self, registers: Mapping[int, int]) -> Instruction:
        """Return the instruction with its registers renamed; those not in the mapping stay."""
        operands = tuple(registers.get(each, each) for each in self.operands)
        return self._replace(out=registers.get(self.out, self.out), operands=operands)

    def apply(self, on: Any, registers: Mapping[int, T]) -> T:
        """Return the result of the operation on the values of its registers."""
        operands = [registers[each] for each in self.operands]
        arguments = self.arguments
        if self.operation in ("add_plain", "mul_plain"):
            arguments = (arguments[0].values(), *arguments[1:])
        return cast(T, getattr(on, self.operation)(*operands, *arguments))


@dataclass(frozen=True, slots=True)
class SlotProgram:
    """Instructions over registers; the first registers hold the inputs.

    >>> double = SlotProgram(1, (1,), (Instruction("add", 1, (0, 0)),))
    >>> print(count(double), count(double).live)
    1 addition 2
    """

    inputs: int
    """The number of ciphertexts that it takes."""
    outputs: tuple[int, ...]
    """The registers of the results."""
    instructions: tuple[Instruction, ...]


class SlotProgramBuilder:
    """Appends instructions to a program; each method returns the register of its result.

    >>> builder = SlotProgramBuilder(inputs=1)
    >>> total = builder.add(0, builder.rotate(0, 1))
    >>> builder.program([total]).instructions[1]
    Instruction(operation='add', out=2, operands=(0, 1), arguments=())
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.instructions: list[Instruction] = []

    def _append(self, operation: Operation, *operands: int, arguments: tuple[Any, ...] = ()) -> int:
        out = self.inputs + len(self.instructions)
        self.instructions.append(Instruction(operation, out, operands, arguments))
        return out

    def rotate(self, a: int, steps: int) -> int:
        """Append a rotation: slot s of the result is slot s + steps."""
        return self._append("rotate", a, arguments=(steps,))

    def mul_plain(self, a: int, plain: Plaintext, scale: float | None = None) -> int:
        """Append a product with a plaintext, not rescaled."""
        return self._append("mul_plain", a, arguments=(plain, scale))

    def add_plain(self, a: int, plain: Plaintext) -> int:
        """Append a sum with a plaintext."""
        return self._append("add_plain", a, arguments=(plain,))

    def add(self, a: int, b: int) -> int:
        """Append a sum."""
        return self._append("add", a, b)

    def sub(self, a: int, b: int) -> int:
        """Append a difference."""
        return self._append("sub", a, b)

    def negate(self, a: int) -> int:
        """Append a change of sign."""
        return self._append("negate", a)

    def mul(self, a: int, b: int) -> int:
        """Append a product of two ciphertexts, relinearised and not rescaled."""
        return self._append("mul", a, b)

    def rescale(self, a: int) -> int:
        """Append a rescale: one level lower, the scale divided by the prime of the level."""
        return self._append("rescale", a)

    def drop(self, a: int, level: int) -> int:
        """Append a drop to a lower level, at the same scale."""
        return self._append("drop", a, arguments=(level,))

    def adjust(self, a: int, parameters: Parameters, start: int, stop: int) -> int:
        """Bring a ciphertext from one level to a lower one and to the scale of that level.

        It drops to the level above, is multiplied by 1 at the scale that fits, and rescaled.
        """
        if start == stop:
            return a
        scale = parameters.adjusting_scale(start, stop)
        if start > stop + 1:
            a = self.drop(a, stop + 1)
        return self.rescale(self.mul_plain(a, Constant(1.0), scale))

    def inline(self, program: SlotProgram, operands: Sequence[int]) -> list[int]:
        """Append a whole program; return the registers of its results."""
        check_inputs(program, operands)
        registers = dict(enumerate(operands))
        for instruction in program.instructions:
            registers[instruction.out] = self.inputs + len(self.instructions)
            self.instructions.append(instruction.renamed(registers))
        return [registers[out] for out in program.outputs]

    def program(self, outputs: Iterable[int]) -> SlotProgram:
        """Return the program that has these results."""
        return SlotProgram(self.inputs, tuple(outputs), tuple(self.instructions))


def last_uses(read: Iterable[tuple[int, ...]], outputs: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Return for each instruction the registers that can be released after it.

    `read` has the registers that each instruction reads. Outputs are never released.
    """
    given = list(read)
    last = {register: place for place, registers in enumerate(given) for register in registers}
    kept = frozenset(outputs)
    for place, registers in enumerate(given):
        unique = dict.fromkeys(registers)
        yield tuple(each for each in unique if last[each] == place and each not in kept)


def execute(program: SlotProgram, on: Any, inputs: Sequence[T]) -> list[T]:
    """Run a program on a back-end, or through an analysis; return its results."""
    check_inputs(program, inputs)
    registers = dict(enumerate(inputs))
    released = last_uses((each.operands for each in program.instructions), program.outputs)
    for instruction, ended in zip(program.instructions, released):
        registers[instruction.out] = instruction.apply(on, registers)
        for register in ended:
            del registers[register]
    return [registers[out] for out in program.outputs]


def check_inputs(program: SlotProgram, inputs: Sequence[object]) -> None:
    """Refuse too many or too few ciphertexts."""
    if len(inputs) != program.inputs:
        need = counted(program.inputs, "ciphertext")
        raise WeftError(f"a program of {need} is given {len(inputs)}")


@dataclass(slots=True)
class OperationCounts:
    """Operations by kind: predicted by a plan, counted in a program, or counted by a back-end.

    Differences and changes of sign count as additions. Two counts are equal if all operations are;
    `levels` and `live` belong to programs, and are not compared.

    >>> counts = OperationCounts(plain_products=9, rescales=1, levels=1)
    >>> counts.rotations_by_step.update({1: 2, 5: 1})
    >>> print(counts + counts)
    6 rotations, 18 plain products, 2 rescales, 2 levels
    >>> counts.rotations, sorted(counts.keys)
    (3, [1, 5])
    """

    plain_products: int = 0
    products: int = 0
    """Products of two ciphertexts, relinearised."""
    rescales: int = 0
    additions: int = 0
    plain_additions: int = 0
    drops: int = 0
    encryptions: int = 0
    decryptions: int = 0
    rotations_by_step: Counter[int] = field(default_factory=Counter)
    """How often each rotation occurs."""
    levels: int = field(default=0, compare=False)
    """Rescales on the longest path from an input to a result."""
    live: int = field(default=0, compare=False)
    """The most ciphertexts that exist at once; 0 if it was not computed."""

    @property
    def rotations(self) -> int:
        """The number of rotations."""
        return self.rotations_by_step.total()

    @property
    def keys(self) -> frozenset[int]:
        """The steps that need a rotation key."""
        return frozenset(self.rotations_by_step)

    def copy(self) -> OperationCounts:
        """Return the counts as they are now."""
        return self + OperationCounts()

    def __add__(self, then: OperationCounts) -> OperationCounts:
        """Return the counts of one program followed by another."""
        sums = {name: getattr(self, name) + getattr(then, name) for name in _SUMMED}
        return OperationCounts(**sums, live=max(self.live, then.live))

    def __sub__(self, before: OperationCounts) -> OperationCounts:
        return OperationCounts(
            **{name: getattr(self, name) - getattr(before, name) for name in _SUMMED}
        )

    def repeated(self, times: int) -> OperationCounts:
        """Return the counts of the same program on several ciphertexts side by side.

        >>> print(OperationCounts(products=2, levels=1).repeated(3))
        6 products, 1 level
        """
        kinds = {name: times * getattr(self, name) for name in _KINDS}
        steps = Counter({step: times * n for step, n in self.rotations_by_step.items()})
        return OperationCounts(**kinds, rotations_by_step=steps, levels=self.levels)

    def __str__(self) -> str:
        shown = [(name, getattr(self, name)) for name in ("rotations", *_KINDS, "levels")]
        words = [counted(n, name.replace("_", " ")[:-1]) for name, n in shown if n]
        return ", ".join(words) or "nothing"


_KINDS = (
    *("plain_products", "products", "rescales", "additions", "plain_additions", "drops"),
    *("encryptions", "decryptions"),
)
_SUMMED = (*_KINDS, "rotations_by_step", "levels")


def count(program: SlotProgram) -> OperationCounts:
    """Return the operations of a program, its levels and its largest number of live ciphertexts."""
    kinds = Counter(each.operation for each in program.instructions)
    depths, live = dict.fromkeys(range(program.inputs), 0), program.inputs
    released = last_uses((each.operands for each in program.instructions), program.outputs)
    for instruction, ended in zip(program.instructions, released):
        depth = max(depths[register] for register in instruction.operands)
        depths[instruction.out] = depth + (instruction.operation == "rescale")
        live = max(live, len(depths))
        for register in ended:
            del depths[register]
    steps = (each.arguments[0] for each in program.instructions if each.operation == "rotate")
    return OperationCounts(
        plain_products=kinds["mul_plain"],
        products=kinds["mul"],
        rescales=kinds["rescale"],
        additions=kinds["add"] + kinds["sub"] + kinds["negate"],
        plain_additions=kinds["add_plain"],
        drops=kinds["drop"],
        rotations_by_step=Counter(steps),
        levels=max((depths[out] for out in program.outputs), default=0),
        live=live,
    )
