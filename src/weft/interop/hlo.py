"""The collectives of a compiled program, read from its HLO text: `compiled.as_text()`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang.dtype import itemsize

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_KIND_OF = re.compile(rf" (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\(")
_ARRAY = re.compile(r"\b(pred|bf16|[usf]\d+|c64|c128)\[([\d,]*)\]")
_GROUPS = {
    "mesh": re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}"),
    "iota": re.compile(r"replica_groups=\[\d+,(\d+)\]"),
    "listed": re.compile(r"replica_groups=\{\{([\d,]*)\}"),
    "pairs": re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}"),
}
_DTYPES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
_KIND = {"u": "uint", "s": "int", "f": "float"}


class Collective(NamedTuple):
    """One collective of a compiled program, as each device runs it.

    >>> text = "%r = f32[8,16] all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add"
    >>> (one,) = collectives(text, devices=8)
    >>> one
    Collective(kind='all-reduce', size=512, group=4, received=6144)
    """

    kind: str
    size: int
    """The bytes of what a device has in the end."""
    group: int
    """How many devices take part together; of a permutation, how many receive."""
    received: int
    """The bytes that all devices receive, by the algorithm that receives fewest.

    An all-reduce is a reduce-scatter and an all-gather.
    """


def collectives(text: str, devices: int) -> list[Collective]:
    """The collectives of a program, in the order of its text; each counts once.

    A loop's body is text as well: what it moves counts once, however often it runs.
    """
    lines = enumerate(text.splitlines(), start=1)
    return [one for number, line in lines if (one := _read(number, line, devices)) is not None]


def _read(number: int, line: str, devices: int) -> Collective | None:
    """The collective of a line, if it is one: `%name = types kind(operands), attributes`."""
    equals = line.find("= ")
    match = None if equals < 0 else _KIND_OF.search(line, equals + 3)
    if match is None:
        return None
    made, rest = line[equals + 2 : match.start()], line[match.end() :]
    try:
        return _collective(match, made, rest, devices)
    except WeftError:
        raise
    except (ArithmeticError, LookupError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise WeftError(f"line {number}: no {match['kind']} that we can read: {reason}") from None


def _collective(match: re.Match[str], made: str, line: str, devices: int) -> Collective:
    kind = match["kind"]
    sizes = list(_sizes(made))
    if match["start"]:  # what goes in stands before what comes out, and numbers behind
        sizes = sizes[len(sizes) // 2 :]
    size = sum(sizes)
    if kind == "collective-permute":
        pairs = re.findall(r"\{(\d+),(\d+)\}", _found("pairs", line))
        moving = sum(one != two for one, two in pairs)
        return Collective(kind, size, moving, moving * size)
    group = _group(line, devices)
    return Collective(kind, size, group, devices * _received(kind, size, group))


def _received(kind: str, size: int, group: int) -> int:
    """The bytes that one device receives."""
    if kind == "reduce-scatter":
        return (group - 1) * size
    return (2 if kind == "all-reduce" else 1) * (group - 1) * size // group


def _sizes(types: str) -> Iterator[int]:
    for name, dims in _ARRAY.findall(types):
        dtype = _DTYPES.get(name) or _KIND[name[0]] + name[1:]
        yield itemsize(dtype) * prod(int(n) for n in dims.split(",") if n)


def _match(which: str, line: str) -> re.Match[str] | None:
    """The attribute that says who takes part; each stands in a line once."""
    start = line.find("source_target_pairs=" if which == "pairs" else "replica_groups=")
    return _GROUPS[which].match(line, start) if start >= 0 else None


def _found(which: str, line: str) -> str:
    found = _match(which, line)
    return found[1] if found else ""


def _group(line: str, devices: int) -> int:
    """How many devices are in a group; without groups it is all of them."""
    mesh = _match("mesh", line)
    if mesh:
        axes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
        return prod(int(axes[name]) for name in re.findall(r"'([^']*)'", mesh[2]))
    if _found("iota", line):
        return int(_found("iota", line))
    if _found("listed", line):
        return _found("listed", line).count(",") + 1
    if "replica_groups={}" in line or "replica_groups" not in line:
        return devices
    raise WeftError(f"the groups of a collective are not understood: {line[:160]}")
