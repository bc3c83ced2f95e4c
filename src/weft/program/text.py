"""Programs as text: one line for each instruction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from weft.program.instructions import (
    Apply,
    Body,
    Branch,
    Copy,
    Free,
    Instruction,
    Loop,
    Mask,
    Read,
    Slice,
    Transfer,
    Write,
)
from weft.program.layout_rule import digit_text

if TYPE_CHECKING:
    from weft.program.program import Program


def program_text(program: Program) -> str:
    """Return a program as text: `%3: y [{0/2}] = matmul %0 %1` and so on, body by body."""
    lines: list[str] = []
    for number, body in enumerate(program.bodies):
        given = ", ".join(_buffer(program, buffer) for buffer in body.arguments)
        lines.append(f"{'main' if not number else f'body {number}'}({given})")
        lines += (f"  {line}" for line in _lines(program, body))
        lines.append(f"  return {_all(body.results)}")
    return "\n".join(lines)


def _lines(program: Program, body: Body) -> Iterator[str]:
    for instruction in body.instructions:
        yield _line(program, body, instruction)


def _line(  # noqa: PLR0911 - one for each instruction
    program: Program, body: Body, instruction: Instruction
) -> str:
    def made(buffers: Iterable[int]) -> str:
        return ", ".join(_buffer(program, buffer) for buffer in buffers)

    match instruction:
        case Transfer(source, result, combine, _, kind):
            text = f"{made([result])} = {kind} %{source}"
            for run in combine:
                text += f" {run.monoid}({', '.join(map(digit_text, run.digits))})"
            return text
        case Slice(source, result):
            return f"{made([result])} = slice %{source}"
        case Mask(source, result, digits, monoid):
            where = ", ".join(map(digit_text, digits))
            return f"{made([result])} = mask %{source} {monoid}({where})"
        case Copy(source, result, frees):
            return f"{made([result])} = copy %{source}" + f", free {_all(frees)}" * bool(frees)
        case Apply(number, operands, results, index):
            operator = body.graph.applications[number].operator
            return f"{made(results)} = {operator} {_all(operands)} over {index}"
        case Read(storage, result):
            return f"{made([result])} = read {storage}, {program.storage.get(storage)}"
        case Write(source, storage):
            return f"write %{source} to {storage}, {program.storage.get(storage)}"
        case Free(buffers):
            return f"free {_all(buffers)}"
        case Loop(_, condition, inner, carried, captured, results, _, trip_count):
            times = "?" if trip_count is None else trip_count
            outside = sorted({buffer for each in captured for buffer in each})
            return (
                f"{made(results)} = while body {condition} do body {inner} x{times} "
                f"with {_all(carried)} capturing {_all(outside)}"
            )
        case Branch(_, selector, bodies, captured, results):
            outside = sorted({buffer for each in captured for buffer in each})
            choices = ", ".join(f"body {number}" for number in bodies)
            return f"{made(results)} = case %{selector} of {choices} capturing {_all(outside)}"


def _buffer(program: Program, number: int) -> str:
    buffer = program.buffers[number]
    return f"%{number}: {buffer.value} {buffer.dtype}{list(buffer.layout.shape)} {buffer.layout}"


def _all(buffers: Iterable[int]) -> str:
    return " ".join(f"%{buffer}" for buffer in buffers) or "nothing"
