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
    """The bytes of the result on each device."""
    group: int
    """The devices that take part together; of a permutation, those that receive."""
    received: int
    """The bytes that all devices receive, by the cheapest algorithm.

    An all-reduce is a reduce-scatter and an all-gather.
    """


def collectives(text: str, devices: int) -> list[Collective]:
    """Return the collectives of a program, in the order of its text.

    Each counts once, also those in the body of a loop.
    """
    lines = enumerate(text.splitlines(), start=1)
    return [one for number, line in lines if (one := _read(number, line, devices)) is not None]


def _read(number: int, line: str, devices: int) -> Collective | None:
    """Return the collective of a line, if any: `%name = types kind(operands), attributes`."""
    equals = line.find("= ")
    match = None if equals < 0 else _KIND_OF.search(line, equals + 3)
    if match is None:
        return None
    types, rest = line[equals + 2 : match.start()], line[match.end() :]
    try:
        return _collective(match, types, rest, devices)
    except WeftError:
        raise
    except (ArithmeticError, LookupError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise WeftError(f"line {number}: cannot read {match['kind']}: {reason}") from None


def _collective(match: re.Match[str], types: str, line: str, devices: int) -> Collective:
    kind = match["kind"]
    sizes = list(_sizes(types))
    if match["start"]:  # inputs come before outputs, and sizes after
        sizes = sizes[len(sizes) // 2 :]
    size = sum(sizes)
    if kind == "collective-permute":
        pairs = re.findall(r"\{(\d+),(\d+)\}", _text_of("pairs", line))
        moving = sum(one != two for one, two in pairs)
        return Collective(kind, size, moving, moving * size)
    group = _group(line, devices)
    return Collective(kind, size, group, devices * _received(kind, size, group))


def _received(kind: str, size: int, group: int) -> int:
    """Return the bytes that one device receives."""
    if kind == "reduce-scatter":
        return (group - 1) * size
    return (2 if kind == "all-reduce" else 1) * (group - 1) * size // group


def _sizes(types: str) -> Iterator[int]:
    for name, dims in _ARRAY.findall(types):
        dtype = _DTYPES.get(name) or _KIND[name[0]] + name[1:]
        yield itemsize(dtype) * prod(int(n) for n in dims.split(",") if n)


def _match(which: str, line: str) -> re.Match[str] | None:
    """Return the attribute that lists the devices; a line has at most one."""
    start = line.find("source_target_pairs=" if which == "pairs" else "replica_groups=")
    return _GROUPS[which].match(line, start) if start >= 0 else None


def _text_of(which: str, line: str) -> str:
    match = _match(which, line)
    return match[1] if match else ""


def _group(line: str, devices: int) -> int:
    """Return the number of devices in a group; all of them without groups."""
    mesh = _match("mesh", line)
    if mesh:
        axes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
        return prod(int(axes[name]) for name in re.findall(r"'([^']*)'", mesh[2]))
    if _text_of("iota", line):
        return int(_text_of("iota", line))
    if _text_of("listed", line):
        return _text_of("listed", line).count(",") + 1
    if "replica_groups={}" in line or "replica_groups" not in line:
        return devices
    raise WeftError(f"the groups of a collective are not understood: {line[:160]}")
