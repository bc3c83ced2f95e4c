"""Many runs of bytes copied by one call: a loop in the processor's own instructions.

Shards are read in the order in which they lie in the array, each run going to a shard of its own,
and long runs are written past the cache, so that what they overwrite is not read. NumPy can do
neither: it walks through one shard at a time, in pieces that each take the interpreter's lock.
There is no compiler where Weft is installed, so the loop stands here as its 339 bytes, for x86-64
and Linux; elsewhere `loop` is None, and NumPy copies. It uses what every such processor has.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Table: TypeAlias = NDArray[np.int64]
"""A row for each run: target, source, their steps to the next run, bytes, whether past the cache.

The loop goes through all entries, then again, each a step further, and so on. It counts in the
table, so each call has its own.
"""

LISTING = """\
f30f1efa        endbr64                     # table rdi, its entries rsi, rows rdx
4c8d0c76        lea r9, [rsi + rsi*2]
49c1e104        shl r9, 4
4901f9          add r9, rdi                 # the end of the table
4989f8          mov r8, rdi
4989d3          mov r11, rdx
rows:
4d89c2          mov r10, r8
next:
498b3a          mov rdi, [r10]              # where to, and where from
498b7208        mov rsi, [r10 + 8]
498b4210        mov rax, [r10 + 16]
490102          add [r10], rax              # the next row of both
498b4218        mov rax, [r10 + 24]
49014208        add [r10 + 8], rax
498b5220        mov rdx, [r10 + 32]         # bytes of the run
4889f9          mov rcx, rdi
48f7d9          neg rcx
83e13f          and ecx, 63                 # bytes to the next line, or all there are
4839d1          cmp rcx, rdx
480f47ca        cmova rcx, rdx
4829ca          sub rdx, rcx
e894000000      call few
4889d1          mov rcx, rdx
48c1e906        shr rcx, 6
746a            jz rest
49837a2800      cmp qword ptr [r10 + 40], 0 # past the cache?
7438            je line
488d0417        lea rax, [rdi + rdx]        # a last line that is not whole goes through
a83f            test al, 63
7403            jz past
0f1808          prefetcht0 [rax]            # the cache: have it there in time
past:
0f1006          movups xmm0, [rsi]
0f104e10        movups xmm1, [rsi + 16]
0f105620        movups xmm2, [rsi + 32]
0f105e30        movups xmm3, [rsi + 48]
0f2b07          movntps [rdi], xmm0
0f2b4f10        movntps [rdi + 16], xmm1
0f2b5720        movntps [rdi + 32], xmm2
0f2b5f30        movntps [rdi + 48], xmm3
4883c640        add rsi, 64
4883c740        add rdi, 64
48ffc9          dec rcx
75d5            jnz past
eb2b            jmp rest
line:
0f1006          movups xmm0, [rsi]
0f104e10        movups xmm1, [rsi + 16]
0f105620        movups xmm2, [rsi + 32]
0f105e30        movups xmm3, [rsi + 48]
0f1107          movups [rdi], xmm0
0f114f10        movups [rdi + 16], xmm1
0f115720        movups [rdi + 32], xmm2
0f115f30        movups [rdi + 48], xmm3
4883c640        add rsi, 64
4883c740        add rdi, 64
48ffc9          dec rcx
75d5            jnz line
rest:
89d1            mov ecx, edx                # what is left of the last line
e81a000000      call few
4983c230        add r10, 48
4d39ca          cmp r10, r9
0f8247ffffff    jb next
49ffcb          dec r11
0f853bffffff    jnz rows
0faef8          sfence                      # seen by other cores before the call returns
c3              ret
few:
f6c120          test cl, 32
7416            jz few16
0f1006          movups xmm0, [rsi]
0f104e10        movups xmm1, [rsi + 16]
0f1107          movups [rdi], xmm0
0f114f10        movups [rdi + 16], xmm1
4883c620        add rsi, 32
4883c720        add rdi, 32
few16:
f6c110          test cl, 16
740e            jz few8
0f1006          movups xmm0, [rsi]
0f1107          movups [rdi], xmm0
4883c610        add rsi, 16
4883c710        add rdi, 16
few8:
f6c108          test cl, 8
740e            jz few4
488b06          mov rax, [rsi]
488907          mov [rdi], rax
4883c608        add rsi, 8
4883c708        add rdi, 8
few4:
f6c104          test cl, 4
740c            jz few2
8b06            mov eax, [rsi]
8907            mov [rdi], eax
4883c604        add rsi, 4
4883c704        add rdi, 4
few2:
f6c102          test cl, 2
740e            jz few1
668b06          mov ax, [rsi]
668907          mov [rdi], ax
4883c602        add rsi, 2
4883c702        add rdi, 2
few1:
f6c101          test cl, 1
740a            jz none
8a06            mov al, [rsi]
8807            mov [rdi], al
48ffc6          inc rsi
48ffc7          inc rdi
none:
c3              ret
"""
"""The bytes of each instruction, and what an assembler makes them from (a test does so).

`few` copies as many bytes as the last six bits of rcx say, and moves both places on.
"""


class Pair(NamedTuple):
    """Where a block goes and where it is taken from: two views of one shape."""

    target: Array
    source: Array


def code() -> bytes:
    """The loop's bytes."""
    lines = (line for line in LISTING.splitlines() if not line.endswith(":"))
    return bytes.fromhex("".join(line.split()[0] for line in lines))


@cache
def loop() -> Callable[[int, int, int], None] | None:
    """The loop as a function of the table's address, its entries, and how often to go through it.

    The interpreter's lock is let go while it runs. None where the processor, or the system's
    rules about memory that is run, do not allow it, or where `WEFT_PURE` says that all code is to
    be Python's.
    """
    if os.environ.get("WEFT_PURE", "0") not in ("", "0"):
        return None
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    try:
        pages = _executable(code())
    except OSError:
        return None
    start = np.frombuffer(pages, np.uint8).ctypes.data
    made: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(start)
    made.pages = pages  # they are there as long as the function is
    found: Callable[[int, int, int], None] = made
    return found


def _executable(content: bytes) -> mmap.mmap:
    """Memory that is read and run, and never writable while it can be run."""
    file = os.memfd_create("weft-loop")
    try:
        os.write(file, content)
        return mmap.mmap(file, len(content), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)


def entries(pairs: Sequence[Pair], past: bool) -> tuple[Table, int]:
    """The table of pairs of one shape, whose last dimension is a run of bytes, and its rows.

    The rows are the largest of the other dimensions. So the table is small, and the runs of a row,
    from pair to pair, follow upon each other as they do in an array that is cut.
    """
    *outer, run = pairs[0].target.shape
    axis = max(range(len(outer)), key=lambda dim: outer[dim])
    rows = outer.pop(axis)
    table = np.empty((*outer, len(pairs), 6), np.int64)
    for number, pair in enumerate(pairs):
        for side, view in enumerate(pair):
            table[..., number, side] = _starts(view, axis)
            table[..., number, 2 + side] = view.strides[axis]
    table[..., 4], table[..., 5] = run, past
    return table.reshape(-1, 6), rows


def _starts(view: Array, axis: int) -> Table:
    """Where the first rows of a view lie in memory."""
    found = np.array(view.ctypes.data, np.int64)
    for dim, (size, step) in enumerate(zip(view.shape[:-1], view.strides)):
        if dim != axis:
            found = np.add.outer(found, step * np.arange(size))
    return found


def copy(table: Table, rows: slice, some: slice, within: slice) -> None:
    """Copy some rows of some entries, of each run the bytes from one place to another."""
    part = table[some].copy()
    part[:, :2] += part[:, 2:4] * rows.start + within.start
    part[:, 4] = within.stop - within.start
    run = loop()
    assert run is not None
    run(part.ctypes.data, len(part), rows.stop - rows.start)
