"""The text form of a rule that an author wrote on an operation, as the Shardy dialect spells it.

<([i, kl], [k, j])->([i, lj]) {i=8, j=4, k=2, l=6} reduction={k}, custom>
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from weft.text.scan import Scanner

TensorText: TypeAlias = list[list[str]]
"""For each dimension of a tensor the names of its factors, major to minor."""

_FACTORS = re.compile(r"[a-z](?:_\d+)?")
_KINDS = ("reduction", "need_replication", "permutation", "blocked_propagation")


class RuleText(NamedTuple):
    """What the text of a rule says."""

    operands: list[TensorText]
    results: list[TensorText]
    sizes: dict[str, int]
    kinds: dict[str, list[str]]
    """The factors under each of the words `reduction`, `need_replication` and so on."""


def read_rule(text: str) -> RuleText:
    """Read a rule.

    >>> read_rule("<([i, jk])->([j]) {i=8, j=2, k=3} reduction={i}>").operands
    [[['i'], ['j', 'k']]]
    """
    scan = Scanner(text)
    scan.accept("#")
    scan.accept("sdy.op_sharding_rule")
    scan.expect("<")
    operands = _tensors(scan)
    scan.expect("->")
    results = _tensors(scan)
    sizes = dict(_sizes(scan)) if scan.starts("{") else {}
    kinds: dict[str, list[str]] = {}
    while not scan.starts(",") and not scan.starts(">"):
        column, word = scan.column, scan.name()
        if word not in _KINDS:
            scan.fail(f"'{word}' is no kind of factor", column, f"there are {', '.join(_KINDS)}")
        scan.expect("=")
        kinds[word] = scan.items("{", "}", scan.name)
    if scan.accept(",") and not scan.accept("is_custom"):
        scan.expect("custom")
    scan.expect(">")
    scan.finish()
    _check_known(scan, operands + results, sizes, kinds)
    return RuleText(operands, results, sizes, kinds)


def _tensors(scan: Scanner) -> list[TensorText]:
    return scan.items("(", ")", lambda: scan.items("[", "]", lambda: _factors(scan)))


def _factors(scan: Scanner) -> list[str]:
    column, name = scan.column, scan.name()
    found = _FACTORS.findall(name)
    if "".join(found) != name:
        scan.fail(f"'{name}' is not a row of factors such as 'i', 'jk' and 'z_1'", column)
    return found


def _sizes(scan: Scanner) -> list[tuple[str, int]]:
    def size() -> tuple[str, int]:
        name = scan.name()
        scan.expect("=")
        return name, scan.integer()

    return scan.items("{", "}", size)


def _check_known(
    scan: Scanner, tensors: list[TensorText], sizes: dict[str, int], kinds: dict[str, list[str]]
) -> None:
    """Every factor that is named has a size."""
    used = [name for tensor in tensors for dim in tensor for name in dim]
    for name in (*used, *(name for names in kinds.values() for name in names)):
        if name not in sizes:
            scan.fail(f"the factor '{name}' has no size", 1)
