"""`FactorRule`: the factors that propagation moves axes along.

The factors are the index dimensions. A dimension of a tensor that names none, or none that the
others share, gets a factor of its own, so that conflicts between its axes are seen.

A rule follows from a signature (`factor_rule`), or is given as text by the author of a program, as
the Shardy dialect spells it (`read_rule`, `written_rule`):

    <([i, kl], [k, j])->([i, lj]) {i=8, j=4, k=2, l=6} reduction={k}, custom>
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from operator import and_
from typing import Literal, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang.notation import Row
from weft.lang.signature import Signature
from weft.layout.shardy_text import Scanner
from weft.values import Point

Kind: TypeAlias = Literal["parallel", "reduced", "whole", "permuted"]
TensorFactors: TypeAlias = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor its factors, major to minor."""


class FactorRule(NamedTuple):
    """The factors of each dimension of operands and results.

    >>> print(factor_rule(Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])))
    ([m, k], [k, n]) -> ([m, n]) {m=8, n=32, k=16} reduced={k}
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    operands: tuple[TensorFactors, ...]
    results: tuple[TensorFactors, ...]

    def __str__(self) -> str:
        def tensors(all_of_them: tuple[TensorFactors, ...]) -> str:
            return ", ".join(
                "[" + ", ".join("".join(self.names[f] for f in dim) for dim in tensor) + "]"
                for tensor in all_of_them
            )

        sizes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.sizes))
        text = f"({tensors(self.operands)}) -> ({tensors(self.results)}) {{{sizes}}}"
        for kind in ("reduced", "whole", "permuted"):
            names = [name for name, k in zip(self.names, self.kinds) if k == kind]
            text += f" {kind}={{{', '.join(names)}}}" * bool(names)
        return text


@lru_cache(maxsize=65536)
def factor_rule(signature: Signature) -> FactorRule:
    """Return the rule that follows from a signature."""
    return _RuleBuilder(signature).rule()


def _tensors_with(tensors: Iterable[Iterable[Row]]) -> Counter[str]:
    """Count the tensors that have each index dimension."""
    return Counter(name for rows in tensors for name in {name for row in rows for name in row.dims})


class _RuleBuilder:
    """Derives the rule of a signature."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.names = list(signature.sizes)
        self.sizes = list(signature.sizes.values())
        self.permuted: set[str] = set()
        self.cramped: set[str] = set()
        """The index dimensions that get no factor where they move along others."""
        self.whole = signature.notation.whole
        self.operands = _tensors_with(signature.notation.operands)
        self.results = _tensors_with(signature.notation.results)

    def rule(self) -> FactorRule:
        line, shapes = self.signature.notation, self.signature
        tensors = [
            *zip(line.operands, shapes.operand_shapes),
            *zip(line.results, shapes.result_shapes),
        ]
        for rows, shape in tensors:
            for row, size in zip(rows, shape):
                self._make_room(row, size)
        factors = tuple(tuple(map(self._dim, rows, shape)) for rows, shape in tensors)
        kinds = tuple(map(self._kind, self.names))
        split = len(line.operands)
        return FactorRule(
            tuple(self.names), tuple(self.sizes), kinds, factors[:split], factors[split:]
        )

    def _kind(self, name: str) -> Kind:
        line = self.signature.notation
        if name in line.reduced:
            return "reduced"
        if name in self.whole:
            return "whole"
        return "permuted" if name in self.permuted else "parallel"

    def _dim(self, row: Row, size: int) -> tuple[int, ...]:
        if all(map(self._is_lone, row.dims)):
            return (self._own(),)
        if row.plain is not None and self.signature.sizes[row.plain] == size:
            factor = self.names.index(row.plain)
            if row.source:  # it has the size of the dimension that it replaces
                self.sizes[factor] = self.signature.sizes[row.source]
            return (factor,)
        if len(row.dims) == 1:
            return (self._moved(row, size),)
        return self._mixed_radix(row, size) or self._sliding(row)

    def _is_lone(self, name: str) -> bool:
        """Return whether it gets no factor in one tensor, and at most one other has it."""
        return name in self.cramped and self.operands[name] + self.results[name] < 3

    def _own(self) -> int:
        """Return a new factor that no other dimension shares."""
        self.names.append(f"_{len(self.names) - len(self.signature.sizes)}")
        self.sizes.append(1)
        return len(self.names) - 1

    def _mixed_radix(self, row: Row, size: int) -> tuple[int, ...]:
        """Return the digits, if the row is the dimension as a number in mixed radix."""
        sizes = self.signature.sizes
        digits = sorted(row.terms, key=lambda term: (-term[1], -sizes[term[0]]))
        expected = [prod(sizes[d] for d, _ in digits[n + 1 :]) for n in range(len(digits))]
        whole = (row.offset, row.window, row.divisor) == (0, 0, 1)
        whole = whole and prod(sizes[d] for d in row.dims) == size and not self._slides(row)
        if not whole or [a for _, a in digits] != expected:
            return ()
        return tuple(self.names.index(name) for name, _ in digits)

    def _slides(self, row: Row) -> bool:
        """Return whether a window slides: its reduced dimensions are in another operand.

        Adjacent windows are a number in mixed radix as well. They count as windows, so that the
        rule does not change with the stride.
        """
        shared = [self.operands[name] > 1 for name in row.dims]
        reduced = [name in self.signature.notation.reduced for name in row.dims]
        return any(map(and_, shared, reduced)) and not all(shared)

    def _make_room(self, row: Row, size: int) -> None:
        """Share one dimension among the index dimensions that move along it, the largest first."""
        if len(row.dims) < 2 or self._mixed_radix(row, size):
            return
        for name in self._by_size(row):
            room = min(size, self.signature.sizes[name])
            if room > 1:
                self.sizes[self.names.index(name)] = room
                size //= room
                self.permuted.add(name)
            else:
                self.cramped.add(name)

    def _by_size(self, row: Row) -> list[str]:
        return sorted(row.dims, key=lambda name: -self.signature.sizes[name])

    def _sliding(self, row: Row) -> tuple[int, ...]:
        """Return the index dimensions that move along one dimension and have a factor."""
        kept = (name for name in self._by_size(row) if name not in self.cramped)
        return tuple(map(self.names.index, kept))

    def _moved(self, row: Row, size: int) -> int:
        """Return the one index dimension of a row that selects elements, or windows of them.

        The factor counts windows if there are any, and otherwise the elements selected from. It
        stays parallel if all elements are selected, or if each window is an element.
        """
        ((name, a),) = row.terms
        factor, count = self.names.index(name), self.signature.sizes[name]
        same = count == size
        if row.window:
            same = (row.offset, row.window, count) == (0, 1, (size - 1) * row.divisor + 1)
        elif not row.whole:
            self.sizes[factor] = size
        if a != 1 or not same:
            self.permuted.add(name)
        return factor


TensorText: TypeAlias = list[list[str]]
"""For each dimension of a tensor the names of its factors, major to minor."""

_FACTORS = re.compile(r"[a-z](?:_\d+)?")
_KINDS = ("reduction", "need_replication", "permutation", "blocked_propagation")


class RuleText(NamedTuple):
    """The text of a rule, read."""

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
            scan.fail(
                f"'{word}' is not a kind of factor", column, f"the kinds are {', '.join(_KINDS)}"
            )
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
    factors = _FACTORS.findall(name)
    if "".join(factors) != name:
        scan.fail(f"'{name}' is not a row of factors such as 'i', 'jk' and 'z_1'", column)
    return factors


def _sizes(scan: Scanner) -> list[tuple[str, int]]:
    def size() -> tuple[str, int]:
        name = scan.name()
        scan.expect("=")
        return name, scan.integer()

    return scan.items("{", "}", size)


def _check_known(
    scan: Scanner, tensors: list[TensorText], sizes: dict[str, int], kinds: dict[str, list[str]]
) -> None:
    """Raise for a factor without a size."""
    used = [name for tensor in tensors for dim in tensor for name in dim]
    for name in (*used, *(name for names in kinds.values() for name in names)):
        if name not in sizes:
            scan.fail(f"the factor '{name}' has no size", 1)


_WORDS: dict[str, Kind] = {
    "reduction": "reduced",
    "need_replication": "whole",
    "permutation": "permuted",
}


@lru_cache(maxsize=4096)
def written_rule(text: str, signature: Signature) -> FactorRule:
    """Return the rule that a text gives, checked against the shapes of an application.

    >>> line = Signature.of("[a] [b] -> [c]", [(8, 6)], {"c": 8})
    >>> print(written_rule("<([i, j])->([i]) {i=8, j=6} reduction={j}>", line))
    ([i, j]) -> ([i]) {i=8, j=6} reduced={j}
    """
    parsed = read_rule(text)
    sides = ((parsed.operands, signature.operand_shapes), (parsed.results, signature.result_shapes))
    for noun, (tensors, shapes) in zip(("operand", "result"), sides):
        _check(text, noun, tensors, shapes, parsed.sizes)
    return _FromText(parsed).rule()


def _check(
    text: str,
    noun: str,
    tensors: Sequence[Sequence[Sequence[str]]],
    shapes: Sequence[Point],
    sizes: dict[str, int],
) -> None:
    if len(tensors) != len(shapes):
        raise WeftError(
            f"the rule has {len(tensors)} {noun}s where there are {len(shapes)}: {text}"
        )
    for number, (tensor, shape) in enumerate(zip(tensors, shapes)):
        given = [prod(sizes[name] for name in dim) for dim in tensor]
        if given != list(shape):
            raise WeftError(
                f"the rule gives {noun} {number} the shape {given}, expected {list(shape)}: {text}"
            )


class _FromText:
    """Numbers the factors of a text; a blocked factor is a different one in each dimension."""

    def __init__(self, text: RuleText) -> None:
        self.text = text
        self.names = list(text.sizes)
        self.sizes = list(text.sizes.values())
        self.kinds: list[Kind] = ["parallel"] * len(self.names)
        for word, kind in _WORDS.items():
            for name in text.kinds.get(word, ()):
                self.kinds[self.names.index(name)] = kind
        self.blocked = set(text.kinds.get("blocked_propagation", ()))

    def rule(self) -> FactorRule:
        operands = tuple(map(self._tensor, self.text.operands))
        results = tuple(map(self._tensor, self.text.results))
        sizes = tuple(self.sizes)
        return FactorRule(tuple(self.names), sizes, tuple(self.kinds), operands, results)

    def _tensor(self, tensor: list[list[str]]) -> TensorFactors:
        return tuple(tuple(map(self._factor, dim)) for dim in tensor)

    def _factor(self, name: str) -> int:
        number = self.names.index(name)
        if name not in self.blocked:
            return number
        self.names.append(f"_{len(self.names)}")
        self.sizes.append(self.sizes[number])
        self.kinds.append(self.kinds[number])
        return len(self.names) - 1
