"""Index notation: one line gives the box of each array that belongs to each sub-problem.

    b m k, b k n -> b m n                               sum: k
    m k, k n, + n -> m n                                sum: k
    b c s*y+d*u-p s*x+d*v-q, f c u v -> b f y x         sum: c u v
    m [k] -> m [k]

Tensors are separated by commas, their dimensions by blanks. A dimension is a sum of index
dimensions with integer coefficients, an offset and perhaps a window (`2*y+:3`); `(y+u)/2` has
elements at every other position only, as a dilated array has. `[k]` cannot be cut, `[r<k]` is
computed from all of `k` and replaces it, `1` is a single element. `+` before an operand means that
it is added once, outside the reduction. Dimensions that no result names are reduced by a monoid;
`custom` is not a monoid, and its dimensions cannot be cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.errors import WeftError
from weft.layout.shardy_text import Scanner
from weft.values import MONOIDS, FrozenMap, Point, freeze, monoid_hint

CUSTOM = "custom"
"""The reduction of a dimension by something that is not a monoid: it cannot be cut."""

LARGEST = 1 << 62
"""The largest coefficient or offset that is read."""

_ONE_MONOID = "apply two operators, or define a monoid that has both as components"
_CLAUSE = re.compile(r"[A-Za-z_]\w*\s*:")
_DIGIT = re.compile(r"[0-9]")
_SINGLE = re.compile(r"1(?![\w*+\-])")


class Row(NamedTuple):
    """One dimension of one tensor: `sum(coefficient * index) + offset`, and a window from there.

    >>> print(Row((("y", 2), ("u", 1)), offset=-1), Row((("y", 1),), window=3, divisor=2))
    2*y+u-1 (y)/2+:3
    """

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0
    window: int = 0
    """The number of positions of a window, or 0 for a single element."""
    whole: bool = False
    divisor: int = 1
    """The step between positions that hold an element: the array is dilated."""
    source: str = ""
    """The index dimension, not cut, that this one replaces."""

    @property
    def dims(self) -> tuple[str, ...]:
        """The index dimensions in it."""
        return tuple(name for name, _ in self.terms)

    @property
    def plain(self) -> str | None:
        """The index dimension, if the row is just that."""
        match self:
            case Row(((name, 1),), 0, 0, _, 1, _):
                return name
        return None

    @property
    def extent(self) -> int:
        """The number of positions of the window: 1 for an element."""
        return max(1, self.window)

    def __str__(self) -> str:
        text = "".join(f"{a:+d}*{name}" for name, a in self.terms)
        text = text.replace("+1*", "+").replace("-1*", "-").removeprefix("+")
        if not text:
            text = f"{self.offset}" if self.offset or self.window else "1"
        elif self.offset:
            text += f"{self.offset:+d}"
        if self.divisor != 1:
            text = f"({text})/{self.divisor}"
        text += f"+:{self.window}" * (self.window > 0)
        source = f"<{self.source}" if self.source else ""
        return f"[{text}{source}]" if self.whole else text


@dataclass(frozen=True, slots=True, init=False)
class Notation:
    """An operator's line: the rows of its operands and results, and its reductions.

    >>> matmul = Notation.parse("b m k, b k n -> b m n  sum: k")
    >>> matmul.dims, dict(matmul.reduced)
    (('b', 'm', 'n', 'k'), {'k': 'sum'})
    >>> print(Notation.parse("b c s*y+d*u-p, f c u -> b f y  sum: c u", s=2, d=1, p=1))
    b c 2*y+u-1, f c u -> b f y  sum: c u
    """

    operands: tuple[tuple[Row, ...], ...]
    results: tuple[tuple[Row, ...], ...]
    reduced: Mapping[str, str]
    once: frozenset[int]
    """The operands that are added outside the reduction."""

    def __init__(
        self,
        operands: Iterable[Iterable[Row]],
        results: Iterable[Iterable[Row]],
        reduced: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        once: Iterable[int] = (),
    ) -> None:
        monoids = dict[str, str]()
        for name, monoid in reduced.items() if isinstance(reduced, Mapping) else reduced:
            if monoids.setdefault(name, monoid) != monoid:
                raise WeftError(
                    f"'{name}' is reduced by {monoids[name]} and by {monoid}", hint=_ONE_MONOID
                )
        freeze(
            self,
            operands=tuple(map(tuple, operands)),
            results=tuple(map(tuple, results)),
            reduced=FrozenMap(monoids.items()),
            once=frozenset(once),
        )

    @classmethod
    def parse(cls, text: str, **numbers: int) -> Notation:
        """Read a line; names among `numbers` stand for those numbers.

        >>> Notation.parse("m k -> m  total: k")
        Traceback (most recent call last):
        weft.errors.ParseError: column 11: 'total' is not a monoid
        m k -> m  total: k
                  ^
        hint: the monoids are sum, prod, max, min, and, or, logsumexp, and those that you define
        """
        return _NotationReader(text, numbers).notation()

    @property
    def dims(self) -> tuple[str, ...]:
        """The index dimensions: those of the results in order, then the others as they come."""
        rows = (row for tensor in self.results + self.operands for row in tensor)
        return tuple(dict.fromkeys(name for row in rows for name in row.dims))

    @property
    def whole(self) -> frozenset[str]:
        """The index dimensions that cannot be cut."""
        rows = (row for tensor in self.results + self.operands for row in tensor)
        custom = (name for name, monoid in self.reduced.items() if monoid == CUSTOM)
        return frozenset(name for row in rows if row.whole for name in row.dims).union(custom)

    def __str__(self) -> str:
        operands = [
            "+ " * (number in self.once) + " ".join(map(str, rows))
            for number, rows in enumerate(self.operands)
        ]
        results = [" ".join(map(str, rows)) for rows in self.results]
        by: dict[str, list[str]] = {}
        for name, monoid in self.reduced.items():
            by.setdefault(monoid, []).append(name)
        clauses = [f"{monoid}: {' '.join(names)}" for monoid, names in by.items()]
        return "  ".join([f"{', '.join(operands)} -> {', '.join(results)}", *clauses])


def plain(*names: str) -> tuple[Row, ...]:
    """Return one plain row for each index dimension.

    >>> print(*plain("b", "m"))
    b m
    """
    return tuple(Row(((name, 1),)) for name in names)


def whole(name: str, source: str = "") -> Row:
    """Return the row of a dimension that is not cut; `source` names the one it replaces.

    >>> print(whole("k"), whole("r", "k"))
    [k] [r<k]
    """
    return Row(((name, 1),), whole=True, source=source)


def numbered(prefix: str, count: int) -> tuple[Row, ...]:
    """Return plain rows with numbered names.

    >>> print(*numbered("i", 3))
    i0 i1 i2
    """
    return plain(*(f"{prefix}{number}" for number in range(count)))


def digits(pairs: Iterable[tuple[str, int]]) -> Row:
    """Return the row of a dimension in mixed radix, from its digits, major to minor.

    >>> print(digits([("i", 4), ("j", 3)]))
    3*i+j
    """
    terms: list[tuple[str, int]] = []
    weight = 1
    for name, size in reversed(list(pairs)):
        terms.insert(0, (name, weight))
        weight *= size
    return Row(tuple(terms))


def aligned(prefix: str, shapes: Sequence[Point]) -> tuple[list[list[Row]], tuple[Row, ...]]:
    """Return the rows of arrays that are broadcast to one shape, and those of the result.

    >>> rows, result = aligned("i", [(8, 4), (1, 4), (4,)])
    >>> print(*(" ".join(map(str, row)) for row in rows), " ".join(map(str, result)), sep=", ")
    i0 i1, 1 i1, i1, i0 i1
    """
    rank = max(map(len, shapes))
    single = [
        all(shape[dim - rank] == 1 for shape in shapes if dim >= rank - len(shape))
        for dim in range(rank)
    ]
    dims = numbered(prefix, rank)
    rows = [
        [
            Row() if size == 1 and not single[dim] else dims[dim]
            for dim, size in enumerate(shape, rank - len(shape))
        ]
        for shape in shapes
    ]
    return rows, dims


def axis_of(dim: int, shape: Point) -> int:
    """Return a dimension counted from the front; it must exist.

    >>> axis_of(-1, (8, 4))
    1
    """
    if not -len(shape) <= dim < len(shape):
        raise WeftError(f"{list(shape)} has no dimension {dim}")
    return dim % len(shape)


class _NotationReader:
    """Reads one line from the left."""

    def __init__(self, text: str, numbers: Mapping[str, int]) -> None:
        self.scan = Scanner(text)
        self.numbers = numbers
        self.columns: dict[str, int] = {}

    def notation(self) -> Notation:
        scan, once = self.scan, set[int]()
        operands = list(self._tensors("->", once))
        scan.expect("->")
        results = list(self._tensors("", None))
        reduced = dict[str, str]()
        for name, monoid in self._reductions():
            if reduced.setdefault(name, monoid) != monoid:
                self.scan.fail(
                    f"'{name}' is reduced by {reduced[name]} and by {monoid}",
                    self.columns[name],
                    _ONE_MONOID,
                )
        scan.finish()
        self._check(operands, results, reduced)
        return Notation(operands, results, reduced, once)

    def _tensors(self, end: str, once: set[int] | None) -> Iterator[list[Row]]:
        number = 0
        while True:
            if once is not None and self.scan.accept("+"):
                once.add(number)
            yield list(self._rows(end))
            if not self.scan.accept(","):
                return
            number += 1

    def _rows(self, end: str) -> Iterator[Row]:
        scan = self.scan
        while not (scan.done or scan.starts(",") or (end and scan.starts(end)) or self._clause()):
            yield self._row()

    def _clause(self) -> bool:
        """Whether a reduction clause is next: a name and a colon."""
        return self.scan.matches(_CLAUSE)

    def _row(self) -> Row:
        scan = self.scan
        whole = scan.accept("[")
        terms: dict[str, int] = {}
        divisor = 1
        if scan.accept("("):
            offset = self._sum(terms)
            scan.expect(")")
            scan.expect("/")
            divisor = self._positive()
        else:
            offset = self._sum(terms)
        window = self._positive() if scan.accept("+:") else 0
        source = self._source() if whole else ""
        kept = tuple((name, a) for name, a in terms.items() if a)
        return Row(kept, offset, window, whole, divisor, source)

    def _source(self) -> str:
        """Take `]`, or `<k]`, and return the name."""
        name, scan = "", self.scan
        if scan.accept("<"):
            column, name = scan.column, scan.name()
            if name not in self.columns:
                scan.fail(f"no operand has the index dimension '{name}'", column)
        scan.expect("]")
        return name

    def _sum(self, terms: dict[str, int]) -> int:
        """Take terms with signs between them, and return their offset."""
        scan = self.scan
        offset = self._term(terms, -1 if scan.accept("-") else 1, sole=True)
        while not (scan.done or scan.starts("->") or scan.starts("+:")):
            if scan.accept("+"):
                offset += self._term(terms, 1)
            elif scan.accept("-"):
                offset += self._term(terms, -1)
            else:
                break
        return offset

    def _term(self, terms: dict[str, int], sign: int, sole: bool = False) -> int:
        """Take `3`, `y`, `3*y` or `s*y`; names go to `terms`, a bare number is returned."""
        scan, column, product, dim = self.scan, self.scan.column, sign, None
        single = sole and scan.matches(_SINGLE)
        while True:
            if scan.matches(_DIGIT):
                product *= scan.integer()
            else:
                name = scan.name()
                if name in self.numbers:
                    product *= self.numbers[name]
                elif dim is None:
                    dim = name
                    self.columns.setdefault(name, column)
                else:
                    scan.fail(f"'{dim}' and '{name}' are both index dimensions", column)
            if abs(product) > LARGEST:
                scan.fail(f"a coefficient above {LARGEST}", column)
            if not scan.accept("*"):
                break
        if dim is None:
            return 0 if single else product
        terms[dim] = terms.get(dim, 0) + product
        return 0

    def _positive(self) -> int:
        """Take a number of at least 1: a window or a divisor."""
        column = self.scan.column
        if self.scan.matches(_DIGIT):
            number = self.scan.integer()
        else:
            name = self.scan.name()
            if name not in self.numbers:
                self.scan.fail(f"'{name}' is not a number that was given", column)
            number = self.numbers[name]
        if number < 1:
            self.scan.fail(f"{number} is less than 1", column)
        return number

    def _reductions(self) -> Iterator[tuple[str, str]]:
        scan = self.scan
        while True:
            if scan.done:
                return
            column, monoid = scan.column, scan.name()
            if monoid not in (*MONOIDS, CUSTOM):
                scan.fail(f"'{monoid}' is not a monoid", column, monoid_hint())
            scan.expect(":")
            while not scan.done and not self._clause():
                column, name = scan.column, scan.name()
                if name not in self.columns:
                    scan.fail(f"no operand has the index dimension '{name}'", column)
                yield name, monoid

    def _check(
        self, operands: list[list[Row]], results: list[list[Row]], reduced: Mapping[str, str]
    ) -> None:
        of_results = {name for rows in results for row in rows for name in row.dims}
        of_operands = {name for rows in operands for row in rows for name in row.dims}
        for name in reduced:
            if name in of_results:
                self.scan.fail(f"'{name}' is reduced and stands in a result", self.columns[name])
        for name in sorted(of_operands - of_results - reduced.keys(), key=self.columns.__getitem__):
            whole = all(r.whole for rows in operands for r in rows if name in r.dims)
            if not whole:
                hint = f"say how: 'sum: {name}', or '[{name}]' if it must be seen whole"
                self.scan.fail(
                    f"'{name}' is in no result and not reduced", self.columns[name], hint
                )
