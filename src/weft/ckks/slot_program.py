"""Slot programs: instructions on ciphertexts in numbered registers, run on a back-end or counted.

Every linear map, repacking, polynomial and sum is lowered to one (`weft.ckks.lower`). A register is
written once, and released after its last use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

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


class Rotate(NamedTuple):
    """Slot s of the result is slot s + steps."""

    out: int
    a: int
    steps: int


class MulPlain(NamedTuple):
    """A product with a plaintext, not rescaled."""

    out: int
    a: int
    plain: Plaintext
    scale: float | None = None
    """Scale of the plaintext (default: that of the ciphertext's level)."""


class AddPlain(NamedTuple):
    """A sum with a plaintext."""

    out: int
    a: int
    plain: Plaintext


class Add(NamedTuple):
    """A sum of two ciphertexts."""

    out: int
    a: int
    b: int


class Sub(NamedTuple):
    """A difference of two ciphertexts."""

    out: int
    a: int
    b: int


class Negate(NamedTuple):
    """A ciphertext with its sign changed."""

    out: int
    a: int


class Mul(NamedTuple):
    """A product of two ciphertexts, relinearised and not rescaled."""

    out: int
    a: int
    b: int


class Rescale(NamedTuple):
    """The same values one level lower, the scale divided by the prime of the level."""

    out: int
    a: int


class Drop(NamedTuple):
    """The same values at a lower level, the scale unchanged."""

    out: int
    a: int
    level: int


Instruction: TypeAlias = Rotate | MulPlain | AddPlain | Add | Sub | Negate | Mul | Rescale | Drop


def reads(instruction: Instruction) -> tuple[int, ...]:
    """Return the registers that an instruction reads."""
    if isinstance(instruction, Add | Sub | Mul):
        return instruction.a, instruction.b
    return (instruction.a,)


@dataclass(frozen=True, slots=True)
class SlotProgram:
    """Instructions over registers; the first registers hold the inputs.

    >>> double = SlotProgram(1, (1,), (Add(1, 0, 0),))
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
    >>> builder.program([total]).instructions
    (Rotate(out=1, a=0, steps=1), Add(out=2, a=0, b=1))
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.instructions: list[Instruction] = []

    def _append(self, kind: type[Any], *fields: Any) -> int:
        out = self.inputs + len(self.instructions)
        self.instructions.append(kind(out, *fields))
        return out

    def rotate(self, a: int, steps: int) -> int:
        """Append a rotation."""
        return self._append(Rotate, a, steps)

    def mul_plain(self, a: int, plain: Plaintext, scale: float | None = None) -> int:
        """Append a product with a plaintext."""
        return self._append(MulPlain, a, plain, scale)

    def add_plain(self, a: int, plain: Plaintext) -> int:
        """Append a sum with a plaintext."""
        return self._append(AddPlain, a, plain)

    def add(self, a: int, b: int) -> int:
        """Append a sum."""
        return self._append(Add, a, b)

    def sub(self, a: int, b: int) -> int:
        """Append a difference."""
        return self._append(Sub, a, b)

    def negate(self, a: int) -> int:
        """Append a change of sign."""
        return self._append(Negate, a)

    def mul(self, a: int, b: int) -> int:
        """Append a product of two ciphertexts."""
        return self._append(Mul, a, b)

    def rescale(self, a: int) -> int:
        """Append a rescale."""
        return self._append(Rescale, a)

    def drop(self, a: int, level: int) -> int:
        """Append a drop to a lower level."""
        return self._append(Drop, a, level)

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
        if len(operands) != program.inputs:
            need = counted(program.inputs, "ciphertext")
            raise WeftError(f"a program of {need} is given {len(operands)}")
        registers = dict(enumerate(operands))
        for instruction in program.instructions:
            registers[instruction.out] = self.inputs + len(self.instructions)
            self.instructions.append(renamed(instruction, registers))
        return [registers[out] for out in program.outputs]

    def program(self, outputs: Iterable[int]) -> SlotProgram:
        """Return the program that has these results."""
        return SlotProgram(self.inputs, tuple(outputs), tuple(self.instructions))


def renamed(instruction: Instruction, registers: Mapping[int, int]) -> Instruction:
    """Return an instruction with its registers renamed; those not in the mapping stay."""
    fields: dict[str, Any] = {
        name: registers.get(getattr(instruction, name), getattr(instruction, name))
        for name in ("out", "a", "b")
        if name in instruction._fields
    }
    return instruction._replace(**fields)


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


class SlotOperations(Protocol[T]):
    """The operations that instructions call: of a back-end, or of an analysis of values."""

    def add(self, a: T, b: T) -> T:
        """Return the sum."""

    def sub(self, a: T, b: T) -> T:
        """Return the difference."""

    def negate(self, a: T) -> T:
        """Return the value with its sign changed."""

    def add_plain(self, a: T, values: Floats) -> T:
        """Return the sum with a plaintext."""

    def mul_plain(self, a: T, values: Floats, scale: float | None = None) -> T:
        """Return the product with a plaintext."""

    def mul(self, a: T, b: T) -> T:
        """Return the product."""

    def rotate(self, a: T, steps: int) -> T:
        """Return the value rotated."""

    def rescale(self, a: T) -> T:
        """Return the value one level lower."""

    def drop(self, a: T, level: int) -> T:
        """Return the value at a lower level."""


def execute(program: SlotProgram, on: SlotOperations[T], inputs: Sequence[T]) -> list[T]:
    """Run a program on a back-end, or through an analysis; return its results."""
    check_inputs(program, inputs)
    registers = dict(enumerate(inputs))
    released = last_uses(map(reads, program.instructions), program.outputs)
    for instruction, ended in zip(program.instructions, released):
        registers[instruction.out] = apply(instruction, on, registers)
        for register in ended:
            del registers[register]
    return [registers[out] for out in program.outputs]


def check_inputs(program: SlotProgram, inputs: Sequence[object]) -> None:
    """Refuse too many or too few ciphertexts."""
    if len(inputs) != program.inputs:
        need = counted(program.inputs, "ciphertext")
        raise WeftError(f"a program of {need} is given {len(inputs)}")


def apply(instruction: Instruction, on: SlotOperations[T], registers: Mapping[int, T]) -> T:
    """Return the result of one instruction."""
    a = registers[instruction.a]
    match instruction:
        case Rotate(_, _, steps):
            result = on.rotate(a, steps)
        case MulPlain(_, _, plain, scale):
            result = on.mul_plain(a, plain.values(), scale)
        case AddPlain(_, _, plain):
            result = on.add_plain(a, plain.values())
        case Add(_, _, b):
            result = on.add(a, registers[b])
        case Sub(_, _, b):
            result = on.sub(a, registers[b])
        case Negate():
            result = on.negate(a)
        case Mul(_, _, b):
            result = on.mul(a, registers[b])
        case Rescale():
            result = on.rescale(a)
        case Drop(_, _, level):
            result = on.drop(a, level)
    return result


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
    kinds = Counter(map(type, program.instructions))
    depths, live = dict.fromkeys(range(program.inputs), 0), program.inputs
    released = last_uses(map(reads, program.instructions), program.outputs)
    for instruction, ended in zip(program.instructions, released):
        depth = max(depths[register] for register in reads(instruction))
        depths[instruction.out] = depth + isinstance(instruction, Rescale)
        live = max(live, len(depths))
        for register in ended:
            del depths[register]
    steps = (each.steps for each in program.instructions if isinstance(each, Rotate))
    return OperationCounts(
        plain_products=kinds[MulPlain],
        products=kinds[Mul],
        rescales=kinds[Rescale],
        additions=kinds[Add] + kinds[Sub] + kinds[Negate],
        plain_additions=kinds[AddPlain],
        drops=kinds[Drop],
        rotations_by_step=Counter(steps),
        levels=max((depths[out] for out in program.outputs), default=0),
        live=live,
    )
