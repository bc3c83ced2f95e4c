"""Programs of slot operations over numbered registers: run on a backend, or only counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from weft.ckks.backend import Backend, Cipher, adjust
from weft.ckks.cost import Cost
from weft.ckks.packing import Floats
from weft.errors import WeftError
from weft.values import counted


class Plain(Protocol):
    """The values of a plaintext, made when they are asked for."""

    def values(self) -> Floats:
        """One value for each slot."""


class Rotate(NamedTuple):
    """Slot s of the result is slot s + steps."""

    out: int
    a: int
    steps: int


class MulPlain(NamedTuple):
    """A product with a plaintext, not rescaled."""

    out: int
    a: int
    plain: Plain
    scale: float | None = None
    """Of the plaintext; that of the level unless given."""


class AddPlain(NamedTuple):
    """A sum with a plaintext."""

    out: int
    a: int
    plain: Plain


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
    """The same at the level below."""

    out: int
    a: int


class Drop(NamedTuple):
    """The same at a lower level, at its old scale."""

    out: int
    a: int
    level: int


class Adjust(NamedTuple):
    """The same at a lower level and at the scale of that level: a plain product and a rescale."""

    out: int
    a: int
    level: int


class Free(NamedTuple):
    """A register is not used any more."""

    a: int


Step: TypeAlias = (
    Rotate | MulPlain | AddPlain | Add | Sub | Negate | Mul | Rescale | Drop | Adjust | Free
)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps over registers, made anew whenever they are asked for, so that none are held.

    The first registers hold what goes in; `outputs` are those that hold what comes out. A register
    is written once.

    >>> double = Program(1, (1,), lambda: [Add(1, 0, 0), Free(0)])
    >>> print(count(double), count(double).live)
    1 addition 2
    """

    inputs: int
    outputs: tuple[int, ...]
    steps: Callable[[], Iterable[Step]]


def count(program: Program) -> Cost:
    """What a program takes, counted step by step; nothing is computed."""
    kinds = (Rotate, MulPlain, AddPlain, Add, Sub, Negate, Mul, Rescale, Drop, Adjust)
    tally = dict.fromkeys(kinds, 0)
    depths, keys, live = dict.fromkeys(range(program.inputs), 0), set[int](), program.inputs
    for step in program.steps():
        if isinstance(step, Free):
            del depths[step.a]
            continue
        tally[type(step)] += 1
        depth = depths[step.a]
        if isinstance(step, Add | Sub | Mul):
            depth = max(depth, depths[step.b])
        elif isinstance(step, Rotate):
            keys.add(step.steps)
        depths[step.out] = depth + isinstance(step, Rescale | Adjust)
        live = max(live, len(depths))
    return Cost(
        rotations=tally[Rotate],
        plain_products=tally[MulPlain] + tally[Adjust],
        products=tally[Mul],
        rescales=tally[Rescale] + tally[Adjust],
        additions=tally[Add] + tally[Sub] + tally[Negate],
        plain_additions=tally[AddPlain],
        levels=max((depths[out] for out in program.outputs), default=0),
        keys=frozenset(keys),
        inputs=program.inputs,
        outputs=len(program.outputs),
        live=live,
    )


def execute(program: Program, backend: Backend, inputs: Sequence[Cipher[Any]]) -> list[Cipher[Any]]:
    """Run a program on a backend, and give back what comes out."""
    check_inputs(program, inputs)
    registers = dict(enumerate(inputs))
    for step in program.steps():
        if isinstance(step, Free):
            del registers[step.a]
        else:
            registers[step.out] = run_step(step, backend, registers)
    return [registers[out] for out in program.outputs]


def check_inputs(program: Program, inputs: Sequence[Cipher[Any]]) -> None:
    """Refuse too many or too few ciphertexts."""
    if len(inputs) != program.inputs:
        need = counted(program.inputs, "ciphertext")
        raise WeftError(f"a program of {need} is given {len(inputs)}")


def run_step(step: Step, backend: Backend, registers: Mapping[int, Cipher[Any]]) -> Cipher[Any]:
    """What one step makes of the registers."""
    a = registers[step.a]
    match step:
        case Rotate(_, _, steps):
            made = backend.rotate(a, steps)
        case MulPlain(_, _, plain, scale):
            made = backend.mul_plain(a, plain.values(), scale)
        case AddPlain(_, _, plain):
            made = backend.add_plain(a, plain.values())
        case Add(_, _, b):
            made = backend.add(a, registers[b])
        case Sub(_, _, b):
            made = backend.sub(a, registers[b])
        case Negate():
            made = backend.negate(a)
        case Mul(_, _, b):
            made = backend.mul(a, registers[b])
        case Rescale():
            made = backend.rescale(a)
        case Drop(_, _, level):
            made = backend.drop(a, level)
        case Adjust(_, _, level):
            made = adjust(backend, a, level)
    return made


def then(first: Program, second: Program) -> Program:
    """One program after the other: what comes out of the first goes into the second.

    >>> double = Program(1, (1,), lambda: [Add(1, 0, 0), Free(0)])
    >>> print(count(then(double, double)))
    2 additions
    """
    if len(first.outputs) != second.inputs:
        given, need = len(first.outputs), second.inputs
        raise WeftError(f"a program that makes {given} ciphertexts goes into one that takes {need}")
    used = [step.out for step in first.steps() if not isinstance(step, Free)]
    shift = 1 + max(used, default=first.inputs) - second.inputs

    def renamed(register: int) -> int:
        return first.outputs[register] if register < second.inputs else register + shift

    def steps() -> Iterator[Step]:
        yield from first.steps()
        for step in second.steps():
            named: dict[str, Any] = {
                name: renamed(getattr(step, name)) for name in step._fields if name in _NAMES
            }
            yield step._replace(**named)

    return Program(first.inputs, tuple(map(renamed, second.outputs)), steps)


_NAMES = ("out", "a", "b")
"""The fields of steps that are registers."""
